//! Parses arbitrary input as the output of iperf3 and sockperf. The parsers must not panic.

#![no_main]

use evenkeel_testbed::traffic::{iperf3, sockperf};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    if let Err(error) = iperf3::parse("fuzzed", &text) {
        let _ = error.to_string();
    }
    if let Ok(log) = sockperf::parse("fuzzed", &text) {
        assert!(log.samples.iter().all(|sample| sample.half_round_trip_us().is_finite()));
    }
});
