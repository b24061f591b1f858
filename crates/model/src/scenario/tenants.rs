//! The workload of tenants: clients that share a sender's link behind one qdisc at a time.
//!
//! Every combination of a qdisc and of a value on each axis is a *point*, and a variant.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::qdisc::{FilterRules, QdiscSetup, QdiscTree, Surroundings};
use crate::units::{BitRate, ByteSize, Nanoseconds};

use super::{Link, Scenario};

/// The settings that all points of a scenario share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenants {
    /// Whether the link is the bottleneck: the qdisc's packets then pass a shaper with the link's rate.
    /// Otherwise only the processors limit the throughput, as with a NIC that is faster than the
    /// processors.
    pub line: bool,
    /// The axes, in the order of the file.
    pub axes: Vec<Axis>,
    /// The bulk senders of the workload; [`TenantPoint::bulk`] has the senders of a point.
    pub bulk: Vec<BulkGroup>,
    pub probes: Option<ProbeGroup>,
    /// Measured time and repeats of a quick run; [`super::Measure`] has the values of a full run.
    pub quick: Effort,
    pub plots: Vec<Plot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkGroup {
    pub count: GroupCount,
    /// Bytes of each write; `None` if the axis `length` sets the value.
    pub length: Option<ByteSize>,
    pub on_off: Option<OnOff>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupCount {
    Fixed(u32),
    /// Share of the number of clients on the axis `clients`, per cent.
    Share(u32),
}

/// Probes in the workload. An axis sets `count` or `message` if the value is `None`. Without an `slo`, there
/// is no objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeGroup {
    pub count: Option<u32>,
    pub message: Option<ByteSize>,
    pub slo: Option<Nanoseconds>,
}

impl BulkGroup {
    #[must_use]
    pub fn counts(groups: &[Self], clients: u32) -> Vec<u32> {
        let mut shared = 0;
        let count = |group: &Self| match group.count {
            GroupCount::Fixed(count) => count,
            // Round at the boundaries between shares, so that the sum is exact.
            GroupCount::Share(share) => {
                let begin = rounded_share(clients, shared);
                shared += share;
                rounded_share(clients, shared) - begin
            }
        };
        groups.iter().map(count).collect()
    }
}

fn rounded_share(of: u32, percent: u32) -> u32 {
    (u64::from(of) * u64::from(percent) + 50).div_euclid(100) as u32
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Name of the axis: `qdisc`, `clients`, `probes`, `length`, `message`, `classifier`, `rules`.
    pub name: String,
    pub values: Vec<String>,
    pub quick: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    pub warmup: Nanoseconds,
    pub duration: Nanoseconds,
    pub repeats: u32,
}

/// A chart: a metric against an axis, one line for each qdisc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plot {
    /// File name without extension.
    pub name: String,
    pub title: String,
    pub metric: String,
    /// The horizontal axis.
    pub across: String,
    /// Axis whose values each have their own chart; `None` for a single chart.
    pub panels: Option<String>,
    /// Whether the vertical axis, which shows the metric, is logarithmic.
    pub logarithmic: bool,
}

/// One combination of a qdisc and a value on each axis.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantPoint {
    pub qdisc: Arc<QdiscSetup>,
    /// Each axis with its value in the file's spelling; the first one is the qdisc.
    pub coordinates: Vec<(String, String)>,
    /// The bulk senders. Bulk flows are numbered in this order.
    pub bulk: Vec<BulkTenants>,
    pub probes: Option<Probes>,
    /// Rules that precede the qdisc's own filters.
    pub filter_rules: Option<FilterRules>,
    pub offloads: Offloads,
    /// Whether both ends of each flow are pinned, see [`TenantPoint::processors_of`].
    pub pinned: bool,
}

/// A group of bulk senders with the same settings; each is a process with one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkTenants {
    pub count: u32,
    /// Bytes of each write to the socket.
    pub length: ByteSize,
    /// Alternating times of sending and silence; `None` if the senders never pause.
    pub on_off: Option<OnOff>,
}

/// Alternating times of sending and silence, from the start of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnOff {
    pub on: Nanoseconds,
    pub off: Nanoseconds,
}

/// A group of request-response probes with the same settings, each a process with one flow (TCP, one request
/// at a time).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probes {
    pub count: u32,
    /// Payload of a request and of its answer.
    pub message: ByteSize,
    /// Service level objective: the limit of half a round trip, if stated.
    pub slo: Option<Nanoseconds>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// TSO and GSO at the sender.
    pub segmentation: bool,
    /// GRO and LRO at the receiver.
    pub aggregation: bool,
}

impl Scenario {
    /// Returns the scenario for a quick run, with the times and repeats of [`Tenants::quick`]. Other
    /// workloads are unchanged.
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
    #[must_use]
    pub fn bulk_flows(&self) -> u32 {
        self.bulk.iter().map(|tenants| tenants.count).sum()
    }

    #[must_use]
    pub fn probe_count(&self) -> u32 {
        self.probes.map_or(0, |probes| probes.count)
    }

    /// Returns the processors of a flow's client and server, or `None` if the flow is not pinned.
    ///
    /// Bulk flows have the first numbers, then probes. Clients are assigned round robin. The distance between
    /// the processors of client and server is half of `processors`. If the number of flows is a multiple of
    /// `processors`, each processor gets the same number of clients, and the same number of servers.
    #[must_use]
    pub fn processors_of(&self, flow: u32, processors: u32) -> Option<(u32, u32)> {
        let processors = processors.max(1);
        let client = flow % processors;
        self.pinned.then_some((client, (client + processors / 2) % processors))
    }

    /// Returns the device, link and flows for which the qdiscs are built.
    #[must_use]
    pub fn surroundings(&self, link: &Link, rate: BitRate) -> Surroundings {
        /// The largest segment is `GSO_LEGACY_MAX_SIZE` plus an Ethernet header.
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

    /// Returns the qdiscs of this point at a rate.
    ///
    /// # Errors
    /// Returns an error if the setup does not fit the link and the flows, or takes no filter rules.
    pub fn tree(&self, link: &Link, rate: BitRate) -> Result<QdiscTree, String> {
        if let Some((problem, advice)) = self.filter_rules.and_then(|_| self.qdisc.without_rules()) {
            return Err(format!("{problem}; {advice}"));
        }
        self.qdisc.resolve(&self.surroundings(link, rate)).map_err(|error| error.to_string())
    }

    /// Returns the coordinates and settings of this point by name. `tree` is the point's qdisc tree.
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

    #[must_use]
    pub fn coordinate(&self, axis: &str) -> Option<&str> {
        self.coordinates.iter().find(|(name, _)| name == axis).map(|(_, value)| value.as_str())
    }
}
