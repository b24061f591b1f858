//! The receive path of a server: from the requests of clients through the NIC's queues to the responses.
//!
//! ```text
//!  client's thread ─▶ wire ─▶ NIC: filters, hash ─▶ receive ring ─┐
//!        ▲                    (evenkeel-receive)                   ├─▶ thread of the queue pair ─▶ application's thread
//!        │                                                         │     │    (a core each)             │
//!        └──────────────── wire ◀────────── transmit ring ◀────────┼─────┘                              │
//!                                                                  └◀───────────────────────────────────┘
//! ```
//!
//! As in Dragonet (TRIOS 2015, sections 3.2.5 and 4.1):
//!
//! - A thread on its own core serves each queue pair: it takes requests from the receive ring and responses
//!   from the application, in order of arrival.
//! - An application thread on its own core answers the requests of one queue.
//! - Clients are threads that keep a number of requests per flow in flight.
//!
//! All service is first come, first served. The time of an operation depends only on the size of its messages
//! ([`ReceiveCosts`](crate::costs::queue_pairs::ReceiveCosts)). Results vary with the placement of flows, the
//! sharing of queues, and the share of sets.

mod messages;
mod simulation;
mod steering;
#[cfg(test)]
mod tests;
mod world;

pub use simulation::{Account, ClientSpec, ReceiveSimulation, RequestsError, Setting};
pub(crate) use world::{assess, run};
