//! Tests of flow weights on the real kernel: shares follow the rules, even if the rules change while
//! flows run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::Duration;

use evenkeel_datapath::Rule;
use evenkeel_model::scenario::Topology;
use evenkeel_testbed::{Bed, BedOptions};
use evenkeel_transmit::Policy;

use support::traffic::{Bulk, BulkOptions};
use support::{PATIENCE, assert_weightless, charged_states, options, tracked, wait_for};

const TOLERANCE: f64 = 0.05;

fn rule(port: u16, weight: u32) -> Rule {
    Rule { weight, source_port: Some(port..=port), protocol: Some(6), ..Rule::default() }
}

/// Returns each flow's share of the bytes over three seconds.
fn shares(bed: &Bed, bulk: &Bulk) -> Vec<f64> {
    let bytes = || -> Vec<u64> {
        bulk.ends().iter().map(|ends| support::metered(bed, ends).unwrap().bytes).collect()
    };
    let before = bytes();
    std::thread::sleep(Duration::from_secs(3));
    let sent: Vec<u64> = bytes().iter().zip(&before).map(|(now, then)| now - then).collect();
    let all: u64 = sent.iter().sum();
    sent.iter().map(|sent| *sent as f64 / all as f64).collect()
}

/// Asserts that the shares follow the weights in one of several measurements. While other programs use the
/// CPUs, a flow may fail to keep its queue filled. A wrong implementation fails every time.
fn assert_shares(bed: &Bed, bulk: &Bulk, weights: &[u32]) {
    let total: u32 = weights.iter().sum();
    let follows = |found: &[f64]| {
        found
            .iter()
            .zip(weights)
            .all(|(share, weight)| (share * f64::from(total) / f64::from(*weight) - 1.0).abs() <= TOLERANCE)
    };
    let mut measured = Vec::new();
    for _ in 0..4 {
        let found = shares(bed, bulk);
        if follows(&found) {
            return;
        }
        measured.push(found);
    }
    panic!("shares {measured:?} for the weights {weights:?}");
}

/// Eight flows on eight queues have weights 1, 2 and 4. The weights change while the flows run.
#[test]
fn shares_follow_weights_that_change() {
    let bed = Bed::build(&BedOptions {
        queue_weights: true,
        // Start with a rule that matches nothing, so that the NIC is built with support for weights.
        flow_weights: vec![rule(1, 1)],
        ..options(Topology::SoftNic, Policy::Dqa)
    })
    .unwrap();
    let bulk = Bulk::start(&bed, BulkOptions { flows: 8, ..BulkOptions::default() });
    bulk.wait_for_each(1_000_000);
    assert!(support::all_distinct(&support::queues(&charged_states(&bed, &bulk))));
    for weights in [[1, 2, 4, 1, 2, 4, 1, 1], [4, 1, 1, 2, 1, 1, 4, 2]] {
        let rules: Vec<Rule> =
            bulk.ends().iter().zip(weights).map(|(ends, weight)| rule(ends.source.port(), weight)).collect();
        bed.select.set_rules(&rules).unwrap();
        wait_for("every flow has its new weight", PATIENCE, || {
            let charged =
                bulk.ends().iter().map(|ends| tracked(&bed, ends).map_or(0, |flow| flow.charged_weight));
            charged.eq(weights).then_some(())
        });
        // Wait until the moving average settles, and the segments queued under the old weights have
        // left.
        std::thread::sleep(Duration::from_secs(1));
        assert_shares(&bed, &bulk, &weights);
    }
    bulk.finish();
    assert_weightless(&bed);
}
