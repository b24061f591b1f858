//! The receive path of a server: from clients' requests through the NIC's queues to the responses.
//!
//! ```text
//!  client's thread ─▶ wire ─▶ NIC: filters, hash ─▶ receive ring ─┐
//!        ▲                    (evenkeel-receive)                   ├─▶ thread of the queue pair ─▶ application's thread
//!        │                                                         │     │    (a core each)             │
//!        └──────────────── wire ◀────────── transmit ring ◀────────┼─────┘                              │
//!                                                                  └◀───────────────────────────────────┘
//! ```
//!
//! As in Dragonet (TRIOS 2015, sections 3.2.5 and 4.1), a thread on a core of its own serves each queue pair:
//! it takes requests from the receive ring and responses from the application, in the order in which they came.
//! An application thread on a core of its own answers the requests of one queue. Clients are threads that keep so
//! many requests of each flow under way. All four are first come, first served, and all work takes the same time
//! each time ([`ReceiveCosts`](crate::costs::queue_pairs::ReceiveCosts)): what varies is where flows lie, who shares a queue, and which requests are sets.

mod messages;
mod simulation;
mod steering;
#[cfg(test)]
mod tests;
mod world;

pub use simulation::{Account, ClientSpec, ReceiveSimulation, Setting};
pub(crate) use world::{assess, run};
