//! The supervisor: one loop that lists the interfaces, starts and ends workers, reads their output, and
//! answers clients.

mod assign;
mod reconcile;
mod requests;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::{Duration, Instant};

use evenkeel_netlink::NetlinkError;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;

use crate::Kind;
use crate::configuration::Configuration;
use crate::control::Control;
use crate::interfaces::Interfaces;
use crate::log_limit::LogLimit;
use crate::notify::Notifier;
use crate::status::{InterfaceStatus, Missing, Phase, ServiceStatus, Unrestored, WorkerStatus};
use crate::unit::Unit;
use crate::worker::Worker;

const LIST_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait of the loop while a worker or its guardian is ending.
const SHORT: Duration = Duration::from_millis(20);
/// The service is ready after this time even if an interface is still starting.
const READY_LIMIT: Duration = Duration::from_secs(10);
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
    /// Returns the path of the control socket.
    fn socket(&self) -> &Path;
    /// Returns the command of this binary. The supervisor adds the arguments of a worker.
    fn worker(&self) -> Process;
    /// Returns the settings that dead workers of an interface left changed, with instructions. Returns
    /// `None` if all settings are restored.
    fn left(&self, of: &Managed<'_>) -> Option<String>;
    fn log(&self, priority: Priority, text: &str);
}

/// The entries of a journal, by setting.
pub type Entries = BTreeMap<String, Value>;

/// A worker's interface, whose settings may be left changed.
#[derive(Clone, Copy, Debug)]
pub struct Managed<'a> {
    pub kind: Kind,
    pub index: u32,
    pub name: &'a str,
    /// The changes that workers of `tune` had in their journal.
    pub made: &'a Entries,
    /// Whether a worker manages the interface now.
    pub runs: bool,
}

/// The settings that the last worker of an interface left changed.
struct Left {
    status: Unrestored,
    made: Entries,
}

/// An interface's index, and the kind of one of its workers.
type Key = (u32, Kind);

pub struct Supervisor<'a> {
    outside: &'a dyn Outside,
    configuration: Configuration,
    /// The socket and the group when the service started. A reload does not change them.
    listens: (PathBuf, Option<String>),
    /// Name of the configuration file.
    origin: String,
    error: Option<String>,
    interfaces: Interfaces,
    units: BTreeMap<Key, Unit>,
    unmanaged: Vec<String>,
    missing: Vec<Missing>,
    idle_rules: Vec<usize>,
    /// Names of paused interfaces, including interfaces that do not exist at present.
    paused: BTreeSet<String>,
    all_paused: bool,
    /// Interfaces with settings that their workers left changed.
    unsettled: BTreeMap<Key, Left>,
    began: Instant,
    listed: Option<Instant>,
    has_listed: bool,
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
            listens: (configuration.socket.clone(), configuration.group.clone()),
            configuration,
            origin,
            error: None,
            interfaces: Interfaces::open()?,
            units: BTreeMap::new(),
            unmanaged: Vec::new(),
            missing: Vec::new(),
            idle_rules: Vec::new(),
            paused: BTreeSet::new(),
            all_paused: false,
            unsettled: BTreeMap::new(),
            began: Instant::now(),
            listed: None,
            has_listed: false,
            fails_to_list: false,
            fails_to_listen: false,
            ending: None,
            is_ready: false,
            notifier,
            limit: LogLimit::default(),
        })
    }

    /// Runs until a signal asks for the end, and all workers have ended or the time limit is over. Returns
    /// the interfaces whose workers did not end in time or failed to restore a setting.
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
            let keys: Vec<Key> = self.units.keys().copied().collect();
            for key in keys {
                self.reconcile(key, now);
            }
            control.step(now, |request| self.answer(&request, now));
            self.report(now);
            if let Some(ending) = self.ending {
                let is_late = now.duration_since(ending) >= END_LIMIT;
                if is_late || self.units.values().all(|unit| unit.worker.is_none()) {
                    self.forget_restored();
                    let late = self.units.values().filter(|unit| unit.worker.is_some());
                    let names = self.unsettled.values().map(|left| left.status.name.clone());
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
        self.listed = Some(now);
        match self.interfaces.list() {
            Ok(found) => {
                self.assign(&found, now);
                self.judge(now);
                self.forget_restored();
                (self.has_listed, self.fails_to_list) = (true, false);
            }
            Err(error) if !self.has_listed => return Err(error),
            Err(error) => {
                if !std::mem::replace(&mut self.fails_to_list, true) {
                    self.log(Priority::Warning, now, &format!("cannot list the interfaces: {error}"));
                }
            }
        }
        Ok(())
    }

    /// Listens again if another program removed the control socket. Logs only the first of consecutive
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

    /// Writes a log line about the service itself, unless the limit is reached.
    fn log(&mut self, priority: Priority, now: Instant, text: &str) {
        self.limit.log(self.outside, priority, now, "", text);
    }

    fn status(&self, now: Instant) -> ServiceStatus {
        ServiceStatus {
            schema: ServiceStatus::SCHEMA,
            socket: self.outside.socket().to_owned(),
            process: std::process::id(),
            seconds: now.saturating_duration_since(self.began).as_secs_f64(),
            configuration: self.origin.clone(),
            error: self.error.clone(),
            interfaces: self.interfaces_status(now),
            unmanaged: self.unmanaged.clone(),
            missing: self.missing.clone(),
            idle_rules: self.idle_rules.clone(),
            // List only interfaces without a unit: a unit has the reason in its own state.
            unrestored: self
                .unsettled
                .iter()
                .filter(|(key, _)| !self.units.contains_key(key))
                .map(|(_, left)| left.status.clone())
                .collect(),
        }
    }

    fn interfaces_status(&self, now: Instant) -> Vec<InterfaceStatus> {
        let mut found: Vec<InterfaceStatus> = Vec::new();
        for unit in self.units.values() {
            let worker: WorkerStatus = unit.status(now);
            match found.last_mut().filter(|interface| interface.index == unit.index) {
                Some(interface) => {
                    // The kinds are in the order `tune`, `fair`, `steer`. Prefer `fair` as the main worker.
                    if interface.main.kind != Kind::Fair {
                        interface.main = worker.clone();
                    }
                    interface.workers.push(worker);
                }
                None => found.push(InterfaceStatus {
                    name: unit.name.clone(),
                    index: unit.index,
                    rule: unit.rule + 1,
                    paused: self.is_paused(&unit.name),
                    main: worker.clone(),
                    workers: vec![worker],
                }),
            }
        }
        found
    }

    fn is_paused(&self, name: &str) -> bool {
        self.all_paused || self.paused.contains(name)
    }

    fn report(&mut self, now: Instant) {
        let status = self.status(now);
        let mut workers = status.interfaces.iter().flat_map(|interface| &interface.workers);
        let is_starting = workers.any(|worker| worker.state == Phase::Starting);
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
