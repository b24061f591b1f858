//! Rules about the counters of IP and of the protocols above it: fragments, the reverse-path filter, wrong
//! checksums and headers, missing routes, discards, expired times to live, and UDP ports without a program.

use super::{Found, Rule, needs};
use crate::Severity::{High, Low, Medium};
use crate::View;
use crate::view::{bytes, count, per_cent};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "fragments-lost",
        looks_at: "fragments that were not reassembled (Ip.ReasmFails, Ip6ReasmFails), of those that came, and the \
                   memory for them",
        fires_when: "medium: from 100 and one in 1,000; high: from 10,000 and one in ten",
        why: "A lost fragment loses its packet: on the way, or because the memory for waiting fragments is full \
              (above ipfrag_high_thresh the kernel drops new ones).",
        fix: "a larger ipfrag_high_thresh if memory is the cause; else datagrams that fit the path's MTU",
        source: "Documentation/networking/ip-sysctl.rst (ipfrag_high_thresh, ipfrag_time); RFC 8900; ip_frag_reasm, net/ipv4/ip_fragment.c",
        needs: &[needs::SNMP, needs::SNMP6, needs::SOCKSTAT],
        check: fragments,
    },
    Rule {
        name: "reverse-path-drops",
        looks_at: "packets that the reverse-path filter dropped (TcpExt.IPReversePathFilter), and rp_filter of the interfaces",
        fires_when: "low: from 100; medium: from one in 10,000 received packets",
        why: "With rp_filter 1 the kernel drops a packet if the route back to its source uses another interface. \
              That is right against forged sources, but wrong with several uplinks or asymmetric routes.",
        fix: "2 (loose) on interfaces with asymmetric routes; the larger of `all` and the interface's own counts",
        source: "Documentation/networking/ip-sysctl.rst (rp_filter); RFC 3704, section 2.4",
        needs: &[needs::NETSTAT, needs::SNMP, "/proc/sys/net/ipv4/conf/all/rp_filter"],
        check: reverse_path,
    },
    Rule {
        name: "checksum-errors",
        looks_at: "IP headers, segments and datagrams whose own checksum was wrong (InCsumErrors of IpExt, Tcp and \
                   Udp), of the packets received",
        fires_when: "low: from 100; medium: from one in a million",
        why: "The frames were valid on the wire: a device between two links, or this host, damaged their segments. \
              TCP retransmits them, but misses one in 65,536 such errors.",
        fix: "find the cause: memory of a switch or NIC, an offload of the sender or of this NIC",
        source: "Stone and Partridge, When the CRC and TCP Checksum Disagree (SIGCOMM 2000); Documentation/networking/snmp_counter.rst",
        needs: &[needs::SNMP, needs::NETSTAT],
        check: checksums,
    },
    Rule {
        name: "no-route",
        looks_at: "packets without a route, sent and received (OutNoRoutes, InNoRoutes, IPv4 and IPv6)",
        fires_when: "low: from 1,000 and one in 100,000 packets; medium: from one in 1,000",
        why: "A route is missing or unstable, or the table of IPv6 routes is full (net.ipv6.route.max_size, before \
              Linux 6.3). InAddrErrors is not judged: without forwarding, it counts packets to other hosts.",
        fix: "the missing route; a larger net.ipv6.route.max_size on older kernels",
        source: "Documentation/networking/snmp_counter.rst; RFC 4293; Documentation/networking/ip-sysctl.rst (route/max_size)",
        needs: &[needs::SNMP, needs::NETSTAT],
        check: no_route,
    },
    Rule {
        name: "ip-discards",
        looks_at: "valid packets that IP dropped (InDiscards, OutDiscards, IPv4 and IPv6)",
        fires_when: "low: from 1,000 and one in 100,000 packets; medium: from one in 1,000",
        why: "The reason was memory, a queue below IP, an unresolved neighbour or an output filter: no interface \
              counter shows it.",
        fix: "the fixes of findings about qdiscs, neighbours, memory; drop reasons name the place",
        source: "Documentation/networking/snmp_counter.rst (IpInDiscards, IpOutDiscards)",
        needs: &[needs::SNMP],
        check: discards,
    },
    Rule {
        name: "ip-header-errors",
        looks_at: "packets shorter than their IP header states (InTruncatedPkts), and, on a host that forwards no \
                   packets, other wrong headers (InHdrErrors without InCsumErrors), IPv4 and IPv6",
        fires_when: "low: from 1,000 and one in 100,000 packets received; medium: from one in 1,000",
        why: "The frames were valid on the wire: their sender, or a device that rewrites packets, writes wrong headers \
              or cuts packets.",
        fix: "the sender, or the tunnel, translator or middlebox in front of this host",
        source: "ip_rcv_core, net/ipv4/ip_input.c; ip6_rcv_core, net/ipv6/ip6_input.c; \
                 Documentation/networking/snmp_counter.rst (IpInHdrErrors)",
        needs: &[needs::SNMP, needs::SNMP6, needs::NETSTAT],
        check: header_errors,
    },
    Rule {
        name: "ttl-expired",
        looks_at: "packets of a router whose time to live ended here or whose header was wrong (InHdrErrors without \
                   InCsumErrors, IPv4 and IPv6)",
        fires_when: "low: from 1,000 and one in 100,000 forwarded packets; medium: from one in 1,000",
        why: "Two routers that route packets to each other repeat each packet dozens of times until its time to live \
              ends.",
        fix: "correct the route that leads back",
        source: "ip_forward, net/ipv4/ip_forward.c; Documentation/networking/snmp_counter.rst (IpInHdrErrors)",
        needs: &[needs::SNMP, needs::NETSTAT],
        check: ttl_expired,
    },
    Rule {
        name: "udp-no-port",
        looks_at: "datagrams to ports at which no program listens (NoPorts, IPv4 and IPv6)",
        fires_when: "low: from 10,000 and one in 100 datagrams; medium: from one in ten",
        why: "A service is down or listens elsewhere; each datagram also costs an ICMP answer.",
        fix: "check the service, its address and port, or the senders' configuration",
        source: "Documentation/networking/snmp_counter.rst (UdpNoPorts)",
        needs: &[needs::SNMP],
        check: no_port,
    },
    Rule {
        name: "fragments-made",
        looks_at: "datagrams fragmented or not sent because of their size (FragCreates, FragFails, IPv4 and IPv6; \
                   Ip6InTooBigErrors), without a tunnel that explains them (mtu-tunnel)",
        fires_when: "low: from 10,000 and one in 1,000 sent packets; medium: from one in 100",
        why: "A lost fragment loses its datagram, and the receiver's NIC puts all fragments on one queue. Datagrams \
              that must not be fragmented are not sent.",
        fix: "datagrams that fit the MTU (NFS over TCP, EDNS of 1,232 bytes), one MTU on the path, TCP's MTU probing",
        source: "RFC 8900; Documentation/networking/snmp_counter.rst (IpFragCreates, IpFragFails)",
        needs: &[needs::SNMP, needs::MTU, needs::DRIVER],
        check: fragments_made,
    },
];

/// Returns the sum of counters of the network stack, and the names and values of those that are not 0.
fn named(view: &View<'_>, names: &[&str]) -> (u64, String) {
    let parts: Vec<(&str, u64)> =
        names.iter().map(|name| (*name, view.facts.counter(name))).filter(|(_, value)| *value > 0).collect();
    let sum = parts.iter().map(|(_, value)| *value).fold(0, u64::saturating_add);
    let words: Vec<String> = parts
        .iter()
        .map(|(name, value)| format!("{} {}", name.trim_start_matches("Snmp6."), count(*value)))
        .collect();
    (sum, words.join(", "))
}

/// Returns the numbers of IPv4 and IPv6 packets: received, and sent or forwarded.
fn packets(view: &View<'_>) -> (u64, u64) {
    let sum = |names: &[&str]| named(view, names).0;
    (
        sum(&["Ip.InReceives", "Snmp6.Ip6InReceives"]),
        sum(&["Ip.OutRequests", "Ip.ForwDatagrams", "Snmp6.Ip6OutRequests", "Snmp6.Ip6OutForwDatagrams"]),
    )
}

/// Returns the severity of `lost` packets of `of`: low from one in `limits.0`, medium from one in `limits.1`.
/// Returns `None` below `least` packets, or below the first limit.
fn severity(least: u64, limits: (u64, u64), lost: u64, of: u64) -> Option<crate::Severity> {
    let is_one_in = |limit: u64| lost.saturating_mul(limit) >= of;
    (lost >= least && is_one_in(limits.0)).then(|| if is_one_in(limits.1) { Medium } else { Low })
}

/// Returns text such as `12,345 of 1,000,000 packets (1.2 %, 3.2 per second since boot; NAMES)`.
fn share_words(view: &View<'_>, lost: u64, of: u64, what: &str, names: &str) -> String {
    let share = per_cent(lost as f64 / of.max(lost).max(1) as f64);
    format!("{} of {} {what} ({share}{}; {names})", count(lost), count(of.max(lost)), view.rate_words(lost))
}

fn no_route(view: &View<'_>) -> Vec<Found> {
    const SIZE: &str = "net/ipv6/route/max_size";
    const WANTED: i64 = 1_048_576;
    let six = ["Snmp6.Ip6OutNoRoutes", "Snmp6.Ip6InNoRoutes"];
    // Without forwarding, the kernel counts received packets without a route in `Ip.InAddrErrors`
    // (`ip_route_input_slow` and `ip_error`, net/ipv4/route.c). They are addressed to other hosts, such as
    // flooded frames in promiscuous mode, so this host loses nothing. With forwarding, it counts them in
    // `InNoRoutes`.
    let (lost, names) = named(view, &["Ip.OutNoRoutes", "IpExt.InNoRoutes", six[0], six[1]]);
    let (received, sent) = packets(view);
    let Some(severity) = severity(1000, (100_000, 1000), lost, received.saturating_add(sent)) else {
        return Vec::new();
    };
    let mut text = share_words(view, lost, received.saturating_add(sent), "packets had no route", &names);
    let limit = view.facts.sysctl_number(SIZE).filter(|limit| *limit < WANTED);
    let limit = limit.filter(|_| {
        view.kernel_version().is_some_and(|kernel| kernel < (6, 3)) && named(view, &six).0 >= lost / 2
    });
    if let Some(limit) = limit {
        text += &format!("; net.ipv6.route.max_size is {limit}");
    }
    let entry = Found::measured(severity, "host", text, "these packets are dropped");
    let entry = if limit.is_some() { entry.sysctl(SIZE, WANTED) } else { entry };
    vec![entry.advice("find the destinations (net.ipv4.conf.all.log_martians=1, or `tcpdump icmp`), check them with `ip route get ADDRESS`, and add the missing route")]
}

fn discards(view: &View<'_>) -> Vec<Found> {
    let kinds = ["Ip.OutDiscards", "Ip.InDiscards", "Snmp6.Ip6OutDiscards", "Snmp6.Ip6InDiscards"];
    let (lost, names) = named(view, &kinds);
    let (received, sent) = packets(view);
    let all = received.saturating_add(sent);
    let Some(severity) = severity(1000, (100_000, 1000), lost, all) else { return Vec::new() };
    let text = share_words(view, lost, all, "packets were dropped by IP", &names);
    vec![Found::measured(severity, "host", text, "packets are lost between the sockets and the interfaces").advice(
        "for sent packets, first the findings about qdiscs, neighbours and memory; `evenkeel check --watch 10s` or \
         `perf trace -e skb:kfree_skb` names the place and the reason",
    )]
}

/// Returns the packets with a wrong IP header but a right checksum of the header, and the counters. A wrong
/// checksum is also a header error (`ip_rcv_core`, net/ipv4/ip_input.c).
fn wrong_headers(view: &View<'_>) -> (u64, String) {
    const CHECKSUMS: &str = "IpExt.InCsumErrors";
    let counter = |name: &str| view.facts.counter(name);
    let (_, names) = named(view, &["Ip.InHdrErrors", CHECKSUMS, "Snmp6.Ip6InHdrErrors"]);
    let wrong = counter("Ip.InHdrErrors").saturating_sub(counter(CHECKSUMS));
    (wrong.saturating_add(counter("Snmp6.Ip6InHdrErrors")), names)
}

fn header_errors(view: &View<'_>) -> Vec<Found> {
    let (cut, mut names) = named(view, &["IpExt.InTruncatedPkts", "Snmp6.Ip6InTruncatedPkts"]);
    let mut lost = cut;
    if !crate::loss_path::forwards(&view.facts.counters) {
        let (wrong, of_wrong) = wrong_headers(view);
        lost = lost.saturating_add(wrong);
        names =
            [names, of_wrong].into_iter().filter(|names| !names.is_empty()).collect::<Vec<_>>().join(", ");
    }
    let (received, _) = packets(view);
    let Some(severity) = severity(1000, (100_000, 1000), lost, received) else { return Vec::new() };
    let text = share_words(view, lost, received, "packets had a wrong IP header or were cut short", &names);
    vec![Found::measured(severity, "host", text, "IP drops them, and their connections wait or hang").advice(
        "find the senders (`tcpdump -vv` prints 'bad-len' and 'truncated-ip'): a tunnel, a translator or a middlebox \
         in front of this host, or one sender's NIC or driver",
    )]
}

fn ttl_expired(view: &View<'_>) -> Vec<Found> {
    let (lost, names) = wrong_headers(view);
    let (forwarded, _) = named(view, &["Ip.ForwDatagrams", "Snmp6.Ip6OutForwDatagrams"]);
    let Some(severity) = severity(1000, (100_000, 1000), lost, forwarded).filter(|_| forwarded > 0) else {
        return Vec::new();
    };
    let (told, expired) = named(view, &["IcmpMsg.OutType11", "Icmp.OutTimeExcds", "Snmp6.Icmp6OutTimeExcds"]);
    let names = if told > 0 { format!("{names}, {expired}") } else { names };
    let text =
        share_words(view, lost, forwarded.saturating_add(lost), "packets to forward ended here", &names);
    vec![Found::measured(severity, "host", text, "a routing loop repeats packets until their time to live ends").advice(
        "find the loop (`tcpdump 'ip[8] < 2'`, traceroute to these destinations): if the default route covers a network of your own, add a blackhole route for this network",
    )]
}

fn no_port(view: &View<'_>) -> Vec<Found> {
    let (lost, names) = named(view, &["Udp.NoPorts", "Snmp6.Udp6NoPorts"]);
    let (taken, _) = named(view, &["Udp.InDatagrams", "Snmp6.Udp6InDatagrams"]);
    let Some(severity) = severity(10_000, (100, 10), lost, taken.saturating_add(lost)) else {
        return Vec::new();
    };
    let text = share_words(
        view,
        lost,
        taken.saturating_add(lost),
        "datagrams came to ports without a program",
        &names,
    );
    vec![Found::measured(severity, "host", text, "the kernel drops them and answers each by ICMP").advice(
        "find the port (`tcpdump -n 'icmp[0] == 3 and icmp[1] == 3'`): start the service, or stop the senders",
    )]
}

fn fragments_made(view: &View<'_>) -> Vec<Found> {
    let kinds = [
        "Ip.FragCreates",
        "Ip.FragFails",
        "Snmp6.Ip6FragCreates",
        "Snmp6.Ip6FragFails",
        "Snmp6.Ip6InTooBigErrors",
    ];
    let (made, names) = named(view, &kinds);
    let (_, sent) = packets(view);
    let Some(severity) = severity(10_000, (1000, 100), made, sent) else { return Vec::new() };
    // The rule mtu-tunnel already reports the tunnel.
    if super::mtu::explains_fragments(view) {
        return Vec::new();
    }
    let text = share_words(view, made, sent, "sent packets were fragments or too large", &names);
    let largest = view.nics().filter_map(|nic| Some((nic.mtu?, &nic.name))).max();
    let text = largest.map_or(text.clone(), |(mtu, name)| format!("{text}; {name} has an MTU of {mtu}"));
    vec![Found::measured(severity, "host", text, "a datagram is lost with any of its fragments, and unfragmentable ones are not sent").advice(
        "smaller datagrams of the application (EDNS buffer 1232, NFS over TCP, the tunnel's MTU within guests), the \
         same MTU on all interfaces of the path, net.ipv4.tcp_mtu_probing=1 for TCP; routers must pass ICMP \
         'fragmentation needed' and 'packet too big'",
    )]
}

fn checksums(view: &View<'_>) -> Vec<Found> {
    const ONE_IN: u64 = 1_000_000;
    let counter = |name: &str| view.facts.counter(name);
    let tcp = counter("Tcp.InCsumErrors");
    let udp = counter("Udp.InCsumErrors").saturating_add(counter("Snmp6.Udp6InCsumErrors"));
    let ip = counter("IpExt.InCsumErrors");
    let (damaged, received) = (ip.saturating_add(tcp).saturating_add(udp), counter("Ip.InReceives"));
    if damaged < FEWEST {
        return Vec::new();
    }
    let headers = if ip > 0 { format!("{} IP headers, ", count(ip)) } else { String::new() };
    let text = format!(
        "{headers}{} TCP segments and {} UDP datagrams of {} packets had a wrong checksum of their own ({}{})",
        count(tcp),
        count(udp),
        count(received),
        per_cent(damaged as f64 / received.max(damaged) as f64),
        view.rate_words(damaged)
    );
    let is_much = damaged.saturating_mul(ONE_IN) >= received;
    let effect = "they are dropped, and TCP sends them again";
    vec![Found::measured(if is_much { Medium } else { Low }, "host", text, effect).advice(
        "`tcpdump -vv` shows their senders: if it is one peer, check its offload or path; if all peers, this NIC \
         (`ethtool -K DEV rx off` for a test) or the switch in front of it",
    )]
}

const FEWEST: u64 = 100;

fn fragments(view: &View<'_>) -> Vec<Found> {
    const ONE_IN: u64 = 1000;
    const GRAVE: u64 = 10_000;
    const FULL: f64 = 0.5;
    /// About a hundredth of the memory, within the limits below: a burst of fragments needs no more.
    const MEMORY_PART: u64 = 128;
    const LEAST_BYTES: u64 = 16 << 20;
    const MOST_BYTES: u64 = 256 << 20;
    let mut found = Vec::new();
    for (version, group, sysctl, memory) in [
        ("IPv4", "Ip.", "net/ipv4/ipfrag_high_thresh", "Sockstat.FRAG.memory"),
        ("IPv6", "Snmp6.Ip6", "net/ipv6/ip6frag_high_thresh", "Sockstat.FRAG6.memory"),
    ] {
        let counter = |name: &str| view.facts.counter(&format!("{group}{name}"));
        let (failed, wanted, timeouts) =
            (counter("ReasmFails"), counter("ReasmReqds"), counter("ReasmTimeout"));
        if failed < FEWEST || failed.saturating_mul(ONE_IN) < wanted {
            continue;
        }
        let limit = view.facts.sysctl_number(sysctl).and_then(|limit| u64::try_from(limit).ok());
        let used = view.facts.counter(memory);
        let full = limit.is_some_and(|limit| used as f64 >= FULL * limit as f64);
        // If most failures were no timeouts, the probable cause is lack of memory.
        let no_memory = full || timeouts.saturating_mul(2) < failed;
        let mut text = format!(
            "{} of {} fragments over {version} could not be put together ({}{})",
            count(failed),
            count(wanted),
            per_cent(failed as f64 / wanted.max(failed) as f64),
            view.rate_words(failed)
        );
        if timeouts > 0 {
            text += &format!("; {} times the rest did not arrive in time", count(timeouts));
        }
        if let Some(limit) = limit {
            text += &format!("; {} of {} for them are in use", bytes(used), bytes(limit));
        }
        let severity = if failed >= GRAVE && failed.saturating_mul(10) >= wanted { High } else { Medium };
        let effect = "datagrams larger than the MTU are lost: NFS and DNS over UDP, tunnels";
        let entry = Found::measured(severity, "host", text, effect);
        let advice = "fragments are lost on the way: smaller datagrams, or a tunnel's MTU that fits the path";
        let wanted = (view.facts.memory_bytes.unwrap_or(0) / MEMORY_PART).clamp(LEAST_BYTES, MOST_BYTES);
        found.push(match limit.filter(|limit| no_memory && *limit < wanted) {
            Some(_) => entry.sysctl(sysctl, wanted).advice(format!("if it continues, {advice}")),
            None => entry.advice(advice),
        });
    }
    found
}

fn reverse_path(view: &View<'_>) -> Vec<Found> {
    const ONE_IN: u64 = 10_000;
    let dropped = view.facts.counter("TcpExt.IPReversePathFilter");
    let received = view.facts.counter("Ip.InReceives");
    if dropped < FEWEST {
        return Vec::new();
    }
    let filter =
        |name: &str| view.facts.sysctl_number(&format!("net/ipv4/conf/{name}/rp_filter")).unwrap_or(0);
    let all = filter("all");
    let strict: Vec<&str> = view
        .facts
        .interfaces
        .iter()
        .filter(|interface| interface.up && interface.name != "lo")
        .map(|interface| interface.name.as_str())
        .filter(|name| all.max(filter(name)) == 1)
        .collect();
    let much = dropped.saturating_mul(ONE_IN) >= received;
    let text = format!(
        "the reverse-path filter dropped {} packets, {} of those received{}{}",
        count(dropped),
        per_cent(dropped as f64 / received.max(dropped) as f64),
        view.rate_words(dropped),
        if strict.is_empty() { String::new() } else { format!("; it is strict on {}", strict.join(", ")) }
    );
    let effect = "packets are lost if they arrive on another interface than the answers use";
    let mut entry = Found::measured(if much { Medium } else { Low }, "host", text, effect);
    for name in &strict {
        entry = entry.sysctl(&format!("net/ipv4/conf/{name}/rp_filter"), 2);
    }
    let advice = "first check the senders (`sysctl -w net.ipv4.conf.all.log_martians=1`): packets with forged sources should be dropped";
    vec![entry.advice(advice)]
}
