//! Progress of a search, for a thread that shows it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Passes over all flows in a long search: two starts of six passes each, and the flows' entry.
const PASSES: u64 = 13;
/// Only the end of the search is the end of the work.
const MOST: f64 = 0.99;

/// Examined flows. One thread writes, so that counting costs no locked instruction.
#[derive(Debug, Default)]
pub struct Progress {
    examined: AtomicU64,
    expected: AtomicU64,
}

impl Progress {
    /// The part of the work that is done, estimated: how often flows move is not known before.
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
