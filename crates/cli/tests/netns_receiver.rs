//! Tests `evenkeel run` with transfers on this machine's kernel: results and refusals.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use serde_json::Value;

use support::leftovers::interfaces;
use support::running::{Place, Running};

fn scenario() -> String {
    include_str!("../../../scenarios/tcp100g-two-cores.toml")
        .replace("\"1s\"", "\"300ms\"")
        .replace("duration = \"3s\"", "duration = \"700ms\"")
}

#[test]
fn drops_have_the_names_of_the_simulator() {
    let links = interfaces();
    let place = Place::new(&scenario());
    let arguments = ["--quiet", "--format", "json", "--repeat", "1", "--variant", "same-short-ring"];
    let ended = Running::start(place.command(&arguments)).end();
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
    let result: Value = serde_json::from_str(&ended.stdout).unwrap();
    let variant = &result["variants"][0];
    let metrics = &variant["metrics"];
    let keys: Vec<&String> = metrics["drops"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["nic", "pruned", "ring", "socket_backlog"]);
    assert!(metrics.get("cpu_share").is_none(), "the kernel does not count cycles by subsystem");
    for metric in ["throughput_bps", "cpu_pct", "throughput_per_core_bps"] {
        assert!(metrics[metric]["mean"].as_f64().unwrap() > 0.0, "{metric}: {variant:#}");
    }
    assert!(variant["counters"]["repeat_ring_drops"]["mean"].as_f64().unwrap() > 0.0, "{variant:#}");
    assert_eq!(variant["counters"]["unexplained_packets"]["max"], 0.0, "{variant:#}");
    assert_eq!(interfaces(), links);
}

#[test]
fn what_this_machine_cannot_do_is_refused_with_the_reason() {
    let processors = std::thread::available_parallelism().unwrap().get();
    assert!(processors < 4, "this test knows the refusals of machines with fewer than four processors");
    let paper = support::run(&["run", "tcp100g-cores", "--on", "netns", "--quiet"]);
    assert_eq!((paper.code, paper.stdout.as_str()), (3, ""), "{paper:?}");
    let processors =
        format!("3 applications and the sender need 4 processors, and this machine has {processors}");
    for reason in [processors.as_str(), "the qdisc fq cannot pace", "run the variant with --on sim"] {
        assert!(paper.stderr.contains(reason), "{reason}: {paper:?}");
    }
    let own = scenario() + "\n[variant.paced]\nbase = \"same\"\nsummary = \"paced\"\npacing = true\n";
    let place = Place::new(&own);
    let paced = Running::start(place.command(&["--variant", "paced"])).end();
    assert_eq!(paced.code, 3, "{paced:?}");
    assert!(paced.stderr.contains("the qdisc fq cannot pace"), "{paced:?}");
}
