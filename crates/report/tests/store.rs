//! Tests of record directories: reading returns the written record, and damage is an error.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use evenkeel_files::OutputError;
use evenkeel_model::record::{Record, SCHEMA, metric};
use evenkeel_model::scenario::bundled::bundled;
use evenkeel_report::store::{self, Series, SeriesColumn, SeriesFlow, StoreError, Writer};
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use support::{record, variant};
use tempfile::TempDir;

fn series(variant: &str, repeat: usize) -> Series {
    let flow = |name: &str, bytes: [u64; 3]| SeriesFlow {
        name: name.to_owned(),
        bytes: bytes.into(),
        packets: bytes.map(|bytes| bytes / 1500).into(),
        further: Vec::new(),
    };
    let flows = vec![flow("5201-40000", [15_000, 0, u64::MAX]), flow("odd, \"name\"", [1, 2, 3])];
    Series { variant: variant.to_owned(), repeat, bin_ns: 5_000_000, flows }
}

fn column(name: &str, values: &[u64]) -> SeriesColumn {
    SeriesColumn { name: name.to_owned(), values: values.to_vec() }
}

fn stored() -> (TempDir, PathBuf, Record) {
    let place = TempDir::new().unwrap();
    let directory = place.path().join("one");
    let record = store::write(&directory, &record(), &[series("dqa", 1)]).unwrap();
    (place, directory, record)
}

fn gz(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn series_path(directory: &Path) -> PathBuf {
    directory.join("series/dqa-1.csv.gz")
}

fn read_dqa(directory: &Path, record: &Record) -> Result<Option<Series>, StoreError> {
    store::read_series(directory, record, "dqa", 1)
}

#[test]
fn a_write_that_is_interrupted_leaves_nothing() {
    let place = TempDir::new().unwrap();
    let directory = place.path().join("one");
    let all = [series("dqa", 0), series("dqa", 1)];
    let mut shares = Vec::new();
    let mut goes_on = |share| {
        shares.push(share);
        share < 0.5
    };
    let writer = Writer::claim(&directory).unwrap();
    for one in &all {
        writer.add(one, &mut goes_on);
    }
    assert_eq!(shares.last(), Some(&(2.0 / 3.0)), "the second series is not begun: {shares:?}");
    let written = writer.finish(&record());
    assert!(matches!(written, Err(StoreError::Interrupted)), "{written:?}");
    assert!(fs::read_dir(place.path()).unwrap().next().is_none());
}

#[test]
fn what_is_written_is_read() {
    let place = TempDir::new().unwrap();
    let directory = place.path().join("deep/down/one");
    let all = [series("cmax", 0), series("xps:dqa", 1)];
    let written = store::write(&directory, &record(), &all).unwrap();
    assert_eq!(written.variants[1].repeats[0].series.as_deref(), Some("series/cmax-0.csv.gz"));
    assert_eq!(written.variants[3].repeats[1].series.as_deref(), Some("series/xps%3Adqa-1.csv.gz"));
    for path in [directory.clone(), directory.join("record.json")] {
        assert_eq!(store::read(&path).unwrap(), written);
    }
    for one in all {
        let found = store::read_series(&directory, &written, &one.variant, one.repeat).unwrap();
        assert_eq!(found, Some(one));
    }
    assert_eq!(store::read_series(&directory, &written, "dqa", 0).unwrap(), None);
    assert!(matches!(
        store::read_series(&directory, &written, "dqa", 9),
        Err(StoreError::NoSuchRepeat { repeat: 9, .. })
    ));
}

#[test]
fn nothing_but_the_directory_appears_and_others_may_read_it() {
    let (place, directory, _) = stored();
    let names: Vec<_> = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["one"]);
    let plain = place.path().join("plain");
    fs::create_dir(&plain).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&directory), mode(&plain));
}

#[test]
fn an_empty_directory_is_taken_and_a_full_one_is_not_touched() {
    let place = TempDir::new().unwrap();
    let empty = place.path().join("empty");
    fs::create_dir(&empty).unwrap();
    store::write(&empty, &record(), &[]).unwrap();
    let before = fs::read(empty.join("record.json")).unwrap();
    let again = store::write(&empty, &record(), &[series("dqa", 0)]);
    assert!(matches!(again, Err(StoreError::Output(OutputError::Occupied { .. }))), "{again:?}");
    assert_eq!(fs::read(empty.join("record.json")).unwrap(), before);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);

    let file = place.path().join("file");
    fs::write(&file, "mine").unwrap();
    let error = store::write(&file, &record(), &[]);
    assert!(matches!(error, Err(StoreError::Output(OutputError::NotADirectory { .. }))), "{error:?}");
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}

#[test]
fn a_failed_write_leaves_nothing_behind() {
    let place = TempDir::new().unwrap();
    let directory = place.path().join("one");
    let mut ragged = series("dqa", 0);
    ragged.flows[1].packets.pop();
    let mut control = series("dqa", 0);
    control.flows[0].name = "a\nb".to_owned();
    let mut binless = series("dqa", 0);
    binless.bin_ns = 0;
    let mut short = series("dqa", 0);
    short.flows[0].further = vec![column("rtt_ns", &[1, 2])];
    let mut packets = series("dqa", 0);
    packets.flows[0].further = vec![column("packets", &[1, 2, 3])];
    for bad in [ragged, control, binless, short, packets] {
        let found = store::write(&directory, &record(), &[bad]);
        assert!(matches!(found, Err(StoreError::UnsuitableSeries { .. })), "{found:?}");
    }
    for stranger in [series("unknown", 0), series("dqa", 17)] {
        let found = store::write(&directory, &record(), &[stranger]);
        assert!(matches!(found, Err(StoreError::NoSuchRepeat { .. })), "{found:?}");
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn figures_that_json_cannot_hold_are_refused_by_name() {
    let place = TempDir::new().unwrap();
    let mut bad = record();
    bad.variants[2].repeats[1].metrics.insert("nfm.1s".to_owned(), f64::NAN);
    let error = store::write(&place.path().join("one"), &bad, &[]).unwrap_err();
    assert!(error.to_string().contains("nfm.1s of dqa, repeat 1 is NaN"), "{error}");
    let mut bad = record();
    bad.expectations[0].value = Some(f64::INFINITY);
    assert!(matches!(store::write(&place.path().join("one"), &bad, &[]), Err(StoreError::NotFinite { .. })));
}

#[test]
fn a_missing_record_is_named() {
    let place = TempDir::new().unwrap();
    let error = store::read(place.path()).unwrap_err();
    assert!(matches!(&error, StoreError::Missing { path } if path.ends_with("record.json")), "{error:?}");
    assert!(matches!(store::read(&place.path().join("none")), Err(StoreError::Missing { .. })));
}

#[test]
fn a_record_cut_short_anywhere_is_told() {
    let (_place, directory, _) = stored();
    let path = directory.join("record.json");
    let whole = fs::read(&path).unwrap();
    // Remove more than the final newline: a record without only its final newline is still complete.
    for length in (1..whole.len() - 1).step_by(23) {
        fs::write(&path, &whole[..length]).unwrap();
        let error = store::read(&directory).unwrap_err();
        assert!(matches!(error, StoreError::Truncated { .. }), "{length}: {error:?}");
    }
    fs::write(&path, "").unwrap();
    assert!(store::read(&directory).unwrap_err().to_string().ends_with("record.json is empty"));
}

#[test]
fn a_record_with_a_wrong_field_is_told_with_its_line() {
    let (_place, directory, _) = stored();
    let path = directory.join("record.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"seed\": 1,", "\"seed\": \"one\",")).unwrap();
    let error = store::read(&directory).unwrap_err();
    assert!(matches!(error, StoreError::Malformed { .. }), "{error:?}");
    let reason = error.source().unwrap().to_string();
    assert!(reason.contains("line") && reason.contains("u64"), "{reason}");
}

#[test]
fn a_record_of_another_schema_is_told_before_its_fields_are_judged() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("record.json");
    fs::write(&path, format!("{{\"schema\": {}, \"all\": \"new\"}}", SCHEMA + 1)).unwrap();
    let error = store::read(&path).unwrap_err();
    assert!(
        matches!(error, StoreError::Schema { found, supported, .. } if found == SCHEMA + 1 && supported == SCHEMA),
        "{error:?}"
    );
    // A list is not an object, whatever its first member is.
    let list = format!("[{}]", SCHEMA + 1);
    for text in ["{}", "{}1", "{\"schema\": 1}}", "{\"schema\": -1}", "[1]", &list, "{\"schema\": 01"] {
        fs::write(&path, text).unwrap();
        let found = store::read(&path);
        assert!(matches!(found, Err(StoreError::Malformed { .. })), "{text}: {found:?}");
    }
}

#[test]
fn a_series_cut_short_or_changed_is_damaged() {
    let (_place, directory, record) = stored();
    let path = series_path(&directory);
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let found = read_dqa(&directory, &record);
        assert!(matches!(found, Err(StoreError::DamagedSeries { .. })), "{length}: {found:?}");
    }
    let mut flipped = whole.clone();
    let middle = flipped.len() - 6;
    flipped[middle] ^= 0x10;
    fs::write(&path, &flipped).unwrap();
    assert!(matches!(read_dqa(&directory, &record), Err(StoreError::DamagedSeries { .. })));
    fs::remove_file(&path).unwrap();
    assert!(matches!(read_dqa(&directory, &record), Err(StoreError::Missing { .. })));
}

#[test]
fn a_series_that_unpacks_to_something_else_is_told_with_its_line() {
    let (_place, directory, record) = stored();
    let head = "# bin_ns=10\nstart_ns,a bytes,a packets\n";
    for (text, line) in [
        (String::new(), 1),
        ("# bin_ns=0\n".to_owned(), 1),
        ("bin 10\n".to_owned(), 1),
        ("# bin_ns=10\n".to_owned(), 2),
        ("# bin_ns=10\ntime,a bytes,a packets\n".to_owned(), 2),
        ("# bin_ns=10\nstart_ns,a bytes\n".to_owned(), 2),
        ("# bin_ns=10\nstart_ns,a bytes,b packets\n".to_owned(), 2),
        ("# bin_ns=10\nstart_ns,\"a bytes,a packets\n".to_owned(), 2),
        (format!("{head}0,1,2\n20,1,2\n"), 4),
        (format!("{head}0,1\n"), 3),
        (format!("{head}0,1,2,3\n"), 3),
        (format!("{head}0,1,-2\n"), 3),
        (format!("{head}0,1,2\n\n"), 4),
        ("# bin_ns=10\nstart_ns,a bytes,a packets,a rtt_ns\n0,1,2\n".to_owned(), 3),
        ("# bin_ns=10\nstart_ns,a bytes,a packets,b rtt_ns\n".to_owned(), 2),
    ] {
        fs::write(series_path(&directory), gz(&text)).unwrap();
        match read_dqa(&directory, &record) {
            Err(StoreError::MalformedSeries { line: found, .. }) => assert_eq!(found, line, "{text:?}"),
            other => panic!("{text:?}: {other:?}"),
        }
    }
}

#[test]
fn times_that_overflow_are_told() {
    let (_place, directory, record) = stored();
    let text = format!("# bin_ns={}\nstart_ns\n0\n{}\n0\n", u64::MAX, u64::MAX);
    fs::write(series_path(&directory), gz(&text)).unwrap();
    assert!(matches!(read_dqa(&directory, &record), Err(StoreError::MalformedSeries { line: 5, .. })));
}

#[test]
fn a_record_cannot_name_files_outside_of_its_directory() {
    let (place, directory, mut record) = stored();
    let secret = place.path().join("secret.csv.gz");
    fs::copy(series_path(&directory), &secret).unwrap();
    symlink(&secret, directory.join("series/link.csv.gz")).unwrap();
    symlink(place.path(), directory.join("up")).unwrap();
    for file in [
        "../secret.csv.gz",
        "series/../../secret.csv.gz",
        secret.to_str().unwrap(),
        "series/link.csv.gz",
        "up/secret.csv.gz",
        "series",
        "",
        ".",
    ] {
        record.variants[2].repeats[1].series = Some(file.to_owned());
        let found = read_dqa(&directory, &record);
        assert!(matches!(found, Err(StoreError::OutsideRecord { .. })), "{file:?}: {found:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_names_and_figures_survive(
        names in prop::collection::btree_set(".{1,12}", 1..4),
        metric in ".{0,8}",
        value in prop_oneof![-1e15..1e15_f64, prop::num::f64::SUBNORMAL | prop::num::f64::ZERO],
        bins in prop::collection::vec((any::<u64>(), any::<u64>()), 0..8),
        flow in "\\PC{0,12}",
    ) {
        let place = TempDir::new().unwrap();
        let directory = place.path().join("one");
        let mut record = record();
        record.variants = names.iter().map(|name| variant(name, &metric, &[value])).collect();
        let (bytes, packets): (Vec<u64>, Vec<u64>) = bins.into_iter().unzip();
        let further = |names: &[&str]| names.iter().map(|name| column(name, &packets)).collect();
        let one = |name: &str, names: &[&str]| {
            let (bytes, packets) = (bytes.clone(), packets.clone());
            SeriesFlow { name: name.to_owned(), bytes, packets, further: further(names) }
        };
        let flows = vec![one(&flow, &["rtt_ns", "window_packets"]), one(&format!("{flow} x"), &[]), one(&flow, &["rtt_ns"])];
        let all: Vec<Series> = names
            .into_iter()
            .map(|variant| Series { variant, repeat: 0, bin_ns: 7, flows: flows.clone() })
            .collect();
        let written = store::write(&directory, &record, &all).unwrap();
        prop_assert_eq!(&store::read(&directory).unwrap(), &written);
        for one in all {
            let found = store::read_series(&directory, &written, &one.variant, 0).unwrap();
            prop_assert_eq!(found, Some(one));
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in ".{0,200}") {
        let (_place, directory, record) = stored();
        fs::write(series_path(&directory), &bytes).unwrap();
        prop_assert!(read_dqa(&directory, &record).is_err());
        fs::write(series_path(&directory), gz(&text)).unwrap();
        prop_assert!(read_dqa(&directory, &record).is_err());
        fs::write(directory.join("record.json"), &bytes).unwrap();
        prop_assert!(store::read(&directory).is_err());
    }
}

#[test]
fn a_record_that_a_killed_writer_left_unfinished_is_replaced() {
    let directory = TempDir::new().unwrap();
    let abandoned = directory.path().join(".evenkeel-partial-x");
    fs::create_dir(&abandoned).unwrap();
    fs::write(abandoned.join("record.json"), "{").unwrap();
    store::write(directory.path(), &record(), &[]).unwrap();
    assert!(!abandoned.exists());
    store::read(directory.path()).unwrap();
}

/// Checks that the error for an impossible figure names the file and the metric.
#[test]
fn figures_that_cannot_have_been_measured_are_refused() {
    let (_place, directory, _) = stored();
    let path = directory.join("record.json");
    let text = fs::read_to_string(&path).unwrap();
    let cases = [
        ("\"throughput_bps\": 1880000000.0", "\"throughput_bps\": 1e308", "throughput_bps of", "too large"),
        ("\"throughput_bps\": 1880000000.0", "\"throughput_bps\": -1.0", "throughput_bps of", "negative"),
        ("\"retransmits\": 12.0", "\"retransmits\": -12.0", "retransmits of", "negative"),
        ("\"jain_bytes\": 0.9,", "\"jain_bytes\": 1.5,", "jain_bytes of dqa, repeat 0", "above 1"),
        ("\"false_releases\": 0.0", "\"false_releases\": -3.0", "the counter false_releases", "negative"),
        ("\"duration_s\": 20.0", "\"duration_s\": -1.0", "duration_s", "negative"),
        ("\"rate_bps\": 2000000000", "\"rate_bps\": 18000000000000000000", "the line rate", "too large"),
        ("\"1s\": 5.0", "\"1s\": -5.0", "the window 1s", "negative"),
        ("\"1s\": 5.0", "\"1s\": 0.0", "the window 1s", "zero"),
        ("\"rate_bps\": 2000000000", "\"rate_bps\": 0", "the line rate", "zero"),
        ("\"rate_bps\": 2000000000", "\"rate_bps\": 1", "the line rate is 1 bit/s", "the rate of a line"),
        ("\"duration_s\": 20.0", "\"duration_s\": 1e308", "duration_s is 1e308,", "too large"),
        ("\"name\": \"dqa\"", "\"name\": \"\"", "a variant has no name", ""),
    ];
    for (from, to, field, reason) in cases {
        assert!(text.contains(from), "{from}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let error = store::read(&directory).unwrap_err().to_string();
        for words in [field, reason, "record.json"] {
            assert!(error.contains(words), "{to}: {words:?} in {error}");
        }
    }
    let orders = [
        ("nfm.1s", 2.0, "nfm_max.1s", 1.0),
        ("latency_us.p50", 90.0, "latency_us.p999", 60.0),
        ("latency_us.p99", 900.0, "latency_us.mean", 1.0),
        ("fct_s.64KiB.p50", 3.0, "fct_s.64KiB.p99", 2.0),
        ("response_us.all.p90", 3.0, "response_us.all.p99", 2.0),
        ("requests_per_s.all.client_median", 3.0, "requests_per_s.all.total", 2.0),
        ("cores.user", 3.0, "cores.busy", 2.0),
    ];
    let sound: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (field, value, other, bound) in orders {
        let mut damaged = sound.clone();
        damaged["variants"][0]["repeats"][0]["metrics"] =
            [(field, value), (other, bound)].into_iter().collect();
        fs::write(&path, damaged.to_string()).unwrap();
        let error = store::read(&directory).unwrap_err().to_string();
        let words = format!(
            "{field} of {}, repeat 0, is {value}, which",
            sound["variants"][0]["name"].as_str().unwrap()
        );
        assert!(error.contains(&words) && error.contains(&format!(": {other} is only {bound};")), "{error}");
        let mut ordered = sound.clone();
        ordered["variants"][0]["repeats"][0]["metrics"] =
            [(field, bound), (other, value)].into_iter().collect();
        fs::write(&path, ordered.to_string()).unwrap();
        store::read(&directory).unwrap();
    }
    let mut twice = sound.clone();
    let first = twice["variants"][0].clone();
    twice["variants"].as_array_mut().unwrap().push(first);
    fs::write(&path, twice.to_string()).unwrap();
    let error = store::read(&directory).unwrap_err().to_string();
    assert!(error.contains("two variants have the name"), "{error}");
    let mut copied = sound.clone();
    // Repeat 1 has a series. Add a copy of this repeat.
    let repeats = copied["variants"][2]["repeats"].as_array_mut().unwrap();
    repeats.push(repeats[1].clone());
    fs::write(&path, copied.to_string()).unwrap();
    let error = store::read(&directory).unwrap_err().to_string();
    assert!(error.contains("two repeats name the same series file, series/"), "{error}");
    let mut elsewhere = sound.clone();
    elsewhere["world"] = "zzz".into();
    fs::write(&path, elsewhere.to_string()).unwrap();
    let error = store::read(&directory).unwrap_err().to_string();
    assert!(error.contains("the world is 'zzz'"), "{error}");
    // Try a number above the maximum, and values that are not JSON numbers.
    for to in ["1e999", "NaN", "null", "\"12\""] {
        fs::write(&path, text.replacen("1880000000.0", to, 1)).unwrap();
        assert!(matches!(store::read(&directory), Err(StoreError::Malformed { .. })), "{to}");
    }
}

/// Returns a record of three flows over 4 s with consistent figures.
fn transfers() -> serde_json::Value {
    let (_, text) = bundled().iter().find(|(name, _)| *name == "tcp100g-cores").unwrap();
    let flow = |name: &str| {
        serde_json::json!({
            "name": name, "bytes": 1_000_000_000, "packets": 1_000_000, "payload_bytes": 15_000_000_000_u64, "retransmits": 4
        })
    };
    let shares = metric::CPU_SHARE_PARTS.map(|part| (metric::part(metric::CPU_SHARE, part), 0.125));
    let mut metrics: BTreeMap<String, f64> = [
        ("throughput_bps", 90e9),
        ("cpu_pct", 300.0),
        ("throughput_per_core_bps", 30e9),
        ("retransmits", 12.0),
        ("retransmits_per_s", 3.0),
        ("retransmission_events_per_s", 1.5),
        ("drops.ring", 12.0),
        ("jain_bytes", 1.0),
        ("jain_packets", 1.0),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    metrics.extend(shares);
    let mut record = record();
    record.world = "sim".to_owned();
    record.scenario_text = (*text).to_owned();
    (record.rate_bps, record.nominal_rate_bps) = (100_000_000_000, 100_000_000_000);
    (record.duration_s, record.warmup_s) = (4.0, 1.0);
    record.windows.clear();
    record.variants = vec![variant("distribution-2", "throughput_bps", &[90e9])];
    let mut json = serde_json::to_value(record).unwrap();
    let repeat = &mut json["variants"][0]["repeats"][0];
    repeat["metrics"] = serde_json::to_value(metrics).unwrap();
    repeat["flows"] = ["flow-0", "flow-1", "flow-2"].map(flow).into();
    json
}

/// The value of an expectation is the mean of the repeats, within its interval.
#[test]
fn an_expectation_that_does_not_follow_from_the_repeats_is_refused() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("record.json");
    let incomplete = |value: f64,
                      interval: Option<(f64, f64)>,
                      met: Option<bool>,
                      metric: &str,
                      overflow: f64| {
        let mut json = transfers();
        if overflow > 0.0 {
            json["variants"][0]["repeats"][0]["counters"] = serde_json::json!({ "meter_overflow": overflow });
        }
        let text = format!(
            "{}\n[[expect]]\nvariant = \"distribution-2\"\nmetric = \"{metric}\"\nstatistic = \"mean\"\n\
             at-least = 80000000000\n",
            json["scenario_text"].as_str().unwrap()
        );
        json["scenario_text"] = text.into();
        let repeats = vec![json["variants"][0]["repeats"][0].clone(); 6];
        json["variants"][0]["repeats"] = repeats.into();
        json["expectations"] = serde_json::json!([{
            "variant": "distribution-2", "metric": metric, "statistic": "mean", "at_least": 80e9, "value": value,
            "interval": interval, "repeats": 5, "met": met
        }]);
        fs::write(&path, json.to_string()).unwrap();
        store::read(&path).map_err(|error| error.to_string())
    };
    let read = |value: f64, interval: Option<(f64, f64)>, met: Option<bool>, metric: &str| {
        incomplete(value, interval, met, metric, 0.0)
    };
    read(90e9, None, None, "throughput_bps").unwrap();
    incomplete(90e9, None, None, "throughput_bps", 5.0).unwrap();
    let error = incomplete(90e9, None, Some(true), "throughput_bps", 5.0).unwrap_err();
    assert!(error.contains("meter_overflow is 30, which contradicts expectations[0].met: true"), "{error}");
    read(90e9, Some((89e9, 91e9)), Some(true), "throughput_bps").unwrap();
    for (value, interval, met, metric, words) in [
        (85e9, None, None, "throughput_bps", "is 85000000000, which contradicts the repeats: 90000000000"),
        (90e9, None, Some(false), "throughput_bps", "contradicts its met, false"),
        (
            90e9,
            Some((91e9, 92e9)),
            None,
            "throughput_bps",
            "contradicts its interval, 91000000000 to 92000000000",
        ),
        (90e9, None, None, "drops.nic", "contradicts the repeats, which lack the metric"),
    ] {
        let error = read(value, interval, met, metric).unwrap_err();
        assert!(
            error.contains("record.json is not a record of a run: expectations[0].value ")
                && error.contains(words),
            "{error}"
        );
    }
}

/// Each change contradicts another figure, or the recorded scenario.
#[test]
fn figures_that_contradict_each_other_are_refused() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("record.json");
    let read = |json: &serde_json::Value| {
        fs::write(&path, json.to_string()).unwrap();
        store::read(&path)
    };
    read(&transfers()).unwrap();
    let refused = |changes: &[(&str, f64)], flows: &[(&str, u64)], words: &[&str]| {
        let mut json = transfers();
        let repeat = &mut json["variants"][0]["repeats"][0];
        for (key, value) in changes {
            repeat["metrics"][*key] = (*value).into();
        }
        for (key, value) in flows {
            repeat["flows"][0][*key] = (*value).into();
        }
        let error = read(&json).unwrap_err().to_string();
        for word in [&["record.json", "of distribution-2, repeat 0,"][..], words].concat() {
            assert!(error.contains(word), "{changes:?} {flows:?}: {word:?} in {error}");
        }
    };
    refused(
        &[("throughput_bps", 91e9), ("throughput_per_core_bps", 91e9 / 3.0)],
        &[],
        &["throughput_bps", "91000000000", "payload"],
    );
    refused(&[], &[("payload_bytes", 1)], &["throughput_bps", "payload of the flows"]);
    // The line carries 50 GB in 4 s, and three receive buffers have 2 GB each.
    let most = [("throughput_bps", 113e9), ("throughput_per_core_bps", 113e9 / 3.0)];
    refused(
        &most,
        &[("payload_bytes", 26_500_000_000)],
        &["throughput_bps", "line carries 100000000000 bit/s"],
    );
    // A warm-up of 10 ms brings at most 125 MB over the line.
    let full = |payload: u64| {
        let mut short = transfers();
        let text = short["scenario_text"].as_str().unwrap().replace("warmup = \"1s\"", "warmup = \"10ms\"");
        (short["scenario_text"], short["warmup_s"]) = (text.into(), 0.01.into());
        let repeat = &mut short["variants"][0]["repeats"][0];
        repeat["flows"][0]["payload_bytes"] = payload.into();
        let throughput = (30_000_000_000 + payload) as f64 * 2.0;
        repeat["metrics"]["throughput_bps"] = throughput.into();
        repeat["metrics"]["throughput_per_core_bps"] = (throughput / 3.0).into();
        read(&short).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(full(20_120_000_000), Ok(()));
    let error = full(20_130_000_000).unwrap_err();
    assert!(error.contains("throughput_bps") && error.contains("line carries 100000000000 bit/s"), "{error}");
    refused(
        &[("cpu_pct", 1e9), ("throughput_per_core_bps", 9000.0)],
        &[],
        &["cpu_pct", "1000000000", "processors, at most 16"],
    );
    refused(
        &[("throughput_per_core_bps", 31e9)],
        &[],
        &["throughput_per_core_bps", "throughput_bps, 90000000000"],
    );
    refused(&[("cpu_share.copy", 0.5)], &[], &["the sum of cpu_share", "1.375"]);
    refused(&[("cpu_share.copy", 0.0)], &[], &["the sum of cpu_share", "0.875"]);
    refused(&[("retransmits_per_s", 5.0)], &[], &["retransmits_per_s", "retransmits, 12 in 4 s"]);
    refused(&[("retransmits", 0.0)], &[], &["retransmits", "sum over the flows, 12"]);
    refused(&[("drops.ring", 0.5)], &[], &["drops.ring", "whole"]);
    refused(&[("retransmits", 12.5)], &[], &["retransmits", "whole"]);
    refused(
        &[("retransmission_events_per_s", 1e6)],
        &[],
        &["retransmission_events_per_s", "1000000", "retransmits, 12"],
    );
    let many = [("retransmits", 1008.0), ("retransmits_per_s", 252.0), ("retransmission_events_per_s", 31.0)];
    refused(&many, &[("retransmits", 1000)], &["retransmission_events_per_s", "flows (3)"]);
    refused(&[("jain_bytes", 0.2)], &[], &["jain_bytes", "0.2", "flows (3), whose index is 1"]);
    refused(&[], &[("packets", 1)], &["jain_packets", "flows (3)"]);
    let mut fewer = transfers();
    fewer["variants"][0]["repeats"][0]["flows"].as_array_mut().unwrap().pop();
    fewer["variants"][0]["repeats"][0]["metrics"].as_object_mut().unwrap().remove("retransmits_per_s");
    let error = read(&fewer).unwrap_err().to_string();
    assert!(
        error.contains("the number of flows of distribution-2, repeat 0, is 2") && error.contains("has 3"),
        "{error}"
    );
    // The record's rate differs from the rate in the scenario's text.
    let mut slower = transfers();
    slower["nominal_rate_bps"] = 10_000_000_000_u64.into();
    let error = read(&slower).unwrap_err().to_string();
    assert!(
        error.contains(
            "nominal_rate_bps is 10000000000, which contradicts the link.rate of its scenario_text"
        ),
        "{error}"
    );
    // An unreadable scenario gives no bounds, but the figures must still be consistent.
    let mut unknown = transfers();
    unknown["scenario_text"] = "schema = 9".into();
    read(&unknown).unwrap();
    unknown["variants"][0]["repeats"][0]["flows"] = serde_json::json!([]);
    assert!(read(&unknown).unwrap_err().to_string().contains("contradicts"));
}

#[test]
fn a_record_with_another_link_than_its_scenario_is_refused() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("record.json");
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/demo/titan-12-flows.json");
    let text = fs::read_to_string(demo).unwrap();
    let stated = r#"\nqueues = 8\n"#;
    assert!(text.contains(stated) && text.contains(r#"\nrate = \"10gbit\"\n"#));
    let refused = |from: &str, to: &str, word: &str| {
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let error = store::read(&path).unwrap_err().to_string();
        assert!(error.contains("record.json") && error.contains(word), "{error}");
    };
    refused(
        r#"\nrate = \"10gbit\""#,
        r#"\nrate = \"1gbit\""#,
        "nominal_rate_bps is 10000000000, which contradicts",
    );
    for queues in [7, 9] {
        refused(stated, &format!(r#"\nqueues = {queues}\n"#), "the number of queues of ");
    }
}

#[test]
fn the_records_of_the_demonstration_are_read() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/demo");
    let records: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(records.len() >= 2);
    for path in records {
        store::read(&path).unwrap();
    }
}
