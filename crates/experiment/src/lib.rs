//! Runs a scenario in a world, and creates the record.
//!
//! Repeats are interleaved: the first repeat of every variant, then the second repeat of every variant. So
//! changes of the machine's speed affect all variants equally, and repeat *i* of one variant can be paired
//! with repeat *i* of another. The world only observes. This crate computes the metrics with the functions of
//! the crate `metrics`.

#![forbid(unsafe_code)]

mod conduct;
mod evaluate;
mod pool;
mod requests;
mod tenants;

pub use conduct::{ConductError, Request, conduct, nothing_measured, summarise};
pub use pool::{at_a_time, in_parallel};
pub use tenants::line_use;
