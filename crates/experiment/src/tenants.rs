//! Computes the metrics of tenants, their qdisc and its CPUs.

use std::collections::BTreeMap;

use evenkeel_metrics::LineUse;
use evenkeel_model::record::metric;
use evenkeel_model::scenario::TenantPoint;
use evenkeel_model::units::Nanoseconds;
use evenkeel_model::world::{RawLine, RawProcessor, RawQdisc, RawRepeat};

/// Length of a window for the use of the line, bytes: four of the largest segments.
const WINDOW_BYTES: f64 = 4.0 * 65_536.0;
const GIGABYTE: f64 = 1e9;

/// Returns the metrics that only tenants have. `payload` is the number of bytes that all flows
/// delivered.
pub(crate) fn metrics(
    raw: &RawRepeat,
    point: &TenantPoint,
    measured: Nanoseconds,
    payload: u64,
) -> BTreeMap<String, f64> {
    let mut metrics = BTreeMap::new();
    let mut put = |key: String, value: Option<f64>| {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            metrics.insert(key, value);
        }
    };
    let seconds = measured.as_secs_f64();
    if let Some(probes) = point.probes.filter(|_| !raw.latency_us.is_empty()) {
        let count = raw.latency_us.len() as f64;
        put(metric::TRANSACTIONS.to_owned(), Some(count / seconds));
        let violations = probes.slo.map(|slo| {
            let most_us = slo.as_u64() as f64 / 1e3;
            raw.latency_us.iter().filter(|us| **us > most_us).count() as f64 / count
        });
        put(metric::SLO_VIOLATIONS.to_owned(), violations);
    }
    let Some(tenants) = &raw.tenants else { return metrics };
    put(metric::DISTURBANCE.to_owned(), tenants.disturbance);
    if !tenants.processors.is_empty() {
        let gigabytes = payload as f64 / GIGABYTE;
        for (part, cores) in cores(&tenants.processors) {
            put(metric::part(metric::CORES, part), Some(cores));
            let per_gigabyte = (payload > 0).then(|| cores * seconds / gigabytes);
            put(metric::part(metric::CPU_PER_GB, part), per_gigabyte);
        }
    }
    if !tenants.qdiscs.is_empty() {
        // A qdisc's counters include its children, so the root has the highest counters.
        let root =
            |count: fn(&RawQdisc) -> u64| tenants.qdiscs.iter().map(count).max().map(|most| most as f64);
        let [drops, overlimits, requeues, backlog] = metric::QDISC_PARTS;
        put(metric::part(metric::QDISC, drops), root(|qdisc| qdisc.drops));
        put(metric::part(metric::QDISC, overlimits), root(|qdisc| qdisc.overlimits));
        put(metric::part(metric::QDISC, requeues), root(|qdisc| qdisc.requeues));
        put(metric::part(metric::QDISC, backlog), root(|qdisc| qdisc.backlog_bytes));
    }
    if let Some(found) = tenants.line.as_ref().and_then(line_use) {
        put(metric::IDLE_WHILE_BACKLOGGED.to_owned(), Some(found.idle_share));
        put(metric::LOST_CAPACITY.to_owned(), Some(found.lost_share));
    }
    metrics
}

/// Returns the number of busy CPUs by activity: the parts of [`metric::CORES`].
fn cores(processors: &[RawProcessor]) -> [(&'static str, f64); 5] {
    let sum = |share: fn(&RawProcessor) -> f64| processors.iter().map(share).sum::<f64>();
    let (user, system, softirq) = (sum(|of| of.user), sum(|of| of.system), sum(|of| of.softirq));
    let [all, in_user, in_system, in_softirq, waiting] = metric::CORES_PARTS;
    [
        (all, user + system + softirq),
        (in_user, user),
        (in_system, system),
        (in_softirq, softirq),
        (waiting, sum(|of| of.wait)),
    ]
}

/// Returns the utilization of the line while packets waited for it, in windows of several segments.
#[must_use]
pub fn line_use(line: &RawLine) -> Option<LineUse> {
    let bins = (WINDOW_BYTES / line.capacity_bytes).ceil();
    // On a slow line, a repeat may have no complete window; then there is no result.
    let bins = (bins.is_finite() && bins < line.bytes.len() as f64).then_some(bins as usize)?;
    evenkeel_metrics::line_use(&line.bytes, &line.backlog_bytes, line.capacity_bytes, bins.max(1))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::sync::Arc;

    use evenkeel_model::scenario::{Offloads, Probes};
    use evenkeel_model::world::RawTenants;

    use super::*;

    fn point(slo: Option<Nanoseconds>) -> TenantPoint {
        TenantPoint {
            qdisc: Arc::default(),
            coordinates: Vec::new(),
            bulk: Vec::new(),
            probes: Some(Probes { count: 1, message: evenkeel_model::units::ByteSize::from_bytes(64), slo }),
            filter_rules: None,
            offloads: Offloads { segmentation: true, aggregation: true },
            pinned: false,
        }
    }

    #[test]
    fn processors_are_added_up_and_divided_by_what_was_moved() {
        let processor = |user, softirq| RawProcessor { user, system: 0.25, softirq, wait: 0.125 };
        let raw = RawRepeat {
            tenants: Some(RawTenants {
                processors: vec![processor(0.25, 0.25), processor(0.0, 0.25)],
                disturbance: Some(0.01),
                ..RawTenants::default()
            }),
            ..RawRepeat::default()
        };
        let metrics = metrics(&raw, &point(None), Nanoseconds::from_secs(2), 4_000_000_000);
        let expected = [
            ("cores.busy", 1.25),
            ("cores.softirq", 0.5),
            ("cores.system", 0.5),
            ("cores.user", 0.25),
            ("cores.wait", 0.25),
            ("cpu_s_per_gb.busy", 0.625),
            ("cpu_s_per_gb.softirq", 0.25),
            ("cpu_s_per_gb.system", 0.25),
            ("cpu_s_per_gb.user", 0.125),
            ("cpu_s_per_gb.wait", 0.125),
            ("disturbance", 0.01),
        ];
        assert_eq!(metrics.iter().map(|(key, value)| (key.as_str(), *value)).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_objective_is_held_against_every_round_trip() {
        let raw = RawRepeat { latency_us: vec![10.0, 20.0, 1000.0, 1000.5], ..RawRepeat::default() };
        let slo = Some(Nanoseconds::from_millis(1));
        let found = metrics(&raw, &point(slo), Nanoseconds::from_secs(2), 0);
        assert_eq!((found["slo_violation_share"], found["transactions_per_s"]), (0.25, 2.0));
        assert!(
            !metrics(&raw, &point(None), Nanoseconds::from_secs(2), 0).contains_key("slo_violation_share")
        );
    }

    #[test]
    fn a_qdisc_counts_for_its_children() {
        let qdisc = |handle: &str, drops, backlog_bytes| RawQdisc {
            handle: handle.to_owned(),
            drops,
            backlog_bytes,
            ..RawQdisc::default()
        };
        let raw = RawRepeat {
            tenants: Some(RawTenants {
                qdiscs: vec![qdisc("10:", 3, 100), qdisc("1:", 8, 300), qdisc("20:", 5, 200)],
                ..RawTenants::default()
            }),
            ..RawRepeat::default()
        };
        let found = metrics(&raw, &point(None), Nanoseconds::from_secs(1), 0);
        assert_eq!((found["qdisc.drops"], found["qdisc.backlog_bytes"]), (8.0, 300.0));
    }

    #[test]
    fn a_slow_line_is_judged_in_longer_windows() {
        // At 100 Mbit/s, a segment of 64 KiB takes five bins of a millisecond.
        let mut bytes = vec![0; 210];
        bytes.iter_mut().step_by(5).for_each(|bin| *bin = 62_500);
        let line = RawLine {
            bin: Nanoseconds::from_millis(1),
            capacity_bytes: 12_500.0,
            backlog_bytes: vec![1; bytes.len()],
            bytes,
        };
        let found = line_use(&line).unwrap();
        assert_eq!((found.idle_share, found.windows), (0.0, 10));
        assert!(found.lost_share < 0.02, "{found:?}");
        assert_eq!(line_use(&RawLine { capacity_bytes: 1.0, ..line.clone() }), None);
        assert_eq!(line_use(&RawLine { capacity_bytes: 0.0, ..line }), None);
    }
}
