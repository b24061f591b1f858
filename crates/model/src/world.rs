//! Worlds: where a scenario can run, and what each owes.
//!
//! A world is the simulator, or this machine's kernel in network namespaces. It turns a variant
//! and a repeat into raw observations; everything after that (metrics, records, reports) is the
//! same for all of them.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::record::{DatapathCost, QueueRecord, SimCost};
pub use crate::record::{
    ProcessRecord as RawProcess, ProcessorRecord as RawProcessor, QdiscRecord as RawQdisc,
};
use crate::scenario::{Scenario, Variant};
use crate::units::{BitRate, ByteSize, Nanoseconds};

/// What a world makes of a variant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assessment {
    /// Every setting, and what this world makes of it.
    pub settings: BTreeMap<String, String>,
    /// What a reader of the figures must know, such as a knob that this world lacks.
    pub notes: Vec<String>,
}

/// One repeat of one variant, to be run.
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
    /// Grain of the per-flow series; divides every window and the duration.
    pub bin: Nanoseconds,
}

/// What was observed in one repeat.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawRepeat {
    /// The bulk flows.
    pub flows: Vec<RawFlow>,
    /// The transmit queues.
    pub queues: Vec<QueueRecord>,
    /// Sum over cores of the share of time that each was busy: 1.0 is one core.
    pub busy_cores: Option<f64>,
    /// Time that was measured, where the workload decides it and not the job.
    pub elapsed: Option<Nanoseconds>,
    /// Half of each round trip of the latency probe, µs.
    pub latency_us: Vec<f64>,
    /// What the timed clients of a fetch workload have fetched in the measured time.
    pub fetches: Vec<RawFetch>,
    /// Clients that send requests.
    pub clients: Vec<RawClients>,
    /// Retransmitted segments of all bulk flows.
    pub retransmits: Option<u64>,
    /// The simulator's own cost.
    pub sim: Option<SimCost>,
    /// The BPF programs' cost.
    pub datapath: Option<DatapathCost>,
    /// What stood in front of the line and behind the flows, where the workload is tenants.
    pub tenants: Option<RawTenants>,
    /// Further counters of the world, by name.
    pub counters: BTreeMap<String, f64>,
    /// What a reader must know of this repeat.
    pub notes: Vec<String>,
}

/// What was observed beside the flows where tenants share a line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawTenants {
    /// Processor time of each process that made traffic.
    pub processes: Vec<RawProcess>,
    /// How each processor spent the measured time.
    pub processors: Vec<RawProcessor>,
    /// Every qdisc, classes left out, at the end of the measurement; counts are of the measured time.
    pub qdiscs: Vec<RawQdisc>,
    /// The line and what waited for it, bin by bin.
    pub line: Option<RawLine>,
    /// Processor time in the measured time of processes that are none of the run's, stolen time included: 1.0 is one
    /// processor.
    pub disturbance: Option<f64>,
}

/// The line and what waited for it, bin by bin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawLine {
    /// Length of a bin.
    pub bin: Nanoseconds,
    /// What the line can carry in a bin, bytes.
    pub capacity_bytes: f64,
    /// Bytes that left in each bin.
    pub bytes: Vec<u64>,
    /// Least number of bytes that were seen waiting in each bin; where a world samples, what it saw.
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
    /// Bins throughout which the flow had something to send.
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
    /// Times from request to response of all of them: length and how often, the shortest first. Lengths are true to
    /// 0.1 %.
    pub responses: Vec<(Nanoseconds, u64)>,
}

/// A client that sends requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawClient {
    /// Measured time that it was there.
    pub present: Nanoseconds,
    /// Answered requests in each second from the beginning of the measurement.
    pub requests: Vec<u64>,
    /// Sum of their times from request to response in each second, ns.
    pub response_ns: Vec<u128>,
    /// Payload that it received, bytes.
    pub payload_bytes: u64,
}

/// A value that a client has fetched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawFetch {
    /// Its size.
    pub size: ByteSize,
    /// From the request until the whole response was there for the client, seconds.
    pub completion_s: f64,
}

/// Watches a run: told of its progress, and asked whether it should go on.
pub trait Observer: Sync {
    /// A repeat is `fraction` (0 to 1) done, and doing `activity`.
    fn progress(&self, fraction: f64, activity: &str);
    /// A remark for the person at the terminal.
    fn remark(&self, text: &str);
    /// The user wants to stop: put everything back and return.
    fn interrupted(&self) -> bool;
}

/// Where scenarios run.
pub trait World {
    /// What can go wrong in it.
    type Error: std::error::Error + Send;

    /// Name on the command line and in records: `sim` or `netns`.
    fn name(&self) -> &'static str;
    /// Kernel release, or kernel profile of the simulator.
    fn kernel(&self) -> String;
    /// Facts for the record: hardware, versions, settings.
    fn facts(&self) -> BTreeMap<String, String>;
    /// What this world makes of a variant; the reason when it cannot run it at all.
    ///
    /// # Errors
    /// The reason, for the record's list of refusals.
    fn assess(&self, scenario: &Scenario, variant: &Variant) -> Result<Assessment, String>;
    /// The rate at which the scenario will run. `wanted` is what the user asked for, if anything.
    ///
    /// # Errors
    /// When this world cannot run the scenario, or not at the wanted rate.
    fn settle_rate(
        &mut self,
        scenario: &Scenario,
        wanted: Option<BitRate>,
        observer: &dyn Observer,
    ) -> Result<BitRate, Self::Error>;
    /// Runs one repeat and leaves nothing behind.
    ///
    /// # Errors
    /// When it could not be run to its end, or was interrupted.
    fn repeat(&mut self, job: &Job<'_>, observer: &dyn Observer) -> Result<RawRepeat, Self::Error>;
    /// This world, if it can run several repeats at the same time without one changing another.
    fn concurrent(&self) -> Option<&dyn ConcurrentWorld<Error = Self::Error>> {
        None
    }
}

/// A world that can run several repeats at the same time.
pub trait ConcurrentWorld: Sync {
    /// What can go wrong in it.
    type Error: std::error::Error + Send;

    /// Runs one repeat; see [`World::repeat`].
    ///
    /// # Errors
    /// As [`World::repeat`].
    fn repeat(&self, job: &Job<'_>, observer: &dyn Observer) -> Result<RawRepeat, Self::Error>;
}
