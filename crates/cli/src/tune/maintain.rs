//! A worker of `evenkeel service`: makes the changes of rules as `evenkeel tune --apply` does, watches them, and undoes
//! them at the end.
//!
//! The journal is that of `tune`, with a mark at the entries of the service. There is no guardian: if the worker and the
//! service are killed, the changes stay until the next start or `evenkeel revert`.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_apply::{
    ApplyError, Damaged, Entry, InterfaceIdentity, JournalError, KeptWatch, Lasting, Lost, Ours,
    RevertOutcome, StateDirectory, exclude_sessions, forget_lost_of_service, printed_command,
    privileges::keep_only, revert_of_service, service_journals, tune_alone, unrecorded,
};
use evenkeel_host::{Capability, SocketName, Sysfs};
use evenkeel_model::change::{self, Knob, Value};
use evenkeel_placement::tune::Keep;
use evenkeel_service::{DeviceState, Managed, reset_of};
use serde_json::{Value as Json, json};

use super::apply::{Outcome, leave_to_balancer, make_rounds, refuse_disturbed};
use super::{Prepared, Ready, keep, prepare, show, without_finding};
use crate::arguments::{AtEnd, Format, MaintainOptions, TuneOptions};
use crate::exit::{Exit, Failure, flush};
use crate::live::{End, keep_going, require, say};
use crate::output;
use crate::revert::{damaged, identity, renamed, tell_leftover};
use crate::signals::Signals;
use crate::stream::Stream;

/// Minimum interval between two judgements of the rules. They take at most 1/`JUDGE_SHARE` of the time.
const JUDGE_INTERVAL: Duration = Duration::from_secs(10);
const JUDGE_SHARE: u32 = 100;
/// Interval between two checks of the settings.
const INTERVAL: Duration = Duration::from_millis(500);
/// Limit of the wait for a session on the interface. The session got the same signal, and the changes are
/// undone only after it has ended.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

/// The reason why a worker ends by itself.
#[derive(Clone, Debug)]
enum Change {
    /// Another program changed a setting.
    Foreign(String),
    /// The device lost settings, or has another name.
    Device(String),
    /// The interface was deleted or moved.
    Gone,
    /// A session has the interface, and a rule has a new finding.
    Busy(String),
}

impl fmt::Display for Change {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign(reason) | Self::Device(reason) | Self::Busy(reason) => formatter.write_str(reason),
            Self::Gone => formatter.write_str("the interface left this network namespace"),
        }
    }
}

/// The results of the worker's rules.
#[derive(Default)]
struct Made {
    refused: Vec<Json>,
    left: Vec<Json>,
    /// The findings that remain, for the user.
    unmet: Option<String>,
}

struct Worker<'a> {
    /// The name that excludes another service, and shows this one to `top` and `metrics`.
    sole: Option<SocketName>,
    options: &'a MaintainOptions,
    state: StateDirectory,
    index: u32,
    watch: KeptWatch,
    sysfs: Sysfs,
    device: DeviceState,
    /// The settings that the journal must have.
    journalled: Vec<Knob>,
    /// Settings of `journalled` that are not in effect although the changes are made: their queues are gone,
    /// or their rules have no finding.
    idle: Vec<Knob>,
    /// The changes that the kernel or another program refused.
    refused: Vec<(&'static str, change::Change, String)>,
    made: Made,
    /// Whether a change that would end the worker may be temporary: another command of Evenkeel has not ended.
    waits: bool,
    /// Time of the next judgement of the rules.
    judges: Instant,
}

pub fn maintain(options: &MaintainOptions) -> Result<Exit, Failure> {
    require(&[Capability::NetAdmin], "tune")?;
    // The systemd unit does not give CAP_SYS_ADMIN. Without this capability, the mounted /sys must show this
    // namespace.
    keep_only(&[Capability::NetAdmin, Capability::SysAdmin])
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot drop privileges: {error}")))?;
    let signals = Signals::catch()?;
    output::detach();
    let state = StateDirectory::from_environment();
    if let Some(index) = options.index.filter(|_| options.undo) {
        return undo_left(&state, index, &options.interface);
    }
    let Some(found) = identity(&options.interface) else {
        let message = format!("there is no interface '{}'", options.interface);
        return Err(Failure::new(Exit::Unable, message));
    };
    let open = || KeptWatch::open(&state, found.index, &options.interface);
    let mut stream = Stream::of(options.format);
    let sole = tune_alone(found.index, &options.interface)
        .map_err(|error| Failure::with_causes(Exit::Unable, &error))?;
    let mut worker = Worker {
        sole,
        options,
        index: found.index,
        watch: open().map_err(|error| failure(&error))?,
        sysfs: Sysfs::of_namespace().map_err(|error| Failure::with_causes(Exit::Unable, &error))?,
        device: DeviceState::default(),
        journalled: Vec::new(),
        idle: Vec::new(),
        refused: Vec::new(),
        made: Made::default(),
        waits: false,
        judges: Instant::now() + JUDGE_INTERVAL,
        state: state.clone(),
    };
    let end = match worker.begin(&signals) {
        Ok(None) => {
            stream.started(&options.interface, &worker.devices());
            say("managed now; SIGTERM ends it");
            let tick = |worker: &mut Worker<'_>| {
                let change = worker.look(&signals);
                stream.status(&signals, |seconds| {
                    json!({"type": "status", "schema": 1, "seconds": seconds, "devices": worker.devices()})
                });
                change
            };
            keep_going(&mut worker, INTERVAL, None, &signals, tick, |_| String::new())
                .map_err(|error| failure(&error))?
        }
        Ok(Some(change)) => End::ForeignChange(change),
        Err(Stop::Busy(error)) => {
            let ended = json!({"ended": {"by": "busy"}, "devices": []});
            stream.end(&ended)?;
            flush()?;
            return Err(error);
        }
        Err(Stop::Failed(error)) => return Err(error),
    };
    worker.end(&end, &stream)
}

/// The reason why a worker cannot begin.
enum Stop {
    /// A session has the interface.
    Busy(Failure),
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<ApplyError> for Stop {
    fn from(error: ApplyError) -> Self {
        let failed = Failure::with_causes(Exit::Unable, &error);
        if is_busy(&error) { Self::Busy(failed) } else { Self::Failed(failed) }
    }
}

fn is_busy(error: &ApplyError) -> bool {
    matches!(error, ApplyError::Journal(JournalError::Busy { .. } | JournalError::HeldElsewhere { .. }))
}

fn failure(error: &ApplyError) -> Failure {
    Failure::with_causes(Exit::Failed, error)
}

impl Worker<'_> {
    fn device_state(&self) -> DeviceState {
        let name = &self.options.interface;
        let number =
            |path: &str| self.sysfs.read(&format!("class/net/{name}/{path}")).ok()?.parse::<u64>().ok();
        let queues = self.sysfs.list(&format!("class/net/{name}/queues")).unwrap_or_default();
        let count = |kind: &str| queues.iter().filter(|queue| queue.starts_with(kind)).count() as u32;
        let timeouts = queues.iter().filter_map(|queue| number(&format!("queues/{queue}/tx_timeout")));
        DeviceState {
            queues: (count("tx-"), count("rx-")),
            timeouts: timeouts.sum(),
            carrier_changes: number("carrier_changes").unwrap_or(0),
        }
    }

    /// Makes the changes that are not in effect. If another program has changed a setting of an earlier
    /// worker, returns that change and makes none. With the option `afresh`, the worker instead removes the
    /// earlier changes of such settings from the journal, and makes the changes of the rules.
    fn begin(&mut self, signals: &Signals) -> Result<Option<Change>, Stop> {
        self.watch.check()?;
        let entries = self.watch.entries()?;
        let lost = self.watch.lost(&entries)?;
        let is_foreign = |lost: &&Lost| lost.found.is_some() && !lost.is_as_before;
        if let Some(lost) = lost.iter().find(is_foreign) {
            if !self.options.afresh {
                return Ok(Some(self.foreign(&entries, lost)));
            }
            let _sessions = self.exclude_sessions()?;
            forget_lost_of_service(&self.watch.journal()?)?;
        }
        let (prepared, keep) = self.judge()?;
        self.report_left(&prepared);
        self.meet(prepared, &keep, signals)?;
        let entries = self.watch.entries()?;
        self.idle = self.watch.lost(&entries)?.into_iter().map(|lost| lost.knob).collect();
        self.journalled = entries.into_iter().map(|entry| entry.knob).collect();
        self.device = self.device_state();
        Ok(None)
    }

    /// Judges the rules. A rule without a finding is met.
    fn judge(&self) -> Result<(Prepared, Keep), Failure> {
        let (tune, keep) = (tune_options(self.options), keep(None)?);
        let rules = &self.options.rules;
        let mut prepared = prepare(&tune, &keep, rules, &BTreeSet::new())?;
        without_finding(&tune, rules, &prepared)?;
        crate::check::require_judged(&prepared.judgement, false)?;
        leave_to_balancer(&mut prepared);
        Ok((prepared, keep))
    }

    /// Makes the changes of a plan, if there are any, and stores the findings that remain.
    fn meet(&mut self, mut prepared: Prepared, keep: &Keep, signals: &Signals) -> Result<(), Stop> {
        if !prepared.ready.is_empty() {
            let mut outcome = Outcome::default();
            self.make(keep, &mut prepared, signals, &mut outcome)?;
            self.report(&prepared, &outcome);
            self.refused.append(&mut outcome.refused);
            self.journalled = self.watch.entries()?.into_iter().map(|entry| entry.knob).collect();
            prepared = self.judge()?.0;
        }
        self.settle(&prepared, keep);
        Ok(())
    }

    /// Judges the rules again, and makes changes of settings of the host. Such a setting loses its value if
    /// the worker of another interface undoes its change. Returns [`Change::Busy`] if a session has the
    /// interface.
    fn judge_again(&mut self, signals: &Signals) -> Result<Option<Change>, ApplyError> {
        let began = Instant::now();
        let judged = self.judge().map_err(Stop::from).and_then(|(mut prepared, keep)| {
            let is_settled = |knob: &Knob| self.journalled.contains(knob) || self.has_refused(knob);
            let is_new = |knob: &Knob| !knob.is_of_interface() && !is_settled(knob);
            if !prepared.ready.iter().any(|ready| is_new(&ready.change.knob)) {
                self.settle(&prepared, &keep);
                return Ok(());
            }
            prepared.ready.retain(|ready| is_new(&ready.change.knob));
            self.meet(prepared, &keep, signals)
        });
        // Judgements take a bounded share of a processor.
        self.judges = Instant::now() + JUDGE_INTERVAL.max(began.elapsed() * JUDGE_SHARE);
        match judged {
            Ok(()) => {}
            Err(Stop::Busy(failure)) => return Ok(Some(Change::Busy(failure.message().to_owned()))),
            Err(Stop::Failed(failure)) => {
                self.made.unmet = Some(format!("cannot judge the rules again: {}", failure.message()));
            }
        }
        Ok(None)
    }

    fn has_refused(&self, knob: &Knob) -> bool {
        self.refused.iter().any(|(_, change, _)| change.knob == *knob)
    }

    /// Stores the findings that remain, and the settings that were refused or left alone.
    fn settle(&mut self, prepared: &Prepared, keep: &Keep) {
        let name = &self.options.interface;
        let ready = |knob: &Knob| prepared.ready.iter().any(|ready| ready.change.knob == *knob);
        self.refused.retain(|(_, change, _)| ready(&change.knob));
        let refused = self.refused.iter().map(|(rule, change, why)| refusal(name, rule, change, why));
        // A change of an interface may reset the device, so only a new worker makes it.
        let later = prepared.ready.iter().filter(|Ready { change: change::Change { knob, .. }, .. }| {
            knob.is_of_interface() && !self.journalled.contains(knob) && !self.has_refused(knob)
        });
        let later = later.map(|Ready { rule, change, .. }| {
            format!(
                "{rule} has had a finding since the start: {} is not {}; a pause and a resume make the change",
                change.knob.on(name),
                change.to
            )
        });
        let unfixed = super::unfixed(name, keep, prepared);
        let unmet: Vec<String> = refused.chain(later).chain(unfixed).collect();
        let outcome = Outcome { refused: self.refused.clone(), ..Outcome::default() };
        let json = show::outcome_json(name, prepared, &outcome, &Default::default());
        let list = |key: &str| json[key].as_array().cloned().unwrap_or_default();
        self.made = Made {
            refused: list("refused"),
            left: list("left"),
            unmet: Some(unmet.join("; ")).filter(|text| !text.is_empty()),
        };
    }

    fn make(
        &self,
        keep: &Keep,
        prepared: &mut Prepared,
        signals: &Signals,
        outcome: &mut Outcome,
    ) -> Result<(), Stop> {
        let (name, tune) = (&self.options.interface, tune_options(self.options));
        signals.hold();
        let (mut lasting, leftover) = Lasting::begin(&self.state, self.index, name, "tune")?;
        leftover.iter().for_each(tell_leftover);
        lasting.by_service();
        make_rounds(&tune, keep, prepared, &BTreeSet::new(), signals, &mut lasting, outcome)?;
        refuse_disturbed(&mut lasting, outcome);
        if let Some(rewritten) = lasting.keep()? {
            say(&rewritten.to_string());
        }
        Ok(())
    }

    /// Reports the settings that the plan leaves alone, and those that cannot be changed.
    fn report_left(&self, prepared: &Prepared) {
        let name = &self.options.interface;
        let planned = prepared.plan.left.iter().map(|left| (left.rule, &left.change, &left.why));
        let unable = prepared.unable.iter().map(|(rule, change, why)| (*rule, change, why));
        for (rule, change, why) in planned.chain(unable) {
            let what = change.knob.on(name).to_string();
            match why.starts_with(&what) {
                true => say(&format!("left alone: {why} ({rule})")),
                false => say(&format!("{what} is left alone: {why} ({rule})")),
            }
        }
    }

    /// Reports each change that was made, with the effect that the plan expects.
    fn report(&self, prepared: &Prepared, outcome: &Outcome) {
        let name = &self.options.interface;
        let effect = |rule: &str| {
            let item = prepared.plan.items.iter().find(|item| item.rule == rule);
            item.map(|item| format!(": {}", item.effect)).unwrap_or_default()
        };
        for done in &outcome.done {
            let (knob, rule) = (done.knob.on(name), done.rule);
            say(&format!("{knob}: {} -> {} ({rule}){}", done.from, done.to, effect(rule)));
        }
    }

    /// Returns the reason why the worker must end, if there is one. If no setting has changed and a judgement
    /// is due, judges the rules again. While another command of Evenkeel changes the kept settings, waits for
    /// its end: an interrupted command undoes its changes.
    fn look(&mut self, signals: &Signals) -> Result<Option<Change>, ApplyError> {
        self.sole.iter().for_each(SocketName::answer);
        match identity(&self.options.interface).filter(|found| found.index == self.index) {
            Some(_) => {}
            None if self.is_present() => {
                return Ok(Some(Change::Device("the interface has another name now".to_owned())));
            }
            None => return Ok(Some(Change::Gone)),
        }
        // Another command may begin or end during the comparison, so check before and after it.
        let is_changing = self.watch.is_changing()?;
        let change = self.compare()?;
        self.waits = change.is_some() && (is_changing || self.watch.is_changing()?);
        match change {
            None if !is_changing && Instant::now() >= self.judges => self.judge_again(signals),
            change => Ok(change.filter(|_| !self.waits)),
        }
    }

    /// Compares the journal and the settings with the changes of the worker. Returns the first difference.
    fn compare(&mut self) -> Result<Option<Change>, ApplyError> {
        let entries = self.watch.entries()?;
        let is_missing = |knob: &&Knob| !entries.iter().any(|entry| entry.knob == **knob);
        if let Some(knob) = self.journalled.iter().find(is_missing) {
            let knob = knob.on(&self.options.interface);
            return Ok(Some(Change::Foreign(format!(
                "the journal does not have the service's change of {knob} anymore: `evenkeel revert` undid it, `evenkeel tune` \
                 changed the setting, or another program removed the journal"
            ))));
        }
        let watched = entries.iter().filter(|entry| !self.idle.contains(&entry.knob));
        let lost = self.watch.lost(&watched.cloned().collect::<Vec<Entry>>())?;
        let now = self.device_state();
        if lost.is_empty() {
            self.device = now;
            return Ok(None);
        }
        let name = &self.options.interface;
        let reset =
            |lost: &Lost| reset_of(&lost.knob, lost.is_as_before || lost.found.is_none(), &self.device, &now);
        // The kernel may have removed the interface since.
        if lost.iter().all(|lost| lost.found.is_none()) && identity(name).is_none() {
            return Ok(Some(Change::Gone));
        }
        if let Some(foreign) = lost.iter().find(|lost| reset(lost).is_none()) {
            return Ok(Some(self.foreign(&entries, foreign)));
        }
        let knobs: Vec<String> = lost.iter().map(|lost| lost.knob.on(name).to_string()).collect();
        let why = lost.iter().find_map(reset).unwrap_or_default();
        Ok(Some(Change::Device(format!("{why}, which reset {}", knobs.join(", ")))))
    }

    fn is_present(&self) -> bool {
        let names = self.sysfs.list("class/net").unwrap_or_default();
        names.iter().filter_map(|name| identity(name)).any(|found| found.index == self.index)
    }

    fn foreign(&self, entries: &[Entry], lost: &Lost) -> Change {
        let knob = lost.knob.on(&self.options.interface);
        let entry = entries.iter().find(|entry| entry.knob == lost.knob);
        let before = entry.and_then(set_value).map_or_else(String::new, |before| format!(" from {before}"));
        Change::Foreign(match &lost.found {
            Some(found) => format!("another program changed {knob}{before} to {found}"),
            None => format!("another program removed {knob}"),
        })
    }

    /// Returns the status of the interface for the service.
    fn devices(&mut self) -> Json {
        let name = self.options.interface.clone();
        let entries = self.watch.entries().unwrap_or_default();
        let settings: Vec<Json> = entries
            .iter()
            .map(|entry| {
                let now = self.watch.value(&entry.knob).map(|value| value.to_string());
                let (setting, before) = (entry.knob.on(&name).to_string(), entry.from.to_string());
                json!({"setting": setting, "value": now, "before": before, "entry": entry})
            })
            .collect();
        let Made { refused, left, unmet } = &self.made;
        let waits = self.waits.then(|| {
            "another command of evenkeel changes the same settings: the worker waits for its end".to_owned()
        });
        let unmet = waits.or_else(|| unmet.clone());
        json!([{
            "name": name, "rules": self.options.rules, "changes": settings, "refused": refused, "left": left,
            "unmet": unmet,
        }])
    }

    fn exclude_sessions(&self) -> Result<Option<SocketName>, ApplyError> {
        let identity = InterfaceIdentity::current(self.index, &self.options.interface);
        let identity = identity.map_err(evenkeel_apply::KnobError::from)?;
        Ok(exclude_sessions(&self.state, &identity)?)
    }

    /// Undoes the changes, unless they stay, and reports the end.
    fn end(&mut self, end: &End<Change>, stream: &Stream) -> Result<Exit, Failure> {
        let (by, reason) = match end {
            End::ForeignChange(change @ Change::Foreign(_)) => (end.word(), Some(change.to_string())),
            End::ForeignChange(Change::Busy(reason)) => ("busy", Some(reason.clone())),
            End::ForeignChange(change) => ("device", Some(change.to_string())),
            End::Interrupted | End::Time | End::Terminated => (end.word(), None),
        };
        // The next worker continues with the changes that are in effect.
        let stays =
            matches!(end, End::ForeignChange(Change::Foreign(_) | Change::Device(_) | Change::Busy(_)));
        let (mut failed, mut kept) = (0, 0);
        if stays || self.options.at_end == AtEnd::Keep {
            kept = self.watch.entries().map_err(|error| failure(&error))?.len();
        } else {
            let journal = self.watch.journal().map_err(|error| failure(&error))?;
            failed = undo(&self.state, self.index, &self.options.interface, &journal)?;
        }
        stream.end(&json!({
            "ended": {"by": by, "device": self.options.interface, "reason": reason},
            "devices": [{"name": self.options.interface, "settings": {"failed": failed, "kept": kept}}],
        }))?;
        flush()?;
        if let Some(reason) = reason {
            return Err(Failure::new(Exit::Failed, reason));
        }
        Ok(if failed > 0 { Exit::Failed } else { Exit::Done })
    }
}

fn refusal(interface: &str, rule: &str, change: &change::Change, why: &str) -> String {
    format!("{} is not set to {}: {why} ({rule})", change.knob.on(interface), change.to)
}

/// Returns the value that the service set last; `None` if the journal has no exact value.
fn set_value(entry: &Entry) -> Option<String> {
    match entry.ours.last()? {
        Ours::These(values) => values.last().map(Value::to_string),
        _ => None,
    }
}

fn tune_options(options: &MaintainOptions) -> TuneOptions {
    TuneOptions {
        interface: options.interface.clone(),
        print: false,
        apply: Some(options.rules.clone()),
        further: Vec::new(),
        keep: None,
        persist: Vec::new(),
        watch: Duration::ZERO,
        no_watch: true,
        from: None,
        simulate: false,
        machine: None,
        speeds: Vec::new(),
        format: Format::Table,
    }
}

/// Undoes the changes in the journal of an interface. Waits for a session that is about to end. Returns the number of
/// settings that could not be restored.
fn undo(state: &StateDirectory, index: u32, name: &str, journal: &Path) -> Result<usize, Failure> {
    let deadline = Instant::now() + PATIENCE;
    let attempt = || {
        // A deleted interface has no sessions.
        let present = identity(name).filter(|found| found.index == index);
        let _sessions = present.map_or(Ok(None), |identity| exclude_sessions(state, &identity))?;
        revert_of_service(journal)
    };
    let contents = StateDirectory::read(journal).map_err(|error| failure(&error.into()))?;
    let entries = contents.map(|contents| contents.entries).unwrap_or_default();
    loop {
        match attempt() {
            Ok(outcome) => return tell(&outcome, &entries, name),
            Err(error) if is_busy(&error) && Instant::now() < deadline => std::thread::sleep(POLL),
            Err(error) => return Err(failure(&error)),
        }
    }
}

/// Reports the changes that were undone. Returns the number of settings that could not be restored.
fn tell(outcome: &RevertOutcome, entries: &[Entry], name: &str) -> Result<usize, Failure> {
    match outcome {
        RevertOutcome::Nothing | RevertOutcome::Void(_) => Ok(0),
        RevertOutcome::Unreadable(damaged) => Err(Failure::with_causes(Exit::Failed, damaged)),
        RevertOutcome::OtherNamespace { .. } => {
            let revert = printed_command("evenkeel revert {}", &[&name]);
            let message = format!(
                "the interface is in another network namespace: `{revert}` there restores its settings"
            );
            Err(Failure::new(Exit::Failed, message))
        }
        RevertOutcome::RolledBack(leftover) => {
            for (knob, value) in &leftover.report.restored {
                let entry = entries.iter().find(|entry| entry.knob == *knob);
                let before = entry.and_then(set_value).unwrap_or_else(|| "changed".to_owned());
                say(&format!("{}: {before} -> {value} (undone)", knob.on(name)));
            }
            leftover.report.remarks(name).iter().for_each(|remark| say(remark));
            Ok(leftover.report.failed.len())
        }
    }
}

/// Undoes the changes of earlier workers to this interface, and to interfaces that do not exist anymore.
fn undo_left(state: &StateDirectory, index: u32, name: &str) -> Result<Exit, Failure> {
    let mut failed = 0;
    for (journal, _) in journals_left(state, index).map_err(|error| failure(&error))? {
        failed += undo(state, index, name, &journal)?;
    }
    Ok(if failed > 0 { Exit::Failed } else { Exit::Done })
}

/// Returns the journals with changes of the service to this interface, or to interfaces that do not exist
/// anymore.
fn journals_left(
    state: &StateDirectory,
    index: u32,
) -> Result<Vec<(PathBuf, InterfaceIdentity)>, ApplyError> {
    let names = Sysfs::of_namespace().and_then(|sysfs| sysfs.list("class/net")).unwrap_or_default();
    let present: Vec<u32> = names.iter().filter_map(|name| Some(identity(name)?.index)).collect();
    service_journals(state, &|other| other == index || !present.contains(&other))
}

/// Returns the next step for changes of `tune` that a worker left in effect; `None` if there are no such
/// changes. Leaves out the journals of a running worker.
pub fn left(of: &Managed<'_>) -> Option<String> {
    let state = StateDirectory::from_environment();
    let mut reasons = lost(&state, of);
    let journals = if of.runs { Ok(Vec::new()) } else { journals_left(&state, of.index) };
    match journals {
        Ok(journals) if journals.is_empty() => {}
        // The reasons about a damaged, renamed or removed journal have their own instructions.
        Ok(_) if !reasons.is_empty() => {}
        Ok(journals) => {
            let name = |found: &InterfaceIdentity| match found.index == of.index {
                true => of.name.to_owned(),
                false => found.name.clone(),
            };
            let names: BTreeSet<String> = journals.iter().map(|(_, interface)| name(interface)).collect();
            let commands = names.iter().map(|name| printed_command("evenkeel revert {}", &[name]));
            let commands: Vec<String> = commands.map(|command| format!("`{command}`")).collect();
            let undo = if commands.len() == 1 { "undoes" } else { "undo" };
            let commands = commands.join(", ");
            reasons.push(format!("changes of tune are in effect: {commands} {undo} them"));
        }
        Err(error) => reasons.push(unknown(&error)),
    }
    Some(reasons.join("; ")).filter(|reasons| !reasons.is_empty())
}

fn unknown(error: &ApplyError) -> String {
    format!("cannot find out which changes of tune are in effect: {error}")
}

/// Returns the changes of the service that no command can undo as they are: their journal is damaged, renamed or removed.
fn lost(state: &StateDirectory, of: &Managed<'_>) -> Vec<String> {
    let damaged = damaged(Some(of.name)).into_iter().filter(Damaged::is_kept);
    let renamed =
        renamed(Some(of.name)).into_iter().filter(|renamed| renamed.header.kept && renamed.has_service);
    let mut reasons: Vec<String> = damaged
        .map(|damaged| damaged.to_string())
        .chain(renamed.map(|renamed| renamed.to_string()))
        .collect();
    let made = of.made.values().filter_map(|entry| serde_json::from_value::<Entry>(entry.clone()).ok());
    // A damaged or renamed journal has the changes.
    let made: Vec<Entry> = if reasons.is_empty() { made.collect() } else { Vec::new() };
    match unrecorded(state, of.index, of.name, &made) {
        Ok(lost) => reasons.extend(lost.into_iter().map(|change| {
            format!(
                "{} still has the value that tune set, and another program removed the journal; `{}` restores the value \
                 from before",
                change.knob.on(of.name),
                change.shell(of.name)
            )
        })),
        Err(error) => reasons.push(unknown(&error)),
    }
    reasons
}
