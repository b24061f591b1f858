//! Tests `evenkeel fair` with filters of a clsact qdisc, as on kernels without tcx hooks (`--clsact`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_datapath::{Meter, MeterOptions};
use evenkeel_model::change::{Direction, FilterPlace};
use nix::sys::signal::Signal;

use support::managed::{AT_WORK, DRIVERS_MAPS, Managed, NAME, assert_same, is_empty, kill_both, wait_for};
use support::running::Running;
use support::{Ended, end};

/// Time limit of the guardian. It is ten times as long on an emulated machine.
fn limit() -> Duration {
    Duration::from_secs(if Path::new("/run/evenkeel/guest").exists() { 20 } else { 2 })
}

const CLSACT: &str = "--clsact";

fn filters(managed: &Managed) -> String {
    ["egress", "ingress"].map(|hook| managed.shell(&["tc", "filter", "show", "dev", NAME, hook])).join("")
}

/// Returns the settings of [`Managed::seen`], and the filters of clsact.
fn seen(managed: &Managed) -> String {
    managed.seen() + &filters(managed)
}

fn json(ended: &Ended) -> serde_json::Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

/// Adds clsact with a filter of another program. The filter has the handle of Evenkeel's filter, and
/// passes all packets on.
fn add_foreign_filter(managed: &mut Managed, preference: u16) {
    managed.shell(&["tc", "qdisc", "add", "dev", NAME, "clsact"]);
    attach_foreign_filter(managed, preference);
}

fn attach_foreign_filter(managed: &mut Managed, preference: u16) {
    let meter = Meter::load_for_filter(&MeterOptions { flows: 16, bins: 1, bin_ns: 1_000_000 }).unwrap();
    let place = FilterPlace { direction: Direction::Egress, preference };
    managed.netlink.add_filter(managed.index, place, meter.program().unwrap().as_fd(), "foreign").unwrap();
}

#[test]
fn flows_are_placed_and_proved_and_no_filter_remains() {
    let managed = Managed::with_maps();
    let before = seen(&managed);
    let mut running = managed.session(&[CLSACT, "--xps", "off", "--balance", "on", "--format", "json"]);
    managed.load(4, "50M", 8).finish();
    running.signal(Signal::SIGTERM);
    let ended = running.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("programs are attached as filters of clsact"), "{ended:?}");
    let status = &json(&ended)["devices"][0]["status"];
    assert_eq!(status["completion"], "the flows' sockets");
    assert!(status["proof"].as_str().unwrap().contains("follow the choices"), "{status}");
    assert!(status["picks"].as_u64().unwrap() > 0, "{status}");
    assert_same(&seen(&managed), &before, "afterwards");
    assert!(is_empty(managed.state.path()));
}

#[test]
fn a_soft_nic_and_segments_work_with_filters() {
    let managed = Managed::new();
    let before = seen(&managed);
    let mut running = managed.session(&[
        CLSACT,
        "--queue-weights",
        "htb",
        "--rate",
        "200mbit",
        "--segments",
        "16KiB",
        "--format",
        "json",
    ]);
    managed.load(12, "100M", 8).finish();
    running.signal(Signal::SIGTERM);
    let ended = running.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    let status = &json(&ended)["devices"][0]["status"];
    assert!(status["weight_updates"].as_u64().unwrap() > 0, "{status}");
    assert!(status["segment_changes"].as_u64().unwrap() > 0, "{status}");
    assert!(status["proof"].as_str().unwrap().contains("follow the choices"), "{status}");
    assert_same(&seen(&managed), &before, "afterwards");
}

#[test]
fn flows_alternate_on_shared_queues_by_a_filter_at_ingress() {
    let managed = Managed::shaped("50mbit");
    let before = seen(&managed);
    let mut running = managed.session(&[CLSACT, "--balance", "on", "--format", "json"]);
    managed.load(6, "200M", 5).finish();
    running.signal(Signal::SIGTERM);
    let ended = running.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    let balance = &json(&ended)["devices"][0]["status"]["balance"];
    assert!(balance["done"].as_u64().unwrap() >= 10 && balance["overruled"] == 0, "{balance}");
    assert_same(&seen(&managed), &before, "afterwards");
}

#[test]
fn an_observer_sees_queues_and_removes_its_filter() {
    let managed = Managed::new();
    let before = seen(&managed);
    let load = managed.load(4, "50M", 6);
    let ended = end(managed.command(&["fair", NAME, "--observe", CLSACT, "--for", "3s", "--format", "json"]));
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("adds only a filter that counts"), "{ended:?}");
    let found = json(&ended);
    let flows = found["devices"][0]["flows"].as_array().unwrap();
    let placed = flows.iter().filter(|flow| flow["queue"].is_u64() && flow["busy"] == true).count();
    assert_eq!(placed, 4, "{found}");
    assert_same(&seen(&managed), &before, "afterwards");

    let mut observer = Running::start(managed.command(&["fair", NAME, "--observe", CLSACT]));
    observer.wait_for_activity("observing");
    assert!(filters(&managed).contains("evenkeel count_sent"), "{}", filters(&managed));
    // Both sessions would journal the filters of the same interface.
    let second = end(managed.command(&["fair", NAME, CLSACT, "--for", "1s"]));
    assert_eq!(second.code, 3, "{second:?}");
    observer.kill();
    wait_for("the guardian has removed the filter", limit(), || seen(&managed) == before);
    load.finish();
}

#[test]
fn the_guardian_removes_the_filters_of_a_killed_session() {
    let managed = Managed::with_maps();
    let before = seen(&managed);
    let running = managed.session(&[CLSACT, "--xps", "off", "--balance", "on"]);
    for name in ["evenkeel select_queue", "evenkeel count_sent", "evenkeel hold_back"] {
        assert!(filters(&managed).contains(name), "{name}: {}", filters(&managed));
    }
    running.kill();
    wait_for("the guardian has restored everything", limit(), || seen(&managed) == before);
    managed.wait_for_maps(&DRIVERS_MAPS, limit());
    wait_for("no journal", limit(), || is_empty(managed.state.path()));
}

#[test]
fn a_kill_at_any_moment_of_the_start_leaves_no_filter() {
    let managed = Managed::with_maps();
    let before = seen(&managed);
    let arguments = ["fair", NAME, CLSACT, "--xps", "off", "--balance", "on"];
    let start = Instant::now();
    managed.session(&arguments[2..]).kill();
    let until_there = start.elapsed();
    wait_for("the guardian has restored everything", limit(), || seen(&managed) == before);
    for twelfths in 1..=12 {
        let running = Running::start(managed.command(&arguments));
        std::thread::sleep(until_there * twelfths / 12);
        running.kill();
        wait_for(&format!("what was before, {twelfths}/12"), limit(), || seen(&managed) == before);
    }
    assert_eq!(end(managed.command(&["revert", NAME])).code, 0);
    assert_same(&seen(&managed), &before, "after revert");
}

#[test]
fn if_both_die_revert_or_the_next_run_removes_the_filters() {
    let managed = Managed::new();
    let before = seen(&managed);
    kill_both(managed.session(&[CLSACT]));
    assert!(filters(&managed).contains("evenkeel select_queue"), "no process is left to remove it");
    let plan = end(managed.command(&["fair", NAME, CLSACT, "--plan"]));
    for words in [
        "a run first restores: tc filter del dev evk0 egress pref 1 ",
        "a run first restores: tc qdisc del dev evk0 clsact",
    ] {
        assert!(plan.code == 0 && plan.stdout.contains(words), "{words}: {plan:?}");
    }
    let ended = end(managed.command(&["revert", NAME]));
    assert!(ended.code == 0 && ended.stdout.contains("restored"), "{ended:?}");
    assert_same(&seen(&managed), &before, "after revert");
    assert!(is_empty(managed.state.path()));

    kill_both(managed.session(&[CLSACT]));
    let ended = end(managed.command(&["fair", NAME, CLSACT, "--for", "300ms"]));
    assert!(ended.code == 0 && ended.stderr.contains("had died: "), "{ended:?}");
    assert_same(&seen(&managed), &before, "after the next run");
}

#[test]
fn clsact_and_the_filters_of_other_programs_stay() {
    for foreign in [1, 7] {
        let mut managed = Managed::new();
        add_foreign_filter(&mut managed, foreign);
        let before = seen(&managed);
        let mut running = managed.session(&[CLSACT]);
        assert!(running.said().contains("has a filter at clsact egress: bpf foreign"), "{}", running.said());
        running.signal(Signal::SIGTERM);
        let ended = running.end();
        assert_eq!(ended.code, 0, "{ended:?}");
        assert_same(&seen(&managed), &before, "afterwards");
        managed.session(&[CLSACT]).kill();
        wait_for("the guardian has removed only its own", limit(), || seen(&managed) == before);
        kill_both(managed.session(&[CLSACT]));
        assert_eq!(end(managed.command(&["revert", NAME])).code, 0);
        assert_same(&seen(&managed), &before, "after revert");
    }
}

/// A session recognizes its own filters by preference and handle.
#[test]
fn a_foreign_filter_with_the_handle_of_evenkeels_ends_the_session() {
    let mut managed = Managed::new();
    let running = managed.session(&[CLSACT]);
    attach_foreign_filter(&mut managed, 9);
    let ended = running.end();
    let words = "another program changed the filters at clsact egress";
    assert!(ended.code == 4 && ended.stderr.contains(words), "{ended:?}");
    let filters = filters(&managed);
    assert!(filters.contains("foreign") && !filters.contains("evenkeel"), "{filters}");
}

/// If another program adds a filter below Evenkeel's clsact qdisc, the qdisc stays.
#[test]
fn clsact_stays_with_a_filter_that_another_program_added_meanwhile() {
    let managed = Managed::new();
    let mut running = managed.session(&[CLSACT]);
    managed.shell(&[
        "tc", "filter", "add", "dev", NAME, "ingress", "pref", "9", "u32", "match", "u32", "0", "0",
    ]);
    std::thread::sleep(Duration::from_millis(1500));
    running.signal(Signal::SIGTERM);
    let ended = running.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("the clsact qdisc of evk0 is left as another program set it"), "{ended:?}");
    let filters = filters(&managed);
    assert!(filters.contains("u32") && !filters.contains("evenkeel"), "{filters}");
    assert!(is_empty(managed.state.path()));
}

#[test]
fn an_ingress_qdisc_is_kept_and_refuses_the_session() {
    let managed = Managed::new();
    managed.shell(&["tc", "qdisc", "add", "dev", NAME, "ingress"]);
    let before = seen(&managed);
    let ended = end(managed.command(&["fair", NAME, CLSACT, "--for", "300ms"]));
    assert!(ended.code == 3 && ended.stderr.contains("tc qdisc del dev evk0 ingress"), "{ended:?}");
    assert_same(&seen(&managed), &before, "afterwards");
    assert!(is_empty(managed.state.path()));
}

#[test]
fn a_filter_that_another_program_removes_ends_the_session() {
    let managed = Managed::new();
    let before = seen(&managed);
    for (command, words) in [
        (
            ["tc", "filter", "del", "dev", NAME, "egress", "pref", "1"].as_slice(),
            "the filter of evk0 at clsact egress with preference 1",
        ),
        (&["tc", "qdisc", "del", "dev", NAME, "clsact"], "the clsact qdisc of evk0"),
    ] {
        let running = Running::start(managed.command(&["fair", NAME, CLSACT]));
        let mut running = running;
        running.wait_for_activity(AT_WORK);
        managed.shell(command);
        let ended = running.end();
        assert!(ended.code == 4 && ended.stderr.contains(words), "{words}: {ended:?}");
        assert_same(&seen(&managed), &before, "afterwards");
        assert!(is_empty(managed.state.path()));
    }
}
