//! The calendar: what happens next.
//!
//! Every source of events (an interrupt line, a flow's timer) has a slot of its own and at most one event
//! pending, so the calendar is a tournament: four slots play a match, four winners the next one, and so on.
//! Planning again replays the matches on the way up, and nothing stale is ever popped. Events at
//! the same time come in the order in which they were planned.

use std::hint::select_unpredictable;

use crate::time::Time;

/// With more frequent slots than this, most of them lose their first match, and it pays to look at that.
const FEW_SLOTS: usize = 64;

/// A source of events; the owner of the calendar numbers the slots.
pub type Slot = u32;

/// Bits of an entry that hold its slot.
const SLOT_BITS: u32 = 24;

/// A planned event: its time, above that the order among equals, above that the slot; so the smaller
/// number is the earlier event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry(u128);

impl Entry {
    /// Nothing is planned.
    const NONE: Self = Self(u128::MAX);

    const fn new(time: Time, sequence: u64, slot: Slot) -> Self {
        Self(((time.0 as u128) << 64) | ((sequence << SLOT_BITS) | slot as u64) as u128)
    }

    /// The earlier of two. Which one is chance, so that a branch would be guessed wrong every other time:
    /// there is none.
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

/// Events that play against each other in one match.
const PLAYERS: usize = 4;

/// A match: its events lie in one line of the cache, and the earliest goes on.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Match([Entry; PLAYERS]);

impl Match {
    /// The winner: two pairs side by side, then the final.
    #[inline]
    fn winner(&self) -> Entry {
        let [a, b, c, d] = self.0;
        a.earlier(b).earlier(c.earlier(d))
    }
}

/// A tournament of events.
#[derive(Clone, Debug)]
struct Tournament {
    /// The final is number 0; what comes out of number n plays in number (n - 1) / 4, at the place (n - 1) % 4.
    matches: Vec<Match>,
    /// The first of the matches that slots play in.
    opening: usize,
    /// The winner of all.
    first: Entry,
}

impl Tournament {
    fn new(slots: usize) -> Self {
        // Each round has four times as many matches as the next one, down to the final.
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

    /// Plays the matches on the way up: all of them, or up to the first that ends as it did before, as the next one
    /// knows. For a frequent slot every match costs less than a guess which is the last that matters. Where most events
    /// are far away (`RARE`), it is nearly always the first.
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

/// Planned events, one per slot at most.
#[derive(Clone, Debug)]
pub struct Calendar {
    /// Of the slots that are planned all the time: few, so that their matches are.
    frequent: Tournament,
    /// Of the others.
    rare: Tournament,
    /// Number of frequent slots, which come first.
    split: usize,
    next_sequence: u64,
    /// The slot whose event was taken off last and whose entry still stands: it is planned again more
    /// often than not, and then its matches are played once and not twice.
    taken: Option<Slot>,
}

impl Calendar {
    /// An empty calendar for `frequent` slots and `rare` ones, which follow them. There may be 2^24.
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

    /// Plans the slot's event for `time`, in place of the one it may have; [`Time::NEVER`] cancels it.
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

    /// Plans the slot's event unless an earlier one is planned already.
    #[inline]
    pub fn plan_no_later(&mut self, slot: Slot, time: Time) {
        if self.planned(slot) > time {
            self.plan(slot, time);
        }
    }

    /// Takes the slot's event back, if it has one.
    pub fn cancel(&mut self, slot: Slot) {
        if self.taken == Some(slot) {
            self.taken = None;
        }
        self.set(slot, Entry::NONE);
    }

    /// Removes the entry of the event that was taken off last.
    fn settle(&mut self) {
        if let Some(slot) = self.taken.take() {
            self.set(slot, Entry::NONE);
        }
    }

    /// When the slot's event is planned; [`Time::NEVER`] if it has none.
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

    /// The time of the next event.
    #[must_use]
    pub fn next_time(&mut self) -> Option<Time> {
        self.settle();
        let first = self.first();
        (first != Entry::NONE).then_some(first.time())
    }

    /// Takes the next event off, if it is not after `limit`.
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
        /// Against a plain list that is searched each time.
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
