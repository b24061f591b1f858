//! Computes the metrics of a repeat from the world's observations.

use std::borrow::Cow;
use std::collections::BTreeMap;

use evenkeel_metrics::{CompletionTimes, FlowSeries, LatencySummary, jain, nfm};
use evenkeel_model::record::metric;
use evenkeel_model::scenario::TenantPoint;
use evenkeel_model::units::{BitRate, ByteSize};
use evenkeel_model::world::{RawRepeat, RawTransfers};

use crate::{requests, tenants};
use evenkeel_report::Timing;

/// Returns the payload that arrived in the measured time, bytes.
pub(crate) fn payload(raw: &RawRepeat) -> u64 {
    let of_clients = raw.clients.iter().flat_map(|group| &group.clients).map(|client| client.payload_bytes);
    raw.flows.iter().map(|flow| flow.payload_bytes).chain(of_clients).sum()
}

/// Returns the metrics of a repeat. Metrics that were not measured are absent.
pub(crate) fn metrics(
    raw: &RawRepeat,
    timing: &Timing,
    rate: BitRate,
    point: Option<&TenantPoint>,
) -> BTreeMap<String, f64> {
    let mut metrics = BTreeMap::new();
    let mut put = |key: String, value: Option<f64>| {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            metrics.insert(key, value);
        }
    };

    let payload = payload(raw);
    let measured = raw.elapsed.unwrap_or(timing.duration);
    // Without flows, a payload of 0 is no throughput: the payload of probes is not counted.
    let has_payload = payload > 0 || !raw.flows.is_empty();
    let throughput = has_payload.then(|| payload as f64 * 8.0 / measured.as_secs_f64());
    put(metric::THROUGHPUT.to_owned(), throughput);
    put(metric::CPU.to_owned(), raw.busy_cores.map(|cores| cores * 100.0));
    put(metric::RETRANSMITS.to_owned(), raw.retransmits.map(|count| count as f64));
    let out_of_order: Option<u64> = raw.flows.iter().map(|flow| flow.out_of_order).sum();
    let out_of_order = out_of_order.filter(|_| !raw.flows.is_empty());
    put(metric::OUT_OF_ORDER.to_owned(), out_of_order.map(|count| count as f64));

    let per_flow = |values: fn(&evenkeel_model::world::RawFlow) -> &[u64]| {
        let sums: Vec<f64> =
            raw.flows.iter().map(|flow| values(flow).iter().sum::<u64>() as f64 / flow.weight).collect();
        jain(&sums)
    };
    put(metric::JAIN_BYTES.to_owned(), per_flow(|flow| &flow.bytes));
    put(metric::JAIN_PACKETS.to_owned(), per_flow(|flow| &flow.packets));

    let series: Vec<FlowSeries<'_>> = raw
        .flows
        .iter()
        .map(|flow| FlowSeries {
            weight: flow.weight,
            bytes: Cow::Borrowed(&flow.bytes),
            backlogged: flow.backlogged.clone(),
        })
        .collect();
    // Without payload, all flows have equal shares of nothing, which is no fairness.
    for (name, length) in timing.windows.iter().filter(|_| payload > 0) {
        // Cannot fail: every window is a whole number of bins.
        let found = nfm(&series, timing.bin.as_u64(), length.as_u64(), rate.bits_per_second()).ok().flatten();
        put(metric::part(metric::NFM, name), found.map(|nfm| nfm.mean));
        put(metric::part(metric::NFM_MAX, name), found.map(|nfm| nfm.max));
    }

    let half_round_trips_ns = raw.latency_us.iter().map(|us| (us * 1000.0).round() as u64);
    if let Some(latency) = LatencySummary::from_nanoseconds(half_round_trips_ns) {
        for (part, value) in latency.parts() {
            put(metric::part(metric::LATENCY, part), Some(value));
        }
    }
    let fetches = raw.fetches.iter().map(|fetch| fetch.completion_s);
    let completions: Vec<f64> =
        raw.flows.iter().filter_map(|flow| flow.completion_s).chain(fetches).collect();
    if let Some(completion) = CompletionTimes::from_seconds(&completions) {
        for (part, value) in completion.parts() {
            put(metric::part(metric::COMPLETION, part), Some(value));
        }
    }
    let mut by_size: BTreeMap<ByteSize, Vec<f64>> = BTreeMap::new();
    for fetch in &raw.fetches {
        by_size.entry(fetch.size).or_default().push(fetch.completion_s);
    }
    for (size, completions) in by_size {
        let Some(completion) = CompletionTimes::from_seconds(&completions) else { continue };
        for (part, value) in completion.parts() {
            if metric::SIZE_PARTS.contains(&part) {
                put(metric::completion_of(size, part), Some(value));
            }
        }
    }
    metrics.extend(requests::metrics(&raw.clients));
    if let Some(transfers) = &raw.transfers {
        let retransmits = raw.retransmits.unwrap_or_default();
        metrics.extend(of_transfers(transfers, raw.busy_cores, payload, retransmits, measured.as_secs_f64()));
    }
    if let Some(point) = point {
        metrics.extend(tenants::metrics(raw, point, measured, payload));
    }
    metrics
}

/// Returns the metrics that only transfers have. `payload` is in bytes.
fn of_transfers(
    raw: &RawTransfers,
    busy_cores: Option<f64>,
    payload: u64,
    retransmits: u64,
    seconds: f64,
) -> BTreeMap<String, f64> {
    let mut metrics = BTreeMap::new();
    metrics.insert(metric::RETRANSMITS_PER_S.to_owned(), retransmits as f64 / seconds);
    metrics
        .insert(metric::RETRANSMISSION_EVENTS_PER_S.to_owned(), raw.retransmission_events as f64 / seconds);
    if let Some(cores) = busy_cores.filter(|cores| *cores > 0.0) {
        metrics.insert(metric::THROUGHPUT_PER_CORE.to_owned(), payload as f64 * 8.0 / seconds / cores);
    }
    for (part, dropped) in metric::DROPS_PARTS.into_iter().zip(raw.drops) {
        metrics.extend(dropped.map(|dropped| (metric::part(metric::DROPS, part), dropped as f64)));
    }
    let all: f64 = raw.cycles.iter().sum();
    for (part, cycles) in metric::CPU_SHARE_PARTS.into_iter().zip(raw.cycles).filter(|_| all > 0.0) {
        metrics.insert(metric::part(metric::CPU_SHARE, part), cycles / all);
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_model::units::Nanoseconds;
    use evenkeel_model::world::RawFetch;

    #[test]
    fn fetches_are_told_together_and_by_size() {
        let fetch = |kib, completion_s| RawFetch { size: ByteSize::from_kib(kib), completion_s };
        let raw = RawRepeat {
            fetches: vec![fetch(2, 0.001), fetch(64, 0.004), fetch(2, 0.002), fetch(64, 0.005)],
            ..RawRepeat::default()
        };
        let timing = Timing {
            bin: Nanoseconds::new(1),
            windows: BTreeMap::new(),
            left_out: BTreeMap::new(),
            duration: Nanoseconds::from_secs(1),
            warmup: Nanoseconds::new(0),
        };
        let metrics = metrics(&raw, &timing, BitRate::from_bits_per_second(1_000_000_000), None);
        let found: Vec<(&str, f64)> = metrics
            .iter()
            .filter(|(key, _)| key.starts_with("fct_s."))
            .map(|(key, value)| (key.as_str(), (value * 1e6).round() / 1e6))
            .collect();
        let expected = [
            ("fct_s.2KiB.mean", 0.0015),
            ("fct_s.2KiB.p50", 0.001),
            ("fct_s.2KiB.p99", 0.002),
            ("fct_s.64KiB.mean", 0.0045),
            ("fct_s.64KiB.p50", 0.004),
            ("fct_s.64KiB.p99", 0.005),
            ("fct_s.mean", 0.003),
            ("fct_s.p50", 0.002),
            ("fct_s.p80", 0.005),
            ("fct_s.p99", 0.005),
            ("fct_s.spread", 0.004),
        ];
        assert_eq!(found, expected);
    }
}
