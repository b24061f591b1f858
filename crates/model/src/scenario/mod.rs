//! Scenarios: data that defines a run.
//!
//! A scenario is a TOML file (see `docs/reference/scenarios.md`). [`mod@parse`] converts its text to a
//! [`Scenario`]. In a [`Scenario`], the knobs of every variant are resolved through the chain of bases,
//! every number has its unit, and all values are checked. The parser is strict: it refuses unknown keys
//! and values, with file, line and column ([`ScenarioError`]).
//!
//! ```text
//! text ──────────> TOML with positions ─ tables ─> link, workload, ... ──────────┐
//! variant table ─> TOML with positions ─ tables ─> knob settings ─ bases ─ knobs ┴─> Scenario
//! ```
//!
//! [`bundled`] contains the built-in scenarios, and the tables of variants from which any scenario may
//! inherit.

use std::collections::BTreeMap;

use crate::units::{BitRate, ByteSize, Nanoseconds};

pub mod bundled;
mod clients;
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
mod toml_table;
mod traffic;
mod transfer_knobs;
mod value;
mod variants;

pub use error::{ScenarioError, ScenarioErrorKind};
pub use flow_weights::{FlowRule, FlowWeights, MOST_RULES};
pub use knobs::Knobs;
pub use parse::{SCHEMA, parse, parse_with, place_of};
pub use receive_knobs::ReceiveKnobs;
pub use sections::LINE_RATES;
pub use select::UnknownVariant;
pub use sweep::{Setups, qdisc_files};
pub use tenants::{
    Axis, BulkGroup, BulkTenants, Effort, GroupCount, Offloads, OnOff, Plot, ProbeGroup, Probes, TenantPoint,
    Tenants,
};
pub use transfer_knobs::{
    HostMachine, HostNode, InterruptCores, OtherTuning, TransferControl, TransferKnobs,
};

/// Maximum weight of a flow, equal to the limit in the BPF programs.
pub const MAX_FLOW_WEIGHT: u32 = 65_535;

/// A scenario with all its variants resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Name on the command line.
    pub name: String,
    /// One line for lists.
    pub title: String,
    /// Purpose of the scenario in a few sentences; may be empty.
    pub description: String,
    pub link: Link,
    pub hosts: Hosts,
    /// The switch between the hosts, if the workload needs one.
    pub switch: Option<Switch>,
    pub workload: Workload,
    pub measure: Measure,
    /// The variants that run by default, in the order of the file's `variants`.
    pub variants: Vec<Variant>,
    /// Further variants of the file and of its variant table. They run only if the user names them.
    /// Variants of the table that do not fit the link are omitted.
    pub further_variants: Vec<Variant>,
    /// Named groups of variants, such as `main`.
    pub groups: BTreeMap<String, Vec<String>>,
    pub paper: Option<Paper>,
    /// If an expectation is not met, the run exits with 1.
    pub expectations: Vec<Expectation>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Nominal link rate, for which the windows are defined.
    pub rate: BitRate,
    /// Layer-3 MTU.
    pub mtu: ByteSize,
    /// Number of transmit queues of the NIC, 1 to [`MAX_QUEUES`].
    pub queues: u32,
    /// Number of queues of each priority of data-centre bridging (a traffic class, IEEE 802.1Q). The
    /// queues of a priority are consecutive and form a pool (Titan, section 1). Empty if all flows
    /// share all queues.
    pub priorities: Vec<u32>,
    /// Number of receive queues of each simulated host, 1 to [`MAX_QUEUES`]; `None` for the simulator's
    /// default.
    pub receive_queues: Option<u32>,
    pub topology: Topology,
}

/// Maximum number of transmit queues in a scenario, equal to the limit of the queue choice
/// (`EK_MAX_QUEUES`).
pub const MAX_QUEUES: u32 = 256;

/// How the test bed on a real kernel builds the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// HTB classes as hardware queues, served by deficit round robin at the link's rate.
    SoftNic,
    /// The device's own transmit queues under an `mq` root, each shaped to its share of the rate.
    Mq,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Hosts {
    /// Number of hosts: a sender and a receiver, or the hosts of a shuffle.
    pub count: u32,
    /// Number of cores of each sender; the maximum on the test bed ([`crate::soft_nic::place`]). Half of the
    /// cores have about twice as many flows as the other half, except with fetches.
    pub sending_cores: u32,
}

/// The switch between several hosts. Each host has a link like the scenario's link.
#[derive(Clone, Debug, PartialEq)]
pub struct Switch {
    /// Packet buffer that all ports share.
    pub buffer: ByteSize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    pub kind: WorkloadKind,
    /// Number of TCP flows of each sending host. With requests: number of the clients' UDP flows. With
    /// tenants: largest number of bulk flows of a point. 0 for transfers.
    pub flows: u32,
    /// A name of `net.ipv4.tcp_available_congestion_control`.
    pub congestion_control: String,
    /// Priority of the flows, an index into [`Link::priorities`]; clients have separate priorities.
    pub priority: u32,
    pub latency: Option<LatencyProbe>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadKind {
    /// One host sends to another host, and all flows always have a backlog.
    Bulk,
    /// Every host sends one flow to every other host. The run ends when all flows are complete.
    Shuffle {
        /// Payload of each flow.
        bytes_per_flow: ByteSize,
    },
    /// Clients on one host fetch values from a server on another host. Each client uses a permanent
    /// connection: a small request, with the value as its response. The next request follows
    /// immediately.
    Fetch {
        /// The clients, which together have all flows of the workload.
        clients: Vec<ClientGroup>,
    },
    /// Clients send requests to a server over UDP. After each response, a client sends its next
    /// request. The run studies the server's receive queues. Variants are [`ReceiveKnobs`].
    Requests(Requests),
    /// Clients share a link with one qdisc. Variants are [`TenantPoint`]s.
    Tenants(Tenants),
    /// Bulk flows between hosts with a model of the receiver. Variants are [`TransferKnobs`].
    Transfers,
}

/// The requests of a closed loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requests {
    pub server: ServerKind,
    /// Number of the clients' hosts, each with one address.
    pub client_hosts: u32,
    /// Percentage of requests that set a value. All other requests get a value. 0 for an echo server.
    pub set_percent: u32,
    /// Time after which a client replaces a lost request; `None` for never.
    pub timeout: Option<Nanoseconds>,
    pub clients: Vec<RequestClients>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// Returns each message to the sender.
    Echo,
    /// Gets and sets values.
    Memcached,
}

/// A group of clients with the same settings that send requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestClients {
    pub name: String,
    pub count: u32,
    /// Number of UDP flows of each client.
    pub flows: u32,
    /// Outstanding requests per flow.
    pub outstanding: u32,
    /// Whether policies give high priority to the flows of these clients.
    pub high_priority: bool,
    /// Start of the clients, relative to the start of the measurement. With 0 the clients start with
    /// the warm-up.
    pub from: Nanoseconds,
    /// Time for which the clients run; `None` for until the end.
    pub stay: Option<Nanoseconds>,
    /// The variants in which the clients run; `None` for all variants.
    pub variants: Option<Vec<String>>,
}

impl RequestClients {
    /// Returns the number of outstanding requests of the whole group.
    #[must_use]
    pub fn outstanding_in_all(&self) -> u64 {
        u64::from(self.count) * u64::from(self.flows) * u64::from(self.outstanding)
    }
}

/// A group of clients with the same settings in a fetch workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientGroup {
    pub count: u32,
    /// Sizes of the values that each client fetches in sequence.
    pub sizes: Vec<ByteSize>,
    /// Whether results include the completion times of these clients' fetches.
    pub timed: bool,
    /// Priority of the responses, an index into [`Link::priorities`].
    pub priority: u32,
}

impl Workload {
    /// Returns the payload of each flow; `None` in workloads other than a shuffle.
    #[must_use]
    pub fn shuffled_bytes(&self) -> Option<ByteSize> {
        match self.kind {
            WorkloadKind::Shuffle { bytes_per_flow } => Some(bytes_per_flow),
            WorkloadKind::Bulk
            | WorkloadKind::Fetch { .. }
            | WorkloadKind::Requests(_)
            | WorkloadKind::Tenants(_)
            | WorkloadKind::Transfers => None,
        }
    }

    /// Returns the requests of a closed loop; `None` in other workloads.
    #[must_use]
    pub fn requests(&self) -> Option<&Requests> {
        match &self.kind {
            WorkloadKind::Requests(requests) => Some(requests),
            WorkloadKind::Bulk
            | WorkloadKind::Shuffle { .. }
            | WorkloadKind::Fetch { .. }
            | WorkloadKind::Tenants(_)
            | WorkloadKind::Transfers => None,
        }
    }

    /// Returns the tenants; `None` in other workloads.
    #[must_use]
    pub fn tenants(&self) -> Option<&Tenants> {
        match &self.kind {
            WorkloadKind::Tenants(tenants) => Some(tenants),
            WorkloadKind::Bulk
            | WorkloadKind::Shuffle { .. }
            | WorkloadKind::Fetch { .. }
            | WorkloadKind::Requests(_)
            | WorkloadKind::Transfers => None,
        }
    }

    /// Returns the clients of a fetch workload; an empty slice in other workloads.
    #[must_use]
    pub fn clients(&self) -> &[ClientGroup] {
        match &self.kind {
            WorkloadKind::Fetch { clients } => clients,
            WorkloadKind::Bulk
            | WorkloadKind::Shuffle { .. }
            | WorkloadKind::Requests(_)
            | WorkloadKind::Tenants(_)
            | WorkloadKind::Transfers => &[],
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct LatencyProbe {
    /// Payload of a request and of its answer.
    pub message: ByteSize,
    pub duration: Nanoseconds,
    /// Priority of the requests, an index into [`Link::priorities`].
    pub priority: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// Time before the measurement, excluded from every figure.
    pub warmup: Nanoseconds,
    /// Windows of the fairness metric at the nominal rate, shortest first. Empty for shuffles, which last as
    /// long as their flows. Empty for fetches and requests, because flows do not always have a backlog. Empty
    /// for transfers, and may be empty for tenants.
    pub windows: Vec<Window>,
    /// Length of the measurement at the nominal rate, if windows do not define the length.
    pub length: Option<Nanoseconds>,
    /// Length of a repeat, as a multiple of the longest window, if the windows define the length.
    pub long_windows: u32,
    pub repeats: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Name in results, such as `1ms`.
    pub name: String,
    /// Length at the link's nominal rate.
    pub length: Nanoseconds,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// Name, such as `dqa+dqwa`.
    pub name: String,
    /// The variant from which this variant is derived.
    pub base: Option<String>,
    /// The difference from the base, in a sentence.
    pub summary: String,
    pub sets: Sets,
}

/// A variant's settings, by the kind of its scenario.
#[derive(Clone, Debug, PartialEq)]
pub enum Sets {
    /// The transmit side.
    Transmit(Knobs),
    /// The receive side, in a scenario of requests.
    Receive(ReceiveKnobs),
    /// A point of the sweep, in a scenario of tenants.
    Tenants(Box<TenantPoint>),
    /// Hosts and placement, in a scenario of transfers.
    Transfers(Box<TransferKnobs>),
}

impl Variant {
    /// Returns the settings of the transmit side; the kernel's defaults if the variant has no such
    /// settings.
    #[must_use]
    pub fn knobs(&self) -> &Knobs {
        static KERNEL: Knobs = Knobs::KERNEL;
        if let Sets::Transmit(knobs) = &self.sets { knobs } else { &KERNEL }
    }

    /// Returns the settings of the receive side; `None` in scenarios without requests.
    #[must_use]
    pub fn receive(&self) -> Option<&ReceiveKnobs> {
        if let Sets::Receive(knobs) = &self.sets { Some(knobs) } else { None }
    }

    /// Returns the point of the sweep; `None` in scenarios without tenants.
    #[must_use]
    pub fn tenants(&self) -> Option<&TenantPoint> {
        if let Sets::Tenants(point) = &self.sets { Some(point) } else { None }
    }

    /// Returns the hosts and the placement of transfers; `None` in other scenarios.
    #[must_use]
    pub fn transfers(&self) -> Option<&TransferKnobs> {
        if let Sets::Transfers(knobs) = &self.sets { Some(knobs) } else { None }
    }

    /// Returns the knobs with their values, in the file's spelling and the reference's order. Omits knobs
    /// whose value is written as an empty text. In a scenario of tenants, the knobs are the kernel's defaults
    /// of the transmit side.
    #[must_use]
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        match &self.sets {
            Sets::Receive(receive) => receive.settings(),
            Sets::Transfers(transfers) => transfers.settings(),
            Sets::Transmit(_) | Sets::Tenants(_) => self.knobs().settings(),
        }
    }
}

/// A NIC with a modelled receive side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiveNic {
    /// Intel 82599.
    I82599,
    /// Solarflare SFC9020.
    Sfc9020,
    /// A NIC with ethtool's n-tuple filters.
    Ntuple,
    /// A NIC without filters.
    RssOnly,
    /// Any NIC with XDP: software steering.
    XdpCpumap,
    /// A NIC that the user's model describes.
    Own(Supplied),
}

/// Distribution of flows over receive queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceivePolicy {
    /// The NIC's hash decides.
    None,
    /// The flows are spread evenly over the queues.
    Balance,
    /// Flows of high priority have exclusive queues. The flows of each priority are spread evenly over its
    /// queues.
    Isolation,
    /// The user's policy. Classes with the label `high` give flows high priority.
    Own(Supplied),
}

/// A file of the user: its text within the scenario, or its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supplied {
    /// The name for error messages; the path if the file has a path.
    pub origin: String,
    /// The text; `None` if the path has not been read ([`Scenario::supplied`]).
    pub text: Option<String>,
}

/// Method to choose the transmit queue of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueChoice {
    /// The kernel's choice: a hash per socket.
    Hash,
    /// Dynamic queue assignment: the queue with the smallest weight, if the flow has no data outstanding.
    Dqa,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qdisc {
    /// The kernel's default.
    PfifoFast,
    /// Stochastic fair queueing, below a higher-priority band for the latency probe.
    SfqPrio,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteQueueLimit {
    /// The kernel's dynamic queue limits.
    Dynamic,
    Fixed(ByteSize),
    Off,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Paper {
    pub source: String,
    /// Figures by variant and metric key (see [`crate::record::metric`]).
    pub variants: BTreeMap<String, BTreeMap<String, f64>>,
}

/// Minimum number of repeats for a confidence interval, and therefore for a verdict.
pub const LEAST_REPEATS: u32 = 5;

#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    pub variant: String,
    /// Metric key, such as `nfm.1s`.
    pub metric: String,
    /// The value that is judged: the mean, against the bounds; or the share of repeats within the bounds,
    /// against [`Self::share`].
    pub statistic: Statistic,
    /// With [`Statistic::Share`]: the required share of repeats within the bounds.
    pub share: Option<f64>,
    /// The variant whose value divides this variant's value.
    pub relative_to: Option<String>,
    pub at_least: Option<f64>,
    pub at_most: Option<f64>,
    /// Number of repeats required for a verdict; at least [`LEAST_REPEATS`].
    pub repeats: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// Mean over the repeats; for a ratio, the geometric mean.
    Mean,
    /// Share of the repeats within the bounds.
    Share,
}
