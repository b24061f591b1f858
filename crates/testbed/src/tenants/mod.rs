//! Tenants on the real kernel: clients that share a sender's link, with one tree of qdiscs in front of it.
//!
//! A bed of its own kind: two namespaces, a veth pair, the tree on the sender's end, no queue choice. The traffic is one
//! iperf3 client and server for each bulk tenant, a thread that writes for a while and is silent for a while for one with
//! times of sending, and request-response probes that run while it is measured: latency under load is the point.

mod accounts;
mod bed;
mod line;
mod measures;
mod repeat;
mod sources;
mod suit;

pub(crate) use repeat::run;
pub(crate) use suit::{Suitability, in_front, settle};
