//! The receive queues of all hosts of a cluster, on one engine.

use std::collections::VecDeque;
use std::vec::Drain;

use crate::engine::{self, Engine, Handler, events};
use crate::error::SimulationError;
use crate::segment::Packet;
use crate::sink::{Reaction, Sink};
use crate::tcp::{Ack, Receiver, ReceiverConfig};
use crate::time::{Span, Time};

#[derive(Clone, Copy, Debug)]
pub(super) struct Reader {
    /// Number of the reader's receive queue. The queues of all hosts are numbered together.
    pub(super) queue: u32,
    pub(super) bytes: u64,
}

#[derive(Clone, Debug, Default)]
struct ReceiveQueue {
    /// Packets in order of their arrival times.
    arriving: VecDeque<Packet>,
    unfinished: Vec<u32>,
    /// Whether the last packet of a flow has arrived. Every interrupt then checks all flows in
    /// `unfinished`, until none is left.
    ending: bool,
}

events! {
    enum Event in Slots {
        Interrupt: interrupts,
        DelayedAck: delayed_acks,
    }
}

pub(super) struct Reception {
    sink: Sink,
    engine: Engine<Event>,
    /// Acknowledgements, each with its flow and time of sending.
    answers: Vec<(u32, Time, Ack)>,
    readers: Vec<Reader>,
    queues: Vec<ReceiveQueue>,
    /// Time at which each flow had received all data.
    completed: Vec<Time>,
    unfinished: usize,
    /// Packets that interrupts have handled.
    packets: u64,
    /// Payload of `packets` in bytes.
    payload: u64,
    deadlines: Vec<(u32, Time)>,
}

impl Reception {
    /// Creates the receivers of all flows on `queues` receive queues. At least `interval` passes between two
    /// interrupts of a queue.
    pub(super) fn new(readers: Vec<Reader>, queues: u32, interval: Span, mss: u32) -> Self {
        let mut all = vec![ReceiveQueue::default(); queues as usize];
        for (flow, reader) in readers.iter().enumerate() {
            all[reader.queue as usize].unfinished.push(flow as u32);
        }
        let peers = readers
            .iter()
            .map(|reader| (Receiver::new(&ReceiverConfig { mss, ..ReceiverConfig::default() }), reader.queue))
            .collect();
        Self {
            sink: Sink::new(peers, queues, interval),
            engine: Engine::new(Slots::new([queues, readers.len() as u32]), queues),
            answers: Vec::new(),
            queues: all,
            completed: vec![Time::NEVER; readers.len()],
            unfinished: readers.len(),
            readers,
            packets: 0,
            payload: 0,
            deadlines: Vec::new(),
        }
    }

    /// Adds a packet that arrives at its host at `packet.at`. Calls for the same host must be in order
    /// of this time.
    #[inline]
    pub(super) fn deliver(&mut self, packet: Packet) {
        let number = self.readers[packet.flow as usize].queue;
        // If another packet precedes this packet, an interrupt is already scheduled.
        if self.queues[number as usize].arriving.is_empty() {
            self.expect(number, packet.at);
        }
        self.queues[number as usize].arriving.push_back(packet);
    }

    /// Handles the events until `until`. Returns every acknowledgement with its flow and time of sending.
    pub(super) fn run(&mut self, until: Time) -> Result<Drain<'_, (u32, Time, Ack)>, SimulationError> {
        engine::run(self, until)?;
        Ok(self.answers.drain(..))
    }

    fn expect(&mut self, number: u32, at: Time) {
        let event = Event::Interrupt(number);
        if let Some(at) = self.sink.due(number, self.engine.planned(event), || at) {
            self.engine.plan_no_later(event, at);
        }
    }

    fn interrupt(&mut self, number: u32) {
        let now = self.engine.now;
        let queue = &mut self.queues[number as usize];
        while let Some(packet) = queue.arriving.front().filter(|packet| packet.at <= now) {
            self.sink.arrived(packet.flow, packet.sequence, packet.payload.into(), 1, packet.at);
            let end = packet.sequence + u64::from(packet.payload);
            queue.ending |= end >= self.readers[packet.flow as usize].bytes;
            self.packets += 1;
            self.payload += u64::from(packet.payload);
            queue.arriving.pop_front();
        }
        let (deadlines, answers) = (&mut self.deadlines, &mut self.answers);
        self.sink.interrupt(number, now, |flow, reaction| match reaction {
            Reaction::Acknowledge(ack) => answers.push((flow, now, ack)),
            Reaction::Wait(deadline) => deadlines.push((flow, deadline)),
        });
        for (flow, deadline) in self.deadlines.drain(..) {
            self.engine.plan(Event::DelayedAck(flow), deadline);
        }
        if let Some(at) = self.queues[number as usize].arriving.front().map(|packet| packet.at) {
            self.expect(number, at);
        }
        let queue = &mut self.queues[number as usize];
        if queue.ending {
            let (sink, readers) = (&self.sink, &self.readers);
            let is_complete =
                |flow: u32| sink.peer(flow).receiver.delivered() >= readers[flow as usize].bytes;
            for &flow in queue.unfinished.iter().filter(|flow| is_complete(**flow)) {
                self.completed[flow as usize] = now;
                self.unfinished -= 1;
            }
            queue.unfinished.retain(|flow| !is_complete(*flow));
            // A flow stays unfinished if its last packet overtook others, so later interrupts check it
            // again.
            queue.ending = !queue.unfinished.is_empty();
        }
    }

    /// Returns the time of the next interrupt or deadline.
    pub(super) fn next_time(&mut self) -> Time {
        self.engine.next_time()
    }

    pub(super) fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// Returns the time at which a flow had received all data, or [`Time::NEVER`] if data is missing.
    pub(super) fn completed(&self, flow: u32) -> Time {
        self.completed[flow as usize]
    }

    pub(super) fn receiver(&self, flow: u32) -> &Receiver {
        &self.sink.peer(flow).receiver
    }

    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the received payload in bytes, without duplicates. Visits every flow.
    pub(super) fn distinct_bytes(&self) -> u64 {
        let of = |flow: u32| {
            let receiver = self.receiver(flow);
            receiver.delivered() + receiver.out_of_order_bytes()
        };
        (0..self.readers.len() as u32).map(of).sum()
    }

    /// Returns the payload of the handled packets in bytes, including duplicates.
    pub(super) fn payload(&self) -> u64 {
        self.payload
    }
}

impl Handler for Reception {
    type Event = Event;

    #[inline]
    fn engine(&mut self) -> &mut Engine<Event> {
        &mut self.engine
    }

    #[inline]
    fn handle(&mut self, event: Event) {
        match event {
            Event::Interrupt(queue) => self.interrupt(queue),
            Event::DelayedAck(flow) => {
                let now = self.engine.now;
                if let Some(ack) = self.sink.deadline(flow, now) {
                    self.answers.push((flow, now, ack));
                }
            }
        }
    }

    fn sent(&mut self) -> u64 {
        self.packets + self.answers.len() as u64
    }
}
