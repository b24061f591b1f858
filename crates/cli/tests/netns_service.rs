//! Tests `evenkeel service` and `evenkeel status` on two interfaces. The tests cover which interfaces
//! become fair, the reactions to changes of interfaces, of the configuration and by other programs, and
//! the output of clients.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::Duration;

use evenkeel_host::Capability;
use evenkeel_service::{Command, Request, ask};
use nix::sys::signal::Signal;

use support::managed::{assert_same, kill_process, tool, wait_for, with_own_sysfs};
use support::running::Running;
use support::service::{BOTH, FIRST, OTHER, PATIENCE, Place, only};
use support::{end, without};

#[test]
fn both_interfaces_become_fair_and_the_end_restores_them() {
    let place = Place::new();
    let before = place.managed.seen();
    place.write(BOTH);
    let check = end(place.managed.command(&["service", "--check", place.file().to_str().unwrap()]));
    assert!(check.code == 0 && check.stdout.contains("evenkeel fair evk2 --xps=off"), "{check:?}");
    assert_same(&place.managed.seen(), &before, "after --check");

    let mut service = place.start();
    let supervisor = service.id();
    place.wait_for(FIRST, "fair");
    place.wait_for(OTHER, "fair");
    place.wait_for_maps(true);
    let shown = end(place.client(&["status"]));
    assert!(shown.code == 0 && shown.stdout.starts_with("all 2 interfaces are fair."), "{shown:?}");
    let one = end(place.client(&["status", OTHER, "--format", "json"]));
    let json: serde_json::Value = serde_json::from_str(&one.stdout).unwrap();
    assert_eq!((&json["process"], &json["interfaces"][0]["name"]), (&supervisor.into(), &OTHER.into()));
    assert_eq!(json["interfaces"].as_array().map(Vec::len), Some(1));
    wait_for("a status of the device", PATIENCE, || place.interface(FIRST)["devices"][0]["queues"] == 4);
    let unknown = end(place.client(&["status", "evk9"]));
    assert!(unknown.code == 2 && unknown.stderr.contains("no managed interface 'evk9'"), "{unknown:?}");

    let second = end(place.command());
    let words = format!("another service (process {supervisor}) runs in this network namespace");
    assert!(second.code == 3 && second.stderr.contains(&words), "{second:?}");
    let socket = format!("--socket {}", place.socket().display());
    assert!(second.stderr.contains(&format!("`evenkeel status {socket}`")), "{second:?}");
    let refused = end(place.managed.command(&["fair", FIRST, "--for", "1s"]));
    let pause = format!("evenkeel service pause {socket} {FIRST}`");
    assert!(refused.code == 3 && refused.stderr.contains(&pause), "{refused:?}");
    let said = place.end(service);
    assert!(said.contains("evk0: fair -> stopping"), "{said}");
    assert_same(&place.managed.seen(), &before, "afterwards");
    let without_service = end(place.client(&["status"]));
    assert!(
        without_service.code == 3 && without_service.stderr.contains("no service answers"),
        "{without_service:?}"
    );
}

#[test]
fn an_interface_that_goes_comes_back_or_gets_another_name_is_followed() {
    let mut place = Place::new();
    place.write(BOTH);
    let service = place.start();
    place.wait_for(OTHER, "fair");
    let process = place.process(FIRST);

    place.shell("ip link del evk2");
    wait_for("the removed interface is forgotten", PATIENCE, || place.interface(OTHER).is_null());
    place.add_other();
    place.wait_for(OTHER, "fair");

    // The new name matches the rule, too.
    let other = place.process(OTHER);
    place.shell("ip link set evk2 down");
    place.shell("ip link set evk2 name evk7");
    place.shell("ip link set evk7 up");
    place.wait_for_restart("evk7", other);
    assert!(place.interface(OTHER).is_null());

    // The name `unmatched` does not match the rule.
    place.shell("ip link set evk7 down");
    place.shell("ip link set evk7 name unmatched");
    wait_for("the renamed interface is left alone", PATIENCE, || {
        let status = place.status();
        status["interfaces"].as_array().map(Vec::len) == Some(1)
            && status["unmanaged"].as_array().is_some_and(|names| names.contains(&"unmatched".into()))
    });
    // A link flap does not end the session.
    place.shell("ip link set evk0 down");
    std::thread::sleep(Duration::from_millis(1200));
    place.shell("ip link set evk0 up");
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(place.process(FIRST), process);

    // The journal of an interface that moves to another namespace stays. The log contains the command
    // that restores its settings there.
    let mut peer = place.managed.peer.netlink().unwrap();
    place.managed.netlink.move_link(place.managed.index, place.managed.peer.as_fd()).unwrap();
    wait_for("the moved interface is forgotten", PATIENCE, || place.interface(FIRST).is_null());
    assert_eq!(place.managed.journals().len(), 1);
    let said = service.said();
    for words in ["evk2: the interface left this network namespace", "evenkeel revert evk0"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let status = end(place.client(&["status"]));
    let words = "the settings of evk0 are not restored: ";
    assert!(status.code == 1 && status.stdout.contains(words), "{status:?}");
    // The reason names the command, the state directory of this service and the network namespace, so that
    // the command works from any shell.
    let status = end(place.client(&["status", "--format", "json"]));
    let reason =
        serde_json::from_str::<serde_json::Value>(&status.stdout).unwrap()["unrestored"][0]["reason"]
            .to_string();
    let command = "evenkeel revert evk0` in the network namespace net:[";
    assert!(reason.contains("EVENKEEL_STATE_DIR=") && reason.contains(command), "{reason}");
    let moved = peer.link_index(FIRST).unwrap();
    peer.delete_link(moved).unwrap();
    assert_eq!(end(place.managed.command(&["revert"])).code, 0);
    wait_for("the all-clear", PATIENCE, || end(place.client(&["status"])).code == 0);
    place.end(service);
}

#[test]
fn a_service_gives_up_against_a_program_that_repeats_its_change() {
    let place = Place::new();
    place.write(BOTH);
    let service = place.start();
    place.wait_for(OTHER, "fair");
    let other = place.process(OTHER);
    let mut process = 0;
    for handle in ["8:", "9:", "a:"] {
        process = place.wait_for_restart(FIRST, process);
        place.shell(&format!("tc qdisc replace dev evk0 root handle {handle} mq"));
    }
    place.wait_for(FIRST, "given-up");
    assert_eq!(place.interface(FIRST)["process"], serde_json::Value::Null);
    place.wait_for_maps(false);
    let shown = end(place.client(&["status"]));
    let words = "1 of 2 interfaces is fair; evk0 is given up: another program replaced the root qdisc: mq 9: before, mq a:";
    assert!(shown.code == 1 && shown.stdout.contains(words), "{shown:?}");
    let resumed = end(place.client(&["service", "resume", FIRST]));
    assert!(resumed.code == 0 && resumed.stdout.contains("all 2 interfaces are fair"), "{resumed:?}");
    place.wait_for_maps(true);
    assert_eq!(place.process(OTHER), other, "the other session is not disturbed");
    let said = place.end(service);
    assert!(said.contains("evk0: fair -> given up: "), "{said}");
}

#[test]
fn a_reload_touches_only_what_it_changes() {
    let place = Place::new();
    place.write(&only(FIRST));
    let mut service = place.start();
    place.wait_for(FIRST, "fair");
    let process = place.process(FIRST);

    place.write(BOTH);
    let reloaded = end(place.client(&["service", "reload"]));
    assert_eq!(reloaded.code, 0, "{reloaded:?}");
    place.wait_for(OTHER, "fair");

    // An invalid file does not change the running service.
    place.write("[[interface]]\nmatch = { name = \"evk?\" }\nfair = { xsp = \"off\" }");
    let refused = end(place.client(&["service", "reload"]));
    let words = "evenkeel.toml:6:10: interface[0].fair.xsp: unknown key; did you mean 'xps'?";
    assert!(refused.code == 2 && refused.stderr.contains(words), "{refused:?}");
    let shown = end(place.client(&["status"]));
    assert!(shown.code == 1 && shown.stdout.contains("so the previous one is in force"), "{shown:?}");

    // SIGHUP also reloads the file. Changed options restart only their interface.
    let other = place.process(OTHER);
    place.write(&format!(
        "{}\n[[interface]]\nmatch.name = \"evk2\"\nfair = {{ balance = \"auto\" }}",
        only(FIRST)
    ));
    service.signal(Signal::SIGHUP);
    let balancing = place.wait_for_restart(OTHER, other);
    wait_for("the new option", PATIENCE, || place.interface(OTHER)["devices"][0]["balance"].is_object());
    assert_ne!(balancing, other);
    assert!(place.status()["error"].is_null());

    place.write(&only(FIRST));
    service.signal(Signal::SIGHUP);
    wait_for("evk2 is left alone", PATIENCE, || place.interface(OTHER).is_null());
    assert_eq!((place.process(FIRST), place.interface(FIRST)["starts"].as_u64()), (process, Some(1)));

    // The service limits its log, however often it reads the file.
    for _ in 0..30 {
        let request = Request { command: Command::Reload, interface: None };
        assert!(ask(&place.socket(), &request).unwrap()["done"].is_string());
    }
    let said = place.end(service);
    let lines = said.lines().filter(|line| line.starts_with("reloaded ")).count();
    assert!((3..=20).contains(&lines), "{lines}: {said}");
}

/// Starts traffic, then a service with these rules. As soon as the interface is fair, makes the far end
/// lose one packet in twenty, and calls `then`. The losses look like a fault of the queue choice.
fn with_losses(place: &Place, rules: &str, then: impl FnOnce()) {
    place.write(rules);
    let mut load = place.managed.load(4, "20M", 100);
    let sent = || {
        let read = || Ok(std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
        let table = place.managed.host.run(read).unwrap();
        let values = table.lines().filter(|line| line.starts_with("Tcp: ")).nth(1).unwrap();
        values.split(' ').nth(11).unwrap().parse::<u64>().unwrap()
    };
    // The service compares losses only if TCP sent at least 5000 segments before the start.
    wait_for("6000 segments", PATIENCE, || sent() > 6000);
    let service = place.start();
    place.wait_for(FIRST, "fair");
    for line in [
        "nft add table ip lossy",
        "nft add chain ip lossy input { type filter hook input priority 0 ; }",
        "nft add rule ip lossy input tcp dport 5201 numgen inc mod 20 == 0 drop",
    ] {
        tool(&place.managed.peer, &line.split(' ').collect::<Vec<_>>());
    }
    then();
    tool(&place.managed.peer, &["nft", "flush", "ruleset"]);
    assert!(load.is_running());
    drop(load);
    place.end(service);
}

#[test]
fn losses_that_rise_after_the_start_end_it_until_resume() {
    let place = Place::new();
    with_losses(&place, &only(FIRST), || {
        place.wait_for(FIRST, "given-up");
        place.wait_for_maps(false);
        let shown = end(place.client(&["status"]));
        let words = "evk0 is given up: retransmissions rose from";
        assert!(shown.code == 1 && shown.stdout.contains(words), "{shown:?}");
        assert_eq!(end(place.client(&["service", "resume", FIRST])).code, 0);
        place.wait_for(FIRST, "fair");
    });
}

#[test]
fn losses_end_nothing_without_the_watch() {
    let place = Place::new();
    with_losses(&place, &format!("{}\nwatch-effect = false", only(FIRST)), || {
        let worker = place.process(FIRST);
        std::thread::sleep(Duration::from_secs(12));
        assert_eq!((place.process(FIRST), place.interface(FIRST)["starts"].as_u64()), (worker, Some(1)));
    });
}

#[test]
fn a_paused_interface_is_restored_until_it_resumes() {
    let place = Place::new();
    place.write(BOTH);
    let service = place.start();
    place.wait_for(OTHER, "fair");
    let other = place.process(OTHER);
    let paused = end(place.client(&["service", "pause", FIRST]));
    // The printed command names the interface and the socket, so it ends only this pause.
    let next =
        format!("`evenkeel service resume --socket {} {FIRST}` ends the pause", place.socket().display());
    assert!(paused.stdout.contains(&next), "{next}: {paused:?}");
    assert!(paused.code == 0 && paused.stdout.starts_with("evk0: paused"), "{paused:?}");
    place.wait_for_maps(false);
    let shown = end(place.client(&["status"]));
    assert!(shown.code == 0 && shown.stdout.contains("evk0 is paused"), "{shown:?}");
    assert_eq!(place.process(OTHER), other);

    let all = end(place.client(&["service", "pause"]));
    assert_eq!(all.code, 0, "{all:?}");
    assert_eq!(place.managed.journals(), Vec::<String>::new());
    let one = end(place.client(&["service", "resume", FIRST]));
    assert_eq!(one.code, 0, "{one:?}");
    place.wait_for_maps(true);
    assert_eq!(place.interface(OTHER)["state"], "paused");
    assert_eq!(end(place.client(&["service", "resume"])).code, 0);
    place.wait_for(OTHER, "fair");
    let unknown = end(place.client(&["service", "pause", "evk1"]));
    assert!(unknown.code == 2 && unknown.stderr.contains("did you mean"), "{unknown:?}");
    place.end(service);
}

#[test]
fn a_pause_that_a_resume_overtakes_ends() {
    let place = Place::new();
    place.write(&only(FIRST));
    let service = place.start();
    place.wait_for(FIRST, "fair");
    let worker = nix::unistd::Pid::from_raw(place.process(FIRST).cast_signed());
    let signal = |signal| nix::sys::signal::kill(worker, signal).unwrap();
    // A stopped worker does not restore its settings, so the pause command waits.
    signal(Signal::SIGSTOP);
    let client = |command| end(place.client(&["service", command, FIRST]));
    std::thread::scope(|scope| {
        let pause = scope.spawn(|| client("pause"));
        wait_for("the pause has begun", PATIENCE, || place.interface(FIRST)["paused"] == true);
        let resume = scope.spawn(|| client("resume"));
        let pause = pause.join().unwrap();
        assert!(pause.code == 4 && pause.stderr.contains("another command resumed evk0"), "{pause:?}");
        signal(Signal::SIGCONT);
        assert_eq!(resume.join().unwrap().code, 0);
    });
    place.wait_for(FIRST, "fair");
    place.end(service);
}

#[test]
fn a_start_that_waits_for_a_file_says_so() {
    let place = Place::new();
    let weights = place.socket().with_extension("weights");
    nix::unistd::mkfifo(&weights, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let weights = weights.to_str().unwrap();
    place.write(&format!("[[interface]]\nmatch.name = \"{FIRST}\"\nfair.weights = \"{weights}\""));
    let service = place.start();
    wait_for("the reason", PATIENCE, || {
        let interface = place.interface(FIRST);
        interface["state"] == "starting"
            && interface["reason"].as_str().is_some_and(|reason| reason.contains("a pipe"))
    });
    place.end(service);
}

#[test]
fn wrong_files_and_missing_privileges_end_the_start() {
    let place = Place::new();
    let before = place.managed.seen();
    for (rules, words) in [
        (
            "[[interface]]\nmatch = { name = \"*\" }\nfair = { balance = \"maybe\" }",
            "evenkeel.toml:6:20: interface[0].fair.balance: invalid value 'maybe'; use off, auto, on",
        ),
        (
            "[[interface]]\nmatch = { nam = \"*\" }\nfair = {}",
            "evenkeel.toml:5:11: interface[0].match.nam: unknown key; did you mean 'name'?",
        ),
    ] {
        place.write(rules);
        let ended = end(place.command());
        assert!(ended.code == 2 && ended.stderr.contains(words), "{ended:?}");
    }
    let missing = end(place.managed.command(&["service", "--config", "/nonexistent/evenkeel.toml"]));
    assert!(missing.code == 2 && missing.stderr.contains("/nonexistent/evenkeel.toml"), "{missing:?}");
    place.write(BOTH);
    let mut command = place.command();
    without(&mut command, 0..64);
    let unprivileged = end(command);
    assert!(unprivileged.code == 3 && unprivileged.stderr.contains("CAP_NET_ADMIN"), "{unprivileged:?}");
    assert_same(&place.managed.seen(), &before, "afterwards");
}

/// `status` reports an absent interface as a failure. A pause of all interfaces names the settings of an
/// interface that was moved away.
#[test]
fn an_interface_that_left_is_no_all_clear() {
    let mut place = Place::new();
    place.write(&format!("{}\n{}\n{}", only(FIRST), only(OTHER), only("usb*")));
    let mut service = place.start();
    place.wait_for(OTHER, "fair");
    place.wait_for(FIRST, "fair");
    let shown = end(place.client(&["status"]));
    assert!(shown.code == 0 && shown.stdout.contains("rules without a present interface: 3"), "{shown:?}");

    place.managed.netlink.move_link(place.managed.index, place.managed.peer.as_fd()).unwrap();
    wait_for("the moved interface is forgotten", PATIENCE, || place.interface(FIRST).is_null());
    for words in [&["status"][..], &["status", FIRST]] {
        let shown = end(place.client(words));
        let text = shown.stdout.replace('\n', " ");
        assert!(
            shown.code == 1 && text.contains("no interface matches rule 1, which names evk0"),
            "{shown:?}"
        );
        assert!(text.contains("the settings of evk0 are not restored"), "{shown:?}");
    }
    assert_eq!(end(place.client(&["status", OTHER])).code, 0);
    let paused = end(place.client(&["service", "pause"]));
    assert!(
        paused.code == 4 && paused.stderr.contains("the settings of evk0 are not restored"),
        "{paused:?}"
    );
    service.signal(Signal::SIGTERM);
    assert_eq!(service.end().code, 4);
}

/// A reload refuses a file whose weights file is missing, and reports the options that need a restart.
#[test]
fn a_reload_names_what_needs_a_restart_and_missing_files() {
    let place = Place::new();
    place.write(&only(FIRST));
    let service = place.start();
    place.wait_for(FIRST, "fair");
    let weights = place.file().with_file_name("absent");
    place.write(&format!("[[interface]]\nmatch.name = \"{FIRST}\"\nfair.weights = {weights:?}"));
    let refused = end(place.client(&["service", "reload"]));
    assert!(refused.code == 2 && refused.stderr.contains("absent"), "{refused:?}");
    assert_eq!(place.interface(FIRST)["state"], "fair");
    // The supervisor does not wait for the writer of a pipe.
    nix::unistd::mkfifo(&weights, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(end(place.client(&["service", "reload"])).code, 0);

    let text = format!(
        "schema = 1\n[service]\nsocket = \"/run/evk-other.sock\"\ngroup = \"root\"\n{}\n",
        only(FIRST)
    );
    std::fs::write(place.file(), text).unwrap();
    for _ in 0..2 {
        let reloaded = end(place.client(&["service", "reload"]));
        assert_eq!((reloaded.code, reloaded.stdout.as_str()), (0, "the configuration is in force\n"));
        for what in ["socket", "group"] {
            let words = format!("the new {what} is not in force: it takes effect only after a restart");
            assert!(reloaded.stderr.contains(&words), "{reloaded:?}");
        }
    }
    place.end(service);
}

/// If `fair` refuses to run on one interface, the service still manages the others.
#[test]
fn a_refusal_is_stated_and_tried_again_after_a_change() {
    let place = Place::new();
    place.write(
        "[[interface]]\nmatch.name = \"evk0\"\nfair = { xps = \"respect\" }\n\
         [[interface]]\nmatch.name = \"evk2\"\nfair = { xps = \"off\" }",
    );
    let service = place.start();
    place.wait_for(FIRST, "refused");
    place.wait_for(OTHER, "fair");
    let shown = end(place.client(&["status"]));
    assert!(
        shown.code == 1 && shown.stdout.contains("evk0 is refused: XPS of evk0 (driver veth)"),
        "{shown:?}"
    );
    place.write(BOTH);
    assert_eq!(end(place.client(&["service", "reload"])).code, 0);
    place.wait_for(FIRST, "fair");
    let said = place.end(service);
    assert_eq!(said.matches("-> refused").count(), 1, "the same refusal is logged once: {said}");
}

#[test]
fn garbage_on_the_socket_disturbs_nothing() {
    let place = Place::new();
    place.write(BOTH);
    let service = place.start();
    place.wait_for(FIRST, "fair");
    let process = place.process(FIRST);
    for garbage in
        [&b"\n"[..], b"{\"command\":\"explode\"}\n", b"\0\xff\n", &[b'x'; 100_000], b"{\"command\":\"stat"]
    {
        let mut client = UnixStream::connect(place.socket()).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        // The service may close the connection before it has received everything.
        let _ = client.write_all(garbage);
        let _ = client.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        let _ = client.read_to_string(&mut answer);
        assert!(answer.is_empty() || answer.starts_with("{\"error\":"), "{answer}");
    }
    let silent: Vec<_> = (0..100).filter_map(|_| UnixStream::connect(place.socket()).ok()).collect();
    drop(silent);
    wait_for("an answer", PATIENCE, || end(place.client(&["status"])).code == 0);
    assert_eq!(place.process(FIRST), process);
    place.end(service);
}

/// If another program removes the control socket, the service creates it again. A client that finds no socket
/// names the process of the service.
#[test]
fn a_removed_socket_is_made_again_and_a_service_without_one_is_named() {
    let place = Place::new();
    place.write(&only(FIRST));
    let mut service = place.start();
    let process = place.status()["process"].clone();
    std::fs::remove_file(place.socket()).unwrap();
    service.wait_for_activity("another program removed the control socket; the service created it again");
    place.wait_for(FIRST, "fair");
    let elsewhere = end(place.managed.command(&["status", "--socket", "/nonexistent/control.sock"]));
    let words = format!("process {process} is a service in this network namespace");
    assert!(elsewhere.code == 3 && elsewhere.stderr.contains(&words), "{elsewhere:?}");
    assert!(!elsewhere.stderr.contains("systemctl start"), "{elsewhere:?}");
    place.end(service);
}

/// The service notifies the service manager at the start, at a reload, at the end, and twice per watchdog
/// interval.
#[test]
fn the_service_manager_is_notified() {
    let place = Place::new();
    place.write(&only(FIRST));
    let path = place.socket().with_extension("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let wait = |words: &str| {
        let mut bytes = [0; 4096];
        for _ in 0..100 {
            let count = socket.recv(&mut bytes).unwrap_or_else(|error| panic!("{words}: {error}"));
            let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
            if text.contains(words) {
                return text;
            }
        }
        panic!("{words} did not come");
    };
    let mut command = place.command();
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "1000000").env_remove("WATCHDOG_PID");
    let mut service = Running::start(command);
    wait("STATUS=evk0 is fair");
    wait("READY=1");
    wait("WATCHDOG=1");
    wait("WATCHDOG=1");
    service.signal(Signal::SIGHUP);
    assert!(wait("RELOADING=1").contains("MONOTONIC_USEC="));
    wait("READY=1");
    service.signal(Signal::SIGTERM);
    wait("STOPPING=1");
    assert_eq!(service.end().code, 0);
}

/// Runs the service with exactly the capabilities of the unit. The supervisor and the workers keep no
/// other capability.
#[test]
fn the_capabilities_of_the_unit_suffice() {
    let place = Place::new();
    let before = place.managed.seen();
    place.write(BOTH);
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/systemd/evenkeel.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    let stated = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let all = [Capability::NetAdmin, Capability::Perfmon, Capability::Bpf, Capability::SysAdmin];
    let kept: Vec<u32> =
        all.iter().filter(|one| stated.contains(&one.to_string())).map(|one| one.number()).collect();
    assert_eq!(kept.len(), stated.split(' ').count(), "{stated}");
    for is_exact in [true, false] {
        let mut command = with_own_sysfs(place.command());
        if is_exact {
            without(&mut command, (0..64).filter(|number| !kept.contains(number)).map(u64::from));
        }
        let mut service = Running::start(command);
        service.wait_for_activity("ready: all 2 interfaces are fair");
        place.wait_for_maps(true);
        let wanted = kept.iter().fold(0_u64, |set, number| set | 1 << number);
        for process in [service.id(), place.process(FIRST)] {
            let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("CapPrm:")).unwrap();
            assert_eq!(u64::from_str_radix(line.trim(), 16).unwrap(), wanted, "{process}");
        }
        // The supervisor can also replace a killed worker with these capabilities.
        let worker = place.process(FIRST);
        kill_process(worker);
        place.wait_for_restart(FIRST, worker);
        place.end(service);
        assert_same(&place.managed.seen(), &before, "afterwards");
    }
}

/// Only the systemd journal reads priority prefixes such as `<6>`. So other logs do not get them.
#[test]
fn log_lines_have_priorities_in_the_journal_only() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::new();
    place.write(&only(FIRST));
    for is_journal in [true, false] {
        let path = place.socket().with_extension("log");
        let log = std::fs::File::create(&path).unwrap();
        let (device, inode) = log.metadata().map(|file| (file.dev(), file.ino())).unwrap();
        let inode = if is_journal { inode } else { inode + 1 };
        let mut command = place.command();
        command.env("JOURNAL_STREAM", format!("{device}:{inode}")).stderr(log);
        let mut service = command.spawn().unwrap();
        wait_for("the service is ready", PATIENCE, || {
            std::fs::read_to_string(&path).is_ok_and(|text| text.contains("ready: "))
        });
        let process = nix::unistd::Pid::from_raw(service.id().cast_signed());
        nix::sys::signal::kill(process, Signal::SIGTERM).unwrap();
        assert_eq!(service.wait().unwrap().code(), Some(0));
        let text = std::fs::read_to_string(&path).unwrap();
        let has_prefix = |line: &str| line.starts_with("<6>") || line.starts_with("<4>");
        assert!(text.lines().all(|line| has_prefix(line) == is_journal), "{is_journal}: {text}");
    }
}
