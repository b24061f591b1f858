//! `qfq`: quick fair queueing plus (`net/sched/sch_qfq.c`; Checconi, Rizzo, Valente, *QFQ: Efficient Packet
//! Scheduling with Tight Guarantees*, IEEE/ACM ToN 2013; Valente, *Reducing the Execution Time of
//! Fair-Queueing Schedulers*, Computer Communications 2014).
//!
//! `qfq` approximates worst-case fair weighted fair queueing in constant time.
//!
//! - Up to eight classes of the same weight and longest segment form an *aggregate*, which serves its classes
//!   by deficit round robin. An aggregate has a virtual start and finish time.
//! - Aggregates with a similar distance from start to finish form a *group*, which sorts its aggregates by
//!   rounded start times into slots.
//! - Bitmaps record the groups that are eligible (started by virtual time V) and ready (not blocked by a
//!   group of higher index that finishes earlier). The lowest group that is eligible and ready is served.
//!
//! Not modelled: classes with a queue other than `pfifo`, filters, changes of weights.

mod schedule;
#[cfg(test)]
mod tests;

use self::schedule::{LONGEST_SHIFT, ONE, Schedule};
use super::queue::{Backlog, Item, NONE, Queue};
use super::{Classifier, DEFAULT_LIMIT, Dequeued, ETHERNET_FRAME_BYTES, KindError, require};
use crate::segment::Segment;

/// Largest weight (`QFQ_MAX_WEIGHT`).
const MAX_WEIGHT: u32 = 1 << 10;
/// Largest sum of weights (`QFQ_MAX_WSUM`).
const MAX_WEIGHT_SUM: u32 = 64 * MAX_WEIGHT;
/// Smallest `lmax` (`QFQ_MIN_LMAX`).
const MIN_LONGEST: u32 = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QfqConfig {
    pub classifier: Classifier,
    pub classes: Vec<QfqClass>,
    /// Limit of the queue of one class in segments.
    pub limit: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QfqClass {
    /// Share of the rate, relative to the other classes: 1 to 1024.
    pub weight: u32,
    /// Longest segment in bytes. A longer segment raises this value.
    pub longest: u32,
}

impl QfqConfig {
    /// Creates classes with these weights. Their longest segment is one frame, the default. The flow
    /// selects the class.
    #[must_use]
    pub fn weighted(weights: &[u32]) -> Self {
        let class = |weight: &u32| QfqClass { weight: *weight, longest: ETHERNET_FRAME_BYTES };
        Self {
            classifier: Classifier::Flow,
            classes: weights.iter().map(class).collect(),
            limit: DEFAULT_LIMIT,
        }
    }

    pub(super) fn check(&self) -> Result<(), KindError> {
        require("qfq", "number of classes", "at least 1", 0, !self.classes.is_empty())?;
        let mut sum = 0u32;
        for class in &self.classes {
            let weight = (1..=MAX_WEIGHT).contains(&class.weight);
            require("qfq", "weight", "1 to 1024", u64::from(class.weight), weight)?;
            let longest = (MIN_LONGEST..=1 << LONGEST_SHIFT).contains(&class.longest);
            require("qfq", "longest segment", "512 to 131072", u64::from(class.longest), longest)?;
            sum = sum.saturating_add(class.weight);
        }
        require("qfq", "sum of weights", "at most 65536", u64::from(sum), sum <= MAX_WEIGHT_SUM)
    }
}

#[derive(Clone, Debug)]
struct Class {
    queue: Queue,
    aggregate: u32,
    deficit: i64,
    /// Next class of the aggregate that has segments.
    next: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Qfq {
    classifier: Classifier,
    limit: usize,
    classes: Vec<Class>,
    schedule: Schedule,
    /// `ONE` divided by the sum of all classes' weights.
    inverse_weight_sum: u32,
    backlog: Backlog,
}

impl Qfq {
    pub(super) fn new(config: &QfqConfig) -> Self {
        let sum: u32 = config.classes.iter().map(|class| class.weight).sum();
        let mut qfq = Self {
            classifier: config.classifier.clone(),
            limit: config.limit as usize,
            classes: Vec::with_capacity(config.classes.len()),
            schedule: Schedule::new(config.classes.len()),
            inverse_weight_sum: ONE / sum.max(1),
            backlog: Backlog::default(),
        };
        for class in &config.classes {
            // As in the kernel, round the weight so that it matches its integer inverse.
            let weight = ONE / (ONE / class.weight);
            let aggregate = qfq.schedule.find_aggregate(class.longest, weight);
            qfq.schedule.resize(aggregate, 1);
            let deficit = i64::from(class.longest);
            qfq.classes.push(Class { queue: Queue::default(), aggregate, deficit, next: NONE });
        }
        qfq
    }

    pub(super) fn enqueue(&mut self, segment: Segment, dropped: &mut Vec<Segment>) {
        let Some(index) = self.classifier.class(&segment, self.classes.len()) else {
            dropped.push(segment);
            return;
        };
        let item = Item::from(segment);
        if self.classes[index].queue.len() >= self.limit || item.bytes > 1 << LONGEST_SHIFT {
            dropped.push(segment);
            return;
        }
        let aggregate = self.classes[index].aggregate as usize;
        if self.schedule.aggregates[aggregate].longest < item.bytes {
            self.move_class(index as u32, item.bytes, self.schedule.aggregates[aggregate].weight);
        }
        let class = &mut self.classes[index];
        let aggregate = class.aggregate;
        class.queue.push(item);
        self.backlog.add(&item);
        if class.queue.len() > 1 {
            return;
        }
        class.deficit = i64::from(self.schedule.aggregates[aggregate as usize].longest);
        self.append(index as u32);
        if self.schedule.aggregates[aggregate as usize].first == index as u32
            && self.schedule.in_service != aggregate
        {
            self.schedule.activate(aggregate);
        }
    }

    pub(super) fn dequeue(&mut self) -> Dequeued {
        let mut served = self.schedule.in_service;
        if served == NONE {
            return Dequeued::Empty;
        }
        let aggregate = &mut self.schedule.aggregates[served as usize];
        let head =
            if aggregate.is_active() { self.classes[aggregate.first as usize].queue.head_bytes() } else { 0 };
        if !aggregate.is_active() || aggregate.budget < head {
            aggregate.charge();
            aggregate.recharge();
            if aggregate.is_active() {
                aggregate.start = aggregate.finish;
                aggregate.plan();
                self.schedule.place(served);
            } else if self.backlog.segments == 0 {
                self.schedule.in_service = NONE;
                return Dequeued::Empty;
            }
            served = self.schedule.choose_next();
            self.schedule.in_service = served;
        }
        let Some(aggregate) = self.schedule.aggregates.get_mut(served as usize) else {
            return Dequeued::Empty;
        };
        let index = aggregate.first;
        let Some(item) = self.classes.get_mut(index as usize).and_then(|class| class.queue.pop()) else {
            return Dequeued::Empty;
        };
        aggregate.budget = aggregate.budget.saturating_sub(item.bytes);
        self.backlog.remove(&item);
        self.schedule.pass(u64::from(item.bytes) * u64::from(self.inverse_weight_sum));
        self.take_turn(index, item.bytes);
        Dequeued::Segment(item.segment)
    }

    pub(super) fn len(&self) -> usize {
        self.backlog.segments
    }

    pub(super) fn backlog_bytes(&self) -> u64 {
        self.backlog.bytes
    }

    /// Subtracts a segment from the deficit of its class, the first class of an aggregate. Moves on to the
    /// next class if this class has no more segments, or too small a deficit (`agg_dequeue`).
    fn take_turn(&mut self, index: u32, bytes: u32) {
        let class = &mut self.classes[index as usize];
        class.deficit -= i64::from(bytes);
        let empty = class.queue.is_empty();
        if !empty && class.deficit >= i64::from(class.queue.head_bytes()) {
            return;
        }
        let aggregate = &mut self.schedule.aggregates[class.aggregate as usize];
        if !empty {
            class.deficit += i64::from(aggregate.longest);
        }
        aggregate.first = class.next;
        if class.next == NONE {
            aggregate.last = NONE;
        }
        if !empty {
            self.append(index);
        }
    }

    fn append(&mut self, index: u32) {
        self.classes[index as usize].next = NONE;
        let aggregate = &mut self.schedule.aggregates[self.classes[index as usize].aggregate as usize];
        let last = std::mem::replace(&mut aggregate.last, index);
        if last == NONE {
            aggregate.first = index;
        } else {
            self.classes[last as usize].next = index;
        }
    }

    /// Moves a class to the aggregate for another longest segment (`qfq_change_agg`).
    fn move_class(&mut self, index: u32, longest: u32, weight: u32) {
        let old = self.classes[index as usize].aggregate;
        let active = !self.classes[index as usize].queue.is_empty();
        let new = self.schedule.find_aggregate(longest, weight);
        if active {
            self.remove_from_turns(index, old);
            if !self.schedule.aggregates[old as usize].is_active() {
                self.schedule.deactivate(old);
            }
        }
        if self.schedule.aggregates[old as usize].classes == 1 && self.schedule.in_service == old {
            self.schedule.in_service = self.schedule.choose_next();
        }
        self.schedule.resize(old, -1);
        self.schedule.resize(new, 1);
        self.classes[index as usize].aggregate = new;
        if active {
            self.append(index);
            if self.schedule.aggregates[new as usize].first == index && self.schedule.in_service != new {
                self.schedule.activate(new);
            }
        }
    }

    /// Removes a class from the list of its aggregate. The search is short, because the list has at most
    /// eight classes.
    fn remove_from_turns(&mut self, index: u32, aggregate: u32) {
        let next = self.classes[index as usize].next;
        let aggregate = &mut self.schedule.aggregates[aggregate as usize];
        let (mut previous, mut position) = (NONE, aggregate.first);
        while position != NONE && position != index {
            previous = position;
            position = self.classes[position as usize].next;
        }
        if previous == NONE {
            aggregate.first = next;
        } else {
            self.classes[previous as usize].next = next;
        }
        if aggregate.last == index {
            aggregate.last = previous;
        }
    }
}
