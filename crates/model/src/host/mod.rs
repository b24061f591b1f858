//! Facts about a host: what stands behind the queues of its network cards, as plain data.
//!
//! Nothing here is read or judged: the room `host` reads these facts from a running machine or from a recorded tree,
//! and the room `placement` judges them. A fact that a machine does not have is absent, never 0; one that could not be read is
//! listed in [`HostFacts::unknown`] as well.
//!
//! Units: rates in bit/s, sizes in bytes, times in µs, processors by their kernel numbers, counters since boot.

mod interface;
mod socket;
mod unknown;

use std::collections::BTreeMap;

use serde::Serialize;

pub use interface::{
    BondFacts, Channels, Coalescing, Feature, Interface, InterfaceKind, LossCounters, PacketSizes, Pause,
    PcieLink, QdiscFacts, QueueCounters, ReceiveQueue, Rings, Rss, TransmitQueue,
};
pub use socket::{PortUse, ProcessFacts, SocketFacts, SocketKind, TcpFacts};
pub use unknown::Unknown;

/// A host at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostFacts {
    /// Kernel release, such as `6.18.2`.
    pub kernel: Option<String>,
    /// Name of the distribution.
    pub distribution: Option<String>,
    /// Model name of the processors.
    pub processor_model: Option<String>,
    /// Whether the machine is a virtual one (the processor's flag `hypervisor`).
    pub virtual_machine: bool,
    /// Time since boot, s: the time that counters took.
    pub uptime_s: Option<u64>,
    /// Memory, bytes.
    pub memory_bytes: Option<u64>,
    /// Transparent huge pages: `always`, `madvise`, `never`.
    pub huge_pages: Option<String>,
    /// When an allocation of a huge page waits for memory to be compacted: `always`, `defer`, `madvise`, `never`.
    pub huge_page_defrag: Option<String>,
    /// Size of a page, bytes: the unit of `tcp_mem`.
    pub page_bytes: u64,
    /// Words of the kernel's command line that concern processors, interrupts and the IOMMU.
    pub command_line: Vec<String>,
    /// Processors that are online, ascending by number.
    pub processors: Vec<Processor>,
    /// Memory nodes, by number.
    pub nodes: Vec<Node>,
    /// Interfaces, by name.
    pub interfaces: Vec<Interface>,
    /// Interrupts that belong to an interface, and where they were served.
    pub interrupts: Vec<Interrupt>,
    /// Sysctls, by their path below `/proc/sys`, such as `net/ipv4/tcp_rmem`.
    pub sysctls: BTreeMap<String, String>,
    /// Counters of the protocols, by group and name, such as `TcpExt.TCPBacklogDrop` (`/proc/net/netstat`, `snmp`).
    pub counters: BTreeMap<String, u64>,
    /// Work of the receive softirq, of each processor.
    pub softnet: Vec<Softnet>,
    /// Sockets.
    pub sockets: Vec<SocketFacts>,
    /// The destination with the most outgoing connections; none without any.
    pub port_use: Option<PortUse>,
    /// Processes that own sockets or that matter to interrupts (`irqbalance`).
    pub processes: Vec<ProcessFacts>,
    /// Sources that could not be read: rules that need them report that they could not judge.
    pub unknown: Vec<Unknown>,
}

/// A processor, as the scheduler counts them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Processor {
    /// Its number.
    pub number: u32,
    /// Its memory node.
    pub node: u32,
    /// Its package (socket).
    pub package: u32,
    /// Its core, unique within the package.
    pub core: u32,
    /// Processors of the same core, itself included (simultaneous multithreading).
    pub siblings: Vec<u32>,
    /// Frequency governor, of a machine that has one.
    pub governor: Option<String>,
    /// Frequency driver.
    pub frequency_driver: Option<String>,
    /// What the hardware is told to prefer where it chooses the frequency by itself (`energy_performance_preference`).
    pub energy_preference: Option<String>,
    /// States of idleness that it may enter.
    pub idle_states: Vec<IdleState>,
    /// Whether the scheduler keeps away from it (`isolcpus=`, `nohz_full=`).
    pub isolated: bool,
    /// Time since boot, in ticks of 10 ms.
    pub time: Option<ProcessorTime>,
}

/// A state of idleness (`/sys/devices/system/cpu/cpuN/cpuidle`).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct IdleState {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Time to wake up from it, µs.
    pub latency_us: u64,
    /// Whether it is switched off.
    pub disabled: bool,
    /// How often it was entered.
    pub usage: u64,
}

/// Ticks of a processor since boot (`/proc/stat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessorTime {
    /// All of them.
    pub total: u64,
    /// Idle, or waiting for I/O.
    pub idle: u64,
    /// In softirqs, such as that which receives packets.
    pub softirq: u64,
    /// Taken by the hypervisor for others.
    pub steal: u64,
}

/// A memory node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Node {
    /// Its number.
    pub number: u32,
    /// Its processors.
    pub processors: Vec<u32>,
    /// Where its pages were allocated, since boot.
    pub allocations: Option<NodeAllocations>,
}

/// Pages of a memory node since boot (`numastat`, `Documentation/admin-guide/numastat.rst`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeAllocations {
    /// Wanted on this node and allocated there.
    pub hit: u64,
    /// Wanted on another node and allocated here.
    pub miss: u64,
    /// Wanted on this node and allocated on another.
    pub foreign: u64,
    /// Allocated here by a process that ran here.
    pub local: u64,
    /// Allocated here by a process that ran on another node.
    pub other: u64,
}

/// An interrupt of an interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Interrupt {
    /// Its number.
    pub number: u32,
    /// What it does, as its driver names it.
    pub action: String,
    /// The interface that it belongs to.
    pub interface: String,
    /// The queue that it serves; none of one that serves no queue (link state, mailbox).
    pub queue: Option<u32>,
    /// Whether it announces received packets; those that only complete transmission do not.
    pub receives: bool,
    /// Processors that it may be served by.
    pub affinity: Vec<u32>,
    /// Processors that it really goes to now; empty where the kernel does not tell.
    pub effective: Vec<u32>,
    /// How often each processor served it; those that never did are left out.
    pub served: Vec<(u32, u64)>,
}

impl Interrupt {
    /// How often it was served.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.served.iter().map(|(_, count)| count).sum()
    }

    /// Where it goes now: what the kernel says, else what it is allowed.
    #[must_use]
    pub fn target(&self) -> &[u32] {
        if self.effective.is_empty() { &self.affinity } else { &self.effective }
    }
}

/// A processor's line of `/proc/net/softnet_stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Softnet {
    /// The processor.
    pub processor: u32,
    /// Packets processed.
    pub processed: u64,
    /// Packets dropped because its backlog was full (`netdev_max_backlog`).
    pub dropped: u64,
    /// How often it ended a round with work left (`netdev_budget`, `netdev_budget_usecs`).
    pub squeezed: u64,
    /// How often others woke it for steered packets (RPS).
    pub steered: u64,
    /// Packets dropped by the flow limit.
    pub flow_limited: u64,
}

impl HostFacts {
    /// A sysctl's text.
    #[must_use]
    pub fn sysctl(&self, path: &str) -> Option<&str> {
        self.sysctls.get(path).map(String::as_str)
    }

    /// A sysctl that is one number.
    #[must_use]
    pub fn sysctl_number(&self, path: &str) -> Option<i64> {
        self.sysctl(path)?.trim().parse().ok()
    }

    /// A number of a sysctl that has several, counted from 0.
    #[must_use]
    pub fn sysctl_field(&self, path: &str, at: usize) -> Option<u64> {
        self.sysctl(path)?.split_ascii_whitespace().nth(at)?.parse().ok()
    }

    /// A counter, 0 if the kernel has none of this name.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// A processor by its number.
    #[must_use]
    pub fn processor(&self, number: u32) -> Option<&Processor> {
        let at = self.processors.binary_search_by_key(&number, |processor| processor.number).ok()?;
        self.processors.get(at)
    }

    /// The memory node of a processor.
    #[must_use]
    pub fn node_of(&self, processor: u32) -> Option<u32> {
        self.processor(processor).map(|processor| processor.node)
    }

    /// Processors of a memory node that are online.
    #[must_use]
    pub fn processors_of(&self, node: u32) -> Vec<u32> {
        self.processors
            .iter()
            .filter(|processor| processor.node == node)
            .map(|processor| processor.number)
            .collect()
    }

    /// Nodes that have processors.
    #[must_use]
    pub fn nodes_with_processors(&self) -> usize {
        let mut nodes: Vec<u32> = self.processors.iter().map(|processor| processor.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.len()
    }

    /// An interface by its name.
    #[must_use]
    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// States the speed of an interface whose driver reports none, bit/s. Returns whether there is such an interface.
    pub fn state_speed(&mut self, name: &str, speed_bps: u64) -> bool {
        let Some(interface) = self.interfaces.iter_mut().find(|interface| interface.name == name) else {
            return false;
        };
        interface.speed_bps = Some(speed_bps);
        let source = format!("/sys/class/net/{name}/speed");
        self.unknown.retain(|gap| gap.source != source);
        true
    }

    /// The interrupts of an interface.
    pub fn interrupts_of<'a>(&'a self, interface: &'a str) -> impl Iterator<Item = &'a Interrupt> + 'a {
        self.interrupts.iter().filter(move |interrupt| interrupt.interface == interface)
    }

    /// A process by its number.
    #[must_use]
    pub fn process(&self, number: u32) -> Option<&ProcessFacts> {
        self.processes.iter().find(|process| process.number == number)
    }
}

/// Processors as the kernel lists them, such as `0-3,8`.
#[must_use]
pub fn processor_list(numbers: &[u32]) -> String {
    crate::change::processor_list_text(&numbers.iter().copied().collect())
}

/// Numbers of a list such as `0-3,8` (`Documentation/admin-guide/cputopology.rst`), ascending; none if it is damaged.
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
