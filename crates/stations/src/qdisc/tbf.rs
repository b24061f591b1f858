//! `tbf`: a token bucket that delays segments (`net/sched/sch_tbf.c`), with the optional second bucket
//! for the peak rate.
//!
//! Tokens are picoseconds; in the kernel, tokens are nanoseconds. Link layer overheads are not
//! modelled.

use super::queue::{Backlog, Item};
use super::rate::{Rate, as_tokens, filled};
use super::{AnyDiscipline, Dequeued, Kind, KindError, require};
use crate::segment::Segment;
use crate::time::Time;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TbfConfig {
    /// Long-run rate, bit/s.
    pub rate: u64,
    /// Depth of the bucket, bytes. The qdisc splits longer GSO segments into packets, and drops longer
    /// packets.
    pub burst: u32,
    pub peak: Option<TbfPeak>,
    /// Discipline of the queue. `tc` creates a `bfifo` with the `limit` of the `tbf`.
    pub inner: Box<Kind>,
}

/// The bucket that bounds the rate within a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TbfPeak {
    /// Rate, bit/s; larger than the long-run rate.
    pub rate: u64,
    /// Depth, bytes: usually one frame.
    pub burst: u32,
}

impl TbfConfig {
    #[must_use]
    pub fn new(rate: u64, burst: u32, inner: Kind) -> Self {
        Self { rate, burst, peak: None, inner: Box::new(inner) }
    }

    pub(super) fn check(&self) -> Result<(), KindError> {
        require("tbf", "rate", "at least 1 bit/s", 0, self.rate >= 1)?;
        require("tbf", "burst", "at least 1 byte", 0, self.burst >= 1)?;
        if let Some(peak) = self.peak {
            require("tbf", "peak rate", "above the rate", peak.rate, peak.rate > self.rate)?;
            require("tbf", "peak burst", "at least 1 byte", 0, peak.burst >= 1)?;
        }
        Ok(())
    }
}

/// Tokens of one bucket, as picoseconds of sending at its rate.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    rate: Rate,
    depth: i64,
    tokens: i64,
}

impl Bucket {
    fn full(rate: u64, burst: u32) -> Self {
        let rate = Rate::new(rate);
        let depth = rate.tokens(u64::from(burst));
        Self { rate, depth, tokens: depth }
    }

    /// Returns the tokens after `elapsed` more time and `bytes` sent. The result is negative if the
    /// bucket does not cover the bytes.
    fn after(&self, elapsed: i64, bytes: u32) -> i64 {
        filled(self.tokens, elapsed, self.depth) - self.rate.tokens(u64::from(bytes))
    }
}

#[derive(Clone, Debug)]
pub(super) struct Tbf {
    bucket: Bucket,
    peak: Option<Bucket>,
    /// Longest segment that the buckets can ever cover, bytes.
    longest: u32,
    /// When the shaper last counted the tokens (`t_c`).
    checkpoint: Time,
    inner: Box<AnyDiscipline>,
    /// The next segment to send. The shaper removes it from the inner qdisc to read its length
    /// (`qdisc_peek_dequeued`).
    head: Option<Item>,
    backlog: Backlog,
    /// Number of dequeues with a segment but too few tokens.
    overlimits: u64,
}

impl Tbf {
    pub(super) fn new(config: &TbfConfig, inner: AnyDiscipline) -> Self {
        Self {
            bucket: Bucket::full(config.rate, config.burst),
            peak: config.peak.map(|peak| Bucket::full(peak.rate, peak.burst)),
            longest: config.peak.map_or(config.burst, |peak| peak.burst.min(config.burst)),
            checkpoint: Time::ZERO,
            inner: Box::new(inner),
            head: None,
            backlog: Backlog::default(),
            overlimits: 0,
        }
    }

    pub(super) fn enqueue(&mut self, now: Time, segment: Segment, dropped: &mut Vec<Segment>) {
        if segment.frame_bytes() <= self.longest {
            self.pass_on(now, segment, dropped);
            return;
        }
        if segment.packets() == 1 || segment.packet(0).frame_bytes() > self.longest {
            dropped.push(segment);
            return;
        }
        for index in 0..segment.packets() {
            self.pass_on(now, segment.packet(index), dropped);
        }
    }

    pub(super) fn dequeue(&mut self, now: Time, dropped: &mut Vec<Segment>) -> Dequeued {
        if self.head.is_none() {
            let dequeued = self.inner.dequeue(now, dropped);
            let Dequeued::Segment(segment) = dequeued else {
                self.recount();
                return dequeued;
            };
            self.head = Some(Item::from(segment));
            self.recount();
        }
        let Some(item) = self.head else { return Dequeued::Empty };
        let elapsed = as_tokens(now.since(self.checkpoint));
        let tokens = self.bucket.after(elapsed, item.bytes);
        let peak_tokens = self.peak.map_or(0, |peak| peak.after(elapsed, item.bytes));
        if tokens < 0 || peak_tokens < 0 {
            self.overlimits += 1;
            return Dequeued::Wait(now + (-tokens.min(peak_tokens)) as u64);
        }
        self.bucket.tokens = tokens;
        if let Some(peak) = &mut self.peak {
            peak.tokens = peak_tokens;
        }
        self.checkpoint = now;
        self.head = None;
        self.recount();
        Dequeued::Segment(item.segment)
    }

    pub(super) fn len(&self) -> usize {
        self.backlog.segments
    }

    pub(super) fn backlog_bytes(&self) -> u64 {
        self.backlog.bytes
    }

    pub(super) fn overlimits(&self, found: &mut Vec<u64>) {
        found.push(self.overlimits);
        self.inner.overlimits(found);
    }

    fn pass_on(&mut self, now: Time, segment: Segment, dropped: &mut Vec<Segment>) {
        self.inner.enqueue(now, segment, dropped);
        self.recount();
    }

    fn recount(&mut self) {
        let head = self.head.map_or(0, |item| item.bytes);
        self.backlog = Backlog {
            segments: self.inner.len() + usize::from(self.head.is_some()),
            bytes: self.inner.backlog_bytes() + u64::from(head),
        };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used)]

    use super::super::Qdisc;
    use super::super::testing::{drain, segment};
    use super::*;
    use crate::time::MICROSECOND;

    /// Creates a shaper of 1 MB/s with a bucket of two frames of 1000 bytes and a queue of four frames.
    fn tbf(peak: Option<TbfPeak>) -> Qdisc {
        let inner = Kind::Bfifo { limit: 4000 };
        let config = TbfConfig { peak, ..TbfConfig::new(8_000_000, 2000, inner) };
        Qdisc::new(&Kind::Tbf(config), 0).expect("valid")
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut qdisc = tbf(None);
        for sequence in 0..4 {
            assert_eq!(qdisc.enqueue(Time::ZERO, segment(1, sequence, 934)), None);
        }
        assert_eq!(drain(&mut qdisc, Time::ZERO), [(1, 0), (1, 1)]);
        let millisecond = 1000 * MICROSECOND;
        assert_eq!(qdisc.dequeue(Time::ZERO), Dequeued::Wait(Time(millisecond)));
        assert_eq!((qdisc.len(), qdisc.backlog_bytes()), (2, 2000));
        assert_eq!(qdisc.dequeue(Time(millisecond - 1)), Dequeued::Wait(Time(millisecond)));
        assert_eq!(drain(&mut qdisc, Time(millisecond)), [(1, 2)]);
        // After 10 ms the bucket holds no more than its depth of 2,000 bytes.
        assert_eq!(drain(&mut qdisc, Time(10 * millisecond)), [(1, 3)]);
        assert_eq!(qdisc.dequeue(Time(10 * millisecond)), Dequeued::Empty);
        for sequence in 4..8 {
            assert_eq!(qdisc.enqueue(Time(10 * millisecond), segment(1, sequence, 934)), None);
        }
        assert_eq!(drain(&mut qdisc, Time(10 * millisecond)), [(1, 4)]);
    }

    #[test]
    fn the_peak_rate_spreads_the_burst() {
        let mut qdisc = tbf(Some(TbfPeak { rate: 80_000_000, burst: 1000 }));
        for sequence in 0..2 {
            assert_eq!(qdisc.enqueue(Time::ZERO, segment(1, sequence, 934)), None);
        }
        assert_eq!(drain(&mut qdisc, Time::ZERO), [(1, 0)]);
        assert_eq!(qdisc.dequeue(Time::ZERO), Dequeued::Wait(Time(100 * MICROSECOND)));
        assert_eq!(drain(&mut qdisc, Time(100 * MICROSECOND)), [(1, 1)]);
    }

    #[test]
    fn long_segments_are_split_and_long_packets_dropped() {
        let mut qdisc = tbf(None);
        let long = Segment { mss: 934, ..segment(1, 100, 4000) };
        // With packets of 1000 bytes, the queue accepts four packets. The fifth packet has 264 + 66
        // bytes.
        let last = Segment { sequence: 100 + 4 * 934, payload: 264, ..long };
        assert_eq!(qdisc.enqueue(Time::ZERO, long), Some(last));
        assert_eq!((qdisc.len(), qdisc.backlog_bytes()), (4, 4000));
        let first = Segment { payload: 934, ..long };
        assert_eq!(qdisc.dequeue(Time::ZERO), Dequeued::Segment(first));
        assert_eq!(qdisc.dequeue(Time::ZERO), Dequeued::Segment(Segment { sequence: 1034, ..first }));
        let jumbo = Segment { mss: 3000, ..segment(1, 0, 3000) };
        assert_eq!(qdisc.enqueue(Time::ZERO, jumbo), Some(jumbo));
    }
}
