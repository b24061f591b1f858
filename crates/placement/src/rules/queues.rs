//! Rules about the number of receive queues, and about packet steering in software (RPS) when there are
//! too few queues.

use std::collections::BTreeSet;

use evenkeel_model::change::{Channels, Knob, Value};
use evenkeel_model::host::{Interface, SaturatingSum, Softnet, processor_list};

use super::{FAST, Found, Rule, needs};
use crate::Basis;
use crate::Severity::{High, Low, Medium};
use crate::View;
use crate::plan::{channel_changes, interrupt_places};
use crate::view::{count, gigabits, per_cent};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "queues-few",
        looks_at: "receive queues in use against the NIC's maximum, the cores of its node and its speed; overload: \
                   at most half of the possible queues are in use, and their processors spend 25 % of their time in \
                   softirqs (the others less than half of that) or the rings lose packets (rx-ring-drops, high); not \
                   with queues-share-interrupts, and not if one queue has 90 % of the packets",
        fires_when: "medium: fewer than 4 queues, or fewer than one per 25 Gbit/s (from 10 Gbit/s, or unknown speed \
                     with load), or overload; high: overload with losses (100 packets and one in a million; from 10 \
                     Gbit/s, or unknown speed), or, from 10 Gbit/s, one queue on a link above 43 Gbit/s or on a busy \
                     NIC; low: otherwise, such as one queue below 10 Gbit/s (below 1 Gbit/s only on a busy NIC: \
                     100 Mbit/s is at most 149,000 packets per second)",
        why: "One processor empties one queue: the paper's received 25 Gbit/s in packets of 1,500 bytes, far less in \
              small ones.",
        fix: "more channels, up to the cores of the node",
        source: "the paper, section II and figure 5; Documentation/networking/scaling.rst",
        needs: &[
            needs::SPEED,
            needs::CHANNELS,
            needs::NODE,
            needs::NODES,
            needs::TOPOLOGY,
            needs::TIMES,
            needs::STATISTICS,
            needs::DRIVER_STATISTICS,
        ],
        check: few,
    },
    Rule {
        name: "queues-many",
        looks_at: "receive queues in use against the processors of the whole host",
        fires_when: "low: more queues than processors",
        why: "Several queues share a processor: more interrupts and smaller batches, but no more parallel work.",
        fix: "one channel for each core",
        source: "Documentation/networking/scaling.rst (Suggested configuration)",
        needs: &[needs::CHANNELS, needs::TOPOLOGY],
        check: many,
    },
    Rule {
        name: "queues-share-interrupts",
        looks_at: "receive queues in use, and their interrupts",
        fires_when: "low: at least two queues for each interrupt; medium: with load",
        why: "One processor polls all queues of an interrupt: these do not spread load. Virtual functions or a \
              platform limit may take the NIC's interrupts.",
        fix: "fewer virtual functions, or as many channels as interrupts if these are enough (queues-few)",
        source: "Documentation/PCI/msi-howto.rst (pci_alloc_irq_vectors); Documentation/networking/scaling.rst (RSS IRQ Configuration)",
        needs: &[needs::CHANNELS, needs::INTERRUPTS, needs::STATISTICS],
        check: share_interrupts,
    },
    Rule {
        name: "tx-queues-few",
        looks_at: "transmit channels of drivers with separate ones, and how often queues stopped",
        fires_when: "medium: at most half of the channels that NIC and cores allow are in use, and queues stopped \
                     10,000 times and once in 10,000 packets",
        why: "Processors that send share queues, locks and rings: a full queue stops all of them.",
        fix: "a transmit channel for each core",
        source: "ethtool(8), -L; Documentation/networking/scaling.rst (XPS)",
        needs: &[
            needs::CHANNELS,
            needs::NODE,
            needs::NODES,
            needs::TOPOLOGY,
            needs::STATISTICS,
            needs::DRIVER_STATISTICS,
        ],
        check: transmit_few,
    },
    Rule {
        name: "rps-missing",
        looks_at: "NICs without RPS that use all their queues, at most one for two cores of their node; softirq \
                   times",
        fires_when: "medium: the processors of the NIC's interrupts spend 25 % of their time in softirqs, or \
                     ended 1,000 rounds with work left (one in 10,000 packets), and the other processors \
                     spend at most half as much; not if one processor takes the interrupts of several queues \
                     (irq-one-processor, medium)",
        why: "The NIC cannot spread packets over more processors; the kernel can, after it has read each header.",
        fix: "receive packet steering (RPS) to the other processors",
        source: "Documentation/networking/scaling.rst (RPS); amzn-drivers, ENA Linux best practices (RPS)",
        needs: &[
            needs::QUEUES,
            needs::CHANNELS,
            needs::TIMES,
            needs::SOFTNET,
            needs::INTERRUPTS,
            needs::NODE,
            needs::NODES,
            needs::TOPOLOGY,
            needs::STATISTICS,
        ],
        check: rps_missing,
    },
    Rule {
        name: "rps-one-processor",
        looks_at: "RPS masks with a single processor, the queue's interrupt, and the load of that processor",
        fires_when: "low: it is the processor of the queue's interrupt; medium: it is the only one of all queues, \
                     and spends 30 % of its time in softirqs or its backlog dropped 100 packets",
        why: "RPS to the interrupt's processor queues each packet twice and spreads nothing. RPS of all queues to \
              one processor makes that processor the limit.",
        fix: "few queues: the other processors of the node; a queue for each core: no mask",
        source: "Documentation/networking/scaling.rst (RPS, Suggested Configuration); get_rps_cpu, net/core/dev.c",
        needs: &[
            needs::QUEUES,
            needs::INTERRUPTS,
            needs::AFFINITY,
            needs::NODE,
            needs::NODES,
            needs::TIMES,
            needs::SOFTNET,
        ],
        check: rps_one,
    },
    Rule {
        name: "rps-redundant",
        looks_at: "RPS masks of NICs with a receive queue for each core of their node",
        fires_when: "low: a queue has an RPS mask, without RFS (rps_flow_cnt), and is not overloaded (rss-skew)",
        why: "RPS passes packets that are already on the right processor to another one: an interrupt between \
              processors for each batch.",
        fix: "no RPS: the NIC spreads",
        source: "Documentation/networking/scaling.rst (RPS, Suggested Configuration)",
        needs: &[needs::QUEUES, needs::NODE, needs::NODES, needs::TOPOLOGY],
        check: rps_redundant,
    },
    Rule {
        name: "rps-remote",
        looks_at: "processors in RPS masks, and the node of the NIC",
        fires_when: "medium: from 10 Gbit/s, a mask has processors of another package than the NIC's",
        why: "Packets cross the interconnect inside the stack, below TCP's flow control.",
        fix: "processors of the NIC's package only",
        source: "Documentation/networking/scaling.rst (RPS); the paper, section III-A",
        needs: &[needs::SPEED, needs::QUEUES, needs::NODE, needs::NODES],
        check: rps_remote,
    },
    Rule {
        name: "rfs-half",
        looks_at: "rps_sock_flow_entries of the host and rps_flow_cnt of the queues",
        fires_when: "low: one is set and the other is 0",
        why: "Receive flow steering (RFS) needs both: with only one of them the kernel steers nothing.",
        fix: "both, or neither",
        source: "Documentation/networking/scaling.rst (RFS, Configuration)",
        needs: &[needs::QUEUES, "/proc/sys/net/core/rps_sock_flow_entries"],
        check: rfs_half,
    },
];

/// Adds to a finding the changes that give a NIC this number of receive queues.
fn with_channels(nic: &Interface, found: Found, number: u32) -> Found {
    let changes = channel_changes(nic, number);
    changes.into_iter().fold(found.on(&nic.name), |found, change| found.change(change.knob, change.to))
}

/// The reason why the queues in use are too few, regardless of their number.
struct Overload {
    words: String,
    /// Whether the queues' processors are busy while other processors are not, and packets are lost.
    loses: bool,
}

/// Returns why the queues in use are too few: their processors are busy while other processors are not, or
/// the loss at the ring has high severity.
fn overload(view: &View<'_>, nic: &Interface) -> Option<Overload> {
    const SHARE: f64 = 0.25;
    let servers = view.interrupt_processors(nic);
    let serves = |number: u32| servers.contains(&number);
    let shares = view.mean_softirq_share(serves).zip(view.mean_softirq_share(|number| !serves(number)));
    // If several queues share a processor, their placement is at fault, not their number.
    let apart = servers.len() * 2 > nic.receive_queue_count() as usize;
    let is_lopsided = |(share, others): &(f64, f64)| apart && *share >= SHARE && others * 2.0 < *share;
    if let Some((share, others)) = shares.filter(is_lopsided) {
        let mut words = format!("{}, the others {}", busy_words(&servers, share), per_cent(others));
        let lost = super::nic::ring_losses(&nic.losses);
        let loses = view.judge_loss(nic, lost, nic.received_packets()).is_some();
        if loses {
            words += &format!("; {} packets were lost at the NIC", count(lost));
        }
        return Some(Overload { words, loses });
    }
    let lost = nic.losses.ring.unwrap_or(0);
    let (severity, _) = view.judge_loss(nic, lost, nic.received_packets())?;
    let words = format!("{} packets found no descriptor", count(lost));
    (severity == High).then_some(Overload { words, loses: false })
}

/// Returns the number of interrupts that the receive queues share, if there are at least two queues for
/// each interrupt.
fn shared_interrupts(view: &View<'_>, nic: &Interface) -> Option<u32> {
    const MOST_LINES_PART: u32 = 2;
    let apart = nic.channels.is_some_and(|channels| channels.combined == 0 && channels.rx > 0);
    // With separate receive and transmit channels, one interrupt may serve one channel of each kind.
    let lines = match view.receive_interrupts(nic).len() {
        lines if lines > 0 && apart => view
            .facts
            .interrupts
            .iter()
            .filter(|line| line.interface == nic.name && line.queue.is_some())
            .count(),
        lines => lines,
    };
    let lines = u32::try_from(lines).ok()?;
    (lines > 0 && lines * MOST_LINES_PART <= nic.receive_queue_count()).then_some(lines)
}

fn possible_queues(view: &View<'_>, nic: &Interface) -> Option<u32> {
    let cores = u32::try_from(view.queue_places(nic).len()).unwrap_or(u32::MAX);
    Some(nic.channels?.receive_max().min(cores))
}

/// Returns the number of receive queues that a NIC needs for its speed.
fn needed_queues(nic: &Interface, possible: u32) -> u32 {
    const PER_QUEUE_BPS: u64 = 25_000_000_000;
    const LEAST: u64 = 4;
    match nic.speed_bps {
        Some(speed) if speed >= FAST => {
            u32::try_from(speed.div_ceil(PER_QUEUE_BPS).max(LEAST)).unwrap_or(u32::MAX).min(possible)
        }
        Some(_) => 2.min(possible),
        // Many virtual NICs report no speed. They need as many queues as a NIC of 10 Gbit/s.
        None => u32::try_from(LEAST).unwrap_or(4).min(possible),
    }
}

/// Returns whether one processor certainly receives at the link's rate: below 1 Gbit/s, such as 100 Mbit/s
/// with at most 149,000 packets per second.
fn is_slow(nic: &Interface) -> bool {
    const SLOW: u64 = 1_000_000_000;
    nic.speed_bps.is_some_and(|speed| speed < SLOW)
}

fn few(view: &View<'_>) -> Vec<Found> {
    /// Rate of a queue with jumbo frames and one core only for the interrupts, bit/s: the paper's
    /// figure 1.
    const PER_QUEUE_MOST_BPS: u64 = 43_000_000_000;
    const IN_ONE: f64 = 0.9;
    let mut found = Vec::new();
    for nic in view.nics() {
        let Some(channels) = nic.channels else { continue };
        let (now, most) = (channels.receive(), channels.receive_max());
        let cores = u32::try_from(view.queue_places(nic).len()).unwrap_or(u32::MAX);
        let possible = most.min(cores);
        // More queues do not get more interrupts. The rule queues-share-interrupts explains the reason.
        let no_interrupts = shared_interrupts(view, nic).is_some();
        // More queues do not spread packets that almost all arrive in one queue. The rule rss-skew
        // explains the reason.
        let in_one = super::spread::busiest(view, nic)
            .is_some_and(|(_, share, _, what)| what == "packets" && share >= IN_ONE);
        if now == 0 || now >= possible || in_one || no_interrupts {
            continue;
        }
        let fast = nic.speed_bps.filter(|speed| *speed >= FAST);
        let needed = needed_queues(nic, possible);
        let overload = overload(view, nic).filter(|_| now.saturating_mul(2) <= possible);
        let is_enough = now >= needed || is_slow(nic) && !view.is_busy(nic);
        if is_enough && overload.is_none() {
            continue;
        }
        let text = format!(
            "{now} of {most} receive queues, {cores} cores on its node{}{}",
            nic.speed_bps.map(|speed| format!(", {}", gigabits(speed as f64))).unwrap_or_default(),
            overload.as_ref().map_or_else(|| view.softirq_words(nic), |why| format!("; {}", why.words))
        );
        // Whether the link is faster than these queues can receive at best.
        let limit = fast.is_some_and(|speed| u64::from(now) * PER_QUEUE_MOST_BPS < speed);
        let basis = match &overload {
            _ if limit => Basis::Limit,
            Some(_) => Basis::Measured,
            None => view.cost_basis(nic),
        };
        let loses = overload.as_ref().is_some_and(|why| why.loses);
        let severity = match (fast, now, nic.speed_bps) {
            (Some(_), ..) | (None, _, None) if loses => High,
            _ if now >= needed => Medium,
            (None, _, Some(_)) if overload.is_some() => Medium,
            (Some(_), 1, _) => High,
            (Some(_), ..) => Medium,
            (None, _, None) if view.is_loaded(nic) => Medium,
            (None, ..) => Low,
        };
        let effect = format!(
            "{now} of {cores} cores receive; one received 25 Gbit/s in packets of 1,500 bytes (LCN 2019 paper)"
        );
        found.push(with_channels(nic, Found::on_basis(basis, severity, &nic.name, text, effect), possible));
    }
    found
}

fn many(view: &View<'_>) -> Vec<Found> {
    let processors = u32::try_from(view.facts.processors.len()).unwrap_or(u32::MAX);
    let mut found = Vec::new();
    for nic in view.nics() {
        let Some(now) = nic.channels.map(|channels| channels.receive()).filter(|now| *now > processors)
        else {
            continue;
        };
        let text = format!("{now} receive queues, {processors} processors");
        let effect = "several queues share a processor: more interrupts and smaller batches";
        let queues = interrupt_places(view, nic).queues.max(1);
        found.push(with_channels(nic, Found::setting(Low, &nic.name, text, effect), queues));
    }
    found
}

fn share_interrupts(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for nic in view.nics() {
        let queues = nic.receive_queue_count();
        let Some(lines) = shared_interrupts(view, nic) else { continue };
        let text = format!("{queues} receive queues have {lines} interrupts");
        let effect = "the same processor serves queues that share an interrupt one after the other";
        let severity = if view.is_loaded(nic) { Medium } else { Low };
        let entry = Found::setting(severity, &nic.name, text, effect);
        // Whether as many queues as interrupts would be too few (queues-few).
        let is_few = possible_queues(view, nic).is_some_and(|possible| {
            lines < needed_queues(nic, possible)
                || lines.saturating_mul(2) <= possible && overload(view, nic).is_some()
        });
        const ADVICE: &str = "get more interrupts: virtual functions (sriov_numvfs) or a limit of the platform may take the NIC's interrupts";
        found.push(match is_few {
            true => entry.on(&nic.name).advice(ADVICE),
            false => with_channels(nic, entry, lines).advice(format!("or {ADVICE}")),
        });
    }
    found
}

fn transmit_few(view: &View<'_>) -> Vec<Found> {
    const FEWEST: u64 = 10_000;
    const ONE_IN: u64 = 10_000;
    let mut found = Vec::new();
    for nic in view.nics() {
        let Some(channels) = nic.channels else { continue };
        let cores = u32::try_from(view.queue_places(nic).len()).unwrap_or(u32::MAX);
        let (now, possible) = (channels.tx + channels.combined, channels.tx_max.min(cores));
        let stops = nic.losses.transmit_stops.unwrap_or(0);
        let shows = stops >= FEWEST && stops.saturating_mul(ONE_IN) >= nic.sent_packets();
        if channels.combined > 0 || now == 0 || now * 2 > possible || !shows {
            continue;
        }
        let text = format!(
            "{now} of {} transmit queues, {cores} cores on its node; queues stopped {} times in {} packets",
            channels.tx_max,
            count(stops),
            count(nic.sent_packets())
        );
        let effect = "processors that send share few queues and their locks, and wait while these are full";
        found.push(
            Found::measured(Medium, &nic.name, text, effect)
                .on(&nic.name)
                .change(Knob::Channels(Channels::Tx), Value::Number(possible)),
        );
    }
    found
}

/// Formats processors as a mask, in words of 32 bits, the highest first.
pub(crate) fn mask(processors: &[u32]) -> String {
    let words = processors.iter().max().map_or(1, |most| *most as usize / 32 + 1);
    let word = |at: usize| {
        let inside = processors.iter().filter(|number| **number as usize / 32 == at);
        inside.fold(0_u32, |word, number| word | 1 << (number % 32))
    };
    let words: Vec<String> = (0..words).rev().map(|at| format!("{:08x}", word(at))).collect();
    words.join(",")
}

/// Formats the share of time that processors spend in softirqs: `processors 0,5 spend 30 % of their time
/// in softirqs`.
fn busy_words(processors: &BTreeSet<u32>, share: f64) -> String {
    let (list, share) = (processor_list(&processors.iter().copied().collect::<Vec<_>>()), per_cent(share));
    if processors.len() == 1 {
        format!("processor {list} spends {share} of its time in softirqs")
    } else {
        format!("processors {list} spend {share} of their time in softirqs")
    }
}

fn rps_missing(view: &View<'_>) -> Vec<Found> {
    const SHARE: f64 = 0.25;
    const SQUEEZES: u64 = 1000;
    let mut found = Vec::new();
    for nic in view.nics() {
        let queues = nic.receive_queues.len();
        let all_in_use = nic.channels.is_none_or(|channels| channels.receive() >= channels.receive_max());
        let steered = nic.receive_queues.iter().any(|queue| !queue.rps.is_empty());
        let cores = view.queue_places(nic);
        // The processor may be busy with the packets of another NIC.
        let busiest = view.nics().map(Interface::received_packets).max().unwrap_or(0);
        if nic.received_packets().saturating_mul(5) < busiest {
            continue;
        }
        if queues == 0 || !all_in_use || steered || queues * 2 > cores.len() {
            continue;
        }
        // The interrupts' affinity is at fault: the NIC spreads the packets over its queues.
        let one_processor = super::reported(view, "irq-one-processor");
        if one_processor.iter().any(|found| found.severity >= Medium && found.subject == nic.name) {
            continue;
        }
        // Interrupts show the receiving processors. Without interrupts, the busiest processor counts as
        // the receiving processor.
        let mut servers = view.interrupt_processors(nic);
        if servers.is_empty() {
            let busiest = view.facts.processors.iter().map(|processor| processor.number);
            let share = |number: &u32| view.softirq_share(*number).unwrap_or(0.0);
            servers.extend(busiest.max_by(|one, other| share(one).total_cmp(&share(other))));
        }
        let serves = |number: u32| servers.contains(&number);
        let (Some(share), Some(others)) =
            (view.mean_softirq_share(serves), view.mean_softirq_share(|number| !serves(number)))
        else {
            continue;
        };
        let squeezed = view.facts.softnet.iter().any(|line| {
            serves(line.processor)
                && line.squeezed >= SQUEEZES
                && line.squeezed.saturating_mul(10_000) >= line.processed
        });
        // SMT siblings of the busy processors are the second choice (amzn-drivers, ENA Linux best practices).
        let now = view.interrupt_targets(nic);
        let twins = view.with_siblings(&servers.union(&now).copied().collect::<Vec<_>>());
        let mut targets: Vec<u32> = cores.iter().copied().filter(|core| !twins.contains(core)).collect();
        if targets.is_empty() {
            let is_free = |number: &u32| {
                !serves(*number)
                    && !now.contains(number)
                    && view.facts.processor(*number).is_some_and(|processor| !processor.isolated)
            };
            targets = view.local_processors(nic).into_iter().filter(is_free).collect();
        }
        if others * 2.0 > share || share < SHARE && !squeezed || targets.is_empty() {
            continue;
        }
        let without_msi = super::msi::off(view, nic);
        let text = format!(
            "{queues} receive queue{}, the NIC's maximum{}; {}, the others {}",
            if queues == 1 { "" } else { "s" },
            if without_msi.is_some() { " without MSI" } else { "" },
            busy_words(&servers, share),
            per_cent(others)
        );
        let effect = "few processors receive everything while others idle";
        let mut entry = Found::measured(Medium, &nic.name, text, effect).on(&nic.name);
        for queue in 0..queues {
            let file = format!("queues/rx-{queue}/rps_cpus");
            entry = entry.change(Knob::InterfaceFile(file), Value::Text(mask(&targets)));
        }
        if let Some(other) = without_msi {
            entry = entry.advice(super::nic::first_fix("msi-off", &other));
        }
        found.push(entry);
    }
    found
}

/// Finds NICs whose RPS has no effect (a queue is steered only to the processor of its own interrupt), or
/// overloads a processor (all queues are steered to one busy processor).
fn rps_one(view: &View<'_>) -> Vec<Found> {
    view.nics().filter_map(|nic| rps_one_of(view, nic)).collect()
}

fn rps_one_of(view: &View<'_>, nic: &Interface) -> Option<Found> {
    const SHARE: f64 = 0.3;
    const DROPS: u64 = 100;
    let interrupts = view.receive_interrupts(nic);
    let queues = nic.receive_queues.len();
    let single: Vec<(usize, u32)> = nic
        .receive_queues
        .iter()
        .enumerate()
        .filter_map(|(at, queue)| match queue.rps.as_slice() {
            [only] => Some((at, *only)),
            _ => None,
        })
        .collect();
    let is_own = |(at, only): &(usize, u32)| {
        let mut of_queue = interrupts
            .iter()
            .filter(|interrupt| interrupt.queue.is_some_and(|number| number as usize == *at) || queues == 1);
        of_queue.any(|interrupt| interrupt.target() == [*only])
    };
    let own = single.iter().filter(|queue| is_own(queue)).count();
    let only: BTreeSet<u32> = single.iter().map(|(_, only)| *only).collect();
    let places = view.queue_places(nic);
    let all_to_one = single.len() == queues && only.len() == 1 && queues.max(places.len()) > 1;
    let dropped: u64 = view
        .facts
        .softnet
        .iter()
        .filter(|line| only.contains(&line.processor))
        .map(|line| line.dropped)
        .saturating_sum();
    let share = only.iter().filter_map(|number| view.softirq_share(*number)).fold(0.0, f64::max);
    let busy = all_to_one && (share >= SHARE || dropped >= DROPS);
    if single.is_empty() || own == 0 && !busy {
        return None;
    }
    let mut text = format!(
        "packets of {} of {queues} receive queues are steered (RPS) to one processor each ({})",
        single.len(),
        processor_list(&only.iter().copied().collect::<Vec<_>>())
    );
    if own > 0 {
        text += &format!(", {own} of them to the processor of their interrupt");
    }
    if busy {
        text += &format!("; this processor spends {} of its time in softirqs", per_cent(share));
    }
    let far: Vec<u32> = only.iter().copied().filter(|number| view.is_other_package(nic, *number)).collect();
    if let Some(node) = nic.node.filter(|_| busy && !far.is_empty()) {
        text += &format!("; this processor is in another package than the NIC's node {node}");
    }
    if busy && dropped > 0 {
        text += &format!(", and its backlog dropped {} packets", count(dropped));
    }
    let entry = if busy {
        Found::measured(
            Medium,
            &nic.name,
            text,
            "one processor takes the packets of all queues while others idle",
        )
    } else {
        let effect = "each packet is queued a second time on the same processor, and nothing is spread";
        Found::setting(Low, &nic.name, text, effect)
    };
    let servers = view.interrupt_targets(nic);
    let others: Vec<u32> = places.iter().copied().filter(|place| !servers.contains(place)).collect();
    // With at most one queue for two cores, the fix sets a mask that spreads packets over the other
    // processors. With more queues, or with fewer than two other processors, the fix removes the mask.
    let is_few = queues * 2 <= places.len() && others.len() > 1;
    let wanted = if is_few { mask(&others) } else { "0".to_owned() };
    let changed = single.iter().filter(|queue| busy || is_own(queue));
    Some(changed.fold(entry.on(&nic.name), |entry, (queue, _)| {
        let file = format!("queues/rx-{queue}/rps_cpus");
        entry.change(Knob::InterfaceFile(file), Value::Text(wanted.clone()))
    }))
}

/// Returns whether RPS steers the packets of all queues to one busy processor. The rule rps-one-processor
/// reports this fault with its cost.
fn is_steered_to_one(view: &View<'_>, nic: &Interface) -> bool {
    rps_one_of(view, nic).is_some_and(|found| found.basis == Basis::Measured)
}

/// Returns the finding about packet steering to one processor, if most backlog drops are on that processor.
pub(super) fn steered_to_dropper(view: &View<'_>) -> Option<Found> {
    const SHARE: f64 = 0.9;
    let dropped = |line: &Softnet| line.dropped;
    let all: u64 = view.facts.softnet.iter().map(dropped).saturating_sum();
    view.nics().find_map(|nic| {
        let first = nic.receive_queues.first()?.rps.as_slice();
        let lines = view.facts.softnet.iter().filter(|line| first == [line.processor]);
        let here = lines.map(dropped).saturating_sum();
        let same = nic.receive_queues.iter().all(|queue| queue.rps == first);
        if first.len() != 1 || !same || (here as f64) < SHARE * all as f64 {
            return None;
        }
        super::reported(view, "rps-one-processor").iter().find(|found| found.subject == nic.name).cloned()
    })
}

fn rps_redundant(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for nic in view.nics().filter(|nic| !is_steered_to_one(view, nic)) {
        // If the hash directs most packets to one queue, software steering spreads that queue (rss-skew).
        let skewed = super::spread::busiest(view, nic).map(|(queue, ..)| queue);
        let steered: Vec<usize> = nic
            .receive_queues
            .iter()
            .enumerate()
            .filter(|(at, queue)| !queue.rps.is_empty() && Some(*at) != skewed)
            .map(|(at, _)| at)
            .collect();
        let cores = view.queue_places(nic).len();
        // Receive flow steering (RFS) is different: it follows the application.
        let flows = nic.receive_queues.iter().any(|queue| queue.rps_flow_count > 0);
        if steered.is_empty() || flows || nic.receive_queues.len() < cores.max(2) {
            continue;
        }
        let text = format!(
            "{} receive queues for {cores} cores, and packet steering in software on {} of them",
            nic.receive_queues.len(),
            steered.len()
        );
        let effect = "packets change their processor without a gain";
        let mut entry = Found::setting(Low, &nic.name, text, effect).on(&nic.name);
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
    for nic in view.nics().filter(|nic| nic.speed_bps.is_some_and(|speed| speed >= FAST)) {
        let Some(node) = nic.node.filter(|_| !is_steered_to_one(view, nic)) else { continue };
        let is_local = |processor: &u32| !view.is_other_package(nic, *processor);
        let mut entry: Option<Found> = None;
        for (at, queue) in nic.receive_queues.iter().enumerate() {
            if queue.rps.iter().all(is_local) {
                continue;
            }
            let local: Vec<u32> = queue.rps.iter().copied().filter(is_local).collect();
            // With one processor, that processor would be the limit (rps-one-processor).
            let local = if local.len() < 2 { view.local_cores(nic) } else { local };
            let local = if local.len() < 2 { Vec::new() } else { local };
            // If the NIC has a queue for every core, no steering is needed (rps-redundant).
            let flows = nic.receive_queues.iter().any(|queue| queue.rps_flow_count > 0);
            let enough = nic.receive_queues.len() >= view.queue_places(nic).len().max(2);
            let local = if enough && !flows { Vec::new() } else { local };
            let first = || {
                let remote: Vec<u32> =
                    queue.rps.iter().copied().filter(|processor| !is_local(processor)).collect();
                let text = format!(
                    "packets of its queues are steered to processors {}, which are in another package than its node {node}",
                    processor_list(&remote)
                );
                Found::setting(
                    Medium,
                    &nic.name,
                    text,
                    "packets cross the interconnect below TCP's flow control",
                )
                .on(&nic.name)
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
    let nics: Vec<&Interface> = view.nics().filter(|nic| !nic.receive_queues.is_empty()).collect();
    let counts: u64 =
        nics.iter().flat_map(|nic| &nic.receive_queues).map(|queue| u64::from(queue.rps_flow_count)).sum();
    let effect = "receive flow steering is off although one half of it is set";
    if entries == 0 && counts > 0 {
        let entries = counts.next_power_of_two().max(32_768);
        let text = format!("queues remember {counts} flows (rps_flow_cnt), and rps_sock_flow_entries is 0");
        return vec![
            Found::setting(Low, "host", text, effect).sysctl("net/core/rps_sock_flow_entries", entries),
        ];
    }
    if entries > 0 && counts == 0 && !nics.is_empty() {
        let text = format!("rps_sock_flow_entries is {entries}, and rps_flow_cnt of every queue is 0");
        let mut entry = Found::setting(Low, "host", text, effect);
        // The finding names one interface; the other interfaces need the same change.
        if let Some(nic) = nics.iter().max_by_key(|nic| nic.speed_bps) {
            let share = (entries / i64::try_from(nic.receive_queues.len()).unwrap_or(1).max(1)).max(1);
            entry = entry.on(&nic.name);
            for at in 0..nic.receive_queues.len() {
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
