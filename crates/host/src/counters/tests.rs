//! Holds the dictionary against lists of names and meanings: `tests/counters/DRIVER.txt`, a name on a line, with two spaces and
//! its meaning behind those that count losses or pauses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use std::path::{Path, PathBuf};

/// A line of a fixture.
struct Line {
    /// Whether the kernel has it in `struct rtnl_link_stats64`.
    kernel: bool,
    pattern: String,
    meaning: String,
}

fn fixtures() -> Vec<(String, Vec<Line>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/counters");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let line = |line: &str| {
        let (name, meaning) = line.split_once("  ").unwrap_or((line, ""));
        let kernel = name.strip_prefix("kernel ");
        Line {
            kernel: kernel.is_some(),
            pattern: kernel.unwrap_or(name).to_owned(),
            meaning: meaning.to_owned(),
        }
    };
    let fixture = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).unwrap();
        let lines = text.lines().filter(|text| !text.starts_with("# ")).map(line).collect();
        (file.file_stem().unwrap().to_str().unwrap().to_owned(), lines)
    };
    files.iter().map(fixture).collect()
}

/// Names of a pattern on an interface of two queues.
fn names(driver: &str, pattern: &str) -> Vec<String> {
    if driver == "vmxnet3" && pattern != "tx timeout count" {
        return (0..2).map(|queue| format!("{pattern} [{queue}]")).collect();
    }
    if pattern.contains('#') {
        return (0..2).map(|number| pattern.replace('#', &number.to_string())).collect();
    }
    vec![pattern.to_owned()]
}

#[test]
fn every_driver_has_a_fixture_and_a_source() {
    let fixtures = fixtures();
    for driver in Driver::all() {
        let name = driver.names[0];
        let (_, lines) = fixtures.iter().find(|(other, _)| other == name).expect(name);
        assert!(driver.source.starts_with("drivers/net/"), "{name}");
        for (pattern, _) in driver.counters {
            assert!(lines.iter().any(|line| !line.kernel && line.pattern == *pattern), "{name}: {pattern}");
        }
        for (field, _) in driver.kernel {
            assert!(lines.iter().any(|line| line.kernel && line.pattern == *field), "{name}: {field}");
        }
    }
    assert!(fixtures.len() >= 27 && fixtures.len() == Driver::all().count(), "{}", fixtures.len());
}

/// Each loss has a value of its own, sums have the sum, and all other counters a value that shows wherever it is added.
#[test]
fn each_loss_counts_once() {
    const LOUD: u64 = 1 << 50;
    for (driver, lines) in fixtures() {
        let row = Driver::of(&driver).unwrap();
        let mut values: BTreeMap<(bool, String), u64> = BTreeMap::new();
        let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
        let mut next = 1_000;
        for line in lines.iter().filter(|line| !line.meaning.is_empty() && !line.meaning.starts_with("= ")) {
            for name in names(&driver, &line.pattern) {
                next += 7;
                values.insert((line.kernel, name), next);
                *expected.entry(line.meaning.as_str()).or_insert(0) += next;
            }
        }
        // A port's total holds its rings' losses beside its own.
        let ring = expected.get("ring").copied().unwrap_or(0);
        if let Some(in_front) = expected.remove("nic and ring") {
            *expected.entry("nic").or_insert(0) += in_front;
            let total = lines.iter().find(|line| line.meaning == "nic and ring").unwrap();
            *values.get_mut(&(total.kernel, total.pattern.clone())).unwrap() += ring;
        }
        for line in &lines {
            let sum = line.meaning.strip_prefix("= ").map(|whole| {
                let of_whole =
                    |(key, _): &(&(bool, String), &u64)| matches(whole, repetition(&key.1).0).is_some();
                values.iter().filter(of_whole).map(|(_, value)| *value).sum::<u64>()
            });
            let loud = line.meaning.is_empty().then_some(LOUD);
            let Some(value) = sum.or(loud) else { continue };
            for name in names(&driver, &line.pattern) {
                values.insert((line.kernel, name), value);
            }
        }
        // The kernel's fields repeat what the driver counts.
        for field in ["rx_dropped", "rx_missed_errors", "rx_fifo_errors", "rx_over_errors", "rx_errors"] {
            values.entry((true, field.to_owned())).or_insert(LOUD);
        }
        let of = |kernel: bool| -> BTreeMap<String, u64> {
            let own = values.iter().filter(|((of_kernel, _), _)| *of_kernel == kernel);
            own.map(|((_, name), value)| (name.clone(), *value)).collect()
        };
        let losses = row.losses(&of(false), &of(true));
        for (meaning, found) in [
            ("wire", losses.wire),
            ("nic", losses.card),
            ("ring", losses.ring),
            ("driver", losses.driver),
            ("transmit", losses.transmit),
            ("stop", losses.transmit_stops),
            ("pause sent", losses.pause_sent),
            ("pause received", losses.pause_received),
            ("priority pause sent", losses.priority_pause_sent),
            ("priority pause received", losses.priority_pause_received),
            ("allowance", losses.allowance),
        ] {
            assert_eq!(found, expected.get(meaning).copied(), "{driver}: {meaning}");
        }
    }
}

#[test]
fn a_part_counts_where_the_whole_is_missing() {
    let losses = |driver: &str, counters: &[(&str, u64)]| {
        let counters = counters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Driver::of(driver).unwrap().losses(&counters, &BTreeMap::new())
    };
    // A list of counters that leaves out the rings.
    let bnxt = losses("bnxt_en", &[("rx_total_discard_pkts", 9), ("rx_stat_discard", 12)]);
    assert_eq!((bnxt.ring, bnxt.card), (Some(9), Some(3)));
    let bnxt =
        losses("bnxt_en", &[("[0]: rx_discards", 9), ("rx_total_ring_discards", 9), ("rx_stat_discard", 9)]);
    assert_eq!((bnxt.ring, bnxt.card), (Some(9), Some(0)));
    let igb = losses("igb", &[("rx_no_buffer_count", 70_000), ("rx_missed_errors", 3)]);
    assert_eq!((igb.ring, igb.card), (None, Some(3)));
    let i40e = losses("i40e", &[("rx_dropped", 0), ("port.rx_dropped", 5), ("rx_missed_errors", 5)]);
    assert_eq!((i40e.ring, i40e.card), (Some(0), Some(5)));
}

#[test]
fn repeated_names_are_numbered() {
    let counters =
        [("Rx Queue#", 0), ("pkts rx OOB", 3), ("Rx Queue#", 1), ("pkts rx OOB", 4), ("tx timeout count", 2)];
    let counters = distinct(counters.map(|(name, value)| (name.to_owned(), value)));
    assert_eq!(counters["pkts rx OOB [0]"], 3);
    assert_eq!(counters["pkts rx OOB [1]"], 4);
    assert_eq!(counters["tx timeout count"], 2);
    let losses = Driver::of("vmxnet3").unwrap().losses(&counters, &BTreeMap::new());
    assert_eq!(losses.ring, Some(7));
}

proptest::proptest! {
    #[test]
    fn no_name_trips_the_matcher(pattern in "(#|a|é|\\[|\\]| ){0,6}", name in "([0-9]|a|é|\\[|\\]| ){0,9}") {
        let _ = matches(&pattern, &name);
        repetition(&name);
    }
}
