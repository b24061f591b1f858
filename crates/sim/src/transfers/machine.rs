//! Machines of senders and receivers: cores, memory nodes, caches, interconnect, and the cycles of each
//! operation.
//!
//! One table of cycles serves both ends of a connection. Its source is the receiver's profile without
//! offloads in *Understanding Host Network Stack Overheads* (SIGCOMM 2021): 4.8 Gbit/s per core in
//! packets of 1448 bytes at 3.4 GHz are 8205 cycles per packet. The profile divides these cycles by
//! subsystem. Work for each packet in every row (driver and GRO, memory) is charged per packet. All
//! other work is charged per buffer that reaches TCP.

use crate::time::{MICROSECOND, SECOND, Span};

/// Cycles per packet or buffer, by the subsystems of the profile.
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
    const NONE: Self = Self {
        copy: 0.0,
        tcp_ip: 0.0,
        netdev: 0.0,
        memory: 0.0,
        skb: 0.0,
        lock: 0.0,
        sched: 0.0,
        other: 0.0,
    };

    #[must_use]
    pub fn array(&self) -> [f64; 8] {
        [self.copy, self.tcp_ip, self.netdev, self.memory, self.skb, self.lock, self.sched, self.other]
    }

    #[must_use]
    pub fn sum(&self) -> f64 {
        self.array().iter().sum()
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
    /// A packet's memory when the application has read it.
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
    pub name: &'static str,
    pub nodes: u32,
    /// Physical cores of a node. Only a placement can name the second thread of a core.
    pub cores_per_node: u32,
    /// Clock in Hz of a core with at most two active cores in its package.
    pub turbo_hz: f64,
    /// Clock in Hz with all cores active.
    pub all_cores_hz: f64,
    /// In Hz.
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

/// The profile's cycles per packet without offloads: 3.4 GHz divided by 4.8 Gbit/s in payloads of 1448
/// bytes.
const PROFILED: f64 = 3.4e9 / (4.8e9 / 8.0 / 1448.0);

/// Returns the table of cycles.
///
/// The profile's percentages (`none`): copy 4.6, tcp/ip 37.2, netdev 16.1, memory 7.0, skb 7.1, lock
/// 5.0, sched 4.9, other 9.7. The missing 8.4 % count as other. A cost at both ends of a buffer's life
/// is split into halves. A quarter of TCP/IP is the reading system call. These splits are assumptions.
fn cycles() -> Cycles {
    let part = |percent: f64| PROFILED * percent / 100.0;
    let (tcp_ip, netdev, memory) = (part(37.2), part(16.1), part(7.0));
    let (skb, lock, sched, other) = (part(7.1), part(5.0), part(4.9), part(9.7 + 8.4));
    let half = 0.5;
    let none = Shares::NONE;
    let buffer =
        Shares { tcp_ip: 0.75 * tcp_ip, skb: half * skb, lock: half * lock, other: half * other, ..none };
    let read_buffer =
        Shares { tcp_ip: 0.25 * tcp_ip, skb: half * skb, lock: half * lock, other: half * other, ..none };
    Cycles {
        packet: Shares { netdev, memory: half * memory, ..none },
        buffer,
        // Assumption: a small part of the lock's and the buffer's work.
        defer: Shares { lock: half * buffer.lock, ..none },
        read_packet: Shares { memory: half * memory, ..none },
        read_buffer,
        // Assumption: sending a segment takes half of the work of receiving a segment without the
        // reader's part. The receiver of the profile is its bottleneck.
        segment: Shares {
            tcp_ip: half * tcp_ip,
            netdev: half * netdev,
            memory: half * memory,
            skb: half * skb,
            lock: half * half * lock,
            other: half * half * other,
            ..none
        },
        acknowledgement: Shares { tcp_ip: half * tcp_ip, skb: half * skb, ..none },
        // 0.6 µs for entry, handler and exit of an interrupt. Estimated.
        interrupt: Shares { netdev: 2000.0, ..none },
        wake: Shares { sched: half * sched, ..none },
        switch: Shares { sched: half * sched, ..none },
    }
}

/// A byte in cache: the profile's 4.6 % of 8205 cycles for 1448 bytes. A byte in memory is calibrated
/// with the row `all`, 41.2 Gbit/s per core. Assumption: memory of another node takes 1.5 times as long
/// as memory of the own node (idle latencies of about 135 and 90 ns).
const COPY: CopyCycles = {
    let local = 0.379;
    CopyCycles { cached: 0.046 * 3.4e9 / (4.8e9 / 8.0), local, remote: 1.5 * local }
};

/// `rx-usecs` of mlx5.
const INTERRUPT_DELAY: Span = 8 * MICROSECOND;

/// The answers and requests of the interconnect's protocol take two of eleven parts (header flits of
/// QPI). Estimated.
const REVERSE_SHARE: f64 = 2.0 / 9.0;

impl Machine {
    /// The servers of *TCP at 100 Gbit/s* (LCN 2019):
    ///
    /// - two Xeon E5-2630 v3 with 8 cores
    /// - 20 MB of last-level cache, of which the NIC writes to a tenth (DDIO: two of 20 ways)
    /// - 68 Gbit/s between the packages
    /// - PCI Express 3.0 x16
    #[must_use]
    pub fn kit_2014() -> Self {
        // Calibrated with one flow at MTU 9000, 43 Gbit/s. The reading core limits this flow.
        const SLOWER: f64 = 1.08;
        Self {
            name: "kit-2014",
            nodes: 2,
            cores_per_node: 8,
            turbo_hz: 3.2e9,
            all_cores_hz: 2.6e9,
            base_hz: 2.4e9,
            cycles: cycles(),
            copy: CopyCycles {
                cached: SLOWER * COPY.cached,
                local: SLOWER * COPY.local,
                remote: SLOWER * COPY.remote,
            },
            ddio_bytes: 2 << 20,
            interconnect_bps: 68e9,
            pcie_bps: 125e9,
            nic_buffer: 1 << 20,
            interrupt_delay: INTERRUPT_DELAY,
            reverse_share: REVERSE_SHARE,
            nic_node: 1,
            miss: 290.0,
        }
    }

    /// The servers of *Understanding Host Network Stack Overheads*: four Xeon Gold 6128 with 6 cores and 19.25 MB of
    /// last-level cache, three interconnect links of 10.4 GT/s.
    #[must_use]
    pub fn xeon_6128() -> Self {
        Self {
            name: "xeon-6128",
            nodes: 4,
            cores_per_node: 6,
            turbo_hz: 3.4e9,
            all_cores_hz: 3.4e9,
            base_hz: 3.4e9,
            cycles: cycles(),
            copy: COPY,
            ddio_bytes: 3 << 20,
            interconnect_bps: 160e9,
            pcie_bps: 125e9,
            nic_buffer: 1 << 20,
            interrupt_delay: INTERRUPT_DELAY,
            reverse_share: REVERSE_SHARE,
            nic_node: 0,
            miss: 300.0,
        }
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

    /// Adds a transfer that arrives at `now`. Returns the end of the transfer.
    pub fn carry(&mut self, now: u64, bytes: f64) -> u64 {
        self.free = self.free.max(now as f64) + bytes * self.picoseconds_per_byte;
        self.free as u64
    }
}
