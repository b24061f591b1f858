//! Rules about the MTU: of fast links, of layers, of tunnels, and of paths.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::host::{Interface, InterfaceKind, SocketFacts};

use super::{Found, Rule, needs};
use crate::Severity::{Low, Medium};
use crate::View;
use crate::view::{count, gigabits};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "mtu-standard",
        looks_at: "the MTU of links that are faster than one processor can receive in packets of 1,500 bytes",
        fires_when: "low: above 25 Gbit/s, the MTU is at most 1,500, TCP has at least 5 % of the packets, and fewer \
                     than a tenth of the connections have a smaller path MTU",
        why: "The cost is per packet: one flow of the paper's hosts reached 25 Gbit/s with 1,500 bytes, 43 with \
              9,000. Not every path carries jumbo frames; towards the Internet 1,500 is right.",
        fix: "9,000 bytes on all hosts and switches of the network, with MTU probing for paths beyond it",
        source: "the paper, section II-A, figure 5, and Table I (Maximum Transmission Unit)",
        needs: &[needs::SPEED, needs::MTU, needs::SOCKETS],
        check: standard_mtu,
    },
    Rule {
        name: "mtu-mismatch",
        looks_at: "the MTU of bonds, bridges, VLANs and other upper interfaces against the interfaces below, and of \
                   a bridge's ports against each other",
        fires_when: "medium: an interface below has a smaller MTU, or a port of a bridge a smaller one than another \
                     port",
        why: "Large packets are dropped or fragmented while small ones pass: connections hang when they carry data.",
        fix: "the same MTU from top to bottom",
        source: "RFC 4821, section 1; Documentation/networking/bridge.rst; __is_skb_forwardable, include/linux/netdevice.h",
        needs: &[needs::MTU, needs::STATISTICS],
        check: mtu_mismatch,
    },
    Rule {
        name: "mtu-tunnel",
        looks_at: "the MTU of tunnels (VXLAN, Geneve, GRE, ERSPAN, IP in IP, WireGuard) against the one below less \
                   the headers, and datagrams fragmented or too large to send (Ip.FragCreates, FragFails)",
        fires_when: "low: a full packet of the tunnel does not fit below; medium: also from 100 fragments made or \
                     datagrams not sent, one in 1,000 sent packets",
        why: "The host fragments the outer packet, or drops it if that is forbidden. Fragments double the packets, \
              cannot use GRO and share one queue per pair of hosts; one lost fragment loses the packet.",
        fix: "the MTU below less the headers (VXLAN, Geneve: 50 bytes, 70 over IPv6), or a larger MTU below",
        source: "RFC 7348, section 4.3; vxlan_headroom, include/net/vxlan.h; RFC 8900; Documentation/networking/snmp_counter.rst",
        needs: &[needs::MTU, needs::SNMP, needs::DRIVER],
        check: tunnel_mtu,
    },
    Rule {
        name: "mtu-above-path",
        looks_at: "path MTU of an interface's connections (pmtu of tcp_info) against its MTU, and ICMP messages \
                   about unreachable destinations or sizes (Icmp.InDestUnreachs, Icmp6InPktTooBigs)",
        fires_when: "medium: at least 10 connections to at least two addresses, and 90 % of the interface's \
                     connections, have the same path MTU, below the interface's MTU, and 100 such messages arrived, \
                     one per 10 minutes since boot; low: an idle NIC",
        why: "Each path loses its first full packet until a router reports the size, again when the kernel's value \
              expires (10 minutes). If ICMP is filtered, connections hang.",
        fix: "the MTU of the network at the interface, or a larger one in the network",
        source: "RFC 1191; RFC 8201; Documentation/networking/ip-sysctl.rst (mtu_expires); Google Cloud, VPC: maximum transmission unit",
        needs: &[needs::MTU, needs::SOCKETS, needs::SNMP, needs::STATISTICS],
        check: above_path,
    },
];

fn standard_mtu(view: &View<'_>) -> Vec<Found> {
    const ABOVE_BPS: u64 = 25_000_000_000;
    let mut found = Vec::new();
    for nic in view.nics() {
        let (Some(speed), Some(mtu)) = (nic.speed_bps, nic.mtu) else { continue };
        if speed <= ABOVE_BPS || mtu > 1500 || !view.carries_tcp() || has_smaller_paths(view, nic, mtu) {
            continue;
        }
        /// Bytes of a packet on the line besides its MTU: header, checksum, preamble and gap of Ethernet.
        const LINE_OVERHEAD: f64 = 38.0;
        let millions = |mtu: u32| speed as f64 / 8.0 / (f64::from(mtu) + LINE_OVERHEAD) / 1e6;
        let text = format!(
            "MTU {} at {}: {:.1} million packets a second at line rate, with 9,000 bytes {:.1}",
            mtu,
            gigabits(speed as f64),
            millions(mtu),
            millions(9000)
        );
        let effect = "one flow reached 25 Gbit/s with 1,500 bytes and 43 with 9,000 (LCN 2019 paper)";
        let advice = format!(
            "if every host and switch of this network supports it: `ip link set dev {} mtu 9000`, with \
             net.ipv4.tcp_mtu_probing=1 for paths beyond it; otherwise keep it",
            nic.name
        );
        found.push(Found::setting(Low, &nic.name, text, effect).advice(advice));
    }
    found
}

/// Returns the path MTU of a connection, bytes, or `None` if it is unknown.
fn path_mtu(socket: &SocketFacts) -> Option<u64> {
    socket.tcp.as_ref().map(|tcp| tcp.pmtu).filter(|mtu| *mtu > 0)
}

/// Returns whether the network behind a NIC carries less than the NIC's MTU on at least a tenth of the known
/// paths, so that jumbo frames cannot pass.
fn has_smaller_paths(view: &View<'_>, nic: &Interface, mtu: u32) -> bool {
    const ONE_IN: usize = 10;
    let paths: Vec<u64> = view.connections(nic).into_iter().filter_map(path_mtu).collect();
    let small = paths.iter().filter(|path| **path < u64::from(mtu)).count();
    small > 0 && small * ONE_IN >= paths.len()
}

fn above_path(view: &View<'_>) -> Vec<Found> {
    const FEWEST: usize = 10;
    const SHARE: f64 = 0.9;
    const FEWEST_MESSAGES: u64 = 100;
    /// Default of net.ipv4.route.mtu_expires and net.ipv6.route.mtu_expires, s.
    const KEPT_S: f64 = 600.0;
    let counter = |name: &str| view.facts.counter(name);
    let messages = counter("Icmp.InDestUnreachs").saturating_add(counter("Snmp6.Icmp6InPktTooBigs"));
    if messages < FEWEST_MESSAGES || view.per_second(messages).is_some_and(|rate| rate * KEPT_S < 1.0) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let carries = |interface: &&Interface| interface.up && interface.kind != InterfaceKind::Loopback;
    for interface in view.facts.interfaces.iter().filter(carries) {
        let Some(mtu) = interface.mtu else { continue };
        let paths: Vec<(&SocketFacts, u64)> = view
            .own_connections(interface)
            .into_iter()
            .filter_map(|socket| Some((socket, path_mtu(socket)?)))
            .collect();
        let mut sizes: BTreeMap<u64, usize> = BTreeMap::new();
        for (_, size) in &paths {
            *sizes.entry(*size).or_insert(0) += 1;
        }
        let Some((size, alike)) = sizes.into_iter().max_by_key(|(_, number)| *number) else { continue };
        let address =
            |socket: &SocketFacts| socket.remote.rsplit_once(':').map(|(address, _)| address.to_owned());
        let of_size = paths.iter().filter(|(_, path)| *path == size);
        let peers: BTreeSet<String> = of_size.filter_map(|(socket, _)| address(socket)).collect();
        let is_common = alike >= FEWEST && alike as f64 >= SHARE * paths.len() as f64 && peers.len() > 1;
        if size >= u64::from(mtu) || !is_common {
            continue;
        }
        let text = format!(
            "its MTU is {mtu}, and the path MTU of {alike} of {} connections, to {} addresses, is {size}; {} ICMP messages about \
             unreachable destinations arrived{}",
            paths.len(),
            peers.len(),
            count(messages),
            view.rate_words(messages)
        );
        let effect = "a full packet is lost on each path until a router reports the size, and connections hang if ICMP is filtered";
        let severity = if view.is_idle(interface) { Low } else { Medium };
        found.push(Found::measured(severity, &interface.name, text, effect).advice(format!(
            "`ip link set dev {} mtu {size}`, and the same in the configuration of the interface (DHCP option 26, the image); or an MTU of {mtu} \
             in the network",
            interface.name
        )));
    }
    found
}

/// Returns an interface's MTU and its transmit drops as text. The drops include packets larger than the MTU.
fn mtu_words(interface: &Interface, mtu: u32) -> String {
    const FEWEST: u64 = 100;
    let dropped = interface.losses.transmit.filter(|dropped| *dropped >= FEWEST);
    let dropped = dropped.map(|dropped| format!(" and dropped {} packets when sending", count(dropped)));
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
            format!("its MTU is {mtu}, and below it {}", too_small.join(", "))
        } else if !small_ports.is_empty() {
            format!("its ports differ in MTU: {}, others have {largest}", small_ports.join(", "))
        } else {
            continue;
        };
        let effect = "large packets are lost or fragmented while small ones pass";
        found.push(
            Found::setting(Medium, &upper.name, text, effect)
                .advice("give all these interfaces the same MTU"),
        );
    }
    found
}

/// Returns the bytes of headers that a tunnel adds over IPv4, by its kind (`ethtool -i`).
fn tunnel_headers(kind: &str) -> Option<u32> {
    Some(match kind {
        // Outer IP, UDP, the tunnel's own header, inner Ethernet.
        "vxlan" | "geneve" => 50,
        // Outer IP, GRE with a sequence number, the header of version 1, inner Ethernet.
        "erspan" => 50,
        "gretap" => 38,
        "gre" => 24,
        "ipip" | "sit" => 20,
        "wireguard" => 60,
        _ => return None,
    })
}

/// Returns whether a tunnel with an MTU too large for the NIC below it explains fragments.
pub(super) fn explains_fragments(view: &View<'_>) -> bool {
    !super::reported(view, "mtu-tunnel").is_empty()
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
        // A tunnel names the interface below it only if the tunnel is bound to an interface. Otherwise
        // routes decide. The rule then assumes the largest MTU, because it causes the fewest false
        // findings.
        let bound = tunnel.lower.iter().filter_map(|name| view.facts.interface(name)).next();
        let below = bound.or_else(|| carriers.iter().copied().max_by_key(|nic| nic.mtu));
        let (Some(below), Some(mtu)) = (below, tunnel.mtu) else { continue };
        let Some(wanted) = below.mtu.map(|below| below.saturating_sub(headers)) else { continue };
        if mtu <= wanted {
            continue;
        }
        let kind = tunnel.driver.as_deref().unwrap_or_default();
        let mut text = format!(
            "its MTU is {mtu}, and below it {} has {}: {kind} adds {headers} bytes, {} over IPv6",
            below.name,
            wanted + headers,
            headers + OVER_IPV6
        );
        let effect = "full packets are cut into two fragments, or dropped if fragments are forbidden";
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
            "`ip link set dev {} mtu {wanted}` ({} over IPv6), and the same in the tunnel's configuration; or at \
             least {} bytes on {}, if the network below carries that",
            tunnel.name,
            wanted.saturating_sub(OVER_IPV6),
            mtu + headers,
            below.name
        )));
    }
    found
}
