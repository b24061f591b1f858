//! A NIC with filled tables.

use std::sync::Arc;

use super::filled::Filled;
use super::model::NicModel;
use super::program::{Chain, Step, flow_kind};
use super::rss::{HashedPorts, RssKey, Toeplitz};
use super::signature;
use super::table::Precedence;
use crate::filter::{ContextId, Filter, FilterMatch, QueueId, TableId};
use crate::flow::FlowTuple;
use crate::key::{Key, Pattern, bits};
use crate::packet::Packet;

/// An installed filter: table and location. The location of a removed filter is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilterId {
    /// The table.
    pub table: TableId,
    /// Location in the table, from 0; it may determine the precedence.
    pub location: u32,
}

/// Why a configuration is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigureError {
    /// More queues than the NIC has, or fewer than its graph names.
    #[error("{wanted} queues: this NIC works with {least} to {most}")]
    Queues {
        /// Requested queues.
        wanted: u16,
        /// The minimum.
        least: u16,
        /// The model's queues.
        most: u16,
    },
    /// An indirection table of the wrong length.
    #[error("{found} entries for the indirection table, which has {wanted}")]
    Entries {
        /// Entries given.
        found: usize,
        /// Entries of the NIC's table; 0 if it has none.
        wanted: usize,
    },
    /// More contexts than the NIC has or allows.
    #[error("{most} RSS contexts are all that there are")]
    Contexts {
        /// The limit.
        most: u16,
    },
    /// An entry of the indirection table cannot name this queue.
    #[error("entries of the indirection table name queues below {limit}, and not {queue}")]
    Unreachable {
        /// The requested queue.
        queue: QueueId,
        /// The first queue that cannot be named.
        limit: u16,
    },
}

/// Why a filter cannot be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InsertError {
    /// The model has no such table.
    #[error("there is no such filter table")]
    NoTable,
    /// The table is full.
    #[error("the filter table is full")]
    Full,
    /// The table's filters cannot have this match, or cannot use RSS.
    #[error("filters of this table cannot do so")]
    Unsupported,
    /// The table's filters share one mask, and existing filters have another.
    #[error("the filters of this table share one mask, and others have another")]
    OtherMask,
    /// A table that excludes this one has filters.
    #[error("this table works only while another one is empty, and it is not")]
    OtherMode,
    /// The table does not have this priority or location.
    #[error("the table has no such priority or location")]
    Priority,
    /// A filter with the same key or location exists.
    #[error("another filter of the table has this key or location")]
    Taken,
    /// The queue is not in use, or the table's filters cannot name it.
    #[error("filters of this table cannot name this queue")]
    NoQueue,
    /// There is no filter at this location.
    #[error("no filter stands there")]
    NoFilter,
    /// The indirection table lacks this entry, or cannot name the queue.
    #[error("the indirection table has no such entry, or cannot name the queue")]
    Indirection,
}

/// Returns the queue in an indirection table for a hash; none if the table is empty.
fn entry_of(table: &[QueueId], hash: u32) -> Option<QueueId> {
    table.get(hash as usize & table.len().wrapping_sub(1)).copied()
}

/// A model with its queues, RSS key, indirection table and filters.
#[derive(Clone, Debug)]
pub struct ConfiguredNic {
    model: Arc<NicModel>,
    queues: u16,
    toeplitz: Arc<Toeplitz>,
    hashed_ports: HashedPorts,
    /// The length is a power of two; empty without RSS, or while it is off.
    pub(super) indirection: Vec<QueueId>,
    /// As long as the NIC's own table.
    contexts: Vec<Vec<QueueId>>,
    most_contexts: u16,
    pub(super) tables: Vec<Filled>,
}

impl ConfiguredNic {
    /// Creates the model with its defaults: no filters, and RSS over all `queues` round robin.
    ///
    /// # Errors
    /// When the model has fewer queues.
    pub fn new(model: &NicModel, queues: u16) -> Result<Self, ConfigureError> {
        let (least, most) = (model.queues_least(), model.queues());
        if !(least..=most).contains(&queues) {
            return Err(ConfigureError::Queues { wanted: queues, least, most });
        }
        let mut nic = Self {
            queues,
            toeplitz: Arc::new(Toeplitz::new(RssKey::MICROSOFT)),
            hashed_ports: model.rss().map(|rss| rss.ports).unwrap_or_default(),
            indirection: Vec::new(),
            contexts: Vec::new(),
            most_contexts: 0,
            tables: model.tables().iter().map(|table| Filled::new(table.precedence)).collect(),
            model: Arc::new(model.clone()),
        };
        nic.indirection = nic.default_indirection();
        Ok(nic)
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &NicModel {
        &self.model
    }

    /// Receive queues in use.
    #[must_use]
    pub fn queues(&self) -> u16 {
        self.queues
    }

    // ---- RSS -----------------------------------------------------------------------------------------

    /// Key of the hash.
    #[must_use]
    pub fn rss_key(&self) -> &RssKey {
        self.toeplitz.key()
    }

    /// Sets the key of the hash.
    pub fn set_rss_key(&mut self, key: RssKey) {
        self.toeplitz = Arc::new(Toeplitz::new(key));
    }

    /// Returns the flows whose ports are hashed.
    #[must_use]
    pub fn hashed_ports(&self) -> HashedPorts {
        self.hashed_ports
    }

    /// Sets the flows whose ports are hashed.
    pub fn set_hashed_ports(&mut self, ports: HashedPorts) {
        self.hashed_ports = ports;
    }

    /// Returns the indirection table; empty without RSS, or while it is off.
    #[must_use]
    pub fn indirection(&self) -> &[QueueId] {
        &self.indirection
    }

    /// The first queue that an entry of the indirection table cannot name; 0 without RSS.
    #[must_use]
    pub fn rss_queues(&self) -> u16 {
        self.model.rss().map_or(0, |rss| rss.queues.min(self.queues))
    }

    /// Returns all queues that the table can name, round robin, as drivers set it
    /// (`ethtool_rxfh_indir_default`, include/linux/ethtool.h).
    #[must_use]
    pub fn default_indirection(&self) -> Vec<QueueId> {
        let turn = (0..self.rss_queues()).map(QueueId).cycle();
        turn.take(self.model.rss().map_or(0, |rss| rss.entries)).collect()
    }

    /// Sets the indirection table; an empty one disables RSS, so that packets without a filter go to the
    /// default queue.
    ///
    /// # Errors
    /// When the length is wrong, or an entry cannot name one of the queues.
    pub fn set_indirection(&mut self, indirection: Vec<QueueId>) -> Result<(), ConfigureError> {
        let (found, wanted) = (indirection.len(), self.model.rss().map_or(0, |rss| rss.entries));
        if found != wanted && found != 0 {
            return Err(ConfigureError::Entries { found, wanted });
        }
        let limit = self.rss_queues();
        if let Some(queue) = indirection.iter().find(|queue| queue.0 >= limit) {
            return Err(ConfigureError::Unreachable { queue: *queue, limit });
        }
        self.indirection = indirection;
        Ok(())
    }

    /// Sets one entry of the indirection table; returns its old queue.
    ///
    /// # Errors
    /// When the entry does not exist or cannot name the queue.
    pub fn redirect(&mut self, entry: usize, queue: QueueId) -> Result<QueueId, InsertError> {
        if queue.0 >= self.rss_queues() {
            return Err(InsertError::Indirection);
        }
        let entry = self.indirection.get_mut(entry).ok_or(InsertError::Indirection)?;
        Ok(std::mem::replace(entry, queue))
    }

    // ---- Contexts ------------------------------------------------------------------------------------

    /// Allows this many contexts, up to the model's number. The default is none: few drivers support them,
    /// and programs that read filters must handle them.
    pub fn allow_contexts(&mut self, most: u16) {
        self.most_contexts = most.min(self.model.rss().map_or(0, |rss| rss.contexts));
    }

    /// The indirection table of each context.
    #[must_use]
    pub fn contexts(&self) -> &[Vec<QueueId>] {
        &self.contexts
    }

    /// Returns a context whose table has these queues round robin; an existing one if possible. It has no
    /// effect until a filter uses it.
    ///
    /// # Errors
    /// When the limit is reached, or an entry cannot name one of the queues.
    pub fn add_context(&mut self, queues: &[QueueId]) -> Result<ContextId, ConfigureError> {
        let limit = self.rss_queues();
        if let Some(queue) = queues.iter().find(|queue| queue.0 >= limit) {
            return Err(ConfigureError::Unreachable { queue: *queue, limit });
        }
        let entries = self.model.rss().map_or(0, |rss| rss.entries);
        let table: Vec<QueueId> = queues.iter().copied().cycle().take(entries).collect();
        if table.is_empty() {
            return Err(ConfigureError::Entries { found: 0, wanted: entries });
        }
        let known = self.contexts.iter().position(|other| *other == table);
        let index = known.unwrap_or(self.contexts.len());
        if index >= usize::from(self.most_contexts) {
            return Err(ConfigureError::Contexts { most: self.most_contexts });
        }
        if known.is_none() {
            self.contexts.push(table);
        }
        // Below most_contexts.
        Ok(ContextId(index as u16))
    }

    /// The indirection table of a spreading filter; none for another filter, or while RSS is off.
    #[must_use]
    pub fn spread_table(&self, filter: &Filter) -> Option<&[QueueId]> {
        let table = match filter.context {
            Some(context) => self.contexts.get(context.index())?,
            None => &self.indirection,
        };
        (filter.spread && !self.indirection.is_empty()).then_some(table)
    }

    // ---- Filters -------------------------------------------------------------------------------------

    /// Filters in a table.
    #[must_use]
    pub fn used(&self, table: TableId) -> usize {
        self.tables.get(table.index()).map_or(0, Filled::used)
    }

    /// Free rows of a table; tables that share its rows count, too.
    #[must_use]
    pub fn free(&self, table: TableId) -> usize {
        let Some(wanted) = self.model.tables().get(table.index()) else { return 0 };
        let sharing =
            self.model.tables().iter().zip(&self.tables).filter(|(other, _)| other.rows == wanted.rows);
        let used: usize = sharing.map(|(_, filled)| filled.used()).sum();
        wanted.capacity.saturating_sub(used)
    }

    /// Whether a filter of this table can have this match; see [`NicModel::supports`].
    #[must_use]
    pub fn supports(&self, table: TableId, matches: &FilterMatch) -> bool {
        self.model.supports(table, matches)
    }

    /// The lowest free location; none in a full table.
    #[must_use]
    pub fn free_location(&self, table: TableId) -> Option<u32> {
        (self.free(table) > 0).then(|| self.tables.get(table.index()).map(Filled::free_location)).flatten()
    }

    /// An installed filter.
    #[must_use]
    pub fn filter(&self, id: FilterId) -> Option<&Filter> {
        self.tables.get(id.table.index())?.slot(id.location).map(|slot| &slot.filter)
    }

    /// The installed filters, table by table and by location.
    pub fn filters(&self) -> impl Iterator<Item = (FilterId, &Filter)> {
        (0..).map(TableId).zip(&self.tables).flat_map(|(table, filled)| {
            filled.slots().map(move |(location, slot)| (FilterId { table, location }, &slot.filter))
        })
    }

    /// The filters of a table, by precedence.
    pub fn filters_by_rank(&self, table: TableId) -> impl Iterator<Item = (FilterId, &Filter)> {
        self.tables.get(table.index()).into_iter().flat_map(move |filled| {
            let filter = move |location| Some((FilterId { table, location }, &filled.slot(location)?.filter));
            filled.by_rank().into_iter().filter_map(filter)
        })
    }

    /// Installs a filter at its location if precedence is by location, else at the lowest free one.
    ///
    /// # Errors
    /// Returns an error, without a change, if the NIC refuses it.
    pub fn insert(&mut self, filter: Filter) -> Result<FilterId, InsertError> {
        let pattern = self.check(&filter, None)?;
        let table = filter.table;
        let free = self.free_location(table).ok_or(InsertError::Full)?;
        let by_location = self.model.tables()[table.index()].precedence == Precedence::Location;
        let location = if by_location { filter.priority } else { free };
        let filled = &mut self.tables[table.index()];
        if filled.slot(location).is_some() {
            return Err(InsertError::Taken);
        }
        filled.put(location, filter, pattern);
        Ok(FilterId { table, location })
    }

    /// Removes a filter; none if it does not exist.
    pub fn remove(&mut self, id: FilterId) -> Option<Filter> {
        let pattern = self.compared(self.filter(id)?)?;
        self.tables.get_mut(id.table.index())?.take(id.location, &pattern).map(|slot| slot.filter)
    }

    /// Replaces a filter in one step; returns the old one.
    ///
    /// # Errors
    /// Returns an error, without a change, if there is no filter to replace, or the NIC refuses the new one.
    pub fn replace(&mut self, id: FilterId, filter: Filter) -> Result<Filter, InsertError> {
        let before = *self.filter(id).filter(|_| filter.table == id.table).ok_or(InsertError::NoFilter)?;
        let pattern = self.check(&filter, Some(id.location))?;
        let by_location = self.model.tables()[id.table.index()].precedence == Precedence::Location;
        if by_location && filter.priority != id.location {
            return Err(InsertError::Priority);
        }
        let known = self.compared(&before);
        let filled = &mut self.tables[id.table.index()];
        match known {
            Some(known) if before.matches != filter.matches || before.priority != filter.priority => {
                filled.take(id.location, &known);
                filled.put(id.location, filter, pattern);
            }
            _ => filled.redirect(id.location, filter),
        }
        Ok(before)
    }

    /// Checks whether the NIC accepts a filter, in place of the one at `replaced` if given; returns its
    /// pattern.
    fn check(&self, filter: &Filter, replaced: Option<u32>) -> Result<Pattern, InsertError> {
        let table = self.model.tables().get(filter.table.index()).ok_or(InsertError::NoTable)?;
        let filled = &self.tables[filter.table.index()];
        if filter.queue.0 >= self.queues || !filter.queue.0.is_multiple_of(table.queue_multiple) {
            return Err(InsertError::NoQueue);
        }
        let can_spread = table.spread && self.spread_table(filter).is_some();
        let spreads = filter.spread || filter.context.is_some();
        if !self.model.takes(filter.table, &filter.matches) || spreads && !can_spread {
            return Err(InsertError::Unsupported);
        }
        let pattern =
            if table.signature { signature::stored(&filter.matches) } else { Pattern::of(&filter.matches) };
        let pattern = pattern.ok_or(InsertError::Unsupported)?;
        if !table.priorities().contains(&filter.priority) {
            return Err(InsertError::Priority);
        }
        if table.excludes.is_some_and(|other| self.used(other) > 0) {
            return Err(InsertError::OtherMode);
        }
        let others = filled.used() - usize::from(replaced.is_some());
        if table.fields.share_mask() && others > 0 && filled.only_mask() != Some(&pattern.mask) {
            return Err(InsertError::OtherMask);
        }
        if table.precedence == Precedence::Unique {
            let same = filled.first(&pattern);
            if same.is_some() && same != replaced {
                return Err(InsertError::Taken);
            }
        }
        Ok(pattern)
    }

    /// A filter's target, in words.
    #[must_use]
    pub fn target_of(&self, filter: &Filter) -> String {
        let up = |queue: QueueId| match queue {
            QueueId(0) => String::new(),
            by => format!(", {by} queues up"),
        };
        match filter.context {
            Some(context) => format!("RSS context {}{}", context.0, up(filter.queue)),
            None if filter.spread => format!("RSS{}", up(filter.queue)),
            None => format!("queue {}", filter.queue),
        }
    }

    // ---- Which queue -----------------------------------------------------------------------------------

    /// RSS hash of a flow; 0 without RSS.
    pub(crate) fn hash(&self, flow: &FlowTuple) -> u32 {
        if self.model.rss().is_some() { self.toeplitz.of(flow, self.hashed_ports) } else { 0 }
    }

    /// The bits of a flow that a table compares.
    pub(crate) fn key(&self, table: TableId, flow: &FlowTuple) -> Key {
        if self.is_signature(table) { signature::reduced(flow) } else { Key::of(flow) }
    }

    fn chain(&self, flow: &FlowTuple) -> &Chain {
        let (_, ether_type) = bits(flow.destination);
        self.model.program().flow(flow_kind(ether_type, flow.transport))
    }

    /// Whether a table compares signatures.
    pub(crate) fn is_signature(&self, table: TableId) -> bool {
        self.model.tables().get(table.index()).is_some_and(|table| table.signature)
    }

    /// The pattern of a filter; none if no packet can match.
    pub(crate) fn compared(&self, filter: &Filter) -> Option<Pattern> {
        if self.is_signature(filter.table) {
            signature::stored(&filter.matches)
        } else {
            Pattern::of(&filter.matches)
        }
    }

    /// The deciding filter, and the queue, of a flow with this hash.
    #[inline]
    pub(crate) fn decide(&self, flow: &FlowTuple, hash: u32) -> (Option<FilterId>, QueueId) {
        let chain = self.chain(flow);
        for step in &chain.steps {
            let Step::Table(table) = *step else {
                match self.entry_queue(hash) {
                    Some(queue) => return (None, queue),
                    None => continue,
                }
            };
            let filled = &self.tables[table.index()];
            if filled.used() == 0 {
                continue;
            }
            if let Some(location) = filled.find(&self.key(table, flow))
                && let Some(slot) = filled.slot(location)
            {
                let queue = self.target(&slot.filter, hash);
                return (Some(FilterId { table, location }), queue);
            }
        }
        (None, chain.default)
    }

    /// A filter's queue.
    fn target(&self, filter: &Filter, hash: u32) -> QueueId {
        if !filter.spread {
            return filter.queue;
        }
        let spread = self.spread_table(filter).and_then(|table| entry_of(table, hash));
        spread.map_or(filter.queue, |spread| self.moved_up(spread, filter.queue))
    }

    /// The queue of a spreading filter: the indirection table's plus the filter's.
    pub(super) fn moved_up(&self, spread: QueueId, by: QueueId) -> QueueId {
        let queue = (u32::from(spread.0) + u32::from(by.0)) % u32::from(self.queues);
        // Below the number of queues.
        QueueId(queue as u16)
    }

    fn entry_queue(&self, hash: u32) -> Option<QueueId> {
        entry_of(&self.indirection, hash)
    }

    fn entry(&self, hash: u32) -> usize {
        hash as usize & self.indirection.len().wrapping_sub(1)
    }

    /// The entry of the indirection table that a hash leads to; none while RSS is off.
    pub(crate) fn entry_of_hash(&self, hash: u32) -> Option<usize> {
        (!self.indirection.is_empty()).then(|| self.entry(hash))
    }

    /// The filter that decides a flow's queue; none if no filter does.
    #[must_use]
    pub fn deciding_filter(&self, flow: &FlowTuple) -> Option<FilterId> {
        self.decide(flow, self.hash(flow)).0
    }

    /// The queue of a flow.
    #[must_use]
    pub fn queue_of(&self, flow: &FlowTuple) -> QueueId {
        self.decide(flow, self.hash(flow)).1
    }

    /// The queue of a flow without filters.
    #[must_use]
    pub fn unfiltered_queue_of(&self, flow: &FlowTuple) -> QueueId {
        let chain = self.chain(flow);
        let hashed = chain.steps.contains(&Step::Rss).then(|| self.entry_queue(self.hash(flow)));
        hashed.flatten().unwrap_or(chain.default)
    }

    /// The entry of the indirection table for a flow's hash; none while RSS is off. It decides only without a
    /// filter.
    #[must_use]
    pub fn rss_entry(&self, flow: &FlowTuple) -> Option<usize> {
        self.entry_of_hash(self.hash(flow))
    }

    /// The queue of a packet.
    #[must_use]
    pub fn queue_of_packet(&self, packet: &Packet) -> QueueId {
        let chain = self.model.program().chain(&packet.header);
        let hash = self.toeplitz.of_packet(packet, self.hashed_ports);
        let key = Key::of_packet(packet);
        for step in &chain.steps {
            let Step::Table(table) = *step else {
                match self.entry_queue(hash) {
                    Some(queue) => return queue,
                    None => continue,
                }
            };
            let filled = &self.tables[table.index()];
            let found = if self.is_signature(table) {
                packet.flow().and_then(|flow| filled.find(&signature::reduced(&flow)))
            } else {
                filled.find(&key)
            };
            if let Some(slot) = found.and_then(|location| filled.slot(location)) {
                return self.target(&slot.filter, hash);
            }
        }
        chain.default
    }
}
