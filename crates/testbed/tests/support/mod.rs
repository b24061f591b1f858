//! Helpers of the tests on the real kernel. Each test binary uses some of them.

#![allow(dead_code)]

pub mod leftovers;
pub mod nics;
pub mod tenants;
pub mod traffic;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use evenkeel_datapath::{FlowSample, FlowState, MeterOptions, Tuple};
use evenkeel_model::scenario::Topology;
use evenkeel_model::units::BitRate;
use evenkeel_testbed::{Bed, BedOptions, Namespace, Process, ProcessOptions};
use evenkeel_transmit::Policy;

use traffic::{Bulk, Ends};

/// Time limit for a condition on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Time limit for the weights to return to zero after the traffic.
pub const SETTLE_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(2);

/// Polls until `look` returns a result. Fails after `limit`.
pub fn wait_for<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        std::thread::sleep(POLL);
    }
}

/// Returns options of a test bed with a meter and eight queues, at a rate that two busy CPUs can carry.
/// The meter has bins of 100 ms for half a minute.
pub fn options(topology: Topology, policy: Policy) -> BedOptions {
    BedOptions {
        topology,
        policy,
        rate: BitRate::from_bits_per_second(300_000_000),
        meter: Some(MeterOptions { flows: 256, bins: 300, bin_ns: 100_000_000 }),
        ..BedOptions::default()
    }
}

pub fn is_between(tuple: &Tuple, ends: &Ends) -> bool {
    SocketAddr::new(tuple.source, tuple.source_port) == ends.source
        && SocketAddr::new(tuple.destination, tuple.destination_port) == ends.destination
}

pub fn tracked(bed: &Bed, ends: &Ends) -> Option<FlowState> {
    bed.select.flows().into_iter().find(|flow| is_between(&flow.tuple, ends))
}

pub fn metered(bed: &Bed, ends: &Ends) -> Option<FlowSample> {
    bed.meter.as_ref().unwrap().flows().into_iter().find(|flow| is_between(&flow.tuple, ends))
}

/// Returns the states of all bulk flows at a time at which each flow is charged to a queue and no flow
/// changes its queue.
pub fn charged_states(bed: &Bed, bulk: &Bulk) -> Vec<FlowState> {
    wait_for("every bulk flow is charged at the same time", PATIENCE, || {
        let before = bed.select.counters();
        let states: Vec<FlowState> = bulk.ends().iter().filter_map(|ends| tracked(bed, ends)).collect();
        let weights: u32 = bed.select.weights().iter().sum();
        let steady = bed.select.counters().picks == before.picks
            && states.len() == bulk.ends().len()
            && states.iter().all(|state| state.charged_weight > 0);
        // This test bed has no other senders. If the sums are equal, no flow was charged or released
        // between the two readings.
        let charged: u32 = states.iter().map(|state| state.charged_weight).sum();
        (steady && weights == charged).then_some(states)
    })
}

pub fn queues(states: &[FlowState]) -> Vec<u32> {
    states.iter().map(|state| state.queue.unwrap()).collect()
}

pub fn all_distinct(queues: &[u32]) -> bool {
    let distinct: std::collections::BTreeSet<_> = queues.iter().collect();
    distinct.len() == queues.len()
}

pub fn weight_sum(bed: &Bed) -> u64 {
    bed.select.weights().iter().map(|weight| u64::from(*weight)).sum()
}

/// Waits until no queue has weight, and asserts that no flow is charged.
pub fn assert_weightless(bed: &Bed) {
    let deadline = Instant::now() + SETTLE_LIMIT;
    while weight_sum(bed) > 0 && Instant::now() < deadline {
        std::thread::sleep(POLL);
    }
    let charged: Vec<FlowState> =
        bed.select.flows().into_iter().filter(|flow| flow.charged_weight > 0).collect();
    assert!(
        weight_sum(bed) == 0 && charged.is_empty(),
        "weights {:?} are left after {SETTLE_LIMIT:?}; charged flows: {charged:?}; {:?}",
        bed.select.weights(),
        bed.select.counters()
    );
}

pub fn retransmitted(bed: &Bed) -> u64 {
    retransmitted_at(&bed.sender)
}

pub fn retransmitted_at(host: &Namespace) -> u64 {
    tcp_counter_at(host, "RetransSegs")
}

/// Returns a TCP counter of a host, by its name in `/proc/net/snmp`.
pub fn tcp_counter_at(host: &Namespace, name: &str) -> u64 {
    let table = host.read_proc_net("snmp").unwrap();
    let mut tcp = table.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (tcp.next().unwrap(), tcp.next().unwrap());
    let column = names.split_ascii_whitespace().position(|found| found == name).unwrap();
    values.split_ascii_whitespace().nth(column).unwrap().parse().unwrap()
}

/// Starts a process in a namespace. Dropping the process kills it.
pub fn process(namespace: &Namespace, program: &str, arguments: &[&str]) -> Process {
    Process::start(ProcessOptions {
        program,
        arguments: arguments.iter().map(Into::into).collect(),
        namespace,
        cpu: None,
        inherit: None,
    })
    .unwrap()
}
