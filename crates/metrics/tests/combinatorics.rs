//! Expected values of the fairness metric if queues get equal service and the flows of a queue share it
//! equally. Then the metric depends only on the occupancy of the queues, so its expectation under
//! hashing can be computed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use evenkeel_metrics::{FlowSeries, nfm};

/// Returns the NFM of one long window with `occupancy[q]` flows on queue q. The busy queues share the line.
fn nfm_of(occupancy: &[usize]) -> f64 {
    const LINE_BYTES: u64 = 1_000_000_000_000;
    let busy = occupancy.iter().filter(|flows| **flows > 0).count() as u64;
    let flows: Vec<FlowSeries<'_>> = occupancy
        .iter()
        .flat_map(|&on_queue| {
            let bytes = vec![LINE_BYTES / busy / on_queue.max(1) as u64];
            let whole = 0..1;
            std::iter::repeat_n(
                FlowSeries { weight: 1.0, bytes: bytes.into(), backlogged: vec![whole] },
                on_queue,
            )
        })
        .collect();
    nfm(&flows, 1_000_000_000, 1_000_000_000, 8 * LINE_BYTES).unwrap().unwrap().mean
}

fn factorial(n: usize) -> f64 {
    (1..=n).map(|factor| factor as f64).product()
}

/// Calls `visit` with every partition of `flows` into at most `queues` parts of at most `largest` flows. The
/// parts of a partition are in descending order.
fn partitions(
    flows: usize,
    queues: usize,
    largest: usize,
    parts: &mut Vec<usize>,
    visit: &mut dyn FnMut(&[usize]),
) {
    if flows == 0 {
        visit(parts);
        return;
    }
    if queues == 0 {
        return;
    }
    for part in 1..=largest.min(flows) {
        parts.push(part);
        partitions(flows - part, queues - 1, part, parts, visit);
        parts.pop();
    }
}

/// Returns the expectation of the NFM if each of `flows` is hashed to one of `queues` independently. It
/// is the sum over all occupancies, weighted by their multinomial probability.
fn expected_under_hashing(flows: usize, queues: usize) -> f64 {
    let (mut expectation, mut certainty) = (0.0, 0.0);
    partitions(flows, queues, flows, &mut Vec::new(), &mut |parts| {
        let placements = factorial(flows) / parts.iter().map(|part| factorial(*part)).product::<f64>();
        let of_size = |size: usize| parts.iter().filter(|part| **part == size).count();
        let choices = factorial(queues)
            / factorial(queues - parts.len())
            / (1..=flows).map(|size| factorial(of_size(size))).product::<f64>();
        let probability = placements * choices / (queues as f64).powi(flows as i32);
        certainty += probability;
        expectation += probability * nfm_of(parts);
    });
    assert!((certainty - 1.0).abs() < 1e-9, "probabilities add up to {certainty}");
    expectation
}

#[test]
fn hashing_two_flows_on_two_queues_is_always_fair() {
    // Either each flow has a queue, or the two flows share a queue. The shares are equal in both cases.
    assert!(expected_under_hashing(2, 2).abs() < 1e-9);
}

#[test]
fn hashing_three_flows_on_two_queues() {
    // Three quarters of the placements are 2 + 1, with shares 1/4, 1/4, 1/2, so the NFM is 3 · 1/4. The
    // other placements are fair.
    assert!((expected_under_hashing(3, 2) - 0.75 * 0.75).abs() < 1e-9);
}

#[test]
fn hashing_12_flows_on_8_queues_gives_what_the_paper_measured() {
    // Titan, table 3: 1.39 for cmax at one second.
    let expected = expected_under_hashing(12, 8);
    assert!((1.3..1.5).contains(&expected), "{expected}");
}

#[test]
fn hashing_6_flows_on_8_queues_is_clearly_unfair() {
    let expected = expected_under_hashing(6, 8);
    assert!((0.6..0.9).contains(&expected), "{expected}");
}

#[test]
fn dynamic_assignment_spreads_flows_as_evenly_as_they_go() {
    assert!((nfm_of(&[2, 2, 2, 2, 1, 1, 1, 1]) - 0.75).abs() < 1e-9);
    assert!(nfm_of(&[1, 1, 1, 0, 0, 0, 0, 0]).abs() < 1e-9);
    assert!(nfm_of(&[6; 8]).abs() < 1e-9);
}
