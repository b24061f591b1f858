//! The help screen.

use ratatui_core::text::Line;

use crate::view::screen::{Scene, sentence};
use crate::view::table::Palette;

/// All keys; the documentation has the same table.
pub const KEYS: [(&str, &str); 13] = [
    ("q, Ctrl-C", "quit"),
    ("Tab, Shift-Tab, 1 to 5", "choose a pane"),
    ("↑ ↓, k j", "scroll by a row"),
    ("PgUp, PgDn, Home, End", "scroll by a page, or to an end"),
    ("s", "sort by the next column (▼); after the last, do not sort"),
    ("r", "reverse the order (▲)"),
    ("/", "filter the rows; Enter keeps the filter, Esc clears it"),
    ("f, space", "freeze, or continue; a recording of this host goes on"),
    ("← →", "in a recording: show the previous or the next sample"),
    ("i", "show the next interface"),
    ("z", "show one pane only, or all where there is room"),
    ("Ctrl-Z", "suspend; `fg` continues"),
    ("?, h", "show this help"),
];

pub fn lines(scene: &Scene<'_>, palette: Palette) -> Vec<Line<'static>> {
    let mut lines: Vec<Line<'static>> =
        KEYS.iter().map(|(keys, action)| Line::raw(format!("{keys:<24}{action}"))).collect();
    lines.push(Line::default());
    lines.push(Line::raw("NFM: difference of the best and the worst flow, in fair shares; 0 is fair."));
    lines.push(Line::raw("`evenkeel check --explain RULE` explains a loss and its fix."));
    if !scene.sample.not_read.is_empty() {
        lines.push(Line::styled("Not read:", palette.strong()));
        lines.extend(scene.sample.not_read.iter().map(|text| Line::raw(format!("  {}", sentence(text)))));
    }
    lines
}
