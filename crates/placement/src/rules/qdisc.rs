//! Rules about qdiscs.

use evenkeel_model::change::{Knob, Value, root_qdisc};
use evenkeel_model::host::{Interface, InterfaceKind, QdiscFacts, SaturatingSum};
use evenkeel_model::shell::Line;

use super::{FAST, Found, Rule, needs};
use crate::Severity::{High, Low, Medium};
use crate::View;
use crate::loss_path::{dropped_by_qdiscs, sent_by_qdiscs};
use crate::view::{count, gigabits, per_cent};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "qdisc-no-pacing",
        looks_at: "qdiscs of NICs from 10 Gbit/s (without shapers, netem, prio and such), and net.core.default_qdisc",
        fires_when: "low: no queue has fq, the congestion control is not BBR, and TCP has at least 5 % of the \
                     packets; medium: also 0.1 % of at least 100,000 segments was retransmitted, not because of \
                     cloud allowances or recoveries without SACK",
        why: "TCP sends windows in bursts at line rate, which overflow shallow buffers and the receiver's ring; fq \
              sends evenly. The paper sets fq; ESnet recommends fq and accepts fq_codel if hosts do not pace.",
        fix: "fq at every queue, and as the default",
        source: "the paper, section III-C and Table I (net.core.default_qdisc); ESnet, fasterdata.es.net (packet pacing); tc-fq(8)",
        needs: &[
            needs::SPEED,
            needs::QDISCS,
            "/proc/sys/net/core/default_qdisc",
            "/proc/sys/net/ipv4/tcp_congestion_control",
        ],
        check: no_pacing,
    },
    Rule {
        name: "bbr-without-fq",
        looks_at: "whether TCP uses BBR, the kernel, and the qdiscs of the NICs",
        fires_when: "low: a NIC has no fq, and the kernel is older than 4.20; medium: older than 4.13, or with load",
        why: "Before Linux 4.13 only fq paces: otherwise BBR sends in bursts and misjudges the path. From 4.13 TCP \
              paces by a timer per socket, which costs little only from 4.20.",
        fix: "fq at every queue, and as the default",
        source: "tcp(7); tc-fq(8); tcp_bbr.c (\"NOTE: BBR might be used with the fq qdisc\"); tcp_internal_pacing, net/ipv4/tcp_output.c",
        needs: &[needs::KERNEL, needs::QDISCS, "/proc/sys/net/ipv4/tcp_congestion_control"],
        check: bbr_without_fq,
    },
    Rule {
        name: "qdisc-one-lock",
        looks_at: "the root qdisc of NICs with several transmit queues",
        fires_when: "medium: from 10 Gbit/s and four transmit queues, one qdisc serves all queues instead of one for \
                     each (mq); low, and only advice: a shaper (all queues that the NIC could have count)",
        why: "All processors that send take the same lock, so several queues give no gain.",
        fix: "mq, with a qdisc for each queue",
        source: "tc-mq(8); sch_generic.c (dev_activate)",
        needs: &[needs::SPEED, needs::QDISCS, needs::QUEUES],
        check: one_lock,
    },
    Rule {
        name: "qdisc-left-over",
        looks_at: "qdiscs that hold packets back on a NIC: netem and shapers",
        fires_when: "medium: netem; low: a shaper below half of the line rate",
        why: "Experiments often leave such a qdisc: a delay, loss or rate limit that no other counter explains.",
        fix: "remove it, if no program needs it",
        source: "tc-netem(8), tc-tbf(8)",
        needs: &[needs::SPEED, needs::QDISCS],
        check: left_over,
    },
    Rule {
        name: "qdisc-drops",
        looks_at: "packets that qdiscs dropped and sent since they were installed",
        fires_when: "low: from 100 and one in 100,000 (shapers: only low); medium: from one in 10,000; high: from \
                     one in 100 (NICs)",
        why: "These packets were lost before they left the host. A shaper drops packets above its rate on purpose, \
              fq_codel drops packets that wait too long, pfifo_fast drops at txqueuelen.",
        fix: "fq, which TCP does not overrun, or a longer queue",
        source: "the paper, section IV, figure 12; tc(8)",
        needs: &[needs::QDISCS],
        check: drops,
    },
    Rule {
        name: "txqueuelen-short",
        looks_at: "txqueuelen of NICs whose queues are first in, first out",
        fires_when: "low: below 1,000 packets, from 10 Gbit/s",
        why: "A burst of a few segments of 64 KB fills the queue.",
        fix: "1,000, the kernel's default",
        source: "DEFAULT_TX_QUEUE_LEN, include/linux/netdevice.h; tc-pfifo_fast(8)",
        needs: &[needs::SPEED, needs::QDISCS, needs::TX_QUEUE_LENGTH],
        check: short_queue,
    },
];

/// Returns the qdiscs, except kinds that never hold packets in a queue of their own.
fn leaves(nic: &Interface) -> Vec<&QdiscFacts> {
    const WITHOUT_PACKETS: [&str; 6] = ["mq", "mqprio", "clsact", "ingress", "taprio", "multiq"];
    nic.qdiscs.iter().filter(|qdisc| !WITHOUT_PACKETS.contains(&qdisc.kind.as_str())).collect()
}

/// Returns whether a tree has a qdisc that an administrator chose for its delays, rates or classes. No
/// rule replaces such a tree.
fn is_chosen(nic: &Interface) -> bool {
    const KINDS: [&str; 12] =
        ["tbf", "htb", "hfsc", "cake", "etf", "netem", "prio", "drr", "ets", "qfq", "multiq", "dualpi2"];
    nic.qdiscs.iter().any(|qdisc| KINDS.contains(&qdisc.kind.as_str()))
}

/// Returns a cause that explains retransmissions better than bursts do, by counters.
fn other_cause(view: &View<'_>, nic: &Interface) -> Option<String> {
    const FEWEST: u64 = 1000;
    if let Some(allowance) = nic.losses.allowance.filter(|packets| *packets >= FEWEST) {
        return Some(format!("the cloud's allowances explain: {} packets were above them", count(allowance)));
    }
    let (reno, sack) =
        (view.facts.counter("TcpExt.TCPRenoRecovery"), view.facts.counter("TcpExt.TCPSackRecovery"));
    (reno >= FEWEST && reno > sack).then(|| format!("{} recoveries without SACK explain", count(reno)))
}

fn no_pacing(view: &View<'_>) -> Vec<Found> {
    const LOSS: f64 = 0.001;
    const ENOUGH: u64 = 100_000;
    let congestion = view.facts.sysctl("net/ipv4/tcp_congestion_control").unwrap_or("cubic");
    let default = view.facts.sysctl("net/core/default_qdisc");
    // fq paces only TCP of this host, not forwarded packets.
    if congestion.starts_with("bbr") || !view.carries_tcp() {
        return Vec::new();
    }
    let lossy = view.retransmitted_share() >= LOSS && view.sent_segments() >= ENOUGH;
    let mut found = Vec::new();
    for nic in view.nics().filter(|nic| nic.speed_bps.is_some_and(|speed| speed >= FAST)) {
        let leaves = leaves(nic);
        let has_fq = leaves.iter().any(|qdisc| qdisc.kind == "fq");
        if has_fq || is_chosen(nic) || leaves.is_empty() && (default.is_none() || default == Some("fq")) {
            continue;
        }
        let mut kinds: Vec<&str> = leaves.iter().map(|qdisc| qdisc.kind.as_str()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let kinds = if kinds.is_empty() {
            format!("net.core.default_qdisc is {}", default.unwrap_or_default())
        } else {
            format!("its queues have {}", kinds.join(" and "))
        };
        let mut text = format!("{kinds}, and {congestion} does not pace");
        if lossy {
            text += &format!("; {} of all segments were retransmitted", per_cent(view.retransmitted_share()));
        }
        let cause = other_cause(view, nic).filter(|_| lossy);
        if let Some(cause) = &cause {
            text += &format!(", which {cause}");
        }
        let effect = "TCP sends windows in bursts at line rate, which may overflow buffers on the path and the receiver's ring";
        let severity = if lossy && cause.is_none() { Medium } else { Low };
        let mut entry = Found::setting(severity, &nic.name, text, effect).on(&nic.name);
        if default != Some("fq") {
            entry = entry.sysctl("net/core/default_qdisc", "fq");
        }
        let queues = u16::try_from(nic.transmit_queues.len().max(1)).unwrap_or(u16::MAX);
        found.push(entry.change(Knob::RootQdisc, Value::Qdiscs(root_qdisc("fq", queues))));
    }
    found
}

fn bbr_without_fq(view: &View<'_>) -> Vec<Found> {
    let uses =
        view.facts.sysctl("net/ipv4/tcp_congestion_control").is_some_and(|name| name.starts_with("bbr"))
            || view.facts.sockets.iter().any(|socket| {
                socket.tcp.as_ref().is_some_and(|tcp| tcp.congestion.starts_with("bbr"))
                    && socket.bytes() > 10_000_000
            });
    let Some(kernel) = view.kernel_version().filter(|kernel| uses && *kernel < (4, 20)) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for nic in view.nics().filter(|nic| !nic.qdiscs.is_empty()) {
        if nic.qdiscs.iter().any(|qdisc| qdisc.kind == "fq") {
            continue;
        }
        let mut kinds: Vec<&str> = leaves(nic).iter().map(|qdisc| qdisc.kind.as_str()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let text = format!(
            "TCP uses bbr on Linux {}, and the NIC's queues have {}, no fq",
            view.facts.kernel.as_deref().unwrap_or_default(),
            kinds.join(" and ")
        );
        let (severity, effect) = if kernel < (4, 13) {
            (Medium, "nothing paces BBR: it sends in bursts and misjudges the bandwidth of the path")
        } else {
            let severity = if view.is_loaded(nic) { Medium } else { Low };
            (severity, "TCP paces with a timer for each socket, which costs more processor time than fq")
        };
        let mut entry = Found::setting(severity, &nic.name, text, effect).on(&nic.name);
        if view.facts.sysctl("net/core/default_qdisc") != Some("fq") {
            entry = entry.sysctl("net/core/default_qdisc", "fq");
        }
        let queues = u16::try_from(nic.transmit_queues.len().max(1)).unwrap_or(u16::MAX);
        found.push(if is_chosen(nic) {
            entry.advice("fq below the present qdiscs, if they are wanted")
        } else {
            entry.change(Knob::RootQdisc, Value::Qdiscs(root_qdisc("fq", queues)))
        });
    }
    found
}

fn one_lock(view: &View<'_>) -> Vec<Found> {
    const QUEUES: usize = 4;
    const FOR_EACH: [&str; 6] = ["mq", "mqprio", "taprio", "multiq", "noqueue", "dualpi2"];
    let mut found = Vec::new();
    for nic in view.nics().filter(|nic| nic.speed_bps.is_some_and(|speed| speed >= FAST)) {
        let Some(root) = nic.root_qdisc() else { continue };
        let shapes = root.rate_bps.is_some() || is_chosen(nic);
        // Count the queues that the NIC could have: a shaper remains one qdisc with one lock after channels
        // are added.
        let most = nic.channels.map_or(0, |channels| channels.receive_max() as usize);
        let queues = if shapes { nic.transmit_queues.len().max(most) } else { nic.transmit_queues.len() };
        if FOR_EACH.contains(&root.kind.as_str()) || queues < QUEUES {
            continue;
        }
        let mut text = format!(
            "the root qdisc is {}, one for all {} transmit queues",
            root.kind,
            nic.transmit_queues.len()
        );
        for (packets, what) in [(root.drops, "dropped"), (root.requeues, "requeued")] {
            if packets >= 1000 {
                text += &format!("; it {what} {} packets", count(packets));
            }
        }
        let severity = if shapes { Low } else { Medium };
        let entry = Found::setting(severity, &nic.name, text, "all processors that send take one lock");
        found.push(if shapes {
            entry.advice("a shaper for all queues needs one lock; mqprio or a rate for each queue (tx_maxrate) needs none")
        } else {
            let queues = u16::try_from(nic.transmit_queues.len()).unwrap_or(u16::MAX);
            let kind = if root.kind == "fq_codel" || root.kind == "pfifo_fast" || root.kind == "pfifo" { "fq" } else { root.kind.as_str() };
            entry.on(&nic.name).change(Knob::RootQdisc, Value::Qdiscs(root_qdisc(kind, queues)))
        });
    }
    found
}

fn left_over(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for nic in view.nics() {
        for qdisc in &nic.qdiscs {
            let slow = qdisc.rate_bps.zip(nic.speed_bps).is_some_and(|(rate, speed)| rate < speed / 2);
            let text = match qdisc.kind.as_str() {
                "netem" => "netem delays, drops or limits packets".to_owned(),
                _ if slow => format!(
                    "{} shapes to {} of {}",
                    qdisc.kind,
                    gigabits(qdisc.rate_bps.unwrap_or(0) as f64),
                    gigabits(nic.speed_bps.unwrap_or(0) as f64)
                ),
                _ => continue,
            };
            let mut text = text;
            if !qdisc.impairments.is_empty() {
                text += &format!(" ({})", qdisc.impairments);
            }
            if qdisc.drops > 0 {
                text += &format!(
                    "; it dropped {} packets and passed {}",
                    count(qdisc.drops),
                    count(qdisc.packets)
                );
            }
            let severity = if qdisc.kind == "netem" { Medium } else { Low };
            let effect = "the qdisc delays packets, and no other counter shows it";
            let line = if qdisc.is_root() {
                Line::new("tc qdisc del dev {} root", &[&nic.name])
            } else {
                Line::new("tc qdisc del dev {} parent {}", &[&nic.name, &qdisc.parent])
            };
            found.push(
                Found::limit(severity, &nic.name, text, effect)
                    .on(&nic.name)
                    .advice(format!("if it is not wanted: `{line}`")),
            );
            break;
        }
    }
    found
}

fn drops(view: &View<'_>) -> Vec<Found> {
    const FEWEST: u64 = 100;
    const ONE_IN: u64 = 100_000;
    const MANY_ONE_IN: u64 = 10_000;
    const GRAVE_ONE_IN: u64 = 100;
    let mut found = Vec::new();
    for interface in
        view.facts.interfaces.iter().filter(|interface| interface.kind != InterfaceKind::Loopback)
    {
        let (leaves, dropped) = (leaves(interface), dropped_by_qdiscs(interface));
        let root = interface.qdiscs.iter().find(|qdisc| qdisc.is_root());
        let worst = leaves.iter().copied().max_by_key(|qdisc| qdisc.drops);
        let Some(worst) = worst.filter(|worst| worst.drops > 0).or(root).or(worst) else { continue };
        // Do not use the interface's counter: it started earlier than the counters of its qdiscs.
        let packets = sent_by_qdiscs(interface);
        let one_in = |limit: u64| dropped.saturating_mul(limit) >= packets.saturating_add(dropped);
        if dropped < FEWEST || !one_in(ONE_IN) {
            continue;
        }
        let text = format!(
            "{} dropped {} packets and sent {} since it was installed ({} lost)",
            worst.kind,
            count(dropped),
            count(packets),
            per_cent(dropped as f64 / packets.saturating_add(dropped) as f64)
        );
        let severity = match worst.kind.as_str() {
            // Shapers drop packets above their rate by design.
            "cake" | "htb" | "tbf" | "hfsc" => Low,
            _ if one_in(GRAVE_ONE_IN) && interface.kind == InterfaceKind::Device => High,
            _ if one_in(MANY_ONE_IN) => Medium,
            _ => Low,
        };
        let mut text = text;
        let at_flow_limit = leaves.iter().map(|qdisc| qdisc.flow_limit_drops).saturating_sum();
        if at_flow_limit > 0 {
            text += &format!("; {} of them at the limit of their flow (flows_plimit)", count(at_flow_limit));
        }
        let limit = |name: &str, limit: Option<u64>| {
            limit.map(|limit| format!("; {name} {limit}")).unwrap_or_default()
        };
        text += &(limit("limit", worst.limit_packets) + &limit("flow_limit", worst.flow_limit));
        // The queue in front of a fully used link drops packets with any qdisc.
        let share =
            view.load(interface).zip(interface.speed_bps).map(|(load, speed)| load.sent_bps / speed as f64);
        let is_slow = interface
            .speed_bps
            .zip(interface.supported_bps)
            .is_some_and(|(now, most)| now.saturating_mul(2) <= most);
        let full = share.filter(|share| *share >= 0.5 || *share >= 0.2 && is_slow);
        if let Some(share) = full {
            text += &format!("; the link was {} full on average since boot", per_cent(share));
        }
        let entry =
            Found::measured(severity, &interface.name, text, "packets are lost before they leave the host")
                .on(&interface.name);
        let name = &interface.name;
        if full.is_some() {
            let faster = match is_slow {
                true => "first restore the link's full speed (link-slow: cable, the other side's port), then",
                false => "the link is too small for its load: a faster one, or a second port;",
            };
            found.push(entry.advice(format!("{faster} a limit of the senders' rate (`tc qdisc replace dev {name} root cake bandwidth RATE`, SO_MAX_PACING_RATE)")));
            continue;
        }
        found.push(match worst.kind.as_str() {
            "fq_codel" | "codel" | "pie" | "pfifo_fast" | "pfifo" | "bfifo"
                if interface.kind == InterfaceKind::Device && !is_chosen(interface) =>
            {
                let queues = u16::try_from(interface.transmit_queues.len().max(1)).unwrap_or(u16::MAX);
                entry.change(Knob::RootQdisc, Value::Qdiscs(root_qdisc("fq", queues)))
            }
            "mq" | "mqprio" | "taprio" => entry.advice(
                "no present qdisc dropped these packets, so a replaced one did: `evenkeel check --watch 10s` shows whether it continues",
            ),
            "fq" => {
                let place = if worst.is_root() { "root".to_owned() } else { format!("parent {}", worst.parent) };
                entry.advice(format!(
                    "fq drops what one socket sends beyond flow_limit, and one UDP socket for all clients (QUIC) is one flow: `tc qdisc replace dev {name} \
                     {place} fq limit 40000 flow_limit 2000`, for each queue; or a connected socket for each client, SO_TXTIME or SO_MAX_PACING_RATE"
                ))
            }
            kind => entry.advice(format!("{kind} drops packets above its rate or limit; raise these unless the drops are intended")),
        });
    }
    found
}

fn short_queue(view: &View<'_>) -> Vec<Found> {
    const LEAST: u32 = 1000;
    let mut found = Vec::new();
    for nic in view.nics().filter(|nic| nic.speed_bps.is_some_and(|speed| speed >= FAST)) {
        let fifo =
            leaves(nic).iter().any(|qdisc| matches!(qdisc.kind.as_str(), "pfifo_fast" | "pfifo" | "bfifo"));
        let unknown = nic.qdiscs.is_empty();
        let Some(length) = nic.tx_queue_len.filter(|length| *length < LEAST && (fifo || unknown)) else {
            continue;
        };
        let dropped = dropped_by_qdiscs(nic);
        let text = format!("txqueuelen is {length} packets; its queues dropped {}", count(dropped));
        let entry = Found::setting(
            Low,
            &nic.name,
            text,
            "a burst of a few large segments fills the queue, and the rest is dropped",
        )
        .on(&nic.name);
        found.push(entry.change(Knob::TransmitQueueLength, Value::Number(LEAST)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_model::host::{HostFacts, TransmitQueue};

    #[test]
    fn chosen_qdiscs_are_not_replaced() {
        let changes = |kind: &str| {
            let qdisc =
                QdiscFacts { kind: kind.to_owned(), parent: "root".to_owned(), ..QdiscFacts::default() };
            let nic = Interface {
                name: "eth0".to_owned(),
                kind: InterfaceKind::Device,
                up: true,
                speed_bps: Some(25_000_000_000),
                transmit_queues: vec![TransmitQueue::default(); 8],
                qdiscs: vec![qdisc],
                ..Interface::default()
            };
            let mut facts = HostFacts { interfaces: vec![nic], ..HostFacts::default() };
            facts.kernel = Some("4.19.0".to_owned());
            let mut all = Vec::new();
            for congestion in ["cubic", "bbr"] {
                facts.sysctls.insert("net/ipv4/tcp_congestion_control".to_owned(), congestion.to_owned());
                let view = View::new(&facts);
                all.extend(
                    RULES.iter().flat_map(|rule| (rule.check)(&view)).flat_map(|found| found.remedy.changes),
                );
            }
            all.into_iter().filter(|change| change.knob == Knob::RootQdisc).count()
        };
        assert!(changes("pfifo_fast") > 0);
        for kind in ["netem", "prio", "tbf", "htb", "cake"] {
            assert_eq!(changes(kind), 0, "{kind}");
        }
    }
}
