//! Tests `evenkeel check` as a command: its output, its recordings, its errors, and that the command
//! changes nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/hosts.rs"]
mod hosts;
mod support;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_model::host::HostFacts;
use evenkeel_synthetic::{HostBuilder, NicOptions, write_tree};
use hosts::nic_mut;
use support::run;

fn tree(facts: &HostFacts) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    write_tree(facts, directory.path()).unwrap();
    directory
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_healthy_host_fits_on_a_screen() {
    for (name, host) in hosts::HOSTS {
        let directory = tree(&host());
        let ended = run(&["check", "--from", text(directory.path())]);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{name}");
        assert!(ended.stdout.contains("Nothing found by "), "{name}: {}", ended.stdout);
        assert!(ended.stdout.lines().count() <= 24, "{name}: {}", ended.stdout);
    }
}

#[test]
fn findings_stand_by_severity_with_evidence_and_the_line_that_mends_them() {
    let mut facts = hosts::HOSTS[0].1();
    let nic = nic_mut(&mut facts).unwrap();
    nic.rings.as_mut().unwrap().rx = 1024;
    nic.driver_statistics.insert("rx_out_of_buffer".to_owned(), 9_000_000);
    facts.sysctls.insert("net/ipv4/tcp_sack".to_owned(), "0".to_owned());
    let directory = tree(&facts);
    let from = text(directory.path());
    let ended = run(&["check", "--from", from]);
    assert_eq!(ended.code, 1, "{ended:?}");
    let (ring, sack) =
        (ended.stdout.find("HIGH   rx-ring-drops  ens2f0"), ended.stdout.find("MEDIUM sack-off  host"));
    assert!(ring.is_some() && ring < sack, "{}", ended.stdout);
    for words in [
        "lost 9,000,000 without a receive descriptor of 5,009,000,000 packets",
        "1024 of 8192 entries",
        "  fix:\n            ethtool -G ens2f0 rx 8192\n",
    ] {
        assert!(ended.stdout.contains(words), "{words}: {}", ended.stdout);
    }
    let json: serde_json::Value =
        serde_json::from_str(&run(&["check", "--from", from, "--format", "json"]).stdout).unwrap();
    let finding = &json["findings"][0];
    assert_eq!(finding["rule"], "rx-ring-drops");
    assert_eq!((&finding["severity"], &finding["subject"]), (&"high".into(), &"ens2f0".into()));
    assert_eq!(finding["fix"], "ethtool -G ens2f0 rx 8192");
    assert_eq!(finding["undo"], "ethtool -G ens2f0 rx 1024");
    for key in ["evidence", "effect", "source"] {
        assert!(!finding[key].as_str().unwrap().is_empty(), "{key}");
    }
    assert_eq!(json["host"]["processors"], 80);
    let explained = run(&["check", "--from", from, "--explain", "sack-off"]);
    assert_eq!(explained.code, 0);
    for words in [
        "RFC 2018",
        "  fix:\n            sysctl -w net.ipv4.tcp_sack=1\n",
        "  undo:\n            sysctl -w net.ipv4.tcp_sack=0\n",
    ] {
        assert!(explained.stdout.contains(words), "{words}: {}", explained.stdout);
    }
}

#[test]
fn the_header_counts_each_loss_once_and_no_frame_of_an_unknown_protocol() {
    let mut facts = hosts::HOSTS[0].1();
    let nic = nic_mut(&mut facts).unwrap();
    for (name, packets) in [
        ("rx_out_of_buffer", 9_000),
        ("rx_discards_phy", 4_000),
        ("rx_prio0_discards", 4_000),
        ("rx_crc_errors_phy", 70),
        ("tx_queue_dropped", 5),
        ("tx0_dropped", 5),
        // The NIC's receive filters dropped these packets.
        ("rx_steer_missed_packets", 600_000),
    ] {
        nic.driver_statistics.insert(name.to_owned(), packets);
    }
    // `mlx5e_get_stats` includes the NIC's counters in these counters. rx_dropped also counts 800,000
    // frames of unknown protocols.
    for (name, packets) in [
        ("rx_missed_errors", 9_000),
        ("rx_dropped", 804_000),
        ("rx_crc_errors", 70),
        ("rx_errors", 70),
        ("tx_dropped", 5),
    ] {
        nic.statistics.insert(name.to_owned(), packets);
    }
    let ended = run(&["check", "--from", text(tree(&facts).path())]);
    assert!(ended.stdout.contains(" out, 13,075 lost\n"), "{}", ended.stdout);
}

/// A loss in the header either has a finding, or the header says why there is no finding.
#[test]
fn a_loss_in_the_header_is_found_or_explained() {
    for (drops, words, rule) in [
        (3_000_000_000, "3,000,000,000 lost\n", Some("HIGH   qdisc-drops")),
        (7, " 7 lost (too few for a finding)\n", None),
    ] {
        let mut facts = hosts::HOSTS[0].1();
        let nic = nic_mut(&mut facts).unwrap();
        nic.statistics.insert("tx_packets".to_owned(), 3_000_000_000);
        nic.qdiscs[0].drops = drops;
        assert!(nic.qdiscs[0].is_root() && nic.qdiscs[0].kind == "mq" && nic.qdiscs.len() > 1);
        let ended = run(&["check", "--from", text(tree(&facts).path())]);
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        let said = ended.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(&words), "{}", ended.stdout);
        assert_eq!(rule.is_some_and(|rule| ended.stdout.contains(rule)), rule.is_some(), "{}", ended.stdout);
        assert_eq!(ended.stdout.contains("qdisc-drops"), rule.is_some(), "{}", ended.stdout);
    }
}

#[test]
fn an_interface_can_be_asked_for_alone() {
    let mut facts = hosts::HOSTS[7].1();
    for nic in facts.interfaces.iter_mut() {
        nic.carrier_changes = Some(300);
    }
    let directory = tree(&facts);
    let from = text(directory.path());
    let all = run(&["check", "--from", from]).stdout;
    assert!(all.contains("link-flaps  wan") && all.contains("link-flaps  lan1"), "{all}");
    let one = run(&["check", "wan", "--from", from]).stdout;
    assert!(one.contains("link-flaps  wan") && !one.contains("lan1"), "{one}");
    let none = run(&["check", "eth9", "--from", from]);
    assert_eq!(none.code, 2);
    assert!(none.stderr.contains("no interface 'eth9'") && none.stderr.contains("lan1, lo, wan"), "{none:?}");
}

#[test]
fn mistakes_are_named_with_file_line_and_field() {
    let rule = run(&["check", "--explain", "rx-ring-drop"]);
    assert_eq!(rule.code, 2);
    assert!(rule.stderr.contains("did you mean 'rx-ring-drops'?"), "{rule:?}");
    let nowhere = run(&["check", "--from", "/nonexistent"]);
    assert_eq!(nowhere.code, 2);
    assert!(
        nowhere.stderr.contains("/nonexistent/proc") && nowhere.stderr.contains("docs/reference/check.md"),
        "{nowhere:?}"
    );
    let directory = tree(&hosts::HOSTS[5].1());
    let from = text(directory.path());
    std::fs::write(
        directory.path().join("evenkeel/ethtool/eth0.json"),
        "{\n  \"rings\": {\"rx\": 512, \"rx_most\": 4096}\n}",
    )
    .unwrap();
    let damaged = run(&["check", "--from", from]);
    assert_eq!(damaged.code, 2);
    assert!(damaged.stderr.contains("eth0.json:2: ") && damaged.stderr.contains("rx_most"), "{damaged:?}");
    std::fs::write(directory.path().join("evenkeel/ethtool/eth0.json"), "{}").unwrap();
    std::fs::write(directory.path().join("evenkeel/about.json"), "{\"format\": 2}").unwrap();
    let later = run(&["check", "--from", from]);
    assert_eq!(later.code, 2);
    assert!(later.stderr.contains("format 2"), "{later:?}");
    assert_eq!(run(&["check", "--watch", "1s", "--from", from]).code, 2);
    assert_eq!(run(&["check", "--anonymise"]).code, 2);
}

/// A tree of files without valid content has no facts. Such a tree is not a healthy host.
#[test]
fn nonsense_in_files_is_not_judged() {
    let directory = tree(&hosts::HOSTS[0].1());
    let mut directories = vec![directory.path().to_owned()];
    while let Some(next) = directories.pop() {
        for entry in std::fs::read_dir(next).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_none_or(|extension| extension != "json") {
                std::fs::write(path, b"\xff\xfe 99999999999999999999999 -7 ,,-,9-1 a:b: ( )) cpu0 x\n\n:\n")
                    .unwrap();
            }
        }
    }
    let ended = run(&["check", "--from", text(directory.path()), "--format", "json"]);
    assert_eq!(ended.code, 2, "{ended:?}");
    let words = " rules could not be judged";
    assert!(ended.stderr.contains(words) && ended.stderr.contains("/proc/net/softnet_stat:1: "), "{ended:?}");
}

#[test]
fn this_machine_is_checked_saved_and_checked_again() {
    let live = run(&["check", "--format", "json"]);
    assert!(live.code == 0 || live.code == 1, "{live:?}");
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let found: serde_json::Value = serde_json::from_str(&live.stdout).unwrap();
    assert_eq!(found["host"]["kernel"], kernel.trim());
    let directory = tempfile::tempdir().unwrap();
    // A line break in a name must not break the error message.
    let saved = directory.path().join("sa\nved");
    let ended = run(&["check", "--save", text(&saved), "--anonymise", "--format", "json"]);
    assert!(ended.code == live.code, "{ended:?}");
    assert!(ended.stderr.contains("files in ") && !ended.stderr.contains("sa\nved"), "{ended:?}");
    let again = run(&["check", "--from", text(&saved), "--format", "json"]);
    let rules = |text: &str| -> Vec<String> {
        let json: serde_json::Value = serde_json::from_str(text).unwrap();
        json["findings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|finding| format!("{} {}", finding["rule"], finding["subject"]))
            .collect()
    };
    assert_eq!(rules(&again.stdout), rules(&ended.stdout));
    // The recording contains the machine's interfaces with their drivers and queues.
    let of =
        |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["host"]["interfaces"].clone();
    let shape = |interfaces: serde_json::Value| -> Vec<String> {
        let interfaces = interfaces.as_array().unwrap().clone();
        interfaces
            .iter()
            .map(|one| {
                format!(
                    "{} {} {} {} {}",
                    one["name"], one["kind"], one["driver"], one["channels"], one["qdisc"]
                )
            })
            .collect()
    };
    assert_eq!(shape(of(&again.stdout)), shape(of(&live.stdout)));
    // The command refuses a wrong name before it records anything.
    let other = directory.path().join("other");
    assert_eq!(run(&["check", "no-such", "--save", text(&other)]).code, 2);
    assert_eq!(run(&["check", "--speed", "no-such=1gbit", "--save", text(&other)]).code, 2);
    assert!(!other.exists());
    // The command does not overwrite an existing recording.
    assert_eq!(run(&["check", "--save", text(&saved)]).code, 2);
}

/// `--anonymise` replaces the names of processes that no rule recognises. A unit test of the recording checks
/// the addresses.
#[test]
fn names_are_replaced_on_request() {
    let _socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let own = std::fs::read_to_string("/proc/self/comm").unwrap();
    let saved_name = |anonymise: bool| {
        let directory = tempfile::tempdir().unwrap();
        let saved = directory.path().join("saved");
        let mut arguments = vec!["check", "--save", text(&saved)];
        if anonymise {
            arguments.push("--anonymise");
        }
        run(&arguments);
        std::fs::read_to_string(saved.join(format!("proc/{}/comm", std::process::id()))).unwrap()
    };
    assert_eq!(saved_name(false), own);
    assert!(saved_name(true).starts_with("process-"));
}

/// The recording lacks the files about CPUs and queues. It has the speed of a NIC, although it lists this
/// speed as unknown.
#[test]
fn what_a_recording_lacks_is_unknown_and_what_it_has_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let mut facts = hosts::HOSTS[0].1();
    facts.counters.insert("TcpExt.ListenOverflows".to_owned(), 90_000);
    write_tree(&facts, directory.path()).unwrap();
    for gone in ["sys/devices/system", "sys/class/net/ens2f0/queues"] {
        std::fs::remove_dir_all(directory.path().join(gone)).unwrap();
    }
    for gone in ["proc/cpuinfo", "proc/stat", "evenkeel/ethtool/ens2f0.json"] {
        std::fs::remove_file(directory.path().join(gone)).unwrap();
    }
    let gap = r#"{"source": "/sys/class/net/ens2f0/speed", "why": "ens2f0 reports no speed"}"#;
    let about = format!(r#"{{"format": 1, "page_bytes": 4096, "unknown": [{gap}]}}"#);
    std::fs::write(directory.path().join("evenkeel/about.json"), about).unwrap();
    let from = directory.path().to_str().unwrap();
    let screen = run(&["check", "--from", from]);
    assert!(screen.stdout.contains("? processors, ? nodes"), "{screen:?}");
    assert!(screen.stdout.contains("? queues") && !screen.stdout.contains("no speed"), "{screen:?}");
    let json: serde_json::Value =
        serde_json::from_str(&run(&["check", "--from", from, "--format", "json"]).stdout).unwrap();
    for field in ["processors", "nodes", "virtual_machine"] {
        assert_eq!(json["host"][field], serde_json::Value::Null, "{field}");
    }
}

/// A tree that has lost a NIC's directory keeps its other files. Such a tree must not count as healthy.
#[test]
fn a_lost_interface_is_no_healthy_one() {
    let directory = tree(&hosts::HOSTS[0].1());
    std::fs::remove_dir_all(directory.path().join("sys/class/net/ens2f0")).unwrap();
    let checked = run(&["check", "--from", text(directory.path())]);
    let why = "the recording has answers about ens2f0 in evenkeel/, but no /sys/class/net/ens2f0";
    assert!(checked.code == 2 && checked.stderr.contains(why), "{checked:?}");
}

/// A process that has sockets but no directory in `/proc` may use memory of any node.
#[test]
fn a_lost_process_leaves_its_rules_not_judged() {
    let facts = hosts::HOSTS.iter().map(|(_, host)| host()).find(|facts| {
        facts
            .sockets
            .iter()
            .any(|socket| socket.process.is_some_and(|number| facts.process(number).is_some()))
    });
    let facts = facts.unwrap();
    let number = facts.sockets.iter().find_map(|socket| socket.process).unwrap();
    let directory = tree(&facts);
    std::fs::remove_dir_all(directory.path().join(format!("proc/{number}"))).unwrap();
    let checked = run(&["check", "--from", text(directory.path()), "--explain", "app-remote-memory"]);
    let words = checked.stdout.replace("\n", " ");
    assert!(
        words.contains("could not be judged") && words.contains(&format!("/proc/{number}/status")),
        "{checked:?}"
    );
}

#[test]
fn the_documentation_lists_every_rule_as_it_is() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/check.md"))
        .unwrap();
    let (_, rest) = page.split_once("<!-- rules: begin -->\n").unwrap();
    let (listed, _) = rest.split_once("<!-- rules: end -->").unwrap();
    let all = run(&["check", "--explain", "all"]);
    assert_eq!(all.code, 0);
    assert!(
        listed.trim() == all.stdout.trim(),
        "docs/reference/check.md is not up to date: put the output of `evenkeel check --explain all` between its marks"
    );
}

/// Checks a host with 128 cores, 8 NICs and 2,000 interrupts. The time limit allows for a debug build
/// on a busy machine.
#[test]
fn a_large_host_is_checked_quickly() {
    const NAMES: [&str; 8] = ["eth0", "eth1", "eth2", "eth3", "eth4", "eth5", "eth6", "eth7"];
    const ACTIONS: [&str; 8] = [
        "ice-eth0-TxRx-{}",
        "ice-eth1-TxRx-{}",
        "ice-eth2-TxRx-{}",
        "ice-eth3-TxRx-{}",
        "ice-eth4-TxRx-{}",
        "ice-eth5-TxRx-{}",
        "ice-eth6-TxRx-{}",
        "ice-eth7-TxRx-{}",
    ];
    let mut builder = HostBuilder::new(2, 64, 1).power("acpi-cpufreq", "performance");
    for at in 0..8_u32 {
        builder = builder.nic(&NicOptions {
            name: NAMES[at as usize],
            driver: "ice",
            bus: "0000:41:00.0",
            node: Some(at % 2),
            pcie: Some((16.0, 16)),
            queues: (250, 256),
            ring: 8160,
            action: ACTIONS[at as usize],
            ..hosts::MLX5
        });
    }
    let facts = builder.build();
    assert_eq!((facts.processors.len(), facts.interrupts.len()), (128, 2000));
    let directory = tree(&facts);
    let started = Instant::now();
    let ended = run(&["check", "--from", text(directory.path())]);
    let elapsed = started.elapsed();
    assert!(ended.code == 0 || ended.code == 1, "{ended:?}");
    assert!(elapsed < Duration::from_secs(20), "{elapsed:?}");
    println!("{elapsed:?}");
}

/// Only the code of --save may open files for writing. All ioctls and netlink messages must only query.
#[test]
fn nothing_is_changed() {
    let directory = tempfile::tempdir().unwrap();
    let saved = directory.path().join("saved");
    let lines = traced(&["check"]);
    assert!(lines.iter().any(|line| line.contains("RTM_GETQDISC")), "netlink is traced");
    assert!(lines.iter().any(|line| line.contains("SIOCETHTOOL")), "ioctls are traced");
    assert_harmless(&lines, None);
    let lines = traced(&["check", "--save", text(&saved)]);
    assert!(lines.iter().any(|line| line.contains("O_WRONLY")), "what --save writes is traced");
    assert_harmless(&lines, Some(text(directory.path())));
}

fn traced(arguments: &[&str]) -> Vec<String> {
    let output = tempfile::NamedTempFile::new().unwrap();
    let calls = "trace=%file,openat2,ftruncate,fallocate,pwrite64,ioctl,sendto,sendmsg,sendmmsg,setsockopt,mount,move_mount,bpf,kill";
    let status = Command::new("strace")
        .args(["-f", "-s", "200", "-e", calls, "-o", text(output.path())])
        .arg(env!("CARGO_BIN_EXE_evenkeel"))
        .args(arguments)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .expect("strace runs: ./dev setup installs it");
    assert!(matches!(status.code(), Some(0 | 1)), "{status:?}");
    std::fs::read_to_string(output.path()).unwrap().lines().map(str::to_owned).collect()
}

fn assert_harmless(lines: &[String], inside: Option<&str>) {
    const CHANGES: [&str; 24] = [
        "O_WRONLY",
        "O_RDWR",
        "O_CREAT",
        "O_TRUNC",
        "unlink",
        "rename",
        "mkdir",
        "rmdir",
        "symlink",
        "link(",
        "linkat(",
        "chmod",
        "chown",
        "truncate",
        "fallocate",
        "mknod",
        "setxattr",
        "utimens",
        // fsmount(2) is allowed: it creates a detached mount, through which Evenkeel reads sysfs.
        " mount(",
        "move_mount",
        "pwrite64",
        "bpf(",
        "kill(",
        "creat(",
    ];
    const ASKS: [&str; 8] = [
        "RTM_GETQDISC",
        "RTM_GETADDR",
        "RTM_GETLINK",
        "SOCK_DIAG_BY_FAMILY",
        "nlmsg_type=0x14",
        "CTRL_CMD_GETFAMILY",
        "SIOCETHTOOL",
        "SIOCGIFINDEX",
    ];
    for line in lines {
        let is_own = inside.is_some_and(|directory| line.contains(directory));
        let is_null = line.contains("/dev/null");
        for change in CHANGES.iter().filter(|_| !is_own && !is_null) {
            // `readlink(` only reads, so it is allowed.
            let found = line.contains(change) && !(change.starts_with("link") && line.contains("readlink"));
            assert!(!found, "{change}: {line}");
        }
        if line.contains("nlmsg_type") || line.contains("ioctl(") {
            let harmless = ASKS.iter().any(|ask| line.contains(ask))
                || line.contains("TCGETS")
                || line.contains("TIOCGWINSZ")
                || line.contains("FIONREAD");
            assert!(harmless, "{line}");
        }
    }
}

#[test]
fn an_interface_that_is_not_a_nic_says_so() {
    let mut facts = hosts::HOSTS[0].1();
    let nic = nic_mut(&mut facts).unwrap().name.clone();
    facts.interfaces.push(hosts::veth("lv0"));
    let directory = tree(&facts);
    let said = |arguments: &[&str]| {
        let ended = run(&[&["check", "--from", text(directory.path())], arguments].concat());
        assert_eq!(ended.code, 0, "{ended:?}");
        ended.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let veth = said(&["lv0"]);
    assert!(veth.contains(" rules about NICs do not judge lv0: it has no device."), "{veth}");
    // These rules are about NICs, although some of them read a setting of the host.
    for rule in ["tso-off", "receive-window", "send-window", "socket-limits"] {
        let explained = said(&["lv0", "--explain", rule]);
        assert!(
            explained.contains("a rule about NICs, does not judge lv0: it has no device."),
            "{explained}"
        );
    }
    for arguments in [&[&*nic][..], &[], &["lv0", "--explain", "sack-off"], &[&*nic, "--explain", "tso-off"]]
    {
        let other = said(arguments);
        assert!(!other.contains("about NICs do"), "{arguments:?}: {other}");
    }
}
