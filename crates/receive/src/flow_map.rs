//! Which flow is on which queue, kept while flows come and go and the configuration changes.

use rustc_hash::FxHashMap;

use crate::filter::{Filter, QueueId};
use crate::flow::FlowTuple;
use crate::nic::{ConfigureError, ConfiguredNic, FilterId, InsertError};

/// A flow in a [`FlowMap`]. That of a flow that was removed is given to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowIndex(pub u32);

impl FlowIndex {
    /// As an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A flow that changed its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    /// The flow.
    pub flow: FlowIndex,
    /// Where it was.
    pub from: QueueId,
    /// Where it is.
    pub to: QueueId,
}

/// A change of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Install a filter.
    Insert(Filter),
    /// Take a filter out.
    Remove(FilterId),
    /// Put a filter in the place of another.
    Replace(FilterId, Filter),
}

#[derive(Clone, Debug)]
struct Entry {
    flow: FlowTuple,
    queue: QueueId,
    /// Place in the list of its queue.
    position: u32,
}

/// A configured NIC, the flows that it receives, and the queue of each.
#[derive(Clone, Debug)]
pub struct FlowMap {
    nic: ConfiguredNic,
    entries: Vec<Option<Entry>>,
    free: Vec<FlowIndex>,
    by_flow: FxHashMap<FlowTuple, FlowIndex>,
    queues: Vec<Vec<FlowIndex>>,
    moves: Vec<Move>,
}

impl FlowMap {
    /// No flow, on this NIC.
    #[must_use]
    pub fn new(nic: ConfiguredNic) -> Self {
        let queues = vec![Vec::new(); usize::from(nic.queues())];
        Self {
            nic,
            entries: Vec::new(),
            free: Vec::new(),
            by_flow: FxHashMap::default(),
            queues,
            moves: Vec::new(),
        }
    }

    /// The NIC.
    #[must_use]
    pub fn nic(&self) -> &ConfiguredNic {
        &self.nic
    }

    /// How many flows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_flow.len()
    }

    /// Whether there is no flow.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_flow.is_empty()
    }

    /// Adds a flow; one that is there already keeps its index.
    pub fn add_flow(&mut self, flow: FlowTuple) -> FlowIndex {
        if let Some(index) = self.by_flow.get(&flow) {
            return *index;
        }
        let queue = self.nic.queue_of(&flow);
        let list = &mut self.queues[queue.index()];
        let entry = Entry { flow, queue, position: list.len() as u32 };
        let index = if let Some(index) = self.free.pop() {
            self.entries[index.index()] = Some(entry);
            index
        } else {
            self.entries.push(Some(entry));
            FlowIndex((self.entries.len() - 1) as u32)
        };
        list.push(index);
        self.by_flow.insert(flow, index);
        index
    }

    /// Takes a flow out; none if there is no such flow.
    pub fn remove_flow(&mut self, flow: FlowIndex) -> Option<FlowTuple> {
        let entry = self.entries.get_mut(flow.index())?.take()?;
        self.take_from_list(entry.queue, entry.position);
        self.by_flow.remove(&entry.flow);
        self.free.push(flow);
        Some(entry.flow)
    }

    /// The index of a flow.
    #[must_use]
    pub fn find(&self, flow: &FlowTuple) -> Option<FlowIndex> {
        self.by_flow.get(flow).copied()
    }

    /// A flow's five-tuple.
    #[must_use]
    pub fn flow(&self, flow: FlowIndex) -> Option<&FlowTuple> {
        self.entries.get(flow.index())?.as_ref().map(|entry| &entry.flow)
    }

    /// A flow's queue.
    #[must_use]
    pub fn queue(&self, flow: FlowIndex) -> Option<QueueId> {
        self.entries.get(flow.index())?.as_ref().map(|entry| entry.queue)
    }

    /// The flows on a queue, in no particular order.
    #[must_use]
    pub fn flows_on(&self, queue: QueueId) -> &[FlowIndex] {
        self.queues.get(queue.index()).map_or(&[], Vec::as_slice)
    }

    /// The flows with their queues, by index.
    pub fn flows(&self) -> impl Iterator<Item = (FlowIndex, &FlowTuple, QueueId)> {
        (0..).zip(&self.entries).filter_map(|(index, entry)| {
            let entry = entry.as_ref()?;
            Some((FlowIndex(index), &entry.flow, entry.queue))
        })
    }

    /// Changes the configuration, and moves the flows that this moves: [`FlowMap::moves`] tells which.
    ///
    /// The filter's identity is that of the filter which was installed or taken out.
    ///
    /// # Errors
    /// When the NIC does not take the change: nothing has changed then.
    pub fn apply(&mut self, change: Change) -> Result<FilterId, InsertError> {
        self.moves.clear();
        let (id, before, after) = match change {
            Change::Insert(filter) => (self.nic.insert(filter)?, None, Some(filter)),
            Change::Remove(id) => (id, Some(self.nic.remove(id).ok_or(InsertError::NoFilter)?), None),
            Change::Replace(id, filter) => (id, Some(self.nic.replace(id, filter)?), Some(filter)),
        };
        for filter in before.into_iter().chain(after) {
            self.settle(&filter);
        }
        Ok(id)
    }

    /// Sets the indirection table of RSS, and moves the flows that this moves.
    ///
    /// # Errors
    /// When the NIC does not take it: nothing has changed then.
    pub fn set_indirection(&mut self, indirection: Vec<QueueId>) -> Result<(), ConfigureError> {
        self.nic.set_indirection(indirection)?;
        self.moves.clear();
        for index in 0..self.entries.len() {
            self.settle_flow(FlowIndex(index as u32));
        }
        Ok(())
    }

    /// The flows that the last change moved.
    #[must_use]
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }

    /// Recomputes the flows that a filter matches.
    fn settle(&mut self, filter: &Filter) {
        if let Some(flow) = filter.matches.as_flow() {
            if let Some(index) = self.find(&flow) {
                self.settle_flow(index);
            }
            return;
        }
        for index in 0..self.entries.len() {
            if self.entries[index].as_ref().is_some_and(|entry| filter.matches.matches(&entry.flow)) {
                self.settle_flow(FlowIndex(index as u32));
            }
        }
    }

    fn settle_flow(&mut self, flow: FlowIndex) {
        let Some(Some(entry)) = self.entries.get(flow.index()) else { return };
        let to = self.nic.queue_of(&entry.flow);
        let (from, position) = (entry.queue, entry.position);
        if to == from {
            return;
        }
        self.take_from_list(from, position);
        let list = &mut self.queues[to.index()];
        list.push(flow);
        let position = list.len() as u32 - 1;
        if let Some(entry) = &mut self.entries[flow.index()] {
            (entry.queue, entry.position) = (to, position);
        }
        self.moves.push(Move { flow, from, to });
    }

    fn take_from_list(&mut self, queue: QueueId, position: u32) {
        let list = &mut self.queues[queue.index()];
        list.swap_remove(position as usize);
        if let Some(Some(moved)) = list.get(position as usize).map(|flow| &mut self.entries[flow.index()]) {
            moved.position = position;
        }
    }
}
