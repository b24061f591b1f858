//! One row per setup with its main figures, the source of `docs/explanation/qdiscs.md`.

use std::fmt::Write;

use evenkeel_model::record::metric;
use evenkeel_report::describe;

use super::markdown::cell;
use crate::judgements::conservation;
use crate::results::{Point, Results};

/// A column: heading, scenario, metric, and the points of the scenario to use.
struct Column {
    name: &'static str,
    scenario: &'static str,
    metric: String,
    keep: fn(&Point) -> bool,
}

fn columns() -> [Column; 6] {
    let column = |name, scenario, metric, keep| Column { name, scenario, metric, keep };
    let has_length = |point: &Point| point.axis("length") == Some("64KiB");
    [
        column("bandwidth, 64 KiB writes", "tc-clients", metric::THROUGHPUT.to_owned(), has_length),
        column("CPU for each GB", "tc-clients", metric::part(metric::CPU_PER_GB, "busy"), has_length),
        column("latency without load", "tc-latency", metric::part(metric::LATENCY, "mean"), |point| {
            point.number("probes") == Some(1.0) && point.axis("message") == Some("1KiB")
        }),
        column("latency under load, mean", "tc-priority", metric::part(metric::LATENCY, "mean"), |point| {
            point.number("clients").is_some_and(|clients| clients > 0.0)
        }),
        column("latency under load, p99", "tc-priority", metric::part(metric::LATENCY, "p99"), |point| {
            point.number("clients").is_some_and(|clients| clients > 0.0)
        }),
        column("Jain, mixed writes", "tc-fairness-mixed", metric::JAIN_BYTES.to_owned(), |_| true),
    ]
}

/// Returns the table of all setups, with the machine and the date.
#[must_use]
pub fn qdisc_table(results: &Results) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text, results);
    text
}

fn write(text: &mut String, results: &Results) -> std::fmt::Result {
    let columns = columns();
    let machine: Vec<&str> =
        ["cpu", "cpus"].iter().filter_map(|fact| results.host.get(*fact)).map(String::as_str).collect();
    let date = results.times.0.split('T').next().unwrap_or_default();
    writeln!(
        text,
        "Measured on {date}: {}, kernel {}{}; evenkeel {}, {} study, seed {}.\n",
        results.world,
        cell(&results.kernel),
        if machine.is_empty() { String::new() } else { format!(", {}", cell(&machine.join(", "))) },
        results.evenkeel,
        if results.quick { "quick" } else { "full" },
        results.seed
    )?;
    let heads: Vec<&str> = columns.iter().map(|column| column.name).collect();
    writeln!(text, "| qdisc | {} | conserves work |", heads.join(" | "))?;
    writeln!(text, "|---|{}---|", "---:|".repeat(columns.len()))?;
    let conservation = conservation(results);
    for setup in results.setups() {
        if let Some(why) = results.why_not(setup) {
            writeln!(text, "| {} | {}{} |", cell(setup), cell(why), " |".repeat(columns.len()))?;
            continue;
        }
        let cells: Vec<String> = columns.iter().map(|column| of_column(results, setup, column)).collect();
        let conserves =
            conservation.iter().find(|own| own.setup == setup).map_or("", |own| own.answer.name());
        writeln!(text, "| {} | {} | {conserves} |", cell(setup), cells.join(" | "))?;
    }
    Ok(())
}

/// Returns the mean over the points, and the range over all repeats, as text; empty without points.
fn of_column(results: &Results, setup: &str, column: &Column) -> String {
    let points =
        results.measured(column.scenario).filter(|point| point.setup == setup && (column.keep)(point));
    let summaries: Vec<evenkeel_metrics::Summary> =
        points.filter_map(|point| point.summary(&column.metric)).collect();
    if summaries.is_empty() {
        return String::new();
    }
    let mean = summaries.iter().map(|summary| summary.mean).sum::<f64>() / summaries.len() as f64;
    let min = summaries.iter().map(|summary| summary.min).fold(f64::INFINITY, f64::min);
    let max = summaries.iter().map(|summary| summary.max).fold(f64::NEG_INFINITY, f64::max);
    let n: usize = summaries.iter().map(|summary| summary.n).sum();
    let description = describe(&column.metric);
    format!(
        "{} ({} to {}, n {n})",
        description.show_with_unit(mean),
        description.show(min),
        description.show(max)
    )
}
