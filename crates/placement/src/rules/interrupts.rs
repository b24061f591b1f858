//! Rules about the processors that serve interrupts.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::change::{Knob, Value};
use evenkeel_model::host::{HostFacts, Interface, Interrupt, ProcessFacts, SaturatingSum, processor_list};
use evenkeel_model::text::counted;

use super::{FAST, Found, Rule, by_speed, needs};
use crate::Basis;
use crate::Severity::{High, Low, Medium};
use crate::plan::{interrupt_changes, interrupt_places};
use crate::view::{ENOUGH_INTERRUPTS, View, count, per_cent};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "irq-remote-node",
        looks_at: "the memory node of each NIC, and the processors that serve its receive interrupts \
                   (/proc/interrupts, affinity masks)",
        fires_when: "medium: another package served over 10 % of at least 10,000 interrupts, or over 10 % of the \
                     NIC's interrupts go there now (low below 10 Gbit/s); high: it served 30 %, from 25 Gbit/s, with \
                     load; low: an idle NIC, counts from an earlier affinity, or, from 10 Gbit/s, another node of \
                     the package served half although the NIC's node has a free core for each queue",
        why: "Each packet crosses the interconnect of the packages below TCP's flow control: the worst of the \
              paper's four placements (case 2). Another node of the package (sub-NUMA clustering, AMD's NPS) costs \
              nanoseconds per access.",
        fix: "interrupts on cores of the NIC's own node",
        source: "the paper, section III-A, figures 8 and 9 (cases 2 and 4); AMD, Linux Network Tuning Guide for EPYC (NPS)",
        needs: &[
            needs::NODE,
            needs::INTERRUPTS,
            needs::NIC_INTERRUPTS,
            needs::AFFINITY,
            needs::NODES,
            needs::TOPOLOGY,
            needs::STATISTICS,
        ],
        check: remote_node,
    },
    Rule {
        name: "irq-one-processor",
        looks_at: "the spread of receive interrupts of several queues that share the packets, or of several NICs \
                   with one interrupt each",
        fires_when: "medium: one processor served 80 % of a NIC's interrupts or is the only target of four, a few \
                     processors served 90 % (at least four queues and cores for each, 30 % softirq time, and at most \
                     half as much on the others), or one processor with 10 % softirq time served 90 % of several \
                     NICs; high: from 10 Gbit/s, on a busy NIC; low: an idle NIC, or counts from an earlier affinity",
        why: "One processor receives everything while others idle: its backlog and ring overflow first.",
        fix: "one core for each queue's interrupt",
        source: "the paper, section II; Documentation/networking/scaling.rst",
        needs: &[
            needs::INTERRUPTS,
            needs::NIC_INTERRUPTS,
            needs::AFFINITY,
            needs::NODE,
            needs::NODES,
            needs::TOPOLOGY,
            needs::STATISTICS,
            needs::TIMES,
        ],
        check: one_processor,
    },
    Rule {
        name: "irq-smt-twins",
        looks_at: "processors of one core that both serve receive interrupts while other cores of the node serve \
                   none",
        fires_when: "low: from 25 Gbit/s, and the node has a free core for each such pair",
        why: "Two processors of a core share its execution units and first caches: two queues there get little more \
              throughput than one.",
        fix: "one core for each queue's interrupt",
        source: "the paper, section III-B, figure 10",
        needs: &[
            needs::SPEED,
            needs::INTERRUPTS,
            needs::NIC_INTERRUPTS,
            needs::AFFINITY,
            needs::NODE,
            needs::NODES,
            needs::TOPOLOGY,
        ],
        check: twins,
    },
    Rule {
        name: "irq-on-isolated",
        looks_at: "processors that isolcpus= or nohz_full= isolate, and that serve interrupts",
        fires_when: "medium: one of them served at least 1 % of a NIC's receive interrupts, or, below 10,000 \
                     interrupts, is the only target of a queue's interrupt; low: an idle NIC",
        why: "Isolated processors should run their application without interruption: irqaffinity= or the masks must \
              exclude them, too.",
        fix: "interrupts on processors that are not isolated",
        source: "Documentation/admin-guide/kernel-parameters.txt (isolcpus, irqaffinity)",
        needs: &[
            needs::INTERRUPTS,
            needs::NIC_INTERRUPTS,
            needs::AFFINITY,
            needs::ISOLATED,
            needs::NOHZ_FULL,
        ],
        check: isolated,
    },
    Rule {
        name: "irqbalance-runs",
        looks_at: "irqbalance with a NIC from 10 Gbit/s, unless it runs once or has options for interrupts \
                   (--banirq, --banmod, --policyscript)",
        fires_when: "low: it runs; medium: such a NIC's interrupts are in another package (irq-remote-node), or \
                     those of a NIC on one processor (irq-one-processor)",
        why: "irqbalance moves interrupts every 10 seconds and undoes any placement. The paper (Table I) and ESnet \
              stop it on transfer hosts; AWS keeps it with ENA.",
        fix: "stop it, or ban the NIC's interrupts in its options",
        source: "the paper, Table I; irqbalance(1); ESnet, fasterdata.es.net (host tuning, interrupt binding); amzn-drivers, ENA Linux best \
                 practices",
        needs: &[needs::PROCESSES, needs::PROCESS_ARGUMENTS, needs::SPEED, needs::INTERRUPTS],
        check: balancer,
    },
];

/// Adds to a finding the changes that move a NIC's interrupts to cores near the NIC. If all processors
/// near the NIC are isolated, adds only advice.
pub(super) fn with_placement(view: &View<'_>, nic: &Interface, found: Found) -> Found {
    if !interrupt_places(view, nic).near {
        let advice = "all processors of the NIC's package are isolated: keep some of them for interrupts";
        return found.on(&nic.name).advice(advice);
    }
    let changes = interrupt_changes(view, nic);
    let channels = changes.iter().find(|change| matches!(change.knob, Knob::Channels(_)));
    let advice = channels.map(|change| {
        format!(
            "{} queues share the cores near the NIC: {} channels give each queue a core of its own",
            nic.receive_queue_count(),
            change.to
        )
    });
    let found =
        changes.into_iter().fold(found.on(&nic.name), |found, change| found.change(change.knob, change.to));
    match advice {
        Some(advice) => found.advice(advice),
        None => found,
    }
}

fn remote_node(view: &View<'_>) -> Vec<Found> {
    view.nics().filter_map(|nic| other_package(view, nic).or_else(|| other_node(view, nic))).collect()
}

/// Finds interrupts that are served in another package than the NIC's.
fn other_package(view: &View<'_>, nic: &Interface) -> Option<Found> {
    const SHARE: f64 = 0.1;
    const GRAVE_SHARE: f64 = 0.3;
    const GRAVE_BPS: u64 = 25_000_000_000;
    let node = nic.node?;
    let is_remote = |processor: &u32| view.is_other_package(nic, *processor);
    let interrupts = view.receive_interrupts(nic);
    let served = view.served_by(nic);
    let total: u64 = served.values().saturating_sum();
    let remote: u64 =
        served.iter().filter(|(processor, _)| is_remote(processor)).map(|(_, count)| count).saturating_sum();
    let share = if total >= ENOUGH_INTERRUPTS { remote as f64 / total as f64 } else { 0.0 };
    // Use the current affinity. A mask that covers both packages does not count as remote.
    let goes_away =
        |interrupt: &&&Interrupt| !interrupt.target().is_empty() && interrupt.target().iter().all(is_remote);
    // irqbalance moves interrupts every ten seconds, so their present affinity means little.
    let away = if view.is_balanced(nic) { 0 } else { interrupts.iter().filter(goes_away).count() };
    let away_share = away as f64 / interrupts.len().max(1) as f64;
    let goes_home =
        |interrupt: &&Interrupt| !interrupt.target().is_empty() && !interrupt.target().iter().any(is_remote);
    let all_home = !interrupts.is_empty() && interrupts.iter().all(goes_home);
    if share <= SHARE && away_share <= SHARE {
        return None;
    }
    let places: Vec<u32> = served.keys().copied().filter(is_remote).collect();
    let counted = format!(
        "{} of {} receive interrupts ({}) were served by processors of another package ({}), and the NIC is on node {node}",
        count(remote),
        count(total),
        per_cent(share),
        processor_list(&places)
    );
    let effect = "packets cross the interconnect before TCP sees them, and are dropped when it or the far processor is busy";
    let now: BTreeSet<u32> =
        interrupts.iter().filter(goes_away).flat_map(|interrupt| interrupt.target()).copied().collect();
    let now = processor_list(&now.into_iter().collect::<Vec<_>>());
    let (severity, evidence) = if share > SHARE && all_home {
        (Low, format!("{counted}; now all of them go to its own package, so the counts are from the past"))
    } else if share > SHARE {
        let grave = share >= GRAVE_SHARE && nic.speed_bps.is_some_and(|speed| speed >= GRAVE_BPS);
        let more = if away > 0 {
            format!("; {away} of {} still go to {now}", interrupts.len())
        } else {
            String::new()
        };
        (if grave { High } else { Medium }, counted + &more)
    } else {
        let text = format!(
            "{away} of {} receive interrupts go to processors {now}, and the NIC is on node {node}",
            interrupts.len()
        );
        (by_speed(nic, Medium, Low), text)
    };
    let entry =
        Found::on_basis(view.load_basis(nic), severity, &nic.name, evidence + &load_words(view, nic), effect);
    Some(if severity == Low && all_home { entry.on(&nic.name) } else { with_placement(view, nic, entry) })
}

/// Finds that at least half of a NIC's interrupts were served on other nodes of the same package, while the
/// NIC's node has a core for each queue.
fn other_node(view: &View<'_>, nic: &Interface) -> Option<Found> {
    const SHARE: f64 = 0.5;
    let node = nic.node.filter(|node| !view.facts.processors_of(*node).is_empty())?;
    let fits = nic.receive_queue_count() as usize <= interrupt_places(view, nic).own;
    let served = view.served_by(nic);
    let total: u64 = served.values().saturating_sum();
    let is_elsewhere = |processor: &u32| view.facts.node_of(*processor).is_some_and(|of| of != node);
    let elsewhere: u64 = served
        .iter()
        .filter(|(processor, _)| is_elsewhere(processor))
        .map(|(_, count)| count)
        .saturating_sum();
    if !fits || total < ENOUGH_INTERRUPTS || (elsewhere as f64) < SHARE * total as f64 {
        return None;
    }
    view.needed_speed(nic).filter(|speed| *speed >= FAST)?;
    let text = format!(
        "{} of {} receive interrupts were served on other nodes of the same package, and the NIC is on node {node}",
        count(elsewhere),
        count(total)
    );
    let effect = "packets come from the memory of another node: a few nanoseconds for each cache line, and no interconnect";
    Some(with_placement(view, nic, Found::setting(Low, &nic.name, text, effect)))
}

/// Returns the load of a NIC as text that explains a low severity; empty for a loaded NIC, and for an
/// unknown load.
fn load_words(view: &View<'_>, nic: &Interface) -> String {
    match view.load(nic) {
        Some(load) if !view.is_loaded(nic) => {
            format!("; it received {:.0} packets/s since boot", load.packets)
        }
        _ => String::new(),
    }
}

/// Returns whether more than `few` queues cause a substantial share of the interrupts. With fewer such
/// queues, no placement of interrupts spreads the load.
fn is_spread_over_queues(interrupts: &[&Interrupt], few: usize) -> bool {
    const MOST: f64 = 0.8;
    let mut counts: Vec<u64> = interrupts.iter().map(|interrupt| interrupt.total()).collect();
    counts.sort_unstable_by(|one, other| other.cmp(one));
    let most: u64 = counts.iter().take(few).copied().saturating_sum();
    let total: u64 = counts.iter().copied().saturating_sum();
    counts.len() > few && (most as f64) < MOST * total as f64
}

/// Returns how many interrupts now target the processors in `from`, if these interrupts have less than
/// `share` of all counts. Most counts are then from an earlier affinity. Returns `None` if irqbalance
/// moves the interrupts.
fn moved_away(
    view: &View<'_>,
    nic: &Interface,
    interrupts: &[&Interrupt],
    from: &BTreeSet<u32>,
    share: f64,
) -> Option<usize> {
    let is_there = |interrupt: &&&Interrupt| {
        let target = interrupt.target();
        target.is_empty() || target.iter().any(|processor| from.contains(processor))
    };
    let there: Vec<u64> = interrupts.iter().filter(is_there).map(|interrupt| interrupt.total()).collect();
    let total: u64 = interrupts.iter().map(|interrupt| interrupt.total()).saturating_sum();
    let still: u64 = there.iter().copied().saturating_sum();
    (!view.is_balanced(nic) && (still as f64) < share * total as f64).then_some(there.len())
}

/// Finds a few processors that serve many queues, and are busy while other processors are not.
fn few_processors(view: &View<'_>, nic: &Interface, served: &BTreeMap<u32, u64>) -> Option<Found> {
    const SHARE: f64 = 0.9;
    const QUEUES_EACH: usize = 4;
    const BUSY: f64 = 0.3;
    let interrupts = view.receive_interrupts(nic);
    let total: u64 = served.values().saturating_sum();
    let mut most: Vec<(u64, u32)> = served.iter().map(|(processor, count)| (*count, *processor)).collect();
    most.sort_unstable_by(|one, other| other.cmp(one));
    let (mut sum, mut few) = (0_u64, BTreeSet::new());
    for (count, processor) in most {
        if sum as f64 >= SHARE * total as f64 {
            break;
        }
        sum = sum.saturating_add(count);
        few.insert(processor);
    }
    let places = interrupt_places(view, nic).cores.len().min(interrupts.len());
    let is_spread = is_spread_over_queues(&interrupts, few.len());
    if total < ENOUGH_INTERRUPTS || few.len() * QUEUES_EACH > places || !is_spread {
        return None;
    }
    if moved_away(view, nic, &interrupts, &few, SHARE).is_some() {
        return None;
    }
    let busy = view.mean_softirq_share(|number| few.contains(&number))?;
    let others = view.mean_softirq_share(|number| !few.contains(&number))?;
    if busy < BUSY || others * 2.0 > busy {
        return None;
    }
    let few = processor_list(&few.into_iter().collect::<Vec<_>>());
    let text = format!(
        "processors {few} served {} of {} receive interrupts of {} queues, and spend {} of their time in softirqs, the \
         others {}",
        per_cent(sum as f64 / total as f64),
        count(total),
        interrupts.len(),
        per_cent(busy),
        per_cent(others)
    );
    let effect = "a few processors receive for all queues: they are the limit while others idle";
    Some(with_placement(view, nic, Found::measured(by_speed(nic, High, Medium), &nic.name, text, effect)))
}

fn one_processor(view: &View<'_>) -> Vec<Found> {
    const SHARE: f64 = 0.8;
    const MANY: usize = 4;
    let effect = "one processor receives for all queues: it is the limit while others idle";
    let mut found = Vec::new();
    let mut whole: BTreeMap<u32, u64> = BTreeMap::new();
    let mut lines = 0;
    for nic in view.nics() {
        let interrupts = view.receive_interrupts(nic);
        let served = view.served_by(nic);
        let total: u64 = served.values().saturating_sum();
        lines += interrupts.len();
        for (processor, count) in &served {
            let sum = whole.entry(*processor).or_insert(0);
            *sum = sum.saturating_add(*count);
        }
        if interrupts.len() < 2 || interrupt_places(view, nic).cores.len() < 2 {
            continue;
        }
        let targets: BTreeSet<&[u32]> = interrupts.iter().map(|interrupt| interrupt.target()).collect();
        let kept_to_one = !view.is_balanced(nic)
            && targets.len() == 1
            && targets.first().is_some_and(|target| target.len() == 1);
        let Some((processor, most)) = served.iter().max_by_key(|(_, count)| **count) else {
            if kept_to_one && interrupts.len() >= MANY {
                let target = processor_list(targets.first().copied().unwrap_or_default());
                let text = format!("all {} queues' interrupts go to processor {target}", interrupts.len());
                let basis = view.load_basis(nic);
                let entry = Found::on_basis(basis.min(Basis::Setting), Medium, &nic.name, text, effect);
                found.push(with_placement(view, nic, entry));
            }
            continue;
        };
        let by_count = total >= ENOUGH_INTERRUPTS
            && *most as f64 >= SHARE * total as f64
            && is_spread_over_queues(&interrupts, 1);
        let by_mask = kept_to_one && interrupts.len() >= MANY && total < ENOUGH_INTERRUPTS;
        if !by_count && !by_mask {
            found.extend(few_processors(view, nic, &served));
            continue;
        }
        let served = format!(
            "processor {processor} served {} of {} receive interrupts of {} queues",
            per_cent(*most as f64 / total.max(1) as f64),
            count(total),
            interrupts.len()
        );
        let there = moved_away(view, nic, &interrupts, &BTreeSet::from([*processor]), SHARE);
        if let Some(there) = there.filter(|_| by_count) {
            let there = if there == 0 { "none".to_owned() } else { there.to_string() };
            let text = format!(
                "{served}; now {there} of these interrupts go there, so the counts are from the past"
            );
            found.push(Found::on_basis(view.cost_basis(nic), Low, &nic.name, text, effect).on(&nic.name));
            continue;
        }
        let allowed: BTreeSet<u32> =
            interrupts.iter().flat_map(|interrupt| &interrupt.affinity).copied().collect();
        let by_mask_alone = allowed.len() == 1;
        let allowed = processor_list(&allowed.into_iter().collect::<Vec<_>>());
        let why =
            match (by_mask_alone, view.facts.processes.iter().any(|process| process.name == "irqbalance")) {
                (true, _) => {
                    "their masks keep them there (the driver or an administrator has set them)".to_owned()
                }
                (false, true) => format!("their masks allow {allowed}, and irqbalance has put them there"),
                (false, false) => {
                    format!(
                        "their masks allow {allowed}, and the kernel takes the first: they are not spread"
                    )
                }
            };
        let text = format!("{served}; {why}");
        let severity = if by_count { by_speed(nic, High, Medium) } else { Medium };
        let text = text + &load_words(view, nic);
        let entry = Found::on_basis(view.cost_basis(nic), severity, &nic.name, text, effect);
        found.push(with_placement(view, nic, entry));
    }
    if found.is_empty() {
        found.extend(all_nics_on_one(view, &whole, lines));
    }
    found
}

/// Finds several NICs with one interrupt each, almost all served by one processor, as on small routers. Idle
/// NICs do not count. The processor must be busy, because otherwise one processor is enough.
fn all_nics_on_one(view: &View<'_>, served: &BTreeMap<u32, u64>, lines: usize) -> Option<Found> {
    const SHARE: f64 = 0.9;
    const SOFTIRQ_SHARE: f64 = 0.1;
    let total: u64 = served.values().saturating_sum();
    let (processor, most) = served.iter().max_by_key(|(_, count)| **count)?;
    let nics: Vec<&Interface> =
        view.nics().filter(|nic| !view.receive_interrupts(nic).is_empty() && !view.is_idle(nic)).collect();
    let busy = view.softirq_share(*processor).is_none_or(|share| share >= SOFTIRQ_SHARE);
    let single = nics.iter().all(|nic| view.receive_interrupts(nic).len() == 1);
    if nics.len() < 2
        || !single
        || !busy
        || view.facts.processors.len() < 2
        || total < ENOUGH_INTERRUPTS
        || (*most as f64) < SHARE * total as f64
    {
        return None;
    }
    let names: Vec<&str> = nics.iter().map(|nic| nic.name.as_str()).collect();
    let text = format!(
        "processor {processor} served {} of {} interrupts of all {lines} lines ({}){}",
        per_cent(*most as f64 / total as f64),
        count(total),
        names.join(", "),
        view.softirq_share(*processor)
            .map(|share| format!(", and spends {} of its time in softirqs", per_cent(share)))
            .unwrap_or_default()
    );
    let mut found = Found::measured(
        Medium,
        "host",
        text,
        "one processor receives for all NICs: it is the limit while others idle",
    );
    // An interrupt with a separate core stays on this core.
    let mut taken: BTreeSet<u32> = BTreeSet::new();
    let mut shared = Vec::new();
    for nic in &nics {
        let places = interrupt_places(view, nic);
        let now = view.interrupt_targets(nic);
        match now.first().filter(|now| places.cores.iter().any(|core| core.contains(now))) {
            Some(now) if taken.insert(*now) => {}
            _ => shared.push((nic, places)),
        }
    }
    for (nic, places) in shared {
        let free = places.cores.iter().flatten().find(|number| !taken.contains(number)).copied();
        let Some(core) = free.or_else(|| places.cores.iter().flatten().next().copied()) else { continue };
        taken.insert(core);
        for interrupt in view.receive_interrupts(nic).iter().filter(|interrupt| interrupt.target() != [core])
        {
            found = found.change(Knob::InterruptAffinity(interrupt.number), Value::Text(core.to_string()));
        }
    }
    // If all interrupts would be on one processor again, the changes gain nothing.
    if taken.len() < 2 {
        found.remedy.changes.clear();
    }
    Some(found)
}

fn twins(view: &View<'_>) -> Vec<Found> {
    const FROM_BPS: u64 = 25_000_000_000;
    let mut found = Vec::new();
    for nic in view.nics().filter(|nic| nic.speed_bps.is_some_and(|speed| speed >= FROM_BPS)) {
        let busy = view.interrupt_processors(nic);
        let core_of =
            |number: &u32| view.facts.processor(*number).map(|processor| (processor.package, processor.core));
        let used: BTreeSet<(u32, u32)> = busy.iter().filter_map(core_of).collect();
        // Leave out cores to which applications are pinned.
        let places = interrupt_places(view, nic);
        let cores = places.cores.iter().take(places.own).filter_map(|processors| processors.first());
        let free = cores.filter_map(core_of).filter(|core| !used.contains(core)).count();
        let shared = busy.len().saturating_sub(used.len());
        if shared == 0 || free < shared {
            continue;
        }
        let text = format!(
            "processors {} serve its receive interrupts on {}, and {} of its node serve none",
            processor_list(&busy.iter().copied().collect::<Vec<_>>()),
            counted(used.len(), "core"),
            counted(free, "core")
        );
        let effect = "queues that share a core get little more than one of them alone";
        found.push(with_placement(view, nic, Found::setting(Low, &nic.name, text, effect)));
    }
    found
}

fn isolated(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for nic in view.nics() {
        let busy = view.interrupt_processors(nic);
        let isolated: Vec<u32> = busy
            .into_iter()
            .filter(|number| view.facts.processor(*number).is_some_and(|processor| processor.isolated))
            .collect();
        if !isolated.is_empty() {
            let served = view.served_by(nic);
            let all: u64 = served.values().saturating_sum();
            let there: u64 = served
                .iter()
                .filter(|(number, _)| isolated.contains(number))
                .map(|(_, count)| *count)
                .saturating_sum();
            let interrupts = view.receive_interrupts(nic);
            let is_there = |interrupt: &&&Interrupt| {
                !interrupt.target().is_empty()
                    && interrupt.target().iter().all(|number| isolated.contains(number))
            };
            let text = format!(
                "processors {} are isolated and serve its receive interrupts: {} of {} queues direct \
                 interrupts there, and {} of {} interrupts were served there",
                processor_list(&isolated),
                interrupts.iter().filter(is_there).count(),
                interrupts.len(),
                count(there),
                count(all)
            );
            let effect = "every packet interrupts the application that should run there undisturbed";
            let basis = view.load_basis(nic).min(Basis::Setting);
            found.push(with_placement(view, nic, Found::on_basis(basis, Medium, &nic.name, text, effect)));
        }
    }
    found
}

/// Returns the irqbalance process. Returns `None` if irqbalance runs only once, or if its arguments exclude
/// interrupts or name a policy.
pub fn running_balancer(facts: &HostFacts) -> Option<&ProcessFacts> {
    const HARMLESS: [&str; 8] =
        ["-o", "--oneshot", "-l", "--policyscript", "-i", "--banirq", "-m", "--banmod"];
    let is_harmless = |word: &String| HARMLESS.contains(&word.split('=').next().unwrap_or_default());
    let process = facts.processes.iter().find(|process| process.name == "irqbalance")?;
    (!process.arguments.iter().any(is_harmless)).then_some(process)
}

fn balancer(view: &View<'_>) -> Vec<Found> {
    let Some(process) = running_balancer(view.facts) else { return Vec::new() };
    let fast: Vec<&Interface> = view
        .nics()
        .filter(|nic| {
            nic.speed_bps.is_some_and(|speed| speed >= FAST) && !view.receive_interrupts(nic).is_empty()
        })
        .collect();
    if fast.is_empty() {
        return Vec::new();
    }
    let names: Vec<&str> = fast.iter().map(|nic| nic.name.as_str()).collect();
    let misplaced =
        fast.iter().any(|nic| other_package(view, nic).is_some()) || !one_processor(view).is_empty();
    let text = format!(
        "irqbalance (process {}) runs next to {}{}",
        process.number,
        names.join(", "),
        if misplaced { ", whose interrupts are not well placed" } else { "" }
    );
    let effect = "irqbalance moves interrupts every 10 seconds and undoes any placement";
    let mut advice = "systemctl disable --now irqbalance; or exclude the NIC's interrupts with --banirq or a policy script"
        .to_owned();
    if view.nics().any(|nic| nic.driver.as_deref() == Some("ena")) {
        advice += "; for ena interfaces AWS advises to keep it running";
    }
    vec![Found::setting(if misplaced { Medium } else { Low }, "host", text, effect).advice(advice)]
}
