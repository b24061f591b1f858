//! Setups as written in a file: names, shares of the link's rate, steps per flow.

use std::collections::BTreeSet;
use std::fmt;

use super::kinds::kind;
use super::resolve::resolve;
use super::template::StepTemplate;
use super::{QdiscTree, Surroundings};

/// A configuration of qdiscs, classes and filters under a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QdiscSetup {
    pub name: String,
    pub summary: String,
    pub claims: BTreeSet<Claim>,
    pub(super) steps: Vec<StepTemplate>,
}

/// A claim of a setup, to be checked by measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Claim {
    /// Flows with a backlog get equal shares in bytes.
    Fairness,
    /// Probes do not wait for bulk flows.
    Priority,
    /// The link is never idle while packets wait.
    WorkConservation,
}

impl Claim {
    pub const SPELLINGS: [(&'static str, Self); 3] = [
        ("fairness", Self::Fairness),
        ("priority", Self::Priority),
        ("work-conservation", Self::WorkConservation),
    ];
}

impl fmt::Display for Claim {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spelling = Self::SPELLINGS.iter().find(|(_, claim)| claim == self);
        formatter.pad(spelling.map_or("", |(spelling, _)| spelling))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the qdisc setup {setup}: {problem}; {advice}")]
pub struct ResolveError {
    pub setup: String,
    pub problem: String,
    pub advice: String,
}

impl QdiscSetup {
    /// Returns the tree for a device and its flows.
    ///
    /// # Errors
    /// Returns an error if the setup does not fit, for example if there are more flows than class numbers.
    pub fn resolve(&self, on: &Surroundings) -> Result<QdiscTree, ResolveError> {
        resolve(&self.steps, on).map_err(|misfit| ResolveError {
            setup: self.name.clone(),
            problem: match self.steps.get(misfit.step) {
                Some(step) => format!("'{step}': {}", misfit.wrong.problem),
                None => misfit.wrong.problem,
            },
            advice: misfit.wrong.advice,
        })
    }

    #[must_use]
    pub fn kinds(&self) -> BTreeSet<&str> {
        self.steps
            .iter()
            .filter_map(|step| match step {
                StepTemplate::Qdisc(node) => Some(node.kind.as_str()),
                StepTemplate::Class(_) | StepTemplate::Filter { .. } => None,
            })
            .collect()
    }

    #[must_use]
    pub fn is_classful(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, StepTemplate::Filter { .. }))
    }

    fn root_kind(&self) -> Option<&str> {
        self.steps.iter().find_map(|step| match step {
            StepTemplate::Qdisc(node) if node.parent.is_none() => Some(node.kind.as_str()),
            _ => None,
        })
    }

    /// Returns the reason why the root cannot have filter rules, and a remedy. Returns `None` if the root
    /// takes rules. Also returns `None` if its kind is not in [`super::kinds`], because then the kernel
    /// decides.
    #[must_use]
    pub fn without_rules(&self) -> Option<(String, &'static str)> {
        let root = self.root_kind().and_then(kind).filter(|root| !root.takes_rules())?;
        let problem = format!(
            "the qdisc setup {} takes no filter rules: its root, {}, has no classes",
            self.name, root.name
        );
        Some((problem, "use a classful qdisc, or rules = [0]"))
    }

    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.steps.iter().map(ToString::to_string)
    }
}
