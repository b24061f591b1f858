//! Whether two studies agree, for people and for scripts.

use std::fmt::Write;

use evenkeel_report::describe;
use serde_json::{Value, json};

use crate::agreement::Agreement;

/// The comparison as one JSON object.
#[must_use]
pub fn agreement_json(agreement: &Agreement) -> Value {
    let (agree, all) = agreement.counts();
    let compared: Vec<Value> = agreement
        .compared
        .iter()
        .map(|compared| {
            json!({
                "point": compared.point,
                "metric": compared.metric,
                "first": compared.means.0,
                "second": compared.means.1,
                "interval": compared.interval.map(|interval| json!({"low": interval.low, "high": interval.high})),
                "agrees": compared.agrees,
            })
        })
        .collect();
    json!({
        "warnings": agreement.warnings,
        "agree": agree,
        "judged": all,
        "share": agreement.share(),
        "only_in_one": agreement.only_in_one,
        "compared": compared,
    })
}

/// The comparison as text: how many agree, and those that do not.
#[must_use]
pub fn agreement_table(agreement: &Agreement) -> String {
    let mut text = String::new();
    for warning in &agreement.warnings {
        // Writing to a string does not fail.
        let _ = writeln!(text, "warning: {warning}");
    }
    let (agree, all) = agreement.counts();
    let share = agreement.share().map(|share| format!(" ({:.1} %)", share * 100.0)).unwrap_or_default();
    let _ = writeln!(
        text,
        "{agree} of {all} figures agree within their 95 % confidence intervals{share}; 95 % would by chance."
    );
    if agreement.only_in_one > 0 {
        let _ = writeln!(text, "{} points are only in one of them.", agreement.only_in_one);
    }
    for compared in agreement.compared.iter().filter(|compared| compared.agrees == Some(false)) {
        let description = describe(compared.metric);
        let _ = writeln!(
            text,
            "  {}: {} {} and {}",
            compared.point,
            description.label(),
            description.show_with_unit(compared.means.0),
            description.show_with_unit(compared.means.1)
        );
    }
    text
}
