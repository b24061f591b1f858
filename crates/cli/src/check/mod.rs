//! `evenkeel check`.

mod explain;
pub mod show;
mod watch;

use std::collections::BTreeSet;
use std::path::Path;

use evenkeel_apply::{Damaged, Header, Renamed, printed_advice};
use evenkeel_fair::StrayRoot;
use evenkeel_host::HostError;
use evenkeel_host::facts::{Tree, read_facts, save_facts};
use evenkeel_model::host::{HostFacts, InterfaceKind};
use evenkeel_model::text::{excerpt, path_text};
use evenkeel_placement::managed::{ManagedSetting, leave, restore};
use evenkeel_placement::view::gigabits;
use evenkeel_placement::{Judgement, Severity, View, judge};

use crate::arguments::{CheckOptions, Format, StatedSpeed};
use crate::exit::{Exit, Failure, print, print_page};
use crate::live::say;
use crate::machine;
use crate::managed;
use crate::progress::page;
use crate::signals::Signals;
use crate::simulate;

pub fn check(options: &CheckOptions) -> Result<Exit, Failure> {
    if options.explain.as_deref() == Some("all") {
        if options.interface.is_some() || options.from.is_some() || !options.speeds.is_empty() {
            let message = "--explain all describes every rule without a host: leave out the interface, --from and --speed";
            return Err(Failure::new(Exit::Usage, message));
        }
        print(&explain::all())?;
        return Ok(Exit::Done);
    }
    let rule = options.explain.as_deref().map(explain::rule).transpose()?;
    let machine = options.machine.as_deref().map(machine::load).transpose()?;
    if let Some(time) = options.watch {
        return watch::watch(options, time);
    }
    let mut facts = read(options)?;
    state_speeds(&mut facts, &options.speeds)?.iter().for_each(|remark| say(remark));
    require_interface(&facts, options.interface.as_deref()).map_err(|unknown| with_left(unknown, options))?;
    let sessions = if options.from.is_none() { managed::sessions(&facts) } else { Vec::new() };
    let settings = managed::settings(&sessions);
    let mut judgement = judge_beside(&facts, &settings);
    require_judged(&judgement, options.from.is_some())?;
    let only = options.interface.as_deref();
    let others = only.map(|name| judgement.limit_to(&facts, name)).unwrap_or_default();
    judgement.limit_to_nics(&facts, only);
    if let Some(rule) = rule {
        let mut page = page();
        explain::one(&mut page, rule, &facts, &judgement, only.map(|name| (name, others.as_slice())));
        print_page(page)?;
        return Ok(Exit::Done);
    }
    let left = if options.from.is_none() { Left::on(options) } else { Left::default() };
    let unread = if options.from.is_none() { managed::unread(&facts, &sessions) } else { Vec::new() };
    let forecast = options.simulate.then(|| {
        let mut before = facts.clone();
        restore(&mut before, &settings);
        simulate::findings(&before, only, &judgement.findings, machine.as_ref())
    });
    let forecast = forecast.transpose()?;
    match options.format {
        Format::Table => {
            let mut page = page();
            left.unfinished.iter().for_each(|header| page.answer(&crate::revert::unfinished(header)));
            left.stray.iter().for_each(|stray| page.answer(&stray.to_string()));
            left.renamed.iter().for_each(|renamed| page.answer(&renamed.to_string()));
            left.unreadable.iter().for_each(|reason| page.answer(reason));
            show::screen(&mut page, options, &facts, &judgement, forecast.as_ref());
            show::sessions(&mut page, &sessions, &unread);
            print_page(page)?;
        }
        Format::Json => {
            let mut json = show::json(&facts, &judgement, &left, &sessions);
            if let Some(forecast) = &forecast {
                simulate::add_to(&mut json, forecast);
            }
            print(&format!("{json:#}\n"))?;
        }
    }
    let serious =
        !left.is_empty() || judgement.findings.iter().any(|finding| finding.severity == Severity::High);
    Ok(if serious { Exit::Unmet } else { Exit::Done })
}

/// Judges a host with the values from before the running sessions. Leaves out changes of settings that
/// sessions manage.
pub fn judge_beside(facts: &HostFacts, managed: &[ManagedSetting]) -> Judgement {
    let mut judgement = if managed.is_empty() {
        judge(facts)
    } else {
        let mut before = facts.clone();
        restore(&mut before, managed);
        let mut judgement = judge(&before);
        leave(&mut judgement.findings, managed);
        judgement
    };
    for advice in judgement.findings.iter_mut().filter_map(|finding| finding.remedy.advice.as_mut()) {
        *advice = printed_advice(advice);
    }
    judgement
}

/// The changes of killed runs in this network namespace. If there are any, the rules judge these changes, not
/// the administrator's settings.
#[derive(Default)]
pub struct Left {
    unfinished: Vec<Header>,
    /// Damaged journals. The command also reports them at its start.
    damaged: Vec<Damaged>,
    stray: Vec<StrayRoot>,
    renamed: Vec<Renamed>,
    /// The reason why the journals cannot be read. It does not change the exit code.
    unreadable: Option<String>,
}

impl Left {
    fn on(options: &CheckOptions) -> Self {
        let interface = options.interface.as_deref();
        Self {
            unfinished: crate::revert::dead_runs(interface),
            damaged: crate::revert::damaged(interface),
            // Ignore the error: a rule that needs these facts reports it.
            stray: crate::revert::stray(interface).unwrap_or_default(),
            renamed: crate::revert::renamed(interface),
            unreadable: crate::revert::unreadable(),
        }
    }

    fn is_empty(&self) -> bool {
        let Self { unfinished, damaged, stray, renamed, unreadable: _ } = self;
        unfinished.is_empty() && damaged.is_empty() && stray.is_empty() && renamed.is_empty()
    }
}

/// Returns an error if the host does not have the named interface.
fn require_interface(facts: &HostFacts, name: Option<&str>) -> Result<(), Failure> {
    let Some(name) = name.filter(|name| facts.interface(name).is_none()) else { return Ok(()) };
    let known: Vec<&str> = facts.interfaces.iter().map(|interface| interface.name.as_str()).collect();
    Err(Failure::unknown("interface", name, known, ""))
}

/// Adds to the error about a missing interface that a killed run left its settings changed.
fn with_left(unknown: Failure, options: &CheckOptions) -> Failure {
    let Some(name) = options.interface.as_deref().filter(|_| options.from.is_none()) else { return unknown };
    match crate::revert::dead_runs(None).iter().find(|header| header.is_about(name)) {
        Some(header) => unknown.and(&crate::revert::unfinished(header)),
        None => unknown,
    }
}

/// Returns an error if the second of two readings does not have an interface of the first under the same
/// name, or if another program created the interface again: the counters are not comparable.
pub fn require_same_interface(
    before: &HostFacts,
    after: &HostFacts,
    name: Option<&str>,
    time: &str,
) -> Result<(), Failure> {
    let Some(first) = name.and_then(|name| before.interface(name)) else { return Ok(()) };
    if after.interface(&first.name).is_some_and(|other| first.is_same(other)) {
        return Ok(());
    }
    let renamed = after.same_interface(first);
    let text = match (renamed, after.interface(&first.name)) {
        (Some(now), _) => format!("another program renamed {} to {} {time}", first.name, now.name),
        (None, Some(_)) => format!("another program deleted {} and created it again {time}", first.name),
        (None, None) => format!("{} left this network namespace (deleted or moved) {time}", first.name),
    };
    Err(Failure::new(Exit::Failed, text))
}

/// Applies the speeds that the user states. Returns a remark for each stated speed that replaces a
/// reported speed.
pub fn state_speeds(facts: &mut HostFacts, speeds: &[StatedSpeed]) -> Result<Vec<String>, Failure> {
    let mut stated = BTreeSet::new();
    if let Some(twice) = speeds.iter().find(|speed| !stated.insert(&speed.interface)) {
        let text = format!(
            "--speed: '{}' is given twice; state one speed for each interface",
            excerpt(&twice.interface)
        );
        return Err(Failure::new(Exit::Usage, text));
    }
    let mut remarks = Vec::new();
    for StatedSpeed { interface, bits_per_second } in speeds {
        require_interface(facts, Some(interface))
            .map_err(|unknown| Failure::new(unknown.exit(), format!("--speed: {}", unknown.message())))?;
        if facts.interface(interface).is_some_and(|found| found.kind != InterfaceKind::Device) {
            let text = format!(
                "--speed: '{}' is not a NIC; name a NIC (for a bond, VLAN or bridge: the NIC below it)",
                excerpt(interface)
            );
            return Err(Failure::new(Exit::Usage, text));
        }
        let carried = facts.interface(interface).and_then(|nic| Some(View::new(facts).load(nic)?.bps));
        let stated = gigabits(*bits_per_second as f64);
        if let Some(carried) = carried.filter(|carried| *carried > *bits_per_second as f64) {
            let text = format!(
                "--speed: {interface} carried {} on average since boot, more than the stated {stated}; state the \
                 speed of the link",
                gigabits(carried)
            );
            return Err(Failure::new(Exit::Usage, text));
        }
        let reported = facts.interface(interface).and_then(|nic| nic.speed_bps);
        if let Some(reported) = reported.filter(|reported| reported != bits_per_second) {
            let reported = gigabits(reported as f64);
            remarks.push(format!("--speed: {stated} replaces the {reported} that {interface} reports"));
        }
        facts.state_speed(interface, *bits_per_second);
    }
    Ok(remarks)
}

/// Returns an error if there are no findings and most rules lack facts.
pub fn require_judged(judgement: &Judgement, is_recorded: bool) -> Result<(), Failure> {
    let with_facts = judgement.judged + judgement.not_applicable.len();
    if !judgement.findings.is_empty() || with_facts >= judgement.not_judged.len() {
        return Ok(());
    }
    let exit = if is_recorded { Exit::Usage } else { Exit::Failed };
    Err(Failure::new(exit, show::not_judged(judgement).unwrap_or_default().trim_end()))
}

pub fn failure(error: &HostError) -> Failure {
    let exit = match error {
        HostError::Write { .. } => Exit::Failed,
        HostError::ForeignSysfs { .. } | HostError::NotMounted { .. } => Exit::Unable,
        // Most other errors concern a recorded tree, whose path the user gave.
        _ => Exit::Usage,
    };
    Failure::with_causes(exit, error)
}

fn read(options: &CheckOptions) -> Result<HostFacts, Failure> {
    if let Some(directory) = &options.save {
        // Check the names before anything is written.
        let named = options.interface.iter().chain(options.speeds.iter().map(|speed| &speed.interface));
        if let Some(unknown) = named.into_iter().find(|name| crate::revert::identity(name).is_none()) {
            require_interface(&read_facts(&tree(None)?).map_err(|error| failure(&error))?, Some(unknown))?;
        }
        // After the first signal, the command completes the recording, or removes it on an error. A second
        // signal ends the command at once.
        let signals = Signals::catch()?;
        let (facts, files) = save_facts(directory, options.anonymise).map_err(|error| match error {
            HostError::Output(error) => error.into(),
            error => failure(&error),
        })?;
        let privacy = if options.anonymise {
            "addresses and process names are replaced, except 127.0.0.1, ::1, 0.0.0.0, :: and the program names \
             that rules recognise; interface names are kept"
        } else {
            "the recording contains addresses and process names; --anonymise replaces them"
        };
        say(&format!("{files} files in {}; {privacy}", path_text(directory)));
        if signals.came() {
            return Err(Failure::new(Exit::Interrupted, "interrupted; the recording is complete"));
        }
        return Ok(facts);
    }
    read_facts(&tree(options.from.as_deref())?).map_err(|error| failure(&error))
}

pub fn tree(recorded: Option<&Path>) -> Result<Tree, Failure> {
    let Some(directory) = recorded else { return Ok(Tree::live()) };
    Tree::recorded(directory).map_err(|error| {
        Failure::new(
            Exit::Usage,
            format!("{error}\n--from takes a directory that `evenkeel check --save` wrote, or a tree like it (docs/reference/check.md)"),
        )
    })
}
