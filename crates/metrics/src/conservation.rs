//! Whether the link idles although somebody wants to send.

use std::ops::Range;

use crate::ranges::merged;

/// How much of its time a link idled while some flow was backlogged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkConservation {
    /// Idle share of the backlogged time, 0 to 1; 0 is work-conserving.
    pub idle_share: f64,
    /// Bins in which some flow was backlogged throughout; at least 1.
    pub backlogged_bins: usize,
}

/// Work conservation from the bytes that a link of `line_rate_bps` sent in each bin of `bin_ns`,
/// and the bins throughout which at least one flow was backlogged (ranges in any order, such as
/// the [`FlowSeries::backlogged`](crate::FlowSeries::backlogged) of all flows in a row).
///
/// The time a link needs for its bytes at line rate is its busy time; what remains of a backlogged
/// stretch of bins is idle. That is reckoned over whole stretches and not bin by bin: a packet on
/// the border of two bins makes one look overfull and the other idle. `None` if no bin is
/// backlogged, or if the line rate or the bin is 0.
#[must_use]
pub fn work_conservation(
    link_bytes: &[u64],
    backlogged: &[Range<usize>],
    bin_ns: u64,
    line_rate_bps: u64,
) -> Option<WorkConservation> {
    let bin_capacity = line_rate_bps as f64 / 8.0 * (bin_ns as f64 / 1e9);
    if bin_capacity == 0.0 {
        return None;
    }
    let (mut idle_bins, mut backlogged_bins) = (0.0, 0_usize);
    for stretch in merged(backlogged) {
        let end = stretch.end.min(link_bytes.len());
        let bins = &link_bytes[stretch.start.min(end)..end];
        let busy_bins = bins.iter().map(|&bytes| bytes as f64).sum::<f64>() / bin_capacity;
        idle_bins += (bins.len() as f64 - busy_bins).max(0.0);
        backlogged_bins += bins.len();
    }
    (backlogged_bins > 0)
        .then(|| WorkConservation { idle_share: idle_bins / backlogged_bins as f64, backlogged_bins })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init)]

    use super::*;

    const MILLISECOND: u64 = 1_000_000;
    /// At this rate a bin of one millisecond holds 1000 bytes.
    const RATE: u64 = 8_000_000;

    #[test]
    fn idle_time_without_backlog_is_nobodys_loss() {
        let found = work_conservation(&[1000, 1000, 0, 0], &[0..2], MILLISECOND, RATE);
        assert_eq!(found, Some(WorkConservation { idle_share: 0.0, backlogged_bins: 2 }));
    }

    #[test]
    fn idle_time_under_backlog_counts() {
        let found = work_conservation(&[1000, 500, 0, 0], &[0..2, 1..3], MILLISECOND, RATE);
        assert_eq!(found, Some(WorkConservation { idle_share: 0.5, backlogged_bins: 3 }));
    }

    #[test]
    fn a_packet_on_a_border_between_bins_is_not_idle_time() {
        let found = work_conservation(&[1200, 800], &[0..2], MILLISECOND, RATE);
        assert_eq!(found, Some(WorkConservation { idle_share: 0.0, backlogged_bins: 2 }));
    }

    #[test]
    fn a_burst_in_one_stretch_does_not_make_up_for_another() {
        let found = work_conservation(&[2000, 0, 0], &[0..1, 2..3], MILLISECOND, RATE);
        assert_eq!(found, Some(WorkConservation { idle_share: 0.5, backlogged_bins: 2 }));
    }

    #[test]
    fn nothing_to_judge() {
        assert_eq!(work_conservation(&[1000], &[], MILLISECOND, RATE), None);
        assert_eq!(work_conservation(&[1000], &[4..9], MILLISECOND, RATE), None);
        assert_eq!(work_conservation(&[1000], &[0..1], MILLISECOND, 0), None);
        assert_eq!(work_conservation(&[1000], &[0..1], 0, RATE), None);
    }
}
