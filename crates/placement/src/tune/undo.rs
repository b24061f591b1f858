//! Computes the changes that undo a plan.
//!
//! Each knob gets its previous value. Restoring the number of channels recreates the queues, the interrupts
//! and the RSS table, as the plan did. So their settings are set again once the previous queues exist.

use evenkeel_model::change::{Change, Channels, Knob};
use evenkeel_model::host::HostFacts;

use crate::applied::set;
use crate::current::{current, restoring};

/// Returns the changes that undo a plan, in order. `made` contains the plan's changes in the order in
/// which they were made. `before` and `after` are the facts before and after these changes.
#[must_use]
pub fn undo(before: &HostFacts, after: &HostFacts, interface: &str, made: &[Change]) -> Vec<Change> {
    let (channels, others): (Vec<&Change>, Vec<&Change>) =
        made.iter().rev().partition(|change| matches!(change.knob, Knob::Channels(_)));
    let mut back: Vec<Change> = Vec::new();
    for Change { knob, .. } in channels.into_iter().chain(others) {
        let is_new = !back.iter().any(|change| change.knob == *knob);
        back.extend(
            current(before, Some(interface), knob)
                .filter(|_| is_new)
                .map(|value| Change::new(knob.clone(), restoring(before, &value))),
        );
    }
    if back.iter().any(|change| matches!(change.knob, Knob::Channels(_))) {
        let mut host = after.clone();
        for Change { knob, to } in &back {
            set(&mut host, Some(interface), knob, to);
        }
        back.extend(differing(before, &host, interface));
    }
    back
}

/// Returns the changes that restore the settings of queues after the number of channels is changed and
/// restored.
#[must_use]
pub fn of_queues(before: &HostFacts, interface: &str, channels: &[Change]) -> Vec<Change> {
    let mut host = before.clone();
    for Change { knob, to } in channels {
        set(&mut host, Some(interface), knob, to);
    }
    for Change { knob, .. } in channels {
        if let Some(value) = current(before, Some(interface), knob) {
            set(&mut host, Some(interface), knob, &value);
        }
    }
    differing(before, &host, interface)
}

fn differing(before: &HostFacts, now: &HostFacts, interface: &str) -> Vec<Change> {
    let knobs = queue_knobs(before, interface);
    let differs = |knob: Knob| {
        let was = current(before, Some(interface), &knob)?;
        let is = current(now, Some(interface), &knob);
        is.is_none_or(|is| !knob.same(&is, &was)).then(|| Change::new(knob, was))
    };
    knobs.into_iter().filter_map(differs).collect()
}

fn queue_knobs(facts: &HostFacts, interface: &str) -> Vec<Knob> {
    let Some(nic) = facts.interface(interface) else { return Vec::new() };
    let mut knobs: Vec<Knob> =
        [Channels::Rx, Channels::Tx, Channels::Combined].map(Knob::Channels).into_iter().collect();
    knobs.push(Knob::RssTable);
    knobs.extend((0..nic.receive_queues.len()).flat_map(Knob::of_receive_queue));
    knobs.extend((0..nic.transmit_queues.len()).flat_map(Knob::of_transmit_queue));
    knobs.extend(facts.interrupts_of(interface).map(|interrupt| Knob::InterruptAffinity(interrupt.number)));
    knobs.push(Knob::RootQdisc);
    knobs
}
