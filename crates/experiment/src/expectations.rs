//! Whether a scenario's expectations held.

use evenkeel_metrics::Summary;
use evenkeel_model::record::{ExpectationRecord, VariantRecord};
use evenkeel_model::scenario::{Expectation, Statistic};

/// Judges the expectations that speak of a variant that ran.
pub(crate) fn judge(expectations: &[Expectation], variants: &[VariantRecord]) -> Vec<ExpectationRecord> {
    expectations
        .iter()
        .filter_map(|expectation| {
            let variant = variants.iter().find(|variant| variant.name == expectation.variant)?;
            Some(judge_one(expectation, variant))
        })
        .collect()
}

fn judge_one(expectation: &Expectation, variant: &VariantRecord) -> ExpectationRecord {
    let values: Vec<f64> = variant
        .repeats
        .iter()
        .filter_map(|repeat| repeat.metrics.get(&expectation.metric).copied())
        .collect();
    let within = |value: f64| {
        expectation.at_least.is_none_or(|bound| value >= bound)
            && expectation.at_most.is_none_or(|bound| value <= bound)
    };
    // How far outside of the bounds; the worst repeat speaks for `every`.
    let outside = |value: f64| {
        let below = expectation.at_least.map_or(f64::NEG_INFINITY, |bound| bound - value);
        let above = expectation.at_most.map_or(f64::NEG_INFINITY, |bound| value - bound);
        below.max(above)
    };
    let complete = !values.is_empty() && values.len() == variant.repeats.len();
    let summary = Summary::of(&values).filter(|_| complete);
    let (statistic, value) = match expectation.statistic {
        Statistic::Mean => ("mean", summary.map(|summary| summary.mean)),
        Statistic::Median => ("median", summary.map(|summary| summary.median)),
        Statistic::Every => (
            "every",
            summary.and_then(|_| values.iter().copied().max_by(|a, b| outside(*a).total_cmp(&outside(*b)))),
        ),
    };
    ExpectationRecord {
        variant: expectation.variant.clone(),
        metric: expectation.metric.clone(),
        statistic: statistic.to_owned(),
        at_least: expectation.at_least,
        at_most: expectation.at_most,
        value,
        repeats: expectation.repeats,
        met: (variant.repeats.len() >= expectation.repeats as usize).then(|| value.is_some_and(within)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_model::record::RepeatRecord;

    fn variant(values: &[Option<f64>]) -> VariantRecord {
        let repeats = values
            .iter()
            .map(|value| RepeatRecord {
                metrics: value.iter().map(|value| ("nfm.1s".to_owned(), *value)).collect(),
                ..RepeatRecord::default()
            })
            .collect();
        VariantRecord { name: "dqa".to_owned(), settings: Default::default(), notes: Vec::new(), repeats }
    }

    fn expect(statistic: Statistic, at_least: Option<f64>, at_most: Option<f64>) -> Expectation {
        Expectation {
            variant: "dqa".to_owned(),
            metric: "nfm.1s".to_owned(),
            statistic,
            at_least,
            at_most,
            repeats: 2,
        }
    }

    #[test]
    fn every_names_the_worst_repeat() {
        let variant = variant(&[Some(0.75), Some(0.9), Some(0.72)]);
        let judged = judge_one(&expect(Statistic::Every, Some(0.7), Some(0.8)), &variant);
        assert_eq!((judged.value, judged.met), (Some(0.9), Some(false)));
        let judged = judge_one(&expect(Statistic::Median, Some(0.7), Some(0.8)), &variant);
        assert_eq!((judged.value, judged.met), (Some(0.75), Some(true)));
    }

    #[test]
    fn what_was_not_measured_has_not_held() {
        let judged = judge_one(&expect(Statistic::Mean, None, Some(1.0)), &variant(&[Some(0.5), None]));
        assert_eq!((judged.value, judged.met), (None, Some(false)));
    }

    #[test]
    fn too_few_repeats_are_not_judged() {
        let judged = judge_one(&expect(Statistic::Mean, None, Some(1.0)), &variant(&[Some(2.0)]));
        assert_eq!((judged.value, judged.met), (Some(2.0), None));
    }

    #[test]
    fn variants_that_did_not_run_are_not_judged() {
        let expectation =
            Expectation { variant: "other".to_owned(), ..expect(Statistic::Mean, None, Some(1.0)) };
        assert!(judge(&[expectation], &[variant(&[Some(0.5)])]).is_empty());
    }
}
