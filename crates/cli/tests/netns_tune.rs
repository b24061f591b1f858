//! Tests `evenkeel tune` from the findings to the undo, in a network namespace with wrong settings.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;
#[path = "support/tuned.rs"]
mod tuned;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_apply::{Change, Knob, Lasting, StateDirectory, Value};
use evenkeel_host::Sysfs;
use evenkeel_model::change::Channels;
use evenkeel_testbed::TestbedError;
use nix::sys::signal::Signal;
use support::managed::{Managed, NAME, assert_same, is_empty, wait_for};
use support::running::Running;
use support::{Ended, end, evenkeel, file, without_capabilities};
use tuned::{Host, OFF, ON, WRONG};

#[test]
fn a_plan_is_shell_lines_that_do_it_and_undo_it() {
    let host = Host::new();
    let before = host.managed.seen();
    let plan = host.tune(&[]);
    assert_eq!(plan.code, 0, "{plan:?}");
    assert_eq!(host.tune(&["--print"]).stdout, plan.stdout, "it is what it does by itself");
    assert_same(&host.managed.seen(), &before, "a plan changes nothing");
    for (name, rule) in WRONG {
        assert!(plan.stdout.contains(&format!("# {rule} (")), "{rule}: {}", plan.stdout);
        assert!(plan.stdout.contains(&format!("\nsysctl -w net.ipv4.{name}=1\n")), "{}", plan.stdout);
        assert!(plan.stdout.contains(&format!("# undo: sysctl -w net.ipv4.{name}=0\n")), "{}", plan.stdout);
    }
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-e", "-c", script]).stdin(Stdio::null());
        let output = host.managed.enter(command).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    shell(&plan.stdout);
    assert_eq!(host.values(), ON);
    let undo: String = plan
        .stdout
        .lines()
        .filter_map(|line| line.strip_prefix("# undo: "))
        .map(|line| format!("{line}\n"))
        .collect();
    shell(&undo);
    assert_same(&host.managed.seen(), &before, "after the lines and their undo");

    // A user without privileges may make a plan, but may not apply it.
    let unprivileged = |arguments: &[&str]| {
        let mut command = evenkeel(arguments);
        command.env("EVENKEEL_STATE_DIR", host.managed.state.path());
        without_capabilities(&mut command);
        end(command)
    };
    let looked = unprivileged(&["tune", "lo"]);
    assert!(looked.code == 0 && looked.stdout.starts_with("# lo: "), "{looked:?}");
    let refused = unprivileged(&["tune", "lo", "--apply", "--no-watch"]);
    assert!(refused.code == 3 && refused.stderr.contains("CAP_NET_ADMIN"), "{refused:?}");
    assert!(is_empty(host.managed.state.path()));
    assert_eq!(host.values(), OFF);
}

#[test]
fn a_rule_about_nics_is_refused_for_an_interface_without_a_device() {
    let host = Host::new();
    let refused = host.tune(&["--apply", "gro-off"]);
    assert_eq!(refused.code, 3, "{refused:?}");
    let words = format!("gro-off, a rule about NICs, does not judge {NAME}: it has no device");
    assert!(refused.stderr.contains(&words), "{refused:?}");
    let plan = host.tune(&[]).stdout;
    assert!(plan.contains(&format!("rules about NICs do not judge {NAME}: it has no device.")), "{plan}");
}

#[test]
fn what_is_applied_stays_until_it_is_reverted() {
    let host = Host::new();
    let before = host.managed.seen();
    let one = host.tune(&["--apply", "sack-off", "--no-watch"]);
    assert!(one.code == 0 && one.stdout.contains("1 setting changed"), "{one:?}");
    assert_eq!(host.values(), ["0", "1", "0", "0"]);
    // The command stays on one line, whatever the length of the directories.
    let directories = format!("`EVENKEEL_STATE_DIR={} ", host.managed.state.path().display());
    let revert = format!(" evenkeel revert {NAME}`");
    let is_whole = |line: &str| line.starts_with(&directories) && line.contains(&revert);
    assert!(one.stdout.lines().any(is_whole), "{one:?}");
    assert!(one.stdout.replace('\n', " ").contains(&format!("{revert} undoes the changes")), "{one:?}");
    let twice = host.tune(&["--apply", "sack-off", "--no-watch"]);
    assert!(twice.code == 0 && twice.stdout.contains("nothing was changed"), "{twice:?}");
    assert!(twice.stderr.contains("sack-off has no finding for"), "{twice:?}");
    let all = host.tune(&["--apply", "--watch", "200ms"]);
    assert!(all.code == 0 && all.stdout.contains("3 settings changed"), "{all:?}");
    assert!(
        all.stdout.contains("the sysctl net.ipv4.tcp_timestamps: '0' -> '1'  (timestamps-off)"),
        "{all:?}"
    );
    assert!(all.stdout.contains("the effect on losses is unknown"), "nothing was sent: {all:?}");
    assert_eq!(host.values(), ON);
    let tuned = host.managed.seen();

    // A second call has nothing to change, and the changes stay.
    let again = host.tune(&["--apply", "--no-watch"]);
    assert!(again.code == 0 && again.stdout.contains("nothing was changed"), "{again:?}");
    let plan = host.tune(&[]);
    assert!(plan.stdout.contains("nothing to change"), "{plan:?}");
    let unknown = host.tune(&["--apply", "no-such-item", "--no-watch"]);
    assert!(unknown.code == 2 && unknown.stderr.contains("no rule 'no-such-item'"), "{unknown:?}");

    // A session records tuned values as the state to restore, and locks the interface against tune.
    let mut running = host.managed.session(&["--xps", "off"]);
    let busy = host.tune(&["--apply", "--no-watch"]);
    assert!(busy.code == 3 && busy.stderr.contains("evenkeel fair manages"), "{busy:?}");
    let busy = host.revert();
    assert!(busy.code == 3 && busy.stderr.contains("evenkeel fair manages"), "{busy:?}");
    running.signal(Signal::SIGINT);
    assert_eq!(running.end().code, 130);
    assert_same(&host.managed.seen(), &tuned, "after a run");

    let reverted = host.revert();
    assert!(reverted.code == 0 && reverted.stdout.contains("4 settings restored"), "{reverted:?}");
    assert_same(&host.managed.seen(), &before, "reverted");
    assert!(is_empty(host.managed.state.path()));
    assert!(host.revert().stdout.contains("nothing to restore"));
}

/// Starts a tune, and waits until it has made its changes and counts losses.
fn tuned(host: &Host, arguments: &[&str]) -> Running {
    let running =
        Running::start(host.command(&[&["tune", NAME, "--apply", "--watch", "2s"], arguments].concat()));
    wait_for("the changes", Duration::from_secs(20), || host.values() == ON);
    // `tune` reads the last change back after this moment. The watch takes longer than this sleep.
    std::thread::sleep(Duration::from_millis(500));
    running
}

#[test]
fn a_signal_in_the_watch_after_the_changes_undoes_them() {
    for (signal, persist) in
        [(Signal::SIGINT, &[][..]), (Signal::SIGHUP, &[]), (Signal::SIGTERM, &["--persist", "sysctl"])]
    {
        let host = Host::new();
        let before = host.managed.seen();
        let mut running = tuned(&host, persist);
        let reverted = host.revert();
        assert!(
            reverted.code == 3 && reverted.stderr.contains("evenkeel tune manages evk0 already"),
            "{reverted:?}"
        );
        assert_eq!(host.values(), ON);
        running.signal(signal);
        let ended = running.end();
        assert!(ended.code == 130 && ended.stderr.contains("everything is as before"), "{ended:?}");
        assert_same(&host.managed.seen(), &before, "interrupted");
        assert!(is_empty(host.managed.state.path()), "{:?}", host.managed.journals());
        assert!(is_empty(host.etc.path()));
        assert!(host.revert().stdout.contains("nothing to restore"));
    }
}

/// The journal of an interrupted tune has only the changes of previous tunes.
#[test]
fn an_interrupted_tune_leaves_the_changes_of_an_earlier_one() {
    let host = Host::new();
    let one = host.tune(&["--apply", "sack-off", "--no-watch"]);
    assert_eq!(one.code, 0, "{one:?}");
    let mut running = tuned(&host, &[]);
    running.signal(Signal::SIGTERM);
    let ended = running.end();
    assert!(ended.code == 130 && ended.stderr.contains("everything is as before"), "{ended:?}");
    assert_eq!(host.values(), ["0", "1", "0", "0"]);
    host.managed.host.set_sysctl("net/ipv4/tcp_timestamps", "1").unwrap();
    let reverted = host.revert();
    assert!(reverted.code == 0 && reverted.stdout.contains(": 1 setting restored\n"), "{reverted:?}");
    assert_eq!(host.values(), ["0", "0", "0", "1"], "another program's value");
}

#[test]
fn an_interrupted_tune_leaves_the_settings_of_other_programs() {
    let host = Host::new();
    let mut running = tuned(&host, &[]);
    host.managed.host.set_sysctl("net/ipv4/tcp_timestamps", "2").unwrap();
    running.signal(Signal::SIGINT);
    let ended = running.end();
    assert_eq!(ended.code, 130, "{ended:?}");
    let left = "net.ipv4.tcp_timestamps is left as another program set it: '2'; evenkeel had set '1'";
    let count = "interrupted: 3 settings restored, 1 left as set by another program";
    assert!(ended.stderr.contains(left) && ended.stderr.contains(count), "{ended:?}");
    assert_eq!(host.values(), ["0", "0", "0", "2"]);
    assert!(is_empty(host.managed.state.path()), "{:?}", host.managed.journals());
}

/// Sets `tcp_timestamps` while a `tune --apply` watches, and waits for the end of the command.
fn changed_from_outside(host: &Host, running: Running, timestamps: &str) -> Ended {
    host.managed.host.set_sysctl("net/ipv4/tcp_timestamps", timestamps).unwrap();
    let ended = running.end();
    assert!(ended.code == 1 && ended.stdout.contains("3 settings changed"), "{ended:?}");
    assert_eq!(host.values(), ["1", "1", "1", timestamps]);
    ended
}

fn reverts_three(host: &Host, left: [&str; 4]) {
    let reverted = host.revert();
    assert!(reverted.code == 0 && reverted.stdout.contains(": 3 settings restored\n"), "{reverted:?}");
    assert_eq!(host.values(), left);
}

/// Starts a `tune --apply`, and returns during its first watch.
fn in_the_first_watch(host: &Host) -> Running {
    let running = Running::start(host.command(&["tune", NAME, "--apply", "--watch", "3s"]));
    std::thread::sleep(Duration::from_secs(2));
    running
}

const NOT_CHANGED: &str = "not changed: the sysctl net.ipv4.tcp_timestamps: another program";

#[test]
fn a_value_that_another_program_sets_during_the_first_watch_stays() {
    let host = Host::new();
    let ended = changed_from_outside(&host, in_the_first_watch(&host), "2");
    assert!(ended.stdout.contains(NOT_CHANGED), "{ended:?}");
    reverts_three(&host, ["0", "0", "0", "2"]);
}

/// The command reports the change even if its value equals the value that tune would have set.
#[test]
fn a_change_that_another_program_makes_first_is_reported() {
    let host = Host::new();
    let ended = changed_from_outside(&host, in_the_first_watch(&host), "1");
    assert!(ended.stdout.contains("another program has set it to '1' since the plan"), "{ended:?}");
    reverts_three(&host, ["0", "0", "0", "1"]);
}

/// If the files for the next boot cannot be written, tune changes nothing. A revert does not need their
/// directory.
#[test]
fn a_file_in_place_of_the_directory_of_settings_is_refused_first() {
    let host = Host::new();
    let file = host.etc.path().join("file");
    std::fs::write(&file, "").unwrap();
    let with_file = |arguments: &[&str]| {
        let mut command = host.command(arguments);
        command.env("EVENKEEL_ETC_DIR", &file);
        end(command)
    };
    let ended = with_file(&["tune", NAME, "--apply", "sack-off", "--no-watch", "--persist", "sysctl"]);
    assert!(
        ended.code == 2 && ended.stderr.contains("is not a directory; name a directory with"),
        "{ended:?}"
    );
    assert_eq!(host.values(), OFF);
    assert_eq!(with_file(&["tune", NAME, "--apply", "sack-off", "--no-watch"]).code, 0);
    assert_eq!(with_file(&["revert", NAME]).code, 0);
    assert_eq!(host.values(), OFF);
}

#[test]
fn a_value_that_another_program_sets_during_the_second_watch_is_not_reported_as_changed() {
    let host = Host::new();
    let ended = changed_from_outside(&host, tuned(&host, &[]), "0");
    assert!(ended.stdout.contains(NOT_CHANGED), "{ended:?}");
    reverts_three(&host, OFF);
}

/// A setting of the whole namespace belongs to the first run that changes it.
#[test]
fn a_setting_that_a_session_has_changed_is_left_to_it() {
    let host = Host::new();
    host.managed.host.set_sysctl("net/ipv4/tcp_limit_output_bytes", "4096").unwrap();
    let mut running = host.managed.session(&["--xps", "off", "--segments", "16KiB"]);
    let tuned = end(host.command(&["tune", "lo", "--apply", "--no-watch"]));
    assert!(tuned.code == 1 && tuned.stdout.contains("4 settings changed"), "{tuned:?}");
    let words = "left alone: the sysctl net.ipv4.tcp_limit_output_bytes: evenkeel fair (process ";
    assert!(tuned.stdout.contains(words), "{tuned:?}");
    running.signal(Signal::SIGINT);
    assert_eq!(running.end().code, 130);
    let reverted = end(host.command(&["revert", "lo"]));
    assert!(reverted.code == 0 && reverted.stdout.contains("4 settings restored"), "{reverted:?}");
    assert_eq!(host.values(), OFF);
}

/// Runs a command under strace. At the command's first write to a sysctl, strace makes the write fail
/// or sends a signal.
fn injected(host: &Host, what: &str, sysctl: &str, arguments: &[&str]) -> Ended {
    let mut command = Command::new("strace");
    let inject = format!("inject=write:{what}:when=1");
    let path = format!("/proc/sys/net/ipv4/{sysctl}");
    command.args(["-f", "-qqq", "-o", "/dev/null", "-P", &path, "-e", "trace=write", "-e", &inject]);
    command.arg(env!("CARGO_BIN_EXE_evenkeel")).args(arguments).stdin(Stdio::null());
    command.env("EVENKEEL_STATE_DIR", host.managed.state.path()).env("EVENKEEL_ETC_DIR", host.etc.path());
    end(host.managed.enter(command))
}

#[test]
fn a_signal_does_not_stop_a_revert_in_the_middle() {
    for signal in ["TERM", "INT", "HUP"] {
        let host = Host::new();
        assert_eq!(host.tune(&["--apply", "--no-watch"]).code, 0);
        let reverted = injected(&host, &format!("signal={signal}"), "tcp_sack", &["revert", NAME]);
        assert!(
            reverted.code == 0 && reverted.stdout.contains("4 settings restored"),
            "{signal}: {reverted:?}"
        );
        assert_eq!(host.values(), OFF, "{signal}");
        assert!(is_empty(host.managed.state.path()), "{signal}");
    }
}

/// A revert leaves out changes that the kernel refused, and settings that a previous revert has restored.
#[test]
fn a_setting_that_is_as_before_is_not_reverted_later() {
    let host = Host::new();
    let sack = |value: &str| host.managed.host.set_sysctl("net/ipv4/tcp_sack", value).unwrap();
    let refused = injected(&host, "error=EPERM", "tcp_sack", &["tune", NAME, "--apply", "--no-watch"]);
    assert!(refused.code == 1 && refused.stdout.contains("3 settings changed"), "{refused:?}");
    sack("1");
    let first = injected(&host, "error=EIO", "tcp_timestamps", &["revert", NAME]);
    assert!(first.code == 4 && first.stdout.contains("2 settings restored, 1 not restored"), "{first:?}");
    host.managed.host.set_sysctl("net/ipv4/tcp_moderate_rcvbuf", "1").unwrap();
    let second = host.revert();
    let count = "1 setting restored, 1 already as before, 1 left as set by another program";
    assert!(second.code == 0 && second.stdout.contains(count), "{second:?}");
    assert_eq!(host.values(), ["0", "1", "1", "0"]);
    assert!(is_empty(host.managed.state.path()));

    // Evenkeel removes a journal without changes.
    sack("0");
    let only = ["tune", NAME, "--apply", "sack-off", "--no-watch"];
    assert_eq!(injected(&host, "error=EPERM", "tcp_sack", &only).code, 1);
    assert!(is_empty(host.managed.state.path()));
}

/// A new interface may have the index of a deleted one.
#[test]
fn sysctls_stay_when_the_interface_is_made_again() {
    let host = Host::new();
    let index = host.managed.index.to_string();
    assert_eq!(host.tune(&["--apply", "--no-watch"]).code, 0);
    host.managed.shell(&["ip", "link", "del", NAME]);
    host.managed.shell(&["ip", "link", "add", NAME, "index", &index, "type", "veth", "peer", "name", "evk2"]);
    host.managed.shell(&["ip", "link", "set", NAME, "up"]);
    let again = host.tune(&["--apply", "--no-watch"]);
    assert!(again.code == 0 && again.stdout.contains("nothing was changed"), "{again:?}");
    assert_eq!(host.values(), ON);
    let reverted = host.revert();
    assert!(reverted.code == 0 && reverted.stdout.contains("4 settings restored"), "{reverted:?}");
    assert_eq!(host.values(), OFF);
}

#[test]
fn a_journal_that_is_removed_during_the_second_watch_is_written_again() {
    let host = Host::new();
    let running = tuned(&host, &[]);
    std::fs::remove_dir_all(host.managed.state.path()).unwrap();
    let ended = running.end();
    assert!(ended.code == 0 && ended.stderr.contains("evenkeel wrote it again"), "{ended:?}");
    let reverted = host.revert();
    assert!(reverted.code == 0 && reverted.stdout.contains("4 settings restored"), "{reverted:?}");
    assert_eq!(host.values(), OFF);
}

/// Events in the first second of a watch, and the expected message for each.
const VANISHES: [(&str, &str); 2] = [
    ("set dev evk0 name l2new", "another program renamed evk0 to l2new"),
    ("del dev evk0", "evk0 left this network namespace (deleted or moved)"),
];

fn vanish(managed: &Managed, how: &str) {
    if how.contains("name") {
        managed.shell(&["ip", "link", "set", "dev", NAME, "down"]);
    }
    managed.shell(&["ip", "link"].into_iter().chain(how.split(' ')).collect::<Vec<_>>());
}

#[test]
fn an_interface_that_vanishes_while_losses_are_counted_changes_nothing() {
    for (how, words) in VANISHES {
        let host = Host::new();
        let running = Running::start(host.command(&["tune", NAME, "--apply", "--watch", "3s"]));
        std::thread::sleep(Duration::from_secs(1));
        vanish(&host.managed, how);
        let ended = running.end();
        assert!(ended.code == 4 && ended.stderr.contains(words), "{words}: {ended:?}");
        assert!(ended.stderr.contains("nothing was changed"), "{ended:?}");
        assert_eq!(host.values(), OFF);
        assert!(is_empty(host.managed.state.path()));
    }
}

#[test]
fn an_interface_that_vanishes_during_a_watch_is_named() {
    for (how, words) in VANISHES {
        let host = Host::new();
        let running = Running::start(host.command(&["check", NAME, "--watch", "3s"]));
        std::thread::sleep(Duration::from_secs(1));
        vanish(&host.managed, how);
        let ended = running.end();
        assert!(ended.code == 4 && ended.stderr.contains(words), "{words}: {ended:?}");
        assert_eq!(ended.stdout, "");
    }
}

#[test]
fn what_is_kept_or_changed_by_others_is_left_alone() {
    let host = Host::new();
    let keep = file(
        host.etc.path(),
        "keep.toml",
        "keep = [\"sysctl net.ipv4.tcp_sack\"]\nrules = [\"timestamps-off\"]\n",
    );
    let keep = keep.to_str().unwrap();
    let applied = host.tune(&["--apply", "--no-watch", "--keep", keep]);
    assert!(applied.code == 0 && applied.stdout.contains("2 settings changed"), "{applied:?}");
    assert!(applied.stdout.contains("keeps 'sysctl net.ipv4.tcp_sack'"), "{applied:?}");
    assert_eq!(host.values(), ["1", "0", "1", "0"]);

    // Without `--keep`, the file at the default path applies.
    std::fs::create_dir(host.etc.path().join("evenkeel")).unwrap();
    std::fs::copy(keep, host.etc.path().join("evenkeel/keep.toml")).unwrap();
    assert!(host.tune(&["--apply", "--no-watch"]).stdout.contains("nothing was changed"));
    assert_eq!(host.values(), ["1", "0", "1", "0"]);
    std::fs::write(host.etc.path().join("evenkeel/keep.toml"), "keep = 7\n").unwrap();
    let bad = host.tune(&[]);
    assert!(bad.code == 2 && bad.stderr.contains("keep.toml:1:8: keep: "), "{bad:?}");
    std::fs::remove_file(host.etc.path().join("evenkeel/keep.toml")).unwrap();
    let missing = host.tune(&["--keep", "/nonexistent/keep.toml"]);
    assert!(missing.code == 2 && missing.stderr.contains("/nonexistent/keep.toml"), "{missing:?}");

    // The administrator changes a setting that tune changed. Revert then leaves the setting alone.
    host.managed.host.set_sysctl("net/ipv4/tcp_moderate_rcvbuf", "0").unwrap();
    host.managed.host.set_sysctl("net/ipv4/tcp_window_scaling", "2").unwrap_or_default();
    let reverted = host.revert();
    assert_eq!(reverted.code, 0, "{reverted:?}");
    assert_eq!(host.values()[2], "0");
}

/// A tune that is killed at any step of its journal and its writes leaves a complete journal, so a
/// revert undoes all changes.
#[test]
fn a_tune_that_is_killed_in_the_middle_can_be_reverted_and_gone_on_with() {
    let mut partly = 0;
    for call in ["fdatasync", "fsync"] {
        for number in 1..=7 {
            let host = Host::new();
            let before = host.managed.seen();
            let mut command = Command::new("strace");
            let inject = format!("inject={call}:signal=KILL:when={number}");
            command.args(["-f", "-qq", "-o", "/dev/null", "-e", &inject]);
            command.arg(env!("CARGO_BIN_EXE_evenkeel")).args(["tune", NAME, "--apply", "--no-watch"]);
            command.env("EVENKEEL_STATE_DIR", host.managed.state.path()).stdin(Stdio::null());
            command.env("EVENKEEL_ETC_DIR", host.etc.path());
            let status = host.managed.enter(command).output().unwrap().status;
            let changed = host.values().iter().filter(|value| *value == "1").count();
            if status.success() {
                assert_eq!(changed, 4, "{call} {number}: it has fewer steps");
            } else if (1..4).contains(&changed) {
                partly += 1;
            }
            if number % 2 == 0 {
                // The changes stay, and the next tune continues. A session in between has nothing to
                // restore.
                let looked = end(host.managed.command(&["fair", NAME, "--observe", "--for", "100ms"]));
                assert!(looked.code == 0 && !looked.stderr.contains("had died"), "{looked:?}");
                let again = host.tune(&["--apply", "--no-watch"]);
                assert_eq!(again.code, 0, "{again:?}");
                assert_eq!(host.values(), ON, "{call} {number}");
            }
            let reverted = host.revert();
            assert_eq!(reverted.code, 0, "{call} {number}: {reverted:?}");
            assert_same(&host.managed.seen(), &before, &format!("{call} {number}"));
            assert!(is_empty(host.managed.state.path()), "{call} {number}: {:?}", host.managed.journals());
        }
    }
    assert!(partly >= 3, "some were killed between two changes: {partly}");
}

/// A file size limit can truncate the journal. No setting may change without an entry in the journal.
#[test]
fn a_limit_of_the_file_size_is_named_and_what_was_changed_goes_back() {
    let mut partly = 0;
    for blocks in 0..=6 {
        let host = Host::new();
        let before = host.managed.seen();
        let mut command = Command::new("sh");
        let limit = format!("ulimit -f {blocks}; exec \"$@\"");
        command.args(["-c", &limit, "sh", env!("CARGO_BIN_EXE_evenkeel")]);
        command.args(["tune", NAME, "--apply", "--no-watch"]).stdin(Stdio::null());
        command.env("EVENKEEL_STATE_DIR", host.managed.state.path()).env("EVENKEEL_ETC_DIR", host.etc.path());
        let limited = end(host.managed.enter(command));
        let changed = host.values().iter().filter(|value| *value == "1").count();
        partly += usize::from((1..4).contains(&changed));
        assert_eq!(limited.code != 0, changed < 4, "{blocks}: {limited:?}");
        assert!(changed == 4 || limited.stderr.contains("`ulimit -f`"), "{blocks}: {limited:?}");
        assert!(!limited.stderr.contains("name another directory"), "{blocks}: {limited:?}");
        let reverted = host.revert();
        assert_eq!(reverted.code, 0, "{blocks}: {reverted:?}");
        assert_same(&host.managed.seen(), &before, &format!("{blocks}"));
        assert!(is_empty(host.managed.state.path()), "{blocks}: {:?}", host.managed.journals());
    }
    assert!(partly > 0);
}

#[test]
fn a_damaged_journal_of_tune_names_the_places_of_its_settings() {
    let host = Host::new();
    assert_eq!(host.tune(&["--apply", "--no-watch"]).code, 0);
    let journal = host.managed.state.path().join(&host.managed.journals()[0]);
    let text = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, &text[..text.trim_end().rfind('\n').unwrap() + 9]).unwrap();
    for _ in 0..2 {
        let reverted = host.revert();
        assert!(reverted.code == 4, "{reverted:?}");
        for place in ["`sysctl net`", "`ethtool -g evk0`", "/proc/irq", "`tc qdisc show dev evk0`"] {
            assert!(reverted.stderr.contains(place), "{place}: {reverted:?}");
        }
    }
}

/// The kernel frees the maps of queues when their channels are removed.
#[test]
fn fewer_channels_are_reverted_with_the_maps_of_their_queues() {
    let host = Host::new();
    let files = |number: usize| {
        let file = |file: &str| format!("class/net/{NAME}/queues/{file}");
        [
            (file(&format!("tx-{number}/xps_cpus")), (1 + number % 3).to_string()),
            (file(&format!("rx-{number}/rps_cpus")), (3 - number % 3).to_string()),
            (file(&format!("rx-{number}/rps_flow_cnt")), (256 << number).to_string()),
        ]
    };
    let set: Vec<(String, String)> = (0..4).flat_map(files).collect();
    host.managed.host.write_sysfs(&set).unwrap();
    let read = |file: &str| {
        let read = || Ok::<_, TestbedError>(Sysfs::of_namespace().unwrap().read(file).unwrap_or_default());
        host.managed.host.run(read).unwrap()
    };
    let seen = || set.iter().map(|(file, _)| read(file)).collect::<Vec<_>>();
    let before = seen();
    let tuned = || {
        let state = StateDirectory::at(host.managed.state.path());
        let (mut lasting, _) = Lasting::begin(&state, host.managed.index, NAME, "tune").unwrap();
        for channels in [Channels::Rx, Channels::Tx] {
            lasting.change(&Change::new(Knob::Channels(channels), Value::Number(2))).unwrap();
        }
        lasting.keep().unwrap();
        Ok::<_, TestbedError>(())
    };
    let mut killed = 0;
    for (call, number) in
        (1..=2).map(|number| ("fdatasync", number)).chain((1..=12).map(|number| ("write", number)))
    {
        host.managed.host.run(tuned).unwrap();
        let mut command = Command::new("strace");
        let inject = format!("inject={call}:signal=KILL:when={number}");
        command.args(["-f", "-qq", "-o", "/dev/null", "-e", &inject]);
        command.args([env!("CARGO_BIN_EXE_evenkeel"), "revert", NAME]).stdin(Stdio::null());
        command.env("EVENKEEL_STATE_DIR", host.managed.state.path());
        let status = host.managed.enter(command).output().unwrap().status;
        killed += usize::from(!status.success());
        let reverted = host.revert();
        assert_eq!(reverted.code, 0, "{call} {number}: {reverted:?}");
        assert_eq!(seen(), before, "{call} {number}: {reverted:?}");
        assert!(is_empty(host.managed.state.path()), "{call} {number}");
    }
    assert!(killed > 6, "{killed}");
    for administrators in [false, true] {
        host.managed.host.run(tuned).unwrap();
        assert_eq!(seen().iter().filter(|value| value.is_empty()).count(), 6, "{:?}", seen());
        let mut wanted = before.clone();
        if administrators {
            host.managed.host.write_sysfs(&[(set[0].0.clone(), "2".to_owned())]).unwrap();
            wanted[0] = "2".to_owned();
        }
        let reverted = host.revert();
        assert!(reverted.code == 0 && reverted.stdout.contains("8 settings restored"), "{reverted:?}");
        assert_eq!(
            reverted.stderr.contains("tx-0/xps_cpus is left as another program set it"),
            administrators
        );
        assert_eq!(seen(), wanted);
        assert!(is_empty(host.managed.state.path()));
    }
}

/// systemd accepts the unit without warnings, and the unit's commands have the intended effect.
#[test]
fn a_unit_is_understood_by_systemd() {
    let host = Host::new();
    let applied = host.tune(&["--apply", "--no-watch", "--persist", "systemd"]);
    assert_eq!(applied.code, 0, "{applied:?}");
    let name = format!("evenkeel-tune-evk0:{}.service", host.namespace());
    let unit = host.etc.path().join("systemd/system").join(&name);
    let link = host.etc.path().join("systemd/system/multi-user.target.wants").join(&name);
    assert_eq!(std::fs::canonicalize(&link).unwrap(), std::fs::canonicalize(&unit).unwrap());
    let verified = Command::new("systemd-analyze").arg("verify").arg(&unit).output().unwrap();
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert!(!said.contains(&format!("{name}:")), "{said}");
    for (name, _) in WRONG {
        host.managed.host.set_sysctl(&format!("net/ipv4/{name}"), "0").unwrap();
    }
    let text = std::fs::read_to_string(&unit).unwrap();
    let lines: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("ExecStart=-/bin/sh -c ")).collect();
    assert_eq!(lines.len(), 4, "{text}");
    for line in lines {
        host.managed.shell(&["sh", "-c", line.trim_matches('"')]);
    }
    assert_eq!(host.values(), ON);
    host.revert();
    assert!(!unit.exists() && !Path::new(&link).exists() && std::fs::symlink_metadata(&link).is_err());
}

#[test]
fn a_recorded_host_is_planned_elsewhere() {
    let host = Host::new();
    let directory = tempfile::tempdir().unwrap();
    let saved = directory.path().join("host");
    let recorded = end(host.command(&["check", "--save", saved.to_str().unwrap()]));
    assert!(matches!(recorded.code, 0 | 1), "{recorded:?}");
    let plan = support::run(&["tune", NAME, "--from", saved.to_str().unwrap()]);
    assert!(plan.code == 0 && plan.stdout.contains("sysctl -w net.ipv4.tcp_sack=1"), "{plan:?}");
    let json = support::run(&["tune", NAME, "--from", saved.to_str().unwrap(), "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let items = json["items"].as_array().unwrap();
    let sack = items.iter().find(|item| item["rule"] == "sack-off").unwrap();
    assert_eq!(sack["changes"][0]["fix"], "sysctl -w net.ipv4.tcp_sack=1");
    let missing = support::run(&["tune", "evk9", "--from", saved.to_str().unwrap()]);
    assert!(missing.code == 2 && missing.stderr.contains(NAME), "{missing:?}");
}

/// A finding that needs a step by hand stays. If the user names its rule, the command ends with 1, although
/// no change failed.
#[test]
fn a_finding_of_a_named_rule_that_stays_ends_with_1() {
    let host = Host::new();
    host.managed.send_to_closed_port();
    let by_hand = host.tune(&["--apply", "udp-no-port", "--no-watch"]);
    assert!(by_hand.code == 1 && by_hand.stdout.contains("by hand: "), "{by_hand:?}");
    let both = host.tune(&["--apply", "sack-off", "udp-no-port", "--no-watch"]);
    assert!(both.code == 1 && both.stdout.contains("1 setting changed"), "{both:?}");
    let other = host.tune(&["--apply", "timestamps-off", "--no-watch"]);
    assert_eq!(other.code, 0, "{other:?}");
    assert_eq!(host.revert().code, 0);
    assert_eq!(host.values(), OFF);
}
