//! Processors, their memory nodes, and how they save power.
//!
//! Sources: `Documentation/admin-guide/cputopology.rst`, `Documentation/admin-guide/pm/cpufreq.rst`, `cpuidle.rst`.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::host::{
    IdleState, Node, NodeAllocations, Processor, ProcessorTime, parse_processor_list,
};

use super::tree::Tree;

const PROCESSORS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";

pub(super) fn processors(tree: &Tree) -> (Vec<Processor>, Vec<Node>) {
    let list = |path: &str| {
        tree.read(path).and_then(|text| parse_processor_list(&text)).filter(|list| !list.is_empty())
    };
    let times = times(tree);
    let online = list(&format!("{PROCESSORS}/online"))
        .or_else(|| Some(tree.numbers(PROCESSORS, "cpu")).filter(|numbers| !numbers.is_empty()))
        .or_else(|| Some(times.keys().copied().collect::<Vec<_>>()).filter(|numbers| !numbers.is_empty()))
        .unwrap_or_else(|| vec![0]);
    let online: BTreeSet<u32> = online.into_iter().collect();
    let mut nodes = Vec::new();
    for number in tree.numbers(NODES, "node") {
        let processors = tree.read(&format!("{NODES}/node{number}/cpulist"));
        let processors = processors.and_then(|text| parse_processor_list(&text)).unwrap_or_default();
        nodes.push(Node { number, processors, allocations: allocations(tree, number) });
    }
    let node_of: BTreeMap<u32, u32> = nodes
        .iter()
        .flat_map(|node| node.processors.iter().map(|processor| (*processor, node.number)))
        .collect();
    let isolated: BTreeSet<u32> = ["isolated", "nohz_full"]
        .iter()
        .filter_map(|name| parse_processor_list(&tree.read(&format!("{PROCESSORS}/{name}"))?))
        .flatten()
        .collect();
    let mut processors = Vec::new();
    for number in online {
        let directory = format!("{PROCESSORS}/cpu{number}");
        let topology = |name: &str| tree.read(&format!("{directory}/topology/{name}"));
        let figure = |name: &str| topology(name).and_then(|text| text.parse::<u32>().ok());
        let siblings = topology("thread_siblings_list").or_else(|| topology("core_cpus_list"));
        let siblings = siblings.and_then(|text| parse_processor_list(&text)).unwrap_or_else(|| vec![number]);
        let frequency = |name: &str| {
            let policy = || tree.read(&format!("{PROCESSORS}/cpufreq/policy{number}/{name}"));
            tree.read(&format!("{directory}/cpufreq/{name}")).or_else(policy)
        };
        processors.push(Processor {
            number,
            node: node_of.get(&number).copied().unwrap_or(0),
            // Some architectures have none: there a node is a package.
            package: figure("physical_package_id")
                .unwrap_or_else(|| node_of.get(&number).copied().unwrap_or(0)),
            core: figure("core_id").unwrap_or(number),
            siblings,
            governor: frequency("scaling_governor"),
            frequency_driver: frequency("scaling_driver"),
            energy_preference: frequency("energy_performance_preference"),
            idle_states: idle_states(tree, &directory),
            isolated: isolated.contains(&number),
            time: times.get(&number).copied(),
        });
    }
    (processors, nodes)
}

/// Pages of a node: lines such as `numa_hit 1200`.
fn allocations(tree: &Tree, node: u32) -> Option<NodeAllocations> {
    let text = tree.read(&format!("{NODES}/node{node}/numastat"))?;
    let figure = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().parse().ok()).unwrap_or(0)
    };
    Some(NodeAllocations {
        hit: figure("numa_hit "),
        miss: figure("numa_miss "),
        foreign: figure("numa_foreign "),
        local: figure("local_node "),
        other: figure("other_node "),
    })
}

fn idle_states(tree: &Tree, directory: &str) -> Vec<IdleState> {
    let directory = format!("{directory}/cpuidle");
    let numbers = tree.numbers(&directory, "state");
    numbers
        .into_iter()
        .map(|number| {
            let file = |name: &str| tree.read(&format!("{directory}/state{number}/{name}"));
            let figure = |name: &str| file(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
            IdleState {
                number,
                name: file("name").unwrap_or_default(),
                latency_us: figure("latency"),
                disabled: figure("disable") != 0,
                usage: figure("usage"),
            }
        })
        .collect()
}

/// Ticks of each processor (proc_stat(5)); a damaged line is as none.
fn times(tree: &Tree) -> BTreeMap<u32, ProcessorTime> {
    let text = tree.read("/proc/stat").unwrap_or_default();
    let line = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let number = fields.next()?.strip_prefix("cpu")?.parse().ok()?;
        // user nice system idle iowait irq softirq steal; guest time is part of user time.
        let ticks: Vec<u64> = fields.take(8).filter_map(|field| field.parse().ok()).collect();
        let tick = |at: usize| ticks.get(at).copied().unwrap_or(0);
        let time = ProcessorTime {
            total: ticks.iter().sum(),
            idle: tick(3) + tick(4),
            softirq: tick(6),
            steal: tick(7),
        };
        Some((number, time))
    };
    text.lines().filter_map(line).collect()
}
