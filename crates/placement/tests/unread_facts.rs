//! Tests of facts that could not be read and that rules use for a part of their verdict. A finding
//! counts only if it does not depend on the value of such facts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;

use evenkeel_model::host::{
    Feature, HostFacts, Interface, InterfaceKind, Interrupt, PacketSizes, Processor, ProcessorTime,
    ReceiveQueue, Unknown,
};
use evenkeel_placement::{Finding, Judgement, Severity, judge, rules};

/// Rules whose findings depend on TCP's share of the packets.
const OF_TCP: [&str; 4] = ["mtu-standard", "send-window", "socket-limits", "big-tcp-off"];
const RECEIVED: &str = "/sys/class/net/eth0/statistics/rx_packets";
const SENT: &str = "/sys/class/net/eth0/statistics/tx_packets";
const SNMP: &str = "/proc/net/snmp";
const ISOLATED: &str = "/sys/devices/system/cpu/isolated";

/// Creates a host of two packages with 8 processors each. Its NIC of 100 Gbit/s is on the first
/// package, and processor 15 serves its interrupts.
fn host() -> HostFacts {
    let statistics = [
        ("rx_packets", 2_000_000_000),
        ("tx_packets", 1_000_000_000),
        ("rx_bytes", 1 << 44),
        ("tx_bytes", 1 << 40),
    ];
    let off = Feature { on: false, fixed: false };
    let nic = Interface {
        name: "eth0".to_owned(),
        kind: InterfaceKind::Device,
        up: true,
        node: Some(0),
        speed_bps: Some(100_000_000_000),
        mtu: Some(1500),
        statistics: statistics.map(|(name, value)| (name.to_owned(), value)).into(),
        features: [("rx-gro".to_owned(), off)].into(),
        packet_sizes: Some(PacketSizes {
            gso: 65_536,
            gro: 65_536,
            tso: Some(524_280),
            ..PacketSizes::default()
        }),
        receive_queues: vec![ReceiveQueue::default(); 4],
        ..Interface::default()
    };
    let processor = |number: u32| Processor {
        number,
        node: number / 8,
        package: number / 8,
        core: number % 8,
        siblings: vec![number],
        time: Some(ProcessorTime {
            total: 8_640_000,
            softirq: if number == 15 { 4_320_000 } else { 10 },
            ..ProcessorTime::default()
        }),
        ..Processor::default()
    };
    let interrupt = |queue: u32| Interrupt {
        number: 100 + queue,
        interface: "eth0".to_owned(),
        queue: Some(queue),
        receives: true,
        affinity: (0..16).collect(),
        effective: vec![15],
        served: vec![(15, 200_000_000)],
        ..Interrupt::default()
    };
    let sysctls = [
        ("net/ipv4/tcp_wmem", "4096 16384 4194304"),
        ("net/core/rmem_max", "212992"),
        ("net/core/wmem_max", "212992"),
    ];
    HostFacts {
        kernel: Some("6.8.0".to_owned()),
        uptime_s: Some(86_400),
        page_bytes: 4096,
        interfaces: vec![nic],
        processors: (0..16).map(processor).collect(),
        interrupts: (0..4).map(interrupt).collect(),
        sysctls: sysctls.map(|(path, value)| (path.to_owned(), value.to_owned())).into(),
        counters: [("Tcp.InSegs".to_owned(), 2_000_000_000), ("Tcp.OutSegs".to_owned(), 900_000_000)].into(),
        ..HostFacts::default()
    }
}

fn without(files: &[&str]) -> HostFacts {
    let mut facts = host();
    for file in files {
        facts.unknown.push(Unknown::new(*file, format!("{file}: unreadable")));
        let counter = file.rsplit('/').next().unwrap();
        facts.interfaces[0].statistics.remove(counter);
        if *file == SNMP {
            facts.counters.clear();
        }
    }
    facts
}

fn found<'j>(judgement: &'j Judgement, rule: &str) -> Option<&'j Finding> {
    judgement.findings.iter().find(|finding| finding.rule == rule)
}

fn why<'j>(judgement: &'j Judgement, rule: &str) -> Option<&'j str> {
    judgement.not_judged.iter().find(|missed| missed.rule == rule).map(|missed| missed.why.as_str())
}

#[test]
fn limits_of_tcp_are_not_judged_if_its_share_is_unknown() {
    let whole = judge(&host());
    for rule in OF_TCP {
        assert!(found(&whole, rule).is_some() && why(&whole, rule).is_none(), "{rule}");
    }
    for files in [&[RECEIVED][..], &[SENT], &[RECEIVED, SENT], &[SNMP]] {
        let judgement = judge(&without(files));
        for rule in OF_TCP {
            assert_eq!(found(&judgement, rule), None, "{rule} without {files:?}");
            assert!(
                why(&judgement, rule).is_some_and(|why| why.contains(files[0])),
                "{rule} without {files:?}"
            );
        }
    }
    // The verdict about a router does not depend on the unreadable counter: the sent packets alone are
    // more than twenty times the segments of TCP.
    let mut router = without(&[RECEIVED]);
    router.counters = [("Tcp.InSegs".to_owned(), 100), ("Tcp.OutSegs".to_owned(), 100)].into();
    let judgement = judge(&router);
    for rule in OF_TCP {
        assert!(found(&judgement, rule).is_none(), "{rule}");
    }
}

#[test]
fn an_unreadable_figure_is_not_in_the_evidence() {
    let evidence = |facts: &HostFacts| found(&judge(facts), "gro-off").unwrap().evidence.clone();
    let rates = "; it received 23,148 packets per second since boot and sent 11,574;";
    assert!(evidence(&host()).contains(rates), "{}", evidence(&host()));
    let sent = evidence(&without(&[RECEIVED]));
    assert!(sent.contains("; it sent 11,574 packets per second since boot;"), "{sent}");
    assert!(!sent.contains("received"), "{sent}");
    let received = evidence(&without(&[SENT]));
    assert!(received.contains("; it received 23,148 packets per second since boot;"), "{received}");
    // The age of a namespace that was made after boot is unknown.
    let mut later = host();
    later.is_later_namespace = true;
    assert!(!evidence(&later).contains("since boot"), "{}", evidence(&later));
    assert!(!evidence(&without(&[RECEIVED, SENT])).contains(" 0 "), "{received}");
}

#[test]
fn an_unreadable_load_raises_no_severity() {
    let severity = |mut facts: HostFacts| {
        facts.processors.iter_mut().for_each(|processor| processor.time = None);
        found(&judge(&facts), "gro-off").unwrap().severity
    };
    assert_eq!(severity(host()), Severity::Medium);
    assert_eq!(severity(without(&[RECEIVED, SENT])), Severity::Medium, "the bytes show a load");
    let all = ["rx_packets", "tx_packets", "rx_bytes", "tx_bytes"];
    let all = all.map(|name| format!("/sys/class/net/eth0/statistics/{name}"));
    assert_eq!(severity(without(&all.each_ref().map(String::as_str))), Severity::Low);
}

/// A finding that does not depend on isolated processors stays. Its changes depend on isolated
/// processors: no change may move an interrupt to an isolated processor.
#[test]
fn no_interrupt_is_moved_if_the_isolated_processors_are_unknown() {
    let whole = judge(&host());
    assert!(!found(&whole, "irq-remote-node").unwrap().remedy.changes.is_empty());
    let judgement = judge(&without(&[ISOLATED]));
    let remote = found(&judgement, "irq-remote-node").unwrap();
    assert_eq!((remote.severity, remote.remedy.changes.len()), (Severity::High, 0));
    assert!(remote.remedy.advice.as_ref().unwrap().contains(ISOLATED), "{remote:?}");
    assert!(why(&judgement, "irq-on-isolated").is_some_and(|why| why.contains(ISOLATED)));
    // The file of isolated processors contains neither the governors nor the topology.
    assert_eq!(why(&judgement, "irq-smt-twins"), None);
}

#[test]
fn each_rule_is_judged_or_not() {
    for files in [&[][..], &[RECEIVED], &[ISOLATED], &[SNMP], &["/sys/class/net/eth0/mtu", "/proc/stat"]] {
        let judgement = judge(&without(files));
        assert_eq!(judgement.judged + judgement.not_judged.len(), rules().count(), "{files:?}");
        let with_findings: BTreeSet<&str> = judgement.findings.iter().map(|finding| finding.rule).collect();
        for missed in &judgement.not_judged {
            assert!(!with_findings.contains(missed.rule), "{missed:?} without {files:?}");
        }
    }
}

/// The counters of IPv4 show the loss.
#[test]
fn a_missing_counter_of_ipv6_hides_no_loss() {
    let mut facts = host();
    facts.counters.extend(
        [("Udp.InDatagrams", 10_000_000), ("Udp.RcvbufErrors", 1_000_000), ("Udp.InErrors", 1_000_000)]
            .map(|(name, value)| (name.to_owned(), value)),
    );
    assert!(found(&judge(&facts), "udp-receive-buffer").is_some());
    let counter = "/proc/net/snmp6/Snmp6.Udp6InDatagrams";
    facts.unknown.push(Unknown::new(counter, "/proc/net/snmp6 has no counter Snmp6.Udp6InDatagrams"));
    let judgement = judge(&facts);
    assert!(found(&judgement, "udp-receive-buffer").is_some(), "{:?}", judgement.not_judged);
}
