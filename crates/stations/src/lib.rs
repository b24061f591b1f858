//! Stations of a host's transmit path, simulated.
//!
//! - [`tcp`]: a sender and a receiver, with congestion control, loss recovery, pacing and small queues.
//! - [`qdisc`]: the kernel's queueing disciplines, alone and as trees of classes.
//! - [`nic`]: transmit rings with byte queue limits, and the scheduler that serves them.
//!
//! A station has no calendar and does not know its caller. The caller passes a [`segment`] and the
//! [`time`]. The station returns its actions and the time of its next call. The worlds in
//! `evenkeel-sim` connect stations to hosts and networks.

#![forbid(unsafe_code)]

pub mod nic;
pub mod qdisc;
pub mod segment;
pub mod tcp;
pub mod time;
