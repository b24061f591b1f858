//! Keeps queue weights and segment sizes true while flows come and go.
//!
//! The queue choice (crate `datapath`) charges each flow's weight to its queue. A [`Controller`] reads those
//! sums many times a second, decides with the pure functions of the crate `transmit` what the queues deserve
//! and which segment size suits them, and carries it out: weights through a [`WeightBackend`], sizes through
//! a [`SegmentBackend`]. It is the one loop behind both the test bed's variants and `evenkeel fair`.
//!
//! ```text
//!   queue choice ──▶ QueueView ──▶ WeightFilter ──▶ quanta ──▶ WeightBackend   (HTB, NIC, ...)
//!     (kernel)          │                             ▲
//!                       ├────────▶ SegmentSizer ──────┴──────▶ SegmentBackend  (gso_max_size)
//!                       └────────▶ equal_backlog ────────────▶ BacklogBackend  (tcp_limit_output_bytes)
//!   sockets ─────▶ MoveBackend ──▶ ServiceBalancer ──────────▶ MoveBackend     (a flow at a time, held back)
//! ```
//!
//! The last line is for devices that take no weights: flows take turns.
//!
//! Every back end writes through a [`Gate`], which on a live interface refuses a value that the journal lacks.
//! All back ends put back what they found when they are asked to, and the controller asks when it ends.

mod backend;
mod backlog;
mod balance;
mod controller;
mod error;
mod gate;
mod htb;
mod max_rate;
mod segment;
mod shaper;

pub use backend::{Applied, BacklogBackend, MoveBackend, MoveProgress, SegmentBackend, WeightBackend};
pub use backlog::OutputLimit;
pub use balance::{BalanceControl, HeldMoves};
pub use controller::{BacklogControl, ControlOptions, Controller, Counts, SegmentControl, WeightControl};
pub use error::ControlError;
pub use gate::{Gate, OpenGate, Setting};
pub use htb::{HtbQueue, HtbWeights};
pub use max_rate::MaxRateWeights;
pub use segment::{DeviceSegments, RouteRefresh, sizes_of};
pub use shaper::{DeviceShapers, QueueShapers, ShaperWeights};
