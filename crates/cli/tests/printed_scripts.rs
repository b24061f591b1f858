//! Tests that printed scripts, which users paste into a shell, run only the commands that they show.
//! Names on the host may contain any characters.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "several test binaries share this file, and each uses a part of it")]
#[path = "support/faults.rs"]
mod faults;
#[path = "support/hosts.rs"]
mod hosts;
mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use evenkeel_model::host::HostFacts;
use evenkeel_model::shell::Line;
use evenkeel_model::text::is_invisible;
use evenkeel_synthetic::write_tree;
use faults::{FAULTS, STRUCTURAL};
use proptest::prelude::*;
use support::managed::{Managed, NAME};
use support::{end, run};

/// Names with a special meaning to a shell, a terminal, udev, systemd or sysctl.
const NAMES: [&str; 16] = [
    "a;>PWN;",
    "$(>PWN)",
    "`>PWN`",
    "a'b\"c\\",
    "*",
    "-h",
    "&>PWN&",
    "#x",
    "a|b",
    "\",RUN+=\"x",
    "%n$HOME",
    "~",
    "a\u{1b}[2J",
    "a\u{202e}b",
    "a\n>PWN",
    "a\rb{c,d}!!",
];

const PROGRAMS: [&str; 8] = ["ip", "tc", "ethtool", "sysctl", "cat", "grep", "seq", "systemctl"];

/// Runs a script with stubs of the programs in [`PROGRAMS`], which only record their arguments. All
/// files are below a test directory. Returns the recorded calls, one argument per line.
fn sandboxed(script: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let (bin, here) = (directory.path().join("bin"), directory.path().join("here"));
    std::fs::create_dir(&bin).unwrap();
    std::fs::create_dir(&here).unwrap();
    let log = directory.path().join("log");
    for program in PROGRAMS {
        let path = bin.join(program);
        let stub = format!("#!/bin/sh\nprintf '%s\\0' {program} \"$@\" >> {}\n", log.display());
        std::fs::write(&path, stub).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let files = directory.path().join("files");
    let script = ["/sys/", "/proc/"]
        .iter()
        .fold(script.to_owned(), |script, root| script.replace(root, &format!("{}{root}", files.display())));
    let sh = |arguments: &[&str]| -> Output {
        let mut command = Command::new("/bin/sh");
        command.args(arguments).current_dir(&here).env_clear().env("PATH", &bin).stdin(Stdio::null());
        command.output().unwrap()
    };
    let parsed = sh(&["-n", "-c", &script]);
    assert!(parsed.status.success() && parsed.stderr.is_empty(), "{parsed:?}\n{script}");
    let ran = sh(&["-c", &script]);
    let errors = String::from_utf8_lossy(&ran.stderr).into_owned();
    // The only accepted errors are about files that do not exist below the test directory.
    for line in errors.lines() {
        assert!(line.contains("cannot create") || line.contains("nonexistent"), "{line}\n{script}");
    }
    let left: Vec<_> = std::fs::read_dir(&here).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?} was made by:\n{script}");
    String::from_utf8(std::fs::read(&log).unwrap_or_default()).unwrap().replace('\0', "\n")
}

/// Creates a host with most faults. The NIC, its qdiscs and the processes have this name. The names of the
/// driver and of the CPU model contain it.
fn hostile(name: &str) -> HostFacts {
    let mut facts = hosts::HOSTS[0].1();
    let is_possible = |fault: &&faults::Fault| {
        !STRUCTURAL.contains(&fault.name) && (fault.hosts)().iter().any(|host| host.0 == hosts::HOSTS[0].0)
    };
    for fault in FAULTS.iter().filter(is_possible) {
        (fault.plant)(&mut facts);
    }
    let old = hosts::nic_mut(&mut facts).unwrap().name.clone();
    for interrupt in facts.interrupts.iter_mut().filter(|interrupt| interrupt.interface == old) {
        interrupt.interface = name.to_owned();
    }
    let nic = hosts::nic_mut(&mut facts).unwrap();
    nic.name = name.to_owned();
    nic.driver = Some(format!("driver {name}"));
    for qdisc in &mut nic.qdiscs {
        qdisc.kind = name.to_owned();
    }
    for process in &mut facts.processes {
        process.name = name.to_owned();
    }
    facts.processor_model = Some(format!("model {name}"));
    facts
}

fn assert_harmless(text: &str) {
    assert!(!text.contains(|character: char| character != '\n' && is_invisible(character)), "{text:?}");
}

#[test]
fn a_plan_for_a_recorded_host_runs_what_it_shows_and_nothing_else() {
    let etc = tempfile::tempdir().unwrap();
    for name in NAMES {
        let directory = tempfile::tempdir().unwrap();
        write_tree(&hostile(name), directory.path()).unwrap();
        let from = directory.path().to_str().unwrap();
        let tune = |arguments: &[&str]| {
            let mut command =
                support::evenkeel(&[&["tune", "--from", from], arguments, &["--", name]].concat());
            command.env("EVENKEEL_ETC_DIR", etc.path());
            end(command)
        };
        let plan = tune(&["--persist", "sysctl,udev,systemd"]);
        assert_eq!(plan.code, 0, "{name:?}: {plan:?}");
        assert_harmless(&plan.stdout);
        let ran = sandboxed(&plan.stdout);
        let device = format!("ethtool\n-K\n{name}\nrx-gro\non\n");
        // The kernel accepts no white space in a name, so `check` reads such an interface only partly.
        let is_possible = !name.contains(char::is_whitespace);
        assert!(!is_possible || ran.contains(&device), "{name:?} is one word: {ran}");
        let undo: String = plan
            .stdout
            .lines()
            .filter_map(|line| line.strip_prefix("# undo: "))
            .fold(String::new(), |script, line| script + line + "\n");
        let undone = sandboxed(&undo);
        assert!(!is_possible || undone.contains(&device.replace("\non\n", "\noff\n")), "{name:?}: {undo}");
        for arguments in [&["check", "--from", from][..], &["check", "--from", from, "--explain", "gro-off"]]
        {
            let shown = run(arguments);
            assert_harmless(&shown.stdout);
            assert_harmless(&shown.stderr);
        }
        let json = run(&["check", "--from", from, "--format", "json"]);
        assert_harmless(&json.stdout);
        let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
        let names: Vec<&str> = json["host"]["interfaces"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|found| found["name"].as_str())
            .collect();
        assert!(names.contains(&name), "JSON has the name as it is: {names:?}");
    }
}

#[test]
fn a_plan_for_a_live_interface_runs_what_it_shows_and_nothing_else() {
    let managed = Managed::new();
    // This setting makes `tune` propose a change.
    managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    let mut now = NAME.to_owned();
    // The kernel accepts these names: they have no white space, slashes or colons. They also have no `%`,
    // because the kernel replaces `%d` by a number.
    for name in ["a;>PWN;", "$(>PWN)", "`>PWN`", "a'b\"c\\", "-h", "a\u{1b}[2J"] {
        managed.shell(&["ip", "link", "set", "dev", &now, "down"]);
        managed.shell(&["ip", "link", "set", "dev", &now, "name", name]);
        managed.shell(&["ip", "link", "set", "dev", name, "up"]);
        now = name.to_owned();
        let plan = end(managed.command(&[
            "fair",
            "--plan",
            "--queue-weights",
            "htb",
            "--rate",
            "1gbit",
            "--",
            name,
        ]));
        assert_eq!(plan.code, 0, "{name:?}: {plan:?}");
        assert_harmless(&plan.stdout);
        // A long name makes the header wrap.
        let unwrapped = plan.stdout.replace("\n# ", " ");
        let header = unwrapped.lines().next().unwrap();
        assert!(header.contains("` with the same options would do"), "{header}");
        if name == "-h" {
            assert!(header.contains("evenkeel fair -- -h` "), "{header}");
            let plain = end(managed.command(&["fair", "--plan", "--", name])).stdout;
            assert!(plain.lines().next().unwrap().contains("-h` would do"), "{plain}");
            let tune = end(managed.command(&["tune", "--", name])).stdout;
            let tune = tune.replace("\n# ", " ").replace('\n', " ");
            for command in ["tune --apply -- -h ", "tune --apply sack-off -- -h ", "revert -- -h "] {
                assert!(tune.contains(&format!("evenkeel {command}")), "{command}: {tune}");
            }
        }
        let ran = sandboxed(&plan.stdout);
        assert!(ran.starts_with(&format!("tc\nqdisc\nreplace\ndev\n{name}\nroot\n")), "{name:?}: {ran}");
        for arguments in [["tune", "--", name], ["check", "--", name]] {
            let shown = end(managed.command(&arguments));
            assert_harmless(&shown.stdout);
            assert_harmless(&shown.stderr);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// A shell passes each quoted word unchanged to the program, next to any other words.
    #[test]
    fn words_reach_a_program_as_they_are(words in prop::collection::vec("[^\u{0}]{0,12}[^\u{0}\n]", 1..40)) {
        let lines: Vec<String> =
            words.iter().map(|word| Line::new("cat {} {}", &[word, &"end"]).to_string()).collect();
        let script = lines.join("\n");
        prop_assert!(!script.contains(|character: char| character != '\n' && is_invisible(character)));
        let wanted: String = words.iter().map(|word| format!("cat\n{word}\nend\n")).collect();
        prop_assert_eq!(sandboxed(&script), wanted);
    }
}

/// Checks that the sandbox detects a command that the script did not show.
#[test]
#[should_panic(expected = "was made by")]
fn a_line_that_is_not_quoted_is_noticed() {
    assert!(Path::new("/bin/sh").exists());
    sandboxed("tc qdisc del dev a;>PWN");
}
