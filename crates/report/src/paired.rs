//! Compares each variant with the baseline, repeat by repeat.
//!
//! The run interleaves the repeats of the variants. Repeat i of a variant is paired with repeat i of
//! the baseline, so that drift of the machine cancels in the ratio.

use evenkeel_metrics::{MeanInterval, paired_ratio};
use evenkeel_model::record::{Record, VariantRecord, metric};

/// Preferred baseline: the tuned variant with hashing.
const PREFERRED_BASELINE: &str = "cmax";

pub(crate) struct Paired<'r> {
    pub variant: &'r str,
    pub baseline: &'r str,
    /// Number of repeats that both variants have.
    pub repeats: usize,
    pub cpu: Option<MeanInterval>,
    pub throughput: Option<MeanInterval>,
}

/// Returns the variant `cmax` if it is one of `variants`, otherwise the first; `None` without variants.
pub(crate) fn baseline<'r>(variants: &[&'r VariantRecord]) -> Option<&'r VariantRecord> {
    variants.iter().find(|variant| variant.name == PREFERRED_BASELINE).or_else(|| variants.first()).copied()
}

/// Returns the workload of a variant. A point of a sweep has the name `QDISC AXIS=VALUE...`; its
/// workload is the part after the qdisc. Without a sweep, all variants have the same workload, and the
/// result is empty.
pub(crate) fn workload(variant: &VariantRecord) -> &str {
    let (_, values) = variant.name.split_once(' ').unwrap_or_default();
    if values.split(' ').all(|value| value.contains('=')) { values } else { "" }
}

pub(crate) fn by_workload<'r>(
    variants: impl IntoIterator<Item = &'r VariantRecord>,
) -> Vec<(&'r str, Vec<&'r VariantRecord>)> {
    let mut groups: Vec<(&str, Vec<&VariantRecord>)> = Vec::new();
    for variant in variants {
        let workload = workload(variant);
        match groups.iter_mut().find(|(known, _)| *known == workload) {
            Some((_, group)) => group.push(variant),
            None => groups.push((workload, vec![variant])),
        }
    }
    groups
}

/// Compares every other variant with the baseline of its workload, if their CPU time or throughput has a
/// ratio.
pub(crate) fn against_baseline(record: &Record) -> Vec<Paired<'_>> {
    let mut all = Vec::new();
    for (_, group) in by_workload(&record.variants) {
        let Some(baseline) = baseline(&group) else { continue };
        let others = group.iter().filter(|variant| variant.name != baseline.name);
        all.extend(others.map(|variant| Paired {
            variant: &variant.name,
            baseline: &baseline.name,
            repeats: baseline.repeats.len().min(variant.repeats.len()),
            cpu: ratio(baseline, variant, metric::CPU),
            throughput: ratio(baseline, variant, metric::THROUGHPUT),
        }));
    }
    all.retain(|paired| paired.cpu.is_some() || paired.throughput.is_some());
    all
}

/// Returns the ratio of a variant's metric to the baseline's metric, paired by repeat. Repeats that lack the
/// metric have no pair. Returns `None` without a pair, or if a pair has a value without a ratio, such as 0.
pub(crate) fn ratio(baseline: &VariantRecord, variant: &VariantRecord, key: &str) -> Option<MeanInterval> {
    let (first, second): (Vec<f64>, Vec<f64>) = baseline
        .repeats
        .iter()
        .zip(&variant.repeats)
        .filter_map(|(first, second)| Some((*first.metrics.get(key)?, *second.metrics.get(key)?)))
        .unzip();
    paired_ratio(&first, &second)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use evenkeel_model::record::RepeatRecord;

    use super::*;

    #[test]
    fn a_value_of_0_leaves_no_ratio() {
        let variant = |values: &[Option<f64>]| {
            let metrics = |value: &Option<f64>| value.iter().map(|value| ("x".to_owned(), *value)).collect();
            let repeats =
                values.iter().map(|value| RepeatRecord { metrics: metrics(value), ..Default::default() });
            VariantRecord {
                name: String::new(),
                settings: Default::default(),
                notes: Vec::new(),
                repeats: repeats.collect(),
            }
        };
        let base = variant(&[Some(1.0); 6]);
        assert_eq!(ratio(&base, &variant(&[Some(2.0); 6]), "x").unwrap().n, 6);
        let mut values = [Some(2.0); 6];
        values[3] = Some(0.0);
        assert_eq!(ratio(&base, &variant(&values), "x"), None);
        assert_eq!(ratio(&variant(&values), &base, "x"), None);
        values[3] = None;
        assert_eq!(ratio(&base, &variant(&values), "x").unwrap().n, 5);
    }
}
