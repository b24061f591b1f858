//! The charts of a study, as its scenarios specify them.

use evenkeel_model::scenario::Plot;
use evenkeel_report::chart::{Chart, ChartPoint, Line};
use evenkeel_report::describe;

use crate::results::{Point, Results};

/// Returns every chart with its file name, without the extension. A plot with panels has one chart per value
/// on the axis of the panels. Omits a chart without a line of at least two points.
#[must_use]
pub fn charts(results: &Results) -> Vec<(String, Chart)> {
    let of_scenario = |facts: &crate::results::ScenarioFacts| {
        facts.plots.iter().flat_map(|plot| of_plot(results, &facts.name, plot)).collect::<Vec<_>>()
    };
    results.scenarios.iter().flat_map(of_scenario).collect()
}

fn of_plot(results: &Results, scenario: &str, plot: &Plot) -> Vec<(String, Chart)> {
    let points: Vec<&Point> =
        results.measured(scenario).filter(|point| point.summary(&plot.metric).is_some()).collect();
    let Some(panels) = &plot.panels else {
        return chart(&points, plot, None).map(|chart| (plot.name.clone(), chart)).into_iter().collect();
    };
    in_order(&points, panels)
        .into_iter()
        .filter_map(|value| {
            let own: Vec<&Point> =
                points.iter().copied().filter(|point| axis(point, panels) == Some(value)).collect();
            Some((format!("{}-{value}", plot.name), chart(&own, plot, Some((panels, value)))?))
        })
        .collect()
}

/// Returns the point's value on an axis; the setup is the axis `qdisc`.
fn axis<'p>(point: &'p Point, name: &str) -> Option<&'p str> {
    if name == "qdisc" { Some(&point.setup) } else { point.axis(name) }
}

/// Returns the values on an axis: numbers sorted by size, words in the order of the points.
fn in_order<'p>(points: &[&'p Point], name: &str) -> Vec<&'p str> {
    let mut values: Vec<&str> = Vec::new();
    for value in points.iter().filter_map(|point| axis(point, name)) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    if values.iter().all(|value| crate::results::number(value).is_some()) {
        let size = |value: &&str| crate::results::number(value).unwrap_or(0.0);
        values.sort_by(|first, second| size(first).total_cmp(&size(second)));
    }
    values
}

/// Returns a chart, or `None` if no line has two points. A table displays single points better.
fn chart(points: &[&Point], plot: &Plot, panel: Option<(&str, &str)>) -> Option<Chart> {
    let places = in_order(points, &plot.across);
    let description = describe(&plot.metric);
    let lines: Vec<Line> = in_order(points, "qdisc")
        .into_iter()
        .map(|setup| Line {
            name: setup.to_owned(),
            points: places
                .iter()
                .enumerate()
                .filter_map(|(place, value)| {
                    let mut here = points
                        .iter()
                        .filter(|point| point.setup == setup && axis(point, &plot.across) == Some(*value));
                    // Each other axis usually has only one value here. If there are several points, use
                    // the first point.
                    let summary = here.next()?.summary(&plot.metric)?;
                    let shown = |value: f64| value * description.scale;
                    let range = (shown(summary.min), shown(summary.max));
                    Some(ChartPoint { place, value: shown(summary.mean), range })
                })
                .collect(),
        })
        .collect();
    if places.is_empty() || lines.iter().all(|line| line.points.len() < 2) {
        return None;
    }
    let unit = if description.unit.is_empty() { String::new() } else { format!(", {}", description.unit) };
    Some(Chart {
        title: match panel {
            Some((name, value)) => format!("{}: {name} {value}", plot.title),
            None => plot.title.clone(),
        },
        across: plot.across.clone(),
        metric: format!("{}{unit}", description.label()),
        places: places.into_iter().map(str::to_owned).collect(),
        logarithmic: plot.logarithmic,
        lines,
    })
}
