//! Tests that queue weights are conserved: after any sequence of flows and segments, every queue's weight
//! returns to zero.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::Read;
use std::time::{Duration, Instant};

use evenkeel_datapath::Completion;
use evenkeel_model::scenario::Topology;
use evenkeel_model::units::BitRate;
use evenkeel_testbed::{Bed, BedOptions, Process, RECEIVER_ADDRESS};
use evenkeel_transmit::Policy;

use support::traffic::{Bulk, BulkOptions, accept, listen, short_connections, short_size};
use support::{PATIENCE, assert_weightless, options, process, wait_for, weight_sum};

fn short_flows_leave_no_weight(topology: Topology) {
    const CONNECTIONS: usize = 2_000;
    let bed = Bed::build(&BedOptions { meter: None, ..options(topology, Policy::Dqa) }).unwrap();
    let received = short_connections(&bed, CONNECTIONS, 8);
    assert_eq!(received, (1..=CONNECTIONS).map(|number| short_size(number) as u64).sum::<u64>());
    assert_weightless(&bed);

    let counters = bed.select.counters();
    assert!(counters.picks >= CONNECTIONS as u64, "every connection has picked a queue: {counters:?}");
    assert_eq!((counters.contended, counters.untracked), (0, 0), "{counters:?}");
    assert!(counters.completed > 0, "{counters:?}");
    // Long-silent flows have lost their slot, but the last flows are still tracked.
    let flows = bed.select.flows();
    assert!(
        !flows.is_empty() && flows.iter().all(|flow| flow.queue.is_some() && flow.segments > 0),
        "{flows:?}"
    );
}

#[test]
fn two_thousand_short_connections_on_the_soft_nic() {
    short_flows_leave_no_weight(Topology::SoftNic);
}

#[test]
fn two_thousand_short_connections_on_mq() {
    short_flows_leave_no_weight(Topology::Mq);
}

fn drops(bed: &mut Bed) -> u64 {
    bed.queue_statistics().unwrap().iter().map(|queue| queue.drops).sum()
}

#[test]
fn drops_in_the_queues_leave_no_weight() {
    for (limit, completion) in
        [(1, Completion::Sockets), (2, Completion::Sockets), (1, Completion::Peer), (1, Completion::Ageing)]
    {
        let options = BedOptions {
            queues: 2,
            meter: None,
            completion,
            rate: BitRate::from_bits_per_second(100_000_000),
            ..options(Topology::SoftNic, Policy::Dqa)
        };
        let mut bed = Bed::build(&options).unwrap();
        bed.set_queue_limits(limit).unwrap();
        let bulk = Bulk::start(&bed, BulkOptions { flows: 12, ..BulkOptions::default() });
        wait_for("the queues drop", PATIENCE, || (drops(&mut bed) > 100).then_some(()));
        // With a larger limit, TCP recovers from drops. With the small limit, some flows would starve
        // for minutes.
        bed.set_queue_limits(1_000).unwrap();
        bulk.wait_for_each(100_000);
        for flow in bulk.finish() {
            assert_eq!(flow.received, flow.sent, "{:?}", flow.ends);
        }
        assert_weightless(&bed);
        assert_eq!(bed.select.counters().contended, 0);
    }
}

/// Returns the options of a slow link, so that many bytes are queued when the sender dies.
fn slow(topology: Topology) -> BedOptions {
    BedOptions {
        rate: BitRate::from_bits_per_second(40_000_000),
        meter: None,
        ..options(topology, Policy::Dqa)
    }
}

#[test]
fn connections_that_are_reset_leave_no_weight() {
    for (topology, limit) in [(Topology::SoftNic, None), (Topology::SoftNic, Some(1)), (Topology::Mq, None)] {
        let mut bed = Bed::build(&slow(topology)).unwrap();
        if let Some(limit) = limit {
            bed.set_queue_limits(limit).unwrap();
        }
        let bulk = Bulk::start(&bed, BulkOptions { flows: 16, ..BulkOptions::default() });
        bulk.wait_for_all(500_000);
        wait_for("something is charged", PATIENCE, || (weight_sum(&bed) > 0).then_some(()));
        bulk.reset();
        assert_weightless(&bed);
    }
}

#[test]
fn processes_that_are_killed_leave_no_weight() {
    const SENDERS: usize = 6;
    let bed = Bed::build(&slow(Topology::SoftNic)).unwrap();
    let listener = listen(&bed.receiver, RECEIVER_ADDRESS.into());
    let port = listener.local_addr().unwrap().port();
    let script = format!("exec cat /dev/zero > /dev/tcp/{RECEIVER_ADDRESS}/{port}");
    let senders: Vec<Process> =
        (0..SENDERS).map(|_| process(&bed.sender, "bash", &["-c", &script])).collect();
    let mut receivers: Vec<_> = (0..SENDERS).map(|_| accept(&listener)).collect();
    for receiver in &mut receivers {
        receiver.set_read_timeout(Some(PATIENCE)).unwrap();
        receiver.read_exact(&mut [0; 50_000]).unwrap();
    }
    wait_for("something is queued", PATIENCE, || (weight_sum(&bed) > 0).then_some(()));
    drop(senders);
    // The data that the killed processes queued still arrives.
    for receiver in &mut receivers {
        receiver.read_to_end(&mut Vec::new()).unwrap();
    }
    assert_weightless(&bed);
}

/// Without completions, a flow must be released only after a silence longer than the drain time of its
/// queue. With deep queues at a low rate, a fixed limit would release flows with queued segments.
#[test]
fn ageing_alone_releases_late_and_never_early() {
    for (topology, flows) in [(Topology::SoftNic, 16), (Topology::Mq, 12)] {
        let options = BedOptions {
            completion: Completion::Ageing,
            rate: BitRate::from_bits_per_second(80_000_000),
            ..options(topology, Policy::Dqa)
        };
        let bed = Bed::build(&options).unwrap();
        let bulk = Bulk::start(&bed, BulkOptions { flows, ..BulkOptions::default() });
        // Run for several times the ageing limit, which has grown with the queues.
        let begun = Instant::now();
        wait_for("the limit has grown, and the flows have run for three times as long", PATIENCE, || {
            let limit = Duration::from_nanos(bed.select.ageing_limit_ns());
            (limit > Duration::from_millis(40) && begun.elapsed() > 3 * limit.max(Duration::from_millis(500)))
                .then_some(())
        });
        let counters = bed.select.counters();
        assert_eq!(counters.false_releases, 0, "{topology:?}: {counters:?}");
        assert_eq!(counters.completed, 0, "nothing but ageing releases: {counters:?}");
        wait_for("something is charged", PATIENCE, || (weight_sum(&bed) > 0).then_some(()));
        bulk.finish();
        assert_weightless(&bed);
        let counters = bed.select.counters();
        assert!(counters.aged > 0, "{counters:?}");
        assert_eq!(counters.false_releases, 0, "{topology:?}: {counters:?}");
    }
}
