//! Sums of counters that may be wrong.

use std::borrow::Borrow;

/// Adds counters, limited to the largest number. A driver may report -1, which is 2⁶⁴ - 1, and a recorded
/// file may contain any number.
pub trait SaturatingSum {
    fn saturating_sum(self) -> u64;
}

impl<I> SaturatingSum for I
where
    I: Iterator,
    I::Item: Borrow<u64>,
{
    fn saturating_sum(self) -> u64 {
        self.fold(0, |sum, counter| sum.saturating_add(*counter.borrow()))
    }
}
