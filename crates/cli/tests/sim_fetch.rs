//! Tests clients that fetch values, and priorities: from the scenario to the result.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::{Command, Output};

use serde_json::Value;

const SCENARIO: &str = r#"
schema = 1
name = "cache"
title = "A small value behind large ones"
variant-table = "titan"
variants = ["cmax", "dqa"]
[link]
rate = "10gbit"
queues = 4
[workload]
kind = "fetch"
[[workload.clients]]
count = 3
sizes = ["512KiB"]
timed = false
[[workload.clients]]
count = 1
sizes = ["2KiB", "64KiB"]
[measure]
warmup = "20ms"
duration = "100ms"
repeats = 5
[[expect]]
variant = "dqa"
metric = "fct_s.64KiB.mean"
statistic = "mean"
relative-to = "cmax"
at-most = 1.0
[[expect]]
variant = "dqa"
metric = "fct_s.mean"
statistic = "mean"
relative-to = "cmax"
at-most = 0.01
"#;

const PRIORITIES: &str = r#"
schema = 1
name = "classes"
title = "Twelve bulk flows in a class of their own"
variant-table = "titan"
variants = ["cmax", "dqa", "dqa+dqwa"]
[link]
rate = "1gbit"
queues = 8
priorities = [{ queues = 2 }, { queues = 6 }]
[workload]
flows = 12
priority = 1
[workload.latency]
duration = "50ms"
[measure]
warmup = "100ms"
long-windows = 1
repeats = 2
[measure.windows]
100ms = "100ms"
"#;

fn run(scenario: &str, format: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("scenario.toml");
    std::fs::write(&file, scenario).unwrap();
    Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .arg("run")
        .arg(&file)
        .args(["--on", "sim", "--format", format, "--quiet", "--out"])
        .arg(directory.path().join("record"))
        .output()
        .unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

fn mean(metrics: &Value) -> f64 {
    metrics["mean"].as_f64().unwrap()
}

#[test]
fn fetches_are_timed_in_all_and_by_size() {
    let output = run(SCENARIO, "json");
    // The second expectation cannot hold.
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let result = json(&output);
    assert_eq!(result["duration_s"], 0.1);
    for variant in result["variants"].as_array().unwrap() {
        let metrics = &variant["metrics"];
        let completion = &metrics["fct_s"];
        let (small, large) = (mean(&completion["2KiB"]["mean"]), mean(&completion["64KiB"]["mean"]));
        // The server program alone takes 110 µs.
        assert!(small > 110e-6 && small < large && large < 5e-3, "{small} {large}");
        let all = mean(&completion["mean"]);
        assert!(small <= all && all <= large, "{all}");
        assert!(mean(&completion["p99"]) >= mean(&completion["p50"]));
        assert!(completion.get("512KiB").is_none(), "not timed");
        assert!(mean(&metrics["throughput_bps"]) > 8e9);
        for absent in ["nfm", "latency_us", "jain_bytes"] {
            assert!(metrics.get(absent).is_none(), "{absent}");
        }
    }
    let expectations = result["expectations"].as_array().unwrap();
    let met: Vec<Option<bool>> = expectations.iter().map(|one| one["met"].as_bool()).collect();
    // Each repeat hashes with new random values, so five repeats cannot decide the first expectation.
    assert_eq!(met, [None, Some(false)]);
    let of = |key: &str| expectations[0][key].as_f64().unwrap();
    assert!(of("low") < of("value") && of("value") < of("high") && of("value") < 1.0, "{}", expectations[0]);
    assert_eq!(expectations[0]["relative_to"], "cmax");
    let again = json(&run(SCENARIO, "json"));
    for (one, other) in
        result["variants"].as_array().unwrap().iter().zip(again["variants"].as_array().unwrap())
    {
        assert_eq!(one["metrics"], other["metrics"]);
    }
}

/// If a workload should have measured a figure and the figure is missing, the output explains why.
#[test]
fn a_missing_figure_has_a_note() {
    let slow = SCENARIO
        .split("[[expect]]")
        .next()
        .unwrap()
        .replace("[\"2KiB\", \"64KiB\"]", "[\"512MiB\", \"1GiB\"]");
    let value = "no fetch of 512MiB, 1GiB was complete in 100ms, so a repeat has no completion time of this size; \
                 set a longer measure.duration, or smaller sizes";
    let scenario = PRIORITIES
        .replace("1gbit", "100mbit")
        .replace("duration = \"50ms\"", "message = \"64KiB\"\nduration = \"1ms\"");
    let probe =
        "no probe was answered in 1ms, so a repeat has no latency; set a longer workload.latency.duration";
    for (scenario, note) in [(slow, value), (scenario, probe)] {
        let result = json(&run(&scenario, "json"));
        for variant in result["variants"].as_array().unwrap() {
            assert_eq!(variant["notes"], serde_json::json!([note]), "{variant}");
        }
        let table = String::from_utf8(run(&scenario, "table").stdout).unwrap();
        let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(note), "{table}");
    }
}

#[test]
fn the_table_tells_the_ratio_and_its_bound() {
    let output = run(SCENARIO, "table");
    let text = String::from_utf8(output.stdout).unwrap();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("dqa: mean completion 64KiB mean at most 1 times cmax's; found: 0."), "{text}");
    assert!(words.contains("mean completion mean at most 0.01 times cmax's; found: 0."), "{text}");
}

#[test]
fn bulk_flows_leave_another_priority_s_queues_alone() {
    let output = run(PRIORITIES, "json");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for variant in json(&output)["variants"].as_array().unwrap() {
        let queues = variant["queues"].as_array().unwrap();
        let bytes: Vec<u64> = queues.iter().map(|queue| queue["bytes"].as_u64().unwrap()).collect();
        assert_eq!(bytes[..2], [0, 0], "{variant}");
        let flows: u64 = queues[2..].iter().map(|queue| queue["flows"].as_u64().unwrap()).sum();
        assert_eq!(flows, 12);
        if variant["name"] != "cmax" {
            assert!(bytes[2..].iter().all(|bytes| *bytes > 0), "{variant}");
        }
        assert!(mean(&variant["metrics"]["latency_us"]["mean"]) > 10.0);
    }
}
