//! A comparison as one JSON object.

use serde_json::{Value, json};

use super::{Comparison, MetricComparison, VariantComparison};
use crate::catalogue::Direction;
use crate::json::{interval, summary};

/// The JSON of `compare`: `{"schema", "warnings", "variants": [{"name", "metrics": {KEY: {"better",
/// "first": S, "second": S, "difference", "relative", "interval", "verdict"}}}], "only_in_first",
/// "only_in_second"}`.
///
/// Keys of metrics are as recorded (`nfm.1s`, not nested); `better` is `higher`, `lower` or `null`;
/// `relative` and `interval` are `null` where there is none. With a tolerance there are also `tolerance`, a
/// share, and for each metric `within`, a boolean.
#[must_use]
pub fn json(comparison: &Comparison) -> Value {
    let mut object = json!({
        "schema": crate::json::SCHEMA,
        "warnings": comparison.warnings,
        "variants": comparison.variants.iter().map(variant).collect::<Vec<_>>(),
        "only_in_first": comparison.only_in_first,
        "only_in_second": comparison.only_in_second,
    });
    if let Some(tolerance) = comparison.tolerance {
        object["tolerance"] = tolerance.into();
    }
    object
}

fn variant(variant: &VariantComparison) -> Value {
    let metrics: serde_json::Map<String, Value> =
        variant.metrics.iter().map(|comparison| (comparison.key.clone(), metric(comparison))).collect();
    json!({"name": variant.name, "metrics": metrics})
}

fn metric(comparison: &MetricComparison) -> Value {
    let better = match comparison.direction {
        Direction::HigherIsBetter => Some("higher"),
        Direction::LowerIsBetter => Some("lower"),
        Direction::Neutral => None,
    };
    let mut object = json!({
        "better": better,
        "first": summary(&comparison.first),
        "second": summary(&comparison.second),
        "difference": comparison.difference,
        "relative": comparison.relative,
        "interval": comparison.interval.map(interval),
        "verdict": comparison.verdict.name(),
    });
    if let Some(within) = comparison.within {
        object["within"] = within.into();
    }
    object
}
