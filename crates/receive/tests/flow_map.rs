//! Compares the flow map with a recomputation after random changes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod random_nics;

use std::collections::BTreeMap;

use evenkeel_receive::{Change, ConfiguredNic, Filter, FlowIndex, FlowMap, QueueId};
use proptest::prelude::*;
use random_nics::Draw;

fn assert_true(map: &FlowMap) {
    let mut queues: BTreeMap<QueueId, Vec<FlowIndex>> = BTreeMap::new();
    let mut count = 0;
    for (index, flow, queue) in map.flows() {
        assert_eq!(queue, map.nic().queue_of(flow), "{flow}");
        assert_eq!(map.queue(index), Some(queue));
        assert_eq!(map.find(flow), Some(index));
        assert_eq!(map.deciding_filter(index), map.nic().deciding_filter(flow));
        assert_eq!(map.rss_entry(index), map.nic().rss_entry(flow));
        if let Some(entry) = map.rss_entry(index) {
            assert!(map.flows_of_entry(entry).contains(&index));
        }
        queues.entry(queue).or_default().push(index);
        count += 1;
    }
    assert_eq!(map.len(), count);
    for queue in (0..map.nic().queues()).map(QueueId) {
        let mut listed = map.flows_on(queue).to_vec();
        listed.sort_unstable();
        assert_eq!(listed, queues.remove(&queue).unwrap_or_default());
    }
    assert!(queues.is_empty(), "flows on queues that are not there");
    let of_entries: usize =
        (0..map.nic().indirection().len()).map(|entry| map.flows_of_entry(entry).len()).sum();
    assert!(of_entries == count || map.nic().indirection().is_empty());
}

fn assert_within_tables(nic: &ConfiguredNic) {
    for (id, table) in nic.model().table_ids() {
        let sharing = nic.model().table_ids().filter(|(_, other)| other.rows == table.rows);
        let used: usize = sharing.map(|(other, _)| nic.used(other)).sum();
        assert!(used <= table.capacity, "{}", table.name);
        assert_eq!(nic.free(id), table.capacity - used);
        assert_eq!(nic.filters_by_rank(id).count(), nic.used(id));
        assert!(nic.used(id) == 0 || table.excludes.is_none_or(|other| nic.used(other) == 0));
    }
}

/// Asserts that the reported moves are exactly the flows that changed their queue.
fn assert_moved(before: &BTreeMap<FlowIndex, QueueId>, map: &FlowMap) {
    let mut told = before.clone();
    for step in map.moves() {
        assert_ne!(step.from, step.to);
        assert_eq!(told.insert(step.flow, step.to), Some(step.from));
    }
    assert_eq!(told, places(map));
}

fn places(map: &FlowMap) -> BTreeMap<FlowIndex, QueueId> {
    map.flows().map(|(index, _, queue)| (index, queue)).collect()
}

fn step(draw: &mut Draw, map: &mut FlowMap) {
    let before = places(map);
    let filters: Vec<Filter> = map.nic().filters().map(|(_, filter)| *filter).collect();
    let refused = match draw.below(12) {
        0..3 => {
            map.add_flow(random_nics::flow(draw));
            return;
        }
        3 => {
            let indices: Vec<FlowIndex> = map.flows().map(|(index, ..)| index).collect();
            if !indices.is_empty() {
                let index = draw.one(&indices);
                let flow = map.remove_flow(index).unwrap();
                assert_eq!(map.find(&flow), None);
                assert_eq!(map.remove_flow(index), None);
            }
            return;
        }
        4..8 => random_nics::filter(draw, map.nic()).map(|filter| map.apply(Change::Insert(filter)).is_err()),
        8 => random_nics::installed(draw, map.nic()).map(|id| map.apply(Change::Remove(id)).is_err()),
        9 => random_nics::installed(draw, map.nic()).zip(random_nics::filter(draw, map.nic())).map(
            |(id, mut filter)| {
                filter.table = id.table;
                if draw.chance(2) {
                    let queue = QueueId(filter.queue.0 & !1);
                    filter = Filter { queue, ..*map.nic().filter(id).unwrap() };
                }
                map.apply(Change::Replace(id, filter)).is_err()
            },
        ),
        10 => {
            let queue = QueueId(draw.below(usize::from(map.nic().queues())) as u16);
            Some(map.redirect(draw.below(160), queue).is_err())
        }
        _ => {
            let indirection = random_nics::indirection(draw, map.nic());
            Some(map.set_indirection(indirection).is_err())
        }
    };
    match refused {
        Some(false) => assert_moved(&before, map),
        Some(true) => {
            assert_eq!(places(map), before, "refused, and still something moved");
            let now: Vec<Filter> = map.nic().filters().map(|(_, filter)| *filter).collect();
            assert_eq!(now, filters);
        }
        None => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn it_is_what_recomputation_gives_after_any_sequence(seed: u64, steps in 1_usize..120) {
        let mut draw = Draw(seed);
        let model = &random_nics::models()[draw.below(5)];
        let mut map = FlowMap::new(random_nics::configured(&mut draw, model, 0));
        for _ in 0..steps {
            step(&mut draw, &mut map);
            assert_true(&map);
            assert_within_tables(map.nic());
        }
    }
}
