//! BPF programs in C, and the Rust that loads, attaches and reads them.
//!
//! ```text
//!   sender's device                                     receiver
//!   ┌──────────────────────────────┐                    ┌────────────────────────────┐
//!   │ tcx egress: select_class,    │ ── wire or veth ─▶ │ tcx ingress: count (meter) │
//!   │   select_queue               │                    └────────────────────────────┘
//!   │ tcx ingress: hold_back       │
//!   │ timers: look, ageing         │
//!   └──────────────────────────────┘
//! ```
//!
//! [`QueueSelect`] owns the queue choice of one device, and [`FlowMover`] brings its flows to change their queue;
//! [`Meter`] counts what arrives, per flow and bin; [`DropReasons`] counts what the kernel drops, by its reason; [`TransmitBatching`] is a qdisc; [`ReceiveSteering`] sends
//! what arrives to the CPUs that are to take it. Programs are attached through links that this process owns, so its
//! death detaches them: nothing is pinned and nothing stays behind, but for the qdisc on the devices that have
//! it. Times are nanoseconds of `CLOCK_MONOTONIC`, sizes are bytes on the wire (`skb->len` plus the headers
//! of the further segments of a GSO packet).
//!
//! The programs decide nothing by themselves: the policy, the pools and the weights are what user
//! space put into the shared records of `include/evenkeel/datapath.h`.

mod batch;
mod drops;
mod error;
mod hook;
mod mapped;
mod meter;
mod object;
mod queue_select;
mod rules;
mod service;
mod statistics;
mod steer;
mod toeplitz;

pub use batch::{BatchCounters, BatchOptions, TransmitBatching};
pub use drops::{DropCount, DropReasons};
pub use error::DatapathError;
pub use hook::{HookProgram, egress_programs};
pub use meter::{FlowSample, Meter, MeterOptions, NO_QUEUE};
pub use queue_select::{
    Completion, Counters, FlowState, QueueSelect, QueueView, SelectOptions, Steering, Tuple,
};
pub use rules::{CgroupId, MAX_RULES, Rule};
pub use service::{FlowMover, FlowService, MoveState};
pub use statistics::{RunTime, RunTimeStatistics};
pub use steer::{
    CpuCounters, INDIRECTION_LENGTH, MAX_CLASS_TARGETS, MAX_STEERED_CLASSES, MAX_STEERED_FLOWS,
    MaskedAddress, MaskedPort, ReceiveSteering, SeenFlow, SteerTarget, SteeredClass, SteeredFlow,
    SteeringOptions,
};
pub use toeplitz::{DEFAULT_RSS_KEY, RSS_KEY_LENGTH};

/// The shared records, as bindgen reads them from the C header.
#[allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    unused_qualifications,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
pub(crate) mod raw {
    include!(concat!(env!("OUT_DIR"), "/datapath.rs"));
}

/// Now on the clock that the programs use (`CLOCK_MONOTONIC`), nanoseconds.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec, and CLOCK_MONOTONIC always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
