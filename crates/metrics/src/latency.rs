//! Percentiles of latency.

use hdrhistogram::Histogram;

/// The largest latency of the histogram: one hour. A longer latency counts as one hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Precision of the percentiles, significant digits.
const SIGNIFICANT_DIGITS: u8 = 3;

/// Mean and percentiles of latency, µs.
///
/// Latency is half the round trip of a request and its answer, as in sockperf's ping-pong. The caller
/// halves the samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencySummary {
    /// Exact arithmetic mean of the samples.
    pub mean_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub samples: u64,
}

impl LatencySummary {
    /// Returns a summary of samples in nanoseconds; `None` without samples.
    ///
    /// The p-th percentile is the smallest sample such that at least p % of the samples are not larger, to
    /// three significant digits.
    #[must_use]
    pub fn from_nanoseconds(samples: impl IntoIterator<Item = u64>) -> Option<Self> {
        Self::from_counts(samples.into_iter().map(|sample| (sample, 1)))
    }

    /// Returns a summary of counted samples: nanoseconds and frequency; `None` without samples.
    #[must_use]
    pub fn from_counts(samples: impl IntoIterator<Item = (u64, u64)>) -> Option<Self> {
        // Bounds and digits are within the histogram's documented limits, so this call cannot fail.
        let mut histogram = Histogram::<u64>::new_with_bounds(1, LONGEST_NS, SIGNIFICANT_DIGITS).ok()?;
        let mut total: u128 = 0;
        for (sample, count) in samples {
            let sample = sample.min(LONGEST_NS);
            histogram.saturating_record_n(sample, count);
            total += u128::from(sample) * u128::from(count);
        }
        let samples = histogram.len();
        if samples == 0 {
            return None;
        }
        let microseconds = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Some(Self {
            mean_us: total as f64 / samples as f64 / 1e3,
            p50_us: microseconds(0.5),
            p90_us: microseconds(0.9),
            p99_us: microseconds(0.99),
            p999_us: microseconds(0.999),
            samples,
        })
    }

    /// Returns the figures with their names in records.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, f64); 5] {
        [
            ("mean", self.mean_us),
            ("p50", self.p50_us),
            ("p90", self.p90_us),
            ("p99", self.p99_us),
            ("p999", self.p999_us),
        ]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn percentiles_of_one_to_ten_thousand_microseconds() {
        let summary = LatencySummary::from_nanoseconds((1..=10_000).rev().map(|us| us * 1_000)).unwrap();
        assert_eq!(summary.samples, 10_000);
        assert_eq!(summary.mean_us, 5_000.5);
        for (found, expected) in [
            (summary.p50_us, 5_000.0),
            (summary.p90_us, 9_000.0),
            (summary.p99_us, 9_900.0),
            (summary.p999_us, 9_990.0),
        ] {
            assert!((found / expected - 1.0).abs() < 1e-3, "{found} is not {expected}");
        }
    }

    #[test]
    fn one_outlier_moves_the_mean_and_the_tail_only() {
        let samples = std::iter::repeat_n(10_000, 999).chain([1_000_000_000]);
        let summary = LatencySummary::from_nanoseconds(samples).unwrap();
        assert!((summary.mean_us - 1_009.99).abs() < 1e-9);
        assert!((summary.p99_us - 10.0).abs() < 0.01);
        assert!((summary.p999_us - 10.0).abs() < 0.01);
    }

    #[test]
    fn short_and_endless_samples_are_counted() {
        let summary = LatencySummary::from_nanoseconds([0, 0, u64::MAX]).unwrap();
        assert_eq!(summary.samples, 3);
        assert_eq!(summary.p50_us, 0.0);
        assert!((summary.p999_us / 3.6e9 - 1.0).abs() < 1e-3);
    }

    #[test]
    fn no_samples_are_no_latency() {
        assert_eq!(LatencySummary::from_nanoseconds([]), None);
    }
}
