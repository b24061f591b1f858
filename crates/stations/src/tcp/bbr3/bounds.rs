//! Bounds of the path model that losses set.

use super::super::bbr::path_model::{LEAST_WINDOW, UNIT};
use super::super::in_flight::Flight;

/// Share of bandwidth and window that remains after a loss (1 − `bbr_beta`).
pub const LOSS_CUT: u32 = UNIT - UNIT * 30 / 100;
/// Share of lost packets above which the number of packets in flight is too high (`bbr_loss_thresh`).
pub const LOSS_THRESHOLD: u32 = UNIT * 2 / 100;
/// Share of `inflight_hi` that BBR leaves to other flows (`bbr_inflight_headroom`).
pub const HEADROOM: u32 = UNIT * 15 / 100;
/// No bound (`~0U`).
pub const UNBOUNDED: u32 = u32::MAX;

/// Bounds that losses set. `bw_lo` and `inflight_lo` hold until the next bandwidth probe; `inflight_hi`
/// is the long-term bound. All are unbounded at first.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub bandwidth_low: u64,
    pub in_flight_low: u32,
    pub in_flight_high: u32,
}

impl Bounds {
    pub const NONE: Self =
        Self { bandwidth_low: u64::MAX, in_flight_low: UNBOUNDED, in_flight_high: UNBOUNDED };

    /// Reduces `bandwidth_low` and `in_flight_low` to 70 % of their value (`bbr_init_lower_bounds`,
    /// `bbr_loss_lower_bounds`). An absent bound starts from `bandwidth` or `window`. The result is at
    /// least the latest delivery of the path (`delivered`).
    pub fn reduce(&mut self, bandwidth: u64, window: u32, delivered: (u64, u32)) {
        let low = if self.bandwidth_low == u64::MAX { bandwidth } else { self.bandwidth_low };
        let reduced = u128::from(low) * u128::from(LOSS_CUT) / u128::from(UNIT);
        self.bandwidth_low = delivered.0.max(u64::try_from(reduced).unwrap_or(u64::MAX)).max(1);
        let low = if self.in_flight_low == UNBOUNDED { window } else { self.in_flight_low };
        self.in_flight_low = delivered.1.max(share(low, LOSS_CUT));
    }

    pub fn reset_low(&mut self) {
        (self.bandwidth_low, self.in_flight_low) = (u64::MAX, UNBOUNDED);
    }

    /// Raises each bound at least to its value in `prior` (`bbr_undo_cwnd`).
    pub fn raise_to(&mut self, prior: Self) {
        self.bandwidth_low = self.bandwidth_low.max(prior.bandwidth_low);
        self.in_flight_low = self.in_flight_low.max(prior.in_flight_low);
        self.in_flight_high = self.in_flight_high.max(prior.in_flight_high);
    }

    /// Returns the long-term bound, less the headroom for other flows (`bbr_inflight_with_headroom`);
    /// [`UNBOUNDED`] if there is no bound.
    pub fn with_headroom(&self) -> u32 {
        let high = self.in_flight_high;
        if high == UNBOUNDED {
            return UNBOUNDED;
        }
        high.saturating_sub(share(high, HEADROOM).max(1)).max(LEAST_WINDOW)
    }
}

/// Returns `packets` times `gain`, rounded down. The gain is at most 1.
pub fn share(packets: u32, gain: u32) -> u32 {
    (u64::from(packets) * u64::from(gain) / u64::from(UNIT)) as u32
}

/// Returns whether too many packets of a flight were lost (`bbr_is_inflight_too_high`).
pub fn is_too_high(flight: &Flight) -> bool {
    flight.packets > 0 && flight.lost > share(flight.packets, LOSS_THRESHOLD)
}

/// Returns the number of packets in flight at which the losses reached the threshold
/// (`bbr_inflight_hi_from_lost_skb`). `lost` is the number of packets that the sender has just found lost.
/// Returns [`UNBOUNDED`] if `lost` exceeds the packets or the losses of the flight.
pub fn flight_at_threshold(flight: &Flight, lost: u32) -> u32 {
    let (Some(before), Some(lost_before)) = (flight.packets.checked_sub(lost), flight.lost.checked_sub(lost))
    else {
        return UNBOUNDED;
    };
    let allowed = (u64::from(before) * u64::from(LOSS_THRESHOLD)).div_ceil(u64::from(UNIT));
    let more = allowed.saturating_sub(u64::from(lost_before)) * u64::from(UNIT);
    let packets = u64::from(before) + more / u64::from(UNIT - LOSS_THRESHOLD);
    u32::try_from(packets).unwrap_or(UNBOUNDED)
}
