//! What a run found, for people and for scripts.
//!
//! Everything here is a function of [records](evenkeel_model::record): nothing is run and nothing
//! is measured again, so a record gives the same table today and on another machine next year.
//!
//! ```text
//!             ┌─> table::render   terminal table
//!  Record ────┼─> json::run       one JSON object
//!    ↕        └─> compare::compare(first, second)
//!  store      record directory: record.json and the raw series
//! ```
//!
//! Statistics come from [`evenkeel_metrics`]; this room decides how they are shown.

pub mod chart;
pub mod compare;
pub mod json;
pub mod page;
pub mod store;
pub mod table;

mod answer;
mod catalogue;
mod clients;
mod format;
mod grid;
mod paired;
mod summaries;

pub use answer::answer;
pub use catalogue::{Description, Direction, describe};
pub use compare::{change_text, scale_name};
pub use format::wrapped;
