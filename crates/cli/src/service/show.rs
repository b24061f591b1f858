//! The output of `evenkeel status`.

use evenkeel_model::text::{counted, list};
use evenkeel_report::page::{Heading, Page};
use evenkeel_service::{InterfaceStatus, ServiceStatus};
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

/// Returns the sum of a counter over an interface's devices.
fn sum(interface: &InterfaceStatus, key: &str) -> String {
    let devices = interface.devices.as_ref().and_then(Value::as_array);
    let figures =
        devices.map(|devices| devices.iter().filter_map(|device| device.get(key)?.as_u64()).sum::<u64>());
    figures.map_or_else(|| "-".to_owned(), |sum| sum.to_string())
}

pub fn status(status: &ServiceStatus) -> Page {
    let mut page = page();
    page.answer(&format!("{}.", status.answer()));
    if !status.interfaces.is_empty() {
        page.gap();
        let columns = [
            Heading::text("interface"),
            Heading::text("state"),
            Heading::number("for"),
            Heading::number("flows"),
            Heading::number("sharing a queue"),
            Heading::number("moves").dropped(1),
            Heading::number("process").dropped(2),
            Heading::number("starts").dropped(3),
        ];
        let row = |interface: &InterfaceStatus| {
            vec![
                interface.name.clone(),
                interface.state.words().to_owned(),
                time(interface.seconds),
                sum(interface, "flows"),
                sum(interface, "colliding_flows"),
                sum(interface, "moves"),
                interface.process.map_or_else(|| "-".to_owned(), |process| process.to_string()),
                interface.starts.to_string(),
            ]
        };
        let rows: Vec<Vec<String>> = status.interfaces.iter().map(row).collect();
        page.table(&columns, &rows);
    }
    for interface in &status.interfaces {
        if let Some(again) = interface.again_in_s {
            page.line(&format!("{}: next attempt in {}", interface.name, time(again)));
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
