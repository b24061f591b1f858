//! What somebody has written down: names, shares of the line, steps for each flow.

use std::collections::BTreeSet;

use super::{QdiscTree, Step, Surroundings};

/// A configuration of qdiscs, classes and filters under a name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QdiscSetup {
    /// What it is called.
    pub name: String,
    /// What it is, in a sentence.
    pub summary: String,
    /// The steps, as they were written.
    tree: QdiscTree,
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
    pub fn resolve(&self, _on: &Surroundings) -> Result<QdiscTree, ResolveError> {
        Ok(self.tree.clone())
    }

    /// The kinds of qdiscs that it needs, as the kernel calls them.
    #[must_use]
    pub fn kinds(&self) -> BTreeSet<&str> {
        self.tree
            .steps
            .iter()
            .filter_map(|step| match step {
                Step::Qdisc(node) => Some(node.kind.as_str()),
                Step::Class(_) | Step::Filter { .. } => None,
            })
            .collect()
    }

    /// Whether it sends flows to classes.
    #[must_use]
    pub fn is_classful(&self) -> bool {
        self.tree.steps.iter().any(|step| matches!(step, Step::Class(_)))
    }
}
