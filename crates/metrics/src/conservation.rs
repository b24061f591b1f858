//! Work conservation: whether the link is idle while packets wait.

use std::ops::Range;

use crate::ranges::merged;

/// The share of time in which a link was idle while a flow was backlogged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkConservation {
    /// Idle share of the backlogged time, 0 to 1; 0 means work-conserving.
    pub idle_share: f64,
    /// Number of bins in which a flow was backlogged throughout; at least 1.
    pub backlogged_bins: usize,
}

/// Computes work conservation from the bytes that a link of `line_rate_bps` sent in each bin of `bin_ns`.
/// `backlogged` contains the bins throughout which at least one flow was backlogged. The ranges may be in any
/// order, such as [`FlowSeries::backlogged`](crate::FlowSeries::backlogged) of all flows, concatenated. Bins
/// beyond the end of `link_bytes` are ignored.
///
/// A link is busy for the time that its bytes need at line rate. The rest of consecutive backlogged bins is
/// idle time. The computation covers consecutive bins together: a packet on the border of two bins makes one
/// bin look overfull and the other bin idle. Returns `None` if no bin is backlogged, or the line rate or the
/// bin is 0.
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

/// Utilization of a line while packets waited for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LineUse {
    /// Share of the windows with waiting packets in which less than half of the capacity was sent.
    pub idle_share: f64,
    /// Unused share of the capacity while packets waited.
    pub lost_share: f64,
    /// Number of windows in which packets waited throughout; at least 1.
    pub backlogged: usize,
    pub windows: usize,
}

/// Computes the utilization of a line while packets waited for it, from the bytes sent in each bin and the
/// minimum backlog of the bin.
///
/// `bins_per_window` bins form a window. A window should be longer than several of the largest segments: on a
/// slow line, a segment takes several bins, but its bytes may count in one bin. An incomplete window at the
/// end is ignored. A window is backlogged if bytes waited in each of its bins.
///
/// [`LineUse::lost_share`] is computed over consecutive backlogged windows, because a segment on the border
/// of two windows makes one window look overfull and the other window idle.
///
/// Returns `None` if no window is backlogged, the capacity is not positive, or `bins_per_window` is 0.
#[must_use]
pub fn line_use(
    sent_bytes: &[u64],
    backlog_bytes: &[u64],
    bin_capacity_bytes: f64,
    bins_per_window: usize,
) -> Option<LineUse> {
    if bins_per_window == 0 || bin_capacity_bytes.is_nan() || bin_capacity_bytes <= 0.0 {
        return None;
    }
    let capacity = bin_capacity_bytes * bins_per_window as f64;
    let (mut windows, mut backlogged, mut idle) = (0_usize, 0_usize, 0_usize);
    let (mut lost, mut stretch) = (0.0, 0.0_f64);
    let both = sent_bytes.chunks_exact(bins_per_window).zip(backlog_bytes.chunks_exact(bins_per_window));
    for (sent, waiting) in both {
        windows += 1;
        if waiting.contains(&0) {
            lost += stretch.max(0.0);
            stretch = 0.0;
            continue;
        }
        let sent = sent.iter().map(|bytes| *bytes as f64).sum::<f64>();
        backlogged += 1;
        idle += usize::from(sent < capacity / 2.0);
        stretch += capacity - sent;
    }
    lost += stretch.max(0.0);
    (backlogged > 0).then(|| LineUse {
        idle_share: idle as f64 / backlogged as f64,
        lost_share: lost / (backlogged as f64 * capacity),
        backlogged,
        windows,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init)]

    use super::*;

    const MILLISECOND: u64 = 1_000_000;
    /// At this rate, 1000 bytes fit into a bin of one millisecond.
    const RATE: u64 = 8_000_000;

    #[test]
    fn idle_time_without_backlog_is_no_loss() {
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
    fn a_line_that_is_full_while_somebody_waits_loses_nothing() {
        // The last two bins are idle, but no packet waits then.
        let found = line_use(&[1000, 1000, 0, 0], &[5, 5, 0, 0], 1000.0, 1);
        assert_eq!(found, Some(LineUse { idle_share: 0.0, lost_share: 0.0, backlogged: 2, windows: 4 }));
    }

    #[test]
    fn a_shaper_below_the_line_loses_the_rest_and_is_never_idle() {
        let found =
            line_use(&[800; 10], &[5; 10], 1000.0, 1).map(|found| (found.idle_share, found.lost_share));
        assert!(found.is_some_and(|(idle, lost)| idle == 0.0 && (lost - 0.2).abs() < 1e-12), "{found:?}");
    }

    #[test]
    fn a_class_that_may_not_borrow_leaves_the_line_idle_while_it_waits() {
        // In half of the bins, the other classes are idle, and the class sends 400 of 1000 bytes.
        let sent: Vec<u64> = [1000, 1000, 400, 400].repeat(5);
        let found = line_use(&sent, &[7; 20], 1000.0, 1).map(|found| (found.idle_share, found.lost_share));
        assert!(found.is_some_and(|(idle, lost)| idle == 0.5 && (lost - 0.3).abs() < 1e-12), "{found:?}");
    }

    #[test]
    fn a_segment_that_takes_several_bins_is_no_idle_time() {
        // A segment of 4000 bytes is sent every fourth bin.
        let sent = [4000, 0, 0, 0, 4000, 0, 0, 0, 4000];
        let found = line_use(&sent, &[9; 9], 1000.0, 4);
        assert_eq!(found, Some(LineUse { idle_share: 0.0, lost_share: 0.0, backlogged: 2, windows: 2 }));
        // A segment on the border of two windows counts in one window. The other window looks idle, but no
        // capacity is lost.
        let found = line_use(&[8000, 0, 0, 0, 0, 0, 0, 0], &[9; 8], 1000.0, 4);
        assert_eq!(found.map(|found| (found.idle_share, found.lost_share)), Some((0.5, 0.0)));
    }

    #[test]
    fn a_window_in_which_the_backlog_ended_does_not_count() {
        let found = line_use(&[1000, 0, 1000, 1000], &[9, 0, 9, 9], 1000.0, 2);
        assert_eq!(found, Some(LineUse { idle_share: 0.0, lost_share: 0.0, backlogged: 1, windows: 2 }));
        assert_eq!(line_use(&[1000], &[0], 1000.0, 1), None);
        assert_eq!(line_use(&[1000], &[9], 0.0, 1), None);
        assert_eq!(line_use(&[1000], &[9], 1000.0, 0), None);
        assert_eq!(line_use(&[1000], &[9], 1000.0, 2), None);
    }

    #[test]
    fn nothing_to_judge() {
        assert_eq!(work_conservation(&[1000], &[], MILLISECOND, RATE), None);
        assert_eq!(work_conservation(&[1000], &[4..9], MILLISECOND, RATE), None);
        assert_eq!(work_conservation(&[1000], &[0..1], MILLISECOND, 0), None);
        assert_eq!(work_conservation(&[1000], &[0..1], 0, RATE), None);
    }
}
