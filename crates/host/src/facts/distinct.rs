//! Finds rows that occur twice, and numbers without a row. The kernel writes each row once, so a copied row
//! would double its counts, and a lost row would hide a queue.

use std::collections::BTreeSet;

/// Returns the position of the first key that occurred before, and the key.
pub(super) fn repeated<K: Ord + Clone>(keys: impl IntoIterator<Item = K>) -> Option<(usize, K)> {
    let mut seen = BTreeSet::new();
    keys.into_iter().enumerate().find(|(_, key)| !seen.insert(key.clone()))
}

pub(super) fn second(row: &str) -> String {
    format!("a second row of {row}")
}

/// Returns the smallest number that is missing between two of the numbers.
pub(super) fn first_gap(numbers: &BTreeSet<usize>) -> Option<usize> {
    let (first, last) = (*numbers.first()?, *numbers.last()?);
    (first..last).find(|number| !numbers.contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_lies_between_two_numbers() {
        let gap = |numbers: &[usize]| first_gap(&numbers.iter().copied().collect());
        assert_eq!([gap(&[]), gap(&[5]), gap(&[8, 9]), gap(&[0, 1, 2])], [None; 4]);
        assert_eq!([gap(&[0, 2]), gap(&[3, 5, 9])], [Some(1), Some(4)]);
    }
}
