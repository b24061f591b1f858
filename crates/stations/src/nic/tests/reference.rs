//! A reference transmit scheduler, as simple as possible: rings of packets, and one decision per
//! packet. It computes all times from the sum of bytes by 128-bit division. It shares no code with the
//! tested scheduler.

use std::collections::VecDeque;

use super::*;

#[derive(Clone, Copy)]
struct Queued {
    segment: Segment,
    index: u32,
}

impl Queued {
    fn wire(&self) -> u64 {
        wire_bytes(self.segment.packet_payload(self.index)).into()
    }

    fn is_last(&self) -> bool {
        self.index + 1 == self.segment.packets()
    }
}

pub(super) struct Reference {
    config: NicConfig,
    rings: Vec<VecDeque<Queued>>,
    weights: Vec<u64>,
    deficits: Vec<u64>,
    line: VecDeque<usize>,
    /// Beginning of the busy period in picoseconds, and the wire bytes sent in it before the packet on the
    /// wire.
    busy_since: u64,
    bytes: u64,
    pub(super) log: Log,
}

impl Reference {
    pub(super) fn new(config: NicConfig) -> Self {
        let queues = config.queues as usize;
        Self {
            config,
            rings: vec![VecDeque::new(); queues],
            weights: vec![1; queues],
            deficits: vec![0; queues],
            line: VecDeque::new(),
            busy_since: 0,
            bytes: 0,
            log: Log::default(),
        }
    }

    fn time(&self, bytes: u64) -> Time {
        let span = u128::from(bytes) * 8_000_000_000_000 / u128::from(self.config.rate_bps);
        Time(self.busy_since + span as u64)
    }

    pub(super) fn set_weight(&mut self, queue: u32, weight: u32) {
        if let Service::Deficit { largest_weight, .. } = self.config.service {
            self.weights[queue as usize] = weight.clamp(1, largest_weight).into();
        }
    }

    pub(super) fn enqueue(&mut self, now: Time, queue: u32, segment: Segment) {
        let queue = queue as usize;
        let was_empty = self.rings[queue].is_empty();
        self.rings[queue].extend((0..segment.packets()).map(|index| Queued { segment, index }));
        if was_empty {
            self.line.push_back(queue);
            if self.line.len() == 1 {
                (self.busy_since, self.bytes) = (now.0, 0);
                self.begin_turn();
            }
        }
    }

    pub(super) fn advance(&mut self, now: Time) {
        while let Some(&queue) = self.line.front() {
            let packet = self.rings[queue][0];
            let (begin, end) = (self.time(self.bytes), self.time(self.bytes + packet.wire()));
            if end > now {
                return;
            }
            self.rings[queue].pop_front();
            self.bytes += packet.wire();
            let (number, flow) = (queue as u32, packet.segment.flow);
            self.log.packets.push(Packet { end, begin, queue: number, flow, index: packet.index });
            self.log.frame_bytes +=
                u64::from(packet.segment.packet_payload(packet.index) + crate::segment::HEADER_BYTES);
            if packet.is_last() {
                self.log.finished.push((end, number, flow));
            }
            self.after(queue, packet);
        }
    }

    fn after(&mut self, queue: usize, packet: Queued) {
        let whole = self.config.interleave || packet.is_last();
        let more = match self.config.service {
            Service::RoundRobin => !whole,
            Service::Deficit { .. } if !whole => true,
            Service::Deficit { .. } => {
                self.deficits[queue] -= if self.config.interleave {
                    packet.wire()
                } else {
                    (0..packet.segment.packets())
                        .map(|i| u64::from(wire_bytes(packet.segment.packet_payload(i))))
                        .sum()
                };
                self.charge(queue) <= self.deficits[queue]
            }
        };
        if self.rings[queue].is_empty() {
            self.deficits[queue] = 0;
            self.line.pop_front();
            self.begin_turn();
        } else if !more {
            self.line.rotate_left(1);
            self.begin_turn();
        }
    }

    /// Returns the wire bytes of the ring's next packet; without interleaving, those of its next segment.
    fn charge(&self, queue: usize) -> u64 {
        let mut bytes = 0;
        for packet in &self.rings[queue] {
            bytes += packet.wire();
            if self.config.interleave || packet.is_last() {
                break;
            }
        }
        bytes
    }

    fn begin_turn(&mut self) {
        let Service::Deficit { quantum_bytes, .. } = self.config.service else { return };
        while let Some(&queue) = self.line.front() {
            self.deficits[queue] += self.weights[queue] * u64::from(quantum_bytes);
            if self.charge(queue) <= self.deficits[queue] {
                return;
            }
            self.line.rotate_left(1);
        }
    }
}
