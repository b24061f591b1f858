//! Rates, and transmission times at these rates (`psched_l2t_ns`, `include/net/sch_generic.h`). The
//! kernel computes nanoseconds with a multiplication and a shift. The simulator computes exact times
//! and rounds down to a picosecond.

use crate::time::{SECOND, Span};

#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// Bit/s; not 0.
    bits_per_second: u64,
    /// Picoseconds per byte if that is a whole number, as at all usual rates. Otherwise 0.
    byte: Span,
}

/// Below this number of bytes, the product of the bits and the picoseconds of a second fits 64 bits.
const SHORT_BYTES: u64 = 1 << 21;

impl Rate {
    pub(super) fn new(bits_per_second: u64) -> Self {
        let bits_per_second = bits_per_second.max(1);
        let whole = (8 * SECOND).is_multiple_of(bits_per_second);
        Self { bits_per_second, byte: if whole { 8 * SECOND / bits_per_second } else { 0 } }
    }

    pub(super) fn span(self, bytes: u64) -> Span {
        if self.byte != 0 {
            return bytes.saturating_mul(self.byte);
        }
        if bytes < SHORT_BYTES {
            return bytes * (8 * SECOND) / self.bits_per_second;
        }
        let exact = u128::from(bytes) * u128::from(8 * SECOND) / u128::from(self.bits_per_second);
        Span::try_from(exact).unwrap_or(Span::MAX)
    }

    pub(super) fn tokens(self, bytes: u64) -> i64 {
        i64::try_from(self.span(bytes)).unwrap_or(i64::MAX)
    }
}

/// Adds `elapsed` tokens to a bucket. The result is at most `depth`.
pub(super) fn filled(tokens: i64, elapsed: i64, depth: i64) -> i64 {
    tokens.saturating_add(elapsed).min(depth)
}

pub(super) fn as_tokens(span: Span) -> i64 {
    i64::try_from(span).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        assert_eq!(Rate::new(10_000_000_000).span(1514), 1_211_200);
        // At 400 Gbit/s a byte takes 20 ps.
        assert_eq!(Rate::new(400_000_000_000).span(1), 20);
        assert_eq!(Rate::new(8).span(10), 10 * SECOND);
        // At 7 kbit/s times are rounded down, both in the 64-bit path and in the wider path.
        assert_eq!(Rate::new(7_000).span(3), 3_428_571_428);
        assert_eq!(Rate::new(7_000).span(SHORT_BYTES - 1), 2_396_744_000_000_000);
        assert_eq!(Rate::new(7_000).span(SHORT_BYTES), 2_396_745_142_857_142);
        assert_eq!(Rate::new(1).span(u64::MAX), Span::MAX);
        assert_eq!(Rate::new(0).tokens(u64::MAX), i64::MAX);
    }
}
