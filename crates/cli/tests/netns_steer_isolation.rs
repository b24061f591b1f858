//! Tests a policy that separates two classes of memcached clients on one interface, and that the
//! session restores everything.
//!
//! The host runs two instances of memcached, one per class, each on its own CPU. The same XDP program
//! steers the received packets, once by hash and once by a policy that gives the high-priority class
//! its own CPU. `./dev bench isolation` measures the effect on latency.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_testbed::traffic::memcached::{LoadOptions, LoadResult, load};
use evenkeel_testbed::{Process, ProcessOptions};
use nix::sys::signal::Signal;
use serde_json::Value;

use support::managed::{Managed, assert_same, wait_for};

/// The port and CPU of each class.
const HIGH: (u16, usize) = (11211, 0);
const BEST_EFFORT: (u16, usize) = (11212, 1);
const ADDRESS: &str = "198.18.0.1";
const CONNECTIONS: usize = 16;
/// Requests per second of each class. Two busy CPUs can handle this rate.
const RATE: f64 = 1_000.0;
const TIME: Duration = Duration::from_secs(4);
const POLICY: &str =
    "policy = \"balance\"\n[[class]]\nname = \"high\"\ndestination-port = 11211\nqueues = [0]\n";

fn server(managed: &Managed, (port, cpu): (u16, usize)) -> Process {
    let port_text = port.to_string();
    // Run as root: a change of user would clear the parent death signal (prctl(2), PR_SET_PDEATHSIG).
    let arguments = ["-u", "root", "-l", ADDRESS, "-p", &port_text, "-U", "0", "-t", "1", "-m", "64"];
    let process = Process::start(ProcessOptions {
        program: "memcached",
        arguments: arguments.iter().map(Into::into).collect(),
        namespace: &managed.host,
        cpu: Some(cpu),
        inherit: None,
    })
    .unwrap();
    wait_for("memcached listens", Duration::from_secs(10), || {
        managed.host.listens(ADDRESS.parse().unwrap(), port).unwrap()
    });
    process
}

fn options((port, cpu): (u16, usize)) -> LoadOptions {
    LoadOptions {
        server: SocketAddr::new(ADDRESS.parse().unwrap(), port),
        connections: CONNECTIONS,
        rate: Some(RATE),
        time: TIME,
        value: 1024,
        sets_percent: 10,
        keys: 100,
        seed: u64::from(port),
        cpu: Some(cpu),
    }
}

/// Runs a session under the load of both classes, and returns its final status. The session ends before
/// the load.
fn steered(managed: &Managed, arguments: &[&str]) -> Value {
    let mut running = managed
        .steering(&[&["--backend", "xdp", "--interval", "200ms", "--format", "json"], arguments].concat());
    let (ended, results) = std::thread::scope(|scope| {
        let loads = [HIGH, BEST_EFFORT]
            .map(|class| scope.spawn(move || load(&managed.peer, &options(class)).unwrap()));
        std::thread::sleep(TIME / 2);
        running.signal(Signal::SIGTERM);
        (running.end(), loads.map(|load| load.join().unwrap()))
    });
    for LoadResult { latencies_ns, due, .. } in results {
        assert!(due > 3_000, "{due}");
        assert_eq!(latencies_ns.len(), due, "every request is answered, also those after the end");
    }
    assert_eq!(ended.code, 0, "{ended:?}");
    let seen: Value = serde_json::from_str(&ended.stdout).unwrap();
    for queue in seen["queues"].as_array().unwrap() {
        assert_eq!(queue["lost"].as_u64(), Some(0), "{seen}");
    }
    seen
}

/// Returns the queues that received the connections of a class.
fn queues_of(seen: &Value, (port, _): (u16, usize)) -> BTreeSet<u64> {
    let flows = seen["flows"].as_array().unwrap().iter();
    let to_port = flows.filter(|flow| flow["destination"].as_str().unwrap().ends_with(&format!(":{port}")));
    let queues: Vec<u64> = to_port.map(|flow| flow["queue"].as_u64().unwrap()).collect();
    assert_eq!(queues.len(), CONNECTIONS, "{seen}");
    queues.into_iter().collect()
}

#[test]
fn a_class_has_a_processor_of_its_own() {
    let managed = Managed::new();
    let before = managed.seen();
    let _servers = [server(&managed, HIGH), server(&managed, BEST_EFFORT)];
    let file = managed.state.path().join("isolation.toml");
    std::fs::write(&file, POLICY).unwrap();

    // The probability that all sixteen connections of a class hash to the same one of two queues is 1 in
    // 32,000.
    let hashed = steered(&managed, &["--policy", "balance", "--baseline", "hash"]);
    assert_eq!([HIGH, BEST_EFFORT].map(|class| queues_of(&hashed, class).len()), [2, 2], "{hashed}");
    // Repeat with a policy that would separate the classes. The policy is not in force, so the result
    // does not judge it.
    let hashed = steered(&managed, &["--policy", file.to_str().unwrap(), "--baseline", "hash"]);
    assert_eq!([HIGH, BEST_EFFORT].map(|class| queues_of(&hashed, class).len()), [2, 2], "{hashed}");
    assert!(hashed["met"].is_null() && hashed["accepted"].is_null(), "{hashed}");

    let isolated = steered(&managed, &["--policy", file.to_str().unwrap()]);
    assert_eq!(queues_of(&isolated, HIGH), BTreeSet::from([0]), "{isolated}");
    assert_eq!(queues_of(&isolated, BEST_EFFORT), BTreeSet::from([1]), "{isolated}");

    std::fs::remove_file(file).unwrap();
    assert_same(&managed.seen(), &before, "afterwards");
    assert!(managed.journals().is_empty());
}
