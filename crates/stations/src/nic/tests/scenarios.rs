//! Random scenarios: the closed form, the computation packet by packet, and the reference agree to the
//! picosecond. The tests also check the properties of each schedule, such as the fairness of deficit round
//! robin.

use proptest::prelude::*;

use super::{reference::Reference, *};

#[derive(Clone, Debug)]
enum Action {
    Enqueue { queue: u32, payload: u32, mss: u32 },
    Advance,
    CatchUp,
    SetWeight { queue: u32, weight: u32 },
}

/// Actions, each after a pause in picoseconds.
type Script = Vec<(u64, Action)>;

fn payloads() -> impl Strategy<Value = (u32, u32)> {
    let mss = prop_oneof![6 => Just(1448), 1 => Just(536), 1 => Just(8948), 1 => 100u32..2000];
    mss.prop_flat_map(|mss| {
        let most = 65_536 / mss;
        let payload = prop_oneof![
            1 => Just(0),
            2 => 1..=mss,
            4 => (1..=most).prop_map(move |packets| packets * mss),
            3 => 1..65_536u32,
        ];
        (payload, Just(mss))
    })
}

fn action(queues: u32) -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => (0..queues, payloads())
            .prop_map(|(queue, (payload, mss))| Action::Enqueue { queue, payload, mss }),
        2 => Just(Action::Advance),
        2 => Just(Action::CatchUp),
        1 => (0..queues, 0..10u32).prop_map(|(queue, weight)| Action::SetWeight { queue, weight }),
    ]
}

/// Generates pauses in picoseconds: 0, or up to about 2, 24 or 240 full packets at 100 Gbit/s.
fn pause() -> impl Strategy<Value = u64> {
    prop_oneof![5 => Just(0), 2 => 0..200_000u64, 2 => 0..3_000_000u64, 2 => 0..30_000_000u64]
}

fn nic() -> impl Strategy<Value = NicConfig> {
    let rate = prop_oneof![
        6 => Just(100_000_000_000),
        2 => Just(10_000_000_000),
        1 => Just(3_000_000_000),
        1 => Just(300_000_000_000),
        2 => 1_000_000_000u64..1_000_000_000_000,
    ];
    let quantum = prop_oneof![4 => Just(1538), 2 => Just(768), 1 => Just(3076), 1 => 50..5000u32];
    let service = prop_oneof![
        1 => Just(Service::RoundRobin),
        2 => quantum.prop_map(|quantum_bytes| Service::Deficit { quantum_bytes, largest_weight: 8 }),
    ];
    (rate, prop_oneof![5 => 1..=5u32, 1 => 6..=40u32], any::<bool>(), service).prop_map(
        |(rate_bps, queues, interleave, service)| NicConfig {
            rate_bps,
            queues,
            interleave,
            service,
            exact: false,
        },
    )
}

fn scenario() -> impl Strategy<Value = (NicConfig, Script)> {
    nic().prop_flat_map(|config| {
        (Just(config), prop::collection::vec((pause(), action(config.queues)), 1..40))
    })
}

/// Runs a script. Calls `after` with the NIC and the time after each action.
fn play(config: NicConfig, script: &Script, mut after: impl FnMut(&Nic, Time)) -> (Nic, Log) {
    let (mut nic, mut log, mut now) = (Nic::new(config), Log::default(), Time::ZERO);
    for (flow, (pause, action)) in script.iter().enumerate() {
        now += *pause;
        match *action {
            Action::Enqueue { queue, payload, mss } => {
                nic.enqueue(now, queue, segment(flow as u32, payload, mss), &mut log);
            }
            Action::Advance => nic.advance(now, &mut log),
            Action::CatchUp => nic.catch_up(now, &mut log),
            Action::SetWeight { queue, weight } => nic.set_weight(now, queue, weight, &mut log),
        }
        after(&nic, now);
    }
    (nic, log)
}

fn drained(config: NicConfig, script: &Script) -> Log {
    let (mut nic, mut log) = play(config, script, |_, _| {});
    nic.advance(Time::NEVER, &mut log);
    assert!(nic.is_idle());
    assert_eq!((0..config.queues).map(|queue| nic.backlog_bytes(queue)).sum::<u64>(), 0);
    log
}

fn by_reference(config: NicConfig, script: &Script) -> Log {
    let (mut reference, mut now) = (Reference::new(config), Time::ZERO);
    for (flow, (pause, action)) in script.iter().enumerate() {
        now += *pause;
        reference.advance(now);
        match *action {
            Action::Enqueue { queue, payload, mss } => {
                reference.enqueue(now, queue, segment(flow as u32, payload, mss));
            }
            Action::Advance | Action::CatchUp => {}
            Action::SetWeight { queue, weight } => reference.set_weight(queue, weight),
        }
    }
    reference.advance(Time::NEVER);
    reference.log
}

/// Returns (flow, queue, segment, time) of all enqueued segments.
fn enqueued(script: &Script) -> Vec<(u32, u32, Segment, Time)> {
    let mut now = Time::ZERO;
    let mut list = Vec::new();
    for (flow, (pause, action)) in script.iter().enumerate() {
        now += *pause;
        if let Action::Enqueue { queue, payload, mss } = *action {
            list.push((flow as u32, queue, segment(flow as u32, payload, mss), now));
        }
    }
    list
}

/// Returns when the first segment and the first packet of each ring will leave; `NEVER` for an empty ring.
fn first_finishes(nic: &Nic) -> Vec<(Time, Time)> {
    let (mut nic, mut log) = (nic.clone(), Log::default());
    // Discard packets that have left but were not reported, so that the log begins with the next packets.
    nic.tell(|_, _| true, &mut Log::default());
    nic.advance(Time::NEVER, &mut log);
    let segment = |queue| log.finished.iter().filter(|event| event.1 == queue).map(|event| event.0).min();
    let packet =
        |queue| log.packets.iter().filter(|packet| packet.queue == queue).map(|packet| packet.end).min();
    (0..nic.config().queues)
        .map(|queue| (segment(queue).unwrap_or(Time::NEVER), packet(queue).unwrap_or(Time::NEVER)))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn closed_form_equals_packet_by_packet_equals_reference((config, script) in scenario()) {
        let closed = drained(config, &script);
        // Calls for one ring are in order of time.
        for queue in 0..config.queues {
            let ends: Vec<Time> =
                closed.packets.iter().filter(|packet| packet.queue == queue).map(|packet| packet.end).collect();
            prop_assert!(ends.is_sorted());
        }
        let closed = closed.sorted();
        prop_assert_eq!(&closed, &drained(NicConfig { exact: true, ..config }, &script).sorted());
        prop_assert_eq!(&closed, &by_reference(config, &script).sorted());
    }

    #[test]
    fn asking_in_between_changes_nothing(
        (config, script) in scenario(),
        step in 1u64..2_000_000,
        asked in any::<u64>(),
    ) {
        let mut log = Log::default();
        let (mut nic, mut now) = (Nic::new(config), Time::ZERO);
        for (flow, (pause, action)) in script.iter().enumerate() {
            let next = now + *pause;
            for number in 0..20 {
                now = (now + step).min(next);
                nic.catch_up(now, &mut log);
                let wanted = |_: &Log, segment: &Segment| asked >> ((segment.flow + number) % 64) & 1 == 1;
                nic.tell(wanted, &mut log);
                prop_assert!(nic.next_departure() > now);
            }
            now = next;
            match *action {
                Action::Enqueue { queue, payload, mss } => {
                    nic.enqueue(now, queue, segment(flow as u32, payload, mss), &mut log);
                }
                Action::Advance => nic.advance(now, &mut log),
                Action::CatchUp => nic.catch_up(now, &mut log),
                Action::SetWeight { queue, weight } => nic.set_weight(now, queue, weight, &mut log),
            }
        }
        nic.advance(Time::NEVER, &mut log);
        prop_assert_eq!(log.sorted(), drained(config, &script).sorted());
    }

    #[test]
    fn everything_leaves_once_and_in_order((config, script) in scenario()) {
        let log = drained(config, &script).sorted();
        let list = enqueued(&script);
        let frames: u64 = list.iter().map(|(_, _, segment, _)| u64::from(segment.frame_bytes())).sum();
        prop_assert_eq!(log.frame_bytes, frames);
        for queue in 0..config.queues {
            let expected: Vec<(u32, u32)> = list
                .iter()
                .filter(|entry| entry.1 == queue)
                .flat_map(|(flow, _, segment, _)| (0..segment.packets()).map(|index| (*flow, index)))
                .collect();
            let left: Vec<(u32, u32)> = log
                .packets
                .iter()
                .filter(|packet| packet.queue == queue)
                .map(|packet| (packet.flow, packet.index))
                .collect();
            prop_assert_eq!(left, expected);
        }
    }

    #[test]
    fn the_wire_carries_one_packet_at_a_time_and_never_rests((config, script) in scenario()) {
        let log = drained(config, &script).sorted();
        let list = enqueued(&script);
        let mut free = Time::ZERO;
        for (sent, packet) in log.packets.iter().enumerate() {
            prop_assert!(packet.begin >= free);
            if packet.begin > free || sent == 0 {
                // The wire was idle, so all segments enqueued before this packet have left.
                let before: u32 = list
                    .iter()
                    .filter(|(.., at)| *at < packet.begin)
                    .map(|(_, _, segment, _)| segment.packets())
                    .sum();
                prop_assert_eq!(before as usize, sent);
            }
            free = packet.end;
        }
    }

    #[test]
    fn finishes_are_predicted((config, script) in scenario(), wanted in any::<u64>()) {
        let wanted = |queue: u32| wanted >> (queue % 64) & 1 == 1;
        play(config, &script, |nic, _| {
            let finishes = first_finishes(nic);
            let mut earliest = Time::NEVER;
            for queue in 0..config.queues {
                let (finish, packet) = finishes[queue as usize];
                assert_eq!(nic.next_finish(queue), finish, "queue {queue}");
                assert_eq!(nic.earliest_packet(|ring| ring == queue, |_| true), packet, "queue {queue}");
                if wanted(queue) {
                    earliest = earliest.min(packet);
                }
            }
            assert_eq!(nic.earliest_packet(wanted, |_| true), earliest);
            let mut together = Finishes::default();
            nic.finishes(None, wanted, &mut together);
            let expected: Vec<(u32, Time)> = (0..config.queues)
                .map(|queue| (queue, finishes[queue as usize].0))
                .filter(|&(queue, finish)| wanted(queue) && finish != Time::NEVER)
                .collect();
            let mut together: Vec<(u32, Time)> = together.iter().collect();
            together.sort_unstable();
            assert_eq!(together, expected);
        });
    }

    /// Checks that a larger weight makes no other queue finish earlier. After a smaller weight, only the
    /// queues that [`Nic::finishes`] reports may finish earlier, and they finish at the reported times.
    #[test]
    fn a_weight_that_changes_brings_forward_what_it_may(
        (config, script) in scenario(),
        queue in 0u32..40,
        weight in 0u32..10,
    ) {
        let queue = queue % config.queues;
        play(config, &script, |nic, now| {
            let mut changed = nic.clone();
            changed.set_weight(now, queue, weight, &mut Log::default());
            let reduced = (changed.weight(queue) < nic.weight(queue)).then_some(queue);
            let mut predicted = Finishes::default();
            if reduced.is_some() {
                changed.finishes(reduced, |_| true, &mut predicted);
            }
            for other in (0..config.queues).filter(|&other| reduced.is_some() || other != queue) {
                match predicted.iter().find(|&(found, _)| found == other) {
                    Some((_, at)) => assert_eq!(at, changed.next_finish(other), "queue {other}"),
                    None => assert!(changed.next_finish(other) >= nic.next_finish(other), "queue {other}"),
                }
            }
        });
    }

    /// Checks Shreedhar and Varghese 1996, theorem 4. While all rings are backlogged, the service per weight
    /// of two rings differs by at most the quantum plus twice the largest packet. Without interleaving, a
    /// whole segment counts as a packet.
    #[test]
    fn deficit_round_robin_is_fair(
        quantum in 64u32..4000,
        interleave in any::<bool>(),
        weights in prop::collection::vec(1u32..8, 2..6),
        sizes in prop::collection::vec(payloads(), 2..6),
    ) {
        let service = Service::Deficit { quantum_bytes: quantum, largest_weight: 8 };
        let queues = weights.len() as u32;
        let mut nic = Nic::new(NicConfig { queues, ..config(interleave, service) });
        let mut log = Log::default();
        let mut largest = 0;
        for queue in 0..queues {
            nic.set_weight(Time::ZERO, queue, weights[queue as usize], &mut log);
            let (payload, mss) = sizes[queue as usize % sizes.len()];
            let one = segment(queue, payload, mss);
            let wire = |index| u64::from(wire_bytes(one.packet_payload(index)));
            let all: u64 = (0..one.packets()).map(wire).sum();
            largest = largest.max(if interleave { wire(0) } else { all });
            for _ in 0..400_000 / all {
                nic.enqueue(Time::ZERO, queue, one, &mut log);
            }
        }
        // Run until the first ring becomes empty.
        let mut sent = vec![0u64; queues as usize];
        while (0..queues).all(|queue| nic.backlog_packets(queue) > 0) {
            let mut step = Log::default();
            nic.advance(nic.next_departure(), &mut step);
            for packet in &step.packets {
                sent[packet.queue as usize] += packet.end.since(packet.begin) / 80;
            }
            let shares = sent.iter().zip(&weights).map(|(sent, weight)| sent / u64::from(*weight));
            let (low, high) = shares.fold((u64::MAX, 0), |(low, high), share| (low.min(share), high.max(share)));
            prop_assert!(high - low <= 2 * largest + u64::from(quantum), "{sent:?} with {weights:?}");
        }
    }
}
