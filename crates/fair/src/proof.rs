//! Checks that the device follows the choices.
//!
//! A driver may select the queue itself (`ndo_select_queue`). So in each interval, this module sums the bytes
//! of the flows that the choice has on a queue. It compares the sum with the device's counter of that queue.
//! The agreeing part is `Σ min(chosen, counted) / Σ counted`. Bytes with an unknown queue count as agreeing.
//!
//! With few flows and a driver that uses its own hash, the agreeing part is about 1 / number of queues. With
//! many flows on every queue, the choice and the counters always agree, but then the driver's choice has
//! little effect.
//!
//! The meter sees TCP and UDP. An interval is no evidence in three cases:
//! - the device sent few bytes
//! - the meter missed many bytes (IPsec, GRE, fragments, more flows than rows)
//! - the queue is unknown for most bytes: flows that changed their queue, and flows without payload

use std::fmt;

use evenkeel_datapath::Tuple;

use crate::flows::{Sample, sent_between};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The device does not count by queue.
    NoCounters,
    Open,
    /// The device follows the choices. The value is the agreeing part, 0 to 1.
    Followed(f64),
    /// The driver overrules the choices. The value is the agreeing part, 0 to 1.
    Overruled(f64),
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCounters => formatter.write_str("whether it follows the choices is unknown: it does not count by queue"),
            Self::Open => formatter
                .write_str("whether it follows the choices is open: too few intervals have 1 MB from flows that kept their queue"),
            Self::Followed(part) => {
                write!(formatter, "its counters follow the choices ({:.0} % of bytes agree)", part * 100.0)
            }
            Self::Overruled(part) => {
                write!(
                    formatter,
                    "its counters do not follow the choices ({:.0} % of bytes agree)",
                    part * 100.0
                )
            }
        }
    }
}

/// Minimum number of bytes of an interval that counts, because ACKs and single packets may use any
/// queue.
const LEAST_BYTES: u64 = 1_000_000;
/// An interval counts only if the meter saw at least this share of the device's bytes.
const METERED: f64 = 0.8;
/// Number of intervals with the same result that a verdict needs.
const INTERVALS: u32 = 3;
/// Minimum agreeing part if the device follows the choices.
const FOLLOWED: f64 = 0.8;
/// Below this agreeing part, the driver overrules the choices. Between [`OVERRULED`] and [`FOLLOWED`],
/// more intervals are needed.
const OVERRULED: f64 = 0.5;

#[derive(Debug)]
pub(crate) struct Proof {
    last: Option<Sample>,
    followed: u32,
    overruled: u32,
    part: f64,
    verdict: Verdict,
}

impl Proof {
    pub(crate) fn new(counts_by_queue: bool) -> Self {
        let verdict = if counts_by_queue { Verdict::Open } else { Verdict::NoCounters };
        Self { last: None, followed: 0, overruled: 0, part: 0.0, verdict }
    }

    pub(crate) fn verdict(&self) -> Verdict {
        self.verdict
    }

    pub(crate) fn take(&mut self, now: Sample) {
        let before = self.last.replace(now);
        let (Some(before), Some(now)) = (before, &self.last) else { return };
        let Some(part) = agreeing_part(&before, now) else { return };
        self.part = part;
        if part >= FOLLOWED {
            (self.followed, self.overruled) = (self.followed + 1, 0);
        } else if part < OVERRULED {
            (self.followed, self.overruled) = (0, self.overruled + 1);
        }
        if self.followed >= INTERVALS {
            self.verdict = Verdict::Followed(part);
        } else if self.overruled >= INTERVALS {
            self.verdict = Verdict::Overruled(part);
        }
    }
}

/// Returns the agreeing part; `None` if the interval is no evidence, or if the device does not count by
/// queue.
fn agreeing_part(before: &Sample, now: &Sample) -> Option<f64> {
    let counted: Vec<u64> = before
        .queue_bytes
        .as_ref()?
        .iter()
        .zip(now.queue_bytes.as_ref()?)
        .map(|(before, now)| now.saturating_sub(*before))
        .collect();
    let total: u64 = counted.iter().sum();
    if total < LEAST_BYTES || now.incomplete {
        return None;
    }
    let metered_before = if before.epoch == now.epoch { before.metered_bytes } else { 0 };
    let metered = now.metered_bytes.saturating_sub(metered_before);
    if (metered as f64) < METERED * total as f64 {
        return None;
    }
    let mut chosen = vec![0_u64; counted.len()];
    let sent = sent_between(before, now);
    // The queue is unknown for the bytes of moved flows and of flows without payload. These bytes may
    // be on any queue.
    let mut either = metered.saturating_sub(sent.rows.iter().sum());
    let (queues_before, queues) = (before.queues(), now.queues());
    let queue_throughout = |tuple: &Tuple| {
        let queue = *queues.get(tuple)?;
        (queues_before.get(tuple) == Some(&queue)).then_some(queue)
    };
    for (tuple, bytes) in sent.iter() {
        match queue_throughout(tuple).and_then(|queue| chosen.get_mut(queue as usize)) {
            Some(chosen) => *chosen += bytes,
            None => either += bytes,
        }
    }
    // If more than half of the bytes are unknown, the interval is no evidence.
    if either > total / 2 {
        return None;
    }
    let agreed: u64 = chosen.iter().zip(&counted).map(|(chosen, counted)| chosen.min(counted)).sum();
    Some(((agreed + either) as f64 / total as f64).min(1.0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::flows::FlowSample;
    use std::net::IpAddr;

    fn sample(flows: &[(u16, u64, u32)], queues: &[u64]) -> Sample {
        let address = IpAddr::from([192, 0, 2, 1]);
        let tuple = |port| Tuple {
            source: address,
            source_port: port,
            destination: address,
            destination_port: 1,
            protocol: 6,
        };
        Sample {
            metered_bytes: flows.iter().map(|(_, bytes, _)| bytes).sum(),
            queue_bytes: Some(queues.to_vec()),
            ..Sample::of(flows.iter().map(|(port, bytes, queue)| {
                (tuple(*port), FlowSample { bytes: *bytes, queue: Some(*queue) })
            }))
        }
    }

    const MB: u64 = 1_000_000;

    /// Returns the verdict for two flows of 1 MB/s. The choice has them on queues 0 and 1; the device
    /// counts them on `counted`.
    fn judge(counted: [usize; 2], seconds: u64) -> Verdict {
        let mut proof = Proof::new(true);
        for second in 0..=seconds {
            let mut queues = [0; 4];
            for queue in counted {
                queues[queue] += second * MB;
            }
            proof.take(sample(&[(1, second * MB, 0), (2, second * MB, 1)], &queues));
        }
        proof.verdict()
    }

    #[test]
    fn a_device_that_follows_is_told_from_one_that_does_not() {
        assert_eq!(judge([0, 1], 3), Verdict::Followed(1.0));
        assert_eq!(judge([2, 3], 3), Verdict::Overruled(0.0));
        assert_eq!(judge([0, 1], 2), Verdict::Open);
        // One of two flows may be on the expected queue by chance.
        assert_eq!(judge([0, 3], 9), Verdict::Open);
    }

    #[test]
    fn little_traffic_and_flows_that_move_tell_nothing() {
        let quiet = agreeing_part(&sample(&[(1, 0, 0)], &[0, 0]), &sample(&[(1, 900, 0)], &[0, 900]));
        assert_eq!(quiet, None);
        let moved = agreeing_part(&sample(&[(1, 0, 0)], &[0, 0]), &sample(&[(1, 2 * MB, 1)], &[2 * MB, 0]));
        assert_eq!(moved, None);
    }

    /// Returns the verdict after nine intervals of a second.
    fn judge_of(second: impl Fn(u64) -> Sample) -> Verdict {
        let mut proof = Proof::new(true);
        (0..=9).for_each(|number| proof.take(second(number)));
        proof.verdict()
    }

    #[test]
    fn unmetered_traffic_counts_against_no_flow() {
        // IPsec, GRE, fragments: 2 MB/s without a flow.
        assert_eq!(judge_of(|second| sample(&[], &[2 * second * MB, 0])), Verdict::Open);
        // Half of the bytes belong to a flow on the expected queue.
        let half = |second| sample(&[(1, second * MB, 0)], &[second * MB, second * MB]);
        assert_eq!(judge_of(half), Verdict::Open);
        // A receiving host sends only ACKs. The meter counts their bytes, but the choice tracks no flow
        // for them.
        let acks = |second| Sample { metered_bytes: 2 * second * MB, ..sample(&[], &[2 * second * MB, 0]) };
        assert_eq!(judge_of(acks), Verdict::Open);
    }

    #[test]
    fn a_meter_that_overflows_proves_nothing() {
        let elsewhere = |second| sample(&[(1, 2 * second * MB, 0)], &[0, 2 * second * MB]);
        assert_eq!(judge_of(elsewhere), Verdict::Overruled(0.0));
        assert_eq!(judge_of(|second| Sample { incomplete: true, ..elsewhere(second) }), Verdict::Open);
    }

    #[test]
    fn without_counters_there_is_no_proof() {
        let mut proof = Proof::new(false);
        proof.take(Sample::default());
        proof.take(Sample::default());
        assert_eq!(proof.verdict(), Verdict::NoCounters);
    }
}
