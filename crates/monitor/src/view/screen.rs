//! The screen: title, answer, interface, panes and keys, on a buffer of characters.

use std::time::Duration;

use evenkeel_model::text::excerpt;
use evenkeel_model::units::rate_text;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

use crate::sample::{Interface, Sample};
use crate::view::figures::{clock, duration, each_second, rate};
use crate::view::history::{Figure, Point, sparkline};
use crate::view::panes::{self, Content};
use crate::view::state::{Pane, ViewState};
use crate::view::table::{Extent, Palette, cut, lay_out, wrapped};
use crate::view::{answers, help};

/// Minimum size of the screen.
pub const LEAST_WIDTH: u16 = 80;
pub const LEAST_HEIGHT: u16 = 24;

/// Minimum size at which the screen shows all panes: two columns of 78 characters, with a gap of 2.
const ALL_WIDTH: u16 = 2 * LEAST_WIDTH - 2;
const ALL_HEIGHT: u16 = 40;

/// The source of the samples.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    Live { interval: Duration, recording: Option<String> },
    Replay { file: String, index: usize, count: usize },
}

/// All data of a screen, apart from the user's choices.
pub struct Scene<'a> {
    pub sample: &'a Sample,
    /// The figures of the samples up to `sample`, the oldest first.
    pub points: &'a [Point],
    pub origin: &'a Origin,
}

/// Draws the screen. Returns the extent of each pane, for [`ViewState::adopt`].
pub fn draw(
    scene: &Scene<'_>,
    state: &ViewState,
    palette: Palette,
    buffer: &mut Buffer,
) -> [Option<Extent>; 5] {
    let area = *buffer.area();
    let mut extents = [const { None }; 5];
    if area.width < LEAST_WIDTH || area.height < LEAST_HEIGHT {
        let text = format!(
            "the terminal has {}×{}; evenkeel top needs {LEAST_WIDTH}×{LEAST_HEIGHT}",
            area.width, area.height
        );
        for (line, row) in wrapped(&text, area.width.into(), area.height.into()).iter().zip(0..) {
            write(buffer, area, row, &Line::raw(line.clone()));
        }
        return extents;
    }
    let interface = state.interface_in(scene.sample).and_then(|at| scene.sample.interfaces.get(at));
    write(buffer, area, 0, &title(scene, state, interface, palette, area.width.into()));
    let keys_row = area.height - 1;
    write(buffer, area, keys_row, &keys_line(state, scene, palette, area.width.into()));
    if state.help {
        for (line, row) in help::lines(scene, palette).into_iter().zip(2..keys_row) {
            write(buffer, area, row, &line);
        }
        return extents;
    }
    let mut row = 1;
    for line in head(scene, interface, palette, area.width.into()) {
        write(buffer, area, row, &line);
        row += 1;
    }
    row += 1;
    let body =
        Rect { x: area.x, y: area.y + row, width: area.width, height: keys_row.saturating_sub(row + 1) };
    if area.width >= ALL_WIDTH && area.height >= ALL_HEIGHT && !state.zoomed {
        for (pane, place) in grid(body, interface) {
            extents[pane as usize] = draw_pane(scene, state, interface, pane, palette, place, buffer);
        }
    } else {
        write(buffer, body, 0, &tabs(state, palette));
        let place = Rect { y: body.y + 1, height: body.height - 1, ..body };
        let pane = state.pane;
        extents[pane as usize] = draw_pane(scene, state, interface, pane, palette, place, buffer);
    }
    extents
}

fn write(buffer: &mut Buffer, area: Rect, row: u16, line: &Line<'_>) {
    if row < area.height {
        buffer.set_line(area.x, area.y + row, line, area.width);
    }
}

/// Places one text at the left end and, if there is room, one text at the right end of a line.
fn ends(left: Vec<Span<'static>>, right: &str, width: usize) -> Line<'static> {
    let mut line = Line::from(left);
    let gap = width.saturating_sub(line.width() + right.width());
    if gap > 0 {
        line.push_span(Span::raw(" ".repeat(gap)));
        line.push_span(Span::raw(right.to_owned()));
    }
    line
}

fn title(
    scene: &Scene<'_>,
    state: &ViewState,
    interface: Option<&Interface>,
    palette: Palette,
    width: usize,
) -> Line<'static> {
    let mut left = vec![Span::styled("evenkeel top", palette.strong())];
    if let Some(shown) = interface {
        left.push(Span::raw("  "));
        left.push(Span::styled(format!("[{}]", excerpt(&shown.name)), palette.strong()));
        const MOST: usize = 4;
        let others = scene.sample.interfaces.iter().filter(|other| other.name != shown.name);
        let names: Vec<String> = others.clone().take(MOST).map(|other| excerpt(&other.name)).collect();
        let more = others.count() - names.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let names = cut(&format!(" {}{more}", names.join(" ")), width.saturating_sub(60).max(12));
        left.push(Span::raw(names));
    }
    let is_last = matches!(scene.origin, Origin::Replay { index, count, .. } if index + 1 == *count);
    let frozen = match state.frozen {
        _ if is_last => "END  ",
        true => "FROZEN  ",
        false => "",
    };
    let time = clock(scene.sample.at_ms);
    let right = match scene.origin {
        Origin::Live { interval, recording } => {
            let recording = if recording.is_some() { "recording  " } else { "" };
            format!("{frozen}{recording}every {}  {time} UTC", duration_words(*interval))
        }
        Origin::Replay { index, count, .. } => {
            format!("{frozen}sample {} of {count}  {time} UTC", index + 1)
        }
    };
    ends(left, &right, width)
}

fn duration_words(interval: Duration) -> String {
    let seconds = interval.as_secs_f64();
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1e3) } else { duration(seconds) }
}

/// Returns the lines of the interface: summary, rates, device and missing facts. Their number depends only on
/// the width, on whether there is an interface, and on whether facts are missing. So the panes keep their
/// positions from sample to sample.
fn head(
    scene: &Scene<'_>,
    interface: Option<&Interface>,
    palette: Palette,
    width: usize,
) -> Vec<Line<'static>> {
    let answer = answers::summary(scene.sample, interface);
    let is_alert = scene.sample.losses.iter().any(|loss| loss.packets.delta > 0);
    let style = if is_alert { palette.alert() } else { palette.strong() };
    let height = if width < 100 { 2 } else { 1 };
    let mut lines: Vec<Line<'static>> =
        wrapped(&answer, width, height).into_iter().map(|text| Line::styled(text, style)).collect();
    lines.resize(height, Line::default());
    if let Some(interface) = interface {
        lines.push(traffic(scene, interface, Figure::Sent, palette, width));
        lines.push(traffic(scene, interface, Figure::Received, palette, width));
        lines.push(Line::raw(cut(&device(interface), width)));
    }
    lines.extend(missing(&scene.sample.not_read, width).map(Line::raw));
    lines
}

fn traffic(
    scene: &Scene<'_>,
    interface: &Interface,
    figure: Figure,
    palette: Palette,
    width: usize,
) -> Line<'static> {
    let (word, bytes, packets) = match figure {
        Figure::Received => ("in", interface.received_bytes, interface.received_packets),
        _ => ("out", interface.sent_bytes, interface.sent_packets),
    };
    let seconds = scene.sample.seconds;
    let text =
        format!("{word:<3} {:>11} {:>9} packets/s  ", rate(bytes, seconds), each_second(packets, seconds));
    let values = scene.points.iter().map(|point| point.figure(&interface.name, figure));
    const SCALE: usize = 18;
    let room = width.saturating_sub(text.width() + SCALE).min(100);
    let (graph, most) = sparkline(values, room, 0.0);
    let scale = if most > 0.0 { format!("  0 to {}", rate_text(most)) } else { String::new() };
    Line::from(vec![Span::raw(text), Span::styled(graph, palette.graph()), Span::raw(scale)])
}

pub fn device(interface: &Interface) -> String {
    let driver = interface.driver.as_deref().map_or("driver unknown".to_owned(), excerpt);
    let speed = match interface.speed_bps {
        Some(speed) => format!("{} link", rate_text(speed as f64)),
        None => "link speed unknown".to_owned(),
    };
    let state = if interface.up { "up" } else { "down" };
    let qdisc = interface.root_qdisc.as_deref().map_or("none".to_owned(), excerpt);
    let sessions = interface.sessions();
    let sessions = sessions
        .map(|session| format!("evenkeel {} (process {})", excerpt(&session.command), session.process));
    let sessions: Vec<String> = sessions.collect();
    let session = if sessions.is_empty() { "no session".to_owned() } else { sessions.join(", ") };
    format!("{driver}, {speed}, {state}, root qdisc {qdisc}; {session}")
}

/// Names the first fact that could not be read, in one line.
fn missing(not_read: &[String], width: usize) -> Option<String> {
    let first = not_read.first()?;
    let more = match not_read.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more: ?)"),
    };
    let text = cut(&format!("not read: {}", sentence(first)), width.saturating_sub(more.width()));
    Some(text + &more)
}

/// Returns at most 300 characters of a sentence from a sample, in one line without terminal controls.
pub fn sentence(text: &str) -> String {
    const LONGEST: usize = 300;
    text.chars()
        .take(LONGEST)
        .collect::<String>()
        .split_whitespace()
        .map(printable)
        .collect::<Vec<_>>()
        .join(" ")
}

fn printable(word: &str) -> String {
    evenkeel_model::text::printable(word)
}

fn tabs(state: &ViewState, palette: Palette) -> Line<'static> {
    let mut spans = Vec::new();
    for (pane, number) in Pane::ALL.into_iter().zip(1..) {
        let is_chosen = pane == state.pane;
        let text = format!("{number} {}", pane.name());
        spans.push(match is_chosen {
            true => Span::styled(format!("[{text}]"), selected(palette)),
            false => Span::raw(format!(" {text} ")),
        });
        spans.push(Span::raw(" "));
    }
    Line::from(spans)
}

fn selected(palette: Palette) -> Style {
    palette.strong().add_modifier(Modifier::REVERSED)
}

/// Places all panes: flows and fairness at the left, queues, processors and losses at the right.
fn grid(body: Rect, interface: Option<&Interface>) -> [(Pane, Rect); 5] {
    const GAP: u16 = 2;
    let left = body.width.saturating_sub(GAP) / 2;
    let right = body.width.saturating_sub(left + GAP);
    let column =
        |x: u16, y: u16, width: u16, height: u16| Rect { x: body.x + x, y: body.y + y, width, height };
    let fairness = panes::FAIRNESS_HEIGHT.min(body.height);
    // With few queues, the pane of processors gets the remaining lines.
    let queues = interface.map_or(0, |interface| u16::try_from(interface.queues.len()).unwrap_or(u16::MAX));
    let third = body.height / 3;
    let queues = queues.saturating_add(4).clamp(6, third + 3);
    let losses = third.saturating_sub(3);
    let processors = body.height.saturating_sub(queues + losses);
    let x = left + GAP;
    [
        (Pane::Flows, column(0, 0, left, body.height - fairness)),
        (Pane::Fairness, column(0, body.height - fairness, left, fairness)),
        (Pane::Queues, column(x, 0, right, queues)),
        (Pane::Processors, column(x, queues, right, processors)),
        (Pane::Losses, column(x, queues + processors, right, losses)),
    ]
}

fn draw_pane(
    scene: &Scene<'_>,
    state: &ViewState,
    interface: Option<&Interface>,
    pane: Pane,
    palette: Palette,
    place: Rect,
    buffer: &mut Buffer,
) -> Option<Extent> {
    if place.height < 2 {
        return None;
    }
    let width = usize::from(place.width);
    let number = pane as usize + 1;
    let name = match state.pane == pane {
        true => Span::styled(format!("[{number} {}]", pane.name()), selected(palette)),
        false => Span::styled(format!(" {number} {} ", pane.name()), palette.strong()),
    };
    let Content { answer, rows } = panes::content(scene, interface, pane);
    // In the grid, each pane shows its name. With tabs, the tabs show the names.
    let has_tabs = place.width == buffer.area().width;
    let mut below = Rect { y: place.y + 1, height: place.height - 1, ..place };
    if has_tabs {
        write(buffer, place, 0, &Line::raw(cut(&answer, width)));
    } else {
        write(buffer, place, 0, &Line::from(name));
        write(buffer, below, 0, &Line::raw(cut(&answer, width)));
        // An empty line separates panes of the grid.
        below = Rect { y: below.y + 1, height: below.height.saturating_sub(2), ..below };
    }
    let Some(rows) = rows else {
        for (line, row) in panes::fairness(scene, interface, palette, width).iter().zip(0..) {
            write(buffer, below, row, line);
        }
        return None;
    };
    let laid = lay_out(rows.as_ref(), state.of(pane), (width, below.height.into()), palette);
    for (line, row) in laid.lines.iter().zip(0..) {
        write(buffer, below, row, line);
    }
    Some(laid.extent)
}

fn keys_line(state: &ViewState, scene: &Scene<'_>, palette: Palette, width: usize) -> Line<'static> {
    if state.edits_filter {
        let filter = excerpt(&state.of(state.pane).filter);
        let text = format!("filter of {}: {filter}_   (Enter keeps it, Esc clears it)", state.pane.name());
        return Line::styled(cut(&text, width), palette.strong());
    }
    if state.help {
        return Line::raw("q quit   any other key: back");
    }
    let freeze = match scene.origin {
        Origin::Live { .. } => "/ filter  f freeze",
        Origin::Replay { .. } => "/ filter  space pause  ←→ step",
    };
    Line::raw(cut(&format!("q quit  Tab pane  ↑↓ scroll  s sort  {freeze}  i next  ? help"), width))
}
