//! Service curves of two pieces: bytes against time, exact to the picosecond and the byte.

use super::ServiceCurve;
use crate::time::{SECOND, Span};

/// A time or a number of bytes that is never reached (`HT_INFINITY`).
pub(super) const NEVER: u64 = u64::MAX;

/// Returns the bytes in this time at a rate in bit/s, rounded down (`seg_x2y`).
fn bytes_in(span: Span, rate: u64) -> u64 {
    u64::try_from(u128::from(span) * u128::from(rate) / u128::from(8 * SECOND)).unwrap_or(NEVER)
}

/// Returns the time for this many bytes, rounded up (`seg_y2x`).
fn span_of(bytes: u64, rate: u64) -> Span {
    match (bytes, rate) {
        (0, _) => 0,
        (_, 0) => NEVER,
        _ => {
            let exact = (u128::from(bytes) * u128::from(8 * SECOND)).div_ceil(u128::from(rate));
            u64::try_from(exact).unwrap_or(NEVER)
        }
    }
}

/// A curve with an offset (`struct runtime_sc`): slope `m1` for `dx`, then slope `m2`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Curve {
    /// Beginning of the curve: time and bytes.
    x: u64,
    y: u64,
    m1: u64,
    /// Length of the first piece: time and bytes.
    dx: u64,
    dy: u64,
    m2: u64,
}

impl Curve {
    /// Creates a curve from the origin (`rtsc_init`).
    pub(super) fn new(curve: &ServiceCurve) -> Self {
        let dy = bytes_in(curve.delay, curve.first);
        Self { x: 0, y: 0, m1: curve.first, dx: curve.delay, dy, m2: curve.second }
    }

    /// Returns the curve without its first piece.
    pub(super) fn linear(self) -> Self {
        Self { dx: 0, dy: 0, ..self }
    }

    pub(super) fn is_convex(&self) -> bool {
        self.m1 <= self.m2
    }

    /// Returns when the curve reaches this many bytes (`rtsc_y2x`).
    pub(super) fn time_of(&self, bytes: u64) -> u64 {
        if bytes < self.y {
            self.x
        } else if bytes - self.y <= self.dy {
            if self.dy == 0 {
                self.x.saturating_add(self.dx)
            } else {
                self.x.saturating_add(span_of(bytes - self.y, self.m1))
            }
        } else {
            let rest = span_of(bytes - self.y - self.dy, self.m2);
            self.x.saturating_add(self.dx).saturating_add(rest)
        }
    }

    /// Returns the bytes that the curve has reached at a time (`rtsc_x2y`).
    pub(super) fn bytes_at(&self, time: u64) -> u64 {
        if time <= self.x {
            self.y
        } else if time - self.x <= self.dx {
            self.y.saturating_add(bytes_in(time - self.x, self.m1))
        } else {
            let rest = bytes_in(time - self.x - self.dx, self.m2);
            self.y.saturating_add(self.dy).saturating_add(rest)
        }
    }

    /// Replaces this curve by the lower of two curves: this curve, and `curve` moved from the origin to
    /// (`time`, `bytes`) (`rtsc_min`).
    pub(super) fn restart(&mut self, curve: &Self, time: u64, bytes: u64) {
        let reached = self.bytes_at(time);
        if curve.is_convex() {
            if reached >= bytes {
                (self.x, self.y) = (time, bytes);
            }
            return;
        }
        if reached <= bytes {
            return;
        }
        let later = self.bytes_at(time.saturating_add(curve.dx));
        if later >= bytes.saturating_add(curve.dy) {
            (self.x, self.y, self.dx, self.dy) = (time, bytes, curve.dx, curve.dy);
            return;
        }
        // The curves cross. Use the first slope up to the crossing.
        let mut dx = span_of(reached - bytes, curve.m1 - curve.m2);
        let first_end = self.x.saturating_add(self.dx);
        if first_end > time {
            dx = dx.saturating_add(first_end - time);
        }
        (self.x, self.y, self.dx, self.dy) = (time, bytes, dx, bytes_in(dx, curve.m1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::MILLISECOND;

    /// 8 Mbit/s for 10 ms, then 1 Mbit/s: 1000 bytes per millisecond, then 125 bytes per millisecond.
    const CONCAVE: ServiceCurve =
        ServiceCurve { first: 8_000_000, delay: 10 * MILLISECOND, second: 1_000_000 };

    #[test]
    fn there_and_back() {
        let curve = Curve::new(&CONCAVE);
        assert_eq!(curve.bytes_at(5 * MILLISECOND), 5000);
        assert_eq!(curve.bytes_at(18 * MILLISECOND), 11_000);
        assert_eq!(curve.time_of(5000), 5 * MILLISECOND);
        assert_eq!(curve.time_of(11_000), 18 * MILLISECOND);
        assert_eq!(Curve::new(&ServiceCurve { second: 0, ..CONCAVE }).time_of(10_001), NEVER);
    }

    #[test]
    fn a_concave_curve_restarts_below_both() {
        let whole = Curve::new(&CONCAVE);
        let mut curve = whole;
        // At 30 ms, 12,500 bytes were due and 8,000 bytes were sent. The new curve is below the old
        // curve until they would cross, after 4,500 / 875 ms.
        curve.restart(&whole, 30 * MILLISECOND, 8_000);
        assert_eq!(curve.bytes_at(30 * MILLISECOND), 8_000);
        let crossing = 30 * MILLISECOND + 4_500 * MILLISECOND / 875;
        assert_eq!(curve.bytes_at(crossing), whole.bytes_at(crossing));
        // Each step is rounded down, so a difference of one byte is allowed.
        assert!(whole.bytes_at(60 * MILLISECOND) - curve.bytes_at(60 * MILLISECOND) <= 1);
        // Bytes sent in excess of the due bytes do not raise the new curve.
        let mut ahead = whole;
        ahead.restart(&whole, 30 * MILLISECOND, 20_000);
        assert_eq!(ahead.bytes_at(30 * MILLISECOND), 12_500);
    }
}
