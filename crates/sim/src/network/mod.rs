//! Several hosts and the switches between them.
//!
//! ```text
//!   host ─ link ─▶ port │ switch │ port ─ link ─▶ port │ switch │ port ─ link ─▶ host
//!                        shared buffer
//! ```
//!
//! - [`Topology`]: hosts, switches and links, and the paths through them.
//! - [`Switch`]: output queues in a shared buffer, packet by packet.
//! - [`Cluster`]: hosts that transfer data to each other over a topology.
//!
//! # What is modelled, and what is not
//!
//! - Every packet of data goes through the queue of every port on its way, in the order of time.
//! - Acknowledgements take the latencies of the same links back and meet no queue, as if switches served
//!   them first: they are about 0.3 % of the bytes.
//! - A host sends as in a [`Simulation`](crate::host::Simulation) of two hosts. What it receives
//!   goes to its receive queues, as in [`crate::sink`]; their interrupts are moderated like those of
//!   its transmit queues, and take no time of its processors.

mod cluster;
mod fabric;
mod rate;
mod reception;
pub(crate) mod shuffle;
mod switch;
#[cfg(test)]
mod tests;
mod topology;

pub use cluster::{Cluster, Transfer};
pub use switch::{Switch, SwitchConfig};
pub use topology::{Hop, Link, Node, Path, Topology};
