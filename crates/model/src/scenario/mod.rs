//! Scenarios: what to run, as data.
//!
//! A scenario is a TOML file (see `docs/scenarios.md`). [`parse`] turns its text into a
//! [`Scenario`] in which every variant has its knobs resolved through the chain of bases, every
//! number has its unit, and nothing is left to check. It is strict: what it does not know it
//! refuses, with file, line and column ([`ScenarioError`]).
//!
//! ```text
//! text ──────────> TOML with positions ─ cursor ─> link, workload, ... ──────────┐
//! variant table ─> TOML with positions ─ cursor ─> knob settings ─ bases ─ knobs ┴─> Scenario
//! ```
//!
//! The scenarios that come with Evenkeel, and the tables of variants that any scenario may inherit
//! from, are in [`bundled`].

use std::collections::BTreeMap;

use crate::units::{BitRate, ByteSize, Nanoseconds};

pub mod bundled;
mod clients;
mod cursor;
pub mod document;
mod error;
mod flow_weights;
mod knobs;
mod parse;
mod receive_knobs;
mod requests;
mod results;
mod sections;
mod select;
mod sweep;
mod tenants;
#[cfg(test)]
mod tests;
mod traffic;
mod value;
mod variants;

pub use error::{ScenarioError, ScenarioErrorKind};
pub use flow_weights::{FlowRule, FlowWeights, MOST_RULES};
pub use parse::{SCHEMA, parse, parse_with};
pub use sections::LINE_RATES;
pub use select::UnknownVariant;
pub use sweep::{Setups, qdisc_files};
pub use tenants::{Axis, BulkTenants, Effort, Offloads, OnOff, Plot, Probes, TenantPoint, Tenants};

/// Largest weight of a flow: what the queue choice's word has room for.
pub const MAX_FLOW_WEIGHT: u32 = 65_535;

/// A scenario with all of its variants resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Name by which the scenario is called on the command line.
    pub name: String,
    /// One line for lists.
    pub title: String,
    /// Some sentences: what the scenario shows. May be empty.
    pub description: String,
    /// The sender's link.
    pub link: Link,
    /// The hosts.
    pub hosts: Hosts,
    /// The switch between the hosts, where the workload needs one.
    pub switch: Option<Switch>,
    /// The traffic.
    pub workload: Workload,
    /// How long and over which windows it is measured.
    pub measure: Measure,
    /// What is compared when nothing else is asked for, in the order of the file's `variants`.
    pub variants: Vec<Variant>,
    /// The other variants of the file and of its variant table; they run when asked for by name.
    /// Variants of the table that do not fit the scenario's link are left out.
    pub further_variants: Vec<Variant>,
    /// Named groups of variants, such as `main`.
    pub groups: BTreeMap<String, Vec<String>>,
    /// The figures of the paper that the scenario comes from.
    pub paper: Option<Paper>,
    /// What the results must satisfy; a run that misses one exits with 1.
    pub expectations: Vec<Expectation>,
}

/// The sender's link and its NIC.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Nominal line rate: windows are stated at this rate.
    pub rate: BitRate,
    /// Layer-3 MTU.
    pub mtu: ByteSize,
    /// Transmit queues of the NIC, 1 to [`MAX_QUEUES`].
    pub queues: u32,
    /// Queues of each priority of data-centre bridging (a traffic class, IEEE 802.1Q), which follow one
    /// another: a pool of its own for each (Titan, section 1). None where all flows share all queues.
    pub priorities: Vec<u32>,
    /// Receive queues over which each simulated host spreads what it receives, 1 to [`MAX_QUEUES`]; none: as many
    /// as the simulator's own hosts have.
    pub receive_queues: Option<u32>,
    /// How the test bed on a real kernel builds the NIC.
    pub topology: Topology,
}

/// The largest number of transmit queues a scenario may ask for.
pub const MAX_QUEUES: u32 = 256;

/// How the test bed on a real kernel builds the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// HTB classes as hardware queues, served by deficit round robin at line rate.
    SoftNic,
    /// The device's own transmit queues under an `mq` root, each shaped to its share of the rate.
    Mq,
}

/// The hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Hosts {
    /// How many: a sender and a receiver, or those of a shuffle, which are all both.
    pub count: u32,
    /// Cores of each sender; half of them carry twice as many flows as the others.
    pub sending_cores: u32,
}

/// The switch between several hosts, each with a link as the scenario's.
#[derive(Clone, Debug, PartialEq)]
pub struct Switch {
    /// Packet buffer that its ports share.
    pub buffer: ByteSize,
}

/// The traffic.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// What the flows do.
    pub kind: WorkloadKind,
    /// TCP flows that each sending host has.
    pub flows: u32,
    /// TCP congestion control of the flows.
    pub congestion_control: String,
    /// Priority of the flows, an index into [`Link::priorities`]; that of clients is their own.
    pub priority: u32,
    /// The request-response latency probe, if one runs.
    pub latency: Option<LatencyProbe>,
}

/// What the flows of a workload do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadKind {
    /// One host sends to another, and all flows are always backlogged.
    Bulk,
    /// Every host sends to every other, one flow each, and the run ends when all are complete.
    Shuffle {
        /// Payload of each flow.
        bytes_per_flow: ByteSize,
    },
    /// Clients on one host fetch values from a server on the other, each over a connection that stays
    /// open: a small request, and the value as its response. The next request follows at once.
    Fetch {
        /// The clients, with as many flows in all as the workload has.
        clients: Vec<ClientGroup>,
    },
    /// Clients ask a server over UDP, and send the next request when a response is there: what is told is how
    /// its receive queues serve them. Variants are [`ReceiveKnobs`].
    Requests(Requests),
    /// Clients share the link, with one qdisc in front of it at a time. Variants are [`TenantPoint`]s.
    Tenants(Tenants),
}

/// The requests of a closed loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requests {
    /// What answers.
    pub server: ServerKind,
    /// Hosts over which the clients are spread, each with one address.
    pub client_hosts: u32,
    /// Requests that set a value, per cent; the others get one. 0 of an echo server.
    pub set_percent: u32,
    /// After this time a client gives a request up that was lost, and makes another; none: never.
    pub timeout: Option<Nanoseconds>,
    /// The clients.
    pub clients: Vec<RequestClients>,
}

/// What answers requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// It sends each message back.
    Echo,
    /// It gets and sets values.
    Memcached,
}

/// Clients that send requests and are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestClients {
    /// Name in results.
    pub name: String,
    /// How many.
    pub count: u32,
    /// UDP flows of each.
    pub flows: u32,
    /// Requests of each flow that are under way at a time.
    pub outstanding: u32,
    /// Whether policies treat their flows as of high priority.
    pub high_priority: bool,
    /// When they come, from the beginning of the measurement; those that come then are there from the beginning of
    /// the warm-up.
    pub from: Nanoseconds,
    /// How long they stay; to the end if none.
    pub stay: Option<Nanoseconds>,
    /// The variants with which they are there; all if none.
    pub variants: Option<Vec<String>>,
}

impl RequestClients {
    /// Requests of all of them that are under way at a time.
    #[must_use]
    pub fn outstanding_in_all(&self) -> u64 {
        u64::from(self.count) * u64::from(self.flows) * u64::from(self.outstanding)
    }
}

/// Clients of a fetch workload that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientGroup {
    /// How many.
    pub count: u32,
    /// Sizes of the values that each of them fetches, in turn.
    pub sizes: Vec<ByteSize>,
    /// Whether the completion times of their fetches are among the results.
    pub timed: bool,
    /// Priority of their responses, an index into [`Link::priorities`].
    pub priority: u32,
}

impl Workload {
    /// What each flow transfers in a shuffle.
    #[must_use]
    pub fn shuffled_bytes(&self) -> Option<ByteSize> {
        match self.kind {
            WorkloadKind::Shuffle { bytes_per_flow } => Some(bytes_per_flow),
            WorkloadKind::Bulk
            | WorkloadKind::Fetch { .. }
            | WorkloadKind::Requests(_)
            | WorkloadKind::Tenants(_) => None,
        }
    }

    /// The requests of a closed loop; none in other workloads.
    #[must_use]
    pub fn requests(&self) -> Option<&Requests> {
        match &self.kind {
            WorkloadKind::Requests(requests) => Some(requests),
            WorkloadKind::Bulk
            | WorkloadKind::Shuffle { .. }
            | WorkloadKind::Fetch { .. }
            | WorkloadKind::Tenants(_) => None,
        }
    }

    /// The tenants; none in other workloads.
    #[must_use]
    pub fn tenants(&self) -> Option<&Tenants> {
        match &self.kind {
            WorkloadKind::Tenants(tenants) => Some(tenants),
            WorkloadKind::Bulk
            | WorkloadKind::Shuffle { .. }
            | WorkloadKind::Fetch { .. }
            | WorkloadKind::Requests(_) => None,
        }
    }

    /// The clients of a fetch workload; none in others.
    #[must_use]
    pub fn clients(&self) -> &[ClientGroup] {
        match &self.kind {
            WorkloadKind::Fetch { clients } => clients,
            WorkloadKind::Bulk
            | WorkloadKind::Shuffle { .. }
            | WorkloadKind::Requests(_)
            | WorkloadKind::Tenants(_) => &[],
        }
    }
}

/// A request-response probe that runs while the bulk flows do.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyProbe {
    /// Payload of a request and of its answer.
    pub message: ByteSize,
    /// How long the probe runs.
    pub duration: Nanoseconds,
    /// Priority of the requests, an index into [`Link::priorities`].
    pub priority: u32,
}

/// How long and over which windows a run is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// Time before the measurement, excluded from every figure.
    pub warmup: Nanoseconds,
    /// Windows of the fairness metric, as stated at the nominal rate, shortest first. None in a
    /// shuffle, which lasts as long as its flows, and where clients fetch: no flow is always backlogged.
    pub windows: Vec<Window>,
    /// Length of the measurement at the nominal rate, where it is not made of windows.
    pub length: Option<Nanoseconds>,
    /// A repeat lasts this many of the longest window.
    pub long_windows: u32,
    /// Repeats when the command line says nothing.
    pub repeats: u32,
}

/// A window of the fairness metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Name in results, such as `1ms`.
    pub name: String,
    /// Length at the link's nominal rate.
    pub length: Nanoseconds,
}

/// One configuration to compare.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// Name, such as `dqa+dqwa`.
    pub name: String,
    /// The variant it was derived from.
    pub base: Option<String>,
    /// What differs, in a sentence.
    pub summary: String,
    /// Its settings, resolved. Those of the kernel ([`Knobs::default`]) where the workload is requests: the
    /// transmit side has no part in it.
    pub knobs: Knobs,
    /// How flows get their receive queues, where the workload is requests.
    pub receive: Option<ReceiveKnobs>,
    /// The point of the sweep, where the workload is tenants.
    pub tenants: Option<TenantPoint>,
}

impl Variant {
    /// Every knob with its value, both as a scenario file spells them, in the order of the reference.
    #[must_use]
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        match &self.receive {
            Some(receive) => receive.settings().into(),
            None => self.knobs.settings().into(),
        }
    }
}

/// What a variant can change where clients send requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveKnobs {
    /// The NIC.
    pub nic: ReceiveNic,
    /// What steers flows to queues.
    pub policy: ReceivePolicy,
    /// Queues for flows of high priority alone, with [`ReceivePolicy::Isolation`].
    pub isolated_queues: u32,
    /// Payload of a message of an echo server; of memcached, a value.
    pub message: ByteSize,
    /// Packets that the ring of a receive queue holds.
    pub ring: u32,
    /// From the first packet of new flows until the NIC is configured for them; until then they lie where it puts
    /// them by itself.
    pub reaction: Nanoseconds,
}

/// A NIC whose receive side is modelled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiveNic {
    /// Intel 82599.
    I82599,
    /// Solarflare SFC9020.
    Sfc9020,
    /// One with n-tuple filters as ethtool has them.
    Ntuple,
    /// One without filters.
    RssOnly,
    /// Any one with XDP: software.
    XdpCpumap,
    /// That of a model of one's own.
    Own(Supplied),
}

/// What steers flows to receive queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceivePolicy {
    /// Nothing: the NIC's own hash.
    None,
    /// Equally many flows on every queue.
    Balance,
    /// Queues of their own for flows of high priority; equally many flows on the queues of either class.
    Isolation,
    /// A policy of one's own, whose classes know flows of high priority by the label `high`.
    Own(Supplied),
}

/// A file that a scenario brings along: as a part of its own text, or by its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supplied {
    /// What it is called in errors; its path, if it has one.
    pub origin: String,
    /// Its text; none of a path that nobody has read yet ([`Scenario::supplied`]).
    pub text: Option<String>,
}

/// Every setting that a variant can change.
#[derive(Clone, Debug, PartialEq)]
pub struct Knobs {
    /// How a flow gets its transmit queue.
    pub queue_choice: QueueChoice,
    /// Number of queues in use, when not all of the link's.
    pub queues: Option<u32>,
    /// Queues per XPS pool; none when every core may use every queue.
    pub xps_pool: Option<u32>,
    /// Dynamic queue weights (DQWA).
    pub queue_weights: bool,
    /// Service balancing: flows take turns on queues that they would have to share.
    pub service_balancing: bool,
    /// Dynamic segment sizing (DSOS): the size used on shared queues.
    pub segment_size: Option<ByteSize>,
    /// TCP transmit batching. In the simulator, with it come the small queues of Titan's kernel.
    pub transmit_batching: bool,
    /// The qdisc in front of each queue.
    pub qdisc: Qdisc,
    /// TCP small queues limit per socket; none is off.
    pub tcp_small_queues: Option<ByteSize>,
    /// Byte queue limits of each hardware queue.
    pub byte_queue_limit: ByteQueueLimit,
    /// Shortest time between two interrupts; none leaves the driver's default.
    pub interrupt_interval: Option<Nanoseconds>,
    /// Largest segment handed to the device.
    pub gso_size: ByteSize,
    /// Segmentation offload (TSO and GSO).
    pub tso: bool,
    /// The NIC sends one MTU per queue in turn, even within a segment.
    pub tso_interleaving: bool,
}

impl Default for Knobs {
    /// The defaults of a Linux kernel.
    fn default() -> Self {
        Self {
            queue_choice: QueueChoice::Hash,
            queues: None,
            xps_pool: None,
            queue_weights: false,
            service_balancing: false,
            segment_size: None,
            transmit_batching: false,
            qdisc: Qdisc::PfifoFast,
            tcp_small_queues: Some(ByteSize::from_kib(256)),
            byte_queue_limit: ByteQueueLimit::Dynamic,
            interrupt_interval: None,
            gso_size: ByteSize::from_kib(64),
            tso: true,
            tso_interleaving: true,
        }
    }
}

/// How a flow gets its transmit queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueChoice {
    /// The kernel's: a hash per socket.
    Hash,
    /// Dynamic queue assignment: the queue of least weight, when nothing is outstanding.
    Dqa,
}

/// The qdisc in front of each queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qdisc {
    /// The kernel's default.
    PfifoFast,
    /// Stochastic fair queueing under a priority band for the latency probe.
    SfqPrio,
}

/// Byte queue limits of a hardware queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteQueueLimit {
    /// The kernel's dynamic queue limits.
    Dynamic,
    /// A fixed limit.
    Fixed(ByteSize),
    /// None.
    Off,
}

/// Figures that a paper states for the scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Paper {
    /// Where the figures stand.
    pub source: String,
    /// Variant name to metric key (see [`crate::record::metric`]) to figure.
    pub variants: BTreeMap<String, BTreeMap<String, f64>>,
}

/// Fewer repeats have no confidence interval, so that nothing can be judged by them.
pub const LEAST_REPEATS: u32 = 5;

/// A statement about the results.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// Variant it speaks of.
    pub variant: String,
    /// Metric key, such as `nfm.1s`.
    pub metric: String,
    /// Which value of the repeats is held against the bounds.
    pub statistic: Statistic,
    /// With [`Statistic::Share`]: the least share of the repeats that must lie within the bounds.
    pub share: Option<f64>,
    /// The variant whose value the first one's is divided by before it is held against the bounds.
    pub relative_to: Option<String>,
    /// Smallest value allowed.
    pub at_least: Option<f64>,
    /// Largest value allowed.
    pub at_most: Option<f64>,
    /// Repeats that it takes to judge; at least [`LEAST_REPEATS`].
    pub repeats: u32,
}

/// Which value of the repeats an expectation speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// Mean over the repeats; of a ratio the geometric mean.
    Mean,
    /// Share of the repeats that lie within the bounds.
    Share,
}
