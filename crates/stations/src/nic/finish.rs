//! Predicts when the queued segments leave the NIC.
//!
//! Round robin and deficit round robin depend only on turns, not on time, and the bytes of a ring's
//! next n turns depend only on this ring. Therefore, the number of turns that the first segment of a
//! ring needs determines its departure. At the departure, all rings before this ring in the list have
//! had the same number of turns, and all rings behind it one turn less.
//!
//! Turns count from the NIC's position. In steady rounds, the position is the beginning of the rounds,
//! and bytes sent since then are included.

use super::{Nic, Service, ring::Ring};
use crate::{segment::Segment, time::Time};

#[derive(Clone, Debug, Default)]
pub struct Finishes {
    found: Vec<(u32, Time)>,
    /// Requested rings: the turns to the departure and the position in the list, in order of the position.
    asked: Vec<(u64, usize)>,
}

impl Finishes {
    /// Returns each requested queue that has a segment, with the departure of its first segment.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Time)> {
        self.found.iter().copied()
    }
}

impl Nic {
    /// Returns the departure of the first segment of `queue`, or [`Time::NEVER`] if the queue is empty.
    /// The result assumes that no segment is enqueued and no weight changes.
    ///
    /// Further segments can only make the departure later.
    #[must_use]
    pub fn next_finish(&self, queue: u32) -> Time {
        if let Some(end) = self.end_in_rounds(queue) {
            return self.wire.time_of(end);
        }
        match self.active.iter().position(|&active| active == queue) {
            Some(place) => self.finish_in(place, self.turns_to_finish(place)),
            None => Time::NEVER,
        }
    }

    /// Computes [`Nic::next_finish`] of all queues for which `wanted` holds, and stores the results in
    /// `finishes`.
    ///
    /// `reduced` is a queue whose weight has decreased. If it is set, the function skips queues that do
    /// not finish earlier: the reduced queue itself, and queues that finish before its turn.
    ///
    /// One pass over all rings serves all rings with the same number of turns. From ring to ring, the
    /// sum of the bytes before the ring grows, and the sum of the bytes behind it shrinks.
    pub fn finishes(&self, reduced: Option<u32>, wanted: impl Fn(u32) -> bool, finishes: &mut Finishes) {
        let Finishes { found, asked } = finishes;
        found.clear();
        asked.clear();
        let mut behind = reduced.is_none();
        for (place, &queue) in self.active.iter().enumerate() {
            if reduced == Some(queue) {
                behind = true;
                continue;
            }
            let turns = self.turns_to_finish(place);
            if (behind || turns > 1) && wanted(queue) {
                asked.push((turns, place));
            }
        }
        let mut next = asked.iter().map(|&(turns, _)| turns).min();
        while let Some(turns) = next {
            self.finishes_in(turns, asked, found);
            next = asked.iter().map(|&(others, _)| others).filter(|&others| others > turns).min();
        }
    }

    /// Computes the finish times of the requested rings that need `turns` turns.
    fn finishes_in(&self, turns: u64, asked: &[(u64, usize)], found: &mut Vec<(u32, Time)>) {
        let rings = || self.active.iter().map(|&queue| (queue, &self.rings[queue as usize])).enumerate();
        // Most rings need one turn, and then no ring sends in an earlier turn.
        let earlier = |place, ring| if turns == 1 { 0 } else { self.bytes_in(place, ring, turns - 1) };
        let mut behind: u64 =
            if turns == 1 { 0 } else { rings().map(|(place, (_, ring))| earlier(place, ring)).sum() };
        let mut before = 0;
        let mut places = asked.iter().filter(|&&(needed, _)| needed == turns).map(|&(_, place)| place);
        let mut next = places.next();
        for (place, (queue, ring)) in rings() {
            behind -= earlier(place, ring);
            if next == Some(place) {
                let own = ring.turns.done_bytes() + ring.left_bytes();
                found.push((queue, self.wire.time_of(self.position + before + behind + own)));
                next = places.next();
                if next.is_none() {
                    break;
                }
            }
            before += self.bytes_in(place, ring, turns);
        }
    }

    /// Returns the departure of the first unsent packet of the newest segment of `queue`, under the
    /// assumptions of [`Nic::next_finish`]. Returns [`Time::NEVER`] if the queue has no segment. In round
    /// robin without interleaving, the result may be too early.
    #[must_use]
    pub fn first_packet_of_newest(&self, queue: u32) -> Time {
        let newest = self.rings[queue as usize].segments().len().checked_sub(1);
        match (newest, self.active.iter().position(|&active| active == queue)) {
            (Some(newest), Some(place)) => {
                let (turns, bytes) = self.reach(place, newest);
                self.end_in(place, turns, bytes)
            }
            _ => Time::NEVER,
        }
    }

    /// Returns the earliest departure of the first unsent packet of any segment for which `wanted`
    /// holds, or [`Time::NEVER`] if no such segment exists. The function searches only rings for which
    /// `has_some` holds. In round robin without interleaving, the result may be too early.
    #[must_use]
    pub fn earliest_packet(&self, has_some: impl Fn(u32) -> bool, wanted: impl Fn(&Segment) -> bool) -> Time {
        let reach = |(place, &queue): (usize, &u32)| {
            if !has_some(queue) {
                return None;
            }
            let index = self.rings[queue as usize].segments().position(&wanted)?;
            let (turns, bytes) = self.reach(place, index);
            Some((turns, place, bytes))
        };
        match self.active.iter().enumerate().filter_map(reach).min() {
            Some((turns, place, bytes)) => self.end_in(place, turns, bytes),
            None => Time::NEVER,
        }
    }

    /// Returns the turns of the ring at `place` in the list until it has sent the next packet of its segment
    /// `index`. The second value is the wire bytes that the ring sends until then.
    fn reach(&self, place: usize, index: usize) -> (u64, u64) {
        let ring = self.ring_at(place);
        let (mut packets, mut bytes, mut segments_bytes) = (0, 0, 0);
        for (number, (shape, sent)) in ring.shapes().take(index + 1).enumerate() {
            let next = if number == 0 { sent + self.gone_since(ring) } else { sent };
            let end = if number < index { shape.packets } else { next + 1 };
            packets += u64::from(end - sent);
            bytes += shape.bytes(sent, end);
            segments_bytes += shape.bytes(0, shape.packets);
        }
        let turns = match (self.config().service, self.config().interleave) {
            (Service::RoundRobin, true) => u64::from(ring.turns.done()) + packets,
            (Service::RoundRobin, false) => index as u64 + 1,
            (Service::Deficit { .. }, interleave) => {
                let charge = if interleave { bytes } else { segments_bytes };
                self.granted(place) + turns_for(charge.saturating_sub(ring.deficit), ring.credit)
            }
        };
        (turns, bytes)
    }

    /// Returns an estimate of whether the first segment of `queue` has left at `time`. The estimate
    /// assumes that all active rings send equal bytes until then.
    #[must_use]
    pub fn may_finish_by(&self, queue: u32, time: Time) -> bool {
        let ring = &self.rings[queue as usize];
        let first = ring.sent + self.gone_since(ring);
        let left = ring.head.bytes(first, ring.head.packets) * self.active.len() as u64;
        let limit = self.wire.position_at(time);
        if let Some(steady) = &self.steady {
            // The packet on the wire began within a round. Its exact position rarely changes the
            // result.
            let reached = self.wire.position_at(self.caught_up);
            if reached + left <= limit || reached + left > limit + steady.round_bytes {
                return reached + left <= limit;
            }
        }
        self.position_now() + left <= limit
    }

    fn ring_at(&self, place: usize) -> &Ring {
        &self.rings[self.active[place] as usize]
    }

    /// Returns the turns of the ring at `place` in the list until its first segment has left. The first
    /// ring's present turn counts.
    fn turns_to_finish(&self, place: usize) -> u64 {
        let ring = self.ring_at(place);
        self.turns_to_send(place, ring.head.packets - ring.sent, ring.left_bytes())
    }

    /// Returns the turns until the ring has sent its next `packets`, which have `bytes` on the wire.
    fn turns_to_send(&self, place: usize, packets: u32, bytes: u64) -> u64 {
        let ring = self.ring_at(place);
        let interleave = self.config().interleave;
        match self.config().service {
            Service::RoundRobin if interleave => u64::from(ring.turns.done() + packets),
            Service::RoundRobin => 1,
            Service::Deficit { .. } => {
                let charge = if interleave { bytes } else { ring.head_bytes() };
                self.granted(place) + turns_for(charge.saturating_sub(ring.deficit), ring.credit)
            }
        }
    }

    /// Returns when the first segment of the ring at `place` ends in the ring's turn number `turns`, from 1.
    fn finish_in(&self, place: usize, turns: u64) -> Time {
        self.end_in(place, turns, self.ring_at(place).left_bytes())
    }

    /// Returns when the ring at `place` has sent its next `bytes`. The last of these bytes leave in its
    /// turn number `turns`.
    fn end_in(&self, place: usize, turns: u64, bytes: u64) -> Time {
        // Match the NIC's service once, not per ring.
        let others = match (self.config().service, self.config().interleave) {
            (Service::RoundRobin, true) => self.bytes_of_others(place, turns, bytes_in_rounds),
            // A turn sends one segment. This counts only each ring's first segment, so the result is too
            // early if another segment of a ring precedes the packet.
            (Service::RoundRobin, false) => self.bytes_of_others(place, turns, |ring, _| ring.left_bytes()),
            (Service::Deficit { .. }, true) => self.bytes_of_others(place, turns, bytes_of_fitting_packets),
            (Service::Deficit { .. }, false) => self.bytes_of_others(place, turns, bytes_of_fitting_segments),
        };
        self.wire.time_of(self.position + others + self.ring_at(place).turns.done_bytes() + bytes)
    }

    /// Returns the wire bytes of all other rings until the ring at `place` has sent in its turn number
    /// `turns`. `bytes_in` returns the bytes of a ring's next turns.
    #[inline(always)]
    fn bytes_of_others(&self, place: usize, turns: u64, bytes_in: impl Fn(&Ring, u64) -> u64) -> u64 {
        let of = |queue: &u32, turns| bytes_in(&self.rings[*queue as usize], turns);
        let before: u64 = match (place, turns) {
            (0, _) | (_, 0) => 0,
            _ => {
                let first = of(&self.active[0], turns - self.granted(0));
                first + self.active.range(1..place).map(|queue| of(queue, turns)).sum::<u64>()
            }
        };
        // If the ring needs only one turn, the rings behind it send no bytes before its departure.
        if turns <= 1 {
            return before;
        }
        before + self.active.range(place + 1..).map(|queue| of(queue, turns - 1)).sum::<u64>()
    }

    /// Returns the wire bytes of the next `turns` turns of `ring`. `place` is the ring's position in the
    /// list.
    #[inline(always)]
    fn bytes_in(&self, place: usize, ring: &Ring, turns: u64) -> u64 {
        if turns == 0 {
            return 0;
        }
        let turns = turns - self.granted(place);
        match (self.config().service, self.config().interleave) {
            (Service::RoundRobin, true) => bytes_in_rounds(ring, turns),
            (Service::RoundRobin, false) => ring.left_bytes(),
            (Service::Deficit { .. }, true) => bytes_of_fitting_packets(ring, turns),
            (Service::Deficit { .. }, false) => bytes_of_fitting_segments(ring, turns),
        }
    }

    /// Returns the number of turns for which the ring at `place` in the list already has the credit.
    #[inline]
    fn granted(&self, place: usize) -> u64 {
        u64::from(place == 0 && self.config().service != Service::RoundRobin)
    }
}

/// Returns the wire bytes of the ring's next `turns` turns of round robin with interleaving.
#[inline(always)]
fn bytes_in_rounds(ring: &Ring, turns: u64) -> u64 {
    match turns.checked_sub(u64::from(ring.turns.done())) {
        Some(to_come) => ring.turns.done_bytes() + bytes_of_packets(ring, to_come),
        None => ring.turns.bytes_of(turns),
    }
}

/// Returns the minimum number of turns whose credits add up to at least `missing`.
#[inline]
fn turns_for(missing: u64, credit: u64) -> u64 {
    // Avoid a division in the frequent cases of one turn or none.
    if missing <= credit { u64::from(missing > 0) } else { missing.div_ceil(credit) }
}

/// Returns the wire bytes of the ring's next `packets`, or of all packets if there are fewer.
#[inline(always)]
fn bytes_of_packets(ring: &Ring, packets: u64) -> u64 {
    match ring.uniform_bytes() {
        Some(each) => packets.min(ring.backlog_packets) * each,
        None => bytes_of_unequal_packets(ring, packets),
    }
}

fn bytes_of_unequal_packets(ring: &Ring, mut packets: u64) -> u64 {
    let mut bytes = 0;
    for (shape, sent) in ring.shapes() {
        let taken = u64::from(shape.packets - sent).min(packets);
        bytes += shape.bytes(sent, sent + taken as u32);
        packets -= taken;
        if packets == 0 {
            break;
        }
    }
    bytes
}

/// Returns the wire bytes of the ring's next packets that its deficit and the credits of `turns` turns cover.
#[inline(always)]
fn bytes_of_fitting_packets(ring: &Ring, turns: u64) -> u64 {
    let credits = turns * ring.credit;
    let deficit = ring.deficit + credits;
    let Some(each) = ring.uniform_bytes() else { return bytes_of_unequal_fitting_packets(ring, deficit) };
    let all = ring.backlog_packets * each;
    // Avoid a division in two frequent cases: the ring has less data than its turns allow, or the
    // credit is a whole number of packets.
    if deficit >= all {
        all
    } else if ring.burst > 0 && ring.deficit < each {
        credits
    } else {
        deficit / each * each
    }
}

fn bytes_of_unequal_fitting_packets(ring: &Ring, deficit: u64) -> u64 {
    let mut bytes = 0;
    for (shape, sent) in ring.shapes() {
        let taken = shape.fitting(sent, deficit - bytes);
        bytes += shape.bytes(sent, sent + taken);
        if sent + taken < shape.packets {
            break;
        }
    }
    bytes
}

/// Returns the unsent wire bytes of the ring's next segments that its deficit and the credits of `turns`
/// turns cover as whole segments.
fn bytes_of_fitting_segments(ring: &Ring, turns: u64) -> u64 {
    let mut deficit = ring.deficit + turns * ring.credit;
    let mut bytes = 0;
    for (shape, sent) in ring.shapes() {
        let charge = shape.bytes(0, shape.packets);
        if charge > deficit {
            break;
        }
        deficit -= charge;
        bytes += shape.bytes(sent, shape.packets);
    }
    bytes
}
