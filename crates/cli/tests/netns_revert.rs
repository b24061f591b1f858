//! Tests where journals are stored, and which journals `evenkeel revert` finds: in another namespace,
//! of a bridge, in an unusable directory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use support::managed::{AT_WORK, DRIVERS_MAPS, Managed, NAME, assert_same, is_empty, kill_both, wait_for};
use support::running::Running;
use support::{Ended, end};

const LIMIT: Duration = Duration::from_secs(20);

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Runs a command in the host's namespace with another state directory.
fn with_state(managed: &Managed, state: &Path, arguments: &[&str]) -> Ended {
    let mut command = managed.command(arguments);
    command.env("EVENKEEL_STATE_DIR", state);
    end(command)
}

const FAIR: [&str; 6] = ["fair", NAME, "--xps", "off", "--for", "300ms"];
const TUNE: [&str; 4] = ["tune", NAME, "--apply", "--no-watch"];

#[test]
fn a_state_directory_that_is_not_private_is_refused_and_not_changed() {
    let managed = Managed::with_maps();
    managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    let before = managed.seen();
    let directory = managed.state.path().join("state");
    std::fs::create_dir(&directory).unwrap();
    for wrong in [0o1777, 0o770, 0o500, 0o000] {
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(wrong)).unwrap();
        for arguments in [&FAIR[..], &TUNE] {
            let ended = with_state(&managed, &directory, arguments);
            assert!(ended.code == 3 && ended.stderr.contains("is not safe to use"), "{wrong:o}: {ended:?}");
        }
        for arguments in [
            &["fair", NAME, "--xps", "off", "--plan"][..],
            &["fair", NAME, "--observe", "--for", "100ms"],
            &["tune", NAME],
            &["revert"],
        ] {
            let ended = with_state(&managed, &directory, arguments);
            assert!([0, 3].contains(&ended.code), "{wrong:o} {arguments:?}: {ended:?}");
        }
        let plain = with_state(&managed, &managed.state.path().join("missing"), &["check", NAME]);
        let checked = with_state(&managed, &directory, &["check", NAME]);
        let words = "cannot find out which settings killed runs left changed: ";
        assert_eq!(checked.code, plain.code, "{wrong:o}: {checked:?}");
        assert!(checked.stdout.contains(words), "{wrong:o}: {checked:?}");
        assert!(!plain.stdout.contains(words), "{plain:?}");
        let json = with_state(&managed, &directory, &["check", NAME, "--format", "json"]);
        let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
        assert!(json["journals_unreadable"].is_string(), "{wrong:o}: {json}");
        assert_eq!(mode(&directory), wrong);
        assert_same(&managed.seen(), &before, "refused");
    }
    // Commands that change nothing create no directory.
    let new = managed.state.path().join("new");
    for arguments in [&["fair", NAME, "--xps", "off", "--plan"][..], &["tune", NAME], &["revert"]] {
        assert_eq!(with_state(&managed, &new, arguments).code, 0);
        assert!(!new.exists(), "{arguments:?}");
    }
    // If the state directory is a file or cannot be used, all these commands exit with 3.
    let file = managed.state.path().join("file");
    std::fs::write(&file, "x").unwrap();
    for arguments in [&FAIR[..], &TUNE, &["revert"], &["fair", NAME, "--xps", "off", "--plan"]] {
        for state in [&file, Path::new("/proc/sys")] {
            let ended = with_state(&managed, state, arguments);
            assert_eq!(ended.code, 3, "{arguments:?} {}: {ended:?}", state.display());
        }
    }
    // The umask does not affect the modes of the directories.
    let mut command = Command::new("sh");
    command.args(["-c", "umask 777; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_evenkeel")]).args(FAIR);
    command.env("EVENKEEL_STATE_DIR", new.join("below")).stdin(Stdio::null());
    let output = managed.enter(command).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!((mode(&new), mode(&new.join("below"))), (0o755, 0o700));
    assert!(is_empty(&new.join("below")));
    assert_same(&managed.seen(), &before, "afterwards");
}

#[test]
fn a_live_session_in_another_namespace_is_named_and_left_alone() {
    let (there, here) = (Managed::with_maps(), Managed::with_maps());
    let mut running = there.session(&["--xps", "off"]);
    for arguments in [&["revert"][..], &["revert", NAME]] {
        let ended = with_state(&here, there.state.path(), arguments);
        assert_eq!(ended.code, 0, "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains("runs in another network namespace"), "{ended:?}");
        assert!(!ended.stderr.contains("kill"), "{ended:?}");
    }
    assert_eq!(there.maps(), ["0"; 4]);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().code, 0);
}

/// Starts `fair` on a bridge, then kills the run and its guardian. The run has emptied the XPS maps of the
/// bridge's port.
fn with_killed_run_on_bridge() -> Managed {
    let managed = Managed::with_maps();
    managed.shell(&["ip", "link", "add", "evkbr", "type", "bridge"]);
    managed.shell(&["ip", "link", "set", NAME, "master", "evkbr"]);
    managed.shell(&["ip", "link", "set", "evkbr", "up"]);
    let mut running = Running::start(managed.command(&["fair", "evkbr", "--xps", "off"]));
    running.wait_for_activity("managed now");
    kill_both(running);
    assert_eq!(managed.maps(), ["0"; 4]);
    managed
}

#[test]
fn the_devices_below_a_bridge_are_reverted_by_its_name() {
    let managed = with_killed_run_on_bridge();
    for (arguments, code) in [
        (&["check", "evkbr"][..], 1),
        (&["fair", "evkbr", "--xps", "off", "--plan"], 0),
        (&["fair", "evkbr", "--observe", "--for", "100ms"], 0),
        (&["tune", "evkbr"], 0),
    ] {
        let ended = end(managed.command(arguments));
        let said =
            format!("{}{}", ended.stdout, ended.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(" evenkeel revert evk0` restores them"), "{arguments:?}: {ended:?}");
        assert_eq!(ended.code, code, "{arguments:?}: {ended:?}");
    }
    let ended = end(managed.command(&["revert", "evkbr"]));
    assert!(ended.code == 0 && ended.stdout.contains("settings restored"), "{ended:?}");
    assert_eq!(managed.maps(), DRIVERS_MAPS);
    // `revert` of the bridge also restores the settings that `tune` changed for a port.
    managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    assert_eq!(end(managed.command(&["tune", NAME, "--apply", "sack-off", "--no-watch"])).code, 0);
    let ended = end(managed.command(&["revert", "evkbr"]));
    assert!(ended.code == 0 && ended.stdout.contains("1 setting restored"), "{ended:?}");
}

#[test]
fn a_device_that_left_its_bridge_is_reverted_by_the_name_of_the_bridge() {
    for deletes in [false, true] {
        let managed = with_killed_run_on_bridge();
        if deletes {
            managed.shell(&["ip", "link", "del", "evkbr"]);
        } else {
            managed.shell(&["ip", "link", "set", NAME, "nomaster"]);
            let ended = end(managed.command(&["check", "evkbr"]));
            assert!(ended.code == 1 && ended.stdout.contains("evenkeel fair evkbr on evk0"), "{ended:?}");
        }
        let ended = end(managed.command(&["revert", "evkbr"]));
        assert!(ended.code == 0 && ended.stdout.contains("evenkeel fair evkbr on evk0"), "{ended:?}");
        assert_eq!(managed.maps(), DRIVERS_MAPS);
    }
}

#[test]
fn a_run_on_a_bridge_restores_a_device_that_left_it() {
    let managed = with_killed_run_on_bridge();
    managed.shell(&["ip", "link", "set", NAME, "nomaster"]);
    let ended = end(managed.command(&["fair", "evkbr", "--for", "100ms"]));
    assert!(ended.stderr.contains("evenkeel fair evkbr on evk0"), "{ended:?}");
    assert_eq!(managed.maps(), DRIVERS_MAPS);
}

#[test]
fn revert_finds_an_interface_that_was_renamed_and_moved_here() {
    let (there, here) = (Managed::with_maps(), Managed::with_maps());
    kill_both(there.session(&["--xps", "off"]));
    there.host.netlink().unwrap().rename(there.index, "evkother").unwrap();
    there.host.netlink().unwrap().move_link(there.index, here.host.as_fd()).unwrap();
    let ended = with_state(&here, there.state.path(), &["revert", "evkother"]);
    assert!(ended.code == 3 && ended.stderr.contains("another network namespace"), "{ended:?}");
    // In this namespace, another interface has this name.
    let ended = with_state(&here, there.state.path(), &["revert", NAME]);
    assert!(ended.code == 0 && ended.stderr.contains("another network namespace"), "{ended:?}");
    let ended = end(there.command(&["revert"]));
    assert!(ended.code == 0 && ended.stderr.contains("is now called evkother"), "{ended:?}");
}

/// Renames the interface of a killed run, and moves it to another namespace.
fn move_away(there: &Managed, here: &Managed) {
    there.host.netlink().unwrap().rename(there.index, "evkother").unwrap();
    there.host.netlink().unwrap().move_link(there.index, here.host.as_fd()).unwrap();
    here.shell(&["ip", "link", "set", "evkother", "up"]);
}

#[test]
fn the_rest_of_a_damaged_journal_is_found_by_its_interface() {
    let (there, here) = (Managed::with_maps(), Managed::with_maps());
    kill_both(there.session(&["--xps", "off"]));
    let journal = there.state.path().join(&there.journals()[0]);
    let text = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, text.replacen("\"knob\"", "\"xnob\"", 1)).unwrap();
    let revert = |from: &Managed, name: &[&str]| {
        let ended = with_state(from, there.state.path(), &[&["revert"], name].concat());
        assert!(!ended.stdout.contains("nothing to restore"), "{name:?}: {ended:?}");
        ended
    };
    for _ in 0..2 {
        assert_eq!(revert(&there, &[NAME]).code, 4);
    }
    move_away(&there, &here);
    for (name, code) in [(&[NAME][..], 3), (&[], 0)] {
        let ended = revert(&there, name);
        assert!(ended.code == code && ended.stderr.contains("namespace, as evkother"), "{ended:?}");
    }
    for name in ["evkother", NAME] {
        let ended = revert(&here, &[name]);
        assert!(ended.code == 4 && ended.stderr.contains("is damaged"), "{ended:?}");
    }
    // The other namespace had an interface with this index, so the interface returns with another index.
    let index = here.host.netlink().unwrap().link_index("evkother").unwrap();
    assert_ne!(index, there.index);
    here.host.netlink().unwrap().move_link(index, there.host.as_fd()).unwrap();
    assert_eq!(there.host.netlink().unwrap().link_index("evkother").unwrap(), index);
    there.host.netlink().unwrap().rename(index, NAME).unwrap();
    let ended = revert(&there, &[NAME]);
    assert!(ended.code == 4 && ended.stderr.contains("is damaged"), "{ended:?}");
}

#[test]
fn commands_that_change_nothing_name_the_killed_run_of_an_interface_that_was_moved_here() {
    let (there, here) = (Managed::with_maps(), Managed::with_maps());
    kill_both(there.session(&["--xps", "off"]));
    move_away(&there, &here);
    for (arguments, code) in [
        (&["fair", "evkother", "--xps", "off", "--for", "100ms"][..], 3),
        (&["fair", "evkother", "--xps", "off", "--plan"], 3),
        (&["fair", "evkother", "--observe", "--for", "100ms"], 0),
        (&["steer", "evkother", "--policy", "balance", "--plan"], 0),
        (&["tune", "evkother"], 0),
        (&["check", "evkother"], 0),
        (&["check"], 0),
    ] {
        let ended = with_state(&here, there.state.path(), arguments);
        let words = "evenkeel fair changed settings of evk0 in the network namespace";
        assert!(ended.stderr.contains(words), "{arguments:?}: {ended:?}");
        // The host itself may have a serious finding. `check` then exits with 1.
        let serious = arguments[0] == "check" && ended.code == 1;
        assert!(ended.code == code || serious, "{arguments:?}: {ended:?}");
    }
}

#[test]
fn one_process_changes_settings_of_an_interface_whatever_its_state_directory_is() {
    let managed = Managed::with_maps();
    managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    let other = managed.state.path().join("other");
    let refuse = |commands: &[&[&str]], words: &str| {
        for arguments in commands {
            for state in [managed.state.path(), &other] {
                let ended = with_state(&managed, state, arguments);
                assert!(ended.code == 3 && ended.stderr.contains(words), "{arguments:?}: {ended:?}");
            }
        }
        assert!(!other.exists() || is_empty(&other));
    };
    let rps = ["steer", NAME, "--policy", "balance", "--backend", "rps", "--for", "10ms"];
    let xdp = ["steer", NAME, "--policy", "balance", "--backend", "xdp", "--for", "10ms"];
    let before = managed.seen();
    let running = managed.session(&["--xps", "off"]);
    refuse(
        &[&FAIR, &["fair", NAME, "--plan"], &rps, &TUNE, &["revert"], &["revert", NAME]],
        "manages evk0 already",
    );
    let plans: [(&[&str], &str); 2] = [
        (
            &["steer", NAME, "--policy", "balance", "--backend", "rps", "--plan"],
            "this plan starts from the settings of that session",
        ),
        (&["tune", NAME], "this plan does not change the settings that the session manages"),
    ];
    for (plan, of) in plans {
        let ended = with_state(&managed, managed.state.path(), plan);
        assert_eq!(ended.code, 0, "{ended:?}");
        for words in ["evenkeel fair manages evk0 already: process ", of] {
            assert!(ended.stderr.contains(words), "{words}: {ended:?}");
        }
    }
    drop(running);
    managed.wait_for_maps(&DRIVERS_MAPS, LIMIT);
    let running = managed.steering(&["--policy", "balance", "--backend", "xdp"]);
    let steers = "evenkeel steer or tune manages evk0 already";
    refuse(&[&rps, &xdp, &TUNE, &["revert"], &["revert", NAME]], steers);
    drop(running);
    assert_same(&managed.seen(), &before, "afterwards");
    // A revert would change the settings of a running session, so it is refused, too.
    assert_eq!(with_state(&managed, &other, &TUNE).code, 0);
    let running = managed.session(&["--xps", "off"]);
    let ended = with_state(&managed, &other, &["revert"]);
    assert!(ended.code == 3 && ended.stderr.contains("manages evk0 already"), "{ended:?}");
    drop(running);
    managed.wait_for_maps(&DRIVERS_MAPS, LIMIT);
    assert_eq!(with_state(&managed, &other, &["revert"]).code, 0);
    assert_same(&managed.seen(), &before, "reverted");
}

#[test]
fn a_guardian_restores_from_its_open_journal_whatever_stands_at_its_name() {
    for what in ["another file", "a directory", "a symbolic link"] {
        let managed = Managed::with_maps();
        let mut running = managed.session(&["--xps", "off"]);
        let journal = managed.state.path().join(&managed.journals()[0]);
        let copy = managed.state.path().join("copy");
        std::fs::copy(&journal, &copy).unwrap();
        std::fs::remove_file(&journal).unwrap();
        match what {
            "another file" => std::fs::write(&journal, "x").unwrap(),
            "a directory" => std::fs::create_dir(&journal).unwrap(),
            _ => std::os::unix::fs::symlink(&copy, &journal).unwrap(),
        }
        running.signal(Signal::SIGKILL);
        managed.wait_for_maps(&DRIVERS_MAPS, LIMIT);
        let words = format!("{what} has the name of the journal");
        wait_for(&words, LIMIT, || running.said().contains(&words));
        running.kill();
        assert!(std::fs::symlink_metadata(&journal).is_ok(), "{what} stays");
    }
}

#[test]
fn settings_go_back_although_the_directory_of_files_cannot_be_listed() {
    let managed = Managed::new();
    managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    let before = managed.seen();
    let etc = tempfile::tempdir().unwrap();
    // A loop of links: ELOOP, also for root.
    std::os::unix::fs::symlink("sysctl.d", etc.path().join("sysctl.d")).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = managed.command(arguments);
        command.env("EVENKEEL_ETC_DIR", etc.path());
        end(command)
    };
    // The command fails after its changes, and reports the changes that remain.
    let applied = run(&[&TUNE[..], &["--persist", "sysctl"]].concat());
    assert_eq!(applied.code, 4, "{applied:?}");
    let words = ["the changes made before stay", "net.ipv4.tcp_sack", " evenkeel revert evk0`"];
    assert!(words.iter().all(|words| applied.stderr.contains(words)), "{applied:?}");
    let reverted = run(&["revert"]);
    assert!(reverted.code == 4 && reverted.stderr.contains("sysctl.d"), "{reverted:?}");
    assert!(reverted.stdout.contains("restored"), "{reverted:?}");
    assert_same(&managed.seen(), &before, "reverted");

    let mut command = managed.command(&TUNE);
    command.stdout(std::fs::File::create("/dev/full").unwrap());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(4) && said.contains(" evenkeel revert evk0`"), "{said}");
    assert_eq!(run(&["revert", NAME]).code, 4, "the directory still cannot be listed");
    assert_same(&managed.seen(), &before, "reverted again");

    // A result that cannot be written after Ctrl-C also leads to exit code 4.
    let mut command = managed.command(&["fair", NAME, "--xps", "off"]);
    command.stdout(std::fs::File::create("/dev/full").unwrap()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains(AT_WORK)));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let said: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(4), "{said:?}");
    assert!(said.iter().any(|line| line.contains("cannot write the result")), "{said:?}");
}

#[test]
fn steering_by_xdp_puts_back_what_a_dead_session_left() {
    let managed = Managed::with_maps();
    kill_both(managed.session(&["--xps", "off"]));
    let ended = end(managed.command(&["steer", NAME, "--policy", "balance", "--for", "300ms"]));
    assert!(ended.code == 0 && ended.stderr.contains("had died"), "{ended:?}");
    assert_eq!(managed.maps(), DRIVERS_MAPS);
    assert!(managed.journals().is_empty());
    // `steer` does not roll back the changes of a running session.
    let running = managed.session(&["--xps", "off"]);
    let ended = end(managed.command(&["steer", NAME, "--policy", "balance", "--for", "300ms"]));
    assert!(ended.code == 0 && !ended.stderr.contains("had died"), "{ended:?}");
    drop(running);
}

#[test]
fn steering_ends_when_its_interface_is_renamed() {
    for backend in ["rps", "xdp"] {
        let managed = Managed::new();
        let before = managed.seen();
        let running = managed.steering(&["--policy", "balance", "--backend", backend]);
        managed.shell(&["ip", "link", "set", NAME, "name", "evkother"]);
        let ended = running.end();
        assert!(
            ended.code == 4 && ended.stderr.contains("renamed the interface to evkother"),
            "{backend}: {ended:?}"
        );
        managed.shell(&["ip", "link", "set", "evkother", "name", NAME]);
        assert_same(&managed.seen(), &before, backend);
    }
}

#[test]
fn steering_by_xdp_of_a_deleted_interface_has_nothing_to_restore() {
    let managed = Managed::new();
    let running = managed.steering(&["--policy", "balance", "--backend", "xdp"]);
    managed.shell(&["ip", "link", "del", NAME]);
    let ended = running.end();
    assert!(ended.code == 4 && ended.stderr.contains("; nothing is left to restore"), "{ended:?}");
}

/// If the state directory does not exist, perhaps because its name is misspelt, `revert` must say so. It must
/// not report that there is nothing to restore.
#[test]
fn a_named_state_directory_that_is_missing_is_named() {
    let managed = Managed::new();
    let missing = managed.state.path().join("misspelt");
    let ended = with_state(&managed, &missing, &["revert"]);
    assert!(ended.code == 0 && !ended.stdout.contains("nothing to restore"), "{ended:?}");
    assert!(ended.stdout.contains("there is no state directory"), "{ended:?}");
    let ended = with_state(&managed, managed.state.path(), &["revert"]);
    assert!(ended.code == 0 && ended.stdout.contains("nothing to restore"), "{ended:?}");
}

#[test]
fn what_cannot_be_done_or_has_no_effect_is_said_in_words() {
    let managed = Managed::new();
    managed.shell(&["ip", "link", "add", "evkbr", "type", "bridge"]);
    managed.shell(&["ip", "link", "set", "evkbr", "up"]);
    managed.shell(&["ip", "link", "set", "lo", "up"]);
    for name in ["evkbr", "lo"] {
        let ended = end(managed.command(&["steer", name, "--policy", "balance", "--for", "100ms"]));
        assert_eq!(ended.code, 3, "{ended:?}");
        assert!(ended.stderr.contains(&format!("{name} has a driver without XDP")), "{ended:?}");
        let ended = end(managed.command(&["nic", "probe", name]));
        assert!(ended.code == 0 && !ended.stdout.contains("xdp-cpumap"), "{ended:?}");
    }
    assert!(end(managed.command(&["nic", "probe", NAME])).stdout.contains("xdp-cpumap"));
    let steer = ["steer", NAME, "--policy", "balance", "--for", "100ms"];
    for (arguments, words) in [(["--nic-dir", "/nosuch"], "--nic-dir"), (["--netns", ""], "--netns")] {
        let ended = end(managed.command(&[&steer[..], &arguments].concat()));
        assert!(ended.code == 2 && ended.stderr.contains(words), "{ended:?}");
    }
    let models = tempfile::tempdir().unwrap();
    let model = evenkeel_receive::NicModel::built_in_text("xdp-cpumap").unwrap();
    std::fs::write(models.path().join("own.toml"), model).unwrap();
    for (directory, words) in [
        (Path::new("/nosuch"), "EVENKEEL_NIC_DIR: cannot read the directory /nosuch"),
        (models.path(), "own.toml: this model has an effect only with --plan"),
    ] {
        let mut command = managed.command(&[&steer[..], &["--backend", "xdp"]].concat());
        command.env("EVENKEEL_NIC_DIR", directory);
        let ended = end(command);
        assert!(ended.code == 2 && ended.stderr.contains(words), "{ended:?}");
    }
    // A setting of the whole machine does not exist in this namespace. `tune` does not report it as gone.
    let tuned = end(managed.command(&["tune", NAME]));
    assert!(tuned.code == 0 && !tuned.stdout.contains("does not exist"), "{tuned:?}");
    let plan = end(managed.command(&["fair", NAME, "--segments", "16KiB", "--plan"]));
    let words = ["undo: sysctl -w net.ipv4.tcp_limit_output_bytes=", "undo: ip link set dev evk0 gso_"];
    assert!(plan.code == 0 && words.iter().all(|words| plan.stdout.contains(words)), "{plan:?}");
    managed.shell(&["ip", "link", "del", NAME]);
    managed.shell(&["ip", "link", "del", "evkbr"]);
    let ended = end(managed.command(&["fair", "nosuch"]));
    assert!(ended.code == 2 && ended.stderr.contains("there is only lo"), "{ended:?}");
}

/// In an interface name, the kernel allows any byte except white space, a slash and a colon
/// (`dev_valid_name`, net/core/dev.c).
#[test]
fn an_interface_whose_name_is_not_utf8_hinders_no_other() {
    let managed = Managed::new();
    managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    let odd = OsStr::from_bytes(b"\xffodd");
    for arguments in [
        &["link", "add", "name", "?", "type", "veth", "peer", "name", "beside"][..],
        &["address", "add", "198.18.9.1/24", "dev", "?"],
        &["link", "set", "?", "alias", "?"],
    ] {
        let mut command = Command::new("ip");
        command.args(arguments.iter().map(|word| if *word == "?" { odd } else { OsStr::new(word) }));
        let output = managed.enter(command).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
    let run = |arguments: &[&str]| end(managed.command(arguments));
    let checked = run(&["check"]);
    assert!(
        checked.stdout.contains(r"/sys/class/net/\xffodd: left out, because its name is not UTF-8"),
        "{checked:?}"
    );
    for arguments in [&TUNE[..], &["revert", NAME], &["fair", NAME, "--for", "300ms"], &["revert"]] {
        let ended = run(arguments);
        assert_eq!(ended.code, 0, "{arguments:?}: {ended:?}");
    }
    let steered = run(&["steer", NAME, "--policy", "balance", "--for", "300ms"]);
    assert_eq!(steered.code, 0, "{steered:?}");
    let unknown = run(&["fair", "nosuch", "--plan"]);
    assert!(unknown.code == 2 && unknown.stderr.contains(r"\xffodd"), "{unknown:?}");
}

/// The session writes its journal again. After the session has restored its settings, the renamed file has
/// nothing to restore.
#[test]
fn a_journal_that_was_renamed_during_a_run_that_ended_well_is_removed() {
    let managed = Managed::with_maps();
    for (name, aside) in
        [("foo.journal", None), ("1-2.journal", None), ("foo.journal", Some("foo.journal.damaged"))]
    {
        let running = managed.session(&["--xps", "off"]);
        let journal = managed.state.path().join(&managed.journals()[0]);
        let mut copy = managed.state.path().join(name);
        std::fs::rename(&journal, &copy).unwrap();
        wait_for("the journal", Duration::from_secs(20), || journal.exists());
        // During the session, `revert` does not remove the copy.
        let ended = end(managed.command(&["revert"]));
        assert!(ended.code == 3 && copy.exists() && !ended.stderr.contains("damaged"), "{ended:?}");
        let mut running = running;
        running.signal(Signal::SIGTERM);
        assert_eq!(running.end().code, 0);
        assert_eq!(managed.maps(), DRIVERS_MAPS);
        if let Some(aside) = aside {
            let aside = managed.state.path().join(aside);
            std::fs::rename(&copy, &aside).unwrap();
            copy = aside;
        }
        let checked = end(managed.command(&["check", NAME]));
        assert!(!format!("{}{}", checked.stdout, checked.stderr).contains("damaged"), "{checked:?}");
        let ended = end(managed.command(&["revert"]));
        let words =
            "removed, because nothing is left to restore from this renamed journal of evenkeel fair on evk0";
        assert!(ended.code == 0 && ended.stdout.contains(words) && ended.stderr.is_empty(), "{ended:?}");
        assert!(!copy.exists() && is_empty(managed.state.path()));
        let ended = end(managed.command(&["revert"]));
        assert_eq!((ended.code, ended.stdout.as_str()), (0, "nothing to restore\n"), "{ended:?}");
    }
}

/// Neither a line nor the name of the file shows an interface.
#[test]
fn a_journal_of_an_unknown_interface_is_described_in_words() {
    let managed = Managed::new();
    for name in ["foo.journal", "foo.kept.journal"] {
        std::fs::write(managed.state.path().join(name), "evenkeel-journal 2\n").unwrap();
        let ended = end(managed.command(&["revert"]));
        assert!(ended.code == 4 && ended.stderr.contains("its interface is unknown"), "{ended:?}");
        assert!(!ended.stderr.contains("IFACE"), "{ended:?}");
        std::fs::remove_file(managed.state.path().join(format!("{name}.damaged"))).unwrap();
    }
}
