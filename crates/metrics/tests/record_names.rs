//! Checks that this crate and the records use the same names of metrics.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use evenkeel_metrics::{CompletionTimes, LatencySummary};
use evenkeel_model::record::metric;

#[test]
fn parts_have_the_names_of_the_record() {
    let latency = LatencySummary::from_nanoseconds([1_000]).unwrap();
    assert_eq!(latency.parts().map(|(name, _)| name), metric::LATENCY_PARTS);
    let completion = CompletionTimes::from_seconds(&[1.0]).unwrap();
    assert_eq!(completion.parts().map(|(name, _)| name), metric::COMPLETION_PARTS);
}
