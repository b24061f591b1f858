//! Synthetic hosts, as facts and as trees of files, to test rules for machines that are not available.
//!
//! [`HostBuilder`] builds the facts of a well-tuned host. A test injects a fault by changing the facts.
//! [`write_tree`] writes facts in the layout of `/proc` and `/sys`, and reading the tree gives the same
//! facts. Rules therefore get facts through the same files and parsers as on a real host.

#![forbid(unsafe_code)]

mod write;

use evenkeel_model::host::{
    Channels, Coalescing, Feature, HostFacts, IdleState, Interface, InterfaceKind, Interrupt, Node,
    NodeAllocations, PacketSizes, PcieLink, Processor, ProcessorTime, QdiscFacts, ReceiveQueue, Rings, Rss,
    Softnet, TransmitQueue,
};

pub use write::write_tree;

use evenkeel_host::facts::{EVERY_LINUX, complete};

#[derive(Clone, Debug)]
pub struct HostBuilder {
    facts: HostFacts,
    next_interrupt: u32,
}

#[derive(Clone, Debug)]
pub struct NicOptions {
    pub name: &'static str,
    pub driver: &'static str,
    pub bus: &'static str,
    /// NUMA node of the PCI slot.
    pub node: Option<u32>,
    /// Speed, Mbit/s; `None` if the NIC reports no speed, like virtio.
    pub speed_mbps: Option<u64>,
    /// PCI Express: GT/s per lane, and number of lanes.
    pub pcie: Option<(f64, u32)>,
    /// Channels in use, and the maximum.
    pub queues: (u32, u32),
    /// Size of the receive ring and of the transmit ring, which is also their maximum.
    pub ring: u32,
    /// MTU, bytes.
    pub mtu: u32,
    /// Name of the interrupts, with `{}` in place of the queue number.
    pub action: &'static str,
}

/// Packets that a NIC of a synthetic host has received. It has sent as many packets.
const PACKETS: u64 = 5_000_000_000;
/// Number of interrupts of each queue of a NIC.
const INTERRUPTS: u64 = 4_000_000;
/// Name of the interrupt controller of PCI devices.
const MSI: &str = "IR-PCI-MSI";
/// The RSS key of Microsoft's verification suite.
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

impl HostBuilder {
    /// Returns a host with this number of NUMA nodes (sockets), cores per node, and threads per core.
    /// Threads are numbered as Linux does on most machines: the first threads of all cores, then the
    /// second threads.
    #[must_use]
    pub fn new(nodes: u32, cores: u32, threads: u32) -> Self {
        let all_cores = nodes * cores;
        let mut facts = HostFacts {
            kernel: Some("6.12.30".to_owned()),
            distribution: Some("Debian GNU/Linux 13 (trixie)".to_owned()),
            processor_model: Some("A processor".to_owned()),
            uptime_s: Some(100_000),
            memory_bytes: Some(256 << 30),
            huge_pages: Some("madvise".to_owned()),
            huge_page_defrag: Some("madvise".to_owned()),
            page_bytes: 4096,
            ..HostFacts::default()
        };
        for number in 0..all_cores * threads {
            let core = number % all_cores;
            let siblings = (0..threads).map(|thread| core + thread * all_cores).collect();
            facts.processors.push(Processor {
                number,
                node: core / cores,
                package: core / cores,
                core: core % cores,
                siblings,
                time: Some(ProcessorTime { total: 10_000_000, idle: 9_000_000, softirq: 200_000, steal: 0 }),
                ..Processor::default()
            });
            facts.softnet.push(Softnet { processor: number, processed: 100_000_000, ..Softnet::default() });
        }
        for number in 0..nodes {
            let processors = facts.processors_of(number);
            let allocations =
                NodeAllocations { hit: 100_000_000, local: 100_000_000, ..NodeAllocations::default() };
            facts.nodes.push(Node { number, processors, allocations: Some(allocations) });
        }
        facts.interfaces.push(Interface {
            name: "lo".to_owned(),
            index: Some(1),
            kind: InterfaceKind::Loopback,
            up: true,
            mtu: Some(65_536),
            receive_queues: vec![ReceiveQueue::default()],
            transmit_queues: vec![TransmitQueue { has_xps: true, ..TransmitQueue::default() }],
            qdiscs: vec![qdisc("noqueue", "0:", "root", 0)],
            ..Interface::default()
        });
        let mut builder = Self { facts, next_interrupt: 64 };
        for (path, value) in DEFAULTS {
            builder = builder.sysctl(path, value);
        }
        for (name, value) in [
            ("Ip.InReceives", PACKETS),
            ("Tcp.InSegs", PACKETS),
            ("Tcp.OutSegs", PACKETS),
            ("Tcp.RetransSegs", 1000),
            ("TcpExt.TCPBacklogDrop", 0),
            ("Udp.InDatagrams", 10_000_000),
            ("Udp.RcvbufErrors", 0),
            ("Sockstat.TCP.mem", 1000),
            ("Vmstat.oom_kill", 0),
            ("Arp.entries", 0),
            ("Arp.table_fulls", 0),
        ] {
            builder.facts.counters.insert(name.to_owned(), value);
        }
        // These hosts have no IPv6.
        for (_, group, names) in EVERY_LINUX.iter().filter(|(_, group, _)| *group != "Snmp6") {
            for name in *names {
                builder.facts.counters.entry(format!("{group}.{name}")).or_insert(0);
            }
        }
        builder
    }

    /// Sets a sysctl, by its path below `/proc/sys`.
    #[must_use]
    pub fn sysctl(mut self, path: &str, value: &str) -> Self {
        self.facts.sysctls.insert(path.to_owned(), value.to_owned());
        self
    }

    #[must_use]
    pub fn virtual_machine(mut self) -> Self {
        self.facts.virtual_machine = true;
        self
    }

    /// Gives the processors a frequency driver, a governor, and idle states with exit latencies of 0, 2 and
    /// 10 µs.
    #[must_use]
    pub fn power(mut self, driver: &str, governor: &str) -> Self {
        for processor in &mut self.facts.processors {
            processor.frequency_driver = Some(driver.to_owned());
            processor.governor = Some(governor.to_owned());
            processor.idle_states = [("POLL", 0), ("C1", 2), ("C1E", 10)]
                .iter()
                .zip(0..)
                .map(|((name, latency_us), number)| IdleState {
                    number,
                    name: (*name).to_owned(),
                    latency_us: *latency_us,
                    disabled: false,
                    usage: 1000,
                })
                .collect();
        }
        self
    }

    /// Adds a NIC with one interrupt for each queue, spread over the cores of its node, and with correct XPS
    /// maps and qdiscs.
    #[must_use]
    pub fn nic(mut self, options: &NicOptions) -> Self {
        let mut seen = Vec::new();
        let cores: Vec<u32> = self
            .facts
            .processors
            .iter()
            .filter(|processor| options.node.is_none_or(|node| processor.node == node))
            .filter(|processor| {
                let core = (processor.package, processor.core);
                let is_new = !seen.contains(&core);
                seen.push(core);
                is_new
            })
            .map(|processor| processor.number)
            .collect();
        let (queues, most) = options.queues;
        let core = |queue: u32| cores[queue as usize % cores.len()];
        for queue in 0..queues {
            self.facts.interrupts.push(Interrupt {
                number: self.next_interrupt,
                chip: MSI.to_owned(),
                action: options.action.replace("{}", &queue.to_string()),
                interface: options.name.to_owned(),
                queue: Some(queue),
                receives: true,
                affinity: vec![core(queue)],
                effective: vec![core(queue)],
                served: vec![(core(queue), INTERRUPTS)],
            });
            self.next_interrupt += 1;
        }
        let fast = options.speed_mbps.is_some_and(|speed| speed >= 10_000);
        let mut features = std::collections::BTreeMap::new();
        for name in [
            "rx-checksum",
            "rx-gro",
            "rx-hashing",
            "tx-checksum-ip-generic",
            "tx-generic-segmentation",
            "tx-scatter-gather",
            "tx-tcp-segmentation",
        ] {
            features.insert(name.to_owned(), Feature { on: true, fixed: false });
        }
        features.insert("rx-lro".to_owned(), Feature { on: false, fixed: false });
        let mut qdiscs = Vec::new();
        if queues > 1 {
            qdiscs.push(qdisc("mq", "0:", "root", PACKETS));
            let kind = if fast { "fq" } else { "fq_codel" };
            qdiscs.extend(
                (1..=queues)
                    .map(|queue| qdisc(kind, "0:", &format!(":{queue:x}"), PACKETS / u64::from(queues))),
            );
        } else {
            qdiscs.push(qdisc("fq_codel", "0:", "root", PACKETS));
        }
        let statistics = [
            ("rx_packets", PACKETS),
            ("tx_packets", PACKETS),
            ("rx_bytes", PACKETS * 1000),
            ("tx_bytes", PACKETS * 1000),
        ];
        let errors = [
            "collisions",
            "rx_crc_errors",
            "rx_dropped",
            "rx_errors",
            "rx_fifo_errors",
            "rx_frame_errors",
            "rx_length_errors",
            "rx_missed_errors",
            "rx_over_errors",
            "tx_aborted_errors",
            "tx_carrier_errors",
            "tx_dropped",
            "tx_errors",
            "tx_fifo_errors",
        ];
        let statistics = statistics.into_iter().chain(errors.map(|name| (name, 0)));
        let index = u32::try_from(self.facts.interfaces.len()).unwrap_or(u32::MAX) + 1;
        let mut driver_statistics = std::collections::BTreeMap::new();
        for queue in 0..queues {
            for direction in ["rx", "tx"] {
                driver_statistics.insert(format!("{direction}{queue}_packets"), PACKETS / u64::from(queues));
            }
        }
        // A driver also shows loss counters of 0.
        let row = evenkeel_host::counters::Driver::of(options.driver);
        let loss =
            row.into_iter().flat_map(|row| row.counters.iter().copied().flatten()).find(|(_, meaning)| {
                use evenkeel_host::counters::Meaning::{Driver, Nic, NicAndRing, Ring};
                matches!(meaning, Ring | Nic | NicAndRing | Driver)
            });
        if let Some((pattern, _)) = loss {
            driver_statistics.extend((0..queues).map(|queue| (pattern.replace('#', &queue.to_string()), 0)));
        }
        let mut nic = Interface {
            name: options.name.to_owned(),
            index: Some(index),
            kind: InterfaceKind::Device,
            driver: Some(options.driver.to_owned()),
            bus: Some(options.bus.to_owned()),
            up: true,
            node: options.node,
            pcie: options.pcie.map(|(speed_gts, width)| PcieLink {
                speed_gts,
                width,
                max_speed_gts: Some(speed_gts),
                max_width: Some(width),
            }),
            speed_bps: options.speed_mbps.map(|speed| speed * 1_000_000),
            supported_bps: options.speed_mbps.map(|speed| speed * 1_000_000),
            duplex: options.speed_mbps.map(|_| "full".to_owned()),
            mtu: Some(options.mtu),
            tx_queue_len: Some(1000),
            carrier_changes: Some(2),
            napi_defer_hard_irqs: Some(0),
            gro_flush_timeout_ns: Some(0),
            packet_sizes: Some(PacketSizes {
                gso: 185_000,
                gso_ipv4: 185_000,
                gro: 185_000,
                gro_ipv4: 185_000,
                tso: Some(524_280),
            }),
            channels: Some(Channels { combined: queues, combined_max: most, ..Channels::default() }),
            rings: Some(Rings {
                rx: options.ring,
                rx_max: options.ring,
                tx: options.ring,
                tx_max: options.ring,
            }),
            coalescing: Some(Coalescing {
                rx_usecs: 8,
                rx_frames: 64,
                adaptive_rx: true,
                ..Coalescing::default()
            }),
            features,
            rss: (queues > 1).then(|| Rss {
                indirection: (0..128).map(|entry| entry % queues).collect(),
                key: KEY.to_vec(),
                function: "toeplitz".to_owned(),
                hash_fields: [("tcp4", "sdfn"), ("tcp6", "sdfn"), ("udp4", "sd"), ("udp6", "sd")]
                    .map(|(flow, fields)| (flow.to_owned(), fields.to_owned()))
                    .into(),
            }),
            receive_queues: vec![ReceiveQueue::default(); queues as usize],
            transmit_queues: Vec::new(),
            qdiscs,
            statistics: statistics.map(|(name, value)| (name.to_owned(), value)).collect(),
            driver_statistics,
            ..Interface::default()
        };
        for queue in 0..queues {
            let own = self
                .facts
                .processors
                .iter()
                .map(|processor| processor.number)
                .filter(|number| number % queues == queue);
            nic.transmit_queues.push(TransmitQueue {
                has_xps: true,
                xps_processors: if queues > 1 { own.collect() } else { Vec::new() },
                bql_limit_max: Some(1_879_048_192),
                bql_limit: Some(100_000),
                ..TransmitQueue::default()
            });
        }
        self.facts.interfaces.push(nic);
        self
    }

    #[must_use]
    pub fn build(mut self) -> HostFacts {
        self.facts.interfaces.sort_by(|one, other| one.name.cmp(&other.name));
        self.facts.interrupts.sort_by_key(|interrupt| interrupt.number);
        complete(&mut self.facts);
        self.facts
    }
}

#[must_use]
pub fn qdisc(kind: &str, handle: &str, parent: &str, packets: u64) -> QdiscFacts {
    QdiscFacts {
        kind: kind.to_owned(),
        handle: handle.to_owned(),
        parent: parent.to_owned(),
        packets,
        bytes: packets * 1000,
        ..QdiscFacts::default()
    }
}

/// Sysctls of a host that is tuned for a link of 100 Gbit/s and a round trip of a few milliseconds.
const DEFAULTS: &[(&str, &str)] = &[
    ("net/core/default_qdisc", "fq"),
    ("net/core/dev_weight", "64"),
    ("net/core/netdev_budget", "300"),
    ("net/core/netdev_budget_usecs", "8000"),
    ("net/core/netdev_max_backlog", "250000"),
    ("net/core/rmem_default", "212992"),
    ("net/core/rmem_max", "134217728"),
    ("net/core/rps_sock_flow_entries", "0"),
    ("net/core/somaxconn", "4096"),
    ("net/core/wmem_default", "212992"),
    ("net/core/wmem_max", "134217728"),
    ("net/ipv4/ip_forward", "0"),
    ("net/ipv4/ip_no_pmtu_disc", "0"),
    ("net/ipv4/neigh/default/gc_thresh3", "1024"),
    ("net/ipv4/tcp_abort_on_overflow", "0"),
    ("net/ipv4/tcp_adv_win_scale", "1"),
    ("net/ipv4/tcp_congestion_control", "cubic"),
    ("net/ipv4/tcp_dsack", "1"),
    ("net/ipv4/tcp_early_demux", "1"),
    ("net/ipv4/tcp_early_retrans", "3"),
    ("net/ipv4/tcp_frto", "2"),
    ("net/ipv4/tcp_limit_output_bytes", "4194304"),
    ("net/ipv4/tcp_max_orphans", "262144"),
    ("net/ipv4/tcp_mem", "3088902 4118536 6177804"),
    ("net/ipv4/tcp_moderate_rcvbuf", "1"),
    ("net/ipv4/tcp_mtu_probing", "1"),
    ("net/ipv4/tcp_no_metrics_save", "1"),
    ("net/ipv4/tcp_recovery", "1"),
    ("net/ipv4/tcp_retries2", "15"),
    ("net/ipv4/tcp_rmem", "4096 131072 134217728"),
    ("net/ipv4/tcp_sack", "1"),
    ("net/ipv4/tcp_slow_start_after_idle", "1"),
    ("net/ipv4/tcp_timestamps", "1"),
    ("net/ipv4/tcp_window_scaling", "1"),
    ("net/ipv4/tcp_wmem", "4096 65536 134217728"),
    ("net/ipv4/udp_early_demux", "1"),
    ("net/ipv4/udp_mem", "6177804 8237073 12355608"),
    ("vm/zone_reclaim_mode", "0"),
];
