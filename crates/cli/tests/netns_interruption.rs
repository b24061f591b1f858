//! A run that is interrupted, politely or not, leaves nothing: no namespace, link, BPF program or
//! map, process or file; and the next run works.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use nix::sys::signal::Signal;

use support::leftovers::{Holdings, interfaces};
use support::running::{PROBE, Place, Running, SCENARIO};

/// Everything that a run holds at its busiest.
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
        // The look itself has to be able to see things.
        assert_eq!(held.still_there(), held);
        running.signal(signal);
        let ended = running.end();
        assert_eq!((ended.code, ended.stdout.as_str()), (130, ""), "{signal}: {ended:?}");
        assert!(ended.stderr.contains("interrupted"), "{signal}: {ended:?}");
        assert_nothing_left(&held, &place);
        assert_eq!(interfaces(), links);
    }
}

#[test]
fn kill_9_leaves_nothing_and_the_next_run_works() {
    let links = interfaces();
    // While the bed is being built, while only bulk flows run, while the probe runs as well.
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
