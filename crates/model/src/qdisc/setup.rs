//! What somebody has written down: names, shares of the line, steps for each flow.

use std::collections::BTreeSet;
use std::fmt;

use super::resolve::resolve;
use super::template::StepTemplate;
use super::{QdiscTree, Surroundings};

/// A configuration of qdiscs, classes and filters under a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QdiscSetup {
    /// What it is called.
    pub name: String,
    /// What it is, in a sentence.
    pub summary: String,
    /// What it promises.
    pub claims: BTreeSet<Claim>,
    /// The steps, as they were written.
    pub(super) steps: Vec<StepTemplate>,
}

/// What a setup promises, for measurements to confirm or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Claim {
    /// Flows that have something to send get equal shares in bytes.
    Fairness,
    /// Probes do not wait behind bulk flows.
    Priority,
    /// The line is never idle while something waits.
    WorkConservation,
}

impl Claim {
    /// Every claim and how it is spelled.
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
    /// What does not fit.
    pub problem: String,
    /// What to do.
    pub advice: String,
}

impl QdiscSetup {
    /// The tree for a line and its flows.
    ///
    /// # Errors
    /// When it does not fit, as when there are more flows than the setup has numbers for.
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

    /// The kinds of qdiscs that it needs, as the kernel calls them.
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

    /// Whether it sends flows to classes.
    #[must_use]
    pub fn is_classful(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, StepTemplate::Filter { .. }))
    }

    /// Its steps, as a file has them.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.steps.iter().map(ToString::to_string)
    }
}
