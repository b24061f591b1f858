//! The result of a study: JSON for scripts, Markdown for readers.

mod compare;
mod html;
mod json;
mod markdown;
mod setups;
mod summary;

pub use compare::{agreement_json, agreement_table};
pub use html::html;
pub use json::json;
pub use markdown::markdown;
pub use setups::qdisc_table;
pub use summary::summary;

/// The thesis whose experiments a study repeats.
const THESIS: &str =
    "Abaci, A performance analysis of TC for high speed, scalable data center networks (VU Amsterdam, 2025)";
