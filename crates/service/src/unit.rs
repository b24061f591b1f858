//! A worker that a rule wants for an interface: its state, its process, its log.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Kind;
use crate::course::Course;
use crate::effect::Effect;
use crate::log_limit::LogLimit;
use crate::status::{Phase, WorkerStatus, resume};
use crate::supervisor::{Entries, Managed, Outside, Priority};
use crate::worker::Worker;

pub(crate) struct Unit {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) kind: Kind,
    /// Number of the rule, from 0.
    pub(crate) rule: usize,
    /// Arguments of the worker; `None` if no rule wants the worker any more.
    pub(crate) wanted: Option<Vec<String>>,
    /// Whether the changes of `tune` stay when the service ends.
    pub(crate) keeps: bool,
    /// Whether the next worker of `tune` may overwrite values of other programs. True until a worker manages
    /// the interface, and again after [`Unit::retry`] or an end because the device changed.
    pub(crate) is_afresh: bool,
    /// Whether the other workers of the interface must end, because `tune` changes settings.
    pub(crate) needs_alone: bool,
    /// Whether a worker of `tune` was started while no other worker of the interface ran, since its last
    /// success.
    pub(crate) was_alone: bool,
    /// Whether the interface has left this network namespace.
    pub(crate) is_gone: bool,
    pub(crate) worker: Option<Worker>,
    /// `None` before the first start. Also `None` after [`Unit::retry`], and after a worker ended and the
    /// next start needs no pause, until the next step.
    pub(crate) phase: Option<Phase>,
    pub(crate) reason: Option<String>,
    since: Instant,
    pub(crate) again: Option<Instant>,
    pub(crate) course: Course,
    pub(crate) watches_effect: bool,
    pub(crate) effect: Effect,
    /// Why the service does not manage the interface: losses rose after a start.
    pub(crate) worse: Option<String>,
    /// Whether a worker has begun and has not reported that it restored its settings.
    pub(crate) may_be_changed: bool,
    /// Whether, since the last start of a worker, a session has restored all settings, or a process that only
    /// restores settings has ended or could not start.
    pub(crate) was_cleaned: bool,
    /// The settings that earlier workers left changed, with instructions.
    pub(crate) left: Option<String>,
    /// The journal entries of `tune`, to name its changes if another program removes the journal.
    pub(crate) made: Entries,
    pub(crate) starts: u64,
    pub(crate) devices: Option<Value>,
    /// Time of the worker's last status.
    pub(crate) heard: Instant,
    limit: LogLimit,
    /// The state and reason of the last log line.
    logged: Option<(Phase, Option<String>)>,
}

impl Unit {
    pub(crate) fn new(name: &str, index: u32, kind: Kind, now: Instant) -> Self {
        Self {
            name: name.to_owned(),
            index,
            kind,
            rule: 0,
            wanted: None,
            keeps: false,
            is_afresh: true,
            needs_alone: false,
            was_alone: false,
            is_gone: false,
            worker: None,
            phase: None,
            reason: None,
            since: now,
            again: None,
            course: Course::default(),
            watches_effect: true,
            effect: Effect::default(),
            worse: None,
            may_be_changed: false,
            was_cleaned: false,
            left: None,
            made: Entries::new(),
            starts: 0,
            devices: None,
            heard: now,
            limit: LogLimit::default(),
            logged: None,
        }
    }

    /// Writes a line to the log, unless the unit has reached its limit of lines.
    pub(crate) fn log(&mut self, outside: &dyn Outside, priority: Priority, now: Instant, text: &str) {
        let kind = match self.kind {
            Kind::Fair => String::new(),
            kind => format!("{}: ", kind.word()),
        };
        self.limit.log(outside, priority, now, &format!("{}: {kind}", self.name), text);
    }

    /// Enters a state. Logs the state if state or reason differs from the last log line.
    pub(crate) fn enter(
        &mut self,
        outside: &dyn Outside,
        now: Instant,
        phase: Phase,
        reason: Option<String>,
        again: Option<Duration>,
    ) {
        let before = self.phase.replace(phase);
        self.reason.clone_from(&reason);
        self.since = now;
        self.again = again.map(|pause| now + pause);
        match phase {
            // A worker that sends a status again has not started again.
            phase if phase.is_active() && before == Some(Phase::Silent) => {}
            phase if phase.is_active() => self.effect.begin(now),
            Phase::Silent => {}
            _ => {
                self.devices = None;
                self.effect.end();
            }
        }
        // A start has no log line: the next state has one.
        if phase == Phase::Starting || self.logged.as_ref() == Some(&(phase, reason.clone())) {
            return;
        }
        let before = self.logged.as_ref().map_or("not managed", |(phase, _)| phase.words());
        let process = match (&self.worker, phase) {
            (Some(worker), phase) if phase.is_active() => {
                format!(" (process {}, {})", worker.id(), shown(&worker.arguments))
            }
            _ => String::new(),
        };
        let why = reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        let then = match phase {
            Phase::GivenUp => format!("; `{}` tries again", resume(&self.name, outside.socket())),
            _ => again.map_or_else(String::new, |pause| format!("; next attempt in {} s", pause.as_secs())),
        };
        let priority = match phase {
            Phase::Waits | Phase::Refused | Phase::Silent => Priority::Warning,
            Phase::GivenUp => Priority::Error,
            _ => Priority::Info,
        };
        let text = format!("{before} -> {}{process}{why}{then}", phase.words());
        self.log(outside, priority, now, &text);
        self.logged = Some((phase, reason));
    }

    /// Enters the state of a worker that manages the interface. The reason lists the changes that the worker
    /// could not make, and the settings that earlier workers left changed.
    pub(crate) fn begin(&mut self, outside: &dyn Outside, now: Instant) {
        (self.is_afresh, self.needs_alone, self.was_alone) = (false, false, false);
        self.left = outside.left(&self.managed());
        self.enter(outside, now, Phase::of(self.kind), self.active_reason(), None);
    }

    /// Returns the changes that an active worker could not make, and the settings that earlier workers left
    /// changed; `None` if there are none.
    fn active_reason(&self) -> Option<String> {
        let device = self.devices.as_ref().and_then(|devices| devices.get(0));
        let unmet = device.and_then(|device| device.get("unmet")?.as_str()).map(str::to_owned);
        let reasons: Vec<String> = unmet.into_iter().chain(self.left_words()).collect();
        Some(reasons.join("; ")).filter(|reasons| !reasons.is_empty())
    }

    pub(crate) fn left_words(&self) -> Option<String> {
        self.left.as_ref().map(|left| format!("settings are not restored: {left}"))
    }

    pub(crate) fn managed(&self) -> Managed<'_> {
        let runs = self.worker.as_ref().is_some_and(|worker| !worker.cleans);
        Managed { kind: self.kind, index: self.index, name: &self.name, made: &self.made, runs }
    }

    /// Looks again for the settings that earlier workers left changed. The reason of a paused unit names
    /// them.
    pub(crate) fn look_for_left(&mut self, outside: &dyn Outside) {
        self.left = outside.left(&self.managed());
        if self.phase == Some(Phase::Paused) {
            self.reason = self.left_words();
        }
    }

    /// Stores the status of the worker's devices. Moves the journal's entries to `made`, because they do not
    /// belong to the status of the service.
    pub(crate) fn hear(&mut self, mut devices: Value, now: Instant) {
        let changes = devices.pointer_mut("/0/changes").and_then(Value::as_array_mut);
        for change in changes.into_iter().flatten().filter_map(Value::as_object_mut) {
            if let Some(entry) = change.remove("entry")
                && let Some(setting) = change.get("setting").and_then(Value::as_str)
            {
                self.made.insert(setting.to_owned(), entry);
            }
        }
        (self.devices, self.heard) = (Some(devices), now);
    }

    /// Updates the reason of a unit whose worker manages the interface, and logs a change of the reason.
    pub(crate) fn follow_reason(&mut self, outside: &dyn Outside, now: Instant) {
        let (phase, reason) = (self.phase, self.active_reason());
        if let Some(phase) = phase.filter(|phase| phase.is_active() && self.reason != reason) {
            let priority = if reason.is_some() { Priority::Warning } else { Priority::Info };
            let why = reason.as_deref().unwrap_or("the reason logged before no longer applies");
            self.log(outside, priority, now, &format!("{}: {why}", phase.words()));
            self.reason = reason;
        }
    }

    /// Returns whether a worker manages the interface, even if it is silent.
    pub(crate) fn is_at_work(&self) -> bool {
        self.phase.is_some_and(|phase| phase.is_active() || phase == Phase::Silent)
    }

    /// Sets an intermediate state that the log does not contain.
    pub(crate) fn show(&mut self, now: Instant, phase: Phase, reason: &str) {
        (self.phase, self.reason, self.since) = (Some(phase), Some(reason.to_owned()), now);
    }

    /// Clears the failures. A unit that waits, was refused, has given up or is paused starts again at once.
    pub(crate) fn retry(&mut self, now: Instant) {
        self.course.forget();
        self.worse = None;
        (self.is_afresh, self.was_alone) = (true, false);
        if matches!(self.phase, Some(Phase::Waits | Phase::Refused | Phase::GivenUp | Phase::Paused)) {
            (self.phase, self.again, self.since) = (None, None, now);
        }
    }

    pub(crate) fn status(&self, now: Instant) -> WorkerStatus {
        WorkerStatus {
            kind: self.kind,
            state: self.phase.unwrap_or(Phase::Starting),
            reason: self.reason.clone(),
            seconds: now.saturating_duration_since(self.since).as_secs_f64(),
            again_in_s: self.again.map(|again| again.saturating_duration_since(now).as_secs_f64()),
            process: self.worker.as_ref().map(Worker::id),
            starts: self.starts,
            options: self.wanted.clone().unwrap_or_default(),
            devices: self.devices.clone(),
        }
    }
}

fn shown(arguments: &[String]) -> String {
    if arguments.is_empty() { "default options".to_owned() } else { arguments.join(" ") }
}
