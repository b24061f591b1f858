//! What can go wrong: in a topology, in a simulation, in a repeat of a scenario.

use crate::qdisc::KindError;

/// Why a topology is no network.
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
    /// A link has an end that there is not.
    #[error("link {link} ends at a host or switch that there is not, or at the switch that it comes from")]
    LooseEnd {
        /// Its number.
        link: usize,
    },
    /// There is no path.
    #[error("no path leads from host {from} to host {to}")]
    Unreachable {
        /// Source.
        from: u32,
        /// Destination.
        to: u32,
    },
    /// A host sends to itself, or a host is meant that there is not.
    #[error("there is no transfer from host {from} to host {to}")]
    Transfer {
        /// Source.
        from: u32,
        /// Destination.
        to: u32,
    },
}

/// What goes wrong in a simulation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// The settings do not fit.
    #[error(transparent)]
    Qdisc(#[from] KindError),
    /// A number is beyond what is simulated.
    #[error("{what} has to be {range}, not {value}")]
    Range {
        /// What number.
        what: &'static str,
        /// What it may be.
        range: &'static str,
        /// What it is.
        value: u64,
    },
    /// The network is none.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// Nothing is planned, and yet not everything is done.
    #[error(
        "the simulation came to a standstill at {at_us} µs: nothing is planned, and {unfinished} flows have data outstanding"
    )]
    Standstill {
        /// When, µs.
        at_us: u64,
        /// Flows with something outstanding.
        unfinished: usize,
    },
    /// Event follows event, and nothing is sent.
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
    /// Time goes on, and nothing new arrives.
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

/// Why a simulation has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// The scenario is beyond what is simulated.
    #[error("{0}")]
    Unable(String),
    /// It failed while it ran.
    #[error("{variant}, seed {seed}: {source}")]
    Failed {
        /// Variant.
        variant: String,
        /// Seed of the repeat.
        seed: u64,
        /// What happened.
        source: SimulationError,
    },
    /// The user wanted to stop.
    #[error("interrupted; nothing was changed on this machine")]
    Interrupted,
}
