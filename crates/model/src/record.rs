//! Records: the results of a run, with the data that is needed to interpret them.
//!
//! A record contains raw values per repeat. Summaries, tables and comparisons are computed from it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub const SCHEMA: u32 = 1;

/// Start of the note of a variant whose traffic was not measured in at least one repeat.
pub const NOTHING_MEASURED: &str = "nothing was measured";
/// Part of each note about a missing figure of a repeat. The cause precedes this part; the figure follows.
pub const LACKS_FIGURE: &str = ", so a repeat has no ";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Schema version of the writer, see [`SCHEMA`].
    pub schema: u32,
    /// Version of Evenkeel that wrote the record.
    pub evenkeel: String,
    pub scenario: String,
    pub scenario_text: String,
    /// `sim` or `netns`.
    pub world: String,
    /// Kernel release (`6.18.44`) or the simulator's profile (`4.4`).
    pub kernel: String,
    /// Start of the run, RFC 3339 in UTC.
    pub started: String,
    /// Facts about the host: CPU model, cores, memory, tool versions, and so on.
    pub host: BTreeMap<String, String>,
    /// Link rate of this run, bit/s.
    pub rate_bps: u64,
    /// Link rate for which the scenario defines its windows, bit/s.
    pub nominal_rate_bps: u64,
    pub seed: u64,
    /// Whether the run was too short for the scenario's expectations.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub quick: bool,
    /// Length of one repeat without its warm-up, seconds.
    pub duration_s: f64,
    /// Warm-up of one repeat, seconds.
    pub warmup_s: f64,
    /// Length of each window in this run, seconds, by its name at the nominal rate.
    pub windows: BTreeMap<String, f64>,
    pub variants: Vec<VariantRecord>,
    /// Variants that this world could not run.
    pub refused: Vec<Refusal>,
    pub paper: Option<PaperRecord>,
    /// The verdicts on the expectations of the variants that ran or that this world could not run.
    pub expectations: Vec<ExpectationRecord>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VariantRecord {
    pub name: String,
    /// Every setting of the variant, with this world's value.
    pub settings: BTreeMap<String, String>,
    /// Remarks for readers of the figures.
    pub notes: Vec<String>,
    /// The repeats, in the order in which they ran.
    pub repeats: Vec<RepeatRecord>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RepeatRecord {
    /// Values by metric key (see [`metric`]). A metric that was not measured is absent.
    pub metrics: BTreeMap<String, f64>,
    pub queues: Vec<QueueRecord>,
    pub flows: Vec<FlowRecord>,
    /// Results of each group of clients that send requests.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub clients: Vec<ClientsRecord>,
    /// Processes, CPUs and qdiscs, in a scenario with tenants.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tenants: Option<TenantsRecord>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sim: Option<SimCost>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub datapath: Option<DatapathCost>,
    /// Further counters of the world, such as `false_releases` or `meter_vs_iperf3_max_error`.
    #[serde(default)]
    pub counters: BTreeMap<String, f64>,
    /// File of the raw series, relative to the record's directory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub series: Option<String>,
}

impl RepeatRecord {
    /// Returns whether the meter did not count some packets. The figures are then incomplete.
    #[must_use]
    pub fn meter_overflowed(&self) -> bool {
        self.counters.get("meter_overflow").is_some_and(|packets| *packets > 0.0)
    }
}

/// Counters of a transmit queue during the measurement. In a scenario of requests: of a receive queue of the
/// server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueRecord {
    /// Flows that use the queue at the end.
    pub flows: u32,
    pub bytes: u64,
}

/// One bulk flow during the measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowRecord {
    /// Name, unique in the repeat: source and destination port; sending and receiving host in a simulated
    /// shuffle; or a number such as `flow-3`.
    pub name: String,
    /// Transmit queue at the end, if known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queue: Option<u32>,
    /// Bytes on the wire.
    pub bytes: u64,
    /// Packets on the wire.
    pub packets: u64,
    /// TCP payload delivered.
    pub payload_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retransmits: Option<u64>,
    /// Data packets that arrived after a packet with a higher sequence number.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub out_of_order: Option<u64>,
}

/// A group of clients that send requests, during the measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientsRecord {
    pub name: String,
    pub clients: u32,
    /// Answered requests.
    pub requests: u64,
    /// Results of each second from the beginning of the measurement (Dragonet, Figure 4).
    pub seconds: Vec<SecondRecord>,
}

/// One second of a group of clients, or the measured part of this second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SecondRecord {
    /// Answered requests of all clients together.
    pub requests: u64,
    /// Median number of answered requests, over the clients.
    pub client_median_requests: f64,
    /// Median of the clients' mean response times, µs; absent without a response.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub client_median_response_us: Option<f64>,
}

/// Processes, CPUs and qdiscs, with tenants on a link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TenantsRecord {
    /// CPU time of each process that sends or receives traffic.
    pub processes: Vec<ProcessRecord>,
    pub processors: Vec<ProcessorRecord>,
    pub qdiscs: Vec<QdiscRecord>,
}

/// CPU time of a process in the measured time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Name of the task: `bulk 3 client`, `probe 0 server`.
    pub name: String,
    pub user_s: f64,
    pub system_s: f64,
}

/// Shares of the measured time that a CPU spent in each mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessorRecord {
    pub user: f64,
    /// Kernel mode, on behalf of processes.
    pub system: f64,
    /// Soft interrupts and interrupts.
    pub softirq: f64,
    /// Idle while a task waited for input or output.
    pub wait: f64,
}

/// Counters of a qdisc in the measured time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QdiscRecord {
    /// Handle in the notation of `tc`.
    pub handle: String,
    pub kind: String,
    pub bytes: u64,
    /// Packets sent. Each packet of a segment is counted.
    pub packets: u64,
    pub drops: u64,
    /// Number of times that the qdisc had packets but was not allowed to send.
    pub overlimits: u64,
    /// Packets returned to the qdisc, because the driver refused them or its queue had stopped.
    pub requeues: u64,
    /// Bytes queued at the end.
    pub backlog_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SimCost {
    /// Data packets sent; in a scenario of requests, answered requests.
    pub packets: u64,
    /// Simulated time, seconds: warm-up, duration, and the duration of the latency probe.
    pub simulated_s: f64,
    pub cpu_seconds: f64,
}

/// Cost of the BPF programs, from the kernel's run-time statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DatapathCost {
    /// Time for queue choices, ns.
    pub run_time_ns: u64,
    /// Time for completions, ns. In a test bed, the receiver's device processes the completions for the
    /// sender.
    #[serde(default)]
    pub completion_ns: u64,
    /// Segments for which a queue was chosen.
    pub segments: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub name: String,
    /// The reason, and a remedy.
    pub why: String,
}

/// The paper's figures, as in [`crate::scenario::Paper`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PaperRecord {
    pub source: String,
    /// Figures by variant and metric key.
    pub variants: BTreeMap<String, BTreeMap<String, f64>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpectationRecord {
    pub variant: String,
    pub metric: String,
    /// `mean`, or `share`: the share of repeats within the bounds.
    pub statistic: String,
    /// With `share`: the required share of repeats within the bounds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub share: Option<f64>,
    /// The variant whose value is the divisor. The bounds then apply to the ratio.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub relative_to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub at_least: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub at_most: Option<f64>,
    /// The mean, the mean ratio, or the share of the repeats; `None` if not measured.
    pub value: Option<f64>,
    /// Ends of the 95 % confidence interval of `value`; absent with too few repeats.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub interval: Option<(f64, f64)>,
    /// Repeats required for a verdict.
    #[serde(default = "one_repeat")]
    pub repeats: u32,
    /// True if the whole interval is within the bounds. False if the whole interval is outside the bounds, a
    /// repeat lacks the metric, or a value of 0 gives no ratio and violates a bound. `None` if the
    /// expectation was not judged, or the interval includes a bound.
    pub met: Option<bool>,
    /// Reason for a missing verdict, or for a verdict without a ratio.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub open: Option<String>,
}

fn one_repeat() -> u32 {
    1
}

/// Metric keys: the names of values in records, summaries, expectations and comparisons.
///
/// A key is a path into the JSON of `run`: `throughput_bps`, `latency_us.p99`, `nfm.1s`.
pub mod metric {
    use crate::units::ByteSize;

    /// Delivered payload of all bulk flows and clients per second, bit/s.
    pub const THROUGHPUT: &str = "throughput_bps";
    /// Busy time summed over cores, percent of one core. The world and the workload determine the cores
    /// (`docs/reference/metrics.md`).
    pub const CPU: &str = "cpu_pct";
    /// Prefix of the latency figures (`mean`, `p50`, `p90`, `p99`, `p999`): half a round trip, µs.
    pub const LATENCY: &str = "latency_us";
    /// Prefix of the mean normalised fairness metric, by window name.
    pub const NFM: &str = "nfm";
    /// Prefix of the maximum normalised fairness metric, by window name.
    pub const NFM_MAX: &str = "nfm_max";
    /// Jain's index over the bytes of each flow, divided by the flow's weight.
    pub const JAIN_BYTES: &str = "jain_bytes";
    /// Jain's index over the packets of each flow, divided by the flow's weight.
    pub const JAIN_PACKETS: &str = "jain_packets";
    /// Retransmitted segments of all bulk flows.
    pub const RETRANSMITS: &str = "retransmits";
    /// Data packets that arrived after a packet with a higher sequence number.
    pub const OUT_OF_ORDER: &str = "out_of_order";
    /// Prefix of the completion times of flows or fetches (`mean`, `p50`, `p80`, `p99`, `spread`),
    /// seconds. Also used for one size (see [`completion_of`]).
    pub const COMPLETION: &str = "fct_s";

    /// Prefix of the times from request to response of clients in a closed loop, µs; followed by the group of
    /// clients ([`of_clients`]).
    pub const RESPONSE: &str = "response_us";
    /// Prefix of answered requests per second; followed by the group of clients ([`of_clients`]).
    pub const REQUESTS: &str = "requests_per_s";
    /// Prefix of the number of busy CPUs in the measured time, with tenants ([`CORES_PARTS`]).
    pub const CORES: &str = "cores";
    /// Prefix of CPU time per GB (10⁹ bytes) of delivered payload, seconds ([`CORES_PARTS`]).
    pub const CPU_PER_GB: &str = "cpu_s_per_gb";
    /// Parts of [`CORES`] and [`CPU_PER_GB`]: all busy time, user space, kernel for processes,
    /// interrupts, and waiting. `busy` excludes `wait`.
    pub const CORES_PARTS: [&str; 5] = ["busy", "user", "system", "softirq", "wait"];
    /// Answered requests of all probes per second.
    pub const TRANSACTIONS: &str = "transactions_per_s";
    /// Share of half round trips that exceed the service level objective.
    pub const SLO_VIOLATIONS: &str = "slo_violation_share";
    /// Prefix of the counters of the qdisc with its children ([`QDISC_PARTS`]).
    pub const QDISC: &str = "qdisc";
    /// Parts of [`QDISC`]:
    /// - dropped packets
    /// - number of times that the qdisc had packets but was not allowed to send
    /// - packets returned to the qdisc, because the driver refused them or its queue had stopped
    /// - bytes queued at the end
    pub const QDISC_PARTS: [&str; 4] = ["drops", "overlimits", "requeues", "backlog_bytes"];
    /// While packets waited: share of the time in which less than half of the link's capacity was used.
    pub const IDLE_WHILE_BACKLOGGED: &str = "idle_while_backlogged";
    /// Unused share of the link's capacity while packets waited.
    pub const LOST_CAPACITY: &str = "lost_capacity";
    /// CPU use of processes outside the measurement, including stolen time: 1.0 is one CPU.
    pub const DISTURBANCE: &str = "disturbance";

    /// Retransmitted segments per second, with transfers.
    pub const RETRANSMITS_PER_S: &str = "retransmits_per_s";
    /// Retransmission events per second, with transfers. Retransmissions of a flow within 100 ms are
    /// one event.
    pub const RETRANSMISSION_EVENTS_PER_S: &str = "retransmission_events_per_s";
    /// TCP payload per second, divided by the number of busy receiving cores, bit/s, with transfers.
    pub const THROUGHPUT_PER_CORE: &str = "throughput_per_core_bps";
    /// Prefix of the dropped packets, with transfers ([`DROPS_PARTS`]).
    pub const DROPS: &str = "drops";
    /// Parts of [`DROPS`]:
    /// - drops in the switch
    /// - drops in the receiving NIC, before its ring
    /// - drops because the ring was full
    /// - drops because the socket's backlog was full
    /// - drops from the socket's queues, because their memory was full
    pub const DROPS_PARTS: [&str; 5] = ["switch", "nic", "ring", "socket_backlog", "pruned"];
    /// Prefix of the shares of the receiving hosts' cycles, with transfers ([`CPU_SHARE_PARTS`]).
    pub const CPU_SHARE: &str = "cpu_share";
    /// Parts of [`CPU_SHARE`], as in *Understanding Host Network Stack Overheads*.
    pub const CPU_SHARE_PARTS: [&str; 8] =
        ["copy", "tcp_ip", "netdev", "memory", "skb", "lock", "sched", "other"];

    /// Returns whether the first part of a key, up to the first dot, is known for any workload.
    #[must_use]
    pub fn is_known(prefix: &str) -> bool {
        let others = [LATENCY, NFM, NFM_MAX, COMPLETION, RESPONSE, REQUESTS];
        let whole = [of_transfers(), of_tenants()].concat();
        others.contains(&prefix)
            || PLAIN.contains(&prefix)
            || whole.iter().any(|key| key.split('.').next() == Some(prefix))
    }

    /// Returns the smallest and the largest possible value of a metric. A bound is infinite if the
    /// metric has no bound, or is unknown.
    #[must_use]
    pub fn range(key: &str) -> (f64, f64) {
        match key.split('.').next().unwrap_or_default() {
            JAIN_BYTES
            | JAIN_PACKETS
            | SLO_VIOLATIONS
            | CPU_SHARE
            | IDLE_WHILE_BACKLOGGED
            | LOST_CAPACITY => (0.0, 1.0),
            prefix if is_known(prefix) => (0.0, f64::INFINITY),
            _ => (f64::NEG_INFINITY, f64::INFINITY),
        }
    }

    /// Returns every key that only scenarios with transfers have.
    #[must_use]
    pub fn of_transfers() -> Vec<String> {
        let parts = [(DROPS, &DROPS_PARTS[..]), (CPU_SHARE, &CPU_SHARE_PARTS[..])];
        let parts = parts.iter().flat_map(|(prefix, parts)| parts.iter().map(|name| part(prefix, name)));
        let plain = [RETRANSMITS_PER_S, RETRANSMISSION_EVENTS_PER_S, THROUGHPUT_PER_CORE];
        plain.into_iter().map(str::to_owned).chain(parts).collect()
    }

    /// Returns every key that only scenarios with tenants have.
    #[must_use]
    pub fn of_tenants() -> Vec<String> {
        let parts = [(CORES, &CORES_PARTS[..]), (CPU_PER_GB, &CORES_PARTS[..]), (QDISC, &QDISC_PARTS[..])];
        let parts = parts.iter().flat_map(|(prefix, parts)| parts.iter().map(|name| part(prefix, name)));
        let plain = [TRANSACTIONS, SLO_VIOLATIONS, IDLE_WHILE_BACKLOGGED, LOST_CAPACITY, DISTURBANCE];
        plain.into_iter().map(str::to_owned).chain(parts).collect()
    }

    /// Name for all groups of clients together.
    pub const ALL_CLIENTS: &str = "all";

    /// Parts of [`RESPONSE`]: mean over the requests, median of the clients' means, percentiles of the
    /// requests.
    pub const RESPONSE_PARTS: [&str; 6] = ["mean", "client_median", "p50", "p90", "p99", "p999"];
    /// Parts of [`REQUESTS`]: all clients together, median over the clients.
    pub const REQUESTS_PARTS: [&str; 2] = ["total", "client_median"];
    /// Keys without parts, except those that only tenants or transfers have.
    pub const PLAIN: [&str; 6] = [THROUGHPUT, CPU, JAIN_BYTES, JAIN_PACKETS, RETRANSMITS, OUT_OF_ORDER];
    pub const LATENCY_PARTS: [&str; 5] = ["mean", "p50", "p90", "p99", "p999"];
    pub const COMPLETION_PARTS: [&str; 5] = ["mean", "p50", "p80", "p99", "spread"];
    /// Parts of [`COMPLETION`] for the fetches of one size.
    pub const SIZE_PARTS: [&str; 3] = ["mean", "p50", "p99"];

    /// Returns the key of a part: `part(NFM, "1s")` is `nfm.1s`.
    #[must_use]
    pub fn part(prefix: &str, part: &str) -> String {
        format!("{prefix}.{part}")
    }

    /// Returns the key of the completion times of fetches of one size: `fct_s.2KiB.p99`.
    #[must_use]
    pub fn completion_of(size: ByteSize, part: &str) -> String {
        format!("{COMPLETION}.{size}.{part}")
    }

    /// Returns the key of a group of clients: `of_clients(RESPONSE, "high", "p99")` is
    /// `response_us.high.p99`.
    #[must_use]
    pub fn of_clients(prefix: &str, group: &str, part: &str) -> String {
        format!("{prefix}.{group}.{part}")
    }
}
