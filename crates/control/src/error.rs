//! What can go wrong while weights and sizes are kept.

use std::io;

use evenkeel_datapath::DatapathError;
use evenkeel_netlink::NetlinkError;
use evenkeel_netlink::tx_maxrate::TxMaxrateError;

use crate::gate::Setting;

/// Why a weight or a size could not be set, read back or put back.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The kernel refused.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The queue choice could not be read.
    #[error(transparent)]
    Datapath(#[from] DatapathError),
    /// The highest rate of a queue could not be read or set.
    #[error(transparent)]
    MaxRate(#[from] TxMaxrateError),
    /// A file could not be read or written.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: String,
        /// The system's error.
        source: io::Error,
    },
    /// What the host has could not be read.
    #[error(transparent)]
    Host(#[from] evenkeel_host::HostError),
    /// Not what was set last: it is left to whoever has set it since.
    #[error("somebody else set {what} to {found}")]
    SetByOthers {
        /// Which setting.
        what: String,
        /// What the kernel says now.
        found: String,
    },
    /// The gate does not let it pass: nothing could put it back.
    #[error("refused to set {setting}: the journal does not have this value, so nothing could put it back")]
    Refused {
        /// The setting and the value.
        setting: Setting,
    },
    /// What was read back is not what was set: somebody else changes it, or the device took another value.
    #[error(
        "{what} reads {found} after it was set to {set}: another program changes it, or the device rounds"
    )]
    ReadBack {
        /// Which setting.
        what: String,
        /// What was set.
        set: u64,
        /// What the kernel says now.
        found: String,
    },
}
