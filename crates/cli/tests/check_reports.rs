//! Rebuilds hosts from public issue reports. `evenkeel check --from` must name the cause of each
//! problem.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/hosts.rs"]
mod hosts;
mod support;

use evenkeel_model::host::{Channels, HostFacts, Interface, SocketFacts, SocketKind};
use evenkeel_synthetic::{HostBuilder, NicOptions, qdisc, write_tree};
use hosts::{connection, nic_mut, process};
use support::run;

/// A report: its source, the host, the rules that name its cause, and texts that the evidence must contain.
struct Report {
    source: &'static str,
    host: fn() -> HostFacts,
    rules: &'static [&'static str],
    words: &'static [&'static str],
}

fn plain_server() -> HostFacts {
    HostBuilder::new(2, 16, 2)
        .power("acpi-cpufreq", "performance")
        .nic(&NicOptions { queues: (32, 63), ..hosts::MLX5 })
        .build()
}

fn small_server() -> HostFacts {
    HostBuilder::new(1, 8, 1)
        .nic(&NicOptions { name: "eth0", action: "eth0-TxRx-{}", ..hosts::IXGBE })
        .build()
}

fn serve(facts: &mut HostFacts, name: &str, by: impl Fn(usize) -> u32) {
    for (at, interrupt) in
        facts.interrupts.iter_mut().filter(|interrupt| interrupt.interface == name).enumerate()
    {
        interrupt.served = vec![(by(at), 4_000_000)];
        interrupt.effective = vec![by(at)];
    }
}

/// Creates the host of a guide to 100 Gbit/s: a file server with default settings that failed at 20
/// Gbit/s.
fn file_host() -> HostFacts {
    let mut facts = plain_server();
    for (path, value) in [
        ("net/core/default_qdisc", "fq_codel"),
        ("net/core/rmem_max", "212992"),
        ("net/core/wmem_max", "212992"),
        ("net/ipv4/tcp_rmem", "4096 131072 6291456"),
        ("net/ipv4/tcp_wmem", "4096 16384 4194304"),
        ("net/core/netdev_budget_usecs", "2000"),
    ] {
        facts.sysctls.insert(path.to_owned(), value.to_owned());
    }
    facts.processors.iter_mut().for_each(|processor| processor.governor = Some("ondemand".to_owned()));
    serve(&mut facts, "ens2f0", |at| at as u32);
    let nic = nic_mut(&mut facts).unwrap();
    nic.mtu = Some(1500);
    nic.iommu = Some("DMA".to_owned());
    nic.rings.as_mut().unwrap().rx = 1024;
    nic.driver_statistics.insert("rx_out_of_buffer".to_owned(), 41_000_000);
    nic.qdiscs.iter_mut().skip(1).for_each(|qdisc| "fq_codel".clone_into(&mut qdisc.kind));
    process(&mut facts, 900, "nginx", &[]);
    connection(&mut facts, "192.0.2.1:443", "198.51.100.7:50000", 35_000, 800_000_000, 900);
    facts
}

/// Creates a host whose interrupts are on another node than the NIC, although the masks look right.
fn other_node() -> HostFacts {
    let mut facts = plain_server();
    serve(&mut facts, "ens2f0", |at| at as u32 % 16);
    facts
}

/// Creates a host with all interrupts of the NIC on CPU 0, although the masks allow all CPUs.
fn all_on_zero() -> HostFacts {
    let mut facts = small_server();
    serve(&mut facts, "eth0", |_| 0);
    facts.interrupts.iter_mut().for_each(|interrupt| interrupt.affinity = (0..8).collect());
    facts
}

/// Creates a host with one iperf flow on one busy queue, reported as a fault of irqbalance.
fn one_flow() -> HostFacts {
    let mut facts = small_server();
    let nic = nic_mut(&mut facts).unwrap();
    for queue in 0..8 {
        nic.driver_statistics
            .insert(format!("rx{queue}_packets"), if queue == 5 { 900_000_000 } else { 40_000 });
    }
    process(&mut facts, 77, "iperf3", &[]);
    connection(&mut facts, "10.0.0.1:5201", "10.0.0.2:41000", 200, 900_000_000_000, 77);
    facts
}

/// Creates a host whose CPU 0 receives all packets and exhausts its softirq budget.
fn load_on_zero() -> HostFacts {
    let mut facts = all_on_zero();
    for line in &mut facts.softnet {
        line.processed = if line.processor == 0 { 4_000_000_000 } else { 1_000_000 };
        line.squeezed = if line.processor == 0 { 2_000_000 } else { 0 };
    }
    facts
}

/// Creates a router whose NIC hashes MAC addresses, so that all routed packets are on one queue.
fn mac_hash() -> HostFacts {
    let mut facts = hosts::HOSTS[7].1();
    let nic = nic_mut(&mut facts).unwrap();
    nic.rss.as_mut().unwrap().hash_fields.values_mut().for_each(|fields| "m".clone_into(fields));
    for queue in 0..4 {
        nic.driver_statistics
            .insert(format!("rx{queue}_packets"), if queue == 2 { 3_000_000_000 } else { 0 });
    }
    facts
}

/// Creates a host with pods, whose packets keep the queue number of their veth.
fn pods() -> HostFacts {
    let mut facts = small_server();
    facts.sysctls.insert("net/ipv4/ip_forward".to_owned(), "1".to_owned());
    for at in 0..30 {
        facts.interfaces.push(Interface { index: Some(100 + at), ..hosts::veth(&format!("lxc{at}")) });
    }
    let nic = nic_mut(&mut facts).unwrap();
    for queue in 0..8 {
        nic.driver_statistics
            .insert(format!("tx{queue}_packets"), if queue == 0 { 900_000_000 } else { 100_000 });
    }
    facts
}

/// Creates a host on which sysctl changes had no effect: the buffer of one socket overflowed.
fn syslog() -> HostFacts {
    let mut facts = small_server();
    facts.sysctls.insert("net/core/netdev_max_backlog".to_owned(), "100000".to_owned());
    facts.counters.insert("Udp.RcvbufErrors".to_owned(), 1_900_000);
    facts.counters.insert("Udp.InDatagrams".to_owned(), 90_000_000);
    process(&mut facts, 1200, "syslog-ng", &[]);
    facts.sockets.push(SocketFacts {
        kind: SocketKind::Udp,
        local: "0.0.0.0:514".to_owned(),
        receive_queue: 212_992,
        drops: 1_900_000,
        process: Some(1200),
        ..SocketFacts::default()
    });
    facts
}

/// Creates a host like [`syslog`] on which the NIC discarded the packets before any socket.
fn discards() -> HostFacts {
    let mut facts = small_server();
    let nic = nic_mut(&mut facts).unwrap();
    nic.rings.as_mut().unwrap().rx = 512;
    // ixgbe shows the counter in both tables.
    for statistics in [&mut nic.statistics, &mut nic.driver_statistics] {
        statistics.insert("rx_missed_errors".to_owned(), 90_000_000);
    }
    facts
}

/// Creates a host with two NICs whose rings have different maxima.
fn rings() -> HostFacts {
    let mut facts = HostBuilder::new(2, 16, 2).nic(&hosts::MLX5).nic(&hosts::I40E).build();
    for (name, counter) in [("ens2f0", "rx_out_of_buffer"), ("eno1", "rx_missed_errors")] {
        let nic = facts.interfaces.iter_mut().find(|interface| interface.name == name).unwrap();
        nic.rings.as_mut().unwrap().rx = 512;
        nic.driver_statistics.insert(counter.to_owned(), 60_000_000);
    }
    facts
}

/// Creates a host with parallel iperf3 streams whose rates differ by a factor of two, because some
/// streams share a queue.
fn uneven_streams() -> HostFacts {
    let mut facts = small_server();
    process(&mut facts, 77, "iperf3", &[]);
    // The hash directs the first two streams to one queue, and each other stream to its own queue.
    for (port, bytes) in [(0, 45), (2, 45), (4, 90), (8, 90), (12, 90), (16, 90)] {
        let remote = format!("10.0.0.2:{}", 41_000 + port);
        connection(&mut facts, "10.0.0.1:5201", &remote, 200, bytes * 1_000_000_000, 77);
    }
    facts
}

/// Creates a host with a default qdisc that does not pace, at a high link speed.
fn default_qdisc() -> HostFacts {
    let mut facts = small_server();
    facts.sysctls.insert("net/core/default_qdisc".to_owned(), "fq_codel".to_owned());
    let nic = nic_mut(&mut facts).unwrap();
    nic.qdiscs = vec![qdisc("fq_codel", "8001:", "root", 5_000_000_000)];
    facts
}

/// Creates a host whose driver sets up only one of many queues.
fn one_queue() -> HostFacts {
    let mut facts = small_server();
    let nic = nic_mut(&mut facts).unwrap();
    nic.channels = Some(Channels { combined: 1, combined_max: 63, ..Channels::default() });
    nic.rss = None;
    nic.receive_queues.truncate(1);
    facts.interrupts.truncate(1);
    facts
}

const REPORTS: &[Report] = &[
    Report {
        source: "a file host's guide to 100 Gbit/s (fnx_web, 100_gigabit_ethernet)",
        host: file_host,
        rules: &[
            "receive-window",
            "send-window",
            "rx-ring-drops",
            "irq-remote-node",
            "qdisc-no-pacing",
            "governor",
            "iommu-translates",
        ],
        words: &["35 ms"],
    },
    Report {
        source: "Irqbalance/irqbalance 175, 169, 50",
        host: other_node,
        rules: &["irq-remote-node"],
        words: &["the NIC is on node 1"],
    },
    Report {
        source: "Irqbalance/irqbalance 122, 30, 38; systemd/systemd 40195",
        host: all_on_zero,
        rules: &["irq-one-processor"],
        words: &["processor 0 served 100 %", "their masks allow 0-7"],
    },
    Report {
        source: "Irqbalance/irqbalance 93",
        host: one_flow,
        rules: &["one-flow"],
        words: &["one connection"],
    },
    Report {
        source: "coreos/bugs 2135",
        host: load_on_zero,
        rules: &["irq-one-processor", "softnet-squeezed"],
        words: &["CPU 0 ran out of budget 2,000,000 times"],
    },
    Report {
        source: "openwrt/openwrt 13493",
        host: mac_hash,
        rules: &["rss-hash-fields", "rss-skew"],
        words: &["only MAC addresses"],
    },
    Report {
        source: "cilium/cilium 18311",
        host: pods,
        rules: &["tx-one-queue"],
        words: &["30 veth interfaces of one queue"],
    },
    Report {
        source: "netdata/netdata 4086, syslog-ng/syslog-ng 3309",
        host: syslog,
        rules: &["udp-receive-buffer"],
        words: &["0.0.0.0:514 of syslog-ng (process 1200)"],
    },
    Report {
        source: "syslog-ng/syslog-ng 3309 (discards)",
        host: discards,
        rules: &["rx-ring-drops"],
        words: &["512 of 4096 entries"],
    },
    Report {
        source: "redhat-performance/tuned 2",
        host: rings,
        rules: &["rx-ring-drops"],
        words: &["512 of 8192 entries", "512 of 4096 entries"],
    },
    Report {
        source: "esnet/iperf 771, 408",
        host: uneven_streams,
        rules: &["flows-collide"],
        words: &["hashed to queue"],
    },
    Report {
        source: "systemd/systemd 5090, ublue-os/bazzite 2821",
        host: default_qdisc,
        rules: &["qdisc-no-pacing", "qdisc-one-lock"],
        words: &["fq_codel"],
    },
    Report {
        source: "Irqbalance/irqbalance 30 (a single queue)",
        host: one_queue,
        rules: &["queues-few"],
        words: &["1 of 63 receive queues"],
    },
];

#[test]
fn the_cause_of_each_report_is_named() {
    for report in REPORTS {
        let directory = tempfile::tempdir().unwrap();
        write_tree(&(report.host)(), directory.path()).unwrap();
        let from = directory.path().to_str().unwrap();
        let ended = run(&["check", "--from", from, "--format", "json"]);
        assert!(ended.code == 0 || ended.code == 1, "{}: {ended:?}", report.source);
        let found: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        let findings = found["findings"].as_array().unwrap();
        for rule in report.rules {
            assert!(
                findings.iter().any(|finding| finding["rule"] == *rule),
                "{}: no {rule} in {findings:#?}",
                report.source
            );
        }
        for words in report.words {
            assert!(
                findings.iter().any(|finding| finding["evidence"].as_str().unwrap().contains(words)),
                "{}: '{words}' is in no evidence of {findings:#?}",
                report.source
            );
        }
        // The exit code is 1 exactly if there is a finding of high severity.
        let serious = findings.iter().any(|finding| finding["severity"] == "high");
        assert_eq!(ended.code == 1, serious, "{}", report.source);
    }
}
