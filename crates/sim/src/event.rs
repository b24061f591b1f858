//! The calendar of pending events.
//!
//! Every source of events (an interrupt line, a flow's timer) has its own slot and at most one pending
//! event. The calendar is therefore a tournament tree: each match has four entries, and its winner
//! enters the next match. Rescheduling replays the matches of the slot, so the tree never contains a
//! replaced event. Events at the same time fire in the order in which they were scheduled.

use std::hint::select_unpredictable;

use crate::time::Time;

/// With more frequent slots than this, most slots lose their first match, and an early exit is faster.
const FEW_SLOTS: usize = 64;

/// A source of events. The owner of the calendar numbers the slots.
pub type Slot = u32;

/// Bits of an entry that hold its slot.
const SLOT_BITS: u32 = 24;

/// A scheduled event as one number: the time in the upper bits, then the sequence number, then the
/// slot. The smaller number is the earlier event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry(u128);

impl Entry {
    const NONE: Self = Self(u128::MAX);

    const fn new(time: Time, sequence: u64, slot: Slot) -> Self {
        Self(((time.0 as u128) << 64) | ((sequence << SLOT_BITS) | slot as u64) as u128)
    }

    /// Returns the earlier of two entries. The function has no branch, because the result is
    /// unpredictable.
    #[inline]
    fn earlier(self, other: Self) -> Self {
        Self(select_unpredictable(self.0 < other.0, self.0, other.0))
    }

    const fn time(self) -> Time {
        Time((self.0 >> 64) as u64)
    }

    const fn slot(self) -> Slot {
        self.0 as Slot & ((1 << SLOT_BITS) - 1)
    }
}

/// Number of entries in a match.
const PLAYERS: usize = 4;

/// A match. Its events share a cache line, and the earliest event enters the next match.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Match([Entry; PLAYERS]);

impl Match {
    /// Returns the winner: two pairs in parallel, then the final.
    #[inline]
    fn winner(&self) -> Entry {
        let [a, b, c, d] = self.0;
        a.earlier(b).earlier(c.earlier(d))
    }
}

#[derive(Clone, Debug)]
struct Tournament {
    /// Match 0 is the root. The winner of match n enters match (n - 1) / 4 at position (n - 1) % 4.
    matches: Vec<Match>,
    /// Index of the first match that slots enter.
    opening: usize,
    first: Entry,
}

impl Tournament {
    fn new(slots: usize) -> Self {
        // Each round has four times as many matches as the next round. The last round is the final.
        let (mut opening, mut width) = (0, 1);
        while width * PLAYERS < slots {
            opening += width;
            width *= PLAYERS;
        }
        let matches = vec![Match([Entry::NONE; PLAYERS]); opening + width];
        Self { matches, opening, first: Entry::NONE }
    }

    #[inline]
    fn entry(&self, slot: usize) -> Entry {
        self.matches[self.opening + slot / PLAYERS].0[slot % PLAYERS]
    }

    /// Replaces a slot's entry and replays the matches up to the root.
    ///
    /// Without `RARE`, the function replays all matches, because a match costs less than a mispredicted exit.
    /// With `RARE`, it stops at the first match whose winner does not change. Most events of rare slots are
    /// far in the future, so for them the function nearly always stops at the first match.
    #[inline]
    fn set<const RARE: bool>(&mut self, slot: usize, entry: Entry) {
        let (mut number, mut place) = (self.opening + slot / PLAYERS, slot % PLAYERS);
        let mut winner = entry;
        loop {
            let played = &mut self.matches[number];
            played.0[place] = winner;
            winner = played.winner();
            if number == 0 {
                break;
            }
            (number, place) = ((number - 1) / PLAYERS, (number - 1) % PLAYERS);
            if RARE && winner == self.matches[number].0[place] {
                return;
            }
        }
        self.first = winner;
    }
}

/// Scheduled events, at most one per slot.
#[derive(Clone, Debug)]
pub struct Calendar {
    /// Events of the slots that nearly always have an event. Usually there are few such slots, so their
    /// tournament is small.
    frequent: Tournament,
    rare: Tournament,
    /// Number of frequent slots. They precede the rare slots.
    split: usize,
    next_sequence: u64,
    /// Slot of the last popped event. Its entry is still in the tree. Usually this slot is rescheduled
    /// next, so its matches are replayed once instead of twice.
    taken: Option<Slot>,
}

impl Calendar {
    /// Creates an empty calendar with `frequent` slots, followed by `rare` slots; at most 2^24 in
    /// total.
    #[must_use]
    pub fn new(frequent: usize, rare: usize) -> Self {
        debug_assert!(frequent + rare <= 1 << SLOT_BITS, "too many slots");
        Self {
            frequent: Tournament::new(frequent),
            rare: Tournament::new(rare),
            split: frequent,
            next_sequence: 0,
            taken: None,
        }
    }

    fn set(&mut self, slot: Slot, entry: Entry) {
        let slot = slot as usize;
        match slot.checked_sub(self.split) {
            None if self.split <= FEW_SLOTS => self.frequent.set::<false>(slot, entry),
            None => self.frequent.set::<true>(slot, entry),
            Some(leaf) => self.rare.set::<true>(leaf, entry),
        }
    }

    fn first(&self) -> Entry {
        self.frequent.first.earlier(self.rare.first)
    }

    /// Schedules the slot's event for `time` and replaces a pending event. [`Time::NEVER`] cancels the
    /// event.
    #[inline]
    pub fn plan(&mut self, slot: Slot, time: Time) {
        if time == Time::NEVER {
            self.cancel(slot);
            return;
        }
        if self.taken == Some(slot) {
            self.taken = None;
        }
        let entry = Entry::new(time, self.next_sequence, slot);
        self.next_sequence += 1;
        self.set(slot, entry);
    }

    /// Schedules the slot's event for `time`, unless the slot has an event at `time` or earlier.
    #[inline]
    pub fn plan_no_later(&mut self, slot: Slot, time: Time) {
        if self.planned(slot) > time {
            self.plan(slot, time);
        }
    }

    pub fn cancel(&mut self, slot: Slot) {
        if self.taken == Some(slot) {
            self.taken = None;
        }
        self.set(slot, Entry::NONE);
    }

    /// Removes the entry of the last popped event.
    fn settle(&mut self) {
        if let Some(slot) = self.taken.take() {
            self.set(slot, Entry::NONE);
        }
    }

    /// Returns the time of the slot's event, or [`Time::NEVER`] if the slot has no event.
    #[must_use]
    #[inline]
    pub fn planned(&self, slot: Slot) -> Time {
        if self.taken == Some(slot) {
            return Time::NEVER;
        }
        let slot = slot as usize;
        match slot.checked_sub(self.split) {
            None => self.frequent.entry(slot).time(),
            Some(leaf) => self.rare.entry(leaf).time(),
        }
    }

    #[must_use]
    pub fn next_time(&mut self) -> Option<Time> {
        self.settle();
        let first = self.first();
        (first != Entry::NONE).then_some(first.time())
    }

    /// Pops the next event, unless it is after `limit`.
    #[inline]
    pub fn pop(&mut self, limit: Time) -> Option<(Time, Slot)> {
        self.settle();
        let first = self.first();
        if first == Entry::NONE || first.time() > limit {
            return None;
        }
        self.taken = Some(first.slot());
        Some((first.time(), first.slot()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_times_come_in_the_order_of_planning() {
        let mut calendar = Calendar::new(2, 2);
        for slot in [2, 0, 3] {
            calendar.plan(slot, Time(5));
        }
        calendar.plan(1, Time(4));
        let order: Vec<Slot> =
            std::iter::from_fn(|| calendar.pop(Time::NEVER)).map(|(_, slot)| slot).collect();
        assert_eq!(order, [1, 2, 0, 3]);
    }

    #[test]
    fn nothing_comes_after_the_limit() {
        let mut calendar = Calendar::new(1, 0);
        calendar.plan(0, Time(5));
        assert_eq!(calendar.pop(Time(4)), None);
        assert_eq!(calendar.pop(Time(5)), Some((Time(5), 0)));
        assert_eq!(calendar.pop(Time::NEVER), None);
    }

    proptest! {
        /// Compares the calendar with a plain list that is searched for each event.
        #[test]
        fn it_is_a_sorted_list(
            frequent in prop_oneof![Just(5), Just(FEW_SLOTS + 1)],
            steps in prop::collection::vec((0_u32..12, 0_u64..50, 0_u8..4), 1..300),
        ) {
            let mut calendar = Calendar::new(frequent, 7);
            let mut list: Vec<(u64, usize, Slot)> = Vec::new();
            for (order, (slot, time, action)) in steps.into_iter().enumerate() {
                match action {
                    0 => {
                        calendar.cancel(slot);
                        list.retain(|entry| entry.2 != slot);
                    }
                    1 => {
                        let first = list.iter().min().copied();
                        prop_assert_eq!(calendar.next_time(), first.map(|entry| Time(entry.0)));
                        let popped = calendar.pop(Time::NEVER);
                        prop_assert_eq!(popped, first.map(|entry| (Time(entry.0), entry.2)));
                        list.retain(|entry| Some(*entry) != first);
                    }
                    _ => {
                        calendar.plan(slot, Time(time));
                        list.retain(|entry| entry.2 != slot);
                        list.push((time, order, slot));
                        prop_assert_eq!(calendar.planned(slot), Time(time));
                    }
                }
            }
        }
    }
}
