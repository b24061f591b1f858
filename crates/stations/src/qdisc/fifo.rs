//! `pfifo` and `bfifo` (`net/sched/sch_fifo.c`), `pfifo_fast` (`net/sched/sch_generic.c`).

use super::Dequeued;
use super::queue::{Item, Queue};
use crate::segment::Segment;

/// One queue with a limit in segments or in bytes. A full queue drops new segments.
#[derive(Clone, Debug)]
pub(super) struct Fifo {
    queue: Queue,
    limit_segments: usize,
    limit_bytes: u64,
}

impl Fifo {
    pub(super) fn with_segments(limit: u32) -> Self {
        Self { queue: Queue::default(), limit_segments: limit as usize, limit_bytes: u64::MAX }
    }

    pub(super) fn with_bytes(limit: u64) -> Self {
        Self { queue: Queue::default(), limit_segments: usize::MAX, limit_bytes: limit }
    }

    pub(super) fn enqueue(&mut self, segment: Segment, dropped: &mut Vec<Segment>) {
        let item = Item::from(segment);
        let fits = self.queue.bytes().saturating_add(u64::from(item.bytes)) <= self.limit_bytes;
        if self.queue.len() < self.limit_segments && fits {
            self.queue.push(item);
        } else {
            dropped.push(segment);
        }
    }

    pub(super) fn dequeue(&mut self) -> Dequeued {
        self.queue.pop().map_or(Dequeued::Empty, |item| Dequeued::Segment(item.segment))
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn backlog_bytes(&self) -> u64 {
        self.queue.bytes()
    }
}

/// Bands of [`PfifoFast`] (`PFIFO_FAST_BANDS`).
const BANDS: usize = 3;

/// Three bands in strict order that share one limit, as in the kernel until 4.15. In later kernels,
/// each band has its own limit.
#[derive(Clone, Debug)]
pub(super) struct PfifoFast {
    bands: [Queue; BANDS],
    segments: usize,
    limit: usize,
}

impl PfifoFast {
    pub(super) fn new(limit: u32) -> Self {
        Self { bands: Default::default(), segments: 0, limit: limit as usize }
    }

    pub(super) fn enqueue(&mut self, segment: Segment, dropped: &mut Vec<Segment>) {
        if self.segments >= self.limit {
            dropped.push(segment);
            return;
        }
        self.segments += 1;
        self.bands[usize::from(segment.band).min(BANDS - 1)].push(Item::from(segment));
    }

    pub(super) fn dequeue(&mut self) -> Dequeued {
        let Some(item) = self.bands.iter_mut().find_map(Queue::pop) else { return Dequeued::Empty };
        self.segments -= 1;
        Dequeued::Segment(item.segment)
    }

    pub(super) fn len(&self) -> usize {
        self.segments
    }

    pub(super) fn backlog_bytes(&self) -> u64 {
        self.bands.iter().map(Queue::bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used)]

    use super::super::testing::{drain, segment};
    use super::super::{Kind, Qdisc};
    use super::*;
    use crate::time::Time;

    #[test]
    fn pfifo_drops_the_newcomer() {
        let mut qdisc = Qdisc::new(&Kind::Pfifo { limit: 2 }, 0).expect("valid");
        assert_eq!(qdisc.enqueue(Time::ZERO, segment(1, 0, 1000)), None);
        assert_eq!(qdisc.enqueue(Time::ZERO, segment(2, 0, 1000)), None);
        assert_eq!(qdisc.enqueue(Time::ZERO, segment(3, 0, 1000)), Some(segment(3, 0, 1000)));
        assert_eq!(drain(&mut qdisc, Time::ZERO), [(1, 0), (2, 0)]);
    }

    #[test]
    fn bfifo_counts_the_headers_of_every_packet() {
        // Two packets have 2000 + 2 * 66 bytes. The second segment fits exactly. With one byte more, it
        // does not fit.
        let first = Segment { mss: 1000, ..segment(1, 0, 2000) };
        for (limit, kept) in [(2132 + 166, true), (2132 + 165, false)] {
            let mut qdisc = Qdisc::new(&Kind::Bfifo { limit }, 0).expect("valid");
            assert_eq!(qdisc.enqueue(Time::ZERO, first), None);
            assert_eq!(qdisc.backlog_bytes(), 2132);
            assert_eq!(qdisc.enqueue(Time::ZERO, segment(2, 0, 100)).is_none(), kept, "limit {limit}");
        }
    }

    #[test]
    fn pfifo_fast_is_strict_and_has_one_limit() {
        let mut qdisc = Qdisc::new(&Kind::PfifoFast { limit: 4 }, 0).expect("valid");
        for (sequence, band) in [(0, 2), (1, 1), (2, 200), (3, 0)] {
            assert_eq!(qdisc.enqueue(Time::ZERO, Segment { band, ..segment(1, sequence, 500) }), None);
        }
        assert!(qdisc.enqueue(Time::ZERO, segment(1, 4, 500)).is_some());
        assert_eq!(qdisc.len(), 4);
        assert_eq!(drain(&mut qdisc, Time::ZERO), [(1, 3), (1, 1), (1, 0), (1, 2)]);
        assert_eq!(qdisc.backlog_bytes(), 0);
    }
}
