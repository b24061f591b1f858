//! The search for a configuration of the NIC with a low policy cost.
//!
//! Dragonet's greedy search (TRIOS 2015, section 3.2), with these differences:
//! - It begins with all flows on the queues of the NIC's default steering: a well-placed flow needs no
//!   filter.
//! - The *oracle*, which returns the NIC's options for a flow, is derived from the model's tables. It works
//!   for every model, and offers only the first table with room whose filter would decide (`oracle.rs`).
//! - The policy names the queue to try: queues that differ only by load are never tried one by one.
//! - Cost and flow map are updated incrementally.
//!
//! ```text
//! flows ─ classify ─> where the NIC puts them ─ misplaced ones, then all, by rank ─> better queue? ─ filter ─┐
//!   ▲                                                                                                        │
//!   └── flow map moves the affected flows, the policy's cost follows ◀───────────────────────────────────────┘
//! ```
//!
//! When filters run out, the search jumps: it starts again with a filter for each class that one can express, then with the
//! indirection table of RSS fitted to the flows, and keeps the best (`coarse.rs`). A flow on a forbidden queue takes the filter
//! of one that would not be on a forbidden queue without it. Unmet requirements are reported ([`Search::unmet`]).
//!
//! Removal is lazy: a filter stays, and the next flow that needs one reuses it. [`Search::compact`] removes unused filters.

mod account;
mod coarse;
mod optimum;
mod oracle;
mod progress;
#[cfg(test)]
mod tests;

pub use account::{Unmet, Verdict};
pub use optimum::{Optimum, optimum};
pub use progress::Progress;

use std::sync::Arc;

use crate::flows::ObservedFlow;
use crate::policy::{Cost, Flow, Policy, ScriptError};
use crate::{Change, ConfiguredNic, FilterId, FlowIndex, FlowMap, FlowTuple, InsertError, QueueId, TableId};

/// Limit of passes over all flows.
const MOST_ROUNDS: usize = 8;

/// Reasons why a search has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SearchError {
    /// The policy's script failed; the search is then useless.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// Policy and NIC have different numbers of queues.
    #[error("the policy is bound to {policy} queues, and the NIC has {nic}")]
    Queues {
        /// Of the policy.
        policy: u16,
        /// Of the NIC.
        nic: u16,
    },
}

/// Owner of a filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Owner {
    /// Another program: the filter stays and occupies its row.
    #[default]
    Foreign,
    /// A flow.
    Flow(FlowIndex),
    /// A removed flow: the filter can be reused.
    Stale,
    /// A class.
    Class,
}

/// A flow and its own filter.
#[derive(Clone, Copy, Debug)]
struct Placed {
    flow: Flow,
    filter: Option<FilterId>,
}

/// Result of an attempt to move a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// Well placed.
    Content,
    /// It was moved.
    Moved,
    /// Should be moved, but no filter can.
    Starved,
}

/// A NIC, its flows and a policy; the configuration follows the flows.
#[derive(Clone, Debug)]
pub struct Search {
    map: FlowMap,
    policy: Policy,
    placed: Vec<Option<Placed>>,
    /// Owner of each filter, by table and location.
    owners: Vec<Vec<Owner>>,
    /// Filters that are stale, unless they found a new owner since, by table.
    stale: Vec<Vec<FilterId>>,
    stale_count: usize,
    /// Tables that take filters for single flows, in the order of trial.
    flow_tables: Vec<TableId>,
    /// Recompute the map at each step, to measure its cost.
    is_basic: bool,
    progress: Arc<Progress>,
}

/// Returns an upper bound of the memory of a search, bytes: its flows with their list, and filters for single
/// flows. The flows count twice, as the search keeps its best placement while it tries another start. From
/// the sizes of the types on x86_64; of the 495 MB for 900,000 flows, `balance` takes 307 MB and `isolation`
/// 463 MB (i82599).
#[must_use]
pub fn memory(flows: usize, filters: usize) -> u64 {
    const FLOW: u64 = 540;
    const FILTER: u64 = 220;
    FLOW * flows as u64 + FILTER * filters as u64
}

impl Search {
    /// A NIC without flows. Its existing filters stay.
    ///
    /// Packets without a filter go to the queues of the policy's rest, if the NIC's indirection table allows
    /// it.
    ///
    /// # Errors
    /// When policy and NIC have different numbers of queues.
    pub fn new(nic: ConfiguredNic, policy: Policy) -> Result<Self, SearchError> {
        if policy.queues() != nic.queues() {
            return Err(SearchError::Queues { policy: policy.queues(), nic: nic.queues() });
        }
        let tables = nic.model().tables().len();
        // In the order in which a packet passes them: earlier tables decide, and small tables come first.
        let flow_tables = (0..).map(TableId).zip(nic.model().tables());
        let flow_tables =
            flow_tables.filter(|(_, table)| table.fields.take_flows()).map(|(id, _)| id).collect();
        let mut nic = nic;
        if let Some(base) = base_indirection(&nic, &policy) {
            // Cannot fail: it was made for this NIC.
            let _ = nic.set_indirection(base);
        }
        Ok(Self {
            map: FlowMap::new(nic),
            policy,
            placed: Vec::new(),
            owners: vec![Vec::new(); tables],
            stale: vec![Vec::new(); tables],
            stale_count: 0,
            flow_tables,
            is_basic: false,
            progress: Arc::default(),
        })
    }

    /// The same search, but it recomputes the flow map for each examined flow, as Dragonet's basic search
    /// (Table 1). The result is the same.
    #[must_use]
    pub fn basic(mut self) -> Self {
        self.is_basic = true;
        self
    }

    // ---- What there is -----------------------------------------------------------------------------------

    /// Returns the wanted configuration of the NIC.
    #[must_use]
    pub fn nic(&self) -> &ConfiguredNic {
        self.map.nic()
    }

    /// The placement of the flows.
    #[must_use]
    pub fn map(&self) -> &FlowMap {
        &self.map
    }

    /// The policy, with the placement.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The cost of the placement.
    #[must_use]
    pub fn cost(&self) -> Cost {
        self.policy.cost()
    }

    /// Returns a flow from the policy's view.
    #[must_use]
    pub fn flow(&self, index: FlowIndex) -> Option<&Flow> {
        self.placed.get(index.index())?.as_ref().map(|placed| &placed.flow)
    }

    /// Filters of removed flows.
    #[must_use]
    pub fn stale(&self) -> usize {
        self.stale_count
    }

    /// The progress of [`Self::solve`].
    #[must_use]
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// Whether this search installed a filter.
    #[must_use]
    pub fn owns(&self, filter: FilterId) -> bool {
        self.owner(filter) != Owner::Foreign
    }

    fn owner(&self, id: FilterId) -> Owner {
        self.owners[id.table.index()].get(id.location as usize).copied().unwrap_or_default()
    }

    fn set_owner(&mut self, id: FilterId, owner: Owner) {
        let owners = &mut self.owners[id.table.index()];
        if owners.len() <= id.location as usize {
            owners.resize(id.location as usize + 1, Owner::Foreign);
        }
        owners[id.location as usize] = owner;
    }

    // ---- Flows come and go ---------------------------------------------------------------------------------

    /// Adds flows with a complete search. Existing flows are updated.
    ///
    /// # Errors
    /// When the policy's script fails.
    pub fn solve(&mut self, flows: &[ObservedFlow]) -> Result<Vec<FlowIndex>, SearchError> {
        self.policy.begin();
        self.progress.begin(self.map.len() + flows.len());
        let indices: Vec<FlowIndex> = flows.iter().map(|flow| self.enter(flow)).collect();
        self.arrange()?;
        Ok(indices)
    }

    /// Adds flows: each gets the queue of least cost; the others do not move.
    ///
    /// If a flow ends on a forbidden queue, all flows are arranged again.
    ///
    /// # Errors
    /// When the policy's script fails.
    pub fn add(&mut self, flows: &[ObservedFlow]) -> Result<Vec<FlowIndex>, SearchError> {
        self.policy.begin();
        let was_accepted = self.policy.cost().is_accepted();
        let indices: Vec<FlowIndex> = flows.iter().map(|flow| self.enter(flow)).collect();
        let mut donors = None;
        for index in &indices {
            if self.improve(*index) == Attempt::Starved {
                self.rob(*index, &mut donors);
            } else if let Some(donors) = &mut donors {
                self.follow_donor(*index, donors);
            }
        }
        self.check()?;
        if was_accepted && !self.policy.cost().is_accepted() {
            self.arrange()?;
        }
        Ok(indices)
    }

    /// Removes flows. Their filters stay until needed, and no other flow moves. Unknown flows are ignored.
    pub fn remove(&mut self, flows: &[FlowIndex]) {
        for index in flows {
            let Some(placed) = self.placed.get_mut(index.index()).and_then(Option::take) else { continue };
            if let Some(queue) = self.map.queue(*index) {
                self.policy.remove(&placed.flow, queue);
            }
            self.map.remove_flow(*index);
            if let Some(filter) = placed.filter {
                self.set_owner(filter, Owner::Stale);
                self.stale[filter.table.index()].push(filter);
                self.stale_count += 1;
            }
        }
    }

    /// Removes filters without an owner or effect, and arranges the flows again if this improves the placement.
    ///
    /// # Errors
    /// When the policy's script fails.
    pub fn compact(&mut self) -> Result<(), SearchError> {
        self.policy.begin();
        for table in 0..self.stale.len() {
            while let Some(id) = self.pop_stale(table) {
                self.take_out(id);
            }
        }
        for index in self.indices() {
            self.drop_needless(index);
        }
        let order = self.ranked(self.indices());
        self.rounds(&order);
        self.check()
    }

    /// The index of an existing flow, by its five-tuple.
    #[must_use]
    pub fn find(&self, tuple: &FlowTuple) -> Option<FlowIndex> {
        self.map.find(tuple)
    }

    /// Adds a flow where the NIC puts it.
    fn enter(&mut self, observed: &ObservedFlow) -> FlowIndex {
        self.progress.step();
        let flow = self.policy.classify(observed);
        let known = self.map.find(&observed.tuple);
        let index = known.unwrap_or_else(|| self.map.add_flow(observed.tuple));
        let queue = self.map.queue(index).unwrap_or_default();
        if self.placed.len() <= index.index() {
            self.placed.resize(index.index() + 1, None);
        }
        let mut filter = None;
        if let Some(before) = self.placed[index.index()].take() {
            self.policy.remove(&before.flow, queue);
            filter = before.filter;
        } else if self.stale_count > 0
            && let Some(id) = self.map.deciding_filter(index)
            && self.owner(id) == Owner::Stale
        {
            // The flow was known before, and its filter still exists.
            self.stale_count -= 1;
            self.set_owner(id, Owner::Flow(index));
            filter = Some(id);
        }
        self.policy.place(&flow, queue);
        self.placed[index.index()] = Some(Placed { flow, filter });
        index
    }

    fn indices(&self) -> Vec<FlowIndex> {
        self.map.flows().map(|(index, _, _)| index).collect()
    }

    /// Flows in the order of placement.
    fn ranked(&self, mut order: Vec<FlowIndex>) -> Vec<FlowIndex> {
        order.sort_by_cached_key(|index| self.flow(*index).map(|flow| self.policy.rank(flow)));
        order
    }

    // ---- The search ----------------------------------------------------------------------------------------

    /// Arranges all flows.
    fn arrange(&mut self) -> Result<(), SearchError> {
        let order = self.ranked(self.indices());
        let starved = self.settle_classes(&order);
        if starved {
            self.jump(&order);
        }
        self.check()
    }

    /// Filters for flows, while available: first for those on forbidden queues, then for those on overloaded
    /// queues, then for all. Returns whether one was missing.
    fn greedy(&mut self, order: &[FlowIndex]) -> bool {
        let mut starved = false;
        for index in order {
            if self.lies(*index, |policy, flow, queue| !policy.allows(flow, queue)) {
                starved |= self.improve(*index) == Attempt::Starved;
            }
        }
        for index in order {
            if self.lies(*index, Policy::is_overloaded) {
                self.improve(*index);
            }
        }
        self.rounds(order) || starved
    }

    /// Whether something holds of a flow and its queue.
    fn lies(&self, index: FlowIndex, holds: impl Fn(&Policy, &Flow, QueueId) -> bool) -> bool {
        self.progress.step();
        self.flow(index)
            .zip(self.map.queue(index))
            .is_some_and(|(flow, queue)| holds(&self.policy, flow, queue))
    }

    /// Passes over the flows until none moves. Returns whether a filter was missing in the last one.
    fn rounds(&mut self, order: &[FlowIndex]) -> bool {
        let mut starved = false;
        for _ in 0..MOST_ROUNDS {
            let mut moved = false;
            starved = false;
            for index in order {
                match self.improve(*index) {
                    Attempt::Content => {}
                    Attempt::Moved => moved = true,
                    Attempt::Starved => starved = true,
                }
            }
            if !moved {
                break;
            }
        }
        starved
    }

    /// Moves a flow to a better queue, if there is one with a filter for it.
    fn improve(&mut self, index: FlowIndex) -> Attempt {
        self.progress.step();
        if self.is_basic {
            let is_consistent = std::hint::black_box(self.is_consistent());
            debug_assert!(is_consistent, "the flow map is the one computed from nothing");
        }
        let Some((flow, from)) = self.flow(index).zip(self.map.queue(index)) else { return Attempt::Content };
        match self.policy.better_queue(flow, from) {
            None => Attempt::Content,
            Some((to, _)) if self.steer(index, to) => Attempt::Moved,
            Some(_) => Attempt::Starved,
        }
    }

    /// Changes the NIC, and updates the policy.
    fn apply(&mut self, change: Change) -> Result<FilterId, InsertError> {
        let id = self.map.apply(change)?;
        self.follow();
        Ok(id)
    }

    /// Updates the policy with the moves of the last change.
    fn follow(&mut self) {
        for moved in self.map.moves() {
            if let Some(Some(placed)) = self.placed.get(moved.flow.index()) {
                self.policy.shift(&placed.flow, moved.from, moved.to);
            }
        }
    }

    /// Recomputes the flow map; returns whether it equals the incremental one.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let mut fresh = FlowMap::new(self.map.nic().clone());
        let mut same = true;
        for (_, tuple, queue) in self.map.flows() {
            let index = fresh.add_flow(*tuple);
            same &= fresh.queue(index) == Some(queue);
        }
        same
    }

    fn check(&mut self) -> Result<(), SearchError> {
        self.policy.fault().map_or(Ok(()), |fault| Err(fault.into()))
    }
}

/// Returns the indirection table with the queues of the rest round robin, unless the NIC has it already.
fn base_indirection(nic: &ConfiguredNic, policy: &Policy) -> Option<Vec<QueueId>> {
    if policy.default_queues().len() == usize::from(nic.queues()) {
        return None;
    }
    let reached: Vec<QueueId> =
        policy.default_queues().iter().copied().filter(|queue| queue.0 < nic.rss_queues()).collect();
    if reached.is_empty() {
        return None;
    }
    let base: Vec<QueueId> = reached.into_iter().cycle().take(nic.indirection().len()).collect();
    (base != nic.indirection()).then_some(base)
}
