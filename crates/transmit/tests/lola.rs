//! Tests of TCP LoLa: transitions with values computed from the publication, and limits for any input.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use evenkeel_transmit::lola::{Ack, Flow, MAX_CWND, MIN_CWND, Phase, Settings, Window};
use evenkeel_transmit::raw;
use proptest::prelude::*;

const MS: u64 = 1000;
const MSS: u32 = 1000;

/// A flow whose ACKs arrive every 100 µs with a given RTT.
struct Sender {
    flow: Flow,
    settings: Settings,
    now_us: u64,
    window: Window,
    limited: bool,
}

impl Sender {
    fn new(cwnd: u32) -> Self {
        Self {
            flow: Flow::new(0),
            settings: Settings::default(),
            now_us: 0,
            window: Window { cwnd, ssthresh: u32::MAX },
            limited: true,
        }
    }

    /// Creates a sender in CUBIC increase whose curve starts at the window, with a base RTT of 10 ms.
    fn settled(cwnd: u32) -> Self {
        let mut sender = Self::new(cwnd);
        sender.window.ssthresh = cwnd;
        sender.acks(1, 10_000, 0);
        assert_eq!((sender.flow.phase(), sender.window.cwnd), (Phase::CubicIncrease, cwnd));
        sender
    }

    fn acks(&mut self, count: u32, rtt_us: u32, acked: u32) {
        for _ in 0..count {
            self.now_us += 100;
            self.flow.sample(&self.settings, rtt_us, self.now_us);
            let Window { cwnd, ssthresh } = self.window;
            let ack = Ack { now_us: self.now_us, acked, cwnd, ssthresh, mss: MSS, limited: self.limited };
            self.window = self.flow.grow(&self.settings, &ack);
        }
    }

    /// Receives ACKs without new data until the flow enters `phase`. Returns the time, µs.
    fn until(&mut self, phase: Phase, rtt_us: u32) -> u64 {
        let begin = self.now_us;
        while self.flow.phase() != phase {
            self.acks(1, rtt_us, 0);
            assert!(self.now_us - begin < 10_000 * MS, "{phase:?} is not entered: {:?}", self.flow);
        }
        self.now_us - begin
    }
}

#[test]
fn the_defaults_are_those_of_the_authors_module() {
    let expected = Settings {
        target_us: 5000,
        balance_us: 500,
        slow_start_us: 1000,
        hold_us: 250_000,
        window_us: 40_000,
        window_samples: 20,
        curve: 75,
        base_decreases: 10,
        gamma: 927,
        beta: 717,
        cubic: 41,
        loss_reaction: true,
    };
    assert_eq!(Settings::default(), expected);
    expected.check().unwrap();
    assert!(size_of::<raw::ek_lola>() <= 13 * 8, "icsk_ca_priv has 13 words");
}

#[test]
fn settings_out_of_range_are_refused() {
    let defaults = Settings::default();
    for (wrong, words) in [
        (Settings { target_us: 99, ..defaults }, "target is 99 us"),
        (Settings { hold_us: 0, ..defaults }, "hold is 0 us"),
        (Settings { curve: 10_001, ..defaults }, "curve is 10001, but must be between 1 and 10000"),
        (Settings { gamma: 1025, ..defaults }, "gamma is 1025"),
        (Settings { balance_us: 5000, ..defaults }, "balance is 5000 us, but must be below target"),
    ] {
        let error = wrong.check().unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn slow_start_doubles_the_window_until_the_queueing_delay_exceeds_its_end() {
    let mut sender = Sender::new(10);
    sender.acks(10, 10_000, 1);
    assert_eq!(sender.window.cwnd, 20);
    // The queueing delay is exactly 1 ms in two measurements, each of which takes one base RTT (10 ms).
    sender.acks(300, 11_000, 0);
    assert_eq!(
        (sender.flow.phase(), sender.window),
        (Phase::SlowStart, Window { cwnd: 20, ssthresh: u32::MAX })
    );
    // A queueing delay of 1.001 ms ends slow start. Above 0.5 ms, fair flow balancing follows
    // immediately.
    sender.acks(200, 11_001, 0);
    assert_eq!((sender.flow.phase(), sender.window), (Phase::Balance, Window { cwnd: 20, ssthresh: 20 }));
}

#[test]
fn slow_start_ends_at_ssthresh_and_a_flow_without_limit_does_not_grow() {
    let mut sender = Sender::new(10);
    sender.window.ssthresh = 15;
    sender.limited = false;
    sender.acks(10, 10_000, 1);
    assert_eq!((sender.window.cwnd, sender.flow.phase()), (10, Phase::SlowStart));
    sender.limited = true;
    sender.acks(5, 10_000, 1);
    assert_eq!((sender.window.cwnd, sender.flow.phase()), (15, Phase::CubicIncrease));
}

#[test]
fn cubic_increase_follows_the_curve() {
    // The curve starts at the window 1000, so K is 0. After 5 s, the window is the curve's value one base RTT
    // of 10 ms later: 1000 + 0.4004 * 5.01^3 = 1050.
    let mut sender = Sender::settled(1000);
    sender.acks(50_000, 10_000, 10);
    assert_eq!(sender.window.cwnd, 1050);
}

#[test]
fn balancing_keeps_the_data_of_the_curve_in_the_queue() {
    let mut sender = Sender::settled(1000);
    // Q = 0.5 ms is not above the start of fair flow balancing.
    sender.acks(1000, 10_500, 0);
    assert_eq!(sender.flow.phase(), Phase::CubicIncrease);
    // A measurement takes 40 ms, and another measurement may already have begun.
    let waited = sender.until(Phase::Balance, 11_000);
    assert!((40 * MS..=80 * MS + 200).contains(&waited), "{waited}");
    // With Q = 1 ms, the flow has 1000 / 11 = 90 packets in the queue. X(t) = (t / 75)^3 bytes exceeds
    // them by one packet after 75 ms * cube root of 91,000 = 3.373 s.
    sender.acks(33_600, 11_000, 0);
    assert_eq!(sender.window.cwnd, 1000);
    sender.acks(2_000, 11_000, 0);
    // At 3.56 s at the latest, X is 106,943 bytes. Each measurement of 51 ms adds 1 to 16 packets, and
    // there is time for 3 measurements.
    assert!((1001..=1000 + 3 * 16).contains(&sender.window.cwnd), "{}", sender.window.cwnd);
    assert_eq!(sender.flow.phase(), Phase::Balance);
}

#[test]
fn balancing_adds_the_difference_of_a_measurement_once() {
    let mut sender = Sender::settled(1000);
    sender.until(Phase::Balance, 11_000);
    sender.limited = false;
    sender.acks(40_000, 11_000, 0);
    sender.limited = true;
    let before = sender.window.cwnd;
    // The next measurement ends within 40 ms. From 4.0 to 4.04 s, X is 151,703 to 156,299 bytes, of
    // which the queue has 90 packets. The flow adds 61 to 66 packets. The following measurement starts
    // 11 ms later and takes 40 ms.
    sender.acks(401, 11_000, 0);
    let added = sender.window.cwnd - before;
    assert!((61..=66).contains(&added), "{added}");
    sender.acks(480 - 401, 11_000, 0);
    assert_eq!(sender.window.cwnd - before, added);
}

#[test]
fn balancing_ignores_an_empty_queue_in_one_measurement() {
    let mut sender = Sender::settled(1000);
    sender.until(Phase::Balance, 11_000);
    // After 3 s, X(t) is 64,000 bytes, which is less than the 90 packets in the queue.
    sender.acks(30_000, 11_000, 0);
    sender.acks(20, 10_000, 0);
    sender.acks(800, 11_000, 0);
    assert_eq!((sender.window.cwnd, sender.flow.phase()), (1000, Phase::Balance));
}

#[test]
fn balancing_returns_to_cubic_increase_when_the_queue_empties() {
    let mut sender = Sender::settled(1000);
    sender.until(Phase::Balance, 11_000);
    sender.acks(1000, 10_250, 0);
    assert_eq!(sender.flow.phase(), Phase::Balance);
    sender.acks(1000, 10_249, 0);
    assert_eq!(sender.flow.phase(), Phase::CubicIncrease);
}

#[test]
fn the_hold_ends_with_a_tailored_decrease() {
    let mut sender = Sender::settled(1000);
    sender.until(Phase::Hold, 15_001);
    let held = sender.now_us;
    sender.acks(2499, 16_000, 10);
    assert_eq!((sender.window.cwnd, sender.flow.phase()), (1000, Phase::Hold));
    sender.acks(1, 16_000, 10);
    assert_eq!(sender.now_us - held, 250 * MS);
    // 1000 * 10 / 16 = 625; 625 * 927 / 1024 = 565.8.
    assert_eq!(sender.window, Window { cwnd: 565, ssthresh: 565 });
    assert_eq!((sender.flow.phase(), sender.flow.decreases()), (Phase::CubicIncrease, 1));
    assert_eq!(sender.flow.rtt_us(), None);
    // K is the cube root of (1000 - 565) / 0.4004 = 10.28 s. At this time the curve reaches the
    // previous window.
    sender.acks(102_600, 10_000, 10);
    assert!((998..=1000).contains(&sender.window.cwnd), "{}", sender.window.cwnd);
}

#[test]
fn the_base_rtt_is_measured_again_after_ten_decreases_without_it() {
    let mut sender = Sender::settled(1000);
    for decrease in 1..=10 {
        assert_eq!(sender.flow.base_rtt_us(), Some(10_000), "decrease {decrease}");
        sender.until(Phase::Hold, 30_000);
        sender.until(Phase::CubicIncrease, 30_000);
        assert_eq!(sender.flow.decreases(), decrease);
    }
    assert_eq!(sender.flow.base_rtt_us(), None);
    sender.acks(10_000, 30_000, 0);
    assert_eq!((sender.flow.base_rtt_us(), sender.flow.phase()), (Some(30_000), Phase::CubicIncrease));
    // An RTT close to the base RTT restarts the count of decreases.
    let mut sender = Sender::settled(1000);
    for _ in 1..=30 {
        sender.until(Phase::Hold, 30_000);
        sender.until(Phase::CubicIncrease, 30_000);
        sender.acks(1000, 10_500, 0);
        assert_eq!(sender.flow.base_rtt_us(), Some(10_000));
    }
}

#[test]
fn a_loss_reduces_the_window_as_cubic_does() {
    let mut sender = Sender::settled(1000);
    sender.until(Phase::Hold, 16_000);
    let settings = sender.settings;
    // The window is 1000 * 717 / 1024 = 700.2. K is the cube root of (1000 - 700) / 0.4004 = 9.08 s.
    sender.window.ssthresh = sender.flow.lose(&settings, 1000, sender.now_us);
    assert_eq!((sender.window.ssthresh, sender.flow.phase()), (700, Phase::CubicIncrease));
    sender.window.cwnd = 700;
    sender.acks(90_600, 10_000, 10);
    assert!((998..=1000).contains(&sender.window.cwnd), "{}", sender.window.cwnd);
    // Fast convergence: the second loss is below the previous maximum, so the new maximum is 700 *
    // (1024 + 717) / 2048 = 595.
    let mut sender = Sender::settled(1000);
    let cwnd = sender.flow.lose(&settings, 1000, sender.now_us);
    sender.window = Window { cwnd, ssthresh: sender.flow.lose(&settings, cwnd, sender.now_us) };
    assert_eq!((cwnd, sender.window.ssthresh), (700, 490));
    sender.window.cwnd = 490;
    // K is the cube root of (595 - 490) / 0.4004 = 6.40 s.
    sender.acks(63_800, 10_000, 10);
    assert!((593..=595).contains(&sender.window.cwnd), "{}", sender.window.cwnd);
    assert_eq!(sender.flow.losses(), 2);
}

/// If the kernel skips the program for ssthresh or for the undo of a loss, it uses an undefined value as the
/// window.
#[test]
fn an_increase_by_another_program_is_undone() {
    let mut sender = Sender::settled(1000);
    sender.window.cwnd = 0x8110_4110;
    sender.acks(1, 10_000, 0);
    assert_eq!(sender.window.cwnd, 1000);
    let settings = sender.settings;
    // An undo restores the window before the loss.
    sender.window.ssthresh = sender.flow.lose(&settings, 0x8110_4110, sender.now_us);
    assert_eq!(sender.window.ssthresh, 700);
    sender.window.cwnd = 700;
    sender.acks(1, 10_000, 0);
    sender.window.cwnd = 1000;
    sender.acks(1, 10_000, 0);
    assert_eq!(sender.window.cwnd, 1000);
}

#[test]
fn without_loss_reaction_a_loss_changes_nothing() {
    let mut sender = Sender::settled(1000);
    sender.settings.loss_reaction = false;
    sender.until(Phase::Hold, 16_000);
    let settings = sender.settings;
    assert_eq!(sender.flow.lose(&settings, 1000, sender.now_us), 1000);
    assert_eq!((sender.flow.phase(), sender.flow.losses()), (Phase::Hold, 1));
}

#[test]
fn a_pause_is_no_time_on_the_curve() {
    let settings = Settings::default();
    let mut sender = Sender::settled(1000);
    sender.now_us += 100_000 * MS;
    sender.flow.idle_restart(&settings, sender.now_us);
    sender.acks(100, 10_000, 1000);
    assert_eq!(sender.window.cwnd, 1000, "0.4 * 100^3 more without the restart");
    // A gap as long as a measurement is not a pause yet.
    sender.until(Phase::Balance, 11_000);
    sender.now_us += 40 * MS;
    sender.flow.idle_restart(&settings, sender.now_us);
    assert_eq!(sender.flow.phase(), Phase::Balance);
    sender.now_us += 41 * MS;
    sender.flow.idle_restart(&settings, sender.now_us);
    assert_eq!((sender.flow.phase(), sender.flow.rtt_us()), (Phase::CubicIncrease, None));
}

fn cube_root(value: u64) -> u32 {
    // SAFETY: takes and returns integers.
    unsafe { raw::ek_shim_lola_cube_root(value) }
}

/// Generates times up to 100 years in microseconds, and any larger values up to the limit of the type.
fn clock() -> impl Strategy<Value = u64> {
    let century: u64 = 100 * 366 * 24 * 3600 * 1_000_000;
    prop_oneof![0..=century, Just(century), Just(u64::MAX), any::<u64>(), 0..100_000_u64]
}

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), 0..4_u32, 0..100_000_u32, Just(u32::MAX)]
}

fn any_settings() -> impl Strategy<Value = Settings> {
    (proptest::array::uniform11(number()), any::<bool>()).prop_map(|(v, loss_reaction)| Settings {
        target_us: v[0],
        balance_us: v[1],
        slow_start_us: v[2],
        hold_us: v[3],
        window_us: v[4],
        window_samples: v[5],
        curve: v[6],
        base_decreases: v[7],
        gamma: v[8],
        beta: v[9],
        cubic: v[10],
        loss_reaction,
    })
}

#[derive(Clone, Debug)]
enum Event {
    Ack { rtt_us: u32, ack: Ack },
    Loss { cwnd: u32, now_us: u64 },
    Idle { now_us: u64 },
}

fn event() -> impl Strategy<Value = Event> {
    let ack = (number(), clock(), number(), number(), number(), number(), any::<bool>()).prop_map(
        |(rtt_us, now_us, acked, cwnd, ssthresh, mss, limited)| Event::Ack {
            rtt_us,
            ack: Ack { now_us, acked, cwnd, ssthresh, mss, limited },
        },
    );
    prop_oneof![
        8 => ack,
        1 => (number(), clock()).prop_map(|(cwnd, now_us)| Event::Loss { cwnd, now_us }),
        1 => clock().prop_map(|now_us| Event::Idle { now_us }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_cube_root_is_exact(value in prop_oneof![any::<u64>(), 0..10_000_u64, Just(u64::MAX)]) {
        let root = u128::from(cube_root(value));
        prop_assert!(root.pow(3) <= u128::from(value) && u128::from(value) < (root + 1).pow(3), "{}", root);
    }

    /// Tests the window for any settings, samples and clock, including a clock that goes backwards. A
    /// division by zero would end the process.
    #[test]
    fn the_window_is_bounded_for_any_input(
        start in clock(),
        settings in any_settings(),
        events in proptest::collection::vec(event(), 1..60),
    ) {
        let mut flow = Flow::new(start);
        // The window after the last step, and the window at the last loss.
        let (mut last, mut lost): (Option<u32>, u32) = (None, 0);
        for event in events {
            match event {
                Event::Ack { rtt_us, mut ack } => {
                    flow.sample(&settings, rtt_us, ack.now_us);
                    let window = flow.grow(&settings, &ack);
                    ack.cwnd = last.map_or(ack.cwnd, |last| ack.cwnd.min(last.max(lost)));
                    last = Some(window.cwnd);
                    prop_assert!((MIN_CWND..=MAX_CWND).contains(&window.cwnd), "{:?} {:?}", ack, window);
                    // After an ACK, the window is at most twice the previous window plus the acknowledged
                    // packets.
                    let most = u64::from(ack.cwnd.max(1)) * 2 + u64::from(ack.acked);
                    prop_assert!(u64::from(window.cwnd) <= most, "{:?} {:?}", ack, window);
                }
                Event::Loss { cwnd, now_us } => {
                    let ssthresh = flow.lose(&settings, cwnd, now_us);
                    lost = last.map_or(cwnd, |last| cwnd.min(last.max(lost))).clamp(MIN_CWND, MAX_CWND);
                    prop_assert!((MIN_CWND..=cwnd.clamp(MIN_CWND, MAX_CWND)).contains(&ssthresh));
                }
                Event::Idle { now_us } => flow.idle_restart(&settings, now_us),
            }
        }
    }

    /// A flow must behave the same after a century of uptime as after boot.
    #[test]
    fn uptime_changes_nothing(
        cwnd in 2..100_000_u32,
        rtts in proptest::collection::vec(100..50_000_u32, 1..100),
        years in 1..=100_u64,
    ) {
        let start = 1 + years * 365 * 24 * 3600 * 1_000_000;
        let windows = |start: u64| {
            let mut sender = Sender::new(cwnd);
            sender.flow = Flow::new(start);
            sender.now_us = start;
            rtts.iter().map(|rtt| { sender.acks(50, *rtt, 2); sender.window }).collect::<Vec<_>>()
        };
        prop_assert_eq!(windows(1), windows(start));
    }
}
