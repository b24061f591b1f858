//! Round-trip time: smoothed value, deviation, minimum, retransmission timeout.

use crate::time::{SECOND, Span};

/// Timeout before the first sample (RFC 6298, section 2.1; `TCP_TIMEOUT_INIT`).
const INITIAL_TIMEOUT: Span = SECOND;
/// Longest timeout (`TCP_RTO_MAX`).
const LONGEST_TIMEOUT: Span = 120 * SECOND;

/// The estimator of `tcp_rtt_estimator` (net/ipv4/tcp_input.c). It is RFC 6298 with two changes:
///
/// - The margin of the timeout follows the largest deviation within a round trip. The margin grows
///   immediately. At the end of a round trip, it decays by a quarter of the difference.
/// - For a sample far *below* the smoothed value, only an eighth of the difference counts for the deviation.
#[derive(Clone, Debug)]
pub(super) struct RoundTrip {
    /// Smoothed RTT times 8, so that the gain of 1/8 loses no precision; 0 before the first sample.
    smoothed_8: u64,
    /// Mean deviation times 4.
    deviation_4: u64,
    largest_deviation_4: u64,
    /// Margin of the timeout above the smoothed RTT.
    variance: Span,
    /// The byte whose acknowledgement ends the round trip.
    round_end: u64,
    /// Smallest sample; `Span::MAX` before the first sample.
    minimum: Span,
    /// Smallest variance (`tcp_rto_min`).
    floor: Span,
}

impl RoundTrip {
    /// Creates an estimator without samples. `floor` is the smallest margin of the timeout above the
    /// smoothed RTT.
    pub fn new(floor: Span) -> Self {
        Self {
            smoothed_8: 0,
            deviation_4: 0,
            largest_deviation_4: 0,
            variance: floor,
            round_end: 0,
            minimum: Span::MAX,
            floor,
        }
    }

    /// Adds an RTT sample. `unacknowledged` and `next` delimit the data in flight.
    pub fn sample(&mut self, rtt: Span, unacknowledged: u64, next: u64) {
        let rtt = rtt.max(1);
        if self.smoothed_8 == 0 {
            self.smoothed_8 = rtt * 8;
            self.deviation_4 = rtt * 2;
            self.variance = self.deviation_4.max(self.floor);
            self.largest_deviation_4 = self.variance;
            self.round_end = next;
            return;
        }
        let smoothed = self.smoothed_8 / 8;
        let mean_deviation = self.deviation_4 / 4;
        let (error, below) = if rtt < smoothed { (smoothed - rtt, true) } else { (rtt - smoothed, false) };
        self.smoothed_8 = self.smoothed_8 - smoothed + rtt;
        if error > mean_deviation {
            let growth = error - mean_deviation;
            self.deviation_4 += if below { growth / 8 } else { growth };
        } else {
            self.deviation_4 -= mean_deviation - error;
        }
        if self.deviation_4 > self.largest_deviation_4 {
            self.largest_deviation_4 = self.deviation_4;
            self.variance = self.variance.max(self.largest_deviation_4);
        }
        if unacknowledged > self.round_end {
            if self.largest_deviation_4 < self.variance {
                self.variance -= (self.variance - self.largest_deviation_4) / 4;
            }
            self.round_end = next;
            self.largest_deviation_4 = self.floor;
        }
    }

    pub fn sample_minimum(&mut self, rtt: Span) {
        self.minimum = self.minimum.min(rtt.max(1));
    }

    /// Returns the smoothed RTT; 0 before the first sample.
    pub fn smoothed(&self) -> Span {
        self.smoothed_8 / 8
    }

    /// Returns the smallest sample; `Span::MAX` before the first sample.
    pub fn minimum(&self) -> Span {
        self.minimum
    }

    /// Returns the retransmission timeout after `backoff` consecutive timeouts.
    pub fn timeout(&self, backoff: u32) -> Span {
        let base = if self.smoothed_8 == 0 { INITIAL_TIMEOUT } else { self.smoothed() + self.variance };
        // With 20 doublings, any base above 115 µs exceeds the longest timeout, so a larger shift has no
        // effect.
        base.saturating_mul(1 << backoff.min(20)).min(LONGEST_TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::MILLISECOND;

    const FLOOR: Span = 200 * MILLISECOND;

    #[test]
    fn the_first_sample_sets_everything() {
        let mut rtt = RoundTrip::new(FLOOR);
        assert_eq!((rtt.smoothed(), rtt.timeout(0)), (0, SECOND));
        rtt.sample(400 * MILLISECOND, 0, 10);
        assert_eq!(rtt.smoothed(), 400 * MILLISECOND);
        // RFC 6298: SRTT + 4 · R/2.
        assert_eq!(rtt.timeout(0), 1200 * MILLISECOND);
    }

    #[test]
    fn a_short_rtt_keeps_the_floor() {
        let mut rtt = RoundTrip::new(FLOOR);
        rtt.sample(MILLISECOND, 0, 10);
        assert_eq!(rtt.timeout(0), 201 * MILLISECOND);
        assert_eq!(rtt.timeout(2), 804 * MILLISECOND);
        assert_eq!(rtt.timeout(60), LONGEST_TIMEOUT);
    }

    #[test]
    fn the_gain_is_an_eighth_and_deviation_grows_by_a_quarter() {
        let mut rtt = RoundTrip::new(0);
        rtt.sample(800, 0, 10);
        // 4 · deviation = 1600, deviation 400.
        rtt.sample(1600, 5, 20);
        assert_eq!(rtt.smoothed(), 900);
        // The error of 800 exceeds the deviation of 400 by 400: 4 · deviation = 2000.
        assert_eq!(rtt.timeout(0), 900 + 2000);
    }

    #[test]
    fn a_sample_far_below_counts_an_eighth() {
        let mut rtt = RoundTrip::new(0);
        rtt.sample(8000, 0, 10);
        for _ in 0..200 {
            rtt.sample(8000, 0, 10);
        }
        let deviation = rtt.deviation_4;
        assert!(deviation < 8, "{deviation}");
        rtt.sample(800, 0, 10);
        assert!(rtt.deviation_4 <= deviation + 7200 / 8);
        rtt.sample_minimum(800);
        assert_eq!(rtt.minimum(), 800);
    }

    #[test]
    fn the_variance_decays_by_a_quarter_a_round_trip() {
        let mut rtt = RoundTrip::new(100);
        rtt.sample(1000, 0, 10);
        assert_eq!(rtt.variance, 2000);
        // At the end of round 1, the largest deviation is still 2000. In round 2 the largest deviation
        // is 100, which is the floor and the deviation of the samples.
        for end in 2..40 {
            for _ in 0..50 {
                rtt.sample(1000, end * 10 - 5, end * 10);
            }
            rtt.sample(1000, end * 10 + 1, end * 10 + 10);
        }
        assert!(rtt.variance < 110, "{}", rtt.variance);
    }
}
