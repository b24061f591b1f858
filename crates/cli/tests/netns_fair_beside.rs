//! Tests `evenkeel fair` next to other processes of Evenkeel, and after the loss of one of its programs or
//! devices.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::Duration;

use evenkeel_apply::StateDirectory;
use evenkeel_fair::{Observer, Preflight, Request, Session};
use evenkeel_testbed::TestbedError;
use nix::sys::signal::Signal;

use support::foreign_program::{Hook, hide_packets};
use support::leftovers::children;
use support::managed::{Managed, NAME, kill_process};
use support::running::Running;
use support::{Ended, end};

/// Longer than two check intervals of a session.
const CHECKED: Duration = Duration::from_millis(1500);

fn assert_goes_on(mut session: Running) {
    std::thread::sleep(CHECKED);
    session.signal(Signal::SIGTERM);
    let ended = session.end();
    assert!(ended.code == 0, "{ended:?}");
}

fn assert_stood_back(ended: &Ended, words: &str) {
    assert!(ended.code == 4 && ended.stderr.contains(words), "{words}: {ended:?}");
}

#[test]
fn an_observer_that_comes_and_goes_disturbs_no_session() {
    let managed = Managed::new();
    let session = managed.session(&[]);
    let observed = end(managed.command(&["fair", NAME, "--observe", "--for", "1s"]));
    let words = "has the queue choice of another evenkeel fair at tcx egress: select_queue";
    assert!(observed.code == 0 && observed.stderr.contains(words), "{observed:?}");
    assert_goes_on(session);

    let observe = || {
        let mut observer = Running::start(managed.command(&["fair", NAME, "--observe"]));
        observer.wait_for_activity("observing");
        observer
    };
    let (mut ends, dies) = (observe(), observe());
    let session = managed.session(&[]);
    assert!(!session.said().contains("another program"), "{}", session.said());
    ends.signal(Signal::SIGTERM);
    assert_eq!(ends.end().code, 0);
    dies.kill();
    assert_goes_on(session);
}

#[test]
fn a_second_session_is_refused_whatever_its_state_directory_is() {
    // A session with htb starts in spite of the XPS maps. The second session is refused because of the first
    // session, not because of the maps.
    let managed = Managed::with_maps();
    let mut session = managed.session(&["--queue-weights", "htb", "--rate", "200mbit"]);
    let words =
        ["manages evk0 already, but its journal is not".to_owned(), format!("process {};", session.id())];
    let other = tempfile::tempdir().unwrap();
    let mut second = managed.command(&["fair", NAME, "--for", "1s"]);
    second.env("EVENKEEL_STATE_DIR", other.path());
    let refused = end(second);
    let says = words.iter().all(|words| refused.stderr.contains(words));
    assert!(refused.code == 3 && says, "{words:?}: {refused:?}");
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 0, "it leaves no journal");
    assert_goes_on(session);
    let next = end(managed.command(&["fair", NAME, "--xps", "off", "--for", "300ms"]));
    assert_eq!(next.code, 0, "{next:?}");
}

/// Calls `bpf(2)` with a command whose first field is a number (include/uapi/linux/bpf.h).
fn bpf(command: libc::c_int, number: u32) -> i32 {
    let attributes = [number, 0, 0, 0];
    // SAFETY: the attributes have the stated length, and outlive the call.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(&attributes)) };
    assert!(result >= 0, "{command}: {}", std::io::Error::last_os_error());
    i32::try_from(result).unwrap()
}

/// Detaches a link, as `bpftool link detach id ID` does.
fn detach(link: u32) {
    const GET_FD_BY_ID: libc::c_int = 30;
    const DETACH: libc::c_int = 34;
    let descriptor = bpf(GET_FD_BY_ID, link);
    bpf(DETACH, descriptor.cast_unsigned());
    // SAFETY: the kernel has just returned the descriptor.
    unsafe { libc::close(descriptor) };
}

#[test]
fn the_loss_of_any_program_ends_it() {
    let managed = Managed::new();
    let mover = ["--balance", "on"];
    // The programs are in the order in which a session attaches them.
    let programs: [(&[&str], usize, &str); 4] = [
        (&[], 0, "another process detached a program from tcx egress"),
        (&[], 1, "another program detached evenkeel's meter from tcx egress"),
        (&mover, 1, "another program detached evenkeel's program for moves from tcx ingress"),
        (&mover, 2, "another program detached evenkeel's meter from tcx egress"),
    ];
    for (arguments, place, words) in programs {
        let mut session = managed.session(arguments);
        let links = session.holdings_but_namespaces().links;
        detach(*links.iter().nth(place).unwrap());
        assert_stood_back(&session.end(), words);
        assert_eq!(managed.journals(), Vec::<String>::new());
    }
    let mut observer = Running::start(managed.command(&["fair", NAME, "--observe"]));
    observer.wait_for_activity("observing");
    detach(*observer.holdings_but_namespaces().links.first().unwrap());
    assert_stood_back(&observer.end(), "another program detached evenkeel's meter from tcx egress");
}

#[test]
fn a_program_at_the_hook_for_moves_ends_it() {
    let managed = Managed::new();
    let session = managed.session(&["--balance", "on"]);
    let foreign = hide_packets(&managed.host, managed.index, Hook::Ingress);
    assert_stood_back(&session.end(), "another process attached a program at tcx ingress: foreign (id ");
    // A program that was attached before the session is not a change, but its loss is a change.
    let session = managed.session(&["--balance", "on"]);
    let words = "evk0 has another program at tcx ingress: foreign (id ";
    assert!(session.said().contains(words), "{}", session.said());
    std::thread::sleep(CHECKED);
    drop(foreign);
    assert_stood_back(&session.end(), "another process detached a program from tcx ingress: foreign (id ");
}

#[test]
fn the_meter_runs_before_a_program_that_hides_packets_and_ends_behind_a_new_one() {
    let managed = Managed::new();
    let foreign = hide_packets(&managed.host, managed.index, Hook::Egress);
    let load = managed.load(2, "20M", 6);
    let observed = end(managed.command(&["fair", NAME, "--observe", "--for", "3s", "--format", "json"]));
    load.finish();
    drop(foreign);
    let words = "evk0 has another program at tcx egress: foreign (id ";
    assert!(observed.code == 0 && observed.stderr.contains(words), "{observed:?}");
    assert!(observed.stderr.contains("the meter runs first"), "{observed:?}");
    let seen: serde_json::Value = serde_json::from_str(&observed.stdout).unwrap();
    let flows = seen["devices"][0]["flows"].as_array().unwrap();
    let sent: u64 = flows.iter().map(|flow| flow["bytes"].as_u64().unwrap()).sum();
    assert!(sent > 1_000_000, "{seen:#}");

    let mut observer = Running::start(managed.command(&["fair", NAME, "--observe"]));
    observer.wait_for_activity("observing");
    let foreign = hide_packets(&managed.host, managed.index, Hook::Ingress);
    std::thread::sleep(CHECKED);
    drop(foreign);
    let _foreign = hide_packets(&managed.host, managed.index, Hook::Egress);
    let words = "another process attached a program at tcx egress, which may hide packets from evenkeel's meter: \
                 foreign (id ";
    assert_stood_back(&observer.end(), words);
}

/// An observation describes the root qdisc and the XPS maps at its start. So a change of either ends it.
#[test]
fn a_change_of_the_root_qdisc_or_of_xps_ends_an_observation() {
    let managed = Managed::new();
    let pin = || managed.set_map(2, "1");
    let replace = || {
        managed.shell(&["tc", "qdisc", "replace", "dev", NAME, "root", "pfifo", "limit", "50"]);
    };
    for (change, words) in [
        (&pin as &dyn Fn(), "evk0: another program changed xps_cpus of queue 2"),
        (&replace, "evk0: another program replaced the root qdisc: mq before, pfifo now"),
    ] {
        let mut observer = Running::start(managed.command(&["fair", NAME, "--observe"]));
        observer.wait_for_activity("observing");
        change();
        assert_stood_back(&observer.end(), words);
    }
}

#[test]
fn a_rename_during_the_start_is_named() {
    let managed = Managed::new();
    let state = StateDirectory::at(managed.state.path());
    let rename = |from: &str, to: &str| {
        managed.shell(&["ip", "link", "set", from, "down"]);
        managed.shell(&["ip", "link", "set", from, "name", to]);
        managed.shell(&["ip", "link", "set", to, "up"]);
    };
    for observe in [true, false] {
        let request = Request { observe, ..Request::default() };
        let preflight =
            managed.host.run(|| Ok::<_, TestbedError>(Preflight::of(NAME, request).unwrap())).unwrap();
        rename(NAME, "evk9");
        let start = || match observe {
            true => Observer::start(&preflight, &state, &|| None).map(drop),
            false => Session::start(&preflight, &state, Box::new(|| None), &|| false).map(drop),
        };
        let said = managed.host.run(|| Ok::<_, TestbedError>(start().unwrap_err().to_string())).unwrap();
        let words = "evk0: another program renamed the interface to evk9 during the start";
        assert!(said.starts_with(words), "{said}");
        rename("evk9", NAME);
    }
    assert_eq!(managed.journals(), Vec::<String>::new());
}

#[test]
fn a_program_or_filter_that_is_attached_during_the_start_ends_it() {
    let managed = Managed::new();
    let state = StateDirectory::at(managed.state.path());
    let start = |preflight: &Preflight| {
        let started = Session::start(preflight, &state, Box::new(|| None), &|| false);
        let (mut session, _) = started.unwrap();
        let change = session.tick().unwrap();
        session.finish().unwrap();
        change.map(|change| change.to_string())
    };
    let preflight = || Preflight::of(NAME, Request::default()).unwrap();
    let run = |attach: &dyn Fn()| {
        let before = managed.host.run(|| Ok::<_, TestbedError>(preflight())).unwrap();
        attach();
        managed.host.run(|| Ok::<_, TestbedError>(start(&before))).unwrap()
    };
    assert_eq!(run(&|| {}), None);
    let program = std::cell::OnceCell::new();
    let said = run(&|| drop(program.set(hide_packets(&managed.host, managed.index, Hook::Egress))));
    assert!(said.as_ref().is_some_and(|said| said.contains("tcx egress")), "{said:?}");
    drop(program);
    let filter = "filter add dev evk0 egress prio 6 protocol ip u32 match ip dport 80 0xffff";
    let said = run(&|| {
        managed.shell(&["tc", "qdisc", "add", "dev", NAME, "clsact"]);
        managed.shell(&["tc"].into_iter().chain(filter.split(' ')).collect::<Vec<_>>());
    });
    let words = "another program changed the filters at clsact egress";
    assert!(said.as_ref().is_some_and(|said| said.contains(words)), "{said:?}");
}

#[test]
fn a_device_that_leaves_its_bridge_and_a_bridge_that_goes_end_it() {
    let managed = Managed::with_maps();
    let before = managed.maps();
    managed.shell(&["ip", "link", "add", "l2br", "type", "bridge"]);
    let left = "evk0: it is no longer below l2br";
    let gone = "l2br: the interface left this network namespace (deleted or moved)";
    for (how, mode, words) in [
        ("set dev evk0 nomaster", "--xps=off", left),
        ("set dev evk0 nomaster", "--observe", left),
        ("del dev l2br", "--xps=off", gone),
    ] {
        managed.shell(&["ip", "link", "set", "dev", NAME, "master", "l2br"]);
        let mut session = Running::start(managed.command(&["fair", "l2br", mode]));
        session.wait_for_activity(if mode == "--observe" { "observing" } else { "managed now" });
        let ip = ["ip", "link"].into_iter().chain(how.split(' '));
        managed.shell(&ip.collect::<Vec<_>>());
        assert_stood_back(&session.end(), words);
        assert_eq!(managed.maps(), before);
    }
}

#[test]
fn a_device_of_a_bridge_that_is_refused_is_in_the_status() {
    let managed = Managed::new();
    let ip = |words: &str| managed.shell(&["ip"].into_iter().chain(words.split(' ')).collect::<Vec<_>>());
    ip("link add l2br type bridge");
    for (port, queues) in [("two0", 2), ("one0", 1)] {
        ip(&format!("link add {port} numtxqueues {queues} type veth peer name {port}p"));
        ip(&format!("link set {port} up"));
    }
    for port in [NAME, "two0", "one0"] {
        ip(&format!("link set {port} master l2br"));
    }
    let unmet = || {
        let ended = end(managed.command(&["fair", "l2br", "--for", "300ms", "--format", "json"]));
        assert_eq!(ended.code, 0, "{ended:?}");
        let seen: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        seen["devices"][0]["status"]["unmet"].clone()
    };
    assert!(unmet().is_null(), "a device with one queue has no queue to choose");
    let map = ("class/net/two0/queues/tx-0/xps_cpus".to_owned(), "1".to_owned());
    managed.host.write_sysfs(&[map]).unwrap();
    let unmet = unmet();
    assert!(unmet.as_str().is_some_and(|unmet| unmet.starts_with("two0 is left out: ")), "{unmet}");
}

/// The rules judge the values from before the session, and leave out changes of settings that the session
/// manages: such a change would end the session.
#[test]
fn check_and_tune_propose_no_change_of_what_a_session_manages() {
    const LIMIT: &str = "tcp_limit_output_bytes";
    let managed = Managed::new();
    let path = format!("net/ipv4/{LIMIT}");
    // Below 128 KiB, the rule `sysctl-harmful` fires.
    managed.host.set_sysctl(&path, "65536").unwrap();
    assert!(end(managed.command(&["check", NAME])).stdout.contains(LIMIT));
    let soft_nic = ["--queue-weights", "htb", "--rate", "200mbit", "--segments", "16KiB"];
    let session = managed.session(&soft_nic);
    let checked = end(managed.command(&["check", NAME]));
    let said = checked.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains("manages gso-max-size, net.ipv4.tcp_limit_output_bytes, qdisc for evk0: "),
        "{checked:?}"
    );
    assert!(!said.contains("sysctl -w net.ipv4.tcp_limit_output_bytes"), "{checked:?}");
    let json = end(managed.command(&["check", NAME, "--format", "json"]));
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["managed"][0]["interface"], NAME, "{json}");
    let is_of_limit = |finding: &serde_json::Value| finding["evidence"].as_str().unwrap().contains(LIMIT);
    assert!(!json["findings"].as_array().unwrap().iter().any(is_of_limit), "{json}");
    let planned = end(managed.command(&["tune", NAME]));
    assert!(!planned.stdout.contains(&format!("\nsysctl -w net.ipv4.{LIMIT}")), "{planned:?}");
    assert!(
        planned.stderr.contains("this plan does not change the settings that the session manages"),
        "{planned:?}"
    );
    assert_goes_on(session);
}

#[test]
fn a_check_names_the_settings_that_a_dead_run_left() {
    let managed = Managed::new();
    let words = "ended before it restored its changes: `EVENKEEL_STATE_DIR=";
    let check = |options: &[&str]| end(managed.command(&[&["check"], options].concat()));
    assert!(!check(&[NAME]).stdout.contains("evenkeel revert"));
    let mut session = managed.session(&["--queue-weights", "htb", "--rate", "200mbit"]);
    assert!(!check(&[NAME]).stdout.contains("evenkeel revert"), "it is alive");
    // Stop the session, so that it starts no new guardian.
    session.signal(Signal::SIGSTOP);
    children(session.id()).iter().for_each(|guardian| kill_process(guardian.id));
    let process = session.id();
    session.kill();
    for options in [&[NAME][..], &[]] {
        let checked = check(options);
        let first = format!("evenkeel fair on {NAME} (process {process}, since ");
        assert!(checked.code == 1 && checked.stdout.starts_with(&first), "{first}: {checked:?}");
        assert!(checked.stdout.lines().take(3).collect::<Vec<_>>().join(" ").contains(words), "{checked:?}");
    }
    let checked = check(&[NAME, "--format", "json"]);
    let seen: serde_json::Value = serde_json::from_str(&checked.stdout).unwrap();
    let fix = format!("EVENKEEL_STATE_DIR={} evenkeel revert evk0", managed.state.path().display());
    assert_eq!(seen["unfinished"][0]["fix"], fix, "{seen}");
    assert!(!check(&["lo"]).stdout.contains("evenkeel revert"), "another interface");
    assert_eq!(end(managed.command(&["revert", NAME])).code, 0);
    assert!(!check(&[NAME]).stdout.contains("evenkeel revert"));
}

#[test]
fn a_revert_next_to_a_session_says_so_once() {
    let managed = Managed::new();
    managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    let tuned = end(managed.command(&["tune", NAME, "--apply", "sack-off", "--no-watch"]));
    assert_eq!(tuned.code, 0, "{tuned:?}");
    let session = managed.session(&[]);
    assert_eq!(managed.journals().len(), 2, "that of the session, and that of tune");
    for arguments in [&["revert"][..], &["revert", NAME]] {
        let refused = end(managed.command(arguments));
        let times = refused.stderr.matches("manages evk0 already").count();
        assert_eq!((refused.code, times), (3, 1), "{refused:?}");
    }
    assert_goes_on(session);
    assert_eq!(end(managed.command(&["revert"])).code, 0);
}
