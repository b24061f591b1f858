//! Tests `evenkeel check` on hosts with planted faults, in which a file or a number is missing,
//! truncated or impossible. Each finding must remain, or `check` must list its rule as not judged or
//! refuse the file.
//!
//! A mutation that results in another possible host cannot be detected. These principles exclude such
//! mutations:
//!
//! - A file is removed only if every Linux host has the file ([`ON_SOME_HOSTS`]).
//! - The rows of a list are not removed if no other file states the length of the list ([`LISTS`]).
//! - A number becomes -1 only in files in which the kernel never writes -1 ([`SIGNED`]).
//! - A file with a single value is not cut within the value.
//! - The names in a table of driver-defined names (counters, features, flags) are not removed
//!   ([`DRIVER_NAMES`]).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/faults.rs"]
mod faults;
#[path = "support/hosts.rs"]
mod hosts;
#[path = "support/parallel.rs"]
mod parallel;
#[path = "support/stack_faults.rs"]
mod stack_faults;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use evenkeel_host::facts::{Tree, complete, read_facts};
use evenkeel_model::host::{HostFacts, Unknown};
use evenkeel_placement::{Judgement, check, find_rule, judge};
use evenkeel_synthetic::write_tree;
use faults::{FAULTS, Fault, STRUCTURAL};
use parallel::on_all_processors;
use serde_json::Value;

/// Files that some hosts or recordings lack, for example because the kernel lacks the module or the feature,
/// or because a process has ended.
const ON_SOME_HOSTS: &[&str] = &[
    "etc/os-release",
    "evenkeel/about.json",
    "evenkeel/owners.json",
    "evenkeel/ports.json",
    "proc/PID/comm",
    "proc/net/raw",
    "proc/net/stat/",
    "proc/net/snmp6",
    "proc/sys/kernel/n",
    "proc/sys/net/bridge/",
    "proc/sys/net/core/bpf_jit_enable",
    "proc/sys/net/core/busy_",
    "proc/sys/net/core/flow_limit_cpu_bitmap",
    "proc/sys/net/ipv",
    "proc/sys/net/netfilter/",
    "proc/sys/vm/zone_reclaim_mode",
    "sys/class/net/IF/bonding",
    "sys/class/net/IF/carrier_changes",
    "sys/class/net/IF/duplex",
    "sys/class/net/IF/gro_flush_timeout",
    "sys/class/net/IF/lower_",
    "sys/class/net/IF/napi_defer_hard_irqs",
    "sys/class/net/IF/device/iommu_group",
    "sys/devices/system/cpu/isolated",
    "sys/devices/system/cpu/nohz_full",
    "sys/kernel/mm/transparent_hugepage",
];

/// Lists whose length no other file states, such as interrupts, sockets, and counters that depend on the
/// kernel's version.
const LISTS: &[&str] = &[
    "proc/PID/status",
    "proc/cpuinfo",
    "proc/interrupts",
    "proc/net/snmp6",
    "proc/net/raw",
    "proc/net/sockstat",
    "proc/net/udp",
    "proc/vmstat",
];

/// Ends of the paths of files in which the kernel may write -1.
const SIGNED: &[&str] = &["numa_node", "physical_package_id", "tcp_adv_win_scale", "max_size", "stat"];

/// Lists that may be empty.
const EMPTY: &[&str] = &["isolated", "nohz_full"];

/// Fields of `sockets.json` that the kernel may omit.
const OPTIONAL_FIELDS: &[&str] =
    &["process", "interface", "remote", "receive_buffer", "send_buffer", "congestion"];

/// Tables in ethtool's answers whose names the driver chooses.
const DRIVER_NAMES: &[&str] = &["statistics", "features", "private_flags", "hash_fields"];

fn judged(directory: &Path) -> Option<(Judgement, HostFacts)> {
    let facts = Tree::recorded(directory).and_then(|tree| read_facts(&tree)).ok()?;
    Some((judge(&facts), facts))
}

/// Returns the rule and the interface of each finding; `host` for a finding without an interface.
fn findings(judgement: &Judgement, facts: &HostFacts) -> BTreeSet<(&'static str, String)> {
    let subject = |subject: &str| {
        facts.interface(subject).map_or_else(|| "host".to_owned(), |found| found.name.clone())
    };
    judgement.findings.iter().map(|finding| (finding.rule, subject(&finding.subject))).collect()
}

/// A host with planted faults that do not hide each other.
struct World {
    name: &'static str,
    healthy: HostFacts,
    facts: HostFacts,
    rules: BTreeSet<&'static str>,
}

/// Returns hosts that together have every fault. Each fault is planted on the smallest host that can
/// have it.
fn worlds() -> Vec<World> {
    let rules_of = |facts: &HostFacts| -> BTreeSet<&'static str> {
        let mut facts = facts.clone();
        complete(&mut facts);
        check(&facts).iter().map(|finding| finding.rule).collect()
    };
    let mut worlds: Vec<World> = Vec::new();
    // Faults that change the NIC itself come first, each on a separate host.
    let is_structural = |fault: &&Fault| STRUCTURAL.contains(&fault.name);
    let mut faults: Vec<&Fault> = FAULTS.iter().chain(stack_faults::FAULTS).collect();
    faults.sort_by_key(|fault| !is_structural(fault));
    for fault in faults {
        let hosts = (fault.hosts)().into_iter().map(|(name, host)| (name, host()));
        let (name, healthy) = hosts.min_by_key(|(_, facts)| facts.processors.len()).unwrap();
        let planted = |facts: &HostFacts| {
            let mut facts = facts.clone();
            (fault.plant)(&mut facts);
            facts
        };
        let shared = worlds.iter_mut().filter(|world| world.name == name && !is_structural(&fault));
        let fits = shared.rev().any(|world| {
            // Two faults of the same rule would hide each other.
            if world.rules.contains(fault.rule) || world.rules.iter().any(|rule| fault.also.contains(rule)) {
                return false;
            }
            let facts = planted(&world.facts);
            let found = rules_of(&facts);
            let names: BTreeSet<&String> = facts.interfaces.iter().map(|interface| &interface.name).collect();
            let fits = names.len() == facts.interfaces.len()
                && found.contains(fault.rule)
                && world.rules.is_subset(&found);
            if fits {
                world.facts = facts;
                world.rules.insert(fault.rule);
            }
            fits
        });
        if !fits {
            let facts = planted(&healthy);
            worlds.push(World { name, facts, healthy, rules: [fault.rule].into() });
        }
    }
    worlds
}

/// Returns the text without digits. Files and JSON keys that differ only in digits are of the same kind.
/// The test mutates only a few of each kind.
fn kind(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

/// Returns the path with `PID` in place of a process id and `IF` in place of an interface name.
fn general(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["proc", number, rest @ ..] if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            [&["proc", "PID"], rest].concat().join("/")
        }
        ["sys", "class", "net", _, rest @ ..] => [&["sys", "class", "net", "IF"], rest].concat().join("/"),
        _ => path.to_owned(),
    }
}

fn starts(path: &str, list: &[&str]) -> bool {
    list.iter().any(|start| path.starts_with(start))
}

/// A description with the changed text; `None` if the file is removed.
type Mutation = (String, Option<String>);

/// Returns the mutations of a file of lines. Of the numbers that differ from those of the healthy host, it
/// changes at most `EVIDENCE`, of the other numbers at most `OTHERS`.
fn mutations_of_lines(path: &str, text: &str, healthy: &str) -> Vec<Mutation> {
    const EVIDENCE: usize = 10;
    const OTHERS: usize = 3;
    let mut found = Vec::new();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    if lines.len() > 1 {
        let half = lines[..lines.len() / 2].concat();
        if !starts(&general(path), LISTS) {
            found.push(("cut at a line end".to_owned(), Some(half.clone())));
            found.push(("without the last line".to_owned(), Some(lines[..lines.len() - 1].concat())));
            found.push(("without the first line".to_owned(), Some(lines[1..].concat())));
        } else if !path.starts_with("proc/vmstat") && !path.contains("snmp6") && !path.contains("sockstat") {
            found.push(("without the first line".to_owned(), Some(lines[1..].concat())));
        }
        let next = lines[lines.len() / 2];
        found.push(("cut within a line".to_owned(), Some(half + &next[..next.len() / 2])));
        found.push(("cut within the last line".to_owned(), Some(text[..text.len() - 2].to_owned())));
        found.push(("cut within the first line".to_owned(), Some(lines[0][..lines[0].len() / 2].to_owned())));
    }
    let words = |text: &str| -> Vec<(usize, String)> {
        let mut words = Vec::new();
        let mut at = 0;
        for piece in text.split_inclusive(char::is_whitespace) {
            let word = piece.trim_end();
            let is_number = |letter: char| letter.is_ascii_hexdigit() || ".,-:".contains(letter);
            if word.chars().all(is_number) && word.starts_with(|first: char| first.is_ascii_hexdigit()) {
                words.push((at, word.to_owned()));
            }
            at += piece.len();
        }
        words
    };
    let (of_text, of_healthy) = (words(text), words(healthy));
    let is_evidence =
        |at: usize| of_healthy.get(at).map(|(_, word)| word) != of_text.get(at).map(|(_, word)| word);
    let evidence: Vec<usize> = (0..of_text.len()).filter(|at| is_evidence(*at)).collect();
    let others: Vec<usize> = (0..of_text.len()).filter(|at| !is_evidence(*at)).collect();
    let some = |list: &[usize], most: usize| -> Vec<usize> {
        list.iter().step_by(list.len().div_ceil(most).max(1)).copied().collect()
    };
    for count in [some(&evidence, EVIDENCE), some(&others, OTHERS)].concat() {
        let (at, word) = &of_text[count];
        for other in ["-1", "x", ""] {
            // This list may be empty.
            if other.is_empty() && EMPTY.iter().any(|name| path.ends_with(name)) {
                continue;
            }
            if other == "-1" && SIGNED.iter().any(|name| path.ends_with(name)) {
                continue;
            }
            let changed = format!("{}{other}{}", &text[..*at], &text[at + word.len()..]);
            found.push((format!("'{other}' for '{word}' at {at}"), Some(changed)));
        }
    }
    found
}

/// Returns the source in the form that rules use, for a file of a tree or for a part of a file with the
/// kernel's answers.
fn source(path: &str, part: &str) -> String {
    let answers = path.strip_prefix("evenkeel/").map(|name| name.trim_end_matches(".json"));
    match answers.map(|name| name.strip_prefix("ethtool/").ok_or(name)) {
        Some(Ok(interface)) => {
            format!("/sys/class/net/{interface}/ethtool/{part}").trim_end_matches('/').to_owned()
        }
        Some(Err("owners")) => "/proc/PID/fd".to_owned(),
        Some(Err(name)) => format!("netlink/{name}"),
        None => match path.split_once('/').and_then(|(_, rest)| rest.split_once('/')) {
            Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                format!("/proc/PID/{rest}")
            }
            _ => format!("/{path}"),
        },
    }
}

/// Adds the mutations of a value and its parts. A number becomes -1 and `"x"`. A field of an object is
/// removed.
fn mutations_of_json(
    whole: &Value,
    pointer: &str,
    seen: &mut BTreeMap<String, usize>,
    found: &mut Vec<Mutation>,
) {
    const OF_A_KIND: usize = 2;
    let value = whole.pointer(pointer).unwrap();
    let count = seen.entry(kind(pointer)).or_insert(0);
    *count += 1;
    if *count > OF_A_KIND {
        return;
    }
    let (parent, key) = pointer.rsplit_once('/').unwrap_or_default();
    let mut change = |what: &str, edit: &dyn Fn(&mut Value)| {
        let mut changed = whole.clone();
        edit(changed.pointer_mut(if what == "removed" { parent } else { pointer }).unwrap());
        found.push((format!("{pointer} {what}"), Some(changed.to_string())));
    };
    if value.is_number() {
        change("-1", &|value| *value = (-1).into());
        change("x", &|value| *value = "x".into());
    }
    let is_of_driver = DRIVER_NAMES.iter().any(|name| parent.ends_with(name));
    if whole.pointer(parent).is_some_and(Value::is_object)
        && !pointer.is_empty()
        && !is_of_driver
        && !OPTIONAL_FIELDS.contains(&key)
        && !value.is_null()
    {
        change("removed", &|parent| {
            parent.as_object_mut().unwrap().remove(&key.replace("~1", "/").replace("~0", "~"));
        });
    }
    let keys: Vec<String> = match value {
        Value::Object(map) => map.keys().map(|key| key.replace('~', "~0").replace('/', "~1")).collect(),
        Value::Array(list) => (0..list.len()).map(|at| at.to_string()).collect(),
        _ => Vec::new(),
    };
    for key in keys {
        mutations_of_json(whole, &format!("{pointer}/{key}"), seen, found);
    }
}

fn mutations(path: &str, text: &str, healthy: &str, is_needed: impl Fn(&str) -> bool) -> Vec<Mutation> {
    let mut found = Vec::new();
    if text == healthy && !is_needed(&source(path, "")) {
        return found;
    }
    if !starts(&general(path), ON_SOME_HOSTS) {
        found.push(("removed".to_owned(), None));
    }
    if path.ends_with(".json") {
        let whole: Value = serde_json::from_str(text).unwrap();
        let healthy: Value = serde_json::from_str(healthy).unwrap_or_default();
        let mut seen = BTreeMap::new();
        match &whole {
            Value::Object(parts) => {
                for part in parts.keys() {
                    if parts.get(part) != healthy.get(part) || is_needed(&source(path, part)) {
                        mutations_of_json(&whole, &format!("/{part}"), &mut seen, &mut found);
                    }
                }
            }
            _ => mutations_of_json(&whole, "", &mut seen, &mut found),
        }
        found.push(("cut".to_owned(), Some(text[..text.len() / 2].to_owned())));
    } else {
        found.extend(mutations_of_lines(path, text, healthy));
    }
    found
}

#[test]
fn no_damage_of_a_file_is_an_all_clear() {
    let failures = on_all_processors(&worlds(), |world| {
        let mut failures: Vec<String> = Vec::new();
        let started = std::time::Instant::now();
        let mut total = 0_usize;
        let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write_tree(&world.facts, directory.path()).unwrap();
        write_tree(&world.healthy, other.path()).unwrap();
        let (whole, facts) = judged(directory.path()).unwrap();
        let before = findings(&whole, &facts);
        let found: BTreeSet<&str> = before.iter().map(|(rule, _)| *rule).collect();
        let lost: Vec<&&str> = world.rules.iter().filter(|rule| !found.contains(**rule)).collect();
        assert!(lost.is_empty(), "{}: {lost:?} {:?}", world.name, whole.not_judged);
        let needs: BTreeSet<&str> =
            world.rules.iter().flat_map(|rule| find_rule(rule).unwrap().needs).copied().collect();
        let is_needed = |source: &str| {
            let source = Unknown::new(source, "");
            needs.iter().any(|need| source.concerns(need))
        };
        let mut kinds: BTreeMap<(String, bool), usize> = BTreeMap::new();
        for file in hosts::files(directory.path()) {
            let path = file.strip_prefix(directory.path()).unwrap().to_str().unwrap().to_owned();
            let text = std::fs::read_to_string(&file).unwrap();
            let healthy = std::fs::read_to_string(other.path().join(&path)).unwrap_or_default();
            let seen = kinds.entry((kind(&path), text == healthy)).or_insert(0);
            *seen += 1;
            if *seen > 1 {
                continue;
            }
            for (what, changed) in mutations(&path, &text, &healthy, is_needed) {
                total += 1;
                match &changed {
                    Some(changed) => std::fs::write(&file, changed).unwrap(),
                    None => std::fs::remove_file(&file).unwrap(),
                }
                let Some((after, facts)) = judged(directory.path()) else { continue };
                let left = findings(&after, &facts);
                let missed: BTreeSet<&str> = after.incomplete().map(|rule| rule.rule).collect();
                for (rule, subject) in before.difference(&left).filter(|(rule, _)| !missed.contains(rule)) {
                    failures.push(format!("{}: {path}, {what}: {rule} of {subject} is gone", world.name));
                }
            }
            std::fs::write(&file, text).unwrap();
        }
        println!("{} {:?}: {total} mutations in {:?}", world.name, world.rules, started.elapsed());
        failures
    })
    .concat();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}
