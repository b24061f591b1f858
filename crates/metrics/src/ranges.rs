//! Sets of bins, given as ranges in any order, which may touch and overlap.

use std::ops::Range;

/// Returns the same set of bins as disjoint ranges in ascending order, with a gap between any two
/// ranges.
pub(crate) fn merged(ranges: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut sorted: Vec<Range<usize>> = ranges.iter().filter(|range| !range.is_empty()).cloned().collect();
    sorted.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<usize>> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Returns whether one of the `merged` ranges contains the whole `window`.
pub(crate) fn covers(merged: &[Range<usize>], window: &Range<usize>) -> bool {
    let after = merged.partition_point(|range| range.start <= window.start);
    after.checked_sub(1).is_some_and(|last| merged[last].end >= window.end)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init)]

    use super::*;

    #[test]
    fn touching_and_overlapping_ranges_become_one() {
        assert_eq!(merged(&[7..9, 0..3, 3..5, 4..6, 2..2]), [0..6, 7..9]);
    }

    #[test]
    fn a_window_is_covered_only_as_a_whole() {
        let set = merged(&[2..4, 4..6, 8..10]);
        assert!(covers(&set, &(2..6)));
        assert!(covers(&set, &(3..5)));
        assert!(covers(&set, &(8..10)));
        assert!(!covers(&set, &(1..3)));
        assert!(!covers(&set, &(5..9)));
        assert!(!covers(&set, &(10..11)));
        assert!(!covers(&[], &(0..1)));
    }
}
