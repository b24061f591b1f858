//! The JSON of `run`: one object, for scripts.
//!
//! - Metric keys nest at their dot: `nfm.1s` is `metrics.nfm["1s"]`.
//! - Keys with a flow size or a group of clients nest twice: `fct_s.2KiB.p99` is
//!   `metrics.fct_s["2KiB"].p99`, `response_us.high.p99` is `metrics.response_us.high.p99`.
//! - Every metric and counter is a summary over the repeats: `{"mean", "median", "min", "max", "n"}`. A
//!   missing metric is absent.
//! - A schema version may add keys, but never changes the meaning of a key.

use std::collections::BTreeMap;
use std::path::Path;

use evenkeel_metrics::{Interval, MeanInterval, Summary};
use evenkeel_model::record::{ExpectationRecord, Record, RepeatRecord, SimCost, VariantRecord, metric};
use serde_json::{Map, Value, json};

use crate::{answer, catalogue, paired, summaries};

pub const SCHEMA: u32 = 1;

/// Returns the JSON of a run. `directory` is the record's directory, if the record has one.
#[must_use]
pub fn run(record: &Record, directory: Option<&Path>) -> Value {
    let variants: Vec<Value> = record.variants.iter().map(|variant| variant_json(record, variant)).collect();
    let mut object = object(json!({
        "schema": SCHEMA,
        "scenario": record.scenario,
        "answer": answer(record),
        "quick": record.quick,
        "world": record.world,
        "kernel": record.kernel,
        "rate_bps": record.rate_bps,
        "seed": record.seed,
        "duration_s": record.duration_s,
        "warmup_s": record.warmup_s,
        "windows": by_length(&record.windows),
        "variants": variants,
        "refused": record.refused,
    }));
    if let Some(paper) = &record.paper {
        let variants: Map<String, Value> = paper
            .variants
            .iter()
            .map(|(name, figures)| {
                let figures = figures.iter().map(|(key, figure)| (key.clone(), json!(figure))).collect();
                (name.clone(), nested(figures, record))
            })
            .collect();
        object.insert("paper".to_owned(), json!({"source": paper.source, "variants": variants}));
    }
    let expectations: Vec<Value> = record.expectations.iter().map(expectation_json).collect();
    object.insert("expectations".to_owned(), expectations.into());
    object.insert("paired".to_owned(), paired_json(record));
    if let Some(directory) = directory {
        object.insert("record".to_owned(), directory.to_string_lossy().into());
    }
    object.into()
}

/// Returns `{"mean", "median", "min", "max", "n"}`.
pub(crate) fn summary(summary: &Summary) -> Value {
    json!({
        "mean": summary.mean,
        "median": summary.median,
        "min": summary.min,
        "max": summary.max,
        "n": summary.n,
    })
}

/// Returns `{"low", "high"}`.
pub(crate) fn interval(interval: Interval) -> Value {
    json!({"low": interval.low, "high": interval.high})
}

fn variant_json(record: &Record, variant: &VariantRecord) -> Value {
    let metrics = summaries::of_metrics(variant).iter().map(|(key, s)| (key.clone(), summary(s))).collect();
    let mut object = object(json!({
        "name": variant.name,
        "repeats": variant.repeats.len(),
        "metrics": nested(metrics, record),
        "queues": variant.repeats.last().map_or(&[][..], |repeat| &repeat.queues),
    }));
    // Use the last repeat only, as for queues: a mean of per-second values over repeats has no meaning.
    if let Some(clients) =
        variant.repeats.last().map(|repeat| &repeat.clients).filter(|clients| !clients.is_empty())
    {
        object.insert("clients".to_owned(), json!(clients));
    }
    if let Some(tenants) = variant.repeats.last().and_then(|repeat| repeat.tenants.as_ref()) {
        object.insert("tenants".to_owned(), json!(tenants));
    }
    if let Some(sim) = sim_json(&variant.repeats) {
        object.insert("sim".to_owned(), sim);
    }
    if let Some(cost) = summaries::datapath(variant) {
        let mut datapath = Map::new();
        for (key, nanoseconds) in [
            ("ns_per_segment", cost.whole()),
            ("choice_ns_per_segment", cost.choice),
            ("completion_ns_per_segment", cost.completion),
        ] {
            if let Some(nanoseconds) = nanoseconds {
                datapath.insert(key.to_owned(), nanoseconds.into());
            }
        }
        datapath.insert("segments".to_owned(), cost.segments.into());
        object.insert("datapath".to_owned(), datapath.into());
    }
    let counters: Map<String, Value> =
        summaries::of_counters(variant).iter().map(|(key, s)| (key.clone(), summary(s))).collect();
    if !counters.is_empty() {
        object.insert("counters".to_owned(), counters.into());
    }
    object.insert("notes".to_owned(), json!(variant.notes));
    object.into()
}

fn sim_json(repeats: &[RepeatRecord]) -> Option<Value> {
    let mut costs = repeats.iter().filter_map(|repeat| repeat.sim).peekable();
    costs.peek()?;
    let mut sum = SimCost::default();
    for cost in costs {
        sum.packets = sum.packets.saturating_add(cost.packets);
        sum.simulated_s += cost.simulated_s;
        sum.cpu_seconds += cost.cpu_seconds;
    }
    Some(json!({"packets": sum.packets, "simulated_s": sum.simulated_s, "cpu_seconds": sum.cpu_seconds}))
}

fn expectation_json(expectation: &ExpectationRecord) -> Value {
    let ExpectationRecord { variant, metric, statistic, relative_to, repeats, met, open, .. } = expectation;
    let mut object =
        object(json!({"variant": variant, "metric": metric, "statistic": statistic, "repeats": repeats}));
    if let Some(base) = relative_to {
        object.insert("relative_to".to_owned(), json!(base));
    }
    for (name, figure) in [
        ("share", expectation.share),
        ("at_least", expectation.at_least),
        ("at_most", expectation.at_most),
        ("value", expectation.value),
        ("low", expectation.interval.map(|ends| ends.0)),
        ("high", expectation.interval.map(|ends| ends.1)),
    ] {
        if let Some(figure) = figure {
            object.insert(name.to_owned(), json!(figure));
        }
    }
    object.insert("met".to_owned(), json!(met));
    if let Some(open) = open {
        object.insert("open".to_owned(), json!(open));
    }
    object.into()
}

fn paired_json(record: &Record) -> Value {
    paired::against_baseline(record)
        .into_iter()
        .map(|paired| {
            let mut object = object(json!({"variant": paired.variant, "baseline": paired.baseline}));
            for (name, ratio) in [("cpu_ratio", paired.cpu), ("throughput_ratio", paired.throughput)] {
                if let Some(ratio) = ratio {
                    object.insert(name.to_owned(), ratio_json(&ratio));
                }
            }
            Value::from(object)
        })
        .collect()
}

/// Returns `{"mean", "low", "high", "n"}`; `low` and `high` are absent for fewer than five pairs.
fn ratio_json(ratio: &MeanInterval) -> Value {
    let mut object = Map::new();
    object.insert("mean".to_owned(), ratio.mean.into());
    if let Some(interval) = ratio.interval {
        object.insert("low".to_owned(), interval.low.into());
        object.insert("high".to_owned(), interval.high.into());
    }
    object.insert("n".to_owned(), ratio.n.into());
    object.into()
}

fn by_length(windows: &BTreeMap<String, f64>) -> Map<String, Value> {
    let mut windows: Vec<(&String, &f64)> = windows.iter().collect();
    windows.sort_by(|first, second| first.1.total_cmp(second.1));
    windows.into_iter().map(|(name, length)| (name.clone(), json!(length))).collect()
}

/// Returns the figures by key in display order, each nested at its dot.
fn nested(mut figures: BTreeMap<String, Value>, record: &Record) -> Value {
    let keys = catalogue::in_order(figures.keys().cloned().collect(), &record.windows);
    let mut root = Map::new();
    for key in keys {
        let Some(figure) = figures.remove(&key) else { continue };
        // A window's name may contain dots (`2.5ms`), so its key nests only at the first dot. Keys with a
        // size or a group of clients also nest at the next dot.
        match key.split_once('.') {
            None => {
                root.entry(key).or_insert(figure);
            }
            Some((prefix, part)) => {
                let mut group = root.entry(prefix).or_insert_with(|| Map::new().into());
                let mut part = part;
                if [metric::COMPLETION, metric::RESPONSE, metric::REQUESTS].contains(&prefix)
                    && let Some((size, of_size)) = part.split_once('.')
                    && group.is_object()
                {
                    group = &mut group[size];
                    if group.is_null() {
                        *group = Map::new().into();
                    }
                    part = of_size;
                }
                if let Some(group) = group.as_object_mut() {
                    group.insert(part.to_owned(), figure);
                }
            }
        }
    }
    root.into()
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}
