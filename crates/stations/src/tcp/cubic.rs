//! CUBIC (RFC 9438) with HyStart, in the kernel's integer arithmetic (net/ipv4/tcp_cubic.c).

use super::{JIFFY, Profile};
use crate::time::{MICROSECOND, MILLISECOND, SECOND, Span, Time};

/// Multiplicative decrease in 1024ths: β = 0.7 (RFC 9438, section 4.6).
const BETA: u32 = 717;
const BETA_SCALE: u32 = 1024;
/// C = 0.4 (RFC 9438, section 5) in 1024ths.
const C_1024: u64 = 410;
/// CUBIC's unit of time is 2^-10 s, so a cubed time has a scale of 2^30. Multiplied by C, the scale is
/// 2^40.
const CUBE_SHIFT: u32 = 40;
/// The Reno-friendly window grows by a packet per 15/8 times the window in acknowledged packets. The factor,
/// in eighths, is approximately 1/α with α = 3 (1 − β) / (1 + β) (RFC 9438, section 4.3).
const FRIENDLY_EIGHTHS: u32 = 8 * (BETA_SCALE + BETA) / 3 / (BETA_SCALE - BETA);
/// While the window does not change, CUBIC keeps `count` for this number of jiffies (`HZ / 32`).
const RECOMPUTE_JIFFIES: u64 = SECOND / JIFFY / 32;
/// Largest `count` while W_max is 0: the window grows by at least 1/20 per round trip.
const UNPROBED_COUNT: u32 = 20;
/// Smallest `count`: the window grows by at most half per round trip.
const LEAST_COUNT: u32 = 2;
/// Time after the start of an epoch during which CUBIC ignores delay samples.
const DELAY_HOLD_OFF: Span = SECOND;

/// Smallest window in which HyStart is active, packets (`hystart_low_window`).
const HYSTART_LOW_WINDOW: u32 = 16;
/// Number of samples in a round before HyStart checks the delay (`HYSTART_MIN_SAMPLES`).
const HYSTART_SAMPLES: u8 = 8;
/// Largest distance between ACKs of a train (`hystart_ack_delta_us`).
const HYSTART_SPACING: Span = 2 * MILLISECOND;
/// Smallest increase of delay that ends slow start (`HYSTART_DELAY_MIN`).
const HYSTART_DELAY_LEAST: Span = 4 * MILLISECOND;
/// Largest increase of delay that HyStart tolerates (`HYSTART_DELAY_MAX`).
const HYSTART_DELAY_MOST: Span = 16 * MILLISECOND;
/// Upper limit of the allowance for aggregation in the train's threshold (`hystart_ack_delay`).
const HYSTART_AGGREGATION_MOST: Span = MILLISECOND;

#[derive(Clone, Copy, Debug)]
struct Units {
    tick: Span,
    delay: Span,
}

impl Units {
    const LINUX_4_4: Self = Self { tick: MILLISECOND, delay: MILLISECOND / 8 };
    const LINUX_6_18: Self = Self { tick: MICROSECOND, delay: MICROSECOND };
}

/// HyStart's inputs when an acknowledgement arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct DelaySample {
    pub now: Time,
    pub window: u32,
    /// First unacknowledged byte.
    pub unacknowledged: u64,
    /// First byte not yet sent.
    pub next: u64,
    /// Pacing rate, bytes a second.
    pub pacing_rate: u64,
    pub paced: bool,
    pub gso_max_bytes: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Cubic {
    profile: Profile,
    /// Acknowledged packets per packet of growth.
    count: u32,
    /// W_max: window before the last reduction, or less with fast convergence. 0 before the first
    /// reduction and after a timeout.
    last_max: u32,
    /// Window when `count` was computed.
    last_window: u32,
    /// Plateau of the cubic function, packets.
    origin: u32,
    /// Window that Reno would have, packets.
    friendly_window: u32,
    /// Packets acknowledged towards the next packet of `friendly_window`.
    acknowledged: u32,
    /// Jiffy in which `count` was computed.
    last_jiffy: u64,
    /// Time from the epoch's start to the plateau, 2^-10 s.
    k: u64,
    /// Start of the epoch; `Time::NEVER` outside of an epoch.
    epoch: Time,
    /// Smallest delay, in the profile's unit; 0 before the first sample.
    delay_least: u64,
    /// Smallest delay of the round, in the profile's unit.
    round_delay: u64,
    /// Start of the round, in the profile's ticks.
    round_start: u64,
    /// Time of the last ACK of the train, in the profile's ticks.
    last_ack: u64,
    /// The byte whose acknowledgement ends the round.
    round_end: u64,
    samples: u8,
    /// HyStart has ended slow start.
    found: bool,
}

impl Cubic {
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            count: 0,
            last_max: 0,
            last_window: 0,
            origin: 0,
            friendly_window: 0,
            acknowledged: 0,
            last_jiffy: 0,
            k: 0,
            epoch: Time::NEVER,
            delay_least: 0,
            round_delay: u64::MAX,
            round_start: 0,
            last_ack: 0,
            round_end: 0,
            samples: 0,
            found: false,
        }
    }

    fn units(&self) -> Units {
        match self.profile {
            Profile::Linux4_4 => Units::LINUX_4_4,
            Profile::Linux6_18 => Units::LINUX_6_18,
        }
    }

    /// Resets the state after a timeout (`bictcp_state`).
    pub fn reset(&mut self, now: Time, next: u64) {
        *self = Self::new(self.profile);
        self.start_round(now.0 / self.units().tick, next);
    }

    /// Shifts the start of the epoch by the idle time, so that the window does not grow for it (RFC 9438,
    /// section 4.2, last paragraph; `bictcp_cwnd_event`).
    pub fn resume(&mut self, now: Time, idle: Span) {
        if self.epoch != Time::NEVER {
            self.epoch = (self.epoch + idle).min(now);
        }
    }

    /// Handles congestion: ends the epoch and sets W_max, with fast convergence (RFC 9438, section 4.7).
    /// Returns the slow-start threshold, packets (`bictcp_recalc_ssthresh`).
    pub fn reduced(&mut self, window: u32) -> u32 {
        self.epoch = Time::NEVER;
        self.last_max =
            if window < self.last_max { scaled(window, BETA_SCALE + BETA, 2 * BETA_SCALE) } else { window };
        scaled(window, BETA, BETA_SCALE).max(2)
    }

    /// Handles `acknowledged` packets in congestion avoidance. Returns the number of acknowledged packets
    /// per packet of growth (`bictcp_update`).
    pub fn update(&mut self, now: Time, window: u32, acknowledged: u32) -> u32 {
        self.acknowledged += acknowledged;
        let jiffy = now.0 / JIFFY;
        if self.last_window == window && jiffy - self.last_jiffy <= RECOMPUTE_JIFFIES {
            return self.count;
        }
        if self.epoch == Time::NEVER || jiffy != self.last_jiffy {
            self.last_window = window;
            self.last_jiffy = jiffy;
            self.follow_curve(now, window, acknowledged);
        }
        self.keep_up_with_reno(window);
        self.count = self.count.max(LEAST_COUNT);
        self.count
    }

    fn follow_curve(&mut self, now: Time, window: u32, acknowledged: u32) {
        if self.epoch == Time::NEVER {
            self.epoch = now;
            self.acknowledged = acknowledged;
            self.friendly_window = window;
            if self.last_max <= window {
                self.k = 0;
                self.origin = window;
            } else {
                self.k = cube_root((1 << CUBE_SHIFT) / C_1024 * u64::from(self.last_max - window));
                self.origin = self.last_max;
            }
        }
        // The target is the window one RTT from now (RFC 9438, section 4.2).
        let ahead = self.delay_least * self.units().delay;
        let target = self.target(now.since(self.epoch) + ahead);
        self.count = if target > window { window / (target - window) } else { window.saturating_mul(100) };
        if self.last_max == 0 {
            self.count = self.count.min(UNPROBED_COUNT);
        }
    }

    /// Returns W_cubic(t) = C (t − K)³ + W_max, packets (RFC 9438, figure 1), `elapsed` after the epoch's
    /// start.
    fn target(&self, elapsed: Span) -> u32 {
        // 2^-10 s are 976,562,500 ps exactly.
        let time = elapsed / (SECOND / 1024);
        // The limit of 2^17 units (128 s) prevents an overflow of the product. Other limits bound the
        // window long before this time.
        let distance = time.abs_diff(self.k).min(1 << 17);
        let delta = (C_1024 * distance * distance * distance) >> CUBE_SHIFT;
        let delta = u32::try_from(delta).unwrap_or(u32::MAX);
        if time < self.k { self.origin.saturating_sub(delta) } else { self.origin.saturating_add(delta) }
    }

    /// Follows the window that Reno would have, if Reno's window is larger (RFC 9438, section 4.3).
    fn keep_up_with_reno(&mut self, window: u32) {
        let each = window.saturating_mul(FRIENDLY_EIGHTHS) >> 3;
        while self.acknowledged > each {
            self.acknowledged -= each;
            self.friendly_window += 1;
        }
        if self.friendly_window > window {
            self.count = self.count.min(window / (self.friendly_window - window));
        }
    }

    /// Handles an RTT sample of a packet (`bictcp_acked`). Returns the delay, in the profile's unit, if
    /// HyStart must check it ([`Self::ends_slow_start`]).
    #[inline]
    pub fn note_delay(&mut self, now: Time, rtt: Span, slow_start: bool) -> Option<u64> {
        if self.epoch != Time::NEVER && now.since(self.epoch) < DELAY_HOLD_OFF {
            return None;
        }
        // Each divisor is a constant, so the compiler emits no division instruction.
        let delay = match self.profile {
            Profile::Linux4_4 => rtt / Units::LINUX_4_4.delay,
            Profile::Linux6_18 => rtt / Units::LINUX_6_18.delay,
        };
        let delay = delay.max(1);
        if self.delay_least == 0 || delay < self.delay_least {
            self.delay_least = delay;
        }
        (slow_start && !self.found).then_some(delay)
    }

    /// Returns whether slow start must end: the train of ACKs is long, or the delay grew (`hystart_update`).
    pub fn ends_slow_start(&mut self, delay: u64, sample: &DelaySample) -> bool {
        let units = self.units();
        let tick = sample.now.0 / units.tick;
        if self.profile == Profile::Linux6_18 && sample.unacknowledged > self.round_end {
            self.start_round(tick, sample.next);
        }
        if sample.window < HYSTART_LOW_WINDOW {
            return false;
        }
        self.found = self.train_is_long(tick, sample) | self.delay_grew(delay);
        self.found
    }

    /// Handles window growth in slow start. Linux 4.4 begins a round of HyStart here (`bictcp_cong_avoid`).
    /// In 6.18, the delay check begins the round. In 4.4, a round continues while the window does not limit
    /// the flow, and its ACK train soon exceeds the length that ends slow start.
    pub fn grows_in_slow_start(&mut self, now: Time, unacknowledged: u64, next: u64) {
        if self.profile == Profile::Linux4_4 && unacknowledged > self.round_end {
            self.start_round(now.0 / self.units().tick, next);
        }
    }

    fn start_round(&mut self, tick: u64, next: u64) {
        self.round_start = tick;
        self.last_ack = tick;
        self.round_end = next;
        self.round_delay = u64::MAX;
        self.samples = 0;
    }

    /// Returns whether the train of closely spaced ACKs is longer than a threshold. The window then fills
    /// the path. The threshold is half of the smallest delay. Linux 6.18 first adds [`aggregation`], and does
    /// not halve the sum for a paced flow.
    fn train_is_long(&mut self, tick: u64, sample: &DelaySample) -> bool {
        let units = self.units();
        if tick - self.last_ack > HYSTART_SPACING / units.tick {
            return false;
        }
        self.last_ack = tick;
        let threshold = match self.profile {
            // Linux 4.4 counts whole milliseconds. With an RTT below 2 ms the threshold is 0, and the
            // next millisecond ends slow start. Linux 5.6 fixed this.
            Profile::Linux4_4 => self.delay_least * units.delay / units.tick / 2,
            Profile::Linux6_18 => {
                let microseconds = self.delay_least + aggregation(sample) / units.tick;
                if sample.paced { microseconds } else { microseconds / 2 }
            }
        };
        tick - self.round_start > threshold
    }

    /// Returns whether the smallest delay of the round exceeds the smallest delay of the flow by more than
    /// an eighth (4 to 16 ms). Returns false for the first 8 samples of a round.
    fn delay_grew(&mut self, delay: u64) -> bool {
        let unit = self.units().delay;
        let judged = self.samples >= HYSTART_SAMPLES;
        // In Linux 6.18, later samples may lower the delay of the round. Linux 4.4 only uses the first 8
        // samples.
        if !judged || self.profile == Profile::Linux6_18 {
            self.round_delay = self.round_delay.min(delay);
        }
        if !judged {
            self.samples += 1;
            return false;
        }
        let margin = (self.delay_least / 8).clamp(HYSTART_DELAY_LEAST / unit, HYSTART_DELAY_MOST / unit);
        self.round_delay > self.delay_least + margin
    }
}

/// Returns the delay that aggregation of packets may add: four of the largest segments at the pacing
/// rate, at most 1 ms.
fn aggregation(sample: &DelaySample) -> Span {
    let bytes = u64::from(sample.gso_max_bytes) * 4;
    (bytes * SECOND / sample.pacing_rate.max(1)).min(HYSTART_AGGREGATION_MOST)
}

fn scaled(value: u32, numerator: u32, denominator: u32) -> u32 {
    (u64::from(value) * u64::from(numerator) / u64::from(denominator)) as u32
}

/// Returns the largest integer whose cube is at most `value`. The function computes the root digit by
/// digit, so the result is the same on every machine.
fn cube_root(value: u64) -> u64 {
    let mut rest = value;
    let mut root = 0_u64;
    for shift in (0..=63).rev().step_by(3) {
        root *= 2;
        let next = 3 * root * (root + 1) + 1;
        if rest >> shift >= next {
            rest -= next << shift;
            root += 1;
        }
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cube_roots() {
        for (value, root) in [(0, 0), (1, 1), (7, 1), (8, 2), (26, 2), (27, 3), (u64::MAX, 2_642_245)] {
            assert_eq!(cube_root(value), root, "{value}");
        }
    }

    #[test]
    fn the_curve_is_that_of_the_rfc() {
        // W_max = 1000, β = 0.7, C = 0.4: K = cbrt(300 / 0.4) = 9.0856 s.
        let mut cubic = Cubic::new(Profile::Linux6_18);
        assert_eq!(cubic.reduced(1000), 700);
        cubic.update(Time(SECOND), 700, 1);
        assert!(cubic.k.abs_diff((9.0856 * 1024.0) as u64) <= 8, "{}", cubic.k);
        // Expected values: 0.4 · (t − 9.0856)³ + 1000.
        for (seconds, packets) in
            [(0, 700_u32), (1, 789), (3, 910), (5, 973), (9, 1000), (12, 1010), (15, 1083), (20, 1520)]
        {
            let target = cubic.target(seconds * SECOND);
            assert!(target.abs_diff(packets) <= 2, "{target} after {seconds} s instead of {packets}");
        }
    }

    /// Returns the window after `seconds` of congestion avoidance with ACKs spread evenly over each RTT.
    fn grown(start: u32, max: u32, rtt: Span, seconds: u64) -> u32 {
        let mut cubic = Cubic::new(Profile::Linux6_18);
        cubic.last_max = max;
        let (mut window, mut credit, mut now) = (start, 0, SECOND);
        while now < (seconds + 1) * SECOND {
            let in_flight = window;
            for _ in 0..in_flight {
                now += rtt / u64::from(in_flight);
                let count = cubic.update(Time(now), window, 1);
                credit += 1;
                if credit >= count {
                    credit = 0;
                    window += 1;
                }
            }
        }
        window
    }

    #[test]
    fn windows_follow_the_curve() {
        for (seconds, packets) in [(3, 910_u32), (5, 973), (9, 1000), (12, 1010), (15, 1083)] {
            let window = grown(700, 1000, 100 * MILLISECOND, seconds);
            // The window follows its target with a delay of up to one RTT, which is 4 packets at t = 3 s.
            assert!(window.abs_diff(packets) <= 12, "{window} after {seconds} s instead of {packets}");
        }
    }

    #[test]
    fn with_a_short_rtt_it_grows_as_reno_would() {
        // α = 8/15 packets per round trip, for 1000 round trips of 1 ms. The cubic curve alone would
        // reach 100 only after K = cbrt(30 / 0.4) = 4.2 s.
        let window = f64::from(grown(70, 100, MILLISECOND, 1));
        assert!((window - (70.0 + 1000.0 * 8.0 / 15.0)).abs() < 25.0, "{window}");
    }

    #[test]
    fn before_any_loss_it_grows_by_a_twentieth_at_least_and_by_half_at_most() {
        let mut cubic = Cubic::new(Profile::Linux6_18);
        assert_eq!(cubic.update(Time(SECOND), 1000, 1), UNPROBED_COUNT);
        // After 100 s the curve is far above 1000.
        assert_eq!(cubic.update(Time(101 * SECOND), 1000, 1), LEAST_COUNT);
    }

    #[test]
    fn fast_convergence_releases_room() {
        let mut cubic = Cubic::new(Profile::Linux4_4);
        assert_eq!(cubic.reduced(100), 70);
        assert_eq!(cubic.last_max, 100);
        assert_eq!(cubic.reduced(80), 56);
        // 80 · (1 + 0.7) / 2 = 68.
        assert_eq!(cubic.last_max, 68);
        assert_eq!(cubic.reduced(1), 2);
    }

    impl Cubic {
        fn on_delay(&mut self, (rtt, sample): &(Span, DelaySample)) -> bool {
            let delay = self.note_delay(sample.now, *rtt, true);
            delay.is_some_and(|delay| self.ends_slow_start(delay, sample))
        }
    }

    fn sample(now: Span, rtt: Span, unacknowledged: u64, next: u64) -> (Span, DelaySample) {
        let sample = DelaySample {
            now: Time(now),
            window: 100,
            unacknowledged,
            next,
            pacing_rate: 1_000_000_000_000,
            paced: false,
            gso_max_bytes: 65_536,
        };
        (rtt, sample)
    }

    #[test]
    fn growing_delay_ends_slow_start() {
        let mut cubic = Cubic::new(Profile::Linux6_18);
        // ACKs 10 ms apart form no train. The smallest delay is 40 ms, and the margin 5 ms.
        assert!(!cubic.on_delay(&sample(10 * MILLISECOND, 40 * MILLISECOND, 1, 100)));
        let mut found = false;
        for index in 0..9 {
            found = cubic.on_delay(&sample(
                (100 + 10 * index) * MILLISECOND,
                46 * MILLISECOND,
                101 + index,
                1000,
            ));
            assert_eq!(found, index == 8, "{index}");
        }
        assert!(found);
        assert!(!cubic.on_delay(&sample(400 * MILLISECOND, 90 * MILLISECOND, 101, 1000)));
    }

    #[test]
    fn a_delay_within_the_margin_does_not() {
        let mut cubic = Cubic::new(Profile::Linux6_18);
        assert!(!cubic.on_delay(&sample(10 * MILLISECOND, 40 * MILLISECOND, 1, 100)));
        for index in 0..50 {
            let at = (100 + 10 * index) * MILLISECOND;
            assert!(!cubic.on_delay(&sample(at, 44 * MILLISECOND, 101 + index, 1000)));
        }
    }

    #[test]
    fn a_train_of_half_the_delay_ends_slow_start() {
        let mut cubic = Cubic::new(Profile::Linux6_18);
        assert!(!cubic.on_delay(&sample(0, 40 * MILLISECOND, 1, 1000)));
        for index in 1..=20 {
            assert!(!cubic.on_delay(&sample(index * MILLISECOND, 40 * MILLISECOND, 2, 1000)), "{index}");
        }
        assert!(cubic.on_delay(&sample(21 * MILLISECOND, 40 * MILLISECOND, 2, 1000)));
    }

    #[test]
    fn the_old_clock_ends_slow_start_at_the_next_millisecond() {
        for (profile, ends) in [(Profile::Linux4_4, true), (Profile::Linux6_18, false)] {
            let mut cubic = Cubic::new(profile);
            let at = 900 * MICROSECOND;
            assert!(!cubic.on_delay(&sample(at, 300 * MICROSECOND, 1, 1000)));
            assert!(!cubic.on_delay(&sample(at + 50 * MICROSECOND, 300 * MICROSECOND, 2, 1000)));
            assert_eq!(cubic.on_delay(&sample(at + 110 * MICROSECOND, 300 * MICROSECOND, 3, 1000)), ends);
        }
    }

    #[test]
    fn an_old_round_goes_on_while_something_else_limits_the_flow() {
        for grows in [true, false] {
            let mut cubic = Cubic::new(Profile::Linux4_4);
            cubic.grows_in_slow_start(Time(9_900 * MICROSECOND), 1, 1000);
            assert!(!cubic.on_delay(&sample(9_950 * MICROSECOND, 300 * MICROSECOND, 2, 1000)));
            // The ACK passes the round's end, in the next millisecond.
            if grows {
                cubic.grows_in_slow_start(Time(10_010 * MICROSECOND), 1001, 2000);
            }
            let found = cubic.on_delay(&sample(10_050 * MICROSECOND, 300 * MICROSECOND, 1002, 2000));
            assert_eq!(found, !grows);
        }
    }

    #[test]
    fn idle_time_does_not_count() {
        let mut cubic = Cubic::new(Profile::Linux6_18);
        cubic.reduced(1000);
        cubic.update(Time(SECOND), 700, 1);
        cubic.resume(Time(9 * SECOND), 7 * SECOND);
        assert_eq!(cubic.epoch, Time(8 * SECOND));
        cubic.resume(Time(9 * SECOND), 7 * SECOND);
        assert_eq!(cubic.epoch, Time(9 * SECOND));
    }
}
