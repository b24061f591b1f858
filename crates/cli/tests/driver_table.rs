//! Tests that a test, a model or the source supports each claim of `docs/drivers.toml`, and that
//! `docs/reference/drivers.md` shows the claims. `EVENKEEL_BLESS=1` writes the page.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fmt::Write;
use std::fs;
use std::path::Path;

use evenkeel_host::counters::Driver;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const BEGIN: &str = "<!-- drivers: begin -->\n";
const END: &str = "<!-- drivers: end -->";

const FEATURES: [(&str, &str); 6] = [
    ("fair", "`fair`"),
    ("xps", "`fair --xps auto`"),
    ("steer", "`steer`"),
    ("check", "`check`"),
    ("tune", "`tune`"),
    ("counters", "counters"),
];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns whether one of the files whose names begin with `prefix` contains a text.
fn mentioned(directory: &str, prefix: &str, text: &str) -> bool {
    fs::read_dir(Path::new(ROOT).join(directory)).unwrap().map(|entry| entry.unwrap().path()).any(|path| {
        let is_one = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
        is_one && fs::read_to_string(&path).is_ok_and(|found| found.contains(text))
    })
}

/// Returns whether a test, a model or the source supports a claim. Panics on an invalid claim.
fn is_supported(driver: &str, feature: &str, way: &str) -> bool {
    let tests = "crates/cli/tests";
    match (way, feature) {
        ("real", _) => driver == "veth" && mentioned(tests, &format!("netns_{feature}"), "veth"),
        ("emulated", "fair" | "xps") => {
            mentioned(tests, "vm_fair", &format!("\"{driver}\""))
                || mentioned(tests, "vm_fair", &format!("/{driver}\""))
        }
        ("emulated", "check") => mentioned(tests, "vm_kernel", &format!("\"{driver}\"")),
        ("emulated", "tune") => mentioned(tests, "vm_tune", &format!("\"{driver}\"")),
        ("hand-written", "check" | "tune") => {
            mentioned(&format!("{tests}/hosts"), "", &format!("\"driver\": \"{driver}\""))
        }
        ("model", "steer") => mentioned("crates/receive/models", "", &format!("\"{driver}\"")),
        ("source", "counters") => Driver::of(driver).is_some(),
        ("source", "xps") => {
            read("crates/fair/src/driver_xps.rs").contains(&format!("(\"{driver}\", Spread::"))
        }
        _ => panic!("{driver}.{feature}: '{way}' is not a way in which this was tested"),
    }
}

fn claims() -> toml::Table {
    read("docs/drivers.toml").parse().unwrap()
}

#[test]
fn each_claim_has_a_test() {
    let mut wrong = Vec::new();
    for (driver, ways) in claims() {
        for (feature, way) in ways.as_table().unwrap() {
            assert!(FEATURES.iter().any(|(name, _)| name == feature), "{driver}.{feature}: unknown feature");
            if !is_supported(&driver, feature, way.as_str().unwrap()) {
                wrong.push(format!("{driver}.{feature} = {way}"));
            }
        }
    }
    assert!(wrong.is_empty(), "no test supports {wrong:?}");
    assert!(!is_supported("e1000e", "steer", "model") && !is_supported("e1000", "check", "hand-written"));
}

#[test]
fn the_page_shows_the_claims() {
    let mut table = String::from("| driver |");
    for (_, title) in FEATURES {
        write!(table, " {title} |").unwrap();
    }
    table += "\n|---|---|---|---|---|---|---|\n";
    for (driver, ways) in claims() {
        let way = |feature: &str| ways.get(feature).and_then(toml::Value::as_str).unwrap_or("-").to_owned();
        let cells: Vec<String> = FEATURES.iter().map(|(feature, _)| way(feature)).collect();
        writeln!(table, "| {driver} | {} |", cells.join(" | ")).unwrap();
    }
    let path = "docs/reference/drivers.md";
    let page = read(path);
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (shown, after) = rest.split_once(END).unwrap();
    if std::env::var_os("EVENKEEL_BLESS").is_some() {
        fs::write(Path::new(ROOT).join(path), format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
    } else {
        assert_eq!(shown, table, "write it with EVENKEEL_BLESS=1");
    }
}
