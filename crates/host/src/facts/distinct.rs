//! Finds rows that occur twice. The kernel writes each row once, so a copied row would double its
//! counts.

use std::collections::BTreeSet;

/// Returns the position of the first key that occurred before, and the key.
pub(super) fn repeated<K: Ord + Clone>(keys: impl IntoIterator<Item = K>) -> Option<(usize, K)> {
    let mut seen = BTreeSet::new();
    keys.into_iter().enumerate().find(|(_, key)| !seen.insert(key.clone()))
}

pub(super) fn second(row: &str) -> String {
    format!("a second row of {row}")
}
