//! Percentiles of latency, response and completion times.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_metrics::Summary;
use evenkeel_model::record::{Record, metric};

use super::figure::Figure;
use super::lines::{Line, Lines, Point};
use super::looks::Variants;
use super::message;
use super::table::{Cell, Row, Table};
use crate::catalogue::describe;
use crate::summaries;

/// Maximum number of plots. A record may have one plot for each group of clients.
const MOST_FIGURES: usize = 4;

pub(super) fn figures(record: &Record, variants: &Variants) -> Vec<Figure> {
    let repeats = record.variants.iter().flat_map(|variant| &variant.repeats);
    let keys: BTreeSet<&str> = repeats.flat_map(|repeat| repeat.metrics.keys()).map(String::as_str).collect();
    let mut families: BTreeMap<&str, Vec<(f64, &str)>> = BTreeMap::new();
    for key in keys {
        if let Some((family, share)) =
            key.rsplit_once('.').and_then(|(family, part)| Some((family, share_of(part)?)))
        {
            families.entry(family).or_default().push((share, key));
        }
    }
    // Completion times of one size are a detail and have no plot.
    let is_detail = |family: &str| family.contains('.') && family.starts_with(metric::COMPLETION);
    families.retain(|family, keys| keys.len() > 1 && !is_detail(family));
    // Plot the groups of clients instead of all clients together.
    if families.keys().filter(|family| is_response(family)).count() > 1 {
        families.retain(|family, _| !is_response(family) || !family.ends_with(metric::ALL_CLIENTS));
    }
    let mut figures = Vec::new();
    for (_, mut keys) in families {
        keys.sort_by(|one, other| one.0.total_cmp(&other.0));
        figures.extend(figure(record, variants, &keys));
    }
    figures.truncate(MOST_FIGURES);
    figures
}

fn is_response(family: &str) -> bool {
    family.split('.').next() == Some(metric::RESPONSE)
}

/// Returns the inverse of the share that a percentile excludes: 1000 for `p999`. Returns `None` for other
/// metrics.
fn share_of(part: &str) -> Option<f64> {
    match part {
        "p50" => Some(0.5),
        "p80" => Some(0.2),
        "p90" => Some(0.1),
        "p99" => Some(0.01),
        "p999" => Some(0.001),
        _ => None,
    }
    .map(|excluded: f64| 1.0 / excluded)
}

fn figure(record: &Record, variants: &Variants, keys: &[(f64, &str)]) -> Option<Figure> {
    let (_, first) = keys.first()?;
    let description = describe(first);
    let percentile = |key: &str| key.rsplit('.').next().unwrap_or_default().replace("p999", "p99.9");
    let (mut lines, mut rows) = (Vec::new(), Vec::new());
    for variant in &record.variants {
        let number = variants.number(&variant.name);
        let mut points = Vec::new();
        for (inverse, key) in keys {
            let values: Vec<f64> = summaries::values(variant, key);
            let Some(found) = Summary::of(&values) else { continue };
            let scaled = |value: f64| value * description.scale;
            let show = |value: f64| Cell::figure(description.show(value), scaled(value));
            points.push(Point {
                x: *inverse,
                y: scaled(found.mean),
                range: (scaled(found.min), scaled(found.max)),
            });
            rows.push(Row::of_repeats((number, &variant.name), Cell::text(percentile(key)), &found, show));
        }
        if !points.is_empty() {
            lines.push(Line { name: variant.name.clone(), variant: number.unwrap_or(0), points });
        }
    }
    // A single line with equal percentiles needs no plot.
    let spread = |line: &Line| {
        let (low, high) = super::axes::ends(line.points.iter().map(|point| point.y));
        high > low * 1.005
    };
    if lines.is_empty() || (lines.len() == 1 && !spread(&lines[0])) {
        return None;
    }
    let name = match description.part.rsplit_once(' ') {
        Some((group, _)) => format!("{} {group}", description.name),
        None => description.name.clone(),
    };
    let p99 = keys.iter().find(|(_, key)| key.ends_with(".p99")).or(keys.last())?;
    let ticks = keys.iter().map(|(inverse, key)| (*inverse, percentile(key))).collect();
    let plot = Lines {
        title: format!("Percentiles of {name}"),
        across: "percentile".to_owned(),
        up: format!("{name}, {}", description.unit),
        ticks,
        is_across_logarithmic: true,
        is_up_logarithmic: None,
        unit: description.unit,
        decimals: description.decimals,
        lines,
    };
    Some(Figure {
        message: message::of_metric(record, p99.1),
        caption: format!(
            "Percentiles of {name}: mean of the repeats, with their range. Each step from 90 to 99 to 99.9 % is \
             equally wide."
        ),
        drawings: plot.draw(),
        table: Table {
            caption: format!("Percentiles of {name}, {}", description.unit),
            columns: ["variant", "percentile", "mean", "least", "greatest", "repeats"]
                .map(str::to_owned)
                .to_vec(),
            rows,
            is_text: false,
        },
        remarks: Vec::new(),
    })
}
