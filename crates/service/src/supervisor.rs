//! The supervisor: one loop that lists the interfaces, starts and ends workers, reads their output, and
//! answers clients.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command as Process, ExitStatus};
use std::time::{Duration, Instant};

use evenkeel_model::text::{excerpt, suggestion};
use evenkeel_netlink::NetlinkError;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};

use crate::configuration::Configuration;
use crate::control::{Command, Control, Request};
use crate::course::{Ending, Next};
use crate::effect::{Counts, tcp_counts};
use crate::interfaces::{Interface, Interfaces};
use crate::log_limit::LogLimit;
use crate::notify::Notifier;
use crate::status::{Phase, ServiceStatus, Unrestored};
use crate::unit::Unit;
use crate::worker::{Event, GUARDIAN_LIMIT, Worker, words};

const LIST_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the loop while a process is ending.
const SHORT: Duration = Duration::from_millis(20);
/// The service is ready after this time even if an interface is still starting.
const READY_LIMIT: Duration = Duration::from_secs(10);
/// Limits for the time since a worker's last status. A worker sends a status each second. It counts as
/// silent after the first limit, and the supervisor kills it after the second limit. The first limit
/// also applies to a worker that was asked to end.
const SILENT: Duration = Duration::from_secs(5);
const HUNG: Duration = Duration::from_secs(20);
/// Time limit for a worker to manage its interface, or to report the reason for waiting.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);
/// Time limit for all workers to end. It is longer than the limits of a worker and its guardian.
const END_LIMIT: Duration = Duration::from_secs(40);

/// Priorities of log lines (sd-daemon(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    Error = 3,
    Warning = 4,
    Info = 6,
}

/// The functions that the supervisor needs from its process.
pub trait Outside {
    /// Returns whether a signal asked the service to end.
    fn is_ended(&self) -> bool;
    /// Returns whether a signal asked for a reload since the last call.
    fn take_reload(&self) -> bool;
    /// Reads the configuration again. An error is returned as text.
    fn configuration(&self) -> Result<Configuration, String>;
    /// Returns the command of this binary. The supervisor adds the arguments of a worker.
    fn worker(&self) -> Process;
    /// Returns the settings that a dead worker of an interface left changed, with instructions. Returns
    /// `None` if no setting is left.
    fn left(&self, index: u32, name: &str) -> Option<String>;
    fn log(&self, priority: Priority, text: &str);
}

pub struct Supervisor<'a> {
    outside: &'a dyn Outside,
    configuration: Configuration,
    /// Name of the configuration file.
    origin: String,
    error: Option<String>,
    interfaces: Interfaces,
    units: BTreeMap<u32, Unit>,
    unmanaged: Vec<String>,
    /// Names of paused interfaces, including interfaces that do not exist at present.
    paused: BTreeSet<String>,
    all_paused: bool,
    /// Interfaces with settings that their workers left changed, by index.
    unsettled: BTreeMap<u32, Unrestored>,
    began: Instant,
    listed: Option<Instant>,
    fails_to_list: bool,
    fails_to_listen: bool,
    ending: Option<Instant>,
    is_ready: bool,
    notifier: Notifier,
    limit: LogLimit,
}

impl<'a> Supervisor<'a> {
    pub fn new(
        outside: &'a dyn Outside,
        configuration: Configuration,
        origin: String,
        notifier: Notifier,
    ) -> Result<Self, NetlinkError> {
        Ok(Self {
            outside,
            configuration,
            origin,
            error: None,
            interfaces: Interfaces::open()?,
            units: BTreeMap::new(),
            unmanaged: Vec::new(),
            paused: BTreeSet::new(),
            all_paused: false,
            unsettled: BTreeMap::new(),
            began: Instant::now(),
            listed: None,
            fails_to_list: false,
            fails_to_listen: false,
            ending: None,
            is_ready: false,
            notifier,
            limit: LogLimit::default(),
        })
    }

    /// Runs until a signal asks for the end and all workers have restored their settings. Returns the
    /// interfaces whose workers did not end in time or failed to restore a setting.
    ///
    /// The calling thread must live as long as the process: the kernel ends the workers when the thread
    /// ends.
    pub fn run(mut self, mut control: Control) -> Result<Vec<String>, NetlinkError> {
        loop {
            let now = Instant::now();
            self.notifier.feed(now);
            if self.ending.is_none() && self.outside.is_ended() {
                self.ending = Some(now);
                self.notifier.stopping();
            }
            if self.outside.take_reload() {
                // Ignore the error: `reload` logs it, and the status has it.
                let _ = self.reload(now);
            }
            // List the interfaces again after the end of a worker: its interface may be gone.
            let has_ended = self.read_workers(now);
            let is_due = self.listed.is_none_or(|listed| now.duration_since(listed) >= LIST_INTERVAL);
            if is_due || has_ended {
                self.list(now)?;
                self.restore(&mut control);
            }
            self.conclude_workers(now);
            let indices: Vec<u32> = self.units.keys().copied().collect();
            for index in indices {
                self.reconcile(index, now);
            }
            control.step(now, |request| self.answer(&request, now));
            self.report(now);
            if let Some(ending) = self.ending {
                let is_late = now.duration_since(ending) >= END_LIMIT;
                if is_late || self.units.values().all(|unit| unit.worker.is_none()) {
                    self.forget_restored();
                    let late = self.units.values().filter(|unit| unit.worker.is_some());
                    let names = self.unsettled.values().map(|left| left.name.clone());
                    let names: BTreeSet<String> = names.chain(late.map(|unit| unit.name.clone())).collect();
                    return Ok(names.into_iter().collect());
                }
            }
            self.wait(&control);
        }
    }

    fn wait(&self, control: &Control) {
        let now = Instant::now();
        let mut limit = LIST_INTERVAL;
        limit = limit.min(self.notifier.interval().map_or(limit, |interval| interval / 2));
        for unit in self.units.values() {
            if let Some(worker) = &unit.worker
                && (worker.is_ending() || worker.is_asked())
            {
                limit = limit.min(SHORT);
            }
            if let Some(again) = unit.again.filter(|_| self.ending.is_none()) {
                limit = limit.min(again.saturating_duration_since(now));
            }
        }
        let mut watched: Vec<PollFd<'_>> = control
            .descriptors()
            .map(|(descriptor, wanted)| PollFd::new(descriptor, wanted))
            .chain(
                self.units
                    .values()
                    .filter_map(|unit| unit.worker.as_ref())
                    .flat_map(Worker::descriptors)
                    .map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN)),
            )
            .collect();
        // Round up, so that the loop does not spin for a timer that is nearly due. Ignore EINTR: the
        // loop checks the signals.
        let limit = limit + Duration::from_millis(1);
        let _ = poll(&mut watched, PollTimeout::try_from(limit).unwrap_or(PollTimeout::ZERO));
    }

    /// Lists the interfaces, and assigns them to rules. After the first listing, the supervisor only
    /// logs an error: the kernel may refuse a request if memory is short.
    fn list(&mut self, now: Instant) -> Result<(), NetlinkError> {
        let is_first = !self.is_ready && self.units.is_empty();
        self.listed = Some(now);
        match self.interfaces.list() {
            Ok(found) => {
                self.assign(&found, now);
                self.judge(now);
                self.forget_restored();
                self.fails_to_list = false;
            }
            Err(error) if is_first => return Err(error),
            Err(error) => {
                if !std::mem::replace(&mut self.fails_to_list, true) {
                    self.log(Priority::Warning, now, &format!("cannot list the interfaces: {error}"));
                }
            }
        }
        Ok(())
    }

    /// Listens again if another program removed the control socket. Logs only the first of several
    /// errors.
    fn restore(&mut self, control: &mut Control) {
        let restored = control.restore();
        let had_failed = std::mem::replace(&mut self.fails_to_listen, restored.is_err());
        match restored {
            Ok(true) => {
                let text = "another program removed the control socket; the service created it again";
                self.outside.log(Priority::Warning, text);
            }
            Err(error) if !had_failed => {
                let text = format!("another program removed the control socket: {error}");
                self.outside.log(Priority::Warning, &text);
            }
            Ok(false) | Err(_) => {}
        }
    }

    fn assign(&mut self, found: &[Interface], now: Instant) {
        self.unmanaged.clear();
        for unit in self.units.values_mut() {
            unit.is_gone = found.iter().all(|interface| interface.index != unit.index);
            if unit.is_gone {
                unit.wanted = None;
            }
        }
        for interface in found {
            let rule = self.configuration.rule_of(interface);
            let managed =
                rule.and_then(|(number, rule)| Some((number, rule.fair.as_ref()?, rule.watch_effect)));
            let Some((number, options, watch_effect)) = managed else {
                self.unmanaged.push(interface.name.clone());
                if let Some(unit) = self.units.get_mut(&interface.index) {
                    unit.name.clone_from(&interface.name);
                    unit.wanted = None;
                }
                continue;
            };
            let unit = self
                .units
                .entry(interface.index)
                .or_insert_with(|| Unit::new(&interface.name, interface.index, now));
            if unit.name != interface.name {
                unit.log(self.outside, Priority::Info, now, &format!("called {} now", interface.name));
                if self.paused.remove(&unit.name) {
                    self.paused.insert(interface.name.clone());
                }
                unit.name.clone_from(&interface.name);
                unit.retry(now);
            }
            if unit.wanted.as_ref() != Some(options) {
                unit.wanted = Some(options.clone());
                unit.retry(now);
            }
            unit.rule = number;
            unit.watches_effect = watch_effect;
        }
    }

    /// Removes entries whose settings are restored.
    fn forget_restored(&mut self) {
        self.unsettled.retain(|index, left| match self.outside.left(*index, &left.name) {
            Some(reason) => {
                left.reason = reason;
                true
            }
            None => false,
        });
    }

    fn judge(&mut self, now: Instant) {
        let table = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap_or_default();
        let (segments, retransmitted) = tcp_counts(&table).unwrap_or_default();
        for unit in self.units.values_mut() {
            let (packets, dropped) = self.interfaces.packets(&unit.name);
            let worse = unit.effect.sample(now, Counts { segments, retransmitted, packets, dropped });
            if let Some(reason) = worse.filter(|_| unit.watches_effect) {
                unit.worse = Some(reason);
            }
        }
    }

    /// Reads the output of the workers. Returns whether a worker has ended.
    fn read_workers(&mut self, now: Instant) -> bool {
        let mut has_ended = false;
        for unit in self.units.values_mut() {
            let Some(worker) = &mut unit.worker else { continue };
            let (said, events) = worker.read(now);
            has_ended |= worker.ended(now).is_some();
            let is_asked = worker.is_asked() || worker.cleans;
            for line in said {
                // The supervisor logs the start itself.
                if !line.starts_with("managed now;") {
                    let own = format!("{}: ", unit.name);
                    let line = line.strip_prefix(&own).unwrap_or(&line);
                    unit.log(self.outside, Priority::Info, now, line);
                    // The line is the reason for waiting, for example a file.
                    if unit.phase == Some(Phase::Starting) {
                        unit.reason = Some(line.to_owned());
                    }
                }
            }
            for event in events {
                match event {
                    Event::Started(devices) if !is_asked => {
                        unit.enter(self.outside, now, Phase::Fair, None, None);
                        (unit.devices, unit.heard) = (Some(devices), now);
                    }
                    Event::Status(devices) if matches!(unit.phase, Some(Phase::Fair | Phase::Silent)) => {
                        if unit.phase == Some(Phase::Silent) {
                            unit.enter(self.outside, now, Phase::Fair, None, None);
                        }
                        (unit.devices, unit.heard) = (Some(devices), now);
                    }
                    // A remark is also on standard error.
                    Event::Started(_) | Event::Status(_) | Event::Remark(_) | Event::Ended { .. } => {}
                }
            }
            watch_worker(self.outside, unit, now);
        }
        has_ended
    }

    fn conclude_workers(&mut self, now: Instant) {
        for unit in self.units.values_mut() {
            let Some(status) = unit.worker.as_ref().and_then(|worker| worker.ended(now)) else { continue };
            let Some(worker) = unit.worker.take() else { continue };
            if worker.is_settled == Some(true) {
                (unit.may_be_changed, unit.left) = (false, None);
            }
            if worker.cleans {
                unit.was_cleaned = true;
                (unit.phase, unit.again) = (None, None);
                continue;
            }
            if worker.is_asked() || self.ending.is_some() {
                // The worker's message names the setting that could not be restored.
                if ![Some(0), Some(130)].contains(&status.code()) {
                    let why = worker.error.clone().unwrap_or_else(|| words(status));
                    unit.log(self.outside, Priority::Warning, now, &why);
                }
                (unit.phase, unit.again) = (None, None);
                continue;
            }
            let queues = self.interfaces.queues(&unit.name);
            let has_changed = worker.name != unit.name || worker.queues != queues;
            let (ending, reason) = ending(&worker, status, has_changed);
            let ran = now.saturating_duration_since(worker.began);
            // An interface that is gone has no rule. The supervisor removes its unit, too.
            match unit.course.next(&ending, ran, now) {
                _ if unit.wanted.is_none() => {
                    unit.log(self.outside, Priority::Warning, now, &reason);
                    (unit.phase, unit.again) = (None, None);
                }
                Next::GiveUp => unit.enter(self.outside, now, Phase::GivenUp, Some(reason), None),
                Next::After(pause) => {
                    let phase = if ending == Ending::Refused { Phase::Refused } else { Phase::Waits };
                    unit.enter(self.outside, now, phase, Some(reason), Some(pause));
                }
            }
        }
    }

    /// Starts or ends the worker of an interface, as required by its rule and the operators.
    fn reconcile(&mut self, index: u32, now: Instant) {
        let Some(unit) = self.units.get_mut(&index) else { return };
        let is_paused = self.all_paused || self.paused.contains(&unit.name);
        let is_left = is_paused || unit.worse.is_some();
        let wanted = unit.wanted.clone().filter(|_| !is_left && self.ending.is_none());
        if let Some(worker) = &mut unit.worker {
            // If the interface is gone, its worker ends by itself. If the interface was moved, the
            // worker prints instructions.
            if worker.cleans || (unit.is_gone && self.ending.is_none()) {
                return;
            }
            // A worker with other arguments must end first. The arguments contain the interface's name.
            if wanted.as_ref() != Some(&worker.arguments) && !worker.is_asked() && !worker.is_ending() {
                // A silent worker may not respond to SIGTERM.
                if unit.phase == Some(Phase::Silent) {
                    worker.kill(now)
                } else {
                    worker.ask(now)
                }
                let reason = unit
                    .worse
                    .clone()
                    .or_else(|| Some(format!("the worker (process {}) restores the settings", worker.id())));
                unit.enter(self.outside, now, Phase::Stopping, reason, None);
            }
            return;
        }
        if unit.may_be_changed && wanted.is_none() {
            unit.left = self.outside.left(index, &unit.name);
            unit.may_be_changed = unit.left.is_some() && !unit.was_cleaned;
            if unit.may_be_changed {
                self.clean(index, now);
                return;
            }
            if let Some(left) = unit.left.clone() {
                let text = format!("settings are not restored: {left}");
                unit.log(self.outside, Priority::Error, now, &text);
                self.unsettled.insert(index, Unrestored { name: unit.name.clone(), reason: left });
            }
        }
        if unit.wanted.is_none() {
            if unit.phase.is_some() || unit.starts > 0 {
                unit.log(self.outside, Priority::Info, now, "no longer managed");
            }
            self.units.remove(&index);
            return;
        }
        if self.ending.is_some() {
            return;
        }
        if is_paused {
            if unit.phase != Some(Phase::Paused) {
                let reason = unit.left.as_ref().map(|left| format!("settings are not restored: {left}"));
                unit.enter(self.outside, now, Phase::Paused, reason, None);
            }
            return;
        }
        if let Some(reason) = unit.worse.clone() {
            if unit.phase != Some(Phase::GivenUp) {
                unit.enter(self.outside, now, Phase::GivenUp, Some(reason), None);
            }
            return;
        }
        let is_due = match unit.phase {
            None | Some(Phase::Paused) => true,
            Some(_) => unit.again.is_some_and(|again| again <= now),
        };
        if let Some(arguments) = wanted.filter(|_| is_due) {
            self.start(index, &arguments, now);
        }
    }

    fn start(&mut self, index: u32, arguments: &[String], now: Instant) {
        let Some(unit) = self.units.get_mut(&index) else { return };
        let queues = self.interfaces.queues(&unit.name);
        unit.starts += 1;
        (unit.may_be_changed, unit.was_cleaned, unit.left) = (true, false, None);
        self.unsettled.remove(&index);
        match Worker::start(self.outside.worker(), &unit.name, arguments, queues, now) {
            Ok(worker) => {
                unit.worker = Some(worker);
                unit.enter(self.outside, now, Phase::Starting, None, None);
            }
            Err(error) => {
                let reason = format!("cannot start a worker: {error}");
                let (phase, pause) = match unit.course.next(&Ending::Failed, Duration::ZERO, now) {
                    Next::After(pause) => (Phase::Waits, Some(pause)),
                    Next::GiveUp => (Phase::GivenUp, None),
                };
                unit.enter(self.outside, now, phase, Some(reason), pause);
            }
        }
    }

    /// Restores the settings that a worker left. It starts a short session, which restores the settings
    /// first, even if the session is then refused. `revert` would also undo `tune`.
    fn clean(&mut self, index: u32, now: Instant) {
        let Some(unit) = self.units.get_mut(&index) else { return };
        let arguments = ["--for=1ms".to_owned()];
        match Worker::start(self.outside.worker(), &unit.name, &arguments, None, now) {
            Ok(mut worker) => {
                worker.cleans = true;
                unit.worker = Some(worker);
                unit.show(
                    now,
                    Phase::Stopping,
                    "a new session restores the settings that the last worker left changed",
                );
            }
            // The next iteration of the loop reports the settings that are left.
            Err(error) => {
                unit.was_cleaned = true;
                unit.log(self.outside, Priority::Error, now, &format!("cannot start a worker: {error}"));
            }
        }
    }

    /// Writes a log line about the service itself, unless the limit is reached.
    fn log(&mut self, priority: Priority, now: Instant, text: &str) {
        self.limit.log(self.outside, priority, now, "", text);
    }

    fn reload(&mut self, now: Instant) -> Result<(), String> {
        self.notifier.reloading();
        let read = self.outside.configuration();
        let result = match read {
            Ok(configuration) => {
                let old = &self.configuration;
                if (&configuration.socket, &configuration.group) != (&old.socket, &old.group) {
                    let text = "a new socket or group takes effect only after a restart of the service";
                    self.log(Priority::Warning, now, text);
                }
                self.configuration = configuration;
                self.error = None;
                self.log(Priority::Info, now, &format!("read {} again", self.origin));
                self.listed = None;
                for unit in self.units.values_mut() {
                    if unit.phase == Some(Phase::Refused) {
                        unit.retry(now);
                    }
                }
                Ok(())
            }
            Err(error) => {
                let text = format!("{error}; the previous configuration stays in force");
                self.log(Priority::Error, now, &text);
                self.error = Some(error.clone());
                Err(error)
            }
        };
        self.notifier.ready();
        result
    }

    fn answer(&mut self, request: &Request, now: Instant) -> Value {
        match request.command {
            Command::Status => serde_json::to_value(self.status(now)).unwrap_or_default(),
            Command::Reload => match self.reload(now) {
                Ok(()) => json!({"done": self.origin}),
                Err(error) => json!({"error": error}),
            },
            Command::Pause | Command::Resume => {
                let is_pause = request.command == Command::Pause;
                match self.set_paused(request.interface.as_deref(), is_pause, now) {
                    Ok(names) => json!({"done": names}),
                    Err(error) => json!({"error": error}),
                }
            }
        }
    }

    /// Pauses or resumes one interface or all interfaces. Returns their names.
    fn set_paused(&mut self, name: Option<&str>, pause: bool, now: Instant) -> Result<Vec<String>, String> {
        let names: Vec<String> = self.units.values().map(|unit| unit.name.clone()).collect();
        let Some(name) = name else {
            self.all_paused = pause;
            if !pause {
                self.paused.clear();
                self.units.values_mut().for_each(|unit| unit.retry(now));
            }
            return Ok(names);
        };
        if !names.iter().any(|known| known == name) {
            let hint = suggestion(name, names.iter().map(String::as_str));
            return Err(format!("the service manages no interface '{}'; {hint}", excerpt(name)));
        }
        if pause {
            self.paused.insert(name.to_owned());
            return Ok(vec![name.to_owned()]);
        }
        // After `pause` without a name, `resume NAME` keeps the other interfaces paused.
        if std::mem::take(&mut self.all_paused) {
            self.paused.extend(names.iter().cloned());
        }
        self.paused.remove(name);
        for unit in self.units.values_mut().filter(|unit| unit.name == name) {
            unit.retry(now);
        }
        Ok(vec![name.to_owned()])
    }

    fn status(&self, now: Instant) -> ServiceStatus {
        ServiceStatus {
            schema: ServiceStatus::SCHEMA,
            process: std::process::id(),
            seconds: now.saturating_duration_since(self.began).as_secs_f64(),
            configuration: self.origin.clone(),
            error: self.error.clone(),
            interfaces: self
                .units
                .values()
                .map(|unit| unit.status(now, self.all_paused || self.paused.contains(&unit.name)))
                .collect(),
            unmanaged: self.unmanaged.clone(),
            // List only interfaces without a unit: a unit has the reason in its own state.
            unrestored: self
                .unsettled
                .iter()
                .filter(|(index, _)| !self.units.contains_key(index))
                .map(|(_, left)| left.clone())
                .collect(),
        }
    }

    fn report(&mut self, now: Instant) {
        let status = self.status(now);
        let is_starting = status.interfaces.iter().any(|interface| interface.state == Phase::Starting);
        if !self.is_ready && (!is_starting || now.duration_since(self.began) >= READY_LIMIT) {
            self.is_ready = true;
            self.notifier.status(&status.answer());
            self.notifier.ready();
            self.outside.log(Priority::Info, &format!("ready: {}", status.answer()));
        }
        // While the service ends, a unit without a worker has no state, so send no status.
        if self.ending.is_none() {
            self.notifier.status(&status.answer());
        }
    }
}

/// Updates the state of a unit whose guardian is restoring settings after the worker's end, or whose
/// worker is silent. Kills a worker that stays silent, because it may have stopped or hang.
fn watch_worker(outside: &dyn Outside, unit: &mut Unit, now: Instant) {
    let Some(worker) = unit.worker.as_mut().filter(|worker| !worker.cleans) else { return };
    if worker.is_late(SILENT, now) {
        worker.kill(now);
        let (process, limit) = (worker.id(), SILENT.as_secs());
        let reason = format!(
            "the worker (process {process}) did not end within {limit} s; it is killed, and its guardian restores the \
             settings, which may take {} s",
            GUARDIAN_LIMIT.as_secs()
        );
        unit.enter(outside, now, Phase::Stopping, Some(reason), None);
    }
    let Some(worker) = unit.worker.as_mut().filter(|worker| !worker.is_asked()) else { return };
    if unit.phase == Some(Phase::Starting) && unit.reason.is_none() && !worker.is_ending() {
        if now.saturating_duration_since(worker.began) >= BEGIN_LIMIT {
            worker.kill(now);
            let (process, limit) = (worker.id(), BEGIN_LIMIT.as_secs());
            let reason =
                format!("the worker (process {process}) did not begin within {limit} s; it is killed");
            unit.enter(outside, now, Phase::Stopping, Some(reason), None);
        }
        return;
    }
    if !matches!(unit.phase, Some(Phase::Fair | Phase::Silent)) {
        return;
    }
    if worker.is_ending() {
        unit.show(now, Phase::Stopping, "the worker has ended, and its guardian restores the settings");
        return;
    }
    let silence = now.saturating_duration_since(unit.heard);
    if silence >= HUNG {
        // The worker has exceeded its time limit.
        worker.kill(now);
        let reason =
            format!("the worker sent no status for {} s; the service kills the worker", silence.as_secs());
        unit.enter(outside, now, Phase::Stopping, Some(reason), None);
    } else if silence >= SILENT && unit.phase == Some(Phase::Fair) {
        let reason =
            format!("the worker (process {}) has sent no status for {} s", worker.id(), SILENT.as_secs());
        unit.enter(outside, now, Phase::Silent, Some(reason), None);
    }
}

/// Returns why a worker ended, and the reason as text.
fn ending(worker: &Worker, status: ExitStatus, has_changed: bool) -> (Ending, String) {
    if let Some(reason) = &worker.foreign {
        let ending = if has_changed { Ending::Device } else { Ending::Foreign(reason.clone()) };
        return (ending, reason.clone());
    }
    let reason = worker.error.clone().unwrap_or_else(|| words(status));
    match status.code() {
        Some(2 | 3) => (Ending::Refused, reason),
        _ => (Ending::Failed, reason),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::RefCell;

    use super::*;

    /// Starts workers that hang, and keeps the log.
    #[derive(Default)]
    struct Hanging(RefCell<Vec<String>>);

    impl Outside for Hanging {
        fn is_ended(&self) -> bool {
            false
        }

        fn take_reload(&self) -> bool {
            false
        }

        fn configuration(&self) -> Result<Configuration, String> {
            Err("not read".to_owned())
        }

        fn worker(&self) -> Process {
            let mut shell = Process::new("sh");
            shell.args(["-c", "exec sleep 300"]);
            shell
        }

        fn left(&self, _index: u32, _name: &str) -> Option<String> {
            None
        }

        fn log(&self, _priority: Priority, text: &str) {
            self.0.borrow_mut().push(text.to_owned());
        }
    }

    /// Returns the state of an interface whose worker has hung since its start, and whether the service
    /// has asked the worker to end.
    fn hung_at_start(waits_for: Option<&str>, seconds: u64) -> (Option<Phase>, bool) {
        let (outside, began) = (Hanging::default(), Instant::now());
        let mut unit = Unit::new("evk0", 1, began);
        unit.worker = Some(Worker::start(outside.worker(), "evk0", &[], None, began).unwrap());
        unit.enter(&outside, began, Phase::Starting, None, None);
        unit.reason = waits_for.map(str::to_owned);
        watch_worker(&outside, &mut unit, began + Duration::from_secs(seconds));
        let worker = unit.worker.as_mut().unwrap();
        let is_asked = worker.is_asked();
        assert_eq!(
            is_asked,
            outside.0.borrow().iter().any(|line| line.contains("did not begin within 60 s"))
        );
        worker.kill(began);
        while worker.ended(began + Duration::from_secs(600)).is_none() {
            worker.read(began);
            std::thread::sleep(SHORT);
        }
        (unit.phase, is_asked)
    }

    #[test]
    fn a_worker_that_hangs_before_it_manages_is_killed() {
        assert_eq!(hung_at_start(None, 59), (Some(Phase::Starting), false));
        assert_eq!(hung_at_start(None, 60), (Some(Phase::Stopping), true));
        assert_eq!(hung_at_start(Some("waits for flows.txt"), 600), (Some(Phase::Starting), false));
    }
}
