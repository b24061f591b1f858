//! Errors of the test bed, and their classes for the exit code.

use std::io;

use evenkeel_control::ControlError;
use evenkeel_datapath::DatapathError;
use evenkeel_host::HostError;
use evenkeel_netlink::NetlinkError;

/// The reason why a run in the test bed ended early. The test bed has removed all its objects.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// This machine lacks a program, privilege or feature.
    #[error("{missing}\n  {remedy}")]
    Unable { missing: String, remedy: String },
    #[error("{key}: {problem}; {remedy}")]
    Setting {
        /// Key in the scenario, such as `workload.flows`.
        key: &'static str,
        problem: String,
        remedy: String,
    },
    #[error("test bed: {0}")]
    Netlink(#[from] NetlinkError),
    #[error("test bed: {0}")]
    Datapath(#[from] DatapathError),
    #[error("test bed: {0}")]
    Control(#[from] ControlError),
    /// The kernel refused a tree of qdiscs or an offload. The text contains the step and the kernel's
    /// error.
    #[error("test bed: {0}")]
    Qdisc(String),
    #[error("test bed: {0}")]
    Host(#[from] HostError),
    #[error("test bed: cannot {action}: {source}")]
    System { action: String, source: io::Error },
    /// A traffic tool failed, or its output is invalid.
    #[error("test bed: {0}")]
    Traffic(String),
    #[error(
        "test bed: another program changed an interface during a repeat: {0}; end that program, then run the \
         scenario again"
    )]
    Changed(String),
    #[error("interrupted; the test bed is removed and all settings are restored")]
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

    /// Returns the key of the scenario's setting that this machine does not support, if this is the
    /// reason for the error.
    #[must_use]
    pub fn key(&self) -> Option<&'static str> {
        if let Self::Setting { key, .. } = self { Some(key) } else { None }
    }

    pub(crate) fn system(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::System { action, source }
    }
}
