//! Samples of the delivery rate (net/ipv4/tcp_rate.c; draft-cheng-iccrg-delivery-rate-estimation).
//!
//! The sender stamps each transmission with the number of packets delivered so far. When a packet is
//! delivered, the sender divides the growth of this number by the longer of two intervals: the time of the
//! transmissions, and the time of the deliveries. The result is a sample of the rate.

use std::collections::VecDeque;

use super::in_flight::{Flight, InFlightHistory};
use crate::time::{Span, Time};

/// The state at a transmission (`tcp_skb_cb.tx`).
#[derive(Clone, Copy, Debug)]
struct Stamp {
    sent_at: Time,
    /// Packets delivered before the transmission (`delivered`).
    delivered: u64,
    /// Time of the last delivery before the transmission (`delivered_mstamp`).
    delivered_at: Time,
    /// Transmission time of the last delivered packet (`first_tx_mstamp`).
    first_sent: Time,
    is_app_limited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RateSample {
    /// Packets delivered over the interval (`delivered`).
    pub delivered: u32,
    /// Length of the interval (`interval_us`), above 0.
    pub interval: Span,
    /// Packets delivered before the interval (`prior_delivered`).
    pub prior_delivered: u64,
    pub is_app_limited: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct DeliveryRate {
    /// Stamps in order of time, one for all packets of the same time. The number of stamps is limited
    /// by the packets in flight, because stamps older than a sampled packet are removed.
    stamps: VecDeque<Stamp>,
    /// Time of the last delivery (`delivered_mstamp`).
    delivered_at: Time,
    /// Transmission time of the last sampled packet (`first_tx_mstamp`).
    first_sent: Time,
    /// Number of delivered packets until which the application limits the rate (`app_limited`).
    app_limited_until: Option<u64>,
    /// Flights of packets, if the algorithm needs them.
    flights: Option<InFlightHistory>,
}

impl DeliveryRate {
    /// Creates the state of a flow that also records the flights of its packets.
    pub fn with_flights() -> Self {
        Self { flights: Some(InFlightHistory::default()), ..Self::default() }
    }

    /// Stamps the flight of a transmission. Call this function after [`Self::on_send`].
    pub fn stamp_flight(&mut self, now: Time, end: u64, in_flight: u32, lost_ever: u64) {
        if let Some(flights) = &mut self.flights {
            flights.on_send(now, end, in_flight, lost_ever, self.app_limited_until.is_some());
        }
    }

    /// Returns the flight of a packet ([`InFlightHistory::flight`]). Returns `None` if flights are not
    /// recorded, or without a stamp of `sent_at`.
    pub fn flight(&self, sent_at: Time, end: u64, lost_ever: u64, mss: u32) -> Option<Flight> {
        self.flights.as_ref()?.flight(sent_at, end, lost_ever, mss)
    }

    /// Returns whether the caller should remove old flights. Their number has then reached the limit of
    /// [`InFlightHistory`].
    pub fn has_many_flights(&self) -> bool {
        self.flights.as_ref().is_some_and(InFlightHistory::is_crowded)
    }

    pub fn remove_flights_before(&mut self, oldest: Time) {
        if let Some(flights) = &mut self.flights {
            flights.remove_before(oldest);
        }
    }

    /// Stamps a transmission (`tcp_rate_skb_sent`). `was_idle`: no packet was outstanding before the
    /// transmission.
    pub fn on_send(&mut self, now: Time, was_idle: bool, delivered: u64) {
        if was_idle {
            (self.first_sent, self.delivered_at) = (now, now);
        }
        if self.stamps.back().is_none_or(|last| last.sent_at != now) {
            self.stamps.push_back(Stamp {
                sent_at: now,
                delivered,
                delivered_at: self.delivered_at,
                first_sent: self.first_sent,
                is_app_limited: self.app_limited_until.is_some(),
            });
        }
    }

    /// Handles the delivery of packets (`tcp_rate_skb_delivered`, `tcp_rate_gen`). Returns a sample of the
    /// rate.
    ///
    /// - `newest` is the transmission time of the delivered packet that was sent last. Without a stamp of
    ///   this time, there is no sample.
    /// - `delivered` is the number of packets delivered so far.
    /// - Samples shorter than the minimum RTT are ignored: their acknowledgement is for an earlier
    ///   transmission.
    pub fn on_delivery(
        &mut self,
        now: Time,
        newest: Time,
        delivered: u64,
        minimum_rtt: Span,
    ) -> Option<RateSample> {
        if self.app_limited_until.is_some_and(|until| delivered > until) {
            self.app_limited_until = None;
        }
        self.delivered_at = now;
        while self.stamps.front().is_some_and(|stamp| stamp.sent_at < newest) {
            self.stamps.pop_front();
        }
        let stamp = *self.stamps.front().filter(|stamp| stamp.sent_at == newest)?;
        self.first_sent = newest;
        // The longer interval counts, because bursts of acknowledgements shorten the receiving
        // interval.
        let sending = newest.since(stamp.first_sent);
        let interval = sending.max(now.since(stamp.delivered_at));
        if interval == 0 || interval < minimum_rtt {
            return None;
        }
        Some(RateSample {
            delivered: u32::try_from(delivered - stamp.delivered).unwrap_or(u32::MAX),
            interval,
            prior_delivered: stamp.delivered,
            is_app_limited: stamp.is_app_limited,
        })
    }

    /// Marks the next samples as limited by the application, until `until` packets are delivered.
    pub fn limit_by_application(&mut self, until: u64) {
        self.app_limited_until = Some(until);
    }

    pub fn is_app_limited(&self) -> bool {
        self.app_limited_until.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::MILLISECOND;

    fn at(milliseconds: u64) -> Time {
        Time(milliseconds * MILLISECOND)
    }

    /// A flow of 1 packet/ms with an RTT of 20 ms.
    #[test]
    fn a_steady_flow_is_sampled_at_its_rate() {
        let mut rate = DeliveryRate::default();
        for packet in 0..40 {
            let delivered = (packet + 1_u64).saturating_sub(20);
            if delivered > 0 {
                let sample = rate.on_delivery(at(packet), at(packet - 20), delivered, 20 * MILLISECOND);
                let sample = sample.map(|sample| (sample.delivered, sample.interval));
                // These packets were sent before the first delivery.
                let expected = if packet < 40 { u32::try_from(delivered).ok() } else { None };
                assert_eq!(sample, expected.map(|expected| (expected, packet.max(20) * MILLISECOND)));
            }
            rate.on_send(at(packet), packet == 0, delivered);
        }
        // The packet sent at 20 ms was sent after the first delivery.
        let sample = rate.on_delivery(at(40), at(20), 21, 20 * MILLISECOND);
        let expected = RateSample {
            delivered: 20,
            interval: 20 * MILLISECOND,
            prior_delivered: 1,
            is_app_limited: false,
        };
        assert_eq!(sample, Some(expected));
    }

    /// Acknowledgements that arrive together do not raise the sample above the rate of sending.
    #[test]
    fn compressed_acknowledgements_do_not_raise_the_rate() {
        let mut rate = DeliveryRate::default();
        for packet in 0..10 {
            rate.on_send(at(packet), packet == 0, 0);
        }
        rate.on_delivery(at(20), at(0), 1, MILLISECOND);
        rate.on_send(at(20), false, 1);
        rate.on_delivery(at(21), at(9), 10, MILLISECOND);
        rate.on_send(at(21), false, 10);
        let sample = rate.on_delivery(at(22), at(20), 11, MILLISECOND);
        // 10 packets were acknowledged within 2 ms, and transmitted within 20 ms.
        assert_eq!(sample.map(|sample| (sample.delivered, sample.interval)), Some((10, 20 * MILLISECOND)));
    }

    #[test]
    fn short_intervals_and_unknown_packets_give_no_sample() {
        let mut rate = DeliveryRate::default();
        rate.on_send(at(0), true, 0);
        assert_eq!(rate.on_delivery(at(5), at(0), 1, 6 * MILLISECOND), None);
        assert_eq!(rate.on_delivery(at(7), at(3), 2, MILLISECOND), None);
    }

    #[test]
    fn samples_are_marked_until_the_limited_packets_are_delivered() {
        let mut rate = DeliveryRate::default();
        rate.limit_by_application(2);
        rate.on_send(at(0), true, 0);
        let limited = |sample: Option<RateSample>| sample.map(|sample| sample.is_app_limited);
        assert_eq!(limited(rate.on_delivery(at(5), at(0), 2, 0)), Some(true));
        assert!(rate.is_app_limited());
        rate.on_send(at(6), false, 2);
        rate.on_delivery(at(9), at(6), 3, 0);
        rate.on_send(at(10), false, 3);
        assert_eq!(limited(rate.on_delivery(at(15), at(10), 4, 0)), Some(false));
    }

    /// The packets in flight limit the number of stamps.
    #[test]
    fn stamps_of_delivered_packets_are_removed() {
        let mut rate = DeliveryRate::default();
        for packet in 0..10_000 {
            rate.on_send(at(packet), packet == 0, packet);
            rate.on_delivery(at(packet + 1), at(packet), packet + 1, 0);
        }
        assert!(rate.stamps.len() <= 1);
    }
}
