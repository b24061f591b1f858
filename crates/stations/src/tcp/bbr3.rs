//! BBR version 3 (net/ipv4/tcp_bbr.c of the branch `v3` of google/bbr; draft-ietf-ccwg-bbr, formerly
//! draft-cardwell-iccrg-bbr-congestion-control).
//!
//! As in version 1, window and pacing rate follow a model of the path. In addition, losses set bounds:
//!
//! - `inflight_hi`, the long-term bound: the packets in flight at which more than 2 % of the packets
//!   were lost
//! - `bw_lo` and `inflight_lo`, until the next probe: 70 % of bandwidth and window
//!
//! | mode | pacing gain | window gain | until |
//! |---|---|---|---|
//! | startup | 2.77 | 2 | the bandwidth grew by less than a quarter in three rounds, or a round of recovery had at least six acknowledgements with losses and a loss rate above 2 % |
//! | drain | 1/2.885 | 2 | at most the BDP is in flight |
//! | down | 0.91 | 2 | at most the BDP, and at most 85 % of `inflight_hi`, is in flight, or the next probe is due (see cruise) |
//! | cruise | 1 | 2 | 2 to 3 s since the last probe, or as many rounds as the BDP has packets, at most 63 |
//! | refill | 1 | 2 | a round trip has passed |
//! | up | 1.25 | 2.25 | the bandwidth does not grow, losses are above 2 %, or the packets in flight reach `inflight_hi` after a probe with such losses |
//! | probe RTT | 1 | 0.5 | 200 ms and a round trip have passed; the mode starts 5 s after the last smaller RTT |
//!
//! Where the kernel and the draft differ, the simulator uses the kernel's values. The draft drains with
//! a gain of 0.5 (0.35 in previous versions) and paces down with 0.9.
//!
//! Not modelled:
//! - ECN, and with it Protective Load Balancing and the early probe after marks
//!   (`bbr_ecn_reprobe_gain`);
//! - losses that a tail loss probe repaired (`bbr_run_loss_probe_recovery`,
//!   `is_acking_tlp_retrans_seq`);
//! - the rule for samples of delayed acknowledgements (`is_ack_delayed`), and the clock of jiffies;
//! - `bbr_run_fast_path`, which saves time while the application limits the flow;
//! - the immediate acknowledgements that `fast_ack_mode` requests from the receiver;
//! - `bbr_tso_segs`: the simulator uses `tcp_tso_autosize`, which has the same formula in Linux 6.18.

mod bounds;
mod probing;

use bounds::{Bounds, UNBOUNDED, flight_at_threshold, is_too_high};

use super::bbr::ack_aggregation::{AGGREGATION_ROUNDS, AckAggregation};
use super::bbr::path_model::{
    FULL_GROWTH, FULL_ROUNDS, LARGEST_SEGMENT, LEAST_WINDOW, PACING_MARGIN_PERCENT, UNIT, bandwidth,
    bandwidth_rounded_up, delivered_in, product, rate,
};
use super::in_flight::Flight;
use super::rate_control::{Acknowledged, Controls, FlightSample, Loss, RateControl};
use super::sender::State;
use crate::time::{MICROSECOND, MILLISECOND, SECOND, Span, Time};

/// Gain of 4 ln 2, with which the rate doubles per round trip (`bbr_startup_pacing_gain`).
const STARTUP_GAIN: u32 = UNIT * 277 / 100 + 1;
/// Gain that drains the queue of the startup in one round trip (`bbr_drain_gain`).
const DRAIN_GAIN: u32 = UNIT * 1000 / 2885;
/// Pacing gains of the probe for bandwidth (`bbr_pacing_gain`).
const UP_GAIN: u32 = UNIT * 5 / 4;
const DOWN_GAIN: u32 = UNIT * 91 / 100;
/// Window gains: the usual gain (`bbr_startup_cwnd_gain`, `bbr_cwnd_gain`), and the gain while probing
/// up (`bbr_bw_probe_cwnd_gain`).
const WINDOW_GAIN: u32 = UNIT * 2;
const UP_WINDOW_GAIN: u32 = WINDOW_GAIN + UNIT / 4;
/// Share of the BDP in flight while BBR measures the minimum RTT (`bbr_probe_rtt_cwnd_gain`).
const PROBE_RTT_GAIN: u32 = UNIT / 2;
/// Age at which BBR expires the minimum RTT (`bbr_min_rtt_win_sec`).
const MINIMUM_RTT_AGE: Span = 10 * SECOND;
/// Age of the recent minimum RTT at which BBR measures the minimum again (`bbr_probe_rtt_win_ms`).
const PROBE_RTT_INTERVAL: Span = 5 * SECOND;
/// Number of acknowledgements with losses in a round that may end the startup (`bbr_full_loss_cnt`).
const PROBE_RTT_TIME: Span = 200 * MILLISECOND;
/// Number of losses in a round that may end the startup (`bbr_full_loss_cnt`).
const FULL_LOSSES: u8 = 6;
/// The part of a segment's size that depends on the RTT. Each `SEGMENT_RTT_UNIT` of RTT halves this
/// part (`bbr_tso_rtt_shift`).
const SEGMENT_BYTES: u64 = 65_536;
const SEGMENT_RTT_UNIT: Span = 512 * MICROSECOND;
/// Smallest number of packets in a segment if the flow has enough data (`tcp_min_tso_segs`).
const LEAST_SEGMENT: u32 = 2;
/// Combines the kernel's `bbr_mode` and, in mode `BBR_PROBE_BW`, the phase by `bbr_pacing_gain_phase`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Startup,
    Drain,
    Down,
    Cruise,
    Refill,
    Up,
    ProbeRtt,
}

/// The part of a bandwidth probe to which the acknowledged packets belong (`bbr_ack_phase`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckPhase {
    Other,
    Refilling,
    Starting,
    Feedback,
    Stopping,
}

#[derive(Clone, Debug)]
pub(super) struct Bbr3 {
    mode: Mode,
    /// Largest bandwidths of the previous and of the present probe cycle (`bw_hi`).
    bandwidths: [u64; 2],
    bounds: Bounds,
    /// The bounds before recovery (`undo_bw_lo` and others).
    prior_bounds: Bounds,
    /// Largest bandwidth sample, and largest number of packets delivered in the interval of a sample, in the
    /// present loss round (`bw_latest`, `inflight_latest`).
    bandwidth_latest: u64,
    in_flight_latest: u32,
    minimum_rtt: Span,
    minimum_rtt_at: Time,
    /// Minimum RTT since the last RTT probe (`probe_rtt_min_us`).
    recent_rtt: Span,
    recent_rtt_at: Time,
    /// When the RTT probe may end (`probe_rtt_done_stamp`); `Time::NEVER` until few packets are in
    /// flight.
    probe_end: Time,
    probe_round_done: bool,
    /// Number of delivered packets at the start of the round. The round ends with the delivery of a packet
    /// that was sent after the start (`next_rtt_delivered`).
    round_end: u64,
    round_started: bool,
    /// Number of delivered packets at the start of the loss round (`loss_round_delivered`).
    loss_round_end: u64,
    loss_round_started: bool,
    loss_in_round: bool,
    losses_in_round: u8,
    /// Packets delivered up to the last acknowledgement (`delivered`).
    delivered_ever: u64,
    full_bandwidth: u64,
    full_rounds: u8,
    /// The bandwidth has stopped growing: in this probe or in the startup (`full_bw_now`), or at any
    /// time (`full_bw_reached`).
    is_full_now: bool,
    is_full: bool,
    ack_phase: AckPhase,
    /// The samples are from a bandwidth probe without too many losses so far (`bw_probe_samples`).
    probes_losses: bool,
    /// The last bandwidth probe lost too many packets (`prev_probe_too_high`).
    was_too_high: bool,
    /// The last probe stopped at the bound that an earlier probe set (`stopped_risky_probe`).
    stopped_at_bound: bool,
    phase_start: Time,
    /// Time from the start of [`Mode::Down`] to the next probe (`probe_wait_us`).
    probe_wait: Span,
    rounds_since_probe: u32,
    /// Growth of `inflight_hi` in this probe: number of rounds (`bw_probe_up_rounds`), delivered
    /// packets per packet of growth (`bw_probe_up_cnt`), and packets counted towards the next growth
    /// (`bw_probe_up_acks`).
    up_rounds: u8,
    up_each: u32,
    up_credit: u32,
    aggregation: AckAggregation,
    /// The window to restore after a loss or a probe (`prior_cwnd`).
    prior_window: u32,
    prior_state: State,
    initial_window: u32,
    restarts: bool,
    seen_rtt: bool,
    random: u64,
}

impl Bbr3 {
    /// Creates the state of a new flow (`bbr_init`). `seed` decides the times of its probes.
    pub fn new(initial_window: u32, seed: u32) -> Self {
        Self {
            mode: Mode::Startup,
            bandwidths: [0; 2],
            bounds: Bounds::NONE,
            prior_bounds: Bounds { bandwidth_low: 0, in_flight_low: 0, in_flight_high: 0 },
            bandwidth_latest: 0,
            in_flight_latest: 0,
            minimum_rtt: Span::MAX,
            minimum_rtt_at: Time::NEVER,
            recent_rtt: Span::MAX,
            recent_rtt_at: Time::NEVER,
            probe_end: Time::NEVER,
            probe_round_done: false,
            round_end: 0,
            round_started: false,
            loss_round_end: 1,
            loss_round_started: false,
            loss_in_round: false,
            losses_in_round: 0,
            delivered_ever: 0,
            full_bandwidth: 0,
            full_rounds: 0,
            is_full_now: false,
            is_full: false,
            ack_phase: AckPhase::Other,
            probes_losses: false,
            was_too_high: false,
            stopped_at_bound: false,
            phase_start: Time::ZERO,
            probe_wait: 0,
            rounds_since_probe: 0,
            up_rounds: 0,
            up_each: u32::MAX,
            up_credit: 0,
            aggregation: AckAggregation::default(),
            prior_window: 0,
            prior_state: State::Open,
            initial_window: initial_window.clamp(1, 0x7f),
            restarts: false,
            seen_rtt: false,
            random: u64::from(seed),
        }
    }

    fn pacing_gain(&self) -> u32 {
        match self.mode {
            Mode::Startup => STARTUP_GAIN,
            Mode::Drain => DRAIN_GAIN,
            Mode::Up => UP_GAIN,
            Mode::Down => DOWN_GAIN,
            Mode::Cruise | Mode::Refill | Mode::ProbeRtt => UNIT,
        }
    }

    fn window_gain(&self) -> u32 {
        match self.mode {
            Mode::Up => UP_WINDOW_GAIN,
            Mode::ProbeRtt => UNIT,
            Mode::Startup | Mode::Drain | Mode::Down | Mode::Cruise | Mode::Refill => WINDOW_GAIN,
        }
    }

    fn probes_bandwidth(&self) -> bool {
        matches!(self.mode, Mode::Down | Mode::Cruise | Mode::Refill | Mode::Up)
    }

    /// Returns whether the flow may send more than the known safe amount (`bbr_is_probing_bandwidth`).
    fn is_pushing(&self) -> bool {
        matches!(self.mode, Mode::Startup | Mode::Refill | Mode::Up)
    }

    /// Returns the largest bandwidth of the last two cycles (`bbr_max_bw`).
    fn largest_bandwidth(&self) -> u64 {
        self.bandwidths[0].max(self.bandwidths[1])
    }

    /// Returns the largest bandwidth, limited by the bound that losses set (`bbr_bw`).
    fn bandwidth(&self) -> u64 {
        self.largest_bandwidth().min(self.bounds.bandwidth_low)
    }

    /// Returns a pacing rate, bytes/s (`bbr_bw_to_pacing_rate`).
    fn rate(bandwidth: u64, gain: u32, mss: u32) -> u64 {
        rate(bandwidth, gain, 100 - PACING_MARGIN_PERCENT, mss).max(1)
    }

    /// Returns the bandwidth-delay product times `gain`, in packets (`bbr_bdp`). Without an RTT sample,
    /// returns the initial window.
    fn product(&self, bandwidth: u64, gain: u32) -> u32 {
        if self.minimum_rtt == Span::MAX {
            return self.initial_window;
        }
        product(bandwidth, self.minimum_rtt, gain)
    }

    /// Returns the number of packets of a segment (`bbr_tso_segs_goal`).
    fn segment_goal(&self, pacing_rate: u64, mss: u32) -> u32 {
        let halvings = u32::try_from(self.minimum_rtt / SEGMENT_RTT_UNIT).unwrap_or(u32::MAX);
        let short = SEGMENT_BYTES.checked_shr(halvings).unwrap_or(0);
        let bytes = ((pacing_rate >> 10) + short).min(LARGEST_SEGMENT) as u32;
        (bytes / mss.max(1)).max(LEAST_SEGMENT)
    }

    /// Raises `packets` to a number that is sufficient for offloads and delayed acknowledgements
    /// (`bbr_quantization_budget`).
    fn with_budget(&self, packets: u32, pacing_rate: u64, mss: u32) -> u32 {
        let packets = packets.max(3 * self.segment_goal(pacing_rate, mss)).max(LEAST_WINDOW);
        if self.mode == Mode::Up { packets + 2 } else { packets }
    }

    /// Returns the BDP with the budget of [`Self::with_budget`] (`bbr_inflight`).
    fn target(&self, bandwidth: u64, pacing_rate: u64, mss: u32) -> u32 {
        self.with_budget(self.product(bandwidth, UNIT), pacing_rate, mss)
    }

    /// Returns the usual target of packets in flight: the BDP, but at most the window
    /// (`bbr_target_inflight`).
    fn usual_in_flight(&self, controls: &Controls<'_>, mss: u32) -> u32 {
        self.target(self.bandwidth(), *controls.pacing_rate, mss).min(*controls.window)
    }

    /// Estimates the packets in the network at the next departure (`bbr_packets_in_net_at_edt`).
    fn in_network(&self, in_flight: u32, ack: &Acknowledged, pacing_rate: u64) -> u32 {
        let delivered = delivered_in(self.bandwidth(), ack.departure.since(ack.now));
        let more = if self.pacing_gain() > UNIT { self.segment_goal(pacing_rate, ack.mss) } else { 0 };
        in_flight.saturating_add(more).saturating_sub(delivered)
    }

    /// Handles an acknowledgement (`bbr_main`). Returns whether the caller must ignore the rates of the
    /// packets in flight.
    fn on_ack(&mut self, ack: &Acknowledged, sample: &FlightSample, controls: &mut Controls<'_>) -> bool {
        self.delivered_ever = ack.delivered_ever;
        if self.prior_state == State::Loss && ack.state != State::Loss {
            // `bbr_exit_loss_recovery`
            *controls.window = self.prior_window.max(*controls.window);
        }
        self.update_round(ack);
        let rate = ack.rate.filter(|_| ack.delivered > 0);
        let bandwidth = ack.rate.map_or(0, |rate| bandwidth_rounded_up(rate.delivered, rate.interval));
        self.loss_round_started = false;
        if let Some(rate) = rate {
            // `bbr_update_latest_delivery_signals`
            self.bandwidth_latest = self.bandwidth_latest.max(bandwidth);
            self.in_flight_latest = self.in_flight_latest.max(rate.delivered);
            if rate.prior_delivered >= self.loss_round_end {
                self.loss_round_end = ack.delivered_ever;
                self.loss_round_started = true;
            }
            self.update_congestion_signals(ack, bandwidth, rate.is_app_limited, *controls.window);
        }
        let rounds = if self.is_full { AGGREGATION_ROUNDS } else { 1 };
        let (known, window) = (self.bandwidth(), *controls.window);
        self.aggregation.update(ack, self.round_started, rounds, known, window);
        self.check_losses_of_startup(ack, &sample.flight, controls);
        self.check_full(bandwidth, sample.flight.is_app_limited);
        self.check_drain(ack, controls);
        self.update_phase(ack, bandwidth, sample, controls);
        let ignores_rates = self.update_minimum_rtt(ack, controls.window);

        if !self.seen_rtt && ack.smoothed_rtt > 0 {
            *controls.pacing_rate = self.initial_pacing_rate(*controls.window, ack.smoothed_rtt, ack.mss);
        }
        let paced = Self::rate(self.bandwidth(), self.pacing_gain(), ack.mss);
        if self.is_full || paced > *controls.pacing_rate {
            *controls.pacing_rate = paced;
        }
        self.set_window(ack, controls);
        if let Some(rate) = ack.rate.filter(|_| self.loss_round_started) {
            // `bbr_advance_latest_delivery_signals`
            (self.bandwidth_latest, self.in_flight_latest) = (bandwidth, rate.delivered);
        }
        self.prior_state = ack.state;
        ignores_rates
    }

    /// Begins a round if the delivered packet was sent in the present round (`bbr_update_round_start`).
    fn update_round(&mut self, ack: &Acknowledged) {
        self.round_started = ack.rate.is_some_and(|rate| rate.prior_delivered >= self.round_end);
        if self.round_started {
            self.round_end = ack.delivered_ever;
            self.rounds_since_probe = (self.rounds_since_probe + 1).min(0xff);
        }
    }

    /// Adds a bandwidth sample. At the end of a round with losses, reduces the bounds, unless the flow is
    /// probing (`bbr_update_congestion_signals`).
    fn update_congestion_signals(
        &mut self,
        ack: &Acknowledged,
        bandwidth: u64,
        is_app_limited: bool,
        window: u32,
    ) {
        if !is_app_limited || bandwidth >= self.largest_bandwidth() {
            self.bandwidths[1] = self.bandwidths[1].max(bandwidth);
        }
        self.loss_in_round |= ack.lost > 0;
        if self.loss_round_started {
            // `bbr_adapt_lower_bounds`
            if self.loss_in_round && !self.is_pushing() {
                let delivered = (self.bandwidth_latest, self.in_flight_latest);
                self.bounds.reduce(self.largest_bandwidth(), window, delivered);
            }
            self.loss_in_round = false;
        }
    }

    /// Resets the losses and deliveries of the round (`bbr_reset_congestion_signals`).
    fn reset_congestion_signals(&mut self) {
        (self.loss_in_round, self.bandwidth_latest, self.in_flight_latest) = (false, 0, 0);
    }

    /// Ends the startup at the end of a round with many losses (`bbr_check_loss_too_high_in_startup`).
    fn check_losses_of_startup(&mut self, ack: &Acknowledged, flight: &Flight, controls: &Controls<'_>) {
        if self.is_full {
            return;
        }
        if ack.lost > 0 {
            self.losses_in_round = (self.losses_in_round + 1).min(0xf);
        }
        let is_too_high = self.loss_round_started
            && ack.state == State::Recovery
            && self.losses_in_round >= FULL_LOSSES
            && is_too_high(flight);
        if is_too_high {
            // `bbr_handle_queue_too_high_in_startup`
            self.is_full = true;
            let target = self.target(self.largest_bandwidth(), *controls.pacing_rate, ack.mss);
            self.bounds.in_flight_high = target.max(self.in_flight_latest);
        } else if self.loss_round_started {
            self.losses_in_round = 0;
        }
    }

    /// Checks whether the bandwidth still grows (`bbr_check_full_bw_reached`).
    fn check_full(&mut self, bandwidth: u64, is_app_limited: bool) {
        if self.is_full_now || is_app_limited {
            return;
        }
        let grown = u128::from(self.full_bandwidth) * u128::from(FULL_GROWTH) / u128::from(UNIT);
        if u128::from(bandwidth) >= grown {
            self.reset_full(bandwidth);
        } else if self.round_started {
            self.full_rounds += 1;
            self.is_full_now = self.full_rounds >= FULL_ROUNDS;
            self.is_full |= self.is_full_now;
        }
    }

    /// Sets the bandwidth from which growth is measured (`bbr_reset_full_bw`).
    fn reset_full(&mut self, bandwidth: u64) {
        (self.full_bandwidth, self.full_rounds, self.is_full_now) = (bandwidth, 0, false);
    }

    /// Starts to drain the queue after the startup. Ends the drain at the target (`bbr_check_drain`).
    fn check_drain(&mut self, ack: &Acknowledged, controls: &mut Controls<'_>) {
        let target = |bbr: &Self| bbr.target(bbr.largest_bandwidth(), *controls.pacing_rate, ack.mss);
        if self.mode == Mode::Startup && self.is_full {
            self.mode = Mode::Drain;
            *controls.threshold = target(self);
            self.reset_congestion_signals();
        }
        if self.mode == Mode::Drain
            && self.in_network(ack.in_flight, ack, *controls.pacing_rate) <= target(self)
        {
            self.start_down(ack.now);
        }
    }

    /// Updates the minimum RTT. If the recent minimum is old, starts to drain the queue to measure it again
    /// (`bbr_update_min_rtt`). Returns whether the acknowledgement belongs to an RTT probe.
    fn update_minimum_rtt(&mut self, ack: &Acknowledged, window: &mut u32) -> bool {
        if self.recent_rtt_at == Time::NEVER {
            (self.minimum_rtt_at, self.recent_rtt_at) = (ack.now, ack.now);
        }
        let is_due = ack.now.since(self.recent_rtt_at) > PROBE_RTT_INTERVAL;
        if let Some(rtt) = ack.rtt.filter(|rtt| *rtt < self.recent_rtt || is_due) {
            (self.recent_rtt, self.recent_rtt_at) = (rtt, ack.now);
        }
        let is_old = ack.now.since(self.minimum_rtt_at) > MINIMUM_RTT_AGE;
        if self.recent_rtt <= self.minimum_rtt || is_old {
            (self.minimum_rtt, self.minimum_rtt_at) = (self.recent_rtt, self.recent_rtt_at);
        }
        if is_due && !self.restarts && self.mode != Mode::ProbeRtt {
            self.mode = Mode::ProbeRtt;
            self.save_window(*window);
            self.probe_end = Time::NEVER;
            self.ack_phase = AckPhase::Stopping;
            self.round_end = ack.delivered_ever;
        }
        let probes = self.mode == Mode::ProbeRtt;
        if probes {
            if self.probe_end == Time::NEVER {
                if ack.in_flight <= self.probe_rtt_window() {
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
        if ack.rate.is_some_and(|rate| rate.delivered > 0) {
            self.restarts = false;
        }
        probes
    }

    /// Returns the window of the RTT probe (`bbr_probe_rtt_cwnd`).
    fn probe_rtt_window(&self) -> u32 {
        self.product(self.bandwidth(), PROBE_RTT_GAIN).max(LEAST_WINDOW)
    }

    /// Ends the RTT probe when its time is over (`bbr_check_probe_rtt_done`, `bbr_exit_probe_rtt`).
    fn end_probe(&mut self, now: Time, window: &mut u32) {
        if now <= self.probe_end {
            return;
        }
        self.recent_rtt_at = now;
        *window = self.prior_window.max(*window);
        self.bounds.reset_low();
        if self.is_full {
            self.start_down(now);
            self.start_cruise();
        } else {
            self.mode = Mode::Startup;
        }
    }

    /// Saves the window before a loss or a probe reduces it (`bbr_save_cwnd`).
    fn save_window(&mut self, window: u32) {
        let is_usual = self.prior_state < State::Recovery && self.mode != Mode::ProbeRtt;
        self.prior_window = if is_usual { window } else { self.prior_window.max(window) };
    }

    /// Sets the window (`bbr_set_cwnd`), and limits it to the bounds
    /// (`bbr_bound_cwnd_for_inflight_model`).
    fn set_window(&mut self, ack: &Acknowledged, controls: &mut Controls<'_>) {
        let mut window = *controls.window;
        if ack.delivered > 0 {
            let bandwidth = self.bandwidth();
            let packets = self
                .product(bandwidth, self.window_gain())
                .saturating_add(self.aggregation.allowance(bandwidth));
            let target = self.with_budget(packets, *controls.pacing_rate, ack.mss);
            let grown = window.saturating_add(ack.delivered);
            if self.is_full {
                window = grown.min(target);
            } else if window < target || window < 2 * self.initial_window {
                window = grown;
            }
            window = window.max(LEAST_WINDOW);
        }
        if self.mode == Mode::ProbeRtt {
            window = window.min(self.probe_rtt_window());
        }
        let high = match self.mode {
            Mode::Down | Mode::Refill | Mode::Up => self.bounds.in_flight_high,
            Mode::Cruise | Mode::ProbeRtt => self.bounds.with_headroom(),
            Mode::Startup | Mode::Drain => UNBOUNDED,
        };
        *controls.window = window.min(high.min(self.bounds.in_flight_low).max(LEAST_WINDOW));
    }
}

impl RateControl for Bbr3 {
    fn handshake(&mut self, rtt: Span) {
        (self.minimum_rtt, self.recent_rtt) = (rtt, rtt);
    }

    fn initial_pacing_rate(&mut self, window: u32, smoothed_rtt: Span, mss: u32) -> u64 {
        self.seen_rtt = smoothed_rtt > 0;
        let rtt = if self.seen_rtt { smoothed_rtt } else { MILLISECOND };
        Self::rate(bandwidth(window, rtt), STARTUP_GAIN, mss)
    }

    fn control(&mut self, ack: &Acknowledged, sample: &FlightSample, controls: &mut Controls<'_>) -> bool {
        self.on_ack(ack, sample, controls)
    }

    fn on_loss(&mut self, loss: &Loss, controls: &mut Controls<'_>) {
        self.delivered_ever = loss.delivered_ever;
        if !self.loss_in_round {
            // `bbr_note_loss`: the loss round begins at the first loss.
            self.loss_round_end = loss.delivered_ever;
            self.loss_in_round = true;
        }
        let Some(flight) = loss.flight.filter(|flight| self.probes_losses && is_too_high(flight)) else {
            return;
        };
        let packets = flight_at_threshold(&flight, loss.packets);
        self.lower_bound(&Flight { packets, ..flight }, loss.now, loss.mss, controls);
    }

    fn begin_recovery(&mut self, window: u32) {
        self.save_window(window);
        self.prior_bounds = self.bounds;
    }

    fn time_out(&mut self, window: u32) {
        self.prior_state = State::Loss;
        self.reset_full(0);
        if !self.is_pushing() && self.bounds.in_flight_low == UNBOUNDED {
            self.bounds.in_flight_low = window.max(self.prior_window);
        }
    }

    fn undo(&mut self, window: &mut u32) {
        self.reset_full(0);
        self.loss_in_round = false;
        self.bounds.raise_to(self.prior_bounds);
        *window = self.prior_window.max(LEAST_WINDOW);
    }

    fn on_restart(&mut self, now: Time, mss: u32, controls: &mut Controls<'_>) {
        self.restarts = true;
        self.aggregation.restart(now);
        if self.probes_bandwidth() {
            *controls.pacing_rate = Self::rate(self.bandwidth(), UNIT, mss);
        } else if self.mode == Mode::ProbeRtt {
            self.end_probe(now, controls.window);
        }
    }

    fn least_segment(&self, _pacing_rate: u64) -> u32 {
        LEAST_SEGMENT
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
