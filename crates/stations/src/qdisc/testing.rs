//! Helpers for tests of several disciplines.

use std::collections::BTreeMap;

use super::{Dequeued, Qdisc};
use crate::segment::Segment;
use crate::time::Time;

/// Creates a segment with packets of 1448 bytes. Flows have different hashes.
pub(super) fn segment(flow: u32, sequence: u64, payload: u32) -> Segment {
    let hash = flow.wrapping_mul(0x9e37_79b9);
    Segment { flow, hash, sequence, payload, mss: 1448, ..Segment::default() }
}

/// Dequeues all segments available at `now`. Returns their flows and sequences.
pub(super) fn drain(qdisc: &mut Qdisc, now: Time) -> Vec<(u32, u64)> {
    let next = || match qdisc.dequeue(now) {
        Dequeued::Segment(segment) => Some((segment.flow, segment.sequence)),
        Dequeued::Empty | Dequeued::Wait(_) => None,
    };
    std::iter::from_fn(next).collect()
}

/// Flows that are always backlogged, and the bytes that each has sent.
pub(super) struct Saturated {
    pub(super) qdisc: Qdisc,
    pub(super) now: Time,
    pub(super) sent: BTreeMap<u32, u64>,
}

impl Saturated {
    pub(super) fn new(qdisc: Qdisc, templates: &[Segment], depth: u64) -> Self {
        let mut saturated = Self { qdisc, now: Time::ZERO, sent: BTreeMap::new() };
        for template in templates {
            saturated.sent.insert(template.flow, 0);
            for sequence in 0..depth {
                assert_eq!(saturated.qdisc.enqueue(Time::ZERO, Segment { sequence, ..*template }), None);
            }
        }
        saturated
    }

    /// Dequeues the next segment, waiting if necessary, and enqueues a copy of it.
    pub(super) fn send(&mut self) -> Segment {
        loop {
            match self.qdisc.dequeue(self.now) {
                Dequeued::Segment(segment) => {
                    *self.sent.entry(segment.flow).or_default() += u64::from(segment.frame_bytes());
                    assert_eq!(self.qdisc.enqueue(self.now, segment), None);
                    return segment;
                }
                Dequeued::Wait(time) => {
                    assert!(time > self.now, "waits for {time:?} at {:?}", self.now);
                    self.now = time;
                }
                Dequeued::Empty => unreachable!("segments wait"),
            }
        }
    }

    /// Sends until `time`. Returns the rate of each flow since the start, Mbit/s.
    pub(super) fn rates_after(&mut self, time: Time) -> Vec<f64> {
        while self.now < time {
            self.send();
        }
        self.sent.values().map(|bytes| *bytes as f64 * 8e-6 / self.now.seconds()).collect()
    }
}
