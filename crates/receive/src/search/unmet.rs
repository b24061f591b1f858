//! Requirements of the policy that the placement does not meet, and the reasons.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_model::text::{counted, thousands};

use super::Search;
use crate::policy::{Cost, Fact};
use crate::{FilterMatch, QueueId, TableId};

/// Flows of a class that are not placed as the policy requires, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    pub class: String,
    pub flows: usize,
    /// Whether the flows are on a forbidden queue. Otherwise they are on an allowed queue, but a better
    /// queue exists.
    pub is_violation: bool,
    pub reason: String,
}

impl fmt::Display for Unmet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flows = counted(self.flows, "flow");
        let what = if self.is_violation {
            "are on queues that the policy forbids"
        } else {
            "would be better on other queues"
        };
        write!(formatter, "{flows} of class {} {what}: {}", self.class, self.reason)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub flows: usize,
    pub violations: usize,
    /// Number of flows on allowed queues that have a better queue. The NIC cannot steer them to that queue,
    /// or no search of all flows has run since flows ended.
    pub improvable: usize,
    /// Number of flows whose class is unknown, because their process or cgroup is unknown.
    pub unsure: usize,
    /// A fact that the policy needs, and the number of flows of which the fact is unknown; `None` if all
    /// such facts are known.
    pub unknown: Option<(Fact, usize)>,
}

impl Verdict {
    #[must_use]
    pub(super) fn new(flows: usize, cost: Cost, unmet: &[Unmet]) -> Self {
        let improvable = unmet.iter().filter(|unmet| !unmet.is_violation).map(|unmet| unmet.flows).sum();
        let violations = usize::try_from(cost.violations).unwrap_or(0);
        Self { flows, violations, improvable, unsure: 0, unknown: None }
    }

    /// Returns whether no flow is on a forbidden queue. Returns `None` instead of true if the class of a flow
    /// is unknown, or there are no flows.
    #[must_use]
    pub fn is_accepted(self) -> Option<bool> {
        self.unless_unsure(self.violations == 0)
    }

    /// Returns whether no flow is on a forbidden queue, and no flow could be placed better. Returns `None`
    /// instead of true if the class of a flow is unknown, or there are no flows. Also returns `None` if no
    /// flow is on a forbidden queue, but a fact that the policy needs is unknown.
    #[must_use]
    pub fn is_met(self) -> Option<bool> {
        if self.violations == 0 && self.unknown.is_some() {
            return None;
        }
        self.unless_unsure(self.violations == 0 && self.improvable == 0)
    }

    fn unless_unsure(self, good: bool) -> Option<bool> {
        (!good || self.unsure == 0 && self.flows > 0).then_some(good)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [flows, violations, improvable] = [self.flows, self.violations, self.improvable].map(thousands);
        let class = (self.unsure > 0).then_some(("class", self.unsure));
        let unknown = class.or(self.unknown.map(|(fact, count)| (fact.words(), count)));
        if let Some((fact, count)) = unknown.filter(|_| self.violations == 0) {
            let count = thousands(count);
            return write!(formatter, "not judged: the {fact} of {count} of {flows} flows is unknown");
        }
        match (self.violations, self.improvable) {
            (0, _) if self.flows == 0 => formatter.write_str("not judged: there is no flow"),
            (0, 0) => formatter.write_str("met"),
            (0, _) => write!(
                formatter,
                "met in part: no flow is on a forbidden queue, but {improvable} of {flows} flows would be better on \
                 other queues"
            ),
            (_, 0) => write!(formatter, "not met: {violations} of {flows} flows are on forbidden queues"),
            _ => write!(
                formatter,
                "not met: {violations} of {flows} flows are on forbidden queues, {improvable} would be better on \
                 other queues"
            ),
        }
    }
}

impl Search {
    #[must_use]
    pub fn verdict(&self) -> (Verdict, Vec<Unmet>) {
        let unmet = self.unmet();
        let verdict = Verdict::new(self.indices().len(), self.cost(), &unmet);
        (Verdict { unsure: self.unsure(), unknown: self.unknown(), ..verdict }, unmet)
    }

    /// Returns a fact that the policy needs, and the number of flows of which the fact is unknown; `None` if
    /// all such facts are known.
    fn unknown(&self) -> Option<(Fact, usize)> {
        let indices = self.indices();
        let facts = || indices.iter().filter_map(|index| self.policy.unknown(self.flow(*index)?));
        let fact = facts().min()?;
        Some((fact, facts().filter(|other| *other == fact).count()))
    }

    /// Returns the number of flows whose class is unknown.
    pub(super) fn unsure(&self) -> usize {
        self.indices().into_iter().filter_map(|index| self.flow(index)).filter(|flow| flow.is_unsure).count()
    }

    #[must_use]
    pub fn unmet(&self) -> Vec<Unmet> {
        self.policy.begin();
        let mut groups: BTreeMap<(u8, bool, String), usize> = BTreeMap::new();
        for index in self.indices() {
            let Some((flow, queue)) = self.flow(index).zip(self.map.queue(index)) else { continue };
            let is_violation = !self.policy.allows(flow, queue);
            let better = self.policy.better_queue(flow, queue);
            if !is_violation && better.is_none() {
                continue;
            }
            let reason = match better {
                Some(_) if !self.is_arranged => {
                    "flows ended, and no search of all flows has run since".to_owned()
                }
                Some((to, _)) => self.obstacle(&FilterMatch::exact(&flow.tuple), to),
                None => "no other queue is better for all flows together".to_owned(),
            };
            *groups.entry((flow.class.0, is_violation, reason)).or_default() += 1;
        }
        let unmet = groups.into_iter().map(|((class, is_violation, reason), flows)| Unmet {
            class: self.policy.class_name(crate::policy::ClassId(class)).to_owned(),
            flows,
            is_violation,
            reason,
        });
        unmet.collect()
    }

    /// Returns the reason why no filter of the NIC can steer a flow with these header fields to a queue.
    fn obstacle(&self, matches: &FilterMatch, to: QueueId) -> String {
        let nic = self.map.nic();
        let tables = || (0..).map(TableId).zip(nic.model().tables());
        if !tables().any(|(_, table)| table.fields.take_flows()) {
            return format!("{} has no filters for single flows, only RSS", nic.model().name());
        }
        let able: Vec<(TableId, &str)> = tables()
            .filter(|(id, table)| table.fields.take_flows() && nic.supports(*id, matches))
            .map(|(id, table)| (id, table.name.as_str()))
            .collect();
        if able.is_empty() {
            return "no filter table matches these flows".to_owned();
        }
        let names: Vec<String> =
            able.iter().map(|(id, name)| format!("{name} ({} in use)", nic.used(*id))).collect();
        if able.iter().all(|(id, _)| nic.free(*id) == 0) {
            format!("no filter is left in {}", names.join(", "))
        } else {
            format!("filters of {} cannot steer these flows to queue {to}", names.join(", "))
        }
    }
}
