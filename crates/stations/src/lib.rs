//! Stations of a host's transmit path, simulated.
//!
//! - [`tcp`]: a sender and a receiver, with congestion control, loss recovery, pacing and small queues.
//! - [`qdisc`]: the kernel's queueing disciplines, alone and as trees of classes.
//! - [`nic`]: transmit rings with byte queue limits, and the scheduler that serves them.
//!
//! A station has no calendar and does not know its caller. It is given a [`segment`] and the [`time`], and returns what it
//! does and when it next wants to be asked. The worlds in `evenkeel-sim` connect stations to hosts and networks.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod nic;
pub mod qdisc;
pub mod segment;
pub mod tcp;
pub mod time;
