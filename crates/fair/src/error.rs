//! What can go wrong, and whose matter it is.

use evenkeel_apply::{ApplyError, Cause};
use evenkeel_control::ControlError;
use evenkeel_datapath::DatapathError;
use evenkeel_host::HostError;
use evenkeel_netlink::NetlinkError;

/// An interface could not be observed or managed.
#[derive(Debug, thiserror::Error)]
pub enum FairError {
    /// There is no interface of this name.
    #[error("there is no interface '{name}' here; there are: {}", .others.join(", "))]
    NoInterface {
        /// The name, as it was given.
        name: String,
        /// Names that would do.
        others: Vec<String>,
    },
    /// Something is missing or in the way.
    #[error("{what}; {remedy}")]
    Unable {
        /// What.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// The queue choice could not be loaded, attached or read.
    #[error(transparent)]
    Datapath(#[from] DatapathError),
    /// A setting could not be changed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// Queue weights or segment sizes could not be kept.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Privileges could not be given up.
    #[error("cannot give up capabilities that are not needed any more: {0}")]
    Privileges(#[source] std::io::Error),
    /// The kernel refused over netlink.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The host could not be read.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl FairError {
    pub(crate) fn unable(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Unable { what: what.into(), remedy: remedy.into() }
    }

    /// Whose matter it is.
    #[must_use]
    pub fn cause(&self) -> Cause {
        match self {
            Self::NoInterface { .. } => Cause::Usage,
            Self::Unable { .. } => Cause::Unable,
            Self::Apply(error) => error.cause(),
            Self::Host(HostError::ForeignSysfs { .. }) => Cause::Unable,
            Self::Datapath(error) if error.is_refusal() => Cause::Unable,
            Self::Datapath(_) | Self::Control(_) | Self::Privileges(_) | Self::Netlink(_) | Self::Host(_) => {
                Cause::Failed
            }
        }
    }
}
