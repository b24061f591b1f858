//! CoDel, controlled delay (`include/net/codel_impl.h`; Nichols and Jacobson, *Controlling Queue
//! Delay*, ACM Queue 2012; RFC 8289).
//!
//! Times are picoseconds. The kernel uses units of 1024 ns. ECN is not modelled: packets that the kernel
//! would mark are dropped.

use super::queue::Item;
use crate::time::{Span, Time};

/// Number of stored bits of the fixed-point reciprocal square root (`REC_INV_SQRT_BITS`).
const KEPT_BITS: u32 = 16;
/// Number of bits that are not stored, of 32 (`REC_INV_SQRT_SHIFT`).
const KEPT_SHIFT: u32 = 32 - KEPT_BITS;

#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    pub(super) item: Item,
    pub(super) enqueued: Time,
}

pub(super) trait CodelQueue {
    /// Removes the head. The backlog excludes it immediately.
    fn pop(&mut self) -> Option<Timed>;
    fn drop(&mut self, timed: Timed);
    /// Returns whether at most one frame remains. One frame never counts as a standing queue.
    fn is_short(&self) -> bool;
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CodelParameters {
    pub(super) target: Span,
    /// Duration of standing delay before a drop.
    pub(super) interval: Span,
}

/// Count of drops. The interval between drops is `interval` / sqrt(`count`). A dropping state that begins
/// soon after another continues from the other's count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Codel {
    /// Number of drops in the dropping state.
    pub(super) count: u32,
    last_count: u32,
    dropping: bool,
    /// Time at which the delay will have exceeded the target for an interval. `None` while the delay is below
    /// the target or the queue is short.
    reciprocal_root: u16,
    /// Time at which the delay will have exceeded the target for an interval; `None` while the delay is
    /// below the target.
    first_above: Option<Time>,
    drop_next: Time,
}

impl Codel {
    pub(super) const NEW: Self = Self {
        count: 0,
        last_count: 0,
        dropping: false,
        reciprocal_root: 0,
        first_above: None,
        drop_next: Time::ZERO,
    };

    /// Returns the next segment; `None` if the queue is empty. First drops segments if the delay has exceeded
    /// the target for an interval (`codel_dequeue`).
    pub(super) fn dequeue(
        &mut self,
        now: Time,
        parameters: CodelParameters,
        queue: &mut impl CodelQueue,
    ) -> Option<Timed> {
        let Some(mut head) = queue.pop() else {
            self.dropping = false;
            return None;
        };
        let above = self.should_drop(now, parameters, Some(&head), queue);
        if self.dropping {
            if !above {
                self.dropping = false;
            }
            while self.dropping && now >= self.drop_next {
                self.count = self.count.wrapping_add(1);
                self.newton_step();
                queue.drop(head);
                let next = queue.pop();
                if self.should_drop(now, parameters, next.as_ref(), queue) {
                    self.drop_next = self.control_law(self.drop_next, parameters);
                } else {
                    self.dropping = false;
                }
                head = next?;
            }
            return Some(head);
        }
        if !above {
            return Some(head);
        }
        queue.drop(head);
        let next = queue.pop();
        self.should_drop(now, parameters, next.as_ref(), queue);
        self.enter_dropping(now, parameters);
        next
    }

    /// Returns whether the delay has been at least the target for longer than an interval
    /// (`codel_should_drop`). A short queue ends this period.
    fn should_drop(
        &mut self,
        now: Time,
        parameters: CodelParameters,
        head: Option<&Timed>,
        queue: &impl CodelQueue,
    ) -> bool {
        let below = head.is_none_or(|timed| now.since(timed.enqueued) < parameters.target);
        if below || queue.is_short() {
            self.first_above = None;
            return false;
        }
        match self.first_above {
            None => {
                self.first_above = Some(now + parameters.interval);
                false
            }
            Some(since) => now > since,
        }
    }

    /// Enters the dropping state. If the last dropping state ended recently, the new state starts near
    /// the last drop rate.
    fn enter_dropping(&mut self, now: Time, parameters: CodelParameters) {
        self.dropping = true;
        let delta = self.count.wrapping_sub(self.last_count);
        if delta > 1 && now.since(self.drop_next) < 16 * parameters.interval {
            self.count = delta;
            self.newton_step();
        } else {
            self.count = 1;
            self.reciprocal_root = u16::MAX;
        }
        self.last_count = self.count;
        self.drop_next = self.control_law(now, parameters);
    }

    /// Does one Newton step towards 1 / sqrt(`count`): x / 2 * (3 - count * x^2), with wrapping
    /// arithmetic as in the kernel.
    fn newton_step(&mut self) {
        let root = u64::from(self.reciprocal_root) << KEPT_SHIFT;
        let square = (root * root) >> 32;
        let mut value = (3u64 << 32).wrapping_sub(u64::from(self.count) * square);
        value >>= 2;
        value = value.wrapping_mul(root) >> (32 - 2 + 1);
        self.reciprocal_root = (value >> KEPT_SHIFT) as u16;
    }

    /// Returns `time` plus the interval divided by the square root of the count.
    fn control_law(&self, time: Time, parameters: CodelParameters) -> Time {
        let scaled = u128::from(parameters.interval) * u128::from(self.reciprocal_root);
        time + (scaled >> KEPT_BITS) as Span
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::segment::Segment;
    use crate::time::MILLISECOND;

    const PARAMETERS: CodelParameters =
        CodelParameters { target: 5 * MILLISECOND, interval: 100 * MILLISECOND };

    #[derive(Default)]
    struct Standing {
        waiting: VecDeque<Timed>,
        dropped: usize,
    }

    impl CodelQueue for Standing {
        fn pop(&mut self) -> Option<Timed> {
            self.waiting.pop_front()
        }

        fn drop(&mut self, _: Timed) {
            self.dropped += 1;
        }

        fn is_short(&self) -> bool {
            self.waiting.is_empty()
        }
    }

    fn at(milliseconds: u64) -> Time {
        Time(milliseconds * MILLISECOND)
    }

    fn timed(enqueued: Time) -> Timed {
        Timed { item: Item::from(Segment { payload: 1448, mss: 1448, ..Segment::default() }), enqueued }
    }

    #[test]
    fn the_root_follows_the_count() {
        let mut codel = Codel { count: 1, reciprocal_root: u16::MAX, ..Codel::NEW };
        for count in 2..=400u32 {
            codel.count = count;
            codel.newton_step();
        }
        let exact = 65_536.0 / 400f64.sqrt();
        assert!((f64::from(codel.reciprocal_root) - exact).abs() < 0.02 * exact);
    }

    #[test]
    fn drops_after_an_interval_and_then_faster() {
        let mut codel = Codel::NEW;
        let mut queue = Standing::default();
        queue.waiting.extend((0..2000).map(|_| timed(Time::ZERO)));
        let mut drops = Vec::new();
        for millisecond in 10..=400 {
            let before = queue.dropped;
            assert!(codel.dequeue(at(millisecond), PARAMETERS, &mut queue).is_some());
            if queue.dropped > before {
                drops.push((millisecond, queue.dropped - before));
            }
        }
        // The first dequeue, at 10 ms, finds a delay above the target, so the first drop is the first dequeue
        // after 110 ms. By the exact control law at counts 1, 2 and 3, the next drops would follow after 100,
        // 71 and 58 ms. The Newton steps from 1 give 0.5, 0.5625, ... instead: 211, 261, 317, ...
        assert_eq!(drops[0], (111, 1));
        assert_eq!(drops[1], (211, 1));
        let gaps: Vec<u64> = drops.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(gaps[1..].iter().all(|gap| *gap < 75), "{gaps:?}");
    }

    #[test]
    fn a_new_dropping_state_takes_up_the_last_rate() {
        // The last dropping state began at a count of 10 and ended at a count of 20. The root matches the
        // difference, a count of 10.
        let left = Codel {
            count: 20,
            last_count: 10,
            reciprocal_root: (65_536.0 / 10f64.sqrt()) as u16,
            drop_next: at(1000),
            first_above: Some(at(1100)),
            ..Codel::NEW
        };
        for (now, count, next) in [(2599, 10, 2599 + 31), (2601, 1, 2601 + 99)] {
            let mut codel = left;
            let mut queue = Standing::default();
            queue.waiting.extend((0..10).map(|_| timed(Time::ZERO)));
            assert!(codel.dequeue(at(now), PARAMETERS, &mut queue).is_some());
            assert_eq!((queue.dropped, codel.count), (1, count));
            assert_eq!(codel.drop_next.0 / MILLISECOND, next);
        }
    }

    #[test]
    fn a_short_delay_or_a_short_queue_never_drops() {
        let mut codel = Codel::NEW;
        let mut queue = Standing::default();
        for millisecond in 0..1000 {
            queue.waiting.push_back(timed(at(millisecond)));
            if millisecond >= 4 {
                assert!(codel.dequeue(at(millisecond), PARAMETERS, &mut queue).is_some());
            }
        }
        assert_eq!(queue.dropped, 0);
        let mut queue = Standing::default();
        for round in 1..100 {
            queue.waiting.push_back(timed(at(100 * (round - 1))));
            assert!(codel.dequeue(at(100 * round), PARAMETERS, &mut queue).is_some());
        }
        assert_eq!(queue.dropped, 0);
        assert!(codel.dequeue(at(100_000), PARAMETERS, &mut queue).is_none());
    }
}
