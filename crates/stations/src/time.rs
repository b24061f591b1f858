//! Simulated time in whole picoseconds.
//!
//! At common line rates, a byte takes a whole number of picoseconds (20 ps at 400 Gbit/s), so times are
//! exact. At other rates, times are rounded in the same way in every run.

use evenkeel_model::units::Nanoseconds;

/// A moment, picoseconds since the start of the simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// A length of time, picoseconds.
pub type Span = u64;

pub const NANOSECOND: Span = 1_000;
pub const MICROSECOND: Span = 1_000_000;
pub const MILLISECOND: Span = 1_000_000_000;
pub const SECOND: Span = 1_000_000_000_000;

#[must_use]
pub fn span_of(time: Nanoseconds) -> Span {
    time.as_u64().saturating_mul(NANOSECOND)
}

impl Time {
    pub const ZERO: Self = Self(0);
    /// A time later than all events, for an event that is not planned.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the time since `earlier`, or zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        self.0.saturating_sub(earlier.0)
    }

    /// Converts the time to seconds, for output and floating-point formulas.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.0 as f64 / SECOND as f64
    }
}

impl std::ops::Add<Span> for Time {
    type Output = Self;

    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span))
    }
}

impl std::ops::AddAssign<Span> for Time {
    fn add_assign(&mut self, span: Span) {
        *self = *self + span;
    }
}
