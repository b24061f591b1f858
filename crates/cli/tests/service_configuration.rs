//! Tests `evenkeel service --check` and the systemd unit. Tests that docs/reference/service.md lists
//! exactly the keys of the parser.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use support::{Ended, file, run};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap()
}

fn check(text: &str) -> Ended {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), "evenkeel.toml", text);
    run(&["service", "--check", path.to_str().unwrap()])
}

/// Returns the keys that the parser accepts in a table. `text` has an unknown key, and the error lists the
/// accepted keys.
fn known_keys(text: &str) -> Vec<String> {
    let ended = check(text);
    assert_eq!(ended.code, 2, "{ended:?}");
    let (_, known) = ended.stderr.split_once("known keys: ").unwrap_or_else(|| panic!("{ended:?}"));
    known.trim().replace(" and ", ", ").split(", ").map(str::to_owned).collect()
}

#[test]
fn the_reference_lists_the_keys_of_the_parser() {
    let mut wanted = BTreeSet::new();
    for (prefix, text) in [
        ("", "schema = 1\nunknown = 1"),
        ("service.", "schema = 1\n[service]\nunknown = 1"),
        ("interface.", "schema = 1\n[[interface]]\nmatch.name = \"a\"\nfair = {}\nunknown = 1"),
        ("interface.match.", "schema = 1\n[[interface]]\nmatch.unknown = 1\nfair = {}"),
        (
            "interface.steer.",
            "schema = 1\n[[interface]]\nmatch.name = \"a\"\nsteer.policy = \"balance\"\nsteer.unknown = 1",
        ),
        ("interface.fair.", "schema = 1\n[[interface]]\nmatch.name = \"a\"\nfair.unknown = 1"),
    ] {
        wanted.extend(known_keys(text).into_iter().map(|key| format!("{prefix}{key}")));
    }
    // These keys are tables, which have no separate row.
    for table in ["service", "interface", "interface.match", "interface.fair", "interface.steer"] {
        assert!(wanted.remove(table), "{table}: {wanted:?}");
    }
    let page = read("docs/reference/service.md");
    let (_, section) = page.split_once("## Configuration").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let row = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    let listed: BTreeSet<String> = section.lines().filter_map(row).collect();
    assert_eq!(listed, wanted);
}

#[test]
fn the_examples_of_the_documentation_are_valid() {
    for page in ["docs/reference/service.md", "docs/how-to/service.md"] {
        let text = read(page);
        let examples: Vec<&str> =
            text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert!(!examples.is_empty(), "{page}");
        for example in examples {
            // The packages create this group, so it may not exist here.
            let ended = check(&example.replace("group = \"evenkeel\"", "group = \"root\""));
            assert!(ended.code == 0 && ended.stdout.starts_with("The file is valid"), "{page}: {ended:?}");
        }
    }
}

#[test]
fn the_template_is_valid_with_and_without_its_comments() {
    let text = read("contrib/evenkeel.toml");
    assert_eq!(check(&text).code, 0);
    let rules = text.split_once("#\n# [[interface]]").unwrap().1;
    let active: String =
        rules.lines().map(|line| format!("{}\n", line.trim_start_matches(['#', ' ']))).collect();
    let ended = check(&format!("schema = 1\n[[interface]]\n{active}"));
    assert_eq!(ended.code, 0, "{ended:?}");
}

#[test]
fn what_the_file_names_is_checked_too() {
    let rule = "[[interface]]\nmatch.name = \"a\"\n";
    for (text, problem) in [
        (
            format!("schema = 1\n{rule}fair.weights = \"/no/weights\""),
            ":4:16: interface[0].fair.weights: cannot read /no/weights",
        ),
        (
            format!("schema = 1\n{rule}steer.policy = \"balanse\""),
            ":4:16: interface[0].steer.policy: no policy 'balanse'; did you mean 'balance'?",
        ),
        (
            format!("schema = 1\nservice.group = \"no-such-group\"\n{rule}fair = {{}}"),
            "no group 'no-such-group'",
        ),
        (format!("schema = 1\nservice.socket = \"/no/such/socket\"\n{rule}fair = {{}}"), "no directory /no"),
    ] {
        let ended = check(&text);
        assert!(ended.code == 2 && ended.stderr.contains(problem), "{ended:?}");
    }
}

#[test]
fn a_file_without_rules_says_so() {
    let ended = check("schema = 1\n");
    assert!(ended.code == 0 && ended.stdout.contains("it has no [[interface]]"), "{ended:?}");
}

#[test]
fn names_in_errors_do_not_reach_the_terminal_raw() {
    let ended = check("schema = 1\n[[interface]]\nmatch.name = \"a\"\nfair = { balance = \"\u{1b}[31mx\" }");
    assert!(ended.code == 2 && !ended.stderr.contains('\u{1b}'), "{ended:?}");
    let ended = check("schema = 1\n[[interface]]\nmatch.name = \"a\"\nfair = { segments = \"\u{202e}x\" }");
    assert!(ended.code == 2 && !ended.stderr.contains('\u{202e}'), "{ended:?}");
    assert_eq!(check("").code, 2);
    // A file without rules is valid: the service manages nothing.
    assert_eq!(check("schema = 1\n").code, 0);
}

fn unit() -> String {
    read("contrib/systemd/evenkeel.service")
}

#[test]
fn the_unit_has_the_capabilities_of_fair() {
    let text = unit();
    let bounding = text.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    assert_eq!(bounding, "CAP_NET_ADMIN CAP_BPF CAP_PERFMON");
    let page = read("docs/reference/fair.md");
    let (_, privileges) = page.split_once("## Privileges").unwrap();
    assert!(bounding.split(' ').all(|name| privileges.contains(name)), "{bounding}");
}
