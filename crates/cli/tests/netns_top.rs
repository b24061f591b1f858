//! Tests `evenkeel top` on an interface with traffic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use serde_json::Value;

use support::managed::{Managed, NAME};
use support::{end, evenkeel, without_capabilities};

fn samples(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn traffic_is_shown_recorded_and_replayed() {
    const STREAMS: usize = 3;
    let managed = Managed::new();
    let session = managed.session(&[]);
    let load = managed.load(STREAMS as u32, "20M", 12);
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("samples.jsonl");
    let record = ["--for", "4s", "--record", path.to_str().unwrap()];
    let plain = end(managed.command(&[&["top", NAME], &record[..]].concat()));
    assert_eq!((plain.code, plain.stderr.as_str()), (0, ""), "{plain:?}");
    let last = plain.stdout.trim_end().rsplit("\n\n").next().unwrap();
    let first_line = last.lines().next().unwrap();
    assert!(
        first_line.contains(&format!(" {NAME}: ")) && first_line.contains("Mbit/s out, 3 busy flows"),
        "{last}"
    );
    assert!(last.contains("evenkeel fair (process ") && last.contains("iperf3 "), "{last}");

    // A replay of the recording shows the same samples, and needs no privileges.
    let mut replay = evenkeel(&["top", "--format", "json", "--replay"]);
    replay.arg(&path);
    without_capabilities(&mut replay);
    let replayed = end(replay);
    assert_eq!((replayed.code, replayed.stderr.as_str()), (0, ""), "{replayed:?}");
    assert_eq!(replayed.stdout, std::fs::read_to_string(&path).unwrap());
    let samples = samples(&replayed.stdout);
    assert!(samples.len() >= 4, "{}", samples.len());
    assert_eq!(samples[0]["seconds"], 0.0);
    let interface = &samples.last().unwrap()["interfaces"][0];
    assert_eq!(interface["name"], NAME);
    let to_peer = |flow: &&Value| flow["destination"] == "198.18.0.2:5201" && flow["busy"] == true;
    assert_eq!(interface["flows"].as_array().unwrap().iter().filter(to_peer).count(), STREAMS, "{interface}");
    assert_eq!(interface["management"]["command"], "fair");
    drop(load);
    // Other users cannot read the journal, but see that the interface is managed.
    let own = |user: u32| {
        for file in std::fs::read_dir(managed.state.path()).unwrap() {
            std::os::unix::fs::chown(file.unwrap().path(), Some(user), None).unwrap();
        }
    };
    own(65_534);
    let mut other = managed.command(&["top", NAME, "--for", "1s"]);
    support::without(&mut other, [1, 2]); // CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    let shown = end(other);
    own(0);
    let process = format!("evenkeel session (process {})", interface["management"]["process"]);
    assert!(shown.code == 0 && shown.stdout.contains(&process), "{shown:?}");
    drop(session);
}

#[test]
fn an_interface_that_goes_is_no_panic() {
    let managed = Managed::new();
    let mut top = support::running::Running::start(managed.command(&[
        "top",
        NAME,
        "--interval",
        "200ms",
        "--for",
        "2s",
    ]));
    let _ = top.id();
    managed.shell(&["ip", "link", "del", "dev", NAME]);
    let ended = top.end();
    assert!([0, 2, 4].contains(&ended.code), "{ended:?}");
}
