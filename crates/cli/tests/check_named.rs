//! Tests `evenkeel check IFACE` on recorded hosts: which rules and findings are about this interface, which
//! are about the host, and which facts of another interface they need.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/parallel.rs"]
mod parallel;
#[allow(dead_code, reason = "several test binaries share this file, and each uses a part of it")]
#[path = "support/recorded.rs"]
mod recorded;
mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use evenkeel_host::facts::{Tree, read_facts};
use evenkeel_model::host::{HostFacts, Interface, InterfaceKind, LossCounters};
use evenkeel_placement::{Finding, OF_ONE_INTERFACE, Rule, find_rule, judge, judge_with, rules};
use parallel::on_all_processors;
use serde_json::Value;
use support::run;
use tempfile::TempDir;

fn recorded_hosts() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts");
    let paths = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "host")).collect();
    files.sort();
    files
}

fn read(directory: &Path) -> HostFacts {
    read_facts(&Tree::recorded(directory).unwrap()).unwrap()
}

fn recorded_host(path: &Path) -> (TempDir, HostFacts) {
    let directory = tempfile::tempdir().unwrap();
    recorded::unpack(&std::fs::read_to_string(path).unwrap(), directory.path()).unwrap();
    let facts = read(directory.path());
    (directory, facts)
}

/// Changes of an interface's facts, each as large as a rule may need to change its verdict.
const CHANGES: [fn(&mut Interface); 11] = [
    |interface| interface.speed_bps = None,
    |interface| interface.speed_bps = Some(10_000_000),
    |interface| interface.speed_bps = Some(800_000_000_000),
    |interface| interface.up = !interface.up,
    |interface| interface.statistics.values_mut().for_each(|counter| *counter = counter.saturating_mul(1000)),
    |interface| interface.statistics.values_mut().for_each(|counter| *counter = 0),
    |interface| {
        interface.mtu = if interface.mtu == Some(1500) { Some(9000) } else { Some(1500) };
        interface.features.values_mut().for_each(|feature| feature.on = !feature.on);
    },
    |interface| {
        (interface.channels, interface.rings, interface.coalescing, interface.rss) = (None, None, None, None);
        interface.receive_queues.truncate(1);
        interface.transmit_queues.truncate(1);
    },
    |interface| {
        interface.qdiscs.clear();
        interface.driver_statistics.clear();
        interface.losses = LossCounters::default();
    },
    |interface| {
        interface.node = interface.node.map(|node| u32::from(node == 0));
        interface.pcie = None;
        interface.driver = None;
    },
    |interface| {
        interface.kind = match interface.kind {
            InterfaceKind::Device => InterfaceKind::Virtual,
            _ => InterfaceKind::Device,
        }
    },
];

fn keys(findings: &[Finding]) -> BTreeSet<String> {
    let key = |finding: &Finding| format!("{} {} {}", finding.rule, finding.severity, finding.subject);
    findings.iter().map(key).collect()
}

/// A rule in `OF_ONE_INTERFACE` finds nothing about the host or about two interfaces. Its findings about an
/// interface do not depend on another interface.
#[test]
fn rules_of_one_interface_ignore_other_interfaces() {
    let listed: Vec<&Rule> = OF_ONE_INTERFACE.iter().map(|name| find_rule(name).unwrap()).collect();
    let wrong = on_all_processors(&recorded_hosts(), |path| {
        let facts = recorded_host(path).1;
        let whole = judge_with(&facts, listed.iter().copied()).findings;
        let is_of_several = |finding: &&Finding| facts.interface(&finding.subject).is_none();
        let of_several: Vec<Finding> = whole.iter().filter(is_of_several).cloned().collect();
        let mut wrong: Vec<String> = keys(&of_several).into_iter().collect();
        for name in facts.interfaces.iter().map(|interface| interface.name.clone()).take(4) {
            let about_others = |findings: &[Finding]| {
                let on = |finding: &&Finding| finding.remedy.interface.as_deref() != Some(&name);
                let others = findings.iter().filter(|finding| finding.subject != name).filter(on);
                keys(&others.cloned().collect::<Vec<_>>())
            };
            let before = about_others(&whole);
            for change in CHANGES {
                let mut changed = facts.clone();
                changed.interfaces.iter_mut().filter(|interface| interface.name == name).for_each(change);
                let after = about_others(&judge_with(&changed, listed.iter().copied()).findings);
                let differing = before.symmetric_difference(&after);
                wrong.extend(differing.map(|key| format!("{}: {name}: {key}", path.display())));
            }
        }
        wrong
    });
    let wrong = wrong.concat();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(listed.len() > 20, "{}", listed.len());
}

/// Without a fact of another interface, each finding stays, or its rule is not judged.
#[test]
fn a_lost_fact_of_another_interface_hides_no_finding() {
    let lost = on_all_processors(&recorded_hosts(), |path| {
        let (directory, facts) = recorded_host(path);
        let whole = judge(&facts);
        let nics = facts.interfaces.iter().filter(|interface| interface.kind == InterfaceKind::Device);
        let mut lost = Vec::new();
        for nic in nics.take(3) {
            for file in ["speed", "statistics/rx_packets", "operstate"] {
                let file = directory.path().join(format!("sys/class/net/{}/{file}", nic.name));
                let Ok(text) = std::fs::read(&file) else { continue };
                std::fs::remove_file(&file).unwrap();
                let damaged = read(directory.path());
                std::fs::write(&file, text).unwrap();
                let after = judge(&damaged);
                for other in facts.interfaces.iter().filter(|other| other.name != nic.name) {
                    let (mut whole, mut after) = (whole.clone(), after.clone());
                    whole.limit_to(&facts, &other.name);
                    after.limit_to(&damaged, &other.name);
                    whole
                        .findings
                        .retain(|finding| after.incomplete().all(|missed| missed.rule != finding.rule));
                    whole.findings.retain(|finding| {
                        let is_same = |other: &Finding| {
                            (other.rule, &other.subject) == (finding.rule, &finding.subject)
                        };
                        !after.findings.iter().any(is_same)
                    });
                    let key = |key| format!("check {}, without {}: {key}", other.name, file.display());
                    lost.extend(keys(&whole.findings).into_iter().map(key));
                }
            }
        }
        lost
    });
    let lost = lost.concat();
    assert!(lost.is_empty(), "{} findings are lost: {lost:#?}", lost.len());
}

fn unpacked(name: &str) -> TempDir {
    recorded_host(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/hosts/{name}.host"))).0
}

fn said(directory: &TempDir, arguments: &[&str]) -> (i32, String) {
    let from = directory.path().to_str().unwrap();
    let ended = run(&[&["check", "--from", from], arguments].concat());
    (ended.code, ended.stdout.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn json(directory: &TempDir, arguments: &[&str]) -> Value {
    let from = directory.path().to_str().unwrap();
    let ended = run(&[&["check", "--from", from, "--format", "json"], arguments].concat());
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

/// The fastest NIC decides which buffers the host needs. Without its speed, `check` of another NIC does
/// not count the rules about these buffers as judged.
#[test]
fn a_rule_about_the_host_is_not_judged_without_the_speed_of_another_nic() {
    let host = unpacked("dtn-cxgb4");
    let (code, whole) = said(&host, &["eno1"]);
    assert!(code == 1 && whole.contains("HIGH receive-window host"), "{code}: {whole}");
    std::fs::remove_file(host.path().join("sys/class/net/ens7f4/speed")).unwrap();
    let result = json(&host, &["eno1"]);
    let missed = result["rules"]["not_judged"].as_array().unwrap();
    assert!(missed.iter().any(|missed| missed["rule"] == "receive-window"), "{result}");
    let (_, explained) = said(&host, &["eno1", "--explain", "receive-window"]);
    let words = "receive-window could not be judged on this host: ens7f4 reports no speed";
    assert!(explained.starts_with(words), "{explained}");
}

#[test]
fn an_explained_rule_names_the_other_interfaces_with_findings() {
    let host = unpacked("dtn-cxgb4");
    for (name, words) in [
        (
            "eno1",
            "qdisc-left-over finds nothing about eno1 and the host's settings. It has findings about ens7f4.",
        ),
        (
            "lo",
            "qdisc-left-over, a rule about NICs, does not judge lo: it has no device. It has findings about ens7f4.",
        ),
        ("ens7f4", "qdisc-left-over has 1 finding about ens7f4 and the host's settings."),
    ] {
        let (_, explained) = said(&host, &[name, "--explain", "qdisc-left-over"]);
        assert!(explained.starts_with(words), "{explained}");
    }
}

/// A change of channels can reset the settings of queues, and an unknown value cannot be restored.
#[test]
fn the_undo_of_a_finding_is_complete() {
    let host = unpacked("haproxy-qede-tcpmem");
    let (_, explained) = said(&host, &["--explain", "irq-one-processor"]);
    let result = json(&host, &[]);
    let findings = result["findings"].as_array().unwrap();
    let of_rule = |rule: &str| findings.iter().find(|finding| finding["rule"] == rule).unwrap();
    let lines = of_rule("irq-one-processor")["undo_of_queues"].as_array().unwrap();
    assert!(!lines.is_empty(), "{result}");
    for line in lines {
        assert!(
            explained.contains(&format!("undo, after the channels: {}", line.as_str().unwrap())),
            "{explained}"
        );
    }
    let host = unpacked("eks-node-ena-linklocal");
    let (_, explained) = said(&host, &["--explain", "neighbours-full"]);
    let fixes = explained.matches(" fix: sysctl").count();
    assert_eq!(explained.matches(" undo: ").count() + explained.matches(" undo unknown: ").count(), fixes);
    assert!(explained.contains(" undo unknown: the current value is unknown"), "{explained}");
    let result = json(&host, &[]);
    let findings = result["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["rule"] == "neighbours-full").unwrap();
    let lines = |key: &str| found[key].as_str().unwrap().lines().count();
    assert_eq!((lines("fix"), lines("undo")), (fixes, fixes), "{found}");
    assert!(found["undo"].as_str().unwrap().contains("# undo of "), "{found}");
}

/// The last line of `check` repeats the options that select the host and the interface.
#[test]
fn the_printed_command_explains_the_same_host() {
    let host = unpacked("dtn-cxgb4");
    let from = host.path().to_str().unwrap();
    let (_, shown) = said(&host, &["eno1", "--speed", "eno1=10gbit"]);
    let words = format!("`evenkeel check --explain RULE --from={from} --speed=eno1=10gbit eno1` shows why");
    assert!(shown.contains(&words), "{shown}");
}

/// The rules about NICs do not count as rules that found nothing about an interface without a device.
#[test]
fn rules_that_do_not_apply_are_listed() {
    let host = unpacked("dtn-cxgb4");
    let count = |result: &Value, list: &str| result["rules"][list].as_array().unwrap().len();
    for (arguments, applies) in [(&["eno1"][..], true), (&[], true), (&["lo"], false)] {
        let result = json(&host, arguments);
        let left_out = count(&result, "not_applicable");
        assert_eq!(left_out == 0, applies, "{arguments:?}: {result}");
        let judged = result["rules"]["judged"].as_u64().unwrap() as usize;
        assert_eq!(judged + count(&result, "not_judged") + left_out, rules().count(), "{result}");
        let (_, shown) = said(&host, arguments);
        assert!(shown.contains(&format!(" found by {judged} rules")), "{shown}");
        assert_eq!(
            shown.contains(&format!("{left_out} rules about NICs do not judge lo")),
            !applies,
            "{shown}"
        );
    }
    let plan = run(&["tune", "lo", "--from", host.path().to_str().unwrap(), "--format", "json"]);
    let plan: Value = serde_json::from_str(&plan.stdout).unwrap();
    assert!(count(&plan, "not_applicable") > 50, "{plan}");
}
