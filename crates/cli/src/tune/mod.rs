//! `evenkeel tune`: plans the changes that `evenkeel check` proposes, and makes them with `--apply`.

mod apply;
mod files;
mod maintain;
mod show;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use evenkeel_apply::{Etc, Kernel, KnobError, LiveKernel, StateDirectory, printed_advice, printed_command};
use evenkeel_files::{Kind, Text};
use evenkeel_host::Sysfs;
use evenkeel_host::facts::read_facts;
use evenkeel_model::change::{Change, Knob, Value};
use evenkeel_model::host::HostFacts;
use evenkeel_placement::current::current;
use evenkeel_placement::managed::restore;
use evenkeel_placement::tune::{Item, Keep, Step, TuningPlan, limit_raised_once, owner, settled};
use evenkeel_placement::{Judgement, NotJudged, find_rule, rules, rules_about_nics};

use crate::arguments::{Format, TuneOptions};
use crate::check::show::not_nics;
use crate::exit::{Exit, Failure, print, print_page};
use crate::live::say;
use crate::machine;
use crate::managed;
use crate::progress::page;
use crate::revert::tell_managed;
use crate::signals::Signals;
use crate::simulate;

pub use maintain::{left as left_by_service, maintain};
pub use show::undo_of_queues;

/// File that lists settings to keep, below `/etc`.
const KEEP: &str = "evenkeel/keep.toml";

#[derive(Clone, Debug)]
pub struct Ready {
    pub rule: &'static str,
    pub change: Change,
    /// The current value; `None` for a queue that the plan's channels add, and with `--from` if unknown.
    pub from: Option<Value>,
}

/// A plan, compared with the host's current settings.
pub struct Prepared {
    pub facts: HostFacts,
    pub judgement: Judgement,
    pub plan: TuningPlan,
    /// The plan's steps that change a value.
    pub ready: Vec<Ready>,
    /// Steps that cannot be made here, each with the reason.
    pub unable: Vec<(&'static str, Change, String)>,
    /// Settings of [`Self::unable`] that `tune` has changed before: for another interface, or for this
    /// interface and without a current loss. They are not reported as unfixed.
    settled: BTreeSet<Knob>,
    /// Whether a running session manages settings.
    pub is_beside_session: bool,
    /// Whether the plan leaves a change to a running session.
    pub is_left_to_session: bool,
    /// Whether some steps depend on losses in progress.
    pub wants_a_look: bool,
    remarks: Vec<String>,
}

impl Prepared {
    /// Returns the process id of irqbalance if the plan requires stopping it.
    pub fn stops_balancer(&self) -> Option<u32> {
        let places = |ready: &Ready| matches!(ready.change.knob, Knob::InterruptAffinity(_));
        self.plan.stop_balancer.filter(|_| self.ready.iter().any(places))
    }

    /// Leaves a setting to another interface, for which `tune` has changed it since the plan.
    fn leave_to(&mut self, knob: &Knob, interface: &str, owner: &str) {
        let (owned, ready): (Vec<Ready>, Vec<Ready>) =
            std::mem::take(&mut self.ready).into_iter().partition(|ready| ready.change.knob == *knob);
        self.ready = ready;
        for Ready { rule, change, .. } in owned {
            self.settled.insert(change.knob.clone());
            let why = settled(rule, owner, interface, &BTreeSet::new()).unwrap_or_default();
            self.unable.push((rule, change, why));
        }
    }

    /// Drops the items whose settings already have the wanted value.
    fn drop_empty_items(&mut self) {
        let Self { plan, ready, unable, .. } = self;
        let left = &plan.left;
        plan.items.retain(|Item { rule, advice, .. }| {
            !advice.is_empty()
                || ready.iter().any(|ready| ready.rule == *rule)
                || left.iter().any(|left| left.rule == *rule)
                || unable.iter().any(|(unable, ..)| unable == rule)
        });
    }
}

pub fn tune(options: &TuneOptions) -> Result<Exit, Failure> {
    files::check_namespace(options)?;
    let keep = keep(options.keep.as_deref())?;
    let machine = options.machine.as_deref().map(machine::load).transpose()?;
    // Catch signals before any change, so that a signal causes an undo.
    let signals = Signals::catch()?;
    let only = options.rules();
    let prepared = prepare(options, &keep, &only, &BTreeSet::new())?;
    let without_finding = without_finding(options, &only, &prepared)?;
    crate::check::require_judged(&prepared.judgement, options.from.is_some())?;
    for rule in without_finding {
        say(&format!(
            "{rule} has no finding for {} now: the change is already applied, or not needed",
            options.interface
        ));
    }
    prepared.remarks.iter().for_each(|remark| say(remark));
    keep.remarks(&prepared.facts).iter().for_each(|remark| say(remark));
    if options.apply.is_some() {
        return apply::apply(options, &keep, prepared, &signals);
    }
    if options.from.is_none() {
        let plan = match prepared.is_beside_session {
            true => "this plan does not change the settings that the session manages",
            false => "this plan starts from the settings of that session",
        };
        tell_managed(&options.interface, plan);
    }
    let files = files::planned(options, &prepared)?;
    let forecast = options.simulate.then(|| {
        let step = |ready: &Ready| Step { rule: ready.rule, change: ready.change.clone() };
        let steps: Vec<Step> = prepared.ready.iter().map(step).collect();
        simulate::plan(&prepared.facts, &options.interface, &steps, machine.as_ref())
    });
    let forecast = forecast.transpose()?;
    match options.format {
        Format::Table => {
            let mut page = page();
            page.script(&show::plan(options, &prepared, &files, forecast.as_ref()));
            print_page(page)?;
        }
        Format::Json => {
            let mut json = show::plan_json(&options.interface, &prepared, &files);
            if let (Some(forecast), Some(object)) = (&forecast, json.as_object_mut()) {
                object.insert("simulation".to_owned(), simulate::plan_json(forecast));
            }
            print(&format!("{json:#}\n"))?;
        }
    }
    Ok(Exit::Done)
}

/// Reads the host, checks it, and plans. `losing` contains the rules that explain losses in progress.
pub fn prepare(
    options: &TuneOptions,
    keep: &Keep,
    only: &[String],
    losing: &BTreeSet<&'static str>,
) -> Result<Prepared, Failure> {
    let mut facts = read(options.from.as_deref())?;
    let remarks = crate::check::state_speeds(&mut facts, &options.speeds)?;
    let name = &options.interface;
    let Some(interface) = facts.interface(name) else {
        let known: Vec<&str> = facts.interfaces.iter().map(|interface| interface.name.as_str()).collect();
        return Err(Failure::unknown("interface", name, known, ""));
    };
    let sessions = if options.from.is_none() { managed::sessions(&facts) } else { Vec::new() };
    let settings = managed::settings(&sessions);
    let mut judgement = crate::check::judge_beside(&facts, &settings);
    judgement.limit_to_nics(&facts, Some(name));
    let mut before = facts.clone();
    restore(&mut before, &settings);
    let mut plan = TuningPlan::settle(&before, name, keep, only);
    // The rules do not know the directories that a printed command names.
    for advice in plan.items.iter_mut().flat_map(|item| &mut item.advice) {
        *advice = printed_advice(advice);
    }
    for left in &mut plan.left {
        if let Some(owner) = owner(&before, &left.change.knob).filter(|owner| owner != name) {
            let command = printed_command("evenkeel tune", &[]).on(&owner, " --apply {}", &[&left.rule]);
            left.why = format!("{}: `{command}` changes it", left.why);
        }
    }
    let mut is_left_to_session = false;
    for session in &sessions {
        is_left_to_session |= plan.leave_managed(name, &session.settings, &session.words());
    }
    let mut prepared = Prepared {
        judgement,
        is_beside_session: !sessions.is_empty(),
        is_left_to_session,
        plan,
        ready: Vec::new(),
        unable: Vec::new(),
        settled: BTreeSet::new(),
        wants_a_look: false,
        remarks,
        facts: HostFacts::default(),
    };
    match interface.index.filter(|_| options.from.is_none()) {
        Some(index) => sort_out(&mut prepared, &before, index, name, losing)?,
        None => {
            let (able, unable): (Vec<&Step>, Vec<&Step>) =
                prepared.plan.steps.iter().partition(|step| step.change.knob.is_permitted());
            prepared.unable.extend(unable.into_iter().map(|Step { rule, change }| {
                let error = KnobError::NotPermitted { what: change.knob.on(name).to_string() };
                (*rule, change.clone(), error.to_string())
            }));
            let ready = |step: &Step| {
                let from = current(&facts, Some(name), &step.change.knob);
                Ready { rule: step.rule, change: step.change.clone(), from }
            };
            // A value that the host already has is no change, even if the file shows it in another
            // format.
            let differs = |ready: &Ready| {
                let Ready { change, from, .. } = ready;
                from.as_ref().is_none_or(|from| !change.knob.same(from, &change.to))
            };
            prepared.ready = able.into_iter().map(ready).filter(differs).collect();
        }
    }
    prepared.facts = facts;
    prepared.drop_empty_items();
    Ok(prepared)
}

/// Sorts the plan's steps into steps to make now and steps that cannot be made. Leaves out steps whose
/// setting already has the wanted value.
fn sort_out(
    prepared: &mut Prepared,
    facts: &HostFacts,
    index: u32,
    interface: &str,
    losing: &BTreeSet<&'static str>,
) -> Result<(), Failure> {
    let mut kernel = look(index, interface)?;
    // If the journals cannot be read, assume that no previous command changed a setting.
    let kept = evenkeel_apply::kept(&StateDirectory::from_environment()).unwrap_or_default();
    for Step { rule, change } in &prepared.plan.steps {
        let from = match kernel.read(&change.knob) {
            Ok(from) => from,
            // A setting of the whole machine exists only in the initial network namespace.
            Err(KnobError::Gone { .. })
                if matches!(change.knob, Knob::Sysctl(_)) && Etc::namespace().is_some() =>
            {
                let why = "only the initial network namespace has this setting".to_owned();
                prepared.unable.push((rule, change.clone(), why));
                continue;
            }
            Err(KnobError::Gone { .. })
                if change.knob.is_of_queues() && current(facts, Some(interface), &change.knob).is_none() =>
            {
                prepared.ready.push(Ready { rule, change: change.clone(), from: None });
                continue;
            }
            Err(error) => {
                prepared.unable.push((rule, change.clone(), error.to_string()));
                continue;
            }
        };
        if change.knob.same(&from, &change.to) {
            continue;
        }
        let set_before = kept.iter().find(|(identity, entry)| {
            let same = identity.index == index || !change.knob.is_of_interface();
            same && entry.knob == change.knob && entry.is_ours(&from)
        });
        let set_for =
            set_before.map(|(identity, _)| if identity.index == index { interface } else { &identity.name });
        match set_for.and_then(|set_for| settled(rule, set_for, interface, losing)) {
            Some(why) => {
                prepared.unable.push((rule, change.clone(), why));
                prepared.settled.insert(change.knob.clone());
                prepared.wants_a_look |= set_for == Some(interface);
            }
            None => prepared.ready.push(Ready { rule, change: change.clone(), from: Some(from) }),
        }
    }
    // After `tune` has raised a limit to its final size, losses from before the raise lead only to advice.
    for item in prepared.plan.items.iter_mut().filter(|item| !item.advice.is_empty()) {
        let Some(limit) = limit_raised_once(item.rule) else { continue };
        let Ok(now) = kernel.read(&limit) else { continue };
        let set_before = kept.iter().find(|(_, entry)| entry.knob == limit && entry.is_ours(&now));
        let Some((identity, _)) = set_before else { continue };
        prepared.wants_a_look = true;
        let set_for = if identity.index == index { interface } else { &identity.name };
        let is_ready = prepared.ready.iter().any(|ready| ready.rule == item.rule);
        if let Some(why) = settled(item.rule, set_for, interface, losing).filter(|_| !is_ready) {
            item.advice.clear();
            prepared.settled.insert(limit.clone());
            prepared.unable.push((item.rule, Change { knob: limit, to: now }, why));
        }
    }
    Ok(())
}

/// Returns the findings that `tune` cannot fix, each with the reason. Leaves out the settings on the keep
/// list and those of [`Prepared::settled`].
fn unfixed(interface: &str, keep: &Keep, prepared: &Prepared) -> Vec<String> {
    let Prepared { plan, unable, settled, .. } = prepared;
    let is_kept = |rule: &str, knob: &Knob| {
        let is_balanced = matches!(knob, Knob::InterruptAffinity(_));
        keep.reason(interface, rule, knob).is_some()
            || is_balanced && keep.keeps_rule(interface, "irqbalance-runs")
    };
    let is_settled =
        |rule: &str| unable.iter().any(|(of, change, _)| *of == rule && settled.contains(&change.knob));
    let by_hand = plan.items.iter().filter(|item| !is_settled(item.rule)).flat_map(|item| {
        item.advice.iter().map(move |advice| format!("{} needs a step by hand: {advice}", item.rule))
    });
    let left = plan.left.iter().filter(|left| !is_kept(left.rule, &left.change.knob));
    let left = left.map(|left| (left.rule, &left.change, &left.why));
    let unable = unable.iter().filter(|(_, change, _)| !settled.contains(&change.knob));
    let unable = unable.map(|(rule, change, why)| (*rule, change, why));
    let others = left.chain(unable).map(|(rule, Change { knob, to }, why)| {
        format!("{} is not set to {to}: {why} ({rule})", knob.on(interface))
    });
    by_hand.chain(others).collect()
}

/// Returns the rules that the user selected and that have no finding.
///
/// # Errors
/// Returns an error if a name belongs to no rule, if a rule could not judge the interface, or if a rule is
/// about NICs and the interface is none.
fn without_finding<'o>(
    options: &TuneOptions,
    only: &'o [String],
    prepared: &Prepared,
) -> Result<Vec<&'o str>, Failure> {
    let items = &prepared.plan.items;
    let mut found = Vec::new();
    for name in only.iter().filter(|name| !items.iter().any(|item| item.rule == **name)) {
        if find_rule(name).is_none() {
            let command = printed_command("evenkeel tune {}", &[&options.interface]);
            let separate = if name.contains(',') { "separate rules with spaces; " } else { "" };
            let otherwise = format!("{separate}`{command}` shows the rules with changes");
            return Err(Failure::unknown("rule", name, rules().map(|rule| rule.name), &otherwise));
        }
        // Distinguish a rule that could not judge from a rule without a finding.
        if let Some(NotJudged { rule, why, .. }) =
            prepared.judgement.incomplete().find(|missed| missed.rule == *name)
        {
            return Err(Failure::new(Exit::Unable, format!("the rule {rule} could not be judged: {why}")));
        }
        if rules_about_nics(&prepared.facts).contains(&name.as_str()) {
            let subject = || format!("{name}, a rule about NICs, does");
            if let Some(sentence) = not_nics(&prepared.facts, Some(&options.interface), subject) {
                return Err(Failure::new(Exit::Unable, sentence.trim_end_matches('.')));
            }
        }
        found.push(name.as_str());
    }
    Ok(found)
}

fn read(from: Option<&Path>) -> Result<HostFacts, Failure> {
    read_facts(&crate::check::tree(from)?).map_err(|error| crate::check::failure(&error))
}

/// Reads the keep list. A file named by the user must exist.
fn keep(named: Option<&Path>) -> Result<Keep, Failure> {
    let path: PathBuf = named.map_or_else(|| Etc::from_environment().path(KEEP), Path::to_owned);
    let read = if named.is_some() { evenkeel_files::read } else { evenkeel_files::read_regular };
    let Text { text, origin } = match read(&path, Kind::KeepList) {
        Ok(text) => text,
        Err(error) if named.is_none() && error.is_missing() => return Ok(Keep::default()),
        Err(error) => return Err(error.into()),
    };
    Keep::parse(&text, &origin).map_err(|error| Failure::new(Exit::Usage, error))
}

/// Opens the namespace's settings for reading. Uses the mounted sysfs if this process may not mount the
/// namespace's own.
fn look(index: u32, name: &str) -> Result<LiveKernel, Failure> {
    let kernel =
        LiveKernel::open(index, name).or_else(|_| LiveKernel::with_sysfs(index, name, Sysfs::at("/sys")));
    kernel.map_err(|error| Failure::with_causes(Exit::Unable, &error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use evenkeel_placement::tune::Left;
    use evenkeel_placement::{Severity, tune::Item};

    use super::*;

    #[test]
    fn findings_that_remain_are_named_unless_the_user_keeps_the_setting() {
        let sysctl = |path: &str| Change::new(Knob::Sysctl(path.to_owned()), Value::Text("1".to_owned()));
        let item = |rule, advice: &[&str]| Item {
            rule,
            also: Vec::new(),
            severity: Severity::Low,
            evidence: Vec::new(),
            effect: String::new(),
            source: "",
            advice: advice.iter().map(|text| (*text).to_owned()).collect(),
        };
        let items = vec![item("memory-reclaim", &["add memory"]), item("backlog-drops", &["spread load"])];
        let left = ["net/ipv4/tcp_sack", "net/ipv4/tcp_fack"].map(|path| Left {
            rule: "sack-off",
            change: sysctl(path),
            why: "why".to_owned(),
        });
        let [raised, absent] = ["net/core/netdev_max_backlog", "net/core/rps"].map(sysctl);
        let prepared = Prepared {
            facts: HostFacts::default(),
            judgement: Judgement::default(),
            plan: TuningPlan { items, left: left.to_vec(), ..TuningPlan::default() },
            ready: Vec::new(),
            settled: [raised.knob.clone()].into(),
            unable: vec![
                ("backlog-drops", raised, "raised".to_owned()),
                ("rps-off", absent, "absent".to_owned()),
            ],
            is_beside_session: false,
            is_left_to_session: false,
            wants_a_look: false,
            remarks: Vec::new(),
        };
        let keep = Keep::parse("keep = [\"sysctl net.ipv4.tcp_sack\"]", "keep.toml").unwrap();
        assert_eq!(
            unfixed("eth0", &keep, &prepared),
            [
                "memory-reclaim needs a step by hand: add memory",
                "the sysctl net.ipv4.tcp_fack is not set to '1': why (sack-off)",
                "the sysctl net.core.rps is not set to '1': absent (rps-off)",
            ]
        );
    }
}
