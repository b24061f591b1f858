//! Tables that fit their area: columns shrink and drop, and only the visible rows are formatted.

use std::cmp::Ordering;

use evenkeel_model::text::{counted, excerpt, thousands};
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::{Line, Span};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::view::state::PaneState;

pub struct Column {
    pub heading: &'static str,
    pub right: bool,
    /// Minimum width, so that columns keep their positions when values change. A column is wider if its
    /// heading or a visible value is wider.
    pub width: usize,
    /// Minimum width of a column that may shrink; 0 if the column may not shrink.
    pub least: usize,
    /// Rank in which columns drop: the highest rank drops first, and rank 0 never drops.
    pub rank: u8,
}

pub const fn number(heading: &'static str, width: usize, rank: u8) -> Column {
    Column { heading, right: true, width, least: 0, rank }
}

/// Returns a column of text that may shrink to the width `least`.
pub const fn text(heading: &'static str, least: usize, rank: u8) -> Column {
    Column { heading, right: false, width: 0, least, rank }
}

pub enum Key<'a> {
    Unknown,
    Number(f64),
    Text(&'a str),
}

impl<'a> Key<'a> {
    pub fn text(text: Option<&'a str>) -> Self {
        text.map_or(Self::Unknown, Self::Text)
    }

    pub fn number(value: Option<f64>) -> Self {
        value.filter(|value| !value.is_nan()).map_or(Self::Unknown, Self::Number)
    }

    pub fn count<N: Into<u64>>(value: Option<N>) -> Self {
        Self::number(value.map(|value| value.into() as f64))
    }

    /// Returns the order: large numbers first and texts alphabetically, or both reversed. Unknown values are
    /// always last.
    fn order(&self, other: &Self, reversed: bool) -> Ordering {
        let turn = |order: Ordering| if reversed { order.reverse() } else { order };
        match (self, other) {
            (Self::Number(first), Self::Number(second)) => turn(second.total_cmp(first)),
            (Self::Text(first), Self::Text(second)) => turn(first.cmp(second)),
            (Self::Unknown, Self::Unknown) => Ordering::Equal,
            (Self::Unknown, _) => Ordering::Greater,
            (_, Self::Unknown) => Ordering::Less,
            (Self::Number(_), Self::Text(_)) => Ordering::Less,
            (Self::Text(_), Self::Number(_)) => Ordering::Greater,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Alert,
}

pub struct Cell {
    pub text: String,
    pub tone: Tone,
}

impl Cell {
    pub fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: Tone::Plain }
    }

    pub fn alert_if(is_alert: bool, text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: if is_alert { Tone::Alert } else { Tone::Plain } }
    }

    /// Returns a cell with the beginning of a text from outside Evenkeel. Escapes terminal controls.
    pub fn foreign(text: Option<&str>) -> Self {
        Self::plain(text.map_or_else(super::figures::unknown, excerpt))
    }
}

pub trait Rows {
    fn columns(&self) -> &'static [Column];
    fn count(&self) -> usize;
    fn key(&self, column: usize, row: usize) -> Key<'_>;
    fn cell(&self, column: usize, row: usize) -> Cell;
    /// Returns the texts of a row that a filter searches.
    fn texts(&self, row: usize) -> Vec<&str>;
    /// Returns whether a row matches a filter, which is in lower case.
    fn is_match(&self, row: usize, needle: &str) -> bool {
        self.texts(row).iter().any(|text| text.to_lowercase().contains(needle))
    }
    /// Returns the noun that names a row.
    fn noun(&self) -> &'static str;
}

/// The styles of text. Without colours, the styles use bold, underline and reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Palette {
    pub colours: bool,
}

impl Palette {
    pub fn alert(self) -> Style {
        let style = Style::new().add_modifier(Modifier::BOLD);
        if self.colours { style.fg(Color::Red) } else { style }
    }

    pub fn heading(self) -> Style {
        let style = Style::new().add_modifier(Modifier::UNDERLINED);
        if self.colours { style.fg(Color::Cyan) } else { style }
    }

    pub fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub fn graph(self) -> Style {
        if self.colours { Style::new().fg(Color::Green) } else { Style::new() }
    }

    fn of(self, tone: Tone) -> Style {
        match tone {
            Tone::Plain => Style::new(),
            Tone::Alert => self.alert(),
        }
    }
}

#[derive(Debug, Default)]
pub struct Laid {
    pub lines: Vec<Line<'static>>,
    pub extent: Extent,
}

/// The part of a table that was visible on the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Number of rows that match the filter.
    pub rows: usize,
    /// Number of rows that fit.
    pub height: usize,
    pub columns: Vec<usize>,
}

const GAP: usize = 2;

/// Lays out the rows in an area of `width` characters and `height` lines. The first line has the headings,
/// unless no row matches. If rows are hidden or a filter is set, the last line states the visible rows and
/// the filter.
pub fn lay_out(
    rows: &dyn Rows,
    state: &PaneState,
    (width, height): (usize, usize),
    palette: Palette,
) -> Laid {
    let matching = matching(rows, &state.filter);
    let all = matching.len();
    let body = height.saturating_sub(1);
    let has_note = all > body || !state.filter.is_empty();
    let shown = body.saturating_sub(usize::from(has_note));
    let offset = state.offset.min(all.saturating_sub(shown));
    let order = sorted(rows, matching, state, offset + shown);
    let visible = order.get(offset..(offset + shown).min(order.len())).unwrap_or_default();
    let columns = rows.columns();
    let cells: Vec<Vec<Cell>> = visible
        .iter()
        .map(|row| (0..columns.len()).map(|column| rows.cell(column, *row)).collect())
        .collect();
    let (kept, widths) = fitted(columns, &cells, state, width);
    let mut laid = Laid { lines: Vec::with_capacity(height), extent: Extent::default() };
    let heading = kept.iter().zip(&widths).map(|(column, width)| {
        (Cell::plain(heading(&columns[*column], *column, state)), columns[*column].right, *width)
    });
    if height > 0 && all > 0 {
        laid.lines.push(line(heading, palette).patch_style(palette.heading()));
    }
    for mut row in cells {
        let cells: Vec<(Cell, bool, usize)> = kept
            .iter()
            .zip(&widths)
            .map(|(column, width)| {
                let cell = std::mem::replace(&mut row[*column], Cell::plain(""));
                (cell, columns[*column].right, *width)
            })
            .collect();
        laid.lines.push(line(cells, palette));
    }
    if has_note && height > 1 {
        laid.lines.push(Line::raw(note(rows, state, offset, visible.len(), all)));
    }
    laid.extent = Extent { rows: all, height: shown, columns: kept };
    laid
}

fn note(rows: &dyn Rows, state: &PaneState, offset: usize, shown: usize, all: usize) -> String {
    let of = match (shown, all) {
        (_, 0) => format!("no {} matches", rows.noun()),
        (shown, all) if shown == all => counted(all, rows.noun()),
        (0, all) => counted(all, rows.noun()),
        (shown, all) => {
            format!(
                "{}-{} of {}",
                thousands(offset + 1),
                thousands(offset + shown),
                counted(all, rows.noun())
            )
        }
    };
    if state.filter.is_empty() {
        of
    } else {
        format!("{of}; filter '{}' (Esc clears it)", excerpt(&state.filter))
    }
}

fn matching(rows: &dyn Rows, filter: &str) -> Vec<usize> {
    if filter.is_empty() {
        return (0..rows.count()).collect();
    }
    let needle = filter.to_lowercase();
    (0..rows.count()).filter(|row| rows.is_match(*row, &needle)).collect()
}

/// Returns at least the first `most` rows in their order. Later rows may be missing, because they are not
/// visible.
fn sorted(rows: &dyn Rows, matching: Vec<usize>, state: &PaneState, most: usize) -> Vec<usize> {
    let Some(column) = state.sort.filter(|column| *column < rows.columns().len()) else {
        return if state.reversed { matching.into_iter().rev().collect() } else { matching };
    };
    let mut keyed: Vec<(Key<'_>, usize)> =
        matching.into_iter().map(|row| (rows.key(column, row), row)).collect();
    let order = |first: &(Key<'_>, usize), second: &(Key<'_>, usize)| {
        first.0.order(&second.0, state.reversed).then(first.1.cmp(&second.1))
    };
    if most < keyed.len() {
        keyed.select_nth_unstable_by(most, order);
        keyed.truncate(most);
    }
    keyed.sort_unstable_by(order);
    keyed.into_iter().map(|(_, row)| row).collect()
}

fn heading(column: &Column, index: usize, state: &PaneState) -> String {
    match (state.sort == Some(index), state.reversed) {
        (false, _) => column.heading.to_owned(),
        (true, false) => format!("{}▼", column.heading),
        (true, true) => format!("{}▲", column.heading),
    }
}

fn fitted(
    columns: &[Column],
    cells: &[Vec<Cell>],
    state: &PaneState,
    most: usize,
) -> (Vec<usize>, Vec<usize>) {
    let widest = |index: usize| {
        let values = cells.iter().map(|row| row[index].text.width()).max().unwrap_or(0);
        values.max(heading(&columns[index], index, state).width()).max(columns[index].width)
    };
    let mut kept: Vec<usize> = (0..columns.len()).collect();
    let mut widths: Vec<usize> = kept.iter().map(|index| widest(*index)).collect();
    loop {
        let total = widths.iter().sum::<usize>() + GAP * kept.len().saturating_sub(1);
        let mut excess = total.saturating_sub(most);
        if excess == 0 {
            return (kept, widths);
        }
        let room: usize = kept.iter().zip(&widths).map(|(index, width)| room(&columns[*index], *width)).sum();
        let last = kept.iter().enumerate().filter(|(_, index)| columns[**index].rank > 0);
        let last = last.max_by_key(|(_, index)| columns[**index].rank).map(|(at, _)| at);
        match last {
            Some(at) if room < excess => {
                kept.remove(at);
                widths.remove(at);
            }
            _ => {
                // Shrink the column with the most spare width, so that the other columns keep their
                // width.
                while excess > 0 {
                    let widest = kept
                        .iter()
                        .enumerate()
                        .map(|(at, index)| (room_of(columns, &widths, at, *index), at))
                        .max_by_key(|(room, at)| (*room, usize::MAX - at));
                    let Some((room, at)) = widest.filter(|(room, _)| *room > 0) else { break };
                    debug_assert!(room > 0);
                    widths[at] -= 1;
                    excess -= 1;
                }
                return (kept, widths);
            }
        }
    }
}

fn room(column: &Column, width: usize) -> usize {
    if column.least == 0 { 0 } else { width.saturating_sub(column.least) }
}

fn room_of(columns: &[Column], widths: &[usize], at: usize, index: usize) -> usize {
    room(&columns[index], widths[at])
}

fn line(cells: impl IntoIterator<Item = (Cell, bool, usize)>, palette: Palette) -> Line<'static> {
    let mut spans = Vec::new();
    for (at, (cell, right, width)) in cells.into_iter().enumerate() {
        let text = cut(&cell.text, width);
        let blanks = " ".repeat(width.saturating_sub(text.width()));
        if at > 0 {
            spans.push(Span::raw(" ".repeat(GAP)));
        }
        let value = Span::styled(text, palette.of(cell.tone));
        match right {
            true => spans.extend([Span::raw(blanks), value]),
            false => spans.extend([value, Span::raw(blanks)]),
        }
    }
    Line::from(spans)
}

pub fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let (mut kept, mut used) = (String::new(), 1);
    for character in text.chars() {
        used += character.width().unwrap_or(0);
        if used > width {
            break;
        }
        kept.push(character);
    }
    if width > 0 {
        kept.push('…');
    }
    kept
}

/// Breaks a text at blanks into at most `most` lines. A line that is wider than `width` is cut.
pub fn wrapped(text: &str, width: usize, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let is_last = lines.len() == most;
        match lines.last_mut() {
            Some(line) if is_last || line.width() + 1 + word.width() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.truncate(most);
    lines.iter().map(|line| cut(line, width)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Numbers(Vec<f64>);

    static COLUMNS: [Column; 3] = [text("name", 4, 0), number("value", 6, 0), number("extra", 8, 1)];

    impl Rows for Numbers {
        fn columns(&self) -> &'static [Column] {
            &COLUMNS
        }
        fn count(&self) -> usize {
            self.0.len()
        }
        fn key(&self, _: usize, row: usize) -> Key<'_> {
            Key::number(Some(self.0[row]))
        }
        fn cell(&self, column: usize, row: usize) -> Cell {
            match column {
                0 => Cell::foreign(Some("a long\x1b[2J name")),
                _ => Cell::plain(format!("{}", self.0[row])),
            }
        }
        fn texts(&self, row: usize) -> Vec<&str> {
            vec![if self.0[row] > 1.0 { "Large" } else { "small" }]
        }
        fn noun(&self) -> &'static str {
            "row"
        }
    }

    fn laid(rows: &Numbers, state: &PaneState, place: (usize, usize)) -> Vec<String> {
        let laid = lay_out(rows, state, place, Palette { colours: false });
        laid.lines.iter().map(|line| line.to_string().trim_end().to_owned()).collect()
    }

    #[test]
    fn columns_shrink_and_drop_and_rows_are_named() {
        let rows = Numbers(vec![1.0, 3.0, 2.0]);
        let state = PaneState::default();
        assert_eq!(laid(&rows, &state, (40, 9))[0], "name                   value     extra");
        assert_eq!(laid(&rows, &state, (40, 9))[1], "a long\\u001b[2J name       1         1");
        assert_eq!(laid(&rows, &state, (20, 9))[1], "a long\\u001…       1");
        assert_eq!(
            laid(&rows, &state, (20, 3)),
            ["name           value", "a long\\u001…       1", "1-1 of 3 rows"]
        );
        assert_eq!(laid(&rows, &state, (0, 0)), Vec::<String>::new());
        let filtered = PaneState { filter: "LARGE".to_owned(), ..PaneState::default() };
        assert_eq!(laid(&rows, &filtered, (60, 9))[3], "2 rows; filter 'LARGE' (Esc clears it)");
        let none = PaneState { filter: "x".to_owned(), ..PaneState::default() };
        assert_eq!(laid(&rows, &none, (60, 9)), ["no row matches; filter 'x' (Esc clears it)"]);
    }

    #[test]
    fn the_shown_rows_are_those_of_a_full_sort() {
        let values: Vec<f64> = (0..1000).map(|index| f64::from(index * 7919 % 1000)).collect();
        let rows = Numbers(values);
        for (reversed, offset) in [(false, 0), (true, 0), (false, 500), (true, 995)] {
            let state = PaneState { sort: Some(1), reversed, offset, ..PaneState::default() };
            let found = sorted(&rows, (0..1000).collect(), &state, offset + 5);
            let found: Vec<f64> = found[offset..].iter().map(|row| rows.0[*row]).collect();
            let wanted: Vec<f64> =
                (offset..offset + 5).map(|rank| (if reversed { rank } else { 999 - rank }) as f64).collect();
            assert_eq!(found, wanted);
        }
    }

    #[test]
    fn unknown_values_are_last_in_both_orders() {
        let rows = Numbers(vec![f64::NAN, 1.0, 2.0]);
        for reversed in [false, true] {
            let state = PaneState { sort: Some(1), reversed, ..PaneState::default() };
            assert_eq!(sorted(&rows, vec![0, 1, 2], &state, 9)[2], 0);
        }
    }

    #[test]
    fn texts_are_cut_and_wrapped_by_their_width() {
        assert_eq!((cut("abcdef", 4).as_str(), cut("日本語", 4).as_str()), ("abc…", "日…"));
        assert_eq!((cut("abc", 0).as_str(), cut("abc", 1).as_str()), ("", "…"));
        assert_eq!(wrapped("one two three four", 9, 2), ["one two", "three fo…"]);
        assert_eq!(wrapped("one two", 20, 2), ["one two"]);
    }
}
