//! Single steps of the sender, with precomputed results.

use super::*;

#[test]
fn the_small_queue_limit_follows_a_slow_flows_rate() {
    // In slow start, the pacing rate is twice 10 packets per 10 ms, which is 2.9 MB/s. So the limit is 2 skbs
    // of 2 packets. The two skbs exceed the limit, because `sk_wmem_alloc` is 1 more than the data below TCP.
    let config =
        SenderConfig { handshake_rtt: 10 * MILLISECOND, initial_window: 10, ..config(Profile::Linux4_4) };
    let mut sender = Sender::new(&config, 0, 0);
    sender.write(u64::MAX / 2);
    let skb = u64::from(truesize(2 * 1448));
    let mut segments = Vec::new();
    let blocked = loop {
        match sender.next_segment(Time::ZERO) {
            Ok(segment) => segments.push(segment),
            Err(blocked) => break blocked,
        }
    };
    assert_eq!((blocked, segments.len(), sender.bytes_below()), (Blocked::SmallQueue, 2, 2 * skb));
    assert!(sender.freed(&segments[0]));
    let third = sender.next_segment(Time(1)).unwrap();
    assert_eq!(sender.next_segment(Time(1)), Err(Blocked::SmallQueue));
    assert!(sender.freed(&segments[1]));
    assert!(!sender.freed(&third));
}

#[test]
fn without_the_floor_a_slow_flow_has_one_segment_below() {
    // The limit is the data of 1/1024 s at 2.9 MB/s. One skb of 2 packets exceeds this limit.
    let config = SenderConfig {
        handshake_rtt: 10 * MILLISECOND,
        small_queue_floor: false,
        ..config(Profile::Linux4_4)
    };
    let mut sender = Sender::new(&config, 0, 0);
    sender.write(u64::MAX / 2);
    let segment = sender.next_segment(Time::ZERO).unwrap();
    assert_eq!(segment.packets(), 2);
    assert_eq!(sender.next_segment(Time::ZERO), Err(Blocked::SmallQueue));
    assert!(sender.freed(&segment));
    assert!(sender.next_segment(Time(1)).is_ok());
}

#[test]
fn segments_are_sized_by_rate_and_by_distance() {
    // RTT in µs, gso_max_size, packets with 4.4, packets with 6.18. The rate is 2 · 10 · 1448 bytes per RTT,
    // and a segment holds the data of 1/1024 s. 6.18 adds the bytes of the largest segment (`gso_max_size` −
    // 321), halved for every 512 µs of RTT.
    for (rtt, gso, old, new) in [
        (100, 65_536, 45, 45),
        (1000, 65_536, 19, 42),
        (2000, 65_536, 9, 15),
        (10_000, 65_536, 2, 2),
        (2000, 16_384, 9, 11),
        (100, 16_384, 11, 11),
    ] {
        for (profile, packets) in [(Profile::Linux4_4, old), (Profile::Linux6_18, new)] {
            let config = SenderConfig {
                handshake_rtt: rtt * MICROSECOND,
                gso_max_bytes: gso,
                ..SenderConfig::new(profile)
            };
            let sender = Sender::new(&config, 0, 0);
            assert_eq!(sender.pacing_rate() / 1000, 28_960_000_000 / rtt / 1000);
            assert_eq!(sender.segment_goal(), packets, "{profile:?} {rtt} {gso}");
        }
    }
}

#[test]
fn old_kernels_send_remainders_alone() {
    // 4.4 splits skbs of 45 packets into segments of 19, 19 and 7 packets. The window is large, and
    // small queues are off.
    for (profile, expected) in
        [(Profile::Linux4_4, [19, 19, 7, 19, 19, 7]), (Profile::Linux6_18, [42, 42, 42, 42, 42, 42])]
    {
        let config = SenderConfig {
            handshake_rtt: 1000 * MICROSECOND,
            small_queue_limit: None,
            ..SenderConfig::new(profile)
        };
        let mut sender = Sender::new(&config, 0, 0);
        sender.window_for_test(1000);
        sender.write(u64::MAX / 2);
        let sizes = expected.map(|_| sender.next_segment(Time::ZERO).unwrap().packets());
        assert_eq!(sizes, expected, "{profile:?}");
    }
}

#[test]
fn small_writes_go_at_once() {
    for profile in PROFILES {
        let mut sender = Sender::new(&config(profile), 0, 0);
        for index in 0..5_u64 {
            sender.write(100);
            let segment = sender.next_segment(Time(index)).unwrap();
            assert_eq!((segment.sequence, segment.payload), (index * 100, 100));
            assert_eq!(sender.next_segment(Time(index)), Err(Blocked::NoData));
        }
        assert_eq!(sender.in_flight(), 5);
    }
}

#[test]
fn a_little_room_is_not_used_at_once() {
    for profile in PROFILES {
        let config = SenderConfig { initial_window: 90, small_queue_limit: None, ..config(profile) };
        let mut sender = Sender::new(&config, 0, 0);
        sender.write(u64::MAX / 2);
        let mut now = Time(MILLISECOND / 2);
        while sender.next_segment(now).is_ok() {}
        // An acknowledgement of 4 packets makes room for 8 packets. More acknowledgements follow soon.
        now += 90 * MICROSECOND;
        sender.on_ack(now, &Ack { cumulative: 4 * MSS, ..Ack::default() });
        assert_eq!(sender.window_packets(), 94);
        assert_eq!(sender.next_segment(now), Err(Blocked::Deferred));
        // The sender does not defer a segment of a third of the window.
        sender.on_ack(now, &Ack { cumulative: 20 * MSS, ..Ack::default() });
        assert!(sender.next_segment(now).is_ok());
    }
}

#[test]
fn a_remainder_that_fits_is_not_deferred() {
    let config = SenderConfig {
        handshake_rtt: MILLISECOND,
        small_queue_limit: None,
        ..SenderConfig::new(Profile::Linux4_4)
    };
    let mut sender = Sender::new(&config, 0, 0);
    sender.window_for_test(1000);
    sender.write(u64::MAX / 2);
    for _ in 0..2 {
        assert_eq!(sender.next_segment(Time::ZERO).map(|segment| segment.packets()), Ok(19));
    }
    // The window has room for 8 packets. The sender would defer a segment of this size, but the skb has
    // only 7 more packets.
    sender.window_for_test(38 + 8);
    let now = Time(600 * MICROSECOND);
    assert_eq!(sender.next_segment(now).map(|segment| segment.packets()), Ok(7));
    // The eighth packet belongs to the next skb, which has 45 packets.
    assert_eq!(sender.next_segment(now), Err(Blocked::Deferred));
}

#[test]
fn what_small_queues_hold_back_stays_cut() {
    let config = SenderConfig {
        handshake_rtt: MILLISECOND,
        small_queue_limit: Some(20_000),
        ..SenderConfig::new(Profile::Linux4_4)
    };
    let mut sender = Sender::new(&config, 0, 0);
    sender.window_for_test(1000);
    sender.write(u64::MAX / 2);
    let first = sender.next_segment(Time::ZERO).unwrap();
    assert_eq!(sender.next_segment(Time::ZERO), Err(Blocked::SmallQueue));
    // With the new window the goal is 45 packets, but the skbs of 19 and 7 are already cut.
    let now = Time(100 * MICROSECOND);
    sender.on_ack(now, &ack(19, &[]));
    assert_eq!((sender.segment_goal(), first.packets()), (45, 19));
    assert!(sender.freed(&first));
    for packets in [19, 7, 45] {
        let segment = sender.next_segment(now).unwrap();
        assert_eq!(segment.packets(), packets);
        sender.freed(&segment);
    }
}

#[test]
fn an_unused_window_stays_while_acknowledgements_come() {
    for profile in PROFILES {
        let mut sender = Sender::new(&config(profile), 0, 0);
        sender.window_for_test(100);
        // The sender sends two packets every 10 ms, for more than two timeouts of 201 ms. Each
        // acknowledgement counts as use of the window (`tcp_cong_avoid`).
        for turn in 0..45_u64 {
            let now = Time(turn * 10 * MILLISECOND);
            sender.write(2 * MSS);
            assert_eq!(send_all(&mut sender, now), 2);
            sender.on_ack(now + 100 * MICROSECOND, &ack(2 * turn + 2, &[]));
            assert_eq!(sender.window_packets(), 100, "{profile:?} {turn}");
        }
        assert_eq!(sender.slow_start_threshold(), 0x7fff_ffff);
    }
}

#[test]
fn an_unused_window_stays_while_the_application_waits_for_the_send_buffer() {
    for profile in PROFILES {
        let mut sender = Sender::new(&config(profile), 0, 0);
        sender.window_for_test(100);
        sender.set_buffer_full(true);
        for turn in 0..45_u64 {
            let now = Time(turn * 10 * MILLISECOND);
            sender.write(2 * MSS);
            assert_eq!(send_all(&mut sender, now), 2);
            sender.on_ack(now + 100 * MICROSECOND, &ack(2 * turn + 2, &[]));
            assert_eq!(sender.window_packets(), 100, "{profile:?} {turn}");
        }
    }
}

#[test]
fn a_probe_of_new_data_is_followed_by_a_timeout() {
    for profile in PROFILES {
        let mut sender = twenty_under_way(profile);
        let now = sender.deadline();
        sender.on_deadline(now);
        let probe = sender.next_segment(now).unwrap();
        assert_eq!((probe.sequence, probe.packets(), probe.retransmit), (20 * MSS, 1, false));
        assert_eq!(sender.next_segment(now), Err(Blocked::Window));
        assert_eq!(sender.deadline(), now + 210 * MILLISECOND);
        sender.on_deadline(sender.deadline());
        assert_eq!((sender.state(), sender.counters().probes), (State::Loss, 1), "{profile:?}");
    }
}

#[test]
fn timeouts_back_off_and_slow_start_follows() {
    for profile in PROFILES {
        let config = SenderConfig {
            handshake_rtt: 100 * MILLISECOND,
            small_queue_limit: None,
            ..SenderConfig::new(profile)
        };
        let mut sender = Sender::new(&config, 0, 0);
        sender.write(10 * MSS);
        while sender.next_segment(Time::ZERO).is_ok() {}
        assert_eq!(sender.in_flight(), 10);
        // The first action is a probe, which retransmits the last packet.
        let probe = match profile {
            Profile::Linux4_4 => 200 * MILLISECOND,
            Profile::Linux6_18 => 202 * MILLISECOND,
        };
        assert_eq!(sender.deadline(), Time(probe));
        sender.on_deadline(Time(probe));
        let segment = sender.next_segment(Time(probe)).unwrap();
        assert_eq!((segment.sequence, segment.payload, segment.retransmit), (9 * MSS, 1448, true));
        // The first timeout is SRTT 100 ms + 4 · 50 ms. Each further timeout is twice as long.
        let mut now = Time(probe);
        for backoff in 0..6 {
            let timeout = (300 * MILLISECOND) << backoff;
            assert_eq!(sender.deadline(), now + timeout, "{profile:?} {backoff}");
            now += timeout;
            sender.on_deadline(now);
            assert_eq!(sender.state(), State::Loss);
            assert_eq!(sender.window_packets(), 1);
            let segment = sender.next_segment(now).unwrap();
            assert_eq!((segment.sequence, segment.payload, segment.retransmit), (0, 1448, true));
            assert_eq!(sender.next_segment(now), Err(Blocked::Window));
        }
        assert_eq!(sender.slow_start_threshold(), 7);
        // An acknowledgement ends the backoff. Slow start sends two packets, then four packets.
        for (cumulative, sent) in [(1, 2), (3, 4)] {
            now += 100 * MILLISECOND;
            sender.on_ack(now, &Ack { cumulative: cumulative * MSS, ..Ack::default() });
            let mut packets = 0;
            while let Ok(segment) = sender.next_segment(now) {
                packets += segment.packets();
            }
            assert_eq!(packets, sent, "{profile:?}");
            assert_eq!(sender.retransmission_timeout(), 300 * MILLISECOND);
        }
        // Acknowledged retransmissions give no RTT sample (Karn's rule).
        now += SECOND;
        sender.on_ack(now, &Ack { cumulative: 10 * MSS, ..Ack::default() });
        assert_eq!((sender.state(), sender.deadline()), (State::Open, Time::NEVER));
        assert_eq!(sender.smoothed_rtt(), 100 * MILLISECOND);
    }
}

#[test]
fn pacing_spaces_segments() {
    for profile in PROFILES {
        let config = SenderConfig {
            pacing: true,
            small_queue_limit: None,
            initial_window: 100,
            handshake_rtt: 10 * MILLISECOND,
            ..SenderConfig::new(profile)
        };
        let mut sender = Sender::new(&config, 0, 0);
        sender.write(u64::MAX / 2);
        let (mut now, mut bytes, mut last) = (Time::ZERO, 0, 0);
        while bytes < 80 * MSS {
            match sender.next_segment(now) {
                Ok(segment) => {
                    last = u64::from(segment.payload);
                    bytes += last;
                }
                Err(Blocked::Pacing(at)) => now = at,
                Err(other) => panic!("{other:?}"),
            }
        }
        // At 28.96 MB/s, the last segment departs after the transmission time of all previous segments.
        let expected = (bytes - last) * SECOND / 28_960_000;
        assert!(now.0.abs_diff(expected) < 1000, "{profile:?}: {now:?} instead of {expected}");
    }
}

#[test]
fn late_paced_segments_catch_up_by_half() {
    let config = SenderConfig {
        pacing: true,
        small_queue_limit: None,
        initial_window: 100,
        handshake_rtt: 10 * MILLISECOND,
        ..SenderConfig::new(Profile::Linux6_18)
    };
    let mut sender = Sender::new(&config, 0, 0);
    sender.write(u64::MAX / 2);
    // 19 packets at 28.96 MB/s take 950 µs.
    assert!(sender.next_segment(Time::ZERO).is_ok());
    assert_eq!(sender.next_segment(Time::ZERO), Err(Blocked::Pacing(Time(950 * MICROSECOND))));
    // A segment that is 100 µs late advances its successor by 100 µs. A segment that is 1 s late
    // advances its successor by half of its own transmission time.
    assert!(sender.next_segment(Time(1050 * MICROSECOND)).is_ok());
    assert_eq!(sender.next_segment(Time(1050 * MICROSECOND)), Err(Blocked::Pacing(Time(1900 * MICROSECOND))));
    assert!(sender.next_segment(Time(SECOND)).is_ok());
    assert_eq!(sender.next_segment(Time(SECOND)), Err(Blocked::Pacing(Time(SECOND + 475 * MICROSECOND))));
}

/// Returns a sender with 20 segments of one packet in flight since time 0, and an RTT of 10 ms. Only
/// the congestion window limits the sender.
fn twenty_under_way(profile: Profile) -> Sender {
    let config = SenderConfig {
        congestion: CongestionControl::Reno,
        tso: false,
        small_queue_limit: None,
        initial_window: 20,
        handshake_rtt: 10 * MILLISECOND,
        ..SenderConfig::new(profile)
    };
    let mut sender = Sender::new(&config, 0, 0);
    sender.write(1000 * MSS);
    assert_eq!(send_all(&mut sender, Time::ZERO), 20);
    sender
}

/// Sends all packets that the window allows. Returns their number.
fn send_all(sender: &mut Sender, now: Time) -> u32 {
    let mut packets = 0;
    while let Ok(segment) = sender.next_segment(now) {
        packets += segment.packets();
        sender.freed(&segment);
    }
    packets
}

/// Creates an acknowledgement with sequences in packets.
fn ack(cumulative: u64, sack: &[(u64, u64)]) -> Ack {
    let mut ack = Ack { cumulative: cumulative * MSS, ..Ack::default() };
    for (slot, (start, end)) in ack.sack.iter_mut().zip(sack) {
        *slot = Block { start: start * MSS, end: end * MSS };
    }
    ack
}

#[test]
fn the_window_is_reduced_in_proportion() {
    for profile in PROFILES {
        let mut sender = twenty_under_way(profile);
        let mut now = Time(10 * MILLISECOND);
        let mut sent = 0;
        // Packet 0 is lost. The threshold is 10 of 20 packets, so PRR sends one packet per two
        // delivered packets.
        for packet in 2..=20 {
            now += MICROSECOND;
            sender.on_ack(now, &ack(0, &[(1, packet)]));
            sent += send_all(&mut sender, now);
        }
        // The sender sends two packets before it detects the loss. For the 17 packets delivered later,
        // PRR would send ceil(10 · 17 / 20) = 9 packets. The sender stops when 10 packets are in
        // flight, which is the threshold.
        assert_eq!(sender.slow_start_threshold(), 10, "{profile:?}");
        assert!((9..=10).contains(&sent), "{profile:?} {sent}");
        assert!(sender.in_flight() <= 10);
        // This acknowledgement covers all data up to the end of recovery, so the window becomes the
        // threshold.
        sender.on_ack(now + MICROSECOND, &ack(22, &[]));
        assert_eq!(sender.state(), State::Open);
        // 4.4 counts all 22 packets of this acknowledgement, and Reno grows the window by one packet
        // per 10 packets. 6.18 counts only the three newly delivered packets.
        let window = if profile == Profile::Linux4_4 { 12 } else { 10 };
        assert_eq!(sender.window_packets(), window, "{profile:?}");
        // From this point, the rate is 1.2 times the window per RTT.
        let expected = u64::from(window) * MSS * 120 / 100 * SECOND / sender.smoothed_rtt();
        assert!(sender.pacing_rate().abs_diff(expected) < expected / 1000, "{profile:?}");
    }
}

#[test]
fn below_the_threshold_what_was_not_sent_is_made_up_for() {
    // 15 packets are lost, 3 are SACKed and 2 are in flight. With a threshold of 10, the sender may
    // send 3 packets, but the host sends none. After one more delivered packet, 6.18 allows all 4
    // packets, and 4.4 allows one packet.
    for (profile, window) in [(Profile::Linux4_4, 1 + 1), (Profile::Linux6_18, 1 + 4)] {
        let mut sender = twenty_under_way(profile);
        let now = Time(20 * MILLISECOND);
        sender.on_ack(now, &ack(0, &[(15, 18)]));
        assert_eq!((sender.state(), sender.in_flight()), (State::Recovery, 2), "{profile:?}");
        assert_eq!(sender.window_packets(), 2 + 3, "{profile:?}");
        sender.on_ack(now, &ack(0, &[(15, 19)]));
        assert_eq!((sender.in_flight(), sender.window_packets()), (1, window), "{profile:?}");
    }
}

#[test]
fn the_order_of_blocks_is_no_reordering() {
    for profile in PROFILES {
        let mut sender = twenty_under_way(profile);
        sender.on_ack(Time(10 * MILLISECOND), &ack(0, &[(9, 10), (7, 8), (5, 6)]));
        assert_eq!(sender.state(), State::Recovery, "{profile:?}");
    }
}

#[test]
fn only_duplicates_of_what_was_retransmitted_undo() {
    for profile in PROFILES {
        for (duplicate, undone) in [((2, 3), 0), ((5, 6), 1)] {
            let mut sender = twenty_under_way(profile);
            let now = Time(10 * MILLISECOND);
            sender.on_ack(now, &ack(5, &[]));
            sender.on_ack(now, &ack(5, &[(6, 10)]));
            send_all(&mut sender, now);
            assert_eq!(sender.counters().retransmitted_packets, 1, "{profile:?}");
            let window = sender.window_packets();
            sender.on_ack(now, &ack(10, &[duplicate]));
            assert_eq!(sender.counters().undone, undone, "{profile:?}");
            assert_eq!(sender.window_packets() >= 20, undone == 1, "{profile:?} {window}");
        }
    }
}

#[test]
fn new_small_queues_let_one_more_go_and_twice_the_retransmissions() {
    // One packet exceeds the small queue limit of 2000 bytes.
    let config = |profile| SenderConfig {
        tso: false,
        small_queue_limit: Some(2000),
        handshake_rtt: 10 * MILLISECOND,
        ..SenderConfig::new(profile)
    };
    let mut old = Sender::new(&config(Profile::Linux4_4), 0, 0);
    old.write(u64::MAX / 2);
    assert!(old.next_segment(Time::ZERO).is_ok());
    assert_eq!(old.next_segment(Time::ZERO), Err(Blocked::SmallQueue));
    let mut new = Sender::new(&config(Profile::Linux6_18), 0, 0);
    new.write(u64::MAX / 2);
    assert!(new.next_segment(Time::ZERO).is_ok());
    assert!(new.next_segment(Time::ZERO).is_ok());
    assert_eq!(new.next_segment(Time::ZERO), Err(Blocked::SmallQueue));
    // The device frees one packet, and one packet remains below TCP. Small queues block new data, but
    // not a retransmission.
    assert!(new.freed(&Segment { payload: 1448, ..Segment::default() }));
    // Small queues also block a tail loss probe of new data.
    new.on_deadline(new.deadline());
    assert_eq!(new.next_segment(Time(SECOND)), Err(Blocked::SmallQueue));
    new.on_deadline(new.deadline());
    assert_eq!((new.state(), new.bytes_below()), (State::Loss, u64::from(truesize(1448))));
    assert!(new.next_segment(Time(SECOND)).is_ok_and(|segment| segment.retransmit));
}

#[test]
fn refused_segments_stay_in_the_queue() {
    for profile in PROFILES {
        let mut sender = Sender::new(&config(profile), 0, 0);
        sender.write(100 * MSS);
        let first = sender.next_segment(Time::ZERO).unwrap();
        let second = sender.next_segment(Time::ZERO).unwrap();
        sender.refused(Time::ZERO, &second);
        assert_eq!((sender.in_flight(), sender.state()), (first.packets(), State::Reduction));
        assert_eq!(sender.bytes_below(), u64::from(truesize(first.payload)));
        assert_eq!(sender.slow_start_threshold(), 7);
        // After the acknowledgement of the first segment, the sender sends the refused bytes again.
        let now = Time(100 * MICROSECOND);
        sender.on_ack(now, &Ack { cumulative: u64::from(first.payload), ..Ack::default() });
        // The acknowledgement covers no data above the end of the reduction, so the reduction continues. The
        // window is 5 packets, as many as were acknowledged; 6.18 adds one packet.
        let window = if profile == Profile::Linux4_4 { 5 } else { 6 };
        assert_eq!((sender.state(), sender.window_packets()), (State::Reduction, window), "{profile:?}");
        let again = sender.next_segment(now).unwrap();
        assert_eq!((again.sequence, again.retransmit), (second.sequence, false));
        assert!(sender.is_consistent());
        let end = again.sequence + u64::from(again.payload);
        sender.on_ack(Time(200 * MICROSECOND), &Ack { cumulative: end, ..Ack::default() });
        assert_eq!((sender.state(), sender.window_packets()), (State::Open, 7), "{profile:?}");
        // With no data in flight, a timer retries.
        let mut sender = Sender::new(&config(profile), 0, 0);
        sender.write(100);
        let only = sender.next_segment(Time::ZERO).unwrap();
        sender.refused(Time::ZERO, &only);
        let retry = sender.deadline();
        assert!(retry > Time(200 * MILLISECOND) && retry < Time(SECOND));
        sender.on_deadline(retry);
        assert_eq!(sender.next_segment(retry).unwrap().payload, 100);
        // The timer sends a single packet, because a segment of several packets may be larger than the
        // qdisc's limit.
        let mut sender = Sender::new(&config(profile), 0, 0);
        sender.write(100 * MSS);
        let large = sender.next_segment(Time::ZERO).unwrap();
        assert!(large.packets() > 1);
        sender.refused(Time::ZERO, &large);
        let retry = sender.deadline();
        sender.on_deadline(retry);
        assert_eq!(sender.next_segment(retry).unwrap().packets(), 1);
        assert!(sender.next_segment(retry).unwrap().packets() > 1);
    }
}

#[test]
fn the_receive_window_is_respected() {
    for profile in PROFILES {
        let config = SenderConfig { receive_window: 20_000, initial_window: 100, ..config(profile) };
        let mut sender = Sender::new(&config, 0, 0);
        sender.write(1_000_000);
        let mut sent = 0;
        let blocked = loop {
            match sender.next_segment(Time::ZERO) {
                Ok(segment) => sent += segment.payload,
                Err(blocked) => break blocked,
            }
        };
        assert_eq!(blocked, Blocked::Window);
        assert!(sent <= 20_000 && sent > 20_000 - 1448, "{sent}");
    }
}
