//! Displays the results of a run as tables, JSON and HTML.
//!
//! Tables, JSON and pages depend only on [records](evenkeel_model::record). A record gives the same table on
//! any machine at any time.
//!
//! ```text
//!             ┌─> table::render   terminal table
//!  Record ────┼─> json::run       one JSON object
//!    ↕        ├─> html::record     self-contained page
//!             └─> compare::compare(first, second)
//!  store      record directory: record.json and the raw series
//! ```
//!
//! [`evenkeel_metrics`] computes the statistics. This crate displays them.

#![forbid(unsafe_code)]

pub mod chart;
pub mod compare;
pub mod html;
pub mod json;
pub mod page;
pub mod store;
pub mod table;

mod answer;
mod catalogue;
mod clients;
mod expectations;
mod format;
mod grid;
mod paired;
mod summaries;
mod timing;

pub use answer::answer;
pub use catalogue::{Description, Direction, describe};
pub use compare::{change_text, scale_name};
pub use expectations::judge;
pub use format::wrapped;
pub use timing::Timing;
