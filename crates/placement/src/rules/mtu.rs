//! Rules about the MTU: of fast links, of layers, of tunnels, and of paths.

use evenkeel_model::host::{Interface, InterfaceKind};

use super::{Found, Rule, needs};
use crate::Severity::{Low, Medium};
use crate::View;
use crate::view::{count, gigabits};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "mtu-standard",
        looks_at: "the MTU of links that are faster than what one processor receives in packets of 1,500 bytes",
        fires_when: "above 25 Gbit/s, with an MTU of 1,500 or less, where TCP has a twentieth of the packets and more",
        why: "Work is by the packet: one flow of the paper's hosts reached 25 Gbit/s with 1,500 bytes and 43 with 9,000. Not every path \
              carries jumbo frames; towards the Internet 1,500 is right.",
        fix: "9,000 bytes on every host and switch of the same network, with MTU probing for what lies beyond",
        source: "the paper, section II-A, figure 5, and Table I (Maximum Transmission Unit)",
        needs: &[needs::SPEED, needs::MTU],
        check: standard_mtu,
    },
    Rule {
        name: "mtu-mismatch",
        looks_at: "the MTU of bonds, bridges and VLANs against that of the interfaces below, and of a bridge's ports against each other, with the \
                   packets that the smaller ones dropped",
        fires_when: "when a packet that fits above does not fit below",
        why: "Large packets vanish or are fragmented while small ones pass: connections that hang as soon as they carry data.",
        fix: "the same MTU from top to bottom",
        source: "RFC 4821, section 1; Documentation/networking/bridge.rst; __is_skb_forwardable, include/linux/netdevice.h",
        needs: &[needs::MTU, needs::STATISTICS],
        check: mtu_mismatch,
    },
    Rule {
        name: "mtu-tunnel",
        looks_at: "the MTU of tunnels (VXLAN, Geneve, GRE, IP in IP, WireGuard) against that of the NIC below less the tunnel's headers, and \
                   datagrams that this host cut into fragments or could not send whole (Ip.FragCreates, FragFails)",
        fires_when: "low, when a full packet of the tunnel does not fit below; medium from 100 fragments made or datagrams not sent on, where these \
                     are one in a thousand sent packets",
        why: "The outer packet is cut into fragments, or dropped where that is forbidden. Two packets for one, no GRO and one queue for all \
              fragments of a pair of hosts at the receiver; a lost one takes the whole with it.",
        fix: "the MTU of the NIC less the headers: 50 bytes for VXLAN and Geneve, 20 more over IPv6; or a larger MTU below",
        source: "RFC 7348, section 4.3; vxlan_headroom, include/net/vxlan.h; RFC 8900; Documentation/networking/snmp_counter.rst",
        needs: &[needs::MTU, needs::SNMP, needs::DRIVER],
        check: tunnel_mtu,
    },
];

fn standard_mtu(view: &View<'_>) -> Vec<Found> {
    const ABOVE_BPS: u64 = 25_000_000_000;
    let mut found = Vec::new();
    for nic in view.nics() {
        let (Some(speed), Some(mtu)) = (nic.speed_bps, nic.mtu) else { continue };
        if speed <= ABOVE_BPS || mtu > 1500 || !view.carries_tcp() {
            continue;
        }
        let packets = speed as f64 / 8.0 / 1538.0;
        let text = format!(
            "MTU {} at {}: {:.1} million packets a second at line rate, with 9,000 bytes {:.1}",
            mtu,
            gigabits(speed as f64),
            packets / 1e6,
            packets / 1e6 * 1538.0 / 9038.0
        );
        let effect = "one flow of the paper's hosts reached 25 Gbit/s with 1,500 bytes, 43 with 9,000";
        let advice = format!(
            "if every host and switch of this network can do it: `ip link set dev {} mtu 9000`, with net.ipv4.tcp_mtu_probing=1 for paths \
             beyond it; otherwise leave it",
            nic.name
        );
        found.push(Found::setting(Low, &nic.name, text, effect).advice(advice));
    }
    found
}

/// Returns an interface's MTU and its transmit drops as text. The drops include packets larger than the MTU.
fn mtu_words(interface: &Interface, mtu: u32) -> String {
    const FEWEST: u64 = 100;
    let dropped = interface.losses.transmit.filter(|dropped| *dropped >= FEWEST);
    let dropped = dropped.map(|dropped| format!(" and dropped {} packets on sending", count(dropped)));
    format!("{} has {mtu}{}", interface.name, dropped.unwrap_or_default())
}

fn mtu_mismatch(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    let is_layer = |interface: &&Interface| {
        interface.up && interface.kind != InterfaceKind::Veth && !interface.lower.is_empty()
    };
    for upper in view.facts.interfaces.iter().filter(is_layer) {
        let Some(mtu) = upper.mtu else { continue };
        let lower: Vec<(&Interface, u32)> = upper
            .lower
            .iter()
            .filter_map(|name| view.facts.interface(name).filter(|below| below.up))
            .filter_map(|below| Some((below, below.mtu?)))
            .collect();
        let below = |limit: u32| -> Vec<String> {
            let small = lower.iter().filter(|(_, mtu)| *mtu < limit);
            small.map(|(below, mtu)| mtu_words(below, *mtu)).collect()
        };
        let too_small = below(mtu);
        let largest = lower.iter().map(|(_, mtu)| *mtu).max().unwrap_or(mtu);
        let small_ports = if upper.kind == InterfaceKind::Bridge { below(largest) } else { Vec::new() };
        let text = if !too_small.is_empty() {
            format!("its MTU is {mtu}, and {} below it", too_small.join(", "))
        } else if !small_ports.is_empty() {
            format!("its ports differ in MTU: {}, others have {largest}", small_ports.join(", "))
        } else {
            continue;
        };
        let effect = "large packets are lost or fragmented where small ones pass";
        found.push(Found::setting(Medium, &upper.name, text, effect).advice("give all of them the same MTU"));
    }
    found
}

/// Returns the bytes of headers that a tunnel adds over IPv4, by its kind (`ethtool -i`).
fn tunnel_headers(kind: &str) -> Option<u32> {
    Some(match kind {
        // Outer IP, UDP, the tunnel's own header, inner Ethernet.
        "vxlan" | "geneve" => 50,
        "gretap" | "erspan" => 38,
        "gre" => 24,
        "ipip" | "sit" => 20,
        "wireguard" => 60,
        _ => return None,
    })
}

/// Returns whether a tunnel with an MTU too large for the NIC below it explains fragments.
pub(super) fn explains_fragments(view: &View<'_>) -> bool {
    !tunnel_mtu(view).is_empty()
}

fn tunnel_mtu(view: &View<'_>) -> Vec<Found> {
    const OVER_IPV6: u32 = 20;
    const FEWEST: u64 = 100;
    const ONE_IN: u64 = 1000;
    let counter = |name: &str| view.facts.counter(name);
    let (made, failed) = (counter("Ip.FragCreates"), counter("Ip.FragFails"));
    let sent = counter("Ip.OutRequests").saturating_add(counter("Ip.ForwDatagrams"));
    let affected = made.saturating_add(failed);
    let shows = affected >= FEWEST && affected.saturating_mul(ONE_IN) >= sent;
    let carriers: Vec<&Interface> = view.nics().filter(|nic| nic.mtu.is_some()).collect();
    let mut found = Vec::new();
    for tunnel in view.facts.interfaces.iter().filter(|interface| interface.up) {
        let Some(headers) = tunnel.driver.as_deref().and_then(tunnel_headers) else { continue };
        // A tunnel names the interface below it only if it is bound to one. Otherwise routes decide; the largest MTU is
        // assumed because it causes the fewest false findings.
        let bound = tunnel.lower.iter().filter_map(|name| view.facts.interface(name)).next();
        let below = bound.or_else(|| carriers.iter().copied().max_by_key(|nic| nic.mtu));
        let (Some(below), Some(mtu)) = (below, tunnel.mtu) else { continue };
        let Some(wanted) = below.mtu.map(|below| below.saturating_sub(headers)) else { continue };
        if mtu <= wanted {
            continue;
        }
        let kind = tunnel.driver.as_deref().unwrap_or_default();
        let mut text = format!(
            "its MTU is {mtu}, and {} below it has {}: {kind} adds {headers} bytes, {} over IPv6",
            below.name,
            wanted + headers,
            headers + OVER_IPV6
        );
        let effect = "full packets are cut into two fragments, or dropped where that is forbidden";
        let entry = if shows {
            text += &format!(
                "; this host made {} fragments of {} datagrams and could not send {} for their size, of {} sent",
                count(made),
                count(counter("Ip.FragOKs")),
                count(failed),
                count(sent)
            );
            Found::measured(Medium, &tunnel.name, text, effect)
        } else {
            Found::setting(Low, &tunnel.name, text, effect)
        };
        found.push(entry.advice(format!(
            "`ip link set dev {} mtu {wanted}` ({} over IPv6), and the same in the configuration of what makes the tunnel; or {} bytes and more \
             on {}, where the network below carries that",
            tunnel.name,
            wanted.saturating_sub(OVER_IPV6),
            mtu + headers,
            below.name
        )));
    }
    found
}
