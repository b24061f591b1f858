//! Back ends: ways to apply a configuration to a NIC.

use std::collections::HashMap;

use evenkeel_apply::Report;
use evenkeel_receive::{ConfiguredNic, FilterMatch, FlowTuple, QueueId};

use crate::error::SteerError;

/// Numbers of the changes that one call of [`Backend::apply`] made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    pub inserted: usize,
    /// Filters whose queue changed.
    pub replaced: usize,
    pub removed: usize,
    /// Entries of the indirection table that changed, or RPS masks.
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
    pub nic: &'a ConfiguredNic,
    pub flows: &'a [(FlowTuple, QueueId)],
    /// Classes that are identified by headers, and their queues. A back end that can steer by classes sends
    /// new flows of a class to these queues until the next search.
    pub classes: &'a [(FilterMatch, Vec<QueueId>)],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets since the back end started to count the flow.
    pub packets: u64,
    /// Bytes of whole frames.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCount {
    /// Packets taken from the queue since the session began.
    pub packets: u64,
    /// Packets dropped because the queue was full, as far as the back end knows.
    pub lost: u64,
}

/// A NIC under management. Dropping the back end restores the NIC's settings without a report.
pub trait Backend {
    /// Returns the name of the back end: `xdp`, `ntuple` or `rps`; `none` in a plan for a NIC of another
    /// host.
    fn name(&self) -> &'static str;

    /// Returns the NIC with its current configuration, including the filters of other programs. The
    /// search starts with this configuration.
    ///
    /// # Errors
    /// Returns an error if the configuration cannot be read, or the NIC has more queues than its model.
    fn nic(&mut self) -> Result<ConfiguredNic, SteerError>;

    /// Returns the CPU of each queue; empty if unknown.
    fn processors(&self) -> &[u32];

    /// Returns whether the queue of each flow is known. This requires that the NIC behaves like its model.
    fn knows_queues(&self) -> bool {
        true
    }

    /// Returns the queue of a flow that no policy places; `None` if the queue is unknown.
    fn queue_without_policy(&self, _flow: &FlowTuple) -> Option<QueueId> {
        None
    }

    /// Applies a configuration in as few changes as possible. Every flow has a queue at any time.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses. The changes made before the error stay until the end of the
    /// session.
    fn apply(&mut self, found: &Placement<'_>) -> Result<Applied, SteerError>;

    /// Returns the reason to exit, if another program changed a setting on which the session depends.
    fn check(&mut self) -> Result<Option<String>, SteerError>;

    /// Returns the remarks for the user that [`Self::check`] has added since the last call.
    fn take_remarks(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the counters of all flows that the back end sees, including flows that the search has
    /// not placed.
    fn traffic(&mut self) -> Result<HashMap<FlowTuple, Traffic>, SteerError> {
        Ok(HashMap::new())
    }

    /// Restores all settings. Reports the settings that could not be restored.
    ///
    /// # Errors
    /// Returns an error if a journal cannot be removed.
    fn finish(self: Box<Self>) -> Result<Report, SteerError>;

    /// Waits until the back end has counted the packets in transit, so that the last figures are
    /// complete.
    fn settle(&mut self) {}

    /// Returns the counters of the queues; `None` if the back end does not count them.
    fn queue_counts(&self) -> Option<Vec<QueueCount>> {
        None
    }

    /// Returns remarks for the user, each a sentence.
    fn remarks(&self) -> Vec<String>;

    /// Returns shell commands that apply the configuration; `None` if no commands can.
    fn shell(&self, nic: &ConfiguredNic) -> Option<String>;
}
