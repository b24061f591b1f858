//! Byte queue limits: bound the bytes that the stack enqueues to a transmit ring.
//!
//! The stack reports what it enqueues (`netdev_tx_sent_queue`) and what the driver has completed
//! (`netdev_tx_completed_queue`, both include/linux/netdevice.h). A queue is stopped only after it exceeds
//! its limit, so the excess is less than one segment.

use crate::time::{MILLISECOND, SECOND, Span, Time};

/// The limit of one transmit queue. Bytes are [`Segment::frame_bytes`](crate::segment::Segment::frame_bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteQueueLimit {
    /// No limit: the driver does not support it, as veth's.
    Off,
    /// Dynamic queue limits.
    Dynamic(Dql),
}

impl ByteQueueLimit {
    /// An empty queue with a limit that adapts.
    #[must_use]
    pub const fn dynamic(config: DqlConfig) -> Self {
        Self::Dynamic(Dql::new(config))
    }

    /// Returns whether the stack may enqueue a segment: the queue does not exceed its limit.
    #[must_use]
    #[inline]
    pub const fn may_enqueue(&self) -> bool {
        match self {
            Self::Off => true,
            Self::Dynamic(dql) => dql.may_enqueue(),
        }
    }

    /// A segment of this many bytes was put into the ring.
    #[inline]
    pub const fn queued(&mut self, bytes: u64) {
        match self {
            Self::Off => {}
            Self::Dynamic(dql) => dql.queued(bytes),
        }
    }

    /// A completion round of the driver found that this many bytes, summed over its segments, have left.
    #[inline]
    pub fn completed(&mut self, bytes: u64, now: Time) {
        match self {
            Self::Off => {}
            Self::Dynamic(dql) => dql.completed(bytes, now),
        }
    }
}

/// Settings of a [`Dql`]; the first three are in sysfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DqlConfig {
    /// `limit_min`, bytes.
    pub smallest_limit: u64,
    /// `limit_max`, bytes; not less than `smallest_limit`.
    pub largest_limit: u64,
    /// `hold_time`: for how long slack must have been there before the limit shrinks.
    pub hold: Span,
    /// The kernel's clock tick, which that is measured in; 0 counts as 1 ps.
    pub jiffy: Span,
}

impl Default for DqlConfig {
    /// The kernel's: no smallest limit, `DQL_MAX_LIMIT` (include/linux/dynamic_queue_limits.h), a hold
    /// time of `HZ` jiffies (`netdev_queue_add_kobject`, net/core/net-sysfs.c), and `CONFIG_HZ=250`.
    fn default() -> Self {
        let largest_object = u64::from(u32::MAX / 16);
        Self {
            smallest_limit: 0,
            largest_limit: u64::from(u32::MAX / 2) - largest_object,
            hold: SECOND,
            jiffy: 4 * MILLISECOND,
        }
    }
}

/// Dynamic queue limits: the smallest limit that does not let the ring run empty between two completion
/// rounds (lib/dynamic_queue_limits.c).
///
/// Counters are 64 bits wide where the kernel's 32 wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dql {
    config: DqlConfig,
    limit: u64,
    /// Bytes that were ever queued (`num_queued`) and completed (`num_completed`).
    queued: u64,
    completed: u64,
    /// The queue is available while `queued` is not beyond this (`adj_limit`).
    available_to: u64,
    /// Bytes of the last enqueue (`last_obj_cnt`).
    last_segment: u64,
    previous: Round,
    /// Least slack since `slack_since` (`lowest_slack`, `slack_start_time`).
    least_slack: u64,
    slack_since_jiffies: u64,
}

/// State that one completion round passes to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Round {
    /// How far the queue was over the limit, bytes (`prev_ovlimit`).
    over_limit: u64,
    /// Bytes that had ever been queued (`prev_num_queued`).
    queued: u64,
    /// The last segment before it, bytes (`prev_last_obj_cnt`).
    last_segment: u64,
}

impl Dql {
    /// An empty queue. Its limit is 0 until the first completion: one segment at a time.
    #[must_use]
    pub const fn new(config: DqlConfig) -> Self {
        Self {
            config,
            limit: 0,
            queued: 0,
            completed: 0,
            available_to: 0,
            last_segment: 0,
            previous: Round { over_limit: 0, queued: 0, last_segment: 0 },
            least_slack: u64::MAX,
            slack_since_jiffies: 0,
        }
    }

    /// The present limit, bytes.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that are queued and not completed.
    #[must_use]
    pub const fn in_flight(&self) -> u64 {
        self.queued - self.completed
    }

    /// Returns whether the queue is within its limit (`dql_avail`).
    #[must_use]
    #[inline]
    pub const fn may_enqueue(&self) -> bool {
        self.queued <= self.available_to
    }

    /// A segment was put into the ring (`dql_queued`).
    #[inline]
    pub const fn queued(&mut self, bytes: u64) {
        self.last_segment = bytes;
        self.queued += bytes;
    }

    /// Handles a completion round that found this many bytes sent (`dql_completed`). They have been queued
    /// before; an empty round has no effect, as in `netdev_tx_completed_queue`.
    pub fn completed(&mut self, bytes: u64, now: Time) {
        if bytes == 0 {
            return;
        }
        let in_flight = self.in_flight();
        debug_assert!(bytes <= in_flight, "more is completed than was queued");
        let bytes = bytes.min(in_flight);
        let completed = self.completed + bytes;
        let left = in_flight - bytes;
        // Queued after the previous round, and left already.
        let passed_through = completed.saturating_sub(self.previous.queued);
        let over_limit = in_flight.saturating_sub(self.limit);
        let jiffies = now.0 / self.config.jiffy.max(1);

        // All bytes queued at the previous round have been sent. This is also true if no later byte has been
        // sent: it may have been queued only after the ring became empty (`AFTER_EQ`, since Linux 3.5).
        let previous_left = completed >= self.previous.queued;
        // The limit held segments back, and the ring ran empty or may have done so for a while.
        let starved = (over_limit > 0 && left == 0) || (self.previous.over_limit > 0 && previous_left);
        // The ring was never empty: the completed bytes include all of the previous round's, and more. (The
        // kernel also checks whether that round left bytes, which follows.)
        let busy = left > 0 && !previous_left;
        let mut limit = self.limit;
        if starved {
            limit += passed_through + self.previous.over_limit;
            self.restart_slack(jiffies);
        } else if busy {
            self.least_slack = self.least_slack.min(self.slack(bytes));
            if jiffies > self.slack_since_jiffies + self.config.hold / self.config.jiffy.max(1) {
                limit = limit.saturating_sub(self.least_slack);
                self.restart_slack(jiffies);
            }
        }
        limit = limit.min(self.config.largest_limit).max(self.config.smallest_limit);

        self.previous = Round {
            // An excess over the old limit does not apply to the new one.
            over_limit: if limit == self.limit { over_limit } else { 0 },
            queued: self.queued,
            last_segment: self.last_segment,
        };
        self.limit = limit;
        self.completed = completed;
        self.available_to = completed + limit;
    }

    /// Bytes of the limit that this round, which completed `bytes`, would not have needed.
    ///
    /// Returns the slack: the limit beyond twice the bytes that a round completes. If the last segment
    /// exceeded the limit, its part within the limit is slack too: without that part, the queue would have
    /// accepted the segment too.
    fn slack(&self, bytes: u64) -> u64 {
        let Round { over_limit, last_segment, .. } = self.previous;
        let beyond_twice = (self.limit + over_limit).saturating_sub(2 * bytes);
        let within_limit = if over_limit > 0 { last_segment.saturating_sub(over_limit) } else { 0 };
        beyond_twice.max(within_limit)
    }

    fn restart_slack(&mut self, jiffies: u64) {
        self.slack_since_jiffies = jiffies;
        self.least_slack = u64::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::ZERO;

    fn dql() -> Dql {
        Dql::new(DqlConfig::default())
    }

    #[test]
    fn without_a_limit_nothing_stops() {
        let mut queue = ByteQueueLimit::Off;
        queue.queued(1 << 40);
        assert!(queue.may_enqueue());
    }

    #[test]
    fn kernel_defaults() {
        let config = DqlConfig::default();
        assert_eq!(config.largest_limit, 1_879_048_192);
        assert_eq!((config.smallest_limit, config.hold), (0, SECOND));
    }

    #[test]
    fn the_limit_grows_while_the_ring_runs_empty() {
        let mut queue = dql();
        assert!(queue.may_enqueue());
        queue.queued(1_514);
        assert!(!queue.may_enqueue());
        // Over the limit of 0, and empty: grows by the completed bytes, 1514.
        queue.completed(1_514, START);
        assert_eq!(queue.limit(), 1_514);

        queue.queued(1_514);
        assert!(queue.may_enqueue());
        queue.queued(1_514);
        assert!(!queue.may_enqueue());
        // Again: 1514 + 3028.
        queue.completed(3_028, START);
        assert_eq!(queue.limit(), 4_542);
        assert_eq!(queue.in_flight(), 0);

        for available in [true, true, true, false] {
            queue.queued(1_514);
            assert_eq!(queue.may_enqueue(), available);
        }
        // Over the limit by 1514, but not empty, and not over it in the previous round: no change.
        queue.completed(1_514, START);
        assert_eq!(queue.limit(), 4_542);
        assert!(queue.may_enqueue());
        // Over the limit by 1514 in the previous round, and all bytes queued then have been sent: the ring
        // may have been empty before the next enqueue. 4542 + 0 + 1514.
        queue.queued(1_514);
        assert!(!queue.may_enqueue());
        queue.completed(4_542, START);
        assert_eq!(queue.limit(), 6_056);
        // 1514 remain, which were queued since; of 6056 more, 1514 exceed the limit.
        for available in [true, true, true, false] {
            queue.queued(1_514);
            assert_eq!(queue.may_enqueue(), available);
        }
        // The limit has just changed: the previous round was not over it.
        queue.completed(1_514, START);
        assert_eq!(queue.limit(), 6_056);
        // One more, then all complete; that one was queued since: 6056 + 1514 + 1514.
        queue.queued(1_514);
        queue.completed(7_570, START);
        assert_eq!(queue.limit(), 9_084);
    }

    #[test]
    fn the_limit_shrinks_by_the_least_slack_after_the_hold_time() {
        let mut queue = dql();
        queue.queued(10_000);
        queue.completed(10_000, START);
        assert_eq!(queue.limit(), 10_000);

        for _ in 0..11 {
            queue.queued(1_000);
        }
        assert!(!queue.may_enqueue());
        // The previous round left no bytes, so there is no slack to measure.
        queue.completed(1_000, START);
        // Slack: 10 000 + 1000 over the limit - 2 * 1000 = 9000.
        queue.queued(1_000);
        queue.completed(1_000, START);
        // 10 000 + 1000 - 2 * 3000 = 5000 is the least. The hold time is over only a jiffy after it.
        queue.queued(1_000);
        queue.completed(3_000, Time(SECOND));
        assert_eq!(queue.limit(), 10_000);
        // 10 000 + 1000 - 2 * 2000 = 7000 is not less; the slack stays 5000.
        queue.queued(1_000);
        queue.queued(1_000);
        queue.completed(2_000, Time(SECOND + 4 * MILLISECOND));
        assert_eq!(queue.limit(), 5_000);
        // In flight 8000 of 5000.
        assert_eq!(queue.in_flight(), 8_000);
        assert!(!queue.may_enqueue());
        queue.completed(2_999, Time(SECOND + 8 * MILLISECOND));
        assert!(!queue.may_enqueue());
        queue.completed(1, Time(SECOND + 8 * MILLISECOND));
        assert!(queue.may_enqueue());
    }

    #[test]
    fn a_last_segment_that_straddled_the_limit_is_slack() {
        let mut queue = dql();
        queue.queued(10_000);
        queue.completed(10_000, START);
        // 2000 of the second 8000 are within the limit, 6000 exceed it.
        queue.queued(8_000);
        queue.queued(8_000);
        queue.completed(1_000, START);
        // 10 000 + 6000 - 2 * 7600 = 800 beyond twice the round, but those 2000 are more.
        queue.completed(7_600, Time(2 * SECOND));
        assert_eq!(queue.limit(), 8_000);
    }

    #[test]
    fn an_empty_ring_that_no_limit_held_back_changes_nothing() {
        let mut queue = dql();
        queue.queued(10_000);
        queue.completed(10_000, START);
        for second in 1..5 {
            queue.queued(10_000);
            assert!(queue.may_enqueue());
            queue.completed(10_000, Time(second * SECOND));
            assert_eq!(queue.limit(), 10_000);
        }
    }

    #[test]
    fn slack_is_measured_only_while_the_ring_is_busy() {
        let mut queue = dql();
        queue.queued(10_000);
        queue.completed(10_000, START);
        queue.queued(4_000);
        queue.queued(4_000);
        // 10 000 - 2 * 4000 = 2000 would be slack. But the ring was empty at the previous round,
        queue.completed(4_000, Time(2 * SECOND));
        assert_eq!(queue.limit(), 10_000);
        // The queue is empty here.
        queue.completed(4_000, Time(4 * SECOND));
        assert_eq!(queue.limit(), 10_000);
    }

    #[test]
    fn limits_are_kept_within_their_bounds() {
        let bounds = DqlConfig { smallest_limit: 3_000, largest_limit: 5_000, ..DqlConfig::default() };
        let mut queue = Dql::new(bounds);
        queue.queued(100);
        queue.completed(0, START);
        assert_eq!(queue.limit(), 0);
        queue.completed(100, START);
        assert_eq!(queue.limit(), 3_000);
        queue.queued(20_000);
        queue.completed(20_000, START);
        assert_eq!(queue.limit(), 5_000);
    }
}
