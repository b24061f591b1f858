//! Tests `check --simulate` and `tune --simulate` on hosts with a planted fault.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "several test binaries share this file, and each uses a part of it")]
#[path = "support/faults.rs"]
mod faults;
#[path = "support/hosts.rs"]
mod hosts;
mod support;

use evenkeel_host::facts::complete;
use evenkeel_model::host::HostFacts;
use evenkeel_placement::applied::apply;
use evenkeel_placement::check;
use evenkeel_synthetic::write_tree;
use faults::{elsewhere, nic, place};
use serde_json::Value;
use support::{Ended, run};

/// CPUs of the three data movers of the healthy host.
const MOVERS: [u32; 3] = [36, 37, 38];

/// Returns a data transfer node with 100 Gbit/s and the CPUs of *TCP at 100 Gbit/s*.
fn healthy() -> HostFacts {
    let (_, host) = hosts::HOSTS[0];
    let mut facts = host();
    facts.processor_model = Some("Intel(R) Xeon(R) CPU E5-2630 v3 @ 2.40GHz".to_owned());
    complete(&mut facts);
    facts
}

fn on(facts: &HostFacts, arguments: &[&str]) -> Ended {
    let directory = tempfile::tempdir().unwrap();
    write_tree(facts, directory.path()).unwrap();
    let mut all = arguments.to_vec();
    all.extend(["--from", directory.path().to_str().unwrap()]);
    run(&all)
}

fn simulated(facts: &HostFacts) -> Value {
    let ended = on(facts, &["check", "--simulate", "--format", "json"]);
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

/// Returns the simulated throughput of a host as it is, without the fixes of its findings, bit/s.
fn now(check: &Value) -> f64 {
    check["simulation"]["interfaces"][0]["now"].as_f64().unwrap()
}

/// Checks that the fix of a rule gains throughput, and that the throughput of a host with the fix is
/// higher by this gain.
fn assert_gain(facts: &HostFacts, rule: &str) {
    let mut facts = facts.clone();
    complete(&mut facts);
    let found = simulated(&facts);
    let all = found["findings"].as_array().unwrap();
    let finding = all.iter().find(|finding| finding["rule"] == rule).unwrap_or_else(|| panic!("{found:#}"));
    let effect = &finding["simulated"];
    let number = |key: &str| effect[key].as_f64().unwrap_or_else(|| panic!("{finding:#}"));
    let end = |at: usize| effect["interval"][at].as_f64().unwrap();
    assert!(effect["shown"] == true && number("ratio") > 1.0 && end(0) > 1.0, "{effect:#}");
    assert_eq!(number("before"), now(&found), "{effect:#}");

    let finding = check(&facts).into_iter().find(|finding| finding.rule == rule).unwrap();
    let mut fixed = facts.clone();
    assert!(apply(&mut fixed, finding.remedy.interface.as_deref(), &finding.remedy.changes));
    let gained = now(&simulated(&fixed)) / now(&found);
    assert!(
        (end(0)..=end(1)).contains(&gained),
        "the fixed host receives {gained} times as much: {effect:#}"
    );
}

#[test]
fn interrupts_on_the_other_socket_cost_throughput() {
    let mut facts = healthy();
    let away = elsewhere(&mut facts);
    place(&mut facts, |at| away[at % away.len()]);
    assert_gain(&facts, "irq-remote-node");
}

/// Makes the ring of the NIC short, and adds losses at the ring.
fn shorten(facts: &mut HostFacts, ring: u32) {
    let nic = nic(facts);
    nic.rings.as_mut().unwrap().rx = ring;
    nic.driver_statistics.insert("rx_out_of_buffer".to_owned(), 8_000_000);
}

/// With MTU 1500, the same throughput takes more packets, and the short ring overflows.
#[test]
fn a_short_ring_costs_throughput() {
    let mut facts = healthy();
    nic(&mut facts).mtu = Some(1500);
    shorten(&mut facts, 256);
    assert_gain(&facts, "rx-ring-drops");
}

/// With MTU 9000 and idle cores for interrupts, the simulated ring never has 256 packets.
#[test]
fn an_effect_that_the_model_does_not_show_is_no_gain() {
    let mut facts = healthy();
    shorten(&mut facts, 256);
    let shown = on(&facts, &["check", "--simulate"]).stdout;
    let line =
        shown.lines().find(|line| line.starts_with("  simulated ")).unwrap_or_else(|| panic!("{shown}"));
    assert!(line.contains("99.0 → 99.0 Gbit/s, no difference shown"), "{shown}");
}

#[test]
fn interrupts_on_the_cores_of_applications_cost_throughput() {
    let mut facts = healthy();
    place(&mut facts, |at| MOVERS[at % MOVERS.len()]);
    assert_gain(&facts, "irq-on-application");
}

#[test]
fn a_healthy_host_has_nothing_to_gain() {
    let found = simulated(&healthy());
    assert_eq!(found["findings"], serde_json::json!([]), "{found:#}");
    assert!(now(&found) > 90e9, "{found:#}");
}

#[test]
fn a_plan_is_simulated_as_a_whole_and_in_parts() {
    let mut facts = healthy();
    let away = elsewhere(&mut facts);
    place(&mut facts, |at| away[at % away.len()]);
    facts.sysctls.insert("net/ipv4/tcp_rmem".to_owned(), "4096 131072 6291456".to_owned());
    let ended = on(&facts, &["tune", "ens2f0", "--simulate", "--format", "json"]);
    let found: Value = serde_json::from_str(&ended.stdout).unwrap();
    let simulation = &found["simulation"];
    let of = |rule: &str, part: &str| {
        let rules = simulation["rules"].as_array().unwrap();
        let found =
            rules.iter().find(|found| found["rule"] == rule).unwrap_or_else(|| panic!("{simulation:#}"));
        found[part]["after"].as_f64().unwrap_or_else(|| panic!("{simulation:#}"))
    };
    let all = simulation["plan"]["after"].as_f64().unwrap();
    for rule in ["irq-remote-node", "receive-window"] {
        assert!(all > 1.1 * of(rule, "without"), "{simulation:#}");
    }
    assert_eq!(of("irq-remote-node", "alone"), of("receive-window", "without"));
    let text = on(&facts, &["tune", "ens2f0", "--simulate"]).stdout;
    assert!(text.contains("# the whole plan: ") && text.contains("# all but irq-remote-node: "), "{text}");
}

#[test]
fn a_host_that_the_model_does_not_have_gets_a_sentence() {
    let (_, virtual_machine) = hosts::HOSTS[5];
    let found = on(&virtual_machine(), &["check", "--simulate"]);
    assert!(
        found.code <= 1 && found.stdout.contains("Not simulated: this host is a virtual machine"),
        "{found:?}"
    );
    let mut facts = healthy();
    facts.interfaces.retain(|interface| interface.name == "lo");
    facts.interrupts.clear();
    let found = on(&facts, &["check", "--simulate"]);
    assert!(found.code <= 1 && found.stdout.contains("Not simulated: no NIC is up"), "{found:?}");
}
