//! Displays a comparison on a terminal: the answer, the records and the differences.

use evenkeel_metrics::LEAST_REPEATS;

use super::text::{answer, change_cell, interval_cell, stated};
use super::{Comparison, MetricComparison, Verdict};
use crate::catalogue::describe;
use crate::format::wrapped;
use crate::grid::{Cell, Column, Emphasis, Grid, TableOptions};

/// Returns the answer, the two records by their `names`, and a table of the differences. With `all`, or if
/// the question names metrics, the table has every compared figure.
#[must_use]
pub fn render(comparison: &Comparison, names: [&str; 2], all: bool, options: TableOptions) -> String {
    let mut text = String::new();
    let mut line = |indent: &str, words: &str| text.push_str(&wrapped(indent, words, options.text_width()));
    for answer in answer(comparison) {
        line("", &answer);
    }
    for (which, (name, setup)) in ["first:  ", "second: "].iter().zip(names.iter().zip(&comparison.setups)) {
        line(which, &format!("{name} ({setup})"));
    }
    if !comparison.warnings.is_empty() {
        line("set-up: ", &format!("{}.", comparison.warnings.join("; ")));
    }
    for (names, which) in [(&comparison.only_in_first, "first"), (&comparison.only_in_second, "second")] {
        if !names.is_empty() {
            line("", &format!("Only in the {which} record: {}.", names.join(", ")));
        }
    }

    if !comparison.not_compared.is_empty() {
        line("", &format!("Not compared: {}.", comparison.not_compared.join("; ")));
    }

    if !comparison.incomplete.is_empty() {
        line("", &format!("The figures are incomplete: {}.", comparison.incomplete.join("; ")));
    }
    if !comparison.lacking.is_empty() {
        let lacking = comparison.lacking.join("; ");
        line("", &format!("Missing: {lacking}. A figure that some repeats lack has no interval."));
    }

    let all = all || !comparison.question.metrics.is_empty();
    let is_within = comparison.question.within.is_some();
    let is_worth_a_row = |metric: &MetricComparison| {
        all || if is_within { metric.within != Some(true) } else { metric.verdict.is_difference() }
    };
    let mut rows = Vec::new();
    for variant in &comparison.variants {
        for (index, metric) in variant.metrics.iter().filter(|metric| is_worth_a_row(metric)).enumerate() {
            rows.push(row(if index == 0 { &variant.name } else { "" }, metric, is_within));
        }
    }
    let left = comparison.figures().count() - rows.len();
    if !rows.is_empty() {
        text.push('\n');
        text.push_str(&Grid { columns: columns(comparison), rows }.draw(options).text);
    }
    text.push_str(&wrapped("", &rule(comparison), options.text_width()));
    if left > 0 {
        let figures = super::text::figures(left);
        let others =
            if left == comparison.figures().count() { figures } else { format!("the other {figures}") };
        text.push_str(&wrapped("", &format!("--all shows {others}."), options.text_width()));
    }
    text
}

fn columns(comparison: &Comparison) -> Vec<Column> {
    let column = |heading: &str, importance, text| Column { heading: heading.to_owned(), importance, text };
    let mut columns = vec![
        column("variant", 0, true),
        column("metric", 0, true),
        column("first\nmean", 2, false),
        column("second\nmean", 2, false),
        column("change\n", 1, false),
        column("confidence\ninterval", 1, false),
        column("verdict", 0, true),
    ];
    if let Some(margin) = comparison.question.within {
        columns.pop();
        columns.push(column(&format!("within\n{}", stated(margin)), 0, true));
    }
    columns
}

/// Returns the sentences that explain how the intervals determine the verdicts.
pub(crate) fn rule(comparison: &Comparison) -> String {
    let least = format!(
        "Changes in % and the means beside them are geometric. No interval below {LEAST_REPEATS} repeats."
    );
    match comparison.question.within {
        Some(margin) => format!(
            "Within {0}: the whole 95 % confidence interval of the change lies within {0} of the first. {least}",
            stated(margin)
        ),
        None => format!(
            "The intervals are simultaneous (98 %): equal set-ups differ in at most 2 of 100 comparisons on average. \
             {least}"
        ),
    }
}

fn row(variant: &str, metric: &MetricComparison, is_within: bool) -> Vec<Cell> {
    let description = describe(&metric.key);
    let label = match description.unit {
        "" => description.label(),
        unit => format!("{}, {unit}", description.label()),
    };
    let verdict = match (is_within, metric.within) {
        (true, Some(true)) => Cell::new("yes", Emphasis::Good),
        (true, Some(false)) => Cell::new("no", Emphasis::Bad),
        (true, None) => Cell::plain("not decided"),
        (false, _) => match metric.verdict {
            Verdict::Better => Cell::new("better", Emphasis::Good),
            Verdict::Worse => Cell::new("worse", Emphasis::Bad),
            Verdict::Different => Cell::new("different", Emphasis::Strong),
            Verdict::Same | Verdict::NotShown => Cell::plain("not shown"),
            Verdict::Undecided => Cell::plain("no interval"),
        },
    };
    vec![
        Cell::new(variant, Emphasis::Strong),
        Cell::plain(label),
        Cell::plain(description.show(metric.change.first)),
        Cell::plain(description.show(metric.change.second)),
        Cell::plain(change_cell(&description, &metric.change)),
        Cell::plain(interval_cell(&description, &metric.change).unwrap_or_default()),
        verdict,
    ]
}
