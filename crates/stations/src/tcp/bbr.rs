//! BBR version 1 (net/ipv4/tcp_bbr.c; Cardwell, Cheng, Gunn, Yeganeh, Jacobson: *BBR: Congestion-Based
//! Congestion Control*, ACM Queue 2016).
//!
//! The window and the pacing rate follow a model of the path: the largest delivery rate of the last 10
//! round trips, and the smallest round-trip time of the last 10 s. Losses do not reduce the rate.
//!
//! | mode | pacing gain | window gain | until |
//! |---|---|---|---|
//! | startup | 2.885 | 2.885 | the bandwidth grew by less than a quarter in three rounds |
//! | drain | 1/2.885 | 2.885 | at most the target is in flight: a BDP and the budget for offloads |
//! | probe bandwidth | 5/4, 3/4, six times 1 | 2 | the minimum RTT is 10 s old |
//! | probe RTT | 1 | 4 packets | 200 ms and a round trip have passed |
//!
//! Not modelled: the detection of policers (`bbr_lt_bw_sampling`), which needs a loss of 20 % of all
//! packets, and the rule for samples of delayed acknowledgements (`is_ack_delayed`).

pub(super) mod ack_aggregation;
pub(super) mod path_model;

use ack_aggregation::{AGGREGATION_ROUNDS, AckAggregation};
use path_model::{
    FULL_GROWTH, FULL_ROUNDS, LARGEST_SEGMENT, LEAST_WINDOW, PACING_MARGIN_PERCENT, UNIT, bandwidth,
    delivered_in, product, random, rate,
};

#[cfg(test)]
use super::delivery_rate::RateSample;
use super::rate_control::{Acknowledged, Controls, FlightSample, RateControl};
use super::sender::State;
#[cfg(test)]
use crate::time::MICROSECOND;
use crate::time::{MILLISECOND, SECOND, Span, Time};

/// Gain of 2/ln 2, with which the rate doubles per round trip (`bbr_high_gain`).
const HIGH_GAIN: u32 = UNIT * 2885 / 1000 + 1;
/// Gain that drains the queue of the startup in one round trip (`bbr_drain_gain`).
const DRAIN_GAIN: u32 = UNIT * 1000 / 2885;
/// Window gain that allows for delayed acknowledgements (`bbr_cwnd_gain`).
const WINDOW_GAIN: u32 = UNIT * 2;
/// Pacing gains of the phases of a cycle (`bbr_pacing_gain`).
const CYCLE: [u32; 8] = [UNIT * 5 / 4, UNIT * 3 / 4, UNIT, UNIT, UNIT, UNIT, UNIT, UNIT];
/// Number of phases in which a cycle can start: all except the phase with gain 3/4 (`bbr_cycle_rand`).
const CYCLE_STARTS: u64 = 7;
/// Rounds of the filter for the largest bandwidth (`bbr_bw_rtts`), plus the present round.
const BANDWIDTH_ROUNDS: usize = 11;
/// Age at which BBR measures the minimum RTT again (`bbr_min_rtt_win_sec`).
const MINIMUM_RTT_AGE: Span = 10 * SECOND;
/// Shortest time with few packets in flight (`bbr_probe_rtt_mode_ms`).
const PROBE_RTT_TIME: Span = 200 * MILLISECOND;
/// Window before the model has an RTT (`TCP_INIT_CWND`).
const INITIAL_WINDOW: u32 = 10;
/// Pacing rate below which a segment is one packet (`bbr_min_tso_rate`), bytes/s.
const LEAST_TSO_RATE: u64 = 1_200_000 / 8;
/// The kernel whose BBR is modelled.
///
/// | | [`Self::Linux4_15`] | [`Self::Linux6_18`] |
/// |---|---|---|
/// | target in flight in the phase with gain 5/4 ("fix bw probing to raise in-flight data for very small BDPs", 4.19) | the target of the other phases | two packets more |
/// | packets in flight that end a phase or drain | packets in flight before (phase) or after (drain) the acknowledgement | packets in flight at the next departure (4.20) |
/// | pacing | at the bandwidth; at most 2^32 − 1 bytes/s (`sk_pacing_rate` was of type `u32` before 4.20) | at 99 % of the bandwidth |
/// | allowance for aggregated acknowledgements (5.1) | none | up to 100 ms |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BbrKernel {
    Linux4_15,
    Linux6_18,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Startup,
    Drain,
    ProbeBandwidth,
    ProbeRtt,
}

#[derive(Clone, Debug)]
pub(super) struct Bbr {
    kernel: BbrKernel,
    mode: Mode,
    /// Recent rounds with their largest bandwidths, as (round number, bandwidth). A round without
    /// samples expires no entry.
    bandwidths: [(u64, u64); BANDWIDTH_ROUNDS],
    round: u64,
    /// Number of delivered packets at the start of the round. The round ends with the delivery of a
    /// packet that was sent after the start (`next_rtt_delivered`).
    round_end: u64,
    round_started: bool,
    minimum_rtt: Span,
    minimum_rtt_at: Time,
    /// When the probe of the RTT may end (`probe_rtt_done_stamp`); `Time::NEVER` until few packets are in
    /// flight.
    probe_end: Time,
    probe_round_done: bool,
    /// The window to restore after a loss or a probe (`prior_cwnd`).
    prior_window: u32,
    prior_state: State,
    /// Whether the first round of recovery is under way, in which BBR sends as many packets as are
    /// delivered.
    conserves_packets: bool,
    restarts: bool,
    seen_rtt: bool,
    full_bandwidth: u64,
    full_rounds: u8,
    is_full: bool,
    phase: usize,
    phase_start: Time,
    aggregation: AckAggregation,
    random: u64,
}

impl Bbr {
    pub fn new(kernel: BbrKernel, seed: u32) -> Self {
        Self {
            kernel,
            mode: Mode::Startup,
            bandwidths: [(0, 0); BANDWIDTH_ROUNDS],
            round: 0,
            round_end: 0,
            round_started: false,
            minimum_rtt: Span::MAX,
            minimum_rtt_at: Time::NEVER,
            probe_end: Time::NEVER,
            probe_round_done: false,
            prior_window: 0,
            prior_state: State::Open,
            conserves_packets: false,
            restarts: false,
            seen_rtt: false,
            full_bandwidth: 0,
            full_rounds: 0,
            is_full: false,
            phase: 0,
            phase_start: Time::ZERO,
            aggregation: AckAggregation::default(),
            random: u64::from(seed),
        }
    }

    /// Handles an acknowledgement (`bbr_main`). Returns whether the caller must ignore the rates of the
    /// packets in flight because BBR keeps the window small.
    pub fn on_ack(&mut self, ack: &Acknowledged, controls: &mut Controls<'_>) -> bool {
        self.update_bandwidth(ack);
        if self.kernel == BbrKernel::Linux6_18 {
            let (bandwidth, window) = (self.bandwidth(), *controls.window);
            self.aggregation.update(ack, self.round_started, AGGREGATION_ROUNDS, bandwidth, window);
        }
        if self.mode == Mode::ProbeBandwidth && self.phase_is_over(ack, *controls.pacing_rate) {
            self.next_phase(ack.now);
        }
        self.check_full(ack);
        self.check_drain(ack, controls);
        let ignores_rates = self.update_minimum_rtt(ack, controls.window);

        let bandwidth = self.bandwidth();
        if !self.seen_rtt && ack.smoothed_rtt > 0 {
            *controls.pacing_rate = self.initial_pacing_rate(*controls.window, ack.smoothed_rtt, ack.mss);
        }
        let rate = self.rate(bandwidth, self.pacing_gain(), ack.mss);
        if self.is_full || rate > *controls.pacing_rate {
            *controls.pacing_rate = rate;
        }
        self.set_window(ack, bandwidth, controls);
        ignores_rates
    }

    fn pacing_gain(&self) -> u32 {
        match self.mode {
            Mode::Startup => HIGH_GAIN,
            Mode::Drain => DRAIN_GAIN,
            Mode::ProbeBandwidth => CYCLE[self.phase],
            Mode::ProbeRtt => UNIT,
        }
    }

    fn window_gain(&self) -> u32 {
        match self.mode {
            Mode::Startup | Mode::Drain => HIGH_GAIN,
            Mode::ProbeBandwidth => WINDOW_GAIN,
            Mode::ProbeRtt => UNIT,
        }
    }

    /// Returns the largest bandwidth of the last [`BANDWIDTH_ROUNDS`] rounds.
    fn bandwidth(&self) -> u64 {
        self.bandwidths.iter().map(|(_, bandwidth)| *bandwidth).max().unwrap_or_default()
    }

    /// Returns the pacing rate for a bandwidth and a gain, bytes/s (`bbr_bw_to_pacing_rate`).
    fn rate(&self, bandwidth: u64, gain: u32, mss: u32) -> u64 {
        // In 4.15, the kernel's rate includes headers (`tcp_mss_to_mtu`), and fq paces packets with headers.
        // The model omits the headers in both.
        let (percent, most) = match self.kernel {
            BbrKernel::Linux4_15 => (100, u64::from(u32::MAX)),
            BbrKernel::Linux6_18 => (100 - PACING_MARGIN_PERCENT, u64::MAX),
        };
        rate(bandwidth, gain, percent, mss).min(most)
    }

    /// Returns the bandwidth-delay product times a gain, in packets, rounded up (`bbr_bdp`). Before the
    /// first RTT sample, returns [`INITIAL_WINDOW`].
    fn product(&self, bandwidth: u64, gain: u32) -> u32 {
        if self.minimum_rtt == Span::MAX {
            return INITIAL_WINDOW;
        }
        product(bandwidth, self.minimum_rtt, gain)
    }

    /// Returns the number of packets of a segment at the pacing rate (`bbr_tso_segs_goal`).
    fn segment_goal(pacing_rate: u64, mss: u32) -> u32 {
        let bytes = (pacing_rate >> 10).min(LARGEST_SEGMENT) as u32;
        let least = if pacing_rate < LEAST_TSO_RATE { 1 } else { 2 };
        (bytes / mss).clamp(least, 0x7f)
    }

    /// Adds the packets that offloads and delayed acknowledgements hold (`bbr_quantization_budget`,
    /// `bbr_target_cwnd`).
    fn with_budget(&self, packets: u32, pacing_rate: u64, mss: u32) -> u32 {
        let packets = (packets + 3 * Self::segment_goal(pacing_rate, mss)).next_multiple_of(2);
        // In older kernels, rounding hides the gain of the probing phase if the BDP is only a few packets.
        let probes = self.mode == Mode::ProbeBandwidth && self.phase == 0;
        if probes && self.kernel == BbrKernel::Linux6_18 { packets + 2 } else { packets }
    }

    /// Returns the target of packets in flight (`bbr_inflight`).
    fn target(&self, bandwidth: u64, gain: u32, pacing_rate: u64, mss: u32) -> u32 {
        self.with_budget(self.product(bandwidth, gain), pacing_rate, mss)
    }

    /// Estimates the packets in the network at the next departure (`bbr_packets_in_net_at_edt`). For 4.15,
    /// returns `in_flight`.
    fn in_network(&self, in_flight: u32, ack: &Acknowledged, pacing_rate: u64) -> u32 {
        if self.kernel == BbrKernel::Linux4_15 {
            return in_flight;
        }
        let delivered = delivered_in(self.bandwidth(), ack.departure.since(ack.now));
        let more = if self.pacing_gain() > UNIT { Self::segment_goal(pacing_rate, ack.mss) } else { 0 };
        (in_flight + more).saturating_sub(delivered)
    }

    /// Adds a sample to the filter, except a lower one that the application limited. Begins a new round if
    /// the sample's packet was sent in the present round (`bbr_update_bw`).
    fn update_bandwidth(&mut self, ack: &Acknowledged) {
        self.round_started = false;
        let Some(sample) = ack.rate else { return };
        if sample.prior_delivered >= self.round_end {
            self.round_end = ack.delivered_ever;
            self.round += 1;
            self.round_started = true;
            self.conserves_packets = false;
        }
        let bandwidth = bandwidth(sample.delivered, sample.interval);
        if !sample.is_app_limited || bandwidth >= self.bandwidth() {
            self.add_bandwidth(bandwidth);
        }
    }

    /// Adds a sample of this round. Expires samples that are too old.
    fn add_bandwidth(&mut self, bandwidth: u64) {
        let round = self.round;
        let oldest = round.saturating_sub(BANDWIDTH_ROUNDS as u64 - 1);
        for slot in &mut self.bandwidths {
            if slot.0 < oldest {
                *slot = (0, 0);
            }
        }
        let present = &mut self.bandwidths[(round % BANDWIDTH_ROUNDS as u64) as usize];
        *present = (round, bandwidth.max(present.1));
    }

    /// Returns the allowance for aggregation, packets (`bbr_ack_aggregation_cwnd`); 0 for 4.15 and during
    /// startup.
    fn aggregation_allowance(&self, bandwidth: u64) -> u32 {
        if self.kernel == BbrKernel::Linux4_15 || !self.is_full {
            0
        } else {
            self.aggregation.allowance(bandwidth)
        }
    }

    /// Returns whether the phase of the cycle is over, by its length, its target and losses
    /// (`bbr_is_next_cycle_phase`).
    fn phase_is_over(&self, ack: &Acknowledged, pacing_rate: u64) -> bool {
        let gain = self.pacing_gain();
        let is_long = ack.now.since(self.phase_start) > self.minimum_rtt;
        if gain == UNIT {
            return is_long;
        }
        let in_flight = self.in_network(ack.in_flight_before, ack, pacing_rate);
        let target = |gain| self.target(self.bandwidth(), gain, pacing_rate, ack.mss);
        if gain > UNIT {
            return is_long && (ack.lost > 0 || in_flight >= target(gain));
        }
        is_long || in_flight <= target(UNIT)
    }

    fn next_phase(&mut self, now: Time) {
        self.phase = (self.phase + 1) % CYCLE.len();
        self.phase_start = now;
    }

    /// Starts to probe for bandwidth, in a random phase except the phase with gain 3/4
    /// (`bbr_reset_probe_bw_mode`).
    fn probe_bandwidth(&mut self, now: Time) {
        self.mode = Mode::ProbeBandwidth;
        self.phase = CYCLE.len() - 1 - (random(&mut self.random) % CYCLE_STARTS) as usize;
        self.next_phase(now);
    }

    /// Leaves the RTT probe: probes for bandwidth if the pipe is full, otherwise continues the startup
    /// (`bbr_reset_mode`).
    fn resume(&mut self, now: Time) {
        if self.is_full {
            self.probe_bandwidth(now);
        } else {
            self.mode = Mode::Startup;
        }
    }

    /// Checks once per round whether the bandwidth still grows (`bbr_check_full_bw_reached`).
    fn check_full(&mut self, ack: &Acknowledged) {
        let limited = ack.rate.is_some_and(|sample| sample.is_app_limited);
        if self.is_full || !self.round_started || limited {
            return;
        }
        let bandwidth = self.bandwidth();
        if bandwidth >= self.full_bandwidth * u64::from(FULL_GROWTH) / u64::from(UNIT) {
            (self.full_bandwidth, self.full_rounds) = (bandwidth, 0);
            return;
        }
        self.full_rounds += 1;
        self.is_full = self.full_rounds >= FULL_ROUNDS;
    }

    /// Starts to drain the queue after the startup. Ends the drain at the target (`bbr_check_drain`).
    fn check_drain(&mut self, ack: &Acknowledged, controls: &mut Controls<'_>) {
        let drained = self.target(self.bandwidth(), UNIT, *controls.pacing_rate, ack.mss);
        if self.mode == Mode::Startup && self.is_full {
            self.mode = Mode::Drain;
            *controls.threshold = drained;
        }
        if self.mode == Mode::Drain && self.in_network(ack.in_flight, ack, *controls.pacing_rate) <= drained {
            self.probe_bandwidth(ack.now);
        }
    }

    /// Updates the minimum RTT. If the minimum is old, empties the queue to measure it again
    /// (`bbr_update_min_rtt`). Returns whether the acknowledgement belongs to an RTT probe.
    fn update_minimum_rtt(&mut self, ack: &Acknowledged, window: &mut u32) -> bool {
        if self.minimum_rtt_at == Time::NEVER {
            self.minimum_rtt_at = ack.now;
        }
        let is_old = ack.now.since(self.minimum_rtt_at) > MINIMUM_RTT_AGE;
        if let Some(rtt) = ack.rtt.filter(|rtt| *rtt <= self.minimum_rtt || is_old) {
            (self.minimum_rtt, self.minimum_rtt_at) = (rtt, ack.now);
        }
        if is_old && !self.restarts && self.mode != Mode::ProbeRtt {
            // `save_window` depends on the mode, so it is called before the mode changes.
            self.save_window(*window);
            self.mode = Mode::ProbeRtt;
            self.probe_end = Time::NEVER;
        }
        let probes = self.mode == Mode::ProbeRtt;
        if probes {
            if self.probe_end == Time::NEVER {
                if ack.in_flight <= LEAST_WINDOW {
                    self.probe_end = ack.now + PROBE_RTT_TIME;
                    self.probe_round_done = false;
                    self.round_end = ack.delivered_ever;
                }
            } else {
                self.probe_round_done |= self.round_started;
                if self.probe_round_done {
                    self.end_probe(ack.now, window);
                }
            }
        }
        if ack.rate.is_some_and(|sample| sample.delivered > 0) {
            self.restarts = false;
        }
        probes
    }

    /// Ends the RTT probe when its time is over (`bbr_check_probe_rtt_done`).
    fn end_probe(&mut self, now: Time, window: &mut u32) {
        if now > self.probe_end {
            self.minimum_rtt_at = now;
            *window = self.prior_window.max(*window);
            self.resume(now);
        }
    }

    /// Saves the window before a loss or a probe reduces it (`bbr_save_cwnd`).
    fn save_window(&mut self, window: u32) {
        let is_usual = self.prior_state < State::Recovery && self.mode != Mode::ProbeRtt;
        self.prior_window = if is_usual { window } else { self.prior_window.max(window) };
    }

    /// Sets the window (`bbr_set_cwnd`).
    fn set_window(&mut self, ack: &Acknowledged, bandwidth: u64, controls: &mut Controls<'_>) {
        if ack.delivered > 0 {
            let (mut window, is_conserved) = self.recovery_window(ack, *controls.window);
            if !is_conserved {
                let packets =
                    self.product(bandwidth, self.window_gain()) + self.aggregation_allowance(bandwidth);
                let target = self.with_budget(packets, *controls.pacing_rate, ack.mss);
                if self.is_full {
                    window = (window + ack.delivered).min(target);
                } else if window < target || ack.delivered_ever < u64::from(INITIAL_WINDOW) {
                    window += ack.delivered;
                }
                window = window.max(LEAST_WINDOW);
            }
            *controls.window = window;
        }
        if self.mode == Mode::ProbeRtt {
            *controls.window = LEAST_WINDOW.min(*controls.window);
        }
    }

    /// Returns the window after the changes of recovery, and whether packet conservation applies
    /// (`bbr_set_cwnd_to_recover_or_restore`).
    fn recovery_window(&mut self, ack: &Acknowledged, window: u32) -> (u32, bool) {
        let mut window = window.saturating_sub(ack.lost).max(1);
        let before = std::mem::replace(&mut self.prior_state, ack.state);
        if ack.state == State::Recovery && before != State::Recovery {
            self.conserves_packets = true;
            self.round_end = ack.delivered_ever;
            window = ack.in_flight + ack.delivered;
        } else if before >= State::Recovery && ack.state < State::Recovery {
            window = self.prior_window.max(window);
            self.conserves_packets = false;
        }
        if self.conserves_packets {
            window = window.max(ack.in_flight + ack.delivered);
        }
        (window, self.conserves_packets)
    }

    /// Handles a retransmission timeout (`bbr_set_state`).
    pub fn on_timeout(&mut self) {
        self.prior_state = State::Loss;
        self.full_bandwidth = 0;
        self.round_started = true;
    }
}

impl RateControl for Bbr {
    fn initial_pacing_rate(&mut self, window: u32, smoothed_rtt: Span, mss: u32) -> u64 {
        self.seen_rtt = smoothed_rtt > 0;
        let rtt = if self.seen_rtt { smoothed_rtt } else { MILLISECOND };
        self.rate(bandwidth(window, rtt), HIGH_GAIN, mss)
    }

    fn handshake(&mut self, rtt: Span) {
        self.minimum_rtt = rtt;
    }

    fn control(&mut self, ack: &Acknowledged, _sample: &FlightSample, controls: &mut Controls<'_>) -> bool {
        self.on_ack(ack, controls)
    }

    fn begin_recovery(&mut self, window: u32) {
        self.save_window(window);
    }

    fn time_out(&mut self, _window: u32) {
        self.on_timeout();
    }

    fn undo(&mut self, _window: &mut u32) {
        (self.full_bandwidth, self.full_rounds) = (0, 0);
    }

    fn on_restart(&mut self, now: Time, mss: u32, controls: &mut Controls<'_>) {
        self.restarts = true;
        self.aggregation.restart(now);
        match self.mode {
            Mode::ProbeBandwidth => *controls.pacing_rate = self.rate(self.bandwidth(), UNIT, mss),
            Mode::ProbeRtt => self.end_probe(now, controls.window),
            Mode::Startup | Mode::Drain => {}
        }
    }

    fn least_segment(&self, pacing_rate: u64) -> u32 {
        if pacing_rate < LEAST_TSO_RATE { 1 } else { 2 }
    }

    fn buffered_packets(&self, window: u32) -> u32 {
        window.max(self.prior_window).saturating_mul(3)
    }

    fn boxed_clone(&self) -> Box<dyn RateControl> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests;
