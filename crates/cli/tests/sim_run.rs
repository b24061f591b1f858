//! Tests `evenkeel run --on sim`, end to end. No privileges are needed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::process::{Command, Output, Stdio};

const SCENARIO: &str = r#"
schema = 1
name = "small"
title = "Six flows, briefly"
variant-table = "titan"
variants = ["cmax", "dqa", "dqa+dqwa+dsos"]
[link]
rate = "1gbit"
mtu = "1500B"
queues = 8
topology = "soft-nic"
[hosts]
sending-cores = 8
[workload]
flows = 6
congestion-control = "cubic"
[workload.latency]
message = "64B"
duration = "50ms"
[measure]
warmup = "200ms"
long-windows = 4
repeats = 2
[measure.windows]
1ms = "1ms"
50ms = "50ms"
"#;

fn run(arguments: &[&str]) -> (Output, tempfile::TempDir) {
    run_text(SCENARIO, arguments)
}

fn run_text(scenario: &str, arguments: &[&str]) -> (Output, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("scenario.toml");
    std::fs::write(&file, scenario).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .arg("run")
        .arg(&file)
        .args(["--on", "sim", "--format", "json", "--quiet", "--out"])
        .arg(directory.path().join("record"))
        .args(arguments)
        .output()
        .unwrap();
    (output, directory)
}

#[test]
fn the_example_of_the_how_to_meets_its_expectation() {
    let page = include_str!("../../../docs/how-to/write-a-scenario.md");
    let (_, example) = page.split_once("```toml\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    for nic in ["hardware", "soft"] {
        let (output, _directory) = run_text(example, &["--variant", "dqa", "--nic", nic]);
        assert_eq!(json(&output)["expectations"][0]["met"], true, "{nic}");
    }
}

fn json(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_simulated_run_follows_the_contract() {
    let (output, directory) = run(&[]);
    let result = json(&output);
    assert_eq!((result["world"].as_str(), result["kernel"].as_str()), (Some("sim"), Some("4.4")));
    assert_eq!(result["rate_bps"], 1_000_000_000_u64);
    let variants = result["variants"].as_array().unwrap();
    assert_eq!(variants.len(), 3);
    for variant in variants {
        let payload = variant["metrics"]["throughput_bps"]["mean"].as_f64().unwrap();
        assert!((0.92e9..0.942e9).contains(&payload), "{payload}");
        // Two repeats of 0.2 + 0.2 + 0.05 s, with packets of 1448 bytes of payload.
        let simulated_s = variant["sim"]["simulated_s"].as_f64().unwrap();
        assert!((simulated_s - 0.9).abs() < 1e-9, "{simulated_s}");
        let packets = variant["sim"]["packets"].as_f64().unwrap();
        let followed = packets * 1448.0 * 8.0 / (payload * simulated_s);
        assert!((0.98..1.01).contains(&followed), "{packets}");
        assert!(variant["sim"]["cpu_seconds"].as_f64().unwrap() > 0.0);
        assert!(variant["metrics"]["latency_us"]["mean"]["mean"].as_f64().unwrap() > 10.0);
        assert_eq!(variant["metrics"]["out_of_order"]["max"], 0.0);
        assert!(variant.get("datapath").is_none());
    }
    // Under DQA, each of six flows has its own queue of the eight queues.
    assert!(variants[1]["metrics"]["nfm"]["50ms"]["max"].as_f64().unwrap() < 0.02);
    assert!(directory.path().join("record/record.json").exists());
}

#[test]
fn the_same_seed_gives_the_same_figures_whatever_the_number_of_threads() {
    let metrics = |arguments: &[&str]| {
        let (output, _directory) = run(arguments);
        json(&output)["variants"].as_array().unwrap().iter().map(|v| v["metrics"].clone()).collect::<Vec<_>>()
    };
    let first = metrics(&["--seed", "7"]);
    assert_eq!(first, metrics(&["--seed", "7"]));
    assert_ne!(first, metrics(&["--seed", "8"]));
}

fn series(directory: &tempfile::TempDir) -> BTreeMap<OsString, Vec<u8>> {
    std::fs::read_dir(directory.path().join("record/series"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name(), std::fs::read(entry.path()).unwrap()))
        .collect()
}

#[test]
fn one_step_for_each_packet_gives_the_same_record() {
    let ((fast, fast_directory), (exact, exact_directory)) = (run(&[]), run(&["--exact"]));
    // The results may differ only in the record's path and the resources used.
    let figures = |output: &Output| {
        let mut result = json(output);
        result.as_object_mut().unwrap().remove("record");
        for variant in result["variants"].as_array_mut().unwrap() {
            variant["sim"]["cpu_seconds"].take();
        }
        result
    };
    assert_eq!(figures(&fast), figures(&exact));
    let bins = series(&fast_directory);
    assert_eq!(bins.len(), 6);
    assert_eq!(bins, series(&exact_directory));
    // The record states the method of simulation.
    assert!(settings(&fast_directory).contains("\"exact\":\"false\""));
    assert!(settings(&exact_directory).contains("\"exact\":\"true\""));
}

#[test]
fn todays_kernel_is_simulated_too() {
    let (output, _directory) = run(&["--profile", "6.18", "--variant", "dqa", "--rate", "100gbit"]);
    let result = json(&output);
    assert_eq!(result["kernel"], "6.18");
    assert_eq!(result["rate_bps"], 100_000_000_000_u64);
}

/// The CPUs of four receive queues cannot process the acknowledgements for 400 Gbit/s.
#[test]
fn a_fast_line_needs_more_than_four_receive_queues() {
    let throughput = |link: &str| {
        let scenario = SCENARIO
            .replace("\"1gbit\"", "\"400gbit\"")
            .replace("queues = 8", link)
            .replace("sending-cores = 8", "sending-cores = 64")
            .replace("flows = 6", "flows = 1280")
            .replace("[workload.latency]\nmessage = \"64B\"\nduration = \"50ms\"\n", "")
            .replace("warmup = \"200ms\"", "warmup = \"10ms\"")
            .replace("long-windows = 4", "long-windows = 1")
            .replace("50ms = \"50ms\"\n", "");
        let (output, _directory) = run_text(&scenario, &["--variant", "dqa", "--repeat", "1"]);
        json(&output)["variants"][0]["metrics"]["throughput_bps"]["mean"].as_f64().unwrap() / 1e9
    };
    let four = throughput("queues = 64");
    assert!(four < 200.0, "{four} Gbit/s");
    let many = throughput("queues = 64\nreceive-queues = 32");
    assert!(many > 350.0, "{many} Gbit/s");
}

#[test]
fn the_test_bed_is_simulated_too() {
    let (output, _directory) = run(&["--nic", "soft"]);
    let result = json(&output);
    assert_eq!((result["kernel"].as_str(), result["world"].as_str()), (Some("6.18"), Some("sim")));
    let variants = result["variants"].as_array().unwrap();
    assert_eq!(variants.len(), 2);
    assert_eq!(result["refused"][0]["name"], "dqa+dqwa+dsos");
    for variant in variants {
        // A frame of 1514 bytes has 1448 bytes of payload. HTB counts the size of the frame.
        let payload = variant["metrics"]["throughput_bps"]["mean"].as_f64().unwrap();
        assert!((0.94e9..0.97e9).contains(&payload), "{payload}");
        assert!(variant["metrics"].get("cpu_pct").is_none());
        assert!(variant["notes"][0].as_str().unwrap().contains("pfifo leaves"), "{variant:#}");
    }
    // Under DQA, each of six flows has its own queue of the eight queues.
    assert!(variants[1]["metrics"]["nfm"]["50ms"]["max"].as_f64().unwrap() < 0.1, "{:#}", variants[1]);
    let (output, _directory) =
        run(&["--nic", "soft", "--profile", "4.4", "--processors", "4", "--variant", "dqa"]);
    assert_eq!(json(&output)["kernel"], "4.4");
}

/// Tests the bundled scenarios that a demonstration without root runs (`./dev demo`).
#[test]
fn the_scenarios_of_the_demonstration_meet_what_is_expected() {
    for scenario in ["titan-6-flows", "titan-12-flows"] {
        let directory = tempfile::tempdir().unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
            .args(["run", scenario, "--on", "sim", "--format", "json", "--quiet", "--out"])
            .arg(directory.path().join("record"))
            .args(["--variant", "cmax", "--variant", "dqa", "--repeat", "5", "--long-windows", "1"])
            .output()
            .unwrap();
        let result = json(&output);
        let expectations = result["expectations"].as_array().unwrap();
        assert!(!expectations.is_empty(), "{scenario}");
        for expectation in expectations.iter().filter(|one| one["variant"] == "dqa") {
            assert_eq!(expectation["met"], true, "{scenario}: {expectation}");
        }
    }
}

#[test]
fn a_quick_run_judges_nothing_and_says_so_first() {
    let scenario = format!(
        "{SCENARIO}[[expect]]\nvariant = \"dqa\"\nmetric = \"nfm.50ms\"\nstatistic = \"mean\"\nat-least = 9\n"
    );
    let (output, _directory) = run_text(&scenario, &["--quick", "--repeat", "5"]);
    let result = json(&output);
    assert_eq!(result["expectations"][0]["met"], serde_json::Value::Null);
    assert_eq!(result["expectations"][0]["open"], "not judged: a quick run");
    assert!(result["answer"][0].as_str().unwrap().starts_with("Quick run: "), "{}", result["answer"]);
    // With enough repeats, the impossible expectation of the same scenario fails.
    let (output, _directory) = run_text(&scenario, &["--repeat", "5", "--variant", "dqa"]);
    assert_eq!(output.status.code(), Some(1));
}

/// At a tenth of the rate, a window is ten times as long as in the file.
#[test]
fn a_window_that_outgrows_the_repeat_is_named() {
    const TENANTS: &str = r#"
schema = 1
name = "nw"
title = "t"
[link]
rate = "100mbit"
queues = 1
[workload]
kind = "tenants"
line = true
[[workload.bulk]]
length = "64KiB"
[[sweep]]
qdiscs = ["drr"]
clients = [2]
[measure]
warmup = "200ms"
duration = "500ms"
repeats = 5
windows = {100ms = "100ms"}
[[expect]]
variant = "drr clients=2"
metric = "nfm.100ms"
statistic = "mean"
at-most = 0.2
"#;
    let (output, _directory) = run_text(TENANTS, &[]);
    let whole = json(&output);
    assert_eq!(whole["expectations"][0]["met"], true, "{whole}");
    let notes = whole["variants"][0]["notes"].to_string();
    assert!(!notes.contains("longer than a repeat"), "{notes}");
    let (output, _directory) = run_text(TENANTS, &["--rate", "10mbit"]);
    assert_eq!(output.status.code(), Some(0));
    let slow = json(&output);
    let notes = slow["variants"][0]["notes"].to_string();
    assert!(notes.contains("'100ms' lasts 1s") && notes.contains("--rate 20mbit or more"), "{notes}");
    let open = slow["expectations"][0]["open"].as_str().unwrap();
    assert!(open.starts_with("not judged: the window '100ms' lasts 1s at this rate"), "{open}");
}

/// The result lists an expectation as not judged if it is relative to a variant that the user did not request
/// or that the world refuses.
#[test]
fn a_ratio_to_a_variant_that_did_not_run_is_not_judged() {
    let expect = |base: &str| {
        format!(
            "{SCENARIO}[[expect]]\nvariant = \"dqa\"\nmetric = \"nfm.50ms\"\nstatistic = \"mean\"\n\
             relative-to = \"{base}\"\nat-most = 9\n"
        )
    };
    let asked: [(&str, &[&str]); 2] =
        [("cmax", &["--variant", "dqa"]), ("dqa+balance", &["--variant", "dqa", "--variant", "dqa+balance"])];
    for (base, asked) in asked {
        let (output, _directory) = run_text(&expect(base), &[asked, &["--repeat", "5"]].concat());
        assert_eq!(output.status.code(), Some(0));
        let expectation = &json(&output)["expectations"][0];
        assert_eq!(expectation["met"], serde_json::Value::Null);
        assert_eq!(expectation["open"], format!("not judged: {base} did not run"));
    }
}

#[test]
fn a_congestion_control_that_is_not_simulated_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bbr.toml");
    std::fs::write(&file, SCENARIO.replace("\"cubic\"", "\"bbr\"")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(["run", file.to_str().unwrap(), "--on", "sim", "--quiet"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    let error = String::from_utf8(output.stderr).unwrap();
    let line = SCENARIO.lines().position(|line| line.starts_with("congestion-control")).unwrap() + 1;
    let place = format!(
        "bbr.toml:{line}:22: workload.congestion-control: this workload cannot use bbr in the simulator"
    );
    assert!(error.contains(&place) && error.contains("cubic"), "{error}");
}

#[test]
fn service_balancing_is_refused_with_where_it_runs() {
    let (output, _directory) = run(&["--variant", "dqa+balance"]);
    assert_eq!(output.status.code(), Some(3));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("--on netns --topology mq"), "{error}");
}

fn evenkeel(arguments: &[&OsStr]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel")).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn settings(directory: &tempfile::TempDir) -> String {
    let text = std::fs::read_to_string(directory.path().join("record/record.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&text).unwrap();
    let variants = record["variants"].as_array().unwrap().iter();
    variants.map(|variant| variant["settings"].to_string()).collect()
}

#[test]
fn a_record_has_every_knob_and_a_comparison_names_those_that_differ() {
    let own = |size: &str| {
        let variant = format!("[variant.mine]\nbase = \"cmax\"\nsummary = \"s\"\ngso-size = \"{size}\"\n");
        let (output, directory) = run_text(&format!("{SCENARIO}{variant}"), &["--variant", "mine"]);
        json(&output);
        directory
    };
    let (first, second) = (own("16KiB"), own("32KiB"));
    let known = settings(&first);
    for setting in [
        "\"gso-size\":\"16KiB\"",
        "\"queues\":\"8\"",
        "\"interrupt-interval\":\"50us\"",
        "\"qdisc\":\"sfq+prio\"",
        "\"byte-queue-limit\":\"256KiB\"",
    ] {
        assert!(known.contains(setting), "{setting} is not in {known}");
    }
    let records = [first.path().join("record"), second.path().join("record")];
    let (_, text) = evenkeel(&["compare".as_ref(), records[0].as_ref(), records[1].as_ref()]);
    assert!(text.contains("settings of mine differ: gso-size."), "{text}");
}

#[test]
fn no_record_has_the_programs_own_words_for_a_setting() {
    let tenants = "\
schema = 1
name = \"short\"
title = \"A qdisc, briefly\"
[link]
rate = \"100mbit\"
queues = 1
[workload]
kind = \"tenants\"
line = true
[[workload.bulk]]
count = 1
length = \"4KiB\"
[[sweep]]
qdiscs = [\"fq\"]
[measure]
warmup = \"100ms\"
duration = \"200ms\"
repeats = 1
";
    let requests = "\
schema = 1
name = \"asked\"
title = \"Requests, briefly\"
variants = [\"balance\"]
[link]
rate = \"10gbit\"
queues = 4
[workload]
kind = \"requests\"
server = \"echo\"
client-hosts = 1
[[workload.clients]]
name = \"few\"
count = 1
flows = 4
[measure]
warmup = \"10ms\"
duration = \"100ms\"
repeats = 1
[variant.balance]
summary = \"s\"
nic = \"i82599\"
policy = \"balance\"
isolated-queues = 1
message = \"64B\"
reaction = \"10ms\"
";
    for (scenario, arguments, known) in [
        (SCENARIO, &["--variant", "dqa", "--nic", "soft"][..], "\"byte-queue-limit\":\"off\""),
        (tenants, &[], "\"tree\":\"qdisc root handle "),
        (requests, &[], "\"policy\":\"balance\""),
    ] {
        let (output, directory) = run_text(scenario, arguments);
        json(&output);
        let settings = settings(&directory);
        assert!(settings.contains(known), "{known} is not in {settings}");
        // Every value must be a word, a number or a line of a file, not the debug output of a
        // structure.
        for mark in [" { ", "Some(", "None", "::"] {
            assert!(!settings.contains(mark), "{mark} is in {settings}");
        }
    }
}

#[test]
fn a_terminal_that_cannot_move_its_cursor_gets_lines() {
    let terminal = nix::pty::openpty(None, None).unwrap();
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("scenario.toml"), SCENARIO).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(["run", "scenario.toml", "--on", "sim", "--quick", "--variant", "dqa", "--out", "record"]);
    command.current_dir(directory.path()).env("TERM", "dumb").stdout(Stdio::null()).stderr(terminal.slave);
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut shown = Vec::new();
    // Ignore the error: reading ends with EIO when the last writer has closed the terminal.
    let _ = std::fs::File::from(terminal.master).read_to_end(&mut shown);
    assert!(child.wait().unwrap().success());
    let shown = String::from_utf8_lossy(&shown).into_owned();
    assert!(shown.contains(" %  dqa 1/2: "), "{shown}");
    assert!(!shown.contains('\u{1b}'), "{shown}");
}
