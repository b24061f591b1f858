//! Starts and ends workers according to the rules and the operators' requests.

use std::time::{Duration, Instant};

use super::{Key, Left, Priority, Supervisor};
use crate::Kind;
use crate::course::{Ending, Next};
use crate::status::{Phase, Unrestored};
use crate::worker::Worker;

impl Supervisor<'_> {
    /// Starts or ends a worker according to its rule and the operators' requests.
    pub(super) fn reconcile(&mut self, key: Key, now: Instant) {
        let (index, kind) = key;
        let Some(unit) = self.units.get(&key) else { return };
        let is_paused = self.is_paused(&unit.name);
        let has_others = self.has_others(key);
        let (waits_for_tune, makes_room) = match kind {
            Kind::Tune => (false, false),
            Kind::Fair | Kind::Steer => self.gives_way(index),
        };
        let Some(unit) = self.units.get_mut(&key) else { return };
        let is_left = is_paused || unit.worse.is_some() || makes_room;
        let wanted = unit.wanted.clone().filter(|_| !is_left && self.ending.is_none());
        if let Some(worker) = &mut unit.worker {
            // A worker whose interface has left the namespace ends by itself. If the interface was moved, the
            // worker reports how to restore its settings.
            if worker.cleans || (unit.is_gone && self.ending.is_none()) {
                return;
            }
            // `tune` changes settings only while no other worker of the interface runs.
            if kind == Kind::Tune && wanted.as_ref() != Some(&worker.arguments) && has_others {
                // At their end, the other workers restore the values that `tune` had set. So they must end
                // first.
                unit.needs_alone = true;
                return;
            }
            if wanted.as_ref() != Some(&worker.arguments) && !worker.is_asked() && !worker.is_ending() {
                // A silent worker may not end by itself.
                if unit.phase == Some(Phase::Silent) {
                    worker.kill(now)
                } else {
                    worker.ask(now)
                }
                let why = if self.ending.is_some() {
                    "the service ends"
                } else if is_paused {
                    "an operator paused the interface"
                } else if makes_room {
                    "tune must change settings of the interface first"
                } else {
                    "the configuration changed"
                };
                let keeps = kind == Kind::Tune && unit.keeps && !is_paused && self.ending.is_some();
                let what = match keeps {
                    true => "ends, and its changes stay until `evenkeel revert` (tune-at-end)",
                    false => "restores the settings",
                };
                let text = format!("the worker (process {}) {what}: {why}", worker.id());
                let reason = unit.worse.clone().or(Some(text));
                unit.enter(self.outside, now, Phase::Stopping, reason, None);
            }
            return;
        }
        let is_kept = kind == Kind::Tune && unit.keeps && !is_paused;
        if unit.may_be_changed && wanted.is_none() && !makes_room && !is_kept {
            if kind == Kind::Tune && has_others {
                unit.needs_alone = true;
                return;
            }
            unit.left = self.outside.left(&unit.managed());
            unit.may_be_changed = unit.left.is_some() && !unit.was_cleaned;
            if unit.may_be_changed {
                self.clean(key, now);
                return;
            }
            if let Some(left) = unit.left.clone() {
                let text = format!("settings are not restored: {left}");
                unit.log(self.outside, Priority::Error, now, &text);
                let status = Unrestored { name: unit.name.clone(), reason: left };
                self.unsettled.insert(key, Left { status, made: unit.made.clone() });
            }
        }
        if unit.wanted.is_none() {
            if unit.phase.is_some() || unit.starts > 0 {
                unit.log(self.outside, Priority::Info, now, "no longer managed");
            }
            self.units.remove(&key);
            return;
        }
        if self.ending.is_some() {
            return;
        }
        if wanted.is_none() {
            unit.needs_alone = false;
        }
        if is_paused {
            if unit.phase != Some(Phase::Paused) {
                unit.enter(self.outside, now, Phase::Paused, unit.left_words(), None);
            }
            return;
        }
        if let Some(reason) = unit.worse.clone() {
            if unit.phase != Some(Phase::GivenUp) {
                unit.enter(self.outside, now, Phase::GivenUp, Some(reason), None);
            }
            return;
        }
        if waits_for_tune || makes_room || (unit.needs_alone && has_others) {
            if unit.phase.is_none() {
                let reason = "tune changes settings of the interface first";
                unit.reason = Some(reason.to_owned()).filter(|_| kind != Kind::Tune);
            }
            return;
        }
        let is_due = match unit.phase {
            None | Some(Phase::Paused) => true,
            Some(_) => unit.again.is_some_and(|again| again <= now),
        };
        if let Some(arguments) = wanted.filter(|_| is_due) {
            self.start(key, &arguments, now);
        }
    }

    /// Returns whether another worker of the interface runs.
    fn has_others(&self, (index, kind): Key) -> bool {
        let of_interface = self.units.range((index, Kind::Tune)..=(index, Kind::Steer));
        of_interface.filter(|(key, _)| key.1 != kind).any(|(_, unit)| unit.worker.is_some())
    }

    /// Returns whether the start of a session waits for `tune`, and whether a running session must end for
    /// `tune`.
    fn gives_way(&self, index: u32) -> (bool, bool) {
        let Some(tune) = self.units.get(&(index, Kind::Tune)) else { return (false, false) };
        let is_wanted = tune.wanted.is_some() && !self.is_paused(&tune.name) && self.ending.is_none();
        let is_next = is_wanted && matches!(tune.phase, None | Some(Phase::Starting));
        (is_next, tune.needs_alone)
    }

    fn start(&mut self, key: Key, arguments: &[String], now: Instant) {
        let Some(unit) = self.units.get_mut(&key) else { return };
        let queues = self.interfaces.queues(&unit.name);
        unit.starts += 1;
        (unit.may_be_changed, unit.was_cleaned, unit.left) = (true, false, None);
        self.unsettled.remove(&key);
        unit.was_alone |= unit.needs_alone;
        let further: &[&str] = if unit.kind == Kind::Tune && unit.is_afresh { &["--afresh"] } else { &[] };
        match Worker::start(self.outside.worker(), unit.kind, &unit.name, arguments, further, queues, now) {
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

    /// Restores the settings that a dead worker left changed. For a session, starts a short session, which
    /// restores them first, even if it is then refused. `revert` would also undo the changes of `tune`.
    fn clean(&mut self, key: Key, now: Instant) {
        let Some(unit) = self.units.get_mut(&key) else { return };
        let (kind, arguments) = match unit.kind {
            Kind::Tune => (Kind::Tune, vec!["--undo".to_owned(), format!("--index={}", unit.index)]),
            Kind::Fair | Kind::Steer => (Kind::Fair, vec!["--for=1ms".to_owned()]),
        };
        match Worker::start(self.outside.worker(), kind, &unit.name, &arguments, &[], None, now) {
            Ok(mut worker) => {
                worker.cleans = true;
                unit.worker = Some(worker);
                let text = match unit.kind {
                    Kind::Tune => "a worker undoes the changes of tune",
                    _ => "a new session restores the settings that the last worker left changed",
                };
                unit.show(now, Phase::Stopping, text);
            }
            // The next turn of the loop reports the settings that are still changed.
            Err(error) => {
                unit.was_cleaned = true;
                unit.log(self.outside, Priority::Error, now, &format!("cannot start a worker: {error}"));
            }
        }
    }
}
