#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use crate::applied::set;
use crate::current::current;
use crate::finding::{Basis, Remedy};
use evenkeel_model::change::{Channels, Ring, Value};
use evenkeel_model::host::{
    Channels as Counts, Feature, Interface, InterfaceKind, Interrupt, Processor, ReceiveQueue, Rss,
    TransmitQueue,
};

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

fn plan(findings: &[Finding], keep: &str, only: &[&str]) -> TuningPlan {
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
    let plan = plan(&findings, "", &[]);
    assert_eq!(plan.items.iter().map(|item| item.rule).collect::<Vec<_>>(), ["ring", "windows", "queues"]);
    // Channels first, because they restart everything; sysctls last.
    assert_eq!(plan.steps.iter().map(|step| step.rule).collect::<Vec<_>>(), ["queues", "ring", "windows"]);
    assert_eq!(plan.steps[1].change, ring(4096));
    assert_eq!(plan.items[0].evidence, ["eth0: evidence of ring"]);
    assert!(plan.left.is_empty());
    assert_eq!(TuningPlan::new(&host(), &[], "eth0", &Keep::default(), &[]), TuningPlan::default());
}

#[test]
fn settings_of_another_interface_are_left() {
    let filter = |name: &str| sysctl(&format!("net/ipv4/conf/{name}/rp_filter"), "2");
    let place = |number| Change::new(Knob::InterruptAffinity(number), Value::Text("1".to_owned()));
    let findings = [
        finding("filter", Severity::Low, None, vec![filter("eth0"), filter("eth1"), filter("all")]),
        finding("spread", Severity::Low, None, vec![place(30), place(31)]),
    ];
    let interrupt = |number, interface: &str| Interrupt {
        number,
        interface: interface.to_owned(),
        ..Interrupt::default()
    };
    let facts = HostFacts { interrupts: vec![interrupt(30, "eth0"), interrupt(31, "eth1")], ..host() };
    let plan = TuningPlan::new(&facts, &findings, "eth0", &Keep::default(), &[]);
    let made: Vec<&Change> = plan.steps.iter().map(|step| &step.change).collect();
    assert_eq!(made, [&place(30), &filter("eth0"), &filter("all")]);
    let left: Vec<&Change> = plan.left.iter().map(|left| &left.change).collect();
    assert_eq!(left, [&filter("eth1"), &place(31)]);
    assert_eq!(plan.left[0].why, "the setting belongs to eth1");
}

#[test]
fn what_is_asked_for_is_all_that_is_done() {
    let findings = [
        finding("ring", Severity::High, Some("eth0"), vec![ring(4096)]),
        finding("windows", Severity::Medium, None, vec![sysctl("net/ipv4/tcp_rmem", "1 2 3")]),
    ];
    let one = plan(&findings, "", &["windows"]);
    assert_eq!(one.steps.iter().map(|step| step.rule).collect::<Vec<_>>(), ["windows"]);
    assert_eq!(plan(&[], "", &["ring"]), TuningPlan::default());
}

#[test]
fn what_an_administrator_keeps_is_left_and_said() {
    let findings = [
        finding("ring", Severity::High, Some("eth0"), vec![ring(4096)]),
        finding("windows", Severity::Medium, None, vec![sysctl("net/core/rmem_max", "5")]),
    ];
    let plan = plan(&findings, "keep = [\"sysctl net.core.*\"]", &[]);
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
    let plan = plan(&findings, "", &[]);
    assert_eq!(plan.steps.len(), 1);
    assert_eq!(plan.steps[0].rule, "two");
    assert_eq!(
        (plan.left.len(), plan.left[0].rule, plan.left[0].why.as_str()),
        (1, "one", "the rule two sets this setting to '2'")
    );
}

#[test]
fn what_was_raised_is_raised_again_only_while_packets_are_lost() {
    for rule in GROWING {
        assert!(crate::find_rule(rule).is_some(), "{rule}");
    }
    let none = BTreeSet::new();
    assert!(settled("backlog-drops", "eth0", "eth0", &none).unwrap().contains("already raised this setting"));
    assert_eq!(settled("backlog-drops", "eth0", "eth0", &["backlog-drops"].into()), None);
    assert_eq!(
        settled("receive-window", "eth0", "eth0", &none),
        None,
        "computed from what is, not from counters"
    );
    assert!(settled("receive-window", "eth1", "eth0", &none).unwrap().contains("evenkeel tune eth1"));
}

fn nic_of_four() -> HostFacts {
    let queue =
        |number| TransmitQueue { has_xps: true, xps_processors: vec![number], ..TransmitQueue::default() };
    let interrupt = |number: u32| Interrupt {
        number: 40 + number,
        action: format!("eth0-{number}"),
        interface: "eth0".to_owned(),
        queue: Some(number),
        receives: true,
        affinity: vec![number],
        ..Interrupt::default()
    };
    let nic = Interface {
        name: "eth0".to_owned(),
        kind: InterfaceKind::Device,
        up: true,
        channels: Some(Counts { combined: 4, combined_max: 8, ..Counts::default() }),
        rss: Some(Rss { indirection: vec![3, 2, 1, 0], ..Rss::default() }),
        receive_queues: vec![ReceiveQueue { rps: vec![1, 2], rps_flow_count: 0 }; 4],
        transmit_queues: (0..4).map(queue).collect(),
        ..Interface::default()
    };
    let processor = |number| Processor { number, core: number, ..Processor::default() };
    HostFacts {
        processors: (0..4).map(processor).collect(),
        interfaces: vec![nic],
        interrupts: (0..4).map(interrupt).collect(),
        ..HostFacts::default()
    }
}

#[test]
fn undo_gives_queues_back_that_went_with_their_channels() {
    let before = nic_of_four();
    let made = [
        Change::new(Knob::Channels(Channels::Combined), Value::Number(2)),
        Change::new(Knob::InterruptAffinity(41), Value::Text("3".to_owned())),
    ];
    let mut after = before.clone();
    for Change { knob, to } in &made {
        assert!(set(&mut after, Some("eth0"), knob, to));
    }
    let back = undo(&before, &after, "eth0", &made);
    assert_eq!(back[0], Change::new(Knob::Channels(Channels::Combined), Value::Number(4)));
    let mut now = after;
    for Change { knob, to } in &back {
        assert!(set(&mut now, Some("eth0"), knob, to), "{knob:?}");
    }
    now.interrupts.iter_mut().for_each(|interrupt| interrupt.effective.clear());
    assert_eq!(now, before);
    let lost = of_queues(&before, "eth0", &made[..1]);
    assert!(lost.iter().any(|change| change.knob == Knob::InterruptAffinity(43)), "{lost:?}");
    assert!(!lost.iter().any(|change| change.knob == Knob::InterruptAffinity(41)), "{lost:?}");
}

/// The facts lack the files of queues that the channels add, but the plan knows these files.
#[test]
fn queues_that_the_channels_add_get_maps_and_go_with_the_undo() {
    let mut before = nic_of_four();
    let nic = &mut before.interfaces[0];
    nic.speed_bps = Some(100_000_000_000);
    nic.transmit_queues.iter_mut().for_each(|queue| queue.xps_processors.clear());
    set(&mut before, Some("eth0"), &Knob::Channels(Channels::Combined), &Value::Number(1));
    before.interfaces[0].transmit_queues[0].has_xps = true;
    let plan = TuningPlan::settle(&before, "eth0", &Keep::default(), &[]);
    let is_file =
        |step: &&Step| matches!(&step.change.knob, Knob::InterfaceFile(file) if file.ends_with("xps_cpus"));
    let mapped: Vec<Knob> = plan.steps.iter().filter(is_file).map(|step| step.change.knob.clone()).collect();
    let all = [0, 1, 2, 3].map(|queue| Knob::InterfaceFile(format!("queues/tx-{queue}/xps_cpus")));
    assert_eq!(mapped, all, "{plan:?}");
    let made: Vec<Change> = plan.steps.into_iter().map(|step| step.change).collect();
    assert!(matches!(made[0].knob, Knob::Channels(_)), "{made:?}");
    let mut after = before.clone();
    assert!(crate::applied::apply(&mut after, Some("eth0"), &made));
    let is_of_maps = |finding: &Finding| finding.rule.starts_with("xps-");
    assert!(!crate::check(&after).iter().any(is_of_maps));
    let back = undo(&before, &after, "eth0", &made);
    assert!(crate::applied::apply(&mut after, Some("eth0"), &back));
    assert_eq!(after.interfaces, before.interfaces);
}

#[test]
fn a_change_without_a_way_back_is_left_and_said() {
    let mut facts = nic_of_four();
    facts.counters.insert("TcpExt.IPReversePathFilter".to_owned(), 1_000_000);
    facts.sysctls.insert("net/ipv4/conf/all/rp_filter".to_owned(), "1".to_owned());
    let knob = Knob::Sysctl("net/ipv4/conf/eth0/rp_filter".to_owned());
    let plan = TuningPlan::settle(&facts, "eth0", &Keep::default(), &[]);
    assert!(!plan.steps.iter().any(|step| step.change.knob == knob), "{plan:?}");
    let left = plan.left.iter().find(|left| left.change.knob == knob).unwrap();
    assert!(left.why.contains("could not be restored"), "{left:?}");
    facts.sysctls.insert("net/ipv4/conf/eth0/rp_filter".to_owned(), "0".to_owned());
    let plan = TuningPlan::settle(&facts, "eth0", &Keep::default(), &[]);
    assert!(plan.steps.iter().any(|step| step.change.knob == knob), "{plan:?}");
}

#[test]
fn features_come_after_those_that_they_need() {
    let mut facts = nic_of_four();
    for name in
        ["tx-tcp-segmentation", "tx-generic-segmentation", "tx-scatter-gather", "tx-checksum-ip-generic"]
    {
        facts.interfaces[0].features.insert(name.to_owned(), Feature { on: false, fixed: false });
    }
    let plan = TuningPlan::settle(&facts, "eth0", &Keep::default(), &[]);
    let place =
        |name: &str| plan.steps.iter().position(|step| step.change.knob == Knob::Feature(name.to_owned()));
    let gather = place("tx-scatter-gather");
    assert!(gather.is_some() && place("tx-checksum-ip-generic") < gather, "{plan:?}");
    assert!(gather < place("tx-tcp-segmentation") && gather < place("tx-generic-segmentation"), "{plan:?}");
}

#[test]
fn what_others_depend_on_comes_first() {
    let file = Knob::InterfaceFile("queues/tx-0/xps_cpus".to_owned());
    let order = [
        Knob::Channels(Channels::Rx),
        Knob::Ring(Ring::Rx),
        Knob::RssTable,
        Knob::InterruptAffinity(1),
        file,
        Knob::RootQdisc,
        Knob::Sysctl("x".to_owned()),
    ];
    assert!(order.map(|knob| stage(&knob)).is_sorted());
    assert!(stage(&Knob::Sysctl("x".to_owned())) <= LAST_STAGE);
    let mut facts = nic_of_four();
    facts.interfaces[0].features.insert("rx-gro".to_owned(), Feature { on: false, fixed: false });
    let plan = TuningPlan::settle(&facts, "eth0", &Keep::default(), &[]);
    assert!(plan.steps.iter().map(|step| stage(&step.change.knob)).is_sorted());
    let knob = Knob::Feature("rx-gro".to_owned());
    assert_eq!(current(&facts, Some("eth0"), &knob), Some(Value::Switch(false)));
    assert!(plan.steps.iter().any(|step| step.change.knob == knob), "{plan:?}");
}
