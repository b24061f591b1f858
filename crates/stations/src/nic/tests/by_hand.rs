//! Schedules computed by hand, at 100 Gbit/s:
//!
//! | packet | payload, bytes | on the wire, bytes | time, ps |
//! |---|---|---|---|
//! | full | 1448 | 1538 | 123 040 |
//! | short | 100 | 190 | 15 200 |
//! | pure ACK | 0 | 90 | 7200 |

use super::*;

const FULL: u64 = 123_040;

/// Returns (flow, index, end in ps) of all packets in order of time.
fn order(log: Log) -> Vec<(u32, u32, u64)> {
    log.sorted().packets.iter().map(|packet| (packet.flow, packet.index, packet.end.0)).collect()
}

#[test]
fn round_robin_interleaves_packets() {
    let mut nic = Nic::new(config(true, Service::RoundRobin));
    let mut log = Log::default();
    nic.enqueue(Time(1_000), 2, segment(1, 3 * 1448, 1448), &mut log);
    nic.enqueue(Time(1_000), 0, segment(2, 1448 + 100, 1448), &mut log);
    nic.enqueue(Time(1_000), 3, segment(3, 0, 1448), &mut log);
    assert_eq!(nic.next_departure(), Time(1_000 + FULL));
    assert_eq!((0..4).map(|queue| nic.backlog_packets(queue)).sum::<u64>(), 6);
    assert_eq!(nic.backlog_bytes(0), 1514 + 166);

    nic.advance(Time::NEVER, &mut log);
    assert!(nic.is_idle());
    assert_eq!(nic.next_departure(), Time::NEVER);
    let first = 1_000 + FULL;
    let second = first + FULL;
    let third = second + 7_200;
    let fourth = third + FULL;
    let fifth = fourth + 15_200;
    let sixth = fifth + FULL;
    let log = log.sorted();
    assert_eq!(log.finished, [(Time(third), 3, 3), (Time(fifth), 0, 2), (Time(sixth), 2, 1)]);
    let expected =
        [(1, 0, first), (2, 0, second), (3, 0, third), (1, 1, fourth), (2, 1, fifth), (1, 2, sixth)];
    assert_eq!(order(log), expected);
}

#[test]
fn round_robin_of_segments_sends_them_back_to_back() {
    let mut nic = Nic::new(config(false, Service::RoundRobin));
    let mut log = Log::default();
    nic.enqueue(Time(0), 0, segment(1, 2 * 1448, 1448), &mut log);
    nic.enqueue(Time(0), 0, segment(2, 2 * 1448, 1448), &mut log);
    nic.enqueue(Time(0), 1, segment(3, 2 * 1448, 1448), &mut log);
    nic.advance(Time::NEVER, &mut log);
    let flows: Vec<u32> = order(log).iter().map(|packet| packet.0).collect();
    assert_eq!(flows, [1, 1, 3, 3, 2, 2]);
}

#[test]
fn a_packet_on_the_wire_is_not_preempted_and_not_reported() {
    let mut nic = Nic::new(config(true, Service::RoundRobin));
    let mut log = Log::default();
    nic.enqueue(Time(0), 0, segment(1, 2 * 1448, 1448), &mut log);
    nic.advance(Time(FULL - 1), &mut log);
    assert_eq!(log.packets, []);
    nic.enqueue(Time(FULL - 1), 1, segment(2, 0, 1448), &mut log);
    nic.advance(Time(FULL), &mut log);
    assert_eq!(log.packets.len(), 1);
    assert_eq!(nic.backlog_packets(0), 1);
    nic.advance(Time::NEVER, &mut log);
    assert_eq!(order(log), [(1, 0, FULL), (2, 0, FULL + 7_200), (1, 1, 2 * FULL + 7_200)]);
}

#[test]
fn what_arrives_as_a_packet_ends_is_too_late_for_the_decision() {
    let mut nic = Nic::new(config(true, Service::RoundRobin));
    let mut log = Log::default();
    nic.enqueue(Time(0), 0, segment(1, 3 * 1448, 1448), &mut log);
    nic.enqueue(Time(FULL), 1, segment(2, 0, 1448), &mut log);
    nic.advance(Time::NEVER, &mut log);
    let flows: Vec<u32> = order(log).iter().map(|packet| packet.0).collect();
    assert_eq!(flows, [1, 1, 2, 1]);
}

#[test]
fn the_wire_starts_at_once_after_it_was_idle() {
    let mut nic = Nic::new(config(true, DRR));
    let mut log = Log::default();
    nic.enqueue(Time(0), 0, segment(1, 0, 1448), &mut log);
    nic.enqueue(Time(1_000_000), 0, segment(2, 0, 1448), &mut log);
    nic.advance(Time(1_007_199), &mut log);
    assert_eq!(log.packets.len(), 1);
    nic.advance(Time(1_007_200), &mut log);
    assert_eq!(order(log), [(1, 0, 7_200), (2, 0, 1_007_200)]);
}

#[test]
fn deficit_round_robin_sends_weight_packets_per_turn() {
    let mut nic = Nic::new(config(true, DRR));
    let mut log = Log::default();
    nic.set_weight(Time(0), 1, 3, &mut log);
    nic.enqueue(Time(0), 0, segment(1, 3 * 1448, 1448), &mut log);
    nic.enqueue(Time(0), 1, segment(2, 6 * 1448, 1448), &mut log);
    nic.advance(Time::NEVER, &mut log);
    let flows: Vec<u32> = order(log).iter().map(|packet| packet.0).collect();
    assert_eq!(flows, [1, 2, 2, 2, 1, 2, 2, 2, 1]);
}

#[test]
fn deficit_is_carried_while_a_ring_has_something() {
    let service = Service::Deficit { quantum_bytes: 768, largest_weight: 64 };
    let mut nic = Nic::new(config(true, service));
    let mut log = Log::default();
    nic.set_weight(Time(0), 1, 2, &mut log);
    nic.enqueue(Time(0), 0, segment(1, 4 * 1448, 1448), &mut log);
    nic.enqueue(Time(0), 1, segment(2, 4 * 1448, 1448), &mut log);
    nic.advance(Time::NEVER, &mut log);
    let flows: Vec<u32> = order(log).iter().map(|packet| packet.0).collect();
    // A packet costs 1538 bytes. While the wire is idle, ring 0 has turns with deficits of 768 and 1536. It
    // sends at 2304 and keeps 766. Later turns add 1536 to ring 1 and 768 to ring 0, beginning with ring 1:
    // 1536, 1534; 3072 sends, 2302 sends; 3070 sends, 1532; 3068 sends, 2300 sends; 3066 sends; ring 0.
    assert_eq!(flows, [1, 2, 1, 2, 2, 1, 2, 1]);
}

#[test]
fn deficit_round_robin_of_segments_charges_whole_segments() {
    // A segment of 4 packets needs 4 turns at weight 1, or one turn at weight 4.
    let mut nic = Nic::new(config(false, DRR));
    let mut log = Log::default();
    nic.set_weight(Time(0), 1, 4, &mut log);
    for flow in 0..2 {
        nic.enqueue(Time(0), 0, segment(flow, 4 * 1448, 1448), &mut log);
    }
    for flow in 10..15 {
        nic.enqueue(Time(0), 1, segment(flow, 4 * 1448, 1448), &mut log);
    }
    nic.advance(Time::NEVER, &mut log);
    let finished: Vec<u32> = log.sorted().finished.iter().map(|event| event.2).collect();
    // Ring 0 has its first turns while the wire is idle. Its next segment then needs four more turns,
    // and ring 1 sends before each of them.
    assert_eq!(finished, [0, 10, 11, 12, 13, 1, 14]);
}

#[test]
fn weights_are_cut_and_round_robin_has_none() {
    let mut log = Log::default();
    let mut nic = Nic::new(config(true, DRR));
    nic.set_weight(Time(0), 0, 65, &mut log);
    nic.set_weight(Time(0), 1, 0, &mut log);
    assert_eq!((nic.weight(0), nic.weight(1), nic.weight(2)), (64, 1, 1));
    let mut nic = Nic::new(config(true, Service::RoundRobin));
    nic.set_weight(Time(0), 0, 5, &mut log);
    assert_eq!(nic.weight(0), 1);
}

#[test]
fn next_finish_is_known_in_advance() {
    let mut nic = Nic::new(config(true, Service::RoundRobin));
    let mut log = Log::default();
    assert_eq!(nic.next_finish(0), Time::NEVER);
    nic.enqueue(Time(0), 0, segment(1, 4 * 1448, 1448), &mut log);
    nic.enqueue(Time(0), 1, segment(2, 2 * 1448, 1448), &mut log);
    // Packets of flows 1 and 2 leave in the order 1 2 1 2 1 1.
    assert_eq!(nic.next_finish(0), Time(6 * FULL));
    assert_eq!(nic.next_finish(1), Time(4 * FULL));
    let next_packet = |queue| nic.earliest_packet(|ring| ring == queue, |_| true);
    assert_eq!([0, 1, 2].map(next_packet), [Time(FULL), Time(2 * FULL), Time::NEVER]);
    assert_eq!(nic.earliest_packet(|_| true, |segment| segment.flow == 2), Time(2 * FULL));
}

#[derive(Default)]
struct Calls(usize);

impl Departures for Calls {
    fn packets(&mut self, _: &Train<'_>) {
        self.0 += 1;
    }

    fn finished(&mut self, _: u32, _: &Segment, _: Time) {}
}

#[test]
fn interleaved_packets_are_computed_in_closed_form() {
    for (service, trains) in [(Service::RoundRobin, 5), (DRR, 10)] {
        let mut nic = Nic::new(config(true, service));
        let mut calls = Calls::default();
        for queue in 0..4 {
            nic.set_weight(Time(0), queue, 1 + queue, &mut calls);
            nic.enqueue(Time(0), queue, segment(queue, 44 * 1448, 1448), &mut calls);
        }
        nic.advance(Time::NEVER, &mut calls);
        // The 176 packets form one train per ring between two changes of the set of rings with packets, and
        // one train for the last packets of each segment.
        assert!(calls.0 <= 4 * trains, "{service:?}: {} trains", calls.0);
    }
}
