//! Errors of steering, and their causes for the exit code.

use evenkeel_apply::{ApplyError, Cause};
use evenkeel_datapath::DatapathError;
use evenkeel_host::{HostError, there_is};
use evenkeel_netlink::NetlinkError;
use evenkeel_receive::ConfigureError;
use evenkeel_receive::policy::BindError;
use evenkeel_receive::search::SearchError;

/// The error of steering an interface.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    #[error("there is no interface '{name}' here; {}", there_is(.others))]
    NoInterface { name: String, others: Vec<String> },
    /// The options contradict each other, or do not fit the interface.
    #[error("{0}")]
    Usage(String),
    #[error("{what}; {remedy}")]
    Unable { what: String, remedy: String },
    /// A signal ended the set-up. The end of the session restores the changes.
    #[error("a signal ended the setup")]
    Stopped,
    #[error(transparent)]
    Policy(#[from] BindError),
    #[error(transparent)]
    Configure(#[from] ConfigureError),
    #[error(transparent)]
    Search(#[from] SearchError),
    #[error(transparent)]
    Datapath(#[from] DatapathError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Host(#[from] HostError),
}

impl SteerError {
    pub(crate) fn unable(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Unable { what: what.into(), remedy: remedy.into() }
    }

    /// Returns the cause of the error, for the exit code.
    #[must_use]
    pub fn cause(&self) -> Cause {
        match self {
            Self::NoInterface { .. }
            | Self::Usage(_)
            | Self::Policy(_)
            | Self::Configure(_)
            | Self::Search(_) => Cause::Usage,
            Self::Unable { .. } => Cause::Unable,
            Self::Apply(error) => error.cause(),
            Self::Host(HostError::ForeignSysfs { .. } | HostError::NotMounted { .. }) => Cause::Unable,
            Self::Datapath(error) if error.is_refusal() => Cause::Unable,
            Self::Datapath(_) | Self::Netlink(_) | Self::Host(_) | Self::Stopped => Cause::Failed,
        }
    }
}
