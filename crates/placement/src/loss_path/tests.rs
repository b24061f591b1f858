//! Tests of the losses between two readings.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use evenkeel_model::host::{Feature, QdiscFacts, Softnet};

fn host(drops: u64, softnet: u64, udp: u64) -> HostFacts {
    let qdisc = QdiscFacts {
        kind: "pfifo".into(),
        handle: "1:".into(),
        parent: "root".into(),
        drops,
        ..QdiscFacts::default()
    };
    let mut host = HostFacts::default();
    host.interfaces.push(Interface {
        name: "eth0".into(),
        kind: InterfaceKind::Device,
        qdiscs: vec![qdisc],
        ..Interface::default()
    });
    host.softnet.push(Softnet { processor: 1, dropped: softnet, ..Softnet::default() });
    host.sockets.push(SocketFacts {
        kind: SocketKind::Udp,
        local: "0.0.0.0:53".into(),
        drops: udp,
        ..SocketFacts::default()
    });
    host.counters.insert("Udp.RcvbufErrors".into(), udp + 2);
    host
}

#[test]
fn losses_are_what_was_gained_in_the_order_of_the_way() {
    let found = losses(&host(5, 0, 10), &host(8, 2, 40));
    let short: Vec<_> = found.iter().map(|loss| (loss.place, loss.packets, loss.rule)).collect();
    assert_eq!(
        short,
        [
            (Place::Qdisc, 3, "qdisc-drops"),
            (Place::SoftnetBacklog, 2, "backlog-drops"),
            (Place::ReceiveQueue, 30, "udp-receive-buffer")
        ]
    );
    assert!(losses(&host(8, 2, 40), &host(8, 2, 40)).is_empty());
}

/// Each reading takes time, and a socket can drop further datagrams in that time.
#[test]
fn drops_during_a_reading_are_not_those_of_another_socket() {
    let reading = |socket: u64, early: u64, late: u64| {
        let mut host = host(0, 0, socket);
        host.counters.insert("Udp.RcvbufErrors".into(), late);
        host.counters_before.insert("Udp.RcvbufErrors".into(), early);
        host
    };
    let lost = |before: &HostFacts, after: &HostFacts| {
        losses(before, after).iter().map(|loss| (loss.subject.clone(), loss.packets)).collect::<Vec<_>>()
    };
    let live = ("UDP 0.0.0.0:53".to_owned(), 16_547);
    let gone = |packets: u64| ("UDP, sockets that are gone".to_owned(), packets);
    // The second reading takes longer than the first reading; the difference is 203 datagrams.
    let before = reading(1000, 995, 1010);
    assert_eq!(lost(&before, &reading(17_547, 17_540, 17_760)), std::slice::from_ref(&live));
    // 5,000 datagrams were dropped by a socket that was closed.
    assert_eq!(lost(&before, &reading(17_547, 22_540, 22_760)), [live, gone(4_983)]);
    // If no existing socket drops a datagram, no loss is hidden.
    assert_eq!(lost(&before, &reading(1000, 1015, 1017)), [gone(7)]);
}

#[test]
fn retransmissions_after_own_drops_are_not_counted_again() {
    let sent = |drops, segments| {
        let mut host = host(drops, 0, 0);
        host.counters.insert(RETRANSMISSIONS.into(), segments);
        host
    };
    let short = |before: &HostFacts, after: &HostFacts| {
        losses(before, after).iter().map(|loss| (loss.place, loss.packets)).collect::<Vec<_>>()
    };
    let (before, after) = (sent(5, 100), sent(1561, 1110));
    assert_eq!(short(&before, &after), [(Place::Qdisc, 1556)]);
    assert_eq!(explained_retransmissions(&before, &after), 1010);
    let lost_later = sent(15, 1110);
    assert_eq!(short(&before, &lost_later), [(Place::Qdisc, 10), (Place::Path, 1000)]);
    // Each dropped packet had up to 43 segments.
    let mut large = lost_later;
    let active = Feature { on: true, fixed: false };
    large.interfaces[0].mtu = Some(1500);
    large.interfaces[0].features.insert("tx-generic-segmentation".into(), active);
    assert_eq!(short(&before, &large), [(Place::Qdisc, 10), (Place::Path, 580)]);
    assert_eq!(explained_retransmissions(&before, &large), 430);
}

#[test]
fn counters_of_32_bits_wrap() {
    assert_eq!(gained_of_32_bits(Some(u64::from(u32::MAX) - 4), 5), 10);
    assert_eq!(gained_of_32_bits(Some(1000), 5), 5, "it restarted");
    assert_eq!(gained_of_32_bits(Some(5), 12), 7);
    let qdiscs = losses(&host(u64::from(u32::MAX), 0, 0), &host(2, 0, 0));
    assert_eq!(qdiscs[0].packets, 3);
}

#[test]
fn prunes_are_no_packets() {
    let counters = |names: &[(&str, u64)]| {
        let mut host = HostFacts::default();
        host.counters.extend(names.iter().map(|(name, value)| ((*name).to_owned(), *value)));
        host
    };
    let lost = |host: &HostFacts| {
        let mut before = HostFacts::default();
        before.counters.extend(host.counters.keys().map(|name| (name.clone(), 0)));
        losses(&before, host).iter().map(|loss| loss.packets).sum::<u64>()
    };
    let events = [("TcpExt.PruneCalled", 90), ("TcpExt.RcvPruned", 30), ("TcpExt.OfoPruned", 20)];
    assert_eq!(lost(&counters(&events)), 30, "an old kernel");
    let today = [&events[..], &[("TcpExt.TCPRcvQDrop", 28), ("TcpExt.TCPOFODrop", 2)]].concat();
    assert_eq!(lost(&counters(&today)), 30);
    // If a socket drops a datagram for lack of memory, the loss is counted at the socket only.
    let mut udp = counters(&[("Udp.MemErrors", 7), ("Udp.RcvbufErrors", 3)]);
    udp.sockets.push(SocketFacts { kind: SocketKind::Udp, drops: 10, ..SocketFacts::default() });
    assert_eq!(lost(&udp), 10);
}

/// Each case: counters that grow, and the losses by rule.
#[test]
fn a_packet_that_two_counters_count_is_one_loss() {
    let lost = |counters: &[(&str, u64)], drops: u64| {
        let mut before = host(0, 0, 0);
        for (name, _) in counters {
            before.counters.insert((*name).to_owned(), 100);
        }
        let mut after = host(drops, 0, 0);
        for (name, gain) in counters {
            after.counters.insert((*name).to_owned(), 100 + gain);
        }
        let found = losses(&before, &after).into_iter();
        found.map(|loss| (loss.rule, loss.packets)).collect::<Vec<_>>()
    };
    let sent = [("Ip.OutDiscards", 50), ("Udp.SndbufErrors", 60)];
    assert_eq!(lost(&sent, 50), [("qdisc-drops", 50), ("udp-send-buffer", 10)]);
    assert_eq!(lost(&sent, 20), [("qdisc-drops", 20), ("ip-discards", 30), ("udp-send-buffer", 10)]);
    assert_eq!(lost(&sent, 0), [("ip-discards", 50), ("udp-send-buffer", 10)]);
    let tracked = [("Conntrack.drop", 30), ("Conntrack.insert_failed", 20), ("Ip.OutDiscards", 30)];
    assert_eq!(lost(&tracked, 0), [("conntrack-races", 20), ("conntrack-full", 10)]);
    let six = [("Ndisc.table_fulls", 9), ("Snmp6.Ip6OutNoRoutes", 9), ("Snmp6.Ip6OutDiscards", 9)];
    assert_eq!(lost(&six, 0), [("neighbours-full", 9)]);
    // TCP retransmits the segments that waited for a neighbour's address in vain.
    let waiting = [("Arp.unresolved_discards", 7), (RETRANSMISSIONS, 10)];
    assert_eq!(lost(&waiting, 0), [("neighbours-unresolved", 7), ("retransmissions", 3)]);
}

#[test]
fn a_damaged_datagram_is_one_loss() {
    let with = |sockets: u64, full: u64, damaged: u64| {
        let mut host = host(0, 0, sockets);
        host.counters.insert("Udp.RcvbufErrors".into(), full);
        host.counters.insert("Udp.InCsumErrors".into(), damaged);
        host
    };
    let lost = |after: &HostFacts| {
        let found = losses(&with(0, 0, 0), after).into_iter();
        found.map(|loss| (loss.rule, loss.packets)).collect::<Vec<_>>()
    };
    let (buffer, damaged) = ("udp-receive-buffer", "checksum-errors");
    assert_eq!(lost(&with(30, 30, 5)), [(damaged, 5), (buffer, 30)], "verified before the socket");
    assert_eq!(lost(&with(35, 30, 5)), [(buffer, 35)], "verified at the socket");
    assert_eq!(lost(&with(0, 0, 5)), [(damaged, 5)]);
}

#[test]
fn frames_of_unknown_protocols_are_no_loss_where_the_driver_counts() {
    let nic = |ring: Option<u64>| {
        let losses = LossCounters { ring, other: Some(500), ..Default::default() };
        let nic =
            Interface { name: "eth0".into(), kind: InterfaceKind::Device, losses, ..Interface::default() };
        HostFacts { interfaces: vec![nic], ..HostFacts::default() }
    };
    let lost = |ring| losses(&HostFacts::default(), &nic(ring)).iter().map(|loss| loss.packets).sum::<u64>();
    assert_eq!((lost(Some(3)), lost(None)), (3, 500));
}

#[test]
fn every_loss_has_a_rule_that_exists() {
    for reason in [
        "QDISC_DROP",
        "FULL_RING",
        "CPU_BACKLOG",
        "SOCKET_BACKLOG",
        "SOCKET_RCVBUFF",
        "PROTO_MEM",
        "NEIGH_QUEUEFULL",
        "NEIGH_CREATEFAIL",
        "IP_INNOROUTES",
        "IP_INHDR",
        "FRAG_TOO_FAR",
        "PKT_TOO_BIG",
        "TCP_CSUM",
    ] {
        let (_, rule) = place_of_reason(reason, None, false).unwrap();
        assert!(crate::find_rule(rule).is_some(), "{rule}");
    }
    assert_eq!(place_of_reason("NOT_SPECIFIED", None, false), None);
    for HostCounter { rule, .. } in HOST_COUNTERS {
        assert!(crate::find_rule(rule).is_some(), "{rule}");
    }
    let udp_only = ["NO_SOCKET", "IP_RPFILTER"].map(|reason| {
        [Some(UDP), Some(6), None].map(|protocol| Some(place_of_reason(reason, protocol, false)?.1))
    });
    let strict = Some("reverse-path-drops");
    assert_eq!(udp_only, [[Some("udp-no-port"), None, None], [strict; 3]]);
}

const LOST: u64 = 1_000_000;
/// With [`LOST`] packets, 1 % of the packets are lost.
const PASSED: u64 = 99_000_000;

/// Creates a host with traffic and without losses: a NIC, a veth and a tunnel.
fn sound_host() -> HostFacts {
    let interface = |name: &str, kind| Interface {
        name: name.into(),
        kind,
        up: true,
        speed_bps: Some(10_000_000_000),
        losses: LossCounters {
            ring: Some(0),
            nic: Some(0),
            wire: Some(0),
            driver: Some(0),
            other: Some(0),
            transmit: Some(0),
            allowance: Some(0),
            ..LossCounters::default()
        },
        statistics: [("rx_packets", PASSED), ("tx_packets", PASSED)]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        qdiscs: vec![QdiscFacts {
            kind: "pfifo".into(),
            handle: "1:".into(),
            parent: "root".into(),
            packets: PASSED,
            ..QdiscFacts::default()
        }],
        ..Interface::default()
    };
    let mut host = HostFacts {
        uptime_s: Some(100_000),
        interfaces: vec![
            interface("eth0", InterfaceKind::Device),
            interface("veth0", InterfaceKind::Veth),
            interface("wg0", InterfaceKind::Virtual),
        ],
        softnet: vec![Softnet { processed: PASSED, ..Softnet::default() }],
        ..HostFacts::default()
    };
    for name in [
        "Ip.InReceives",
        "Ip.OutRequests",
        "Tcp.InSegs",
        "Tcp.OutSegs",
        "Tcp.PassiveOpens",
        "Udp.InDatagrams",
        "Udp.OutDatagrams",
    ] {
        host.counters.insert(name.to_owned(), PASSED);
    }
    host.sysctls.insert("net/ipv4/tcp_tw_recycle".to_owned(), "1".to_owned());
    host
}

/// The watch counts a loss at each place where a host can lose packets. `check` must find a loss of 1 % at
/// this place, with the rule that the watch names.
#[test]
fn each_counted_loss_of_one_percent_has_a_finding_of_its_rule() {
    type Plant = Box<dyn Fn(&mut HostFacts)>;
    let counter = |name: &str| -> (String, Plant) {
        let key = name.to_owned();
        let plant: Plant = Box::new(move |host| {
            host.counters.insert(key.clone(), LOST);
        });
        (name.to_owned(), plant)
    };
    let mut plants: Vec<(String, Plant)> = HOST_COUNTERS.iter().map(|row| counter(row.name)).collect();
    plants.extend(
        [
            "TcpExt.TCPRcvQDrop",
            "TcpExt.TCPOFODrop",
            "TcpExt.TCPZeroWindowDrop",
            "TcpExt.RcvPruned",
            "Udp.RcvbufErrors",
            "Snmp6.Udp6RcvbufErrors",
            "Udp.MemErrors",
            "Udp.InCsumErrors",
            "Snmp6.Udp6InCsumErrors",
            "Udp.InErrors",
            "Snmp6.Udp6InErrors",
            "Udp.SndbufErrors",
            "Snmp6.Udp6SndbufErrors",
            "Ip.OutDiscards",
            "Snmp6.Ip6OutDiscards",
            RETRANSMISSIONS,
        ]
        .map(counter),
    );
    for name in ["Ip.InHdrErrors", "Snmp6.Ip6InHdrErrors"] {
        let plant: Plant = Box::new(move |host| {
            host.counters.insert("Ip.ForwDatagrams".to_owned(), PASSED);
            host.counters.insert(name.to_owned(), LOST);
        });
        plants.push((format!("{name} of a router"), plant));
    }
    for kind in [SocketKind::Udp, SocketKind::Raw] {
        let socket = SocketFacts { kind, local: "0.0.0.0:17".into(), drops: LOST, ..SocketFacts::default() };
        plants.push((format!("{kind:?}"), Box::new(move |host| host.sockets.push(socket.clone()))));
    }
    plants.push(("backlog".into(), Box::new(|host| host.softnet[0].dropped = LOST)));
    plants.push(("qdisc".into(), Box::new(|host| host.interfaces[0].qdiscs[0].drops = LOST)));
    type Field = fn(&mut LossCounters) -> &mut Option<u64>;
    // The kernel always shows the packets that a NIC missed, so `rx_dropped` of a NIC does not count.
    let fields: [(&str, Field, bool); 7] = [
        ("ring", |losses| &mut losses.ring, true),
        ("nic", |losses| &mut losses.nic, true),
        ("wire", |losses| &mut losses.wire, true),
        ("driver", |losses| &mut losses.driver, true),
        ("other", |losses| &mut losses.other, false),
        ("transmit", |losses| &mut losses.transmit, true),
        ("allowance", |losses| &mut losses.allowance, true),
    ];
    for (name, field, is_of_nic) in fields {
        let is_of_others = name != "allowance";
        for (at, interface) in ["eth0", "veth0", "wg0"].into_iter().enumerate() {
            if if at == 0 { is_of_nic } else { is_of_others } {
                let plant: Plant = Box::new(move |host| {
                    let nic = &mut host.interfaces[at];
                    *field(&mut nic.losses) = Some(LOST);
                    if name == "allowance" {
                        nic.driver_statistics.insert("pps_allowance_exceeded".to_owned(), LOST);
                    }
                });
                plants.push((format!("{name} of {interface}"), plant));
            }
        }
    }
    let mut before = sound_host();
    for (_, plant) in &plants {
        plant(&mut before);
    }
    let names: Vec<String> = before.counters.keys().cloned().collect();
    let mut wrong = Vec::new();
    for (name, plant) in &plants {
        let (mut before, mut after) = (sound_host(), sound_host());
        for name in &names {
            before.counters.entry(name.clone()).or_insert(0);
        }
        plant(&mut after);
        let found = losses(&before, &after);
        if found.is_empty() {
            wrong.push(format!("{name}: no loss"));
        }
        let findings = crate::judge(&after).findings;
        for loss in found.iter().filter(|loss| !findings.iter().any(|finding| finding.rule == loss.rule)) {
            let rules: Vec<_> = findings.iter().map(|finding| finding.rule).collect();
            wrong.push(format!("{name}: {} has no finding of {}, but {rules:?}", loss.counter, loss.rule));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A veth counts a packet that the other end does not take at both ends.
#[test]
fn a_packet_that_both_ends_of_a_veth_drop_is_one_loss() {
    let veth = |name: &str, index, peer, dropped: [u64; 2]| Interface {
        name: name.into(),
        index: Some(index),
        peer: Some(peer),
        kind: InterfaceKind::Veth,
        losses: LossCounters {
            nic: Some(0),
            other: Some(dropped[0]),
            transmit: Some(dropped[1]),
            ..Default::default()
        },
        ..Interface::default()
    };
    let lost = |softnet, interfaces: &dyn Fn(u64) -> Vec<Interface>| {
        let host = |dropped, interfaces| HostFacts {
            softnet: vec![Softnet { dropped, ..Softnet::default() }],
            interfaces,
            ..HostFacts::default()
        };
        let found = losses(&host(0, interfaces(0)), &host(softnet, interfaces(1)));
        found.into_iter().map(|loss| (loss.subject, loss.place, loss.packets, loss.rule)).collect::<Vec<_>>()
    };
    let rule = "virtual-drops";
    let alone = |times| vec![veth("v0", 4, 5, [times * 70, 0])];
    assert_eq!(lost(0, &alone), [("v0".to_owned(), Place::ReceiveRing, 70, rule)]);
    let both = |times| vec![veth("v0", 4, 5, [times * 70, 0]), veth("v1", 5, 4, [0, times * 60])];
    let sent = ("v1".to_owned(), Place::TransmitRing, 60, rule);
    assert_eq!(lost(0, &both), [sent, ("v0".to_owned(), Place::ReceiveRing, 10, rule)]);
    // The index of the other end is that of another veth of this namespace.
    let other = |times| vec![veth("v0", 4, 5, [times * 70, 0]), veth("v1", 5, 9, [0, times * 60])];
    assert_eq!(lost(0, &other).iter().map(|(_, _, packets, _)| packets).sum::<u64>(), 130);
    let backlog = ("processor 0".to_owned(), Place::SoftnetBacklog, 50, "backlog-drops");
    assert_eq!(lost(50, &alone), [("v0".to_owned(), Place::ReceiveRing, 20, rule), backlog]);
}

#[test]
fn a_request_or_a_header_that_two_counters_count_is_one_loss() {
    let lost = |counters: &[(&str, u64)]| {
        let mut before = HostFacts::default();
        before.counters.extend(counters.iter().map(|(name, _)| ((*name).to_owned(), 0)));
        let mut after = HostFacts::default();
        after.counters.extend(counters.iter().map(|(name, value)| ((*name).to_owned(), *value)));
        let found = losses(&before, &after).into_iter();
        found.map(|loss| (loss.rule, loss.packets)).collect::<Vec<_>>()
    };
    let requests = [
        ("TcpExt.ListenDrops", 100),
        ("TcpExt.ListenOverflows", 50),
        ("TcpExt.TCPReqQFullDrop", 30),
        ("TcpExt.PAWSPassive", 5),
    ];
    let rules =
        [("listen-overflow", 50), ("syn-queue-full", 30), ("syn-queue-full", 15), ("timestamps-refused", 5)];
    assert_eq!(lost(&requests), rules);
    let headers = [("Ip.InHdrErrors", 70), ("IpExt.InCsumErrors", 60)];
    assert_eq!(lost(&headers), [("checksum-errors", 60), ("ip-header-errors", 10)]);
    let of_router = [&headers[..], &[("Ip.ForwDatagrams", 9)]].concat();
    assert_eq!(lost(&of_router), [("checksum-errors", 60), ("ttl-expired", 10)]);
    let datagrams = [
        ("Udp.InErrors", 100),
        ("Udp.RcvbufErrors", 40),
        ("Udp.MemErrors", 10),
        ("Udp.InCsumErrors", 20),
        ("TcpExt.PFMemallocDrop", 5),
    ];
    let rules =
        [("udp-errors", 25), ("checksum-errors", 20), ("memory-reclaim", 5), ("udp-receive-buffer", 50)];
    assert_eq!(lost(&datagrams), rules);
}
