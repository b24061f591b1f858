//! Rules about the distribution of sent packets over queues.

use std::collections::BTreeSet;

use evenkeel_model::change::{Knob, Ring, Value};
use evenkeel_model::host::{Interface, InterfaceKind, SaturatingSum, SocketFacts, processor_list};
use evenkeel_model::shell::Line;
use evenkeel_model::text::counted;

use super::{FAST, Found, Rule, by_speed, needs};
use crate::Severity::{High, Low, Medium};
use crate::View;
use crate::loss_path::sent_by_qdiscs;
use crate::plan::map_changes;
use crate::view::{bytes, count, gigabits, per_cent};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "xps-missing",
        looks_at: "transmit packet steering (XPS) of NICs with at least 4 transmit queues, from 10 Gbit/s",
        fires_when: "low: no queue is in any map",
        why: "Processors that send share queues by the flow's hash: locks and cache lines move, and other processors \
              handle completions. `evenkeel fair` needs no map.",
        fix: "each queue for the processors of its own share",
        source: "Documentation/networking/scaling.rst (XPS)",
        needs: &[needs::SPEED, needs::QUEUES],
        check: xps_missing,
    },
    Rule {
        name: "xps-one-queue",
        looks_at: "the transmit queues that XPS maps name",
        fires_when: "medium: of at least 4 queues only one is named, for at least two processors; high: from 10 \
                     Gbit/s, on a busy NIC (30 % softirq time, or 10,000 lost packets); low: an idle NIC",
        why: "XPS overrides the hash: all packets that these processors send go through one queue and its lock.",
        fix: "maps that spread the processors over the queues",
        source: "Documentation/networking/scaling.rst (XPS)",
        needs: &[needs::QUEUES],
        check: xps_one_queue,
    },
    Rule {
        name: "xps-remote",
        looks_at: "the package of the processors in each queue's XPS map, and of the processor that serves the \
                   queue's interrupt",
        fires_when: "low: from 10 Gbit/s, they differ for at least half of the queues",
        why: "One package sends the packets and the other handles their completions: each buffer's cache lines cross \
              the interconnect twice.",
        fix: "maps of processors in the package of the queue's interrupt",
        source: "Documentation/networking/scaling.rst (XPS, Suggested Configuration)",
        needs: &[needs::SPEED, needs::QUEUES, needs::INTERRUPTS, needs::AFFINITY, needs::NODES],
        check: xps_remote,
    },
    Rule {
        name: "tx-ring-short",
        looks_at: "the transmit ring against its maximum, in time at line rate, requeues of qdiscs, and stops of \
                   queues",
        fires_when: "low: from 10 Gbit/s, the ring is below its maximum, and has fewer than 256 entries, or fewer \
                     than 512 that fill in less than 50 µs; medium: also 10,000 requeues and one in 1,000 packets; \
                     or fewer than 1,024 entries, 10,000 stops and one in a million packets",
        why: "Completions come tens of microseconds apart: a shorter ring runs empty or stops its queue. Byte queue \
              limits keep a longer ring from adding delay.",
        fix: "1,024 entries, or the most that the NIC has",
        source: "ethtool(8), -G; Documentation/networking/driver.rst (transmit path); Titan (ATC 2017), section 2",
        needs: &[
            needs::SPEED,
            needs::RINGS,
            needs::MTU,
            needs::QDISCS,
            needs::DRIVER_STATISTICS,
            needs::STATISTICS,
        ],
        check: ring_short,
    },
    Rule {
        name: "tx-timeouts",
        looks_at: "how often the watchdog found a transmit queue stuck (tx_timeout), and resets that the driver counts",
        fires_when: "medium: from one timeout that the kernel counts, or five resets; low: fewer resets",
        why: "A queue sent nothing for seconds; the driver resets the NIC, and the packets in its rings are lost.",
        fix: "check firmware and driver of the NIC, its slot, its power",
        source: "Documentation/ABI/testing/sysfs-class-net-queues (tx_timeout); dev_watchdog, net/sched/sch_generic.c",
        needs: &[needs::QUEUES, needs::DRIVER_STATISTICS],
        check: timeouts,
    },
    Rule {
        name: "xps-two-maps",
        looks_at: "XPS maps by processor and by receive queue of one NIC",
        fires_when: "low: both are set",
        why: "The map by receive queue applies to sockets that have received packets, the map by processor to the \
              others: neither shows how queues are shared.",
        fix: "one kind of map",
        source: "Documentation/networking/scaling.rst (XPS Configuration)",
        needs: &[needs::QUEUES],
        check: xps_two_maps,
    },
    Rule {
        name: "tx-one-queue",
        looks_at: "packets of each transmit queue",
        fires_when: "medium: one of at least 4 queues sent 90 % of at least a million packets, and not because of a \
                     single connection (100 MB, 80 % of the bytes)",
        why: "All packets use one queue, lock and ring. Packets from containers keep their veth's queue number, the \
              first if it has one queue; spreading them doubled the throughput of pods.",
        fix: "a queue choice without that number: `evenkeel fair`, XPS for the forwarding processors, veth pairs \
              with several queues",
        source: "cilium/cilium issue 18311; skb_tx_hash, net/core/dev.c",
        needs: &[needs::DRIVER_STATISTICS, needs::QUEUES],
        check: one_queue,
    },
    Rule {
        name: "bql-capped",
        looks_at: "the upper limit of byte queue limits (limit_max) against the link",
        fires_when: "medium: from 10 Gbit/s, it is less than two GSO packets or 20 µs at line rate",
        why: "The NIC's queue runs empty between two completions: the link idles while packets wait in the qdisc.",
        fix: "a limit that covers the time between two interrupts, or the kernel's default (no limit)",
        source: "Documentation/ABI/testing/sysfs-class-net-queues (byte_queue_limits); Titan (ATC 2017), section 2",
        needs: &[needs::SPEED, needs::QUEUES],
        check: bql_capped,
    },
    Rule {
        name: "tx-rate-capped",
        looks_at: "tx_maxrate of each queue",
        fires_when: "medium: a queue is capped below a tenth of the link",
        why: "Limits left over from an experiment slow the flows whose hash selects these queues.",
        fix: "0 (no limit)",
        source: "Documentation/ABI/testing/sysfs-class-net-queues (tx_maxrate)",
        needs: &[needs::SPEED, needs::QUEUES],
        check: rate_capped,
    },
];

fn is_fast(nic: &&Interface) -> bool {
    nic.speed_bps.is_some_and(|speed| speed >= FAST)
}

/// Adds to a finding the maps (XPS) that give each transmit queue its share of the processors.
fn with_maps(view: &View<'_>, nic: &Interface, found: Found) -> Found {
    let changes = map_changes(view, nic);
    changes.into_iter().fold(found.on(&nic.name), |found, change| found.change(change.knob, change.to))
}

fn xps_missing(view: &View<'_>) -> Vec<Found> {
    const QUEUES: usize = 4;
    let mut found = Vec::new();
    for nic in view.nics().filter(is_fast) {
        let queues = &nic.transmit_queues;
        let named = queues
            .iter()
            .any(|queue| !queue.xps_processors.is_empty() || !queue.xps_receive_queues.is_empty());
        let shown = queues.iter().all(|queue| queue.has_xps);
        if queues.len() >= QUEUES && shown && !named && view.facts.processors.len() > 1 {
            let text = format!("{} transmit queues, and no processor is mapped to any (XPS)", queues.len());
            let effect = "processors share queues, locks and cache lines when they send";
            found.push(with_maps(view, nic, Found::setting(Low, &nic.name, text, effect)));
        }
    }
    found
}

fn xps_one_queue(view: &View<'_>) -> Vec<Found> {
    const QUEUES: usize = 4;
    let mut found = Vec::new();
    for nic in view.nics().filter(|nic| nic.transmit_queues.len() >= QUEUES) {
        let mut named =
            nic.transmit_queues.iter().enumerate().filter(|(_, queue)| !queue.xps_processors.is_empty());
        if let (Some((at, queue)), None) = (named.next(), named.next())
            && queue.xps_processors.len() > 1
        {
            let text = format!(
                "of {} transmit queues only queue {at} is in an XPS map, for processors {}",
                nic.transmit_queues.len(),
                processor_list(&queue.xps_processors)
            );
            let effect = "all that these processors send goes through one queue";
            found.push(with_maps(
                view,
                nic,
                Found::on_basis(view.cost_basis(nic), by_speed(nic, High, Medium), &nic.name, text, effect),
            ));
        }
    }
    found
}

fn xps_remote(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    let package = |number: &u32| view.facts.processor(*number).map(|processor| processor.package);
    for nic in view.nics().filter(is_fast) {
        let (mut apart, mut judged) = (0, 0);
        for (at, queue) in nic.transmit_queues.iter().enumerate() {
            let number = u32::try_from(at).ok();
            let mut own = view.facts.interrupts_of(&nic.name).filter(|interrupt| interrupt.queue == number);
            let packages: BTreeSet<u32> =
                own.by_ref().flat_map(|interrupt| interrupt.target()).filter_map(package).collect();
            if queue.xps_processors.is_empty() || packages.is_empty() {
                continue;
            }
            judged += 1;
            let meets = |processor: &u32| package(processor).is_some_and(|own| packages.contains(&own));
            apart += usize::from(!queue.xps_processors.iter().any(meets));
        }
        if judged == 0 || apart * 2 < judged {
            continue;
        }
        let text = format!(
            "{apart} of {judged} transmit queues are mapped (XPS) to processors of another package than that of their interrupts"
        );
        let effect = "one package sends the packets, the other handles their completions";
        found.push(with_maps(view, nic, Found::setting(Low, &nic.name, text, effect)));
    }
    found
}

/// Finds transmit rings that a few large packets fill.
fn ring_short(view: &View<'_>) -> Vec<Found> {
    /// A few TSO packets of 64 KB, with up to 17 fragments each, fill this number of entries.
    const FEW: u32 = 256;
    const ENTRIES: u32 = 512;
    const TIME_US: f64 = 50.0;
    const ENOUGH: u32 = 1024;
    const STOPS: u64 = 10_000;
    let mut found = Vec::new();
    for nic in view.nics().filter(is_fast) {
        let Some(rings) = nic.rings.filter(|rings| rings.tx > 0 && rings.tx < rings.tx_max) else {
            continue;
        };
        let Some(packet) = View::packet_time_us(nic) else { continue };
        let time = f64::from(rings.tx) * packet;
        let stops = nic.losses.transmit_stops.unwrap_or(0);
        let stopped =
            stops >= STOPS && stops.saturating_mul(1_000_000) >= nic.sent_packets() && rings.tx < ENOUGH;
        if rings.tx >= FEW && (rings.tx >= ENTRIES || time >= TIME_US) && !stopped {
            continue;
        }
        let requeues: u64 = nic.qdiscs.iter().map(|qdisc| qdisc.requeues).max().unwrap_or(0);
        let shows = requeues >= 10_000 && requeues.saturating_mul(1000) >= sent_by_qdiscs(nic);
        let mut text = format!(
            "the transmit ring has {} of {} entries: {time:.0} µs of full-sized packets at line rate",
            rings.tx, rings.tx_max
        );
        if shows {
            text += &format!("; qdiscs requeued {} packets because it was full", count(requeues));
        }
        if stops > 0 {
            text += &format!("; its queues stopped {} times", count(stops));
        }
        let effect = "the ring is full or empty between two completions: queues stop, and the link idles";
        let entry = if shows || stopped {
            Found::measured(Medium, &nic.name, text, effect)
        } else {
            Found::setting(Low, &nic.name, text, effect)
        };
        let wanted = rings.tx_max.min(ENOUGH.max(rings.tx));
        found.push(entry.on(&nic.name).change(Knob::Ring(Ring::Tx), Value::Number(wanted)));
    }
    found
}

/// Returns the three highest counters above 0 of resets and stuck queues in the driver's statistics.
fn named_resets(nic: &Interface) -> Vec<(&str, u64)> {
    const NAMES: [&str; 12] = [
        "tx_timeout",
        "tx_timeouts",
        "tx_timeout_count",
        "wd_expired",
        "reset_cnt",
        "rx_resets",
        "tx_resets",
        "hw_reset",
        "tx_hang",
        "reset_tx_timeout",
        "missing_tx_cmpl",
        "lost_interrupts",
    ];
    let is_named = |name: &str| {
        let plain = name.split_once("]: ").map_or(name, |(_, rest)| rest);
        let plain = plain.trim_start_matches(|next: char| next.is_ascii_digit()).trim_start_matches('_');
        NAMES.contains(&plain) || plain.starts_with("tx_queue_") && plain.ends_with("_tx_timeouts")
    };
    let mut named: Vec<(&str, u64)> = nic
        .driver_statistics
        .iter()
        .filter(|(name, times)| **times > 0 && is_named(name))
        .map(|(name, times)| (name.as_str(), *times))
        .collect();
    named.sort_by_key(|(name, times)| (std::cmp::Reverse(*times), *name));
    named.truncate(3);
    named
}

fn timeouts(view: &View<'_>) -> Vec<Found> {
    const SOME: u64 = 5;
    let mut found = Vec::new();
    for nic in view.nics() {
        let times: u64 = nic.transmit_queues.iter().map(|queue| queue.timeouts).saturating_sum();
        let resets = named_resets(nic);
        let most = resets.first().map_or(0, |(_, times)| *times);
        if times == 0 && most == 0 {
            continue;
        }
        let stuck: Vec<String> = nic
            .transmit_queues
            .iter()
            .enumerate()
            .filter(|(_, queue)| queue.timeouts > 0)
            .take(4)
            .map(|(at, queue)| format!("queue {at}: {}", count(queue.timeouts)))
            .collect();
        let names = resets.iter().map(|(name, times)| format!("{name} {}", count(*times)));
        let parts: Vec<String> = stuck.into_iter().chain(names).collect();
        let text = if times > 0 {
            format!(
                "transmit queues were stuck {} ({}{})",
                counted(usize::try_from(times).unwrap_or(usize::MAX), "time"),
                parts.join(", "),
                view.rate_words(times)
            )
        } else {
            format!(
                "the driver reset the NIC or a queue {} times ({}{})",
                count(most),
                parts.join(", "),
                view.rate_words(most)
            )
        };
        let severity = if times > 0 || most >= SOME { Medium } else { Low };
        found.push(
            Found::measured(severity, &nic.name, text, "the NIC is reset, and the packets in its rings are lost")
                .advice("check the kernel's log for the driver's reason (`dmesg | grep -i -e watchdog -e reset`), and firmware, driver, slot and power of the NIC"),
        );
    }
    found
}

fn xps_two_maps(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for nic in view.nics() {
        let by_processor = nic.transmit_queues.iter().any(|queue| !queue.xps_processors.is_empty());
        let both: Vec<usize> = nic
            .transmit_queues
            .iter()
            .enumerate()
            .filter(|(_, queue)| !queue.xps_receive_queues.is_empty())
            .map(|(at, _)| at)
            .collect();
        if !by_processor || both.is_empty() {
            continue;
        }
        let text = format!(
            "XPS maps by processor and by receive queue at once (the latter on {})",
            counted(both.len(), "queue")
        );
        let effect = "the map by receive queue applies to sockets that have received packets, and the other has no effect there";
        let mut entry = Found::setting(Low, &nic.name, text, effect).on(&nic.name);
        for queue in both {
            entry = entry.change(
                Knob::InterfaceFile(format!("queues/tx-{queue}/xps_rxqs")),
                Value::Text("0".to_owned()),
            );
        }
        found.push(entry);
    }
    found
}

fn one_queue(view: &View<'_>) -> Vec<Found> {
    const QUEUES: usize = 4;
    const ENOUGH: u64 = 1_000_000;
    const SHARE: f64 = 0.9;
    let mut found = Vec::new();
    for nic in view.nics() {
        let counts = &nic.queue_counters.transmit;
        let total = counts.iter().saturating_sum();
        let Some((queue, most)) = counts.iter().copied().enumerate().max_by_key(|(_, count)| *count) else {
            continue;
        };
        let share = most as f64 / total.max(1) as f64;
        if counts.len() < QUEUES || total < ENOUGH || share < SHARE {
            continue;
        }
        let sent = |socket: &SocketFacts| socket.tcp.as_ref().map_or(0, |tcp| tcp.bytes_acked);
        let connections = view.connections(nic);
        let all: u64 = connections.iter().map(|socket| sent(socket)).saturating_sum();
        let largest = connections.iter().map(|socket| sent(socket)).max().unwrap_or(0);
        if largest >= 100_000_000 && largest as f64 >= 0.8 * all as f64 {
            continue;
        }
        let veth = view.facts.interfaces.iter().filter(|interface| interface.kind == InterfaceKind::Veth);
        let single = veth.filter(|veth| veth.transmit_queues.len() <= 1).count();
        let forwards = view.facts.sysctl_number("net/ipv4/ip_forward") == Some(1);
        let mut text = format!(
            "transmit queue {queue} of {} sent {} of {} packets",
            counts.len(),
            per_cent(share),
            count(total)
        );
        if single > 0 && forwards {
            text += &format!(
                "; this host forwards for {single} veth interfaces of one queue, whose queue number packets keep"
            );
        }
        let mapped: Vec<usize> = nic
            .transmit_queues
            .iter()
            .enumerate()
            .filter(|(_, queue)| !queue.xps_processors.is_empty())
            .map(|(at, _)| at)
            .collect();
        let entry = Found::measured(Medium, &nic.name, text, "one queue and its lock carry everything");
        let entry = if mapped.len() < 2 { with_maps(view, nic, entry) } else { entry };
        found.push(entry.advice(format!(
            "`{}` chooses queues by their load, whatever number a packet came with; veth pairs can be made with several queues \
             (`ip link add ... numtxqueues N numrxqueues N type veth`)",
            Line::new("evenkeel fair", &[]).on(&nic.name, "", &[])
        )));
    }
    found
}

fn bql_capped(view: &View<'_>) -> Vec<Found> {
    const GSO_PACKETS: u64 = 2 * 65_536;
    const TIME_US: u64 = 20;
    /// The default `max_limit` of byte queue limits, which means no limit: `DQL_MAX_LIMIT`.
    const NO_LIMIT: u64 = 1_879_048_192;
    let mut found = Vec::new();
    for nic in view.nics().filter(is_fast) {
        let Some(speed) = nic.speed_bps else { continue };
        let needed = GSO_PACKETS.max((speed / 8).saturating_mul(TIME_US) / 1_000_000);
        let capped: Vec<(usize, u64)> = nic
            .transmit_queues
            .iter()
            .enumerate()
            .filter_map(|(at, queue)| {
                Some((at, queue.bql_limit_max.filter(|limit| *limit > 0 && *limit < needed)?))
            })
            .collect();
        let Some((first, limit)) = capped.first() else { continue };
        let text = format!(
            "byte queue limits of {} are capped ({} on queue {first}, where the limit is {} now); 20 µs at {} are {}",
            counted(capped.len(), "queue"),
            bytes(*limit),
            nic.transmit_queues.get(*first).and_then(|queue| queue.bql_limit).map_or("?".to_owned(), bytes),
            gigabits(speed as f64),
            bytes((speed / 8).saturating_mul(TIME_US) / 1_000_000)
        );
        let mut entry =
            Found::limit(Medium, &nic.name, text, "the NIC's queue runs empty between two completions")
                .on(&nic.name);
        for (queue, _) in &capped {
            let file = format!("queues/tx-{queue}/byte_queue_limits/limit_max");
            entry = entry.change(Knob::InterfaceFile(file), Value::Text(NO_LIMIT.to_string()));
        }
        found.push(entry);
    }
    found
}

fn rate_capped(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for nic in view.nics() {
        let capped: Vec<(usize, u64)> = nic
            .transmit_queues
            .iter()
            .enumerate()
            .filter(|(_, queue)| {
                let tenfold_bps = queue.max_rate_mbps.saturating_mul(10_000_000);
                tenfold_bps > 0 && nic.speed_bps.is_some_and(|speed| tenfold_bps < speed)
            })
            .map(|(at, queue)| (at, queue.max_rate_mbps))
            .collect();
        let Some((first, rate)) = capped.first() else { continue };
        let text = format!(
            "{} of {} transmit queues are capped (queue {first}: {rate} Mbit/s)",
            capped.len(),
            nic.transmit_queues.len()
        );
        let mut entry =
            Found::limit(Medium, &nic.name, text, "flows are limited if their hash selects such a queue")
                .on(&nic.name);
        for (queue, _) in &capped {
            entry = entry.change(
                Knob::InterfaceFile(format!("queues/tx-{queue}/tx_maxrate")),
                Value::Text("0".to_owned()),
            );
        }
        found.push(entry);
    }
    found
}
