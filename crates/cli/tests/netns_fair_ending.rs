//! Tests the end of `evenkeel fair`: signals ignored at the start, a guardian that does not answer, a
//! second signal, a reader that does not read. Also tests `steer`, `tune` and `revert` with a reader
//! that does not read.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::{BufRead, BufReader, PipeWriter, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;

use evenkeel_host::Sysfs;
use support::full_pipe;
use support::leftovers::children;
use support::managed::{AT_WORK, DRIVERS_MAPS, Managed, NAME, assert_same, is_empty, kill_both, wait_for};
use support::running::Running;

/// Time limit for an operation on a busy machine.
const SOON: Duration = Duration::from_secs(10);

fn signal_to(process: u32, signal: Signal) {
    kill(Pid::from_raw(process.try_into().unwrap()), signal).unwrap();
}

#[test]
fn signals_that_were_ignored_at_the_start_do_not_end_it() {
    let managed = Managed::with_maps();
    let mut command = managed.command(&["fair", NAME, "--xps", "off"]);
    // SAFETY: between fork and exec the closure only sets two signals to be ignored, which installs no
    // handler.
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

/// Waits until a process has a handler for SIGTERM: bit n - 1 of `SigCgt` (proc(5)).
fn wait_for_handler(process: u32) {
    wait_for("a handler for SIGTERM", SOON, || {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() >> (Signal::SIGTERM as i32 - 1) & 1 == 1
    });
}

#[test]
fn a_signal_during_the_set_up_stops_it() {
    let managed = Managed::with_maps();
    let mut unchanged = 0;
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        for arguments in [&["fair", NAME, "--xps", "off"][..], &["steer", NAME, "--policy", "balance"]] {
            for delay_ms in [0, 20, 100, 300] {
                let mut running = Running::start(managed.command(arguments));
                wait_for_handler(running.id());
                std::thread::sleep(Duration::from_millis(delay_ms));
                let has_begun = [AT_WORK, "steered now"].iter().any(|begun| running.said().contains(begun));
                running.signal(signal);
                let (process, mut has_changed) = (running.id(), false);
                wait_for("it has ended", SOON, || {
                    has_changed |= managed.maps() != DRIVERS_MAPS;
                    std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap().contains(") Z")
                });
                let ended = running.end();
                let case = format!("{arguments:?}, {signal} after {delay_ms} ms: {ended:?}");
                assert_eq!(managed.maps(), DRIVERS_MAPS, "{case}");
                // The session may have begun between the check and the signal.
                if has_begun || ended.stderr.contains(AT_WORK) || ended.stderr.contains("steered now") {
                    continue;
                }
                assert_eq!(ended.code, 130, "{case}");
                if ended.stderr.contains("no setting was changed") {
                    assert!(!has_changed, "{case}");
                    unchanged += 1;
                }
            }
        }
    }
    assert!(unchanged > 0, "no signal arrived before the first change");
}

/// The guardian starts before the first change, and before the programs are loaded.
#[test]
fn a_signal_between_the_guardian_and_the_session_undoes_the_set_up() {
    let managed = Managed::with_maps();
    let before = managed.seen();
    for (signal, after_change) in [(Signal::SIGTERM, false), (Signal::SIGINT, false), (Signal::SIGTERM, true)]
    {
        let mut running = Running::start(managed.command(&["fair", NAME, "--xps", "off"]));
        let process = running.id();
        wait_for("a guardian", SOON, || !children(process).is_empty());
        if after_change {
            wait_for("a change", SOON, || managed.maps() != DRIVERS_MAPS);
        }
        running.signal(signal);
        let ended = running.end();
        let case = format!("{signal}, {after_change}: {ended:?}");
        assert_same(&managed.seen(), &before, &case);
        // The session may have begun between the check and the signal.
        if after_change && ended.stderr.contains(AT_WORK) {
            continue;
        }
        assert_eq!(ended.code, 130, "{case}");
        let is_unchanged =
            ended.stderr.contains("interrupted before the session began; no setting was changed");
        assert!(!(is_unchanged && after_change), "{case}");
        assert!(is_empty(managed.state.path()), "{case}");
    }
}

/// If the guardian is stopped, the session restores everything and detaches its programs, then waits for
/// the guardian. A second signal ends the wait.
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
    // Wait, so that the next signal does not count as the same request.
    std::thread::sleep(Duration::from_millis(600));
    running.signal(Signal::SIGTERM);
    let worker = running.id();
    // Wait for all threads of the worker: the guardian notices the worker's death only then.
    wait_for("the worker has ended", SOON, || {
        let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
        let threads = std::fs::read_dir(format!("/proc/{worker}/task")).unwrap().count();
        status.contains("State:\tZ") && threads == 1
    });
    // The guardian holds the other end of standard error, which the test reads until end of file.
    signal_to(guardian, Signal::SIGCONT);
    let ended = running.end();
    assert_eq!(ended.code, 130, "{ended:?}");
    wait_for("the guardian has ended, and its journal with it", SOON, || is_empty(managed.state.path()));
    assert_same(&managed.seen(), &before, "afterwards");
}

/// Starts a command whose reader does not read.
fn start_unread(mut command: Command, writer: &PipeWriter) -> Child {
    command.stdout(Stdio::from(writer.try_clone().unwrap())).stderr(Stdio::from(writer.try_clone().unwrap()));
    command.spawn().unwrap()
}

/// Returns the exit code of a command that must end soon.
fn code_of(mut child: Child) -> Option<i32> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if began.elapsed() > SOON {
            child.kill().unwrap();
            panic!("it did not end within {SOON:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_reader_that_does_not_read_delays_no_restoration() {
    let sessions: [&[&str]; 2] =
        [&["fair", NAME, "--xps", "off"], &["steer", NAME, "--policy", "balance", "--backend", "rps"]];
    let receive_map = |managed: &Managed| {
        let read = || Ok(Sysfs::of_namespace()?.read(&format!("class/net/{NAME}/queues/rx-0/rps_cpus"))?);
        managed.host.run(read).unwrap()
    };
    for arguments in sessions {
        for is_foreign in [false, true] {
            let managed = Managed::with_maps();
            let before = (managed.maps(), receive_map(&managed));
            let is_managed = || (managed.maps(), receive_map(&managed)) != before;
            let (_reader, writer) = full_pipe();
            let child = start_unread(managed.command(arguments), &writer);
            wait_for("it manages the interface", SOON, is_managed);
            std::thread::sleep(Duration::from_millis(700));
            if is_foreign {
                managed.shell(&["ip", "link", "set", NAME, "name", "evk9"]);
                // The process restores its settings, then blocks on the full pipe until a signal arrives.
                wait_for("the end", SOON, || is_empty(managed.state.path()));
                managed.shell(&["ip", "link", "set", "evk9", "name", NAME]);
                assert_eq!((managed.maps(), receive_map(&managed)), before, "{arguments:?}");
            } else {
                signal_to(child.id(), Signal::SIGTERM);
                wait_for("the end", SOON, || is_empty(managed.state.path()));
                assert_eq!((managed.maps(), receive_map(&managed)), before, "{arguments:?}");
                // Wait, so that later signals do not count as the same request.
                std::thread::sleep(Duration::from_millis(1000));
            }
            signal_to(child.id(), Signal::SIGTERM);
            assert_eq!(code_of(child), Some(4), "{arguments:?}");
            assert_eq!((managed.maps(), receive_map(&managed)), before, "{arguments:?}");
            assert!(is_empty(managed.state.path()), "{arguments:?}");
        }
    }
}

/// The signal that ends a session does not end the wait for the reader of its result. A further signal
/// ends this wait.
#[test]
fn a_result_is_delivered_after_the_signal_that_ends_the_session() {
    let managed = Managed::with_maps();
    let sessions: [(&[&str], &str); 4] = [
        (&["fair", NAME, "--xps", "off"], "evk0: 2 settings restored"),
        (&["fair", NAME, "--xps", "off", "--format", "json"], "\"put_back\": 2"),
        (&["fair", NAME, "--observe"], "evk0"),
        (&["steer", NAME, "--policy", "balance", "--backend", "rps"], "evk0"),
    ];
    for (arguments, words) in sessions {
        for (signal, code, is_read) in
            [(Signal::SIGTERM, 0, true), (Signal::SIGINT, 130, true), (Signal::SIGINT, 4, false)]
        {
            let case = format!("{arguments:?}, {signal}, {is_read}");
            let (mut reader, writer) = full_pipe();
            let mut command = managed.command(arguments);
            let mut child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
            drop(command);
            let mut errors = BufReader::new(child.stderr.take().unwrap());
            let mut said = String::new();
            while ![AT_WORK, "steered now", "observing"].iter().any(|begun| said.contains(begun)) {
                assert!(errors.read_line(&mut said).unwrap() > 0, "{case}: {said}");
            }
            signal_to(child.id(), signal);
            std::thread::sleep(Duration::from_millis(2500));
            assert_eq!(child.try_wait().unwrap(), None, "{case}");
            assert_eq!(managed.maps(), DRIVERS_MAPS, "{case}");
            let mut result = Vec::new();
            if is_read {
                reader.read_to_end(&mut result).unwrap();
            } else {
                signal_to(child.id(), signal);
            }
            assert_eq!(code_of(child), Some(code), "{case}");
            errors.read_to_string(&mut said).unwrap();
            assert_eq!(String::from_utf8_lossy(&result).contains(words), is_read, "{case}: {said}");
            assert_eq!(said.contains("the result was not written"), !is_read, "{case}: {said}");
        }
    }
}

#[test]
fn a_revert_and_a_tune_change_settings_before_a_reader_reads() {
    let managed = Managed::with_maps();
    let before = managed.seen();
    kill_both(managed.session(&["--xps", "off"]));
    let (_reader, writer) = full_pipe();
    let revert = || start_unread(managed.command(&["revert", NAME]), &writer);
    let child = revert();
    managed.wait_for_maps(&DRIVERS_MAPS, SOON);
    // The process blocks on the full pipe until a signal arrives.
    std::thread::sleep(Duration::from_millis(1500));
    signal_to(child.id(), Signal::SIGTERM);
    assert_eq!(code_of(child), Some(4));
    assert_same(&managed.seen(), &before, "afterwards");
    managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    let sack = || {
        let read = || Ok(std::fs::read_to_string("/proc/sys/net/ipv4/tcp_sack").unwrap());
        managed.host.run(read).unwrap().trim() == "1"
    };
    let mut tune = managed.command(&["tune", NAME, "--apply", "sack-off", "--no-watch"]);
    tune.stdout(Stdio::from(writer.try_clone().unwrap())).stderr(Stdio::piped());
    let mut child = tune.spawn().unwrap();
    let mut errors = child.stderr.take().unwrap();
    wait_for("the change", SOON, sack);
    std::thread::sleep(Duration::from_millis(300));
    signal_to(child.id(), Signal::SIGTERM);
    // The lost result contained the command that undoes the change, so the loss is a failure.
    assert_eq!(code_of(child), Some(4));
    let mut stderr = String::new();
    errors.read_to_string(&mut stderr).unwrap();
    for part in [
        "interrupted while the reader of standard output did not read",
        "the changes made before stay",
        "evenkeel revert evk0`",
    ] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    let child = revert();
    wait_for("the old value", SOON, || !sack());
    std::thread::sleep(Duration::from_millis(1500));
    signal_to(child.id(), Signal::SIGTERM);
    assert_eq!(code_of(child), Some(4));
}

/// A plan or a check that waits for its reader ends at the first signal.
#[test]
fn one_signal_ends_a_plan_that_is_not_read() {
    let managed = Managed::with_maps();
    for arguments in [
        &["fair", NAME, "--xps", "off", "--plan"][..],
        &["tune", NAME],
        &["tune", NAME, "--format", "json"],
        &["steer", NAME, "--policy", "balance", "--plan"],
        &["check", NAME],
    ] {
        for is_all in [false, true] {
            let (_reader, writer) = full_pipe();
            let mut command = managed.command(arguments);
            command.stdout(Stdio::from(writer.try_clone().unwrap()));
            command.stderr(if is_all { Stdio::from(writer.try_clone().unwrap()) } else { Stdio::null() });
            let child = command.spawn().unwrap();
            std::thread::sleep(Duration::from_secs(2));
            signal_to(child.id(), Signal::SIGTERM);
            assert_eq!(code_of(child), Some(130), "{arguments:?} {is_all}");
        }
    }
}
