//! Tests `evenkeel calibrate` on this kernel: the profile that it writes, and that an interrupted or killed
//! run leaves no namespace, link, process or file.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use nix::sys::signal::Signal;
use serde_json::Value;

use support::leftovers::{Holdings, interfaces};
use support::running::Running;
use support::{evenkeel, names, run};

/// The activity during which a calibration holds its namespaces.
const BUSY: &str = "measuring";

fn start(place: &std::path::Path) -> Running {
    let mut command = evenkeel(&["calibrate", "--for", "60s", "-o", "mine.toml"]);
    command.current_dir(place);
    Running::start(command)
}

/// Waits until the calibration has its namespaces.
fn holdings(running: &mut Running) -> Holdings {
    running.wait_for_activity(BUSY);
    let held = running.holdings();
    assert!(held.namespaces.len() >= 2, "{held:?}");
    assert_eq!(held.still_there(), held);
    held
}

#[test]
fn packets_are_measured_and_the_profile_can_have_them() {
    let links = interfaces();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("mine.toml");
    let ended =
        run(&["calibrate", "--for", "6s", "--packets", "--format", "json", "-o", path.to_str().unwrap()]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!((interfaces(), names(place.path())), (links, vec!["mine.toml".to_owned()]));
    let found: Value = serde_json::from_str(&ended.stdout).unwrap();
    let median = |name: &str| {
        let all = found["measurements"].as_array().unwrap();
        let quantity =
            all.iter().find(|quantity| quantity["name"] == name).unwrap_or_else(|| panic!("{found:#}"));
        let number = |key: &str| quantity[key].as_f64().unwrap();
        assert!(number("min") <= number("median") && number("median") <= number("max"), "{quantity}");
        number("median")
    };
    let datagram = median("UDP packet with 64 bytes, sent and received");
    // A system call takes more than 20 ns.
    assert!(datagram > 20.0 && median("TCP write and read of 64 KiB, TSO") > 20.0, "{found:#}");
    assert!(median("packets that GRO merges into a buffer") >= 0.9, "{found:#}");
    let measured = |key: &str| {
        let figures = found["figures"].as_array().unwrap();
        let figure = figures.iter().find(|figure| figure["key"] == key).unwrap();
        assert!(figure["built_in"]["kit-2014"].is_number(), "{figure}");
        figure["measured"].as_bool().unwrap()
    };
    // The difference of two times may be unusable; then the profile keeps the costs of its base, and says so.
    const PACKET: &str = "TCP packet of 1500 bytes, split by GSO, no GRO";
    let is_usable = found["measurements"].to_string().contains(PACKET)
        && !found["not_measured"].to_string().contains(PACKET);
    assert_eq!(measured("cycles.buffer.total"), is_usable, "{found:#}");
    assert_eq!(measured("cycles.read-buffer.total"), is_usable, "{found:#}");
    assert!(!measured("cycles.packet.total") && !measured("cycles.interrupt.total"), "{found:#}");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("[cycles.interrupt] # not measured: "), "{text}");
}

#[test]
fn ctrl_c_and_sigterm_leave_nothing() {
    let links = interfaces();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let place = tempfile::tempdir().unwrap();
        let mut running = start(place.path());
        let held = holdings(&mut running);
        running.signal(signal);
        let ended = running.end();
        assert_eq!((ended.code, ended.stdout.as_str()), (130, ""), "{signal}: {ended:?}");
        assert!(ended.stderr.contains("interrupted; nothing was changed"), "{signal}: {ended:?}");
        held.assert_gone();
        assert_eq!((interfaces(), names(place.path())), (links.clone(), Vec::new()));
    }
}

#[test]
fn kill_9_leaves_nothing_in_the_kernel() {
    let links = interfaces();
    let place = tempfile::tempdir().unwrap();
    let mut running = start(place.path());
    let held = holdings(&mut running);
    running.kill();
    held.assert_gone();
    assert_eq!(interfaces(), links);
    // The next write in the directory removes the unfinished file.
    let ended = run(&["calibrate", "--for", "2s", "-o", place.path().join("next.toml").to_str().unwrap()]);
    assert_eq!((ended.code, names(place.path())), (0, vec!["next.toml".to_owned()]), "{ended:?}");
}
