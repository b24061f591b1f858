//! Tests the lines of `evenkeel fair --format jsonl`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use support::end;
use support::managed::{DRIVERS_MAPS, Managed, NAME, is_empty};

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_session_writes_its_start_its_status_and_its_end() {
    let managed = Managed::with_maps();
    let mut session = managed.session(&["--xps", "off", "--format", "jsonl"]);
    let process = session.id();
    std::thread::sleep(Duration::from_millis(2600));
    // Another program's change ends the session. The last line contains the reason.
    managed.shell(&["tc", "qdisc", "replace", "dev", NAME, "root", "handle", "8:", "mq"]);
    let ended = session.end();
    assert_eq!(ended.code, 4, "{ended:?}");
    let lines = lines(&ended.stdout);
    let types: Vec<&str> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert!(types.len() >= 4 && types[0] == "started" && types[types.len() - 1] == "ended", "{types:?}");
    assert!(types[1..types.len() - 1].iter().all(|kind| ["status", "remark"].contains(kind)), "{types:?}");
    assert!(types.iter().filter(|kind| **kind == "status").count() >= 2, "{types:?}");
    assert_eq!((&lines[0]["process"], &lines[0]["interface"]), (&process.into(), &NAME.into()));
    assert_eq!(lines[0]["devices"][0]["queues"], 4);
    let last = &lines[lines.len() - 1];
    assert_eq!((&last["ended"]["by"], &last["mode"]), (&"foreign-change".into(), &"manage".into()));
    let reason = last["ended"]["reason"].as_str().unwrap();
    assert!(reason.contains("replaced the root qdisc"), "{reason}");
    assert_eq!(managed.maps(), DRIVERS_MAPS);
}

/// `fair` and `steer` have the same word for the same end.
#[test]
fn the_end_by_a_signal_has_one_word_in_all_sessions() {
    for (signal, word) in [(Signal::SIGINT, "interrupted"), (Signal::SIGTERM, "terminated")] {
        for format in ["json", "jsonl"] {
            let managed = Managed::new();
            let fair = managed.session(&["--format", format]);
            let steer = managed.steering(&["--policy", "balance", "--format", format]);
            for (mut session, key) in [(fair, "by"), (steer, "end")] {
                session.signal(signal);
                let ended = session.end();
                let last = ended.stdout.lines().last().unwrap_or_default();
                let text = if format == "json" { &ended.stdout } else { last };
                let seen: Value = serde_json::from_str(text).unwrap();
                let by = if format == "json" && key == "end" { &seen["end"] } else { &seen["ended"]["by"] };
                assert_eq!(by, word, "{signal} {format}: {seen}");
            }
        }
    }
}

#[test]
fn an_observation_writes_lines_too() {
    let managed = Managed::new();
    let ended = end(managed.command(&["fair", NAME, "--observe", "--for", "2500ms", "--format", "jsonl"]));
    let lines = lines(&ended.stdout);
    assert!(ended.code == 0 && lines.len() >= 3, "{ended:?}");
    assert_eq!((&lines[0]["type"], &lines[0]["devices"][0]["name"]), (&"status".into(), &NAME.into()));
    assert_eq!(lines[lines.len() - 1]["ended"]["by"], "time");
}

#[test]
fn a_session_ends_with_its_reader() {
    let managed = Managed::with_maps();
    let mut command = managed.command(&["fair", NAME, "--xps", "off", "--format", "jsonl"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("\"started\""), "{first}");
    // The temporary `BufReader` has closed the pipe, so the session has no reader.
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{status:?}");
    assert_eq!(managed.maps(), DRIVERS_MAPS);
    assert!(is_empty(managed.state.path()));
}

#[test]
fn a_reader_that_does_not_read_delays_no_end() {
    let managed = Managed::with_maps();
    let (reader, writer) = support::full_pipe();
    let mut command = managed.command(&["fair", NAME, "--xps", "off", "--format", "jsonl"]);
    let child = command.stdout(writer).stderr(Stdio::null()).spawn().unwrap();
    drop(command);
    managed.wait_for_maps(&["0"; 4], Duration::from_secs(20));
    std::thread::sleep(Duration::from_millis(1500));
    let process = nix::unistd::Pid::from_raw(child.id().cast_signed());
    nix::sys::signal::kill(process, Signal::SIGTERM).unwrap();
    managed.wait_for_maps(&DRIVERS_MAPS, Duration::from_secs(5));
    drop(reader);
    let mut child = child;
    assert!(child.wait().unwrap().code().is_some());
}
