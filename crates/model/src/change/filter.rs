//! Filters of a clsact qdisc that run a BPF program, for kernels without tcx hooks.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Handle of Evenkeel's filters. It distinguishes Evenkeel's filters from other programs' filters with
/// the same preference.
pub const FILTER_HANDLE: u32 = 0x65_766b;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    /// Returns tc's name for the hook.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

/// The place of an Evenkeel filter, whose handle is [`FILTER_HANDLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilterPlace {
    pub direction: Direction,
    /// Filters with a smaller preference run first.
    pub preference: u16,
}

impl fmt::Display for FilterPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "clsact {} with preference {}", self.direction.word(), self.preference)
    }
}

/// States of the clsact qdisc, as texts of a `Value`.
pub mod clsact {
    /// The interface has no clsact qdisc.
    pub const NONE: &str = "none";
    /// The clsact qdisc has no filters, except Evenkeel's filters.
    pub const EMPTY: &str = "without filters of other programs";
    pub const IN_USE: &str = "with filters of other programs";
}
