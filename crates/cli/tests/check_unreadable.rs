//! Tests `evenkeel check` on hosts with missing, damaged or truncated files. `check` must name each
//! rule that lacks its facts. No finding may disappear silently.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "several test binaries share this file, and each uses a part of it")]
#[path = "support/faults.rs"]
mod faults;
#[path = "support/hosts.rs"]
mod hosts;
mod support;

use std::collections::BTreeSet;
use std::path::Path;

use evenkeel_host::facts::{Tree, read_facts};
use evenkeel_model::host::{HostFacts, Unknown};
use evenkeel_placement::{Finding, Judgement, judge, rules};
use evenkeel_synthetic::write_tree;
use faults::host_with_faults;
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256StarStar;
use support::run;

fn judged(directory: &Path) -> Result<Judgement, String> {
    let facts = Tree::recorded(directory).and_then(|tree| read_facts(&tree));
    facts.map(|facts| judge(&facts)).map_err(|error| error.to_string())
}

/// Returns the rule and the interface of each finding. Other subjects become `host`, because a damaged file
/// may hide, for example, the name of a process.
fn findings(judgement: &Judgement, facts: &HostFacts) -> BTreeSet<(&'static str, String)> {
    let subject = |finding: &Finding| match facts.interface(&finding.subject) {
        Some(interface) => interface.name.clone(),
        None => "host".to_owned(),
    };
    judgement.findings.iter().map(|finding| (finding.rule, subject(finding))).collect()
}

fn random_bytes(random: &mut Xoshiro256StarStar) -> Vec<u8> {
    let mut bytes = vec![0; 1 + random.next_u64() as usize % 200];
    random.fill_bytes(&mut bytes);
    bytes
}

/// Damages single files of hosts with many findings. Each finding must remain, or `check` must list its rule
/// as not judged or refuse the tree. `EVENKEEL_DAMAGED_FILES` sets the number of files per host (default 25).
#[test]
fn no_finding_disappears_without_a_word() {
    let most: usize =
        std::env::var("EVENKEEL_DAMAGED_FILES").ok().and_then(|text| text.parse().ok()).unwrap_or(25);
    let mut random = Xoshiro256StarStar::seed_from_u64(20);
    let mut failures = Vec::new();
    for (name, _) in hosts::HOSTS {
        let directory = tempfile::tempdir().unwrap();
        let facts = host_with_faults(name);
        write_tree(&facts, directory.path()).unwrap();
        let whole = judged(directory.path()).unwrap();
        let before = findings(&whole, &facts);
        assert!(!before.is_empty(), "{name}");
        assert_eq!(whole.judged + whole.not_judged.len(), rules().count());
        let mut files = hosts::files_of_each_kind(directory.path());
        while files.len() > most {
            let at = random.next_u64() as usize % files.len();
            files.swap_remove(at);
        }
        for file in files {
            let text = std::fs::read(&file).unwrap();
            let lines = text.iter().filter(|byte| **byte == b'\n').count();
            let mut damages = vec![random_bytes(&mut random), Vec::new()];
            // `check` detects a cut within the last line if the file has other lines. It cannot detect
            // a missing digit of a single number.
            if lines > 1 {
                damages.push(text[..text.len() - 2].to_vec());
            }
            for damage in damages {
                std::fs::write(&file, &damage).unwrap();
                let Ok(after) = judged(directory.path()) else { continue };
                let left = findings(&after, &facts);
                let missed: BTreeSet<&str> = after.incomplete().map(|rule| rule.rule).collect();
                for (rule, subject) in before.iter().filter(|found| !left.contains(found)) {
                    if !missed.contains(rule) {
                        let file = file.strip_prefix(directory.path()).unwrap().display();
                        failures.push(format!(
                            "{name}: {rule} of {subject} is gone, with {} bytes in {file}",
                            damage.len()
                        ));
                    }
                }
            }
            std::fs::write(&file, text).unwrap();
        }
    }
    failures.dedup();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Replaces each file that a rule needs by a dangling link and by a link to itself. Removes files that every
/// Linux host has. Each time, `check` must list the rule as not judged, or refuse the tree.
#[test]
fn a_rule_with_a_damaged_need_is_not_judged() {
    // Files that a host may lack: its kernel lacks the module or the feature, it has only one memory node, or
    // it is a virtual machine.
    const OPTIONAL: [&str; 27] = [
        "sys/class/net/ens2f0/bonding",
        "sys/class/net/ens2f0/carrier_changes",
        "sys/class/net/ens2f0/device/",
        "sys/class/net/ens2f0/duplex",
        "sys/class/net/ens2f0/gro_flush_timeout",
        "sys/class/net/ens2f0/napi_defer_hard_irqs",
        "sys/class/net/ens2f0/tx_queue_len",
        "sys/devices/system/cpu/cpu0/",
        "sys/devices/system/cpu/isolated",
        "sys/devices/system/cpu/nohz_full",
        "sys/devices/system/node",
        "sys/kernel/mm/transparent_hugepage",
        "proc/PID",
        "proc/net/raw",
        "proc/net/snmp6",
        "proc/net/stat/",
        "proc/net/udp",
        "proc/sys/kernel/n",
        "proc/sys/net/bridge/",
        "proc/sys/net/core/bpf_jit_enable",
        "proc/sys/net/core/busy_",
        "proc/sys/net/core/flow_limit_cpu_bitmap",
        "proc/sys/net/core/gro_normal_batch",
        "proc/sys/net/core/high_order_alloc_disable",
        "proc/sys/net/ipv",
        "proc/sys/net/netfilter/",
        "proc/sys/vm/zone_reclaim_mode",
    ];
    let directory = tempfile::tempdir().unwrap();
    write_tree(&hosts::HOSTS[0].1(), directory.path()).unwrap();
    let needs: BTreeSet<&str> = rules().flat_map(|rule| rule.needs.iter().copied()).collect();
    let mut failures = Vec::new();
    for need in needs {
        let name =
            need.trim_start_matches('/').replace("net/*", "net/ens2f0").replace("cpu/cpu*", "cpu/cpu0");
        // Other tests cover the kernel's answers. `check` finds processes by their directories, and a
        // NIC's interrupts in a table.
        let is_derived = name.starts_with("proc/PID") || name == "sys/class/net/ens2f0/interrupts";
        if name.starts_with("netlink") || name.contains("/ethtool/") || is_derived {
            continue;
        }
        let place = directory.path().join(&name);
        let aside = directory.path().join("aside");
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        let was_there = std::fs::rename(&place, &aside).is_ok();
        for target in [Some(Path::new("nowhere")), place.file_name().map(Path::new), None] {
            if let Some(target) = target {
                std::os::unix::fs::symlink(target, &place).unwrap();
            } else if OPTIONAL.iter().any(|start| name.starts_with(start)) {
                continue;
            }
            if let Ok(judgement) = judged(directory.path()) {
                let missed: BTreeSet<&str> = judgement.incomplete().map(|missed| missed.rule).collect();
                let blind = rules().filter(|rule| rule.needs.contains(&need) && !missed.contains(rule.name));
                failures.extend(blind.map(|rule| format!("{} with {name} -> {target:?}", rule.name)));
            }
            if target.is_some() {
                std::fs::remove_file(&place).unwrap();
            }
        }
        if was_there {
            std::fs::rename(&aside, &place).unwrap();
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// A NIC with a dangling `device` link still counts as a NIC. `check` names a NIC with an unreadable
/// directory.
#[test]
fn a_nic_with_a_damaged_directory_stays_a_nic() {
    let directory = tempfile::tempdir().unwrap();
    let mut facts = hosts::HOSTS[0].1();
    let nic = facts.interfaces.iter_mut().find(|interface| interface.name == "ens2f0").unwrap();
    nic.driver_statistics.insert("rx_out_of_buffer".to_owned(), 50_000_000);
    nic.transmit_queues[0].timeouts = 500;
    write_tree(&facts, directory.path()).unwrap();
    let rules = ["rx-ring-drops", "tx-timeouts"];
    let of_nic = |found: &Finding| found.subject == "ens2f0" && rules.contains(&found.rule);
    let graves = |judgement: &Judgement| judgement.findings.iter().filter(|found| of_nic(found)).count();
    assert_eq!(graves(&judged(directory.path()).unwrap()), 2);
    let class = directory.path().join("sys/class/net");
    let device = class.join("ens2f0/device");
    let aside = class.join("ens2f0/aside");
    std::fs::rename(&device, &aside).unwrap();
    for target in ["../nowhere", "device"] {
        std::os::unix::fs::symlink(target, &device).unwrap();
        let judgement = judged(directory.path()).unwrap();
        let named = judgement.incomplete().find(|missed| missed.rule == "pcie-narrow");
        assert_eq!(graves(&judgement), 2, "{target}: {:?}", judgement.not_judged);
        assert!(named.unwrap().why.contains("ens2f0/device: "), "{named:?}");
        std::fs::remove_file(&device).unwrap();
    }
    std::fs::rename(&aside, &device).unwrap();
    std::fs::remove_dir_all(class.join("ens2f0/queues")).unwrap();
    let judgement = judged(directory.path()).unwrap();
    let named = judgement.incomplete().find(|missed| missed.rule == "tx-timeouts").unwrap();
    assert!(named.why.contains("ens2f0/queues holds no "), "{named:?}");
    for target in ["ens2f0", "../nowhere", ""] {
        let _ = std::fs::remove_dir_all(class.join("ens2f0"));
        let _ = std::fs::remove_file(class.join("ens2f0"));
        // Some archives store a link as a regular file.
        if target.is_empty() {
            std::fs::write(class.join("ens2f0"), "../../devices/recorded/ens2f0").unwrap();
        } else {
            std::os::unix::fs::symlink(target, class.join("ens2f0")).unwrap();
        }
        let judgement = judged(directory.path()).unwrap();
        for rule in rules {
            let named = judgement.incomplete().find(|missed| missed.rule == rule).unwrap();
            assert!(named.why.contains("/sys/class/net/ens2f0: "), "{target}: {named:?}");
        }
        let ended = run(&["check", "ens2f0", "--from", directory.path().to_str().unwrap()]);
        assert!((ended.stdout + &ended.stderr).contains("/sys/class/net/ens2f0: "), "{target}");
    }
    std::fs::remove_dir_all(&class).unwrap();
    std::os::unix::fs::symlink("net", &class).unwrap();
    let error = judged(directory.path()).unwrap_err();
    assert!(error.contains("sys/class/net: ") && !error.contains("names no interface"), "{error}");
}

/// A plan for a recorded host does not include a change that `--apply` would refuse.
#[test]
fn a_plan_has_no_setting_that_cannot_be_made() {
    let directory = tempfile::tempdir().unwrap();
    let mut facts = hosts::HOSTS[0].1();
    facts.counters.insert("Vmstat.allocstall_normal".to_owned(), 1 << 40);
    facts.sysctls.insert("vm/min_free_kbytes".to_owned(), "1024".to_owned());
    write_tree(&facts, directory.path()).unwrap();
    let shown = run(&["tune", "ens2f0", "--from", directory.path().to_str().unwrap()]);
    assert!(shown.stdout.starts_with("# ens2f0: nothing to change"), "{shown:?}");
    assert!(shown.stdout.contains("vm.min_free_kbytes is not a setting"), "{shown:?}");
}

/// `check` must report a table that ends in the middle of a line as cut off.
#[test]
fn a_cut_table_of_memory_is_named() {
    let directory = tempfile::tempdir().unwrap();
    write_tree(&hosts::HOSTS[0].1(), directory.path()).unwrap();
    std::fs::write(directory.path().join("proc/vmstat"), "oom_kill 0\npswpin 12").unwrap();
    let judgement = judged(directory.path()).unwrap();
    let named = judgement.incomplete().find(|missed| missed.rule == "memory-reclaim").unwrap();
    assert!(named.why.contains("/proc/vmstat:2: the file is cut off"), "{named:?}");
}

/// If a file lacks a row that the kernel always writes, or contradicts itself or another file, the rules that
/// need the file do not judge.
#[test]
fn missing_rows_and_contradictions_are_named() {
    let edited = |file: &str, edit: &dyn Fn(String) -> String| {
        let directory = tempfile::tempdir().unwrap();
        write_tree(&hosts::HOSTS[0].1(), directory.path()).unwrap();
        let path = directory.path().join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        std::fs::write(&path, edit(text)).unwrap();
        (judged(directory.path()), directory)
    };
    let without = |start: &'static str| {
        move |text: String| {
            let kept = text.lines().filter(|line| !line.starts_with(start));
            kept.map(|line| format!("{line}\n")).collect()
        }
    };
    for (file, edit, rule, why) in [
        (
            "proc/net/snmp",
            &without("Udp:") as &dyn Fn(String) -> String,
            "udp-receive-buffer",
            "has no Udp.* counters",
        ),
        (
            "proc/net/netstat",
            &|text| text.replace("TcpExt:", "Other:"),
            "listen-overflow",
            "has no TcpExt.* counters",
        ),
        (
            "proc/net/netstat",
            &|text| text.replace(" ListenOverflows", " ListenDrops"),
            "listen-overflow",
            "has no counter TcpExt.ListenOverflows",
        ),
        (
            "proc/net/netstat",
            &|text| text.replace(" IPReversePathFilter", " ReversePath"),
            "reverse-path-drops",
            "has no counter TcpExt.IPReversePathFilter",
        ),
        (
            "proc/sys/net/ipv4/ip_local_port_range",
            &|_| "60999\t32768\n".to_owned(),
            "ports-exhausted",
            "ip_local_port_range:1: unreadable",
        ),
        ("proc/vmstat", &|_| "numa_hit 5\n".to_owned(), "memory-reclaim", "has no Vmstat.* counters"),
        (
            "proc/net/sockstat",
            &|text| text.replace(" mem ", " mme "),
            "tcp-memory",
            "has no counter Sockstat.TCP.mem",
        ),
        (
            "proc/interrupts",
            &|text| text.replace("CPU0", "XPU0"),
            "irq-one-processor",
            "/proc/interrupts:1: ",
        ),
        (
            "evenkeel/qdiscs.json",
            &|text| text.replace("ens2f0", "eth7"),
            "qdisc-no-pacing",
            "has no qdisc of ens2f0",
        ),
        ("sys/class/net/ens2f0/device/numa_node", &|_| "7\n".to_owned(), "irq-remote-node", "has no node7"),
        (
            "sys/devices/system/node/node1/cpulist",
            &|_| "0-255\n".to_owned(),
            "irq-remote-node",
            "is in two nodes",
        ),
        (
            "proc/stat",
            &|text| format!("{}\n", text.lines().next().unwrap()),
            "steal",
            "no row of processor 0",
        ),
        ("proc/stat", &|_| "cpu 1 2 3\n".to_owned(), "processors-full", "/proc/stat:1: "),
    ] {
        let judgement = edited(file, edit).0.unwrap();
        let named = judgement.incomplete().find(|missed| missed.rule == rule);
        assert!(named.is_some_and(|named| named.why.contains(why)), "{file}: {named:?}");
    }
    let (error, _) = edited("evenkeel/about.json", &|text| text.replace("4096", "0"));
    assert!(error.unwrap_err().contains("page_bytes: 0 is not the size of a page"));
    let (_, directory) = edited("proc/stat", &|text| text);
    let class = directory.path().join("sys/class/net");
    std::fs::create_dir(class.join("eth9")).unwrap();
    std::fs::write(class.join("eth9/operstate"), "up\n").unwrap();
    let queues = class.join("ens2f0/queues");
    for queue in std::fs::read_dir(&queues).unwrap().map(|entry| entry.unwrap()) {
        if queue.file_name().as_encoded_bytes().starts_with(b"rx-") {
            std::fs::remove_dir_all(queue.path()).unwrap();
        }
    }
    let interrupts = directory.path().join("proc/interrupts");
    let nameless: String =
        std::fs::read_to_string(&interrupts).unwrap().replace("ens2f0", "x").replace("0000:", "x");
    std::fs::write(&interrupts, nameless).unwrap();
    std::fs::remove_dir_all(class.join("ens2f0/device/msi_irqs")).unwrap();
    let judgement = judged(directory.path()).unwrap();
    let why: Vec<&str> = judgement.incomplete().map(|missed| missed.why.as_str()).collect();
    assert!(why.iter().any(|why| why.contains("no interrupt of ens2f0 was found")), "{why:?}");
    assert!(why.iter().any(|why| why.contains("eth9 has no mtu")), "{why:?}");
    assert!(why.iter().any(|why| why.contains("ens2f0/queues holds no receive queues")), "{why:?}");
}

/// A mask with a CPU beyond the possible CPUs is invalid, so rules that need the mask do not judge. The
/// default affinity is an exception: the kernel sets all bits of its masks.
#[test]
fn masks_of_impossible_processors_are_named() {
    let facts = hosts::HOSTS[0].1();
    let last = facts.processors.last().unwrap().number;
    let interrupt = facts.interrupts.iter().find(|interrupt| interrupt.interface == "ens2f0").unwrap().number;
    let irq = |name: &str| format!("proc/irq/{interrupt}/{name}");
    let queue = |name: &str| format!("sys/class/net/ens2f0/queues/{name}");
    let processor_1023 = format!("80000000{}\n", ",00000000".repeat(31));
    for (file, text, rule) in [
        (queue("tx-0/xps_cpus"), processor_1023.as_str(), Some("xps-remote")),
        (queue("rx-0/rps_cpus"), &processor_1023, Some("rps-remote")),
        (irq("smp_affinity_list"), "1023\n", Some("irq-one-processor")),
        (irq("effective_affinity_list"), "1023\n", Some("irq-one-processor")),
        (irq("smp_affinity_list"), "0-1023\n", None),
    ] {
        let directory = tempfile::tempdir().unwrap();
        write_tree(&facts, directory.path()).unwrap();
        let write = |file: &str, text: &str| std::fs::write(directory.path().join(file), text).unwrap();
        write("sys/devices/system/cpu/possible", &format!("0-{last}\n"));
        let missed = || judged(directory.path()).unwrap().incomplete().cloned().collect::<Vec<_>>();
        let before = missed();
        write(&file, text);
        let after = missed();
        let Some(rule) = rule else {
            assert_eq!(after, before, "{file}");
            continue;
        };
        let words = format!("/{file}:1: names processor 1023, and there are only 0-{last}");
        let named = after.iter().find(|missed| missed.rule == rule);
        assert!(named.is_some_and(|named| named.why.contains(&words)), "{file}: {after:#?}");
    }
}

/// If a HIGH finding depends on a damaged file, a line that names the file replaces the finding.
#[test]
fn a_high_finding_is_replaced_by_the_reason() {
    let mut facts = hosts::HOSTS[0].1();
    facts.softnet[0].dropped = 10_000_000;
    let directory = tempfile::tempdir().unwrap();
    write_tree(&facts, directory.path()).unwrap();
    let from = directory.path().to_str().unwrap();
    assert!(run(&["check", "--from", from]).stdout.contains("HIGH   backlog-drops"));
    std::fs::write(directory.path().join("proc/net/softnet_stat"), b"\x00\x93\xff\n").unwrap();
    let screen = run(&["check", "--from", from]);
    assert!(screen.stdout.contains(" rules could not be judged:\n"), "{}", screen.stdout);
    let reason =
        screen.stdout.lines().find(|line| line.contains("/proc/net/softnet_stat:1: unreadable bytes"));
    assert!(reason.unwrap().contains("backlog-drops"), "{}", screen.stdout);
    let json: serde_json::Value =
        serde_json::from_str(&run(&["check", "--from", from, "--format", "json"]).stdout).unwrap();
    let missed = json["rules"]["not_judged"].as_array().unwrap();
    let all = json["rules"]["judged"].as_u64().unwrap() as usize + missed.len();
    assert_eq!(all, rules().count());
    let backlog = missed.iter().find(|rule| rule["rule"] == "backlog-drops").unwrap();
    assert!(backlog["why"].as_str().unwrap().contains("/proc/net/softnet_stat:1: "), "{backlog}");
    let explained = run(&["check", "--from", from, "--explain", "backlog-drops"]).stdout;
    assert!(
        explained.starts_with("backlog-drops could not be judged on this host: /proc/net/softnet_stat:1"),
        "{explained}"
    );
}

/// An empty tree is an error, not a healthy host.
#[test]
fn a_tree_without_facts_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("proc")).unwrap();
    std::fs::create_dir(directory.path().join("sys")).unwrap();
    let from = directory.path().to_str().unwrap();
    for arguments in [vec!["check", "--from", from], vec!["tune", "eth0", "--from", from]] {
        let ended = run(&arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{ended:?}");
        assert!(ended.stderr.contains("as a recorded host"), "{ended:?}");
    }
    // With only a loopback interface, `check` names the missing files.
    std::fs::create_dir_all(directory.path().join("sys/class/net/lo")).unwrap();
    std::fs::write(directory.path().join("sys/class/net/lo/mtu"), "65536\n").unwrap();
    let ended = run(&["check", "--from", from]);
    assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{ended:?}");
    assert!(ended.stderr.contains("/proc/net/softnet_stat is missing"), "{ended:?}");
    assert!(ended.stderr.contains("the recording has no evenkeel/qdiscs.json"), "{ended:?}");
}

/// `--speed` overrides the reported speed, and the commands remark on this. They refuse a speed at which the
/// NIC could not have carried its traffic.
#[test]
fn a_stated_speed_fits_the_counters() {
    let directory = tempfile::tempdir().unwrap();
    let mut facts = hosts::HOSTS[0].1();
    facts.uptime_s = Some(1000);
    let nic = hosts::nic_mut(&mut facts).unwrap();
    for (name, value) in
        [("rx_bytes", 100_000_000_000), ("tx_bytes", 100), ("rx_packets", 100_000_000), ("tx_packets", 1)]
    {
        nic.statistics.insert(name.to_owned(), value);
    }
    write_tree(&facts, directory.path()).unwrap();
    let from = directory.path().to_str().unwrap();
    for command in [&["check"][..], &["tune", "ens2f0"]] {
        let with = |speed: &str| run(&[command, &["--from", from, "--speed", speed]].concat());
        let other = with("ens2f0=25gbit");
        let words = "--speed: 25 Gbit/s replaces the 100 Gbit/s that ens2f0 reports";
        assert!(other.code < 2 && other.stderr.contains(words), "{other:?}");
        assert!(!with("ens2f0=100gbit").stderr.contains("replaces"));
        let low = with("ens2f0=10mbit");
        let words = "ens2f0 carried ";
        assert!(low.code == 2 && low.stdout.is_empty() && low.stderr.contains(words), "{low:?}");
    }
}

/// Commands that `tune` prints set the same state and configuration directories that `tune` uses, so that
/// they find its journal.
#[test]
fn printed_commands_name_the_directories() {
    let directory = tempfile::tempdir().unwrap();
    let mut facts = hosts::HOSTS[0].1();
    facts.sysctls.insert("net/ipv4/tcp_sack".to_owned(), "0".to_owned());
    write_tree(&facts, directory.path()).unwrap();
    let mut tune = support::evenkeel(&["tune", "ens2f0", "--from", directory.path().to_str().unwrap()]);
    let plain = run(&["tune", "ens2f0", "--from", directory.path().to_str().unwrap()]).stdout;
    assert!(plain.contains("# undo all: evenkeel revert ens2f0"), "{plain}");
    tune.env("EVENKEEL_STATE_DIR", "/x y/state").env("EVENKEEL_ETC_DIR", "/etc2");
    let named = support::end(tune).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let environment = "EVENKEEL_STATE_DIR='/x y/state' EVENKEEL_ETC_DIR=/etc2";
    for command in ["revert ens2f0", "tune ens2f0 --apply"] {
        assert!(named.replace("# ", "").contains(&format!("{environment} evenkeel {command}")), "{named}");
    }
}

/// An empty plan shows the number of rules that could not judge, as `check` does.
#[test]
fn a_plan_without_facts_is_no_all_clear() {
    let directory = tempfile::tempdir().unwrap();
    write_tree(&hosts::HOSTS[0].1(), directory.path()).unwrap();
    let from = directory.path().to_str().unwrap();
    let tune = |more: &[&str]| run(&[&["tune", "ens2f0", "--from", from], more].concat());
    let softnet = directory.path().join("proc/net/softnet_stat");
    for fault in ["missing", "garbage"] {
        match fault {
            "missing" => std::fs::remove_file(&softnet).unwrap(),
            _ => std::fs::write(&softnet, "no figures\n").unwrap(),
        }
        let check = run(&["check", "--from", from, "--format", "json"]).stdout;
        let check: serde_json::Value = serde_json::from_str(&check).unwrap();
        let missed = check["rules"]["not_judged"].as_array().unwrap().len();
        assert!(missed > 0, "{fault}");
        let shown = tune(&[]).stdout;
        let first = shown.lines().next().unwrap();
        assert!(
            first.contains(&format!("; {missed} of ")) && first.contains("could not be judged"),
            "{shown}"
        );
        assert!(shown.contains("/proc/net/softnet_stat"), "{shown}");
        let plan: serde_json::Value = serde_json::from_str(&tune(&["--format", "json"]).stdout).unwrap();
        assert_eq!(plan["rules"], check["rules"], "{fault}");
    }
}

/// Directories that could not be opened do not count as empty.
#[test]
fn too_few_descriptors_are_named() {
    let line = format!("ulimit -n 4; exec {} check", env!("CARGO_BIN_EXE_evenkeel"));
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &line]);
    let ended = support::end(command);
    let text = ended.stdout.replace("\n  ", " ") + &ended.stderr;
    assert!(text.contains("Too many open files"), "{ended:?}");
    assert!(!text.contains("holds no counters"), "{ended:?}");
}

/// The link reports no speed, as in clouds.
#[test]
fn rules_that_need_a_speed_say_so() {
    let mut facts = hosts::HOSTS[0].1();
    for interface in &mut facts.interfaces {
        interface.speed_bps = None;
    }
    let directory = tempfile::tempdir().unwrap();
    write_tree(&facts, directory.path()).unwrap();
    let from = directory.path().to_str().unwrap();
    let stated = run(&["check", "--from", from, "--speed", "ens2f0=100gbit"]);
    assert!(
        !stated.stdout.contains("reports no speed") && stated.stdout.contains("100 Gbit/s"),
        "{stated:?}"
    );
    for (speed, words) in [
        ("eth9=1gbit", "no interface 'eth9'"),
        ("lo=1gbit", "'lo' is not a NIC"),
        ("ens2f0", "eth0=25gbit"),
        ("ens2f0=7", "unit"),
    ] {
        let refused = run(&["check", "--from", from, "--speed", speed]);
        assert!(refused.code == 2 && refused.stderr.contains(words), "{refused:?}");
    }
    let ended = run(&["check", "--from", from]);
    assert!(
        ended.stdout.contains("ens2f0 reports no speed") && ended.stdout.contains("receive-window"),
        "{ended:?}"
    );
}

/// A figure with a missing file or an impossible value is unknown. No default replaces the figure.
#[test]
fn missing_figures_are_unknown() {
    let mut facts = hosts::HOSTS[0].1();
    facts.softnet[0].dropped = facts.softnet[0].processed;
    let directory = tempfile::tempdir().unwrap();
    write_tree(&facts, directory.path()).unwrap();
    let from = directory.path().to_str().unwrap();
    let rule = "backlog-drops";
    let sound = judged(directory.path()).unwrap();
    assert!(sound.findings.iter().any(|finding| finding.rule == rule), "{:?}", sound.findings);
    let damage = |file: &Path, text: Option<&str>| match text {
        Some(text) => std::fs::write(file, text).unwrap(),
        None => std::fs::remove_file(file).unwrap(),
    };
    let backlog = directory.path().join("proc/sys/net/core/netdev_max_backlog");
    let whole = std::fs::read(&backlog).unwrap();
    for text in [None, Some("1e308\n"), Some("-5\n")] {
        damage(&backlog, text);
        let judgement = judged(directory.path()).unwrap();
        // The loss is known without the sysctl; only the fix is unknown.
        let found = judgement.findings.iter().find(|finding| finding.rule == rule).unwrap();
        assert!(found.remedy.changes.is_empty(), "{text:?}: {found:?}");
        assert!(found.remedy.advice.as_ref().unwrap().contains("netdev_max_backlog"), "{text:?}: {found:?}");
        assert!(judgement.incomplete().all(|missed| missed.rule != rule), "{text:?}: it is judged");
        std::fs::write(&backlog, &whole).unwrap();
    }
    for (file, field, words) in [
        ("mtu", "mtu", "MTU unknown"),
        ("statistics/rx_packets", "rx_packets", " ? packets in"),
        ("statistics/tx_packets", "tx_packets", " packets in, ? out"),
    ] {
        let file = directory.path().join("sys/class/net/ens2f0").join(file);
        let whole = std::fs::read(&file).unwrap();
        for text in [None, Some("-99\n"), Some("99999999999999999999999\n")] {
            damage(&file, text);
            let ended = run(&["check", "--from", from]);
            assert!(ended.stdout.replace("\n             ", " ").contains(words), "{text:?}: {ended:?}");
            let json = run(&["check", "--from", from, "--format", "json"]);
            let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
            let interfaces = json["host"]["interfaces"].as_array().unwrap();
            let found = interfaces.iter().find(|found| found["name"] == "ens2f0").unwrap();
            assert_eq!(found[field], serde_json::Value::Null, "{text:?}: {found}");
            let unknown = json["host"]["unknown"].to_string();
            assert!(unknown.contains(file.file_name().unwrap().to_str().unwrap()), "{text:?}: {unknown}");
            std::fs::write(&file, &whole).unwrap();
        }
    }
}

/// If a container hides a sysctl, findings about counted losses remain, and their advice names the sysctl. A
/// rule with findings counts as judged. No finding appears that the host with all sysctls does not have.
#[test]
fn a_hidden_sysctl_hides_no_counted_loss() {
    const LOSSES: [&str; 6] = [
        "backlog-drops",
        "softnet-squeezed",
        "udp-receive-buffer",
        "listen-overflow",
        "conntrack-full",
        "neighbours-full",
    ];
    let mut seen = BTreeSet::new();
    for (name, _) in hosts::HOSTS {
        let whole = host_with_faults(name);
        let before = findings(&judge(&whole), &whole);
        for path in whole.sysctls.keys() {
            let mut facts = whole.clone();
            facts.sysctls.remove(path);
            facts.unknown.push(Unknown::new(format!("/proc/sys/{path}"), format!("no {path}")));
            let judgement = judge(&facts);
            let after = findings(&judgement, &facts);
            assert!(after.is_subset(&before), "{name} without {path}: {after:?}");
            for (rule, subject) in before.difference(&after) {
                assert!(!LOSSES.contains(rule), "{name} without {path}: {rule} of {subject} is gone");
            }
            let missed: BTreeSet<&str> = judgement.incomplete().map(|missed| missed.rule).collect();
            assert!(
                after.iter().all(|(rule, _)| !missed.contains(rule)),
                "{name} without {path}: {missed:?}"
            );
            let names = |finding: &&Finding| {
                finding.remedy.advice.as_ref().is_some_and(|advice| advice.contains(&format!("no {path}")))
            };
            seen.extend(judgement.findings.iter().filter(names).map(|finding| finding.rule));
        }
    }
    assert!(LOSSES.iter().all(|rule| seen.contains(rule)), "{seen:?}");
}

/// If the file omits a part of ethtool's answers, the part was not recorded. `null` means that the driver
/// does not support the part.
#[test]
fn parts_that_were_not_recorded_are_not_judged() {
    let directory = tempfile::tempdir().unwrap();
    let (_, host) = hosts::HOSTS[0];
    write_tree(&host(), directory.path()).unwrap();
    let file = directory.path().join("evenkeel/ethtool/ens2f0.json");
    let whole = judged(directory.path()).unwrap();
    std::fs::write(&file, "{}").unwrap();
    let without = judged(directory.path()).unwrap();
    assert!(without.judged + 20 <= whole.judged, "{} of {}", without.judged, whole.judged);
    for rule in ["gro-off", "rx-ring-short", "coalescing-long", "rss-table-narrow", "queues-few"] {
        let missed = without.incomplete().find(|missed| missed.rule == rule).expect(rule);
        assert!(missed.why.contains("evenkeel/ethtool/ens2f0.json has no '"), "{missed:?}");
        assert!(whole.incomplete().all(|missed| missed.rule != rule), "{rule}");
    }
    let parts = ["firmware", "max_read_request", "supported_mbps", "channels", "rings", "coalescing", "rss"];
    let parts: Vec<String> = parts.iter().map(|part| format!("\"{part}\": null")).collect();
    let judged_with = |statistics: &str| {
        let parts = parts.join(", ");
        let text =
            format!("{{{parts}, \"features\": {{}}, \"private_flags\": {{}}, \"statistics\": {statistics}}}");
        std::fs::write(&file, text).unwrap();
        judged(directory.path()).unwrap()
    };
    assert_eq!(judged_with("{\"rx_out_of_buffer\": 0}").not_judged, whole.not_judged);
    // This driver always counts losses. So an empty table, or a table with other counters only, does
    // not show that there are no losses.
    for statistics in ["{}", "null", "{\"rx0_packets\": 1}"] {
        let judgement = judged_with(statistics);
        let missed = judgement.incomplete().find(|missed| missed.rule == "rx-ring-drops").expect(statistics);
        assert!(missed.why.contains("none of the loss counters of mlx5_core"), "{statistics}: {missed:?}");
    }
}

#[test]
fn an_unreadable_hash_is_not_judged() {
    let directory = tempfile::tempdir().unwrap();
    write_tree(&hosts::HOSTS[0].1(), directory.path()).unwrap();
    let file = directory.path().join("evenkeel/ethtool/ens2f0.json");
    let whole = std::fs::read_to_string(&file).unwrap();
    for (field, from, to) in [("key", "6d:5a:", "zz:5a:"), ("function", "toeplitz", "nosuch")] {
        assert!(whole.contains(from));
        std::fs::write(&file, whole.replace(from, to)).unwrap();
        let judgement = judged(directory.path()).unwrap();
        let missed = judgement.incomplete().find(|missed| missed.rule == "flows-collide").unwrap();
        assert!(missed.why.contains(&format!("ens2f0.json: rss.{field}: unreadable: '")), "{missed:?}");
    }
}

/// A byte-order mark, which some editors write at the start of a file, is not damage.
#[test]
fn a_byte_order_mark_is_passed_over() {
    let directory = tempfile::tempdir().unwrap();
    write_tree(&host_with_faults(hosts::HOSTS[0].0), directory.path()).unwrap();
    let before = judged(directory.path()).unwrap();
    let mut marked = hosts::files(&directory.path().join("evenkeel"));
    marked.push(directory.path().join("proc/net/softnet_stat"));
    for file in &marked {
        let text = std::fs::read_to_string(file).unwrap();
        std::fs::write(file, format!("\u{feff}{text}")).unwrap();
    }
    assert!(marked.iter().any(|file| file.ends_with("links.json")), "{marked:?}");
    assert_eq!(judged(directory.path()).unwrap(), before);
}

/// The error about an invalid kernel answer contains the path of its file only once, and names the next step.
#[test]
fn an_answer_that_cannot_be_read_is_named_once() {
    let directory = tempfile::tempdir().unwrap();
    write_tree(&hosts::HOSTS[0].1(), directory.path()).unwrap();
    for name in ["links.json", "sockets.json"] {
        let file = directory.path().join("evenkeel").join(name);
        let whole = std::fs::read(&file).ok();
        let _ = std::fs::remove_file(&file);
        std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
        let ended = run(&["check", "--from", directory.path().to_str().unwrap()]);
        assert_eq!(ended.code, 2, "{ended:?}");
        assert_eq!(ended.stderr.matches(name).count(), 1, "{ended:?}");
        assert!(ended.stderr.contains("not a regular file; put a readable file in its place"), "{ended:?}");
        std::fs::remove_file(&file).unwrap();
        if let Some(whole) = whole {
            std::fs::write(&file, whole).unwrap();
        }
    }
}

#[test]
fn a_socket_without_an_address_is_named() {
    let directory = tempfile::tempdir().unwrap();
    write_tree(&host_with_faults(hosts::HOSTS[0].0), directory.path()).unwrap();
    for (sockets, words) in [
        (
            r#"[{"receive_queue": 0, "send_queue": 0}]"#,
            "sockets.json: [0].local: '' is not an address with a port",
        ),
        (
            r#"[{"local": "192.0.2.1:1", "receive_queue": 0, "send_queue": 0},
                {"local": "192.0.2.1:99999", "receive_queue": 0, "send_queue": 0}]"#,
            "[1].local: '192.0.2.1:99999' is no",
        ),
        (
            r#"[{"local": "[::1]:1", "remote": "here", "receive_queue": 0, "send_queue": 0}]"#,
            "[0].remote: 'here' is not an address with a port",
        ),
        (r#"[{"local": "192.0.2.1:1", "send_queue": 0}]"#, "the field 'receive_queue' is missing"),
        (
            r#"[{"kind": "udp", "local": "192.0.2.1:1", "receive_queue": 0, "send_queue": 0, "tcp": {"rtt_us": 1,
                "min_rtt_us": 1, "cwnd": 1, "mss": 1, "pmtu": 1, "bytes_acked": 1, "bytes_received": 1,
                "segments_out": 1, "segments_in": 1, "retransmitted": 0, "receiver_limited_us": 0,
                "sender_limited_us": 0, "busy_us": 0}}]"#,
            "[0].tcp: only a connection",
        ),
    ] {
        std::fs::write(directory.path().join("evenkeel/sockets.json"), sockets).unwrap();
        let error = judged(directory.path()).unwrap_err();
        assert!(error.contains(words), "{sockets}: {error}");
    }
}

#[test]
fn big_tcp_without_the_recorded_links_is_not_judged() {
    let directory = tempfile::tempdir().unwrap();
    write_tree(&hosts::HOSTS[0].1(), directory.path()).unwrap();
    let why = || {
        let judgement = judged(directory.path()).unwrap();
        judgement.incomplete().find(|rule| rule.rule == "big-tcp-off").map(|rule| rule.why.clone())
    };
    assert_eq!(why(), None);
    std::fs::write(directory.path().join("evenkeel/links.json"), "[]").unwrap();
    assert_eq!(why().unwrap(), "evenkeel/links.json has no ens2f0");
    std::fs::remove_file(directory.path().join("evenkeel/links.json")).unwrap();
    assert_eq!(why().unwrap(), "the recording has no evenkeel/links.json");
}
