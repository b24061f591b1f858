//! Errors of topologies, of simulations, and of repeats of a scenario.

use crate::qdisc::KindError;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    #[error("host {host} has {links} links; it must have one")]
    HostLinks { host: u32, links: usize },
    #[error("link {link} does not end at another existing host or switch")]
    LooseEnd { link: usize },
    #[error("no path leads from host {from} to host {to}")]
    Unreachable { from: u32, to: u32 },
    #[error("host {from} cannot send to host {to}: it is the same host or does not exist")]
    Transfer { from: u32, to: u32 },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    #[error(transparent)]
    Qdisc(#[from] KindError),
    #[error("{what} must be {range}, not {value}")]
    Range { what: &'static str, range: &'static str, value: u64 },
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The calendar is empty, but transfers are unfinished.
    #[error(
        "the simulation makes no progress at {at_us} µs: no event is pending, but data is outstanding (number \
         of flows: {unfinished}); check the rates and limits of the scenario"
    )]
    Standstill {
        /// In µs.
        at_us: u64,
        /// Number of flows with data outstanding.
        unfinished: usize,
    },
    /// Events continue, but no packet is sent.
    #[error(
        "the simulation makes no progress at {at_us} µs: {events} events in a row sent no packet; this is an error \
         in the simulator: report it with the scenario and the seed"
    )]
    Livelock {
        /// In µs.
        at_us: u64,
        events: u64,
    },
    /// Simulated time advances, but no new data arrives.
    #[error(
        "the transfers make no progress: at {at_us} µs no host has received new data for {wait_s} s \
         (number of incomplete flows: {unfinished}); check the rates and limits of the scenario"
    )]
    NoProgress {
        /// In µs.
        at_us: u64,
        /// Time without new data, in seconds.
        wait_s: u64,
        unfinished: usize,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    #[error("{0}")]
    Unable(String),
    #[error("{key}: {problem}")]
    Setting { key: &'static str, problem: String },
    /// A part of the scenario is invalid, and this is detected only at run time.
    #[error("{problem}")]
    Input {
        /// A key of the scenario, or the path of a file.
        key: String,
        problem: String,
    },
    #[error("{variant}, seed {seed}: {source}")]
    Failed { variant: String, seed: u64, source: SimulationError },
    #[error("interrupted; nothing was changed on this machine")]
    Interrupted,
}

impl SimError {
    /// Returns the key of the scenario, or the path of the file, that is unsupported or invalid. Returns
    /// `None` if the error is about neither.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Setting { key, .. } => Some(key),
            Self::Input { key, .. } => Some(key),
            Self::Unable(_) | Self::Failed { .. } | Self::Interrupted => None,
        }
    }
}
