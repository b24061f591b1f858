//! Tests of findings about losses that only a few counters of the kernel show.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use evenkeel_model::host::{HostFacts, Interface, InterfaceKind, LossCounters, SocketFacts, SocketKind};
use evenkeel_placement::{Finding, Severity, check};

fn host(counters: &[(&str, u64)]) -> HostFacts {
    let mut facts = HostFacts::default();
    for name in ["Ip.InReceives", "Tcp.InSegs", "Udp.InDatagrams"] {
        facts.counters.insert(name.to_owned(), 50_000_000);
    }
    facts.counters.insert("Tcp.PassiveOpens".to_owned(), 20_000_000);
    facts.counters.extend(counters.iter().map(|(name, value)| ((*name).to_owned(), *value)));
    facts
}

fn found(facts: &HostFacts, rule: &str) -> Option<Finding> {
    check(facts).into_iter().find(|finding| finding.rule == rule)
}

#[test]
fn requests_dropped_without_a_counted_cause_are_found() {
    let with = |cookies: &str, counters: &[(&str, u64)]| {
        let mut facts = host(counters);
        facts.sysctls.insert("net/ipv4/tcp_syncookies".to_owned(), cookies.to_owned());
        facts.sysctls.insert("net/ipv4/tcp_max_syn_backlog".to_owned(), "64".to_owned());
        found(&facts, "syn-queue-full")
    };
    let dropped = ("TcpExt.ListenDrops", 600_000);
    let off = with("0", &[dropped]).unwrap();
    assert_eq!(off.severity, Severity::Medium, "{}", off.evidence);
    assert!(off.evidence.contains("600,000 requests were dropped"), "{}", off.evidence);
    assert!(off.evidence.contains("three quarters of tcp_max_syn_backlog"), "{}", off.evidence);
    let lines = off.remedy.lines();
    assert_eq!(lines, ["sysctl -w net.ipv4.tcp_max_syn_backlog=8192", "sysctl -w net.ipv4.tcp_syncookies=1"]);
    let on = with("1", &[dropped]).unwrap();
    assert!(on.remedy.changes.is_empty() && on.evidence.contains("no route back"), "{}", on.evidence);
    assert_eq!(with("0", &[dropped, ("TcpExt.ListenOverflows", 600_000)]), None, "listen-overflow has them");
    assert_eq!(with("0", &[("TcpExt.ListenDrops", 1_900)]), None, "less than one in 10,000");
    let mut facts = host(&[]);
    facts.sockets.push(SocketFacts {
        kind: SocketKind::TcpListen,
        local: "0.0.0.0:443".to_owned(),
        send_queue: 128,
        drops: 600_000,
        ..SocketFacts::default()
    });
    assert!(found(&facts, "listen-overflow").unwrap().evidence.contains("0.0.0.0:443: 600,000"));
    facts.counters.insert("TcpExt.ListenDrops".to_owned(), 600_000);
    assert_eq!(found(&facts, "listen-overflow"), None);
}

#[test]
fn wrong_headers_are_found_by_their_cause() {
    let rules = |counters: &[(&str, u64)]| {
        let facts = host(counters);
        ["ip-header-errors", "checksum-errors", "ttl-expired"].map(|rule| found(&facts, rule).is_some())
    };
    for cut in ["IpExt.InTruncatedPkts", "Snmp6.Ip6InTruncatedPkts"] {
        assert_eq!(rules(&[(cut, 600_000)]), [true, false, false], "{cut}");
    }
    let headers = ("Ip.InHdrErrors", 600_000);
    let checksums = ("IpExt.InCsumErrors", 600_000);
    assert_eq!(rules(&[headers]), [true, false, false]);
    assert_eq!(rules(&[headers, checksums]), [false, true, false]);
    assert_eq!(rules(&[headers, ("Ip.ForwDatagrams", 9_000_000)]), [false, false, true]);
    assert_eq!(rules(&[headers, checksums, ("Ip.ForwDatagrams", 9_000_000)]), [false, true, false]);
    assert_eq!(rules(&[("Ip.InHdrErrors", 400)]), [false; 3], "one in 100,000 is the limit");
    let evidence = found(&host(&[checksums]), "checksum-errors").unwrap().evidence;
    assert!(evidence.starts_with("600,000 IP headers, 0 TCP segments"), "{evidence}");
}

#[test]
fn datagrams_refused_without_a_counted_cause_are_found() {
    let with = |counters: &[(&str, u64)]| found(&host(counters), "udp-errors");
    for errors in ["Udp.InErrors", "Snmp6.Udp6InErrors"] {
        let refused = with(&[(errors, 6_000_000)]).unwrap();
        assert_eq!(refused.severity, Severity::Medium, "{}", refused.evidence);
        assert!(refused.evidence.starts_with("6,000,000 of 56,000,000 datagrams"), "{}", refused.evidence);
    }
    assert_eq!(with(&[("Udp.InErrors", 6_000_000), ("Udp.RcvbufErrors", 6_000_000)]), None);
    assert_eq!(with(&[("Udp.InErrors", 900)]), None);
    let reserve = [("Udp.InErrors", 600_000), ("TcpExt.PFMemallocDrop", 600_000)];
    assert_eq!(with(&reserve), None);
    let memory = found(&host(&reserve), "memory-reclaim").unwrap();
    assert_eq!(memory.severity, Severity::Medium, "{}", memory.evidence);
    assert!(memory.evidence.contains("600,000 packets in the memory reserve"), "{}", memory.evidence);
    assert_eq!(found(&host(&[("TcpExt.PFMemallocDrop", 99)]), "memory-reclaim"), None);
    // The drops of a socket include those by its filter.
    let mut facts = host(&[("Udp.InErrors", 600_000)]);
    facts.sockets.push(SocketFacts { kind: SocketKind::Udp, drops: 600_000, ..SocketFacts::default() });
    assert_eq!(found(&facts, "udp-receive-buffer"), None);
}

#[test]
fn raw_sockets_that_drop_are_found() {
    let with = |drops| {
        let mut facts = host(&[]);
        facts.sockets.push(SocketFacts {
            kind: SocketKind::Raw,
            local: "0.0.0.0:17".to_owned(),
            drops,
            ..SocketFacts::default()
        });
        found(&facts, "raw-receive-buffer")
    };
    assert_eq!(with(999), None);
    let raw = with(70_000).unwrap();
    assert_eq!(raw.severity, Severity::Low);
    assert!(raw.evidence.contains("raw socket 0.0.0.0, protocol 17: 70,000"), "{}", raw.evidence);
}

/// A tunnel counts packets that it drops as errors.
#[test]
fn errors_of_a_tunnel_are_drops() {
    let with = |losses: LossCounters, errors: &[(&str, u64)]| {
        let packets = [("rx_packets", 1_000_000), ("tx_packets", 1_000_000)];
        let statistics = packets.iter().chain(errors).map(|(name, value)| ((*name).to_owned(), *value));
        let facts = HostFacts {
            interfaces: vec![Interface {
                name: "gre1".to_owned(),
                kind: InterfaceKind::Virtual,
                driver: Some("gre".to_owned()),
                up: true,
                losses,
                statistics: statistics.collect(),
                ..Interface::default()
            }],
            ..HostFacts::default()
        };
        found(&facts, "virtual-drops").map(|finding| finding.evidence)
    };
    let sent = LossCounters { transmit: Some(600_000), ..LossCounters::default() };
    let errors = [("tx_errors", 600_000), ("tx_carrier_errors", 600_000), ("tx_dropped", 0)];
    let text = with(sent, &errors).unwrap();
    assert!(text.starts_with("600,000 of 1,600,000 packets towards it"), "{text}");
    assert!(text.contains("; tx_carrier_errors 600,000, tx_errors 600,000"), "{text}");
    let received = LossCounters { other: Some(600_000), ..LossCounters::default() };
    let text = with(received, &[("rx_errors", 600_000)]).unwrap();
    assert!(text.contains("packets from it") && text.contains("; rx_errors 600,000"), "{text}");
    assert_eq!(with(LossCounters::default(), &[]), None);
}
