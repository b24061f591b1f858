//! The output of `evenkeel congestion`.

use std::path::Path;
use std::time::Duration;

use evenkeel_congestion::{Controls, Counters, Ended, Flow, Loaded, Settings};
use evenkeel_model::text::counted;
use evenkeel_report::page::{Heading, Page};
use serde_json::{Value, json};

use crate::live::End;
use crate::progress::page;

/// Maximum number of flows in a table. JSON has all flows.
const MOST_FLOWS: usize = 40;

fn milliseconds(microseconds: u32) -> String {
    format!("{:.1} ms", f64::from(microseconds) / 1000.0)
}

/// Describes a congestion control and its settings in one line.
pub fn started(name: &str, settings: &Settings, default: bool) -> String {
    format!(
        "{name}: TCP LoLa, target {}, balancing above {}, hold {}{}{}",
        milliseconds(settings.target_us),
        milliseconds(settings.balance_us),
        milliseconds(settings.hold_us),
        if settings.loss_reaction { "" } else { ", no reaction to losses" },
        if default { "; default of new connections in this network namespace" } else { "" }
    )
}

fn count(number: u64, noun: &str) -> String {
    counted(usize::try_from(number).unwrap_or(usize::MAX), noun)
}

fn sums(counters: &Counters) -> String {
    format!(
        "{}, {} active; {} after a loss, {} after a hold",
        count(counters.started, "flow"),
        counters.started.saturating_sub(counters.ended),
        count(counters.losses, "decrease"),
        counters.decreases
    )
}

pub fn status(name: &str, counters: &Counters, flows: &[Flow]) -> String {
    let mut page = page();
    page.answer(&format!("{name}: {}.", sums(counters)));
    show_flows(&mut page, flows);
    page.finish()
}

pub fn ended(name: &str, ended: &Ended) -> String {
    let mut page = page();
    page.answer(&format!("{name} is unloaded: {}.", sums(&ended.counters)));
    show_flows(&mut page, &ended.flows);
    if !ended.flows.is_empty() {
        page.line("these flows keep it until they end");
    }
    page.finish()
}

fn show_flows(page: &mut Page, flows: &[Flow]) {
    if flows.is_empty() {
        return;
    }
    let rows: Vec<Vec<String>> = flows
        .iter()
        .take(MOST_FLOWS)
        .map(|flow| {
            vec![
                format!(
                    "{}:{} > {}:{}",
                    flow.tuple.source,
                    flow.tuple.source_port,
                    flow.tuple.destination,
                    flow.tuple.destination_port
                ),
                flow.phase.name().to_owned(),
                flow.base_rtt_us.map_or_else(|| "-".to_owned(), milliseconds),
                measured(flow).map_or_else(|| "-".to_owned(), |flow| milliseconds(flow.queueing_us)),
                measured(flow).map_or_else(|| "-".to_owned(), |flow| flow.cwnd.to_string()),
                flow.losses.to_string(),
                flow.decreases.to_string(),
            ]
        })
        .collect();
    let columns = [
        Heading::text("flow"),
        Heading::text("phase"),
        Heading::number("base RTT"),
        Heading::number("queue"),
        Heading::number("cwnd"),
        Heading::number("losses").dropped(1),
        Heading::number("holds").dropped(2),
    ];
    page.gap();
    page.table(&columns, &rows);
    if flows.len() > MOST_FLOWS {
        page.line(&format!("and {} more; --format json prints all", flows.len() - MOST_FLOWS));
    }
}

pub fn list(controls: &Controls, loaded: Option<&[Loaded]>) -> String {
    let mut page = page();
    page.answer(&format!(
        "{} is the default of new connections; available: {}.",
        controls.default,
        controls.available.join(", ")
    ));
    page.line(&format!("any user may choose: {}", controls.allowed.join(", ")));
    let Some(loaded) = loaded else {
        page.line(
            "congestion controls that evenkeel has loaded are not shown: listing them needs CAP_SYS_ADMIN",
        );
        return page.finish();
    };
    for one in loaded {
        page.gap();
        let place = match (one.registered, one.pinned) {
            (true, true) => "pinned",
            (true, false) => "loaded by a process, or pinned in another mount namespace",
            (false, _) if one.name == controls.default => {
                "unloaded, but still the default of new connections"
            }
            (false, _) if one.flows.is_empty() => {
                "unloaded, not yet gone: another network namespace may have it as default, or a listening socket \
                 has chosen it"
            }
            (false, _) => "unloaded, kept by its flows",
        };
        page.line(&format!("{}: {place}; {}", one.name, sums(&one.counters)));
        page.line(&started(&one.name, &one.settings, false));
        show_flows(&mut page, &one.flows);
    }
    page.finish()
}

fn settings_json(settings: &Settings) -> Value {
    json!({
        "target_us": settings.target_us,
        "balance_us": settings.balance_us,
        "slow_start_us": settings.slow_start_us,
        "hold_us": settings.hold_us,
        "window_us": settings.window_us,
        "window_samples": settings.window_samples,
        "curve": settings.curve,
        "base_decreases": settings.base_decreases,
        "gamma": settings.gamma,
        "beta": settings.beta,
        "cubic": settings.cubic,
        "loss_reaction": settings.loss_reaction,
    })
}

fn counters_json(counters: &Counters) -> Value {
    json!({
        "started": counters.started,
        "ended": counters.ended,
        "unseen": counters.unseen,
        "losses": counters.losses,
        "decreases": counters.decreases,
    })
}

/// Returns the flow if it has an RTT sample. A flow that only receives has none.
fn measured(flow: &Flow) -> Option<&Flow> {
    flow.base_rtt_us.and(Some(flow))
}

fn flows_json(flows: &[Flow]) -> Value {
    let flow = |flow: &Flow| {
        json!({
            "source": flow.tuple.source.to_string(),
            "source_port": flow.tuple.source_port,
            "destination": flow.tuple.destination.to_string(),
            "destination_port": flow.tuple.destination_port,
            "age_seconds": flow.age_ns as f64 / 1e9,
            "phase": flow.phase.name(),
            "base_rtt_us": flow.base_rtt_us,
            "queueing_us": measured(flow).map(|flow| flow.queueing_us),
            "cwnd": measured(flow).map(|flow| flow.cwnd),
            "mss": measured(flow).map(|flow| flow.mss),
            "losses": flow.losses,
            "decreases": flow.decreases,
        })
    };
    flows.iter().map(flow).collect()
}

pub fn list_json(controls: &Controls, loaded: Option<&[Loaded]>) -> Value {
    let one = |one: &Loaded| {
        json!({
            "name": one.name,
            "algorithm": "lola",
            "registered": one.registered,
            "pinned": one.pinned,
            "settings": settings_json(&one.settings),
            "counters": counters_json(&one.counters),
            "flows": flows_json(&one.flows),
        })
    };
    json!({
        "default": controls.default,
        "available": controls.available,
        "allowed": controls.allowed,
        "loaded": loaded.map(|loaded| loaded.iter().map(one).collect::<Vec<_>>()),
    })
}

pub fn pinned_json(name: &str, settings: &Settings, file: &Path) -> Value {
    json!({
        "name": name,
        "algorithm": "lola",
        "settings": settings_json(settings),
        "pinned": file,
    })
}

pub fn ended_json(name: &str, settings: &Settings, ended: &Ended, end: &End, elapsed: Duration) -> Value {
    let (end, reason) = end.words();
    json!({
        "name": name,
        "algorithm": "lola",
        "settings": settings_json(settings),
        "counters": counters_json(&ended.counters),
        "flows": flows_json(&ended.flows),
        "seconds": elapsed.as_secs_f64(),
        "end": end,
        "reason": reason,
    })
}
