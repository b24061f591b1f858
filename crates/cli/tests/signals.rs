//! Tests signals. A signal that was ignored at the start stays ignored. Other signals end the command
//! with the documented code.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/hosts.rs"]
mod hosts;
mod support;

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;

use evenkeel_synthetic::write_tree;
use support::{evenkeel, full_pipe};

fn start(mut command: Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Waits until a command has installed its handlers: its `SigCgt` (proc(5)) contains this signal.
fn wait_for_handler(child: &mut Child, caught: Signal) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        if u64::from_str_radix(mask.trim(), 16).unwrap() >> (caught as i32 - 1) & 1 == 1 {
            return;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{caught} is not caught: {status}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn wait_for_thread(child: &mut Child, name: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let tasks = format!("/proc/{}/task", child.id());
    let is_named = |task: std::io::Result<std::fs::DirEntry>| {
        let found = task.and_then(|task| std::fs::read_to_string(task.path().join("comm")));
        found.is_ok_and(|found| found.trim() == name)
    };
    while !std::fs::read_dir(&tasks).unwrap().any(is_named) {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "no thread {name}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
}

/// Returns a run that takes more than a minute in the simulator.
fn long_run() -> Command {
    evenkeel(&["run", "titan-48-flows", "--on", "sim", "--variant", "dqa", "--repeat", "1000"])
}

#[test]
fn signals_that_were_ignored_at_the_start_stay_ignored() {
    let mut command = long_run();
    // Ignore the signals as `nohup` and a shell's background jobs do. SAFETY: between fork and exec the
    // closure only sets two signals to be ignored, which installs no handler.
    unsafe {
        command.pre_exec(|| {
            for ignored in [Signal::SIGHUP, Signal::SIGINT] {
                signal(ignored, SigHandler::SigIgn)?;
            }
            Ok(())
        });
    }
    let mut child = start(command);
    wait_for_handler(&mut child, Signal::SIGTERM);
    send(&child, Signal::SIGHUP);
    send(&child, Signal::SIGINT);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(child.try_wait().unwrap(), None);
    send(&child, Signal::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_closed_terminal_ends_with_the_code_of_the_signal() {
    let terminal = nix::pty::openpty(None, None).unwrap();
    let mut command = evenkeel(&["check", "lo", "--watch", "30s"]);
    command.stdout(terminal.slave);
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    drop(command);
    wait_for_handler(&mut child, Signal::SIGHUP);
    // From here on, the command cannot write its summary.
    drop(terminal.master);
    send(&child, Signal::SIGHUP);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn commands_that_hold_nothing_end_with_the_documented_code() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        for arguments in [
            &["search", "bench", "--flows", "500", "--queues", "10", "--repeat", "10000"][..],
            &["steer", "--plan", "--model", "i82599", "--policy", "isolation", "--generate", "400000"],
        ] {
            let mut child = start(evenkeel(arguments));
            wait_for_handler(&mut child, signal);
            // A command that only records the signal would run for many more seconds and end with code 0.
            send(&child, signal);
            assert_eq!(child.wait().unwrap().code(), Some(130), "{signal}: {arguments:?}");
        }
    }
}

/// With hundreds of thousands of flows, the work before the measurement also takes long.
#[test]
fn a_signal_ends_a_large_simulation_before_it_is_under_way() {
    let place = tempfile::tempdir().unwrap();
    let bundled = evenkeel_model::scenario::bundled::bundled();
    let shuffle = bundled.iter().find(|(known, _)| *known == "shuffle-6").unwrap().1;
    // Use one long window: the command would refuse the memory of many short windows.
    let flows = r#"schema = 1
name = "flows"
title = "Flows"
variant-table = "titan"
variants = ["dqa"]
[link]
rate = "10gbit"
queues = 8
[workload]
flows = 100000
[measure.windows]
1s = "1s"
"#;
    for (name, text) in [("shuffle", shuffle.replace("count = 6", "count = 255").as_str()), ("flows", flows)]
    {
        let scenario = support::file(place.path(), &format!("{name}.toml"), text);
        let mut command = evenkeel(&["run", scenario.to_str().unwrap(), "--on", "sim", "--quick"]);
        command.args(["--repeat", "1", "--variant", "dqa"]).current_dir(place.path());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_handler(&mut child, Signal::SIGINT);
        std::thread::sleep(Duration::from_secs(2));
        send(&child, Signal::SIGINT);
        let sent = Instant::now();
        let ended = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(130), "{name}: {stderr}");
        assert!(stderr.contains("setting up"), "{name}: {stderr}");
        // On an idle machine this takes a second, but other processes may use the machine.
        assert!(sent.elapsed() < Duration::from_secs(15), "{name}: {:?}", sent.elapsed());
    }
}

/// An interrupted watch covers only a part of the requested time.
#[test]
fn an_interrupted_watch_says_so() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let mut watch = evenkeel(&["check", "--watch", "20s"]);
        let mut child = watch.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        wait_for_handler(&mut child, signal);
        send(&child, signal);
        let ended = child.wait_with_output().unwrap();
        let text = String::from_utf8(ended.stdout).unwrap();
        assert_eq!(ended.status.code(), Some(130), "{signal}: {text}");
        assert!(text.contains(" interrupted after ") && text.contains(" s of 20 s."), "{signal}: {text}");
    }
    let mut watch = evenkeel(&["check", "--watch", "20s", "--format", "json"]);
    let mut child = watch.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    wait_for_handler(&mut child, Signal::SIGTERM);
    send(&child, Signal::SIGTERM);
    let ended = child.wait_with_output().unwrap();
    let result: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!((ended.status.code(), &result["interrupted"]), (Some(130), &true.into()));
}

/// A command that catches signals waits for its reader, until the first signal.
#[test]
fn one_signal_ends_the_wait_for_a_reader() {
    let place = tempfile::tempdir().unwrap();
    let saved = place.path().join("saved");
    let host = place.path().join("host");
    std::fs::create_dir(&host).unwrap();
    write_tree(&hosts::HOSTS[0].1(), &host).unwrap();
    let from = host.to_str().unwrap();
    for arguments in [
        &["tune", "ens2f0", "--from", from][..],
        &["tune", "ens2f0", "--from", from, "--format", "json"],
        &["check", "--save", saved.to_str().unwrap()],
    ] {
        let (_reader, writer) = full_pipe();
        let mut command = evenkeel(arguments);
        let mut child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        drop(command);
        wait_for_thread(&mut child, "output");
        // Wait longer, because the thread may write a message before the result.
        std::thread::sleep(Duration::from_millis(1500));
        send(&child, Signal::SIGTERM);
        let sent = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if sent.elapsed() > Duration::from_secs(20) {
                child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let ended = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(130), "{arguments:?}: {stderr}");
        assert!(stderr.contains("interrupted"), "{arguments:?}: {stderr}");
    }
}
