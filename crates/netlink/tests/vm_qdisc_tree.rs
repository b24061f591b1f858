//! Trees of qdiscs on a kernel that has all of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use support::Hosts;

#[test]
fn every_bundled_setup_is_made() {
    assert_eq!(Hosts::new().install_every_bundled_setup(), [].into());
}
