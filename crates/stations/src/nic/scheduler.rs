//! The transmit scheduler: decides which ring sends next, and computes when each packet leaves the
//! wire.
//!
//! A packet on the wire is never preempted. When its last bit leaves, the scheduler picks the next
//! packet from all segments enqueued before that time.
//!
//! Positions count wire bytes since the wire was last idle. Only [`Wire`] converts positions to time.

use std::collections::VecDeque;
use std::fmt;

use super::{
    ring::Ring,
    steady::Steady,
    train::{Departures, Pace},
    wire::Wire,
};
use crate::{segment::Segment, time::Time};

/// After this many consecutive rounds in which no ring can send, the scheduler computes how many more
/// such rounds follow.
const FRUITLESS_ROUNDS: usize = 4;

/// How the NIC shares its wire between non-empty rings.
///
/// Rings are served in the order in which they became non-empty. A ring's first segment appends the
/// ring to the list. A ring that becomes empty leaves the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// One packet per turn with TSO interleaving, otherwise one segment.
    RoundRobin,
    /// Deficit round robin (Shreedhar and Varghese, "Efficient fair queuing using deficit round-robin",
    /// IEEE/ACM Transactions on Networking 4(3), 1996, section 3).
    ///
    /// A turn adds `weight * quantum_bytes` to the ring's deficit. The ring sends while the deficit
    /// covers the next packet, or without interleaving the whole next segment. An empty ring loses its
    /// deficit. Sizes are wire bytes, including framing.
    Deficit {
        /// Wire bytes per turn and unit of weight. 0 counts as 1.
        quantum_bytes: u32,
        /// Larger weights are reduced to this value: credit registers have a limited width.
        largest_weight: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicConfig {
    /// Line rate in bit/s. 0 counts as 1.
    pub rate_bps: u64,
    /// 0 counts as 1.
    pub queues: u32,
    /// TSO interleaving: packets of the rings' segments alternate. Without interleaving, a segment's
    /// packets leave back to back.
    pub interleave: bool,
    pub service: Service,
    /// Computes packet by packet instead of several packets together. Both modes give the same departures.
    /// This mode is much slower, and serves to check the closed form.
    pub exact: bool,
}

/// A user-defined scheduler, which selects the ring that sends next. [`Nic::set_scheduler`] replaces
/// [`Service`] by this scheduler, and the NIC then computes packet by packet.
/// `examples/nic_scheduler.rs` of `evenkeel-sim` has an example.
pub trait Scheduler: fmt::Debug + Send {
    /// Returns the index in `waiting` of the ring that sends next. The ring sends one packet with TSO
    /// interleaving, otherwise one segment. `waiting` is never empty. An index beyond the last counts
    /// as the last.
    fn choose(&mut self, waiting: &[Waiting]) -> usize;

    /// Returns `Box::new(self.clone())`.
    fn boxed_clone(&self) -> Box<dyn Scheduler>;
}

impl Clone for Box<dyn Scheduler> {
    fn clone(&self) -> Self {
        self.as_ref().boxed_clone()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub queue: u32,
    pub packet_bytes: u32,
    pub backlog_bytes: u64,
}

/// The transmit side of a NIC.
///
/// Successive calls must pass times that never decrease. The NIC reports departures to a
/// [`Departures`]. A call with `now` first catches up with `now` ([`Nic::catch_up`]).
#[derive(Clone, Debug)]
pub struct Nic {
    config: NicConfig,
    pub(super) wire: Wire,
    pub(super) rings: Vec<Ring>,
    /// The non-empty rings. The next packet of the first ring is on the wire.
    pub(super) active: VecDeque<u32>,
    /// Position at which the packet on the wire began.
    pub(super) position: u64,
    /// Time at which the packet on the wire ends. In steady rounds: time at which a segment or the
    /// steady rounds end.
    next_change: Time,
    /// Whether the present turn has not sent yet and its credit matches the present weight.
    pub(super) turn_is_new: bool,
    /// Steady rounds, if any. `active` and `position` then have their values from the beginning of the
    /// rounds, and rings are updated on demand.
    pub(super) steady: Option<Steady>,
    /// Whether the NIC supports steady rounds: round robin with interleaving.
    pub(super) has_rounds: bool,
    /// Position of the next check for steady rounds.
    pub(super) look_at: u64,
    pub(super) failures: u32,
    /// Time up to which departures are computed.
    pub(super) caught_up: Time,
    pub(super) asked: Vec<u32>,
    scheduler: Option<Box<dyn Scheduler>>,
}

impl Nic {
    /// Creates a NIC with empty rings of weight 1.
    #[must_use]
    pub fn new(config: NicConfig) -> Self {
        let queues = config.queues.max(1);
        Self {
            config,
            wire: Wire::new(config.rate_bps),
            rings: (0..queues).map(|_| Ring::new(config.service)).collect(),
            active: VecDeque::with_capacity(queues as usize),
            position: 0,
            next_change: Time::NEVER,
            turn_is_new: true,
            steady: None,
            has_rounds: config.interleave && config.service == Service::RoundRobin,
            look_at: 0,
            failures: 0,
            caught_up: Time::ZERO,
            asked: Vec::new(),
            scheduler: None,
        }
    }

    /// Installs a `scheduler` that selects the next ring from this call on. The NIC then computes
    /// departures packet by packet, and weights have no effect. The rings must be empty.
    pub fn set_scheduler(&mut self, scheduler: Box<dyn Scheduler>) {
        debug_assert!(self.is_idle(), "a packet is on the wire");
        self.config = NicConfig { service: Service::RoundRobin, exact: true, ..self.config };
        self.has_rounds = false;
        self.rings = self.rings.iter().map(|_| Ring::new(self.config.service)).collect();
        self.scheduler = Some(scheduler);
    }

    #[must_use]
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// Returns the frame bytes of `queue` that have not been reported, without framing on the wire. The
    /// packet on the wire counts in full.
    #[must_use]
    pub fn backlog_bytes(&self, queue: u32) -> u64 {
        self.rings[queue as usize].backlog_bytes()
    }

    /// Returns the number of unreported packets of `queue`, including the packet on the wire.
    #[must_use]
    pub fn backlog_packets(&self, queue: u32) -> u64 {
        self.rings[queue as usize].backlog_packets
    }

    /// Returns the oldest segment of `queue`; `None` if the queue is empty.
    #[must_use]
    pub fn head(&self, queue: u32) -> Option<&Segment> {
        self.rings[queue as usize].segments().next()
    }

    /// Returns the end of the packet on the wire, or [`Time::NEVER`] if the wire is idle.
    #[must_use]
    pub fn next_departure(&self) -> Time {
        match &self.steady {
            Some(steady) => self.wire.time_of(self.end_on_wire(steady)),
            None => self.next_change,
        }
    }

    /// Returns the weight of `queue` within its limits. The weight is always 1 with
    /// [`Service::RoundRobin`].
    #[must_use]
    pub fn weight(&self, queue: u32) -> u32 {
        self.rings[queue as usize].weight
    }

    /// Changes the weight of `queue` from its next turn on. The weight is limited to 1 to
    /// `largest_weight`. [`Service::RoundRobin`] ignores weights.
    pub fn set_weight<S: Departures>(&mut self, now: Time, queue: u32, weight: u32, sink: &mut S) {
        self.catch_up(now, sink);
        if self.config.service == Service::RoundRobin {
            return;
        }
        self.rings[queue as usize].set_weight(weight, self.config.service);
        if self.active.front() == Some(&queue) {
            self.turn_is_new = false;
        }
    }

    /// Appends a segment to the ring `queue`, which must be less than the number of rings. Departures
    /// at `now` come first.
    pub fn enqueue<S: Departures>(&mut self, now: Time, queue: u32, segment: Segment, sink: &mut S) {
        self.catch_up(now, sink);
        if self.rings[queue as usize].is_empty() {
            self.interrupt_rounds(sink);
        }
        if !self.rings[queue as usize].push(segment, self.config.service) {
            return;
        }
        self.active.push_back(queue);
        if self.active.len() == 1 {
            self.wire.restart(now);
            (self.position, self.look_at) = (0, 0);
            self.begin_turn();
            self.plan_departure();
        }
    }

    /// Catches up with `now`, and reports all departures up to `now`.
    pub fn advance<S: Departures>(&mut self, now: Time, sink: &mut S) {
        self.catch_up(now, sink);
        self.interrupt_rounds(sink);
    }

    /// Catches up with `now` if no packet ends by then. In steady rounds, the condition is that neither a
    /// segment nor the rounds end by then. Returns whether the NIC has caught up.
    #[inline]
    pub fn skip_to(&mut self, now: Time) -> bool {
        let nothing_left = self.next_change > now;
        if nothing_left {
            self.caught_up = now;
        }
        nothing_left
    }

    /// Computes all departures up to and including `now`, and reports the segments that have left.
    ///
    /// In steady rounds, the NIC reports packets of an unfinished segment later: when the segment has left,
    /// when the rounds end, or on a call of [`Nic::tell`]. Packets that the caller does not need individually
    /// then form few trains.
    #[inline]
    pub fn catch_up<S: Departures>(&mut self, now: Time, sink: &mut S) {
        self.caught_up = now;
        if self.next_change <= now && !self.is_idle() {
            self.depart(self.wire.position_at(now), sink);
        }
    }

    fn depart<S: Departures>(&mut self, limit: u64, sink: &mut S) {
        while let Some(&queue) = self.active.front() {
            if let Some(steady) = self.steady {
                if !self.pass_rounds(steady, limit, sink) {
                    break;
                }
            } else if self.position + u64::from(self.rings[queue as usize].packet_bytes()) > limit {
                break;
            } else if self.config.exact || !(self.begin_rounds() || self.send_turns(limit, sink)) {
                self.send_run(limit, sink);
            }
        }
        self.plan_departure();
    }

    pub(super) fn plan_departure(&mut self) {
        self.next_change = match (&self.steady, self.active.front()) {
            (Some(steady), _) => self.rounds_change(steady),
            (None, Some(&queue)) => {
                let bytes = self.rings[queue as usize].packet_bytes();
                self.wire.time_of(self.position + u64::from(bytes))
            }
            (None, None) => Time::NEVER,
        };
    }

    /// Sends from the first ring the packets of its first segment that the turn allows, up to the
    /// position `limit`. The packet on the wire must end by then.
    fn send_run<S: Departures>(&mut self, limit: u64, sink: &mut S) {
        let NicConfig { interleave, service, exact, .. } = self.config;
        let alone = self.active.len() == 1;
        let Some(&queue) = self.active.front() else { return };
        let ring = &mut self.rings[queue as usize];

        let room = limit - self.position;
        let packets = match service {
            _ if exact => 1,
            // Without data in other rings, turns are contiguous.
            Service::RoundRobin if interleave && !alone => 1,
            Service::Deficit { .. } if interleave => ring.head.fitting(ring.sent, room.min(ring.deficit)),
            _ => ring.head.fitting(ring.sent, room),
        };
        let bytes = ring.head.bytes(ring.sent, ring.sent + packets);
        let whole = ring.head_bytes();
        let pace = Pace { wire: self.wire, begin: self.position, place: 0, burst: packets, round_bytes: 0 };
        let end = ring.send(queue, packets, pace, sink);
        self.position += bytes;

        let ended = end.is_some();
        if let Some(end) = end {
            ring.finish(queue, end, service, sink);
        }
        let turn_ends = match service {
            Service::RoundRobin => interleave || ended,
            Service::Deficit { .. } => {
                if interleave {
                    ring.deficit -= bytes;
                } else if ended {
                    ring.deficit -= whole;
                }
                (interleave || ended) && ring.deficit < ring.need(interleave)
            }
        };
        if ring.is_empty() {
            ring.deficit = 0;
            self.active.pop_front();
            self.begin_turn();
        } else if turn_ends {
            self.next_in_line();
            self.begin_turn();
        } else {
            self.turn_is_new = false;
        }
    }

    /// Sends several whole turns together, up to the position `limit`, as long as they equal the ring's
    /// previous turn. Returns whether a turn was sent.
    fn send_turns<S: Departures>(&mut self, limit: u64, sink: &mut S) -> bool {
        if !self.config.interleave || !self.turn_is_new {
            return false;
        }
        let Some(&front) = self.active.front() else { return false };
        let room = limit - self.position;
        // Usually the wire does not complete a round, and only the first rings in the list send.
        let (mut rounds, mut extra, mut bytes) = (0, 0, 0);
        for &queue in &self.active {
            let ring = &self.rings[queue as usize];
            if bytes + ring.turn_bytes() > room || ring.equal_turns(1) == 0 {
                break;
            }
            bytes += ring.turn_bytes();
            extra += 1;
        }
        if extra == 0 {
            return false;
        }
        let round_bytes = bytes;
        if extra == self.active.len() {
            (rounds, extra, bytes) = self.whole_rounds(room, round_bytes);
        }

        let (service, wire, mut begin) = (self.config.service, self.wire, self.position);
        for (place, &queue) in self.active.iter().enumerate() {
            let ring = &mut self.rings[queue as usize];
            let turns = rounds + u32::from(place < extra);
            if turns == 0 {
                break;
            }
            let pace = Pace { wire, begin, place: 0, burst: ring.burst, round_bytes };
            begin += ring.turn_bytes();
            ring.send_on(queue, turns * ring.burst, pace, service, sink);
        }
        self.position += bytes;

        if extra > 0 {
            // Turns do not change deficits, but the first ring has the credit of the present turn.
            let first = &mut self.rings[front as usize];
            first.deficit -= first.credit;
            self.active.rotate_left(extra);
            self.begin_turn();
        }
        true
    }

    /// Returns the number of whole rounds, the number of rings with one more turn, and the total bytes.
    /// Every ring must have an equal turn, and a round of `round_bytes` must fit into `room`.
    ///
    /// Let ring i send `b_i` bytes in each of its turns. A round takes R, the sum of all `b_i`. The
    /// n-th turn of ring i begins at `n R + b_0 + .. + b_(i-1)`. This closed form handles all segments
    /// whose packets have the same size in one pass over the rings.
    fn whole_rounds(&self, room: u64, round_bytes: u64) -> (u32, usize, u64) {
        // `holder` is the ring whose equal turns end first. Count up to its turn.
        let enough = u32::try_from(room / round_bytes + 1).unwrap_or(u32::MAX);
        let (mut rounds, mut holder) = (u32::MAX, 0);
        for (place, &queue) in self.active.iter().enumerate() {
            let turns = self.rings[queue as usize].equal_turns(enough);
            if turns < rounds {
                (rounds, holder) = (turns, place);
            }
        }
        // Apply the limit `room`: whole rounds, then turns of the round in which `room` ends.
        if u64::from(rounds) * round_bytes > room {
            rounds = u32::try_from(room / round_bytes).unwrap_or(rounds);
            holder = self.active.len();
        }
        let mut bytes = u64::from(rounds) * round_bytes;
        let mut extra = 0;
        for &queue in self.active.iter().take(holder) {
            let turn_bytes = self.rings[queue as usize].turn_bytes();
            if bytes + turn_bytes > room {
                break;
            }
            bytes += turn_bytes;
            extra += 1;
        }
        (rounds, extra, bytes)
    }

    fn next_in_line(&mut self) {
        if let Some(queue) = self.active.pop_front() {
            self.active.push_back(queue);
        }
    }

    /// Grants the first ring the credit of its turn. If its deficit does not cover the next packet, or
    /// without interleaving the next segment, the turn ends and the next ring's turn begins. A user-defined
    /// [`Scheduler`] selects the first ring instead.
    fn begin_turn(&mut self) {
        self.turn_is_new = true;
        if self.config.service == Service::RoundRobin {
            if let Some(scheduler) = &mut self.scheduler
                && !self.active.is_empty()
            {
                let waiting = |queue: &u32| {
                    let ring = &self.rings[*queue as usize];
                    Waiting {
                        queue: *queue,
                        packet_bytes: ring.packet_bytes(),
                        backlog_bytes: ring.backlog_bytes(),
                    }
                };
                let waiting: Vec<Waiting> = self.active.iter().map(waiting).collect();
                let chosen = scheduler.choose(&waiting).min(waiting.len() - 1);
                if let Some(queue) = self.active.remove(chosen) {
                    self.active.push_front(queue);
                }
            }
            return;
        }
        let mut passed = 0;
        while let Some(&queue) = self.active.front() {
            let ring = &mut self.rings[queue as usize];
            ring.deficit += ring.credit;
            if ring.deficit >= ring.need(self.config.interleave) {
                return;
            }
            self.next_in_line();
            passed += 1;
            if passed == FRUITLESS_ROUNDS * self.active.len() && !self.config.exact {
                self.skip_rounds();
                passed = 0;
            }
        }
    }

    /// Grants all rings the credits of the rounds in which no ring can send.
    fn skip_rounds(&mut self) {
        let interleave = self.config.interleave;
        let turns = |ring: &Ring| ring.need(interleave).saturating_sub(ring.deficit).div_ceil(ring.credit);
        let rounds = self.active.iter().map(|&queue| turns(&self.rings[queue as usize])).min().unwrap_or(0);
        for &queue in &self.active {
            let ring = &mut self.rings[queue as usize];
            ring.deficit += rounds.saturating_sub(1) * ring.credit;
        }
    }
}
