//! Formats the output of `evenkeel tune`. In a plan, everything except commands is a comment, so that a shell
//! can run the plan.

use std::fmt::{Display, Write};

use evenkeel_apply::{Etc, printed_command};
use evenkeel_forecast::PlanForecast;
use evenkeel_model::change::{Change, Knob, Value, shell, shell_lines};
use evenkeel_model::host::HostFacts;
use evenkeel_model::shell::Line;
use evenkeel_model::text::{path_text, printable};
use evenkeel_placement::current::restoring;
use evenkeel_placement::tune::persist::{File, Files, Place, paths};
use evenkeel_placement::tune::verify::{Effect, Verdict, Watched};
use evenkeel_placement::tune::{Item, of_queues};
use evenkeel_report::page::FILE_LINE;
use serde_json::{Value as Json, json};

use super::apply::Outcome;
use super::{Prepared, Ready};
use crate::arguments::TuneOptions;
use crate::check::show::{missed, not_applicable, not_judged, rules};
use crate::simulate::plan_lines;

fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn comment(text: &mut String, indent: &str, lines: &str) {
    for line in lines.lines() {
        let _ = writeln!(text, "{}", Line::comment(format_args!("{indent}{line}")));
    }
}

/// Text shown instead of the undo of settings of queues that the plan adds.
const NEW_QUEUES: &str = "new queues need no undo: reducing the channels removes these queues";

fn undo(facts: &HostFacts, interface: &str, ready: &Ready) -> String {
    match &ready.from {
        Some(from) => shell(interface, &ready.change.knob, &restoring(facts, from)).to_string(),
        None => Line::comment(NEW_QUEUES).to_string(),
    }
}

/// Returns the plan as shell commands with their undo. The first line is the summary.
pub fn plan(
    options: &TuneOptions,
    prepared: &Prepared,
    files: &Files,
    forecast: Option<&PlanForecast>,
) -> String {
    let interface = options.interface.as_str();
    let mut text = String::new();
    let mut shown: Vec<&str> = Vec::new();
    for ready in &prepared.ready {
        if !shown.contains(&ready.rule) {
            shown.push(ready.rule);
        }
    }
    let also =
        prepared.plan.items.iter().filter(|item| shown.contains(&item.rule)).map(|item| item.also.len());
    let findings = shown.len() + also.sum::<usize>();
    let answer = match prepared.ready.len() {
        0 => "nothing to change".to_owned(),
        count => {
            format!("{} for {}; nothing is changed yet", plural(count, "change"), plural(findings, "finding"))
        }
    };
    let missed = missed(&prepared.judgement).map(|missed| format!("; {missed}")).unwrap_or_default();
    comment(&mut text, "", &format!("{}: {answer}{missed}", printable(interface)));
    if let Some(process) = prepared.stops_balancer() {
        text.push('\n');
        comment(
            &mut text,
            "",
            &format!("irqbalance (process {process}) would move the interrupts again within ten seconds"),
        );
        let _ = writeln!(text, "systemctl stop irqbalance");
        comment(&mut text, "undo: ", "systemctl start irqbalance");
        comment(&mut text, "", "to keep it stopped after a reboot: systemctl disable irqbalance");
    }
    // Show items in execution order. Show an item whose steps are not adjacent at its first step.
    for rule in &shown {
        if let Some(item) = prepared.plan.items.iter().find(|item| item.rule == *rule) {
            text.push('\n');
            describe(&mut text, item);
        }
        let members: Vec<&Ready> = prepared.ready.iter().filter(|ready| ready.rule == *rule).collect();
        changes(&mut text, &prepared.facts, interface, &members);
        for line in undo_of_queues(&prepared.facts, interface, members.iter().map(|ready| &ready.change)) {
            comment(&mut text, "undo, after the channels: ", &line.to_string());
        }
    }
    by_hand(&mut text, prepared);
    left(&mut text, interface, prepared);
    if let Some(reasons) = not_judged(&prepared.judgement) {
        text.push('\n');
        comment(&mut text, "", &reasons);
    }
    if let Some(sentence) = not_applicable(&prepared.facts, Some(interface), &prepared.judgement) {
        text.push('\n');
        comment(&mut text, "", &sentence);
    }
    written(&mut text, interface, files, "would be written with --apply");
    if let Some(forecast) = forecast {
        text.push('\n');
        plan_lines(forecast).iter().for_each(|line| comment(&mut text, "", line));
    }
    if let Some(first) = shown.first() {
        let command = |options: &'static str, words: &[&dyn Display]| {
            printed_command("evenkeel tune", &[]).on(&interface, options, words)
        };
        // Tell the user to repeat these options: without them, the plan or its files would differ.
        let given = !options.speeds.is_empty() || options.keep.is_some() || !options.persist.is_empty();
        let same = if given { " with the same options" } else { "" };
        text.push('\n');
        comment(
            &mut text,
            "",
            &format!(
                "apply all: {}{same}\napply only {first}: {}{same}\nundo all: {}",
                command(" --apply", &[]),
                command(" --apply {}", &[first]),
                printed_command("evenkeel revert {}", &[&interface])
            ),
        );
    }
    text
}

fn changes(text: &mut String, facts: &HostFacts, interface: &str, members: &[&Ready]) {
    let settings: Vec<(&Knob, &Value)> =
        members.iter().map(|ready| (&ready.change.knob, &ready.change.to)).collect();
    for (line, made) in shell_lines(interface, &settings) {
        let _ = writeln!(text, "{line}");
        let before: Vec<(&Knob, Value)> = made
            .iter()
            .filter_map(|at| members.get(*at))
            .filter_map(|ready| Some((&ready.change.knob, restoring(facts, ready.from.as_ref()?))))
            .collect();
        let before: Vec<(&Knob, &Value)> = before.iter().map(|(knob, value)| (*knob, value)).collect();
        for (undo, _) in shell_lines(interface, &before) {
            comment(text, "undo: ", &undo.to_string());
        }
    }
    if members.iter().any(|ready| ready.from.is_none()) {
        comment(text, "", NEW_QUEUES);
    }
}

/// Returns the commands that restore the settings of queues. Run them after the undo of a change of
/// channels, because the change can reset these settings.
pub fn undo_of_queues<'c>(
    facts: &HostFacts,
    interface: &str,
    changes: impl IntoIterator<Item = &'c Change>,
) -> Vec<Line> {
    let is_channels = |change: &&Change| matches!(change.knob, Knob::Channels(_));
    let channels: Vec<Change> = changes.into_iter().filter(is_channels).cloned().collect();
    let lost = of_queues(facts, interface, &channels);
    let settings: Vec<(&Knob, &Value)> = lost.iter().map(|change| (&change.knob, &change.to)).collect();
    shell_lines(interface, &settings).into_iter().map(|(line, _)| line).collect()
}

fn describe(text: &mut String, item: &Item) {
    comment(text, "", &format!("{} ({}): {}", item.rule, item.severity, item.effect));
    for evidence in &item.evidence {
        comment(text, "  ", &printable(evidence));
    }
    if !item.also.is_empty() {
        comment(text, "  ", &format!("the changes are also the fix for {}", item.also.join(", ")));
    }
}

fn by_hand(text: &mut String, prepared: &Prepared) {
    let items: Vec<&Item> = prepared.plan.items.iter().filter(|item| !item.advice.is_empty()).collect();
    if items.is_empty() {
        return;
    }
    text.push('\n');
    comment(text, "", "by hand:");
    for item in items {
        for advice in &item.advice {
            comment(text, "  ", &printable(&format!("{} ({}): {advice}", item.rule, item.severity)));
        }
    }
}

fn left(text: &mut String, interface: &str, prepared: &Prepared) {
    if prepared.plan.left.is_empty() && prepared.unable.is_empty() {
        return;
    }
    text.push('\n');
    comment(text, "", "left alone:");
    for left in &prepared.plan.left {
        comment(text, "  ", &format!("{}: {}; {}", left.rule, left.change.shell(interface), left.why));
    }
    for (rule, change, why) in &prepared.unable {
        comment(text, "  ", &format!("{rule}: {}; {why}", change.shell(interface)));
    }
}

fn written(text: &mut String, interface: &str, files: &Files, words: &str) {
    let etc = Etc::from_environment();
    for file in &files.files {
        text.push('\n');
        comment(text, "", &format!("{} {words}:", path_text(&etc.path(&file.path))));
        comment(text, &format!("  {FILE_LINE}"), &Etc::marked(&file.text));
    }
    for (path, why) in stale(interface, files) {
        text.push('\n');
        comment(text, "", &format!("{path} would be removed, because {why}"));
    }
    if !files.not_kept.is_empty() {
        text.push('\n');
        comment(text, "", "lost at the next reboot:");
        for line in &files.not_kept {
            comment(text, "  ", line);
        }
    }
}

pub fn plan_json(interface: &str, prepared: &Prepared, files: &Files) -> Json {
    let stop = prepared.stops_balancer().map(|process| {
        json!({ "process": process, "fix": "systemctl stop irqbalance", "undo": "systemctl start irqbalance" })
    });
    json!({
        "interface": interface,
        "changes": prepared.ready.len(),
        "stop": stop,
        "items": items_json(interface, prepared),
        "left": left_json(interface, prepared),
        "rules": rules(&prepared.judgement),
        "files": files_json(files),
        "removed_files": stale_json(interface, files),
        "not_kept": files.not_kept,
    })
}

/// Returns the files that are removed, each with the reason.
fn stale(interface: &str, files: &Files) -> Vec<(String, &'static str)> {
    let etc = Etc::from_environment();
    let own = paths(Place { interface, namespace: Etc::namespace() });
    let why = |path: &String| match own.contains(path) {
        true => "none of its settings is in force",
        false => "the interface has another name now",
    };
    files.stale.iter().map(|path| (path_text(&etc.path(path)).to_string(), why(path))).collect()
}

fn stale_json(interface: &str, files: &Files) -> Vec<String> {
    stale(interface, files).into_iter().map(|(path, _)| path).collect()
}

fn files_json(files: &Files) -> Vec<Json> {
    let etc = Etc::from_environment();
    let file =
        |file: &File| json!({ "path": path_text(&etc.path(&file.path)), "text": Etc::marked(&file.text) });
    files.files.iter().map(file).collect()
}

fn items_json(interface: &str, prepared: &Prepared) -> Vec<Json> {
    let of_rule = |rule: &'static str| prepared.ready.iter().filter(move |ready| ready.rule == rule);
    let changes = |rule| -> Vec<Json> {
        of_rule(rule)
            .map(|ready| json!({ "fix": ready.change.shell(interface), "undo": undo(&prepared.facts, interface, ready) }))
            .collect()
    };
    let item = |item: &Item| {
        json!({
            "rule": item.rule,
            "also": item.also,
            "severity": item.severity,
            "evidence": item.evidence,
            "effect": item.effect,
            "source": item.source,
            "changes": changes(item.rule),
            "undo_of_queues": undo_of_queues(&prepared.facts, interface, of_rule(item.rule).map(|ready| &ready.change)),
            "advice": item.advice,
        })
    };
    prepared.plan.items.iter().map(item).collect()
}

fn left_json(interface: &str, prepared: &Prepared) -> Vec<Json> {
    let planned = prepared.plan.left.iter().map(|left| (left.rule, &left.change, &left.why));
    let unable = prepared.unable.iter().map(|(rule, change, why)| (*rule, change, why));
    planned
        .chain(unable)
        .map(|(rule, change, why)| json!({ "rule": rule, "fix": change.shell(interface), "why": why }))
        .collect()
}

/// Joins a setting and a reason. Leaves out the setting if the reason begins with it.
fn with_reason(what: &str, why: &str) -> String {
    if why.starts_with(what) { why.to_owned() } else { format!("{what}: {why}") }
}

pub fn outcome(interface: &str, prepared: &Prepared, outcome: &Outcome, files: &Files) -> String {
    let mut text = String::new();
    if outcome.done.is_empty() {
        let _ = writeln!(text, "{interface}: nothing was changed");
    } else {
        let _ = writeln!(text, "{interface}: {} changed", plural(outcome.done.len(), "setting"));
        for done in &outcome.done {
            let knob = done.knob.on(interface);
            let _ = writeln!(text, "  {knob}: {} -> {}  ({})", done.from, done.to, done.rule);
        }
    }
    for (rule, change, why) in &outcome.refused {
        let what = change.knob.on(interface).to_string();
        let _ = writeln!(text, "  not changed: {}  ({rule})", with_reason(&what, why));
    }
    for left in &prepared.plan.left {
        let what = left.change.knob.on(interface).to_string();
        let _ = writeln!(text, "  left alone: {}  ({})", with_reason(&what, &left.why), left.rule);
    }
    for (rule, change, why) in &prepared.unable {
        let what = change.knob.on(interface).to_string();
        let _ = writeln!(text, "  left alone: {}  ({rule})", with_reason(&what, why));
    }
    for item in prepared.plan.items.iter().filter(|item| !item.advice.is_empty()) {
        for advice in &item.advice {
            let _ = writeln!(text, "  by hand: {advice}  ({})", item.rule);
        }
    }
    for file in &files.files {
        let _ = writeln!(
            text,
            "  applied at the next boot: {}",
            path_text(&Etc::from_environment().path(&file.path))
        );
    }
    for (path, why) in stale(interface, files) {
        let _ = writeln!(text, "  removed, because {why}: {path}");
    }
    for line in &files.not_kept {
        let _ = writeln!(text, "  lost at the next reboot: {line}");
    }
    if let Some(reasons) = not_judged(&prepared.judgement) {
        text.push_str(&reasons);
    }
    if let Some(watched) = &outcome.watched {
        text.push_str(&watched_text(interface, watched));
    }
    if !outcome.done.is_empty() || !files.files.is_empty() {
        let _ =
            writeln!(text, "`{}` undoes the changes", printed_command("evenkeel revert {}", &[&interface]));
    }
    text
}

fn watched_text(interface: &str, watched: &Watched) -> String {
    let mut text = String::new();
    let by = if watched.not_read.is_empty() { "" } else { ", by the counters that could be read" };
    match &watched.effect {
        Effect::NoTraffic { before, after } => {
            let _ = writeln!(
                text,
                "the effect on losses is unknown: {interface} carried or lost {before} packets in the watch before the \
                 changes, and {after} in the watch after them; evenkeel check --watch 10s shows losses under load"
            );
        }
        Effect::Losses(compared) if compared.is_empty() => {
            let _ = writeln!(
                text,
                "no packet was lost in the watch before the changes, nor in the watch after them{by}"
            );
        }
        Effect::Losses(compared) => {
            for one in compared {
                let words = match one.verdict {
                    Verdict::Better => "better",
                    Verdict::Worse => "WORSE",
                    Verdict::Same => "no difference shown",
                };
                let _ = writeln!(
                    text,
                    "lost at the {} ({}): {:.1} per million packets before, {:.1} after: {words}",
                    one.place.words(),
                    one.subject,
                    one.before_ppm,
                    one.after_ppm
                );
            }
        }
    }
    for gap in &watched.not_read {
        let _ = writeln!(text, "  losses may be missing here: {}", gap.why);
    }
    text
}

pub fn outcome_json(interface: &str, prepared: &Prepared, outcome: &Outcome, files: &Files) -> Json {
    let done: Vec<Json> = outcome
        .done
        .iter()
        .map(|done| {
            json!({
                "rule": done.rule,
                "fix": shell(interface, &done.knob, &done.to),
                "undo": shell(interface, &done.knob, &restoring(&prepared.facts, &done.from)),
            })
        })
        .collect();
    let refused: Vec<Json> = outcome
        .refused
        .iter()
        .map(|(rule, change, why)| json!({ "rule": rule, "fix": change.shell(interface), "why": why }))
        .collect();
    json!({
        "interface": interface,
        "done": done,
        "undo_of_queues": outcome.undo_of_queues,
        "refused": refused,
        "left": left_json(interface, prepared),
        "rules": rules(&prepared.judgement),
        "files": files_json(files),
        "removed_files": stale_json(interface, files),
        "not_kept": files.not_kept,
        "watched": outcome.watched,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_names_the_setting_is_not_preceded_by_it() {
        let what = "the sysctl vm.min_free_kbytes";
        let error = evenkeel_apply::KnobError::NotPermitted { what: what.to_owned() };
        let text = "the sysctl vm.min_free_kbytes is not a setting that evenkeel changes";
        assert_eq!(with_reason(what, &error.to_string()), text);
        assert_eq!(with_reason(what, "it is kept"), format!("{what}: it is kept"));
    }
}
