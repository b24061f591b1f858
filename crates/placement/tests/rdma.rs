//! Tests of RDMA over a network without flow control, and of losses in front of the ring.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use evenkeel_model::host::{HostFacts, Interface, InterfaceKind, LossCounters, Pause, PcieLink, Rings};
use evenkeel_placement::{Finding, Severity, check};

/// Creates a host with a NIC of 100 Gbit/s and a short ring. The NIC received a billion packets for the
/// kernel and `rdma` RDMA packets, and lost `lost` packets in front of the ring.
fn host(rdma: u64, lost: u64) -> HostFacts {
    let statistics = [("rx_packets", 1_000_000_000), ("tx_packets", 1_000_000_000)];
    let nic = Interface {
        name: "eth0".to_owned(),
        kind: InterfaceKind::Device,
        driver: Some("mlx5_core".to_owned()),
        up: true,
        speed_bps: Some(100_000_000_000),
        mtu: Some(9000),
        rings: Some(Rings { rx: 1024, rx_max: 8192, tx: 1024, tx_max: 8192 }),
        pause: Some(Pause::default()),
        statistics: statistics.map(|(name, value)| (name.to_owned(), value)).into(),
        driver_statistics: [("rx_vport_rdma_unicast_packets".to_owned(), rdma)].into(),
        losses: LossCounters { ring: Some(0), nic: Some(lost), ..LossCounters::default() },
        ..Interface::default()
    };
    HostFacts { interfaces: vec![nic], uptime_s: Some(100_000), ..HostFacts::default() }
}

fn found(facts: &HostFacts, rule: &str) -> Option<Finding> {
    check(facts).into_iter().find(|finding| finding.rule == rule)
}

#[test]
fn discarded_packets_of_rdma_need_flow_control() {
    let lossy = |rdma, lost| found(&host(rdma, lost), "rdma-lossy");
    let many = lossy(99_000_000_000, 1_000_000).unwrap();
    assert_eq!(many.severity, Severity::High, "{}", many.evidence);
    assert!(many.evidence.contains("the NIC discarded 1,000,000 packets"), "{}", many.evidence);
    let advice = many.remedy.advice.unwrap();
    assert!(advice.contains("dcb pfc set dev eth0 prio-pfc 3:on"), "{advice}");
    assert!(advice.contains("mlnx_qos -i eth0"), "{advice}");
    assert_eq!(lossy(99_000_000_000, 50_000).unwrap().severity, Severity::Medium, "one in two million");
    assert!(lossy(99_000_000_000, 500).is_none(), "one in 200 million");
    assert!(lossy(10_000_000, 1_000_000).is_none(), "a hundredth of the packets");
}

#[test]
fn flow_control_of_the_link_or_a_priority_is_enough() {
    let with = |change: fn(&mut Interface)| {
        let mut facts = host(99_000_000_000, 1_000_000);
        change(&mut facts.interfaces[0]);
        found(&facts, "rdma-lossy")
    };
    assert!(with(|_| ()).is_some());
    assert!(with(|nic| nic.pause = Some(Pause { tx: true, ..Pause::default() })).is_none());
    assert!(with(|nic| nic.losses.priority_pause_sent = Some(31)).is_none());
    assert!(with(|nic| nic.losses.pause_received = Some(31)).is_none());
    // mlx5 has these counters only for priorities with flow control.
    let of_priority = |nic: &mut Interface| nic.driver_statistics.extend([("tx_prio3_pause".to_owned(), 0)]);
    assert!(with(of_priority).is_none());
    assert!(with(|nic| nic.losses.priority_pause_sent = Some(0)).is_some(), "be2net always has this counter");
}

/// A longer ring does not prevent the losses that RDMA or a slow bus causes in front of the ring. Without a
/// known cause, a longer ring is the first attempt.
#[test]
fn a_longer_ring_is_no_fix_for_losses_in_front_of_it() {
    let drops = |facts: &HostFacts| found(facts, "rx-ring-drops").unwrap();
    let of_rdma = drops(&host(99_000_000_000, 10_000_000));
    assert!(of_rdma.remedy.changes.is_empty(), "{:?}", of_rdma.remedy);
    assert!(of_rdma.remedy.advice.unwrap().starts_with("first the cause (rdma-lossy)"));
    // The loss is a share of all packets, not of the packets that the kernel received.
    assert!(of_rdma.evidence.contains("of 100,010,000,000 packets"), "{}", of_rdma.evidence);
    let mut slow = host(0, 10_000_000);
    slow.interfaces[0].pcie = Some(PcieLink { speed_gts: 8.0, width: 8, ..PcieLink::default() });
    let of_bus = drops(&slow);
    assert!(of_bus.remedy.changes.is_empty(), "{:?}", of_bus.remedy);
    assert!(of_bus.remedy.advice.unwrap().starts_with("first the cause (pcie-narrow)"));
    slow.interfaces[0].losses.ring = Some(30_000_000);
    assert_eq!(drops(&slow).remedy.lines(), ["ethtool -G eth0 rx 8192"], "most are lost at the ring");
    assert_eq!(drops(&host(0, 10_000_000)).remedy.lines(), ["ethtool -G eth0 rx 8192"]);
}
