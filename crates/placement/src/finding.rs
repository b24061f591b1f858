//! What a check found.

use std::fmt;

use evenkeel_model::change::Change;
use evenkeel_model::text::printable;
use serde::Serialize;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth knowing: costs little, or only in cases that this host may not have.
    Low,
    /// Costs throughput, latency or processor time.
    Medium,
    /// Packets are lost or most of the link cannot be used.
    High,
}

impl fmt::Display for Severity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        })
    }
}

/// What a finding rests on. It caps the severity: an alarm that no counter supports is not high.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// An assumption, such as a round trip where no connection shows one: at most low.
    Assumed,
    /// A setting that costs, though no counter of this host shows the cost: at most medium.
    Setting,
    /// A limit that is certainly below what the link needs.
    Limit,
    /// Load or loss that counters show.
    Measured,
}

impl Basis {
    /// The highest severity that it supports.
    #[must_use]
    pub const fn cap(self) -> Severity {
        match self {
            Self::Assumed => Severity::Low,
            Self::Setting => Severity::Medium,
            Self::Limit | Self::Measured => Severity::High,
        }
    }
}

/// The fix of a finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// The interface that the changes mean, of those that mean one.
    pub interface: Option<String>,
    /// Exact changes, in the order in which they are to be made.
    pub changes: Vec<Change>,
    /// What no change of this host does by itself: another slot, another cable, an option of an application.
    pub advice: Option<String>,
}

impl Remedy {
    /// The lines that an administrator would type, and the advice.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let interface = self.interface.as_deref().unwrap_or_default();
        self.changes.iter().map(|change| change.shell(interface).to_string()).collect()
    }
}

/// Something that is wrong with a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The rule that found it.
    pub rule: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// What it rests on.
    pub basis: Basis,
    /// What it is about: an interface, a process, `host`.
    pub subject: String,
    /// What shows it, with figures of this host.
    pub evidence: String,
    /// What it costs.
    pub effect: String,
    pub remedy: Remedy,
    /// Where that is known from.
    pub source: &'static str,
}

impl Finding {
    /// The same finding with all of its text fit for a terminal: names are those that others have chosen.
    #[must_use]
    pub fn printable(&self) -> Self {
        let mut shown = self.clone();
        for text in [&mut shown.subject, &mut shown.evidence, &mut shown.effect] {
            *text = printable(text);
        }
        shown.remedy.advice = shown.remedy.advice.map(|advice| printable(&advice));
        shown
    }
}
