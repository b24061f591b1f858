//! Moves an interface with settings of a killed run to another network namespace and back. The interface then
//! has another index, so the journal's name does not show that the journal belongs to it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::PathBuf;

use nix::sys::signal::Signal;
use serde_json::Value;

use support::end;
use support::managed::{DRIVERS_MAPS, Managed, NAME, is_empty, kill_both, kill_process, wait_for};
use support::running::Running;
use support::service::{FIRST, PATIENCE, Place, lose_worker, only};

/// Creates an interface that returned with empty XPS maps from a killed run of `fair`.
fn returned() -> Managed {
    let managed = Managed::with_maps();
    kill_both(managed.session(&["--xps", "off"]));
    managed.leave_and_return();
    assert_eq!(managed.maps(), ["0"; 4], "the maps stay");
    managed
}

fn journal(managed: &Managed) -> PathBuf {
    let names = managed.journals();
    assert_eq!(names.len(), 1, "{names:?}");
    managed.state.path().join(&names[0])
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn commands_that_change_nothing_name_the_killed_run() {
    let managed = returned();
    for (arguments, code) in [
        (&["check", NAME][..], 1),
        (&["check"], 1),
        (&["tune", NAME], 0),
        (&["fair", NAME, "--observe", "--for", "100ms"], 0),
        (&["steer", NAME, "--policy", "balance", "--plan"], 0),
    ] {
        let ended = end(managed.command(arguments));
        let said = words(&format!("{}{}", ended.stdout, ended.stderr));
        assert!(
            said.contains("ended before it restored its changes: `")
                && said.contains("evenkeel revert evk0` restores them")
                && !said.contains("is now called"),
            "{arguments:?}: {ended:?}"
        );
        assert_eq!(ended.code, code, "{arguments:?}: {ended:?}");
    }
    let ended = end(managed.command(&["check", NAME, "--format", "json"]));
    let json: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((ended.code, json["unfinished"].as_array().map(Vec::len)), (1, Some(1)), "{ended:?}");

    let plan = end(managed.command(&["fair", NAME, "--xps", "off", "--plan"]));
    for words in [
        "a run first restores: echo 1 > ",
        "\necho 0 > /sys/class/net/evk0/queues/tx-0/xps_cpus\n#   undo: echo 1 > ",
    ] {
        assert!(plan.code == 0 && plan.stdout.contains(words), "{words}: {plan:?}");
    }
    assert_eq!(managed.maps(), ["0"; 4]);
}

#[test]
fn check_of_an_interface_that_left_names_the_killed_run() {
    let managed = Managed::with_maps();
    kill_both(managed.session(&["--xps", "off"]));
    managed.leave();
    let ended = end(managed.command(&["check", NAME]));
    for words in [
        "no interface 'evk0'; known: lo; evenkeel fair on evk0",
        "ended before it restored its changes, and evk0 is no longer in this network namespace: ",
    ] {
        assert!(ended.code == 2 && ended.stderr.contains(words), "{words}: {ended:?}");
    }
    let ended = end(managed.command(&["check", "evk7"]));
    assert!(ended.code == 2 && !ended.stderr.contains("ended before"), "{ended:?}");
}

#[test]
fn each_command_that_changes_settings_first_restores_those_of_the_killed_run() {
    for arguments in [
        &["fair", NAME, "--xps", "off", "--for", "300ms"][..],
        &["steer", NAME, "--policy", "balance", "--backend", "rps", "--for", "300ms"],
        &["steer", NAME, "--policy", "balance", "--for", "300ms"],
        &["tune", NAME, "--apply", "sack-off", "--no-watch"],
        &["revert", NAME],
    ] {
        let managed = returned();
        let before = managed.journals();
        let ended = end(managed.command(arguments));
        let said = format!("{}{}", ended.stdout, ended.stderr);
        assert!(ended.code == 0 && said.contains("2 settings restored"), "{arguments:?}: {ended:?}");
        assert_eq!(managed.maps(), DRIVERS_MAPS, "{arguments:?}");
        assert!(managed.journals().iter().all(|name| !before.contains(name)), "{:?}", managed.journals());
    }
}

/// A journal that has nothing left to restore does not stay.
#[test]
fn the_next_run_removes_the_journal_of_a_killed_run_without_changes() {
    let managed = Managed::new();
    let rps = ["--backend", "rps", "--policy", "balance"];
    kill_both(managed.steering(&rps));
    let masks: Vec<String> =
        (0..4).map(|queue| format!("class/net/{NAME}/queues/rx-{queue}/rps_cpus")).collect();
    let none: Vec<(String, String)> = masks.iter().map(|mask| (mask.clone(), "0".to_owned())).collect();
    managed.host.write_sysfs(&none).unwrap();
    managed.leave_and_return();
    let ended = end(managed.command(&[&["steer", NAME], &rps[..], &["--for", "300ms"]].concat()));
    assert_eq!((ended.code, managed.journals()), (0, Vec::new()), "{ended:?}");
    let masks = managed.host.read_sysfs(&masks).unwrap();
    assert!(masks.iter().all(|mask| mask.trim().trim_matches(['0', ',']).is_empty()), "{masks:?}");
}

/// The interface with the earlier index gets no value of the killed run, and no report about it.
#[test]
fn another_interface_with_the_earlier_index_is_not_restored() {
    let managed = returned();
    let index = managed.index.to_string();
    let peer = ["peer", "name", "evk9", "numtxqueues", "4", "numrxqueues", "4"];
    let queues = ["numtxqueues", "4", "numrxqueues", "4", "type", "veth"];
    managed.shell(&[&["ip", "link", "add", "evk8", "index", &index][..], &queues, &peer].concat());
    ["evk8", "evk9"].iter().for_each(|name| drop(managed.shell(&["ip", "link", "set", name, "up"])));
    managed.shell(&["tc", "qdisc", "replace", "dev", "evk8", "root", "mq"]);
    let ended = end(managed.command(&["check", "evk8"]));
    assert!(!words(&ended.stdout).contains("ended before it restored"), "{ended:?}");
    let file = "class/net/evk8/queues/tx-1/xps_cpus".to_owned();
    managed.host.write_sysfs(&[(file.clone(), "3".to_owned())]).unwrap();
    let ended = end(managed.command(&["fair", NAME, "--xps", "off", "--for", "300ms"]));
    assert!(ended.code == 0 && ended.stderr.contains("2 settings restored"), "{ended:?}");
    assert_eq!(managed.maps(), DRIVERS_MAPS);
    assert_eq!(managed.host.read_sysfs(&[file]).unwrap()[0].trim(), "3");
}

/// The session with another state directory knows nothing of the journal. The other session began before an
/// administrator restored a copy of the directory.
#[test]
fn revert_is_refused_while_a_session_manages_the_interface() {
    let managed = returned();
    let before = journal(&managed);
    let bytes = std::fs::read(&before).unwrap();
    let another = tempfile::tempdir().unwrap();
    for is_of_same_directory in [false, true] {
        let mut command = managed.command(&["fair", NAME, "--xps", "off"]);
        if is_of_same_directory {
            std::fs::remove_file(&before).unwrap();
        } else {
            command.env("EVENKEEL_STATE_DIR", another.path());
        }
        let mut running = Running::start(command);
        running.wait_for_activity("managed now");
        std::fs::write(&before, &bytes).unwrap();
        for arguments in [&["revert", NAME][..], &["revert"]] {
            let ended = end(managed.command(arguments));
            assert!(
                ended.code == 3
                    && !ended.stdout.contains("restored")
                    && ended.stderr.matches("manages evk0 already").count() == 1,
                "{arguments:?}: {ended:?}"
            );
            assert_eq!(managed.maps(), ["0"; 4], "{arguments:?}");
        }
        running.signal(Signal::SIGINT);
        assert_eq!(running.end().code, 130);
    }
    let ended = end(managed.command(&["revert", NAME]));
    assert!(ended.code == 0 && ended.stdout.contains("2 settings restored"), "{ended:?}");
    assert_eq!(managed.maps(), DRIVERS_MAPS);
    assert!(is_empty(managed.state.path()));
}

#[test]
fn tune_continues_its_kept_changes() {
    let managed = Managed::new();
    ["tcp_sack", "tcp_window_scaling"]
        .iter()
        .for_each(|name| managed.host.set_sysctl(&format!("net/ipv4/{name}"), "0").unwrap());
    for rule in ["sack-off", "window-scaling-off"] {
        let ended = end(managed.command(&["tune", NAME, "--apply", rule, "--no-watch"]));
        assert_eq!(ended.code, 0, "{ended:?}");
        // Both changes are in one journal.
        journal(&managed);
        if rule == "sack-off" {
            managed.leave_and_return();
        }
    }
    let ended = end(managed.command(&["revert", NAME]));
    assert!(ended.code == 0 && ended.stdout.contains("2 settings restored"), "{ended:?}");
    assert!(is_empty(managed.state.path()));
}

#[test]
fn tune_is_refused_beside_damaged_kept_changes() {
    let managed = Managed::new();
    managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    let tune = || end(managed.command(&["tune", NAME, "--apply", "sack-off", "--no-watch"]));
    assert_eq!(tune().code, 0);
    let path = journal(&managed);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"knob\"", "\"xnob\"")).unwrap();
    managed.leave_and_return();
    managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    let ended = tune();
    assert!(ended.code == 4 && ended.stderr.contains("is damaged"), "{ended:?}");
    assert_eq!(journal(&managed), path);
}

/// Checks that a new worker has restored the settings of the previous one, and that the end restores all.
fn assert_restored(place: &Place, service: Running) {
    wait_for("all is well", PATIENCE, || {
        end(place.client(&["status"])).code == 0 && place.managed.journals().len() == 1
    });
    let paused = end(place.client(&["service", "pause"]));
    assert_eq!(paused.code, 0, "{paused:?}");
    place.wait_for_maps(false);
    let said = place.end(service);
    assert!(!said.contains("is now called"), "{said}");
}

#[test]
fn a_worker_of_the_service_first_restores_the_settings_of_the_previous_one() {
    let steer = format!(
        "[[interface]]\nmatch.name = \"{FIRST}\"\nsteer = {{ policy = \"balance\", backend = \"rps\" }}"
    );
    for (rule, state) in [(only(FIRST), "fair"), (steer, "steered")] {
        let place = Place::new();
        place.write(&rule);
        let mut service = place.start();
        place.wait_for(FIRST, state);
        let mut index = 0;
        lose_worker(&place, &mut service, || index = place.managed.leave_and_return());
        wait_for("a worker manages the new index", PATIENCE, || {
            let interface = place.interface(FIRST);
            interface["index"] == index && interface["state"] == state
        });
        assert_restored(&place, service);
    }
}

#[test]
fn a_worker_of_tune_continues_the_changes_of_the_previous_one() {
    let place = Place::new();
    place.managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    place.write(&format!("[[interface]]\nmatch.name = \"{FIRST}\"\ntune = [\"sack-off\"]"));
    let mut service = place.start();
    place.wait_for(FIRST, "tuned");
    let worker = place.process(FIRST);
    service.signal(Signal::SIGSTOP);
    kill_process(worker);
    service.kill();
    place.managed.leave_and_return();
    let service = place.start();
    place.wait_for(FIRST, "tuned");
    assert_eq!(end(place.client(&["status"])).code, 0);
    // The new worker watches the change of the previous one.
    place.managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    place.wait_for(FIRST, "given-up");
    assert_eq!(end(place.client(&["service", "resume", FIRST])).code, 0);
    place.wait_for(FIRST, "tuned");
    let paused = end(place.client(&["service", "pause"]));
    assert_eq!((paused.code, place.managed.journals()), (0, Vec::new()), "{paused:?}");
    let sack = || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_sack");
    assert_eq!(place.managed.host.run(|| Ok(sack().unwrap())).unwrap().trim(), "0");
    place.end(service);
}

/// The worker ends because its interface left, and cannot restore the settings. The next worker does.
#[test]
fn a_worker_restores_the_settings_of_an_interface_that_left_for_a_moment() {
    for is_missed in [true, false] {
        let place = Place::new();
        place.write(&only(FIRST));
        let service = place.start();
        place.wait_for(FIRST, "fair");
        let there = place.managed.leave();
        if is_missed {
            wait_for("the service misses the interface", PATIENCE, || place.interface(FIRST).is_null());
        }
        let index = place.managed.come_back(there);
        wait_for("a worker manages the new index", PATIENCE, || {
            let interface = place.interface(FIRST);
            interface["index"] == index && interface["state"] == "fair"
        });
        assert_restored(&place, service);
    }
}
