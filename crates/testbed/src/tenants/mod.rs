//! Tenants on the real kernel: clients that share a sender's link behind a tree of qdiscs.
//!
//! The test bed has two namespaces, a veth pair, and the tree on the sender's device, but no queue choice. A
//! bulk tenant is an iperf3 client and server. A bulk tenant with on and off times is a writing and a reading
//! thread. Request-response probes measure latency under load during the measurement.

mod bed;
mod line;
mod measures;
mod repeat;
mod sources;
mod suit;

pub(crate) use repeat::run;
pub(crate) use suit::{Suitability, in_front, settle};
