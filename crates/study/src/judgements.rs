//! Verdicts on each setup: whether it conserves work, whether its claims hold, and how much filter rules
//! cost.

use std::collections::BTreeMap;

use evenkeel_metrics::{MeanInterval, mean_interval, mean_ratio};
use evenkeel_model::qdisc::Claim;
use evenkeel_model::record::metric;

use crate::effect::{effect, in_all_cells, logarithms};
use crate::results::{Point, Results, lack};

const CONSERVATION: &str = "tc-work-conservation";
const MIXED: &str = "tc-fairness-mixed";
const PRIORITY: &str = "tc-priority";
const FILTERS: &str = "tc-filter-cost";

/// Largest share of the link's capacity that a work-conserving setup may lose while packets wait.
pub const CONSERVING: f64 = 0.05;
/// Jain's index over the bytes of flows with mixed lengths of writes, above which a setup is fair.
pub const FAIR: f64 = 0.95;
/// Largest latency of probes under the highest load, as a share of pfifo's latency, with which a setup
/// prioritizes probes.
pub const FIRST: f64 = 0.5;
/// Assumed payload of a segment that TCP passes to the qdisc, bytes.
const SEGMENT: f64 = 65_536.0;

/// An answer, derived from the confidence interval of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The whole interval is on the required side of the bound.
    Yes,
    /// The whole interval is on the other side of the bound.
    No,
    /// The interval includes the bound, or there is no interval.
    Open,
    NotMeasured,
}

impl Answer {
    fn of(mean: &MeanInterval, bound: f64, above_is_good: bool) -> Self {
        let Some(interval) = mean.interval else { return Self::Open };
        match (interval.low > bound, interval.high < bound) {
            (true, _) if above_is_good => Self::Yes,
            (_, true) if above_is_good => Self::No,
            (true, _) => Self::No,
            (_, true) => Self::Yes,
            _ => Self::Open,
        }
    }

    /// Returns the answer's name on pages and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Open => "open",
            Self::NotMeasured => "not measured",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Conservation {
    pub setup: String,
    pub answer: Answer,
    /// Share of the link's capacity that was lost while packets waited.
    pub lost: Option<MeanInterval>,
    /// Share of the time with waiting packets in which less than half of the link's capacity was used.
    pub idle: Option<MeanInterval>,
    /// File of the trace of a repeat.
    pub trace: Option<String>,
    pub why: Option<String>,
}

#[must_use]
pub fn conservation(results: &Results) -> Vec<Conservation> {
    of_setups(results, CONSERVATION)
        .into_iter()
        .map(|(setup, points)| {
            let lost = over_cells(&points, metric::LOST_CAPACITY);
            Conservation {
                setup,
                answer: lost.as_ref().map_or(Answer::NotMeasured, |lost| Answer::of(lost, CONSERVING, false)),
                idle: over_cells(&points, metric::IDLE_WHILE_BACKLOGGED),
                lost,
                trace: points.iter().find_map(|point| point.trace.clone()),
                why: points
                    .iter()
                    .find_map(|point| point.refused.clone().or(point.failures.first().cloned()))
                    .or_else(|| lack(&points, metric::LOST_CAPACITY)),
            }
        })
        .collect()
}

/// Returns the points of a scenario by setup, in the order of the results.
fn of_setups<'r>(results: &'r Results, scenario: &str) -> Vec<(String, Vec<&'r Point>)> {
    let mut setups: Vec<(String, Vec<&Point>)> = Vec::new();
    for point in results.points.iter().filter(|point| point.scenario == scenario) {
        match setups.iter_mut().find(|(setup, _)| *setup == point.setup) {
            Some((_, points)) => points.push(point),
            None => setups.push((point.setup.clone(), vec![point])),
        }
    }
    setups
}

/// Returns a metric's mean over the measured points; `None` without such points, or if one of them lacks the
/// metric.
fn over_cells(points: &[&Point], key: &str) -> Option<MeanInterval> {
    if lack(points, key).is_some() {
        return None;
    }
    let cells = points.iter().map(|point| point.values(key)).filter(|values| !values.is_empty());
    mean_interval(&in_all_cells(cells))
}

#[derive(Clone, Debug, PartialEq)]
pub struct ClaimJudged {
    pub setup: String,
    pub claim: Claim,
    pub answer: Answer,
    pub what: &'static str,
    pub figure: Option<MeanInterval>,
}

#[must_use]
pub fn claims(results: &Results) -> Vec<ClaimJudged> {
    let conservation = conservation(results);
    let mut judged = Vec::new();
    for setup in results.setups() {
        for claim in results.claims.get(setup).into_iter().flatten() {
            let (what, figure, bound, above_is_good) = match claim {
                Claim::Fairness => {
                    let points: Vec<&Point> =
                        results.measured(MIXED).filter(|point| point.setup == setup).collect();
                    (
                        "Jain's index over bytes, mixed lengths",
                        over_cells(&points, metric::JAIN_BYTES),
                        FAIR,
                        true,
                    )
                }
                Claim::Priority => {
                    let most = results
                        .measured(PRIORITY)
                        .filter_map(|point| point.number("clients"))
                        .fold(0.0, f64::max);
                    let key = metric::part(metric::LATENCY, "mean");
                    let found = effect(results, PRIORITY, &key, &[setup], &["pfifo"], |point| {
                        point.number("clients") == Some(most)
                    });
                    (
                        "latency under the most load over that with pfifo",
                        found.ok().map(|found| found.mean),
                        FIRST,
                        false,
                    )
                }
                Claim::WorkConservation => {
                    let own = conservation.iter().find(|own| own.setup == setup);
                    (
                        "share of the line lost while packets wait",
                        own.and_then(|own| own.lost),
                        CONSERVING,
                        false,
                    )
                }
            };
            judged.push(ClaimJudged {
                setup: setup.to_owned(),
                claim: *claim,
                answer: figure
                    .as_ref()
                    .map_or(Answer::NotMeasured, |figure| Answer::of(figure, bound, above_is_good)),
                what,
                figure,
            });
        }
    }
    judged
}

#[derive(Clone, Debug, PartialEq)]
pub struct FilterCost {
    pub setup: String,
    pub classifier: String,
    /// The smallest and the largest number of rules.
    pub rules: (f64, f64),
    /// Processor time per rule and segment of 64 KiB, ns.
    pub ns_per_rule: Option<MeanInterval>,
    /// Bandwidth with the largest number of rules, divided by the bandwidth with the smallest number.
    pub bandwidth_ratio: Option<MeanInterval>,
    /// The reason why a figure is missing, if known.
    pub why: Option<String>,
}

/// Returns the cost of filter rules by setup and classifier.
#[must_use]
pub fn filter_costs(results: &Results) -> Vec<FilterCost> {
    let mut groups: Vec<((String, String), Vec<&Point>)> = Vec::new();
    for point in results.points.iter().filter(|point| point.scenario == FILTERS) {
        let key = (point.setup.clone(), point.axis("classifier").unwrap_or_default().to_owned());
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, points)) => points.push(point),
            None => groups.push((key, vec![point])),
        }
    }
    groups.into_iter().map(|((setup, classifier), points)| filter_cost(setup, classifier, &points)).collect()
}

fn filter_cost(setup: String, classifier: String, points: &[&Point]) -> FilterCost {
    let measured = || points.iter().filter(|point| !point.repeats.is_empty());
    let numbers = || measured().filter_map(|point| point.number("rules"));
    let rules = (numbers().fold(f64::INFINITY, f64::min), numbers().fold(0.0, f64::max));
    let why = points.iter().find_map(|point| point.refused.clone());
    let at = |rules: f64| measured().find(|point| point.number("rules") == Some(rules));
    let both = at(rules.0).zip(at(rules.1)).filter(|_| rules.1 > rules.0);
    let values = |key: &str| -> (BTreeMap<u32, f64>, BTreeMap<u32, f64>) {
        let complete = both.filter(|(few, many)| !few.lacks(key) && !many.lacks(key));
        complete.map(|(few, many)| (few.values(key), many.values(key))).unwrap_or_default()
    };
    let (few, many) = values(&metric::part(metric::CPU_PER_GB, "busy"));
    // Seconds per GB are nanoseconds per byte.
    let per_rule = few
        .iter()
        .filter_map(|(repeat, few)| Some((many.get(repeat)? - few) * SEGMENT / (rules.1 - rules.0)));
    let (few, many) = values(metric::THROUGHPUT);
    let (bandwidth_ratio, lack) = match logarithms(&many, &few, metric::THROUGHPUT) {
        Ok(ratios) => (mean_ratio(&ratios.into_values().collect::<Vec<_>>()), None),
        Err(lack) => (None, lack),
    };
    FilterCost {
        setup,
        classifier,
        rules,
        ns_per_rule: mean_interval(&per_rule.collect::<Vec<_>>()),
        bandwidth_ratio,
        why: why.or(lack),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_repeat_without_bandwidth_is_named() {
        let point = |rules: &str, bandwidths: [f64; 6]| Point {
            scenario: FILTERS.to_owned(),
            name: format!("htb rules={rules}"),
            setup: "htb".to_owned(),
            axes: vec![("classifier".to_owned(), "u32".to_owned()), ("rules".to_owned(), rules.to_owned())],
            repeats: (0..)
                .zip(bandwidths)
                .map(|(repeat, bandwidth)| {
                    let cpu = metric::part(metric::CPU_PER_GB, "busy");
                    (repeat, [(metric::THROUGHPUT.to_owned(), bandwidth), (cpu, 0.5)].into())
                })
                .collect(),
            ..Point::default()
        };
        let cost = |last: f64| {
            let many = point("100", [0.5e9, 0.5e9, 0.5e9, 0.5e9, 0.5e9, last]);
            let results = Results { points: vec![point("1", [1e9; 6]), many], ..Results::default() };
            filter_costs(&results).remove(0)
        };
        let whole = cost(0.5e9);
        assert!((whole.bandwidth_ratio.unwrap().mean - 0.5).abs() < 1e-9);
        assert_eq!(whole.why, None);
        let stalled = cost(0.0);
        assert_eq!(stalled.bandwidth_ratio, None);
        assert_eq!(stalled.why.unwrap(), "throughput_bps is 0 in a repeat, so it has no ratio");
        assert!(stalled.ns_per_rule.is_some());
    }
}
