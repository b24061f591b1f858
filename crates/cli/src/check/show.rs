//! What was found, for people and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use evenkeel_model::host::{HostFacts, Interface, InterfaceKind};
use evenkeel_model::text::printable;
use evenkeel_placement::current::undo;
use evenkeel_placement::view::{bytes, count, gigabits};
use evenkeel_placement::{Finding, Judgement, Severity};
use serde_json::{Value, json};

/// How many of a finding's lines are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// The first, and how many more there are.
    First,
    /// Each, with its undo.
    All,
}

/// One screen: the host, its interfaces, what was found.
pub fn screen(facts: &HostFacts, judgement: &Judgement, only: Option<&str>) -> String {
    let findings = &judgement.findings;
    let mut text = header(facts);
    let shown = |interface: &&Interface| match only {
        Some(name) => interface.name == name,
        None => {
            interface.kind != InterfaceKind::Loopback
                && (interface.up || interface.kind == InterfaceKind::Device)
        }
    };
    let interfaces: Vec<&Interface> = facts.interfaces.iter().filter(shown).collect();
    // A host of many containers has many cables to them.
    const MOST: usize = 12;
    let is_cable = |interface: &&&Interface| interface.kind == InterfaceKind::Veth;
    let cables = interfaces.iter().filter(is_cable).count();
    let few = interfaces.len() <= MOST;
    for interface in interfaces.iter().filter(|interface| few || !is_cable(interface)) {
        text.push_str(&line_of(interface));
    }
    if !few && cables > 0 {
        let _ = writeln!(text, "  and {cables} veth interfaces");
    }
    text.push('\n');
    let of = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let rules = judgement.judged;
    if findings.is_empty() {
        let _ = writeln!(text, "Nothing found by {rules} rules.");
    } else {
        let _ = writeln!(
            text,
            "{} found by {rules} rules: {} high, {} medium, {} low.",
            findings.len(),
            of(Severity::High),
            of(Severity::Medium),
            of(Severity::Low)
        );
    }
    text.extend(not_judged(judgement));
    for found in findings {
        text.push('\n');
        text.push_str(&finding(facts, found, Lines::First));
    }
    if !findings.is_empty() {
        text.push_str("\n`evenkeel check --explain RULE` says why a rule speaks, with all of its lines and their undo.\n");
    }
    text
}

/// Rules that could not judge, by reason.
pub fn not_judged(judgement: &Judgement) -> Option<String> {
    let missed = &judgement.not_judged;
    if missed.is_empty() {
        return None;
    }
    let mut text =
        format!("{} of {} rules could not be judged:\n", missed.len(), missed.len() + judgement.judged);
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for rule in missed {
        reasons.entry(&rule.why).or_default().push(rule.rule);
    }
    for (why, rules) in reasons {
        let _ = writeln!(text, "  {}: {}", printable(why), rules.join(", "));
    }
    Some(text)
}

fn header(facts: &HostFacts) -> String {
    let mut parts: Vec<String> = Vec::new();
    parts.extend(facts.kernel.as_ref().map(|kernel| format!("Linux {kernel}")));
    parts.extend(facts.processor_model.clone());
    let processors = facts.processors.len();
    let plural = |number: usize, word: &str| format!("{number} {word}{}", if number == 1 { "" } else { "s" });
    parts.push(plural(processors, "processor"));
    let nodes = facts.nodes_with_processors();
    if nodes > 1 {
        parts.push(format!("{nodes} nodes"));
    }
    parts.extend(facts.memory_bytes.map(bytes));
    if facts.virtual_machine {
        parts.push("virtual machine".to_owned());
    }
    format!("{}\n", printable(&parts.join(", ")))
}

/// An interface in a line or two: what it is, its queues, what it carried and lost.
fn line_of(interface: &Interface) -> String {
    let mut parts: Vec<String> = Vec::new();
    let kind = match interface.kind {
        InterfaceKind::Device => "device",
        InterfaceKind::Loopback => "loopback",
        InterfaceKind::Bond => "bond",
        InterfaceKind::Bridge => "bridge",
        InterfaceKind::Veth => "veth",
        InterfaceKind::Virtual => "virtual",
    };
    parts.push(interface.driver.clone().unwrap_or_else(|| kind.to_owned()));
    if !interface.up {
        parts.push("down".to_owned());
    }
    parts.extend(interface.speed_bps.map(|speed| gigabits(speed as f64)));
    parts.extend(interface.node.map(|node| format!("node {node}")));
    parts.push(format!("MTU {}", interface.mtu));
    let queues = |number: usize| if number == 1 { "1 queue".to_owned() } else { format!("{number} queues") };
    if interface.kind == InterfaceKind::Device {
        parts.push(match &interface.channels {
            Some(channels) if channels.receive_max() > 0 => {
                format!("{} of {} queues", channels.receive(), channels.receive_max())
            }
            _ => queues(interface.receive_queues.len().max(1)),
        });
        parts.extend(
            interface
                .rings
                .filter(|rings| rings.rx_max > 0)
                .map(|rings| format!("ring {}/{}", rings.rx, rings.rx_max)),
        );
    }
    let mut kinds: Vec<&str> = interface.qdiscs.iter().map(|qdisc| qdisc.kind.as_str()).collect();
    kinds.dedup();
    if !kinds.is_empty() && kinds != ["noqueue"] {
        parts.push(kinds.join("/"));
    }
    let losses = &interface.losses;
    // rx_dropped repeats these, and adds frames of unknown protocols.
    let lost = [losses.ring, losses.card, losses.driver, losses.wire, losses.transmit];
    let lost = lost.into_iter().flatten().fold(0, u64::saturating_add);
    let dropped: u64 = interface.qdiscs.iter().map(|qdisc| qdisc.drops).max().unwrap_or(0);
    let mut traffic = format!(
        "{} packets in, {} out",
        count(interface.received_packets()),
        count(interface.sent_packets())
    );
    if lost > 0 || dropped > 0 {
        let _ = write!(traffic, ", {} lost", count(lost.saturating_add(dropped)));
    }
    parts.push(traffic);
    format!("  {:<10} {}\n", printable(&interface.name), printable(&parts.join(", ")))
}

/// One finding.
pub fn finding(facts: &HostFacts, finding: &Finding, lines: Lines) -> String {
    let finding = &finding.printable();
    let severity = finding.severity.to_string().to_uppercase();
    let mut text = format!("{severity:<6} {}  {}\n", finding.rule, finding.subject);
    let _ = writeln!(text, "  {}", finding.evidence);
    let _ = writeln!(text, "  costs: {}", finding.effect);
    let commands = finding.remedy.lines();
    match lines {
        Lines::First => {
            if let Some(first) = commands.first() {
                let more = match commands.len() {
                    1 => String::new(),
                    all => format!("   (and {} more lines)", all - 1),
                };
                let _ = writeln!(text, "  mend:  {first}{more}");
            }
        }
        Lines::All => {
            for (change, line) in finding.remedy.changes.iter().zip(&commands) {
                let _ = writeln!(text, "  mend:  {line}");
                if let Some(undo) = undo(facts, finding.remedy.interface.as_deref(), change) {
                    let _ = writeln!(text, "  undo:  {undo}");
                }
            }
        }
    }
    if let Some(advice) = &finding.remedy.advice {
        let _ = writeln!(text, "  {}  {advice}", if commands.is_empty() { "mend:" } else { "also:" });
    }
    text
}

/// The JSON of the contract.
pub fn json(facts: &HostFacts, judgement: &Judgement) -> Value {
    let list: Vec<Value> = judgement
        .findings
        .iter()
        .map(|finding| {
            let interface = finding.remedy.interface.as_deref();
            let lines = finding.remedy.lines();
            let fix = if lines.is_empty() {
                finding.remedy.advice.clone().unwrap_or_default()
            } else {
                lines.join("\n")
            };
            // What is changed last is put back first.
            let undo: Vec<String> = finding
                .remedy
                .changes
                .iter()
                .rev()
                .filter_map(|change| undo(facts, interface, change))
                .collect();
            json!({
                "rule": finding.rule,
                "severity": finding.severity,
                "basis": finding.basis,
                "subject": finding.subject,
                "evidence": finding.evidence,
                "effect": finding.effect,
                "fix": fix,
                "undo": undo.join("\n"),
                "advice": finding.remedy.advice,
                "source": finding.source,
            })
        })
        .collect();
    let rules = json!({ "judged": judgement.judged, "not_judged": judgement.not_judged });
    json!({ "host": host(facts), "rules": rules, "findings": list })
}

/// What a host is, in short.
pub fn host(facts: &HostFacts) -> Value {
    let interfaces: Vec<Value> = facts
        .interfaces
        .iter()
        .map(|interface| {
            json!({
                "name": interface.name,
                "kind": interface.kind,
                "driver": interface.driver,
                "up": interface.up,
                "node": interface.node,
                "speed_bps": interface.speed_bps,
                "mtu": interface.mtu,
                "channels": interface.channels,
                "rings": interface.rings,
                "qdisc": interface.root_qdisc().map(|qdisc| qdisc.kind.clone()),
                "rx_packets": interface.received_packets(),
                "tx_packets": interface.sent_packets(),
                "losses": interface.losses,
            })
        })
        .collect();
    json!({
        "kernel": facts.kernel,
        "distribution": facts.distribution,
        "processor": facts.processor_model,
        "processors": facts.processors.len(),
        "nodes": facts.nodes_with_processors(),
        "memory_bytes": facts.memory_bytes,
        "virtual_machine": facts.virtual_machine,
        "interfaces": interfaces,
        "unknown": facts.unknown,
    })
}
