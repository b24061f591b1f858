//! Tests with more flows than slots. Short flows replace each other, and the table is empty at the end.
//!
//! `EVENKEEL_SOAK_FLOWS` sets the number of flows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::{Duration, Instant};

use evenkeel_datapath::{QueueSelect, SelectOptions, Tuple};
use evenkeel_model::scenario::Topology;
use evenkeel_testbed::{Bed, BedOptions};
use evenkeel_transmit::Policy;

use support::traffic::{Bulk, BulkOptions, pin};
use support::{assert_weightless, options, wait_for};

/// Time limit for freeing a slot. Freeing takes ten seconds of silence, and a walk that runs once per
/// second.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(30);

/// Returns a data segment of flow number `flow`: Ethernet, IPv4, TCP, payload.
fn frame(flow: u64) -> Vec<u8> {
    let mut frame = vec![0; 14 + 20 + 20 + 1000];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&1040_u16.to_be_bytes());
    frame[23] = 6;
    frame[26..30].copy_from_slice(&[198, 18, 0, 1]);
    frame[30..34].copy_from_slice(&[198, 19, (flow >> 24) as u8, (flow >> 16) as u8]);
    frame[34..36].copy_from_slice(&(flow as u16).to_be_bytes());
    frame[46] = 5 << 4;
    frame
}

/// Flows that send throughout a flood of single-segment flows must keep their slots. The flows of the
/// flood replace each other.
#[test]
fn flows_of_one_segment_do_not_displace_long_ones() {
    const FLOOD: u64 = 400_000;
    let bed = Bed::build(&BedOptions {
        meter: None,
        max_flows: 131_072,
        ..options(Topology::SoftNic, Policy::Dqa)
    })
    .unwrap();
    let bulk = Bulk::start(&bed, BulkOptions { flows: 4, ..BulkOptions::default() });
    bulk.wait_for_each(1_000_000);
    let long: Vec<Tuple> = bed.select.flows().iter().map(|flow| flow.tuple).collect();
    assert_eq!(long.len(), 4);
    for flow in 0..FLOOD {
        bed.select.choose_for(&frame(flow)).unwrap();
    }
    let counters = bed.select.counters();
    assert!(counters.evicted > FLOOD / 4, "{counters:?}");
    assert!(counters.untracked < FLOOD / 10, "{counters:?}");
    let flows = bed.select.flows();
    let is_tracked = |tuple: &&Tuple| flows.iter().any(|flow| flow.tuple == **tuple);
    assert_eq!(long.iter().filter(is_tracked).count(), 4, "{counters:?}");
    bulk.finish();
    assert_weightless(&bed);
}

/// User space must read the sums of the counters of all CPUs.
#[test]
fn counters_are_sums_over_all_processors() {
    const EACH: u64 = 100;
    let select = QueueSelect::load(&SelectOptions { queues: 8, ..SelectOptions::default() }).unwrap();
    let processors = std::thread::available_parallelism().unwrap().get().min(4);
    for cpu in 0..processors {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pin(Some(cpu));
                (0..EACH).for_each(|flow| select.choose_for(&frame(flow)).unwrap());
            });
        });
        assert_eq!(select.counters().picks, EACH * (cpu as u64 + 1));
    }
}

#[test]
fn more_flows_than_the_table_has_room_for() {
    let count: u64 = std::env::var("EVENKEEL_SOAK_FLOWS").map_or(1_000_000, |text| text.parse().unwrap());
    let bed = Bed::build(&BedOptions {
        meter: None,
        max_flows: 131_072,
        ..options(Topology::SoftNic, Policy::Dqa)
    })
    .unwrap();
    let begun = Instant::now();
    let mut most = 0;
    for flow in 0..count {
        bed.select.choose_for(&frame(flow)).unwrap();
        if flow % 10_000 == 0 {
            most = most.max(bed.select.flow_count());
        }
    }
    most = most.max(bed.select.flow_count());
    let counters = bed.select.counters();
    eprintln!(
        "{count} flows in {:.1} s, {most} at a time at most, {} found the table full",
        begun.elapsed().as_secs_f64(),
        counters.untracked
    );
    assert!(most <= 131_072);
    assert!(most > 100_000 || count < 110_000, "only {most} flows at a time");
    // Single-segment flows replace each other as soon as they have nothing outstanding.
    assert!(counters.untracked < count / 10, "{counters:?}");
    assert_weightless(&bed);
    wait_for("every flow is forgotten", FORGOTTEN_WITHIN, || (bed.select.flow_count() == 0).then_some(()));
}
