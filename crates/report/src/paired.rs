//! Compares each variant with the baseline, repeat by repeat.
//!
//! Repeats of the variants are interleaved. Repeat i of one is paired with repeat i of the other, so that drift
//! of the machine cancels in their ratio.

use evenkeel_metrics::{MeanInterval, paired_ratio};
use evenkeel_model::record::{Record, VariantRecord, metric};

/// The preferred baseline: hashing, tuned.
const PREFERRED_BASELINE: &str = "cmax";

/// One variant, compared with the baseline.
pub(crate) struct Paired<'r> {
    pub variant: &'r str,
    pub baseline: &'r str,
    pub cpu: Option<MeanInterval>,
    pub throughput: Option<MeanInterval>,
}

/// `cmax` if present, else the first variant.
pub(crate) fn baseline(record: &Record) -> Option<&VariantRecord> {
    record
        .variants
        .iter()
        .find(|variant| variant.name == PREFERRED_BASELINE)
        .or_else(|| record.variants.first())
}

/// Every other variant compared with the baseline, if they have a common figure.
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

/// The ratio of a variant's metric to the baseline's, by repeat.
pub(crate) fn ratio(baseline: &VariantRecord, variant: &VariantRecord, key: &str) -> Option<MeanInterval> {
    let (first, second): (Vec<f64>, Vec<f64>) = baseline
        .repeats
        .iter()
        .zip(&variant.repeats)
        .filter_map(|(first, second)| Some((*first.metrics.get(key)?, *second.metrics.get(key)?)))
        .unzip();
    paired_ratio(&first, &second)
}
