//! What the hosts of a cluster receive: the receive queues of all of them, with one calendar.

use std::collections::VecDeque;

use crate::event::Calendar;
use crate::segment::Packet;
use crate::sink::{Reaction, Sink};
use crate::tcp::{Ack, Receiver, ReceiverConfig};
use crate::time::{Span, Time};

/// A flow's receiving end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader {
    /// Its receive queue, counted over all hosts.
    pub(super) queue: u32,
    /// Bytes that it is to receive.
    pub(super) bytes: u64,
}

/// A receive queue of a host.
#[derive(Clone, Debug, Default)]
struct ReceiveQueue {
    /// Packets, with when they arrive, in that order.
    arriving: VecDeque<Packet>,
    /// Flows that have not received everything.
    unfinished: Vec<u32>,
    /// The last packet of one of these has arrived.
    ending: bool,
}

/// All receiving ends.
#[derive(Clone, Debug)]
pub(super) struct Reception {
    sink: Sink,
    /// Interrupts of the queues, then deadlines of the flows' delayed acknowledgements.
    calendar: Calendar,
    readers: Vec<Reader>,
    queues: Vec<ReceiveQueue>,
    /// When each flow had received everything.
    completed: Vec<Time>,
    unfinished: usize,
    /// Packets that interrupts have taken.
    packets: u64,
    /// Their payload, bytes.
    payload: u64,
    deadlines: Vec<(u32, Time)>,
}

impl Reception {
    /// Receiving ends of flows over so many receive queues, each with at least `interval` between two
    /// interrupts.
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
            sink: Sink::new(peers, queues, interval, 0),
            calendar: Calendar::new(queues as usize, readers.len()),
            queues: all,
            completed: vec![Time::NEVER; readers.len()],
            unfinished: readers.len(),
            readers,
            packets: 0,
            payload: 0,
            deadlines: Vec::new(),
        }
    }

    /// A packet will arrive at its host at `packet.at`; for one host, calls come in that order.
    #[inline]
    pub(super) fn deliver(&mut self, packet: Packet) {
        let number = self.readers[packet.flow as usize].queue;
        let queue = &mut self.queues[number as usize];
        // Behind another one, it will find an interrupt planned.
        if queue.arriving.is_empty() {
            self.sink.expects(number, &mut self.calendar, || packet.at);
        }
        queue.arriving.push_back(packet);
    }

    /// Handles what happens until `until`; `answer` gets every acknowledgement and when it is sent.
    pub(super) fn run(&mut self, until: Time, mut answer: impl FnMut(u32, Time, Ack)) {
        while let Some((now, slot)) = self.calendar.pop(until) {
            if let Some(flow) = slot.checked_sub(self.queues.len() as u32) {
                if let Some(ack) = self.sink.deadline(flow, now) {
                    answer(flow, now, ack);
                }
            } else {
                self.interrupt(slot, now, &mut answer);
            }
        }
    }

    fn interrupt(&mut self, number: u32, now: Time, answer: &mut impl FnMut(u32, Time, Ack)) {
        let queue = &mut self.queues[number as usize];
        while let Some(packet) = queue.arriving.front().filter(|packet| packet.at <= now) {
            self.sink.arrived(packet.flow, packet.sequence, packet.payload.into(), 1, packet.at);
            let end = packet.sequence + u64::from(packet.payload);
            queue.ending |= end >= self.readers[packet.flow as usize].bytes;
            self.packets += 1;
            self.payload += u64::from(packet.payload);
            queue.arriving.pop_front();
        }
        let deadlines = &mut self.deadlines;
        self.sink.interrupt(number, now, |flow, reaction| match reaction {
            Reaction::Acknowledge(ack) => answer(flow, now, ack),
            Reaction::Wait(deadline) => deadlines.push((flow, deadline)),
        });
        let first_deadline = self.queues.len() as u32;
        for (flow, deadline) in self.deadlines.drain(..) {
            self.calendar.plan(first_deadline + flow, deadline);
        }
        let queue = &mut self.queues[number as usize];
        if let Some(packet) = queue.arriving.front() {
            self.sink.expects(number, &mut self.calendar, || packet.at);
        }
        if queue.ending {
            let (sink, readers) = (&self.sink, &self.readers);
            let is_complete =
                |flow: u32| sink.peer(flow).receiver.delivered() >= readers[flow as usize].bytes;
            for &flow in queue.unfinished.iter().filter(|flow| is_complete(**flow)) {
                self.completed[flow as usize] = now;
                self.unfinished -= 1;
            }
            queue.unfinished.retain(|flow| !is_complete(*flow));
            // One whose last packet came before others stays unfinished: it is looked at every time.
            queue.ending = !queue.unfinished.is_empty();
        }
    }

    /// When the next interrupt or deadline is.
    pub(super) fn next_time(&mut self) -> Time {
        self.calendar.next_time().unwrap_or(Time::NEVER)
    }

    /// Flows that have not received everything.
    pub(super) fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// When a flow had received everything; [`Time::NEVER`] if it has not.
    pub(super) fn completed(&self, flow: u32) -> Time {
        self.completed[flow as usize]
    }

    /// A flow's TCP.
    pub(super) fn receiver(&self, flow: u32) -> &Receiver {
        &self.sink.peer(flow).receiver
    }

    /// Packets that interrupts have taken.
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    /// Payload that has been received, bytes, without what had been received before. It is found by looking
    /// at every flow.
    pub(super) fn distinct_bytes(&self) -> u64 {
        let of = |flow: u32| {
            let receiver = self.receiver(flow);
            receiver.delivered() + receiver.out_of_order_bytes()
        };
        (0..self.readers.len() as u32).map(of).sum()
    }

    /// Payload of these, bytes, also what had been received before.
    pub(super) fn payload(&self) -> u64 {
        self.payload
    }
}
