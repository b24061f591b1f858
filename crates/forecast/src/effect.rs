//! The effect of a change: throughput and drops before and after the change, with the same seeds.

use evenkeel_metrics::{Interval, mean_ratio, paired_ratio};

use crate::runs::Run;

/// Minimum relative change of the throughput that counts as a difference: the accuracy of the model.
const LEAST_CHANGE: f64 = 0.005;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// Throughput, bit/s: geometric means over the seeds; 0 if a run received nothing.
    pub before_bps: f64,
    pub after_bps: f64,
    /// Ratio of the throughputs, seed by seed; `None` if a run received nothing.
    pub ratio: Option<f64>,
    /// 95 % confidence interval of the ratio; `None` for too few seeds or without a ratio.
    pub interval: Option<Interval>,
    pub drops_before_per_s: f64,
    pub drops_after_per_s: f64,
    pub seeds: usize,
}

impl Effect {
    /// Compares runs of the same seeds.
    #[must_use]
    pub fn of(before: &[Run], after: &[Run]) -> Self {
        let bps = |runs: &[Run]| runs.iter().map(|run| run.bps).collect::<Vec<f64>>();
        let mean = |values: &[f64]| {
            let logarithms: Vec<f64> = values.iter().map(|bps| bps.ln()).collect();
            let all = logarithms.iter().all(|logarithm| logarithm.is_finite());
            mean_ratio(&logarithms).filter(|_| all).map_or(0.0, |found| found.mean)
        };
        let drops =
            |runs: &[Run]| runs.iter().map(|run| run.drops_per_s).sum::<f64>() / runs.len().max(1) as f64;
        let (first, second) = (bps(before), bps(after));
        let seeds = first.len().min(second.len());
        let ratio = paired_ratio(&first, &second).filter(|found| found.n == seeds);
        Self {
            before_bps: mean(&first),
            after_bps: mean(&second),
            ratio: ratio.map(|found| found.mean),
            interval: ratio.and_then(|found| found.interval),
            drops_before_per_s: drops(before),
            drops_after_per_s: drops(after),
            seeds,
        }
    }

    /// Returns whether the throughput changes: the interval excludes 1, and the change is not below
    /// `LEAST_CHANGE`.
    #[must_use]
    pub fn is_shown(&self) -> bool {
        let is_large = self.ratio.is_some_and(|ratio| (ratio - 1.0).abs() >= LEAST_CHANGE);
        is_large && self.interval.is_some_and(|interval| !interval.contains(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(bps: &[f64]) -> Vec<Run> {
        bps.iter().map(|bps| Run { bps: *bps, drops_per_s: 10.0 }).collect()
    }

    #[test]
    fn an_effect_is_shown_only_beyond_chance_and_resolution() {
        let before = runs(&[10.0, 11.0, 10.0, 12.0, 11.0]);
        let doubled = Effect::of(&before, &runs(&[20.0, 22.0, 20.0, 24.0, 22.0]));
        assert!(doubled.is_shown() && doubled.ratio.is_some_and(|ratio| (ratio - 2.0).abs() < 1e-9));
        assert_eq!((doubled.seeds, doubled.drops_after_per_s), (5, 10.0));
        assert!(!Effect::of(&before, &before).is_shown());
        assert!(!Effect::of(&before, &runs(&[10.01, 11.011, 10.01, 12.012, 11.011])).is_shown(), "0.1 %");
        assert!(!Effect::of(&before, &runs(&[12.0, 9.0, 11.0, 14.0, 8.0])).is_shown());
        assert!(!Effect::of(&before[..4], &doubled_of(&before[..4])).is_shown(), "too few for an interval");
    }

    fn doubled_of(before: &[Run]) -> Vec<Run> {
        before.iter().map(|run| Run { bps: 2.0 * run.bps, ..*run }).collect()
    }

    #[test]
    fn a_run_without_throughput_leaves_no_ratio() {
        let found = Effect::of(&runs(&[0.0, 1.0, 1.0, 1.0, 1.0]), &runs(&[1.0; 5]));
        assert_eq!((found.before_bps, found.ratio, found.interval), (0.0, None, None));
    }
}
