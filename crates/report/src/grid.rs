//! Tables that omit their least important columns until they fit.

use comfy_table::{
    Attribute, Cell as TableCell, CellAlignment, Color, ContentArrangement, LineStyle, Table, TableStyle,
};

use crate::format::clean;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableOptions {
    /// Width of the terminal in characters; `None` for no limit.
    pub width: Option<usize>,
    pub colour: bool,
}

const TEXT_WIDTH: usize = 100;

impl TableOptions {
    pub(crate) fn text_width(self) -> usize {
        self.width.unwrap_or(TEXT_WIDTH)
    }

    pub(crate) fn strong(self, text: &str) -> String {
        self.styled("1", text)
    }

    pub(crate) fn good(self, text: &str) -> String {
        self.styled("32", text)
    }

    pub(crate) fn bad(self, text: &str) -> String {
        self.styled("1;31", text)
    }

    pub(crate) fn warning(self, text: &str) -> String {
        self.styled("33", text)
    }

    fn styled(self, code: &str, text: &str) -> String {
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// Horizontal lines above and below the table and below its heading. No vertical lines.
const STYLE: TableStyle = TableStyle::new()
    .top_border(LineStyle::none().fill('─').junction('─'))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

const PADDING: usize = 1;

pub(crate) struct Column {
    pub heading: String,
    /// The table drops the column with the largest value first, and never a column with 0.
    pub importance: u32,
    /// Whether the column has text, which is aligned left. Numbers are aligned right.
    pub text: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Emphasis {
    Plain,
    Strong,
    Faint,
    Good,
    Bad,
}

pub(crate) struct Cell {
    pub text: String,
    pub emphasis: Emphasis,
}

impl Cell {
    pub fn new(text: impl Into<String>, emphasis: Emphasis) -> Self {
        Self { text: text.into(), emphasis }
    }

    pub fn plain(text: impl Into<String>) -> Self {
        Self::new(text, Emphasis::Plain)
    }
}

pub(crate) struct Grid {
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<Cell>>,
}

pub(crate) struct Drawing {
    /// Each line ends with a newline.
    pub text: String,
    pub dropped: Vec<usize>,
}

impl Grid {
    pub fn draw(&self, options: TableOptions) -> Drawing {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        let widths = self.table(&all, options).column_max_content_widths();
        let shown = options.width.map_or_else(|| all.clone(), |width| self.fitting(&widths, width));
        let mut table = self.table(&shown, options);
        let too_wide = |width: &usize| self.width_of(&widths, &shown) > *width;
        if let Some(width) = options.width.filter(too_wide) {
            // Even the columns with importance 0 do not fit: wrap their cells.
            table.set_content_arrangement(ContentArrangement::Dynamic);
            table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
        }
        let text = table.lines().map(|line| format!("{}\n", line.trim_end())).collect();
        let dropped = all.into_iter().filter(|index| !shown.contains(index)).collect();
        Drawing { text, dropped }
    }

    /// Returns the width of a table of these columns. The width includes the padding before each column
    /// and the gap between two columns.
    fn width_of(&self, content_widths: &[u16], shown: &[usize]) -> usize {
        let content = shown.iter().filter_map(|index| content_widths.get(*index));
        content.map(|width| usize::from(*width) + PADDING + 1).sum::<usize>().saturating_sub(1)
    }

    /// Returns the indices of the columns that fit `width`, in display order. It adds columns in the order of
    /// `importance` until one does not fit. Columns with importance 0 are always included.
    fn fitting(&self, content_widths: &[u16], width: usize) -> Vec<usize> {
        let mut by_importance: Vec<usize> = (0..self.columns.len()).collect();
        by_importance.sort_by_key(|index| self.columns[*index].importance);
        let mut shown: Vec<usize> = Vec::new();
        let mut used = 0;
        for index in by_importance {
            let gap = usize::from(!shown.is_empty());
            used += gap + PADDING + usize::from(content_widths.get(index).copied().unwrap_or(0));
            if self.columns[index].importance > 0 && used > width {
                break;
            }
            shown.push(index);
        }
        shown.sort_unstable();
        shown
    }

    fn table(&self, shown: &[usize], options: TableOptions) -> Table {
        let mut table = Table::new();
        table.load_style(STYLE).force_no_tty();
        if options.colour {
            table.enforce_styling();
        }
        table.set_header(shown.iter().map(|&index| {
            let heading = self.columns[index].heading.lines().map(clean).collect::<Vec<_>>().join("\n");
            TableCell::new(heading)
        }));
        for row in &self.rows {
            table.add_row(shown.iter().filter_map(|&index| row.get(index)).map(|cell| {
                let drawn = TableCell::new(clean(&cell.text));
                match cell.emphasis {
                    Emphasis::Plain => drawn,
                    Emphasis::Strong => drawn.add_attribute(Attribute::Bold),
                    Emphasis::Faint => drawn.add_attribute(Attribute::Dim),
                    Emphasis::Good => drawn.fg(Color::Green),
                    Emphasis::Bad => drawn.fg(Color::Red).add_attribute(Attribute::Bold),
                }
            }));
        }
        for (column, &index) in table.column_iter_mut().zip(shown) {
            column.set_padding((PADDING as u16, 0));
            if !self.columns[index].text {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let column = |heading: &str, importance, text| Column { heading: heading.into(), importance, text };
        Grid {
            columns: vec![column("name", 0, true), column("minor", 2, false), column("major", 1, false)],
            rows: vec![vec![Cell::plain("first"), Cell::plain("1"), Cell::plain("22")]],
        }
    }

    #[test]
    fn the_least_important_column_goes_first() {
        let draw = |width| grid().draw(TableOptions { width, colour: false });
        assert_eq!(draw(None).dropped, [0; 0]);
        assert_eq!(draw(Some(20)).dropped, [0; 0]);
        assert_eq!(draw(Some(19)).dropped, [1]);
        assert_eq!(draw(Some(12)).dropped, [1, 2]);
        assert_eq!(draw(Some(0)).dropped, [1, 2]);
    }

    #[test]
    fn a_less_important_column_does_not_take_the_place_of_a_wide_one() {
        let mut grid = grid();
        grid.rows[0][2].text = "much too wide".to_owned();
        assert_eq!(grid.draw(TableOptions { width: Some(20), colour: false }).dropped, [1, 2]);
    }

    #[test]
    fn no_line_is_wider_than_asked_for() {
        for width in 6..40 {
            let drawing = grid().draw(TableOptions { width: Some(width), colour: false });
            assert!(drawing.text.lines().all(|line| line.chars().count() <= width), "{}", drawing.text);
        }
    }

    #[test]
    fn styles_appear_only_when_asked_for() {
        let mut grid = grid();
        grid.rows[0][2].emphasis = Emphasis::Bad;
        let draw = |colour| grid.draw(TableOptions { width: None, colour }).text;
        assert!(draw(true).contains('\u{1b}'));
        assert!(!draw(false).contains('\u{1b}'));
    }
}
