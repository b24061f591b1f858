//! The queues that a class of flows can reach: satisfiability over masks.
//!
//! A class and a filter's match are conjunctions of masked fields.
//! - Two conjunctions are compatible if they are equal in all bits that both fix.
//! - A filter takes packets of a class if it is compatible with the class, unless filters of higher
//!   precedence cover their whole intersection.
//! - Coverage is decided exactly by splitting the intersection bit by bit, within a budget. Beyond the
//!   budget, the filter counts as reached.
//! - RSS is linear, so the entries that a class reaches are an affine space over its free bits.

use super::configured::{ConfiguredNic, FilterId};
use super::filled::Rank;
use super::program::Step;
use crate::filter::{Filter, FilterMatch, QueueId};
use crate::flow::Transport;
use crate::key::{
    CONNECTION_REQUEST, DESTINATION_PORT_SHIFT, ETHER_TYPE_IPV4, ETHER_TYPE_IPV6, Key, PROTOCOL_SHIFT,
    Pattern, is_ip,
};
use crate::packet::Header;
use crate::queue_set::QueueSet;

/// Maximum number of splits per coverage check, which bounds the time. If a check needs more splits,
/// the filter counts as not covered.
const BUDGET: usize = 4096;

impl ConfiguredNic {
    /// Returns the queues that flows of a class can reach: all reached queues, and perhaps more. For a
    /// five-tuple the result is exact.
    ///
    /// The result has additional queues in three cases:
    /// - filters with different masks together cover another filter, and the budget is exceeded
    /// - a table compares signatures, and a signature represents several flows
    /// - filters take exactly the part of a class that the hash would send to a queue
    ///
    /// Fields that the class leaves open have the values of [`crate::FlowTuple`]'s packets. If the class sets
    /// an Ethernet type, a hardware address or `connection_request`, its packets have this value.
    #[must_use]
    pub fn queues_of(&self, class: &FilterMatch) -> QueueSet {
        if let Some(flow) = class.as_flow() {
            return [self.queue_of(&flow)].into_iter().collect();
        }
        let mut queues = QueueSet::new();
        let Some(pattern) = Pattern::of(class) else { return queues };
        for (header, kind) in kinds(class) {
            if let Some(part) = pattern.and(&kind) {
                self.add_queues_of_kind(&header, &part, &mut queues);
            }
        }
        queues
    }

    /// Returns whether packets of some flow reach a filter; false if filters of higher precedence match all
    /// these packets. The result is also true for a filter in a table that no flow's packets reach, because
    /// the filter is for other packets, and for a filter in a table that compares signatures.
    #[must_use]
    pub fn decides(&self, id: FilterId, filter: &Filter) -> bool {
        let Some(pattern) = self.compared(filter).filter(|_| !self.is_signature(filter.table)) else {
            return true;
        };
        let parts = kinds(&filter.matches).into_iter();
        let parts = parts.filter_map(|(header, kind)| Some((header, pattern.and(&kind)?)));
        let reached: Vec<bool> =
            parts.filter_map(|(header, part)| self.reaches(&header, &part, id)).collect();
        reached.is_empty() || reached.contains(&true)
    }

    /// Returns whether packets of one kind reach a filter; `None` if the packets do not reach the
    /// filter's table.
    fn reaches(&self, header: &Header, part: &Pattern, id: FilterId) -> Option<bool> {
        let chain = self.model().program().chain(header);
        let mut taken: Vec<Pattern> = Vec::new();
        for step in &chain.steps {
            let Step::Table(table) = step else {
                if self.indirection.is_empty() {
                    continue;
                }
                return None;
            };
            if *table != id.table && self.is_signature(*table) {
                continue;
            }
            for (other, filter) in self.filters_by_rank(*table) {
                if other == id {
                    return Some(!covered(part, &taken));
                }
                taken.extend(self.compared(filter).and_then(|pattern| pattern.and(part)));
            }
        }
        None
    }

    /// Returns whether a filter decides for some flow of a class, if only the filters in `others` are
    /// also installed.
    #[must_use]
    pub(crate) fn decides_among(&self, id: FilterId, others: &[FilterId], class: &Pattern) -> bool {
        let pattern = |id: &FilterId| self.filter(*id).and_then(|filter| Pattern::of(&filter.matches));
        let Some(part) = pattern(&id).and_then(|pattern| pattern.and(class)) else { return false };
        kinds(&FilterMatch::ANY).into_iter().any(|(header, kind)| {
            let Some(part) = part.and(&kind) else { return false };
            let steps = &self.model().program().chain(&header).steps;
            let rank = |id: &FilterId| -> Option<(usize, Rank)> {
                let mut before =
                    steps.iter().take_while(|step| **step != Step::Rss || self.indirection.is_empty());
                let step = before.position(|step| *step == Step::Table(id.table))?;
                Some((step, self.tables.get(id.table.index())?.rank(id.location)))
            };
            let Some(own) = rank(&id) else { return false };
            let first = others.iter().filter(|other| rank(other).is_some_and(|rank| rank < own));
            let first: Vec<Pattern> = first.filter_map(pattern).collect();
            !covered(&part, &first)
        })
    }

    fn add_queues_of_kind(&self, header: &Header, part: &Pattern, queues: &mut QueueSet) {
        let chain = self.model().program().chain(header);
        let mut taken: Vec<Pattern> = Vec::new();
        for step in &chain.steps {
            match step {
                Step::Rss if self.indirection.is_empty() => {}
                Step::Rss => {
                    if !covered(part, &taken) {
                        self.add_rss_queues(header, part, &self.indirection, queues, |queue| queue);
                    }
                    return;
                }
                Step::Table(table) => {
                    let is_signature = self.is_signature(*table);
                    let filled = &self.tables[table.index()];
                    let before = taken.len();
                    let disjoint = self.model().tables()[table.index()].fields.never_overlap();
                    for location in filled.by_rank() {
                        let Some(slot) = filled.slot(location) else { continue };
                        let filter = &slot.filter;
                        if is_signature {
                            // Any flow of this protocol may have the signature, so its queue is possible.
                            // No flow certainly has the signature, so the filter covers no part.
                            let kind = filter.matches.transport.map(Transport::number);
                            if kind == Some(header.protocol) && !covered(part, &taken) {
                                queues.insert(filter.queue);
                            }
                            continue;
                        }
                        let Some(shared) = self.compared(filter).and_then(|pattern| pattern.and(part)) else {
                            continue;
                        };
                        let earlier = if disjoint { &taken[..before] } else { &taken[..] };
                        let known = !filter.spread && queues.contains(filter.queue);
                        if !known && !covered(&shared, earlier) {
                            if let Some(table) = self.spread_table(filter) {
                                let up = |queue| self.moved_up(queue, filter.queue);
                                self.add_rss_queues(header, &shared, table, queues, up);
                            } else {
                                queues.insert(filter.queue);
                            }
                        }
                        taken.push(shared);
                    }
                }
            }
        }
        if !covered(part, &taken) {
            queues.insert(chain.default);
        }
    }

    /// Adds the queues that packets of one kind reach through an indirection table.
    fn add_rss_queues(
        &self,
        header: &Header,
        part: &Pattern,
        table: &[QueueId],
        queues: &mut QueueSet,
        up: impl Fn(QueueId) -> QueueId,
    ) {
        let Some(mask) = table.len().checked_sub(1) else { return };
        if !is_ip(header.ether_type) {
            queues.insert(up(table[0]));
            return;
        }
        let is_ipv6 = header.ether_type == ETHER_TYPE_IPV6;
        let address_bits: u32 = if is_ipv6 { 128 } else { 32 };
        let transport =
            if header.protocol == Transport::Udp.number() { Transport::Udp } else { Transport::Tcp };
        let ports = self.hashed_ports().of(transport, is_ipv6);
        // List the input's bits in order: the value, and whether it is fixed.
        let address = |value: u128, mask: u128| {
            (0..address_bits).rev().map(move |bit| (value >> bit & 1 == 1, mask >> bit & 1 == 1))
        };
        let port = |value: u64, mask: u64| {
            let bits = (0..16).rev().filter(move |_| ports);
            bits.map(move |bit| (value >> bit & 1 == 1, mask >> bit & 1 == 1))
        };
        let Pattern { value, mask: fixed } = part;
        let shift = DESTINATION_PORT_SHIFT;
        let input = address(value.source, fixed.source)
            .chain(address(value.destination, fixed.destination))
            .chain(port(value.transport, fixed.transport))
            .chain(port(value.transport >> shift, fixed.transport >> shift));
        let mut offset = 0_usize;
        // Collect the contributions of the free bits in echelon form: no two contributions have the
        // same highest bit.
        let mut basis: Vec<usize> = Vec::new();
        for (place, (is_set, is_fixed)) in input.enumerate() {
            let contribution = self.rss_key().window(place) as usize & mask;
            if is_fixed {
                offset ^= if is_set { contribution } else { 0 };
                continue;
            }
            let rest = basis.iter().fold(contribution, |rest, vector| rest.min(rest ^ vector));
            if rest != 0 {
                basis.push(rest);
                basis.sort_unstable_by(|one, other| other.cmp(one));
            }
        }
        // The number of sums is at most the size of the table.
        let mut reached = vec![offset];
        for vector in basis {
            let moved: Vec<usize> = reached.iter().map(|entry| entry ^ vector).collect();
            reached.extend(moved);
        }
        queues.extend(reached.into_iter().map(|entry| up(table[entry])));
    }
}

/// Returns the kinds of packets of a class, and the header bits that each kind fixes.
fn kinds(class: &FilterMatch) -> Vec<(Header, Pattern)> {
    let request = class.connection_request.unwrap_or(false);
    let own_address = if class.mac_destination.is_none() { !u64::from(u16::MAX) } else { 0 };
    let multicast = class.mac_destination.is_some_and(|mac| mac[0] & 1 == 1);
    let mut kinds = Vec::new();
    let mut add = |ether_type: u16, protocol: u8| {
        let connection_request = request && protocol == Transport::Tcp.number();
        let header = Header { ether_type, protocol, fragment: false, multicast, connection_request };
        let value = Key {
            link: u64::from(ether_type),
            transport: u64::from(protocol) << PROTOCOL_SHIFT | if request { CONNECTION_REQUEST } else { 0 },
            ..Key::default()
        };
        let mask = Key {
            link: u64::from(u16::MAX) | own_address,
            transport: 0xff << PROTOCOL_SHIFT | CONNECTION_REQUEST,
            ..Key::default()
        };
        if connection_request == request {
            kinds.push((header, Pattern { value, mask }));
        }
    };
    match class.ether_type {
        Some(ether_type) if !is_ip(ether_type) => add(ether_type, 0),
        _ => {
            for ether_type in [ETHER_TYPE_IPV4, ETHER_TYPE_IPV6] {
                add(ether_type, Transport::Tcp.number());
                add(ether_type, Transport::Udp.number());
            }
        }
    }
    kinds
}

/// Returns whether every packet of `part` matches one of `cover`; false if the budget is exceeded.
pub(crate) fn covered(part: &Pattern, cover: &[Pattern]) -> bool {
    let relevant: Vec<Pattern> = cover.iter().filter_map(|pattern| pattern.and(part)).collect();
    // Each pattern takes a share of `part` that is a power of two. The sum must be at least 1.
    let fixed = part.mask.bit_count();
    let shares: f64 =
        relevant.iter().map(|pattern| (-f64::from(pattern.mask.bit_count() - fixed)).exp2()).sum();
    let mut budget = BUDGET;
    shares >= 1.0 && split(part, &relevant, &mut budget)
}

/// Returns the result of [`covered`] for patterns within `part`.
fn split(part: &Pattern, cover: &[Pattern], budget: &mut usize) -> bool {
    if cover.iter().any(|pattern| pattern.mask == part.mask) {
        return true;
    }
    if *budget == 0 {
        return false;
    }
    *budget -= 1;
    // Split on a bit that one of the patterns fixes: both halves must be covered.
    let Some(bit) = cover.first().and_then(|pattern| highest_other(&pattern.mask, &part.mask)) else {
        return false;
    };
    [Key::default(), bit].into_iter().all(|value| {
        let Some(half) = part.and(&Pattern { value, mask: bit }) else { return true };
        let within: Vec<Pattern> = cover.iter().filter_map(|pattern| pattern.and(&half)).collect();
        split(&half, &within, budget)
    })
}

/// Returns a bit that is set in `mask` but not in `other`.
fn highest_other(mask: &Key, other: &Key) -> Option<Key> {
    let wide = |mask: u128, other: u128| (mask & !other).checked_ilog2().map(|bit| 1_u128 << bit);
    let narrow = |mask: u64, other: u64| (mask & !other).checked_ilog2().map(|bit| 1_u64 << bit);
    let none = Key::default();
    None.or_else(|| narrow(mask.transport, other.transport).map(|transport| Key { transport, ..none }))
        .or_else(|| wide(mask.destination, other.destination).map(|destination| Key { destination, ..none }))
        .or_else(|| wide(mask.source, other.source).map(|source| Key { source, ..none }))
        .or_else(|| narrow(mask.link, other.link).map(|link| Key { link, ..none }))
}
