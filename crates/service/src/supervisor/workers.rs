//! Reads the output of the workers, and decides the next step after a worker has ended.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use super::{Outside, Priority, Supervisor};
use crate::Kind;
use crate::course::{Ending, Next};
use crate::effect::{Counts, tcp_counts};
use crate::status::Phase;
use crate::unit::Unit;
use crate::worker::{Event, GUARDIAN_LIMIT, Worker, words};

/// Times without a status after which the service shows a worker as silent, and kills it. A worker sends a
/// status each second. A worker that got SIGTERM is killed after the shorter time.
const SILENT: Duration = Duration::from_secs(5);
const HUNG: Duration = Duration::from_secs(20);
/// Reasons for the end of a `tune` worker: a session manages the interface, or the interface has changed.
const BUSY: &str = "busy";
const DEVICE: &str = "device";
/// Time in which a worker must begin to manage its interface, or report what it waits for.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);
impl Supervisor<'_> {
    /// Notes the reason for each unit whose counters got worse after its worker began, if the unit watches
    /// the effect.
    pub(super) fn judge(&mut self, now: Instant) {
        let table = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap_or_default();
        let segments = tcp_counts(&table);
        for unit in self.units.values_mut() {
            let packets = self.interfaces.packets(&unit.name, unit.kind);
            let worse = unit.effect.sample(now, Counts { segments, packets });
            if let Some(what) = unit.effect.unread().filter(|_| unit.watches_effect) {
                let text = format!("cannot read the counters of {what}, and does not watch them");
                unit.log(self.outside, Priority::Warning, now, &text);
            }
            if let Some(reason) = worse.filter(|_| unit.watches_effect) {
                unit.worse = Some(format!("{reason} after {} began", unit.kind.word()));
            }
        }
    }

    /// Reads the output of the workers. Returns whether a worker has ended.
    pub(super) fn read_workers(&mut self, now: Instant) -> bool {
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
                    // For example, the line names a file that the worker waits for.
                    if unit.phase == Some(Phase::Starting) {
                        unit.reason = Some(line.to_owned());
                    }
                }
            }
            for event in events {
                match event {
                    Event::Started(devices) if !is_asked => {
                        unit.hear(devices, now);
                        unit.begin(self.outside, now);
                    }
                    Event::Status(devices) if unit.is_at_work() => {
                        unit.hear(devices, now);
                        if unit.phase == Some(Phase::Silent) {
                            unit.begin(self.outside, now);
                        }
                        unit.follow_reason(self.outside, now);
                    }
                    // Remarks are on standard error, too.
                    Event::Started(_) | Event::Status(_) | Event::Remark(_) | Event::Ended { .. } => {}
                }
            }
            watch_worker(self.outside, unit, now);
        }
        has_ended
    }

    /// Decides the next step after the end of each worker.
    pub(super) fn conclude_workers(&mut self, now: Instant) {
        let sessions = self.units.values().filter(|unit| unit.kind != Kind::Tune && unit.worker.is_some());
        let with_sessions: Vec<u32> = sessions.map(|unit| unit.index).collect();
        for unit in self.units.values_mut() {
            let Some(status) = unit.worker.as_ref().and_then(|worker| worker.ended(now)) else { continue };
            let Some(worker) = unit.worker.take() else { continue };
            if worker.is_settled == Some(true) {
                // The worker restores nothing from a journal that another program has damaged or moved.
                unit.left = self.outside.left(&unit.managed());
                unit.may_be_changed = unit.left.is_some();
                // A session restores the settings of dead sessions when it begins.
                unit.was_cleaned = unit.kind != Kind::Tune;
                if unit.left.is_none() {
                    unit.made.clear();
                }
            }
            if worker.cleans {
                unit.was_cleaned = true;
                (unit.phase, unit.again, unit.needs_alone) = (None, None, false);
                continue;
            }
            if worker.is_asked() || self.ending.is_some() {
                // The worker's message names the setting that it could not restore.
                if ![Some(0), Some(130)].contains(&status.code()) {
                    let why = worker.error.clone().unwrap_or_else(|| words(status));
                    unit.log(self.outside, Priority::Warning, now, &why);
                }
                (unit.phase, unit.again, unit.needs_alone) = (None, None, false);
                continue;
            }
            let is_busy = worker.by.as_deref() == Some(BUSY);
            if is_busy && with_sessions.contains(&unit.index) && !unit.was_alone && unit.wanted.is_some() {
                unit.log(
                    self.outside,
                    Priority::Info,
                    now,
                    "its changes need the interface alone: the other workers end, and start again",
                );
                (unit.phase, unit.again, unit.needs_alone) = (None, None, true);
                continue;
            }
            unit.needs_alone = false;
            let queues = self.interfaces.queues(&unit.name);
            // `tune` changes the number of queues itself.
            let has_changed = match unit.kind {
                Kind::Tune => worker.by.as_deref() == Some(DEVICE),
                Kind::Fair | Kind::Steer => worker.name != unit.name || worker.queues != queues,
            };
            let (ending, reason) = ending(&worker, status, has_changed);
            // The device has changed: the next worker starts from its present settings.
            unit.is_afresh |= ending == Ending::Device;
            let ran = now.saturating_duration_since(worker.began);
            // If no rule wants this unit, for example because the interface was removed, do not restart the
            // worker: the next reconciliation removes the unit.
            match unit.course.next(&ending, ran, now) {
                _ if unit.wanted.is_none() => {
                    unit.log(self.outside, Priority::Warning, now, &reason);
                    (unit.phase, unit.again) = (None, None);
                }
                // `tune` leaves the setting to the other program at once.
                Next::After(_) if unit.kind == Kind::Tune && matches!(ending, Ending::Foreign(_)) => {
                    unit.enter(self.outside, now, Phase::GivenUp, Some(reason), None);
                }
                Next::GiveUp => unit.enter(self.outside, now, Phase::GivenUp, Some(reason), None),
                Next::After(pause) => {
                    let phase = if ending == Ending::Refused { Phase::Refused } else { Phase::Waits };
                    unit.enter(self.outside, now, phase, Some(reason), Some(pause));
                }
            }
        }
    }
}

/// Shows that a worker has ended while its guardian restores the settings, or that a worker is silent. Kills
/// a worker that exceeds a time limit, because it may hang.
fn watch_worker(outside: &dyn Outside, unit: &mut Unit, now: Instant) {
    let Some(worker) = unit.worker.as_mut().filter(|worker| !worker.cleans) else { return };
    if worker.is_late(SILENT, now) {
        worker.kill(now);
        let (process, limit) = (worker.id(), SILENT.as_secs());
        let mut reason = format!("the worker (process {process}) did not end within {limit} s; it is killed");
        if unit.kind != Kind::Tune {
            let limit = GUARDIAN_LIMIT.as_secs();
            reason += &format!(", and its guardian restores the settings, which may take {limit} s");
        }
        unit.enter(outside, now, Phase::Stopping, Some(reason), None);
    }
    let is_at_work = unit.is_at_work();
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
    if !is_at_work {
        return;
    }
    if worker.is_ending() {
        // A worker of `tune` has no guardian.
        let text = match unit.kind {
            Kind::Tune => "the worker has ended",
            _ => "the worker has ended, and its guardian restores the settings",
        };
        unit.show(now, Phase::Stopping, text);
        return;
    }
    let silence = now.saturating_duration_since(unit.heard);
    if silence >= HUNG {
        worker.kill(now);
        let reason =
            format!("the worker sent no status for {} s; the service kills the worker", silence.as_secs());
        unit.enter(outside, now, Phase::Stopping, Some(reason), None);
    } else if silence >= SILENT && unit.phase != Some(Phase::Silent) {
        let reason =
            format!("the worker (process {}) has sent no status for {} s", worker.id(), SILENT.as_secs());
        unit.enter(outside, now, Phase::Silent, Some(reason), None);
    }
}

/// Returns the kind of the end of a worker, and the reason in words.
fn ending(worker: &Worker, status: ExitStatus, has_changed: bool) -> (Ending, String) {
    if let Some(reason) = &worker.foreign {
        let ending = if has_changed { Ending::Device } else { Ending::Foreign(reason.clone()) };
        return (ending, reason.clone());
    }
    let reason = worker.error.clone().unwrap_or_else(|| words(status));
    if has_changed && worker.by.as_deref() == Some(DEVICE) {
        return (Ending::Device, reason);
    }
    match status.code() {
        Some(2 | 3) => (Ending::Refused, reason),
        _ => (Ending::Failed, reason),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::RefCell;
    use std::path::Path;
    use std::process::Command as Process;

    use super::*;
    use crate::Configuration;

    const SHORT: Duration = Duration::from_millis(20);

    /// Starts workers that hang, and keeps the log lines.
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

        fn socket(&self) -> &Path {
            Path::new(crate::DEFAULT_SOCKET)
        }

        fn worker(&self) -> Process {
            let mut shell = Process::new("sh");
            shell.args(["-c", "exec sleep 300"]);
            shell
        }

        fn left(&self, _of: &super::super::Managed<'_>) -> Option<String> {
            None
        }

        fn log(&self, _priority: Priority, text: &str) {
            self.0.borrow_mut().push(text.to_owned());
        }
    }

    /// Returns the phase of a unit whose worker has hung for `seconds` since its start, and whether the
    /// service has asked the worker to end.
    fn hung_at_start(waits_for: Option<&str>, seconds: u64) -> (Option<Phase>, bool) {
        let (outside, began) = (Hanging::default(), Instant::now());
        let mut unit = Unit::new("evk0", 1, Kind::Fair, began);
        unit.worker =
            Some(Worker::start(outside.worker(), Kind::Fair, "evk0", &[], &[], None, began).unwrap());
        unit.enter(&outside, began, Phase::Starting, None, None);
        unit.reason = waits_for.map(str::to_owned);
        watch_worker(&outside, &mut unit, began + Duration::from_secs(seconds));
        let worker = unit.worker.as_mut().unwrap();
        let is_asked = worker.is_asked();
        assert_eq!(
            is_asked,
            outside.0.borrow().iter().any(|line| line.contains("did not begin within 60 s"))
        );
        kill(worker, began);
        (unit.phase, is_asked)
    }

    fn kill(worker: &mut Worker, began: Instant) {
        worker.kill(began);
        while worker.ended(began + Duration::from_secs(600)).is_none() {
            worker.read(began);
            std::thread::sleep(SHORT);
        }
    }

    #[test]
    fn only_a_session_has_a_guardian() {
        for (kind, has_guardian) in [(Kind::Fair, true), (Kind::Steer, true), (Kind::Tune, false)] {
            let (outside, began) = (Hanging::default(), Instant::now());
            let mut unit = Unit::new("evk0", 1, kind, began);
            let mut worker = Worker::start(outside.worker(), kind, "evk0", &[], &[], None, began).unwrap();
            worker.ask(began);
            unit.worker = Some(worker);
            watch_worker(&outside, &mut unit, began + SILENT * 2);
            let said = outside.0.borrow().join("\n");
            assert!(
                said.contains("did not end within") && said.contains("guardian") == has_guardian,
                "{said}"
            );
            kill(unit.worker.as_mut().unwrap(), began);
        }
    }

    #[test]
    fn a_worker_that_hangs_before_it_manages_is_killed() {
        assert_eq!(hung_at_start(None, 59), (Some(Phase::Starting), false));
        assert_eq!(hung_at_start(None, 60), (Some(Phase::Stopping), true));
        assert_eq!(hung_at_start(Some("waits for flows.txt"), 600), (Some(Phase::Starting), false));
    }
}
