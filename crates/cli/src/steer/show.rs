//! What `evenkeel steer` prints.

use std::fmt::Write;
use std::time::Duration;

use evenkeel_steer::{Status, Step};
use serde_json::{Value, json};

use super::End;

/// Flows that a table shows; JSON has all.
const MOST_FLOWS: usize = 40;

/// What a session begins with, as one line.
pub fn started(status: &Status) -> String {
    let processors: Vec<String> = status.queues.iter().map(|queue| queue.processor.to_string()).collect();
    format!(
        "{}: driver {}, back end {} (model {}), policy {}, {} queues on processors {}",
        status.interface,
        status.driver.as_deref().unwrap_or("unknown"),
        status.backend,
        status.model,
        status.policy,
        status.queues.len(),
        processors.join(", ")
    )
}

/// What one look at the flows led to, as one line.
pub fn step(step: &Step) -> String {
    let applied = &step.applied;
    let mut text = format!(
        "{} flows came, {} went, {} changed: {} filters in, {} changed, {} out",
        step.came, step.went, step.changed, applied.inserted, applied.replaced, applied.removed
    );
    // Writing to a string does not fail.
    if applied.redirected > 0 {
        let _ = write!(text, ", {} entries of the indirection table", applied.redirected);
    }
    let verdict = if step.accepted { "" } else { ", rejected" };
    let _ = write!(text, "; cost {:.3}{verdict}, searched {:.0} µs", step.cost, step.search_us);
    text
}

/// A table of what is going on.
pub fn status(status: &Status) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_status(&mut text, status);
    text
}

fn write_status(text: &mut String, status: &Status) -> std::fmt::Result {
    let verdict = match (status.accepted, status.cost) {
        (Some(true), Some(cost)) => format!("accepted, cost {cost:.3}"),
        (Some(false), Some(cost)) => format!("rejected, cost {cost:.3}"),
        _ => "not judged".to_owned(),
    };
    writeln!(
        text,
        "{}: {} flows, policy {} {verdict}; {} filters of {} ({}), {} searches, the longest {:.0} µs",
        status.interface,
        status.flows.len(),
        status.policy,
        status.filters,
        status.model,
        status.backend,
        status.searches,
        status.longest_search_us
    )?;
    writeln!(text, "  {:>5}  {:>9}  {:>6}  {:>12}  {:>8}", "queue", "processor", "flows", "packets", "lost")?;
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    for queue in &status.queues {
        writeln!(
            text,
            "  {:>5}  {:>9}  {:>6}  {:>12}  {:>8}",
            queue.queue,
            queue.processor,
            number(queue.flows.map(|flows| flows as u64)),
            number(queue.packets),
            number(queue.lost)
        )?;
    }
    for flow in status.flows.iter().take(MOST_FLOWS) {
        let how = if flow.filtered { "filter" } else { "hash" };
        let queue = number(flow.queue.map(u64::from));
        let process = flow.process.as_deref().unwrap_or("-");
        writeln!(
            text,
            "  queue {queue:<3} {how:<6}  {} {} > {}  class {}, {process}, {}",
            flow.protocol,
            flow.source,
            flow.destination,
            flow.class,
            rate(flow.rate_bps)
        )?;
    }
    if status.flows.len() > MOST_FLOWS {
        writeln!(text, "  and {} more; --format json has all", status.flows.len() - MOST_FLOWS)?;
    }
    for unmet in &status.unmet {
        writeln!(text, "not met: {unmet}")?;
    }
    for remark in &status.remarks {
        writeln!(text, "{remark}")?;
    }
    Ok(())
}

fn rate(bps: u64) -> String {
    match bps {
        0 => "rate unknown".to_owned(),
        1..1_000_000 => format!("{:.1} kbit/s", bps as f64 / 1e3),
        _ => format!("{:.1} Mbit/s", bps as f64 / 1e6),
    }
}

/// The same for scripts.
pub fn json(status: &Status, end: Option<&End>, elapsed: Duration) -> Value {
    let mut value = json!(status);
    if let (Some(object), Some(end)) = (value.as_object_mut(), end) {
        let (end, reason) = match end {
            End::Time => ("time", None),
            End::Interrupted => ("interrupted", None),
            End::Terminated => ("terminated", None),
            End::StoodBack(reason) => ("stood-back", Some(reason.as_str())),
        };
        object.insert("seconds".to_owned(), elapsed.as_secs_f64().into());
        object.insert("end".to_owned(), end.into());
        object.insert("reason".to_owned(), reason.into());
    }
    value
}
