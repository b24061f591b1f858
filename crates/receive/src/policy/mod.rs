//! Policies: what makes one placement of flows on queues better than another, whatever the NIC.
//!
//! A policy is a cost function over *flows on queues* (Dragonet, TRIOS 2015, section 3.4). It is read from a file
//! ([`PolicyFile`]), bound to the queues of a host ([`PolicyFile::bind`]), and then told where flows lie and move
//! ([`Policy`]); at any time it has the cost of the placement, and by how much a move would change it. It never sees a
//! filter or a table, so the same file serves every NIC.
//!
//! ```text
//! file ─ parse ─> terms and classes ─ bind to queues ─> pools of queues, each with its terms ─ place, remove ─> cost
//! ```
//!
//! A *class* is a set of flows with queues of its own (performance isolation, Algorithm 2 of the paper), or pinned to
//! queues. Flows of no class are the *rest*. The queues that the flows of some classes share are a *pool*; the cost is
//! the weighted sum of the terms of each pool, and a flow outside of its class's queues is a violation.

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
    /// What it receives, bit/s; 0 if unknown.
    pub rate_bps: u64,
    /// Processor of the thread that reads it.
    pub reader: Option<u32>,
    /// The queue on which it lay before.
    pub before: Option<QueueId>,
}

/// A class, bound to queues.
#[derive(Clone, Debug)]
struct Class {
    name: String,
    selector: Selector,
    /// Queues on which its flows may lie, from the lowest.
    allowed: Vec<QueueId>,
    is_allowed: Vec<bool>,
    pool: usize,
    /// Flows of it, and those of them elsewhere.
    flows: u64,
    misplaced: u64,
}

/// Queues whose flows are weighed against each other.
#[derive(Clone, Debug)]
struct Pool {
    terms: Vec<(Weight, Box<dyn CostFunction>)>,
}

/// A policy with the placement that it judges.
#[derive(Clone, Debug)]
pub struct Policy {
    name: String,
    classes: Vec<Class>,
    pools: Vec<Pool>,
    queues: u16,
}

/// How the flows of a class lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassState {
    /// Name of the class; `rest` for flows of none.
    pub name: String,
    /// Queues on which its flows may lie.
    pub queues: Vec<QueueId>,
    /// Its flows.
    pub flows: u64,
    /// Those of them that lie elsewhere.
    pub misplaced: u64,
}

impl Policy {
    /// Its name, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Queues of the NIC that it is bound to.
    #[must_use]
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// What the policy needs to know of a flow that was observed: the first class that selects it is its class.
    #[must_use]
    pub fn classify(&self, observed: &ObservedFlow) -> Flow {
        let rest = self.classes.len() - 1;
        let class = self.classes[..rest].iter().position(|class| class.selector.selects(observed));
        Flow {
            tuple: observed.tuple,
            // There are at most 255: the file has a limit.
            class: ClassId(class.unwrap_or(rest) as u8),
            rate_bps: observed.rate_bps,
            reader: observed.reader,
            before: observed.queue,
        }
    }

    fn pool_of(&self, flow: &Flow) -> &Pool {
        &self.pools[self.classes[flow.class.index()].pool]
    }

    /// Whether a flow may lie on a queue.
    #[must_use]
    pub fn allows(&self, flow: &Flow, queue: QueueId) -> bool {
        self.classes[flow.class.index()].is_allowed[queue.index()]
    }

    /// Queues on which a flow may lie, from the lowest.
    #[must_use]
    pub fn allowed(&self, flow: &Flow) -> &[QueueId] {
        &self.classes[flow.class.index()].allowed
    }

    /// The queues of the flows that no class has: where the NIC should put what it knows nothing of.
    #[must_use]
    pub fn default_queues(&self) -> &[QueueId] {
        self.classes.last().map_or(&[], |rest| rest.allowed.as_slice())
    }

    /// A flow came, on this queue.
    pub fn place(&mut self, flow: &Flow, queue: QueueId) {
        let class = &mut self.classes[flow.class.index()];
        class.flows += 1;
        class.misplaced += u64::from(!class.is_allowed[queue.index()]);
        self.pools[class.pool].terms.iter_mut().for_each(|(_, term)| term.place(flow, queue));
    }

    /// A flow is gone from this queue.
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

    /// By how much the cost would differ if a flow moved.
    #[must_use]
    pub fn change(&self, flow: &Flow, from: QueueId, to: QueueId) -> Cost {
        let misplaced = |queue| i64::from(!self.allows(flow, queue));
        let terms =
            self.pool_of(flow).terms.iter().map(|(weight, term)| term.change(flow, from, to) * *weight);
        terms.sum::<Cost>() + Cost::violations(misplaced(to) - misplaced(from))
    }

    /// The queue to which a flow should go from the one on which it lies, and what that changes; none if it should
    /// stay. Of equally good queues the first.
    #[must_use]
    pub fn better_queue(&self, flow: &Flow, from: QueueId) -> Option<(QueueId, Cost)> {
        let allowed = self.allowed(flow);
        let gain = |to: QueueId| (to, self.change(flow, from, to));
        // The queues differ by their load only: one look does for all.
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

    /// Whether the queue of a flow has more on it than it should have in the end, as far as some term knows.
    #[must_use]
    pub fn is_overloaded(&self, flow: &Flow, queue: QueueId) -> bool {
        self.pool_of(flow).terms.iter().any(|(_, term)| term.is_overloaded(queue))
    }

    /// What no placement can be better than, as far as that is known without trying them all: the flows of each class
    /// on its queues, as even as they can be.
    #[must_use]
    pub fn bound(&self) -> Option<Cost> {
        let terms = self.pools.iter().flat_map(|pool| &pool.terms);
        terms.map(|(weight, term)| Some(term.bound()? * *weight)).sum()
    }

    /// Whether queues are alike to the policy while nothing lies on them.
    #[must_use]
    pub fn knows_load_only(&self) -> bool {
        let terms = self.pools.iter().flat_map(|pool| &pool.terms);
        terms.map(|(_, term)| term).all(|term| term.knows_load_only())
    }

    /// Rank of a flow in the order in which flows are placed: the heaviest of each class first, class after class as
    /// the file has them, the rest last.
    #[must_use]
    pub fn rank(&self, flow: &Flow) -> (ClassId, std::cmp::Reverse<u64>) {
        let burden = self.pool_of(flow).terms.iter().map(|(_, term)| term.burden(flow)).max();
        (flow.class, std::cmp::Reverse(burden.unwrap_or(0)))
    }

    /// A search begins.
    pub fn begin(&mut self) {
        self.terms().for_each(|term| term.begin());
    }

    /// Why the costs cannot be relied upon, if they cannot: a script failed. The placement is of no use then.
    pub fn fault(&mut self) -> Option<ScriptError> {
        self.terms().find_map(|term| term.fault())
    }

    fn terms(&mut self) -> impl Iterator<Item = &mut Box<dyn CostFunction>> {
        self.pools.iter_mut().flat_map(|pool| &mut pool.terms).map(|(_, term)| term)
    }

    /// How the flows of each class lie.
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

    /// The classes that one filter can tell, each with what it matches and the queues of its flows.
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
        // Writing to a string does not fail.
        let _ = match chunk {
            [first, .., last] => write!(text, "{separator}{first}-{last}"),
            [only] => write!(text, "{separator}{only}"),
            [] => Ok(()),
        };
    }
    text
}
