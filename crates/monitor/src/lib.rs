//! Samples of a live host: what `evenkeel top` draws and `evenkeel metrics` exports.
//!
//! ```text
//!   qdiscs, sockets, /proc, BPF meter ──▶ collector ──▶ Sample ──▶ top, metrics, a recorded file
//! ```
//!
//! All views are functions of a [`Sample`], so they agree with each other.

#![forbid(unsafe_code)]

mod sample;

pub use sample::{
    Flow, Interface, Interval, Loss, Management, Processor, Queue, SCHEMA, Sample, SocketDetail,
};
