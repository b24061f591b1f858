//! The output of `evenkeel status`.

use evenkeel_model::text::{counted, list};
use evenkeel_report::page::{Heading, Page};
use evenkeel_service::{Kind, ServiceStatus, WorkerStatus};
use serde_json::Value;

use crate::progress::page;

/// Formats a time in whole units, such as `3 min`.
fn time(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Returns the sum of a figure over a worker's devices, or `-` without a list of devices.
fn sum(worker: &WorkerStatus, key: &str) -> String {
    let devices = worker.devices.as_ref().and_then(Value::as_array);
    let figures =
        devices.map(|devices| devices.iter().filter_map(|device| device.get(key)?.as_u64()).sum::<u64>());
    figures.map_or_else(|| "-".to_owned(), |sum| sum.to_string())
}

/// Returns the settings that `tune` has changed on an interface, and those that it leaves alone.
fn tuned(worker: &WorkerStatus) -> Vec<String> {
    let Some(device) =
        worker.devices.as_ref().filter(|_| worker.kind == Kind::Tune).and_then(|all| all.get(0))
    else {
        return Vec::new();
    };
    let list = |key: &str| device.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or("unknown").to_owned();
    let made = list("changes");
    let made = made.iter().map(|change| {
        format!("{}: {} -> {}", text(change, "setting"), text(change, "before"), text(change, "value"))
    });
    let left = list("left");
    let left = left
        .iter()
        .map(|left| format!("{} leaves a setting alone: {}", text(left, "rule"), text(left, "why")));
    made.chain(left).collect()
}

pub fn status(status: &ServiceStatus) -> Page {
    let mut page = page();
    page.answer(&format!("{}.", status.answer()));
    if !status.interfaces.is_empty() {
        page.gap();
        let columns = [
            Heading::text("interface"),
            Heading::text("by"),
            Heading::text("state"),
            Heading::number("for"),
            Heading::number("flows"),
            Heading::number("sharing a queue"),
            Heading::number("moves").dropped(1),
            Heading::number("process").dropped(2),
            Heading::number("starts").dropped(3),
        ];
        let row = |name: &str, worker: &WorkerStatus| {
            let has_none = worker.kind == Kind::Tune || worker.devices.is_none();
            let figure = |key: &str| if has_none { "-".to_owned() } else { sum(worker, key) };
            let of_fair = |key: &str| if worker.kind == Kind::Fair { figure(key) } else { "-".to_owned() };
            vec![
                name.to_owned(),
                worker.kind.word().to_owned(),
                worker.state.words().to_owned(),
                time(worker.seconds),
                figure("flows"),
                of_fair("colliding_flows"),
                of_fair("moves"),
                worker.process.map_or_else(|| "-".to_owned(), |process| process.to_string()),
                worker.starts.to_string(),
            ]
        };
        let workers = status
            .interfaces
            .iter()
            .flat_map(|interface| interface.workers.iter().map(|worker| row(&interface.name, worker)));
        let rows: Vec<Vec<String>> = workers.collect();
        page.table(&columns, &rows);
    }
    for interface in &status.interfaces {
        for worker in &interface.workers {
            if let Some(again) = worker.again_in_s {
                page.line(&format!(
                    "{}: next attempt of {} in {}",
                    interface.name,
                    worker.kind.word(),
                    time(again)
                ));
            }
            tuned(worker).iter().for_each(|line| page.line(&format!("{}: {line}", interface.name)));
        }
    }
    if let Some(error) = &status.error {
        page.line(&format!("the configuration file has an error, so the previous one is in force: {error}"));
    }
    if !status.unmanaged.is_empty() {
        let (shown, more) = status.unmanaged.split_at(status.unmanaged.len().min(8));
        let names = list(shown.iter().map(String::as_str));
        let rest = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        page.line(&format!("not managed: {names}{rest}"));
    }
    if !status.idle_rules.is_empty() {
        let numbers: Vec<String> = status.idle_rules.iter().map(ToString::to_string).collect();
        page.line(&format!("rules without a present interface: {}", numbers.join(", ")));
    }
    let interfaces = counted(status.interfaces.len(), "interface");
    page.line(&format!(
        "service: process {}, {interfaces}, {}, for {}",
        status.process,
        status.configuration,
        time(status.seconds)
    ));
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_whole_units() {
        let shown = [0.4, 119.9, 120.0, 7199.0, 7200.0, 200_000.0].map(time);
        assert_eq!(shown, ["0 s", "119 s", "2 min", "119 min", "2 h", "2 days"]);
    }
}
