//! Tests of the queue choice on the real kernel, in both topologies.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream, UdpSocket};

use evenkeel_model::scenario::Topology;
use evenkeel_testbed::{Bed, BedOptions, RECEIVER_ADDRESS, RECEIVER_ADDRESS_V6, SENDER_ADDRESS};
use evenkeel_transmit::{Policy, Pool};

use support::traffic::{Bulk, BulkOptions, Ends, accept, connect, listen, pin};
use support::{
    PATIENCE, all_distinct, assert_weightless, charged_states, metered, options, queues, tracked, wait_for,
    weight_sum,
};

const EACH: u64 = 4_000_000;

/// Six flows on eight queues with dynamic queue assignment: each flow has its own queue, the NIC's
/// counters agree, and no weight remains.
fn six_flows_sit_on_six_queues(topology: Topology) {
    let mut bed = Bed::build(&options(topology, Policy::Dqa)).unwrap();
    let bulk = Bulk::start(&bed, BulkOptions { flows: 6, ..BulkOptions::default() });
    bulk.wait_for_each(EACH / 4);
    let states = charged_states(&bed, &bulk);
    let queues = queues(&states);
    assert!(all_distinct(&queues), "{queues:?}");
    assert_eq!(weight_sum(&bed), 6);

    counters_follow_the_choice(&mut bed, &bulk);
    assert!(all_distinct(&support::queues(&charged_states(&bed, &bulk))));
    bulk.finish().iter().for_each(|flow| assert_eq!(flow.received, flow.sent));
    assert_weightless(&bed);
    let counters = bed.select.counters();
    assert_eq!((counters.false_releases, counters.contended, counters.untracked), (0, 0, 0), "{counters:?}");
    assert!(counters.picks >= 6, "{counters:?}");
    assert_eq!(bed.queue_statistics().unwrap().iter().map(|queue| queue.drops).sum::<u64>(), 0);
}

/// Compares each queue's counter with the bytes of its flow, over a time in which no flow moved. During
/// slow start, a flow is idle between bursts and may move.
fn counters_follow_the_choice(bed: &mut Bed, bulk: &Bulk) {
    // Allowance for segments that are sent between reading the counter and reading the meter.
    const SKEW: u64 = 4 * 65_536;
    for round in 2..10 {
        let moves = bed.select.counters().moves;
        let states = charged_states(bed, bulk);
        let (queues_then, flows_then) = (bed.queue_statistics().unwrap(), bulk_bytes(bed, &states));
        bulk.wait_for_each(round * EACH);
        let (queues_now, flows_now) = (bed.queue_statistics().unwrap(), bulk_bytes(bed, &states));
        if bed.select.counters().moves != moves {
            continue;
        }
        for (queue, (now, then)) in queues_now.iter().zip(&queues_then).enumerate() {
            let carried = now.bytes - then.bytes;
            let sent: u64 = states
                .iter()
                .zip(flows_now.iter().zip(&flows_then))
                .filter(|(state, _)| state.queue == Some(queue as u32))
                .map(|(_, (now, then))| now - then)
                .sum();
            let difference = carried.abs_diff(sent);
            assert!(difference <= SKEW, "queue {queue} carried {carried} bytes, its flow {sent}");
            // ARP and neighbour discovery packets belong to no flow.
            assert!(sent > 0 || carried < 10_000, "queue {queue} carried {carried} bytes without a flow");
        }
        assert!(
            flows_now.iter().zip(&flows_then).all(|(now, then)| now - then > 2 * SKEW),
            "too short to tell"
        );
        return;
    }
    panic!("flows went on moving");
}

/// Returns the bytes on the wire of tracked flows, from the meter.
fn bulk_bytes(bed: &Bed, states: &[evenkeel_datapath::FlowState]) -> Vec<u64> {
    let samples = bed.meter.as_ref().unwrap().flows();
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

/// Checks that the recorded queue carries the flow. Returns the recorded queues. On a veth pair, the
/// transmit queue of a packet is visible at the other end as its receive queue.
fn the_recorded_queue_is_the_true_one(policy: Policy, flows: usize) -> Vec<u32> {
    let bed = Bed::build(&options(Topology::Mq, policy)).unwrap();
    let bulk = Bulk::start(&bed, BulkOptions { flows, ..BulkOptions::default() });
    bulk.wait_for_each(EACH / 4);
    let recorded = queues(&charged_states(&bed, &bulk));
    // Wait until every flow has sent more segments, because the meter's queue is that of the last segment.
    let before = bulk.received();
    wait_for("every flow has carried more", PATIENCE, || {
        bulk.received().iter().zip(&before).all(|(now, before)| *now >= before + EACH / 8).then_some(())
    });
    for ends in bulk.ends() {
        let steady = wait_for("a flow's queue and its segments' queue agree", PATIENCE, || {
            let state = tracked(&bed, ends)?;
            let sample = metered(&bed, ends)?;
            (Some(sample.queue_mapping) == state.queue).then_some(state)
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

fn processors() -> Vec<usize> {
    // SAFETY: all zeroes is the empty set, and the call fills at most its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect()
    }
}

/// Returns two pools, and the first CPU of each pool.
fn pools() -> ([Pool; 2], [usize; 2]) {
    let processors = processors();
    let first =
        |pool| *processors.iter().find(|cpu| **cpu % 2 == pool).expect("two pools need two processors");
    ([Pool { first: 0, count: 3 }, Pool { first: 3, count: 5 }], [first(0), first(1)])
}

fn is_in(pool: Pool, queue: u32) -> bool {
    (pool.first..pool.first + pool.count).contains(&queue)
}

/// Returns the bytes of the queues inside and outside of a pool.
fn carried(bed: &mut Bed, pool: Pool) -> (u64, u64) {
    let statistics = bed.queue_statistics().unwrap();
    let sum = |inside| {
        let queues = statistics.iter().enumerate().filter(|(queue, _)| is_in(pool, *queue as u32) == inside);
        queues.map(|(_, queue)| queue.bytes).sum()
    };
    (sum(true), sum(false))
}

/// A message that fits into one segment: the write system call sends it, on the thread's CPU. The CPU that
/// handles the ACK or the timer would send later segments.
const MESSAGE: [u8; 1_200] = [0x5a; 1_200];

#[test]
fn tcp_from_a_processor_uses_the_queues_of_its_pool_only() {
    const CONNECTIONS: usize = 40;
    let (pools, processors) = pools();
    for topology in [Topology::SoftNic, Topology::Mq] {
        for (pool, cpu) in pools.into_iter().zip(processors) {
            let mut bed =
                Bed::build(&BedOptions { pools: pools.to_vec(), ..options(topology, Policy::Dqa) }).unwrap();
            let listener = listen(&bed.receiver, RECEIVER_ADDRESS.into());
            let destination = listener.local_addr().unwrap();
            let sent: Vec<Ends> = bed
                .sender
                .run(|| {
                    pin(Some(cpu));
                    let connections = (0..CONNECTIONS).map(|_| {
                        let mut sending = TcpStream::connect_timeout(&destination, PATIENCE).unwrap();
                        let mut receiving = accept(&listener);
                        sending.write_all(&MESSAGE).unwrap();
                        receiving.set_read_timeout(Some(PATIENCE)).unwrap();
                        receiving.read_exact(&mut [0; MESSAGE.len()]).unwrap();
                        Ends { source: sending.local_addr().unwrap(), destination }
                    });
                    Ok(connections.collect())
                })
                .unwrap();
            let queues: Vec<u32> =
                sent.iter().map(|ends| tracked(&bed, ends).unwrap().queue.unwrap()).collect();
            assert!(queues.iter().all(|queue| is_in(pool, *queue)), "processor {cpu}, {pool:?}: {queues:?}");
            assert!(queues.iter().any(|queue| *queue != queues[0]), "the whole pool is used: {queues:?}");
            assert_weightless(&bed);
            // Only packets without data may have used queues outside of the pool.
            let (inside, outside) = carried(&mut bed, pool);
            assert!(inside >= (CONNECTIONS * MESSAGE.len()) as u64, "{inside} bytes inside");
            assert!(outside < (CONNECTIONS * MESSAGE.len() / 2) as u64, "{outside} bytes outside");
        }
    }
}

#[test]
fn datagrams_from_a_processor_use_the_queues_of_its_pool_only() {
    const DATAGRAMS: usize = 60;
    let (pools, processors) = pools();
    for topology in [Topology::SoftNic, Topology::Mq] {
        for (pool, cpu) in pools.into_iter().zip(processors) {
            let mut bed =
                Bed::build(&BedOptions { pools: pools.to_vec(), ..options(topology, Policy::Dqa) }).unwrap();
            let sink = bed.receiver.run(|| Ok(UdpSocket::bind((RECEIVER_ADDRESS, 0)).unwrap())).unwrap();
            let destination = sink.local_addr().unwrap();
            sink.set_read_timeout(Some(PATIENCE)).unwrap();
            // Resolve the address first. A datagram that waits for address resolution would be sent
            // when the answer arrives, possibly on another CPU.
            let listener = listen(&bed.receiver, RECEIVER_ADDRESS.into());
            let _resolved = connect(&bed.sender, listener.local_addr().unwrap());
            bed.sender
                .run(|| {
                    pin(Some(cpu));
                    for _ in 0..DATAGRAMS {
                        let socket = UdpSocket::bind((SENDER_ADDRESS, 0)).unwrap();
                        socket.send_to(&MESSAGE, destination).unwrap();
                        sink.recv(&mut [0; MESSAGE.len()]).unwrap();
                    }
                    Ok(())
                })
                .unwrap();
            assert_weightless(&bed);
            let queues: Vec<u32> = bed.select.flows().iter().filter_map(|flow| flow.queue).collect();
            assert_eq!(queues.len(), DATAGRAMS);
            assert!(queues.iter().all(|queue| is_in(pool, *queue)), "processor {cpu}, {pool:?}: {queues:?}");
            let (inside, outside) = carried(&mut bed, pool);
            assert!(inside >= (DATAGRAMS * MESSAGE.len()) as u64, "{inside} bytes inside");
            assert!(outside < MESSAGE.len() as u64, "{outside} bytes outside");
        }
    }
}

#[test]
fn two_hundred_and_fifty_six_queues() {
    let mut bed = Bed::build(&BedOptions { queues: 256, ..options(Topology::SoftNic, Policy::Dqa) }).unwrap();
    let bulk = Bulk::start(&bed, BulkOptions { flows: 24, ..BulkOptions::default() });
    bulk.wait_for_each(500_000);
    let chosen = queues(&charged_states(&bed, &bulk));
    assert!(all_distinct(&chosen), "{chosen:?}");
    // The hash breaks ties, so 24 flows do not use only the first queues.
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
    const FLOWS: usize = 100;
    const TRACKED: usize = 16;
    let mut bed =
        Bed::build(&BedOptions { max_flows: TRACKED as u32, ..options(Topology::SoftNic, Policy::Dqa) })
            .unwrap();
    let bulk = Bulk::start(&bed, BulkOptions { flows: FLOWS, ..BulkOptions::default() });
    bulk.wait_for_each(100_000);
    let flows = bed.select.flows().len();
    assert_eq!(flows, TRACKED, "of {FLOWS} flows");
    assert!(bed.select.counters().untracked > 0);
    assert!(weight_sum(&bed) <= flows as u64);
    for flow in bulk.finish() {
        assert_eq!(flow.received, flow.sent, "{:?}", flow.ends);
    }
    assert_weightless(&bed);
    let used = bed.queue_statistics().unwrap().iter().filter(|queue| queue.bytes > 200_000).count();
    assert!(used > 1, "hashed flows spread over the queues");
}

/// Flows with data outstanding must keep their queue after a flush of the route cache. After the flush,
/// the kernel accepts any queue for the next segment of a flow.
#[test]
fn a_route_flush_reorders_nothing() {
    let bed = Bed::build(&options(Topology::Mq, Policy::Dqa)).unwrap();
    let bulk = Bulk::start(&bed, BulkOptions { flows: 12, ..BulkOptions::default() });
    bulk.wait_for_each(1_000_000);
    for _ in 0..20 {
        bed.sender.set_sysctl("net/ipv4/route/flush", "1").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    bulk.wait_for_each(4_000_000);
    let late: u64 = bulk.ends().iter().map(|ends| metered(&bed, ends).unwrap().out_of_order).sum();
    // Retransmissions usually count as out of order.
    assert!(late <= support::retransmitted(&bed), "{late} packets out of order");
    bulk.finish();
    assert_weightless(&bed);
}
