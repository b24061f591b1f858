//! Faults of the host's stack and hardware (memory, power, connections, IP, PCI slot), and of the settings of
//! offloads and polling.

use evenkeel_model::host::{
    BondFacts, HostFacts, Interface, InterfaceKind, NodeAllocations, PacketSizes, PortUse, SocketFacts,
    SocketKind, TcpFacts,
};
use evenkeel_synthetic::HostBuilder;

use crate::faults::{Fault, count, fault, feature, nic, set};
use crate::hosts::{self, connection, process};

/// Creates a virtual machine with more CPUs than its NIC has queues.
fn large_virtual_machine() -> HostFacts {
    HostBuilder::new(1, 16, 1).virtual_machine().nic(&hosts::VIRTIO).build()
}

/// Adds a connection of a server that answers small requests.
fn answers_requests(facts: &mut HostFacts, name: &str) {
    process(facts, 6379, name, &[]);
    let remote = hosts::free_peer(facts, "10.0.0.1:6379", "10.0.0.9:40001");
    facts.sockets.push(SocketFacts {
        local: "10.0.0.1:6379".to_owned(),
        remote,
        process: Some(6379),
        tcp: Some(TcpFacts {
            rtt_us: 90,
            min_rtt_us: 80,
            mss: 1448,
            bytes_acked: 50_000_000,
            bytes_received: 9_000_000,
            segments_out: 500_000,
            segments_in: 500_000,
            ..TcpFacts::default()
        }),
        ..SocketFacts::default()
    });
}

fn bond(facts: &mut HostFacts, mode: &str) {
    facts.interfaces.push(Interface {
        name: "bond0".to_owned(),
        index: Some(80),
        kind: InterfaceKind::Bond,
        up: true,
        mtu: Some(1500),
        lower: vec!["lan1".to_owned(), "wan".to_owned()],
        bond: Some(BondFacts { mode: mode.to_owned(), hash_policy: "layer3+4".to_owned() }),
        statistics: hosts::counters(),
        ..Interface::default()
    });
}

pub const FAULTS: &[Fault] = &[
    fault("a GRO timer without deferred interrupts", hosts::all, "gro-timer-alone", &[], |facts| {
        nic(facts).gro_flush_timeout_ns = Some(200_000);
    }),
    fault("deferred interrupts without a timer", hosts::all, "gro-timer-alone", &[], |facts| {
        nic(facts).napi_defer_hard_irqs = Some(10);
    }),
    fault("busy polling for 5 ms", hosts::all, "busy-poll-odd", &[], |facts| {
        set(facts, "net/core/busy_poll", "5000");
        set(facts, "net/core/busy_read", "5000");
    }),
    fault("busy polling without sockets that poll", hosts::all, "busy-poll-odd", &[], |facts| {
        set(facts, "net/core/busy_poll", "50");
        set(facts, "net/core/busy_read", "0");
    }),
    fault("drops of the flow limit", hosts::all, "flow-limit", &[], |facts| {
        facts.softnet[0].flow_limited = 900_000;
        set(facts, "net/core/flow_limit_cpu_bitmap", "ff");
    }),
    fault("a memory node that was full", hosts::two_nodes, "memory-remote-node", &[], |facts| {
        facts.nodes[0].allocations = Some(NodeAllocations {
            hit: 100_000_000,
            foreign: 40_000_000,
            local: 100_000_000,
            ..NodeAllocations::default()
        });
    }),
    fault(
        "processes that work on another node's memory",
        hosts::two_nodes,
        "memory-remote-node",
        &[],
        |facts| {
            facts.nodes[1].allocations = Some(NodeAllocations {
                hit: 100_000_000,
                local: 40_000_000,
                other: 60_000_000,
                ..NodeAllocations::default()
            });
        },
    ),
    fault(
        "a process with its memory on the other node",
        || vec![hosts::HOSTS[0]],
        "app-remote-memory",
        &[],
        |facts| {
            process(facts, 7000, "reader", &[39]);
            facts.processes.last_mut().unwrap().memory_nodes = vec![0];
            connection(facts, "10.0.0.1:443", "10.0.0.9:5555", 500, 1000, 7000);
        },
    ),
    fault(
        "memory is balanced under pinned processes",
        || vec![hosts::HOSTS[0]],
        "numa-balancing",
        &[],
        |facts| set(facts, "kernel/numa_balancing", "1"),
    ),
    fault("memory moves all the time", hosts::two_nodes, "numa-balancing", &[], |facts| {
        set(facts, "kernel/numa_balancing", "1");
        count(facts, "Vmstat.numa_pages_migrated", 900_000_000);
    }),
    fault("allocations that wait for huge pages", hosts::all, "huge-pages", &[], |facts| {
        facts.huge_pages = Some("always".to_owned());
        count(facts, "Vmstat.compact_stall", 3_000_000);
    }),
    fault("huge pages on a server of small answers", hosts::all, "huge-pages", &[], |facts| {
        facts.huge_pages = Some("always".to_owned());
        answers_requests(facts, "redis-server");
    }),
    fault("a full SYN queue", hosts::all, "syn-queue-full", &[], |facts| {
        count(facts, "TcpExt.TCPReqQFullDrop", 50_000);
        count(facts, "Tcp.PassiveOpens", 2_000_000);
        set(facts, "net/ipv4/tcp_max_syn_backlog", "128");
        set(facts, "net/ipv4/tcp_syncookies", "0");
    }),
    fault("too many connections in TIME_WAIT", hosts::all, "time-wait-overflow", &[], |facts| {
        count(facts, "TcpExt.TCPTimeWaitOverflow", 70_000);
        set(facts, "net/ipv4/tcp_max_tw_buckets", "4096");
    }),
    fault("ports that run out", hosts::all, "ports-exhausted", &[], |facts| {
        set(facts, "net/ipv4/ip_local_port_range", "32768 60999");
        facts.port_use = Some(PortUse {
            local: "10.0.0.1".to_owned(),
            remote: "10.0.0.9:5432".to_owned(),
            connections: 27_900,
        });
    }),
    fault("ports in TIME_WAIT", hosts::all, "ports-exhausted", &[], |facts| {
        set(facts, "net/ipv4/ip_local_port_range", "32768 60999");
        set(facts, "net/ipv4/tcp_tw_reuse", "2");
        count(facts, "Sockstat.TCP.tw", 27_000);
    }),
    fault("fragments without memory", hosts::all, "fragments-lost", &[], |facts| {
        count(facts, "Ip.ReasmReqds", 3_000_000);
        count(facts, "Ip.ReasmFails", 400_000);
        set(facts, "net/ipv4/ipfrag_high_thresh", "262144");
    }),
    fault("asymmetric routes with a strict filter", hosts::all, "reverse-path-drops", &[], |facts| {
        count(facts, "TcpExt.IPReversePathFilter", 2_000_000);
        set(facts, "net/ipv4/conf/all/rp_filter", "1");
    }),
    fault("BBR without pacing", hosts::fast, "bbr-without-fq", &[], |facts| {
        facts.kernel = Some("4.9.0-19-amd64".to_owned());
        set(facts, "net/ipv4/tcp_congestion_control", "bbr");
        for qdisc in nic(facts).qdiscs.iter_mut().skip(1) {
            "pfifo_fast".clone_into(&mut qdisc.kind);
        }
    }),
    fault("TSO for IPv4 alone", hosts::all, "tso6-off", &[], |facts| {
        feature(facts, "tx-tcp6-segmentation", false)
    }),
    fault(
        "GRO in hardware off",
        || vec![hosts::HOSTS[4]],
        "hardware-gro-off",
        &[],
        |facts| feature(facts, "rx-gro-hw", false),
    ),
    fault("packets of 64 KB at 100 Gbit/s", hosts::very_fast, "big-tcp-off", &[], |facts| {
        let size = 65_536;
        nic(facts).packet_sizes =
            Some(PacketSizes { gso: size, gso_ipv4: size, gro: size, gro_ipv4: size, tso: Some(524_280) });
    }),
    fault("LRO on a port of a bridge", hosts::all, "lro-forwards", &[], |facts| {
        feature(facts, "rx-lro", true);
        let port = nic(facts).name.clone();
        let mtu = nic(facts).mtu;
        facts.interfaces.push(Interface {
            name: "br0".to_owned(),
            index: Some(90),
            kind: InterfaceKind::Bridge,
            up: true,
            mtu,
            lower: vec![port],
            statistics: hosts::counters(),
            ..Interface::default()
        });
    }),
    fault("a transmit ring of 64", hosts::fast, "tx-ring-short", &[], |facts| {
        nic(facts).rings.as_mut().unwrap().tx = 64
    }),
    fault(
        "RPS to the interrupt's own processor",
        hosts::all,
        "rps-one-processor",
        &["rps-redundant"],
        |facts| {
            let name = nic(facts).name.clone();
            let own: Vec<u32> = facts.interrupts_of(&name).map(|interrupt| interrupt.effective[0]).collect();
            for (queue, processor) in nic(facts).receive_queues.iter_mut().zip(own) {
                queue.rps = vec![processor];
            }
        },
    ),
    fault(
        "RPS to one other processor",
        || vec![("a virtual machine of 16 processors with 4 queues", large_virtual_machine)],
        "rps-one-processor",
        &["softirq-one-processor"],
        |facts| {
            nic(facts).receive_queues.iter_mut().for_each(|queue| queue.rps = vec![9]);
            let time = facts.processors[9].time.as_mut().unwrap();
            (time.softirq, time.idle) = (6_000_000, 3_000_000);
        },
    ),
    fault(
        "fewer queues than processors",
        || vec![("a virtual machine of 16 processors with 4 queues", large_virtual_machine)],
        "rps-missing",
        &[],
        |facts| {
            for processor in facts.processors.iter_mut().take(4) {
                let time = processor.time.as_mut().unwrap();
                (time.softirq, time.idle) = (4_500_000, 5_000_000);
            }
        },
    ),
    fault(
        "the cloud's allowances of connections and link-local packets",
        hosts::all,
        "cloud-allowance",
        &[],
        |facts| {
            for name in ["conntrack_allowance_exceeded", "linklocal_allowance_exceeded"] {
                nic(facts).driver_statistics.insert(name.to_owned(), 300_000);
            }
        },
    ),
    fault(
        "a virtual function that carries nothing",
        || vec![("a virtual machine of 16 processors with 4 queues", large_virtual_machine)],
        "vf-unused",
        &[],
        |facts| {
            nic(facts).driver_statistics.insert("vf_rx_packets".to_owned(), 900_000);
            nic(facts).driver_statistics.insert("vf_tx_packets".to_owned(), 0);
        },
    ),
    fault(
        "memory too slow for the NIC",
        || vec![hosts::HOSTS[0]],
        "pcie-stalled",
        &["pause-sent"],
        |facts| {
            nic(facts).driver_statistics.insert("outbound_pci_stalled_wr_events".to_owned(), 9_000_000);
            nic(facts).driver_statistics.insert("tx_pause_ctrl_phy".to_owned(), 900_000);
        },
    ),
    fault("packets that race for an entry", hosts::all, "conntrack-races", &[], |facts| {
        count(facts, "Conntrack.insert_failed", 400_000)
    }),
    fault("a budget of 4,000 packets", hosts::all, "budget-large", &[], |facts| {
        set(facts, "net/core/netdev_budget", "4000")
    }),
    fault("interrupts that wait under small requests", hosts::fast, "interrupts-late", &[], |facts| {
        let coalescing = nic(facts).coalescing.as_mut().unwrap();
        (coalescing.rx_usecs, coalescing.adaptive_rx) = (64, false);
        answers_requests(facts, "cache");
    }),
    fault(
        "two busy queues of many",
        hosts::all,
        "queues-few",
        &["rss-table-narrow", "xps-remote", "queues-many"],
        |facts| {
            let name = nic(facts).name.clone();
            let kept: Vec<u32> =
                facts.interrupts_of(&name).map(|interrupt| interrupt.number).take(2).collect();
            let first: Vec<u32> =
                facts.interrupts_of(&name).map(|interrupt| interrupt.effective[0]).take(2).collect();
            facts
                .interrupts
                .retain(|interrupt| interrupt.interface != name || kept.contains(&interrupt.number));
            for processor in first {
                let at = facts.processors.iter().position(|other| other.number == processor).unwrap();
                let time = facts.processors[at].time.as_mut().unwrap();
                (time.softirq, time.idle) = (4_500_000, 5_000_000);
            }
            let nic = nic(facts);
            nic.channels.as_mut().unwrap().combined = 2;
            nic.receive_queues.truncate(2);
            nic.rss = None;
            nic.driver_statistics.clear();
        },
    ),
    fault(
        "small reads over PCI Express",
        || vec![hosts::HOSTS[0]],
        "read-request-small",
        &[],
        |facts| nic(facts).max_read_request = Some(512),
    ),
    fault(
        "completions as they are on a full bus",
        || vec![hosts::HOSTS[0]],
        "cqe-compression-off",
        &["rx-ring-drops"],
        |facts| {
            nic(facts).private_flags.insert("rx_cqe_compress".to_owned(), false);
            nic(facts).driver_statistics.insert("rx_discards_phy".to_owned(), 9_000_000);
        },
    ),
    fault(
        "two versions of firmware",
        || vec![hosts::HOSTS[7]],
        "firmware-differs",
        &[],
        |facts| {
            let ports = facts.interfaces.iter_mut().filter(|port| port.kind == InterfaceKind::Device);
            for (port, version) in ports.zip(["1.63", "2.17"]) {
                port.firmware = Some(version.to_owned());
            }
        },
    ),
    fault(
        "the processor prefers to save power",
        || vec![hosts::HOSTS[0], hosts::HOSTS[2], hosts::HOSTS[3]],
        "governor",
        &[],
        |facts| {
            for processor in &mut facts.processors {
                processor.governor = Some("powersave".to_owned());
                processor.energy_preference = Some("balance_power".to_owned());
            }
        },
    ),
    fault("deep idleness under small requests", hosts::fast, "idle-latency", &[], |facts| {
        for processor in &mut facts.processors {
            let state = &mut processor.idle_states[2];
            "C6".clone_into(&mut state.name);
            (state.latency_us, state.usage) = (133, 900_000);
        }
        answers_requests(facts, "cache");
    }),
    fault(
        "a watchdog on isolated processors",
        || vec![hosts::HOSTS[0], hosts::HOSTS[2]],
        "nmi-watchdog",
        &[],
        |facts| {
            facts.processors.last_mut().unwrap().isolated = true;
            set(facts, "kernel/nmi_watchdog", "1");
        },
    ),
    fault("no memory for receive buffers", hosts::all, "rx-buffers-missing", &[], |facts| {
        nic(facts).driver_statistics.insert("rx_alloc_fail".to_owned(), 900_000);
        set(facts, "vm/min_free_kbytes", "8192");
    }),
    fault(
        "a bond without one of its ports",
        || vec![hosts::HOSTS[7]],
        "bond-ports",
        &[],
        |facts| {
            bond(facts, "802.3ad");
            facts.interfaces.iter_mut().find(|port| port.name == "wan").unwrap().up = false;
        },
    ),
    fault(
        "a round-robin bond",
        || vec![hosts::HOSTS[7]],
        "bond-round-robin",
        &[],
        |facts| {
            bond(facts, "balance-rr");
            count(facts, "TcpExt.TCPOFOQueue", 900_000_000);
        },
    ),
    fault("a tunnel without its offload", hosts::all, "tunnel-offload-off", &[], |facts| {
        feature(facts, "tx-udp_tnl-segmentation", false);
        facts.interfaces.push(Interface {
            name: "vxlan100".to_owned(),
            index: Some(90),
            kind: InterfaceKind::Virtual,
            up: true,
            mtu: Some(1450),
            statistics: hosts::counters(),
            ..Interface::default()
        });
    }),
    fault("segments with a wrong checksum", hosts::all, "checksum-errors", &[], |facts| {
        count(facts, "Tcp.InCsumErrors", 900_000);
    }),
    fault("datagrams beyond the send buffer", hosts::all, "udp-send-buffer", &[], |facts| {
        count(facts, "Udp.SndbufErrors", 900_000);
    }),
    fault("a reader that keeps its windows closed", hosts::all, "windows-closed", &[], |facts| {
        count(facts, "TcpExt.TCPToZeroWindowAdv", 900_000_000);
    }),
    fault(
        "peers with small windows",
        || vec![hosts::HOSTS[0]],
        "peer-window",
        &[],
        |facts| {
            connection(facts, "10.0.0.1:443", "10.0.0.9:5555", 200, 1000, 4000);
            let tcp = facts.sockets.last_mut().unwrap().tcp.as_mut().unwrap();
            (tcp.bytes_acked, tcp.busy_us, tcp.receiver_limited_us) = (50_000_000, 9_000_000, 6_000_000);
        },
    ),
    fault(
        "a program that sets a small send buffer",
        || vec![hosts::HOSTS[0]],
        "socket-buffer-set",
        &["socket-limits"],
        |facts| {
            set(facts, "net/core/wmem_max", "212992");
            connection(facts, "10.0.0.1:443", "10.0.0.9:5555", 200, 1000, 4000);
            let socket = facts.sockets.last_mut().unwrap();
            socket.send_buffer = Some(425_984);
            let tcp = socket.tcp.as_mut().unwrap();
            (tcp.bytes_acked, tcp.busy_us, tcp.sender_limited_us) = (50_000_000, 9_000_000, 6_000_000);
        },
    ),
    fault("orphans at their limit", hosts::all, "orphans-many", &[], |facts| {
        set(facts, "net/ipv4/tcp_max_orphans", "8192");
        count(facts, "Sockstat.TCP.orphan", 8100);
    }),
    fault("destinations that do not answer", hosts::all, "connects-repeated", &[], |facts| {
        count(facts, "Tcp.ActiveOpens", 1_000_000);
        count(facts, "TcpExt.TCPSynRetrans", 400_000);
    }),
    fault("a path that reorders", hosts::all, "reordering", &[], |facts| {
        count(facts, "TcpExt.TCPSACKReorder", 900_000_000);
    }),
    fault("segments with old timestamps", hosts::all, "timestamps-refused", &[], |facts| {
        count(facts, "TcpExt.PAWSEstab", 900_000_000);
    }),
    fault("packets that a NIC does not send", hosts::all, "tx-drops", &[], |facts| {
        nic(facts).statistics.insert("tx_dropped".to_owned(), 900_000_000);
    }),
    fault("a guest that does not fetch its packets", hosts::all, "virtual-drops", &[], |facts| {
        facts.interfaces.push(Interface {
            name: "vnet3".to_owned(),
            index: Some(91),
            driver: Some("tun".to_owned()),
            up: true,
            mtu: Some(1500),
            statistics: [
                ("rx_packets", 800_000_000),
                ("tx_packets", 900_000_000),
                ("rx_dropped", 0),
                ("tx_dropped", 80_000_000),
            ]
            .map(|(name, n)| (name.to_owned(), n))
            .into(),
            ..Interface::default()
        });
    }),
    fault("damaged transfers on the bus", hosts::all, "pcie-errors", &[], |facts| {
        nic(facts).driver_statistics.insert("rx_pci_signal_integrity".to_owned(), 81_204);
    }),
    fault("jumbo frames for a small MTU", hosts::all, "frames-too-long", &[], |facts| {
        nic(facts).driver_statistics.insert("rx_oversize_pkts_phy".to_owned(), 900_000_000);
    }),
    fault("the older receive path", hosts::all, "legacy-receive", &[], |facts| {
        nic(facts).private_flags.insert("legacy-rx".to_owned(), true);
    }),
    fault(
        "a receive path without striding",
        || vec![hosts::HOSTS[0]],
        "legacy-receive",
        &[],
        |facts| {
            nic(facts).private_flags.insert("rx_striding_rq".to_owned(), false);
        },
    ),
    fault("BPF in the interpreter", hosts::all, "sysctl-harmful", &[], |facts| {
        set(facts, "net/core/bpf_jit_enable", "0");
    }),
    fault("a NIC that copies what it sends", hosts::all, "feature-odd", &[], |facts| {
        feature(facts, "tx-nocache-copy", true);
    }),
    fault("packets without a route", hosts::all, "no-route", &[], |facts| {
        count(facts, "IpExt.InNoRoutes", 90_000_000);
    }),
    fault("packets that IP drops", hosts::all, "ip-discards", &[], |facts| {
        count(facts, "Ip.OutDiscards", 90_000_000);
    }),
    fault("a routing loop", hosts::all, "ttl-expired", &[], |facts| {
        count(facts, "Ip.ForwDatagrams", 90_000_000);
        count(facts, "Ip.InHdrErrors", 900_000);
    }),
    fault("packets that are cut short", hosts::all, "ip-header-errors", &[], |facts| {
        count(facts, "IpExt.InTruncatedPkts", 90_000_000);
    }),
    fault("datagrams that a filter refuses", hosts::all, "udp-errors", &[], |facts| {
        count(facts, "Udp.InErrors", 900_000_000);
    }),
    fault("an unread raw socket", hosts::all, "raw-receive-buffer", &[], |facts| {
        process(facts, 991, "vrrp", &[]);
        facts.sockets.push(SocketFacts {
            kind: SocketKind::Raw,
            local: "0.0.0.0:112".to_owned(),
            drops: 480_000,
            process: Some(991),
            ..SocketFacts::default()
        });
    }),
    fault("requests dropped without SYN cookies", hosts::all, "syn-queue-full", &[], |facts| {
        count(facts, "TcpExt.ListenDrops", 600_000);
        count(facts, "Tcp.PassiveOpens", 2_000_000);
        set(facts, "net/ipv4/tcp_max_syn_backlog", "128");
        set(facts, "net/ipv4/tcp_syncookies", "0");
    }),
    fault("packets in the memory reserve", hosts::all, "memory-reclaim", &[], |facts| {
        count(facts, "TcpExt.PFMemallocDrop", 900_000_000);
    }),
    fault("datagrams for a service that is down", hosts::all, "udp-no-port", &[], |facts| {
        count(facts, "Udp.NoPorts", 900_000_000);
    }),
    fault("datagrams larger than the MTU", hosts::all, "fragments-made", &[], |facts| {
        count(facts, "Ip.FragCreates", 900_000_000);
    }),
    fault("connections seen in one direction", hosts::all, "conntrack-invalid", &[], |facts| {
        count(facts, "Conntrack.invalid", 900_000_000);
    }),
    fault("long chains of tracked connections", hosts::all, "conntrack-buckets", &[], |facts| {
        set(facts, "net/netfilter/nf_conntrack_buckets", "16384");
        set(facts, "net/netfilter/nf_conntrack_count", "400000");
        set(facts, "net/netfilter/nf_conntrack_max", "1048576");
    }),
    fault("neighbours that do not answer", hosts::all, "neighbours-unresolved", &[], |facts| {
        count(facts, "Arp.unresolved_discards", 90_000_000);
    }),
    fault("a full neighbour table of IPv6", hosts::all, "neighbours-full", &[], |facts| {
        count(facts, "Ndisc.table_fulls", 90_000);
        set(facts, "net/ipv6/neigh/default/gc_thresh3", "1024");
    }),
    fault("allocations that wait for memory", hosts::all, "memory-reclaim", &[], |facts| {
        count(facts, "Vmstat.allocstall_normal", 900_000_000);
    }),
    fault("processors without time", hosts::all, "processors-full", &[], |facts| {
        facts.processors.iter_mut().for_each(|processor| processor.time.as_mut().unwrap().idle = 0);
    }),
    fault(
        "RDMA without flow control",
        || vec![hosts::HOSTS[0]],
        "rdma-lossy",
        &["rx-ring-drops"],
        |facts| {
            let counters = &mut nic(facts).driver_statistics;
            counters.insert("rx_vport_rdma_unicast_packets".to_owned(), 50_000_000_000);
            counters.insert("rx_discards_phy".to_owned(), 900_000);
        },
    ),
    fault("a network with a smaller MTU", hosts::all, "mtu-above-path", &[], |facts| {
        count(facts, "Icmp.InDestUnreachs", 400_000);
        let mtu = u64::from(nic(facts).mtu.unwrap());
        process(facts, 7070, "proxy", &[]);
        for peer in 1..251 {
            connection(facts, "10.0.0.1:443", &format!("10.2.0.{peer}:5555"), 900, 1000, 7070);
            let tcp = facts.sockets.last_mut().unwrap().tcp.as_mut().unwrap();
            (tcp.pmtu, tcp.mss) = (mtu - 40, mtu - 92);
        }
    }),
    fault("a NIC that its driver resets", hosts::all, "tx-timeouts", &[], |facts| {
        nic(facts).driver_statistics.insert("tx_timeout_count".to_owned(), 31);
    }),
];
