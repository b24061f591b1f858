//! Machines of senders and receivers: cores, memory nodes, caches, interconnect, and the cycles of each
//! operation.
//!
//! The figures are those of a profile ([`evenkeel_model::machine`]), whose file has their sources. One table
//! of cycles serves both ends of a connection. The work of the driver, of GRO and of memory is charged per
//! packet, because it occurs for each packet in every row of the built-in profiles' source. Other work is
//! charged per buffer that reaches TCP.

use evenkeel_model::machine::{MachineProfile, Operation};

use crate::time::{SECOND, Span, span_of as span_of_time};

/// Cycles of one operation, by the subsystems of the profile.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    pub copy: f64,
    pub tcp_ip: f64,
    pub netdev: f64,
    pub memory: f64,
    pub skb: f64,
    pub lock: f64,
    pub sched: f64,
    pub other: f64,
}

impl Shares {
    pub const NAMES: [&'static str; 8] =
        ["copy", "tcp_ip", "netdev", "memory", "skb", "lock", "sched", "other"];

    #[must_use]
    pub fn array(&self) -> [f64; 8] {
        [self.copy, self.tcp_ip, self.netdev, self.memory, self.skb, self.lock, self.sched, self.other]
    }

    #[must_use]
    pub fn sum(&self) -> f64 {
        self.array().iter().sum()
    }
}

impl From<[f64; 8]> for Shares {
    fn from([copy, tcp_ip, netdev, memory, skb, lock, sched, other]: [f64; 8]) -> Self {
        Self { copy, tcp_ip, netdev, memory, skb, lock, sched, other }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Cycles {
    /// A received packet in the softirq: driver, GRO, half of its memory's costs.
    pub packet: Shares,
    /// A received buffer in TCP, in the softirq or from the backlog, with the acknowledgement that it
    /// causes.
    pub buffer: Shares,
    pub defer: Shares,
    /// The other half of the costs of a packet's memory, after the application has read the packet.
    pub read_packet: Shares,
    /// A buffer's share of the system call that reads it.
    pub read_buffer: Shares,
    /// A segment from TCP to the ring, and its completion.
    pub segment: Shares,
    /// A received acknowledgement in TCP, in addition to its packet.
    pub acknowledgement: Shares,
    /// An interrupt with the start of its poll.
    pub interrupt: Shares,
    pub wake: Shares,
    pub switch: Shares,
}

/// Cycles to copy a byte, by location of the data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyCycles {
    /// In the last-level cache, where the NIC has put it (DDIO).
    pub cached: f64,
    /// In the memory of the reader's node.
    pub local: f64,
    /// In the memory of another node.
    pub remote: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    pub name: String,
    pub nodes: u32,
    /// Physical cores of a node. The second thread of a core is not simulated.
    pub cores_per_node: u32,
    /// Clock in Hz of a core with at most two active cores in its package.
    pub turbo_hz: f64,
    pub all_cores_hz: f64,
    pub base_hz: f64,
    pub cycles: Cycles,
    pub copy: CopyCycles,
    /// Bytes of the last-level cache that the NIC writes to.
    pub ddio_bytes: u64,
    /// Capacity of the interconnect in bit/s per direction.
    pub interconnect_bps: f64,
    /// Capacity of the NIC's slot in bit/s.
    pub pcie_bps: f64,
    /// Packet buffer of the NIC before the slot, in bytes.
    pub nic_buffer: u64,
    /// Time between the first packet and its interrupt.
    pub interrupt_delay: Span,
    /// Load on the other direction of the interconnect, as a share of the data.
    pub reverse_share: f64,
    pub nic_node: u32,
    /// Cycles of a memory access that misses the caches.
    pub miss: f64,
}

impl From<&MachineProfile> for Machine {
    fn from(profile: &MachineProfile) -> Self {
        let shares = |operation| Shares::from(profile.cost(operation).by_share());
        Self {
            name: profile.name.clone(),
            nodes: profile.nodes,
            cores_per_node: profile.cores_per_node,
            turbo_hz: profile.turbo_hz.value,
            all_cores_hz: profile.all_cores_hz.value,
            base_hz: profile.base_hz.value,
            cycles: Cycles {
                packet: shares(Operation::Packet),
                buffer: shares(Operation::Buffer),
                defer: shares(Operation::Defer),
                read_packet: shares(Operation::ReadPacket),
                read_buffer: shares(Operation::ReadBuffer),
                segment: shares(Operation::Segment),
                acknowledgement: shares(Operation::Acknowledgement),
                interrupt: shares(Operation::Interrupt),
                wake: shares(Operation::Wake),
                switch: shares(Operation::Switch),
            },
            copy: CopyCycles {
                cached: profile.copy.cached.value,
                local: profile.copy.local.value,
                remote: profile.copy.remote.value,
            },
            ddio_bytes: profile.ddio.bytes(),
            interconnect_bps: profile.interconnect.bits_per_second() as f64,
            pcie_bps: profile.pcie.bits_per_second() as f64,
            nic_buffer: profile.nic_buffer.bytes(),
            interrupt_delay: span_of_time(profile.interrupt_delay),
            reverse_share: profile.reverse_share,
            nic_node: profile.nic_node,
            miss: profile.miss.value,
        }
    }
}

impl Machine {
    /// Returns the servers of *TCP at 100 Gbit/s* (LCN 2019).
    #[must_use]
    pub fn kit_2014() -> Self {
        Self::from(&MachineProfile::kit_2014())
    }

    /// Returns the servers of *Understanding Host Network Stack Overheads*.
    #[must_use]
    pub fn xeon_6128() -> Self {
        Self::from(&MachineProfile::xeon_6128())
    }

    #[must_use]
    pub fn cores(&self) -> u32 {
        self.nodes * self.cores_per_node
    }

    #[must_use]
    pub fn node_of(&self, core: u32) -> u32 {
        core / self.cores_per_node
    }

    /// Returns the clock in Hz with this many active cores in a package. Assumption: the clock is
    /// linear between two cores and all cores.
    #[must_use]
    pub fn clock(&self, active: u32) -> f64 {
        let beyond =
            f64::from(active.saturating_sub(2)) / f64::from(self.cores_per_node.saturating_sub(2).max(1));
        self.turbo_hz + (self.all_cores_hz - self.turbo_hz) * beyond.min(1.0)
    }
}

#[must_use]
pub fn span_of(cycles: f64, hz: f64) -> Span {
    (cycles / hz * SECOND as f64) as Span
}

/// A link that serves transfers in order at a fixed rate: one direction of the interconnect, or the
/// NIC's slot.
#[derive(Clone, Copy, Debug)]
pub struct Pipe {
    picoseconds_per_byte: f64,
    free: f64,
}

impl Pipe {
    #[must_use]
    pub fn new(bps: f64) -> Self {
        Self { picoseconds_per_byte: 8.0 * SECOND as f64 / bps, free: 0.0 }
    }

    /// Returns the time in ps from `now` until the link is free.
    #[must_use]
    pub fn wait(&self, now: u64) -> f64 {
        (self.free - now as f64).max(0.0)
    }

    /// Returns the bytes that wait for the link at `now`.
    #[must_use]
    pub fn backlog(&self, now: u64) -> u64 {
        (self.wait(now) / self.picoseconds_per_byte) as u64
    }

    /// Adds a transfer that arrives at `now`. Returns the time in ps at which the transfer ends.
    pub fn carry(&mut self, now: u64, bytes: f64) -> u64 {
        self.free = self.free.max(now as f64) + bytes * self.picoseconds_per_byte;
        self.free as u64
    }
}
