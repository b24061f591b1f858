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
    let groups = equivalent_queues(&policy, &flows);
    if placements(&policy, &flows, &groups).is_some_and(|count| count <= MOST_PLACEMENTS) {
        let occupied = &mut vec![0; usize::from(policy.queues())];
        let mut tried = Tried { policy, groups, best: None };
        tried.place(&flows, 0, occupied);
        // The best cost is not valid if a script failed, for example at its time limit.
        let is_sound = tried.policy.fault().is_none();
        return tried.best.filter(|_| is_sound).map(|cost| Optimum { cost, is_exact: true });
    }
    for flow in flows {
        policy.place(flow, policy.allowed(flow).first().copied()?);
    }
    policy.bound().map(|cost| Optimum { cost, is_exact: false })
}

/// Returns the group of each queue, for each number of placed flows. Empty queues of one group are
/// equivalent: the cost depends only on their load, and the same remaining flows may use them.
fn equivalent_queues(policy: &Policy, flows: &[&Flow]) -> Vec<Vec<usize>> {
    let queues = 0..policy.queues();
    let alike = policy.knows_load_only();
    let mut group: Vec<usize> = queues.clone().map(|queue| if alike { 0 } else { queue.into() }).collect();
    let mut groups = vec![group.clone()];
    for flow in flows.iter().rev() {
        let mut known = BTreeMap::new();
        group = queues
            .clone()
            .map(|queue| {
                let next = known.len();
                let key = (group[usize::from(queue)], policy.allows(flow, QueueId(queue)));
                *known.entry(key).or_insert(next)
            })
            .collect();
        groups.push(group.clone());
    }
    groups.reverse();
    groups
}

fn placements(policy: &Policy, flows: &[&Flow], groups: &[Vec<usize>]) -> Option<usize> {
    flows.iter().zip(groups).enumerate().try_fold(1_usize, |count, (placed, (flow, group))| {
        let allowed = policy.allowed(flow);
        let distinct = allowed.iter().map(|queue| group[queue.index()]).collect::<BTreeSet<_>>().len();
        count.checked_mul(allowed.len().min(placed + distinct))
    })
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
