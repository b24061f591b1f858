//! Rules about limits on opening and closing connections.

use evenkeel_model::change::Knob;
use evenkeel_model::host::{InterfaceKind, PortUse, SaturatingSum, SocketFacts, SocketKind};

use super::{Found, Rule, needs};
use crate::Severity::{High, Low, Medium};
use crate::View;
use crate::loss_path::LISTEN_DROPS_EXPLAINED;
use crate::view::{count, per_cent, power_of_two};

const SOMAXCONN: &str = "/proc/sys/net/core/somaxconn";
const MAX_SYN_BACKLOG: &str = "/proc/sys/net/ipv4/tcp_max_syn_backlog";
const MAX_TW_BUCKETS: &str = "/proc/sys/net/ipv4/tcp_max_tw_buckets";
const PORT_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "syn-queue-full",
        looks_at: "SYNs that found the SYN queue full: dropped or answered by a cookie (TcpExt.TCPReqQFullDrop, \
                   TCPReqQFullDoCookies); drops without a counted cause (ListenDrops without ListenOverflows, \
                   TCPReqQFullDrop, PAWSPassive)",
        fires_when: "low: from 100, and one drop for a million connections, or one cookie or drop without a cause for \
                     10,000 (with a cookie a connection works, at worst without TCP options); medium: one drop for \
                     10,000, or one of the others for 100; high: one drop for 100",
        why: "A dropped SYN costs its client a second or more; a connection by cookie may lack TCP options. The SYN \
              queue is as long as the accept queue; without cookies tcp_max_syn_backlog also limits it: from three quarters \
              on, the kernel drops SYNs of unknown clients.",
        fix: "a longer backlog of the application, net.core.somaxconn and tcp_max_syn_backlog; SYN cookies on",
        source: "Documentation/networking/ip-sysctl.rst (tcp_max_syn_backlog, tcp_syncookies); tcp_conn_request, net/ipv4/tcp_input.c",
        needs: &[needs::NETSTAT, needs::SNMP, SOMAXCONN, MAX_SYN_BACKLOG],
        check: syn_queue,
    },
    Rule {
        name: "time-wait-overflow",
        looks_at: "connections that ended without TIME_WAIT because there were too many \
                   (TcpExt.TCPTimeWaitOverflow), and tcp_max_tw_buckets",
        fires_when: "low: from 100, or 90 % of the limit is in use; medium: from 100 and one in 10,000 connections",
        why: "TIME_WAIT keeps late segments out of the next connection on the same ports. Without it the last \
              acknowledgement may be lost, and the other side hangs or resets.",
        fix: "a larger tcp_max_tw_buckets: an entry takes about 250 bytes",
        source: "Documentation/networking/ip-sysctl.rst (tcp_max_tw_buckets); RFC 9293, section 3.6.1; tcp_time_wait, net/ipv4/tcp_minisocks.c",
        needs: &[needs::NETSTAT, needs::SNMP, needs::SOCKSTAT, MAX_TW_BUCKETS],
        check: time_wait,
    },
    Rule {
        name: "ports-exhausted",
        looks_at: "ports of outgoing connections (ip_local_port_range) against connections to the busiest \
                   destination and sockets in TIME_WAIT",
        fires_when: "medium: connections (at least 40 % of the ports) and TIME_WAIT take 80 %; high: connections \
                     take all, or connections and TIME_WAIT take 95 % and 1,000 connects failed; low: TIME_WAIT \
                     alone, or the connections opened in 60 s (without tcp_tw_reuse 1), could take 80 %",
        why: "Each connection to a destination takes a port of its address, until a minute after its end. Without a \
              free port connect() fails (EADDRNOTAVAIL); before that, each search for a port takes long.",
        fix: "a wider range, tcp_tw_reuse, persistent connections; more addresses",
        source: "Documentation/networking/ip-sysctl.rst (ip_local_port_range, tcp_tw_reuse); ip(7)",
        needs: &[needs::PORTS, needs::SOCKSTAT, needs::SNMP, PORT_RANGE],
        check: ports,
    },
    Rule {
        name: "conntrack-races",
        looks_at: "packets that connection tracking dropped because another packet of their flow was faster \
                   (insert_failed)",
        fires_when: "low: from 100; medium: from one in a million packets received",
        why: "The kernel tracks two packets of a new flow at once, such as a resolver's A and AAAA queries, and \
              drops one: the client repeats its query after five seconds.",
        fix: "no tracking for such traffic, or a DNS cache on the host",
        source: "nf_conntrack_confirm, net/netfilter/nf_conntrack_core.c; weaveworks/weave issue 3287; Kubernetes, NodeLocal DNSCache",
        needs: &["/proc/net/stat/nf_conntrack", needs::SNMP],
        check: races,
    },
    Rule {
        name: "bridge-netfilter",
        looks_at: "net.bridge.bridge-nf-call-iptables on hosts with a NIC in a bridge, and the connection tracking \
                   table",
        fires_when: "low: it is 1; medium: also the table is 80 % full or refused 100 connections",
        why: "Each frame that the bridge forwards for a guest passes this host's iptables and connection tracking; \
              if the table is full, guests lose connections. Docker loads br_netfilter; Kubernetes needs it only for \
              bridges of pods, which have no NIC.",
        fix: "0, or br_netfilter unloaded, if no container network needs it",
        source: "Documentation/networking/ip-sysctl.rst (/proc/sys/net/bridge/*); libvirt wiki, Net.bridge.bridge-nf-call and sysctl.conf",
        needs: &["/proc/net/stat/nf_conntrack", "/proc/sys/net/bridge/bridge-nf-call-iptables"],
        check: bridge_netfilter,
    },
    Rule {
        name: "conntrack-invalid",
        looks_at: "packets that connection tracking could not assign to a connection (invalid of nf_conntrack)",
        fires_when: "low: from 10,000 and one in 1,000 received packets; medium: from one in 100",
        why: "Tracking sees only one direction, or segments outside the window. Filters drop them, or they pass \
              without translation and the other side resets the connection.",
        fix: "both directions over the same host, else no tracking or nf_conntrack_tcp_be_liberal 1",
        source: "Documentation/networking/nf_conntrack-sysctl.rst (nf_conntrack_tcp_be_liberal, nf_conntrack_log_invalid)",
        needs: &["/proc/net/stat/nf_conntrack", needs::SNMP],
        check: conntrack_invalid,
    },
    Rule {
        name: "conntrack-buckets",
        looks_at: "entries of the connection tracking table for each bucket of its hash",
        fires_when: "low: from four entries for a bucket; medium: also processors spend 10 % of their time in \
                     softirqs on average",
        why: "Each packet walks a chain of entries: long chains cost processor time and cache misses.",
        fix: "at least nf_conntrack_max / 2 buckets",
        source: "Documentation/networking/nf_conntrack-sysctl.rst (nf_conntrack_buckets); nf_conntrack_core.c",
        needs: &[
            "/proc/net/stat/nf_conntrack",
            "/proc/sys/net/netfilter/nf_conntrack_buckets",
            "/proc/sys/net/netfilter/nf_conntrack_count",
        ],
        check: conntrack_buckets,
    },
    Rule {
        name: "neighbours-unresolved",
        looks_at: "packets dropped while a neighbour's address was being resolved (unresolved_discards), and failed \
                   requests",
        fires_when: "low: from 1,000 and one in 100,000 sent packets; medium: from one in 1,000",
        why: "Packets wait for the answer, up to unres_qlen_bytes. If a neighbour is down or answers late, the kernel \
              drops the rest.",
        fix: "the neighbours that do not answer; a longer unres_qlen_bytes for bursts",
        source: "arp(7), unres_qlen; Documentation/networking/ip-sysctl.rst (unres_qlen_bytes)",
        needs: &["/proc/net/stat/arp_cache", "/proc/net/stat/ndisc_cache", needs::SNMP],
        check: unresolved,
    },
];

fn conntrack_invalid(view: &View<'_>) -> Vec<Found> {
    const LIBERAL: &str = "net/netfilter/nf_conntrack_tcp_be_liberal";
    let invalid = view.facts.counter("Conntrack.invalid");
    let received = view.facts.counter("Ip.InReceives");
    if invalid < 10_000 || invalid.saturating_mul(1000) < received {
        return Vec::new();
    }
    let text = format!(
        "connection tracking found {} of {} received packets invalid ({}{})",
        count(invalid),
        count(received),
        per_cent(invalid as f64 / received.max(invalid) as f64),
        view.rate_words(invalid)
    );
    let severity = if invalid.saturating_mul(100) >= received { Medium } else { Low };
    let entry = Found::measured(
        severity,
        "host",
        text,
        "filters drop them, or connections through this host are reset",
    );
    let entry = if view.facts.sysctl_number(LIBERAL) == Some(0) { entry.sysctl(LIBERAL, 1) } else { entry };
    vec![entry.advice(
        "net.netfilter.nf_conntrack_log_invalid=6 logs them: route both directions over this host, or leave such \
         traffic untracked (`nft add rule ... notrack`)",
    )]
}

/// The check of the rule conntrack-full.
pub(super) fn conntrack_full(view: &View<'_>) -> Vec<Found> {
    const MAXIMUM: &str = "net/netfilter/nf_conntrack_max";
    let facts = view.facts;
    let number = |path| facts.sysctl_number(path).and_then(|value| u64::try_from(value).ok());
    let limit = number(MAXIMUM);
    // 0 is no limit (`__nf_conntrack_alloc`, net/netfilter/nf_conntrack_core.c).
    let most = limit.filter(|most| *most > 0);
    let table = number("net/netfilter/nf_conntrack_count").zip(most);
    let (refused, evicted) = (facts.counter("Conntrack.drop"), facts.counter("Conntrack.early_drop"));
    let dropped = refused.saturating_add(evicted);
    let share_of = |(entries, most): (u64, u64)| entries as f64 / most.max(1) as f64;
    let share = table.map_or(0.0, share_of);
    if share < 0.8 && dropped < FEWEST {
        return Vec::new();
    }
    let holds = table.map(|(entries, most)| {
        format!("holds {} of {} entries ({}); it ", count(entries), count(most), per_cent(share))
    });
    let text = format!(
        "the connection table {}dropped {} new entries and evicted {}{}",
        holds.unwrap_or_default(),
        count(refused),
        count(evicted),
        view.rate_words(dropped)
    );
    let received = facts.counter("Ip.InReceives");
    let grave = refused >= FEWEST && refused.saturating_mul(1_000_000) >= received;
    let severity = if share >= 0.95 || grave { High } else { Medium };
    let entry = Found::measured(severity, "host", text, "new connections are dropped");
    /// The default is five days. One day outlasts most keep-alive times.
    const TIMEOUT: &str = "net/netfilter/nf_conntrack_tcp_timeout_established";
    const DAY_S: u64 = 86_400;
    const BUCKETS: &str = "net/netfilter/nf_conntrack_buckets";
    let Some(most) = most else {
        let advice = match limit {
            Some(_) => "the table has no limit: look for memory that the kernel could not allocate",
            None => "raise net.netfilter.nf_conntrack_max",
        };
        return vec![entry.advice(advice)];
    };
    // An administrator can lower the maximum below the entries.
    let wanted = most.max(table.map_or(0, |(entries, _)| entries)).saturating_mul(2);
    // After a raise, the counters still include the losses from before: twice a full table's limit leaves the
    // table half full.
    let is_far = table.is_some_and(|(entries, most)| entries.saturating_mul(3) < most.saturating_mul(2));
    if is_far {
        return vec![entry.advice(
            "the table has room now, so the losses are from the past or from a peak: raise net.netfilter.nf_conntrack_max \
             only if they go on (`conntrack -S`); leave traffic untracked that needs no state (`nft add rule ... notrack`)",
        )];
    }
    let mut entry = entry.sysctl(MAXIMUM, wanted);
    // The entries decide on more buckets, not the maximum. The maximum grows with each plan, because
    // counters since boot include losses from before the previous plan.
    let is_short = |buckets: u64| table.is_some_and(|(entries, _)| buckets < entries / 2);
    if number(BUCKETS).is_some_and(is_short) {
        entry = entry.sysctl(BUCKETS, wanted / 2);
    }
    if let Some(timeout) = number(TIMEOUT).filter(|timeout| *timeout > DAY_S) {
        entry.evidence += &format!(
            "; idle connections stay for {} s (nf_conntrack_tcp_timeout_established)",
            count(timeout)
        );
        entry = entry.sysctl(TIMEOUT, DAY_S);
    }
    vec![entry.advice("leave traffic untracked that needs no state (`nft add rule ... notrack`): health checks, DNS, load balancers without state")]
}

fn conntrack_buckets(view: &View<'_>) -> Vec<Found> {
    const BUCKETS: &str = "net/netfilter/nf_conntrack_buckets";
    const CHAIN: u64 = 4;
    let number = |path: &str| view.facts.sysctl_field(path, 0);
    let (Some(entries), Some(buckets)) = (number("net/netfilter/nf_conntrack_count"), number(BUCKETS)) else {
        return Vec::new();
    };
    if buckets == 0 || entries < buckets.saturating_mul(CHAIN) {
        return Vec::new();
    }
    let most = number("net/netfilter/nf_conntrack_max");
    let text = format!(
        "{} tracked connections share {} buckets, {:.0} for each (nf_conntrack_max {}; search_restart {})",
        count(entries),
        count(buckets),
        entries as f64 / buckets as f64,
        most.map_or("?".to_owned(), count),
        count(view.facts.counter("Conntrack.search_restart"))
    );
    let busy = view.mean_softirq_share(|_| true).is_some_and(|share| share >= 0.1);
    let entry = Found::measured(
        if busy { Medium } else { Low },
        "host",
        text,
        "each packet walks a long chain of the hash table",
    );
    vec![entry.sysctl(BUCKETS, power_of_two(most.unwrap_or(entries).max(entries) / 2))]
}

fn unresolved(view: &View<'_>) -> Vec<Found> {
    const LENGTH: &str = "net/ipv4/neigh/default/unres_qlen_bytes";
    const WANTED: u64 = 1_048_576;
    let counter = |name: &str| view.facts.counter(name);
    let (four, six) = (counter("Arp.unresolved_discards"), counter("Ndisc.unresolved_discards"));
    let lost = four.saturating_add(six);
    let sent = counter("Ip.OutRequests")
        .saturating_add(counter("Snmp6.Ip6OutRequests"))
        .saturating_add(counter("Ip.ForwDatagrams"));
    if lost < 1000 || lost.saturating_mul(100_000) < sent {
        return Vec::new();
    }
    let now = view.facts.sysctl_field(LENGTH, 0);
    let text = format!(
        "{} packets were dropped while their neighbour's address was being resolved (ARP {}, IPv6 {}{}); {} requests had no answer{}",
        count(lost),
        count(four),
        count(six),
        view.rate_words(lost),
        count(counter("Arp.res_failed").saturating_add(counter("Ndisc.res_failed"))),
        now.map(|now| format!("; unres_qlen_bytes is {now}")).unwrap_or_default()
    );
    let severity = if lost.saturating_mul(1000) >= sent { Medium } else { Low };
    let entry = Found::measured(
        severity,
        "host",
        text,
        "the first packets to a neighbour are lost, or all packets to one that is down",
    );
    let entry = match now {
        Some(now) if now < WANTED => entry.sysctl(LENGTH, WANTED),
        _ => entry,
    };
    vec![entry.advice("`ip neigh show nud failed` and `nud incomplete` name the neighbours: routes to hosts that do not exist, scans of the network")]
}

fn bridge_netfilter(view: &View<'_>) -> Vec<Found> {
    const SYSCTL: &str = "net/bridge/bridge-nf-call-iptables";
    const FULL: f64 = 0.8;
    if view.facts.sysctl_number(SYSCTL) != Some(1) {
        return Vec::new();
    }
    let is_uplink = |name: &String| {
        let port = view.facts.interface(name);
        port.is_some_and(|port| matches!(port.kind, InterfaceKind::Device | InterfaceKind::Bond))
    };
    let bridges =
        view.facts.interfaces.iter().filter(|bridge| bridge.kind == InterfaceKind::Bridge && bridge.up);
    let Some((bridge, uplink)) = bridges
        .into_iter()
        .find_map(|bridge| Some((bridge, bridge.lower.iter().find(|name| is_uplink(name))?)))
    else {
        return Vec::new();
    };
    let number =
        |path| view.facts.sysctl_number(path).and_then(|value| u64::try_from(value).ok()).unwrap_or(0);
    let (entries, most) =
        (number("net/netfilter/nf_conntrack_count"), number("net/netfilter/nf_conntrack_max"));
    let refused = view.facts.counter("Conntrack.drop");
    let full = most > 0 && entries as f64 >= FULL * most as f64;
    let text = format!(
        "net.bridge.bridge-nf-call-iptables is 1, and frames between {uplink} and the guests of {} go through iptables and connection \
         tracking; its table holds {} of {} entries and refused {}",
        bridge.name,
        count(entries),
        count(most),
        count(refused)
    ) + &view.facts.interface(uplink).map(|nic| view.softirq_words(nic)).unwrap_or_default();
    let effect = "guests lose connections when the host's table is full, and each frame costs processor time";
    let entry = if full || refused >= FEWEST {
        Found::measured(Medium, "host", text, effect)
    } else {
        Found::setting(Low, "host", text, effect)
    };
    vec![entry.sysctl(SYSCTL, 0).advice(
        "the same for bridge-nf-call-ip6tables and bridge-nf-call-arptables; keep it if a container network or filters for guests on this host need it",
    )]
}

const FEWEST: u64 = 100;

fn syn_queue(view: &View<'_>) -> Vec<Found> {
    const ONE_IN: u64 = 100;
    const DROPPED_ONE_IN: u64 = 10_000;
    /// The share from which the rules of losses at NICs and backlogs report.
    const SEEN_ONE_IN: u64 = 1_000_000;
    let counter = |name: &str| view.facts.counter(name);
    let (dropped, cookies) = (counter("TcpExt.TCPReqQFullDrop"), counter("TcpExt.TCPReqQFullDoCookies"));
    let explained = LISTEN_DROPS_EXPLAINED.iter().map(|name| counter(name)).saturating_sum();
    let others = counter("TcpExt.ListenDrops").saturating_sub(explained);
    let opened = counter("Tcp.PassiveOpens");
    let is_one_in =
        |limit: u64, requests: u64| requests >= FEWEST && requests.saturating_mul(limit) >= opened;
    let has_others = is_one_in(DROPPED_ONE_IN, others);
    if !is_one_in(SEEN_ONE_IN, dropped) && !is_one_in(DROPPED_ONE_IN, cookies) && !has_others {
        return Vec::new();
    }
    let is_much = |requests: u64| is_one_in(ONE_IN, requests);
    let is_felt = is_one_in(DROPPED_ONE_IN, dropped);
    let severity = match (is_much(dropped), is_felt || is_much(cookies) || is_much(others)) {
        (true, _) => High,
        (_, true) => Medium,
        _ => Low,
    };
    let has_cookies = view.facts.sysctl_number("net/ipv4/tcp_syncookies") != Some(0);
    let mut parts = Vec::new();
    if dropped.saturating_add(cookies) > 0 {
        parts.push(format!(
            "the SYN queue was full for {} connection requests: {} were dropped, {} answered by a cookie{}; {} connections were accepted, and {} \
             cookies sent (net.core.somaxconn {}, tcp_max_syn_backlog {})",
            count(dropped.saturating_add(cookies)),
            count(dropped),
            count(cookies),
            view.rate_words(dropped.saturating_add(cookies)),
            count(opened),
            count(counter("TcpExt.SyncookiesSent")),
            view.facts.sysctl("net/core/somaxconn").unwrap_or("?"),
            view.facts.sysctl("net/ipv4/tcp_max_syn_backlog").unwrap_or("?")
        ));
    }
    if others > 0 {
        let more = if parts.is_empty() { "" } else { "more " };
        let cause = if has_cookies {
            "no memory, or no route back to the client"
        } else {
            "SYN cookies are off, so at three quarters of tcp_max_syn_backlog the kernel drops requests of unknown clients"
        };
        parts.push(format!(
            "{} {more}requests were dropped that no other counter explains (ListenDrops{}; {} connections were accepted): {cause}",
            count(others),
            view.rate_words(others),
            count(opened)
        ));
    }
    let text = parts.join("; ");
    let is_full = dropped.saturating_add(cookies) > 0 || !has_cookies;
    let effect = if dropped.max(others) >= FEWEST {
        "clients retry after a second or more"
    } else {
        "connections lose TCP options, such as window scaling if timestamps are off"
    };
    // Fixed values: counters from before a raise must not cause another raise.
    const WANTED: [(&str, i64); 2] = [("net/core/somaxconn", 4096), ("net/ipv4/tcp_max_syn_backlog", 8192)];
    let mut entry = Found::measured(severity, "host", text, effect);
    for (name, wanted) in WANTED {
        if is_full && view.facts.sysctl_number(name).is_some_and(|now| now < wanted) {
            entry = entry.sysctl(name, wanted);
        }
    }
    if !has_cookies {
        entry = entry.sysctl("net/ipv4/tcp_syncookies", 1);
    }
    let advice = if !is_full {
        "`ss -ltn` and `perf trace -e skb:kfree_skb` name the listener and the reason; check the routes back to the \
         clients (`ip route get ADDRESS`), and memory (memory-reclaim)"
    } else if entry
        .remedy
        .changes
        .iter()
        .any(|change| WANTED.iter().any(|(name, _)| change.knob == Knob::Sysctl((*name).to_owned())))
    {
        "let the application's listen() set the same value, and restart the application; if many addresses flood \
         it with requests, use cookies"
    } else {
        "the smallest of net.core.somaxconn, tcp_max_syn_backlog (without cookies) and the application's own backlog \
         (listen(2)) is the limit: raise all three, and restart the application; if many addresses flood it with \
         requests, use cookies"
    };
    vec![entry.advice(advice)]
}

/// Returns a finding about packets that listeners dropped without a counter of connection requests: by a
/// filter, a wrong signature (TCP-MD5) or an IPsec policy (`tcp_v4_rcv`, net/ipv4/tcp_ipv4.c).
fn dropped_at_listeners(view: &View<'_>, listeners: &[&SocketFacts], dropped: u64) -> Vec<Found> {
    if dropped < FEWEST {
        return Vec::new();
    }
    let opened = view.facts.counter("Tcp.PassiveOpens");
    let most = listeners.iter().max_by_key(|socket| socket.drops);
    let text = format!(
        "listeners dropped {} packets more than ListenDrops counts, while {} connections were opened{}",
        count(dropped),
        count(opened),
        most.map(|socket| format!("; {}: {}", socket.local, count(socket.drops))).unwrap_or_default()
    );
    let severity = if dropped.saturating_mul(10_000) >= opened { Medium } else { Low };
    vec![Found::measured(severity, "host", text, "their clients retry after a second or more").advice(
        "a filter of the listener (SO_ATTACH_FILTER), a wrong TCP-MD5 signature or an IPsec policy drops them: \
         `ss -ltnm` shows the listener, `perf trace -e skb:kfree_skb` the reason",
    )]
}

/// The check of the rule listen-overflow.
pub(super) fn listen(view: &View<'_>) -> Vec<Found> {
    let facts = view.facts;
    let overflows = facts.counter("TcpExt.ListenOverflows");
    let listeners: Vec<&SocketFacts> =
        facts.sockets.iter().filter(|socket| socket.kind == SocketKind::TcpListen).collect();
    // A queue is full beyond its limit (sk_acceptq_is_full), so a backlog of 0 takes one connection.
    let full: Vec<&&SocketFacts> =
        listeners.iter().filter(|socket| socket.receive_queue > socket.send_queue).collect();
    let at_listeners = listeners.iter().map(|socket| socket.drops).saturating_sum();
    let beyond = at_listeners.saturating_sub(facts.counter("TcpExt.ListenDrops"));
    if overflows < FEWEST && full.is_empty() {
        return dropped_at_listeners(view, &listeners, beyond);
    }
    let limit = facts.sysctl_number("net/core/somaxconn");
    let at_limit =
        |socket: &SocketFacts| i64::try_from(socket.send_queue).is_ok_and(|queue| Some(queue) >= limit);
    // A listener whose queue is full now shows its limit: somaxconn, or the application's backlog.
    let is_limited = if full.is_empty() {
        listeners.iter().any(|socket| at_limit(socket)) || limit.is_some_and(|limit| limit < 1024)
    } else {
        full.iter().any(|socket| at_limit(socket))
    };
    let opened = facts.counter("Tcp.PassiveOpens");
    let mut text = format!(
        "a SYN or the last ACK of a handshake met a full accept queue {} times{}, and {} connections were opened; net.core.somaxconn \
         is {}",
        count(overflows),
        view.rate_words(overflows),
        count(opened),
        limit.map_or("?".to_owned(), |limit| limit.to_string())
    );
    let name = |socket: &&&SocketFacts| {
        let of = socket.process.and_then(|number| facts.process(number));
        let of = of.map(|process| format!(" of {}", process.name)).unwrap_or_default();
        format!("{}{of} ({} of {})", socket.local, socket.receive_queue, socket.send_queue)
    };
    if !full.is_empty() {
        text += &format!("; full now: {}", full.iter().take(3).map(name).collect::<Vec<_>>().join(", "));
    }
    let is_much = overflows.saturating_mul(10_000) >= facts.counter("Tcp.PassiveOpens");
    let severity = if is_much || !full.is_empty() { Medium } else { Low };
    let entry = Found::measured(severity, "host", text, "clients retry after a second or more");
    let entry = match limit.filter(|_| is_limited) {
        Some(limit) => entry.sysctl("net/core/somaxconn", limit.saturating_mul(4).clamp(4096, 65_535)),
        None => entry,
    };
    let asked = full.iter().map(|socket| socket.send_queue).min();
    vec![match (limit, asked) {
        (Some(limit), Some(asked)) if !is_limited => entry.advice(format!(
            "raise the backlog that the application gives to listen(2), which is {asked}: net.core.somaxconn is {limit} and does not limit it; \
             and let it accept faster"
        )),
        _ => entry.advice(
            "raise the application's own backlog (listen(2)), which the sysctl only limits, and let it accept faster",
        ),
    }]
}

fn time_wait(view: &View<'_>) -> Vec<Found> {
    const MOST: &str = "net/ipv4/tcp_max_tw_buckets";
    const SHARE: f64 = 0.9;
    let overflows = view.facts.counter("TcpExt.TCPTimeWaitOverflow");
    let waiting = view.facts.counter("Sockstat.TCP.tw");
    let most = view.facts.sysctl_number(MOST).and_then(|most| u64::try_from(most).ok());
    let share = most.map_or(0.0, |most| waiting as f64 / most.max(1) as f64);
    if overflows < FEWEST && (share < SHARE || waiting < FEWEST) {
        return Vec::new();
    }
    let text = format!(
        "{} connections ended without TIME_WAIT; {}{} places are in use (tcp_max_tw_buckets)",
        count(overflows),
        count(waiting),
        most.map(|most| format!(" of {}", count(most))).unwrap_or_default()
    );
    let connections =
        view.facts.counter("Tcp.PassiveOpens").saturating_add(view.facts.counter("Tcp.ActiveOpens"));
    let is_much = overflows >= FEWEST && overflows.saturating_mul(10_000) >= connections;
    let severity = if is_much { Medium } else { Low };
    /// The kernel's default on a host with more than 32 GB of memory (`tcp_init`, net/ipv4/tcp.c;
    /// `tcp_sk_init`, net/ipv4/tcp_ipv4.c).
    const DEFAULT: u64 = 262_144;
    let wanted = power_of_two(waiting.saturating_mul(2)).max(DEFAULT);
    let effect = "connections end unsafely: resets, and hangs of the other side";
    let entry = Found::measured(severity, "host", text, effect);
    vec![match most {
        Some(most) if most < wanted => entry.sysctl(MOST, wanted),
        Some(_) => entry
            .advice("the limit is large enough for the present number; fewer, longer connections reduce it"),
        None => {
            entry.advice("raise net.ipv4.tcp_max_tw_buckets; fewer, longer connections reduce their number")
        }
    }]
}

fn ports(view: &View<'_>) -> Vec<Found> {
    const SHARE: f64 = 0.8;
    const GRAVE: f64 = 0.95;
    const GRAVE_FAILURES: u64 = 1000;
    const WANTED: (u64, u64) = (10_240, 65_535);
    let range = |at| view.facts.sysctl_field("net/ipv4/ip_local_port_range", at);
    let (Some(first), Some(last)) = (range(0), range(1)) else { return Vec::new() };
    let ports = last.saturating_sub(first).saturating_add(1);
    let waiting = view.facts.counter("Sockstat.TCP.tw");
    let share = |sockets: u64| sockets as f64 / ports as f64;
    // The kernel does not report the destinations of sockets in TIME_WAIT. If one destination uses a
    // large share of the ports, the rule attributes these sockets to that destination.
    let busiest = view.facts.port_use.as_ref().filter(|busiest| share(busiest.connections) >= SHARE / 2.0);
    // TCP_TIMEWAIT_LEN, include/net/tcp.h.
    const TIME_WAIT_S: f64 = 60.0;
    let opened = view.facts.counter("Tcp.ActiveOpens");
    let rate = view.per_second(opened).unwrap_or(0.0);
    let lasting = (rate * TIME_WAIT_S) as u64;
    // The default value 2 reuses ports on the loopback interface only.
    let reuses = view.facts.sysctl_number("net/ipv4/tcp_tw_reuse");
    let taken = |busiest: &PortUse| busiest.connections.saturating_add(waiting).min(ports);
    let failed = view.facts.counter("Tcp.AttemptFails");
    let entry = if let Some(busiest) = busiest.filter(|busiest| share(taken(busiest)) >= SHARE) {
        let alone = share(busiest.connections);
        let of = share(taken(busiest));
        let mut text = format!(
            "{} connections from {} to {} take {} of {} ports ({first} to {last})",
            count(busiest.connections),
            busiest.local,
            busiest.remote,
            per_cent(alone),
            count(ports)
        );
        // The kernel counts TIME_WAIT sockets for the whole host. This destination can have at most the
        // remaining ports.
        if waiting > 0 {
            text += &format!(
                ", and up to {} of the host's {} sockets in TIME_WAIT take others",
                count(waiting.min(ports.saturating_sub(busiest.connections))),
                count(waiting)
            );
        }
        text += &format!(
            "; the kernel does not count connects that find no port, and {} others failed",
            count(failed)
        );
        let are_all_taken = busiest.connections >= ports;
        let severity = if are_all_taken || of >= GRAVE && failed >= GRAVE_FAILURES { High } else { Medium };
        Found::measured(
            severity,
            "host",
            text,
            "further connections there fail (EADDRNOTAVAIL), and each search for a port is slow",
        )
    } else if share(waiting) >= SHARE {
        let text = format!(
            "{} sockets are in TIME_WAIT, and outgoing connections have {} ports ({first} to {last}); whether they go to one destination is \
             not known",
            count(waiting),
            count(ports)
        );
        Found::assumed(
            "host",
            text,
            "if most go to one destination, further connections there fail (EADDRNOTAVAIL)",
        )
    } else if share(lasting) >= SHARE && reuses != Some(1) {
        let text = format!(
            "{rate:.0} connections per second are opened ({} since boot), each of which takes a port for 60 s after its end; there are {} \
             ports ({first} to {last}); whether they go to one destination is not known",
            count(opened),
            count(ports)
        );
        Found::assumed(
            "host",
            text,
            "if most go to one destination, further connections there fail (EADDRNOTAVAIL)",
        )
    } else {
        return Vec::new();
    };
    let mut entry = entry;
    if first > WANTED.0 || last < WANTED.1 {
        let wanted = format!("{} {}", first.min(WANTED.0), last.max(WANTED.1));
        entry = entry.sysctl("net/ipv4/ip_local_port_range", wanted);
    }
    if waiting >= FEWEST && reuses.is_some_and(|mode| mode != 1) {
        entry = entry.sysctl("net/ipv4/tcp_tw_reuse", 1);
    }
    vec![entry.advice(
        "keep connections open (keep-alive, a pool), or add addresses; add ports of servers in the range to ip_local_reserved_ports",
    )]
}

fn races(view: &View<'_>) -> Vec<Found> {
    const ONE_IN: u64 = 1_000_000;
    let lost = view.facts.counter("Conntrack.insert_failed");
    if lost < FEWEST {
        return Vec::new();
    }
    let received = view.facts.counter("Ip.InReceives");
    let severity = if lost.saturating_mul(ONE_IN) >= received { Medium } else { Low };
    let text = format!(
        "connection tracking dropped {} packets that raced with another of their flow ({} of {} received{})",
        count(lost),
        per_cent(lost as f64 / received.max(lost) as f64),
        count(received),
        view.rate_words(lost)
    );
    let effect = "the first packets of flows are lost: DNS answers come after five seconds";
    vec![Found::measured(severity, "host", text, effect).advice(
        "leave such traffic untracked (`nft add rule ... udp dport 53 notrack`, both directions), or run a DNS cache on this host",
    )]
}
