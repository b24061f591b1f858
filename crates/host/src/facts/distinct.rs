//! Finds rows that occur twice. The kernel writes each once, so counts of a copied row would be doubled.

use std::collections::BTreeSet;

/// Returns the position of the first key that occurred before, and the key.
pub(super) fn repeated<K: Ord + Clone>(keys: impl IntoIterator<Item = K>) -> Option<(usize, K)> {
    let mut seen = BTreeSet::new();
    keys.into_iter().enumerate().find(|(_, key)| !seen.insert(key.clone()))
}

/// Describes a second row.
pub(super) fn second(row: &str) -> String {
    format!("a second row of {row}")
}
