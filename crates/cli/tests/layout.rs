//! Tests that the output fits the terminal, begins with the summary, and uses plain words.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/recorded.rs"]
mod recorded;
mod support;

use std::path::Path;

use support::{Ended, end, evenkeel, file, run};

const HOST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hosts/filehost-100g-remote-irqs.host");
const WIDTHS: [usize; 3] = [60, 80, 120];

fn at(width: usize, arguments: &[&str]) -> Ended {
    let mut command = evenkeel(arguments);
    command.env("COLUMNS", width.to_string()).env_remove("NO_COLOR");
    end(command)
}

/// Returns whether a user may copy a line into a shell. This holds for a line that has only a command in
/// backquotes. In a script, it also holds for any line except comments without a command. Elsewhere, it also
/// holds for a line with the indent of commands.
fn is_shell(line: &str, script: bool) -> bool {
    let quoted = line.trim_start().strip_prefix('`').and_then(|command| command.split_once('`'));
    if quoted.is_some_and(|(_, rest)| rest.len() <= 1) {
        return true;
    }
    match script {
        true => line.strip_prefix('#').is_none_or(|comment| {
            let comment = comment.trim_start();
            ["undo", "apply ", "to keep it stopped after a reboot: "]
                .iter()
                .any(|start| comment.starts_with(start))
        }),
        false => ["            ", "      "].iter().any(|indent| {
            line.strip_prefix(indent).is_some_and(|rest| !rest.starts_with(' ') && rest.contains(' '))
        }),
    }
}

fn host_in(directory: &Path) -> String {
    recorded::unpack(&std::fs::read_to_string(HOST).unwrap(), directory).unwrap();
    directory.to_str().unwrap().to_owned()
}

#[test]
fn no_line_is_longer_than_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let host = host_in(directory.path());
    let host = host.as_str();
    let screens: &[&[&str]] = &[
        &["check", "--from", host],
        &["check", "--from", host, "--explain", "irq-remote-node"],
        &["check", "--from", host, "--simulate"],
        &["check", "--watch", "100ms"],
        &["congestion", "list"],
        &["scenario", "list"],
        &["scenario", "show", "titan-12-flows"],
        &["scenario", "show", "tc-latency"],
        &["scenario", "show", "dragonet-echo"],
        &["nic", "list"],
        &["nic", "show", "i82599"],
        &["nic", "show", "sfc9020"],
        &["nic", "probe", "lo"],
        &["search", "bench", "--flows", "10", "--repeat", "1"],
        &["search", "solve", "--nic", "i82599", "--queues", "4", "--policy", "balance", "--generate", "20"],
        &["steer", "eth0", "--policy", "balance", "--plan", "--model", "i82599", "--generate", "20"],
        &["steer", "eth0", "--policy", "balance-rate", "--plan", "--model", "rss-only", "--generate", "90"],
        &["tune", "lo", "--from", host],
    ];
    for arguments in screens {
        for width in WIDTHS {
            let ended = at(width, arguments);
            assert!(ended.code < 2, "{arguments:?}: {ended:?}");
            let script = arguments[0] == "tune";
            for line in ended.stdout.lines() {
                // A planned filter may be longer than the terminal is wide, because users copy it, as
                // they copy a command.
                let fits = line.chars().count() <= width || line.contains(" -> queue ");
                assert!(fits || is_shell(line, script), "{arguments:?} at {width}: {line}\n{}", ended.stdout);
            }
        }
    }
}

#[test]
fn the_answer_comes_first() {
    let directory = tempfile::tempdir().unwrap();
    let host = host_in(directory.path());
    let first = |arguments: &[&str]| run(arguments).stdout.lines().next().unwrap_or_default().to_owned();
    let found = first(&["check", "--from", &host]);
    assert!(found.contains(" found by ") && found.contains("high"), "{found}");
    assert!(first(&["scenario", "list"]).contains("bundled scenarios"));
    assert!(first(&["nic", "show", "i82599"]).starts_with("i82599: "));
    let bench = first(&["search", "bench", "--flows", "10", "--repeat", "1"]);
    assert!(bench.contains("the full search takes") && bench.contains("Dragonet"), "{bench}");
    let solved = first(&[
        "search",
        "solve",
        "--nic",
        "i82599",
        "--queues",
        "4",
        "--policy",
        "balance",
        "--generate",
        "20",
    ]);
    assert!(solved.starts_with("20 flows on 4 queues of i82599: policy balance met"), "{solved}");
}

#[test]
fn output_without_a_terminal_has_no_escapes() {
    let directory = tempfile::tempdir().unwrap();
    let host = host_in(directory.path());
    for arguments in [["check", "--from", host.as_str()].as_slice(), &["nic", "show", "i82599"]] {
        assert!(!run(arguments).stdout.contains('\u{1b}'));
    }
}

#[test]
fn wrong_types_in_files_are_named_in_plain_words() {
    let directory = tempfile::tempdir().unwrap();
    let host = host_in(directory.path());
    file(&directory.path().join("evenkeel"), "about.json", "{\"format\": \"one\"}");
    let record = tempfile::tempdir().unwrap();
    file(record.path(), "record.json", "{\"schema\": \"one\"}");
    let list = file(record.path(), "list.json", "[]");
    let keep = file(record.path(), "keep.toml", "keep = 5\n");
    let (record, list, keep) =
        (record.path().to_str().unwrap(), list.to_str().unwrap(), keep.to_str().unwrap());
    for arguments in [
        ["check", "--from", host.as_str()].as_slice(),
        &["compare", record, record],
        &["compare", list, list],
        &["tune", "lo", "--keep", keep],
    ] {
        let ended = run(arguments);
        assert_eq!(ended.code, 2, "{arguments:?}: {ended:?}");
        for word in ["u32", "struct ", "invalid type", "sequence", "untagged", "variant "] {
            assert!(!ended.stderr.contains(word), "{word}: {arguments:?}: {ended:?}");
        }
    }
}

/// A change of the number of channels resets settings of the queues. The undo restores these settings, and
/// JSON must also contain its commands.
#[test]
fn json_has_every_line_of_the_undo() {
    const HOST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hosts/trading-deep-cstates.host");
    let directory = tempfile::tempdir().unwrap();
    recorded::unpack(&std::fs::read_to_string(HOST).unwrap(), directory.path()).unwrap();
    let arguments = ["tune", "ens3f0np0", "--from", directory.path().to_str().unwrap()];
    let text = at(10_000, &arguments).stdout;
    let lines = |mark: &str| text.lines().filter_map(|line| line.strip_prefix(mark)).collect::<Vec<_>>();
    let json = run(&[&arguments[..], &["--format", "json"]].concat()).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let items = json["items"].as_array().unwrap();
    let of_queues: Vec<&str> = items
        .iter()
        .flat_map(|item| item["undo_of_queues"].as_array().unwrap())
        .map(|line| line.as_str().unwrap())
        .collect();
    assert_eq!(of_queues, lines("# undo, after the channels: "));
    assert!(of_queues.len() >= 3, "{of_queues:?}");
    let undo = items.iter().flat_map(|item| item["changes"].as_array().unwrap());
    assert!(undo.clone().any(|change| change["undo"].as_str().unwrap().starts_with("ethtool -L ")));
}
