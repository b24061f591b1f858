//! Faults, each with the hosts that can have the fault and the rule that reports it.

use evenkeel_model::change::{Channels, Knob, Value};
use evenkeel_model::host::{
    Coalescing, Feature, HostFacts, Interface, SocketFacts, SocketKind, TransmitQueue,
};
use evenkeel_placement::applied;
use evenkeel_synthetic::qdisc;

use crate::hosts::{self, Host, connection, nic_mut, process};

/// A fault: its name, the hosts that can have it, the function that plants it, the rule that reports it,
/// and the other rules that may report it, too.
pub struct Fault {
    pub name: &'static str,
    pub hosts: fn() -> Vec<Host>,
    pub plant: fn(&mut HostFacts),
    pub rule: &'static str,
    pub also: &'static [&'static str],
}

pub const fn fault(
    name: &'static str,
    hosts: fn() -> Vec<Host>,
    rule: &'static str,
    also: &'static [&'static str],
    plant: fn(&mut HostFacts),
) -> Fault {
    Fault { name, hosts, plant, rule, also }
}

pub fn nic(facts: &mut HostFacts) -> &mut Interface {
    nic_mut(facts).unwrap()
}

/// Sets the CPU that each interrupt of the first NIC is directed to and was served by.
pub fn place(facts: &mut HostFacts, to: impl Fn(usize) -> u32) {
    let name = nic(facts).name.clone();
    for (at, interrupt) in
        facts.interrupts.iter_mut().filter(|interrupt| interrupt.interface == name).enumerate()
    {
        let total = interrupt.total();
        (interrupt.affinity, interrupt.effective) = (vec![to(at)], vec![to(at)]);
        interrupt.served = vec![(to(at), total)];
    }
}

/// Returns the CPUs of nodes other than the first NIC's node.
pub fn elsewhere(facts: &mut HostFacts) -> Vec<u32> {
    let node = nic(facts).node.unwrap();
    facts
        .processors
        .iter()
        .filter(|processor| processor.node != node)
        .map(|processor| processor.number)
        .collect()
}

pub fn feature(facts: &mut HostFacts, name: &str, on: bool) {
    nic(facts).features.insert(name.to_owned(), Feature { on, fixed: false });
}

pub fn set(facts: &mut HostFacts, path: &str, value: &str) {
    facts.sysctls.insert(path.to_owned(), value.to_owned());
}

pub fn count(facts: &mut HostFacts, name: &str, value: u64) {
    facts.counters.insert(name.to_owned(), value);
}

fn drop_in_driver(facts: &mut HostFacts, packets: u64) {
    let nic = nic(facts);
    let name = match nic.driver.as_deref().unwrap() {
        "mlx5_core" => "rx_out_of_buffer",
        "ixgbe" => "rx_no_dma_resources",
        "i40e" | "ice" => "rx_dropped",
        "bnxt_en" => "rx_total_discard_pkts",
        "virtio_net" => "rx0_drops",
        _ => "rx_queue_0_drops",
    };
    // Simulate a version of the driver that shows no other loss counter.
    nic.driver_statistics.retain(|_, value| *value > 0);
    nic.driver_statistics.insert(name.to_owned(), packets);
}

/// Reduces the first NIC to one queue and one interrupt.
pub fn single_queue(facts: &mut HostFacts) {
    let nic = nic(facts);
    nic.channels.as_mut().unwrap().combined = 1;
    nic.receive_queues.truncate(1);
    nic.transmit_queues.truncate(1);
    nic.transmit_queues[0].xps_processors.clear();
    nic.rss = None;
    nic.driver_statistics.clear();
    nic.qdiscs.truncate(2);
    let name = nic.name.clone();
    let mut kept = false;
    facts.interrupts.retain(|interrupt| interrupt.interface != name || !std::mem::replace(&mut kept, true));
}

/// Sets the packet counts of queues. The first queue gets the share `per_cent`.
fn skew(facts: &mut HostFacts, direction: &str, per_cent: u64) {
    let nic = nic(facts);
    let queues = nic.channels.unwrap().combined;
    for queue in 0..queues {
        let packets = if queue == 0 { per_cent } else { (100 - per_cent) / u64::from(queues - 1) };
        nic.driver_statistics.insert(format!("{direction}{queue}_packets"), packets * 10_000_000);
    }
}

fn several_queues() -> Vec<Host> {
    hosts::all()
}

fn with_pcie() -> Vec<Host> {
    hosts::fast()
}

pub const FAULTS: &[Fault] = &[
    fault(
        "all interrupts on the other socket",
        hosts::two_nodes,
        "irq-remote-node",
        &["irq-on-application", "irq-smt-twins", "xps-remote"],
        |facts| {
            let away = elsewhere(facts);
            place(facts, |at| away[at % away.len()]);
        },
    ),
    fault(
        "half of the interrupts on the other socket",
        hosts::two_nodes,
        "irq-remote-node",
        &["irq-on-application", "irq-smt-twins", "xps-remote"],
        |facts| {
            let away = elsewhere(facts);
            let own: Vec<u32> = {
                let name = nic(facts).name.clone();
                facts
                    .interrupts
                    .iter()
                    .filter(|interrupt| interrupt.interface == name)
                    .map(|interrupt| interrupt.affinity[0])
                    .collect()
            };
            place(facts, |at| if at % 2 == 0 { away[at % away.len()] } else { own[at] });
        },
    ),
    fault(
        "masks are local, and they fire on the other socket",
        hosts::two_nodes,
        "irq-remote-node",
        &["irq-smt-twins"],
        |facts| {
            let away = elsewhere(facts);
            let name = nic(facts).name.clone();
            for (at, interrupt) in
                facts.interrupts.iter_mut().filter(|interrupt| interrupt.interface == name).enumerate()
            {
                interrupt.served = vec![(away[at % away.len()], 4_000_000)];
                interrupt.effective = vec![away[at % away.len()]];
            }
        },
    ),
    fault(
        "all interrupts on one processor",
        several_queues,
        "irq-one-processor",
        &["irq-on-application", "irq-remote-node"],
        |facts| {
            let node = nic(facts).node;
            let first = facts
                .processors
                .iter()
                .find(|processor| node.is_none_or(|node| processor.node == node))
                .unwrap()
                .number;
            place(facts, |_| first);
        },
    ),
    fault(
        "interrupts allowed everywhere, and all on processor 0",
        hosts::very_fast,
        "irq-one-processor",
        &["irq-remote-node"],
        |facts| {
            place(facts, |_| 0);
            let online: Vec<u32> = facts.processors.iter().map(|processor| processor.number).collect();
            facts.interrupts.iter_mut().for_each(|interrupt| interrupt.affinity = online.clone());
        },
    ),
    fault("interrupts on cores of the application", hosts::very_fast, "irq-on-application", &[], |facts| {
        let node = nic(facts).node.unwrap();
        let first = facts.processors_of(node)[0];
        process(facts, 7000, "reader", &[first, first + 1]);
        connection(facts, "10.0.0.1:443", "10.0.0.9:5555", 500, 9_000_000_000, 7000);
    }),
    fault(
        "the application on the twins of interrupts",
        hosts::very_fast,
        "irq-on-application",
        &[],
        |facts| {
            let node = nic(facts).node.unwrap();
            let twin = facts
                .processors_of(node)
                .into_iter()
                .find(|number| *number as usize >= facts.processors.len() / 2)
                .unwrap();
            process(facts, 7000, "reader", &[twin]);
            connection(facts, "10.0.0.1:443", "10.0.0.9:5555", 500, 9_000_000_000, 7000);
        },
    ),
    fault("the application on the other socket", hosts::two_nodes, "app-remote-node", &[], |facts| {
        let away = elsewhere(facts);
        process(facts, 7000, "writer", &away[..2]);
        connection(facts, "10.0.0.1:443", "10.0.0.9:5555", 500, 9_000_000_000, 7000);
    }),
    fault(
        "interrupts on both threads of cores",
        || vec![hosts::HOSTS[0], hosts::HOSTS[1]],
        "irq-smt-twins",
        &["irq-on-application"],
        |facts| {
            let node = nic(facts).node.unwrap();
            let local = facts.processors_of(node);
            let half = local.len() / 2;
            place(facts, |at| if at % 2 == 0 { local[at / 2] } else { local[half + at / 2] });
        },
    ),
    fault("interrupts on an isolated processor", hosts::all, "irq-on-isolated", &[], |facts| {
        let first = facts.interrupts[0].affinity[0];
        facts.processors.iter_mut().find(|processor| processor.number == first).unwrap().isolated = true;
    }),
    fault("irqbalance runs", hosts::fast, "irqbalance-runs", &[], |facts| {
        process(facts, 812, "irqbalance", &[]);
    }),
    fault(
        "a slot of half the lanes",
        || vec![hosts::HOSTS[0]],
        "pcie-narrow",
        &[],
        |facts| {
            nic(facts).pcie.as_mut().unwrap().width = 8;
        },
    ),
    fault("a slot of an old generation", with_pcie, "pcie-narrow", &[], |facts| {
        let link = nic(facts).pcie.as_mut().unwrap();
        (link.speed_gts, link.width) = (2.5, 4);
    }),
    fault("a short ring with drops", hosts::all, "rx-ring-drops", &[], |facts| {
        let rings = nic(facts).rings.as_mut().unwrap();
        (rings.rx, rings.rx_max) = (rings.rx_max / 8, rings.rx_max);
        drop_in_driver(facts, 8_000_000);
    }),
    fault("drops with the largest ring", hosts::fast, "rx-ring-drops", &[], |facts| {
        drop_in_driver(facts, 8_000_000)
    }),
    fault("missed packets that only the kernel counts", hosts::all, "rx-ring-drops", &[], |facts| {
        nic(facts).driver_statistics.retain(|_, value| *value > 0);
        nic(facts).statistics.insert("rx_missed_errors".to_owned(), 8_000_000);
    }),
    fault(
        "the paper's default ring of 1,024",
        || vec![hosts::HOSTS[1]],
        "rx-ring-short",
        &["mtu-standard"],
        |facts| {
            let nic = nic(facts);
            nic.mtu = Some(1500);
            nic.rings.as_mut().unwrap().rx = 1024;
        },
    ),
    fault("transmit queues that stop", hosts::fast, "tx-ring-stops", &["tx-ring-short"], |facts| {
        let nic = nic(facts);
        nic.rings.as_mut().unwrap().tx = 128;
        for queue in 0..4 {
            nic.driver_statistics.insert(format!("tx{queue}_stopped"), 20_000_000);
        }
    }),
    fault("a millisecond of coalescing", hosts::fast, "coalescing-long", &[], |facts| {
        let nic = nic(facts);
        nic.rings.as_mut().unwrap().rx = 256;
        nic.rings.as_mut().unwrap().rx_max = 256;
        nic.coalescing = Some(Coalescing { rx_usecs: 1000, ..Coalescing::default() });
    }),
    fault("an interrupt for each packet", hosts::fast, "coalescing-off", &[], |facts| {
        nic(facts).coalescing = Some(Coalescing::default());
    }),
    fault("strict translation by the IOMMU", hosts::very_fast, "iommu-translates", &[], |facts| {
        nic(facts).iommu = Some("DMA".to_owned());
    }),
    fault(
        "an emulated NIC",
        || vec![hosts::HOSTS[5]],
        "emulated-nic",
        &[],
        |facts| {
            nic(facts).driver = Some("e1000".to_owned());
        },
    ),
    fault(
        "half duplex",
        || vec![hosts::HOSTS[6]],
        "link-half-duplex",
        &[],
        |facts| {
            nic(facts).duplex = Some("half".to_owned());
        },
    ),
    fault(
        "a tenth of the NIC's speed",
        || vec![hosts::HOSTS[2], hosts::HOSTS[6]],
        "link-slow",
        &[],
        |facts| {
            let nic = nic(facts);
            nic.speed_bps = nic.supported_bps.map(|speed| speed / 10);
        },
    ),
    fault("a link that comes and goes", hosts::all, "link-flaps", &[], |facts| {
        nic(facts).carrier_changes = Some(250)
    }),
    fault("damaged packets", hosts::all, "wire-errors", &[], |facts| {
        nic(facts).statistics.insert("rx_crc_errors".to_owned(), 500_000);
    }),
    fault(
        "pause frames sent",
        || vec![hosts::HOSTS[0]],
        "pause-sent",
        &[],
        |facts| {
            nic(facts).driver_statistics.insert("tx_pause_ctrl_phy".to_owned(), 900_000);
        },
    ),
    fault("1,500 bytes at 100 Gbit/s", hosts::very_fast, "mtu-standard", &[], |facts| {
        nic(facts).mtu = Some(1500)
    }),
    fault(
        "a VLAN with a larger MTU than its NIC",
        hosts::all,
        "mtu-mismatch",
        &["mtu-probing-off"],
        |facts| {
            let below = nic(facts).name.clone();
            let mtu = nic(facts).mtu;
            facts.interfaces.push(Interface {
                name: "vlan7".to_owned(),
                index: Some(70),
                up: true,
                mtu: mtu.map(|mtu| mtu + 4000),
                lower: vec![below],
                statistics: hosts::counters(),
                ..Interface::default()
            });
        },
    ),
    fault("a single queue", hosts::all, "queues-few", &["rss-table-narrow"], single_queue),
    fault("MSI is off", hosts::all, "msi-off", &[], |facts| {
        single_queue(facts);
        facts.command_line.push("pci=noaer,nomsi".to_owned());
        let nic = nic(facts);
        nic.channels = None;
        let name = nic.name.clone();
        for line in facts.interrupts.iter_mut().filter(|line| line.interface == name) {
            "IO-APIC".clone_into(&mut line.chip);
        }
    }),
    fault(
        "more queues than processors",
        || vec![hosts::HOSTS[0]],
        "queues-many",
        &[],
        |facts| {
            const QUEUES: usize = 96;
            let name = nic(facts).name.clone();
            let places: Vec<u32> = facts
                .interrupts_of(&name)
                .filter_map(|interrupt| interrupt.effective.first().copied())
                .collect();
            nic(facts).channels.as_mut().unwrap().combined_max = 256;
            let channels = Knob::Channels(Channels::Combined);
            assert!(applied::set(facts, Some(&name), &channels, &Value::Number(QUEUES as u32)));
            place(facts, |at| places[at % places.len()]);
            for at in places.len()..QUEUES {
                let like = nic(facts).transmit_queues[at % places.len()].clone();
                nic(facts).transmit_queues[at] = like;
            }
            nic(facts).rss = None;
        },
    ),
    fault("RPS to the other socket", hosts::two_nodes, "rps-remote", &["rps-redundant"], |facts| {
        let away = elsewhere(facts);
        nic(facts).receive_queues[0].rps = away;
    }),
    fault("half of RFS", hosts::all, "rfs-half", &[], |facts| {
        set(facts, "net/core/rps_sock_flow_entries", "32768")
    }),
    fault("a table with one queue", several_queues, "rss-table-narrow", &[], |facts| {
        nic(facts).rss.as_mut().unwrap().indirection.fill(0);
    }),
    fault("an uneven table", several_queues, "rss-table-uneven", &[], |facts| {
        let table = &mut nic(facts).rss.as_mut().unwrap().indirection;
        let half = table.len() / 2;
        table[..half].fill(0);
    }),
    fault("a hash of MAC addresses", several_queues, "rss-hash-fields", &[], |facts| {
        for fields in nic(facts).rss.as_mut().unwrap().hash_fields.values_mut() {
            "m".clone_into(fields);
        }
    }),
    fault("a hash without ports", several_queues, "rss-hash-fields", &["flows-collide"], |facts| {
        nic(facts).rss.as_mut().unwrap().hash_fields.insert("tcp4".to_owned(), "sd".to_owned());
    }),
    fault("one busy queue", several_queues, "rss-skew", &[], |facts| skew(facts, "rx", 97)),
    fault("one flow", hosts::very_fast, "one-flow", &[], |facts| {
        skew(facts, "rx", 97);
        connection(facts, "10.0.0.1:5201", "10.0.0.9:40001", 500, 9_000_000_000_000, 99);
    }),
    fault(
        "flows on the same queue",
        || vec![hosts::HOSTS[2], hosts::HOSTS[3]],
        "flows-collide",
        &[],
        |facts| {
            // The hash directs five of these connections to queue 4.
            for port in [40_050, 40_099, 40_197, 40_442, 40_540, 40_001, 40_008, 40_043] {
                connection(facts, "10.0.0.1:5201", &format!("10.0.0.9:{port}"), 500, 5_000_000_000, 99);
            }
        },
    ),
    fault("the NIC's hash is off", several_queues, "rx-hash-off", &[], |facts| {
        feature(facts, "rx-hashing", false)
    }),
    fault("no XPS", hosts::fast, "xps-missing", &[], |facts| {
        nic(facts).transmit_queues.iter_mut().for_each(|queue| queue.xps_processors.clear());
    }),
    fault("XPS to one queue", several_queues, "xps-one-queue", &[], |facts| {
        let all: Vec<u32> = facts.processors.iter().map(|processor| processor.number).collect();
        let queues = &mut nic(facts).transmit_queues;
        queues.iter_mut().for_each(|queue| queue.xps_processors.clear());
        queues[1].xps_processors = all;
    }),
    fault("XPS maps of the other socket", hosts::two_nodes, "xps-remote", &[], |facts| {
        let away = elsewhere(facts);
        for (at, queue) in nic(facts).transmit_queues.iter_mut().enumerate() {
            queue.xps_processors = vec![away[at % away.len()]];
        }
    }),
    fault("a transmit queue that got stuck", hosts::all, "tx-timeouts", &[], |facts| {
        nic(facts).transmit_queues[0].timeouts = 3;
    }),
    fault("two kinds of XPS maps", several_queues, "xps-two-maps", &[], |facts| {
        nic(facts).transmit_queues[1].xps_receive_queues = vec![1];
    }),
    fault("containers on one transmit queue", several_queues, "tx-one-queue", &[], |facts| {
        skew(facts, "tx", 99);
        set(facts, "net/ipv4/ip_forward", "1");
        facts.interfaces.push(hosts::veth("veth1a"));
        facts.interfaces.push(hosts::veth("veth1b"));
    }),
    fault("byte queue limits of 20 kB", hosts::fast, "bql-capped", &[], |facts| {
        let limit = |queue: &mut TransmitQueue| queue.bql_limit_max = Some(20_000);
        nic(facts).transmit_queues.iter_mut().for_each(limit);
    }),
    fault("a rate left on a queue", hosts::fast, "tx-rate-capped", &[], |facts| {
        nic(facts).transmit_queues[0].max_rate_mbps = 100
    }),
    fault("GRO off", hosts::all, "gro-off", &[], |facts| feature(facts, "rx-gro", false)),
    fault("TSO off", hosts::all, "tso-off", &[], |facts| feature(facts, "tx-tcp-segmentation", false)),
    fault("GSO off", hosts::all, "gso-off", &[], |facts| feature(facts, "tx-generic-segmentation", false)),
    fault("receive checksums off", hosts::all, "rx-checksum-off", &[], |facts| {
        feature(facts, "rx-checksum", false)
    }),
    fault("transmit checksums off", hosts::all, "tx-checksum-off", &[], |facts| {
        feature(facts, "tx-checksum-ip-generic", false)
    }),
    fault("scatter-gather off", hosts::all, "scatter-gather-off", &[], |facts| {
        feature(facts, "tx-scatter-gather", false)
    }),
    fault(
        "LRO on a router",
        || vec![hosts::HOSTS[7]],
        "lro-forwards",
        &[],
        |facts| feature(facts, "rx-lro", true),
    ),
    fault("pfifo_fast at 10 Gbit/s and more", hosts::fast, "qdisc-no-pacing", &[], |facts| {
        nic(facts).qdiscs.iter_mut().skip(1).for_each(|qdisc| "pfifo_fast".clone_into(&mut qdisc.kind));
    }),
    fault("one qdisc for all queues", hosts::fast, "qdisc-one-lock", &[], |facts| {
        nic(facts).qdiscs = vec![qdisc("fq", "8001:", "root", 5_000_000_000)];
    }),
    fault(
        "netem left over",
        hosts::all,
        "qdisc-left-over",
        &["qdisc-one-lock", "qdisc-no-pacing"],
        |facts| {
            nic(facts).qdiscs = vec![qdisc("netem", "8001:", "root", 5_000_000_000)];
        },
    ),
    fault("drops in the qdisc", hosts::all, "qdisc-drops", &[], |facts| {
        nic(facts).qdiscs.last_mut().unwrap().drops = 90_000_000;
    }),
    fault(
        "a bond that hashes MAC addresses",
        || vec![hosts::HOSTS[7]],
        "bond-hash",
        &[],
        |facts| {
            let lower = vec!["lan1".to_owned(), "wan".to_owned()];
            facts.interfaces.push(Interface {
                name: "bond0".to_owned(),
                index: Some(80),
                kind: evenkeel_model::host::InterfaceKind::Bond,
                up: true,
                mtu: Some(1500),
                lower,
                bond: Some(evenkeel_model::host::BondFacts {
                    mode: "802.3ad".to_owned(),
                    hash_policy: "layer2".to_owned(),
                }),
                statistics: hosts::counters(),
                ..Interface::default()
            });
        },
    ),
    fault("a full backlog", hosts::all, "backlog-drops", &[], |facts| {
        facts.softnet[0].dropped = 900_000;
        set(facts, "net/core/netdev_max_backlog", "300");
    }),
    fault("squeezed rounds", hosts::all, "softnet-squeezed", &[], |facts| {
        facts.softnet.iter_mut().for_each(|line| line.squeezed = 2_000_000);
    }),
    fault("a small budget", hosts::all, "budget-small", &[], |facts| {
        set(facts, "net/core/netdev_budget", "64")
    }),
    fault("drops at TCP's backlog", hosts::all, "tcp-backlog-drops", &[], |facts| {
        count(facts, "TcpExt.TCPBacklogDrop", 900_000)
    }),
    fault("pruned receive queues", hosts::all, "tcp-receive-pruned", &[], |facts| {
        count(facts, "TcpExt.PruneCalled", 900_000);
        count(facts, "TcpExt.RcvPruned", 50_000);
    }),
    fault("a UDP socket that drops", hosts::all, "udp-receive-buffer", &[], |facts| {
        count(facts, "Udp.RcvbufErrors", 480_000);
        process(facts, 990, "collector", &[]);
        facts.sockets.push(SocketFacts {
            kind: SocketKind::Udp,
            local: "0.0.0.0:514".to_owned(),
            drops: 480_000,
            process: Some(990),
            ..SocketFacts::default()
        });
    }),
    fault("full accept queues", hosts::all, "listen-overflow", &[], |facts| {
        count(facts, "TcpExt.ListenOverflows", 90_000);
        set(facts, "net/core/somaxconn", "128");
    }),
    fault("retransmissions", hosts::all, "retransmissions", &["metrics-saved", "qdisc-no-pacing"], |facts| {
        count(facts, "Tcp.RetransSegs", 300_000_000);
    }),
    fault(
        "a full connection table",
        || vec![hosts::HOSTS[7]],
        "conntrack-full",
        &[],
        |facts| {
            set(facts, "net/netfilter/nf_conntrack_count", "65500");
            set(facts, "net/netfilter/nf_conntrack_buckets", "65536");
            count(facts, "Conntrack.drop", 12_000);
        },
    ),
    fault("a full neighbour table", hosts::all, "neighbours-full", &[], |facts| {
        count(facts, "Arp.table_fulls", 40)
    }),
    fault(
        "the kernel's receive windows, 20 ms away",
        hosts::fast,
        "receive-window",
        &["slow-start-idle", "socket-limits", "tcp-memory", "send-window"],
        |facts| {
            set(facts, "net/ipv4/tcp_rmem", "4096 131072 6291456");
            connection(facts, "10.0.0.1:443", "192.0.2.9:5555", 20_000, 60_000_000, 99);
        },
    ),
    fault(
        "the kernel's send windows, 20 ms away",
        hosts::fast,
        "send-window",
        &["slow-start-idle", "socket-limits", "tcp-memory", "receive-window"],
        |facts| {
            set(facts, "net/ipv4/tcp_wmem", "4096 16384 4194304");
            connection(facts, "10.0.0.1:443", "192.0.2.9:5555", 20_000, 60_000_000, 99);
        },
    ),
    fault("the kernel's limits of socket buffers", hosts::very_fast, "socket-limits", &[], |facts| {
        set(facts, "net/core/rmem_max", "212992");
    }),
    fault("TCP memory in pressure", hosts::all, "tcp-memory", &[], |facts| {
        set(facts, "net/ipv4/tcp_mem", "10000 20000 30000");
        count(facts, "Sockstat.TCP.mem", 25_000);
    }),
    fault("window scaling off", hosts::all, "window-scaling-off", &[], |facts| {
        set(facts, "net/ipv4/tcp_window_scaling", "0")
    }),
    fault("SACK off", hosts::all, "sack-off", &[], |facts| set(facts, "net/ipv4/tcp_sack", "0")),
    fault("timestamps off", hosts::all, "timestamps-off", &[], |facts| {
        set(facts, "net/ipv4/tcp_timestamps", "0")
    }),
    fault("no growth of windows", hosts::all, "autotuning-off", &[], |facts| {
        set(facts, "net/ipv4/tcp_moderate_rcvbuf", "0")
    }),
    fault("jumbo frames without probing", hosts::very_fast, "mtu-probing-off", &[], |facts| {
        set(facts, "net/ipv4/tcp_mtu_probing", "0");
        let sent = facts.counter("Tcp.OutSegs");
        count(facts, "TcpExt.TCPTimeouts", (sent / 500).max(10_000));
    }),
    fault(
        "reno on a long path",
        hosts::fast,
        "congestion-control",
        &["slow-start-idle", "socket-limits", "receive-window", "send-window", "tcp-memory"],
        |facts| {
            set(facts, "net/ipv4/tcp_congestion_control", "reno");
            connection(facts, "10.0.0.1:443", "192.0.2.9:5555", 20_000, 60_000_000, 99);
        },
    ),
    fault(
        "metrics of lossy paths are kept",
        hosts::fast,
        "metrics-saved",
        &["retransmissions", "qdisc-no-pacing"],
        |facts| {
            set(facts, "net/ipv4/tcp_no_metrics_save", "0");
            count(facts, "Tcp.RetransSegs", 20_000_000);
        },
    ),
    fault(
        "slow start after each pause",
        hosts::very_fast,
        "slow-start-idle",
        &["receive-window", "send-window", "socket-limits", "tcp-memory"],
        |facts| {
            connection(facts, "10.0.0.1:443", "192.0.2.9:5555", 60_000, 60_000_000, 99);
        },
    ),
    fault("the governor powersave", hosts::fast, "governor", &[], |facts| {
        facts.processors.iter_mut().for_each(|processor| processor.governor = Some("powersave".to_owned()));
    }),
    fault("a deep state of idleness", hosts::fast, "idle-deep", &["mtu-standard"], |facts| {
        nic(facts).rings.as_mut().unwrap().rx = 256;
        nic(facts).rings.as_mut().unwrap().rx_max = 256;
        nic(facts).mtu = Some(1500);
        let speed = nic(facts).speed_bps.unwrap();
        for processor in &mut facts.processors {
            let state = &mut processor.idle_states[2];
            "C6".clone_into(&mut state.name);
            state.latency_us = if speed > 50_000_000_000 { 133 } else { 900 };
        }
    }),
    fault(
        "a hypervisor that takes time",
        || vec![hosts::HOSTS[5]],
        "steal",
        &[],
        |facts| {
            for time in facts.processors.iter_mut().filter_map(|processor| processor.time.as_mut()) {
                time.steal = time.total / 8;
                time.idle -= time.steal;
            }
        },
    ),
    fault("softirqs on one processor", hosts::all, "softirq-one-processor", &[], |facts| {
        let time = facts.processors[0].time.as_mut().unwrap();
        (time.softirq, time.idle) = (7_000_000, 2_000_000);
    }),
    fault("zone reclaim", hosts::two_nodes, "zone-reclaim", &[], |facts| {
        set(facts, "vm/zone_reclaim_mode", "1")
    }),
];

/// Faults that change facts on which other faults depend, such as queues, rings, qdiscs or interrupts.
pub const STRUCTURAL: &[&str] = &[
    "a single queue",
    "MSI is off",
    "two busy queues of many",
    "more queues than processors",
    "one qdisc for all queues",
    "netem left over",
    "pfifo_fast at 10 Gbit/s and more",
    "drops in the qdisc",
    "a short ring with drops",
    "the paper's default ring of 1,024",
    "a millisecond of coalescing",
    "an interrupt for each packet",
    "a deep state of idleness",
    "one flow",
    "one busy queue",
    "flows on the same queue",
    "containers on one transmit queue",
    "a tenth of the NIC's speed",
    "all interrupts on the other socket",
    "half of the interrupts on the other socket",
    "masks are local, and they fire on the other socket",
    "all interrupts on one processor",
    "interrupts allowed everywhere, and all on processor 0",
    "interrupts on both threads of cores",
    "interrupts on an isolated processor",
    "interrupts on cores of the application",
    "the application on the twins of interrupts",
    "1,500 bytes at 100 Gbit/s",
    "an emulated NIC",
    "no XPS",
    "XPS to one queue",
    "two kinds of XPS maps",
    "XPS maps of the other socket",
    "a table with one queue",
    "an uneven table",
    "a hash of MAC addresses",
    "a hash without ports",
    "the NIC's hash is off",
    "LRO on a router",
];

/// Creates a host with all faults that it can have, except those in [`STRUCTURAL`].
#[allow(dead_code, reason = "some of the test binaries that share this file do not call it")]
pub fn host_with_faults(name: &str) -> HostFacts {
    let host = hosts::HOSTS.iter().find(|(other, _)| *other == name).unwrap().1;
    let mut facts = host();
    let fits = |fault: &&Fault| {
        !STRUCTURAL.contains(&fault.name) && (fault.hosts)().iter().any(|(other, _)| *other == name)
    };
    for fault in FAULTS.iter().filter(fits) {
        (fault.plant)(&mut facts);
    }
    facts
}
