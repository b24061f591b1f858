//! XPS maps, and the queue choice that they allow.
//!
//! Transmit packet steering gives each CPU (or receive queue) a set of transmit queues
//! (`Documentation/networking/scaling.rst`). A map overrides the queue that a program sets
//! (`netdev_pick_tx`, net/core/dev.c), and many drivers set one queue per CPU.
//!
//! So the maps must be empty before the choice takes effect. Then the choice uses all queues, or keeps
//! the maps' locality as pools.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_apply::{Change, Knob, Value};
use evenkeel_host::{XpsKey, XpsMap};
use evenkeel_transmit::Pool;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XpsMode {
    /// Empties the maps if the driver set them, and leaves other maps unchanged.
    #[default]
    Auto,
    Respect,
    /// Empties the maps: every CPU may use every queue.
    Off,
    /// Empties the maps but keeps their locality: each CPU uses a pool of queues.
    Pools,
}

/// The queue choice that a device's maps allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XpsState {
    /// All maps are empty.
    Unset,
    /// No CPU or receive queue has more than one transmit queue.
    OneQueueEach,
    /// At least one CPU or receive queue has several transmit queues.
    SeveralQueues,
}

/// Returns the queues of each CPU or receive queue.
fn queues_by_member(maps: &[XpsMap], key: XpsKey) -> BTreeMap<u32, BTreeSet<u32>> {
    let mut found: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for map in maps.iter().filter(|map| map.key == key) {
        for member in &map.members {
            found.entry(*member).or_default().insert(map.queue);
        }
    }
    found
}

#[must_use]
pub fn state(maps: &[XpsMap]) -> XpsState {
    let sets: Vec<BTreeSet<u32>> = [XpsKey::Cpus, XpsKey::ReceiveQueues]
        .into_iter()
        .flat_map(|key| queues_by_member(maps, key).into_values())
        .collect();
    match sets.iter().map(BTreeSet::len).max() {
        None => XpsState::Unset,
        Some(1) => XpsState::OneQueueEach,
        Some(_) => XpsState::SeveralQueues,
    }
}

#[must_use]
pub fn take_over(maps: &[XpsMap]) -> Vec<Change> {
    let set = maps.iter().filter(|map| !map.members.is_empty());
    set.map(|map| {
        let file = format!("queues/tx-{}/{}", map.queue, map.key.file());
        Change::new(Knob::InterfaceFile(file), Value::Text("0".to_owned()))
    })
    .collect()
}

/// Returns a pool per CPU number. If at least one CPU or receive queue has several transmit queues, the
/// queues of each CPU form its pool. Otherwise the pool has the queues of the CPU's NUMA node, so that the
/// choice stays local. Without such queues, the pool has all queues.
///
/// `nodes` lists the node of each CPU.
///
/// # Errors
/// Returns the reason if no map is per CPU, or if the queues of a pool are not consecutive.
pub fn pools(maps: &[XpsMap], nodes: &[u32], queues: u32) -> Result<Vec<Pool>, String> {
    let by_processor = queues_by_member(maps, XpsKey::Cpus);
    if by_processor.is_empty() {
        return Err(
            "the maps are per receive queue (xps_rxqs), so they give no pools of processors".to_owned()
        );
    }
    let several = state(maps) == XpsState::SeveralQueues;
    let mut by_node: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (processor, set) in &by_processor {
        let node = nodes.get(*processor as usize).copied().unwrap_or(0);
        by_node.entry(node).or_default().extend(set);
    }
    let all = Pool { first: 0, count: queues };
    (0_u32..)
        .zip(nodes)
        .map(|(processor, node)| {
            let set = if several { by_processor.get(&processor) } else { by_node.get(node) };
            // A CPU or node without queues in the maps may use every queue.
            let Some(set) = set else { return Ok(all) };
            contiguous(set).ok_or_else(|| {
                let list: Vec<String> = set.iter().map(ToString::to_string).collect();
                format!("the queues {} of processor {processor} are not consecutive", list.join(", "))
            })
        })
        .collect()
}

fn contiguous(set: &BTreeSet<u32>) -> Option<Pool> {
    let (first, last) = (*set.first()?, *set.last()?);
    let count = last - first + 1;
    (set.len() == count as usize).then_some(Pool { first, count })
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    pub(crate) fn maps(members: &[&[u32]]) -> Vec<XpsMap> {
        (0..)
            .zip(members)
            .map(|(queue, members)| XpsMap { queue, key: XpsKey::Cpus, members: members.to_vec() })
            .collect()
    }

    #[test]
    fn a_driver_that_gives_each_processor_one_queue_leaves_no_choice() {
        assert_eq!(state(&maps(&[&[], &[]])), XpsState::Unset);
        assert_eq!(state(&maps(&[&[0], &[1]])), XpsState::OneQueueEach);
        // Two CPUs share each queue, but each CPU has only one queue.
        assert_eq!(state(&maps(&[&[0, 2], &[1, 3]])), XpsState::OneQueueEach);
        assert_eq!(state(&maps(&[&[0, 1], &[0, 1], &[2]])), XpsState::SeveralQueues);
    }

    #[test]
    fn only_maps_that_name_somebody_are_emptied() {
        let changes = take_over(&maps(&[&[0], &[]]));
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].shell("eth0"), "echo 0 > /sys/class/net/eth0/queues/tx-0/xps_cpus");
    }

    #[test]
    fn pools_keep_what_the_maps_had() {
        let two_each = maps(&[&[0], &[0], &[1], &[1]]);
        let pool = |first, count| Pool { first, count };
        assert_eq!(pools(&two_each, &[0, 0, 0], 4), Ok(vec![pool(0, 2), pool(2, 2), pool(0, 4)]));
        let one_each = maps(&[&[0], &[1], &[2], &[3]]);
        assert_eq!(
            pools(&one_each, &[0, 0, 1, 1], 4),
            Ok(vec![pool(0, 2), pool(0, 2), pool(2, 2), pool(2, 2)])
        );
        // If CPUs alternate between nodes, the queues of a node are not consecutive.
        let error = pools(&one_each, &[0, 1, 0, 1], 4).unwrap_err();
        assert!(error.contains("queues 0, 2 of processor 0"), "{error}");
        let by_receive_queue = [XpsMap { queue: 0, key: XpsKey::ReceiveQueues, members: vec![0] }];
        assert_eq!(state(&by_receive_queue), XpsState::OneQueueEach);
        assert!(pools(&by_receive_queue, &[0], 1).unwrap_err().contains("xps_rxqs"));
    }
}
