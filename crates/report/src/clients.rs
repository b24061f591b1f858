//! The table of clients' requests in a run: one row per group of clients and variant.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_metrics::Summary;
use evenkeel_model::record::{Record, metric};

use crate::catalogue::describe;
use crate::format::{clean, count};
use crate::grid::{Cell, Column, Emphasis, Grid};
use crate::summaries;
use crate::table::TableOptions;

/// Metric prefix, metric part, heading and importance of each column.
const COLUMNS: [(&str, &str, &str, u32); 8] = [
    (metric::REQUESTS, "client_median", "k/s\nclient median", 1),
    (metric::REQUESTS, "total", "k/s\ntotal", 4),
    (metric::RESPONSE, "client_median", "response µs\nclient median", 1),
    (metric::RESPONSE, "mean", "response µs\nmean", 5),
    (metric::RESPONSE, "p50", "response µs\np50", 6),
    (metric::RESPONSE, "p90", "response µs\np90", 8),
    (metric::RESPONSE, "p99", "response µs\np99", 3),
    (metric::RESPONSE, "p999", "response µs\np99.9", 7),
];

pub(crate) fn is_of_clients(key: &str) -> bool {
    key.split_once('.').is_some_and(|(prefix, _)| [metric::REQUESTS, metric::RESPONSE].contains(&prefix))
}

/// Returns the clients' table, or `None` if no variant has clients.
pub(crate) fn table(record: &Record, options: TableOptions) -> Option<String> {
    let mut columns = vec![
        Column { heading: "variant".to_owned(), importance: 0, text: true },
        Column { heading: "clients".to_owned(), importance: 0, text: true },
        Column { heading: "number".to_owned(), importance: 9, text: false },
    ];
    columns.extend(COLUMNS.iter().map(|(_, _, heading, importance)| Column {
        heading: (*heading).to_owned(),
        importance: *importance,
        text: false,
    }));
    let mut rows = Vec::new();
    for variant in &record.variants {
        let Some(groups) =
            variant.repeats.last().map(|repeat| &repeat.clients).filter(|groups| !groups.is_empty())
        else {
            continue;
        };
        let all: u32 = groups.iter().map(|group| group.clients).sum();
        let together = [(metric::ALL_CLIENTS, all)];
        let named = groups.iter().map(|group| (group.name.as_str(), group.clients)).chain(together);
        let summaries = summaries::of_metrics(variant);
        let paper = record.paper.as_ref().and_then(|paper| paper.variants.get(&variant.name));
        for (number, (group, clients)) in named.enumerate() {
            let name = if number == 0 { clean(&variant.name) } else { String::new() };
            let medians = |key: &str| summaries.get(key).map(|summary: &Summary| summary.median);
            let mut row = row_of(group, Emphasis::Strong, medians);
            row.splice(
                0..0,
                [
                    Cell::new(name, Emphasis::Strong),
                    Cell::new(clean(group), Emphasis::Plain),
                    Cell::new(count(u64::from(clients)), Emphasis::Plain),
                ],
            );
            rows.push(row);
            if let Some(figures) = paper.filter(|figures| states(figures, group)) {
                let mut row = row_of(group, Emphasis::Plain, |key| figures.get(key).copied());
                let label = Cell::new("  paper".to_owned(), Emphasis::Plain);
                let blank = || Cell::new(String::new(), Emphasis::Plain);
                row.splice(0..0, [blank(), label, blank()]);
                rows.push(row);
            }
        }
    }
    (!rows.is_empty()).then(|| Grid { columns, rows }.draw(options).text)
}

fn keys_of(group: &str) -> impl Iterator<Item = String> + '_ {
    COLUMNS.iter().map(move |(prefix, part, _, _)| metric::of_clients(prefix, group, part))
}

fn states(figures: &BTreeMap<String, f64>, group: &str) -> bool {
    let keys: BTreeSet<String> = keys_of(group).collect();
    figures.keys().any(|key| keys.contains(key))
}

fn row_of(group: &str, emphasis: Emphasis, value: impl Fn(&str) -> Option<f64>) -> Vec<Cell> {
    keys_of(group)
        .map(|key| {
            Cell::new(value(&key).map_or_else(String::new, |value| describe(&key).show(value)), emphasis)
        })
        .collect()
}
