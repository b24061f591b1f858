//! Parses arbitrary input as a machine profile. The parser must not panic. An accepted profile must be the
//! same after writing and parsing it.

#![no_main]

use evenkeel_model::machine::MachineProfile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match MachineProfile::parse(text, "fuzzed.toml") {
        Ok(profile) => {
            let again = MachineProfile::parse(&profile.to_string(), "again.toml");
            assert_eq!(again.expect("what was accepted is accepted again"), profile);
            let _ = profile.drawn(|| 1.0);
        }
        Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
    }
});
