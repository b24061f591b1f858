//! The overloaded receiver: bulk transfers between hosts with modelled processors, rings, memory and windows.
//! After *TCP at 100 Gbit/s* (Hock et al., LCN 2019).
//!
//! - [`machine`]: the machines, and the one table of cycles
//! - [`cores`]: the softirqs and processes of a core
//! - [`receive_queue`]: the ring with its poll and GRO
//! - [`socket`]: the receive queue, backlog and window of a connection
//! - [`settings`]: the settings of a simulation, and the placement of its flows
//! - [`simulation`]: connects these modules

pub mod cores;
pub mod machine;
pub mod receive_queue;
pub mod settings;
pub mod simulation;
pub mod socket;
#[cfg(test)]
mod tests;
mod world;

pub(crate) use simulation::TCP_BIN_BYTES;
pub(crate) use world::{assess, run};
