//! Tests the end of `evenkeel fair`: signals ignored at the start, a guardian that does not answer, a second signal.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::os::unix::process::CommandExt;
use std::time::Duration;

use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;

use support::leftovers::children;
use support::managed::{AT_WORK, DRIVERS_MAPS, Managed, NAME, assert_same, is_empty, wait_for};
use support::running::Running;

/// Time limit for a bounded operation on a busy machine.
const SOON: Duration = Duration::from_secs(10);

fn signal_to(process: u32, signal: Signal) {
    kill(Pid::from_raw(process.try_into().unwrap()), signal).unwrap();
}

#[test]
fn signals_that_were_ignored_at_the_start_do_not_end_it() {
    let managed = Managed::with_maps();
    let mut command = managed.command(&["fair", NAME, "--xps", "off"]);
    // SAFETY: between fork and exec the closure sets two signals to be ignored, which runs no handler.
    unsafe {
        command.pre_exec(|| {
            for ignored in [Signal::SIGHUP, Signal::SIGINT] {
                signal(ignored, SigHandler::SigIgn)?;
            }
            Ok(())
        });
    }
    let mut running = Running::start(command);
    running.wait_for_activity(AT_WORK);
    running.signal(Signal::SIGHUP);
    running.signal(Signal::SIGINT);
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(managed.maps(), ["0"; 4], "it goes on: {}", running.said());
    running.signal(Signal::SIGTERM);
    let ended = running.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(managed.maps(), DRIVERS_MAPS);
}

/// With a stopped guardian, the worker restores everything and detaches its programs before it waits. A second signal
/// ends the wait.
#[test]
fn a_second_signal_ends_it_at_once_and_its_programs_are_gone_before() {
    let managed = Managed::with_maps();
    let before = managed.seen();
    let mut running = managed.session(&["--xps", "off"]);
    let held = running.holdings_but_namespaces();
    assert!(held.links.len() >= 2, "{held:?}");
    let guardian = children(running.id())[0].id;
    signal_to(guardian, Signal::SIGSTOP);
    running.signal(Signal::SIGTERM);
    managed.wait_for_maps(&DRIVERS_MAPS, SOON);
    wait_for("its programs are detached", SOON, || held.still_there().links.is_empty());
    // A later signal does not count as the same request.
    std::thread::sleep(Duration::from_millis(600));
    running.signal(Signal::SIGTERM);
    let worker = running.id();
    wait_for("the worker has ended", SOON, || {
        let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
        status.contains("State:\tZ")
    });
    // The guardian holds the other end of the standard error, which the test reads until it is closed.
    signal_to(guardian, Signal::SIGCONT);
    let ended = running.end();
    assert_eq!(ended.code, 130, "{ended:?}");
    wait_for("the guardian has ended, and its journal with it", SOON, || is_empty(managed.state.path()));
    assert_same(&managed.seen(), &before, "afterwards");
}
