//! One transmit ring: its segments, and how far the first of them has been sent.

use std::collections::VecDeque;

use super::{
    Service,
    train::{Departures, Pace, Train},
};
use crate::segment::{HEADER_BYTES, Segment, wire_bytes};

/// The packets of a segment as the wire sees them: all have the same size but the last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    /// How many; 1 at least, but for the default.
    pub(super) packets: u32,
    /// Wire bytes of each but the last.
    pub(super) full: u32,
    /// Wire bytes of the last.
    pub(super) last: u32,
}

impl Shape {
    #[inline]
    pub(super) fn of(segment: &Segment) -> Self {
        let packets = segment.packets();
        if packets == 1 {
            let bytes = wire_bytes(segment.payload);
            return Self { packets, full: bytes, last: bytes };
        }
        let rest = segment.payload - (packets - 1) * segment.mss;
        Self { packets, full: wire_bytes(segment.mss), last: wire_bytes(rest) }
    }

    /// Wire bytes of packets `first..end`; `end` is not beyond the segment.
    #[inline]
    pub(super) fn bytes(&self, first: u32, end: u32) -> u64 {
        let all = u64::from(end - first) * u64::from(self.full);
        if first < end && end == self.packets { all - u64::from(self.full - self.last) } else { all }
    }

    /// How many packets from `first` on fit into this many wire bytes.
    #[inline]
    pub(super) fn fitting(&self, first: u32, bytes: u64) -> u32 {
        if bytes >= self.bytes(first, self.packets) {
            return self.packets - first;
        }
        // The last does not fit together with all before it. One or none are frequent: no division.
        let full = u64::from(self.full);
        if bytes < 2 * full {
            return u32::from(bytes >= full && first + 1 < self.packets);
        }
        (self.packets - first - 1).min(u32::try_from(bytes / full).unwrap_or(u32::MAX))
    }
}

/// A FIFO of segments. The first of them is the head; `sent` of its packets have left.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    segments: VecDeque<Segment>,
    pub(super) head: Shape,
    pub(super) sent: u32,
    /// Full-sized packets that every turn sends; 0 if turns differ, as then they cannot be computed
    /// together.
    pub(super) burst: u32,
    /// Packets at the head's end that cannot be part of a turn which is like any other.
    reserve: u32,
    /// Wire bytes that the ring may still send (deficit round robin).
    pub(super) deficit: u64,
    /// Wire bytes that a turn adds to that.
    pub(super) credit: u64,
    pub(super) weight: u32,
    /// Packets that have not left.
    pub(super) backlog_packets: u64,
    /// Their frames, bytes.
    pub(super) backlog_bytes: u64,
}

impl Ring {
    pub(super) fn new(service: Service) -> Self {
        let mut ring = Self {
            segments: VecDeque::new(),
            head: Shape::default(),
            sent: 0,
            burst: 0,
            reserve: 0,
            deficit: 0,
            credit: 0,
            weight: 1,
            backlog_packets: 0,
            backlog_bytes: 0,
        };
        ring.set_weight(1, service);
        ring
    }

    pub(super) fn set_weight(&mut self, weight: u32, service: Service) {
        if let Service::Deficit { quantum_bytes, largest_weight } = service {
            self.weight = weight.clamp(1, largest_weight.max(1));
            self.credit = u64::from(self.weight) * u64::from(quantum_bytes.max(1));
        }
        self.plan_turns(service);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    pub(super) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter()
    }

    /// Appends a segment. Whether the ring was empty.
    pub(super) fn push(&mut self, segment: Segment, service: Service) -> bool {
        let was_empty = self.segments.is_empty();
        let packets = segment.packets();
        self.backlog_packets += u64::from(packets);
        self.backlog_bytes += u64::from(segment.payload) + u64::from(packets) * u64::from(HEADER_BYTES);
        self.segments.push_back(segment);
        if was_empty {
            self.load_head(service);
        }
        was_empty
    }

    /// Wire bytes of the packet that is next.
    #[inline]
    pub(super) fn packet_bytes(&self) -> u32 {
        if self.sent + 1 < self.head.packets { self.head.full } else { self.head.last }
    }

    /// Wire bytes of the head's packets that have not left.
    #[inline]
    pub(super) fn left_bytes(&self) -> u64 {
        self.head.bytes(self.sent, self.head.packets)
    }

    /// Wire bytes of all of the head's packets.
    #[inline]
    pub(super) fn head_bytes(&self) -> u64 {
        self.head.bytes(0, self.head.packets)
    }

    /// Wire bytes that the ring sends at once: what its deficit must cover.
    #[inline]
    pub(super) fn need(&self, interleave: bool) -> u64 {
        if interleave { u64::from(self.packet_bytes()) } else { self.head_bytes() }
    }

    /// How many turns, all alike, the head has before the one in which it may end.
    #[inline]
    pub(super) fn equal_turns(&self) -> u32 {
        let packets = (self.head.packets - self.sent).saturating_sub(self.reserve);
        if self.burst <= 1 { packets * self.burst } else { packets / self.burst }
    }

    /// Wire bytes of such a turn.
    #[inline]
    pub(super) fn turn_bytes(&self) -> u64 {
        u64::from(self.burst) * u64::from(self.head.full)
    }

    /// Tells that the head begins.
    #[inline]
    pub(super) fn announce<S: Departures>(&self, queue: u32, pace: &Pace, sink: &mut S) {
        if let Some(segment) = self.segments.front() {
            sink.started(queue, segment, pace.wire.time_of(pace.begin));
        }
    }

    /// Sends the next packets of the head, and tells so; as many are left.
    #[inline]
    pub(super) fn send<S: Departures>(&mut self, queue: u32, packets: u32, pace: Pace, sink: &mut S) {
        let Some(segment) = self.segments.front() else { return };
        let first = self.sent;
        let end = first + packets;
        let ends = end == self.head.packets;
        let payload = if ends { segment.payload - first * segment.mss } else { packets * segment.mss };
        let frame_bytes = u64::from(payload) + u64::from(packets) * u64::from(HEADER_BYTES);
        self.sent = end;
        self.backlog_packets -= u64::from(packets);
        self.backlog_bytes -= frame_bytes;
        sink.packets(&Train {
            queue,
            segment,
            first,
            packets,
            frame_bytes,
            pace,
            packet_bytes: self.head.full,
            last_bytes: if ends { self.head.last } else { self.head.full },
        });
    }

    /// Removes the head, whose packets have all left.
    #[inline]
    pub(super) fn pop(&mut self, service: Service) -> Option<Segment> {
        let segment = self.segments.pop_front();
        self.load_head(service);
        segment
    }

    #[inline]
    fn load_head(&mut self, service: Service) {
        self.sent = 0;
        self.head = self.segments.front().map(Shape::of).unwrap_or_default();
        self.plan_turns(service);
    }

    #[inline]
    fn plan_turns(&mut self, service: Service) {
        match service {
            // Any packet is a turn; in the last one the head ends.
            Service::RoundRobin => (self.burst, self.reserve) = (1, 1),
            // A turn sends the same packets as the one before if it leaves the same deficit, which is
            // smaller than a packet: if the credit is a multiple of the packet. The next packet must be
            // full-sized, as the deficit may cover a shorter one.
            Service::Deficit { .. } => {
                let full = u64::from(self.head.full);
                let multiple = self.head.packets > 1 && self.credit.is_multiple_of(full);
                self.burst = if multiple { u32::try_from(self.credit / full).unwrap_or(0) } else { 0 };
                self.reserve = if self.head.last < self.head.full { 2 } else { 1 };
            }
        }
    }
}
