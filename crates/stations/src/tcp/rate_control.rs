//! The interface of algorithms that set window and pacing rate with each acknowledgement (`cong_control` of
//! `tcp_congestion_ops`).

use std::fmt;

use super::delivery_rate::RateSample;
use super::in_flight::Flight;
use super::sender::State;
use crate::time::{Span, Time};

/// An acknowledgement, and the sender's state after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledged {
    pub now: Time,
    pub rate: Option<RateSample>,
    /// Round-trip time of the last delivered packet that was sent only once.
    pub rtt: Option<Span>,
    /// Packets delivered by this acknowledgement (`acked_sacked`), and since the start of the flow
    /// (`delivered`).
    pub delivered: u32,
    pub delivered_ever: u64,
    /// Packets found lost by this acknowledgement.
    pub lost: u32,
    /// Packets in flight before and after the acknowledgement.
    pub in_flight_before: u32,
    pub in_flight: u32,
    pub state: State,
    /// Time at which pacing allows the next segment (`tcp_wstamp_ns`).
    pub departure: Time,
    pub smoothed_rtt: Span,
    pub mss: u32,
}

/// The flight of the newest delivered packet. Only BBR version 3 uses it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlightSample {
    pub flight: Flight,
    /// Whether the window limits the flow (`is_cwnd_limited`).
    pub is_window_limited: bool,
}

/// Packets that the sender has just found lost (`skb_marked_lost`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    pub now: Time,
    pub packets: u32,
    /// `None` if the sender has no record of the transmission.
    pub flight: Option<Flight>,
    /// Packets delivered since the start of the flow (`delivered`).
    pub delivered_ever: u64,
    pub mss: u32,
}

/// Window, threshold and pacing rate of a sender, as set by the algorithm.
#[derive(Debug)]
pub(super) struct Controls<'s> {
    pub window: &'s mut u32,
    pub threshold: &'s mut u32,
    pub pacing_rate: &'s mut u64,
}

pub(super) trait RateControl: fmt::Debug + Send {
    /// Sets the minimum RTT to the RTT of the handshake.
    fn handshake(&mut self, rtt: Span);

    /// Returns the pacing rate before the first acknowledgement, bytes/s (`init`).
    fn initial_pacing_rate(&mut self, window: u32, smoothed_rtt: Span, mss: u32) -> u64;

    /// Handles an acknowledgement (`cong_control`). Returns whether the caller must ignore the rates of
    /// the packets in flight because the algorithm keeps the window small.
    fn control(&mut self, ack: &Acknowledged, sample: &FlightSample, controls: &mut Controls<'_>) -> bool;

    /// Handles packets that were found lost (`skb_marked_lost`). The sender calls this before
    /// [`Self::control`].
    fn on_loss(&mut self, _loss: &Loss, _controls: &mut Controls<'_>) {}

    /// Handles the start of recovery (`ssthresh`).
    fn begin_recovery(&mut self, window: u32);

    /// Handles a retransmission timeout, after the sender has set its window (`set_state` with
    /// `TCP_CA_Loss`).
    fn time_out(&mut self, window: u32);

    /// Handles an undo of an unnecessary recovery (`undo_cwnd`).
    fn undo(&mut self, window: &mut u32);

    /// Handles the start of sending after the application was idle (`cwnd_event` with
    /// `CA_EVENT_TX_START`).
    fn on_restart(&mut self, now: Time, mss: u32, controls: &mut Controls<'_>);

    /// Returns the smallest number of packets of a segment with enough data (`min_tso_segs`).
    fn least_segment(&self, pacing_rate: u64) -> u32;

    /// Returns the number of packets for which the send buffer must have room (`sndbuf_expand`).
    fn buffered_packets(&self, window: u32) -> u32;

    fn boxed_clone(&self) -> Box<dyn RateControl>;
}

impl Clone for Box<dyn RateControl> {
    fn clone(&self) -> Self {
        self.as_ref().boxed_clone()
    }
}
