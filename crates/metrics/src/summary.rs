//! Summary of the repeats of a figure.

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    pub mean: f64,
    /// The mean of the two middle values if the number of values is even.
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// Number of values, at least 1.
    pub n: usize,
}

impl Summary {
    /// Summarises `values`. Ignores values that are not finite, and does not count them in `n`. Returns
    /// `None` if no value is left.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let n = sorted.len();
        // Divide before adding, so that no sum of finite values overflows.
        let mean = sorted.iter().map(|value| value / n as f64).sum::<f64>().clamp(min, max);
        let median =
            if n.is_multiple_of(2) { sorted[n / 2 - 1] / 2.0 + sorted[n / 2] / 2.0 } else { sorted[n / 2] };
        Some(Self { mean, median, min, max, n })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_and_even_numbers_of_values() {
        assert_eq!(
            Summary::of(&[4.0, 1.0, 1.0]),
            Some(Summary { mean: 2.0, median: 1.0, min: 1.0, max: 4.0, n: 3 })
        );
        assert_eq!(
            Summary::of(&[8.0, 1.0, 3.0, 4.0]),
            Some(Summary { mean: 4.0, median: 3.5, min: 1.0, max: 8.0, n: 4 })
        );
        assert_eq!(Summary::of(&[0.1]), Some(Summary { mean: 0.1, median: 0.1, min: 0.1, max: 0.1, n: 1 }));
    }

    #[test]
    fn values_that_are_not_finite_are_left_out() {
        let summary = Summary::of(&[f64::NAN, 2.0, f64::INFINITY, 4.0, f64::NEG_INFINITY]);
        assert_eq!(summary, Some(Summary { mean: 3.0, median: 3.0, min: 2.0, max: 4.0, n: 2 }));
        assert_eq!(Summary::of(&[f64::NAN]), None);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn huge_values_do_not_overflow() {
        let huge = f64::MAX;
        assert_eq!(
            Summary::of(&[huge, huge]),
            Some(Summary { mean: huge, median: huge, min: huge, max: huge, n: 2 })
        );
    }
}
