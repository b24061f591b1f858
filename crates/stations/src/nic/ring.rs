//! One transmit ring: its segments, and the progress of the first segment.

use std::collections::VecDeque;

use super::{
    Service,
    steady::Turns,
    train::{Departures, Pace, Train},
};
use crate::{
    segment::{HEADER_BYTES, Segment, wire_bytes},
    time::Time,
};

/// The packets of a segment on the wire. All packets except the last have the same size.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    /// Number of packets; at least 1, except in the default value.
    pub(super) packets: u32,
    /// Wire bytes of each packet except the last. Equal to `last` if there is only one packet.
    pub(super) full: u32,
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

    #[inline]
    fn is_uniform(&self, bytes: u32) -> bool {
        self.full == bytes && self.last == bytes
    }

    /// Returns the wire bytes of the packets `first..end`. `end` must not be beyond the segment.
    #[inline]
    pub(super) fn bytes(&self, first: u32, end: u32) -> u64 {
        let all = u64::from(end - first) * u64::from(self.full);
        if first < end && end == self.packets { all - u64::from(self.full - self.last) } else { all }
    }

    /// Returns the number of packets from `first` on that fit into this many wire bytes.
    #[inline]
    pub(super) fn fitting(&self, first: u32, bytes: u64) -> u32 {
        if bytes >= self.bytes(first, self.packets) {
            return self.packets - first;
        }
        // The last packet does not fit together with all packets before it. Avoid a division in the
        // frequent cases of one packet or no packet.
        let full = u64::from(self.full);
        if bytes < 2 * full {
            return u32::from(bytes >= full && first + 1 < self.packets);
        }
        (self.packets - first - 1).min(u32::try_from(bytes / full).unwrap_or(u32::MAX))
    }
}

#[derive(Clone, Copy, Debug)]
struct Queued {
    segment: Segment,
    shape: Shape,
}

/// A FIFO of segments. The first segment is the head. `sent` is the number of packets of the head that
/// have left.
#[derive(Clone, Debug)]
// The finish prediction reads the first fields: one cache line per ring.
#[repr(C, align(64))]
pub(super) struct Ring {
    /// Wire bytes that the ring may still send (deficit round robin).
    pub(super) deficit: u64,
    /// Wire bytes that a turn adds to the deficit.
    pub(super) credit: u64,
    pub(super) backlog_packets: u64,
    /// Wire bytes of each packet, if all queued packets have the same size.
    uniform: u32,
    /// Number of segments with a packet of a size other than `uniform`.
    odd: u32,
    pub(super) head: Shape,
    pub(super) sent: u32,
    /// Full-sized packets per turn. 0 if turns differ and cannot be computed together.
    pub(super) burst: u32,
    pub(super) weight: u32,
    /// Turns in steady rounds. Outside steady rounds, this field has no packets.
    pub(super) turns: Turns,
    segments: VecDeque<Queued>,
}

impl Ring {
    pub(super) fn new(service: Service) -> Self {
        let mut ring = Self {
            segments: VecDeque::new(),
            head: Shape::default(),
            sent: 0,
            burst: 0,
            deficit: 0,
            credit: 0,
            weight: 1,
            uniform: 0,
            odd: 0,
            backlog_packets: 0,
            turns: Turns::default(),
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

    pub(super) fn segments(&self) -> impl ExactSizeIterator<Item = &Segment> {
        self.segments.iter().map(|queued| &queued.segment)
    }

    /// Returns the shapes of the segments, and the number of packets of each segment that have left.
    pub(super) fn shapes(&self) -> impl Iterator<Item = (Shape, u32)> {
        let sent = std::iter::once(self.sent).chain(std::iter::repeat(0));
        self.segments.iter().map(|queued| queued.shape).zip(sent)
    }

    /// Appends a segment. Returns whether the ring was empty.
    pub(super) fn push(&mut self, segment: Segment, service: Service) -> bool {
        let was_empty = self.segments.is_empty();
        let shape = Shape::of(&segment);
        let packets = u64::from(shape.packets);
        if was_empty {
            (self.uniform, self.odd) = (shape.full, 0);
        }
        self.odd += u32::from(!shape.is_uniform(self.uniform));
        self.backlog_packets += packets;
        self.segments.push_back(Queued { segment, shape });
        if was_empty {
            self.load_head(service);
        }
        was_empty
    }

    #[inline]
    pub(super) fn head_segment(&self) -> Option<&Segment> {
        self.segments.front().map(|queued| &queued.segment)
    }

    pub(super) fn backlog_bytes(&self) -> u64 {
        let frames: u64 = self.segments().map(|segment| u64::from(segment.frame_bytes())).sum();
        let payload = |segment: &Segment| u64::from(segment.payload.min(self.sent * segment.mss));
        let headers = u64::from(self.sent * HEADER_BYTES);
        frames - self.head_segment().map_or(0, |head| payload(head) + headers)
    }

    /// Returns the wire bytes of each packet in the ring, if all packets have the same size.
    #[inline]
    pub(super) fn uniform_bytes(&self) -> Option<u64> {
        (self.odd == 0).then_some(u64::from(self.uniform))
    }

    #[inline]
    pub(super) fn packet_bytes(&self) -> u32 {
        if self.sent + 1 < self.head.packets { self.head.full } else { self.head.last }
    }

    /// Returns the wire bytes of the head's packets that have not left.
    #[inline]
    pub(super) fn left_bytes(&self) -> u64 {
        self.head.bytes(self.sent, self.head.packets)
    }

    #[inline]
    pub(super) fn head_bytes(&self) -> u64 {
        self.head.bytes(0, self.head.packets)
    }

    /// Returns the wire bytes of the ring's next unit of transmission, which its deficit must cover.
    #[inline]
    pub(super) fn need(&self, interleave: bool) -> u64 {
        if interleave { u64::from(self.packet_bytes()) } else { self.head_bytes() }
    }

    /// Returns the number of equal turns, at most `enough`, before the ring may become empty or reach a
    /// packet of another size.
    #[inline]
    pub(super) fn equal_turns(&self, enough: u32) -> u32 {
        if self.burst == 0 {
            return 0;
        }
        // One packet must remain. A deficit round robin turn equals the previous turn only if the next
        // packet is full-sized, because the remaining deficit may cover a shorter packet.
        let packets = self.alike(enough.saturating_mul(self.burst).saturating_add(1)).saturating_sub(1);
        let turns = if self.burst == 1 { packets } else { packets / self.burst };
        turns.min(enough)
    }

    /// Returns the number of next packets with the same size, across segments. May stop counting at
    /// `enough`.
    #[inline]
    fn alike(&self, enough: u32) -> u32 {
        if self.odd == 0 {
            return u32::try_from(self.backlog_packets).unwrap_or(u32::MAX);
        }
        let head = (self.head.packets - u32::from(self.head.last < self.head.full)).saturating_sub(self.sent);
        if head >= enough || self.head.last < self.head.full { head } else { self.alike_behind(head, enough) }
    }

    fn alike_behind(&self, head: u32, enough: u32) -> u32 {
        let mut packets = head;
        for Queued { shape, .. } in self.segments.iter().skip(1) {
            if packets >= enough || shape.full != self.head.full {
                break;
            }
            packets += shape.packets - u32::from(shape.last < shape.full);
            if shape.last < shape.full {
                break;
            }
        }
        packets
    }

    #[inline]
    pub(super) fn turn_bytes(&self) -> u64 {
        u64::from(self.burst) * u64::from(self.head.full)
    }

    /// Sends and reports the next `packets` packets, across segments. The ring must hold more packets than
    /// this number.
    #[inline]
    pub(super) fn send_on<S: Departures>(
        &mut self,
        queue: u32,
        packets: u32,
        pace: Pace,
        service: Service,
        sink: &mut S,
    ) {
        let mut done = 0;
        while done < packets {
            let pace = Pace { place: done, ..pace };
            let some = (packets - done).min(self.head.packets - self.sent);
            let end = self.send(queue, some, pace, sink);
            done += some;
            if let Some(end) = end {
                self.finish(queue, end, service, sink);
            }
        }
    }

    /// Sends and reports the next `packets` of the head, which has at least this number. Returns the
    /// departure of the head's last packet, if the packet is among them.
    #[inline]
    pub(super) fn send<S: Departures>(
        &mut self,
        queue: u32,
        packets: u32,
        pace: Pace,
        sink: &mut S,
    ) -> Option<Time> {
        let Queued { segment, .. } = self.segments.front()?;
        let first = self.sent;
        let end = first + packets;
        let ends = end == self.head.packets;
        let payload = if ends { segment.payload - first * segment.mss } else { packets * segment.mss };
        let frame_bytes = u64::from(payload) + u64::from(packets) * u64::from(HEADER_BYTES);
        self.sent = end;
        self.backlog_packets -= u64::from(packets);
        let train = Train {
            queue,
            segment,
            first,
            packets,
            frame_bytes,
            pace,
            packet_bytes: self.head.full,
            last_bytes: if ends { self.head.last } else { self.head.full },
        };
        sink.packets(&train);
        ends.then(|| train.end())
    }

    /// Removes and reports the head. Its last packet has left at `end`.
    #[inline]
    pub(super) fn finish<S: Departures>(&mut self, queue: u32, end: Time, service: Service, sink: &mut S) {
        if let Some(Queued { segment, shape }) = self.segments.pop_front() {
            self.odd -= u32::from(!shape.is_uniform(self.uniform));
            sink.finished(queue, &segment, end);
        }
        self.load_head(service);
    }

    #[inline]
    fn load_head(&mut self, service: Service) {
        self.sent = 0;
        self.head = self.segments.front().map(|queued| queued.shape).unwrap_or_default();
        self.plan_turns(service);
    }

    #[inline]
    fn plan_turns(&mut self, service: Service) {
        match service {
            // Each packet is a turn.
            Service::RoundRobin => self.burst = 1,
            // A turn sends the same packets as the previous turn if both leave the same deficit, which
            // is smaller than a packet. This condition holds if the credit is a multiple of the packet.
            Service::Deficit { .. } => {
                let full = u64::from(self.head.full.max(1));
                let multiple = self.credit.is_multiple_of(full);
                self.burst = if multiple { u32::try_from(self.credit / full).unwrap_or(0) } else { 0 };
            }
        }
    }
}
