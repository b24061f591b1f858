//! Rules about the distribution of received packets over queues: the RSS hash, its table, and the result.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use evenkeel_model::change::{Knob, Value};
use evenkeel_model::host::{Interface, Interrupt, Rss, SaturatingSum, SocketFacts, processor_list};
use evenkeel_model::shell::Line;

use super::{Found, Rule, by_speed, needs};
use crate::Severity::{High, Low, Medium};
use crate::view::{View, bytes, count, per_cent};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "rss-table-narrow",
        looks_at: "queues in use without an entry in the indirection table, and the processors of the others \
                   (without listed interrupts, as with hv_netvsc: the busiest)",
        fires_when: "low: a queue has no entry; medium: the others' processors spend 30 % of their time in softirqs \
                     and twice the rest's share, or only one queue has entries; high: also 10,000 lost packets, or, \
                     from 10 Gbit/s, 60 % (only one queue: 30 %)",
        why: "These queues receive no hashed packets: `ethtool -L` does not extend a table that was set by hand. An \
              administrator may also keep queues free for filters.",
        fix: "spread the table over all queues",
        source: "Documentation/networking/scaling.rst (RSS); ethtool(8), -X",
        needs: &[needs::RSS, needs::CHANNELS],
        check: table_narrow,
    },
    Rule {
        name: "rss-table-uneven",
        looks_at: "how many entries of the indirection table each queue has",
        fires_when: "low: one has at least twice as many as another that has any; medium: four times",
        why: "Queues get flows in proportion to their entries.",
        fix: "spread the table evenly over all queues",
        source: "Documentation/networking/scaling.rst (RSS); ethtool(8), -X",
        needs: &[needs::RSS],
        check: table_uneven,
    },
    Rule {
        name: "rss-hash-fields",
        looks_at: "fields that the NIC hashes for TCP and UDP (ports of UDP only if UDP is a fifth of the packets)",
        fires_when: "medium: addresses or ports are left out; high: addresses are left out, from 10 Gbit/s, \
                     on a busy NIC (30 % softirq time, or 10,000 lost packets); low: only ports are left \
                     out, and no queue got twice its share, or an idle NIC",
        why: "Without addresses, all packets between two machines are one flow to the NIC, as on a router between \
              two networks. Without ports, all connections between two hosts are one flow.",
        fix: "addresses and ports in the hash",
        source: "ethtool(8), -N rx-flow-hash; Documentation/networking/scaling.rst (RSS Configuration)",
        needs: &[needs::RSS, needs::CHANNELS, needs::SNMP, needs::STATISTICS, needs::DRIVER_STATISTICS],
        check: hash_fields,
    },
    Rule {
        name: "rss-skew",
        looks_at: "packets of each receive queue, or, if the driver does not count them, interrupts (at least \
                   100,000)",
        fires_when: "medium: one queue of two has 90 % of at least a million packets, or one of more queues 60 %, \
                     without RPS, and not because of one flow; low: unknown whether one flow is the reason (no \
                     sockets read); with the finding rss-hash-fields without RPS in the fix",
        why: "The processor of one queue does most of the work and is the limit.",
        fix: "hash fields and table; RPS, if the NIC cannot hash these packets (PPPoE, tunnels)",
        source: "the paper, section III-B; Documentation/networking/scaling.rst",
        needs: &[needs::DRIVER_STATISTICS, needs::INTERRUPTS],
        check: skew,
    },
    Rule {
        name: "one-flow",
        looks_at: "packets of each queue and bytes of each connection",
        fires_when: "low: one queue is overloaded (limits of rss-skew), and one connection received 80 % of all \
                     bytes, at least 100 MB",
        why: "A flow stays on one queue and processor to keep its order: balancing is not at fault. The paper's \
              single flow reached 43 Gbit/s.",
        fix: "several connections in the application, or a faster core; not other interrupts",
        source: "the paper, section II (figure 1)",
        needs: &[needs::DRIVER_STATISTICS, needs::INTERRUPTS, needs::SOCKETS],
        check: one_flow,
    },
    Rule {
        name: "flows-collide",
        looks_at: "the computed queue (hash key, table) of each large connection: received 100 MB, and a tenth of \
                   the largest",
        fires_when: "low: one queue has twice its even share of large connections, and a random hash does \
                     that in at most 5 % of cases, or each of them carried at most 70 % of what a connection \
                     with its own queue carried; medium: from 10 Gbit/s",
        why: "The hash puts flows on one queue and processor by chance, which they share: the paper's throughput \
              varied from run to run.",
        fix: "`evenkeel steer` puts them on separate queues",
        source: "the paper, section III-B; Documentation/networking/scaling.rst (RSS)",
        needs: &[needs::RSS, needs::RSS_HASH, needs::SOCKETS],
        check: collide,
    },
    Rule {
        name: "rx-hash-off",
        looks_at: "whether the NIC hands its hash to the kernel (receive-hashing)",
        fires_when: "low: it is off, can be switched on, and the NIC has several queues",
        why: "The kernel hashes each packet again for RPS, RFS and queue choice.",
        fix: "switch it on",
        source: "Documentation/networking/scaling.rst (RPS); ethtool(8), -K rxhash",
        needs: &[needs::FEATURES, needs::CHANNELS],
        check: hash_off,
    },
];

fn entries(rss: &Rss) -> BTreeMap<u32, usize> {
    let mut found = BTreeMap::new();
    for queue in &rss.indirection {
        *found.entry(*queue).or_insert(0) += 1;
    }
    found
}

fn with_even_table(nic: &Interface, rss: &Rss, found: Found) -> Found {
    let queues = nic.receive_queue_count().max(1);
    let length = u32::try_from(rss.indirection.len()).unwrap_or(u32::MAX);
    let table = (0..length).map(|entry| entry % queues).collect();
    found.on(&nic.name).change(Knob::RssTable, Value::Table(table))
}

/// Returns the processors that serve the queues in the table, from interrupts with a single target. Some NICs
/// have no interrupts in `/proc/interrupts`, such as NICs of VMBus (hv_netvsc). If such a NIC receives at
/// least half of the host's packets, returns the busiest processors; otherwise none.
fn servers_of_table(view: &View<'_>, nic: &Interface, rss: &Rss) -> BTreeSet<u32> {
    let is_named = |interrupt: &&&Interrupt| {
        interrupt.queue.is_some_and(|queue| rss.indirection.contains(&queue)) && interrupt.target().len() == 1
    };
    let interrupts = view.receive_interrupts(nic);
    if !interrupts.is_empty() {
        return interrupts
            .iter()
            .filter(is_named)
            .flat_map(|interrupt| interrupt.target())
            .copied()
            .collect();
    }
    let all: u64 = view.nics().map(Interface::received_packets).saturating_sum();
    if nic.received_packets().saturating_mul(2) < all {
        return BTreeSet::new();
    }
    let share = |number: &u32| view.softirq_share(*number).unwrap_or(0.0);
    let mut busiest: Vec<u32> = view.facts.processors.iter().map(|processor| processor.number).collect();
    busiest.sort_by(|one, other| share(other).total_cmp(&share(one)));
    busiest.into_iter().take(entries(rss).len()).collect()
}

/// Returns the share of time in softirqs of the processors that serve the queues in the table, and a text for
/// the finding. Returns `None` if the share is unknown, below 30 %, or less than twice the share of the other
/// processors.
fn hot_servers(view: &View<'_>, nic: &Interface, rss: &Rss) -> Option<(f64, String)> {
    const MUCH: f64 = 0.3;
    let servers = servers_of_table(view, nic, rss);
    let share = view.mean_softirq_share(|number| servers.contains(&number))?;
    let others = view.mean_softirq_share(|number| !servers.contains(&number))?;
    let text = format!(
        "processors {}, which serve them, spend {} of their time in softirqs, the others {}",
        processor_list(&servers.into_iter().collect::<Vec<_>>()),
        per_cent(share),
        per_cent(others)
    );
    (share >= MUCH && others * 2.0 <= share).then_some((share, text))
}

fn table_narrow(view: &View<'_>) -> Vec<Found> {
    const LOST: u64 = 10_000;
    /// Mean share of time in softirqs since boot. Processors with this mean have no idle time at the peaks of a day.
    const FULL: f64 = 0.6;
    let mut found = Vec::new();
    for nic in view.nics() {
        let Some(rss) = nic.rss.as_ref().filter(|rss| !rss.indirection.is_empty()) else { continue };
        let named = entries(rss).len();
        let queues = nic.receive_queue_count() as usize;
        // A table that covers all processors suffices: there are too many queues, which queues-many reports.
        if named >= queues.min(rss.indirection.len()) || named >= view.facts.processors.len() {
            continue;
        }
        let lost = nic.losses.ring.unwrap_or(0).saturating_add(nic.losses.nic.unwrap_or(0));
        let hot = hot_servers(view, nic, rss);
        let severity = match &hot {
            _ if named == 1 => by_speed(nic, High, Medium),
            Some(_) if lost >= LOST => High,
            Some((share, _)) if *share >= FULL => by_speed(nic, High, Medium),
            Some(_) => Medium,
            None => Low,
        };
        let mut text = format!("the indirection table names {named} of {queues} receive queues");
        if let Some((_, words)) = &hot {
            text += &format!("; {words}");
            if lost > 0 {
                text += &format!("; {} packets were lost at the NIC", count(lost));
            }
        }
        let effect = "the other queues receive no hashed packets";
        found.push(with_even_table(
            nic,
            rss,
            Found::on_basis(view.cost_basis(nic), severity, &nic.name, text, effect),
        ));
    }
    found
}

fn table_uneven(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for nic in view.nics() {
        let Some(rss) = nic.rss.as_ref() else { continue };
        let entries = entries(rss);
        let (Some((most_at, most)), Some((least_at, least))) = (
            entries.iter().max_by_key(|(_, count)| **count),
            entries.iter().min_by_key(|(_, count)| **count),
        ) else {
            continue;
        };
        // Short tables cannot be even: with 10 queues in 16 entries, each queue has one or two entries.
        let fair = rss.indirection.len().div_ceil(entries.len());
        if *most < least * 2 || *most <= fair {
            continue;
        }
        let severity = if *most >= least * 4 { Medium } else { Low };
        let text = format!(
            "queue {most_at} has {most} entries of the indirection table, queue {least_at} has {least}"
        );
        let effect = format!("queue {most_at} gets {} times as many flows", most / least);
        found.push(with_even_table(nic, rss, Found::setting(severity, &nic.name, text, effect)));
    }
    found
}

fn hash_fields(view: &View<'_>) -> Vec<Found> {
    const UDP_SHARE: f64 = 0.2;
    const UDP_PACKETS: u64 = 1_000_000;
    let datagrams = view.facts.counter("Udp.InDatagrams");
    let packets = view.facts.counter("Ip.InReceives");
    let much_udp = datagrams >= UDP_PACKETS && datagrams as f64 >= UDP_SHARE * packets as f64;
    let mut found = Vec::new();
    for nic in view.nics().filter(|nic| nic.receive_queue_count() > 1) {
        let Some(rss) = nic.rss.as_ref() else { continue };
        // One finding covers all kinds of flow with the same hash fields.
        let mut alike: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (flow, fields) in &rss.hash_fields {
            alike.entry(fields).or_default().push(flow);
        }
        for (fields, mut flows) in alike {
            let has = |letters: &str| letters.chars().all(|letter| fields.contains(letter));
            let is_udp = |flow: &&str| flow.starts_with("udp");
            if has("sd") && !much_udp {
                flows.retain(|flow| !is_udp(flow));
            }
            if flows.is_empty() || has("sdfn") {
                continue;
            }
            let udp_alone = flows.iter().all(is_udp);
            let what = match (fields.is_empty(), has("sd")) {
                (true, _) => "nothing".to_owned(),
                (_, true) => format!("{}, no ports", field_words(fields)),
                (_, false) => format!("only {}", field_words(fields)),
            };
            let mut text = format!(
                "of {} packets it hashes {what}; it received {} packets",
                flows.join(", "),
                count(nic.received_packets())
            );
            let (severity, effect) = if has("sd") {
                // With many clients, their addresses suffice to spread packets.
                let severity = if is_even(&nic.queue_counters.receive) { Low } else { Medium };
                (severity, "all connections between two hosts land on one queue")
            } else {
                let severity = by_speed(nic, High, Medium).max(if udp_alone { Low } else { Medium });
                (severity, "all traffic between two machines, routed traffic included, lands on one queue")
            };
            if flows.iter().any(is_udp) && much_udp {
                let share = per_cent(datagrams as f64 / packets.max(1) as f64);
                text += &format!("; UDP is {share} of the packets");
            }
            if let Some((queues, of)) = busiest_two(nic) {
                text += &format!("; queues {queues} of {} got {}", nic.receive_queue_count(), per_cent(of));
            }
            if let Some((processor, share)) = busiest_processor(view) {
                text +=
                    &format!("; processor {processor} spends {} of its time in softirqs", per_cent(share));
            }
            let mut entry =
                Found::on_basis(view.cost_basis(nic), severity, &nic.name, text, effect).on(&nic.name);
            for flow in flows {
                entry = entry.change(Knob::FlowHash(flow.to_owned()), Value::Text("sdfn".to_owned()));
            }
            found.push(entry);
        }
    }
    found
}

/// Returns whether packets of queues are counted, and no queue received twice its share.
fn is_even(counts: &[u64]) -> bool {
    let total = counts.iter().saturating_sum();
    let most = counts.iter().max().copied().unwrap_or(0);
    total > 0 && most.saturating_mul(counts.len() as u64) < total.saturating_mul(2)
}

/// Returns the processor with the largest share of time in softirqs, if that share is high.
fn busiest_processor(view: &View<'_>) -> Option<(u32, f64)> {
    const MUCH: f64 = 0.3;
    let numbers = view.facts.processors.iter().map(|processor| processor.number);
    let shares = numbers.filter_map(|number| Some((number, view.softirq_share(number)?)));
    shares.max_by(|one, other| one.1.total_cmp(&other.1)).filter(|(_, share)| *share >= MUCH)
}

/// Returns the two busiest of more than four receive queues and their share, if the share is more than
/// half.
fn busiest_two(nic: &Interface) -> Option<(String, f64)> {
    let mut counts: Vec<(u64, usize)> =
        nic.queue_counters.receive.iter().enumerate().map(|(at, count)| (*count, at)).collect();
    let total: u64 = counts.iter().map(|(count, _)| count).saturating_sum();
    counts.sort_unstable_by(|one, other| other.cmp(one));
    let (first, second) = (counts.first()?, counts.get(1)?);
    let share = first.0.saturating_add(second.0) as f64 / total.max(1) as f64;
    let (low, high) = (first.1.min(second.1), first.1.max(second.1));
    (counts.len() > 4 && share > 0.5).then(|| (format!("{low} and {high}"), share))
}

fn field_words(fields: &str) -> String {
    let word = |letter: char| match letter {
        'm' => "MAC addresses",
        'v' => "the VLAN",
        't' => "the protocol",
        's' => "source addresses",
        'd' => "destination addresses",
        'f' => "source ports",
        'n' => "destination ports",
        _ => "other fields",
    };
    fields.chars().map(word).collect::<Vec<_>>().join(" and ")
}

/// Returns the busiest queue: its number, its share, the sum over all queues, and the counted unit. Returns
/// `None` if there is one queue, too little was counted, or no queue has a large share.
pub(super) fn busiest(view: &View<'_>, nic: &Interface) -> Option<(usize, f64, u64, &'static str)> {
    const ENOUGH_PACKETS: u64 = 1_000_000;
    const ENOUGH_INTERRUPTS: u64 = 100_000;
    let of = |counts: &BTreeMap<usize, u64>, enough: u64, what: &'static str| {
        let total = counts.values().saturating_sum();
        let (queue, most) = counts.iter().max_by_key(|(_, count)| **count)?;
        let share = *most as f64 / total.max(1) as f64;
        let limit = if counts.len() == 2 { 0.9 } else { 0.6 };
        (counts.len() > 1 && total >= enough && share >= limit).then_some((*queue, share, total, what))
    };
    if nic.queue_counters.receive.len() > 1 {
        let counts = nic.queue_counters.receive.iter().copied().enumerate().collect();
        return of(&counts, ENOUGH_PACKETS, "packets");
    }
    // Interrupts are weaker evidence, because a busy queue is polled and seldom interrupts. Not every queue
    // has an interrupt.
    let mut counts: BTreeMap<usize, u64> = BTreeMap::new();
    for interrupt in view.receive_interrupts(nic) {
        let sum = counts.entry(interrupt.queue? as usize).or_insert(0);
        *sum = sum.saturating_add(interrupt.total());
    }
    of(&counts, ENOUGH_INTERRUPTS, "interrupts")
}

/// Returns the connection that received at least 80 % of all bytes, and its share, if it received at least
/// 100 MB.
fn dominant<'a>(connections: &[&'a SocketFacts]) -> Option<(&'a SocketFacts, f64)> {
    const SHARE: f64 = 0.8;
    const LEAST: u64 = 100_000_000;
    let received = |socket: &SocketFacts| socket.tcp.as_ref().map_or(0, |tcp| tcp.bytes_received);
    let total: u64 = connections.iter().map(|socket| received(socket)).saturating_sum();
    let largest = connections.iter().max_by_key(|socket| received(socket))?;
    let share = received(largest) as f64 / total.max(1) as f64;
    (received(largest) >= LEAST && share >= SHARE).then_some((*largest, share))
}

fn skew(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for nic in view.nics() {
        let Some((queue, share, total, what)) = busiest(view, nic) else { continue };
        let is_steered = nic.receive_queues.get(queue).is_some_and(|queue| queue.rps.len() > 1);
        if is_steered || dominant(&view.connections(nic)).is_some() {
            continue;
        }
        let text = format!(
            "queue {queue} of {} had {} of {} received {what}",
            nic.receive_queue_count(),
            per_cent(share),
            count(total)
        );
        let effect = "its processor is the limit while the other queues idle";
        if view.facts.unknown.iter().any(|gap| gap.concerns(needs::SOCKETS)) {
            let text = format!(
                "{text}; whether one flow is the reason is not known, because no sockets could be read"
            );
            found.push(Found::assumed(&nic.name, text, effect).on(&nic.name).advice(
                "look at the flows of that queue: no setting spreads one flow; packet steering spreads many",
            ));
            continue;
        }
        let is_reported =
            super::reported(view, "rss-hash-fields").iter().any(|found| found.subject == nic.name);
        let poor_hash = is_reported
            || nic.rss.as_ref().is_some_and(|rss| {
                rss.hash_fields.iter().any(|(flow, fields)| {
                    flow.starts_with("tcp") && !"sdfn".chars().all(|letter| fields.contains(letter))
                })
            });
        let cores = view.local_cores(nic);
        // Exclude the overloaded processor. If other processors are free, also exclude the processors
        // that serve another NIC.
        let of_queue =
            view.receive_interrupts(nic).into_iter().filter(|line| line.queue == Some(queue as u32));
        let own: BTreeSet<u32> = of_queue.flat_map(|line| line.target().iter().copied()).collect();
        let others = view.nics().filter(|other| other.name != nic.name);
        let mut serving: BTreeSet<u32> = others.flat_map(|other| view.interrupt_processors(other)).collect();
        serving.extend(&own);
        let without = |taken: &BTreeSet<u32>| -> Vec<u32> {
            cores.iter().copied().filter(|core| !taken.contains(core)).collect()
        };
        let targets = [without(&serving), without(&own), cores.clone()];
        let targets = targets.into_iter().find(|targets| targets.len() > 1).unwrap_or_default();
        let mut entry =
            Found::measured(by_speed(nic, Medium, Low).max(Medium), &nic.name, text, effect).on(&nic.name);
        if poor_hash {
            entry = entry.advice("its hash leaves fields out: see rss-hash-fields");
        } else if targets.len() > 1 {
            let file = format!("queues/rx-{queue}/rps_cpus");
            entry = entry
                .change(Knob::InterfaceFile(file), Value::Text(super::queues::mask(&targets)))
                .advice("the hash covers the fields of these packets: the NIC may be unable to parse these packets (PPPoE, tunnels, fragments)");
        } else {
            entry = entry.advice("`evenkeel steer` puts flows on queues by a policy");
        }
        found.push(entry);
    }
    found
}

fn one_flow(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for nic in view.nics() {
        let Some((queue, share, ..)) = busiest(view, nic) else { continue };
        let Some((socket, of_bytes)) = dominant(&view.connections(nic)) else { continue };
        let text = format!(
            "queue {queue} has {} of the load, and one connection ({} from {}) {} of the bytes",
            per_cent(share),
            socket.local,
            socket.remote,
            per_cent(of_bytes)
        );
        let effect = "one flow uses one queue and one processor: no setting can spread it";
        found.push(
            Found::measured(Low, &nic.name, text, effect)
                .advice("several parallel connections in the application; interrupts, RSS and irqbalance are not at fault"),
        );
    }
    found
}

/// Returns the Toeplitz hash of a received TCP packet (Microsoft, "RSS hashing functions").
fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
    let window = |bit: usize| {
        let byte = |at: usize| u64::from(key.get(bit / 8 + at).copied().unwrap_or(0));
        let five = (0..5).fold(0, |bits, at| bits << 8 | byte(at));
        (five >> (8 - bit % 8)) as u32
    };
    let bits = input.iter().enumerate().flat_map(|(at, byte)| {
        (0..8).filter(move |bit| byte & (0x80 >> bit) != 0).map(move |bit| at * 8 + bit)
    });
    bits.fold(0, |hash, bit| hash ^ window(bit))
}

fn queue_of(rss: &Rss, socket: &SocketFacts) -> Option<u32> {
    if rss.indirection.is_empty() || !matches!(rss.function.as_str(), "toeplitz" | "") {
        return None;
    }
    let (remote, local): (SocketAddr, SocketAddr) = (socket.remote.parse().ok()?, socket.local.parse().ok()?);
    let mut input = Vec::new();
    for end in [remote, local] {
        match end.ip() {
            IpAddr::V4(address) => input.extend(address.octets()),
            IpAddr::V6(address) => input.extend(address.octets()),
        }
    }
    let fields = rss.hash_fields.get(if remote.is_ipv4() { "tcp4" } else { "tcp6" });
    let hashes =
        |letters: &str| fields.is_none_or(|fields| letters.chars().all(|letter| fields.contains(letter)));
    // Without addresses, the hash uses fields that the facts do not contain.
    if !hashes("sd") {
        return None;
    }
    let ports = hashes("fn");
    if ports {
        input.extend(remote.port().to_be_bytes());
        input.extend(local.port().to_be_bytes());
    }
    // If the key is too short, the hash is unknown: the missing bytes need not be 0.
    if rss.key.len() < input.len() + 4 {
        return None;
    }
    let hash = toeplitz(&rss.key, &input) as usize;
    rss.indirection.get(hash % rss.indirection.len()).copied()
}

/// Number of flows up to which the probability is computed exactly. The time grows with the square of
/// the number.
const MOST_COUNTED: usize = 2_000;

/// Returns the probability that some queue gets at least `most` flows. Each flow falls on a queue at
/// random, in proportion to the queue's table entries. Queues with a Poisson number of flows each have
/// the same distribution, given their sum.
///
/// With more than [`MOST_COUNTED`] flows, the result is an upper bound: H. Chernoff, "A measure of
/// asymptotic efficiency for tests of a hypothesis based on the sum of observations" (1952), added over
/// the queues.
fn chance_of(most: usize, flows: usize, shares: &[f64]) -> f64 {
    if flows > MOST_COUNTED {
        let part = most as f64 / flows as f64;
        let rest =
            |share: f64| if part < 1.0 { (1.0 - part) * ((1.0 - part) / (1.0 - share)).ln() } else { 0.0 };
        let bound = |share: &f64| match part > *share && *share > 0.0 {
            true => (-(flows as f64) * (part * (part / share).ln() + rest(*share))).exp(),
            false => f64::from(u8::from(*share > 0.0)),
        };
        return shares.iter().map(bound).sum::<f64>().min(1.0);
    }
    let mut ways = vec![0.0; flows + 1];
    ways[0] = 1.0;
    for share in shares {
        let mean = share * flows as f64;
        let mut next = vec![0.0; flows + 1];
        // Compute with logarithms: with a thousand flows on a queue, the weight of zero flows is too
        // small for an f64.
        let mut log_weight = -mean;
        for on_queue in 0..most.min(flows + 1) {
            if on_queue > 0 {
                log_weight += (mean / on_queue as f64).ln();
            }
            let weight = log_weight.exp();
            for (others, so_far) in ways.iter().enumerate().take(flows + 1 - on_queue) {
                next[others + on_queue] += so_far * weight;
            }
        }
        ways = next;
    }
    let total = flows as f64;
    let of_sum: f64 = (1..=flows).map(|number| (total / number as f64).ln()).sum::<f64>() - total;
    (1.0 - ways.last().copied().unwrap_or(0.0) / of_sum.exp()).clamp(0.0, 1.0)
}

fn collide(view: &View<'_>) -> Vec<Found> {
    const PART_OF_LARGEST: u64 = 10;
    const LEAST: u64 = 100_000_000;
    /// Below this probability, the flows are clearly spread worse than by a random hash.
    const CHANCE: f64 = 0.05;
    /// If the flows on a shared queue carried on average at most this share of the traffic of flows with
    /// their own queue, sharing slows them down, regardless of the probability.
    const SUFFERS: f64 = 0.7;
    const EVEN_SHARES: usize = 2;
    const NAMED: usize = 8;
    let mut found = Vec::new();
    for nic in view.nics() {
        let Some(rss) = nic.rss.as_ref() else { continue };
        let connections = view.connections(nic);
        let received = |socket: &SocketFacts| socket.tcp.as_ref().map_or(0, |tcp| tcp.bytes_received);
        let largest = connections.iter().map(|socket| received(socket)).max().unwrap_or(0);
        // Flows that share a queue carry less. So the threshold is a part of the largest flow, not of all
        // bytes.
        let is_large = |socket: &&SocketFacts| {
            received(socket) >= LEAST && received(socket).saturating_mul(PART_OF_LARGEST) >= largest
        };
        let large = connections.into_iter().filter(is_large);
        let mut queues: BTreeMap<u32, Vec<&SocketFacts>> = BTreeMap::new();
        for socket in large {
            if let Some(queue) = queue_of(rss, socket) {
                queues.entry(queue).or_default().push(socket);
            }
        }
        let flows: usize = queues.values().map(Vec::len).sum();
        let entries = entries(rss);
        // With more flows than queues, some flows must share a queue. The fault is a queue with at least
        // twice the even share.
        let is_crowded =
            |list: &Vec<&SocketFacts>| list.len() > 1 && list.len() * entries.len() >= EVEN_SHARES * flows;
        let Some((queue, shared)) =
            queues.iter().max_by_key(|(_, list)| list.len()).filter(|(_, list)| is_crowded(list))
        else {
            continue;
        };
        let shares: Vec<f64> =
            entries.values().map(|count| *count as f64 / rss.indirection.len() as f64).collect();
        let chance = chance_of(shared.len(), flows, &shares);
        let mean = |flows: &[&SocketFacts]| {
            flows.iter().map(|flow| received(flow) as f64).sum::<f64>() / flows.len().max(1) as f64
        };
        let alone: Vec<&SocketFacts> =
            queues.values().filter(|list| list.len() == 1).flatten().copied().collect();
        let suffers = !alone.is_empty() && mean(shared) <= SUFFERS * mean(&alone);
        if chance > CHANCE && !suffers {
            continue;
        }
        let name = |socket: &&SocketFacts| format!("{} ({})", socket.remote, bytes(received(socket)));
        let mut names: Vec<String> = shared.iter().take(NAMED).map(name).collect();
        if shared.len() > NAMED {
            names.push(format!("{} more", shared.len() - NAMED));
        }
        let why = if suffers {
            format!("those with a queue of their own carried {} each", bytes(mean(&alone) as u64))
        } else {
            format!("a random hash does that in {} of cases", per_cent(chance))
        };
        let text = format!(
            "{} of {flows} large connections are hashed to queue {queue} now: {}; {} of {} queues have none; {why}",
            shared.len(),
            names.join(", "),
            entries.len() - queues.len(),
            entries.len()
        );
        let effect =
            format!("they share one processor, and each gets about 1/{} of what it receives", shared.len());
        found.push(Found::measured(by_speed(nic, Medium, Low), &nic.name, text, effect).advice(format!(
            "`{}` {}",
            Line::new("evenkeel steer", &[]).on(&nic.name, " --policy balance", &[]),
            if flows > entries.len() {
                "spreads them over the queues"
            } else {
                "puts each on a separate queue"
            }
        )));
    }
    found
}

fn hash_off(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for nic in view.nics().filter(|nic| nic.receive_queue_count() > 1) {
        if nic.feature("rx-hashing").is_some_and(|feature| !feature.on && !feature.fixed) {
            let text = "receive-hashing is off";
            let entry =
                Found::setting(Low, &nic.name, text, "the kernel hashes each packet again in software")
                    .on(&nic.name);
            found.push(entry.change(Knob::Feature("rx-hashing".to_owned()), Value::Switch(true)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn chance_is_that_of_balls_in_boxes() {
        let even = |queues: usize| vec![1.0 / queues as f64; queues];
        // The birthday problem: 1 - 16!/(8! 16^8) for 8 flows on 16 queues.
        assert!((chance_of(2, 8, &even(16)) - 0.879).abs() < 0.001);
        assert!((chance_of(2, 23, &even(365)) - 0.507).abs() < 0.001);
        assert!((chance_of(8, 8, &even(2)) - 2.0 / 256.0).abs() < 1e-9);
        assert!((0.01..0.05).contains(&chance_of(4, 8, &even(16))));
        // A queue with most table entries gets most flows: the table is at fault, not the hash.
        assert!(chance_of(4, 4, &[0.9, 0.1]) > 0.6);
        assert_eq!(chance_of(1, 3, &even(4)), 1.0);
        assert!((chance_of(5, 5, &even(4)) - 4.0 / 1024.0).abs() < 1e-9);
        // The binomial distribution of one of two queues: 2 P(X >= 1,060) with a deviation of 22.4.
        assert!((chance_of(1_060, 2_000, &even(2)) - 0.0078).abs() < 0.001);
        assert!(chance_of(2_000, 2_000, &even(4)) < 1e-9);
        // More flows have an upper bound: 2 P(X >= 1,100) of 2,001 is 9e-6.
        let bound = chance_of(1_100, 2_001, &even(2));
        assert!((9e-6..2e-4).contains(&bound), "{bound}");
        assert_eq!(chance_of(1_000_000, 1_000_000, &even(64)), 0.0);
        assert_eq!(chance_of(15_625, 1_000_000, &even(64)), 1.0);
    }

    #[test]
    fn the_hash_is_that_of_the_verification_suite() {
        // Microsoft, "Verifying the RSS hash calculation": 66.9.149.187:2794 to 161.142.100.80:1766.
        let key = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
            0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
            0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
        ];
        let mut input = vec![66, 9, 149, 187, 161, 142, 100, 80];
        assert_eq!(toeplitz(&key, &input), 0x323e_8fc2);
        input.extend(2794_u16.to_be_bytes());
        input.extend(1766_u16.to_be_bytes());
        assert_eq!(toeplitz(&key, &input), 0x51cc_c178);
    }
}
