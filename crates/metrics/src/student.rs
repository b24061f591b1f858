//! Quantiles for intervals: Student's t, and the exact bounds of a share.
//!
//! The quantiles are found by bisection of the regularised incomplete beta function, which is
//! monotonic.

use statrs::function::beta::checked_beta_reg;

/// Limit of the degrees of freedom. Above this limit, the distribution is practically normal.
const MOST_FREEDOM: f64 = 1e6;
/// Maximum number of bisection steps, enough for every bit of a result above 10⁻⁴⁴.
const HALVINGS: usize = 200;

/// Returns the value that |t| exceeds with probability `outside`. Returns infinity for invalid arguments. An
/// interval with an infinite end becomes `None`.
pub(crate) fn two_sided(freedom: f64, outside: f64) -> f64 {
    if !(freedom > 0.0 && outside > 0.0 && outside < 1.0) {
        return f64::INFINITY;
    }
    let freedom = freedom.min(MOST_FREEDOM);
    // P(|T| > t) = I(ν/(ν + t²); ν/2, 1/2), Abramowitz and Stegun, 26.7.1 and 26.5.27.
    let share = bisect(|share| checked_beta_reg(freedom / 2.0, 0.5, share).ok(), outside);
    match share {
        Some(share) if share > 0.0 => (freedom * (1.0 - share) / share).sqrt(),
        _ => f64::INFINITY,
    }
}

/// Returns the interval of Clopper and Pearson for a share, given `hits` of `n` (*Biometrika* 26,
/// 1934). The interval misses the true share with at most the probability `outside`. Returns `None` for
/// invalid arguments.
pub(crate) fn share_bounds(hits: usize, n: usize, outside: f64) -> Option<(f64, f64)> {
    if n == 0 || hits > n {
        return None;
    }
    let (hits_f, n_f) = (hits as f64, n as f64);
    let bound = |a: f64, b: f64, target: f64| bisect(|share| checked_beta_reg(a, b, share).ok(), target);
    let low = if hits == 0 { 0.0 } else { bound(hits_f, n_f - hits_f + 1.0, outside / 2.0)? };
    let high = if hits == n { 1.0 } else { bound(hits_f + 1.0, n_f - hits_f, 1.0 - outside / 2.0)? };
    Some((low, high))
}

/// Returns the argument, from 0 to 1, at which a function that rises from 0 to 1 has the value `target`;
/// `None` if the function returns `None`.
fn bisect(of: impl Fn(f64) -> Option<f64>, target: f64) -> Option<f64> {
    let (mut low, mut high) = (0.0_f64, 1.0_f64);
    for _ in 0..HALVINGS {
        let middle = low.midpoint(high);
        if middle == low || middle == high {
            break;
        }
        if of(middle)? < target { low = middle } else { high = middle }
    }
    Some(low.midpoint(high))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.6.7.2.
    #[test]
    fn quantiles_are_those_of_the_table() {
        for (freedom, outside, expected) in [
            (1.0, 0.05, 12.706),
            (2.0, 0.05, 4.303),
            (4.0, 0.05, 2.776),
            (8.0, 0.01, 3.355),
            (9.0, 0.05, 2.262),
            (30.0, 0.05, 2.042),
            (100.0, 0.002, 3.174),
            (1e9, 0.05, 1.960),
        ] {
            let found = two_sided(freedom, outside);
            assert!((found - expected).abs() < 6e-4, "{freedom} {outside}: {found}");
        }
    }

    #[test]
    fn senseless_arguments_give_an_interval_that_says_nothing() {
        for (freedom, outside) in
            [(f64::NAN, 0.05), (0.0, 0.05), (-1.0, 0.05), (4.0, 0.0), (4.0, f64::NAN), (4.0, 1.0)]
        {
            assert_eq!(two_sided(freedom, outside), f64::INFINITY, "{freedom} {outside}");
        }
    }

    /// Checks known bounds. For ten of ten, the lower bound is the tenth root of 0.025. For five of
    /// ten, the tables give 0.187 to 0.813.
    #[test]
    fn exact_bounds_of_a_share() {
        let close = |found: (f64, f64), expected: (f64, f64)| {
            (found.0 - expected.0).abs() < 1e-4 && (found.1 - expected.1).abs() < 1e-4
        };
        let all = share_bounds(10, 10, 0.05);
        assert!(all.is_some_and(|found| close(found, (0.025_f64.powf(0.1), 1.0))), "{all:?}");
        let half = share_bounds(5, 10, 0.05);
        assert!(half.is_some_and(|found| close(found, (0.187_086, 0.812_914))), "{half:?}");
        assert_eq!(share_bounds(0, 4, 0.05).map(|found| found.0), Some(0.0));
        assert_eq!((share_bounds(0, 0, 0.05), share_bounds(2, 1, 0.05)), (None, None));
    }
}
