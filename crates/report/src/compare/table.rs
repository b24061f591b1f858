//! A comparison as a terminal table.

use evenkeel_metrics::Summary;

use super::{Comparison, MetricComparison, Verdict};
use crate::catalogue::describe;
use crate::format::{number, signed, trimmed, wrapped};
use crate::grid::{Cell, Column, Emphasis, Grid, TableOptions};

/// The comparison as a table: warnings first, then a row for each metric of each variant.
#[must_use]
pub fn render(comparison: &Comparison, options: TableOptions) -> String {
    let mut text = String::new();
    for warning in &comparison.warnings {
        let line = wrapped("         ", warning, options.text_width());
        text.push_str(&format!("{} {}", options.bad("warning:"), line.trim_start()));
    }
    for (names, which) in [(&comparison.only_in_first, "first"), (&comparison.only_in_second, "second")] {
        if !names.is_empty() {
            let line = format!("Only in the {which} record: {}.", names.join(", "));
            text.push_str(&wrapped("", &line, options.text_width()));
        }
    }
    if !text.is_empty() {
        text.push('\n');
    }
    if comparison.variants.iter().all(|variant| variant.metrics.is_empty()) {
        text.push_str("The records have no metric of the same variant in common.\n");
        return text;
    }

    let column = |heading: &str, importance, text| Column { heading: heading.to_owned(), importance, text };
    let mut columns = vec![
        column("variant", 0, true),
        column("metric", 0, true),
        column("first\nmedian", 1, false),
        column("second\nmedian", 1, false),
        column("difference\nof means", 2, false),
        column("95 % confidence\ninterval", 4, false),
        column("relative\n", 3, false),
        column("verdict", 0, true),
    ];
    if let Some(tolerance) = comparison.tolerance {
        columns.push(column(&format!("within\n{}", percent(tolerance)), 0, true));
        // What is judged: the means, not the medians.
        columns[2].heading = "first\nmean".to_owned();
        columns[3].heading = "second\nmean".to_owned();
    }
    let mut rows = Vec::new();
    for variant in &comparison.variants {
        for (index, metric) in variant.metrics.iter().enumerate() {
            let name = if index == 0 { variant.name.as_str() } else { "" };
            rows.push(row(name, metric));
        }
    }
    text.push_str(&Grid { columns, rows }.draw(options).text);
    let rule = "better, worse: the 95 % confidence interval of the difference of means (Welch) leaves out 0. \
                undecided: fewer than two repeats.";
    text.push_str(&wrapped("", rule, options.text_width()));
    if let Some(tolerance) = comparison.tolerance {
        let rule = format!(
            "within: the mean of the second differs from that of the first by at most {} of it.",
            percent(tolerance)
        );
        text.push_str(&wrapped("", &rule, options.text_width()));
    }
    text
}

fn percent(share: f64) -> String {
    format!("{} %", trimmed(number(share * 100.0, 3)))
}

fn row(variant: &str, metric: &MetricComparison) -> Vec<Cell> {
    let description = describe(&metric.key);
    let label = match description.unit {
        "" => description.label(),
        unit => format!("{}, {unit}", description.label()),
    };
    let interval = metric.interval.map(|interval| {
        format!("{} to {}", signed(description.show(interval.low)), signed(description.show(interval.high)))
    });
    let relative = metric.relative.map(|share| format!("{} %", signed(number(share * 100.0, 1))));
    let emphasis = match metric.verdict {
        Verdict::Better => Emphasis::Good,
        Verdict::Worse => Emphasis::Bad,
        Verdict::Different => Emphasis::Strong,
        Verdict::Same | Verdict::Undecided => Emphasis::Plain,
    };
    // Where means are judged they are shown, else what is typical.
    let typical = |summary: &Summary| if metric.within.is_some() { summary.mean } else { summary.median };
    let mut cells = vec![
        Cell::new(variant, Emphasis::Strong),
        Cell::plain(label),
        Cell::plain(description.show(typical(&metric.first))),
        Cell::plain(description.show(typical(&metric.second))),
        Cell::plain(signed(description.show(metric.difference))),
        Cell::plain(interval.unwrap_or_default()),
        Cell::plain(relative.unwrap_or_default()),
        Cell::new(metric.verdict.name(), emphasis),
    ];
    cells.extend(metric.within.map(|within| match within {
        true => Cell::new("yes", Emphasis::Good),
        false => Cell::new("no", Emphasis::Bad),
    }));
    cells
}
