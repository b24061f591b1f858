//! Judges a scenario's expectations.
//!
//! An expectation compares bounds with the 95 % confidence interval of a value: the mean over the
//! repeats, or the share of repeats within the bounds. The value can be relative to another variant.
//! - met: the whole interval is within the bounds
//! - missed: the whole interval is outside the bounds, or a repeat lacks the value
//! - open: the interval is partly within the bounds, or the run cannot decide, for example because it is
//!   a quick run or has too few repeats
//!
//! More repeats do not make a true expectation fail more often.

use evenkeel_metrics::{Interval, MeanInterval, mean_interval, paired_ratio, share_interval};
use evenkeel_model::record::{ExpectationRecord, Refusal, RepeatRecord, VariantRecord, metric};
use evenkeel_model::scenario::{Expectation, Statistic};
use evenkeel_model::units::Nanoseconds;

use crate::timing::Timing;

/// Judges the expectations of the requested variants. Expectations of a refused variant stay open. So do all
/// expectations of a quick run, because it is too short.
#[must_use]
pub fn judge(
    expectations: &[Expectation],
    variants: &[VariantRecord],
    refused: &[Refusal],
    timing: &Timing,
    quick: bool,
) -> Vec<ExpectationRecord> {
    expectations
        .iter()
        .filter_map(|expectation| {
            let find = |name: &str| variants.iter().find(|variant| variant.name == name);
            let Some(variant) = find(&expectation.variant) else {
                let name = &expectation.variant;
                let is_refused = refused.iter().any(|refusal| refusal.name == *name);
                return is_refused.then(|| recorded(expectation, None, None, Some(did_not_run(name))));
            };
            let base = expectation.relative_to.as_deref().and_then(find);
            Some(judge_one(expectation, variant, base, timing, quick))
        })
        .collect()
}

/// Returns the value of a metric in every repeat. Returns `None` if a repeat lacks the metric.
fn values(variant: &VariantRecord, metric: &str) -> Option<Vec<f64>> {
    variant.repeats.iter().map(|repeat| repeat.metrics.get(metric).copied()).collect()
}

/// Returns the value to compare with the bounds. Returns `None` without repeats, if the two variants have
/// different numbers of repeats, or if a repeat has no finite value or ratio.
fn estimate(expectation: &Expectation, own: &[f64], base: Option<&[f64]>) -> Option<MeanInterval> {
    if base.is_some_and(|base| base.len() != own.len()) {
        return None;
    }
    let found = match (expectation.statistic, base) {
        (Statistic::Mean, None) => mean_interval(own),
        (Statistic::Mean, Some(base)) => paired_ratio(base, own),
        (Statistic::Share, base) => {
            let each: Vec<f64> = match base {
                Some(base) => own.iter().zip(base).map(|(own, base)| own / base).collect(),
                None => own.to_vec(),
            };
            let (low, high) = bounds(expectation);
            let hits = each.iter().filter(|value| (low..=high).contains(*value)).count();
            share_interval(hits, each.len()).filter(|_| each.iter().all(|value| value.is_finite()))
        }
    };
    found.filter(|found| found.n == own.len())
}

fn bounds(expectation: &Expectation) -> (f64, f64) {
    (expectation.at_least.unwrap_or(f64::NEG_INFINITY), expectation.at_most.unwrap_or(f64::INFINITY))
}

/// Returns the window, with its length, of a fairness metric that is not measured at this rate; `None` for
/// other metrics.
fn left_out<'t>(key: &str, timing: &'t Timing) -> Option<(&'t String, &'t Nanoseconds)> {
    let (prefix, window) = key.split_once('.')?;
    timing.left_out.get_key_value(window).filter(|_| [metric::NFM, metric::NFM_MAX].contains(&prefix))
}

/// Judges an expectation. `base` is the variant that a relative expectation refers to; `None` if the
/// expectation is absolute, or that variant did not run.
fn judge_one(
    expectation: &Expectation,
    variant: &VariantRecord,
    base: Option<&VariantRecord>,
    timing: &Timing,
    quick: bool,
) -> ExpectationRecord {
    let own = values(variant, &expectation.metric).unwrap_or_default();
    let overflowed = [Some(variant), base]
        .into_iter()
        .flatten()
        .find(|variant| variant.repeats.iter().any(RepeatRecord::meter_overflowed));
    let base = base.map(|base| values(base, &expectation.metric).unwrap_or_default());
    // A ratio needs the variant that the expectation refers to.
    let absent = expectation.relative_to.as_ref().filter(|_| base.is_none());
    let found = if absent.is_none() { estimate(expectation, &own, base.as_deref()) } else { None };
    let (low, high) = match expectation.statistic {
        Statistic::Mean => bounds(expectation),
        Statistic::Share => (expectation.share.unwrap_or(0.0), 1.0),
    };
    let repeats = variant.repeats.len();
    let (met, open) = if quick {
        (None, Some("not judged: a quick run".to_owned()))
    } else if let Some(absent) = absent {
        (None, Some(did_not_run(absent)))
    } else if let Some(VariantRecord { name, .. }) = overflowed {
        (None, Some(format!("not judged: the figures of {name} are incomplete (meter_overflow)")))
    } else if let Some((window, length)) = left_out(&expectation.metric, timing) {
        let repeat = timing.duration;
        let why =
            format!("the window '{window}' lasts {length} at this rate, longer than a repeat of {repeat}");
        (None, Some(format!("not judged: {why}")))
    } else if repeats < expectation.repeats as usize {
        let s = if repeats == 1 { "" } else { "s" };
        (None, Some(format!("not judged: {repeats} repeat{s}, {} needed", expectation.repeats)))
    } else {
        let base = base.as_deref().unwrap_or_default();
        let pairs = || own.iter().zip(base).map(|(own, base)| (*own == 0.0, *base == 0.0));
        match found.map(|found| found.interval) {
            // A nonzero value divided by 0 counts as above any upper bound. 0 divided by a nonzero value
            // counts as below any positive lower bound.
            None if pairs()
                .any(|(own, base)| (base && !own && high.is_finite()) || (own && !base && low > 0.0)) =>
            {
                (Some(false), Some("one of the values is 0, so they have no ratio".to_owned()))
            }
            None if pairs().any(|(own, base)| own || base) => {
                (None, Some("not judged: values of 0 have no ratio; leave out relative-to".to_owned()))
            }
            None => (Some(false), None),
            Some(Some(interval)) if interval.lies_within(low, high) => (Some(true), None),
            Some(Some(interval)) if interval.lies_outside(low, high) => (Some(false), None),
            Some(_) => (None, Some("the interval contains a bound: run more repeats".to_owned())),
        }
    };
    recorded(expectation, found, met, open)
}

fn did_not_run(variant: &str) -> String {
    format!("not judged: {variant} did not run")
}

fn recorded(
    expectation: &Expectation,
    found: Option<MeanInterval>,
    met: Option<bool>,
    open: Option<String>,
) -> ExpectationRecord {
    ExpectationRecord {
        variant: expectation.variant.clone(),
        metric: expectation.metric.clone(),
        statistic: expectation.statistic.to_string(),
        share: expectation.share,
        relative_to: expectation.relative_to.clone(),
        at_least: expectation.at_least,
        at_most: expectation.at_most,
        value: found.map(|found| found.mean),
        interval: found.and_then(|found| found.interval).map(|Interval { low, high }| (low, high)),
        repeats: expectation.repeats,
        met,
        open,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use evenkeel_model::scenario::LEAST_REPEATS;

    fn variant(name: &str, values: &[Option<f64>]) -> VariantRecord {
        let repeats = values
            .iter()
            .map(|value| RepeatRecord {
                metrics: value.iter().map(|value| ("nfm.1s".to_owned(), *value)).collect(),
                ..RepeatRecord::default()
            })
            .collect();
        VariantRecord { name: name.to_owned(), settings: Default::default(), notes: Vec::new(), repeats }
    }

    /// The times of a repeat of 1 s, which is too short for the window `10s`.
    fn timing() -> Timing {
        Timing {
            bin: Nanoseconds::from_millis(1),
            windows: [("1s".to_owned(), Nanoseconds::from_secs(1))].into(),
            left_out: [("10s".to_owned(), Nanoseconds::from_secs(10))].into(),
            duration: Nanoseconds::from_secs(1),
            warmup: Nanoseconds::new(0),
        }
    }

    fn expect(statistic: Statistic, at_least: Option<f64>, at_most: Option<f64>) -> Expectation {
        Expectation {
            variant: "dqa".to_owned(),
            metric: "nfm.1s".to_owned(),
            statistic,
            share: (statistic == Statistic::Share).then_some(0.6),
            relative_to: None,
            at_least,
            at_most,
            repeats: LEAST_REPEATS,
        }
    }

    fn judged(expectation: &Expectation, values: &[f64]) -> ExpectationRecord {
        let values: Vec<Option<f64>> = values.iter().copied().map(Some).collect();
        judge_one(expectation, &variant("dqa", &values), None, &timing(), false)
    }

    #[test]
    fn a_ratio_to_zero_is_left_open() {
        let expectation =
            Expectation { relative_to: Some("cmax".to_owned()), ..expect(Statistic::Mean, None, Some(1.5)) };
        let zeros = [Some(0.0); 6];
        let found = judge_one(
            &expectation,
            &variant("dqa", &zeros),
            Some(&variant("cmax", &zeros)),
            &timing(),
            false,
        );
        assert_eq!(found.met, None);
        assert!(found.open.unwrap().contains("values of 0 have no ratio"));
    }

    #[test]
    fn a_pair_with_one_zero_is_a_miss() {
        let expectation =
            Expectation { relative_to: Some("cmax".to_owned()), ..expect(Statistic::Mean, None, Some(1.5)) };
        // Both variants have a zero, but in different repeats.
        let own = [0.0, 900.0, 900.0, 900.0, 900.0, 900.0].map(Some);
        let base = [300.0, 0.0, 300.0, 300.0, 300.0, 300.0].map(Some);
        let found =
            judge_one(&expectation, &variant("dqa", &own), Some(&variant("cmax", &base)), &timing(), false);
        assert_eq!(found.met, Some(false), "{found:?}");
        assert!(found.open.unwrap().contains("one of the values is 0"));
        // The ratios without zeros are clearly within the bound.
        let own = [900.0, 0.0, 900.0, 900.0, 900.0, 900.0].map(Some);
        let base = [300.0, 0.0, 0.0, 300.0, 300.0, 300.0].map(Some);
        let expectation = Expectation { at_least: Some(1.0), at_most: None, ..expectation };
        let found =
            judge_one(&expectation, &variant("dqa", &own), Some(&variant("cmax", &base)), &timing(), false);
        assert_eq!(found.met, None, "{found:?}");
    }

    #[test]
    fn five_repeats_have_an_interval_and_four_have_none() {
        assert_eq!(LEAST_REPEATS as usize, evenkeel_metrics::LEAST_REPEATS);
    }

    /// Checks nine repeats with four queues of two flows and four queues of one flow, and one repeat in
    /// which a flow has less throughput.
    #[test]
    fn one_repeat_of_ten_does_not_decide_about_the_mean() {
        let mut values = [0.75; 10];
        values[3] = 0.82;
        let expectation = expect(Statistic::Mean, Some(0.7), Some(0.8));
        let found = judged(&expectation, &values);
        assert_eq!((found.met, found.open), (Some(true), None));
        assert!((found.value.unwrap() - 0.757).abs() < 1e-9);
        assert!(found.interval.unwrap().1 < 0.775);
        assert_eq!(judged(&expectation, &values.repeat(20)).met, Some(true));
        assert_eq!(judged(&expectation, &values.map(|value| value + 0.1)).met, Some(false));
    }

    #[test]
    fn an_interval_that_holds_a_bound_leaves_it_open() {
        let found = judged(&expect(Statistic::Mean, Some(0.7), Some(0.8)), &[0.5, 0.9, 0.7, 0.8, 0.6]);
        assert_eq!(found.met, None);
        assert!(found.open.unwrap().contains("contains a bound"));
    }

    #[test]
    fn the_share_of_the_repeats_has_an_interval_too() {
        let expectation = expect(Statistic::Share, None, Some(0.8));
        let with = |good: usize, bad: usize| {
            let values = [vec![0.75; good], vec![0.9; bad]].concat();
            let found = judged(&expectation, &values);
            (found.value, found.met)
        };
        // The exact intervals: 0.69 to 1 for 10 of 10, 0.48 to 1 for 5 of 5, 0 to 0.31 for 0 of 10.
        assert_eq!(with(10, 0), (Some(1.0), Some(true)));
        assert_eq!(with(5, 0), (Some(1.0), None));
        assert_eq!(with(0, 10), (Some(0.0), Some(false)));
        assert_eq!(with(90, 10), (Some(0.9), Some(true)));
    }

    #[test]
    fn incomplete_figures_meet_no_expectation() {
        let mut overflowed = variant("dqa", &[Some(0.75); 6]);
        let expectation = expect(Statistic::Mean, Some(0.7), Some(0.8));
        assert_eq!(judge_one(&expectation, &overflowed, None, &timing(), false).met, Some(true));
        overflowed.repeats[1].counters.insert("meter_overflow".to_owned(), 5.0);
        let found = judge_one(&expectation, &overflowed, None, &timing(), false);
        assert_eq!(found.met, None);
        assert!(found.open.unwrap().contains("the figures of dqa are incomplete (meter_overflow)"));
    }

    #[test]
    fn what_was_not_measured_has_not_held() {
        let some = variant("dqa", &[Some(0.5), None, Some(0.5), Some(0.5), Some(0.5)]);
        let found = judge_one(&expect(Statistic::Mean, None, Some(1.0)), &some, None, &timing(), false);
        assert_eq!((found.value, found.met), (None, Some(false)));
    }

    #[test]
    fn a_window_longer_than_a_repeat_is_not_judged() {
        for key in ["nfm.10s", "nfm_max.10s"] {
            let expectation =
                Expectation { metric: key.to_owned(), ..expect(Statistic::Mean, None, Some(1.0)) };
            let found = judged(&expectation, &[0.5; 5]);
            assert_eq!((found.value, found.met), (None, None));
            let told = "not judged: the window '10s' lasts 10s at this rate, longer than a repeat of 1s";
            assert_eq!(found.open.unwrap(), told);
        }
    }

    #[test]
    fn too_few_repeats_and_quick_runs_are_not_judged() {
        let expectation = expect(Statistic::Mean, None, Some(1.0));
        let found = judged(&expectation, &[2.0, 2.0]);
        assert_eq!((found.value, found.met), (Some(2.0), None));
        assert_eq!(found.open.unwrap(), "not judged: 2 repeats, 5 needed");
        let quick = judge_one(&expectation, &variant("dqa", &[Some(2.0); 6]), None, &timing(), true);
        assert_eq!((quick.met, quick.open.unwrap().as_str()), (None, "not judged: a quick run"));
    }

    #[test]
    fn a_ratio_is_held_against_the_bounds_pair_by_pair() {
        let base = variant("cmax", &[2.0, 8.0, 2.0, 4.0, 1.0].map(Some));
        let own = variant("dqa", &[1.0, 4.0, 1.0, 2.0, 0.5].map(Some));
        let expectation =
            Expectation { relative_to: Some("cmax".to_owned()), ..expect(Statistic::Mean, None, Some(0.8)) };
        let of = |variants: &[VariantRecord]| {
            judge(std::slice::from_ref(&expectation), variants, &[], &timing(), false)
        };
        let judged = of(&[base.clone(), own.clone()]);
        assert_eq!(
            (judged[0].value.map(|value| (value * 1e9).round()), judged[0].met),
            (Some(5e8), Some(true))
        );
        let alone = of(std::slice::from_ref(&own));
        assert_eq!((alone[0].value, alone[0].met), (None, None));
        assert_eq!(alone[0].open.as_deref(), Some("not judged: cmax did not run"));
        let nothing = variant("cmax", &[Some(0.0); 5]);
        let judged = of(&[nothing, own]);
        assert_eq!((judged[0].value, judged[0].met), (None, Some(false)));
    }

    #[test]
    fn variants_that_did_not_run_are_not_judged() {
        let expectation =
            Expectation { variant: "other".to_owned(), ..expect(Statistic::Mean, None, Some(1.0)) };
        let expectations = [expectation];
        let of = |refused: &[Refusal]| {
            judge(&expectations, &[variant("dqa", &[Some(0.5)])], refused, &timing(), false)
        };
        assert!(of(&[]).is_empty());
        // A refused variant was requested, so its expectation is listed.
        let refused = of(&[Refusal { name: "other".to_owned(), why: "no such module".to_owned() }]);
        assert_eq!((refused[0].met, refused[0].value), (None, None));
        assert_eq!(refused[0].open.as_deref(), Some("not judged: other did not run"));
    }
}
