//! Samples of a live host, which `evenkeel top` shows and `evenkeel metrics` exports.
//!
//! ```text
//!   qdiscs, sockets, /proc, BPF meter ──▶ collector ──▶ Sample ──▶ top, metrics, a recorded file
//! ```
//!
//! All views are functions of a [`Sample`], so they agree with each other.

#![forbid(unsafe_code)]

mod collector;
mod error;
mod exposition;
mod flow_thread;
mod interval;
mod loss_totals;
mod plausible;
mod queues;
mod recording;
mod sample;
mod scrape_server;
mod series;
mod tcp_sockets;
pub mod view;

pub use collector::{Collector, Options};
pub use error::MonitorError;
pub use exposition::{Form, exposition, reference_table};
pub use recording::{Recorder, Recording, RecordingError};
pub use sample::{
    Flow, Interface, Interval, Loss, Management, Processor, Queue, SCHEMA, Sample, SocketDetail,
};
pub use scrape_server::{Endpoint, ScrapeServer, ServeError};
pub use series::{CheckCounts, Exported, Kind, MOST_PER_INTERFACE, SERIES, Series};
