//! A metric of every variant: a bar to the mean, and a dot for each repeat.

use std::collections::BTreeSet;

use evenkeel_metrics::mean_interval;
use evenkeel_model::record::{Record, VariantRecord, metric};
use maud::{Markup, html};

use super::axes::{self, Scale};
use super::figure::{Figure, cut, drawing, rule, text_at, width_of};
use super::looks::{self, Variants, round};
use super::message;
use super::table::{Cell, Row, Table};
use crate::catalogue::{self, Description, describe};
use crate::format::trimmed;
use crate::{answer, summaries};

/// Maximum number of metrics with a plot. The table has all metrics.
const MOST_FIGURES: usize = 8;
/// Largest importance number of a metric with a plot. Metrics with a larger number are details, such as the
/// parts of processor time.
const LEAST_IMPORTANCE: u32 = 9;
const MOST_ROWS: usize = 60;
const NAME_COLUMNS: usize = 40;
const ROW: f64 = 24.0;
/// Minimum relative difference between the smallest and the largest value for a plot.
const WORTH_A_PLOT: f64 = 0.005;

/// Returns a plot for each of the main metrics, and a text for each metric that is equal for all variants.
pub(super) fn figures(record: &Record, variants: &Variants) -> (Vec<Figure>, Vec<String>) {
    let mut keys = catalogue::in_order(keys_of(record), &record.windows);
    let subject = answer::subject(record).map(|subject| subject.key).unwrap_or_default();
    let longest = record.windows.iter().max_by(|one, other| one.1.total_cmp(other.1)).map(|(name, _)| name);
    // The plot of windows has the other windows.
    keys.retain(|key| match key.split_once('.') {
        Some((metric::NFM, window)) => longest.is_some_and(|longest| longest == window),
        Some((metric::NFM_MAX, _)) => false,
        Some((metric::CPU_SHARE, _)) => false,
        // The plot of percentiles has the other percentiles.
        Some((metric::LATENCY, part)) => ["p50", "p99"].contains(&part) || *key == subject,
        Some((metric::RESPONSE | metric::COMPLETION, part)) => {
            !["p50", "p80", "p90", "p999"].iter().any(|percentile| part.ends_with(percentile))
                || *key == subject
        }
        _ => ![metric::DISTURBANCE, metric::JAIN_PACKETS].contains(&key.as_str()),
    });
    // Prefer rates to counts, and groups of clients to all clients together.
    let of_groups = |prefix: &str| {
        let start = metric::part(prefix, "");
        let all = metric::part(prefix, metric::ALL_CLIENTS);
        keys.iter().any(|key| key.starts_with(&start) && !key.starts_with(&all)).then_some(all)
    };
    let all_clients: Vec<String> =
        [metric::REQUESTS, metric::RESPONSE].iter().filter_map(|prefix| of_groups(prefix)).collect();
    let has_rate = keys.iter().any(|key| key == metric::RETRANSMITS_PER_S);
    keys.retain(|key| {
        let is_needless =
            all_clients.iter().any(|all| key.starts_with(all)) || (has_rate && key == metric::RETRANSMITS);
        *key == subject || !is_needless
    });
    let (differing, same): (Vec<String>, Vec<String>) =
        keys.into_iter().partition(|key| *key == subject || is_different(record, key));
    let same = same.iter().filter_map(|key| {
        let value = all_values(record, key).next()?;
        let description = describe(key);
        Some(format!("{} {}", description.label(), description.show_with_unit(value)))
    });
    let same = same.collect();
    let mut chosen = differing;
    chosen.retain(|key| *key == subject || importance(key) <= LEAST_IMPORTANCE);
    chosen.sort_by_key(|key| (*key != subject, importance(key)));
    chosen.truncate(MOST_FIGURES);
    let figures = chosen.iter().map(|key| figure(record, variants, key)).collect();
    (figures, same)
}

fn keys_of(record: &Record) -> BTreeSet<String> {
    let repeats = record.variants.iter().flat_map(|variant| &variant.repeats);
    repeats.flat_map(|repeat| repeat.metrics.keys()).cloned().collect()
}

/// Returns the rank of a metric. The median latency has the rank of the 99th percentile.
fn importance(key: &str) -> u32 {
    if key == metric::part(metric::LATENCY, "p50") { 4 } else { describe(key).importance }
}

fn all_values<'r>(record: &'r Record, key: &'r str) -> impl Iterator<Item = f64> + 'r {
    let repeats = record.variants.iter().flat_map(|variant| &variant.repeats);
    repeats.filter_map(move |repeat| repeat.metrics.get(key).copied())
}

fn is_different(record: &Record, key: &str) -> bool {
    let (low, high) = axes::ends(all_values(record, key));
    high - low > WORTH_A_PLOT * high.abs().max(low.abs())
}

fn figure(record: &Record, variants: &Variants, key: &str) -> Figure {
    let description = describe(key);
    let rows: Vec<Strip<'_>> = record
        .variants
        .iter()
        .filter_map(|variant| Strip::of(record, variant, variants.number(&variant.name).unwrap_or(0), key))
        .collect();
    let left_out = rows.len().saturating_sub(MOST_ROWS);
    let mut remarks = Vec::new();
    if left_out > 0 {
        remarks.push(format!("The plot has the first {MOST_ROWS} variants; the table has all."));
    }
    let axis = match description.unit {
        "" => description.label(),
        unit => format!("{}, {unit}", description.label()),
    };
    let title = match description.direction {
        catalogue::Direction::HigherIsBetter => format!("{axis} (more is better)"),
        catalogue::Direction::LowerIsBetter => format!("{axis} (less is better)"),
        catalogue::Direction::Neutral => axis.clone(),
    };
    Figure {
        message: message::of_metric(record, key),
        caption: title.clone(),
        drawings: vec![draw(&title, &description, &rows[..rows.len().min(MOST_ROWS)])],
        table: table(&axis, &description, &rows),
        remarks,
    }
}

struct Strip<'r> {
    name: &'r str,
    variant: usize,
    /// Values of the repeats in the displayed unit.
    values: Vec<f64>,
    mean: f64,
    interval: Option<(f64, f64)>,
    paper: Option<f64>,
}

impl<'r> Strip<'r> {
    fn of(record: &Record, variant: &'r VariantRecord, number: usize, key: &str) -> Option<Self> {
        let scale = describe(key).scale;
        let values: Vec<f64> =
            summaries::values(variant, key).into_iter().map(|value| value * scale).collect();
        let found = mean_interval(&values)?;
        let paper = record.paper.as_ref().and_then(|paper| paper.variants.get(&variant.name)?.get(key));
        Some(Self {
            name: &variant.name,
            variant: number,
            values,
            mean: found.mean,
            interval: found.interval.map(|interval| (interval.low, interval.high)),
            paper: paper.map(|value| value * scale),
        })
    }
}

fn draw(title: &str, description: &Description, rows: &[Strip<'_>]) -> Markup {
    let ends = |row: &Strip<'_>| row.interval.map(|(low, high)| [low, high]).into_iter().flatten();
    let values = rows.iter().flat_map(|row| row.values.iter().copied().chain(ends(row)).chain(row.paper));
    let scale = Scale::of(values, description.unit);
    let names: Vec<String> = rows.iter().map(|row| cut(row.name, NAME_COLUMNS)).collect();
    let shown: Vec<String> = rows.iter().map(|row| show(description, row.mean)).collect();
    let left = names.iter().map(|name| width_of(name)).fold(40.0, f64::max) + 12.0;
    let right = shown.iter().map(|text| width_of(text)).fold(20.0, f64::max) + 16.0;
    let (width, top) = (230.0, 8.0);
    let bottom = top + ROW * rows.len() as f64;
    let x = |value: f64| left + scale.place(value) * width;
    let mut last_label = f64::NEG_INFINITY;
    let ticks: Vec<(f64, Option<String>)> = scale
        .ticks(5)
        .into_iter()
        .map(|tick| {
            let text = axes::label(tick);
            let half = width_of(&text) / 2.0;
            let fits = x(tick) - half > last_label + 6.0;
            if fits {
                last_label = x(tick) + half;
            }
            (tick, fits.then_some(text))
        })
        .collect();
    let content = html! {
        @for (tick, text) in &ticks {
            (rule((x(*tick), top), (x(*tick), bottom + 4.0), "grid"))
            @if let Some(text) = text { (text_at(x(*tick), bottom + 17.0, "tick middle", text)) }
        }
        @for (index, row) in rows.iter().enumerate() {
            @let y = top + ROW * (index as f64 + 0.5);
            g class=(format!("{} {}", looks::class(Some(row.variant)), looks::colour(row.variant))) {
                (text_at(left - 8.0, y + 4.0, "name end", &names[index]))
                @if !scale.is_logarithmic() {
                    @let (from, to) = (x(0.0).min(x(row.mean)), x(0.0).max(x(row.mean)));
                    rect class="bar" x=(round(from)) y=(round(y - 8.0)) width=(round(to - from)) height="16" {}
                }
                @if let Some((low, high)) = row.interval {
                    (rule((x(low), y), (x(high), y), "spread"))
                }
                @for value in &row.values { circle class="dot" cx=(round(x(*value))) cy=(round(y)) r="3" {} }
                (rule((x(row.mean), y - 9.0), (x(row.mean), y + 9.0), "mean"))
                @if let Some(paper) = row.paper {
                    path class="paper" d=(format!("M{} {}m0 -5l5 5l-5 5l-5 -5z", round(x(paper)), round(y))) {}
                }
                (text_at(left + width + 8.0, y + 4.0, "name", &shown[index]))
            }
        }
    };
    let words: Vec<String> =
        rows.iter().zip(&shown).map(|(row, shown)| format!("{} {shown}", row.name)).collect();
    let words = format!("Means: {}.", words.join("; "));
    drawing((left + width + right, bottom + 22.0), title, &words, "", &content)
}

fn show(description: &Description, value: f64) -> String {
    let mut displayed = description.clone();
    displayed.scale = 1.0;
    trimmed(displayed.show(value))
}

fn table(axis: &str, description: &Description, rows: &[Strip<'_>]) -> Table {
    let most = rows.iter().map(|row| row.values.len()).max().unwrap_or(0);
    let has_paper = rows.iter().any(|row| row.paper.is_some());
    let has_interval = rows.iter().any(|row| row.interval.is_some());
    let mut columns = vec!["variant".to_owned(), "mean".to_owned()];
    if has_interval {
        columns.extend(["95 % from", "95 % to"].map(str::to_owned));
    }
    if has_paper {
        columns.push("paper".to_owned());
    }
    columns.extend((1..=most).map(|number| format!("repeat {number}")));
    let figure = |value: f64| Cell::figure(show(description, value), value);
    let optional = |value: Option<f64>| value.map_or_else(|| Cell::text("–"), figure);
    let rows = rows.iter().map(|row| {
        let mut cells = vec![Cell::text(row.name), figure(row.mean)];
        if has_interval {
            cells.extend([row.interval.map(|ends| ends.0), row.interval.map(|ends| ends.1)].map(optional));
        }
        if has_paper {
            cells.push(optional(row.paper));
        }
        cells.extend((0..most).map(|index| optional(row.values.get(index).copied())));
        Row { variant: Some(row.variant), cells }
    });
    Table { caption: axis.to_owned(), columns, rows: rows.collect(), is_text: false }
}
