//! The table below a plot.

use evenkeel_metrics::Summary;
use maud::{Markup, html};

use super::looks;

#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub caption: String,
    /// The first column has the names of the rows.
    pub columns: Vec<String>,
    pub rows: Vec<Row>,
    pub is_text: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    pub variant: Option<usize>,
    pub cells: Vec<Cell>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    pub text: String,
    /// The value for the CSV copy, if it has more digits than the text.
    pub value: Option<f64>,
}

impl Row {
    /// Returns a row with mean, minimum, maximum and number of a variant's repeats, for one position of
    /// a plot.
    pub(super) fn of_repeats(
        variant: (Option<usize>, &str),
        place: Cell,
        found: &Summary,
        show: impl Fn(f64) -> Cell,
    ) -> Self {
        let (number, name) = variant;
        let [mean, min, max] = [found.mean, found.min, found.max].map(show);
        Self {
            variant: number,
            cells: vec![Cell::text(name), place, mean, min, max, Cell::text(found.n.to_string())],
        }
    }
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), value: None }
    }

    pub(super) fn figure(text: String, value: f64) -> Self {
        Self { text, value: Some(value).filter(|value| value.is_finite()) }
    }
}

impl Table {
    /// Returns the table in a scrollable box, with its copy button.
    pub(super) fn render(&self) -> Markup {
        html! {
            div.scroll role="group" tabindex="0" aria-label=(self.caption) {
                table.text[self.is_text] {
                    caption { (self.caption) }
                    thead { tr { @for column in &self.columns { th scope="col" { (column) } } } }
                    tbody {
                        @for row in &self.rows {
                            tr class=[row.variant.map(|number| looks::class(Some(number)))] {
                                @for (index, cell) in row.cells.iter().enumerate() {
                                    @if index == 0 {
                                        th scope="row" { (cell.text) }
                                    } @else if let Some(value) = cell.value {
                                        td data-v=(significant(value)) { (cell.text) }
                                    } @else {
                                        td { (cell.text) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
            // The script shows the button. Without a script, the button has no function.
            button.copy type="button" hidden { "Copy as CSV" }
        }
    }

    pub(super) fn folded(&self, summary: &str) -> Markup {
        html! {
            @if !self.rows.is_empty() {
                details { summary { (summary) } (self.render()) }
            }
        }
    }
}

fn significant(value: f64) -> String {
    let text = format!("{value:.6e}");
    text.parse::<f64>().map_or(text, |rounded| rounded.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_have_more_digits_than_the_display() {
        assert_eq!(significant(1.772_570_820_8), "1.772571");
        assert_eq!(significant(9_414_797_536.0), "9414798000");
        assert_eq!(significant(0.0), "0");
    }
}
