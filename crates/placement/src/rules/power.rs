//! How processors save power, and who else takes them.

use evenkeel_model::change::{Knob, Value};
use evenkeel_model::host::{Interface, Processor, processor_list};

use super::{FAST, Found, Rule, needs};
use crate::Severity::{High, Low, Medium};
use crate::View;
use crate::view::{gigabits, per_cent};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "governor",
        looks_at: "the frequency governor of processors beside cards of 10 Gbit/s and more",
        speaks: "when it is not performance; high where acpi-cpufreq's powersave keeps the lowest frequency, medium from 40 Gbit/s on and for \
                 ondemand and conservative",
        why: "Interrupts come in bursts that are over before a governor sees load: packets are received at a low frequency.",
        mends: "the governor performance",
        source: "the paper, Table I (CPU governor); Documentation/admin-guide/pm/cpufreq.rst, intel_pstate.rst",
        needs: &[needs::SPEED, needs::FREQUENCY],
        check: governor,
    },
    Rule {
        name: "idle-deep",
        looks_at: "the time to wake up from the deepest state of idleness in use, against the receive ring in time at line rate",
        speaks: "when half of the ring fills while a processor wakes up, from 10 Gbit/s on",
        why: "The ring overflows before the first packet is taken. A ring that lasts longer needs no other states.",
        mends: "without the states that take too long, or with a larger ring",
        source: "Documentation/admin-guide/pm/cpuidle.rst; the paper, section IV",
        needs: &[needs::SPEED, needs::RINGS, needs::MTU, needs::IDLE_STATES, needs::NODE, needs::NODES],
        check: idle,
    },
    Rule {
        name: "steal",
        looks_at: "time that the hypervisor took from this virtual machine's processors",
        speaks: "from 5 % on",
        why: "A processor that is away empties no ring: losses and latency that nothing in the machine explains.",
        mends: "processors of its own for this machine, or fewer machines on the host",
        source: "proc_stat(5), steal",
        needs: &[needs::TIMES],
        check: steal,
    },
    Rule {
        name: "softirq-one-processor",
        looks_at: "the time that each processor spent in softirqs since boot",
        speaks: "when one spent 30 % and the others a fifth of that or less on average",
        why: "Most of it is receiving packets: one processor is the limit while others idle.",
        mends: "interrupts and queues over more processors",
        source: "proc_stat(5); Documentation/networking/scaling.rst",
        needs: &[needs::TIMES],
        check: softirq,
    },
    Rule {
        name: "zone-reclaim",
        looks_at: "vm.zone_reclaim_mode on hosts of several memory nodes",
        speaks: "when it is not 0",
        why: "Allocations wait for pages of their own node to be freed although others have some: stalls in the receive path.",
        mends: "0",
        source: "Documentation/admin-guide/sysctl/vm.rst (zone_reclaim_mode)",
        needs: &[needs::NODES, "/proc/sys/vm/zone_reclaim_mode"],
        check: zone_reclaim,
    },
];

/// The fastest card of those to which a processor is local.
fn fast_cards<'a>(view: &View<'a>) -> Vec<&'a Interface> {
    view.cards().filter(|card| card.speed_bps.is_some_and(|speed| speed >= FAST)).collect()
}

fn governor(view: &View<'_>) -> Vec<Found> {
    const VERY_FAST_BPS: u64 = 40_000_000_000;
    let cards = fast_cards(view);
    let Some(speed) = cards.iter().filter_map(|card| card.speed_bps).max() else { return Vec::new() };
    let is_slow = |processor: &&Processor| {
        processor.governor.as_deref().is_some_and(|governor| governor != "performance")
    };
    let slow: Vec<&Processor> = view.facts.processors.iter().filter(is_slow).collect();
    let Some(first) = slow.first() else { return Vec::new() };
    let (governor, driver) = (
        first.governor.as_deref().unwrap_or_default(),
        first.frequency_driver.as_deref().unwrap_or_default(),
    );
    let scales = driver.contains("pstate");
    let severity = match governor {
        "powersave" if !scales && !driver.is_empty() => High,
        "powersave" | "schedutil" if speed < VERY_FAST_BPS => Low,
        "userspace" => Low,
        _ => Medium,
    };
    let numbers: Vec<u32> = slow.iter().map(|processor| processor.number).collect();
    let text = format!(
        "the governor of processors {} is {governor}{}, beside {}",
        processor_list(&numbers),
        if driver.is_empty() { String::new() } else { format!(" ({driver})") },
        gigabits(speed as f64)
    );
    let effect = "bursts are received before the frequency has risen";
    let mut entry = Found::setting(severity, "host", text, effect);
    for number in numbers {
        let file = format!("cpu{number}/cpufreq/scaling_governor");
        entry = entry.change(Knob::ProcessorFile(file), Value::Text("performance".to_owned()));
    }
    vec![entry]
}

fn idle(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for card in fast_cards(view) {
        let Some(ring) = View::ring_time_us(card) else { continue };
        let local = view.local_processors(card);
        let too_slow = |processor: &&Processor| {
            local.contains(&processor.number)
                && processor
                    .idle_states
                    .iter()
                    .any(|state| !state.disabled && state.usage > 0 && state.latency_us as f64 * 2.0 > ring)
        };
        let slow: Vec<&Processor> = view.facts.processors.iter().filter(too_slow).collect();
        let Some(deepest) = slow.first().and_then(|processor| {
            processor
                .idle_states
                .iter()
                .filter(|state| !state.disabled && state.usage > 0)
                .max_by_key(|state| state.latency_us)
        }) else {
            continue;
        };
        let numbers: Vec<u32> = slow.iter().map(|processor| processor.number).collect();
        let text = format!(
            "processors {} use state {}, from which they wake in {} µs; the receive ring of {} is full after {ring:.0} µs at line rate",
            processor_list(&numbers),
            deepest.name,
            deepest.latency_us,
            card.name
        );
        let mut entry =
            Found::setting(Low, &card.name, text, "the first burst after a pause overflows the ring")
                .on(&card.name);
        for processor in slow {
            for state in processor
                .idle_states
                .iter()
                .filter(|state| !state.disabled && state.latency_us as f64 * 2.0 > ring)
            {
                let file = format!("cpu{}/cpuidle/state{}/disable", processor.number, state.number);
                entry = entry.change(Knob::ProcessorFile(file), Value::Text("1".to_owned()));
            }
        }
        found.push(entry);
    }
    found
}

fn steal(view: &View<'_>) -> Vec<Found> {
    const SHARE: f64 = 0.05;
    let times: Vec<_> = view.facts.processors.iter().filter_map(|processor| processor.time).collect();
    let (total, stolen) =
        times.iter().fold((0, 0), |(total, stolen), time| (total + time.total, stolen + time.steal));
    let share = stolen as f64 / total.max(1) as f64;
    if share < SHARE {
        return Vec::new();
    }
    let text = format!("the hypervisor took {} of the processors' time since boot", per_cent(share));
    let severity = if share >= 0.2 { High } else { Medium };
    vec![
        Found::measured(severity, "host", text, "packets wait while the machine does not run")
            .advice("ask for processors of its own, or for another host"),
    ]
}

fn softirq(view: &View<'_>) -> Vec<Found> {
    const SHARE: f64 = 0.3;
    let shares: Vec<(u32, f64)> = view
        .facts
        .processors
        .iter()
        .filter_map(|processor| Some((processor.number, processor.time.filter(|time| time.total > 0)?)))
        .map(|(number, time)| (number, time.softirq as f64 / time.total as f64))
        .collect();
    let Some((number, most)) = shares.iter().copied().max_by(|one, other| one.1.total_cmp(&other.1)) else {
        return Vec::new();
    };
    let others = shares.iter().filter(|(other, _)| *other != number).map(|(_, share)| share).sum::<f64>();
    let others = others / shares.len().saturating_sub(1).max(1) as f64;
    if shares.len() < 2 || most < SHARE || others * 5.0 > most {
        return Vec::new();
    }
    let text = format!(
        "processor {number} spent {} of its time in softirqs since boot, the others {} on average",
        per_cent(most),
        per_cent(others)
    );
    vec![Found::measured(Medium, "host", text, "it is the limit while the others idle").advice(
        "see the findings about interrupts, queues and RSS; `evenkeel check --watch 10s` shows which packets it loses",
    )]
}

fn zone_reclaim(view: &View<'_>) -> Vec<Found> {
    match view.facts.sysctl_number("vm/zone_reclaim_mode") {
        Some(mode) if mode != 0 && view.facts.nodes_with_processors() > 1 => {
            let text = format!(
                "vm.zone_reclaim_mode is {mode} on a host of {} memory nodes",
                view.facts.nodes_with_processors()
            );
            vec![
                Found::setting(Low, "host", text, "allocations stall while other nodes have free memory")
                    .sysctl("vm/zone_reclaim_mode", 0),
            ]
        }
        _ => Vec::new(),
    }
}
