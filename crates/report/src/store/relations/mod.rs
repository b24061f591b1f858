//! Relations between the figures of a repeat that hold by definition, in one table.
//!
//! A relation is an identity (the throughput is the payload of the flows divided by the time) or a bound
//! (the percentiles give a lower bound of the mean). All of these figures come from the same counts, so
//! tolerances cover rounding only.

mod completion;
mod counts;
mod fairness;
mod order;
mod processors;
mod requests;

use evenkeel_model::record::{RepeatRecord, metric};
use evenkeel_model::scenario::{Scenario, Variant};

use super::consistent::Run;
use super::plausible::Implausible;

/// Tolerance for rounding of figures that are computed from each other.
const ROUNDING: f64 = 1e-6;
/// Rounding of differences near 0, far below the resolution of any figure.
const LEAST: f64 = 1e-9;
/// Histograms round percentiles to three digits.
const HISTOGRAM: f64 = 2e-3;

type Checked = Result<(), Implausible>;
type Relation = fn(&Facts<'_>) -> Checked;

#[derive(Clone, Copy)]
pub(super) struct Facts<'r> {
    pub(super) repeat: &'r RepeatRecord,
    pub(super) run: Option<&'r Run<'r>>,
    /// The scenario and the variant, if they could be read.
    pub(super) known: Option<(&'r Scenario, &'r Variant)>,
}

impl<'r> Facts<'r> {
    fn of(&self, key: &str) -> Option<f64> {
        self.repeat.metrics.get(key).copied()
    }

    fn part(&self, prefix: &str, part: &str) -> Option<f64> {
        self.of(&metric::part(prefix, part))
    }

    /// Returns the run if its measured time is known in advance.
    fn timed_run(&self) -> Option<&'r Run<'r>> {
        self.run.filter(|run| run.seconds > 0.0)
    }

    fn is_simulated(&self) -> bool {
        self.run.is_some_and(|run| run.world == "sim")
    }

    /// Returns the payload of all flows in bytes.
    fn payload(&self) -> f64 {
        self.repeat.flows.iter().map(|flow| u128::from(flow.payload_bytes)).sum::<u128>() as f64
    }

    /// Returns the duration of a shuffle in seconds, from its payload and throughput. Returns `None` for
    /// other workloads, and without a run, flows or throughput.
    fn elapsed(&self) -> Option<f64> {
        self.run.filter(|run| run.seconds == 0.0 && !self.repeat.flows.is_empty())?;
        let throughput = self.of(metric::THROUGHPUT).filter(|bps| *bps > 0.0)?;
        Some(self.payload() * 8.0 / throughput)
    }
}

/// Every relation, with the figures to which it applies.
const RELATIONS: [(&[&str], Relation); 19] = [
    (&[metric::RETRANSMITS, metric::OUT_OF_ORDER, metric::DROPS, metric::QDISC], counts::whole),
    (&[metric::TRANSACTIONS, metric::SLO_VIOLATIONS], counts::transactions),
    // nfm <= nfm_max; p50 <= p99; p50 / 2 <= mean; each part of the busy processor time <= busy.
    (&[metric::NFM, metric::LATENCY, metric::COMPLETION, metric::RESPONSE, metric::CORES], order::order),
    (&[metric::LATENCY, metric::COMPLETION, metric::RESPONSE], order::mean),
    (&[metric::LATENCY, metric::SLO_VIOLATIONS], order::objective),
    // Throughput is payload divided by time. For requests: their number times the size of a response.
    (&[metric::THROUGHPUT], counts::throughput),
    (&[metric::THROUGHPUT], requests::throughput),
    // Sums over the flows, and the maximum over the qdiscs.
    (&[metric::RETRANSMITS, metric::OUT_OF_ORDER], counts::of_flows),
    (&[metric::QDISC], counts::of_qdiscs),
    (&[metric::RETRANSMITS_PER_S, metric::RETRANSMISSION_EVENTS_PER_S], counts::retransmission_rates),
    // Jain's index of the flows, and bounds of the NFM from the bytes of the flows.
    (&[metric::JAIN_BYTES, metric::JAIN_PACKETS], fairness::jain_of_flows),
    (&[metric::NFM, metric::NFM_MAX], fairness::nfm),
    // Processor time: the sum of its parts, the sum over the processors, per core and per GB.
    (&[metric::CPU, metric::CORES, metric::CPU_PER_GB, metric::THROUGHPUT_PER_CORE], processors::time),
    (&[metric::CPU_SHARE], processors::shares),
    // Completion times and their spread, for each size and for all sizes.
    (&[metric::COMPLETION], completion::spread),
    (&[metric::COMPLETION], completion::sizes),
    (&[metric::COMPLETION], completion::line),
    // Half a round trip is not longer than half of the time in which it was measured.
    (&[metric::LATENCY], order::round_trips),
    // Requests and response times of each group, its clients, and all groups.
    (&[metric::REQUESTS, metric::RESPONSE], requests::groups),
];

pub(super) fn check(facts: &Facts<'_>) -> Checked {
    RELATIONS.iter().try_for_each(|(_, relation)| relation(facts))
}

fn against(field: &str, value: f64, what: impl Into<String>) -> Implausible {
    Implausible::Contradiction { field: field.to_owned(), value, what: what.into() }
}

fn is_same(one: f64, other: f64) -> bool {
    (one - other).abs() <= ROUNDING * one.abs().max(other.abs()) + LEAST
}

/// Returns an error if a figure is not `expected`, which comes from `source`.
pub(super) fn same(field: &str, value: f64, expected: f64, source: &str) -> Checked {
    if is_same(value, expected) {
        return Ok(());
    }
    Err(against(field, value, format!("{source}: {expected}")))
}

/// Returns an error if a figure is below `least`, which comes from `source`. `rounding` is relative.
fn at_least(field: &str, value: f64, least: f64, rounding: f64, source: &str) -> Checked {
    if value >= least - least.abs() * rounding - LEAST {
        return Ok(());
    }
    Err(against(field, value, format!("{source}: at least {least}")))
}

/// Returns an error if a figure is above `most`, which comes from `source`. `rounding` is relative.
fn at_most(field: &str, value: f64, most: f64, rounding: f64, source: &str) -> Checked {
    if value <= most + most.abs() * rounding + LEAST {
        return Ok(());
    }
    Err(against(field, value, format!("{source}: at most {most}")))
}

fn is_whole(value: f64) -> bool {
    (value - value.round()).abs() <= ROUNDING * value.abs().max(1.0)
}

fn is_part(key: &str, prefix: &str) -> bool {
    key.strip_prefix(prefix).is_some_and(|part| part.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Metrics that are independent of all others. The check covers only their range.
    const UNRELATED: [&str; 3] = [metric::DISTURBANCE, metric::IDLE_WHILE_BACKLOGGED, metric::LOST_CAPACITY];

    #[test]
    fn every_metric_has_a_relation_or_is_listed_without() {
        let prefixes = [
            metric::LATENCY,
            metric::NFM,
            metric::NFM_MAX,
            metric::COMPLETION,
            metric::RESPONSE,
            metric::REQUESTS,
        ];
        let keys = [metric::of_tenants(), metric::of_transfers()].concat();
        let keys = keys.iter().map(|key| key.split('.').next().unwrap_or_default());
        let known: BTreeSet<&str> = keys.chain(prefixes).chain(metric::PLAIN).collect();
        let related: BTreeSet<&str> = RELATIONS.iter().flat_map(|(of, _)| of.iter().copied()).collect();
        assert_eq!(related.intersection(&BTreeSet::from(UNRELATED)).count(), 0);
        assert_eq!(related.into_iter().chain(UNRELATED).collect::<BTreeSet<_>>(), known);
    }
}
