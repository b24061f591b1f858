//! Extends a plan until nothing is left to change.
//!
//! A change for one rule can make other rules fire: after interrupts move, the XPS maps of their queues
//! no longer match. So a plan is built stage by stage, settings on which other settings depend first
//! ([`stage`]):
//!
//! - Each round of changes is applied to a model of the host, which is checked again.
//! - A stage ends when no rule asks for a change of this stage or an earlier stage.
//!
//! Each change of a finding's fix is then in the plan, or is left out with a reason.
//!
//! Thus interrupts are placed for the final number of queues, and maps are set after interrupts have
//! their final place.

use std::collections::BTreeMap;

use evenkeel_model::change::{Change, Knob};
use evenkeel_model::host::HostFacts;

use super::{GROWING, Item, Keep, LAST_STAGE, Left, Step, TuningPlan, concerns, is_of_queue, order, stage};
use crate::applied::{apply, set};
use crate::current::{current, is_made};
use crate::finding::Finding;
use crate::rules::check;

/// Largest number of rounds in a stage; known hosts need fewer.
const ROUNDS: usize = 6;
/// Largest number of changes of one knob. If rules disagree about a knob, the last change wins.
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

/// Returns whether leaving out `left` also leaves out `knob`: the same knob, or another type of
/// channels.
fn is_along(left: &Knob, knob: &Knob) -> bool {
    left == knob || matches!((left, knob), (Knob::Channels(_), Knob::Channels(_)))
}

/// Returns whether a change redistributes flows over queues, where some may collide by chance.
fn moves_flows(change: &Change) -> bool {
    matches!(change.knob, Knob::Channels(_) | Knob::RssTable | Knob::FlowHash(_))
}

impl TuningPlan {
    /// Returns the plan for an interface, extended until nothing is left to change. A new number of
    /// channels, RSS table or set of hash fields redistributes flows. If findings are new or more severe
    /// after the plan, such a change is left out, provided that fewer findings are then new or more severe.
    #[must_use]
    pub fn settle(facts: &HostFacts, interface: &str, keep: &Keep, only: &[String]) -> Self {
        let before = check(facts);
        let settle = |left: &[Left]| Self::settle_without(facts, &before, interface, keep, only, left);
        let (mut plan, mut after) = settle(&[]);
        let mut without: Vec<Left> = Vec::new();
        while let Some(worse) = caused(&before, &after).first() {
            let why = format!("the change would cause the finding {} ({})", worse.rule, worse.subject);
            let Some(step) = plan.steps.iter().find(|step| moves_flows(&step.change)).cloned() else { break };
            without.push(Left { rule: step.rule, change: step.change, why });
            let (other, then) = settle(&without);
            if caused(&before, &then).len() >= caused(&before, &after).len() {
                break;
            }
            (plan, after) = (other, then);
        }
        plan
    }

    /// Returns the plan without the changes in `without`, and the findings after it is applied.
    fn settle_without(
        facts: &HostFacts,
        before: &[Finding],
        interface: &str,
        keep: &Keep,
        only: &[String],
        without: &[Left],
    ) -> (Self, Vec<Finding>) {
        let mut plan = Self::new(facts, before, interface, keep, only);
        let mut found = before.to_vec();
        let mut after = facts.clone();
        let mut wanted = plan.clone();
        plan.steps.clear();
        without.iter().for_each(|left| plan.leave(left.step(), &left.why));
        let mut times: BTreeMap<Knob, u32> = BTreeMap::new();
        let mut last: BTreeMap<Knob, Step> = BTreeMap::new();
        for now in 0..=LAST_STAGE {
            for _ in 0..ROUNDS {
                let is_due = |step: &Step| {
                    let (rule, knob) = (step.rule, &step.change.knob);
                    let set_before = times.get(knob).copied().unwrap_or(0);
                    let asked_for = only.is_empty() || only.iter().any(|item| item == rule);
                    let grows_again = set_before > 0 && GROWING.contains(&rule);
                    let is_left = without.iter().any(|left| is_along(&left.change.knob, knob));
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
                last.extend(fresh.iter().map(|step| (step.change.knob.clone(), step.clone())));
                plan.carry_on(&wanted.items, &fresh);
                found = check(&after);
                wanted = Self::new(&after, &found, interface, keep, &[]);
                plan.stop_balancer = plan.stop_balancer.or(wanted.stop_balancer);
            }
        }
        plan.leave_what_goes(facts, &after, interface);
        let is_asked_for = |finding: &&Finding| {
            concerns(facts, finding, interface)
                && (only.is_empty() || only.iter().any(|item| item == finding.rule))
        };
        // The sysctl of one fix may replace the sysctl of another fix, so explain only after all fixes
        // are complete.
        for finding in before.iter().filter(is_asked_for) {
            plan.complete(finding, &mut after, &mut found, interface);
        }
        for finding in before.iter().filter(is_asked_for) {
            plan.explain(finding, &after, interface, without, &last);
        }
        for finding in before.iter().filter(is_asked_for) {
            plan.name_at_another_rule(finding);
        }
        plan.drop_empty_items();
        plan.steps.sort_by_key(|step| order(&step.change.knob));
        (plan, found)
    }

    /// Adds the sysctls of a fix that the rule no longer asks for, because the fix's other changes are
    /// enough for the model. Adds none of them if they cause a finding, or if a finding then changes one of
    /// them. Adds no other knobs, because they may depend on later changes of the plan.
    fn complete(
        &mut self,
        finding: &Finding,
        after: &mut HostFacts,
        found: &mut Vec<Finding>,
        interface: &str,
    ) {
        let changes = &finding.remedy.changes;
        if !changes.iter().any(|change| self.makes(finding.rule, change)) {
            return;
        }
        let is_missing = |change: &&Change| {
            let is_known = current(after, Some(interface), &change.knob).is_some();
            matches!(change.knob, Knob::Sysctl(_))
                && is_known
                && !self.mentions(finding.rule, change)
                && !is_made(after, Some(interface), change)
        };
        let missing: Vec<Change> = changes.iter().filter(is_missing).cloned().collect();
        let mut with = after.clone();
        for Change { knob, to } in &missing {
            set(&mut with, Some(interface), knob, to);
        }
        let then = check(&with);
        let undoes = |other: &Finding| {
            other.remedy.changes.iter().any(|change| missing.iter().any(|made| made.knob == change.knob))
        };
        if missing.is_empty() || !caused(found, &then).is_empty() || then.iter().any(undoes) {
            return;
        }
        let steps: Vec<Step> =
            missing.into_iter().map(|change| Step { rule: finding.rule, change }).collect();
        self.carry_on(&[], &steps);
        (*after, *found) = (with, then);
    }

    /// Records each change of a finding's fix that the plan does not make, with the reason.
    fn explain(
        &mut self,
        finding: &Finding,
        after: &HostFacts,
        interface: &str,
        without: &[Left],
        last: &BTreeMap<Knob, Step>,
    ) {
        for change in &finding.remedy.changes {
            if self.mentions(finding.rule, change) {
                continue;
            }
            let knob = &change.knob;
            let why = if let Some(left) = without.iter().find(|left| is_along(&left.change.knob, knob)) {
                left.why.clone()
            } else if let Some(step) = last.get(knob).filter(|step| !knob.same(&step.change.to, &change.to)) {
                format!("the rule {} sets this setting to {}", step.rule, step.change.to)
            } else if is_of_queue(knob) && current(after, Some(interface), knob).is_none() {
                "the new number of channels removes its queue".to_owned()
            } else {
                "not needed once the other changes are made".to_owned()
            };
            self.leave(Step { rule: finding.rule, change: change.clone() }, &why);
        }
    }

    /// Names the rule of a finding at the item that makes the changes of its fix, if the rule has no item of
    /// its own.
    fn name_at_another_rule(&mut self, finding: &Finding) {
        let Self { items, steps, left, .. } = self;
        let has_own = steps.iter().any(|step| step.rule == finding.rule)
            || left.iter().any(|left| left.rule == finding.rule)
            || finding.remedy.advice.is_some();
        let is_made = |step: &&Step| {
            let changes = &mut finding.remedy.changes.iter();
            changes.any(|change| {
                step.change.knob == change.knob && change.knob.same(&step.change.to, &change.to)
            })
        };
        let maker = steps.iter().find(is_made).map(|step| step.rule);
        let item = maker.and_then(|maker| items.iter_mut().find(|item| item.rule == maker));
        if let (false, Some(item)) = (has_own, item)
            && !item.also.contains(&finding.rule)
        {
            item.also.push(finding.rule);
        }
    }

    fn makes(&self, rule: &str, change: &Change) -> bool {
        let is_it = |step: &Step| {
            step.change.knob == change.knob
                && (step.rule == rule || change.knob.same(&step.change.to, &change.to))
        };
        self.steps.iter().any(is_it)
    }

    /// Returns whether the plan makes a change of a rule's fix, or states why not. The plan may use the
    /// value that the rule asks for after other changes.
    #[must_use]
    pub fn mentions(&self, rule: &str, change: &Change) -> bool {
        self.makes(rule, change)
            || self.left.iter().any(|left| left.rule == rule && left.change.knob == change.knob)
    }

    /// Drops the items of rules whose changes were replaced by changes of another rule.
    fn drop_empty_items(&mut self) {
        let Self { items, steps, left, .. } = self;
        items.retain(|Item { rule, advice, .. }| {
            !advice.is_empty()
                || steps.iter().any(|step| step.rule == *rule)
                || left.iter().any(|left| left.rule == *rule)
        });
    }

    pub(super) fn leave(&mut self, step: Step, why: &str) {
        let Step { rule, change } = step;
        if !self.left.iter().any(|left| left.rule == rule && left.change.knob == change.knob) {
            self.left.push(Left { rule, change, why: why.to_owned() });
        }
    }

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

    /// Drops steps for queues and interrupts that the new number of channels removes. Also drops steps
    /// for added interrupts, because the driver chooses their numbers, and steps without an effect.
    /// Steps for the files of added queues stay.
    fn leave_what_goes(&mut self, facts: &HostFacts, after: &HostFacts, interface: &str) {
        let is_channels = |change: &&Change| matches!(change.knob, Knob::Channels(_));
        let mut with_queues = facts.clone();
        apply(
            &mut with_queues,
            Some(interface),
            self.steps.iter().map(|step| &step.change).filter(is_channels),
        );
        self.steps.retain(|Step { change, .. }| {
            let knob = &change.knob;
            let is_of_new_queue =
                matches!(knob, Knob::InterfaceFile(_)) && current(facts, Some(interface), knob).is_none();
            let before = if is_of_new_queue { &with_queues } else { facts };
            let is_known = current(before, Some(interface), knob).is_some();
            let stays = !is_of_queue(knob) || current(after, Some(interface), knob).is_some();
            stays && is_known && !is_made(before, Some(interface), change)
        });
    }
}
