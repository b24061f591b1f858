//! Worlds: where scenarios run.
//!
//! A world is the simulator, or this machine's kernel in network namespaces. A world turns a variant
//! and a repeat into raw observations. Metrics, records and reports are the same for all worlds.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::record::{DatapathCost, QueueRecord, SimCost};
pub use crate::record::{
    ProcessRecord as RawProcess, ProcessorRecord as RawProcessor, QdiscRecord as RawQdisc,
};
use crate::scenario::{Scenario, Variant};
use crate::units::{BitRate, ByteSize, Nanoseconds};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assessment {
    /// Every setting by name, with this world's value.
    pub settings: BTreeMap<String, String>,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct Job<'a> {
    pub scenario: &'a Scenario,
    pub variant: &'a Variant,
    /// Number of the repeat, from 0.
    pub repeat: u32,
    pub seed: u64,
    pub rate: BitRate,
    pub warmup: Nanoseconds,
    pub duration: Nanoseconds,
    /// Bin length of the per-flow series; every window and the duration are multiples of it.
    pub bin: Nanoseconds,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawRepeat {
    /// The bulk flows.
    pub flows: Vec<RawFlow>,
    pub queues: Vec<QueueRecord>,
    /// Sum over cores of the share of time in which each was busy: 1.0 is one core.
    pub busy_cores: Option<f64>,
    /// Measured time, if it depends on the workload instead of the job.
    pub elapsed: Option<Nanoseconds>,
    /// Half of each round trip of the latency probe, µs.
    pub latency_us: Vec<f64>,
    /// Fetches of the timed clients in the measured time.
    pub fetches: Vec<RawFetch>,
    pub clients: Vec<RawClients>,
    /// Retransmitted segments of all bulk flows.
    pub retransmits: Option<u64>,
    pub sim: Option<SimCost>,
    /// The BPF programs' cost.
    pub datapath: Option<DatapathCost>,
    /// Processes, processors and qdiscs, in a scenario with tenants.
    pub tenants: Option<RawTenants>,
    /// Losses and cycles, in a scenario with transfers.
    pub transfers: Option<RawTransfers>,
    /// Further counters of the world, by name.
    pub counters: BTreeMap<String, f64>,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawTransfers {
    /// Retransmission events: several retransmissions of a flow within 100 ms count as one.
    pub retransmission_events: u64,
    /// Dropped packets, by [`crate::record::metric::DROPS_PARTS`]; `None` for a place that the packets
    /// do not pass.
    pub drops: [Option<u64>; 5],
    /// Cycles of the receiving hosts, by [`crate::record::metric::CPU_SHARE_PARTS`].
    pub cycles: [f64; 8],
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawTenants {
    pub processes: Vec<RawProcess>,
    /// Time that each processor spent in each mode.
    pub processors: Vec<RawProcessor>,
    /// Every qdisc, without classes: its counters over the measured time, and its backlog at the end.
    pub qdiscs: Vec<RawQdisc>,
    pub line: Option<RawLine>,
    /// Processor time of processes outside the measurement, including stolen time: 1.0 is one processor.
    pub disturbance: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawLine {
    pub bin: Nanoseconds,
    /// Capacity of the link in a bin, bytes.
    pub capacity_bytes: f64,
    pub bytes: Vec<u64>,
    /// Minimum backlog in each bin. In worlds that only sample the backlog, the minimum of the samples.
    pub backlog_bytes: Vec<u64>,
}

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
    /// Data packets that arrived after a later packet.
    pub out_of_order: Option<u64>,
    /// State of the flow's TCP in each bin, if it was recorded.
    pub tcp: Vec<RawTcp>,
    /// Ranges of bins during which the flow always had a backlog.
    pub backlogged: Vec<Range<usize>>,
    /// Time from start to completion, seconds, of a flow of fixed size.
    pub completion_s: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawTcp {
    /// Congestion window after the last acknowledgement, packets.
    pub window: u64,
    /// Mean and largest round trip, ns; 0 without an acknowledgement.
    pub rtt_ns: u64,
    pub rtt_most_ns: u64,
    /// Pacing rate after the last acknowledgement, bit/s.
    pub pacing_bps: u64,
    /// Packets in flight after the last acknowledgement.
    pub in_flight: u64,
}

/// Name of a column of a series, and its value in a bin.
pub type TcpColumn = (&'static str, fn(&RawTcp) -> u64);

impl RawTcp {
    pub const COLUMNS: [TcpColumn; 5] = [
        ("window_packets", |bin| bin.window),
        ("rtt_ns", |bin| bin.rtt_ns),
        ("rtt_max_ns", |bin| bin.rtt_most_ns),
        ("pacing_bps", |bin| bin.pacing_bps),
        ("in_flight_packets", |bin| bin.in_flight),
    ];
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawClients {
    pub name: String,
    pub clients: Vec<RawClient>,
    /// Response times of the group's clients, exact to 0.1 %: each time with its number of responses,
    /// ascending.
    pub responses: Vec<(Nanoseconds, u64)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawClient {
    /// Time that the client was running within the measurement.
    pub present: Nanoseconds,
    /// Number of answered requests in each second from the beginning of the measurement.
    pub requests: Vec<u64>,
    /// Sum of the client's response times in each second, ns.
    pub response_ns: Vec<u128>,
    /// Received payload, bytes.
    pub payload_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawFetch {
    pub size: ByteSize,
    /// Time from the request until the client has the whole response, seconds.
    pub completion_s: f64,
}

pub trait Observer: Sync {
    /// Reports that `fraction` (0 to 1) of a repeat is done; `activity` is the current step.
    fn progress(&self, fraction: f64, activity: &str);
    fn remark(&self, text: &str);
    /// Returns whether the user interrupted the run; the world must then restore everything and return.
    fn interrupted(&self) -> bool;
}

pub trait World {
    type Error: std::error::Error + Send;

    /// Returns the world's name on the command line and in records: `sim` or `netns`.
    fn name(&self) -> &'static str;
    /// Returns the kernel release, or the simulator's kernel profile.
    fn kernel(&self) -> String;
    /// Returns facts about the system for the record: hardware, versions, settings.
    fn facts(&self) -> BTreeMap<String, String>;
    /// Returns this world's settings for a variant.
    ///
    /// # Errors
    /// Returns the reason why the variant cannot run, for the record's list of refusals.
    fn assess(&self, scenario: &Scenario, variant: &Variant) -> Result<Assessment, String>;
    /// Returns the link rate for a run of the scenario. `wanted` is the user's rate, if any.
    ///
    /// # Errors
    /// Returns an error if this world cannot run the scenario, or cannot run it at this rate.
    fn settle_rate(
        &mut self,
        scenario: &Scenario,
        wanted: Option<BitRate>,
        observer: &dyn Observer,
    ) -> Result<BitRate, Self::Error>;
    /// Runs one repeat, and removes everything that the repeat created.
    ///
    /// # Errors
    /// Returns an error if the repeat could not finish, or was interrupted.
    fn repeat(&mut self, job: &Job<'_>, observer: &dyn Observer) -> Result<RawRepeat, Self::Error>;
    /// Returns this world if it can run repeats concurrently without interference.
    fn concurrent(&self) -> Option<&dyn ConcurrentWorld<Error = Self::Error>> {
        None
    }
}

pub trait ConcurrentWorld: Sync {
    type Error: std::error::Error + Send;

    /// Returns the estimated memory of a repeat, bytes. The estimate limits the number of concurrent
    /// repeats.
    fn memory(&self, _job: &Job<'_>) -> u64 {
        0
    }

    /// Returns the estimated memory that a repeat's result keeps until the record is written, bytes.
    fn kept(&self, _job: &Job<'_>) -> u64 {
        0
    }

    /// Runs one repeat; see [`World::repeat`].
    fn repeat(&self, job: &Job<'_>, observer: &dyn Observer) -> Result<RawRepeat, Self::Error>;
}
