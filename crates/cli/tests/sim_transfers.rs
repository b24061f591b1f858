//! Tests `evenkeel run --on sim` with transfers, end to end. No privileges are needed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::{Command, Output};

const SCENARIO: &str = r#"schema = 1
name = "small"
title = "Transfers, briefly"
variant-table = "tcp100g"
variants = ["tuned"]
[link]
rate = "100gbit"
[workload]
kind = "transfers"
[measure]
warmup = "20ms"
duration = "20ms"
repeats = 1
"#;

fn run(scenario: &str, arguments: &[&str]) -> (Output, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("scenario.toml");
    std::fs::write(&file, scenario).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .arg("run")
        .arg(&file)
        .args(["--on", "sim", "--quiet", "--out"])
        .arg(directory.path().join("record"))
        .args(arguments)
        .output()
        .unwrap();
    (output, directory)
}

fn json(scenario: &str) -> serde_json::Value {
    let (output, _directory) = run(scenario, &["--format", "json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn keys(object: &serde_json::Value) -> Vec<&str> {
    let mut keys: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// Scripts rely on the names of metrics. A point that the packets do not pass has no drop metric,
/// instead of 0.
#[test]
fn the_figures_of_the_receiver_have_their_names() {
    let variants = r#"variants = ["tuned", "switched", "tuned-backlog"]"#;
    let scenario = SCENARIO.replace(r#"variants = ["tuned"]"#, variants)
        + "[variant.switched]\nbase = \"tuned\"\nsummary = \"with a switch\"\nswitch-buffer = \"16MiB\"\n"
        + "[variant.tuned-backlog]\nbase = \"tuned\"\nsummary = \"-\"\nother-tuning = \"backlog\"\n";
    let result = json(&scenario);
    let metrics = |variant: usize| &result["variants"][variant]["metrics"];
    let shares = ["copy", "lock", "memory", "netdev", "other", "sched", "skb", "tcp_ip"];
    assert_eq!(keys(&metrics(0)["cpu_share"]), shares);
    assert_eq!(keys(&metrics(0)["drops"]), ["nic", "pruned", "ring", "socket_backlog"]);
    assert_eq!(keys(&metrics(1)["drops"]), ["nic", "pruned", "ring", "socket_backlog", "switch"]);
    for key in ["retransmits_per_s", "retransmission_events_per_s"] {
        assert_eq!(keys(&metrics(0)[key]), ["max", "mean", "median", "min", "n"], "{key}");
    }
    assert_eq!(result["refused"][0]["name"], "tuned-backlog");
    assert!(result["refused"][0]["why"].as_str().unwrap().starts_with("netdev_max_backlog "), "{result}");
}

/// If nothing was transferred, there is no best variant.
#[test]
fn nothing_transferred_has_no_winner() {
    let scenario = SCENARIO
        .replace("\"20ms\"\nduration = \"20ms\"", "\"0s\"\nduration = \"1ms\"")
        .replace("[\"tuned\"]", "[\"far\", \"farther\"]")
        + "[variant.far]\nbase = \"tuned\"\nsummary = \"-\"\nround-trip = \"100ms\"\n"
        + "[variant.farther]\nbase = \"tuned\"\nsummary = \"-\"\nround-trip = \"200ms\"\n";
    let (output, _directory) = run(&scenario, &[]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("Nothing was transferred in the measured time."), "{shown}");
    assert!(!shown.contains("highest throughput") && !shown.contains("better mean"), "{shown}");
}

/// Remarks name cores that flows share, and ports that limit a link.
#[test]
fn what_limits_a_variant_is_remarked() {
    let scenario = SCENARIO.replace("[\"tuned\"]", "[\"tuned\", \"many\", \"slow\"]")
        + "[variant.many]\nbase = \"tuned\"\nsummary = \"-\"\nflows = 10\ninterrupts = \"own-core\"\n"
        + "interrupt-node = \"other\"\n"
        + "[variant.slow]\nbase = \"tuned\"\nsummary = \"-\"\nports = [\"10gbit\"]\nswitch-buffer = \"1MiB\"\n";
    let result = json(&scenario);
    let notes = |variant: usize| result["variants"][variant]["notes"].to_string();
    assert_eq!(notes(0), "[]");
    let shared = "10 flows of a receiver share 8 cores for interrupts, up to 2 on each: the NUMA node has no \
                  more cores";
    assert!(notes(1).contains(shared), "{}", notes(1));
    assert!(
        notes(2).contains("the ports of the senders limit the rate to 10gbit; the link has 100gbit"),
        "{}",
        notes(2)
    );
}
