//! What can go wrong in the test bed, and whose fault it is.

use std::io;

use evenkeel_control::ControlError;
use evenkeel_datapath::DatapathError;
use evenkeel_host::HostError;
use evenkeel_netlink::NetlinkError;

/// Why a run in the test bed ended early. Whatever it had made is gone by the time this is seen.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// This machine cannot do it; the text names what is missing and what to do.
    #[error("{missing}\n  {remedy}")]
    Unable {
        /// What is missing.
        missing: String,
        /// What to do about it.
        remedy: String,
    },
    /// The kernel refused a link, an address or a qdisc.
    #[error("test bed: {0}")]
    Netlink(#[from] NetlinkError),
    /// The BPF programs could not be used.
    #[error("test bed: {0}")]
    Datapath(#[from] DatapathError),
    /// Queue weights or segment sizes could not be kept.
    #[error("test bed: {0}")]
    Control(#[from] ControlError),
    /// The kernel refused a tree of qdiscs or an offload; the text has the step and the kernel's words.
    #[error("test bed: {0}")]
    Qdisc(String),
    /// The host could not be read.
    #[error("test bed: {0}")]
    Host(#[from] HostError),
    /// A system call failed.
    #[error("test bed: cannot {action}: {source}")]
    System {
        /// What was tried.
        action: String,
        /// The system's error.
        source: io::Error,
    },
    /// A traffic tool failed or told nonsense.
    #[error("test bed: {0}")]
    Traffic(String),
    /// The user asked to stop.
    #[error("interrupted; everything is put back")]
    Interrupted,
}

/// How an error ends a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// This machine cannot do it.
    Unable,
    /// It failed while running.
    Failed,
    /// It was interrupted.
    Interrupted,
}

impl TestbedError {
    /// How the error ends a command.
    #[must_use]
    pub fn failure(&self) -> Failure {
        match self {
            Self::Unable { .. } => Failure::Unable,
            Self::Interrupted => Failure::Interrupted,
            _ => Failure::Failed,
        }
    }

    pub(crate) fn system(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::System { action, source }
    }
}
