use std::io;

use evenkeel_datapath::DatapathError;
use evenkeel_netlink::NetlinkError;
use evenkeel_netlink::tx_maxrate::TxMaxrateError;

use crate::gate::Setting;

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Datapath(#[from] DatapathError),
    #[error(transparent)]
    MaxRate(#[from] TxMaxrateError),
    #[error("cannot {action}: {source}")]
    System { action: String, source: io::Error },
    #[error(transparent)]
    Host(#[from] evenkeel_host::HostError),
    /// Another program has changed the setting. The controller keeps this value.
    #[error("another program set {what} to {found}")]
    SetByOthers { what: String, found: String },
    /// Another program has removed the object. The controller does not create it again.
    #[error("another program removed {what}")]
    RemovedByOthers { what: String },
    /// The gate refused the value because the journal could not restore it.
    #[error(
        "refused to set {setting}: the journal does not have this value, so evenkeel could not restore it; report \
         this as a bug"
    )]
    Refused { setting: Setting },
    /// The kernel shows another value than the one set: another program changed it, or the device used
    /// another value.
    #[error(
        "{what} is {found}, but evenkeel expects {set}: another program changed it, or the device rounded it"
    )]
    ReadBack { what: String, set: u64, found: String },
}
