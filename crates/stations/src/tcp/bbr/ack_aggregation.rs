//! Packets acknowledged in excess of the bandwidth, because acknowledgements arrive together
//! (`bbr_update_ack_aggregation`, `bbr_ack_aggregation_cwnd`).

use super::path_model::delivered_in;
use crate::tcp::rate_control::Acknowledged;
use crate::time::{MILLISECOND, Span, Time};

/// Rounds per half of the filter (`bbr_extra_acked_win_rtts`).
pub const AGGREGATION_ROUNDS: u8 = 5;
/// The allowance is at most the packets of this time at the estimated bandwidth (`bbr_extra_acked_max_us`).
const MOST: Span = 100 * MILLISECOND;
/// Packets after which an epoch ends (`bbr_ack_epoch_acked_reset_thresh`).
const EPOCH_PACKETS: u32 = 1 << 20;

#[derive(Clone, Debug, Default)]
pub struct AckAggregation {
    /// Largest excess of acknowledged packets over the bandwidth, in two windows of rounds
    /// (`extra_acked`).
    extra: [u32; 2],
    window: usize,
    rounds: u8,
    epoch_start: Time,
    epoch_packets: u32,
}

impl AckAggregation {
    /// Handles an acknowledgement. `bandwidth` is the estimated bandwidth, and `window` is the congestion
    /// window. After `rounds` rounds, the function clears the older half of the filter.
    pub fn update(
        &mut self,
        ack: &Acknowledged,
        round_started: bool,
        rounds: u8,
        bandwidth: u64,
        window: u32,
    ) {
        if ack.delivered == 0 || ack.rate.is_none() {
            return;
        }
        if round_started {
            self.rounds = self.rounds.saturating_add(1);
            if self.rounds >= rounds {
                self.rounds = 0;
                self.window ^= 1;
                self.extra[self.window] = 0;
            }
        }
        let mut expected = delivered_in(bandwidth, ack.now.since(self.epoch_start));
        let packets = self.epoch_packets.saturating_add(ack.delivered);
        if self.epoch_packets <= expected || packets >= EPOCH_PACKETS {
            (self.epoch_packets, self.epoch_start, expected) = (0, ack.now, 0);
        }
        self.epoch_packets = self.epoch_packets.saturating_add(ack.delivered).min(EPOCH_PACKETS - 1);
        let extra = self.epoch_packets.saturating_sub(expected).min(window);
        let most = &mut self.extra[self.window];
        *most = extra.max(*most);
    }

    /// Begins an epoch after idle time.
    pub fn restart(&mut self, now: Time) {
        (self.epoch_start, self.epoch_packets) = (now, 0);
    }

    /// Returns the number of packets to add to the window.
    pub fn allowance(&self, bandwidth: u64) -> u32 {
        self.extra[0].max(self.extra[1]).min(delivered_in(bandwidth, MOST))
    }
}
