//! Departures from the NIC: trains of packets, and the trait that receives them.

use super::wire::Wire;
use crate::segment::{Packet, Segment};
use crate::time::Time;

/// Consecutive packets of one segment that have left the wire, with the exact time of each packet.
///
/// The ring sends the packets in bursts, one burst per turn. If other rings have turns in between,
/// bursts begin at equal intervals. Times are computed on request.
#[derive(Clone, Copy, Debug)]
pub struct Train<'a> {
    /// The ring that sent the packets.
    pub queue: u32,
    pub segment: &'a Segment,
    /// Index of the first packet within the segment, from 0.
    pub first: u32,
    /// Number of packets, at least 1.
    pub packets: u32,
    /// Bytes of all packets with their headers, without the framing on the wire.
    pub frame_bytes: u64,
    pub(super) pace: Pace,
    /// Wire bytes of each packet except the last.
    pub(super) packet_bytes: u32,
    /// Wire bytes of the last packet. Only the last packet of a segment may be shorter than the others.
    pub(super) last_bytes: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) wire: Wire,
    /// Wire position at which the first turn begins.
    pub(super) begin: u64,
    /// Number of packets that the ring sent in the first turn before the train.
    pub(super) place: u32,
    /// Packets sent back to back in one turn.
    pub(super) burst: u32,
    /// Wire bytes from the beginning of one turn to the beginning of the next turn.
    pub(super) round_bytes: u64,
}

impl Train<'_> {
    /// Returns when the last bit of the packet `first + index`, including framing, was on the wire.
    /// `index` must be less than `packets`.
    #[must_use]
    #[inline]
    pub fn end_of(&self, index: u32) -> Time {
        let bytes = if index + 1 < self.packets { self.packet_bytes } else { self.last_bytes };
        self.pace.wire.time_of(self.position_of(index) + u64::from(bytes))
    }

    /// Returns when the last packet left.
    #[must_use]
    #[inline]
    pub fn end(&self) -> Time {
        self.end_of(self.packets - 1)
    }

    /// Returns the packet `first + index` as it leaves the NIC. `index` must be less than `packets`.
    #[must_use]
    #[inline]
    pub fn packet(&self, index: u32) -> Packet {
        let packet = self.first + index;
        Packet {
            at: self.end_of(index),
            sequence: self.segment.sequence + u64::from(packet * self.segment.mss),
            flow: self.segment.flow,
            payload: self.segment.packet_payload(packet),
        }
    }

    fn position_of(&self, index: u32) -> u64 {
        self.pace.position_of(index, self.packet_bytes)
    }
}

impl Pace {
    /// Returns the wire position at which packet `index` of the train begins, if each earlier packet has
    /// `packet_bytes`. The first packet of the train has index 0.
    #[inline]
    pub(super) fn position_of(&self, index: u32, packet_bytes: u32) -> u64 {
        let index = self.place + index;
        if index < self.burst {
            return self.begin + u64::from(index) * u64::from(packet_bytes);
        }
        let (turn, place) = match self.burst {
            1 => (index, 0),
            burst => (index / burst, index % burst),
        };
        self.begin + u64::from(turn) * self.round_bytes + u64::from(place) * u64::from(packet_bytes)
    }
}

/// Receives the departures of a [`Nic`](super::Nic).
///
/// Calls for one ring are in order of time: a segment's trains, then its `finished`. Calls for
/// different rings are not ordered: the NIC reports trains of interleaved rings one after the other.
pub trait Departures {
    /// Handles consecutive packets of a segment that have left, possibly some time ago: see
    /// [`Nic::catch_up`](super::Nic::catch_up).
    fn packets(&mut self, train: &Train<'_>);

    /// Handles the departure of the last packet of `segment` at `at`. The driver may complete the segment.
    fn finished(&mut self, queue: u32, segment: &Segment, at: Time);
}
