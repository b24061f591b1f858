//! A simulation of the test bed: its soft NIC, the veth pair below the soft NIC, and the placement of
//! its programs.
//!
//! The classes are the test bed's classes ([`evenkeel_model::soft_nic`]) in a simulated `htb`
//! ([`crate::qdisc`]). Differences from the NIC of [`crate::nic`]:
//!
//! | | soft NIC |
//! |---|---|
//! | hardware queue | an HTB class with a FIFO; the queue choice selects it in `skb->priority` |
//! | service | deficit round robin by whole GSO segments, so packets of queues do not interleave |
//! | rate | the tokens of the line's class, and a timer: a veth has no wire, no ring and no byte queue limit |
//! | arrival | the segment as a whole, shortly after its class has released it, without interrupt moderation |
//! | completion | on arrival, at the peer's IP input, which frees the sender's memory (`skb_orphan` in `ip_rcv_core`) |
//!
//! Timers are exact, and no other programs use the processors.

use evenkeel_model::soft_nic::{self, LEAF_LIMIT_PACKETS};
use evenkeel_model::units::BitRate;

use super::{Event, Simulation};
use crate::qdisc::{Classifier, Dequeued, HtbClass, HtbConfig, HtbContent, Kind};
use crate::segment::{HEADER_BYTES, PROBE, Segment};
use crate::settings::{DEVICE_QUEUE, Settings};

/// Returns the qdisc of a transmit queue of the device: the soft NIC, or a FIFO with a limit of 0 if the
/// veth does not have this queue.
pub(crate) fn qdisc_of(settings: &Settings, queue: u32) -> Kind {
    if queue != DEVICE_QUEUE {
        return Kind::Pfifo { limit: 0 };
    }
    let rate = BitRate::from_bits_per_second(settings.rate);
    let class = |class: soft_nic::Class, content| HtbClass {
        rate: class.rate.bits_per_second(),
        ceiling: class.ceiling.bits_per_second(),
        burst: class.burst_bytes,
        ceiling_burst: class.burst_bytes,
        priority: 0,
        quantum: Some(class.quantum_bytes),
        content,
    };
    let queues = (0..settings.queues)
        .map(|_| {
            let leaf = HtbContent::Leaf(Kind::Pfifo { limit: LEAF_LIMIT_PACKETS });
            class(soft_nic::queue(rate, settings.queues), leaf)
        })
        .collect();
    Kind::Htb(HtbConfig::new(Classifier::Band, vec![class(soft_nic::line(rate), HtbContent::Inner(queues))]))
}

impl Simulation {
    pub(crate) fn run_soft_nic(&mut self) {
        loop {
            match self.queues[DEVICE_QUEUE as usize].qdisc.dequeue(self.engine.now) {
                Dequeued::Segment(segment) => self.hand_over(segment),
                Dequeued::Wait(until) => {
                    self.engine.plan(Event::Watchdog(DEVICE_QUEUE), until);
                    return;
                }
                Dequeued::Empty => return,
            }
        }
    }

    /// Delivers a whole segment to the peer. The receiver's clock lags by the latency, so the segment
    /// arrives at the present time. The sender's memory is freed one latency later.
    fn hand_over(&mut self, segment: Segment) {
        let now = self.engine.now;
        let queue = u32::from(segment.band);
        if segment.flow == PROBE {
            if let Some(probe) = &mut self.probe {
                probe.at_sink = true;
                let receive_queue = probe.sink_queue;
                self.sink.poke(receive_queue);
                self.expect_arrival_at(receive_queue, now);
            }
        } else {
            let bytes = u64::from(segment.frame_bytes());
            let each = |packet| (now, u64::from(segment.packet_payload(packet) + HEADER_BYTES));
            self.observation.count(segment.flow as usize, segment.packets(), bytes, (now, now), each);
            let payload = u64::from(segment.payload);
            self.sink.arrived(segment.flow, segment.sequence, payload, segment.packets(), now);
            self.expect_arrival_at(self.sink.queue_of(segment.flow), now);
        }
        let class = &mut self.queues[queue as usize];
        class.bytes += u64::from(segment.frame_bytes());
        class.sent.push(segment);
        self.engine.plan_no_later(Event::Interrupt(queue), now + self.parameters.line_latency);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::parameters::Parameters;
    use crate::qdisc::Qdisc;
    use crate::settings::NicModel;
    use crate::time::{SECOND, Time};
    use evenkeel_model::scenario::ByteQueueLimit;
    use evenkeel_model::scenario::bundled::{bundled, variant_tables};
    use evenkeel_model::scenario::parse;

    /// Returns the settings of a variant with twelve flows, at 2 Gbit/s, on a test bed with two processors.
    fn settings(variant: &str) -> Settings {
        let (_, text) = bundled().iter().find(|(name, _)| *name == "titan-12-flows").unwrap();
        let scenario = parse(text, "titan-12-flows", variant_tables()).unwrap();
        let variant = scenario.select(&[variant.to_owned()]).unwrap()[0];
        let rate = BitRate::from_bits_per_second(2_000_000_000);
        Settings::new(&scenario, variant, rate, &Parameters::default()).on_test_bed(2)
    }

    #[test]
    fn the_test_bed_takes_away_what_it_lacks() {
        let found = settings("dqa");
        assert_eq!((found.nic, found.processors), (NicModel::Soft { sending_cores: 8 }, 2));
        assert_eq!((found.byte_queue_limit, found.interrupt_interval), (ByteQueueLimit::Off, 0));
        assert!(!found.fair_queueing && !found.interleaving && !found.transmit_batching);
        assert_eq!(found.policy, evenkeel_transmit::Policy::Dqa);
        assert_eq!(found.small_queue_limit, Some(256 << 10));
    }

    #[test]
    fn flows_run_where_the_test_bed_runs_them() {
        // The programs have 2, 2, 2 and 2 flows on the first processor, and 1, 1, 1 and 1 on the
        // second.
        assert_eq!(settings("dqa").placement(), [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1]);
        let three = Settings { flows: 3, ..settings("dqa") };
        assert_eq!(three.placement(), [0, 0, 1]);
    }

    #[test]
    fn xps_has_two_pools() {
        let pools = |queues: u32| {
            let settings = Settings { queues, ..settings("cmax") };
            let hardware = Settings { xps_pool: Some(1), nic: NicModel::Hardware, processors: 8, ..settings };
            let bed = hardware.on_test_bed(4);
            (0..4)
                .map(|processor| bed.pool(0, processor))
                .map(|pool| (pool.first, pool.count))
                .collect::<Vec<_>>()
        };
        assert_eq!(pools(8), [(0, 4), (4, 4), (0, 4), (4, 4)]);
        assert_eq!(pools(3), [(0, 1), (1, 2), (0, 1), (1, 2)]);
        assert_eq!(pools(1), [(0, 1); 4]);
    }

    /// Checks that three classes with different segment sizes share the rate by bytes, in whole
    /// segments. Also checks that departures match the line rate.
    #[test]
    fn classes_take_turns_by_whole_segments() {
        let settings = settings("dqa");
        let mut qdisc = Qdisc::new(&qdisc_of(&settings, DEVICE_QUEUE), 0).unwrap();
        let payload = [45 * 1448, 15 * 1448, 45 * 1448];
        let segment = |queue: u32| {
            let segment =
                Segment { flow: queue, payload: payload[queue as usize], mss: 1448, ..Segment::default() };
            settings.nic.qdisc_for(queue, segment).1
        };
        let mut now = Time::ZERO;
        let (mut bytes, mut last) = ([0_u64; 3], 0);
        for queue in 0..3 {
            (0..8).for_each(|_| assert_eq!(qdisc.enqueue(now, segment(queue)), None));
        }
        let mut sent_at_begin = 0;
        while now < Time(SECOND / 2) {
            match qdisc.dequeue(now) {
                Dequeued::Segment(sent) => {
                    last = sent.frame_bytes();
                    bytes[usize::from(sent.band)] += u64::from(last);
                    sent_at_begin += if now == Time::ZERO { 1 } else { 0 };
                    assert_eq!(qdisc.enqueue(now, segment(u32::from(sent.band))), None);
                }
                Dequeued::Wait(until) => now = until,
                Dequeued::Empty => break,
            }
        }
        // A class with tokens does not borrow. At first, each class uses its full bucket of 137,144
        // bytes, in which 3 frames of 68,130 bytes or 7 of 22,710 bytes can start. After that, all
        // classes borrow from the line.
        assert_eq!(sent_at_begin, 3 + 7 + 3);
        let total: u64 = bytes.iter().sum();
        // Half a second at 2 Gbit/s, plus the bucket of the line's class. The tolerance is one segment.
        let expected = 125_000_000 + 137_144;
        assert!(total.abs_diff(expected) <= 68_130, "{total}, the last {last}");
        for found in bytes {
            // The tolerance covers the queues' own rates of 250 kbit/s each, and their buckets of two
            // segments.
            assert!(found.abs_diff(total / 3) < 3 * 68_572, "{bytes:?}");
        }
    }
}
