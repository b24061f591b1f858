//! Measures on this host the costs of a machine profile that can be measured without a NIC.
//!
//! | figure | how it is measured |
//! |---|---|
//! | clock | a chain of dependent additions, one per cycle |
//! | copied byte | `rep movsb`, as the kernel's copy to user space; pages in random order |
//! | wakeup, switch | an eventfd between two threads |
//! | packet | TCP and UDP over a veth pair; one thread sends and receives, so all work is on one processor |
//!
//! All times are differences of `CLOCK_MONOTONIC`. The measured clock rate converts them to cycles. A round
//! measures each figure once; the rounds repeat until the time is over, so that slow changes of the machine
//! affect all figures. The result of a figure is the median over the rounds.
//!
//! The measurement changes no setting of the host. Threads are pinned, memory belongs to the process, and the
//! namespaces have no names, so the kernel removes them with the process, even after `kill -9`.

mod clock;
mod copy;
mod packet;
mod place;
mod profile;
mod rounds;
mod wakeup;

use std::io;

use evenkeel_testbed::TestbedError;

pub use place::{Places, choose};
pub use profile::{Packets, profile};
pub use rounds::{Plan, Quantity, Report, calibrate};

#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    #[error("interrupted; nothing was changed")]
    Interrupted,
    #[error("--cores: {0}")]
    Cores(String),
    #[error("cannot {action}: {source}")]
    System { action: &'static str, source: io::Error },
    #[error(transparent)]
    Bed(#[from] TestbedError),
}

impl CalibrateError {
    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }
}
