//! Fairness metrics of competing flows.

use std::borrow::Cow;
use std::ops::Range;

use crate::ranges::{covers, merged};

#[derive(Clone, Debug, PartialEq)]
pub struct FlowSeries<'a> {
    /// The flow's weight, positive. The fair share is proportional to the weight.
    pub weight: f64,
    /// Bytes on the wire in each bin.
    pub bytes: Cow<'a, [u64]>,
    /// Bins throughout which the flow was backlogged, in any order.
    pub backlogged: Vec<Range<usize>>,
}

/// The normalised fairness metric of a measurement. 0 is perfectly fair; it can exceed 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nfm {
    pub mean: f64,
    pub max: f64,
    /// Number of windows in which at least two flows competed; at least 1.
    pub windows: usize,
}

/// Reasons why [`nfm`] cannot be computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NfmError {
    #[error("a window of {window_ns} ns is not a multiple of the bin length, {bin_ns} ns")]
    Window { window_ns: u64, bin_ns: u64 },
    #[error("the line rate is 0 bit/s; state a rate above 0")]
    LineRate,
    #[error("flow {flow} has weight {weight}; use a positive number")]
    Weight { flow: usize, weight: f64 },
}

/// Returns the normalised fairness metric NFM(τ) for τ = `window_ns`.
///
/// - The series are divided into consecutive windows from bin 0. An incomplete window at the end is
///   ignored.
/// - A window counts only the flows that were backlogged throughout the window, because an idle flow
///   needs no share.
/// - A window with fewer than two such flows is skipped.
/// - The window's value is the largest difference between any two of these flows in bytes sent per
///   weight. It is divided by the fair share per weight, `line rate · τ / Σ weights`.
///
/// After the end of a shorter series, its bins count as empty. The caller excludes the warm-up. Returns
/// `Ok(None)` if no window is left.
///
/// Source: Titan (USENIX ATC 2017), section 6, metric 4, where all flows are always backlogged and the
/// weights are 1.
///
/// # Errors
/// Returns an error if `window_ns` is not a positive multiple of `bin_ns`, the line rate is 0, or a
/// weight is not a positive finite number.
pub fn nfm(
    flows: &[FlowSeries<'_>],
    bin_ns: u64,
    window_ns: u64,
    line_rate_bps: u64,
) -> Result<Option<Nfm>, NfmError> {
    if bin_ns == 0 || window_ns == 0 || !window_ns.is_multiple_of(bin_ns) {
        return Err(NfmError::Window { window_ns, bin_ns });
    }
    if line_rate_bps == 0 {
        return Err(NfmError::LineRate);
    }
    if let Some((flow, series)) =
        flows.iter().enumerate().find(|(_, series)| !(series.weight.is_finite() && series.weight > 0.0))
    {
        return Err(NfmError::Weight { flow, weight: series.weight });
    }

    // A window with more bins than fit into memory is longer than every series.
    let Ok(bins_per_window) = usize::try_from(window_ns / bin_ns) else { return Ok(None) };
    let window_capacity = line_rate_bps as f64 / 8.0 * (window_ns as f64 / 1e9);
    let backlogged: Vec<Vec<Range<usize>>> = flows.iter().map(|flow| merged(&flow.backlogged)).collect();
    let bins = flows.iter().map(|flow| flow.bytes.len()).max().unwrap_or(0);

    let (mut sum, mut max, mut windows) = (0.0, 0.0_f64, 0_usize);
    for index in 0..bins / bins_per_window {
        let window = index * bins_per_window..(index + 1) * bins_per_window;
        let competing =
            flows.iter().zip(&backlogged).filter(|(_, set)| covers(set, &window)).map(|(flow, _)| flow);
        if let Some(value) = window_nfm(competing, &window, window_capacity) {
            sum += value;
            max = max.max(value);
            windows += 1;
        }
    }
    Ok((windows > 0).then(|| Nfm { mean: sum / windows as f64, max, windows }))
}

fn window_nfm<'a>(
    competing: impl Iterator<Item = &'a FlowSeries<'a>>,
    window: &Range<usize>,
    window_capacity: f64,
) -> Option<f64> {
    let (mut least, mut most, mut weights, mut count) = (f64::INFINITY, f64::NEG_INFINITY, 0.0, 0_usize);
    for flow in competing {
        let end = window.end.min(flow.bytes.len());
        let sent: f64 = flow.bytes[window.start.min(end)..end].iter().map(|&bytes| bytes as f64).sum();
        let normalised = sent / flow.weight;
        least = least.min(normalised);
        most = most.max(normalised);
        weights += flow.weight;
        count += 1;
    }
    (count >= 2).then(|| (most - least) / (window_capacity / weights))
}

/// Returns the window in which `rate_bps` passes as many bytes as `nominal_rate_bps` in `window_ns`: 1 ms at
/// 10 Gbit/s is 2 ms at 5 Gbit/s. The result is rounded to the nearest nanosecond.
///
/// Returns `u64::MAX` if the result does not fit, which includes a rate of 0.
#[must_use]
pub fn stretched_window_ns(window_ns: u64, nominal_rate_bps: u64, rate_bps: u64) -> u64 {
    let bits = u128::from(window_ns) * u128::from(nominal_rate_bps);
    let rate = u128::from(rate_bps);
    bits.checked_add(rate / 2)
        .and_then(|rounded| rounded.checked_div(rate))
        .and_then(|window| u64::try_from(window).ok())
        .unwrap_or(u64::MAX)
}

/// Returns Jain's fairness index `(Σx)² / (n · Σx²)`. It is 1 if all values are equal, and 1/n if only
/// one value is not 0.
///
/// The values are each flow's bytes or packets, divided by its weight if weights differ. Returns `None`
/// if there is no value, all values are 0, or a value is negative or not finite.
#[must_use]
pub fn jain(values: &[f64]) -> Option<f64> {
    if values.iter().any(|value| !value.is_finite() || *value < 0.0) {
        return None;
    }
    let largest = values.iter().copied().fold(0.0, f64::max);
    if largest == 0.0 {
        return None;
    }
    // The index does not depend on scale; with values of at most 1, no square overflows.
    let (sum, squares) = values
        .iter()
        .map(|value| value / largest)
        .fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    let count = values.len() as f64;
    Some((sum * sum / (count * squares)).clamp(1.0 / count, 1.0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::single_range_in_vec_init)]

    use super::*;

    const MILLISECOND: u64 = 1_000_000;
    /// At this rate, 1000 bytes fit into a bin of one millisecond.
    const RATE: u64 = 8_000_000;

    fn flow(weight: f64, bytes: &[u64], backlogged: &[Range<usize>]) -> FlowSeries<'static> {
        FlowSeries { weight, bytes: bytes.to_vec().into(), backlogged: backlogged.to_vec() }
    }

    fn always(weight: f64, bytes: &[u64]) -> FlowSeries<'static> {
        flow(weight, bytes, &[0..bytes.len()])
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found} is not {expected}");
    }

    #[test]
    fn equal_flows_are_perfectly_fair() {
        let flows = vec![always(1.0, &[250; 4]); 4];
        let found = nfm(&flows, MILLISECOND, 2 * MILLISECOND, RATE).unwrap().unwrap();
        assert_eq!(found, Nfm { mean: 0.0, max: 0.0, windows: 2 });
    }

    #[test]
    fn one_flow_with_twice_as_much() {
        // The shares are 250, 250 and 500 of 1000, and the fair share is 333.3: (500 - 250) / 333.3 = 0.75.
        let flows = [always(1.0, &[250; 3]), always(1.0, &[250; 3]), always(1.0, &[500; 3])];
        let found = nfm(&flows, MILLISECOND, MILLISECOND, RATE).unwrap().unwrap();
        close(found.mean, 0.75);
        close(found.max, 0.75);
        assert_eq!(found.windows, 3);
    }

    #[test]
    fn dynamic_assignment_of_12_flows_to_8_queues_is_three_quarters() {
        // Each queue sends 1/8 of the line's bytes: four queues with one flow, four with two.
        let single = always(1.0, &[9600 / 8; 5]);
        let shared = always(1.0, &[9600 / 16; 5]);
        let flows: Vec<FlowSeries> =
            std::iter::repeat_n(single, 4).chain(std::iter::repeat_n(shared, 8)).collect();
        let found = nfm(&flows, MILLISECOND, 5 * MILLISECOND, 8 * 9_600_000).unwrap().unwrap();
        close(found.mean, 0.75);
    }

    #[test]
    fn the_mean_and_the_largest_are_over_windows() {
        let flows = [always(1.0, &[500, 500, 1000, 0]), always(1.0, &[500, 500, 0, 1000])];
        // The values per bin are 0, 0, 2, 2.
        let short = nfm(&flows, MILLISECOND, MILLISECOND, RATE).unwrap().unwrap();
        assert_eq!(short, Nfm { mean: 1.0, max: 2.0, windows: 4 });
        // The flows are unfair over short windows and fair over long windows.
        let long = nfm(&flows, MILLISECOND, 4 * MILLISECOND, RATE).unwrap().unwrap();
        assert_eq!(long, Nfm { mean: 0.0, max: 0.0, windows: 1 });
    }

    #[test]
    fn it_exceeds_one_when_one_flow_takes_nearly_everything() {
        let flows = [always(1.0, &[970]), always(1.0, &[10]), always(1.0, &[10]), always(1.0, &[10])];
        close(nfm(&flows, MILLISECOND, MILLISECOND, RATE).unwrap().unwrap().mean, 960.0 / 250.0);
    }

    #[test]
    fn weights_served_in_proportion_are_fair_and_equal_service_is_not() {
        let fair = [always(2.0, &[600]), always(1.0, &[300])];
        close(nfm(&fair, MILLISECOND, MILLISECOND, RATE).unwrap().unwrap().mean, 0.0);
        // 500 / 1 - 500 / 2 = 250 against 1000 / 3.
        let equal = [always(2.0, &[500]), always(1.0, &[500])];
        close(nfm(&equal, MILLISECOND, MILLISECOND, RATE).unwrap().unwrap().mean, 0.75);
    }

    #[test]
    fn a_flow_that_starts_late_counts_from_its_first_full_window() {
        let early = always(1.0, &[500; 6]);
        let also = always(1.0, &[500; 6]);
        // Backlogged from the middle of the second window of two bins.
        let late = flow(1.0, &[0, 0, 0, 100, 400, 400], &[3..6]);
        let found = nfm(&[early, also, late], MILLISECOND, 2 * MILLISECOND, RATE).unwrap().unwrap();
        assert_eq!(found.windows, 3);
        // Only the third window has all three flows: (1000 - 800) / (2000 / 3).
        close(found.max, 0.3);
        close(found.mean, 0.1);
    }

    #[test]
    fn a_flow_with_nothing_to_send_is_owed_nothing() {
        let busy = always(1.0, &[500, 900, 500]);
        let pausing = flow(1.0, &[500, 10, 500], &[0..1, 2..3]);
        let found = nfm(&[busy, pausing], MILLISECOND, MILLISECOND, RATE).unwrap().unwrap();
        assert_eq!(found, Nfm { mean: 0.0, max: 0.0, windows: 2 });
    }

    #[test]
    fn the_fair_share_is_among_the_competing_flows_only() {
        let flows = [always(1.0, &[600]), always(1.0, &[400]), flow(7.0, &[0], &[])];
        close(nfm(&flows, MILLISECOND, MILLISECOND, RATE).unwrap().unwrap().mean, 0.4);
    }

    #[test]
    fn a_single_flow_has_no_competitor() {
        assert_eq!(nfm(&[always(1.0, &[500; 4])], MILLISECOND, MILLISECOND, RATE), Ok(None));
        assert_eq!(nfm(&[], MILLISECOND, MILLISECOND, RATE), Ok(None));
    }

    #[test]
    fn a_window_that_is_left_over_at_the_end_is_not_used() {
        let flows = [always(1.0, &[500, 500, 1000]), always(1.0, &[500, 500, 0])];
        let found = nfm(&flows, MILLISECOND, 2 * MILLISECOND, RATE).unwrap().unwrap();
        assert_eq!(found, Nfm { mean: 0.0, max: 0.0, windows: 1 });
        assert_eq!(nfm(&flows, MILLISECOND, 4 * MILLISECOND, RATE), Ok(None));
        assert_eq!(nfm(&flows, MILLISECOND, u64::MAX / MILLISECOND * MILLISECOND, RATE), Ok(None));
    }

    #[test]
    fn a_shorter_series_sent_nothing_afterwards() {
        let flows = [always(1.0, &[500, 500]), flow(1.0, &[500], &[0..2])];
        let found = nfm(&flows, MILLISECOND, MILLISECOND, RATE).unwrap().unwrap();
        assert_eq!(found, Nfm { mean: 0.5, max: 1.0, windows: 2 });
    }

    #[test]
    fn senseless_input_is_refused() {
        let flows = [always(1.0, &[1]), always(1.0, &[1])];
        assert_eq!(nfm(&flows, 3, 10, RATE), Err(NfmError::Window { window_ns: 10, bin_ns: 3 }));
        assert_eq!(nfm(&flows, 0, 10, RATE), Err(NfmError::Window { window_ns: 10, bin_ns: 0 }));
        assert_eq!(nfm(&flows, 10, 0, RATE), Err(NfmError::Window { window_ns: 0, bin_ns: 10 }));
        assert_eq!(nfm(&flows, 10, 10, 0), Err(NfmError::LineRate));
        for weight in [0.0, -1.0, f64::INFINITY] {
            let flows = [always(1.0, &[1]), always(weight, &[1])];
            assert_eq!(nfm(&flows, 10, 10, RATE), Err(NfmError::Weight { flow: 1, weight }));
        }
        assert!(matches!(
            nfm(&[always(f64::NAN, &[1])], 10, 10, RATE),
            Err(NfmError::Weight { flow: 0, .. })
        ));
    }

    #[test]
    fn a_window_is_stretched_so_that_the_same_bytes_pass() {
        assert_eq!(stretched_window_ns(MILLISECOND, 10_000_000_000, 5_000_000_000), 2 * MILLISECOND);
        assert_eq!(stretched_window_ns(MILLISECOND, 10_000_000_000, 10_000_000_000), MILLISECOND);
        assert_eq!(stretched_window_ns(MILLISECOND, 10_000_000_000, 40_000_000_000), MILLISECOND / 4);
        assert_eq!(stretched_window_ns(MILLISECOND, 10, 3), 3_333_333);
        assert_eq!(stretched_window_ns(MILLISECOND, 5, 3), 1_666_667);
        assert_eq!(stretched_window_ns(MILLISECOND, 10, 0), u64::MAX);
        assert_eq!(stretched_window_ns(u64::MAX, u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn jain_of_known_shares() {
        close(jain(&[5.0; 7]).unwrap(), 1.0);
        close(jain(&[1.0, 0.0, 0.0, 0.0]).unwrap(), 0.25);
        // (1 + 2 + 3)² / (3 · 14).
        close(jain(&[1.0, 2.0, 3.0]).unwrap(), 36.0 / 42.0);
        close(jain(&[f64::MAX, f64::MAX]).unwrap(), 1.0);
    }

    #[test]
    fn jain_of_nothing_is_not_a_number() {
        for values in [&[] as &[f64], &[0.0, 0.0], &[1.0, -1.0], &[1.0, f64::NAN], &[f64::INFINITY]] {
            assert_eq!(jain(values), None, "{values:?}");
        }
    }
}
