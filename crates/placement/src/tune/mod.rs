//! Turns the findings of a check into a plan: which changes are made, in which order, and which are not
//! made.
//!
//! - The plan contains only changes that a rule asks for, and no change of a setting that the
//!   administrator keeps ([`Keep`]).
//! - If two rules want different values of one setting, the rule with the higher severity wins, and the
//!   plan reports the conflict.
//! - The order ensures that no change undoes another change. A new number of channels resets tables and
//!   recreates queues, a new ring size restarts the device, and a qdisc takes its quantum from the MTU.

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
use crate::managed::{ManagedSetting, is_managed};
use crate::rules::running_balancer;

pub use keep::{Keep, Reason};
pub use undo::{of_queues, undo};

/// The findings of one rule and their fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The rule's name, by which a user selects the item.
    pub rule: &'static str,
    /// Other rules without an item of their own, because the plan already makes their changes, at least one
    /// of them for this item.
    pub also: Vec<&'static str>,
    /// The highest severity of the findings.
    pub severity: Severity,
    /// One line for each finding.
    pub evidence: Vec<String>,
    pub effect: String,
    pub source: &'static str,
    /// Steps that the administrator must do by hand.
    pub advice: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub rule: &'static str,
    pub change: Change,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Left {
    /// The rule that asks for the change.
    pub rule: &'static str,
    pub change: Change,
    pub why: String,
}

impl Left {
    fn step(&self) -> Step {
        Step { rule: self.rule, change: self.change.clone() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TuningPlan {
    /// The items, the highest severity first.
    pub items: Vec<Item>,
    /// The changes in the order in which they are made. A change may set a file of a queue that the plan's
    /// channels add. The facts lack such a file, and it needs no undo, because it disappears with its
    /// queue.
    pub steps: Vec<Step>,
    pub left: Vec<Left>,
    /// The process id of irqbalance, which must be stopped first, because it would undo the placement
    /// of interrupts.
    pub stop_balancer: Option<u32>,
}

impl TuningPlan {
    /// Leaves out the changes of settings that a running session manages, and returns whether there are
    /// such changes. `session` describes the session.
    pub fn leave_managed(&mut self, interface: &str, managed: &[ManagedSetting], session: &str) -> bool {
        let is_left = |step: &Step| is_managed(managed, Some(interface), &step.change.knob);
        let (left, steps): (Vec<Step>, _) = std::mem::take(&mut self.steps).into_iter().partition(is_left);
        self.steps = steps;
        let is_any = !left.is_empty();
        left.into_iter().for_each(|step| self.leave(step, session));
        is_any
    }

    /// Returns the first round of a plan for an interface, from the findings on its host. If `only` is not
    /// empty, the plan is limited to these items.
    #[must_use]
    pub fn new(
        facts: &HostFacts,
        findings: &[Finding],
        interface: &str,
        keep: &Keep,
        only: &[String],
    ) -> Self {
        let mut concerned: Vec<&Finding> =
            findings.iter().filter(|finding| concerns(facts, finding, interface)).collect();
        concerned.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        let mut plan = Self::default();
        for finding in concerned {
            plan.add(finding);
        }
        if !only.is_empty() {
            let is_asked_for = |rule: &str| only.iter().any(|item| item == rule);
            plan.items.retain(|item| is_asked_for(item.rule));
            plan.steps.retain(|step| is_asked_for(step.rule));
        }
        plan.leave_others(facts, interface);
        plan.leave_kept(interface, keep);
        plan.leave_conflicts();
        plan.mind_balancer(facts, interface, keep);
        plan.steps.sort_by_key(|step| order(&step.change.knob));
        plan
    }

    fn add(&mut self, finding: &Finding) {
        let at = self.items.iter().position(|item| item.rule == finding.rule).unwrap_or_else(|| {
            self.items.push(Item {
                rule: finding.rule,
                also: Vec::new(),
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

    fn leave_others(&mut self, facts: &HostFacts, interface: &str) {
        for step in std::mem::take(&mut self.steps) {
            match owner(facts, &step.change.knob).filter(|owner| *owner != interface) {
                Some(owner) => {
                    let why = format!("the setting belongs to {owner}");
                    self.leave(step, &why);
                }
                None => self.steps.push(step),
            }
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

    /// Handles a running irqbalance, which moves interrupts every ten seconds. Interrupts that it would move
    /// are placed only after it is stopped, or not at all.
    fn mind_balancer(&mut self, facts: &HostFacts, interface: &str, keep: &Keep) {
        let is_placement = |step: &Step| matches!(step.change.knob, Knob::InterruptAffinity(_));
        let Some(process) = running_balancer(facts).filter(|_| self.steps.iter().any(is_placement)) else {
            return;
        };
        let is_balanced = facts.interface(interface).is_some_and(|nic| View::new(facts).is_balanced(nic));
        let why = if is_balanced {
            "irqbalance would move the interrupt again; AWS advises to keep irqbalance for ena, ESnet and \
             the LCN 2019 paper stop it on transfer hosts; to make this change, stop irqbalance first"
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

    /// Leaves out the steps that conflict with an earlier step. Steps are sorted by severity, so the
    /// first step of a knob wins.
    fn leave_conflicts(&mut self) {
        let steps = std::mem::take(&mut self.steps);
        for step in steps {
            let same_knob = |other: &&Step| other.change.knob == step.change.knob;
            match self.steps.iter().find(same_knob) {
                Some(other) if step.change.knob.same(&other.change.to, &step.change.to) => {}
                Some(other) => {
                    let why = format!("the rule {} sets this setting to {}", other.rule, other.change.to);
                    self.left.push(Left { rule: step.rule, change: step.change, why });
                }
                None => self.steps.push(step),
            }
        }
    }
}

/// Returns whether a finding concerns an interface or its host. A finding whose fix changes another interface
/// concerns neither.
#[must_use]
pub fn concerns(facts: &HostFacts, finding: &Finding, interface: &str) -> bool {
    match &finding.remedy.interface {
        Some(name) => name == interface,
        None => {
            let of_host = finding.remedy.changes.iter().all(|change| !change.knob.is_of_interface());
            of_host && (finding.subject == interface || facts.interface(&finding.subject).is_none())
        }
    }
}

/// Returns the interface to which an interrupt, or a sysctl such as `net/ipv4/conf/eth0/rp_filter`, belongs.
/// Returns `None` for other knobs, for sysctls of the host, and for unknown interrupts.
#[must_use]
pub fn owner<'a>(facts: &'a HostFacts, knob: &'a Knob) -> Option<&'a str> {
    match knob {
        Knob::InterruptAffinity(number) => {
            let interrupt = facts.interrupts.iter().find(|interrupt| interrupt.number == *number)?;
            Some(interrupt.interface.as_str())
        }
        // The names `all` and `default` belong to the host.
        Knob::Sysctl(path) => {
            let mut parts = path.split('/').skip(2);
            let is_table = matches!(parts.next()?, "conf" | "neigh");
            parts.next().filter(|name| is_table && !matches!(*name, "all" | "default"))
        }
        _ => None,
    }
}

/// Rules that increase a limit because of counters since boot. After tune has raised the limit, the old
/// losses still count, so these rules may raise it again.
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

/// Returns the limit that a rule raises only once: after the raise, the old losses leave only advice in the
/// rule's finding.
#[must_use]
pub fn limit_raised_once(rule: &str) -> Option<Knob> {
    let path = match rule {
        "backlog-drops" => "net/core/netdev_max_backlog",
        "conntrack-full" => "net/netfilter/nf_conntrack_max",
        "tcp-memory" => "net/ipv4/tcp_mem",
        _ => return None,
    };
    Some(Knob::Sysctl(path.to_owned()))
}

/// Returns the reason for not making a rule's change of a setting that tune has already changed for an
/// interface; `None` if the change is allowed. `losing` contains the rules that explain current packet
/// losses.
#[must_use]
pub fn settled(rule: &str, set_for: &str, interface: &str, losing: &BTreeSet<&str>) -> Option<String> {
    if set_for != interface {
        return Some(format!("evenkeel tune {set_for} has already changed this setting"));
    }
    (GROWING.contains(&rule) && !losing.contains(rule)).then(|| {
        "evenkeel tune has already raised this setting; the counters also cover the time before, and show no current \
         loss"
            .to_owned()
    })
}

/// Returns whether a knob belongs to a queue or is an interrupt, so that a new number of channels may remove
/// or recreate the knob.
fn is_of_queue(knob: &Knob) -> bool {
    match knob {
        Knob::InterruptAffinity(_) => true,
        Knob::InterfaceFile(file) => file.starts_with("queues/"),
        _ => false,
    }
}

/// The sysctl from which the kernel takes the kind of its default qdiscs.
pub const DEFAULT_QDISC: &str = "net/core/default_qdisc";

/// Returns the rank of a knob among the knobs of its stage that depend on each other. The kernel clears
/// a feature, or refuses to set it, while a feature that it depends on is off (`netdev_fix_features`):
/// TSO needs checksums and scatter-gather, GSO needs scatter-gather.
fn dependence(knob: &Knob) -> u8 {
    match knob {
        Knob::Feature(name) if name.contains("checksum") => 0,
        Knob::Feature(name) if name.contains("scatter-gather") => 1,
        // The undo of a root qdisc installs the default kind, so this sysctl comes first.
        Knob::Sysctl(path) if path == DEFAULT_QDISC => 0,
        // Channels add the queues of later changes.
        Knob::Channels(_) => 0,
        _ => 2,
    }
}

fn order(knob: &Knob) -> (u8, u8) {
    (stage(knob), dependence(knob))
}

const LAST_STAGE: u8 = 11;

/// Returns the stage in which a knob is set. Knobs that recreate other knobs come first; knobs that
/// depend on other knobs come last.
fn stage(knob: &Knob) -> u8 {
    match knob {
        Knob::Channels(_) => 0,
        // Set this value with the channels: the remaining queues take over the flows of the removed queues.
        Knob::InterfaceFile(file) if file.ends_with("/rps_flow_cnt") => 0,
        Knob::Ring(_) => 1,
        Knob::Mtu => 2,
        Knob::Feature(_) => 3,
        // Adaptive coalescing determines the other coalescing values, so its switches come first.
        Knob::Coalescing(parameter) => {
            if parameter.is_switch() {
                4
            } else {
                5
            }
        }
        Knob::RssTable | Knob::RssContext(_) | Knob::FlowHash(_) | Knob::NtupleRule(_) => 6,
        Knob::InterruptAffinity(_) => 7,
        // XPS and RPS maps follow the interrupts of their queues (stage 7).
        Knob::InterfaceFile(_)
        | Knob::GsoSizes
        | Knob::GroSizes
        | Knob::QueueWeight(_)
        | Knob::TransmitQueueLength => 8,
        Knob::RootQdisc | Knob::HtbQuantum(_) | Knob::Clsact | Knob::Filter(_) => 9,
        Knob::Sysctl(path) if path == DEFAULT_QDISC => 9,
        Knob::ProcessorFile(_) => 10,
        Knob::Sysctl(_) => 11,
    }
}

#[cfg(test)]
mod tests;
