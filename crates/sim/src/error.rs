//! Errors of topologies, of simulations, and of repeats of a scenario.

use crate::qdisc::KindError;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// A host has no link or more than one.
    #[error("host {host} has {links} links; it must have one")]
    HostLinks { host: u32, links: usize },
    /// A link ends at a missing host or switch.
    #[error("link {link} does not end at another existing host or switch")]
    LooseEnd { link: usize },
    /// Two hosts are not connected.
    #[error("no path leads from host {from} to host {to}")]
    Unreachable {
        /// Sending host.
        from: u32,
        /// Receiving host.
        to: u32,
    },
    /// A host sends to itself, or does not exist.
    #[error("host {from} cannot send to host {to}: it is the same host or does not exist")]
    Transfer {
        /// Sending host.
        from: u32,
        /// Receiving host.
        to: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// A qdisc does not support the settings.
    #[error(transparent)]
    Qdisc(#[from] KindError),
    /// A number is outside the simulated range.
    #[error("{what} must be {range}, not {value}")]
    Range {
        /// Name of the number.
        what: &'static str,
        range: &'static str,
        value: u64,
    },
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The calendar is empty, but transfers are unfinished.
    #[error(
        "the simulation makes no progress at {at_us} µs: no event is pending, but {unfinished} flows have data \
         outstanding; check the rates and limits of the scenario"
    )]
    Standstill {
        /// Simulated time, µs.
        at_us: u64,
        /// Number of flows with data outstanding.
        unfinished: usize,
    },
    /// Events continue, but no packet is sent.
    #[error(
        "the simulation makes no progress at {at_us} µs: {events} events did not send a packet; this is an error in \
         the simulator: report it with the scenario and the seed"
    )]
    Livelock {
        /// Simulated time, µs.
        at_us: u64,
        /// Number of events since the last packet.
        events: u64,
    },
    /// Simulated time advances, but no new data arrives.
    #[error(
        "the transfers make no progress: at {at_us} µs no host has received new data for {wait_s} s, and \
         {unfinished} flows are incomplete; check the rates and limits of the scenario"
    )]
    NoProgress {
        /// Simulated time, µs.
        at_us: u64,
        /// Time since new data arrived, s.
        wait_s: u64,
        /// Number of incomplete flows.
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
        /// The key, such as `workload.flows`.
        key: &'static str,
        /// The problem, and how to solve it.
        problem: String,
    },
    /// A part of the scenario is invalid, which is detected only at run time.
    #[error("{problem}")]
    Input {
        /// A key of the scenario, or the path of a file.
        key: String,
        problem: String,
    },
    /// The simulation failed while it ran.
    #[error("{variant}, seed {seed}: {source}")]
    Failed { variant: String, seed: u64, source: SimulationError },
    /// The user interrupted the run.
    #[error("interrupted; nothing was changed on this machine")]
    Interrupted,
}

impl SimError {
    /// Returns the key of the scenario that is unsupported or invalid, if that is the error.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Setting { key, .. } => Some(key),
            Self::Input { key, .. } => Some(key),
            Self::Unable(_) | Self::Failed { .. } | Self::Interrupted => None,
        }
    }
}
