//! Written setups: names, shares of the line, steps per flow.

use std::collections::BTreeSet;
use std::fmt;

use super::kinds::kind;
use super::resolve::resolve;
use super::template::StepTemplate;
use super::{QdiscTree, Surroundings};

/// A configuration of qdiscs, classes and filters under a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QdiscSetup {
    /// Name of the setup.
    pub name: String,
    /// Description in a sentence.
    pub summary: String,
    /// Its claims.
    pub claims: BTreeSet<Claim>,
    /// The written steps.
    pub(super) steps: Vec<StepTemplate>,
}

/// A claim of a setup, to be checked by measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Claim {
    /// Backlogged flows get equal shares in bytes.
    Fairness,
    /// Probes do not wait behind bulk flows.
    Priority,
    /// The line is never idle while packets wait.
    WorkConservation,
}

impl Claim {
    /// Every claim with its spelling.
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

/// Why a setup does not fit a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the qdisc setup {setup}: {problem}; {advice}")]
pub struct ResolveError {
    /// Its name.
    pub setup: String,
    /// The problem.
    pub problem: String,
    /// The remedy.
    pub advice: String,
}

impl QdiscSetup {
    /// The tree for a line and its flows.
    ///
    /// # Errors
    /// When it does not fit, for example with more flows than numbers.
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

    /// The required qdisc kinds, by the kernel's names.
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

    /// Whether it assigns flows to classes.
    #[must_use]
    pub fn is_classful(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, StepTemplate::Filter { .. }))
    }

    /// Kind of the qdisc at the root.
    fn root_kind(&self) -> Option<&str> {
        self.steps.iter().find_map(|step| match step {
            StepTemplate::Qdisc(node) if node.parent.is_none() => Some(node.kind.as_str()),
            _ => None,
        })
    }

    /// Why filter rules cannot be at its root, and what to do. For kinds without a name here
    /// the kernel decides.
    #[must_use]
    pub fn without_rules(&self) -> Option<(String, &'static str)> {
        let root = self.root_kind().and_then(kind).filter(|root| !root.takes_rules())?;
        let problem = format!(
            "the qdisc setup {} takes no filter rules: its root, {}, has no classes",
            self.name, root.name
        );
        Some((problem, "use a classful qdisc, or rules = [0]"))
    }

    /// Its steps as lines of a file.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.steps.iter().map(ToString::to_string)
    }
}
