use std::fmt;

use evenkeel_model::change::Change;
use evenkeel_model::text::printable;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Costs little, or costs only in cases that may not occur on this host.
    Low,
    /// Costs throughput, latency or processor time.
    Medium,
    /// Packets are lost, or most of the link's rate cannot be used.
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

/// The evidence behind a finding. The basis caps the severity: without a limit or a counter as evidence, the
/// severity is not high.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// An assumption, such as a round-trip time that no connection shows: at most low.
    Assumed,
    /// A setting with a known cost that no counter of this host shows: at most medium.
    Setting,
    /// A limit that is certainly below the link's requirement.
    Limit,
    /// Load or loss that counters show.
    Measured,
}

impl Basis {
    /// Returns the highest severity that this basis supports.
    #[must_use]
    pub const fn cap(self) -> Severity {
        match self {
            Self::Assumed => Severity::Low,
            Self::Setting => Severity::Medium,
            Self::Limit | Self::Measured => Severity::High,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// The interface to which the changes apply, if any.
    pub interface: Option<String>,
    /// Exact changes, in the order of application.
    pub changes: Vec<Change>,
    /// A remedy that `changes` cannot express: another slot, another cable, an option of an application, or a
    /// setting whose value the administrator must choose.
    pub advice: Option<String>,
}

impl Remedy {
    /// Returns the changes as the commands that an administrator would type.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let interface = self.interface.as_deref().unwrap_or_default();
        self.changes.iter().map(|change| change.shell(interface).to_string()).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub rule: &'static str,
    pub severity: Severity,
    pub basis: Basis,
    /// The affected object: an interface, a process, `host`.
    pub subject: String,
    /// Figures of this host that show the fault.
    pub evidence: String,
    /// The cost of the fault.
    pub effect: String,
    pub remedy: Remedy,
    /// The document or paper that describes the fault.
    pub source: &'static str,
}

impl Finding {
    /// Returns the finding with subject, evidence, effect and advice made safe for a terminal, because other
    /// users choose the names in them.
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
