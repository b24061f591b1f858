//! A plan that is carried on until nothing is left to change.
//!
//! A change of one rule makes others fire: interrupts that move leave the maps of their queues behind. So a plan is made
//! stage by stage, what others depend on first ([`stage`]): each round of changes is set in a model of the host, which is
//! checked again, and a stage ends when no rule wants anything of it or of one before. Interrupts are placed for the queues
//! that the host will have, and maps follow interrupts that do not move any more.

use std::collections::BTreeMap;

use evenkeel_model::change::{Change, Knob};
use evenkeel_model::host::HostFacts;

use super::{GROWING, Item, Keep, LAST_STAGE, Left, Step, TuningPlan, UnknownItem, is_of_queue, stage};
use crate::applied::set;
use crate::current::current;
use crate::finding::Finding;
use crate::rules::check;

/// More rounds of one stage were never needed.
const ROUNDS: usize = 6;
/// A knob that rules disagree about is left as the last of them wants it.
const TIMES: u32 = 3;
/// Why a change is not made without whose undo is not known.
const NO_WAY_BACK: &str = "what it is now is not known, so there would be no way back";

/// What is found that was not found before, or is graver.
fn caused<'a>(before: &[Finding], after: &'a [Finding]) -> Vec<&'a Finding> {
    let is_known = |new: &Finding| {
        let same = |old: &Finding| old.rule == new.rule && old.subject == new.subject;
        before.iter().any(|old| same(old) && old.severity >= new.severity)
    };
    after.iter().filter(|new| !is_known(new)).collect()
}

/// Whether a change sends flows to other queues, where they may collide by chance.
fn moves_flows(change: &Change) -> bool {
    matches!(change.knob, Knob::Channels(_) | Knob::RssTable | Knob::FlowHash(_))
}

impl TuningPlan {
    /// The plan for an interface, carried on until nothing is left to change. Other channels, another
    /// table or other hash fields send flows to other queues: they are left where that causes what was not found before.
    ///
    /// # Errors
    /// When one of `only` was not found.
    pub fn settle(
        facts: &HostFacts,
        interface: &str,
        keep: &Keep,
        only: &[String],
    ) -> Result<Self, UnknownItem> {
        let before = check(facts);
        let settle = |left: &[Knob]| Self::settle_without(facts, &before, interface, keep, only, left);
        let (mut plan, mut after) = settle(&[])?;
        let mut without: Vec<Knob> = Vec::new();
        while let Some(worse) = caused(&before, &after).first() {
            let why = format!("it would cause {} ({})", worse.rule, worse.subject);
            let Some(step) = plan.steps.iter().find(|step| moves_flows(&step.change)).cloned() else { break };
            without.push(step.change.knob.clone());
            let (other, then) = settle(&without)?;
            if caused(&before, &then).len() >= caused(&before, &after).len() {
                break;
            }
            (plan, after) = (other, then);
            plan.leave(step, &why);
        }
        Ok(plan)
    }

    /// The plan without some knobs, and what is found once it is applied.
    fn settle_without(
        facts: &HostFacts,
        before: &[Finding],
        interface: &str,
        keep: &Keep,
        only: &[String],
        without: &[Knob],
    ) -> Result<(Self, Vec<Finding>), UnknownItem> {
        let mut plan = Self::new(facts, before, interface, keep, only)?;
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
                        Some(now) if step.change.knob.same(&now, &step.change.to) => {}
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
                wanted = Self::new(&after, &found, interface, keep, &[])?;
                plan.stop_balancer = plan.stop_balancer.or(wanted.stop_balancer);
            }
        }
        plan.leave_what_goes(facts, &after, interface);
        plan.steps.sort_by_key(|step| stage(&step.change.knob));
        Ok((plan, found))
    }

    fn leave(&mut self, step: Step, why: &str) {
        let Step { rule, change } = step;
        if !self.left.iter().any(|left| left.rule == rule && left.change.knob == change.knob) {
            self.left.push(Left { rule, change, why: why.to_owned() });
        }
    }

    /// Adds the steps of a round, and the items that want them.
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

    /// Drops steps for queues and interrupts that go or come with their channels, and those that change nothing in the
    /// end.
    fn leave_what_goes(&mut self, facts: &HostFacts, after: &HostFacts, interface: &str) {
        self.steps.retain(|Step { change: Change { knob, to }, .. }| {
            let now = current(facts, Some(interface), knob);
            let stays = !is_of_queue(knob) || current(after, Some(interface), knob).is_some();
            stays && now.is_some_and(|now| !knob.same(&now, to))
        });
    }
}
