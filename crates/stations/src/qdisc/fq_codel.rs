//! `fq_codel` (`net/sched/sch_fq_codel.c`; RFC 8290).
//!
//! Not modelled: the memory limit, explicit congestion notification, filters.

use super::codel::{Codel, CodelParameters, CodelQueue, Timed};
use super::queue::{Backlog, Item, List, NONE, Pool};
use super::rounds::{Ring, Turn, ring_member};
use super::{Dequeued, ETHERNET_FRAME_BYTES, KindError, require};
use crate::segment::Segment;
use crate::time::{MILLISECOND, Span, Time};

/// Smallest quantum in bytes (`fq_codel_change`).
const MIN_QUANTUM: u32 = 256;
/// Maximum number of segments that a full qdisc drops together (`drop_batch_size`).
const DROP_BATCH: u32 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FqCodelConfig {
    /// Limit of all queues together in segments.
    pub limit: u32,
    /// Number of queues. Flows are hashed to the queues.
    pub flows: u32,
    /// Bytes per round of a flow.
    pub quantum: u32,
    /// Acceptable standing delay in picoseconds.
    pub target: Span,
    /// Duration of standing delay in picoseconds before segments are dropped.
    pub interval: Span,
}

impl Default for FqCodelConfig {
    fn default() -> Self {
        Self {
            limit: 10_240,
            flows: 1024,
            quantum: ETHERNET_FRAME_BYTES,
            target: 5 * MILLISECOND,
            interval: 100 * MILLISECOND,
        }
    }
}

impl FqCodelConfig {
    pub(super) fn check(&self) -> Result<(), KindError> {
        require("fq_codel", "limit", "at least 1", u64::from(self.limit), self.limit >= 1)?;
        require(
            "fq_codel",
            "flows",
            "1 to 65536",
            u64::from(self.flows),
            (1..=65_536).contains(&self.flows),
        )?;
        require("fq_codel", "quantum", "at least 256", u64::from(self.quantum), self.quantum >= MIN_QUANTUM)
    }
}

#[derive(Clone, Debug)]
struct Flow {
    turn: Turn,
    queue: List,
    codel: Codel,
    /// Whether the flow is on the list of new flows or on the list of old flows.
    listed: bool,
}

ring_member!(Flow);

/// The segments and backlogs of all flows. CoDel's dequeue accesses only this data, the flow's queue and its
/// own state.
#[derive(Clone, Debug)]
struct Store {
    pool: Pool<Timed>,
    /// Bytes of each flow. The array is separate, because a full qdisc scans it.
    bytes: Vec<u64>,
    backlog: Backlog,
}

impl Store {
    fn pop(&mut self, queue: &mut List, index: usize) -> Option<Timed> {
        let timed = self.pool.pop_front(queue)?;
        self.bytes[index] -= u64::from(timed.item.bytes);
        self.backlog.remove(&timed.item);
        Some(timed)
    }
}

struct FlowQueue<'a> {
    store: &'a mut Store,
    queue: &'a mut List,
    index: usize,
    dropped: &'a mut Vec<Segment>,
}

impl CodelQueue for FlowQueue<'_> {
    fn pop(&mut self) -> Option<Timed> {
        self.store.pop(self.queue, self.index)
    }

    fn drop(&mut self, timed: Timed) {
        self.dropped.push(timed.item.segment);
    }

    fn is_short(&self) -> bool {
        // Like the kernel's call of `codel_dequeue`: compare the backlog of all flows with the device's
        // MTU.
        self.store.backlog.bytes <= u64::from(ETHERNET_FRAME_BYTES)
    }
}

#[derive(Clone, Debug)]
pub(super) struct FqCodel {
    limit: usize,
    parameters: CodelParameters,
    flows: Vec<Flow>,
    store: Store,
    new_flows: Ring,
    old_flows: Ring,
}

impl FqCodel {
    pub(super) fn new(config: &FqCodelConfig) -> Self {
        let flow =
            Flow { turn: Turn::new(config.quantum), queue: List::EMPTY, codel: Codel::NEW, listed: false };
        Self {
            limit: config.limit as usize,
            parameters: CodelParameters { target: config.target, interval: config.interval },
            flows: vec![flow; config.flows as usize],
            store: Store {
                pool: Pool::new(),
                bytes: vec![0; config.flows as usize],
                backlog: Backlog::default(),
            },
            new_flows: Ring::EMPTY,
            old_flows: Ring::EMPTY,
        }
    }

    pub(super) fn enqueue(&mut self, now: Time, segment: Segment, dropped: &mut Vec<Segment>) {
        // `reciprocal_scale`.
        let index = ((u64::from(segment.hash) * self.flows.len() as u64) >> 32) as usize;
        self.enqueue_in(now, index, segment);
        if self.store.backlog.segments > self.limit {
            self.drop_from_fattest(dropped);
        }
    }

    /// Enqueues to one queue, and ignores the limit.
    pub(super) fn enqueue_in(&mut self, now: Time, index: usize, segment: Segment) {
        let item = Item::from(segment);
        let flow = &mut self.flows[index];
        self.store.pool.push_back(&mut flow.queue, Timed { item, enqueued: now });
        self.store.bytes[index] += u64::from(item.bytes);
        self.store.backlog.add(&item);
        if !flow.listed {
            flow.listed = true;
            let quantum = flow.turn.quantum();
            flow.turn.set_credit(quantum);
            self.new_flows.push(&mut self.flows, index as u32);
        }
    }

    /// Returns whether the queue's flow is on neither list. Such a flow has no segments.
    pub(super) fn is_unused(&self, index: usize) -> bool {
        !self.flows[index].listed
    }

    /// Returns the bytes in the largest queue.
    pub(super) fn largest(&self) -> u64 {
        self.store.bytes.iter().copied().max().unwrap_or(0)
    }

    pub(super) fn take_from_largest(&mut self) -> Option<Segment> {
        let (index, _) = self.store.bytes.iter().enumerate().max_by_key(|(_, bytes)| **bytes)?;
        self.store.pop(&mut self.flows[index].queue, index).map(|timed| timed.item.segment)
    }

    pub(super) fn dequeue(&mut self, now: Time, dropped: &mut Vec<Segment>) -> Dequeued {
        while let Some((index, new)) = self.next_flow() {
            let flow = &mut self.flows[index as usize];
            let mut queue =
                FlowQueue { store: &mut self.store, queue: &mut flow.queue, index: index as usize, dropped };
            if let Some(timed) = flow.codel.dequeue(now, self.parameters, &mut queue) {
                flow.turn.charge(timed.item.bytes);
                return Dequeued::Segment(timed.item.segment);
            }
            // A new flow without segments moves behind the old flows. Otherwise the flow could starve
            // them by returning as a new flow.
            if new {
                self.new_flows.pop(&mut self.flows);
            } else {
                self.old_flows.pop(&mut self.flows);
            }
            if new && !self.old_flows.is_empty() {
                self.old_flows.push(&mut self.flows, index);
            } else {
                self.flows[index as usize].listed = false;
            }
        }
        Dequeued::Empty
    }

    pub(super) fn len(&self) -> usize {
        self.store.backlog.segments
    }

    pub(super) fn backlog_bytes(&self) -> u64 {
        self.store.backlog.bytes
    }

    /// Returns the next flow, and whether it is on the list of new flows.
    fn next_flow(&mut self) -> Option<(u32, bool)> {
        while let Some(front) = self.new_flows.front(&self.flows) {
            if self.new_flows.credit(&self.flows[front as usize]) > 0 {
                return Some((front, true));
            }
            self.new_flows.pop(&mut self.flows);
            self.flows[front as usize].turn.refill();
            self.old_flows.push(&mut self.flows, front);
        }
        self.old_flows.advance(&mut self.flows, |_| 1).map(|front| (front, false))
    }

    /// Drops half of the largest queue, up to a batch, from its head (`fq_codel_drop`).
    fn drop_from_fattest(&mut self, dropped: &mut Vec<Segment>) {
        let (mut index, mut largest) = (NONE as usize, 0);
        for (candidate, bytes) in self.store.bytes.iter().enumerate() {
            if *bytes > largest {
                (index, largest) = (candidate, *bytes);
            }
        }
        let Some(flow) = self.flows.get_mut(index) else { return };
        let (mut count, mut bytes) = (0, 0);
        while let Some(timed) = self.store.pop(&mut flow.queue, index) {
            dropped.push(timed.item.segment);
            count += 1;
            bytes += u64::from(timed.item.bytes);
            if count >= DROP_BATCH || bytes >= largest / 2 {
                break;
            }
        }
        flow.codel.count = flow.codel.count.wrapping_add(count);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used)]

    use super::super::testing::{drain, segment};
    use super::super::{Kind, Qdisc};
    use super::*;

    fn fq_codel(config: FqCodelConfig) -> Qdisc {
        Qdisc::new(&Kind::FqCodel(config), 0).expect("valid")
    }

    fn fill(qdisc: &mut Qdisc, flow: u32, count: u64, payload: u32) {
        for sequence in 0..count {
            assert_eq!(qdisc.enqueue(Time::ZERO, segment(flow, sequence, payload)), None);
        }
    }

    #[test]
    fn new_flows_overtake_old_ones() {
        let mut qdisc = fq_codel(FqCodelConfig::default());
        fill(&mut qdisc, 1, 4, 1448);
        let mut order = Vec::new();
        for _ in 0..2 {
            if let Dequeued::Segment(segment) = qdisc.dequeue(Time::ZERO) {
                order.push((segment.flow, segment.sequence));
            }
        }
        // Flow 1 has used two quanta: one as a new flow and one as an old flow. Flow 2 is served before
        // flow 1 as a new flow. It is also served next as an old flow, because flow 1 lacks credit.
        fill(&mut qdisc, 2, 2, 1448);
        order.extend(drain(&mut qdisc, Time::ZERO));
        assert_eq!(order, [(1, 0), (1, 1), (2, 0), (2, 1), (1, 2), (1, 3)]);
    }

    #[test]
    fn a_full_qdisc_halves_its_fattest_flow() {
        let mut qdisc = fq_codel(FqCodelConfig { limit: 10, ..FqCodelConfig::default() });
        fill(&mut qdisc, 1, 8, 1448);
        fill(&mut qdisc, 2, 2, 1448);
        let mut dropped = Vec::new();
        dropped.extend(qdisc.enqueue(Time::ZERO, segment(3, 0, 1448)));
        dropped.extend(std::iter::from_fn(|| qdisc.pop_dropped()));
        let mut sequences: Vec<u64> = dropped.iter().map(|segment| segment.sequence).collect();
        sequences.sort_unstable();
        assert_eq!((dropped[0].flow, sequences), (1, vec![0, 1, 2, 3]));
        assert_eq!(qdisc.len(), 7);
    }

    #[test]
    fn a_batch_is_64_segments() {
        let mut qdisc = fq_codel(FqCodelConfig { limit: 1000, ..FqCodelConfig::default() });
        fill(&mut qdisc, 1, 1000, 1448);
        assert!(qdisc.enqueue(Time::ZERO, segment(1, 1000, 1448)).is_some());
        assert_eq!(std::iter::from_fn(|| qdisc.pop_dropped()).count(), 63);
        assert_eq!(qdisc.len(), 1001 - 64);
    }

    #[test]
    fn codel_drops_from_a_standing_queue_only() {
        let mut qdisc = fq_codel(FqCodelConfig::default());
        fill(&mut qdisc, 1, 400, 1448);
        let (mut sent, mut dropped) = (0, 0);
        for millisecond in 1..=1000 {
            // Flow 2 enqueues one segment at a time, and never has a standing queue.
            let now = Time(millisecond * MILLISECOND);
            assert_eq!(qdisc.enqueue(now, segment(2, millisecond, 1448)), None);
            for _ in 0..2 {
                sent += u32::from(matches!(qdisc.dequeue(now), Dequeued::Segment(_)));
            }
            while let Some(segment) = qdisc.pop_dropped() {
                assert_eq!(segment.flow, 1);
                dropped += 1;
            }
        }
        assert!(dropped >= 4, "{dropped}");
        assert_eq!(sent + dropped + qdisc.len() as u32, 1400);
    }
}
