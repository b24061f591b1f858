//! Dynamic segment size (Titan, USENIX ATC 2017, section 3.3): small segments while queues are shared.
//!
//! A queue is served in whole segments, and flows that share a queue send segments round robin. Over a short
//! time, one flow may therefore send more than another. If flows are spread over the queues and queues have
//! weights, no other unfairness remains. Smaller segments are fairer but cost processor time, so they are
//! used only while queues are shared.
//!
//! A change on a live device is expensive. Running flows adopt the new size only after a new route lookup,
//! for all sockets of the namespace at once. [`SegmentSizer`] therefore reacts slowly, and most slowly
//! towards larger segments.

use crate::headroom::{Headroom, Sizes};

/// The segment size while queues are shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SegmentGoal {
    /// A fixed size, bytes.
    Fixed(u32),
    /// The largest size that limits the unfairness over a short window to a goal.
    Auto {
        /// The bytes that the line sends in a window.
        window_bytes: u64,
        /// Largest acceptable normalised fairness metric. The metric is the largest difference between
        /// two flows in a window, divided by a flow's fair share.
        goal: f64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SegmentOptions {
    pub goal: SegmentGoal,
    /// Segment size while no queue is shared: the device's maximum, bytes.
    pub largest: u32,
    /// How long queues must be shared before segments shrink, ns.
    pub shrink_after_ns: u64,
    /// How long larger segments must be sufficient for fairness before segments grow, ns.
    pub grow_after_ns: u64,
}

impl SegmentOptions {
    /// Returns every size that a [`SegmentSizer`] with these settings can request, bytes. A journal can
    /// then list the sizes in advance. Besides the goal's sizes, the result includes [`SIZES`], because
    /// the sizer steps through them while the processors are saturated.
    #[must_use]
    pub fn sizes(&self) -> Vec<u32> {
        let fixed = match self.goal {
            SegmentGoal::Fixed(bytes) => Some(bytes),
            SegmentGoal::Auto { .. } => None,
        };
        let mut sizes: Vec<u32> =
            SIZES.into_iter().chain(fixed).chain([self.largest]).map(|size| size.min(self.largest)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}

/// Sizes for [`SegmentGoal::Auto`], bytes: Titan's 16 and 32 KiB, and steps between and around them.
/// Intermediate steps avoid needlessly small segments, which are expensive.
pub const SIZES: [u32; 6] = [49_152, 32_768, 24_576, 16_384, 12_288, 8192];

/// Largest difference, in segments, of two flows in a window if they send round robin. Each end of the
/// window contributes one segment.
const SEGMENTS_APART: f64 = 2.0;

/// Decides a device's segment size from the number of flows per queue.
#[derive(Clone, Debug)]
pub struct SegmentSizer {
    options: SegmentOptions,
    size: u32,
    headroom: Headroom,
    /// The last size that fairness required, bytes.
    preferred: u32,
    /// A wanted size that differs from the present size, and the time of the first such sample, ns.
    pending: Option<(u32, u64)>,
}

impl SegmentSizer {
    #[must_use]
    pub fn new(options: SegmentOptions) -> Self {
        let size = options.largest;
        Self { options, size, headroom: Headroom::default(), preferred: size, pending: None }
    }

    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Records the number of flows on each queue at `now_ns`. Returns the new size if the size changes.
    pub fn sample(&mut self, now_ns: u64, flows: &[u32]) -> Option<u32> {
        self.preferred = self.preferred(flows);
        let wanted = self.preferred.max(self.headroom.floor().unwrap_or(0));
        if wanted == self.size {
            self.pending = None;
            return None;
        }
        let since = match self.pending {
            // The wait continues if the direction of the change is the same.
            Some((before, since)) if (before < self.size) == (wanted < self.size) => since,
            _ => now_ns,
        };
        self.pending = Some((wanted, since));
        let patience =
            if wanted < self.size { self.options.shrink_after_ns } else { self.options.grow_after_ns };
        if now_ns.saturating_sub(since) < patience {
            return None;
        }
        self.pending = None;
        self.size = wanted;
        Some(wanted)
    }

    /// Records the recent busy share of all processors, 0 to 1, while queues are shared. Returns the
    /// new size if the size grows. Flows adopt a new size `follow_ns` after the change. See
    /// [`Headroom`].
    pub fn sample_processors(&mut self, now_ns: u64, busy: f64, follow_ns: u64) -> Option<u32> {
        let sizes = Sizes { in_force: self.size, wanted: self.preferred, largest: self.options.largest };
        if !self.headroom.sample(now_ns, busy, sizes, follow_ns) {
            return None;
        }
        // A smaller size applies with the next sample of the queues, after its wait.
        let floor = self.headroom.floor().filter(|floor| *floor > self.size)?;
        self.pending = None;
        self.size = floor;
        Some(floor)
    }

    fn preferred(&self, flows: &[u32]) -> u32 {
        let largest = self.options.largest;
        if flows.iter().all(|flows| *flows <= 1) {
            return largest;
        }
        match self.options.goal {
            SegmentGoal::Fixed(bytes) => bytes.min(largest),
            SegmentGoal::Auto { window_bytes, goal } => {
                let total: u64 = flows.iter().map(|flows| u64::from(*flows)).sum();
                let share = window_bytes as f64 / total.max(1) as f64;
                let [.., smallest] = SIZES;
                std::iter::once(largest)
                    .chain(SIZES)
                    .find(|size| SEGMENTS_APART * f64::from(*size) <= goal * share)
                    .unwrap_or(smallest)
                    .min(largest)
            }
        }
    }
}

/// Time whose data a flow may have below its socket. The kernel allows a millisecond at the pacing rate
/// (`sk_pacing_shift`), which is up to twice the flow's rate.
const BACKLOG_US: u64 = 2000;

/// Returns the limit of a flow's data below its socket, bytes, with which flows on the same FIFO get
/// equal shares. Returns `None` while no queue is shared. `flows` is the number of flows per queue.
/// `rate_bps` is the line's rate, if known.
///
/// A flow's share of a FIFO is its share of the backlog. TCP small queues allow a flow two segments
/// below its socket, or more at a high pacing rate. The pacing rate follows the congestion window,
/// which a sender without losses never reduces. Old windows would therefore determine the shares. With
/// 48 flows on 8 queues and small segments, unfairness over long windows was 1.3, and 0.04 with equal
/// limits.
///
/// A socket may send while it is below the limit. The limit is therefore a whole number of segments
/// minus a quarter of a segment. The number is two, or as many as the flow's share of the line sends in
/// two milliseconds. A fast line therefore never waits for the limit.
#[must_use]
pub fn equal_backlog(flows: &[u32], segment_bytes: u32, rate_bps: Option<u64>) -> Option<u64> {
    if flows.iter().all(|flows| *flows <= 1) {
        return None;
    }
    let total: u64 = flows.iter().map(|flows| u64::from(*flows)).sum();
    let segment = u64::from(segment_bytes.max(1));
    let share = u128::from(rate_bps.unwrap_or(0)) * u128::from(BACKLOG_US) / 8_000_000 / u128::from(total);
    let segments = (share as u64).div_ceil(segment).max(2);
    Some(segments * segment - segment / 4)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    proptest! {
        #[test]
        fn every_size_that_is_asked_for_is_known_beforehand(
            fixed in proptest::option::of(4096_u32..65_537),
            largest in 4096_u32..262_145,
            goal in 0.05_f64..8.0,
            looks in proptest::collection::vec((0_u64..12, proptest::collection::vec(0_u32..40, 4), 0.5_f64..1.2), 1..60),
        ) {
            let goal = fixed.map_or(SegmentGoal::Auto { window_bytes: 1_250_000, goal }, SegmentGoal::Fixed);
            let options =
                SegmentOptions { goal, largest, shrink_after_ns: SECOND / 10, grow_after_ns: 5 * SECOND };
            let known = options.sizes();
            let mut sizer = SegmentSizer::new(options);
            let mut now_ns = 0;
            for (half_seconds, flows, busy) in looks {
                now_ns += half_seconds * SECOND / 2;
                let asked = [sizer.sample(now_ns, &flows), sizer.sample_processors(now_ns, busy, SECOND)];
                for size in asked.into_iter().flatten() {
                    prop_assert!(known.contains(&size), "{size} is not one of {known:?}");
                }
            }
        }
    }

    fn sizer(goal: SegmentGoal) -> SegmentSizer {
        SegmentSizer::new(SegmentOptions {
            goal,
            largest: 65_536,
            shrink_after_ns: SECOND / 10,
            grow_after_ns: 5 * SECOND,
        })
    }

    #[test]
    fn it_shrinks_soon_and_grows_late() {
        let mut sizer = sizer(SegmentGoal::Fixed(16_384));
        assert_eq!(sizer.sample(0, &[1, 1, 0]), None);
        assert_eq!(sizer.sample(SECOND, &[2, 1, 0]), None);
        assert_eq!(sizer.sample(SECOND + SECOND / 10, &[2, 1, 0]), Some(16_384));
        // After a pause of one flow, the wait restarts.
        assert_eq!(sizer.sample(2 * SECOND, &[1, 1, 0]), None);
        assert_eq!(sizer.sample(6 * SECOND, &[2, 1, 0]), None);
        assert_eq!(sizer.sample(7 * SECOND, &[1, 1, 0]), None);
        assert_eq!(sizer.sample(11 * SECOND, &[1, 1, 0]), None);
        assert_eq!(sizer.sample(12 * SECOND, &[1, 0, 0]), Some(65_536));
        assert_eq!(sizer.size(), 65_536);
    }

    #[test]
    fn the_largest_size_that_meets_the_goal() {
        // 1 ms at 10 Gbit/s is 1.25 MB, or 26 KB for each of 48 flows. 2 x 16 KiB are 1.26 shares, and
        // 2 x 32 KiB are 2.5 shares.
        let auto = |goal| SegmentGoal::Auto { window_bytes: 1_250_000, goal };
        let settled = |goal, flows: &[u32]| {
            let mut sizer = sizer(auto(goal));
            sizer.sample(0, flows);
            sizer.sample(SECOND, flows);
            sizer.size()
        };
        assert_eq!(settled(1.5, &[6; 8]), 16_384);
        assert_eq!(settled(2.0, &[6; 8]), 24_576);
        assert_eq!(settled(3.0, &[6; 8]), 32_768);
        assert_eq!(settled(6.0, &[6; 8]), 65_536);
        assert_eq!(settled(0.1, &[6; 8]), 8192, "no size meets it: the smallest");
        assert_eq!(settled(0.1, &[1; 8]), 65_536, "no flows share");
    }

    #[test]
    fn processors_without_time_get_larger_segments_at_once() {
        let mut sizer = sizer(SegmentGoal::Fixed(16_384));
        sizer.sample(0, &[2]);
        assert_eq!(sizer.sample(SECOND, &[2]), Some(16_384));
        assert_eq!(sizer.sample_processors(SECOND, 1.0, 0), None);
        assert_eq!(sizer.sample_processors(2 * SECOND, 1.0, 0), Some(24_576));
        assert_eq!(sizer.sample(3 * SECOND, &[2]), None, "the floor holds");
        assert_eq!(sizer.sample_processors(3 * SECOND, 0.5, 0), None);
        assert_eq!(sizer.sample_processors(8 * SECOND, 0.5, 0), None);
        assert_eq!(sizer.sample(8 * SECOND, &[2]), None);
        assert_eq!(sizer.sample(9 * SECOND, &[2]), Some(16_384), "what is wanted, once there is time");
    }

    #[test]
    fn backlogs_are_equal_while_queues_are_shared() {
        const GBIT: u64 = 1_000_000_000;
        assert_eq!(equal_backlog(&[1, 1, 0], 16_384, Some(GBIT)), None);
        assert_eq!(equal_backlog(&[], 16_384, None), None);
        // The limit is two segments minus a quarter of a segment.
        assert_eq!(equal_backlog(&[6; 8], 16_384, Some(2 * GBIT)), Some(28_672));
        assert_eq!(equal_backlog(&[6; 8], 16_384, None), Some(28_672));
        // Two milliseconds at 2 Gbit/s are 500 kB, or 41.7 kB for each of 12 flows: three segments.
        assert_eq!(equal_backlog(&[2, 2, 2, 2, 1, 1, 1, 1], 16_384, Some(2 * GBIT)), Some(45_056));
        assert_eq!(equal_backlog(&[2, 2, 2, 2, 1, 1, 1, 1], 65_536, Some(2 * GBIT)), Some(114_688));
        // At 100 Gbit/s each flow may have 2 MB.
        assert!(equal_backlog(&[2, 2, 2, 2, 1, 1, 1, 1], 16_384, Some(100 * GBIT)).unwrap() > 2_000_000);
    }

    #[test]
    fn it_never_exceeds_what_the_device_had() {
        let mut sizer = SegmentSizer::new(SegmentOptions {
            goal: SegmentGoal::Fixed(32_768),
            largest: 20_000,
            shrink_after_ns: 0,
            grow_after_ns: 0,
        });
        assert_eq!(sizer.sample(0, &[2]), None);
        assert_eq!(sizer.size(), 20_000);
    }
}
