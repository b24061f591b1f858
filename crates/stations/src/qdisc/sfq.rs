//! `sfq`: stochastic fair queueing (`net/sched/sch_sfq.c`).
//!
//! - Hashing: McKenney, *Stochastic Fairness Queuing*, INFOCOM 1990.
//! - Service: Shreedhar and Varghese, *Efficient Fair Queuing using Deficit Round Robin*, SIGCOMM 1995.
//!
//! Not modelled: the timer that changes the perturbation (off by default), RED, and filters.

use super::queue::{Backlog, Item, List, NONE, Pool};
use super::rounds::{Ring, Turn, ring_member};
use super::{Dequeued, ETHERNET_FRAME_BYTES, KindError, require};
use crate::segment::Segment;

/// Bytes per unit of allotment (`SFQ_ALLOT_SHIFT`). Until late 2024 the kernel counted units of 8
/// bytes, rounded up. Newer kernels count bytes.
const ALLOT_UNIT: u32 = 8;
/// Largest table of buckets (`sfq_change`).
const MAX_DIVISOR: u32 = 65_536;
/// Largest number of flows, and largest depth. The kernel allows 65,408 flows and a depth of 127.
const MAX_FLOWS: u32 = 65_536;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SfqConfig {
    /// Limit of all queues together, segments.
    pub limit: u32,
    /// Limit of the queue of one flow, segments.
    pub depth: u32,
    pub flows: u32,
    /// Number of hash buckets; a power of two.
    pub divisor: u32,
    pub quantum: u32,
    /// Drop the oldest segment of a queue instead of the newest (`headdrop` of `tc`). This option
    /// applies to a flow at its depth, and to the longest queue of a full qdisc.
    pub head_drop: bool,
}

impl Default for SfqConfig {
    /// Returns the kernel's defaults: 127 segments, 127 per flow, 128 flows, 1024 buckets, one frame per
    /// round, tail drop.
    fn default() -> Self {
        Self {
            limit: 127,
            depth: 127,
            flows: 128,
            divisor: 1024,
            quantum: ETHERNET_FRAME_BYTES,
            head_drop: false,
        }
    }
}

impl SfqConfig {
    /// Returns the defaults of a kernel with another `SFQ_MAX_DEPTH`, which sets limit, depth and flows. In
    /// Titan's kernel it is 250.
    #[must_use]
    pub fn with_depth(depth: u32) -> Self {
        Self { limit: depth, depth, flows: depth.saturating_add(1), ..Self::default() }
    }

    pub(super) fn check(&self) -> Result<(), KindError> {
        require("sfq", "limit", "at least 1", u64::from(self.limit), self.limit >= 1)?;
        require("sfq", "depth", "1 to 65536", u64::from(self.depth), (1..=MAX_FLOWS).contains(&self.depth))?;
        require("sfq", "flows", "1 to 65536", u64::from(self.flows), (1..=MAX_FLOWS).contains(&self.flows))?;
        let divides = self.divisor.is_power_of_two() && self.divisor <= MAX_DIVISOR;
        require("sfq", "divisor", "a power of two up to 65536", u64::from(self.divisor), divides)?;
        require("sfq", "quantum", "at least 1", u64::from(self.quantum), self.quantum >= 1)
    }
}

/// A flow with segments, or a free slot for one.
#[derive(Clone, Debug)]
struct Slot {
    turn: Turn,
    queue: List,
    length: u32,
    bucket: u32,
    /// When the length last changed, as a value of [`Sfq::changes`].
    changed: u64,
}

ring_member!(Slot);

#[derive(Clone, Debug)]
pub(super) struct Sfq {
    config: SfqConfig,
    perturbation: u64,
    scaled_quantum: i64,
    buckets: Vec<u32>,
    slots: Vec<Slot>,
    /// Slots with segments, in order of service.
    ring: Ring,
    free: Vec<u32>,
    /// Number of length changes of all slots.
    changes: u64,
    pool: Pool<Item>,
    backlog: Backlog,
}

impl Sfq {
    pub(super) fn new(config: &SfqConfig, seed: u64) -> Self {
        let scaled_quantum = config.quantum.div_ceil(ALLOT_UNIT);
        let slot =
            Slot { turn: Turn::new(scaled_quantum), queue: List::EMPTY, length: 0, bucket: 0, changed: 0 };
        Self {
            config: config.clone(),
            perturbation: seed,
            scaled_quantum: i64::from(scaled_quantum),
            buckets: vec![NONE; config.divisor as usize],
            slots: vec![slot; config.flows as usize],
            ring: Ring::EMPTY,
            free: (0..config.flows).collect(),
            changes: 0,
            pool: Pool::new(),
            backlog: Backlog::default(),
        }
    }

    pub(super) fn enqueue(&mut self, segment: Segment, dropped: &mut Vec<Segment>) {
        let item = Item::from(segment);
        let bucket = self.bucket(segment.hash);
        let mut index = self.buckets[bucket];
        if index == NONE {
            let Some(free) = self.free.pop() else {
                dropped.push(segment);
                return;
            };
            index = free;
            self.buckets[bucket] = index;
            self.slots[index as usize].bucket = bucket as u32;
        } else if self.slots[index as usize].length >= self.config.depth {
            self.enqueue_to_full(index, item, dropped);
            return;
        }
        self.backlog.add(&item);
        let slot = &mut self.slots[index as usize];
        self.pool.push_back(&mut slot.queue, item);
        slot.length += 1;
        self.changes += 1;
        slot.changed = self.changes;
        if slot.length == 1 {
            slot.turn.set_credit(self.scaled_quantum);
            self.ring.push(&mut self.slots, index);
        }
        if self.backlog.segments > self.config.limit as usize {
            self.drop_from_longest(dropped);
        }
    }

    pub(super) fn dequeue(&mut self) -> Dequeued {
        let Some(index) = self.ring.advance(&mut self.slots, |_| 1) else { return Dequeued::Empty };
        let slot = &mut self.slots[index as usize];
        let Some(item) = self.pool.pop_front(&mut slot.queue) else { return Dequeued::Empty };
        slot.turn.charge(item.bytes.div_ceil(ALLOT_UNIT));
        self.backlog.remove(&item);
        self.shorten(index);
        Dequeued::Segment(item.segment)
    }

    pub(super) fn len(&self) -> usize {
        self.backlog.segments
    }

    pub(super) fn backlog_bytes(&self) -> u64 {
        self.backlog.bytes
    }

    /// Returns the bucket of a hash. The seed decides which flows collide (`skb_get_hash_perturb`).
    fn bucket(&self, hash: u32) -> usize {
        let mut mixed = u64::from(hash).wrapping_add(self.perturbation);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed >> 32) as usize) & (self.buckets.len() - 1)
    }

    /// Handles a segment for a flow at its depth: drops the segment or, with `head_drop`, the oldest segment
    /// of the flow. The length of the queue does not change.
    fn enqueue_to_full(&mut self, index: u32, item: Item, dropped: &mut Vec<Segment>) {
        let queue = &mut self.slots[index as usize].queue;
        let oldest = if self.config.head_drop { self.pool.pop_front(queue) } else { None };
        let Some(oldest) = oldest else {
            dropped.push(item.segment);
            return;
        };
        self.pool.push_back(queue, item);
        self.backlog.remove(&oldest);
        self.backlog.add(&item);
        dropped.push(oldest.segment);
    }

    /// Drops a segment of the longest queue (`sfq_drop`).
    ///
    /// Among queues of equal length, the function selects the queue that reached its length last. In
    /// the kernel, this is the first queue in the list of that length. If all queues have one segment,
    /// the function selects the next queue to be served. The kernel updates its lists with every
    /// segment. A scan of all slots is cheaper here, because drops are rare.
    fn drop_from_longest(&mut self, dropped: &mut Vec<Segment>) {
        let longest = (0u32..).zip(&self.slots).max_by_key(|(_, slot)| (slot.length, slot.changed));
        let index = match longest {
            Some((index, slot)) if slot.length > 1 => index,
            _ => self.ring.front(&self.slots).unwrap_or(NONE),
        };
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        let item = if self.config.head_drop {
            self.pool.pop_front(&mut slot.queue)
        } else {
            self.pool.pop_back(&mut slot.queue)
        };
        if let Some(item) = item {
            self.backlog.remove(&item);
            self.shorten(index);
            dropped.push(item.segment);
        }
    }

    /// Accounts for a segment that left a slot. If the slot becomes empty, it is the front of the ring,
    /// and the function frees it.
    fn shorten(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.length -= 1;
        self.changes += 1;
        slot.changed = self.changes;
        if slot.length == 0 {
            self.buckets[slot.bucket as usize] = NONE;
            self.free.push(index);
            self.ring.pop(&mut self.slots);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used)]

    use proptest::prelude::*;

    use super::super::testing::{Saturated, drain, segment};
    use super::super::{Kind, Qdisc};
    use super::*;
    use crate::time::Time;

    fn sfq(config: SfqConfig) -> Qdisc {
        Qdisc::new(&Kind::Sfq(config), 1).expect("valid")
    }

    fn fill(qdisc: &mut Qdisc, flow: u32, count: u64, payload: u32) {
        for sequence in 0..count {
            assert_eq!(qdisc.enqueue(Time::ZERO, segment(flow, sequence, payload)), None);
        }
    }

    #[test]
    fn full_frames_alternate() {
        let mut qdisc = sfq(SfqConfig::default());
        fill(&mut qdisc, 1, 4, 1448);
        fill(&mut qdisc, 2, 2, 1448);
        // The allotment is 190 units, and a frame costs 190 (1514 / 8, rounded up).
        assert_eq!(drain(&mut qdisc, Time::ZERO), [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (1, 3)]);
    }

    #[test]
    fn a_segment_of_many_frames_waits_for_its_rounds() {
        let mut qdisc = sfq(SfqConfig::default());
        // 10 packets are 14480 + 660 = 15140 bytes, 1893 units: 190 - 1893 = -1703.
        fill(&mut qdisc, 1, 2, 14_480);
        fill(&mut qdisc, 2, 12, 1448);
        let order = drain(&mut qdisc, Time::ZERO);
        // A deficit of 1703 takes 9 rounds. Flow 2 sends 9 frames before flow 1 is at the front with
        // -1703 + 9 * 190 = 7.
        let second = order.iter().position(|(flow, sequence)| (*flow, *sequence) == (1, 1));
        assert_eq!(second, Some(10));
        assert_eq!(order[0], (1, 0));
    }

    #[test]
    fn small_segments_share_an_allotment() {
        let mut qdisc = sfq(SfqConfig::default());
        // 500 + 66 bytes cost 71 units. The credit is 190, 119, 48 and -23, so the first round sends
        // three segments.
        fill(&mut qdisc, 1, 4, 500);
        fill(&mut qdisc, 2, 1, 500);
        assert_eq!(drain(&mut qdisc, Time::ZERO), [(1, 0), (1, 1), (1, 2), (2, 0), (1, 3)]);
    }

    #[test]
    fn the_longest_queue_loses() {
        for (head_drop, lost, kept) in [(false, 3, 0), (true, 0, 1)] {
            let mut qdisc = sfq(SfqConfig { limit: 5, head_drop, ..SfqConfig::default() });
            fill(&mut qdisc, 1, 4, 1448);
            fill(&mut qdisc, 2, 1, 1448);
            assert_eq!(qdisc.enqueue(Time::ZERO, segment(3, 0, 1448)), Some(segment(1, lost, 1448)));
            assert_eq!(qdisc.len(), 5);
            assert_eq!(drain(&mut qdisc, Time::ZERO)[0], (1, kept));
        }
    }

    #[test]
    fn of_equally_long_queues_the_latest_loses() {
        for order in [[1, 2], [2, 1]] {
            let mut qdisc = sfq(SfqConfig { limit: 4, ..SfqConfig::default() });
            fill(&mut qdisc, order[0], 2, 1448);
            fill(&mut qdisc, order[1], 2, 1448);
            let dropped = qdisc.enqueue(Time::ZERO, segment(3, 0, 1448));
            assert_eq!(dropped, Some(segment(order[1], 1, 1448)));
        }
    }

    #[test]
    fn of_queues_of_one_segment_the_front_loses() {
        let mut qdisc = sfq(SfqConfig { limit: 3, ..SfqConfig::default() });
        for flow in 1..4 {
            fill(&mut qdisc, flow, 1, 1448);
        }
        assert_eq!(qdisc.enqueue(Time::ZERO, segment(4, 0, 1448)), Some(segment(1, 0, 1448)));
        // The bucket is free again, so flow 1 is a new flow at the end of the ring.
        assert_eq!(qdisc.enqueue(Time::ZERO, segment(1, 1, 1448)), Some(segment(2, 0, 1448)));
        assert_eq!(drain(&mut qdisc, Time::ZERO), [(3, 0), (4, 0), (1, 1)]);
        assert!(qdisc.is_empty());
    }

    #[test]
    fn a_flow_has_a_depth_and_the_table_a_number_of_flows() {
        let mut qdisc = sfq(SfqConfig { depth: 2, flows: 2, ..SfqConfig::default() });
        fill(&mut qdisc, 1, 2, 100);
        assert_eq!(qdisc.enqueue(Time::ZERO, segment(1, 2, 100)), Some(segment(1, 2, 100)));
        fill(&mut qdisc, 2, 1, 100);
        assert_eq!(qdisc.enqueue(Time::ZERO, segment(3, 0, 100)), Some(segment(3, 0, 100)));
        let mut qdisc = sfq(SfqConfig { depth: 2, head_drop: true, ..SfqConfig::default() });
        fill(&mut qdisc, 1, 2, 100);
        assert_eq!(qdisc.enqueue(Time::ZERO, segment(1, 2, 300)), Some(segment(1, 0, 100)));
        assert_eq!(qdisc.backlog_bytes(), 166 + 366);
        assert_eq!(drain(&mut qdisc, Time::ZERO), [(1, 1), (1, 2)]);
    }

    #[test]
    fn the_seed_decides_who_collides() {
        let colliding = |seed| {
            let qdisc = Sfq::new(&SfqConfig::default(), seed);
            (0..200u32).filter(|hash| qdisc.bucket(*hash) == qdisc.bucket(777)).collect::<Vec<u32>>()
        };
        assert!((0..50).map(colliding).any(|flows| !flows.is_empty()));
        assert_ne!((0..50).map(colliding).collect::<Vec<_>>(), (50..100).map(colliding).collect::<Vec<_>>());
    }

    proptest! {
        /// Checks that, between backlogged flows in different buckets, over any interval, services
        /// differ by at most a quantum and a longest segment of each flow. Rounding an allotment costs
        /// less than 8 bytes per segment.
        #[test]
        fn flows_that_do_not_collide_get_the_same(
            seed in any::<u64>(),
            payloads in prop::collection::vec(1u32..65_160, 2..6),
        ) {
            let config = SfqConfig { divisor: 65_536, ..SfqConfig::default() };
            let sfq = Sfq::new(&config, seed);
            let templates: Vec<Segment> =
                (0..).zip(&payloads).map(|(flow, payload)| segment(flow, 0, *payload)).collect();
            let mut buckets: Vec<usize> =
                templates.iter().map(|template| sfq.bucket(template.hash)).collect();
            buckets.sort_unstable();
            buckets.dedup();
            prop_assume!(buckets.len() == payloads.len());
            let qdisc = Qdisc::new(&Kind::Sfq(config), seed).expect("valid");
            let mut saturated = Saturated::new(qdisc, &templates, 3);
            let mut extremes = vec![(0i64, 0i64); payloads.len()];
            for number in 1..300 {
                saturated.send();
                for (flow, template) in templates.iter().enumerate() {
                    let difference = saturated.sent[&(flow as u32)] as i64 - saturated.sent[&0] as i64;
                    let (low, high) = &mut extremes[flow];
                    (*low, *high) = ((*low).min(difference), (*high).max(difference));
                    let longest = template.frame_bytes() + templates[0].frame_bytes();
                    let bound = 1520 + i64::from(longest) + 8 * number;
                    prop_assert!(*high - *low <= bound, "{} > {bound}", *high - *low);
                }
            }
        }
    }

    #[test]
    fn rejects_what_the_kernel_rejects() {
        for config in [
            SfqConfig { divisor: 1000, ..SfqConfig::default() },
            SfqConfig { divisor: 131_072, ..SfqConfig::default() },
            SfqConfig { quantum: 0, ..SfqConfig::default() },
            SfqConfig::with_depth(0),
        ] {
            assert!(Qdisc::new(&Kind::Sfq(config), 0).is_err());
        }
        assert_eq!(SfqConfig::with_depth(250).flows, 251);
    }
}
