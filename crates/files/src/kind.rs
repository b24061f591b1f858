//! Kinds of input files, and the size up to which one is read.

use std::fmt;

/// A kind of input file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A scenario.
    Scenario,
    /// A NIC model or a policy that a scenario names.
    ScenarioPart,
    /// Qdisc setups.
    QdiscSetups,
    /// A model of a NIC, or a configuration of one.
    NicModel,
    /// A policy of receive steering.
    Policy,
    /// A policy's script.
    Script,
    /// Flow weights.
    Weights,
    /// Settings that `tune` leaves alone.
    KeepList,
    /// A list of flows.
    FlowList,
    /// The record of a run.
    Record,
    /// The settings of a study.
    StudySettings,
    /// The repeats of a study.
    Repeats,
    /// The journal of changes to a host.
    Journal,
}

impl Kind {
    /// The largest file of this kind that is read, bytes. A command then stays below 500 MB of memory.
    #[must_use]
    pub const fn most(self) -> u64 {
        match self {
            Self::Scenario
            | Self::ScenarioPart
            | Self::QdiscSetups
            | Self::NicModel
            | Self::Policy
            | Self::Script
            | Self::Weights
            | Self::KeepList => 1 << 20,
            // A journal has a line of some 200 bytes for each change.
            Self::Journal | Self::StudySettings => 16 << 20,
            Self::FlowList | Self::Record => 64 << 20,
            // Some 2 kB for each repeat.
            Self::Repeats => 128 << 20,
        }
    }

    /// The limit as a reader writes it: `1 MiB`.
    pub(crate) fn limit(self) -> String {
        format!("{} MiB", self.most() >> 20)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Scenario => "a scenario",
            Self::ScenarioPart => "a file that a scenario names",
            Self::QdiscSetups => "a file of qdisc setups",
            Self::NicModel => "a NIC model",
            Self::Policy => "a policy",
            Self::Script => "a script",
            Self::Weights => "a file of flow weights",
            Self::KeepList => "a list of settings to keep",
            Self::FlowList => "a list of flows",
            Self::Record => "a record",
            Self::StudySettings => "the settings of a study",
            Self::Repeats => "the repeats of a study",
            Self::Journal => "a journal",
        })
    }
}
