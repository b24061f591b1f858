//! Whether two studies agree: point by point, within what each says of its own spread.

use evenkeel_metrics::{Interval, welch_difference};

use crate::results::Results;

/// Metrics by which points are compared; the rest follows from them or counts rare events.
const COMPARED: [&str; 8] = [
    "throughput_bps",
    "cores.busy",
    "latency_us.mean",
    "latency_us.p99",
    "jain_bytes",
    "jain_packets",
    "lost_capacity",
    "slo_violation_share",
];

/// Two studies, compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agreement {
    /// What makes the two hard to compare.
    pub warnings: Vec<String>,
    /// Every metric of every point that both have.
    pub compared: Vec<Compared>,
    /// Points that only one of them has.
    pub only_in_one: usize,
}

/// A metric of a point in two studies.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Scenario and point.
    pub point: String,
    /// The metric.
    pub metric: &'static str,
    /// Mean in each.
    pub means: (f64, f64),
    /// 95 % confidence interval of the difference, the second less the first (Welch).
    pub interval: Option<Interval>,
    /// Whether it holds 0; none with fewer than two repeats.
    pub agrees: Option<bool>,
}

impl Agreement {
    /// How many of the comparisons agree, and how many there are.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let judged = || self.compared.iter().filter_map(|compared| compared.agrees);
        (judged().filter(|agrees| *agrees).count(), judged().count())
    }

    /// Share of them that agree.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        let (agree, all) = self.counts();
        (all > 0).then(|| agree as f64 / all as f64)
    }
}

/// Compares two studies.
#[must_use]
pub fn agreement(first: &Results, second: &Results) -> Agreement {
    let mut agreement = Agreement::default();
    let mut differs = |what: &str, first: &str, second: &str| {
        if first != second {
            agreement.warnings.push(format!("{what} differs: {first} and {second}"));
        }
    };
    differs("world", &first.world, &second.world);
    differs("kernel", &first.kernel, &second.kernel);
    differs(
        "effort",
        if first.quick { "quick" } else { "full" },
        if second.quick { "quick" } else { "full" },
    );
    let facts = first.host.keys().chain(second.host.keys());
    let changed: std::collections::BTreeSet<&String> =
        facts.filter(|fact| first.host.get(*fact) != second.host.get(*fact)).collect();
    if !changed.is_empty() {
        let changed: Vec<&str> = changed.into_iter().map(String::as_str).collect();
        agreement.warnings.push(format!("facts about the host differ: {}", changed.join(", ")));
    }
    let measured =
        |results: &Results| results.points.iter().filter(|point| !point.repeats.is_empty()).count();
    let mut both = 0;
    for point in first.points.iter().filter(|point| !point.repeats.is_empty()) {
        let other = second.points.iter().find(|other| {
            other.scenario == point.scenario && other.name == point.name && !other.repeats.is_empty()
        });
        let Some(other) = other else { continue };
        both += 1;
        for metric in COMPARED {
            let values =
                |point: &crate::results::Point| point.values(metric).into_values().collect::<Vec<f64>>();
            let (own, others) = (values(point), values(other));
            let Some(difference) = welch_difference(&own, &others) else { continue };
            let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
            agreement.compared.push(Compared {
                point: format!("{} {}", point.scenario, point.name),
                metric,
                means: (mean(&own), mean(&others)),
                agrees: difference.interval.map(|interval| interval.contains(0.0)),
                interval: difference.interval,
            });
        }
    }
    agreement.only_in_one = measured(first) + measured(second) - 2 * both;
    agreement
}
