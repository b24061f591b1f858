//! `cake`: common applications kept enhanced (`net/sched/sch_cake.c`; Høiland-Jørgensen, Täht, Morton, *Piece
//! of CAKE*, LANMAN 2018), without its shaper.
//!
//! Segments are split into packets, unless [`CakeConfig::split`] is false. A packet's priority selects the
//! tin, and its hash selects a queue in a set of eight. A tin serves its queues by deficit round robin, new
//! queues first, and each queue has CoDel. Backlogged tins share the rate by their weights.
//!
//! Not modelled:
//!
//! - the shaper and its overheads
//! - isolation of hosts (all flows are between one pair)
//! - BLUE (which acts only under overload)
//! - the list of decaying flows, ACK filtering, ECN
//! - the tins of schemes other than `diffserv3` and `besteffort`

use super::fq_codel::{FqCodel, FqCodelConfig};
use super::queue::NONE;
use super::{Dequeued, ETHERNET_FRAME_BYTES, KindError, require};
use crate::segment::{Segment, truesize};
use crate::time::{MILLISECOND, Span, Time};

/// Number of queues of a tin (`CAKE_QUEUES`), and of the set that a flow searches (`CAKE_SET_WAYS`).
const QUEUES: usize = 1024;
const WAYS: usize = 8;
/// Bytes per round of each tin (`cake_config_diffserv3`): best effort, bulk, latency sensitive.
const TIN_QUANTA: [i64; 3] = [1024, 1024 >> 4, 1024 >> 2];
/// Tin of the packets of band 0. All other packets are best effort.
const LATENCY_SENSITIVE: usize = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CakeConfig {
    /// Three tins by priority (`diffserv3`), or one tin for all packets (`besteffort`).
    pub tins: bool,
    /// Split segments into packets (`split-gso`).
    pub split: bool,
    /// Limit of the packets' memory in bytes (`memlimit`).
    pub memory: u64,
    /// Acceptable standing delay in picoseconds.
    pub target: Span,
    /// Duration of standing delay in picoseconds before packets are dropped (`rtt`).
    pub interval: Span,
}

impl Default for CakeConfig {
    /// Returns the kernel's defaults, without a bandwidth.
    fn default() -> Self {
        Self {
            tins: true,
            split: true,
            memory: 10_240 * ETHERNET_FRAME_BYTES as u64,
            target: 5 * MILLISECOND,
            interval: 100 * MILLISECOND,
        }
    }
}

impl CakeConfig {
    pub(super) fn check(&self) -> Result<(), KindError> {
        require("cake", "memory limit", "at least 1 byte", self.memory, self.memory >= 1)
    }
}

#[derive(Clone, Debug)]
struct Tin {
    queues: FqCodel,
    /// Hash of the last flow of each queue (`tags`).
    tags: Vec<u32>,
    deficit: i64,
}

impl Tin {
    fn new(config: &CakeConfig) -> Self {
        let queues = FqCodelConfig {
            limit: u32::MAX,
            flows: QUEUES as u32,
            quantum: ETHERNET_FRAME_BYTES,
            target: config.target,
            interval: config.interval,
        };
        Self { queues: FqCodel::new(&queues), tags: vec![NONE; QUEUES], deficit: 0 }
    }

    /// Returns the queue of a flow: its present queue, an unused queue of its set, or a shared queue
    /// (`cake_hash`).
    fn queue_of(&mut self, hash: u32) -> usize {
        let reduced = hash as usize % QUEUES;
        let first = reduced - reduced % WAYS;
        let ways = (0..WAYS).map(|way| first + (reduced + way) % WAYS);
        let own = ways.clone().find(|index| self.tags[*index] == hash);
        let unused = || ways.clone().find(|index| self.queues.is_unused(*index));
        let index = own.or_else(unused).unwrap_or(reduced);
        self.tags[index] = hash;
        index
    }
}

#[derive(Clone, Debug)]
pub(super) struct Cake {
    config: CakeConfig,
    tins: Vec<Tin>,
    current: usize,
    /// Memory of the queued packets in bytes (the sum of [`truesize`]).
    memory: u64,
}

impl Cake {
    pub(super) fn new(config: &CakeConfig) -> Self {
        let count = if config.tins { TIN_QUANTA.len() } else { 1 };
        Self {
            config: config.clone(),
            tins: (0..count).map(|_| Tin::new(config)).collect(),
            current: 0,
            memory: 0,
        }
    }

    pub(super) fn enqueue(&mut self, now: Time, segment: Segment, dropped: &mut Vec<Segment>) {
        let number = if self.config.tins && segment.band == 0 { LATENCY_SENSITIVE } else { 0 };
        let tin = &mut self.tins[number];
        let index = tin.queue_of(segment.hash);
        let packets = if self.config.split { segment.packets() } else { 1 };
        for packet in 0..packets {
            let piece = if packets == 1 { segment } else { segment.packet(packet) };
            self.memory += u64::from(truesize(piece.payload));
            tin.queues.enqueue_in(now, index, piece);
        }
        while self.memory > self.config.memory {
            let fattest = self.tins.iter_mut().max_by_key(|tin| tin.queues.largest());
            let Some(victim) = fattest.and_then(|tin| tin.queues.take_from_largest()) else { break };
            self.memory -= u64::from(truesize(victim.payload));
            dropped.push(victim);
        }
    }

    pub(super) fn dequeue(&mut self, now: Time, dropped: &mut Vec<Segment>) -> Dequeued {
        while self.len() > 0 {
            self.pick_tin();
            let tin = &mut self.tins[self.current];
            let before = dropped.len();
            let dequeued = tin.queues.dequeue(now, dropped);
            let gone: u64 = dropped[before..].iter().map(|gone| u64::from(truesize(gone.payload))).sum();
            self.memory -= gone;
            if let Dequeued::Segment(segment) = dequeued {
                tin.deficit -= i64::from(segment.frame_bytes());
                self.memory -= u64::from(truesize(segment.payload));
                return dequeued;
            }
        }
        Dequeued::Empty
    }

    /// Advances to a non-empty tin without a negative deficit. At least one tin must be non-empty.
    fn pick_tin(&mut self) {
        loop {
            let tin = &mut self.tins[self.current];
            if tin.deficit >= 0 && tin.queues.len() > 0 {
                return;
            }
            if tin.deficit <= 0 {
                tin.deficit += TIN_QUANTA[self.current];
            }
            self.current = (self.current + 1) % self.tins.len();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.tins.iter().map(|tin| tin.queues.len()).sum()
    }

    pub(super) fn backlog_bytes(&self) -> u64 {
        self.tins.iter().map(|tin| tin.queues.backlog_bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used)]

    use super::super::testing::{Saturated, segment};
    use super::super::{Kind, Qdisc};
    use super::*;
    use crate::time::{MICROSECOND, SECOND};

    fn cake(config: CakeConfig) -> Qdisc {
        Qdisc::new(&Kind::Cake(config), 0).expect("valid")
    }

    #[test]
    fn flows_take_turns_packet_by_packet() {
        let mut qdisc = cake(CakeConfig::default());
        for flow in 1..3 {
            let segment = Segment { band: 1, ..segment(flow, 0, 3 * 1448) };
            assert_eq!(qdisc.enqueue(Time::ZERO, segment), None);
        }
        assert_eq!(qdisc.len(), 6);
        let order = super::super::testing::drain(&mut qdisc, Time::ZERO);
        assert_eq!(order, [(1, 0), (2, 0), (1, 1448), (2, 1448), (1, 2896), (2, 2896)]);
    }

    #[test]
    fn without_splitting_by_bytes_all_the_same() {
        let templates = [segment(1, 0, 65_160), segment(2, 0, 1448)].map(|it| Segment { band: 1, ..it });
        let mut saturated =
            Saturated::new(cake(CakeConfig { split: false, ..CakeConfig::default() }), &templates, 8);
        (0..4600).for_each(|_| _ = saturated.send());
        let (first, second) = (saturated.sent[&1] as f64, saturated.sent[&2] as f64);
        assert!((first / second - 1.0).abs() < 0.03, "{first} {second}");
    }

    /// Checks that the latency-sensitive tin, with a quarter of best effort's weight, gets a fifth of the
    /// rate. With one tin, the two flows get equal rates.
    #[test]
    fn tins_share_by_weight() {
        let templates =
            [Segment { band: 0, ..segment(1, 0, 1448) }, Segment { band: 1, ..segment(2, 0, 1448) }];
        let share = |tins| {
            let mut saturated =
                Saturated::new(cake(CakeConfig { tins, ..CakeConfig::default() }), &templates, 8);
            (0..10_000).for_each(|_| _ = saturated.send());
            saturated.sent[&1] as f64 / (saturated.sent[&1] + saturated.sent[&2]) as f64
        };
        assert!((share(true) - 0.2).abs() < 0.01, "{}", share(true));
        assert!((share(false) - 0.5).abs() < 0.01, "{}", share(false));
    }

    #[test]
    fn sets_of_eight_keep_flows_apart() {
        let mut tin = Tin::new(&CakeConfig::default());
        let mut found = std::collections::BTreeSet::new();
        // The hashes of the eight flows have the same first choice of a queue.
        for flow in 0..8 {
            let hash = 5 + flow * QUEUES as u32;
            let index = tin.queue_of(hash);
            tin.queues.enqueue_in(Time::ZERO, index, segment(flow, 0, 100));
            assert_eq!(tin.queue_of(hash), index);
            found.insert(index);
        }
        assert_eq!(found, (0..8).collect());
        // The ninth flow shares a queue.
        assert_eq!(tin.queue_of(5 + 8 * QUEUES as u32), 5);
    }

    #[test]
    fn memory_is_bounded_and_codel_drops_from_a_standing_queue() {
        let mut qdisc = cake(CakeConfig { memory: 100 * 2728, ..CakeConfig::default() });
        let mut dropped = 0;
        for sequence in 0..150 {
            let mut victim =
                qdisc.enqueue(Time::ZERO, Segment { band: 1, ..segment(1, sequence * 1448, 1448) });
            while victim.is_some() {
                dropped += 1;
                victim = qdisc.pop_dropped();
            }
        }
        assert_eq!((dropped, qdisc.len()), (50, 100));
        let mut now = Time::ZERO;
        let mut later = 0;
        while !qdisc.is_empty() {
            now += 4000 * MICROSECOND;
            assert!(now < Time(SECOND));
            qdisc.dequeue(now);
            later += std::iter::from_fn(|| qdisc.pop_dropped()).count();
        }
        assert!(later > 0);
    }
}
