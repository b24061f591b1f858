//! Tests `evenkeel revert` and guardians that cannot restore everything: damaged journals, full or
//! read-only directories, no free descriptors, no permission. Messages and exit codes must report the
//! remaining changes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use evenkeel_apply::{Header, InterfaceIdentity, JournalWriter, StateDirectory};
use nix::sys::signal::Signal;

use serde_json::{Value, json};
use support::leftovers::children;
use support::managed::{DRIVERS_MAPS, Managed, NAME, assert_same, is_empty, kill_both, wait_for};
use support::running::Running;
use support::{Ended, copy_binary, end};

const LIMIT: Duration = Duration::from_secs(20);
const TUNE: [&str; 4] = ["tune", NAME, "--apply", "--no-watch"];

fn guardian(running: &mut Running) -> u32 {
    children(running.id())[0].id
}

fn run(managed: &Managed, arguments: &[&str]) -> Ended {
    end(managed.command(arguments))
}

/// Runs a shell script in a new mount namespace. `$E` is the binary, `$S` the state directory.
fn script(managed: &Managed, text: &str) -> Ended {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", text]).env("E", env!("CARGO_BIN_EXE_evenkeel"));
    command.env("S", managed.state.path()).env("EVENKEEL_STATE_DIR", managed.state.path());
    end(managed.enter(command))
}

fn assert_has(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "{word}: {said}");
    }
}

/// Damages the last entry of a journal, so that its line cannot be read.
fn flip(text: &str) -> String {
    let at = text.rfind("\"knob\"").unwrap();
    format!("{}x{}", &text[..at], &text[at + 1..])
}

#[test]
fn a_damaged_journal_is_reported_until_its_file_is_removed() {
    let managed = Managed::with_maps();
    let damages: [fn(&str) -> String; 3] =
        [flip, |text| text[..text.len() / 2].to_owned(), |_| "x\n".repeat(99)];
    for damage in damages {
        for (queue, map) in (0..).zip(DRIVERS_MAPS) {
            managed.set_map(queue, map);
        }
        kill_both(managed.session(&["--xps", "off"]));
        let journal = managed.state.path().join(&managed.journals()[0]);
        let text = std::fs::read_to_string(&journal).unwrap();
        std::fs::write(&journal, damage(&text)).unwrap();
        let kept = format!("{}.damaged", journal.display());
        let words = [
            "settings of evk0 may still have the values that evenkeel set",
            &kept,
            "line ",
            "tc qdisc show dev evk0",
            "then remove",
        ];
        for arguments in [&["revert"][..], &["revert"], &["revert", NAME]] {
            let ended = run(&managed, arguments);
            assert_eq!((ended.code, ended.stdout.contains("nothing to restore")), (4, false), "{ended:?}");
            assert_has(&ended.stderr, &words);
        }
        for arguments in [
            &["fair", NAME, "--xps", "off", "--for", "300ms"][..],
            &["fair", NAME, "--xps", "off", "--plan"],
            &["steer", NAME, "--policy", "balance", "--for", "300ms"],
            &["tune", NAME],
            &["check"],
            &["check", NAME],
        ] {
            assert_has(&run(&managed, arguments).stderr, &words);
        }
        let checked = run(&managed, &["check", NAME, "--format", "json"]);
        let found: Value = serde_json::from_str(&checked.stdout).unwrap();
        let damaged = &found["damaged"][0];
        assert_eq!(
            (checked.code, &damaged["interface"], &damaged["journal"]),
            (1, &json!(NAME), &json!(kept))
        );
        assert!(damaged["damage"][0].as_str().is_some_and(|line| line.starts_with("line ")), "{damaged}");
        managed.shell(&["ip", "link", "add", "evkother", "type", "bridge"]);
        let other = run(&managed, &["revert", "evkother"]);
        assert_eq!((other.code, other.stderr.as_str()), (0, ""), "{other:?}");
        managed.shell(&["ip", "link", "del", "evkother"]);
        std::fs::remove_file(kept).unwrap();
        let ended = run(&managed, &["revert"]);
        assert_eq!((ended.code, ended.stdout.as_str()), (0, "nothing to restore\n"), "{ended:?}");
    }
}

#[test]
fn a_check_reports_a_journal_without_a_readable_line() {
    let managed = Managed::with_maps();
    let mut running = managed.session(&["--xps", "off"]);
    let journal = managed.state.path().join(&managed.journals()[0]);
    std::fs::write(&journal, "").unwrap();
    let damaged = || {
        let checked = run(&managed, &["check", NAME, "--format", "json"]);
        let found: Value = serde_json::from_str(&checked.stdout).unwrap();
        found["damaged"][0]["journal"].as_str().map(str::to_owned)
    };
    assert_eq!(damaged(), None, "its session lives");
    running.signal(Signal::SIGSTOP);
    kill_both(running);
    assert_eq!(damaged().as_deref(), journal.to_str());
}

/// Puts a file or directory of the kind `what` in a journal's place. Returns a part of the expected report.
fn supplant(journal: &Path, moved: &Path, what: &str) -> &'static str {
    std::fs::rename(journal, moved).unwrap();
    match what {
        "directory" => std::fs::create_dir(journal).map(|()| "it is a directory").unwrap(),
        "FIFO" => {
            nix::unistd::mkfifo(journal, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
            "it is not a regular file"
        }
        "link" => {
            std::os::unix::fs::symlink(moved, journal).unwrap();
            "it is a symbolic link to "
        }
        _ => {
            std::fs::copy(moved, journal).unwrap();
            std::os::unix::fs::chown(journal, Some(65534), None).unwrap();
            "it belongs to user ID 65534"
        }
    }
}

#[test]
fn a_journal_whose_place_is_taken_is_reported_and_restored_once_it_is_put_back() {
    let managed = Managed::with_maps();
    managed.shell(&["ip", "link", "add", "evkother", "type", "bridge"]);
    for what in ["directory", "FIFO", "link", "file of another user"] {
        let mut running = managed.session(&["--xps", "off"]);
        let journal = managed.state.path().join(&managed.journals()[0]);
        let moved = managed.state.path().join("saved");
        let reason = supplant(&journal, &moved, what);
        assert!(run(&managed, &["check", NAME, "--format", "json"]).stdout.contains("\"damaged\": []"));
        running.signal(Signal::SIGSTOP);
        kill_both(running);
        let place = journal.display().to_string();
        let words = [
            "settings of evk0 may still have the values that evenkeel set",
            &place,
            reason,
            " evenkeel revert evk0`",
        ];
        for (arguments, code) in [
            (&["revert"][..], 4),
            (&["revert", NAME], 4),
            (&["check", NAME], 1),
            (&["tune", NAME], 0),
            (&["fair", NAME, "--xps", "off", "--plan"], 4),
            (&["fair", NAME, "--xps", "off", "--for", "300ms"], 4),
        ] {
            let ended = run(&managed, arguments);
            assert_eq!(ended.code, code, "{what}, {arguments:?}: {ended:?}");
            assert_has(&ended.stderr, &words);
            assert!(!ended.stderr.contains("not a journal"), "{ended:?}");
        }
        assert_eq!(run(&managed, &["revert", "evkother"]).code, 0);
        match what {
            "directory" => std::fs::remove_dir(&journal).unwrap(),
            _ => std::fs::remove_file(&journal).unwrap(),
        }
        std::fs::rename(&moved, &journal).unwrap();
        assert_eq!(run(&managed, &["revert"]).code, 0);
        assert_eq!(managed.maps(), DRIVERS_MAPS);
    }
}

#[test]
fn no_command_promises_to_restore_what_a_damaged_journal_has_lost() {
    let managed = Managed::with_maps();
    for damage in [flip, |text: &str| text[..text.len() - 20].to_owned()] {
        kill_both(managed.session(&["--xps", "off"]));
        let journal = managed.state.path().join(&managed.journals()[0]);
        let text = std::fs::read_to_string(&journal).unwrap();
        std::fs::write(&journal, damage(&text)).unwrap();
        for arguments in [
            &["check", NAME][..],
            &["check", NAME, "--format", "json"],
            &["fair", NAME, "--xps", "off", "--plan"],
            &["fair", NAME, "--observe", "--for", "100ms"],
        ] {
            let ended = run(&managed, arguments);
            let words = [
                "settings of evk0 may still have the values that evenkeel set",
                " evenkeel revert evk0` restores only these",
            ];
            assert_has(&ended.stderr, &words);
            let said = format!("{}{}", ended.stdout, ended.stderr);
            assert!(!said.contains("restores them") && !said.contains("\"command\": \"fair\""), "{ended:?}");
        }
        assert_eq!(run(&managed, &["revert"]).code, 4);
        std::fs::remove_file(format!("{}.damaged", journal.display())).unwrap();
        for (queue, map) in (0..).zip(DRIVERS_MAPS) {
            managed.set_map(queue, map);
        }
    }
}

#[test]
fn the_root_of_a_damaged_journal_is_reported_with_the_journal() {
    let managed = Managed::new();
    kill_both(managed.session(&["--xps", "off", "--queue-weights", "htb", "--rate", "200mbit"]));
    let journal = managed.state.path().join(&managed.journals()[0]);
    std::fs::OpenOptions::new().write(true).open(&journal).unwrap().set_len(100).unwrap();
    for (arguments, path) in [
        (&["check", NAME][..], journal.display().to_string()),
        (&["revert", NAME], format!("{}.damaged", journal.display())),
    ] {
        let ended = run(&managed, arguments);
        let said =
            format!("{}{}", ended.stdout, ended.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
        let words = format!("its journal {path} cannot restore the old qdisc");
        assert_has(&said, &[&words, "tc qdisc del dev evk0 root"]);
        assert!(!said.contains("does not exist"), "{ended:?}");
    }
}

#[test]
fn a_damaged_journal_of_an_earlier_boot_or_of_a_deleted_interface_is_no_failure() {
    let managed = Managed::with_maps();
    kill_both(managed.session(&["--xps", "off"]));
    let journal = managed.state.path().join(&managed.journals()[0]);
    let mut header = StateDirectory::read(&journal).unwrap().unwrap().header.unwrap();
    std::fs::write(&journal, flip(&std::fs::read_to_string(&journal).unwrap())).unwrap();
    assert_eq!(run(&managed, &["revert"]).code, 4);
    let kept = PathBuf::from(format!("{}.damaged", journal.display()));
    managed.shell(&["ip", "link", "del", NAME]);
    let ended = run(&managed, &["revert"]);
    assert!(ended.code == 0 && ended.stderr.contains("whose interface was deleted"), "{ended:?}");
    header.interface.boot = "00000000-0000-0000-0000-000000000000".to_owned();
    let (_, bytes) = JournalWriter::begin(&header, journal.file_name().unwrap().to_str().unwrap());
    std::fs::write(&kept, bytes).unwrap();
    let ended = run(&managed, &["revert"]);
    assert!(ended.code == 0 && ended.stderr.is_empty() && !kept.exists(), "{ended:?}");
}

/// Runs a copy of the binary in `place` as a user without privileges. Makes `place` readable for this user.
fn as_user(managed: &Managed, place: &Path, state: &Path, arguments: &[&str]) -> Ended {
    std::fs::set_permissions(place, std::fs::Permissions::from_mode(0o755)).unwrap();
    let binary = place.join("evenkeel");
    copy_binary(&binary);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&binary).args(arguments);
    command.env("EVENKEEL_STATE_DIR", state);
    end(managed.enter(command))
}

#[test]
fn a_user_is_refused_where_sys_is_of_another_namespace() {
    let managed = Managed::new();
    let place = tempfile::tempdir().unwrap();
    for arguments in [&["check"][..], &["check", NAME], &["tune", NAME], &["nic", "probe", NAME]] {
        let ended = as_user(&managed, place.path(), managed.state.path(), arguments);
        assert!(ended.code == 3 && ended.stdout.is_empty(), "{arguments:?}: {ended:?}");
        assert_has(&ended.stderr, &["/sys shows the interfaces of another network namespace"]);
    }
}

#[test]
fn a_user_is_told_to_run_revert_as_root() {
    let managed = Managed::new();
    let place = tempfile::tempdir().unwrap();
    for state in [managed.state.path(), Path::new("/nonexistent/evenkeel")] {
        let ended = as_user(&managed, place.path(), state, &["revert"]);
        assert!(ended.code == 3 && ended.stdout.is_empty(), "{ended:?}");
        assert_has(&ended.stderr, &["run the command as root"]);
    }
}

#[test]
fn a_guardian_without_descriptors_restores() {
    let managed = Managed::with_maps();
    let mut running = managed.session(&["--xps", "off", "--segments", "16KiB"]);
    let id = guardian(&mut running).to_string();
    managed.shell(&["prlimit", "--nofile=3:3", "--pid", &id]);
    running.kill();
    managed.wait_for_maps(&DRIVERS_MAPS, LIMIT);
    wait_for("the journal is removed", LIMIT, || managed.journals().is_empty());
}

#[test]
fn a_guardian_that_cannot_restore_names_the_interface() {
    let managed = Managed::with_maps();
    let mut running = managed.session(&["--xps", "off"]);
    let id = guardian(&mut running).to_string();
    // Stop the worker: its ping would make the guardian poll again, and this poll needs descriptors.
    running.signal(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_millis(200));
    managed.shell(&["prlimit", "--nofile=0:0", "--pid", &id]);
    running.signal(Signal::SIGKILL);
    let words = ["cannot restore the settings of evk0 that evenkeel changed: ", " evenkeel revert evk0`"];
    wait_for("the message", LIMIT, || words.iter().all(|word| running.said().contains(word)));
    running.kill();
    assert_eq!(run(&managed, &["revert", NAME]).code, 0);
    assert_eq!(managed.maps(), DRIVERS_MAPS);
}

#[test]
fn a_journal_that_cannot_be_removed_does_not_hide_the_summary() {
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let managed = Managed::with_maps();
        let mut running = managed.session(&["--xps", "off"]);
        let set_mode = |mode| {
            std::fs::set_permissions(managed.state.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set_mode(0o500);
        running.signal(signal);
        managed.wait_for_maps(&DRIVERS_MAPS, LIMIT);
        let words = [
            "evk0: 2 settings restored",
            "but the journal remains: cannot remove",
            "remove the cause, then run `",
        ];
        wait_for("the summary", LIMIT, || words.iter().all(|word| running.said().contains(word)));
        if signal == Signal::SIGINT {
            assert_eq!(running.end().code, 4);
        } else {
            running.kill();
        }
        set_mode(0o700);
        let ended = run(&managed, &["revert"]);
        assert!(ended.code == 0 && managed.journals().is_empty(), "{ended:?}");
    }
}

#[test]
fn settings_go_back_although_the_directory_is_full_or_read_only() {
    let managed = Managed::new();
    let full = "mount -t tmpfs -o size=64k,mode=700 x $S; $E tune evk0 --apply --no-watch >&2; \
                dd if=/dev/zero of=$S/x.draft bs=4k 2>/dev/null || :; chmod 600 $S/x.draft; exec 9<$S/x.draft; flock -x 9; \
                $E revert evk0 9<&-";
    let read_only = "$E tune evk0 --apply --no-watch >&2; mount --bind $S $S; mount -o remount,ro,bind $S; \
                     $E revert evk0 || echo $?; $E revert evk0 || echo $?; umount $S; $E revert evk0";
    for (text, words) in [(full, &["1 setting restored"][..]), (read_only, &["4\n4\n", "already as before"])]
    {
        managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
        let before = managed.seen();
        let ended = script(&managed, text);
        assert_eq!(ended.code, 0, "{ended:?}");
        assert_has(&ended.stdout, words);
        assert_same(&managed.seen(), &before, "reverted");
    }
}

#[test]
fn a_lock_without_entries_adds_no_line() {
    let managed = Managed::new();
    managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    assert_eq!(run(&managed, &TUNE).code, 0);
    // Create the journal as a killed `tune` or `revert` leaves it.
    let kept = managed.state.path().join(&managed.journals()[0]);
    let contents = StateDirectory::read(&kept).unwrap().unwrap();
    let interface: InterfaceIdentity = contents.header.unwrap().interface;
    let lock = StateDirectory::at(managed.state.path()).journal_of(&interface);
    let header = Header {
        process: evenkeel_apply::Process { id: 1, start_ticks: 1 },
        ..Header::kept(interface, "tune")
    };
    let (_, bytes) = JournalWriter::begin(&header, lock.file_name().unwrap().to_str().unwrap());
    std::fs::write(&lock, bytes).unwrap();
    let ended = run(&managed, &["revert", NAME]);
    assert!(ended.code == 0 && ended.stdout.contains("restored"), "{ended:?}");
    assert!(!ended.stdout.contains("nothing to restore"), "{ended:?}");
    assert!(managed.journals().is_empty());
}

#[test]
fn a_journal_that_is_removed_during_a_session_is_written_again() {
    let sessions: [&[&str]; 2] =
        [&["fair", NAME, "--xps", "off"], &["steer", NAME, "--policy", "balance", "--backend", "rps"]];
    for (arguments, ready) in sessions.into_iter().zip(["managed now", "steered now"]) {
        for removal in ["rm $S/*.journal", "rm -r $S", "mv $S $S.moved"] {
            let managed = Managed::with_maps();
            let before = managed.seen();
            let mut running = Running::start(managed.command(arguments));
            running.wait_for_activity(ready);
            let first = guardian(&mut running);
            assert_eq!(script(&managed, removal).code, 0);
            wait_for("the warning", LIMIT, || running.said().contains("evenkeel wrote it again"));
            wait_for("another guardian", LIMIT, || {
                children(running.id()).iter().map(|child| child.id).collect::<Vec<_>>() != [first]
            });
            wait_for("one guardian", LIMIT, || children(running.id()).len() == 1);
            kill_both(running);
            let ended = run(&managed, &["revert"]);
            assert!(ended.code == 0 && ended.stdout.contains("restored"), "{removal}: {ended:?}");
            assert_same(&managed.seen(), &before, removal);
            let _ = std::fs::remove_dir_all(format!("{}.moved", managed.state.path().display()));
        }
    }
}

#[test]
fn a_journal_that_is_changed_during_a_session_is_written_again() {
    for change in [": >", "truncate -s -20", "printf evenkeel-journal >"] {
        let managed = Managed::with_maps();
        let before = managed.seen();
        let mut running = managed.session(&["--xps", "off"]);
        let first = guardian(&mut running);
        assert_eq!(script(&managed, &format!("for J in $S/*.journal; do {change} $J; done")).code, 0);
        wait_for("the warning", LIMIT, || running.said().contains("changed the journal"));
        wait_for("another guardian", LIMIT, || {
            children(running.id()).iter().map(|child| child.id).collect::<Vec<_>>() != [first]
        });
        wait_for("one guardian", LIMIT, || children(running.id()).len() == 1);
        // Kill only the worker: the new guardian restores its settings.
        running.kill();
        managed.wait_for_maps(&DRIVERS_MAPS, LIMIT);
        wait_for("no journal", LIMIT, || managed.journals().is_empty());
        assert_same(&managed.seen(), &before, change);
    }
}

#[test]
fn a_journal_whose_place_is_taken_during_a_session_is_reported() {
    let managed = Managed::with_maps();
    let mut running = managed.session(&["--xps", "off"]);
    let journal = managed.state.path().join(&managed.journals()[0]);
    // Stop the session first: otherwise it would write the removed journal again.
    running.signal(Signal::SIGSTOP);
    std::fs::remove_file(&journal).unwrap();
    std::fs::create_dir(&journal).unwrap();
    running.signal(Signal::SIGCONT);
    running.wait_for_activity("another file or directory has the name of the journal");
    std::fs::remove_dir(&journal).unwrap();
    running.wait_for_activity("evenkeel wrote it again");
    running.signal(Signal::SIGINT);
    assert_eq!(running.end().code, 130);
    assert_eq!(managed.maps(), DRIVERS_MAPS);
}

/// The session has no time to check its journal again before the end.
#[test]
fn a_journal_whose_place_is_taken_just_before_the_end_is_reported() {
    let sessions: [&[&str]; 2] =
        [&["fair", NAME, "--xps", "off"], &["steer", NAME, "--policy", "balance", "--backend", "rps"]];
    for (arguments, ready) in sessions.into_iter().zip(["managed now", "steered now"]) {
        for what in ["FIFO", "link", "directory"] {
            let managed = Managed::with_maps();
            let before = managed.seen();
            let mut running = Running::start(managed.command(arguments));
            running.wait_for_activity(ready);
            let journal = managed.state.path().join(&managed.journals()[0]);
            let moved = tempfile::tempdir().unwrap();
            running.signal(Signal::SIGSTOP);
            supplant(&journal, &managed.state.path().join("moved"), what);
            std::fs::rename(managed.state.path().join("moved"), moved.path().join("moved")).unwrap();
            running.signal(Signal::SIGTERM);
            running.signal(Signal::SIGCONT);
            let ended = running.end();
            assert_eq!(ended.code, 4, "{what}: {ended:?}");
            assert_has(&ended.stderr, &[journal.to_str().unwrap()]);
            assert!(journal.symlink_metadata().is_ok(), "{what}: it is not removed");
            assert_same(&managed.seen(), &before, what);
        }
    }
}

#[test]
fn a_journal_that_was_renamed_is_reported_until_it_has_its_name_again() {
    let managed = Managed::with_maps();
    managed.shell(&["ip", "link", "add", "evkother", "type", "bridge"]);
    kill_both(managed.session(&["--xps", "off"]));
    let journal = managed.state.path().join(&managed.journals()[0]);
    let (copied, edited) = (format!("{}.bak", journal.display()), format!("{}-old", journal.display()));
    let aside = format!("{}.damaged", journal.display());
    for name in ["saved", "1-2.journal", "x.journal", &copied, &edited, &aside] {
        let moved = managed.state.path().join(name);
        std::fs::rename(&journal, &moved).unwrap();
        let fix = format!(
            "mv {} {} && EVENKEEL_STATE_DIR={} evenkeel revert {NAME}",
            moved.display(),
            journal.display(),
            managed.state.path().display()
        );
        for (arguments, code) in [
            (&["revert"][..], 4),
            (&["revert", NAME], 4),
            (&["check", NAME], 1),
            (&["check"], 1),
            (&["tune", NAME], 0),
            (&["fair", NAME, "--xps", "off", "--plan"], 3),
            (&["fair", NAME, "--xps", "off", "--for", "300ms"], 3),
            (&["tune", NAME, "--apply", "--no-watch"], 3),
            (&["steer", NAME, "--policy", "balance", "--backend", "rps", "--for", "300ms"], 3),
            (&["steer", NAME, "--policy", "balance", "--backend", "xdp", "--for", "300ms"], 3),
        ] {
            let ended = run(&managed, arguments);
            let said = format!("{}{}", ended.stdout, ended.stderr);
            let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(ended.code, code, "{name}, {arguments:?}: {ended:?}");
            assert_has(&said, &[&fix]);
            assert!(!said.contains("nothing to restore"), "{ended:?}");
        }
        let checked = run(&managed, &["check", "--format", "json"]);
        let found: Value = serde_json::from_str(&checked.stdout).unwrap();
        assert_eq!(found["renamed"][0]["fix"], json!(fix));
        assert_eq!(run(&managed, &["revert", "evkother"]).code, 0, "{name}");
        std::fs::rename(&moved, &journal).unwrap();
    }
    // A copy next to the journal is not a renamed journal.
    std::fs::copy(&journal, managed.state.path().join("copy")).unwrap();
    let ended = run(&managed, &["revert"]);
    assert!(ended.code == 0 && !ended.stderr.contains("renamed"), "{ended:?}");
    assert_eq!(managed.maps(), DRIVERS_MAPS);
    // The copy contains settings that have their original values.
    let ended = run(&managed, &["revert"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "nothing to restore\n"), "{ended:?}");
}

/// Without the journal, a run would treat the values of `tune` as the administrator's.
#[test]
fn a_renamed_journal_of_tune_is_refused_by_every_run_and_removed_when_it_is_finished() {
    let managed = Managed::new();
    managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    assert_eq!(run(&managed, &["tune", NAME, "--apply", "sack-off", "--no-watch"]).code, 0);
    let journal = managed.state.path().join(&managed.journals()[0]);
    for suffix in [".bak", ".copy", "~", ".orig", ".1", ".old.journal"] {
        let moved = format!("{}{suffix}", journal.display());
        std::fs::rename(&journal, &moved).unwrap();
        for arguments in [
            &["tune", NAME, "--apply", "--no-watch"][..],
            &["fair", NAME, "--plan"],
            &["fair", NAME, "--for", "300ms"],
            &["fair", NAME, "--queue-weights", "htb", "--rate", "50mbit", "--for", "300ms"],
            &["steer", NAME, "--policy", "balance", "--backend", "rps", "--for", "300ms"],
            &["steer", NAME, "--policy", "balance", "--backend", "xdp", "--for", "300ms"],
        ] {
            let ended = run(&managed, arguments);
            assert_eq!(ended.code, 3, "{suffix}, {arguments:?}: {ended:?}");
            assert_eq!(ended.stderr.matches("another program renamed the journal").count(), 1, "{ended:?}");
        }
        std::fs::rename(&moved, &journal).unwrap();
        std::fs::copy(&journal, &moved).unwrap();
    }
    let ended = run(&managed, &["revert", NAME]);
    assert!(ended.code == 0 && is_empty(managed.state.path()), "{ended:?}");
}

#[test]
fn a_damaged_journal_is_described_once() {
    let managed = Managed::with_maps();
    managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    kill_both(managed.session(&["--xps", "off"]));
    let journal = managed.state.path().join(&managed.journals()[0]);
    std::fs::write(&journal, "").unwrap();
    std::os::unix::fs::chown(&journal, Some(12345), None).unwrap();
    for arguments in [
        &["tune", NAME, "--apply", "sack-off", "--no-watch"][..],
        &["fair", NAME, "--xps", "off", "--plan"],
        &["fair", NAME, "--xps", "off", "--for", "300ms"],
        &["steer", NAME, "--policy", "balance", "--backend", "rps", "--for", "300ms"],
    ] {
        let ended = run(&managed, arguments);
        assert_eq!(ended.code, 4, "{arguments:?}: {ended:?}");
        assert_eq!(
            ended.stderr.matches("may still have the values that evenkeel set").count(),
            1,
            "{ended:?}"
        );
    }
}

/// The process that a kept journal names has ended, so the error must not name it as the holder of the
/// lock.
#[test]
fn the_process_of_a_journal_is_not_named_as_the_holder_of_its_lock() {
    let managed = Managed::new();
    managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    assert_eq!(run(&managed, &["tune", NAME, "--apply", "sack-off", "--no-watch"]).code, 0);
    let journal = managed.state.path().join(&managed.journals()[0]);
    let file = std::fs::File::open(&journal).unwrap();
    file.lock().unwrap();
    let refused = run(&managed, &["revert", NAME]);
    assert_eq!(refused.code, 3, "{refused:?}");
    assert_has(&refused.stderr, &["another process has locked the journal"]);
    assert!(!refused.stderr.contains("kill"), "{refused:?}");
}

#[test]
fn an_interface_that_cannot_be_looked_up_is_no_wrong_name() {
    let managed = Managed::new();
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]);
    command.arg(env!("CARGO_BIN_EXE_evenkeel")).args(["revert", NAME]);
    command.env("EVENKEEL_STATE_DIR", managed.state.path());
    let refused = end(managed.enter(command));
    assert_eq!(refused.code, 3, "{refused:?}");
    assert_has(&refused.stderr, &["/sys shows the interfaces of another network namespace"]);
}

/// In a user namespace, even root may not load BPF programs or write the files of queues.
#[test]
fn a_user_namespace_is_named_with_the_next_step() {
    let state = tempfile::tempdir().unwrap();
    for (arguments, words) in [
        ("fair evk0 --for 1s", "lacks CAP_PERFMON, CAP_BPF"),
        ("steer evk0 --policy balance --backend rps --for 1s", "/rps_cpus: Operation not permitted"),
        ("steer evk0 --policy balance --backend xdp --for 1s", "lacks CAP_BPF, CAP_PERFMON"),
    ] {
        let mut command = Command::new("unshare");
        let script = format!(
            "mount -t sysfs none /sys && ip link add evk0 numrxqueues 2 numtxqueues 2 type veth peer name evk1 && \
             ip link set evk0 up && ip link set evk1 up && exec \"$0\" {arguments}"
        );
        command.args(["-r", "-n", "-m", "sh", "-c", &script, env!("CARGO_BIN_EXE_evenkeel")]);
        command.env("EVENKEEL_STATE_DIR", state.path());
        let refused = end(command);
        assert_eq!(refused.code, 3, "{refused:?}");
        assert_has(&refused.stderr, &[words, "run the command as root in the initial user namespace"]);
    }
}

#[test]
fn a_hidden_proc_sys_is_named() {
    let mut command = Command::new("unshare");
    let script = "mount -t sysfs none /sys && mount -t proc -o subset=pid proc /proc && \
                  exec \"$0\" tune lo --apply sack-off --no-watch";
    command.args(["-n", "-m", "sh", "-c", script, env!("CARGO_BIN_EXE_evenkeel")]);
    let refused = end(command);
    assert_eq!(refused.code, 3, "{refused:?}");
    assert_has(&refused.stderr, &["/proc/sys is not visible"]);
}

/// A container without `--privileged` has a read-only /proc/sys.
#[test]
fn a_read_only_proc_sys_is_found_before_the_first_change() {
    let managed = Managed::with_maps();
    managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    let before = managed.seen();
    let read_only = |arguments: &str| {
        let mount = "mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys";
        script(&managed, &format!("{mount} && exec \"$E\" {arguments}"))
    };
    for (arguments, words) in [
        ("fair evk0 --xps off --segments 16KiB --for 300ms", "use --segments off"),
        ("fair evk0 --xps off --segments auto --plan", "use --segments off"),
    ] {
        let refused = read_only(arguments);
        assert_eq!(refused.code, 3, "{arguments}: {refused:?}");
        assert_has(&refused.stderr, &[words]);
        assert_same(&managed.seen(), &before, arguments);
        assert!(managed.journals().is_empty(), "{arguments}");
    }
    let tuned = read_only("tune evk0 --apply sack-off --no-watch");
    assert_eq!(tuned.code, 1, "{tuned:?}");
    assert_has(&tuned.stdout, &["nothing was changed", "mount its file system for writing"]);
    let words = "tcp_limit_output_bytes stays, so each flow may have more data in the queues: ";
    let ended = read_only("fair evk0 --xps off --queue-weights htb --rate 200mbit --for 1s");
    assert_eq!((ended.code, ended.stderr.matches(words).count()), (0, 1), "{ended:?}");
    assert_same(&managed.seen(), &before, "afterwards");
}

#[test]
fn a_limit_of_open_files_is_no_foreign_sys() {
    let state = tempfile::tempdir().unwrap();
    for command in [&["tune", "lo"][..], &["revert", "lo"]] {
        for limit in 4..=6 {
            let mut limited = Command::new("sh");
            limited.args(["-c", &format!("ulimit -n {limit}; exec \"$@\""), "sh"]);
            limited.arg(env!("CARGO_BIN_EXE_evenkeel")).args(command).env("EVENKEEL_STATE_DIR", state.path());
            let ended = end(limited);
            assert!(!ended.stderr.contains("another network namespace"), "{limit}: {ended:?}");
            assert!(ended.code == 0 || ended.stderr.contains("Too many open files"), "{limit}: {ended:?}");
        }
    }
}

#[test]
fn files_of_a_deleted_namespace_are_removed() {
    let [state, etc] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let gone = Managed::new();
    gone.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    let mut tune = gone.command(&["tune", NAME, "--apply", "sack-off", "--no-watch", "--persist", "sysctl"]);
    tune.env("EVENKEEL_STATE_DIR", state.path()).env("EVENKEEL_ETC_DIR", etc.path());
    assert_eq!(end(tune).code, 0);
    drop(gone);
    let other = Managed::new();
    let revert = || {
        let mut revert = other.command(&["revert"]);
        revert.env("EVENKEEL_STATE_DIR", state.path());
        end(revert)
    };
    // A process that another test forks has the namespace's descriptor until the process executes its
    // program. Until then, the namespace still exists.
    let mut reverted = revert();
    for _ in 0..50 {
        if !reverted.stderr.contains("does not change its settings") {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
        reverted = revert();
    }
    assert_eq!(reverted.code, 0, "{reverted:?}");
    assert!(reverted.stdout.contains(".conf: removed"), "{reverted:?}");
    assert!(std::fs::read_dir(etc.path().join("sysctl.d")).unwrap().next().is_none());
    assert!(std::fs::read_dir(state.path()).unwrap().next().is_none());
}

#[test]
fn what_is_unsafe_has_a_next_step() {
    let managed = Managed::with_maps();
    let place = tempfile::tempdir().unwrap();
    let state = place.path().join("state");
    for (made, step) in [
        ("mkdir -m 700 $D; chown 65534 $D", "chown root "),
        ("mkdir -m 777 $D", "chmod 700 "),
        ("mkdir -m 700 $D.real; ln -s $D.real $D", "or remove the link"),
        ("mkdir -m 700 $D; mkdir $D/1-7.journal", "restore the journal; otherwise remove the file"),
        ("mkdir -m 700 $D; mkfifo $D/1-7.journal", "restore the journal; otherwise remove the file"),
        ("mkdir -m 700 $D; ln -s /etc/passwd $D/1-7.journal", "replace the link with the journal"),
        ("mkdir -m 700 $D; touch $D/1-7.journal; chown 65534 $D/1-7.journal", "chown root "),
    ] {
        let mut command = Command::new("sh");
        command.args(["-ec", &format!("rm -rf $D $D.real; {made}")]).env("D", &state);
        assert_eq!(end(command).code, 0, "{made}");
        let mut command = managed.command(&["revert"]);
        command.env("EVENKEEL_STATE_DIR", &state);
        let ended = end(command);
        assert_eq!(ended.code, 3, "{made}: {ended:?}");
        assert_has(&ended.stderr, &["is not safe to use: ", step]);
    }
}

#[test]
fn files_for_another_namespace_than_the_hosts_are_refused() {
    let managed = Managed::new();
    managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    let before = managed.seen();
    // Mount an empty directory over the host's /etc.
    let text = "mount -t tmpfs x /etc; $E tune evk0 --apply --no-watch --persist sysctl || echo $?; ls /etc";
    let ended = script(&managed, text);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "3\n"), "{ended:?}");
    assert_has(&ended.stderr, &["initial network namespace"]);
    assert_same(&managed.seen(), &before, "refused");
    assert!(managed.journals().is_empty());
}

/// An unreadable journal whose file name belongs to another namespace does not affect interfaces of this
/// namespace.
#[test]
fn an_odd_file_of_another_namespace_hinders_no_other_journal() {
    let managed = Managed::with_maps();
    for make in ["ln -s nosuch", "mkdir", "mkfifo"] {
        kill_both(managed.session(&["--xps", "off", "--queue-weights", "htb", "--rate", "200mbit"]));
        assert_eq!(script(&managed, &format!("{make} $S/7-9.journal.damaged")).code, 0);
        let planned = run(&managed, &["steer", NAME, "--policy", "balance", "--plan"]);
        assert!(!planned.stderr.contains("and its journal"), "{make}: {planned:?}");
        let ended = run(&managed, &["revert"]);
        assert_eq!(ended.code, 3, "{make}: {ended:?}");
        assert_has(&ended.stderr, &["7-9.journal.damaged is not safe to use"]);
        assert!(ended.stdout.contains("restored"), "{make}: {ended:?}");
        assert_eq!(managed.maps(), DRIVERS_MAPS);
        assert_eq!(script(&managed, "rm -r $S/7-9.journal.damaged").code, 0);
    }
    // `revert` can restore the root qdisc from a journal with one unreadable line.
    kill_both(managed.session(&["--xps", "off", "--queue-weights", "htb", "--rate", "200mbit"]));
    let journal = managed.state.path().join(&managed.journals()[0]);
    let text = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, flip(&text)).unwrap();
    assert_eq!(script(&managed, "mkdir $S/7-9.journal.damaged").code, 0);
    let checked = run(&managed, &["check", NAME]);
    assert_has(&checked.stderr, &["settings of evk0 may still have the values that evenkeel set"]);
    assert!(!checked.stderr.contains("cannot restore the old qdisc"), "{checked:?}");
    assert_eq!(run(&managed, &["revert"]).code, 4);
}

#[test]
fn a_revert_opens_few_descriptors_on_a_host_with_many_interfaces() {
    let managed = Managed::new();
    managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    assert_eq!(run(&managed, &TUNE).code, 0);
    for number in 0..80 {
        managed.shell(&["ip", "link", "add", &format!("evkmany{number}"), "type", "bridge"]);
    }
    let ended = script(&managed, "ulimit -n 40; exec $E revert");
    assert!(ended.code == 0 && ended.stderr.is_empty(), "{ended:?}");
    assert!(ended.stdout.contains("restored"), "{ended:?}");
    assert!(managed.journals().is_empty());
}
