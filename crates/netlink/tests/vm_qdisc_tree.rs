//! Tests of qdisc trees on a kernel that has all kinds; modules are loaded on demand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../scripts/vm/guest.rs"]
mod guest;
mod support;

use std::collections::BTreeMap;

use evenkeel_model::qdisc::{Catalogue, Classifier, FilterRules, Surroundings, is_line};
use evenkeel_model::units::BitRate;
use evenkeel_netlink::qdisc_tree::{install, install_rules, missing_classifiers, qdisc_counters};
use evenkeel_netlink::tc::Handle;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::UdpGsoSegment;
use support::{Hosts, NAME, RECEIVER, ports};

fn class(minor: u16) -> Handle {
    Handle::new(1, minor)
}

/// Returns the drops of the qdisc 1:. Its classes do not count packets that the qdisc refuses.
fn drops(hosts: &mut Hosts) -> u64 {
    let counted = qdisc_counters(&mut hosts.netlink, hosts.index).unwrap();
    counted.iter().find(|qdisc| qdisc.handle == class(0)).unwrap().drops
}

#[test]
fn every_bundled_setup_is_made() {
    guest::require();
    let mut hosts = Hosts::new();
    assert_eq!(hosts.install_every_bundled_setup(), [].into());
    assert_eq!(missing_classifiers(&mut hosts.netlink, hosts.index).unwrap(), [].into());
}

#[test]
fn options_are_those_that_tc_shows() {
    guest::require();
    let mut hosts = Hosts::new();
    for (steps, shown) in [
        (
            &[
                "qdisc root handle 7: fq limit 5000 flow_limit 50 buckets 512 quantum 3000 maxrate 1gbit nopacing horizon 5s \
               horizon_cap refill_delay 20ms",
            ][..],
            &[
                "limit 5000p",
                "flow_limit 50p",
                "buckets 512",
                "quantum 3000b",
                "maxrate 1Gbit",
                "nopacing",
                "horizon 5s",
                "horizon_cap",
                "refill_delay 20ms",
            ][..],
        ),
        (
            &[
                "qdisc root handle 7: fq_codel limit 500 flows 64 quantum 3000 target 8ms interval 80ms memory_limit 1mb \
               drop_batch 16 noecn",
            ],
            &[
                "limit 500p",
                "flows 64",
                "quantum 3000",
                "target 8ms",
                "interval 80ms",
                "memory_limit 1Mb",
                "drop_batch 16",
            ],
        ),
        (
            &["qdisc root handle 7: codel limit 500 target 8ms interval 80ms ecn"],
            &["limit 500p", "target 8ms", "interval 80ms ecn"],
        ),
        (
            &["qdisc root handle 7: pie limit 500 target 16ms tupdate 32ms alpha 3 beta 21 ecn"],
            &["limit 500p", "target 16ms", "tupdate 32ms", "alpha 3", "beta 21", "ecn"],
        ),
        (
            &[
                "qdisc root handle 7: sfq limit 1000 perturb 10 quantum 3000b flows 200 divisor 512 depth 100 headdrop",
            ],
            &["limit 1000p", "quantum 3000b", "depth 100", "divisor 512", "perturb 10sec", "headdrop"],
        ),
        (
            &[
                "qdisc root handle 7: cake bandwidth 100mbit diffserv4 dual-srchost nat wash ack-filter no-split-gso rtt 50ms \
               memlimit 4mb overhead 18 mpu 64",
            ],
            &[
                "bandwidth 100Mbit",
                "diffserv4",
                "dual-srchost",
                "nat",
                "wash",
                "ack-filter",
                "no-split-gso",
                "rtt 50ms",
                "overhead 18",
                "mpu 64",
                "memlimit 4Mb",
            ],
        ),
        (&["qdisc root handle 7: cake unlimited"], &["bandwidth unlimited", "diffserv3", "triple-isolate"]),
        (
            &["qdisc root handle 7: prio bands 4 priomap 3 2 1 0 3 2 1 0 3 2 1 0 3 2 1 0"],
            &["bands 4 priomap 3 2 1 0 3 2 1 0 3 2 1 0 3 2 1 0"],
        ),
        (
            &["qdisc root handle 7: ets bands 4 strict 1 quanta 3000 4500 6000 priomap 3 2 1 0"],
            &["bands 4 strict 1 quanta 3000 4500 6000", "priomap 3 2 1 0"],
        ),
        (
            &["qdisc root handle 7: hfsc default 2", "class parent 7: classid 7:2 hfsc ls rate 1mbit"],
            &["hfsc 7: root", "default 2"],
        ),
        // This kind is not in the catalogue, so the step gives its options by number (TCA_FQ_PIE_LIMIT,
        // TCA_FQ_PIE_FLOWS).
        (
            &["qdisc root handle 7: fq_pie attribute 1 u32 777 attribute 2 u32 333"],
            &["fq_pie 7: root", "limit 777p", "flows 333"],
        ),
    ] {
        hosts.install(steps, 1, 0);
        let qdiscs = hosts.sees("tc", &["qdisc", "show", "dev", NAME]);
        for word in shown {
            assert!(qdiscs.contains(word), "{steps:?} {word}\n{qdiscs}");
        }
    }
    for (steps, shown) in [
        (
            [
                "qdisc root handle 7: hfsc",
                "class parent 7: classid 7:2 hfsc sc m1 1mbit d 5ms m2 2mbit ul rate 8mbit",
            ],
            &["sc m1 1Mbit d 5ms m2 2Mbit", "ul m1 0bit d 0us m2 8Mbit"][..],
        ),
        (["qdisc root handle 7: drr", "class parent 7: classid 7:2 drr quantum 3000"], &["quantum 3000b"]),
        (
            ["qdisc root handle 7: qfq", "class parent 7: classid 7:2 qfq weight 3 maxpkt 2048"],
            &["weight 3 maxpkt 2048"],
        ),
    ] {
        hosts.install(&steps, 1, 0);
        let classes = hosts.sees("tc", &["-d", "class", "show", "dev", NAME]);
        for word in shown {
            assert!(classes.contains(word), "{steps:?} {word}\n{classes}");
        }
    }
}

#[test]
fn flows_and_roles_reach_their_classes_in_every_classful_kind() {
    guest::require();
    let mut hosts = Hosts::new();
    let rate = BitRate::from_bits_per_second(200_000_000);
    for (name, first, rest) in [
        ("drr", 0x101, 2),
        ("qfq", 0x101, 2),
        ("hfsc", 0x101, 2),
        ("htb", 0x101, 2),
        ("htb-capped", 0x101, 2),
        ("ets", 1, 16),
    ] {
        let tree = Catalogue::bundled().get(name).unwrap().resolve(&Hosts::surroundings(5, 2)).unwrap();
        install(&mut hosts.netlink, hosts.index, &tree.on_line(rate)).unwrap();
        let sent: Vec<u16> = ports(5, 2).into_iter().chain([5206, 11_113]).collect();
        let mut found = hosts.packets_of_classes(&sent);
        // Leave out the inner class 1:1, because its counters include those of its leaves. In `ets`, 1:1 is a
        // leaf.
        found.retain(|handle, _| handle.major == 1 && (name == "ets" || handle.minor != 1));
        let expected = (first..first + 7).map(|minor| (class(minor), 1)).chain([(class(rest), 2)]).collect();
        assert_eq!(found, expected, "{name}");
    }
    for (name, probes, bulk) in [
        ("prio", 1, 2),
        ("ets-priority", 1, 2),
        ("sfq-prio", 1, 2),
        ("htb-priority", 0x10, 0x20),
        ("htb-two-classes", 0x10, 0x20),
    ] {
        let tree = Catalogue::bundled().get(name).unwrap().resolve(&Hosts::surroundings(5, 2)).unwrap();
        install(&mut hosts.netlink, hosts.index, &tree.on_line(rate)).unwrap();
        let mut found = hosts.packets_of_classes(&[11_111, 11_112, 5201, 5202, 5203, 9]);
        found.retain(|handle, _| handle.major == 1 && (probes == 1 || handle.minor != 1));
        assert_eq!(found, BTreeMap::from([(class(probes), 2), (class(bulk), 4)]), "{name}");
    }
}

#[test]
fn tcp_passes_whole_through_classes() {
    guest::require();
    let mut hosts = Hosts::new();
    const BYTES: usize = 1_000_000;
    let rate = BitRate::from_bits_per_second(100_000_000);
    // QFQ drops GSO packets of more than 64 KiB with all headers (`QFQ_MAX_LMAX`, net/sched/sch_qfq.c).
    hosts.netlink.set_gso_max_size(hosts.index, 61_440).unwrap();
    for name in ["drr", "qfq", "hfsc", "htb"] {
        let tree = Catalogue::bundled().get(name).unwrap().resolve(&Hosts::surroundings(2, 1)).unwrap();
        install(&mut hosts.netlink, hosts.index, &tree.on_line(rate)).unwrap();
        // Packets that were sent during the creation of classes and filter may have had no class.
        let before = drops(&mut hosts);
        let found = hosts.bytes_of_classes(&ports(2, 1), BYTES);
        for minor in [0x101, 0x102, 0x103] {
            let bytes = found[&class(minor)];
            assert!((BYTES as u64..2 * BYTES as u64).contains(&bytes), "{name} {minor:x}: {bytes}");
        }
        assert_eq!(drops(&mut hosts), before, "{name}");
        let counted = qdisc_counters(&mut hosts.netlink, hosts.index).unwrap();
        let root = counted.iter().find(|qdisc| qdisc.handle == class(0)).unwrap();
        let line = counted.iter().find(|qdisc| qdisc.parent == Handle::ROOT).unwrap();
        assert!(line.overlimits > 0 && line.bytes >= root.bytes, "the line was the bottleneck: {line:?}");
    }
}

#[test]
fn mq_has_the_whole_line_on_a_device_that_uses_one_queue() {
    guest::require();
    let mut hosts = Hosts::new();
    // The kernel refuses mq on a device that was created with one queue (`mq_init`,
    // net/sched/sch_mq.c). So the test reduces the queues of a device that has several.
    hosts.sees("ethtool", &["-L", NAME, "tx", "1"]);
    let rate = BitRate::from_bits_per_second(100_000_000);
    let on = Surroundings { queues: 1, ..Hosts::surroundings(2, 0) };
    let tree = Catalogue::bundled().get("mq-fq_codel").unwrap().resolve(&on).unwrap();
    install(&mut hosts.netlink, hosts.index, &tree.on_line(rate)).unwrap();
    const BYTES: u64 = 1_000_000;
    hosts.bytes_of_classes(&ports(2, 0), BYTES as usize);
    let counted = qdisc_counters(&mut hosts.netlink, hosts.index).unwrap();
    let of =
        |kind: &str| counted.iter().filter(|qdisc| qdisc.kind == kind && qdisc.bytes > 0).collect::<Vec<_>>();
    let ([line], [queue]) = (&of("tbf")[..], &of("fq_codel")[..]) else { panic!("{counted:?}") };
    assert!(is_line(line.handle) && queue.parent.major == line.handle.major, "{counted:?}");
    assert!(line.overlimits > 0 && queue.bytes > 2 * BYTES, "{counted:?}");
    let shown = hosts.sees("tc", &["qdisc", "show", "dev", NAME]);
    assert!(shown.contains("tbf fe01: parent 1:1 rate 100Mbit"), "{shown}");
}

#[test]
fn qfq_drops_what_counts_for_more_than_64_kib() {
    guest::require();
    const SEGMENTS: usize = 128;
    /// Length of the Ethernet, IPv4 and UDP headers, which are counted for each segment.
    const HEADERS: u64 = 14 + 20 + 8;
    let mut hosts = Hosts::new();
    // Each case has the payload per segment, and whether the sum of all segments exceeds the limit.
    for (kind, payload, dropped) in [("qfq", 460, false), ("qfq", 480, true), ("drr", 480, false)] {
        let tree = Catalogue::bundled().get(kind).unwrap().resolve(&Hosts::surroundings(1, 0)).unwrap();
        install(&mut hosts.netlink, hosts.index, &tree).unwrap();
        let counted = SEGMENTS as u64 * (payload + HEADERS);
        assert_eq!(counted > 65_536, payload == 480);
        let socket = hosts.socket();
        let before = (hosts.classes()[&class(0x101)].bytes, drops(&mut hosts));
        setsockopt(&socket, UdpGsoSegment, &i32::try_from(payload).unwrap()).unwrap();
        let sent = socket.send_to(&vec![0; SEGMENTS * payload as usize], (RECEIVER, ports(1, 0)[0]));
        // The socket gets no error for a drop, because IP_RECVERR is not set.
        assert_eq!(sent.unwrap(), SEGMENTS * payload as usize);
        let after = (hosts.classes()[&class(0x101)].bytes, drops(&mut hosts));
        let carried = (after.0 - before.0, after.1 - before.1);
        assert_eq!(carried, if dropped { (0, 1) } else { (counted, 0) }, "{kind} {payload}");
    }
}

#[test]
fn all_three_classifiers_match() {
    guest::require();
    let mut hosts = Hosts::new();
    for (classifier, rules) in [
        ("u32 match ip dport 5201 0xffff", Classifier::U32),
        ("flower ip_proto tcp dst_port 5201", Classifier::Flower),
        ("bpf dst_port 5201", Classifier::Bpf),
    ] {
        let filter = format!("filter parent 1: {classifier} classid 1:10");
        let other = filter.replace("5201", "5202").replace("1:10", "1:20");
        hosts.install(
            &[
                "qdisc root handle 1: drr",
                "class parent 1: classid 1:10 drr",
                "class parent 1: classid 1:20 drr",
                "class parent 1: classid 1:30 drr",
                &filter,
                &other,
                "filter parent 1: role probes 1:30 bulk 1:30",
            ],
            2,
            0,
        );
        install_rules(
            &mut hosts.netlink,
            hosts.index,
            class(0),
            &FilterRules { classifier: rules, rules: 1000 },
        )
        .unwrap();
        const BYTES: usize = 100_000;
        let found = hosts.bytes_of_classes(&[5201, 5202, 5203], BYTES);
        for minor in [0x10, 0x20, 0x30] {
            let bytes = found[&class(minor)];
            assert!((BYTES as u64..2 * BYTES as u64).contains(&bytes), "{classifier} {minor:x}: {bytes}");
        }
    }
}
