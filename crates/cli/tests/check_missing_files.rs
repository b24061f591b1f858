//! Removes and damages, one at a time, the files of a host. Each rule that needs the file is then not judged,
//! or judged in part. No other rule changes its findings.
//!
//! Then removes files from hosts that have findings: files that a rule with a finding needs, files of the
//! whole host, and answers of the kernel. Each finding must stay, or its rule must not be judged.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "several test binaries share this file, and each uses a part of it")]
#[path = "support/faults.rs"]
mod faults;
#[path = "support/hosts.rs"]
mod hosts;
#[path = "support/parallel.rs"]
mod parallel;
#[allow(dead_code, reason = "several test binaries share this file, and each uses a part of it")]
#[path = "support/recorded.rs"]
mod recorded;
#[path = "support/stack_faults.rs"]
mod stack_faults;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use evenkeel_host::facts::{Tree, read_facts};
use evenkeel_model::host::{BondFacts, HostFacts, Interface, InterfaceKind, Unknown};
use evenkeel_placement::{Finding, Judgement, find_rule, judge, rules};
use evenkeel_synthetic::{HostBuilder, qdisc, write_tree};
use hosts::{I40E, MLX5};

/// Returns a healthy host with two nodes, eight CPUs, two NICs with two queues each, and an interface of each
/// other kind: bond, bridge, tunnel and veth.
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

/// Files that a kernel may lack, by the end of their path. The documentation calls them files that only
/// some hosts have. Links to the interfaces below an interface are also such files. Recordings of earlier versions
/// lack the table of raw sockets.
const OPTIONAL: &[&str] =
    &["/effective_affinity_list", "/proc/net/raw", "/vm/zone_reclaim_mode", "/xps_rxqs"];

/// Files that contain a name or words. The test does not replace their text, because most of these files may
/// contain any text.
const NAMES: &[&str] = &[
    "/proc/cmdline",
    "/cpuidle/state0/name",
    "/cpuidle/state1/name",
    "/default_qdisc",
    "/scaling_driver",
    "/scaling_governor",
    "/tcp_congestion_control",
];

/// Returns whether no rule reads a file in the directory of an interface. These files are the speed and the
/// duplex mode of an interface that is no NIC, the maps of loopback, and some counters.
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

/// Returns whether `need` is this file or a directory above it.
fn names(need: &str, file: &str) -> bool {
    let parts = |path: &str| path.split('/').count();
    parts(need) <= parts(file) && Unknown::new(file, "").concerns(need)
}

/// Returns the path in the form that rules use.
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

/// Removes and damages the files of a host in turn. Returns the errors of the judgements:
/// - rules without a finding that were judged without a file that they need
/// - findings that disappeared or appeared although their rule was judged
/// - findings of a rule that was not judged
/// - a wrong number of rules
/// - evidence that quotes a rule which was not judged
fn hidden(facts: &HostFacts, damages: &[Option<&str>]) -> BTreeSet<String> {
    let directory = tempfile::tempdir().unwrap();
    write_tree(facts, directory.path()).unwrap();
    let whole = judged(directory.path()).unwrap();
    let before = subjects(&whole);
    let mut hidden = BTreeSet::new();
    for file in hosts::files_of_each_kind(directory.path()) {
        let path = format!("/{}", file.strip_prefix(directory.path()).unwrap().display());
        // Other tests cover the kernel's answers.
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
            let missed: BTreeSet<&str> = after.incomplete().map(|missed| missed.rule).collect();
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
            for missed in &after.not_judged {
                if now.iter().any(|(rule, _)| *rule == missed.rule) {
                    hidden
                        .insert(format!("{path} {damage:?}: {} has findings and is not judged", missed.rule));
                }
            }
            if after.judged + after.not_judged.len() != rules().count() {
                hidden.insert(format!("{path} {damage:?}: the rules do not add up"));
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

/// A missing row may hide a fault. If the rows around it, or another fact, show that it is missing, the rules
/// that need it are not judged.
#[test]
fn a_lost_row_is_not_taken_for_no_fault() {
    let mut facts = HostBuilder::new(2, 4, 1).nic(&MLX5).build();
    let nic = &mut facts.interfaces[0];
    assert!(nic.qdiscs.len() > 4 && nic.queue_counters.receive.len() > 3, "{nic:#?}");
    let name = nic.name.clone();
    let ethtool = format!("evenkeel/ethtool/{name}.json");
    type Edit<'a> = &'a dyn Fn(&str) -> String;
    let edited_json = |text: &str, edit: &dyn Fn(&mut serde_json::Value)| {
        let mut value: serde_json::Value = serde_json::from_str(text).unwrap();
        edit(&mut value);
        value.to_string()
    };
    let without_counter: Edit = &|text| {
        edited_json(text, &|value| {
            assert!(value["statistics"].as_object_mut().unwrap().remove("rx2_packets").is_some());
        })
    };
    let without_row: Edit = &|text| {
        let kept: Vec<&str> = text.lines().filter(|line| !line.contains("comp1@")).collect();
        assert_eq!(kept.len() + 1, text.lines().count());
        kept.join("\n") + "\n"
    };
    let without_qdisc: Edit = &|text| {
        edited_json(text, &|value| {
            let lines = value.as_array_mut().unwrap();
            let before = lines.len();
            lines.retain(|line| line["parent"] != ":3");
            assert_eq!(lines.len() + 1, before);
        })
    };
    let cases: [(&str, Edit, &str, &str); 3] = [
        (&ethtool, without_counter, "rss-skew", "the packet counter of receive queue 2 is missing"),
        ("proc/interrupts", without_row, "irq-remote-node", "no row of queue 1 of"),
        ("evenkeel/qdiscs.json", without_qdisc, "qdisc-drops", "has no qdisc of :3 of"),
    ];
    for (file, edit, rule, why) in cases {
        let directory = tempfile::tempdir().unwrap();
        write_tree(&facts, directory.path()).unwrap();
        let path = directory.path().join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, edit(&text)).unwrap();
        let judgement = judged(directory.path()).unwrap();
        let missed = judgement.incomplete().find(|missed| missed.rule == rule);
        assert!(missed.is_some_and(|missed| missed.why.contains(why)), "{file}: {missed:?}");
    }
    // Without the link to the device, the driver's name still shows that the interface is a NIC.
    let directory = tempfile::tempdir().unwrap();
    write_tree(&facts, directory.path()).unwrap();
    std::fs::remove_dir_all(directory.path().join(format!("sys/class/net/{name}/device"))).unwrap();
    let path = directory.path().join(&ethtool);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, edited_json(&text, &|value| value["bus"] = serde_json::Value::Null)).unwrap();
    let judgement = judged(directory.path()).unwrap();
    assert!(
        judgement.incomplete().any(|missed| missed.rule == "irq-remote-node"),
        "{:?}",
        judgement.not_judged
    );
    assert!(judgement.not_applicable.is_empty(), "{:?}", judgement.not_applicable);
}

#[test]
fn a_faulty_host_without_a_file_keeps_the_findings_of_other_rules() {
    let hidden = hidden(&faults::host_with_faults(hosts::HOSTS[2].0), &[None]);
    assert!(hidden.is_empty(), "{hidden:#?}");
}

/// A host with findings: a host that an operator recorded, or a host with planted faults.
enum Faulty {
    Recorded(PathBuf),
    Planted(&'static str, Box<HostFacts>),
}

impl Faulty {
    fn name(&self) -> String {
        match self {
            Self::Recorded(path) => path.file_stem().unwrap().to_string_lossy().into_owned(),
            Self::Planted(name, _) => (*name).to_owned(),
        }
    }

    fn write(&self, directory: &Path) {
        match self {
            Self::Recorded(path) => {
                recorded::unpack(&std::fs::read_to_string(path).unwrap(), directory).unwrap();
            }
            Self::Planted(_, facts) => write_tree(facts, directory).unwrap(),
        }
    }
}

/// Returns the hosts with several faults, then the recorded hosts, then the hosts with a single fault.
fn faulty_hosts() -> Vec<Faulty> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts");
    let recorded = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut recorded: Vec<PathBuf> =
        recorded.filter(|path| path.extension().is_some_and(|end| end == "host")).collect();
    recorded.sort();
    let several =
        hosts::HOSTS.iter().map(|(name, _)| Faulty::Planted(name, Box::new(faults::host_with_faults(name))));
    let single = faults::FAULTS.iter().chain(stack_faults::FAULTS).map(|fault| {
        let mut facts = (fault.hosts)()[0].1();
        (fault.plant)(&mut facts);
        Faulty::Planted(fault.name, Box::new(facts))
    });
    several.chain(recorded.into_iter().map(Faulty::Recorded)).chain(single).collect()
}

/// A file to remove, or a file with a NIC's answers and the part to remove from its JSON text.
type Target = (PathBuf, Option<String>);

/// Returns the files of each kind in a tree, and the parts of ethtool's answers.
fn targets(directory: &Path) -> Vec<Target> {
    let mut targets = Vec::new();
    for file in hosts::files_of_each_kind(directory) {
        if file.starts_with(directory.join("evenkeel/ethtool")) {
            let answers = answers(&file);
            targets.extend(answers.keys().map(|part| (file.clone(), Some(part.clone()))));
        }
        targets.push((file, None));
    }
    targets
}

fn answers(file: &Path) -> serde_json::Map<String, serde_json::Value> {
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// Returns the kind of a target: its path and part without numbers and interface names. Rules treat all files
/// of a kind alike.
fn kind((file, part): &Target, directory: &Path) -> String {
    let path = file.strip_prefix(directory).unwrap().display().to_string();
    let path =
        path.replace("sys/class/net/", "sys/class/net/*/").replace("sys/devices/recorded/", "recorded/*/");
    let mut words: Vec<&str> = path.split('/').collect();
    if let Some(at) = words.iter().position(|word| *word == "*") {
        words.remove(at + 1);
    } else if path.starts_with("evenkeel/ethtool") {
        words.pop();
    }
    let path = words.join("/").replace(|letter: char| letter.is_ascii_digit(), "");
    format!("{path} {}", part.as_deref().unwrap_or_default())
}

/// Removes a target, judges the host, and restores the target.
fn judged_without((file, part): &Target, directory: &Path) -> Result<Judgement, String> {
    let text = std::fs::read(file).unwrap();
    match part {
        Some(part) => {
            let mut rest = answers(file);
            rest.remove(part);
            std::fs::write(file, serde_json::to_string_pretty(&rest).unwrap()).unwrap();
        }
        None => std::fs::remove_file(file).unwrap(),
    }
    let judgement = judged(directory);
    std::fs::write(file, text).unwrap();
    judgement
}

/// Returns whether a test removes this target from a host with findings of these rules. This is the
/// case for a file that one of the rules needs, a file of the whole host, or an answer of the kernel.
fn is_related((file, _): &Target, directory: &Path, rules: &[&str]) -> bool {
    let path = format!("/{}", file.strip_prefix(directory).unwrap().display());
    let is_of_host =
        path.starts_with("/evenkeel") || path.starts_with("/proc") && !path.starts_with("/proc/sys/");
    let path = general(&path);
    is_of_host
        || rules
            .iter()
            .filter_map(|rule| find_rule(rule))
            .flat_map(|rule| rule.needs)
            .any(|need| names(need, &path))
}

/// Ends of the kinds of files whose absence is a valid state of a host: the kernel lacks the feature or
/// module, or an earlier version wrote the recording (raw sockets).
const UNDECIDED: [&str; 6] = [
    "/flow_limit_cpu_bitmap ",
    "/bpf_jit_enable ",
    "/bridge-nf-call-iptables ",
    "/nmi_watchdog ",
    "/net/stat/nf_conntrack ",
    "/net/raw ",
];

/// No finding may disappear silently. For each rule, the test removes each kind of related file from a host
/// on which the rule has a finding.
#[test]
fn a_finding_without_a_file_stays_or_its_rule_is_not_judged() {
    let sources = faulty_hosts();
    let found = parallel::on_all_processors(&sources, |source| {
        let directory = tempfile::tempdir().unwrap();
        source.write(directory.path());
        let whole = judged(directory.path()).unwrap_or_else(|error| panic!("{}: {error}", source.name()));
        subjects(&whole).into_iter().map(|(rule, _)| rule).collect::<BTreeSet<_>>()
    });
    let mut tested = BTreeSet::new();
    let chosen = sources.iter().zip(found).map(|(source, mut rules)| {
        rules.retain(|rule| tested.insert(*rule));
        (source, rules.into_iter().collect::<Vec<_>>())
    });
    let chosen: Vec<(&Faulty, Vec<&str>)> = chosen.filter(|(_, rules)| !rules.is_empty()).collect();
    let lost = parallel::on_all_processors(&chosen, |(source, rules)| {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        source.write(directory);
        let before = subjects(&judged(directory).unwrap());
        let mut kinds = BTreeSet::new();
        let mut lost = Vec::new();
        for target in targets(directory) {
            let kind = kind(&target, directory);
            if UNDECIDED.iter().any(|end| kind.ends_with(end))
                || !is_related(&target, directory, rules)
                || !kinds.insert(kind.clone())
            {
                continue;
            }
            // If `check` refuses the tree, no finding disappears silently.
            let Ok(after) = judged_without(&target, directory) else { continue };
            // Compare the numbers of findings: without the name of a process, the subject of a finding
            // differs.
            let count = |all: &BTreeSet<(&str, String)>, rule: &str| {
                all.iter().filter(|(name, _)| *name == rule).count()
            };
            let now = subjects(&after);
            let is_judged = |rule: &str| after.incomplete().all(|missed| missed.rule != rule);
            let all: BTreeSet<&str> = before.iter().map(|(rule, _)| *rule).collect();
            for rule in all.into_iter().filter(|rule| is_judged(rule)) {
                if count(&now, rule) < count(&before, rule) {
                    lost.push(format!("{kind}: {rule} is lost ({})", source.name()));
                }
            }
            // Without the driver's channels or counters, a rule uses other evidence, and may have a new
            // finding.
            let appear = now.iter().filter(|_| !kind.starts_with("evenkeel/ethtool"));
            // `rss-skew` reports the missing evidence itself, and proposes no change.
            let appear = appear.filter(|(rule, _)| *rule != "rss-skew" && is_judged(rule));
            for (rule, _) in appear {
                if count(&now, rule) > count(&before, rule) {
                    lost.push(format!("{kind}: {rule} appears ({})", source.name()));
                }
            }
        }
        lost
    });
    let mut lost: Vec<String> = lost.into_iter().flatten().collect();
    lost.sort();
    assert!(lost.is_empty(), "{} findings are lost: {lost:#?}", lost.len());
}

/// Counters of `/proc/net/snmp` and `/proc/net/netstat` that rules use and that a supported kernel may
/// lack, each with the reason.
const NOT_IN_EVERY_LINUX: &[(&str, &str)] = &[
    ("IcmpMsg.OutType11", "listed once the kernel has sent such a message"),
    ("Snmp6.Icmp6InPktTooBigs", "no loss; a file cut before it also lacks the counters of UDP"),
    ("Snmp6.Icmp6OutTimeExcds", "no loss; a file cut before it also lacks the counters of UDP"),
    ("Snmp6.Udp6MemErrors", "since Linux 5.11"),
    ("TcpExt.PAWSPassive", "up to Linux 4.11"),
    ("TcpExt.TCPRcvQDrop", "since Linux 4.19"),
    ("TcpExt.TCPZeroWindowDrop", "since Linux 4.19"),
    ("TcpExt.TSEcrRejected", "since Linux 6.15"),
    ("Udp.MemErrors", "since Linux 5.11"),
];

/// A counter that rules use is in the list of counters that every Linux has, or may be missing for a reason.
#[test]
fn every_counter_of_a_rule_is_required_or_has_a_reason() {
    const GROUPS: [&str; 8] = ["Ip", "IpExt", "Icmp", "IcmpMsg", "Snmp6", "Tcp", "TcpExt", "Udp"];
    // Rules combine some names with their group at run time.
    let mut groups: BTreeMap<String, String> = BTreeMap::new();
    for (group, file) in [("TcpExt", "netstat"), ("IpExt", "netstat"), ("Snmp6", "snmp6")] {
        let text = std::fs::read_to_string(format!("/proc/net/{file}")).unwrap_or_default();
        let names = match group {
            "Snmp6" => text.lines().filter_map(|line| line.split_ascii_whitespace().next()).collect(),
            _ => text
                .lines()
                .find_map(|line| line.strip_prefix(&format!("{group}: ")))
                .unwrap_or_default()
                .split_ascii_whitespace()
                .collect::<Vec<_>>(),
        };
        groups.extend(names.into_iter().map(|name| (name.to_owned(), format!("{group}.{name}"))));
    }
    let mut directories = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../placement/src")];
    let mut used = BTreeSet::new();
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            let is_name = |word: &&str| {
                let parts = word.split_once('.');
                let is_plain =
                    |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
                parts.is_some_and(|(group, name)| GROUPS.contains(&group) && is_plain(name))
            };
            let of_tests = path.ends_with("tests.rs");
            if of_tests {
                continue;
            }
            used.extend(code.split('"').filter(is_name).map(str::to_owned));
            used.extend(code.split('"').filter_map(|word| groups.get(word)).cloned());
        }
    }
    // The rule about fragments builds these names, of IPv6 from the prefix `Snmp6.Ip6`.
    used.remove("Snmp6.Ip6");
    for name in ["ReasmFails", "ReasmReqds", "ReasmTimeout"] {
        used.extend([format!("Ip.{name}"), format!("Snmp6.Ip6{name}")]);
    }
    assert!(used.len() > 50, "{used:?}");
    let required: BTreeSet<String> = evenkeel_host::facts::EVERY_LINUX
        .iter()
        .flat_map(|(_, group, names)| names.iter().map(move |name| format!("{group}.{name}")))
        .collect();
    for name in &used {
        let has_reason = NOT_IN_EVERY_LINUX.iter().any(|(lacking, _)| lacking == name);
        assert!(required.contains(name) != has_reason, "{name}: required, or a reason in this test");
    }
    for (name, reason) in NOT_IN_EVERY_LINUX {
        assert!(used.contains(*name), "no rule uses {name} ({reason})");
    }
}
