//! Byte queue limits (BQL): limit the bytes that the stack enqueues to a transmit ring.
//!
//! The driver reports the bytes that it enqueues (`netdev_tx_sent_queue`) and the bytes that it has
//! completed (`netdev_tx_completed_queue`; both functions are in include/linux/netdevice.h). A queue is
//! stopped only after it exceeds its limit, so the excess is at most one segment.

use crate::time::{MILLISECOND, SECOND, Span, Time};

/// The limit of one transmit queue. Bytes are [`Segment::frame_bytes`](crate::segment::Segment::frame_bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteQueueLimit {
    /// No limit, as with a driver that does not support BQL, for example veth.
    Off,
    Dynamic(Dql),
}

impl ByteQueueLimit {
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

    #[inline]
    pub const fn queued(&mut self, bytes: u64) {
        match self {
            Self::Off => {}
            Self::Dynamic(dql) => dql.queued(bytes),
        }
    }

    /// Handles a completion round of the driver, which found `bytes` sent: the sum over the sent segments.
    #[inline]
    pub fn completed(&mut self, bytes: u64, now: Time) {
        match self {
            Self::Off => {}
            Self::Dynamic(dql) => dql.completed(bytes, now),
        }
    }
}

/// Settings of a [`Dql`]. The first three are in sysfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DqlConfig {
    /// `limit_min` in bytes.
    pub smallest_limit: u64,
    /// `limit_max` in bytes; not less than `smallest_limit`.
    pub largest_limit: u64,
    /// `hold_time`: how long slack must last before the limit shrinks.
    pub hold: Span,
    /// The kernel's clock tick, the unit of the hold time; 0 counts as 1 ps.
    pub jiffy: Span,
}

impl Default for DqlConfig {
    /// Returns the kernel's settings: no smallest limit, `DQL_MAX_LIMIT`
    /// (include/linux/dynamic_queue_limits.h), a hold time of `HZ` jiffies (`netdev_init_one_queue`,
    /// net/core/dev.c), and `CONFIG_HZ=250`.
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

/// Dynamic queue limits: the smallest limit with which the ring does not become empty between two
/// completion rounds (lib/dynamic_queue_limits.c).
///
/// Counters have 64 bits. The kernel's counters have 32 bits and wrap around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dql {
    config: DqlConfig,
    limit: u64,
    /// Bytes queued (`num_queued`) and completed (`num_completed`) since the start.
    queued: u64,
    completed: u64,
    /// The stack may enqueue until `queued` exceeds this value (`adj_limit`).
    available_to: u64,
    /// Bytes of the last enqueue (`last_obj_cnt`).
    last_segment: u64,
    previous: Round,
    /// Smallest slack since the time in `slack_since_jiffies` (`lowest_slack`, `slack_start_time`).
    least_slack: u64,
    slack_since_jiffies: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Round {
    /// Bytes by which the queue exceeded the limit (`prev_ovlimit`).
    over_limit: u64,
    /// Bytes queued since the start (`prev_num_queued`).
    queued: u64,
    /// Size in bytes of the last segment before the round (`prev_last_obj_cnt`).
    last_segment: u64,
}

impl Dql {
    /// Creates an empty queue. Its limit is 0 until the first completion, so it accepts one segment at a
    /// time.
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

    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the number of bytes that are queued but not completed.
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

    /// Records an enqueued segment (`dql_queued`).
    #[inline]
    pub const fn queued(&mut self, bytes: u64) {
        self.last_segment = bytes;
        self.queued += bytes;
    }

    /// Handles a completion round that found this many bytes sent (`dql_completed`). An empty round has no
    /// effect, as in `netdev_tx_completed_queue`.
    pub fn completed(&mut self, bytes: u64, now: Time) {
        if bytes == 0 {
            return;
        }
        let in_flight = self.in_flight();
        debug_assert!(bytes <= in_flight, "more is completed than was queued");
        let bytes = bytes.min(in_flight);
        let completed = self.completed + bytes;
        let left = in_flight - bytes;
        // Bytes that were queued after the previous round and have already been sent.
        let passed_through = completed.saturating_sub(self.previous.queued);
        let over_limit = in_flight.saturating_sub(self.limit);
        let jiffies = now.0 / self.config.jiffy.max(1);

        // All bytes queued at the previous round have been sent. The condition also holds if no later
        // byte has been sent, because the later bytes may have been queued after the ring became empty
        // (`AFTER_EQ`, since Linux 3.5).
        let previous_left = completed >= self.previous.queued;
        // The limit blocked segments, and the ring became empty or may have become empty.
        let starved = (over_limit > 0 && left == 0) || (self.previous.over_limit > 0 && previous_left);
        // The ring was never empty: some bytes of the previous round are still unsent. (The kernel also
        // checks whether the previous round left bytes, which follows from this condition.)
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
            // An excess over the old limit does not count against the new limit.
            over_limit: if limit == self.limit { over_limit } else { 0 },
            queued: self.queued,
            last_segment: self.last_segment,
        };
        self.limit = limit;
        self.completed = completed;
        self.available_to = completed + limit;
    }

    /// Returns the slack: the bytes of the limit that this round did not need. The round completed
    /// `bytes`.
    ///
    /// Slack is the larger of two numbers:
    /// - The bytes of the limit and of the excess over the limit, beyond twice the completed bytes.
    /// - If the previous round's last segment exceeded the limit: the part of the segment within the limit.
    ///   With a limit smaller by this part, the queue would also have accepted the segment.
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
        // The queue exceeds the limit of 0 and is empty: the limit grows by the 1514 completed bytes.
        queue.completed(1_514, START);
        assert_eq!(queue.limit(), 1_514);

        queue.queued(1_514);
        assert!(queue.may_enqueue());
        queue.queued(1_514);
        assert!(!queue.may_enqueue());
        // The queue exceeds its limit and is empty again: 1514 + 3028.
        queue.completed(3_028, START);
        assert_eq!(queue.limit(), 4_542);
        assert_eq!(queue.in_flight(), 0);

        for available in [true, true, true, false] {
            queue.queued(1_514);
            assert_eq!(queue.may_enqueue(), available);
        }
        // The queue exceeds its limit by 1514 but is not empty. The excess of the previous round does
        // not count, because the limit has changed since. The limit does not change now.
        queue.completed(1_514, START);
        assert_eq!(queue.limit(), 4_542);
        assert!(queue.may_enqueue());
        // The previous round exceeded the limit by 1514, and all bytes of that round have been sent.
        // The ring may have been empty before the next enqueue: 4542 + 0 + 1514.
        queue.queued(1_514);
        assert!(!queue.may_enqueue());
        queue.completed(4_542, START);
        assert_eq!(queue.limit(), 6_056);
        // The 1514 bytes queued since the round remain. Of 6056 further bytes, 1514 exceed the limit.
        for available in [true, true, true, false] {
            queue.queued(1_514);
            assert_eq!(queue.may_enqueue(), available);
        }
        // The limit has just changed, so the previous round does not count as exceeding it.
        queue.completed(1_514, START);
        assert_eq!(queue.limit(), 6_056);
        // One more segment is queued after the round, then all bytes complete: 6056 + 1514 + 1514.
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
        // 10 000 + 1000 - 2 * 3000 = 5000 is the smallest slack. The hold time ends one jiffy later.
        queue.queued(1_000);
        queue.completed(3_000, Time(SECOND));
        assert_eq!(queue.limit(), 10_000);
        // 10 000 + 1000 - 2 * 2000 = 7000 is larger, so the slack stays 5000.
        queue.queued(1_000);
        queue.queued(1_000);
        queue.completed(2_000, Time(SECOND + 4 * MILLISECOND));
        assert_eq!(queue.limit(), 5_000);
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
        // Of the second 8000 bytes, 2000 bytes are within the limit and 6000 bytes exceed it.
        queue.queued(8_000);
        queue.queued(8_000);
        queue.completed(1_000, START);
        // 10 000 + 6000 - 2 * 7600 = 800 bytes are beyond twice the round. The 2000 bytes are more.
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
        // 10 000 - 2 * 4000 = 2000 would be slack, but the ring was empty at the previous round.
        queue.completed(4_000, Time(2 * SECOND));
        assert_eq!(queue.limit(), 10_000);
        // The round empties the queue, so there is no slack to measure.
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
