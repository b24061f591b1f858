//! The transmit side of a multiqueue NIC, and the driver's limits of its rings.
//!
//! - [`Nic`]: rings of segments that share one wire, served by round robin or by deficit round robin,
//!   packet by packet (TSO interleaving) or segment by segment.
//! - [`ByteQueueLimit`]: how many bytes the stack may enqueue to a ring (BQL).
//! - [`RingSpace`]: how many free descriptors a ring has.

mod bql;
mod descriptors;
mod finish;
mod ring;
mod scheduler;
mod steady;
#[cfg(test)]
mod tests;
mod train;
mod wire;

pub use bql::{ByteQueueLimit, Dql, DqlConfig};
pub use descriptors::least_descriptors;
pub use descriptors::{RingSpace, descriptors_of};
pub use finish::Finishes;
pub use scheduler::{Nic, NicConfig, Scheduler, Service, Waiting};
pub use train::{Departures, Train};

/// Wire bytes of a full-sized packet at an MTU of 1500 bytes, framing included. If this is the quantum of
/// deficit round robin, a weight is a number of packets per turn.
pub const MTU_QUANTUM_BYTES: u32 = 1538;
