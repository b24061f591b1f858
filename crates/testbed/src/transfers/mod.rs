//! Transfers on the real kernel: a receiver whose softirq and application share a processor, or do not.
//!
//! ```text
//!  sender's processor                                 receiver's processors
//!  write ─▶ TCP ─▶ tbf ─▶ veth ─▶ XDP ──▶ ring (cpumap) ─▶ its thread: GRO, TCP ─▶ socket ─▶ read, work
//! ```
//!
//! An XDP program on the receiving device chooses the processor by the flow's hash, as RSS does. The queue
//! of the CPU map is the receive ring: it has the scenario's length, and a full queue drops packets. The
//! device has neither TSO nor checksum offload, so packets of the MTU arrive with complete checksums.

mod bed;
mod place;
mod repeat;
mod traffic;

pub(crate) use place::assess;
pub(crate) use repeat::run;
