//! Binds a policy file to a host's queues: classes get queues, and terms become cost functions over
//! these queues.

use std::sync::Arc;

use evenkeel_model::text::list;

use super::file::{ClassSpec, PolicyFile, QueueShare, TermKind, TermSpec};
use super::{
    Balance, Class, CostFunction, FewestChanges, Locality, Measure, Policy, Pool, Queues, Scripted, Selector,
};
use crate::QueueId;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {problem}")]
pub struct BindError {
    pub origin: String,
    pub problem: BindProblem,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindProblem {
    #[error(
        "the classes ask for {wanted} of {queues} queues ({}), but pinned queues are not available, and the other flows \
         need at least one queue; give the classes fewer queues",
        list(.classes.iter().map(String::as_str))
    )]
    TooMany { classes: Vec<String>, wanted: usize, queues: u16 },
    #[error(
        "class {class} names queue {queue}, but steering has only queues 0 to {last}; with XDP and RPS, a queue is \
         an online processor, not a queue of the NIC"
    )]
    NoQueue {
        class: String,
        queue: QueueId,
        /// The highest queue number.
        last: u16,
    },
    #[error(
        "queue {queue} is reserved for one class, but class {class} also names it; remove the queue from one \
         of the two classes"
    )]
    Twice { class: String, queue: QueueId },
}

impl PolicyFile {
    /// Creates the policy for these queues, without flows.
    ///
    /// A class that names no queues gets the highest free queues. The low queues are for flows without a
    /// class: RSS of some NICs reaches only low queues, and the default queue is usually queue 0.
    ///
    /// # Errors
    /// Returns an error if the classes leave no queue for the other flows, or name an unknown queue, or one
    /// class names a queue that another class uses exclusively.
    pub fn bind(&self, queues: &Arc<Queues>) -> Result<Policy, BindError> {
        let failed = |problem| BindError { origin: self.origin.clone(), problem };
        let count = queues.count();
        let shares = self.shares(count).map_err(failed)?;
        let is_own = |queue: &QueueId| shares.iter().any(|(own, list)| *own && list.contains(queue));
        let rest: Vec<QueueId> = (0..count).map(QueueId).filter(|queue| !is_own(queue)).collect();
        if rest.is_empty() {
            let wanted = shares.iter().filter(|(own, _)| *own).map(|(_, list)| list.len()).sum();
            return Err(failed(self.too_many(wanted, count)));
        }
        let names: Arc<[String]> =
            self.classes.iter().map(|class| class.name.clone()).chain([REST.to_owned()]).collect();
        let mut pools = vec![pool(&self.terms, &rest, queues, &names)];
        let mut classes = Vec::with_capacity(self.classes.len() + 1);
        for (spec, (own, allowed)) in self.classes.iter().zip(shares) {
            let at = if own {
                let terms = if spec.terms.is_empty() { &self.terms } else { &spec.terms };
                pools.push(pool(terms, &allowed, queues, &names));
                pools.len() - 1
            } else {
                0
            };
            let allowed = if allowed.is_empty() { rest.clone() } else { allowed };
            classes.push(class(spec.name.clone(), spec.selector.clone(), allowed, at, count));
        }
        classes.push(class(REST.to_owned(), Selector::default(), rest, 0, count));
        Ok(Policy { name: self.name.clone(), classes, pools, queues: count })
    }

    fn too_many(&self, wanted: usize, queues: u16) -> BindProblem {
        let own = |spec: &&ClassSpec| !matches!(spec.queues, QueueShare::Shared | QueueShare::Pinned(_));
        let classes = self.classes.iter().filter(own).map(|spec| spec.name.clone()).collect();
        BindProblem::TooMany { classes, wanted, queues }
    }

    /// Returns, for each class, whether its queues are exclusive, and the queues that it names or gets. The
    /// list is empty if the class shares the queues of the rest.
    fn shares(&self, count: u16) -> Result<Vec<(bool, Vec<QueueId>)>, BindProblem> {
        let mut own = vec![false; usize::from(count)];
        for spec in &self.classes {
            let (QueueShare::Own(list) | QueueShare::Pinned(list)) = &spec.queues else { continue };
            for queue in list {
                let class = || spec.name.clone();
                let Some(taken) = own.get_mut(queue.index()) else {
                    return Err(BindProblem::NoQueue { class: class(), queue: *queue, last: count - 1 });
                };
                if *taken {
                    return Err(BindProblem::Twice { class: class(), queue: *queue });
                }
                *taken = matches!(spec.queues, QueueShare::Own(_));
            }
        }
        // Also reject a pinned list with a queue that a later class uses exclusively.
        for spec in &self.classes {
            let QueueShare::Pinned(list) = &spec.queues else { continue };
            if let Some(queue) = list.iter().find(|queue| own[queue.index()]) {
                return Err(BindProblem::Twice { class: spec.name.clone(), queue: *queue });
            }
        }
        let pinned: Vec<QueueId> = self
            .classes
            .iter()
            .flat_map(|spec| match &spec.queues {
                QueueShare::Pinned(list) => list.clone(),
                _ => Vec::new(),
            })
            .collect();
        let wanted = |spec: &ClassSpec| match &spec.queues {
            QueueShare::Count(wanted) => usize::from(*wanted),
            // The cast cannot overflow: the result is at most the number of existing queues.
            QueueShare::Percent(share) => ((f64::from(count) * share / 100.0) as usize).max(1),
            QueueShare::Own(list) => list.len(),
            QueueShare::Shared | QueueShare::Pinned(_) => 0,
        };
        let total: usize = self.classes.iter().map(wanted).sum();
        self.classes
            .iter()
            .map(|spec| match &spec.queues {
                QueueShare::Shared => Ok((false, Vec::new())),
                QueueShare::Pinned(list) => Ok((false, list.clone())),
                QueueShare::Own(list) => Ok((true, list.clone())),
                QueueShare::Count(_) | QueueShare::Percent(_) => {
                    let free = (0..count).rev().map(QueueId);
                    let free = free.filter(|queue| !own[queue.index()] && !pinned.contains(queue));
                    let mut taken: Vec<QueueId> = free.take(wanted(spec)).collect();
                    if taken.len() < wanted(spec) {
                        return Err(self.too_many(total, count));
                    }
                    taken.iter().for_each(|queue| own[queue.index()] = true);
                    taken.sort_unstable();
                    Ok((true, taken))
                }
            })
            .collect()
    }
}

/// Class name of flows without a class.
pub(super) const REST: &str = "rest";

fn class(name: String, selector: Selector, allowed: Vec<QueueId>, pool: usize, count: u16) -> Class {
    let mut is_allowed = vec![false; usize::from(count)];
    allowed.iter().for_each(|queue| is_allowed[queue.index()] = true);
    Class { name, selector, allowed, is_allowed, pool, flows: 0, misplaced: 0 }
}

fn pool(terms: &[TermSpec], among: &[QueueId], queues: &Arc<Queues>, names: &Arc<[String]>) -> Pool {
    let balance =
        |measure| -> Box<dyn CostFunction> { Box::new(Balance::new(measure, queues.count(), among)) };
    let term = |spec: &TermSpec| {
        let function: Box<dyn CostFunction> = match &spec.kind {
            TermKind::Balance => balance(Measure::Flows),
            TermKind::BalanceRate => balance(Measure::Rate),
            TermKind::Locality => Box::new(Locality::new(Arc::clone(queues))),
            TermKind::FewestChanges => Box::new(FewestChanges::default()),
            TermKind::Script(script) => Box::new(Scripted::new(Arc::clone(script), among, Arc::clone(names))),
        };
        (spec.weight, function)
    };
    Pool { terms: terms.iter().map(term).collect() }
}
