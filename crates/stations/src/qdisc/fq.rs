//! `fq` (`net/sched/sch_fq.c` of Linux 6.8 and later): one queue per flow, in three bands.
//!
//! Not modelled: pacing (segments have no departure time, so no flow is throttled), and the hash of segments
//! without a socket, because each flow is a socket.

use super::queue::{Backlog, Item, List, NONE, Pool};
use super::rounds::{Ring, Turn, ring_member};
use super::{Dequeued, ETHERNET_FRAME_BYTES, KindError, require};
use crate::segment::Segment;
use crate::time::{MILLISECOND, SECOND, Span, Time};

const BANDS: usize = 3;
/// Bytes per round of each band.
const BAND_QUANTA: [i64; BANDS] = [9 << 16, 3 << 16, 1 << 16];
/// Number of chains in the table of flows: 2^`fq_trees_log`. The kernel has trees instead.
const CHAINS: usize = 1024;
/// A flow without segments for longer than this time expires (`FQ_GC_AGE`). The next lookup in its chain
/// removes it.
const FORGET_AFTER: Span = 3 * SECOND;
/// The next segment of a flow that had no segments for longer than this time raises the flow's credit to at
/// least a quantum (`flow_refill_delay`).
const REFILL_AFTER: Span = 40 * MILLISECOND;
/// Largest length of the fast path's queue. A segment takes the fast path while the queues of all flows are
/// empty (`fq_fastpath_check`).
const FAST_PATH_SEGMENTS: u32 = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FqConfig {
    /// Limit of the queues of one band in segments.
    pub limit: u32,
    /// Limit of the queue of one flow in segments.
    pub flow_limit: u32,
    /// Bytes per round of a flow.
    pub quantum: u32,
    /// Bytes that a new flow may send at first.
    pub initial_quantum: u32,
}

impl Default for FqConfig {
    fn default() -> Self {
        Self {
            limit: 10_000,
            flow_limit: 100,
            quantum: 2 * ETHERNET_FRAME_BYTES,
            initial_quantum: 10 * ETHERNET_FRAME_BYTES,
        }
    }
}

impl FqConfig {
    pub(super) fn check(&self) -> Result<(), KindError> {
        let quantum = (1..=1 << 20).contains(&self.quantum);
        require("fq", "quantum", "1 to 1048576", u64::from(self.quantum), quantum)
    }
}

#[derive(Clone, Debug)]
struct Flow {
    turn: Turn,
    queue: List,
    length: u32,
    flow: u32,
    /// Next flow in the chain, or in the list of unused entries.
    next: u32,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The flow is on a list of the band of the segment that activated it. Its band can change only
    /// while it is on no list.
    Listed,
    /// The flow has been on no list since this time.
    Detached(Time),
}

ring_member!(Flow);

#[derive(Clone, Debug)]
struct Band {
    new_flows: Ring,
    old_flows: Ring,
    credit: i64,
    segments: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Fq {
    config: FqConfig,
    chains: Vec<u32>,
    flows: Vec<Flow>,
    unused: u32,
    active: u32,
    bands: [Band; BANDS],
    band: usize,
    /// Queue of the fast path.
    internal: List,
    internal_length: u32,
    pool: Pool<Item>,
    backlog: Backlog,
}

impl Fq {
    pub(super) fn new(config: &FqConfig) -> Self {
        let band = Band { new_flows: Ring::EMPTY, old_flows: Ring::EMPTY, credit: 0, segments: 0 };
        Self {
            config: config.clone(),
            chains: vec![NONE; CHAINS],
            flows: Vec::new(),
            unused: NONE,
            active: 0,
            bands: [band.clone(), band.clone(), band],
            band: 0,
            internal: List::EMPTY,
            internal_length: 0,
            pool: Pool::new(),
            backlog: Backlog::default(),
        }
    }

    pub(super) fn enqueue(&mut self, now: Time, segment: Segment, dropped: &mut Vec<Segment>) {
        let band = usize::from(segment.band).min(BANDS - 1);
        if self.bands[band].segments >= self.config.limit {
            dropped.push(segment);
            return;
        }
        let item = Item::from(segment);
        if self.active == 0 && self.internal_length < FAST_PATH_SEGMENTS {
            self.pool.push_back(&mut self.internal, item);
            self.internal_length += 1;
            self.backlog.add(&item);
            return;
        }
        let index = self.find(now, segment.flow);
        let flow = &mut self.flows[index as usize];
        if flow.length >= self.config.flow_limit {
            dropped.push(segment);
            return;
        }
        self.active += u32::from(flow.length == 0);
        flow.length += 1;
        self.pool.push_back(&mut flow.queue, item);
        self.backlog.add(&item);
        self.bands[band].segments += 1;
        if let State::Detached(since) = flow.state {
            if now.since(since) > REFILL_AFTER {
                let credit = flow.turn.credit().max(flow.turn.quantum());
                flow.turn.set_credit(credit);
            }
            flow.state = State::Listed;
            self.bands[band].new_flows.push(&mut self.flows, index);
        }
    }

    pub(super) fn dequeue(&mut self, now: Time) -> Dequeued {
        if let Some(item) = self.pool.pop_front(&mut self.internal) {
            self.internal_length -= 1;
            self.backlog.remove(&item);
            return Dequeued::Segment(item.segment);
        }
        if self.backlog.segments == 0 {
            return Dequeued::Empty;
        }
        let mut idle_bands = 0;
        while idle_bands < BANDS {
            if self.bands[self.band].credit > 0 {
                if let Some(item) = self.dequeue_band(now) {
                    return Dequeued::Segment(item.segment);
                }
                idle_bands += 1;
            } else {
                // The band may have segments and only lack credit, so it does not count as idle.
                idle_bands = 0;
            }
            self.band = (self.band + 1) % BANDS;
            let quantum = BAND_QUANTA[self.band];
            let band = &mut self.bands[self.band];
            band.credit = (band.credit + quantum).min(quantum);
        }
        Dequeued::Empty
    }

    pub(super) fn len(&self) -> usize {
        self.backlog.segments
    }

    pub(super) fn backlog_bytes(&self) -> u64 {
        self.backlog.bytes
    }

    fn dequeue_band(&mut self, now: Time) -> Option<Item> {
        while let Some((index, new)) = self.next_flow() {
            let flow = &mut self.flows[index as usize];
            if let Some(item) = self.pool.pop_front(&mut flow.queue) {
                flow.turn.charge(item.bytes);
                flow.length -= 1;
                self.active -= u32::from(flow.length == 0);
                self.backlog.remove(&item);
                self.bands[usize::from(item.segment.band).min(BANDS - 1)].segments -= 1;
                self.bands[self.band].credit -= i64::from(item.bytes);
                return Some(item);
            }
            let band = &mut self.bands[self.band];
            if new {
                // A new flow without segments moves behind the old flows. Otherwise the flow could starve
                // them by returning as a new flow.
                band.new_flows.pop(&mut self.flows);
                band.old_flows.push(&mut self.flows, index);
            } else {
                band.old_flows.pop(&mut self.flows);
                self.flows[index as usize].state = State::Detached(now);
            }
        }
        None
    }

    /// Returns the next flow of the present band, and whether it is on the list of new flows.
    fn next_flow(&mut self) -> Option<(u32, bool)> {
        let band = &mut self.bands[self.band];
        while let Some(front) = band.new_flows.front(&self.flows) {
            if band.new_flows.credit(&self.flows[front as usize]) > 0 {
                return Some((front, true));
            }
            band.new_flows.pop(&mut self.flows);
            self.flows[front as usize].turn.refill();
            band.old_flows.push(&mut self.flows, front);
        }
        band.old_flows.advance(&mut self.flows, |_| 1).map(|front| (front, false))
    }

    /// Returns the entry of a flow, or creates it. Removes expired flows of the same chain.
    fn find(&mut self, now: Time, flow: u32) -> u32 {
        let chain = (flow.wrapping_mul(0x61c8_8647) >> 22) as usize % CHAINS;
        let (mut previous, mut index) = (NONE, self.chains[chain]);
        while index != NONE {
            let Flow { flow: found, next, state, .. } = self.flows[index as usize];
            if found == flow {
                return index;
            }
            let old = matches!(state, State::Detached(since) if now.since(since) > FORGET_AFTER);
            if old {
                if previous == NONE {
                    self.chains[chain] = next;
                } else {
                    self.flows[previous as usize].next = next;
                }
                self.flows[index as usize].next = std::mem::replace(&mut self.unused, index);
            } else {
                previous = index;
            }
            index = next;
        }
        self.insert(now, flow, chain)
    }

    fn insert(&mut self, now: Time, flow: u32, chain: usize) -> u32 {
        let mut turn = Turn::new(self.config.quantum);
        turn.set_credit(i64::from(self.config.initial_quantum));
        let next = self.chains[chain];
        let state = State::Detached(now);
        let entry = Flow { turn, queue: List::EMPTY, length: 0, flow, next, state };
        let index = self.unused;
        let index = if index == NONE {
            self.flows.push(entry);
            (self.flows.len() - 1) as u32
        } else {
            self.unused = self.flows[index as usize].next;
            self.flows[index as usize] = entry;
            index
        };
        self.chains[chain] = index;
        index
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used)]

    use super::super::testing::{drain, segment};
    use super::super::{Kind, Qdisc};
    use super::*;

    fn fill(qdisc: &mut Qdisc, now: Time, flow: u32, sequences: std::ops::Range<u64>, payload: u32) {
        for sequence in sequences {
            assert_eq!(qdisc.enqueue(now, segment(flow, sequence, payload)), None);
        }
    }

    fn occupied() -> Qdisc {
        let mut qdisc = Qdisc::new(&Kind::Fq(FqConfig::default()), 0).expect("valid");
        fill(&mut qdisc, Time::ZERO, 9, 0..8, 100);
        qdisc
    }

    #[test]
    fn a_flow_starts_with_ten_frames_and_then_gets_two() {
        let mut qdisc = occupied();
        fill(&mut qdisc, Time::ZERO, 1, 0..14, 1448);
        fill(&mut qdisc, Time::ZERO, 2, 0..14, 1448);
        let order: Vec<u32> = drain(&mut qdisc, Time::ZERO).into_iter().map(|(flow, _)| flow).collect();
        let expected = [vec![9; 8], vec![1; 10], vec![2; 10], vec![1, 1, 2, 2, 1, 1, 2, 2]].concat();
        assert_eq!(order, expected);
    }

    #[test]
    fn credit_comes_back_after_a_pause() {
        for (pause, expected) in [(40, [1, 2, 2, 1]), (41, [1, 1, 2, 2])] {
            let mut qdisc = occupied();
            // 10 frames use up the initial quantum. When flow 1 is empty, one frame of its next quantum of
            // two frames remains. The next visit detaches the flow.
            fill(&mut qdisc, Time::ZERO, 1, 0..11, 1448);
            fill(&mut qdisc, Time::ZERO, 3, 0..14, 1448);
            assert_eq!(drain(&mut qdisc, Time::ZERO).len(), 33);
            let later = Time(pause * MILLISECOND);
            fill(&mut qdisc, later, 9, 8..16, 100);
            fill(&mut qdisc, later, 1, 11..13, 1448);
            fill(&mut qdisc, later, 2, 0..2, 1448);
            let order: Vec<u32> = drain(&mut qdisc, later)[8..].iter().map(|(flow, _)| *flow).collect();
            assert_eq!(order, expected, "after {pause} ms");
        }
    }

    #[test]
    fn bands_share_nine_to_three_to_one() {
        let mut qdisc = occupied();
        let mut count = [0u32; BANDS];
        for sequence in 0..100 {
            for flow in 0..30 {
                let band = (flow % 3) as u8;
                let of_band = Segment { band, ..segment(flow, sequence, 1448) };
                assert_eq!(qdisc.enqueue(Time::ZERO, of_band), None);
            }
        }
        // A round of the bands has 13 << 16 bytes, or 563 frames. Each band may overdraw by one frame.
        for _ in 0..8 + 1126 {
            if let Dequeued::Segment(segment) = qdisc.dequeue(Time::ZERO) {
                count[usize::from(segment.band)] += u32::from(segment.flow < 30 && segment.payload == 1448);
            }
        }
        for (band, share) in [(0, 780.0), (1, 260.0), (2, 86.0)] {
            let found = f64::from(count[band]);
            assert!((found - share).abs() <= 3.0, "band {band}: {found} of {share}");
        }
    }

    #[test]
    fn limits() {
        let config = FqConfig { flow_limit: 2, limit: 3, ..FqConfig::default() };
        let mut qdisc = Qdisc::new(&Kind::Fq(config), 0).expect("valid");
        fill(&mut qdisc, Time::ZERO, 9, 0..8, 100);
        fill(&mut qdisc, Time::ZERO, 1, 0..2, 100);
        assert!(qdisc.enqueue(Time::ZERO, segment(1, 2, 100)).is_some());
        fill(&mut qdisc, Time::ZERO, 2, 0..1, 100);
        assert!(qdisc.enqueue(Time::ZERO, segment(3, 0, 100)).is_some());
        assert_eq!(qdisc.enqueue(Time::ZERO, Segment { band: 1, ..segment(3, 0, 100) }), None);
    }

    #[test]
    fn forgotten_flows_make_room() {
        let mut fq = Fq::new(&FqConfig::default());
        let mut dropped = Vec::new();
        for round in 0..20u32 {
            let now = Time(u64::from(round) * 4 * SECOND);
            for number in 0..8 {
                fq.enqueue(now, segment(9, number, 100), &mut dropped);
            }
            for flow in 0..3000 {
                fq.enqueue(now, segment(round * 3000 + flow, 0, 100), &mut dropped);
            }
            // One flow stays active until the qdisc detects that all other flows are empty.
            for number in 0..90 {
                fq.enqueue(now, segment(9, number, 65_160), &mut dropped);
            }
            while fq.dequeue(now) != Dequeued::Empty {}
        }
        assert!(dropped.is_empty());
        assert!(fq.flows.len() < 3100, "{}", fq.flows.len());
    }
}
