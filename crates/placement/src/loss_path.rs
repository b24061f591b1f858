//! Finds where packets were lost between two readings of a host. The places follow the path of the paper's
//! figure 12, from the sender's qdisc to a socket's receive buffer.

use std::collections::BTreeMap;

use evenkeel_model::host::{
    HostFacts, Interface, InterfaceKind, LossCounters, QdiscFacts, SaturatingSum, SocketFacts, SocketKind,
    Unknown,
};
use serde::Serialize;

use crate::rules::{needs, receive_queue_drops};

/// A place on a packet's path. The variants are in path order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    Qdisc,
    /// The transmit ring and the driver's transmit path.
    TransmitRing,
    /// The wire: packets that arrived damaged.
    Wire,
    /// The NIC's memory and its receive ring.
    ReceiveRing,
    /// The backlog of a processor.
    SoftnetBacklog,
    /// The IP layer: connection tracking, routes, neighbours.
    Network,
    /// The accept queue and the SYN queue of a listener.
    AcceptQueue,
    /// The backlog of a socket that its application has locked.
    TcpBacklog,
    ReceiveQueue,
    /// The network between this host and its peers, or the peers themselves: retransmitted segments.
    Path,
}

impl Place {
    pub const ALL: [Self; 10] = [
        Self::Qdisc,
        Self::TransmitRing,
        Self::Wire,
        Self::ReceiveRing,
        Self::SoftnetBacklog,
        Self::Network,
        Self::AcceptQueue,
        Self::TcpBacklog,
        Self::ReceiveQueue,
        Self::Path,
    ];

    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Qdisc => "qdisc",
            Self::TransmitRing => "transmit ring",
            Self::Wire => "wire",
            Self::ReceiveRing => "receive ring",
            Self::SoftnetBacklog => "softnet backlog",
            Self::Network => "network layer",
            Self::AcceptQueue => "accept queue",
            Self::TcpBacklog => "TCP backlog",
            Self::ReceiveQueue => "receive queue",
            Self::Path => "path or peer",
        }
    }

    /// Returns whether the packet counters of the interfaces include the packets lost at this place: the
    /// packets were received, or sent, before they were lost. The network layer loses both received packets
    /// and packets that it could not send, so its losses count as not included.
    #[must_use]
    pub const fn is_among_packets(self) -> bool {
        matches!(self, Self::AcceptQueue | Self::TcpBacklog | Self::ReceiveQueue | Self::Path)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Loss {
    pub place: Place,
    /// An interface, a processor or a socket.
    pub subject: String,
    pub packets: u64,
    pub counter: String,
    pub rule: &'static str,
}

/// The protocol number of UDP.
const UDP: u8 = 17;

/// Maps a drop reason (`enum skb_drop_reason`, include/net/dropreason-core.h, without its prefix) and the
/// packet's protocol to the place and the rule that explains the drop. `forwards` states whether the host
/// forwards packets ([`forwards`]). Returns `None` for reasons without a rule.
#[must_use]
pub fn place_of_reason(reason: &str, protocol: Option<u8>, forwards: bool) -> Option<(Place, &'static str)> {
    Some(match reason {
        "QDISC_DROP" | "QDISC_OVERLIMIT" | "QDISC_CONGESTED" | "FQ_BAND_LIMIT" | "FQ_FLOW_LIMIT"
        | "FQ_HORIZON_LIMIT" => (Place::Qdisc, "qdisc-drops"),
        "DEV_READY" | "FULL_RING" => (Place::TransmitRing, "tx-ring-stops"),
        "CPU_BACKLOG" => (Place::SoftnetBacklog, "backlog-drops"),
        "NEIGH_CREATEFAIL" => (Place::Network, "neighbours-full"),
        "NEIGH_QUEUEFULL" | "NEIGH_FAILED" => (Place::Network, "neighbours-unresolved"),
        "IP_RPFILTER" => (Place::Network, "reverse-path-drops"),
        "IP_INNOROUTES" | "IP_OUTNOROUTES" | "IP_INADDRERRORS" => (Place::Network, "no-route"),
        // `ip_forward` (net/ipv4/ip_forward.c) gives this reason also if the time to live has ended.
        "IP_INHDR" => (Place::Network, of_headers(forwards)),
        // `ip_rcv_core` (net/ipv4/ip_input.c): the packet is shorter than its header states.
        "PKT_TOO_SMALL" => (Place::Network, "ip-header-errors"),
        "PFMEMALLOC" => (Place::Network, "memory-reclaim"),
        "FRAG_REASM_TIMEOUT" | "FRAG_TOO_FAR" => (Place::Network, "fragments-lost"),
        "PKT_TOO_BIG" => (Place::Network, "fragments-made"),
        "IP_CSUM" | "TCP_CSUM" | "UDP_CSUM" => (Place::Network, "checksum-errors"),
        // TCP answers a segment without a socket with a reset, so the peer knows about the loss.
        "NO_SOCKET" if protocol == Some(UDP) => (Place::Network, "udp-no-port"),
        "TCP_LISTEN_OVERFLOW" => (Place::AcceptQueue, "listen-overflow"),
        "SOCKET_BACKLOG" => (Place::TcpBacklog, "tcp-backlog-drops"),
        "SOCKET_RCVBUFF" => (Place::ReceiveQueue, "udp-receive-buffer"),
        "PROTO_MEM" => (Place::ReceiveQueue, "tcp-memory"),
        "TCP_OFO_QUEUE_PRUNE" | "TCP_OFO_DROP" | "TCP_ZEROWINDOW" | "TCP_OVERWINDOW" => {
            (Place::ReceiveQueue, "tcp-receive-pruned")
        }
        _ => return None,
    })
}

/// Returns whether the host has forwarded packets, by its counters.
#[must_use]
pub fn forwards(counters: &BTreeMap<String, u64>) -> bool {
    ["Ip.ForwDatagrams", "Snmp6.Ip6OutForwDatagrams"]
        .iter()
        .any(|name| counters.get(*name).is_some_and(|packets| *packets > 0))
}

/// Returns the rule about wrong IP headers. On a host that forwards, most of these are of packets whose time
/// to live has ended.
const fn of_headers(forwards: bool) -> &'static str {
    if forwards { "ttl-expired" } else { "ip-header-errors" }
}

struct Losses(Vec<Loss>);

impl Losses {
    fn add(
        &mut self,
        place: Place,
        subject: impl Into<String>,
        packets: u64,
        counter: impl Into<String>,
        rule: &'static str,
    ) {
        if packets > 0 {
            self.0.push(Loss { place, subject: subject.into(), packets, counter: counter.into(), rule });
        }
    }

    fn packets_of(&self, filter: impl Fn(&&Loss) -> bool) -> u64 {
        self.0.iter().filter(filter).map(|loss| loss.packets).saturating_sum()
    }

    /// Adds the increase of each counter in `names`, counters of the network layer, without the `contained`
    /// packets that other losses already contain. Returns the number of contained packets that remain.
    fn add_beyond(
        &mut self,
        mut contained: u64,
        names: [&str; 2],
        rule: &'static str,
        gained: &dyn Fn(&str) -> u64,
    ) -> u64 {
        for name in names {
            let packets = gained(name);
            let again = packets.min(contained);
            contained -= again;
            self.add(Place::Network, HOST, packets - again, name, rule);
        }
        contained
    }
}

/// Returns the increase of a counter. A counter that was reset counts from 0. If a reading lacks the counter,
/// returns 0: the increase is unknown, and the value since boot is no loss of this interval.
fn gained(before: Option<u64>, after: Option<u64>) -> u64 {
    match (before, after) {
        (Some(before), Some(after)) if after >= before => after - before,
        (Some(_), Some(after)) => after,
        _ => 0,
    }
}

/// Returns the earlier value of a counter; 0 for an object that did not exist then, and `None` for a value
/// that the reading lacks.
fn earlier_value(before: Option<u64>, was_read: bool) -> Option<u64> {
    before.or(was_read.then_some(0))
}

pub(crate) fn is_unread(facts: &HostFacts, source: &str) -> bool {
    facts.unknown.iter().any(|gap| gap.concerns(source))
}

/// Returns the increase of a 32-bit counter (`/proc/net/softnet_stat`, `struct gnet_stats_queue`), which
/// may wrap. Any other decrease counts as a reset. Returns 0 if the earlier value is unknown.
#[must_use]
pub fn gained_of_32_bits(before: Option<u64>, after: u64) -> u64 {
    const RANGE: u64 = 1 << 32;
    match before {
        // The counter was near its maximum before and is near 0 now, so it wrapped.
        Some(before) if (RANGE / 4 * 3..RANGE).contains(&before) && after < RANGE / 4 => {
            (after + RANGE).saturating_sub(before)
        }
        _ => gained(before, Some(after)),
    }
}

/// The sources of the counters that [`losses`] compares.
pub const COUNTERS: &[&str] = &[
    needs::STATISTICS,
    needs::DRIVER_STATISTICS,
    needs::QDISCS,
    needs::SOFTNET,
    needs::NETSTAT,
    needs::SNMP,
    needs::SNMP6,
    needs::UDP,
    needs::UDP6,
    needs::RAW,
    needs::RAW6,
    "/proc/net/stat",
];

/// Returns the gaps of two readings that concern the loss counters.
pub fn unread<'f>(before: &'f HostFacts, after: &'f HostFacts) -> impl Iterator<Item = &'f Unknown> {
    let counts = |gap: &&Unknown| COUNTERS.iter().any(|counter| gap.concerns(counter));
    before.unknown.iter().chain(&after.unknown).filter(counts)
}

/// Returns the packets lost between two readings of a host, in path order.
#[must_use]
pub fn losses(before: &HostFacts, after: &HostFacts) -> Vec<Loss> {
    let mut found = Losses(Vec::new());
    if let Some(loopback) =
        after.interfaces.iter().find(|interface| interface.kind == InterfaceKind::Loopback)
    {
        qdiscs(&mut found, before, before.interface(&loopback.name), loopback);
    }
    for line in &after.softnet {
        let earlier = before.softnet.iter().find(|earlier| earlier.processor == line.processor);
        let subject = format!("processor {}", line.processor);
        let dropped = gained_of_32_bits(earlier.map(|line| line.dropped), line.dropped);
        found.add(Place::SoftnetBacklog, &subject, dropped, "softnet_stat dropped", "backlog-drops");
        let limited = gained_of_32_bits(earlier.map(|line| line.flow_limited), line.flow_limited);
        found.add(Place::SoftnetBacklog, &subject, limited, "softnet_stat flow_limit", "backlog-drops");
    }
    // `enqueue_to_backlog` (net/core/dev.c) also counts these packets in `rx_dropped` of their interface.
    let mut at_backlogs = found.packets_of(|loss| loss.place == Place::SoftnetBacklog);
    for interface in after.interfaces.iter().filter(|interface| interface.kind != InterfaceKind::Loopback) {
        let earlier = before.same_interface(interface);
        qdiscs(&mut found, before, earlier, interface);
        match interface.kind {
            InterfaceKind::Veth | InterfaceKind::Virtual | InterfaceKind::Bridge => {
                at_virtual_interface(&mut found, (before, after), interface, &mut at_backlogs);
            }
            _ => at_interface(&mut found, earlier, interface),
        }
    }
    let counter = |name: &str| gained(before.counters.get(name).copied(), after.counters.get(name).copied());
    for row in HOST_COUNTERS {
        let counted = row.includes.iter().map(|name| counter(name)).saturating_sum();
        let packets = counter(row.name).saturating_sub(counted);
        found.add(row.place, HOST, packets, row.name, row.rule(&after.counters));
    }
    for (name, _) in receive_queue_drops(&after.counters) {
        found.add(Place::ReceiveQueue, "host", counter(name), name, "tcp-receive-pruned");
    }
    // A socket's `sk_drops` counts drops because of a full buffer and because of lack of memory.
    let datagrams = ["Udp.RcvbufErrors", "Snmp6.Udp6RcvbufErrors", "Udp.MemErrors", "Snmp6.Udp6MemErrors"];
    let sum = |of: &dyn Fn(&str) -> u64| datagrams.into_iter().map(of).saturating_sum();
    let between = |name: &str| gained_between(before, after, name);
    udp(&mut found, before, after, [sum(&counter), sum(&between)]);
    // A checksum is often verified at the socket, whose drops then include the datagram.
    let at_sockets = found.packets_of(|loss| loss.counter == SOCKET_DROPS).saturating_sub(sum(&counter));
    let damaged = ["Udp.InCsumErrors", "Snmp6.Udp6InCsumErrors"];
    let at_sockets = found.add_beyond(at_sockets, damaged, "checksum-errors", &counter);
    // `sk_filter_trim_cap` (net/core/filter.c) refuses a datagram, which UDP also counts as an error.
    let refused = at_sockets.saturating_add(counter("TcpExt.PFMemallocDrop"));
    // The kernel increases the counters one after another, so only a difference in both pairs of readings is
    // a loss.
    let rest = |name: &str| udp_rest(name, &counter).min(udp_rest(name, &between));
    found.add_beyond(refused, UDP_ERRORS.map(|(name, _)| name), "udp-errors", &rest);
    at_sockets_of(&mut found, before, after, SocketKind::Raw);
    by_ip(&mut found, &counter, &between);
    let beyond = |retransmitted: u64, not_sent: u64| {
        let explained = explained(retransmitted, not_sent, &found.0, after);
        (retransmitted - explained, explained)
    };
    let beyond = match beyond(counter(RETRANSMISSIONS), counter(NOT_SENT)) {
        (beyond, 0) => beyond,
        (beyond_all, _) => beyond(between(RETRANSMISSIONS), between(NOT_SENT)).0.min(beyond_all),
    };
    found.add(Place::Path, "host", beyond, RETRANSMISSIONS, "retransmissions");
    found.0.sort_by_key(|loss| (loss.place, std::cmp::Reverse(loss.packets)));
    found.0
}

/// Fills in the counters of [`losses`] that `after` lacks, with their values in `before`. The next comparison
/// then includes the growth of this interval.
pub fn keep_unread(before: &HostFacts, after: &mut HostFacts) {
    for line in &before.softnet {
        if !after.softnet.iter().any(|other| other.processor == line.processor) {
            after.softnet.push(*line);
        }
    }
    for (name, value) in &before.counters {
        after.counters.entry(name.clone()).or_insert(*value);
    }
    if [needs::UDP, needs::UDP6, needs::RAW, needs::RAW6].iter().any(|table| is_unread(after, table)) {
        after.sockets.clone_from(&before.sockets);
    }
    let lacks_qdiscs = is_unread(after, needs::QDISCS);
    for interface in &mut after.interfaces {
        let Some(earlier) = before.same_interface(interface) else { continue };
        if lacks_qdiscs {
            interface.qdiscs.clone_from(&earlier.qdiscs);
        }
        let (now, old) = (&mut interface.losses, &earlier.losses);
        for (now, old) in [
            (&mut now.ring, old.ring),
            (&mut now.nic, old.nic),
            (&mut now.wire, old.wire),
            (&mut now.driver, old.driver),
            (&mut now.other, old.other),
            (&mut now.transmit, old.transmit),
            (&mut now.allowance, old.allowance),
        ] {
            *now = now.or(old);
        }
    }
}

/// Adds the packets that IP could not send, and the datagrams that UDP could not send. If a qdisc, a device,
/// a full neighbour table, connection tracking or the path's MTU drops a datagram, `ip_send_skb`
/// (net/ipv4/ip_output.c) also counts a discard. If the error is `ENOBUFS`, `udp_send_skb`
/// (net/ipv4/udp.c) also counts a full send buffer.
fn by_ip(found: &mut Losses, counter: &dyn Fn(&str) -> u64, between: &dyn Fn(&str) -> u64) {
    const DISCARDS: [&str; 2] = ["Ip.OutDiscards", "Snmp6.Ip6OutDiscards"];
    const ALSO_DISCARDS: [&str; 5] =
        ["Arp.table_fulls", "Ndisc.table_fulls", "Conntrack.drop", "Ip.FragFails", "Snmp6.Ip6FragFails"];
    // A device without a qdisc, such as veth, returns its drops to IP.
    let below = found.packets_of(|loss| matches!(loss.place, Place::Qdisc | Place::TransmitRing));
    let gained = if below == 0 { counter } else { between };
    let elsewhere = ALSO_DISCARDS.into_iter().map(counter).saturating_sum().saturating_add(below);
    found.add_beyond(elsewhere, DISCARDS, "ip-discards", gained);
    let discards = DISCARDS.into_iter().map(gained).saturating_sum();
    found.add_beyond(discards, ["Udp.SndbufErrors", "Snmp6.Udp6SndbufErrors"], "udp-send-buffer", gained);
}

/// Returns the increase of a counter, from its value after the sockets and qdiscs of the first reading to its
/// value before the sockets and qdiscs of the second reading. The counts per socket and qdisc cover a longer
/// time. So packets that these counts do not explain were lost elsewhere: the time between the reads of the
/// two kinds of counters does not explain them.
fn gained_between(before: &HostFacts, after: &HostFacts, name: &str) -> u64 {
    let later = after.counters_before.get(name).or_else(|| after.counters.get(name));
    gained(before.counters.get(name).copied(), later.copied())
}

const RETRANSMISSIONS: &str = "Tcp.RetransSegs";
/// Retransmissions that the host itself dropped. `RetransSegs` also counts these segments
/// (`__tcp_retransmit_skb`, net/ipv4/tcp_output.c).
const NOT_SENT: &str = "TcpExt.TCPRetransFail";

/// Returns the number of retransmitted segments that drops before the wire explain. [`losses`] already
/// counts these drops, so the segments are no further loss.
#[must_use]
pub fn explained_retransmissions(before: &HostFacts, after: &HostFacts) -> u64 {
    let counter = |name: &str| gained(before.counters.get(name).copied(), after.counters.get(name).copied());
    explained(counter(RETRANSMISSIONS), counter(NOT_SENT), &losses(before, after), after)
}

/// Returns how many of the retransmitted segments may have been in packets that this host dropped before the
/// wire. The result is at least `not_sent`, but never more than `retransmitted`.
fn explained(retransmitted: u64, not_sent: u64, losses: &[Loss], host: &HostFacts) -> u64 {
    let is_own = |loss: &&Loss| {
        matches!(loss.place, Place::Qdisc | Place::TransmitRing)
            || BEFORE_THE_WIRE.contains(&loss.counter.as_str())
    };
    let most = || host.interfaces.iter().map(most_segments_in_a_packet).max().unwrap_or(1);
    let segments = losses.iter().filter(is_own).map(|loss| {
        let in_a_packet = host.interface(&loss.subject).map_or_else(most, most_segments_in_a_packet);
        loss.packets.saturating_mul(in_a_packet)
    });
    segments.saturating_sum().max(not_sent).min(retransmitted)
}

/// Returns the largest number of segments in a packet above the NIC: counters of qdiscs count a GSO packet
/// once (`qdisc_qstats_drop`, include/net/sch_generic.h). Packets of more than 64 KiB (BIG TCP) are ignored.
fn most_segments_in_a_packet(interface: &Interface) -> u64 {
    /// `GSO_LEGACY_MAX_SIZE` (include/linux/netdevice.h).
    const LARGEST: u64 = 65_536;
    const OFFLOADS: [&str; 3] = ["tx-generic-segmentation", "tx-tcp-segmentation", "tx-tcp6-segmentation"];
    let is_active = |name: &&str| interface.feature(name).is_some_and(|feature| feature.on);
    match interface.mtu {
        Some(mtu) if OFFLOADS.iter().any(is_active) => (LARGEST / u64::from(mtu.max(1))).max(1),
        _ => 1,
    }
}

const HOST: &str = "host";
const SOCKET_DROPS: &str = "socket drops";

/// A loss counter of the whole host, and the rule that explains the loss.
struct HostCounter {
    place: Place,
    name: &'static str,
    rule: &'static str,
    /// Other counters of this list that also count packets of this counter.
    includes: &'static [&'static str],
}

impl HostCounter {
    /// Returns the rule that explains the loss on a host with these counters.
    fn rule(&self, counters: &BTreeMap<String, u64>) -> &'static str {
        if self.rule == of_headers(true) { of_headers(forwards(counters)) } else { self.rule }
    }
}

const fn at(place: Place, name: &'static str, rule: &'static str) -> HostCounter {
    HostCounter { place, name, rule, includes: &[] }
}

const HOST_COUNTERS: &[HostCounter] = &[
    // `nf_ct_resolve_clash` (net/netfilter/nf_conntrack_core.c) increases both counters.
    HostCounter {
        includes: &["Conntrack.insert_failed"],
        ..at(Place::Network, "Conntrack.drop", "conntrack-full")
    },
    at(Place::Network, "Conntrack.insert_failed", "conntrack-races"),
    at(Place::Network, "Arp.table_fulls", "neighbours-full"),
    at(Place::Network, "Ndisc.table_fulls", "neighbours-full"),
    at(Place::Network, "Arp.unresolved_discards", "neighbours-unresolved"),
    at(Place::Network, "Ndisc.unresolved_discards", "neighbours-unresolved"),
    at(Place::Network, "TcpExt.IPReversePathFilter", "reverse-path-drops"),
    at(Place::Network, "IpExt.InNoRoutes", "no-route"),
    at(Place::Network, "Ip.OutNoRoutes", "no-route"),
    at(Place::Network, "Snmp6.Ip6InNoRoutes", "no-route"),
    // If the neighbour table is full, `ip6_finish_output2` (net/ipv6/ip6_output.c) also counts a missing
    // route.
    HostCounter {
        includes: &["Ndisc.table_fulls"],
        ..at(Place::Network, "Snmp6.Ip6OutNoRoutes", "no-route")
    },
    at(Place::Network, "Ip.InDiscards", "ip-discards"),
    at(Place::Network, "Snmp6.Ip6InDiscards", "ip-discards"),
    // `ip_rcv_core` (net/ipv4/ip_input.c) increases both counters.
    HostCounter { includes: &["IpExt.InCsumErrors"], ..at(Place::Network, "Ip.InHdrErrors", "ttl-expired") },
    at(Place::Network, "IpExt.InCsumErrors", "checksum-errors"),
    at(Place::Network, "IpExt.InTruncatedPkts", "ip-header-errors"),
    at(Place::Network, "Snmp6.Ip6InTruncatedPkts", "ip-header-errors"),
    at(Place::Network, "Snmp6.Ip6InHdrErrors", "ttl-expired"),
    at(Place::Network, "Ip.ReasmFails", "fragments-lost"),
    at(Place::Network, "Snmp6.Ip6ReasmFails", "fragments-lost"),
    at(Place::Network, "Ip.FragFails", "fragments-made"),
    at(Place::Network, "Snmp6.Ip6FragFails", "fragments-made"),
    at(Place::Network, "Tcp.InCsumErrors", "checksum-errors"),
    at(Place::Network, "TcpExt.PFMemallocDrop", "memory-reclaim"),
    at(Place::Network, "Udp.NoPorts", "udp-no-port"),
    at(Place::Network, "Snmp6.Udp6NoPorts", "udp-no-port"),
    at(Place::AcceptQueue, "TcpExt.ListenOverflows", "listen-overflow"),
    at(Place::AcceptQueue, "TcpExt.TCPReqQFullDrop", "syn-queue-full"),
    at(Place::AcceptQueue, "TcpExt.PAWSPassive", "timestamps-refused"),
    HostCounter {
        includes: LISTEN_DROPS_EXPLAINED,
        ..at(Place::AcceptQueue, "TcpExt.ListenDrops", "syn-queue-full")
    },
    at(Place::TcpBacklog, "TcpExt.TCPBacklogDrop", "tcp-backlog-drops"),
];

/// Counters of connection requests that `TcpExt.ListenDrops` also counts (`tcp_conn_request`,
/// net/ipv4/tcp_input.c; `tcp_v4_syn_recv_sock`, net/ipv4/tcp_ipv4.c).
pub(crate) const LISTEN_DROPS_EXPLAINED: &[&str] =
    &["TcpExt.ListenOverflows", "TcpExt.TCPReqQFullDrop", "TcpExt.PAWSPassive"];

/// UDP's counters of errors, each with the counters of their causes (`__udp_queue_rcv_skb` and
/// `__udp4_lib_rcv`, net/ipv4/udp.c; net/ipv6/udp.c). Without such a cause, a socket's filter, an IPsec policy
/// or a wrong length was the cause.
pub(crate) const UDP_ERRORS: [(&str, [&str; 3]); 2] = [
    ("Udp.InErrors", ["Udp.RcvbufErrors", "Udp.MemErrors", "Udp.InCsumErrors"]),
    ("Snmp6.Udp6InErrors", ["Snmp6.Udp6RcvbufErrors", "Snmp6.Udp6MemErrors", "Snmp6.Udp6InCsumErrors"]),
];

/// Returns the errors of a counter of [`UDP_ERRORS`] without a counted cause.
pub(crate) fn udp_rest(errors: &str, counter: &dyn Fn(&str) -> u64) -> u64 {
    let causes = UDP_ERRORS.iter().filter(|(name, _)| *name == errors).flat_map(|(_, causes)| causes);
    counter(errors).saturating_sub(causes.map(|name| counter(name)).saturating_sum())
}

/// Counters of packets that this host drops before the wire, besides those at qdiscs and transmit rings. TCP
/// retransmits these packets.
const BEFORE_THE_WIRE: [&str; 6] = [
    "Arp.table_fulls",
    "Ndisc.table_fulls",
    "Arp.unresolved_discards",
    "Ndisc.unresolved_discards",
    "Ip.OutNoRoutes",
    "Snmp6.Ip6OutNoRoutes",
];

/// Adds the losses of a virtual interface, which the rule virtual-drops judges. `at_backlogs` has the packets
/// lost at backlogs that no other interface contains.
fn at_virtual_interface(
    found: &mut Losses,
    (first, second): (&HostFacts, &HostFacts),
    after: &Interface,
    at_backlogs: &mut u64,
) {
    const RULE: &str = "virtual-drops";
    let gain_of = |after: &Interface, field: fn(&LossCounters) -> Option<u64>| {
        let before = first.same_interface(after);
        let old = before.and_then(|before| field(&before.losses));
        gained(earlier_value(old, before.is_none()), field(&after.losses))
    };
    let gain = |field: fn(&LossCounters) -> Option<u64>| gain_of(after, field);
    let name = after.name.as_str();
    // Tunnels also count drops as errors.
    let has_errors = |lost: Option<u64>, dropped| lost > after.statistics.get(dropped).copied();
    let sent = if has_errors(after.losses.transmit, "tx_dropped") {
        "tx_dropped and tx_errors"
    } else {
        "tx_dropped"
    };
    found.add(Place::TransmitRing, name, gain(|losses| losses.transmit), sent, RULE);
    // A bridge also drops frames that have no destination (blocked ports, unknown groups).
    if after.kind == InterfaceKind::Bridge {
        return;
    }
    found.add(Place::Wire, name, gain(|losses| losses.wire), "receive errors", RULE);
    let missed: [fn(&LossCounters) -> Option<u64>; 3] =
        [|losses| losses.ring, |losses| losses.nic, |losses| losses.driver];
    let missed = missed.into_iter().map(gain).saturating_sum();
    found.add(Place::ReceiveRing, name, missed, "missed packets", RULE);
    // `veth_xmit` (drivers/net/veth.c) counts a packet that the other end does not take in `tx_dropped` of the
    // sending end, too.
    let peer = second
        .interfaces
        .iter()
        .find(|other| other.peer.is_some() && other.peer == after.index && after.peer == other.index);
    let at_peer = peer.map_or(0, |peer| gain_of(peer, |losses| losses.transmit));
    let dropped = gain(|losses| losses.other).saturating_sub(at_peer);
    let again = dropped.min(*at_backlogs);
    *at_backlogs -= again;
    let received = if has_errors(after.losses.other, "rx_dropped") {
        "rx_dropped and rx_errors"
    } else {
        "rx_dropped, unknown protocols included"
    };
    found.add(Place::ReceiveRing, name, dropped - again, received, RULE);
}

fn at_interface(found: &mut Losses, before: Option<&Interface>, after: &Interface) {
    let name = after.name.as_str();
    let gain = |field: fn(&LossCounters) -> Option<u64>| {
        let old = before.and_then(|before| field(&before.losses));
        gained(earlier_value(old, before.is_none()), field(&after.losses))
    };
    found.add(Place::TransmitRing, name, gain(|losses| losses.transmit), "tx_dropped", "tx-drops");
    found.add(Place::Wire, name, gain(|losses| losses.wire), "receive errors", "wire-errors");
    let (ring, nic) = (gain(|losses| losses.ring), gain(|losses| losses.nic));
    found.add(Place::ReceiveRing, name, ring, "no receive descriptor", "rx-ring-drops");
    found.add(Place::ReceiveRing, name, nic, "lost in the NIC", "rx-ring-drops");
    found.add(
        Place::ReceiveRing,
        name,
        gain(|losses| losses.allowance),
        "allowance exceeded",
        "cloud-allowance",
    );
    found.add(
        Place::ReceiveRing,
        name,
        gain(|losses| losses.driver),
        "dropped by the driver",
        "rx-ring-drops",
    );
    // The kernel's `rx_dropped` includes the drops that the driver counts. It also counts frames
    // without a receiver, such as frames of unknown protocols. So `rx_dropped` is used only if the
    // driver has no counter of its own.
    let has_own = after.losses.ring.or(after.losses.nic).or(after.losses.driver).is_some();
    if !has_own {
        let other = gain(|losses| losses.other);
        found.add(Place::ReceiveRing, name, other, "rx_dropped, unknown protocols included", "rx-ring-drops");
    }
}

/// Returns the packets that the qdiscs of an interface dropped. A root includes the drops of its
/// leaves, and of leaves that were replaced. At ingress, only filters drop packets, so ingress is
/// excluded.
#[must_use]
pub fn dropped_by_qdiscs(interface: &Interface) -> u64 {
    of_qdiscs(interface, |qdisc| qdisc.drops)
}

/// Returns the packets that the qdiscs of an interface sent. A qdisc counts since its installation,
/// unlike the interface.
#[must_use]
pub fn sent_by_qdiscs(interface: &Interface) -> u64 {
    of_qdiscs(interface, |qdisc| qdisc.packets)
}

/// Returns the larger of two sums of a counter of the egress qdiscs: at the root, and below the root.
fn of_qdiscs(interface: &Interface, counter: fn(&QdiscFacts) -> u64) -> u64 {
    let of = |is_root: bool| {
        let is_egress = |qdisc: &&QdiscFacts| !matches!(qdisc.kind.as_str(), "clsact" | "ingress");
        let qdiscs = interface.qdiscs.iter().filter(is_egress);
        qdiscs.filter(|qdisc| qdisc.is_root() == is_root).map(counter).saturating_sum()
    };
    of(true).max(of(false))
}

/// Adds the drops of an interface's qdiscs.
fn qdiscs(found: &mut Losses, host: &HostFacts, before: Option<&Interface>, after: &Interface) {
    let was_read = before.is_none() || !is_unread(host, needs::QDISCS);
    let has_leaves = after.qdiscs.iter().any(|qdisc| !qdisc.is_root());
    for qdisc in &after.qdiscs {
        // The drops of a root with leaves include the drops of its leaves.
        if qdisc.is_root() && has_leaves {
            continue;
        }
        let earlier = before.and_then(|before| before.qdiscs.iter().find(|earlier| earlier.is_same(qdisc)));
        let earlier = earlier.map(|earlier| earlier.drops);
        let dropped = gained_of_32_bits(earlier_value(earlier, was_read), qdisc.drops);
        found.add(
            Place::Qdisc,
            &after.name,
            dropped,
            format!("{} at {}", qdisc.kind, qdisc.parent),
            "qdisc-drops",
        );
    }
}

/// Adds the datagrams dropped at known UDP sockets, and the remainder of the host's counters. `counted` has
/// the sum of the counters' increases, and the sum of their increases by [`gained_between`].
fn udp(found: &mut Losses, before: &HostFacts, after: &HostFacts, counted: [u64; 2]) {
    let named = at_sockets_of(found, before, after, SocketKind::Udp);
    // If existing sockets drop datagrams, the two readings of the drops per socket must enclose the two
    // readings of the counter.
    let [all, between] = counted;
    let gone = if named == 0 { all } else { between.saturating_sub(named) };
    found.add(
        Place::ReceiveQueue,
        "UDP, sockets that are gone",
        gone,
        "Udp.RcvbufErrors",
        "udp-receive-buffer",
    );
}

/// Adds the packets dropped at the UDP sockets or at the raw sockets. Returns their number.
fn at_sockets_of(found: &mut Losses, before: &HostFacts, after: &HostFacts, kind: SocketKind) -> u64 {
    let (tables, rule) = match kind {
        SocketKind::Raw => ([needs::RAW, needs::RAW6], "raw-receive-buffer"),
        _ => ([needs::UDP, needs::UDP6], "udp-receive-buffer"),
    };
    let key = |socket: &SocketFacts| (socket.local.clone(), socket.remote.clone());
    let mut earlier: BTreeMap<(String, String), u64> = BTreeMap::new();
    for socket in before.sockets.iter().filter(|socket| socket.kind == kind) {
        let sum = earlier.entry(key(socket)).or_insert(0);
        *sum = sum.saturating_add(socket.drops);
    }
    let mut later: BTreeMap<(String, String), (u64, Option<u32>)> = BTreeMap::new();
    for socket in after.sockets.iter().filter(|socket| socket.kind == kind) {
        let entry = later.entry(key(socket)).or_insert((0, socket.process));
        entry.0 = entry.0.saturating_add(socket.drops);
    }
    let was_read = !tables.iter().any(|table| is_unread(before, table));
    let mut named = 0_u64;
    for (key, (drops, process)) in later {
        let dropped = gained(earlier_value(earlier.get(&key).copied(), was_read), Some(drops));
        named = named.saturating_add(dropped);
        let process = process.and_then(|number| after.process(number));
        let process = process
            .map(|process| format!(" of {} (process {})", process.name, process.number))
            .unwrap_or_default();
        let subject = match kind {
            SocketKind::Raw => format!("{}{process}", raw_socket_words(&key.0)),
            _ => format!("UDP {}{process}", key.0),
        };
        found.add(Place::ReceiveQueue, subject, dropped, SOCKET_DROPS, rule);
    }
    named
}

/// Describes a raw socket by its local end, which has the protocol's number in place of the port.
pub(crate) fn raw_socket_words(local: &str) -> String {
    match local.rsplit_once(':') {
        Some((address, protocol)) => format!("raw socket {address}, protocol {protocol}"),
        None => format!("raw socket {local}"),
    }
}

#[cfg(test)]
mod tests;
