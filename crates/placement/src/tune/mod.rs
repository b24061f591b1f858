//! From what a check found to what is changed: which changes, in which order, and which are left.
//!
//! Nothing is changed that no rule found, and nothing that an administrator keeps ([`Keep`]). Two rules that want one
//! setting to be different cannot both have it: the graver one does, and that is said. Changes are made in an order in
//! which none undoes another: a new number of channels resets tables and makes queues come and go, a ring restarts the
//! device, and a qdisc takes its quantum from the MTU.

mod keep;
pub mod persist;
mod settle;
mod undo;
pub mod verify;

use std::collections::BTreeSet;

use evenkeel_model::change::{Change, Knob};
use evenkeel_model::host::HostFacts;
use serde::Serialize;

use crate::View;
use crate::finding::{Finding, Severity};
use crate::rules::running_balancer;

pub use keep::{Keep, Reason};
pub use undo::{of_queues, undo};

/// What is to be done about one rule's findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The rule: the name by which it is asked for.
    pub rule: &'static str,
    /// How grave the gravest finding is.
    pub severity: Severity,
    /// What shows it, a line for each finding.
    pub evidence: Vec<String>,
    /// What it costs.
    pub effect: String,
    /// Where that is known from.
    pub source: &'static str,
    /// What to do by hand.
    pub advice: Vec<String>,
}

/// A change, and the item that wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The rule.
    pub rule: &'static str,
    /// What is to be changed.
    pub change: Change,
}

/// A change that is not made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Left {
    /// The rule that wants it.
    pub rule: &'static str,
    /// The change.
    pub change: Change,
    /// Why it is not made.
    pub why: String,
}

/// A plan for an interface and its host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TuningPlan {
    /// What was found, the gravest first.
    pub items: Vec<Item>,
    /// The changes in the order in which they are made.
    pub steps: Vec<Step>,
    /// Changes that are left.
    pub left: Vec<Left>,
    /// The process that would undo the placement of interrupts, irqbalance: it has to be stopped before.
    pub stop_balancer: Option<u32>,
}

/// An item was asked for that is not among what was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing was found of '{item}'{}", among(.found))]
pub struct UnknownItem {
    /// What was asked for.
    pub item: String,
    /// What was found.
    pub found: Vec<&'static str>,
}

fn among(found: &[&'static str]) -> String {
    match found {
        [] => ": there is nothing to change".to_owned(),
        found => format!("; there is {}", found.join(", ")),
    }
}

impl TuningPlan {
    /// The first round of a plan for an interface, of what was found on its host; with `only` of these items alone.
    ///
    /// # Errors
    /// When one of `only` was not found.
    pub fn new(
        facts: &HostFacts,
        findings: &[Finding],
        interface: &str,
        keep: &Keep,
        only: &[String],
    ) -> Result<Self, UnknownItem> {
        let mut concerned: Vec<&Finding> =
            findings.iter().filter(|finding| concerns(facts, finding, interface)).collect();
        concerned.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        let mut plan = Self::default();
        for finding in concerned {
            plan.add(finding);
        }
        if let Some(item) = only.iter().find(|item| !plan.items.iter().any(|found| found.rule == **item)) {
            let found = plan.items.iter().map(|item| item.rule).collect();
            return Err(UnknownItem { item: item.clone(), found });
        }
        if !only.is_empty() {
            let is_asked_for = |rule: &str| only.iter().any(|item| item == rule);
            plan.items.retain(|item| is_asked_for(item.rule));
            plan.steps.retain(|step| is_asked_for(step.rule));
        }
        plan.leave_kept(interface, keep);
        plan.leave_conflicts();
        plan.mind_balancer(facts, interface, keep);
        plan.steps.sort_by_key(|step| (stage(&step.change.knob), dependence(&step.change.knob)));
        Ok(plan)
    }

    fn add(&mut self, finding: &Finding) {
        let at = self.items.iter().position(|item| item.rule == finding.rule).unwrap_or_else(|| {
            self.items.push(Item {
                rule: finding.rule,
                severity: finding.severity,
                evidence: Vec::new(),
                effect: finding.effect.clone(),
                source: finding.source,
                advice: Vec::new(),
            });
            self.items.len() - 1
        });
        let Some(item) = self.items.get_mut(at) else { return };
        item.evidence.push(format!("{}: {}", finding.subject, finding.evidence));
        item.advice.extend(finding.remedy.advice.clone());
        for change in &finding.remedy.changes {
            self.steps.push(Step { rule: finding.rule, change: change.clone() });
        }
    }

    fn leave_kept(&mut self, interface: &str, keep: &Keep) {
        let steps = std::mem::take(&mut self.steps);
        for step in steps {
            match keep.reason(interface, step.rule, &step.change.knob) {
                Some(reason) => self.left.push(Left {
                    rule: step.rule,
                    change: step.change,
                    why: format!("{} keeps {reason}", keep.name()),
                }),
                None => self.steps.push(step),
            }
        }
    }

    /// irqbalance moves interrupts every ten seconds: what it would move again is placed once it is stopped, or not at all.
    fn mind_balancer(&mut self, facts: &HostFacts, interface: &str, keep: &Keep) {
        let is_placement = |step: &Step| matches!(step.change.knob, Knob::InterruptAffinity(_));
        let Some(process) = running_balancer(facts).filter(|_| self.steps.iter().any(is_placement)) else {
            return;
        };
        let is_balanced = facts.interface(interface).is_some_and(|nic| View::new(facts).is_balanced(nic));
        let why = if is_balanced {
            "irqbalance runs, and AWS advises to leave the interrupts of ena to it; the paper and ESnet stop it on \
             transfer hosts: stop it to have this change"
                .to_owned()
        } else if keep.keeps_rule(interface, "irqbalance-runs") {
            format!("{} keeps irqbalance running, which would move the interrupt again", keep.name())
        } else {
            self.stop_balancer = Some(process.number);
            return;
        };
        for step in std::mem::take(&mut self.steps) {
            if is_placement(&step) {
                self.left.push(Left { rule: step.rule, change: step.change, why: why.clone() });
            } else {
                self.steps.push(step);
            }
        }
    }

    /// Steps come with the gravest first: the first of a knob has it.
    fn leave_conflicts(&mut self) {
        let steps = std::mem::take(&mut self.steps);
        for step in steps {
            let same_knob = |other: &&Step| other.change.knob == step.change.knob;
            match self.steps.iter().find(same_knob) {
                Some(other) if step.change.knob.same(&other.change.to, &step.change.to) => {}
                Some(other) => {
                    let why = format!("{} wants {}", other.rule, other.change.to);
                    self.left.push(Left { rule: step.rule, change: step.change, why });
                }
                None => self.steps.push(step),
            }
        }
    }
}

/// Whether a finding is about an interface or its host: a finding that another interface's settings fix is not.
fn concerns(facts: &HostFacts, finding: &Finding, interface: &str) -> bool {
    match &finding.remedy.interface {
        Some(name) => name == interface,
        None => {
            let of_host = finding.remedy.changes.iter().all(|change| !change.knob.is_of_interface());
            of_host && (finding.subject == interface || facts.interface(&finding.subject).is_none())
        }
    }
}

/// Rules that want more of what there is, as counters since boot show it: what tune has raised already they would have
/// raised again, for losses from before.
const GROWING: [&str; 9] = [
    "backlog-drops",
    "softnet-squeezed",
    "tcp-backlog-drops",
    "tcp-receive-pruned",
    "udp-receive-buffer",
    "listen-overflow",
    "conntrack-full",
    "neighbours-full",
    "tcp-memory",
];

/// Why a rule's change of a setting is not made that tune has set before, for an interface; none: it may be made.
/// `losing` has the rules that explain packets which are lost now.
#[must_use]
pub fn settled(rule: &str, set_for: &str, interface: &str, losing: &BTreeSet<&str>) -> Option<String> {
    if set_for != interface {
        return Some(format!("evenkeel tune {set_for} has set it already"));
    }
    (GROWING.contains(&rule) && !losing.contains(rule)).then(|| {
        "evenkeel tune has raised it already; the counters reach back before that, and no packet is seen to be lost there \
         since"
            .to_owned()
    })
}

/// Whether it comes and goes with channels.
fn is_of_queue(knob: &Knob) -> bool {
    match knob {
        Knob::InterruptAffinity(_) => true,
        Knob::InterfaceFile(file) => file.starts_with("queues/"),
        _ => false,
    }
}

/// The kernel switches a feature off, or refuses it, while one that it needs is off (`netdev_fix_features`): segmentation
/// needs scatter-gather, which needs checksums.
fn dependence(knob: &Knob) -> u8 {
    match knob {
        Knob::Feature(name) if name.contains("checksum") => 0,
        Knob::Feature(name) if name.contains("scatter-gather") => 1,
        _ => 2,
    }
}

/// The last [`stage`].
const LAST_STAGE: u8 = 11;

/// When a knob is set: what makes others come and go first, what depends on others last.
fn stage(knob: &Knob) -> u8 {
    match knob {
        Knob::Channels(_) => 0,
        // Queues that stay take over the flows of those that go.
        Knob::InterfaceFile(file) if file.ends_with("/rps_flow_cnt") => 0,
        Knob::Ring(_) => 1,
        Knob::Mtu => 2,
        Knob::Feature(_) => 3,
        // What is adaptive decides the numbers beside it.
        Knob::Coalescing(parameter) => {
            if parameter.is_switch() {
                4
            } else {
                5
            }
        }
        Knob::RssTable | Knob::RssContext(_) | Knob::FlowHash(_) | Knob::NtupleRule(_) => 6,
        Knob::InterruptAffinity(_) => 7,
        // Maps follow the interrupts of their queues.
        Knob::InterfaceFile(_)
        | Knob::GsoSizes
        | Knob::GroSizes
        | Knob::QueueWeight(_)
        | Knob::TransmitQueueLength => 8,
        Knob::RootQdisc | Knob::HtbQuantum(_) => 9,
        Knob::ProcessorFile(_) => 10,
        Knob::Sysctl(_) => 11,
    }
}

#[cfg(test)]
mod tests;
