//! Parses arbitrary input as a scenario and as a table of variants. The parsers must not panic, and
//! accepted input must be consistent.

#![no_main]

use evenkeel_model::scenario::bundled::variant_tables;
use evenkeel_model::scenario::parse;
use libfuzzer_sys::fuzz_target;

/// A scenario that is valid with any table that has a variant `dqa`.
const USES_TABLE: &str = r#"
schema = 1
name = "fuzz"
title = "Whatever the table makes of it"
variant-table = "fuzzed"
variants = ["dqa"]
link = { rate = "10gbit", queues = 8 }
workload = { flows = 12 }
measure = { windows = { 1s = "1s" } }
"#;

fuzz_target!(|text: &str| {
    match parse(text, "fuzzed.toml", variant_tables()) {
        Ok(scenario) => {
            assert!(!scenario.variants.is_empty());
            assert!(scenario.groups.keys().all(|group| scenario.select(&[group]).is_ok()));
            for variant in scenario.all_variants() {
                let knobs = variant.knobs();
                let queues = knobs.queues.unwrap_or(scenario.link.queues);
                assert!((1..=scenario.link.queues).contains(&queues));
                assert!(knobs.xps_pool.is_none_or(|pool| queues.is_multiple_of(pool)));
                assert!(knobs.gso_size >= scenario.link.mtu);
            }
        }
        Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
    }
    let _ = parse(USES_TABLE, "scenario.toml", &[("fuzzed", text)]);
});
