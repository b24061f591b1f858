//! Tests that the metrics named in the reference page, the alerts and the dashboard exist.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use evenkeel_monitor::{SERIES, reference_table};

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn text(path: &str) -> String {
    std::fs::read_to_string(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn names(text: &str) -> BTreeSet<&str> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    text.split(|character| !is_part(character)).filter(|word| word.starts_with("evenkeel_")).collect()
}

#[test]
fn alerts_and_dashboard_use_metrics_that_exist() {
    let known: BTreeSet<String> = SERIES.iter().map(|series| series.full_name()).collect();
    for path in [
        "contrib/alerts/evenkeel.rules.yml",
        "contrib/alerts/evenkeel.rules_test.yml",
        "contrib/dashboards/evenkeel.json",
        "docs/how-to/metrics.md",
    ] {
        let text = text(path);
        let used = names(&text);
        let unknown: Vec<&&str> = used.iter().filter(|name| !known.contains(**name)).collect();
        assert!(!used.is_empty() && unknown.is_empty(), "{path}: {unknown:?}");
    }
    let dashboard = text("contrib/dashboards/evenkeel.json");
    assert!(names(&dashboard).len() > 10, "{dashboard}");
}

/// Compares the table on the page with the series. `EVENKEEL_BLESS=1 cargo test -p evenkeel-monitor --test
/// exported_names` writes the table instead.
#[test]
fn the_reference_page_has_the_table() {
    const PAGE: &str = "docs/reference/metrics-exported.md";
    const BEGIN: &str = "<!-- exported metrics: begin -->\n";
    const END: &str = "<!-- exported metrics: end -->";
    let page = text(PAGE);
    let (before, rest) = page.split_once(BEGIN).expect("the page has a mark");
    let (table, after) = rest.split_once(END).expect("the page has a mark");
    if std::env::var_os("EVENKEEL_BLESS").is_some() {
        let new = format!("{before}{BEGIN}{}{END}{after}", reference_table());
        std::fs::write(file(PAGE), new).unwrap();
        return;
    }
    assert_eq!(table, reference_table(), "EVENKEEL_BLESS=1 writes the table");
}
