//! Rules about the placement of memory, and about reclaim, migration and merging of pages.

use evenkeel_model::host::{Interface, NodeAllocations, processor_list};

use super::{FAST, Found, Rule, needs};
use crate::Severity::{Low, Medium};
use crate::View;
use crate::view::{count, per_cent};

const NUMA_BALANCING: &str = "/proc/sys/kernel/numa_balancing";
const MIN_FREE: &str = "/proc/sys/vm/min_free_kbytes";
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage";

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "memory-remote-node",
        looks_at: "pages of each memory node (numastat): requested there and allocated elsewhere, or allocated there \
                   by other nodes' processes",
        fires_when: "low: a million pages, and 5 % of those requested on a node, were allocated elsewhere; or 30 % \
                     of those allocated there are for other nodes' processes; medium: from 20 %, with a NIC from 10 \
                     Gbit/s with load",
        why: "Each cache line of buffers and payload crosses the interconnect. If a node's memory is full, the \
              kernel allocates its pages elsewhere, also the buffers of its NIC.",
        fix: "free memory on that node: bound applications (numactl --membind), smaller page cache; `numastat -p` \
              names the processes",
        source: "Documentation/admin-guide/numastat.rst; numa(7)",
        needs: &[needs::NODES, needs::NODE],
        check: remote_memory,
    },
    Rule {
        name: "app-remote-memory",
        looks_at: "memory nodes that processes with connections may allocate from, and the processors that they are \
                   pinned to",
        fires_when: "medium: all these processors are on other nodes than the memory",
        why: "All memory that the process uses is across the interconnect: its buffers and its copies of the payload.",
        fix: "memory and processors of one node (numactl --cpunodebind --membind, AllowedMemoryNodes= of its unit)",
        source: "numactl(8); systemd.resource-control(5), AllowedMemoryNodes=; cpuset(7)",
        needs: &[needs::NODES, needs::SOCKETS, needs::SOCKET_OWNERS, needs::PROCESS_STATUS],
        check: remote_process_memory,
    },
    Rule {
        name: "numa-balancing",
        looks_at: "kernel.numa_balancing, the pages that it moves (/proc/vmstat), and pinned processes with \
                   connections",
        fires_when: "low: it is on, and such a process is pinned; medium: it is on, and moved 1,000 pages or took \
                     10,000 faults per second since boot",
        why: "The kernel unmaps and moves pages to the node that uses them: faults and copies interrupt the work. \
              Processes bound to a node gain nothing.",
        fix: "0, if applications are bound to nodes",
        source: "Documentation/admin-guide/sysctl/kernel.rst (numa_balancing)",
        needs: &[
            needs::NODES,
            needs::SOCKETS,
            needs::PROCESSES,
            needs::PROCESS_STATUS,
            needs::VMSTAT,
            NUMA_BALANCING,
        ],
        check: balancing,
    },
    Rule {
        name: "huge-pages",
        looks_at: "transparent huge pages, allocations that waited for memory to be compacted (/proc/vmstat), and \
                   servers that wait for answers",
        fires_when: "low: they are `always`, with such a server or with `defrag` `always`; medium: they are \
                     `always`, and one allocation per second waited since boot",
        why: "Without a free huge page an allocation waits milliseconds until the kernel has moved others; servers \
              that fork, such as Redis, copy whole huge pages. With `madvise` only applications that ask for them \
              wait.",
        fix: "madvise, for applications that ask for huge pages",
        source: "Documentation/admin-guide/mm/transhuge.rst; redis.io (latency, transparent huge pages)",
        needs: &[HUGE_PAGES, needs::VMSTAT, needs::SOCKETS, needs::PROCESSES],
        check: huge_pages,
    },
    Rule {
        name: "memory-reclaim",
        looks_at: "allocations that waited for memory to be freed or compacted, pages swapped, processes killed \
                   (/proc/vmstat), and packets in the memory reserve that sockets had to drop \
                   (TcpExt.PFMemallocDrop)",
        fires_when: "low: from one wait per 100 s since boot, a killed process, or 100 such packets; medium: from one \
                     wait or 100 swapped pages per second, or one such packet in a million received",
        why: "Allocations of the driver and the sockets compete with the page cache. A softirq cannot wait for \
              memory: it drops its packets.",
        fix: "more free memory (vm.min_free_kbytes), less swapping, smaller caches and applications",
        source: "Documentation/admin-guide/sysctl/vm.rst (min_free_kbytes, watermark_scale_factor, swappiness); \
                 sk_filter_trim_cap, net/core/filter.c",
        needs: &[needs::VMSTAT, needs::MEMORY, needs::NETSTAT, needs::SNMP],
        check: reclaim,
    },
    Rule {
        name: "zone-reclaim",
        looks_at: "vm.zone_reclaim_mode on hosts of several memory nodes, and allocations that waited (/proc/vmstat)",
        fires_when: "low: it is not 0; medium: also one allocation per second waited since boot",
        why: "Allocations wait until the kernel frees pages of their own node although others have free pages: \
              stalls in the receive path.",
        fix: "0",
        source: "Documentation/admin-guide/sysctl/vm.rst (zone_reclaim_mode)",
        needs: &[needs::NODES, "/proc/sys/vm/zone_reclaim_mode"],
        check: zone_reclaim,
    },
    Rule {
        name: "rx-buffers-missing",
        looks_at: "how often a driver found no memory for a receive buffer (failed allocations), and \
                   vm.min_free_kbytes",
        fires_when: "low: from 100 times; medium: from one in a million received packets",
        why: "A driver fills its ring in the softirq, which cannot wait for memory, from the reserve of \
              vm.min_free_kbytes. If a burst needs more, even a large ring runs empty.",
        fix: "a larger reserve of free memory",
        source: "Documentation/admin-guide/sysctl/vm.rst (min_free_kbytes); GFP_ATOMIC, Documentation/core-api/memory-allocation.rst",
        needs: &[needs::DRIVER_STATISTICS, needs::STATISTICS, needs::MEMORY, MIN_FREE],
        check: buffers_missing,
    },
];

/// Returns how often a driver found no memory for a receive buffer. Drivers have one counter, one
/// counter for each queue, or both.
fn failed_allocations(nic: &Interface) -> u64 {
    let (mut whole, mut of_queues) = (0_u64, 0_u64);
    for (name, value) in &nic.driver_statistics {
        let name = name.to_ascii_lowercase();
        let fails = name.contains("alloc") && (name.contains("fail") || name.contains("err"))
            || matches!(name.as_str(), "rx_no_memory" | "refill_error");
        if !fails || name.contains("tx") {
            continue;
        }
        let sum = if name.bytes().any(|byte| byte.is_ascii_digit()) { &mut of_queues } else { &mut whole };
        *sum = sum.saturating_add(*value);
    }
    whole.max(of_queues)
}

fn buffers_missing(view: &View<'_>) -> Vec<Found> {
    const FEWEST: u64 = 100;
    const ONE_IN: u64 = 1_000_000;
    let mut found = Vec::new();
    for nic in view.nics() {
        let failed = failed_allocations(nic);
        if failed < FEWEST {
            continue;
        }
        let kept = view.facts.sysctl_number("vm/min_free_kbytes").and_then(|kept| u64::try_from(kept).ok());
        let text = format!(
            "the driver found no memory for a receive buffer {} times, while {} packets came{}",
            count(failed),
            count(nic.received_packets()),
            kept.map(|kept| format!("; vm.min_free_kbytes is {kept}")).unwrap_or_default()
        ) + &view.rate_words(failed);
        let is_much = failed.saturating_mul(ONE_IN) >= nic.received_packets();
        let effect = "the ring runs empty, and packets are lost although it is large";
        let entry = Found::measured(if is_much { Medium } else { Low }, &nic.name, text, effect);
        let wanted = kept_free_kb(view);
        found.push(match kept.filter(|kept| *kept < wanted) {
            Some(_) => entry.sysctl("vm/min_free_kbytes", wanted),
            None => entry.advice("the reserve is large already: smaller rings or an MTU that needs one page for a packet, and more memory"),
        });
    }
    found
}

/// Returns two shares. The first is the share of a node's intended pages that were allocated elsewhere. The
/// second is the share of the pages on the node that were allocated for processes that run elsewhere.
fn remote_shares(pages: &NodeAllocations) -> (f64, f64) {
    let share = |remote: u64, local: u64| remote as f64 / remote.saturating_add(local).max(1) as f64;
    (share(pages.foreign, pages.hit), share(pages.other, pages.local))
}

fn remote_memory(view: &View<'_>) -> Vec<Found> {
    const ENOUGH: u64 = 1_000_000;
    const SENT_AWAY: f64 = 0.05;
    const FROM_OTHERS: f64 = 0.3;
    const GRAVE: f64 = 0.2;
    let is_sent_away =
        |pages: &NodeAllocations| pages.foreign >= ENOUGH && remote_shares(pages).0 >= SENT_AWAY;
    let sends_away =
        view.facts.nodes.iter().filter_map(|node| node.allocations).any(|pages| is_sent_away(&pages));
    let mut found = Vec::new();
    for node in &view.facts.nodes {
        let Some(pages) = node.allocations.filter(|_| view.facts.nodes.len() > 1) else { continue };
        let (away, others) = remote_shares(&pages);
        let is_away = is_sent_away(&pages);
        // Pages that one node sends elsewhere appear on another node as pages of remote processes.
        // Report only the node that sends pages elsewhere.
        let from_others = !sends_away && pages.other >= ENOUGH && others >= FROM_OTHERS;
        if !is_away && !from_others {
            continue;
        }
        let is_busy =
            |nic: &&Interface| nic.speed_bps.is_some_and(|speed| speed >= FAST) && view.is_loaded(nic);
        let busy = view.nics().any(|nic| is_busy(&nic));
        let nic = view.nics().find(|nic| nic.node == Some(node.number));
        let (text, share, effect) = if is_away {
            (
                format!(
                    "{} pages wanted on node {} ({}) were allocated on others: its memory was full",
                    count(pages.foreign),
                    node.number,
                    per_cent(away)
                ),
                away,
                "buffers lie on another node than the processor that fills or reads them",
            )
        } else {
            (
                format!(
                    "{} pages of node {} ({}) were allocated by processes that ran on others",
                    count(pages.other),
                    node.number,
                    per_cent(others)
                ),
                others,
                "processes work on memory of another node",
            )
        };
        let text = text + &nic.map(|nic| format!("; {} is on this node", nic.name)).unwrap_or_default();
        let severity = if share >= GRAVE && busy { Medium } else { Low };
        found.push(Found::measured(severity, "host", text, effect).advice(format!(
            "`numastat -p` shows whose memory it is; bind applications with `numactl --cpunodebind={0} --membind={0}`",
            node.number
        )));
    }
    found
}

fn remote_process_memory(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    if view.facts.nodes.len() < 2 {
        return found;
    }
    for process in view.facts.processes.iter().filter(|process| !process.memory_nodes.is_empty()) {
        let Some(allowed) = view.pinned(process.number) else { continue };
        let is_near = |processor: &u32| {
            view.facts.node_of(*processor).is_some_and(|node| process.memory_nodes.contains(&node))
        };
        let has_connections = view.facts.sockets.iter().any(|socket| socket.process == Some(process.number));
        if !has_connections || allowed.iter().any(is_near) {
            continue;
        }
        let text = format!(
            "{} (process {}) is pinned to processors {} and to memory of node {}",
            process.name,
            process.number,
            processor_list(&allowed),
            processor_list(&process.memory_nodes)
        );
        let effect = "all of its memory is on another node than its processors";
        found.push(Found::setting(Medium, &process.name, text, effect).advice(
            "start it with `numactl --cpunodebind=N --membind=N` (N: the NIC's node), or set AllowedMemoryNodes= in \
             its unit; `migratepages` moves its present memory",
        ));
    }
    found
}

fn balancing(view: &View<'_>) -> Vec<Found> {
    const MOVED: f64 = 1000.0;
    const FAULTS: f64 = 10_000.0;
    if view.facts.sysctl_number("kernel/numa_balancing").is_none_or(|mode| mode == 0)
        || view.facts.nodes_with_processors() < 2
    {
        return Vec::new();
    }
    let rate = |name: &str| view.per_second(view.facts.counter(&format!("Vmstat.{name}"))).unwrap_or(0.0);
    let (moved, faults) = (rate("numa_pages_migrated"), rate("numa_hint_faults"));
    let pinned: Vec<&str> = view
        .facts
        .processes
        .iter()
        .filter(|process| {
            view.pinned(process.number).is_some()
                && view.facts.sockets.iter().any(|socket| socket.process == Some(process.number))
        })
        .map(|process| process.name.as_str())
        .collect();
    let is_busy = moved >= MOVED || faults >= FAULTS;
    let Some(reason) = (if is_busy {
        let of = |name: &str| count(view.facts.counter(&format!("Vmstat.{name}")));
        Some(format!(
            "it moved {moved:.0} pages and took {faults:.0} faults per second since boot ({} and {} in all)",
            of("numa_pages_migrated"),
            of("numa_hint_faults")
        ))
    } else {
        pinned.first().map(|name| format!("{name} is pinned to processors, so no page has to move"))
    }) else {
        return Vec::new();
    };
    let text = format!("kernel.numa_balancing is on, and {reason}");
    let effect = "memory is unmapped and copied while packets wait";
    let entry = if is_busy {
        Found::measured(Medium, "host", text, effect)
    } else {
        Found::setting(Low, "host", text, effect)
    };
    vec![entry.sysctl("kernel/numa_balancing", 0)]
}

/// Waits per second that slow down applications.
const OFTEN: f64 = 1.0;

fn reclaim(view: &View<'_>) -> Vec<Found> {
    const SOMETIMES: f64 = 0.01;
    const PAGES: f64 = 100.0;
    const FEWEST_PACKETS: u64 = 100;
    let counter = |name: &str| view.facts.counter(&format!("Vmstat.{name}"));
    // The rule zone-reclaim counts waits for a node that reclaims its own memory first.
    let stalls = reclaim_stalls(view).saturating_sub(counter("zone_reclaim_failed"));
    let (compacted, killed) = (counter("compact_stall"), counter("oom_kill"));
    let swapped = counter("pswpin").saturating_add(counter("pswpout"));
    let rate = |times: u64| view.per_second(times).unwrap_or(0.0);
    // If huge pages are set to `always`, the rule huge-pages counts compaction.
    let for_packets = if view.facts.huge_pages.as_deref() == Some("always") { 0 } else { compacted };
    let waits = rate(stalls.saturating_add(for_packets));
    // A packet whose buffer came from the reserve is only for sockets that help to free memory, such as those
    // of swap over NFS.
    let refused = view.facts.counter("TcpExt.PFMemallocDrop");
    let loses = refused >= FEWEST_PACKETS;
    if waits < SOMETIMES && rate(swapped) < PAGES && killed == 0 && !loses {
        return Vec::new();
    }
    let mut text = format!(
        "allocations waited {} times for memory to be freed (allocstall{}) and {} times for it to be compacted; {} pages were swapped{}, and {} \
         processes were killed because memory ran out{}",
        count(stalls),
        view.rate_words(stalls),
        count(compacted),
        count(swapped),
        view.rate_words(swapped),
        count(killed),
        view.facts
            .sysctl("vm/min_free_kbytes")
            .map(|kept| format!("; vm.min_free_kbytes is {kept}"))
            .unwrap_or_default()
    );
    let received = view.facts.counter("Ip.InReceives");
    let loses_many = loses && refused.saturating_mul(1_000_000) >= received;
    if refused > 0 {
        text += &format!(
            "; {} packets in the memory reserve were dropped at their sockets (PFMemallocDrop)",
            count(refused)
        );
    }
    let severity = if waits >= OFTEN || rate(swapped) >= PAGES || loses_many { Medium } else { Low };
    let entry =
        Found::measured(severity, "host", text, "pauses of milliseconds, and no memory for received packets");
    let wanted = kept_free_kb(view);
    let entry = match view.facts.sysctl_field("vm/min_free_kbytes", 0) {
        Some(kept) if kept < wanted && (stalls > 0 || loses) => entry.sysctl("vm/min_free_kbytes", wanted),
        _ => entry,
    };
    let entry = match view.facts.sysctl_field("vm/swappiness", 0) {
        Some(swappiness) if swappiness > 10 && rate(swapped) >= PAGES => entry.sysctl("vm/swappiness", 10),
        _ => entry,
    };
    vec![entry.advice("smaller caches and applications, or more memory; vm.watermark_scale_factor=200 lets the kernel free memory earlier")]
}

/// Returns the memory to keep free for bursts of received packets, kB.
fn kept_free_kb(view: &View<'_>) -> u64 {
    /// One part in this number of the memory is kept free, within the limits below. The upper limit is the
    /// size of the buffers of a few large rings.
    const PART: u64 = 100;
    const LEAST_KB: u64 = 65_536;
    const MOST_KB: u64 = 2_097_152;
    (view.facts.memory_bytes.unwrap_or(0) / 1024 / PART).clamp(LEAST_KB, MOST_KB)
}

fn huge_pages(view: &View<'_>) -> Vec<Found> {
    const STALLS: f64 = 1.0;
    let always = |word: &Option<String>| word.as_deref() == Some("always");
    if !always(&view.facts.huge_pages) {
        return Vec::new();
    }
    let stalls = view.per_second(view.facts.counter("Vmstat.compact_stall")).unwrap_or(0.0);
    let waits = always(&view.facts.huge_page_defrag);
    let server = view.latency_bound();
    let reason = match &server {
        _ if stalls >= STALLS => {
            format!(
                "allocations waited {stalls:.1} times per second for memory to be compacted (compact_stall {})",
                count(view.facts.counter("Vmstat.compact_stall"))
            )
        }
        Some(server) => server.words.clone(),
        None if waits => {
            "defrag is always, so each allocation may wait for memory to be compacted".to_owned()
        }
        None => return Vec::new(),
    };
    let text = format!("transparent huge pages are always on, and {reason}");
    let effect = "pauses of milliseconds that no network counter explains";
    let entry = if stalls >= STALLS {
        Found::measured(Medium, "host", text, effect)
    } else {
        Found::setting(Low, "host", text, effect)
    };
    vec![entry.advice(
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, and transparent_hugepage=madvise on the kernel's command line",
    )]
}

/// Returns how often allocations waited for memory reclaim.
fn reclaim_stalls(view: &View<'_>) -> u64 {
    ["allocstall_normal", "allocstall_movable", "allocstall_dma32", "allocstall_dma"]
        .into_iter()
        .map(|name| view.facts.counter(&format!("Vmstat.{name}")))
        .fold(0, u64::saturating_add)
}

fn zone_reclaim(view: &View<'_>) -> Vec<Found> {
    match view.facts.sysctl_number("vm/zone_reclaim_mode") {
        Some(mode) if mode != 0 && view.facts.nodes_with_processors() > 1 => {
            let (stalls, failed) = (reclaim_stalls(view), view.facts.counter("Vmstat.zone_reclaim_failed"));
            let mut text = format!(
                "vm.zone_reclaim_mode is {mode} on a host of {} memory nodes",
                view.facts.nodes_with_processors()
            );
            if stalls.max(failed) > 0 {
                text += &format!(
                    "; allocations waited {} times for memory to be freed (allocstall{}), and a node had none to free {} times \
                     (zone_reclaim_failed)",
                    count(stalls),
                    view.rate_words(stalls),
                    count(failed)
                );
            }
            let effect = "allocations stall while other nodes have free memory";
            let often = view.per_second(stalls.max(failed)).is_some_and(|rate| rate >= OFTEN);
            let entry = if often {
                Found::measured(Medium, "host", text, effect)
            } else {
                Found::setting(Low, "host", text, effect)
            };
            vec![entry.sysctl("vm/zone_reclaim_mode", 0)]
        }
        _ => Vec::new(),
    }
}
