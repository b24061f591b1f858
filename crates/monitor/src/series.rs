//! The exported series: one table for the exposition and for the reference page.
//!
//! The number of series of an interface does not depend on the number of queues or flows, because each
//! series costs memory in the monitoring system. The maximum is [`MOST_PER_INTERFACE`].

use evenkeel_placement::loss_path::Place;

use crate::sample::{Interface, Interval, Loss, Sample};

pub const MOST_PER_INTERFACE: usize = 50;

/// The data of an exposition.
#[derive(Clone, Debug, Default)]
pub struct Exported {
    pub sample: Sample,
    /// Counts from the last report of `check`; `None` without a report.
    pub check: Option<CheckCounts>,
    /// Processor time of this process, seconds.
    pub cpu_seconds: f64,
    pub version: String,
}

/// Counts of findings in a report of `check`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckCounts {
    /// Number of findings by rule and severity.
    pub findings: Vec<(String, String, u64)>,
    /// Number of rules that `check` could not evaluate.
    pub not_judged: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
}

/// Takes the label values of a series, in the order of [`Series::labels`], and its value.
pub type Take<'a> = &'a mut dyn FnMut(&[&str], f64);

/// A metric. The series of a metric differ in the values of their labels.
pub struct Series {
    /// Name without unit and `_total`.
    pub name: &'static str,
    pub kind: Kind,
    /// Base unit, which is the suffix of the name; empty for a plain number.
    pub unit: &'static str,
    pub labels: &'static [&'static str],
    /// One sentence without a final full stop.
    pub help: &'static str,
    pub(crate) values: fn(&Exported, Take<'_>),
}

impl Series {
    /// Returns the name as Prometheus stores it.
    #[must_use]
    pub fn full_name(&self) -> String {
        let unit = if self.unit.is_empty() { String::new() } else { format!("_{}", self.unit) };
        let total = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{}{unit}{total}", self.name)
    }
}

fn each(exported: &Exported, take: Take<'_>, value: impl Fn(&Interface) -> Option<f64>) {
    for interface in &exported.sample.interfaces {
        if let Some(value) = value(interface) {
            take(&[&interface.name], value);
        }
    }
}

fn total(interval: Interval) -> Option<f64> {
    Some(interval.total as f64)
}

/// Sums a value over the queues; `None` if no queue has the value.
fn over_queues(interface: &Interface, value: impl Fn(&crate::sample::Queue) -> Option<u64>) -> Option<f64> {
    let values: Vec<u64> = interface.queues.iter().filter_map(value).collect();
    (!values.is_empty()).then(|| values.iter().fold(0_u64, |sum, value| sum.saturating_add(*value)) as f64)
}

/// Returns the largest share of one queue in the bytes of the interval; `None` if no queue with a counter
/// sent bytes.
fn largest_share(interface: &Interface) -> Option<f64> {
    let bytes = interface.queues.iter().filter_map(|queue| Some(queue.bytes?.delta));
    let all: u64 = bytes.clone().fold(0, u64::saturating_add);
    (all > 0).then(|| bytes.max().unwrap_or(0) as f64 / all as f64)
}

/// Places on the path of packets that belong to one interface.
const AT_INTERFACE: [Place; 4] = [Place::Qdisc, Place::TransmitRing, Place::Wire, Place::ReceiveRing];

fn losses_at_interfaces(exported: &Exported, take: Take<'_>) {
    for interface in &exported.sample.interfaces {
        for place in AT_INTERFACE {
            let own = exported
                .sample
                .losses
                .iter()
                .filter(|loss| loss.place == place.words() && loss.subject == interface.name);
            take_losses(exported, own, &[&interface.name, place.words()], take);
        }
    }
}

/// Exports each place from the start, so that the first loss appears as an increase. A place whose counters
/// could not be read is exported only after a loss.
fn losses(exported: &Exported, take: Take<'_>) {
    for place in Place::ALL {
        let words = place.words();
        let own = exported.sample.losses.iter().filter(|loss| loss.place == words);
        let is_unread = exported.sample.unread_places.iter().any(|unread| unread == words);
        if !is_unread || own.clone().any(|loss| loss.packets.total > 0) {
            take_losses(exported, own, &[words], take);
        }
    }
}

/// Exports a sum of losses. If counters could not be read, a sum of 0 is unknown, and the function omits the
/// series.
fn take_losses<'l>(
    exported: &Exported,
    own: impl Iterator<Item = &'l Loss>,
    labels: &[&str],
    take: Take<'_>,
) {
    let packets = own.fold(0_u64, |sum, loss| sum.saturating_add(loss.packets.total));
    if packets > 0 || !exported.sample.losses_incomplete {
        take(labels, packets as f64);
    }
}

const INTERFACE: &[&str] = &["interface"];

/// The metrics, in the order of the exposition.
pub const SERIES: &[Series] = &[
    Series {
        name: "evenkeel_build_info",
        kind: Kind::Gauge,
        unit: "",
        labels: &["version"],
        help: "Always 1, with the version of Evenkeel",
        values: |exported, take| take(&[&exported.version], 1.0),
    },
    Series {
        name: "evenkeel_collector_cpu",
        kind: Kind::Counter,
        unit: "seconds",
        labels: &[],
        help: "Processor time of this exporter; kernel time of its BPF programs is counted by evenkeel_interface_meter_seconds_total",
        values: |exported, take| take(&[], exported.cpu_seconds),
    },
    Series {
        name: "evenkeel_collector_unread_sources",
        kind: Kind::Gauge,
        unit: "",
        labels: &[],
        help: "Number of sources that could not be read, such as for lack of privileges",
        values: |exported, take| take(&[], exported.sample.not_read.len() as f64),
    },
    Series {
        name: "evenkeel_findings",
        kind: Kind::Gauge,
        unit: "",
        labels: &["rule", "severity"],
        help: "Number of findings of check, at most a minute old while the exporter is scraped",
        values: |exported, take| {
            for (rule, severity, count) in exported.check.iter().flat_map(|check| &check.findings) {
                take(&[rule, severity], *count as f64);
            }
        },
    },
    Series {
        name: "evenkeel_rules_not_judged",
        kind: Kind::Gauge,
        unit: "",
        labels: &[],
        help: "Number of rules of check that could not be judged",
        values: |exported, take| {
            if let Some(check) = &exported.check {
                take(&[], check.not_judged as f64);
            }
        },
    },
    Series {
        name: "evenkeel_lost_packets",
        kind: Kind::Counter,
        unit: "",
        labels: &["place"],
        help: "Packets lost since the exporter began, by place on the packet's path, as check --watch counts them",
        values: losses,
    },
    Series {
        name: "evenkeel_interface_lost_packets",
        kind: Kind::Counter,
        unit: "",
        labels: &["interface", "place"],
        help: "Packets lost since the exporter began, by interface, at the places of the packet's path that \
               belong to an interface",
        values: losses_at_interfaces,
    },
    Series {
        name: "evenkeel_softnet_squeezes",
        kind: Kind::Counter,
        unit: "",
        labels: &[],
        help: "Polls of all processors that used up their budget or time (time_squeeze); absent if unknown",
        values: |exported, take| {
            let counts = exported.sample.processors.iter().map(|processor| processor.squeezed);
            let sum = |sum: u64, count: Option<Interval>| Some(sum.saturating_add(count?.total));
            if let Some(sum) = counts.into_iter().try_fold(0, sum) {
                take(&[], sum as f64);
            }
        },
    },
    Series {
        name: "evenkeel_interface_up",
        kind: Kind::Gauge,
        unit: "",
        labels: INTERFACE,
        help: "Whether the interface carries traffic: 1 or 0",
        values: |exported, take| each(exported, take, |interface| Some(f64::from(u8::from(interface.up)))),
    },
    Series {
        name: "evenkeel_interface_speed_bytes",
        kind: Kind::Gauge,
        unit: "",
        labels: INTERFACE,
        help: "Speed of the link, bytes per second; absent if the driver does not report it",
        values: |exported, take| {
            each(exported, take, |interface| interface.speed_bps.map(|speed| speed as f64 / 8.0));
        },
    },
    Series {
        name: "evenkeel_interface_transmit",
        kind: Kind::Counter,
        unit: "bytes",
        labels: INTERFACE,
        help: "Bytes sent, by the device's counter",
        values: |exported, take| each(exported, take, |interface| total(interface.sent_bytes)),
    },
    Series {
        name: "evenkeel_interface_transmit_packets",
        kind: Kind::Counter,
        unit: "",
        labels: INTERFACE,
        help: "Packets sent, by the device's counter",
        values: |exported, take| each(exported, take, |interface| total(interface.sent_packets)),
    },
    Series {
        name: "evenkeel_interface_receive",
        kind: Kind::Counter,
        unit: "bytes",
        labels: INTERFACE,
        help: "Bytes received, by the device's counter",
        values: |exported, take| each(exported, take, |interface| total(interface.received_bytes)),
    },
    Series {
        name: "evenkeel_interface_receive_packets",
        kind: Kind::Counter,
        unit: "",
        labels: INTERFACE,
        help: "Packets received, by the device's counter",
        values: |exported, take| each(exported, take, |interface| total(interface.received_packets)),
    },
    Series {
        name: "evenkeel_interface_managed",
        kind: Kind::Gauge,
        unit: "",
        labels: &["interface", "command"],
        help: "1 while a session of the command in the label manages the interface; tune: while the service keeps changes",
        values: |exported, take| {
            for interface in &exported.sample.interfaces {
                for session in interface.sessions() {
                    take(&[&interface.name, &session.command], 1.0);
                }
            }
        },
    },
    Series {
        name: "evenkeel_interface_active_flows",
        kind: Kind::Gauge,
        unit: "",
        labels: INTERFACE,
        help: "Number of flows that sent data since the previous scrape; absent if unknown",
        values: |exported, take| {
            each(exported, take, |interface| interface.active_flows.map(|flows| flows as f64));
        },
    },
    Series {
        name: "evenkeel_interface_busy_flows",
        kind: Kind::Gauge,
        unit: "",
        labels: INTERFACE,
        help: "Number of flows that sent in each tenth of the last second; absent if flows are not observed",
        values: |exported, take| {
            each(exported, take, |interface| interface.busy_flows.map(|flows| flows as f64));
        },
    },
    Series {
        name: "evenkeel_interface_colliding_flows",
        kind: Kind::Gauge,
        unit: "",
        labels: INTERFACE,
        help: "Number of busy flows that share a transmit queue with another busy flow, as far as the queues are known; absent if flows are not observed, no busy flow has a known queue, or the root qdisc (htb, pfifo) schedules all queues together",
        values: |exported, take| {
            each(exported, take, |interface| interface.colliding_flows.map(|flows| flows as f64));
        },
    },
    Series {
        name: "evenkeel_interface_nfm_ratio",
        kind: Kind::Gauge,
        unit: "",
        labels: &["interface", "window"],
        help: "Normalised fairness metric of the busy flows in the last second, over windows of 1s and 100ms: 0 is fair; absent if no two flows competed",
        values: |exported, take| {
            for interface in &exported.sample.interfaces {
                for (window, value) in [("1s", interface.nfm_1s), ("100ms", interface.nfm_100ms)] {
                    if let Some(value) = value {
                        take(&[&interface.name, window], value);
                    }
                }
            }
        },
    },
    Series {
        name: "evenkeel_interface_jain_ratio",
        kind: Kind::Gauge,
        unit: "",
        labels: INTERFACE,
        help: "Jain's index of the busy flows in the last second: 1 is fair; absent if no two flows competed",
        values: |exported, take| each(exported, take, |interface| interface.jain_1s),
    },
    Series {
        name: "evenkeel_interface_queues",
        kind: Kind::Gauge,
        unit: "",
        labels: INTERFACE,
        help: "Number of transmit queues",
        values: |exported, take| each(exported, take, |interface| Some(interface.queues.len() as f64)),
    },
    Series {
        name: "evenkeel_interface_sending_queues",
        kind: Kind::Gauge,
        unit: "",
        labels: INTERFACE,
        help: "Number of transmit queues that sent since the previous scrape; absent if the device does not \
               count by queue",
        values: |exported, take| {
            each(exported, take, |interface| {
                over_queues(interface, |queue| Some(u64::from(queue.bytes?.delta > 0)))
            });
        },
    },
    Series {
        name: "evenkeel_interface_queue_largest_ratio",
        kind: Kind::Gauge,
        unit: "",
        labels: INTERFACE,
        help: "Share of the queue with the most bytes since the previous scrape: 1 divided by the number of \
               queues is even, 1 is one queue for all",
        values: |exported, take| each(exported, take, largest_share),
    },
    Series {
        name: "evenkeel_interface_queue_backlog",
        kind: Kind::Gauge,
        unit: "bytes",
        labels: INTERFACE,
        help: "Bytes that wait in the qdiscs of all transmit queues",
        values: |exported, take| {
            each(exported, take, |interface| over_queues(interface, |queue| queue.backlog_bytes));
        },
    },
    Series {
        name: "evenkeel_interface_meter",
        kind: Kind::Counter,
        unit: "seconds",
        labels: INTERFACE,
        help: "Processor time of the exporter's BPF meter; absent unless the sysctl kernel.bpf_stats_enabled is 1",
        values: |exported, take| {
            each(exported, take, |interface| interface.bpf_ns.map(|time| time.total as f64 / 1e9));
        },
    },
];
