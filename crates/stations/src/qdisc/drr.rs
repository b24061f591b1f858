//! `drr`: deficit round robin over classes (`net/sched/sch_drr.c`; Shreedhar and Varghese, *Efficient
//! Fair Queuing using Deficit Round Robin*, SIGCOMM 1995). `ets`: strict bands before deficit round
//! robin (`net/sched/sch_ets.c`; IEEE 802.1Qaz).
//!
//! Not modelled: classes with a queue other than `pfifo`, and filters.

use super::queue::{Backlog, Item, Queue};
use super::rounds::{Ring, Turn, ring_member};
use super::{Classifier, DEFAULT_LIMIT, Dequeued, ETHERNET_FRAME_BYTES, KindError, require};
use crate::segment::Segment;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrrConfig {
    pub classifier: Classifier,
    /// Bytes per round of each class.
    pub quanta: Vec<u32>,
    /// Limit of the queue of one class in segments.
    pub limit: u32,
}

impl DrrConfig {
    /// Creates classes with equal quanta of one Ethernet frame, the kernel's default. The flow selects
    /// the class.
    #[must_use]
    pub fn equal(classes: usize) -> Self {
        Self {
            classifier: Classifier::Flow,
            quanta: vec![ETHERNET_FRAME_BYTES; classes],
            limit: DEFAULT_LIMIT,
        }
    }

    pub(super) fn check(&self) -> Result<(), KindError> {
        require("drr", "number of classes", "at least 1", 0, !self.quanta.is_empty())?;
        require("drr", "quantum", "at least 1", 0, self.quanta.iter().all(|quantum| *quantum >= 1))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtsConfig {
    pub classifier: Classifier,
    /// Number of bands that are served in strict order, before all other bands.
    pub strict: u8,
    /// Bytes per round of each further band.
    pub quanta: Vec<u32>,
    /// Limit of the queue of one band in segments.
    pub limit: u32,
}

impl EtsConfig {
    pub(super) fn check(&self) -> Result<(), KindError> {
        // `TCQ_ETS_MAX_BANDS`.
        let bands = usize::from(self.strict) + self.quanta.len();
        require("ets", "number of bands", "1 to 16", bands as u64, (1..=16).contains(&bands))?;
        require("ets", "quantum", "at least 1", 0, self.quanta.iter().all(|quantum| *quantum >= 1))
    }
}

#[derive(Clone, Debug)]
struct Class {
    turn: Turn,
    queue: Queue,
}

ring_member!(Class);

/// The first `strict` classes have strict priority. Deficit round robin serves the other classes.
#[derive(Clone, Debug)]
pub(super) struct Drr {
    classifier: Classifier,
    classes: Vec<Class>,
    strict: usize,
    limit: usize,
    ring: Ring,
    backlog: Backlog,
}

impl Drr {
    pub(super) fn new(config: &DrrConfig) -> Self {
        Self::with_strict(config.classifier.clone(), 0, &config.quanta, config.limit)
    }

    pub(super) fn ets(config: &EtsConfig) -> Self {
        Self::with_strict(config.classifier.clone(), usize::from(config.strict), &config.quanta, config.limit)
    }

    fn with_strict(classifier: Classifier, strict: usize, quanta: &[u32], limit: u32) -> Self {
        let quanta = std::iter::repeat_n(&0, strict).chain(quanta);
        let class = |quantum: &u32| Class { turn: Turn::new(*quantum), queue: Queue::default() };
        Self {
            classifier,
            classes: quanta.map(class).collect(),
            strict,
            limit: limit as usize,
            ring: Ring::EMPTY,
            backlog: Backlog::default(),
        }
    }

    pub(super) fn enqueue(&mut self, segment: Segment, dropped: &mut Vec<Segment>) {
        let Some(index) = self.classifier.class(&segment, self.classes.len()) else {
            dropped.push(segment);
            return;
        };
        let class = &mut self.classes[index];
        if class.queue.len() >= self.limit {
            dropped.push(segment);
            return;
        }
        let item = Item::from(segment);
        let first = class.queue.is_empty();
        class.queue.push(item);
        self.backlog.add(&item);
        if first && index >= self.strict {
            let quantum = class.turn.quantum();
            class.turn.set_credit(quantum);
            self.ring.push(&mut self.classes, index as u32);
        }
    }

    pub(super) fn dequeue(&mut self) -> Dequeued {
        let Some(item) = self.next() else { return Dequeued::Empty };
        self.backlog.remove(&item);
        Dequeued::Segment(item.segment)
    }

    fn next(&mut self) -> Option<Item> {
        if let Some(item) = self.classes[..self.strict].iter_mut().find_map(|class| class.queue.pop()) {
            return Some(item);
        }
        let needed = |class: &Class| i64::from(class.queue.head_bytes());
        let index = self.ring.advance(&mut self.classes, needed)?;
        let class = &mut self.classes[index as usize];
        let item = class.queue.pop()?;
        class.turn.charge(item.bytes);
        if class.queue.is_empty() {
            self.ring.pop(&mut self.classes);
        }
        Some(item)
    }

    pub(super) fn len(&self) -> usize {
        self.backlog.segments
    }

    pub(super) fn backlog_bytes(&self) -> u64 {
        self.backlog.bytes
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
    fn serves_while_the_deficit_allows() {
        let config = DrrConfig { quanta: vec![1000, 500], ..DrrConfig::equal(2) };
        let mut qdisc = Qdisc::new(&Kind::Drr(config), 0).expect("valid");
        for sequence in 0..4 {
            for flow in [0, 1] {
                // 434 + 66 = 500 bytes.
                assert_eq!(qdisc.enqueue(Time::ZERO, segment(flow, sequence, 434)), None);
            }
        }
        // Class 0 sends two segments for each segment of class 1.
        let order = drain(&mut qdisc, Time::ZERO);
        assert_eq!(order, [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]);
    }

    #[test]
    fn a_deficit_is_saved_up_and_not_kept_when_idle() {
        let config = DrrConfig { quanta: vec![500, 500], limit: 3, ..DrrConfig::equal(2) };
        let mut qdisc = Qdisc::new(&Kind::Drr(config), 0).expect("valid");
        // A segment of 1200 bytes is sent in the third round.
        assert_eq!(qdisc.enqueue(Time::ZERO, segment(0, 0, 1134)), None);
        for sequence in 0..3 {
            assert_eq!(qdisc.enqueue(Time::ZERO, segment(3, sequence, 434)), None);
        }
        assert!(qdisc.enqueue(Time::ZERO, segment(1, 3, 434)).is_some());
        assert_eq!(drain(&mut qdisc, Time::ZERO), [(3, 0), (3, 1), (0, 0), (3, 2)]);
    }

    #[test]
    fn ets_has_strict_bands_first() {
        let config =
            EtsConfig { classifier: Classifier::Band, strict: 1, quanta: vec![1000, 500], limit: 10 };
        let mut qdisc = Qdisc::new(&Kind::Ets(config), 0).expect("valid");
        for (sequence, band) in [(0, 2), (1, 1), (2, 1), (3, 1), (4, 9), (5, 0)] {
            assert_eq!(qdisc.enqueue(Time::ZERO, Segment { band, ..segment(1, sequence, 434) }), None);
        }
        let sequences: Vec<u64> =
            drain(&mut qdisc, Time::ZERO).into_iter().map(|(_, sequence)| sequence).collect();
        assert_eq!(sequences, [5, 0, 1, 2, 4, 3]);
    }
}
