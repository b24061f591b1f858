//! A page of a study: findings, recommendations and charts.

use evenkeel_model::units::ByteSize;
use maud::html;

use super::figure::{Figure, Level};
use super::lines::{Line, Lines, Point};
use super::looks::Variants;
use super::page::{document, filter};
use super::table::{Cell, Row, Table};
use crate::chart::Chart;
use crate::format::{clean, short};

#[derive(Clone, Debug, Default)]
pub struct Study {
    pub title: String,
    /// The results, one sentence each.
    pub answer: Vec<String>,
    pub findings: Vec<StudyFinding>,
    /// For each recommendation: the need, the recommended setups, and their figures.
    pub recommendations: Vec<[String; 3]>,
    pub charts: Vec<Chart>,
    pub facts: Vec<(String, String)>,
}

#[derive(Clone, Debug, Default)]
pub struct StudyFinding {
    pub id: String,
    pub statement: String,
    pub verdict: String,
    pub reason: String,
    pub repeats: usize,
}

/// Returns the page of a study. The lines of its charts are qdisc setups, which the filter can hide.
#[must_use]
pub fn study(study: &Study) -> String {
    let names = study.charts.iter().flat_map(|chart| &chart.lines).map(|line| line.name.as_str());
    let variants = Variants::of(names);
    let content = html! {
        div.answer { @for sentence in &study.answer { p { (clean(sentence)) } } }
        @if !study.recommendations.is_empty() {
            h2 { "Which qdisc for what" }
            (recommendations(study).render())
        }
        @if !study.findings.is_empty() {
            h2 { "Findings" }
            (findings(study).render())
        }
        @if !study.charts.is_empty() {
            h2 { "Plots" }
            (filter(&variants))
            @let figures: Vec<Figure> =
                study.charts.iter().map(|chart| figure(chart, &variants)).collect();
            @let (single, panels): (Vec<&Figure>, Vec<&Figure>) =
                figures.iter().partition(|figure| figure.drawings.len() == 1);
            // Small multiples need the whole width.
            div.pair { @for figure in single { (figure.render(Level(3))) } }
            @for figure in panels { (figure.render(Level(3))) }
        }
        h2 { "Run and host" }
        (facts(study).render())
    };
    document(&study.title, &variants, &content)
}

fn recommendations(study: &Study) -> Table {
    let row = |cells: &[String; 3]| Row { variant: None, cells: cells.each_ref().map(Cell::text).into() };
    Table {
        caption: "Recommended qdisc setups".to_owned(),
        columns: ["need", "take", "figures"].map(str::to_owned).into(),
        rows: study.recommendations.iter().map(row).collect(),
        is_text: true,
    }
}

fn findings(study: &Study) -> Table {
    let row = |finding: &StudyFinding| Row {
        variant: None,
        cells: vec![
            Cell::text(&finding.id),
            Cell::text(&finding.verdict),
            Cell::text(&finding.statement),
            Cell::text(&finding.reason),
            Cell::text(finding.repeats.to_string()),
        ],
    };
    Table {
        caption: "Findings of the thesis, and whether this study confirms them".to_owned(),
        columns: ["finding", "verdict", "statement", "found", "repeats"].map(str::to_owned).into(),
        rows: study.findings.iter().map(row).collect(),
        is_text: true,
    }
}

fn facts(study: &Study) -> Table {
    let row = |(name, value): &(String, String)| Row {
        variant: None,
        cells: vec![Cell::text(name), Cell::text(value)],
    };
    Table {
        caption: "The study".to_owned(),
        columns: ["fact", "value"].map(str::to_owned).into(),
        rows: study.facts.iter().map(row).collect(),
        is_text: true,
    }
}

/// Parses a label as a number: `16`, `64KiB`.
fn number(label: &str) -> Option<f64> {
    let size = || label.parse::<ByteSize>().ok().map(|size| size.bytes() as f64);
    label.parse::<f64>().ok().or_else(size).filter(|value| value.is_finite())
}

fn figure(chart: &Chart, variants: &Variants) -> Figure {
    let numbers: Option<Vec<f64>> = chart.places.iter().map(|label| number(label)).collect();
    let at = |place: usize| match &numbers {
        Some(numbers) => numbers.get(place).copied(),
        None => Some(place as f64),
    };
    let (low, high) = super::axes::ends(numbers.iter().flatten().copied());
    let is_wide = numbers.is_some() && low > 0.0 && high / low >= 8.0;
    let line = |line: &crate::chart::Line| Line {
        name: line.name.clone(),
        variant: variants.number(&line.name).unwrap_or(0),
        points: line
            .points
            .iter()
            .filter_map(|point| Some(Point { x: at(point.place)?, y: point.value, range: point.range }))
            .collect(),
    };
    let plot = Lines {
        title: clean(&chart.title),
        across: clean(&chart.across),
        up: clean(&chart.metric),
        ticks: (0..chart.places.len())
            .filter_map(|place| Some((at(place)?, clean(&chart.places[place]))))
            .collect(),
        is_across_logarithmic: is_wide,
        is_up_logarithmic: Some(chart.logarithmic),
        unit: "",
        decimals: 3,
        lines: chart.lines.iter().map(line).collect(),
    };
    let mut rows = Vec::new();
    for line in &chart.lines {
        for point in &line.points {
            let show = |value: f64| Cell::figure(short(value), value);
            rows.push(Row {
                variant: variants.number(&line.name),
                cells: vec![
                    Cell::text(&line.name),
                    Cell::text(chart.places.get(point.place).map_or("", String::as_str)),
                    show(point.value),
                    show(point.range.0),
                    show(point.range.1),
                ],
            });
        }
    }
    Figure {
        message: message(chart),
        caption: format!(
            "{}: {} by {}; mean of the repeats, with their range.",
            clean(&chart.title),
            clean(&chart.metric),
            clean(&chart.across)
        ),
        drawings: plot.draw(),
        table: Table {
            caption: clean(&format!("{} by {}", chart.metric, chart.across)),
            columns: vec![
                "qdisc".to_owned(),
                clean(&chart.across),
                "mean".to_owned(),
                "least".to_owned(),
                "greatest".to_owned(),
            ],
            rows,
            is_text: false,
        },
        remarks: Vec::new(),
    }
}

fn message(chart: &Chart) -> String {
    let last = chart.places.len().saturating_sub(1);
    let at_last = chart.lines.iter().filter_map(|line| {
        let point = line.points.iter().find(|point| point.place == last)?;
        Some((line, point.value, point.range))
    });
    let ends: Vec<_> = at_last.collect();
    let least = ends.iter().min_by(|one, other| one.1.total_cmp(&other.1));
    let most = ends.iter().max_by(|one, other| one.1.total_cmp(&other.1));
    let where_ = format!("at {} {}", chart.across, chart.places.last().map_or("", String::as_str));
    let text = match (least, most) {
        // Ranges that overlap or touch show no difference.
        (Some(least), Some(most)) if least.2.1 < most.2.0 && short(least.1) != short(most.1) => format!(
            "{} {where_}: {} with {}, {} with {}",
            chart.metric,
            short(least.1),
            least.0.name,
            short(most.1),
            most.0.name
        ),
        (Some(least), Some(most)) => {
            format!("{} {where_}: {} to {}, no difference shown", chart.metric, short(least.1), short(most.1))
        }
        _ => chart.title.clone(),
    };
    clean(&text)
}
