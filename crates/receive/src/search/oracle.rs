//! Steers single flows: finds a table and a filter that send a flow to a queue.

use std::collections::BTreeSet;

use super::{Owner, Search};
use crate::{Change, Filter, FilterId, FilterMatch, FlowIndex, Precedence, QueueId, TableId};

impl Search {
    /// Moves a flow to a queue: removes its filter if the flow is then on the queue; otherwise uses its
    /// present filter, a stale filter, or a new one. Returns whether the flow is on the queue.
    pub(super) fn steer(&mut self, index: FlowIndex, to: QueueId) -> bool {
        let Some(Some(placed)) = self.placed.get(index.index()) else { return false };
        let (tuple, own) = (placed.flow.tuple, placed.filter);
        if let Some(id) = own {
            if self.map.nic().unfiltered_queue_of(&tuple) == to && self.release(index, to) {
                return true;
            }
            let Some(filter) = self.map.nic().filter(id).copied() else { return false };
            return self.apply(Change::Replace(id, Filter { queue: to, ..filter })).is_ok();
        }
        let matches = FilterMatch::exact(&tuple);
        (0..self.flow_tables.len()).any(|place| {
            let table = self.flow_tables[place];
            self.map.nic().supports(table, &matches) && self.install(index, table, matches, to)
        })
    }

    /// Installs a filter for a flow in a table. Returns whether the flow is now on the queue.
    fn install(&mut self, index: FlowIndex, table: TableId, matches: FilterMatch, to: QueueId) -> bool {
        let installed = match self.pop_stale(table.index()) {
            Some(stale) => {
                let filter = Filter::new(table, self.priority(table, stale.location), matches, to);
                let replaced = self.apply(Change::Replace(stale, filter));
                if replaced.is_err() {
                    self.push_stale(stale);
                }
                replaced
            }
            None => {
                let Some(location) = self.map.nic().free_location(table) else { return false };
                let filter = Filter::new(table, self.priority(table, location), matches, to);
                self.apply(Change::Insert(filter))
            }
        };
        let Ok(id) = installed else { return false };
        if self.map.queue(index) != Some(to) {
            // The filter has no effect: another filter takes precedence.
            self.take_out(id);
            return false;
        }
        self.set_owner(id, Owner::Flow(index));
        if let Some(Some(placed)) = self.placed.get_mut(index.index()) {
            placed.filter = Some(id);
        }
        true
    }

    /// Returns the priority of a filter for a single flow: the location, if the location decides in the
    /// table; otherwise the highest priority, because class filters have the lowest.
    fn priority(&self, table: TableId, location: u32) -> u32 {
        let table = &self.map.nic().model().tables()[table.index()];
        match table.precedence {
            Precedence::Location => location,
            _ => *table.priorities().end(),
        }
    }

    pub(super) fn pop_stale(&mut self, table: usize) -> Option<FilterId> {
        while let Some(id) = self.stale[table].pop() {
            if self.owner(id) == Owner::Stale {
                self.stale_count -= 1;
                self.set_owner(id, Owner::Foreign);
                return Some(id);
            }
        }
        None
    }

    fn push_stale(&mut self, id: FilterId) {
        self.set_owner(id, Owner::Stale);
        self.stale[id.table.index()].push(id);
        self.stale_count += 1;
    }

    pub(super) fn take_out(&mut self, id: FilterId) {
        self.set_owner(id, Owner::Foreign);
        // Cannot fail: this search installed the filter.
        let _ = self.apply(Change::Remove(id));
    }

    /// Removes a flow's filter if the flow then moves to `to`. Otherwise flow and filter stay. Returns
    /// whether the flow is on `to` without the filter.
    fn release(&mut self, index: FlowIndex, to: QueueId) -> bool {
        let Some(Some(placed)) = self.placed.get_mut(index.index()) else { return false };
        let Some(id) = placed.filter.take() else { return false };
        let Some(filter) = self.map.nic().filter(id).copied() else { return false };
        self.take_out(id);
        if self.map.queue(index) == Some(to) {
            return true;
        }
        if let Ok(id) = self.apply(Change::Insert(filter)) {
            self.set_owner(id, Owner::Flow(index));
            if let Some(Some(placed)) = self.placed.get_mut(index.index()) {
                placed.filter = Some(id);
            }
        }
        false
    }

    pub(super) fn drop_needless(&mut self, index: FlowIndex) {
        let Some(tuple) = self.flow(index).map(|flow| flow.tuple) else { return };
        let Some(queue) = self.map.queue(index) else { return };
        if self.map.nic().unfiltered_queue_of(&tuple) == queue {
            self.release(index, queue);
        }
    }

    /// Gives a flow on a forbidden queue the filter of another flow that would be on an allowed queue
    /// without its filter, if the cost then falls. `donors` holds the flows that can give up their filter;
    /// `None` before the first use.
    pub(super) fn rob(&mut self, index: FlowIndex, donors: &mut Option<Donors>) {
        self.progress.step();
        let Some((flow, from)) = self.flow(index).copied().zip(self.map.queue(index)) else { return };
        if self.policy.allows(&flow, from) {
            return;
        }
        let Some((to, _)) = self.policy.better_queue(&flow, from) else { return };
        let matches = FilterMatch::exact(&flow.tuple);
        let donors = donors.get_or_insert_with(|| self.donors());
        let tables = (0..self.owners.len()).map(|table| TableId(table as u16));
        let mut tables: Vec<TableId> =
            tables.filter(|table| self.map.nic().supports(*table, &matches)).collect();
        let mut next = FlowIndex(0);
        while let Some(other) = donors.first(next, &tables) {
            next = FlowIndex(other.0 + 1);
            self.progress.step();
            let before = self.policy.cost();
            let Some(Some(placed)) = self.placed.get_mut(other.index()) else { continue };
            let Some(id) = placed.filter.take() else { continue };
            let Some(robbed) = self.map.nic().filter(id).copied() else { continue };
            let replaced = self.apply(Change::Replace(id, Filter { matches, queue: to, ..robbed }));
            if replaced.is_ok() && self.policy.cost() < before {
                self.set_owner(id, Owner::Flow(index));
                if let Some(Some(placed)) = self.placed.get_mut(index.index()) {
                    placed.filter = Some(id);
                }
                self.follow_donor(other, donors);
                self.follow_donor(index, donors);
                return;
            }
            if replaced.is_ok() {
                let _ = self.apply(Change::Replace(id, robbed));
            } else {
                // The table refuses the filter at any location.
                tables.retain(|table| *table != id.table);
            }
            if let Some(Some(placed)) = self.placed.get_mut(other.index()) {
                placed.filter = Some(id);
            }
        }
    }

    fn donors(&self) -> Donors {
        let mut donors = Donors(vec![BTreeSet::new(); self.owners.len()]);
        for index in self.indices() {
            if let Some(table) = self.spare(index) {
                donors.0[table.index()].insert(index);
            }
        }
        donors
    }

    /// Updates the donors after a flow got or lost a filter.
    pub(super) fn follow_donor(&self, index: FlowIndex, donors: &mut Donors) {
        donors.0.iter_mut().for_each(|flows| _ = flows.remove(&index));
        if let Some(table) = self.spare(index) {
            donors.0[table.index()].insert(index);
        }
    }

    /// Returns the table of a flow's filter, if the flow would be on an allowed queue without the filter.
    fn spare(&self, index: FlowIndex) -> Option<TableId> {
        let placed = self.placed.get(index.index())?.as_ref()?;
        let table = placed.filter?.table;
        let home = self.map.nic().unfiltered_queue_of(&placed.flow.tuple);
        self.policy.allows(&placed.flow, home).then_some(table)
    }
}

/// Flows that can give up their filters, by table.
pub(super) struct Donors(Vec<BTreeSet<FlowIndex>>);

impl Donors {
    /// Returns the first donor from an index on that has a filter in one of the tables.
    fn first(&self, from: FlowIndex, tables: &[TableId]) -> Option<FlowIndex> {
        tables.iter().filter_map(|table| self.0[table.index()].range(from..).next().copied()).min()
    }
}
