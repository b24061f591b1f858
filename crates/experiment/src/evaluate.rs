//! From what a world observed to the metrics of a repeat.

use std::collections::BTreeMap;

use evenkeel_metrics::{CompletionTimes, FlowSeries, LatencySummary, jain, nfm};
use evenkeel_model::record::metric;
use evenkeel_model::units::BitRate;
use evenkeel_model::world::RawRepeat;

use crate::timing::Timing;

/// Metrics of a repeat. What could not be measured is absent.
pub(crate) fn metrics(raw: &RawRepeat, timing: &Timing, rate: BitRate) -> BTreeMap<String, f64> {
    let mut metrics = BTreeMap::new();
    let mut put = |key: String, value: Option<f64>| {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            metrics.insert(key, value);
        }
    };

    let payload: u64 = raw.flows.iter().map(|flow| flow.payload_bytes).sum();
    let measured = raw.elapsed.unwrap_or(timing.duration);
    put(metric::THROUGHPUT.to_owned(), Some(payload as f64 * 8.0 / measured.as_secs_f64()));
    put(metric::CPU.to_owned(), raw.busy_cores.map(|cores| cores * 100.0));
    put(metric::RETRANSMITS.to_owned(), raw.retransmits.map(|count| count as f64));
    let out_of_order: Option<u64> = raw.flows.iter().map(|flow| flow.out_of_order).sum();
    put(metric::OUT_OF_ORDER.to_owned(), out_of_order.map(|count| count as f64));

    let per_flow = |values: fn(&evenkeel_model::world::RawFlow) -> &[u64]| {
        let sums: Vec<f64> =
            raw.flows.iter().map(|flow| values(flow).iter().sum::<u64>() as f64 / flow.weight).collect();
        jain(&sums)
    };
    put(metric::JAIN_BYTES.to_owned(), per_flow(|flow| &flow.bytes));
    put(metric::JAIN_PACKETS.to_owned(), per_flow(|flow| &flow.packets));

    let series: Vec<FlowSeries> = raw
        .flows
        .iter()
        .map(|flow| FlowSeries {
            weight: flow.weight,
            bytes: flow.bytes.clone(),
            backlogged: flow.backlogged.clone(),
        })
        .collect();
    for (name, length) in &timing.windows {
        // Timing makes every window a whole number of bins, so an error cannot come from there.
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
    let completions: Vec<f64> = raw.flows.iter().filter_map(|flow| flow.completion_s).collect();
    if let Some(completion) = CompletionTimes::from_seconds(&completions) {
        for (part, value) in completion.parts() {
            put(metric::part(metric::COMPLETION, part), Some(value));
        }
    }
    metrics
}
