//! The processors of a host: each operation takes time on one processor.
//!
//! [`Processors`] has two contexts. When work is raised, it computes the time at which the work
//! completes.
//!
//! - Softirq work has priority. On a saturated processor, softirq work delays interrupts.
//! - An application's work runs after all work that was raised before. On a saturated processor, the
//!   application's flows run out of data.
//!
//! A thread with a dedicated core (a poll-mode thread, a client) is an application without softirqs.
//! `process_scheduler` models processes that share processors by time slices, wake each other and
//! block.

pub(crate) mod process_scheduler;

use crate::time::{Span, Time};

#[derive(Clone, Copy, Debug, Default)]
struct Processor {
    softirq_until: Time,
    all_until: Time,
    /// Work since counting began, including work that was raised before but not complete.
    busy: Span,
}

/// Processors that run the work of each context in the order in which it is raised.
#[derive(Clone, Debug)]
pub struct Processors {
    all: Vec<Processor>,
}

impl Processors {
    #[must_use]
    pub fn new(count: u32) -> Self {
        Self { all: vec![Processor::default(); count.max(1) as usize] }
    }

    #[must_use]
    pub fn of_vector(&self, vector: u32) -> u32 {
        vector % self.all.len() as u32
    }

    /// Returns the time at which the processor can begin softirq work that is raised `now`.
    #[must_use]
    pub fn softirq_begin(&self, processor: u32, now: Time) -> Time {
        self.all[processor as usize].softirq_until.max(now)
    }

    pub fn softirq(&mut self, processor: u32, now: Time, work: Span) {
        let processor = &mut self.all[processor as usize];
        processor.softirq_until = processor.softirq_until.max(now) + work;
        processor.all_until = processor.all_until.max(now) + work;
        processor.busy += work;
    }

    /// Runs an application's work of this duration. Returns the time of completion.
    pub fn application(&mut self, processor: u32, now: Time, work: Span) -> Time {
        let processor = &mut self.all[processor as usize];
        processor.all_until = processor.all_until.max(now) + work;
        processor.busy += work;
        processor.all_until
    }

    pub fn begin_count(&mut self, now: Time) {
        for processor in &mut self.all {
            processor.busy = processor.all_until.since(now);
        }
    }

    /// Returns the busy time since counting began, summed over the processors. Work after `now` does
    /// not count.
    #[must_use]
    pub fn busy(&self, now: Time) -> Span {
        self.all.iter().map(|processor| processor.busy.saturating_sub(processor.all_until.since(now))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::MICROSECOND;

    #[test]
    fn softirq_work_comes_first_and_all_of_it_counts() {
        let mut processors = Processors::new(1);
        let now = Time(0);
        assert_eq!(processors.application(0, now, 5 * MICROSECOND), Time(5 * MICROSECOND));
        assert_eq!(processors.softirq_begin(0, now), now);
        processors.softirq(0, now, 2 * MICROSECOND);
        assert_eq!(processors.softirq_begin(0, now), Time(2 * MICROSECOND));
        assert_eq!(processors.application(0, now, MICROSECOND), Time(8 * MICROSECOND));
        assert_eq!(processors.busy(Time(3 * MICROSECOND)), 3 * MICROSECOND);
        assert_eq!(processors.busy(Time(9 * MICROSECOND)), 8 * MICROSECOND);
    }

    #[test]
    fn work_from_before_the_count_is_left_out() {
        let mut processors = Processors::new(2);
        processors.softirq(1, Time(0), 4 * MICROSECOND);
        processors.begin_count(Time(MICROSECOND));
        assert_eq!(processors.busy(Time(10 * MICROSECOND)), 3 * MICROSECOND);
    }
}
