//! The workload of tenants: clients that share a sender's link behind one qdisc at a time.
//!
//! Every combination of a qdisc and of a value on each axis is a *point*, and a variant.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::qdisc::{FilterRules, QdiscSetup, QdiscTree, Surroundings};
use crate::units::{BitRate, ByteSize, Nanoseconds};

use super::{Link, Scenario};

/// The common part of a scenario's points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenants {
    /// The link is the bottleneck: the qdisc feeds a line of the link's rate. Otherwise only the processors
    /// limit, as with a NIC that is faster than they are.
    pub line: bool,
    /// The axes, in the order of the file.
    pub axes: Vec<Axis>,
    /// Measured time and repeats of a quick run; [`super::Measure`] has those of a full one.
    pub quick: Effort,
    /// The charts.
    pub plots: Vec<Plot>,
}

/// An axis of a sweep with its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Its name: `qdisc`, `clients`, `length`, `message`, `rules`, `classifier`.
    pub name: String,
    /// Its values in the file's spelling, in order.
    pub values: Vec<String>,
    /// Those of a quick run.
    pub quick: Vec<String>,
}

/// Extent of a measurement.
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
    /// File name without extension.
    pub name: String,
    /// Title above the chart.
    pub title: String,
    /// Metric key.
    pub metric: String,
    /// The horizontal axis.
    pub across: String,
    /// Axis with a chart per value, if any.
    pub panels: Option<String>,
    /// Whether the metric's axis is logarithmic.
    pub logarithmic: bool,
}

/// One combination of a qdisc and a value on each axis.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantPoint {
    /// The qdisc setup.
    pub qdisc: Arc<QdiscSetup>,
    /// Each axis with its value in the file's spelling; the first is the qdisc.
    pub coordinates: Vec<(String, String)>,
    /// The bulk senders; bulk flows are numbered through all of them, in this order.
    pub bulk: Vec<BulkTenants>,
    /// The request-response probes, if any.
    pub probes: Option<Probes>,
    /// Rules before the qdisc's own filters.
    pub filter_rules: Option<FilterRules>,
    /// The device's offloads.
    pub offloads: Offloads,
    /// Each end of a flow is pinned: [`TenantPoint::processors_of`].
    pub pinned: bool,
}

/// A group of equal bulk senders; each is a process with one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkTenants {
    /// How many.
    pub count: u32,
    /// Bytes of each write to the socket.
    pub length: ByteSize,
    /// Alternating times of sending and of silence; none: always sending.
    pub on_off: Option<OnOff>,
}

/// Alternating times of sending and of silence, from the start of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnOff {
    /// Time of sending.
    pub on: Nanoseconds,
    /// Time of silence.
    pub off: Nanoseconds,
}

/// A group of equal request-response probes, each a process with one flow (TCP, one request at a time).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probes {
    /// How many.
    pub count: u32,
    /// Payload of a request and of its answer.
    pub message: ByteSize,
    /// Limit of half a round trip in the service level objective, if stated.
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
    /// The scenario for a quick run: its measure is [`Tenants::quick`]. Unchanged for another workload.
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

    /// Returns the processors, of `processors`, of a flow's client and server; bulk flows come first, then
    /// probes. None if not pinned. Clients are assigned round robin, and a server is half of the processors
    /// away from its client, so that each processor has equally many of either.
    #[must_use]
    pub fn processors_of(&self, flow: u32, processors: u32) -> Option<(u32, u32)> {
        let processors = processors.max(1);
        let client = flow % processors;
        self.pinned.then_some((client, (client + processors / 2) % processors))
    }

    /// The environment of the qdisc.
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

    /// The qdiscs of this point at a rate.
    ///
    /// # Errors
    /// When the setup does not fit the link and the flows, or takes no filter rules.
    pub fn tree(&self, link: &Link, rate: BitRate) -> Result<QdiscTree, String> {
        if let Some((problem, advice)) = self.filter_rules.and_then(|_| self.qdisc.without_rules()) {
            return Err(format!("{problem}; {advice}"));
        }
        self.qdisc.resolve(&self.surroundings(link, rate)).map_err(|error| error.to_string())
    }

    /// Every setting of this point of a scenario, by name. `tree` is that of its qdisc.
    #[must_use]
    pub fn settings(&self, scenario: &Scenario, tree: &QdiscTree) -> BTreeMap<String, String> {
        let switch = |on: bool| if on { "on" } else { "off" };
        let line = match scenario.workload.tenants() {
            Some(tenants) if tenants.line => "a tbf at the link's rate",
            _ => "none: the processors are the bottleneck",
        };
        let own = [
            ("qdisc", self.qdisc.name.clone()),
            ("tree", tree.to_string()),
            ("tso-gso", switch(self.offloads.segmentation).to_owned()),
            ("gro-lro", switch(self.offloads.aggregation).to_owned()),
            ("processes", if self.pinned { "pinned" } else { "free" }.to_owned()),
            ("congestion-control", scenario.workload.congestion_control.clone()),
            ("line", line.to_owned()),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
        self.coordinates.iter().cloned().chain(own).collect()
    }

    /// The value on an axis, in the file's spelling.
    #[must_use]
    pub fn coordinate(&self, axis: &str) -> Option<&str> {
        self.coordinates.iter().find(|(name, _)| name == axis).map(|(_, value)| value.as_str())
    }
}
