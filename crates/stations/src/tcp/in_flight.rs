//! Number of packets in flight and lost at each transmission (`tcp_skb_cb.tx` of BBR version 3's
//! kernel: `in_flight`, `lost`).
//!
//! A packet's stamp is needed until the packet is delivered or lost. This history is therefore longer
//! than the history of [`super::delivery_rate`].

use std::collections::VecDeque;

use crate::time::Time;

/// Number of stamps below which none is removed.
const FEW: usize = 64;

/// The flight in which a packet was sent (`rate_sample`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flight {
    /// Packets in flight after the transmission (`tx_in_flight`).
    pub packets: u32,
    /// Packets found lost since the transmission (`lost`).
    pub lost: u32,
    pub is_app_limited: bool,
}

#[derive(Clone, Copy, Debug)]
struct Stamp {
    sent_at: Time,
    /// First byte after the last segment sent at `sent_at`.
    end: u64,
    /// Packets found lost before the transmission (`tx.lost`).
    lost_ever: u64,
    /// Packets in flight after the last segment sent at `sent_at` (`tx.in_flight`).
    in_flight: u32,
    is_app_limited: bool,
}

/// The stamps of the outstanding packets, in order of time.
#[derive(Clone, Debug)]
pub(super) struct InFlightHistory {
    /// One stamp for all packets of the same time.
    stamps: VecDeque<Stamp>,
    /// Number of stamps at which old stamps are removed. With this limit, the search for the oldest
    /// outstanding packet costs a constant amortized time per transmission.
    removal_at: usize,
}

impl Default for InFlightHistory {
    fn default() -> Self {
        Self { stamps: VecDeque::new(), removal_at: FEW }
    }
}

impl InFlightHistory {
    /// Records the transmission of a segment that ends before byte `end` (`tcp_set_tx_in_flight`).
    ///
    /// - `in_flight`: packets in flight, including the packets of the segment
    /// - `lost_ever`: packets lost so far
    pub fn on_send(&mut self, now: Time, end: u64, in_flight: u32, lost_ever: u64, is_app_limited: bool) {
        let stamp = Stamp { sent_at: now, end, lost_ever, in_flight, is_app_limited };
        match self.stamps.back_mut().filter(|last| last.sent_at == now) {
            Some(last) => *last = stamp,
            None => self.stamps.push_back(stamp),
        }
    }

    /// Returns the flight of the packet that ends before byte `end` and was sent at `sent_at`.
    /// `lost_ever` is the number of packets found lost so far. Returns `None` without a stamp of that time.
    pub fn flight(&self, sent_at: Time, end: u64, lost_ever: u64, mss: u32) -> Option<Flight> {
        let index = self.stamps.binary_search_by_key(&sent_at, |stamp| stamp.sent_at).ok()?;
        let stamp = self.stamps.get(index)?;
        // The stamp holds the values of a segment's last packet. `tcp_fragment` splits a stamp in the
        // same way.
        let later = stamp.end.saturating_sub(end) / u64::from(mss.max(1));
        Some(Flight {
            packets: stamp.in_flight.saturating_sub(u32::try_from(later).unwrap_or(u32::MAX)),
            lost: u32::try_from(lost_ever.saturating_sub(stamp.lost_ever)).unwrap_or(u32::MAX),
            is_app_limited: stamp.is_app_limited,
        })
    }

    pub fn is_crowded(&self) -> bool {
        self.stamps.len() >= self.removal_at
    }

    pub fn remove_before(&mut self, oldest: Time) {
        let old = self.stamps.partition_point(|stamp| stamp.sent_at < oldest);
        self.stamps.drain(..old);
        self.removal_at = (2 * self.stamps.len()).max(FEW);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first packets of a segment were sent with fewer packets in flight than the last packet.
    #[test]
    fn a_part_of_a_segment_has_its_own_flight() {
        let mut history = InFlightHistory::default();
        history.on_send(Time(1), 10_000, 10, 3, false);
        history.on_send(Time(2), 20_000, 20, 4, true);
        let flight = |sent, end| history.flight(Time(sent), end, 5, 1000);
        assert_eq!(flight(1, 10_000), Some(Flight { packets: 10, lost: 2, is_app_limited: false }));
        assert_eq!(flight(2, 20_000), Some(Flight { packets: 20, lost: 1, is_app_limited: true }));
        assert_eq!(flight(2, 13_000), Some(Flight { packets: 13, lost: 1, is_app_limited: true }));
        assert_eq!(flight(3, 20_000), None);
    }

    /// Segments of the same time share the stamp of the last segment.
    #[test]
    fn segments_of_a_burst_have_their_own_flights() {
        let mut history = InFlightHistory::default();
        history.on_send(Time(1), 2000, 2, 0, false);
        history.on_send(Time(1), 4000, 4, 0, false);
        let packets = |end| history.flight(Time(1), end, 0, 1000).map(|flight| flight.packets);
        assert_eq!((packets(2000), packets(4000)), (Some(2), Some(4)));
    }

    #[test]
    fn old_stamps_are_removed() {
        let mut history = InFlightHistory::default();
        for number in 0..10_000 {
            history.on_send(Time(number), number, 1, 0, false);
            if history.is_crowded() {
                history.remove_before(Time(number - 10));
            }
        }
        assert!(history.stamps.len() <= FEW);
        assert!(history.flight(Time(9_995), 9_995, 0, 1).is_some());
    }
}
