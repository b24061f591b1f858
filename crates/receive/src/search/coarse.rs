//! Changes that move many flows together: filters for classes, and entries of the indirection table.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Owner, Search};
use crate::key::Pattern;
use crate::policy::ClassId;
use crate::{
    AddressMatch, Change, ContextId, Filter, FilterId, FilterMatch, FlowIndex, Precedence, QueueId, TableId,
    Transport,
};

#[cfg(test)]
mod tests;

/// Maximum number of passes over the indirection table. It bounds the time of a search.
const MOST_ROUNDS: usize = 8;

/// Splits a match by transport protocol. A match that names a protocol is not split.
fn by_transport(matches: &FilterMatch) -> Vec<FilterMatch> {
    let with = |transport| FilterMatch { transport: Some(transport), ..*matches };
    match matches.transport {
        Some(_) => vec![*matches],
        None => [Transport::Tcp, Transport::Udp].map(with).to_vec(),
    }
}

/// Splits a match without addresses by IP version. Returns no parts for a match that has an address.
fn by_version(matches: &FilterMatch) -> Vec<FilterMatch> {
    let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let with = |any| FilterMatch { destination: Some(AddressMatch::prefix(any, 0)), ..*matches };
    match matches.source.or(matches.destination) {
        Some(_) => Vec::new(),
        None => any.map(with).to_vec(),
    }
}

/// The largest number of filters that [`Search::cover`] installs for a class: one per protocol and IP
/// version.
const MOST_PARTS: usize = 4;

/// The class filters, in the order of the classes, while the search installs them.
struct ClassFilters {
    /// The free locations for class filters, by table, in descending order. Used only if the lowest
    /// location takes precedence.
    places: Vec<Vec<u32>>,
    installed: Vec<FilterId>,
}

/// Destination of a class, and the packets that belong to earlier classes.
struct Target<'c> {
    queue: QueueId,
    context: Option<ContextId>,
    earlier: &'c [Pattern],
}

impl Search {
    /// Runs the first search. Returns whether a filter was missing.
    ///
    /// If the NIC has no class filters yet, the search tries to install them: for each class that one filter
    /// can express, and that has other queues than the rest or shares packets with a later class that has.
    /// These filters also steer new flows. The search omits them if they prevent filters for single flows and
    /// the placement without them costs less.
    pub(super) fn settle_classes(&mut self, order: &[FlowIndex]) -> bool {
        let all = self.policy.default_queues();
        let listed = self.policy.classes_as_matches();
        let is_needed = |place: usize, matches: &FilterMatch, queues: &[QueueId]| {
            // A class on the default queues needs a filter only if it shares packets with a later class
            // that has other queues.
            let shares =
                |(_, later, queues): &(_, FilterMatch, &[QueueId])| *queues != all && later.overlaps(matches);
            queues != all || listed[place + 1..].iter().any(shares)
        };
        let needed = listed
            .iter()
            .enumerate()
            .filter(|(place, (_, matches, queues))| is_needed(*place, matches, queues));
        let classes: Vec<(ClassId, FilterMatch, Vec<QueueId>)> =
            needed.map(|(_, (class, matches, queues))| (*class, *matches, queues.to_vec())).collect();
        if classes.is_empty() || self.has_class_filters() {
            return self.greedy(order);
        }
        let mut with_classes = self.clone();
        with_classes.cover_all(&classes);
        let starved_with = with_classes.greedy(order);
        if !starved_with {
            *self = with_classes;
            return false;
        }
        let starved = self.greedy(order);
        // At equal cost, prefer class filters: they also steer new flows.
        if with_classes.cost() <= self.cost() {
            *self = with_classes;
            return starved_with;
        }
        starved
    }

    fn has_class_filters(&self) -> bool {
        self.owners.iter().flatten().any(|owner| *owner == Owner::Class)
    }

    /// Installs filters for all flows of each class, so that the first class that matches a packet decides.
    fn cover_all(&mut self, classes: &[(ClassId, FilterMatch, Vec<QueueId>)]) {
        let tables = (0..self.owners.len()).map(|table| TableId(table as u16));
        let mut filters = ClassFilters {
            places: tables.map(|table| self.last_places(table, MOST_PARTS * classes.len())).collect(),
            installed: Vec::new(),
        };
        for (class, matches, queues) in classes {
            self.cover(*class, matches, queues, &mut filters);
        }
        self.move_last(filters.installed);
    }

    /// Installs a filter for all flows of a class. If filters must name the protocol, or also the IP
    /// version, installs one filter for each. If the class has several queues and the NIC has an RSS
    /// context, the filter spreads the flows over the context.
    fn cover(
        &mut self,
        class: ClassId,
        matches: &FilterMatch,
        queues: &[QueueId],
        filters: &mut ClassFilters,
    ) {
        let queue = queues.iter().copied().min_by_key(|queue| self.map.flows_on(*queue).len());
        let Some(queue) = queue else { return };
        let context = (queues.len() > 1).then(|| self.map.add_context(queues).ok()).flatten();
        let earlier = self.policy.earlier_parts(class, matches);
        let mut covered = |search: &mut Self, matches: &FilterMatch| {
            let over = |context| Target { queue, context, earlier: &earlier };
            context.is_some() && search.cover_with(matches, &over(context), filters)
                || search.cover_with(matches, &over(None), filters)
        };
        if covered(self, matches) {
            return;
        }
        for part in by_transport(matches) {
            if part != *matches && covered(self, &part) {
                continue;
            }
            for part in by_version(&part) {
                covered(self, &part);
            }
        }
    }

    /// Installs a filter with the lowest precedence in the first table that accepts it. The filter
    /// selects a queue or an RSS context. Returns whether the filter is installed.
    ///
    /// The function does not install the filter in these cases:
    /// - The placement gets worse.
    /// - The filter decides for flows of earlier classes.
    /// - The filter decides for no flow.
    fn cover_with(&mut self, matches: &FilterMatch, target: &Target<'_>, filters: &mut ClassFilters) -> bool {
        for table in 0..self.owners.len() {
            let id = TableId(table as u16);
            if !self.map.nic().supports(id, matches) {
                continue;
            }
            let description = &self.map.nic().model().tables()[table];
            let is_by_location = description.precedence == Precedence::Location;
            let lowest = *description.priorities().start();
            let place = if is_by_location { filters.places[table].last().copied() } else { Some(lowest) };
            let Some(priority) = place else { continue };
            let before = self.policy.cost();
            let filter = Filter::new(id, priority, *matches, target.queue);
            let filter = target.context.map_or(filter, |context| filter.over(context));
            let Ok(installed) = self.apply(Change::Insert(filter)) else { continue };
            self.set_owner(installed, Owner::Class);
            let decides = |part: &Pattern| self.map.nic().decides_among(installed, &filters.installed, part);
            let is_useful = Pattern::of(matches).is_some_and(|whole| decides(&whole));
            if is_useful && self.policy.cost() <= before && !target.earlier.iter().any(decides) {
                filters.installed.push(installed);
                if is_by_location {
                    filters.places[table].pop();
                }
                return true;
            }
            self.take_out(installed);
        }
        false
    }

    /// Returns up to `most` of the last free locations of a table in descending order. Returns none if
    /// the table does not take the lowest location first.
    fn last_places(&self, table: TableId, most: usize) -> Vec<u32> {
        let description = &self.map.nic().model().tables()[table.index()];
        if description.precedence != Precedence::Location {
            return Vec::new();
        }
        let free = |location: &u32| self.map.nic().filter(FilterId { table, location: *location }).is_none();
        description.priorities().rev().filter(free).take(most).collect()
    }

    /// Moves filters to the last free locations, in the same order, so that filters for single flows
    /// precede them.
    fn move_last(&mut self, filters: Vec<FilterId>) {
        for id in filters.into_iter().rev() {
            let Some(filter) = self.map.nic().filter(id).copied() else { continue };
            // The filter still occupies its own location, so move the filter only to a later one.
            let last = self.last_places(id.table, 1).first().copied();
            let Some(priority) = last.filter(|last| *last > id.location) else { continue };
            self.take_out(id);
            if let Ok(moved) = self.apply(Change::Insert(Filter { priority, ..filter })) {
                self.set_owner(moved, Owner::Class);
            }
        }
    }

    /// Repeats the search from other starting points, and keeps the best result: first with the larger of
    /// two mutually exclusive tables, then with the indirection table fitted to the flows.
    pub(super) fn jump(&mut self, order: &[FlowIndex]) {
        let capacity = |search: &Self, table: &TableId| search.nic().model().tables()[table.index()].capacity;
        let excludes = |search: &Self, table: &TableId| search.nic().model().tables()[table.index()].excludes;
        if let Some(table) = self.flow_tables.iter().copied().find(|table| {
            excludes(self, table).is_some_and(|other| capacity(self, &other) < capacity(self, table))
        }) {
            let mut exchanged = self.clone();
            exchanged.clear_flows();
            let other = excludes(self, &table);
            exchanged.flow_tables.retain(|id| Some(*id) != other);
            exchanged.greedy(order);
            if exchanged.cost() < self.cost() {
                *self = exchanged;
            }
        }
        if !self.map.nic().indirection().is_empty() && self.is_wanting() {
            let mut fitted = self.clone();
            fitted.clear_flows();
            fitted.fit_indirection();
            fitted.greedy(order);
            if fitted.cost() < self.cost() {
                *self = fitted;
            }
        }
        // Flows on forbidden queues take filters from flows that do not need one.
        let mut donors = None;
        for index in order {
            if self.policy.cost().is_accepted() {
                break;
            }
            self.rob(*index, &mut donors);
        }
    }

    fn is_wanting(&self) -> bool {
        self.map.flows().any(|(index, _, queue)| {
            self.flow(index).is_some_and(|flow| self.policy.better_queue(flow, queue).is_some())
        })
    }

    fn clear_flows(&mut self) {
        for index in self.indices() {
            let filter = self.placed.get_mut(index.index()).and_then(Option::as_mut);
            if let Some(id) = filter.and_then(|placed| placed.filter.take()) {
                self.take_out(id);
            }
        }
    }

    /// Sets each entry of the indirection table that has flows to the queue of least cost. The entries with
    /// most flows come first.
    fn fit_indirection(&mut self) {
        let mut entries: Vec<usize> = (0..self.map.nic().indirection().len()).collect();
        entries.retain(|entry| !self.map.flows_of_entry(*entry).is_empty());
        entries.sort_by_key(|entry| std::cmp::Reverse(self.map.flows_of_entry(*entry).len()));
        for _ in 0..MOST_ROUNDS {
            let mut moved = false;
            for entry in &entries {
                moved |= self.fit_entry(*entry);
            }
            if !moved {
                break;
            }
        }
    }

    fn fit_entry(&mut self, entry: usize) -> bool {
        let mut best = (self.policy.cost(), self.map.nic().indirection()[entry]);
        let before = best.1;
        for queue in self.sensible_queues(entry) {
            if self.redirect(entry, queue) && self.policy.cost() < best.0 {
                best = (self.policy.cost(), queue);
            }
        }
        self.redirect(entry, best.1);
        best.1 != before
    }

    /// Returns the candidate queues for an entry: for each class among the entry's flows, the allowed
    /// queues, or only the cheapest of them if the cost depends only on the queues' loads.
    fn sensible_queues(&self, entry: usize) -> Vec<QueueId> {
        /// Number of queues to try per class. One queue is not enough: the queues are sorted by the cost of
        /// one flow, but an entry can have several flows.
        const TRIED: usize = 4;
        let limit = self.map.nic().rss_queues();
        let present = self.map.nic().indirection()[entry];
        let mut sensible = Vec::new();
        let mut seen: Vec<ClassId> = Vec::new();
        for index in self.map.flows_of_entry(entry) {
            let Some(flow) = self.flow(*index) else { continue };
            if seen.contains(&flow.class) {
                continue;
            }
            seen.push(flow.class);
            let reach = self.policy.allowed(flow).iter().copied();
            let mut reach: Vec<QueueId> =
                reach.filter(|queue| queue.0 < limit && *queue != present).collect();
            if self.policy.knows_load_only() {
                // Sort the queues by the policy's cost for one of the flows.
                reach.sort_by_key(|queue| (self.policy.change(flow, present, *queue), *queue));
                reach.truncate(TRIED);
            }
            sensible.extend(reach);
        }
        sensible.sort_unstable();
        sensible.dedup();
        sensible
    }

    fn redirect(&mut self, entry: usize, queue: QueueId) -> bool {
        let redirected = self.map.redirect(entry, queue).is_ok();
        if redirected {
            self.follow();
        }
        redirected
    }
}
