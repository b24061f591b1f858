//! Tests `evenkeel steer` on a live interface: it steers, and restores everything, however it ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use support::managed::{Managed, NAME, assert_same, inside, wait_for};
use support::running::Running;
use support::{end, evenkeel, without_capabilities};

const LIMIT: Duration = Duration::from_secs(20);

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn policy(managed: &Managed, text: &str) -> PathBuf {
    // Only a directory that other users cannot access may contain other files than journals.
    std::fs::set_permissions(managed.state.path(), Permissions::from_mode(0o700)).unwrap();
    let path = managed.state.path().join("policy.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// Returns the number of flows on each queue.
fn on_queues(seen: &Value) -> Vec<u64> {
    seen["queues"].as_array().unwrap().iter().map(|queue| queue["flows"].as_u64().unwrap()).collect()
}

#[test]
fn flows_are_balanced_and_nothing_is_left() {
    let managed = Managed::new();
    let before = managed.seen();
    let load = managed.load(7, "5M", 6);
    let ended =
        end(managed.command(&["steer", NAME, "--policy", "balance", "--for", "3s", "--format", "json"]));
    assert_eq!(ended.code, 0, "{ended:?}");
    let seen = json(&ended.stdout);
    // The control connection is an additional flow.
    let flows = on_queues(&seen);
    assert_eq!(flows.iter().sum::<u64>(), 8, "{seen}");
    assert!(flows.iter().max().unwrap() - flows.iter().min().unwrap() <= 1, "{seen}");
    assert_eq!((seen["accepted"].as_bool(), seen["end"].as_str()), (Some(true), Some("time")), "{seen}");
    for queue in seen["queues"].as_array().unwrap() {
        assert!(queue["packets"].as_u64().unwrap() > 10, "{seen}");
        assert_eq!(queue["lost"].as_u64(), Some(0), "{seen}");
    }
    assert!(seen["flows"].as_array().unwrap().iter().all(|flow| flow["process"] == "iperf3"), "{seen}");
    load.finish();
    assert_same(&managed.seen(), &before, "afterwards");
}

#[test]
fn a_policy_is_read_again_when_its_file_changes_and_a_wrong_one_is_not_followed() {
    let managed = Managed::new();
    let file = policy(&managed, "policy = \"balance\"\n");
    let load = managed.load(4, "5M", 10);
    let mut running = managed.steering(&["--policy", file.to_str().unwrap(), "--format", "json"]);
    running.wait_for_activity("5 flows began");
    policy(&managed, "policy = \"balence\"\n");
    running.wait_for_activity("the previous policy stays in force");
    assert!(running.said().contains("policy.toml:1:10"), "{}", running.said());
    // A pipe in place of the file has no writer: the session must not wait for a writer.
    std::fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    running.wait_for_activity("it is a pipe");
    std::fs::remove_file(&file).unwrap();
    policy(&managed, "policy = \"balance\"\n[[class]]\nname = \"bulk\"\nsource-port = 5201\nqueues = [1]\n");
    running.wait_for_activity("the policy was read again");
    std::thread::sleep(Duration::from_secs(1));
    running.signal(Signal::SIGTERM);
    let ended = running.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    let seen = json(&ended.stdout);
    assert_eq!(on_queues(&seen), [0, 5], "{seen}");
    assert!(seen["flows"].as_array().unwrap().iter().all(|flow| flow["class"] == "bulk"), "{seen}");
    assert_eq!(seen["end"], "terminated");
    load.finish();
}

#[test]
fn a_script_of_its_own_is_read_again_when_it_changes() {
    let managed = Managed::new();
    let file = policy(&managed, "policy = \"script\"\nscript-file = \"even.rhai\"\n");
    let script = |text: &str| std::fs::write(managed.state.path().join("even.rhai"), text).unwrap();
    script("fn queue_cost(queue) { queue.flows * queue.flows }\n");
    let mut running = managed.steering(&["--policy", file.to_str().unwrap(), "--format", "json"]);
    script("fn queue_cost(queue) {\n  queue.flows *\n}\n");
    running.wait_for_activity("the previous policy stays in force");
    assert!(running.said().contains("even.rhai:3:"), "{}", running.said());
    script("fn queue_cost(queue) { queue.flows }\n");
    running.wait_for_activity("the policy was read again");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().code, 0);
}

#[test]
fn a_policy_that_fails_in_its_first_search_or_is_removed_is_not_followed() {
    let managed = Managed::new();
    let file = policy(&managed, "policy = \"balance\"\n");
    let load = managed.load(2, "5M", 6);
    let mut running = managed.steering(&["--policy", file.to_str().unwrap()]);
    policy(&managed, "policy = \"script\"\nscript = \"fn queue_cost(queue) { loop {} }\"\n");
    running.wait_for_activity("the previous policy stays in force");
    std::fs::remove_file(&file).unwrap();
    running.wait_for_activity("no longer exists; the previous policy stays in force");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().code, 0);
    load.finish();
}

/// Without flows, a plan does not search, and calls the script only for the cost of the empty placement.
#[test]
fn a_plan_without_flows_tries_the_script() {
    let managed = Managed::new();
    for hook in ["queue_cost(queue)", "cost(queues)"] {
        let text = format!("policy = \"script\"\nscript = \"fn {hook} {{ loop {{}} }}\"\n");
        let file = policy(&managed, &text);
        let policy = ["steer", NAME, "--backend", "rps", "--policy", file.to_str().unwrap(), "--plan"];
        let plan = end(managed.command(&policy));
        assert_eq!(plan.code, 2, "{plan:?}");
        assert!(plan.stderr.contains("a call took more than"), "{plan:?}");
    }
}

#[test]
fn a_kill_leaves_no_trace_and_no_connection_breaks() {
    let managed = Managed::new();
    let before = managed.seen();
    let load = managed.load(4, "20M", 5);
    let mut running = managed.steering(&["--policy", "balance"]);
    running.wait_for_activity("5 flows began");
    let held = running.holdings_but_namespaces();
    assert!(held.programs.len() >= 2 && !held.links.is_empty(), "{held:?}");
    assert!(managed.shell(&["ip", "link", "show", NAME]).contains("xdp"));
    running.kill();
    held.assert_gone();
    wait_for("the program is gone", LIMIT, || !managed.shell(&["ip", "link", "show", NAME]).contains("xdp"));
    load.finish();
    assert_same(&managed.seen(), &before, "afterwards");
}

/// On a loaded machine, the setup of many queues takes seconds. A signal must not wait for its end.
#[test]
fn a_signal_stops_the_setup_of_rps() {
    const MANY: &str = "evkmany";
    let managed = Managed::new();
    let queues = ["numrxqueues", "1000", "numtxqueues", "1000", "type", "veth", "peer", "name", "evkfar"];
    managed.shell(&[&["ip", "link", "add", MANY][..], &queues].concat());
    ["evkfar", MANY].iter().for_each(|name| drop(managed.shell(&["ip", "link", "set", name, "up"])));
    let set = |queues: u32| {
        let files: Vec<String> =
            (0..queues).map(|queue| format!("class/net/{MANY}/queues/rx-{queue}/rps_cpus")).collect();
        let masks = managed.host.read_sysfs(&files).unwrap();
        masks.iter().filter(|mask| !mask.trim().trim_matches(['0', ',']).is_empty()).count()
    };
    let mut running =
        Running::start(managed.command(&["steer", MANY, "--backend", "rps", "--policy", "balance"]));
    wait_for("the first queue is set", LIMIT, || set(1) > 0);
    running.signal(Signal::SIGINT);
    let ended = running.end();
    assert_eq!(ended.code, 130, "{ended:?}");
    assert!(!ended.stderr.contains("steered now"), "{ended:?}");
    assert_eq!((set(1000), managed.journals()), (0, vec![]));
}

/// RPS masks are settings: any process that reads the journal can restore them.
#[test]
fn rps_is_set_and_put_back_also_after_a_kill() {
    let managed = Managed::new();
    let before = managed.seen();
    let mask = || {
        let file = format!("class/net/{NAME}/queues/rx-0/rps_cpus");
        let text = managed.host.read_sysfs(&[file]).unwrap().remove(0);
        text.trim_start_matches(['0', ',']).to_owned()
    };
    assert_eq!(mask(), "", "nothing set at first");
    let file =
        policy(&managed, "policy = \"balance\"\n[[class]]\nname = \"a\"\nprocess = \"x\"\nqueues = [0]\n");
    let rps = ["--backend", "rps", "--policy", file.to_str().unwrap()];
    // The class uses the first of two CPUs exclusively, so hashing uses the other CPU.
    let running = managed.steering(&rps);
    let set = u64::from_str_radix(&mask(), 16).unwrap();
    assert!(set & 1 == 0 && set & 2 == 2, "{set:x}");
    running.kill();
    wait_for("the guardian restores it", LIMIT, || mask().is_empty());
    let ended =
        end(managed.command(&["steer", NAME, "--backend", "rps", "--policy", "locality", "--for", "500ms"]));
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stdout.contains("neither knows nor changes"), "{ended:?}");
    assert!(ended.stderr.contains(", 4 RPS masks; "), "{ended:?}");
    std::fs::remove_file(file).unwrap();
    assert_eq!((mask().as_str(), managed.journals()), ("", vec![]));
    let running = managed.steering(&["--backend", "rps", "--policy", "balance"]);
    managed.host.write_sysfs(&[(format!("class/net/{NAME}/queues/rx-0/rps_cpus"), "1".to_owned())]).unwrap();
    let ended = running.end();
    assert!(ended.code == 4 && ended.stderr.contains("another program set"), "{ended:?}");
    assert_eq!(mask(), "1", "what another program set stays");
    managed.host.write_sysfs(&[(format!("class/net/{NAME}/queues/rx-0/rps_cpus"), "0".to_owned())]).unwrap();
    assert_same(&managed.seen(), &before, "afterwards");
    let running = managed.steering(&["--backend", "rps", "--policy", "balance"]);
    managed.shell(&["ethtool", "-L", NAME, "rx", "2"]);
    let ended = running.end();
    let words = "another program changed the number of receive queues from 4 to 2 (ethtool -L)";
    assert!(ended.code == 4 && ended.stderr.contains(words), "{ended:?}");
    let running = managed.steering(&["--backend", "rps", "--policy", "balance"]);
    managed.shell(&["ethtool", "-L", NAME, "rx", "4"]);
    let ended = running.end();
    let words = "another program changed the number of receive queues from 2 to 4 (ethtool -L)";
    assert!(ended.code == 4 && ended.stderr.contains(words), "{ended:?}");
}

#[test]
fn it_ends_when_it_is_interrupted_and_continues_after_the_interface_was_down() {
    let managed = Managed::new();
    let mut running = managed.steering(&["--policy", "locality", "--once"]);
    running.signal(Signal::SIGINT);
    assert_eq!(running.end().code, 130);
    let mut running = managed.steering(&["--policy", "balance"]);
    let program = || managed.shell(&["ip", "-o", "link", "show", NAME]).contains("prog/xdp");
    assert!(program());
    managed.shell(&["ip", "link", "set", NAME, "down"]);
    // Wait longer than a check interval.
    std::thread::sleep(Duration::from_secs(2));
    managed.shell(&["ip", "link", "set", NAME, "up"]);
    std::thread::sleep(Duration::from_secs(2));
    assert!(program());
    running.signal(Signal::SIGTERM);
    let ended = running.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(!program());
}

/// A plan for another host's NIC needs no interface and no privileges. Steering names the missing
/// privileges.
#[test]
fn what_takes_no_privilege_works_without_any_and_the_rest_is_named() {
    let offline = ["--policy", "balance", "--plan", "--model", "i82599", "--queues", "4", "--generate", "20"];
    for interface in [None, Some("evk-not-here")] {
        let mut command = evenkeel(&["steer"]);
        command.args(interface).args(offline);
        without_capabilities(&mut command);
        let ended = end(command);
        assert!(
            ended.code == 0 && ended.stdout.contains("policy balance met; cost 0.000; 20 flows"),
            "{ended:?}"
        );
    }
    let managed = Managed::new();
    for backend in ["auto", "xdp", "rps", "ntuple"] {
        let mut command = managed.command(&["steer", NAME, "--policy", "balance", "--backend", backend]);
        without_capabilities(&mut command);
        let ended = end(command);
        assert!(ended.code == 3 && ended.stderr.contains("lacks CAP_NET_ADMIN"), "{backend}: {ended:?}");
    }
    let ended = end(managed.command(&["steer", "--policy", "balance", "--plan", "--model", "i82599"]));
    assert!(ended.code == 2 && ended.stderr.contains("name an interface"), "{ended:?}");
}

#[test]
fn a_plan_changes_nothing_and_what_cannot_be_is_refused() {
    let managed = Managed::new();
    // Create an interface with one receive queue, and a peer with four transmit queues.
    let peers = ["type", "veth", "peer", "name", "evkx", "numtxqueues", "4", "numrxqueues", "4"];
    managed.shell(
        &[&["ip", "link", "add", "evkw", "numrxqueues", "1", "numtxqueues", "1"], &peers[..]].concat(),
    );
    managed.shell(&["ip", "link", "set", "evkw", "up"]);
    let before = managed.seen();
    let file = policy(&managed, "policy = \"balance\"\n[[class]]\nname = \"a\"\nqueues = 9\n");
    let path = file.to_str().unwrap();
    let flows = managed.state.path().join("flows.csv");
    std::fs::write(&flows, "udp,10.0.0.7,4711,10.0.0.1,11211\n").unwrap();
    for (arguments, code, words) in [
        (
            &["steer", NAME, "--policy", "balance", "--plan"][..],
            0,
            "policy balance not judged: there is no flow",
        ),
        (
            &["steer", NAME, "--policy", "balance", "--plan", "--model", "i82599", "--queues", "8"],
            0,
            "model i82599",
        ),
        (
            &[
                "steer",
                NAME,
                "--policy",
                "balance",
                "--plan",
                "--model",
                "i82599",
                "--queues",
                "8",
                "--generate",
                "80",
            ],
            0,
            "evk0: policy balance met; cost 0.000; 80 flows",
        ),
        (
            &["steer", NAME, "--policy", "balance", "--plan", "--flows", flows.to_str().unwrap()],
            0,
            "10.0.0.7:4711",
        ),
        (&["steer", NAME, "--policy", "balance", "--plan"], 0, "back end xdp (model xdp-cpumap)"),
        (
            &["steer", NAME, "--policy", "balance", "--plan", "--backend", "rps"],
            0,
            "back end rps (model rss-only)",
        ),
        (&["steer", NAME, "--policy", "balance", "--generate", "80"], 2, "--plan"),
        (&["steer", "evk-not-here", "--policy", "balance"], 2, "there is no interface 'evk-not-here' here"),
        (&["steer", NAME, "--policy", path], 2, "queues"),
        (&["steer", NAME, "--policy", "/nowhere.toml"], 2, "cannot read /nowhere.toml"),
        (&["steer", NAME, "--policy", "balance", "--backend", "ntuple"], 3, "does not accept n-tuple rules"),
        (
            &["steer", NAME, "--policy", "balance", "--plan", "--backend", "ntuple"],
            3,
            "does not accept n-tuple rules",
        ),
        (&["steer", "lo", "--policy", "balance", "--plan"], 3, "lo has a driver without XDP"),
        (
            &["steer", NAME, "--policy", "balance", "--plan", "--backend", "rps"],
            0,
            "evk0: policy balance not judged",
        ),
        (&["steer", "evkw", "--policy", "balance", "--plan"], 3, "the peer has more transmit queues"),
        (
            &["steer", NAME, "--policy", "balance", "--model", "sfc9020"],
            2,
            "XDP steering works only with the model",
        ),
        (&["steer", NAME, "--policy", "balance", "--queues", "4000"], 2, "the number of online processors"),
        (&["steer", NAME, "--policy", "balance", "--netns", "evk-no-such"], 2, "evk-no-such"),
    ] {
        let ended = end(managed.command(arguments));
        assert_eq!(ended.code, code, "{arguments:?}: {ended:?}");
        assert!(ended.stdout.contains(words) || ended.stderr.contains(words), "{arguments:?}: {ended:?}");
        assert_same(&managed.seen(), &before, "afterwards");
    }
    // Entering another namespace needs CAP_SYS_ADMIN. Finding the namespace of another user's process
    // needs CAP_SYS_PTRACE.
    for (lacking, namespace) in
        [("sys_admin", "1"), ("sys_admin", "all"), ("sys_ptrace", "1"), ("sys_ptrace", "all")]
    {
        let script = "mount -t sysfs none /sys && exec setpriv --bounding-set -$0 --inh-caps -$0 \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, lacking, env!("CARGO_BIN_EXE_evenkeel")]);
        command.args(["steer", NAME, "--policy", "balance", "--netns", namespace]);
        let ended = end(managed.enter(command));
        let words = format!("lacks CAP_{}, which --netns needs", lacking.to_uppercase());
        assert!(ended.code == 3 && ended.stderr.contains(&words), "{namespace}: {ended:?}");
        assert_same(&managed.seen(), &before, "afterwards");
    }
    let running = managed.steering(&["--policy", "balance", "--baseline", "hash"]);
    let ended = end(managed.command(&["steer", NAME, "--policy", "balance"]));
    assert!(
        ended.code == 3 && ended.stderr.contains("evenkeel steer or tune manages evk0 already"),
        "{ended:?}"
    );
    drop(running);
}

#[test]
fn a_session_waits_for_one_that_is_ending() {
    let managed = Managed::new();
    let before = managed.seen();
    for backend in ["xdp", "rps"] {
        for ending in [Signal::SIGTERM, Signal::SIGKILL] {
            let steer = ["--policy", "balance", "--backend", backend];
            let mut running = managed.steering(&steer);
            running.signal(ending);
            let next = [&["steer", NAME], &steer[..], &["--for", "10ms"]].concat();
            let ended = end(managed.command(&next));
            assert_eq!(ended.code, 0, "{backend} {ending}: {ended:?}");
            drop(running);
            assert_same(&managed.seen(), &before, "afterwards");
        }
    }
}

#[test]
fn a_steering_session_reports_settings_that_another_program_changed() {
    let managed = Managed::new();
    let running = managed.steering(&["--policy", "balance", "--backend", "rps"]);
    let file = format!("class/net/{NAME}/queues/rx-0/rps_cpus");
    managed.host.write_sysfs(&[(file.clone(), "2".to_owned())]).unwrap();
    let ended = running.end();
    let words = ["rx-0/rps_cpus is left as another program set it", "evenkeel restored its settings"];
    assert!(ended.code == 4 && words.iter().all(|words| ended.stderr.contains(words)), "{ended:?}");
    assert_eq!(managed.host.read_sysfs(&[file]).unwrap()[0].trim_start_matches('0'), "2");
}

/// A process in a separate network namespace.
struct Container(std::process::Child);

impl Container {
    fn new() -> Self {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("sleep");
        command.arg("60");
        // SAFETY: the closure makes one system call.
        unsafe {
            command.pre_exec(|| match libc::unshare(libc::CLONE_NEWNET) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        Self(command.spawn().unwrap())
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.end();
    }
}

/// The sockets at the other end of the flows are in another namespace. The interface only sends packets to
/// these sockets, so they add no flows to steer.
#[test]
fn sockets_of_another_namespace_that_send_to_it_are_no_flows() {
    let managed = Managed::new();
    let load = managed.load(4, "5M", 12);
    let mut sleep = Command::new("sleep");
    sleep.arg("60");
    let mut other = inside(&managed.peer, sleep).spawn().unwrap();
    let name = other.id().to_string();
    let plan = ["steer", NAME, "--policy", "balance", "--plan", "--format", "json"];
    let flows = |arguments: &[&str]| {
        let ended = end(managed.command(arguments));
        assert_eq!(ended.code, 0, "{ended:?}");
        json(&ended.stdout)["flows"].as_array().unwrap().len()
    };
    std::thread::sleep(Duration::from_secs(1));
    let own = flows(&plan);
    let both = flows(&[&plan[..], &["--netns", &name]].concat());
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(own >= 4 && both == own, "{own}, {both}");
    load.finish();
}

#[test]
fn a_namespace_that_goes_does_not_end_the_session() {
    let managed = Managed::new();
    let load = managed.load(4, "5M", 12);
    let mut container = Container::new();
    let name = container.0.id().to_string();
    let mut running = managed.steering(&["--policy", "balance", "--netns", &name, "--format", "json"]);
    running.wait_for_activity("5 flows began");
    container.end();
    running.wait_for_activity(&format!("the network namespace {name} of --netns no longer exists"));
    running.signal(Signal::SIGTERM);
    let ended = running.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(ended.stderr.matches("no longer exists").count(), 1, "{ended:?}");
    assert_eq!(on_queues(&json(&ended.stdout)).iter().sum::<u64>(), 5, "{ended:?}");
    load.finish();
}
