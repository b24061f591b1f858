//! The colour, dash and marker of each variant in every plot. Dash and marker also distinguish variants
//! without colour.

use maud::{Markup, html};

/// Number of colours in `page.css`.
const COLOURS: usize = 8;

/// The variants of a page. The number of a variant is its index.
#[derive(Clone, Debug, Default)]
pub(super) struct Variants {
    names: Vec<String>,
}

impl Variants {
    pub(super) fn of<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        let mut known: Vec<String> = Vec::new();
        for name in names {
            if !known.iter().any(|known| known == name) {
                known.push(name.to_owned());
            }
        }
        Self { names: known }
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    pub(super) fn number(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }
}

/// Returns the class by which the filter hides a variant; empty without a variant.
pub(super) fn class(number: Option<usize>) -> String {
    number.map(|number| format!("v{number}")).unwrap_or_default()
}

pub(super) fn colour(number: usize) -> String {
    format!("k{}", number % COLOURS)
}

/// Returns the lengths of dashes and gaps; empty for a solid line.
pub(super) fn dashes(number: usize) -> &'static str {
    const DASHES: [&str; 5] = ["", "7 3", "2 3", "10 3 2 3", "14 5"];
    DASHES[number % DASHES.len()]
}

pub(super) fn marker(number: usize, x: f64, y: f64) -> Markup {
    const SHAPES: [&str; 6] = [
        "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",
        "m-3.2 -3.2h6.4v6.4h-6.4z",
        "m0 -4.4l4.2 7.4h-8.4z",
        "m0 -4.6l4.6 4.6l-4.6 4.6l-4.6 -4.6z",
        "m0 4.4l4.2 -7.4h-8.4z",
        "m-1.4 -4.2h2.8v2.8h2.8v2.8h-2.8v2.8h-2.8v-2.8h-2.8v-2.8h2.8z",
    ];
    let hollow = (number / SHAPES.len()) % 2 == 1;
    html! {
        path class=(if hollow { "mark hollow" } else { "mark" })
            d=(format!("M{} {}{}", round(x), round(y), SHAPES[number % SHAPES.len()])) {}
    }
}

/// Returns a coordinate in pixels with one decimal.
pub(super) fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_variants_differ_without_colour() {
        let look = |number: usize| format!("{}{}", marker(number, 0.0, 0.0).into_string(), dashes(number));
        for number in 0..20 {
            assert!((0..number).all(|other| look(other) != look(number)), "{number}");
        }
    }
}
