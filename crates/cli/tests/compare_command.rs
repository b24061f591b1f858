//! Tests `evenkeel compare` on valid records, damaged records, and files that are not records.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evenkeel_model::record::{FlowRecord, Record, RepeatRecord, SCHEMA, VariantRecord};
use evenkeel_report::store;

use support::{Ended, run};

/// Writes a record of the variant `dqa` with one repeat for each value of `nfm`. All repeats have the same
/// throughput.
fn record(directory: &Path, name: &str, nfm: &[f64]) -> PathBuf {
    let repeats = nfm
        .iter()
        .map(|nfm| RepeatRecord {
            metrics: [("nfm.1s".to_owned(), *nfm), ("throughput_bps".to_owned(), 1.9e9)].into(),
            flows: vec![FlowRecord { payload_bytes: 4_750_000_000, ..FlowRecord::default() }],
            ..RepeatRecord::default()
        })
        .collect();
    let record = Record {
        schema: SCHEMA,
        evenkeel: "0.1.0".to_owned(),
        scenario: "uplink".to_owned(),
        scenario_text: "schema = 1".to_owned(),
        world: "netns".to_owned(),
        kernel: "6.18.44".to_owned(),
        started: "2026-01-31T12:00:00Z".to_owned(),
        host: BTreeMap::new(),
        rate_bps: 2_000_000_000,
        nominal_rate_bps: 10_000_000_000,
        seed: 1,
        quick: false,
        duration_s: 20.0,
        warmup_s: 1.0,
        windows: [("1s".to_owned(), 5.0)].into(),
        variants: vec![VariantRecord {
            name: "dqa".to_owned(),
            settings: BTreeMap::new(),
            notes: Vec::new(),
            repeats,
        }],
        refused: Vec::new(),
        paper: None,
        expectations: Vec::new(),
    };
    let path = directory.join(name);
    store::write(&path, &record, &[]).unwrap();
    path
}

fn compare(first: &Path, second: &Path, more: &[&str]) -> Ended {
    let mut arguments = vec!["compare", first.to_str().unwrap(), second.to_str().unwrap()];
    arguments.extend(more);
    run(&arguments)
}

#[test]
fn a_difference_beyond_the_spread_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let fair = record(directory.path(), "fair", &[0.010, 0.012, 0.011, 0.010, 0.011]);
    let unfair = record(directory.path(), "unfair", &[0.70, 0.75, 0.72, 0.71, 0.73]);
    let ended = compare(&fair, &unfair, &[]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
    assert!(
        ended.stdout.starts_with("dqa: NFM 1s 6") && ended.stdout.contains(" times as high ("),
        "{ended:?}"
    );
    for path in [&fair, &unfair] {
        assert!(ended.stdout.contains(path.to_str().unwrap().rsplit('/').next().unwrap()), "{ended:?}");
    }
    // Equal figures are shown only with `--all`.
    assert!(!ended.stdout.contains("throughput,"), "{ended:?}");
    assert!(compare(&fair, &unfair, &["--all"]).stdout.contains("throughput,"));

    let json = compare(&fair, &unfair.join("record.json"), &["--format", "json"]);
    assert_eq!((json.code, json.stderr.as_str()), (0, ""), "{json:?}");
    let object: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert!(object.is_object());
    // A comparison of a record with itself has another result.
    let same: serde_json::Value =
        serde_json::from_str(&compare(&fair, &fair, &["--format", "json"]).stdout).unwrap();
    assert_ne!(object, same);
}

#[test]
fn what_is_no_record_exits_with_2() {
    let directory = tempfile::tempdir().unwrap();
    let good = record(directory.path(), "good", &[0.1, 0.2]);
    let text = std::fs::read_to_string(good.join("record.json")).unwrap();
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", Vec::new(), "empty.json is empty"),
        ("half", text.as_bytes()[..text.len() / 2].to_vec(), "is truncated"),
        ("object", b"{}".to_vec(), "the field 'schema' is missing"),
        ("list", b"[1, 2]".to_vec(), "not a record"),
        ("html", b"<html></html>".to_vec(), "line 1 column 1"),
        ("binary", vec![0xff, 0, 0xfe], "is not text; name the record's directory"),
        ("future", text.replacen("\"schema\": 1", "\"schema\": 99", 1).into_bytes(), "schema 99"),
        ("type", text.replacen("\"seed\": 1", "\"seed\": \"one\"", 1).into_bytes(), "a whole number"),
        ("field", text.replacen("\"kernel\"", "\"kernal\"", 1).into_bytes(), "the field 'kernel' is missing"),
        ("negative", text.replacen("\"seed\": 1", "\"seed\": -1", 1).into_bytes(), "not a record"),
        ("deep", "[".repeat(200_000).into_bytes(), "a list in place of"),
        ("nul", text.replacen("uplink", "up\0link", 1).into_bytes(), "is not text"),
        (
            "control",
            text.replacen("uplink", "up\u{1}link", 1).into_bytes(),
            "a control character within a string",
        ),
        ("nameless", text.replacen("\"dqa\"", "\"\"", 1).into_bytes(), "a variant has no name"),
        (
            "rateless",
            text.replacen("\"rate_bps\": 2", "\"rate_bps\": 0, \"x\": 2", 1).into_bytes(),
            "the line rate is 0",
        ),
        (
            "huge",
            text.replacen("\"duration_s\": 20.0", "\"duration_s\": 1e308", 1).into_bytes(),
            "duration_s is 1e308,",
        ),
    ];
    for (name, content, words) in cases {
        let path = support::file(directory.path(), &format!("{name}.json"), content);
        for (first, second) in [(&good, &path), (&path, &good)] {
            let ended = compare(first, second, &[]);
            assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{name}: {ended:?}");
            assert!(ended.stderr.contains(words), "{name}: wanted {words:?} in {ended:?}");
            assert!(ended.stderr.contains(&format!("{name}.json")), "{name}: {ended:?}");
        }
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_record() {
    let directory = tempfile::tempdir().unwrap();
    let good = record(directory.path(), "good", &[0.1, 0.2]);
    let text = std::fs::read_to_string(good.join("record.json")).unwrap();
    let marked = support::file(directory.path(), "marked.json", format!("\u{feff}{text}"));
    let ended = compare(&good, &marked, &[]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
}

#[test]
fn what_is_not_there_exits_with_2() {
    let directory = tempfile::tempdir().unwrap();
    let good = record(directory.path(), "good", &[0.1]);
    let empty = directory.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    for missing in [directory.path().join("nowhere"), empty] {
        let ended = compare(&good, &missing, &[]);
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{ended:?}");
        assert!(ended.stderr.contains(missing.to_str().unwrap()), "{ended:?}");
        assert!(ended.stderr.contains("does not exist"), "{ended:?}");
    }
}

#[test]
fn agreement_is_judged_by_a_tolerance() {
    let directory = tempfile::tempdir().unwrap();
    let real = record(directory.path(), "real", &[0.74, 0.76, 0.75, 0.74, 0.76]);
    let near = record(directory.path(), "near", &[0.85, 0.87, 0.86, 0.85, 0.87]);
    let far = record(directory.path(), "far", &[0.99, 1.01, 1.0, 0.99, 1.01]);
    let judge = |second: &Path, more: &[&str]| {
        let ended = compare(&real, second, &[&["--within", "30%"], more].concat());
        assert_eq!(ended.stderr, "", "{ended:?}");
        ended
    };
    assert_eq!(judge(&near, &[]).code, 0);
    let ended = judge(&far, &[]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(
        ended.stdout.starts_with("Not shown to be the same within 30 %: 1 figure beyond it; 1 figure"),
        "{ended:?}"
    );
    // The throughput is equal in both records.
    assert_eq!(judge(&far, &["--metric", "throughput_bps"]).code, 0);
    let json = judge(&far, &["--metric", "nfm.1s", "--format", "json"]);
    assert_eq!(json.code, 1);
    let object: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(object["tolerance"], 0.3);
    let metrics = object["variants"][0]["metrics"].as_object().unwrap();
    assert_eq!((metrics.len(), &metrics["nfm.1s"]["within"]), (1, &false.into()));

    let nameless = compare(&real, &near, &["--metric", ""]);
    assert!(nameless.code == 2 && nameless.stderr.contains("the metric ''"), "{nameless:?}");
    let unknown = compare(&real, &near, &["--metric", "nfm.2s"]);
    assert_eq!((unknown.code, unknown.stdout.as_str()), (2, ""), "{unknown:?}");
    assert!(unknown.stderr.contains("nfm.2s") && unknown.stderr.contains("throughput_bps"), "{unknown:?}");
}

#[test]
fn figures_that_a_record_calls_incomplete_are_no_agreement() {
    let directory = tempfile::tempdir().unwrap();
    let nfm = [0.74, 0.76, 0.75, 0.74, 0.76];
    let whole = record(directory.path(), "whole", &nfm);
    let part = record(directory.path(), "part", &nfm);
    let mut changed = store::read(&part).unwrap();
    changed.variants[0].notes = vec!["iperf3 counted more".to_owned()];
    changed.variants[0].repeats[1].counters.insert("meter_overflow".to_owned(), 5.0);
    std::fs::remove_dir_all(&part).unwrap();
    store::write(&part, &changed, &[]).unwrap();
    let told = "dqa in 1 of 5 repeats of the second (meter_overflow)";
    for more in [&[][..], &["--within", "5%"]] {
        let ended = compare(&whole, &part, more);
        assert_eq!(ended.code, i32::from(!more.is_empty()), "{ended:?}");
        let said = ended.stdout.replace('\n', " ");
        assert!(said.contains(told) && said.contains("iperf3 counted more"), "{ended:?}");
    }
    assert_eq!(compare(&whole, &whole, &["--within", "5%"]).code, 0);
}

/// The command refuses negative figures, and figures whose squares overflow: these would make the degrees
/// of freedom NaN.
#[test]
fn absurd_figures_are_refused_by_file_and_metric() {
    let directory = tempfile::tempdir().unwrap();
    let good = record(directory.path(), "good", &[0.1; 5]);
    let text = std::fs::read_to_string(good.join("record.json")).unwrap();
    for absurd in ["1e308", "-1.0"] {
        let content = text.replacen("1900000000.0", absurd, 1);
        assert_ne!(content, text);
        let path = support::file(directory.path(), "absurd.json", content);
        let ended = compare(&good, &path, &[]);
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{ended:?}");
        for words in ["absurd.json", "throughput_bps of dqa"] {
            assert!(ended.stderr.contains(words), "{ended:?}");
        }
    }
}

#[test]
fn records_with_nothing_in_common_exit_with_2() {
    let directory = tempfile::tempdir().unwrap();
    let one = record(directory.path(), "one", &[0.1; 5]);
    let text = std::fs::read_to_string(one.join("record.json")).unwrap();
    let other = support::file(directory.path(), "other.json", text.replace("\"dqa\"", "\"cmax\""));
    let ended = compare(&one, &other, &[]);
    assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{ended:?}");
    assert!(ended.stderr.contains("nothing to compare"), "{ended:?}");
}
