//! Tests that a run names each missing requirement, with exit code 3.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use support::running::{Place, SCENARIO};
use support::{Ended, end, run, without};

/// From linux/capability.h.
const CAP_NET_ADMIN: libc::c_ulong = 12;
const CAP_SYS_ADMIN: libc::c_ulong = 21;

fn assert_unable(ended: &Ended, words: &[&str]) {
    assert_eq!((ended.code, ended.stdout.as_str()), (3, ""), "{ended:?}");
    for word in words {
        assert!(ended.stderr.contains(word), "{word:?} is not in {ended:?}");
    }
}

#[test]
fn a_single_missing_capability_is_named_and_no_other() {
    let place = Place::new(SCENARIO);
    for (number, name, other) in
        [(CAP_NET_ADMIN, "CAP_NET_ADMIN", "CAP_SYS_ADMIN"), (CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "CAP_NET_ADMIN")]
    {
        let mut command = place.command(&[]);
        without(&mut command, [number]);
        let ended = end(command);
        assert_unable(&ended, &[&format!("lacks {name}"), "as root"]);
        assert!(!ended.stderr.contains(other), "{ended:?}");
    }
    assert_eq!(place.written(), Vec::<String>::new());
}

#[test]
fn a_missing_mount_is_named_before_the_work() {
    for (mount, arguments) in [
        ("/proc", &["fair", "lo"][..]),
        ("/proc", &["steer", "lo", "--policy", "balance"]),
        ("/proc", &["revert"]),
        ("/proc", &["check"]),
        ("/sys", &["nic", "probe", "lo"]),
        ("/sys", &["steer", "lo", "--policy", "balance", "--backend", "xdp"]),
        ("/sys", &["steer", "lo", "--policy", "balance", "--backend", "xdp", "--plan"]),
    ] {
        let mut command = std::process::Command::new("unshare");
        let script = "mount -t tmpfs none \"$0\" && exec \"$@\"";
        command.args(["--mount", "sh", "-c", script, mount, env!("CARGO_BIN_EXE_evenkeel")]).args(arguments);
        assert_unable(&end(command), &[&format!("{mount} is not mounted")]);
    }
}

/// A process list that may be incomplete does not prove that irqbalance is not running.
#[test]
fn hidden_processes_are_no_absent_ones() {
    let binary = env!("CARGO_BIN_EXE_evenkeel");
    let place = tempfile::tempdir().unwrap();
    let saved = place.path().join("saved");
    let mut live = std::process::Command::new("unshare");
    live.args(["--pid", "--fork", "--mount-proc", binary, "check", "--save"]).arg(&saved);
    let mut recorded = std::process::Command::new(binary);
    recorded.args(["check", "--from"]).arg(&saved);
    for command in [live, recorded] {
        let ended = end(command);
        let words = ended.stdout.replace("\n ", "");
        assert!(words.contains("it hides processes") && words.contains("irqbalance-runs"), "{ended:?}");
    }
}

/// Returns the path of a tool, from the PATH of the tests.
fn find(tool: &str) -> PathBuf {
    std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|directory| directory.join(tool))
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("the tests of this tier need {tool}"))
}

fn run_with_path(place: &Place, path: &Path) -> Ended {
    let mut command = place.command(&[]);
    command.env("PATH", path);
    end(command)
}

#[test]
fn missing_tools_are_named_with_their_package() {
    let place = Place::new(SCENARIO);
    let tools = tempfile::tempdir().unwrap();
    let missing = |tool: &str| {
        let package = format!("apt-get install {tool}");
        assert_unable(&run_with_path(&place, tools.path()), &[&format!("{tool} is not installed"), &package]);
    };
    missing("iperf3");
    // A file that is not executable does not count as the tool.
    support::file(tools.path(), "iperf3", "");
    missing("iperf3");
    std::fs::remove_file(tools.path().join("iperf3")).unwrap();
    symlink(find("iperf3"), tools.path().join("iperf3")).unwrap();
    missing("sockperf");
    assert_eq!(place.written(), Vec::<String>::new());
}

#[test]
fn without_a_path_nothing_is_installed() {
    let place = Place::new(SCENARIO);
    assert_unable(&run_with_path(&place, Path::new("")), &["iperf3 is not installed"]);
    let mut command = place.command(&[]);
    command.env_remove("PATH");
    assert_unable(&end(command), &["iperf3 is not installed"]);
}

#[test]
fn a_tool_that_fails_is_a_failure_and_not_a_result() {
    let place = Place::new(SCENARIO);
    let tools = tempfile::tempdir().unwrap();
    symlink(find("false"), tools.path().join("iperf3")).unwrap();
    symlink(find("sockperf"), tools.path().join("sockperf")).unwrap();
    let ended = run_with_path(&place, tools.path());
    assert_eq!((ended.code, ended.stdout.as_str()), (4, ""), "{ended:?}");
    assert!(ended.stderr.contains(": iperf3 ended (exit status: 1), without a message"), "{ended:?}");
    assert_eq!(place.written(), Vec::<String>::new());
}

#[test]
fn variants_that_cannot_run_at_all_leave_nothing_to_run() {
    let place = Place::new(SCENARIO);
    let variants = ["--topology", "mq", "--variant", "dqa+dqwa", "--variant", "dqa+dqwa+dsos"];
    let ended = end(place.command(&variants));
    assert_unable(
        &ended,
        &[
            "none of the requested variants can run",
            "do not support weights",
            "run the scenario with --topology soft-nic",
        ],
    );
    // Both variants fail for the same reason. The command prints the reason once.
    assert_eq!(ended.stderr.matches("do not support weights").count(), 1, "{ended:?}");
    // The default topology, the soft NIC, serves queues by weight, so the run refuses balancing.
    let ended = end(place.command(&["--variant", "dqa+balance"]));
    assert_unable(&ended, &["none of the requested variants can run", "--topology mq"]);
}

#[test]
fn a_congestion_control_that_the_kernel_lacks_is_named() {
    let scenario = SCENARIO.replace("flows = 6", "flows = 6\ncongestion-control = \"nonesuch\"");
    let place = Place::new(&scenario);
    assert_unable(
        &end(place.command(&["--variant", "dqa"])),
        &[".toml:", "workload.congestion-control", "tcp_nonesuch", "cubic"],
    );
}

#[test]
fn a_rate_beyond_the_processors_is_refused_with_one_that_works() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("record");
    let arguments = ["run", "titan-6-flows", "--variant", "cmax", "--rate", "1000gbit", "--out"];
    let ended = run(&[&arguments[..], &[out.to_str().unwrap()]].concat());
    assert_unable(&ended, &["bottleneck", "--rate auto"]);
    assert!(!out.exists());
}
