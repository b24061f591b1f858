//! Lines over a numeric axis, each with its name at its end. Ten or more lines have one panel each.

use maud::{Markup, html};

use super::axes::{Scale, label};
use super::figure::{cut, drawing, path_of, rule, text_at, width_of};
use super::looks::{self, round};
use crate::format::{number, trimmed};

/// Maximum number of lines in one panel. More lines are drawn as small multiples.
const MOST_TOGETHER: usize = 9;
const NAME_COLUMNS: usize = 36;
/// Minimum vertical distance of two names in pixels.
const NAME_HEIGHT: f64 = 15.0;

#[derive(Clone, Debug)]
pub(super) struct Lines {
    pub title: String,
    pub across: String,
    pub up: String,
    /// Labelled values on the horizontal axis. If empty, the round values have labels.
    pub ticks: Vec<(f64, String)>,
    pub is_across_logarithmic: bool,
    /// Whether the vertical axis is logarithmic. If `None`, the unit and the values decide.
    pub is_up_logarithmic: Option<bool>,
    pub unit: &'static str,
    /// Decimals of the last value, which is displayed next to the name.
    pub decimals: usize,
    pub lines: Vec<Line>,
}

#[derive(Clone, Debug)]
pub(super) struct Line {
    pub name: String,
    pub variant: usize,
    pub points: Vec<Point>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub x: f64,
    pub y: f64,
    /// Minimum and maximum of the repeats.
    pub range: (f64, f64),
}

/// The area of a plot within its drawing, and the scales of its axes.
struct Area {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
    across: Scale,
    up: Scale,
}

impl Area {
    fn x(&self, value: f64) -> f64 {
        self.left + self.across.place(value) * self.width
    }

    fn y(&self, value: f64) -> f64 {
        self.top + (1.0 - self.up.place(value)) * self.height
    }

    fn right(&self) -> f64 {
        self.left + self.width
    }

    fn bottom(&self) -> f64 {
        self.top + self.height
    }
}

impl Lines {
    /// Returns one drawing with all lines. With more than [`MOST_TOGETHER`] lines, returns a drawing for each
    /// line.
    pub(super) fn draw(&self) -> Vec<Markup> {
        if self.lines.len() <= MOST_TOGETHER {
            return vec![self.together()];
        }
        self.lines.iter().map(|line| self.panel(line)).collect()
    }

    fn scales(&self) -> (Scale, Scale) {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let values = || points().flat_map(|point| [point.y, point.range.0, point.range.1]);
        let (low, high) = super::axes::ends(values());
        let up = match self.is_up_logarithmic {
            Some(true) if low > 0.0 => Scale::logarithmic(low, high),
            Some(_) => Scale::from_zero(low, high),
            None => Scale::of(values(), self.unit),
        };
        let (low, high) = super::axes::ends(points().map(|point| point.x));
        let across = if self.is_across_logarithmic && low > 0.0 {
            Scale::logarithmic(low, high)
        } else {
            let room = if high > low { (high - low) * 0.03 } else { 1.0 };
            Scale::Linear { low: low - room, high: high + room }
        };
        (across, up)
    }

    fn together(&self) -> Markup {
        let (across, up) = self.scales();
        let names: Vec<String> = self.lines.iter().map(|line| self.name_of(line)).collect();
        let room = names.iter().map(|name| width_of(name)).fold(60.0, f64::max) + 24.0;
        let needed = names.len() as f64 * NAME_HEIGHT;
        // A plot with few positions can be narrow.
        let width = if self.ticks.len() > 5 { 430.0 } else { 320.0 };
        let area = Area { left: 52.0, top: 26.0, width, height: needed.max(240.0), across, up };
        let size = (area.right() + room, area.bottom() + 44.0);
        let ends: Vec<f64> =
            self.lines.iter().map(|line| line.points.last().map_or(0.0, |point| area.y(point.y))).collect();
        let places = apart(&ends, area.top, area.bottom());
        let content = html! {
            (self.axes(&area, 6))
            @for (index, line) in self.lines.iter().enumerate() {
                g class=(format!("{} {}", looks::class(Some(line.variant)), looks::colour(line.variant))) {
                    (self.line(&area, line))
                    @if let Some(last) = line.points.last() {
                        (rule((area.x(last.x) + 6.0, ends[index]), (area.right() + 10.0, places[index] - 4.0), "lead"))
                    }
                    (text_at(area.right() + 13.0, places[index], "name", &names[index]))
                }
            }
        };
        drawing(size, &self.title, &self.description(), "", &content)
    }

    /// Returns the drawing of a line, with the other lines in grey behind it.
    fn panel(&self, line: &Line) -> Markup {
        let (across, up) = self.scales();
        let area = Area { left: 46.0, top: 34.0, width: 250.0, height: 120.0, across, up };
        let size = (area.right() + 14.0, area.bottom() + 42.0);
        let content = html! {
            (self.axes(&area, 4))
            @for other in self.lines.iter().filter(|other| other.name != line.name) {
                path class=(format!("context {}", looks::class(Some(other.variant)))) d=(self.path(&area, other)) {}
            }
            g class=(looks::colour(line.variant)) { (self.line(&area, line)) }
            (text_at(4.0, 13.0, "name strong", &self.name_of(line)))
        };
        let title = format!("{}: {}", self.title, line.name);
        drawing(
            size,
            &title,
            &describe_line(line, self.decimals),
            &looks::class(Some(line.variant)),
            &content,
        )
    }

    fn name_of(&self, line: &Line) -> String {
        let value = line
            .points
            .last()
            .map_or_else(String::new, |point| format!("  {}", shown(point.y, self.decimals)));
        format!("{}{value}", cut(&line.name, NAME_COLUMNS))
    }

    fn description(&self) -> String {
        let lines: Vec<String> = self
            .lines
            .iter()
            .map(|line| format!("{}: {}", line.name, describe_line(line, self.decimals)))
            .collect();
        format!("{} over {}. {}.", self.up, self.across, lines.join("; "))
    }

    fn axes(&self, area: &Area, most: usize) -> Markup {
        let mut ticks: Vec<(f64, String)> = self.ticks.clone();
        // Labels need space: a round value close to a labelled value has a tick without a label.
        let mut used: Vec<f64> = ticks.iter().map(|(value, _)| area.x(*value)).collect();
        let round_ones =
            if ticks.is_empty() || area.across.is_logarithmic() { area.across.ticks(24) } else { Vec::new() };
        if ticks.is_empty() {
            for value in area.across.ticks(most) {
                let x = area.x(value);
                if used.iter().all(|other| (other - x).abs() > 34.0) {
                    used.push(x);
                    ticks.push((value, label(value)));
                }
            }
        }
        html! {
            @for value in area.up.ticks(5) {
                (rule((area.left, area.y(value)), (area.right(), area.y(value)), "grid"))
                (text_at(area.left - 6.0, area.y(value) + 4.0, "tick end", &label(value)))
            }
            (rule((area.left, area.bottom()), (area.right(), area.bottom()), "axis"))
            @for value in round_ones {
                (rule((area.x(value), area.bottom()), (area.x(value), area.bottom() + 3.0), "axis"))
            }
            @for (value, text) in &ticks {
                (rule((area.x(*value), area.bottom()), (area.x(*value), area.bottom() + 6.0), "axis"))
                (text_at(area.x(*value), area.bottom() + 19.0, "tick middle", text))
            }
            (text_at(area.left + area.width / 2.0, area.bottom() + 36.0, "tick middle", &self.across))
            (text_at(4.0, area.top - 10.0, "tick", &self.up))
        }
    }

    fn path(&self, area: &Area, line: &Line) -> String {
        path_of(line.points.iter().map(|point| Some((area.x(point.x), area.y(point.y)))))
    }

    fn line(&self, area: &Area, line: &Line) -> Markup {
        let is_one = line.points.len() == 1;
        html! {
            @if !is_one {
                path class="line" stroke-dasharray=[Some(looks::dashes(line.variant)).filter(|dashes| !dashes.is_empty())]
                    d=(self.path(area, line)) {}
            }
            @for point in &line.points {
                @if point.range.1 > point.range.0 {
                    (rule((area.x(point.x), area.y(point.range.0)), (area.x(point.x), area.y(point.range.1)), "spread"))
                }
                (looks::marker(line.variant, round(area.x(point.x)), round(area.y(point.y))))
            }
        }
    }
}

fn shown(value: f64, decimals: usize) -> String {
    trimmed(number(value, decimals))
}

fn describe_line(line: &Line, decimals: usize) -> String {
    // A screen reader reads the whole text. The text has only the first and the last value, because the
    // table has all values.
    match (line.points.first(), line.points.last()) {
        (Some(first), Some(last)) if line.points.len() > 1 => {
            format!("from {} to {}", shown(first.y, decimals), shown(last.y, decimals))
        }
        (Some(only), _) => shown(only.y, decimals),
        _ => "no value".to_owned(),
    }
}

/// Returns the positions of names, at least [`NAME_HEIGHT`] apart and close to the wanted positions.
fn apart(wanted: &[f64], top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|one, other| wanted[*one].total_cmp(&wanted[*other]));
    let mut places = wanted.to_vec();
    let mut next = top + 4.0;
    for &index in &order {
        places[index] = (wanted[index] + 4.0).max(next);
        next = places[index] + NAME_HEIGHT;
    }
    // The last names may be below the axis: move them up.
    let mut limit = bottom + 4.0;
    for &index in order.iter().rev() {
        places[index] = places[index].min(limit);
        limit = places[index] - NAME_HEIGHT;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_overlap() {
        for wanted in [vec![100.0; 9], vec![20.0, 21.0, 260.0, 261.0, 262.0], (0..9).map(f64::from).collect()]
        {
            let mut places = apart(&wanted, 20.0, 260.0);
            places.sort_by(f64::total_cmp);
            assert!(places.windows(2).all(|two| two[1] - two[0] > NAME_HEIGHT - 0.01), "{places:?}");
            assert!(places.iter().all(|place| (20.0..=265.0).contains(place)), "{places:?}");
        }
    }
}
