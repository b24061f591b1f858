//! Rules about the delay before the stack polls packets: timers, busy polling, limits of single flows.

use evenkeel_model::change::{Coalescing, Knob, Value};
use evenkeel_model::host::{Interface, InterfaceKind, SaturatingSum};

use super::{Found, Rule, needs};
use crate::Severity::{Low, Medium};
use crate::View;
use crate::view::count;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "gro-timer-alone",
        looks_at: "gro_flush_timeout and napi_defer_hard_irqs of each NIC, and of each veth with GRO (a veth with \
                   neither GRO nor an XDP program has no NAPI)",
        fires_when: "low: one is set and the other is 0; medium: only gro_flush_timeout is set, to at least 100 µs",
        why: "napi_defer_hard_irqs defers interrupts for some empty polls, which the timer starts: alone it does \
              nothing. The timer alone leaves interrupts on and lets GRO hold packets.",
        fix: "both, or neither",
        source: "Documentation/networking/napi.rst (IRQ mitigation); napi_complete_done, net/core/dev.c; veth_poll, drivers/net/veth.c",
        needs: &["/sys/class/net/*/gro_flush_timeout", "/sys/class/net/*/napi_defer_hard_irqs"],
        check: timer_alone,
    },
    Rule {
        name: "busy-poll-odd",
        looks_at: "net.core.busy_poll and busy_read",
        fires_when: "low: one is above 200 µs, or busy_poll is set and busy_read is 0; medium: one is at least 1,000 \
                     µs",
        why: "Polling keeps the processor for that time at each wait: the kernel's documentation recommends 50 µs, \
              or 100 for many sockets. busy_poll applies only to sockets with busy_read or SO_BUSY_POLL.",
        fix: "50 for both, or 0",
        source: "Documentation/admin-guide/sysctl/net.rst (busy_read, busy_poll)",
        needs: &["/proc/sys/net/core/busy_poll", "/proc/sys/net/core/busy_read"],
        check: busy_poll,
    },
    Rule {
        name: "budget-large",
        looks_at: "net.core.netdev_budget and netdev_budget_usecs, and rounds of receiving that ended with work left",
        fires_when: "low: one is above 1,000 packets or 10,000 µs, and fewer than one round in 10,000 packets ended \
                     with work left",
        why: "A longer round keeps the processor from the readers of the packets, and helps only if rounds end \
              early.",
        fix: "300 packets, 8,000 µs",
        source: "Documentation/admin-guide/sysctl/net.rst (netdev_budget, netdev_budget_usecs)",
        needs: &[
            needs::SOFTNET,
            "/proc/sys/net/core/netdev_budget",
            "/proc/sys/net/core/netdev_budget_usecs",
        ],
        check: large_budget,
    },
    Rule {
        name: "interrupts-late",
        looks_at: "how long a NIC that is not idle waits before it interrupts, on a host with an application that \
                   waits for answers",
        fires_when: "low: from 20 µs, without adaptive coalescing or with isolated processors for the application; \
                     medium: from 50 µs, or a quarter of the shortest round trip of its connections",
        why: "Each packet waits for that time before the stack sees it: a request and its answer wait twice.",
        fix: "rx-usecs 0, or a few µs if the load needs batches",
        source: "ethtool(8), -C; NVIDIA and Intel low-latency tuning guides (interrupt moderation)",
        needs: &[
            needs::COALESCING,
            needs::SOCKETS,
            needs::SOCKET_OWNERS,
            needs::PROCESS_STATUS,
            needs::ISOLATED,
            needs::PROCESSES,
        ],
        check: late_interrupts,
    },
    Rule {
        name: "flow-limit",
        looks_at: "packets that the flow limit of RPS dropped (column 11 of /proc/net/softnet_stat), and flow_limit_cpu_bitmap",
        fires_when: "medium: it dropped 100 packets and one in a million; low: it is off, RPS is on, and backlogs \
                     dropped that many",
        why: "When a backlog is half full, the limit drops packets of flows with more than half of the traffic. With \
              few large flows it drops useful packets; without it the backlog drops those of all other flows.",
        fix: "a longer backlog for large flows; the limit for small ones",
        source: "Documentation/networking/scaling.rst (RPS Flow Limit)",
        needs: &[
            needs::SOFTNET,
            needs::QUEUES,
            "/proc/sys/net/core/flow_limit_cpu_bitmap",
            "/proc/sys/net/core/netdev_max_backlog",
        ],
        check: flow_limit,
    },
];

fn timer_alone(view: &View<'_>) -> Vec<Found> {
    const LONG_NS: u64 = 100_000;
    let mut found = Vec::new();
    let has_napi = |interface: &&Interface| {
        let has_gro = interface.feature("rx-gro").is_some_and(|feature| feature.on);
        interface.kind == InterfaceKind::Veth && interface.up && has_gro
    };
    for nic in view.all_nics().chain(view.facts.interfaces.iter().filter(has_napi)) {
        let (Some(timeout), Some(polls)) = (nic.gro_flush_timeout_ns, nic.napi_defer_hard_irqs) else {
            continue;
        };
        let us = timeout as f64 / 1000.0;
        let entry = match (timeout, polls) {
            (1.., 0) => {
                let text = format!("gro_flush_timeout is {us:.0} µs, and napi_defer_hard_irqs is 0");
                let effect =
                    format!("GRO may hold packets for {us:.0} µs, and no interrupt or wake-up is saved");
                let severity = if timeout >= LONG_NS { Medium } else { Low };
                Found::setting(severity, &nic.name, text, effect)
                    .on(&nic.name)
                    .change(
                        Knob::InterfaceFile("napi_defer_hard_irqs".to_owned()),
                        Value::Text("2".to_owned()),
                    )
                    .advice("or gro_flush_timeout 0, which is the kernel's default")
            }
            (0, 1..) => {
                let text = format!("napi_defer_hard_irqs is {polls}, and gro_flush_timeout is 0");
                let effect = "interrupts are not deferred: without the timer the setting has no effect";
                Found::setting(Low, &nic.name, text, effect)
                    .on(&nic.name)
                    .change(
                        Knob::InterfaceFile("gro_flush_timeout".to_owned()),
                        Value::Text("20000".to_owned()),
                    )
                    .advice("or napi_defer_hard_irqs 0, which is the kernel's default")
            }
            _ => continue,
        };
        found.push(entry);
    }
    found
}

fn busy_poll(view: &View<'_>) -> Vec<Found> {
    const WANTED_US: i64 = 50;
    const LONG_US: i64 = 200;
    const VERY_LONG_US: i64 = 1000;
    let value = |name: &str| view.facts.sysctl_number(&format!("net/core/{name}")).unwrap_or(0);
    let (poll, read) = (value("busy_poll"), value("busy_read"));
    let longest = poll.max(read);
    if longest > LONG_US {
        let text = format!("net.core.busy_poll is {poll} µs, busy_read {read} µs; 50 to 100 are recommended");
        let severity = if longest >= VERY_LONG_US { Medium } else { Low };
        let effect = "each wait for a packet keeps a processor busy for that long";
        let mut entry = Found::setting(severity, "host", text, effect);
        for (name, now) in [("busy_poll", poll), ("busy_read", read)] {
            if now > LONG_US {
                entry = entry.sysctl(&format!("net/core/{name}"), WANTED_US);
            }
        }
        return vec![entry];
    }
    if poll > 0 && view.facts.sysctl_number("net/core/busy_read") == Some(0) {
        let text = format!("net.core.busy_poll is {poll} µs, and busy_read is 0");
        let effect = "poll and epoll busy-poll only sockets that set SO_BUSY_POLL";
        return vec![
            Found::setting(Low, "host", text, effect)
                .sysctl("net/core/busy_read", poll)
                .advice("no change, if the application sets SO_BUSY_POLL"),
        ];
    }
    Vec::new()
}

fn large_budget(view: &View<'_>) -> Vec<Found> {
    const DEFAULTS: [(&str, i64, i64); 2] =
        [("netdev_budget", 1000, 300), ("netdev_budget_usecs", 10_000, 8000)];
    let sum = |figure: fn(&evenkeel_model::host::Softnet) -> u64| {
        view.facts.softnet.iter().map(figure).saturating_sum()
    };
    let (squeezed, processed) = (sum(|line| line.squeezed), sum(|line| line.processed));
    let large: Vec<(&str, i64, i64)> = DEFAULTS
        .iter()
        .filter_map(|(name, most, wanted)| {
            let now = view.facts.sysctl_number(&format!("net/core/{name}"))?;
            (now > *most).then_some((*name, now, *wanted))
        })
        .collect();
    if large.is_empty() || squeezed.saturating_mul(10_000) >= processed {
        return Vec::new();
    }
    let figures: Vec<String> =
        large.iter().map(|(name, now, _)| format!("net.core.{name} is {now}")).collect();
    let text = format!(
        "{}; of {} packets {} ended a round with work left",
        figures.join(", "),
        count(processed),
        count(squeezed)
    );
    let effect = "a round of receiving keeps its processor from applications for longer, without a gain";
    let mut entry = Found::setting(Low, "host", text, effect);
    for (name, _, wanted) in large {
        entry = entry.sysctl(&format!("net/core/{name}"), wanted);
    }
    vec![entry]
}

fn late_interrupts(view: &View<'_>) -> Vec<Found> {
    const LONG_US: u64 = 20;
    const VERY_LONG_US: u64 = 50;
    const PART_OF_ROUND_TRIP: u64 = 4;
    let Some(application) = view.latency_bound() else { return Vec::new() };
    let mut found = Vec::new();
    for nic in view.nics().filter(|nic| !view.is_idle(nic)) {
        // Adaptive coalescing waits longest for bursts of packets. On isolated processors, no wait is
        // acceptable.
        let adapts = nic.coalescing.is_some_and(|coalescing| coalescing.adaptive_rx);
        let Some(wait) = nic
            .coalescing
            .filter(|_| !adapts || application.isolated)
            .map(|coalescing| u64::from(coalescing.rx_usecs))
            .filter(|wait| *wait >= LONG_US)
        else {
            continue;
        };
        let shows =
            wait >= VERY_LONG_US || application.rtt_us.is_some_and(|rtt| wait * PART_OF_ROUND_TRIP >= rtt);
        let how = if adapts { "with adaptive coalescing it waits up to" } else { "it waits" };
        let text = format!("{how} {wait} µs before it interrupts, and {}", application.words);
        let effect = "each packet waits that long before the stack sees it";
        let severity = if shows { Medium } else { Low };
        let mut entry = Found::setting(severity, &nic.name, text, effect).on(&nic.name);
        if adapts {
            entry = entry.change(Knob::Coalescing(Coalescing::AdaptiveRx), Value::Switch(false));
        }
        found.push(entry.change(Knob::Coalescing(Coalescing::RxUsecs), Value::Number(0)));
    }
    found
}

fn flow_limit(view: &View<'_>) -> Vec<Found> {
    const FEWEST: u64 = 100;
    const ONE_IN: u64 = 1_000_000;
    let sum = |figure: fn(&evenkeel_model::host::Softnet) -> u64| {
        view.facts.softnet.iter().map(figure).saturating_sum()
    };
    let (limited, dropped, processed) =
        (sum(|line| line.flow_limited), sum(|line| line.dropped), sum(|line| line.processed));
    let is_much = |packets: u64| packets >= FEWEST && packets.saturating_mul(ONE_IN) >= processed;
    if is_much(limited) {
        const WANTED: i64 = 10_000;
        let backlog = view.facts.sysctl_number("net/core/netdev_max_backlog");
        let text = format!("the flow limit dropped {} packets of large flows", count(limited));
        let entry =
            Found::measured(Medium, "host", text, "large flows lose packets so that small ones get through");
        let entry = if backlog.is_some_and(|backlog| backlog < WANTED) {
            entry.sysctl("net/core/netdev_max_backlog", WANTED)
        } else {
            entry
        };
        return vec![entry.advice(
            "the limit starts at half of the backlog; sysctl -w net.core.flow_limit_cpu_bitmap=0 switches it off",
        )];
    }
    let bitmap = view.facts.sysctl("net/core/flow_limit_cpu_bitmap");
    let off = bitmap.is_some_and(|bitmap| bitmap.chars().all(|digit| matches!(digit, '0' | ',')));
    let steered: Vec<u32> =
        view.nics().flat_map(|nic| &nic.receive_queues).flat_map(|queue| queue.rps.iter().copied()).collect();
    if off && is_much(dropped) && !steered.is_empty() {
        let text = format!(
            "backlogs dropped {} packets, RPS is on, and net.core.flow_limit_cpu_bitmap is 0",
            count(dropped)
        );
        return vec![
            Found::setting(
                Low,
                "host",
                text,
                "one large flow that fills a backlog drops packets of all others",
            )
            .sysctl("net/core/flow_limit_cpu_bitmap", super::mask(&steered)),
        ];
    }
    Vec::new()
}
