//! Tests the dictionary against the names in the drivers' sources, `tests/counters/DRIVER.txt`. The
//! lines of such a file are:
//!
//! - `= FILE, VERSION`: the kernel file that contains the names that follow;
//! - a name as `ethtool -S` shows it without leading blanks, `#` for the number of a queue, a priority
//!   or a buffer;
//! - `~ FIELD = NAME + NAME`: the sum that the driver's `ndo_get_stats64` writes to a field of `struct
//!   rtnl_link_stats64`;
//! - `! REASON | NAME, NAME`: counters that do not count, although their names suggest losses, errors
//!   or pauses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use std::collections::BTreeSet;
use std::path::Path;

/// Words in the names of counters of losses, errors or pauses.
const WORDS: [&str; 15] = [
    "drop",
    "discard",
    "miss",
    "no_buf",
    "nobuf",
    "err",
    "fail",
    "overrun",
    "overflow",
    "pause",
    "xoff",
    "timeout",
    "undersize",
    "fragments",
    "jabber",
];

#[derive(Default)]
struct Fixture {
    sources: Vec<String>,
    names: BTreeSet<String>,
    kernel: Vec<(String, Vec<String>)>,
    uncounted: BTreeSet<String>,
}

fn fixture(driver: &Driver) -> Fixture {
    let name = driver.names[0];
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/counters").join(format!("{name}.txt"));
    let mut fixture = Fixture::default();
    let split = |list: &str, separator: &str| list.split(separator).map(str::to_owned).collect::<Vec<_>>();
    for line in std::fs::read_to_string(file).expect(name).lines() {
        if let Some(source) = line.strip_prefix("= ") {
            fixture.sources.push(source.to_owned());
        } else if let Some(sum) = line.strip_prefix("~ ") {
            let (field, names) = sum.split_once(" = ").expect(line);
            fixture.kernel.push((field.to_owned(), split(names, " + ")));
        } else if let Some(reason) = line.strip_prefix("! ") {
            let (reason, names) = reason.split_once(" | ").expect(line);
            assert!(!reason.is_empty(), "{name}: {line}");
            for uncounted in split(names, ", ") {
                assert!(fixture.uncounted.insert(uncounted), "{name}: {line}");
            }
        } else {
            assert!(fixture.names.insert(line.to_owned()), "{name}: {line} twice");
        }
    }
    fixture
}

/// Returns the names that match a pattern on an interface with two queues.
fn names(pattern: &str) -> Vec<String> {
    let queues = if pattern.contains('#') { 2 } else { 1 };
    (0..queues).map(|number: u32| pattern.replace('#', &number.to_string())).collect()
}

fn counters(list: &[(&str, u64)]) -> BTreeMap<String, u64> {
    list.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

#[test]
fn every_row_has_the_names_of_its_source() {
    for driver in Driver::all() {
        let (name, fixture) = (driver.names[0], fixture(driver));
        assert!(!fixture.sources.is_empty(), "{name}");
        for source in &fixture.sources {
            assert!(source.starts_with("drivers/net/") && source.contains(".c, "), "{name}: {source}");
        }
        let patterns: Vec<(&str, Meaning)> = driver.counters().collect();
        for (pattern, meaning) in &patterns {
            assert!(fixture.names.contains(*pattern), "{name} has no counter {pattern}");
            assert_eq!(patterns.iter().filter(|(other, _)| other == pattern).count(), 1, "{name}: {pattern}");
            if let Meaning::Overlaps(other) = meaning {
                let other = patterns.iter().find(|(pattern, _)| pattern == other);
                assert!(matches!(other, Some((_, Meaning::Wire))), "{name}: {pattern} overlaps nothing");
            }
            if let Meaning::Part(whole) = meaning {
                let whole = patterns.iter().find(|(pattern, _)| pattern == whole);
                let is_whole =
                    whole.is_some_and(|(_, meaning)| !matches!(meaning, Meaning::Part(_) | Meaning::Xdp(_)));
                assert!(is_whole, "{name}: {pattern} is part of nothing");
            }
        }
    }
    let files = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/counters")).unwrap();
    assert_eq!((Driver::all().count(), files.count()), (29, 29));
}

#[test]
fn every_loss_of_a_source_counts_or_says_why_not() {
    for driver in Driver::all() {
        let (name, fixture) = (driver.names[0], fixture(driver));
        let is_counted = |pattern: &str| driver.meaning(&names(pattern)[0]).is_some();
        for counter in fixture.names.iter().filter(|name| WORDS.iter().any(|word| name.contains(word))) {
            assert_ne!(is_counted(counter), fixture.uncounted.contains(counter), "{name}: {counter}");
        }
        for counter in &fixture.uncounted {
            assert!(fixture.names.contains(counter) && !is_counted(counter), "{name}: {counter}");
        }
        for counter in fixture.kernel.iter().flat_map(|(_, summed)| summed) {
            assert!(fixture.names.contains(counter) && is_counted(counter), "{name}: {counter}");
        }
    }
}

#[test]
fn an_implied_counter_is_a_loss_of_the_source() {
    for implied::Implied { drivers, shown, also } in implied::IMPLIED {
        for name in *drivers {
            let driver = Driver::of(name).expect(name);
            let fixture = fixture(driver);
            for counter in shown.iter().chain(also.iter().copied().flatten()) {
                assert!(fixture.names.contains(*counter), "{name}: {counter}");
            }
            for counter in also.iter().copied().flatten() {
                use Meaning::{Allowance, Nic, Ring};
                let (meaning, _) = driver.meaning(&names(counter)[0]).expect(counter);
                assert!(matches!(meaning, Ring | Nic | Allowance), "{name}: {counter}");
            }
        }
    }
}

#[test]
fn a_loss_counter_is_lost_if_the_driver_reports_others_with_it() {
    let lost = |driver: &str, shown: &[&str]| -> Vec<&str> {
        let statistics = shown.iter().map(|name| ((*name).to_owned(), 0)).collect();
        let lost = Driver::of(driver).unwrap().lost_counters(driver, &statistics);
        lost.into_iter().map(|(name, _)| name).collect()
    };
    let i40e = ["rx_dropped", "port.rx_crc_errors"];
    assert_eq!(lost("i40e", &i40e), ["port.rx_discards"]);
    assert_eq!(lost("i40e", &[i40e[0], i40e[1], "port.rx_dropped"]), [""; 0]);
    assert_eq!(lost("i40e", &["rx_dropped", "port.rx_discards"]), ["rx_missed_errors"]);
    let mlx5 = ["rx_packets", "rx_oversize_pkts_sw_drop", "rx_discards_phy"];
    assert_eq!(lost("mlx5_core", &mlx5), ["rx_out_of_buffer"]);
    assert_eq!(
        Driver::of("mlx5_core").unwrap().lacks_ring_losses(&counters(&[("rx_discards_phy", 0)])),
        Some("rx_out_of_buffer")
    );
    assert_eq!(lost("ena", &["bw_out_allowance_exceeded"]).len(), 4);
    assert_eq!(lost("vmxnet3", &["pkts rx err [0]"]), ["pkts rx OOB"]);
    // Virtual functions and old kernels lack whole tables.
    for (driver, shown) in
        [("ixgbevf", "rx_crc_errors"), ("mlx5e_rep", "rx_crc_errors_phy"), ("ena", "reset_fail")]
    {
        assert_eq!(lost(driver, &[shown]), [""; 0], "{driver}");
    }
}

/// Gives each counter a unique value. Each total gets the sum of its parts, and each kernel field the
/// sum that the driver writes.
#[test]
fn what_the_kernel_repeats_counts_once() {
    let mut fields = 0;
    for driver in Driver::all() {
        let (name, fixture) = (driver.names[0], fixture(driver));
        let mut values: BTreeMap<String, u64> =
            fixture.names.iter().flat_map(|pattern| names(pattern)).zip((1_000..).step_by(7)).collect();
        let wholes: Vec<(String, u64)> = values
            .iter()
            .filter_map(|(part, value)| match driver.meaning(part)?.0 {
                Meaning::Part(whole) => Some((names(whole).swap_remove(0), *value)),
                _ => None,
            })
            .collect();
        for (whole, value) in wholes {
            *values.get_mut(&whole).unwrap() += value;
        }
        let sum = |summed: &Vec<String>| {
            summed.iter().flat_map(|pattern| names(pattern)).map(|name| values[&name]).sum::<u64>()
        };
        let kernel: BTreeMap<String, u64> =
            fixture.kernel.iter().map(|(field, summed)| (field.clone(), sum(summed))).collect();
        fields += kernel.len();
        let alone = crate::facts::losses(Some(name), &values, &BTreeMap::new());
        let repeated = crate::facts::losses(Some(name), &values, &kernel);
        assert_eq!(LossCounters { other: None, ..repeated }, alone, "{name}");
    }
    assert!(fields > 70, "{fields}");
}

#[test]
fn a_part_counts_where_the_whole_is_missing() {
    let losses = |driver: &str, list| Driver::of(driver).unwrap().losses(&counters(list), &BTreeMap::new());
    // The list lacks the counters of the rings.
    let bnxt = losses("bnxt_en", &[("rx_total_discard_pkts", 9), ("rx_stat_discard", 12)]);
    assert_eq!((bnxt.ring, bnxt.nic), (Some(9), Some(3)));
    let bnxt =
        losses("bnxt_en", &[("[0]: rx_discards", 9), ("rx_total_ring_discards", 9), ("rx_stat_discard", 9)]);
    assert_eq!((bnxt.ring, bnxt.nic), (Some(9), Some(0)));
    let bnxt = losses("bnxt_en", &[("tx_total_ring_discards", 9), ("tx_stat_discard", 9)]);
    assert_eq!(bnxt.transmit, Some(9));
    let igb = losses("igb", &[("rx_no_buffer_count", 70_000), ("rx_missed_errors", 3)]);
    assert_eq!((igb.ring, igb.nic), (None, Some(3)));
    // The counters before and after commit 5337d2949733.
    let i40e = losses("i40e", &[("rx_dropped", 2), ("port.rx_dropped", 5)]);
    assert_eq!((i40e.ring, i40e.nic), (Some(2), Some(5)));
    let i40e = losses("i40e", &[("rx_dropped", 7), ("rx_missed_errors", 2), ("port.rx_discards", 5)]);
    assert_eq!((i40e.ring, i40e.nic), (Some(2), Some(5)));
    let queues = losses("virtio_net", &[("rx0_drops", 3), ("rx1_drops", 4), ("rx_drops", 7)]);
    assert_eq!(queues.driver, Some(7));
}

/// Symbol errors, fragments and jabbers also fail the FCS check.
#[test]
fn overlapping_counters_of_the_wire_count_once() {
    let wire = |driver: &str, list: &[(&str, u64)]| {
        Driver::of(driver).unwrap().losses(&counters(list), &BTreeMap::new()).wire
    };
    let crc = ("rx_crc_errors_phy", 50);
    assert_eq!(wire("mlx5_core", &[("rx_crc_errors_phy", 0), ("rx_symbol_err_phy", 60)]), Some(60));
    assert_eq!(wire("mlx5_core", &[crc, ("rx_symbol_err_phy", 60)]), Some(60));
    assert_eq!(wire("mlx5_core", &[crc, ("rx_symbol_err_phy", 40), ("rx_jabbers_phy", 45)]), Some(50));
    assert_eq!(wire("mlx5_core", &[crc, ("rx_fragments_phy", 70), ("rx_symbol_err_phy", 60)]), Some(70));
    assert_eq!(wire("mlx5_core", &[crc, ("rx_undersize_pkts_phy", 7)]), Some(57));
    assert_eq!(wire("i40e", &[("port.rx_crc_errors", 0), ("port.rx_fragments", 9)]), Some(9));
    assert_eq!(wire("tg3", &[("rx_fcs_errors", 3), ("rx_jabbers", 9)]), Some(9));
}

/// An XDP program's drops are not losses, although `ena_get_stats64` adds them to the device's drops.
#[test]
fn what_a_program_drops_is_no_loss() {
    let counted = counters(&[("queue_0_rx_xdp_drop", 900), ("queue_1_rx_xdp_drop", 90)]);
    let losses = Driver::of("ena").unwrap().losses(&counted, &counters(&[("rx_dropped", 995)]));
    assert_eq!((losses.ring, losses.driver), (Some(5), None));
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
