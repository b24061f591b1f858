//! Accounts for every byte of a flow, to check that no byte is lost or duplicated.

use super::Simulation;
use crate::nic::{Departures, Train};
use crate::observation::Observation;
use crate::qdisc::Dequeued;
use crate::segment::{PROBE, Segment, truesize};
use crate::time::Time;

/// The payload that a flow has sent, by present location, in bytes. A retransmission counts again.
///
/// At any time, [`Account::sent`] is the sum of [`Account::received`], [`Account::dropped`],
/// [`Account::in_qdisc`], [`Account::in_ring`] and [`Account::at_sink`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Passed by TCP to the layers below.
    pub sent: u64,
    /// Received by TCP: in order, above a gap, or as a duplicate.
    pub received: u64,
    /// Received by TCP in order: the application can read this payload.
    pub delivered: u64,
    /// Refused or dropped by the qdisc.
    pub dropped: u64,
    pub in_qdisc: u64,
    /// In the ring, including the packet on the wire.
    pub in_ring: u64,
    /// Arrived, but not yet handled by the receiver's interrupt.
    pub at_sink: u64,
    /// Memory of the flow's segments below TCP (`skb->truesize`), as found in the queues.
    pub memory_below: u64,
    /// Memory of the flow's segments below TCP, as TCP counts it (`sk_wmem_alloc`).
    pub memory_counted: u64,
    /// Unacknowledged bytes of the application's past and future writes.
    pub unfinished: u64,
    /// Data packets that arrived after a later packet.
    pub out_of_order_packets: u64,
    /// Queue of the flow's last segment.
    pub queue: u32,
    /// Weight that the flow adds to [`Self::queue`]. The weight is 0 while the flow has no data below TCP.
    pub weight: u32,
}

struct RingContent<'a>(&'a mut [Account]);

impl RingContent<'_> {
    fn of(&mut self, segment: &Segment) -> Option<&mut Account> {
        if segment.flow == PROBE { None } else { self.0.get_mut(segment.flow as usize) }
    }
}

impl Departures for RingContent<'_> {
    fn packets(&mut self, train: &Train<'_>) {
        if let Some(account) = self.of(train.segment) {
            let payload = |packet| u64::from(train.segment.packet_payload(packet));
            account.in_ring += (train.first..train.first + train.packets).map(payload).sum::<u64>();
        }
    }

    fn finished(&mut self, _queue: u32, segment: &Segment, _at: Time) {
        if let Some(account) = self.of(segment) {
            account.memory_below += u64::from(truesize(segment.payload));
        }
    }
}

impl Simulation {
    /// Returns the account of each flow. The function dequeues copies of all queues, so use it only for
    /// checks.
    #[must_use]
    pub fn accounts(&self) -> Vec<Account> {
        let mut accounts: Vec<Account> = (0..self.flows.len()).map(|flow| self.ends_of(flow)).collect();
        for queue in &self.queues {
            let mut qdisc = queue.qdisc.clone();
            let mut now = self.engine.now;
            loop {
                let segment = match qdisc.dequeue(now) {
                    Dequeued::Segment(segment) => segment,
                    // Skip to the time at which the shaper releases the next segment.
                    Dequeued::Wait(until) => {
                        now = until;
                        continue;
                    }
                    Dequeued::Empty => break,
                };
                if let Some(account) = RingContent(&mut accounts).of(&segment) {
                    account.in_qdisc += u64::from(segment.payload);
                    account.memory_below += u64::from(truesize(segment.payload));
                }
            }
            for segment in &queue.sent {
                if let Some(account) = RingContent(&mut accounts).of(segment) {
                    account.memory_below += u64::from(truesize(segment.payload));
                }
            }
        }
        self.nic.clone().advance(Time::NEVER, &mut RingContent(&mut accounts));
        accounts
    }

    /// Returns the part of a flow's account that its sender and its receiver know.
    fn ends_of(&self, number: usize) -> Account {
        let flow = &self.flows[number];
        let receiver = &self.sink.peer(number as u32).receiver;
        Account {
            sent: flow.sender.counters().bytes,
            received: receiver.delivered() + receiver.out_of_order_bytes() + receiver.duplicate_bytes(),
            delivered: receiver.delivered(),
            dropped: flow.dropped,
            at_sink: self.sink.waiting_bytes(number as u32),
            memory_counted: flow.sender.bytes_below(),
            unfinished: flow.sender.unfinished() + flow.writing + flow.remaining,
            out_of_order_packets: receiver.out_of_order_packets(),
            queue: flow.queue,
            weight: flow.word.read().charged_weight(),
            ..Account::default()
        }
    }

    /// Returns the sum of the weights of the flows and of the probe on a queue.
    #[must_use]
    pub fn queue_weight(&self, queue: u32) -> u32 {
        self.weights.weight(queue)
    }

    /// Returns the numbers of packets and bytes on the wire.
    #[must_use]
    pub fn observation(&self) -> &Observation {
        &self.observation
    }
}
