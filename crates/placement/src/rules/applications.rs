//! Rules about the processors on which applications run.

use std::collections::BTreeMap;

use evenkeel_model::host::{Interface, ProcessFacts, processor_list};
use evenkeel_model::shell::Line;

use super::{FAST, Found, Rule, needs};
use crate::Severity::{High, Low, Medium};
use crate::plan::{cores_for_applications, interrupt_places};
use crate::view::gigabits;
use crate::{Basis, View};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "app-remote-node",
        looks_at: "the processors of processes with connections (pinned, or the last used), and the node of the NIC \
                   that carries the connections",
        fires_when: "from 10 Gbit/s; low: a process that carried 100 MB last ran in another package than the NIC's; \
                     medium: a process is pinned to processors of other packages only; high: above 68 Gbit/s, the \
                     pinned process also carried 100 MB (and 1 MB/s, or the NIC has load)",
        why: "Payload crosses the interconnect (68 Gbit/s on the paper's hosts), and TCP slows the sender to its \
              rate: few losses, less throughput (the paper's case 3).",
        fix: "run the application on the NIC's node (taskset, numactl, CPUAffinity= of its unit)",
        source: "the paper, section III-A, figures 8 and 9 (case 3)",
        needs: &[
            needs::SPEED,
            needs::NODE,
            needs::NODES,
            needs::SOCKETS,
            needs::SOCKET_OWNERS,
            needs::PROCESSES,
            needs::PROCESS_STAT,
            needs::PROCESS_STATUS,
        ],
        check: remote_node,
    },
    Rule {
        name: "irq-on-application",
        looks_at: "processes with connections, pinned to processors that serve the NIC's interrupts or to SMT \
                   siblings of these, from 10 Gbit/s",
        fires_when: "low: half of a process's processors serve interrupts (without free cores near the NIC: \
                     at least four processors, and over 75 % of them); medium: on a busy NIC (30 % softirq \
                     time, or 10,000 lost packets); high: also from 40 Gbit/s, with free cores near the NIC, \
                     and the process carried 100 MB",
        why: "Interrupts preempt the reading application, the receive window closes, and the ring loses packets. On \
              separate cores, the paper's three flows always reached 100 Gbit/s; on the same cores they did not.",
        fix: "interrupts and applications on different cores of the same node",
        source: "the paper, section III-B, figures 10 and 11 (distribution 3 against 2)",
        needs: &[
            needs::SPEED,
            needs::NODE,
            needs::NODES,
            needs::TOPOLOGY,
            needs::INTERRUPTS,
            needs::AFFINITY,
            needs::SOCKETS,
            needs::SOCKET_OWNERS,
            needs::PROCESSES,
            needs::PROCESS_STATUS,
            needs::TIMES,
            needs::STATISTICS,
        ],
        check: on_interrupts,
    },
];

/// Returns the bytes of each process with connections through a NIC, by process id.
fn busy_processes(view: &View<'_>, nic: &Interface) -> BTreeMap<u32, u64> {
    let mut found = BTreeMap::new();
    for socket in view.connections(nic) {
        if let Some(process) = socket.process {
            let sum = found.entry(process).or_insert(0_u64);
            *sum = sum.saturating_add(socket.bytes());
        }
    }
    found
}

/// Processes of one name that are pinned to the same processors, or one process that is not pinned. One
/// finding covers the whole group.
struct Group<'a> {
    processes: Vec<&'a ProcessFacts>,
    /// The processors to which the processes are pinned; `None` if the process is not pinned.
    allowed: Option<Vec<u32>>,
    bytes: u64,
}

impl Group<'_> {
    fn name(&self) -> &str {
        self.processes.first().map_or("", |process| &process.name)
    }

    /// Returns text such as `ceph-osd (processes 5100 and 5101)`, and the matching verb form.
    fn words(&self) -> (String, &'static str) {
        let numbers: Vec<String> = self.processes.iter().map(|process| process.number.to_string()).collect();
        match numbers.split_last() {
            Some((last, others)) if !others.is_empty() => {
                (format!("{} (processes {} and {last})", self.name(), others.join(", ")), "are")
            }
            _ => (format!("{} (process {})", self.name(), numbers.join(", ")), "is"),
        }
    }

    /// Returns the command that moves the running processes.
    fn taskset(&self, cores: &str) -> String {
        match self.processes.as_slice() {
            [one] => format!("`taskset -a -p -c {cores} {}`", one.number),
            all => {
                let numbers: Vec<String> = all.iter().map(|process| process.number.to_string()).collect();
                format!("`for p in {}; do taskset -a -p -c {cores} $p; done`", numbers.join(" "))
            }
        }
    }
}

fn busy_groups<'a>(view: &View<'a>, nic: &Interface) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for (number, bytes) in busy_processes(view, nic) {
        let Some(process) = view.facts.process(number) else { continue };
        let allowed = view.pinned(number);
        let is_same = |group: &&mut Group<'_>| {
            allowed.is_some() && group.name() == process.name && group.allowed == allowed
        };
        match groups.iter_mut().find(is_same) {
            Some(group) => {
                group.processes.push(process);
                group.bytes = group.bytes.saturating_add(bytes);
            }
            None => groups.push(Group { processes: vec![process], allowed, bytes }),
        }
    }
    groups
}

/// Smallest traffic of a process that counts as measured load, bytes.
const MUCH: u64 = 100_000_000;

/// Returns the basis of a finding about a process: measured if the process has carried much data, at a high
/// or unknown rate or through a loaded NIC.
fn load_of(view: &View<'_>, nic: &Interface, bytes: u64) -> Basis {
    const BYTES_PER_SECOND: f64 = 1e6;
    let busy = view.per_second(bytes).is_none_or(|rate| rate >= BYTES_PER_SECOND) || view.is_loaded(nic);
    if bytes >= MUCH && busy { Basis::Measured } else { Basis::Setting }
}

fn remote_node(view: &View<'_>) -> Vec<Found> {
    const INTERCONNECT_BPS: u64 = 68_000_000_000;
    let mut found = Vec::new();
    for nic in view.nics() {
        let (Some(node), Some(speed)) = (nic.node, nic.speed_bps.filter(|speed| *speed >= FAST)) else {
            continue;
        };
        for group in busy_groups(view, nic) {
            let is_remote = |processor: &u32| view.is_other_package(nic, *processor);
            let (who, verb) = group.words();
            let whose = if group.processes.len() == 1 { "its" } else { "their" };
            let last = group.processes.first().and_then(|process| process.processor);
            let (severity, place) = match (&group.allowed, last) {
                (Some(allowed), _) if allowed.iter().all(is_remote) => {
                    let grave = speed > INTERCONNECT_BPS;
                    (
                        if grave { High } else { Medium },
                        format!("{verb} pinned to processors {}", processor_list(allowed)),
                    )
                }
                (Some(allowed), _) if !allowed.iter().any(is_remote) => continue,
                (_, Some(last)) if is_remote(&last) && group.bytes >= MUCH => {
                    (Low, format!("last ran on processor {last}"))
                }
                _ => continue,
            };
            let text =
                format!("{who} {place}, and {whose} connections go through {} on node {node}", nic.name);
            let effect = format!(
                "payload crosses the interconnect of the packages, which carried 68 of 100 Gbit/s on the hosts of the LCN 2019 paper; the link has {}",
                gigabits(speed as f64)
            );
            // The interrupts and the applications share the node: the planner reserves these cores for
            // applications.
            let reserved: Vec<u32> = cores_for_applications(view, nic).into_iter().collect();
            let (cores, place) = match (reserved.is_empty(), free_cores(view, nic)) {
                (false, _) => (reserved, ", on cores without its interrupts"),
                (true, free) if !free.is_empty() => (free, ", on cores without its interrupts"),
                // No core is reserved, and every core of the node serves interrupts.
                (true, _) => (view.local_cores(nic), ""),
            };
            let list = processor_list(&cores);
            let mut advice = if cores.is_empty() {
                format!(
                    "all cores of node {node} are isolated: take some of them off isolcpus= for the application"
                )
            } else {
                format!(
                    "pin the application to the NIC's node{place}: {} now, `numactl --physcpubind={list} --membind={node}` at its \
                     start, or CPUAffinity= and NUMAPolicy= in its unit",
                    group.taskset(&list)
                )
            };
            if !place.is_empty() && view.interrupt_targets(nic).iter().any(|target| cores.contains(target)) {
                let tune = Line::new("evenkeel tune", &[]).on(&nic.name, "", &[]);
                advice += &format!("; then `{tune}` moves its interrupts off these cores");
            }
            found.push(
                Found::on_basis(load_of(view, nic, group.bytes), severity, group.name(), text, effect)
                    .on(&nic.name)
                    .advice(advice),
            );
        }
    }
    found
}

/// Returns the cores of a NIC's node that serve none of its interrupts.
fn free_cores(view: &View<'_>, nic: &Interface) -> Vec<u32> {
    let busy: Vec<u32> = view.interrupt_processors(nic).into_iter().collect();
    let busy = view.with_siblings(&busy);
    view.local_cores(nic).into_iter().filter(|core| !busy.contains(core)).collect()
}

fn on_interrupts(view: &View<'_>) -> Vec<Found> {
    /// From this number of shared cores on, half of the cores suffice for the interrupts.
    const CROWDED: usize = 4;
    /// If at least one in four of an application's cores is without interrupts, the scheduler keeps the
    /// application off the busy cores.
    const ENOUGH_PART: usize = 4;
    const GRAVE_BPS: u64 = 40_000_000_000;
    let mut found = Vec::new();
    for nic in view.nics() {
        let Some(speed) = nic.speed_bps.filter(|speed| *speed >= FAST) else { continue };
        let busy: Vec<u32> = view.interrupt_processors(nic).into_iter().collect();
        let busy_cores = view.with_siblings(&busy);
        if busy.is_empty() {
            continue;
        }
        let places = interrupt_places(view, nic);
        for group in busy_groups(view, nic) {
            let Some(allowed) = group.allowed.clone() else { continue };
            let (same, twins): (Vec<u32>, Vec<u32>) =
                allowed.iter().filter(|core| busy_cores.contains(core)).partition(|core| busy.contains(core));
            let shared = same.len() + twins.len();
            // Near cores exist to which no application is pinned.
            let is_free = places.clear && places.near;
            // If the interrupts use most of the application's cores, first reduce the number of queues.
            let own: Vec<u32> = allowed.iter().copied().filter(|core| !busy_cores.contains(core)).collect();
            let crowded = !is_free
                && same.len() >= CROWDED
                && same.len() * 2 >= allowed.len()
                && own.len() * ENOUGH_PART < allowed.len();
            if shared * 2 < allowed.len() || shared == 0 || !is_free && !crowded {
                continue;
            }
            let place = match (same.is_empty(), twins.is_empty()) {
                (false, true) => {
                    format!("{} of which serve interrupts of {}", processor_list(&same), nic.name)
                }
                (true, _) => format!(
                    "{} of which are SMT siblings of processors that serve interrupts of {}",
                    processor_list(&twins),
                    nic.name
                ),
                (false, false) => format!(
                    "{} of which serve interrupts of {} and {} of which are their SMT siblings",
                    processor_list(&same),
                    nic.name,
                    processor_list(&twins)
                ),
            };
            let (who, verb) = group.words();
            let text = format!("{who} {verb} pinned to processors {}, {place}", processor_list(&allowed));
            let effect = "interrupts delay the application that reads, and packets are lost below TCP";
            let severity = match (view.is_busy(nic), speed >= GRAVE_BPS && !crowded) {
                (true, true) => High,
                (true, false) => Medium,
                // A worker thread next to its own queue is a common placement. The placement has a cost
                // only if the processor has no idle time.
                (false, _) => Low,
            };
            let entry =
                Found::on_basis(load_of(view, nic, group.bytes), severity, group.name(), text, effect);
            if crowded {
                let half = same.len() / 2;
                let mut free: Vec<u32> = same.iter().copied().skip(half).chain(own).collect();
                free.sort_unstable();
                found.push(entry.on(&nic.name).advice(format!(
                    "`ethtool -L {} combined {half}`, then interrupts on {} and the application on {}: {}",
                    nic.name,
                    processor_list(&same.iter().copied().take(half).collect::<Vec<_>>()),
                    processor_list(&free),
                    group.taskset(&processor_list(&free))
                )));
                continue;
            }
            let entry = super::interrupts::with_placement(view, nic, entry);
            let free = free_cores(view, nic);
            found.push(if free.is_empty() {
                entry
            } else {
                entry.advice(format!(
                    "or move the application to cores without interrupts: {}",
                    group.taskset(&processor_list(&free))
                ))
            });
        }
    }
    found
}
