//! Growth of counters between two samples.

use evenkeel_placement::loss_path::gained_of_32_bits;

use crate::sample::Interval;

impl Interval {
    /// Returns a counter with its growth. A counter that has decreased was reset, and counts from 0. A
    /// counter without a previous value has no growth.
    pub(crate) fn since(before: Option<u64>, now: u64) -> Self {
        let delta = match before {
            Some(before) if now >= before => now - before,
            Some(_) => now,
            None => 0,
        };
        Self { total: now, delta }
    }

    /// Returns a counter of 32 bits with its growth. A counter that has decreased wrapped if it was in the
    /// highest quarter of its range and now is in the lowest quarter. Otherwise, it was reset.
    pub(crate) fn since_32_bits(before: Option<u64>, now: u64) -> Self {
        Self { total: now, delta: gained_of_32_bits(before, now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_was_reset_counts_from_0() {
        let delta = |before, now| Interval::since(before, now).delta;
        assert_eq!(
            (delta(Some(5), 8), delta(Some(8), 5), delta(None, 5), delta(Some(u64::MAX), 0)),
            (3, 5, 0, 0)
        );
    }

    #[test]
    fn a_counter_of_32_bits_wraps() {
        let delta = |before, now| Interval::since_32_bits(before, now).delta;
        let near_the_end = Some(u64::from(u32::MAX) - 4);
        assert_eq!((delta(near_the_end, 5), delta(Some(8), 5), delta(None, 5)), (10, 5, 0));
    }
}
