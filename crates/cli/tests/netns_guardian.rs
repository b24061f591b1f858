//! Tests a managed interface and its guardian after disturbances. The session or the guardian is
//! stopped, the interface moves to another network namespace, another interface gets its index, or the
//! journal's directory is removed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use evenkeel_apply::StateDirectory;
use evenkeel_netlink::VethOptions;
use evenkeel_testbed::Namespace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use support::end;
use support::leftovers::children;
use support::managed::{
    AT_WORK, DRIVERS_MAPS, Managed, NAME, assert_same, is_empty, kill_both, wait_for, with_own_sysfs,
};
use support::running::Running;

const LIMIT: Duration = Duration::from_secs(10);
/// The capability set with only `CAP_NET_ADMIN`.
const NET_ADMIN: &str = "0000000000001000";

fn signal(process: u32, signal: Signal) {
    kill(Pid::from_raw(process.try_into().unwrap()), signal).unwrap();
}

fn guardian(running: &mut Running) -> u32 {
    children(running.id())[0].id
}

fn maps(namespace: &Namespace, name: &str) -> Vec<String> {
    let files: Vec<String> =
        (0..4).map(|queue| format!("class/net/{name}/queues/tx-{queue}/xps_cpus")).collect();
    namespace.read_sysfs(&files).unwrap()
}

#[test]
fn a_guardian_has_one_capability() {
    let managed = Managed::with_maps();
    for arguments in [
        &["--xps", "off"][..],
        &["--segments", "16KiB", "--xps", "off"],
        &["--queue-weights", "htb", "--rate", "200mbit"],
    ] {
        let before = managed.seen();
        let mut running = managed.session(arguments);
        let status = std::fs::read_to_string(format!("/proc/{}/status", guardian(&mut running))).unwrap();
        let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        for set in ["CapEff:", "CapPrm:", "CapBnd:"] {
            assert_eq!(value(set), NET_ADMIN, "{set} {arguments:?}");
        }
        assert_eq!(
            (value("CapInh:"), value("CapAmb:"), value("NoNewPrivs:")),
            ("0000000000000000", "0000000000000000", "1")
        );
        running.kill();
        wait_for("the guardian has restored everything", LIMIT, || managed.journals().is_empty());
        assert_same(&managed.seen(), &before, "afterwards");
    }
}

#[test]
fn a_guardian_that_was_stopped_does_not_hold_up_the_end() {
    let managed = Managed::with_maps();
    let before = managed.seen();
    let mut running = managed.session(&["--xps", "off"]);
    let stopped = guardian(&mut running);
    signal(stopped, Signal::SIGSTOP);
    let began = Instant::now();
    running.signal(Signal::SIGTERM);
    let ended = running.end();
    assert!(ended.code == 0 && began.elapsed() < LIMIT, "{ended:?}");
    assert!(!std::path::Path::new(&format!("/proc/{stopped}")).exists(), "it is gone");
    assert_same(&managed.seen(), &before, "afterwards");
    assert!(is_empty(managed.state.path()));
}

#[test]
fn a_guardian_that_was_stopped_is_replaced() {
    let managed = Managed::with_maps();
    let mut running = managed.session(&["--xps", "off"]);
    let stopped = guardian(&mut running);
    signal(stopped, Signal::SIGSTOP);
    wait_for("another guardian", Duration::from_secs(30), || {
        children(running.id()).iter().any(|child| child.id != stopped)
    });
    running.kill();
    managed.wait_for_maps(&DRIVERS_MAPS, LIMIT);
    // The first guardian has nothing to restore. The run may already have killed it, right after it
    // started the new guardian.
    let _ = kill(Pid::from_raw(stopped.try_into().unwrap()), Signal::SIGCONT);
    let process = format!("/proc/{stopped}");
    wait_for("the first guardian has ended", LIMIT, || !std::path::Path::new(&process).exists());
}

#[test]
fn a_directory_that_is_removed_takes_no_undo_along() {
    let managed = Managed::with_maps();
    let running = managed.session(&["--xps", "off"]);
    for name in managed.journals() {
        std::fs::remove_file(managed.state.path().join(name)).unwrap();
    }
    running.kill();
    managed.wait_for_maps(&DRIVERS_MAPS, LIMIT);
}

#[test]
fn settings_are_put_back_in_the_namespace_to_which_the_interface_was_moved() {
    for kills in [false, true] {
        let managed = Managed::with_maps();
        let elsewhere = Namespace::new().unwrap();
        let running = managed.session(&["--xps", "off", "--segments", "16KiB"]);
        let mut netlink = managed.host.netlink().unwrap();
        let ended = if kills {
            kill_both(running);
            netlink.move_link(managed.index, elsewhere.as_fd()).unwrap();
            assert_eq!(maps(&elsewhere, NAME), ["0"; 4], "the settings go along");
            // The settings of the moved interface are not the administrator's, so a new run is refused.
            let mut netlink = elsewhere.netlink().unwrap();
            let index = netlink.link_index(NAME).unwrap();
            netlink.set_up(index).unwrap();
            let mut there = managed.command(&["fair", NAME, "--xps", "off", "--for", "1s"]);
            enter(&mut there, &elsewhere);
            let refused = end(there);
            assert!(refused.code == 3 && refused.stderr.contains("evenkeel revert"), "{refused:?}");
            end(managed.command(&["revert"]))
        } else {
            netlink.move_link(managed.index, elsewhere.as_fd()).unwrap();
            let ended = running.end();
            assert_eq!(ended.code, 4, "{ended:?}");
            assert!(ended.stderr.contains("the interface left this network namespace"), "{ended:?}");
            // A session that has dropped its privileges cannot restore the interface. It advises to run
            // `revert`.
            match is_empty(managed.state.path()) {
                true => ended,
                false => {
                    let words = [" evenkeel revert evk0` in the network namespace net:[", "to search again"];
                    assert!(words.iter().all(|words| ended.stderr.contains(words)), "{ended:?}");
                    end(managed.command(&["revert", NAME]))
                }
            }
        };
        assert!(ended.stderr.contains("moved evk0 to the network namespace net:["), "{ended:?}");
        assert_eq!(maps(&elsewhere, NAME), DRIVERS_MAPS, "{ended:?}");
        assert!(is_empty(managed.state.path()), "{ended:?}");
    }
}

fn enter(command: &mut std::process::Command, namespace: &Namespace) {
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt;
    let namespace = namespace.as_fd().as_raw_fd();
    // SAFETY: the closure makes one system call, on a descriptor that the fork has copied.
    unsafe {
        command.pre_exec(move || match libc::setns(namespace, libc::CLONE_NEWNET) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

#[test]
fn the_guardian_leaves_a_moved_interface_to_revert() {
    let managed = Managed::with_maps();
    let elsewhere = Namespace::new().unwrap();
    let mut running = managed.session(&["--xps", "off"]);
    running.signal(Signal::SIGSTOP);
    managed.host.netlink().unwrap().move_link(managed.index, elsewhere.as_fd()).unwrap();
    let guardian = guardian(&mut running);
    running.signal(Signal::SIGKILL);
    wait_for("the guardian ends", LIMIT, || !is_running(guardian));
    // A thread of the test reads the guardian's output, so the output may appear later.
    wait_for("the guardian's report", LIMIT, || running.said().contains("not restored"));
    let said = running.said();
    assert!(!said.contains("does not exist") && said.matches("are not restored").count() == 1, "{said}");
    assert_eq!(managed.journals().len(), 1, "it cannot go there, and says so by leaving the journal");
    let ended = end(managed.command(&["revert", NAME]));
    assert!(ended.code == 0 && ended.stdout.contains("2 settings restored"), "{ended:?}");
    assert_eq!(maps(&elsewhere, NAME), DRIVERS_MAPS);
    assert!(is_empty(managed.state.path()));
}

fn is_running(process: u32) -> bool {
    evenkeel_host::Host::live().process(process).is_some()
}

/// Hides a mount from a process that has a separate mount namespace.
fn hide(process: u32, mount: &str) {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).unwrap();
    let process = process.to_string();
    assert_ne!(namespace(&process), namespace("self"));
    let mut command = std::process::Command::new("nsenter");
    command.args(["--target", &process, "--mount", "mount", "-t", "tmpfs", "none", mount]);
    assert!(command.status().unwrap().success());
}

#[test]
fn a_hidden_proc_or_sys_is_not_taken_for_a_deleted_interface() {
    for mount in ["/proc", "/sys"] {
        let managed = Managed::with_maps();
        let sessions: [&[&str]; 2] =
            [&["fair", NAME, "--xps", "off"], &["steer", NAME, "--policy", "balance", "--backend", "rps"]];
        for (arguments, ready) in sessions.into_iter().zip([AT_WORK, "steered now"]) {
            let before = managed.seen();
            let mut running = Running::start(with_own_sysfs(managed.command(arguments)));
            running.wait_for_activity(ready);
            hide(running.id(), mount);
            std::thread::sleep(Duration::from_secs(2));
            running.signal(Signal::SIGTERM);
            let ended = running.end();
            assert!(!ended.stderr.contains("deleted") && !ended.stderr.contains("nothing"), "{ended:?}");
            // Either the session has restored everything, or `revert` can restore it.
            if !managed.journals().is_empty() {
                assert_eq!(ended.code, 4, "{ended:?}");
                let reverted = end(managed.command(&["revert"]));
                assert_eq!(reverted.code, 0, "{reverted:?}");
            }
            assert_same(&managed.seen(), &before, mount);
        }

        // If /proc is hidden, Evenkeel may be unable to restore a sysctl. The journal then stays.
        let before = managed.seen();
        let mut running = Running::start(with_own_sysfs(managed.command(&[
            "fair",
            NAME,
            "--xps",
            "off",
            "--segments",
            "16KiB",
        ])));
        running.wait_for_activity(AT_WORK);
        hide(running.id(), mount);
        std::thread::sleep(Duration::from_secs(2));
        running.signal(Signal::SIGTERM);
        let ended = running.end();
        assert_eq!(managed.maps(), DRIVERS_MAPS, "{ended:?}");
        assert_eq!(ended.code == 4, !managed.journals().is_empty(), "{ended:?}");
        assert_eq!(end(managed.command(&["revert"])).code, 0, "{ended:?}");
        assert_same(&managed.seen(), &before, mount);
    }
}

#[test]
fn an_interface_that_got_the_number_of_a_deleted_one_is_not_touched() {
    let mut managed = Managed::with_maps();
    kill_both(managed.session(&["--xps", "off"]));
    managed.netlink.delete_link(managed.index).unwrap();
    // Create the interface with this index, as `ip link add index` does. The command also creates the
    // peer.
    let index = managed.index.to_string();
    managed.shell(&[
        "ip",
        "link",
        "add",
        "other",
        "index",
        &index,
        "numtxqueues",
        "4",
        "type",
        "veth",
        "peer",
        "name",
        "other1",
    ]);
    assert_eq!(managed.netlink.link_index("other").unwrap(), managed.index);
    let before = maps(&managed.host, "other");
    let ended = end(managed.command(&["revert"]));
    assert!(ended.code == 0 && ended.stdout.contains("2 gone"), "{ended:?}");
    assert_eq!(maps(&managed.host, "other"), before);
    assert!(!ended.stderr.contains("is now called"), "{ended:?}");
    assert!(is_empty(managed.state.path()));
}

/// Replaces the interface by another interface with its name and index.
fn recreate(managed: &mut Managed) {
    managed.netlink.delete_link(managed.index).unwrap();
    let index = managed.index.to_string();
    let queues = ["numtxqueues", "4", "numrxqueues", "4"];
    let add = ["ip", "link", "add", NAME, "index", &index];
    let peer = ["type", "veth", "peer", "name", "evk7"];
    managed.shell(&[&add[..], &queues, &peer].concat());
}

#[test]
fn a_session_whose_interface_was_deleted_and_replaced_names_that() {
    for steers in [false, true] {
        let mut managed = Managed::with_maps();
        let mut running = match steers {
            false => managed.session(&["--xps", "off"]),
            true => managed.steering(&["--policy", "balance", "--backend", "rps"]),
        };
        let stopped = [guardian(&mut running), running.id()];
        stopped.iter().for_each(|process| signal(*process, Signal::SIGSTOP));
        recreate(&mut managed);
        stopped.iter().for_each(|process| signal(*process, Signal::SIGCONT));
        let ended = running.end();
        let words = [
            "evk0: the interface was deleted, and another one has its name now; nothing is left to restore",
            "evk0 was deleted, and another interface has its name now: ",
        ];
        for words in words {
            assert!(ended.code == 4 && ended.stderr.contains(words), "{words}: {ended:?}");
        }
        assert!(is_empty(managed.state.path()), "{ended:?}");
    }
}

/// The session searches for the interface once, not once per setting.
#[test]
fn a_deleted_interface_with_many_queues_does_not_delay_the_end() {
    const QUEUES: usize = 32;
    let sessions: [(&str, &[&str]); 2] = [
        ("tx", &["fair", NAME, "--xps", "off"]),
        ("rx", &["steer", NAME, "--policy", "balance", "--backend", "rps"]),
    ];
    for (side, arguments) in sessions {
        let managed = Managed::new();
        managed.shell(&["ip", "link", "del", NAME]);
        let queues = ["numtxqueues", "32", "numrxqueues", "32"];
        let peer = ["type", "veth", "peer", "name", "evk7"];
        managed.shell(&[&["ip", "link", "add", NAME][..], &queues, &peer, &queues].concat());
        ["evk7", NAME].iter().for_each(|name| drop(managed.shell(&["ip", "link", "set", name, "up"])));
        if side == "tx" {
            let file = |queue| format!("class/net/{NAME}/queues/tx-{queue}/xps_cpus");
            let maps: Vec<_> = (0..QUEUES).map(|queue| (file(queue), "1".to_owned())).collect();
            managed.host.write_sysfs(&maps).unwrap();
        }
        let running = match side {
            "tx" => managed.session(&arguments[2..]),
            _ => managed.steering(&arguments[2..]),
        };
        let journal = managed.state.path().join(&managed.journals()[0]);
        let settings = || std::fs::read_to_string(&journal).unwrap_or_default().matches("\"entry\"").count();
        wait_for("all settings are changed", Duration::from_secs(20), || settings() >= QUEUES);
        managed.shell(&["ip", "link", "del", NAME]);
        let deleted = Instant::now();
        let ended = running.end();
        // One sleep per setting would take more than 10 s.
        assert!(deleted.elapsed() < Duration::from_secs(5), "{arguments:?}: {:?}", deleted.elapsed());
        let words = format!("evk0 was deleted: the kernel removed {QUEUES} settings with it");
        assert!(ended.code == 4 && ended.stderr.contains(&words), "{ended:?}");
        assert!(is_empty(managed.state.path()), "{ended:?}");
    }
}

#[test]
fn no_restoration_is_promised_after_the_interface_was_replaced() {
    let mut managed = Managed::new();
    kill_both(managed.session(&["--queue-weights", "htb", "--rate", "200mbit"]));
    recreate(&mut managed);
    managed.shell(&["ip", "link", "set", NAME, "up"]);
    managed.shell(&["tc", "qdisc", "replace", "dev", NAME, "root", "handle", "5:", "htb"]);
    for arguments in [&["check", NAME][..], &["fair", NAME, "--plan"]] {
        let ended = end(managed.command(arguments));
        assert!(!format!("{}{}", ended.stdout, ended.stderr).contains("had died"), "{ended:?}");
    }
}

#[test]
fn a_qdisc_that_a_move_dropped_is_not_another_programs() {
    let managed = Managed::new();
    let elsewhere = Namespace::new().unwrap();
    kill_both(managed.session(&["--queue-weights", "htb", "--rate", "200mbit"]));
    managed.host.netlink().unwrap().move_link(managed.index, elsewhere.as_fd()).unwrap();
    let ended = end(managed.command(&["revert", NAME]));
    let words = "the root qdisc of evk0 is not restored, because the kernel drops it when an interface moves";
    assert!(ended.code == 0 && ended.stderr.contains(words), "{ended:?}");
    assert!(!ended.stderr.contains("as another program set it"), "{ended:?}");
}

/// No process holds the namespace, so the kernel removed its settings with it. Since Linux 6.18, Evenkeel
/// can detect this removal.
#[test]
fn a_journal_of_a_namespace_that_is_gone_goes_and_one_of_another_stays() {
    let managed = Managed::with_maps();
    let observer = Managed::new();
    let revert = |state: &std::path::Path| {
        let mut command = observer.command(&["revert"]);
        command.env("EVENKEEL_STATE_DIR", state);
        end(command)
    };
    kill_both(managed.session(&["--xps", "off"]));
    let journal = managed.state.path().join(&managed.journals()[0]);
    let handle = StateDirectory::read(&journal).unwrap().unwrap().header.unwrap().interface.namespace_handle;
    let ended = revert(managed.state.path());
    assert!(ended.code == 0 && ended.stderr.contains("revert does not change its settings"), "{ended:?}");
    assert!(journal.exists() && managed.maps() == ["0"; 4]);
    let Managed { host, peer, netlink, state, .. } = managed;
    drop((host, peer, netlink));
    let deadline = Instant::now() + LIMIT;
    loop {
        let ended = revert(state.path());
        assert_eq!(ended.code, 0, "{ended:?}");
        if is_empty(state.path()) {
            assert!(
                ended.stdout.contains("nothing to restore after a reboot, or without its network namespace"),
                "{ended:?}"
            );
            break;
        }
        // The kernel removes a namespace asynchronously. Before Linux 6.18, Evenkeel cannot detect the
        // removal.
        assert!(ended.stderr.contains("revert does not change its settings"), "{ended:?}");
        if handle.is_none() && Instant::now() > deadline {
            break;
        }
        assert!(Instant::now() < deadline, "{ended:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Settings of the whole namespace have one owner. The second run does not change them, and the runs do
/// not disturb each other.
#[test]
fn two_runs_in_a_namespace_do_not_disturb_each_other() {
    let mut managed = Managed::new();
    let own = managed.host.as_fd().try_clone_to_owned().unwrap();
    let pair =
        VethOptions { name: "evk2", peer_name: "evk3", peer_namespace: own.as_fd(), queues: 4, mtu: 1500 };
    managed.netlink.add_veth(&pair).unwrap();
    for name in ["evk2", "evk3"] {
        let index = managed.netlink.link_index(name).unwrap();
        managed.netlink.set_up(index).unwrap();
    }
    for name in ["evk2", "evk3"] {
        wait_for("a carrier", LIMIT, || managed.shell(&["ip", "link", "show", name]).contains(" state UP "));
    }
    managed.shell(&["tc", "qdisc", "replace", "dev", "evk2", "root", "handle", "8:", "mq"]);
    let before = managed.seen();
    for first_ends_first in [true, false] {
        let mut first = managed.session(&["--segments", "16KiB"]);
        let mut second = Running::start(managed.command(&["fair", "evk2", "--segments", "16KiB"]));
        second.wait_for_activity("managed now");
        let (one, other) =
            if first_ends_first { (&mut first, &mut second) } else { (&mut second, &mut first) };
        one.signal(Signal::SIGTERM);
        wait_for("one has ended", LIMIT, || managed.journals().len() == 1);
        // Wait longer than a check interval (500 ms).
        std::thread::sleep(Duration::from_millis(800));
        other.signal(Signal::SIGTERM);
        for ended in [first.end(), second.end()] {
            assert_eq!(ended.code, 0, "{ended:?}");
        }
        assert_same(&managed.seen(), &before, "afterwards");
        assert!(is_empty(managed.state.path()));
    }
}

/// A journal may contain the path of a file that is not a setting. `revert` does not change that file.
#[test]
fn a_crafted_journal_writes_nowhere_else() {
    let managed = Managed::with_maps();
    kill_both(managed.session(&["--xps", "off"]));
    let journal = managed.state.path().join(&managed.journals()[0]);
    let header = StateDirectory::read(&journal).unwrap().unwrap().header.unwrap();
    let target = managed.state.path().join("target");
    std::fs::write(&target, "theirs").unwrap();
    let version_1 = format!(
        r#"{{"evenkeel_journal":1,"interface":{{"boot":"{}","namespace":{},"namespace_cookie":{},"index":{},"name":"{NAME}"}},"process":{{"id":1,"start_ticks":1}},"started":"x","command":"fair"}}"#,
        header.interface.boot,
        header.interface.namespace,
        header.interface.namespace_cookie.unwrap(),
        header.interface.index,
    );
    for (kind, path) in [
        ("sysctl", format!("../..{}", target.display())),
        ("interface-file", format!("../../../..{}", target.display())),
        ("processor-file", format!("../../../..{}", target.display())),
        ("sysctl", "kernel/core_pattern".to_owned()),
    ] {
        let entry = format!(
            r#"{{"knob":{{"{kind}":"{path}"}},"from":{{"text":"ours"}},"ours":[{{"these":[{{"text":"theirs"}}]}}]}}"#
        );
        std::fs::write(&journal, format!("{version_1}\n{entry}\n")).unwrap();
        let ended = end(managed.command(&["revert"]));
        assert!(
            ended.code == 4 && ended.stderr.contains("is not a setting that evenkeel changes"),
            "{ended:?}"
        );
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "theirs");
        assert!(journal.exists(), "it is kept");
    }
}

/// The journal has a process id of another PID namespace, in which process 1 is not the init process of
/// the host.
#[test]
fn a_session_of_another_pid_namespace_is_named_by_its_number_here() {
    let managed = Managed::with_maps();
    let mut command = std::process::Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", env!("CARGO_BIN_EXE_evenkeel")]);
    command.args(["fair", NAME, "--xps", "off"]).env("EVENKEEL_STATE_DIR", managed.state.path());
    let mut running = Running::start(managed.enter(command));
    running.wait_for_activity(AT_WORK);
    let session = children(running.id())[0].id;
    let words = format!("evenkeel fair manages evk0 already: process {session}, since ");
    let next = format!(
        "end it first (kill {session}; if it belongs to the service: `EVENKEEL_STATE_DIR={} evenkeel service pause {NAME}`)",
        managed.state.path().display()
    );
    for arguments in [
        &["revert", NAME][..],
        &["fair", NAME, "--xps", "off"],
        &["tune", NAME, "--apply", "--no-watch"],
        &["tune", NAME],
    ] {
        let ended = end(managed.command(arguments));
        let code = if arguments.len() == 2 && arguments[0] == "tune" { 0 } else { 3 };
        assert_eq!(ended.code, code, "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains(&words) && ended.stderr.contains(&next), "{arguments:?}: {ended:?}");
        assert!(!ended.stderr.contains("had died"), "{arguments:?}: {ended:?}");
    }
    running.kill();
    wait_for("the session ends", LIMIT, || end(managed.command(&["revert"])).code == 0);
    assert_eq!(managed.maps(), DRIVERS_MAPS);
}
