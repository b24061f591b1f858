//! Tests `evenkeel check` on hosts with planted faults. `check` must find each fault, alone and among
//! others. A well-tuned host has no finding.
//!
//! Some tests write each host as a tree of files and read the tree again, as `check --from` does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/faults.rs"]
mod faults;
#[path = "support/hosts.rs"]
mod hosts;
#[allow(dead_code, reason = "several test binaries share this file, and each uses a part of it")]
#[path = "support/random_hosts.rs"]
mod random_hosts;
#[path = "support/stack_faults.rs"]
mod stack_faults;

use evenkeel_host::facts::{Tree, complete, read_facts};
use evenkeel_model::change::{Change, Knob, Value};
use evenkeel_model::host::{HostFacts, InterfaceKind, Unknown};
use evenkeel_placement::{Finding, Severity, check, find_rule, judge};
use evenkeel_synthetic::write_tree;
use faults::{FAULTS, Fault, STRUCTURAL};
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256StarStar;

fn every_fault() -> impl Iterator<Item = &'static Fault> {
    FAULTS.iter().chain(stack_faults::FAULTS)
}

/// Returns the findings on a host without writing and reading files. The result equals that of
/// [`findings`], as [`every_fault_is_found_alone_and_nothing_else_is`] shows for each fault.
fn findings_at_once(facts: &HostFacts) -> Vec<Finding> {
    let mut facts = facts.clone();
    complete(&mut facts);
    check(&facts)
}

/// Writes a host's tree, reads it again, and returns the findings.
fn findings(facts: &HostFacts) -> Vec<Finding> {
    let directory = tempfile::tempdir().unwrap();
    write_tree(facts, directory.path()).unwrap();
    check(&read_facts(&Tree::recorded(directory.path()).unwrap()).unwrap())
}

#[test]
fn a_well_tuned_host_is_silent() {
    for (name, host) in hosts::HOSTS {
        let found = findings(&host());
        assert_eq!(found, findings_at_once(&host()), "{name}");
        assert!(found.is_empty(), "{name}: {found:#?}");
    }
}

#[test]
fn every_fault_is_found_alone_and_nothing_else_is() {
    assert!(every_fault().count() >= 100);
    let mut failures = Vec::new();
    for fault in every_fault() {
        assert!(find_rule(fault.rule).is_some(), "{}", fault.rule);
        for (at, (name, host)) in (fault.hosts)().into_iter().enumerate() {
            let mut facts = host();
            (fault.plant)(&mut facts);
            let found = findings_at_once(&facts);
            if at == 0 {
                assert_eq!(findings(&facts), found, "{}: another finding by way of files", fault.name);
            }
            if !found.iter().any(|finding| finding.rule == fault.rule) {
                failures.push(format!("{} on {name}: not found", fault.name));
            }
            for other in found
                .iter()
                .filter(|finding| finding.rule != fault.rule && !fault.also.contains(&finding.rule))
            {
                failures.push(format!(
                    "{} on {name}: also {} on {}: {}",
                    fault.name, other.rule, other.subject, other.evidence
                ));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Returns the findings that `check` neither reports nor lists as not judged if the NICs report no speed.
fn lost_without_speeds(mut facts: HostFacts) -> Vec<String> {
    complete(&mut facts);
    let whole = check(&facts);
    let is_fast = |kind: InterfaceKind, up: bool| kind == InterfaceKind::Device && up;
    for nic in facts.interfaces.iter_mut().filter(|nic| is_fast(nic.kind, nic.up)) {
        nic.speed_bps = None;
        let source = format!("/sys/class/net/{}/speed", nic.name);
        facts.unknown.push(Unknown::new(source, format!("{} reports no speed", nic.name)));
    }
    let after = judge(&facts);
    let stays = |found: &&Finding| {
        after.findings.iter().any(|other| (other.rule, &other.subject) == (found.rule, &found.subject))
            || after.incomplete().any(|missed| missed.rule == found.rule)
    };
    whole
        .iter()
        .filter(|found| !stays(found))
        .map(|found| format!("{} of {}: {}", found.rule, found.subject, found.evidence))
        .collect()
}

/// A rule that needs the link speed for a finding has the speed in its needs.
#[test]
fn no_finding_disappears_with_an_unknown_speed() {
    const RANDOM_HOSTS: u64 = 300;
    let mut failures = Vec::new();
    for fault in every_fault() {
        for (name, host) in (fault.hosts)() {
            let mut facts = host();
            (fault.plant)(&mut facts);
            let lost = lost_without_speeds(facts).into_iter();
            failures.extend(lost.map(|lost| format!("{} on {name}: {lost}", fault.name)));
        }
    }
    for number in 0..RANDOM_HOSTS {
        let lost = lost_without_speeds(random_hosts::host(7, number)).into_iter();
        failures.extend(lost.map(|lost| format!("random host {number}: {lost}")));
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Counters include the time before a change. After the sysctls of a rule are set, the rule must not
/// raise them again.
#[test]
fn sysctls_are_not_raised_again() {
    for fault in stack_faults::FAULTS {
        let (name, host) = (fault.hosts)()[0];
        let mut facts = host();
        (fault.plant)(&mut facts);
        let wanted = |facts: &HostFacts| -> Vec<(String, String)> {
            let of_rule = findings_at_once(facts).into_iter().filter(|finding| finding.rule == fault.rule);
            let changes = of_rule.flat_map(|finding| finding.remedy.changes);
            let sysctl = |change: Change| match (change.knob, change.to) {
                (Knob::Sysctl(path), Value::Text(text)) => Some((path, text)),
                _ => None,
            };
            changes.filter_map(sysctl).collect()
        };
        facts.sysctls.extend(wanted(&facts));
        assert_eq!(wanted(&facts), [], "{} on {name}", fault.name);
    }
}

/// Pairs of rules whose faults conflict: they set the same figure, or the finding of one rule replaces
/// the finding of the other.
const SAME_FIGURE: &[(&str, &str)] = &[
    ("rx-ring-short", "rx-ring-drops"),
    ("retransmissions", "metrics-saved"),
    ("qdisc-no-pacing", "bbr-without-fq"),
    ("congestion-control", "bbr-without-fq"),
    // A NIC that pauses its peer has flow control.
    ("rdma-lossy", "pause-sent"),
    ("rdma-lossy", "pause-received"),
    // Larger frames do not pass a network with a smaller MTU.
    ("mtu-standard", "mtu-above-path"),
    // An application that waits for responses needs an interrupt for each packet.
    ("coalescing-off", "idle-latency"),
    ("coalescing-off", "interrupts-late"),
    ("coalescing-off", "huge-pages"),
];

#[test]
fn faults_are_found_among_others() {
    let mut random = Xoshiro256StarStar::seed_from_u64(6);
    let mut failures = Vec::new();
    for (at, (name, host)) in hosts::HOSTS.iter().enumerate() {
        let able: Vec<&Fault> =
            every_fault().filter(|fault| (fault.hosts)().iter().any(|(other, _)| other == name)).collect();
        for _ in 0..10 {
            // Choose four faults of different rules that do not conflict.
            let mut chosen: Vec<&Fault> = Vec::new();
            while chosen.len() < 4 {
                let fault = able[random.next_u64() as usize % able.len()];
                let structural = |fault: &Fault| STRUCTURAL.contains(&fault.name);
                let same = |one: &Fault, other: &Fault| SAME_FIGURE.contains(&(one.rule, other.rule));
                let clashes = |other: &&Fault| {
                    other.rule == fault.rule
                        || structural(other) && structural(fault)
                        || same(other, fault)
                        || same(fault, other)
                };
                if !chosen.iter().any(clashes) {
                    chosen.push(fault);
                }
            }
            let mut facts = host();
            // Plant faults that change the NIC itself first.
            chosen.sort_by_key(|fault| !STRUCTURAL.contains(&fault.name));
            chosen.iter().for_each(|fault| (fault.plant)(&mut facts));
            let found = findings_at_once(&facts);
            for fault in &chosen {
                if !found.iter().any(|finding| finding.rule == fault.rule) {
                    let names: Vec<&str> = chosen.iter().map(|fault| fault.name).collect();
                    failures.push(format!("host {at}: '{}' is not found among {names:?}", fault.name));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn what_is_serious_is_high() {
    let plant = |name: &str, host: usize| {
        let fault = every_fault().find(|fault| fault.name == name).unwrap();
        let mut facts = hosts::HOSTS[host].1();
        (fault.plant)(&mut facts);
        findings(&facts).into_iter().find(|finding| finding.rule == fault.rule).unwrap()
    };
    for name in [
        "all interrupts on the other socket",
        "a slot of half the lanes",
        "a short ring with drops",
        "a single queue",
    ] {
        assert_eq!(plant(name, 0).severity, Severity::High, "{name}");
    }
    for (name, host) in [
        ("irqbalance runs", 0),
        ("1,500 bytes at 100 Gbit/s", 0),
        ("GRO off", 0),
        ("GRO off", 6),
        ("half of RFS", 3),
    ] {
        assert_ne!(plant(name, host).severity, Severity::High, "{name}");
    }
}

#[test]
fn remedies_name_what_is_there() {
    let plant = |name: &str, host: usize| {
        let fault = every_fault().find(|fault| fault.name == name).unwrap();
        let mut facts = hosts::HOSTS[host].1();
        (fault.plant)(&mut facts);
        let found = findings(&facts).into_iter().find(|finding| finding.rule == fault.rule).unwrap();
        found.remedy.lines()
    };
    assert_eq!(plant("a short ring with drops", 0), ["ethtool -G ens2f0 rx 8192"]);
    assert_eq!(plant("GRO off", 0), ["ethtool -K ens2f0 rx-gro on"]);
    let moved = plant("all interrupts on the other socket", 0);
    assert_eq!(moved.len(), 16, "{moved:?}");
    // Cores 20 to 35 and 39 of node 1 remain, because the data movers run on cores 36 to 38.
    let core = |line: &String| -> u32 {
        let (core, file) = line.strip_prefix("echo ").unwrap().split_once(" > /proc/irq/").unwrap();
        assert!(file.ends_with("/smp_affinity_list"), "{moved:?}");
        core.parse().unwrap()
    };
    let cores: std::collections::BTreeSet<u32> = moved.iter().map(core).collect();
    assert_eq!(cores.len(), 16, "one interrupt for each core: {moved:?}");
    assert!(cores.iter().all(|core| (20..=35).contains(core) || *core == 39), "{moved:?}");
    let windows = plant("the kernel's receive windows, 20 ms away", 2);
    // 10 Gbit/s x 20 ms = 25 MB. Twice that is 50 MB, and the next power of two is 67108864.
    assert_eq!(windows, ["sysctl -w 'net.ipv4.tcp_rmem=4096 131072 67108864'"]);
}
