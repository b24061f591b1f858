//! Readers of single values: each returns the value, or records an error.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use toml::de::DeValue;

use super::error::ScenarioErrorKind::{BadValue, Duplicate, UnknownName, WrongType};
use super::toml_table::{Field, Located};
use crate::text::{excerpt, is_invisible, list, suggestion};
use crate::units::UnitError;

const LONGEST_NAME: usize = 64;

pub type Spelling<T> = (&'static str, T);

impl<'t> Field<'t> {
    /// Returns the text of a string, or `None` for another type.
    pub fn text(&self) -> Option<&'t str> {
        if let DeValue::String(text) = self.value { Some(text.as_ref()) } else { None }
    }

    pub fn string(&self, wanted: &str) -> Option<&'t str> {
        if self.text().is_none() {
            self.wrong_type(wanted);
        }
        self.text()
    }

    /// Reads prose of at most `longest` characters, on one line or, with `lines`, on several lines.
    pub fn prose(&self, longest: usize, lines: bool) -> Option<String> {
        let text = self.string("a string")?.trim();
        let allowed = |c: char| !is_invisible(c) || (lines && matches!(c, '\n' | '\r'));
        if text.is_empty() {
            self.complain(BadValue, "empty", "write some text, or leave the key out if it is optional");
        } else if text.chars().take(longest + 1).count() > longest {
            self.complain(BadValue, format!("longer than {longest} characters"), "shorten the text");
        } else if let Some(character) = text.chars().find(|c| !allowed(*c)) {
            let what = if character == '\n' { "a line break" } else { "a control character" };
            self.complain(BadValue, format!("contains {what}"), "remove the character");
        } else {
            return Some(text.to_owned());
        }
        None
    }

    /// Returns whether `name` is a valid name, such as of a scenario or a variant; records an error if not. A
    /// name must be usable in file names, on command lines and in tables.
    pub fn check_name(&self, name: &str, punctuation: &str) -> bool {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || punctuation.contains(c);
        let fits = name.len() <= LONGEST_NAME
            && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && name.chars().all(good);
        if !fits {
            let marks: Vec<String> = punctuation.chars().map(|mark| format!("'{mark}'")).collect();
            let advice = format!(
                "use at most {LONGEST_NAME} of a-z, 0-9 and {}, beginning with a letter or digit",
                marks.join(" ")
            );
            self.complain(BadValue, format!("'{}' cannot be a name", excerpt(name)), advice);
        }
        fits
    }

    /// Reads at least one known name, without duplicates.
    ///
    /// `known` is `None` if another error hides the names.
    pub fn names(&self, what: &str, known: Option<&BTreeSet<&str>>) -> Option<Vec<Located<String>>> {
        let elements = self.list(&format!("{what} names"))?;
        if elements.is_empty() {
            self.complain(BadValue, "empty", format!("name at least one {what}"));
            return None;
        }
        let mut names = Vec::with_capacity(elements.len());
        let mut seen = BTreeSet::new();
        // Elements are in file order, so the first error is reported.
        for element in elements {
            let name = element.string(&format!("the name of a {what}"))?;
            if known.is_some_and(BTreeSet::is_empty) {
                let advice =
                    format!("the file has no {what}: write a [{what}.NAME] table, or name a {what}-table");
                element.complain(UnknownName, format!("unknown {what} '{}'", excerpt(name)), advice);
                return None;
            }
            if let Some(known) = known.filter(|known| !known.contains(name)) {
                element.unknown_name(what, name, known.iter().copied());
                return None;
            }
            if !seen.insert(name) {
                element.complain(Duplicate, format!("'{}' appears twice", excerpt(name)), "name it once");
                return None;
            }
            names.push(element.located(name.to_owned()));
        }
        Some(names)
    }

    /// Reads a name that the user chooses; `punctuation` lists its allowed characters besides letters and
    /// digits.
    pub fn name(&self, wanted: &str, punctuation: &str) -> Option<String> {
        let name = self.string(wanted)?;
        self.check_name(name, punctuation).then(|| name.to_owned())
    }

    /// Reads a rate, a size or a time within `range`.
    pub fn quantity<T>(&self, range: RangeInclusive<T>, example: &str) -> Option<T>
    where
        T: FromStr<Err = UnitError> + Display + PartialOrd,
    {
        match self.value {
            DeValue::Integer(_) | DeValue::Float(_) => {
                let advice = format!("write it as a string, for example \"{example}\"");
                self.complain(WrongType, "a bare number; units are needed", advice);
                None
            }
            _ => {
                let text = self.string(&format!("a string with a unit, for example \"{example}\""))?;
                self.quantity_text(text, range)
            }
        }
    }

    /// Reads a quantity like [`Self::quantity`], from a text that the caller has extracted.
    fn quantity_text<T>(&self, text: &str, range: RangeInclusive<T>) -> Option<T>
    where
        T: FromStr<Err = UnitError> + Display + PartialOrd,
    {
        match text.parse::<T>() {
            Err(error) => {
                self.complain(BadValue, error.to_string(), "");
                None
            }
            Ok(value) if !range.contains(&value) => {
                self.out_of_range(&value, &range);
                None
            }
            Ok(value) => Some(value),
        }
    }

    fn out_of_range<T: Display>(&self, value: &T, range: &RangeInclusive<T>) {
        let advice = format!("write a value from {} to {}", range.start(), range.end());
        self.complain(BadValue, format!("{value} is out of range"), advice);
    }

    /// Reads one of the keywords in `words`, or a quantity that `value` converts.
    pub fn word_or_quantity<T, U: Copy>(
        &self,
        words: &[Spelling<U>],
        range: RangeInclusive<T>,
        example: &str,
        value: impl FnOnce(T) -> U,
    ) -> Option<U>
    where
        T: FromStr<Err = UnitError> + Display + PartialOrd,
    {
        if let DeValue::String(text) = self.value {
            if let Some((_, value)) = words.iter().find(|(word, _)| word == text) {
                return Some(*value);
            }
            if !text.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
                let words: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
                let problem = format!("'{}' is not a value of this key", excerpt(text));
                let advice = format!("write {} or a value such as \"{example}\"", words.join(", "));
                self.complain(BadValue, problem, advice);
                return None;
            }
        }
        self.quantity(range, example).map(value)
    }

    pub fn integer(&self, range: RangeInclusive<u32>) -> Option<u32> {
        let DeValue::Integer(integer) = self.value else {
            self.wrong_type("a whole number");
            return None;
        };
        match i128::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(value) => {
                let number = u32::try_from(value).ok().filter(|number| range.contains(number));
                if number.is_none() {
                    self.out_of_range(&value, &(i128::from(*range.start())..=i128::from(*range.end())));
                }
                number
            }
            Err(_) => {
                let advice = format!("write a value from {} to {}", range.start(), range.end());
                self.complain(BadValue, "out of range", advice);
                None
            }
        }
    }

    /// Reads a whole number, or the keyword `word` as `Some(None)`.
    pub fn word_or_integer(&self, word: &str, range: RangeInclusive<u32>) -> Option<Option<u32>> {
        match self.value {
            DeValue::String(text) if text == word => Some(None),
            DeValue::String(text) => {
                let advice = format!(
                    "write \"{word}\", or a whole number from {} to {} without quotes",
                    range.start(),
                    range.end()
                );
                self.complain(BadValue, format!("'{}' is not a value of this key", excerpt(text)), advice);
                None
            }
            _ => self.integer(range).map(Some),
        }
    }

    /// Reads a finite, non-negative number.
    pub fn figure(&self) -> Option<f64> {
        self.figure_or("write a number of at least 0")
    }

    /// Reads a finite, non-negative number; `advice` states the range.
    pub fn figure_or(&self, advice: &str) -> Option<f64> {
        let figure = match self.value {
            DeValue::Integer(integer) => {
                i128::from_str_radix(integer.as_str(), integer.radix()).ok().map(|integer| integer as f64)
            }
            DeValue::Float(float) => float.as_str().parse::<f64>().ok(),
            _ => {
                self.wrong_type("a number");
                return None;
            }
        };
        match figure {
            Some(figure) if !figure.is_finite() => self.complain(BadValue, "not a finite number", advice),
            Some(figure) if figure < 0.0 => {
                self.complain(BadValue, "a negative number", advice);
            }
            // Adding zero turns -0.0 into 0.0.
            Some(figure) => return Some(figure + 0.0),
            None => self.complain(BadValue, "out of range", advice),
        }
        None
    }

    pub fn boolean(&self) -> Option<bool> {
        if let DeValue::Boolean(value) = self.value {
            return Some(*value);
        }
        self.wrong_type("true or false");
        None
    }

    pub fn one_of<T: Clone>(&self, spellings: &[Spelling<T>]) -> Option<T> {
        let words = spellings.iter().map(|(word, _)| *word);
        let text = self.string(&format!("one of {}", list(words.clone())))?;
        let found = spellings.iter().find(|(word, _)| *word == text).map(|(_, value)| value.clone());
        if found.is_none() {
            let problem = format!("'{}' is not a value of this key", excerpt(text));
            self.complain(BadValue, problem, suggestion(text, words));
        }
        found
    }

    pub fn unknown_name<'k>(&self, what: &str, name: &str, known: impl Iterator<Item = &'k str> + Clone) {
        if self.complaints.would_be_first(&self.span) {
            let advice = suggestion(name, known);
            self.complain(UnknownName, format!("unknown {what} '{}'", excerpt(name)), advice);
        }
    }
}
