//! The search for more bandwidth in four phases: down, cruise, refill, up.

use super::super::bbr::path_model::random;
use super::super::in_flight::Flight;
use super::super::rate_control::{Acknowledged, Controls, FlightSample};
use super::bounds::{LOSS_CUT, UNBOUNDED, is_too_high, share};
use super::{AckPhase, Bbr3, Mode};
use crate::time::{SECOND, Span, Time};

/// Largest number of rounds between two bandwidth probes (`bbr_bw_probe_max_rounds`), and its random
/// part (`bbr_bw_probe_rand_rounds`).
const PROBE_ROUNDS: u32 = 63;
const PROBE_RANDOM_ROUNDS: u64 = 2;
/// Shortest time until the next probe (`bbr_bw_probe_base_us`), and its random part
/// (`bbr_bw_probe_rand_us`).
const PROBE_WAIT: Span = 2 * SECOND;
const PROBE_RANDOM_WAIT: Span = SECOND;
/// Largest number of doublings of the growth of `inflight_hi` (`bbr_raise_inflight_hi_slope`).
const MOST_DOUBLINGS: u8 = 30;

impl Bbr3 {
    /// Adapts `inflight_hi`, and changes the phase of probing (`bbr_update_cycle_phase`).
    pub(super) fn update_phase(
        &mut self,
        ack: &Acknowledged,
        bandwidth: u64,
        sample: &FlightSample,
        controls: &Controls<'_>,
    ) {
        if !self.is_full || self.adapt_upper_bounds(ack, sample, controls) || !self.probes_bandwidth() {
            return;
        }
        let in_flight = self.in_network(ack.in_flight_before, ack, *controls.pacing_rate);
        match self.mode {
            Mode::Cruise if self.is_time_to_probe(ack, controls) => self.start_refill(),
            Mode::Refill if self.round_started => {
                // From this point, samples are of packets that the flow sent while the pipe was full.
                self.probes_losses = true;
                self.start_up(ack.now, bandwidth, *controls.window);
            }
            Mode::Up => {
                let high = self.bounds.in_flight_high;
                if self.was_too_high && in_flight >= high {
                    // More packets in flight may overflow the queue, as in an earlier probe.
                    self.stopped_at_bound = true;
                } else if sample.is_window_limited && *controls.window >= high {
                    return self.reset_full(bandwidth);
                } else if !self.is_full_now {
                    return;
                }
                self.was_too_high = false;
                self.start_down(ack.now);
            }
            Mode::Down if self.is_time_to_probe(ack, controls) => self.start_refill(),
            Mode::Down => {
                // `bbr_check_time_to_cruise`
                let target = self.target(self.largest_bandwidth(), *controls.pacing_rate, ack.mss);
                if in_flight <= self.bounds.with_headroom().min(target) {
                    self.start_cruise();
                }
            }
            _ => {}
        }
    }

    /// Adapts the long-term bound to the losses of a probe (`bbr_adapt_upper_bounds`). Returns whether
    /// the function starts another probe.
    fn adapt_upper_bounds(
        &mut self,
        ack: &Acknowledged,
        sample: &FlightSample,
        controls: &Controls<'_>,
    ) -> bool {
        if self.round_started && self.ack_phase == AckPhase::Starting {
            self.ack_phase = AckPhase::Feedback;
        }
        if self.round_started && self.ack_phase == AckPhase::Stopping {
            // The flow has received the acknowledgements of the probe's last packets.
            self.probes_losses = false;
            self.ack_phase = AckPhase::Other;
            if self.probes_bandwidth() {
                if !sample.flight.is_app_limited && self.bandwidths[1] > 0 {
                    // `bbr_advance_max_bw_filter`
                    self.bandwidths = [self.bandwidths[1], 0];
                }
                if self.stopped_at_bound && !self.was_too_high {
                    self.start_refill();
                    return true;
                }
            }
        }
        if is_too_high(&sample.flight) {
            if self.probes_losses {
                self.lower_bound(&sample.flight, ack.now, ack.mss, controls);
            }
        } else if self.bounds.in_flight_high != UNBOUNDED {
            self.bounds.in_flight_high = self.bounds.in_flight_high.max(sample.flight.packets);
            if self.mode == Mode::Up {
                self.raise_bound(ack, sample, *controls.window);
            }
        }
        false
    }

    /// Ends a probe with too many losses (`bbr_handle_inflight_too_high`). Lowers `inflight_hi`, unless the
    /// application limited the flow. Ignores further losses of the same probe.
    pub(super) fn lower_bound(&mut self, flight: &Flight, now: Time, mss: u32, controls: &Controls<'_>) {
        self.was_too_high = true;
        self.probes_losses = false;
        if !flight.is_app_limited {
            let reduced = share(self.usual_in_flight(controls, mss), LOSS_CUT);
            self.bounds.in_flight_high = flight.packets.max(reduced);
        }
        if self.mode == Mode::Up {
            self.start_down(now);
        }
    }

    /// Raises `inflight_hi` while it limits the flow (`bbr_probe_inflight_hi_upward`).
    fn raise_bound(&mut self, ack: &Acknowledged, sample: &FlightSample, window: u32) {
        if !sample.is_window_limited || window < self.bounds.in_flight_high {
            return;
        }
        self.up_credit = self.up_credit.saturating_add(ack.delivered);
        let growth = self.up_credit / self.up_each;
        self.up_credit -= growth * self.up_each;
        self.bounds.in_flight_high = self.bounds.in_flight_high.saturating_add(growth);
        if self.round_started {
            self.raise_slope(window);
        }
    }

    /// Doubles the growth of `inflight_hi` for the next round (`bbr_raise_inflight_hi_slope`).
    fn raise_slope(&mut self, window: u32) {
        self.up_each = (window >> self.up_rounds).max(1);
        self.up_rounds = (self.up_rounds + 1).min(MOST_DOUBLINGS);
    }

    /// Returns whether the next bandwidth probe is due (`bbr_check_time_to_probe_bw`). The reason is
    /// the clock, or the number of rounds after which a Reno flow with this BDP would have a loss.
    fn is_time_to_probe(&self, ack: &Acknowledged, controls: &Controls<'_>) -> bool {
        ack.now.since(self.phase_start) > self.probe_wait
            || self.rounds_since_probe >= PROBE_ROUNDS.min(self.usual_in_flight(controls, ack.mss))
    }

    /// Starts a probe cycle with the mode down (`bbr_start_bw_probe_down`).
    pub(super) fn start_down(&mut self, now: Time) {
        self.reset_congestion_signals();
        self.up_each = u32::MAX;
        self.rounds_since_probe = (random(&mut self.random) % PROBE_RANDOM_ROUNDS) as u32;
        self.probe_wait = PROBE_WAIT + random(&mut self.random) % PROBE_RANDOM_WAIT;
        self.phase_start = now;
        self.ack_phase = AckPhase::Stopping;
        self.round_end = self.delivered_ever;
        self.mode = Mode::Down;
    }

    pub(super) fn start_cruise(&mut self) {
        if self.bounds.in_flight_low != UNBOUNDED {
            self.bounds.in_flight_low = self.bounds.in_flight_low.min(self.bounds.in_flight_high);
        }
        self.mode = Mode::Cruise;
    }

    /// Starts to refill the pipe, so that the probe does not end before the pipe is full
    /// (`bbr_start_bw_probe_refill`).
    fn start_refill(&mut self) {
        self.bounds.reset_low();
        (self.up_rounds, self.up_credit) = (0, 0);
        self.stopped_at_bound = false;
        self.ack_phase = AckPhase::Refilling;
        self.round_end = self.delivered_ever;
        self.mode = Mode::Refill;
    }

    fn start_up(&mut self, now: Time, bandwidth: u64, window: u32) {
        self.ack_phase = AckPhase::Starting;
        self.round_end = self.delivered_ever;
        self.phase_start = now;
        self.reset_full(bandwidth);
        self.mode = Mode::Up;
        self.raise_slope(window);
    }
}
