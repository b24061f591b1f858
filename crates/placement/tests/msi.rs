//! Tests of hosts whose kernel was started without message-signalled interrupts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use evenkeel_model::host::{
    HostFacts, Interface, InterfaceKind, Interrupt, LossCounters, Processor, ProcessorTime, ReceiveQueue,
};
use evenkeel_placement::{Basis, Finding, Severity, check};

/// Creates a virtual machine of four processors. The only interrupt of its NIC comes from a pin of the
/// IO-APIC and goes to processor 1. This processor spends `softirq` percent of its time in softirqs.
fn host(word: &str, softirq: u64, lost: u64) -> HostFacts {
    let time = |softirq: u64| {
        Some(ProcessorTime { total: 1000, idle: 1000 - softirq * 10, softirq: softirq * 10, steal: 0 })
    };
    let processors = (0..4).map(|number| Processor {
        number,
        core: number,
        siblings: vec![number],
        time: time(if number == 1 { softirq } else { 1 }),
        ..Processor::default()
    });
    let statistics = [("rx_packets", 5_000_000_000), ("tx_packets", 5_000_000_000)];
    let nic = Interface {
        name: "eth0".to_owned(),
        kind: InterfaceKind::Device,
        up: true,
        speed_bps: Some(10_000_000_000),
        mtu: Some(1500),
        receive_queues: vec![ReceiveQueue::default()],
        statistics: statistics.map(|(name, value)| (name.to_owned(), value)).into(),
        losses: LossCounters { ring: Some(lost), ..LossCounters::default() },
        ..Interface::default()
    };
    let line = Interrupt {
        number: 19,
        chip: "IO-APIC".to_owned(),
        action: "eth0".to_owned(),
        interface: "eth0".to_owned(),
        queue: Some(0),
        receives: true,
        affinity: vec![1],
        served: vec![(1, 900_000_000)],
        ..Interrupt::default()
    };
    HostFacts {
        virtual_machine: true,
        uptime_s: Some(100_000),
        command_line: vec![word.to_owned()],
        processors: processors.collect(),
        interfaces: vec![nic],
        interrupts: vec![line],
        ..HostFacts::default()
    }
}

fn found(facts: &HostFacts, rule: &str) -> Option<Finding> {
    check(facts).into_iter().find(|finding| finding.rule == rule)
}

#[test]
fn msi_off_is_high_with_load_and_loss() {
    let judged = |softirq, lost| {
        let finding = found(&host("pci=nomsi", softirq, lost), "msi-off").unwrap();
        (finding.severity, finding.basis)
    };
    assert_eq!(judged(90, 500_000), (Severity::High, Basis::Measured));
    assert_eq!(judged(90, 0), (Severity::Medium, Basis::Setting));
    assert_eq!(judged(5, 500_000), (Severity::Medium, Basis::Setting));
    let finding = found(&host("pci=noaer,nomsi", 90, 500_000), "msi-off").unwrap();
    let words = "pci=noaer,nomsi is on the kernel's command line: the NIC has only interrupt 19 of the IO-APIC, and 1 receive queue for 4 processors";
    assert!(finding.evidence.contains(words), "{}", finding.evidence);
}

#[test]
fn other_words_and_other_interrupts_are_no_fault() {
    for word in ["pci=noaer", "pci=nomsix", "nomsi", "xpci=nomsi"] {
        assert!(found(&host(word, 90, 500_000), "msi-off").is_none(), "{word}");
    }
    let mut signalled = host("pci=nomsi", 90, 500_000);
    signalled.interrupts[0].chip = "PCI-MSI".to_owned();
    assert!(found(&signalled, "msi-off").is_none());
    let mut single = host("pci=nomsi", 90, 500_000);
    single.processors.truncate(1);
    assert!(found(&single, "msi-off").is_none());
}

/// Packet steering and a longer ring are not the first advice where MSI is off.
#[test]
fn msi_comes_before_packet_steering_and_the_ring() {
    let facts = host("pci=nomsi", 90, 500_000);
    let rules: Vec<&str> = check(&facts).iter().map(|finding| finding.rule).collect();
    let place = |name: &str| rules.iter().position(|rule| *rule == name).unwrap();
    assert!(place("msi-off") < place("rps-missing"), "{rules:?}");
    for rule in ["rps-missing", "rx-ring-drops"] {
        let advice = found(&facts, rule).unwrap().remedy.advice.unwrap();
        assert!(advice.starts_with("first the cause (msi-off)"), "{rule}: {advice}");
    }
    let without = found(&host("", 90, 500_000), "rps-missing").unwrap();
    assert!(!without.evidence.contains("MSI") && without.remedy.advice.is_none(), "{without:?}");
}
