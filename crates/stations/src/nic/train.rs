//! Departures from the NIC: trains of packets, and the trait that receives them.

use super::wire::Wire;
use crate::segment::{Packet, Segment};
use crate::time::Time;

/// Consecutive packets of one segment that have left the wire, with the exact time of each.
///
/// The ring sends them in bursts (its turns): `packets` of them over rounds of equal length, if other rings
/// have turns in between. Times are computed on request.
#[derive(Clone, Copy, Debug)]
pub struct Train<'a> {
    /// The ring that they left.
    pub queue: u32,
    /// The segment that they belong to.
    pub segment: &'a Segment,
    /// Index within the segment of the first of them, from 0.
    pub first: u32,
    /// How many; 1 at least.
    pub packets: u32,
    /// Their frames together, without framing on the wire, bytes.
    pub frame_bytes: u64,
    pub(super) pace: Pace,
    /// Wire bytes of every packet but the last.
    pub(super) packet_bytes: u32,
    /// Wire bytes of the last packet: fewer if it is the short end of the segment.
    pub(super) last_bytes: u32,
}

/// When the packets of a train follow each other, in wire positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) wire: Wire,
    /// Begin of the first turn.
    pub(super) begin: u64,
    /// Packets of that turn before the train.
    pub(super) place: u32,
    /// Packets back to back in one turn.
    pub(super) burst: u32,
    /// Bytes from the begin of one turn to the next.
    pub(super) round_bytes: u64,
}

impl Train<'_> {
    /// When the last bit of the packet `first + index` (framing included) was on the wire; `index` is
    /// less than `packets`.
    #[must_use]
    #[inline]
    pub fn end_of(&self, index: u32) -> Time {
        let bytes = if index + 1 < self.packets { self.packet_bytes } else { self.last_bytes };
        self.pace.wire.time_of(self.position_of(index) + u64::from(bytes))
    }

    /// When the last packet had left.
    #[must_use]
    #[inline]
    pub fn end(&self) -> Time {
        self.end_of(self.packets - 1)
    }

    /// The packet `first + index`, as it leaves the NIC; `index` is less than `packets`.
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
    /// Where the packet `index`, from 0, of those sent at this pace begins, if each before it has
    /// `packet_bytes`.
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
/// Calls for one ring come in order of time: a segment's trains, its `finished`. Calls for different rings
/// are not ordered: trains of interleaved rings are reported one after the other.
pub trait Departures {
    /// Consecutive packets of a segment have left: perhaps some time ago, see
    /// [`Nic::catch_up`](super::Nic::catch_up).
    fn packets(&mut self, train: &Train<'_>);

    /// The last packet of `segment` has left at `at`: the driver may complete it.
    fn finished(&mut self, queue: u32, segment: &Segment, at: Time);
}
