//! Errors of the test bed, and their kinds for the exit code.

use std::io;

use evenkeel_control::ControlError;
use evenkeel_datapath::DatapathError;
use evenkeel_host::HostError;
use evenkeel_netlink::NetlinkError;

/// Why a run in the test bed ended early. By then everything is removed.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// This machine lacks something; the message names it and the remedy.
    #[error("{missing}\n  {remedy}")]
    Unable { missing: String, remedy: String },
    /// This machine cannot do a setting of the scenario.
    #[error("{key}: {problem}; {remedy}")]
    Setting {
        /// Such as `workload.flows`.
        key: &'static str,
        problem: String,
        remedy: String,
    },
    /// The kernel refused a link, an address or a qdisc.
    #[error("test bed: {0}")]
    Netlink(#[from] NetlinkError),
    /// The BPF programs could not be used.
    #[error("test bed: {0}")]
    Datapath(#[from] DatapathError),
    /// Queue weights or segment sizes could not be maintained.
    #[error("test bed: {0}")]
    Control(#[from] ControlError),
    /// The kernel refused a tree of qdiscs or an offload; the text has the step and the kernel's error.
    #[error("test bed: {0}")]
    Qdisc(String),
    #[error("test bed: {0}")]
    Host(#[from] HostError),
    #[error("test bed: cannot {action}: {source}")]
    System { action: String, source: io::Error },
    /// A traffic tool failed or reported invalid figures.
    #[error("test bed: {0}")]
    Traffic(String),
    #[error("interrupted; everything is put back")]
    Interrupted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    Unable,
    Failed,
    Interrupted,
}

impl TestbedError {
    #[must_use]
    pub fn failure(&self) -> Failure {
        match self {
            Self::Unable { .. } | Self::Setting { .. } => Failure::Unable,
            Self::Interrupted => Failure::Interrupted,
            _ => Failure::Failed,
        }
    }

    /// The key of the scenario that this machine cannot do, if that is the reason.
    #[must_use]
    pub fn key(&self) -> Option<&'static str> {
        if let Self::Setting { key, .. } = self { Some(key) } else { None }
    }

    pub(crate) fn system(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::System { action, source }
    }
}
