//! A NIC model with a configuration: filters, RSS key and indirection tables.

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

/// An installed filter, identified by table and location. The location of a removed filter is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilterId {
    pub table: TableId,
    /// Location in the table, from 0. Some tables derive the precedence from the location.
    pub location: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigureError {
    /// More queues than the NIC has, or fewer than its graph names.
    #[error("this NIC cannot use {wanted} queues; use {least} to {most}")]
    Queues {
        wanted: u16,
        /// Minimum of the model.
        least: u16,
        /// Maximum of the model.
        most: u16,
    },
    #[error("an indirection table of length {found} does not fit the NIC; write {wanted} entries")]
    Entries {
        found: usize,
        /// Number of entries of the NIC's table.
        wanted: usize,
    },
    #[error("this NIC has no RSS, so it has no indirection table; remove the table")]
    NoRss,
    /// More contexts than the NIC has or [`ConfiguredNic::allow_contexts`] permits.
    #[error("the number of available RSS contexts is {most}; use fewer contexts")]
    Contexts { most: u16 },
    #[error("entries of the indirection table can name queues below {limit}, not {queue}")]
    Unreachable {
        queue: QueueId,
        /// Number of queues that an entry can name.
        limit: u16,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InsertError {
    #[error("there is no such filter table")]
    NoTable,
    #[error("the filter table is full; delete a filter first")]
    Full,
    #[error("the filters of this table cannot match these fields")]
    Unsupported,
    #[error("the filters of this table cannot send packets to RSS, or RSS is off")]
    NoRss,
    #[error("the filter has another mask than the existing filters of the table; use their mask")]
    OtherMask,
    #[error(
        "this table works only while another table is empty; delete the filters of the other table first"
    )]
    OtherMode,
    #[error("{found} is not a priority or location of the table; use {least} to {most}")]
    Priority { found: u32, least: u32, most: u32 },
    #[error("another filter of the table has this match or location; delete that filter first")]
    Taken,
    #[error("filters of this table cannot name this queue")]
    NoQueue,
    #[error("the table has no filter at this location")]
    NoFilter,
    #[error(
        "the indirection table does not have this entry, or its entries cannot name this queue; use smaller numbers"
    )]
    Indirection,
}

/// Returns the queue that a hash selects in an indirection table; `None` if the table is empty.
fn entry_of(table: &[QueueId], hash: u32) -> Option<QueueId> {
    table.get(hash as usize & table.len().wrapping_sub(1)).copied()
}

#[derive(Clone, Debug)]
pub struct ConfiguredNic {
    model: Arc<NicModel>,
    queues: u16,
    toeplitz: Arc<Toeplitz>,
    hashed_ports: HashedPorts,
    /// The length is a power of two. Empty if the model has no RSS, or RSS is off.
    pub(super) indirection: Vec<QueueId>,
    /// Indirection tables of the RSS contexts, each with the model's number of entries.
    contexts: Vec<Vec<QueueId>>,
    most_contexts: u16,
    pub(super) tables: Vec<Filled>,
}

impl ConfiguredNic {
    /// Creates a NIC with the default configuration: no filters, and the [`Self::default_indirection`].
    ///
    /// # Errors
    /// Returns an error if the model does not support this number of queues.
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

    #[must_use]
    pub fn model(&self) -> &NicModel {
        &self.model
    }

    #[must_use]
    pub fn queues(&self) -> u16 {
        self.queues
    }

    // ---- RSS -----------------------------------------------------------------------------------------

    #[must_use]
    pub fn rss_key(&self) -> &RssKey {
        self.toeplitz.key()
    }

    pub fn set_rss_key(&mut self, key: RssKey) {
        self.toeplitz = Arc::new(Toeplitz::new(key));
    }

    #[must_use]
    pub fn hashed_ports(&self) -> HashedPorts {
        self.hashed_ports
    }

    pub fn set_hashed_ports(&mut self, ports: HashedPorts) {
        self.hashed_ports = ports;
    }

    /// Returns the indirection table. It is empty if the model has no RSS, or RSS is off.
    #[must_use]
    pub fn indirection(&self) -> &[QueueId] {
        &self.indirection
    }

    /// Returns the number of queues that an entry of the indirection table can name; 0 without RSS.
    #[must_use]
    pub fn rss_queues(&self) -> u16 {
        self.model.rss().map_or(0, |rss| rss.queues.min(self.queues))
    }

    /// Returns the default table of Linux drivers: all queues that the table can name, round robin
    /// (`ethtool_rxfh_indir_default`, include/linux/ethtool.h).
    #[must_use]
    pub fn default_indirection(&self) -> Vec<QueueId> {
        let turn = (0..self.rss_queues()).map(QueueId).cycle();
        turn.take(self.model.rss().map_or(0, |rss| rss.entries)).collect()
    }

    /// Sets the indirection table. An empty table disables RSS: packets that match no filter then go to
    /// the default queue.
    ///
    /// # Errors
    /// Returns an error if the length is wrong, or an entry cannot name one of the queues.
    pub fn set_indirection(&mut self, indirection: Vec<QueueId>) -> Result<(), ConfigureError> {
        let (found, wanted) = (indirection.len(), self.model.rss().map_or(0, |rss| rss.entries));
        if found != wanted && found != 0 {
            return Err(match wanted {
                0 => ConfigureError::NoRss,
                _ => ConfigureError::Entries { found, wanted },
            });
        }
        let limit = self.rss_queues();
        if let Some(queue) = indirection.iter().find(|queue| queue.0 >= limit) {
            return Err(ConfigureError::Unreachable { queue: *queue, limit });
        }
        self.indirection = indirection;
        Ok(())
    }

    /// Sets one entry of the indirection table. Returns its previous queue.
    ///
    /// # Errors
    /// Returns an error if the entry does not exist or cannot name the queue.
    pub fn redirect(&mut self, entry: usize, queue: QueueId) -> Result<QueueId, InsertError> {
        if queue.0 >= self.rss_queues() {
            return Err(InsertError::Indirection);
        }
        let entry = self.indirection.get_mut(entry).ok_or(InsertError::Indirection)?;
        Ok(std::mem::replace(entry, queue))
    }

    // ---- Contexts ------------------------------------------------------------------------------------

    /// Permits this number of contexts, up to the model's limit. The default is 0, because few drivers
    /// support contexts, and programs that read the filters must handle contexts.
    pub fn allow_contexts(&mut self, most: u16) {
        self.most_contexts = most.min(self.model.rss().map_or(0, |rss| rss.contexts));
    }

    #[must_use]
    pub fn contexts(&self) -> &[Vec<QueueId>] {
        &self.contexts
    }

    /// Returns a context whose table has these queues round robin. Reuses an existing context if possible. A
    /// context has no effect until a filter uses it.
    ///
    /// # Errors
    /// Returns an error if the limit is reached, an entry cannot name one of the queues, `queues` is empty,
    /// or the model has no RSS.
    pub fn add_context(&mut self, queues: &[QueueId]) -> Result<ContextId, ConfigureError> {
        let limit = self.rss_queues();
        if let Some(queue) = queues.iter().find(|queue| queue.0 >= limit) {
            return Err(ConfigureError::Unreachable { queue: *queue, limit });
        }
        let entries = self.model.rss().map_or(0, |rss| rss.entries);
        let table: Vec<QueueId> = queues.iter().copied().cycle().take(entries).collect();
        if table.is_empty() {
            return Err(match entries {
                0 => ConfigureError::NoRss,
                wanted => ConfigureError::Entries { found: 0, wanted },
            });
        }
        let known = self.contexts.iter().position(|other| *other == table);
        let index = known.unwrap_or(self.contexts.len());
        if index >= usize::from(self.most_contexts) {
            return Err(ConfigureError::Contexts { most: self.most_contexts });
        }
        if known.is_none() {
            self.contexts.push(table);
        }
        // No truncation: below `most_contexts`.
        Ok(ContextId(index as u16))
    }

    /// Returns the indirection table of a spreading filter; `None` for other filters, for a filter with an
    /// unknown context, or if RSS is off.
    #[must_use]
    pub fn spread_table(&self, filter: &Filter) -> Option<&[QueueId]> {
        let table = match filter.context {
            Some(context) => self.contexts.get(context.index())?,
            None => &self.indirection,
        };
        (filter.spread && !self.indirection.is_empty()).then_some(table)
    }

    // ---- Filters -------------------------------------------------------------------------------------

    #[must_use]
    pub fn used(&self, table: TableId) -> usize {
        self.tables.get(table.index()).map_or(0, Filled::used)
    }

    /// Returns the number of free rows of a table. Filters of tables that share the rows also occupy
    /// rows.
    #[must_use]
    pub fn free(&self, table: TableId) -> usize {
        let Some(wanted) = self.model.tables().get(table.index()) else { return 0 };
        let sharing =
            self.model.tables().iter().zip(&self.tables).filter(|(other, _)| other.rows == wanted.rows);
        let used: usize = sharing.map(|(_, filled)| filled.used()).sum();
        wanted.capacity.saturating_sub(used)
    }

    /// Returns whether a filter of this table can have this match; see [`NicModel::supports`].
    #[must_use]
    pub fn supports(&self, table: TableId, matches: &FilterMatch) -> bool {
        self.model.supports(table, matches)
    }

    /// Returns the lowest free location; `None` if the table is full or does not exist.
    #[must_use]
    pub fn free_location(&self, table: TableId) -> Option<u32> {
        (self.free(table) > 0).then(|| self.tables.get(table.index()).map(Filled::free_location)).flatten()
    }

    #[must_use]
    pub fn filter(&self, id: FilterId) -> Option<&Filter> {
        self.tables.get(id.table.index())?.slot(id.location).map(|slot| &slot.filter)
    }

    pub fn filters(&self) -> impl Iterator<Item = (FilterId, &Filter)> {
        (0..).map(TableId).zip(&self.tables).flat_map(|(table, filled)| {
            filled.slots().map(move |(location, slot)| (FilterId { table, location }, &slot.filter))
        })
    }

    /// Returns the filters of a table, by precedence.
    pub fn filters_by_rank(&self, table: TableId) -> impl Iterator<Item = (FilterId, &Filter)> {
        self.tables.get(table.index()).into_iter().flat_map(move |filled| {
            let filter = move |location| Some((FilterId { table, location }, &filled.slot(location)?.filter));
            filled.by_rank().into_iter().filter_map(filter)
        })
    }

    /// Installs a filter. If the precedence is by location, the filter's priority is its location.
    /// Otherwise the filter gets the lowest free location.
    ///
    /// # Errors
    /// Returns an error if the NIC refuses the change, which then has no effect.
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

    /// Removes a filter. Returns `None` if it does not exist.
    pub fn remove(&mut self, id: FilterId) -> Option<Filter> {
        let pattern = self.compared(self.filter(id)?)?;
        self.tables.get_mut(id.table.index())?.take(id.location, &pattern).map(|slot| slot.filter)
    }

    /// Replaces a filter atomically. Returns the previous filter.
    ///
    /// # Errors
    /// Returns an error if there is no filter to replace, or the NIC refuses the new filter. The
    /// previous filter then stays.
    pub fn replace(&mut self, id: FilterId, filter: Filter) -> Result<Filter, InsertError> {
        let before = *self.filter(id).filter(|_| filter.table == id.table).ok_or(InsertError::NoFilter)?;
        let pattern = self.check(&filter, Some(id.location))?;
        let by_location = self.model.tables()[id.table.index()].precedence == Precedence::Location;
        if by_location && filter.priority != id.location {
            let (found, at) = (filter.priority, id.location);
            return Err(InsertError::Priority { found, least: at, most: at });
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

    /// Returns the pattern of a filter if the NIC accepts the filter. `replaced` is the location of the
    /// filter that the new filter would replace, if any.
    fn check(&self, filter: &Filter, replaced: Option<u32>) -> Result<Pattern, InsertError> {
        let table = self.model.tables().get(filter.table.index()).ok_or(InsertError::NoTable)?;
        let filled = &self.tables[filter.table.index()];
        if filter.queue.0 >= self.queues || !filter.queue.0.is_multiple_of(table.queue_multiple) {
            return Err(InsertError::NoQueue);
        }
        let can_spread = table.spread && self.spread_table(filter).is_some();
        let spreads = filter.spread || filter.context.is_some();
        if !self.model.takes(filter.table, &filter.matches) {
            return Err(InsertError::Unsupported);
        }
        if spreads && !can_spread {
            return Err(InsertError::NoRss);
        }
        let pattern =
            if table.signature { signature::stored(&filter.matches) } else { Pattern::of(&filter.matches) };
        let pattern = pattern.ok_or(InsertError::Unsupported)?;
        let (found, possible) = (filter.priority, table.priorities());
        if !possible.contains(&found) {
            return Err(InsertError::Priority { found, least: *possible.start(), most: *possible.end() });
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

    /// Describes a filter's target for messages.
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

    /// Returns the RSS hash of a flow; 0 without RSS.
    pub(crate) fn hash(&self, flow: &FlowTuple) -> u32 {
        if self.model.rss().is_some() { self.toeplitz.of(flow, self.hashed_ports) } else { 0 }
    }

    /// Returns the bits of a flow that a table compares.
    pub(crate) fn key(&self, table: TableId, flow: &FlowTuple) -> Key {
        if self.is_signature(table) { signature::reduced(flow) } else { Key::of(flow) }
    }

    fn chain(&self, flow: &FlowTuple) -> &Chain {
        let (_, ether_type) = bits(flow.destination);
        self.model.program().flow(flow_kind(ether_type, flow.transport))
    }

    pub(crate) fn is_signature(&self, table: TableId) -> bool {
        self.model.tables().get(table.index()).is_some_and(|table| table.signature)
    }

    /// Returns the pattern of a filter; `None` if no packet can match.
    pub(crate) fn compared(&self, filter: &Filter) -> Option<Pattern> {
        if self.is_signature(filter.table) {
            signature::stored(&filter.matches)
        } else {
            Pattern::of(&filter.matches)
        }
    }

    /// Returns the deciding filter, if any, and the queue of a flow with this hash.
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

    /// Returns the queue of a flow that a filter matches.
    fn target(&self, filter: &Filter, hash: u32) -> QueueId {
        if !filter.spread {
            return filter.queue;
        }
        let spread = self.spread_table(filter).and_then(|table| entry_of(table, hash));
        spread.map_or(filter.queue, |spread| self.moved_up(spread, filter.queue))
    }

    /// Returns the sum of the indirection table's queue and the filter's queue, modulo the number of queues.
    pub(super) fn moved_up(&self, spread: QueueId, by: QueueId) -> QueueId {
        let queue = (u32::from(spread.0) + u32::from(by.0)) % u32::from(self.queues);
        // No truncation: below the number of queues.
        QueueId(queue as u16)
    }

    fn entry_queue(&self, hash: u32) -> Option<QueueId> {
        entry_of(&self.indirection, hash)
    }

    fn entry(&self, hash: u32) -> usize {
        hash as usize & self.indirection.len().wrapping_sub(1)
    }

    pub(crate) fn entry_of_hash(&self, hash: u32) -> Option<usize> {
        (!self.indirection.is_empty()).then(|| self.entry(hash))
    }

    /// Returns the filter that decides a flow's queue; `None` if no filter decides.
    #[must_use]
    pub fn deciding_filter(&self, flow: &FlowTuple) -> Option<FilterId> {
        self.decide(flow, self.hash(flow)).0
    }

    #[must_use]
    pub fn queue_of(&self, flow: &FlowTuple) -> QueueId {
        self.decide(flow, self.hash(flow)).1
    }

    /// Returns the queue that a flow would have without filters.
    #[must_use]
    pub fn unfiltered_queue_of(&self, flow: &FlowTuple) -> QueueId {
        let chain = self.chain(flow);
        let hashed = chain.steps.contains(&Step::Rss).then(|| self.entry_queue(self.hash(flow)));
        hashed.flatten().unwrap_or(chain.default)
    }

    /// Returns the indirection table entry that a flow's hash selects; `None` if RSS is off. A filter
    /// can still override the entry.
    #[must_use]
    pub fn rss_entry(&self, flow: &FlowTuple) -> Option<usize> {
        self.entry_of_hash(self.hash(flow))
    }

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
