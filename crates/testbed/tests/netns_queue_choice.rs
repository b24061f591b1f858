//! The queue choice on the real kernel: where flows go, in both topologies.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::net::IpAddr;

use evenkeel_model::scenario::Topology;
use evenkeel_testbed::{Bed, BedOptions, RECEIVER_ADDRESS_V6};
use evenkeel_transmit::{Policy, Pool};

use support::traffic::{Bulk, BulkOptions};
use support::{
    all_distinct, assert_weightless, charged_states, metered, options, queues, tracked, weight_sum,
};

const EACH: u64 = 4_000_000;

/// Six flows on eight queues under dynamic queue assignment: every one has a queue of its own, the
/// NIC's counters agree, and nothing is left in the end.
fn six_flows_sit_on_six_queues(topology: Topology) {
    let mut bed = Bed::build(&options(topology, Policy::Dqa)).unwrap();
    let bulk = Bulk::start(&bed, BulkOptions { flows: 6, ..BulkOptions::default() });
    bulk.wait_for_each(EACH / 4);
    let states = charged_states(&bed, &bulk);
    let queues = queues(&states);
    assert!(all_distinct(&queues), "{queues:?}");
    assert_eq!(weight_sum(&bed), 6);

    bulk.wait_for_each(EACH);
    assert!(all_distinct(&support::queues(&charged_states(&bed, &bulk))));
    bulk.finish().iter().for_each(|flow| assert_eq!(flow.received, flow.sent));
    assert_weightless(&bed);
    let counters = bed.select.counters();
    assert_eq!((counters.false_releases, counters.contended, counters.untracked), (0, 0, 0), "{counters:?}");
    assert!(counters.picks >= 6, "{counters:?}");

    // What each queue has carried, held against the flow that had chosen it. While a flow's window
    // opens it is idle between bursts, and may move then; hence the tolerance.
    let statistics = bed.queue_statistics().unwrap();
    for (queue, carried) in statistics.iter().enumerate() {
        let chosen: u64 = states
            .iter()
            .zip(bulk_bytes(&bed, &states))
            .filter(|(state, _)| state.queue == Some(queue as u32))
            .map(|(_, bytes)| bytes)
            .sum();
        let difference = carried.bytes.abs_diff(chosen);
        assert!(difference <= EACH / 20, "queue {queue} carried {} bytes, its flow {chosen}", carried.bytes);
    }
    assert_eq!(statistics.iter().map(|queue| queue.drops).sum::<u64>(), 0);
}

/// Bytes on the wire of tracked flows, as the meter has them.
fn bulk_bytes(bed: &Bed, states: &[evenkeel_datapath::FlowState]) -> Vec<u64> {
    let samples = bed.meter.as_ref().unwrap().flows().unwrap();
    states
        .iter()
        .map(|state| samples.iter().find(|sample| sample.tuple == state.tuple).unwrap().bytes)
        .collect()
}

#[test]
fn soft_nic_gives_six_flows_six_queues() {
    six_flows_sit_on_six_queues(Topology::SoftNic);
}

#[test]
fn mq_gives_six_flows_six_queues() {
    six_flows_sit_on_six_queues(Topology::Mq);
}

/// The transmit queue that a packet really took shows as the receive queue at the other end of a
/// veth pair.
fn the_recorded_queue_is_the_true_one(policy: Policy, flows: usize) -> Vec<u32> {
    let bed = Bed::build(&options(Topology::Mq, policy)).unwrap();
    let bulk = Bulk::start(&bed, BulkOptions { flows, ..BulkOptions::default() });
    bulk.wait_for_each(EACH / 4);
    let recorded = queues(&charged_states(&bed, &bulk));
    // From a moment at which all are backlogged on, a queue's segments say where they went.
    let before = bulk.received();
    support::wait_for("every flow has carried more", support::PATIENCE, || {
        bulk.received().iter().zip(&before).all(|(now, before)| *now >= before + EACH / 8).then_some(())
    });
    for ends in bulk.ends() {
        let steady =
            support::wait_for("a flow's queue and its segments' queue agree", support::PATIENCE, || {
                let state = tracked(&bed, ends)?;
                let sample = metered(&bed, ends)?;
                (sample.receive_queue == state.queue).then_some(state)
            });
        assert!(steady.queue.is_some());
    }
    bulk.finish();
    assert_weightless(&bed);
    recorded
}

#[test]
fn mq_sends_on_the_queue_that_was_chosen() {
    let queues = the_recorded_queue_is_the_true_one(Policy::Dqa, 6);
    assert!(all_distinct(&queues), "{queues:?}");
}

#[test]
fn mq_hashing_is_the_kernels_own_and_is_recorded_as_such() {
    // Twelve flows on eight queues: some have to share.
    let queues = the_recorded_queue_is_the_true_one(Policy::Hash, 12);
    assert!(!all_distinct(&queues), "{queues:?}");
}

#[test]
fn ipv6_flows_get_queues_of_their_own() {
    for topology in [Topology::SoftNic, Topology::Mq] {
        let bed = Bed::build(&options(topology, Policy::Dqa)).unwrap();
        let destination = IpAddr::V6(RECEIVER_ADDRESS_V6);
        let bulk = Bulk::start(&bed, BulkOptions { flows: 6, destination, ..BulkOptions::default() });
        bulk.wait_for_each(EACH / 4);
        let states = charged_states(&bed, &bulk);
        assert!(states.iter().all(|state| state.tuple.destination == destination), "{states:?}");
        assert!(all_distinct(&queues(&states)), "{states:?}");
        bulk.finish();
        assert_weightless(&bed);
    }
}

/// Processors that this process may use.
fn processors() -> Vec<usize> {
    // SAFETY: all zeroes is the empty set, and the call fills at most its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect()
    }
}

#[test]
fn a_processor_uses_the_queues_of_its_pool_only() {
    let pools = vec![Pool { first: 0, count: 3 }, Pool { first: 3, count: 5 }];
    let processors = processors();
    assert!(processors.len() >= 2, "two pools need two processors");
    for (topology, cpu) in [Topology::SoftNic, Topology::Mq].into_iter().flat_map(|topology| {
        // The first processor of each pool.
        [0, 1].map(|pool| (topology, *processors.iter().find(|cpu| **cpu % 2 == pool).unwrap()))
    }) {
        let mut bed =
            Bed::build(&BedOptions { pools: pools.clone(), ..options(topology, Policy::Dqa) }).unwrap();
        // Both ends of every flow run on the one processor: segments are sent where the application
        // writes, and where the acknowledgements arrive.
        let bulk = Bulk::start(&bed, BulkOptions { flows: 3, cpu: Some(cpu), ..BulkOptions::default() });
        bulk.wait_for_each(EACH / 4);
        let chosen = queues(&charged_states(&bed, &bulk));
        let pool = pools[cpu % 2];
        let allowed = pool.first..pool.first + pool.count;
        assert!(chosen.iter().all(|queue| allowed.contains(queue)), "processor {cpu}: {chosen:?}");
        assert!(all_distinct(&chosen), "processor {cpu}: {chosen:?}");
        bulk.finish();
        assert_weightless(&bed);
        let statistics = bed.queue_statistics().unwrap();
        let (inside, outside): (Vec<_>, Vec<_>) =
            statistics.iter().enumerate().partition(|(queue, _)| allowed.contains(&(*queue as u32)));
        let sum = |queues: Vec<(usize, &evenkeel_netlink::tc::Statistics)>| {
            queues.iter().map(|(_, queue)| queue.bytes).sum::<u64>()
        };
        let (inside, outside) = (sum(inside), sum(outside));
        assert!(
            outside * 100 < inside,
            "processor {cpu}: {outside} bytes outside of its pool, {inside} inside"
        );
    }
}

#[test]
fn two_hundred_and_fifty_six_queues() {
    let mut bed = Bed::build(&BedOptions { queues: 256, ..options(Topology::SoftNic, Policy::Dqa) }).unwrap();
    let bulk = Bulk::start(&bed, BulkOptions { flows: 24, ..BulkOptions::default() });
    bulk.wait_for_each(500_000);
    let chosen = queues(&charged_states(&bed, &bulk));
    assert!(all_distinct(&chosen), "{chosen:?}");
    // Ties go to the hash, so 24 flows do not crowd the first queues.
    assert!(chosen.iter().any(|queue| *queue >= 64), "{chosen:?}");
    bulk.finish();
    assert_weightless(&bed);
    assert_eq!(bed.select.weights().len(), 256);
    let statistics = bed.queue_statistics().unwrap();
    assert_eq!(statistics.len(), 256);
    for queue in chosen {
        assert!(
            statistics[queue as usize].bytes > 100_000,
            "queue {queue}: {:?}",
            statistics[queue as usize]
        );
    }
}

#[test]
fn flows_that_do_not_fit_the_table_are_hashed_and_counted() {
    const FLOWS: usize = 40;
    let mut bed =
        Bed::build(&BedOptions { max_flows: 16, ..options(Topology::SoftNic, Policy::Dqa) }).unwrap();
    let bulk = Bulk::start(&bed, BulkOptions { flows: FLOWS, ..BulkOptions::default() });
    bulk.wait_for_each(200_000);
    let flows = bed.select.flows().len();
    assert!((1..FLOWS).contains(&flows), "{flows} of {FLOWS} flows are tracked in a table of 16");
    assert!(bed.select.counters().untracked > 0);
    assert!(weight_sum(&bed) <= flows as u64);
    for flow in bulk.finish() {
        assert_eq!(flow.received, flow.sent, "{:?}", flow.ends);
    }
    assert_weightless(&bed);
    let used = bed.queue_statistics().unwrap().iter().filter(|queue| queue.bytes > 200_000).count();
    assert!(used > 1, "hashed flows spread over the queues");
}
