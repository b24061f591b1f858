//! The calendar: what happens next.
//!
//! Every source of events (an interrupt line, a ring's head, a flow's timer) has a slot of its own and
//! at most one event pending, so the calendar is an indexed heap: planning again moves the entry, and
//! nothing stale is ever popped. Events at the same time come in the order in which they were planned.

use crate::time::Time;

/// A source of events; slots are numbered by whoever builds the calendar.
pub type Slot = u32;

const ABSENT: u32 = u32::MAX;
/// Children per node: wide and shallow, since re-planning moves entries up more often than down.
const ARITY: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Time in the upper half, order among equals in the lower one: a single comparison.
    key: u128,
    slot: Slot,
}

impl Entry {
    const fn time(&self) -> Time {
        Time((self.key >> 64) as u64)
    }

    const fn before(&self, other: &Self) -> bool {
        self.key < other.key
    }
}

/// Planned events, one per slot at most.
#[derive(Clone, Debug)]
pub struct Calendar {
    heap: Vec<Entry>,
    /// Where each slot's entry stands in the heap.
    position: Vec<u32>,
    next_sequence: u64,
}

impl Calendar {
    /// An empty calendar for `slots` sources.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self { heap: Vec::with_capacity(slots), position: vec![ABSENT; slots], next_sequence: 0 }
    }

    /// Plans the slot's event for `time`, in place of the one it may have; [`Time::NEVER`] cancels it.
    pub fn plan(&mut self, slot: Slot, time: Time) {
        if time == Time::NEVER {
            self.cancel(slot);
            return;
        }
        let entry = Entry { key: u128::from(time.0) << 64 | u128::from(self.next_sequence), slot };
        self.next_sequence += 1;
        let position = self.position[slot as usize];
        if position == ABSENT {
            self.heap.push(entry);
            self.rise(self.heap.len() - 1, entry);
        } else if entry.before(&self.heap[position as usize]) {
            self.rise(position as usize, entry);
        } else {
            self.sink(position as usize, entry);
        }
    }

    /// Plans the slot's event unless an earlier one is planned already.
    pub fn plan_no_later(&mut self, slot: Slot, time: Time) {
        if self.planned(slot) > time {
            self.plan(slot, time);
        }
    }

    /// Takes the slot's event back, if it has one.
    pub fn cancel(&mut self, slot: Slot) {
        let position = self.position[slot as usize];
        if position != ABSENT {
            self.remove(position as usize);
        }
    }

    /// When the slot's event is planned; [`Time::NEVER`] if it has none.
    #[must_use]
    pub fn planned(&self, slot: Slot) -> Time {
        match self.position[slot as usize] {
            ABSENT => Time::NEVER,
            position => self.heap[position as usize].time(),
        }
    }

    /// The time of the next event.
    #[must_use]
    pub fn next_time(&self) -> Option<Time> {
        self.heap.first().map(Entry::time)
    }

    /// Takes the next event off, if it is not after `limit`.
    pub fn pop(&mut self, limit: Time) -> Option<(Time, Slot)> {
        let first = *self.heap.first()?;
        if first.time() > limit {
            return None;
        }
        self.remove(0);
        Some((first.time(), first.slot))
    }

    fn remove(&mut self, position: usize) {
        let removed = self.heap[position].slot;
        self.position[removed as usize] = ABSENT;
        let Some(last) = self.heap.pop() else { return };
        if position < self.heap.len() {
            if position > 0 && last.before(&self.heap[(position - 1) / ARITY]) {
                self.rise(position, last);
            } else {
                self.sink(position, last);
            }
        }
    }

    /// Puts the entry at the hole `position` or above it.
    fn rise(&mut self, mut position: usize, entry: Entry) {
        while position > 0 {
            let parent = (position - 1) / ARITY;
            if !entry.before(&self.heap[parent]) {
                break;
            }
            self.put(position, self.heap[parent]);
            position = parent;
        }
        self.put(position, entry);
    }

    /// Puts the entry at the hole `position` or below it.
    fn sink(&mut self, mut position: usize, entry: Entry) {
        loop {
            let first = position * ARITY + 1;
            let end = (first + ARITY).min(self.heap.len());
            let Some(least) =
                (first..end).reduce(
                    |least, child| {
                        if self.heap[child].before(&self.heap[least]) { child } else { least }
                    },
                )
            else {
                break;
            };
            if !self.heap[least].before(&entry) {
                break;
            }
            self.put(position, self.heap[least]);
            position = least;
        }
        self.put(position, entry);
    }

    fn put(&mut self, position: usize, entry: Entry) {
        self.heap[position] = entry;
        self.position[entry.slot as usize] = position as u32;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_times_come_in_the_order_of_planning() {
        let mut calendar = Calendar::new(4);
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
        let mut calendar = Calendar::new(1);
        calendar.plan(0, Time(5));
        assert_eq!(calendar.pop(Time(4)), None);
        assert_eq!(calendar.pop(Time(5)), Some((Time(5), 0)));
        assert_eq!(calendar.pop(Time::NEVER), None);
    }

    proptest! {
        /// Against a plain list that is searched each time.
        #[test]
        fn it_is_a_sorted_list(steps in prop::collection::vec((0_u32..12, 0_u64..50, 0_u8..4), 1..300)) {
            let mut calendar = Calendar::new(12);
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
