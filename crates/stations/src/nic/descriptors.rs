//! Descriptors of a transmit ring, as in Intel's ixgbe driver.

use crate::segment::Segment;

/// Largest data of one descriptor in bytes (`IXGBE_MAX_DATA_PER_TXD`, ixgbe.h).
const DATA_PER_DESCRIPTOR_BYTES: u32 = 1 << 14;
/// Descriptors of a worst-case segment (`DESC_NEEDED`, ixgbe.h): `MAX_SKB_FRAGS`, by default 17, plus 4.
const WORST_CASE_DESCRIPTORS: u32 = 17 + 4;

/// Returns the number of descriptors of the worst-case segment of up to this many bytes: ixgbe's number,
/// or more for segments above 304 KiB. ixgbe's own limit is 64 KiB.
const fn worst_case(largest_segment: u32) -> u32 {
    let needed = 2 + largest_segment.div_ceil(DATA_PER_DESCRIPTOR_BYTES);
    if needed > WORST_CASE_DESCRIPTORS { needed } else { WORST_CASE_DESCRIPTORS }
}

/// Returns the number of descriptors of the smallest ring for segments of up to this many bytes. In a
/// smaller ring, a stopped queue would never wake.
pub const fn least_descriptors(largest_segment: u32) -> u32 {
    2 * worst_case(largest_segment) + 1
}

/// Returns the number of descriptors of a segment: the context (checksum, TSO), the headers, and the payload
/// in pieces of 16 KiB.
///
/// `ixgbe_tx_map` counts page fragments separately. A full TCP segment has two or three fragments of up to 32
/// KiB, so the driver's number can be higher by one or two.
#[must_use]
pub const fn descriptors_of(segment: &Segment) -> u32 {
    2 + segment.payload.div_ceil(DATA_PER_DESCRIPTOR_BYTES)
}

/// The free descriptors of one ring, and whether the driver has stopped the queue because too few are
/// free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSpace {
    free: u32,
    worst_case: u32,
    stopped: bool,
}

impl RingSpace {
    /// Creates an empty ring for segments of up to `largest_segment` bytes. One of its descriptors is always
    /// unused (`ixgbe_desc_unused`, ixgbe.h).
    #[must_use]
    pub const fn new(descriptors: u32, largest_segment: u32) -> Self {
        let worst_case = worst_case(largest_segment);
        Self { free: descriptors.saturating_sub(1), worst_case, stopped: false }
    }

    #[must_use]
    pub const fn free(&self) -> u32 {
        self.free
    }

    /// Returns whether the stack may enqueue a segment: the driver has not stopped the queue.
    #[must_use]
    pub const fn may_enqueue(&self) -> bool {
        !self.stopped
    }

    /// Accounts for an enqueued segment. Stops the queue if the worst-case segment does not fit
    /// afterwards (`ixgbe_maybe_stop_tx`).
    pub fn queued(&mut self, segment: &Segment) {
        let descriptors = descriptors_of(segment);
        debug_assert!(descriptors <= self.free, "the ring is full");
        self.free = self.free.saturating_sub(descriptors);
        self.stopped |= self.free < self.worst_case;
    }

    /// Handles a completion round of the driver that freed this many descriptors (see
    /// [`descriptors_of`]). Wakes a stopped queue if two worst-case segments fit (`TX_WAKE_THRESHOLD`,
    /// `ixgbe_clean_tx_irq` in ixgbe_main.c).
    pub fn completed(&mut self, descriptors: u32) {
        self.free += descriptors;
        self.stopped &= self.free < 2 * self.worst_case;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(payload: u32) -> Segment {
        Segment { payload, mss: 1448, ..Segment::default() }
    }

    #[test]
    fn descriptors_by_size() {
        let counts =
            [0, 1, 1448, 16_384, 16_385, 65_160, 65_536].map(|payload| descriptors_of(&segment(payload)));
        assert_eq!(counts, [2, 3, 3, 3, 4, 6, 6]);
    }

    #[test]
    fn stops_below_the_worst_case_and_wakes_at_twice_that() {
        let mut space = RingSpace::new(512, 65_536);
        assert_eq!(space.free(), 511);
        // 81 segments of 6 descriptors leave 25 free. The next segment leaves 19, which is less than
        // 21.
        for _ in 0..81 {
            space.queued(&segment(65_160));
            assert!(space.may_enqueue());
        }
        space.queued(&segment(65_160));
        assert_eq!(space.free(), 19);
        assert!(!space.may_enqueue());
        // 37 free descriptors do not wake the queue. 43 free descriptors wake the queue.
        space.completed(18);
        assert!(!space.may_enqueue());
        space.completed(6);
        assert_eq!(space.free(), 43);
        assert!(space.may_enqueue());
    }

    /// Checks segments of 512 KiB with 34 descriptors each.
    #[test]
    fn segments_beyond_64_kib_always_fit_while_it_is_not_stopped() {
        let mut space = RingSpace::new(512, 1 << 19);
        let taken = (0..).take_while(|_| {
            let takes = space.may_enqueue();
            if takes {
                space.queued(&segment(1 << 19));
            }
            takes
        });
        // Fifteen segments leave one descriptor. With 67 free descriptors the queue is still stopped.
        // With 69, the queue wakes.
        assert_eq!((taken.count(), space.free()), (15, 1));
        space.completed(66);
        assert!(!space.may_enqueue());
        space.completed(2);
        assert!(space.may_enqueue());
        assert_eq!((least_descriptors(65_536), least_descriptors(1 << 19)), (43, 69));
    }
}
