//! What repeats allow to be said about a ratio or a difference: 95 % confidence intervals.

/// Two-sided 95 % quantiles of Student's t, by degrees of freedom from 1.
///
/// Source: NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.6.7.2, column 0.975.
const T_975: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// The same for more degrees of freedom: (from, quantile), largest first.
const T_975_LARGE: [(f64, f64); 4] = [(100.0, 1.984), (80.0, 1.990), (60.0, 2.000), (40.0, 2.021)];

/// A 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    fn around(centre: f64, half_width: f64) -> Self {
        Self { low: centre - half_width, high: centre + half_width }
    }

    /// Whether `value` lies in it; the ends do.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// A mean over repeats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeanInterval {
    /// The mean.
    pub mean: f64,
    /// Its 95 % confidence interval; one value has none.
    pub interval: Option<Interval>,
    /// How many values; at least 1.
    pub n: usize,
}

/// Mean of `values` with the interval of Student's t. Values that are not finite are left out; `None` if none is left.
#[must_use]
pub fn mean_interval(values: &[f64]) -> Option<MeanInterval> {
    let sample = Sample::of(values)?;
    let interval = sample.variance.map(|variance| {
        let standard_error = (variance / sample.n as f64).sqrt();
        Interval::around(sample.mean, t_975(sample.n as f64 - 1.0) * standard_error)
    });
    Some(MeanInterval { mean: sample.mean, interval, n: sample.n })
}

/// The ratio of a variant to a baseline, pair by pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedRatio {
    /// Mean of the pairs' ratios.
    pub mean: f64,
    /// Its 95 % confidence interval; one pair has none.
    pub interval: Option<Interval>,
    /// How many pairs; at least 1.
    pub n: usize,
}

/// The ratio of `variant` to `baseline`, repeat by repeat: element i of the one belongs to element
/// i of the other, as runs that are interleaved do. What drifts slowly (temperature, neighbours)
/// then falls out of the ratio.
///
/// Pairs count up to the end of the shorter slice; a pair with a value that is not finite or with a
/// baseline that is not positive has no ratio and is left out. `None` if no pair is left.
#[must_use]
pub fn paired_ratio(baseline: &[f64], variant: &[f64]) -> Option<PairedRatio> {
    let ratios: Vec<f64> = baseline
        .iter()
        .zip(variant)
        .filter(|(baseline, _)| baseline.is_finite() && **baseline > 0.0)
        .map(|(baseline, variant)| variant / baseline)
        .filter(|ratio| ratio.is_finite())
        .collect();
    let MeanInterval { mean, interval, n } = mean_interval(&ratios)?;
    Some(PairedRatio { mean, interval, n })
}

/// The difference between the means of two independent sets of repeats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Mean of the second minus mean of the first.
    pub mean: f64,
    /// Its 95 % confidence interval; absent unless both sets have at least two values.
    pub interval: Option<Interval>,
}

/// The difference `second` minus `first`, with Welch's interval, which does not take the two for
/// equally noisy. Degrees of freedom follow Welch and Satterthwaite.
///
/// Values that are not finite are left out; `None` if a set has no value left. When neither set
/// varies at all the interval has no width.
#[must_use]
pub fn welch_difference(first: &[f64], second: &[f64]) -> Option<Difference> {
    let (first, second) = (Sample::of(first)?, Sample::of(second)?);
    let mean = second.mean - first.mean;
    let interval = first.variance.zip(second.variance).map(|(variance1, variance2)| {
        let (error1, error2) = (variance1 / first.n as f64, variance2 / second.n as f64);
        let error = error1 + error2;
        if error == 0.0 {
            return Interval { low: mean, high: mean };
        }
        // As shares of the sum, so that squares of tiny or huge errors stay in range.
        let (share1, share2) = (error1 / error, error2 / error);
        let freedom =
            1.0 / (share1 * share1 / (first.n as f64 - 1.0) + share2 * share2 / (second.n as f64 - 1.0));
        Interval::around(mean, t_975(freedom) * error.sqrt())
    });
    Some(Difference { mean, interval })
}

/// Mean and unbiased variance of the finite values of a set.
struct Sample {
    n: usize,
    mean: f64,
    /// Absent for a single value.
    variance: Option<f64>,
}

impl Sample {
    fn of(values: &[f64]) -> Option<Self> {
        let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        let n = finite.len();
        if n == 0 {
            return None;
        }
        // Around the first value, so that equal values have a variance of exactly 0.
        let origin = finite[0];
        let mean = origin + finite.iter().map(|value| value - origin).sum::<f64>() / n as f64;
        let variance = (n >= 2)
            .then(|| finite.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n as f64 - 1.0));
        Some(Self { n, mean, variance })
    }
}

/// Quantile for the largest tabulated number of degrees of freedom that is not above `freedom`,
/// which makes an interval slightly too wide and never too narrow.
fn t_975(freedom: f64) -> f64 {
    if let Some((_, quantile)) = T_975_LARGE.iter().find(|(from, _)| freedom >= *from) {
        return *quantile;
    }
    // Welch's formula may end a rounding error below a whole number.
    let row = (freedom + 1e-9).floor().clamp(1.0, T_975.len() as f64) as usize;
    T_975[row - 1]
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
        // Ratios 1.1, 1.2, 1.3: mean 1.2, standard deviation 0.1, t(2) = 4.303.
        let found = paired_ratio(&[10.0, 20.0, 30.0], &[11.0, 24.0, 39.0]).unwrap();
        close(found.mean, 1.2, 1e-12);
        let interval = found.interval.unwrap();
        close(interval.high - 1.2, 4.303 * 0.1 / 3.0_f64.sqrt(), 1e-12);
        close(1.2 - interval.low, 4.303 * 0.1 / 3.0_f64.sqrt(), 1e-12);
        assert_eq!(found.n, 3);
    }

    #[test]
    fn drift_that_both_share_leaves_the_interval_narrow() {
        let found = paired_ratio(&[10.0, 20.0, 40.0, 80.0], &[11.0, 22.0, 44.0, 88.0]).unwrap();
        let interval = found.interval.unwrap();
        close(interval.low, 1.1, 1e-9);
        close(interval.high, 1.1, 1e-9);
    }

    #[test]
    fn one_pair_has_a_ratio_and_no_interval() {
        let found = paired_ratio(&[2.0], &[3.0, 100.0]).unwrap();
        assert_eq!(found, PairedRatio { mean: 1.5, interval: None, n: 1 });
    }

    #[test]
    fn pairs_without_a_ratio_are_left_out() {
        let found = paired_ratio(&[0.0, 2.0, f64::NAN, -1.0, 2.0], &[1.0, 3.0, 1.0, 1.0, f64::INFINITY]);
        assert_eq!(found, Some(PairedRatio { mean: 1.5, interval: None, n: 1 }));
        assert_eq!(paired_ratio(&[0.0], &[1.0]), None);
        assert_eq!(paired_ratio(&[], &[1.0]), None);
    }

    #[test]
    fn welch_by_hand() {
        // Means 2 and 5; variances 1 and 4 of three values each: error² 5/3; degrees of freedom
        // (5/3)² / ((1/3)²/2 + (4/3)²/2) = 50/17 = 2.94, so t(2).
        let found = welch_difference(&[1.0, 2.0, 3.0], &[3.0, 5.0, 7.0]).unwrap();
        assert_eq!(found.mean, 3.0);
        let interval = found.interval.unwrap();
        let half = 4.303 * (5.0_f64 / 3.0).sqrt();
        close(interval.low, 3.0 - half, 1e-12);
        close(interval.high, 3.0 + half, 1e-12);
        assert!(interval.contains(0.0));
    }

    #[test]
    fn welch_with_equal_noise_has_the_pooled_degrees_of_freedom() {
        let found = welch_difference(&[1.0, 2.0, 3.0, 4.0], &[11.0, 12.0, 13.0, 14.0]).unwrap();
        // Variances 5/3, error² 5/6, six degrees of freedom.
        close(found.interval.unwrap().low, 10.0 - 2.447 * (5.0_f64 / 6.0).sqrt(), 1e-9);
    }

    #[test]
    fn welch_without_noise() {
        let found = welch_difference(&[0.1; 3], &[0.1; 5]).unwrap();
        assert_eq!(found.interval, Some(Interval { low: 0.0, high: 0.0 }));
        let found = welch_difference(&[1.0; 3], &[2.0; 3]).unwrap();
        assert!(!found.interval.unwrap().contains(0.0));
    }

    #[test]
    fn welch_needs_two_values_on_both_sides_for_an_interval() {
        let found = welch_difference(&[1.0], &[2.0, 3.0, f64::NAN]).unwrap();
        assert_eq!(found, Difference { mean: 1.5, interval: None });
        assert_eq!(welch_difference(&[], &[1.0]), None);
    }

    #[test]
    fn quantiles_fall_towards_the_normal_distributions() {
        assert_eq!(t_975(0.4), 12.706);
        assert_eq!(t_975(1.0), 12.706);
        assert_eq!(t_975(4.0 - 1e-12), 2.776);
        assert_eq!(t_975(30.0), 2.042);
        assert_eq!(t_975(39.9), 2.042);
        assert_eq!(t_975(60.0), 2.000);
        assert_eq!(t_975(1e6), 1.984);
        let all: Vec<f64> = (1..200).map(|freedom| t_975(f64::from(freedom))).collect();
        assert!(all.windows(2).all(|pair| pair[0] >= pair[1]));
    }
}
