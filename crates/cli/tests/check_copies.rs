//! Tests `evenkeel check` on recorded hosts with duplicate rows, contradictory figures, lost queues and lost facts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/hosts.rs"]
mod hosts;

use std::path::Path;

use evenkeel_host::facts::{Tree, read_facts};
use evenkeel_model::host::{BondFacts, Interface, InterfaceKind, SocketFacts, TcpFacts};
use evenkeel_placement::{Judgement, NotJudged, OF_ONE_INTERFACE, judge};
use evenkeel_synthetic::write_tree;

fn judged(directory: &Path) -> Result<Judgement, String> {
    let facts = Tree::recorded(directory).and_then(|tree| read_facts(&tree));
    facts.map(|facts| judge(&facts)).map_err(|error| error.to_string())
}

/// A file, an edit of the file, the rule that the edit keeps from judging (empty: `check` refuses the
/// file), and a part of the reason.
type Case<'a> = (&'a str, &'a dyn Fn(String) -> String, &'a str, &'a str);

/// `check` never adds up duplicate rows, keys and queues, and never uses contradictory figures.
#[test]
fn copies_and_contradictions_are_named() {
    let mut facts = hosts::HOSTS[0].1();
    facts.softnet[0].dropped = 10_000_000;
    let directory = tempfile::tempdir().unwrap();
    write_tree(&facts, directory.path()).unwrap();
    let copied = |start: &'static str| {
        move |text: String| {
            let copy = text.lines().filter(|line| line.trim_start().starts_with(start)).take(1);
            format!("{text}{}\n", copy.collect::<Vec<_>>().join("\n"))
        }
    };
    let copied_item = |text: String| {
        let mut list: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        list.push(list[0].clone());
        serde_json::to_string(&list).unwrap()
    };
    let ethtool = "evenkeel/ethtool/ens2f0.json";
    let cases: [Case; 17] = [
        ("proc/net/softnet_stat", &copied(""), "backlog-drops", "a second row of processor 0"),
        (
            "proc/interrupts",
            &|text| format!("{}\n{}\n", text.trim_end(), text.lines().nth(1).unwrap()),
            "irq-one-processor",
            "a second row of interrupt ",
        ),
        ("proc/interrupts", &|text| text.replace("CPU1", "CPU0"), "irq-one-processor", "processor 0"),
        ("proc/stat", &copied("cpu1 "), "steal", "a second row of processor 1"),
        (
            "proc/net/snmp",
            &|text| format!("{}\n", text.trim_end()).repeat(2),
            "udp-receive-buffer",
            "a second row of Icmp",
        ),
        (
            "proc/net/netstat",
            &|text| text.replace(" ListenOverflows", " ListenDrops"),
            "listen-overflow",
            "TcpExt.ListenDrops is listed twice",
        ),
        ("proc/vmstat", &copied("pswpin"), "memory-reclaim", "a second row of pswpin"),
        ("proc/net/sockstat", &copied("TCP:"), "tcp-memory", "a second row of TCP: "),
        ("evenkeel/qdiscs.json", &copied_item, "qdisc-no-pacing", "a second row of "),
        ("evenkeel/links.json", &copied_item, "big-tcp-off", "a second row of "),
        ("sys/devices/system/cpu/possible", &|_| "0-1\n".to_owned(), "irq-smt-twins", "is online, but not"),
        ("sys/class/net/ens2f0/queues/rx-00/rps_cpus", &|_| "0\n".to_owned(), "rps-one-processor", "as rx-0"),
        (
            ethtool,
            &|text| text.replace("\"combined_max\": 63", "\"combined_max\": 8"),
            "queues-few",
            "at most 8 (",
        ),
        (
            ethtool,
            &|text| {
                let counter = "\"rx_out_of_buffer\": 900000000,";
                text.replace("\"statistics\": {", &format!("\"statistics\": {{{counter}{counter}"))
            },
            "rx-ring-drops",
            "a second row of rx_out_of_buffer",
        ),
        (ethtool, &|text| text.replace("\"features\": {", "\"features\": {\"rx-gro\": \"on\","), "", "twice"),
        (
            "evenkeel/sockets.json",
            &|_| {
                let socket = SocketFacts {
                    local: "10.0.0.1:443".to_owned(),
                    remote: "10.0.0.2:9".to_owned(),
                    tcp: Some(TcpFacts::default()),
                    ..SocketFacts::default()
                };
                serde_json::to_string(&[&socket, &socket]).unwrap()
            },
            "",
            "[1]: this connection is listed before",
        ),
        (
            "evenkeel/about.json",
            &|_| "{\"format\": 1, \"page_bytes\": 4096, \"format\": 1}".to_owned(),
            "",
            "",
        ),
    ];
    let failures = failures(directory.path(), &cases);
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Tables with a row for each processor have no numbers of processors, so only the number of rows shows a copy.
#[test]
fn a_copied_row_of_a_table_is_named() {
    let mut facts = hosts::HOSTS[0].1();
    facts.counters.insert("Conntrack.drop".to_owned(), 4096);
    let directory = tempfile::tempdir().unwrap();
    write_tree(&facts, directory.path()).unwrap();
    std::fs::write(directory.path().join("sys/devices/system/cpu/possible"), "0-79\n").unwrap();
    assert!(judged(directory.path()).unwrap().incomplete().all(|missed| !missed.why.contains(" rows ")));
    let copied = |text: String| format!("{}\n{}\n", text.trim_end(), text.lines().nth(1).unwrap());
    let cases: [Case; 2] = [
        ("proc/net/stat/arp_cache", &copied, "neighbours-full", "arp_cache has 81 rows for 80 processors"),
        ("proc/net/stat/nf_conntrack", &copied, "conntrack-races", "has 81 rows for 80 processors"),
    ];
    let failures = failures(directory.path(), &cases);
    assert!(failures.is_empty(), "{failures:#?}");
}

/// A fact that is impossible or missing keeps the rules that need it from judging, or `check` refuses
/// the file.
#[test]
fn impossible_and_unstated_facts_are_named() {
    let mut facts = hosts::HOSTS[0].1();
    hosts::connection(&mut facts, "10.0.0.1:443", "10.0.0.9:5555", 500, 9_000_000_000, 4000);
    let loopback = facts.interfaces.iter_mut().find(|interface| interface.name == "lo").unwrap();
    loopback.statistics = ["rx_bytes", "tx_bytes"].map(|counter| (counter.to_owned(), 1000)).into();
    let directory = tempfile::tempdir().unwrap();
    write_tree(&facts, directory.path()).unwrap();
    let ethtool = "evenkeel/ethtool/ens2f0.json";
    let device = |file: &str| format!("sys/class/net/ens2f0/device/{file}");
    let [node, speed, width] = ["numa_node", "current_link_speed", "current_link_width"].map(device);
    let nameless = |text: String| {
        let line = |line: &str| match line.split_once("mlx5_comp") {
            Some((start, _)) => format!("{start}foo\n"),
            None => format!("{line}\n"),
        };
        text.lines().map(line).collect()
    };
    let without_losses = with(|nic| {
        nic["statistics"].as_object_mut().unwrap().remove("rx_out_of_buffer").unwrap();
    });
    let tcp = |field: &'static str, value: u64| with(move |list| list[0]["tcp"][field] = value.into());
    let qdisc = |field: &'static str, value: u64| with(move |list| list[0][field] = value.into());
    let (links, sockets) = ("evenkeel/links.json", "evenkeel/sockets.json");
    let link = |field: &'static str, value: u64| {
        with(move |list| {
            let nic = list.as_array_mut().unwrap().iter_mut().find(|link| link["ifname"] == "ens2f0");
            nic.unwrap()[field] = value.into();
        })
    };
    let online = "sys/devices/system/cpu/online";
    let ports = |local: &str, remote: &str| {
        format!("{{\"local\": \"{local}\", \"remote\": \"{remote}\", \"connections\": 9}}")
    };
    let cases: [Case; 32] = [
        (sockets, &tcp("pmtu", 1), "mtu-above-path", "[0].tcp.pmtu: 1 is impossible: from 68 to "),
        (sockets, &tcp("pmtu", 8900), "mtu-above-path", "pmtu: 8900 is impossible: mss is 8948, and the "),
        (sockets, &tcp("cwnd", 1 << 40), "one-flow", "cwnd: 1099511627776 is impossible: from 0 to "),
        (sockets, &tcp("bytes_received", 1 << 62), "one-flow", "is impossible: all interfaces received "),
        (sockets, &tcp("bytes_acked", 1 << 62), "one-flow", "is impossible: all interfaces sent "),
        (sockets, &tcp("busy_us", 1 << 50), "peer-window", "is impossible: /proc/uptime is 100000 s"),
        ("evenkeel/qdiscs.json", &qdisc("packets", 1 << 62), "qdisc-drops", "and a packet has at least 14"),
        ("evenkeel/qdiscs.json", &qdisc("bytes", u64::MAX), "qdisc-drops", "bytes: 18446744073709551615 is "),
        (links, &link("tso_max_size", 0), "big-tcp-off", "ens2f0: tso_max_size: 0 is impossible: from 1 to "),
        (
            links,
            &link("tso_max_size", 60_000),
            "big-tcp-off",
            "is impossible: at most 60000, the tso_max_size",
        ),
        (links, &link("gro_max_size", 1 << 30), "big-tcp-off", "ens2f0: gro_max_size: 1073741824 is "),
        (
            ethtool,
            &with(|nic| nic["statistics"]["rx_buff_alloc_err"] = (1_u64 << 63).into()),
            "rx-buffers-missing",
            "rx_buff_alloc_err: 9223372036854775808 is impossible",
        ),
        (
            ethtool,
            &with(|nic| nic["statistics"]["tx_timeout_count"] = u64::MAX.into()),
            "tx-timeouts",
            "tx_timeout_count: 18446744073709551615 is impossible",
        ),
        // Node 0 spans two packages, and one of these also has the processors of node 1.
        (
            "sys/devices/system/cpu/cpu1/topology/physical_package_id",
            &|_| "1\n".to_owned(),
            "irq-remote-node",
            "node0: the node spans the packages 0-1, and processor 20 of node 1 is in package 1, too",
        ),
        (
            "sys/devices/system/cpu/cpu1/topology/physical_package_id",
            &|_| "1\n".to_owned(),
            "app-remote-node",
            "node0: the node spans the packages 0-1",
        ),
        (
            "sys/devices/system/cpu/cpu20/cpufreq/scaling_governor",
            &|_| "powersav\n".to_owned(),
            "governor",
            "scaling_governor:1: unreadable: 'powersav'",
        ),
        (ethtool, &without_losses, "rx-ring-drops", "has none of the loss counters of mlx5_core"),
        (
            ethtool,
            &with(|nic| nic["driver"] = "ixgbe".into()),
            "rx-ring-drops",
            "has none of the loss counters of ixgbe",
        ),
        ("proc/interrupts", &nameless, "irq-remote-node", "names no receive queue of ens2f0: 'foo'"),
        (&node, &|_| "-1\n".to_owned(), "irq-remote-node", "does not state the node of ens2f0"),
        (online, &|_| "0-39\n".to_owned(), "irq-smt-twins", "a column of processor 40, which is not online"),
        (online, &|_| "0-39\n".to_owned(), "steal", "a row of processor 40, which is not online"),
        (online, &|_| "0-39\n".to_owned(), "softnet-squeezed", "a row of processor 40, which is not online"),
        (&speed, &|_| "Unknown\n".to_owned(), "pcie-narrow", "the value is unknown, although the NIC is up"),
        (&width, &|_| "0\n".to_owned(), "pcie-narrow", "the value is unknown, although the NIC is up"),
        (&speed, &|_| "16.0 GT/s PCIe\n".to_owned(), "pcie-narrow", "16 is impossible: at most 8"),
        ("evenkeel/about.json", &|text| text.replace("page_bytes", "page_byte"), "", "page_byte"),
        (
            "proc/sys/net/core/netdev_max_backlog",
            &|_| "99999999999\n".to_owned(),
            "backlog-drops",
            "unreadable: '99999999999'",
        ),
        (
            "sys/kernel/mm/transparent_hugepage/enabled",
            &|_| "[never] [always]\n".to_owned(),
            "huge-pages",
            "unreadable: '[never] [always]'",
        ),
        (
            "evenkeel/sockets.json",
            &with(|list| list[0]["remote"] = "[2001:db8::1]:443".into()),
            "",
            "[0].remote: an IPv4 address has no connection to an IPv6 address",
        ),
        ("evenkeel/ports.json", &|_| ports("x", "10.0.0.9:443"), "", "local: 'x' is not an address"),
        ("evenkeel/ports.json", &|_| ports("10.0.0.1", "x"), "", "remote: 'x' is not an address with a port"),
    ];
    let failures = failures(directory.path(), &cases);
    assert!(failures.is_empty(), "{failures:#?}");
}

/// A node may span packages, and a package may have several nodes.
#[test]
fn nodes_and_packages_may_differ() {
    let packages: [fn(u32) -> u32; 3] =
        [|_| 0, |processor| processor % 40 / 10, |processor| processor % 40 / 20];
    for package_of in packages {
        let mut facts = hosts::HOSTS[0].1();
        for processor in &mut facts.processors {
            processor.package = package_of(processor.number);
        }
        let directory = tempfile::tempdir().unwrap();
        write_tree(&facts, directory.path()).unwrap();
        let judgement = judged(directory.path()).unwrap();
        assert!(judgement.incomplete().all(|missed| !missed.why.contains("spans")), "{judgement:?}");
    }
}

/// Edits each file in turn. Returns the cases in which `check` does not give the expected reason, or the
/// rule has a finding.
fn failures(directory: &Path, cases: &[Case]) -> Vec<String> {
    let mut failures = Vec::new();
    for (file, edit, rule, why) in cases {
        let path = directory.join(file);
        let sound = std::fs::read_to_string(&path).ok();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, edit(sound.clone().unwrap_or_default())).unwrap();
        match judged(directory) {
            Err(error) if rule.is_empty() && error.contains(why) => {}
            Err(error) => failures.push(format!("{file}: {error}")),
            Ok(judgement) => {
                let named = judgement.incomplete().find(|missed| missed.rule == *rule);
                let is_named = named.is_some_and(|named| named.why.contains(why));
                if !is_named || judgement.findings.iter().any(|found| found.rule == *rule) {
                    failures.push(format!("{file}: {rule}: {named:?}"));
                }
            }
        }
        match sound {
            Some(sound) => std::fs::write(&path, sound).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let _ = std::fs::remove_dir_all(directory.join("sys/class/net/ens2f0/queues/rx-00"));
    }
    failures
}

fn with(edit: impl Fn(&mut serde_json::Value)) -> impl Fn(String) -> String {
    move |text| {
        let mut value = serde_json::from_str(&text).unwrap();
        edit(&mut value);
        serde_json::to_string_pretty(&value).unwrap()
    }
}

/// serde's derived code for a struct accepts a list, too: it would read a list in place of an object by
/// position.
#[test]
fn a_list_in_place_of_an_object_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    write_tree(&hosts::HOSTS[0].1(), directory.path()).unwrap();
    let ethtool = "evenkeel/ethtool/ens2f0.json";
    let outer = |text: String| format!("[{text}]");
    let list = "a list in place of an object";
    let cases: [Case; 9] = [
        (ethtool, &outer, "", list),
        (
            ethtool,
            &with(|nic| nic["rings"] = [200, 256, 256, 256].into()),
            "",
            "rings: a list in place of an object",
        ),
        (ethtool, &with(|nic| nic["channels"] = [2].into()), "", "channels: a list in place of an object"),
        (ethtool, &with(|nic| nic["rss"] = vec![vec![0, 1]].into()), "", "rss: a list in place of an object"),
        (
            ethtool,
            &with(|nic| nic["features"]["rx-gro"] = [true].into()),
            "",
            "a list in place of a feature's state",
        ),
        ("evenkeel/about.json", &outer, "", list),
        ("evenkeel/sockets.json", &|_| "[[\"tcp\", \"10.0.0.1:443\"]]".to_owned(), "", list),
        ("evenkeel/qdiscs.json", &outer, "", list),
        ("evenkeel/ports.json", &|_| "[\"10.0.0.1\", \"10.0.0.9:443\", 27500]".to_owned(), "", list),
    ];
    let failures = failures(directory.path(), &cases);
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn names_that_contradict_or_are_not_there_are_named() {
    let mut facts = hosts::HOSTS[0].1();
    hosts::connection(&mut facts, "10.0.0.1:443", "10.0.0.9:5555", 500, 9_000_000_000, 4000);
    let directory = tempfile::tempdir().unwrap();
    write_tree(&facts, directory.path()).unwrap();
    let sockets = "evenkeel/sockets.json";
    let cases: [Case; 4] = [
        (
            "evenkeel/ethtool/ens2f0.json",
            &with(|nic| nic["features"]["generic-receive-offload"] = "off".into()),
            "",
            "features.generic-receive-offload: it contradicts",
        ),
        (
            sockets,
            &with(|list| list[0]["interface"] = "eht0".into()),
            "receive-window",
            "[0].interface: the recording has no interface eht0",
        ),
        (
            sockets,
            &with(|list| list[0]["process"] = 4711.into()),
            "app-remote-node",
            "/proc/4711/comm is missing",
        ),
        (
            sockets,
            &with(|list| list[0]["process"] = 4711.into()),
            "irq-on-application",
            "/proc/4711/comm is missing",
        ),
    ];
    let failures = failures(directory.path(), &cases);
    assert!(failures.is_empty(), "{failures:#?}");
    // The process ended while the host was recorded.
    let edit = |file: &str, edit: &dyn Fn(String) -> String| {
        let path = directory.path().join(file);
        std::fs::write(&path, edit(std::fs::read_to_string(&path).unwrap())).unwrap();
    };
    edit(sockets, &with(|list| list[0]["process"] = 4711.into()));
    edit("evenkeel/about.json", &with(|about| about["without_value"] = vec!["/proc/4711/comm"].into()));
    let judgement = judged(directory.path()).unwrap();
    assert_eq!(judgement.incomplete().find(|missed| missed.rule == "app-remote-node"), None);
}

/// A hash key that is too short, or another hash function, keeps only one rule from judging: the rule
/// about the queues of connections.
#[test]
fn a_hash_that_cannot_be_computed_is_not_judged() {
    let directory = tempfile::tempdir().unwrap();
    write_tree(&hosts::HOSTS[0].1(), directory.path()).unwrap();
    let file = directory.path().join("evenkeel/ethtool/ens2f0.json");
    let whole = std::fs::read_to_string(&file).unwrap();
    let mut answers: serde_json::Value = serde_json::from_str(&whole).unwrap();
    let key = answers["rss"]["key"].as_str().unwrap().to_owned();
    let before = judged(directory.path()).unwrap();
    for (field, value, why) in [
        (
            "key",
            &key[..15 * 3 - 1],
            Some("rss.key: 15 bytes are too few for the hash of a packet, which needs 16"),
        ),
        ("key", &key[..16 * 3 - 1], None),
        ("key", "", Some("rss.key: the key is not known")),
        ("function", "xor", Some("rss.function: the hash is xor, not Toeplitz")),
    ] {
        let sound = answers.clone();
        answers["rss"][field] = value.into();
        std::fs::write(&file, answers.to_string()).unwrap();
        answers = sound;
        let mut judgement = judged(directory.path()).unwrap();
        let of_rule = |missed: &NotJudged| missed.rule == "flows-collide";
        let missed = judgement.incomplete().find(|missed| of_rule(missed)).map(|missed| missed.why.clone());
        judgement.not_judged.retain(|missed| !of_rule(missed));
        let why = why.map(|why| format!("evenkeel/ethtool/ens2f0.json: {why}"));
        assert_eq!(missed, why);
        assert_eq!(judgement.not_judged, before.not_judged, "{field} {value}");
    }
    let six = SocketFacts {
        local: "[fd00::1]:443".to_owned(),
        remote: "[fd00::2]:9".to_owned(),
        tcp: Some(TcpFacts::default()),
        ..SocketFacts::default()
    };
    let sockets = serde_json::to_string(&[six]).unwrap();
    std::fs::write(directory.path().join("evenkeel/sockets.json"), sockets).unwrap();
    std::fs::write(&file, whole.replace(&key, &key[..39 * 3 - 1])).unwrap();
    let judgement = judged(directory.path()).unwrap();
    let missed = judgement.incomplete().find(|missed| missed.rule == "flows-collide").unwrap();
    assert!(
        missed.why.contains("39 bytes are too few for the hash of a packet, which needs 40"),
        "{missed:?}"
    );
    std::fs::write(&file, whole.replace("\"sdfn\"", "\"sdx\"")).unwrap();
    let error = judged(directory.path()).unwrap_err();
    assert!(error.contains("'x' in 'sdx' is not a field of a hash; known: m, v, t, s"), "{error}");
    assert!(error.contains("evenkeel/ethtool/ens2f0.json:"), "{error}");
}

/// If a recording lost a queue or a port of a bond, the rules that need it do not judge.
#[test]
fn lost_queues_and_ports_are_named() {
    let mut facts = hosts::HOSTS[0].1();
    facts.interfaces.push(Interface {
        name: "bond0".to_owned(),
        kind: InterfaceKind::Bond,
        up: true,
        bond: Some(BondFacts { mode: "802.3ad".to_owned(), hash_policy: "layer2".to_owned() }),
        lower: vec!["ens2f0".to_owned()],
        statistics: facts.interfaces[0].statistics.clone(),
        ..hosts::veth("bond0")
    });
    let queues: &[&str] = &["rps-one-processor", "rps-missing", "xps-one-queue", "xps-remote"];
    for (lost, shown, rules) in [
        ("ens2f0/queues/rx-3", "ens2f0/queues/rx-3", queues),
        ("ens2f0/queues/rx-15", "ens2f0/queues/rx-15", queues),
        ("ens2f0/queues/tx-3", "ens2f0/queues/tx-3", queues),
        ("ens2f0/queues/tx-15", "ens2f0/queues/tx-15", queues),
        ("bond0/lower_ens2f0", "bond0/lower_*", &["bond-hash", "bond-ports", "bond-round-robin"]),
    ] {
        let directory = tempfile::tempdir().unwrap();
        write_tree(&facts, directory.path()).unwrap();
        let class = directory.path().join("sys/class/net");
        let before: Vec<&str> =
            judged(directory.path()).unwrap().incomplete().map(|missed| missed.rule).collect();
        let path = class.join(lost);
        if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
        let judgement = judged(directory.path()).unwrap();
        for rule in rules {
            assert!(!before.contains(rule), "{rule}");
            let missed = judgement.incomplete().find(|missed| missed.rule == *rule).expect(rule);
            assert_eq!(missed.why, format!("/sys/class/net/{shown} is missing"));
            assert!(judgement.findings.iter().all(|found| found.rule != *rule), "{rule}");
        }
    }
}

#[test]
fn two_interfaces_of_one_number_are_not_judged() {
    let directory = tempfile::tempdir().unwrap();
    write_tree(&hosts::HOSTS[7].1(), directory.path()).unwrap();
    let class = directory.path().join("sys/class/net");
    let facts = read_facts(&Tree::recorded(directory.path()).unwrap()).unwrap();
    let names: Vec<&str> = facts
        .interfaces
        .iter()
        .filter(|nic| nic.kind == InterfaceKind::Device)
        .map(|nic| nic.name.as_str())
        .collect();
    for name in &names {
        std::fs::write(class.join(name).join("ifindex"), "9\n").unwrap();
    }
    let judgement = judged(directory.path()).unwrap();
    let missed = judgement.incomplete().find(|missed| missed.rule == "gro-off").unwrap();
    for (one, other) in [(names[0], names[1]), (names[1], names[0])] {
        let why = format!("/sys/class/net/{one}/ifindex is 9, which {other} has, too");
        assert!(missed.why.contains(&why), "{missed:?}");
    }
}

/// The kernel shows the link of every PCI Express function in sysfs. If these files of a fast NIC are
/// missing, the recording is incomplete.
#[test]
fn a_fast_nic_without_a_recorded_link_is_not_cleared() {
    let directory = tempfile::tempdir().unwrap();
    let facts = hosts::HOSTS[0].1();
    write_tree(&facts, directory.path()).unwrap();
    let nic = facts.interfaces.iter().find(|interface| interface.name == "ens2f0").unwrap();
    assert!(!facts.virtual_machine && nic.bus.is_some() && nic.pcie.is_some(), "{nic:?}");
    for file in ["current_link_speed", "current_link_width", "max_link_speed", "max_link_width"] {
        std::fs::remove_file(directory.path().join("sys/class/net/ens2f0/device").join(file)).unwrap();
    }
    let judgement = judged(directory.path()).unwrap();
    for rule in ["pcie-narrow", "pcie-shared"] {
        let missed = judgement.incomplete().find(|missed| missed.rule == rule).unwrap();
        assert!(missed.why.contains("ens2f0/device/current_link_speed is missing"), "{missed:?}");
    }
}

/// A fact that every host of this kind has, but the recording lacks, was lost.
#[test]
fn a_recording_without_a_fact_that_exists_is_not_cleared() {
    let facts = hosts::HOSTS[0].1();
    let ethtool = |root: &Path, edit: fn(&mut serde_json::Value)| {
        let path = root.join("evenkeel/ethtool/ens2f0.json");
        let mut answers = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        edit(&mut answers);
        std::fs::write(path, answers.to_string()).unwrap();
    };
    type Damage = Box<dyn Fn(&Path)>;
    let cases: [(Damage, &str, &str); 3] = [
        (
            Box::new(move |root| {
                ethtool(root, |nic| {
                    let counters = nic["statistics"].as_object_mut().unwrap();
                    counters.remove("rx_out_of_buffer").unwrap();
                    counters.insert("rx_discards_phy".to_owned(), 0.into());
                });
            }),
            "rx-ring-drops",
            "no counter of packets lost at the ring, such as rx_out_of_buffer",
        ),
        (
            Box::new(move |root| {
                ethtool(root, |nic| {
                    nic["features"].as_object_mut().unwrap().remove("rx-gro").unwrap();
                });
            }),
            "gro-off",
            "features has no rx-gro, which every device has",
        ),
        (
            Box::new(|root: &Path| std::fs::create_dir_all(root.join("proc/sys/net/ipv6/conf")).unwrap()),
            "udp-receive-buffer",
            "/proc/net/snmp6 is missing",
        ),
    ];
    for (damage, rule, words) in cases {
        let directory = tempfile::tempdir().unwrap();
        write_tree(&facts, directory.path()).unwrap();
        let whole = judged(directory.path()).unwrap();
        assert!(whole.incomplete().all(|missed| missed.rule != rule), "{:?}", whole.not_judged);
        damage(directory.path());
        let judgement = judged(directory.path()).unwrap();
        let missed = judgement.incomplete().find(|missed| missed.rule == rule);
        assert!(missed.is_some_and(|missed| missed.why.contains(words)), "{rule}: {missed:?}");
    }
}

/// A named interface is judged although the files of another interface are missing.
#[test]
fn a_named_interface_is_judged_beside_a_damaged_one() {
    let directory = tempfile::tempdir().unwrap();
    write_tree(&hosts::HOSTS[0].1(), directory.path()).unwrap();
    let of_one = |judgement: &Judgement| -> Vec<&str> {
        let rules = judgement.incomplete().map(|missed| missed.rule);
        rules.filter(|rule| OF_ONE_INTERFACE.contains(rule)).collect()
    };
    let before = of_one(&judged(directory.path()).unwrap());
    let class = directory.path().join("sys/class/net");
    std::os::unix::fs::symlink("../../devices/nowhere/net/eth9", class.join("eth9")).unwrap();
    let facts = read_facts(&Tree::recorded(directory.path()).unwrap()).unwrap();
    let mut judgement = judge(&facts);
    let all = judgement.judged + judgement.not_judged.len();
    let of_other = |missed: &&NotJudged| missed.interfaces.contains("eth9");
    assert!(judgement.incomplete().find(of_other).is_some(), "{:?}", judgement.not_judged);
    judgement.limit_to(&facts, "ens2f0");
    assert!(judgement.incomplete().find(of_other).is_none(), "{:?}", judgement.not_judged);
    assert_eq!(of_one(&judgement), before);
    assert_eq!(judgement.judged + judgement.not_judged.len(), all);
}
