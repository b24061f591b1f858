//! The search for a configuration of the NIC that a policy likes.
//!
//! Dragonet's greedy search (TRIOS 2015, section 3.2), with these differences:
//! - It begins with all flows where the NIC puts them by itself, not with none: a flow that lies well takes no filter.
//! - The *oracle*, which knows what a NIC can do for a flow, is derived from the model's tables: it works for every
//!   model, and offers only the first table with room whose filter would decide (`oracle.rs`).
//! - The policy names the queue to try: queues that differ by their load only are never tried one by one.
//! - Cost and flow map follow each change by what it moves.
//!
//! ```text
//! flows ─ classify ─> where the NIC puts them ─ those that lie wrong, then all, by rank ─> better queue? ─ filter ─┐
//!   ▲                                                                                                              │
//!   └── flow map moves what the filter touches, the policy's cost follows ◀────────────────────────────────────────┘
//! ```
//!
//! When filters run out, the search jumps: it starts again with a filter for each class that one can tell, then with
//! the indirection table of RSS fitted to the flows, and keeps the best (`coarse.rs`). A flow that lies where the policy
//! forbids it takes the filter of one that would not. What is still not met is accounted for ([`Search::unmet`]).
//!
//! Removal is lazy: the filter stays, and the next flow that needs one takes it over. [`Search::compact`] tidies up.

mod account;
mod coarse;
mod optimum;
mod oracle;
#[cfg(test)]
mod tests;

pub use account::Unmet;
pub use optimum::{Optimum, optimum};

use crate::flows::ObservedFlow;
use crate::policy::{Cost, Flow, Policy, ScriptError};
use crate::{Change, ConfiguredNic, FilterId, FlowIndex, FlowMap, FlowTuple, InsertError, QueueId, TableId};

/// Rounds over all flows at most, after which a placement is taken as it is.
const MOST_ROUNDS: usize = 8;

/// Why a search ended without a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SearchError {
    /// The policy's script failed. The search is of no use any more.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// The policy is for another number of queues than the NIC has.
    #[error("the policy is bound to {policy} queues, and the NIC has {nic}")]
    Queues {
        /// Of the policy.
        policy: u16,
        /// Of the NIC.
        nic: u16,
    },
}

/// Whom a filter serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Owner {
    /// Nobody of this search: the filter is left alone, and takes room.
    #[default]
    Foreign,
    /// A flow.
    Flow(FlowIndex),
    /// A flow that is gone: whoever needs a filter may have it.
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

/// What came of the attempt to move a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// It lies well.
    Content,
    /// It was moved.
    Moved,
    /// It should be moved, and no filter does it.
    Starved,
}

/// A NIC, its flows and a policy; the configuration follows the flows.
#[derive(Clone, Debug)]
pub struct Search {
    map: FlowMap,
    policy: Policy,
    placed: Vec<Option<Placed>>,
    /// Whom each filter serves, by table and location.
    owners: Vec<Vec<Owner>>,
    /// Filters that may be stale, by table: they are, unless they found a new owner.
    stale: Vec<Vec<FilterId>>,
    stale_count: usize,
    /// Tables that take filters for single flows, in the order in which they are tried.
    flow_tables: Vec<TableId>,
    /// Whether the map is recomputed from nothing at each step: to know what that costs.
    is_basic: bool,
}

impl Search {
    /// A NIC without flows. Filters that it has are left alone.
    ///
    /// What no filter steers goes to the queues of the policy's rest, if the NIC's indirection table can do that.
    ///
    /// # Errors
    /// When the policy is for another number of queues.
    pub fn new(nic: ConfiguredNic, policy: Policy) -> Result<Self, SearchError> {
        if policy.queues() != nic.queues() {
            return Err(SearchError::Queues { policy: policy.queues(), nic: nic.queues() });
        }
        let tables = nic.model().tables().len();
        // In the order in which a packet meets them: what comes first decides, and the small tables come first.
        let flow_tables = (0..).map(TableId).zip(nic.model().tables());
        let flow_tables =
            flow_tables.filter(|(_, table)| table.fields.take_flows()).map(|(id, _)| id).collect();
        let mut nic = nic;
        if let Some(base) = base_indirection(&nic, &policy) {
            // It has the right length and its queues are in reach: it was made for this NIC.
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
        })
    }

    /// The same search with the flow map recomputed from nothing for each flow that is looked at, as Dragonet's basic search does
    /// it (Table 1). The result is the same.
    #[must_use]
    pub fn basic(mut self) -> Self {
        self.is_basic = true;
        self
    }

    // ---- What there is -----------------------------------------------------------------------------------

    /// The NIC as it should be configured.
    #[must_use]
    pub fn nic(&self) -> &ConfiguredNic {
        self.map.nic()
    }

    /// Where the flows lie.
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

    /// A flow as the policy sees it.
    #[must_use]
    pub fn flow(&self, index: FlowIndex) -> Option<&Flow> {
        self.placed.get(index.index())?.as_ref().map(|placed| &placed.flow)
    }

    /// Filters of flows that are gone.
    #[must_use]
    pub fn stale(&self) -> usize {
        self.stale_count
    }

    /// Whether a filter is this search's: foreign ones were there before.
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

    /// Flows come, all at once: the whole search. A flow that is there already is taken as it is observed now.
    ///
    /// # Errors
    /// When the policy's script fails.
    pub fn solve(&mut self, flows: &[ObservedFlow]) -> Result<Vec<FlowIndex>, SearchError> {
        self.policy.begin();
        let indices: Vec<FlowIndex> = flows.iter().map(|flow| self.enter(flow)).collect();
        self.arrange()?;
        Ok(indices)
    }

    /// Flows come: each is put where it costs least, and the others stay where they are.
    ///
    /// When that ends with a flow where the policy forbids it, all flows are arranged anew.
    ///
    /// # Errors
    /// When the policy's script fails.
    pub fn add(&mut self, flows: &[ObservedFlow]) -> Result<Vec<FlowIndex>, SearchError> {
        self.policy.begin();
        let was_accepted = self.policy.cost().is_accepted();
        let indices: Vec<FlowIndex> = flows.iter().map(|flow| self.enter(flow)).collect();
        for index in &indices {
            if self.improve(*index) == Attempt::Starved {
                self.rob(*index);
            }
        }
        self.check()?;
        if was_accepted && !self.policy.cost().is_accepted() {
            self.arrange()?;
        }
        Ok(indices)
    }

    /// Flows go. Their filters stay until they are needed, and no other flow moves. Flows that are not there are
    /// passed over.
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

    /// Takes out the filters that serve nobody or change nothing, and arranges the flows anew where that makes the
    /// placement better.
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

    /// The place of a flow that is there, by its five-tuple.
    #[must_use]
    pub fn find(&self, tuple: &FlowTuple) -> Option<FlowIndex> {
        self.map.find(tuple)
    }

    /// A flow appears, where the NIC puts it.
    fn enter(&mut self, observed: &ObservedFlow) -> FlowIndex {
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
            // The flow was here before, and its filter still is.
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

    /// Flows in the order in which they are placed.
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

    /// Filters for flows, as far as they go: first for those that lie where they must not, then for those on queues
    /// that are too full, then for all. Whether one was missing.
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
        self.flow(index)
            .zip(self.map.queue(index))
            .is_some_and(|(flow, queue)| holds(&self.policy, flow, queue))
    }

    /// Rounds over the flows, until none moves. Whether a filter was missing in the last one.
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

    /// Moves a flow to a better queue, if there is one and a filter for it.
    fn improve(&mut self, index: FlowIndex) -> Attempt {
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

    /// Changes the NIC, and has the policy follow.
    fn apply(&mut self, change: Change) -> Result<FilterId, InsertError> {
        let id = self.map.apply(change)?;
        self.follow();
        Ok(id)
    }

    /// The policy follows what the last change has moved.
    fn follow(&mut self) {
        for moved in self.map.moves() {
            if let Some(Some(placed)) = self.placed.get(moved.flow.index()) {
                self.policy.shift(&placed.flow, moved.from, moved.to);
            }
        }
    }

    /// Recomputes the flow map from nothing; whether it is the one that was kept up.
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

/// The indirection table with the queues of the rest in turn, unless it is the one that the NIC has.
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
