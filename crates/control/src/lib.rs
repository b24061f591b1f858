//! Adapts queue weights and segment sizes while flows start and end.
//!
//! The queue choice (crate `datapath`) charges each flow's weight to its queue. A [`Controller`] reads
//! the sum of each queue many times per second. Pure functions of the crate `transmit` compute the
//! queues' weights and the segment size. The controller sets them through a [`WeightBackend`] and a
//! [`SegmentBackend`]. The test bed and `evenkeel fair` share this loop.
//!
//! ```text
//!   queue choice ──▶ QueueView ──▶ WeightFilter ──▶ quanta ──▶ WeightBackend   (HTB, NIC, ...)
//!     (kernel)          │                             ▲
//!                       ├────────▶ SegmentSizer ──────┴──────▶ SegmentBackend  (gso_max_size)
//!                       └────────▶ equal_backlog ────────────▶ BacklogBackend  (tcp_limit_output_bytes)
//!   sockets ─────▶ MoveBackend ──▶ ServiceBalancer ──────────▶ MoveBackend     (one held flow at a time)
//! ```
//!
//! The last line of the diagram is for devices without queue weights, whose flows alternate between queues.
//!
//! Every back end that changes a setting writes through a [`Gate`]. On a live interface, the gate refuses
//! a value that the journal does not list. When the controller ends, these back ends restore the original
//! settings, and the [`MoveBackend`] releases its flow.

#![forbid(unsafe_code)]

mod backend;
mod backlog;
mod balance;
mod controller;
mod error;
mod gate;
mod gso_size;
mod htb;
mod max_rate;
mod shaper;

pub use backend::{Applied, BacklogBackend, MoveBackend, MoveProgress, SegmentBackend, WeightBackend};
pub use backlog::OutputLimit;
pub use balance::{BalanceControl, HeldMoves};
pub use controller::{BacklogControl, ControlOptions, Controller, Counts, SegmentControl, WeightControl};
pub use error::ControlError;
pub use gate::{Gate, OpenGate, Setting};
pub use gso_size::{DeviceSegments, RouteRefresh, sizes_of};
pub use htb::{HtbQueue, HtbWeights};
pub use max_rate::MaxRateWeights;
pub use shaper::{DeviceShapers, QueueShapers, ShaperWeights};
