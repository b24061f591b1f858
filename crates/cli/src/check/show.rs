//! Shows findings as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use evenkeel_apply::{Header, printed_command};
use evenkeel_forecast::Forecast;
use evenkeel_model::change::{Change, Knob};
use evenkeel_model::host::{HostFacts, Interface, InterfaceKind};
use evenkeel_model::shell::Line;
use evenkeel_model::text::{counted, path_text, printable};
use evenkeel_model::units::BitRate;
use evenkeel_placement::current::undo;
use evenkeel_placement::loss_path::dropped_by_qdiscs;
use evenkeel_placement::tune::DEFAULT_QDISC;
use evenkeel_placement::view::{bytes, count, gigabits};
use evenkeel_placement::{Finding, Judgement, Severity};
use evenkeel_report::page::{Page, Tone};
use serde_json::{Value, json};

use super::Left;
use crate::arguments::{CheckOptions, StatedSpeed};
use crate::managed::Session;
use crate::simulate;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// The first line of the fix, and the number of further lines.
    First,
    /// All lines of the fix, with the commands that undo the changes.
    All,
}

const LABEL: usize = 10;

const UNDO_UNKNOWN: &str = "unknown: the current value is unknown";

/// Returns the lines that restore the settings of queues after a finding's change of channels is undone.
fn undo_of_queues(facts: &HostFacts, finding: &Finding) -> Vec<Line> {
    let interface = finding.remedy.interface.as_deref().unwrap_or_default();
    crate::tune::undo_of_queues(facts, interface, &finding.remedy.changes)
}

/// Shows the summary, the host, its interfaces and the findings on one screen.
pub fn screen(
    page: &mut Page,
    options: &CheckOptions,
    facts: &HostFacts,
    judgement: &Judgement,
    forecast: Option<&Forecast>,
) {
    let findings = &judgement.findings;
    let only = options.interface.as_deref();
    page.answer(&answer(judgement));
    page.gap();
    page.line(&header(facts));
    let shown = |interface: &&Interface| match only {
        Some(name) => interface.name == name,
        None => {
            interface.kind != InterfaceKind::Loopback
                && (interface.up || interface.kind == InterfaceKind::Device)
        }
    };
    let interfaces: Vec<&Interface> = facts.interfaces.iter().filter(shown).collect();
    // With more than `MOST` interfaces, omit the veth interfaces: a host with containers has many of them.
    const MOST: usize = 12;
    let is_veth = |interface: &&&Interface| interface.kind == InterfaceKind::Veth;
    let veths = interfaces.iter().filter(is_veth).count();
    let few = interfaces.len() <= MOST;
    for interface in interfaces.iter().filter(|interface| few || !is_veth(interface)) {
        page.labelled(&format!("  {:<10} ", interface.name), &line_of(interface, judgement));
    }
    if !few && veths > 0 {
        page.line(&format!("  and {}", counted(veths, "veth interface")));
    }
    page.lines(&not_applicable(facts, only, judgement).unwrap_or_default());
    for (at, found) in findings.iter().enumerate() {
        page.gap();
        finding(page, facts, found, Lines::First);
        let verdict = forecast.and_then(|forecast| forecast.verdicts.get(at));
        simulate::show_finding(page, &format!("  {:<LABEL$}", "simulated"), verdict);
    }
    if let Some(forecast) = forecast {
        simulate::show_assumptions(page, forecast);
    }
    if let Some(text) = not_judged(judgement) {
        page.gap();
        page.lines(&text);
    }
    if !findings.is_empty() {
        page.gap();
        let command = explain_command(options);
        page.line(&format!("`{command}` shows why a rule fires, and every fix with its undo."));
    }
}

/// Returns the command that explains a rule on the same host, with the same interface and speeds.
fn explain_command(options: &CheckOptions) -> Line {
    // Use the recording that `--save` wrote, because the live host may have changed since.
    let from = options.from.as_ref().or(options.save.as_ref());
    let mut line = printed_command("evenkeel check --explain RULE", &[]);
    if let Some(directory) = from {
        line = line.with(" --from={}", &[&directory.to_string_lossy()]);
    }
    for StatedSpeed { interface, bits_per_second } in &options.speeds {
        line = line.with(
            " --speed={}",
            &[&format!("{interface}={}", BitRate::from_bits_per_second(*bits_per_second))],
        );
    }
    match &options.interface {
        Some(interface) => line.on(interface, "", &[]),
        None => line,
    }
}

/// Returns a sentence with the number of rules that are not applicable; `None` if there are no such rules, or
/// if [`not_nics`] returns `None`.
pub fn not_applicable(facts: &HostFacts, only: Option<&str>, judgement: &Judgement) -> Option<String> {
    let rules = judgement.not_applicable.len();
    let verb = if rules == 1 { "does" } else { "do" };
    (rules > 0).then(|| not_nics(facts, only, || format!("{} about NICs {verb}", counted(rules, "rule"))))?
}

/// Returns a sentence about rules that do not judge the given interface because it is not a NIC.
/// Without a given interface, the sentence is about a host without NICs. `rules` returns the subject
/// and its verb. Returns `None` if the given interface is a NIC or does not exist. Without a given interface,
/// returns `None` if the host has a NIC.
pub fn not_nics(facts: &HostFacts, only: Option<&str>, rules: impl FnOnce() -> String) -> Option<String> {
    let is_nic = |interface: &Interface| interface.kind == InterfaceKind::Device;
    match only {
        None if facts.interfaces.iter().any(is_nic) => None,
        None => Some(format!("{} not judge this host: none of its interfaces has a device.", rules())),
        Some(name) if facts.interface(name).is_none_or(is_nic) => None,
        Some(name) => Some(format!("{} not judge {name}: it has no device.", rules())),
    }
}

/// Shows the sessions that manage settings, and the interfaces with a session whose settings are
/// unknown.
pub fn sessions(page: &mut Page, sessions: &[Session], unread: &[String]) {
    if !sessions.is_empty() || !unread.is_empty() {
        page.gap();
    }
    for session in sessions {
        page.line(&format!("{}: the rules judge the values from before that run.", session.words()));
    }
    if !unread.is_empty() {
        page.line(&format!(
            "Sessions of evenkeel manage {}, and their journals cannot be read here: the rules judge the present values.",
            unread.join(", ")
        ));
    }
}

/// Returns a summary: the number of findings by severity, the first finding, and the numbers of rules that
/// could not judge or judged only in part.
fn answer(judgement: &Judgement) -> String {
    let Judgement { findings, judged, .. } = judgement;
    let missed = missed(judgement).map(|missed| format!(" {missed}.")).unwrap_or_default();
    let Some(first) = findings.first() else { return format!("Nothing found by {judged} rules.{missed}") };
    let of = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let by_severity: Vec<String> = [Severity::High, Severity::Medium, Severity::Low]
        .into_iter()
        .filter(|severity| of(*severity) > 0)
        .map(|severity| format!("{} {severity}", of(severity)))
        .collect();
    format!(
        "{} found by {judged} rules: {}. First, {}: {}.{missed}",
        counted(findings.len(), "finding"),
        by_severity.join(", "),
        first.subject,
        first.evidence.trim_end_matches('.')
    )
}

/// Returns the numbers of rules that could not judge or judged only in part, in words; `None` if all rules
/// could judge completely.
pub fn missed(judgement: &Judgement) -> Option<String> {
    let parts: Vec<String> =
        [missed_whole(judgement), missed_in_part(judgement)].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn missed_whole(judgement: &Judgement) -> Option<String> {
    let missed = judgement.not_judged.len();
    (missed > 0).then(|| format!("{missed} of {} rules could not be judged", missed + judgement.judged))
}

fn missed_in_part(judgement: &Judgement) -> Option<String> {
    let rules = judgement.partly_judged.len();
    (rules > 0).then(|| format!("{} could be judged only in part", counted(rules, "rule")))
}

/// Returns the rules that could not judge, and the rules that judged in part, grouped by reason; `None` if
/// all rules could judge completely.
pub fn not_judged(judgement: &Judgement) -> Option<String> {
    let mut text = String::new();
    let whole = (missed_whole(judgement), &judgement.not_judged);
    for (title, list) in [whole, (missed_in_part(judgement), &judgement.partly_judged)] {
        let Some(title) = title else { continue };
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for rule in list {
            reasons.entry(&rule.why).or_default().push(rule.rule);
        }
        let _ = writeln!(text, "{title}:");
        for (why, rules) in reasons {
            let _ = writeln!(text, "  {}: {}", printable(why), rules.join(", "));
        }
    }
    (!text.is_empty()).then_some(text)
}

fn header(facts: &HostFacts) -> String {
    let mut parts: Vec<String> = Vec::new();
    parts.extend(facts.kernel.as_ref().map(|kernel| format!("Linux {kernel}")));
    parts.extend(facts.processor_model.clone());
    let processors = known(facts, PROCESSORS).then_some(facts.processors.len());
    parts.push(processors.map_or("? processors".to_owned(), |processors| counted(processors, "processor")));
    match known(facts, NODES).then(|| facts.nodes_with_processors()) {
        Some(nodes) if nodes > 1 => parts.push(counted(nodes, "node")),
        Some(_) => {}
        None => parts.push("? nodes".to_owned()),
    }
    parts.extend(facts.memory_bytes.map(bytes));
    if facts.virtual_machine {
        parts.push("virtual machine".to_owned());
    }
    parts.join(", ")
}

const PROCESSORS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";

/// Returns whether the program could read a directory or file completely.
fn known(facts: &HostFacts, source: &str) -> bool {
    facts.unknown.iter().all(|gap| gap.source != source)
}

/// Describes an interface: its driver or type, speed, node, MTU, queues, ring, qdiscs, traffic and losses.
fn line_of(interface: &Interface, judgement: &Judgement) -> String {
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
    parts.push(interface.mtu.map_or("MTU unknown".to_owned(), |mtu| format!("MTU {mtu}")));
    if interface.kind == InterfaceKind::Device {
        parts.push(match &interface.channels {
            Some(channels) if channels.receive_max() > 0 => {
                format!("{} of {}", channels.receive(), counted(channels.receive_max() as usize, "queue"))
            }
            _ if interface.receive_queues.is_empty() => "? queues".to_owned(),
            _ => counted(interface.receive_queues.len(), "queue"),
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
    // Leave out `rx_dropped`, which repeats these losses and adds frames of unknown protocols.
    let lost = [losses.ring, losses.nic, losses.driver, losses.wire, losses.transmit];
    let lost = lost.into_iter().flatten().fold(0, u64::saturating_add);
    let lost = lost.saturating_add(dropped_by_qdiscs(interface));
    // On an interface without a NIC, `rx_dropped` repeats no counter of a NIC.
    let other = losses.other.filter(|_| interface.kind != InterfaceKind::Device).unwrap_or(0);
    let lost = lost.saturating_add(other);
    let packets = |name: &str| interface.statistics.get(name).map_or("?".to_owned(), |seen| count(*seen));
    let mut traffic = format!("{} packets in, {} out", packets("rx_packets"), packets("tx_packets"));
    if lost > 0 {
        /// The rules that judge these losses.
        const RULES: [&str; 6] =
            ["qdisc-drops", "rx-ring-drops", "tx-drops", "virtual-drops", "wire-errors", "frames-too-long"];
        let is_of = |found: &&Finding| RULES.contains(&found.rule) && found.subject == interface.name;
        let note = match judgement.findings.iter().find(is_of) {
            Some(_) => "",
            None if judgement.incomplete().any(|missed| RULES.contains(&missed.rule)) => " (not judged)",
            None if interface.kind == InterfaceKind::Device => " (too few for a finding)",
            None => " (no finding)",
        };
        let _ = write!(traffic, ", {} lost{note}", count(lost));
    }
    parts.push(traffic);
    parts.join(", ")
}

/// Shows a finding. Prints each shell command on its own line, for copying.
pub fn finding(page: &mut Page, facts: &HostFacts, finding: &Finding, lines: Lines) {
    let finding = &finding.printable();
    let severity = finding.severity.to_string().to_uppercase();
    let tone = match finding.severity {
        Severity::High => Tone::Bad,
        Severity::Medium => Tone::Warning,
        Severity::Low => Tone::Plain,
    };
    let row = |page: &mut Page, label: &str, text: &str| page.labelled(&format!("  {label:<LABEL$}"), text);
    page.toned(&format!("{severity:<7}"), tone, &format!("{}  {}", finding.rule, finding.subject));
    row(page, "evidence", &finding.evidence);
    row(page, "cost", &finding.effect);
    let commands = finding.remedy.lines();
    match (lines, commands.split_first()) {
        (_, None) => {}
        (Lines::First, Some((first, more))) => {
            let label = match more.len() {
                0 => "  fix:".to_owned(),
                more => format!("  fix: (and {})", counted(more, "more line")),
            };
            page.line(&label);
            page.shell(LABEL + 2, first);
        }
        (Lines::All, Some(_)) => {
            for (change, line) in finding.remedy.changes.iter().zip(&commands) {
                page.line("  fix:");
                page.shell(LABEL + 2, line);
                match undo(facts, finding.remedy.interface.as_deref(), change) {
                    Some(undo) => {
                        page.line("  undo:");
                        page.shell(LABEL + 2, &undo);
                    }
                    None => row(page, "undo", UNDO_UNKNOWN),
                }
            }
            for line in undo_of_queues(facts, finding) {
                page.line("  undo, after the channels:");
                page.shell(LABEL + 2, &line.to_string());
            }
        }
    }
    if let Some(advice) = &finding.remedy.advice {
        row(page, if commands.is_empty() { "fix" } else { "also" }, advice);
    }
}

/// Returns the documented JSON of `evenkeel check`.
pub fn json(facts: &HostFacts, judgement: &Judgement, left: &Left, sessions: &[Session]) -> Value {
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
            // Undo the last change first, but undo a root qdisc after the sysctl from which the kernel
            // takes its kind.
            let mut last_first: Vec<&Change> = finding.remedy.changes.iter().rev().collect();
            last_first.sort_by_key(|change| change.knob != Knob::Sysctl(DEFAULT_QDISC.to_owned()));
            let unknown = |change: &Change| {
                let knob = change.knob.on(interface.unwrap_or_default());
                Line::comment(format_args!("undo of {knob} {UNDO_UNKNOWN}")).to_string()
            };
            let undo: Vec<String> = last_first
                .into_iter()
                .map(|change| undo(facts, interface, change).unwrap_or_else(|| unknown(change)))
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
                "undo_of_queues": undo_of_queues(facts, finding),
                "advice": finding.remedy.advice,
                "source": finding.source,
            })
        })
        .collect();
    let unfinished: Vec<Value> = left
        .unfinished
        .iter()
        .map(|Header { interface, command, process, started, .. }| {
            json!({
                "interface": interface.name,
                "command": command,
                "process": process.id,
                "started": started,
                "fix": printed_command("evenkeel revert {}", &[&interface.name]).to_string(),
            })
        })
        .collect();
    let damaged: Vec<Value> = left
        .damaged
        .iter()
        .map(|damaged| {
            let name = damaged.interface.as_deref();
            let readable = damaged.readable.iter().map(|knob| knob.on(name.unwrap_or("?")).to_string());
            let obstacle = damaged.obstacle.iter().map(|obstacle| obstacle.reason.clone());
            let damage = damaged.damage.iter().map(ToString::to_string).chain(obstacle);
            json!({
                "interface": name,
                "journal": path_text(&damaged.path),
                "damage": damage.collect::<Vec<_>>(),
                "readable": readable.collect::<Vec<_>>(),
            })
        })
        .collect();
    let stray: Vec<Value> = left
        .stray
        .iter()
        .map(|stray| {
            json!({
                "interface": stray.interface,
                "root_qdisc": stray.kind,
                "handle": format!("{:x}:", stray.handle.major),
                "fix": stray.fix(),
            })
        })
        .collect();
    let renamed: Vec<Value> = left
        .renamed
        .iter()
        .map(|renamed| {
            json!({
                "interface": renamed.header.interface.name,
                "command": renamed.header.command,
                "journal": path_text(&renamed.path),
                "fix": renamed.fix(),
            })
        })
        .collect();
    json!({
        "host": host(facts),
        "unfinished": unfinished,
        "damaged": damaged,
        "stray": stray,
        "renamed": renamed,
        "journals_unreadable": left.unreadable,
        "managed": sessions.iter().map(Session::json).collect::<Vec<_>>(),
        "rules": rules(judgement),
        "findings": list,
    })
}

/// Returns the number of rules that judged, and the lists of rules that judged in part, could not judge,
/// and are not applicable.
pub fn rules(judgement: &Judgement) -> Value {
    json!({
        "judged": judgement.judged,
        "partly_judged": judgement.partly_judged,
        "not_judged": judgement.not_judged,
        "not_applicable": judgement.not_applicable,
    })
}

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
                "rx_packets": interface.statistics.get("rx_packets"),
                "tx_packets": interface.statistics.get("tx_packets"),
                "losses": interface.losses,
            })
        })
        .collect();
    json!({
        "kernel": facts.kernel,
        "distribution": facts.distribution,
        "processor": facts.processor_model,
        "processors": known(facts, PROCESSORS).then_some(facts.processors.len()),
        "nodes": (known(facts, PROCESSORS) && known(facts, NODES)).then(|| facts.nodes_with_processors()),
        "memory_bytes": facts.memory_bytes,
        "virtual_machine": known(facts, "/proc/cpuinfo").then_some(facts.virtual_machine),
        "interfaces": interfaces,
        "unknown": facts.unknown,
    })
}
