//! The workload of tenants: clients that share a sender's link, with one qdisc in front of it at a time.
//!
//! Every combination of a qdisc and of a value on each axis of the sweep is a *point*, and a variant of its own.

use std::sync::Arc;

use crate::qdisc::{FilterRules, QdiscSetup, Surroundings};
use crate::units::{BitRate, ByteSize, Nanoseconds};

use super::{Link, Scenario};

/// What the points of a scenario have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenants {
    /// The link is the bottleneck: the qdisc stands in front of a line of the link's rate. Otherwise there is nothing
    /// behind it but the processors, as where a NIC is faster than they are.
    pub line: bool,
    /// The axes, in the order of the file.
    pub axes: Vec<Axis>,
    /// Measured time and repeats of a quick run; those of [`super::Measure`] are a full one's.
    pub quick: Effort,
    /// What is drawn.
    pub plots: Vec<Plot>,
}

/// An axis of a sweep: what varies, and over which values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Its name: `qdisc`, `clients`, `length`, `message`, `rules`, `classifier`.
    pub name: String,
    /// Its values as the file spells them, in order.
    pub values: Vec<String>,
    /// Those of a quick run.
    pub quick: Vec<String>,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Time before the measurement.
    pub warmup: Nanoseconds,
    /// Measured time.
    pub duration: Nanoseconds,
    /// Repeats.
    pub repeats: u32,
}

/// A chart: a metric against an axis, one line for each qdisc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plot {
    /// Name of the file, without its ending.
    pub name: String,
    /// Title above it.
    pub title: String,
    /// Metric key.
    pub metric: String,
    /// Axis from left to right.
    pub across: String,
    /// Axis with a chart of its own for each value, if any.
    pub panels: Option<String>,
    /// The metric's axis is logarithmic.
    pub logarithmic: bool,
}

/// One combination of a qdisc and a value on each axis.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantPoint {
    /// What stands in front of the line.
    pub qdisc: Arc<QdiscSetup>,
    /// Each axis with its value, as the file spells it; the first is the qdisc.
    pub coordinates: Vec<(String, String)>,
    /// The senders of bulk data; bulk flows are numbered through all of them, in this order.
    pub bulk: Vec<BulkTenants>,
    /// The request-response probes, if any.
    pub probes: Option<Probes>,
    /// Rules in front of the qdisc's own filters.
    pub filter_rules: Option<FilterRules>,
    /// The device's offloads.
    pub offloads: Offloads,
    /// Each end of a flow stays on a processor of its own: [`TenantPoint::processors_of`].
    pub pinned: bool,
}

/// Senders of bulk data that are alike; each is a process with one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkTenants {
    /// How many.
    pub count: u32,
    /// What each write of the application hands to the socket.
    pub length: ByteSize,
    /// They send for a while and are silent for a while; none: always.
    pub on_off: Option<OnOff>,
}

/// Times of sending and of silence that alternate, beginning with the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnOff {
    /// Time of sending.
    pub on: Nanoseconds,
    /// Time of silence.
    pub off: Nanoseconds,
}

/// Request-response probes that are alike, each a process with one flow (TCP, one request at a time).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probes {
    /// How many.
    pub count: u32,
    /// Payload of a request and of its answer.
    pub message: ByteSize,
    /// What half a round trip may take by the service level objective, if one is stated.
    pub slo: Option<Nanoseconds>,
}

/// Offloads of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// TSO and GSO at the sender.
    pub segmentation: bool,
    /// GRO and LRO at the receiver.
    pub aggregation: bool,
}

impl Scenario {
    /// The scenario as a quick run of it has it: its measure is that of [`Tenants::quick`]. The same if the workload is
    /// another.
    #[must_use]
    pub fn quickened(mut self) -> Self {
        if let Some(quick) = self.workload.tenants().map(|tenants| tenants.quick) {
            self.measure.warmup = quick.warmup;
            self.measure.length = Some(quick.duration);
            self.measure.repeats = quick.repeats;
        }
        self
    }
}

impl TenantPoint {
    /// Bulk flows.
    #[must_use]
    pub fn bulk_flows(&self) -> u32 {
        self.bulk.iter().map(|tenants| tenants.count).sum()
    }

    /// Probes.
    #[must_use]
    pub fn probe_count(&self) -> u32 {
        self.probes.map_or(0, |probes| probes.count)
    }

    /// The processors, of so many, on which the client and the server of a flow stay; bulk flows come first, then probes.
    /// None if they run where the scheduler likes. Clients take processors in turn, and a server is half of them away from
    /// its client, so that each has as many of either.
    #[must_use]
    pub fn processors_of(&self, flow: u32, processors: u32) -> Option<(u32, u32)> {
        let processors = processors.max(1);
        let client = flow % processors;
        self.pinned.then_some((client, (client + processors / 2) % processors))
    }

    /// What the qdisc is resolved for.
    #[must_use]
    pub fn surroundings(&self, link: &Link, rate: BitRate) -> Surroundings {
        /// `GSO_LEGACY_MAX_SIZE` and an Ethernet header.
        const LARGEST_SEGMENT: ByteSize = ByteSize::from_bytes(65_536 + 14);
        const ETHERNET_HEADER: u64 = 14;
        Surroundings {
            rate,
            bulk_flows: self.bulk_flows(),
            probes: self.probe_count(),
            queues: link.queues,
            largest_segment: if self.offloads.segmentation {
                LARGEST_SEGMENT
            } else {
                ByteSize::from_bytes(link.mtu.bytes() + ETHERNET_HEADER)
            },
            mtu: link.mtu,
        }
    }

    /// The value on an axis, as the file spells it.
    #[must_use]
    pub fn coordinate(&self, axis: &str) -> Option<&str> {
        self.coordinates.iter().find(|(name, _)| name == axis).map(|(_, value)| value.as_str())
    }
}
