//! Errors of steering, and their causes for the exit code.

use evenkeel_apply::{ApplyError, Cause};
use evenkeel_datapath::DatapathError;
use evenkeel_host::{HostError, there_is};
use evenkeel_netlink::NetlinkError;
use evenkeel_receive::ConfigureError;
use evenkeel_receive::policy::BindError;
use evenkeel_receive::search::SearchError;

/// The error if an interface cannot be steered.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    #[error("there is no interface '{name}' here; {}", there_is(.others))]
    NoInterface { name: String, others: Vec<String> },
    /// The options contradict each other, or do not fit the interface.
    #[error("{0}")]
    Usage(String),
    /// A requirement is missing, or a setting prevents steering.
    #[error("{what}; {remedy}")]
    Unable {
        what: String,
        /// The next step for the user.
        remedy: String,
    },
    /// A signal ended the set-up. The end of the session restores the changes.
    #[error("a signal ended the setup")]
    Stopped,
    /// No placement can meet the policy with this number of queues.
    #[error(transparent)]
    Policy(#[from] BindError),
    /// The NIC does not support this configuration.
    #[error(transparent)]
    Configure(#[from] ConfigureError),
    /// The policy's script failed during the search.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// The steering program could not be loaded, attached or read.
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

    /// Returns the cause, for the exit code.
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
