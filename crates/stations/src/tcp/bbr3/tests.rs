//! Tests of each mode of BBR version 3. The acknowledgements are those of a path with 1 packet per
//! microsecond and an RTT of 1 ms.

use proptest::prelude::*;

use super::bounds::{LOSS_CUT, LOSS_THRESHOLD, share};
use super::*;
use crate::tcp::delivery_rate::RateSample;

const MSS: u32 = 1448;
const RTT: Span = MILLISECOND;

struct Path {
    bbr: Bbr3,
    window: u32,
    threshold: u32,
    pacing_rate: u64,
    now: Time,
    rtt: Span,
    delivered: u64,
    ignored: bool,
}

impl Path {
    fn new(rtt: Span) -> Self {
        Self::with_seed(rtt, 1)
    }

    fn with_seed(rtt: Span, seed: u32) -> Self {
        let mut bbr = Bbr3::new(10, seed);
        bbr.handshake(rtt);
        let pacing_rate = bbr.initial_pacing_rate(10, rtt, MSS);
        let now = Time(MILLISECOND);
        Self { bbr, window: 10, threshold: u32::MAX, pacing_rate, now, rtt, delivered: 0, ignored: false }
    }

    fn controls(&mut self) -> (&mut Bbr3, Controls<'_>) {
        let Self { bbr, window, threshold, pacing_rate, .. } = self;
        (bbr, Controls { window, threshold, pacing_rate })
    }

    /// Acknowledges `packets` that were delivered in an interval of one RTT. If `begins` is set, a
    /// round begins.
    fn acknowledge(
        &mut self,
        packets: u32,
        begins: bool,
        change: impl FnOnce(&mut Acknowledged, &mut FlightSample),
    ) {
        let is_app_limited = self.ignored;
        let rate = RateSample {
            delivered: packets,
            interval: self.rtt,
            prior_delivered: if begins { self.delivered } else { 0 },
            is_app_limited,
        };
        self.delivered += u64::from(packets);
        let mut ack = Acknowledged {
            now: self.now,
            rate: Some(rate),
            rtt: Some(self.rtt),
            delivered: packets,
            delivered_ever: self.delivered,
            lost: 0,
            in_flight_before: packets,
            in_flight: packets,
            state: State::Open,
            departure: self.now,
            smoothed_rtt: self.rtt,
            mss: MSS,
        };
        let flight = Flight { is_app_limited, ..Flight::default() };
        let mut sample = FlightSample { flight, is_window_limited: false };
        change(&mut ack, &mut sample);
        let (bbr, mut controls) = self.controls();
        self.ignored = bbr.control(&ack, &sample, &mut controls);
    }

    fn round(&mut self, packets: u32, change: impl FnOnce(&mut Acknowledged, &mut FlightSample)) {
        self.now += self.rtt;
        self.acknowledge(packets, true, change);
    }

    /// Reports the loss of one packet. It is the last of `lost` lost packets of the flight.
    fn lose(&mut self, packets: u32, lost: u32) {
        let flight = Some(Flight { packets, lost, is_app_limited: false });
        let loss = Loss { now: self.now, packets: 1, flight, delivered_ever: self.delivered, mss: MSS };
        let (bbr, mut controls) = self.controls();
        bbr.on_loss(&loss, &mut controls);
    }

    /// Returns a flow in its first mode down, after the startup, with 1000 packets per round trip.
    fn full(rtt: Span) -> Self {
        Self::new(rtt).filled()
    }

    fn filled(mut self) -> Self {
        for _ in 0..4 {
            self.round(1000, |ack, _| ack.in_flight_before = 1100);
        }
        assert_eq!(self.bbr.mode, Mode::Down);
        self
    }

    fn until(&mut self, mode: Mode) {
        for _ in 0..200 {
            if self.bbr.mode != mode {
                self.round(1000, |_, _| {});
            }
        }
        assert_eq!(self.bbr.mode, mode);
    }

    fn pace(&self) -> f64 {
        self.pacing_rate as f64 / f64::from(MSS) * self.rtt as f64 / SECOND as f64
    }
}

fn assert_near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 0.02, "{found} instead of {expected}");
}

#[test]
fn startup_paces_at_2_77_times_the_bandwidth_while_it_grows() {
    let mut path = Path::new(RTT);
    assert_near(path.pace(), 10.0 * 2.77 * 0.99);
    for packets in [20, 40, 80, 160] {
        path.round(packets, |_, _| {});
        assert_eq!((path.bbr.mode, path.bbr.window_gain()), (Mode::Startup, 2 * UNIT));
        assert_near(path.pace(), f64::from(packets) * 2.77 * 0.99);
    }
}

#[test]
fn a_plateau_ends_the_startup_and_the_queue_is_drained() {
    let mut path = Path::new(RTT);
    for round in 0..4 {
        assert_eq!(path.bbr.mode, Mode::Startup, "{round}");
        path.round(1000, |ack, _| ack.in_flight = 2000);
    }
    assert_eq!((path.bbr.mode, path.threshold), (Mode::Drain, 1000));
    assert_near(path.pace(), 1000.0 / 2.885 * 0.99);
    path.round(1000, |ack, _| ack.in_flight = 1001);
    assert_eq!(path.bbr.mode, Mode::Drain);
    path.round(1000, |ack, _| (ack.in_flight_before, ack.in_flight) = (1001, 1000));
    assert_eq!((path.bbr.mode, path.bbr.bounds.in_flight_high), (Mode::Down, UNBOUNDED));
    assert_near(path.pace(), 910.0 * 0.99);
}

/// The startup ends although the bandwidth grows, after six acknowledgements with losses in a round of
/// recovery and a loss rate above 2 % of the flight.
#[test]
fn losses_end_the_startup() {
    let startup = |losses: u32, percent: u32| {
        let mut path = Path::new(RTT);
        path.round(500, |_, _| {});
        let lose = |ack: &mut Acknowledged, sample: &mut FlightSample| {
            (ack.lost, ack.state, ack.in_flight) = (1, State::Recovery, 2000);
            sample.flight = Flight { packets: 1000, lost: 10 * percent, is_app_limited: false };
        };
        for _ in 1..losses {
            path.acknowledge(1, false, lose);
        }
        path.round(1000, lose);
        path
    };
    for (losses, percent) in [(5, 3), (6, 1)] {
        assert_eq!(startup(losses, percent).bbr.mode, Mode::Startup, "{losses} losses, {percent} %");
    }
    let path = startup(6, 3);
    assert_eq!((path.bbr.mode, path.bbr.bounds.in_flight_high), (Mode::Drain, 1000));
}

/// With an RTT of 1 ms, the number of rounds decides when the next probe starts. The BDP is 1000 packets, so
/// the limit of 63 rounds applies.
#[test]
fn a_cycle_goes_down_cruises_refills_and_goes_up() {
    let mut path = Path::full(RTT);
    let mut phases: Vec<(Mode, u32)> = Vec::new();
    for _ in 0..150 {
        let gain = match path.bbr.mode {
            Mode::Up => 1.25,
            Mode::Down => 0.91,
            _ => 1.0,
        };
        assert_near(path.pace(), 1000.0 * gain * 0.99);
        match phases.last_mut() {
            Some((mode, rounds)) if *mode == path.bbr.mode => *rounds += 1,
            _ => phases.push((path.bbr.mode, 1)),
        }
        path.round(1000, |_, _| {});
    }
    let modes: Vec<Mode> = phases.iter().map(|(mode, _)| *mode).collect();
    let cycle = [Mode::Down, Mode::Cruise, Mode::Refill, Mode::Up];
    assert_eq!(modes[..8], [cycle, cycle].concat());
    for (mode, rounds) in &phases[..8] {
        let expected = match mode {
            Mode::Cruise => 61..=62,
            // The mode up ends after three rounds without growth.
            Mode::Up => 3..=3,
            _ => 1..=1,
        };
        assert!(expected.contains(rounds), "{mode:?}: {rounds}");
    }
}

/// With a long RTT, the clock decides when the next probe starts.
#[test]
fn a_probe_starts_two_to_three_seconds_after_the_last_one() {
    let mut waits = Vec::new();
    for seed in 0..8 {
        let mut path = Path::with_seed(100 * MILLISECOND, seed).filled();
        let began = path.now;
        path.until(Mode::Refill);
        let waited = path.now.since(began);
        assert!((2 * SECOND..=3 * SECOND + path.rtt).contains(&waited), "{waited}");
        waits.push(waited);
    }
    waits.dedup();
    assert!(waits.len() > 1, "{waits:?}");
}

#[test]
fn more_bandwidth_is_found() {
    let mut path = Path::full(RTT);
    path.until(Mode::Up);
    assert_eq!(path.bbr.window_gain(), 2 * UNIT + UNIT / 4);
    for packets in [1250, 1563, 1954] {
        path.round(packets, |_, _| {});
        assert_eq!(path.bbr.mode, Mode::Up);
        assert_near(path.pace(), f64::from(packets) * 1.25 * 0.99);
    }
}

#[test]
fn the_bandwidth_is_the_largest_of_two_cycles() {
    let mut path = Path::full(RTT);
    path.until(Mode::Cruise);
    let mut cycles = 0;
    let full = path.bbr.bandwidth();
    while path.bbr.bandwidth() == full {
        let before = path.bbr.mode;
        path.round(500, |_, _| {});
        cycles += u32::from(before == Mode::Up && path.bbr.mode == Mode::Down);
        assert!(cycles <= 2);
    }
    assert_eq!((cycles, path.bbr.bandwidth()), (2, full / 2));
}

/// A loss rate above 2 % lowers the long-term bound. The bound becomes the flight at which losses
/// reached 2 %, but at least 70 % of the BDP.
#[test]
fn losses_above_two_percent_bound_the_packets_in_flight() {
    let mut path = Path::full(RTT);
    path.until(Mode::Up);
    path.lose(500, 5);
    assert_eq!((path.bbr.mode, path.bbr.bounds.in_flight_high), (Mode::Up, UNBOUNDED), "1 %");
    path.lose(500, 10);
    // The target is the BDP plus two packets while probing.
    let reduced = share(1002, LOSS_CUT);
    assert!((700..710).contains(&reduced));
    assert_eq!((path.bbr.mode, path.bbr.bounds.in_flight_high), (Mode::Down, reduced), "2 %");
    // A probe lowers the bound only once.
    path.lose(300, 100);
    assert_eq!(path.bbr.bounds.in_flight_high, reduced);

    let mut path = Path::full(RTT);
    path.until(Mode::Up);
    path.lose(1500, 60);
    assert_eq!(path.bbr.bounds.in_flight_high, 1499);
}

#[test]
fn only_a_probe_lowers_the_long_term_bound() {
    let mut path = Path::full(RTT);
    path.until(Mode::Cruise);
    path.lose(500, 100);
    assert_eq!((path.bbr.mode, path.bbr.bounds.in_flight_high), (Mode::Cruise, UNBOUNDED));
}

/// Cruising leaves 15 % of the bound to other flows. The next probe stops at the bound, and the
/// following probe raises it.
#[test]
fn the_bound_has_headroom_and_is_raised_again() {
    let mut path = Path::full(RTT);
    path.until(Mode::Up);
    path.lose(500, 10);
    let high = path.bbr.bounds.in_flight_high;
    path.round(700, |ack, _| ack.in_flight_before = high);
    assert_eq!((path.bbr.mode, path.window), (Mode::Down, high), "more than the headroom is in flight");
    path.round(700, |ack, _| ack.in_flight_before = 500);
    assert_eq!((path.bbr.mode, path.window), (Mode::Cruise, high - share(high, UNIT * 15 / 100)));

    path.until(Mode::Up);
    path.round(700, |ack, _| ack.in_flight_before = high);
    assert_eq!((path.bbr.mode, path.bbr.stopped_at_bound), (Mode::Down, true));
    path.round(700, |_, _| {});
    assert_eq!(path.bbr.mode, Mode::Refill);
    path.until(Mode::Up);
    let mut bounds = Vec::new();
    for _ in 0..5 {
        let tenth = |ack: &mut Acknowledged, sample: &mut FlightSample| {
            (ack.delivered, sample.is_window_limited) = (70, true);
        };
        path.round(700, tenth);
        for _ in 1..10 {
            path.acknowledge(700, false, tenth);
        }
        assert_eq!(path.bbr.mode, Mode::Up);
        bounds.push(path.bbr.bounds.in_flight_high - high);
    }
    // The growth almost doubles in each round.
    assert!(bounds.is_sorted() && bounds[4] - bounds[3] > 2 * (bounds[2] - bounds[1]), "{bounds:?}");
}

/// Losses while cruising reduce rate and window to 70 % until the next probe, but not below the
/// delivered rate and number of packets.
#[test]
fn losses_bound_the_rate_until_the_next_probe() {
    let mut path = Path::full(RTT);
    path.until(Mode::Cruise);
    path.round(1000, |ack, _| ack.lost = 1);
    assert_near(path.pace(), 1000.0 * 0.99);
    path.round(600, |_, _| {});
    let window = path.window;
    path.round(600, |ack, _| ack.lost = 1);
    assert_near(path.pace(), 703.0 * 0.99);
    assert!(path.window <= share(window, LOSS_CUT) + 1, "{} after {window}", path.window);
    path.round(600, |ack, _| ack.lost = 1);
    assert_near(path.pace(), 600.0 * 0.99);
    while path.bbr.mode == Mode::Cruise {
        path.round(600, |_, _| {});
    }
    assert_eq!(path.bbr.mode, Mode::Refill);
    assert_near(path.pace(), 1000.0 * 0.99);
}

/// After 5 s without a smaller RTT, half of the BDP is in flight for 200 ms and a round trip. BBR
/// expires the previous minimum RTT after 10 s.
#[test]
fn the_minimum_rtt_is_measured_again_every_five_seconds() {
    let path = Path::new(RTT);
    let since = path.now + RTT;
    let mut path = path.filled();
    let queued = |ack: &mut Acknowledged, _: &mut FlightSample| ack.rtt = Some(3 * RTT);
    for (probe, half, expected) in [(1, 500, RTT), (2, 1000, 2 * RTT)] {
        while path.bbr.mode != Mode::ProbeRtt {
            path.round(1000, queued);
            assert!(path.now.since(since) < probe * 5300 * MILLISECOND);
        }
        assert!(path.now.since(since) > probe * 5 * SECOND);
        assert_eq!((path.window, path.ignored), (half, true));
        path.round(500, |ack, _| ack.rtt = Some(2 * RTT));
        let began = path.now;
        while path.bbr.mode == Mode::ProbeRtt {
            assert_eq!(path.window, path.bbr.probe_rtt_window());
            path.round(500, queued);
        }
        let lasted = path.now.since(began);
        assert!((200 * MILLISECOND..203 * MILLISECOND).contains(&lasted), "{lasted}");
        assert_eq!(path.bbr.mode, Mode::Cruise);
        assert_eq!(path.bbr.minimum_rtt, expected, "{probe}");
        assert!(path.window >= 1000, "{}", path.window);
    }
}

/// A timeout bounds the window by its previous value. At the end of the timeout's recovery, BBR
/// restores the window.
#[test]
fn the_window_is_restored_after_a_timeout() {
    let mut path = Path::full(RTT);
    path.until(Mode::Cruise);
    let window = path.window;
    path.bbr.begin_recovery(window);
    path.window = 1;
    path.bbr.time_out(1);
    assert_eq!(path.bbr.bounds.in_flight_low, window);
    path.round(10, |ack, _| ack.state = State::Loss);
    assert_eq!(path.window, 11);
    path.round(10, |_, _| {});
    assert!(path.window >= window, "{} after {window}", path.window);
}

#[test]
fn samples_that_the_application_limits_are_ignored() {
    let mut path = Path::new(RTT);
    path.round(1000, |_, _| {});
    let bandwidth = path.bbr.bandwidth();
    for _ in 0..5 {
        path.ignored = true;
        path.round(10, |_, _| {});
    }
    assert_eq!((path.bbr.mode, path.bbr.bandwidth()), (Mode::Startup, bandwidth));
}

#[test]
fn the_flight_at_the_threshold_is_between_the_packets() {
    // The last 100 of 1000 packets were lost. Up to packet 900, no packet was lost.
    let flight = Flight { packets: 1000, lost: 100, is_app_limited: false };
    let found = flight_at_threshold(&flight, 100);
    assert!((918..=919).contains(&found), "{found}");
    assert_eq!(found - 900, share(found, LOSS_THRESHOLD) + 1);
    assert_eq!(flight_at_threshold(&Flight { packets: 10, ..flight }, 20), UNBOUNDED);
}

#[derive(Clone, Debug)]
struct AnyStep {
    pause: u64,
    delivered: u32,
    interval: Option<u64>,
    prior: u64,
    is_app_limited: bool,
    rtt: Option<u64>,
    lost: u32,
    in_flight: (u32, u32),
    flight: (u32, u32),
    is_window_limited: bool,
    state: State,
    event: u8,
}

fn any_step() -> impl Strategy<Value = AnyStep> {
    let span = || prop_oneof![Just(1_u64), 0..=SECOND, any::<u64>()];
    let packets = || prop_oneof![0..=100_u32, any::<u32>()];
    let states = prop::sample::select(vec![
        State::Open,
        State::Disorder,
        State::Reduction,
        State::Recovery,
        State::Loss,
    ]);
    (
        (span(), packets(), prop::option::weighted(0.9, span()), any::<u64>(), any::<bool>()),
        (prop::option::of(span()), packets(), (packets(), packets()), (packets(), packets())),
        (any::<bool>(), states, 0..12_u8),
    )
        .prop_map(|(first, second, third)| AnyStep {
            pause: first.0,
            delivered: first.1,
            interval: first.2,
            prior: first.3,
            is_app_limited: first.4,
            rtt: second.0,
            lost: second.1,
            in_flight: second.2,
            flight: second.3,
            is_window_limited: third.0,
            state: third.1,
            event: third.2,
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any sequence of acknowledgements, window and pacing rate are above 0, and no sum overflows.
    #[test]
    fn the_flow_goes_on_after_any_acknowledgements(
        steps in prop::collection::vec(any_step(), 1..120),
        rtt in prop_oneof![Just(Span::MAX), 0..=SECOND],
        mss in prop_oneof![Just(MSS), 1..=65_535_u32],
        seed in any::<u32>(),
    ) {
        let mut bbr = Bbr3::new(10, seed);
        bbr.handshake(rtt);
        let (mut window, mut threshold) = (10, u32::MAX);
        let mut pacing_rate = bbr.initial_pacing_rate(10, if rtt == Span::MAX { 0 } else { rtt }, mss);
        let (mut now, mut delivered_ever) = (Time::ZERO, 0_u64);
        for step in steps {
            now += step.pause;
            delivered_ever = delivered_ever.saturating_add(u64::from(step.delivered));
            let rate = step.interval.map(|interval| RateSample {
                delivered: step.delivered,
                interval: interval.max(1),
                prior_delivered: step.prior % delivered_ever.saturating_add(1).max(1),
                is_app_limited: step.is_app_limited,
            });
            let flight =
                Flight { packets: step.flight.0, lost: step.flight.1, is_app_limited: step.is_app_limited };
            let mut controls =
                Controls { window: &mut window, threshold: &mut threshold, pacing_rate: &mut pacing_rate };
            match step.event {
                0 => bbr.on_restart(now, mss, &mut controls),
                1 => bbr.begin_recovery(*controls.window),
                2 => bbr.time_out(*controls.window),
                3 => bbr.undo(controls.window),
                4..8 => {
                    let loss =
                        Loss { now, packets: step.lost, flight: Some(flight), delivered_ever, mss };
                    bbr.on_loss(&loss, &mut controls);
                }
                _ => {}
            }
            let ack = Acknowledged {
                now,
                rate,
                rtt: step.rtt,
                delivered: step.delivered,
                delivered_ever,
                lost: step.lost,
                in_flight_before: step.in_flight.0,
                in_flight: step.in_flight.1,
                state: step.state,
                departure: now + step.pause,
                smoothed_rtt: step.rtt.unwrap_or(0),
                mss,
            };
            let sample = FlightSample { flight, is_window_limited: step.is_window_limited };
            bbr.control(&ack, &sample, &mut controls);
            prop_assert!(window >= LEAST_WINDOW, "window {window}");
            prop_assert!(pacing_rate > 0);
            prop_assert!(bbr.bandwidth() <= bbr.largest_bandwidth());
            let is_bounded = matches!(bbr.mode, Mode::Startup | Mode::Drain)
                || window <= bbr.bounds.in_flight_high.max(LEAST_WINDOW);
            prop_assert!(is_bounded, "{window} above {:?}", bbr.bounds);
        }
    }
}
