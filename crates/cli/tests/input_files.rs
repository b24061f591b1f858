//! Tests input files through the binary: pipes and `-`, signals during a wait, and refused files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use support::{Ended, end, ended, evenkeel, file, run};
use tempfile::TempDir;

const SCENARIO: &str = include_str!("../../../scenarios/titan-6-flows.toml");
const FLOWS: &str = "protocol,src,src_port,dst,dst_port\nudp,10.0.0.1,1,10.0.0.2,2\n";

fn fed(arguments: &[&str], text: &str) -> Ended {
    let mut command = evenkeel(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Ignore the error: the command may have refused the arguments and exited.
    drop(child.stdin.take().unwrap().write_all(text.as_bytes()));
    ended(child.wait_with_output().unwrap())
}

fn fifo(place: &TempDir, name: &str) -> String {
    let path = place.path().join(name);
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn every_reader_takes_standard_input() {
    let place = TempDir::new().unwrap();
    let flows = file(place.path(), "flows.csv", FLOWS);
    let flows = flows.to_str().unwrap();
    let out = place.path().join("record");
    let solve = ["search", "solve", "--nic", "i82599", "--queues", "2"];
    let simulate = ["--on", "sim", "--variant", "cmax", "--quick", "--repeat", "1", "--quiet", "--out"];
    let run = [&["run", "-"], &simulate[..], &[out.to_str().unwrap()]].concat();
    for (arguments, text) in [
        (&["scenario", "check", "-"][..], SCENARIO),
        (&["scenario", "check", "/dev/stdin"], SCENARIO),
        (&["scenario", "show", "-"], SCENARIO),
        (&run, SCENARIO),
        (&[&solve[..], &["--policy", "balance", "--flows", "-"]].concat(), FLOWS),
        (&[&solve[..], &["--policy", "-", "--flows", flows]].concat(), "policy = \"balance\"\n"),
        (&["nic", "show", "-"], include_str!("data/own-nic.toml")),
    ] {
        let ended = fed(arguments, text);
        assert_eq!(ended.code, 0, "{arguments:?}: {ended:?}");
    }
    let record = std::fs::read_to_string(out.join("record.json")).unwrap();
    let compared = fed(&["compare", "-", out.to_str().unwrap()], &record);
    assert_eq!(compared.code, 0, "{compared:?}");

    // Standard input can be read only once.
    let twice = fed(&[&solve[..], &["--policy", "-", "--flows", "-"]].concat(), "policy = \"balance\"\n");
    assert!(
        twice.code == 2 && twice.stderr.contains("standard input: an earlier argument already read it"),
        "{twice:?}"
    );
    let twice = fed(&["run", "-", "--qdiscs", "-"], SCENARIO);
    assert!(twice.code == 2 && twice.stderr.contains("cannot both be standard input"), "{twice:?}");
}

#[test]
fn a_closed_standard_input_is_told() {
    for arguments in [
        &["run", "-", "--on", "sim"][..],
        &["scenario", "check", "-"],
        &["compare", "-", "-"],
        &["search", "solve", "--nic", "i82599", "--queues", "4", "--policy", "balance", "--flows", "-"],
    ] {
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$@\" <&-", "sh", env!("CARGO_BIN_EXE_evenkeel")]).args(arguments);
        let ended = end(command);
        let told = ended.stderr.contains("cannot read standard input: it is closed");
        assert!(ended.code == 2 && told, "{arguments:?}: {ended:?}");
    }
}

#[test]
fn process_substitution_is_a_file_like_others() {
    let place = TempDir::new().unwrap();
    let path = file(place.path(), "s.toml", SCENARIO);
    let shell = |script: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", script, "bash", env!("CARGO_BIN_EXE_evenkeel"), path.to_str().unwrap()]);
        command.current_dir(place.path()).stdin(Stdio::null());
        end(command)
    };
    let ended = shell("\"$1\" scenario check <(cat \"$2\")");
    assert_eq!(ended.code, 0, "{ended:?}");
    // The pipe's writer may have exited before the command opens the pipe.
    let ended = shell("\"$1\" scenario check <(true)");
    assert!(ended.code == 2 && ended.stderr.contains("/dev/fd/"), "{ended:?}");
    let ended = shell("\"$1\" run <(cat \"$2\") --on sim --variant cmax --quick --repeat 1 --quiet --out o");
    assert_eq!(ended.code, 0, "{ended:?}");
}

#[test]
fn a_named_pipe_is_read_when_its_writer_comes() {
    let place = TempDir::new().unwrap();
    let pipe = fifo(&place, "s.toml");
    let mut command = evenkeel(&["scenario", "check", &pipe]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    OpenOptions::new().write(true).open(&pipe).unwrap().write_all(SCENARIO.as_bytes()).unwrap();
    let ended = ended(child.wait_with_output().unwrap());
    assert_eq!(ended.code, 0, "{ended:?}");
}

#[test]
fn a_wait_for_a_pipe_without_a_writer_is_reported_once() {
    let place = TempDir::new().unwrap();
    let pipe = fifo(&place, "own.toml");
    let words = format!("waiting for {pipe}: a pipe that no program has opened for writing\n");
    let readers: [&[&str]; 4] = [
        &["scenario", "check", &pipe],
        &["fair", "lo", "--weights", &pipe],
        &["steer", "lo", "--plan", "--policy", &pipe],
        &["tune", "lo", "--keep", &pipe],
    ];
    let start = |arguments: &[&str]| {
        evenkeel(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for arguments in readers {
        let child = start(arguments);
        std::thread::sleep(Duration::from_millis(2500));
        kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
        let ended = ended(child.wait_with_output().unwrap());
        assert_eq!((ended.code, ended.stderr.matches(&words).count()), (130, 1), "{arguments:?}: {ended:?}");
    }
    // The command waits for a slow writer.
    let child = start(readers[0]);
    let mut writer = OpenOptions::new().write(true).open(&pipe).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    writer.write_all(SCENARIO.as_bytes()).unwrap();
    drop(writer);
    let ended = ended(child.wait_with_output().unwrap());
    assert!(ended.code == 0 && !ended.stderr.contains("waiting for"), "{ended:?}");
}

fn wait_for_open(child: &Child, path: &str) {
    let descriptors = format!("/proc/{}/fd", child.id());
    let began = Instant::now();
    let is_open = || {
        let entries = std::fs::read_dir(&descriptors).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.path().read_link().ok()).any(|link| link == Path::new(path))
    };
    while !is_open() {
        assert!(began.elapsed() < Duration::from_secs(20), "{path} is not opened");
        std::thread::sleep(Duration::from_millis(10));
    }
    // The command starts to wait shortly after it opens the file.
    std::thread::sleep(Duration::from_millis(100));
}

#[test]
fn signals_end_the_wait_for_a_pipe() {
    let place = TempDir::new().unwrap();
    let pipe = fifo(&place, "pipe.toml");
    let flows = file(place.path(), "flows.csv", FLOWS);
    let flows = flows.to_str().unwrap();
    let solve = ["search", "solve", "--nic", "i82599", "--queues", "2"];
    let commands: [&[&str]; 13] = [
        &["scenario", "check", &pipe, "-"],
        &["run", &pipe, "--on", "sim"],
        &["run", "tc-latency", "--on", "sim", "--qdiscs", &pipe],
        &["study", "tc", "--on", "sim", "--qdiscs", &pipe],
        &["compare", &pipe, flows],
        &["tune", "lo", "--keep", &pipe],
        &["fair", "lo", "--weights", &pipe],
        &["steer", "lo", "--policy", &pipe],
        &["nic", "show", &pipe],
        &["nic", "show", "i82599", "--config", &pipe],
        &["steer", "--plan", "--policy", "balance", "--model", &pipe, "--flows", flows],
        &[&solve[..], &["--policy", "balance", "--flows", &pipe]].concat(),
        &[&solve[..], &["--policy", &pipe, "--flows", flows]].concat(),
    ];
    for (index, arguments) in commands.into_iter().enumerate() {
        let signal = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP][index % 3];
        let mut command = evenkeel(arguments);
        command.current_dir(place.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        wait_for_open(&child, &pipe);
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        let ended = ended(child.wait_with_output().unwrap());
        assert_eq!(ended.code, 130, "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains("interrupted while waiting for"), "{ended:?}");
    }
    assert!(!place.path().join("evenkeel-records").exists(), "a run that never began leaves nothing");
}

#[test]
fn what_is_no_file_and_what_is_too_large_is_refused_at_once() {
    let place = TempDir::new().unwrap();
    let sparse = place.path().join("sparse.toml");
    File::create(&sparse).unwrap().set_len(3 << 30).unwrap();
    let study = place.path().join("study");
    std::fs::create_dir(&study).unwrap();
    for (path, why) in [
        ("/dev/zero", "a device, not a file"),
        (place.path().to_str().unwrap(), "a directory, not a file"),
        (sparse.to_str().unwrap(), "the file is larger than "),
    ] {
        let solve = ["search", "solve", "--nic", "i82599", "--queues", "2", "--policy", "balance", "--flows"];
        for arguments in [
            &["scenario", "check", path][..],
            &["run", path, "--on", "sim"],
            &["run", "tc-latency", "--on", "sim", "--qdiscs", path],
            &["tune", "lo", "--keep", path],
            &["fair", "lo", "--weights", path],
            &["steer", "lo", "--policy", path],
            &["nic", "show", path],
            &["nic", "show", "i82599", "--config", path],
            &["steer", "--plan", "--policy", "balance", "--model", path, "--generate", "1"],
            &[&solve[..], &[path]].concat(),
        ] {
            let ended = run(arguments);
            assert!(ended.code == 2 && ended.stderr.contains(why), "{arguments:?}: {ended:?}");
        }
        // The path of a record may be a directory.
        if !Path::new(path).is_dir() {
            let ended = run(&["compare", path, path]);
            assert!(ended.code == 2 && ended.stderr.contains(why), "{ended:?}");
        }
    }
    // The commands do not wait for a pipe in a directory that the user named.
    for (name, other) in [("study.json", "repeats.jsonl"), ("repeats.jsonl", "study.json")] {
        drop(std::fs::remove_file(study.join(name)));
        drop(std::fs::remove_file(study.join(other)));
        mkfifo(&study.join(name), Mode::S_IRWXU).unwrap();
        let ended = run(&["study", "tc", "--on", "sim", "--quick", "--out", study.to_str().unwrap()]);
        assert_eq!(ended.code, 2, "{ended:?}");
    }
    let models = place.path().join("models");
    std::fs::create_dir(&models).unwrap();
    mkfifo(&models.join("own.toml"), Mode::S_IRWXU).unwrap();
    let list = ["nic", "list", "--nic-dir", models.to_str().unwrap()];
    let ended = run(&list);
    assert!(ended.code == 2 && ended.stderr.contains("it is a pipe; name a regular file"), "{ended:?}");
    // The command line does not name this file, so the error gives no advice about the command line.
    std::fs::remove_file(models.join("own.toml")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", models.join("own.toml")).unwrap();
    let script = file(place.path(), "p.toml", "policy = \"script\"\nscript-file = \"/dev/zero\"\n");
    let bench = ["search", "bench", "--flows", "1", "--repeat", "1", "--policy", script.to_str().unwrap()];
    let record = place.path().join("record");
    std::fs::create_dir(&record).unwrap();
    std::os::unix::fs::symlink("/dev/zero", record.join("record.json")).unwrap();
    let compare = ["compare", record.to_str().unwrap(), record.to_str().unwrap()];
    for arguments in [&list[..], &bench, &compare] {
        let ended = run(arguments);
        let why = "it is a device; name a regular file";
        assert!(ended.code == 2 && ended.stderr.contains(why), "{arguments:?}: {ended:?}");
    }
}
