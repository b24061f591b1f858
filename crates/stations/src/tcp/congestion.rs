//! The congestion window: slow start, congestion avoidance, reductions.

use std::fmt;

use super::bbr::Bbr;
use super::bbr3::Bbr3;
use super::cubic::{Cubic, DelaySample};
use super::dctcp::Dctcp;
use super::lola::Lola;
use super::rate_control::{Acknowledged, Controls, FlightSample, Loss, RateControl};
use super::{CongestionControl, SenderConfig};
use crate::time::{Span, Time};

/// Slow-start threshold before any loss (`TCP_INFINITE_SSTHRESH`).
const INFINITE_THRESHOLD: u32 = 0x7fff_ffff;
/// Smallest number of packets in a segment with enough data (`tcp_min_tso_segs`).
const LEAST_TSO_PACKETS: u32 = 2;

/// A user-defined congestion control algorithm, passed in [`CongestionControl::Other`]. It corresponds
/// to the kernel's `tcp_congestion_ops`; the kernel's names are in brackets.
///
/// The sender performs slow start, recovery and the reduction of the window. Windows and thresholds are
/// in packets. `examples/congestion_control.rs` of `evenkeel-sim` adds an algorithm.
// The modelled algorithms are an enumeration instead, because its dispatch is faster.
pub trait CongestionAlgorithm: fmt::Debug + Send {
    /// Handles `acknowledged` packets in congestion avoidance (`cong_avoid`). Returns the number of
    /// acknowledged packets that grow the window by one packet: at least 1; `u32::MAX` is no growth.
    fn packets_per_growth(&mut self, now: Time, window: u32, acknowledged: u32) -> u32;

    /// Returns the slow-start threshold after a loss (`ssthresh`), at least 2. Recovery reduces the
    /// window to this threshold.
    fn threshold_after_loss(&mut self, window: u32) -> u32;

    /// Handles an RTT sample of a packet (`pkts_acked`). The algorithm may set the window and the
    /// slow-start threshold.
    fn on_round_trip(&mut self, _now: Time, _rtt: Span, _window: &mut u32, _threshold: &mut u32) {}

    /// Handles a retransmission timeout (`set_state` with `TCP_CA_Loss`).
    fn on_timeout(&mut self, _now: Time) {}

    /// Handles the start of sending after idle time (`cwnd_event` with `CA_EVENT_TX_START`).
    fn on_restart(&mut self, _now: Time, _idle: Span) {}

    fn boxed_clone(&self) -> Box<dyn CongestionAlgorithm>;
}

impl Clone for Box<dyn CongestionAlgorithm> {
    fn clone(&self) -> Self {
        self.as_ref().boxed_clone()
    }
}

#[derive(Clone, Debug)]
enum Algorithm {
    Cubic(Cubic),
    Reno,
    Dctcp(Dctcp),
    /// The versions of BBR. A dynamic call per acknowledgement is cheap compared to the work of BBR.
    Controlled(Box<dyn RateControl>),
    Lola(Box<Lola>),
    Other(Box<dyn CongestionAlgorithm>),
}

/// A flow's congestion window, in packets as Linux counts it.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Congestion window (`snd_cwnd`).
    pub packets: u32,
    /// Slow-start threshold (`snd_ssthresh`).
    pub threshold: u32,
    /// Packets acknowledged towards the next packet of growth (`snd_cwnd_cnt`).
    credit: u32,
    algorithm: Algorithm,
}

impl Window {
    /// Creates the window of a new flow. `hash` is the seed of algorithms with random decisions.
    pub fn new(config: &SenderConfig, hash: u32) -> Self {
        Self {
            packets: config.initial_window.max(1),
            threshold: INFINITE_THRESHOLD,
            credit: 0,
            algorithm: match config.congestion {
                CongestionControl::Cubic => Algorithm::Cubic(Cubic::new(config.profile)),
                CongestionControl::Reno => Algorithm::Reno,
                CongestionControl::Dctcp => Algorithm::Dctcp(Dctcp::default()),
                CongestionControl::Bbr(kernel) => Algorithm::Controlled(Box::new(Bbr::new(kernel, hash))),
                CongestionControl::Bbr3 => {
                    Algorithm::Controlled(Box::new(Bbr3::new(config.initial_window, hash)))
                }
                CongestionControl::Lola { loss_reaction } => {
                    Algorithm::Lola(Box::new(Lola::new(loss_reaction, config.mss)))
                }
                CongestionControl::Other(new) => Algorithm::Other(new()),
            },
        }
    }

    pub fn in_slow_start(&self) -> bool {
        self.packets < self.threshold
    }

    /// Prepares for growth of the window. In slow start, CUBIC may begin a round of HyStart. The data in
    /// flight is from `unacknowledged` to `next`.
    pub fn begin_round(&mut self, now: Time, unacknowledged: u64, next: u64) {
        if self.in_slow_start()
            && let Algorithm::Cubic(cubic) = &mut self.algorithm
        {
            cubic.grows_in_slow_start(now, unacknowledged, next);
        }
    }

    /// Grows the window for `acknowledged` packets. The caller calls this only while the window limits
    /// the flow (`tcp_slow_start`, `bictcp_cong_avoid`, `tcp_reno_cong_avoid`).
    pub fn grow(&mut self, now: Time, acknowledged: u32) {
        if let Algorithm::Lola(lola) = &mut self.algorithm {
            return lola.grow(now, acknowledged, true, &mut self.packets, &mut self.threshold);
        }
        let mut acknowledged = acknowledged;
        if self.in_slow_start() {
            let target = self.packets.saturating_add(acknowledged).min(self.threshold);
            acknowledged -= target - self.packets;
            self.packets = target;
            if acknowledged == 0 {
                return;
            }
        }
        let each = match &mut self.algorithm {
            Algorithm::Cubic(cubic) => cubic.update(now, self.packets, acknowledged),
            Algorithm::Reno | Algorithm::Dctcp(_) => self.packets,
            Algorithm::Controlled(_) | Algorithm::Lola(_) => return,
            Algorithm::Other(other) => other.packets_per_growth(now, self.packets, acknowledged).max(1),
        };
        self.add(each, acknowledged);
    }

    /// Handles packets that were acknowledged while the window did not limit the flow. Only LoLa uses
    /// them, for its phases.
    pub fn pass(&mut self, now: Time, acknowledged: u32) {
        if let Algorithm::Lola(lola) = &mut self.algorithm {
            lola.grow(now, acknowledged, false, &mut self.packets, &mut self.threshold);
        }
    }

    /// Adds one packet per `each` acknowledged packets (`tcp_cong_avoid_ai`).
    fn add(&mut self, each: u32, acknowledged: u32) {
        // Credit that was counted with a larger `each` adds only one packet.
        if self.credit >= each {
            self.credit = 0;
            self.packets += 1;
        }
        self.credit += acknowledged;
        if self.credit >= each {
            let grown = self.credit / each;
            self.credit -= grown * each;
            self.packets += grown;
        }
    }

    /// Handles an RTT sample of a packet, which may end slow start. `sample` returns the inputs of
    /// HyStart for a window in packets.
    #[inline]
    pub fn on_delay(&mut self, now: Time, rtt: Span, sample: impl FnOnce(u32) -> DelaySample) {
        let (packets, slow_start) = (self.packets, self.in_slow_start());
        match &mut self.algorithm {
            Algorithm::Cubic(cubic) => {
                if let Some(delay) = cubic.note_delay(now, rtt, slow_start)
                    && cubic.ends_slow_start(delay, &sample(packets))
                {
                    self.threshold = packets;
                }
            }
            Algorithm::Reno | Algorithm::Controlled(_) | Algorithm::Dctcp(_) => {}
            Algorithm::Lola(lola) => lola.on_delay(now, rtt),
            Algorithm::Other(other) => {
                other.on_round_trip(now, rtt, &mut self.packets, &mut self.threshold);
                self.packets = self.packets.max(1);
            }
        }
    }

    /// Handles congestion: sets the threshold. BBR keeps the threshold and saves its window. The caller
    /// reduces the window.
    pub fn reduce(&mut self, now: Time) {
        self.credit = 0;
        self.threshold = match &mut self.algorithm {
            Algorithm::Cubic(cubic) => cubic.reduced(self.packets),
            Algorithm::Reno => (self.packets / 2).max(2),
            Algorithm::Dctcp(dctcp) => dctcp.reduced(self.packets),
            Algorithm::Controlled(control) => {
                control.begin_recovery(self.packets);
                self.threshold
            }
            Algorithm::Lola(lola) => lola.reduced(now, self.packets),
            Algorithm::Other(other) => other.threshold_after_loss(self.packets).max(2),
        };
    }

    /// Sets the threshold of a DCTCP flow at the start of recovery from a loss (`dctcp_react_to_loss`).
    pub fn enter_recovery(&mut self) {
        if self.uses_ecn() {
            self.threshold = (self.packets / 2).max(2);
        }
    }

    /// Returns whether switches may mark the flow's packets (ECN).
    pub fn uses_ecn(&self) -> bool {
        matches!(self.algorithm, Algorithm::Dctcp(_))
    }

    /// Handles an acknowledgement of `delivered` packets. Returns whether the acknowledgement reports
    /// congestion to which the flow reacts. The data in flight is from `unacknowledged` to `next`.
    pub fn on_mark_report(
        &mut self,
        is_marked: bool,
        delivered: u64,
        unacknowledged: u64,
        next: u64,
    ) -> bool {
        let Algorithm::Dctcp(dctcp) = &mut self.algorithm else { return false };
        dctcp.on_report(is_marked, delivered, unacknowledged, next);
        is_marked
    }

    /// Handles a timeout: sets the window to `packets`, and informs the algorithms that have state for
    /// timeouts.
    pub fn time_out(&mut self, now: Time, next: u64, packets: u32) {
        self.packets = packets;
        self.credit = 0;
        match &mut self.algorithm {
            Algorithm::Cubic(cubic) => cubic.reset(now, next),
            Algorithm::Reno | Algorithm::Lola(_) | Algorithm::Dctcp(_) => {}
            Algorithm::Controlled(control) => control.time_out(packets),
            Algorithm::Other(other) => other.on_timeout(now),
        }
    }

    /// Returns the state of an algorithm that sets window and pacing rate with each acknowledgement
    /// (`cong_control`), and references to the values that it sets; `None` for other algorithms.
    pub fn controlled<'s>(
        &'s mut self,
        pacing_rate: &'s mut u64,
    ) -> Option<(&'s mut dyn RateControl, Controls<'s>)> {
        let Algorithm::Controlled(control) = &mut self.algorithm else { return None };
        let controls = Controls { window: &mut self.packets, threshold: &mut self.threshold, pacing_rate };
        Some((control.as_mut(), controls))
    }

    /// Handles an acknowledgement, if the algorithm sets window and pacing rate. Returns whether such an
    /// algorithm ignores the rates of the packets in flight.
    pub fn control(&mut self, ack: &Acknowledged, sample: &FlightSample, pacing_rate: &mut u64) -> bool {
        self.controlled(pacing_rate)
            .is_some_and(|(control, mut controls)| control.control(ack, sample, &mut controls))
    }

    /// Handles packets that were found lost, if the algorithm sets window and pacing rate.
    pub fn on_loss(&mut self, loss: &Loss, pacing_rate: &mut u64) {
        if let Some((control, mut controls)) = self.controlled(pacing_rate) {
            control.on_loss(loss, &mut controls);
        }
    }

    /// Returns the smallest number of packets of a segment with enough data (`tcp_min_tso_segs`).
    pub fn least_segment(&self, pacing_rate: u64) -> u32 {
        match &self.algorithm {
            Algorithm::Controlled(control) => control.least_segment(pacing_rate),
            _ => LEAST_TSO_PACKETS,
        }
    }

    /// Returns the number of packets for which the send buffer has room (`tcp_sndbuf_expand`).
    pub fn buffered_packets(&self) -> u64 {
        match &self.algorithm {
            Algorithm::Controlled(control) => control.buffered_packets(self.packets).into(),
            _ => 2 * u64::from(self.packets),
        }
    }

    /// Undoes a reduction (`tcp_undo_cwnd_reduction`). `packets` and `threshold` are the values before
    /// the reduction.
    pub fn undo(&mut self, packets: u32, threshold: u32) {
        match &mut self.algorithm {
            Algorithm::Controlled(control) => control.undo(&mut self.packets),
            _ => self.packets = self.packets.max(packets),
        }
        self.threshold = self.threshold.max(threshold);
    }

    /// Returns the threshold after a window reduction that congestion did not cause (`tcp_current_ssthresh`
    /// outside of recovery).
    pub fn remembered_threshold(&self) -> u32 {
        self.threshold.max(self.packets / 2 + self.packets / 4)
    }

    pub fn resume(&mut self, now: Time, idle: Span) {
        match &mut self.algorithm {
            Algorithm::Cubic(cubic) => cubic.resume(now, idle),
            Algorithm::Reno | Algorithm::Controlled(_) | Algorithm::Dctcp(_) => {}
            Algorithm::Lola(lola) => lola.resume(now),
            Algorithm::Other(other) => other.on_restart(now, idle),
        }
    }

    /// Halves the window for each timeout of idle time, down to the initial window (RFC 2861;
    /// `tcp_cwnd_restart`).
    pub fn restart(&mut self, idle: Span, timeout: Span, initial: u32) {
        let floor = initial.min(self.packets);
        self.threshold = self.remembered_threshold();
        let mut idle = idle;
        while idle > timeout && self.packets > floor {
            idle -= timeout;
            self.packets /= 2;
        }
        self.packets = self.packets.max(floor);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Profile;
    use super::*;
    use crate::time::SECOND;

    fn window(congestion: CongestionControl) -> Window {
        Window::new(&SenderConfig { congestion, ..SenderConfig::new(Profile::Linux6_18) }, 0)
    }

    #[test]
    fn slow_start_doubles_a_round_trip_and_stops_at_the_threshold() {
        let mut window = window(CongestionControl::Reno);
        window.grow(Time::ZERO, 10);
        assert_eq!(window.packets, 20);
        window.threshold = 25;
        // 5 packets reach the threshold. The other 25 packets are a round trip of congestion avoidance.
        window.grow(Time::ZERO, 30);
        assert_eq!(window.packets, 26);
    }

    #[test]
    fn reno_adds_a_packet_a_round_trip_and_halves() {
        let mut window = window(CongestionControl::Reno);
        window.threshold = 10;
        for _ in 0..10 {
            window.grow(Time::ZERO, 1);
        }
        assert_eq!(window.packets, 11);
        window.reduce(Time::ZERO);
        assert_eq!(window.threshold, 5);
        window.packets = 1;
        window.reduce(Time::ZERO);
        assert_eq!(window.threshold, 2);
    }

    #[test]
    fn idle_flows_restart() {
        let mut window = window(CongestionControl::Cubic);
        window.packets = 100;
        window.threshold = 40;
        window.restart(5 * SECOND / 2, SECOND, 10);
        assert_eq!((window.packets, window.threshold), (25, 75));
        window.restart(60 * SECOND, SECOND, 10);
        assert_eq!(window.packets, 10);
        window.packets = 4;
        window.restart(60 * SECOND, SECOND, 10);
        assert_eq!(window.packets, 4);
    }
}
