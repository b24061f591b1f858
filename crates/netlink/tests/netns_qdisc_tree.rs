//! Tests of qdisc trees on the running kernel, in private namespaces. `vm_qdisc_tree.rs` tests the other
//! kinds in the virtual machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use evenkeel_model::qdisc::{Catalogue, Classifier, FilterRules};
use evenkeel_model::units::BitRate;
use evenkeel_netlink::qdisc_tree::{
    InstallError, install, install_rules, missing_classifiers, missing_kinds, qdisc_counters,
};
use evenkeel_netlink::tc::Handle;
use support::{Hosts, NAME, ports, tree};

fn class(minor: u16) -> Handle {
    Handle::new(1, minor)
}

#[test]
fn every_bundled_setup_is_made_or_named_as_lacking() {
    let missing = Hosts::new().install_every_bundled_setup();
    for kind in ["pfifo", "bfifo", "pfifo_fast", "tbf", "htb", "mq"] {
        assert!(!missing.contains(kind), "the test bed needs {kind}");
    }
}

#[test]
fn options_are_those_that_tc_shows() {
    let mut hosts = Hosts::new();
    hosts.install(
        &[
            "qdisc root handle 1: htb default 20 r2q 100 direct_qlen 500",
            "class parent 1: classid 1:1 htb rate 1gbit burst 125000b cburst 125000b",
            "class parent 1:1 classid 1:20 htb rate 50mbit ceil 80gbit burst 62500b cburst 10000000b prio 3 quantum 3000",
            "qdisc parent 1:20 handle 20: tbf rate 10mbit burst 10kb latency 50ms peakrate 20mbit mtu 3000",
        ],
        1,
        0,
    );
    let qdiscs = hosts.sees("tc", &["qdisc", "show", "dev", NAME]);
    assert!(qdiscs.contains("htb 1: root refcnt 5 r2q 100 default 0x20"), "{qdiscs}");
    assert!(qdiscs.contains("direct_qlen 500"), "{qdiscs}");
    assert!(
        qdiscs.contains("tbf 20: parent 1:20 rate 10Mbit burst 10Kb peakrate 20Mbit minburst 3000b"),
        "{qdiscs}"
    );
    assert!(qdiscs.contains("lat 50ms") || qdiscs.contains("lat 49.9ms"), "{qdiscs}");
    let classes = hosts.sees("tc", &["-d", "class", "show", "dev", NAME]);
    let line = classes.lines().find(|line| line.contains("htb 1:20 ")).unwrap();
    assert!(line.contains("parent 1:1 leaf 20: prio 3 quantum 3000 rate 50Mbit ceil 80Gbit"), "{line}");
    assert!(line.contains("burst 62500b") && line.contains("cburst 10000000b"), "{line}");

    for (step, shown) in [
        ("qdisc root handle 7: pfifo limit 123", "pfifo 7: root refcnt 5 limit 123p"),
        ("qdisc root handle 7: bfifo limit 4*mtu", "bfifo 7: root refcnt 5 limit 6000b"),
        ("qdisc root handle 7: pfifo_fast", "pfifo_fast 7: root refcnt 5 bands 3"),
        ("qdisc root handle 7: mq", "mq 7: root"),
    ] {
        hosts.install(&[step], 1, 0);
        let qdiscs = hosts.sees("tc", &["qdisc", "show", "dev", NAME]);
        assert!(qdiscs.contains(shown), "{qdiscs}");
    }
}

#[test]
fn each_flow_and_each_role_reaches_its_class() {
    let mut hosts = Hosts::new();
    let bundled =
        |name: &str| Catalogue::bundled().get(name).unwrap().resolve(&Hosts::surroundings(5, 2)).unwrap();
    let rate = BitRate::from_bits_per_second(200_000_000);
    for tree in [bundled("htb"), bundled("htb").on_line(rate)] {
        install(&mut hosts.netlink, hosts.index, &tree).unwrap();
        let sent: Vec<u16> = ports(5, 2).into_iter().chain([5200, 5206, 11_113, 9]).collect();
        let mut expected: BTreeMap<Handle, u64> = (0x101..0x108).map(|minor| (class(minor), 1)).collect();
        expected.extend([(class(2), 4), (class(1), 11)]);
        let mut found = hosts.packets_of_classes(&sent);
        found.retain(|handle, _| handle.major == 1);
        assert_eq!(found, expected);
    }
    install(&mut hosts.netlink, hosts.index, &bundled("htb-priority")).unwrap();
    let found = hosts.packets_of_classes(&[11_111, 11_112, 5201, 5202, 5203, 40_000]);
    assert_eq!(found, BTreeMap::from([(class(0x10), 2), (class(0x20), 4)]));
}

#[test]
fn tcp_reaches_its_class_whole() {
    let mut hosts = Hosts::new();
    let tree = Catalogue::bundled().get("htb").unwrap().resolve(&Hosts::surroundings(2, 1)).unwrap();
    install(&mut hosts.netlink, hosts.index, &tree).unwrap();
    const BYTES: usize = 2_000_000;
    let found = hosts.bytes_of_classes(&ports(2, 1), BYTES);
    for minor in [0x101, 0x102, 0x103] {
        let bytes = found[&class(minor)];
        // The count includes headers and retransmissions; twice as many bytes would include another flow.
        assert!((BYTES as u64..2 * BYTES as u64).contains(&bytes), "{minor:x}: {bytes}");
    }
    // The last acknowledgements may still be queued.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let counted = qdisc_counters(&mut hosts.netlink, hosts.index).unwrap();
        let root = counted.iter().find(|qdisc| qdisc.parent == Handle::ROOT).unwrap();
        assert!(root.bytes > 3 * BYTES as u64 && root.overlimits > 0, "{root:?}");
        if (root.queue_length, root.backlog_bytes) == (0, 0) {
            break;
        }
        assert!(Instant::now() < deadline, "{root:?}");
        sleep(Duration::from_millis(5));
    }
}

const TWO_CLASSES: [&str; 4] = [
    "qdisc root handle 1: htb default 30",
    "class parent 1: classid 1:10 htb rate 100mbit",
    "class parent 1: classid 1:20 htb rate 100mbit",
    "class parent 1: classid 1:30 htb rate 100mbit",
];

#[test]
fn classifiers_send_ports_to_classes() {
    let mut hosts = Hosts::new();
    for classifier in ["u32 match ip dport 5201 0xffff", "bpf dst_port 5201"] {
        let filter = format!("filter parent 1: {classifier} classid 1:10");
        let other = filter.replace("5201", "{port}").replace("1:10", "1:20");
        let [qdisc, first, second, rest] = TWO_CLASSES;
        hosts.install(&[qdisc, first, second, rest, &filter, &other], 2, 0);
        // Port 5201 matches the first and the second filter; the first filter runs first.
        let found = hosts.packets_of_classes(&[5201, 5202, 5202, 9, 9, 9]);
        assert_eq!(
            found,
            BTreeMap::from([(class(0x10), 1), (class(0x20), 2), (class(0x30), 3)]),
            "{classifier}"
        );
    }
}

#[test]
fn a_thousand_rules_match_nothing() {
    let mut hosts = Hosts::new();
    let missing = missing_classifiers(&mut hosts.netlink, hosts.index).unwrap();
    for classifier in [Classifier::U32, Classifier::Flower, Classifier::Bpf] {
        let tree = Catalogue::bundled().get("htb").unwrap().resolve(&Hosts::surroundings(3, 1)).unwrap();
        install(&mut hosts.netlink, hosts.index, &tree).unwrap();
        let rules = FilterRules { classifier, rules: 1000 };
        match install_rules(&mut hosts.netlink, hosts.index, class(0), &rules) {
            Ok(()) => {
                assert!(!missing.contains(&classifier));
                let filters = hosts.netlink.filters(hosts.index, class(0)).unwrap();
                let in_front = filters.iter().filter(|filter| filter.preference == 1).count();
                // u32 also lists its hash table.
                assert!((1000..=1001).contains(&in_front), "{in_front}");
                assert!(filters.iter().any(|filter| filter.preference > 1 && filter.kind == "bpf"));
            }
            Err(error) => {
                assert!(missing.contains(&classifier), "{error}");
                assert!(error.lacks().is_some(), "{error}");
            }
        }
        let found = hosts.packets_of_classes(&ports(3, 1));
        let expected = (0x101..0x105).map(|minor| (class(minor), 1)).chain([(class(1), 4)]).collect();
        assert_eq!(found, expected, "{classifier:?}");
    }
    let rules = FilterRules { classifier: Classifier::Bpf, rules: 20_000 };
    assert!(matches!(
        install_rules(&mut hosts.netlink, hosts.index, class(0), &rules),
        Err(InstallError::TooManyRules(20_000))
    ));
}

#[test]
fn a_refusal_has_the_step_and_the_kernels_words() {
    let mut hosts = Hosts::new();
    let on = Hosts::surroundings(1, 0);
    let nowhere = tree(
        &[
            "qdisc root handle 1: htb",
            "class parent 1: classid 1:1 htb rate 1mbit",
            "qdisc parent 1:1 handle 2: nosuchqdisc",
        ],
        &on,
    );
    let error = install(&mut hosts.netlink, hosts.index, &nowhere).unwrap_err();
    assert_eq!(error.lacks(), Some("nosuchqdisc"));
    assert_eq!(error.step(), Some("qdisc parent 1:1 handle 2: nosuchqdisc"));
    let text = error.to_string();
    assert!(text.contains("make 'qdisc parent 1:1 handle 2: nosuchqdisc'"), "{text}");
    assert!(text.contains("the kernel says: Specified qdisc kind is unknown"), "{text}");
    assert!(text.ends_with("this kernel has no nosuchqdisc"), "{text}");
    // This kind exists, but the device refuses the attribute TCA_HTB_OFFLOAD.
    let wrong = tree(&["qdisc root handle 1: htb attribute 9 flag"], &on);
    let error = install(&mut hosts.netlink, hosts.index, &wrong).unwrap_err();
    assert_eq!(error.lacks(), None);
    assert!(error.to_string().contains("hw-tc-offload ethtool feature flag must be on"), "{error}");
}

#[test]
fn asking_for_kinds_leaves_nothing() {
    let mut hosts = Hosts::new();
    let seen = |hosts: &Hosts| {
        [
            hosts.sees("tc", &["qdisc", "show", "dev", NAME]),
            hosts.sees("tc", &["filter", "show", "dev", NAME]),
        ]
    };
    let before = seen(&hosts);
    let missing =
        missing_kinds(&mut hosts.netlink, hosts.index, ["htb", "tbf", "mq", "nosuchqdisc", "pfifo"]).unwrap();
    assert_eq!(missing, ["nosuchqdisc".to_owned()].into());
    let classifiers = missing_classifiers(&mut hosts.netlink, hosts.index).unwrap();
    assert!(!classifiers.contains(&Classifier::Bpf) && !classifiers.contains(&Classifier::U32));
    assert_eq!(seen(&hosts), before);
}

#[test]
fn a_tree_takes_the_place_of_another() {
    let mut hosts = Hosts::new();
    hosts.install(&TWO_CLASSES, 1, 0);
    hosts.install(&["qdisc root handle 1: htb", "class parent 1: classid 1:7 htb rate 1mbit"], 1, 0);
    assert_eq!(hosts.classes().into_keys().collect::<Vec<_>>(), [class(7)]);
}
