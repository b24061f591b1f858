//! 95 % confidence intervals of means, medians, ratios and shares over repeats.
//!
//! The interval of a median needs at least 6 repeats, every other interval at least [`LEAST_REPEATS`] repeats
//! or pairs. With two repeats, Student's t is 12.7, so an interval would be too wide to use.

use crate::student;

/// Minimum number of repeats or pairs for an interval.
pub const LEAST_REPEATS: usize = 5;

/// The probability that a 95 % interval misses the true value.
pub(crate) const OUTSIDE: f64 = 0.05;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

impl Interval {
    pub(crate) fn around(centre: f64, half_width: f64) -> Option<Self> {
        Self { low: centre - half_width, high: centre + half_width }.finite()
    }

    pub(crate) fn finite(self) -> Option<Self> {
        (self.low.is_finite() && self.high.is_finite()).then_some(self)
    }

    /// Returns whether the interval includes `value`. Both ends belong to the interval.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }

    /// Returns whether the whole interval is between two bounds. With bounds around "no change", this is a
    /// test of equivalence (two one-sided tests, Schuirmann 1987).
    #[must_use]
    pub fn lies_within(&self, low: f64, high: f64) -> bool {
        low <= self.low && self.high <= high
    }

    /// Returns whether the whole interval is outside two bounds.
    #[must_use]
    pub fn lies_outside(&self, low: f64, high: f64) -> bool {
        self.high < low || high < self.low
    }
}

/// A mean over repeats, a mean ratio over pairs, or a share of repeats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeanInterval {
    /// The mean; the geometric mean for ratios.
    pub mean: f64,
    /// 95 % confidence interval of the mean; `None` for fewer than [`LEAST_REPEATS`], or if an end is not
    /// finite.
    pub interval: Option<Interval>,
    /// Number of values or pairs; at least 1.
    pub n: usize,
}

/// Returns the mean of `values` with Student's t interval. Ignores values that are not finite; `None` if no
/// value is left.
#[must_use]
pub fn mean_interval(values: &[f64]) -> Option<MeanInterval> {
    let sample = Sample::of(values)?;
    let interval = sample.variance.filter(|_| sample.n >= LEAST_REPEATS).and_then(|variance| {
        let standard_error = (variance / sample.n as f64).sqrt();
        Interval::around(sample.mean, student::two_sided(sample.n as f64 - 1.0, OUTSIDE) * standard_error)
    });
    Some(MeanInterval { mean: sample.mean, interval, n: sample.n })
}

/// Returns the mean of ratios given by their natural logarithms: the geometric mean, with Student's t
/// interval on the logarithms. So 2 and 1/2 average to 1, and the ends of an interval are above 0.
#[must_use]
pub fn mean_ratio(logarithms: &[f64]) -> Option<MeanInterval> {
    let MeanInterval { mean, interval, n } = mean_interval(logarithms)?;
    let interval = interval
        .and_then(|interval| Interval { low: interval.low.exp(), high: interval.high.exp() }.finite());
    Some(MeanInterval { mean: mean.exp(), interval, n })
}

/// Returns the 95 % confidence interval of the median, without an assumption about the distribution: two
/// order statistics whose ranks come from the binomial distribution with 1/2 (Conover, *Practical
/// Nonparametric Statistics*, section 3.2). Ignores values that are not finite. Five values or fewer have no
/// such interval: their range covers the median in less than 95 %.
#[must_use]
pub fn median_interval(values: &[f64]) -> Option<Interval> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    // `term` is the probability that exactly `outside` values are below the median; `below`, that fewer are.
    let (mut term, mut below, mut outside) = (0.5_f64.powi(i32::try_from(n).unwrap_or(i32::MAX)), 0.0, 0);
    while outside < n / 2 && below + term <= OUTSIDE / 2.0 {
        below += term;
        term *= (n - outside) as f64 / (outside + 1) as f64;
        outside += 1;
    }
    let first = outside.checked_sub(1)?;
    Interval { low: *sorted.get(first)?, high: *sorted.get(n - 1 - first)? }.finite()
}

/// Returns the geometric mean of the ratios of `variant` to `baseline`, with its interval (see
/// [`mean_ratio`]). Element i of one slice is paired with element i of the other slice, as in interleaved
/// runs. Slow drift (temperature, other load) cancels in the ratio of a pair.
///
/// Ignores elements beyond the end of the shorter slice. Returns `None` without a pair, or if a pair has a
/// value that is not finite or not positive: the mean of the other pairs would omit the worst repeats.
#[must_use]
pub fn paired_ratio(baseline: &[f64], variant: &[f64]) -> Option<MeanInterval> {
    let logarithm = |(baseline, variant): (&f64, &f64)| {
        let logarithm = variant.ln() - baseline.ln();
        (*baseline > 0.0 && *variant > 0.0 && logarithm.is_finite()).then_some(logarithm)
    };
    let logarithms: Option<Vec<f64>> = baseline.iter().zip(variant).map(logarithm).collect();
    mean_ratio(&logarithms?)
}

/// Returns the share of `hits` in `n` repeats, with the exact interval of Clopper and Pearson from
/// [`LEAST_REPEATS`] repeats on. Returns `None` if `n` is 0 or less than `hits`.
#[must_use]
pub fn share_interval(hits: usize, n: usize) -> Option<MeanInterval> {
    let (low, high) = student::share_bounds(hits, n, OUTSIDE)?;
    let interval = (n >= LEAST_REPEATS).then_some(Interval { low, high });
    Some(MeanInterval { mean: hits as f64 / n as f64, interval, n })
}

/// Mean and unbiased variance of the finite values of a set.
pub(crate) struct Sample {
    pub n: usize,
    pub mean: f64,
    /// `None` for a single value.
    pub variance: Option<f64>,
}

impl Sample {
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        let n = finite.len();
        let origin = *finite.first()?;
        // Compute relative to the first value, so that equal values have a variance of exactly 0.
        let mean = origin + finite.iter().map(|value| value - origin).sum::<f64>() / n as f64;
        let variance = (n >= 2)
            .then(|| finite.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n as f64 - 1.0));
        Some(Self { n, mean, variance })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn close(found: f64, expected: f64, tolerance: f64) {
        assert!((found - expected).abs() < tolerance, "{found} is not {expected}");
    }

    #[test]
    fn ratio_by_hand() {
        // Logarithms −0.2, −0.1, 0, 0.1, 0.2 around 0.5: standard deviation √0.025, t(4) = 2.776.
        let baseline = [10.0, 20.0, 30.0, 40.0, 50.0];
        let variant: Vec<f64> = baseline
            .iter()
            .zip(-2..)
            .map(|(base, step)| base * (0.5 + f64::from(step) / 10.0).exp())
            .collect();
        let found = paired_ratio(&baseline, &variant).unwrap();
        close(found.mean, 0.5_f64.exp(), 1e-12);
        let half = 2.776_445 * (0.025_f64 / 5.0).sqrt();
        let interval = found.interval.unwrap();
        close(interval.high, (0.5 + half).exp(), 1e-5);
        close(interval.low, (0.5 - half).exp(), 1e-5);
        assert_eq!(found.n, 5);
    }

    #[test]
    fn drift_that_both_share_leaves_the_interval_narrow() {
        let found = paired_ratio(&[10.0, 20.0, 40.0, 80.0, 90.0], &[11.0, 22.0, 44.0, 88.0, 99.0]).unwrap();
        let interval = found.interval.unwrap();
        close(interval.low, 1.1, 1e-9);
        close(interval.high, 1.1, 1e-9);
    }

    #[test]
    fn no_interval_from_fewer_than_five() {
        // CPU use in two repeats of a demonstration. The arithmetic mean of the ratios is 1.051 (−1.131 to
        // 3.233).
        let found = paired_ratio(&[31.9, 39.8], &[39.0, 35.0]).unwrap();
        assert_eq!((found.interval, found.n), (None, 2));
        close(found.mean, (39.0_f64 / 31.9 * 35.0 / 39.8).sqrt(), 1e-12);
        let four = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(mean_interval(&four).unwrap().interval, None);
        assert_eq!(paired_ratio(&four, &four).unwrap().interval, None);
        assert_eq!(share_interval(4, 4).unwrap().interval, None);
        assert!(mean_interval(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap().interval.is_some());
    }

    #[test]
    fn the_interval_of_a_ratio_never_reaches_0_and_turns_round_with_it() {
        let (first, second) = ([1.0, 100.0, 1.0, 50.0, 3.0], [90.0, 1.0, 2.0, 1.0, 80.0]);
        let (there, back) = (paired_ratio(&first, &second).unwrap(), paired_ratio(&second, &first).unwrap());
        close(there.mean * back.mean, 1.0, 1e-12);
        let (there, back) = (there.interval.unwrap(), back.interval.unwrap());
        assert!(there.low > 0.0 && back.low > 0.0);
        close(there.low * back.high, 1.0, 1e-9);
    }

    #[test]
    fn a_pair_without_a_ratio_leaves_no_ratio() {
        let found = paired_ratio(&[2.0, 2.0], &[3.0, 3.0]).unwrap();
        close(found.mean, 1.5, 1e-12);
        assert_eq!((found.interval, found.n), (None, 2));
        for (base, other) in
            [(0.0, 1.0), (f64::NAN, 1.0), (-1.0, 1.0), (2.0, f64::INFINITY), (2.0, 0.0), (f64::INFINITY, 1.0)]
        {
            assert_eq!(paired_ratio(&[2.0, base], &[3.0, other]), None, "{base} {other}");
        }
        assert_eq!(paired_ratio(&[0.0], &[1.0]), None);
        assert_eq!(paired_ratio(&[], &[1.0]), None);
    }

    /// The ranks are those of Conover's table A3 for the median.
    #[test]
    fn the_interval_of_a_median_has_the_ranks_of_the_table() {
        let of = |n: usize| median_interval(&(1..=n).map(|value| value as f64).collect::<Vec<_>>());
        let ranks = |low: f64, high: f64| Some(Interval { low, high });
        assert_eq!((of(0), of(1), of(5)), (None, None, None));
        assert_eq!((of(6), of(8), of(9)), (ranks(1.0, 6.0), ranks(1.0, 8.0), ranks(2.0, 8.0)));
        assert_eq!((of(15), of(20), of(100)), (ranks(4.0, 12.0), ranks(6.0, 15.0), ranks(40.0, 61.0)));
        assert_eq!(median_interval(&[f64::NAN, 1.0, 2.0, 3.0, 4.0, 5.0]), None);
    }

    #[test]
    fn an_interval_with_an_infinite_end_is_none() {
        let huge = [f64::MAX, -f64::MAX, f64::MAX, -f64::MAX, f64::MAX];
        assert!(mean_interval(&huge).is_none_or(|found| found.interval.is_none()));
        assert_eq!(mean_ratio(&[700.0, 0.0, 700.0, 0.0, 350.0]).unwrap().interval, None);
    }

    #[test]
    fn whole_intervals_lie_within_or_outside_of_bounds() {
        let interval = Interval { low: 0.9, high: 1.1 };
        assert!(interval.lies_within(0.9, 1.1) && !interval.lies_within(0.95, 2.0));
        assert!(interval.lies_outside(1.2, 2.0) && !interval.lies_outside(1.0, 2.0));
    }
}
