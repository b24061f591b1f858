//! Tests that a bond's hash policy is blamed only for packets of ports that the policy can select.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use evenkeel_model::host::{BondFacts, HostFacts, Interface, InterfaceKind};
use evenkeel_placement::{Finding, Severity, check};

/// A port: whether it is up, its speed in Gbit/s, and its sent packets in millions.
type Port = (bool, u64, u64);

/// Returns the finding about the policy layer2 of a bond over these ports.
fn found(mode: &str, ports: &[Port]) -> Finding {
    let name = |at: usize| format!("eth{at}");
    let port = |(at, (up, gbit, millions)): (usize, &Port)| Interface {
        name: name(at),
        kind: InterfaceKind::Device,
        up: *up,
        speed_bps: Some(gbit * 1_000_000_000),
        statistics: [("tx_packets", millions * 1_000_000), ("tx_bytes", millions * 1_000_000_000)]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        ..Interface::default()
    };
    let bond = Interface {
        name: "bond0".to_owned(),
        kind: InterfaceKind::Bond,
        up: true,
        lower: (0..ports.len()).map(name).collect(),
        bond: Some(BondFacts { mode: mode.to_owned(), hash_policy: "layer2".to_owned() }),
        ..Interface::default()
    };
    let interfaces = ports.iter().enumerate().map(port).chain([bond]).collect();
    let facts = HostFacts { interfaces, ..HostFacts::default() };
    check(&facts).into_iter().find(|finding| finding.rule == "bond-hash").unwrap()
}

#[test]
fn one_of_several_ports_that_sends_all_packets_is_medium() {
    for (mode, ports) in [
        ("802.3ad", [(true, 25, 1000), (true, 25, 0), (true, 25, 20)].as_slice()),
        ("802.3ad", &[(true, 25, 1000), (true, 25, 20), (false, 25, 500)]),
        ("balance-xor", &[(true, 25, 1000), (true, 10, 20)]),
    ] {
        let finding = found(mode, ports);
        assert_eq!(finding.severity, Severity::Medium, "{}", finding.evidence);
        assert!(finding.evidence.contains("eth0 sent 98 % of 1,020,000,000 packets and 98 %"), "{finding:?}");
    }
}

#[test]
fn ports_that_no_policy_selects_show_no_skew() {
    for (mode, ports) in [
        ("802.3ad", [(true, 25, 1000), (false, 25, 0)].as_slice()),
        ("balance-xor", &[(true, 25, 1000), (false, 25, 0)]),
        // The port that is down carried all earlier packets.
        ("802.3ad", &[(false, 25, 90_000), (true, 25, 500), (true, 25, 500)]),
        // Only ports of one speed are in the active aggregator.
        ("802.3ad", &[(true, 25, 1000), (true, 10, 0)]),
        ("802.3ad", &[(false, 25, 1000), (false, 25, 0)]),
    ] {
        let finding = found(mode, ports);
        assert_eq!(finding.severity, Severity::Low, "{}", finding.evidence);
        assert!(finding.evidence.ends_with("(layer2)"), "{finding:?}");
    }
}
