//! The sender's transmit path: TCP, queue choice, qdisc, byte queue limit and ring. Also the interrupt
//! that handles completions and acknowledgements.
//!
//! A transmit queue's interrupt does three things in this order:
//!
//! - It completes sent segments.
//! - It runs the TCP small queues tasklet, for the flows that had reached their limit (`tcp_tasklet_func`).
//! - It restarts the qdisc that had found the ring full (`net_tx_action`).
//!
//! On the polling processor, the kernel runs the last two steps in reverse order, after the poll.
//! Meanwhile, other processors handle acknowledgements, and the acknowledged flows send first. In the
//! simulator a poll takes effect immediately, and the order above models the kernel's behaviour.
//!
//! A receive queue's interrupt handles acknowledgements. Each acknowledgement lets its flow send
//! immediately. With few processors, ixgbe pairs a transmit and a receive queue on one vector and
//! handles both in one poll. In the simulator each queue has its own vector
//! (`docs/explanation/simulator.md`, "Assumptions").

use evenkeel_transmit::{Outcome, Pool};

use super::{Event, Simulation, soft_nic};
use crate::nic::descriptors_of;
use crate::parameters::{MANY_FLOWS, Parameters};
use crate::prefetch::prefetch;
use crate::qdisc::{Dequeued, Kind, SfqConfig};
use crate::segment::{HEADER_BYTES, PROBE, Segment};
use crate::settings::Settings;
use crate::tcp::{Ack, Blocked};
use crate::time::{MICROSECOND, Span, Time};

/// Band of bulk traffic, if the qdisc has bands.
const BULK_BAND: u8 = 1;
/// Retransmission timeout of a lost request: TCP's minimum.
const PROBE_PATIENCE: u64 = 200_000 * MICROSECOND;
/// An application that lags by less than this does not limit its flow: the send buffer covers the lag.
const APPLICATION_SLACK: u64 = 200 * MICROSECOND;

/// Number of flows to prefetch at once, if there are many flows.
const LOOK_AHEAD: usize = 8;

/// Default limit of a device's FIFO in segments (`tx_queue_len`).
const DEFAULT_QUEUE_LENGTH: u32 = 1000;

pub(crate) fn qdisc_of(settings: &Settings, parameters: &Parameters, queue: u32) -> Kind {
    if settings.nic.is_soft() {
        soft_nic::qdisc_of(settings, queue)
    } else if settings.fair_queueing {
        let quantum = settings.mss + HEADER_BYTES;
        Kind::sfq_prio(
            SfqConfig { quantum, ..SfqConfig::with_depth(parameters.sfq_depth) },
            DEFAULT_QUEUE_LENGTH,
        )
    } else {
        Kind::PfifoFast { limit: DEFAULT_QUEUE_LENGTH }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Yes,
    No,
}

impl Simulation {
    pub(crate) fn interrupt(&mut self, vector: u32) {
        let now = self.engine.now;
        let transmits = (vector as usize) < self.queues.len();
        if transmits {
            self.catch_up();
            if self.queues[vector as usize].sent.is_empty() {
                // No segment has left yet, for example because enqueues to other rings delayed it.
                self.expect_completion(vector);
                return;
            }
        }
        let processor = self.processors.of_vector(vector);
        let begin = self.processors.softirq_begin(processor, now);
        if begin > now {
            self.engine.plan(Event::Interrupt(vector), begin);
            return;
        }
        self.vectors[vector as usize].last_interrupt = now;
        self.charge(processor, self.parameters.costs.interrupt);
        if transmits {
            self.complete(vector, processor);
            self.run_tasklet(processor);
            self.run_qdisc(vector);
            if self.engine.planned(Event::Interrupt(vector)) == Time::NEVER {
                self.expect_completion(vector);
            }
            return;
        }
        self.take_acknowledgements(vector, processor);
        // Arrivals after this poll raise another interrupt.
        let line = &self.vectors[vector as usize];
        let arrival = line.acknowledgements.next();
        let answer = line.answers.front().copied();
        let request = line.requests.front().map(|entry| entry.0);
        if let Some(next) = arrival.into_iter().chain(answer).chain(request).min() {
            self.engine
                .plan_no_later(Event::Interrupt(vector), next.max(now + self.settings.interrupt_interval));
        }
    }

    pub(crate) fn charge(&mut self, processor: u32, work: Span) {
        self.processors.softirq(processor, self.engine.now, work);
    }

    fn complete(&mut self, queue: u32, processor: u32) {
        let mut sent = std::mem::take(&mut self.scratch_segments);
        std::mem::swap(&mut sent, &mut self.queues[queue as usize].sent);
        let (mut bytes, mut descriptors) = (0, 0);
        let mut work = 0;
        if self.flows.len() >= MANY_FLOWS {
            sent.iter().filter_map(|segment| self.flows.get(segment.flow as usize)).for_each(prefetch);
        }
        for segment in sent.drain(..) {
            bytes += u64::from(segment.frame_bytes());
            descriptors += descriptors_of(&segment);
            work += self.parameters.costs.completion;
            if segment.flow == PROBE {
                if let Some(probe) = &self.probe
                    && self.weights.release(&probe.word, probe.word.read(), false)
                {
                    self.weight_changed(queue, processor);
                }
                continue;
            }
            let flow = &mut self.flows[segment.flow as usize];
            if flow.processor != processor {
                work += self.parameters.costs.remote_completion;
            }
            if flow.sender.freed(&segment) {
                self.tasklet.push(segment.flow);
            }
            self.release_if_idle(segment.flow, processor);
        }
        self.scratch_segments = sent;
        if bytes > 0 && !self.settings.nic.is_soft() {
            let transmit = &mut self.queues[queue as usize];
            transmit.limit.completed(bytes, self.engine.now);
            transmit.ring.completed(descriptors);
        }
        self.charge(processor, work);
    }

    fn prefetch_next(&self, vector: u32) {
        let flows = self.vectors[vector as usize].acknowledgements.flows(LOOK_AHEAD);
        flows.for_each(|flow| prefetch(&self.flows[flow as usize]));
    }

    /// Handles the acknowledgements, the answers to the probe and the requests that have arrived. The flows
    /// of the acknowledgements may send immediately.
    fn take_acknowledgements(&mut self, vector: u32, processor: u32) {
        let now = self.engine.now;
        let are_many = self.flows.len() >= MANY_FLOWS;
        let (mut count, mut ack) = (0, Ack::default());
        while let Some(flow) = self.vectors[vector as usize].acknowledgements.take(now, &mut ack) {
            if are_many {
                if count % LOOK_AHEAD == 0 {
                    self.prefetch_next(vector);
                }
                count += 1;
            }
            self.charge(processor, self.parameters.costs.acknowledgement);
            self.flows[flow as usize].sender.on_ack(now, &ack);
            self.application_writes(flow);
            self.send(flow, processor, false);
        }
        while self.vectors[vector as usize].answers.front().is_some_and(|arrival| *arrival <= now) {
            self.vectors[vector as usize].answers.pop_front();
            if let Some(probe) = &mut self.probe {
                let next = probe.answered(now);
                self.engine.plan(Event::Probe(0), next);
            }
        }
        self.take_requests(vector);
    }

    /// Lets the application fill the space that acknowledgements have freed in the send buffer.
    fn application_writes(&mut self, number: u32) {
        let flow = &mut self.flows[number as usize];
        let acknowledged = flow.sender.delivered();
        let room = (acknowledged - flow.acknowledged).min(flow.remaining);
        flow.acknowledged = acknowledged;
        if room == 0 {
            return;
        }
        flow.remaining -= room;
        flow.sender.set_buffer_full(flow.remaining > 0);
        let work = room * self.parameters.costs.byte;
        let done = self.processors.application(flow.processor, self.engine.now, work);
        if done.since(self.engine.now) <= APPLICATION_SLACK && flow.writing == 0 {
            flow.sender.write(room);
        } else {
            flow.writing += room;
            self.plan_timer(number, done);
        }
    }

    /// Runs the flows that had reached their small queue limit, so that they send.
    fn run_tasklet(&mut self, processor: u32) {
        let batching = self.settings.transmit_batching;
        // `tcp_wfree` inserts a flow at the head of the list.
        self.tasklet.reverse();
        // An enqueue may drop a segment of another flow. That flow may then send, so the list can grow
        // during the loop.
        let mut next = 0;
        while let Some(&flow) = self.tasklet.get(next) {
            next += 1;
            self.send(flow, processor, batching);
        }
        self.tasklet.clear();
        let mut touched = std::mem::take(&mut self.touched);
        for queue in touched.drain(..) {
            self.run_qdisc(queue);
        }
        self.touched = touched;
    }

    /// Sends all segments that the flow may send. With `batch`, the function only marks the qdisc,
    /// which runs later.
    pub(crate) fn send(&mut self, number: u32, processor: u32, batch: bool) {
        loop {
            let sender = &mut self.flows[number as usize].sender;
            // A flow keeps its queue while it has segments below TCP.
            let idle = sender.bytes_below() == 0;
            match sender.next_segment(self.engine.now) {
                Ok(segment) => {
                    let segment = Segment { band: BULK_BAND, ..segment };
                    let queue = self.choose(number, idle, processor);
                    if !self.enqueue(queue, segment, processor) {
                        let flow = &mut self.flows[number as usize];
                        flow.dropped += u64::from(segment.payload);
                        flow.sender.refused(self.engine.now, &segment);
                        self.release_if_idle(number, processor);
                        self.plan_wait(number, Blocked::Window);
                        return;
                    }
                    if batch {
                        if !self.touched.contains(&queue) {
                            self.touched.push(queue);
                        }
                    } else {
                        self.run_qdisc(queue);
                    }
                }
                Err(blocked) => {
                    self.plan_wait(number, blocked);
                    return;
                }
            }
        }
    }

    #[inline]
    fn plan_wait(&mut self, number: u32, blocked: Blocked) {
        if let Blocked::Pacing(until) = blocked {
            self.plan_timer(number, until);
        }
        // A pending timer checks the current deadline when it fires.
        self.plan_timer(number, self.flows[number as usize].sender.deadline());
    }

    /// Schedules a flow's timer, unless the timer is already scheduled for this time or earlier.
    #[inline]
    pub(crate) fn plan_timer(&mut self, number: u32, at: Time) {
        let flow = &mut self.flows[number as usize];
        if flow.timer > at {
            flow.timer = at;
            self.engine.plan(Event::FlowTimer(number), at);
        }
    }

    fn choose(&mut self, number: u32, idle: bool, processor: u32) -> u32 {
        let flow = &self.flows[number as usize];
        let pool = flow.pool;
        let choice = self.weights.choose(
            &flow.word,
            &evenkeel_transmit::Segment {
                pool,
                policy: self.settings.policy,
                hash: flow.hash,
                weight: flow.weight,
                idle,
                held_on: None,
                wanted: None,
                data: true,
            },
        );
        debug_assert!(choice.queue.wrapping_sub(pool.first) < pool.count, "a flow has left its pool");
        self.flows[number as usize].queue = choice.queue;
        if choice.outcome == Outcome::Picked {
            self.picked(choice.queue, pool, processor);
        }
        choice.queue
    }

    fn picked(&mut self, queue: u32, pool: Pool, processor: u32) {
        if self.settings.policy == evenkeel_transmit::Policy::Dqa {
            self.charge(processor, u64::from(pool.count) * self.parameters.costs.queue_look);
        }
        self.weight_changed(queue, processor);
    }

    /// Releases the weight of a flow, if the flow has no data below TCP.
    fn release_if_idle(&mut self, number: u32, processor: u32) {
        let flow = &self.flows[number as usize];
        if flow.sender.bytes_below() == 0 && self.weights.release(&flow.word, flow.word.read(), false) {
            self.weight_changed(flow.queue, processor);
        }
    }

    /// Schedules the update of a queue's changed weight in the NIC, which takes a short time.
    fn weight_changed(&mut self, queue: u32, processor: u32) {
        if !self.settings.queue_weights {
            return;
        }
        let event = Event::WeightWrite(queue);
        if self.engine.planned(event) == Time::NEVER {
            self.charge(processor, self.parameters.costs.weight_write);
            self.engine.plan(event, self.engine.now + self.parameters.weight_latency);
        }
    }

    pub(crate) fn write_weight(&mut self, queue: u32) {
        let weight = self.weights.weight(queue).max(1);
        let before = self.nic.weight(queue);
        self.with_nic(|nic, now, outlet| nic.set_weight(now, queue, weight, outlet));
        self.weight_writes += 1;
        self.expect_anew(queue, before);
    }

    /// Enqueues a segment to the queue's qdisc, in pieces if the queue is shared (DSOS). Returns false if the
    /// qdisc refuses the whole segment.
    fn enqueue(&mut self, queue: u32, segment: Segment, processor: u32) -> bool {
        let costs = &self.parameters.costs;
        let mut work = costs.segment;
        if self.settings.fair_queueing {
            work += costs.fair_queueing;
        }
        let shared = self.weights.weight(queue) > 1;
        let mut taken = true;
        match self.settings.shared_segment {
            Some(limit) if shared && segment.payload > limit => {
                let piece_bytes = (limit / segment.mss).max(1) * segment.mss;
                self.flows[segment.flow as usize].sender.cut(segment.payload.div_ceil(piece_bytes));
                let mut sent = 0;
                while sent < segment.payload {
                    let payload = piece_bytes.min(segment.payload - sent);
                    let piece = Segment { sequence: segment.sequence + u64::from(sent), payload, ..segment };
                    sent += payload;
                    work += self.parameters.costs.piece;
                    // A refused piece is lost, like a loss on the wire.
                    if self.enqueue_piece(queue, piece) == Taken::No {
                        self.lost(&piece);
                    }
                }
            }
            _ => taken = self.enqueue_piece(queue, segment) == Taken::Yes,
        }
        if !self.settings.offload {
            work += self.parameters.costs.packet;
        }
        self.charge(processor, work);
        taken
    }

    /// Enqueues a segment or a piece to the qdisc. The qdisc may drop it, or drop another segment.
    fn enqueue_piece(&mut self, queue: u32, segment: Segment) -> Taken {
        let mut taken = Taken::Yes;
        let (place, segment) = self.settings.nic.qdisc_for(queue, segment);
        let mut dropped = self.queues[place as usize].qdisc.enqueue(self.engine.now, segment);
        while let Some(victim) = dropped {
            self.queues[queue as usize].drops += 1;
            if victim == segment {
                taken = Taken::No;
            } else {
                self.lost(&victim);
                if segment.flow != PROBE && victim.flow == segment.flow {
                    // The qdisc returns NET_XMIT_CN only if it drops a segment of the same flow.
                    self.flows[segment.flow as usize].sender.local_congestion(self.engine.now);
                }
            }
            dropped = self.queues[place as usize].qdisc.pop_dropped();
        }
        if taken == Taken::No && segment.flow == PROBE {
            self.lost_probe();
        }
        taken
    }

    fn lost(&mut self, segment: &Segment) {
        if segment.flow == PROBE {
            self.lost_probe();
            return;
        }
        let flow = &mut self.flows[segment.flow as usize];
        flow.dropped += u64::from(segment.payload);
        let processor = flow.processor;
        if flow.sender.freed(segment) {
            self.tasklet.push(segment.flow);
        }
        self.release_if_idle(segment.flow, processor);
    }

    /// Moves segments from a qdisc to its ring while the ring and its byte limit have space.
    pub(crate) fn run_qdisc(&mut self, queue: u32) {
        if self.settings.nic.is_soft() {
            self.run_soft_nic();
            return;
        }
        loop {
            let transmit = &mut self.queues[queue as usize];
            if !transmit.limit.may_enqueue() || !transmit.ring.may_enqueue() || transmit.qdisc.is_empty() {
                return;
            }
            let dequeued = transmit.qdisc.dequeue(self.engine.now);
            while let Some(victim) = self.queues[queue as usize].qdisc.pop_dropped() {
                self.queues[queue as usize].drops += 1;
                self.lost(&victim);
            }
            let transmit = &mut self.queues[queue as usize];
            match dequeued {
                Dequeued::Segment(segment) => {
                    transmit.limit.queued(u64::from(segment.frame_bytes()));
                    transmit.ring.queued(&segment);
                    self.with_nic(|nic, now, outlet| nic.enqueue(now, queue, segment, outlet));
                    self.expect_segment(queue, segment.flow);
                }
                Dequeued::Wait(until) => {
                    self.engine.plan(Event::Watchdog(queue), until);
                    return;
                }
                Dequeued::Empty => return,
            }
        }
    }

    /// Handles a flow's timer: the application's write is done, pacing allows more, or a retransmission is
    /// due.
    pub(crate) fn flow_timer(&mut self, number: u32) {
        let flow = &mut self.flows[number as usize];
        let processor = flow.processor;
        flow.timer = Time::NEVER;
        if flow.writing > 0 {
            let bytes = std::mem::take(&mut flow.writing);
            flow.sender.write(bytes);
        }
        if flow.sender.deadline() <= self.engine.now {
            flow.sender.on_deadline(self.engine.now);
        }
        self.catch_up();
        self.send(number, processor, false);
    }

    /// Handles a dropped request: the probe retransmits it after [`PROBE_PATIENCE`].
    fn lost_probe(&mut self) {
        if let Some(probe) = &self.probe {
            let (seen, processor) = (probe.word.read(), probe.processor);
            if self.weights.release(&probe.word, seen, false)
                && let Some(queue) = seen.queue()
            {
                self.weight_changed(queue, processor);
            }
        }
        self.engine.plan(Event::Probe(0), self.engine.now + PROBE_PATIENCE);
    }

    pub(crate) fn probe_event(&mut self) {
        self.catch_up();
        let Some(probe) = &mut self.probe else { return };
        probe.sent = self.engine.now;
        let segment = probe.request(self.settings.mss);
        let pool = probe.pool;
        let choice = self.weights.choose(
            &probe.word,
            &evenkeel_transmit::Segment {
                pool,
                policy: self.settings.policy,
                hash: probe.hash,
                weight: 1,
                idle: true,
                held_on: None,
                wanted: None,
                data: true,
            },
        );
        let processor = probe.processor;
        self.weight_changed(choice.queue, processor);
        self.enqueue_piece(choice.queue, segment);
        self.run_qdisc(choice.queue);
    }
}
