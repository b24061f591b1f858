//! The test bed: this machine's kernel, two network namespaces, a soft NIC and real traffic.
//!
//! ```text
//!   namespace "sender"                                      namespace "receiver"
//!   iperf3 clients, one per sending core                    iperf3 servers
//!   sockperf client                                         sockperf server
//!        │ real TCP, real GSO segments                           ▲
//!   ┌────▼─────────────────────────────────────┐           ┌─────┴────────────────┐
//!   │ evk0   tcx egress: queue choice          │           │ evk1  tcx ingress:   │
//!   │ soft NIC: HTB at line rate, one class    │── veth ──▶│   completion, meter  │
//!   │ per hardware queue, DRR by quantum       │           └──────────────────────┘
//!   └──────────────────────────────────────────┘
//! ```
//!
//! The namespaces have no names, so they exist only while this process and its traffic tools run. The
//! kernel kills the tools when this process ends. No objects remain, even after `kill -9`.

mod accounts;
mod bed;
mod capacity;
mod error;
mod kernel;
mod link_watch;
mod namespace;
mod netns;
mod nic;
mod phases;
mod process;
mod repeat;
mod tenants;
pub mod traffic;
mod transfers;
mod wire;

pub use bed::{Bed, BedOptions};
pub use error::{Failure, TestbedError};
pub use namespace::Namespace;
pub use netns::{NetnsWorld, beyond_one_kernel};
pub use nic::{LeafQdisc, Nic, NicOptions};
pub use process::{Process, ProcessOptions};
pub use wire::{RECEIVER_ADDRESS, RECEIVER_ADDRESS_V6, SENDER_ADDRESS, SENDER_ADDRESS_V6};
pub use wire::{RECEIVER_INTERFACE, Wire};
