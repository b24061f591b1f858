//! Reads an interface from sysfs: its queues, its XPS maps, its speed, and the interfaces below and above it.
//!
//! Sources: `Documentation/ABI/testing/sysfs-class-net` and `sysfs-class-net-queues`,
//! `Documentation/networking/scaling.rst`.

use evenkeel_model::host::parse_processor_list;
use evenkeel_netlink::Netlink;

use crate::{HostError, Sysfs};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum XpsKey {
    /// `xps_cpus`: the CPU that sends.
    Cpus,
    /// `xps_rxqs`: the receive queue of the socket's packets; takes precedence over `xps_cpus`.
    ReceiveQueues,
}

impl XpsKey {
    #[must_use]
    pub const fn file(self) -> &'static str {
        match self {
            Self::Cpus => "xps_cpus",
            Self::ReceiveQueues => "xps_rxqs",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XpsMap {
    pub queue: u32,
    pub key: XpsKey,
    /// CPUs or receive queues that use the queue, ascending; empty if XPS assigns no CPU or receive
    /// queue to the queue.
    pub members: Vec<u32>,
}

impl XpsMap {
    /// Returns the map's file, below `/sys`.
    #[must_use]
    pub fn file(interface: &str, queue: u32, key: XpsKey) -> String {
        format!("class/net/{interface}/queues/tx-{queue}/{}", key.file())
    }
}

/// Returns the set bits of a mask; `None` if the text is not a mask. The mask has 32-bit words in
/// hexadecimal, separated by commas, highest word first (`bitmap_print_to_pagebuf`, lib/bitmap-str.c).
#[must_use]
pub fn mask_members(mask: &str) -> Option<Vec<u32>> {
    let mut members = Vec::new();
    for (word, text) in (0_u32..).zip(mask.trim().rsplit(',')) {
        let bits = u32::from_str_radix(text, 16).ok()?;
        members.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| word * 32 + bit));
    }
    Some(members)
}

impl Sysfs {
    /// Returns the number of transmit queues in use: the directories `queues/tx-*`, whose number
    /// follows `ethtool -L`.
    pub fn transmit_queues(&self, interface: &str) -> Result<u32, HostError> {
        let queues = self.list(&format!("class/net/{interface}/queues"))?;
        Ok(u32::try_from(queues.iter().filter(|name| name.starts_with("tx-")).count()).unwrap_or(u32::MAX))
    }

    /// Returns the number of receive queues in use: the directories `queues/rx-*`.
    pub fn receive_queues(&self, interface: &str) -> Result<u32, HostError> {
        let queues = self.list(&format!("class/net/{interface}/queues"))?;
        Ok(u32::try_from(queues.iter().filter(|name| name.starts_with("rx-")).count()).unwrap_or(u32::MAX))
    }

    /// Returns the XPS maps of every transmit queue, including empty maps. Omits the kinds of maps that
    /// the kernel or the device does not support.
    ///
    /// # Errors
    /// Returns an error if the interface cannot be read, or a map is damaged.
    pub fn xps_maps(&self, interface: &str) -> Result<Vec<XpsMap>, HostError> {
        let mut maps = Vec::new();
        for queue in 0..self.transmit_queues(interface)? {
            for key in [XpsKey::Cpus, XpsKey::ReceiveQueues] {
                let file = XpsMap::file(interface, queue, key);
                // A device with one queue has the file, but reading it fails.
                let Ok(text) = self.read(&file) else { continue };
                let members = mask_members(&text).ok_or_else(|| HostError::Format {
                    path: Self::name(&file),
                    line: 1,
                    reason: format!("'{text}' is not a mask"),
                })?;
                maps.push(XpsMap { queue, key, members });
            }
        }
        Ok(maps)
    }

    /// Returns the interfaces directly below this interface, such as the ports of a bond, sorted.
    pub fn lower_interfaces(&self, interface: &str) -> Result<Vec<String>, HostError> {
        let names = self.list(&format!("class/net/{interface}"))?;
        Ok(names.iter().filter_map(|name| name.strip_prefix("lower_")).map(str::to_owned).collect())
    }

    /// Returns the interfaces directly above this interface, sorted.
    pub fn upper_interfaces(&self, interface: &str) -> Result<Vec<String>, HostError> {
        let names = self.list(&format!("class/net/{interface}"))?;
        Ok(names.iter().filter_map(|name| name.strip_prefix("upper_")).map(str::to_owned).collect())
    }

    /// Returns the link's speed, bit/s; `None` without a carrier, or if the device reports no speed.
    #[must_use]
    pub fn speed_bps(&self, interface: &str) -> Option<u64> {
        let megabits: i64 = self.read(&format!("class/net/{interface}/speed")).ok()?.parse().ok()?;
        // SPEED_UNKNOWN is -1, which old drivers show without its sign.
        let is_known = |megabits: &u64| *megabits > 0 && *megabits != u64::from(u32::MAX);
        u64::try_from(megabits).ok().filter(is_known)?.checked_mul(1_000_000)
    }

    /// Returns the highest CPU number plus 1, including offline CPUs; at least 1.
    #[must_use]
    pub fn processor_numbers(&self) -> usize {
        let list = self.read("devices/system/cpu/possible").unwrap_or_default();
        parse_processor_list(&list)
            .and_then(|members| members.last().copied())
            .map_or(1, |last| last as usize + 1)
    }

    /// Returns the numbers of the online CPUs; only 0 if the kernel does not report them.
    #[must_use]
    pub fn online_processors(&self) -> Vec<u32> {
        let list = self.read("devices/system/cpu/online").unwrap_or_default();
        parse_processor_list(&list).filter(|members| !members.is_empty()).unwrap_or_else(|| vec![0])
    }

    /// Returns the online CPUs by the distance of their NUMA node from the interface's device, then by
    /// number. This is the order of `cpumask_local_spread` (lib/cpumask.c).
    #[must_use]
    pub fn nearest_processors(&self, interface: &str) -> Vec<u32> {
        let mut processors = self.online_processors();
        let numbers = processors.iter().max().map_or(0, |last| *last as usize + 1);
        let nodes = self.node_of_processors(numbers);
        let own = self.read(&format!("class/net/{interface}/device/numa_node"));
        // -1 means that the node is unknown (`NUMA_NO_NODE`).
        if let Some(own) = own.ok().and_then(|text| text.parse::<u32>().ok()) {
            let distances = self.read(&format!("devices/system/node/node{own}/distance")).unwrap_or_default();
            let distances: Vec<u32> =
                distances.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let distance = |node: u32| distances.get(node as usize).copied().unwrap_or(u32::MAX);
            processors.sort_by_key(|processor| {
                let node = nodes.get(*processor as usize).copied().unwrap_or_default();
                (node != own, distance(node), *processor)
            });
        }
        processors
    }

    /// Returns the NUMA node of each CPU, by number; 0 if the kernel does not report it.
    #[must_use]
    pub fn node_of_processors(&self, processors: usize) -> Vec<u32> {
        let mut nodes = vec![0; processors];
        let directory = "devices/system/node";
        for name in self.list(directory).unwrap_or_default() {
            let Some(node) = name.strip_prefix("node").and_then(|number| number.parse().ok()) else {
                continue;
            };
            let list = self.read(&format!("{directory}/{name}/cpulist")).unwrap_or_default();
            for processor in parse_processor_list(&list).unwrap_or_default() {
                if let Some(slot) = nodes.get_mut(processor as usize) {
                    *slot = node;
                }
            }
        }
        nodes
    }
}

/// Returns the name of the interface of this namespace with this name or alternative name (`ip link
/// property add dev eth0 altname NAME`). Returns `None` if there is no such interface, or the kernel
/// cannot be queried.
#[must_use]
pub fn name_of(name: &str) -> Option<String> {
    let link = Netlink::open().and_then(|mut netlink| netlink.link_named(name));
    link.ok().flatten().map(|link| link.name)
}

/// Lists the interfaces of a namespace except `lo`, for a message.
#[must_use]
pub fn there_is(others: &[String]) -> String {
    match others {
        [] => "there is only lo".to_owned(),
        others => format!("use one of: {}", others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn masks_have_the_highest_word_first() {
        assert_eq!(mask_members("3"), Some(vec![0, 1]));
        assert_eq!(mask_members("00000001,80000000\n"), Some(vec![31, 32]));
        assert_eq!(mask_members("00000000,00000000"), Some(vec![]));
        assert_eq!(mask_members("x"), None);
        assert_eq!(mask_members(""), None);
    }

    #[test]
    fn an_interface_is_read_as_it_stands() {
        let directory = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("class/net/bond0/lower_eth1/x", "");
        write("class/net/bond0/lower_eth0/x", "");
        write("class/net/eth0/queues/rx-0/rps_cpus", "0\n");
        write("class/net/eth0/queues/tx-0/xps_cpus", "1\n");
        write("class/net/eth0/queues/tx-1/xps_cpus", "2\n");
        write("class/net/eth0/queues/tx-1/xps_rxqs", "0\n");
        write("class/net/eth0/speed", "25000\n");
        write("class/net/bond0/speed", "-1\n");
        write("devices/system/node/node1/cpulist", "1\n");
        let sysfs = Sysfs::at(directory.path());
        assert_eq!(sysfs.lower_interfaces("bond0").unwrap(), ["eth0", "eth1"]);
        assert_eq!(sysfs.transmit_queues("eth0").unwrap(), 2);
        let map = |queue, key, members: &[u32]| XpsMap { queue, key, members: members.to_vec() };
        assert_eq!(
            sysfs.xps_maps("eth0").unwrap(),
            [map(0, XpsKey::Cpus, &[0]), map(1, XpsKey::Cpus, &[1]), map(1, XpsKey::ReceiveQueues, &[])]
        );
        assert_eq!((sysfs.speed_bps("eth0"), sysfs.speed_bps("bond0")), (Some(25_000_000_000), None));
        assert_eq!(sysfs.node_of_processors(2), [0, 1]);
        write("devices/system/cpu/online", "0-2\n");
        write("devices/system/node/node2/cpulist", "2\n");
        write("class/net/eth0/device/numa_node", "1\n");
        assert_eq!(sysfs.nearest_processors("eth0"), [1, 0, 2], "no distances");
        write("devices/system/node/node1/distance", "32 10 21\n");
        assert_eq!(sysfs.nearest_processors("eth0"), [1, 2, 0]);
        write("class/net/eth0/device/numa_node", "-1\n");
        assert_eq!(sysfs.nearest_processors("eth0"), [0, 1, 2]);
        let missing = sysfs.transmit_queues("eth9").unwrap_err().to_string();
        assert!(missing.contains("/sys/class/net/eth9/queues"), "{missing}");
    }
}
