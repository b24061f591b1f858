//! Kills the manager of an interface: the guardian restores the settings within two seconds. If manager
//! and guardian are both killed, `evenkeel revert` or the next run restores the settings.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_apply::{Entry, Header, JournalWriter, StateDirectory};
use evenkeel_testbed::Namespace;
use nix::sys::signal::Signal;
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use support::leftovers::children;
use support::managed::{
    AT_WORK, DRIVERS_MAPS, Managed, NAME, assert_same, is_empty, kill_both, kill_process, wait_for,
};
use support::running::Running;
use support::{end, without};

/// Capabilities by which root reads a directory without permission (capability.h).
const CAP_DAC_OVERRIDE: libc::c_ulong = 1;
const CAP_DAC_READ_SEARCH: libc::c_ulong = 2;

const LIMIT: Duration = Duration::from_secs(2);

#[test]
fn the_guardian_restores_what_a_killed_run_had_changed() {
    let managed = Managed::with_maps();
    let before = managed.seen();
    let mut running = managed.session(&["--xps", "off"]);
    let held = running.holdings_but_namespaces();
    assert_eq!(managed.maps(), ["0"; 4]);
    running.kill();
    managed.wait_for_maps(&DRIVERS_MAPS, LIMIT);
    held.assert_gone();
    assert!(is_empty(managed.state.path()));
    assert_same(&managed.seen(), &before, "afterwards");
}

#[test]
fn a_guardian_that_dies_is_replaced() {
    let managed = Managed::with_maps();
    let mut running = managed.session(&["--xps", "off"]);
    let first = children(running.id());
    kill_process(first[0].id);
    wait_for("another guardian", LIMIT, || children(running.id()).iter().any(|child| !first.contains(child)));
    running.kill();
    managed.wait_for_maps(&DRIVERS_MAPS, LIMIT);
}

fn journal_bytes(path: &Path, header: &Header, entries: &[Entry]) -> Vec<u8> {
    let file = path.file_name().unwrap().to_str().unwrap();
    let (mut writer, mut bytes) = JournalWriter::begin(header, file);
    for entry in entries {
        bytes.extend(writer.entry(entry));
    }
    let count = writer.count();
    bytes[..count.len()].copy_from_slice(&count);
    bytes
}

#[test]
fn if_both_die_revert_or_the_next_run_restores() {
    let managed = Managed::with_maps();
    let before = managed.seen();
    kill_both(managed.session(&["--xps", "off"]));
    assert_eq!(managed.maps(), ["0"; 4], "no process is left to restore them");
    let ended = end(managed.command(&["revert", NAME]));
    assert!(ended.code == 0 && ended.stdout.contains("2 settings restored"), "{ended:?}");
    assert_same(&managed.seen(), &before, "afterwards");
    assert!(is_empty(managed.state.path()));

    kill_both(managed.session(&["--xps", "off"]));
    let plan = end(managed.command(&["fair", NAME, "--xps", "off", "--plan"]));
    for words in [
        "a run first restores: echo 1 > ",
        "this plan uses the values from before the killed run",
        "\necho 0 > /sys/class/net/evk0/queues/tx-0/xps_cpus\n#   undo: echo 1 > ",
    ] {
        assert!(plan.code == 0 && plan.stdout.contains(words), "{words}: {plan:?}");
    }
    // A run would restore the driver's maps, which leave no choice of queues. A revert would not change that.
    let plan = end(managed.command(&["fair", NAME, "--plan"]));
    assert!(plan.code == 3 && plan.stderr.contains("another program set the XPS maps of evk0"), "{plan:?}");
    assert!(!plan.stderr.contains("cannot make a plan"), "{plan:?}");
    let usage = end(managed.command(&["fair", NAME, "--xps", "pools", "--balance", "on", "--plan"]));
    assert!(usage.code == 2 && !usage.stderr.contains("cannot make a plan"), "{usage:?}");
    let ended = end(managed.command(&["fair", NAME, "--xps", "pools", "--for", "300ms"]));
    assert!(ended.code == 0 && ended.stderr.contains("had died: 2 settings restored"), "{ended:?}");
    assert_same(&managed.seen(), &before, "afterwards");

    // The next run first restores the driver's maps, which leave no choice of queues. So the run
    // refuses to start.
    kill_both(managed.session(&["--xps", "off"]));
    let ended = end(managed.command(&["fair", NAME, "--for", "300ms"]));
    assert!(
        ended.code == 3 && ended.stderr.contains("another program set the XPS maps of evk0"),
        "{ended:?}"
    );
    assert_same(&managed.seen(), &before, "afterwards");
}

/// The next run removes the soft NIC of a killed run before it checks the root qdisc.
#[test]
fn the_next_run_puts_back_a_soft_nic_before_it_judges() {
    let managed = Managed::new();
    let before = managed.seen();
    let soft_nic = ["fair", NAME, "--queue-weights", "htb", "--rate", "200mbit"];
    kill_both(managed.session(&soft_nic[2..]));
    let ours = managed.shell(&["tc", "qdisc", "show", "dev", NAME]);
    assert!(ours.contains("htb"), "no process is left to restore it: {ours}");
    for look in [&["--observe", "--for", "100ms"][..], &["--plan"]] {
        let ended = end(managed.command(&[&["fair", NAME], look].concat()));
        assert!(
            ended.code == 0 && ended.stderr.contains(" evenkeel revert evk0` restores them"),
            "{ended:?}"
        );
        assert_eq!(managed.shell(&["tc", "qdisc", "show", "dev", NAME]), ours, "{look:?} changes nothing");
    }
    // A plan for a session with its own root qdisc must know the administrator's root qdisc.
    let ended = end(managed.command(&[&soft_nic[..], &["--plan"]].concat()));
    assert!(ended.code == 3 && ended.stderr.contains(" evenkeel revert evk0` first"), "{ended:?}");
    let ended = end(managed.command(&[&soft_nic[..], &["--for", "300ms"]].concat()));
    assert!(ended.code == 0 && ended.stderr.contains("had died: "), "{ended:?}");
    assert_same(&managed.seen(), &before, "afterwards");
    assert!(is_empty(managed.state.path()));
}

/// On a device without a queue of its own (`IFF_NO_QUEUE`), the kernel sets a txqueuelen of 0 to 1000 when
/// a qdisc is created.
#[test]
fn a_queue_length_of_0_is_restored_after_the_root() {
    let managed = Managed::new();
    let soft_nic = ["--queue-weights", "htb", "--rate", "200mbit"];
    for has_default_root in [false, true] {
        if has_default_root {
            managed.shell(&["tc", "qdisc", "del", "dev", NAME, "root"]);
        }
        managed.shell(&["ip", "link", "set", NAME, "txqueuelen", "0"]);
        let before = managed.seen();
        let has_length = || managed.shell(&["ip", "link", "show", NAME]).contains("qlen 1000");
        assert!(!has_length(), "{before}");
        let plan = end(managed.command(&[&["fair", NAME, "--plan"][..], &soft_nic].concat()));
        for words in ["may set txqueuelen of evk0 to 1000", "#   undo: ip link set dev evk0 txqueuelen 0\n"] {
            assert!(plan.code == 0 && plan.stdout.contains(words), "{words}: {plan:?}");
        }
        let ended = end(managed.command(&[&["fair", NAME, "--for", "700ms"][..], &soft_nic].concat()));
        assert!(ended.code == 0 && ended.stdout.contains("2 settings restored"), "{ended:?}");
        assert_same(&managed.seen(), &before, "after a run");
        let running = managed.session(&soft_nic);
        assert!(has_length());
        running.kill();
        wait_for("the guardian", LIMIT, || is_empty(managed.state.path()));
        assert_same(&managed.seen(), &before, "after the guardian");
        kill_both(managed.session(&soft_nic));
        let ended = end(managed.command(&["revert", NAME]));
        assert!(ended.code == 0 && ended.stdout.contains("2 settings restored"), "{ended:?}");
        assert_same(&managed.seen(), &before, "after a revert");
    }
}

/// The kernel installs its default qdisc when the interface goes up. Before this, the interface has no qdisc.
#[test]
fn a_default_root_is_restored_while_the_interface_is_down() {
    let managed = Managed::new();
    managed.shell(&["tc", "qdisc", "del", "dev", NAME, "root"]);
    let root = || managed.shell(&["tc", "qdisc", "show", "dev", NAME]);
    let before = root();
    assert!(before.contains("noqueue"), "{before}");
    for dies in [false, true] {
        let mut running = managed.session(&["--queue-weights", "htb", "--rate", "100mbit"]);
        managed.shell(&["ip", "link", "set", NAME, "down"]);
        let ended = if dies {
            kill_both(running);
            end(managed.command(&["revert", NAME]))
        } else {
            running.signal(Signal::SIGTERM);
            running.end()
        };
        let said = format!("{}{}", ended.stdout, ended.stderr);
        assert!(ended.code == 0 && !said.contains("another program"), "{dies}: {ended:?}");
        assert!(!said.contains("not restored"), "{dies}: {ended:?}");
        assert!(is_empty(managed.state.path()), "{dies}: {:?}", managed.journals());
        assert_eq!(root(), "", "{dies}");
        managed.shell(&["ip", "link", "set", NAME, "up"]);
        assert_eq!(root(), before, "{dies}");
    }
}

/// Evenkeel cannot keep other programs' settings below a dead session's root, so it names them.
#[test]
fn revert_names_what_goes_with_a_dead_soft_nic() {
    let managed = Managed::new();
    let before = managed.seen();
    kill_both(managed.session(&["--queue-weights", "htb", "--rate", "200mbit"]));
    let shown = managed.shell(&["tc", "qdisc", "show", "dev", NAME]);
    let root = shown.lines().find(|line| line.contains(" root ")).unwrap();
    let root = root.split_ascii_whitespace().nth(2).unwrap();
    let at = |minor: &str| format!("{root}{minor}");
    let leaf = ["tc", "qdisc", "replace", "dev", NAME, "parent", &at("11"), "tbf", "rate", "1mbit"];
    managed.shell(&[&leaf[..], &["burst", "10kb", "limit", "100kb"]].concat());
    let class = ["tc", "class", "add", "dev", NAME, "parent", &at("1"), "classid", &at("99"), "htb", "rate"];
    managed.shell(&[&class[..], &["1mbit"]].concat());
    let filter = ["tc", "filter", "add", "dev", NAME, "parent", root, "protocol", "ip", "prio", "7", "u32"];
    managed.shell(&[&filter[..], &["match", "u32", "0", "0", "flowid", &at("11")]].concat());

    let ended = end(managed.command(&["revert", NAME]));
    let said = format!("{}{}", ended.stdout, ended.stderr).replace('\n', " ");
    assert_eq!(ended.code, 0, "{ended:?}");
    for lost in [
        format!("the qdisc tbf at {}", at("11")),
        format!("the HTB class {}", at("99")),
        format!("a filter at {}0: u32 (preference 7)", root),
    ] {
        assert!(said.contains(&lost), "{lost}: {said}");
    }
    assert_same(&managed.seen(), &before, "afterwards");
}

#[test]
fn a_soft_nic_without_a_journal_is_named_and_not_taken_for_the_administrators() {
    let managed = Managed::new();
    let soft_nic = ["--queue-weights", "htb", "--rate", "200mbit"];
    let running = managed.session(&soft_nic);
    let checked = end(managed.command(&["check", NAME, "--format", "json"]));
    assert!(checked.stdout.contains("\"stray\": []"), "its session lives: {checked:?}");
    kill_both(running);
    // Another state directory has no such journal. A user without read access to a directory cannot know
    // whether it has the journal.
    let other = tempfile::tempdir().unwrap();
    let mut elsewhere = managed.command(&["revert", NAME]);
    elsewhere.env("EVENKEEL_STATE_DIR", other.path());
    let ended = end(elsewhere);
    let said = format!(
        "{} has no journal of that run; if the run used another EVENKEEL_STATE_DIR",
        other.path().display()
    );
    assert!(ended.code == 4 && ended.stderr.replace('\n', " ").contains(&said), "{ended:?}");
    let allow = |mode| std::fs::set_permissions(managed.state.path(), Permissions::from_mode(mode)).unwrap();
    allow(0);
    let mut unable = managed.command(&["check", NAME, "--format", "json"]);
    without(&mut unable, [CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH]);
    let ended = end(unable);
    allow(0o700);
    assert!(ended.stdout.contains("\"stray\": []"), "{ended:?}");
    std::fs::remove_file(managed.state.path().join(&managed.journals()[0])).unwrap();
    let left = managed.shell(&["tc", "qdisc", "show", "dev", NAME]);
    let fix = "tc qdisc del dev evk0 root";
    for (arguments, code) in [
        (&["revert"][..], 4),
        (&["revert", NAME], 4),
        (&["check", NAME], 1),
        (&["check", NAME, "--format", "json"], 1),
        (&["fair", NAME, "--for", "100ms"], 3),
        (&["fair", NAME, "--plan"], 3),
        (&["fair", NAME, "--queue-weights", "htb", "--rate", "200mbit", "--for", "100ms"], 3),
        (&["fair", NAME, "--observe", "--for", "100ms"], 0),
        (&["steer", NAME, "--policy", "balance", "--for", "100ms"], 0),
    ] {
        let ended = end(managed.command(arguments));
        let said = format!("{}{}", ended.stdout, ended.stderr).replace('\n', " ");
        assert!(ended.code == code && said.contains(fix), "{arguments:?}: {ended:?}");
        assert!(!said.contains("nothing to restore"), "{arguments:?}: {ended:?}");
    }
    assert_eq!(managed.shell(&["tc", "qdisc", "show", "dev", NAME]), left);
    managed.shell(&fix.split(' ').collect::<Vec<_>>());
    let ended = end(managed.command(&["revert", NAME]));
    assert!(ended.code == 0 && ended.stdout.contains("nothing to restore"), "{ended:?}");
    // Add the administrator's own qdisc, with a handle that a session might also choose.
    managed.shell(&["tc", "qdisc", "add", "dev", NAME, "root", "handle", "4001:", "htb", "default", "10"]);
    let ended = end(managed.command(&["revert", NAME]));
    assert!(ended.code == 0 && ended.stdout.contains("nothing to restore"), "{ended:?}");
}

#[test]
fn revert_leaves_what_somebody_changed_since() {
    let managed = Managed::with_maps();
    kill_both(managed.session(&["--xps", "off"]));
    managed.set_map(0, "3");
    let ended = end(managed.command(&["revert"]));
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stdout.contains("1 setting restored, 1 left as set by another program"), "{ended:?}");
    assert!(ended.stderr.contains("tx-0/xps_cpus is left") && ended.stderr.contains("'3'"), "{ended:?}");
    assert_eq!(managed.maps(), ["3", "2", "0", "0"]);
    assert!(is_empty(managed.state.path()));
}

#[test]
fn revert_of_a_renamed_and_of_a_removed_interface() {
    let mut managed = Managed::with_maps();
    kill_both(managed.session(&["--xps", "off"]));
    managed.netlink.rename(managed.index, "other").unwrap();
    let ended = end(managed.command(&["check", "other"]));
    let words: Vec<&str> = ended.stdout.split_whitespace().collect();
    assert!(words.join(" ").contains("evk0 is now called other: `"), "{ended:?}");
    assert!(words.join(" ").contains("evenkeel revert other` restores them"), "{ended:?}");
    let ended = end(managed.command(&["revert", "other"]));
    assert!(ended.code == 0 && ended.stderr.contains("evk0 is now called other"), "{ended:?}");
    managed.netlink.rename(managed.index, NAME).unwrap();
    assert_eq!(managed.maps(), DRIVERS_MAPS);

    kill_both(managed.session(&["--xps", "off"]));
    managed.netlink.delete_link(managed.index).unwrap();
    let ended = end(managed.command(&["revert", NAME]));
    assert!(ended.code == 0 && ended.stdout.contains("2 gone"), "{ended:?}");
    assert!(is_empty(managed.state.path()));
}

#[test]
fn a_journal_of_another_namespace_or_of_an_earlier_boot_is_not_acted_on() {
    let managed = Managed::with_maps();
    kill_both(managed.session(&["--xps", "off"]));
    let journal = managed.state.path().join(&managed.journals()[0]);
    let text = std::fs::read_to_string(&journal).unwrap();

    let elsewhere = Managed { host: Namespace::new().unwrap(), ..Managed::new() };
    let mut command = elsewhere.command(&["revert"]);
    command.env("EVENKEEL_STATE_DIR", managed.state.path());
    let ended = end(command);
    assert!(ended.code == 0 && ended.stderr.contains("another network namespace"), "{ended:?}");
    assert!(ended.stderr.contains(&format!("or remove {}", journal.display())), "{ended:?}");
    // The user named this interface, so restoring nothing is an error.
    let mut command = elsewhere.command(&["revert", NAME]);
    command.env("EVENKEEL_STATE_DIR", managed.state.path());
    let ended = end(command);
    assert!(ended.code == 3 && ended.stderr.contains("another network namespace"), "{ended:?}");
    assert_eq!(std::fs::read_to_string(&journal).unwrap(), text);

    let contents = StateDirectory::read(&journal).unwrap().unwrap();
    let mut header = contents.header.unwrap();
    header.interface.boot = "00000000-0000-0000-0000-000000000000".to_owned();
    std::fs::write(&journal, journal_bytes(&journal, &header, &contents.entries)).unwrap();
    let ended = end(managed.command(&["revert"]));
    assert!(ended.code == 0 && ended.stdout.contains("nothing to restore after a reboot"), "{ended:?}");
    assert_eq!(managed.maps(), ["0"; 4], "what it says is of another time");
    assert!(is_empty(managed.state.path()));
}

/// `revert` and the next run restore the settings of the valid lines, but only once. They report the damage,
/// and keep the journal as `.damaged`.
#[test]
fn a_damaged_journal_is_put_back_as_far_as_it_can_be_read_and_kept() {
    let managed = Managed::with_maps();
    for (damage, maps, restored) in
        [("\"knob\"", ["1", "0", "0", "0"], ": 1 setting restored"), ("evenkeel-journal", DRIVERS_MAPS, "")]
    {
        for arguments in [&["revert"][..], &["revert", NAME], &["fair", NAME, "--xps", "off", "--for", "1s"]]
        {
            for (queue, map) in (0..).zip(DRIVERS_MAPS) {
                managed.set_map(queue, map);
            }
            kill_both(managed.session(&["--xps", "off"]));
            let journal = managed.state.path().join(&managed.journals()[0]);
            let text = std::fs::read_to_string(&journal).unwrap();
            let at = text.rfind(damage).unwrap();
            let damaged = format!("{}x{}", &text[..at], &text[at + 1..]);
            std::fs::write(&journal, &damaged).unwrap();
            let ended = end(managed.command(arguments));
            assert_eq!(ended.code, 4, "{ended:?}");
            let kept = journal.with_extension("journal.damaged");
            assert!(ended.stderr.contains(&kept.display().to_string()), "{ended:?}");
            assert_eq!(managed.maps(), maps, "{ended:?}");
            let said = [ended.stdout.as_str(), &ended.stderr].concat();
            assert!(said.contains(restored), "{ended:?}");
            assert_eq!(std::fs::read_to_string(&kept).unwrap(), damaged);
            let ended = end(managed.command(&["revert"]));
            assert!(ended.code == 4 && ended.stderr.contains("is damaged"), "{ended:?}");
            std::fs::remove_file(&kept).unwrap();
            assert!(is_empty(managed.state.path()));
        }
    }
}

/// If a journal is empty or truncated, the undo of a setting may be lost. `revert` reports this and keeps
/// the journal.
#[test]
fn a_journal_that_was_emptied_or_cut_is_said_and_kept() {
    let managed = Managed::with_maps();
    kill_both(managed.session(&["--xps", "off"]));
    let journal = managed.state.path().join(&managed.journals()[0]);
    let bytes = std::fs::read(&journal).unwrap();
    let whole = journal.with_extension("kept.journal");
    for length in [0, 10, bytes.len() / 2, bytes.len() - 1] {
        for path in [&journal, &whole] {
            std::fs::write(path, &bytes[..length]).unwrap();
            let ended = end(managed.command(&["revert"]));
            assert!(
                ended.code == 4 && ended.stderr.contains("some of its settings are unknown"),
                "{length}: {ended:?}"
            );
            let kept = PathBuf::from(format!("{}.damaged", path.display()));
            assert_eq!(std::fs::read(&kept).unwrap(), &bytes[..length]);
            std::fs::remove_file(kept).unwrap();
            let _ = std::fs::remove_file(&journal);
        }
    }
}

/// A damaged journal without the name of its interface may belong to any interface.
#[test]
fn a_damaged_journal_without_its_name_is_reported_by_all_commands() {
    let managed = Managed::with_maps();
    let journal = managed.state.path().join("evk0.journal");
    std::fs::write(&journal, "garbage\n").unwrap();
    let run = |arguments: &[&str]| end(managed.command(arguments));
    for arguments in [&["check", NAME][..], &["tune", NAME], &["revert"], &["revert"], &["check"]] {
        let ended = run(arguments);
        assert!(ended.stderr.contains("evk0.journal") && ended.stderr.contains("line 1"), "{ended:?}");
    }
    let checked = run(&["check", "--format", "json"]);
    let found: serde_json::Value = serde_json::from_str(&checked.stdout).unwrap();
    assert_eq!(found["damaged"].as_array().map(Vec::len), Some(1), "{checked:?}");
    assert_eq!(run(&["revert", NAME]).code, 4);
}

#[test]
fn a_damaged_journal_does_not_keep_an_interface_from_its_settings() {
    let managed = Managed::with_maps();
    kill_both(managed.session(&["--xps", "off"]));
    // The damaged journal precedes the intact journal in the sorted order.
    let damaged = managed.state.path().join("0-1.journal");
    std::fs::write(&damaged, "{}\n").unwrap();
    let ended = end(managed.command(&["revert"]));
    assert_eq!(ended.code, 4, "{ended:?}");
    assert!(ended.stderr.contains(&format!("{}.damaged is damaged", damaged.display())), "{ended:?}");
    assert!(ended.stdout.contains("2 settings restored"), "{ended:?}");
    assert_eq!(managed.maps(), DRIVERS_MAPS);
}

fn has_changes(managed: &Managed) -> bool {
    managed.journals().iter().any(|name| {
        // Another process may have removed the journal.
        let text = std::fs::read_to_string(managed.state.path().join(name)).unwrap_or_default();
        // The first line contains the number of lines, and the second line is the header.
        text.lines().count() > 2
    })
}

#[test]
fn fifty_kills_at_random_moments_leave_the_host_as_it_was() {
    const ROUNDS: u32 = 50;
    let seed = u64::from(std::process::id());
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let managed = Managed::with_maps();
    let mut load = managed.load(4, "5M", 120);
    let before = managed.seen();
    let mut changed = 0;
    for round in 0..ROUNDS {
        let mut running = Running::start(managed.command(&["fair", NAME, "--xps", "off"]));
        // Wait for a random time: after the start of the process or, in one of four rounds, after the start
        // of the session.
        let pause = Duration::from_millis(random.next_u64() % 300);
        let both = random.next_u64() % 2 == 0;
        if random.next_u64() % 4 == 0 {
            running.wait_for_activity(AT_WORK);
        }
        std::thread::sleep(pause);
        let what = format!("seed {seed}, round {round}, after {pause:?}, both: {both}");
        if both {
            kill_both(running);
            changed += u32::from(managed.maps() != DRIVERS_MAPS);
            let ended = end(managed.command(&["revert"]));
            assert_eq!(ended.code, 0, "{what}: {ended:?}");
        } else {
            running.kill();
        }
        managed.wait_for_maps(&DRIVERS_MAPS, LIMIT);
        // A run that was killed before its guardian started has changed nothing. Its journal shows
        // this.
        wait_for(&format!("no journal is left that has anything ({what})"), LIMIT, || !has_changes(&managed));
        if !is_empty(managed.state.path()) {
            let ended = end(managed.command(&["revert"]));
            assert!(ended.code == 0 && is_empty(managed.state.path()), "{what}: {ended:?}");
        }
        assert_same(&managed.seen(), &before, &what);
    }
    assert!(changed >= 3, "{changed} of {ROUNDS} kills of both came after a change: nothing was tried");
    assert!(load.is_running(), "the load was there all the time");
}
