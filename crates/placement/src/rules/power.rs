//! Rules about power saving of processors, and about other uses of processor time.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::change::{Knob, Value};
use evenkeel_model::host::{IdleState, Interface, Processor, ProcessorTime, SaturatingSum, processor_list};

use super::{FAST, Found, Rule, needs};
use crate::Basis;
use crate::Severity::{High, Low, Medium};
use crate::View;
use crate::view::{count, gigabits, per_cent};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "governor",
        looks_at: "frequency governor of processors near NICs from 10 Gbit/s (their node, their interrupts), and \
                   their energy preference, which decides if they choose the frequency themselves",
        fires_when: "low: neither governor nor preference is performance; medium: ondemand or conservative, a \
                     preference that saves more than balance_performance, without a preference from 40 Gbit/s any \
                     governor but userspace, or powersave at the lowest frequency (acpi-cpufreq, passive pstate \
                     drivers); high: the last, with load",
        why: "Bursts of interrupts end before a governor sees load: processors receive packets at a low frequency. \
              With acpi-cpufreq and passive pstate drivers, powersave keeps the lowest frequency under any load.",
        fix: "the governor performance",
        source: "the paper, Table I (CPU governor); Documentation/admin-guide/pm/cpufreq.rst, intel_pstate.rst, amd-pstate.rst",
        needs: &[
            needs::SPEED,
            needs::FREQUENCY,
            needs::NODE,
            needs::NODES,
            needs::INTERRUPTS,
            needs::NIC_INTERRUPTS,
            needs::AFFINITY,
        ],
        check: governor,
    },
    Rule {
        name: "idle-deep",
        looks_at: "exit latency of the deepest idle state in use, against the receive ring in time at line rate",
        fires_when: "low: from 10 Gbit/s, half of the ring fills while a processor wakes up",
        why: "The ring overflows before the processor takes the first packet. With a ring that lasts longer, idle \
              states can stay on.",
        fix: "disable the idle states with too long a latency, or use a larger ring",
        source: "Documentation/admin-guide/pm/cpuidle.rst; the paper, section IV",
        needs: &[needs::SPEED, needs::RINGS, needs::MTU, needs::IDLE_STATES, needs::NODE, needs::NODES],
        check: idle,
    },
    Rule {
        name: "steal",
        looks_at: "time that the hypervisor took from this virtual machine's processors",
        fires_when: "medium: from 5 %; high: from 20 %",
        why: "A virtual processor that does not run empties no ring: losses and latency that no other counter of the \
              machine explains.",
        fix: "dedicated processors for this machine, or fewer machines on the host",
        source: "proc_stat(5), steal",
        needs: &[needs::TIMES],
        check: steal,
    },
    Rule {
        name: "processors-full",
        looks_at: "the time for which all processors together were idle since boot",
        fires_when: "low: below a tenth; medium: also NICs lost 1,000 packets, or 1,000 rounds of receiving ended \
                     early",
        why: "No setting of queues and interrupts helps if no processor has time left.",
        fix: "more processors, or less work",
        source: "proc_stat(5)",
        needs: &[needs::TIMES, needs::SOFTNET],
        check: processors_full,
    },
    Rule {
        name: "softirq-one-processor",
        looks_at: "the time that each processor spent in softirqs since boot",
        fires_when: "medium: one spent 30 %, no other half as much, and the others on average at most a fifth as \
                     much",
        why: "Softirqs mostly receive packets: one processor is the limit while others idle.",
        fix: "spread interrupts and queues over more processors",
        source: "proc_stat(5); Documentation/networking/scaling.rst",
        needs: &[needs::TIMES],
        check: softirq,
    },
    Rule {
        name: "idle-latency",
        looks_at: "idle states of the NIC node's processors, on a host with an application that waits for answers",
        fires_when: "low: a state with 50 µs exit latency has 10 % of a processor's pauses; medium: the latency is a \
                     quarter of the application's shortest round trip; high: all of it, half of the pauses, and \
                     isolated processors for the application",
        why: "A request after a pause waits until its processor wakes up: a large part of the response time within a \
              site.",
        fix: "disable these states on processors that serve the network and the application",
        source: "Documentation/admin-guide/pm/cpuidle.rst (PM QoS for CPUs); tuned, profile network-latency",
        needs: &[
            needs::IDLE_STATES,
            needs::SOCKETS,
            needs::SOCKET_OWNERS,
            needs::NODE,
            needs::NODES,
            needs::PROCESSES,
            needs::PROCESS_STATUS,
            needs::ISOLATED,
        ],
        check: idle_latency,
    },
    Rule {
        name: "nmi-watchdog",
        looks_at: "kernel.nmi_watchdog on hosts with isolated processors",
        fires_when: "low: it is on",
        why: "The watchdog's counter interrupts each processor about once in ten seconds, and takes a hardware \
              counter from perf.",
        fix: "0, if processors are isolated for latency",
        source: "Documentation/admin-guide/lockup-watchdogs.rst; Documentation/admin-guide/sysctl/kernel.rst (nmi_watchdog)",
        needs: &[needs::ISOLATED, needs::NOHZ_FULL, "/proc/sys/kernel/nmi_watchdog"],
        check: nmi_watchdog,
    },
];

fn fast_nics<'a>(view: &View<'a>) -> Vec<&'a Interface> {
    view.nics().filter(|nic| nic.speed_bps.is_some_and(|speed| speed >= FAST)).collect()
}

/// Returns whether the driver lets the processor choose its frequency. With such a driver, `powersave` does
/// not mean the lowest frequency, and the energy preference matters.
fn chooses_itself(driver: &str) -> bool {
    matches!(driver, "intel_pstate" | "amd-pstate-epp")
}

/// Returns whether the governor keeps the lowest frequency (Documentation/admin-guide/pm/cpufreq.rst,
/// powersave).
fn keeps_lowest(governor: &str, driver: &str) -> bool {
    governor == "powersave" && !chooses_itself(driver) && !driver.is_empty()
}

fn driver(processor: &Processor) -> &str {
    processor.frequency_driver.as_deref().unwrap_or_default()
}

fn governor(view: &View<'_>) -> Vec<Found> {
    const VERY_FAST_BPS: u64 = 40_000_000_000;
    let is_slow = |processor: &Processor| {
        let prefers = chooses_itself(driver(processor))
            && processor.energy_preference.as_deref() == Some("performance");
        processor.governor.as_deref().is_some_and(|governor| governor != "performance") && !prefers
    };
    let slow_near = |nic: &Interface| -> BTreeSet<u32> {
        // The counts of moved interrupts stay with their old processors, so include the present targets.
        let targets = if view.is_balanced(nic) { BTreeSet::new() } else { view.interrupt_targets(nic) };
        let served = view.interrupt_processors(nic).into_iter().chain(targets);
        let near = view.local_processors(nic).into_iter().chain(served);
        near.filter(|number| view.facts.processor(*number).is_some_and(is_slow)).collect()
    };
    let mut nics = fast_nics(view);
    nics.retain(|nic| !slow_near(nic).is_empty());
    let Some(speed) = nics.iter().filter_map(|nic| nic.speed_bps).max() else { return Vec::new() };
    let numbers: BTreeSet<u32> = nics.iter().flat_map(|nic| slow_near(nic)).collect();
    let slow = numbers.iter().filter_map(|number| view.facts.processor(*number));
    let mut alike: BTreeMap<_, Vec<u32>> = BTreeMap::new();
    for processor in slow {
        let driver = driver(processor);
        let preference = processor.energy_preference.as_deref().filter(|_| chooses_itself(driver));
        let governor = processor.governor.as_deref().unwrap_or_default();
        alike.entry((governor, driver, preference)).or_default().push(processor.number);
    }
    let loaded = nics.iter().any(|nic| view.is_loaded(nic));
    let basis = if loaded { Basis::Measured } else { Basis::Setting };
    let mut found = Vec::new();
    for ((governor, driver, preference), numbers) in alike {
        let severity = match (governor, preference) {
            _ if keeps_lowest(governor, driver) => High,
            // The processor saves energy only if the loss of performance is small.
            (_, Some("balance_performance" | "default")) => Low,
            (_, Some(_)) => Medium,
            ("powersave" | "schedutil", _) if speed < VERY_FAST_BPS => Low,
            ("userspace", _) => Low,
            _ => Medium,
        };
        let text = format!(
            "the governor of processors {} is {governor}{}{}{}, with a NIC of {}",
            processor_list(&numbers),
            if driver.is_empty() { String::new() } else { format!(" ({driver})") },
            preference.map(|preference| format!(" with preference {preference}")).unwrap_or_default(),
            view.facts
                .processor_mhz
                .map(|mhz| format!(" (at {mhz} MHz when it was read)"))
                .unwrap_or_default(),
            gigabits(speed as f64)
        );
        let effect = if keeps_lowest(governor, driver) {
            "the processors stay at their lowest frequency under any load"
        } else {
            "bursts end before the frequency rises"
        };
        let mut entry = Found::on_basis(basis, severity, "host", text, effect);
        for number in numbers {
            let file = format!("cpu{number}/cpufreq/scaling_governor");
            entry = entry.change(Knob::ProcessorFile(file), Value::Text("performance".to_owned()));
        }
        found.push(entry);
    }
    found
}

fn idle_latency(view: &View<'_>) -> Vec<Found> {
    const LONG_US: u64 = 50;
    const PAUSES: f64 = 0.1;
    const MOST_PAUSES: f64 = 0.5;
    const PART_OF_ROUND_TRIP: u64 = 4;
    let Some(application) = view.latency_bound() else { return Vec::new() };
    let local: BTreeSet<u32> = view.nics().flat_map(|nic| view.local_processors(nic)).collect();
    let share = |processor: &Processor, state: &IdleState| {
        let pauses: u64 = processor.idle_states.iter().map(|state| state.usage).saturating_sum();
        state.usage as f64 / pauses.max(1) as f64
    };
    let is_long = |processor: &Processor, state: &IdleState| {
        !state.disabled && state.latency_us >= LONG_US && share(processor, state) >= PAUSES
    };
    let processors = || view.facts.processors.iter().filter(|processor| local.contains(&processor.number));
    let used: Vec<(&IdleState, f64)> = processors()
        .flat_map(|processor| processor.idle_states.iter().map(move |state| (processor, state)))
        .filter(|(processor, state)| is_long(processor, state))
        .map(|(processor, state)| (state, share(processor, state)))
        .collect();
    let Some((deepest, _)) = used.iter().max_by_key(|(state, _)| state.latency_us) else { return Vec::new() };
    let most_pauses = used.iter().map(|(_, share)| *share).fold(0.0, f64::max);
    let slow: Vec<&Processor> = processors()
        .filter(|processor| processor.idle_states.iter().any(|state| is_long(processor, state)))
        .collect();
    let numbers: Vec<u32> = slow.iter().map(|processor| processor.number).collect();
    let text = format!(
        "{}; processors {} use state {}, from which they wake in {} µs, for up to {} of their pauses",
        application.words,
        processor_list(&numbers),
        deepest.name,
        deepest.latency_us,
        per_cent(most_pauses)
    );
    let effect = format!("a request after a pause waits up to {} µs for its processor", deepest.latency_us);
    let shows =
        application.rtt_us.is_some_and(|rtt| deepest.latency_us.saturating_mul(PART_OF_ROUND_TRIP) >= rtt);
    // On hosts without isolated processors, idle states save power on purpose, and most requests arrive
    // while the processor is awake.
    let is_longer = application.rtt_us.is_some_and(|rtt| deepest.latency_us >= rtt);
    let is_grave = application.isolated && is_longer && most_pauses >= MOST_PAUSES;
    let mut entry = if shows {
        Found::measured(if is_grave { High } else { Medium }, "host", text, effect)
    } else {
        Found::setting(Low, "host", text, effect)
    };
    for processor in slow {
        for state in
            processor.idle_states.iter().filter(|state| !state.disabled && state.latency_us >= LONG_US)
        {
            let file = format!("cpu{}/cpuidle/state{}/disable", processor.number, state.number);
            entry = entry.change(Knob::ProcessorFile(file), Value::Text("1".to_owned()));
        }
    }
    vec![entry.advice("or `tuned-adm profile network-latency`, or an application that keeps /dev/cpu_dma_latency open; both use more power")]
}

fn nmi_watchdog(view: &View<'_>) -> Vec<Found> {
    let isolated: Vec<u32> = view
        .facts
        .processors
        .iter()
        .filter(|processor| processor.isolated)
        .map(|processor| processor.number)
        .collect();
    if isolated.is_empty() || view.facts.sysctl_number("kernel/nmi_watchdog") != Some(1) {
        return Vec::new();
    }
    let text =
        format!("kernel.nmi_watchdog is on, and processors {} are isolated", processor_list(&isolated));
    let effect = "isolated processors are interrupted every few seconds";
    vec![Found::setting(Low, "host", text, effect).sysctl("kernel/nmi_watchdog", 0)]
}

fn idle(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for nic in fast_nics(view) {
        let Some(ring) = View::ring_time_us(nic) else { continue };
        let local = view.local_processors(nic);
        let too_slow = |processor: &&Processor| {
            local.contains(&processor.number)
                && processor
                    .idle_states
                    .iter()
                    .any(|state| !state.disabled && state.usage > 0 && state.latency_us as f64 * 2.0 >= ring)
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
            nic.name
        );
        let mut entry =
            Found::setting(Low, &nic.name, text, "the first burst after a pause overflows the ring")
                .on(&nic.name);
        for processor in slow {
            for state in processor
                .idle_states
                .iter()
                .filter(|state| !state.disabled && state.latency_us as f64 * 2.0 >= ring)
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
    let total = times.iter().map(|time| time.total).saturating_sum();
    let stolen = times.iter().map(|time| time.steal).saturating_sum();
    let share = stolen as f64 / total.max(1) as f64;
    if share < SHARE {
        return Vec::new();
    }
    let stolen_of = |processor: &Processor| {
        let time = processor.time.filter(|time| time.total > 0)?;
        Some((processor.number, time.steal as f64 / time.total as f64))
    };
    let shares = view.facts.processors.iter().filter_map(stolen_of);
    let worst = shares.max_by(|one, other| one.1.total_cmp(&other.1));
    let worst = worst.map(|(number, share)| format!("; {} of processor {number}'s", per_cent(share)));
    let text = format!(
        "the hypervisor took {} of the processors' time since boot ({} ticks){}",
        per_cent(share),
        count(stolen),
        worst.unwrap_or_default()
    );
    let severity = if share >= 0.2 { High } else { Medium };
    vec![
        Found::measured(severity, "host", text, "packets wait while the machine does not run")
            .advice("request dedicated processors or another host"),
    ]
}

fn processors_full(view: &View<'_>) -> Vec<Found> {
    const IDLE: f64 = 0.1;
    let times: Vec<_> = view.facts.processors.iter().filter_map(|processor| processor.time).collect();
    let sum = |of: fn(&ProcessorTime) -> u64| times.iter().map(of).saturating_sum();
    let (total, idle) = (sum(|time| time.total), sum(|time| time.idle));
    let share = |ticks: u64| ticks as f64 / total.max(1) as f64;
    if total == 0 || share(idle) >= IDLE {
        return Vec::new();
    }
    let squeezed = view.facts.softnet.iter().map(|line| line.squeezed).saturating_sum();
    let lost: u64 = view.nics().map(|nic| super::nic::ring_losses(&nic.losses)).fold(0, u64::saturating_add);
    let suffers = lost >= 1000 || squeezed >= 1000;
    let text = format!(
        "the processors were idle for {} of their time since boot; {} went into softirqs, {} was stolen{}",
        per_cent(share(idle)),
        per_cent(share(sum(|time| time.softirq))),
        per_cent(share(sum(|time| time.steal))),
        if suffers {
            format!(
                "; {} packets were lost at NICs, and {} rounds of receiving ended early",
                count(lost),
                count(squeezed)
            )
        } else {
            String::new()
        }
    );
    let severity = if suffers { Medium } else { Low };
    vec![Found::measured(severity, "host", text, "packets and applications wait for a processor").advice(
        "more processors, or less work for these: `top` and `perf top` show the work; keep it off processors that serve the NIC's interrupts",
    )]
}

fn softirq(view: &View<'_>) -> Vec<Found> {
    const SHARE: f64 = 0.3;
    let shares: Vec<(u32, f64)> = view
        .facts
        .processors
        .iter()
        .filter_map(|processor| Some((processor.number, view.softirq_share(processor.number)?)))
        .collect();
    let Some((number, most)) = shares.iter().copied().max_by(|one, other| one.1.total_cmp(&other.1)) else {
        return Vec::new();
    };
    let others = shares.iter().filter(|(other, _)| *other != number).map(|(_, share)| share).sum::<f64>();
    let others = others / shares.len().saturating_sub(1).max(1) as f64;
    // On a large host, most processors serve no queue, so a low average of the others is not enough. If
    // another processor is at least half as busy, the processors share the work.
    let busy = shares.iter().filter(|(_, share)| share * 2.0 >= most).count();
    if shares.len() < 2 || most < SHARE || others * 5.0 > most || busy > 1 {
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
