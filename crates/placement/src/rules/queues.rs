//! How many queues receive, and what software does where hardware has too few.

use evenkeel_model::change::{Channels as ChannelKind, Knob, Value};
use evenkeel_model::host::{Interface, processor_list};

use super::{FAST, Found, Rule, needs};
use crate::Severity::{High, Low, Medium};
use crate::View;
use crate::view::{gigabits, per_cent};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "queues-few",
        looks_at: "receive queues in use against what the card has, the cores of its node, and its speed",
        speaks: "from 10 Gbit/s on when there are fewer than one for each 25 Gbit/s, and fewer than 4; on slower cards when there is a \
                 single one",
        why: "One processor empties one queue: the paper's received 25 Gbit/s in packets of 1,500 bytes, and far less in small ones.",
        mends: "more channels, up to the cores of the node",
        source: "the paper, section II and figure 5; Documentation/networking/scaling.rst",
        needs: &[needs::SPEED, needs::CHANNELS, needs::NODE, needs::NODES, needs::TOPOLOGY],
        check: few,
    },
    Rule {
        name: "queues-many",
        looks_at: "receive queues in use against the processors of the whole host",
        speaks: "when there are more queues than processors",
        why: "Several queues share a processor: more interrupts, smaller batches, no more parallel work.",
        mends: "one channel for each core",
        source: "Documentation/networking/scaling.rst (Suggested configuration)",
        needs: &[needs::CHANNELS, needs::TOPOLOGY],
        check: many,
    },
    Rule {
        name: "rps-missing",
        looks_at: "cards with a single receive queue, and the time that processors spend in softirqs",
        speaks: "when one processor spends a quarter of its time there, or ends its rounds with work left, and others are free",
        why: "The hardware cannot spread packets; the kernel can, after the first look at each.",
        mends: "receive packet steering to the other processors",
        source: "Documentation/networking/scaling.rst (RPS)",
        needs: &[
            needs::QUEUES,
            needs::CHANNELS,
            needs::TIMES,
            needs::SOFTNET,
            needs::INTERRUPTS,
            needs::NODE,
            needs::NODES,
            needs::TOPOLOGY,
        ],
        check: rps_missing,
    },
    Rule {
        name: "rps-redundant",
        looks_at: "receive packet steering on cards whose own queues reach every core of the node",
        speaks: "when both are on",
        why: "Packets that already are on their own processor are handed to another one: an interrupt between processors for each batch.",
        mends: "switch it off and let the card spread",
        source: "Documentation/networking/scaling.rst (RPS, Suggested Configuration)",
        needs: &[needs::QUEUES, needs::NODE, needs::NODES, needs::TOPOLOGY],
        check: rps_redundant,
    },
    Rule {
        name: "rps-remote",
        looks_at: "processors that receive packet steering may choose, and the node of the card",
        speaks: "when processors of another node are among them, from 10 Gbit/s on",
        why: "Packets cross the interconnect in the middle of the stack, below TCP's flow control.",
        mends: "processors of the card's node only",
        source: "Documentation/networking/scaling.rst (RPS); the paper, section III-A",
        needs: &[needs::SPEED, needs::QUEUES, needs::NODE, needs::NODES],
        check: rps_remote,
    },
    Rule {
        name: "rfs-half",
        looks_at: "rps_sock_flow_entries of the host and rps_flow_cnt of the queues",
        speaks: "when one is set and the other is 0",
        why: "Receive flow steering needs both: with one alone nothing is steered.",
        mends: "both, or neither",
        source: "Documentation/networking/scaling.rst (RFS, Configuration)",
        needs: &[needs::QUEUES, "/proc/sys/net/core/rps_sock_flow_entries"],
        check: rfs_half,
    },
];

/// The change that gives a card so many receive queues.
fn with_channels(card: &Interface, found: Found, number: u32) -> Found {
    let combined = card.channels.is_none_or(|channels| channels.combined_max > 0);
    let kind = if combined { ChannelKind::Combined } else { ChannelKind::Rx };
    found.on(&card.name).change(Knob::Channels(kind), Value::Number(number))
}

fn few(view: &View<'_>) -> Vec<Found> {
    const PER_QUEUE_BPS: u64 = 25_000_000_000;
    const LEAST: u64 = 4;
    let mut found = Vec::new();
    for card in view.cards() {
        let Some(channels) = card.channels else { continue };
        let (now, most) = (channels.receive(), channels.receive_max());
        let cores = u32::try_from(view.local_cores(card).len()).unwrap_or(u32::MAX);
        let possible = most.min(cores);
        if now == 0 || now >= possible {
            continue;
        }
        let fast = card.speed_bps.filter(|speed| *speed >= FAST);
        let needed = match fast {
            Some(speed) => {
                u32::try_from(speed.div_ceil(PER_QUEUE_BPS).max(LEAST)).unwrap_or(u32::MAX).min(possible)
            }
            None => 2.min(possible),
        };
        if now >= needed {
            continue;
        }
        let text = format!(
            "{now} of {most} receive queues, {cores} cores on its node{}",
            card.speed_bps.map(|speed| format!(", {}", gigabits(speed as f64))).unwrap_or_default()
        );
        let severity = match (fast, now, card.speed_bps) {
            (Some(_), 1, _) => High,
            (Some(_), ..) | (None, _, None) => Medium,
            (None, _, Some(_)) => Low,
        };
        let effect = format!(
            "{now} of {cores} cores receive; one took 25 Gbit/s in the paper, in packets of 1,500 bytes"
        );
        found.push(with_channels(card, Found::limit(severity, &card.name, text, effect), possible));
    }
    found
}

fn many(view: &View<'_>) -> Vec<Found> {
    let processors = u32::try_from(view.facts.processors.len()).unwrap_or(u32::MAX);
    let mut found = Vec::new();
    for card in view.cards() {
        let Some(now) = card.channels.map(|channels| channels.receive()).filter(|now| *now > processors)
        else {
            continue;
        };
        let text = format!("{now} receive queues, {processors} processors");
        let effect = "several queues share a processor: more interrupts and smaller batches";
        let cores = u32::try_from(view.local_cores(card).len()).unwrap_or(1).max(1);
        found.push(with_channels(card, Found::setting(Low, &card.name, text, effect), cores));
    }
    found
}

/// Processors as a mask, in words of 32 bits, the highest first.
pub(crate) fn mask(processors: &[u32]) -> String {
    let words = processors.iter().max().map_or(1, |most| *most as usize / 32 + 1);
    let word = |at: usize| {
        let inside = processors.iter().filter(|number| **number as usize / 32 == at);
        inside.fold(0_u32, |word, number| word | 1 << (number % 32))
    };
    let words: Vec<String> = (0..words).rev().map(|at| format!("{:08x}", word(at))).collect();
    words.join(",")
}

/// The processor with the most softirq time, its share of its time, and the mean share of the others.
fn softirq_shares(view: &View<'_>) -> Option<(u32, f64, f64)> {
    let shares: Vec<(u32, f64)> = view
        .facts
        .processors
        .iter()
        .filter_map(|processor| {
            let time = processor.time.filter(|time| time.total > 0)?;
            Some((processor.number, time.softirq as f64 / time.total as f64))
        })
        .collect();
    let (number, most) = shares.iter().copied().max_by(|one, other| one.1.total_cmp(&other.1))?;
    let others = shares.iter().filter(|(other, _)| *other != number).map(|(_, share)| share).sum::<f64>();
    Some((number, most, others / shares.len().saturating_sub(1).max(1) as f64))
}

fn rps_missing(view: &View<'_>) -> Vec<Found> {
    const SHARE: f64 = 0.25;
    const SQUEEZES: u64 = 1000;
    let mut found = Vec::new();
    for card in view.cards() {
        let single = card.receive_queue_count() == 1
            && card.channels.is_none_or(|channels| channels.receive_max() <= 1);
        let Some(queue) = card.receive_queues.first().filter(|_| single) else { continue };
        if !queue.rps.is_empty() || view.local_cores(card).len() < 2 {
            continue;
        }
        let Some((processor, share, others)) = softirq_shares(view) else { continue };
        let line = view.facts.softnet.iter().find(|line| line.processor == processor);
        let squeezed = line.is_some_and(|line| {
            line.squeezed >= SQUEEZES && line.squeezed.saturating_mul(10_000) >= line.processed
        });
        let lopsided = share >= SHARE && others * 2.0 < share;
        let serves =
            view.served_by(card).into_iter().max_by_key(|(_, count)| *count).map(|(processor, _)| processor);
        if !(lopsided || squeezed && share > others * 2.0) || serves.is_some_and(|serves| serves != processor)
        {
            continue;
        }
        let text = format!(
            "a single receive queue; processor {processor} spends {} of its time in softirqs, the others {} on average",
            per_cent(share),
            per_cent(others)
        );
        let targets: Vec<u32> =
            view.local_cores(card).into_iter().filter(|core| *core != processor).collect();
        let entry =
            Found::measured(Medium, &card.name, text, "one processor receives everything").on(&card.name);
        let file = "queues/rx-0/rps_cpus".to_owned();
        found.push(entry.change(Knob::InterfaceFile(file), Value::Text(mask(&targets))));
    }
    found
}

fn rps_redundant(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for card in view.cards() {
        let steered: Vec<usize> = card
            .receive_queues
            .iter()
            .enumerate()
            .filter(|(_, queue)| !queue.rps.is_empty())
            .map(|(at, _)| at)
            .collect();
        let cores = view.local_cores(card).len();
        // Flow steering is another matter: it follows the application.
        let flows = card.receive_queues.iter().any(|queue| queue.rps_flow_count > 0);
        if steered.is_empty() || flows || card.receive_queues.len() < cores.max(2) {
            continue;
        }
        let text = format!(
            "{} receive queues for {cores} cores, and packet steering in software on {} of them",
            card.receive_queues.len(),
            steered.len()
        );
        let effect = "packets change their processor for nothing";
        let mut entry = Found::setting(Low, &card.name, text, effect).on(&card.name);
        for queue in steered {
            entry = entry.change(
                Knob::InterfaceFile(format!("queues/rx-{queue}/rps_cpus")),
                Value::Text("0".to_owned()),
            );
        }
        found.push(entry);
    }
    found
}

fn rps_remote(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    if view.facts.nodes_with_processors() < 2 {
        return found;
    }
    for card in view.cards().filter(|card| card.speed_bps.is_some_and(|speed| speed >= FAST)) {
        let Some(node) = card.node else { continue };
        let is_local = |processor: &u32| view.facts.node_of(*processor) == Some(node);
        let mut entry: Option<Found> = None;
        for (at, queue) in card.receive_queues.iter().enumerate() {
            if queue.rps.iter().all(is_local) {
                continue;
            }
            let local: Vec<u32> = queue.rps.iter().copied().filter(is_local).collect();
            let local = if local.is_empty() { view.local_cores(card) } else { local };
            let first = || {
                let remote: Vec<u32> =
                    queue.rps.iter().copied().filter(|processor| !is_local(processor)).collect();
                let text = format!(
                    "packets of its queues are steered to processors {}, which are not on its node {node}",
                    processor_list(&remote)
                );
                Found::setting(
                    Medium,
                    &card.name,
                    text,
                    "packets cross the interconnect below TCP's flow control",
                )
                .on(&card.name)
            };
            let so_far = entry.take().unwrap_or_else(first);
            let file = format!("queues/rx-{at}/rps_cpus");
            entry = Some(so_far.change(Knob::InterfaceFile(file), Value::Text(mask(&local))));
        }
        found.extend(entry);
    }
    found
}

fn rfs_half(view: &View<'_>) -> Vec<Found> {
    let Some(entries) = view.facts.sysctl_number("net/core/rps_sock_flow_entries") else { return Vec::new() };
    let cards: Vec<&Interface> = view.cards().filter(|card| !card.receive_queues.is_empty()).collect();
    let counts: u64 =
        cards.iter().flat_map(|card| &card.receive_queues).map(|queue| u64::from(queue.rps_flow_count)).sum();
    let effect = "receive flow steering is off although one half of it is set";
    if entries == 0 && counts > 0 {
        let entries = counts.next_power_of_two().max(32_768);
        let text = format!("queues remember {counts} flows (rps_flow_cnt), and rps_sock_flow_entries is 0");
        return vec![
            Found::setting(Low, "host", text, effect).sysctl("net/core/rps_sock_flow_entries", entries),
        ];
    }
    if entries > 0 && counts == 0 && !cards.is_empty() {
        let text = format!("rps_sock_flow_entries is {entries}, and rps_flow_cnt of every queue is 0");
        let mut entry = Found::setting(Low, "host", text, effect);
        // One interface is named; the others are set alike.
        if let Some(card) = cards.iter().max_by_key(|card| card.speed_bps) {
            let share = (entries / i64::try_from(card.receive_queues.len()).unwrap_or(1).max(1)).max(1);
            entry = entry.on(&card.name);
            for at in 0..card.receive_queues.len() {
                entry = entry.change(
                    Knob::InterfaceFile(format!("queues/rx-{at}/rps_flow_cnt")),
                    Value::Text(share.to_string()),
                );
            }
        }
        return vec![entry];
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn masks_are_written_as_the_kernel_reads_them() {
        assert_eq!(mask(&[0, 1]), "00000003");
        assert_eq!(mask(&[33]), "00000002,00000000");
        assert_eq!(mask(&[]), "00000000");
    }
}
