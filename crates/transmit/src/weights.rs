//! Dynamic queue weights (Titan, USENIX ATC 2017, section 3.2): smoothed weights of the queues.
//!
//! A scheduler that serves queues round robin is fair to queues. To be fair to flows, the scheduler
//! must serve a queue in proportion to the sum of its flow weights. The queue choice maintains this
//! sum. [`WeightFilter`] smooths the sum, and [`quanta`] converts it to the credits of a deficit round
//! robin scheduler.
//!
//! Two simple approaches fail on a real kernel:
//!
//! - **Unsmoothed sums.** A flow that is idle for a moment leaves its queue's sum. A scheduler that
//!   follows immediately takes credit from the remaining flows, and each change costs time. Sums are
//!   therefore averaged over time. The settled weight changes only after the average clearly differs.
//! - **Large credits.** A queue uses a credit of several packets only while it holds as many packets.
//!   TCP small queues keep about two segments of each flow below the socket. The queue with the
//!   smallest weight above 0 therefore gets a credit of one largest packet, and the other queues get
//!   multiples of this credit. With twice the credits for all queues, the weights have less effect.

/// Averages queue weights over time.
///
/// Each queue's average follows its weight exponentially. The settled weight, a whole number, follows
/// the average if they differ by more than three quarters. A short pause of a flow or a single late
/// sample therefore has no effect.
#[derive(Clone, Debug)]
pub struct WeightFilter {
    time_constant_ns: u64,
    averages: Vec<f64>,
    settled: Vec<u32>,
    sampled_ns: Option<u64>,
}

/// Distance between average and settled weight that causes a change, in units of weight.
const LEAVING: f64 = 0.75;

impl WeightFilter {
    /// Creates a filter for empty queues. `time_constant_ns` is the time constant of the average; 0
    /// disables smoothing.
    #[must_use]
    pub fn new(queues: usize, time_constant_ns: u64) -> Self {
        Self { time_constant_ns, averages: vec![0.0; queues], settled: vec![0; queues], sampled_ns: None }
    }

    /// Records the sums of flow weights at `now_ns` of a monotonic clock. Missing queues count as
    /// empty. Returns whether a settled weight changed. The first sample is not smoothed.
    pub fn sample(&mut self, now_ns: u64, weights: &[u32]) -> bool {
        let elapsed = self.sampled_ns.replace(now_ns).map(|before| now_ns.saturating_sub(before));
        let share = match elapsed {
            Some(elapsed) if self.time_constant_ns > 0 => {
                1.0 - (-(elapsed as f64) / self.time_constant_ns as f64).exp()
            }
            _ => 1.0,
        };
        let mut changed = false;
        for (queue, (average, settled)) in self.averages.iter_mut().zip(&mut self.settled).enumerate() {
            let weight = weights.get(queue).copied().unwrap_or(0);
            *average += (f64::from(weight) - *average) * share;
            if (*average - f64::from(*settled)).abs() > LEAVING {
                let rounded = average.round() as u32;
                changed |= rounded != *settled;
                *settled = rounded;
            }
        }
        changed
    }

    /// Returns the settled weight of each queue; 0 without flows.
    #[must_use]
    pub fn settled(&self) -> &[u32] {
        &self.settled
    }
}

/// Credits of a deficit round robin scheduler, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    /// Credit per round of the queue with the smallest weight above 0: the largest packet of the queue.
    pub base: u32,
    /// The scheduler's maximum credit.
    pub most: u32,
}

/// Returns the credit of each queue for its settled weight:
///
/// - The queue with the smallest weight above 0 and queues without flows get [`Credits::base`].
/// - Other queues get proportionally more, at most [`Credits::most`].
///
/// The second value tells whether the maximum limited a credit. The flows of such a queue get less than
/// their share.
#[must_use]
pub fn quanta(weights: &[u32], credits: Credits) -> (Vec<u32>, bool) {
    let lightest = weights.iter().copied().filter(|weight| *weight > 0).min().unwrap_or(1);
    let most = u64::from(credits.most.max(1));
    let mut cut = false;
    let quanta = weights
        .iter()
        .map(|weight| {
            let wanted = u64::from(credits.base) * u64::from((*weight).max(lightest)) / u64::from(lightest);
            cut |= wanted > most;
            wanted.clamp(1, most) as u32
        })
        .collect();
    (quanta, cut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_first_sample_counts_at_once() {
        let mut filter = WeightFilter::new(3, 50 * MS);
        assert!(filter.sample(0, &[2, 1, 0]));
        assert_eq!(filter.settled(), [2, 1, 0]);
        assert!(!filter.sample(MS, &[2, 1, 0]));
    }

    #[test]
    fn a_pause_changes_nothing_and_a_departure_does() {
        let mut filter = WeightFilter::new(1, 50 * MS);
        filter.sample(0, &[2]);
        // The flow is idle in one of five samples, so the average stays above 1.25.
        for tick in 1..1000 {
            let weight = if tick % 5 == 0 { 1 } else { 2 };
            assert!(!filter.sample(tick * 10 * MS, &[weight]), "at tick {tick}");
        }
        // The flow ends: 1 + exp(-t/50 ms) < 1.25 after at most 50 ms * ln 4 = 70 ms.
        let gone = 10_000 * MS;
        filter.sample(gone, &[1]);
        for tick in 1..=7 {
            filter.sample(gone + tick * 10 * MS, &[1]);
        }
        assert_eq!(filter.settled(), [1]);
    }

    #[test]
    fn without_a_time_constant_it_follows_at_once() {
        let mut filter = WeightFilter::new(2, 0);
        filter.sample(0, &[1, 1]);
        assert!(filter.sample(1, &[5, 0]));
        assert_eq!(filter.settled(), [5, 0]);
    }

    #[test]
    fn queues_that_are_missing_are_empty() {
        let mut filter = WeightFilter::new(2, 0);
        filter.sample(0, &[1]);
        assert_eq!(filter.settled(), [1, 0]);
    }

    const CREDITS: Credits = Credits { base: 68_572, most: 1 << 30 };

    #[test]
    fn the_lightest_queue_gets_one_packet() {
        assert_eq!(quanta(&[1, 2, 0, 3], CREDITS), (vec![68_572, 137_144, 68_572, 205_716], false));
        assert_eq!(quanta(&[6, 6, 6, 6], CREDITS), (vec![68_572; 4], false));
        assert_eq!(quanta(&[4, 6], CREDITS), (vec![68_572, 102_858], false));
        assert_eq!(quanta(&[0, 0], CREDITS), (vec![68_572; 2], false));
    }

    #[test]
    fn what_is_cut_is_told() {
        let small = Credits { base: 1000, most: 1500 };
        assert_eq!(quanta(&[1, 2], small), (vec![1000, 1500], true));
        assert_eq!(quanta(&[u32::MAX, 1], Credits { base: u32::MAX, most: u32::MAX }).0[0], u32::MAX);
    }

    proptest! {
        #[test]
        fn credits_are_in_proportion(weights in proptest::collection::vec(0_u32..1000, 1..64)) {
            let (quanta, cut) = quanta(&weights, Credits { base: 68_572, most: u32::MAX });
            prop_assert!(!cut);
            let lightest = weights.iter().copied().filter(|weight| *weight > 0).min().unwrap_or(1);
            for (weight, quantum) in weights.iter().zip(&quanta) {
                let exact = 68_572.0 * f64::from((*weight).max(lightest)) / f64::from(lightest);
                prop_assert!((f64::from(*quantum) - exact).abs() <= 1.0);
            }
        }

        #[test]
        fn a_constant_weight_settles_exactly(
            before in 0_u32..100, weight in 0_u32..100, tau_ms in 0_u64..200,
        ) {
            let mut filter = WeightFilter::new(1, tau_ms * MS);
            filter.sample(0, &[before]);
            for tick in 1..500 {
                filter.sample(tick * 10 * MS, &[weight]);
            }
            prop_assert_eq!(filter.settled(), [weight]);
        }
    }
}
