//! Removes and damages, one at a time, every file of a host that a rule needs. Each rule that needs the file is then not
//! judged, and no other rule changes its findings.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// Several test binaries share this file, and each uses a part of it.
#[allow(dead_code)]
#[path = "support/faults.rs"]
mod faults;
#[path = "support/hosts.rs"]
mod hosts;

use std::collections::BTreeSet;
use std::path::Path;

use evenkeel_host::facts::{Tree, read_facts};
use evenkeel_model::host::{BondFacts, HostFacts, Interface, InterfaceKind, Unknown};
use evenkeel_placement::{Finding, Judgement, judge, rules};
use evenkeel_synthetic::{HostBuilder, qdisc, write_tree};
use hosts::{I40E, MLX5};

/// Returns a healthy host of each kind of interface, with two nodes, eight processors and two NICs of four queues.
fn healthy() -> HostFacts {
    let mut facts = HostBuilder::new(2, 2, 2)
        .power("intel_pstate", "performance")
        .nic(&evenkeel_synthetic::NicOptions { queues: (2, 2), ..MLX5 })
        .nic(&evenkeel_synthetic::NicOptions { queues: (2, 2), ..I40E })
        .build();
    facts.uptime_s = Some(100_000_000);
    let of_nic = |kind, name: &str, mtu| Interface {
        name: name.to_owned(),
        kind,
        up: true,
        mtu: Some(mtu),
        statistics: facts.interfaces[0].statistics.clone(),
        ..hosts::veth(name)
    };
    let bond = Interface {
        bond: Some(BondFacts { mode: "802.3ad".to_owned(), hash_policy: "layer3+4".to_owned() }),
        lower: vec!["ens2f0".to_owned()],
        driver: Some("bonding".to_owned()),
        ..of_nic(InterfaceKind::Bond, "bond0", 9000)
    };
    let bridge = Interface {
        driver: Some("bridge".to_owned()),
        lower: vec!["eno1".to_owned()],
        ..of_nic(InterfaceKind::Bridge, "br0", 1500)
    };
    let tunnel =
        Interface { driver: Some("vxlan".to_owned()), ..of_nic(InterfaceKind::Virtual, "vxlan0", 1450) };
    let veth = of_nic(InterfaceKind::Veth, "veth0", 1500);
    facts.interfaces.extend([bond, bridge, tunnel, veth]);
    for name in ["bond0", "br0", "vxlan0", "veth0"] {
        let upper = facts.interfaces.iter_mut().find(|interface| interface.name == name).unwrap();
        upper.qdiscs = vec![qdisc("noqueue", "0:", "root", 0)];
    }
    facts.interfaces.sort_by(|one, other| one.name.cmp(&other.name));
    facts
}

fn judged(directory: &Path) -> Result<Judgement, String> {
    let facts = Tree::recorded(directory).and_then(|tree| read_facts(&tree));
    facts.map(|facts| judge(&facts)).map_err(|error| error.to_string())
}

/// Files that a kernel may lack, or a process that ends, by the end of their path: the documentation calls them files that
/// only some hosts have. So are links to the interfaces below one.
const OPTIONAL: &[&str] =
    &["/comm", "/effective_affinity_list", "/net/stat/arp_cache", "/vm/zone_reclaim_mode", "/xps_rxqs"];

/// Files with a name or words, for which any text is a value.
const NAMES: &[&str] = &[
    "/proc/cmdline",
    "/cpuidle/state0/name",
    "/cpuidle/state1/name",
    "/default_qdisc",
    "/scaling_driver",
    "/scaling_governor",
    "/tcp_congestion_control",
];

/// Files in the directory of an interface that no rule reads: the speed of an interface that is no NIC, the maps of
/// loopback, and counters.
fn is_unused(facts: &HostFacts, path: &str) -> bool {
    let Some((name, file)) = path.strip_prefix("/sys/class/net/").and_then(|rest| rest.split_once('/'))
    else {
        return false;
    };
    let kind = facts.interface(name).map(|interface| interface.kind);
    let used = ["rx_packets", "tx_packets", "rx_dropped", "tx_dropped"];
    match file.rsplit_once('/') {
        None => matches!(file, "duplex" | "speed") && kind != Some(InterfaceKind::Device),
        Some(("statistics", counter)) if kind == Some(InterfaceKind::Device) => counter == "rx_errors",
        Some(("statistics", counter)) => !used.contains(&counter),
        Some(_) => kind == Some(InterfaceKind::Loopback),
    }
}

/// Returns whether a rule's need is this file, or a directory above it.
fn names(need: &str, file: &str) -> bool {
    let parts = |path: &str| path.split('/').count();
    parts(need) <= parts(file) && Unknown::new(file, "").concerns(need)
}

/// The path as rules name it.
fn general(path: &str) -> String {
    match path.strip_prefix("/proc/").and_then(|rest| rest.split_once('/')) {
        Some((process, rest)) if process.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("/proc/PID/{rest}")
        }
        _ => path.to_owned(),
    }
}

fn subjects(judgement: &Judgement) -> BTreeSet<(&'static str, String)> {
    judgement.findings.iter().map(|found| (found.rule, found.subject.clone())).collect()
}

/// Removes and damages each file of a host in turn. Returns what each damage hides: rules that are judged without a file
/// that they need, findings that are gone or new although their rule is judged, and findings that quote a rule that is
/// not judged.
fn hidden(facts: &HostFacts, damages: &[Option<&str>]) -> BTreeSet<String> {
    let directory = tempfile::tempdir().unwrap();
    write_tree(facts, directory.path()).unwrap();
    let whole = judged(directory.path()).unwrap();
    let before = subjects(&whole);
    let mut hidden = BTreeSet::new();
    for file in hosts::files_of_each_kind(directory.path()) {
        let path = format!("/{}", file.strip_prefix(directory.path()).unwrap().display());
        // The kernel's answers have tests of their own.
        if path.starts_with("/evenkeel") || is_unused(facts, &path) {
            continue;
        }
        let ends = |list: &[&str]| list.iter().any(|end| path.ends_with(end));
        let text = std::fs::read(&file).unwrap();
        for damage in damages {
            let is_link_below = path.contains("/lower_");
            if if damage.is_none() { ends(OPTIONAL) || is_link_below } else { ends(NAMES) } {
                continue;
            }
            match damage {
                None => std::fs::remove_file(&file).unwrap(),
                Some(text) => std::fs::write(&file, text).unwrap(),
            }
            let Ok(after) = judged(directory.path()) else { continue };
            let missed: BTreeSet<&str> = after.not_judged.iter().map(|missed| missed.rule).collect();
            let now = subjects(&after);
            for rule in rules().filter(|rule| rule.needs.iter().any(|need| names(need, &general(&path)))) {
                let has_finding = now.iter().any(|(name, _)| *name == rule.name);
                if !missed.contains(rule.name) && !has_finding {
                    hidden.insert(format!("{path} {damage:?}: {} is judged", rule.name));
                }
            }
            for (rule, subject) in
                before.symmetric_difference(&now).filter(|(rule, _)| !missed.contains(rule))
            {
                hidden.insert(format!("{path} {damage:?}: {rule} of {subject} differs"));
            }
            let quotes = |finding: &Finding, rule: &str| finding.evidence.contains(&format!("; {rule}: "));
            for finding in &after.findings {
                let quoted = missed.iter().filter(|rule| quotes(finding, rule));
                let of_subject = |rule: &&&str| !now.contains(&(**rule, finding.subject.clone()));
                for rule in quoted.filter(of_subject) {
                    hidden.insert(format!("{path} {damage:?}: {} quotes {rule}", finding.rule));
                }
            }
        }
        std::fs::write(&file, text).unwrap();
    }
    hidden
}

#[test]
fn a_healthy_host_without_a_file_is_not_judged_by_its_rules() {
    let hidden = hidden(&healthy(), &[None, Some("xyz\n")]);
    assert!(hidden.is_empty(), "{hidden:#?}");
}

#[test]
fn a_faulty_host_without_a_file_keeps_the_findings_of_other_rules() {
    let hidden = hidden(&faults::host_with_faults(hosts::HOSTS[2].0), &[None]);
    assert!(hidden.is_empty(), "{hidden:#?}");
}
