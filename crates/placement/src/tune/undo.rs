//! What takes a plan back.
//!
//! Each knob gets the value from before. A new number of channels makes queues, interrupts and the table of the NIC
//! anew, and so does the way back: their settings are given again once the old queues are there.

use evenkeel_model::change::{Change, Channels, Knob};
use evenkeel_model::host::HostFacts;

use crate::applied::set;
use crate::current::current;

/// The changes that take a plan back, in their order: `made` are its changes in the order in which they were made,
/// `before` and `after` the host around them.
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
                .map(|value| Change::new(knob.clone(), value)),
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

/// The settings of queues that numbers of channels take along: what gives them back once the old numbers are there.
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

/// What comes and goes with channels.
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
