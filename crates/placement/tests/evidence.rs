//! Tests that severity needs evidence. TCP's limits, losses and pauses slow down some of the hosts, but
//! not all.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use evenkeel_model::host::{
    Channels, Feature, HostFacts, Interface, InterfaceKind, Interrupt, LossCounters, PortUse, Processor,
    ProcessorTime, QdiscFacts, ReceiveQueue, Rss, SocketFacts, SocketKind, Softnet, TcpFacts,
};
use evenkeel_placement::applied::set;
use evenkeel_placement::{Basis, Finding, Severity, check};

/// Creates a host with one port, these connections through the port, and the kernel's defaults, except for a
/// small tcp_mem.
fn host(speed_gbit: u64, connections: Vec<SocketFacts>) -> HostFacts {
    let nic = Interface {
        name: "eth0".to_owned(),
        kind: InterfaceKind::Device,
        up: true,
        speed_bps: Some(speed_gbit * 1_000_000_000),
        mtu: Some(1500),
        statistics: [("rx_packets", 5_000_000_000), ("tx_packets", 5_000_000_000)]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        ..Interface::default()
    };
    let mut facts = HostFacts {
        interfaces: vec![nic],
        sockets: connections,
        page_bytes: 4096,
        memory_bytes: Some(64 << 30),
        ..HostFacts::default()
    };
    for (path, value) in [
        ("net/ipv4/tcp_rmem", "4096 131072 6291456"),
        ("net/ipv4/tcp_wmem", "4096 16384 4194304"),
        ("net/ipv4/tcp_slow_start_after_idle", "1"),
        ("net/ipv4/tcp_congestion_control", "cubic"),
        ("net/ipv4/tcp_mem", "100 200 300"),
        ("net/core/rmem_default", "212992"),
        ("net/core/rmem_max", "212992"),
        ("net/core/netdev_budget", "300"),
        ("net/core/netdev_budget_usecs", "2000"),
        ("net/core/netdev_max_backlog", "1000"),
    ] {
        facts.sysctls.insert(path.to_owned(), value.to_owned());
    }
    facts
}

/// Creates a connection with these numbers of bytes received and sent, and a minimum round-trip time of
/// 30 ms.
fn connection(received: u64, sent: u64) -> SocketFacts {
    let tcp = TcpFacts {
        rtt_us: 31_000,
        min_rtt_us: 30_000,
        bytes_received: received,
        bytes_acked: sent,
        busy_us: 1_000_000,
        ..TcpFacts::default()
    };
    SocketFacts {
        local: "192.0.2.1:443".to_owned(),
        remote: "198.51.100.7:50000".to_owned(),
        tcp: Some(tcp),
        ..SocketFacts::default()
    }
}

fn found(facts: &HostFacts, rule: &str) -> Option<Finding> {
    check(facts).into_iter().find(|finding| finding.rule == rule)
}

/// On the line, a packet of full size takes 38 bytes more than its MTU: 100e9 / 8 / 1438 is 8.7 million.
#[test]
fn packets_per_second_follow_the_mtu() {
    let mut facts = host(100, vec![connection(1 << 30, 1 << 30)]);
    facts.interfaces[0].mtu = Some(1400);
    let finding = check(&facts).into_iter().find(|found| found.rule == "mtu-standard").unwrap();
    let words = "MTU 1400 at 100 Gbit/s: 8.7 million packets a second at line rate, with 9,000 bytes 1.4";
    assert!(finding.evidence.contains(words), "{}", finding.evidence);
}

#[test]
fn windows_of_a_web_server_are_no_alarm() {
    // Each connection has 4 kB of requests and gigabytes of answers, and never waits for its send buffer.
    let facts = host(10, (0..50).map(|_| connection(4_000, 2_000_000_000)).collect());
    let receive = found(&facts, "receive-window");
    assert!(receive.is_none(), "1 ms is assumed, for which the default is enough: {receive:?}");
    let send = found(&facts, "send-window").unwrap();
    assert_eq!((send.severity, send.basis), (Severity::Low, Basis::Setting), "{}", send.evidence);
    assert!(send.evidence.contains("it limited no connection yet"), "{}", send.evidence);
}

#[test]
fn windows_that_held_up_a_connection_are_high() {
    let mut sender = connection(4_000, 2_000_000_000);
    sender.tcp.as_mut().unwrap().sender_limited_us = 400_000;
    let send = found(&host(10, vec![sender]), "send-window").unwrap();
    assert_eq!((send.severity, send.basis), (Severity::High, Basis::Measured), "{}", send.evidence);
    let mut receiver = connection(2_000_000_000, 4_000);
    receiver.receive_buffer = Some(6_291_456);
    let receive = found(&host(10, vec![receiver]), "receive-window").unwrap();
    assert_eq!((receive.severity, receive.basis), (Severity::High, Basis::Measured), "{}", receive.evidence);
    assert!(
        receive.evidence.contains("needs 37.5 MB (10 Gbit/s × 30 ms to 198.51.100.7:50000)"),
        "{}",
        receive.evidence
    );
}

#[test]
fn the_fix_of_a_window_has_its_sizes_in_order() {
    for (path, rule, before, after) in [
        ("net/ipv4/tcp_rmem", "receive-window", "8388608 131072 6291456", "131072 131072 134217728"),
        ("net/ipv4/tcp_rmem", "receive-window", "4096 268435456 6291456", "4096 134217728 134217728"),
        ("net/ipv4/tcp_rmem", "receive-window", "8388608 4194304 65536", "4194304 4194304 134217728"),
        ("net/ipv4/tcp_wmem", "send-window", "4194304 16384 65536", "16384 16384 134217728"),
        ("net/ipv4/tcp_wmem", "send-window", "4096 16384 65536", "4096 16384 134217728"),
    ] {
        let mut socket = connection(2_000_000_000, 2_000_000_000);
        socket.receive_buffer = Some(6_291_456);
        socket.tcp.as_mut().unwrap().sender_limited_us = 400_000;
        let mut facts = host(10, vec![socket]);
        facts.sysctls.insert(path.to_owned(), before.to_owned());
        let finding = found(&facts, rule).unwrap();
        for change in &finding.remedy.changes {
            assert!(set(&mut facts, None, &change.knob, &change.to), "{change:?}");
        }
        assert_eq!(facts.sysctls[path], after, "{before}");
        assert_eq!(found(&facts, rule), None, "{before}");
    }
}

#[test]
fn the_limit_of_the_connection_table_is_raised_above_its_entries() {
    let with = |limit: u64, entries: u64, dropped: u64| {
        let mut facts = host(10, Vec::new());
        facts.sysctls.insert("net/netfilter/nf_conntrack_max".to_owned(), limit.to_string());
        facts.sysctls.insert("net/netfilter/nf_conntrack_count".to_owned(), entries.to_string());
        facts.counters.insert("Conntrack.drop".to_owned(), dropped);
        found(&facts, "conntrack-full").map(|finding| finding.remedy.changes)
    };
    assert_eq!(with(0, 5_000, 0), None, "0 is no limit");
    assert_eq!(with(0, 5_000, 1_000_000), Some(Vec::new()), "the limit did not drop these");
    for (limit, entries) in [(65_536, 60_000), (65_536, 200_000)] {
        let changes = with(limit, entries, 0).unwrap();
        assert_eq!(changes.len(), 1, "{changes:?}");
        let mut facts = host(10, Vec::new());
        facts.sysctls.insert("net/netfilter/nf_conntrack_max".to_owned(), limit.to_string());
        assert!(set(&mut facts, None, &changes[0].knob, &changes[0].to));
        let raised = facts.sysctl_number("net/netfilter/nf_conntrack_max").unwrap();
        assert!(raised as u64 >= 2 * entries.max(limit), "{raised} for {entries} entries");
    }
}

#[test]
fn datagrams_that_a_qdisc_dropped_need_no_larger_buffer() {
    let with = |discards: u64, drops: u64| {
        let mut facts = host(10, Vec::new());
        let counters =
            [("Udp.SndbufErrors", 39_925), ("Udp.OutDatagrams", 40_000), ("Ip.OutDiscards", discards)];
        facts.counters.extend(counters.map(|(name, value)| (name.to_owned(), value)));
        let qdisc =
            QdiscFacts { kind: "tbf".to_owned(), parent: "root".to_owned(), drops, ..QdiscFacts::default() };
        facts.interfaces[0].qdiscs = vec![qdisc];
        found(&facts, "udp-send-buffer").map(|finding| finding.severity)
    };
    assert_eq!(with(39_925, 39_925), None);
    assert_eq!(with(0, 39_925), Some(Severity::Medium), "the qdisc dropped packets of TCP");
    assert_eq!(with(39_925, 0), Some(Severity::Medium), "no qdisc dropped a packet");
}

#[test]
fn ports_are_exhausted_where_attempts_to_connect_failed() {
    for (failed, severity) in [(0, Severity::Medium), (5_000, Severity::High)] {
        let mut facts = host(10, Vec::new());
        facts.sysctls.insert("net/ipv4/ip_local_port_range".to_owned(), "32768\t60999".to_owned());
        facts.counters.insert("Tcp.AttemptFails".to_owned(), failed);
        facts.port_use = Some(PortUse {
            local: "10.0.0.1".to_owned(),
            remote: "10.0.0.9:443".to_owned(),
            connections: 28_000,
        });
        assert_eq!(found(&facts, "ports-exhausted").unwrap().severity, severity, "{failed} failed");
    }
}

#[test]
fn windows_of_connections_that_fill_the_link_together_are_no_alarm() {
    // A window of 3.1 MB per 30 ms is 0.84 Gbit/s for each connection.
    let receivers = |number| {
        let mut receiver = connection(2_000_000_000, 4_000);
        receiver.receive_buffer = Some(6_291_456);
        found(&host(10, vec![receiver; number]), "receive-window").unwrap()
    };
    let judged = |number| (receivers(number).severity, receivers(number).basis);
    assert_eq!(judged(4), (Severity::High, Basis::Measured));
    assert_eq!(judged(8), (Severity::Medium, Basis::Measured));
    assert_eq!(judged(12), (Severity::Low, Basis::Setting));
    let evidence = receivers(12).evidence;
    assert!(evidence.contains("and 12 of them together fill the link"), "{evidence}");
}

#[test]
fn a_loss_that_all_connections_together_survive_is_not_high() {
    // One loss in 200,000 limits a flow with a round-trip time of 30 ms to 0.21 Gbit/s.
    let lost = |flows| {
        let mut facts = host(10, vec![connection(2_000_000_000, 4_000); flows]);
        facts.interfaces[0].losses = LossCounters { ring: Some(25_000), ..LossCounters::default() };
        found(&facts, "rx-ring-drops").unwrap().severity
    };
    assert_eq!((lost(1), lost(100)), (Severity::High, Severity::Medium));
}

#[test]
fn retransmissions_of_a_host_that_loses_packets_name_them() {
    let mut facts = host(10, vec![]);
    for (name, value) in [("Tcp.OutSegs", 1_000_000_000), ("Tcp.RetransSegs", 2_000_000)] {
        facts.counters.insert(name.to_owned(), value);
    }
    assert!(found(&facts, "retransmissions").is_none(), "two in a thousand, lost elsewhere");
    facts.softnet = vec![Softnet { processor: 1, dropped: 4_000_000, ..Softnet::default() }];
    let again = found(&facts, "retransmissions").unwrap();
    assert_eq!(again.severity, Severity::Low);
    assert!(
        again.evidence.contains("this host lost 4,000,000 packets at full backlogs"),
        "{}",
        again.evidence
    );
}

#[test]
fn datagrams_are_judged_by_their_share_and_by_their_rate() {
    let dropped = |dropped, uptime_s| {
        let mut facts = host(10, vec![]);
        facts.uptime_s = Some(uptime_s);
        for (name, value) in [("Udp.InDatagrams", 10_000_000_000), ("Udp.RcvbufErrors", dropped)] {
            facts.counters.insert(name.to_owned(), value);
        }
        found(&facts, "udp-receive-buffer").map(|finding| finding.severity)
    };
    assert_eq!(dropped(1_204, 1_000_000), None, "less than one in a million");
    assert_eq!(dropped(12_040, 1_000_000), Some(Severity::Low));
    assert_eq!(dropped(50_000, 100_000), Some(Severity::Medium), "half a datagram per second");
    assert_eq!(dropped(20_000_000, 1_000_000), Some(Severity::High));
}

/// The kernel does not count the datagrams of a socket. So from 1,000 drops at one socket, the rule needs
/// no share.
#[test]
fn a_socket_that_drops_counts_beside_a_busy_one() {
    let at_one = |drops| {
        let mut facts = host(10, vec![]);
        facts.uptime_s = Some(10_000_000);
        facts.counters.insert("Udp.InDatagrams".to_owned(), 1_000_000_000_000);
        facts.sockets.push(SocketFacts { kind: SocketKind::Udp, drops, ..SocketFacts::default() });
        found(&facts, "udp-receive-buffer").map(|finding| finding.severity)
    };
    assert_eq!((at_one(999), at_one(1000)), (None, Some(Severity::Low)));
}

#[test]
fn an_assumed_round_trip_is_low_and_named() {
    let receive = found(&host(100, vec![]), "receive-window").unwrap();
    assert_eq!((receive.severity, receive.basis), (Severity::Low, Basis::Assumed));
    let words = "needs 12.5 MB (100 Gbit/s × 1.00 ms; RTT assumed, no busy connection)";
    assert!(receive.evidence.contains(words), "{}", receive.evidence);
    for finding in check(&host(100, vec![])) {
        assert!(finding.severity < Severity::High, "{finding:?}");
    }
}

#[test]
fn bbr_restarts_by_its_own_model() {
    let long = || {
        let mut connection = connection(0, 2_000_000_000);
        connection.tcp.as_mut().unwrap().min_rtt_us = 80_000;
        connection
    };
    let mut facts = host(10, vec![long()]);
    assert!(found(&facts, "slow-start-idle").is_some());
    facts.sysctls.insert("net/ipv4/tcp_congestion_control".to_owned(), "bbr".to_owned());
    assert!(found(&facts, "slow-start-idle").is_none());
}

#[test]
fn tcp_mem_is_not_proposed_below_the_kernels_default() {
    let mut facts = host(1, vec![]);
    facts.counters.insert("TcpExt.TCPMemoryPressures".to_owned(), 4);
    let memory = found(&facts, "tcp-memory").unwrap();
    // 64 GiB are 16,777,216 pages. A sixteenth of these pages, times 3/2, is 1,572,864.
    assert_eq!(memory.remedy.lines(), ["sysctl -w 'net.ipv4.tcp_mem=786432 1179648 1572864'"]);
}

#[test]
fn a_small_loss_does_not_limit_a_slow_link() {
    let lost = |speed, lost| {
        let mut facts = host(speed, vec![]);
        facts.interfaces[0].losses = LossCounters { nic: Some(lost), ..LossCounters::default() };
        found(&facts, "rx-ring-drops").unwrap()
    };
    // The ratio is 2 in a million, as `rx_discards_phy` of a link of 25 Gbit/s showed. The rate that this
    // loss allows is above the link's rate.
    let small = lost(1, 10_000);
    assert_eq!(small.severity, Severity::Low, "{}", small.effect);
    assert!(small.effect.contains("still reaches the line rate"), "{}", small.effect);
    let many = lost(25, 5_000_000);
    assert_eq!((many.severity, many.basis), (Severity::High, Basis::Measured));
    let mut unknown = host(1, vec![]);
    unknown.interfaces[0].speed_bps = None;
    unknown.interfaces[0].losses = LossCounters { ring: Some(20_000), ..LossCounters::default() };
    assert!(!found(&unknown, "rx-ring-drops").unwrap().effect.contains(" of "), "no speed is made up");
}

#[test]
fn a_storm_of_priority_pauses_is_high() {
    let paused = |frames| {
        let mut facts = host(40, vec![]);
        let losses = LossCounters {
            pause_received: Some(0),
            priority_pause_received: Some(frames),
            ..LossCounters::default()
        };
        facts.interfaces[0].losses = losses;
        found(&facts, "pause-received")
    };
    assert!(paused(500).is_none());
    assert_eq!(paused(400_000).unwrap().severity, Severity::Low);
    assert_eq!(paused(100_000_000).unwrap().severity, Severity::Medium);
    let storm = paused(812_004_331).unwrap();
    assert_eq!(storm.severity, Severity::High);
    assert!(storm.evidence.contains("812,004,331 pause frames of priorities"), "{}", storm.evidence);
}

#[test]
fn squeezes_are_judged_although_packets_wrapped() {
    let mut facts = host(10, vec![]);
    facts.processors = (0..2).map(|number| Processor { number, ..Processor::default() }).collect();
    // The 32-bit counter `processed` wrapped, so it shows 1,000 of the 5 billion packets. 5,000 squeezes
    // in 5 billion packets are no fault.
    let line = |processor, squeezed| Softnet { processor, processed: 1000, squeezed, ..Softnet::default() };
    facts.softnet = vec![line(0, 5_000), line(1, 5_000)];
    assert!(found(&facts, "softnet-squeezed").is_none());
    facts.softnet = vec![line(0, 1_048_575), line(1, 20)];
    let squeezed = found(&facts, "softnet-squeezed").unwrap();
    assert!(squeezed.evidence.contains("CPU 0 ran out of budget 1,048,575 times"), "{}", squeezed.evidence);
    assert!(squeezed.remedy.advice.unwrap().contains("CPU 0 has 100 % of all these rounds"));
}

/// The round-trip times of flows through a router are unknown. So the rule does not judge their losses by a
/// flow with a round-trip time of 1 ms that fills the link.
#[test]
fn losses_of_a_router_are_not_judged_by_an_assumed_round_trip() {
    let lost = |segments, lost| {
        let mut facts = host(1, vec![]);
        for name in ["Tcp.InSegs", "Tcp.OutSegs"] {
            facts.counters.insert(name.to_owned(), segments);
        }
        facts.interfaces[0].losses = LossCounters { ring: Some(lost), ..LossCounters::default() };
        found(&facts, "rx-ring-drops").unwrap()
    };
    let of_server = lost(4_000_000_000, 350_000);
    assert_eq!(of_server.severity, Severity::Low, "one in 14,000 of its own segments");
    let of_router = lost(1_000_000, 350_000);
    assert_eq!(of_router.severity, Severity::Medium, "{}", of_router.effect);
    assert!(of_router.effect.contains("with a round trip of 20 ms"), "{}", of_router.effect);
    assert_eq!(lost(1_000_000, 10_000).severity, Severity::Low, "one in 500,000");
    assert_eq!(lost(1_000_000, 600_000).severity, Severity::High, "one in 8,300");
}

/// Gives a host 16 processors. The first `busy` processors spend `softirq` percent of their time in
/// softirqs, and the others 2 %.
fn with_busy_processors(facts: &mut HostFacts, busy: u32, softirq: u64) {
    let time = |softirq: u64| {
        Some(ProcessorTime { total: 1000, idle: 1000 - softirq * 10, softirq: softirq * 10, steal: 0 })
    };
    facts.processors = (0..16)
        .map(|number| Processor {
            number,
            core: number,
            siblings: vec![number],
            time: time(if number < busy { softirq } else { 2 }),
            ..Processor::default()
        })
        .collect();
}

/// hv_netvsc has no interrupts in `/proc/interrupts`: the busiest processors show what a narrow table costs.
#[test]
fn load_raises_a_narrow_table() {
    let narrow = |softirq, lost, interrupts: bool| {
        let mut facts = host(40, vec![]);
        with_busy_processors(&mut facts, 2, softirq);
        let nic = &mut facts.interfaces[0];
        nic.channels = Some(Channels { combined: 8, combined_max: 8, ..Channels::default() });
        nic.rss = Some(Rss { indirection: vec![0, 1, 0, 1, 0, 1, 0, 1], ..Rss::default() });
        nic.losses = LossCounters { ring: Some(lost), ..LossCounters::default() };
        let line = |number: u32| Interrupt {
            number: 40 + number,
            interface: "eth0".to_owned(),
            queue: Some(number),
            receives: true,
            effective: vec![number],
            served: vec![(number, 900_000_000)],
            ..Interrupt::default()
        };
        facts.interrupts = if interrupts { (0..8).map(line).collect() } else { Vec::new() };
        found(&facts, "rss-table-narrow").unwrap()
    };
    for interrupts in [true, false] {
        assert_eq!(narrow(78, 0, interrupts).severity, Severity::High);
        assert_eq!(narrow(40, 0, interrupts).severity, Severity::Medium);
        assert_eq!(narrow(40, 50_000, interrupts).severity, Severity::High);
        assert_eq!(narrow(10, 0, interrupts).severity, Severity::Low);
        let evidence = narrow(78, 0, interrupts).evidence;
        let words =
            "processors 0-1, which serve them, spend 78 % of their time in softirqs, the others 2.0 %";
        assert!(evidence.contains(words), "{evidence}");
    }
}

#[test]
fn few_queues_that_are_busy_and_lose_packets_are_high() {
    let few = |speed, softirq, lost| {
        let mut facts = host(speed, vec![]);
        with_busy_processors(&mut facts, 4, softirq);
        let nic = &mut facts.interfaces[0];
        nic.channels = Some(Channels { combined: 4, combined_max: 16, ..Channels::default() });
        nic.losses = LossCounters { ring: Some(lost), ..LossCounters::default() };
        let line = |number: u32| Interrupt {
            number: 40 + number,
            interface: "eth0".to_owned(),
            queue: Some(number),
            receives: true,
            effective: vec![number],
            served: vec![(number, 900_000_000)],
            ..Interrupt::default()
        };
        facts.interrupts = (0..4).map(line).collect();
        found(&facts, "queues-few")
    };
    // One lost packet in 250,000 is no reason for `high` by itself.
    let full = few(100, 96, 20_000).unwrap();
    assert_eq!(full.severity, Severity::High, "{}", full.evidence);
    assert!(full.evidence.contains("20,000 packets were lost at the NIC"), "{}", full.evidence);
    assert_eq!(few(100, 96, 0).unwrap().severity, Severity::Medium);
    assert!(few(100, 10, 20_000).is_none());
    assert_eq!(few(1, 96, 20_000).unwrap().severity, Severity::Medium, "one processor receives 1 Gbit/s");
}

/// A client cannot connect if tcp_tw_recycle rejects its connection request. The rule compares the
/// rejected requests with all requests, not with segments.
#[test]
fn rejected_connection_requests_are_judged_by_their_share() {
    let refused = |recycle: &str, rejected| {
        let mut facts = host(10, vec![]);
        facts.sysctls.insert("net/ipv4/tcp_tw_recycle".to_owned(), recycle.to_owned());
        for (name, value) in [
            ("Tcp.InSegs", 50_000_000_000),
            ("Tcp.PassiveOpens", 400_000_000),
            ("TcpExt.PAWSPassive", rejected),
        ] {
            facts.counters.insert(name.to_owned(), value);
        }
        found(&facts, "timestamps-refused")
    };
    let many = refused("1", 3_000_000).unwrap();
    assert_eq!(many.severity, Severity::High, "{}", many.evidence);
    assert!(
        many.evidence.contains("rejected 3,000,000 of 403,000,000 connection requests"),
        "{}",
        many.evidence
    );
    assert_eq!(many.remedy.lines(), ["sysctl -w net.ipv4.tcp_tw_recycle=0"]);
    assert_eq!(refused("1", 40_000).unwrap().severity, Severity::Medium, "one in 10,000");
    assert!(refused("1", 2_000).is_none(), "one in 200,000");
    let past = refused("0", 3_000_000).unwrap();
    assert_eq!(past.severity, Severity::Low, "tcp_tw_recycle is off now");
    assert!(past.remedy.changes.is_empty());
}

/// The timers of NAPI apply to a veth only while the veth has NAPI: with GRO, or with an XDP program
/// (veth_open, drivers/net/veth.c). The rule looks only at GRO.
#[test]
fn timers_of_a_veth_count_with_gro() {
    let found = |gro: bool, timeout: u64, polls: u64| {
        let mut facts = host(10, Vec::new());
        facts.interfaces.push(Interface {
            name: "v0".to_owned(),
            kind: InterfaceKind::Veth,
            up: true,
            gro_flush_timeout_ns: Some(timeout),
            napi_defer_hard_irqs: Some(polls),
            features: [("rx-gro".to_owned(), Feature { on: gro, fixed: false })].into(),
            ..Interface::default()
        });
        let found = check(&facts).into_iter().find(|found| found.rule == "gro-timer-alone");
        found.map(|found| (found.subject, found.severity))
    };
    let of_v0 = |severity| Some(("v0".to_owned(), severity));
    assert_eq!(found(true, 200_000, 0), of_v0(Severity::Medium));
    assert_eq!(found(true, 0, 5), of_v0(Severity::Low));
    assert_eq!(found(true, 20_000, 5), None);
    assert_eq!(found(false, 200_000, 0), None, "no NAPI");
}

/// The kernel counts a retransmitted segment in RetransSegs only, and not in OutSegs.
#[test]
fn the_share_of_retransmitted_segments_is_that_of_all_sent_ones() {
    let judged = |sent, again| {
        let mut facts = host(10, vec![]);
        for (name, value) in [("Tcp.OutSegs", sent), ("Tcp.RetransSegs", again)] {
            facts.counters.insert(name.to_owned(), value);
        }
        found(&facts, "retransmissions").map(|found| (found.severity, found.evidence))
    };
    let (severity, evidence) = judged(95_000, 5_000).unwrap();
    assert_eq!(severity, Severity::High);
    assert!(evidence.starts_with("5,000 of 100,000 segments were retransmitted (5.0 %)"), "{evidence}");
    assert_eq!(judged(96_000, 4_999).unwrap().0, Severity::Medium, "less than 5 % of all");
}

/// Without forwarding, the kernel counts packets to other hosts in InAddrErrors. They are no losses.
#[test]
fn packets_to_other_hosts_are_no_fault() {
    let mut facts = host(10, vec![]);
    for (name, value) in [("Ip.InReceives", 1_000_000), ("Ip.InAddrErrors", 900_000)] {
        facts.counters.insert(name.to_owned(), value);
    }
    for forward in ["0", "1"] {
        facts.sysctls.insert("net/ipv4/ip_forward".to_owned(), forward.to_owned());
        assert!(check(&facts).iter().all(|found| !found.evidence.contains("900,000")), "{forward}");
    }
    facts.counters.insert("IpExt.InNoRoutes".to_owned(), 900_000);
    assert!(found(&facts, "no-route").is_some());
}

/// A NIC's first queues may have no interrupt, so an interrupt's position is not the number of its queue.
#[test]
fn the_busiest_queue_has_its_number_although_other_queues_have_no_interrupt() {
    let mut facts = host(10, vec![]);
    let processor =
        |number| Processor { number, core: number, siblings: vec![number], ..Processor::default() };
    facts.processors = (0..4).map(processor).collect();
    facts.interfaces[0].receive_queues = vec![ReceiveQueue::default(); 8];
    facts.interrupts = [(2, 100_000), (4, 5_000_000), (7, 100_000)]
        .map(|(queue, served)| Interrupt {
            number: 30 + queue,
            interface: "eth0".to_owned(),
            queue: Some(queue),
            receives: true,
            affinity: vec![queue % 4],
            served: vec![(queue % 4, served)],
            ..Interrupt::default()
        })
        .into();
    let skew = found(&facts, "rss-skew").unwrap();
    assert!(skew.evidence.starts_with("queue 4 of 8 had 96 %"), "{}", skew.evidence);
    let changes = skew.remedy.lines().join("\n");
    assert!(changes.contains("rx-4/rps_cpus"), "{changes}");
    // RPS on queue 4 removes the finding. RPS on queue 1 does not.
    facts.interfaces[0].receive_queues[1].rps = vec![0, 1];
    assert!(found(&facts, "rss-skew").is_some());
    facts.interfaces[0].receive_queues[4].rps = vec![0, 1];
    assert!(found(&facts, "rss-skew").is_none());
}

/// The load and the losses of a slow NIC show that one queue is too few.
#[test]
fn one_queue_of_a_slow_nic_is_judged_by_its_load() {
    let one = |mbit: u64, softirq, lost| {
        let mut facts = host(1, vec![]);
        with_busy_processors(&mut facts, 1, softirq);
        let nic = &mut facts.interfaces[0];
        nic.speed_bps = Some(mbit * 1_000_000);
        nic.channels = Some(Channels { combined: 1, combined_max: 8, ..Channels::default() });
        nic.losses = LossCounters { ring: Some(lost), ..LossCounters::default() };
        facts.interrupts = vec![Interrupt {
            number: 40,
            interface: "eth0".to_owned(),
            queue: Some(0),
            receives: true,
            effective: vec![0],
            served: vec![(0, 900_000_000)],
            ..Interrupt::default()
        }];
        (found(&facts, "queues-few"), found(&facts, "rx-ring-drops"))
    };
    let (few, drops) = one(1000, 94, 2_000_000);
    assert_eq!(few.unwrap().severity, Severity::Medium);
    assert!(drops.unwrap().evidence.contains("queues-few"), "the losses name their cause");
    assert_eq!(one(1000, 5, 0).0.unwrap().severity, Severity::Low);
    assert_eq!(one(100, 5, 0).0, None, "100 Mbit/s is at most 149,000 packets per second");
    assert_eq!(one(100, 94, 0).0.unwrap().severity, Severity::Medium);
}

/// Queues whose interrupts all go to one processor: the affinity is at fault, not their number.
#[test]
fn packets_are_not_steered_where_the_affinity_is_at_fault() {
    let to = |processor: fn(u32) -> u32| {
        let mut facts = host(25, vec![]);
        with_busy_processors(&mut facts, 1, 96);
        facts.interfaces[0].receive_queues = vec![ReceiveQueue::default(); 4];
        let line = |number: u32| Interrupt {
            number: 40 + number,
            interface: "eth0".to_owned(),
            queue: Some(number),
            receives: true,
            affinity: vec![processor(number)],
            effective: vec![processor(number)],
            served: vec![(processor(number), 900_000_000)],
            ..Interrupt::default()
        };
        facts.interrupts = (0..4).map(line).collect();
        (found(&facts, "irq-one-processor").is_some(), found(&facts, "rps-missing").is_some())
    };
    assert_eq!(to(|_| 0), (true, false));
    // With a single queue, no interrupt can move, so only RPS helps.
    let mut facts = host(25, vec![]);
    with_busy_processors(&mut facts, 1, 96);
    facts.interfaces[0].receive_queues = vec![ReceiveQueue::default()];
    assert!(found(&facts, "rps-missing").is_some());
}

/// One queue gets most packets because the hash of UDP lacks the ports. The fix of the hash comes first.
#[test]
fn a_poor_hash_of_udp_explains_a_skew() {
    let with = |fields: &str| {
        let mut facts = host(25, vec![]);
        let counters = [("Udp.InDatagrams", 4_900_000_000), ("Ip.InReceives", 5_000_000_000)];
        facts.counters.extend(counters.map(|(name, value)| (name.to_owned(), value)));
        with_busy_processors(&mut facts, 1, 96);
        let nic = &mut facts.interfaces[0];
        nic.channels = Some(Channels { combined: 4, combined_max: 4, ..Channels::default() });
        nic.queue_counters.receive = vec![4_000_000_000, 300_000_000, 300_000_000, 400_000_000];
        nic.receive_queues = vec![ReceiveQueue::default(); 4];
        let hash_fields = [("tcp4", "sdfn"), ("udp4", fields)];
        nic.rss = Some(Rss {
            indirection: (0..128).map(|entry| entry % 4).collect(),
            hash_fields: hash_fields.map(|(flow, fields)| (flow.to_owned(), fields.to_owned())).into(),
            ..Rss::default()
        });
        found(&facts, "rss-skew").unwrap().remedy
    };
    let poor = with("sd");
    assert_eq!(poor.changes, []);
    assert!(poor.advice.unwrap().contains("rss-hash-fields"));
    assert_eq!(with("sdfn").changes.len(), 1);
}

/// A buffer of at most half of the last value of tcp_wmem has another limit. If another connection has a
/// buffer twice as large, the program has set the small one (SO_SNDBUF).
#[test]
fn a_buffer_of_the_program_is_not_limited_by_tcp_wmem() {
    let with = |buffer, limit: &str| {
        let mut socket = connection(0, 2_000_000_000);
        socket.send_buffer = Some(buffer);
        socket.tcp.as_mut().unwrap().sender_limited_us = 750_000;
        let mut facts = host(25, vec![socket]);
        facts.interfaces[0].mtu = Some(1500);
        facts.sysctls.insert("net/ipv4/tcp_wmem".to_owned(), "4096 16384 67108864".to_owned());
        facts.sysctls.insert("net/core/wmem_max".to_owned(), limit.to_owned());
        let mut grown = connection(0, 2_000_000_000);
        grown.send_buffer = Some(30_000_000);
        facts.sockets.push(grown);
        facts
    };
    let small = with(204_800, "67108864");
    assert_eq!(found(&small, "send-window").unwrap().severity, Severity::Low);
    let set = found(&small, "socket-buffer-set").unwrap().remedy;
    assert_eq!(set.changes, [], "the request did not reach wmem_max");
    assert!(set.advice.unwrap().starts_with("remove SO_SNDBUF"));
    // The kernel cut the request at wmem_max, and doubled it.
    let cut = found(&with(425_984, "212992"), "socket-buffer-set").unwrap().remedy;
    assert_eq!(cut.lines(), ["sysctl -w net.core.wmem_max=268435456"]);
    assert_eq!(found(&with(67_108_864, "67108864"), "send-window").unwrap().severity, Severity::Medium);
}

#[test]
fn a_window_without_scaling_is_this_hosts_fault() {
    let with = |scaling: &str| {
        let mut socket = connection(0, 20_000_000);
        let tcp = socket.tcp.as_mut().unwrap();
        (tcp.busy_us, tcp.receiver_limited_us) = (10_000_000, 9_000_000);
        let mut facts = host(10, vec![socket]);
        facts.sysctls.insert("net/ipv4/tcp_window_scaling".to_owned(), scaling.to_owned());
        found(&facts, "peer-window").unwrap()
    };
    assert_eq!(with("1").effect, "the peer's window limits this host");
    let own = with("0");
    assert!(own.effect.contains("off on this host"), "{}", own.effect);
    assert!(own.remedy.advice.unwrap().contains("window-scaling-off"));
}

#[test]
fn a_few_cookies_of_many_connections_are_no_fault() {
    let with = |name: &str, requests| {
        let mut facts = host(10, vec![]);
        for path in ["net/core/somaxconn", "net/ipv4/tcp_max_syn_backlog"] {
            facts.sysctls.insert(path.to_owned(), "65535".to_owned());
        }
        facts.counters.insert("Tcp.PassiveOpens".to_owned(), 1_700_000_000);
        facts.counters.insert(format!("TcpExt.{name}"), requests);
        found(&facts, "syn-queue-full")
    };
    assert_eq!(with("TCPReqQFullDoCookies", 41_022), None);
    let many = with("TCPReqQFullDoCookies", 170_000).unwrap();
    assert_eq!(many.severity, Severity::Low);
    assert!(many.remedy.advice.unwrap().contains("raise all three"));
    assert_eq!(with("TCPReqQFullDrop", 1_600), None);
    assert_eq!(with("TCPReqQFullDrop", 1_700).unwrap().severity, Severity::Low);
}

#[test]
fn bbr_bears_the_losses_of_the_internet() {
    let with = |control: &str, rtt_us, again| {
        let mut socket = connection(0, 2_000_000_000);
        socket.tcp.as_mut().unwrap().min_rtt_us = rtt_us;
        let mut facts = host(25, vec![socket]);
        facts.sysctls.insert("net/ipv4/tcp_congestion_control".to_owned(), control.to_owned());
        facts.counters.insert("Tcp.OutSegs".to_owned(), 1_000_000_000);
        facts.counters.insert("Tcp.RetransSegs".to_owned(), again);
        found(&facts, "retransmissions").unwrap()
    };
    let far = with("bbr", 30_000, 11_000_000);
    assert_eq!(far.severity, Severity::Low);
    assert!(!far.effect.contains("Reno"), "{}", far.effect);
    assert_eq!(with("bbr", 30_000, 21_000_000).severity, Severity::Medium);
    assert_eq!(with("bbr", 500, 11_000_000).severity, Severity::Medium);
    let cubic = with("cubic", 30_000, 11_000_000);
    assert!(cubic.severity == Severity::Medium && cubic.effect.contains("Reno"), "{}", cubic.effect);
}

/// The counters cover the time before a raise. They justify no second raise while the present use is far
/// below the limit.
#[test]
fn old_counters_do_not_raise_a_limit_again() {
    let mut facts = host(10, vec![]);
    let sysctls = [("netfilter/nf_conntrack_max", "262144"), ("netfilter/nf_conntrack_count", "262139")];
    facts.sysctls.extend(sysctls.map(|(path, value)| (format!("net/{path}"), value.to_owned())));
    let counters = [("Conntrack.drop", 3_000_000), ("TcpExt.TCPMemoryPressures", 4_000)];
    facts.counters.extend(counters.map(|(name, value)| (name.to_owned(), value)));
    facts.counters.insert("Sockstat.TCP.mem".to_owned(), 65_000);
    facts.softnet = vec![Softnet { processed: 5_000_000_000, dropped: 600_000, ..Softnet::default() }];
    for rule in ["conntrack-full", "tcp-memory", "backlog-drops"] {
        let first = found(&facts, rule).unwrap();
        assert!(!first.remedy.changes.is_empty(), "{rule}");
        let mut raised = facts.clone();
        for change in &first.remedy.changes {
            assert!(set(&mut raised, None, &change.knob, &change.to), "{change:?}");
        }
        let again = found(&raised, rule).unwrap();
        assert_eq!(again.remedy.changes, [], "{rule}");
        assert!(again.remedy.advice.is_some(), "{rule}");
    }
}

#[test]
fn the_cost_of_losses_names_datagrams() {
    let with = |datagrams| {
        let mut facts = host(10, vec![connection(2_000_000_000, 0)]);
        facts.interfaces[0].losses = LossCounters { ring: Some(88_412), ..LossCounters::default() };
        let counters = [("Udp.InDatagrams", datagrams), ("Ip.InReceives", 5_000_000_000)];
        facts.counters.extend(counters.map(|(name, value)| (name.to_owned(), value)));
        found(&facts, "rx-ring-drops").unwrap().effect
    };
    let words = "UDP is 95 % of the packets, and lost datagrams are not retransmitted";
    assert!(with(4_750_000_000).ends_with(words) && !with(2_000_000_000).contains("UDP"));
}

#[test]
fn a_nic_that_loses_every_packet_is_high() {
    let severity = |received: u64, lost: u64| {
        let mut facts = host(10, Vec::new());
        let nic = &mut facts.interfaces[0];
        nic.statistics.insert("rx_packets".to_owned(), received);
        nic.losses.ring = Some(lost);
        found(&facts, "rx-ring-drops").map(|finding| finding.severity)
    };
    assert_eq!([severity(0, 50_000_000), severity(1_000, 50_000_000)], [Some(Severity::High); 2]);
    assert_eq!(severity(0, 50), None, "too few");
}
