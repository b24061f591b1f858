//! Windows, bins and duration of a repeat, for the line rate of a run.

use std::collections::BTreeMap;

use evenkeel_metrics::stretched_window_ns;
use evenkeel_model::scenario::{Scenario, WorkloadKind};
use evenkeel_model::units::{BitRate, Nanoseconds};

/// Length of the longest bin of the test bed's meter, in ns.
const LONGEST_BIN: u64 = 300_000_000;

/// Times of a repeat. In most workloads, bins, windows and the duration are longer at a lower rate, so that
/// the same number of bytes pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Length of a bin of the series. A bin is the shortest window or a part of it.
    pub bin: Nanoseconds,
    /// Length of each window, by its name at the nominal rate. Each length is a whole number of bins.
    pub windows: BTreeMap<String, Nanoseconds>,
    /// Windows that are longer than a repeat at this rate. They are not measured.
    pub left_out: BTreeMap<String, Nanoseconds>,
    /// Duration of the measurement: a multiple of the longest window, or the scenario's length; 0 if the
    /// workload determines it.
    pub duration: Nanoseconds,
    /// Time before the measurement. It does not depend on the rate: TCP needs this time to settle.
    pub warmup: Nanoseconds,
}

impl Timing {
    /// Computes the times of a scenario at a rate. A repeat has `long_windows` of the longest window, unless
    /// the scenario or the workload determines its length.
    #[must_use]
    pub fn new(scenario: &Scenario, rate: BitRate, long_windows: u32) -> Self {
        if let Some(tenants) = scenario.workload.tenants() {
            return Self::of_tenants(scenario, tenants.line.then_some(rate));
        }
        if matches!(scenario.workload.kind, WorkloadKind::Transfers) {
            return Self::of_transfers(scenario);
        }
        let stretch = |length: Nanoseconds| {
            stretched_window_ns(length.as_u64(), scenario.link.rate.bits_per_second(), rate.bits_per_second())
        };
        let shortest =
            scenario.measure.windows.iter().map(|window| stretch(window.length)).min().unwrap_or(1).max(1);
        let bin = shortest.div_ceil(shortest.div_ceil(LONGEST_BIN));
        let windows: BTreeMap<String, Nanoseconds> = scenario
            .measure
            .windows
            .iter()
            .map(|window| {
                let bins = (stretch(window.length) as f64 / bin as f64).round().max(1.0) as u64;
                (window.name.clone(), Nanoseconds::new(bin.saturating_mul(bins)))
            })
            .collect();
        let longest = windows.values().copied().max().unwrap_or_default();
        Self {
            bin: Nanoseconds::new(bin),
            duration: match scenario.measure.length {
                // Clients and cores limit the requests. The length therefore does not depend on the
                // rate.
                Some(length) if scenario.workload.requests().is_some() => length,
                Some(length) => Nanoseconds::new(stretch(length)),
                None => longest.saturating_mul(u64::from(long_windows.max(1))),
            },
            windows,
            left_out: BTreeMap::new(),
            warmup: scenario.measure.warmup,
        }
    }

    fn of_transfers(scenario: &Scenario) -> Self {
        const BIN: u64 = 100_000_000;
        let duration = scenario.measure.duration();
        Self {
            bin: Nanoseconds::new(greatest_common_divisor(BIN, duration.as_u64().max(1))),
            windows: BTreeMap::new(),
            left_out: BTreeMap::new(),
            duration,
            warmup: scenario.measure.warmup,
        }
    }

    /// Computes the times for tenants. Unlike the windows, the length of a repeat does not scale with the
    /// line rate, because CPU time is measured over the whole repeat. If a line is the bottleneck, windows
    /// scale with the line's rate; otherwise, there are no windows. Windows longer than a repeat are only in
    /// `left_out`.
    fn of_tenants(scenario: &Scenario, line: Option<BitRate>) -> Self {
        const BIN: u64 = 1_000_000;
        let duration = scenario.measure.duration();
        let bin = greatest_common_divisor(BIN, duration.as_u64().max(1));
        let nominal = scenario.link.rate.bits_per_second();
        let windows = line.into_iter().flat_map(|rate| {
            scenario.measure.windows.iter().map(move |window| {
                let length = stretched_window_ns(window.length.as_u64(), nominal, rate.bits_per_second());
                let bins = (length as f64 / bin as f64).round().max(1.0) as u64;
                (window.name.clone(), Nanoseconds::new(bin.saturating_mul(bins)))
            })
        });
        let (windows, left_out) = windows.partition(|(_, length)| *length <= duration);
        Self { bin: Nanoseconds::new(bin), windows, left_out, duration, warmup: scenario.measure.warmup }
    }

    /// Returns a note about the windows that are not measured at `rate`, if any.
    #[must_use]
    pub fn note_of_left_out(&self, rate: BitRate) -> Option<String> {
        const MEGABIT: u64 = 1_000_000;
        let longest = self.left_out.values().max()?;
        let names: Vec<String> =
            self.left_out.iter().map(|(name, length)| format!("'{name}' lasts {length}")).collect();
        // If the longest window fits into a repeat, all windows fit.
        let least = u128::from(longest.as_u64()) * u128::from(rate.bits_per_second())
            / u128::from(self.duration.as_u64().max(1));
        let least = u64::try_from(least.div_ceil(MEGABIT.into())).unwrap_or(u64::MAX);
        let least = BitRate::from_bits_per_second(least.saturating_mul(MEGABIT));
        Some(format!(
            "at {rate}, windows are longer than a repeat of {}, so they have no NFM: {}; use --rate {least} or more, or \
             a longer measure.duration",
            self.duration,
            names.join(", ")
        ))
    }
}

fn greatest_common_divisor(mut first: u64, mut second: u64) -> u64 {
    while second != 0 {
        (first, second) = (second, first % second);
    }
    first
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use evenkeel_model::scenario::bundled::{bundled, variant_tables};
    use evenkeel_model::scenario::parse;

    #[test]
    fn slower_lines_get_longer_windows() {
        let (_, text) = bundled().iter().find(|(name, _)| *name == "titan-6-flows").unwrap();
        let scenario = parse(text, "test", variant_tables()).unwrap();
        let timing = Timing::new(&scenario, BitRate::from_bits_per_second(2_000_000_000), 4);
        assert_eq!(timing.windows["1ms"], Nanoseconds::from_millis(5));
        assert_eq!(timing.windows["1s"], Nanoseconds::from_secs(5));
        assert_eq!(timing.duration, Nanoseconds::from_secs(20));
        let slow = Timing::new(&scenario, BitRate::from_bits_per_second(10_000_000), 1);
        assert_eq!(slow.windows["1ms"], Nanoseconds::from_secs(1));
        assert_eq!(slow.bin, Nanoseconds::from_millis(250), "the meter has no longer bins than 300 ms");
        let mut fetching = scenario.clone();
        fetching.measure.windows.clear();
        fetching.measure.length = Some(Nanoseconds::from_secs(3));
        let timing = Timing::new(&fetching, BitRate::from_bits_per_second(2_000_000_000), 4);
        assert_eq!(timing.duration, Nanoseconds::from_secs(15));
        let (_, text) = bundled().iter().find(|(name, _)| *name == "tc-fairness").unwrap();
        let mut tenants = parse(text, "test", variant_tables()).unwrap();
        let at = |scenario: &Scenario, megabits: u64| {
            let timing = Timing::new(scenario, BitRate::from_bits_per_second(megabits * 1_000_000), 1);
            (
                timing.bin,
                timing.duration,
                timing.windows.values().map(|window| window.as_u64() / 1_000_000).collect::<Vec<_>>(),
            )
        };
        let (millisecond, five) = (Nanoseconds::from_millis(1), Nanoseconds::from_secs(5));
        assert_eq!(at(&tenants, 1000), (millisecond, five, vec![100, 1000]));
        assert_eq!(at(&tenants, 200), (millisecond, five, vec![500, 5000]));
        assert_eq!(at(&tenants, 50), (millisecond, five, vec![2000]));
        let rate = |megabits: u64| BitRate::from_bits_per_second(megabits * 1_000_000);
        let note = |megabits| Timing::new(&tenants, rate(megabits), 1).note_of_left_out(rate(megabits));
        assert_eq!(note(200), None);
        let told = "at 50mbit, windows are longer than a repeat of 5s, so they have no NFM: '1s' lasts 20s; use --rate \
                    200mbit or more, or a longer measure.duration";
        assert_eq!(note(50).as_deref(), Some(told));
        tenants.measure.length = Some(Nanoseconds::from_micros(1500));
        assert_eq!(at(&tenants, 1000).0, Nanoseconds::from_micros(500));
        // If the rate does not divide evenly, every window is still a whole number of bins.
        let odd = Timing::new(&scenario, BitRate::from_bits_per_second(3_000_000_000), 2);
        assert!(odd.windows.values().all(|window| window.as_u64() % odd.bin.as_u64() == 0));
    }
}
