//! Errors, and their causes, which determine the exit code.

use evenkeel_apply::{ApplyError, Cause, Report};
use evenkeel_control::ControlError;
use evenkeel_datapath::DatapathError;
use evenkeel_host::{HostError, there_is};
use evenkeel_netlink::{Netlink, NetlinkError};

use crate::device::link_difference;
use crate::own_root::StrayRoot;

#[derive(Debug, thiserror::Error)]
pub enum FairError {
    #[error("there is no interface '{name}' here; {}", there_is(.others))]
    NoInterface { name: String, others: Vec<String> },
    /// A requirement is missing, or a setting prevents the operation.
    #[error("{what}; {remedy}")]
    Unable { what: String, remedy: String },
    /// A device was renamed or removed during the start; errors of its files are the consequence.
    #[error("{device}: {reason} during the start; `ip link` shows the present names")]
    Moved { device: String, reason: String },
    /// The settings of a dead session are in use, so the administrator's settings are unknown.
    #[error("{0}")]
    Stray(StrayRoot),
    /// The caller ended the start (see [`crate::Session::start`]). Contains the rollback of each
    /// device.
    #[error("interrupted before the session began")]
    Interrupted(Vec<(String, Report)>),
    /// Options that exclude each other.
    #[error("{what}; {remedy}")]
    Conflict { what: String, remedy: String },
    #[error(transparent)]
    Datapath(#[from] DatapathError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// A setting of the controller, such as a queue weight or a segment size, could not be read or set.
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("cannot drop the capabilities that are no longer needed: {0}")]
    Privileges(#[source] std::io::Error),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Host(#[from] HostError),
}

impl FairError {
    pub(crate) fn unable(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Unable { what: what.into(), remedy: remedy.into() }
    }

    pub(crate) fn conflict(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Conflict { what: what.into(), remedy: remedy.into() }
    }

    /// Returns [`Self::Moved`] if one of these devices (index and name) was renamed or removed, because this
    /// event probably caused the error. Otherwise returns the error itself. An interruption is unchanged.
    pub(crate) fn of_devices<'d>(self, devices: impl IntoIterator<Item = (u32, &'d str)>) -> Self {
        let Ok(mut netlink) = Netlink::open() else { return self };
        let moved = devices.into_iter().find_map(|(index, device)| {
            let reason = link_difference(&mut netlink, index, device).ok()??;
            Some(Self::Moved { device: device.to_owned(), reason })
        });
        match (self, moved) {
            // This error contains the rollback.
            (interrupted @ Self::Interrupted(_), _) => interrupted,
            (error, moved) => moved.unwrap_or(error),
        }
    }

    #[must_use]
    pub fn cause(&self) -> Cause {
        match self {
            Self::NoInterface { .. } | Self::Conflict { .. } => Cause::Usage,
            Self::Unable { .. } | Self::Stray(_) => Cause::Unable,
            Self::Apply(error) => error.cause(),
            Self::Host(HostError::ForeignSysfs { .. }) => Cause::Unable,
            Self::Datapath(error) if error.is_refusal() => Cause::Unable,
            Self::Interrupted(_)
            | Self::Moved { .. }
            | Self::Datapath(_)
            | Self::Control(_)
            | Self::Privileges(_)
            | Self::Netlink(_)
            | Self::Host(_) => Cause::Failed,
        }
    }
}
