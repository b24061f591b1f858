//! Each variant against the baseline, repeat by repeat.
//!
//! Repeats of the variants run interleaved, so repeat i of one stands beside repeat i of the other
//! and what drifts on the machine meanwhile falls out of their ratio.

use evenkeel_metrics::{MeanInterval, paired_ratio};
use evenkeel_model::record::{Record, VariantRecord, metric};

/// The variant that others are held against, when a record has it: hashing, tuned.
const PREFERRED_BASELINE: &str = "cmax";

/// One variant against the baseline.
pub(crate) struct Paired<'r> {
    pub variant: &'r str,
    pub baseline: &'r str,
    pub cpu: Option<MeanInterval>,
    pub throughput: Option<MeanInterval>,
}

/// The variant that the others are held against: `cmax`, else the first.
pub(crate) fn baseline(record: &Record) -> Option<&VariantRecord> {
    record
        .variants
        .iter()
        .find(|variant| variant.name == PREFERRED_BASELINE)
        .or_else(|| record.variants.first())
}

/// Every variant but the baseline against it; those without a common figure are left out.
pub(crate) fn against_baseline(record: &Record) -> Vec<Paired<'_>> {
    let Some(baseline) = baseline(record) else { return Vec::new() };
    record
        .variants
        .iter()
        .filter(|variant| variant.name != baseline.name)
        .map(|variant| Paired {
            variant: &variant.name,
            baseline: &baseline.name,
            cpu: ratio(baseline, variant, metric::CPU),
            throughput: ratio(baseline, variant, metric::THROUGHPUT),
        })
        .filter(|paired| paired.cpu.is_some() || paired.throughput.is_some())
        .collect()
}

/// The ratio of a metric of a variant to that of the baseline, repeat by repeat.
pub(crate) fn ratio(baseline: &VariantRecord, variant: &VariantRecord, key: &str) -> Option<MeanInterval> {
    let (first, second): (Vec<f64>, Vec<f64>) = baseline
        .repeats
        .iter()
        .zip(&variant.repeats)
        .filter_map(|(first, second)| Some((*first.metrics.get(key)?, *second.metrics.get(key)?)))
        .unzip();
    paired_ratio(&first, &second)
}
