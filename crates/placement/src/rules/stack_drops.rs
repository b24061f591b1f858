//! Rules about packets lost above the NIC: in softirqs, sockets and tables.

use std::collections::BTreeMap;

use evenkeel_model::host::{Interface, SaturatingSum, SocketFacts, SocketKind, Softnet};

use super::nic::ring_losses;
use super::{Found, Rule, needs};
use crate::Severity::{High, Low, Medium};
use crate::loss_path::{UDP_ERRORS, dropped_by_qdiscs, udp_rest};
use crate::view::{Direction, View, bytes, count, per_cent, power_of_two};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "backlog-drops",
        looks_at: "packets that softirqs dropped because a processor's backlog was full (column 2 of \
                   /proc/net/softnet_stat)",
        fires_when: "medium: from 100 and one in a million; high: from one in 10,000",
        why: "The backlog holds packets from RPS and virtual devices; a NIC's own packets do not pass it. Without \
              drops a longer one does not help, so the rule does not recommend the paper's 250,000.",
        fix: "no RPS to one processor, if that one drops; else a backlog for 2 ms of full-sized packets at line rate, \
              at least 4,096 (four times the kernel's default); a backlog of that size: more processors in RPS",
        source: "the paper, Table I (net.core.netdev_max_backlog); Documentation/admin-guide/sysctl/net.rst",
        needs: &[needs::SOFTNET, "/proc/sys/net/core/netdev_max_backlog"],
        check: backlog,
    },
    Rule {
        name: "softnet-squeezed",
        looks_at: "rounds of receiving that ended with work left (column 3 of /proc/net/softnet_stat) against the \
                   processor's packets; if their 32-bit count has wrapped, all rounds against all received packets",
        fires_when: "low: 1,000 times and once in 10,000 packets (after a wrap, with 70 % of the rounds on one \
                     processor, in 50,000); medium: also this host lost packets, or the processor spends 30 % of its \
                     time in softirqs",
        why: "After 300 packets or 8 ms (at 250 Hz; netdev_budget, netdev_budget_usecs) other work runs, and the \
              ring fills. If only one processor ends rounds early, the cause is placement, not the budget.",
        fix: "more processors if one has 70 % of these rounds, else a larger budget (to 1,000 packets, 10 ms)",
        source: "Documentation/admin-guide/sysctl/net.rst (netdev_budget); coreos/bugs issue 2135",
        needs: &[
            needs::SOFTNET,
            needs::STATISTICS,
            needs::DRIVER_STATISTICS,
            needs::TIMES,
            "/proc/sys/net/core/netdev_budget",
            "/proc/sys/net/core/netdev_budget_usecs",
        ],
        check: squeezed,
    },
    Rule {
        name: "budget-small",
        looks_at: "net.core.netdev_budget, netdev_budget_usecs and dev_weight",
        fires_when: "low: one is below the kernel's smallest default",
        why: "Rounds of receiving end early, and each start has a cost.",
        fix: "the defaults: 300 packets, 2,000 µs (since Linux 5.7 two jiffies: 8,000 µs at 250 Hz), 64",
        source: "Documentation/admin-guide/sysctl/net.rst",
        needs: &[
            "/proc/sys/net/core/netdev_budget",
            "/proc/sys/net/core/netdev_budget_usecs",
            "/proc/sys/net/core/dev_weight",
        ],
        check: small_budget,
    },
    Rule {
        name: "tcp-backlog-drops",
        looks_at: "packets that TCP dropped because a socket's backlog was full (TcpExt.TCPBacklogDrop)",
        fires_when: "medium: from 100 and one in a million segments; high: from one in 10,000",
        why: "While the application holds the socket, packets wait in its backlog, which is not under flow control. \
              It fills if interrupts and reader are on different nodes, or the reader holds the socket for long.",
        fix: "larger receive buffers (the backlog's limit follows them), applications near their interrupts",
        source: "the paper, section IV, figure 12; tcp_add_backlog, net/ipv4/tcp_ipv4.c",
        needs: &[needs::NETSTAT, needs::SNMP],
        check: tcp_backlog,
    },
    Rule {
        name: "tcp-receive-pruned",
        looks_at: "how often TCP pruned a receive queue (PruneCalled), and the packets that it dropped there",
        fires_when: "low: 100 prunes or dropped packets, and one in a million segments; medium: that many packets \
                     were dropped (TCPRcvQDrop, TCPOFODrop, TCPZeroWindowDrop; on older kernels RcvPruned)",
        why: "Packets need more memory than the payload of the window: many small ones, or memory pressure.",
        fix: "larger receive buffers, unless all of TCP lacks memory (tcp-memory); a faster reader",
        source: "the paper, section IV (receive buffer); Documentation/networking/snmp_counter.rst",
        needs: &[needs::NETSTAT, needs::SNMP],
        check: pruned,
    },
    Rule {
        name: "udp-receive-buffer",
        looks_at: "datagrams dropped at full receive buffers (Udp.RcvbufErrors) or because UDP had no memory \
                   (Udp.MemErrors, udp_mem), and their sockets (/proc/net/udp)",
        fires_when: "low: from 100 and one in a million datagrams received, or 1,000 at one socket, whose own share \
                     is unknown; medium: from one in 100,000, or one per 10 s since boot; high: from one in 1,000",
        why: "The application reads too slowly, or its buffer is too small for a burst; UDP does not retransmit. \
              Ring, backlog and TCP's sysctls do not help.",
        fix: "a larger buffer for that socket (rmem_default for sockets that set none), and a faster reader",
        source: "udp(7); Documentation/admin-guide/sysctl/net.rst (rmem_default, rmem_max); netdata/netdata issue 4086",
        needs: &[
            needs::SNMP,
            needs::SNMP6,
            needs::UDP,
            needs::UDP6,
            "/proc/sys/net/core/rmem_default",
            "/proc/sys/net/core/rmem_max",
        ],
        check: udp,
    },
    Rule {
        name: "udp-send-buffer",
        looks_at: "datagrams that found no room in the send buffer (Udp.SndbufErrors without drops of qdiscs)",
        fires_when: "low: from 100; medium: from one in 10,000 sent",
        why: "send() fails with ENOBUFS or EAGAIN, and applications seldom retry.",
        fix: "a larger send buffer (wmem_default for sockets that set none), or a sender that paces",
        source: "udp(7); send(2), ENOBUFS; udp_sendmsg, net/ipv4/udp.c; Documentation/admin-guide/sysctl/net.rst (wmem_default)",
        needs: &[needs::SNMP, needs::SNMP6, needs::QDISCS],
        check: udp_send,
    },
    Rule {
        name: "listen-overflow",
        looks_at: "connections refused at full accept queues (TcpExt.ListenOverflows), listeners whose queue is full \
                   now, and packets dropped at listeners beyond ListenDrops",
        fires_when: "low: from 100; medium: from one in 10,000 accepted connections, or a listener's queue is full now",
        why: "The application accepts too slowly, or its queue is too short for a burst. Clients retry after a \
              second or more.",
        fix: "net.core.somaxconn if it limits the listener, and the application's own backlog",
        source: "listen(2); Documentation/networking/ip-sysctl.rst (somaxconn)",
        needs: &[needs::NETSTAT, needs::SNMP, needs::SOCKETS, "/proc/sys/net/core/somaxconn"],
        check: super::connections::listen,
    },
    Rule {
        name: "retransmissions",
        looks_at: "segments that TCP retransmitted, of all that it sent, and packets that this host lost itself",
        fires_when: "low: from one in 1,000 of at least 100,000 segments, if this host lost packets itself; medium: \
                     from one in 100; high: from one in 20; with bbr and a median round trip above 10 ms (the \
                     Internet), low up to one in 50, the loss at which bbr (BBR.LossThresh) slows down",
        why: "These segments were lost between this host's TCP and the receiver's: if no counter here shows a loss, \
              on the network or at the other end.",
        fix: "the fixes of the other findings; else check the path: `evenkeel check --watch 10s` on both hosts",
        source: "the paper, sections II and V; RFC 5681; draft-ietf-ccwg-bbr, BBR.LossThresh",
        needs: &[needs::SNMP, needs::SOFTNET, needs::STATISTICS, needs::DRIVER_STATISTICS],
        check: retransmissions,
    },
    Rule {
        name: "conntrack-full",
        looks_at: "the connection tracking table against its maximum, and what it refused or evicted",
        fires_when: "medium: from 80 %, or 100 refused or evicted connections; high: from 95 %, or 100 refused and \
                     one in a million packets",
        why: "The kernel drops new connections, and no interface counter shows it.",
        fix: "a larger table, unless it is less than two thirds full: the counters are then from the past or from a \
              peak; or no tracking for traffic that does not need it",
        source: "Documentation/networking/nf_conntrack-sysctl.rst",
        needs: &[
            "/proc/net/stat/nf_conntrack",
            needs::SNMP,
            "/proc/sys/net/netfilter/nf_conntrack_count",
            "/proc/sys/net/netfilter/nf_conntrack_max",
        ],
        check: super::connections::conntrack_full,
    },
    Rule {
        name: "neighbours-full",
        looks_at: "how often the neighbour table was full, and its entries against gc_thresh3",
        fires_when: "low: it was full once, or 90 % are in use; medium: it was full 100 times; high: also once per \
                     second since boot",
        why: "The kernel drops packets to new neighbours until it removes old entries.",
        fix: "a larger table",
        source: "arp(7), gc_thresh3; Documentation/networking/ip-sysctl.rst",
        needs: &[
            "/proc/net/stat/arp_cache",
            "/proc/net/stat/ndisc_cache",
            "/proc/sys/net/ipv4/neigh/default/gc_thresh3",
            "/proc/sys/net/ipv6/neigh/default/gc_thresh3",
        ],
        check: neighbours,
    },
];

const FEWEST: u64 = 100;

/// Returns the severity of a share of lost packets; `None` if fewer than [`FEWEST`] packets, or less than one
/// in `one_in`, were lost.
fn share(lost: u64, of: u64, one_in: u64, grave_one_in: u64) -> Option<crate::Severity> {
    if lost < FEWEST || lost.saturating_mul(one_in) < of {
        return None;
    }
    Some(if lost.saturating_mul(grave_one_in) >= of { High } else { Medium })
}

/// Returns the packets of 1,500 bytes that arrive at line rate in 2 ms, a typical delay of a softirq.
fn burst_packets(view: &View<'_>) -> u64 {
    view.fastest_bps().map_or(2000, |speed| speed / 8 / 1538 / 500)
}

fn backlog(view: &View<'_>) -> Vec<Found> {
    let dropped: u64 = view.facts.softnet.iter().map(|line| line.dropped).saturating_sum();
    let counted: u64 = view.facts.softnet.iter().map(|line| line.processed).saturating_sum();
    let received = view.nics().map(Interface::received_packets).fold(0_u64, u64::saturating_add);
    // The counters of 32 bits in softnet_stat have wrapped only if more than 2^32 - 1 packets arrived.
    let processed = if received > u64::from(u32::MAX) { counted.max(received) } else { counted };
    let Some(severity) = share(dropped, processed, 1_000_000, 10_000) else { return Vec::new() };
    let limit = view.facts.sysctl_number("net/core/netdev_max_backlog");
    let now = limit.and_then(|limit| u64::try_from(limit).ok());
    let worst: Vec<String> = worst(&view.facts.softnet, |line| line.dropped);
    let steered = view.nics().any(|nic| nic.receive_queues.iter().any(|queue| !queue.rps.is_empty()));
    let text = format!(
        "{} of {} packets were dropped at full backlogs{} ({}{}; processors {}){}",
        count(dropped),
        count(processed.saturating_add(dropped)),
        now.map(|now| format!(" of {now} packets")).unwrap_or_default(),
        per_cent(dropped as f64 / processed.saturating_add(dropped).max(1) as f64),
        view.rate_words(dropped),
        worst.join(", "),
        if steered { ", to which RPS hands packets" } else { "" }
    );
    let entry = Found::measured(
        severity,
        "host",
        text,
        "packets are lost between the NIC and IP, which TCP's flow control cannot prevent",
    );
    // The new limit does not depend on the present one: counters from before a raise must not cause
    // another raise.
    const LEAST: u64 = 4096;
    let wanted = power_of_two(burst_packets(view).max(LEAST)).min(250_000);
    if let Some(steering) = super::queues::steered_to_dropper(view) {
        let advice = "one processor gets the packets of all queues: fix this first, and use a longer backlog only if drops continue";
        return vec![Found { remedy: steering.remedy, ..entry }.advice(advice)];
    }
    vec![match now {
        Some(now) if wanted > now => entry.sysctl("net/core/netdev_max_backlog", wanted),
        Some(_) => entry.advice("the backlog is long already: more processors in RPS"),
        None => entry.advice(
            "raise net.core.netdev_max_backlog (in the initial network namespace if this one has none), or add processors to RPS",
        ),
    }]
}

/// Returns the three processors with the highest counts, and the number of others with a count, as text.
fn worst(lines: &[Softnet], of: impl Fn(&Softnet) -> u64) -> Vec<String> {
    let mut lines: Vec<(u32, u64)> =
        lines.iter().map(|line| (line.processor, of(line))).filter(|(_, count)| *count > 0).collect();
    lines.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let mut names: Vec<String> =
        lines.iter().take(3).map(|(number, found)| format!("{number}: {}", count(*found))).collect();
    if lines.len() > names.len() {
        names.push(format!("{} others", lines.len() - names.len()));
    }
    names
}

/// Returns text such as `CPU 0 ran out of budget 5 times` for the processors with the highest counts.
fn out_of_budget(lines: &[Softnet]) -> String {
    let words = |(at, name): (usize, String)| match name.split_once(": ") {
        Some((processor, times)) if at == 0 => format!("CPU {processor} ran out of budget {times} times"),
        Some((processor, times)) => format!("CPU {processor}: {times} times"),
        None => name,
    };
    let worst = worst(lines, |line| line.squeezed);
    worst.into_iter().enumerate().map(words).collect::<Vec<_>>().join(", ")
}

fn squeezed(view: &View<'_>) -> Vec<Found> {
    const FEWEST: u64 = 1000;
    const ONE_IN: u64 = 10_000;
    const ONE_IN_OF_ALL: u64 = 50_000;
    let lines = &view.facts.softnet;
    let sum = |of: fn(&Softnet) -> u64| lines.iter().map(of).saturating_sum();
    let (processed, all) = (sum(|line| line.processed), sum(|line| line.squeezed));
    // Counters of 32 bits in softnet_stat have wrapped if the interfaces received more packets than the
    // counters show.
    let received = view.nics().map(Interface::received_packets).fold(0_u64, u64::saturating_add);
    let has_wrapped = received > processed;
    // If one CPU has most squeezes after a wrap, a smaller share counts: the others were in time.
    let is_one = |line: &Softnet| line.squeezed.saturating_mul(10) >= all.saturating_mul(7);
    let is_squeezed = |line: &&Softnet| {
        let share = if has_wrapped && is_one(line) { ONE_IN_OF_ALL } else { ONE_IN };
        let (squeezed, of) = if has_wrapped { (all, received) } else { (line.squeezed, line.processed) };
        line.squeezed >= FEWEST && squeezed.saturating_mul(share) >= of
    };
    if !lines.iter().any(|line| is_squeezed(&line)) {
        return Vec::new();
    }
    // For each sysctl, the least and the largest new value. The rule budget-large still accepts the largest.
    const BUDGETS: [(&str, i64, i64); 2] =
        [("netdev_budget", 600, 1000), ("netdev_budget_usecs", 4000, 10_000)];
    let budgets: Vec<(&str, i64, i64)> = BUDGETS
        .into_iter()
        .filter_map(|(name, least, most)| {
            let now = view.facts.sysctl_number(&format!("net/core/{name}"))?;
            Some((name, now, now.saturating_mul(2).clamp(least, most)))
        })
        .collect();
    let now: Vec<String> = budgets.iter().map(|(name, now, _)| format!("{name} {now}")).collect();
    let now = if now.is_empty() { String::new() } else { format!(" ({})", now.join(", ")) };
    let text = format!(
        "{}{now}; {} times on all processors, {} of {} packets{}",
        out_of_budget(lines),
        count(all),
        per_cent(all as f64 / processed.max(received).max(1) as f64),
        count(processed.max(received)),
        view.rate_words(all)
    );
    let most = lines.iter().max_by_key(|line| line.squeezed);
    let one = most.filter(|line| view.facts.processors.len() > 1 && is_one(line));
    let effect = "packets wait in the ring meanwhile, and are lost when it is full";
    // Under load, softirqs exhaust their budget by design. An exhausted budget has a cost only if the
    // ring overflows meanwhile, or if softirqs use a large share of the processor's time.
    let loses = !own_losses(view).is_empty();
    let busy = lines
        .iter()
        .filter(is_squeezed)
        .any(|line| view.softirq_share(line.processor).is_none_or(|share| share >= 0.3));
    let severity = if loses || busy { Medium } else { Low };
    let entry = Found::measured(severity, "host", text, effect);
    let larger: Vec<_> = budgets.iter().filter(|(_, now, wanted)| wanted > now).collect();
    vec![match one {
        Some(line) => entry.advice(format!(
            "CPU {} has {} of all these rounds: a larger budget only delays other work there; spread interrupts and queues first",
            line.processor,
            per_cent(line.squeezed as f64 / all.max(1) as f64)
        )),
        None if budgets.is_empty() => entry.advice("raise net.core.netdev_budget and netdev_budget_usecs"),
        None if larger.is_empty() => {
            entry.advice("the budget is large already: more processors and queues, or fewer packets (GRO, jumbo frames)")
        }
        None => larger
            .into_iter()
            .fold(entry, |entry, (name, _, wanted)| entry.sysctl(&format!("net/core/{name}"), wanted)),
    }]
}

fn small_budget(view: &View<'_>) -> Vec<Found> {
    const DEFAULTS: [(&str, i64); 3] = [
        ("net/core/netdev_budget", 300),
        ("net/core/netdev_budget_usecs", 2000),
        ("net/core/dev_weight", 64),
    ];
    let mut found = Vec::new();
    for (path, default) in DEFAULTS {
        if let Some(value) = view.facts.sysctl_number(path).filter(|value| *value < default) {
            // `netdev_budget_usecs` is two jiffies since Linux 5.7, which is more below 1000 Hz
            // (net/core/hotdata.c).
            let least = if path.ends_with("usecs") { "at least " } else { "" };
            let text =
                format!("{} is {value}, the kernel's default is {least}{default}", path.replace('/', "."));
            found.push(
                Found::setting(Low, "host", text, "rounds of receiving end early").sysctl(path, default),
            );
        }
    }
    found
}

/// Returns `tcp_rmem` with a larger third field: at least twice the current value, and at least twice
/// the bandwidth-delay product, at most 2 GiB. `None`: unknown, at this maximum, or TCP lacks memory.
pub(super) fn larger_receive_buffers(view: &View<'_>) -> Option<String> {
    let field = |at| view.facts.sysctl_field("net/ipv4/tcp_rmem", at);
    let (least, default, most) = (field(0)?, field(1)?, field(2)?);
    // Larger buffers would use more of the memory that TCP lacks: the rule tcp-memory comes first.
    if super::tcp::lacks_memory(view) {
        return None;
    }
    let needed = view.largest_product(Direction::Receive).map_or(0, |(_, bytes, _)| bytes.saturating_mul(2));
    let wanted = most.saturating_mul(2).max(power_of_two(needed)).min(2_147_483_647);
    (wanted > most).then(|| super::tcp::buffer_sizes(least, default, wanted))
}

fn with_larger_receive_buffers(view: &View<'_>, found: Found) -> Found {
    match larger_receive_buffers(view) {
        Some(buffers) => found.sysctl("net/ipv4/tcp_rmem", buffers),
        None => found,
    }
}

fn tcp_backlog(view: &View<'_>) -> Vec<Found> {
    let dropped = view.facts.counter("TcpExt.TCPBacklogDrop");
    let segments = view.facts.counter("Tcp.InSegs");
    let Some(severity) = share(dropped, segments, 1_000_000, 10_000) else { return Vec::new() };
    let text = format!(
        "{} of {} segments were dropped at sockets' backlogs ({}{})",
        count(dropped),
        count(segments),
        per_cent(dropped as f64 / segments.max(dropped) as f64),
        view.rate_words(dropped)
    );
    let entry =
        Found::measured(severity, "host", text, "packets are lost although the receive window has room");
    let entry = with_larger_receive_buffers(view, entry);
    vec![entry.advice("put applications on the node of their interrupts, on other cores: see app-remote-node and irq-on-application")]
}

/// Returns the packets that TCP dropped at receive queues, by counter. `RcvPruned`, `OfoPruned` and
/// `PruneCalled` count events that cause drops (`tcp_prune_queue`, net/ipv4/tcp_input.c). On kernels without
/// counters of packets, each `RcvPruned` counts as one packet.
pub(crate) fn receive_queue_drops(counters: &BTreeMap<String, u64>) -> Vec<(&'static str, u64)> {
    const PACKETS: [&str; 3] = ["TcpExt.TCPRcvQDrop", "TcpExt.TCPOFODrop", "TcpExt.TCPZeroWindowDrop"];
    let of = |name: &'static str| Some((name, *counters.get(name)?));
    let found: Vec<_> = PACKETS.into_iter().filter_map(of).collect();
    if found.iter().any(|(name, _)| *name == "TcpExt.TCPRcvQDrop") {
        return found;
    }
    found.into_iter().chain(of("TcpExt.RcvPruned")).collect()
}

fn pruned(view: &View<'_>) -> Vec<Found> {
    let facts = view.facts;
    let pruned = facts.counter("TcpExt.PruneCalled");
    let dropped =
        receive_queue_drops(&facts.counters).into_iter().map(|(_, dropped)| dropped).saturating_sum();
    let segments = facts.counter("Tcp.InSegs");
    if share(pruned.max(dropped), segments, 1_000_000, 10_000).is_none() {
        return Vec::new();
    }
    let text = format!(
        "receive queues were pruned {} times, and {} packets dropped there, of {} segments ({}{}; {} packets were packed together)",
        count(pruned),
        count(dropped),
        count(segments),
        per_cent(dropped as f64 / segments.max(dropped).max(1) as f64),
        view.rate_words(pruned.max(dropped)),
        count(facts.counter("TcpExt.TCPRcvCollapsed"))
    );
    let severity = if share(dropped, segments, 1_000_000, 10_000).is_some() { Medium } else { Low };
    let entry =
        Found::measured(severity, "host", text, "TCP drops received data, or spends its time on packing it");
    let advice = if super::tcp::lacks_memory(view) {
        "all sockets together reach tcp_mem: see tcp-memory, larger buffers would only fill it faster; then look for \
         slow readers: `ss -tm` shows full receive queues"
    } else {
        "look for slow readers: `ss -tm` shows full receive queues"
    };
    vec![with_larger_receive_buffers(view, entry).advice(advice)]
}

fn udp(view: &View<'_>) -> Vec<Found> {
    let facts = view.facts;
    let sockets: Vec<&SocketFacts> =
        facts.sockets.iter().filter(|socket| socket.kind == SocketKind::Udp && socket.drops > 0).collect();
    // A socket's drops include those by its filter, which the rule udp-errors reports.
    let counter = |name: &str| facts.counter(name);
    let others = UDP_ERRORS.iter().map(|(errors, _)| udp_rest(errors, &counter)).saturating_sum();
    let at_sockets = sockets.iter().map(|socket| socket.drops).saturating_sum().saturating_sub(others);
    let memory = facts.counter("Udp.MemErrors").saturating_add(facts.counter("Snmp6.Udp6MemErrors"));
    let full = facts.counter("Udp.RcvbufErrors").saturating_add(facts.counter("Snmp6.Udp6RcvbufErrors"));
    let dropped = full.saturating_add(memory).max(at_sockets);
    let datagrams = facts.counter("Udp.InDatagrams").saturating_add(facts.counter("Snmp6.Udp6InDatagrams"));
    if dropped < FEWEST {
        return Vec::new();
    }
    let goes_on = view.per_second(dropped).is_some_and(|rate| rate >= 0.1);
    // The limit is one in a million datagrams, as for losses at a NIC. But the kernel does not count the
    // datagrams of each socket, and a socket may have few of them. So 1,000 drops at one socket suffice.
    let of_one = sockets.iter().map(|socket| socket.drops).max().unwrap_or(0);
    if dropped.saturating_mul(1_000_000) < datagrams && of_one < 1000 && !goes_on {
        return Vec::new();
    }
    let severity = share(dropped, datagrams, 100_000, 1000).unwrap_or(if goes_on { Medium } else { Low });
    let figure = |path: &str| facts.sysctl(path).unwrap_or("?").to_owned();
    let name = |socket: &&SocketFacts| {
        let process = socket.process.and_then(|number| facts.process(number));
        let process = process
            .map(|process| format!(" of {} (process {})", process.name, process.number))
            .unwrap_or_default();
        format!("{}{process}: {}", socket.local, count(socket.drops))
    };
    let mut largest = sockets.clone();
    largest.sort_by_key(|socket| std::cmp::Reverse(socket.drops));
    let names: Vec<String> = largest.iter().take(3).map(name).collect();
    let mut text = format!(
        "{} of {} datagrams were dropped at full receive buffers, {}{}",
        count(dropped),
        count(datagrams.saturating_add(dropped)),
        per_cent(dropped as f64 / datagrams.saturating_add(dropped) as f64),
        view.rate_words(dropped)
    );
    if !names.is_empty() {
        text += &format!(" ({})", names.join("; "));
    }
    let six = [("Udp", facts.counter("Udp.RcvbufErrors")), ("Udp6", facts.counter("Snmp6.Udp6RcvbufErrors"))];
    if six.iter().all(|(_, full)| *full > 0) {
        let parts = six.map(|(group, full)| format!("{group} RcvbufErrors {}", count(full)));
        text += &format!("; {}", parts.join(", "));
    }
    text += &format!(
        "; net.core.rmem_default is {}, rmem_max {}",
        figure("net/core/rmem_default"),
        figure("net/core/rmem_max")
    );
    if memory > 0 {
        text += &format!(
            "; {} of the datagrams were dropped because all UDP sockets together reached net.ipv4.udp_mem",
            count(memory)
        );
    }
    let subject = largest
        .first()
        .and_then(|socket| facts.process(socket.process?))
        .map_or("host", |process| process.name.as_str());
    let entry = Found::measured(
        severity,
        subject,
        text,
        "datagrams are lost, and UDP does not retransmit; the ring, the backlog and TCP's settings do not help",
    );
    let number = |path: &str| facts.sysctl_number(path).and_then(|value| u64::try_from(value).ok());
    let (default, most) = (number("net/core/rmem_default"), number("net/core/rmem_max"));
    // A buffer must bridge the reader's pauses, whose length is unknown. A first step is four times the
    // present size, from 8 MiB to 64 MiB.
    const LEAST: u64 = 8 << 20;
    let larger = |default: u64| default.saturating_mul(4).clamp(LEAST, 67_108_864);
    // A larger rmem_max has no effect on a socket that does not set SO_RCVBUF. New sockets have rmem_default,
    // which rmem_max does not limit (`sock_init_data_uid`, net/core/sock.c).
    let entry = match default.map(|default| (default, larger(default))) {
        Some((default, wanted)) if default < LEAST && default < wanted => {
            entry.sysctl("net/core/rmem_default", wanted)
        }
        _ => entry,
    };
    // rmem_max limits the size that a program sets with SO_RCVBUF.
    let entry = match most {
        Some(most) if most < LEAST => entry.sysctl("net/core/rmem_max", LEAST),
        _ => entry,
    };
    // The kernel's limit: an eighth of the memory, times 3/2 (udp_init, net/ipv4/udp.c).
    let pages = facts.memory_bytes.unwrap_or(0) / facts.page_bytes.max(1) / 16 * 3;
    let limit = facts.sysctl_field("net/ipv4/udp_mem", 2);
    let entry = if memory > 0 && limit.is_some_and(|limit| limit < pages) {
        entry.sysctl("net/ipv4/udp_mem", format!("{} {} {pages}", pages / 2, pages / 3 * 2))
    } else {
        entry
    };
    let up_to = match most {
        Some(most) if most < LEAST => format!("{} after net.core.rmem_max is raised", bytes(LEAST)),
        Some(most) => bytes(most),
        None => "net.core.rmem_max".to_owned(),
    };
    let advice = format!(
        "the buffer is that socket's: restart the application after net.core.rmem_default is higher{}, or let it set \
         a larger buffer (SO_RCVBUF, up to {up_to}); if it reads too slowly, no buffer suffices: use a socket for each thread \
         (SO_REUSEPORT), more processors",
        default.map(|default| format!(" than {}", bytes(default))).unwrap_or_default()
    );
    vec![entry.advice(advice)]
}

fn udp_send(view: &View<'_>) -> Vec<Found> {
    const WANTED: i64 = 8 << 20;
    let facts = view.facts;
    let errors = facts.counter("Udp.SndbufErrors").saturating_add(facts.counter("Snmp6.Udp6SndbufErrors"));
    // The counter includes datagrams that a qdisc drops (udp_send_skb). IP also counts such datagrams
    // as discards (ip_send_skb), but not TCP's packets. A larger buffer does not prevent these drops;
    // the rule qdisc-drops reports them.
    let discards = facts.counter("Ip.OutDiscards").saturating_add(facts.counter("Snmp6.Ip6OutDiscards"));
    let by_qdiscs = facts.interfaces.iter().map(dropped_by_qdiscs).saturating_sum().min(discards);
    let failed = errors.saturating_sub(by_qdiscs);
    let sent = facts.counter("Udp.OutDatagrams").saturating_add(facts.counter("Snmp6.Udp6OutDatagrams"));
    if failed < FEWEST {
        return Vec::new();
    }
    let severity = if failed.saturating_mul(10_000) >= sent { Medium } else { Low };
    let parts = [("Udp", "Udp.SndbufErrors"), ("Udp6", "Snmp6.Udp6SndbufErrors")];
    let parts = parts.map(|(group, name)| format!("{group} SndbufErrors {}", count(facts.counter(name))));
    let figure = |path: &str| facts.sysctl(path).unwrap_or("?");
    let mut text = format!(
        "{} datagrams met a full send buffer, while {} were sent ({}{})",
        count(failed),
        count(sent),
        per_cent(failed as f64 / sent.max(failed) as f64),
        view.rate_words(failed)
    );
    text += &format!(
        "; {}, {} of them dropped by qdiscs; net.core.wmem_default is {}, wmem_max {}",
        parts.join(", "),
        count(by_qdiscs.min(errors)),
        figure("net/core/wmem_default"),
        figure("net/core/wmem_max")
    );
    let mut entry = Found::measured(severity, "host", text, "datagrams are lost before they leave the host");
    for path in ["net/core/wmem_default", "net/core/wmem_max"] {
        if facts.sysctl_number(path).is_some_and(|now| now < WANTED) {
            entry = entry.sysctl(path, WANTED);
        }
    }
    vec![entry.advice(
        "restart the application, or let it set a larger buffer (SO_SNDBUF); if qdisc-drops fires, pace (fq, SO_MAX_PACING_RATE)",
    )]
}

fn retransmissions(view: &View<'_>) -> Vec<Found> {
    const ENOUGH: u64 = 100_000;
    /// Longer than in a data centre or a city.
    const FAR_US: u64 = 10_000;
    let facts = view.facts;
    let (sent, again) = (view.sent_segments(), view.retransmitted_segments());
    let own = own_losses(view);
    let one_in = |limit: u64| again.saturating_mul(limit) >= sent;
    if sent < ENOUGH || !one_in(1000) || !one_in(100) && own.is_empty() {
        return Vec::new();
    }
    let ratio = view.retransmitted_share();
    let mut text =
        format!("{} of {} segments were retransmitted ({})", count(again), count(sent), per_cent(ratio));
    let timeouts = view.facts.counter("TcpExt.TCPTimeouts");
    if timeouts > 0 {
        text += &format!(", {} after a timeout", count(timeouts));
    }
    if !own.is_empty() {
        text += &format!("; this host lost {} itself", own.join(", "));
    }
    let fastest = view.nics().max_by_key(|nic| nic.speed_bps);
    let is_bbr = facts.sysctl("net/ipv4/tcp_congestion_control").is_some_and(|name| name.starts_with("bbr"));
    let effect = if is_bbr {
        "bbr hardly slows down below 2 % loss, but each lost segment arrives a round trip or more late"
            .to_owned()
    } else {
        let cost = fastest.and_then(|nic| view.cost_of_loss(nic, ratio));
        cost.map_or_else(
            || "lost segments make TCP send less".to_owned(),
            |cost| format!("at this loss {cost}"),
        )
    };
    let is_usual = is_bbr && !one_in(50) && median_round_trip_us(view).is_some_and(|us| us > FAR_US);
    let severity = match (one_in(20), one_in(100)) {
        _ if is_usual => Low,
        (true, _) => High,
        (_, true) => Medium,
        _ => Low,
    };
    let advice = if own.is_empty() {
        "no counter of this host shows a loss, so the path or the other end loses packets: run `evenkeel check --watch 10s` on both hosts"
    } else {
        "see the findings about these losses first; the path or the other end loses the rest"
    };
    vec![Found::measured(severity, "host", text, effect).advice(advice)]
}

/// Returns the median of the connections' smallest round-trip times, µs; `None` without a connection.
fn median_round_trip_us(view: &View<'_>) -> Option<u64> {
    let mut times: Vec<u64> = view.facts.sockets.iter().filter_map(View::round_trip_of).collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// Returns a text for each place between the wire and TCP with at least [`FEWEST`] losses.
fn own_losses(view: &View<'_>) -> Vec<String> {
    let mut places = Vec::new();
    for nic in view.counted_nics() {
        let losses = &nic.losses;
        let at = |name: &str| format!("{name} {}", nic.name);
        places.extend([
            (ring_losses(losses), at("received at")),
            (losses.transmit.unwrap_or(0), at("to be sent at")),
            (losses.allowance.unwrap_or(0), at("above the cloud's allowances of")),
        ]);
    }
    places.push((
        view.facts.softnet.iter().map(|line| line.dropped).saturating_sum(),
        "at full backlogs".to_owned(),
    ));
    let is_much = |(packets, place): (u64, String)| {
        (packets >= FEWEST).then(|| format!("{} packets {}", count(packets), place))
    };
    places.into_iter().filter_map(is_much).collect()
}

fn neighbours(view: &View<'_>) -> Vec<Found> {
    const NEARLY: f64 = 0.9;
    [("Arp", "ipv4", "neighbour table"), ("Ndisc", "ipv6", "neighbour table of IPv6")]
        .into_iter()
        .filter_map(|(group, version, table)| {
            let counter = |name: &str| view.facts.counter(&format!("{group}.{name}"));
            let path = |number: u32| format!("net/{version}/neigh/default/gc_thresh{number}");
            let (full, forced, entries) =
                (counter("table_fulls"), counter("forced_gc_runs"), counter("entries"));
            /// The kernel's default (`arp_tbl`, `nd_tbl`); assumed if the number of entries is close to it.
            const DEFAULT: u64 = 1024;
            let named = view.facts.sysctl_field(&path(3), 0);
            let most = named.or_else(|| (entries.abs_diff(DEFAULT) <= DEFAULT / 16).then_some(DEFAULT));
            let is_near = most.is_some_and(|most| most > 0 && entries as f64 >= NEARLY * most as f64);
            if full == 0 && !is_near {
                return None;
            }
            let now = most.map(|most| format!(" (gc_thresh3 {most})")).unwrap_or_default();
            let mut text =
                format!("the {table} was full {} times{now}{}", count(full), view.rate_words(full));
            if entries > 0 {
                text += &format!("; it has {} entries", count(entries));
            }
            if forced > 0 {
                text += &format!(" and was cleared early {} times", count(forced));
            }
            let severity = match full {
                _ if full >= FEWEST && view.per_second(full).is_some_and(|rate| rate >= 1.0) => High,
                _ if full >= FEWEST => Medium,
                _ => Low,
            };
            let entry = Found::measured(severity, "host", text, "packets to new neighbours are dropped");
            let Some(most) = most else {
                let name = format!("net.{version}.neigh.default");
                return Some(entry.advice(format!(
                    "`sysctl -w {name}.gc_thresh3=16384 {name}.gc_thresh2=8192 {name}.gc_thresh1=4096`"
                )));
            };
            // The new limit does not depend on the present one: counters from before a raise must not cause
            // another raise.
            const WANTED: u64 = 16_384;
            let wanted = power_of_two(entries.saturating_mul(2)).max(WANTED);
            if most >= wanted {
                return Some(entry.advice("the table is large: look for scans, and for routes to whole networks on a link (`ip neigh show | wc -l`)"));
            }
            // The lower thresholds also grow, because above them the kernel removes entries that are a
            // few seconds old.
            let lower = [(1, wanted / 4), (2, wanted / 2)];
            let is_low = |(at, value): &(u32, u64)| {
                view.facts.sysctl_field(&path(*at), 0).is_none_or(|now| now < *value)
            };
            let entry = entry.sysctl(&path(3), wanted);
            Some(
                lower
                    .into_iter()
                    .filter(is_low)
                    .fold(entry, |entry, (at, value)| entry.sysctl(&path(at), value)),
            )
        })
        .collect()
}
