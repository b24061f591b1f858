//! Chooses the changes that move the interrupts of a NIC's queues to their processors, with as few
//! changes as possible.
//!
//! An interrupt that is on a good processor stays there. Other interrupts get processors in this order:
//!
//! - whole cores before SMT siblings;
//! - the NIC's node before other nodes of its package;
//! - cores without an interrupt of another NIC before other cores;
//! - the cores that the planner gives the NIC before other cores.
//!
//! If there are more queues than cores, the plan first reduces the number of queues, if the driver
//! supports this change.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::change::{Change, Channels as Kind, Knob, Value};
use evenkeel_model::host::{Channels, Interface, Interrupt, ReceiveQueue};

use crate::View;

/// A core, and the processors of the core that may take interrupts.
struct Place {
    /// Rank of the core; a smaller rank is better.
    rank: (Distance, bool, usize, u32),
    processors: Vec<u32>,
    /// Whether another NIC has an interrupt on this core, and the plan does not give the core to this NIC.
    is_contested: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// On the NIC's memory node. Also used if the node of the NIC or of the processor is unknown.
    OwnNode,
    /// On another node of the NIC's package, without an interconnect between packages on the path.
    OwnPackage,
    Far,
}

#[must_use]
pub fn distance(view: &View<'_>, nic: &Interface, processor: u32) -> Distance {
    let home = |node: u32| view.facts.processors.iter().find(|found| found.node == node);
    let (Some(home), Some(here)) = (nic.node.and_then(home), view.facts.processor(processor)) else {
        return Distance::OwnNode;
    };
    if here.node == home.node {
        Distance::OwnNode
    } else if here.package == home.package {
        Distance::OwnPackage
    } else {
        Distance::Far
    }
}

/// The cores to which a NIC's interrupts may move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// For each core its usable processors, the best core first.
    pub cores: Vec<Vec<u32>>,
    /// Number of `cores` that are on the NIC's node.
    pub own: usize,
    /// Whether some of `cores` are in the NIC's package. False if all processors of the package are
    /// isolated.
    pub near: bool,
    /// Whether no application with connections through the NIC is pinned to any of `cores`.
    pub clear: bool,
    /// Number of near cores, or of far cores if there are no near cores; cores of applications are
    /// included. If there are more queues, queues share cores. In a virtual machine, each processor of the
    /// NIC's node counts as a core.
    pub queues: u32,
}

/// Returns the cores that may take a NIC's interrupts, the best first: cores that are not isolated, near cores
/// if there are any. If other cores remain, leaves out cores to which applications with connections through
/// the NIC are pinned, and cores that applications need ([`cores_for_applications`]).
#[must_use]
pub fn interrupt_places(view: &View<'_>, nic: &Interface) -> Places {
    let (places, queues) = places(view, nic);
    let pinned = pinned(view, nic);
    let is_own = |place: &&Place| place.rank.0 == Distance::OwnNode;
    Places {
        own: places.iter().filter(is_own).count(),
        near: places.iter().any(|place| place.rank.0 < Distance::Far),
        clear: !places.iter().flat_map(|place| &place.processors).any(|number| pinned.contains(number)),
        queues,
        cores: places.into_iter().map(|place| place.processors).collect(),
    }
}

/// Returns the processors of the cores to which applications with connections through a NIC are pinned.
fn pinned(view: &View<'_>, nic: &Interface) -> BTreeSet<u32> {
    let pinned: Vec<u32> =
        view.connections(nic).iter().filter_map(|socket| view.pinned(socket.process?)).flatten().collect();
    view.with_siblings(&pinned)
}

/// Returns the processors of a NIC's node that are reserved for applications. These applications are pinned
/// to another package and should move to this node. The set is half of the node's cores to which no
/// application is pinned, cores without interrupts first. It is empty if no application has to move.
#[must_use]
pub fn cores_for_applications(view: &View<'_>, nic: &Interface) -> BTreeSet<u32> {
    let is_far = |number: &u32| view.is_other_package(nic, *number);
    let mut kept = view.connections(nic).into_iter().filter_map(|socket| view.pinned(socket.process?));
    if !kept.any(|allowed| allowed.iter().all(is_far)) {
        return BTreeSet::new();
    }
    let targets: BTreeSet<u32> = view
        .receive_interrupts(nic)
        .into_iter()
        .flat_map(|interrupt| interrupt.target().iter().copied())
        .collect();
    let serving = view.with_siblings(&targets.iter().copied().collect::<Vec<_>>());
    let pinned = pinned(view, nic);
    let cores: Vec<u32> =
        view.local_cores(nic).into_iter().filter(|number| !pinned.contains(number)).collect();
    let (idle, busy): (Vec<u32>, Vec<u32>) = cores.iter().partition(|number| !serving.contains(number));
    // The interrupts keep the other half of the cores: their current cores first, then the first idle
    // cores.
    let chosen: Vec<u32> = busy.into_iter().chain(idle).rev().take(cores.len() / 2).collect();
    let is_open = |number: &u32| view.facts.processor(*number).is_some_and(|processor| !processor.isolated);
    view.with_siblings(&chosen).into_iter().filter(is_open).collect()
}

/// Returns the ranked cores, and the number of queues that can have their own core.
fn places(view: &View<'_>, nic: &Interface) -> (Vec<Place>, u32) {
    let pinned = pinned(view, nic);
    let others: BTreeSet<u32> = view
        .facts
        .interrupts
        .iter()
        .filter(|interrupt| interrupt.interface != nic.name && interrupt.queue.is_some())
        .filter(|interrupt| interrupt.target().len() == 1)
        .flat_map(|interrupt| interrupt.target().iter().copied())
        .collect();
    let planned = view.planned_processors(nic);
    let mut cores: BTreeMap<(u32, u32, u32), Vec<u32>> = BTreeMap::new();
    for processor in view.facts.processors.iter().filter(|processor| !processor.isolated) {
        cores.entry((processor.node, processor.package, processor.core)).or_default().push(processor.number);
    }
    let place = |processors: Vec<u32>| {
        let first = processors.first().copied()?;
        let is_shared = processors.iter().any(|number| others.contains(number));
        let order = planned.iter().position(|number| processors.contains(number)).unwrap_or(usize::MAX);
        let is_contested = is_shared && order == usize::MAX;
        Some(Place { rank: (distance(view, nic, first), is_shared, order, first), processors, is_contested })
    };
    let mut places: Vec<Place> = cores.into_values().filter_map(place).collect();
    let keep_if_any = |places: &mut Vec<Place>, is_good: &dyn Fn(&Place) -> bool| {
        if places.iter().any(is_good) {
            places.retain(|place| is_good(place));
        }
    };
    keep_if_any(&mut places, &|place| place.rank.0 < Distance::Far);
    let queues = places.len().max(view.queue_places(nic).len());
    keep_if_any(&mut places, &|place| !place.processors.iter().any(|number| pinned.contains(number)));
    // Applications that should move to this node get separate cores, and the interrupts stay on the
    // other cores of the node.
    let left = cores_for_applications(view, nic);
    keep_if_any(&mut places, &|place| !place.processors.iter().any(|number| left.contains(number)));
    // Use only the NIC's node if it has a core for each queue, or if applications should move to it.
    let own = places.iter().filter(|place| place.rank.0 == Distance::OwnNode).count();
    if own >= nic.receive_queue_count() as usize || !left.is_empty() {
        keep_if_any(&mut places, &|place| place.rank.0 == Distance::OwnNode);
    }
    places.sort_by_key(|place| place.rank);
    (places, u32::try_from(queues).unwrap_or(u32::MAX))
}

/// Returns the changes that give a NIC `number` receive queues, or the driver's maximum if it is less. The
/// list is empty if the driver has no such setting. Drivers without combined channels (gve) set receive and
/// transmit channels separately.
#[must_use]
pub fn channel_changes(nic: &Interface, number: u32) -> Vec<Change> {
    let Some(channels) = nic.channels else { return Vec::new() };
    let mut changes = numbers(channels, number);
    // If only removed queues have flow steering (RFS) entries, each remaining queue gets the largest
    // number of entries that a removed queue had.
    let (stay, go) = nic.receive_queues.split_at((number as usize).min(nic.receive_queues.len()));
    let flows = |queues: &[ReceiveQueue]| queues.iter().map(|queue| queue.rps_flow_count).max().unwrap_or(0);
    if !changes.is_empty() && flows(stay) == 0 && flows(go) > 0 {
        changes.extend((0..stay.len()).map(|at| {
            let knob = Knob::InterfaceFile(format!("queues/rx-{at}/rps_flow_cnt"));
            Change::new(knob, Value::Text(flows(go).to_string()))
        }));
    }
    changes
}

fn numbers(channels: Channels, number: u32) -> Vec<Change> {
    let change = |kind, number| Change::new(Knob::Channels(kind), Value::Number(number));
    if channels.combined_max > 0 {
        return vec![change(Kind::Combined, number.min(channels.combined_max))];
    }
    let mut changes = Vec::new();
    if channels.rx_max > 0 {
        changes.push(change(Kind::Rx, number.min(channels.rx_max)));
        if channels.tx > number {
            changes.push(change(Kind::Tx, number));
        }
    }
    changes
}

/// Returns the changes for a NIC: first the number of channels, then the interrupts.
#[must_use]
pub fn interrupt_changes(view: &View<'_>, nic: &Interface) -> Vec<Change> {
    let (places, whole) = places(view, nic);
    let mut changes = Vec::new();
    let mut kept = u32::MAX;
    if whole > 0 && nic.receive_queue_count() > whole {
        changes = channel_changes(nic, whole);
        if !changes.is_empty() {
            kept = whole;
        }
    }
    let mut queues: BTreeMap<u32, Vec<&Interrupt>> = BTreeMap::new();
    for interrupt in view.facts.interrupts_of(&nic.name) {
        if let Some(queue) = interrupt.queue.filter(|queue| *queue < kept) {
            queues.entry(queue).or_default().push(interrupt);
        }
    }
    let now: BTreeMap<u32, Option<u32>> =
        queues.iter().map(|(queue, interrupts)| (*queue, place_now(interrupts))).collect();
    let placed = assign(&places, &now);
    for (queue, interrupts) in queues {
        let Some(processor) = placed.get(&queue) else { continue };
        let away = interrupts.into_iter().filter(|interrupt| interrupt.target() != [*processor]);
        changes.extend(away.map(|interrupt| {
            Change::new(Knob::InterruptAffinity(interrupt.number), Value::Text(processor.to_string()))
        }));
    }
    changes
}

/// Returns the processor that serves a queue now. Returns `None` if the interrupt may go to several
/// processors. Receive interrupts take precedence.
fn place_now(interrupts: &[&Interrupt]) -> Option<u32> {
    let receiving = interrupts.iter().find(|interrupt| interrupt.receives).or(interrupts.first())?;
    match receiving.target() {
        [processor] => Some(*processor),
        _ => None,
    }
}

/// Assigns a processor to each queue. `now` contains the present processor of each queue.
fn assign(places: &[Place], now: &BTreeMap<u32, Option<u32>>) -> BTreeMap<u32, u32> {
    let core_of = |processor: u32| places.iter().position(|place| place.processors.contains(&processor));
    let mut placed: BTreeMap<u32, u32> = BTreeMap::new();
    let mut used_cores = BTreeSet::new();
    // Keep a queue on its current core if that core is one of `places` and no other queue uses it. Of several
    // queues on a core, the first queue stays. All of them move if the core is contested and there are more
    // cores than queues.
    let is_crowded = |core: usize| {
        let here = |processor: &&Option<u32>| processor.and_then(core_of) == Some(core);
        now.values().filter(here).count() > 1
    };
    let leaves = |core: usize| places[core].is_contested && places.len() > now.len() && is_crowded(core);
    for (queue, processor) in now {
        let own = processor.and_then(|processor| Some((core_of(processor)?, processor)));
        if let Some((core, processor)) = own
            && !leaves(core)
            && used_cores.insert(core)
        {
            placed.insert(*queue, processor);
        }
    }
    // If queues must share cores, queues that already share a core may stay.
    let free = places.len() - used_cores.len();
    let mut sharing = (now.len() - placed.len()).saturating_sub(free);
    let mut load: BTreeMap<u32, usize> = placed.values().map(|processor| (*processor, 1)).collect();
    let processors: usize = places.iter().map(|place| place.processors.len()).sum();
    let most = now.len().div_ceil(processors.max(1));
    for (queue, processor) in now {
        let Some(processor) = processor.filter(|processor| core_of(*processor).is_some()) else { continue };
        let taken = load.entry(processor).or_insert(0);
        if sharing > 0 && !placed.contains_key(queue) && *taken < most {
            placed.insert(*queue, processor);
            *taken += 1;
            sharing -= 1;
        }
    }
    let mut fresh = (0..places.len()).filter(|core| !used_cores.contains(core));
    for queue in now.keys() {
        if placed.contains_key(queue) {
            continue;
        }
        let whole = fresh.next().and_then(|core| places[core].processors.first().copied());
        let all = || {
            let thread = |(at, place): (usize, &Place)| {
                place
                    .processors
                    .iter()
                    .enumerate()
                    .map(move |(thread, number)| (thread, at, *number))
                    .collect::<Vec<_>>()
            };
            places.iter().enumerate().flat_map(thread)
        };
        let least = || {
            let order = |(thread, at, number): &(usize, usize, u32)| {
                (load.get(number).copied().unwrap_or(0), *thread, *at)
            };
            all().min_by_key(order).map(|(.., number)| number)
        };
        let Some(processor) = whole.or_else(least) else { continue };
        *load.entry(processor).or_insert(0) += 1;
        placed.insert(*queue, processor);
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(cores: u32, threads: u32) -> Vec<Place> {
        let place = |core: u32| Place {
            rank: (Distance::OwnNode, false, usize::MAX, core),
            processors: (0..threads).map(|thread| core + thread * cores).collect(),
            is_contested: false,
        };
        (0..cores).map(place).collect()
    }

    fn assigned(cores: u32, threads: u32, now: &[Option<u32>]) -> Vec<u32> {
        let now = (0..).zip(now.iter().copied()).collect();
        assign(&places(cores, threads), &now).into_values().collect()
    }

    #[test]
    fn whole_cores_come_before_twins_and_what_is_right_stays() {
        assert_eq!(assigned(4, 2, &[None; 4]), [0, 1, 2, 3]);
        // A core's second processor is as good as the first while the core has no other queue.
        assert_eq!(assigned(4, 2, &[Some(6), Some(1), None, None]), [6, 1, 0, 3]);
        // Two queues on SMT siblings: the second moves to a free core.
        assert_eq!(assigned(4, 2, &[Some(0), Some(4), Some(2), Some(3)]), [0, 1, 2, 3]);
        // Processor 99 is not among the allowed processors.
        assert_eq!(assigned(2, 1, &[Some(99), Some(0)]), [1, 0]);
        // More queues than cores: first the SMT siblings are used, then processors are shared.
        assert_eq!(assigned(2, 2, &[None; 6]), [0, 1, 2, 3, 0, 1]);
        assert_eq!(
            assigned(2, 2, &[Some(0), Some(2), Some(1), Some(3)]),
            [0, 2, 1, 3],
            "it is right as it is"
        );
        assert_eq!(assigned(2, 1, &[Some(0), Some(0), Some(0), Some(0)]), [0, 0, 1, 1]);
    }

    #[test]
    fn queues_leave_the_core_of_another_nic_if_each_has_a_core() {
        let with_last_two_contested = |now: &[Option<u32>]| {
            let mut places = places(4, 1);
            places[2..].iter_mut().for_each(|place| place.is_contested = true);
            let now = (0..).zip(now.iter().copied()).collect();
            assign(&places, &now).into_values().collect::<Vec<_>>()
        };
        assert_eq!(with_last_two_contested(&[Some(3), Some(3)]), [0, 1]);
        assert_eq!(with_last_two_contested(&[Some(1), Some(1)]), [1, 0]);
        // A queue that is alone on its core stays.
        assert_eq!(with_last_two_contested(&[Some(3), Some(0)]), [3, 0]);
        assert_eq!(with_last_two_contested(&[Some(3); 4]), [3, 0, 1, 2]);
    }

    #[test]
    fn an_assignment_is_its_own_fixpoint() {
        for cores in 1..6 {
            for threads in 1..3 {
                for (queues, open) in
                    (1..14_u32).flat_map(|queues| (0..=cores).map(move |open| (queues, open)))
                {
                    let now: Vec<Option<u32>> =
                        (0..queues).map(|queue| (queue % 3 > 0).then_some(queue * 7 % 11)).collect();
                    // The cores after the first `open` cores belong to another NIC.
                    let mut places = places(cores, threads);
                    places[open as usize..].iter_mut().for_each(|place| place.is_contested = true);
                    let assigned = |now: &[Option<u32>]| {
                        let now = (0..).zip(now.iter().copied()).collect();
                        assign(&places, &now).into_values().collect::<Vec<u32>>()
                    };
                    let once = assigned(&now);
                    let again: Vec<Option<u32>> = once.iter().copied().map(Some).collect();
                    assert_eq!(assigned(&again), once, "{cores} {threads} {open} {now:?}");
                }
            }
        }
    }
}
