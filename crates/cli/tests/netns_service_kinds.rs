//! Tests the workers of `evenkeel service` besides `fair`: `tune` and `steer`, alone and together on one
//! interface.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::os::fd::AsFd;
use std::time::Duration;

use evenkeel_apply::{Change, Knob, Lasting, StateDirectory};
use evenkeel_testbed::TestbedError;
use nix::sys::signal::Signal;
use serde_json::Value;

use support::end;
use support::managed::{assert_same, kill_process, wait_for};
use support::running::Running;
use support::service::{FIRST, OTHER, PATIENCE, Place, only};

/// Rules of `check`, each with the sysctl that it finds off.
const SACK: (&str, &str) = ("sack-off", "tcp_sack");
const SCALING: (&str, &str) = ("window-scaling-off", "tcp_window_scaling");

/// Creates a host on which both rules have a finding.
fn place() -> Place {
    let place = Place::new();
    for (_, sysctl) in [SACK, SCALING] {
        set(&place, sysctl, "0");
    }
    place
}

fn set(place: &Place, sysctl: &str, value: &str) {
    place.managed.host.set_sysctl(&format!("net/ipv4/{sysctl}"), value).unwrap();
}

fn value(place: &Place, sysctl: &str) -> String {
    let path = format!("/proc/sys/net/ipv4/{sysctl}");
    place.managed.host.run(|| Ok(std::fs::read_to_string(&path).unwrap().trim().to_owned())).unwrap()
}

fn wait_for_value(place: &Place, sysctl: &str, wanted: &str) {
    wait_for(&format!("{sysctl} is {wanted}"), PATIENCE, || value(place, sysctl) == wanted);
}

fn tune(name: &str, rules: &[&str], further: &str) -> String {
    format!("[[interface]]\nmatch.name = \"{name}\"\ntune = {rules:?}\n{further}\n")
}

/// Returns the status of one worker of an interface; null if the interface has no such worker.
fn worker(place: &Place, name: &str, kind: &str) -> Value {
    let interface = place.interface(name);
    let workers = interface["workers"].as_array().cloned().unwrap_or_default();
    workers.into_iter().find(|worker| worker["kind"] == kind).unwrap_or_default()
}

fn wait_for_worker(place: &Place, name: &str, kind: &str, state: &str) -> u32 {
    wait_for(&format!("{kind} of {name} is {state}, not {}", place.status()), PATIENCE, || {
        worker(place, name, kind)["state"] == state
    });
    worker(place, name, kind)["process"].as_u64().unwrap_or_default().try_into().unwrap()
}

fn succeed(place: &Place, words: &[&str]) -> String {
    let ended = end(place.client(words));
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.stdout
}

#[test]
fn tune_is_in_effect_until_a_pause_or_the_end() {
    let place = place();
    let before = place.managed.seen();
    place.write(&tune(FIRST, &[SACK.0], ""));
    let check = end(place.managed.command(&["service", "--check", place.file().to_str().unwrap()]));
    assert!(check.code == 0 && check.stdout.contains("evenkeel tune evk0 --apply sack-off"), "{check:?}");
    assert_same(&place.managed.seen(), &before, "after --check");

    let service = place.start();
    wait_for_worker(&place, FIRST, "tune", "tuned");
    assert_eq!((value(&place, SACK.1), value(&place, SCALING.1)), ("1".to_owned(), "0".to_owned()));
    let shown = succeed(&place, &["status"]);
    assert!(shown.starts_with("evk0 is tuned."), "{shown}");
    assert!(shown.contains("the sysctl net.ipv4.tcp_sack: '0' -> '1'"), "{shown}");
    // The keys of the only worker are also in the status of its interface.
    assert_eq!(place.interface(FIRST)["state"], "tuned");
    let device = worker(&place, FIRST, "tune")["devices"][0].clone();
    assert_eq!((&device["rules"][0], &device["refused"]), (&"sack-off".into(), &Value::Array(Vec::new())));

    succeed(&place, &["service", "pause", FIRST]);
    assert_same(&place.managed.seen(), &before, "during the pause");
    assert_eq!(place.managed.journals(), Vec::<String>::new());
    succeed(&place, &["service", "resume"]);
    assert_eq!(value(&place, SACK.1), "1");
    let said = place.end(service);
    assert_same(&place.managed.seen(), &before, "afterwards");
    let line = "evk0: tune: the sysctl net.ipv4.tcp_sack: '0' -> '1' (sack-off): ";
    assert!(said.contains(line) && said.contains("evk0: tune: tuned -> stopping"), "{said}");
    assert!(said.contains("evk0: tune: the sysctl net.ipv4.tcp_sack: '1' -> '0' (undone)"), "{said}");
}

#[test]
fn kept_changes_outlive_the_service_but_not_a_pause() {
    let place = place();
    let before = place.managed.seen();
    place.write(&tune(FIRST, &[SACK.0], "tune-at-end = \"keep\""));
    let stop = |mut service: Running| {
        service.signal(Signal::SIGTERM);
        let ended = service.end();
        assert_eq!(ended.code, 0, "{ended:?}");
    };
    let service = place.start();
    wait_for_worker(&place, FIRST, "tune", "tuned");
    stop(service);
    assert_eq!((value(&place, SACK.1).as_str(), place.managed.journals().len()), ("1", 1));

    let service = place.start();
    wait_for_worker(&place, FIRST, "tune", "tuned");
    assert_eq!(worker(&place, FIRST, "tune")["devices"][0]["changes"].as_array().map(Vec::len), Some(1));
    succeed(&place, &["service", "pause"]);
    assert_same(&place.managed.seen(), &before, "during the pause");
    succeed(&place, &["service", "resume"]);
    stop(service);
    assert_eq!(end(place.managed.command(&["revert"])).code, 0);
    assert_same(&place.managed.seen(), &before, "after revert");
}

#[test]
fn tune_undoes_only_its_own_changes() {
    let place = place();
    let by_hand = end(place.managed.command(&["tune", FIRST, "--apply", SCALING.0, "--no-watch"]));
    assert_eq!(by_hand.code, 0, "{by_hand:?}");
    place.write(&tune(FIRST, &[SACK.0, SCALING.0], ""));
    let mut service = place.start();
    wait_for_worker(&place, FIRST, "tune", "tuned");
    assert_eq!(value(&place, SACK.1), "1");
    service.signal(Signal::SIGTERM);
    let ended = service.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!((value(&place, SACK.1).as_str(), value(&place, SCALING.1).as_str()), ("0", "1"));
    assert_eq!(end(place.managed.command(&["revert"])).code, 0);
    assert_eq!(value(&place, SCALING.1), "0");
}

#[test]
fn an_interface_that_is_made_again_is_tuned_again() {
    let mut place = place();
    place.write(&tune(OTHER, &[SACK.0], ""));
    let service = place.start();
    wait_for_worker(&place, OTHER, "tune", "tuned");
    for _ in 0..2 {
        place.shell("ip link del evk2");
        wait_for("the removed interface is forgotten", PATIENCE, || place.interface(OTHER).is_null());
        wait_for_value(&place, SACK.1, "0");
        place.add_other();
        wait_for_worker(&place, OTHER, "tune", "tuned");
        assert_eq!(value(&place, SACK.1), "1");
    }
    // A new name of the interface does not count as a change by another program.
    for line in ["ip link set evk2 down", "ip link set evk2 name evk7", "ip link set evk7 up"] {
        place.shell(line);
    }
    wait_for("the renamed interface is left alone", PATIENCE, || place.interface(OTHER).is_null());
    wait_for_value(&place, SACK.1, "0");
    place.end(service);
}

#[test]
fn a_setting_that_another_program_changes_is_left_to_it() {
    let place = place();
    place.write(&tune(FIRST, &[SACK.0, SCALING.0], ""));
    let service = place.start();
    wait_for_worker(&place, FIRST, "tune", "tuned");
    set(&place, SACK.1, "0");
    wait_for_worker(&place, FIRST, "tune", "given-up");
    let shown = end(place.client(&["status"]));
    let words = format!(
        "tune of evk0 is given up: another program changed the sysctl net.ipv4.tcp_sack from '1' to '0'; \
         `evenkeel service resume --socket {} evk0` tries again",
        place.socket().display()
    );
    assert!(shown.code == 1 && shown.stdout.replace('\n', " ").contains(&words), "{shown:?}");
    // A reload without new options does not restart the worker.
    succeed(&place, &["service", "reload"]);
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(worker(&place, FIRST, "tune")["state"], "given-up");
    assert_eq!((value(&place, SACK.1).as_str(), value(&place, SCALING.1).as_str()), ("0", "1"));

    succeed(&place, &["service", "resume", FIRST]);
    wait_for_worker(&place, FIRST, "tune", "tuned");
    assert_eq!(value(&place, SACK.1), "1");
    set(&place, SACK.1, "0");
    wait_for_worker(&place, FIRST, "tune", "given-up");
    let said = place.end(service);
    assert_eq!(said.matches("evk0: tune: tuned -> given up: another program changed").count(), 2, "{said}");
    assert_eq!(value(&place, SCALING.1), "0", "the other change is undone at the end");
}

/// If a user tunes a setting and resets it by hand, a later change by the service belongs to the service,
/// which undoes it. If the service's change is reset by hand, a later change by the user belongs to the user,
/// and the service keeps it.
#[test]
fn the_last_change_decides_whether_the_service_undoes_it() {
    let place = place();
    let tune_by_hand = || {
        let ended = end(place.managed.command(&["tune", FIRST, "--apply", SACK.0, "--no-watch"]));
        assert!(ended.code == 0 && value(&place, SACK.1) == "1", "{ended:?}");
    };
    tune_by_hand();
    set(&place, SACK.1, "0");
    place.write(&tune(FIRST, &[SACK.0], ""));
    let mut service = place.start();
    wait_for_worker(&place, FIRST, "tune", "tuned");
    assert_eq!(value(&place, SACK.1), "1");
    assert_eq!(worker(&place, FIRST, "tune")["devices"][0]["changes"].as_array().map(Vec::len), Some(1));
    succeed(&place, &["service", "pause", FIRST]);
    assert_eq!(value(&place, SACK.1), "0", "after the pause");

    succeed(&place, &["service", "resume", FIRST]);
    wait_for_worker(&place, FIRST, "tune", "tuned");
    set(&place, SACK.1, "0");
    wait_for_worker(&place, FIRST, "tune", "given-up");
    tune_by_hand();
    succeed(&place, &["service", "pause", FIRST]);
    assert_eq!(value(&place, SACK.1), "1", "the user's value after the pause");
    service.signal(Signal::SIGTERM);
    let ended = service.end();
    assert_eq!((ended.code, value(&place, SACK.1).as_str()), (0, "1"), "{ended:?}");
    assert_eq!(end(place.managed.command(&["revert"])).code, 0);
    assert_eq!(value(&place, SACK.1), "0");
}

/// Two journals have the same setting of the host: the value was reset by hand after the first change.
#[test]
fn a_revert_leaves_a_setting_of_the_host_to_the_other_interface_that_set_it() {
    let place = place();
    let tune_both = || {
        for name in [FIRST, OTHER] {
            set(&place, SACK.1, "0");
            let ended = end(place.managed.command(&["tune", name, "--apply", SACK.0, "--no-watch"]));
            assert!(ended.code == 0 && value(&place, SACK.1) == "1", "{ended:?}");
        }
        assert_eq!(place.managed.journals().len(), 2);
    };
    tune_both();
    let first = end(place.managed.command(&["revert", FIRST]));
    assert!(first.code == 0 && value(&place, SACK.1) == "1", "{first:?}");
    assert!(first.stdout.contains("0 settings restored, 1 kept for another interface"), "{first:?}");
    let words = "tcp_sack is left, because evenkeel tune on evk2 has also set it: '1'; ";
    assert!(first.stderr.replace('\n', " ").contains(words), "{first:?}");
    assert!(first.stderr.contains("evenkeel revert evk2` restores '0'"), "{first:?}");
    let other = end(place.managed.command(&["revert", OTHER]));
    assert!(other.code == 0 && value(&place, SACK.1) == "0", "{other:?}");
    // If two reverts run at the same time, one of them restores the value.
    for round in 0..10 {
        tune_both();
        for run in [FIRST, OTHER].map(|name| Running::start(place.managed.command(&["revert", name]))) {
            let ended = run.end();
            assert_eq!(ended.code, 0, "round {round}: {ended:?}");
        }
        assert_eq!(
            (value(&place, SACK.1).as_str(), place.managed.journals().len()),
            ("0", 0),
            "round {round}"
        );
    }
    tune_both();
    assert_eq!(end(place.managed.command(&["revert"])).code, 0);
    assert_eq!(value(&place, SACK.1), "0");
}

/// A setting of the host belongs to one interface, even if two workers find it at the same time. While this
/// interface is paused, the other interface takes over the setting.
#[test]
fn another_interface_takes_over_a_setting_of_the_host() {
    let place = place();
    place.write(&format!("{}{}", tune(FIRST, &[SACK.0], ""), tune(OTHER, &[SACK.0], "")));
    let service = place.start();
    wait_for_worker(&place, FIRST, "tune", "tuned");
    wait_for_worker(&place, OTHER, "tune", "tuned");
    let shown = end(place.client(&["status"]));
    assert_eq!(shown.code, 0, "{shown:?}");
    let owns = |name: &str| {
        worker(&place, name, "tune")["devices"][0]["changes"].as_array().is_some_and(|all| !all.is_empty())
    };
    assert!(owns(FIRST) != owns(OTHER), "{}", place.status());
    let (owner, other) = if owns(FIRST) { (FIRST, OTHER) } else { (OTHER, FIRST) };
    succeed(&place, &["service", "pause", owner]);
    wait_for("the other interface has the change", PATIENCE, || owns(other));
    assert_eq!((value(&place, SACK.1), end(place.client(&["status"])).code), ("1".to_owned(), 0));
    succeed(&place, &["service", "resume"]);
    place.end(service);
    assert_eq!(value(&place, SACK.1), "0");
}

/// Two commands that read the old value at the same time must not both journal it.
#[test]
fn of_two_that_tune_at_once_one_has_the_setting_of_the_host() {
    let place = place();
    for round in 0..10 {
        let runs = [FIRST, OTHER].map(|name| {
            Running::start(place.managed.command(&["tune", name, "--apply", SACK.0, "--no-watch"]))
        });
        for run in runs {
            let ended = run.end();
            assert_eq!(ended.code, 0, "round {round}: {ended:?}");
        }
        assert_eq!(
            (value(&place, SACK.1), place.managed.journals().len()),
            ("1".to_owned(), 1),
            "round {round}"
        );
        assert_eq!(end(place.managed.command(&["revert"])).code, 0);
        assert_eq!(value(&place, SACK.1), "0");
    }
}

/// Another program changes a setting that no worker has changed, and a rule then has a finding.
#[test]
fn a_later_finding_about_the_host_is_fixed() {
    let place = place();
    set(&place, SACK.1, "1");
    place.write(&tune(FIRST, &[SACK.0], ""));
    let service = place.start();
    wait_for_worker(&place, FIRST, "tune", "tuned");
    set(&place, SACK.1, "0");
    wait_for_value(&place, SACK.1, "1");
    assert_eq!(end(place.client(&["status"])).code, 0);
    place.end(service);
    assert_eq!(value(&place, SACK.1), "0");
}

/// The service does not repeat a change that an operator has reverted.
#[test]
fn a_revert_by_hand_is_not_undone() {
    let place = place();
    place.write(&tune(FIRST, &[SACK.0], ""));
    let service = place.start();
    wait_for_worker(&place, FIRST, "tune", "tuned");
    assert_eq!(end(place.managed.command(&["revert", FIRST])).code, 0);
    wait_for_worker(&place, FIRST, "tune", "given-up");
    assert!(worker(&place, FIRST, "tune")["reason"].as_str().unwrap().contains("`evenkeel revert` undid it"));
    assert_eq!(value(&place, SACK.1), "0");
    succeed(&place, &["service", "resume"]);
    wait_for_worker(&place, FIRST, "tune", "tuned");
    assert_eq!(value(&place, SACK.1), "1");
    place.end(service);
}

/// The list of settings to keep has precedence over the rules of a worker.
#[test]
fn a_setting_to_keep_is_left_alone_and_shown() {
    let place = place();
    place.write(&tune(FIRST, &[SACK.0, SCALING.0], ""));
    let etc = tempfile::tempdir().unwrap();
    std::fs::create_dir(etc.path().join("evenkeel")).unwrap();
    support::file(&etc.path().join("evenkeel"), "keep.toml", "keep = [\"sysctl net.ipv4.tcp_sack\"]\n");
    let mut command = place.command();
    command.env("EVENKEEL_ETC_DIR", etc.path());
    let mut service = Running::start(command);
    service.wait_for_activity("ready: ");
    wait_for_worker(&place, FIRST, "tune", "tuned");
    assert_eq!((value(&place, SACK.1).as_str(), value(&place, SCALING.1).as_str()), ("0", "1"));
    let shown = succeed(&place, &["status"]);
    assert!(shown.contains("evk0: sack-off leaves a setting alone: "), "{shown}");
    let said = place.end(service);
    assert!(said.contains("evk0: tune: the sysctl net.ipv4.tcp_sack is left alone: "), "{said}");
}

/// A worker and `evenkeel tune` change the same setting. The interrupted command undoes its change. The
/// worker waits for the end of the command.
#[test]
fn a_change_that_a_command_undoes_does_not_end_the_worker() {
    let place = place();
    place.write(&tune(FIRST, &[SACK.0], ""));
    let service = place.start();
    let process = wait_for_worker(&place, FIRST, "tune", "tuned");
    let change = |is_undone: bool| {
        let knob = Knob::Sysctl(format!("net/ipv4/{}", SACK.1));
        let state = StateDirectory::at(place.managed.state.path());
        let (mut lasting, _) = Lasting::begin(&state, place.managed.index, FIRST, "tune").unwrap();
        lasting.change(&Change::new(knob, evenkeel_apply::Value::Text("0".to_owned()))).unwrap();
        wait_for("the worker waits", PATIENCE, || {
            worker(&place, FIRST, "tune")["reason"].to_string().contains("the worker waits for its end")
        });
        match is_undone {
            true => assert!(lasting.undo().unwrap().is_settled()),
            false => assert!(lasting.keep().unwrap().is_none()),
        }
        Ok::<_, TestbedError>(())
    };
    place.managed.host.run(|| change(true)).unwrap();
    wait_for("the worker goes on", PATIENCE, || worker(&place, FIRST, "tune")["reason"].is_null());
    let worker_now = worker(&place, FIRST, "tune");
    assert_eq!((&worker_now["state"], &worker_now["process"]), (&"tuned".into(), &process.into()));
    assert_eq!((value(&place, SACK.1).as_str(), end(place.client(&["status"])).code), ("1", 0));
    // A change that the command keeps ends the worker.
    place.managed.host.run(|| change(false)).unwrap();
    wait_for_worker(&place, FIRST, "tune", "given-up");
    assert_eq!(end(place.managed.command(&["revert"])).code, 0);
    place.end(service);
    assert_eq!(value(&place, SACK.1), "0");
}

/// If fewer channels remove a queue, the kernel frees the maps of this queue. No rule has a finding for a
/// veth's queues, so the test makes the service's change itself.
#[test]
fn a_setting_that_the_device_loses_is_no_change_of_another_program() {
    let place = place();
    let map = Knob::InterfaceFile("queues/rx-3/rps_cpus".to_owned());
    let make = || {
        let state = StateDirectory::at(place.managed.state.path());
        let (mut lasting, _) = Lasting::begin(&state, place.managed.index, FIRST, "tune").unwrap();
        lasting.by_service();
        lasting.change(&Change::new(map, evenkeel_apply::Value::Text("1".to_owned()))).unwrap();
        lasting.keep().unwrap();
        Ok::<_, TestbedError>(())
    };
    place.managed.host.run(make).unwrap();
    place.write(&tune(FIRST, &[SACK.0], ""));
    let service = place.start();
    let before = wait_for_worker(&place, FIRST, "tune", "tuned");
    place.shell("ethtool -L evk0 rx 2");
    wait_for("a new worker", PATIENCE, || {
        let worker = worker(&place, FIRST, "tune");
        worker["state"] == "tuned" && worker["process"] != before
    });
    // Wait until the worker has checked the settings several times.
    let starts = worker(&place, FIRST, "tune")["starts"].clone();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(
        (&worker(&place, FIRST, "tune")["state"], &worker(&place, FIRST, "tune")["starts"]),
        (&"tuned".into(), &starts)
    );
    let said = place.end(service);
    let words = "evk0: tune: tuned -> waits: the number of queues changed, which reset ";
    assert!(said.contains(words) && !said.contains("given up"), "{said}");
    assert_eq!(value(&place, SACK.1), "0");
}

#[test]
fn a_killed_tune_goes_on_with_its_changes() {
    let place = place();
    place.write(&tune(FIRST, &[SACK.0], ""));
    let mut service = place.start();
    let first = wait_for_worker(&place, FIRST, "tune", "tuned");
    kill_process(first);
    wait_for("a new worker", PATIENCE, || {
        let worker = worker(&place, FIRST, "tune");
        worker["state"] == "tuned" && worker["process"] != first
    });
    assert_eq!(value(&place, SACK.1), "1");
    // When the service dies, the kernel sends SIGTERM to the worker, and the worker undoes its changes.
    service.signal(Signal::SIGKILL);
    drop(service);
    wait_for_value(&place, SACK.1, "0");
    wait_for("the journal is removed", PATIENCE, || place.managed.journals().is_empty());
}

#[test]
fn steer_is_started_again_after_a_kill_and_stopped() {
    let place = Place::new();
    let before = place.managed.seen();
    let steer = |policy: &str| {
        format!(
            "[[interface]]\nmatch.name = \"{FIRST}\"\nsteer = {{ policy = \"{policy}\", backend = \"xdp\" }}"
        )
    };
    place.write(&steer("balance"));
    let service = place.start();
    let first = wait_for_worker(&place, FIRST, "steer", "steered");
    assert!(place.shell("ip link show dev evk0").contains("xdp"));
    let shown = succeed(&place, &["status"]);
    assert!(shown.starts_with("evk0 is steered."), "{shown}");
    kill_process(first);
    wait_for("a new worker", PATIENCE, || {
        let worker = worker(&place, FIRST, "steer");
        worker["state"] == "steered" && worker["process"] != first
    });
    wait_for("a status", PATIENCE, || worker(&place, FIRST, "steer")["devices"][0]["backend"] == "xdp");

    // Changed options restart the worker.
    place.write(&steer("locality"));
    succeed(&place, &["service", "reload"]);
    wait_for("the other policy", PATIENCE, || {
        worker(&place, FIRST, "steer")["devices"][0]["policy"]
            .as_str()
            .is_some_and(|name| name.contains("locality"))
    });
    succeed(&place, &["service", "pause"]);
    assert!(!place.shell("ip link show dev evk0").contains("xdp"));
    succeed(&place, &["service", "resume"]);
    wait_for_worker(&place, FIRST, "steer", "steered");
    let said = place.end(service);
    assert!(said.contains("evk0: steer: steered -> waits: SIGKILL killed the worker"), "{said}");
    assert_same(&place.managed.seen(), &before, "afterwards");
}

/// RPS changes settings. The guardian of a killed worker restores them.
#[test]
fn steer_with_rps_restores_its_settings() {
    let place = Place::new();
    place.write(&format!(
        "[[interface]]\nmatch.name = \"{FIRST}\"\nsteer = {{ policy = \"balance\", backend = \"rps\" }}"
    ));
    let rps = || {
        let read = |sysfs: evenkeel_host::Sysfs| sysfs.read("class/net/evk0/queues/rx-0/rps_cpus").unwrap();
        let read = || Ok(read(evenkeel_host::Sysfs::of_namespace().unwrap()));
        place.managed.host.run(read).unwrap()
    };
    let before = rps();
    let service = place.start();
    let process = wait_for_worker(&place, FIRST, "steer", "steered");
    wait_for("the maps of RPS", PATIENCE, || rps() != before);
    kill_process(process);
    wait_for("a new worker", PATIENCE, || {
        let worker = worker(&place, FIRST, "steer");
        worker["state"] == "steered" && worker["process"] != process
    });
    place.end(service);
    assert_eq!(rps(), before);
}

#[test]
fn an_interface_has_all_three_kinds_at_a_time() {
    let place = place();
    let before = place.managed.seen();
    let both = format!("{}\nsteer = {{ policy = \"balance\", backend = \"xdp\" }}\n", only(FIRST));
    place.write(&both);
    let service = place.start();
    let fair = wait_for_worker(&place, FIRST, "fair", "fair");
    let steer = wait_for_worker(&place, FIRST, "steer", "steered");
    place.wait_for_maps(true);
    assert_eq!(place.interface(FIRST)["process"], fair, "the keys of the interface are those of fair");

    // `tune` needs exclusive use of the interface for its changes, so the other workers restart.
    place.write(&format!("{both}tune = [\"sack-off\"]\n"));
    succeed(&place, &["service", "reload"]);
    wait_for_worker(&place, FIRST, "tune", "tuned");
    wait_for("the others start again", PATIENCE, || {
        let is_new = |kind: &str, state: &str, old: u32| {
            let worker = worker(&place, FIRST, kind);
            worker["state"] == state && worker["process"] != old
        };
        is_new("fair", "fair", fair) && is_new("steer", "steered", steer)
    });
    assert_eq!(value(&place, SACK.1), "1");
    let shown = succeed(&place, &["status"]);
    assert!(shown.starts_with("evk0 is tuned, fair and steered."), "{shown}");

    let exported = end(place.managed.command(&["metrics", FIRST]));
    for command in ["fair", "steer", "tune"] {
        let line = format!("evenkeel_interface_managed{{interface=\"evk0\",command=\"{command}\"}} 1");
        assert!(exported.stdout.contains(&line), "{command}: {exported:?}");
    }

    // After a reload without `tune`, the service undoes the changes of `tune` while the sessions wait.
    place.write(&both);
    succeed(&place, &["service", "reload"]);
    wait_for("tune is gone", PATIENCE, || worker(&place, FIRST, "tune").is_null());
    assert_eq!(value(&place, SACK.1), "0");
    wait_for_worker(&place, FIRST, "fair", "fair");
    wait_for_worker(&place, FIRST, "steer", "steered");

    place.write(&format!("{both}tune = [\"sack-off\"]\n"));
    succeed(&place, &["service", "reload"]);
    wait_for_worker(&place, FIRST, "steer", "steered");
    wait_for_worker(&place, FIRST, "tune", "tuned");
    succeed(&place, &["service", "pause"]);
    assert_same(&place.managed.seen(), &before, "during the pause");
    succeed(&place, &["service", "resume"]);
    wait_for_worker(&place, FIRST, "fair", "fair");
    place.end(service);
    assert_same(&place.managed.seen(), &before, "afterwards");
}

/// The status gives a finding that `tune` cannot fix as the reason of the `tune` worker, not of the `fair`
/// worker. With a root qdisc that schedules all flows together, the `fair` worker has a reason.
#[test]
fn the_worker_with_an_unmet_finding_names_it() {
    let place = place();
    place.managed.send_to_closed_port();
    let rules = format!("{}\ntune = [\"sack-off\", \"udp-no-port\"]\n", only(FIRST));
    place.write(&rules);
    let service = place.start();
    wait_for_worker(&place, FIRST, "fair", "fair");
    wait_for_worker(&place, FIRST, "tune", "tuned");
    let reason = |kind: &str| worker(&place, FIRST, kind)["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason("tune").starts_with("udp-no-port needs a step by hand: "), "{}", place.status());
    assert_eq!((reason("fair").as_str(), value(&place, SACK.1).as_str()), ("", "1"));
    let shown = end(place.client(&["status"]));
    assert!(shown.code == 1 && shown.stdout.contains("udp-no-port needs a step by hand"), "{shown:?}");
    place.end(service);

    place.shell("tc qdisc replace dev evk0 root tbf rate 1gbit burst 100k limit 1m");
    place.write(&only(FIRST));
    let service = place.start();
    wait_for_worker(&place, FIRST, "fair", "fair");
    let words =
        "the root qdisc tbf of evk0 schedules all flows together, so the choice of queues changes no rate";
    assert!(reason("fair").starts_with(words), "{}", place.status());
    let shown = end(place.client(&["status"]));
    assert!(shown.code == 1 && shown.stdout.replace('\n', " ").contains(words), "{shown:?}");
    place.end(service);
}

#[test]
fn a_rule_about_nics_does_not_make_a_veth_tuned() {
    let place = place();
    place.write(&tune(FIRST, &["gro-off"], ""));
    let service = place.start();
    wait_for_worker(&place, FIRST, "tune", "refused");
    let words = format!("gro-off, a rule about NICs, does not judge {FIRST}: it has no device");
    assert!(worker(&place, FIRST, "tune")["reason"].to_string().contains(&words), "{}", place.status());
    place.end(service);
}

/// If another program moves the interface to another network namespace, its settings stay changed, and the
/// status names them. The service undoes its changes to settings of this host.
#[test]
fn a_move_of_the_interface_undoes_the_settings_of_the_host() {
    let mut place = place();
    place.write(&format!("{}\ntune = [\"sack-off\"]\n", only(FIRST)));
    let service = place.start();
    wait_for_worker(&place, FIRST, "fair", "fair");
    wait_for_worker(&place, FIRST, "tune", "tuned");
    let mut peer = place.managed.peer.netlink().unwrap();
    place.managed.netlink.move_link(place.managed.index, place.managed.peer.as_fd()).unwrap();
    wait_for("the moved interface is forgotten", PATIENCE, || place.interface(FIRST).is_null());
    assert_eq!(value(&place, SACK.1), "0", "{}", service.said());
    let words = "the settings of evk0 are not restored: evenkeel fair on evk0 ";
    for command in [&["status", FIRST][..], &["service", "pause", FIRST]] {
        let ended = end(place.client(command));
        let said = format!("{}{}", ended.stdout, ended.stderr).replace('\n', " ");
        let code = if command[0] == "status" { 1 } else { 4 };
        assert!(ended.code == code && said.contains(words), "{ended:?}");
    }
    // Directly after a revert, a pause no longer names the settings.
    let moved = peer.link_index(FIRST).unwrap();
    peer.delete_link(moved).unwrap();
    assert_eq!(end(place.managed.command(&["revert"])).code, 0);
    let paused = end(place.client(&["service", "pause", FIRST]));
    let words = "manages no interface 'evk0': no interface matches rule 1, which names evk0";
    assert!(paused.code == 2 && paused.stderr.contains(words), "{paused:?}");
    let paused = end(place.client(&["service", "pause"]));
    assert_eq!(paused.code, 0, "{paused:?}");
    place.end(service);
}

/// systemd sends SIGTERM to all processes at once: `tune` waits for the sessions.
#[test]
fn all_workers_end_at_once() {
    let place = place();
    let before = place.managed.seen();
    place.write(&format!("{}\ntune = [\"sack-off\"]\n", only(FIRST)));
    let mut service = place.start();
    let fair = wait_for_worker(&place, FIRST, "fair", "fair");
    let tune = wait_for_worker(&place, FIRST, "tune", "tuned");
    for process in [tune, fair] {
        let process = nix::unistd::Pid::from_raw(process.cast_signed());
        nix::sys::signal::kill(process, Signal::SIGTERM).unwrap();
    }
    service.signal(Signal::SIGTERM);
    let ended = service.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(place.managed.journals(), Vec::<String>::new(), "{ended:?}");
    assert_same(&place.managed.seen(), &before, "afterwards");
}

/// If a worker's file becomes invalid or is removed, the worker keeps the previous weights or policy. The
/// status shows the reason.
#[test]
fn a_file_of_a_worker_that_breaks_is_a_reason() {
    let place = Place::new();
    let directory = place.file().parent().unwrap().to_owned();
    let write = |name: &str, text: &str| support::file(&directory, name, text);
    let (weights, policy) = ("schema = 1\n", "policy = \"balance\"\n");
    let files = [write("weights.toml", weights), write("policy.toml", policy)];
    let [of_fair, of_steer] = files.each_ref().map(|path| path.to_str().unwrap());
    place.write(&format!(
        "[[interface]]\nmatch.name = \"{FIRST}\"\nfair = {{ weights = \"{of_fair}\", xps = \"off\" }}\n\
         steer = {{ policy = \"{of_steer}\", backend = \"xdp\" }}"
    ));
    let service = place.start();
    wait_for_worker(&place, FIRST, "fair", "fair");
    wait_for_worker(&place, FIRST, "steer", "steered");
    assert_eq!(end(place.client(&["status"])).code, 0);
    let reason = |kind: &str| worker(&place, FIRST, kind)["reason"].as_str().unwrap_or_default().to_owned();
    for (kind, name, text, word) in
        [("fair", "weights.toml", weights, "weights"), ("steer", "policy.toml", policy, "policy")]
    {
        let words = format!("the previous {word} stay");
        for breaks in [true, false] {
            if breaks {
                write(name, "x = [");
            } else {
                std::fs::remove_file(directory.join(name)).unwrap();
            }
            wait_for("the file is named", PATIENCE, || {
                let reason = reason(kind);
                reason.contains(name) && reason.contains(&words)
            });
            let shown = end(place.client(&["status"]));
            assert!(shown.code == 1 && shown.stdout.replace('\n', " ").contains(&words), "{shown:?}");
            write(name, text);
            wait_for("the reason is gone", PATIENCE, || reason(kind).is_empty());
            assert_eq!(end(place.client(&["status"])).code, 0);
        }
    }
    place.end(service);
}
