//! Tests `evenkeel fair` on an interface of the running kernel: its observations, its refusals to
//! start, the changes by other programs that end it, and that it restores everything.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use evenkeel_apply::StateDirectory;
use evenkeel_datapath::{QueueSelect, SelectOptions};
use evenkeel_fair::{Preflight, Request, Session};
use support::managed::{DRIVERS_MAPS, Managed, NAME, assert_same, wait_for};
use support::running::Running;
use support::{Ended, end, without_capabilities};

fn end_of(managed: &Managed, arguments: &[&str]) -> Ended {
    end(managed.command(arguments))
}

fn json(ended: &Ended) -> serde_json::Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

#[test]
fn twenty_times_on_and_off_under_load_leaves_no_trace() {
    let managed = Managed::with_maps();
    let mut load = managed.load(8, "20M", 30);
    let before = managed.seen();
    for round in 0..20 {
        let mut running = managed.session(&["--xps", ["off", "pools"][round % 2]]);
        assert_eq!(managed.maps(), ["0"; 4]);
        let held = running.holdings_but_namespaces();
        assert!(held.links.len() >= 2 && held.children.len() == 1, "{held:?}");
        let (signal, code) = [(Signal::SIGINT, 130), (Signal::SIGTERM, 0)][round / 2 % 2];
        running.signal(signal);
        let ended = running.end();
        assert_eq!(ended.code, code, "{signal}: {ended:?}");
        assert!(ended.stdout.contains("2 settings restored"), "{ended:?}");
        held.assert_gone();
        assert_same(&managed.seen(), &before, &format!("round {round}"));
        assert_eq!(managed.journals(), Vec::<String>::new());
    }
    assert!(load.is_running(), "twenty rounds take less time than the load");
    load.finish();
}

#[test]
fn flows_under_management_have_queues_of_their_own_and_the_counters_prove_it() {
    let managed = Managed::new();
    let load = managed.load(4, "50M", 9);
    let ended = end_of(&managed, &["fair", NAME, "--for", "6s", "--format", "json"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let seen = json(&ended);
    assert_eq!((&seen["mode"], &seen["ended"]["by"]), (&"manage".into(), &"time".into()), "{seen}");
    let status = &seen["devices"][0]["status"];
    assert_eq!(status["driver"], "veth");
    assert!(status["proof"].as_str().unwrap().contains("follow the choices"), "{seen}");
    assert!(status["picks"].as_u64().unwrap() > 0, "{seen}");
    load.finish();
}

#[test]
fn segments_shrink_while_queues_are_shared_and_come_back() {
    let managed = Managed::shaped("40mbit");
    let before = managed.seen();
    let mut running = managed.session(&["--segments", "16KiB"]);
    let load = managed.load(12, "100M", 8);
    wait_for("smaller segments", Duration::from_secs(5), || {
        managed.shell(&["ip", "-d", "link", "show", "dev", NAME]).contains(" gso_max_size 16384 ")
    });
    running.signal(Signal::SIGTERM);
    let ended = running.end();
    assert!(ended.code == 0 && ended.stdout.contains("restored"), "{ended:?}");
    assert_same(&managed.seen(), &before, "after SIGTERM");

    // Kill a session. Then end another session by changing the size by hand; the session keeps the new
    // size.
    running = managed.session(&["--segments", "16KiB"]);
    wait_for("smaller segments", Duration::from_secs(5), || {
        managed.shell(&["ip", "-d", "link", "show", "dev", NAME]).contains(" gso_max_size 16384 ")
    });
    running.kill();
    wait_for("what was before", Duration::from_secs(2), || managed.seen() == before);
    let running = managed.session(&["--segments", "auto"]);
    managed.shell(&["ip", "link", "set", "dev", NAME, "gso_max_size", "20000"]);
    assert_exits_after_change(running, &["gso_max_size of evk0 to 20000 bytes"]);
    assert!(managed.shell(&["ip", "-d", "link", "show", "dev", NAME]).contains(" gso_max_size 20000 "));
    load.finish();
}

#[test]
fn a_soft_nic_serves_queues_by_weight_and_goes_without_a_trace() {
    let managed = Managed::new();
    let before = managed.seen();
    let arguments = ["--queue-weights", "htb", "--rate", "200mbit"];
    let load = managed.load(12, "100M", 10);
    let plan = end_of(&managed, &[&["fair", NAME, "--plan"], &arguments[..]].concat());
    assert_eq!(plan.code, 0, "{plan:?}");
    assert!(plan.stdout.contains("#   undo: tc qdisc replace dev evk0 root handle 7: mq"), "{plan:?}");
    assert!(plan.stdout.contains("tcp_limit_output_bytes is lower"), "{plan:?}");
    let ended =
        end_of(&managed, &[&["fair", NAME, "--for", "6s", "--format", "json"], &arguments[..]].concat());
    assert_eq!(ended.code, 0, "{ended:?}");
    let status = &json(&ended)["devices"][0]["status"];
    assert_eq!(status["weights"].as_array().unwrap().len(), 8, "{status}");
    // With twelve flows on eight queues, some queues have several flows, and their classes get more weight.
    assert!(status["weight_updates"].as_u64().unwrap() > 0, "{status}");
    assert!(status["colliding_flows"].as_u64().unwrap() > 0, "{status}");
    assert!(status["proof"].as_str().unwrap().contains("follow the choices"), "{status}");
    assert_same(&managed.seen(), &before, "after a soft NIC");
    load.finish();

    // A soft NIC needs only one queue. After the session, the interface has the kernel's default qdisc
    // again, even after a kill.
    set_transmit_channels(&managed, 1);
    managed.shell(&["tc", "qdisc", "del", "dev", NAME, "root"]);
    let before = managed.seen();
    assert!(before.contains("qdisc noqueue 0: dev evk0 root"), "{before}");
    let running = managed.session(&arguments);
    let ours = managed.shell(&["tc", "qdisc", "show", "dev", NAME]);
    assert!(ours.contains("htb ") && ours.contains(": root"), "{ours}");
    running.kill();
    wait_for("what was before", Duration::from_secs(2), || managed.seen() == before);
    // If an administrator replaces the root by another HTB with the common handle 1:, the session keeps
    // this HTB.
    let running = managed.session(&arguments);
    managed.shell(&["tc", "qdisc", "replace", "dev", NAME, "root", "handle", "1:", "htb", "default", "10"]);
    assert_exits_after_change(running, &["another program set the root qdisc of evk0 to htb 1:"]);
    assert!(managed.shell(&["tc", "qdisc", "show", "dev", NAME]).contains("htb 1: root"));
    managed.shell(&["tc", "qdisc", "del", "dev", NAME, "root"]);
    // The session could not restore a root qdisc with classes, so it does not replace such a qdisc.
    managed.shell(&["tc", "qdisc", "replace", "dev", NAME, "root", "handle", "5:", "htb", "default", "1"]);
    let refused = end_of(&managed, &[&["fair", NAME], &arguments[..]].concat());
    assert!(refused.code == 3 && refused.stderr.contains("cannot be restored exactly"), "{refused:?}");
    assert!(refused.stderr.contains("remove it with `tc qdisc delete dev"), "{refused:?}");
}

/// Evenkeel cannot recreate a tree without one of its leaves.
#[test]
fn a_deleted_leaf_is_refused_before_a_change() {
    let managed = Managed::new();
    managed.shell(&["tc", "qdisc", "add", "dev", NAME, "parent", "7:2", "pfifo", "limit", "3"]);
    managed.shell(&["tc", "qdisc", "del", "dev", NAME, "parent", "7:2"]);
    let before = managed.seen();
    for last in [&["--for", "300ms"][..], &["--plan"]] {
        let arguments = ["fair", NAME, "--queue-weights", "htb", "--rate", "200mbit"];
        let refused = end_of(&managed, &[&arguments[..], last].concat());
        assert!(refused.code == 3 && refused.stderr.contains("the leaf at 7:2 was deleted"), "{refused:?}");
    }
    assert_same(&managed.seen(), &before, "after two refusals");
}

#[test]
fn the_printed_undo_of_a_root_restores_its_options() {
    let managed = Managed::new();
    let shown = || managed.shell(&["tc", "qdisc", "show", "dev", NAME]);
    let root = "qdisc replace dev evk0 root handle 7:";
    for set_up in [
        format!("{root} pfifo limit 55"),
        format!("{root} bfifo limit 5555"),
        format!("{root} tbf rate 12345kbit burst 7777 limit 30000"),
        format!("{root} tbf rate 50gbit burst 1mb limit 2mb peakrate 60gbit mtu 9000"),
        format!("{root} mq\nqdisc add dev evk0 parent 7:2 handle 8: pfifo limit 3"),
        format!("{root} mq\nqdisc add dev evk0 parent 7:1 handle 9: tbf rate 1gbit burst 90kb limit 1mb"),
    ] {
        // The kernel does not change the kind of a qdisc under the same handle, so replace the root first.
        managed.shell(&["tc", "qdisc", "replace", "dev", NAME, "root", "handle", "98:", "pfifo"]);
        for line in set_up.lines() {
            managed.shell(&[&["tc"], &line.split(' ').collect::<Vec<_>>()[..]].concat());
        }
        let before = shown();
        let plan = end_of(
            &managed,
            &["fair", NAME, "--plan", "--queue-weights", "htb", "--rate", "200mbit", "--segments", "off"],
        );
        let undo = plan.stdout.lines().find_map(|line| line.strip_prefix("#   undo: tc ")).unwrap();
        assert!(!undo.contains('#'), "{undo}");
        managed.shell(&["tc", "qdisc", "replace", "dev", NAME, "root", "handle", "99:", "pfifo"]);
        managed.shell(&["sh", "-c", &format!("tc {undo}")]);
        assert_eq!(shown(), before, "{undo}");
    }
}

/// The session applies the weights of a file by port, and reads the file again after a change. If the file
/// is invalid, the session reports the error and keeps the weights.
#[test]
fn flow_weights_follow_their_file() {
    let managed = Managed::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weights.toml");
    let write = |text: &str| {
        let new = directory.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, &file).unwrap();
    };
    write("schema = 1\n[[rule]]\nweight = 0\nmark = 1\n");
    let path = file.to_str().unwrap();
    let refused = end_of(&managed, &["fair", NAME, "--weights", path]);
    assert!(refused.code == 2 && refused.stderr.contains("weights.toml:3:10: rule[0].weight"), "{refused:?}");

    // The load exceeds the rate of the soft NIC, so that both flows always have a backlog.
    let load = managed.load(2, "100M", 12);
    write("schema = 1\n[[rule]]\nweight = 7\nprotocol = \"tcp\"\ndestination-port = 5201\n");
    let soft_nic = ["--queue-weights", "htb", "--rate", "100mbit"];
    let arguments = ["--weights", path, "--for", "8s", "--format", "json"];
    let running = managed.session(&[&arguments[..], &soft_nic[..]].concat());
    std::thread::sleep(Duration::from_secs(2));
    write("schema = 1\n[[rule]]\nweight = 9\nport = 5201\n");
    wait_for("the mistake is told", Duration::from_secs(2), || {
        running.said().contains("rule[0].port: unknown key") && running.said().contains("stay in force")
    });
    // A pipe in place of the file has no writer: the session must not wait for one.
    std::fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    wait_for("the pipe is refused", Duration::from_secs(2), || running.said().contains("it is a pipe"));
    write("schema = 1\n[[rule]]\nweight = 9\nprotocol = \"tcp\"\ndestination-port = \"5200-5209\"\n");
    wait_for("the new weights are read", Duration::from_secs(2), || running.said().contains("read again"));
    let ended = running.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    let weights = json(&ended)["devices"][0]["status"]["weights"].clone();
    let charged: Vec<u64> = weights
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|weight| weight.as_u64())
        .filter(|weight| *weight > 0)
        .collect();
    assert_eq!(charged, [9, 9], "{weights}");
    load.finish();
}

#[test]
fn observation_shows_flows_and_queues_and_changes_nothing() {
    let managed = Managed::with_maps();
    let load = managed.load(6, "30M", 8);
    let before = managed.seen();
    let ended = end_of(&managed, &["fair", NAME, "--observe", "--for", "4s", "--format", "json"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("one queue to each processor"), "{ended:?}");
    let seen = json(&ended);
    let device = &seen["devices"][0];
    let flows: Vec<&serde_json::Value> =
        device["flows"].as_array().unwrap().iter().filter(|flow| flow["busy"] == true).collect();
    assert_eq!(flows.len(), 6, "{seen}");
    let share: f64 = flows.iter().map(|flow| flow["share"].as_f64().unwrap()).sum();
    assert!(share > 0.95 && share <= 1.0 + 1e-9, "{seen}");
    // The XPS maps give two queues to two CPUs. Six flows collide on these queues, and the other queues
    // have no flow.
    assert_eq!(device["colliding_flows"], 6, "{seen}");
    for flow in &flows {
        assert!(flow["queue"].as_u64().unwrap() < 2, "{seen}");
    }
    let counted: u64 = (2..4).map(|queue: usize| device["queues"][queue]["bytes"].as_u64().unwrap()).sum();
    assert_eq!(counted, 0, "the device's counters agree: {seen}");
    assert!(device["nfm_1s"]["windows"].as_u64().unwrap() >= 1, "{seen}");
    // An observation shorter than a second shows no busy flow. It must not report that all is well.
    let short = end_of(&managed, &["fair", NAME, "--observe", "--for", "500ms"]);
    assert!(short.code == 0 && short.stdout.contains("too short to tell which flows are busy"), "{short:?}");
    let short = json(&end_of(&managed, &["fair", NAME, "--observe", "--for", "500ms", "--format", "json"]));
    assert!(short["devices"][0]["colliding_flows"].is_null(), "{short}");
    assert_same(&managed.seen(), &before, "after observing");
    assert_eq!(managed.journals(), Vec::<String>::new());
    load.finish();

    // Below HTB, flows on a common queue do not collide.
    managed.shell(&["tc", "qdisc", "replace", "dev", NAME, "root", "handle", "1:", "htb"]);
    let load = managed.load(6, "30M", 5);
    let ended = end_of(&managed, &["fair", NAME, "--observe", "--for", "3s"]);
    let words = "The root qdisc htb schedules all flows together";
    let said = ended.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(ended.code == 0 && said.contains(words), "{ended:?}");
    load.finish();
}

/// A UDP socket records its queue only if it is connected. So the queues of these flows are unknown.
#[test]
fn an_observation_counts_flows_without_a_known_queue() {
    let managed = Managed::new();
    let has_ended = AtomicBool::new(false);
    let send = |sockets: Vec<UdpSocket>| {
        let began = Instant::now();
        while !has_ended.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(60) {
            sockets.iter().for_each(|socket| drop(socket.send_to(&[0; 1000], "198.18.0.2:9")));
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let sockets =
        managed.host.run(|| Ok([(); 3].map(|()| UdpSocket::bind("0.0.0.0:0").unwrap()).into())).unwrap();
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| send(sockets));
        let ended = end_of(&managed, &["fair", NAME, "--observe", "--for", "5s", "--format", "json"]);
        has_ended.store(true, Ordering::Relaxed);
        ended
    });
    let device = &json(&ended)["devices"][0];
    assert_eq!(
        (&device["busy_flows"], &device["busy_flows_without_queue"]),
        (&3.into(), &3.into()),
        "{device}"
    );
    assert!(device["colliding_flows"].is_null() && device["incomplete"] == false, "{device}");
}

#[test]
fn an_alternative_name_is_as_good_as_the_name() {
    let managed = Managed::new();
    let names = ["evk-short", "evk-longer-than-any-name"];
    for name in names {
        managed.shell(&["ip", "link", "property", "add", "dev", NAME, "altname", name]);
    }
    let before = managed.seen();
    for name in names {
        for arguments in [
            &["fair", name, "--plan"][..],
            &["fair", name, "--for", "10ms"],
            &["steer", name, "--policy", "balance", "--plan"],
            &["check", name],
            &["tune", name],
            &["nic", "probe", name],
            &["revert", name],
        ] {
            let ended = end_of(&managed, arguments);
            // The host itself may have a serious finding.
            let serious = arguments[0] == "check" && ended.code == 1;
            assert!(ended.code == 0 || serious, "{arguments:?}: {ended:?}");
            let words = format!("{name} is an alternative name of {NAME}");
            assert!(ended.stderr.contains(&words), "{arguments:?}: {ended:?}");
        }
    }
    assert_same(&managed.seen(), &before, "afterwards");
}

#[test]
fn maps_of_another_program_are_refused_unless_they_are_to_be_taken_over() {
    let managed = Managed::with_maps();
    let refused = end_of(&managed, &["fair", NAME, "--for", "1s"]);
    assert_eq!((refused.code, refused.stdout.as_str()), (3, ""), "{refused:?}");
    for words in ["another program set", "the driver (veth) sets no XPS maps", "--xps off", "--xps pools"] {
        assert!(refused.stderr.contains(words), "{words}: {refused:?}");
    }
    let respected = end_of(&managed, &["fair", NAME, "--xps", "respect", "--for", "1s"]);
    assert!(respected.code == 3 && respected.stderr.contains("one queue to each processor"), "{respected:?}");
    let plan = end_of(&managed, &["fair", NAME, "--xps", "off", "--plan"]);
    assert_eq!(plan.code, 0, "{plan:?}");
    let maps = format!("/sys/class/net/{NAME}/queues/tx-1/xps_cpus");
    for line in [format!("\necho 0 > {maps}\n"), format!("\n#   undo: echo 2 > {maps}\n")] {
        assert!(plan.stdout.contains(&line), "{line}: {plan:?}");
    }
    assert_eq!(managed.maps(), DRIVERS_MAPS);
    assert_eq!(managed.journals(), Vec::<String>::new());
    // XPS maps that give each CPU two queues also override the queue choice.
    for (queue, map) in (0..).zip(["1", "1", "2", "2"]) {
        managed.set_map(queue, map);
    }
    let refused = end_of(&managed, &["fair", NAME, "--for", "1s"]);
    assert!(refused.code == 3 && refused.stderr.contains("override the queue choice"), "{refused:?}");
}

#[test]
fn a_device_without_an_ethernet_header_is_refused() {
    let managed = Managed::new();
    managed.shell(&["ip", "tuntap", "add", "dev", "evktun", "mode", "tun"]);
    managed.shell(&["ip", "link", "set", "dev", "evktun", "up"]);
    for how in ["--observe", "--xps=off"] {
        let refused = end_of(&managed, &["fair", "evktun", how, "--for", "1s"]);
        assert!(refused.code == 3 && refused.stderr.contains("no Ethernet header"), "{how}: {refused:?}");
    }
}

#[test]
fn a_second_run_is_refused_and_the_first_goes_on() {
    let managed = Managed::with_maps();
    let mut first = managed.session(&["--xps", "off"]);
    let second = end_of(&managed, &["fair", NAME, "--for", "1s"]);
    assert_eq!(second.code, 3, "{second:?}");
    let named = format!("process {}, since 20", first.id());
    assert!(second.stderr.contains(&named), "{named}: {second:?}");
    let revert = end_of(&managed, &["revert", NAME]);
    assert!(revert.code == 3 && revert.stderr.contains(&named), "{revert:?}");
    assert_eq!(managed.maps(), ["0"; 4]);
    first.signal(Signal::SIGTERM);
    assert_eq!(first.end().code, 0);
    assert_eq!(managed.maps(), DRIVERS_MAPS);
}

fn assert_exits_after_change(running: Running, words: &[&str]) {
    let ended = running.end();
    assert_eq!(ended.code, 4, "{ended:?}");
    for word in words.iter().chain(&["evk0: "]) {
        assert!(ended.stderr.contains(word), "{word}: {ended:?}");
    }
}

#[test]
fn a_map_that_is_set_by_hand_stays_and_the_others_come_back() {
    let managed = Managed::with_maps();
    let running = managed.session(&["--xps", "off"]);
    managed.set_map(1, "3");
    assert_exits_after_change(running, &["tx-1/xps_cpus to '3'", "the old value was '2'", "is left"]);
    assert_eq!(managed.maps(), ["1", "3", "0", "0"]);
    assert_eq!(managed.journals(), Vec::<String>::new());
    // Setting a map that was empty also overrides the queue choice.
    let managed = Managed::new();
    let running = managed.session(&[]);
    managed.set_map(2, "1");
    assert_exits_after_change(running, &["another program changed xps_cpus of queue 2"]);
    assert_eq!(managed.maps(), ["0", "0", "1", "0"]);
}

#[test]
fn an_interface_that_is_removed_is_gone_and_that_is_all() {
    let mut managed = Managed::with_maps();
    let running = managed.session(&["--xps", "off"]);
    managed.netlink.delete_link(managed.index).unwrap();
    let words = ["the interface left this network namespace (deleted or moved); nothing is left to restore"];
    assert_exits_after_change(
        running,
        &[words[0], "evk0 was deleted: the kernel removed 2 settings with it"],
    );
    assert_eq!(managed.journals(), Vec::<String>::new());
}

#[test]
fn an_interface_that_is_renamed_gets_its_settings_back() {
    let mut managed = Managed::with_maps();
    let running = managed.session(&["--xps", "off"]);
    managed.netlink.rename(managed.index, "other").unwrap();
    assert_exits_after_change(running, &["renamed the interface to other"]);
    managed.netlink.rename(managed.index, NAME).unwrap();
    assert_eq!(managed.maps(), DRIVERS_MAPS);
}

/// Sets the number of transmit channels, as `ethtool -L NAME tx N` does (include/uapi/linux/ethtool.h).
fn set_transmit_channels(managed: &Managed, count: u32) {
    #[repr(C)]
    struct Request {
        name: [u8; libc::IFNAMSIZ],
        data: *mut u32,
        rest: [u8; 16],
    }
    const GET: u32 = 0x3c;
    const SET: u32 = 0x3d;
    let set = || {
        // SAFETY: the call takes three numbers.
        let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        assert!(socket >= 0);
        // SAFETY: the kernel returned this descriptor, and nothing else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let mut channels = [0_u32; 9];
        for command in [GET, SET] {
            channels[0] = command;
            if command == SET {
                channels[6] = count;
            }
            let mut request =
                Request { name: [0; libc::IFNAMSIZ], data: channels.as_mut_ptr(), rest: [0; 16] };
            request.name[..NAME.len()].copy_from_slice(NAME.as_bytes());
            // SAFETY: the request has the length of `struct ifreq`, its data the length of `struct
            // ethtool_channels`.
            let result = unsafe {
                libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request)
            };
            assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        }
        Ok(())
    };
    managed.host.run(set).unwrap();
}

#[test]
fn more_queues_are_advised_where_flows_share_them() {
    const ADVICE: &str = "ethtool -L evk0 tx 4";
    let managed = Managed::new();
    let load = managed.load(4, "50M", 8);
    let observe = ["fair", NAME, "--observe", "--for", "2s"];
    let ended = end_of(&managed, &observe);
    assert!(ended.code == 0 && !ended.stdout.contains("ethtool"), "it has all that it can: {ended:?}");
    set_transmit_channels(&managed, 2);
    let ended = end_of(&managed, &observe);
    assert!(ended.code == 0 && ended.stdout.contains(ADVICE), "{ended:?}");
    let plan = end_of(&managed, &["fair", NAME, "--plan"]);
    assert!(plan.code == 0 && plan.stdout.contains(ADVICE), "{plan:?}");
    load.finish();
}

#[test]
fn another_number_of_queues_ends_it() {
    let managed = Managed::new();
    managed.shell(&[
        "tc", "qdisc", "replace", "dev", NAME, "parent", "7:4", "handle", "40:", "pfifo", "limit", "44",
    ]);
    // After the session, mq and its leaves replace the soft NIC.
    let running = managed.session(&["--queue-weights", "htb", "--rate", "200mbit"]);
    set_transmit_channels(&managed, 2);
    assert_exits_after_change(running, &["from 4 to 2", "ethtool -L"]);
    let tree = || managed.shell(&["tc", "qdisc", "show", "dev", NAME]);
    assert!(tree().contains("qdisc mq 7: root"), "{}", tree());
    assert_eq!(managed.journals(), Vec::<String>::new());
    let running = managed.session(&[]);
    set_transmit_channels(&managed, 4);
    assert_exits_after_change(running, &["from 2 to 4", "ethtool -L"]);
    // The leaf of a queue that was disabled serves the queue again.
    assert!(tree().contains("qdisc pfifo 40: parent 7:4 limit 44p"), "{}", tree());
    // With one queue there is no choice. The error says that the device can have more queues.
    set_transmit_channels(&managed, 1);
    let refused = end_of(&managed, &["fair", NAME, "--for", "1s"]);
    assert_eq!(refused.code, 3, "{refused:?}");
    assert!(
        refused.stderr.contains("one transmit queue") && refused.stderr.contains("ethtool -L evk0"),
        "{refused:?}"
    );
}

#[test]
fn programs_that_come_and_go_and_a_new_qdisc_end_it() {
    let managed = Managed::new();
    let index = managed.index.cast_signed();
    let others = [mpsc::channel(), mpsc::channel()];
    std::thread::scope(|scope| {
        let [(attached, wait_attached), (detach, wait_detach)] = others;
        let running = managed.session(&[]);
        let host = &managed.host;
        scope.spawn(move || {
            host.run(move || {
                let options = SelectOptions { queues: 4, ..SelectOptions::default() };
                let mut other = QueueSelect::load(&options).unwrap();
                other.attach(index).unwrap();
                attached.send(()).unwrap();
                // Ignore the error: it means that the test has failed.
                let _ = wait_detach.recv();
                Ok(())
            })
            .unwrap();
        });
        wait_attached.recv().unwrap();
        assert_exits_after_change(running, &["another process attached a program at tcx egress"]);
        let running = managed.session(&[]);
        assert!(running.said().contains("has another program at tcx egress"), "{}", running.said());
        detach.send(()).unwrap();
        assert_exits_after_change(running, &["another process detached a program from tcx egress"]);
    });
    let running = managed.session(&[]);
    managed.shell(&["tc", "qdisc", "replace", "dev", NAME, "root", "handle", "9:", "pfifo"]);
    assert_exits_after_change(running, &["another program replaced the root qdisc: mq before, pfifo now"]);
    assert!(managed.shell(&["tc", "qdisc", "show", "dev", NAME]).contains("pfifo 9: root"));
}

/// A session ends after any change of its soft NIC: a replaced qdisc, a changed or added class, a filter,
/// or another HTB with the same handle at the root.
#[test]
fn a_change_of_the_soft_nic_ends_it() {
    let managed = Managed::new();
    let tc = |words: String| managed.shell(&["tc"].into_iter().chain(words.split(' ')).collect::<Vec<_>>());
    for (foreign, said) in [
        (
            &["qdisc replace dev evk0 parent ROOT:12 handle 77: htb default 1"][..],
            "replaced or changed the qdisc at ROOT:12: htb now",
        ),
        (
            &["qdisc replace dev evk0 parent ROOT:13 handle 103: pfifo limit 7"],
            "replaced or changed the qdisc at ROOT:13: pfifo now",
        ),
        (
            &["class change dev evk0 parent ROOT:1 classid ROOT:12 htb rate 1mbit ceil 5mbit"],
            "changed the HTB class ROOT:12",
        ),
        (&["class add dev evk0 parent ROOT:1 classid ROOT:77 htb rate 1mbit"], "added the HTB class ROOT:77"),
        (&["filter add dev evk0 parent ROOT: protocol ip u32 match u32 0 0 flowid ROOT:11"], "ROOT:0: u32"),
        (
            &["filter add dev evk0 parent ROOT:12 protocol ip prio 3 u32 match u32 0 0"],
            "ROOT:12: u32 (preference 3)",
        ),
        (
            &["qdisc del dev evk0 root", "qdisc add dev evk0 root handle ROOT: htb default 10"],
            "removed the qdisc at ROOT:",
        ),
    ] {
        let mut running = managed.session(&["--queue-weights", "htb", "--rate", "200mbit"]);
        let shown = managed.shell(&["tc", "qdisc", "show", "dev", NAME, "root"]);
        let root = shown.strip_prefix("qdisc htb ").and_then(|rest| rest.split(':').next()).unwrap();
        let started = Instant::now();
        for words in foreign {
            tc(words.replace("ROOT", root));
        }
        // If the change is a filter, end the session at once, so that no check of the running session finds
        // the filter.
        if foreign[0].contains("filter") {
            running.signal(Signal::SIGTERM);
        }
        let said = said.replace("ROOT", root);
        assert_exits_after_change(
            running,
            &[&said, "the change is lost when evenkeel removes its own root qdisc"],
        );
        assert!(started.elapsed() < Duration::from_secs(3), "{foreign:?}: {:?}", started.elapsed());
        let now = managed.shell(&["tc", "qdisc", "show", "dev", NAME, "root"]);
        assert!(now.starts_with("qdisc mq 7: root"), "{foreign:?}: {now}");
    }
}

/// Another program installs an HTB with the same handle while the session is stopped. The session must
/// not add a class to it.
#[test]
fn no_class_is_added_to_another_programs_htb() {
    let managed = Managed::new();
    let mut running = managed.session(&["--queue-weights", "htb", "--rate", "200mbit"]);
    let shown = managed.shell(&["tc", "qdisc", "show", "dev", NAME, "root"]);
    let root = shown.strip_prefix("qdisc htb ").and_then(|rest| rest.split(':').next()).unwrap();
    running.signal(Signal::SIGSTOP);
    for words in [
        "qdisc del dev evk0 root",
        "qdisc add dev evk0 root handle ROOT: htb default 5",
        "class add dev evk0 parent ROOT: classid ROOT:5 htb rate 7mbit",
        "class add dev evk0 parent ROOT: classid ROOT:10 htb rate 8mbit quantum 3000",
    ] {
        let words = words.replace("ROOT", root);
        managed.shell(&["tc"].into_iter().chain(words.split(' ')).collect::<Vec<_>>());
    }
    let classes = || managed.shell(&["tc", "class", "show", "dev", NAME]);
    let before = classes();
    running.signal(Signal::SIGCONT);
    let words = format!("the root qdisc of evk0 to htb {root}:, with parameters that evenkeel did not set");
    assert_exits_after_change(running, &[&words]);
    assert_same(&classes(), &before, "the other program's classes");
}

#[test]
fn of_a_stacked_interface_the_real_devices_are_managed() {
    let managed = Managed::new();
    let ip = |words: &str| managed.shell(&["ip"].into_iter().chain(words.split(' ')).collect::<Vec<_>>());
    ip(&format!("link add link {NAME} name upper0 type macvlan"));
    ip("link add bridge0 type bridge");
    ip("link set upper0 master bridge0");
    // Add two more ports: one with several queues, one with a single queue.
    for (port, queues) in [("two0", 2), ("one0", 1)] {
        ip(&format!("link add {port} numtxqueues {queues} type veth peer name {port}p"));
        for command in [format!("link set {port} up"), format!("link set {port} master bridge0")] {
            ip(&command);
        }
    }
    let ended = end_of(&managed, &["fair", "bridge0", "--for", "300ms", "--format", "json"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    for words in
        ["its real devices are evk0, two0, one0", "a device is left out: one0 has only one transmit queue"]
    {
        assert!(ended.stderr.contains(words), "{words}: {ended:?}");
    }
    let seen = json(&ended);
    let mut names: Vec<&str> = seen["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| device["status"]["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, [NAME, "two0"]);
    assert_eq!(managed.journals(), Vec::<String>::new());
}

/// Returns the bytes that each queue has sent, from the children of mq.
fn sent_by_queue(managed: &Managed) -> Vec<u64> {
    let text = managed.shell(&["tc", "-s", "-j", "qdisc", "show", "dev", NAME]);
    let qdiscs: serde_json::Value = serde_json::from_str(&text).unwrap();
    let of = |parent: &str| {
        qdiscs.as_array().unwrap().iter().find(|qdisc| qdisc["parent"] == parent).unwrap()["bytes"]
            .as_u64()
            .unwrap()
    };
    (1..=4).map(|minor| of(&format!("7:{minor}"))).collect()
}

#[test]
fn pools_keep_flows_to_the_queues_that_the_maps_had() {
    let managed = Managed::with_maps();
    let load = managed.load(6, "30M", 5);
    let running = managed.session(&["--xps", "pools", "--for", "3s"]);
    let before = sent_by_queue(&managed);
    let ended = running.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    let sent: Vec<u64> =
        sent_by_queue(&managed).iter().zip(&before).map(|(now, before)| now - before).collect();
    // Both CPUs belong to one node, whose queues are 0 and 1.
    assert!(sent[0] > 1_000_000 && sent[1] > 1_000_000, "{sent:?}");
    assert!(sent[2] + sent[3] < 100_000, "{sent:?}");
    assert_eq!(managed.maps(), DRIVERS_MAPS);
    load.finish();
}

/// The XPS maps allow two of the four queues. After the session clears the maps, hashing alone would move
/// the flow to one of the other two queues in half of the runs.
#[test]
fn a_flow_alone_on_its_queue_stays_there_when_a_session_starts() {
    for _ in 0..4 {
        let managed = Managed::with_maps();
        let load = managed.load(1, "30M", 3);
        let running = managed.session(&["--xps", "off", "--for", "1s"]);
        let before = sent_by_queue(&managed);
        assert_eq!(running.end().code, 0);
        let sent: Vec<u64> =
            sent_by_queue(&managed).iter().zip(&before).map(|(now, before)| now - before).collect();
        assert!(sent[0] + sent[1] > 1_000_000 && sent[2] + sent[3] < 100_000, "{sent:?}");
        load.finish();
    }
}

#[test]
fn what_is_missing_is_named_before_anything_is_changed() {
    let managed = Managed::with_maps();
    let mut command = managed.command(&["fair", NAME, "--xps", "off", "--for", "1s"]);
    command.env("EVENKEEL_STATE_DIR", "/proc/nowhere");
    let ended = end(command);
    assert!(ended.code == 3 && ended.stderr.contains("EVENKEEL_STATE_DIR"), "{ended:?}");
    assert_eq!(managed.maps(), DRIVERS_MAPS);
    let mut command = managed.command(&["fair", NAME]);
    without_capabilities(&mut command);
    let ended = end(command);
    assert!(
        ended.code == 3 && ended.stderr.contains("CAP_BPF") && ended.stderr.contains("as root"),
        "{ended:?}"
    );
    managed.shell(&["ip", "link", "set", NAME, "down"]);
    let ended = end_of(&managed, &["fair", NAME, "--xps", "off"]);
    assert!(ended.code == 3 && ended.stderr.contains("ip link set evk0 up"), "{ended:?}");
}

/// A veth supports neither weights nor rate limits of queues. With `auto`, the session runs without queue
/// weights.
#[test]
fn a_device_without_queue_weights_is_refused_or_left_as_it_is() {
    let managed = Managed::new();
    let before = managed.seen();
    for (arguments, words) in [
        (&["net-shaper"][..], "evk0 (driver veth) does not support queue weights"),
        (&["max-rate"], "does not support a maximum rate per queue (tx_maxrate)"),
        (&["max-rate", "--rate", "1gbit"], "does not support a maximum rate per queue (tx_maxrate)"),
    ] {
        let refused = end_of(&managed, &[&["fair", NAME, "--queue-weights"], arguments].concat());
        assert!(refused.code == 3 && refused.stderr.contains(words), "{arguments:?}: {refused:?}");
    }
    let arguments = ["fair", NAME, "--queue-weights", "auto", "--for", "300ms", "--format", "json"];
    let ended = end_of(&managed, &arguments);
    assert!(ended.code == 0 && ended.stderr.contains("does not support queue weights"), "{ended:?}");
    assert_eq!(json(&ended)["devices"][0]["status"]["queue_weights"], "none");
    assert_same(&managed.seen(), &before, "after auto");
}

#[test]
fn a_name_that_is_not_there_is_bad_usage() {
    let managed = Managed::new();
    let ended = end_of(&managed, &["fair", "evk9"]);
    assert!(ended.code == 2 && ended.stderr.contains("use one of: evk0"), "{ended:?}");
    let ended = end_of(&managed, &["revert", "evk9"]);
    assert!(ended.code == 2 && ended.stderr.contains("'evk9'"), "{ended:?}");
    let ended = end_of(&managed, &["revert"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "nothing to restore\n"));
}

#[test]
fn a_driver_that_picks_by_itself_is_named() {
    let managed = Managed::new();
    // The test needs many flows: with four flows, two could be on the last queue by chance, which would
    // prove nothing.
    let mut load = managed.load(48, "4M", 60);
    let state = StateDirectory::at(managed.state.path());
    let (preflight, reason) = (
        managed.host.run(|| Ok(Preflight::of(NAME, Request::default()).unwrap())).unwrap(),
        std::sync::Mutex::new(None),
    );
    // After the preflight, set a map so that both CPUs send on the last queue. A driver might set such
    // a map.
    managed.set_map(3, "3");
    managed
        .host
        .run(|| {
            let (mut session, _) = Session::start(&preflight, &state, Box::new(|| None), &|| false).unwrap();
            session.start_loops().unwrap();
            let deadline = Instant::now() + Duration::from_secs(50);
            while Instant::now() < deadline {
                if let Some(change) = session.tick().unwrap() {
                    *reason.lock().unwrap() = Some(change.to_string());
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            session.finish().unwrap();
            Ok(())
        })
        .unwrap();
    let reason = reason.into_inner().unwrap();
    assert!(load.is_running());
    let reason = reason.expect("the change was not noticed");
    assert!(reason.contains("the driver (veth) picks the queues by itself"), "{reason}");
    assert!(reason.contains("do not follow"), "{reason}");
}
