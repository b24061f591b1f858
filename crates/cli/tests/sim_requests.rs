//! Tests requests of clients through receive queues: from the scenario to the result.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::{Command, Output};

use serde_json::Value;

const SCENARIO: &str = r#"
schema = 1
name = "classes"
title = "Two classes of clients, one of which comes later as well"
variants = ["balance", "isolation", "rss"]
[link]
rate = "10gbit"
queues = 10
[workload]
kind = "requests"
server = "memcached"
set-percent = 10
client-hosts = 4
[[workload.clients]]
name = "high"
count = 2
flows = 16
high-priority = true
[[workload.clients]]
name = "best-effort"
count = 18
flows = 16
[[workload.clients]]
name = "added-high"
count = 1
flows = 16
high-priority = true
from = "1s"
for = "50ms"
[measure]
warmup = "50ms"
duration = "1060ms"
repeats = 1
[variant.balance]
summary = "Evenly."
nic = "i82599"
policy = "balance"
isolated-queues = 4
message = "1024B"
reaction = "10ms"
[variant.isolation]
base = "balance"
summary = "Apart."
policy = "isolation"
[variant.rss]
base = "balance"
summary = "By the hash."
policy = "none"
[paper]
source = "Dragonet, TRIOS 2015, section 4.3"
[paper.variants.isolation]
response_us.high.client_median = 246.5
[[expect]]
variant = "isolation"
metric = "requests_per_s.high.client_median"
statistic = "mean"
relative-to = "balance"
at-least = 1.273
at-most = 1.547
[[expect]]
variant = "isolation"
metric = "response_us.best-effort.client_median"
statistic = "mean"
relative-to = "balance"
at-most = 1.0
"#;

fn run(scenario: &str, arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("scenario.toml");
    std::fs::write(&file, scenario).unwrap();
    Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .arg("run")
        .arg(&file)
        .args(["--quiet", "--out"])
        .arg(directory.path().join("record"))
        .args(arguments)
        .env("COLUMNS", "160")
        .output()
        .unwrap()
}

fn figure(variant: &Value, prefix: &str, group: &str, part: &str) -> f64 {
    variant["metrics"][prefix][group][part]["mean"].as_f64().unwrap()
}

#[test]
fn classes_are_told_apart_and_the_paper_stands_beside_them() {
    let output = run(SCENARIO, &["--on", "sim", "--format", "json"]);
    // A single repeat cannot decide an expectation, not even the second one, which cannot hold.
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [first, second] = [0, 1].map(|number| &result["expectations"][number]);
    assert!((1.273..1.547).contains(&first["value"].as_f64().unwrap()), "{first}");
    assert!(second["value"].as_f64().unwrap() > 1.0, "{second}");
    for one in [first, second] {
        assert_eq!((&one["met"], &one["open"]), (&Value::Null, &"not judged: 1 repeat, 5 needed".into()));
    }
    let [balance, isolation, rss] = [0, 1, 2].map(|number| &result["variants"][number]);
    let median = |variant: &Value, group: &str| figure(variant, "requests_per_s", group, "client_median");
    assert!(median(isolation, "high") > median(balance, "high"));
    assert!(median(balance, "best-effort") > median(isolation, "best-effort"));
    // Four client hosts have at most four hash values.
    let total = |variant: &Value| figure(variant, "requests_per_s", "all", "total");
    assert!(total(rss) < 0.5 * total(balance), "{} {}", total(rss), total(balance));
    let used = rss["queues"].as_array().unwrap().iter().filter(|queue| queue["bytes"] != 0).count();
    assert!((1..=4).contains(&used), "{used}");
    // Each of the two clients has 16 requests in flight at any time (Little's law).
    let response = figure(isolation, "response_us", "high", "mean") / 1e6;
    assert!(
        (figure(isolation, "requests_per_s", "high", "total") / 2.0 * response / 16.0 - 1.0).abs() < 0.01
    );
    let paper = &result["paper"]["variants"]["isolation"]["response_us"]["high"]["client_median"];
    assert_eq!(paper, 246.5);
    // With `balance`, the CPUs of all ten queues are always busy (1,000 %). The application of each queue
    // is not always busy, and adds less.
    let cpu = |variant: &Value| variant["metrics"]["cpu_pct"]["mean"].as_f64().unwrap();
    assert!((1_000.0..1_300.0).contains(&cpu(balance)) && cpu(isolation) < cpu(balance), "{}", cpu(balance));
    for variant in [balance, isolation] {
        assert_eq!(variant["counters"]["requests_lost"]["max"], 0.0);
        assert_eq!(variant["counters"]["requests_given_up"]["max"], 0.0);
        assert_eq!(variant["counters"]["misplaced_flows"]["max"], 0.0);
    }

    // The added client is present only in the second second, for 50 ms at no more than 65,000 requests
    // per second.
    let groups = isolation["clients"].as_array().unwrap();
    let names: Vec<&str> = groups.iter().map(|group| group["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["high", "best-effort", "added-high"]);
    let seconds = groups[2]["seconds"].as_array().unwrap();
    let requests: Vec<u64> = seconds.iter().map(|second| second["requests"].as_u64().unwrap()).collect();
    assert_eq!((requests.len(), requests[0]), (2, 0));
    assert!((1_500..3_300).contains(&requests[1]), "{requests:?}");

    let again = run(SCENARIO, &["--on", "sim", "--format", "json", "--variant", "isolation"]);
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(again["variants"][0]["metrics"], isolation["metrics"]);
    assert_eq!(again["variants"][0]["clients"], isolation["clients"]);
}

/// Runs a scenario with additional files in its directory.
fn run_beside(scenario: &str, files: &[(&str, &str)]) -> (Option<i32>, Value, String) {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [("scenario.toml", scenario)].iter().chain(files) {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    // Run from another directory: file names in a scenario are relative to it.
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .arg("run")
        .arg(directory.path().join("scenario.toml"))
        .args(["--on", "sim", "--quiet", "--format", "json", "--out"])
        .arg(directory.path().join("record"))
        .output()
        .unwrap();
    let result = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code(), result, String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_variant_may_have_a_nic_and_a_policy_in_files_or_in_itself() {
    let (head, _) = SCENARIO.split_once("[paper]").unwrap();
    let text = head
        .replacen("nic = \"i82599\"", "nic = \"own-nic.toml\"", 1)
        .replacen("policy = \"isolation\"", "policy = \"apart.toml\"", 1)
        .replacen(
            "policy = \"none\"",
            "policy = '''\npolicy = \"script\"\nscript = \"fn queue_cost(q) { q.flows * q.flows }\"\n'''",
            1,
        );
    let nic = include_str!("data/own-nic.toml");
    let apart = "policy = \"balance\"\n[[class]]\nname = \"important\"\nlabel = \"high\"\nqueues = 4\n";
    let (code, result, error) = run_beside(&text, &[("own-nic.toml", nic), ("apart.toml", apart)]);
    assert_eq!(code, Some(0), "{error}");
    let flows = |number: usize| -> Vec<u64> {
        let queues = result["variants"][number]["queues"].as_array().unwrap();
        queues.iter().map(|queue| queue["flows"].as_u64().unwrap()).collect()
    };
    assert_eq!((flows(0), flows(2)), (vec![32; 10], vec![32; 10]));
    assert_eq!(flows(1), [48, 48, 48, 48, 48, 48, 8, 8, 8, 8]);

    let wrong = |nic: &str, apart: &str, told: &str| {
        let (code, _, error) = run_beside(&text, &[("own-nic.toml", nic), ("apart.toml", apart)]);
        assert_eq!((code, error.lines().count()), (Some(2), 1), "{error}");
        assert!(error.contains(told), "{told}\n{error}");
    };
    wrong(
        nic,
        "policy = \"apart\"",
        "scenario.toml: variant.isolation: apart.toml:1:10: policy: 'apart' is not",
    );
    wrong("schema = 2", apart, "scenario.toml: variant.balance: own-nic.toml:1:10: schema");
    let (code, _, error) = run_beside(&text, &[("own-nic.toml", nic)]);
    assert!(code == Some(2) && error.contains("variant.isolation: cannot read "), "{error}");
}

#[test]
fn a_ring_that_is_too_short_loses_requests_and_that_is_counted() {
    let text = SCENARIO.replacen("reaction = \"10ms\"", "reaction = \"10ms\"\nring = 4", 1);
    let text = text.replacen("client-hosts = 4", "client-hosts = 4\ntimeout = \"20ms\"", 1);
    let output = run(&text, &["--on", "sim", "--format", "json", "--variant", "balance"]);
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let counter = |name: &str| result["variants"][0]["counters"][name]["mean"].as_f64().unwrap();
    assert!(counter("requests_lost") > 1_000.0, "{result}");
    // The clients have not yet given up requests that were lost in the last 20 ms. Each flow has at most one
    // such request.
    let pending = counter("requests_lost") - counter("requests_given_up");
    assert!((0.0..=336.0).contains(&pending), "{pending}");
    let table = run(&text, &["--on", "sim", "--variant", "balance"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("requests were lost at full receive rings"), "{table}");
    assert!(table.contains("requests lost") && table.contains("requests given up"), "{table}");
}

#[test]
fn the_table_has_a_row_for_each_group() {
    let output = run(SCENARIO, &["--on", "sim", "--variant", "isolation"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Requests of clients"), "{text}");
    let row = |name: &str| {
        let line = text.lines().find(|line| line.split_whitespace().any(|word| word == name));
        line.unwrap_or_else(|| panic!("no row of {name} in\n{text}")).to_owned()
    };
    for group in ["high", "best-effort", "added-high", "all"] {
        row(group);
    }
    assert!(row("paper").contains("246"), "{text}");
    assert!(text.contains("isolation: 48 48 48 48 48 48 8 8 8 8"), "{text}");
}

#[test]
fn a_script_that_fails_is_an_error_of_the_file_that_has_it() {
    let (head, _) = SCENARIO.split_once("[paper]").unwrap();
    let script = "policy = \"script\"\nscript = \"fn queue_cost(queue) { throw 1 }\"\n";
    let beside = head.replacen("policy = \"balance\"", "policy = \"./own.toml\"", 1);
    let (code, _, error) = run_beside(&beside, &[("own.toml", script)]);
    assert_eq!((code, error.lines().count()), (Some(2), 1), "{error}");
    assert!(error.contains("balance: ./own.toml:2:34: script: Runtime error: 1"), "{error}");

    let within = head.replacen("policy = \"balance\"", &format!("policy = '''\n{script}'''"), 1);
    let line = within.lines().position(|line| line.starts_with("policy = '''")).unwrap() + 1;
    let (code, _, error) = run_beside(&within, &[]);
    assert_eq!((code, error.lines().count()), (Some(2), 1), "{error}");
    let place =
        format!("scenario.toml:{line}:10: balance: variant.balance.policy:2:34: script: Runtime error: 1");
    assert!(error.contains(&place), "{place}\n{error}");
}

#[test]
fn what_cannot_be_simulated_is_refused_with_a_reason() {
    for (arguments, why) in [
        (&["--on", "netns"][..], "run the scenario with --on sim"),
        (&["--on", "sim", "--nic", "soft"], "run the scenario without --nic soft"),
    ] {
        let output = run(SCENARIO, arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{error}");
        // Without privileges, the netns world reports the missing privileges first.
        assert!(error.contains(why) || arguments == ["--on", "netns"], "{error}");
    }
    let many = SCENARIO.replace("queues = 10", "queues = 200");
    let output = run(&many, &["--on", "sim"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("scenario.toml:8:10: link.queues: variant.balance: "), "{error}");
    assert!(error.contains("128"), "{error}");
}
