//! Tests that a rule takes under 30 lines: the example in `docs/how-to/add-a-rule.md`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use evenkeel_model::host::HostFacts;
use evenkeel_placement::{Found, Rule, Severity, check_with, rules};

// The example in docs/how-to/add-a-rule.md, verbatim.
#[rustfmt::skip]
const NEW: Rule =
Rule {
    name: "gc-thresh-low",
    looks_at: "net.ipv4.neigh.default.gc_thresh3",
    fires_when: "when it is below 1,024",
    why: "Packets to new neighbours are dropped while the table is full.",
    fix: "1,024",
    source: "arp(7)",
    needs: &["/proc/sys/net/ipv4/neigh/default/gc_thresh3"],
    check: |view| match view.facts.sysctl_number("net/ipv4/neigh/default/gc_thresh3") {
        Some(most) if most < 1024 => {
            let text = format!("gc_thresh3 is {most}");
            vec![Found::setting(Severity::Medium, "host", text, "new neighbours are unreachable")
                .sysctl("net/ipv4/neigh/default/gc_thresh3", 1024)]
        }
        _ => Vec::new(),
    },
}
;

fn example() -> String {
    let page = include_str!("../../../docs/how-to/add-a-rule.md");
    let (_, rest) = page.split_once("```rust\n").expect("an example");
    rest.split_once("```").expect("its end").0.to_owned()
}

#[test]
fn the_documentation_shows_the_rule_that_is_tested() {
    let example = example();
    assert!(example.lines().count() < 30, "{}", example.lines().count());
    assert!(include_str!("a_new_rule.rs").contains(&example), "{example}");
}

#[test]
fn it_is_checked_beside_the_others() {
    let mut facts = HostFacts::default();
    facts.sysctls.insert("net/ipv4/neigh/default/gc_thresh3".to_owned(), "128".to_owned());
    let found = check_with(&facts, rules().chain([&NEW]));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].rule, found[0].severity), ("gc-thresh-low", Severity::Medium));
    assert_eq!(found[0].remedy.lines(), ["sysctl -w net.ipv4.neigh.default.gc_thresh3=1024"]);
    facts.sysctls.insert("net/ipv4/neigh/default/gc_thresh3".to_owned(), "4096".to_owned());
    assert!(check_with(&facts, rules().chain([&NEW])).is_empty());
}

#[test]
fn every_rule_says_what_it_is() {
    let mut names: Vec<&str> = rules().map(|rule| rule.name).collect();
    assert!(names.len() >= 30, "{}", names.len());
    for rule in rules() {
        for text in [rule.looks_at, rule.fires_when, rule.why, rule.fix, rule.source] {
            assert!(!text.is_empty() && !text.ends_with(' '), "{}: '{text}'", rule.name);
        }
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        assert!(rule.name.bytes().all(is_plain), "{}", rule.name);
        assert!(rule.why.ends_with('.'), "{}", rule.name);
    }
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "two rules of one name");
}

/// A host without any facts gets no finding, and no rule panics.
#[test]
fn what_is_not_known_is_not_judged() {
    assert!(check_with(&HostFacts::default(), rules()).is_empty());
}
