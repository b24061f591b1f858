//! Tests process limits and unusual environments: the binary does not panic, and its result is valid.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};

use support::{Ended, copy_binary, end, evenkeel, file, run};

const SCENARIO: &str = r#"
schema = 1
name = "brief"
title = "Two flows, briefly"
variant-table = "titan"
variants = ["cmax", "dqa"]
[link]
rate = "1gbit"
mtu = "1500B"
queues = 2
[hosts]
sending-cores = 2
[workload]
flows = 2
congestion-control = "cubic"
[measure]
warmup = "10ms"
long-windows = 2
repeats = 2
[measure.windows]
1ms = "1ms"
20ms = "20ms"
"#;

/// Creates a directory that every user can enter. TMPDIR may be below a directory that other users
/// cannot enter.
fn open_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
    directory
}

/// Runs the binary as a user with a limit of one thread. The limit does not apply to root, so a process
/// of root changes its user.
fn run_with_one_thread(directory: &Path, arguments: &[&str]) -> Ended {
    use nix::sys::resource::{Resource, setrlimit};
    let binary = directory.join("evenkeel");
    copy_binary(&binary);
    let mut command = Command::new(&binary);
    command.args(arguments).current_dir(directory).stdin(Stdio::null());
    if nix::unistd::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    // SAFETY: the closure makes one system call.
    unsafe {
        command.pre_exec(|| setrlimit(Resource::RLIMIT_NPROC, 1, 1).map_err(Into::into));
    }
    end(command)
}

#[test]
fn a_run_that_may_start_no_thread_runs_on_its_own() {
    let directory = open_directory();
    let scenario = file(directory.path(), "brief.toml", SCENARIO);
    let arguments = ["run", scenario.to_str().unwrap(), "--on", "sim", "--format", "json", "--out"];
    let alone = directory.path().join("alone");
    let ended = run_with_one_thread(directory.path(), &[&arguments[..], &[alone.to_str().unwrap()]].concat());
    assert_eq!(ended.code, 0, "{ended:?}");
    let threads = directory.path().join("threads");
    let other = run(&[&arguments[..], &[threads.to_str().unwrap()]].concat());
    let metrics = |ended: &Ended| {
        let json: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        json["variants"].as_array().unwrap().iter().map(|one| one["metrics"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(metrics(&ended), metrics(&other));
}

#[test]
fn an_empty_directory_of_models_counts_as_unset() {
    let mut command = evenkeel(&["nic", "list"]);
    command.env("EVENKEEL_NIC_DIR", "");
    assert_eq!(end(command).stdout, run(&["nic", "list"]).stdout);
    let mut command = evenkeel(&["nic", "list"]);
    command.env("EVENKEEL_NIC_DIR", "/nonexistent/models");
    let ended = end(command);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(
        ended.stderr.contains("EVENKEEL_NIC_DIR: cannot read the directory /nonexistent/models"),
        "{ended:?}"
    );
}

#[test]
fn a_width_that_no_table_fits_is_not_taken_for_the_truth() {
    let widest = |columns: &str| {
        let directory = tempfile::tempdir().unwrap();
        let scenario = file(directory.path(), "brief.toml", SCENARIO);
        let mut command = evenkeel(&["run", scenario.to_str().unwrap(), "--on", "sim", "--quiet"]);
        command.env("COLUMNS", columns).current_dir(directory.path());
        let ended = end(command);
        assert_eq!(ended.code, 0, "{ended:?}");
        ended.stdout.lines().map(|line| line.chars().count()).max().unwrap()
    };
    for (columns, least) in [("0", 60), ("-3", 60), ("wide", 60), ("3", 30)] {
        assert!(widest(columns) >= least, "COLUMNS={columns}: {}", widest(columns));
    }
}

#[test]
fn progress_of_many_repeats_does_not_fill_a_log() {
    let directory = tempfile::tempdir().unwrap();
    let scenario = file(directory.path(), "brief.toml", SCENARIO);
    let mut command = evenkeel(&["run", scenario.to_str().unwrap(), "--on", "sim", "--repeat", "40"]);
    command.current_dir(directory.path());
    let ended = end(command);
    let lines = ended.stderr.lines().filter(|line| line.contains(" %  ")).count();
    assert!((5..=23).contains(&lines), "{lines} lines: {}", ended.stderr);
}

#[test]
fn a_run_that_measured_nothing_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let many = SCENARIO.replace("flows = 2", "flows = 20000").replace("20ms", "2ms");
    let scenario = file(directory.path(), "many.toml", many.replace("10ms", "1ms"));
    let mut command =
        evenkeel(&["run", scenario.to_str().unwrap(), "--on", "sim", "--variant", "cmax", "--repeat", "1"]);
    command.current_dir(directory.path());
    let ended = end(command);
    for text in [&ended.stdout, &ended.stderr] {
        assert!(text.contains("nothing was measured"), "{ended:?}");
    }
    assert!(!ended.stdout.contains("fair") && !ended.stdout.contains("NFM"), "{}", ended.stdout);
}

/// Requests and probes count as measured, even if no flow delivers data during the measurement.
#[test]
fn requests_and_probes_are_measured_though_no_flow_delivers() {
    let directory = tempfile::tempdir().unwrap();
    let quick = |arguments: &[&str]| {
        let mut command =
            evenkeel(&[&["run"], arguments, &["--on", "sim", "--quick", "--repeat", "1"]].concat());
        command.current_dir(directory.path());
        end(command)
    };
    let fetches = quick(&["memcached-hol", "--variant", "cmax", "--rate", "400gbit"]);
    assert!(fetches.code == 0 && fetches.stdout.contains("completion"), "{fetches:?}");
    assert!(!fetches.stdout.contains("nothing was measured"), "{fetches:?}");
    let probes = quick(&["tc-latency", "--variant", "pfifo probes=1 message=1KiB"]);
    assert!(probes.code == 0 && probes.stdout.contains("transactions"), "{probes:?}");
    assert!(!probes.stdout.contains("throughput"), "{probes:?}");
    assert!(!probes.stdout.contains("othing was measured"), "{probes:?}");
    let setup =
        "schema = 1\n[setup.pfifo]\nsummary = \"x\"\nsteps = [\"qdisc root handle 1: pfifo limit 0\"]\n";
    let setups = file(directory.path(), "setups.toml", setup);
    let point = "pfifo probes=1 message=1KiB";
    let closed = quick(&["tc-latency", "--variant", point, "--qdiscs", setups.to_str().unwrap()]);
    for words in [&format!("Nothing was measured with {point}: see the notes."), "no request was answered"] {
        assert!(closed.stdout.contains(words), "{closed:?}");
    }
}

#[test]
fn a_simulation_of_many_hosts_announces_its_memory() {
    let directory = tempfile::tempdir().unwrap();
    let shuffle = evenkeel_model::scenario::bundled::bundled();
    let (_, text) = shuffle.iter().find(|(name, _)| *name == "shuffle-6").unwrap();
    let scenario = file(directory.path(), "large.toml", text.replace("count = 6", "count = 320"));
    let arguments = ["run", scenario.to_str().unwrap(), "--on", "sim", "--variant", "cmax", "--repeat", "2"];
    let mut command = evenkeel(&arguments);
    let mut child = command.current_dir(directory.path()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut stderr, &mut first).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(first.contains("1 at a time, need up to about 388 MB of memory"), "{first}");
    let ended = run(&[&arguments[..6], &["--repeat", "100"]].concat());
    let expected = " of memory, but at most 500 MB are allowed; simulate fewer flows or hosts";
    assert!(ended.code == 2 && ended.stderr.contains(expected), "{ended:?}");
}

/// Short windows in a long repeat need a large amount of memory for the bins of each flow.
#[test]
fn windows_that_fill_the_memory_are_refused_at_their_place() {
    let directory = tempfile::tempdir().unwrap();
    let bundled = evenkeel_model::scenario::bundled::bundled();
    let (_, text) = bundled.iter().find(|(name, _)| *name == "titan-192-flows").unwrap();
    let windows = "[measure.windows]\n1ms = \"1ms\"";
    assert!(text.contains(windows));
    let (text, _) = text.split_once("[paper").unwrap();
    let short = text.replace(windows, "[measure.windows]\n10us = \"10us\"");
    let scenario = file(directory.path(), "short.toml", short);
    let ended =
        run(&["run", scenario.to_str().unwrap(), "--on", "sim", "--variant", "cmax", "--repeat", "1"]);
    let place = format!("{}:", scenario.display());
    assert!(ended.code == 2 && ended.stderr.contains(&place), "{ended:?}");
    assert!(ended.stderr.contains(": measure.windows: 192 flows in "), "{ended:?}");
}

/// Runs the binary with an address space limit (RLIMIT_AS) in MB.
fn run_within(megabytes: u64, arguments: &[&str], directory: &Path) -> Ended {
    end(within(megabytes, arguments, directory))
}

fn within(megabytes: u64, arguments: &[&str], directory: &Path) -> Command {
    use nix::sys::resource::{Resource, setrlimit};
    let mut command = evenkeel(arguments);
    command.current_dir(directory);
    let bytes = megabytes * 1_000_000;
    // SAFETY: the closure makes one system call.
    unsafe {
        command.pre_exec(move || setrlimit(Resource::RLIMIT_AS, bytes, bytes).map_err(Into::into));
    }
    command
}

#[test]
fn work_that_does_not_fit_into_the_memory_is_refused_before_it_begins() {
    let directory = tempfile::tempdir().unwrap();
    let many = SCENARIO.replace("flows = 2", "flows = 100000");
    let scenario = file(directory.path(), "many.toml", many);
    let solve = ["search", "solve", "--nic", "i82599", "--queues", "4", "--policy", "balance", "--generate"];
    let plan = ["steer", "--plan", "--model", "i82599", "--queues", "4", "--policy", "balance", "--generate"];
    let quiet = ["run", scenario.to_str().unwrap(), "--on", "sim", "--quiet"];
    for (arguments, work) in [
        (&[&solve[..], &["900000"]].concat()[..], "a search for 900,000 flows"),
        (&["search", "bench", "--flows", "900000"], "a search for 900,000 flows"),
        (&[&plan[..], &["900000"]].concat()[..], "a search for 900,000 flows"),
        (&quiet, "this run"),
    ] {
        let ended = run_within(300, arguments, directory.path());
        assert_eq!(ended.code, 3, "{ended:?}");
        assert!(ended.stderr.contains(&format!("{work} needs up to about ")), "{ended:?}");
    }
    // The memory does not grow with the product of flows and queues.
    let of_queues =
        ["search", "solve", "--nic", "xdp-cpumap", "--queues", "128", "--policy", "balance", "--generate"];
    for arguments in [&[&solve[..], &["9000"]].concat(), &[&of_queues[..], &["300000"]].concat()] {
        let ended = run_within(300, arguments, directory.path());
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    for arguments in [&["search", "bench", "--flows", "900000"][..], &[&plan[..], &["900000"]].concat()] {
        let ended = run(arguments);
        assert!(
            ended.code == 2 && ended.stderr.contains(" MB of memory, but at most 500 MB are allowed"),
            "{ended:?}"
        );
    }
    let ended = run(&[&solve[..], &["900001"]].concat());
    assert!(ended.code == 2 && ended.stderr.contains("from 1 to 900000"), "{ended:?}");
}

/// Runs a command with a resource limit, soft and hard.
fn limited(arguments: &[&str], resource: nix::sys::resource::Resource, limit: u64) -> Ended {
    let mut command = evenkeel(arguments);
    // SAFETY: the closure makes one system call.
    unsafe {
        command.pre_exec(move || nix::sys::resource::setrlimit(resource, limit, limit).map_err(Into::into));
    }
    end(command)
}

/// Parsers of TOML, JSON and scripts recurse. A full stack would abort the process.
#[test]
fn a_small_stack_is_enlarged_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let nested = format!("a = {}{}\n", "[".repeat(79), "]".repeat(79));
    let nested = file(directory.path(), "nested.toml", &nested);
    let ended = limited(
        &["scenario", "check", nested.to_str().unwrap()],
        nix::sys::resource::Resource::RLIMIT_STACK,
        64 << 10,
    );
    // With CAP_SYS_RESOURCE, the process can raise the limit.
    match ended.code {
        2 => assert!(ended.stderr.contains("unknown key"), "{ended:?}"),
        3 => assert!(ended.stderr.contains("limited to 64 KiB (ulimit -s)"), "{ended:?}"),
        _ => panic!("{ended:?}"),
    }
}

/// A failed allocation would abort the process.
#[test]
fn a_small_address_space_is_refused_or_suffices() {
    let place = tempfile::tempdir().unwrap();
    let mut refused = 0;
    // The program code of the debug build takes 40 MB.
    for megabytes in (50..260).step_by(20) {
        let run = ["run", "titan-48-flows", "--on", "sim", "--quick", "--variant", "dqa"];
        let directory = place.path().join(megabytes.to_string());
        std::fs::create_dir(&directory).unwrap();
        let output = within(megabytes, &run, &directory).output();
        // The kernel or the loader may refuse to start the program.
        let Ok(output) = output else { continue };
        if matches!(output.status.signal(), Some(libc::SIGKILL | libc::SIGSEGV))
            || output.status.code() == Some(127)
        {
            continue;
        }
        let ended = support::ended(output);
        assert!([0, 3].contains(&ended.code), "{megabytes} MB: {ended:?}");
        if ended.code == 0 {
            break;
        }
        assert!(
            ended.stderr.contains(" KiB (ulimit -v), but ") && ended.stderr.lines().count() == 1,
            "{ended:?}"
        );
        refused += 1;
    }
    assert!(refused > 0);
}

/// The error is one line, without the log of libbpf.
#[test]
fn too_few_file_descriptors_are_one_sentence() {
    for arguments in [
        &["fair", "lo", "--observe", "--for", "100ms"][..],
        &["fair", "lo", "--plan"],
        &["steer", "lo", "--policy", "balance"],
        &["steer", "lo", "--policy", "balance", "--backend", "rps"],
        &["service"],
        &["run", "titan-3-flows"],
        &["study", "tc", "--quick"],
    ] {
        for limit in [4, 8, 12, 16, 24, 40] {
            let ended = limited(arguments, nix::sys::resource::Resource::RLIMIT_NOFILE, limit);
            assert_eq!((ended.code, ended.stderr.lines().count()), (3, 1), "{limit}: {ended:?}");
            assert!(ended.stderr.contains("raise the limit (ulimit -n)"), "{limit}: {ended:?}");
        }
    }
}
