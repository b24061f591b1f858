//! A page of results in HTML: one file without references to the network, fonts or images.
//!
//! The page is a function of its records. A record may come from another host, so the code does not
//! trust the record: `maud` escapes all of its text. The page's content security policy allows only the
//! page's own script.
//!
//! ```text
//! page ─> summary      answer, expectations, facts
//!      ├> windows, strips, percentiles, flows   one module for each kind of plot
//!      │    └> axes, looks, lines, figure       common parts of plots
//!      ├> table        a table, with a button that copies it as CSV
//!      └> settings     variants, host, scenario, command
//! ```

mod axes;
mod comparison;
mod figure;
mod flows;
mod lines;
mod looks;
mod message;
mod page;
mod percentiles;
mod rerun;
mod settings;
mod strips;
mod study;
mod summary;
mod table;
#[cfg(test)]
mod tests;
mod windows;

use std::path::Path;

use evenkeel_model::record::Record;

pub use comparison::comparison;
pub use page::record;
pub use study::{Study, StudyFinding, study};

/// A record, and the directory of its series, if the record has a directory.
#[derive(Clone, Copy, Debug)]
pub struct Source<'r> {
    pub record: &'r Record,
    pub directory: Option<&'r Path>,
}
