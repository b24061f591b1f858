//! What can go wrong, and whose matter it is.

use evenkeel_apply::{ApplyError, Cause};
use evenkeel_datapath::DatapathError;
use evenkeel_host::HostError;
use evenkeel_netlink::NetlinkError;
use evenkeel_receive::ConfigureError;
use evenkeel_receive::policy::BindError;
use evenkeel_receive::search::SearchError;

/// An interface could not be steered.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    /// There is no interface of this name.
    #[error("there is no interface '{name}' here; there are: {}", .others.join(", "))]
    NoInterface {
        /// The name, as it was given.
        name: String,
        /// Names that would do.
        others: Vec<String>,
    },
    /// What was asked for does not fit together.
    #[error("{0}")]
    Usage(String),
    /// Something is missing or in the way.
    #[error("{what}; {remedy}")]
    Unable {
        /// What.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// The policy cannot be met with so many queues, whatever the flows.
    #[error(transparent)]
    Policy(#[from] BindError),
    /// The NIC cannot be configured so.
    #[error(transparent)]
    Configure(#[from] ConfigureError),
    /// The search failed: the policy's script did.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// The steering program could not be loaded, attached or read.
    #[error(transparent)]
    Datapath(#[from] DatapathError),
    /// A setting could not be changed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The kernel refused over netlink.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The host could not be read.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl SteerError {
    pub(crate) fn unable(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Unable { what: what.into(), remedy: remedy.into() }
    }

    /// Whose matter it is.
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
            Self::Host(HostError::ForeignSysfs { .. }) => Cause::Unable,
            Self::Datapath(error) if error.is_refusal() => Cause::Unable,
            Self::Datapath(_) | Self::Netlink(_) | Self::Host(_) => Cause::Failed,
        }
    }
}
