//! Parses arbitrary input as a configuration of the service, and as a request of a client. The parsers
//! must not panic. An error must be a single line.

#![no_main]

use evenkeel_service::{Configuration, Interface, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match Configuration::parse(text, "fuzzed.toml", &|_, _| Ok(())) {
        Ok(configuration) => {
            let interface = Interface {
                index: 2,
                name: "eth0".to_owned(),
                mac: "52:54:00:12:34:56".to_owned(),
                driver: Some("ice".to_owned()),
                path: None,
            };
            if let Some((number, rule)) = configuration.rule_of(&interface) {
                assert!(rule.matches.matches(&interface) && configuration.rules[number] == *rule);
            }
        }
        Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
    }
    let _ = serde_json::from_str::<Request>(text);
});
