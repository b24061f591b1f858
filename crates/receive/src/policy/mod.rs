//! Policies: the cost of a placement of flows on queues, independent of the NIC.
//!
//! A policy is a cost function over *flows on queues* (Dragonet, TRIOS 2015, section 3.4). It is read from a
//! file ([`PolicyFile`]) and bound to a host's queues ([`PolicyFile::bind`]). The search reports every
//! placement and move to a [`Policy`], which returns the present cost and the change by a move. It is
//! independent of filters and tables, so the same file serves every NIC.
//!
//! ```text
//! file ─ parse ─> terms and classes ─ bind to queues ─> pools of queues, each with its terms ─ place, remove ─> cost
//! ```
//!
//! A *class* is a set of flows with its own queues (performance isolation, Algorithm 2 of the paper), or pinned to queues. Flows
//! without a class are the *rest*. Queues that several classes share are a *pool*. The cost is the weighted sum of the terms of
//! each pool; a flow outside its class's queues is a violation.

mod bind;
mod classes;
mod cost;
mod file;
mod load;
mod locality;
mod script;
#[cfg(test)]
mod tests;

use std::fmt::Write;

pub use bind::BindError;
pub use classes::Selector;
pub use cost::{Cost, CostFunction, Weight};
pub use file::{ClassSpec, PolicyFile, QueueShare, ReadScript, TermKind, TermSpec};
pub use load::{Balance, Measure};
pub use locality::{FewestChanges, Locality, Queues};
pub use script::{LONGEST_SCRIPT, MOST_OPERATIONS, Script, ScriptError, ScriptSource, Scripted};

use crate::flows::ObservedFlow;
use crate::{FilterMatch, FlowTuple, QueueId};

/// A class of a policy, in the order of its file; the last one is the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u8);

impl ClassId {
    /// As an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A flow as cost functions see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Addresses and ports.
    pub tuple: FlowTuple,
    /// Its class.
    pub class: ClassId,
    /// Receive rate, bit/s; 0 if unknown.
    pub rate_bps: u64,
    /// Processor of the thread that reads it.
    pub reader: Option<u32>,
    /// Its previous queue.
    pub before: Option<QueueId>,
}

/// A class bound to queues.
#[derive(Clone, Debug)]
struct Class {
    name: String,
    selector: Selector,
    /// Allowed queues, ascending.
    allowed: Vec<QueueId>,
    is_allowed: Vec<bool>,
    pool: usize,
    /// Its flows, and those outside its queues.
    flows: u64,
    misplaced: u64,
}

/// Queues whose loads are compared.
#[derive(Clone, Debug)]
struct Pool {
    terms: Vec<(Weight, Box<dyn CostFunction>)>,
}

/// A policy with its placement.
#[derive(Clone, Debug)]
pub struct Policy {
    name: String,
    classes: Vec<Class>,
    pools: Vec<Pool>,
    queues: u16,
}

/// Placement of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassState {
    /// Name of the class; `rest` for flows without one.
    pub name: String,
    /// Allowed queues.
    pub queues: Vec<QueueId>,
    /// Its flows.
    pub flows: u64,
    /// Flows outside its queues.
    pub misplaced: u64,
}

impl Policy {
    /// Its name, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the queues of its NIC.
    #[must_use]
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// Converts an observed flow; its class is the first one that selects it.
    #[must_use]
    pub fn classify(&self, observed: &ObservedFlow) -> Flow {
        let rest = self.classes.len() - 1;
        let class = self.classes[..rest].iter().position(|class| class.selector.selects(observed));
        Flow {
            tuple: observed.tuple,
            // At most 255, by the file's limit.
            class: ClassId(class.unwrap_or(rest) as u8),
            rate_bps: observed.rate_bps,
            reader: observed.reader,
            before: observed.queue,
        }
    }

    fn pool_of(&self, flow: &Flow) -> &Pool {
        &self.pools[self.classes[flow.class.index()].pool]
    }

    /// Whether a flow may use a queue.
    #[must_use]
    pub fn allows(&self, flow: &Flow, queue: QueueId) -> bool {
        self.classes[flow.class.index()].is_allowed[queue.index()]
    }

    /// The allowed queues of a flow, ascending.
    #[must_use]
    pub fn allowed(&self, flow: &Flow) -> &[QueueId] {
        &self.classes[flow.class.index()].allowed
    }

    /// The queues of flows without a class, the targets of the NIC's default.
    #[must_use]
    pub fn default_queues(&self) -> &[QueueId] {
        self.classes.last().map_or(&[], |rest| rest.allowed.as_slice())
    }

    /// A flow was added to this queue.
    pub fn place(&mut self, flow: &Flow, queue: QueueId) {
        let class = &mut self.classes[flow.class.index()];
        class.flows += 1;
        class.misplaced += u64::from(!class.is_allowed[queue.index()]);
        self.pools[class.pool].terms.iter_mut().for_each(|(_, term)| term.place(flow, queue));
    }

    /// A flow was removed from this queue.
    pub fn remove(&mut self, flow: &Flow, queue: QueueId) {
        let class = &mut self.classes[flow.class.index()];
        class.flows -= 1;
        class.misplaced -= u64::from(!class.is_allowed[queue.index()]);
        self.pools[class.pool].terms.iter_mut().for_each(|(_, term)| term.remove(flow, queue));
    }

    /// A flow moved.
    pub fn shift(&mut self, flow: &Flow, from: QueueId, to: QueueId) {
        self.remove(flow, from);
        self.place(flow, to);
    }

    /// The cost of the placement.
    #[must_use]
    pub fn cost(&self) -> Cost {
        let misplaced: u64 = self.classes.iter().map(|class| class.misplaced).sum();
        let terms =
            self.pools.iter().flat_map(|pool| &pool.terms).map(|(weight, term)| term.cost() * *weight);
        terms.sum::<Cost>() + Cost::violations(misplaced.cast_signed())
    }

    /// The difference in cost if a flow moved.
    #[must_use]
    pub fn change(&self, flow: &Flow, from: QueueId, to: QueueId) -> Cost {
        let misplaced = |queue| i64::from(!self.allows(flow, queue));
        let terms =
            self.pool_of(flow).terms.iter().map(|(weight, term)| term.change(flow, from, to) * *weight);
        terms.sum::<Cost>() + Cost::violations(misplaced(to) - misplaced(from))
    }

    /// Returns a better queue for a flow, and the change in cost; none if there is none. Among equals the
    /// first.
    #[must_use]
    pub fn better_queue(&self, flow: &Flow, from: QueueId) -> Option<(QueueId, Cost)> {
        let allowed = self.allowed(flow);
        let gain = |to: QueueId| (to, self.change(flow, from, to));
        // The queues differ only by load: one search suffices.
        let least = match self.pool_of(flow).terms.as_slice() {
            [(_, term)] if self.allows(flow, from) && term.is_content(flow, from) => return None,
            [(_, term)] => term.least(flow, allowed),
            _ => None,
        };
        let best = match least {
            Some(least) => Some(gain(least)),
            None => allowed.iter().copied().filter(|to| *to != from).map(gain).min_by_key(|(_, cost)| *cost),
        };
        best.filter(|(_, cost)| *cost < Cost::ZERO)
    }

    /// Returns whether a term has determined that the flow's queue exceeds its final share.
    #[must_use]
    pub fn is_overloaded(&self, flow: &Flow, queue: QueueId) -> bool {
        self.pool_of(flow).terms.iter().any(|(_, term)| term.is_overloaded(queue))
    }

    /// A lower bound for any placement, as far as known: the flows of each class on its queues, as even as
    /// possible.
    #[must_use]
    pub fn bound(&self) -> Option<Cost> {
        let terms = self.pools.iter().flat_map(|pool| &pool.terms);
        terms.map(|(weight, term)| Some(term.bound()? * *weight)).sum()
    }

    /// Whether empty queues are equivalent to the policy.
    #[must_use]
    pub fn knows_load_only(&self) -> bool {
        let terms = self.pools.iter().flat_map(|pool| &pool.terms);
        terms.map(|(_, term)| term).all(|term| term.knows_load_only())
    }

    /// Rank in the order of placement: by class in the file's order, the rest last; within a class the heaviest
    /// first.
    #[must_use]
    pub fn rank(&self, flow: &Flow) -> (ClassId, std::cmp::Reverse<u64>) {
        let burden = self.pool_of(flow).terms.iter().map(|(_, term)| term.burden(flow)).max();
        (flow.class, std::cmp::Reverse(burden.unwrap_or(0)))
    }

    /// A search begins.
    pub fn begin(&mut self) {
        self.terms().for_each(|term| term.begin());
    }

    /// Why the costs are unreliable, if a script failed. The placement is then useless.
    pub fn fault(&mut self) -> Option<ScriptError> {
        self.terms().find_map(|term| term.fault())
    }

    fn terms(&mut self) -> impl Iterator<Item = &mut Box<dyn CostFunction>> {
        self.pools.iter_mut().flat_map(|pool| &mut pool.terms).map(|(_, term)| term)
    }

    /// Placement of each class.
    pub fn class_states(&self) -> impl Iterator<Item = ClassState> + '_ {
        self.classes.iter().map(|class| ClassState {
            name: class.name.clone(),
            queues: class.allowed.clone(),
            flows: class.flows,
            misplaced: class.misplaced,
        })
    }

    /// Name of a class.
    #[must_use]
    pub fn class_name(&self, class: ClassId) -> &str {
        self.classes.get(class.index()).map_or("", |class| &class.name)
    }

    /// The classes that one filter can express, with its match and the queues.
    pub fn classes_as_matches(&self) -> impl Iterator<Item = (ClassId, FilterMatch, &[QueueId])> {
        (0..).zip(&self.classes).filter_map(|(index, class)| {
            Some((ClassId(index), class.selector.as_match()?, class.allowed.as_slice()))
        })
    }
}

/// Numbers as ranges, `0-3, 7`.
#[must_use]
pub fn queue_ranges(queues: &[QueueId]) -> String {
    let mut text = String::new();
    for chunk in queues.chunk_by(|one, next| next.0 == one.0 + 1) {
        let separator = if text.is_empty() { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = match chunk {
            [first, .., last] => write!(text, "{separator}{first}-{last}"),
            [only] => write!(text, "{separator}{only}"),
            [] => Ok(()),
        };
    }
    text
}
