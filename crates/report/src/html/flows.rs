//! The rate of each flow over time, from the raw series of one repeat per variant. If no series can be
//! drawn, the figure has the answered requests of each group of clients instead, if they are recorded.

use std::path::Path;

use evenkeel_model::record::{Record, VariantRecord, metric};
use maud::{Markup, html};

use super::Source;
use super::axes::{self, Scale};
use super::figure::{Figure, cut, drawing, path_of, rule, text_at};
use super::looks::{self, Variants};
use super::table::{Cell, Row, Table};
use crate::catalogue::describe;
use crate::format::{seconds, short, trimmed};
use crate::store::{self, Series, StoreError};

/// Maximum number of panels: each panel has a file to decompress.
const MOST_PANELS: usize = 24;
const POINTS: usize = 100;
/// Maximum number of flows with a line each. With more flows, a panel has their range and median.
const MOST_FLOWS: usize = 24;
/// Maximum number of flow columns in the table. With more flows, the table has their range and median.
const MOST_COLUMNS: usize = 12;

struct Panel {
    name: String,
    variant: usize,
    /// Number of the repeat, from 1.
    repeat: usize,
    /// Start of each point, in seconds since the start of the measurement.
    times: Vec<f64>,
    lines: Vec<(String, Vec<f64>)>,
}

/// Returns the figure, or the reason why no figure can be drawn.
pub(super) fn figure(source: &Source<'_>, variants: &Variants) -> Result<Figure, String> {
    let record = source.record;
    let (panels, mut remarks) = from_series(source, variants);
    let mut is_of_requests = false;
    let mut panels = panels;
    if panels.is_empty() {
        let of_clients: Vec<Panel> = record
            .variants
            .iter()
            .filter_map(|variant| of_clients(variant, variants))
            .take(MOST_PANELS)
            .collect();
        if !of_clients.is_empty() {
            (panels, is_of_requests) = (of_clients, true);
            remarks.clear();
        }
    }
    if panels.is_empty() {
        return Err(if remarks.is_empty() { none(source) } else { remarks.join(" ") });
    }
    if record.variants.len() > MOST_PANELS {
        remarks.push(format!("Only the first {MOST_PANELS} variants are drawn."));
    }
    let (what, line, unit) = if is_of_requests {
        ("Requests answered", "group of clients", "k/s")
    } else {
        ("Rate on the wire", "flow", describe(metric::THROUGHPUT).unit)
    };
    let values =
        panels.iter().flat_map(|panel| panel.lines.iter().flat_map(|(_, values)| values.iter().copied()));
    let (low, high) = axes::ends(values);
    let up = Scale::from_zero(low, high);
    let many = panels.iter().any(|panel| panel.lines.len() > MOST_FLOWS);
    let step = panels.first().and_then(|panel| panel.times.get(1)).copied().unwrap_or_default();
    let mut caption = format!("{what} over time, {unit}, one repeat of each variant; each line is a {line}");
    if !is_of_requests {
        caption.push_str("; the dotted line is an equal share. The fastest and the slowest flow are named");
    }
    if step > 0.0 {
        caption.push_str(&format!(". A point is a mean over {}", seconds(step)));
    }
    caption.push('.');
    if many {
        caption.push_str(&format!(
            " With more than {MOST_FLOWS} flows, the area is their range, and the line their median."
        ));
    }
    Ok(Figure {
        message: message(record, &panels, is_of_requests),
        caption,
        drawings: panels
            .iter()
            .map(|panel| draw(panel, up, &format!("{what}, {unit}"), !is_of_requests))
            .collect(),
        table: table(&panels, &format!("{what}, {unit}")),
        remarks,
    })
}

/// Returns the panels of the first [`MOST_PANELS`] variants, and a reason for each of these variants whose
/// series cannot be drawn. Skips variants without a recorded series.
fn from_series(source: &Source<'_>, variants: &Variants) -> (Vec<Panel>, Vec<String>) {
    let (mut panels, mut remarks) = (Vec::new(), Vec::new());
    let Some(directory) = source.directory else { return (panels, remarks) };
    for variant in source.record.variants.iter().take(MOST_PANELS) {
        let first = variant.repeats.iter().position(|repeat| repeat.series.is_some());
        let Some(repeat) = first else { continue };
        match read(directory, source.record, variant, repeat) {
            Ok(Some(series)) => panels.extend(of_series(variant, &series, variants)),
            Ok(None) => {}
            Err(why) => remarks.push(format!("Not drawn: {}, because {why}.", variant.name)),
        }
    }
    (panels, remarks)
}

/// Reads a series. Returns an error if it does not match the record. The error contains no directory name,
/// because users may send the page to other people.
fn read(
    directory: &Path,
    record: &Record,
    variant: &VariantRecord,
    repeat: usize,
) -> Result<Option<Series>, String> {
    let Some(recorded) = variant.repeats.get(repeat) else { return Ok(None) };
    let file = recorded.series.as_deref().unwrap_or_default();
    let series =
        store::read_series(directory, record, &variant.name, repeat).map_err(|error| match error {
            StoreError::Missing { .. } => format!("{file} does not exist"),
            StoreError::DamagedSeries { .. } => format!("{file} cannot be decompressed"),
            StoreError::MalformedSeries { line, reason, .. } => format!("{file}, line {line}: {reason}"),
            StoreError::OutsideRecord { .. } => format!("{file} is not a file within the record"),
            StoreError::Io { source, .. } => format!("{file} cannot be read: {source}"),
            _ => format!("{file} cannot be read"),
        })?;
    match series.as_ref().and_then(|series| series.contradiction(record, recorded)) {
        Some(difference) => Err(format!("{file} does not match the record: {difference}")),
        None => Ok(series),
    }
}

fn none(source: &Source<'_>) -> String {
    let has_series = source
        .record
        .variants
        .iter()
        .flat_map(|variant| &variant.repeats)
        .any(|repeat| repeat.series.is_some());
    if !has_series {
        "No rates over time: the record has no raw series.".to_owned()
    } else if source.directory.is_none() {
        "No rates over time: the record came without its directory, so its raw series cannot be read."
            .to_owned()
    } else {
        "No rates over time: the raw series have no flows.".to_owned()
    }
}

fn of_series(variant: &VariantRecord, series: &Series, variants: &Variants) -> Option<Panel> {
    let bins = series.flows.first().map_or(0, |flow| flow.bytes.len());
    if bins == 0 {
        return None;
    }
    let group = bins.div_ceil(POINTS);
    let scale = describe(metric::THROUGHPUT).scale;
    let bin_s = series.bin_ns as f64 / 1e9;
    let rates = |bytes: &[u64]| {
        let of_group = |group: &[u64]| {
            let sum: f64 = group.iter().map(|bytes| *bytes as f64).sum();
            sum * 8.0 / (group.len() as f64 * bin_s) * scale
        };
        bytes.chunks(group).map(of_group).collect::<Vec<f64>>()
    };
    Some(Panel {
        name: variant.name.clone(),
        variant: variants.number(&variant.name)?,
        repeat: series.repeat + 1,
        times: (0..bins.div_ceil(group)).map(|index| (index * group) as f64 * bin_s).collect(),
        lines: series.flows.iter().map(|flow| (flow.name.clone(), rates(&flow.bytes))).collect(),
    })
}

fn of_clients(variant: &VariantRecord, variants: &Variants) -> Option<Panel> {
    let repeat = variant.repeats.first().filter(|repeat| !repeat.clients.is_empty())?;
    let length = repeat.clients.iter().map(|group| group.seconds.len()).max().filter(|length| *length > 1)?;
    let thousands = |group: &evenkeel_model::record::ClientsRecord| {
        group.seconds.iter().map(|second| second.requests as f64 / 1e3).collect()
    };
    Some(Panel {
        name: variant.name.clone(),
        variant: variants.number(&variant.name)?,
        repeat: 1,
        times: (0..length).map(|second| second as f64).collect(),
        lines: repeat.clients.iter().map(|group| (group.name.clone(), thousands(group))).collect(),
    })
}

impl Panel {
    fn means(&self) -> Vec<f64> {
        let mean = |values: &Vec<f64>| values.iter().sum::<f64>() / values.len().max(1) as f64;
        self.lines.iter().map(|(_, values)| mean(values)).collect()
    }

    /// Returns the rate of the slowest flow as a share of the fastest flow's rate; `None` for fewer than two
    /// flows, or if all rates are 0.
    fn evenness(&self) -> Option<f64> {
        let (low, high) = axes::ends(self.means());
        (self.lines.len() > 1 && high > 0.0).then(|| low / high)
    }

    /// Returns the minimum, the median and the maximum of the lines at each point.
    fn spread(&self) -> Vec<(f64, f64, f64)> {
        (0..self.times.len())
            .map(|index| {
                let mut values: Vec<f64> =
                    self.lines.iter().filter_map(|(_, values)| values.get(index).copied()).collect();
                values.sort_by(f64::total_cmp);
                let at = |index: usize| values.get(index).copied().unwrap_or(0.0);
                (at(0), at(values.len() / 2), at(values.len().saturating_sub(1)))
            })
            .collect()
    }
}

fn message(record: &Record, panels: &[Panel], is_of_requests: bool) -> String {
    let rated: Vec<(&Panel, f64)> =
        panels.iter().filter_map(|panel| Some((panel, panel.evenness()?))).collect();
    let best = rated.iter().max_by(|one, other| one.1.total_cmp(&other.1));
    let worst = rated.iter().min_by(|one, other| one.1.total_cmp(&other.1));
    let percent = |share: f64| format!("{} %", crate::format::percent(share, 0));
    match (best, worst) {
        _ if is_of_requests => "Requests answered over time".to_owned(),
        (Some(best), Some(worst)) if best.1 - worst.1 > 0.005 && record.variants.len() > 1 => format!(
            "The slowest flow gets {} of the fastest one's rate with {}, {} with {}",
            percent(best.1),
            best.0.name,
            percent(worst.1),
            worst.0.name
        ),
        (Some(best), _) => format!("The slowest flow gets {} of the fastest one's rate", percent(best.1)),
        _ => "Rate of the flows over time".to_owned(),
    }
}

fn draw(panel: &Panel, up: Scale, what: &str, has_share: bool) -> Markup {
    let (left, top, width, height) = (40.0, 42.0, 236.0, 118.0);
    let is_band = panel.lines.len() > MOST_FLOWS;
    let room = if is_band || panel.lines.len() < 2 { 12.0 } else { 62.0 };
    let end = panel.times.last().copied().unwrap_or(1.0).max(f64::MIN_POSITIVE);
    let across = Scale::Linear { low: 0.0, high: end };
    let x = |time: f64| left + across.place(time) * width;
    let y = |value: f64| top + (1.0 - up.place(value)) * height;
    let bottom = top + height;
    let line = |values: &[f64]| {
        path_of(panel.times.iter().zip(values).map(|(time, value)| Some((x(*time), y(*value)))))
    };
    let means = panel.means();
    let total: f64 = means.iter().sum();
    let share = total / means.len().max(1) as f64;
    let mut names: Vec<(f64, String)> = Vec::new();
    if !is_band && panel.lines.len() > 1 {
        let extreme = |better: &dyn Fn(f64, f64) -> bool| {
            (0..means.len()).reduce(|best, next| if better(means[next], means[best]) { next } else { best })
        };
        let fastest = extreme(&|one, other| one > other);
        let slowest = extreme(&|one, other| one < other);
        for index in [fastest, slowest].into_iter().flatten() {
            let last = panel.lines[index].1.last().copied().unwrap_or(0.0);
            names.push((y(last) + 4.0, cut(&panel.lines[index].0, 9)));
        }
        if let [first, second] = names.as_mut_slice() {
            // Two names need a vertical distance of one line.
            if second.0 - first.0 < 13.0 {
                let middle = f64::midpoint(first.0, second.0);
                (first.0, second.0) = (middle - 6.5, middle + 6.5);
            }
            if first.1 == second.1 {
                names.truncate(1);
            }
        }
    }
    let bands: Vec<(f64, f64, f64)> = if is_band { panel.spread() } else { Vec::new() };
    let content = html! {
        (text_at(4.0, 13.0, "name strong", &cut(&panel.name, 44)))
        (text_at(4.0, 27.0, "tick", &format!("{what}, repeat {}", panel.repeat)))
        @for tick in up.ticks(3) {
            (rule((left, y(tick)), (left + width, y(tick)), "grid"))
            (text_at(left - 6.0, y(tick) + 4.0, "tick end", &axes::label(tick)))
        }
        (rule((left, bottom), (left + width, bottom), "axis"))
        @for tick in across.ticks(4) {
            (rule((x(tick), bottom), (x(tick), bottom + 4.0), "axis"))
            (text_at(x(tick), bottom + 17.0, "tick middle", &axes::label(tick)))
        }
        (text_at(left + width / 2.0, bottom + 32.0, "tick middle", "time, s"))
        g class=(looks::colour(panel.variant)) {
            @if is_band {
                path class="area" d=(format!(
                    "{}{}Z",
                    path_of(panel.times.iter().zip(&bands).map(|(time, band)| Some((x(*time), y(band.2))))),
                    path_of(panel.times.iter().zip(&bands).rev().map(|(time, band)| Some((x(*time), y(band.0)))))
                        .replacen('M', "L", 1)
                )) {}
                path class="line" d=(line(&bands.iter().map(|band| band.1).collect::<Vec<f64>>())) {}
            } @else {
                @for (_, values) in &panel.lines { path class="flow" d=(line(values)) {} }
            }
        }
        @if has_share && panel.lines.len() > 1 {
            (rule((left, y(share)), (left + width, y(share)), "share"))
        }
        @for (y, name) in &names { (text_at(left + width + 5.0, *y, "tick", name)) }
    };
    let (low, high) = axes::ends(means.iter().copied());
    let words = format!("{} lines, means from {} to {}.", panel.lines.len(), short(low), short(high));
    let title = format!("{what} over time: {}", panel.name);
    let class = looks::class(Some(panel.variant));
    drawing((left + width + room, bottom + 38.0), &title, &words, &class, &content)
}

fn table(panels: &[Panel], what: &str) -> Table {
    let most = panels.iter().map(|panel| panel.lines.len()).max().unwrap_or(0);
    let is_each = most <= MOST_COLUMNS;
    let mut columns = vec!["variant".to_owned(), "time, s".to_owned()];
    if is_each {
        // The flows of different variants may have different names.
        let same = panels
            .windows(2)
            .all(|two| two[0].lines.iter().map(|line| &line.0).eq(two[1].lines.iter().map(|line| &line.0)));
        let name = |index: usize| {
            let first = panels.first().and_then(|panel| panel.lines.get(index));
            first.filter(|_| same).map_or_else(|| format!("flow {}", index + 1), |line| line.0.clone())
        };
        columns.extend((0..most).map(name));
    } else {
        columns.extend(["slowest flow", "median flow", "fastest flow"].map(str::to_owned));
    }
    let show = |value: f64| Cell::text(trimmed(crate::format::number(value, 4)));
    let mut rows = Vec::new();
    for panel in panels {
        let spread = if is_each { Vec::new() } else { panel.spread() };
        for (index, time) in panel.times.iter().enumerate() {
            let mut cells = vec![Cell::text(&panel.name), Cell::text(short(*time))];
            if is_each {
                cells.extend((0..most).map(|line| {
                    let value = panel.lines.get(line).and_then(|(_, values)| values.get(index));
                    value.map_or_else(|| Cell::text("–"), |value| show(*value))
                }));
            } else if let Some((low, median, high)) = spread.get(index) {
                cells.extend([*low, *median, *high].map(show));
            }
            rows.push(Row { variant: Some(panel.variant), cells });
        }
    }
    Table { caption: format!("{what}, over time"), columns, rows, is_text: false }
}
