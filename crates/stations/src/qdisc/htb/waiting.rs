//! The classes of one level that wait for tokens, earliest first. A binary heap, with the position of each
//! class in the heap, so that any class can be removed.

use super::super::queue::NONE;
use crate::time::Time;

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Time,
    /// Insertion number. At equal times, the smaller number is first.
    order: u64,
    class: u32,
}

impl Entry {
    fn before(&self, other: &Self) -> bool {
        (self.at, self.order) < (other.at, other.order)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Waiting {
    heap: Vec<Entry>,
    places: Vec<u32>,
    inserted: u64,
}

impl Waiting {
    pub(super) fn new(classes: usize) -> Self {
        Self { heap: Vec::new(), places: vec![NONE; classes], inserted: 0 }
    }

    pub(super) fn first(&self) -> Option<(Time, u32)> {
        self.heap.first().map(|entry| (entry.at, entry.class))
    }

    /// Inserts a class that is not waiting.
    pub(super) fn insert(&mut self, class: u32, at: Time) {
        self.inserted += 1;
        self.heap.push(Entry { at, order: self.inserted, class });
        self.rise(self.heap.len() - 1);
    }

    pub(super) fn remove(&mut self, class: u32) {
        let place = std::mem::replace(&mut self.places[class as usize], NONE) as usize;
        if place >= self.heap.len() {
            return;
        }
        self.heap.swap_remove(place);
        if place < self.heap.len() {
            let place = self.rise(place);
            self.sink(place);
        }
    }

    fn rise(&mut self, mut place: usize) -> usize {
        while place > 0 {
            let above = (place - 1) / 2;
            if !self.heap[place].before(&self.heap[above]) {
                break;
            }
            self.heap.swap(place, above);
            self.note(place);
            place = above;
        }
        self.note(place);
        place
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let (left, right) = (2 * place + 1, 2 * place + 2);
            let mut least = place;
            for below in [left, right] {
                if self.heap.get(below).is_some_and(|entry| entry.before(&self.heap[least])) {
                    least = below;
                }
            }
            if least == place {
                break;
            }
            self.heap.swap(place, least);
            self.note(place);
            place = least;
        }
        self.note(place);
    }

    fn note(&mut self, place: usize) {
        self.places[self.heap[place].class as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn like_a_sorted_list(steps in prop::collection::vec((0u32..20, 0u64..10, any::<bool>()), 0..200)) {
            let mut waiting = Waiting::new(20);
            let mut sorted: Vec<(u64, usize, u32)> = Vec::new();
            for (number, (class, at, insert)) in steps.into_iter().enumerate() {
                waiting.remove(class);
                sorted.retain(|entry| entry.2 != class);
                if insert {
                    waiting.insert(class, Time(at));
                    sorted.push((at, number, class));
                    sorted.sort_unstable();
                }
                prop_assert_eq!(waiting.first(), sorted.first().map(|entry| (Time(entry.0), entry.2)));
            }
        }
    }
}
