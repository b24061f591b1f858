//! The transmit queue choice, written once for the kernel and for user space.
//!
//! A NIC with several transmit queues serves them in turn, so a flow that shares its queue gets a
//! fraction of what a flow with a queue of its own gets. The kernel's choice, a hash per socket,
//! makes flows collide even when there are more queues than flows. *Dynamic queue assignment*
//! (Titan, USENIX ATC 2018, section 3.1) gives a flow that has nothing outstanding the queue of
//! least weight instead.
//!
//! The algorithm lives in `include/evenkeel/queue_choice.h`. The BPF programs include that header;
//! this crate compiles the same header for user space and wraps it, so that a simulator and the
//! property tests run the very code that the kernel runs. Weights are plain numbers (1 is an
//! ordinary flow); a queue's weight is the sum over the flows with something outstanding on it.
//!
//! ```
//! use evenkeel_transmit::{FlowWord, Outcome, Policy, Pool, QueueWeights, Segment};
//!
//! let queues = QueueWeights::new();
//! let flow = FlowWord::new();
//! let segment = Segment { pool: Pool { first: 0, count: 8 }, policy: Policy::Dqa, hash: 7, ..Segment::default() };
//! let choice = queues.choose(&flow, &segment);
//! assert_eq!((choice.outcome, queues.weight(choice.queue)), (Outcome::Picked, 1));
//! // Its last segment has left:
//! assert!(queues.release(&flow, flow.read(), false));
//! assert_eq!(queues.weight(choice.queue), 0);
//! ```

#![warn(missing_docs)]

pub mod headroom;
pub mod segments;
pub mod service;
pub mod weights;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The C header's own types and constants, as bindgen reads them.
#[allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    unsafe_op_in_unsafe_fn,
    unused_qualifications,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
pub mod raw {
    include!(concat!(env!("OUT_DIR"), "/queue_choice.rs"));
}

/// Transmit queues at most.
pub const MAX_QUEUES: usize = raw::EK_MAX_QUEUES as usize;
/// Largest weight of a flow.
pub const MAX_FLOW_WEIGHT: u32 = u16::MAX as u32;

/// How a queue is picked once a flow may change it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The kernel's hash per socket.
    #[default]
    Hash,
    /// Dynamic queue assignment: the queue of least weight.
    Dqa,
}

impl Policy {
    /// The number by which the C header knows the policy.
    #[must_use]
    pub fn raw(self) -> raw::ek_policy {
        match self {
            Self::Hash => raw::ek_policy::EK_POLICY_HASH,
            Self::Dqa => raw::ek_policy::EK_POLICY_DQA,
        }
    }
}

/// The queues a flow may use: an XPS pool, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// First queue.
    pub first: u32,
    /// Number of queues, at least 1; `first + count` is at most [`MAX_QUEUES`].
    pub count: u32,
}

/// One segment that asks for a queue.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Queues that the flow may use.
    pub pool: Pool,
    /// How a queue is picked.
    pub policy: Policy,
    /// The flow's hash.
    pub hash: u32,
    /// The flow's weight, 1 to [`MAX_FLOW_WEIGHT`].
    pub weight: u32,
    /// The flow had nothing outstanding before this segment.
    pub idle: bool,
    /// Queue on which the kernel holds the flow unless it is idle; none where this choice alone
    /// decides, and the flow stays where it was.
    pub held_on: Option<u32>,
    /// Queue to take if the flow may move, whatever the policy says; ignored outside of the pool.
    pub wanted: Option<u32>,
    /// Carries payload; a pure ACK is never charged.
    pub data: bool,
}

impl Default for Segment {
    fn default() -> Self {
        Self {
            pool: Pool { first: 0, count: 1 },
            policy: Policy::Hash,
            hash: 0,
            weight: 1,
            idle: true,
            held_on: None,
            wanted: None,
            data: true,
        }
    }
}

/// What the choice did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Stayed on its queue, already charged.
    Kept,
    /// Picked a queue and was charged to it.
    Picked,
    /// Was released before but is still held on its queue: charged again.
    Recharged,
    /// Carries no data.
    Uncharged,
    /// Lost every race for the flow's word, or the flow was forgotten: sent uncharged.
    Contended,
}

/// The queue for one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Queue number.
    pub queue: u32,
    /// What happened to the flow's charge.
    pub outcome: Outcome,
}

/// A flow's state.
#[derive(Debug, Default)]
pub struct FlowWord(AtomicU64);

impl FlowWord {
    /// A flow that has sent nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The state as it is now; see [`QueueWeights::release`].
    #[must_use]
    pub fn read(&self) -> SeenWord {
        SeenWord(self.0.load(Ordering::SeqCst))
    }
}

/// A flow's state as it was when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenWord(u64);

impl From<u64> for SeenWord {
    fn from(word: u64) -> Self {
        Self(word)
    }
}

impl SeenWord {
    /// The queue, once the flow has one.
    #[must_use]
    pub fn queue(self) -> Option<u32> {
        (self.0 & raw::EK_WORD_ASSIGNED != 0).then_some((self.0 & 0xffff) as u32)
    }

    /// How often the state advanced, modulo 2^28: with each data segment that went through
    /// [`QueueWeights::choose`].
    #[must_use]
    pub fn segments(self) -> u64 {
        self.0 >> raw::EK_WORD_SEQUENCE_SHIFT
    }

    /// The weight charged to the queue; 0 when the flow has nothing outstanding.
    #[must_use]
    pub fn charged_weight(self) -> u32 {
        if self.0 & raw::EK_WORD_CHARGED != 0 { ((self.0 >> 16) & 0xffff) as u32 } else { 0 }
    }
}

/// The sums of flow weights per queue.
#[derive(Debug)]
pub struct QueueWeights(Box<[AtomicU32; MAX_QUEUES]>);

impl Default for QueueWeights {
    fn default() -> Self {
        Self::new()
    }
}

impl QueueWeights {
    /// All queues empty.
    #[must_use]
    pub fn new() -> Self {
        Self(Box::new([const { AtomicU32::new(0) }; MAX_QUEUES]))
    }

    /// A queue's weight; 0 for a queue that does not exist.
    #[must_use]
    pub fn weight(&self, queue: u32) -> u32 {
        self.0.get(queue as usize).map_or(0, |weight| weight.load(Ordering::SeqCst))
    }

    /// Sum over all queues.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().map(|weight| u64::from(weight.load(Ordering::SeqCst))).sum()
    }

    /// The queue for a segment; charges the flow's weight to it.
    ///
    /// # Panics
    /// When the pool is empty or reaches past [`MAX_QUEUES`], or the weight is 0 or too large:
    /// those are mistakes of the caller, not of any input.
    #[must_use]
    pub fn choose(&self, flow: &FlowWord, segment: &Segment) -> Choice {
        let Pool { first, count } = segment.pool;
        assert!(count >= 1 && first.checked_add(count).is_some_and(|end| end as usize <= MAX_QUEUES));
        assert!((1..=MAX_FLOW_WEIGHT).contains(&segment.weight));
        let request = raw::ek_segment {
            pool: raw::ek_pool { first, count },
            policy: segment.policy.raw(),
            hash: segment.hash,
            weight: segment.weight,
            idle: u32::from(segment.idle),
            held_on: segment.held_on.unwrap_or(raw::EK_NO_QUEUE),
            wanted: segment.wanted.unwrap_or(raw::EK_NO_QUEUE),
            data: u32::from(segment.data),
        };
        // SAFETY: both pointers are to live atomics of the size that the C side changes, and it
        // changes them by atomic operations only; the request is read, not kept.
        let choice = unsafe {
            raw::ek_shim_choose(flow.0.as_ptr(), self.0.as_ptr().cast::<u32>().cast_mut(), &request)
        };
        let outcome = match choice.outcome {
            raw::ek_outcome::EK_KEPT => Outcome::Kept,
            raw::ek_outcome::EK_PICKED => Outcome::Picked,
            raw::ek_outcome::EK_RECHARGED => Outcome::Recharged,
            raw::ek_outcome::EK_UNCHARGED => Outcome::Uncharged,
            _ => Outcome::Contended,
        };
        Choice { queue: choice.queue, outcome }
    }

    /// Takes a flow's weight off its queue, if the flow has sent nothing since `seen` was read;
    /// `aged` says that it is released by age and not by a completion. True if it was released.
    #[must_use]
    pub fn release(&self, flow: &FlowWord, seen: SeenWord, aged: bool) -> bool {
        let aged = if aged { raw::EK_WORD_AGED } else { 0 };
        // SAFETY: as in `choose`.
        let released = unsafe {
            raw::ek_shim_release(flow.0.as_ptr(), self.0.as_ptr().cast::<u32>().cast_mut(), seen.0, aged)
        };
        released != 0
    }
}
