//! Progress of a search, for another thread that displays it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Estimated passes over all flows in a long search: one pass to add the flows, and six passes for each
/// of two starts.
const PASSES: u64 = 13;
const MOST: f64 = 0.99;

/// Numbers of examined and of expected flows. Only one thread writes the two counters, so they need no
/// atomic read-modify-write instruction.
#[derive(Debug, Default)]
pub struct Progress {
    examined: AtomicU64,
    expected: AtomicU64,
}

impl Progress {
    /// Returns the estimated fraction of the work that is done, at most 0.99. The number of moves is not
    /// known in advance.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        let expected = self.expected.load(Ordering::Relaxed).max(1);
        (self.examined.load(Ordering::Relaxed) as f64 / expected as f64).min(MOST)
    }

    #[cfg(test)]
    pub(super) fn examined(&self) -> u64 {
        self.examined.load(Ordering::Relaxed)
    }

    pub(super) fn begin(&self, flows: usize) {
        self.examined.store(0, Ordering::Relaxed);
        self.expected.store(flows as u64 * PASSES, Ordering::Relaxed);
    }

    pub(super) fn step(&self) {
        self.examined.store(self.examined.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}
