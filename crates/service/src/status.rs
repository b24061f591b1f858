//! The status of the service, in the format of the control socket.

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The worker does not manage the interface yet.
    Starting,
    Fair,
    /// The worker manages the interface, but has sent no status for some seconds.
    Silent,
    /// The worker restores the settings.
    Stopping,
    /// A worker starts again after a pause.
    Waits,
    /// The worker refused to run. The service tries again after a pause.
    Refused,
    /// Another program repeatedly changed the same setting, or losses rose after the start. Only
    /// `resume` starts a worker again.
    GivenUp,
    Paused,
}

impl Phase {
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Fair => "fair",
            Self::Silent => "silent",
            Self::Stopping => "stopping",
            Self::Waits => "waits",
            Self::Refused => "refused",
            Self::GivenUp => "given up",
            Self::Paused => "paused",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterfaceStatus {
    pub name: String,
    pub index: u32,
    /// Number of the interface's rule in the file, from 1.
    pub rule: usize,
    pub state: Phase,
    /// Why the interface is not fair.
    pub reason: Option<String>,
    /// Whether an operator has paused the interface. The worker may still be ending.
    pub paused: bool,
    /// Time in this state.
    pub seconds: f64,
    pub again_in_s: Option<f64>,
    /// Process id of the worker.
    pub process: Option<u32>,
    pub starts: u64,
    /// Options of `fair`.
    pub options: Vec<String>,
    /// The last status of the worker's devices. See `fair`.
    pub devices: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceStatus {
    pub schema: u32,
    pub process: u32,
    /// Time since the service started.
    pub seconds: f64,
    pub configuration: String,
    /// The error of the file if the last reload failed. The previous configuration is then in force.
    pub error: Option<String>,
    pub interfaces: Vec<InterfaceStatus>,
    /// Interfaces that no rule manages.
    pub unmanaged: Vec<String>,
    /// Interfaces that the service does not manage any more, and whose settings are not restored.
    #[serde(default)]
    pub unrestored: Vec<Unrestored>,
}

/// An interface whose worker left settings changed, for example because the interface was moved to
/// another network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unrestored {
    pub name: String,
    /// The changed settings, and how to restore them.
    pub reason: String,
}

impl ServiceStatus {
    pub const SCHEMA: u32 = 1;

    /// Returns the answer in one line, such as `2 of 3 interfaces are fair; eth2 waits: ...`.
    #[must_use]
    pub fn answer(&self) -> String {
        let all = self.interfaces.len();
        let fair = self.interfaces.iter().filter(|interface| interface.state == Phase::Fair).count();
        let answer = match (fair, all) {
            (_, 0) => "no interface matches the configuration".to_owned(),
            (1, 1) => format!("{} is fair", self.interfaces[0].name),
            (fair, all) if fair == all => format!("all {all} interfaces are fair"),
            (_, 1) => String::new(),
            (1, all) => format!("1 of {all} interfaces is fair"),
            (fair, all) => format!("{fair} of {all} interfaces are fair"),
        };
        let others = self.interfaces.iter().filter(|interface| interface.state != Phase::Fair);
        let words = others.map(|interface| {
            let InterfaceStatus { name, state, reason, .. } = interface;
            let verb = match state {
                Phase::Waits => "",
                _ => "is ",
            };
            let reason = reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
            let next = match state {
                Phase::GivenUp => "; `evenkeel service resume` tries again",
                _ => "",
            };
            format!("{name} {verb}{}{reason}{next}", state.words())
        });
        let left = self
            .unrestored
            .iter()
            .map(|Unrestored { name, reason }| format!("the settings of {name} are not restored: {reason}"));
        let parts: Vec<String> =
            std::iter::once(answer).chain(words).chain(left).filter(|part| !part.is_empty()).collect();
        parts.join("; ")
    }

    /// Returns whether the service has no error and each interface is as wanted. An interface must be
    /// fair, or paused with restored settings. No other interface may have settings of the service.
    #[must_use]
    pub fn is_as_wanted(&self) -> bool {
        let is_wanted = |interface: &InterfaceStatus| match interface.state {
            Phase::Fair => true,
            Phase::Paused => interface.reason.is_none(),
            _ => false,
        };
        self.error.is_none() && self.unrestored.is_empty() && self.interfaces.iter().all(is_wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(states: &[(&str, Phase, Option<&str>)]) -> ServiceStatus {
        let interface = |(name, state, reason): &(&str, Phase, Option<&str>)| InterfaceStatus {
            name: (*name).to_owned(),
            index: 2,
            rule: 1,
            state: *state,
            reason: reason.map(str::to_owned),
            paused: *state == Phase::Paused,
            seconds: 1.0,
            again_in_s: None,
            process: None,
            starts: 1,
            options: Vec::new(),
            devices: None,
        };
        ServiceStatus {
            schema: 1,
            process: 1,
            seconds: 1.0,
            configuration: "x.toml".to_owned(),
            error: None,
            interfaces: states.iter().map(interface).collect(),
            unmanaged: Vec::new(),
            unrestored: Vec::new(),
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
            "a is given up: why; `evenkeel service resume` tries again"
        );
        let mixed = [("a", Phase::Fair, None), ("b", Phase::Waits, Some("why")), ("c", Phase::Paused, None)];
        assert_eq!(answer(&mixed), "1 of 3 interfaces is fair; b waits: why; c is paused");
        assert!(!status(&mixed).is_as_wanted() && status(&[("a", Phase::Paused, None)]).is_as_wanted());
    }

    #[test]
    fn settings_that_a_lost_interface_has_are_no_all_clear() {
        let left = Unrestored { name: "a".to_owned(), reason: "why".to_owned() };
        let status = ServiceStatus { unrestored: vec![left], ..status(&[]) };
        let words = "no interface matches the configuration; the settings of a are not restored: why";
        assert_eq!((status.answer().as_str(), status.is_as_wanted()), (words, false));
    }
}
