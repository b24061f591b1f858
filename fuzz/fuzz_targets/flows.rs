//! Parses arbitrary input as a list of flows. The parser must not panic. An accepted list must be the
//! same after writing and parsing it.

#![no_main]

use evenkeel_receive::flows;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match flows::parse(text, "fuzzed.csv", u16::MAX) {
        Ok(flows) => {
            assert!(!flows.is_empty());
            assert_eq!(flows::parse(&flows::to_csv(&flows), "again.csv", u16::MAX).as_ref(), Ok(&flows));
        }
        Err(error) => {
            assert!((1..=text.lines().count() + 1).contains(&error.line));
            assert!(!error.to_string().chars().any(char::is_control));
        }
    }
});
