//! A plot with its message above, and its numbers below.

use maud::{Markup, html};

use super::table::Table;

/// One or more drawings that answer one question.
#[derive(Debug)]
pub(super) struct Figure {
    pub message: String,
    pub caption: String,
    pub drawings: Vec<Markup>,
    pub table: Table,
    /// Remarks, for example about parts that are not drawn.
    pub remarks: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Level(pub u8);

impl Level {
    pub(super) fn below(self) -> Self {
        Self(self.0 + 1)
    }

    pub(super) fn heading(self, text: &str) -> Markup {
        html! {
            @match self.0 {
                1 => h1 { (text) },
                2 => h2 { (text) },
                3 => h3 { (text) },
                _ => h4 { (text) },
            }
        }
    }
}

impl Figure {
    pub(super) fn render(&self, level: Level) -> Markup {
        html! {
            section.figure {
                (level.heading(&self.message))
                p.caption { (self.caption) }
                div.drawings { @for drawing in &self.drawings { (drawing) } }
                @for remark in &self.remarks { p.caption { (remark) } }
                (self.table.folded("Numbers"))
            }
        }
    }
}

/// Returns a drawing in a box that scrolls on a narrow screen. `class` is the class of the drawing's
/// variant, if the drawing belongs to a variant. Screen readers use the description.
pub(super) fn drawing(
    (width, height): (f64, f64),
    title: &str,
    description: &str,
    class: &str,
    content: &Markup,
) -> Markup {
    html! {
        div class=(format!("drawing {class}")) tabindex="0" role="group" aria-label=(title) {
            svg viewBox=(format!("0 0 {width} {height}")) width=(width) height=(height)
                style=(format!("min-width:{:.0}px", width * 0.8)) role="img" aria-label=(title) {
                title { (title) }
                desc { (description) }
                (content)
            }
        }
    }
}

/// Returns text at a position. The class sets the alignment.
pub(super) fn text_at(x: f64, y: f64, class: &str, text: &str) -> Markup {
    html! { text x=(super::looks::round(x)) y=(super::looks::round(y)) class=(class) { (text) } }
}

pub(super) fn rule((x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) -> Markup {
    let round = super::looks::round;
    html! { path class=(class) d=(format!("M{} {}L{} {}", round(x1), round(y1), round(x2), round(y2))) {} }
}

/// Returns a path through points. The path has a gap at each missing point.
pub(super) fn path_of(points: impl IntoIterator<Item = Option<(f64, f64)>>) -> String {
    let mut path = String::new();
    let mut is_open = false;
    for point in points {
        if let Some((x, y)) = point {
            let start = if is_open { 'L' } else { 'M' };
            path.push_str(&format!("{start}{} {}", super::looks::round(x), super::looks::round(y)));
        }
        is_open = point.is_some();
    }
    path
}

/// Returns the estimated width of a text in pixels, from its number of columns. The font size is 12
/// pixels.
pub(super) fn width_of(text: &str) -> f64 {
    8.0 * crate::format::text_width(text) as f64
}

pub(super) fn cut(text: &str, most: usize) -> String {
    let text = crate::format::clean(text);
    if crate::format::text_width(&text) <= most {
        return text;
    }
    let mut kept = String::new();
    for character in text.chars() {
        kept.push(character);
        if crate::format::text_width(&kept) >= most {
            kept.pop();
            break;
        }
    }
    format!("{}…", kept.trim_end())
}
