//! Schedules interrupts: the sender's for completions of a ring, the receiver's for arrivals.
//!
//! An interrupt is scheduled for the time at which its segment or packet leaves if the stack enqueues
//! no more data. Later enqueues only delay this time. If the packet has not left when the event fires,
//! the handler reschedules the interrupt. A changed weight can make the time earlier. The code then
//! reschedules the interrupt immediately.

use super::{Event, Simulation};
use crate::nic::Nic;
use crate::segment::PROBE;
use crate::time::Time;

impl Simulation {
    /// Schedules two interrupts for a segment enqueued to the ring `queue`, unless they are already
    /// scheduled: the sender's completion interrupt, and the receiver's receive interrupt.
    #[inline]
    pub(crate) fn expect_segment(&mut self, queue: u32, flow: u32) {
        if self.engine.planned(Event::Interrupt(queue)) == Time::NEVER {
            self.expect_completion(queue);
        }
        if self.outbox.is_none()
            && let Some(receive_queue) = self.receive_queue_of(flow)
        {
            self.sink.enters(receive_queue, queue);
            let planned = self.engine.planned(Event::ReceiverInterrupt(receive_queue));
            let at = || self.nic.first_packet_of_newest(queue);
            self.plan_receiver_interrupt(receive_queue, self.sink.due(receive_queue, planned, at));
        }
    }

    /// Schedules the interrupt of a receive queue to which more data arrives at `at` or later.
    #[inline]
    pub(crate) fn expect_arrival_at(&mut self, receive_queue: u32, at: Time) {
        let planned = self.engine.planned(Event::ReceiverInterrupt(receive_queue));
        self.plan_receiver_interrupt(receive_queue, self.sink.due(receive_queue, planned, || at));
    }

    #[inline]
    fn plan_receiver_interrupt(&mut self, receive_queue: u32, due: Option<Time>) {
        if let Some(at) = due {
            self.engine.plan_no_later(Event::ReceiverInterrupt(receive_queue), at);
        }
    }

    /// Schedules the interrupt of a ring for the earliest time at which the ring's next segment can
    /// have left.
    pub(crate) fn expect_completion(&mut self, queue: u32) {
        if self.nic.head(queue).is_none() {
            return;
        }
        self.plan_completion(queue, |nic| nic.next_finish(queue));
    }

    /// Schedules the interrupt of a ring whose next segment leaves at `finish` or later, but not before the
    /// end of the moderation interval.
    #[inline]
    fn plan_completion(&mut self, queue: u32, finish: impl FnOnce(&Nic) -> Time) {
        let allowed = self.interrupt_allowed(queue);
        // If the time is too early, the event handler reschedules the interrupt.
        let at = if allowed > self.engine.now && self.nic.may_finish_by(queue, allowed) {
            allowed
        } else {
            finish(&self.nic).max(allowed)
        };
        self.engine.plan(Event::Interrupt(queue), at);
    }

    fn interrupt_allowed(&self, queue: u32) -> Time {
        self.vectors[queue as usize].last_interrupt + self.settings.interrupt_interval
    }

    /// Schedules the interrupt of a receive queue for the earliest arrival of a packet that is still in
    /// a ring.
    pub(crate) fn expect_arrival(&mut self, receive_queue: u32) {
        let under_way = self.sink.under_way(receive_queue);
        let at = self.nic.earliest_packet(
            |queue| under_way[queue as usize] > 0,
            |segment| self.receive_queue_of(segment.flow) == Some(receive_queue),
        );
        if at != Time::NEVER {
            self.expect_arrival_at(receive_queue, at);
        }
    }

    /// Returns the receive queue at which a flow, or the probe, arrives.
    #[inline]
    fn receive_queue_of(&self, flow: u32) -> Option<u32> {
        match flow {
            PROBE => self.probe.as_ref().map(|probe| probe.sink_queue),
            flow => Some(self.sink.queue_of(flow)),
        }
    }

    /// Reschedules the interrupts that can become earlier because a queue's weight changed from
    /// `before`.
    pub(crate) fn expect_anew(&mut self, queue: u32, before: u32) {
        let weight = self.nic.weight(queue);
        if weight == before || self.nic.head(queue).is_none() {
            return;
        }
        let mut finishes = std::mem::take(&mut self.scratch_finishes);
        // If the moderation interval of a queue is the limit, weights do not change the interrupt's
        // time.
        let waits = |queue| self.engine.planned(Event::Interrupt(queue)) <= self.interrupt_allowed(queue);
        let wanted = |queue| !waits(queue) && self.queues[queue as usize].sent.is_empty();
        if weight < before {
            self.nic.finishes(Some(queue), wanted, &mut finishes);
            for (queue, at) in finishes.iter() {
                self.plan_completion(queue, |_| at);
            }
        } else if wanted(queue) {
            // The segments of other queues do not leave earlier.
            self.expect_completion(queue);
        }
        self.scratch_finishes = finishes;
        if self.outbox.is_none() {
            for queue in 0..self.sink.queues() {
                // The interrupt waits for a packet, not for the moderation interval.
                let planned = self.engine.planned(Event::ReceiverInterrupt(queue));
                if planned != Time::NEVER && planned > self.sink.interrupt_allowed(queue) {
                    self.expect_arrival(queue);
                }
            }
        }
    }
}
