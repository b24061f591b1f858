//! Back ends: ways to apply a configuration to a NIC.

use std::collections::HashMap;

use evenkeel_apply::Report;
use evenkeel_receive::{ConfiguredNic, FilterMatch, FlowTuple, QueueId};

use crate::error::SteerError;

/// Number of changes that one application made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    pub inserted: usize,
    /// Filters whose queue changed.
    pub replaced: usize,
    pub removed: usize,
    /// Entries of the indirection table that changed.
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
    /// The configuration to apply.
    pub nic: &'a ConfiguredNic,
    /// The known flows and their queues.
    pub flows: &'a [(FlowTuple, QueueId)],
    /// Classes that headers identify, and their queues. If a back end supports it, it sends new flows of a
    /// class to these queues until the next search.
    pub classes: &'a [(FilterMatch, Vec<QueueId>)],
}

/// Counters of a flow in a back end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets since the back end has counted the flow.
    pub packets: u64,
    /// Bytes of whole frames.
    pub bytes: u64,
}

/// Counters of a queue in a back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCount {
    /// Packets taken from the queue since the session began.
    pub packets: u64,
    /// Packets that were dropped because the queue was full, as far as known.
    pub lost: u64,
}

/// A NIC under management. Dropping it restores the NIC's settings, without a report.
pub trait Backend {
    /// Returns the name of the back end: `xdp`, `ntuple` or `rps`; `none` in a plan for a NIC of another host.
    fn name(&self) -> &'static str;

    /// Returns the NIC with its current configuration, including the filters of other programs. The search
    /// starts with it.
    ///
    /// # Errors
    /// Returns an error if the configuration cannot be read, or the NIC has more queues than its model.
    fn nic(&mut self) -> Result<ConfiguredNic, SteerError>;

    /// Returns the CPU of each queue; empty if unknown.
    fn processors(&self) -> &[u32];

    /// Returns whether the queue of each flow is known, because the NIC behaves as its model.
    fn knows_queues(&self) -> bool {
        true
    }

    /// Returns the queue of a flow that no policy places; `None` if it is not known.
    fn queue_without_policy(&self, _flow: &FlowTuple) -> Option<QueueId> {
        None
    }

    /// Applies a configuration with the fewest changes. Every flow has a queue at any time.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses. Changes made until then stay until the end of the session.
    fn apply(&mut self, found: &Placement<'_>) -> Result<Applied, SteerError>;

    /// Returns the reason to exit, if another program changed a setting on which the session depends.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot be queried.
    fn check(&mut self) -> Result<Option<String>, SteerError>;

    /// Returns the remarks that [`Self::check`] has added for the user since the last call.
    fn take_remarks(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the counters of all flows that the back end sees, including flows that the search has not placed.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot be queried.
    fn traffic(&mut self) -> Result<HashMap<FlowTuple, Traffic>, SteerError> {
        Ok(HashMap::new())
    }

    /// Restores all settings. Reports those that could not be restored.
    ///
    /// # Errors
    /// Returns an error if a journal cannot be removed.
    fn finish(self: Box<Self>) -> Result<Report, SteerError>;

    /// Waits until packets in transit are counted, so that the last figures are complete.
    fn settle(&mut self) {}

    /// Returns the counters of the queues; `None` if they are not counted.
    fn queue_counts(&self) -> Option<Vec<QueueCount>> {
        None
    }

    /// Returns remarks for the user, each a sentence.
    fn remarks(&self) -> Vec<String>;

    /// Returns shell commands that apply the configuration; `None` if no commands can.
    fn shell(&self, nic: &ConfiguredNic) -> Option<String>;
}
