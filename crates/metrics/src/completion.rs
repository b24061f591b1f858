//! Completion times of flows, and of values that clients fetch.

/// Completion times of flows, or of values that clients fetch, seconds.
///
/// Source: Titan (USENIX ATC 2017), section 6.2: the distribution over the flows (figure 4), and the
/// difference between the earliest and the last completing flow (figure 3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompletionTimes {
    pub mean_s: f64,
    pub p50_s: f64,
    /// 80th percentile, the start of the tail in the paper.
    pub p80_s: f64,
    pub p99_s: f64,
    /// The latest time minus the earliest time.
    pub spread_s: f64,
}

impl CompletionTimes {
    /// Computes the figures from each flow's completion time in seconds. Returns `None` if there is no time,
    /// or if a time is negative or not finite, because a distribution must not leave out incomplete flows.
    ///
    /// Percentiles use the nearest rank: the 80th percentile is the smallest value that is at least as large
    /// as 80 % of the values.
    #[must_use]
    pub fn from_seconds(times: &[f64]) -> Option<Self> {
        if times.iter().any(|time| !time.is_finite() || *time < 0.0) {
            return None;
        }
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (first, last) = (sorted.first()?, sorted.last()?);
        let percentile = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100);
            sorted[rank.saturating_sub(1)]
        };
        Some(Self {
            mean_s: sorted.iter().sum::<f64>() / sorted.len() as f64,
            p50_s: percentile(50),
            p80_s: percentile(80),
            p99_s: percentile(99),
            spread_s: last - first,
        })
    }

    /// Returns the figures with their names in records.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, f64); 5] {
        [
            ("mean", self.mean_s),
            ("p50", self.p50_s),
            ("p80", self.p80_s),
            ("p99", self.p99_s),
            ("spread", self.spread_s),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        assert_eq!(
            CompletionTimes::from_seconds(&[5.0, 1.0, 2.0, 4.0, 3.0]),
            Some(CompletionTimes { mean_s: 3.0, p50_s: 3.0, p80_s: 4.0, p99_s: 5.0, spread_s: 4.0 })
        );
        assert_eq!(
            CompletionTimes::from_seconds(&[2.5]),
            Some(CompletionTimes { mean_s: 2.5, p50_s: 2.5, p80_s: 2.5, p99_s: 2.5, spread_s: 0.0 })
        );
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(
            CompletionTimes::from_seconds(&hundred),
            Some(CompletionTimes { mean_s: 50.5, p50_s: 50.0, p80_s: 80.0, p99_s: 99.0, spread_s: 99.0 })
        );
    }

    #[test]
    fn a_flow_that_did_not_complete_leaves_no_distribution() {
        for times in [&[] as &[f64], &[1.0, f64::NAN], &[1.0, f64::INFINITY], &[-1.0]] {
            assert_eq!(CompletionTimes::from_seconds(times), None, "{times:?}");
        }
    }
}
