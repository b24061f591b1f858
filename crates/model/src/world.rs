//! Worlds: where scenarios run.
//!
//! A world is the simulator, or this machine's kernel in network namespaces. It turns a variant and a repeat
//! into raw observations. Everything after that (metrics, records, reports) is the same for all worlds.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::record::{DatapathCost, QueueRecord, SimCost};
pub use crate::record::{
    ProcessRecord as RawProcess, ProcessorRecord as RawProcessor, QdiscRecord as RawQdisc,
};
use crate::scenario::{Scenario, Variant};
use crate::units::{BitRate, ByteSize, Nanoseconds};

/// A world's settings for a variant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assessment {
    /// Every setting, with this world's value.
    pub settings: BTreeMap<String, String>,
    /// Remarks for readers of the figures, such as a knob that this world lacks.
    pub notes: Vec<String>,
}

/// One repeat of one variant.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// The scenario.
    pub scenario: &'a Scenario,
    /// The variant, one of the scenario's.
    pub variant: &'a Variant,
    /// Number of the repeat, from 0.
    pub repeat: u32,
    /// Seed of this repeat.
    pub seed: u64,
    /// Line rate.
    pub rate: BitRate,
    /// Time before the measurement.
    pub warmup: Nanoseconds,
    /// Measured time.
    pub duration: Nanoseconds,
    /// Bin of the per-flow series; divides every window and the duration.
    pub bin: Nanoseconds,
}

/// Observations of one repeat.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawRepeat {
    /// The bulk flows.
    pub flows: Vec<RawFlow>,
    /// The transmit queues.
    pub queues: Vec<QueueRecord>,
    /// Sum over cores of their busy shares: 1.0 is one core.
    pub busy_cores: Option<f64>,
    /// Measured time, if the workload decides it and not the job.
    pub elapsed: Option<Nanoseconds>,
    /// Half of each round trip of the latency probe, µs.
    pub latency_us: Vec<f64>,
    /// Fetches of the timed clients in the measured time.
    pub fetches: Vec<RawFetch>,
    /// Clients that send requests.
    pub clients: Vec<RawClients>,
    /// Retransmitted segments of all bulk flows.
    pub retransmits: Option<u64>,
    /// Cost of the simulation.
    pub sim: Option<SimCost>,
    /// The BPF programs' cost.
    pub datapath: Option<DatapathCost>,
    /// Processes, processors and qdiscs, with tenants.
    pub tenants: Option<RawTenants>,
    /// Further counters of the world, by name.
    pub counters: BTreeMap<String, f64>,
    /// Remarks on this repeat.
    pub notes: Vec<String>,
}

/// Observations besides the flows, with tenants on a line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawTenants {
    /// Processor time of each process of the traffic.
    pub processes: Vec<RawProcess>,
    /// How each processor spent the measured time.
    pub processors: Vec<RawProcessor>,
    /// Every qdisc at the end of the measurement, without classes; counters are of the measured time.
    pub qdiscs: Vec<RawQdisc>,
    /// The line and its backlog, bin by bin.
    pub line: Option<RawLine>,
    /// Processor time of foreign processes in the measured time, with stolen time: 1.0 is one processor.
    pub disturbance: Option<f64>,
}

/// The line and its backlog, bin by bin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawLine {
    /// Length of a bin.
    pub bin: Nanoseconds,
    /// Capacity of the line in a bin, bytes.
    pub capacity_bytes: f64,
    /// Bytes sent in each bin.
    pub bytes: Vec<u64>,
    /// Minimum backlog of each bin; sampled in some worlds.
    pub backlog_bytes: Vec<u64>,
}

/// One bulk flow in one repeat.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawFlow {
    /// Name, unique in the repeat: source and destination port.
    pub name: String,
    /// Weight; 1 is an ordinary flow.
    pub weight: f64,
    /// Transmit queue at the end, if known.
    pub queue: Option<u32>,
    /// Bytes on the wire in each bin.
    pub bytes: Vec<u64>,
    /// Packets on the wire in each bin.
    pub packets: Vec<u64>,
    /// TCP payload delivered in the measured time.
    pub payload_bytes: u64,
    /// Retransmitted segments, if known per flow.
    pub retransmits: Option<u64>,
    /// Data packets that arrived after a later one.
    pub out_of_order: Option<u64>,
    /// Bins throughout which the flow was backlogged.
    pub backlogged: Vec<Range<usize>>,
    /// Time from start to completion, seconds, of a flow of fixed size.
    pub completion_s: Option<f64>,
}

/// A group of clients that send requests, in one repeat.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawClients {
    /// Name of the group.
    pub name: String,
    /// Each client.
    pub clients: Vec<RawClient>,
    /// Times from request to response of all clients: length and frequency, ascending. Exact to 0.1 %.
    pub responses: Vec<(Nanoseconds, u64)>,
}

/// A client that sends requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawClient {
    /// Its presence within the measured time.
    pub present: Nanoseconds,
    /// Answered requests in each second from the beginning of the measurement.
    pub requests: Vec<u64>,
    /// Sum of its times from request to response in each second, ns.
    pub response_ns: Vec<u128>,
    /// Received payload, bytes.
    pub payload_bytes: u64,
}

/// A value fetched by a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawFetch {
    /// Its size.
    pub size: ByteSize,
    /// From the request until the client has the whole response, seconds.
    pub completion_s: f64,
}

/// Observes a run: receives its progress, and may interrupt it.
pub trait Observer: Sync {
    /// `fraction` (0 to 1) of a repeat is done; `activity` is the current step.
    fn progress(&self, fraction: f64, activity: &str);
    /// A remark for the user.
    fn remark(&self, text: &str);
    /// Whether the user interrupts: restore everything and return.
    fn interrupted(&self) -> bool;
}

/// Where scenarios run.
pub trait World {
    /// Errors of this world.
    type Error: std::error::Error + Send;

    /// Name on the command line and in records: `sim` or `netns`.
    fn name(&self) -> &'static str;
    /// Kernel release, or kernel profile of the simulator.
    fn kernel(&self) -> String;
    /// Facts for the record: hardware, versions, settings.
    fn facts(&self) -> BTreeMap<String, String>;
    /// This world's settings for a variant.
    ///
    /// # Errors
    /// Why it cannot run, for the record's list of refusals.
    fn assess(&self, scenario: &Scenario, variant: &Variant) -> Result<Assessment, String>;
    /// Returns the rate of the scenario's run. `wanted` is the user's, if any.
    ///
    /// # Errors
    /// When this world cannot run the scenario, or not at this rate.
    fn settle_rate(
        &mut self,
        scenario: &Scenario,
        wanted: Option<BitRate>,
        observer: &dyn Observer,
    ) -> Result<BitRate, Self::Error>;
    /// Runs one repeat without leftovers.
    ///
    /// # Errors
    /// When it could not finish, or was interrupted.
    fn repeat(&mut self, job: &Job<'_>, observer: &dyn Observer) -> Result<RawRepeat, Self::Error>;
    /// This world, if it can run repeats concurrently without mutual influence.
    fn concurrent(&self) -> Option<&dyn ConcurrentWorld<Error = Self::Error>> {
        None
    }
}

/// A world that can run repeats concurrently.
pub trait ConcurrentWorld: Sync {
    /// Errors of this world.
    type Error: std::error::Error + Send;

    /// Runs one repeat; see [`World::repeat`].
    ///
    /// # Errors
    /// As [`World::repeat`].
    fn repeat(&self, job: &Job<'_>, observer: &dyn Observer) -> Result<RawRepeat, Self::Error>;
}
