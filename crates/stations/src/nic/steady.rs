//! Steady rounds: every ring sends one packet of constant size in each round. Departures then need no
//! computation per packet or per round.
//!
//! Let ring i send packets of `b_i` bytes. A round takes R, the sum of all `b_i`. The n-th turn of ring
//! i begins at `n R + b_0 + .. + b_(i-1)`. This closed form holds for all segments whose packets have
//! the same size.
//!
//! - In steady rounds, a ring's state is updated only when its first segment has left or when its state
//!   is read.
//! - Steady rounds end when a ring may become empty or reach a packet of another size, when another ring
//!   becomes non-empty, and on a call of [`Nic::advance`].
//!
//! Only round robin with interleaving has steady rounds. In deficit round robin a turn holds several
//! packets, so rings soon have less data than a turn, and weights change. Steady rounds would end too
//! early to save time.

use super::{
    Nic,
    ring::Ring,
    train::{Departures, Pace},
    wire::Wire,
};
use crate::{segment::Segment, time::Time};

/// Minimum number of rounds. With fewer rounds, the passes over all rings at the beginning and the end
/// cost more than they save.
const LEAST_ROUNDS: u32 = 2;
/// Each consecutive failure doubles the interval to the next check, at most this many times. Rounds that
/// are not steady, or not for long, are a failure.
const MOST_FAILURES: u32 = 4;

/// Steady rounds. They begin at the NIC's position, with the first ring in the list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steady {
    pub(super) round_bytes: u64,
    /// Position at which the first turn that may differ begins.
    until: u64,
    /// Position at which the next segment ends, if this is before `until`.
    next_end: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turns {
    /// Position at which the first turn begins.
    begin: u64,
    round_bytes: u64,
    packet_bytes: u32,
    /// Packets that the ring has sent in these turns, up to its last update.
    done: u32,
    /// Position at which the ring's first segment ends.
    head_end: u64,
}

impl Turns {
    /// Returns the wire bytes that the ring has sent in these turns, up to its last update.
    #[inline]
    pub(super) fn done_bytes(&self) -> u64 {
        self.bytes_of(u64::from(self.done))
    }

    #[inline]
    pub(super) fn done(&self) -> u32 {
        self.done
    }

    #[inline]
    pub(super) fn bytes_of(&self, turns: u64) -> u64 {
        turns * u64::from(self.packet_bytes)
    }

    /// Returns the position at which the packet `index` begins. Index 0 is the ring's next packet.
    fn begin_of(&self, index: u32) -> u64 {
        self.begin + u64::from(self.done + index) * self.round_bytes
    }

    /// Returns the number of packets of these turns that have left when the wire has reached `position`.
    #[inline]
    fn sent_by(&self, position: u64) -> u32 {
        let Some(bytes) = position.checked_sub(self.begin) else { return 0 };
        let (turns, rest) = (bytes / self.round_bytes, bytes % self.round_bytes);
        // The result fits: it is at most the number of packets in the ring.
        turns as u32 + u32::from(rest >= u64::from(self.packet_bytes))
    }
}

impl Ring {
    /// Starts the ring's turns in steady rounds. The first turn begins at the position `begin`.
    fn begin_turns(&mut self, begin: u64, round_bytes: u64) {
        self.turns = Turns { begin, round_bytes, packet_bytes: self.head.full, done: 0, head_end: 0 };
        self.find_head_end();
    }

    fn find_head_end(&mut self) {
        let last = self.turns.begin_of(self.head.packets - self.sent - 1);
        self.turns.head_end = last + u64::from(self.head.last);
    }

    /// Sends the packets of the ring's first segment that have left when the wire has reached
    /// `position`. Returns the departure of the segment's last packet, if the packet is among them.
    #[inline]
    fn send_until<S: Departures>(
        &mut self,
        queue: u32,
        position: u64,
        wire: Wire,
        sink: &mut S,
    ) -> Option<Time> {
        let packets = self.turns.sent_by(position) - self.turns.done;
        if packets == 0 {
            return None;
        }
        let round_bytes = self.turns.round_bytes;
        let pace = Pace { wire, begin: self.turns.begin_of(0), place: 0, burst: 1, round_bytes };
        self.turns.done += packets;
        self.send(queue, packets, pace, sink)
    }
}

impl Nic {
    /// Begins steady rounds if the next rounds are steady. Returns whether steady rounds have begun.
    pub(super) fn begin_rounds(&mut self) -> bool {
        if !self.has_rounds || self.position < self.look_at {
            return false;
        }
        let (mut rounds, mut round_bytes, mut before) = (u32::MAX, 0, 0);
        for &queue in &self.active {
            let ring = &self.rings[queue as usize];
            let turns = ring.equal_turns(rounds);
            if turns < rounds {
                // The first turn that may differ belongs to the first ring with the fewest equal turns.
                (rounds, before) = (turns, round_bytes);
            }
            round_bytes += u64::from(ring.head.full);
        }
        if rounds < LEAST_ROUNDS {
            self.put_off(round_bytes);
            return false;
        }
        let (mut begin, mut next_end) = (self.position, u64::MAX);
        for &queue in &self.active {
            let ring = &mut self.rings[queue as usize];
            ring.begin_turns(begin, round_bytes);
            begin += u64::from(ring.head.full);
            next_end = next_end.min(ring.turns.head_end);
        }
        let until = self.position + u64::from(rounds) * round_bytes + before;
        self.steady = Some(Steady { round_bytes, until, next_end });
        true
    }

    /// Delays the next check for steady rounds. Each consecutive failure doubles the delay, up to a limit.
    fn put_off(&mut self, round_bytes: u64) {
        self.look_at = self.position + (round_bytes << self.failures);
        self.failures = (self.failures + 1).min(MOST_FAILURES);
    }

    /// Advances steady rounds up to the position `limit`. Returns whether the steady rounds are over.
    pub(super) fn pass_rounds<S: Departures>(&mut self, steady: Steady, limit: u64, sink: &mut S) -> bool {
        let Steady { until, mut next_end, .. } = steady;
        while next_end <= limit.min(until) {
            next_end = self.end_heads(next_end, sink);
        }
        self.steady = Some(Steady { next_end, ..steady });
        if until <= limit {
            self.leave_rounds(until, sink);
            // The next rounds differ from these rounds, but may be steady too. So check immediately.
            (self.look_at, self.failures) = (self.position, 0);
            return true;
        }
        false
    }

    /// Handles the segments that end at the position `end`. Returns the position at which the next
    /// segment ends.
    fn end_heads<S: Departures>(&mut self, end: u64, sink: &mut S) -> u64 {
        let (wire, service) = (self.wire, self.config().service);
        let mut next_end = u64::MAX;
        for &queue in &self.active {
            let ring = &mut self.rings[queue as usize];
            if ring.turns.head_end == end {
                if let Some(at) = ring.send_until(queue, end, wire, sink) {
                    ring.finish(queue, at, service, sink);
                }
                ring.find_head_end();
            }
            next_end = next_end.min(ring.turns.head_end);
        }
        next_end
    }

    /// Returns the position at which the first segment of `queue` ends. Returns `None` without steady
    /// rounds, if the ring is empty, or if the steady rounds end before this position.
    #[inline]
    pub(super) fn end_in_rounds(&self, queue: u32) -> Option<u64> {
        let ring = &self.rings[queue as usize];
        let end = ring.turns.head_end;
        self.steady.filter(|steady| !ring.is_empty() && end <= steady.until).map(|_| end)
    }

    /// Returns the time at which the next segment or the steady rounds end, whichever is earlier.
    pub(super) fn rounds_change(&self, steady: &Steady) -> Time {
        self.wire.time_of(steady.next_end.min(steady.until))
    }

    /// Returns the packet on the wire in steady rounds, when the wire has reached `position`. The
    /// result is the index of the packet's ring in the list, and the position at which the packet
    /// begins.
    fn on_wire(&self, steady: &Steady, position: u64) -> (usize, u64) {
        let into_round = (position - self.position) % steady.round_bytes;
        let begin_of = |queue: u32| self.rings[queue as usize].turns.begin - self.position;
        let place = self.active.partition_point(|&queue| begin_of(queue) <= into_round).saturating_sub(1);
        let begin = self.active.get(place).map_or(0, |&queue| begin_of(queue));
        (place, position - into_round + begin)
    }

    /// Returns the position at which the packet on the wire begins. The NIC must have caught up.
    pub(super) fn position_now(&self) -> u64 {
        match &self.steady {
            Some(steady) => self.on_wire(steady, self.wire.position_at(self.caught_up)).1,
            None => self.position,
        }
    }

    /// Returns the position at which the packet on the wire ends, in steady rounds.
    pub(super) fn end_on_wire(&self, steady: &Steady) -> u64 {
        let (place, begin) = self.on_wire(steady, self.wire.position_at(self.caught_up));
        let bytes = self.active.get(place).map_or(0, |&queue| self.rings[queue as usize].turns.packet_bytes);
        begin + u64::from(bytes)
    }

    /// Returns the number of packets of the ring's first segment that have left since the ring's last
    /// update. The NIC must have caught up.
    pub(super) fn gone_since(&self, ring: &Ring) -> u32 {
        match &self.steady {
            Some(_) => ring.turns.sent_by(self.wire.position_at(self.caught_up)) - ring.turns.done,
            None => 0,
        }
    }

    /// Ends steady rounds, if any, after the NIC has caught up.
    pub(super) fn interrupt_rounds<S: Departures>(&mut self, sink: &mut S) {
        if let Some(steady) = &self.steady {
            let (round_bytes, begin) = (steady.round_bytes, self.position);
            self.leave_rounds(self.wire.position_at(self.caught_up), sink);
            if self.position - begin > u64::from(LEAST_ROUNDS) * round_bytes {
                self.failures = 0;
            }
            self.put_off(round_bytes);
            self.plan_departure();
        }
    }

    /// Ends steady rounds at a position, and updates all rings.
    fn leave_rounds<S: Departures>(&mut self, position: u64, sink: &mut S) {
        let Some(steady) = self.steady.take() else { return };
        let (place, begin) = self.on_wire(&steady, position);
        for &queue in &self.active {
            let ring = &mut self.rings[queue as usize];
            // Segments that end before `position` were already removed.
            ring.send_until(queue, position, self.wire, sink);
            ring.turns = Turns::default();
        }
        self.active.rotate_left(place);
        self.position = begin;
        self.turn_is_new = true;
    }

    /// Reports the packets that had left when the NIC last caught up. Considers only the first segment
    /// of each ring, and reports its packets only if `wanted` holds for the segment.
    pub fn tell<S: Departures>(&mut self, wanted: impl Fn(&S, &Segment) -> bool, sink: &mut S) {
        // Without steady rounds, all packets are already reported.
        if self.steady.is_none() {
            return;
        }
        let position = self.wire.position_at(self.caught_up);
        // Avoid a branch: the result of `wanted` for the first segment is unpredictable.
        let (mut asked, mut count) = (std::mem::take(&mut self.asked), 0);
        asked.resize(self.rings.len(), 0);
        for &queue in &self.active {
            let head = self.rings[queue as usize].head_segment();
            asked[count] = queue;
            count += usize::from(head.is_some_and(|segment| wanted(sink, segment)));
        }
        for &queue in &asked[..count] {
            let ring = &mut self.rings[queue as usize];
            ring.send_until(queue, position, self.wire, sink);
        }
        self.asked = asked;
    }
}
