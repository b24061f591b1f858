//! A receive queue of the NIC: descriptors, and the poll that merges packets (GRO).

use std::collections::VecDeque;

use crate::time::{Span, Time};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    pub flow: u32,
    /// Stream offset of the first byte.
    pub sequence: u64,
    /// Payload of all packets in bytes.
    pub payload: u32,
    /// Payload in bytes of each packet except the last.
    pub mss: u32,
    pub first_at: Time,
    /// Time between two packets.
    pub gap: Span,
    /// Whether the switch has marked the packets (ECN, Congestion Experienced).
    pub is_marked: bool,
}

impl Train {
    #[must_use]
    pub fn packets(&self) -> u32 {
        self.payload.div_ceil(self.mss).max(1)
    }

    fn arrived(&self, now: Time) -> u32 {
        if now < self.first_at {
            return 0;
        }
        let later = now.since(self.first_at).checked_div(self.gap).unwrap_or(u64::MAX);
        u32::try_from(later).unwrap_or(u32::MAX).saturating_add(1).min(self.packets())
    }

    fn split(&mut self, packets: u32) -> Self {
        let payload = (packets.saturating_mul(self.mss)).min(self.payload);
        let first = Self { payload, ..*self };
        self.sequence += u64::from(payload);
        self.payload -= payload;
        self.first_at += self.gap * u64::from(packets);
        first
    }
}

/// A buffer that moves to TCP: one packet, or several packets that GRO has merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    pub flow: u32,
    pub sequence: u64,
    pub bytes: u32,
    pub packets: u32,
    /// Number of bytes that the NIC had written to the node's memory before this buffer.
    pub written_before: u64,
    pub is_marked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Napi {
    Armed,
    /// The poll is scheduled or runs.
    Polling,
}

#[derive(Clone, Debug)]
pub struct ReceiveQueue {
    /// Core that serves the queue. Cores of all hosts are numbered together.
    pub core: u32,
    pub napi: Napi,
    pub dropped: u64,
    descriptors: u32,
    /// Descriptors that hold a packet, including the packets of the present poll.
    used: u32,
    polled: u32,
    /// Trains that the NIC has not written yet, in order of arrival. Each has the number of payload
    /// bytes written before it.
    arriving: VecDeque<(Train, u64)>,
    ring: VecDeque<(Train, u64)>,
    /// Buffers that GRO holds to add further packets, until a poll empties the ring at the latest.
    held: Vec<Buffer>,
    pub buffers: Vec<Buffer>,
}

impl ReceiveQueue {
    #[must_use]
    pub fn new(core: u32, descriptors: u32) -> Self {
        Self {
            core,
            napi: Napi::Armed,
            dropped: 0,
            descriptors: descriptors.max(1),
            used: 0,
            polled: 0,
            arriving: VecDeque::new(),
            ring: VecDeque::new(),
            held: Vec::new(),
            buffers: Vec::new(),
        }
    }

    /// Adds packets that will arrive. Calls must be in order of arrival.
    pub fn expect(&mut self, train: Train, written_before: u64) {
        self.arriving.push_back((train, written_before));
    }

    /// Returns the arrival time of the next packet that is not in the ring, or `None` if no packet is
    /// in flight.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Time> {
        self.arriving.front().map(|(train, _)| train.first_at)
    }

    /// Moves the packets that have arrived into the ring. Drops packets without a free descriptor.
    ///
    /// Descriptors become free only in [`Self::end_poll`]. The caller first admits the packets that have
    /// arrived before, so the order is exact.
    pub fn admit(&mut self, now: Time) {
        while let Some((train, written)) = self.arriving.front_mut() {
            let arrived = train.arrived(now);
            if arrived == 0 {
                break;
            }
            let before = *written;
            let mut here = train.split(arrived);
            *written += u64::from(here.payload);
            if train.payload == 0 {
                self.arriving.pop_front();
            }
            let room = self.descriptors - self.used;
            if arrived > room {
                self.dropped += u64::from(arrived - room);
                if room == 0 {
                    continue;
                }
                here = here.split(room);
            }
            self.used += here.packets();
            self.ring.push_back((here, before));
        }
    }

    #[must_use]
    pub fn has_packets(&self) -> bool {
        !self.ring.is_empty()
    }

    /// Returns the number of packets in the ring and in the present poll.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Takes up to `budget` packets from the ring. Returns the number of packets.
    ///
    /// With `merge_bytes`, GRO merges consecutive packets of a flow into buffers of at most this size.
    /// GRO holds the last buffers until the ring is empty (`napi_complete_done`).
    pub fn poll(&mut self, budget: u32, merge_bytes: Option<u32>) -> u32 {
        let mut taken = 0;
        while taken < budget {
            let Some((train, before)) = self.ring.front_mut() else { break };
            let part = train.split(budget - taken);
            let written_before = *before;
            *before += u64::from(part.payload);
            if train.payload == 0 {
                self.ring.pop_front();
            }
            taken += part.packets();
            match merge_bytes {
                Some(most) => self.merge(part, written_before, most),
                None => self.pass(part, written_before),
            }
        }
        self.polled = taken;
        if self.ring.is_empty() {
            self.buffers.append(&mut self.held);
        }
        taken
    }

    fn pass(&mut self, mut part: Train, mut written_before: u64) {
        while part.payload > 0 {
            let packet = part.split(1);
            self.buffers.push(Buffer {
                flow: packet.flow,
                sequence: packet.sequence,
                bytes: packet.payload,
                packets: 1,
                written_before,
                is_marked: packet.is_marked,
            });
            written_before += u64::from(packet.payload);
        }
    }

    fn merge(&mut self, mut part: Train, mut written_before: u64, most: u32) {
        while part.payload > 0 {
            let held = self.held.iter().position(|held| held.flow == part.flow);
            if let Some(at) = held {
                let buffer = &mut self.held[at];
                // An empty buffer takes a packet of any size.
                let least = u32::from(buffer.packets == 0);
                let room = (most.saturating_sub(buffer.bytes) / part.mss).max(least);
                // GRO does not merge packets with different ECN fields (`inet_gro_receive`).
                let follows = buffer.sequence + u64::from(buffer.bytes) == part.sequence
                    && buffer.is_marked == part.is_marked;
                if !follows || room == 0 {
                    let full = self.held.remove(at);
                    self.buffers.push(full);
                    continue;
                }
                let more = part.split(room);
                buffer.bytes += more.payload;
                buffer.packets += more.packets();
                written_before += u64::from(more.payload);
                // A short packet ends the merge (`tcp_gro_receive`).
                if !more.payload.is_multiple_of(more.mss) {
                    let full = self.held.remove(at);
                    self.buffers.push(full);
                }
                continue;
            }
            // Before Linux 4.19, GRO holds at most 8 flows (`MAX_GRO_SKBS`).
            if self.held.len() >= 8 {
                let oldest = self.held.remove(0);
                self.buffers.push(oldest);
            }
            self.held.push(Buffer {
                flow: part.flow,
                sequence: part.sequence,
                bytes: 0,
                packets: 0,
                written_before,
                is_marked: part.is_marked,
            });
        }
    }

    pub fn end_poll(&mut self) {
        self.used -= self.polled;
        self.polled = 0;
    }

    /// Returns the numbers of packets between the NIC and TCP: first those on the way to the ring and in the
    /// ring, then those in buffers, which GRO holds or TCP has not taken yet.
    #[must_use]
    pub fn packets(&self) -> (u64, u64) {
        let trains = self.arriving.iter().chain(&self.ring).map(|(train, _)| u64::from(train.packets()));
        let buffers = self.held.iter().chain(&self.buffers).map(|buffer| u64::from(buffer.packets));
        (trains.sum(), buffers.sum())
    }

    /// Returns the payload in bytes between the NIC and TCP.
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        let trains = self.arriving.iter().chain(&self.ring).map(|(train, _)| u64::from(train.payload));
        let buffers = self.held.iter().chain(&self.buffers).map(|buffer| u64::from(buffer.bytes));
        trains.chain(buffers).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MSS: u32 = 1000;

    fn train(flow: u32, sequence: u64, packets: u32, at: u64) -> Train {
        Train {
            flow,
            sequence,
            payload: packets * MSS,
            mss: MSS,
            first_at: Time(at),
            gap: 10,
            is_marked: false,
        }
    }

    #[test]
    fn a_full_ring_drops_what_arrives_until_a_poll_ends() {
        let mut queue = ReceiveQueue::new(0, 4);
        queue.expect(train(0, 0, 6, 100), 0);
        queue.admit(Time(99));
        assert!(!queue.has_packets());
        queue.admit(Time(119));
        assert_eq!((queue.used(), queue.dropped), (2, 0));
        queue.admit(Time(150));
        assert_eq!((queue.used(), queue.dropped), (4, 2));
        assert_eq!(queue.poll(3, Some(65_536)), 3);
        queue.expect(train(0, 6000, 2, 160), 0);
        queue.admit(Time(160));
        assert_eq!(queue.dropped, 3, "the descriptors of a running poll are not free");
        queue.end_poll();
        queue.admit(Time(170));
        assert_eq!((queue.used(), queue.dropped), (2, 3));
    }

    #[test]
    fn consecutive_packets_merge_up_to_the_limit() {
        let mut queue = ReceiveQueue::new(0, 100);
        for (flow, sequence, packets) in [(0, 0, 5), (1, 0, 3), (0, 5000, 4), (0, 20_000, 1)] {
            queue.expect(train(flow, sequence, packets, 0), 0);
        }
        queue.admit(Time(1000));
        assert_eq!(queue.poll(64, Some(7000)), 13);
        let mut merged: Vec<(u32, u64, u32)> =
            queue.buffers.iter().map(|buffer| (buffer.flow, buffer.sequence, buffer.packets)).collect();
        merged.sort_unstable();
        assert_eq!(merged, [(0, 0, 7), (0, 7000, 2), (0, 20_000, 1), (1, 0, 3)]);
        let mut alone = ReceiveQueue::new(0, 100);
        alone.expect(train(0, 0, 5, 0), 0);
        alone.admit(Time(1000));
        alone.poll(64, None);
        assert_eq!(alone.buffers.len(), 5);
    }

    #[test]
    fn a_packet_above_the_limit_passes_alone() {
        let mut queue = ReceiveQueue::new(0, 100);
        queue.expect(train(0, 0, 3, 0), 0);
        queue.admit(Time(1000));
        assert_eq!(queue.poll(64, Some(MSS - 1)), 3);
        let packets: Vec<u32> = queue.buffers.iter().map(|buffer| buffer.packets).collect();
        assert_eq!(packets, [1, 1, 1]);
    }

    proptest! {
        /// Checks that every packet is delivered once or dropped, in the order of its flow.
        #[test]
        fn nothing_is_lost_without_a_count(
            descriptors in 1_u32..40,
            trains in prop::collection::vec((0_u32..3, 1_u32..20, 0_u64..200), 1..30),
            merge in prop::option::of(500_u32..9000),
            budget in 1_u32..70,
        ) {
            let mut queue = ReceiveQueue::new(0, descriptors);
            let (mut next, mut at, mut sent) = ([0_u64; 3], 0, 0);
            let mut delivered: Vec<Buffer> = Vec::new();
            for (flow, packets, pause) in trains {
                queue.expect(train(flow, next[flow as usize], packets, at), 0);
                next[flow as usize] += u64::from(packets * MSS);
                sent += packets;
                at += u64::from(packets) * 10 + pause;
                queue.admit(Time(at));
                queue.poll(budget, merge);
                delivered.append(&mut queue.buffers);
                queue.end_poll();
            }
            while queue.has_packets() || queue.next_arrival().is_some() {
                at += 1000;
                queue.admit(Time(at));
                queue.poll(budget, merge);
                delivered.append(&mut queue.buffers);
                queue.end_poll();
            }
            let packets: u32 = delivered.iter().map(|buffer| buffer.packets).sum();
            prop_assert_eq!(u64::from(packets) + queue.dropped, u64::from(sent));
            prop_assert_eq!((queue.used(), queue.waiting_bytes()), (0, 0));
            let mut last = [0; 3];
            for buffer in delivered {
                prop_assert_eq!(buffer.bytes, buffer.packets * MSS);
                prop_assert!(buffer.sequence >= last[buffer.flow as usize]);
                last[buffer.flow as usize] = buffer.sequence + u64::from(buffer.bytes);
            }
        }
    }
}
