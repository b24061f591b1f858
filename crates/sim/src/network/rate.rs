//! A port's rate: converts bytes to time and back. Needs no division if a byte takes a whole number of
//! picoseconds.

use crate::time::{SECOND, Span};

#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    bits_per_second: u64,
    /// Picoseconds per byte if this is a whole number, otherwise 0.
    byte: Span,
    /// Bytes per picosecond, in units of 2^-64.
    bytes_per_picosecond: u64,
}

impl Rate {
    /// Creates a rate in bits per second. 0 counts as 1. The maximum is 8 Tbit/s.
    pub(super) fn new(bits_per_second: u64) -> Self {
        let bits_per_second = bits_per_second.clamp(1, 8 * SECOND);
        let whole = (8 * SECOND).is_multiple_of(bits_per_second);
        let fraction = (u128::from(bits_per_second) << 64) / u128::from(8 * SECOND);
        Self {
            bits_per_second,
            byte: if whole { 8 * SECOND / bits_per_second } else { 0 },
            bytes_per_picosecond: u64::try_from(fraction).unwrap_or(u64::MAX),
        }
    }

    /// Returns the time for this many bytes, rounded down.
    #[inline]
    pub(super) fn time_of(&self, bytes: u32) -> Span {
        match self.byte {
            // The product of 2^32 bytes, 8 bits and 10^12 ps fits into 128 bits. The quotient fits into 64
            // bits for a packet of up to 2 MB, even at 1 bit/s.
            0 => (u128::from(bytes) * u128::from(8 * SECOND) / u128::from(self.bits_per_second)) as Span,
            byte => u64::from(bytes) * byte,
        }
    }

    /// Returns the bytes sent in this time, rounded to the nearest whole number.
    #[inline]
    pub(super) fn bytes_in(&self, span: Span) -> u64 {
        ((u128::from(span) * u128::from(self.bytes_per_picosecond) + (1 << 63)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ten_gigabit_and_a_rate_that_does_not_divide() {
        assert_eq!(Rate::new(10_000_000_000).time_of(1538), 1_230_400);
        assert_eq!(Rate::new(3_000_000_000).time_of(2), 5_333);
        assert_eq!(Rate::new(10_000_000_000).bytes_in(1_230_400), 1538);
    }

    proptest! {
        #[test]
        fn bytes_come_back(rate in 1_000_000_u64..=8_000_000_000_000, bytes in 0_u32..100_000_000) {
            let rate = Rate::new(rate);
            let back = rate.bytes_in(rate.time_of(bytes));
            prop_assert!(back.abs_diff(u64::from(bytes)) <= 1, "{back} {bytes}");
        }
    }
}
