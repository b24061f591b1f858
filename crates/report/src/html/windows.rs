//! NFM against the length of the window: the fairness of each variant over short and long times.

use evenkeel_metrics::Summary;
use evenkeel_model::record::{Record, metric};

use super::figure::Figure;
use super::lines::{Line, Lines, Point};
use super::looks::Variants;
use super::message;
use super::table::{Cell, Row, Table};
use crate::catalogue::describe;
use crate::format::seconds;
use crate::summaries;

/// Returns the figure, or `None` if fewer than two windows have an NFM.
pub(super) fn figure(record: &Record, variants: &Variants) -> Option<Figure> {
    let mut windows: Vec<(&String, f64)> = record
        .windows
        .iter()
        .filter(|(name, length)| {
            let key = metric::part(metric::NFM, name);
            **length > 0.0
                && record.variants.iter().any(|variant| !summaries::values(variant, &key).is_empty())
        })
        .map(|(name, length)| (name, *length))
        .collect();
    windows.sort_by(|one, other| one.1.total_cmp(&other.1));
    // One window needs no plot: the plot of the main metric has the longest window.
    let (shortest, _) = windows.first().filter(|_| windows.len() > 1)?;
    let mut lines = Vec::new();
    let mut rows = Vec::new();
    for variant in &record.variants {
        let number = variants.number(&variant.name);
        let mut points = Vec::new();
        for (name, length) in &windows {
            let key = metric::part(metric::NFM, name);
            let Some(found) = Summary::of(&summaries::values(variant, &key)) else { continue };
            let description = describe(&key);
            let show = |value: f64| Cell::figure(description.show(value), value);
            points.push(Point { x: *length, y: found.mean, range: (found.min, found.max) });
            rows.push(Row::of_repeats(
                (number, &variant.name),
                Cell::figure(seconds(*length), *length),
                &found,
                show,
            ));
        }
        if !points.is_empty() {
            lines.push(Line { name: variant.name.clone(), variant: number.unwrap_or(0), points });
        }
    }
    let plot = Lines {
        title: "NFM against the length of the window".to_owned(),
        across: "length of the window".to_owned(),
        up: "NFM (0 is fair)".to_owned(),
        ticks: windows.iter().map(|(_, length)| (*length, seconds(*length))).collect(),
        is_across_logarithmic: true,
        is_up_logarithmic: None,
        unit: "",
        decimals: describe(metric::NFM).decimals,
        lines,
    };
    Some(Figure {
        message: message::of_metric(record, &metric::part(metric::NFM, shortest)),
        caption:
            "Mean of the repeats by the length of the window; vertical bars are the range of the repeats. \
                  0 is fair: all flows send the same number of bytes in each window."
                .to_owned(),
        drawings: plot.draw(),
        table: Table {
            caption: "NFM by variant and window".to_owned(),
            columns: ["variant", "window, s", "mean", "least", "greatest", "repeats"]
                .map(str::to_owned)
                .to_vec(),
            rows,
            is_text: false,
        },
        remarks: Vec::new(),
    })
}
