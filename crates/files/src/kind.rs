//! Kinds of input files, and their size limits.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Scenario,
    ScenarioPart,
    QdiscSetups,
    NicModel,
    MachineProfile,
    Policy,
    Service,
    Script,
    Weights,
    KeepList,
    FlowList,
    Record,
    StudySettings,
    Repeats,
    Journal,
    /// Samples of a live host.
    Recording,
}

impl Kind {
    /// Returns the size limit in bytes. With it, a command uses less than 500 MB of memory.
    #[must_use]
    pub const fn most(self) -> u64 {
        match self {
            Self::Scenario
            | Self::ScenarioPart
            | Self::QdiscSetups
            | Self::NicModel
            | Self::MachineProfile
            | Self::Policy
            | Self::Service
            | Self::Script
            | Self::Weights
            | Self::KeepList => 1 << 20,
            // A journal needs about 200 bytes per change.
            Self::Journal | Self::StudySettings => 16 << 20,
            Self::FlowList | Self::Record => 64 << 20,
            // A repeat needs about 2 kB.
            Self::Repeats => 128 << 20,
            // The recording stays in memory unchanged. A sample with 100 flows and 64 queues needs
            // about 60 kB.
            Self::Recording => 256 << 20,
        }
    }

    pub(crate) const fn may_be_empty(self) -> bool {
        !matches!(
            self,
            Self::Scenario
                | Self::QdiscSetups
                | Self::NicModel
                | Self::MachineProfile
                | Self::Policy
                | Self::Service
                | Self::Script
                | Self::Weights
                | Self::FlowList
                | Self::Record
                | Self::StudySettings
                | Self::Recording
        )
    }

    /// Formats the limit for messages, such as `1 MiB`.
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
            Self::MachineProfile => "a machine profile",
            Self::Policy => "a policy",
            Self::Service => "a configuration of the service",
            Self::Script => "a script",
            Self::Weights => "a file of flow weights",
            Self::KeepList => "a list of settings to keep",
            Self::FlowList => "a list of flows",
            Self::Record => "a record",
            Self::StudySettings => "the settings of a study",
            Self::Repeats => "the repeats of a study",
            Self::Journal => "a journal",
            Self::Recording => "a recording",
        })
    }
}
