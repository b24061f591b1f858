//! Chooses the changes that give each transmit queue its processors (XPS), with as few changes as possible.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::change::{Change, Knob, Value};
use evenkeel_model::host::{Interface, Interrupt};

use super::interrupts::distance;
use crate::View;
use crate::rules::mask;

/// Returns the changes for a NIC. If several queues have a map, a map with a processor in the package of its
/// queue's interrupt stays, and so does the map of a queue whose interrupt has no single processor. The
/// remaining processors are divided among the other queues. A processor goes to the queue whose interrupt it
/// serves, or else, if possible, to a queue of its package.
#[must_use]
pub fn map_changes(view: &View<'_>, nic: &Interface) -> Vec<Change> {
    let package = |number: u32| view.facts.processor(number).map(|processor| processor.package);
    let mut home: BTreeMap<usize, u32> = BTreeMap::new();
    for interrupt in view.facts.interrupts_of(&nic.name) {
        if let (Some(queue), [processor]) = (interrupt.queue, Interrupt::target(interrupt)) {
            home.entry(queue as usize).or_insert(*processor);
        }
    }
    let named = nic.transmit_queues.iter().filter(|queue| !queue.xps_processors.is_empty()).count();
    let is_right = |at: usize, processors: &[u32]| {
        let meets = |of: &u32| processors.iter().any(|number| package(*number) == package(*of));
        named > 1 && !processors.is_empty() && home.get(&at).is_none_or(meets)
    };
    let queues = || nic.transmit_queues.iter().enumerate();
    let wrong: Vec<usize> =
        queues().filter(|(at, queue)| !is_right(*at, &queue.xps_processors)).map(|(at, _)| at).collect();
    let kept: BTreeSet<u32> = queues()
        .filter(|(at, _)| !wrong.contains(at))
        .flat_map(|(_, queue)| queue.xps_processors.iter().copied())
        .collect();
    let mut free: Vec<u32> = view
        .facts
        .processors
        .iter()
        .map(|processor| processor.number)
        .filter(|number| !kept.contains(number))
        .collect();
    free.sort_by_key(|number| (distance(view, nic, *number), *number));
    let mut shares: BTreeMap<usize, Vec<u32>> = wrong.iter().map(|queue| (*queue, Vec::new())).collect();
    free.retain(|number| {
        let own =
            shares.iter_mut().find(|(queue, share)| home.get(*queue) == Some(number) && share.is_empty());
        own.map(|(_, share)| share.push(*number)).is_none()
    });
    for number in free {
        let is_apart = |queue: &usize| home.get(queue).is_some_and(|home| package(*home) != package(number));
        let next = shares
            .iter_mut()
            .min_by_key(|(queue, share)| (is_apart(queue) && share.is_empty(), share.len(), **queue));
        if let Some((_, share)) = next {
            share.push(number);
        }
    }
    let mut changes = Vec::new();
    for (queue, mut share) in shares {
        // If all near processors are assigned to other queues, add the processor of the queue's own
        // interrupt.
        let is_near =
            home.get(&queue).is_none_or(|home| share.iter().any(|number| package(*number) == package(*home)));
        if share.is_empty() || !is_near {
            share.extend(home.get(&queue));
        }
        share.sort_unstable();
        let knob = Knob::InterfaceFile(format!("queues/tx-{queue}/xps_cpus"));
        let now = nic.transmit_queues.get(queue).map(|now| mask(&now.xps_processors)).unwrap_or_default();
        let (now, wanted) = (Value::Text(now), Value::Text(mask(&share)));
        if !knob.same(&now, &wanted) {
            changes.push(Change::new(knob, wanted));
        }
    }
    changes
}
