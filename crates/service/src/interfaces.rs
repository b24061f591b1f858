//! The interfaces of this network namespace, with the properties that rules can match.

use std::collections::BTreeMap;

use evenkeel_host::{Ethtool, Sysfs};
use evenkeel_netlink::{Netlink, NetlinkError};

use crate::Kind;
use crate::effect::Count;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// A rename does not change the index.
    pub index: u32,
    pub name: String,
    /// Link-layer address in lower case, such as `52:54:00:12:34:56`.
    pub mac: String,
    pub driver: Option<String>,
    /// `pci-` and the address of the nearest PCI device, as in udev's `ID_PATH`.
    pub path: Option<String>,
}

pub struct Interfaces {
    netlink: Netlink,
    ethtool: Option<Ethtool>,
    /// `None` without a sysfs of this namespace: paths, queues and counters are then unknown.
    sysfs: Option<Sysfs>,
    /// Driver and path by index and name. They do not change.
    known: BTreeMap<(u32, String), (Option<String>, Option<String>)>,
}

impl Interfaces {
    pub fn open() -> Result<Self, NetlinkError> {
        let (netlink, ethtool, sysfs) = (Netlink::open()?, Ethtool::open().ok(), Sysfs::of_namespace().ok());
        Ok(Self { netlink, ethtool, sysfs, known: BTreeMap::new() })
    }

    /// Returns the present interfaces by index, without the loopback.
    pub fn list(&mut self) -> Result<Vec<Interface>, NetlinkError> {
        let mut links = self.netlink.links()?;
        links.retain(|link| link.name != "lo");
        let known = std::mem::take(&mut self.known);
        let mut found = Vec::new();
        for link in links {
            let key = (link.index, link.name);
            let (driver, path) = match known.get(&key) {
                Some(properties) => properties.clone(),
                None => (self.driver(&key.1), self.path(&key.1)),
            };
            self.known.insert(key.clone(), (driver.clone(), path.clone()));
            let bytes: Vec<String> = link.address.iter().map(|byte| format!("{byte:02x}")).collect();
            found.push(Interface { index: key.0, name: key.1, mac: bytes.join(":"), driver, path });
        }
        found.sort_by_key(|interface| interface.index);
        Ok(found)
    }

    /// Returns the number of transmit queues in use, if sysfs shows it.
    #[must_use]
    pub fn queues(&self, name: &str) -> Option<u32> {
        self.sysfs.as_ref()?.transmit_queues(name).ok()
    }

    /// Returns the packets that an interface sent and dropped, or received and dropped for `steer`; `None` if
    /// they cannot be read.
    #[must_use]
    pub(crate) fn packets(&self, name: &str, kind: Kind) -> Option<Count> {
        let read = |file: &str| {
            self.sysfs.as_ref()?.read(&format!("class/net/{name}/statistics/{file}")).ok()?.parse().ok()
        };
        let [packets, dropped] = match kind {
            Kind::Steer => ["rx_packets", "rx_dropped"],
            Kind::Fair | Kind::Tune => ["tx_packets", "tx_dropped"],
        };
        Some(Count { good: read(packets)?, bad: read(dropped)? })
    }

    fn driver(&self, name: &str) -> Option<String> {
        self.ethtool.as_ref()?.driver(name)
    }

    fn path(&self, name: &str) -> Option<String> {
        let link = std::fs::read_link(self.sysfs.as_ref()?.path(&format!("class/net/{name}"))).ok()?;
        pci_path(link.to_str()?)
    }
}

/// Returns the path of the last PCI device in the target of `/sys/class/net/NAME`.
fn pci_path(target: &str) -> Option<String> {
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_pci = |part: &&str| {
        let mut fields = part.split([':', '.']);
        part.matches(':').count() == 2
            && part.matches('.').count() == 1
            && [4, 2, 2, 1]
                .iter()
                .all(|least| fields.next().is_some_and(|field| is_hex(field) && field.len() >= *least))
    };
    target.rsplit('/').find(is_pci).map(|address| format!("pci-{address}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_pci_device_is_the_path() {
        let virtio = "../../devices/pci0000:00/0000:00:03.0/virtio0/net/eth0";
        assert_eq!(pci_path(virtio).as_deref(), Some("pci-0000:00:03.0"));
        let below = "../../devices/pci0000:00/0000:00:1c.0/0000:03:00.1/net/eth1";
        assert_eq!(pci_path(below).as_deref(), Some("pci-0000:03:00.1"));
        assert_eq!(pci_path("../../devices/virtual/net/a:b:c.d"), None);
        assert_eq!(pci_path("../../devices/virtual/net/lo"), None);
    }
}
