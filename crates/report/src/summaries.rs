//! Summarises a variant's repeats by metric key.

use std::collections::BTreeMap;

use evenkeel_metrics::Summary;
use evenkeel_model::record::{DatapathCost, RepeatRecord, VariantRecord};

pub(crate) fn of_metrics(variant: &VariantRecord) -> BTreeMap<String, Summary> {
    summarised(variant, |repeat| &repeat.metrics)
}

pub(crate) fn of_counters(variant: &VariantRecord) -> BTreeMap<String, Summary> {
    summarised(variant, |repeat| &repeat.counters)
}

pub(crate) fn values(variant: &VariantRecord, key: &str) -> Vec<f64> {
    variant.repeats.iter().filter_map(|repeat| repeat.metrics.get(key).copied()).collect()
}

/// Returns the number of repeats in which a variant lacks a metric that its other repeats have. A
/// repeat often lacks a metric because it is slow, so the mean of the other repeats is not the
/// variant's mean.
pub(crate) fn gaps(variant: &VariantRecord, key: &str) -> usize {
    match values(variant, key).len() {
        0 => 0,
        found => variant.repeats.len() - found,
    }
}

/// Cost of the BPF programs over all repeats, ns per segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Datapath {
    /// Cost of the queue choice. `None` without segments.
    pub(crate) choice: Option<f64>,
    /// Cost of a completion. `None` without segments.
    pub(crate) completion: Option<f64>,
    pub(crate) segments: u64,
}

impl Datapath {
    pub(crate) fn whole(&self) -> Option<f64> {
        Some(self.choice? + self.completion?)
    }
}

pub(crate) fn datapath(variant: &VariantRecord) -> Option<Datapath> {
    let mut costs = variant.repeats.iter().filter_map(|repeat| repeat.datapath).peekable();
    costs.peek()?;
    let sum = costs.fold(DatapathCost::default(), |sum, cost| DatapathCost {
        run_time_ns: sum.run_time_ns.saturating_add(cost.run_time_ns),
        completion_ns: sum.completion_ns.saturating_add(cost.completion_ns),
        segments: sum.segments.saturating_add(cost.segments),
    });
    let each = |nanoseconds: u64| (sum.segments > 0).then(|| nanoseconds as f64 / sum.segments as f64);
    Some(Datapath {
        choice: each(sum.run_time_ns),
        completion: each(sum.completion_ns),
        segments: sum.segments,
    })
}

fn summarised<'r>(
    variant: &'r VariantRecord,
    figures: impl Fn(&'r RepeatRecord) -> &'r BTreeMap<String, f64>,
) -> BTreeMap<String, Summary> {
    let mut values: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (key, value) in variant.repeats.iter().flat_map(figures) {
        values.entry(key).or_default().push(*value);
    }
    values.into_iter().filter_map(|(key, values)| Some((key.to_owned(), Summary::of(&values)?))).collect()
}
