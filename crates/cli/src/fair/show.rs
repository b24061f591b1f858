//! What `evenkeel fair` prints.

use std::fmt::Write;
use std::time::Duration;

use evenkeel_fair::{DeviceView, Observation, Status};
use serde_json::{Value, json};

use super::End;

/// Flows that a table shows of each device; JSON has all.
const MOST_FLOWS: usize = 20;

/// Bits a second, in decimal units with three digits.
fn rate(bytes: u64, seconds: f64) -> String {
    let mut value = if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 };
    let mut unit = "";
    for next in ["k", "M", "G"] {
        if value < 999.5 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    let decimals = if unit.is_empty() || value >= 99.95 { 0 } else { 1 };
    format!("{value:.decimals$} {unit}bit/s")
}

/// Rows of text with each column as wide as its widest cell; the first `left` are aligned left.
fn columns(rows: &[Vec<String>], left: usize) -> String {
    let count = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..count)
        .map(|column| {
            rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Writing to a string does not fail.
            let _ = if column < left {
                write!(line, "  {cell:<width$}")
            } else {
                write!(line, "  {cell:>width$}")
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn words(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

/// A table of an observation.
pub fn observation(seen: &Observation) -> String {
    seen.devices.iter().map(|device| device_table(device, seen.seconds)).collect::<Vec<_>>().join("\n")
}

fn device_table(device: &DeviceView, seconds: f64) -> String {
    let busy: u32 = device.queues.iter().map(|queue| queue.busy_flows).sum();
    let mut text = format!(
        "{}: driver {}, {} transmit queues, root qdisc {}, {seconds:.1} s\n",
        device.name,
        device.driver.as_deref().unwrap_or("unknown"),
        device.queues.len(),
        device.root_qdisc.as_deref().unwrap_or("none"),
    );
    let nfm = match &device.nfm_1s {
        Some(nfm) => format!("NFM 1 s: {:.2} (at most {:.2}, {} windows)", nfm.mean, nfm.max, nfm.windows),
        None => "NFM 1 s: no two flows competed for a second".to_owned(),
    };
    let _ = writeln!(
        text,
        "{} flows, {busy} of them busy; {} share their queue with another busy one; {nfm}",
        device.flows.len(),
        device.colliding_flows
    );
    let mut rows = vec![words(&["queue", "busy flows", "device counted"])];
    for queue in device
        .queues
        .iter()
        .filter(|queue| queue.busy_flows > 0 || queue.bytes.is_some_and(|bytes| bytes > 0))
    {
        let counted = queue.bytes.map_or_else(|| "-".to_owned(), |bytes| rate(bytes, seconds));
        rows.push(vec![queue.queue.to_string(), queue.busy_flows.to_string(), counted]);
    }
    if rows.len() > 1 {
        text.push_str(&columns(&rows, 0));
    }
    let mut rows = vec![words(&["protocol", "source", "destination", "queue", "rate", "share"])];
    for flow in device.flows.iter().take(MOST_FLOWS) {
        rows.push(vec![
            flow.protocol.clone(),
            flow.source.clone(),
            flow.destination.clone(),
            flow.queue.map_or_else(|| "-".to_owned(), |queue| queue.to_string()),
            rate(flow.bytes, seconds),
            format!("{:.1} %", flow.share * 100.0),
        ]);
    }
    if rows.len() > 1 {
        text.push_str(&columns(&rows, 3));
    }
    if device.flows.len() > MOST_FLOWS {
        let _ = writeln!(text, "  and {} more; --format json has all", device.flows.len() - MOST_FLOWS);
    }
    if let Some(advice) = &device.advice {
        let _ = writeln!(text, "{advice}");
    }
    text
}

/// The line that a device begins with.
pub fn started(status: &Status) -> String {
    format!(
        "{}: driver {}, {} transmit queues; completion: {}; queue weights: {}{}{}",
        status.name,
        status.driver.as_deref().unwrap_or("unknown"),
        status.weights.len(),
        status.completion,
        status.queue_weights,
        if status.balance.is_some() { "; flows take turns on shared queues" } else { "" },
        if status.batching.is_some() { "; transmit batching" } else { "" }
    )
}

/// What devices under management are doing.
pub fn status(devices: &[Status]) -> String {
    let mut rows = vec![words(&["device", "flows", "colliding", "picks", "moves", "weights by queue"])];
    for status in devices {
        let weights: Vec<String> = status.weights.iter().map(ToString::to_string).collect();
        rows.push(vec![
            status.name.clone(),
            status.flows.to_string(),
            status.colliding_flows.to_string(),
            status.picks.to_string(),
            status.moves.to_string(),
            weights.join(" "),
        ]);
    }
    let mut text = columns(&rows, 1);
    for status in devices {
        let _ = writeln!(text, "  {}: {}", status.name, status.proof);
        if status.untracked > 0 {
            let _ = writeln!(
                text,
                "  {}: the table of flows was full: {} segments of flows without a place in it were hashed",
                status.name, status.untracked
            );
        }
        if let Some(balance) = &status.balance {
            let _ = writeln!(
                text,
                "  {}: {} of {} moves for fair turns done, {:.1} ms held back each; {} given up, {} overruled",
                status.name,
                balance.done,
                balance.wanted,
                balance.mean_hold_ms,
                balance.expired,
                balance.overruled
            );
        }
        if let Some(batching) = &status.batching {
            let _ = writeln!(
                text,
                "  {}: transmit batching: {} of {} held segments left with others; {} dropped",
                status.name, batching.batches, batching.held, batching.dropped
            );
        }
        if let Some(advice) = &status.advice {
            let _ = writeln!(text, "  {advice}");
        }
    }
    text
}

/// How management ended.
pub fn ended(devices: &[evenkeel_fair::Ended]) -> String {
    let list: Vec<Status> = devices.iter().map(|device| device.status.clone()).collect();
    let mut text = status(&list);
    for device in devices {
        let _ = writeln!(text, "  {}: {}", device.status.name, device.report);
    }
    text
}

fn end_json(end: &End) -> Value {
    match end {
        End::Time => json!({"by": "time"}),
        End::Interrupted => json!({"by": "interrupt"}),
        End::Terminated => json!({"by": "termination"}),
        End::StoodBack(reason) => {
            json!({"by": "stood back", "device": reason.device, "reason": reason.reason})
        }
    }
}

/// An observation for scripts.
pub fn observation_json(seen: &Observation, end: &End) -> Value {
    json!({
        "schema": 1,
        "mode": "observe",
        "interface": seen.interface,
        "seconds": seen.seconds,
        "ended": end_json(end),
        "devices": seen.devices,
    })
}

/// How management ended, for scripts.
pub fn ended_json(interface: &str, time: Duration, devices: &[evenkeel_fair::Ended], end: &End) -> Value {
    let devices: Vec<Value> = devices
        .iter()
        .map(|device| {
            let report = &device.report;
            json!({
                "status": device.status,
                "settings": {
                    "put_back": report.restored.len(),
                    "as_before": report.unchanged.len(),
                    "left_alone": report.left_alone.len(),
                    "gone": report.gone.len(),
                    "failed": report.failed.len(),
                },
                "remarks": report.remarks(&device.status.name),
            })
        })
        .collect();
    json!({
        "schema": 1,
        "mode": "manage",
        "interface": interface,
        "seconds": time.as_secs_f64(),
        "ended": end_json(end),
        "devices": devices,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn rates_have_decimal_units() {
        assert_eq!(rate(125_000_000, 1.0), "1.0 Gbit/s");
        assert_eq!(rate(12_500, 1.0), "100 kbit/s");
        assert_eq!(rate(1, 1.0), "8 bit/s");
        assert_eq!(rate(1, 0.0), "0 bit/s");
        assert_eq!(rate(124_990_000, 1.0), "1.0 Gbit/s");
    }

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let rows = [words(&["a", "bb"]), words(&["ccc", "d"])];
        assert_eq!(columns(&rows, 1), "  a    bb\n  ccc   d\n");
        assert_eq!(columns(&rows, 2), "  a    bb\n  ccc  d\n");
    }
}
