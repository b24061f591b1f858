//! Tests `evenkeel check` on hosts that look faulty but are not. `check` must find nothing, or nothing
//! with too high a severity.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/hosts.rs"]
mod hosts;

use evenkeel_host::facts::complete;
use evenkeel_model::host::{Feature, HostFacts, Interrupt};
use evenkeel_placement::{Finding, Severity, check};
use evenkeel_synthetic::{HostBuilder, NicOptions};
use hosts::{connection, nic_mut, process};

fn findings(mut facts: HostFacts) -> Vec<Finding> {
    complete(&mut facts);
    check(&facts)
}

fn find<'f>(findings: &'f [Finding], rule: &str) -> Option<&'f Finding> {
    findings.iter().find(|finding| finding.rule == rule)
}

/// Makes a host idle: about one packet per second since boot.
fn idle(facts: &mut HostFacts) {
    for interface in &mut facts.interfaces {
        for name in ["rx_packets", "tx_packets", "rx_bytes", "tx_bytes"] {
            interface.statistics.insert(name.to_owned(), 100_000);
        }
    }
    for processor in &mut facts.processors {
        processor.time.as_mut().unwrap().softirq = 1000;
    }
}

fn serve(interrupt: &mut Interrupt, processor: u32) {
    let total = interrupt.total();
    (interrupt.affinity, interrupt.effective) = (vec![processor], vec![processor]);
    interrupt.served = vec![(processor, total)];
}

#[test]
fn an_idle_host_has_nothing_grave() {
    let mut facts = hosts::HOSTS[0].1();
    facts.sockets.clear();
    facts.processes.clear();
    for (at, interrupt) in facts.interrupts.iter_mut().enumerate() {
        serve(interrupt, at as u32);
    }
    for name in ["rx-gro", "tx-tcp-segmentation"] {
        nic_mut(&mut facts).unwrap().features.get_mut(name).unwrap().on = false;
    }
    facts.processors.iter_mut().for_each(|processor| processor.time.as_mut().unwrap().softirq = 4_000_000);
    let loaded = findings(facts.clone());
    for rule in ["irq-remote-node", "gro-off", "tso-off"] {
        assert_eq!(find(&loaded, rule).unwrap().severity, Severity::High, "{rule}");
    }
    let mut merging = facts.clone();
    let features = &mut nic_mut(&mut merging).unwrap().features;
    features.insert("rx-gro-hw".to_owned(), Feature { on: true, fixed: false });
    let found = findings(merging);
    let gro = find(&found, "gro-off").unwrap();
    assert_eq!((gro.severity, gro.evidence.ends_with(", rx-gro-hw is on")), (Severity::Low, true), "{gro:?}");
    idle(&mut facts);
    let found = findings(facts);
    assert!(found.iter().all(|finding| finding.severity == Severity::Low), "{found:#?}");
    let remote = find(&found, "irq-remote-node").unwrap();
    assert!(remote.evidence.contains("it received 1 packets/s since boot"), "{remote:?}");
}

/// The host has one package with four nodes, as an EPYC may have. The NIC's interrupts are spread over the
/// package.
#[test]
fn nodes_of_one_package_are_not_sockets() {
    let nic = NicOptions { node: Some(1), queues: (16, 63), ..hosts::MLX5 };
    let mut facts = HostBuilder::new(4, 16, 2).power("acpi-cpufreq", "performance").nic(&nic).build();
    for processor in &mut facts.processors {
        (processor.package, processor.core) = (0, processor.number % 64);
    }
    for (at, interrupt) in facts.interrupts.iter_mut().enumerate() {
        serve(interrupt, at as u32 * 4);
    }
    process(&mut facts, 900, "reader", &[60, 61]);
    connection(&mut facts, "10.0.0.1:443", "10.0.0.9:5555", 500, 9_000_000_000, 900);
    let found = findings(facts.clone());
    let remote = find(&found, "irq-remote-node").unwrap();
    assert_eq!(remote.severity, Severity::Low, "{remote:?}");
    assert!(remote.evidence.contains("other nodes of the same package"), "{remote:?}");
    assert_eq!(find(&found, "app-remote-node"), None);
    // Use the same host with two packages.
    for processor in &mut facts.processors {
        processor.package = processor.node / 2;
    }
    let found = findings(facts);
    assert_eq!(find(&found, "irq-remote-node").unwrap().severity, Severity::High);
    assert_eq!(find(&found, "app-remote-node").unwrap().severity, Severity::High);
}

/// The NIC has more queues than its node has cores, so interrupts must use other nodes of the package,
/// too.
#[test]
fn interrupts_use_other_nodes_of_the_package_where_the_own_has_too_few_cores() {
    let on_other_nodes = |queues: u32| {
        let nic = NicOptions { node: Some(1), queues: (queues, 63), ..hosts::MLX5 };
        let mut facts = HostBuilder::new(4, 8, 2).power("acpi-cpufreq", "performance").nic(&nic).build();
        for processor in &mut facts.processors {
            (processor.package, processor.core) = (0, processor.number % 32);
        }
        // Node 2 has CPUs 16 to 23, node 3 has CPUs 24 to 31.
        for (at, interrupt) in (0..).zip(&mut facts.interrupts) {
            serve(interrupt, 16 + at);
        }
        find(&findings(facts), "irq-remote-node").map(|finding| finding.severity)
    };
    assert_eq!(on_other_nodes(8), Some(Severity::Low));
    assert_eq!(on_other_nodes(9), None);
    let rule = evenkeel_placement::find_rule("irq-remote-node").unwrap();
    assert!(rule.fires_when.contains("although the NIC's node has a free core for each queue"));
}

/// Two management ports have one interrupt each on the same CPU, with a few packets per second.
#[test]
fn idle_ports_on_one_processor_are_not_full() {
    let port = |name: &'static str, bus: &'static str, action: &'static str| NicOptions {
        name,
        driver: "igb",
        bus,
        node: None,
        speed_mbps: Some(1000),
        pcie: None,
        queues: (1, 1),
        ring: 256,
        mtu: 1500,
        action,
    };
    let mut facts = HostBuilder::new(1, 8, 2)
        .nic(&port("eno1", "0000:03:00.0", "eno1"))
        .nic(&port("eno2", "0000:03:00.1", "eno2"))
        .build();
    for interrupt in &mut facts.interrupts {
        serve(interrupt, 0);
    }
    facts.processors[0].time.as_mut().unwrap().softirq = 2_000_000;
    assert!(find(&findings(facts.clone()), "irq-one-processor").is_some());
    idle(&mut facts);
    let found = findings(facts);
    assert_eq!(find(&found, "irq-one-processor"), None, "{found:#?}");
}

#[test]
fn processors_that_share_the_queues_evenly_are_no_bottleneck() {
    let nic = NicOptions { node: Some(0), queues: (16, 63), ..hosts::MLX5 };
    let mut facts = HostBuilder::new(2, 64, 1).power("acpi-cpufreq", "performance").nic(&nic).build();
    for processor in &mut facts.processors {
        let softirq = if processor.number < 16 { 4_000_000 } else { 10_000 };
        processor.time.as_mut().unwrap().softirq = softirq;
    }
    let found = findings(facts);
    assert_eq!(find(&found, "softirq-one-processor"), None, "{found:#?}");
}

/// Eight flows are hashed to sixteen queues at random. In 88 % of all cases, at least two flows share a
/// queue.
#[test]
fn flows_that_meet_by_chance_are_not_reported() {
    let mut facts = hosts::HOSTS[0].1();
    facts.sockets.clear();
    for port in 0..8 {
        let remote = format!("10.0.0.9:{}", 40_000 + 517 * port);
        connection(&mut facts, "10.0.0.1:5201", &remote, 200, 5_000_000_000, 4000);
    }
    let found = findings(facts);
    assert_eq!(find(&found, "flows-collide"), None, "{found:#?}");
}

#[test]
fn bbr_does_not_slow_down_after_a_pause() {
    let mut facts = hosts::HOSTS[0].1();
    connection(&mut facts, "10.0.0.1:443", "192.0.2.9:5555", 60_000, 60_000_000, 4000);
    assert!(find(&findings(facts.clone()), "slow-start-idle").is_some());
    facts.sysctls.insert("net/ipv4/tcp_congestion_control".to_owned(), "bbr".to_owned());
    assert_eq!(find(&findings(facts), "slow-start-idle"), None);
}

/// The CPU chooses its frequency. With the preference `performance`, the governor powersave has the
/// same effect as the governor `performance`.
#[test]
fn the_energy_preference_counts_where_the_processor_chooses() {
    let mut facts = hosts::HOSTS[0].1();
    for processor in &mut facts.processors {
        processor.governor = Some("powersave".to_owned());
        processor.energy_preference = Some("performance".to_owned());
    }
    assert_eq!(find(&findings(facts.clone()), "governor"), None);
    // A passive driver ignores the preference: with powersave, the CPU stays at the lowest frequency.
    for processor in &mut facts.processors {
        processor.frequency_driver = Some("amd-pstate".to_owned());
    }
    let found = findings(facts);
    let governor = find(&found, "governor").unwrap();
    assert_eq!(governor.severity, Severity::High);
    assert!(governor.effect.contains("lowest frequency under any load"), "{}", governor.effect);
}

/// The NIC has 64 queues and its node has 16 cores. The plan reduces the channels, and changes no
/// settings of the removed queues.
#[test]
fn more_queues_than_cores_are_reduced_before_interrupts_move() {
    let nic = NicOptions { node: Some(1), queues: (64, 64), ..hosts::MLX5 };
    let mut facts = HostBuilder::new(2, 16, 2).power("acpi-cpufreq", "performance").nic(&nic).build();
    for (at, interrupt) in facts.interrupts.iter_mut().enumerate() {
        serve(interrupt, at as u32 % 16);
    }
    let found = findings(facts);
    let lines = find(&found, "irq-remote-node").unwrap().remedy.lines();
    assert_eq!(lines[0], "ethtool -L ens2f0 combined 16");
    assert!(lines.len() <= 17, "{lines:#?}");
}

/// Three of 24 queues have heavy flows. Each queue has its own CPU.
#[test]
fn a_few_busy_queues_on_processors_of_their_own_are_no_bottleneck() {
    let nic = NicOptions { node: Some(0), queues: (24, 63), ..hosts::MLX5 };
    let mut facts = HostBuilder::new(1, 24, 1).power("acpi-cpufreq", "performance").nic(&nic).build();
    let busy = [3, 9, 20];
    for (at, interrupt) in (0..).zip(&mut facts.interrupts) {
        serve(interrupt, at);
        interrupt.served = vec![(at, if busy.contains(&at) { 400_000_000 } else { 1_000_000 })];
    }
    for processor in &mut facts.processors {
        let softirq = if busy.contains(&processor.number) { 8_000_000 } else { 10_000 };
        processor.time.as_mut().unwrap().softirq = softirq;
    }
    assert_eq!(find(&findings(facts.clone()), "irq-one-processor"), None);
    // Apply the same load with three CPUs that serve eight queues each.
    for (at, interrupt) in (0..).zip(&mut facts.interrupts) {
        serve(interrupt, busy[at % 3]);
        interrupt.served = vec![(busy[at % 3], 50_000_000)];
    }
    assert!(find(&findings(facts), "irq-one-processor").is_some());
}

/// One CPU served all packets counted since boot. Later the interrupts were spread over other CPUs.
#[test]
fn interrupts_that_were_spread_since_are_history() {
    let nic = NicOptions { node: Some(0), queues: (8, 63), ..hosts::MLX5 };
    let mut facts = HostBuilder::new(1, 16, 1).power("acpi-cpufreq", "performance").nic(&nic).build();
    for (at, interrupt) in (0..).zip(&mut facts.interrupts) {
        serve(interrupt, at);
        interrupt.served = vec![(15, 50_000_000)];
    }
    let found = findings(facts.clone());
    let history = find(&found, "irq-one-processor").unwrap();
    assert!(
        history.evidence.contains("the counts are from the past") && history.severity == Severity::Low,
        "{history:?}"
    );
    // One of the eight interrupts has stayed on its CPU.
    serve(&mut facts.interrupts[0], 15);
    let found = findings(facts.clone());
    let history = find(&found, "irq-one-processor").unwrap();
    assert!(
        history.evidence.contains("now 1 of these interrupts go there") && history.severity == Severity::Low,
        "{history:?}"
    );
    for interrupt in &mut facts.interrupts {
        serve(interrupt, 15);
    }
    let now = findings(facts);
    assert!(find(&now, "irq-one-processor").unwrap().severity > Severity::Low);
}

/// Half duplex causes the low link speed: one finding names both.
#[test]
fn half_duplex_names_the_slow_link() {
    let mut facts = hosts::HOSTS[0].1();
    let nic = facts.interfaces.iter_mut().find(|nic| nic.speed_bps.is_some()).unwrap();
    (nic.speed_bps, nic.supported_bps) = (Some(10_000_000_000), Some(100_000_000_000));
    nic.duplex = Some("half".to_owned());
    let found = findings(facts);
    assert_eq!(find(&found, "link-slow"), None);
    let evidence = &find(&found, "link-half-duplex").unwrap().evidence;
    assert!(evidence.contains("the link runs at 10 Gbit/s, the NIC supports 100 Gbit/s"), "{evidence}");
}

#[test]
fn a_router_needs_no_early_demux() {
    let mut facts = hosts::HOSTS[0].1();
    for (name, value) in [("ip_forward", "0"), ("tcp_early_demux", "0"), ("udp_early_demux", "0")] {
        facts.sysctls.insert(format!("net/ipv4/{name}"), value.to_owned());
    }
    let demux = |facts: &HostFacts| {
        let found = findings(facts.clone());
        found.iter().filter(|finding| finding.evidence.contains("early_demux")).count()
    };
    assert_eq!(demux(&facts), 2);
    facts.sysctls.insert("net/ipv4/ip_forward".to_owned(), "1".to_owned());
    assert_eq!(demux(&facts), 0);
}
