//! The host's network path, simulated.
//!
//! The path of a byte, and the modules that model its stations:
//!
//! ```text
//!   application ─▶ tcp ─▶ queue choice ─▶ qdisc ─▶ byte queue limit ─▶ ring ─▶ nic ─▶ wire
//!        ▲          ▲    (evenkeel-transmit)                                          │
//!        │          └──────────────── acknowledgements ◀──── receiver ◀───────────────┘
//!        └── processors: every station's work takes their time
//! ```
//!
//! The other direction, from clients' requests through receive queues, is a model of its own: [`receive`].
//! So are tenants that share a device behind qdiscs and the processors of one machine: [`tenants`].
//!
//! Time is integer picoseconds. Everything random comes from generators that are seeded per
//! component, and nothing is global: the same seed gives the same record on any machine, and many
//! simulations run in one process. What saves time is that segments stay whole above the NIC, and that
//! the NIC computes the departures of interleaved packets in closed form between changes of its state.

#![deny(unsafe_code)]
#![warn(missing_docs)]

mod arrivals;
pub mod costs;
mod engine;
pub mod error;
pub mod event;
pub mod host;
pub mod network;
pub mod observation;
pub mod parameters;
mod prefetch;
pub mod processors;
mod progress;
pub mod random;
pub mod receive;
pub mod settings;
pub mod sink;
pub mod tenants;
pub mod world;

pub use evenkeel_stations::{nic, qdisc, segment, tcp, time};
