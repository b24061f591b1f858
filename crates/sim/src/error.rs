//! Errors of a topology, of a simulation, and of a repeat of a scenario.

use crate::qdisc::KindError;

/// An invalid topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// A host has no link or several.
    #[error("host {host} has {links} links; it must have one")]
    HostLinks {
        /// The host.
        host: u32,
        /// How many.
        links: usize,
    },
    /// A link ends at a missing host or switch.
    #[error("link {link} ends at a host or switch that there is not, or at the switch that it comes from")]
    LooseEnd {
        /// Its number.
        link: usize,
    },
    /// Two hosts are not connected.
    #[error("no path leads from host {from} to host {to}")]
    Unreachable {
        /// Source.
        from: u32,
        /// Destination.
        to: u32,
    },
    /// A host sends to itself, or does not exist.
    #[error("there is no transfer from host {from} to host {to}")]
    Transfer {
        /// Source.
        from: u32,
        /// Destination.
        to: u32,
    },
}

/// An error of a simulation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// The settings do not fit.
    #[error(transparent)]
    Qdisc(#[from] KindError),
    /// A number is outside the simulated range.
    #[error("{what} has to be {range}, not {value}")]
    Range {
        /// The number's name.
        what: &'static str,
        /// The allowed range.
        range: &'static str,
        /// The number.
        value: u64,
    },
    /// The network is none.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The calendar is empty, but transfers are unfinished.
    #[error(
        "the simulation came to a standstill at {at_us} µs: nothing is planned, and {unfinished} flows have data outstanding"
    )]
    Standstill {
        /// When, µs.
        at_us: u64,
        /// Flows with something outstanding.
        unfinished: usize,
    },
    /// Events continue, but no packet is sent.
    #[error(
        "the simulation makes no progress at {at_us} µs: {events} events without a packet that left; this is a \
         mistake in the simulator, please report it with the scenario and the seed"
    )]
    Livelock {
        /// When, µs.
        at_us: u64,
        /// Events without a packet.
        events: u64,
    },
    /// Simulated time advances, but no new data arrives.
    #[error(
        "the transfers make no progress: at {at_us} µs nothing new has arrived anywhere for {wait_s} s, and \
         {unfinished} flows are incomplete"
    )]
    NoProgress {
        /// When, µs.
        at_us: u64,
        /// For how long, s.
        wait_s: u64,
        /// Flows that are incomplete.
        unfinished: usize,
    },
}

/// Reasons why a simulation has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// The simulator does not support the scenario.
    #[error("{0}")]
    Unable(String),
    /// The simulator does not support a setting of the scenario.
    #[error("{key}: {problem}")]
    Setting {
        /// Such as `workload.flows`.
        key: &'static str,
        /// What is wrong, with the remedy.
        problem: String,
    },
    /// A part of the scenario is invalid, which only the run could find.
    #[error("{problem}")]
    Input {
        /// Where the part is: a key of the scenario, or a path to a file.
        key: String,
        /// What is wrong.
        problem: String,
    },
    /// It failed while it ran.
    #[error("{variant}, seed {seed}: {source}")]
    Failed {
        /// Variant.
        variant: String,
        /// Seed of the repeat.
        seed: u64,
        /// The error of the simulation.
        source: SimulationError,
    },
    /// The user interrupted the run.
    #[error("interrupted; nothing was changed on this machine")]
    Interrupted,
}

impl SimError {
    /// The key of the scenario that is not supported or invalid, if that is the reason.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Setting { key, .. } => Some(key),
            Self::Input { key, .. } => Some(key),
            Self::Unable(_) | Self::Failed { .. } | Self::Interrupted => None,
        }
    }
}
