//! The status of the service, in the format of the control socket.

use std::fmt;
use std::path::{Path, PathBuf};

use evenkeel_model::shell::Line;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{DEFAULT_SOCKET, Kind};

/// The state of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The worker does not manage the interface yet.
    Starting,
    Fair,
    Steered,
    /// The changes of `tune` are in effect.
    Tuned,
    /// The worker manages the interface, but has sent no status for some seconds.
    Silent,
    /// The worker restores the settings.
    Stopping,
    /// The worker has ended. The service starts it again after a pause.
    Waits,
    /// The worker refused to run. The service tries again after a pause.
    Refused,
    /// Another program repeatedly (for `tune`: once) changed the same setting, or losses rose after the
    /// start. A worker starts again only after `resume`, or if its options or the interface's name change.
    GivenUp,
    Paused,
}

impl Phase {
    /// Returns the state of a worker that manages its interface.
    #[must_use]
    pub const fn of(kind: Kind) -> Self {
        match kind {
            Kind::Tune => Self::Tuned,
            Kind::Fair => Self::Fair,
            Kind::Steer => Self::Steered,
        }
    }

    /// Returns whether the worker manages its interface and is not silent.
    #[must_use]
    pub const fn is_active(self) -> bool {
        matches!(self, Self::Fair | Self::Steered | Self::Tuned)
    }

    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Fair => "fair",
            Self::Steered => "steered",
            Self::Tuned => "tuned",
            Self::Silent => "silent",
            Self::Stopping => "stopping",
            Self::Waits => "waits",
            Self::Refused => "refused",
            Self::GivenUp => "given up",
            Self::Paused => "paused",
        }
    }
}

/// A worker of an interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    pub kind: Kind,
    pub state: Phase,
    /// Why the worker does not manage the interface; or the changes that it could not make, and the settings
    /// that earlier workers left changed.
    pub reason: Option<String>,
    /// Time in this state.
    pub seconds: f64,
    pub again_in_s: Option<f64>,
    /// Process ID of the worker.
    pub process: Option<u32>,
    pub starts: u64,
    /// Arguments of the worker.
    pub options: Vec<String>,
    /// The last status of the worker's devices, as reported by the worker.
    pub devices: Option<Value>,
}

impl WorkerStatus {
    /// Returns whether the worker manages the interface without a reported problem, or an operator has paused
    /// it and its settings are restored.
    #[must_use]
    pub fn is_as_wanted(&self) -> bool {
        (self.state.is_active() || self.state == Phase::Paused) && self.reason.is_none()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterfaceStatus {
    pub name: String,
    pub index: u32,
    /// Number of the interface's rule in the file, from 1.
    pub rule: usize,
    /// Whether an operator has paused the interface, even if its workers have not ended yet.
    pub paused: bool,
    /// The worker of `fair` if the rule has one, else that of `steer`, else that of `tune`.
    #[serde(flatten)]
    pub main: WorkerStatus,
    /// All workers, in the order of their starts.
    pub workers: Vec<WorkerStatus>,
}

impl InterfaceStatus {
    /// Returns whether all workers manage the interface without a reported problem.
    fn is_active(&self) -> bool {
        self.workers.iter().all(|worker| worker.state.is_active() && worker.reason.is_none())
    }

    /// Returns the states of the workers, such as `tuned, fair and steered`.
    fn words(&self) -> String {
        let words: Vec<&str> = self.workers.iter().map(|worker| worker.state.words()).collect();
        match words.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} and {last}", others.join(", ")),
            None => String::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceStatus {
    pub schema: u32,
    pub process: u32,
    /// Time since the service started.
    pub seconds: f64,
    pub configuration: String,
    /// Path of the control socket.
    #[serde(default = "default_socket")]
    pub socket: PathBuf,
    /// The error of the configuration file if the last reload failed. The previous configuration is then in
    /// force.
    pub error: Option<String>,
    pub interfaces: Vec<InterfaceStatus>,
    /// Interfaces that no rule manages.
    pub unmanaged: Vec<String>,
    /// Interfaces that the service does not manage any more, and whose settings are not restored.
    #[serde(default)]
    pub unrestored: Vec<Unrestored>,
    /// Rules that name an interface exactly, but match no present interface.
    #[serde(default)]
    pub missing: Vec<Missing>,
    /// Numbers of the rules with a pattern that no present interface matches, from 1.
    #[serde(default)]
    pub idle_rules: Vec<usize>,
}

/// A rule of one interface, which is not present or does not match the rule's other keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    pub name: String,
    /// Number of the rule in the file, from 1.
    pub rule: usize,
}

impl fmt::Display for Missing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "no interface matches rule {}, which names {}", self.rule, self.name)
    }
}

/// An interface whose worker left settings changed, for example because the interface was moved to
/// another network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unrestored {
    pub name: String,
    /// The changed settings, and how to restore them.
    pub reason: String,
}

impl fmt::Display for Unrestored {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the settings of {} are not restored: {}", self.name, self.reason)
    }
}

fn default_socket() -> PathBuf {
    PathBuf::from(DEFAULT_SOCKET)
}

impl ServiceStatus {
    pub const SCHEMA: u32 = 1;

    /// Returns the answer in one line, such as `2 of 3 interfaces are fair; eth2 waits: ...`.
    #[must_use]
    pub fn answer(&self) -> String {
        let all = self.interfaces.len();
        let active = self.interfaces.iter().filter(|interface| interface.is_active()).count();
        let mut workers = self.interfaces.iter().flat_map(|interface| &interface.workers);
        let what = if workers.all(|worker| worker.kind == Kind::Fair) { "fair" } else { "as configured" };
        let answer = match (active, all) {
            (_, 0) if self.missing.is_empty() && self.unrestored.is_empty() => {
                "no interface matches the configuration".to_owned()
            }
            (_, 0) => String::new(),
            (1, 1) => format!("{} is {}", self.interfaces[0].name, self.interfaces[0].words()),
            (active, all) if active == all => format!("all {all} interfaces are {what}"),
            (_, 1) => String::new(),
            (1, all) => format!("1 of {all} interfaces is {what}"),
            (active, all) => format!("{active} of {all} interfaces are {what}"),
        };
        let exceptions = self.interfaces.iter().flat_map(|interface| {
            let others = interface
                .workers
                .iter()
                .filter(|worker| !worker.state.is_active() || worker.reason.is_some());
            others.map(|worker| exception(&interface.name, &self.socket, worker))
        });
        let missing = self.missing.iter().map(ToString::to_string);
        let left = self.unrestored.iter().map(ToString::to_string);
        let parts = std::iter::once(answer).chain(exceptions).chain(missing).chain(left);
        parts.filter(|part| !part.is_empty()).collect::<Vec<String>>().join("; ")
    }

    /// Returns whether the configuration has no error, [`WorkerStatus::is_as_wanted`] holds for every worker,
    /// no other interface has unrestored settings, and no interface that a rule names is missing.
    #[must_use]
    pub fn is_as_wanted(&self) -> bool {
        let mut workers = self.interfaces.iter().flat_map(|interface| &interface.workers);
        let is_complete = self.unrestored.is_empty() && self.missing.is_empty();
        self.error.is_none() && is_complete && workers.all(WorkerStatus::is_as_wanted)
    }
}

/// Returns a command to the service at a control socket. The template is the command without `--socket`.
#[must_use]
pub fn client_command(template: &'static str, socket: &Path) -> Line {
    let line = Line::new(template, &[]);
    match socket == Path::new(DEFAULT_SOCKET) {
        true => line,
        false => line.with(" --socket {}", &[&socket.to_string_lossy()]),
    }
}

/// Returns the command that resumes an interface in the state `given-up` or `paused`.
pub(crate) fn resume(interface: &str, socket: &Path) -> Line {
    client_command("evenkeel service resume", socket).on(&interface, "", &[])
}

/// Describes a worker that does not manage its interface as its rule says.
fn exception(interface: &str, socket: &Path, worker: &WorkerStatus) -> String {
    let WorkerStatus { kind, state, reason, .. } = worker;
    let verb = match state {
        Phase::Waits => "",
        _ => "is ",
    };
    let reason = reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    let next = match state {
        Phase::GivenUp => format!("; `{}` tries again", resume(interface, socket)),
        _ => String::new(),
    };
    match state.is_active() {
        true => format!("{}{reason}", kind.of(interface)),
        false => format!("{} {verb}{}{reason}{next}", kind.of(interface), state.words()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(kind: Kind, state: Phase, reason: Option<&str>) -> WorkerStatus {
        WorkerStatus {
            kind,
            state,
            reason: reason.map(str::to_owned),
            seconds: 1.0,
            again_in_s: None,
            process: None,
            starts: 1,
            options: Vec::new(),
            devices: None,
        }
    }

    fn status(states: &[(&str, Phase, Option<&str>)]) -> ServiceStatus {
        let interface = |(name, state, reason): &(&str, Phase, Option<&str>)| {
            let main = worker(Kind::Fair, *state, *reason);
            InterfaceStatus {
                name: (*name).to_owned(),
                index: 2,
                rule: 1,
                paused: *state == Phase::Paused,
                workers: vec![main.clone()],
                main,
            }
        };
        ServiceStatus {
            schema: 1,
            process: 1,
            seconds: 1.0,
            configuration: "x.toml".to_owned(),
            socket: default_socket(),
            error: None,
            interfaces: states.iter().map(interface).collect(),
            unmanaged: Vec::new(),
            unrestored: Vec::new(),
            missing: Vec::new(),
            idle_rules: Vec::new(),
        }
    }

    #[test]
    fn the_answer_counts_and_names_the_exceptions() {
        let answer = |states: &[_]| status(states).answer();
        assert_eq!(answer(&[]), "no interface matches the configuration");
        assert_eq!(answer(&[("a", Phase::Fair, None)]), "a is fair");
        assert_eq!(
            answer(&[("a", Phase::Fair, None), ("b", Phase::Fair, None)]),
            "all 2 interfaces are fair"
        );
        assert_eq!(
            answer(&[("a", Phase::GivenUp, Some("why"))]),
            "a is given up: why; `evenkeel service resume a` tries again"
        );
        let mixed = [("a", Phase::Fair, None), ("b", Phase::Waits, Some("why")), ("c", Phase::Paused, None)];
        assert_eq!(answer(&mixed), "1 of 3 interfaces is fair; b waits: why; c is paused");
        assert!(!status(&mixed).is_as_wanted() && status(&[("a", Phase::Paused, None)]).is_as_wanted());
    }

    #[test]
    fn a_printed_command_names_a_socket_that_is_not_the_default() {
        let mut status = status(&[("a", Phase::GivenUp, Some("why"))]);
        status.socket = PathBuf::from("/run/my socket");
        let words = "a is given up: why; `evenkeel service resume --socket '/run/my socket' a` tries again";
        assert_eq!(status.answer(), words);
    }

    #[test]
    fn settings_that_a_lost_interface_has_are_no_all_clear() {
        let left = Unrestored { name: "a".to_owned(), reason: "why".to_owned() };
        let status = ServiceStatus { unrestored: vec![left], ..status(&[]) };
        let words = "the settings of a are not restored: why";
        assert_eq!((status.answer().as_str(), status.is_as_wanted()), (words, false));
    }

    #[test]
    fn a_missing_interface_is_no_all_clear_and_an_idle_pattern_is() {
        let mut status = status(&[("a", Phase::Fair, None)]);
        status.idle_rules = vec![2];
        assert_eq!((status.answer().as_str(), status.is_as_wanted()), ("a is fair", true));
        status.missing = vec![Missing { name: "b".to_owned(), rule: 3 }];
        let words = "a is fair; no interface matches rule 3, which names b";
        assert_eq!((status.answer().as_str(), status.is_as_wanted()), (words, false));
        status.interfaces.clear();
        assert_eq!(status.answer(), "no interface matches rule 3, which names b");
    }

    #[test]
    fn an_interface_with_several_workers_names_each_exception() {
        let mut status = status(&[("a", Phase::Fair, None)]);
        status.interfaces[0].workers.insert(0, worker(Kind::Tune, Phase::Tuned, None));
        assert_eq!((status.answer().as_str(), status.is_as_wanted()), ("a is tuned and fair", true));
        status.interfaces[0].workers[0].reason = Some("gro is not set".to_owned());
        assert_eq!((status.answer().as_str(), status.is_as_wanted()), ("tune of a: gro is not set", false));
        status.interfaces[0].workers[0] = worker(Kind::Tune, Phase::GivenUp, Some("why"));
        let words = "tune of a is given up: why; `evenkeel service resume a` tries again";
        assert_eq!(status.answer(), words);
    }

    /// Scripts that know only `fair` read the same keys.
    #[test]
    fn the_main_worker_has_its_keys_at_the_interface() {
        let status = status(&[("a", Phase::Fair, Some("why"))]);
        let value = serde_json::to_value(&status.interfaces[0]).unwrap_or_default();
        assert_eq!(
            (&value["state"], &value["kind"], &value["reason"]),
            (&"fair".into(), &"fair".into(), &"why".into())
        );
        assert_eq!(value["workers"][0]["state"], "fair");
        assert_eq!(
            serde_json::from_value::<InterfaceStatus>(value).ok().as_ref(),
            Some(&status.interfaces[0])
        );
    }
}
