//! Tests that an interrupted or killed run leaves no namespace, link, BPF program, map, process or file
//! behind, and that the next run works.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use nix::sys::signal::Signal;

use support::leftovers::{Holdings, interfaces};
use support::running::{PROBE, Place, Running, SCENARIO};

/// The activity during which a run holds all of its resources.
const BUSY: &str = "dqa 1/1: measuring";

fn start(place: &Place) -> Running {
    Running::start(place.command(&["--variant", "dqa"]))
}

fn assert_nothing_left(held: &Holdings, place: &Place) {
    held.assert_gone();
    assert_eq!(place.written(), Vec::<String>::new());
}

#[test]
fn ctrl_c_and_sigterm_put_everything_back() {
    let links = interfaces();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let place = Place::new(&format!("{SCENARIO}{PROBE}"));
        let mut running = start(&place);
        running.wait_for_activity(BUSY);
        let held = running.full_holdings();
        // Check that the test detects held resources.
        assert_eq!(held.still_there(), held);
        running.signal(signal);
        let ended = running.end();
        assert_eq!((ended.code, ended.stdout.as_str()), (130, ""), "{signal}: {ended:?}");
        assert!(ended.stderr.contains("interrupted"), "{signal}: {ended:?}");
        assert_nothing_left(&held, &place);
        assert!(!place.path().join("evenkeel-records").exists());
        assert_eq!(interfaces(), links);
    }
}

#[test]
fn kill_9_leaves_nothing_and_the_next_run_works() {
    let links = interfaces();
    // Interrupt the run while it sets up the test bed, while only bulk flows run, and while the probe
    // runs, too.
    for activity in ["setting up", BUSY, "dqa 1/1: measuring latency"] {
        let place = Place::new(&format!("{SCENARIO}{PROBE}"));
        let mut running = start(&place);
        running.wait_for_activity(activity);
        let mut held = running.holdings();
        if activity != "setting up" {
            held.add(&running.full_holdings());
            assert_eq!(held.still_there(), held);
        }
        running.kill();
        assert_nothing_left(&held, &place);
        assert_eq!(interfaces(), links);
    }
    let place = Place::new(SCENARIO);
    let ended = start(&place).end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stdout.contains("dqa"), "{ended:?}");
}

/// Three clients behind one qdisc, one of which sends intermittently, and a probe.
const TENANTS: &str = r#"schema = 1
name = "small"
title = "Clients that share a link"

[link]
rate = "100mbit"
queues = 1

[workload]
kind = "tenants"
line = false
congestion-control = "cubic"
offloads = { segmentation = true, aggregation = true }

[[workload.bulk]]
count = 2
length = "16KiB"

[[workload.bulk]]
count = 1
length = "16KiB"
on = "20ms"
off = "20ms"

[workload.probes]
count = 1
message = "64B"

[[sweep]]
qdiscs = ["htb"]
quick = { qdiscs = ["htb"] }

[measure]
warmup = "200ms"
duration = "5s"
repeats = 1
quick = { warmup = "200ms", duration = "5s", repeats = 1 }
"#;

#[test]
fn tenants_leave_nothing_either() {
    let links = interfaces();
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let place = Place::new(TENANTS);
        let mut running = Running::start(place.command(&[]));
        running.wait_for_activity("1/1: measuring");
        let held = running.holdings();
        assert_eq!(held.still_there(), held);
        // Two clients and two servers are processes. The other clients and servers are threads.
        assert_eq!((held.children.len(), held.namespaces.len()), (4, 2), "{held:?}");
        assert!(!held.programs.is_empty() && !held.maps.is_empty() && !held.links.is_empty(), "{held:?}");
        if signal == Signal::SIGKILL {
            running.kill();
        } else {
            running.signal(signal);
            let ended = running.end();
            assert_eq!((ended.code, ended.stdout.as_str()), (130, ""), "{ended:?}");
        }
        assert_nothing_left(&held, &place);
        assert_eq!(interfaces(), links);
    }
}
