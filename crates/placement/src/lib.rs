//! Placement.
pub mod plan;
