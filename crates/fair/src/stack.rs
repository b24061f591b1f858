//! Watches which devices are below the interface that the user named.

use evenkeel_host::Sysfs;
use evenkeel_netlink::Netlink;

use crate::error::FairError;
use crate::preflight::{Preflight, real_devices};
use crate::session::ForeignChange;

/// An interface on top of other devices: a bond, VLAN, bridge or macvlan.
pub(crate) struct Stack {
    netlink: Netlink,
    sysfs: Sysfs,
    index: u32,
    name: String,
    devices: Vec<(u32, String)>,
}

impl Stack {
    /// Returns the stack of the session's interface; `None` if the interface itself is the device.
    pub(crate) fn of(preflight: &Preflight) -> Result<Option<Self>, FairError> {
        let devices: Vec<(u32, String)> = preflight
            .devices
            .iter()
            .map(|planned| (planned.device.index, planned.device.name.clone()))
            .collect();
        if devices.iter().any(|(index, _)| *index == preflight.index) {
            return Ok(None);
        }
        let (netlink, sysfs) = (Netlink::open()?, Sysfs::of_namespace()?);
        let name = preflight.interface.clone();
        Ok(Some(Self { netlink, sysfs, index: preflight.index, name, devices }))
    }

    /// Returns a reason to exit if the interface no longer exists, or a managed device is no longer
    /// below the interface. A new device below the interface is no reason to exit, because an
    /// administrator may add bridge ports at any time.
    pub(crate) fn difference(&mut self) -> Result<Option<ForeignChange>, FairError> {
        let links = self.netlink.links()?;
        let Some(named) = links.iter().find(|link| link.index == self.index) else {
            let reason = "the interface left this network namespace (deleted or moved)".to_owned();
            return Ok(Some(ForeignChange { device: self.name.clone(), reason }));
        };
        // A device was deleted between the two reads. The next check reports the deletion.
        let Ok(real) = real_devices(named, &links, &self.sysfs) else { return Ok(None) };
        let left = self.devices.iter().find(|(index, _)| real.iter().all(|link| link.index != *index));
        Ok(left.map(|(_, device)| ForeignChange {
            device: device.clone(),
            reason: format!("it is no longer below {}", self.name),
        }))
    }
}
