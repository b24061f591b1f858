//! One sample: the state of a host, and the changes since the previous sample.

use serde::{Deserialize, Serialize};

/// Version of the recorded form. A reader refuses other versions.
pub const SCHEMA: u32 = 1;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub schema: u32,
    /// Time of the sample, milliseconds since 1970 UTC.
    pub at_ms: u64,
    /// Time since the previous sample, seconds; 0 in the first sample.
    pub seconds: f64,
    pub interfaces: Vec<Interface>,
    pub processors: Vec<Processor>,
    /// Losses since the collector started, at places with at least one loss, in path order.
    pub losses: Vec<Loss>,
    /// Whether some loss counters could not be read. If true, a place without a listed loss may have losses.
    /// Recordings without this field count as incomplete.
    #[serde(default = "unknown_losses")]
    pub losses_incomplete: bool,
    /// Places whose losses may be missing because some of their counters could not be read.
    #[serde(default)]
    pub unread_places: Vec<String>,
    /// Data that could not be read, one sentence each.
    pub not_read: Vec<String>,
}

const fn unknown_losses() -> bool {
    true
}

/// A counter with its growth. Rates are `delta / Sample::seconds`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// The kernel's counter. If the kernel has no counter, the sum since the collector started.
    pub total: u64,
    /// Growth since the previous sample.
    pub delta: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interface {
    pub name: String,
    /// Name of the driver; `None` if the driver does not report a name.
    pub driver: Option<String>,
    /// Link speed, bit/s; `None` if the driver does not report a speed.
    pub speed_bps: Option<u64>,
    pub up: bool,
    pub root_qdisc: Option<String>,
    /// From the device's counters, as are the next three fields.
    pub sent_bytes: Interval,
    pub sent_packets: Interval,
    pub received_bytes: Interval,
    pub received_packets: Interval,
    /// The first session that manages the interface, such as `fair`, `steer` or `tune`; `None` without a
    /// session.
    pub management: Option<Management>,
    /// Further sessions, such as `steer` with XDP next to `fair`, and the service's worker of `tune`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further: Vec<Management>,
    pub queues: Vec<Queue>,
    /// Whether the collector observes the flows and the queue of each flow. If false, flows are TCP
    /// sockets.
    #[serde(default)]
    pub observed: bool,
    /// The flows with the highest rates, in descending order. The options of the collector limit the
    /// number.
    pub flows: Vec<Flow>,
    /// Number of flows that sent in the interval, including flows that are not listed; `None` if unknown.
    pub active_flows: Option<u64>,
    /// Number of flows that sent in each tenth of the last second, including flows that are not listed;
    /// `None` if unknown.
    pub busy_flows: Option<u64>,
    /// Number of busy flows that share a transmit queue with another busy flow, as far as the queues are
    /// known; `None` if unknown, or if the root qdisc schedules all queues together.
    pub colliding_flows: Option<u64>,
    /// Normalised fairness metric of the last whole window of 1 s; `None` if flows are not observed, no two
    /// flows competed, or there is no whole window.
    pub nfm_1s: Option<f64>,
    /// Mean of the normalised fairness metric over the last ten windows of 0.1 s; `None` in the same cases as
    /// `nfm_1s`.
    pub nfm_100ms: Option<f64>,
    /// Jain's index of the flows' rates over the last whole second, 0 to 1; `None` in the same cases as
    /// `nfm_1s`.
    pub jain_1s: Option<f64>,
    /// Processor time of the collector's BPF meter on this interface; `None` unless
    /// `kernel.bpf_stats_enabled` is 1.
    pub bpf_ns: Option<Interval>,
}

impl Interface {
    /// Returns the sessions that manage the interface.
    pub fn sessions(&self) -> impl Iterator<Item = &Management> {
        self.management.iter().chain(&self.further)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Management {
    /// The Evenkeel command, such as `fair` or `steer`; `session` if only the process is known.
    pub command: String,
    pub process: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    pub index: u32,
    /// Number of busy flows; `None` if flows are not observed, or no busy flow has a known queue.
    pub busy_flows: Option<u32>,
    /// Bytes that the queue's qdisc sent; `None` if the queue has no qdisc of its own, or a `noqueue`.
    pub bytes: Option<Interval>,
    pub packets: Option<Interval>,
    pub drops: Option<Interval>,
    /// Backlog of the queue's qdisc, bytes.
    pub backlog_bytes: Option<u64>,
    /// Processors that may serve the queue's interrupt; empty if unknown.
    pub interrupt_processors: Vec<u32>,
    /// NUMA node of the first processor in `interrupt_processors`.
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
    /// Bytes on the wire, with all headers. If only the socket of the flow is known, acknowledged
    /// payload.
    pub bytes: Interval,
    /// Rate divided by the flow's fair share: 1 is fair. The fair share is the sum of the busy flows'
    /// rates divided by the number of busy flows. `None` if the flow is not busy.
    pub of_fair_share: Option<f64>,
    /// Whether the flow sent in each tenth of the last second; `None` before the first whole second, or if
    /// flows are not observed.
    pub busy: Option<bool>,
    /// Details of the socket; `None` for flows without a TCP socket in this network namespace.
    pub socket: Option<SocketDetail>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketDetail {
    /// Name of a process that has the socket open; `None` if the process was not found.
    pub process: Option<String>,
    pub process_id: Option<u32>,
    pub rtt_us: u32,
    pub min_rtt_us: u32,
    /// Congestion window, segments.
    pub cwnd: u32,
    pub congestion: Option<String>,
    /// Retransmitted segments.
    pub retransmitted: Interval,
}

/// A processor. Shares are shares of the interval, 0 to 1. If they are unknown, as in the first sample, all
/// shares are 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Processor {
    pub index: u32,
    pub node: Option<u32>,
    pub user: f64,
    pub system: f64,
    pub softirq: f64,
    pub idle: f64,
    /// Hardware interrupts of network interfaces on this processor.
    pub interrupts: Interval,
    /// Packets, after GRO, that entered the network stack on this processor (`processed` of
    /// `/proc/net/softnet_stat`); `None` if the counter cannot be read.
    pub packets: Option<Interval>,
    /// Packets dropped at the processor's backlog.
    pub dropped: Option<Interval>,
    /// Polls that used up their budget or time (`time_squeeze`).
    pub squeezed: Option<Interval>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Place in the path of packets, such as `qdisc` or `receive ring`.
    pub place: String,
    /// The interface, processor or socket that lost the packets.
    pub subject: String,
    pub packets: Interval,
    pub counter: String,
    /// The rule of `check` that explains the loss.
    pub rule: String,
}
