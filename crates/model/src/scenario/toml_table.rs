//! Walks a TOML document key by key, and keeps the first error in file order.
//!
//! A [`Table`] records the requested keys. Every other key is unknown, and errors list the requested
//! keys as the known keys. Reading continues after an error. So the reported error is the first error
//! in the file, not the first error that the code finds.

use std::cell::RefCell;
use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::error::{ScenarioError, ScenarioErrorKind, key_segment, line_and_column};
use crate::text::{list, nearest};

#[derive(Clone, Debug)]
pub struct Located<T> {
    pub(super) value: T,
    pub(super) span: Range<usize>,
    pub(super) path: String,
}

/// Collects errors in one text and keeps the earliest.
pub struct Complaints<'a> {
    text: &'a str,
    origin: &'a str,
    first: RefCell<Option<Complaint>>,
}

struct Complaint {
    /// Offset that determines which error is the earliest.
    order: usize,
    offset: usize,
    kind: ScenarioErrorKind,
    path: String,
    problem: String,
    advice: String,
}

impl<'a> Complaints<'a> {
    /// Creates an empty collection for `text`; errors name the text `origin`.
    pub fn new(text: &'a str, origin: &'a str) -> Self {
        Self { text, origin, first: RefCell::new(None) }
    }

    pub fn push(
        &self,
        kind: ScenarioErrorKind,
        span: &Range<usize>,
        path: &str,
        problem: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.push_ordered(kind, span.start, span.start, path, problem.into(), advice.into());
    }

    fn push_ordered(
        &self,
        kind: ScenarioErrorKind,
        order: usize,
        offset: usize,
        path: &str,
        problem: String,
        advice: String,
    ) {
        let mut first = self.first.borrow_mut();
        if first.as_ref().is_none_or(|first| order < first.order) {
            *first = Some(Complaint { order, offset, kind, path: path.to_owned(), problem, advice });
        }
    }

    /// Returns whether an error at `span` would be the first one; if not, callers can skip computing its
    /// advice.
    pub fn would_be_first(&self, span: &Range<usize>) -> bool {
        self.first.borrow().as_ref().is_none_or(|first| span.start < first.order)
    }

    pub fn is_empty(&self) -> bool {
        self.first.borrow().is_none()
    }

    /// Returns the earliest error, with its line and column.
    pub fn into_error(self) -> Option<ScenarioError> {
        let Complaint { offset, kind, path, problem, advice, .. } = self.first.into_inner()?;
        let (line, column) = line_and_column(self.text, offset);
        Some(ScenarioError { kind, origin: self.origin.to_owned(), line, column, key: path, problem, advice })
    }
}

pub struct Table<'t> {
    entries: &'t DeTable<'t>,
    /// Position of the table: its header, or the whole inline table.
    span: Range<usize>,
    path: String,
    known: Vec<&'static str>,
    complaints: &'t Complaints<'t>,
}

impl<'t> Table<'t> {
    pub fn root(entries: &'t DeTable<'t>, complaints: &'t Complaints<'t>) -> Self {
        Self { entries, span: 0..0, path: String::new(), known: Vec::new(), complaints }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn path_of(&self, key: &str) -> String {
        join(&self.path, key)
    }

    /// Takes the value of an optional key.
    pub fn take(&mut self, key: &'static str) -> Option<Field<'t>> {
        self.known.push(key);
        let (key, value) = self.entries.get_key_value(key)?;
        Some(Field {
            path: self.path_of(key.get_ref()),
            key_span: key.span(),
            span: value.span(),
            value: value.get_ref(),
            complaints: self.complaints,
        })
    }

    /// Takes the value of a required key, or reports the missing key with `advice`.
    pub fn require(&mut self, key: &'static str, advice: &str) -> Option<Field<'t>> {
        let field = self.take(key);
        if field.is_none() {
            self.missing(key, advice);
        }
        field
    }

    /// Reports a missing key.
    ///
    /// The position is the start of the table, but the error is ordered after all other errors in the table.
    /// So a misspelt key is reported as unknown, and not as missing.
    pub fn missing(&self, key: &str, advice: &str) {
        let order = if self.path.is_empty() {
            usize::MAX
        } else {
            let ends = self.entries.iter().map(|(key, value)| key.span().end.max(value.span().end));
            ends.max().unwrap_or(0).max(self.span.end)
        };
        let problem = "missing".to_owned();
        let path = self.path_of(key);
        let advice = advice.to_owned();
        self.complaints.push_ordered(
            ScenarioErrorKind::MissingKey,
            order,
            self.span.start,
            &path,
            problem,
            advice,
        );
    }

    pub fn entries(&self) -> impl Iterator<Item = (&'t str, Field<'t>)> + use<'t> {
        let (path, complaints) = (self.path.clone(), self.complaints);
        self.entries.iter().map(move |(key, value)| {
            let field = Field {
                path: join(&path, key.get_ref()),
                key_span: key.span(),
                span: value.span(),
                value: value.get_ref(),
                complaints,
            };
            (key.get_ref().as_ref(), field)
        })
    }

    /// Reports the first unknown key.
    pub fn finish(self) {
        self.finish_except(&[]);
    }

    /// Reports the first unknown key. `elsewhere` lists the keys that only other kinds of workload
    /// have, each with the names of the kinds.
    pub fn finish_except(self, elsewhere: &[(&str, &str)]) {
        let unknown = self.entries.keys().filter(|key| !self.known.contains(&key.get_ref().as_ref()));
        let Some(key) = unknown.min_by_key(|key| key.span().start) else { return };
        let name: &str = key.get_ref();
        let known = format!("known keys: {}", list(self.known.iter().copied()));
        let advice = match nearest(name, self.known.iter().copied()) {
            Some(nearest) => format!("did you mean '{nearest}'? {known}"),
            None => known,
        };
        let path = self.path_of(name);
        let kinds = elsewhere.iter().find(|(key, _)| *key == name);
        let problem =
            kinds.map_or("unknown key".to_owned(), |(_, kinds)| format!("only with workload.kind = {kinds}"));
        self.complaints.push(ScenarioErrorKind::UnknownKey, &key.span(), &path, problem, advice);
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key_segment(key) } else { format!("{path}.{}", key_segment(key)) }
}

/// A value with its key; its readers return the value, or record an error.
#[derive(Clone)]
pub struct Field<'t> {
    pub(super) path: String,
    pub(super) key_span: Range<usize>,
    pub(super) span: Range<usize>,
    pub(super) value: &'t DeValue<'t>,
    pub(super) complaints: &'t Complaints<'t>,
}

impl<'t> Field<'t> {
    pub fn complain(&self, kind: ScenarioErrorKind, problem: impl Into<String>, advice: impl Into<String>) {
        self.complaints.push(kind, &self.span, &self.path, problem, advice);
    }

    /// Records an error `offset` bytes after the start of a string's text.
    pub fn complain_within(
        &self,
        kind: ScenarioErrorKind,
        offset: usize,
        problem: impl Into<String>,
        advice: impl Into<String>,
    ) {
        let mut span = self.span.clone();
        // With escapes, or in a multi-line string, offsets in the text and the file differ. The error then
        // points to the start of the string.
        if let DeValue::String(text) = self.value
            && self.complaints.text.get(span.start + 1..span.end.saturating_sub(1)) == Some(text)
        {
            span.start = (span.start + 1 + offset).min(span.end);
        }
        self.complaints.push(kind, &span, &self.path, problem, advice);
    }

    /// Returns the same field, but errors are reported at its key instead of its value.
    pub fn at_key(&self) -> Self {
        Self {
            path: self.path.clone(),
            key_span: self.key_span.clone(),
            span: self.key_span.clone(),
            value: self.value,
            complaints: self.complaints,
        }
    }

    pub fn wrong_type(&self, wanted: &str) {
        let found = match self.value {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a decimal number",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date or time of day",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.complain(ScenarioErrorKind::WrongType, format!("expected {wanted}, found {found}"), "");
    }

    pub fn located<T>(&self, value: T) -> Located<T> {
        Located { value, span: self.span.clone(), path: self.path.clone() }
    }

    pub fn table(&self) -> Option<Table<'t>> {
        let DeValue::Table(entries) = self.value else {
            self.wrong_type("a table");
            return None;
        };
        Some(Table {
            entries,
            span: self.span.clone(),
            path: self.path.clone(),
            known: Vec::new(),
            complaints: self.complaints,
        })
    }

    pub fn list(&self, of: &str) -> Option<Vec<Field<'t>>> {
        let DeValue::Array(elements) = self.value else {
            self.wrong_type(&format!("a list of {of}"));
            return None;
        };
        let element = |(index, value): (usize, &'t toml::Spanned<DeValue<'t>>)| Field {
            path: format!("{}[{index}]", self.path),
            key_span: value.span(),
            span: value.span(),
            value: value.get_ref(),
            complaints: self.complaints,
        };
        Some(elements.iter().enumerate().map(element).collect())
    }
}
