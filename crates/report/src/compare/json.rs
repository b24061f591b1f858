//! A comparison as one JSON object.

use serde_json::{Value, json};

use super::text::{answer, scale_name};
use super::{Comparison, MetricComparison, VariantComparison};
use crate::catalogue::Direction;
use crate::json::interval;

const SCHEMA: u32 = 2;

/// Returns the JSON object of `compare`: `{"schema", "answer", "warnings", "variants": [{"name",
/// "metrics": {KEY: {"better", "scale", "first", "second", "n", "change", "interval", "verdict"}}}],
/// "only_in_first", "only_in_second", "not_compared", "lacking", "incomplete"}`.
///
/// - Metric keys are as recorded (`nfm.1s`), not nested.
/// - `better` is `higher`, `lower` or `null`.
/// - `interval` is `null` with too few repeats, or if some repeats lack the metric.
/// - With a margin, the object also has `tolerance` (a share), and each metric has `within`.
#[must_use]
pub fn json(comparison: &Comparison) -> Value {
    let mut object = json!({
        "schema": SCHEMA,
        "answer": answer(comparison).join(" "),
        "warnings": comparison.warnings,
        "variants": comparison.variants.iter().map(|one| variant(one, comparison)).collect::<Vec<_>>(),
        "only_in_first": comparison.only_in_first,
        "only_in_second": comparison.only_in_second,
        "not_compared": comparison.not_compared,
        "lacking": comparison.lacking,
        "incomplete": comparison.incomplete,
    });
    if let Some(margin) = comparison.question.within {
        object["tolerance"] = margin.into();
    }
    object
}

fn variant(variant: &VariantComparison, comparison: &Comparison) -> Value {
    let is_within = comparison.question.within.is_some();
    let metrics: serde_json::Map<String, Value> =
        variant.metrics.iter().map(|one| (one.key.clone(), metric(one, is_within))).collect();
    json!({"name": variant.name, "metrics": metrics})
}

fn metric(comparison: &MetricComparison, is_within: bool) -> Value {
    let better = match comparison.direction {
        Direction::HigherIsBetter => Some("higher"),
        Direction::LowerIsBetter => Some("lower"),
        Direction::Neutral => None,
    };
    let change = comparison.change;
    let mut object = json!({
        "better": better,
        "scale": scale_name(change.scale),
        "first": change.first,
        "second": change.second,
        "n": [change.n.0, change.n.1],
        "change": change.change,
        "interval": change.interval.map(interval),
        "verdict": comparison.verdict.name(),
    });
    if is_within {
        object["within"] = json!(comparison.within);
    }
    object
}
