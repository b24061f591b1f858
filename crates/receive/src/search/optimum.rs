//! The lowest cost that any NIC could reach, to compare a placement with.

use crate::QueueId;
use crate::policy::{Cost, Flow, Policy};

/// The lowest cost of a placement of some flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Optimum {
    pub cost: Cost,
    /// Whether all placements were tried. Otherwise the cost is a lower bound.
    pub is_exact: bool,
}

/// Maximum number of placements to try; bounds the time. Above it, the cost is a lower bound or unknown.
const MOST_PLACEMENTS: usize = 200_000;

/// Returns the lowest cost of the flows if each had a filter. Returns `None` if there are too many placements
/// to try, and no bound is known. `policy` must not have flows yet.
///
/// Of several equivalent empty queues only one is tried.
#[must_use]
pub fn optimum(policy: &Policy, flows: &[Flow]) -> Option<Optimum> {
    let mut policy = policy.clone();
    policy.begin();
    if placements(&policy, flows).is_some_and(|count| count <= MOST_PLACEMENTS) {
        let occupied = &mut vec![0; usize::from(policy.queues())];
        let mut tried = Tried { alike: policy.knows_load_only(), policy, best: None };
        tried.place(flows, occupied);
        // A script that exceeded its time limit has no valid result.
        let is_sound = tried.policy.fault().is_none();
        return tried.best.filter(|_| is_sound).map(|cost| Optimum { cost, is_exact: true });
    }
    for flow in flows {
        policy.place(flow, policy.allowed(flow).first().copied()?);
    }
    policy.bound().map(|cost| Optimum { cost, is_exact: false })
}

/// Returns an upper bound of the number of placements. Fewer are tried if queues are equivalent.
fn placements(policy: &Policy, flows: &[Flow]) -> Option<usize> {
    let alike = policy.knows_load_only();
    let mut before = 0_usize;
    flows.iter().try_fold(1_usize, |count, flow| {
        before += 1;
        let queues = policy.allowed(flow).len();
        count.checked_mul(if alike { queues.min(before) } else { queues })
    })
}

struct Tried {
    policy: Policy,
    alike: bool,
    best: Option<Cost>,
}

impl Tried {
    fn place(&mut self, flows: &[Flow], occupied: &mut Vec<u32>) {
        let Some((flow, others)) = flows.split_first() else {
            let cost = self.policy.cost();
            self.best = Some(self.best.map_or(cost, |best| best.min(cost)));
            return;
        };
        let queues: Vec<QueueId> = self.policy.allowed(flow).to_vec();
        let mut empty_tried = false;
        for queue in queues {
            let is_empty = occupied[queue.index()] == 0;
            if self.alike && is_empty && empty_tried {
                continue;
            }
            empty_tried |= is_empty;
            occupied[queue.index()] += 1;
            self.policy.place(flow, queue);
            self.place(others, occupied);
            self.policy.remove(flow, queue);
            occupied[queue.index()] -= 1;
        }
    }
}
