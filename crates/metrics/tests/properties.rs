//! Properties of the fairness metrics for any traffic.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use evenkeel_metrics::{FlowSeries, Summary, jain, nfm};
use proptest::prelude::*;

const BIN_NS: u64 = 1_000_000;
const RATE_BPS: u64 = 1_000_000_000;
const BINS: usize = 12;

prop_compose! {
    fn flow()(
        weight in 0.1_f64..10.0,
        bytes in prop::collection::vec(0_u64..200_000, BINS),
        borders in prop::collection::vec((0..BINS, 0..=BINS), 0..4),
        always in any::<bool>(),
    ) -> FlowSeries<'static> {
        let everything = 0..BINS;
        let backlogged =
            if always { vec![everything] } else { borders.into_iter().map(|(from, to)| from..to).collect() };
        FlowSeries { weight, bytes: bytes.into(), backlogged }
    }
}

fn same(first: f64, second: f64) -> bool {
    (first - second).abs() <= 1e-9 * first.abs().max(second.abs()).max(1.0)
}

proptest! {
    #[test]
    fn nfm_is_never_negative_and_the_largest_is_not_below_the_mean(
        flows in prop::collection::vec(flow(), 0..8),
        bins in 1_u64..6,
    ) {
        if let Some(found) = nfm(&flows, BIN_NS, bins * BIN_NS, RATE_BPS).unwrap() {
            prop_assert!(found.mean >= 0.0);
            prop_assert!(found.max >= found.mean - 1e-12);
            prop_assert!(found.windows >= 1 && found.windows <= BINS / bins as usize);
        }
    }

    #[test]
    fn nfm_does_not_change_with_the_scale_of_the_weights(
        flows in prop::collection::vec(flow(), 2..8),
        factor in 0.01_f64..100.0,
    ) {
        let before = nfm(&flows, BIN_NS, 2 * BIN_NS, RATE_BPS).unwrap();
        let mut scaled = flows;
        for flow in &mut scaled {
            flow.weight *= factor;
        }
        let after = nfm(&scaled, BIN_NS, 2 * BIN_NS, RATE_BPS).unwrap();
        match (before, after) {
            (None, None) => {}
            (Some(before), Some(after)) => {
                prop_assert!(same(before.mean, after.mean));
                prop_assert!(same(before.max, after.max));
                prop_assert_eq!(before.windows, after.windows);
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn nfm_does_not_depend_on_the_order_of_the_flows(
        (flows, shuffled) in prop::collection::vec(flow(), 2..8)
            .prop_flat_map(|flows| (Just(flows.clone()), Just(flows).prop_shuffle())),
    ) {
        let before = nfm(&flows, BIN_NS, 3 * BIN_NS, RATE_BPS).unwrap();
        let after = nfm(&shuffled, BIN_NS, 3 * BIN_NS, RATE_BPS).unwrap();
        prop_assert_eq!(before.is_some(), after.is_some());
        if let (Some(before), Some(after)) = (before, after) {
            prop_assert!(same(before.mean, after.mean));
            prop_assert_eq!(before.windows, after.windows);
        }
    }

    #[test]
    fn jain_lies_between_one_nth_and_one(values in prop::collection::vec(0.0_f64..1e18, 1..64)) {
        if let Some(index) = jain(&values) {
            prop_assert!(index >= 1.0 / values.len() as f64);
            prop_assert!(index <= 1.0);
        } else {
            prop_assert!(values.iter().all(|value| *value == 0.0));
        }
    }

    #[test]
    fn a_summary_is_ordered(values in prop::collection::vec(any::<f64>(), 0..20)) {
        if let Some(summary) = Summary::of(&values) {
            prop_assert!(summary.min <= summary.median && summary.median <= summary.max);
            prop_assert!(summary.min <= summary.mean && summary.mean <= summary.max);
            prop_assert_eq!(summary.n, values.iter().filter(|value| value.is_finite()).count());
        } else {
            prop_assert!(values.iter().all(|value| !value.is_finite()));
        }
    }
}
