//! The kinds of workers.

use serde::{Deserialize, Serialize};

/// The kinds of workers, in the order of their starts: `tune` changes settings only while no session runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Tune,
    Fair,
    Steer,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Tune, Self::Fair, Self::Steer];

    /// Returns the key of this kind's options in a rule.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Tune => "tune",
            Self::Fair => "fair",
            Self::Steer => "steer",
        }
    }

    /// Returns the command of this kind's workers.
    pub(crate) const fn command(self) -> &'static str {
        match self {
            Self::Tune => "maintain",
            Self::Fair => "fair",
            Self::Steer => "steer",
        }
    }

    /// Returns the words that name the worker of an interface in a sentence.
    pub(crate) fn of(self, interface: &str) -> String {
        match self {
            Self::Fair => interface.to_owned(),
            kind => format!("{} of {interface}", kind.word()),
        }
    }
}
