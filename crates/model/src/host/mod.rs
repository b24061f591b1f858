//! Facts about a host and its NICs, as plain data.
//!
//! This module only defines facts. The crate `host` reads them from a running machine or a recorded tree, and
//! the crate `placement` judges them. An `Option` is `None` if the machine does not have the fact, never 0.
//! An unreadable fact is also listed in [`HostFacts::unknown`].
//!
//! Units: rates in bit/s, sizes in bytes, times in µs unless the name states another unit, CPUs by their
//! kernel numbers. Most counters count since boot, those of an interface since its creation.

mod interface;
mod socket;
mod sum;
mod unknown;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

pub use interface::{
    BondFacts, Channels, Coalescing, Feature, Interface, InterfaceKind, LossCounters, PacketSizes, Pause,
    PcieLink, QdiscFacts, QueueCounters, ReceiveQueue, Rings, Rss, TransmitQueue,
};
pub use socket::{LATENCY_SERVERS, PortUse, ProcessFacts, SocketFacts, SocketKind, TcpFacts};
pub use sum::SaturatingSum;
pub use unknown::Unknown;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostFacts {
    /// Kernel release, such as `6.18.2`.
    pub kernel: Option<String>,
    pub distribution: Option<String>,
    pub processor_model: Option<String>,
    /// Mean frequency of the CPUs while the facts were read, MHz.
    pub processor_mhz: Option<u32>,
    /// Whether the host is a virtual machine (the CPU flag `hypervisor`).
    pub virtual_machine: bool,
    /// Time since boot, s: the maximum age of the counters.
    pub uptime_s: Option<u64>,
    /// Whether the facts are of a network namespace other than the initial one. The counters of such a
    /// namespace began after boot. False for a recording.
    pub is_later_namespace: bool,
    pub memory_bytes: Option<u64>,
    /// Transparent huge pages: `always`, `madvise`, `never`.
    pub huge_pages: Option<String>,
    /// Condition under which the allocation of a huge page waits for compaction: `always`, `defer`,
    /// `defer+madvise`, `madvise`, `never`.
    pub huge_page_defrag: Option<String>,
    /// Size of a memory page, bytes; the unit of `tcp_mem`.
    pub page_bytes: u64,
    /// Words of the kernel's command line about CPUs, interrupts, PCI, the IOMMU and huge pages.
    pub command_line: Vec<String>,
    /// Online CPUs, ascending by number.
    pub processors: Vec<Processor>,
    pub nodes: Vec<Node>,
    pub interfaces: Vec<Interface>,
    /// Interrupts of interfaces, and the CPUs that served them.
    pub interrupts: Vec<Interrupt>,
    /// Sysctls, by their path below `/proc/sys`, such as `net/ipv4/tcp_rmem`.
    pub sysctls: BTreeMap<String, String>,
    /// Sysctls of [`Self::sysctls`] that no program can set in this network namespace.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub read_only_sysctls: BTreeSet<String>,
    /// Counters by group and name, such as `TcpExt.TCPBacklogDrop`: protocols (`/proc/net/netstat`, `snmp`,
    /// `snmp6`), memory (`/proc/vmstat`), sockets (`/proc/net/sockstat`), and the tables of neighbours and
    /// connection tracking (`/proc/net/stat`).
    pub counters: BTreeMap<String, u64>,
    /// The counters of packets in [`Self::counters`], and possibly others, read before the qdiscs and the
    /// sockets of a running host. Empty if there is no such reading.
    #[serde(skip)]
    pub counters_before: BTreeMap<String, u64>,
    /// Work of each CPU's receive softirq.
    pub softnet: Vec<Softnet>,
    pub sockets: Vec<SocketFacts>,
    /// The destination with the most outgoing connections; `None` without such connections.
    pub port_use: Option<PortUse>,
    /// Processes that own sockets, and `irqbalance`.
    pub processes: Vec<ProcessFacts>,
    /// Sources that could not be read. Rules that need such a source give no verdict.
    pub unknown: Vec<Unknown>,
}

/// A logical CPU: a hardware thread of a core.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Processor {
    pub number: u32,
    pub node: u32,
    /// Number of the package (socket).
    pub package: u32,
    /// Number of the core, unique within the package.
    pub core: u32,
    /// CPUs of the same core, including this CPU (simultaneous multithreading).
    pub siblings: Vec<u32>,
    /// Frequency governor, if the machine has one.
    pub governor: Option<String>,
    pub frequency_driver: Option<String>,
    /// Preference of hardware-controlled frequencies (`energy_performance_preference`).
    pub energy_preference: Option<String>,
    pub idle_states: Vec<IdleState>,
    /// Whether the CPU is isolated from the scheduler's load balancing (`isolcpus=`), or may run without a
    /// periodic tick (`nohz_full=`).
    pub isolated: bool,
    /// Time of the CPU by mode since boot, in ticks of 10 ms.
    pub time: Option<ProcessorTime>,
}

/// An idle state (`/sys/devices/system/cpu/cpuN/cpuidle`).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct IdleState {
    pub number: u32,
    pub name: String,
    /// Wake-up latency, µs.
    pub latency_us: u64,
    pub disabled: bool,
    /// Number of entries into the state.
    pub usage: u64,
}

/// Ticks of a CPU since boot (`/proc/stat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessorTime {
    /// Total of all modes.
    pub total: u64,
    /// Idle, including waiting for I/O.
    pub idle: u64,
    /// In softirqs, such as the receive softirq.
    pub softirq: u64,
    /// Taken by the hypervisor.
    pub steal: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Node {
    pub number: u32,
    pub processors: Vec<u32>,
    pub allocations: Option<NodeAllocations>,
}

/// Page allocations of a memory node since boot (`numastat`, `Documentation/admin-guide/numastat.rst`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeAllocations {
    /// Intended for this node and allocated on this node.
    pub hit: u64,
    /// Intended for another node and allocated on this node.
    pub miss: u64,
    /// Intended for this node and allocated on another node.
    pub foreign: u64,
    /// Allocated on this node by a process that ran on this node.
    pub local: u64,
    /// Allocated on this node by a process that ran on another node.
    pub other: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Interrupt {
    pub number: u32,
    /// Interrupt controller, such as `PCI-MSI`, or `IO-APIC` for the interrupt pin of a device without MSI.
    pub chip: String,
    /// Name that the driver gave the interrupt's handler.
    pub action: String,
    pub interface: String,
    /// Queue that the interrupt serves; `None` for link state or mailbox, or if the action has no number.
    pub queue: Option<u32>,
    /// Whether the interrupt announces received packets, and not only transmit completions.
    pub receives: bool,
    /// Allowed CPUs.
    pub affinity: Vec<u32>,
    /// CPUs that actually serve the interrupt; empty if the kernel does not report them.
    pub effective: Vec<u32>,
    /// Number of times that each CPU served the interrupt. CPUs with 0 are omitted.
    pub served: Vec<(u32, u64)>,
}

impl Interrupt {
    /// Returns the number of times that the interrupt was served, summed over the CPUs.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.served.iter().map(|(_, count)| count).saturating_sum()
    }

    /// Returns the CPUs that serve the interrupt; if they are not known, the allowed CPUs.
    #[must_use]
    pub fn target(&self) -> &[u32] {
        if self.effective.is_empty() { &self.affinity } else { &self.effective }
    }
}

/// A CPU's line of `/proc/net/softnet_stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Softnet {
    pub processor: u32,
    pub processed: u64,
    /// Packets dropped because the CPU's backlog was full (`netdev_max_backlog`).
    pub dropped: u64,
    /// Number of rounds that the CPU ended with work left (`netdev_budget`, `netdev_budget_usecs`).
    pub squeezed: u64,
    /// Number of times that another CPU woke this CPU for steered packets (RPS).
    pub steered: u64,
    pub flow_limited: u64,
}

impl HostFacts {
    /// Returns a sysctl's text by its path below `/proc/sys`, such as `net/core/default_qdisc`.
    #[must_use]
    pub fn sysctl(&self, path: &str) -> Option<&str> {
        self.sysctls.get(path).map(String::as_str)
    }

    /// Returns the value of a sysctl with a single number.
    #[must_use]
    pub fn sysctl_number(&self, path: &str) -> Option<i64> {
        self.sysctl(path)?.trim().parse().ok()
    }

    /// Returns one number of a sysctl with several numbers, by index from 0.
    #[must_use]
    pub fn sysctl_field(&self, path: &str, at: usize) -> Option<u64> {
        self.sysctl(path)?.split_ascii_whitespace().nth(at)?.parse().ok()
    }

    /// Returns a counter; 0 if [`Self::counters`] does not have it.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    #[must_use]
    pub fn processor(&self, number: u32) -> Option<&Processor> {
        let at = self.processors.binary_search_by_key(&number, |processor| processor.number).ok()?;
        self.processors.get(at)
    }

    #[must_use]
    pub fn node_of(&self, processor: u32) -> Option<u32> {
        self.processor(processor).map(|processor| processor.node)
    }

    #[must_use]
    pub fn processors_of(&self, node: u32) -> Vec<u32> {
        self.processors
            .iter()
            .filter(|processor| processor.node == node)
            .map(|processor| processor.number)
            .collect()
    }

    /// Returns the number of nodes that have CPUs.
    #[must_use]
    pub fn nodes_with_processors(&self) -> usize {
        let mut nodes: Vec<u32> = self.processors.iter().map(|processor| processor.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.len()
    }

    #[must_use]
    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// Returns the counterpart on this host of an interface from another reading.
    #[must_use]
    pub fn same_interface(&self, other: &Interface) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.is_same(other))
    }

    /// Returns the names of an interface and of all interfaces below it, such as the ports of a bond and the
    /// device of a VLAN.
    #[must_use]
    pub fn down_from<'a>(&'a self, name: &'a str) -> BTreeSet<&'a str> {
        let (mut found, mut next) = (BTreeSet::new(), vec![name]);
        while let Some(name) = next.pop() {
            if found.insert(name) {
                let below = self.interface(name).into_iter().flat_map(|interface| &interface.lower);
                next.extend(below.map(String::as_str));
            }
        }
        found
    }

    /// Sets the speed of an interface, bit/s, and replaces a speed that its driver reports. Returns
    /// whether the interface exists.
    pub fn state_speed(&mut self, name: &str, speed_bps: u64) -> bool {
        let Some(interface) = self.interfaces.iter_mut().find(|interface| interface.name == name) else {
            return false;
        };
        interface.speed_bps = Some(speed_bps);
        let source = format!("/sys/class/net/{name}/speed");
        self.unknown.retain(|gap| gap.source != source);
        true
    }

    pub fn interrupts_of<'a>(&'a self, interface: &'a str) -> impl Iterator<Item = &'a Interrupt> + 'a {
        self.interrupts.iter().filter(move |interrupt| interrupt.interface == interface)
    }

    #[must_use]
    pub fn process(&self, number: u32) -> Option<&ProcessFacts> {
        self.processes.iter().find(|process| process.number == number)
    }
}

/// Returns a list of CPUs in the kernel's notation, such as `0-3,8`.
#[must_use]
pub fn processor_list(numbers: &[u32]) -> String {
    crate::change::processor_list_text(&numbers.iter().copied().collect())
}

/// Parses a list such as `0-3,8` (`Documentation/admin-guide/cputopology.rst`), ascending; `None` if
/// the list is invalid.
#[must_use]
pub fn parse_processor_list(list: &str) -> Option<Vec<u32>> {
    Some(crate::change::processor_list(list)?.into_iter().collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_number_that_the_kernel_reuses_is_not_the_same_interface() {
        let interface = |name: &str, index, inode| Interface {
            name: name.to_owned(),
            index,
            inode,
            ..Interface::default()
        };
        let host = HostFacts {
            interfaces: vec![interface("eth0", Some(2), Some(100)), interface("eth1", None, Some(7))],
            ..HostFacts::default()
        };
        let same = |other: &Interface| host.same_interface(other).map(|found| found.name.as_str());
        assert_eq!(same(&interface("wan", Some(2), Some(100))), Some("eth0"));
        assert_eq!(same(&interface("eth0", Some(2), Some(101))), None);
        // A recording has no inode.
        assert_eq!(same(&interface("eth0", Some(2), None)), Some("eth0"));
        assert_eq!(same(&interface("eth1", Some(3), None)), Some("eth1"));
    }

    #[test]
    fn lists_are_written_as_the_kernel_writes_them() {
        assert_eq!(processor_list(&[]), "");
        assert_eq!(processor_list(&[3, 0, 1, 2, 8, 3]), "0-3,8");
        assert_eq!(parse_processor_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        for damaged in ["x", "1-", "-1", "0-99999999"] {
            assert_eq!(parse_processor_list(damaged), None, "{damaged}");
        }
    }

    proptest! {
        #[test]
        fn a_list_is_read_as_it_was_written(mut numbers in prop::collection::vec(0_u32..300, 0..40)) {
            numbers.sort_unstable();
            numbers.dedup();
            prop_assert_eq!(parse_processor_list(&processor_list(&numbers)), Some(numbers));
        }
    }
}
