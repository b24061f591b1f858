//! Tests that no number in a recorded host makes `evenkeel check` or `tune` panic. For example, a
//! driver may report a counter of -1, which is 2⁶⁴ - 1.
//!
//! `EVENKEEL_NUMBERS` is the count of single numbers to replace on each host (default 50). In addition,
//! the test replaces all numbers of a file at once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "several test binaries share this file, and each uses a part of it")]
#[path = "support/faults.rs"]
mod faults;
#[path = "support/hosts.rs"]
mod hosts;
#[path = "support/parallel.rs"]
mod parallel;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use evenkeel_host::facts::{Tree, read_facts};
use evenkeel_model::host::{HostFacts, InterfaceKind};
use evenkeel_placement::judge;
use evenkeel_placement::loss_path::losses;
use evenkeel_placement::tune::{Keep, TuningPlan};
use evenkeel_synthetic::write_tree;
use faults::host_with_faults;
use parallel::on_all_processors;
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256StarStar;

const NUMBERS: [&str; 5] = ["0", "1", "4294967295", "9223372036854775807", "18446744073709551615"];

fn read(directory: &Path) -> Option<HostFacts> {
    Tree::recorded(directory).and_then(|tree| read_facts(&tree)).ok()
}

/// Computes all results that depend on the facts of a recorded host.
fn judged(directory: &Path, sound: &HostFacts) {
    let Some(facts) = read(directory) else { return };
    let _ = (judge(&facts), losses(sound, &facts), losses(&facts, sound));
    for nic in facts.interfaces.iter().filter(|nic| nic.kind == InterfaceKind::Device).take(1) {
        let _ = TuningPlan::settle(&facts, &nic.name, &Keep::default(), &[]);
    }
}

/// Returns the ranges of decimal numbers in a text. Leaves out numbers in names such as `cpu0`.
fn numbers(text: &str) -> Vec<Range<usize>> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b':' | b'-');
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let length = bytes[at..].iter().take_while(|byte| is_part(**byte)).count();
        if length > 0 && bytes[at..at + length].iter().all(u8::is_ascii_digit) {
            found.push(at..at + length);
        }
        at += length.max(1);
    }
    found
}

fn replaced(text: &str, places: &[Range<usize>], number: &str) -> String {
    let mut text = text.to_owned();
    for place in places.iter().rev() {
        text.replace_range(place.clone(), number);
    }
    text
}

#[test]
fn no_number_trips_a_rule() {
    let singles: usize =
        std::env::var("EVENKEEL_NUMBERS").ok().and_then(|text| text.parse().ok()).unwrap_or(50);
    let numbered: Vec<(usize, &str)> =
        hosts::HOSTS.iter().enumerate().map(|(number, (name, _))| (number, *name)).collect();
    let of_hosts = on_all_processors(&numbered, |&(host_number, name)| {
        let mut random = Xoshiro256StarStar::seed_from_u64(1 + host_number as u64);
        let mut failures = Vec::new();
        let mut tried = 0_usize;
        let directory = tempfile::tempdir().unwrap();
        write_tree(&host_with_faults(name), directory.path()).unwrap();
        let sound = read(directory.path()).unwrap();
        let files = hosts::files_of_each_kind(directory.path());
        let texts: Vec<(PathBuf, String, Vec<Range<usize>>)> = files
            .into_iter()
            .filter_map(|file| {
                let text = std::fs::read_to_string(&file).ok()?;
                let places = numbers(&text);
                (!places.is_empty()).then_some((file, text, places))
            })
            .collect();
        let mut attempt = |(file, text, _): &(PathBuf, String, Vec<Range<usize>>),
                           places: &[Range<usize>],
                           number: &str| {
            tried += 1;
            std::fs::write(file, replaced(text, places, number)).unwrap();
            if catch_unwind(AssertUnwindSafe(|| judged(directory.path(), &sound))).is_err() {
                let file = file.strip_prefix(directory.path()).unwrap().display();
                failures.push(format!("{name}: {number} in {file} at {places:?}"));
            }
            std::fs::write(file, text).unwrap();
        };
        // Each kind of file gets different replacement numbers on different hosts.
        for (at, entry) in texts.iter().enumerate() {
            attempt(entry, &entry.2, NUMBERS[(host_number + at) % NUMBERS.len()]);
        }
        for _ in 0..singles {
            let entry = &texts[random.next_u64() as usize % texts.len()];
            let place = entry.2[random.next_u64() as usize % entry.2.len()].clone();
            attempt(entry, &[place], NUMBERS[random.next_u64() as usize % NUMBERS.len()]);
        }
        (tried, failures)
    });
    let tried: usize = of_hosts.iter().map(|(tried, _)| tried).sum();
    let mut failures: Vec<String> = of_hosts.into_iter().flat_map(|(_, failures)| failures).collect();
    failures.dedup();
    assert!(tried > 500, "{tried}");
    assert!(failures.is_empty(), "{} of {tried}:\n{}", failures.len(), failures.join("\n"));
}

/// Counters of -1 and other impossible numbers, in files that drivers and modules write, do not make a
/// rule panic.
#[test]
fn counters_of_minus_one_are_unreadable() {
    const MOST: &str = "18446744073709551615";
    let counters = |names: &[&str]| {
        let values: Vec<&str> = names.iter().map(|_| MOST).collect();
        format!("{} {}\n", names.join(" "), values.join(" "))
    };
    let pair = |group: &str, names: &[&str]| {
        let values = vec![MOST; names.len()].join(" ");
        format!("{group}: {}\n{group}: {values}\n", names.join(" "))
    };
    let udp = ["InDatagrams", "NoPorts", "InErrors", "OutDatagrams", "RcvbufErrors", "MemErrors"];
    let dropped = ["ListenDrops", "RcvPruned", "OfoPruned", "TCPRcvQDrop", "TCPOFODrop", "TCPZeroWindowDrop"];
    let snmp6 = [counters(&["Udp6InDatagrams"]), counters(&["Udp6RcvbufErrors"])].concat();
    let statistics = |name: &str| format!("sys/class/net/eth0/statistics/{name}");
    let files = [
        (statistics("rx_crc_errors"), format!("{MOST}\n")),
        (statistics("rx_missed_errors"), format!("{MOST}\n")),
        (statistics("rx_packets"), format!("{MOST}\n")),
        ("proc/sys/net/core/netdev_max_backlog".to_owned(), "9223372036854775807\n".to_owned()),
        ("proc/net/softnet_stat".to_owned(), format!("{}\n", ["ffffffffffffffff"; 11].join(" ")).repeat(2)),
        (
            "proc/net/sockstat".to_owned(),
            format!("TCP: inuse {MOST} orphan 0 tw 9223372036854775807 alloc 9 mem 9\n"),
        ),
        ("proc/net/snmp6".to_owned(), snmp6),
        ("proc/net/snmp".to_owned(), pair("Udp", &udp)),
        ("proc/net/netstat".to_owned(), pair("TcpExt", &dropped)),
        (
            "proc/stat".to_owned(),
            format!("cpu0 {MOST} {MOST} 0 0 0 0 {MOST} {MOST} 0 0\ncpu1 1 1 1 1 1 1 {MOST} {MOST} 0 0\n"),
        ),
    ];
    let host = || hosts::HOSTS[5].1();
    let directory = tempfile::tempdir().unwrap();
    write_tree(&host(), directory.path()).unwrap();
    let sound = read(directory.path()).unwrap();
    // Change each file alone, then all files at once.
    for (file, text) in &files {
        let place = directory.path().join(file);
        let before = std::fs::read(&place).ok();
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(&place, text).unwrap();
        judged(directory.path(), &sound);
        match before {
            Some(before) => std::fs::write(&place, before).unwrap(),
            None => std::fs::remove_file(&place).unwrap(),
        }
    }
    for (file, text) in &files {
        std::fs::write(directory.path().join(file), text).unwrap();
    }
    judged(directory.path(), &sound);
    let facts = read(directory.path()).unwrap();
    for (counter, file) in
        [("Snmp6.Udp6RcvbufErrors", "/proc/net/snmp6"), ("TcpExt.TCPOFODrop", "/proc/net/netstat")]
    {
        assert!(!facts.counters.contains_key(counter), "{counter}");
        let named = facts.unknown.iter().any(|gap| gap.source.starts_with(file));
        assert!(named, "{file} is not named: {:?}", facts.unknown);
    }
}
