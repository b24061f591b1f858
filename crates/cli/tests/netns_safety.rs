//! A short form of `./dev bench safety`: random kills, stops and moves, and damaged journals.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../bench/src/safety/campaign.rs"]
mod campaign;

use campaign::{Options, run};

#[test]
fn no_setting_is_lost_left_or_wrong() {
    let seed = u64::from(std::process::id());
    let binary = env!("CARGO_BIN_EXE_evenkeel").into();
    let outcome = run(&Options { binary, kills: 12, damaged: 60, seed }).unwrap();
    assert!(outcome.failures.is_empty(), "seed {seed}: {outcome}");
}
