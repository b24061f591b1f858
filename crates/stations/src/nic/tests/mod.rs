//! Tests of the transmit scheduler: by hand, and against a packet-by-packet reference.

mod by_hand;
mod reference;
mod scenarios;

use super::*;
use crate::{
    segment::{Segment, wire_bytes},
    time::Time,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Packet {
    end: Time,
    begin: Time,
    queue: u32,
    flow: u32,
    index: u32,
}

/// The departure of a segment: time, queue and flow.
type Event = (Time, u32, u32);

/// Departures of packets and of segments, in the order of the calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Log {
    packets: Vec<Packet>,
    finished: Vec<Event>,
    frame_bytes: u64,
}

impl Log {
    fn sorted(mut self) -> Self {
        self.packets.sort_unstable();
        self.finished.sort_unstable();
        self
    }
}

impl Departures for Log {
    fn packets(&mut self, train: &Train<'_>) {
        let Train { queue, segment, first, packets, frame_bytes, .. } = *train;
        let expected: u64 = (first..first + packets)
            .map(|index| u64::from(segment.packet_payload(index) + crate::segment::HEADER_BYTES))
            .sum();
        assert_eq!(frame_bytes, expected);
        self.frame_bytes += frame_bytes;
        self.packets.extend((0..packets).map(|index| Packet {
            end: train.end_of(index),
            begin: train.pace.wire.time_of(train.pace.position_of(index, train.packet_bytes)),
            queue,
            flow: segment.flow,
            index: first + index,
        }));
        assert_eq!(train.end(), train.end_of(packets - 1));
    }

    fn finished(&mut self, queue: u32, segment: &Segment, at: Time) {
        self.finished.push((at, queue, segment.flow));
    }
}

fn segment(flow: u32, payload: u32, mss: u32) -> Segment {
    Segment { flow, payload, mss, ..Segment::default() }
}

const DRR: Service = Service::Deficit { quantum_bytes: MTU_QUANTUM_BYTES, largest_weight: 64 };

/// Creates a configuration with 80 ps per byte.
fn config(interleave: bool, service: Service) -> NicConfig {
    NicConfig { rate_bps: 100_000_000_000, queues: 4, interleave, service, exact: false }
}
