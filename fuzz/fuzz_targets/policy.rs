//! Parses arbitrary input as a policy. The parser must not panic, and an accepted policy must be
//! consistent.

#![no_main]

use std::sync::Arc;

use evenkeel_receive::flows;
use evenkeel_receive::policy::{PolicyFile, Queues};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match PolicyFile::parse(text, "fuzzed.toml") {
        Ok(file) => {
            if let Ok(mut policy) = file.bind(&Arc::new(Queues::new(8))) {
                assert!(!policy.default_queues().is_empty());
                // Without a fault of a script, the cost must be accepted or have violations.
                policy.begin();
                for flow in flows::generate(0, 8) {
                    let flow = policy.classify(&flow);
                    let queue = policy.allowed(&flow)[0];
                    policy.place(&flow, queue);
                    assert!(
                        policy.fault().is_some()
                            || policy.cost().is_accepted()
                            || policy.cost().violations > 0
                    );
                }
            }
        }
        Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
    }
});
