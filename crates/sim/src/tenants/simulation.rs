//! The simulation of tenants: processes that write and read, and the path of their segments.
//!
//! | event | effect |
//! |---|---|
//! | a processor completes work | a process has written or read; a segment or an acknowledgement has arrived |
//! | watchdog of a queue | a shaper may send again |
//! | line | the line has sent a segment, and takes the next segment |
//! | timer of a connection | retransmission, pacing, TCP small queues |
//! | delayed acknowledgement | the receiver's timer of a connection expires |
//! | start, on and off | a process begins to write, or stops |
//!
//! The processor that enqueues a segment also runs the qdisc. A timer's softirq runs on the last
//! processor that ran the qdisc. The flow's processor receives the segment (receive packet steering).

use evenkeel_model::scenario::OnOff;

use super::connection::Connection;
use super::device::{Bins, Device, Offer};
use super::traffic::{Program, Role, Tenants};
use crate::costs::processes::Machine;
use crate::engine::{self, Engine, Handler, events};
use crate::error::SimulationError;
use crate::event::Slot;
use crate::observation::Observation;
use crate::processors::process_scheduler::{Account, Done, Piece, ProcessScheduler, Times, Work};
use crate::random::{Component, Generator};
use crate::segment::Segment;
use crate::tcp::{Ack, Blocked, Reply};
use crate::time::{MICROSECOND, Span, Time};

#[derive(Clone, Copy, Debug)]
pub(super) enum Then {
    Nothing,
    /// A segment arrives, into which this many further segments were merged.
    Receive(Segment, u32),
    Acknowledge(u32, Ack),
    Window(u32),
}

/// Limits of one piece of a program's work: copied bytes, and system calls.
const PIECE_BYTES: u64 = 64 << 10;
const PIECE_CALLS: u64 = 32;
/// Largest segment that GRO creates (`GRO_LEGACY_MAX_SIZE`).
const GRO_BYTES: u32 = 65_536;

events! {
    /// Events of tenants. The module's table has the details. A processor's slot is its number.
    enum Event in Slots {
        Processor: processors,
        Watchdog: watchdogs,
        Line: line,
        SenderTimer: sender_timers,
        DelayedAck: delayed_acks,
        Program: programs,
    }
}

pub(super) struct Simulation {
    machine: Machine,
    engine: Engine<Event>,
    processors: ProcessScheduler<Then>,
    pub(super) programs: Vec<Program>,
    pub(super) connections: Vec<Connection>,
    /// Number of connections through the device. All further connections are reverse directions.
    forward: u32,
    pub(super) device: Device,
    pub(super) queues: Vec<u32>,
    /// The processor that last ran each queue's qdisc. The last entry is for the line.
    runner: Vec<Slot>,
    aggregation: bool,
    pub(super) bins: Bins,
    pub(super) observation: Observation,
    pub(super) idleness: Vec<Idleness>,
    scratch: Vec<Segment>,
}

/// The bins in which a connection was idle for at least some time.
#[derive(Clone, Debug, Default)]
pub(super) struct Idleness {
    pub(super) bins: Vec<bool>,
    since: Option<Time>,
}

impl Simulation {
    pub(super) fn new(
        machine: &Machine,
        tenants: Tenants,
        device: Device,
        bins: Bins,
        end: Time,
        seed: u64,
    ) -> Self {
        let (programs, connections) = (tenants.programs, tenants.connections);
        let count = connections.len() as u32;
        let slots =
            Slots::new([machine.processors, device.queues() as u32, 1, count, count, programs.len() as u32]);
        let mut hashes = Generator::new(seed, Component::ReceiveHashes);
        let queues = device.queues() as u64;
        let mut processors =
            ProcessScheduler::new(machine.processors, programs.len(), machine.slice, (bins.begin, end));
        for (program, home) in
            (0..).zip(&programs).filter_map(|(number, program)| Some((number, program.home?)))
        {
            processors.pin(program, home);
        }
        Self {
            engine: Engine::new(slots, slots.sender_timers.begin),
            processors,
            queues: (0..count).map(|_| hashes.below(queues) as u32).collect(),
            runner: vec![0; device.queues() + 1],
            observation: Observation::new(tenants.forward as usize, bins.begin, bins.length, bins.count),
            idleness: vec![Idleness { bins: vec![false; bins.count], since: None }; tenants.forward as usize],
            forward: tenants.forward,
            aggregation: tenants.aggregation,
            machine: machine.clone(),
            programs,
            connections,
            device,
            bins,
            scratch: Vec::new(),
        }
    }

    /// Starts every program that does not wait for data, each at a random time before `within` has passed.
    pub(super) fn start(&mut self, seed: u64, within: Span) {
        let mut starts = Generator::new(seed, Component::Starts);
        for number in 0..self.programs.len() {
            let at = self.engine.now + starts.below(within.max(1));
            if self.programs[number].starts() {
                self.engine.plan(Event::Program(number as u32), at);
            }
        }
    }

    /// Runs until `until`, which becomes the present.
    pub(super) fn run(&mut self, until: Time) -> Result<(), SimulationError> {
        engine::run(self, until)?;
        self.engine.now = until;
        Ok(())
    }

    fn acknowledge_late(&mut self, number: u32) {
        let receiver = &mut self.connections[number as usize].receiver;
        if receiver.on_deadline(self.engine.now) {
            let ack = receiver.acknowledgement();
            let then = Then::Acknowledge(number, ack);
            self.softirq(self.processor_of(number), self.machine.costs.acknowledgement, then);
        }
    }

    fn processor_done(&mut self, processor: Slot) {
        match self.processors.finished(self.engine.now, processor) {
            Some(Done::Work(then)) => self.work_done(processor, then),
            Some(Done::Piece(program)) => self.piece_done(processor, program),
            Some(Done::Switched) | None => {}
        }
        self.go_on(processor);
    }

    fn go_on(&mut self, processor: Slot) {
        while let Some(done) = self.processors.go_on(self.engine.now, processor, &mut self.engine.calendar) {
            match done {
                Done::Switched => {
                    let work = Work {
                        cost: self.machine.costs.switch,
                        account: Account::System,
                        then: Then::Nothing,
                    };
                    self.processors.raise(self.engine.now, processor, work, &mut self.engine.calendar);
                }
                Done::Piece(program) => match self.next_piece(program) {
                    Some(piece) => {
                        self.processors.run(self.engine.now, processor, piece, &mut self.engine.calendar)
                    }
                    None => self.processors.block(self.engine.now, processor),
                },
                Done::Work(_) => {}
            }
        }
        // A process that this processor has returned to the queue may run on an idle processor.
        if let Some(idle) = self.processors.idle_while_waited() {
            let work = self.wake_up();
            self.processors.raise(self.engine.now, idle, work, &mut self.engine.calendar);
        }
    }

    /// Returns the wake-up work of an idle processor, which precedes its other work.
    fn wake_up(&self) -> Work<Then> {
        Work { cost: self.machine.wake_latency, account: Account::Idle, then: Then::Nothing }
    }

    fn softirq(&mut self, processor: Slot, cost: Span, then: Then) {
        let work = Work { cost, account: Account::Softirq, then };
        self.processors.raise(self.engine.now, processor, work, &mut self.engine.calendar);
    }

    /// Wakes a program if it waits. The cost goes to the waking processor.
    ///
    /// Data wakes its reader on this processor. Free buffer space wakes its writer on any processor.
    /// `sock_def_readable` is a synchronous wake-up, `sk_stream_write_space` is not.
    fn wake(&mut self, processor: Slot, program: u32, by_data: bool) {
        if !std::mem::take(&mut self.programs[program as usize].waits) {
            return;
        }
        self.softirq(processor, self.machine.costs.wake, Then::Nothing);
        self.wake_on(by_data.then_some(processor), program);
    }

    fn wake_on(&mut self, processor: Option<Slot>, program: u32) {
        let latency = self.wake_up();
        self.processors.wake(self.engine.now, program, processor, latency, &mut self.engine.calendar);
    }

    /// Returns the processor for the work of a connection's timer: the last that ran the qdisc of its queue.
    fn processor_of(&self, connection: u32) -> Slot {
        self.runner[self.queues[connection as usize] as usize]
    }

    // ---- Programs -------------------------------------------------------------------------------

    /// Returns the next piece of a program's work, or `None` if the program waits. A program other than a
    /// probe calls `select` before it waits.
    fn next_piece(&mut self, number: u32) -> Option<Piece> {
        let piece = self.work_of(number);
        let wait = self.machine.costs.wait;
        let program = &mut self.programs[number as usize];
        let asks = piece.is_none() && !program.asked_to_wait && !matches!(program.role, Role::Probe { .. });
        program.asked_to_wait = asks;
        if asks {
            program.waits = false;
            return Some(Piece { user: 0, system: wait });
        }
        piece
    }

    fn work_of(&mut self, number: u32) -> Option<Piece> {
        let costs = &self.machine.costs;
        let program = &mut self.programs[number as usize];
        let copy = |bytes: u64| bytes * costs.copy_kib / 1024;
        match program.role {
            Role::Client { connection, length, .. } => {
                let connection = &mut self.connections[connection as usize];
                if !program.is_on && program.left == 0 {
                    connection.set_waiting(false);
                    program.waits = true;
                    return None;
                }
                let room = connection.room();
                // Combine short writes into one piece, and split a long write.
                let (calls, bytes) = if program.left > 0 {
                    (0, program.left)
                } else {
                    let calls = (PIECE_CALLS.min(1024 / length)).min(room / length).max(1);
                    (calls, calls * length)
                };
                let piece = bytes.min(room).min(PIECE_BYTES);
                connection.set_waiting(piece == 0);
                if piece == 0 {
                    program.waits = true;
                    return None;
                }
                program.left = bytes - piece;
                program.piece = piece;
                Some(Piece {
                    user: calls * costs.write_user,
                    system: calls * costs.write_system + copy(piece),
                })
            }
            Role::Server { connection, length } => {
                let readable = self.connections[connection as usize].readable();
                if readable == 0 {
                    program.waits = true;
                    return None;
                }
                let piece = readable.min(PIECE_BYTES).min(length.saturating_mul(PIECE_CALLS));
                program.piece = piece;
                let calls = piece.div_ceil(length);
                Some(Piece { user: calls * costs.read_user, system: calls * costs.read_system + copy(piece) })
            }
            Role::Probe { inward, outward, message, first } => {
                if program.turn_to_write {
                    let room = self.connections[outward as usize].room();
                    let piece = program.left.min(room).min(PIECE_BYTES);
                    if piece == 0 {
                        program.waits = true;
                        return None;
                    }
                    if first && program.left == message {
                        program.asked = self.engine.now;
                    }
                    let user = if program.left == message { costs.message_user } else { 0 };
                    program.left -= piece;
                    program.piece = piece;
                    return Some(Piece { user, system: costs.message_system + copy(piece) });
                }
                let piece = self.connections[inward as usize].readable().min(PIECE_BYTES).min(program.left);
                if piece == 0 {
                    program.waits = true;
                    return None;
                }
                program.piece = piece;
                let user = if piece == program.left { costs.message_user } else { 0 };
                Some(Piece { user, system: costs.message_system + copy(piece) })
            }
        }
    }

    fn piece_done(&mut self, processor: Slot, number: u32) {
        let program = &mut self.programs[number as usize];
        let piece = std::mem::take(&mut program.piece);
        if piece == 0 {
            return;
        }
        match program.role {
            Role::Client { connection, .. } => {
                let ended = program.left == 0;
                self.write(processor, connection, piece, ended);
            }
            Role::Server { connection, .. } => self.read(processor, connection, piece),
            Role::Probe { inward, outward, message, first } => {
                if program.turn_to_write {
                    if program.left == 0 {
                        program.turn_to_write = false;
                        program.left = message;
                    }
                    self.write(processor, outward, piece, true);
                    return;
                }
                program.left -= piece;
                if program.left == 0 {
                    program.turn_to_write = true;
                    program.left = message;
                    if first && self.bins.of(self.engine.now).is_some() {
                        program
                            .samples
                            .push(self.engine.now.since(program.asked) as f64 / MICROSECOND as f64 / 2.0);
                    }
                }
                self.read(processor, inward, piece);
            }
        }
    }

    /// Handles a completed write: sends all data that may be sent. The end of a write may be corked.
    fn write(&mut self, processor: Slot, number: u32, bytes: u64, ended: bool) {
        self.note_busy(number);
        let connection = &mut self.connections[number as usize];
        connection.write(bytes);
        if ended && connection.corks() {
            return;
        }
        self.send(processor, number, Account::System);
    }

    fn read(&mut self, processor: Slot, number: u32, bytes: u64) {
        let connection = &mut self.connections[number as usize];
        connection.read += bytes;
        if connection.opens_window() {
            self.softirq(processor, self.machine.costs.acknowledgement, Then::Window(number));
        }
    }

    /// Handles a program's timer: its start, or the beginning or end of a sending period.
    fn program_timer(&mut self, number: u32) {
        let event = Event::Program(number);
        let begin = self.bins.begin;
        let program = &mut self.programs[number as usize];
        if !program.started {
            program.started = true;
            program.waits = false;
            program.is_on = true;
            if let Role::Client { on_off: Some(_), .. } = program.role {
                // From the beginning of the measurement, sending periods and pauses alternate.
                self.engine.plan(event, begin.max(self.engine.now + 1));
            }
            self.wake_on(None, number);
            return;
        }
        let Role::Client { on_off: Some(OnOff { on, off }), .. } = program.role else { return };
        let (on, off) = (on.as_u64().saturating_mul(1000).max(1), off.as_u64().saturating_mul(1000).max(1));
        let phase = self.engine.now.since(begin) % (on + off);
        program.is_on = phase < on;
        let next = if program.is_on { on - phase } else { on + off - phase };
        self.engine.plan(event, self.engine.now + next);
        if program.is_on {
            program.waits = false;
            self.wake_on(None, number);
        } else {
            self.note_if_idle(program_connection(&self.programs[number as usize]));
        }
    }

    // ---- The path of segments ---------------------------------------------------------------------

    fn send(&mut self, processor: Slot, number: u32, account: Account) {
        let mut pacing = None;
        let mut sent = false;
        loop {
            match self.connections[number as usize].next_segment(self.engine.now) {
                Ok(segment) => {
                    sent = true;
                    if !self.enqueue(processor, number, segment, account) {
                        break;
                    }
                }
                Err(blocked) => {
                    if let Blocked::Pacing(until) = blocked {
                        pacing = Some(until);
                    }
                    break;
                }
            }
        }
        let deadline = self.connections[number as usize].deadline(pacing);
        self.engine.plan(Event::SenderTimer(number), deadline);
        if sent && number < self.forward {
            self.run_device(processor);
        }
        self.note_if_idle(number);
    }

    /// Enqueues a segment. Returns false if the qdisc refuses the segment.
    fn enqueue(&mut self, processor: Slot, number: u32, segment: Segment, account: Account) -> bool {
        let mut cost = self.machine.costs.segment;
        if number >= self.forward {
            // The reverse direction has no qdisc.
            self.raise(processor, cost, account);
            self.arrive(segment);
            return true;
        }
        let queue = self.queues[number as usize];
        let segment = Segment { band: self.band(number), ..segment };
        let mut dropped = std::mem::take(&mut self.scratch);
        let pieces = self.device.enqueue(self.engine.now, queue, segment, &mut dropped);
        cost += self.device.cost(queue, number).0 * u64::from(pieces.max(1));
        self.raise(processor, cost, account);
        if pieces > 1 {
            self.connections[number as usize].sender.cut(pieces);
        }
        let mut taken = true;
        for victim in dropped.drain(..) {
            if victim == segment {
                taken = false;
                self.connections[number as usize].sender.refused(self.engine.now, &segment);
            } else {
                if victim.flow == segment.flow {
                    // The qdisc returns NET_XMIT_CN only if it drops a segment of the same flow.
                    self.connections[number as usize].sender.local_congestion(self.engine.now);
                }
                self.lost(&victim);
            }
        }
        self.scratch = dropped;
        taken
    }

    fn raise(&mut self, processor: Slot, cost: Span, account: Account) {
        let work = Work { cost, account, then: Then::Nothing };
        self.processors.raise(self.engine.now, processor, work, &mut self.engine.calendar);
    }

    /// Returns the band that a connection's `skb->priority` selects. Probes are interactive.
    fn band(&self, number: u32) -> u8 {
        let is_probe = self.connections[number as usize].is_probe();
        u8::from(!is_probe)
    }

    fn lost(&mut self, segment: &Segment) {
        let connection = &mut self.connections[segment.flow as usize];
        if connection.freed(segment) {
            // The tasklet of TCP small queues runs soon.
            let deadline = connection.deadline(Some(self.engine.now));
            self.engine.plan_no_later(Event::SenderTimer(segment.flow), deadline);
        }
    }

    fn run_device(&mut self, processor: Slot) {
        let mut dropped = std::mem::take(&mut self.scratch);
        loop {
            let offer = self.device.next(self.engine.now, &mut dropped);
            for victim in dropped.drain(..) {
                self.lost(&victim);
            }
            match offer {
                Some(Offer::Segment(queue, segment)) => {
                    self.runner[queue as usize] = processor;
                    let cost = self.device.cost(queue, segment.flow).1;
                    self.softirq(processor, cost, Then::Nothing);
                    if let Some(free_at) = self.device.line_free_at() {
                        if let Some(last) = self.runner.last_mut() {
                            *last = processor;
                        }
                        self.engine.plan(Event::Line(0), free_at);
                        break;
                    }
                    self.hand_over(segment);
                }
                Some(Offer::Wait(queue, until)) => {
                    self.runner[queue as usize] = processor;
                    let until = if until == Time::NEVER { until } else { until + self.machine.timer_latency };
                    self.engine.plan(Event::Watchdog(queue), until);
                    break;
                }
                None => break,
            }
        }
        self.scratch = dropped;
    }

    fn line_done(&mut self) {
        let processor = self.runner.last().copied().unwrap_or(0);
        self.softirq(processor, self.machine.costs.timer, Then::Nothing);
        if let Some(segment) = self.device.take_sent() {
            self.hand_over(segment);
        }
        self.run_device(processor);
    }

    fn hand_over(&mut self, segment: Segment) {
        let (device, now) = (&self.device, self.engine.now);
        let left_at = |index| device.packet_left_at(&segment, index, now);
        let each = |index| (left_at(index), u64::from(segment.packet(index).frame_bytes()));
        let (packets, bytes) = (segment.packets(), u64::from(segment.frame_bytes()));
        self.observation.count(segment.flow as usize, packets, bytes, (left_at(0), now), each);
        self.arrive(segment);
    }

    /// Raises the softirq of a segment's receiver, on the processor that receive packet steering selects for
    /// the flow. GRO may instead merge the segment into a waiting one. Without GRO, the cost is per packet.
    fn arrive(&mut self, segment: Segment) {
        let processor = self.receiver_of(segment.flow);
        if self.aggregation && self.merge(processor, &segment) {
            return;
        }
        if self.processors.is_idle(processor) {
            let work = self.wake_up();
            self.processors.raise(self.engine.now, processor, work, &mut self.engine.calendar);
        }
        let packets = if self.aggregation { 1 } else { u64::from(segment.packets()) };
        let cost = self.machine.costs.receive + packets * self.machine.costs.packet;
        self.softirq(processor, cost, Then::Receive(segment, 0));
    }

    /// Returns the processor for the packets of a flow. Requests and their answers have different
    /// processors if there are several.
    fn receiver_of(&self, number: u32) -> Slot {
        let back = u32::from(number >= self.forward);
        let flow = if back > 0 { self.connections[number as usize].reverse.unwrap_or(0) } else { number };
        (flow + back) % self.machine.processors
    }

    /// Merges a segment into a segment that waits for the same poll, if the new segment continues it (GRO).
    /// Returns whether the segment was merged.
    fn merge(&mut self, processor: Slot, segment: &Segment) -> bool {
        let is_arrival = |work: &&mut Work<Then>| matches!(work.then, Then::Receive(..));
        let Some(work) = self.processors.waiting(processor).rev().find(is_arrival) else { return false };
        let Then::Receive(last, merged) = &mut work.then else { return false };
        let whole = last.payload % last.mss == 0 && segment.payload <= last.mss;
        if !whole || !follows(last, segment) || last.length() + segment.payload > GRO_BYTES {
            return false;
        }
        last.payload += segment.payload;
        *merged += 1;
        work.cost += self.machine.costs.merge;
        true
    }

    fn work_done(&mut self, processor: Slot, then: Then) {
        match then {
            Then::Nothing => {}
            Then::Receive(segment, merged) => self.received(processor, segment, merged),
            Then::Acknowledge(number, ack) => {
                self.connections[number as usize].sender.on_ack(self.engine.now, &ack);
                self.acknowledged(processor, number);
            }
            Then::Window(number) => self.send(processor, number, Account::Softirq),
        }
    }

    /// Continues sending after an acknowledgement, and wakes the sender's program if the buffer has
    /// space.
    fn acknowledged(&mut self, processor: Slot, number: u32) {
        self.send(processor, number, Account::Softirq);
        let writer = self.connections[number as usize].writer;
        if self.programs[writer as usize].waits_for_room(number)
            && self.connections[number as usize].has_space()
        {
            self.wake(processor, writer, false);
        }
    }

    /// Handles a segment at its receiver. Its arrival frees the sender's socket memory, because a veth passes
    /// the skb on.
    fn received(&mut self, processor: Slot, segment: Segment, merged: u32) {
        let number = segment.flow;
        let connection = &mut self.connections[number as usize];
        let mut more = connection.freed(&segment);
        for _ in 0..merged {
            more |= connection.freed(&Segment { payload: 0, ..segment });
        }
        let reply = connection.receiver.on_data(
            self.engine.now,
            segment.sequence,
            segment.payload,
            segment.packets(),
        );
        match reply {
            Reply::Now => {
                let ack = connection.receiver.acknowledgement();
                self.softirq(processor, self.machine.costs.acknowledgement, Then::Acknowledge(number, ack));
            }
            Reply::Delayed(deadline) => self.engine.plan(Event::DelayedAck(number), deadline),
            Reply::Unchanged => {}
        }
        if let Some(reverse) = self.connections[number as usize].reverse {
            // The data also carries an acknowledgement for the other direction.
            let receiver = &mut self.connections[reverse as usize].receiver;
            if receiver.deadline() != Time::NEVER {
                let ack = receiver.acknowledgement();
                self.connections[reverse as usize].sender.on_ack(self.engine.now, &ack);
                self.acknowledged(processor, reverse);
            }
        }
        if more {
            self.send(processor, number, Account::Softirq);
        }
        let connection = &self.connections[number as usize];
        if connection.readable() > 0 {
            let reader = connection.reader;
            if self.programs[reader as usize].waits_for_data(number) {
                self.wake(processor, reader, true);
            }
        }
    }

    fn sender_timer(&mut self, number: u32) {
        let sender = &mut self.connections[number as usize].sender;
        if sender.deadline() <= self.engine.now {
            sender.on_deadline(self.engine.now);
        }
        let processor = self.processor_of(number);
        self.softirq(processor, self.machine.costs.timer, Then::Nothing);
        self.send(processor, number, Account::Softirq);
    }

    // ---- Backlogged flows -------------------------------------------------------------------------

    fn note_busy(&mut self, number: u32) {
        let (bins, now) = (self.bins, self.engine.now);
        if let Some(idleness) = self.idleness.get_mut(number as usize)
            && let Some(since) = idleness.since.take()
        {
            idleness.mark(bins, since, now);
        }
    }

    /// Marks a connection as idle if the connection has no unsent data and the program does not write.
    fn note_if_idle(&mut self, number: u32) {
        let connection = &self.connections[number as usize];
        let writer = &self.programs[connection.writer as usize];
        let writes = matches!(writer.role, Role::Client { .. }) && (writer.is_on || writer.left > 0);
        let idle = connection.unsent() == 0 && !writes;
        if let Some(idleness) = self.idleness.get_mut(number as usize)
            && idle
        {
            idleness.since.get_or_insert(self.engine.now);
        }
    }

    // ---- Results ----------------------------------------------------------------------------------

    pub(super) fn begin_count(&mut self) {
        self.device.begin_count();
    }

    pub(super) fn processor_times(&self) -> impl Iterator<Item = Times> {
        self.processors.times()
    }

    pub(super) fn program_times(&self, number: usize) -> (Span, Span) {
        self.processors.times_of(number as u32)
    }

    pub(super) fn end(&mut self) {
        for number in 0..self.forward {
            self.note_busy(number);
        }
    }
}

impl Handler for Simulation {
    type Event = Event;

    fn engine(&mut self) -> &mut Engine<Event> {
        &mut self.engine
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Processor(processor) => self.processor_done(processor),
            Event::Watchdog(queue) => {
                let processor = self.runner[queue as usize];
                self.softirq(processor, self.machine.costs.timer, Then::Nothing);
                self.run_device(processor);
            }
            Event::Line(_) => self.line_done(),
            Event::SenderTimer(connection) => self.sender_timer(connection),
            Event::DelayedAck(connection) => self.acknowledge_late(connection),
            Event::Program(program) => self.program_timer(program),
        }
    }

    fn sent(&mut self) -> u64 {
        self.observation.packets
    }
}

/// Returns whether a segment follows directly after `last` in the stream.
fn follows(last: &Segment, segment: &Segment) -> bool {
    last.flow == segment.flow && last.sequence + u64::from(last.payload) == segment.sequence
}

fn program_connection(program: &Program) -> u32 {
    match program.role {
        Role::Client { connection, .. } | Role::Server { connection, .. } => connection,
        Role::Probe { outward, .. } => outward,
    }
}

impl Idleness {
    fn mark(&mut self, bins: Bins, since: Time, until: Time) {
        if until <= bins.begin || bins.length == 0 {
            return;
        }
        let first = (since.since(bins.begin) / bins.length) as usize;
        let last = (until.since(bins.begin) / bins.length) as usize;
        for idle in self.bins.iter_mut().take(last + 1).skip(first) {
            *idle = true;
        }
    }
}
