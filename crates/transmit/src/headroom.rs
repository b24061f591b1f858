//! A lower bound of the segment size, from the processors' capacity.
//!
//! Halving the segment size doubles the number of segments, and so the number of system calls, wake-ups
//! and queue choices. If the processors can barely fill the line, smaller segments saturate them. The
//! process scheduler, instead of the queues, then determines the shares of flows.
//!
//! Measured with 48 flows on 8 queues at 5 Gbit/s and two processors:
//!
//! | segments | busy processors | long-term unfairness |
//! |---|---|---|
//! | 16 KiB | 100 % | 0.3 (0.03 to 0.85 in five runs) |
//! | 24 KiB | 92 % | 0.010 |

use crate::segments::SIZES;

/// Busy share above which the processors count as saturated. It allows for the error of a reading.
const SATURATED: f64 = 0.97;
/// How long the processors must be saturated before segments grow, ns.
const SATURATED_FOR_NS: u64 = 1_000_000_000;
/// How long the processors must have capacity for a smaller size before the size is reduced, ns.
const RELAXED_FOR_NS: u64 = 5_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The size in use, bytes.
    pub in_force: u32,
    /// The size that fairness requires, bytes.
    pub wanted: u32,
    /// The device's maximum, bytes.
    pub largest: u32,
}

/// Determines the smallest segment size for which the processors have capacity.
#[derive(Clone, Debug, Default)]
pub struct Headroom {
    /// Smallest allowed size, bytes; `None`: no limit.
    floor: Option<u32>,
    /// The change of size that the readings suggest, and the time of the first such reading, ns.
    pending: Option<(Pointing, u64)>,
    /// Time until which readings still concern segments of the previous size.
    settles_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pointing {
    Larger,
    Smaller,
}

impl Headroom {
    /// Returns the smallest allowed size, bytes; `None`: no limit.
    #[must_use]
    pub fn floor(&self) -> Option<u32> {
        self.floor
    }

    /// Records the recent busy share of all processors, 0 to 1. Returns whether the floor changes.
    /// Running flows adopt a new size `follow_ns` after the change, and readings before this time are
    /// ignored.
    pub fn sample(&mut self, now_ns: u64, busy: f64, sizes: Sizes, follow_ns: u64) -> bool {
        let Sizes { in_force, wanted, largest } = sizes;
        if now_ns < self.settles_ns {
            return false;
        }
        let steps = || SIZES.into_iter().filter(|step| *step < largest);
        let pointing = if busy >= SATURATED {
            Some(Pointing::Larger).filter(|_| self.floor.is_none_or(|floor| floor < largest))
        } else {
            self.floor.and_then(|floor| {
                let below = steps().find(|step| *step < floor).unwrap_or(0).max(wanted);
                // In the worst case all work is per segment. The condition ensures that the smaller
                // size does not saturate the processors again.
                let dearer = f64::from(floor) / f64::from(below.max(1));
                (busy * dearer < SATURATED).then_some(Pointing::Smaller)
            })
        };
        let Some(pointing) = pointing else {
            self.pending = None;
            return false;
        };
        let since = match self.pending {
            Some((before, since)) if before == pointing => since,
            _ => now_ns,
        };
        self.pending = Some((pointing, since));
        let (patience, floor) = match pointing {
            Pointing::Larger => {
                let above = steps().rfind(|step| *step > in_force);
                (SATURATED_FOR_NS, Some(above.unwrap_or(largest)))
            }
            Pointing::Smaller => {
                (RELAXED_FOR_NS, steps().find(|step| self.floor.is_some_and(|floor| *step < floor)))
            }
        };
        if now_ns.saturating_sub(since) < patience {
            return false;
        }
        self.pending = None;
        self.settles_ns = now_ns + follow_ns;
        self.floor = floor;
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const LARGEST: u32 = 65_536;
    const FOLLOW_NS: u64 = 1_500_000_000;
    const STEP_NS: u64 = 500_000_000;

    /// Simulates a host. With 16 KiB segments, the work per segment takes `per_segment` of the CPU
    /// time; all other work takes `fixed`. Returns the final size, and the number of changes in the
    /// second half.
    fn settle(fixed: f64, per_segment: f64, wanted: u32, steps: u64) -> (u32, usize) {
        let mut headroom = Headroom::default();
        let mut size = wanted;
        let mut late = 0;
        for step in 0..steps {
            let busy = (fixed + per_segment * 16_384.0 / f64::from(size)).min(1.0);
            let sizes = Sizes { in_force: size, wanted, largest: LARGEST };
            if headroom.sample(step * STEP_NS, busy, sizes, FOLLOW_NS) {
                let next = headroom.floor().map_or(wanted, |floor| floor.max(wanted));
                late += usize::from(step > steps / 2 && next != size);
                size = next;
            }
        }
        (size, late)
    }

    #[test]
    fn segments_grow_until_the_processors_have_time_left() {
        assert_eq!(settle(0.2, 0.3, 16_384, 200), (16_384, 0), "half busy");
        assert_eq!(settle(0.4, 0.7, 16_384, 200), (24_576, 0), "1.1 with 16 KiB, 0.87 with 24");
        assert_eq!(settle(0.8, 0.3, 16_384, 200), (32_768, 0), "1.1, 1.0, 0.95");
        assert_eq!(settle(1.0, 0.0, 16_384, 200), (LARGEST, 0), "busy with something else");
    }

    #[test]
    fn smaller_segments_are_tried_again_when_there_is_time() {
        let mut headroom = Headroom::default();
        let mut now_ns = 0;
        let mut play = |headroom: &mut Headroom, busy, size, seconds: u64| {
            for _ in 0..seconds * 2 {
                let sizes = Sizes { in_force: size, wanted: 8192, largest: LARGEST };
                headroom.sample(now_ns, busy, sizes, FOLLOW_NS);
                now_ns += STEP_NS;
            }
            headroom.floor()
        };
        assert_eq!(play(&mut headroom, 0.99, 16_384, 1), None, "not yet");
        assert_eq!(play(&mut headroom, 0.99, 16_384, 1), Some(24_576));
        assert_eq!(play(&mut headroom, 0.80, 24_576, 60), Some(24_576), "16 KiB might take 1.2 of it");
        assert_eq!(play(&mut headroom, 0.60, 24_576, 8), Some(16_384));
        assert_eq!(play(&mut headroom, 0.60, 16_384, 16), Some(8192));
        assert_eq!(play(&mut headroom, 0.60, 8192, 8), None, "none is too small");
        // Less than a second of saturation has no effect.
        for _ in 0..20 {
            assert_eq!(play(&mut headroom, 0.99, 16_384, 1), None);
            assert_eq!(play(&mut headroom, 0.5, 16_384, 1), None);
        }
    }

    proptest! {
        /// For any mix of work, the size must converge and must not be larger than necessary.
        #[test]
        fn it_settles(fixed in 0.0..1.2_f64, per_segment in 0.0..1.2_f64, wanted in 4096..LARGEST) {
            let (size, late) = settle(fixed, per_segment, wanted, 400);
            prop_assert_eq!(late, 0);
            let busy = |size: u32| fixed + per_segment * 16_384.0 / f64::from(size);
            prop_assert!(size == LARGEST || busy(size) < SATURATED);
            if size > wanted {
                let below = SIZES.into_iter().find(|step| *step < size).unwrap_or(0).max(wanted);
                prop_assert!(busy(size) * f64::from(size) / f64::from(below) >= SATURATED, "{} would do", below);
            }
        }
    }
}
