//! One sample: the state of a host, and what has happened since the sample before.

use serde::{Deserialize, Serialize};

/// Version of the recorded form. A reader refuses other versions.
pub const SCHEMA: u32 = 1;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub schema: u32,
    /// Time of the sample, milliseconds since 1970 UTC.
    pub at_ms: u64,
    /// Time since the sample before, seconds; 0 in the first sample.
    pub seconds: f64,
    pub interfaces: Vec<Interface>,
    pub processors: Vec<Processor>,
    /// Losses since the collector began, at places with at least one, in path order.
    pub losses: Vec<Loss>,
    /// Whether counters of losses could not be read: a place without a loss may have some.
    #[serde(default)]
    pub losses_incomplete: bool,
    /// Places with counters that could not be read, if the others could.
    #[serde(default)]
    pub unread_places: Vec<String>,
    /// What could not be read, one sentence each.
    pub not_read: Vec<String>,
}

/// A counter with its growth. Rates are `delta / Sample::seconds`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// The kernel's counter, or the sum since the collector began where the kernel has none.
    pub total: u64,
    /// Growth since the sample before.
    pub delta: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interface {
    pub name: String,
    /// `None` if the driver does not report it.
    pub driver: Option<String>,
    /// `None` if the driver does not report it, bit/s.
    pub speed_bps: Option<u64>,
    pub up: bool,
    pub root_qdisc: Option<String>,
    /// By the device's counters.
    pub sent_bytes: Interval,
    pub sent_packets: Interval,
    pub received_bytes: Interval,
    pub received_packets: Interval,
    /// The session of `fair` or `steer` that manages the interface; `None` without one.
    pub management: Option<Management>,
    pub queues: Vec<Queue>,
    /// Whether the collector observes the flows, with the queue of each. Without, flows are TCP sockets.
    #[serde(default)]
    pub observed: bool,
    /// The flows with the highest rates, the highest first; at most as many as the collector was asked for.
    pub flows: Vec<Flow>,
    /// Number of flows that sent in the interval, also those that are not listed.
    pub active_flows: u64,
    /// Number of flows that sent in each tenth of the last second, also those that are not listed; `None` if it is not
    /// known.
    pub busy_flows: Option<u64>,
    /// Number of busy flows that share a transmit queue with another busy flow; `None` if it is not known.
    pub colliding_flows: Option<u64>,
    /// Normalised fairness metric of the last whole window of 1 s; `None` if no two flows competed.
    pub nfm_1s: Option<f64>,
    /// Mean over the last ten windows of 0.1 s.
    pub nfm_100ms: Option<f64>,
    /// Jain's index of the flows' rates over the last whole second, 0 to 1.
    pub jain_1s: Option<f64>,
    /// Processor time of the collector's BPF meter on this interface; `None` unless `kernel.bpf_stats_enabled` is 1.
    pub bpf_ns: Option<Interval>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Management {
    /// The Evenkeel command, such as `fair` or `steer`; `session` if only its process can be read.
    pub command: String,
    pub process: u32,
}

/// A transmit queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    pub index: u32,
    /// Number of busy flows; `None` if flows are not observed.
    pub busy_flows: Option<u32>,
    /// `None` if the device does not count by queue.
    pub bytes: Option<Interval>,
    pub packets: Option<Interval>,
    pub drops: Option<Interval>,
    /// Bytes that wait in the qdisc of the queue.
    pub backlog_bytes: Option<u64>,
    /// Processors that may take the queue's interrupt; empty if it is not known.
    pub interrupt_processors: Vec<u32>,
    /// NUMA node of the first of these processors.
    pub node: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// `tcp`, `udp` or the protocol number.
    pub protocol: String,
    /// Address and port.
    pub source: String,
    /// Address and port.
    pub destination: String,
    pub queue: Option<u32>,
    /// Bytes on the wire, with all headers; of a flow that is known by its socket alone, acknowledged payload.
    pub bytes: Interval,
    /// Rate by the flow's fair share: 1 is fair. The fair share is the sum of the busy flows' rates, divided by their
    /// number; `None` if the flow is not busy.
    pub of_fair_share: Option<f64>,
    /// Whether it sent in each tenth of the last second; `None` before the first whole second.
    pub busy: Option<bool>,
    /// `None` for flows without a TCP socket in this network namespace.
    pub socket: Option<SocketDetail>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketDetail {
    /// Name of a process that has the socket open; `None` if it may not be read.
    pub process: Option<String>,
    pub process_id: Option<u32>,
    pub rtt_us: u32,
    pub min_rtt_us: u32,
    /// Congestion window, segments.
    pub cwnd: u32,
    pub congestion: Option<String>,
    /// Segments.
    pub retransmitted: Interval,
}

/// A processor. Shares are of the interval, 0 to 1; all are 0 in the first sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Processor {
    pub index: u32,
    pub node: Option<u32>,
    pub user: f64,
    pub system: f64,
    /// Time in soft interrupts.
    pub softirq: f64,
    pub idle: f64,
    /// Hardware interrupts of network interfaces.
    pub interrupts: Interval,
    /// Packets that the processor took from receive rings and its backlog (`processed` of `/proc/net/softnet_stat`).
    pub packets: Interval,
    /// Packets dropped at its backlog.
    pub dropped: Interval,
    /// Polls that used up their budget or time (`time_squeeze`).
    pub squeezed: Interval,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Such as `qdisc` or `receive ring`.
    pub place: String,
    /// An interface, a processor or a socket.
    pub subject: String,
    /// Packets.
    pub packets: Interval,
    /// The counter that shows the loss.
    pub counter: String,
    /// The rule of `check` that explains it.
    pub rule: String,
}
