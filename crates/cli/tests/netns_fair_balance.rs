//! Tests `evenkeel fair --balance` on an interface of the running kernel. Flows alternate, and the
//! program that moves them may be detached at any moment.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::Duration;

use nix::sys::signal::Signal;

use support::end;
use support::managed::{Managed, NAME, assert_same};

#[test]
fn flows_take_turns_on_the_queues_that_they_share() {
    let managed = Managed::shaped("50mbit");
    let before = managed.seen();
    let load = managed.load(6, "200M", 8);
    let ended = end(managed.command(&["fair", NAME, "--balance", "on", "--for", "5s", "--format", "json"]));
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("flows alternate on shared queues"), "{ended:?}");
    let seen: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let balance = &seen["devices"][0]["status"]["balance"];
    let count = |name: &str| balance[name].as_u64().unwrap();
    assert!(count("done") >= 20 && count("done") * 10 >= count("wanted") * 9, "{seen}");
    assert_eq!(count("overruled"), 0, "{seen}");
    // Moves of flows do not prevent the session from proving that the device follows its choices.
    let proof = seen["devices"][0]["status"]["proof"].as_str().unwrap();
    assert!(proof.starts_with("its counters follow the choices"), "{seen}");
    assert!(balance["mean_hold_ms"].as_f64().unwrap() < 100.0, "{seen}");
    assert_same(&managed.seen(), &before, "afterwards");
    load.finish();
}

#[test]
fn a_run_that_is_killed_while_it_moves_flows_leaves_them_free() {
    let managed = Managed::shaped("50mbit");
    let mut load = managed.load(6, "200M", 12);
    let before = managed.seen();
    for round in 0..6 {
        let mut running = managed.session(&["--balance", "auto"]);
        std::thread::sleep(Duration::from_millis(300 + 7 * round));
        if round == 5 {
            running.signal(Signal::SIGTERM);
            let ended = running.end();
            assert!(
                ended.code == 0 && ended.stdout.contains(" moves done, flows held back for "),
                "{ended:?}"
            );
        } else {
            let held = running.holdings_but_namespaces();
            running.kill();
            held.assert_gone();
        }
        assert_same(&managed.seen(), &before, &format!("round {round}"));
    }
    assert!(load.is_running(), "the load was there all the time");
    // Every flow finishes: no flow stalls with a closed window.
    load.finish();
}

#[test]
fn it_is_refused_or_left_out_where_queues_are_served_by_weight() {
    let managed = Managed::new();
    let soft_nic = ["fair", NAME, "--queue-weights", "htb", "--rate", "200mbit"];
    let ended = end(managed.command(&[&soft_nic[..], &["--balance", "on", "--for", "1s"]].concat()));
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.stderr.contains("--queue-weights htb serves queues by weight"), "{ended:?}");
    assert!(ended.stderr.contains("--balance off"), "{ended:?}");
    let ended = end(managed.command(&[&soft_nic[..], &["--balance", "auto", "--for", "300ms"]].concat()));
    assert!(ended.code == 0 && ended.stderr.contains("no service balancing: "), "{ended:?}");
    let plan = end(managed.command(&["fair", NAME, "--balance", "auto", "--plan"]));
    assert!(plan.code == 0 && plan.stdout.contains("a BPF program at tcx ingress of evk0"), "{plan:?}");
    let plan = end(managed.command(&["fair", NAME, "--plan"]));
    assert!(plan.code == 0 && !plan.stdout.contains("ingress"), "{plan:?}");
    let ended = end(managed.command(&["fair", NAME, "--observe", "--balance", "on"]));
    assert_eq!(ended.code, 2, "{ended:?}");
}
