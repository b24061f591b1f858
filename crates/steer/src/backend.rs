//! What makes a NIC what the search found.

use std::collections::HashMap;

use evenkeel_receive::{ConfiguredNic, FilterMatch, FlowTuple, QueueId};

use crate::error::SteerError;

/// What one application of a configuration has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Filters that were not there.
    pub inserted: usize,
    /// Filters that were there and go to another queue.
    pub replaced: usize,
    /// Filters that went.
    pub removed: usize,
    /// Entries of the indirection table that changed.
    pub redirected: usize,
}

impl Applied {
    /// Whether anything was changed.
    #[must_use]
    pub fn is_some(&self) -> bool {
        *self != Self::default()
    }
}

/// What the search found.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a> {
    /// The NIC as it should be configured.
    pub nic: &'a ConfiguredNic,
    /// The flows that are known, and their queues.
    pub flows: &'a [(FlowTuple, QueueId)],
    /// Classes that packets' headers tell, and their queues: where new flows of a class are best until they are known,
    /// for back ends that can do that besides.
    pub classes: &'a [(FilterMatch, Vec<QueueId>)],
}

/// What a flow has brought, as a back end counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets since the flow is counted.
    pub packets: u64,
    /// Bytes of these, whole frames.
    pub bytes: u64,
}

/// A queue, as a back end counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCount {
    /// Packets that were taken from it since the session began.
    pub packets: u64,
    /// Packets that it had no room for, as far as that can be told.
    pub lost: u64,
}

/// A NIC under management. Dropping it puts everything back.
pub trait Backend {
    /// Its name: `xdp`, `ntuple`.
    fn name(&self) -> &'static str;

    /// The NIC as it is found, with filters of others in their places: what the search begins with.
    ///
    /// # Errors
    /// When it cannot be read, or has more queues than its model.
    fn nic(&mut self) -> Result<ConfiguredNic, SteerError>;

    /// The processor that serves each queue.
    fn processors(&self) -> &[u32];

    /// Whether it is known which queue a flow is on: the NIC does what its model says.
    fn knows_queues(&self) -> bool {
        true
    }

    /// Makes the NIC what was found, as the least difference to what it is, and never with a flow without a queue.
    ///
    /// # Errors
    /// When the kernel refuses; what was changed before stays until the end of the session.
    fn apply(&mut self, found: &Placement<'_>) -> Result<Applied, SteerError>;

    /// Why the session has to end, if it has to: somebody changed what it rests on.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    fn check(&mut self) -> Result<Option<String>, SteerError>;

    /// What the flows have brought that it counts, whether the search knows them or not.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    fn traffic(&mut self) -> Result<HashMap<FlowTuple, Traffic>, SteerError>;

    /// Waits a moment for what is under way, so that the last counts are whole where traffic has ended.
    fn settle(&mut self) {}

    /// What the queues have taken; none where that is not counted.
    fn queue_counts(&self) -> Option<Vec<QueueCount>>;

    /// Facts that people should know, each a sentence.
    fn remarks(&self) -> Vec<String>;

    /// The shell lines that would make the NIC so, for people who want advice only; none of a back end that no
    /// command stands for.
    fn shell(&self, nic: &ConfiguredNic) -> Option<String>;
}
