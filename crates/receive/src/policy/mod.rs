//! Policies: the cost of a placement of flows on queues, independent of the NIC.
//!
//! A policy is a cost function over *flows on queues* (Dragonet, TRIOS 2015, section 3.4). The policy
//! is read from a file ([`PolicyFile`]) and bound to a host's queues ([`PolicyFile::bind`]). The search
//! reports every placement and move to a [`Policy`], which returns the current cost and the change by a
//! move. A policy does not depend on filters and tables, so one file is valid for every NIC.
//!
//! ```text
//! file ─ parse ─> terms and classes ─ bind to queues ─> pools of queues, each with its terms ─ place, remove ─> cost
//! ```
//!
//! - A *class* is a set of flows that have exclusive queues (performance isolation, Algorithm 2 of the
//!   paper), are pinned to queues, or share the queues of the rest.
//! - The *rest* are the flows without a class.
//! - A *pool* is a set of queues whose loads are compared with each other: the exclusive queues of one
//!   class, or the queues that all other classes and the rest share.
//!
//! The cost is the weighted sum of the terms of all pools. A flow outside of its class's queues is a
//! violation.

mod bind;
mod classes;
mod cost;
mod file;
mod load;
mod locality;
mod script;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

pub use bind::{BindError, BindProblem};
pub use classes::Selector;
pub use cost::{Cost, CostFunction, Fact, Weight};
pub use file::{ClassSpec, PolicyFile, QueueShare, ReadScript, TermKind, TermSpec};
pub use load::{Balance, Measure};
pub use locality::{FewestChanges, Locality, Queues};
pub use script::{LONGEST_SCRIPT, MOST_OPERATIONS, Script, ScriptError, ScriptSource, Scripted};

use evenkeel_model::text::list;

use crate::flows::ObservedFlow;
use crate::key::Pattern;
use crate::{FilterMatch, FlowTuple, QueueId};

/// A class of a policy, by its position in the file. The last class is the *rest*: the flows of no other
/// class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u8);

impl ClassId {
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub tuple: FlowTuple,
    pub class: ClassId,
    /// Receive rate, bit/s, if known.
    pub rate_bps: Option<u64>,
    pub reader: Option<u32>,
    /// Whether it is known that no process reads the flow.
    pub is_unowned: bool,
    /// Previous queue.
    pub before: Option<QueueId>,
    /// Whether an earlier class may take the flow, because the flow's process or cgroup is unknown.
    pub is_unsure: bool,
}

#[derive(Clone, Debug)]
struct Class {
    name: String,
    selector: Selector,
    /// Allowed queues, in ascending order.
    allowed: Vec<QueueId>,
    is_allowed: Vec<bool>,
    pool: usize,
    /// Number of flows of the class, and number of its flows outside of its queues.
    flows: u64,
    misplaced: u64,
}

/// Queues whose loads are compared with each other.
#[derive(Clone, Debug)]
struct Pool {
    terms: Vec<(Weight, Box<dyn CostFunction>)>,
}

/// A policy that is bound to queues, and the placement of the flows.
#[derive(Clone, Debug)]
pub struct Policy {
    name: String,
    classes: Vec<Class>,
    pools: Vec<Pool>,
    queues: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassState {
    /// Name of the class; `rest` for the flows without a class.
    pub name: String,
    pub queues: Vec<QueueId>,
    pub flows: u64,
    /// Number of flows of the class outside of its queues.
    pub misplaced: u64,
}

impl Policy {
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    #[must_use]
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// Converts an observed flow. The first class that selects the flow is its class.
    #[must_use]
    pub fn classify(&self, observed: &ObservedFlow) -> Flow {
        let rest = self.classes.len() - 1;
        let class = self.classes[..rest].iter().position(|class| class.selector.selects(observed));
        let earlier = &self.classes[..class.unwrap_or(rest)];
        Flow {
            tuple: observed.tuple,
            // No truncation: the file format limits the number of classes.
            class: ClassId(class.unwrap_or(rest) as u8),
            rate_bps: observed.rate_bps,
            reader: observed.reader,
            is_unowned: observed.is_unowned,
            before: observed.queue,
            is_unsure: earlier.iter().any(|class| class.selector.may_select(observed)),
        }
    }

    fn pool_of(&self, flow: &Flow) -> &Pool {
        &self.pools[self.classes[flow.class.index()].pool]
    }

    #[must_use]
    pub fn allows(&self, flow: &Flow, queue: QueueId) -> bool {
        self.classes[flow.class.index()].is_allowed[queue.index()]
    }

    #[must_use]
    pub fn allowed(&self, flow: &Flow) -> &[QueueId] {
        &self.classes[flow.class.index()].allowed
    }

    /// Returns the queues of the flows without a class. The NIC's default steering should use these queues.
    #[must_use]
    pub fn default_queues(&self) -> &[QueueId] {
        self.classes.last().map_or(&[], |rest| rest.allowed.as_slice())
    }

    pub fn place(&mut self, flow: &Flow, queue: QueueId) {
        let class = &mut self.classes[flow.class.index()];
        class.flows += 1;
        class.misplaced += u64::from(!class.is_allowed[queue.index()]);
        self.pools[class.pool].terms.iter_mut().for_each(|(_, term)| term.place(flow, queue));
    }

    pub fn remove(&mut self, flow: &Flow, queue: QueueId) {
        let class = &mut self.classes[flow.class.index()];
        class.flows -= 1;
        class.misplaced -= u64::from(!class.is_allowed[queue.index()]);
        self.pools[class.pool].terms.iter_mut().for_each(|(_, term)| term.remove(flow, queue));
    }

    pub fn shift(&mut self, flow: &Flow, from: QueueId, to: QueueId) {
        self.remove(flow, from);
        self.place(flow, to);
    }

    #[must_use]
    pub fn cost(&self) -> Cost {
        let misplaced: u64 = self.classes.iter().map(|class| class.misplaced).sum();
        let terms =
            self.pools.iter().flat_map(|pool| &pool.terms).map(|(weight, term)| term.cost() * *weight);
        terms.sum::<Cost>() + Cost::violations(misplaced.cast_signed())
    }

    /// Returns the difference in cost if a flow moved between two queues.
    #[must_use]
    pub fn change(&self, flow: &Flow, from: QueueId, to: QueueId) -> Cost {
        let misplaced = |queue| i64::from(!self.allows(flow, queue));
        let terms =
            self.pool_of(flow).terms.iter().map(|(weight, term)| term.change(flow, from, to) * *weight);
        terms.sum::<Cost>() + Cost::violations(misplaced(to) - misplaced(from))
    }

    /// Returns a better queue for a flow, and the change in cost; `None` if no queue is better. Of
    /// equally good queues, returns the first.
    #[must_use]
    pub fn better_queue(&self, flow: &Flow, from: QueueId) -> Option<(QueueId, Cost)> {
        let allowed = self.allowed(flow);
        let gain = |to: QueueId| (to, self.change(flow, from, to));
        // With a single term for which queues differ only by load, one search suffices.
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

    /// Returns whether a term reports that the queue has more load than its final share.
    #[must_use]
    pub fn is_overloaded(&self, flow: &Flow, queue: QueueId) -> bool {
        self.pool_of(flow).terms.iter().any(|(_, term)| term.is_overloaded(queue))
    }

    /// Returns a lower bound for the cost of any placement of the placed flows: the weighted sum of the
    /// terms' bounds. Returns `None` if a term has no bound.
    #[must_use]
    pub fn bound(&self) -> Option<Cost> {
        let terms = self.pools.iter().flat_map(|pool| &pool.terms);
        terms.map(|(weight, term)| Some(term.bound()? * *weight)).sum()
    }

    /// Returns whether the cost depends only on the queues' loads, so that empty queues are equivalent.
    #[must_use]
    pub fn knows_load_only(&self) -> bool {
        let terms = self.pools.iter().flat_map(|pool| &pool.terms);
        terms.map(|(_, term)| term).all(|term| term.knows_load_only())
    }

    /// Returns the rank of a flow in the order of placement: by class in the order of the file, the rest
    /// last. Within a class, the flow with the highest load comes first.
    #[must_use]
    pub fn rank(&self, flow: &Flow) -> (ClassId, std::cmp::Reverse<u64>) {
        let burden = self.pool_of(flow).terms.iter().map(|(_, term)| term.burden(flow)).max();
        (flow.class, std::cmp::Reverse(burden.unwrap_or(0)))
    }

    /// Returns the fact that a term needs and that is unknown, so that the cost of the flow is unknown.
    #[must_use]
    pub fn unknown(&self, flow: &Flow) -> Option<Fact> {
        self.pool_of(flow).terms.iter().find_map(|(_, term)| term.unknown(flow))
    }

    /// Returns a remark for each fact that terms need and that no flow of their pool has, because the
    /// terms then have no effect. If there are flows, also returns a remark for each class without
    /// conditions that no flow names.
    #[must_use]
    pub fn remarks<'f>(&self, flows: impl Iterator<Item = &'f Flow> + Clone) -> Vec<String> {
        // The pools whose flows lack a fact, by fact.
        let mut lacking: BTreeMap<Fact, BTreeSet<usize>> = BTreeMap::new();
        for (number, pool) in self.pools.iter().enumerate() {
            let of_pool = flows.clone().filter(|flow| self.classes[flow.class.index()].pool == number);
            for (_, term) in &pool.terms {
                let mut lacks = of_pool.clone().map(|flow| term.lacks(flow));
                if let Some(Some(fact)) = lacks.next()
                    && lacks.all(|lack| lack.is_some())
                {
                    lacking.entry(fact).or_default().insert(number);
                }
            }
        }
        // The flows need not be placed yet.
        let present: BTreeSet<ClassId> = flows.clone().map(|flow| flow.class).collect();
        let remark = |(fact, pools): (Fact, BTreeSet<usize>)| {
            let fact = fact.words();
            let class = |id: &ClassId| &self.classes[id.index()];
            let (lack, have): (Vec<&Class>, Vec<&Class>) =
                present.iter().map(class).partition(|class| pools.contains(&class.pool));
            let names = lack.iter().map(|class| class.name.as_str());
            let (of, there) = match have.is_empty() {
                true => (String::new(), ""),
                false => (format!(" of {}", list(names)), " there"),
            };
            format!("no flow{of} has a {fact}: the policy's terms about the {fact} have no effect{there}")
        };
        let has_flows = self.classes.iter().any(|class| class.flows > 0);
        let classes = self.classes.split_last().map_or(&[][..], |(_, classes)| classes);
        let unnamed = classes
            .iter()
            .filter(|class| has_flows && class.flows == 0 && class.selector.is_by_name_only())
            .map(|class| {
                let name = &class.name;
                // The rest uses the queues of the first pool, so they do not stay empty.
                let queues = match class.pool {
                    0 => String::new(),
                    _ => format!(", and its queues ({}) stay empty", queue_ranges(&class.allowed)),
                };
                format!(
                    "class {name} has no condition, and no flow names it: it gets no flow{queues}; give it a \
                     condition such as source or destination-port"
                )
            });
        lacking.into_iter().map(remark).chain(unnamed).collect()
    }

    /// Resets the time limits of scripts before the calls of a search.
    pub fn begin(&self) {
        self.pools.iter().flat_map(|pool| &pool.terms).for_each(|(_, term)| term.begin());
    }

    /// Returns the error of a failed script, if any. The costs and the placement are then unusable.
    pub fn fault(&mut self) -> Option<ScriptError> {
        self.terms().find_map(|term| term.fault())
    }

    fn terms(&mut self) -> impl Iterator<Item = &mut Box<dyn CostFunction>> {
        self.pools.iter_mut().flat_map(|pool| &mut pool.terms).map(|(_, term)| term)
    }

    pub fn class_states(&self) -> impl Iterator<Item = ClassState> + '_ {
        self.classes.iter().map(|class| ClassState {
            name: class.name.clone(),
            queues: class.allowed.clone(),
            flows: class.flows,
            misplaced: class.misplaced,
        })
    }

    #[must_use]
    pub fn class_name(&self, class: ClassId) -> &str {
        self.classes.get(class.index()).map_or("", |class| &class.name)
    }

    /// Returns the classes that one filter can express, with the match of the filter and the allowed
    /// queues, in the order of the file. The first match of a flow is its class.
    ///
    /// The list omits a class that gets no flow, and a class that would take flows of an earlier class
    /// that is not in the list. Classes by name, process or cgroup are not in the list, and do not exclude
    /// other classes.
    #[must_use]
    pub fn classes_as_matches(&self) -> Vec<(ClassId, FilterMatch, &[QueueId])> {
        let mut listed: Vec<(ClassId, FilterMatch, &[QueueId])> = Vec::new();
        let mut patterns: Vec<Pattern> = Vec::new();
        for (index, class) in (0..).map(ClassId).zip(&self.classes) {
            let Some(matches) = class.selector.as_match() else { continue };
            let Some(pattern) = Pattern::of(&matches) else { continue };
            let earlier = self.earlier_parts(index, &matches);
            let is_new = !classes::is_covered(&pattern, &earlier);
            if is_new && earlier.iter().all(|part| classes::is_covered(part, &patterns)) {
                listed.push((index, matches, class.allowed.as_slice()));
                patterns.push(pattern);
            }
        }
        listed
    }

    /// Returns the parts of a match whose packets belong to earlier classes, by their headers.
    pub(crate) fn earlier_parts(&self, class: ClassId, matches: &FilterMatch) -> Vec<Pattern> {
        self.classes[..class.index()].iter().flat_map(|class| class.selector.part_of(matches)).collect()
    }
}

/// Formats queue numbers as ranges, such as `0-3, 7`.
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
