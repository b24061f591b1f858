//! Back ends: how a configuration is applied to a NIC.

use std::collections::HashMap;

use evenkeel_apply::Report;
use evenkeel_receive::{ConfiguredNic, FilterMatch, FlowTuple, QueueId};

use crate::error::SteerError;

/// Changes of one application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// New filters.
    pub inserted: usize,
    /// Filters with a new queue.
    pub replaced: usize,
    /// Removed filters.
    pub removed: usize,
    /// Changed entries of the indirection table.
    pub redirected: usize,
}

impl Applied {
    #[must_use]
    pub fn is_some(&self) -> bool {
        *self != Self::default()
    }
}

/// Result of a search.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a> {
    /// The wanted configuration.
    pub nic: &'a ConfiguredNic,
    /// The known flows and their queues.
    pub flows: &'a [(FlowTuple, QueueId)],
    /// Classes that headers identify, and their queues: a back end that can, sends new flows of a class there
    /// until they are known.
    pub classes: &'a [(FilterMatch, Vec<QueueId>)],
}

/// A flow's counters in a back end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Since the back end counts the flow.
    pub packets: u64,
    /// Bytes of whole frames.
    pub bytes: u64,
}

/// A queue's counters in a back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCount {
    /// Packets taken from it since the session began.
    pub packets: u64,
    /// Packets that found it full, as far as known.
    pub lost: u64,
}

/// A NIC under management. Dropping it restores everything, without a report.
pub trait Backend {
    /// `xdp` or `ntuple`.
    fn name(&self) -> &'static str;

    /// The current NIC, with other programs' filters in their places: the start of the search.
    ///
    /// # Errors
    /// When it cannot be read, or has more queues than its model.
    fn nic(&mut self) -> Result<ConfiguredNic, SteerError>;

    /// The processor of each queue.
    fn processors(&self) -> &[u32];

    /// Whether the queue of each flow is known, because the NIC follows its model.
    fn knows_queues(&self) -> bool {
        true
    }

    /// Applies a configuration with the fewest changes; no flow is without a queue in between.
    ///
    /// # Errors
    /// When the kernel refuses; earlier changes stay until the end of the session.
    fn apply(&mut self, found: &Placement<'_>) -> Result<Applied, SteerError>;

    /// The reason to exit, if another program changed a setting that the session depends on.
    ///
    /// # Errors
    /// When the kernel cannot be queried.
    fn check(&mut self) -> Result<Option<String>, SteerError>;

    /// Returns the remarks of [`Self::check`] for the user since the last call.
    fn take_remarks(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the counters of all flows that the back end sees, also of flows outside the search.
    ///
    /// # Errors
    /// When the kernel cannot be queried.
    fn traffic(&mut self) -> Result<HashMap<FlowTuple, Traffic>, SteerError> {
        Ok(HashMap::new())
    }

    /// Restores everything, and reports what was not restored.
    ///
    /// # Errors
    /// When a journal cannot be removed.
    fn finish(self: Box<Self>) -> Result<Report, SteerError>;

    /// Waits until packets in transit are counted, for the last figures.
    fn settle(&mut self) {}

    /// Counters of the queues; none if not counted.
    fn queue_counts(&self) -> Option<Vec<QueueCount>> {
        None
    }

    /// Remarks for the user, each a sentence.
    fn remarks(&self) -> Vec<String>;

    /// Shell lines that apply the configuration; none if no command can.
    fn shell(&self, nic: &ConfiguredNic) -> Option<String>;
}
