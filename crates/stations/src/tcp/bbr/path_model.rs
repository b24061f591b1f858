//! Quantities of the path model that both versions of BBR compute in the same way.

use crate::time::{MICROSECOND, Span};

/// Unit of gains (`BBR_UNIT`).
pub const UNIT: u32 = 256;
/// Bandwidths are packets per microsecond, scaled by this unit (`BW_UNIT`).
pub const BANDWIDTH_UNIT: u64 = 1 << 24;
/// Smallest window, with which two packets can be in flight while two are acknowledged
/// (`bbr_cwnd_min_target`).
pub const LEAST_WINDOW: u32 = 4;
/// Growth factor of the bandwidth per round. With less growth the pipe may be full
/// (`bbr_full_bw_thresh`).
pub const FULL_GROWTH: u32 = UNIT * 5 / 4;
/// Number of rounds with less growth after which the pipe is full (`bbr_full_bw_cnt`).
pub const FULL_ROUNDS: u8 = 3;
/// Percentage by which pacing is slower than the bandwidth (`bbr_pacing_margin_percent`).
pub const PACING_MARGIN_PERCENT: u64 = 1;
/// Largest payload of a segment (`GSO_LEGACY_MAX_SIZE - 1 - MAX_TCP_HEADER`), bytes.
pub const LARGEST_SEGMENT: u64 = 65_536 - 1 - 320;

/// Returns a bandwidth in packets per microsecond, scaled by [`BANDWIDTH_UNIT`].
pub fn bandwidth(packets: u32, interval: Span) -> u64 {
    narrow(scaled(packets) / u128::from(interval.max(1)))
}

/// Returns a bandwidth, scaled by [`BANDWIDTH_UNIT`] and rounded up (`bbr_calculate_bw_sample` of
/// version 3).
pub fn bandwidth_rounded_up(packets: u32, interval: Span) -> u64 {
    narrow(scaled(packets).div_ceil(u128::from(interval.max(1))))
}

fn scaled(packets: u32) -> u128 {
    u128::from(packets) * u128::from(BANDWIDTH_UNIT) * u128::from(MICROSECOND)
}

fn narrow(bandwidth: u128) -> u64 {
    u64::try_from(bandwidth).unwrap_or(u64::MAX >> 32)
}

/// Returns a rate in bytes/s: `percent` of a bandwidth, times a gain (`bbr_rate_bytes_per_sec`).
pub fn rate(bandwidth: u64, gain: u32, percent: u64, mss: u32) -> u64 {
    let scaled = u128::from(bandwidth) * u128::from(mss) * u128::from(gain) / u128::from(UNIT);
    let rate = scaled * u128::from(percent * 10_000) / u128::from(BANDWIDTH_UNIT);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// Returns the bandwidth-delay product times `gain`, in packets, rounded up (`bbr_bdp`).
pub fn product(bandwidth: u64, rtt: Span, gain: u32) -> u32 {
    // Before the first sample, `rtt` is `Span::MAX`, so the second product may exceed 128 bits.
    let scaled =
        (u128::from(bandwidth) * u128::from(rtt)).saturating_mul(u128::from(gain)) / u128::from(UNIT);
    let packets = scaled.div_ceil(u128::from(BANDWIDTH_UNIT) * u128::from(MICROSECOND));
    u32::try_from(packets).unwrap_or(u32::MAX / 4).min(u32::MAX / 4)
}

/// Returns the number of packets that a bandwidth delivers during `span`, rounded down.
pub fn delivered_in(bandwidth: u64, span: Span) -> u32 {
    let packets = u128::from(bandwidth) * u128::from(span / MICROSECOND) / u128::from(BANDWIDTH_UNIT);
    u32::try_from(packets).unwrap_or(u32::MAX)
}

/// Generates a pseudo-random number (SplitMix64).
pub fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_beyond_all_packets_has_a_limit() {
        assert_eq!(product(bandwidth_rounded_up(7748, 1), Span::MAX, 4 * UNIT), u32::MAX / 4);
        assert_eq!(product(u64::MAX, Span::MAX, u32::MAX), u32::MAX / 4);
    }
}
