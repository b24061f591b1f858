//! Tests of interfaces with a larger MTU than the network behind them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use evenkeel_model::host::{HostFacts, Interface, InterfaceKind, SocketFacts, TcpFacts};
use evenkeel_placement::{Finding, Severity, check};

fn connection(peer: usize, pmtu: u64) -> SocketFacts {
    SocketFacts {
        local: "10.128.0.12:443".to_owned(),
        remote: format!("10.2.0.{peer}:5555"),
        tcp: Some(TcpFacts { pmtu, mss: pmtu.saturating_sub(52), ..TcpFacts::default() }),
        ..SocketFacts::default()
    }
}

/// Creates a host that has been up for 100,000 s and has received `messages` ICMP messages about unreachable
/// destinations. Its NIC has 50 Gbit/s and an MTU of 1,500.
fn host(connections: Vec<SocketFacts>, messages: u64) -> HostFacts {
    let statistics = [("rx_packets", 5_000_000_000), ("tx_packets", 5_000_000_000)];
    let nic = Interface {
        name: "eth0".to_owned(),
        kind: InterfaceKind::Device,
        up: true,
        speed_bps: Some(50_000_000_000),
        mtu: Some(1500),
        statistics: statistics.map(|(name, value)| (name.to_owned(), value)).into(),
        ..Interface::default()
    };
    HostFacts {
        uptime_s: Some(100_000),
        interfaces: vec![nic],
        sockets: connections,
        counters: [("Icmp.InDestUnreachs".to_owned(), messages)].into(),
        ..HostFacts::default()
    }
}

fn found(facts: &HostFacts, rule: &str) -> Option<Finding> {
    check(facts).into_iter().find(|finding| finding.rule == rule)
}

/// Creates connections to different peers: `whole` connections with the MTU of the interface, and
/// `smaller` connections with a smaller path MTU.
fn connections(whole: usize, smaller: usize) -> Vec<SocketFacts> {
    (0..whole)
        .map(|peer| connection(peer, 1500))
        .chain((whole..whole + smaller).map(|peer| connection(peer, 1460)))
        .collect()
}

#[test]
fn one_smaller_mtu_on_all_paths_is_that_of_the_network() {
    let finding = found(&host(connections(1, 39), 90_000), "mtu-above-path").unwrap();
    assert_eq!(finding.severity, Severity::Medium);
    let words = "its MTU is 1500, and the path MTU of 39 of 40 connections, to 39 addresses, is 1460; 90,000 ICMP messages about unreachable destinations arrived";
    assert!(finding.evidence.contains(words), "{}", finding.evidence);
    assert!(finding.remedy.advice.unwrap().contains("ip link set dev eth0 mtu 1460"));
}

#[test]
fn single_paths_and_configured_routes_are_no_fault() {
    let judged = |connections, messages| found(&host(connections, messages), "mtu-above-path");
    assert!(judged(connections(0, 9), 90_000).is_none(), "too few connections");
    assert!(judged(connections(10, 30), 90_000).is_none(), "a quarter of the paths carries the MTU");
    assert!(judged(vec![connection(7, 1460); 40], 90_000).is_none(), "one peer is one path");
    // If few messages arrive, configured routes set the path MTU. The rule needs 100 messages, and one per
    // 10 minutes: 167 messages in 100,000 s.
    assert!(judged(connections(0, 40), 90).is_none());
    assert!(judged(connections(0, 40), 120).is_none());
    assert!(judged(connections(0, 40), 200).is_some());
    let different = (0..40).map(|peer| connection(peer, 1400 + peer as u64)).collect();
    assert!(judged(different, 90_000).is_none(), "paths of clients differ");
    let mut idle = host(connections(0, 40), 90_000);
    idle.interfaces[0].statistics.insert("rx_packets".to_owned(), 100_000);
    idle.interfaces[0].statistics.insert("tx_packets".to_owned(), 100_000);
    assert_eq!(found(&idle, "mtu-above-path").unwrap().severity, Severity::Low);
}

#[test]
fn the_connections_of_a_bond_are_judged_by_its_mtu() {
    let mut facts = host(connections(0, 40), 90_000);
    facts.interfaces[0].mtu = Some(9000);
    facts.interfaces.push(Interface {
        name: "bond0".to_owned(),
        kind: InterfaceKind::Bond,
        up: true,
        mtu: Some(1500),
        lower: vec!["eth0".to_owned()],
        ..Interface::default()
    });
    facts.sockets.iter_mut().for_each(|socket| socket.interface = Some("bond0".to_owned()));
    assert_eq!(found(&facts, "mtu-above-path").unwrap().subject, "bond0");
}

#[test]
fn larger_frames_are_not_advised_where_the_path_is_smaller() {
    let standard = |smaller| found(&host(connections(40 - smaller, smaller), 0), "mtu-standard");
    assert!(standard(0).is_some());
    assert!(standard(3).is_some(), "some clients have a smaller path");
    assert!(standard(4).is_none(), "a tenth of the paths carries less");
    assert!(standard(40).is_none());
}
