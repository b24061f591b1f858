//! The search for a configuration of the NIC with a low policy cost.
//!
//! Dragonet's greedy search (TRIOS 2015, section 3.2), with these differences:
//! - It starts with all flows on the queues of the NIC's default steering. A well-placed flow needs no
//!   filter.
//! - The *oracle*, which returns the NIC's options for a flow, is derived from the model's tables. It works
//!   for every model. It offers only the first table that has room and whose filter would decide
//!   (`oracle.rs`).
//! - The policy names the queue to try. Queues that differ only by load are not tried one by one.
//! - Cost and flow map are updated incrementally.
//!
//! ```text
//! flows ─ classify ─> where the NIC puts them ─ misplaced ones, then all, by rank ─> better queue? ─ filter ─┐
//!   ▲                                                                                                        │
//!   └── flow map moves the affected flows, the policy's cost follows ◀───────────────────────────────────────┘
//! ```
//!
//! Before the filters for single flows, the search tries filters for classes. When filters run out, the
//! search *jumps*: it starts again with the larger of two mutually exclusive tables, then with the RSS
//! indirection table fitted to the flows. It keeps the best result (`coarse.rs`). A flow on a forbidden queue
//! can take the filter of a flow that would be on an allowed queue without it. Unmet requirements are
//! reported ([`Search::unmet`]).
//!
//! Filters are removed lazily: a filter stays, and the next flow that needs one reuses it.
//! [`Search::compact`] removes unused filters.

mod coarse;
mod optimum;
mod oracle;
mod progress;
#[cfg(test)]
mod tests;
mod unmet;

pub use optimum::{Optimum, optimum};
pub use progress::Progress;
pub use unmet::{Unmet, Verdict};

use std::sync::Arc;

use evenkeel_model::text::counted;

use crate::flows::ObservedFlow;
use crate::policy::{Cost, Flow, Policy, ScriptError};
use crate::{Change, ConfiguredNic, FilterId, FlowIndex, FlowMap, FlowTuple, InsertError, QueueId, TableId};

/// Maximum number of passes over all flows; bounds the time of a search.
const MOST_ROUNDS: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SearchError {
    /// The policy's script failed. The placement is unusable.
    #[error(transparent)]
    Script(#[from] ScriptError),
    #[error("the policy is bound to {policy} queues, but the NIC has {nic}; bind it to {nic} queues")]
    Queues { policy: u16, nic: u16 },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Owner {
    /// Another program owns the filter. The filter stays and occupies its row.
    #[default]
    Foreign,
    Flow(FlowIndex),
    /// The flow of the filter was removed. Another flow can reuse the filter.
    Stale,
    Class,
}

#[derive(Clone, Copy, Debug)]
struct Placed {
    flow: Flow,
    filter: Option<FilterId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// No queue is better.
    Content,
    Moved,
    /// A better queue exists, but no filter can steer the flow to it.
    Starved,
}

/// A NIC, its flows and a policy. The search adapts the NIC's configuration to the flows.
#[derive(Clone, Debug)]
pub struct Search {
    map: FlowMap,
    policy: Policy,
    placed: Vec<Option<Placed>>,
    owners: Vec<Vec<Owner>>,
    /// Filters whose flows were removed, by table. Some of them may already belong to another flow.
    stale: Vec<Vec<FilterId>>,
    stale_count: usize,
    /// Tables that accept filters for single flows, in the order in which the search tries them.
    flow_tables: Vec<TableId>,
    /// Whether to recompute the flow map at each step, to measure the cost of recomputation.
    is_basic: bool,
    /// False from the removal of a flow until the next search over all flows.
    is_arranged: bool,
    progress: Arc<Progress>,
}

/// Returns an upper bound of the memory of a search in bytes: flows, their list, and filters for single
/// flows. Flows count twice, because the search keeps its best placement while it tries another start.
///
/// The constants come from the sizes of the types on x86_64. For 900,000 flows on an i82599, the bound is 495
/// MB. With 128 queues, `balance` uses 475 MB.
#[must_use]
pub fn memory(flows: usize, filters: usize) -> u64 {
    const FLOW: u64 = 540;
    const FILTER: u64 = 220;
    FLOW * flows as u64 + FILTER * filters as u64
}

impl Search {
    /// Creates a search without flows. Existing filters of the NIC stay.
    ///
    /// If the NIC's indirection table allows it, packets that match no filter go to the queues of the
    /// policy's *rest*, the flows without a class.
    pub fn new(nic: ConfiguredNic, policy: Policy) -> Result<Self, SearchError> {
        if policy.queues() != nic.queues() {
            return Err(SearchError::Queues { policy: policy.queues(), nic: nic.queues() });
        }
        let tables = nic.model().tables().len();
        // In the order in which a packet passes the tables: the first table that matches decides, and
        // small tables come first.
        let flow_tables = (0..).map(TableId).zip(nic.model().tables());
        let flow_tables =
            flow_tables.filter(|(_, table)| table.fields.take_flows()).map(|(id, _)| id).collect();
        let mut nic = nic;
        if let Some(base) = base_indirection(&nic, &policy) {
            // Cannot fail: the table was computed for this NIC.
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
            is_arranged: true,
            progress: Arc::default(),
        })
    }

    /// Makes the search recompute the flow map for each flow that it examines, like Dragonet's basic
    /// search (Table 1). The result does not change.
    #[must_use]
    pub fn basic(mut self) -> Self {
        self.is_basic = true;
        self
    }

    // ---- Accessors -----------------------------------------------------------------------------------------

    #[must_use]
    pub fn nic(&self) -> &ConfiguredNic {
        self.map.nic()
    }

    #[must_use]
    pub fn map(&self) -> &FlowMap {
        &self.map
    }

    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    #[must_use]
    pub fn cost(&self) -> Cost {
        self.policy.cost()
    }

    /// Returns a flow as cost functions see it.
    #[must_use]
    pub fn flow(&self, index: FlowIndex) -> Option<&Flow> {
        self.placed.get(index.index())?.as_ref().map(|placed| &placed.flow)
    }

    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = self.policy.remarks(self.map.flows().filter_map(|(index, _, _)| self.flow(index)));
        let unsure = self.unsure();
        if unsure > 0 {
            remarks.push(format!(
                "the class of {} is unknown, because a class needs the process or cgroup: to read the processes of \
                 other users, run the command as root (CAP_SYS_PTRACE); a list of flows needs the columns process \
                 and cgroup",
                counted(unsure, "flow")
            ));
        }
        remarks
    }

    #[must_use]
    pub fn stale(&self) -> usize {
        self.stale_count
    }

    #[must_use]
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

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

    // ---- Adding and removing flows -------------------------------------------------------------------------

    /// Adds flows with a complete search. Updates flows that exist already.
    pub fn solve(&mut self, flows: &[ObservedFlow]) -> Result<Vec<FlowIndex>, SearchError> {
        self.policy.begin();
        self.progress.begin(self.map.len() + flows.len());
        let indices: Vec<FlowIndex> = flows.iter().map(|flow| self.enter(flow)).collect();
        self.arrange()?;
        Ok(indices)
    }

    /// Adds flows, and moves each new flow to a better queue if a filter can steer it there. A new flow on a
    /// forbidden queue may take the filter of another flow. If the placement was accepted before and no
    /// longer is, arranges all flows again.
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

    /// Removes flows, and moves no other flow. Filters of removed flows stay until another flow needs
    /// them. Ignores unknown flows.
    pub fn remove(&mut self, flows: &[FlowIndex]) {
        self.policy.begin();
        for index in flows {
            let Some(placed) = self.placed.get_mut(index.index()).and_then(Option::take) else { continue };
            if let Some(queue) = self.map.queue(*index) {
                self.policy.remove(&placed.flow, queue);
            }
            self.map.remove_flow(*index);
            self.is_arranged = false;
            if let Some(filter) = placed.filter {
                self.set_owner(filter, Owner::Stale);
                self.stale[filter.table.index()].push(filter);
                self.stale_count += 1;
            }
        }
    }

    /// Removes stale filters, and filters without effect. Then moves flows to better queues.
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
        self.is_arranged = true;
        self.check()
    }

    /// Returns false from the removal of a flow until the next search over all flows. During this time,
    /// [`Self::unmet`] does not know the obstacles.
    #[must_use]
    pub fn is_arranged(&self) -> bool {
        self.is_arranged
    }

    #[must_use]
    pub fn find(&self, tuple: &FlowTuple) -> Option<FlowIndex> {
        self.map.find(tuple)
    }

    /// Adds or updates a flow, on the queue that the NIC selects.
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
            // A stale filter already decides for the flow.
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

    fn ranked(&self, mut order: Vec<FlowIndex>) -> Vec<FlowIndex> {
        order.sort_by_cached_key(|index| self.flow(*index).map(|flow| self.policy.rank(flow)));
        order
    }

    // ---- The search ----------------------------------------------------------------------------------------

    fn arrange(&mut self) -> Result<(), SearchError> {
        let order = self.ranked(self.indices());
        let starved = self.settle_classes(&order);
        if starved {
            self.jump(&order);
        }
        self.is_arranged = true;
        self.check()
    }

    /// Installs filters for flows while filters are available: first for flows on forbidden queues, then for
    /// flows on overloaded queues, then for all flows. Returns whether a filter was missing for a flow on a
    /// forbidden queue, or in the last pass over all flows.
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

    fn lies(&self, index: FlowIndex, holds: impl Fn(&Policy, &Flow, QueueId) -> bool) -> bool {
        self.progress.step();
        self.flow(index)
            .zip(self.map.queue(index))
            .is_some_and(|(flow, queue)| holds(&self.policy, flow, queue))
    }

    /// Repeats passes over the flows until no flow moves, at most [`MOST_ROUNDS`] times. Returns whether a
    /// filter was missing in the last pass.
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

    /// Changes the configuration of the NIC, and updates the policy's placement.
    fn apply(&mut self, change: Change) -> Result<FilterId, InsertError> {
        let id = self.map.apply(change)?;
        self.follow();
        Ok(id)
    }

    /// Updates the policy with the flows that the last change moved.
    fn follow(&mut self) {
        for moved in self.map.moves() {
            if let Some(Some(placed)) = self.placed.get(moved.flow.index()) {
                self.policy.shift(&placed.flow, moved.from, moved.to);
            }
        }
    }

    /// Returns whether the incremental flow map equals a recomputed one.
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
        // Compute the script's cost here: without flows, no step of the search has computed it.
        let _ = self.policy.cost();
        self.policy.fault().map_or(Ok(()), |fault| Err(fault.into()))
    }
}

/// Returns the indirection table with the queues of the rest round robin. Returns `None` if the NIC already
/// has this table, if the rest may use all queues, or if RSS reaches none of its queues.
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
