//! Conversion between bytes on the wire and time.

use crate::time::{SECOND, Time};

/// Maps positions to time. A position is the number of bytes on the wire since a busy period began.
///
/// The first `p` bytes have left `p * 8 s / rate` after the origin, rounded down to a picosecond. Every time
/// is computed from the origin, so rounding errors never accumulate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    /// A byte takes `numerator / denominator` picoseconds. The fraction is reduced.
    numerator: u64,
    denominator: u64,
    origin: Time,
}

impl Wire {
    /// Creates a wire of this many bits per second. 0 counts as 1.
    pub(super) fn new(rate_bps: u64) -> Self {
        let (byte, rate) = (8 * SECOND, rate_bps.max(1));
        let divisor = greatest_common_divisor(byte, rate);
        Self { numerator: byte / divisor, denominator: rate / divisor, origin: Time::ZERO }
    }

    /// Begins a busy period: position 0 is at `origin`.
    pub(super) fn restart(&mut self, origin: Time) {
        self.origin = origin;
    }

    /// Returns when the byte before `position` has left.
    #[inline]
    pub(super) fn time_of(&self, position: u64) -> Time {
        if self.denominator == 1 {
            return self.origin + position.saturating_mul(self.numerator);
        }
        let span = u128::from(position) * u128::from(self.numerator) / u128::from(self.denominator);
        self.origin + u64::try_from(span).unwrap_or(u64::MAX)
    }

    /// Returns the largest position reached at `now`: the largest with a [`Wire::time_of`] that is not
    /// after `now`.
    #[inline]
    pub(super) fn position_at(&self, now: Time) -> u64 {
        let span = now.since(self.origin);
        if self.denominator == 1 {
            return span / self.numerator;
        }
        let position =
            ((u128::from(span) + 1) * u128::from(self.denominator) - 1) / u128::from(self.numerator);
        u64::try_from(position).unwrap_or(u64::MAX)
    }
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn whole_picoseconds_per_byte_at_usual_rates() {
        for (gbps, byte) in [(1, 8_000), (10, 800), (25, 320), (40, 200), (100, 80), (400, 20)] {
            let mut wire = Wire::new(gbps * 1_000_000_000);
            wire.restart(Time(7));
            assert_eq!(wire.time_of(1538), Time(7 + 1538 * byte));
        }
    }

    #[test]
    fn rates_that_do_not_divide_do_not_drift() {
        // 3 Gbit/s: 8000/3 ps per byte. After an hour the wire has carried exactly 1.35e12 bytes.
        let wire = Wire::new(3_000_000_000);
        assert_eq!(wire.time_of(1), Time(2_666));
        assert_eq!(wire.time_of(2), Time(5_333));
        assert_eq!(wire.time_of(3), Time(8_000));
        assert_eq!(wire.time_of(1_350_000_000_000), Time(3_600 * SECOND));
    }

    proptest! {
        #[test]
        fn position_is_the_inverse_of_time(
            rate in prop_oneof![Just(100_000_000_000), Just(3_000_000_000), 1_000_000u64..=10_000_000_000_000],
            position in 0u64..100_000_000,
            later in 0u64..10_000,
        ) {
            let mut wire = Wire::new(rate);
            wire.restart(Time(12_345));
            let at = wire.time_of(position);
            let reached = wire.position_at(at + later);
            prop_assert!(reached >= position);
            prop_assert!(wire.time_of(reached) <= at + later);
            prop_assert!(wire.time_of(reached + 1) > at + later);
        }
    }
}
