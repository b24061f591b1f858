//! Repeats of a variant, summarised by metric key.

use std::collections::BTreeMap;

use evenkeel_metrics::Summary;
use evenkeel_model::record::{RepeatRecord, VariantRecord};

/// Summary of each metric over the repeats in which it was measured.
pub(crate) fn of_metrics(variant: &VariantRecord) -> BTreeMap<String, Summary> {
    summarised(variant, |repeat| &repeat.metrics)
}

/// Summary of each counter over the repeats that have it.
pub(crate) fn of_counters(variant: &VariantRecord) -> BTreeMap<String, Summary> {
    summarised(variant, |repeat| &repeat.counters)
}

/// The values of one metric, in the order of the repeats.
pub(crate) fn values(variant: &VariantRecord, key: &str) -> Vec<f64> {
    variant.repeats.iter().filter_map(|repeat| repeat.metrics.get(key).copied()).collect()
}

/// Cost of the BPF programs over all repeats: nanoseconds per segment (absent without a segment)
/// and segments.
pub(crate) fn datapath(variant: &VariantRecord) -> Option<(Option<f64>, u64)> {
    let mut costs = variant.repeats.iter().filter_map(|repeat| repeat.datapath).peekable();
    costs.peek()?;
    let (time, segments) = costs.fold((0_u64, 0_u64), |(time, segments), cost| {
        (time.saturating_add(cost.run_time_ns), segments.saturating_add(cost.segments))
    });
    Some(((segments > 0).then(|| time as f64 / segments as f64), segments))
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
