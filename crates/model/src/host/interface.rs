//! Interfaces: the NIC, its link, queues, qdiscs and counters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Interface {
    pub name: String,
    pub index: Option<u32>,
    /// Inode of `/sys/class/net/INTERFACE`, unique within a boot; `None` in a recording.
    #[serde(skip)]
    pub inode: Option<u64>,
    pub kind: InterfaceKind,
    /// Index of the other end of a veth pair, in the network namespace of that end.
    #[serde(skip)]
    pub peer: Option<u32>,
    pub driver: Option<String>,
    /// The address on the bus, such as `0000:81:00.0`.
    pub bus: Option<String>,
    /// Whether the interface can carry traffic: `operstate` is up, or is unknown and the carrier is not off.
    pub up: bool,
    pub firmware: Option<String>,
    pub node: Option<u32>,
    pub pcie: Option<PcieLink>,
    /// Maximum read request of the NIC over PCI Express, bytes (MaxReadReq).
    pub max_read_request: Option<u32>,
    /// Type of the NIC's IOMMU group, such as `DMA` (strict), `DMA-FQ` (lazy) or `identity`.
    pub iommu: Option<String>,
    pub speed_bps: Option<u64>,
    /// The highest speed that NIC and driver support, bit/s.
    pub supported_bps: Option<u64>,
    /// `full` or `half`.
    pub duplex: Option<String>,
    /// Bytes.
    pub mtu: Option<u32>,
    /// Default length of a FIFO qdisc on the interface, packets (`txqueuelen`).
    pub tx_queue_len: Option<u32>,
    pub carrier_changes: Option<u64>,
    /// Whether kernel threads process the interface's packets (`threaded`).
    pub threaded_napi: bool,
    /// Maximum number of consecutive empty polls with interrupts off (`napi_defer_hard_irqs`).
    pub napi_defer_hard_irqs: Option<u64>,
    /// Maximum time for which GRO holds packets, ns (`gro_flush_timeout`). With `napi_defer_hard_irqs`, also
    /// the time between two polls.
    pub gro_flush_timeout_ns: Option<u64>,
    /// Maximum packet sizes between stack and driver; `None` if the kernel does not report them.
    pub packet_sizes: Option<PacketSizes>,
    /// `ethtool -l`.
    pub channels: Option<Channels>,
    /// `ethtool -g`.
    pub rings: Option<Rings>,
    /// `ethtool -c`.
    pub coalescing: Option<Coalescing>,
    /// Offload features by the kernel's names (`ethtool -k` uses other names for groups).
    pub features: BTreeMap<String, Feature>,
    /// The driver's private flags (`ethtool --show-priv-flags`).
    pub private_flags: BTreeMap<String, bool>,
    /// Flow control of the link (`ethtool -a`).
    pub pause: Option<Pause>,
    /// `ethtool -x`, `-n rx-flow-hash`.
    pub rss: Option<Rss>,
    pub receive_queues: Vec<ReceiveQueue>,
    pub transmit_queues: Vec<TransmitQueue>,
    /// Queueing disciplines, root first.
    pub qdiscs: Vec<QdiscFacts>,
    /// The kernel's counters (`/sys/class/net/INTERFACE/statistics`).
    pub statistics: BTreeMap<String, u64>,
    /// The driver's counters (`ethtool -S`).
    pub driver_statistics: BTreeMap<String, u64>,
    pub losses: LossCounters,
    /// Packets per queue, if the driver counts them.
    pub queue_counters: QueueCounters,
    /// Interfaces directly below this interface.
    pub lower: Vec<String>,
    pub bond: Option<BondFacts>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum InterfaceKind {
    /// A physical or emulated device.
    Device,
    Loopback,
    Bond,
    Bridge,
    Veth,
    /// Any other virtual interface, such as a VLAN or a tunnel.
    #[default]
    Virtual,
}

/// Maximum packet sizes between stack and driver, bytes (`ip -d link`). Sizes above 65,536 are BIG TCP.
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
    /// `tso_max_size`, the driver's limit; `None` before Linux 5.19.
    pub tso: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PcieLink {
    /// GT/s per lane.
    pub speed_gts: f64,
    /// Number of lanes.
    pub width: u32,
    /// Maximum of the NIC, GT/s per lane.
    pub max_speed_gts: Option<f64>,
    /// Maximum of the NIC, number of lanes.
    pub max_width: Option<u32>,
}

impl PcieLink {
    /// Returns the capacity of a link, bit/s: lanes times speed times encoding, minus 1 Gbit/s for the
    /// protocol (*TCP at 100 Gbit/s*, section III-A).
    #[must_use]
    pub fn capacity_bps(speed_gts: f64, width: u32) -> f64 {
        // 2.5 and 5 GT/s use 8b/10b encoding, 8 to 32 GT/s use 128b/130b encoding. From 64 GT/s on, error
        // detection and correction take 14 of the 256 bytes of a FLIT.
        let encoding = match speed_gts {
            speed if speed < 6.0 => 0.8,
            speed if speed < 60.0 => 128.0 / 130.0,
            _ => 242.0 / 256.0,
        };
        (f64::from(width) * speed_gts * encoding - 1.0).max(0.0) * 1e9
    }

    #[must_use]
    pub fn current_bps(&self) -> f64 {
        Self::capacity_bps(self.speed_gts, self.width)
    }

    /// Returns the capacity with the NIC's maximum speed and width, bit/s. The current value replaces an
    /// unknown or smaller maximum.
    #[must_use]
    pub fn best_bps(&self) -> f64 {
        Self::capacity_bps(
            self.max_speed_gts.unwrap_or(self.speed_gts).max(self.speed_gts),
            self.max_width.unwrap_or(self.width).max(self.width),
        )
    }
}

/// Current and maximum numbers of channels (`struct ethtool_channels`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Channels {
    /// Receive-only.
    pub rx: u32,
    /// Maximum of receive-only channels.
    pub rx_max: u32,
    /// Transmit-only.
    pub tx: u32,
    /// Maximum of transmit-only channels.
    pub tx_max: u32,
    /// Receive and transmit on one channel.
    pub combined: u32,
    /// Maximum of channels that receive and transmit.
    pub combined_max: u32,
    /// Other channels, such as for link state.
    pub other: u32,
    pub other_max: u32,
}

impl Channels {
    #[must_use]
    pub const fn receive(&self) -> u32 {
        self.rx.saturating_add(self.combined)
    }

    #[must_use]
    pub const fn transmit(&self) -> u32 {
        self.tx.saturating_add(self.combined)
    }

    #[must_use]
    pub fn receive_max(&self) -> u32 {
        self.rx_max.max(self.combined_max)
    }
}

/// Numbers of ring entries (`struct ethtool_ringparam`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rings {
    pub rx: u32,
    pub rx_max: u32,
    pub tx: u32,
    pub tx_max: u32,
}

/// Interrupt moderation (`struct ethtool_coalesce`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Coalescing {
    /// Delay of the interrupt after a received packet, µs.
    pub rx_usecs: u32,
    /// Number of received packets that ends the delay; 0: no limit.
    pub rx_frames: u32,
    /// Delay of the interrupt after a sent packet, µs.
    pub tx_usecs: u32,
    /// Number of sent packets that ends the delay; 0: no limit.
    pub tx_frames: u32,
    /// Whether the driver adapts the receive delay to the traffic.
    pub adaptive_rx: bool,
    pub adaptive_tx: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Feature {
    pub on: bool,
    /// Whether the feature cannot be changed.
    pub fixed: bool,
}

/// Flow control of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pause {
    /// Whether the interface pauses when it receives pause frames.
    pub rx: bool,
    /// Whether the interface sends pause frames.
    pub tx: bool,
    /// Whether pause frames are negotiated with the peer.
    pub autonegotiate: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rss {
    /// The queue of each entry of the indirection table.
    pub indirection: Vec<u32>,
    /// Empty if unknown.
    pub key: Vec<u8>,
    /// Hash function: `toeplitz`, `xor`, `crc32`; empty if unknown.
    pub function: String,
    /// Hashed fields by flow type (`tcp4`, `udp4`, ...), in ethtool's letters: `s`, `d` addresses, `f`,
    /// `n` ports, `m` destination MAC, `v` VLAN, `t` protocol.
    pub hash_fields: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReceiveQueue {
    /// CPUs for software steering (RPS); empty if RPS is off.
    pub rps: Vec<u32>,
    /// Size of the queue's RFS table, entries; 0: RFS is off.
    pub rps_flow_count: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TransmitQueue {
    /// Whether the kernel shows the queue's XPS maps. It shows no maps for a NIC with one queue.
    pub has_xps: bool,
    /// CPUs that use the queue (XPS by CPU).
    pub xps_processors: Vec<u32>,
    /// Receive queues whose sockets use the queue (XPS by receive queue).
    pub xps_receive_queues: Vec<u32>,
    /// The configured maximum of byte queue limits, bytes.
    pub bql_limit_max: Option<u64>,
    /// Current byte queue limit, bytes.
    pub bql_limit: Option<u64>,
    pub timeouts: u64,
    /// Maximum rate, Mbit/s; 0 means no maximum.
    pub max_rate_mbps: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct QdiscFacts {
    pub kind: String,
    /// Handle, such as `8001:`; `0:` for a qdisc that the kernel installed by default.
    pub handle: String,
    /// Parent in the tree: `root`, or the class above, such as `8001:1`.
    pub parent: String,
    pub bytes: u64,
    pub packets: u64,
    pub drops: u64,
    /// Number of packets returned to the qdisc, because the driver refused them or its queue had stopped.
    pub requeues: u64,
    pub backlog_bytes: u64,
    pub rate_bps: Option<u64>,
    pub limit_packets: Option<u64>,
    /// Options of netem that delay or drop packets, such as `delay 5 ms, loss 1 %`; empty without such
    /// options.
    pub impairments: String,
    /// Whether the qdisc has options other than the kernel's defaults, as far as known.
    pub has_own_options: bool,
    /// Limit of each flow of an fq qdisc, packets.
    pub flow_limit: Option<u64>,
    /// Packets dropped at the limit of their flow (`flows_plimit`).
    pub flow_limit_drops: u64,
}

impl Interface {
    /// Returns whether `other`, from another reading, is the same interface. Compares the indices and, if
    /// both are known, the inodes: the kernel reuses the index of a deleted interface, but not the inode.
    /// Without an index, compares the names.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self.index, other.index) {
            (Some(index), Some(other_index)) => {
                index == other_index && self.inode.zip(other.inode).is_none_or(|(own, other)| own == other)
            }
            _ => self.name == other.name,
        }
    }
}

impl QdiscFacts {
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.parent == "root"
    }

    /// Returns whether kind, handle and parent, which identify a qdisc, are equal.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.kind == other.kind && self.handle == other.handle && self.parent == other.parent
    }
}

/// Losses, stops and pause frames at a NIC, under common names. `None` means that no counter shows the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LossCounters {
    /// Packets lost because no receive descriptor was free: the receive ring overflowed.
    pub ring: Option<u64>,
    /// Packets lost in the NIC's memory, before the ring, because the bus or the NIC was too slow.
    pub nic: Option<u64>,
    /// Packets damaged on the wire: checksum, length, symbol errors.
    pub wire: Option<u64>,
    /// Packets dropped by the driver, for example malformed packets, or for lack of memory.
    pub driver: Option<u64>,
    /// The kernel's `rx_dropped`: the drops that the driver counts, and frames without a receiver, such
    /// as unknown protocols.
    pub other: Option<u64>,
    pub transmit: Option<u64>,
    /// Number of times that a transmit queue was full and stopped.
    pub transmit_stops: Option<u64>,
    /// Pause frames sent, which pause the peer.
    pub pause_sent: Option<u64>,
    pub pause_received: Option<u64>,
    pub priority_pause_sent: Option<u64>,
    pub priority_pause_received: Option<u64>,
    /// Packets delayed or dropped by the cloud at its limit for this instance.
    pub allowance: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueCounters {
    pub receive: Vec<u64>,
    pub transmit: Vec<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BondFacts {
    /// Bonding mode, such as `802.3ad`.
    pub mode: String,
    /// Fields that the bond hashes to choose a port, such as `layer2`.
    pub hash_policy: String,
}

impl Interface {
    /// Returns the state of a feature; `None` if the driver does not have the feature.
    #[must_use]
    pub fn feature(&self, name: &str) -> Option<Feature> {
        self.features.get(name).copied()
    }

    /// Returns the active feature by which the NIC itself merges received packets, if any.
    #[must_use]
    pub fn merges_itself(&self) -> Option<&'static str> {
        ["rx-gro-hw", "rx-lro"].into_iter().find(|name| self.feature(name).is_some_and(|feature| feature.on))
    }

    #[must_use]
    pub fn received_packets(&self) -> u64 {
        self.statistics.get("rx_packets").copied().unwrap_or(0)
    }

    #[must_use]
    pub fn sent_packets(&self) -> u64 {
        self.statistics.get("tx_packets").copied().unwrap_or(0)
    }

    /// Returns the number of receive queues in use, from the driver. If the driver does not report the
    /// number, returns the number from the kernel.
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
