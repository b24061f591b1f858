//! A NIC whose tables are filled.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::model::{FieldMatch, FilterTable, NicModel, Precedence};
use super::rss::{RssKey, hash_input};
use crate::filter::{Filter, FilterMatch, QueueId, TableId};
use crate::flow::FlowTuple;
use crate::key::{Key, Pattern};
use crate::queue_set::QueueSet;

/// An installed filter: its table and its place there. The place of a filter that was removed is given to
/// the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilterId {
    /// The table.
    pub table: TableId,
    /// The place in the table, from 0: where precedence is by location, this is the location.
    pub location: u32,
}

/// Why a NIC cannot be configured so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigureError {
    /// The model has fewer queues, or none is asked for.
    #[error("{wanted} queues: this NIC has 1 to {most}")]
    Queues {
        /// Queues asked for.
        wanted: u16,
        /// Queues of the model.
        most: u16,
    },
    /// An indirection table of another length than the NIC's, or with a queue that it cannot name.
    #[error("the indirection table has {wanted} entries and names queues below {limit}")]
    Indirection {
        /// Entries of the NIC's table; 0 if it has none.
        wanted: usize,
        /// The first queue that an entry cannot name.
        limit: u16,
    },
}

/// Why a filter cannot be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InsertError {
    /// The model has no such table.
    #[error("there is no such filter table")]
    NoTable,
    /// All places are taken.
    #[error("the filter table is full")]
    Full,
    /// The table's filters cannot match so.
    #[error("filters of this table cannot match so")]
    Unsupported,
    /// The table's filters share one mask, and others have another.
    #[error("the filters of this table share one mask, and others have another")]
    OtherMask,
    /// A priority or location that the table does not have.
    #[error("the table has no such priority")]
    Priority,
    /// Another filter stands there already: with the same key, or at the same location.
    #[error("another filter of the table has this key or location")]
    Taken,
    /// The queue is not in use.
    #[error("there is no such queue")]
    NoQueue,
    /// No filter stands there that could be replaced.
    #[error("no filter stands there")]
    NoFilter,
}

/// Filters of one table with the same mask, by their masked bits.
#[derive(Clone, Debug, Default)]
struct Shape {
    mask: Key,
    /// Locations, of which the first decides.
    filters: FxHashMap<Key, Vec<u32>>,
}

/// A filled table.
#[derive(Clone, Debug, Default)]
struct Table {
    filters: Vec<Option<(Filter, Pattern)>>,
    free: Vec<u32>,
    used: usize,
    shapes: Vec<Shape>,
}

/// A model with its queues, RSS key, indirection table and filters.
#[derive(Clone, Debug)]
pub struct ConfiguredNic {
    model: Arc<NicModel>,
    queues: u16,
    key: RssKey,
    indirection: Vec<QueueId>,
    tables: Vec<Table>,
}

impl ConfiguredNic {
    /// The model with its defaults: no filter, and RSS over all `queues` in turn.
    ///
    /// # Errors
    /// When the model does not have so many queues.
    pub fn new(model: &NicModel, queues: u16) -> Result<Self, ConfigureError> {
        let most = model.queues();
        if queues == 0 || queues > most {
            return Err(ConfigureError::Queues { wanted: queues, most });
        }
        let entries = |rss: super::Rss| {
            let turn = (0..queues.min(rss.queues)).map(QueueId).cycle();
            turn.take(rss.entries).collect()
        };
        Ok(Self {
            model: Arc::new(model.clone()),
            queues,
            key: RssKey::MICROSOFT,
            indirection: model.rss().map(entries).unwrap_or_default(),
            tables: model.tables().iter().map(|_| Table::default()).collect(),
        })
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

    /// Secret of the hash.
    #[must_use]
    pub fn rss_key(&self) -> &RssKey {
        &self.key
    }

    /// Sets the secret of the hash.
    pub fn set_rss_key(&mut self, key: RssKey) {
        self.key = key;
    }

    /// The indirection table; empty without RSS.
    #[must_use]
    pub fn indirection(&self) -> &[QueueId] {
        &self.indirection
    }

    /// Sets the indirection table.
    ///
    /// # Errors
    /// When the NIC's table is of another length, or cannot name one of the queues.
    pub fn set_indirection(&mut self, indirection: Vec<QueueId>) -> Result<(), ConfigureError> {
        let limit = self.model.rss().map_or(0, |rss| rss.queues.min(self.queues));
        let wanted = self.indirection.len();
        if indirection.len() != wanted || indirection.iter().any(|queue| queue.0 >= limit) {
            return Err(ConfigureError::Indirection { wanted, limit });
        }
        self.indirection = indirection;
        Ok(())
    }

    /// Filters in a table.
    #[must_use]
    pub fn used(&self, table: TableId) -> usize {
        self.tables.get(table.index()).map_or(0, |table| table.used)
    }

    /// Filters that a table still has room for.
    #[must_use]
    pub fn free(&self, table: TableId) -> usize {
        let capacity = self.model.tables().get(table.index()).map_or(0, |table| table.capacity);
        capacity.saturating_sub(self.used(table))
    }

    /// Whether a filter of this table can match so, apart from what its other filters and its size permit.
    #[must_use]
    pub fn supports(&self, table: TableId, matches: &FilterMatch) -> bool {
        self.model.supports(table, matches)
    }

    /// The lowest location at which no filter stands; none in a full table.
    #[must_use]
    pub fn free_location(&self, table: TableId) -> Option<u32> {
        let filled = self.tables.get(table.index())?;
        if self.free(table) == 0 {
            return None;
        }
        filled.free.iter().min().copied().or_else(|| u32::try_from(filled.filters.len()).ok())
    }

    /// An installed filter.
    #[must_use]
    pub fn filter(&self, id: FilterId) -> Option<&Filter> {
        let place = self.tables.get(id.table.index())?.filters.get(id.location as usize)?;
        place.as_ref().map(|(filter, _)| filter)
    }

    /// The installed filters, table by table and by location.
    pub fn filters(&self) -> impl Iterator<Item = (FilterId, &Filter)> {
        (0..).zip(&self.tables).flat_map(|(table, filled)| {
            (0..).zip(&filled.filters).filter_map(move |(location, place)| {
                let (filter, _) = place.as_ref()?;
                Some((FilterId { table: TableId(table), location }, filter))
            })
        })
    }

    /// Installs a filter.
    ///
    /// # Errors
    /// When the NIC cannot take it: nothing has changed then.
    pub fn insert(&mut self, filter: Filter) -> Result<FilterId, InsertError> {
        let pattern = self.check(&filter, None)?;
        let location = match self.model.tables()[filter.table.index()].precedence {
            Precedence::Location => filter.priority,
            _ => self.free_location(filter.table).ok_or(InsertError::Full)?,
        };
        if self.free(filter.table) == 0 {
            return Err(InsertError::Full);
        }
        let id = FilterId { table: filter.table, location };
        if self.filter(id).is_some() {
            return Err(InsertError::Taken);
        }
        self.put(id, filter, pattern);
        Ok(id)
    }

    /// Takes a filter out; none if none stands there.
    pub fn remove(&mut self, id: FilterId) -> Option<Filter> {
        let table = self.tables.get_mut(id.table.index())?;
        let (filter, pattern) = table.filters.get_mut(id.location as usize)?.take()?;
        table.used -= 1;
        table.free.push(id.location);
        if let Some(shape) = table.shapes.iter_mut().find(|shape| shape.mask == pattern.mask) {
            if let Some(locations) = shape.filters.get_mut(&pattern.value) {
                locations.retain(|location| *location != id.location);
                if locations.is_empty() {
                    shape.filters.remove(&pattern.value);
                }
            }
        }
        table.shapes.retain(|shape| !shape.filters.is_empty());
        Some(filter)
    }

    /// Puts a filter in the place of another, in one step.
    ///
    /// # Errors
    /// When there is no filter to replace, or the NIC cannot take the new one there: nothing has changed then.
    pub fn replace(&mut self, id: FilterId, filter: Filter) -> Result<Filter, InsertError> {
        if filter.table != id.table || self.filter(id).is_none() {
            return Err(InsertError::NoFilter);
        }
        let pattern = self.check(&filter, Some(id))?;
        if let Some(FilterTable { precedence: Precedence::Location, .. }) =
            self.model.tables().get(id.table.index())
            && filter.priority != id.location
        {
            return Err(InsertError::Priority);
        }
        let before = self.remove(id).ok_or(InsertError::NoFilter)?;
        self.put(id, filter, pattern);
        Ok(before)
    }

    /// Whether the NIC takes a filter, in place of `replaced` if there is one.
    fn check(&self, filter: &Filter, replaced: Option<FilterId>) -> Result<Pattern, InsertError> {
        let model = self.model.tables().get(filter.table.index()).ok_or(InsertError::NoTable)?;
        let table = &self.tables[filter.table.index()];
        if filter.queue.0 >= self.queues {
            return Err(InsertError::NoQueue);
        }
        if !self.model.supports(filter.table, &filter.matches) || filter.spread && !model.spread {
            return Err(InsertError::Unsupported);
        }
        let pattern = Pattern::of(&filter.matches).ok_or(InsertError::Unsupported)?;
        let others = || {
            let except = replaced.map(|id| id.location);
            (0_u32..).zip(&table.filters).filter(move |(location, _)| Some(*location) != except)
        };
        let global = [model.fields.source, model.fields.source_port, model.fields.destination_port];
        if global.contains(&FieldMatch::GlobalMask)
            && others().filter_map(|(_, place)| place.as_ref()).any(|(_, other)| other.mask != pattern.mask)
        {
            return Err(InsertError::OtherMask);
        }
        let priorities = match model.precedence {
            Precedence::Unique => 0..1,
            Precedence::Priority { levels } => 1..levels + 1,
            Precedence::Location => 0..u32::try_from(model.capacity).unwrap_or(u32::MAX),
        };
        if !priorities.contains(&filter.priority) {
            return Err(InsertError::Priority);
        }
        if model.precedence == Precedence::Unique {
            let shape = table.shapes.iter().find(|shape| shape.mask == pattern.mask);
            let same = shape.and_then(|shape| shape.filters.get(&pattern.value));
            if same.is_some_and(|same| same.iter().any(|at| Some(*at) != replaced.map(|id| id.location))) {
                return Err(InsertError::Taken);
            }
        }
        Ok(pattern)
    }

    fn put(&mut self, id: FilterId, filter: Filter, pattern: Pattern) {
        let table = &mut self.tables[id.table.index()];
        let at = id.location as usize;
        while table.filters.len() <= at {
            if table.filters.len() < at {
                table.free.push(table.filters.len() as u32);
            }
            table.filters.push(None);
        }
        table.free.retain(|free| *free != id.location);
        table.filters[at] = Some((filter, pattern));
        table.used += 1;
        let found = table.shapes.iter().position(|shape| shape.mask == pattern.mask);
        let shape = found.unwrap_or_else(|| {
            table.shapes.push(Shape { mask: pattern.mask, filters: FxHashMap::default() });
            table.shapes.len() - 1
        });
        let locations = table.shapes[shape].filters.entry(pattern.value).or_default();
        locations.push(id.location);
        let filters = &table.filters;
        locations.sort_by_key(|location| {
            let priority = filters[*location as usize].as_ref().map_or(0, |(filter, _)| filter.priority);
            (std::cmp::Reverse(priority), *location)
        });
    }

    /// The filter that decides where a flow's packets go; none if no filter does.
    #[must_use]
    pub fn deciding_filter(&self, flow: &FlowTuple) -> Option<FilterId> {
        let key = Key::of(flow);
        (0..).zip(&self.tables).find_map(|(table, filled)| {
            let id = TableId(table);
            let precedence = self.model.tables()[id.index()].precedence;
            let firsts = filled.shapes.iter().filter_map(|shape| {
                let location = *shape.filters.get(&key.and(&shape.mask))?.first()?;
                let (filter, _) = filled.filters[location as usize].as_ref()?;
                let rank = match precedence {
                    Precedence::Priority { .. } => std::cmp::Reverse(filter.priority),
                    _ => std::cmp::Reverse(0),
                };
                Some((rank, location))
            });
            firsts.min().map(|(_, location)| FilterId { table: id, location })
        })
    }

    /// The queue that a flow's packets reach.
    #[must_use]
    pub fn queue_of(&self, flow: &FlowTuple) -> QueueId {
        match self.deciding_filter(flow).and_then(|id| self.filter(id)) {
            Some(filter) if filter.spread => QueueId((self.rss_queue(flow).0 + filter.queue.0) % self.queues),
            Some(filter) => filter.queue,
            None => self.rss_queue(flow),
        }
    }

    fn rss_queue(&self, flow: &FlowTuple) -> QueueId {
        if self.indirection.is_empty() {
            return self.model.default_queue();
        }
        let hash = self.key.hash(hash_input(flow, true)) as usize;
        self.indirection[hash % self.indirection.len()]
    }

    /// Queues that packets of a class can reach: all that some packet that matches does reach, and perhaps
    /// more. Exactly one for a whole five-tuple.
    #[must_use]
    pub fn queues_of(&self, class: &FilterMatch) -> QueueSet {
        if let Some(flow) = class.as_flow() {
            return [self.queue_of(&flow)].into_iter().collect();
        }
        let Some(pattern) = Pattern::of(class) else { return QueueSet::new() };
        let filters = self.tables.iter().flat_map(|table| table.filters.iter().flatten());
        let mut queues: QueueSet =
            filters.filter(|(_, other)| other.overlaps(&pattern)).map(|(filter, _)| filter.queue).collect();
        queues.extend(self.indirection.iter().copied());
        queues.insert(self.model.default_queue());
        queues
    }
}
