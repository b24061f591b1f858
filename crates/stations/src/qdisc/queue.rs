//! Storage of segments: single queues, and many queues in one slab.

use std::collections::VecDeque;

use crate::segment::Segment;

/// No index: the end of a list, or an empty bucket.
pub(super) const NONE: u32 = u32::MAX;

/// A queued segment with its length. The stored length saves a division at dequeue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Item {
    pub(super) segment: Segment,
    /// Frame bytes of all packets (`qdisc_pkt_len`).
    pub(super) bytes: u32,
}

impl From<Segment> for Item {
    fn from(segment: Segment) -> Self {
        Self { segment, bytes: segment.frame_bytes() }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backlog {
    pub(super) segments: usize,
    pub(super) bytes: u64,
}

impl Backlog {
    pub(super) fn add(&mut self, item: &Item) {
        self.segments += 1;
        self.bytes += u64::from(item.bytes);
    }

    pub(super) fn remove(&mut self, item: &Item) {
        self.segments -= 1;
        self.bytes -= u64::from(item.bytes);
    }
}

/// A FIFO queue without a limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    items: VecDeque<Item>,
    bytes: u64,
}

impl Queue {
    pub(super) fn push(&mut self, item: Item) {
        self.bytes += u64::from(item.bytes);
        self.items.push_back(item);
    }

    pub(super) fn pop(&mut self) -> Option<Item> {
        let item = self.items.pop_front()?;
        self.bytes -= u64::from(item.bytes);
        Some(item)
    }

    /// Returns the length of the head, bytes; 0 if the queue is empty.
    pub(super) fn head_bytes(&self) -> u32 {
        self.items.front().map_or(0, |item| item.bytes)
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The slab of all lists of one discipline. It reuses the nodes of departed segments, so it allocates only
/// while the backlog grows to a new maximum.
#[derive(Clone, Debug)]
pub(super) struct Pool<T> {
    nodes: Vec<Node<T>>,
    free: u32,
}

#[derive(Clone, Copy, Debug)]
struct Node<T> {
    value: T,
    next: u32,
    previous: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(super) const EMPTY: Self = Self { head: NONE, tail: NONE };
}

impl<T: Copy> Pool<T> {
    pub(super) fn new() -> Self {
        Self { nodes: Vec::new(), free: NONE }
    }

    pub(super) fn push_back(&mut self, list: &mut List, value: T) {
        let node = Node { value, next: NONE, previous: list.tail };
        let index = self.free;
        let index = if index == NONE {
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        } else {
            let place = &mut self.nodes[index as usize];
            self.free = place.next;
            *place = node;
            index
        };
        if list.tail == NONE {
            list.head = index;
        } else {
            self.nodes[list.tail as usize].next = index;
        }
        list.tail = index;
    }

    pub(super) fn pop_front(&mut self, list: &mut List) -> Option<T> {
        let node = self.nodes.get_mut(list.head as usize)?;
        let value = node.value;
        let next = std::mem::replace(&mut node.next, self.free);
        self.free = list.head;
        list.head = next;
        if next == NONE {
            list.tail = NONE;
        } else {
            self.nodes[next as usize].previous = NONE;
        }
        Some(value)
    }

    pub(super) fn pop_back(&mut self, list: &mut List) -> Option<T> {
        let node = self.nodes.get_mut(list.tail as usize)?;
        let value = node.value;
        node.next = self.free;
        let previous = node.previous;
        self.free = list.tail;
        list.tail = previous;
        if previous == NONE {
            list.head = NONE;
        } else {
            self.nodes[previous as usize].next = NONE;
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_share_a_slab_and_reuse_it() {
        let mut pool = Pool::new();
        let (mut a, mut b) = (List::EMPTY, List::EMPTY);
        for value in 0..4 {
            pool.push_back(&mut a, value);
            pool.push_back(&mut b, 10 + value);
        }
        assert_eq!((pool.pop_front(&mut a), pool.pop_back(&mut a)), (Some(0), Some(3)));
        assert_eq!((pool.pop_back(&mut b), pool.pop_front(&mut b)), (Some(13), Some(10)));
        for value in 4..8 {
            pool.push_back(&mut a, value);
        }
        assert_eq!(pool.nodes.len(), 8);
        let rest: Vec<i32> = std::iter::from_fn(|| pool.pop_front(&mut a)).collect();
        assert_eq!(rest, [1, 2, 4, 5, 6, 7]);
        assert_eq!(pool.pop_front(&mut a), None);
        assert_eq!((pool.pop_back(&mut b), pool.pop_back(&mut b)), (Some(12), Some(11)));
        assert_eq!((pool.pop_back(&mut b), pool.pop_front(&mut b)), (None, None));
    }
}
