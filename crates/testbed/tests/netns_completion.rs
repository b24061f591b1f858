//! Tests of completion: the methods of detecting completions, and the detection by a pick.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::{Read, Write};
use std::time::Duration;

use evenkeel_datapath::Completion;
use evenkeel_model::scenario::Topology;
use evenkeel_testbed::{Bed, BedOptions, RECEIVER_ADDRESS};
use evenkeel_transmit::Policy;

use support::traffic::{Bulk, BulkOptions, Ends, accept, connect, listen, short_connections};
use support::{assert_weightless, options, tracked, weight_sum};

fn bed(completion: Completion, queues: u32) -> Bed {
    let options = options(Topology::SoftNic, Policy::Dqa);
    Bed::build(&BedOptions { completion, queues, meter: None, ..options }).unwrap()
}

/// A pick must read the sockets. One flow occupies a queue. Short flows start and end on the other
/// queue. Each short flow finds this queue empty, although no timer ran since the previous flow ended.
/// Without reading the sockets, a pick would see one flow on each queue and use the hash.
#[test]
fn a_pick_looks_at_the_sockets_first() {
    const SHORT_FLOWS: usize = 40;
    let bed = bed(Completion::Sockets, 2);
    let bulk = Bulk::start(&bed, BulkOptions { flows: 1, ..BulkOptions::default() });
    // After slow start the bulk flow almost always has data outstanding, so it rarely moves.
    bulk.wait_for_each(20_000_000);
    let listener = listen(&bed.receiver, RECEIVER_ADDRESS.into());
    let destination = listener.local_addr().unwrap();
    let of_bulk = || tracked(&bed, &bulk.ends()[0]).unwrap();
    let (mut rounds, mut beside_it) = (0, 0);
    while rounds < SHORT_FLOWS {
        // The kernel frees read data with a small delay (skb_attempt_defer_free). The timer's own scan
        // comes much later.
        std::thread::sleep(Duration::from_millis(5));
        let held = of_bulk();
        let mut sending = connect(&bed.sender, destination);
        let mut receiving = accept(&listener);
        sending.write_all(&[7; 4_000]).unwrap();
        receiving.read_exact(&mut [0; 4_000]).unwrap();
        let ends = Ends { source: sending.local_addr().unwrap(), destination };
        let chosen = tracked(&bed, &ends).unwrap().queue;
        // On a busy machine even a bulk flow can have nothing outstanding and move.
        if of_bulk().segments == held.segments {
            rounds += 1;
            beside_it += usize::from(chosen != held.queue);
        }
    }
    assert_eq!(beside_it, SHORT_FLOWS, "short flows had the empty queue");
    bulk.finish();
    assert_weightless(&bed);
}

/// A scan must release closed sockets and flows with nothing outstanding.
#[test]
fn a_look_makes_the_weights_true() {
    let bed = bed(Completion::Sockets, 8);
    short_connections(&bed, 200, 4);
    let listener = listen(&bed.receiver, RECEIVER_ADDRESS.into());
    let open: Vec<_> = (0..20)
        .map(|_| {
            let mut sending = connect(&bed.sender, listener.local_addr().unwrap());
            let mut receiving = accept(&listener);
            sending.write_all(&[7; 4_000]).unwrap();
            receiving.read_exact(&mut [0; 4_000]).unwrap();
            (sending, receiving)
        })
        .collect();
    // Scan several times, because a scan has no effect while a timer or a pick scans. A scan takes
    // microseconds.
    for _ in 0..3 {
        bed.select.look().unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(weight_sum(&bed), 0, "{:?}", bed.select.weights());
    let counters = bed.select.counters();
    assert!(counters.completed >= 100, "{counters:?}");
    assert_eq!((counters.aged, counters.contended, counters.untracked), (0, 0, 0), "{counters:?}");
    drop(open);
}

#[test]
fn every_way_of_completion_conserves_weights() {
    for completion in [Completion::Sockets, Completion::Exact, Completion::Peer, Completion::Ageing] {
        let bed = bed(completion, 8);
        match bed.select.refused() {
            // On a kernel without fentry, the next best completion is used.
            Some(reason) => {
                assert_eq!(completion, Completion::Exact, "{reason}");
                assert_eq!(bed.select.completion(), Completion::Sockets, "{reason}");
            }
            None => assert_eq!(bed.select.completion(), completion),
        }
        short_connections(&bed, 400, 4);
        assert_weightless(&bed);
        let counters = bed.select.counters();
        assert!(counters.picks >= 400 && counters.contended == 0, "{counters:?}");
        assert_eq!(counters.completed == 0, completion == Completion::Ageing, "{counters:?}");
    }
}
