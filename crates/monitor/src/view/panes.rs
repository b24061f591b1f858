//! The content of each pane.

use ratatui_core::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

use crate::sample::Interface;
use crate::view::answers;
use crate::view::figures::{index, per_second, percent, quantity, unknown};
use crate::view::history::{Figure, sparkline};
use crate::view::rows::{FlowRows, LossRows, ProcessorRows, QueueRows};
use crate::view::screen::Scene;
use crate::view::state::Pane;
use crate::view::table::{Palette, Rows, cut};

/// The first line and the rows of a pane. The pane of sparklines has no rows.
pub struct Content<'a> {
    pub answer: String,
    pub rows: Option<Box<dyn Rows + 'a>>,
}

pub fn content<'a>(scene: &Scene<'a>, interface: Option<&'a Interface>, pane: Pane) -> Content<'a> {
    let (sample, seconds) = (scene.sample, scene.sample.seconds);
    let missing = || "no interface".to_owned();
    let of = |words: &dyn Fn(&Interface) -> String| interface.map_or_else(missing, words);
    match pane {
        Pane::Queues => Content {
            answer: of(&|interface| answers::queues(interface, seconds)),
            rows: Some(Box::new(QueueRows { queues: interface.map_or(&[], |it| &it.queues), seconds })),
        },
        Pane::Flows => Content {
            answer: of(&|interface| answers::flows(interface, seconds)),
            rows: Some(Box::new(FlowRows { flows: interface.map_or(&[], |it| &it.flows), seconds })),
        },
        Pane::Processors => Content {
            answer: answers::processors(sample),
            rows: Some(Box::new(ProcessorRows { processors: &sample.processors, seconds })),
        },
        Pane::Losses => Content {
            answer: answers::losses(sample),
            rows: Some(Box::new(LossRows { losses: &sample.losses, seconds })),
        },
        Pane::Fairness => Content { answer: of(&answers::fairness), rows: None },
    }
}

/// Height of the fairness pane in the grid: its name, its summary, its lines and an empty line.
pub const FAIRNESS_HEIGHT: u16 = 9;

/// Returns the figures of fairness, cost and loss, each with a sparkline, and a line about the cost.
pub fn fairness(
    scene: &Scene<'_>,
    interface: Option<&Interface>,
    palette: Palette,
    width: usize,
) -> Vec<Line<'static>> {
    let Some(interface) = interface else { return Vec::new() };
    let figures = figures(scene, interface);
    let label = figures.iter().map(|figure| figure.label.width()).max().unwrap_or(0);
    const VALUE: usize = 8;
    let mut lines: Vec<Line<'static>> = Vec::new();
    for Trend { label: name, value, figure, most, words } in figures {
        let text = format!("{name:<label$}  {value:>VALUE$}  ");
        let values = scene.points.iter().map(|point| point.figure(&interface.name, figure));
        const SCALE: usize = 16;
        let (graph, most) = sparkline(values, width.saturating_sub(text.width() + SCALE), most);
        let has_values = graph.chars().any(|character| character != ' ');
        let scale = if has_values { format!("  0 to {}", words(most)) } else { String::new() };
        lines.push(Line::from(vec![
            Span::raw(text),
            Span::styled(graph, palette.graph()),
            Span::raw(cut(&scale, SCALE)),
        ]));
    }
    lines.push(Line::raw(cut(&cost(scene, interface), width)));
    lines
}

struct Trend {
    label: &'static str,
    value: String,
    figure: Figure,
    /// Smallest upper end of the scale.
    most: f64,
    words: fn(f64) -> String,
}

fn figures(scene: &Scene<'_>, interface: &Interface) -> [Trend; 5] {
    let shown = |value: Option<f64>, words: fn(f64) -> String| value.map_or_else(unknown, words);
    let trend = |label, value: Option<f64>, figure, most, words: fn(f64) -> String| Trend {
        label,
        value: shown(value, words),
        figure,
        most,
        words,
    };
    let newest = scene.points.last();
    let lost = newest.and_then(|point| point.figure(&interface.name, Figure::Lost));
    let bpf = interface.bpf_ns.and_then(|time| per_second(time, scene.sample.seconds)).map(|ns| ns / 1e9);
    [
        trend("NFM, 1 s", interface.nfm_1s, Figure::Nfm1s, 1.0, index),
        trend("NFM, 0.1 s", interface.nfm_100ms, Figure::Nfm100ms, 1.0, index),
        trend("Jain, 1 s", interface.jain_1s, Figure::Jain1s, 1.0, index),
        trend("meter, of a CPU", bpf, Figure::Bpf, 0.01, fine_percent),
        trend("lost/s", lost, Figure::Lost, 0.0, quantity),
    ]
}

/// Formats a share that is usually below a few per cent.
fn fine_percent(share: f64) -> String {
    if share.is_finite() && share.abs() < 0.1 {
        format!("{:.1} %", share.abs() * 100.0)
    } else {
        percent(share)
    }
}

/// Describes the cost of the meter that observes flows, or how to measure it.
pub fn cost(scene: &Scene<'_>, interface: &Interface) -> String {
    let Some(time) = interface.bpf_ns else {
        return "meter cost unknown: `sysctl -w kernel.bpf_stats_enabled=1` measures it".to_owned();
    };
    let share = per_second(time, scene.sample.seconds).map_or_else(unknown, |ns| fine_percent(ns / 1e9));
    match interface.sent_packets.delta {
        0 => format!("the BPF meter of this command uses {share} of a processor"),
        packets => {
            let each = time.delta as f64 / packets as f64;
            format!(
                "the BPF meter of this command uses {share} of a processor, {} ns per packet sent",
                quantity(each.round())
            )
        }
    }
}
