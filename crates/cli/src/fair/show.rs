//! The output of `evenkeel fair`.

use std::time::Duration;

use evenkeel_fair::{DeviceView, FlowView, Observation, QueueView, Status};
use evenkeel_model::text::counted;
use evenkeel_model::units::mean_rate_text;
use evenkeel_report::page::{Heading, Page};
use serde_json::{Value, json};

use super::End;
use crate::progress::page;

/// Maximum number of flows per device in a table. JSON has all flows.
const MOST_FLOWS: usize = 20;

pub fn observation(seen: &Observation) -> String {
    let mut page = page();
    for device in &seen.devices {
        page.gap();
        show_device(&mut page, device, seen.seconds);
    }
    page.finish()
}

fn show_device(page: &mut Page, device: &DeviceView, seconds: f64) {
    let busy: u32 = device.queues.iter().filter_map(|queue| queue.busy_flows).sum();
    // The first whole second shows which flows are busy.
    let is_known = device.queues.iter().any(|queue| queue.busy_flows.is_some());
    let name = &device.name;
    let nfm = match &device.nfm_1s {
        Some(nfm) => format!(
            "NFM over 1 s is {:.2} (at most {:.2}, {})",
            nfm.mean,
            nfm.max,
            counted(nfm.windows, "window")
        ),
        None => "no two flows competed for a second, so there is no NFM".to_owned(),
    };
    page.answer(&match (device.queues.len(), device.colliding_flows) {
        (1, _) => format!("{name} has only one transmit queue: nothing to balance."),
        (_, None) if !is_known => format!(
            "{name}: observed for {seconds:.1} s, without one whole second of samples: too short to tell which flows are \
             busy; use --for 2s or more."
        ),
        _ if busy == 0 => format!("{name}: no busy flow in {seconds:.1} s."),
        (_, None) => format!(
            "{name}: {}; {nfm}. The root qdisc {} schedules all flows together, whatever queues they share.",
            counted(busy as usize, "busy flow"),
            device.root_qdisc.as_deref().unwrap_or("of the device")
        ),
        (_, Some(colliding)) => format!(
            "{name}: {colliding} of {} share a queue with another; {nfm}.",
            counted(busy as usize, "busy flow")
        ),
    });
    page.line(&format!(
        "driver {}, {}, root qdisc {}, observed for {seconds:.1} s, {}",
        device.driver.as_deref().unwrap_or("unknown"),
        counted(device.queues.len(), "transmit queue"),
        device.root_qdisc.as_deref().unwrap_or("none"),
        counted(device.flows.len(), "flow")
    ));
    let in_use =
        |queue: &&QueueView| queue.busy_flows > Some(0) || queue.bytes.is_some_and(|bytes| bytes > 0);
    let row = |queue: &QueueView| {
        let sent = queue.bytes.map_or_else(|| "-".to_owned(), |bytes| mean_rate_text(bytes, seconds));
        let busy = queue.busy_flows.map_or_else(|| "-".to_owned(), |flows| flows.to_string());
        vec![queue.queue.to_string(), busy, sent]
    };
    let rows: Vec<Vec<String>> = device.queues.iter().filter(in_use).map(row).collect();
    if !rows.is_empty() {
        page.gap();
        let columns =
            [Heading::number("queue"), Heading::number("busy flows"), Heading::number("device counted")];
        page.table(&columns, &rows);
    }
    let row = |flow: &FlowView| {
        vec![
            flow.protocol.clone(),
            flow.source.clone(),
            flow.destination.clone(),
            flow.queue.map_or_else(|| "-".to_owned(), |queue| queue.to_string()),
            mean_rate_text(flow.bytes, seconds),
            format!("{:.1} %", flow.share * 100.0),
        ]
    };
    let rows: Vec<Vec<String>> = device.flows.iter().take(MOST_FLOWS).map(row).collect();
    if !rows.is_empty() {
        page.gap();
        let columns = [
            Heading::text("protocol").dropped(1),
            Heading::text("source"),
            Heading::text("destination"),
            Heading::number("queue"),
            Heading::number("rate"),
            Heading::number("share").dropped(2),
        ];
        page.table(&columns, &rows);
    }
    if device.flows.len() > MOST_FLOWS {
        page.line(&format!("and {} more; --format json prints all", device.flows.len() - MOST_FLOWS));
    }
    if let Some(advice) = &device.advice {
        page.line(advice);
    }
}

/// Returns the number of the device's queues, and the number of classes if classes replace queues.
fn queues(status: &Status) -> String {
    let transmit = counted(status.queues as usize, "transmit queue");
    match status.queue_weights {
        "htb" => format!("{transmit}, {} in their place", counted(status.weights.len(), "HTB class")),
        _ => transmit,
    }
}

/// Returns the first line about a device.
pub fn started(status: &Status) -> String {
    format!(
        "{}: driver {}, {}; completion: {}; queue weights: {}{}{}",
        status.name,
        status.driver.as_deref().unwrap_or("unknown"),
        queues(status),
        status.completion,
        status.queue_weights,
        if status.balance.is_some() { "; flows alternate on shared queues" } else { "" },
        if status.batching.is_some() { "; transmit batching" } else { "" }
    )
}

pub fn status(devices: &[Status]) -> String {
    let mut page = page();
    show_status(&mut page, devices);
    page.finish()
}

fn show_status(page: &mut Page, devices: &[Status]) {
    for status in devices {
        page.answer(&format!(
            "{}: {}, {} of them share a queue with another busy one; {}, {}.",
            status.name,
            counted(status.flows, "flow"),
            status.colliding_flows,
            counted(usize::try_from(status.picks).unwrap_or(usize::MAX), "queue choice"),
            counted(usize::try_from(status.moves).unwrap_or(usize::MAX), "move")
        ));
        let weights: Vec<String> = status.weights.iter().map(ToString::to_string).collect();
        let of = if status.queue_weights == "htb" { "HTB class" } else { "queue" };
        page.line(&format!("  weights by {of}: {}", weights.join(" ")));
        page.line(&format!("  {}", status.proof));
        if status.untracked > 0 {
            page.line(&format!(
                "  the flow table was full: the kernel hashed {} segments of flows without an entry",
                status.untracked
            ));
        }
        if let Some(balance) = &status.balance {
            page.line(&format!(
                "  service balancing: {} of {} moves done, each held for {:.1} ms; {} expired, {} overruled",
                balance.done, balance.wanted, balance.mean_hold_ms, balance.expired, balance.overruled
            ));
        }
        if let Some(batching) = &status.batching {
            page.line(&format!(
                "  transmit batching: {} of {} held segments left with others; {} dropped",
                batching.batches, batching.held, batching.dropped
            ));
        }
        if let Some(advice) = &status.advice {
            page.line(&format!("  {advice}"));
        }
    }
}

pub fn ended(devices: &[evenkeel_fair::Ended]) -> String {
    let mut page = page();
    for device in devices {
        page.answer(&format!("{}: {}.", device.status.name, device.report));
    }
    let list: Vec<Status> = devices.iter().map(|device| device.status.clone()).collect();
    show_status(&mut page, &list);
    page.finish()
}

fn end_json(end: &End) -> Value {
    match end {
        End::Time => json!({"by": "time"}),
        End::Interrupted => json!({"by": "interrupt"}),
        End::Terminated => json!({"by": "termination"}),
        End::ForeignChange(reason) => {
            json!({"by": "foreign-change", "device": reason.device, "reason": reason.reason})
        }
    }
}

/// Returns the status of a running session as JSON. `seconds` is the time since its start.
pub fn status_json(devices: &[Status], seconds: f64) -> Value {
    json!({"type": "status", "seconds": seconds, "devices": devices})
}

pub fn observing_json(seen: &Observation, seconds: f64) -> Value {
    json!({"type": "status", "seconds": seconds, "devices": seen.devices})
}

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
