//! Compares many figures before and after a change, with simultaneous confidence intervals
//! (Bonferroni).
//!
//! If all values of a figure are positive and of similar size, the figure changes by a *ratio*: the
//! ratio of the geometric means, with Welch's interval on the logarithms. Any other figure changes by a
//! *difference* of means, with Welch's interval (*Biometrika* 34, 1947), because a single value near 0
//! would dominate a geometric mean.
//!
//! **Many figures.** Of a hundred 95 % intervals of unchanged figures, five exclude "no change" on
//! average. With m figures, each [simultaneous](Confidence::Together) interval has the level 1 − 0.02/m
//! (Bonferroni). Then on average at most 2 of 100 reports have a wrong interval. The probability that
//! more than 5 of 100 reports have a wrong interval is at most 1.6 % (binomial).
//!
//! **Few repeats.** Five repeats give an imprecise estimate of the spread, which makes such intervals
//! wide. If the ratios of a report have similar spreads, each spread is estimated from all of them
//! (Smyth, *Statistical Applications in Genetics and Molecular Biology* 3, 2004, section 6). The more
//! similar the spreads are, the more degrees of freedom each spread gets. If the spreads are not
//! similar at all, the result is close to Welch's interval.

use statrs::function::gamma::digamma;

use crate::confidence::{Interval, LEAST_REPEATS, OUTSIDE, Sample};
use crate::student;

/// Maximum probability that at least one interval misses the true value. At 2 %, the probability is at most
/// 1.6 % that more than five of a hundred comparisons of equal runs show a difference.
const OUTSIDE_TOGETHER: f64 = 0.02;
/// Upper limit of the degrees of freedom that a figure gets from the other figures.
const MOST_BORROWED: f64 = 50.0;
/// Minimum of the smallest value, as a share of the largest value, for a ratio.
const LEAST_SHARE: f64 = 0.001;
/// Minimum number of spreads needed to estimate their similarity.
const LEAST_SPREADS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confidence {
    /// 95 % for each interval separately.
    Each,
    /// At least 98 % that all intervals contain their true values.
    Together,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Relative to the first: second / first − 1.
    Ratio,
    /// In the figure's unit: second − first.
    Difference,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// `Ratio` if all values are positive and the smallest is at least a thousandth of the largest.
    pub scale: Scale,
    /// Mean of the first set; the geometric mean for a ratio.
    pub first: f64,
    /// Mean of the second set; the geometric mean for a ratio.
    pub second: f64,
    /// The change in units of `scale`; 0 means no change.
    pub change: f64,
    /// Confidence interval of `change`; `None` if a set has fewer than [`LEAST_REPEATS`] values, or a limit
    /// of the interval is not finite.
    pub interval: Option<Interval>,
    /// Number of values of each set.
    pub n: (usize, usize),
}

impl Change {
    /// Returns whether the change is significant: the interval excludes 0.
    #[must_use]
    pub fn is_shown(&self) -> bool {
        self.interval.is_some_and(|interval| !interval.contains(0.0))
    }
}

/// Returns the changes between the sets of each pair. Ignores values that are not finite; a pair with an
/// empty set has no change.
#[must_use]
pub fn changes(pairs: &[(Vec<f64>, Vec<f64>)], confidence: Confidence) -> Vec<Option<Change>> {
    let pairs: Vec<Option<Pair>> = pairs.iter().map(|(first, second)| Pair::of(first, second)).collect();
    let spreads = Spreads::of(pairs.iter().flatten());
    let outside = match confidence {
        Confidence::Each => OUTSIDE,
        Confidence::Together => {
            let family = pairs.iter().flatten().filter(|pair| pair.can_differ()).count().max(1);
            OUTSIDE_TOGETHER / family as f64
        }
    };
    pairs.into_iter().map(|pair| pair.map(|pair| pair.change(&spreads, outside))).collect()
}

struct Pair {
    scale: Scale,
    first: Sample,
    second: Sample,
}

impl Pair {
    fn of(first: &[f64], second: &[f64]) -> Option<Self> {
        let finite = || first.iter().chain(second).filter(|value| value.is_finite());
        let largest = finite().copied().fold(0.0, f64::max);
        let is_comparable = |value: &f64| *value > 0.0 && *value >= largest * LEAST_SHARE;
        let scale = if finite().all(is_comparable) { Scale::Ratio } else { Scale::Difference };
        let sample = |values: &[f64]| match scale {
            Scale::Ratio => Sample::of(&values.iter().map(|value| value.ln()).collect::<Vec<f64>>()),
            Scale::Difference => Sample::of(values),
        };
        Some(Self { scale, first: sample(first)?, second: sample(second)? })
    }

    fn has_interval(&self) -> bool {
        self.first.n.min(self.second.n) >= LEAST_REPEATS
    }

    /// Returns whether an interval can exclude 0. It cannot if a set has too few values, or if all values
    /// of both sets are the same.
    fn can_differ(&self) -> bool {
        let is_constant = |sample: &Sample| sample.variance == Some(0.0);
        let same = self.first.mean == self.second.mean;
        self.has_interval() && !(same && is_constant(&self.first) && is_constant(&self.second))
    }

    fn change(&self, spreads: &Spreads, outside: f64) -> Change {
        let difference = self.second.mean - self.first.mean;
        let interval = self.interval(spreads, outside, difference);
        let n = (self.first.n, self.second.n);
        match self.scale {
            Scale::Difference => Change {
                scale: self.scale,
                first: self.first.mean,
                second: self.second.mean,
                change: difference,
                interval,
                n,
            },
            Scale::Ratio => Change {
                scale: self.scale,
                first: self.first.mean.exp(),
                second: self.second.mean.exp(),
                change: difference.exp_m1(),
                interval: interval
                    .and_then(|i| Interval { low: i.low.exp_m1(), high: i.high.exp_m1() }.finite()),
                n,
            },
        }
    }

    fn interval(&self, spreads: &Spreads, outside: f64, difference: f64) -> Option<Interval> {
        if !self.has_interval() {
            return None;
        }
        let (variance1, freedom1) = spreads.spread(self.scale, &self.first)?;
        let (variance2, freedom2) = spreads.spread(self.scale, &self.second)?;
        let (error1, error2) = (variance1 / self.first.n as f64, variance2 / self.second.n as f64);
        let error = error1 + error2;
        if error == 0.0 {
            return Interval::around(difference, 0.0);
        }
        // Welch-Satterthwaite, with shares of the sum, because squares of very small or large errors
        // would underflow or overflow.
        let (share1, share2) = (error1 / error, error2 / error);
        let freedom = 1.0 / (share1 * share1 / freedom1 + share2 * share2 / freedom2);
        Interval::around(difference, student::two_sided(freedom, outside) * error.sqrt())
    }
}

/// The common part of the spreads of a report's ratios.
struct Spreads {
    /// Degrees of freedom of the common spread; 0 if there is no common spread.
    freedom: f64,
    variance: f64,
}

impl Spreads {
    /// Estimates the common spread from mean and variance of the logarithms of the sample variances.
    /// Each sample variance is a scaled χ².
    fn of<'p>(pairs: impl Iterator<Item = &'p Pair>) -> Self {
        let none = Self { freedom: 0.0, variance: 0.0 };
        let samples = pairs
            .filter(|pair| pair.scale == Scale::Ratio && pair.has_interval())
            .flat_map(|pair| [&pair.first, &pair.second]);
        let (mut logarithms, mut expected) = (Vec::new(), 0.0);
        for sample in samples {
            // A constant figure gives no information about the spread of other figures.
            let Some(variance) = sample.variance.filter(|variance| *variance > 0.0) else { continue };
            let half = (sample.n as f64 - 1.0) / 2.0;
            logarithms.push(variance.ln() - digamma(half) + half.ln());
            expected += trigamma(half);
        }
        if logarithms.len() < LEAST_SPREADS {
            return none;
        }
        let Some(Sample { n, mean, variance: Some(found) }) = Sample::of(&logarithms) else { return none };
        let beyond = found - expected / n as f64;
        let half = if beyond > 0.0 {
            inverse_trigamma(beyond).min(MOST_BORROWED / 2.0)
        } else {
            MOST_BORROWED / 2.0
        };
        Self { freedom: half * 2.0, variance: (mean + digamma(half) - half.ln()).exp() }
    }

    fn spread(&self, scale: Scale, sample: &Sample) -> Option<(f64, f64)> {
        let (variance, freedom) = (sample.variance?, sample.n as f64 - 1.0);
        // A constant figure is exact, regardless of the spread of other figures.
        if scale == Scale::Difference || self.freedom == 0.0 || variance == 0.0 {
            return Some((variance, freedom));
        }
        let all = self.freedom + freedom;
        Some(((self.freedom * self.variance + freedom * variance) / all, all))
    }
}

/// Returns the second derivative of the logarithm of the gamma function (Abramowitz and Stegun, 6.4.6 and
/// 6.4.12), for x > 0.
fn trigamma(x: f64) -> f64 {
    let (mut x, mut sum) = (x, 0.0);
    while x < 10.0 {
        sum += 1.0 / (x * x);
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    sum + 1.0 / x + square / 2.0 + square / x * (1.0 / 6.0 - square * (1.0 / 30.0 - square / 42.0))
}

/// Returns the inverse of the decreasing [`trigamma`].
fn inverse_trigamma(value: f64) -> f64 {
    let (mut low, mut high) = (1e-6_f64, 1e6_f64);
    for _ in 0..100 {
        let middle = (low * high).sqrt();
        if trigamma(middle) > value { low = middle } else { high = middle }
    }
    (low * high).sqrt()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn close(found: f64, expected: f64, tolerance: f64) {
        assert!((found - expected).abs() < tolerance, "{found} is not {expected}");
    }

    fn one(first: &[f64], second: &[f64]) -> Change {
        changes(&[(first.to_vec(), second.to_vec())], Confidence::Each).remove(0).unwrap()
    }

    #[test]
    fn a_value_near_0_makes_a_difference_of_means() {
        let found = one(&[0.738, 0.738, 1e-9, 1e-9, 1e-9], &[0.738; 5]);
        assert_eq!(found.scale, Scale::Difference);
        close(found.first, 0.2952, 1e-6);
        assert_eq!(one(&[0.01, 1.0, 1.0, 1.0, 1.0], &[1.0; 5]).scale, Scale::Ratio);
    }

    #[test]
    fn difference_by_hand() {
        // Means 0 and 6; variances 2.5 and 10 of five values each: error² 2.5; degrees of freedom
        // 2.5² / (0.5²/4 + 2²/4) = 5.882.
        let found = one(&[-2.0, -1.0, 0.0, 1.0, 2.0], &[2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!((found.scale, found.change), (Scale::Difference, 6.0));
        let half = student::two_sided(2.5 * 2.5 / 1.0625, 0.05) * 2.5_f64.sqrt();
        let interval = found.interval.unwrap();
        close(interval.low, 6.0 - half, 1e-12);
        close(interval.high, 6.0 + half, 1e-12);
        assert!(found.is_shown());
    }

    #[test]
    fn equal_noise_has_the_pooled_degrees_of_freedom() {
        // Logarithms with variances of 0.025: error² 0.01, t(8) = 2.306.
        let values = |at: f64| (-2..=2).map(|step| (at + f64::from(step) / 10.0).exp()).collect::<Vec<f64>>();
        let found = one(&values(0.0), &values(0.1));
        assert_eq!(found.scale, Scale::Ratio);
        close(found.change, 0.1_f64.exp_m1(), 1e-12);
        close(found.interval.unwrap().high, (0.1 + 2.306_004 * 0.1_f64).exp_m1(), 1e-6);
        assert!(!found.is_shown());
    }

    #[test]
    fn what_never_varies_differs_by_anything() {
        let same = one(&[0.1; 5], &[0.1; 7]);
        assert_eq!(same.interval.map(|interval| interval.contains(0.0)), Some(true));
        assert!(one(&[1.0; 5], &[2.0; 5]).is_shown());
        assert!(!one(&[0.0; 5], &[0.0; 5]).is_shown());
    }

    #[test]
    fn fewer_than_five_have_no_interval_and_nothing_has_no_change() {
        let found = one(&[1.0; 4], &[2.0; 9]);
        assert_eq!((found.interval, found.change, found.n), (None, 1.0, (4, 9)));
        let nothing = [(vec![], vec![1.0]), (vec![f64::NAN], vec![1.0])];
        assert_eq!(changes(&nothing, Confidence::Together), [None, None]);
    }

    /// The squares of these values exceed the largest number. The degrees of freedom must not be NaN.
    #[test]
    fn huge_values_have_no_interval_and_do_no_harm() {
        for (first, second) in [
            ([1e308, 1.0, 1e308, 1.0, 1e308], [1.0, 2.0, 3.0, 4.0, 5.0]),
            ([-1e308, 1e308, -1e308, 1e308, 0.0], [1.0, 2.0, 3.0, 4.0, 5.0]),
            ([f64::MAX; 5], [f64::MIN_POSITIVE; 5]),
            ([5e-324, 1.0, 5e-324, 1.0, 1.0], [f64::MAX, 1.0, f64::MAX, 1.0, 1.0]),
        ] {
            let found = one(&first, &second);
            assert!(found.interval.is_none_or(|interval| interval.low <= interval.high), "{found:?}");
        }
    }

    #[test]
    fn intervals_that_hold_together_are_wider() {
        let pair = (vec![9.0, 10.0, 11.0, 10.0, 9.5], vec![11.0, 12.0, 11.5, 12.5, 11.0]);
        let pairs = vec![pair; 3];
        let width = |confidence| {
            let interval = changes(&pairs, confidence)[0].unwrap().interval.unwrap();
            interval.high - interval.low
        };
        assert!(width(Confidence::Together) > 1.2 * width(Confidence::Each));
        // Figures that cannot differ do not widen the intervals of other figures.
        let mut more = pairs.clone();
        more.extend(vec![(vec![0.0; 5], vec![0.0; 5]); 50]);
        let of = |pairs: &[(Vec<f64>, Vec<f64>)]| changes(pairs, Confidence::Together)[0].unwrap().interval;
        assert_eq!(of(&pairs), of(&more));
    }

    #[test]
    fn spreads_that_are_alike_are_estimated_together() {
        let values = |spread: f64, turn: i32| -> Vec<f64> {
            (0..5).map(|step| (f64::from((step * 2 + turn) % 5 - 2) * spread).exp()).collect()
        };
        let freedom = |spreads: &[f64]| {
            let pairs: Vec<Pair> = spreads
                .iter()
                .map(|spread| Pair::of(&values(*spread, 1), &values(*spread, 2)).unwrap())
                .collect();
            Spreads::of(pairs.iter()).freedom
        };
        assert_eq!(freedom(&[0.02; 6]), MOST_BORROWED);
        assert!(freedom(&[1e-4, 1e-3, 0.01, 0.1, 0.5, 1.0]) < 1.0);
        // Three figures are too few to estimate the similarity of spreads.
        assert_eq!(freedom(&[0.02; 3]), 0.0);
    }

    #[test]
    fn trigamma_at_known_points() {
        let pi_squared = std::f64::consts::PI.powi(2);
        close(trigamma(1.0), pi_squared / 6.0, 1e-9);
        close(trigamma(0.5), pi_squared / 2.0, 1e-9);
        close(inverse_trigamma(pi_squared / 6.0), 1.0, 1e-9);
    }
}
