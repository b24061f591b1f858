#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;

fn text(value: &str) -> Value {
    Value::Text(value.to_owned())
}

fn qdisc(kind: &str, major: u16, parent: Handle, options: &str) -> QdiscSnapshot {
    let handle = ClassHandle(Handle::new(major, 0));
    let (kind, options) = (kind.to_owned(), options.to_owned());
    QdiscSnapshot { kind, handle, parent: ClassHandle(parent), options }
}

#[test]
fn the_kernels_way_of_writing_makes_no_difference() {
    let map = Knob::InterfaceFile("queues/tx-0/xps_cpus".to_owned());
    assert!(map.same(&text("0"), &text("00000000,00000000")));
    assert!(map.same(&text("A0"), &text("000000a0")));
    assert!(!map.same(&text("1"), &text("10")));
    let sysctl = Knob::Sysctl("net/ipv4/tcp_wmem".to_owned());
    assert!(sysctl.same(&text("4096\t16384\t4194304"), &text("4096 16384 4194304")));
    assert!(!sysctl.same(&text("0"), &text("00")));
}

#[test]
fn what_the_kernel_puts_there_by_itself_is_the_same_with_other_queues() {
    let tree = |kind: &str, major, leaves: u16| {
        let leaf = |minor| qdisc("fq_codel", 0, Handle::new(major, minor), "00");
        let mut tree = vec![qdisc(kind, major, Handle::ROOT, "")];
        tree.extend((1..=leaves).map(leaf));
        Value::Qdiscs(tree)
    };
    let same = |one: &Value, other: &Value| Knob::RootQdisc.same(one, other);
    assert!(same(&tree("mq", 0, 4), &tree("mq", 0, 2)));
    assert!(same(&tree("mq", 0, 4), &tree("fq_codel", 0, 0)), "ethtool -L, down to one queue");
    let none = Value::Qdiscs(Vec::new());
    assert!(same(&tree("mq", 0, 4), &none) && same(&none, &tree("noqueue", 0, 0)), "the interface is down");
    assert!(!same(&tree("mq", 7, 4), &none));
    // A tree that a user created differs from a tree with other leaves, and from the kernel's tree.
    assert!(!same(&tree("mq", 7, 4), &tree("mq", 7, 2)));
    assert!(!same(&tree("mq", 7, 4), &tree("mq", 0, 4)));
}

#[test]
fn what_a_line_for_a_root_qdisc_leaves_out_is_said() {
    let line = |tree| Change::new(Knob::RootQdisc, Value::Qdiscs(tree)).shell("eth0");
    let root = qdisc("mq", 7, Handle::ROOT, "");
    assert_eq!(line(vec![root.clone()]), "tc qdisc replace dev eth0 root handle 7: mq");
    let tree = vec![
        root,
        qdisc("fq", 0x11, Handle::new(7, 1), "00"),
        qdisc("pfifo_fast", 0, Handle::new(7, 2), "00"),
    ];
    assert_eq!(
        line(tree),
        "tc qdisc replace dev eth0 root handle 7: mq && tc qdisc replace dev eth0 parent 7:1 handle 11: fq  # lacks the \
         options of fq at 7:1, which evenkeel restores; to restore them by hand, save `tc qdisc show dev eth0` first"
    );
}

#[test]
fn shell_lines_can_be_pasted() {
    let line = |knob, to| Change::new(knob, to).shell("eth0");
    assert_eq!(
        line(Knob::Sysctl("net/ipv4/tcp_wmem".into()), text("1 2 3")),
        "sysctl -w 'net.ipv4.tcp_wmem=1 2 3'"
    );
    assert_eq!(
        line(Knob::Sysctl("net/ipv4/conf/eth0.7/forwarding".into()), text("1")),
        "sysctl -w net/ipv4/conf/eth0.7/forwarding=1"
    );
    assert_eq!(
        line(Knob::InterfaceFile("queues/tx-0/xps_cpus".into()), text("3")),
        "echo 3 > /sys/class/net/eth0/queues/tx-0/xps_cpus"
    );
    let odd = Change::new(Knob::GsoSizes, Value::Sizes { all: 1, ipv4: 1 }).shell("a$(b)'c");
    assert_eq!(odd, r"ip link set dev 'a$(b)'\''c' gso_max_size 1");
}

/// iproute2 6.1 (Debian 12) does not support `gso_ipv4_max_size`.
#[test]
fn the_size_for_ipv4_has_a_word_only_where_the_kernel_does_not_derive_it() {
    let line = |knob, all, ipv4| Change::new(knob, Value::Sizes { all, ipv4 }).shell("eth0").to_string();
    assert_eq!(line(Knob::GsoSizes, 65_536, 65_536), "ip link set dev eth0 gso_max_size 65536");
    assert_eq!(line(Knob::GroSizes, 16_384, 16_384), "ip link set dev eth0 gro_max_size 16384");
    for (all, ipv4) in [(65_536, 16_384), (131_072, 65_536), (131_072, 131_072)] {
        let wanted = format!("ip link set dev eth0 gro_max_size {all} gro_ipv4_max_size {ipv4}");
        assert_eq!(line(Knob::GroSizes, all, ipv4), wanted);
    }
}

#[test]
fn a_rule_is_written_as_ethtool_takes_it() {
    let matches = RuleMatch {
        protocol: 6,
        source: "10.1.0.0".parse().unwrap(),
        source_mask: 0xffff_0000,
        destination: "10.0.0.100".parse().unwrap(),
        destination_mask: u128::from(u32::MAX),
        source_port: 0,
        source_port_mask: 0,
        destination_port: 11211,
        destination_port_mask: u16::MAX,
    };
    let rule = RuleBytes::from(&Rule::steer(7, &matches, 3));
    let knob = Knob::NtupleRule(7);
    assert_eq!(
        Change::new(knob.clone(), Value::Rule(Some(rule.clone()))).shell("eth0"),
        "ethtool -N eth0 flow-type tcp4 src-ip 10.1.0.0 m 0.0.255.255 dst-ip 10.0.0.100 dst-port 11211 action 3 loc 7"
    );
    assert_eq!(Change::new(knob.clone(), Value::Rule(None)).shell("eth0"), "ethtool -N eth0 delete 7");
    let text = serde_json::to_string(&Value::Rule(Some(rule.clone()))).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), Value::Rule(Some(rule.clone())));
}

#[test]
fn lines_of_what_ethtool_sets_can_be_pasted() {
    let number = Value::Number;
    for (knob, to, line) in [
        (Knob::Ring(Ring::Rx), number(8192), "ethtool -G eth0 rx 8192"),
        (Knob::Channels(Channels::Combined), number(8), "ethtool -L eth0 combined 8"),
        (Knob::Coalescing(Coalescing::RxUsecs), number(50), "ethtool -C eth0 rx-usecs 50"),
        (Knob::Coalescing(Coalescing::AdaptiveRx), Value::Switch(true), "ethtool -C eth0 adaptive-rx on"),
        (Knob::Feature("rx-gro".to_owned()), Value::Switch(false), "ethtool -K eth0 rx-gro off"),
        (Knob::FlowHash("udp4".to_owned()), text("sdfn"), "ethtool -N eth0 rx-flow-hash udp4 sdfn"),
        (Knob::RssTable, Value::Table(vec![0, 1, 2, 0, 1, 2, 0]), "ethtool -X eth0 equal 3"),
        (Knob::RssTable, Value::Table(vec![0, 2, 1]), "# RSS table of eth0: [0, 2, 1]"),
        (Knob::Mtu, Value::Bytes(9000), "ip link set dev eth0 mtu 9000"),
        (Knob::TransmitQueueLength, number(500), "ip link set dev eth0 txqueuelen 500"),
        (Knob::InterruptAffinity(45), text("0-3,8"), "echo 0-3,8 > /proc/irq/45/smp_affinity_list"),
        (
            Knob::ProcessorFile("cpufreq/policy0/scaling_governor".to_owned()),
            text("performance"),
            "echo performance > /sys/devices/system/cpu/cpufreq/policy0/scaling_governor",
        ),
        (
            Knob::RootQdisc,
            Value::Qdiscs(root_qdisc("fq", 2)),
            "tc qdisc replace dev eth0 root handle 4e00: mq && tc qdisc replace dev eth0 parent 4e00:1 handle 4e01: fq \
             && tc qdisc replace dev eth0 parent 4e00:2 handle 4e02: fq",
        ),
        (
            Knob::Sysctl("net/ipv4/tcp_rmem".to_owned()),
            text("4096\t87380\t6291456"),
            "sysctl -w 'net.ipv4.tcp_rmem=4096 87380 6291456'",
        ),
    ] {
        let change = Change::new(knob, to);
        assert_eq!(change.shell("eth0"), line);
        assert_eq!(shell("eth0", &change.knob, &change.to), line);
        let kept = serde_json::to_string(&change).unwrap();
        assert_eq!(serde_json::from_str::<Change>(&kept).unwrap(), change);
    }
}

#[test]
fn equal_writes_are_one_loop() {
    let governor = |number: u32| Knob::ProcessorFile(format!("cpu{number}/cpufreq/scaling_governor"));
    let map = |queue: u32| Knob::InterfaceFile(format!("queues/tx-{queue}/xps_cpus"));
    let performance = text("performance");
    let knobs: Vec<Knob> = (0..72).map(governor).collect();
    let lines = shell_lines("eth0", &knobs.iter().map(|knob| (knob, &performance)).collect::<Vec<_>>());
    assert_eq!(lines.len(), 1);
    assert_eq!(
        lines[0].0,
        "for n in $(seq 0 71); do echo performance > /sys/devices/system/cpu/cpu$n/cpufreq/scaling_governor; done"
    );
    assert_eq!(lines[0].1, (0..72).collect::<Vec<_>>());
    let (zero, one) = (text("0"), text("1"));
    let (maps, mtu) = ([map(0), map(1), map(3), map(4)], Knob::Mtu);
    let settings = [
        (&maps[0], &zero),
        (&maps[1], &one),
        (&mtu, &Value::Bytes(9000)),
        (&maps[2], &zero),
        (&maps[3], &zero),
    ];
    let lines: Vec<String> = shell_lines("a b", &settings).iter().map(|(line, _)| line.to_string()).collect();
    assert_eq!(
        lines,
        [
            "for n in 0 3 4; do echo 0 > /sys/class/net/'a b'/queues/tx-$n/xps_cpus; done",
            "echo 1 > '/sys/class/net/a b/queues/tx-1/xps_cpus'",
            "ip link set dev 'a b' mtu 9000"
        ]
    );
    let odd = text("-n");
    let lines = shell_lines("eth0", &[(&maps[0], &odd), (&maps[1], &odd), (&maps[2], &odd)]);
    assert_eq!(lines.len(), 3, "echo would take it for an option");
}

#[test]
fn lists_of_processors_are_the_same_in_any_spelling() {
    let affinity = Knob::InterruptAffinity(7);
    assert!(affinity.same(&text("0-3,8"), &text("0,1,2,3,8")));
    assert!(!affinity.same(&text("0-3"), &text("0-2")));
    assert!(!affinity.same(&text("0-3"), &text("some")));
    let list = processor_list("8,0-3, 5-6\n").unwrap();
    assert_eq!(processor_list_text(&list), "0-3,5-6,8");
    assert_eq!(processor_list(""), Some(BTreeSet::new()));
    for wrong in ["x", "3-1", "0-99999999", "1-", "-1"] {
        assert_eq!(processor_list(wrong), None, "{wrong}");
    }
    let hash = Knob::FlowHash("udp4".to_owned());
    assert!(hash.same(&text("sdfn"), &text("fnsd")) && !hash.same(&text("sd"), &text("sdfn")));
}

#[test]
fn a_context_is_made_and_taken_out_with_a_line() {
    let knob = Knob::RssContext(2);
    let line = |table: Option<&[u32]>| shell("eth0", &knob, &Value::Context(table.map(<[u32]>::to_vec)));
    assert_eq!(line(Some(&[4, 5, 4, 5])), "ethtool -X eth0 context new start 4 equal 2");
    assert_eq!(line(Some(&[4, 6, 4, 6])), "# RSS context 2 of eth0: [4, 6, 4, 6]");
    assert_eq!(line(None), "ethtool -X eth0 context 2 delete");
    assert_eq!(
        Change::new(knob.clone(), Value::Context(None)).knob.on("eth0").to_string(),
        "the RSS context 2 of eth0"
    );
    let text = serde_json::to_string(&(knob, Value::Context(Some(vec![1])))).unwrap();
    assert_eq!(text, r#"[{"rss-context":2},{"context":[1]}]"#);
}

#[test]
fn filters_of_clsact_have_lines() {
    let line = |knob: Knob, value| Change::new(knob, value).shell("eth0").to_string();
    let place = FilterPlace { direction: Direction::Egress, preference: 3 };
    assert_eq!(
        line(Knob::Filter(place), Value::Program(None)),
        "tc filter del dev eth0 egress pref 3 handle 0x65766b bpf"
    );
    // A shell line cannot attach the BPF program of a process.
    assert!(line(Knob::Filter(place), Value::Program(Some(7))).starts_with('#'));
    assert_eq!(line(Knob::Clsact, text(clsact::NONE)), "tc qdisc del dev eth0 clsact");
    assert_eq!(line(Knob::Clsact, text(clsact::EMPTY)), "tc qdisc add dev eth0 clsact");
    let written = serde_json::to_string(&Knob::Filter(place)).unwrap();
    assert_eq!(serde_json::from_str::<Knob>(&written).unwrap(), Knob::Filter(place));
}
