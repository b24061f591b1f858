//! Tests `evenkeel run` on this machine's kernel: results, records, exit codes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::Path;
use std::process::Command;

use evenkeel_report::store;
use serde_json::Value;

use support::leftovers::{ProcessIdentity, children, interfaces};
use support::run;
use support::running::{PROBE, Place, Running, SCENARIO};

const RATE_BPS: f64 = 200e6;

fn variant<'a>(run: &'a Value, name: &str) -> &'a Value {
    let variants = run["variants"].as_array().unwrap();
    variants.iter().find(|variant| variant["name"] == name).unwrap_or_else(|| panic!("no {name}: {run:#}"))
}

/// Returns the mean of a metric, after a check that its summary has `repeats` values.
fn mean(variant: &Value, path: &[&str], repeats: u64) -> f64 {
    let summary = path.iter().fold(&variant["metrics"], |value, key| &value[key]);
    let figure = |key: &str| summary[key].as_f64().unwrap_or_else(|| panic!("{path:?}: {key} in {summary}"));
    assert_eq!(summary["n"].as_u64(), Some(repeats), "{path:?}: {summary}");
    assert!(figure("min") <= figure("median") && figure("median") <= figure("max"), "{path:?}: {summary}");
    assert!(figure("min") <= figure("mean") && figure("mean") <= figure("max"), "{path:?}: {summary}");
    figure("mean")
}

fn flows_by_queue(variant: &Value) -> Vec<u64> {
    variant["queues"].as_array().unwrap().iter().map(|queue| queue["flows"].as_u64().unwrap()).collect()
}

fn check_variant(variant: &Value) {
    assert_eq!(variant["repeats"], 1);
    let throughput = mean(variant, &["throughput_bps"], 1);
    assert!((0.7 * RATE_BPS..=RATE_BPS).contains(&throughput), "{throughput}");
    assert!(mean(variant, &["cpu_pct"], 1) > 0.0);
    for window in ["10ms", "1s"] {
        let (average, worst) = (mean(variant, &["nfm", window], 1), mean(variant, &["nfm_max", window], 1));
        // Rounding may make the average of equal windows larger than the worst window.
        assert!(average <= worst + 1e-12, "{window}: {average} on average, {worst} at worst");
    }
    for index in ["jain_bytes", "jain_packets"] {
        assert!((1.0 / 6.0..=1.0).contains(&mean(variant, &[index], 1)));
    }
    for count in ["retransmits", "out_of_order"] {
        assert!(mean(variant, &[count], 1) >= 0.0);
    }
    let flows = flows_by_queue(variant);
    assert_eq!((flows.len(), flows.iter().sum::<u64>()), (8, 6), "{flows:?}");
    for queue in variant["queues"].as_array().unwrap() {
        // The fair share of a flow is a sixth of the rate, 4 MB in a second. A queue with a flow must
        // carry at least an eighth of this share.
        let (flows, bytes) = (queue["flows"].as_u64().unwrap(), queue["bytes"].as_u64().unwrap());
        assert!(flows == 0 || bytes > 500_000, "{queue}");
    }
    assert!(variant["datapath"]["ns_per_segment"].as_f64().unwrap() > 0.0);
    assert!(variant["datapath"]["segments"].as_u64().unwrap() > 100);
    assert!(variant["notes"].as_array().unwrap().iter().all(Value::is_string));
    for zero in ["false_releases", "charged_weight_left_at_end", "meter_overflow", "contended_segments"] {
        assert_eq!(variant["counters"][zero]["max"], 0.0, "{zero}: {variant:#}");
    }
    // iperf3's server does not count data that is still in socket buffers at the end. In such a short
    // run, this is a large part of the data. Counting data twice would give an error of 1.
    let error = variant["counters"]["meter_vs_iperf3_max_error"]["max"].as_f64().unwrap();
    assert!(error <= 0.5, "the meter and iperf3 differ by {error}");
}

#[test]
fn a_run_gives_json_a_record_and_an_exit_code() {
    let links = interfaces();
    let place = Place::new(&format!(
        "{SCENARIO}{PROBE}\n[[expect]]\nvariant = \"dqa\"\nmetric = \"throughput_bps\"\nstatistic = \"mean\"\n\
         at-least = 1e8\n"
    ));
    let mut arguments = vec!["--quiet", "--format", "json", "--out", "first", "--seed", "7"];
    arguments.extend(["--variant", "cmax", "--variant", "dqa", "--variant", "dqa+dqwa"]);
    let first = Running::start(place.command(&arguments)).end();
    assert_eq!((first.code, first.stderr.as_str()), (0, ""), "{first:?}");
    let json: Value = serde_json::from_str(&first.stdout).unwrap();
    assert_eq!(
        (&json["schema"], &json["scenario"], &json["world"]),
        (&1.into(), &"small".into(), &"netns".into())
    );
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(json["kernel"], release.trim().split(['-', '+']).next().unwrap());
    assert_eq!((&json["rate_bps"], &json["seed"]), (&200_000_000_u64.into(), &7.into()));
    assert_eq!((&json["duration_s"], &json["warmup_s"]), (&1.0.into(), &0.3.into()));
    assert_eq!(json["windows"], serde_json::json!({"10ms": 0.01, "1s": 1.0}));
    assert_eq!(json["variants"].as_array().unwrap().len(), 3);
    for name in ["cmax", "dqa", "dqa+dqwa"] {
        let variant = variant(&json, name);
        check_variant(variant);
        let latencies = ["p50", "p90", "p99", "p999"].map(|part| mean(variant, &["latency_us", part], 1));
        assert!(latencies[0] > 0.0 && latencies.is_sorted(), "{latencies:?}");
        assert!(mean(variant, &["latency_us", "mean"], 1) > 0.0);
    }
    let dqa = variant(&json, "dqa");
    assert!(flows_by_queue(dqa).iter().all(|flows| *flows <= 1), "{:?}", dqa["queues"]);
    // The difference is one or two segments of 64 KiB, in four megabytes.
    assert!(mean(dqa, &["nfm", "1s"], 1) <= 0.1, "{:?}", dqa["metrics"]["nfm"]);
    let updates = &variant(&json, "dqa+dqwa")["counters"]["weight_updates"];
    assert!(updates["min"].as_f64().unwrap() >= 1.0, "{updates}");
    assert_eq!(json["refused"], serde_json::json!([]));
    assert!(json.get("paper").is_none(), "this scenario has none");
    assert!(json["expectations"][0]["value"].as_f64().unwrap() > 1e8, "{json}");

    let record = store::read(&place.path().join("first")).unwrap();
    assert_eq!((record.seed, record.variants.len()), (7, 3));
    assert!(record.scenario_text.contains("Six slow flows"));
    let series = store::read_series(&place.path().join("first"), &record, "dqa", 0).unwrap().unwrap();
    assert_eq!((series.flows.len(), series.bin_ns), (6, 10_000_000));
    let repeat = &record.variants[1].repeats[0];
    for flow in &series.flows {
        let recorded = repeat.flows.iter().find(|recorded| recorded.name == flow.name).unwrap();
        assert_eq!((flow.bytes.len(), flow.bytes.iter().sum::<u64>()), (100, recorded.bytes));
    }

    // The second run uses the default record directory and misses its expectation. It ends with exit
    // code 1 and prints results.
    let place_of_second = Place::new(&format!(
        "{SCENARIO}\n[[expect]]\nvariant = \"dqa\"\nmetric = \"throughput_bps\"\nstatistic = \"mean\"\n\
         at-least = 1e12\n"
    ));
    let second = Running::start(place_of_second.command(&["--variant", "dqa", "--repeat", "5"])).end();
    assert_eq!(second.code, 1, "{second:?}");
    assert!(second.stdout.contains("dqa") && second.stdout.contains("throughput"), "{second:?}");
    assert_eq!(place_of_second.written(), ["evenkeel-records"]);
    let records = place_of_second.path().join("evenkeel-records");
    let names: Vec<_> = std::fs::read_dir(&records).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(names[0].file_name().unwrap().to_str().unwrap().starts_with("small-netns-"), "{names:?}");
    assert!(second.stderr.contains(names[0].file_name().unwrap().to_str().unwrap()), "{second:?}");

    compare(&place.path().join("first"), &names[0]);
    assert_eq!(interfaces(), links);
}

fn compare(first: &Path, second: &Path) {
    let paths = [first.to_str().unwrap(), second.to_str().unwrap()];
    let table = run(&["compare", paths[0], paths[1]]);
    assert_eq!((table.code, table.stderr.as_str()), (0, ""), "{table:?}");
    assert!(table.stdout.contains("dqa"), "{table:?}");
    let json = run(&["compare", paths[0], paths[1], "--format", "json"]);
    assert_eq!(json.code, 0, "{json:?}");
    assert!(serde_json::from_str::<Value>(&json.stdout).unwrap().is_object());
}

#[test]
fn on_mq_six_flows_sit_on_six_queues() {
    let place = Place::new(SCENARIO);
    let mut arguments = vec!["--topology", "mq", "--repeat", "2", "--format", "json"];
    arguments.extend(["--variant", "dqa", "--variant", "dqa+dqwa", "--variant", "dqa+balance"]);
    let ended = Running::start(place.command(&arguments)).end();
    assert_eq!(ended.code, 0, "{ended:?}");
    let json: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(json["refused"].as_array().unwrap().len(), 1);
    assert_eq!(json["refused"][0]["name"], "dqa+dqwa");
    assert!(
        json["refused"][0]["why"].as_str().unwrap().contains("do not support weights"),
        "{:?}",
        json["refused"]
    );
    let flows = flows_by_queue(variant(&json, "dqa"));
    assert_eq!(flows.iter().filter(|flows| **flows == 1).count(), 6, "{flows:?}");
    // Six queues with one flow each are balanced, so no flow moves.
    let balanced = variant(&json, "dqa+balance");
    assert_eq!(flows_by_queue(balanced).iter().filter(|flows| **flows == 1).count(), 6, "{balanced}");
    assert_eq!(balanced["counters"]["moves_overruled"]["max"], 0.0, "{balanced}");
    let record = store::read(Path::new(
        json["record"].as_str().map(|path| place.path().join(path)).as_deref().unwrap(),
    ));
    for repeat in record.unwrap().variants[0].repeats.iter() {
        let mut queues: Vec<u32> = repeat.flows.iter().map(|flow| flow.queue.expect("a queue")).collect();
        queues.sort_unstable();
        queues.dedup();
        assert_eq!(queues.len(), 6, "{:?}", repeat.flows);
    }
}

fn in_sender(run: &mut Running, line: &str) {
    let script = format!("ip link show evk0 && {line}");
    let in_namespace = |process: ProcessIdentity| {
        let namespace = format!("--net=/proc/{}/ns/net", process.id);
        let output = Command::new("nsenter").args([&namespace, "sh", "-c", &script]).output().unwrap();
        output.status.success()
    };
    assert!(children(run.id()).into_iter().any(in_namespace), "{line}");
}

/// Without its shaper, the test bed carries many times the line rate.
#[test]
fn a_repeat_whose_test_bed_was_changed_is_refused() {
    for (line, words) in [
        ("tc qdisc del dev evk0 root", "evk0: the qdisc at root was htb 1:0, and is noqueue 0:0 now"),
        ("ip link set evk0 down", "evk0 was up, and is down now"),
        ("ip link del evk0", "evk0 was up, and is absent now"),
    ] {
        let place = Place::new(&format!("{SCENARIO}{PROBE}"));
        let mut run = Running::start(place.command(&["--variant", "dqa"]));
        run.wait_for_activity("measuring");
        in_sender(&mut run, line);
        let ended = run.end();
        let words = format!("another program changed an interface during a repeat: {words}");
        assert!(ended.code == 4 && ended.stderr.contains(&words), "{line}: {ended:?}");
    }
}

#[test]
fn two_runs_at_the_same_time() {
    let places = [Place::new(SCENARIO), Place::new(SCENARIO)];
    let running = places.each_ref().map(|place| {
        Running::start(place.command(&["--variant", "dqa", "--format", "json", "--out", "record"]))
    });
    for ended in running.map(Running::end) {
        assert_eq!(ended.code, 0, "{ended:?}");
        let json: Value = serde_json::from_str(&ended.stdout).unwrap();
        let flows = flows_by_queue(variant(&json, "dqa"));
        assert_eq!(flows.iter().filter(|flows| **flows == 1).count(), 6, "{flows:?}");
    }
    for place in &places {
        assert_eq!(place.written(), ["record"]);
    }
}

#[test]
fn a_run_goes_on_when_its_progress_is_not_read() {
    let place = Place::new(SCENARIO);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = place.command(&["--variant", "dqa", "--format", "json", "--out", "record"]);
    let output = command.stderr(writer).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(serde_json::from_slice::<Value>(&output.stdout).unwrap().is_object());
    store::read(&place.path().join("record")).unwrap();
}
