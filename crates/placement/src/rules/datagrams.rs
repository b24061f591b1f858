//! Rules about datagrams and packets dropped at UDP and raw sockets for reasons other than UDP's full buffers.

use evenkeel_model::host::{SaturatingSum, SocketFacts, SocketKind};

use super::{Found, Rule, needs};
use crate::Severity::{Low, Medium};
use crate::View;
use crate::loss_path::{UDP_ERRORS, raw_socket_words, udp_rest};
use crate::view::{count, per_cent};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "udp-errors",
        looks_at: "datagrams that UDP dropped without a counted cause: InErrors without RcvbufErrors, MemErrors and \
                   InCsumErrors (IPv4 and IPv6) and without TcpExt.PFMemallocDrop",
        fires_when: "low: from 1,000 and one in 10,000 datagrams; medium: from one in 100",
        why: "A filter of the socket (SO_ATTACH_FILTER, SO_ATTACH_BPF) or an IPsec policy dropped them, or their \
              length was wrong. Before Linux 5.11, the rest includes datagrams for which UDP had no memory.",
        fix: "none if the filter is meant; else the filter, the policy or the sender",
        source: "udp_queue_rcv_one_skb and __udp4_lib_rcv, net/ipv4/udp.c; udpv6_queue_rcv_one_skb, net/ipv6/udp.c; \
                 Documentation/networking/snmp_counter.rst",
        needs: &[needs::SNMP, needs::SNMP6, needs::NETSTAT],
        check: udp_errors,
    },
    Rule {
        name: "raw-receive-buffer",
        looks_at: "packets dropped at full receive buffers of raw sockets (/proc/net/raw, /proc/net/raw6)",
        fires_when: "low: from 1,000 at one socket, whose own share is unknown",
        why: "A raw socket gets a copy of each packet of its protocol. Its program (ping, keepalived, a routing \
              daemon) reads too slowly, or only sends and never reads.",
        fix: "a larger buffer for that socket, and a faster reader; for a program that only sends: IPPROTO_RAW, which \
              gets no packets",
        source: "raw(7); raw_v4_input, raw_rcv_skb and raw_sock_seq_show, net/ipv4/raw.c; rawv6_rcv, net/ipv6/raw.c",
        needs: &[needs::RAW, needs::RAW6],
        check: raw,
    },
];

fn udp_errors(view: &View<'_>) -> Vec<Found> {
    const FEWEST: u64 = 1000;
    let counter = |name: &str| view.facts.counter(name);
    let rests = UDP_ERRORS.map(|(errors, _)| (errors, udp_rest(errors, &counter)));
    let all = rests.iter().map(|(_, rest)| *rest).saturating_sum();
    let dropped = all.saturating_sub(counter("TcpExt.PFMemallocDrop"));
    let taken = counter("Udp.InDatagrams").saturating_add(counter("Snmp6.Udp6InDatagrams"));
    let is_one_in = |limit: u64| dropped.saturating_mul(limit) >= taken.saturating_add(dropped);
    if dropped < FEWEST || !is_one_in(10_000) {
        return Vec::new();
    }
    let names: Vec<String> = rests
        .iter()
        .filter(|(_, rest)| *rest > 0)
        .map(|(errors, rest)| format!("{} {}", errors.trim_start_matches("Snmp6."), count(*rest)))
        .collect();
    let text = format!(
        "{} of {} datagrams were dropped without a counted cause ({}{}; {} beyond full buffers, memory and checksums)",
        count(dropped),
        count(taken.saturating_add(dropped)),
        per_cent(dropped as f64 / taken.saturating_add(dropped).max(1) as f64),
        view.rate_words(dropped),
        names.join(", ")
    );
    let severity = if is_one_in(100) { Medium } else { Low };
    vec![Found::measured(severity, "host", text, "datagrams are lost, and UDP does not retransmit").advice(
        "`ss -uanpm` shows sockets with drops (d) and `ip xfrm policy` the policies; `perf trace -e skb:kfree_skb` \
         names the reason (SOCKET_FILTER, XFRM_POLICY, PKT_TOO_SMALL)",
    )]
}

fn raw(view: &View<'_>) -> Vec<Found> {
    const FEWEST: u64 = 1000;
    const MOST_NAMES: usize = 3;
    let facts = view.facts;
    let is_raw = |socket: &&SocketFacts| socket.kind == SocketKind::Raw && socket.drops >= FEWEST;
    let mut sockets: Vec<&SocketFacts> = facts.sockets.iter().filter(is_raw).collect();
    sockets.sort_by_key(|socket| std::cmp::Reverse(socket.drops));
    let Some(first) = sockets.first() else { return Vec::new() };
    let dropped = sockets.iter().map(|socket| socket.drops).saturating_sum();
    let name = |socket: &&SocketFacts| {
        let process = socket.process.and_then(|number| facts.process(number));
        let process = process.map(|process| format!(" of {} (process {})", process.name, process.number));
        let words = raw_socket_words(&socket.local);
        format!("{words}{}: {}", process.unwrap_or_default(), count(socket.drops))
    };
    let names: Vec<String> = sockets.iter().take(MOST_NAMES).map(name).collect();
    let text = format!(
        "{} packets were dropped at full receive buffers of raw sockets ({})",
        count(dropped),
        names.join("; ")
    );
    let process = first.process.and_then(|number| facts.process(number));
    let subject = process.map_or("host", |process| process.name.as_str());
    let effect = "the program misses packets; other sockets still get them";
    vec![Found::measured(Low, subject, text, effect).advice(
        "restart the program with a larger buffer (SO_RCVBUF, up to net.core.rmem_max), or let it read faster; a \
         program that only sends should open the socket with IPPROTO_RAW",
    )]
}
