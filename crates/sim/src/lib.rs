//! A simulation of the host's network path.
//!
//! The modules model the stations on the path of a byte:
//!
//! ```text
//!   application ─▶ tcp ─▶ queue choice ─▶ qdisc ─▶ byte queue limit ─▶ ring ─▶ nic ─▶ wire
//!        ▲          ▲    (evenkeel-transmit)                                          │
//!        │          └──────────────── acknowledgements ◀──── receiver ◀───────────────┘
//!        └── processors: every station's work takes their time
//! ```
//!
//! [`receive`] models the other direction: requests of clients that arrive through receive queues.
//! [`tenants`] models tenants that share a device behind qdiscs, and the processors of one machine.
//!
//! Time is integer picoseconds. Each component has its own seeded random number generator, and there is
//! no global state. The same seed therefore gives the same record on any machine, and many simulations
//! can run in one process.
//!
//! Two design choices save time. Segments stay whole above the NIC. Between changes of its state, the
//! NIC computes the departures of interleaved packets in closed form.

#![deny(unsafe_code)]

mod arrivals;
pub mod costs;
mod engine;
pub mod error;
pub mod event;
pub mod host;
mod memory;
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
pub mod transfers;
pub mod world;

pub use evenkeel_stations::{nic, qdisc, segment, tcp, time};
