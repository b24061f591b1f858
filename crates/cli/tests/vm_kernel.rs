//! Tests which commands run on a kernel of any age: on the virtual machine's own kernel and on an older
//! kernel. Commands that cannot run must name the kernel that they need.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../scripts/vm/guest.rs"]
mod guest;
mod support;

use support::{Ended, end, evenkeel};

/// The oldest kernel on which `congestion load` runs. It is also the oldest kernel with tcx hooks.
const TCX: (u32, u32) = (6, 6);
/// The oldest kernel on which `fair` runs.
const FAIR: (u32, u32) = (6, 1);

fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

fn run(arguments: &[&str]) -> Ended {
    let state = tempfile::tempdir().unwrap();
    let mut command = evenkeel(arguments);
    command.env("EVENKEEL_STATE_DIR", state.path()).env("EVENKEEL_ETC_DIR", state.path().join("etc"));
    end(command)
}

#[test]
fn commands_without_bpf_run_on_every_kernel() {
    guest::require();
    let kernel = kernel();
    let directory = tempfile::tempdir().unwrap();
    let host = directory.path().join("host");
    let host = host.to_str().unwrap();
    for (arguments, words) in [
        (["check"].as_slice(), "4 of 8 queues"),
        (&["check", "--watch", "200ms"], "No packets lost"),
        (&["check", "--save", host], "igb"),
        (&["check", "--from", host], "igb"),
        (&["tune", "eth2"], "eth2: "),
        (&["nic", "probe", "eth2"], "rss-only"),
        (&["congestion", "list"], "cubic"),
        (&["revert"], "nothing to restore"),
        (&["scenario", "list"], "titan-12-flows"),
        (
            &[
                "search",
                "solve",
                "--nic",
                "i82599",
                "--queues",
                "4",
                "--generate",
                "8",
                "--policy",
                "balance",
            ],
            "queue",
        ),
    ] {
        let ended = run(arguments);
        assert_eq!(ended.code, 0, "{arguments:?} on {kernel:?}: {ended:?}");
        assert!(ended.stdout.contains(words), "{arguments:?}: {}", ended.stdout);
        // On a live kernel, the output must not mention a file of a recorded host.
        let live = !arguments.contains(&"--from");
        assert!(!live || !ended.stdout.contains(".json has no"), "{arguments:?}: {}", ended.stdout);
    }
}

#[test]
fn commands_with_bpf_run_or_name_the_kernel_that_they_need() {
    guest::require();
    let kernel = kernel();
    for (arguments, oldest) in [
        (["fair", "eth2", "--observe", "--for", "1s"].as_slice(), FAIR),
        (&["congestion", "load", "lola", "--for", "1s"], TCX),
    ] {
        let shown = std::process::Command::new("ip").args(["link", "set", "eth2", "up"]).status().unwrap();
        assert!(shown.success());
        let ended = run(arguments);
        if kernel >= oldest {
            assert_eq!(ended.code, 0, "{arguments:?} on {kernel:?}: {ended:?}");
        } else {
            assert_eq!((ended.code, ended.stdout.as_str()), (3, ""), "{arguments:?}: {ended:?}");
            let words = format!("Linux {}.{} or newer", oldest.0, oldest.1);
            assert!(ended.stderr.contains(&words), "{arguments:?}: {}", ended.stderr);
        }
    }
}
