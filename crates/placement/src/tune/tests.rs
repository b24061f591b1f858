#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use crate::finding::{Basis, Remedy};
use evenkeel_model::change::{Channels, Ring, Value};
use evenkeel_model::host::Interface;

fn finding(rule: &'static str, severity: Severity, interface: Option<&str>, changes: Vec<Change>) -> Finding {
    Finding {
        rule,
        severity,
        basis: Basis::Measured,
        subject: interface.unwrap_or("host").to_owned(),
        evidence: format!("evidence of {rule}"),
        effect: "packets are lost".to_owned(),
        remedy: Remedy { interface: interface.map(str::to_owned), changes, advice: None },
        source: "the paper",
    }
}

fn host() -> HostFacts {
    let interface = |name: &str| Interface { name: name.to_owned(), ..Interface::default() };
    HostFacts { interfaces: vec![interface("eth0"), interface("eth1")], ..HostFacts::default() }
}

fn ring(number: u32) -> Change {
    Change::new(Knob::Ring(Ring::Rx), Value::Number(number))
}

fn sysctl(path: &str, value: &str) -> Change {
    Change::new(Knob::Sysctl(path.to_owned()), Value::Text(value.to_owned()))
}

fn plan(findings: &[Finding], keep: &str, only: &[&str]) -> Result<TuningPlan, UnknownItem> {
    let keep = Keep::parse(keep, "keep.toml").unwrap();
    TuningPlan::new(
        &host(),
        findings,
        "eth0",
        &keep,
        &only.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>(),
    )
}

#[test]
fn only_what_was_found_for_the_interface_and_its_host_is_changed() {
    let findings = [
        finding("windows", Severity::Medium, None, vec![sysctl("net/ipv4/tcp_rmem", "4096 87380 1")]),
        finding("ring", Severity::High, Some("eth0"), vec![ring(4096)]),
        finding("ring", Severity::High, Some("eth1"), vec![ring(8192)]),
        finding(
            "queues",
            Severity::Low,
            Some("eth0"),
            vec![Change::new(Knob::Channels(Channels::Combined), Value::Number(4))],
        ),
    ];
    let plan = plan(&findings, "", &[]).unwrap();
    assert_eq!(plan.items.iter().map(|item| item.rule).collect::<Vec<_>>(), ["ring", "windows", "queues"]);
    // Channels first, for they restart everything; sysctls last.
    assert_eq!(plan.steps.iter().map(|step| step.rule).collect::<Vec<_>>(), ["queues", "ring", "windows"]);
    assert_eq!(plan.steps[1].change, ring(4096));
    assert_eq!(plan.items[0].evidence, ["eth0: evidence of ring"]);
    assert!(plan.left.is_empty());
    assert_eq!(TuningPlan::new(&host(), &[], "eth0", &Keep::default(), &[]).unwrap(), TuningPlan::default());
}

#[test]
fn what_is_asked_for_is_all_that_is_done() {
    let findings = [
        finding("ring", Severity::High, Some("eth0"), vec![ring(4096)]),
        finding("windows", Severity::Medium, None, vec![sysctl("net/ipv4/tcp_rmem", "1 2 3")]),
    ];
    let one = plan(&findings, "", &["windows"]).unwrap();
    assert_eq!(one.steps.iter().map(|step| step.rule).collect::<Vec<_>>(), ["windows"]);
    let error = plan(&findings, "", &["rings"]).unwrap_err().to_string();
    assert_eq!(error, "nothing was found of 'rings'; there is ring, windows");
    assert!(plan(&[], "", &["ring"]).unwrap_err().to_string().contains("nothing to change"));
}

#[test]
fn what_an_administrator_keeps_is_left_and_said() {
    let findings = [
        finding("ring", Severity::High, Some("eth0"), vec![ring(4096)]),
        finding("windows", Severity::Medium, None, vec![sysctl("net/core/rmem_max", "5")]),
    ];
    let plan = plan(&findings, "keep = [\"sysctl net.core.*\"]", &[]).unwrap();
    assert_eq!(plan.steps.len(), 1);
    assert_eq!(plan.left[0].why, "keep.toml keeps 'sysctl net.core.*'");
    assert_eq!(plan.items.len(), 2, "it was found all the same");
}

#[test]
fn of_two_wishes_the_graver_is_granted() {
    let findings = [
        finding("one", Severity::Low, None, vec![sysctl("net/core/x", "1")]),
        finding("two", Severity::High, None, vec![sysctl("net/core/x", "2")]),
        finding("three", Severity::Medium, None, vec![sysctl("net/core/x", "2")]),
    ];
    let plan = plan(&findings, "", &[]).unwrap();
    assert_eq!(plan.steps.len(), 1);
    assert_eq!(plan.steps[0].rule, "two");
    assert_eq!((plan.left.len(), plan.left[0].rule, plan.left[0].why.as_str()), (1, "one", "two wants '2'"));
}

#[test]
fn what_was_raised_is_raised_again_only_while_packets_are_lost() {
    for rule in GROWING {
        assert!(crate::find_rule(rule).is_some(), "{rule}");
    }
    let none = BTreeSet::new();
    assert!(settled("backlog-drops", "eth0", "eth0", &none).unwrap().contains("raised it already"));
    assert_eq!(settled("backlog-drops", "eth0", "eth0", &["backlog-drops"].into()), None);
    assert_eq!(
        settled("receive-window", "eth0", "eth0", &none),
        None,
        "computed from what is, not from counters"
    );
    assert!(settled("receive-window", "eth1", "eth0", &none).unwrap().contains("evenkeel tune eth1"));
}
