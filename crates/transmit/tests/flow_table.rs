//! Tests of the places of flows in the flow table.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashSet;

use evenkeel_transmit::raw;

/// Number of cookies that a CPU takes at a time (`COOKIE_LOCAL_BATCH`, include/linux/cookie.h).
const BATCH: u64 = 4096;

fn slot(cookie: u64, step: u32) -> u32 {
    // SAFETY: the function only computes.
    unsafe { raw::ek_shim_slot(cookie, step) }
}

/// Gives each flow the first free slot of its places. Returns the number of flows without a free slot.
fn without_a_slot(cookies: impl Iterator<Item = u64>) -> usize {
    let mut taken = HashSet::new();
    cookies.filter(|cookie| !(0..raw::EK_PROBES).any(|step| taken.insert(slot(*cookie, step)))).count()
}

/// Two CPUs create sockets. For some distances between their cookies, each run of cookies of one CPU has the
/// same home slots as a run of the other CPU.
#[test]
fn flows_of_two_cpus_have_slots_at_each_distance_of_their_cookies() {
    const FLOWS: u64 = 512;
    let lost = |distance: u64| without_a_slot((0..FLOWS).chain((0..FLOWS).map(|n| distance * BATCH + n)));
    let worst = (1..8000).map(lost).max().unwrap();
    assert!(worst <= 16, "{worst} of {} flows have no slot", 2 * FLOWS);
}

#[test]
fn a_half_full_table_has_slots_for_most_flows() {
    let flows = u64::from(raw::EK_SLOTS / 2);
    for distance in [1, 2, 64] {
        let batch = move |first: u64| (0..BATCH).map(move |n| first * BATCH + n);
        // The batches of many CPUs over a long uptime are at irregular distances.
        let lost = without_a_slot((0..flows / BATCH).flat_map(|n| batch(n * n * distance)));
        assert!(lost < flows as usize / 50, "{lost} of {flows} flows have no slot, distance {distance}");
    }
}
