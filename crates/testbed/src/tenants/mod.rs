//! Tenants on the real kernel: clients that share a sender's link, behind one tree of qdiscs.
//!
//! The bed has two namespaces, a veth pair and the tree on the sender's end, but no queue choice. A bulk tenant
//! is an iperf3 client and server, or, with on and off times, a writing thread. Request-response probes run
//! during the measurement, because latency under load is the question.

mod accounts;
mod bed;
mod line;
mod measures;
mod repeat;
mod sources;
mod suit;

pub(crate) use repeat::run;
pub(crate) use suit::{Suitability, in_front, settle};
