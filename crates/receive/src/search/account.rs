//! Requirements of the policy that the NIC does not meet.

use std::collections::BTreeMap;
use std::fmt;

use super::Search;
use crate::{FilterMatch, QueueId, TableId};

/// Flows of a class that are not placed as the policy requires, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    /// Name of the class.
    pub class: String,
    /// Number of these flows.
    pub flows: usize,
    /// Whether their queue is forbidden; else the placement is only worse than possible.
    pub is_violation: bool,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for Unmet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flows = if self.flows == 1 { "1 flow".to_owned() } else { format!("{} flows", self.flows) };
        let what = if self.is_violation { "on queues of others" } else { "on busier queues than could be" };
        write!(formatter, "{flows} of class {} {what}: {}", self.class, self.reason)
    }
}

impl Search {
    /// Unmet requirements by class, with reasons; empty if all are met.
    #[must_use]
    pub fn unmet(&self) -> Vec<Unmet> {
        let mut groups: BTreeMap<(u8, bool, String), usize> = BTreeMap::new();
        for index in self.indices() {
            let Some((flow, queue)) = self.flow(index).zip(self.map.queue(index)) else { continue };
            let is_violation = !self.policy.allows(flow, queue);
            let better = self.policy.better_queue(flow, queue);
            if !is_violation && better.is_none() {
                continue;
            }
            let reason = match better {
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

    /// Why no filter of the NIC can send such a flow to a queue.
    fn obstacle(&self, matches: &FilterMatch, to: QueueId) -> String {
        let nic = self.map.nic();
        let tables = || (0..).map(TableId).zip(nic.model().tables());
        if !tables().any(|(_, table)| table.fields.take_flows()) {
            return format!("{} has no filters for single flows, only what RSS does", nic.model().name());
        }
        let able: Vec<(TableId, &str)> = tables()
            .filter(|(id, table)| table.fields.take_flows() && nic.supports(*id, matches))
            .map(|(id, table)| (id, table.name.as_str()))
            .collect();
        if able.is_empty() {
            return "no filter table matches such flows".to_owned();
        }
        let names: Vec<String> =
            able.iter().map(|(id, name)| format!("{name} ({} in use)", nic.used(*id))).collect();
        if able.iter().all(|(id, _)| nic.free(*id) == 0) {
            format!("no filter is left in {}", names.join(", "))
        } else {
            format!("filters of {} do not bring such flows to queue {to}", names.join(", "))
        }
    }
}
