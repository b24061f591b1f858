//! The terminal table of a run.
//!
//! The answer comes first, as a sentence, then the figures:
//!
//! - Variants are rows and metrics are columns. The main metrics come first.
//! - Each variant shows the median over the repeats, with the range of several repeats below it.
//! - If the scenario states figures of a paper, the table also shows them. It then also shows the mean, if
//!   the mean is displayed differently from the median.
//! - A remark below the table names the columns that do not fit.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_metrics::{MeanInterval, Summary};
use evenkeel_model::record::{ExpectationRecord, Record, VariantRecord};

use crate::catalogue::{self, Description, describe};
use crate::format::{clean, count, kernel, number, rate, repeats, seconds, short, wrapped};
use crate::grid::{Cell, Column, Emphasis, Grid};
use crate::{answer, clients, paired, summaries};

pub use crate::grid::TableOptions;

/// Maximum number of queues to list. With more queues, the table shows how many queues have how many
/// flows.
const QUEUES_SPELT_OUT: usize = 16;

/// Returns the table of a run, with the notes that its figures need.
#[must_use]
pub fn render(record: &Record, options: TableOptions) -> String {
    let mut text = String::new();
    for sentence in answer(record) {
        heading(&mut text, &sentence, options);
    }
    if !text.is_empty() {
        text.push('\n');
    }
    header(&mut text, record, options);
    let notes = Notes::of(record);
    results(&mut text, record, &notes, options);
    notes.render(&mut text, options);
    if let Some(table) = clients::table(record, options) {
        text.push('\n');
        heading(&mut text, "Requests of clients (medians of the repeats)", options);
        text.push_str(&table);
    }
    paper(&mut text, record, options);
    costs(&mut text, record, options);
    queues(&mut text, record, options);
    counters(&mut text, record, options);
    refused(&mut text, record, options);
    expectations(&mut text, record, options);
    text
}

fn header(text: &mut String, record: &Record, options: TableOptions) {
    for line in setup(record) {
        text.push_str(&wrapped("", &line, options.text_width()));
    }
    text.push('\n');
}

/// Returns the set-up of a run: scenario, world and versions; then the times; then the windows, if the rate
/// scales them.
pub(crate) fn setup(record: &Record) -> Vec<String> {
    let title = format!(
        "{} on {}, kernel {}, evenkeel {}",
        record.scenario,
        record.world,
        kernel(&record.kernel),
        record.evenkeel
    );
    let rates = if record.rate_bps == record.nominal_rate_bps {
        rate(record.rate_bps)
    } else {
        format!("{} (nominally {})", rate(record.rate_bps), rate(record.nominal_rate_bps))
    };
    // If the flows have a size, the size determines a repeat's length.
    let extent = if record.duration_s == 0.0 {
        String::new()
    } else {
        format!(" of {} after {} of warm-up", seconds(record.duration_s), seconds(record.warmup_s))
    };
    let times = format!("{rates}, {}{extent}, seed {}, {}", repeats(record), record.seed, record.started);
    // Windows are longer on slower links, so that they cover the same number of bytes.
    let mut windows: Vec<(&String, &f64)> = record.windows.iter().collect();
    windows.sort_by(|first, second| first.1.total_cmp(second.1));
    let windows: Vec<String> =
        windows.into_iter().map(|(name, length)| format!("{name} window = {}", seconds(*length))).collect();
    let mut lines = vec![title, times];
    if !windows.is_empty() && record.rate_bps != record.nominal_rate_bps {
        lines.push(windows.join(", "));
    }
    lines
}

/// The notes of all variants, numbered, without duplicates.
struct Notes<'r> {
    numbered: Vec<&'r str>,
}

impl<'r> Notes<'r> {
    fn of(record: &'r Record) -> Self {
        let mut numbered: Vec<&str> = Vec::new();
        for note in record.variants.iter().flat_map(|variant| &variant.notes) {
            if !numbered.contains(&note.as_str()) {
                numbered.push(note);
            }
        }
        Self { numbered }
    }

    /// Returns the numbers of a variant's notes, to append to its name: ` [1,3]`.
    fn marks(&self, variant: &VariantRecord) -> String {
        let numbers: BTreeSet<usize> = variant
            .notes
            .iter()
            .filter_map(|note| self.numbered.iter().position(|known| known == note))
            .collect();
        if numbers.is_empty() {
            return String::new();
        }
        let numbers: Vec<String> = numbers.into_iter().map(|number| (number + 1).to_string()).collect();
        format!(" [{}]", numbers.join(","))
    }

    fn render(&self, text: &mut String, options: TableOptions) {
        for (index, note) in self.numbered.iter().enumerate() {
            text.push_str(&wrapped(&format!("[{}] ", index + 1), note, options.text_width()));
        }
    }
}

fn results(text: &mut String, record: &Record, notes: &Notes<'_>, options: TableOptions) {
    let all: Vec<BTreeMap<String, Summary>> = record.variants.iter().map(summaries::of_metrics).collect();
    let keys =
        all.iter().flat_map(BTreeMap::keys).filter(|key| !clients::is_of_clients(key)).cloned().collect();
    let mut keys = catalogue::in_order(keys, &record.windows);
    // The main metric comes first, and the table never drops it.
    let subject = answer::subject(record).map(|subject| subject.key).unwrap_or_default();
    let family = |key: &str| key.split('.').next().map(str::to_owned);
    keys.sort_by_key(|key| family(key) != family(&subject));
    if keys.is_empty() {
        text.push_str("Nothing was measured.\n");
        return;
    }
    let descriptions: Vec<Description> = keys.iter().map(|key| describe(key)).collect();
    let mut columns = vec![Column { heading: "variant".to_owned(), importance: 0, text: true }];
    columns.extend(keys.iter().zip(&descriptions).map(|(key, description)| Column {
        heading: description.heading(),
        importance: if *key == subject { 0 } else { description.importance + 1 },
        text: false,
    }));

    let mut rows = Vec::new();
    for (variant, summaries) in record.variants.iter().zip(&all) {
        let paper = record.paper.as_ref().and_then(|paper| paper.variants.get(&variant.name));
        let paper = paper.filter(|figures| keys.iter().any(|key| figures.contains_key(key)));
        let mut row =
            |label: String, emphasis, cell: &dyn Fn(&str, &Description) -> Option<String>| {
                let mut cells = vec![Cell::new(label, emphasis)];
                cells.extend(keys.iter().zip(&descriptions).map(|(key, description)| {
                    Cell::new(cell(key, description).unwrap_or_default(), emphasis)
                }));
                rows.push(cells);
            };
        row(format!("{}{}", variant.name, notes.marks(variant)), Emphasis::Strong, &|key, description| {
            let median = summaries.get(key).map(|summary| description.show(summary.median));
            Some(median.unwrap_or_else(|| "–".to_owned()))
        });
        if variant.repeats.len() > 1 {
            row("  range".to_owned(), Emphasis::Faint, &|key, description| {
                summaries.get(key).map(|summary| range(summary, description))
            });
        }
        if let Some(paper) = paper {
            // Omit the mean if it is displayed identically to the median.
            let is_median = |key: &String, description: &Description| {
                summaries
                    .get(key)
                    .is_none_or(|summary| description.show(summary.mean) == description.show(summary.median))
            };
            let of_paper = || keys.iter().zip(&descriptions).filter(|(key, _)| paper.contains_key(*key));
            if !of_paper().all(|(key, description)| is_median(key, description)) {
                row("  mean".to_owned(), Emphasis::Plain, &|key, description| {
                    paper.get(key)?;
                    summaries.get(key).map(|summary| description.show(summary.mean))
                });
            }
            row("  paper".to_owned(), Emphasis::Plain, &|key, description| {
                paper.get(key).map(|figure| description.show(*figure))
            });
        }
    }

    let drawing = Grid { columns, rows }.draw(options);
    text.push_str(&drawing.text);
    if record.variants.iter().any(|variant| variant.repeats.len() > 1) {
        text.push_str("A variant's own row is the median of its repeats.\n");
    }
    if !drawing.dropped.is_empty() {
        let names: Vec<String> = drawing
            .dropped
            .iter()
            .filter_map(|column| descriptions.get(column.checked_sub(1)?))
            .map(Description::label)
            .collect();
        let line = format!("Not shown at this width: {}.", names.join(", "));
        text.push_str(&wrapped("", &line, options.text_width()));
    }
}

fn range(summary: &Summary, description: &Description) -> String {
    let (low, high) = (description.show(summary.min), description.show(summary.max));
    if low == high { low } else { format!("{low}–{high}") }
}

fn paper(text: &mut String, record: &Record, options: TableOptions) {
    let Some(paper) = &record.paper else { return };
    let at_rate = if record.rate_bps == record.nominal_rate_bps {
        String::new()
    } else {
        format!(", at {}", rate(record.nominal_rate_bps))
    };
    text.push_str(&wrapped("", &format!("Paper: {}{at_rate}.", paper.source), options.text_width()));
}

fn costs(text: &mut String, record: &Record, options: TableOptions) {
    let paired = paired::against_baseline(record);
    let datapath: Vec<_> = record.variants.iter().map(summaries::datapath).collect();
    if paired.is_empty() && datapath.iter().all(Option::is_none) {
        return;
    }
    let column = |heading: &str, importance, text| Column { heading: heading.to_owned(), importance, text };
    let mut columns = vec![column("variant", 0, true)];
    if !paired.is_empty() {
        columns.push(column("CPU\nratio", 1, false));
        columns.push(column("throughput\nratio", 2, false));
    }
    if datapath.iter().any(Option::is_some) {
        columns.push(column("queue choice\nns/segment", 1, false));
        columns.push(column("completion\nns/segment", 2, false));
        columns.push(column("segments\n", 3, false));
    }
    let mut rows = Vec::new();
    for (variant, datapath) in record.variants.iter().zip(&datapath) {
        let ratios = paired.iter().find(|paired| paired.variant == variant.name);
        if ratios.is_none() && datapath.is_none() {
            continue;
        }
        let mut cells = vec![Cell::new(variant.name.clone(), Emphasis::Strong)];
        if !paired.is_empty() {
            let shown = |ratio: Option<&MeanInterval>| {
                let text = ratio.map(ratio_text).unwrap_or_default();
                Cell::plain(match ratio.zip(ratios) {
                    Some((ratio, paired)) if ratio.n < paired.repeats => {
                        format!("{text}, {} of {} pairs", ratio.n, paired.repeats)
                    }
                    _ => text,
                })
            };
            cells.push(shown(ratios.and_then(|paired| paired.cpu.as_ref())));
            cells.push(shown(ratios.and_then(|paired| paired.throughput.as_ref())));
        }
        if columns.len() > cells.len() {
            for nanoseconds in
                [datapath.and_then(|cost| cost.choice), datapath.and_then(|cost| cost.completion)]
            {
                cells.push(Cell::plain(nanoseconds.map(|value| number(value, 1)).unwrap_or_default()));
            }
            cells.push(Cell::plain(datapath.map(|cost| count(cost.segments)).unwrap_or_default()));
        }
        rows.push(cells);
    }
    text.push('\n');
    let title = match paired.first() {
        Some(first) => {
            let ratios = || paired.iter().flat_map(|paired| [paired.cpu, paired.throughput]).flatten();
            let spread = match ratios().any(|ratio| ratio.interval.is_some()) {
                true => "geometric mean, 95 % confidence interval".to_owned(),
                false => format!("{}: no interval", repeats(record)),
            };
            let baseline = match paired.iter().all(|other| other.baseline == first.baseline) {
                true => first.baseline,
                false => "the first variant of the same workload",
            };
            format!("Cost: ratios to {baseline}, repeat by repeat ({spread})")
        }
        None => "Cost".to_owned(),
    };
    heading(text, &title, options);
    text.push_str(&Grid { columns, rows }.draw(options).text);
}

/// Returns a ratio with its interval: `1.020 (0.981–1.059)`.
fn ratio_text(ratio: &MeanInterval) -> String {
    ratio.interval.map_or_else(
        || format!("{:.3}", ratio.mean),
        |interval| format!("{:.3} ({:.3}–{:.3})", ratio.mean, interval.low, interval.high),
    )
}

fn queues(text: &mut String, record: &Record, options: TableOptions) {
    let mut lines = String::new();
    for variant in &record.variants {
        let Some(queues) = variant.repeats.last().map(|repeat| &repeat.queues) else { continue };
        if queues.is_empty() {
            continue;
        }
        let flows = if queues.len() <= QUEUES_SPELT_OUT {
            queues.iter().map(|queue| queue.flows.to_string()).collect::<Vec<_>>().join(" ")
        } else {
            let mut by_flows: BTreeMap<u32, usize> = BTreeMap::new();
            for queue in queues {
                *by_flows.entry(queue.flows).or_default() += 1;
            }
            let groups: Vec<String> =
                by_flows.into_iter().map(|(flows, queues)| format!("{queues} with {flows}")).collect();
            groups.join(", ")
        };
        lines.push_str(&wrapped(&format!("  {}: ", clean(&variant.name)), &flows, options.text_width()));
    }
    section(text, "Flows on each queue at the end of the last repeat", &lines, options);
}

fn counters(text: &mut String, record: &Record, options: TableOptions) {
    let mut lines = String::new();
    let all: Vec<_> = record.variants.iter().map(summaries::of_counters).collect();
    let names: BTreeSet<&String> = all.iter().flat_map(BTreeMap::keys).collect();
    let is_zero = |name: &str| {
        let summaries = all.iter().filter_map(|counters| counters.get(name));
        summaries.into_iter().all(|summary| summary.min == 0.0 && summary.max == 0.0)
    };
    let zero: Vec<String> =
        names.into_iter().filter(|name| is_zero(name)).map(|name| name.replace('_', " ")).collect();
    for (variant, counters) in record.variants.iter().zip(&all) {
        let mut counted = Vec::new();
        for (name, summary) in counters.iter().filter(|(name, _)| !is_zero(name)) {
            let (median, low, high) = (short(summary.median), short(summary.min), short(summary.max));
            let name = name.replace('_', " ");
            if low != high {
                counted.push(format!("{name} {median} ({low}–{high})"));
            } else {
                counted.push(format!("{name} {median}"));
            }
        }
        if !counted.is_empty() {
            let indent = format!("  {}: ", clean(&variant.name));
            lines.push_str(&wrapped(&indent, &counted.join(", "), options.text_width()));
        }
    }
    if !zero.is_empty() {
        lines.push_str(&wrapped("  0 in all: ", &zero.join(", "), options.text_width()));
    }
    section(text, "Counters (median and range of the repeats)", &lines, options);
}

fn refused(text: &mut String, record: &Record, options: TableOptions) {
    let lines: String = record
        .refused
        .iter()
        .map(|refusal| wrapped(&format!("  {}: ", clean(&refusal.name)), &refusal.why, options.text_width()))
        .collect();
    section(text, "Not run here", &lines, options);
}

fn expectations(text: &mut String, record: &Record, options: TableOptions) {
    let title = expectations_title(record);
    let lines: String = record
        .expectations
        .iter()
        .map(|expectation| {
            let line = wrapped("           ", &expectation_text(expectation), options.text_width());
            // The verdict replaces the indent. Styles do not change the width.
            let rest = line.trim_start();
            match expectation.met {
                Some(true) => format!("  {}      {rest}", options.good("met")),
                Some(false) => format!("  {}  {rest}", options.bad("NOT MET")),
                None => format!("  open     {rest}"),
            }
        })
        .collect();
    section(text, &title, &lines, options);
}

pub(crate) fn expectations_title(record: &Record) -> String {
    let count = |verdict| record.expectations.iter().filter(|expectation| expectation.met == verdict).count();
    match record.expectations.len() - count(None) {
        0 => "Expectations: none judged".to_owned(),
        judged => format!("Expectations: {} of {judged} met", count(Some(true))),
    }
}

/// Returns an expectation and its result: `dqa: mean NFM 1s at most 0.02; found: 0.002 (0.001 to 0.003)`.
pub(crate) fn expectation_text(expectation: &ExpectationRecord) -> String {
    let description = match &expectation.relative_to {
        None => describe(&expectation.metric),
        Some(_) => describe(&expectation.metric).into_ratio(),
    };
    let show = |value: f64| description.show_closely(value);
    let bounds = match (expectation.at_least, expectation.at_most) {
        (Some(least), Some(most)) => format!("from {} to {}", show(least), show(most)),
        (Some(least), None) => format!("at least {}", show(least)),
        (None, Some(most)) => format!("at most {}", show(most)),
        (None, None) => "measured".to_owned(),
    };
    let bounds = match &expectation.relative_to {
        Some(base) => format!("{bounds} times {base}'s"),
        None => bounds,
    };
    let limits: Vec<f64> = [expectation.at_least, expectation.at_most].into_iter().flatten().collect();
    let percent = |share: f64| format!("{} %", short(share * 100.0));
    let (what, show): (String, &dyn Fn(f64) -> String) =
        match (expectation.statistic.as_str(), expectation.share) {
            ("share", Some(share)) => (
                format!("{} {bounds} in {} of the repeats or more", description.label(), percent(share)),
                &percent,
            ),
            (other, _) => (format!("{other} {} {bounds}", description.label()), &|value| {
                description.show_distinctly(value, &limits)
            }),
        };
    let interval = expectation.interval.map(|(low, high)| format!(" ({} to {})", show(low), show(high)));
    let found = expectation.value.map_or_else(
        || if expectation.open.is_some() { "no value" } else { "not measured" }.to_owned(),
        |value| format!("{}{}", show(value), interval.unwrap_or_default()),
    );
    let open = expectation.open.as_ref().map(|open| format!("; {open}")).unwrap_or_default();
    format!("{}: {what}; found: {found}{open}", expectation.variant)
}

fn section(text: &mut String, title: &str, lines: &str, options: TableOptions) {
    if !lines.is_empty() {
        text.push('\n');
        heading(text, title, options);
        text.push_str(lines);
    }
}

fn heading(text: &mut String, title: &str, options: TableOptions) {
    text.push_str(&options.strong(wrapped("", title, options.text_width()).trim_end()));
    text.push('\n');
}
