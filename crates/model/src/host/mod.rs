//! Facts about a host and its NICs, as plain data.
//!
//! This module only defines facts: the crate `host` reads them from a running machine or a recorded tree, and
//! the crate `placement` judges them. A fact that a machine does not have is absent, never 0; an unreadable
//! one is also listed in [`HostFacts::unknown`].
//!
//! Units: rates in bit/s, sizes in bytes, times in µs, processors by their kernel numbers, counters since boot.

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

/// A host at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostFacts {
    /// Kernel release, such as `6.18.2`.
    pub kernel: Option<String>,
    pub distribution: Option<String>,
    /// Model name of the processors.
    pub processor_model: Option<String>,
    /// Mean frequency of the processors while the facts were read, MHz.
    pub processor_mhz: Option<u32>,
    /// Whether the host is a virtual machine (the processor's flag `hypervisor`).
    pub virtual_machine: bool,
    /// Time since boot, s; the counters count during this time.
    pub uptime_s: Option<u64>,
    pub memory_bytes: Option<u64>,
    /// Transparent huge pages: `always`, `madvise`, `never`.
    pub huge_pages: Option<String>,
    /// When the allocation of a huge page waits for compaction: `always`, `defer`, `madvise`, `never`.
    pub huge_page_defrag: Option<String>,
    /// Size of a page, bytes; the unit of `tcp_mem`.
    pub page_bytes: u64,
    /// Words of the kernel's command line that concern processors, interrupts, PCI and the IOMMU.
    pub command_line: Vec<String>,
    /// Processors that are online, ascending by number.
    pub processors: Vec<Processor>,
    /// Memory nodes, by number.
    pub nodes: Vec<Node>,
    /// Interfaces, by name.
    pub interfaces: Vec<Interface>,
    /// Interrupts of interfaces, and the processors that served them.
    pub interrupts: Vec<Interrupt>,
    /// Sysctls, by their path below `/proc/sys`, such as `net/ipv4/tcp_rmem`.
    pub sysctls: BTreeMap<String, String>,
    /// Those of [`Self::sysctls`] that the kernel lets no program set in this network namespace.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub read_only_sysctls: BTreeSet<String>,
    /// Counters of the protocols, by group and name, such as `TcpExt.TCPBacklogDrop` (`/proc/net/netstat`, `snmp`).
    pub counters: BTreeMap<String, u64>,
    /// [`Self::counters`] before the qdiscs and the sockets of a running host were read, and thus before their own
    /// counts; empty if there is no such reading.
    #[serde(skip)]
    pub counters_before: BTreeMap<String, u64>,
    /// Work of each processor's receive softirq.
    pub softnet: Vec<Softnet>,
    pub sockets: Vec<SocketFacts>,
    /// The destination with the most outgoing connections; none without connections.
    pub port_use: Option<PortUse>,
    /// Processes that own sockets, and `irqbalance`.
    pub processes: Vec<ProcessFacts>,
    /// Sources that could not be read: rules that need them give no verdict.
    pub unknown: Vec<Unknown>,
}

/// A logical processor: a hardware thread of a core.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Processor {
    pub number: u32,
    /// Memory node of the processor.
    pub node: u32,
    /// Number of the package (socket).
    pub package: u32,
    /// Number of the core, unique within the package.
    pub core: u32,
    /// Processors of the same core, including this one (simultaneous multithreading).
    pub siblings: Vec<u32>,
    /// Frequency governor, if the machine has one.
    pub governor: Option<String>,
    pub frequency_driver: Option<String>,
    /// Preference of hardware-controlled frequencies (`energy_performance_preference`).
    pub energy_preference: Option<String>,
    pub idle_states: Vec<IdleState>,
    /// Whether the scheduler avoids it (`isolcpus=`, `nohz_full=`).
    pub isolated: bool,
    /// Time since boot, in ticks of 10 ms.
    pub time: Option<ProcessorTime>,
}

/// An idle state (`/sys/devices/system/cpu/cpuN/cpuidle`).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct IdleState {
    pub number: u32,
    pub name: String,
    /// Wake-up latency, µs.
    pub latency_us: u64,
    /// Whether it is disabled.
    pub disabled: bool,
    /// How often it was entered.
    pub usage: u64,
}

/// Ticks of a processor since boot (`/proc/stat`).
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

/// A memory node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Node {
    pub number: u32,
    pub processors: Vec<u32>,
    /// Origin of page allocations since boot.
    pub allocations: Option<NodeAllocations>,
}

/// Pages of a memory node since boot (`numastat`, `Documentation/admin-guide/numastat.rst`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeAllocations {
    /// Intended for this node and allocated there.
    pub hit: u64,
    /// Intended for another node and allocated here.
    pub miss: u64,
    /// Intended for this node and allocated on another.
    pub foreign: u64,
    /// Allocated here by a process that ran here.
    pub local: u64,
    /// Allocated here by a process that ran on another node.
    pub other: u64,
}

/// An interrupt of an interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Interrupt {
    pub number: u32,
    /// Interrupt controller, such as `PCI-MSI`, or `IO-APIC` for the interrupt pin of a device without MSI.
    pub chip: String,
    /// Name that the driver gave the interrupt's handler.
    pub action: String,
    pub interface: String,
    /// Queue that the interrupt serves; none for link state or mailbox.
    pub queue: Option<u32>,
    /// Whether the interrupt announces received packets, and not only transmit completions.
    pub receives: bool,
    /// Allowed processors.
    pub affinity: Vec<u32>,
    /// Actual processors; empty if the kernel does not report them.
    pub effective: Vec<u32>,
    /// How often each processor served it, without zeros.
    pub served: Vec<(u32, u64)>,
}

impl Interrupt {
    /// Returns how often all processors together served the interrupt.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.served.iter().map(|(_, count)| count).saturating_sum()
    }

    /// Returns the processors that serve the interrupt, if known, otherwise the allowed ones.
    #[must_use]
    pub fn target(&self) -> &[u32] {
        if self.effective.is_empty() { &self.affinity } else { &self.effective }
    }
}

/// A processor's line of `/proc/net/softnet_stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Softnet {
    pub processor: u32,
    /// Packets processed.
    pub processed: u64,
    /// Packets dropped because its backlog was full (`netdev_max_backlog`).
    pub dropped: u64,
    /// How often the processor ended a round with work left (`netdev_budget`, `netdev_budget_usecs`).
    pub squeezed: u64,
    /// How often another processor woke this one for steered packets (RPS).
    pub steered: u64,
    /// Packets dropped by the flow limit.
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

    /// Returns a counter; 0 if the kernel does not have it.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// Returns a processor by its number.
    #[must_use]
    pub fn processor(&self, number: u32) -> Option<&Processor> {
        let at = self.processors.binary_search_by_key(&number, |processor| processor.number).ok()?;
        self.processors.get(at)
    }

    /// Returns the memory node of a processor.
    #[must_use]
    pub fn node_of(&self, processor: u32) -> Option<u32> {
        self.processor(processor).map(|processor| processor.node)
    }

    /// Returns the online processors of a memory node.
    #[must_use]
    pub fn processors_of(&self, node: u32) -> Vec<u32> {
        self.processors
            .iter()
            .filter(|processor| processor.node == node)
            .map(|processor| processor.number)
            .collect()
    }

    /// Returns the number of nodes that have processors.
    #[must_use]
    pub fn nodes_with_processors(&self) -> usize {
        let mut nodes: Vec<u32> = self.processors.iter().map(|processor| processor.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.len()
    }

    /// Returns the interface of this name.
    #[must_use]
    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// Returns this host's state of an interface of another reading: by its number, else by its name.
    #[must_use]
    pub fn same_interface(&self, other: &Interface) -> Option<&Interface> {
        let is_same = |interface: &&Interface| match (interface.index, other.index) {
            (Some(index), Some(other)) => index == other,
            _ => interface.name == other.name,
        };
        self.interfaces.iter().find(is_same)
    }

    /// Sets the speed of an interface whose driver reports none, bit/s. Returns whether the interface exists.
    pub fn state_speed(&mut self, name: &str, speed_bps: u64) -> bool {
        let Some(interface) = self.interfaces.iter_mut().find(|interface| interface.name == name) else {
            return false;
        };
        interface.speed_bps = Some(speed_bps);
        let source = format!("/sys/class/net/{name}/speed");
        self.unknown.retain(|gap| gap.source != source);
        true
    }

    /// Returns the interrupts of an interface.
    pub fn interrupts_of<'a>(&'a self, interface: &'a str) -> impl Iterator<Item = &'a Interrupt> + 'a {
        self.interrupts.iter().filter(move |interrupt| interrupt.interface == interface)
    }

    /// Returns the process with this number.
    #[must_use]
    pub fn process(&self, number: u32) -> Option<&ProcessFacts> {
        self.processes.iter().find(|process| process.number == number)
    }
}

/// Returns a processor list in the kernel's notation, such as `0-3,8`.
#[must_use]
pub fn processor_list(numbers: &[u32]) -> String {
    crate::change::processor_list_text(&numbers.iter().copied().collect())
}

/// Parses a list such as `0-3,8` (`Documentation/admin-guide/cputopology.rst`), ascending; none if invalid.
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
