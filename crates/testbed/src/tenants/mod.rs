//! Tenants on the real kernel: clients that share a sender's link behind a tree of qdiscs.
//!
//! The test bed has two namespaces, a veth pair, and the tree on the sender's device, but no queue choice. A
//! bulk tenant is an iperf3 client and server, or a writing thread if it has on and off times. Request-response
//! probes run during the measurement, to measure latency under load.

mod accounts;
mod bed;
mod line;
mod measures;
mod repeat;
mod sources;
mod suit;

pub(crate) use repeat::run;
pub(crate) use suit::{Suitability, in_front, settle};
