//! Setups by name.

use std::sync::Arc;

use super::QdiscSetup;
use crate::scenario::{ScenarioError, ScenarioErrorKind};

/// Setups by name, in the order in which they were written down.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalogue {
    setups: Vec<Arc<QdiscSetup>>,
}

impl Catalogue {
    /// The setups that come with Evenkeel.
    #[must_use]
    pub fn bundled() -> Self {
        const NAMES: [&str; 20] = [
            "pfifo",
            "bfifo",
            "pfifo_fast",
            "fq",
            "fq_codel",
            "mq-fq_codel",
            "sfq",
            "drr",
            "qfq",
            "htb",
            "htb-two-classes",
            "htb-priority",
            "htb-capped",
            "hfsc",
            "ets",
            "ets-priority",
            "prio",
            "tbf",
            "cake",
            "sfq-prio",
        ];
        let setup = |name: &&str| {
            let mut setup = QdiscSetup::default();
            setup.name = (*name).to_owned();
            Arc::new(setup)
        };
        Self { setups: NAMES.iter().map(setup).collect() }
    }

    /// Reads a file of setups.
    ///
    /// # Errors
    /// The first mistake.
    pub fn parse(_text: &str, origin: &str) -> Result<Self, ScenarioError> {
        Err(ScenarioError {
            kind: ScenarioErrorKind::Syntax,
            origin: origin.to_owned(),
            line: 1,
            column: 1,
            key: String::new(),
            problem: "not read yet".to_owned(),
            advice: String::new(),
        })
    }

    /// These setups with those of another; of two with one name, the other's.
    #[must_use]
    pub fn extended(mut self, other: Self) -> Self {
        for setup in other.setups {
            match self.setups.iter_mut().find(|known| known.name == setup.name) {
                Some(known) => *known = setup,
                None => self.setups.push(setup),
            }
        }
        self
    }

    /// The setup of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<QdiscSetup>> {
        self.setups.iter().find(|setup| setup.name == name).cloned()
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.setups.iter().map(|setup| setup.name.as_str())
    }
}
