//! Whether a scenario's expectations held.

use evenkeel_metrics::Summary;
use evenkeel_model::record::{ExpectationRecord, VariantRecord};
use evenkeel_model::scenario::{Expectation, Statistic};

/// Judges the expectations that speak of variants that ran.
pub(crate) fn judge(expectations: &[Expectation], variants: &[VariantRecord]) -> Vec<ExpectationRecord> {
    expectations
        .iter()
        .filter_map(|expectation| {
            let find = |name: &str| variants.iter().find(|variant| variant.name == name);
            let variant = find(&expectation.variant)?;
            let base = match &expectation.relative_to {
                Some(name) => Some(find(name)?),
                None => None,
            };
            Some(judge_one(expectation, variant, base))
        })
        .collect()
}

/// Value of a metric in every repeat; none if it was not measured in all of them.
fn values(variant: &VariantRecord, metric: &str) -> Option<Vec<f64>> {
    variant.repeats.iter().map(|repeat| repeat.metrics.get(metric).copied()).collect()
}

/// `base` is the variant that the expectation is relative to, if it is.
fn judge_one(
    expectation: &Expectation,
    variant: &VariantRecord,
    base: Option<&VariantRecord>,
) -> ExpectationRecord {
    let own = values(variant, &expectation.metric).unwrap_or_default();
    let base = base.map(|base| values(base, &expectation.metric).unwrap_or_default());
    // Repeat by repeat; one without a partner has nothing to be held against.
    let each: Vec<f64> = match &base {
        Some(base) if base.len() != own.len() => Vec::new(),
        Some(base) => own.iter().zip(base).map(|(own, base)| own / base).collect(),
        None => own.clone(),
    };
    let statistic_of = |of: fn(&Summary) -> f64| {
        let own = of(&Summary::of(&own)?);
        match &base {
            Some(base) => Some(own / of(&Summary::of(base)?)),
            None => Some(own),
        }
        .filter(|value| value.is_finite())
    };
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
    let (statistic, value) = match expectation.statistic {
        Statistic::Mean => ("mean", statistic_of(|summary| summary.mean)),
        Statistic::Median => ("median", statistic_of(|summary| summary.median)),
        Statistic::Every => (
            "every",
            each.iter()
                .copied()
                .max_by(|a, b| outside(*a).total_cmp(&outside(*b)))
                .filter(|_| each.iter().all(|value| value.is_finite())),
        ),
    };
    ExpectationRecord {
        variant: expectation.variant.clone(),
        metric: expectation.metric.clone(),
        statistic: statistic.to_owned(),
        relative_to: expectation.relative_to.clone(),
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
            relative_to: None,
            at_least,
            at_most,
            repeats: 2,
        }
    }

    #[test]
    fn every_names_the_worst_repeat() {
        let variant = variant(&[Some(0.75), Some(0.9), Some(0.72)]);
        let judged = judge_one(&expect(Statistic::Every, Some(0.7), Some(0.8)), &variant, None);
        assert_eq!((judged.value, judged.met), (Some(0.9), Some(false)));
        let judged = judge_one(&expect(Statistic::Median, Some(0.7), Some(0.8)), &variant, None);
        assert_eq!((judged.value, judged.met), (Some(0.75), Some(true)));
    }

    #[test]
    fn what_was_not_measured_has_not_held() {
        let judged = judge_one(&expect(Statistic::Mean, None, Some(1.0)), &variant(&[Some(0.5), None]), None);
        assert_eq!((judged.value, judged.met), (None, Some(false)));
    }

    #[test]
    fn too_few_repeats_are_not_judged() {
        let judged = judge_one(&expect(Statistic::Mean, None, Some(1.0)), &variant(&[Some(2.0)]), None);
        assert_eq!((judged.value, judged.met), (Some(2.0), None));
    }

    #[test]
    fn a_ratio_is_held_against_the_bounds() {
        let base = VariantRecord { name: "cmax".to_owned(), ..variant(&[Some(2.0), Some(8.0), Some(2.0)]) };
        let own = variant(&[Some(1.0), Some(2.0), Some(3.0)]);
        let judged = |statistic| {
            let expectation =
                Expectation { relative_to: Some("cmax".to_owned()), ..expect(statistic, None, Some(0.8)) };
            let judged = judge(&[expectation], &[base.clone(), own.clone()]);
            judged.into_iter().map(|judged| (judged.value, judged.met)).collect::<Vec<_>>()
        };
        // 2 over 4; 2 over 2; and the third repeat's 3 over 2.
        assert_eq!(judged(Statistic::Mean), [(Some(0.5), Some(true))]);
        assert_eq!(judged(Statistic::Median), [(Some(1.0), Some(false))]);
        assert_eq!(judged(Statistic::Every), [(Some(1.5), Some(false))]);
        let expectation =
            Expectation { relative_to: Some("cmax".to_owned()), ..expect(Statistic::Mean, None, Some(0.8)) };
        assert!(judge(std::slice::from_ref(&expectation), std::slice::from_ref(&own)).is_empty());
        let nothing =
            VariantRecord { name: "cmax".to_owned(), ..variant(&[Some(0.0), Some(0.0), Some(0.0)]) };
        let judged = judge(&[expectation], &[nothing, own]);
        assert_eq!((judged[0].value, judged[0].met), (None, Some(false)));
    }

    #[test]
    fn variants_that_did_not_run_are_not_judged() {
        let expectation =
            Expectation { variant: "other".to_owned(), ..expect(Statistic::Mean, None, Some(1.0)) };
        assert!(judge(&[expectation], &[variant(&[Some(0.5)])]).is_empty());
    }
}
