//! Networks of hosts and switches.
//!
//! ```text
//!   host ─ link ─▶ port │ switch │ port ─ link ─▶ port │ switch │ port ─ link ─▶ host
//!                        shared buffer
//! ```
//!
//! - [`Topology`]: hosts, switches and links, and the paths through them.
//! - [`Switch`]: output queues that share a buffer, packet by packet.
//! - [`Cluster`]: hosts that transfer data to each other over a topology.
//!
//! # Scope of the model
//!
//! - Every data packet passes the queue of every port on its path, in order of time.
//! - Acknowledgements take the latencies of the same links back and pass no queue, as if switches gave
//!   them priority. They are about 0.3 % of the bytes.
//! - A host sends as in a [`Simulation`](crate::host::Simulation) of two hosts. Arriving packets go to
//!   its receive queues, as in [`crate::sink`]. Receive interrupts are moderated like transmit
//!   interrupts, and take no processor time.

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
