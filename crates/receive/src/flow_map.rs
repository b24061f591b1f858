//! The queue of each flow, updated when flows or the configuration change.

use std::hash::{BuildHasher, Hash};

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

use crate::filter::{ContextId, Filter, QueueId, TableId};
use crate::flow::FlowTuple;
use crate::key::Key;
use crate::nic::{ConfigureError, ConfiguredNic, FilterId, InsertError};

/// Index of a flow in a [`FlowMap`]. The index of a removed flow is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowIndex(pub u32);

impl FlowIndex {
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    pub flow: FlowIndex,
    pub from: QueueId,
    pub to: QueueId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Insert(Filter),
    Remove(FilterId),
    /// Replaces a filter. The cost is lowest if both filters have the same match.
    Replace(FilterId, Filter),
}

#[derive(Clone, Debug)]
struct Entry {
    flow: FlowTuple,
    /// RSS hash, stored because it costs more to compute than the other look-up keys.
    hash: u32,
    queue: QueueId,
    /// Position in the list of flows of its queue.
    position: u32,
    /// Position in the list of flows of its indirection table entry; 0 if RSS is off.
    rss_position: u32,
}

/// Flows indexed by the fields of one mask: for each value, a ring (circular list) of the flows with this
/// value. A ring needs less memory than a set: most signatures have only one flow.
#[derive(Clone, Debug)]
struct Group {
    /// A table with filters that have the mask.
    table: TableId,
    /// Whether the table compares signatures.
    of_signatures: bool,
    mask: Key,
    /// One flow of each ring.
    rings: HashTable<FlowIndex>,
    /// Previous and next flow in the ring, for each flow index.
    links: Vec<[FlowIndex; 2]>,
}

impl Group {
    fn key(&self, flow: &FlowTuple, nic: &ConfiguredNic) -> Key {
        nic.key(self.table, flow).and(&self.mask)
    }

    fn ring(&self, value: &Key, entries: &[Option<Entry>], nic: &ConfiguredNic) -> Option<FlowIndex> {
        let has_value = |index: &FlowIndex| {
            entries[index.index()].as_ref().is_some_and(|entry| self.key(&entry.flow, nic) == *value)
        };
        self.rings.find(place(value), has_value).copied()
    }

    fn flows(&self, value: &Key, entries: &[Option<Entry>], nic: &ConfiguredNic) -> Vec<FlowIndex> {
        let first = self.ring(value, entries, nic);
        let next = |flow: &FlowIndex| Some(self.links[flow.index()][1]).filter(|next| Some(*next) != first);
        std::iter::successors(first, next).collect()
    }

    fn add(&mut self, index: FlowIndex, entries: &[Option<Entry>], nic: &ConfiguredNic) {
        let Some(entry) = &entries[index.index()] else { return };
        let key = self.key(&entry.flow, nic);
        if self.links.len() < entries.len() {
            self.links.resize(entries.len(), [FlowIndex(0); 2]);
        }
        let Some(before) = self.ring(&key, entries, nic) else {
            self.links[index.index()] = [index; 2];
            let (table, mask) = (self.table, self.mask);
            let hash_of = |index: &FlowIndex| {
                let key = |entry: &Entry| place(&nic.key(table, &entry.flow).and(&mask));
                entries[index.index()].as_ref().map_or(0, key)
            };
            self.rings.insert_unique(place(&key), index, hash_of);
            return;
        };
        let after = std::mem::replace(&mut self.links[before.index()][1], index);
        self.links[after.index()][0] = index;
        self.links[index.index()] = [before, after];
    }

    fn remove(&mut self, index: FlowIndex, flow: &FlowTuple, nic: &ConfiguredNic) {
        let [before, after] = self.links[index.index()];
        self.links[before.index()][1] = after;
        self.links[after.index()][0] = before;
        if let Ok(mut found) = self.rings.find_entry(place(&self.key(flow, nic)), |first| *first == index) {
            if after == index {
                found.remove();
            } else {
                *found.get_mut() = after;
            }
        }
    }
}

/// Maximum number of indexed masks. A change of a filter with another mask looks up all flows again.
const MOST_GROUPS: usize = 16;

/// A configured NIC, its flows, and the queue of each flow.
///
/// The cost of a change depends on the number of affected flows:
/// - filter with a five-tuple: one look-up
/// - filter with a mask: one look-up per matching flow; the first filter with this mask indexes all flows
/// - entry of the indirection table: one look-up per flow of the entry
#[derive(Clone, Debug)]
pub struct FlowMap {
    nic: ConfiguredNic,
    entries: Vec<Option<Entry>>,
    free: Vec<FlowIndex>,
    by_flow: HashTable<FlowIndex>,
    by_queue: Vec<Vec<FlowIndex>>,
    by_rss_entry: Vec<Vec<FlowIndex>>,
    groups: Vec<Group>,
    moves: Vec<Move>,
}

impl FlowMap {
    #[must_use]
    pub fn new(nic: ConfiguredNic) -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            by_flow: HashTable::new(),
            by_queue: vec![Vec::new(); usize::from(nic.queues())],
            by_rss_entry: vec![Vec::new(); nic.indirection().len()],
            groups: Vec::new(),
            moves: Vec::new(),
            nic,
        }
    }

    #[must_use]
    pub fn nic(&self) -> &ConfiguredNic {
        &self.nic
    }

    // ---- Flows -----------------------------------------------------------------------------------------

    #[must_use]
    pub fn len(&self) -> usize {
        self.by_flow.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_flow.is_empty()
    }

    /// Adds a flow. Returns its index; an existing flow keeps its index.
    pub fn add_flow(&mut self, flow: FlowTuple) -> FlowIndex {
        if let Some(index) = self.find(&flow) {
            return index;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            FlowIndex((self.entries.len() - 1) as u32)
        });
        let hash = self.nic.hash(&flow);
        let (_, queue) = self.nic.decide(&flow, hash);
        let position = push(&mut self.by_queue[queue.index()], index);
        let rss_position = match self.nic.entry_of_hash(hash) {
            Some(entry) => push(&mut self.by_rss_entry[entry], index),
            None => 0,
        };
        self.entries[index.index()] = Some(Entry { flow, hash, queue, position, rss_position });
        for group in &mut self.groups {
            group.add(index, &self.entries, &self.nic);
        }
        let entries = &self.entries;
        let hash_of =
            |index: &FlowIndex| entries[index.index()].as_ref().map_or(0, |entry| place(&entry.flow));
        self.by_flow.insert_unique(place(&flow), index, hash_of);
        index
    }

    /// Removes a flow. Returns `None` if the flow does not exist.
    pub fn remove_flow(&mut self, flow: FlowIndex) -> Option<FlowTuple> {
        let entry = self.entries.get_mut(flow.index())?.take()?;
        if let Ok(found) = self.by_flow.find_entry(place(&entry.flow), |index| *index == flow) {
            found.remove();
        }
        self.leave_queue(entry.queue, entry.position);
        if let Some(rss_entry) = self.nic.entry_of_hash(entry.hash) {
            let list = &mut self.by_rss_entry[rss_entry];
            list.swap_remove(entry.rss_position as usize);
            if let Some(moved) = list.get(entry.rss_position as usize)
                && let Some(moved) = &mut self.entries[moved.index()]
            {
                moved.rss_position = entry.rss_position;
            }
        }
        for group in &mut self.groups {
            group.remove(flow, &entry.flow, &self.nic);
        }
        self.free.push(flow);
        Some(entry.flow)
    }

    #[must_use]
    pub fn find(&self, flow: &FlowTuple) -> Option<FlowIndex> {
        let is_it = |index: &FlowIndex| self.flow(*index) == Some(flow);
        self.by_flow.find(place(flow), is_it).copied()
    }

    #[must_use]
    pub fn flow(&self, flow: FlowIndex) -> Option<&FlowTuple> {
        self.entry(flow).map(|entry| &entry.flow)
    }

    #[must_use]
    pub fn queue(&self, flow: FlowIndex) -> Option<QueueId> {
        self.entry(flow).map(|entry| entry.queue)
    }

    /// Returns the filter that decides a flow's queue; `None` if no filter decides, or the flow does
    /// not exist.
    #[must_use]
    pub fn deciding_filter(&self, flow: FlowIndex) -> Option<FilterId> {
        self.entry(flow).and_then(|entry| self.nic.decide(&entry.flow, entry.hash).0)
    }

    /// Returns the indirection table entry that a flow's hash selects; `None` if RSS is off, or the flow does
    /// not exist.
    #[must_use]
    pub fn rss_entry(&self, flow: FlowIndex) -> Option<usize> {
        self.entry(flow).and_then(|entry| self.nic.entry_of_hash(entry.hash))
    }

    /// Returns the flows on a queue, in no particular order.
    #[must_use]
    pub fn flows_on(&self, queue: QueueId) -> &[FlowIndex] {
        self.by_queue.get(queue.index()).map_or(&[], Vec::as_slice)
    }

    /// Returns the flows whose hash selects an entry of the indirection table, in no particular order;
    /// filters may steer some of them elsewhere.
    #[must_use]
    pub fn flows_of_entry(&self, entry: usize) -> &[FlowIndex] {
        self.by_rss_entry.get(entry).map_or(&[], Vec::as_slice)
    }

    pub fn flows(&self) -> impl Iterator<Item = (FlowIndex, &FlowTuple, QueueId)> + Clone {
        (0..).zip(&self.entries).filter_map(|(index, entry)| {
            let entry = entry.as_ref()?;
            Some((FlowIndex(index), &entry.flow, entry.queue))
        })
    }

    fn entry(&self, flow: FlowIndex) -> Option<&Entry> {
        self.entries.get(flow.index())?.as_ref()
    }

    // ---- Configuration ---------------------------------------------------------------------------------

    /// Changes the filters and moves the affected flows; see [`FlowMap::moves`].
    ///
    /// Returns the ID of the installed, replaced or removed filter.
    ///
    /// # Errors
    /// Returns an error if the NIC refuses the change, which then has no effect.
    pub fn apply(&mut self, change: Change) -> Result<FilterId, InsertError> {
        self.moves.clear();
        let (id, before, after) = match change {
            Change::Insert(filter) => (self.nic.insert(filter)?, None, Some(filter)),
            Change::Remove(id) => (id, Some(self.nic.remove(id).ok_or(InsertError::NoFilter)?), None),
            Change::Replace(id, filter) => {
                let before = self.nic.replace(id, filter)?;
                (id, Some(before).filter(|before| before.matches != filter.matches), Some(filter))
            }
        };
        for filter in before.iter().chain(&after) {
            self.settle(filter);
        }
        Ok(id)
    }

    /// Sets one entry of the indirection table and moves the affected flows. Returns the old queue.
    ///
    /// # Errors
    /// Returns an error if the NIC refuses the change, which then has no effect.
    pub fn redirect(&mut self, entry: usize, queue: QueueId) -> Result<QueueId, InsertError> {
        let before = self.nic.redirect(entry, queue)?;
        self.moves.clear();
        let flows = std::mem::take(&mut self.by_rss_entry[entry]);
        for flow in &flows {
            self.settle_flow(*flow);
        }
        self.by_rss_entry[entry] = flows;
        Ok(before)
    }

    /// Sets the indirection table, or disables RSS if it is empty, and moves the affected flows.
    ///
    /// # Errors
    /// Returns an error if the NIC refuses the change, which then has no effect.
    pub fn set_indirection(&mut self, indirection: Vec<QueueId>) -> Result<(), ConfigureError> {
        self.nic.set_indirection(indirection)?;
        self.moves.clear();
        self.by_rss_entry = vec![Vec::new(); self.nic.indirection().len()];
        for (index, entry) in (0..).map(FlowIndex).zip(&mut self.entries) {
            if let Some(entry) = entry
                && let Some(rss_entry) = self.nic.entry_of_hash(entry.hash)
            {
                entry.rss_position = push(&mut self.by_rss_entry[rss_entry], index);
            }
        }
        for index in 0..self.entries.len() {
            self.settle_flow(FlowIndex(index as u32));
        }
        Ok(())
    }

    /// Adds a context over these queues; see [`ConfiguredNic::add_context`]. No flow moves until a filter
    /// uses the context.
    ///
    /// # Errors
    /// Returns an error under the same conditions as [`ConfiguredNic::add_context`].
    pub fn add_context(&mut self, queues: &[QueueId]) -> Result<ContextId, ConfigureError> {
        self.nic.add_context(queues)
    }

    /// Returns the flows that the last change of the configuration moved.
    #[must_use]
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }

    /// Determines the queues of the flows that a filter matches, and moves the flows.
    fn settle(&mut self, filter: &Filter) {
        let of_signatures = self.nic.is_signature(filter.table);
        if !of_signatures && let Some(flow) = filter.matches.as_flow() {
            if let Some(index) = self.find(&flow) {
                self.settle_flow(index);
            }
            return;
        }
        // A filter that contradicts itself matches no packet.
        let Some(pattern) = self.nic.compared(filter) else { return };
        let matching: Vec<FlowIndex> = match self.group(filter.table, &pattern.mask) {
            Some(group) => self.groups[group].flows(&pattern.value, &self.entries, &self.nic),
            None => (0..self.entries.len()).map(|index| FlowIndex(index as u32)).collect(),
        };
        for flow in matching {
            self.settle_flow(flow);
        }
    }

    /// Returns the group for a mask, and creates the group if it does not exist. Returns `None` if it does
    /// not exist and there are already [`MOST_GROUPS`].
    fn group(&mut self, table: TableId, mask: &Key) -> Option<usize> {
        let of_signatures = self.nic.is_signature(table);
        let known = |group: &Group| group.of_signatures == of_signatures && group.mask == *mask;
        if let Some(position) = self.groups.iter().position(known) {
            return Some(position);
        }
        if self.groups.len() >= MOST_GROUPS {
            return None;
        }
        let (rings, links) = (HashTable::new(), Vec::new());
        let mut group = Group { table, of_signatures, mask: *mask, rings, links };
        for index in 0..self.entries.len() {
            group.add(FlowIndex(index as u32), &self.entries, &self.nic);
        }
        self.groups.push(group);
        Some(self.groups.len() - 1)
    }

    fn settle_flow(&mut self, flow: FlowIndex) {
        let Some(Some(entry)) = self.entries.get_mut(flow.index()) else { return };
        let (_, to) = self.nic.decide(&entry.flow, entry.hash);
        let (from, position) = (entry.queue, entry.position);
        if to == from {
            return;
        }
        entry.queue = to;
        entry.position = push(&mut self.by_queue[to.index()], flow);
        self.leave_queue(from, position);
        self.moves.push(Move { flow, from, to });
    }

    /// Removes a position from a queue's list. The last flow of the list moves to this position.
    fn leave_queue(&mut self, queue: QueueId, position: u32) {
        let list = &mut self.by_queue[queue.index()];
        list.swap_remove(position as usize);
        if let Some(moved) = list.get(position as usize)
            && let Some(moved) = &mut self.entries[moved.index()]
        {
            moved.position = position;
        }
    }
}

/// Hashes a flow for the five-tuple index, or a value for a group.
fn place(key: &impl Hash) -> u64 {
    FxBuildHasher.hash_one(key)
}

/// Appends a flow. Returns its position.
fn push(list: &mut Vec<FlowIndex>, flow: FlowIndex) -> u32 {
    list.push(flow);
    // No truncation: the number of flows fits into a u32.
    (list.len() - 1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the sizes on which `search::memory` relies for [`crate::flows::MOST_FLOWS`] entries.
    #[test]
    fn flows_and_filters_are_small() {
        assert!(size_of::<Option<Entry>>() <= 56, "{}", size_of::<Option<Entry>>());
        assert!(size_of::<Filter>() <= 116, "{}", size_of::<Filter>());
    }
}
