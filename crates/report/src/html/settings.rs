//! All settings of the run: variants, scenario and host, and the command that repeats the run.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_metrics::Summary;
use evenkeel_model::record::Record;
use maud::{Markup, html};

use super::figure::Level;
use super::looks::Variants;
use super::rerun::Rerun;
use super::table::{Cell, Row, Table};
use crate::catalogue::{self, describe};
use crate::format::{clean, rate, seconds};
use crate::summaries;

pub(super) fn settings(record: &Record, variants: &Variants, level: Level) -> Markup {
    let (differing, common) = split(record);
    let rerun = Rerun::of(record);
    html! {
        (level.heading("All figures"))
        (figures(record, variants).render())
        @if !counters(record, variants).rows.is_empty() { (counters(record, variants).folded("Counters")) }
        (level.heading("Settings"))
        @if !differing.is_empty() {
            (of_variants(record, variants, &differing).render())
        }
        (pairs("Settings of all variants", "setting", &common).folded("Settings that all variants share"))
        @let remarks = remarks(record, variants);
        @if !remarks.rows.is_empty() { (level.heading("Remarks")) (remarks.render()) }
        (level.heading("Run it again"))
        @if let Some(command) = &rerun.command { pre { code { (command) } } }
        @for remark in &rerun.remarks { p { (remark) } }
        details {
            summary { "The scenario's file" }
            pre tabindex="0" { code { (record.scenario_text) } }
        }
        (level.heading("Run and host"))
        (pairs("The run", "fact", &run(record)).render())
        @if !record.host.is_empty() {
            @let facts: Vec<(String, String)> =
                record.host.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
            (pairs("The host", "fact", &facts).render())
        }
    }
}

/// Returns the settings that differ between the variants, and the common settings with their values.
fn split(record: &Record) -> (Vec<String>, Vec<(String, String)>) {
    let keys: BTreeSet<&String> =
        record.variants.iter().flat_map(|variant| variant.settings.keys()).collect();
    let (mut differing, mut common) = (Vec::new(), Vec::new());
    for key in keys {
        let values: BTreeSet<Option<&String>> =
            record.variants.iter().map(|variant| variant.settings.get(key)).collect();
        match (values.len(), values.first()) {
            (1, Some(Some(value))) => common.push((key.clone(), (*value).clone())),
            _ => differing.push(key.clone()),
        }
    }
    (differing, common)
}

fn of_variants(record: &Record, variants: &Variants, keys: &[String]) -> Table {
    let value = |settings: &BTreeMap<String, String>, key: &String| {
        Cell::text(settings.get(key).map_or("–", String::as_str).trim_end())
    };
    let row = |variant: &evenkeel_model::record::VariantRecord| {
        let mut cells = vec![Cell::text(&variant.name)];
        cells.extend(keys.iter().map(|key| value(&variant.settings, key)));
        Row { variant: variants.number(&variant.name), cells }
    };
    let mut columns = vec!["variant".to_owned()];
    columns.extend(keys.iter().cloned());
    Table {
        caption: "Settings that differ between the variants".to_owned(),
        columns,
        rows: record.variants.iter().map(row).collect(),
        is_text: true,
    }
}

fn pairs(caption: &str, name: &str, pairs: &[(String, String)]) -> Table {
    let row = |(key, value): &(String, String)| Row {
        variant: None,
        cells: vec![Cell::text(key), Cell::text(value.trim_end())],
    };
    Table {
        caption: caption.to_owned(),
        columns: vec![name.to_owned(), "value".to_owned()],
        rows: pairs.iter().map(row).collect(),
        is_text: true,
    }
}

/// Returns the mean and the range of every metric of every variant.
fn figures(record: &Record, variants: &Variants) -> Table {
    let all: Vec<BTreeMap<String, Summary>> = record.variants.iter().map(summaries::of_metrics).collect();
    let keys = catalogue::in_order(all.iter().flat_map(BTreeMap::keys).cloned().collect(), &record.windows);
    let mut columns = vec!["variant".to_owned(), "repeats".to_owned()];
    columns.extend(keys.iter().map(|key| describe(key).heading().replace('\n', " ").trim_end().to_owned()));
    let row = |(variant, summaries): (&evenkeel_model::record::VariantRecord, &BTreeMap<String, Summary>)| {
        let mut cells = vec![Cell::text(&variant.name), Cell::text(variant.repeats.len().to_string())];
        cells.extend(keys.iter().map(|key| {
            let Some(found) = summaries.get(key) else { return Cell::text("–") };
            let description = describe(key);
            let show = |value: f64| description.show(value);
            let text = if show(found.min) == show(found.max) {
                show(found.mean)
            } else {
                format!("{} ({}–{})", show(found.mean), show(found.min), show(found.max))
            };
            Cell::figure(text, found.mean * description.scale)
        }));
        Row { variant: variants.number(&variant.name), cells }
    };
    Table {
        caption: "Mean of each metric over the repeats (range)".to_owned(),
        columns,
        rows: record.variants.iter().zip(&all).map(row).collect(),
        is_text: false,
    }
}

fn counters(record: &Record, variants: &Variants) -> Table {
    let all: Vec<BTreeMap<String, Summary>> = record.variants.iter().map(summaries::of_counters).collect();
    let keys: BTreeSet<&String> = all.iter().flat_map(BTreeMap::keys).collect();
    let mut columns = vec!["variant".to_owned()];
    columns.extend(keys.iter().map(|key| key.replace('_', " ")));
    let row = |(variant, summaries): (&evenkeel_model::record::VariantRecord, &BTreeMap<String, Summary>)| {
        let mut cells = vec![Cell::text(&variant.name)];
        cells.extend(keys.iter().map(|key| {
            summaries.get(*key).map_or_else(
                || Cell::text("–"),
                |found| Cell::figure(crate::format::short(found.median), found.median),
            )
        }));
        Row { variant: variants.number(&variant.name), cells }
    };
    Table {
        caption: "Counters (medians of the repeats)".to_owned(),
        columns,
        rows: if keys.is_empty() { Vec::new() } else { record.variants.iter().zip(&all).map(row).collect() },
        is_text: false,
    }
}

/// Returns the notes of the variants, and the variants that the run's world does not support.
fn remarks(record: &Record, variants: &Variants) -> Table {
    let mut notes: Vec<(&str, Vec<&str>)> = Vec::new();
    for variant in &record.variants {
        for note in &variant.notes {
            match notes.iter_mut().find(|(known, _)| known == note) {
                Some((_, names)) => names.push(&variant.name),
                None => notes.push((note, vec![&variant.name])),
            }
        }
    }
    let of_note = |(note, names): (&str, Vec<&str>)| {
        let whose = if names.len() == record.variants.len() && names.len() > 1 {
            "all".to_owned()
        } else {
            names.join(", ")
        };
        let variant = if let [only] = names.as_slice() { variants.number(only) } else { None };
        Row { variant, cells: vec![Cell::text(whose), Cell::text(note)] }
    };
    let mut rows: Vec<Row> = notes.into_iter().map(of_note).collect();
    rows.extend(record.refused.iter().map(|refusal| Row {
        variant: None,
        cells: vec![Cell::text(&refusal.name), Cell::text(format!("not run: {}", refusal.why))],
    }));
    Table {
        caption: "Remarks on variants".to_owned(),
        columns: vec!["variant".to_owned(), "remark".to_owned()],
        rows,
        is_text: true,
    }
}

fn run(record: &Record) -> Vec<(String, String)> {
    let windows = record.windows.iter().map(|(name, length)| format!("{name} = {}", seconds(*length)));
    let windows: Vec<String> = windows.collect();
    let mut facts = vec![
        ("scenario", record.scenario.clone()),
        ("world", record.world.clone()),
        ("kernel or profile", record.kernel.clone()),
        ("started", record.started.clone()),
        ("evenkeel", record.evenkeel.clone()),
        ("format of the record", record.schema.to_string()),
        ("seed", record.seed.to_string()),
        ("effort", if record.quick { "quick" } else { "full" }.to_owned()),
        ("line rate", rate(record.rate_bps)),
        ("line rate of the scenario", rate(record.nominal_rate_bps)),
        ("repeats", crate::format::repeats(record)),
        ("duration of a repeat", seconds(record.duration_s)),
        ("warm-up", seconds(record.warmup_s)),
    ];
    if !windows.is_empty() {
        facts.push(("windows", windows.join(", ")));
    }
    if let Some(paper) = &record.paper {
        facts.push(("the paper's figures", paper.source.clone()));
    }
    facts.into_iter().map(|(name, value)| (name.to_owned(), clean(&value))).collect()
}
