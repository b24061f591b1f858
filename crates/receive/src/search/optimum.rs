//! The lowest cost that any NIC could reach, to compare a placement with.

use std::collections::{BTreeMap, BTreeSet};

use crate::QueueId;
use crate::policy::{Cost, Flow, Policy};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Optimum {
    pub cost: Cost,
    /// Whether the search tried all placements. Otherwise the cost is a lower bound.
    pub is_exact: bool,
}

/// Maximum number of placements to try; bounds the time. With more placements, the cost is a lower
/// bound or unknown.
const MOST_PLACEMENTS: usize = 200_000;

/// Returns the lowest cost of the flows if each flow had a filter, or a lower bound for this cost. `policy`
/// must not have flows yet.
///
/// Returns `None` if a flow has no allowed queue, or if a script failed. Also returns `None` if
/// there are too many placements to try, and no bound is known.
///
/// The function tries only one of several equivalent empty queues.
#[must_use]
pub fn optimum(policy: &Policy, flows: &[Flow]) -> Option<Optimum> {
    let mut policy = policy.clone();
    policy.begin();
    // Place flows with few allowed queues first: more of the remaining queues are then equivalent.
    let mut flows: Vec<&Flow> = flows.iter().collect();
    flows.sort_by_key(|flow| policy.allowed(flow).len());
    let has_choice = |flow: &&Flow| policy.allowed(flow).len() > 1;
    let (only, free) = flows.split_at(flows.partition_point(|flow| !has_choice(flow)));
    let groups = equivalent_queues(&policy, only.len(), free);
    let mut occupied = vec![0; usize::from(policy.queues())];
    for flow in only {
        let queue = policy.allowed(flow).first().copied()?;
        policy.place(flow, queue);
        occupied[queue.index()] += 1;
    }
    if let Some(groups) = groups {
        let mut tried = Tried { policy, groups, best: None };
        tried.place(free, 0, &mut occupied);
        // The best cost is not valid if a script failed, for example at its time limit.
        let is_sound = tried.policy.fault().is_none();
        return tried.best.filter(|_| is_sound).map(|cost| Optimum { cost, is_exact: true });
    }
    for flow in free {
        policy.place(flow, policy.allowed(flow).first().copied()?);
    }
    policy.bound().map(|cost| Optimum { cost, is_exact: false })
}

/// Returns the group of each queue, for each number of placed flows beyond `placed`. Empty queues of one
/// group are equivalent: the cost depends only on their load, and the same remaining flows may use them.
///
/// Returns `None` if there are too many placements. Each flow has at least two allowed queues, so the groups
/// of a few flows suffice to know this. The groups of all flows would need more memory than the search.
fn equivalent_queues(policy: &Policy, placed: usize, flows: &[&Flow]) -> Option<Vec<Vec<usize>>> {
    let queues = 0..policy.queues();
    let alike = policy.knows_load_only();
    let mut group: Vec<usize> = queues.clone().map(|queue| if alike { 0 } else { queue.into() }).collect();
    let mut groups = Vec::new();
    let mut placements = 1_usize;
    for (at, flow) in flows.iter().enumerate().rev() {
        let mut known = BTreeMap::new();
        group = queues
            .clone()
            .map(|queue| {
                let next = known.len();
                let key = (group[usize::from(queue)], policy.allows(flow, QueueId(queue)));
                *known.entry(key).or_insert(next)
            })
            .collect();
        let allowed = policy.allowed(flow);
        let distinct = allowed.iter().map(|queue| group[queue.index()]).collect::<BTreeSet<_>>().len();
        placements = placements.checked_mul(allowed.len().min(placed + at + distinct))?;
        if placements > MOST_PLACEMENTS {
            return None;
        }
        groups.push(group.clone());
    }
    groups.reverse();
    Some(groups)
}

struct Tried {
    policy: Policy,
    groups: Vec<Vec<usize>>,
    best: Option<Cost>,
}

impl Tried {
    fn place(&mut self, flows: &[&Flow], placed: usize, occupied: &mut Vec<u32>) {
        let Some((flow, others)) = flows.split_first() else {
            let cost = self.policy.cost();
            self.best = Some(self.best.map_or(cost, |best| best.min(cost)));
            return;
        };
        let queues: Vec<QueueId> = self.policy.allowed(flow).to_vec();
        let mut tried_empty = BTreeSet::new();
        for queue in queues {
            if occupied[queue.index()] == 0 && !tried_empty.insert(self.groups[placed][queue.index()]) {
                continue;
            }
            occupied[queue.index()] += 1;
            self.policy.place(flow, queue);
            self.place(others, placed + 1, occupied);
            self.policy.remove(flow, queue);
            occupied[queue.index()] -= 1;
        }
    }
}
