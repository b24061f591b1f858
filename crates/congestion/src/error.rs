//! Errors of loading a congestion control, and their kinds for the exit code.

use evenkeel_apply::{ApplyError, Cause};
use evenkeel_datapath::DatapathError;
use evenkeel_host::HostError;

#[derive(Debug, thiserror::Error)]
pub enum CongestionError {
    #[error("{0}")]
    Usage(String),
    /// This machine lacks a requirement.
    #[error("{what}; {remedy}")]
    Unable { what: String, remedy: String },
    #[error("cannot {action}: {source}")]
    File { action: String, source: std::io::Error },
    #[error(transparent)]
    Datapath(#[from] DatapathError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error(transparent)]
    Host(#[from] HostError),
}

impl CongestionError {
    pub(crate) fn unable(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Unable { what: what.into(), remedy: remedy.into() }
    }

    /// Returns the cause, for the exit code.
    #[must_use]
    pub fn cause(&self) -> Cause {
        match self {
            Self::Usage(_) | Self::Datapath(DatapathError::Limit(_)) => Cause::Usage,
            Self::Unable { .. } => Cause::Unable,
            Self::Datapath(error) if error.is_refusal() || error.is_taken() => Cause::Unable,
            Self::Apply(error) => error.cause(),
            Self::Host(HostError::NotMounted { .. }) => Cause::Unable,
            Self::File { .. } | Self::Datapath(_) | Self::Host(_) => Cause::Failed,
        }
    }
}
