//! Two records against one another: what changed by more than the repeats vary by themselves.
//!
//! # The rule
//! A metric of a variant differs when the 95 % confidence interval of the difference of its means
//! (Welch's t, which does not take the two records for equally noisy) leaves out 0. With fewer than
//! two repeats in either record nothing can be said about spread, and the metric is undecided.
//! Of twenty metrics that did not change, about one is still reported as different.
//!
//! # Tolerance
//! Whether two worlds agree is another question: a difference may be beyond the spread and yet small. With a
//! tolerance each metric is judged by its means: the second's may differ from the first's by that share of
//! the first's. That is the point estimate; the interval says how sure it is.

mod json;
mod table;

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_metrics::{Interval, Summary, welch_difference};
use evenkeel_model::record::{Record, VariantRecord};

use crate::catalogue::{self, Direction};
use crate::{format, summaries};

pub use json::json;
pub use table::render;

/// Two records, compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// What makes the two hard to compare: other scenario, world, rate, machine.
    pub warnings: Vec<String>,
    /// The variants that both have, in the order of the first.
    pub variants: Vec<VariantComparison>,
    /// Variants of the first record that the second lacks.
    pub only_in_first: Vec<String>,
    /// Variants of the second record that the first lacks.
    pub only_in_second: Vec<String>,
    /// By which share of the first mean the second may differ, if that is judged.
    pub tolerance: Option<f64>,
}

/// A metric was asked for that no variant has in both records.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no variant has the metric {key} in both records; they have: {known}")]
pub struct UnknownMetric {
    /// Its key.
    pub key: String,
    /// Those that there are, comma separated.
    pub known: String,
}

impl Comparison {
    /// Leaves only the metrics with these keys.
    ///
    /// # Errors
    /// When no variant has one of them in both records.
    pub fn keep(&mut self, keys: &[String]) -> Result<(), UnknownMetric> {
        let all = self.variants.iter().flat_map(|variant| &variant.metrics);
        let mut known: Vec<&str> = Vec::new();
        for metric in all {
            if !known.contains(&metric.key.as_str()) {
                known.push(&metric.key);
            }
        }
        if let Some(key) = keys.iter().find(|key| !known.contains(&key.as_str())) {
            return Err(UnknownMetric { key: key.clone(), known: known.join(", ") });
        }
        for variant in &mut self.variants {
            variant.metrics.retain(|metric| keys.contains(&metric.key));
        }
        Ok(())
    }

    /// Judges every metric: the mean of the second may differ from that of the first by this share of it.
    pub fn judge(&mut self, tolerance: f64) {
        self.tolerance = Some(tolerance);
        for metric in self.variants.iter_mut().flat_map(|variant| &mut variant.metrics) {
            metric.within = Some(metric.difference.abs() <= tolerance * metric.first.mean.abs());
        }
    }

    /// Whether nothing was found to be beyond the tolerance, and something within it. True if none is judged.
    #[must_use]
    pub fn agrees(&self) -> bool {
        let mut metrics = self.variants.iter().flat_map(|variant| &variant.metrics).peekable();
        self.tolerance.is_none()
            || (metrics.peek().is_some() && metrics.all(|metric| metric.within == Some(true)))
    }
}

/// One variant in both records.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantComparison {
    /// Its name.
    pub name: String,
    /// The metrics that both have, in the order of tables.
    pub metrics: Vec<MetricComparison>,
}

/// One metric of one variant in both records.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricComparison {
    /// Metric key; see [`evenkeel_model::record::metric`].
    pub key: String,
    /// Which way it is better.
    pub direction: Direction,
    /// Over the repeats of the first record.
    pub first: Summary,
    /// Over the repeats of the second record.
    pub second: Summary,
    /// Mean of the second minus mean of the first, in the metric's recorded unit.
    pub difference: f64,
    /// 95 % confidence interval of the difference; absent with fewer than two repeats in either.
    pub interval: Option<Interval>,
    /// The difference as a share of the first mean; absent if that is 0.
    pub relative: Option<f64>,
    /// What can be said.
    pub verdict: Verdict,
    /// Whether the means agree within the tolerance, if that is judged.
    pub within: Option<bool>,
}

/// What can be said about a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Within the spread of the repeats.
    Same,
    /// Beyond the spread, and in the second record better.
    Better,
    /// Beyond the spread, and in the second record worse.
    Worse,
    /// Beyond the spread, for a metric of which neither way is better.
    Different,
    /// Too few repeats to tell.
    Undecided,
}

impl Verdict {
    /// Its name in tables and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Different => "different",
            Self::Undecided => "undecided",
        }
    }
}

/// Compares two records: the second with the first.
#[must_use]
pub fn compare(first: &Record, second: &Record) -> Comparison {
    let missing = |of: &Record, other: &Record| -> Vec<String> {
        of.variants
            .iter()
            .filter(|variant| find(other, &variant.name).is_none())
            .map(|variant| variant.name.clone())
            .collect()
    };
    let variants = first
        .variants
        .iter()
        .filter_map(|variant| Some((variant, find(second, &variant.name)?)))
        .map(|(before, after)| VariantComparison {
            name: before.name.clone(),
            metrics: metrics(before, after, &first.windows),
        })
        .collect();
    Comparison {
        warnings: warnings(first, second),
        variants,
        only_in_first: missing(first, second),
        only_in_second: missing(second, first),
        tolerance: None,
    }
}

fn find<'r>(record: &'r Record, name: &str) -> Option<&'r VariantRecord> {
    record.variants.iter().find(|variant| variant.name == name)
}

fn metrics(
    first: &VariantRecord,
    second: &VariantRecord,
    windows: &BTreeMap<String, f64>,
) -> Vec<MetricComparison> {
    let (before, after) = (summaries::of_metrics(first), summaries::of_metrics(second));
    let both: BTreeSet<String> = before.keys().filter(|key| after.contains_key(*key)).cloned().collect();
    catalogue::in_order(both, windows)
        .into_iter()
        .filter_map(|key| {
            let (before, after) = (*before.get(&key)?, *after.get(&key)?);
            let difference =
                welch_difference(&summaries::values(first, &key), &summaries::values(second, &key))?;
            let direction = catalogue::describe(&key).direction;
            Some(MetricComparison {
                key,
                direction,
                first: before,
                second: after,
                difference: difference.mean,
                interval: difference.interval,
                relative: (before.mean != 0.0).then(|| difference.mean / before.mean.abs()),
                verdict: verdict(direction, difference.mean, difference.interval),
                within: None,
            })
        })
        .collect()
}

fn verdict(direction: Direction, difference: f64, interval: Option<Interval>) -> Verdict {
    let Some(interval) = interval else { return Verdict::Undecided };
    if interval.contains(0.0) {
        return Verdict::Same;
    }
    match direction {
        Direction::Neutral => Verdict::Different,
        Direction::HigherIsBetter if difference > 0.0 => Verdict::Better,
        Direction::LowerIsBetter if difference < 0.0 => Verdict::Better,
        Direction::HigherIsBetter | Direction::LowerIsBetter => Verdict::Worse,
    }
}

fn warnings(first: &Record, second: &Record) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut differs = |what: &str, first: &str, second: &str| {
        if first != second {
            warnings.push(format!("{what} differs: {first} and {second}"));
        }
    };
    differs("scenario", &first.scenario, &second.scenario);
    differs("world", &first.world, &second.world);
    differs("kernel", &first.kernel, &second.kernel);
    differs("rate", &format::rate(first.rate_bps), &format::rate(second.rate_bps));
    differs("length of a repeat", &format::seconds(first.duration_s), &format::seconds(second.duration_s));
    differs("warm-up", &format::seconds(first.warmup_s), &format::seconds(second.warmup_s));
    if first.windows != second.windows {
        warnings.push("windows differ: the fairness metrics are over other lengths of time".to_owned());
    }
    if first.scenario == second.scenario && first.scenario_text != second.scenario_text {
        warnings.push("the scenario was changed between the two".to_owned());
    }
    let facts: BTreeSet<&String> = first.host.keys().chain(second.host.keys()).collect();
    let changed: Vec<&str> = facts
        .into_iter()
        .filter(|fact| first.host.get(*fact) != second.host.get(*fact))
        .map(String::as_str)
        .collect();
    if !changed.is_empty() {
        warnings.push(format!("facts about the host differ: {}", changed.join(", ")));
    }
    warnings
}
