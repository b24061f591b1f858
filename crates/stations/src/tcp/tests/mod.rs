//! Tests in a closed loop of a sender, a device with a link, an optional bottleneck, and a receiver.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod by_hand;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use proptest::prelude::*;

use super::*;
use crate::segment::{Segment, truesize, wire_bytes};
use crate::time::{MICROSECOND, SECOND, Time};

const PROFILES: [Profile; 2] = [Profile::Linux4_4, Profile::Linux6_18];
const MSS: u64 = 1448;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Arrives,
    Lost,
    Late(Span),
    Twice(Span),
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Freed(Segment),
    Data { sequence: u64, bytes: u32, packets: u32 },
    Acknowledged(Ack),
}

struct Loop<F> {
    sender: Sender,
    receiver: Receiver,
    now: Time,
    /// Event times and numbers. The number orders simultaneous events.
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    events: BTreeMap<u64, Event>,
    count: u64,
    /// Transmission time of a byte on the device's link.
    byte_time: Span,
    device_free: Time,
    /// One-way delay, without the links.
    delay: Span,
    /// A slower link behind the device, as the transmission time of a byte and the queue length in
    /// time.
    bottleneck: Option<(Span, Span)>,
    bottleneck_free: Time,
    /// Largest number of packets that the receiver merges into a run.
    merge: u32,
    /// Returns the fate of a packet or acknowledgement by its number.
    fate: F,
    fates: u64,
    sizes: Vec<u32>,
    most_below: u64,
    /// Number of attempts that the sender skipped because the small-queue limit still blocked it.
    idle_tries: u32,
}

impl<F: FnMut(u64) -> Fate> Loop<F> {
    /// Creates a loop with 10 Gbit/s and an RTT of 100 µs.
    fn new(config: &SenderConfig, fate: F) -> Self {
        Self {
            sender: Sender::new(config, 3, 7),
            receiver: Receiver::new(&ReceiverConfig::default()),
            now: Time::ZERO,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            count: 0,
            byte_time: 800,
            device_free: Time::ZERO,
            delay: 50 * MICROSECOND,
            bottleneck: None,
            bottleneck_free: Time::ZERO,
            merge: 16,
            fate,
            fates: 0,
            sizes: Vec::new(),
            most_below: 0,
            idle_tries: 0,
        }
    }

    fn at(&mut self, time: Time, event: Event) {
        self.count += 1;
        self.queue.push(Reverse((time, self.count)));
        self.events.insert(self.count, event);
    }

    fn next_fate(&mut self) -> Fate {
        self.fates += 1;
        (self.fate)(self.fates)
    }

    fn pump(&mut self) -> Blocked {
        loop {
            if let Some(is_idle) = self.sender.trying_again_is_idle(self.now) {
                assert!(is_idle);
                self.idle_tries += 1;
            }
            match self.sender.next_segment(self.now) {
                Ok(segment) => self.transmit(segment),
                Err(blocked) => return blocked,
            }
            self.most_below = self.most_below.max(self.sender.bytes_below());
        }
    }

    fn transmit(&mut self, segment: Segment) {
        assert!(segment.payload > 0 && (segment.flow, segment.hash) == (3, 7));
        self.sizes.push(segment.packets());
        let mut time = self.device_free.max(self.now);
        let (mut run, mut run_packets, mut run_start) = (0, 0, segment.sequence);
        let mut arrival = Time::ZERO;
        for index in 0..segment.packets() {
            let payload = segment.packet_payload(index);
            let start = segment.sequence + u64::from(index * segment.mss);
            time += u64::from(wire_bytes(payload)) * self.byte_time;
            let (at, fate) = match self.through_bottleneck(time, payload) {
                Some(at) => (at + self.delay, self.next_fate()),
                None => (time, Fate::Lost),
            };
            if run > 0 && (fate != Fate::Arrives || run_packets >= self.merge) {
                self.at(arrival, Event::Data { sequence: run_start, bytes: run, packets: run_packets });
                (run, run_packets) = (0, 0);
            }
            let alone = Event::Data { sequence: start, bytes: payload, packets: 1 };
            match fate {
                Fate::Arrives => {
                    if run == 0 {
                        run_start = start;
                    }
                    run += payload;
                    run_packets += 1;
                    arrival = at;
                }
                Fate::Lost => {}
                Fate::Late(by) => self.at(at + by, alone),
                Fate::Twice(by) => {
                    self.at(at, alone);
                    self.at(at + by, alone);
                }
            }
        }
        if run > 0 {
            self.at(arrival, Event::Data { sequence: run_start, bytes: run, packets: run_packets });
        }
        self.device_free = time;
        self.at(time, Event::Freed(segment));
    }

    fn through_bottleneck(&mut self, time: Time, payload: u32) -> Option<Time> {
        let Some((byte_time, queue)) = self.bottleneck else { return Some(time) };
        let start = self.bottleneck_free.max(time);
        if start.since(time) > queue {
            return None;
        }
        self.bottleneck_free = start + u64::from(wire_bytes(payload)) * byte_time;
        Some(self.bottleneck_free)
    }

    fn acknowledge(&mut self) {
        let ack = self.receiver.acknowledgement();
        let at = self.now + self.delay;
        match self.next_fate() {
            Fate::Arrives => self.at(at, Event::Acknowledged(ack)),
            Fate::Lost => {}
            Fate::Late(by) => self.at(at + by, Event::Acknowledged(ack)),
            Fate::Twice(by) => {
                self.at(at, Event::Acknowledged(ack));
                self.at(at + by, Event::Acknowledged(ack));
            }
        }
    }

    /// Runs until `end`, or until all written data is acknowledged.
    fn run(&mut self, end: Time) {
        let mut pacing = match self.pump() {
            Blocked::Pacing(at) => at,
            _ => Time::NEVER,
        };
        while self.sender.unfinished() > 0 {
            let event = self.queue.peek().map_or(Time::NEVER, |Reverse((time, _))| *time);
            let timers = self.sender.deadline().min(self.receiver.deadline()).min(pacing);
            assert!(event.min(timers) != Time::NEVER, "the flow stalls");
            if event.min(timers) > end {
                break;
            }
            self.now = self.now.max(event.min(timers));
            let mut go = true;
            if event <= timers {
                let Some(Reverse((_, number))) = self.queue.pop() else { break };
                match self.events.remove(&number) {
                    Some(Event::Freed(segment)) => go = self.sender.freed(&segment),
                    Some(Event::Data { sequence, bytes, packets }) => {
                        go = false;
                        if self.receiver.on_data(self.now, sequence, bytes, packets) == Reply::Now {
                            self.acknowledge();
                        }
                    }
                    Some(Event::Acknowledged(ack)) => self.sender.on_ack(self.now, &ack),
                    None => panic!("an event without a content"),
                }
            } else if self.receiver.on_deadline(self.now) {
                go = false;
                self.acknowledge();
            } else if self.sender.deadline() <= self.now {
                self.sender.on_deadline(self.now);
            }
            if go || pacing <= self.now {
                pacing = match self.pump() {
                    Blocked::Pacing(at) => at,
                    _ => Time::NEVER,
                };
            }
            assert!(self.sender.is_consistent());
        }
        if self.sender.unfinished() == 0 {
            assert_eq!(self.sender.in_flight(), 0);
            assert_eq!(self.receiver.delivered(), self.sender.delivered());
        } else {
            self.now = self.now.max(end);
        }
    }

    fn counters(&self) -> Counters {
        self.sender.counters()
    }
}

/// Returns a pseudo-random number (SplitMix64), so that tests are reproducible.
fn random(number: u64) -> u64 {
    let mut value = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

fn config(profile: Profile) -> SenderConfig {
    SenderConfig { handshake_rtt: 100 * MICROSECOND, ..SenderConfig::new(profile) }
}

#[test]
fn one_flow_fills_the_link() {
    for profile in PROFILES {
        for congestion in [CongestionControl::Cubic, CongestionControl::Reno] {
            let config = SenderConfig { congestion, ..config(profile) };
            let mut flow = Loop::new(&config, |_| Fate::Arrives);
            flow.sender.write(u64::MAX / 2);
            flow.run(Time(40 * MILLISECOND));
            let before = flow.receiver.delivered();
            flow.run(Time(60 * MILLISECOND));
            let bytes = flow.receiver.delivered() - before;
            // Data of 20 ms at 1.25 GB/s, with 1448 bytes of payload in 1538 wire bytes.
            let most = 25_000_000 * MSS / 1538;
            assert!(bytes > most * 98 / 100, "{profile:?} {congestion:?}: {bytes} of {most}");
            assert!(bytes <= most + 65_160, "{profile:?} {congestion:?}: {bytes} of {most}");
            assert_eq!(flow.counters().retransmitted_segments, 0);
        }
    }
}

#[test]
fn a_bottleneck_is_filled_in_spite_of_its_losses() {
    for profile in PROFILES {
        let mut flow = Loop::new(&config(profile), |_| Fate::Arrives);
        // A bottleneck of 1 Gbit/s with a queue of 400 µs, and an RTT of 400 µs.
        flow.delay = 200 * MICROSECOND;
        flow.bottleneck = Some((8_000, 400 * MICROSECOND));
        flow.sender.write(u64::MAX / 2);
        flow.run(Time(250 * MILLISECOND));
        let before = flow.receiver.delivered();
        flow.run(Time(1250 * MILLISECOND));
        let share = (flow.receiver.delivered() - before) as f64 / (125e6 * 1448.0 / 1538.0);
        assert!(share > 0.9, "{profile:?}: {share}");
        let counters = flow.counters();
        assert!(counters.recoveries > 0, "{profile:?}: {counters:?}");
        assert_eq!(counters.timeouts, 0, "{profile:?}: {counters:?}");
        assert!(counters.retransmitted_packets * 50 < counters.packets, "{profile:?}: {counters:?}");
        // The sender retransmits only lost data.
        assert_eq!(flow.receiver.duplicate_bytes(), 0, "{profile:?}");
    }
}

/// BBR uses the full rate of a bottleneck with a deep buffer, and keeps the buffer almost empty. CUBIC
/// fills the buffer.
#[test]
fn bbr_fills_the_link_but_not_the_buffer() {
    let kernels = [BbrKernel::Linux4_15, BbrKernel::Linux6_18].map(CongestionControl::Bbr);
    for bbr in kernels.into_iter().chain([CongestionControl::Bbr3]) {
        let rtt = |congestion| {
            let config =
                SenderConfig { congestion, handshake_rtt: 0, ..SenderConfig::new(Profile::Linux6_18) };
            let mut flow = Loop::new(&config, |_| Fate::Arrives);
            // A bottleneck of 1 Gbit/s with a queue of 100 ms, and an RTT of 10 ms.
            flow.delay = 5 * MILLISECOND;
            flow.bottleneck = Some((8_000, 100 * MILLISECOND));
            flow.sender.write(u64::MAX / 2);
            flow.run(Time(2 * SECOND));
            let before = flow.receiver.delivered();
            flow.run(Time(3 * SECOND));
            let share = (flow.receiver.delivered() - before) as f64 / (125e6 * 1448.0 / 1538.0);
            assert!(share > 0.97, "{congestion:?}: {share}");
            flow.sender.smoothed_rtt()
        };
        let (least, cubic) = (rtt(bbr), rtt(CongestionControl::Cubic));
        assert!(least < 15 * MILLISECOND, "{bbr:?}: {least}");
        assert!(cubic > 2 * least, "{bbr:?}: {cubic}");
    }
}

/// Packets lost at random do not slow BBR down.
#[test]
fn bbr_ignores_random_losses() {
    let share =
        |congestion| {
            let config =
                SenderConfig { congestion, handshake_rtt: 0, ..SenderConfig::new(Profile::Linux6_18) };
            let mut flow = Loop::new(&config, |number| {
                if random(number).is_multiple_of(200) { Fate::Lost } else { Fate::Arrives }
            });
            flow.delay = 5 * MILLISECOND;
            flow.bottleneck = Some((8_000, 100 * MILLISECOND));
            flow.sender.write(u64::MAX / 2);
            flow.run(Time(SECOND));
            let before = flow.receiver.delivered();
            flow.run(Time(2 * SECOND));
            (flow.receiver.delivered() - before) as f64 / (125e6 * 1448.0 / 1538.0)
        };
    let (bbr, cubic) = (share(CongestionControl::Bbr(BbrKernel::Linux6_18)), share(CongestionControl::Cubic));
    let bbr3 = share(CongestionControl::Bbr3);
    assert!(bbr > 0.9 && bbr3 > 0.8 && cubic < 0.5, "{bbr}, {bbr3}, {cubic}");
}

/// The buffer is a tenth of the BDP. Version 1 keeps sending into the full queue. Version 3 limits the
/// packets in flight to the number at which 2 % were lost.
#[test]
fn bbr3_loses_few_packets_in_a_shallow_buffer() {
    let lost = |congestion| {
        let config = SenderConfig { congestion, handshake_rtt: 0, ..SenderConfig::new(Profile::Linux6_18) };
        let mut flow = Loop::new(&config, |_| Fate::Arrives);
        flow.delay = 5 * MILLISECOND;
        flow.bottleneck = Some((8_000, MILLISECOND));
        flow.sender.write(u64::MAX / 2);
        flow.run(Time(SECOND));
        let before = (flow.receiver.delivered(), flow.counters());
        flow.run(Time(3 * SECOND));
        let share = (flow.receiver.delivered() - before.0) as f64 / (250e6 * 1448.0 / 1538.0);
        let after = flow.counters();
        let again = after.retransmitted_packets - before.1.retransmitted_packets;
        (share, again as f64 / (after.packets - before.1.packets) as f64)
    };
    let (version1, version3) =
        (lost(CongestionControl::Bbr(BbrKernel::Linux6_18)), lost(CongestionControl::Bbr3));
    assert!(version3.0 > 0.85, "{version1:?}, {version3:?}");
    assert!(version3.1 < 0.01 && version3.1 < version1.1 / 2.0, "{version1:?}, {version3:?}");
}

/// LoLa holds the queueing delay near 5 ms.
#[test]
fn lola_keeps_a_small_queue() {
    let congestion = CongestionControl::Lola { loss_reaction: true };
    let config = SenderConfig { congestion, handshake_rtt: 0, ..SenderConfig::new(Profile::Linux6_18) };
    let mut flow = Loop::new(&config, |_| Fate::Arrives);
    flow.delay = 5 * MILLISECOND;
    flow.bottleneck = Some((8_000, 100 * MILLISECOND));
    flow.sender.write(u64::MAX / 2);
    flow.run(Time(5 * SECOND));
    let before = flow.receiver.delivered();
    let mut most = 0;
    for step in 1..=100 {
        flow.run(Time(5 * SECOND + step * 50 * MILLISECOND));
        most = most.max(flow.sender.smoothed_rtt());
    }
    let share = (flow.receiver.delivered() - before) as f64 / (5.0 * 125e6 * 1448.0 / 1538.0);
    assert!(share > 0.95, "{share}");
    assert!((14 * MILLISECOND..18 * MILLISECOND).contains(&most), "{most}");
}

#[test]
fn every_byte_arrives_in_spite_of_random_losses() {
    for profile in PROFILES {
        for tso in [true, false] {
            let config = SenderConfig { tso, ..config(profile) };
            let mut flow = Loop::new(&config, |number| {
                if random(number).is_multiple_of(50) { Fate::Lost } else { Fate::Arrives }
            });
            flow.sender.write(3_000_000);
            flow.run(Time::NEVER);
            assert_eq!(flow.receiver.delivered(), 3_000_000);
            let counters = flow.counters();
            let sent = 3_000_000_u64.div_ceil(MSS) + counters.retransmitted_packets;
            assert!(counters.packets.abs_diff(sent) <= 5, "{profile:?} {counters:?}");
            assert!(counters.retransmitted_packets >= 20, "{profile:?} {counters:?}");
        }
    }
}

#[test]
fn one_loss_costs_a_retransmission_and_the_algorithms_share() {
    for profile in PROFILES {
        for (congestion, kept) in [(CongestionControl::Cubic, 717), (CongestionControl::Reno, 512)] {
            let config = SenderConfig {
                congestion,
                tso: false,
                initial_window: 100,
                handshake_rtt: 10 * MILLISECOND,
                ..SenderConfig::new(profile)
            };
            // The lost packet must be in the first window, because slow start changes the window later.
            let mut flow = Loop::new(&config, |number| if number == 20 { Fate::Lost } else { Fate::Arrives });
            flow.delay = 5 * MILLISECOND;
            flow.merge = 1;
            flow.sender.write(100 * MSS);
            flow.run(Time::NEVER);
            let counters = flow.counters();
            assert_eq!((counters.retransmitted_packets, counters.recoveries, counters.timeouts), (1, 1, 0));
            // Slow start has grown the window by the 19 acknowledged packets.
            let threshold = flow.sender.slow_start_threshold();
            let window = 100 + 19;
            assert!(threshold.abs_diff(window * kept / 1024) <= 3, "{profile:?} {congestion:?} {threshold}");
            // The acknowledgement that ends recovery also grows the window.
            assert!(flow.sender.window_packets() - threshold <= 1);
            assert_eq!(flow.sender.state(), State::Open);
        }
    }
}

#[test]
fn small_queues_hold_a_flow_to_its_limit() {
    for (profile, limit) in [(Profile::Linux4_4, 256 << 10), (Profile::Linux6_18, 1 << 20)] {
        let config = SenderConfig { small_queue_limit: Some(limit), initial_window: 3000, ..config(profile) };
        let mut flow = Loop::new(&config, |_| Fate::Arrives);
        flow.sender.write(20_000_000);
        flow.run(Time::NEVER);
        let slack = u64::from(truesize(45 * 1448));
        let limit = u64::from(limit);
        assert!(flow.most_below > limit && flow.most_below <= limit + slack, "{}", flow.most_below);
        // With the profile of Linux 4.4, the sender skips the attempt at each of several hundred
        // acknowledgements.
        assert_eq!(flow.idle_tries > 100, profile == Profile::Linux4_4, "{}", flow.idle_tries);
    }
    let config = SenderConfig { small_queue_limit: None, initial_window: 3000, ..config(Profile::Linux4_4) };
    let mut flow = Loop::new(&config, |_| Fate::Arrives);
    flow.sender.write(20_000_000);
    assert_eq!(flow.pump(), Blocked::Window);
    assert!(flow.most_below > 3000 * MSS);
}

#[test]
fn without_tso_every_segment_is_a_packet() {
    let config = SenderConfig { tso: false, ..config(Profile::Linux6_18) };
    let mut flow = Loop::new(&config, |_| Fate::Arrives);
    flow.sender.write(1_000_000);
    flow.run(Time::NEVER);
    assert!(flow.sizes.iter().all(|size| *size == 1));
    assert_eq!(flow.counters().packets, 1_000_000_u64.div_ceil(MSS));
}

#[test]
fn a_lost_tail_is_probed() {
    for profile in PROFILES {
        let mut flow =
            Loop::new(
                &config(profile),
                |number| if (9..=10).contains(&number) { Fate::Lost } else { Fate::Arrives },
            );
        flow.sender.write(10 * MSS);
        flow.run(Time::NEVER);
        let counters = flow.counters();
        assert_eq!((counters.timeouts, counters.probes), (0, 1), "{profile:?} {counters:?}");
        assert!(flow.now < Time(60 * MILLISECOND), "{profile:?}: {:?}", flow.now);
    }
}

#[test]
fn reordering_is_undone_and_learned() {
    for profile in PROFILES {
        let config = SenderConfig { initial_window: 60, tso: false, ..config(profile) };
        let mut flow =
            Loop::new(
                &config,
                |number| {
                    if number == 30 { Fate::Late(15 * MICROSECOND) } else { Fate::Arrives }
                },
            );
        flow.merge = 1;
        flow.sender.write(400 * MSS);
        flow.run(Time::NEVER);
        let counters = flow.counters();
        // A delay of 15 µs corresponds to 12 packets. The sender detects a loss, and the D-SACK undoes
        // it.
        assert_eq!((counters.recoveries, counters.undone, counters.timeouts), (1, 1, 0), "{profile:?}");
        assert!(flow.sender.window_packets() > 100, "{profile:?} {}", flow.sender.window_packets());
        assert_eq!(flow.receiver.duplicate_bytes(), MSS);
    }
}

#[test]
fn known_reordering_is_waited_for() {
    // The network swaps packet 10 with the next packet, which shows reordering. It delays every 200th
    // packet by 12 µs, or 10 packets, which is within RACK's window of a quarter of the RTT.
    let config = SenderConfig { initial_window: 60, tso: false, ..config(Profile::Linux6_18) };
    let mut flow = Loop::new(&config, |number| match number {
        10 => Fate::Late(2 * MICROSECOND),
        _ if number.is_multiple_of(200) => Fate::Late(12 * MICROSECOND),
        _ => Fate::Arrives,
    });
    flow.sender.write(3000 * MSS);
    flow.run(Time::NEVER);
    assert!(flow.receiver.out_of_order_packets() > 50);
    assert_eq!(flow.counters().retransmitted_packets, 0);
}

#[test]
fn idle_flows_start_over() {
    for profile in PROFILES {
        let mut flow = Loop::new(&config(profile), |_| Fate::Arrives);
        flow.sender.write(1_000_000);
        flow.run(Time::NEVER);
        assert!(flow.sender.window_packets() > 40);
        flow.now += 10 * SECOND;
        flow.sender.write(100 * MSS);
        flow.pump();
        assert_eq!((flow.sender.window_packets(), flow.sender.in_flight()), (10, 10), "{profile:?}");
    }
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    for profile in PROFILES {
        let mut flow = Loop::new(&config(profile), |_| Fate::Arrives);
        for _ in 0..200 {
            flow.sender.write(2 * MSS);
            flow.run(Time::NEVER);
        }
        assert_eq!(flow.sender.window_packets(), 10, "{profile:?}");
    }
}

fn any_config() -> impl Strategy<Value = SenderConfig> {
    (0..2_usize, any::<bool>(), any::<bool>(), any::<bool>(), any::<[bool; 2]>(), 0..3_usize).prop_map(
        |(profile, reno, tso, pacing, [small_queues, floor], rtt)| {
            let base = SenderConfig::new(PROFILES[profile]);
            SenderConfig {
                congestion: if reno { CongestionControl::Reno } else { CongestionControl::Cubic },
                tso,
                small_queue_floor: floor,
                pacing,
                small_queue_limit: base.small_queue_limit.filter(|_| small_queues),
                handshake_rtt: [0, 100 * MICROSECOND, 3 * MILLISECOND][rtt],
                ..base
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// Checks that the flow never stalls, the sums are correct and all bytes arrive, with the
    /// assertions of [`Loop::run`].
    #[test]
    fn whatever_the_network_does_the_bytes_arrive(
        config in any_config(),
        seed in any::<u64>(),
        (lost, late, twice) in (0_u64..200, 0_u64..100, 0_u64..50),
        merge in 1_u32..45,
        writes in prop::collection::vec(1_u64..60_000, 1..8),
    ) {
        let mut flow = Loop::new(&config, |number| {
            let draw = random(seed ^ number.wrapping_mul(0x5851_f42d_4c95_7f2d));
            let by = (draw >> 32) % (400 * MICROSECOND);
            match draw % 1000 {
                value if value < lost => Fate::Lost,
                value if value < lost + late => Fate::Late(by),
                value if value < lost + late + twice => Fate::Twice(by),
                _ => Fate::Arrives,
            }
        });
        flow.merge = merge;
        let mut total = 0;
        for bytes in writes {
            flow.sender.write(bytes);
            total += bytes;
            // The next write may begin before the sender has sent all data of the previous write.
            let pause = random(seed ^ total) % (2 * MILLISECOND);
            let end = flow.now + pause;
            flow.run(end);
        }
        flow.run(Time::NEVER);
        prop_assert_eq!(flow.receiver.delivered(), total);
    }

    /// Passes arbitrary acknowledgements to the sender, in any order.
    #[test]
    fn no_acknowledgement_breaks_the_sender(
        config in any_config(),
        acks in prop::collection::vec(
            (0_u64..120_000, prop::array::uniform3((0_u64..120_000, 0_u64..50_000))), 1..60),
    ) {
        let mut sender = Sender::new(&config, 0, 0);
        sender.write(200_000);
        let mut now = Time::ZERO;
        for (cumulative, blocks) in acks {
            while let Ok(segment) = sender.next_segment(now) {
                sender.freed(&segment);
            }
            now += 30 * MICROSECOND;
            let sack = blocks.map(|(start, bytes)| Block { start, end: start + bytes });
            sender.on_ack(now, &Ack { cumulative, sack });
            prop_assert!(sender.is_consistent());
            let planned = sender.deadline() != Time::NEVER;
            prop_assert!(planned || sender.in_flight() == 0);
            if sender.deadline() <= now + 10 * MILLISECOND {
                now = now.max(sender.deadline());
                sender.on_deadline(now);
            }
        }
    }
}
