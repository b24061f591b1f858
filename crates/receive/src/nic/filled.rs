//! The filters of a table, indexed to find the deciding filter.
//!
//! Filters with the same mask form a *shape*: a hash map from masked bits to the first filter with
//! these bits, which links to the next filter by precedence. A look-up probes each shape once, for any
//! number of filters (tuple space search: Srinivasan, Suri, Varghese, SIGCOMM 1999).

use std::cmp::Reverse;
use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::table::Precedence;
use crate::filter::Filter;
use crate::key::{Key, Pattern};

#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) filter: Filter,
    /// Location of the next filter with the same pattern.
    next: Option<u32>,
}

#[derive(Clone, Debug)]
struct Shape {
    mask: Key,
    first: FxHashMap<Key, u32>,
}

#[derive(Clone, Debug)]
pub(super) struct Filled {
    precedence: Precedence,
    slots: Vec<Option<Slot>>,
    /// Free locations below the last used location.
    holes: BTreeSet<u32>,
    used: usize,
    shapes: Vec<Shape>,
}

/// The filter with the smallest rank decides.
pub(super) type Rank = (Reverse<u32>, u32);

impl Filled {
    pub(super) fn new(precedence: Precedence) -> Self {
        Self { precedence, slots: Vec::new(), holes: BTreeSet::new(), used: 0, shapes: Vec::new() }
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn slot(&self, location: u32) -> Option<&Slot> {
        self.slots.get(location as usize)?.as_ref()
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = (u32, &Slot)> + Clone {
        (0..).zip(&self.slots).filter_map(|(location, slot)| Some((location, slot.as_ref()?)))
    }

    pub(super) fn free_location(&self) -> u32 {
        // No truncation: a table has at most as many filters as the model has rows.
        self.holes.first().copied().unwrap_or(self.slots.len() as u32)
    }

    /// Returns the mask that all filters have; `None` without filters or with several masks.
    pub(super) fn only_mask(&self) -> Option<&Key> {
        match self.shapes.as_slice() {
            [only] => Some(&only.mask),
            _ => None,
        }
    }

    /// Returns the location of the first filter with exactly this pattern.
    pub(super) fn first(&self, pattern: &Pattern) -> Option<u32> {
        let shape = self.shapes.iter().find(|shape| shape.mask == pattern.mask)?;
        shape.first.get(&pattern.value).copied()
    }

    /// Returns the location of the filter that decides for a packet.
    #[inline]
    pub(super) fn find(&self, key: &Key) -> Option<u32> {
        let first = |shape: &Shape| shape.first.get(&key.and(&shape.mask)).copied();
        match self.shapes.as_slice() {
            [] => None,
            [only] => first(only),
            shapes => shapes.iter().filter_map(first).min_by_key(|location| self.rank(*location)),
        }
    }

    /// Returns the used locations by precedence.
    pub(super) fn by_rank(&self) -> Vec<u32> {
        let mut order: Vec<u32> = self.slots().map(|(location, _)| location).collect();
        order.sort_by_key(|location| self.rank(*location));
        order
    }

    pub(super) fn rank(&self, location: u32) -> Rank {
        let priority = match self.precedence {
            Precedence::Priority { .. } => self.slot(location).map_or(0, |slot| slot.filter.priority),
            Precedence::Unique | Precedence::Location => 0,
        };
        (Reverse(priority), location)
    }

    pub(super) fn put(&mut self, location: u32, filter: Filter, pattern: Pattern) {
        let at = location as usize;
        if at < self.slots.len() {
            self.holes.remove(&location);
        } else {
            self.holes.extend(self.slots.len() as u32..location);
            self.slots.resize(at + 1, None);
        }
        self.slots[at] = Some(Slot { filter, next: None });
        self.used += 1;
        let shape = match self.shapes.iter().position(|shape| shape.mask == pattern.mask) {
            Some(shape) => shape,
            None => {
                self.shapes.push(Shape { mask: pattern.mask, first: FxHashMap::default() });
                self.shapes.len() - 1
            }
        };
        let rank = self.rank(location);
        let Some(first) = self.shapes[shape].first.get(&pattern.value).copied() else {
            self.shapes[shape].first.insert(pattern.value, location);
            return;
        };
        if rank < self.rank(first) {
            self.shapes[shape].first.insert(pattern.value, location);
            self.link(location, Some(first));
            return;
        }
        let mut before = first;
        let next = loop {
            match self.slot(before).and_then(|slot| slot.next) {
                Some(next) if self.rank(next) < rank => before = next,
                next => break next,
            }
        };
        self.link(before, Some(location));
        self.link(location, next);
    }

    fn link(&mut self, location: u32, next: Option<u32>) {
        if let Some(slot) = &mut self.slots[location as usize] {
            slot.next = next;
        }
    }

    /// Removes the filter at a location, and returns its slot; `None` without such a filter. `pattern` is the
    /// pattern of this filter.
    pub(super) fn take(&mut self, location: u32, pattern: &Pattern) -> Option<Slot> {
        let removed = self.slots.get_mut(location as usize)?.take()?;
        self.used -= 1;
        if location as usize + 1 == self.slots.len() {
            self.slots.pop();
            while let Some(None) = self.slots.last() {
                self.slots.pop();
                self.holes.remove(&(self.slots.len() as u32));
            }
        } else {
            self.holes.insert(location);
        }
        let position = self.shapes.iter().position(|shape| shape.mask == pattern.mask)?;
        let first = self.shapes[position].first.get(&pattern.value).copied()?;
        if first != location {
            let mut before = first;
            while let Some(next) = self.slot(before).and_then(|slot| slot.next) {
                if next == location {
                    self.link(before, removed.next);
                    break;
                }
                before = next;
            }
        } else if let Some(next) = removed.next {
            self.shapes[position].first.insert(pattern.value, next);
        } else {
            self.shapes[position].first.remove(&pattern.value);
            if self.shapes[position].first.is_empty() {
                self.shapes.swap_remove(position);
            }
        }
        Some(removed)
    }

    /// Replaces a filter by a filter with the same match and priority.
    pub(super) fn redirect(&mut self, location: u32, filter: Filter) {
        if let Some(Some(slot)) = self.slots.get_mut(location as usize) {
            slot.filter = filter;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::filter::{FilterMatch, PortMatch, QueueId, TableId};

    fn filter(priority: u32, port: u16, mask: u16) -> Filter {
        let matches = FilterMatch { source_port: Some(PortMatch::masked(port, mask)), ..FilterMatch::ANY };
        Filter::new(TableId(0), priority, matches, QueueId(0))
    }

    proptest! {
        /// Uses few values and masks, so that many filters have the same pattern.
        #[test]
        fn the_filter_that_decides_is_the_one_that_a_search_finds(
            by_priority: bool,
            steps in proptest::collection::vec((0_u32..12, 1_u32..4, 0_u16..4, 0_usize..3), 1..60),
        ) {
            let precedence =
                if by_priority { Precedence::Priority { levels: 3 } } else { Precedence::Location };
            let mut filled = Filled::new(precedence);
            let mut plain: BTreeMap<u32, Filter> = BTreeMap::new();
            for (location, priority, port, mask) in steps {
                let filter = filter(priority, port, [0, 2, 3][mask]);
                if let Some(before) = plain.remove(&location) {
                    prop_assert!(filled.take(location, &Pattern::of(&before.matches).unwrap()).is_some());
                } else {
                    prop_assert!(filled.take(location, &Pattern::of(&filter.matches).unwrap()).is_none());
                    filled.put(location, filter, Pattern::of(&filter.matches).unwrap());
                    plain.insert(location, filter);
                }
                prop_assert_eq!(filled.used(), plain.len());
                let free = (0..).find(|location| !plain.contains_key(location)).unwrap();
                prop_assert_eq!(filled.free_location(), free);
                for port in 0..4 {
                    let key = Key { transport: port, ..Key::default() };
                    let matching = plain.iter().filter(|(_, filter)| {
                        Pattern::of(&filter.matches).unwrap().matches(&key)
                    });
                    let rank = |location: u32, filter: &Filter| {
                        (if by_priority { 3 - filter.priority } else { 0 }, location)
                    };
                    let first = matching.map(|(location, filter)| rank(*location, filter)).min();
                    prop_assert_eq!(filled.find(&key), first.map(|(_, location)| location));
                }
            }
        }
    }
}
