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

/// An observation that is shorter than this time, in seconds, may contain no whole second of samples. If a
/// longer observation contains none, the samples were late.
const LONGEST_WINDOW: f64 = 2.0;

pub fn observation(seen: &Observation) -> String {
    let mut page = page();
    for device in &seen.devices {
        page.gap();
        show_device(&mut page, device, seen.seconds);
    }
    page.finish()
}

fn show_device(page: &mut Page, device: &DeviceView, seconds: f64) {
    page.answer(&verdict(device, seconds));
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
    if device.incomplete {
        page.line("the meter was full: some packets are not counted");
    }
    if let Some(advice) = &device.advice {
        page.line(advice);
    }
}

fn verdict(device: &DeviceView, seconds: f64) -> String {
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
    if device.queues.len() == 1 {
        return format!("{name} has only one transmit queue: nothing to balance.");
    }
    let unknown = device.busy_flows_without_queue.unwrap_or(0);
    match (device.busy_flows, device.colliding_flows) {
        (None, _) if seconds < LONGEST_WINDOW => format!(
            "{name}: observed for {seconds:.1} s, without one whole second of samples: too short to tell which flows are \
             busy; use --for 2s or more."
        ),
        (None, _) => format!(
            "{name}: observed for {seconds:.1} s, without one whole second of samples: evenkeel could not take a sample \
             every 200 ms, because this host is too busy, so the busy flows are not known."
        ),
        (Some(0), _) => format!("{name}: no flow was busy throughout a second of {seconds:.1} s."),
        (Some(busy), None) if unknown == busy => format!(
            "{name}: {} in the busiest second; {nfm}. None of them has a known queue, so their collisions are not known.",
            counted(busy, "busy flow")
        ),
        (Some(busy), None) => format!(
            "{name}: {} in the busiest second; {nfm}. The root qdisc {} schedules all flows together, whatever queues \
             they share.",
            counted(busy, "busy flow"),
            device.root_qdisc.as_deref().unwrap_or("of the device")
        ),
        (Some(busy), Some(colliding)) => {
            let rest = match unknown {
                0 => String::new(),
                1 => " 1 busy flow has no known queue, so its collisions are not known.".to_owned(),
                many => format!(" {many} busy flows have no known queue, so their collisions are not known."),
            };
            format!(
                "{name}: {colliding} of {} share a queue with another in the busiest second; {nfm}.{rest}",
                counted(busy - unknown, "busy flow")
            )
        }
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

/// Returns the line that a session prints about a device at its start.
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
            "{}: {}, {} of them share a queue with another busy flow; {}, {}.",
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
                "  service balancing: {} of {} moves done, flows held back for {:.1} ms on average; {} expired, {} overruled",
                balance.done, balance.wanted, balance.mean_hold_ms, balance.expired, balance.overruled
            ));
        }
        if let Some(batching) = &status.batching {
            page.line(&format!(
                "  transmit batching: {} of {} held segments left with other segments; {} dropped",
                batching.batches, batching.held, batching.dropped
            ));
        }
        for line in [&status.advice, &status.unmet].into_iter().flatten() {
            page.line(&format!("  {line}"));
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
    let by = end.word();
    match end {
        End::ForeignChange(change) => json!({"by": by, "device": change.device, "reason": change.reason}),
        _ => json!({"by": by}),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn device(busy: Option<usize>, unknown: Option<usize>, colliding: Option<u32>) -> DeviceView {
        DeviceView {
            name: "eth0".to_owned(),
            driver: None,
            root_qdisc: Some("htb".to_owned()),
            queues: vec![QueueView::default(); 4],
            flows: Vec::new(),
            busy_flows: busy,
            busy_flows_without_queue: unknown,
            colliding_flows: colliding,
            incomplete: false,
            advice: None,
            nfm_1s: None,
        }
    }

    #[test]
    fn a_verdict_names_its_second_and_the_flows_without_a_queue() {
        let no_nfm = "no two flows competed for a second, so there is no NFM";
        let cases = [
            (device(Some(0), Some(0), Some(0)), "no flow was busy throughout a second of 8.0 s.".to_owned()),
            (
                device(Some(8), Some(0), Some(6)),
                format!("6 of 8 busy flows share a queue with another in the busiest second; {no_nfm}."),
            ),
            (
                device(Some(6), Some(4), Some(0)),
                format!(
                    "0 of 2 busy flows share a queue with another in the busiest second; {no_nfm}. 4 busy flows \
                     have no known queue, so their collisions are not known."
                ),
            ),
            (
                device(Some(6), Some(6), None),
                format!(
                    "6 busy flows in the busiest second; {no_nfm}. None of them has a known queue, so their \
                     collisions are not known."
                ),
            ),
            (
                device(Some(6), Some(2), None),
                format!(
                    "6 busy flows in the busiest second; {no_nfm}. The root qdisc htb schedules all flows \
                     together, whatever queues they share."
                ),
            ),
        ];
        for (device, words) in cases {
            assert_eq!(verdict(&device, 8.0), format!("eth0: {words}"));
        }
    }

    #[test]
    fn a_long_observation_without_a_window_is_not_called_too_short() {
        let unknown = device(None, None, None);
        assert!(verdict(&unknown, 1.5).contains("use --for 2s or more"), "{}", verdict(&unknown, 1.5));
        let late = verdict(&unknown, 10.0);
        assert!(late.contains("this host is too busy") && !late.contains("too short"), "{late}");
    }

    #[test]
    fn a_full_meter_is_reported() {
        let words = "the meter was full: some packets are not counted";
        for incomplete in [false, true] {
            let devices = vec![DeviceView { incomplete, ..device(Some(0), Some(0), Some(0)) }];
            let shown = observation(&Observation { interface: "eth0".to_owned(), seconds: 8.0, devices });
            assert_eq!(shown.contains(words), incomplete, "{shown}");
        }
    }
}
