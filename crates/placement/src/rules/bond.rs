//! Rules about bonds: several ports as one interface.

use evenkeel_model::change::{Knob, Value};
use evenkeel_model::host::{BondFacts, Interface, SaturatingSum};

use super::{Found, Rule, needs};
use crate::Severity::{Low, Medium};
use crate::View;
use crate::view::{count, gigabits, per_cent};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "bond-hash",
        looks_at: "the header fields that a bond over several ports hashes (802.3ad, balance-xor)",
        fires_when: "low: it hashes MAC addresses only; medium: one of several ports that are up (802.3ad: of one \
                     speed) sent 90 % of at least a million packets",
        why: "All packets to the same router have the same MAC address: one port carries all of them.",
        fix: "layer3+4",
        source: "Documentation/networking/bonding.rst (xmit_hash_policy)",
        needs: &[needs::BONDING, needs::STATISTICS],
        check: bond_hash,
    },
    Rule {
        name: "bond-ports",
        looks_at: "the state and speed of each bond's ports",
        fires_when: "medium: a port is down while another is up, or, in modes 802.3ad and balance-xor, ports that \
                     are up differ in speed",
        why: "A bond without the port has less bandwidth or no spare port. In 802.3ad only ports of one speed form \
              the active aggregator; the others carry no packets.",
        fix: "the port's cable, transceiver and switch port; ports of one speed",
        source: "Documentation/networking/bonding.rst (mode 802.3ad); IEEE 802.1AX, clause 6.3",
        needs: &[needs::BONDING, needs::SPEED, needs::STATE],
        check: ports,
    },
    Rule {
        name: "bond-round-robin",
        looks_at: "bonds of mode balance-rr, and segments that came out of order (TCPOFOQueue, TCPSACKReorder, TCPTSReorder)",
        fires_when: "low: at least two ports are up; medium: also 1,000 segments, and one in 100, came or were \
                     acknowledged out of order",
        why: "Packets of one flow alternate between the ports and overtake each other. TCP takes that for loss, \
              retransmits and slows down.",
        fix: "802.3ad or balance-xor with layer3+4",
        source: "Documentation/networking/bonding.rst (mode balance-rr; section 12, MT Bonding Mode Selection)",
        needs: &[needs::BONDING, needs::NETSTAT, needs::SNMP],
        check: round_robin,
    },
];

fn bonds<'a>(view: &View<'a>) -> impl Iterator<Item = (&'a Interface, &'a BondFacts, Vec<&'a Interface>)> {
    let facts = view.facts;
    facts.interfaces.iter().filter_map(|bond| {
        let ports = bond.lower.iter().filter_map(|name| facts.interface(name)).collect();
        Some((bond, bond.bond.as_ref()?, ports))
    })
}

fn ports(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for (bond, settings, ports) in bonds(view) {
        let (up, down): (Vec<&Interface>, Vec<&Interface>) = ports.into_iter().partition(|port| port.up);
        let names: Vec<&str> = down.iter().map(|port| port.name.as_str()).collect();
        if !names.is_empty() && !up.is_empty() {
            let text = format!(
                "{} of its {} ports {} down: {}",
                down.len(),
                up.len() + down.len(),
                if down.len() == 1 { "is" } else { "are" },
                names.join(", ")
            );
            found.push(
                Found::limit(Medium, &bond.name, text, "less bandwidth, and no reserve if another port fails")
                    .advice("check cable, transceiver and the other side's port; `ip link set PORT up` if it was set down"),
            );
        }
        let mut speeds: Vec<u64> = up.iter().filter_map(|port| port.speed_bps).collect();
        speeds.sort_unstable();
        speeds.dedup();
        if speeds.len() > 1 && matches!(settings.mode.as_str(), "802.3ad" | "balance-xor") {
            let words: Vec<String> = up
                .iter()
                .map(|port| format!("{} has {}", port.name, gigabits(port.speed_bps.unwrap_or(0) as f64)))
                .collect();
            let text = format!("mode {}, and its ports differ in speed: {}", settings.mode, words.join(", "));
            let effect = "ports of another speed carry no packets, or the slowest port limits its flows";
            found.push(
                Found::limit(Medium, &bond.name, text, effect)
                    .advice("use ports of one speed; check the cable and transceiver of the slower one"),
            );
        }
    }
    found
}

fn round_robin(view: &View<'_>) -> Vec<Found> {
    const FEWEST: u64 = 1000;
    const ONE_IN: u64 = 100;
    let counter = |name: &str| view.facts.counter(name);
    let received = counter("TcpExt.TCPOFOQueue");
    let sent = counter("TcpExt.TCPSACKReorder").saturating_add(counter("TcpExt.TCPTSReorder"));
    let is_much = |events: u64, of: u64| events >= FEWEST && events.saturating_mul(ONE_IN) >= of;
    let shows = is_much(received, counter("Tcp.InSegs")) || is_much(sent, view.sent_segments());
    let mut found = Vec::new();
    for (bond, _, ports) in bonds(view).filter(|(_, settings, _)| settings.mode == "balance-rr") {
        let up = ports.iter().filter(|port| port.up).count();
        if up < 2 {
            continue;
        }
        let text = format!(
            "mode balance-rr over {up} ports; {} of {} received segments came out of order, and sent ones were reordered {} times",
            count(received),
            count(counter("Tcp.InSegs")),
            count(sent)
        );
        let effect = "TCP takes reordered packets for lost ones";
        let entry = if shows {
            Found::measured(Medium, &bond.name, text, effect)
        } else {
            Found::setting(Low, &bond.name, text, effect)
        };
        found.push(entry.advice(
            "a mode that keeps a flow on one port: 802.3ad if the switch supports it, else balance-xor, both with xmit_hash_policy layer3+4",
        ));
    }
    found
}

fn bond_hash(view: &View<'_>) -> Vec<Found> {
    const SHARE: f64 = 0.9;
    const ENOUGH: u64 = 1_000_000;
    let mut found = Vec::new();
    for (bond, settings, ports) in bonds(view) {
        let spreads = matches!(settings.mode.as_str(), "802.3ad" | "balance-xor");
        if !spreads || settings.hash_policy != "layer2" || bond.lower.len() < 2 {
            continue;
        }
        let up = || ports.iter().filter(|port| port.up);
        let most = up().max_by_key(|port| port.sent_packets());
        // No policy selects a port that is down, or a port whose speed keeps it out of the active
        // aggregator.
        let shares = |port: &&&Interface| {
            settings.mode != "802.3ad" || most.is_some_and(|most| most.speed_bps == port.speed_bps)
        };
        let sharing: Vec<&Interface> = up().filter(shares).copied().collect();
        let total = sharing.iter().map(|port| port.sent_packets()).saturating_sum();
        let is_lopsided = |most: &&&Interface| {
            sharing.len() > 1 && total >= ENOUGH && most.sent_packets() as f64 >= SHARE * total as f64
        };
        let lopsided = most.filter(is_lopsided);
        let mut text = format!("mode {}, and it hashes MAC addresses only (layer2)", settings.mode);
        if let Some(port) = lopsided {
            text += &format!(
                "; {} sent {} of {} packets",
                port.name,
                per_cent(port.sent_packets() as f64 / total as f64),
                count(total)
            );
            let bytes = |port: &Interface| port.statistics.get("tx_bytes").copied().unwrap_or(0);
            let all = sharing.iter().map(|port| bytes(port)).saturating_sum();
            if all > 0 {
                text += &format!(" and {} of the bytes", per_cent(bytes(port) as f64 / all as f64));
            }
        }
        let severity = if lopsided.is_some() { Medium } else { Low };
        let entry = Found::setting(severity, &bond.name, text, "all routed traffic goes through one port")
            .on(&bond.name);
        found.push(entry.change(
            Knob::InterfaceFile("bonding/xmit_hash_policy".to_owned()),
            Value::Text("layer3+4".to_owned()),
        ));
    }
    found
}
