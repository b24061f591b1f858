//! Extends a plan until nothing is left to change.
//!
//! A change for one rule can make others fire: after interrupts move, the XPS maps of their queues no longer match. So
//! a plan is built stage by stage, settings on which others depend first ([`stage`]):
//!
//! - Each round of changes is applied to a model of the host, which is checked again.
//! - A stage ends when no rule asks for a change of this stage or an earlier one.
//!
//! Thus interrupts are placed for the final number of queues, and maps are set after interrupts have their final place.

use std::collections::BTreeMap;

use evenkeel_model::change::{Change, Knob};
use evenkeel_model::host::HostFacts;

use super::{GROWING, Item, Keep, LAST_STAGE, Left, Step, TuningPlan, is_of_queue, order, stage};
use crate::applied::set;
use crate::current::{current, is_made};
use crate::finding::Finding;
use crate::rules::check;

/// Largest number of rounds in a stage; known hosts need fewer.
const ROUNDS: usize = 6;
/// Largest number of changes of one knob. If rules disagree about it, the last one wins.
const TIMES: u32 = 3;
/// Reason for not making a change that cannot be undone.
const NO_WAY_BACK: &str = "its current value is unknown, so it could not be restored";

/// Returns the findings of `after` that are new, or have a higher severity than before.
fn caused<'a>(before: &[Finding], after: &'a [Finding]) -> Vec<&'a Finding> {
    let is_known = |new: &Finding| {
        let same = |old: &Finding| old.rule == new.rule && old.subject == new.subject;
        before.iter().any(|old| same(old) && old.severity >= new.severity)
    };
    after.iter().filter(|new| !is_known(new)).collect()
}

/// Returns whether a change redistributes flows over queues, where some may collide by chance.
fn moves_flows(change: &Change) -> bool {
    matches!(change.knob, Knob::Channels(_) | Knob::RssTable | Knob::FlowHash(_))
}

impl TuningPlan {
    /// Returns the plan for an interface, extended until nothing is left to change. A new number of channels, RSS table
    /// or set of hash fields redistributes flows. Such a change is left out if it causes new findings.
    #[must_use]
    pub fn settle(facts: &HostFacts, interface: &str, keep: &Keep, only: &[String]) -> Self {
        let before = check(facts);
        let settle = |left: &[Knob]| Self::settle_without(facts, &before, interface, keep, only, left);
        let (mut plan, mut after) = settle(&[]);
        let mut without: Vec<Knob> = Vec::new();
        while let Some(worse) = caused(&before, &after).first() {
            let why = format!("it would cause {} ({})", worse.rule, worse.subject);
            let Some(step) = plan.steps.iter().find(|step| moves_flows(&step.change)).cloned() else { break };
            without.push(step.change.knob.clone());
            let (other, then) = settle(&without);
            if caused(&before, &then).len() >= caused(&before, &after).len() {
                break;
            }
            (plan, after) = (other, then);
            plan.leave(step, &why);
        }
        plan
    }

    /// Returns the plan without the knobs in `without`, and the findings after it is applied.
    fn settle_without(
        facts: &HostFacts,
        before: &[Finding],
        interface: &str,
        keep: &Keep,
        only: &[String],
        without: &[Knob],
    ) -> (Self, Vec<Finding>) {
        let mut plan = Self::new(facts, before, interface, keep, only);
        let mut found = before.to_vec();
        let mut after = facts.clone();
        let mut wanted = plan.clone();
        plan.steps.clear();
        let mut times: BTreeMap<Knob, u32> = BTreeMap::new();
        for now in 0..=LAST_STAGE {
            for _ in 0..ROUNDS {
                let is_due = |step: &Step| {
                    let (rule, knob) = (step.rule, &step.change.knob);
                    let set_before = times.get(knob).copied().unwrap_or(0);
                    let asked_for = only.is_empty() || only.iter().any(|item| item == rule);
                    let grows_again = set_before > 0 && GROWING.contains(&rule);
                    let is_left = without.iter().any(|left| {
                        left == knob || matches!((left, knob), (Knob::Channels(_), Knob::Channels(_)))
                    });
                    stage(knob) <= now && !is_left && asked_for && !grows_again && set_before < TIMES
                };
                let due: Vec<Step> = wanted.steps.iter().filter(|step| is_due(step)).cloned().collect();
                let mut fresh = Vec::new();
                for step in due {
                    match current(&after, Some(interface), &step.change.knob) {
                        Some(_) => fresh.push(step),
                        None => plan.leave(step, NO_WAY_BACK),
                    }
                }
                if fresh.is_empty() {
                    break;
                }
                for Step { change, .. } in &fresh {
                    set(&mut after, Some(interface), &change.knob, &change.to);
                    *times.entry(change.knob.clone()).or_insert(0) += 1;
                }
                plan.carry_on(&wanted.items, &fresh);
                found = check(&after);
                wanted = Self::new(&after, &found, interface, keep, &[]);
                plan.stop_balancer = plan.stop_balancer.or(wanted.stop_balancer);
            }
        }
        plan.leave_what_goes(facts, &after, interface);
        plan.steps.sort_by_key(|step| order(&step.change.knob));
        (plan, found)
    }

    pub(super) fn leave(&mut self, step: Step, why: &str) {
        let Step { rule, change } = step;
        if !self.left.iter().any(|left| left.rule == rule && left.change.knob == change.knob) {
            self.left.push(Left { rule, change, why: why.to_owned() });
        }
    }

    /// Adds the steps of a round, and the items that ask for them.
    fn carry_on(&mut self, items: &[Item], steps: &[Step]) {
        for step in steps {
            self.steps.retain(|before| before.change.knob != step.change.knob);
            self.left.retain(|left| left.change.knob != step.change.knob);
            self.steps.push(step.clone());
        }
        let is_new = |item: &&Item| {
            !self.items.iter().any(|known| known.rule == item.rule)
                && steps.iter().any(|step| step.rule == item.rule)
        };
        let mut further: Vec<Item> = items.iter().filter(is_new).cloned().collect();
        for evidence in further.iter_mut().flat_map(|item| &mut item.evidence) {
            evidence.push_str(", once the other changes are made");
        }
        self.items.extend(further);
    }

    /// Drops steps for queues and interrupts that the new number of channels adds or removes. Also drops steps without
    /// an effect in the end.
    fn leave_what_goes(&mut self, facts: &HostFacts, after: &HostFacts, interface: &str) {
        self.steps.retain(|Step { change, .. }| {
            let knob = &change.knob;
            let is_known = current(facts, Some(interface), knob).is_some();
            let stays = !is_of_queue(knob) || current(after, Some(interface), knob).is_some();
            stays && is_known && !is_made(facts, Some(interface), change)
        });
    }
}
