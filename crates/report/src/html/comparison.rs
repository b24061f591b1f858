//! A page with two records and their differences.

use maud::html;

use super::Source;
use super::figure::Level;
use super::looks::Variants;
use super::page::{body, document, filter};
use super::summary;
use super::table::{Cell, Row, Table};
use crate::catalogue::describe;
use crate::compare::table::rule;
use crate::compare::text::{answer, change_cell, interval_cell};
use crate::compare::{Comparison, Verdict};
use crate::format::clean;

#[must_use]
pub fn comparison(first: &Source<'_>, second: &Source<'_>, comparison: &Comparison) -> String {
    let sources = [first, second];
    let variants = Variants::of(
        sources.iter().flat_map(|source| &source.record.variants).map(|variant| variant.name.as_str()),
    );
    let title = if summary::title(first.record) == summary::title(second.record) {
        format!("{}: two runs compared", summary::title(first.record))
    } else {
        format!("{} and {} compared", summary::title(first.record), summary::title(second.record))
    };
    let content = html! {
        div.answer { @for sentence in answer(comparison) { p { (clean(&sentence)) } } }
        ul {
            @for (which, setup) in ["First", "Second"].iter().zip(&comparison.setups) {
                li { (which) ": " (clean(setup)) }
            }
        }
        @if !comparison.warnings.is_empty() {
            h2 { "Differences of the set-up" }
            ul { @for warning in &comparison.warnings { li { (clean(warning)) } } }
        }
        @let gaps = gaps(comparison);
        @if !gaps.is_empty() {
            h2 { "Not compared" }
            ul { @for gap in &gaps { li { (clean(gap)) } } }
        }
        (filter(&variants))
        h2 { "Every figure" }
        p.caption { (rule(comparison)) }
        (table(comparison, &variants).render())
        @for (which, source) in ["First record", "Second record"].iter().zip(sources) {
            h2 { (which) ": " (summary::title(source.record)) }
            (body(source, &variants, Level(3)))
        }
    };
    document(&title, &variants, &content)
}

fn gaps(comparison: &Comparison) -> Vec<String> {
    let only = [("first", &comparison.only_in_first), ("second", &comparison.only_in_second)];
    let only = only.into_iter().flat_map(|(which, names)| {
        names.iter().map(move |name| format!("{name} is only in the {which} record"))
    });
    let incomplete = comparison.incomplete.iter().map(|text| format!("the figures are incomplete: {text}"));
    let others = comparison.not_compared.iter().chain(&comparison.lacking).cloned();
    only.chain(others).chain(incomplete).collect()
}

fn table(comparison: &Comparison, variants: &Variants) -> Table {
    let mut rows = Vec::new();
    for variant in &comparison.variants {
        for metric in &variant.metrics {
            let description = describe(&metric.key);
            let verdict = match metric.verdict {
                Verdict::Better => "better",
                Verdict::Worse => "worse",
                Verdict::Different => "different",
                Verdict::Same => "the same",
                Verdict::NotShown => "no difference shown",
                Verdict::Undecided => "no interval",
            };
            let show = |value: f64| Cell::figure(description.show(value), value * description.scale);
            let unit = if description.unit.is_empty() { "" } else { ", " };
            rows.push(Row {
                variant: variants.number(&variant.name),
                cells: vec![
                    Cell::text(&variant.name),
                    Cell::text(format!("{}{unit}{}", description.label(), description.unit)),
                    show(metric.change.first),
                    show(metric.change.second),
                    Cell::text(change_cell(&description, &metric.change)),
                    Cell::text(interval_cell(&description, &metric.change).unwrap_or_default()),
                    Cell::text(verdict),
                ],
            });
        }
    }
    let columns =
        ["variant", "metric", "first mean", "second mean", "change", "confidence interval", "verdict"];
    Table {
        caption: "Change of each metric from the first to the second record".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows,
        is_text: false,
    }
}
