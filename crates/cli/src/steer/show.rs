//! The output of `evenkeel steer`.

use std::fmt::Write;
use std::time::Duration;

use evenkeel_apply::Report;
use evenkeel_model::text::counted;
use evenkeel_report::page::{Heading, Page};
use evenkeel_steer::{Status, Step};
use serde::Serialize;
use serde_json::{Value, json};

use crate::live::End;
use crate::progress::page;
use crate::search::configuration::Configuration;

/// Maximum number of flows in a table. JSON has all flows.
const MOST_FLOWS: usize = 40;

/// Returns the first line of a session.
pub fn started(status: &Status) -> String {
    let processors = status.queues.iter().filter_map(|queue| queue.processor);
    let processors: Vec<String> = processors.map(|processor| processor.to_string()).collect();
    format!(
        "{}: driver {}, back end {} (model {}), policy {}, {} on {} {}",
        status.interface,
        status.driver.as_deref().unwrap_or("unknown"),
        status.backend,
        status.model,
        status.policy,
        counted(status.queues.len(), "queue"),
        if processors.len() == 1 { "processor" } else { "processors" },
        processors.join(", ")
    )
}

pub fn step(step: &Step, backend: &str) -> String {
    let applied = &step.applied;
    // The XDP program has an entry for each flow, even for flows that stay on the queue that the hash
    // chose.
    let noun = if backend == "xdp" { "entries of flows" } else { "filters" };
    let mut text = format!(
        "{} flows began, {} ended, {} changed: {} {noun} added, {} changed, {} removed",
        step.came, step.went, step.changed, applied.inserted, applied.replaced, applied.removed
    );
    // Writing to a string cannot fail.
    if applied.redirected > 0 {
        let noun = if backend == "rps" { "RPS masks" } else { "entries of the indirection table" };
        let _ = write!(text, ", {} {noun}", applied.redirected);
    }
    let verdict = if step.accepted { "" } else { ", rejected" };
    let _ = write!(text, "; cost {:.3}{verdict}, searched {:.0} µs", step.cost, step.search_us);
    text
}

pub fn status(status: &Status) -> String {
    let mut page = page();
    show_status(&mut page, status);
    page.finish()
}

fn show_status(page: &mut Page, status: &Status) {
    let verdict = match (status.verdict, status.cost) {
        (Some(verdict), Some(cost)) => format!("{verdict}; cost {cost:.3}"),
        _ => "not judged".to_owned(),
    };
    let count = |number: u64, noun: &str| counted(usize::try_from(number).unwrap_or(usize::MAX), noun);
    page.answer(&format!(
        "{}: policy {} {verdict}; {}, {}.",
        status.interface,
        status.policy,
        count(status.flows.len() as u64, "flow"),
        count(status.filters as u64, "filter")
    ));
    for unmet in &status.unmet {
        page.line(unmet);
    }
    let model = match status.backend {
        // A plan with `--model` has no back end.
        "none" => format!("model {}", status.model),
        backend => format!("back end {backend} (model {})", status.model),
    };
    page.line(&format!(
        "{model}, {}, the longest {:.0} µs",
        count(status.searches, "search"),
        status.longest_search_us
    ));
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let queues: Vec<Vec<String>> = status
        .queues
        .iter()
        .map(|queue| {
            vec![
                queue.queue.to_string(),
                number(queue.processor.map(u64::from)),
                number(queue.flows.map(|flows| flows as u64)),
                number(queue.packets),
                number(queue.lost),
            ]
        })
        .collect();
    let columns = [
        Heading::number("queue"),
        Heading::number("processor"),
        Heading::number("flows"),
        Heading::number("packets"),
        Heading::number("lost"),
    ];
    page.gap();
    page.table(&columns, &queues);
    let flows: Vec<Vec<String>> = status
        .flows
        .iter()
        .take(MOST_FLOWS)
        .map(|flow| {
            vec![
                number(flow.queue.map(u64::from)),
                if flow.filtered { "filter" } else { "hash" }.to_owned(),
                format!("{} {} > {}", flow.protocol, flow.source, flow.destination),
                flow.class.clone(),
                flow.process.clone().unwrap_or_else(|| "-".to_owned()),
                rate(flow.rate_bps),
            ]
        })
        .collect();
    if !flows.is_empty() {
        let columns = [
            Heading::number("queue"),
            Heading::text("by"),
            Heading::text("flow"),
            Heading::text("class"),
            Heading::text("process").dropped(2),
            Heading::number("rate").dropped(1),
        ];
        page.gap();
        page.table(&columns, &flows);
    }
    if status.flows.len() > MOST_FLOWS {
        page.line(&format!("and {} more; --format json prints all", status.flows.len() - MOST_FLOWS));
    }
    for remark in &status.remarks {
        page.line(remark);
    }
}

fn rate(bps: Option<u64>) -> String {
    match bps {
        None => "rate unknown".to_owned(),
        Some(bps @ ..1_000_000) => format!("{:.1} kbit/s", bps as f64 / 1e3),
        Some(bps) => format!("{:.1} Mbit/s", bps as f64 / 1e6),
    }
}

#[derive(Serialize)]
struct Printed<'s> {
    #[serde(flatten)]
    status: &'s Status,
    /// Only in the JSON of a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    configuration: Option<Configuration<'s>>,
    #[serde(flatten)]
    ending: Option<Ending<'s>>,
}

#[derive(Serialize)]
struct Ending<'s> {
    seconds: f64,
    end: &'static str,
    reason: Option<&'s str>,
}

/// Returns a session's status as JSON text. A tree of JSON values would need a kilobyte per flow.
pub fn json(
    status: &Status,
    configuration: Option<Configuration<'_>>,
    ended: Option<(&End, Duration)>,
) -> String {
    let ending = ended.map(|(end, elapsed)| {
        let (end, reason) = end.words();
        Ending { seconds: elapsed.as_secs_f64(), end, reason }
    });
    // Serializing cannot fail: every key is text, and the output is in memory.
    let mut text =
        serde_json::to_string_pretty(&Printed { status, configuration, ending }).unwrap_or_default();
    text.push('\n');
    text
}

/// Returns the status of a session's interface for `--format jsonl`: figures of the flows instead of all
/// flows.
pub fn devices(status: &Status, policy_error: Option<&str>) -> Value {
    let Status { interface, driver, backend, model, policy, accepted, met, cost, searches, .. } = status;
    let filtered = status.flows.iter().filter(|flow| flow.filtered).count();
    json!([{
        "name": interface, "driver": driver, "backend": backend, "model": model, "policy": policy,
        "accepted": accepted, "met": met, "cost": cost, "searches": searches, "filters": status.filters,
        "filter_changes": status.filter_changes, "flows": status.flows.len(), "filtered_flows": filtered,
        "queues": status.queues, "unmet": policy_error,
    }])
}

/// Returns the line of a status for `--format jsonl`, with the error of a changed policy.
pub fn status_line(status: &Status, policy_error: Option<&str>, seconds: f64) -> Value {
    json!({"type": "status", "schema": 1, "seconds": seconds, "devices": devices(status, policy_error)})
}

/// Returns the last line of `--format jsonl`, in the format of `fair`.
pub fn ended(status: &Status, end: &End, elapsed: Duration, report: &Report) -> Value {
    let (by, reason) = end.words();
    let mut devices = devices(status, None);
    devices[0]["settings"] = json!({
        "put_back": report.restored.len(), "left_alone": report.left_alone.len(), "failed": report.failed.len(),
    });
    json!({
        "interface": status.interface,
        "seconds": elapsed.as_secs_f64(),
        "ended": {"by": by, "device": status.interface, "reason": reason},
        "devices": devices,
    })
}
