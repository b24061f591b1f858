//! Tests that rules fire at the limits that their texts state.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use evenkeel_model::change::{Knob, Value};
use evenkeel_model::host::{
    Channels, HostFacts, IdleState, Interface, InterfaceKind, Interrupt, Node, PortUse, Processor,
    QdiscFacts, Rings, Rss, SocketFacts, TcpFacts, TransmitQueue,
};
use evenkeel_placement::{Finding, Severity, check};

/// Creates a host with two nodes of four processors, and a NIC with 25 Gbit/s on the first node.
fn host() -> HostFacts {
    let processor = |number: u32| Processor {
        number,
        node: number / 4,
        package: number / 4,
        core: number % 4,
        siblings: vec![number],
        governor: Some("performance".to_owned()),
        frequency_driver: Some("acpi-cpufreq".to_owned()),
        ..Processor::default()
    };
    let nic = Interface {
        name: "eth0".to_owned(),
        kind: InterfaceKind::Device,
        up: true,
        speed_bps: Some(25_000_000_000),
        mtu: Some(1500),
        node: Some(0),
        transmit_queues: vec![TransmitQueue::default(); 4],
        ..Interface::default()
    };
    let node =
        |number: u32| Node { number, processors: (4 * number..4 * number + 4).collect(), allocations: None };
    HostFacts {
        processors: (0..8).map(processor).collect(),
        nodes: vec![node(0), node(1)],
        interfaces: vec![nic],
        page_bytes: 4096,
        uptime_s: Some(100_000),
        ..HostFacts::default()
    }
}

fn found(facts: &HostFacts, rule: &str) -> Option<Finding> {
    check(facts).into_iter().find(|finding| finding.rule == rule)
}

/// Returns the finding about a number of connections of 1 GB that all fall on one queue: with a key of zeros,
/// each hash is 0. Returns `None` if the rule has no finding.
fn collision(connections: u16, queues: u32) -> Option<Finding> {
    let mut facts = host();
    facts.interfaces[0].channels =
        Some(Channels { combined: queues, combined_max: queues, ..Channels::default() });
    facts.interfaces[0].rss = Some(Rss {
        indirection: (0..128).map(|entry| entry % queues).collect(),
        key: vec![0; 40],
        function: "toeplitz".to_owned(),
        ..Rss::default()
    });
    let connection = |number: u16| SocketFacts {
        local: "192.0.2.1:443".to_owned(),
        remote: format!("198.51.100.7:{}", 50_000 + number),
        tcp: Some(TcpFacts { bytes_received: 1_000_000_000, ..TcpFacts::default() }),
        ..SocketFacts::default()
    };
    facts.sockets = (0..connections).map(connection).collect();
    found(&facts, "flows-collide")
}

#[test]
fn more_connections_than_queues_collide_too() {
    let text = collision(5, 4).unwrap().evidence;
    assert!(text.contains("5 of 5 large") && text.contains("3 of 4 queues have none"), "{text}");
    assert!(text.contains("0.4 % of cases"), "{text}");
    let entry = collision(8, 2).unwrap();
    assert!(entry.remedy.advice.unwrap().contains("spreads them over the queues"));
    // A random hash puts all four flows on one of two queues in 12.5 % of cases. A single queue always has
    // all flows.
    assert_eq!((collision(4, 2), collision(5, 1)), (None, None));
    let many = collision(2_000, 4).unwrap().evidence;
    assert!(many.contains("and 1992 more") || many.contains(", 1992 more"), "{many}");
}

#[test]
fn interrupts_without_a_wait_cost_much_from_5000_a_second() {
    let mut facts = host();
    facts.interfaces[0].coalescing = Some(evenkeel_model::host::Coalescing::default());
    let mut severity = |a_second: u64| {
        let interrupts = a_second * 100_000;
        facts.interfaces[0].statistics.insert("rx_packets".to_owned(), interrupts);
        facts.interrupts = vec![Interrupt {
            interface: "eth0".to_owned(),
            queue: Some(0),
            receives: true,
            served: vec![(0, interrupts)],
            ..Interrupt::default()
        }];
        found(&facts, "coalescing-off").unwrap().severity
    };
    assert_eq!((severity(4_900), severity(5_100)), (Severity::Low, Severity::Medium));
}

/// The kernel does not count a connect that finds no port. Only a range without a free port is certain
/// to fail.
#[test]
fn ports_are_exhausted_for_certain_when_connections_take_all() {
    let mut facts = host();
    facts.sysctls.insert("net/ipv4/ip_local_port_range".to_owned(), "60000 60099".to_owned());
    for (connections, severity) in [(99, Severity::Medium), (100, Severity::High)] {
        let (local, remote) = ("10.0.0.1".to_owned(), "10.0.0.9:5432".to_owned());
        facts.port_use = Some(PortUse { local, remote, connections });
        let finding = found(&facts, "ports-exhausted").unwrap();
        assert_eq!(finding.severity, severity, "{}", finding.evidence);
        assert!(
            finding.evidence.contains("does not count connects that find no port"),
            "{}",
            finding.evidence
        );
    }
}

#[test]
fn only_the_governor_of_processors_near_a_fast_nic_counts() {
    let powersave = |facts: &mut HostFacts, numbers: std::ops::Range<usize>| {
        facts.processors[numbers].iter_mut().for_each(|it| it.governor = Some("powersave".to_owned()));
    };
    let mut facts = host();
    powersave(&mut facts, 4..8);
    assert_eq!(found(&facts, "governor"), None);
    powersave(&mut facts, 1..2);
    let changes = found(&facts, "governor").unwrap().remedy.changes;
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].knob, Knob::ProcessorFile("cpu1/cpufreq/scaling_governor".to_owned()));
    assert_eq!(changes[0].to, Value::Text("performance".to_owned()));
    // A processor of the other node that serves the NIC's interrupts counts.
    let mut facts = host();
    powersave(&mut facts, 4..8);
    facts.interrupts = vec![Interrupt {
        interface: "eth0".to_owned(),
        queue: Some(0),
        receives: true,
        served: vec![(5, 1_000_000)],
        ..Interrupt::default()
    }];
    let text = found(&facts, "governor").unwrap().evidence;
    assert!(text.contains("of processors 5 is powersave"), "{text}");
    // Each governor has its own finding, which lists only the processors with this governor.
    let mut facts = host();
    powersave(&mut facts, 0..3);
    facts.processors[1].governor = Some("ondemand".to_owned());
    let found = check(&facts).into_iter().filter(|finding| finding.rule == "governor");
    let texts: Vec<String> = found.map(|finding| finding.evidence).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    for words in ["of processors 0,2 is powersave", "of processors 1 is ondemand"] {
        assert!(texts.iter().any(|text| text.contains(words)), "{texts:?}");
    }
}

/// A qdisc counts since its installation, and the interface counts for longer.
#[test]
fn drops_of_a_new_qdisc_are_a_share_of_its_own_packets() {
    let mut facts = host();
    let qdisc = |drops: u64| QdiscFacts {
        kind: "pfifo".to_owned(),
        parent: "root".to_owned(),
        packets: 1000,
        drops,
        ..QdiscFacts::default()
    };
    facts.interfaces[0].statistics.insert("tx_packets".to_owned(), 1_000_000_000);
    facts.interfaces[0].qdiscs = vec![qdisc(9000)];
    let lossy = found(&facts, "qdisc-drops").unwrap();
    assert_eq!(lossy.severity, Severity::High);
    let words = "pfifo dropped 9,000 packets and sent 1,000 since it was installed (90 % lost)";
    assert!(lossy.evidence.starts_with(words), "{}", lossy.evidence);
    facts.interfaces[0].qdiscs = vec![qdisc(99)];
    assert_eq!(found(&facts, "qdisc-drops"), None);
}

#[test]
fn drops_of_qdiscs_are_a_share_of_the_packets_of_all_queues() {
    let mut facts = host();
    let qdisc = |kind: &str, parent: &str, packets: u64, drops: u64| QdiscFacts {
        kind: kind.to_owned(),
        parent: parent.to_owned(),
        packets,
        drops,
        ..QdiscFacts::default()
    };
    let leaves = [":1", ":2", ":3", ":4"].map(|parent| qdisc("fq_codel", parent, 10_000_000, 750));
    facts.interfaces[0].qdiscs = vec![qdisc("mq", "root", 40_000_000, 3000)];
    facts.interfaces[0].qdiscs.extend(leaves);
    let found = found(&facts, "qdisc-drops").unwrap();
    assert_eq!(found.severity, Severity::Low);
    assert!(found.evidence.contains("dropped 3,000 packets and sent 40,000,000 since"), "{}", found.evidence);
}

/// With `enabled` = `madvise`, an allocation waits only in regions of applications that asked for huge pages,
/// as with `defrag` = `madvise` (Documentation/admin-guide/mm/transhuge.rst).
#[test]
fn huge_pages_on_request_are_no_fault() {
    let mut facts = host();
    (facts.huge_pages, facts.huge_page_defrag) = (Some("madvise".to_owned()), Some("always".to_owned()));
    assert_eq!(found(&facts, "huge-pages"), None);
    facts.huge_pages = Some("always".to_owned());
    assert_eq!(found(&facts, "huge-pages").unwrap().severity, Severity::Low);
}

#[test]
fn bbr_without_fq_costs_most_without_internal_pacing_or_with_load() {
    let severity = |kernel: &str, packets_per_s: u64| {
        let mut facts = host();
        facts.kernel = Some(kernel.to_owned());
        facts.sysctls.insert("net/ipv4/tcp_congestion_control".to_owned(), "bbr".to_owned());
        let nic = &mut facts.interfaces[0];
        nic.qdiscs = vec![QdiscFacts { kind: "fq_codel".to_owned(), ..QdiscFacts::default() }];
        for name in ["rx_packets", "tx_packets"] {
            nic.statistics.insert(name.to_owned(), 100_000 * packets_per_s);
        }
        found(&facts, "bbr-without-fq").map(|entry| entry.severity)
    };
    let (loaded, some, idle) = (20_000, 1_000, 1);
    assert_eq!(
        [loaded, some, idle].map(|packets| severity("4.12.0", packets)),
        [Some(Severity::Medium), Some(Severity::Medium), Some(Severity::Low)]
    );
    assert_eq!(
        [loaded, some, idle].map(|packets| severity("4.19.0", packets)),
        [Some(Severity::Medium), Some(Severity::Low), Some(Severity::Low)]
    );
    assert_eq!(severity("4.20.0", loaded), None);
}

#[test]
fn a_rate_below_a_tenth_of_the_link_is_a_cap() {
    let capped = |mbps: u64, speed_bps: Option<u64>| {
        let mut facts = host();
        facts.interfaces[0].speed_bps = speed_bps;
        facts.interfaces[0].transmit_queues[1].max_rate_mbps = mbps;
        found(&facts, "tx-rate-capped").is_some()
    };
    let speed = Some(25_000_000_000);
    assert!(capped(2_499, speed) && !capped(2_500, speed) && !capped(0, speed));
    assert!(!capped(2_499, None), "a tenth of an unknown speed");
}

#[test]
fn an_idle_state_that_fills_half_of_the_ring_is_too_deep() {
    let wakes_in = |latency_us: u64| {
        let mut facts = host();
        let nic = &mut facts.interfaces[0];
        // A packet of full size takes 0.48 µs, and the ring holds 480 µs.
        nic.mtu = Some(1462);
        nic.rings = Some(Rings { rx: 1000, rx_max: 8192, tx: 1000, tx_max: 8192 });
        let state = IdleState { name: "C6".to_owned(), latency_us, usage: 1000, ..IdleState::default() };
        facts.processors[0].idle_states = vec![state];
        found(&facts, "idle-deep").is_some()
    };
    assert!(wakes_in(240) && !wakes_in(239));
}
