//! Interfaces: the NIC, its link, queues, qdiscs and counters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Interface {
    pub name: String,
    pub index: Option<u32>,
    pub kind: InterfaceKind,
    pub driver: Option<String>,
    /// The address on the bus, such as `0000:81:00.0`.
    pub bus: Option<String>,
    /// Whether the interface carries traffic (`operstate` up, or unknown with a carrier).
    pub up: bool,
    /// Version of its firmware.
    pub firmware: Option<String>,
    /// The NIC's memory node.
    pub node: Option<u32>,
    /// The NIC's PCI Express link.
    pub pcie: Option<PcieLink>,
    /// The NIC's largest read request over PCI Express, bytes (MaxReadReq).
    pub max_read_request: Option<u32>,
    /// Address translation of its IOMMU group: `DMA` (strict), `DMA-FQ` (lazy), `identity`.
    pub iommu: Option<String>,
    /// Speed of its link, bit/s.
    pub speed_bps: Option<u64>,
    /// The highest speed of NIC and driver, bit/s.
    pub supported_bps: Option<u64>,
    /// `full` or `half`.
    pub duplex: Option<String>,
    /// MTU, bytes.
    pub mtu: Option<u32>,
    /// Length of the transmit queue, packets (`txqueuelen`).
    pub tx_queue_len: Option<u32>,
    /// How often the carrier changed.
    pub carrier_changes: Option<u64>,
    /// Whether its packets are processed in kernel threads (`threaded`).
    pub threaded_napi: bool,
    /// Empty polls during which interrupts stay off (`napi_defer_hard_irqs`).
    pub napi_defer_hard_irqs: Option<u64>,
    /// Time during which interrupts stay off, and GRO may hold packets, ns (`gro_flush_timeout`).
    pub gro_flush_timeout_ns: Option<u64>,
    /// Largest packets between stack and driver; none if the kernel does not report them.
    pub packet_sizes: Option<PacketSizes>,
    /// Channels (`ethtool -l`).
    pub channels: Option<Channels>,
    /// Rings (`ethtool -g`).
    pub rings: Option<Rings>,
    /// Interrupt coalescing (`ethtool -c`).
    pub coalescing: Option<Coalescing>,
    /// Offload features by the kernel's names (`ethtool -k` uses other names for groups).
    pub features: BTreeMap<String, Feature>,
    /// The driver's private flags (`ethtool --show-priv-flags`).
    pub private_flags: BTreeMap<String, bool>,
    /// Flow control (`ethtool -a`).
    pub pause: Option<Pause>,
    /// Receive-side scaling (`ethtool -x`, `-n rx-flow-hash`).
    pub rss: Option<Rss>,
    /// Receive queues in use.
    pub receive_queues: Vec<ReceiveQueue>,
    /// Transmit queues in use.
    pub transmit_queues: Vec<TransmitQueue>,
    /// Queueing disciplines, the root first.
    pub qdiscs: Vec<QdiscFacts>,
    /// The kernel's counters (`/sys/class/net/INTERFACE/statistics`).
    pub statistics: BTreeMap<String, u64>,
    /// The driver's counters (`ethtool -S`).
    pub driver_statistics: BTreeMap<String, u64>,
    /// Losses at the NIC, under common names.
    pub losses: LossCounters,
    /// Packets per queue, if the driver counts them.
    pub queue_counters: QueueCounters,
    /// Interfaces directly below it.
    pub lower: Vec<String>,
    /// A bond's settings.
    pub bond: Option<BondFacts>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum InterfaceKind {
    /// A physical or emulated device.
    Device,
    Loopback,
    /// Combines several interfaces into one.
    Bond,
    Bridge,
    /// One end of a veth pair.
    Veth,
    /// Another virtual interface: a VLAN, a tunnel.
    #[default]
    Virtual,
}

/// Largest packets between stack and driver, bytes (`ip -d link`). Sizes above 65,536 are BIG TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PacketSizes {
    /// `gso_max_size`, for IPv6.
    pub gso: u32,
    /// `gso_ipv4_max_size`; before Linux 6.3 equal to `gso`.
    pub gso_ipv4: u32,
    /// `gro_max_size`, for IPv6.
    pub gro: u32,
    /// `gro_ipv4_max_size`; before Linux 6.3 equal to `gro`.
    pub gro_ipv4: u32,
    /// `tso_max_size`, the driver's limit; none before Linux 5.19.
    pub tso: Option<u32>,
}

/// A PCI Express link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PcieLink {
    /// Speed of a lane, GT/s.
    pub speed_gts: f64,
    /// Lanes.
    pub width: u32,
    /// The NIC's maximum, GT/s.
    pub max_speed_gts: Option<f64>,
    /// The NIC's maximum number of lanes.
    pub max_width: Option<u32>,
}

impl PcieLink {
    /// Returns the capacity of a link, bit/s: lanes times speed times encoding, minus 1 Gbit/s for the
    /// protocol (the paper's section III-A).
    #[must_use]
    pub fn capacity_bps(speed_gts: f64, width: u32) -> f64 {
        // 2.5 and 5 GT/s are encoded 8b/10b, 8 GT/s and above 128b/130b; from 64 GT/s on FLITs cost 14 of 256 bytes.
        let encoding = match speed_gts {
            speed if speed < 6.0 => 0.8,
            speed if speed < 60.0 => 128.0 / 130.0,
            _ => 242.0 / 256.0,
        };
        (f64::from(width) * speed_gts * encoding - 1.0).max(0.0) * 1e9
    }

    /// Returns the current capacity, bit/s.
    #[must_use]
    pub fn current_bps(&self) -> f64 {
        Self::capacity_bps(self.speed_gts, self.width)
    }

    /// Returns the capacity with the NIC's maximum speed and width, bit/s.
    #[must_use]
    pub fn best_bps(&self) -> f64 {
        Self::capacity_bps(
            self.max_speed_gts.unwrap_or(self.speed_gts).max(self.speed_gts),
            self.max_width.unwrap_or(self.width).max(self.width),
        )
    }
}

/// Queues in use, and their maxima (`struct ethtool_channels`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Channels {
    /// Receive-only.
    pub rx: u32,
    /// Receive-only, at most.
    pub rx_max: u32,
    /// Transmit-only.
    pub tx: u32,
    /// Transmit-only, at most.
    pub tx_max: u32,
    /// Receive and transmit on one channel.
    pub combined: u32,
    /// Receive and transmit on one channel, at most.
    pub combined_max: u32,
    /// Other channels, such as for link state.
    pub other: u32,
    /// Other channels, at most.
    pub other_max: u32,
}

impl Channels {
    /// Returns the number of receive queues in use.
    #[must_use]
    pub const fn receive(&self) -> u32 {
        self.rx.saturating_add(self.combined)
    }

    /// Returns the number of transmit queues in use.
    #[must_use]
    pub const fn transmit(&self) -> u32 {
        self.tx.saturating_add(self.combined)
    }

    /// Returns the maximum number of receive queues.
    #[must_use]
    pub fn receive_max(&self) -> u32 {
        self.rx_max.max(self.combined_max)
    }
}

/// Entries of the rings (`struct ethtool_ringparam`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rings {
    /// Receive.
    pub rx: u32,
    /// Receive, at most.
    pub rx_max: u32,
    /// Transmit.
    pub tx: u32,
    /// Transmit, at most.
    pub tx_max: u32,
}

/// Interrupt moderation (`struct ethtool_coalesce`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Coalescing {
    /// Delay after a received packet, µs.
    pub rx_usecs: u32,
    /// Received packets that end the delay; 0: no limit.
    pub rx_frames: u32,
    /// Delay after a sent packet, µs.
    pub tx_usecs: u32,
    /// Sent packets that end the delay.
    pub tx_frames: u32,
    /// Whether the driver adapts the receive delay to the traffic.
    pub adaptive_rx: bool,
    /// Whether the driver adapts the transmit delay.
    pub adaptive_tx: bool,
}

/// State of an offload feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Feature {
    pub on: bool,
    /// Whether it cannot be changed.
    pub fixed: bool,
}

/// Flow control of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pause {
    /// Whether the interface obeys pause frames.
    pub rx: bool,
    /// Whether the interface sends pause frames.
    pub tx: bool,
    /// Whether pause frames are negotiated with the peer.
    pub autonegotiate: bool,
}

/// Receive-side scaling.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rss {
    /// The queue of each entry of the indirection table.
    pub indirection: Vec<u32>,
    /// Key of the hash; empty if unknown.
    pub key: Vec<u8>,
    /// Hash function: `toeplitz`, `xor`, `crc32`; empty if unknown.
    pub function: String,
    /// Fields that are hashed, by kind of flow (`tcp4`, `udp4`, ...), in ethtool's letters: `s`, `d` addresses, `f`, `n`
    /// ports, `m` destination MAC, `v` VLAN, `t` protocol.
    pub hash_fields: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReceiveQueue {
    /// Processors for software steering (RPS); empty: off.
    pub rps: Vec<u32>,
    /// Size of its RFS table.
    pub rps_flow_count: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TransmitQueue {
    /// Whether the kernel shows the queue's XPS maps; it shows none for a NIC with one queue.
    pub has_xps: bool,
    /// Processors that use it (XPS by processor); empty: none.
    pub xps_processors: Vec<u32>,
    /// Receive queues whose sockets use it (XPS by receive queue).
    pub xps_receive_queues: Vec<u32>,
    /// The configured maximum of byte queue limits, bytes.
    pub bql_limit_max: Option<u64>,
    /// Current byte queue limit, bytes.
    pub bql_limit: Option<u64>,
    /// How often transmission on the queue timed out.
    pub timeouts: u64,
    /// Maximum rate, Mbit/s; 0: none.
    pub max_rate_mbps: u64,
}

/// A queueing discipline.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct QdiscFacts {
    pub kind: String,
    /// Handle, such as `8001:`; `0:` for a qdisc that the kernel installed by default.
    pub handle: String,
    /// Parent in the tree: `root`, or a handle.
    pub parent: String,
    /// Bytes sent.
    pub bytes: u64,
    /// Packets sent.
    pub packets: u64,
    /// Packets dropped.
    pub drops: u64,
    /// How often the device refused a packet.
    pub requeues: u64,
    /// Queued bytes.
    pub backlog_bytes: u64,
    /// Shaping rate, bit/s.
    pub rate_bps: Option<u64>,
    /// Limit in packets, if it has one.
    pub limit_packets: Option<u64>,
    /// Options that delay or drop packets, in tc's notation: `delay 5 ms`, `loss 1 %`.
    pub impairments: String,
    /// Whether it has options other than the kernel's defaults, as far as known.
    pub has_own_options: bool,
    /// Limit of each flow in packets, of fq.
    pub flow_limit: Option<u64>,
    /// Packets dropped at the limit of their flow (`flows_plimit`).
    pub flow_limit_drops: u64,
}

impl QdiscFacts {
    /// Returns whether the qdisc is the root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.parent == "root"
    }
}

/// Losses at a NIC, under common names. None: the driver does not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LossCounters {
    /// Packets lost because no receive descriptor was free: the receive ring overflowed.
    pub ring: Option<u64>,
    /// Packets lost in the NIC's memory, before the ring: bus or NIC were too slow.
    pub nic: Option<u64>,
    /// Damaged packets: checksum, length, symbol errors of the wire.
    pub wire: Option<u64>,
    /// Packets dropped by the driver: no memory, malformed.
    pub driver: Option<u64>,
    /// The kernel's `rx_dropped`: the drivers' counts above, and frames without a receiver, such as unknown
    /// protocols.
    pub other: Option<u64>,
    /// Packets dropped on transmit.
    pub transmit: Option<u64>,
    /// How often a transmit queue was full and stopped.
    pub transmit_stops: Option<u64>,
    /// Pause frames sent: this host paused the peer.
    pub pause_sent: Option<u64>,
    /// Pause frames received.
    pub pause_received: Option<u64>,
    /// Priority flow control frames sent.
    pub priority_pause_sent: Option<u64>,
    /// Priority flow control frames received.
    pub priority_pause_received: Option<u64>,
    /// Packets delayed or lost at the cloud's allowance for this machine.
    pub allowance: Option<u64>,
}

/// Packets of each queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueCounters {
    /// Received.
    pub receive: Vec<u64>,
    /// Sent.
    pub transmit: Vec<u64>,
}

/// A bond's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BondFacts {
    /// Bonding mode, such as `802.3ad`.
    pub mode: String,
    /// Fields that the bond hashes to choose a port, such as `layer2`.
    pub hash_policy: String,
}

impl Interface {
    /// Returns the state of a feature; none if the driver does not have it.
    #[must_use]
    pub fn feature(&self, name: &str) -> Option<Feature> {
        self.features.get(name).copied()
    }

    /// Returns the feature by which the NIC merges received packets itself, if one is on.
    #[must_use]
    pub fn merges_itself(&self) -> Option<&'static str> {
        ["rx-gro-hw", "rx-lro"].into_iter().find(|name| self.feature(name).is_some_and(|feature| feature.on))
    }

    /// Returns the packets received since boot.
    #[must_use]
    pub fn received_packets(&self) -> u64 {
        self.statistics.get("rx_packets").copied().unwrap_or(0)
    }

    /// Returns the packets sent since boot.
    #[must_use]
    pub fn sent_packets(&self) -> u64 {
        self.statistics.get("tx_packets").copied().unwrap_or(0)
    }

    /// Returns the number of receive queues in use: from the driver if it reports them, otherwise from the
    /// kernel.
    #[must_use]
    pub fn receive_queue_count(&self) -> u32 {
        match &self.channels {
            Some(channels) if channels.receive() > 0 => channels.receive(),
            _ => u32::try_from(self.receive_queues.len()).unwrap_or(u32::MAX),
        }
    }

    #[must_use]
    pub fn root_qdisc(&self) -> Option<&QdiscFacts> {
        self.qdiscs.iter().find(|qdisc| qdisc.is_root())
    }
}
