//! Tests that a plan of `evenkeel tune` is a fixpoint. Applied to the facts of a host, it leaves
//! nothing to change, fixes the faults that it claims to fix, and causes no new fault. Its undo
//! restores the facts.
//!
//! `EVENKEEL_RANDOM_HOSTS` is the number of random hosts (default 600), `EVENKEEL_RANDOM_SEED` their
//! seed (default 0).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "several test binaries share this file, and each uses a part of it")]
#[path = "support/faults.rs"]
mod faults;
#[path = "support/hosts.rs"]
mod hosts;
#[path = "support/parallel.rs"]
mod parallel;
#[path = "support/random_hosts.rs"]
mod random_hosts;
#[allow(dead_code, reason = "several test binaries share this file, and each uses a part of it")]
#[path = "support/recorded.rs"]
mod recorded;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};

use evenkeel_host::facts::{Tree, complete, read_facts};
use evenkeel_model::change::{Change, Knob, Value, shell};
use evenkeel_model::host::{HostFacts, InterfaceKind, QdiscFacts, parse_processor_list};
use evenkeel_placement::applied::set;
use evenkeel_placement::current::current;
use evenkeel_placement::plan::interrupt_places;
use evenkeel_placement::tune::{Item, Keep, Step, TuningPlan, concerns, settled, undo};
use evenkeel_placement::{Finding, Judgement, Severity, View, check, judge as judgement_of};
use faults::FAULTS;
use parallel::on_all_processors;
use serde_json::Value as Json;

/// The settings made, in the form of a journal: the interface and the value of each knob.
#[derive(Default)]
struct Journal(BTreeMap<Knob, (String, Value)>);

/// Returns the plan of `evenkeel tune`, and the steps that `--apply` would make in this round. Steps
/// for queues that the channels add belong to the next round.
fn ready(facts: &HostFacts, name: &str, journal: &Journal) -> (TuningPlan, Vec<Step>) {
    let plan = TuningPlan::settle(facts, name, &Keep::default(), &[]);
    let is_ready = |step: &&Step| {
        let knob = &step.change.knob;
        let now = current(facts, Some(name), knob);
        let is_same = |one: &Value, other: &Value| knob.same(one, other);
        if now.as_ref().is_none_or(|now| is_same(now, &step.change.to)) {
            return false;
        }
        let ours = journal.0.get(knob).filter(|(of, value)| {
            (of == name || !knob.is_of_interface()) && now.as_ref().is_some_and(|now| is_same(now, value))
        });
        ours.and_then(|(of, _)| settled(step.rule, of, name, &BTreeSet::new())).is_none()
    };
    let steps = plan.steps.iter().filter(is_ready).cloned().collect();
    (plan, steps)
}

/// Returns facts whose counters show no loss and no uneven load. Each interrupt was served by the first CPU
/// to which it is directed.
fn as_if_new(facts: &HostFacts) -> HostFacts {
    let mut facts = facts.clone();
    let carried = ["Ip.InReceives", "Tcp.InSegs", "Tcp.OutSegs", "Udp.InDatagrams", "Sockstat.TCP.mem"];
    facts.counters.retain(|name, _| carried.contains(&name.as_str()));
    for line in &mut facts.softnet {
        (line.dropped, line.squeezed, line.flow_limited) = (0, 0, 0);
        line.processed = 100_000_000;
    }
    for socket in &mut facts.sockets {
        socket.drops = 0;
        socket.receive_queue = 0;
    }
    for interrupt in &mut facts.interrupts {
        let total = interrupt.total();
        interrupt.served = interrupt.target().first().map(|to| (*to, total)).into_iter().collect();
    }
    for nic in &mut facts.interfaces {
        let stays = |name: &str| ["rx_packets", "tx_packets", "rx_bytes", "tx_bytes"].contains(&name);
        nic.statistics.iter_mut().filter(|(name, _)| !stays(name)).for_each(|(_, value)| *value = 0);
        nic.driver_statistics.clear();
        for qdisc in &mut nic.qdiscs {
            (qdisc.drops, qdisc.requeues) = (0, 0);
        }
    }
    for processor in &mut facts.processors {
        if let Some(time) = &mut processor.time {
            time.softirq = time.total / 50;
        }
    }
    complete(&mut facts);
    facts
}

/// Returns facts without the values that the comparison ignores: names of interrupts, counters, parameters
/// of qdiscs, BQL limits, and the CPU that the kernel chooses from a wide interrupt mask.
fn settings_of(facts: &HostFacts) -> HostFacts {
    let mut facts = facts.clone();
    for interrupt in &mut facts.interrupts {
        interrupt.action.clear();
        interrupt.effective.clear();
        interrupt.served.clear();
    }
    for nic in &mut facts.interfaces {
        for qdisc in &mut nic.qdiscs {
            (qdisc.bytes, qdisc.packets, qdisc.drops, qdisc.requeues, qdisc.backlog_bytes) = (0, 0, 0, 0, 0);
            (qdisc.rate_bps, qdisc.limit_packets) = (None, None);
            (qdisc.flow_limit, qdisc.flow_limit_drops) = (None, 0);
            qdisc.impairments.clear();
        }
        nic.transmit_queues.iter_mut().for_each(|queue| (queue.bql_limit, queue.timeouts) = (None, 0));
    }
    facts
}

/// Gives a qdisc its old handle and parent if the old handle was `0:`. An undo creates such a qdisc by its
/// kind, and the new qdisc has another handle.
fn without_handles(now: &mut HostFacts, was: &HostFacts) {
    let minor = |qdisc: &QdiscFacts| qdisc.parent.rsplit(':').next().unwrap_or_default().to_owned();
    for (nic, before) in now.interfaces.iter_mut().zip(&was.interfaces) {
        for (qdisc, before) in nic.qdiscs.iter_mut().zip(&before.qdiscs) {
            if before.handle == "0:" && before.kind == qdisc.kind && minor(before) == minor(qdisc) {
                (qdisc.handle, qdisc.parent) = (before.handle.clone(), before.parent.clone());
            }
        }
    }
}

/// Adds a line for each value that differs, with the path of the value.
fn differences(path: &str, was: &Json, now: &Json, lines: &mut Vec<String>) {
    let mut inside = |key: &dyn Display, was: Option<&Json>, now: Option<&Json>| {
        differences(&format!("{path}/{key}"), was.unwrap_or(&Json::Null), now.unwrap_or(&Json::Null), lines);
    };
    match (was, now) {
        _ if was == now => {}
        (Json::Object(was), Json::Object(now)) => {
            let keys: BTreeSet<&String> = was.keys().chain(now.keys()).collect();
            keys.into_iter().for_each(|key| inside(key, was.get(key), now.get(key)));
        }
        (Json::Array(was), Json::Array(now)) => {
            (0..was.len().max(now.len())).for_each(|at| inside(&at, was.get(at), now.get(at)));
        }
        _ => lines.push(format!("  {path}: {was} -> {now}")),
    }
}

/// Returns the first few lines, truncated to a readable length.
fn first(lines: &[String]) -> Vec<String> {
    let short = |line: &String| line.chars().take(300).collect();
    lines.iter().take(12).map(short).collect()
}

/// Returns the number of steps and the first commands, each after its rule.
fn lines_of(name: &str, steps: &[Step]) -> String {
    let line = |step: &Step| format!("  {}: {}", step.rule, shell(name, &step.change.knob, &step.change.to));
    let lines: Vec<String> = steps.iter().map(line).collect();
    format!("{} steps:\n{}", lines.len(), first(&lines).join("\n"))
}

fn subjects(findings: &[Finding]) -> BTreeMap<(&str, &str), Severity> {
    let mut found = BTreeMap::new();
    for finding in findings {
        let severity = found.entry((finding.rule, finding.subject.as_str())).or_insert(finding.severity);
        *severity = finding.severity.max(*severity);
    }
    found
}

/// Makes the steps for an interface as `tune --apply` does. Returns the changes that it made.
fn apply(
    facts: &mut HostFacts,
    name: &str,
    journal: &mut Journal,
    mut steps: Vec<Step>,
) -> Result<Vec<Change>, String> {
    const ROUNDS: usize = 3;
    let mut made = Vec::new();
    for round in 0..ROUNDS {
        if round > 0 {
            (_, steps) = ready(facts, name, journal);
        }
        let mut again = false;
        for Step { rule, change } in std::mem::take(&mut steps) {
            if current(facts, Some(name), &change.knob).is_none() {
                return Err(format!("{rule}: no undo of {}", change.knob.on(name)));
            }
            if !set(facts, Some(name), &change.knob, &change.to) {
                return Err(format!("{rule}: the host has no {}", change.knob.on(name)));
            }
            let now = current(facts, Some(name), &change.knob);
            if !now.is_some_and(|now| change.knob.same(&now, &change.to)) {
                return Err(format!("{rule}: {} was not taken", change.knob.on(name)));
            }
            again |= matches!(change.knob, Knob::Channels(_));
            journal.0.insert(change.knob.clone(), (name.to_owned(), change.to.clone()));
            made.push(change);
        }
        if !again {
            break;
        }
    }
    complete(facts);
    Ok(made)
}

fn assert_undone(before: &HostFacts, after: &HostFacts, name: &str, made: &[Change]) -> Result<(), String> {
    let mut facts = after.clone();
    for Change { knob, to } in undo(before, after, name, made) {
        if !set(&mut facts, Some(name), &knob, &to) {
            return Err(format!("undo: the host has no {}", knob.on(name)));
        }
    }
    // Some drivers have fewer interrupts than queues. The facts do not show this limit, so the undo of fewer
    // queues may add interrupts that the host did not have.
    facts.interrupts.retain(|interrupt| before.interrupts.iter().any(|was| was.number == interrupt.number));
    without_handles(&mut facts, before);
    let (now, was) = (settings_of(&facts), settings_of(before));
    if now == was {
        return Ok(());
    }
    let mut lines = Vec::new();
    differences("", &serde_json::to_value(was).unwrap(), &serde_json::to_value(now).unwrap(), &mut lines);
    Err(format!("{name}: undo leaves {} values changed:\n{}", lines.len(), first(&lines).join("\n")))
}

/// Returns whether a rule could judge a subject. The queues of flows are unknown without the NIC's RSS
/// settings, or if the NIC hashes flows without their addresses.
fn could_judge(before: &Judgement, facts: &HostFacts, rule: &str, subject: &str) -> bool {
    let hashes = |fields: &String| fields.contains('s') && fields.contains('d');
    let rss = facts.interface(subject).and_then(|nic| nic.rss.as_ref());
    let queues_are_known = rss.is_some_and(|rss| rss.hash_fields.get("tcp4").is_none_or(hashes));
    before.incomplete().all(|gap| gap.rule != rule) && (rule != "flows-collide" || queues_are_known)
}

/// Checks that the plan makes each change that `check` proposes, or gives a reason.
fn assert_complete(
    facts: &HostFacts,
    findings: &[Finding],
    name: &str,
    plan: &TuningPlan,
) -> Result<(), String> {
    for finding in findings.iter().filter(|finding| concerns(facts, finding, name)) {
        for change in &finding.remedy.changes {
            if !plan.mentions(finding.rule, change) {
                return Err(format!(
                    "{name}: neither made nor left: {}: {}",
                    finding.rule,
                    change.shell(name)
                ));
            }
        }
        let rule = finding.rule;
        let is_named = plan.items.iter().any(|item| item.rule == rule || item.also.contains(&rule));
        let is_left = plan.left.iter().any(|left| left.rule == rule);
        if !finding.remedy.changes.is_empty() && !is_named && !is_left {
            return Err(format!("{name}: {rule} is not named, although the plan makes its changes"));
        }
    }
    for Item { rule, advice, .. } in &plan.items {
        let is_made = plan.steps.iter().any(|step| step.rule == *rule);
        if advice.is_empty() && !is_made && plan.left.iter().all(|left| left.rule != *rule) {
            return Err(format!("{name}: {rule} has neither a change nor a reason"));
        }
    }
    Ok(())
}

/// Checks that no finding's fix leads to another finding whose fix undoes the first fix.
fn assert_no_circle(facts: &HostFacts, findings: &[Finding]) -> Result<(), String> {
    for first in findings.iter().filter(|finding| !finding.remedy.changes.is_empty()) {
        let interface = first.remedy.interface.as_deref();
        let mut with = facts.clone();
        for Change { knob, to } in &first.remedy.changes {
            set(&mut with, interface, knob, to);
        }
        complete(&mut with);
        for second in check(&with) {
            let undoes = |change: &&Change| {
                let is_of_first = |made: &Change| {
                    made.knob == change.knob
                        && (second.remedy.interface.as_deref() == interface || !made.knob.is_of_interface())
                };
                let was = current(facts, interface, &change.knob);
                first.remedy.changes.iter().any(is_of_first)
                    && was.is_some_and(|was| change.knob.same(&was, &change.to))
            };
            if let Some(change) = second.remedy.changes.iter().find(undoes) {
                let back = change.shell(interface.unwrap_or_default());
                return Err(format!(
                    "{} of {} ({}) leads to {} of {} ({}), which wants {back}",
                    first.rule, first.subject, first.evidence, second.rule, second.subject, second.evidence
                ));
            }
        }
    }
    Ok(())
}

/// Checks that the steps of a plan cause no new or more severe finding if they run once, as in the printed
/// script, and that their undo restores the facts. Interrupts of queues that the plan adds have no numbers
/// before the run, so the next run places them.
fn assert_script(facts: &HostFacts, name: &str, plan: &TuningPlan) -> Result<(), String> {
    let mut after = facts.clone();
    for Step { rule, change } in &plan.steps {
        if !set(&mut after, Some(name), &change.knob, &change.to) {
            return Err(format!("script: {rule}: the host has no {}", change.knob.on(name)));
        }
    }
    complete(&mut after);
    let (next, _) = ready(&after, name, &Journal::default());
    for Step { change, .. } in &next.steps {
        let is_known = |number| facts.interrupts.iter().any(|interrupt| interrupt.number == number);
        if matches!(change.knob, Knob::InterruptAffinity(number) if !is_known(number)) {
            set(&mut after, Some(name), &change.knob, &change.to);
        }
    }
    let (judgement, now) = (judgement_of(facts), check(&after));
    let (was, now) = (subjects(&judgement.findings), subjects(&now));
    let is_new = |(found, severity): &(&(&str, &str), &Severity)| {
        was.get(*found).is_none_or(|before| before < *severity)
            && could_judge(&judgement, facts, found.0, found.1)
    };
    if let Some((found, severity)) = now.iter().find(is_new) {
        let lines = lines_of(name, &plan.steps);
        return Err(format!("{name}: after the script {found:?} is {severity}; {lines}"));
    }
    let made: Vec<Change> = plan.steps.iter().map(|step| step.change.clone()).collect();
    assert_undone(facts, &after, name, &made)
}

fn judge(original: &HostFacts) -> Result<(), String> {
    assert_no_circle(original, &check(original))?;
    let mut facts = original.clone();
    let mut journal = Journal::default();
    let is_nic = |kind| matches!(kind, InterfaceKind::Device | InterfaceKind::Bond);
    let names: Vec<String> =
        facts.interfaces.iter().filter(|nic| is_nic(nic.kind)).map(|nic| nic.name.clone()).collect();
    for name in &names {
        let before = facts.clone();
        let judgement = judgement_of(&before);
        let findings = &judgement.findings;
        let (plan, steps) = ready(&before, name, &journal);
        let made = apply(&mut facts, name, &mut journal, steps.clone())?;
        let is_made = |change: &Change| {
            steps.iter().any(|step| {
                step.change.knob == change.knob && step.change.knob.same(&step.change.to, &change.to)
            })
        };
        let claimed: BTreeSet<(&str, &str)> = findings
            .iter()
            .filter(|finding| plan.items.iter().any(|item| item.rule == finding.rule))
            .filter(|finding| finding.remedy.interface.as_ref().is_none_or(|of| of == name))
            .filter(|finding| {
                !finding.remedy.changes.is_empty() && finding.remedy.changes.iter().all(is_made)
            })
            .map(|finding| (finding.rule, finding.subject.as_str()))
            .collect();
        assert_complete(&before, findings, name, &plan)?;
        assert_script(&before, name, &plan)?;
        let (_, again) = ready(&facts, name, &journal);
        if !again.is_empty() {
            let left: Vec<_> = plan.left.iter().map(|left| (left.rule, &left.change.knob)).collect();
            return Err(format!("{name}: a second run has {}\nleft: {left:?}", lines_of(name, &again)));
        }
        let (now, was) = (check(&facts), subjects(findings));
        for (found, severity) in subjects(&now) {
            if could_judge(&judgement, &before, found.0, found.1)
                && was.get(&found).is_none_or(|before| *before < severity)
            {
                return Err(format!(
                    "{name}: {found:?} is {severity}, before {:?}; {}",
                    was.get(&found),
                    lines_of(name, &steps)
                ));
            }
        }
        let new = check(&as_if_new(&facts));
        if let Some(finding) =
            new.iter().find(|finding| claimed.contains(&(finding.rule, finding.subject.as_str())))
        {
            let Finding { rule, subject, evidence, .. } = finding;
            return Err(format!(
                "{name}: not fixed: {rule} of {subject}: {evidence}; {}",
                lines_of(name, &steps)
            ));
        }
        assert_undone(&before, &facts, name, &made)?;
    }
    for name in &names {
        let (_, again) = ready(&facts, name, &journal);
        if !again.is_empty() {
            return Err(format!("{name}: after those of all interfaces it has {}", lines_of(name, &again)));
        }
    }
    move_applications(original, &facts, &names, &mut journal)
}

/// Returns the processes that the advice about applications on a far node moves, with their new CPUs.
fn moves(findings: &[Finding]) -> Vec<(Vec<u32>, Vec<u32>)> {
    let of_finding = |finding: &Finding| {
        let (_, command) = finding.remedy.advice.as_ref()?.split_once('`')?;
        let (command, _) = command.split_once('`')?;
        let (before, behind) = command.split_once("taskset -a -p -c ")?;
        let (cores, who) = behind.split_once(' ')?;
        let listed = before.strip_prefix("for p in ").and_then(|list| list.split(';').next()).unwrap_or(who);
        let processes = listed.split(' ').map(str::parse).collect::<Result<Vec<u32>, _>>().ok()?;
        Some((processes, parse_processor_list(cores)?))
    };
    // The CPU on which a process last ran is only a hint: the process may run on another CPU next time.
    let is_kept = |finding: &&Finding| finding.rule == "app-remote-node" && finding.severity > Severity::Low;
    let is_full =
        |finding: &Finding| {
            finding.remedy.advice.as_ref().is_some_and(|advice| {
                ["free cores", "all cores"].iter().any(|start| advice.starts_with(start))
            })
        };
    let far = findings.iter().filter(is_kept).filter(|finding| !is_full(finding));
    far.map(|finding| of_finding(finding).unwrap_or_else(|| panic!("no taskset: {finding:?}"))).collect()
}

/// Returns the CPUs to which a NIC's interrupts are directed.
fn targets(facts: &HostFacts, name: &str) -> BTreeSet<u32> {
    facts.interrupts_of(name).flat_map(|interrupt| interrupt.target().iter().copied()).collect()
}

/// Moves applications to the NIC's node as the advice says, after the plan was applied. Their new CPUs must
/// not have interrupts that the plan placed. A second run of the plan may then move other interrupts, and
/// must leave no new finding about places.
fn move_applications(
    original: &HostFacts,
    planned: &HostFacts,
    names: &[String],
    journal: &mut Journal,
) -> Result<(), String> {
    let mut facts = as_if_new(planned);
    let before = check(&facts);
    let moves = moves(&before);
    if moves.is_empty() {
        return Ok(());
    }
    for (processes, cores) in &moves {
        for process in facts.processes.iter_mut().filter(|process| processes.contains(&process.number)) {
            process.allowed.clone_from(cores);
            process.processor = cores.first().copied();
        }
    }
    let was = subjects(&before);
    let is_new = |finding: &Finding, rules: &[&str]| {
        let before = was.get(&(finding.rule, finding.subject.as_str()));
        rules.contains(&finding.rule) && before.is_none_or(|before| *before < finding.severity)
    };
    let words = |finding: &Finding| {
        format!("{} of {} after {moves:?}: {}", finding.rule, finding.subject, finding.evidence)
    };
    // If other applications are pinned to each core of a node, an application gets all cores of the
    // node. No core is then left for the interrupts.
    let is_full = |finding: &Finding| {
        let nic = finding.remedy.interface.as_deref().and_then(|name| planned.interface(name));
        let all = nic.map(|nic| View::new(planned).local_cores(nic)).unwrap_or_default();
        finding.rule == "irq-on-application" && moves.iter().any(|(_, cores)| *cores == all)
    };
    let is_placed = |finding: &Finding| {
        let nic = finding.remedy.interface.as_deref().unwrap_or_default();
        let numbers = |facts: &HostFacts| -> Vec<u32> {
            facts.interrupts_of(nic).map(|interrupt| interrupt.number).collect()
        };
        // A node with one core cannot reserve a core for applications.
        let home = planned.interface(nic).and_then(|nic| nic.node);
        let local =
            planned.processors.iter().filter(|processor| home == Some(processor.node) && !processor.isolated);
        let cores: BTreeSet<u32> = local.map(|processor| processor.core).collect();
        // Applications that are pinned to all cores leave no core for the interrupts.
        let is_clear =
            planned.interface(nic).is_some_and(|nic| interrupt_places(&View::new(planned), nic).clear);
        // If queues were added or removed, the driver placed the interrupts, not the plan.
        cores.len() > 1
            && is_clear
            && numbers(original) == numbers(planned)
            && targets(original, nic) != targets(planned, nic)
    };
    let after = check(&facts);
    if let Some(finding) = after
        .iter()
        .find(|finding| is_new(finding, &["irq-on-application"]) && is_placed(finding) && !is_full(finding))
    {
        return Err(words(finding));
    }
    for name in names {
        let (_, steps) = ready(&facts, name, journal);
        apply(&mut facts, name, journal, steps)?;
    }
    let facts = as_if_new(&facts);
    let places = ["irq-on-application", "irq-remote-node", "app-remote-node"];
    match check(&facts).iter().find(|finding| is_new(finding, &places) && !is_full(finding)) {
        Some(finding) => Err(words(finding)),
        None => Ok(()),
    }
}

#[test]
fn plans_for_planted_faults_are_fixpoints() {
    let failures = on_all_processors(FAULTS, |fault| {
        let judged = (fault.hosts)().into_iter().filter_map(|(name, host)| {
            let mut facts = host();
            (fault.plant)(&mut facts);
            complete(&mut facts);
            judge(&facts).err().map(|why| format!("{} on {name}: {why}", fault.name))
        });
        judged.collect::<Vec<_>>()
    })
    .concat();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn plans_for_recorded_hosts_are_fixpoints() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "host"));
    let judged = on_all_processors(&paths, |path| {
        let tree = tempfile::tempdir().unwrap();
        recorded::unpack(&std::fs::read_to_string(path).unwrap(), tree.path()).unwrap();
        let facts = read_facts(&Tree::recorded(tree.path()).unwrap()).unwrap();
        judge(&facts).err().map(|why| format!("{}: {why}", path.file_stem().unwrap().display()))
    });
    let failures: Vec<String> = judged.into_iter().flatten().collect();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n\n"));
}

/// Each of these hosts has RPS masks over two packages, and only one CPU of the masks is left. After the
/// plan, no queue is steered to a single CPU.
#[test]
fn plans_leave_no_steering_to_one_processor() {
    for (seed, number) in [(0, 6582), (0, 9410), (1, 5645)] {
        judge(&random_hosts::host(seed, number)).unwrap();
    }
}

/// Judges random hosts. Their number is `EVENKEEL_RANDOM_HOSTS` divided by `one_in`.
fn judge_random(one_in: u64, host: fn(u64, u64) -> HostFacts) {
    const HOSTS: u64 = 600;
    let number_in = |name| std::env::var(name).ok().and_then(|text: String| text.parse().ok());
    let hosts: u64 = number_in("EVENKEEL_RANDOM_HOSTS").unwrap_or(HOSTS) / one_in;
    let seed: u64 = number_in("EVENKEEL_RANDOM_SEED").unwrap_or(0);
    let judged = on_all_processors(&(0..hosts).collect::<Vec<u64>>(), |number| {
        let why = judge(&host(seed, *number)).err()?;
        Some(format!("host {number} of seed {seed}: {why}"))
    });
    let failures: Vec<String> = judged.into_iter().flatten().collect();
    let shown: Vec<&str> = failures.iter().take(12).map(String::as_str).collect();
    println!("{} of {hosts} failed", failures.len());
    assert!(failures.is_empty(), "{} of {hosts} failed:\n{}", failures.len(), shown.join("\n\n"));
}

#[test]
fn plans_for_random_hosts_are_fixpoints() {
    judge_random(1, random_hosts::host);
}

#[test]
fn plans_for_random_hosts_of_few_queues_are_fixpoints() {
    judge_random(3, random_hosts::host_of_few_queues);
}
