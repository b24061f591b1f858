//! Tests of each mode of BBR. The acknowledgements are those of a path with 1 packet per microsecond
//! and an RTT of 100 µs.

use super::*;

const MSS: u32 = 1448;
const RTT: Span = 100 * MICROSECOND;

struct Path {
    bbr: Bbr,
    window: u32,
    threshold: u32,
    pacing_rate: u64,
    now: Time,
    delivered: u64,
    ignored: bool,
}

impl Path {
    fn new(kernel: BbrKernel) -> Self {
        let mut bbr = Bbr::new(kernel, 1);
        bbr.handshake(RTT);
        let pacing_rate = bbr.initial_pacing_rate(10, RTT, MSS);
        Self {
            bbr,
            window: 10,
            threshold: u32::MAX,
            pacing_rate,
            now: Time(MILLISECOND),
            delivered: 0,
            ignored: false,
        }
    }

    /// Advances the time by a round trip, and acknowledges `packets` that were delivered in an interval
    /// of one RTT.
    fn round(&mut self, packets: u32, change: impl FnOnce(&mut Acknowledged)) {
        self.now += RTT;
        let sample = RateSample {
            delivered: packets,
            interval: RTT,
            prior_delivered: self.delivered,
            is_app_limited: self.ignored,
        };
        self.delivered += u64::from(packets);
        let mut ack = Acknowledged {
            now: self.now,
            rate: Some(sample),
            rtt: Some(RTT),
            delivered: packets,
            delivered_ever: self.delivered,
            lost: 0,
            in_flight_before: packets,
            in_flight: packets,
            state: State::Open,
            departure: self.now,
            smoothed_rtt: RTT,
            mss: MSS,
        };
        change(&mut ack);
        let mut controls = Controls {
            window: &mut self.window,
            threshold: &mut self.threshold,
            pacing_rate: &mut self.pacing_rate,
        };
        self.ignored = self.bbr.on_ack(&ack, &mut controls);
    }

    /// Returns a flow that probes for bandwidth at 100 packets per round trip.
    fn full(kernel: BbrKernel) -> Self {
        let mut path = Self::new(kernel);
        for _ in 0..5 {
            path.round(100, |_| {});
        }
        assert_eq!(path.bbr.mode, Mode::ProbeBandwidth);
        path
    }

    fn pace(&self) -> f64 {
        self.pacing_rate as f64 / f64::from(MSS) * RTT as f64 / SECOND as f64
    }
}

fn assert_near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 0.02, "{found} instead of {expected}");
}

#[test]
fn startup_paces_at_2_885_times_the_bandwidth_while_it_grows() {
    let mut path = Path::new(BbrKernel::Linux6_18);
    assert_near(path.pace(), 10.0 * 2.885 * 0.99);
    for packets in [20, 40, 80, 160] {
        path.round(packets, |_| {});
        assert_eq!(path.bbr.mode, Mode::Startup);
        assert_near(path.pace(), f64::from(packets) * 2.885 * 0.99);
    }
}

/// The drain paces at 1/2.885 of the bandwidth until the packets in flight are down to its target.
#[test]
fn drain_follows_three_rounds_without_growth() {
    let mut path = Path::new(BbrKernel::Linux6_18);
    for round in 0..4 {
        assert_eq!(path.bbr.mode, Mode::Startup, "{round}");
        path.round(100, |ack| ack.in_flight = 280);
    }
    assert_eq!(path.bbr.mode, Mode::Drain);
    assert_near(path.pace(), 100.0 / 2.885 * 0.99);
    // The target is a BDP of 100 packets plus three segments. A segment has its maximum of 45 packets,
    // because 1/1024 s at the pacing rate is more than 64 KiB.
    path.round(100, |ack| ack.in_flight = 240);
    assert_eq!(path.bbr.mode, Mode::Drain);
    path.round(100, |ack| ack.in_flight = 190);
    assert_eq!(path.bbr.mode, Mode::ProbeBandwidth);
}

#[test]
fn samples_that_the_application_limits_are_ignored() {
    let mut path = Path::new(BbrKernel::Linux6_18);
    path.round(100, |_| {});
    let limit = |ack: &mut Acknowledged| {
        if let Some(sample) = &mut ack.rate {
            sample.is_app_limited = true;
        }
    };
    let bandwidth = path.bbr.bandwidth();
    for _ in 0..5 {
        path.round(10, limit);
    }
    assert_eq!((path.bbr.mode, path.bbr.bandwidth()), (Mode::Startup, bandwidth));
    path.round(200, limit);
    assert!(path.bbr.bandwidth() > bandwidth, "a higher sample counts");
}

#[test]
fn a_cycle_probes_drains_and_cruises() {
    let mut path = Path::full(BbrKernel::Linux6_18);
    while path.bbr.phase != 0 {
        path.round(100, |_| {});
    }
    assert_near(path.pace(), 125.0 * 0.99);
    assert_eq!(path.bbr.window_gain(), 2 * UNIT);
    // The phase with gain 5/4 lasts until its target is in flight: 125 packets, three TSO segments, and two
    // packets (bbr_quantization_budget).
    for _ in 0..3 {
        path.round(100, |ack| ack.in_flight_before = 150);
        assert_eq!(path.bbr.phase, 0);
    }
    path.round(100, |ack| ack.in_flight_before = 300);
    assert_eq!(path.bbr.phase, 1);
    assert_near(path.pace(), 75.0 * 0.99);
    // The phase with gain 3/4 lasts at most a round trip.
    path.round(100, |ack| ack.in_flight_before = 300);
    assert_eq!(path.bbr.phase, 1);
    path.round(100, |ack| ack.in_flight_before = 300);
    let mut phases = vec![path.bbr.phase];
    for _ in 0..12 {
        path.round(100, |ack| ack.in_flight_before = 300);
        assert_near(path.pace(), if path.bbr.phase == 0 { 125.0 } else { 100.0 } * 0.99);
        phases.push(path.bbr.phase);
    }
    phases.dedup();
    assert_eq!(phases, [2, 3, 4, 5, 6, 7, 0]);
}

#[test]
fn a_loss_ends_the_probe_for_bandwidth() {
    let mut path = Path::full(BbrKernel::Linux6_18);
    while path.bbr.phase != 0 {
        path.round(100, |_| {});
    }
    path.round(100, |ack| (ack.in_flight_before, ack.lost) = (10, 0));
    path.round(100, |ack| (ack.in_flight_before, ack.lost) = (10, 1));
    assert_eq!(path.bbr.phase, 1);
}

/// Tests the kernel change "tcp_bbr: fix bw probing to raise in-flight data for very small BDPs". With a
/// BDP of half a packet, a gain of 5/4 adds no packet. Since the change, BBR adds two packets.
#[test]
fn probing_raises_the_packets_in_flight_only_since_the_fix() {
    for (kernel, more) in [(BbrKernel::Linux4_15, 0), (BbrKernel::Linux6_18, 2)] {
        let mut bbr = Bbr::new(kernel, 1);
        bbr.handshake(RTT);
        bbr.mode = Mode::ProbeBandwidth;
        let target = |bbr: &Bbr| bbr.target(bandwidth(1, 2 * RTT), bbr.pacing_gain(), 10_000_000, MSS);
        bbr.phase = 2;
        let usual = target(&bbr);
        bbr.phase = 0;
        assert_eq!(target(&bbr), usual + more, "{kernel:?}");
    }
}

/// After 10 s without a smaller RTT, the window is 4 packets for 200 ms and a round trip. Then BBR
/// restores the window.
#[test]
fn the_minimum_rtt_is_measured_again_after_ten_seconds() {
    let mut path = Path::full(BbrKernel::Linux6_18);
    path.round(100, |_| {});
    let since = path.now;
    let queued = |ack: &mut Acknowledged| ack.rtt = Some(3 * RTT);
    while path.bbr.mode != Mode::ProbeRtt {
        path.round(100, queued);
        assert!(path.now.since(since) < 11 * SECOND);
    }
    assert!(path.now.since(since) > 10 * SECOND);
    assert_eq!((path.window, path.ignored), (4, true));
    assert_eq!(path.bbr.minimum_rtt, 3 * RTT, "the old one has expired");
    path.round(4, |ack| (ack.in_flight, ack.rtt) = (4, Some(2 * RTT)));
    let began = path.now;
    while path.bbr.mode == Mode::ProbeRtt {
        assert_eq!(path.window, 4);
        path.round(4, |ack| ack.in_flight = 4);
    }
    let lasted = path.now.since(began);
    assert!((200 * MILLISECOND..201 * MILLISECOND).contains(&lasted), "{lasted}");
    assert_eq!((path.bbr.mode, path.bbr.minimum_rtt), (Mode::ProbeBandwidth, RTT));
    // The window is two BDPs and three segments, as before the probe.
    assert!((200..350).contains(&path.window), "{}", path.window);
}

/// A recovery conserves packets for a round trip. Then BBR restores the previous window.
#[test]
fn losses_do_not_reduce_the_rate() {
    let mut path = Path::full(BbrKernel::Linux6_18);
    let (window, pacing_rate) = (path.window, path.pacing_rate);
    path.bbr.begin_recovery(path.window);
    let recover =
        |ack: &mut Acknowledged| (ack.state, ack.in_flight, ack.delivered) = (State::Recovery, 60, 10);
    // This acknowledgement does not end a round, because its packets were sent before the round.
    path.round(100, |ack| {
        recover(ack);
        ack.lost = 30;
        if let Some(sample) = &mut ack.rate {
            sample.prior_delivered = 0;
        }
    });
    assert_eq!(path.window, 70);
    path.round(100, |_| {});
    assert!(path.window >= window, "{} after {window}", path.window);
    assert!(path.pacing_rate >= pacing_rate * 3 / 4 / 5 * 4);
}

#[test]
fn a_timeout_starts_the_search_for_the_bandwidth_again() {
    let mut path = Path::new(BbrKernel::Linux6_18);
    path.round(100, |_| {});
    path.bbr.on_timeout();
    assert_eq!((path.bbr.full_bandwidth, path.bbr.prior_state), (0, State::Loss));
}

/// Linux 4.15 stores the pacing rate in 32 bits, which limits it to 34.4 Gbit/s.
#[test]
fn the_old_pacing_rate_has_a_limit() {
    let rate = |kernel| {
        let mut path = Path::new(kernel);
        path.round(10_000, |_| {});
        path.pacing_rate
    };
    assert_eq!(rate(BbrKernel::Linux4_15), u64::from(u32::MAX));
    assert!(rate(BbrKernel::Linux6_18) > 10 * u64::from(u32::MAX));
}

/// Since Linux 5.1, acknowledgements that arrive together raise the window.
#[test]
fn aggregated_acknowledgements_raise_the_window() {
    let window = |kernel, together: u32| {
        let mut path = Path::full(kernel);
        for _ in 0..8 {
            path.round(100, |ack| ack.delivered = together);
        }
        path.window
    };
    assert!(window(BbrKernel::Linux6_18, 180) > window(BbrKernel::Linux6_18, 100));
    assert_eq!(window(BbrKernel::Linux4_15, 180), window(BbrKernel::Linux4_15, 100));
}

/// BBR expires the largest bandwidth eleven rounds after its last sample.
#[test]
fn the_bandwidth_is_the_largest_of_ten_rounds() {
    let mut path = Path::full(BbrKernel::Linux6_18);
    let before = path.bbr.bandwidth();
    for _ in 0..10 {
        path.round(50, |_| {});
        assert_eq!(path.bbr.bandwidth(), before);
    }
    path.round(50, |_| {});
    assert_eq!(path.bbr.bandwidth(), before / 2);
}
