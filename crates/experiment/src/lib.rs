//! Conducts a scenario in a world and makes the record.
//!
//! Repeats are interleaved: the first repeat of every variant, then the second of every variant, so
//! that whatever the machine does meanwhile touches all variants alike and repeat *i* of one can be
//! paired with repeat *i* of another. What a world observes is turned into metrics here, by the
//! functions of the metrics room; the world computes none.

mod conduct;
mod evaluate;
mod expectations;
mod pool;
mod requests;
mod tenants;
mod timing;

pub use conduct::{ConductError, Outcome, Request, conduct, summarise};
pub use pool::in_parallel;
pub use tenants::line_use;
pub use timing::Timing;
