//! The receiving host: interrupts, GRO, acknowledgements.
//!
//! The receiver interacts with the sender only by arrivals and responses. Both have a constant line
//! latency, so the receiver's clock lags behind the sender's clock by that latency. Packets that have
//! left the sender's NIC have already arrived in the receiver's time. A response reaches the sender
//! after two latencies.
//!
//! The flow's hash selects a receive queue. A queue's interrupt fires when a packet has arrived and the
//! moderation interval since the last interrupt is over. The interrupt is scheduled for the next known
//! arrival. If the arrival has moved to a later time when the event fires, there is no interrupt.
//!
//! The poll of the interrupt passes each flow's new data to TCP in runs, as merged by GRO. TCP
//! acknowledges more than one full packet immediately. The receiver always has enough processor time.

use crate::parameters::MANY_FLOWS;
use crate::prefetch::prefetch;
use crate::tcp::{Ack, Receiver, Reply};
use crate::time::{Span, Time};

#[derive(Clone, Copy, Debug, Default)]
struct Run {
    begin: u64,
    end: u64,
    packets: u32,
}

#[derive(Clone, Debug)]
// The order of the fields matters: in-order data accesses only the first cache line.
#[repr(C, align(64))]
pub struct Peer {
    /// The latest run, which most arrivals extend. A run without packets means that there is no run.
    latest: Run,
    has_earlier: bool,
    pub receiver: Receiver,
    /// The runs before `latest`.
    earlier: Vec<Run>,
}

#[derive(Clone, Debug, Default)]
struct ReceiveQueue {
    last_interrupt: Time,
    /// Whether data without a flow has arrived.
    poked: bool,
    /// Flows with runs for the next poll, and the arrival of each flow's first packet.
    flows: Vec<(Time, u32)>,
}

#[derive(Clone, Debug)]
pub struct Sink {
    peers: Vec<Peer>,
    /// Receive queue of each flow; not in [`Peer`], because most lookups read only this field.
    queue_of: Vec<u32>,
    queues: Vec<ReceiveQueue>,
    rings: usize,
    /// Number of segments for each receive queue in each ring.
    under_way: Vec<u32>,
    interval: Span,
    /// Flows whose data the last interrupt delivered, with the arrival of their first packet.
    taken: Vec<(Time, u32)>,
}

impl Sink {
    /// Creates a sink with these receivers of flows, and the flows' hashes.
    #[must_use]
    pub fn new(peers: Vec<(Receiver, u32)>, queues: u32, interval: Span) -> Self {
        let queue_of = peers.iter().map(|(_, hash)| hash % queues.max(1)).collect();
        let peers = peers
            .into_iter()
            .map(|(receiver, _)| Peer {
                receiver,
                latest: Run::default(),
                has_earlier: false,
                earlier: Vec::new(),
            })
            .collect();
        let queues = vec![ReceiveQueue::default(); queues.max(1) as usize];
        Self { peers, queue_of, queues, rings: 0, under_way: Vec::new(), interval, taken: Vec::new() }
    }

    /// Prepares the sink for arrivals from this many rings. Each ring reports its segments.
    #[must_use]
    pub fn of_rings(self, rings: u32) -> Self {
        let rings = rings as usize;
        Self { rings, under_way: vec![0; self.queues.len() * rings], ..self }
    }

    /// Records that a segment for a receive queue was enqueued to a ring.
    #[inline]
    pub fn enters(&mut self, number: u32, ring: u32) {
        self.under_way[number as usize * self.rings + ring as usize] += 1;
    }

    /// Records that a segment for a receive queue has left a ring.
    #[inline]
    pub fn leaves(&mut self, number: u32, ring: u32) {
        self.under_way[number as usize * self.rings + ring as usize] -= 1;
    }

    /// Returns the number of segments in each ring for a receive queue.
    #[must_use]
    pub fn under_way(&self, number: u32) -> &[u32] {
        &self.under_way[number as usize * self.rings..][..self.rings]
    }

    #[must_use]
    pub fn queues(&self) -> u32 {
        self.queues.len() as u32
    }

    #[must_use]
    pub fn peer(&self, flow: u32) -> &Peer {
        &self.peers[flow as usize]
    }

    /// Returns the payload of a flow in bytes that has arrived and that the poll has not handled.
    #[must_use]
    pub fn waiting_bytes(&self, flow: u32) -> u64 {
        let peer = &self.peers[flow as usize];
        peer.earlier.iter().chain([&peer.latest]).map(|run| run.end - run.begin).sum()
    }

    #[must_use]
    pub fn queue_of(&self, flow: u32) -> u32 {
        self.queue_of[flow as usize]
    }

    /// Returns the time for which to schedule a receive queue's interrupt, if a packet arrives at the
    /// time that `at` returns or later. Returns `None` if the `planned` interrupt is early enough.
    #[inline]
    pub fn due(&self, number: u32, planned: Time, at: impl FnOnce() -> Time) -> Option<Time> {
        let allowed = self.interrupt_allowed(number);
        (planned > allowed).then(|| at().max(allowed))
    }

    /// Returns the earliest time of a receive queue's next interrupt.
    #[must_use]
    pub fn interrupt_allowed(&self, number: u32) -> Time {
        self.queues[number as usize].last_interrupt + self.interval
    }

    /// Records an arrival without a flow at a receive queue. The next interrupt of the queue handles
    /// the arrival.
    pub fn poke(&mut self, number: u32) {
        self.queues[number as usize].poked = true;
    }

    /// Records packets of a flow that have arrived. They have `payload` bytes from `begin` on. The
    /// first packet arrived at `at`.
    #[inline]
    pub fn arrived(&mut self, flow: u32, begin: u64, payload: u64, packets: u32, at: Time) {
        let peer = &mut self.peers[flow as usize];
        let latest = &mut peer.latest;
        if latest.packets == 0 {
            *latest = Run { begin, end: begin + payload, packets };
            self.queues[self.queue_of[flow as usize] as usize].flows.push((at, flow));
        } else if latest.end == begin {
            latest.end += payload;
            latest.packets += packets;
        } else {
            let run = Run { begin, end: begin + payload, packets };
            peer.earlier.push(std::mem::replace(latest, run));
            peer.has_earlier = true;
        }
    }

    /// Handles the interrupt of a receive queue: passes all data to TCP. `answer` receives every
    /// acknowledgement, and the deadline of every delayed acknowledgement.
    ///
    /// Returns false, without an interrupt, if no packet has arrived. The caller uses [`Self::due`] for
    /// the next arrival.
    pub fn interrupt(&mut self, number: u32, now: Time, mut answer: impl FnMut(u32, Reaction)) -> bool {
        self.taken.clear();
        let queue = &mut self.queues[number as usize];
        if queue.flows.is_empty() && !std::mem::take(&mut queue.poked) {
            return false;
        }
        queue.poked = false;
        queue.last_interrupt = now;
        std::mem::swap(&mut queue.flows, &mut self.taken);
        // The trains of several rings are not reported in order of time.
        self.taken.sort_unstable();
        if self.peers.len() >= MANY_FLOWS {
            self.taken.iter().for_each(|&(_, flow)| prefetch(&self.peers[flow as usize]));
        }
        for &(_, flow) in &self.taken {
            let Peer { receiver, latest, has_earlier, earlier, .. } = &mut self.peers[flow as usize];
            let mut hand_over = |run: Run| {
                let bytes = (run.end - run.begin) as u32;
                match receiver.on_data(now, run.begin, bytes, run.packets) {
                    Reply::Now => answer(flow, Reaction::Acknowledge(receiver.acknowledgement())),
                    Reply::Delayed(deadline) => answer(flow, Reaction::Wait(deadline)),
                    Reply::Unchanged => {}
                }
            };
            // Several runs remain only after loss or reordering.
            if std::mem::take(has_earlier) {
                earlier.drain(..).for_each(&mut hand_over);
            }
            hand_over(std::mem::take(latest));
        }
        true
    }

    /// Returns a flow whose data the last interrupt delivered, by index from 0; `None` after the last flow.
    #[must_use]
    pub fn taken(&self, index: usize) -> Option<u32> {
        self.taken.get(index).map(|&(_, flow)| flow)
    }

    /// Returns the acknowledgement that a flow's data in the other direction carries. Afterwards, no
    /// acknowledgement is due.
    pub fn acknowledge(&mut self, flow: u32) -> Ack {
        self.peers[flow as usize].receiver.acknowledgement()
    }

    /// Handles the deadline of a delayed acknowledgement. Returns the acknowledgement if it is still
    /// due.
    pub fn deadline(&mut self, flow: u32, now: Time) -> Option<Ack> {
        let receiver = &mut self.peers[flow as usize].receiver;
        receiver.on_deadline(now).then(|| receiver.acknowledgement())
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Reaction {
    Acknowledge(Ack),
    /// The receiver sends an acknowledgement at this time, unless more data arrives.
    Wait(Time),
}
