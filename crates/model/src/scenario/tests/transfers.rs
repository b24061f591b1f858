//! Scenarios with transfers: the bundled ones, and broken texts with their positions.

use super::broken::{Case, assert_refused};
use super::*;

const VALID_TRANSFERS: &str = r#"schema = 1
name = "valid"
title = "Transfers to break"
variant-table = "tcp100g"
variants = ["own", "tuned"]

[link]
rate = "100gbit"

[workload]
kind = "transfers"

[measure]
duration = "4s"

[variant.own]
base = "tuned"
summary = "Two hosts."
flows = 4
senders = 2
ports = ["100gbit", "40gbit"]
switch-buffer = "16MiB"
interrupts = "apart"
"#;

#[rustfmt::skip]
const TRANSFERS: &[Case] = &[
    ("rate = \"100gbit\"", "rate = \"100gbit\"\nmtu = \"9000B\"", (9, 1), ": link.mtu: only with workload.kind = bulk, shuffle, fetch, requests or tenants;"),
    ("kind = \"transfers\"", "kind = \"transfers\"\nflows = 3", (12, 1), ": workload.flows: only with workload.kind = bulk;"),
    ("\"tcp100g\"", "\"titan\"", (4, 17), ": variant-table: the table 'titan' has settings of another kind of workload"),
    ("flows = 4", "flows = 1", (19, 9), ": variant.own.flows: 1 flows, and 2 hosts on one side; have a flow for each host at least"),
    ("[\"100gbit\", \"40gbit\"]", "[]", (21, 9), ": variant.own.ports: 0 ports; state 1 to 8 rates"),
    ("\"40gbit\"", "40", (21, 21), ": variant.own.ports[1]: a bare number; units are needed"),
    ("\"16MiB\"", "\"deep\"", (22, 17), ": variant.own.switch-buffer: 'deep' is not a value of this key; write \"off\" or a value such as \"16MiB\""),
    ("\"apart\"", "\"elsewhere\"", (23, 14), ": variant.own.interrupts: 'elsewhere' is not a value of this key;"),
    ("duration = \"4s\"", "windows = { 1s = \"1s\" }", (14, 1), ": measure.windows: only with workload.kind = bulk or tenants;"),
];

#[test]
fn every_broken_scenario_of_transfers_is_refused_at_its_place() {
    let scenario = parse_text(VALID_TRANSFERS).unwrap();
    let knobs = scenario.variant("own").unwrap().transfers().unwrap();
    assert_eq!((knobs.flows, knobs.senders, knobs.receivers, knobs.ring), (4, 2, 1, 8192));
    let settings = knobs.settings();
    assert!(settings.contains(&("ports", "100gbit+40gbit".to_owned())), "{settings:?}");
    assert!(settings.contains(&("switch-buffer", "16MiB".to_owned())), "{settings:?}");
    assert_refused(VALID_TRANSFERS, TRANSFERS.iter());
}

/// Each line of Table I is both added to the defaults and taken from the tuned host.
#[test]
fn the_tuning_scenario_turns_one_knob_at_a_time() {
    let scenario = parse_bundled("tcp100g-tuning");
    let settings = |name: &str| scenario.variant(name).unwrap().settings();
    let differing = |one: &str, other: &str| {
        let (one, other) = (settings(one), settings(other));
        one.iter().zip(&other).filter(|(one, other)| one != other).map(|(one, _)| one.0).collect::<Vec<_>>()
    };
    let all = differing("default", "tuned");
    assert_eq!(all.len(), 6, "{all:?}");
    for variant in &scenario.variants {
        for (base, mark) in [("default", '+'), ("tuned", '-')] {
            if variant.name.starts_with(base) && variant.name.contains(mark) {
                assert_eq!(differing(base, &variant.name).len(), 1, "{}", variant.name);
            }
        }
    }
}
