//! Tests that `evenkeel fair` runs with the capabilities in docs/reference/fair.md, and names each
//! missing capability. Once it runs, it keeps no other capability.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::process::Command;

use evenkeel_host::Capability;
use nix::sys::signal::Signal;

use support::managed::{AT_WORK, DRIVERS_MAPS, Managed, NAME, assert_same, with_own_sysfs};
use support::running::Running;
use support::{end, without};

const STATED: [Capability; 3] = [Capability::NetAdmin, Capability::Perfmon, Capability::Bpf];

/// Returns the command in the managed namespace, with the namespace's own `/sys`.
fn command(managed: &Managed, arguments: &[&str]) -> Command {
    with_own_sysfs(managed.command(arguments))
}

fn keep(command: &mut Command, capabilities: &[Capability]) {
    let kept: Vec<u32> = capabilities.iter().map(|capability| capability.number()).collect();
    without(command, (0..64).filter(|number| !kept.contains(number)).map(u64::from));
}

fn set(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

#[test]
fn the_stated_capabilities_suffice_and_no_other_is_kept() {
    let managed = Managed::with_maps();
    let before = managed.seen();
    let stated = STATED.iter().fold(0, |set, capability| set | 1_u64 << capability.number());
    for exact in [true, false] {
        let mut fair = command(&managed, &["fair", NAME, "--xps", "off", "--segments", "16KiB"]);
        if exact {
            keep(&mut fair, &STATED);
        }
        let mut running = Running::start(fair);
        running.wait_for_activity(AT_WORK);
        assert_eq!(managed.maps(), ["0"; 4]);
        let threads = std::fs::read_dir(format!("/proc/{}/task", running.id())).unwrap();
        let threads: Vec<_> = threads.map(|thread| thread.unwrap().path().join("status")).collect();
        assert!(threads.len() >= 2, "the loop has a thread of its own: {threads:?}");
        for thread in threads {
            let status = std::fs::read_to_string(&thread).unwrap();
            let is_writer = status.starts_with("Name:\toutput\n");
            let stated = if is_writer { 0 } else { stated };
            for name in ["CapPrm:", "CapEff:"] {
                assert_eq!(
                    set(&status, name),
                    stated,
                    "{name} {thread:?}, started with exactly these: {exact}"
                );
            }
            assert_eq!((set(&status, "CapInh:"), set(&status, "NoNewPrivs:")), (0, 1), "{thread:?}");
        }
        running.signal(Signal::SIGTERM);
        let ended = running.end();
        assert_eq!(ended.code, 0, "{ended:?}");
        assert_eq!(managed.maps(), DRIVERS_MAPS);
        assert_same(&managed.seen(), &before, "afterwards");
    }
    for look in [&["--plan", "--xps", "off"][..], &["--observe", "--for", "300ms"]] {
        let mut fair = command(&managed, &[&["fair", NAME], look].concat());
        keep(&mut fair, &STATED);
        let ended = end(fair);
        assert_eq!(ended.code, 0, "{look:?}: {ended:?}");
    }
}

#[test]
fn each_capability_that_is_missing_is_named() {
    let managed = Managed::new();
    for missing in STATED {
        let mut fair = command(&managed, &["fair", NAME, "--for", "1s"]);
        let others: Vec<Capability> =
            STATED.into_iter().filter(|capability| *capability != missing).collect();
        keep(&mut fair, &others);
        let ended = end(fair);
        assert!(ended.code == 3 && ended.stderr.contains(&format!("lacks {missing},")), "{ended:?}");
    }
    // Without the namespace's own `/sys`, the command needs another capability to mount it.
    let mut fair = managed.command(&["fair", NAME, "--for", "1s"]);
    keep(&mut fair, &STATED);
    let ended = end(fair);
    assert!(ended.code == 3 && ended.stderr.contains("CAP_SYS_ADMIN"), "{ended:?}");
}
