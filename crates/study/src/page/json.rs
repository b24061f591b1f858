//! The JSON object of `study tc`.

use std::collections::BTreeMap;

use evenkeel_metrics::MeanInterval;
use serde_json::{Map, Value, json};

use crate::conduct::{DISTURBANCE_LIMIT, MOST_ATTEMPTS};
use crate::findings::{Finding, findings, with_interval};
use crate::judgements::{claims, conservation, filter_costs};
use crate::recommend::{Recommendation, recommendations};
use crate::results::{Point, Results};

const SCHEMA: u32 = 1;

/// Returns the result of a study, with the names of its chart files.
#[must_use]
pub fn json(results: &Results, charts: &[String]) -> Value {
    let findings: Vec<Value> =
        findings(results).iter().map(|finding| finding_json(finding, &results.world)).collect();
    let recommendations: Vec<Value> = recommendations(results).iter().map(recommendation_json).collect();
    let points: Vec<Value> =
        results.points.iter().filter(|point| point.refused.is_none()).map(point_json).collect();
    let refused = results.points.iter().filter_map(|point| {
        let why = point.refused.as_ref()?;
        Some(json!({"scenario": point.scenario, "name": point.name, "why": why}))
    });
    let conservation: Vec<Value> = conservation(results)
        .iter()
        .map(|found| {
            let mut value = json!({"qdisc": found.setup, "conserves": found.answer.name()});
            put(&mut value, "lost_capacity", found.lost.as_ref());
            put(&mut value, "idle_while_backlogged", found.idle.as_ref());
            put_text(&mut value, "trace", found.trace.as_ref());
            put_text(&mut value, "why", found.why.as_ref().filter(|_| found.lost.is_none()));
            value
        })
        .collect();
    let claims: Vec<Value> = claims(results)
        .iter()
        .map(|judged| {
            let mut value = json!({
                "qdisc": judged.setup,
                "claim": judged.claim.to_string(),
                "kept": judged.answer.name(),
                "by": judged.what,
            });
            put(&mut value, "figure", judged.figure.as_ref());
            value
        })
        .collect();
    let filters: Vec<Value> = filter_costs(results)
        .iter()
        .map(|cost| {
            let mut value = json!({"qdisc": cost.setup, "classifier": cost.classifier});
            put(&mut value, "ns_per_rule_and_segment", cost.ns_per_rule.as_ref());
            put(&mut value, "throughput_ratio", cost.bandwidth_ratio.as_ref());
            if cost.ns_per_rule.is_some() {
                value["rules"] = json!([cost.rules.0, cost.rules.1]);
            }
            let is_whole = cost.ns_per_rule.is_some() && cost.bandwidth_ratio.is_some();
            put_text(&mut value, "why", cost.why.as_ref().filter(|_| !is_whole));
            value
        })
        .collect();
    let scenarios: Vec<Value> = results
        .scenarios
        .iter()
        .map(|facts| {
            json!({
                "name": facts.name,
                "line": facts.line,
                "rate_bps": facts.rate_bps.filter(|_| facts.line),
                "duration_s": facts.duration_s,
            })
        })
        .collect();
    json!({
        "schema": SCHEMA,
        "study": "tc",
        "world": results.world,
        "kernel": results.kernel,
        "evenkeel": results.evenkeel,
        "effort": if results.quick { "quick" } else { "full" },
        "seed": results.seed,
        "started": results.times.0,
        "ended": results.times.1,
        "took_s": results.took_s,
        "host": results.host,
        "scenarios": scenarios,
        "runs": {
            "all": results.runs.all,
            "disturbed": results.runs.disturbed,
            "failed": results.runs.failed,
            "left_disturbed": results.runs.left_disturbed,
            "missing": results.runs.missing,
            "disturbance_limit": DISTURBANCE_LIMIT,
            "most_attempts": MOST_ATTEMPTS,
        },
        "findings": findings,
        "recommendations": recommendations,
        "work_conservation": conservation,
        "claims": claims,
        "filter_costs": filters,
        "points": points,
        "refused": refused.collect::<Vec<Value>>(),
        "charts": charts,
    })
}

fn put(value: &mut Value, key: &str, mean: Option<&MeanInterval>) {
    if let Some(mean) = mean {
        value[key] = with_interval(mean);
    }
}

fn put_text(value: &mut Value, key: &str, text: Option<&String>) {
    if let Some(text) = text {
        value[key] = json!(text);
    }
}

fn finding_json(finding: &Finding, world: &str) -> Value {
    json!({
        "id": finding.id,
        "verdict": finding.verdict.name(),
        "world": world,
        "statement": finding.statement,
        "criterion": finding.criterion,
        "figures": finding.figures,
        "n": finding.n,
        "reason": finding.reason,
    })
}

fn recommendation_json(recommendation: &Recommendation) -> Value {
    let ranking: Vec<Value> = recommendation
        .ranking
        .iter()
        .map(|ranked| {
            let mut value = json!({
                "qdisc": ranked.setup,
                "value": ranked.value,
                "score": with_interval(&ranked.score),
                "tie": ranked.tie,
            });
            put(&mut value, "behind_best", ranked.behind.as_ref());
            value
        })
        .collect();
    json!({
        "need": recommendation.need,
        "scenario": recommendation.scenario,
        "metric": recommendation.metric,
        "best": recommendation.best,
        "n": recommendation.n,
        "ranking": ranking,
        "not_measured": recommendation.missing,
    })
}

fn point_json(point: &Point) -> Value {
    let mut metrics: BTreeMap<&str, Value> = BTreeMap::new();
    for key in point.metrics() {
        let (Some(summary), Some(mean)) = (point.summary(key), point.mean(key)) else { continue };
        let mut value = json!({
            "mean": summary.mean,
            "median": summary.median,
            "min": summary.min,
            "max": summary.max,
            "n": summary.n,
        });
        if let Some(interval) = mean.interval {
            value["low"] = interval.low.into();
            value["high"] = interval.high.into();
        }
        metrics.insert(key, value);
    }
    let axes: Map<String, Value> =
        point.axes.iter().map(|(axis, value)| (axis.clone(), json!(value))).collect();
    let mut value = json!({
        "scenario": point.scenario,
        "name": point.name,
        "qdisc": point.setup,
        "axes": axes,
        "repeats": point.repeats.len(),
        "metrics": nested(metrics),
        "notes": point.notes,
    });
    put_text(&mut value, "trace", point.trace.as_ref());
    if !point.failures.is_empty() {
        value["failures"] = json!(point.failures);
    }
    value
}

/// Nests the figures at the dot of their keys, as in the JSON of `run`.
fn nested(figures: BTreeMap<&str, Value>) -> Value {
    let mut root = Map::new();
    for (key, figure) in figures {
        match key.split_once('.') {
            None => {
                root.insert(key.to_owned(), figure);
            }
            Some((prefix, part)) => {
                let group = root.entry(prefix).or_insert_with(|| Map::new().into());
                group[part] = figure;
            }
        }
    }
    root.into()
}
