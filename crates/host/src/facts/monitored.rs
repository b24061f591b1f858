//! Facts for a monitor that reads a running host every second: only the counters, without settings, and
//! without the owners of sockets. [`super::read_facts`] takes longer, because it reads the files of every
//! process.

use std::collections::BTreeMap;

use evenkeel_model::host::{HostFacts, Interface};
use evenkeel_netlink::Netlink;
use evenkeel_netlink::ethtool::EthtoolSocket;

use super::interfaces::{self, Reader};
use super::tree::Tree;
use super::{device, interrupts, processors, protocols, qdiscs, sockets};
use crate::HostError;

/// Reads the facts that change rarely: CPUs, interfaces with their settings, and interrupts.
///
/// # Errors
/// Returns an error if `/proc` or `/sys` is not mounted, `/sys` shows the interfaces of another network
/// namespace, there is no interface, or the interfaces cannot be listed.
pub fn read_devices(tree: &Tree) -> Result<HostFacts, HostError> {
    tree.forget_gaps();
    tree.own_namespace()?;
    tree.require_mounts()?;
    let (processors, nodes) = processors::processors(tree);
    let online: Vec<u32> = processors.iter().map(|processor| processor.number).collect();
    let names = interfaces::names(tree)?;
    let (interfaces, owners) = interfaces::interfaces(tree, &names, BTreeMap::new(), false)?;
    let interrupts = interrupts::interrupts(tree, &owners, &online);
    Ok(HostFacts {
        processors,
        nodes,
        interfaces,
        interrupts,
        unknown: tree.unknown(),
        ..HostFacts::default()
    })
}

#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Facts with the counters of packets and losses. The only sockets are UDP and raw sockets that dropped
    /// packets.
    pub facts: HostFacts,
    /// Whether the host has an interface that the last [`read_devices`] did not find. Then the caller must
    /// read the devices again.
    pub has_new_interface: bool,
}

/// Reads the counters of a running host. `devices` is the result of [`read_devices`]. Omits interfaces
/// that are not in `devices`.
///
/// # Errors
/// Returns an error if the kernel does not list its interfaces.
pub fn read_counters(tree: &Tree, devices: &HostFacts) -> Result<Counters, HostError> {
    tree.forget_gaps();
    let mut netlink = Netlink::open()?;
    let links = netlink.link_statistics()?;
    let names: BTreeMap<u32, String> = links.iter().map(|link| (link.index, link.name.clone())).collect();
    let counters_before = protocols::packet_counters(tree);
    let mut qdiscs = qdiscs::qdiscs(tree, &names)?;
    let socket = EthtoolSocket::open().ok();
    let (mut interfaces, mut has_new_interface) = (Vec::new(), false);
    for link in links {
        let of_index = |interface: &&Interface| interface.index == Some(link.index);
        let reader = Reader::new(tree, &link.name);
        let known = devices.interfaces.iter().find(of_index).filter(|known| reader.is_same(known));
        let Some(known) = known else {
            has_new_interface = true;
            continue;
        };
        // Do not query a driver again if it has no counters.
        let asked = socket.as_ref().filter(|_| !known.driver_statistics.is_empty());
        let answers = asked.map(|socket| device::ask_statistics(socket, &link.name)).unwrap_or_default();
        let statistics = link.counters.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let qdiscs = qdiscs.remove(&link.name).unwrap_or_default();
        let mut interface = reader.counted(known, statistics, answers, qdiscs);
        interface.up = link.up;
        interface.name = link.name;
        interfaces.push(interface);
    }
    let online: Vec<u32> = devices.processors.iter().map(|processor| processor.number).collect();
    let mut sockets: Vec<_> = sockets::datagram_sockets(tree).into_iter().map(|(_, socket)| socket).collect();
    sockets.retain(|socket| socket.drops > 0);
    let facts = HostFacts {
        processors: devices.processors.clone(),
        interfaces,
        interrupts: interrupts::served_again(tree, &devices.interrupts, &online),
        counters: protocols::loss_counters(tree),
        counters_before,
        softnet: protocols::softnet(tree, &online),
        sockets,
        unknown: tree.unknown(),
        ..HostFacts::default()
    };
    Ok(Counters { facts, has_new_interface })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_counters_are_those_of_the_whole_reading() {
        let tree = Tree::live();
        let devices = read_devices(&tree).unwrap();
        assert!(!devices.interfaces.is_empty() && !devices.processors.is_empty());
        let Counters { facts: counted, has_new_interface } = read_counters(&tree, &devices).unwrap();
        assert!(!has_new_interface);
        let whole = super::super::read_facts(&Tree::live()).unwrap();
        assert_eq!(counted.interfaces.len(), whole.interfaces.len());
        for interface in &counted.interfaces {
            let other = whole.interface(&interface.name).unwrap();
            let names = |interface: &Interface| interface.statistics.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(interface), names(other), "{}", interface.name);
            assert_eq!((interface.kind, interface.up, interface.mtu), (other.kind, other.up, other.mtu));
            let kinds = |interface: &Interface| {
                interface.qdiscs.iter().map(|qdisc| qdisc.kind.clone()).collect::<Vec<_>>()
            };
            assert_eq!(kinds(interface), kinds(other), "{}", interface.name);
        }
        let of_losses = |name: &&String| !name.starts_with("Vmstat.") && !name.starts_with("Sockstat.");
        let expected: Vec<&String> = whole.counters.keys().filter(of_losses).collect();
        assert_eq!(counted.counters.keys().collect::<Vec<_>>(), expected);
        assert_eq!(counted.softnet.len(), whole.softnet.len());
        assert_eq!(counted.interrupts.len(), whole.interrupts.len());
    }
}
