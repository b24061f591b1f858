//! CPUs, their memory nodes, and their power settings.
//!
//! Sources: `Documentation/admin-guide/cputopology.rst`, `Documentation/admin-guide/pm/cpufreq.rst`,
//! `cpuidle.rst`.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::host::{
    IdleState, Node, NodeAllocations, Processor, ProcessorTime, parse_processor_list, processor_list,
};

use super::distinct::{repeated, second};
use super::tree::{Tree, unreadable};

const PROCESSORS: &str = "/sys/devices/system/cpu";
pub(super) const NODES: &str = "/sys/devices/system/node";

pub(super) fn processors(tree: &Tree) -> (Vec<Processor>, Vec<Node>) {
    let list = |path: &str| tree.parse(path, listed);
    let times = times(tree);
    tree.require(PROCESSORS);
    let online = list(&format!("{PROCESSORS}/online"))
        .filter(|list| !list.is_empty())
        .or_else(|| Some(tree.numbers(PROCESSORS, "cpu")).filter(|numbers| !numbers.is_empty()))
        .or_else(|| Some(times.keys().copied().collect::<Vec<_>>()).filter(|numbers| !numbers.is_empty()))
        .unwrap_or_else(|| {
            tree.note(PROCESSORS, format!("{PROCESSORS} and /proc/stat name no processor"));
            vec![0]
        });
    let online: BTreeSet<u32> = online.into_iter().collect();
    // Every online CPU is also in the list of possible CPUs
    // (Documentation/admin-guide/cputopology.rst).
    if let Some(possible) = tree.possible_processors()
        && let Some(odd) = online.iter().find(|number| !possible.contains(number))
    {
        tree.note(PROCESSORS, format!("{PROCESSORS}: processor {odd} is online, but not in 'possible'"));
    }
    let mut nodes = Vec::new();
    let numbers = tree.numbers(NODES, "node");
    let directories: Vec<String> = numbers.iter().map(|number| format!("{NODES}/node{number}")).collect();
    tree.note_unlike(&directories, &["cpulist", "numastat"]);
    for number in numbers {
        let processors =
            tree.required_value(&format!("{NODES}/node{number}/cpulist"), listed).unwrap_or_default();
        nodes.push(Node { number, processors, allocations: allocations(tree, number) });
    }
    let node_of: BTreeMap<u32, u32> = nodes
        .iter()
        .flat_map(|node| node.processors.iter().map(|processor| (*processor, node.number)))
        .collect();
    for (at, node) in nodes.iter().enumerate() {
        let mut others = nodes[..at].iter().flat_map(|other| &other.processors);
        if let Some(both) = others.find(|processor| node.processors.contains(processor)) {
            tree.note(NODES, format!("{NODES}: processor {both} is in two nodes"));
        }
    }
    if let Some(lost) = online.iter().find(|number| !nodes.is_empty() && !node_of.contains_key(number)) {
        tree.note(NODES, format!("{NODES}: processor {lost} is in no node"));
    }
    if let Some(lost) = online.iter().find(|number| !times.contains_key(number)) {
        tree.note("/proc/stat", format!("/proc/stat has no row of processor {lost}"));
    }
    if let Some(other) = times.keys().find(|number| !online.contains(number)) {
        tree.note("/proc/stat", format!("/proc/stat has a row of processor {other}, which is not online"));
    }
    // Linux 4.2 and later have the file `isolated`; the file `nohz_full` depends on CONFIG_NO_HZ_FULL.
    tree.require(&format!("{PROCESSORS}/isolated"));
    let isolated: BTreeSet<u32> = ["isolated", "nohz_full"]
        .iter()
        .filter_map(|name| list(&format!("{PROCESSORS}/{name}")))
        .flatten()
        .collect();
    let directories: Vec<String> = online.iter().map(|number| format!("{PROCESSORS}/cpu{number}")).collect();
    tree.note_unlike(&directories, &OF_EACH);
    // A kernel for a single CPU has no topology (drivers/base/topology.c).
    if online.len() > 1 {
        for directory in &directories {
            tree.require(&format!("{directory}/topology/core_id"));
        }
    }
    let mut processors = Vec::new();
    for number in online {
        let directory = format!("{PROCESSORS}/cpu{number}");
        let topology = |name: &str| format!("{directory}/topology/{name}");
        // A package of -1 is unknown (some virtual machines, arm64 without ACPI).
        let figure = |name: &str| tree.parse(&topology(name), |text| text.parse::<i64>().ok());
        let figure = |name: &str| figure(name).and_then(|figure| u32::try_from(figure).ok());
        let siblings = list(&topology("thread_siblings_list")).or_else(|| list(&topology("core_cpus_list")));
        if siblings.is_none() && figure("core_id").is_some() {
            tree.require(&topology("thread_siblings_list"));
        }
        // The list of a CPU's siblings includes the CPU itself.
        if siblings.as_ref().is_some_and(|list| !list.contains(&number)) {
            let path = topology("thread_siblings_list");
            tree.note(&path, format!("{path} lacks processor {number}"));
        }
        let siblings = siblings.filter(|list| !list.is_empty()).unwrap_or_else(|| vec![number]);
        let frequency = |name: &str, parser: fn(&str) -> Option<String>| {
            let policy = || tree.parse(&format!("{PROCESSORS}/cpufreq/policy{number}/{name}"), parser);
            tree.parse(&format!("{directory}/cpufreq/{name}"), parser).or_else(policy)
        };
        processors.push(Processor {
            number,
            node: node_of.get(&number).copied().unwrap_or(0),
            // Use the node if the package is unknown; some architectures have no packages.
            package: figure("physical_package_id")
                .unwrap_or_else(|| node_of.get(&number).copied().unwrap_or(0)),
            core: figure("core_id").unwrap_or(number),
            siblings,
            governor: frequency("scaling_governor", governor),
            frequency_driver: frequency("scaling_driver", word),
            energy_preference: frequency("energy_performance_preference", energy_preference),
            idle_states: idle_states(tree, &directory),
            isolated: isolated.contains(&number),
            time: times.get(&number).copied(),
        });
    }
    (processors, nodes)
}

/// Notes a node that spans packages if one of these packages also has CPUs of another node. A node may span
/// packages (NPS0 of AMD), and a package may have several nodes (sub-NUMA clustering, NPS2), but no machine
/// has both for the same package. A hypervisor may state any topology to its guest.
pub(super) fn note_contradiction(tree: &Tree, processors: &[Processor]) {
    let mut packages: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for processor in processors {
        packages.entry(processor.node).or_default().insert(processor.package);
    }
    for (node, own) in packages.iter().filter(|(_, own)| own.len() > 1) {
        let shared = processors.iter().find(|other| other.node != *node && own.contains(&other.package));
        let Some(shared) = shared else { continue };
        let why = format!(
            "{NODES}/node{node}: the node spans the packages {}, and processor {} of node {} is in package {}, too \
             (physical_package_id): no machine has such nodes",
            processor_list(&own.iter().copied().collect::<Vec<_>>()),
            shared.number,
            shared.node,
            shared.package
        );
        tree.note(NODES, why);
        return;
    }
}

/// Files that exist for all CPUs of a host or for none.
const OF_EACH: [&str; 6] = [
    "topology/physical_package_id",
    "topology/thread_siblings_list",
    "cpufreq/scaling_governor",
    "cpufreq/scaling_driver",
    "cpufreq/energy_performance_preference",
    "cpuidle/state0",
];

/// Returns the page allocations of a node, from lines such as `numa_hit 1200`.
fn allocations(tree: &Tree, node: u32) -> Option<NodeAllocations> {
    let path = format!("{NODES}/node{node}/numastat");
    tree.table(&path);
    tree.parse(&path, |text| {
        let figure =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().parse().ok());
        Some(NodeAllocations {
            hit: figure("numa_hit ")?,
            miss: figure("numa_miss ")?,
            foreign: figure("numa_foreign ")?,
            local: figure("local_node ")?,
            other: figure("other_node ")?,
        })
    })
}

/// Parses a list of CPUs; the kernel writes `(null)` if `nohz_full` is not set.
fn listed(text: &str) -> Option<Vec<u32>> {
    if text == "(null)" { Some(Vec::new()) } else { parse_processor_list(text) }
}

/// Returns a text if it is a governor of Linux (Documentation/admin-guide/pm/cpufreq.rst).
fn governor(text: &str) -> Option<String> {
    const GOVERNORS: [&str; 6] =
        ["conservative", "ondemand", "performance", "powersave", "schedutil", "userspace"];
    GOVERNORS.contains(&text).then(|| text.to_owned())
}

/// Returns a text if it is an energy preference: a name, or the value of the register
/// (Documentation/admin-guide/pm/intel_pstate.rst).
fn energy_preference(text: &str) -> Option<String> {
    const PREFERENCES: [&str; 5] =
        ["balance_performance", "balance_power", "default", "performance", "power"];
    (PREFERENCES.contains(&text) || text.parse::<u8>().is_ok()).then(|| text.to_owned())
}

/// Returns a text if it is a name such as `acpi-cpufreq`.
fn word(text: &str) -> Option<String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (text.len() >= 3 && text.bytes().all(is_name)).then(|| text.to_owned())
}

fn idle_states(tree: &Tree, directory: &str) -> Vec<IdleState> {
    let directory = format!("{directory}/cpuidle");
    let numbers = tree.numbers(&directory, "state");
    numbers
        .into_iter()
        .map(|number| {
            let file = |name: &str| tree.read(&format!("{directory}/state{number}/{name}"));
            for name in ["name", "latency", "disable", "usage"] {
                tree.require(&format!("{directory}/state{number}/{name}"));
            }
            let figure =
                |name: &str| tree.read_number(&format!("{directory}/state{number}/{name}")).unwrap_or(0);
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

/// Returns the ticks of each CPU (proc_stat(5)).
fn times(tree: &Tree) -> BTreeMap<u32, ProcessorTime> {
    const FILE: &str = "/proc/stat";
    let Some(text) = tree.required_table(FILE) else { return BTreeMap::new() };
    // The columns are: user nice system idle iowait irq softirq steal. Guest time is part of user time.
    let ticks = |line: &str| {
        let fields = line.split_ascii_whitespace().skip(1).take(8);
        let ticks: Option<Vec<u64>> = fields.map(|field| field.parse().ok()).collect();
        ticks.filter(|ticks| ticks.len() >= 4)
    };
    let row = |line: &str| {
        let number = line.split_ascii_whitespace().next()?.strip_prefix("cpu")?.parse().ok()?;
        let ticks = ticks(line)?;
        let tick = |at: usize| ticks.get(at).copied().unwrap_or(0);
        let total = ticks.iter().fold(0_u64, |sum, tick| sum.saturating_add(*tick));
        let idle = tick(3).saturating_add(tick(4));
        Some((number, ProcessorTime { total, idle, softirq: tick(6), steal: tick(7) }))
    };
    // "cpu" is the sum; "cpu0", "cpu1" etc. are CPUs. Other lines have other counters.
    let is_damaged = |text: &&str| {
        let is_sum = text.starts_with("cpu ");
        text.starts_with("cpu") && if is_sum { ticks(text).is_none() } else { row(text).is_none() }
    };
    let rows: String =
        text.lines().filter(|text| text.starts_with("cpu")).map(|text| format!("{text}\n")).collect();
    tree.note_columns(FILE, &rows, 1);
    if let Some((at, damaged)) = text.lines().enumerate().find(|(_, text)| is_damaged(text)) {
        tree.note_line(FILE, at + 1, &unreadable(damaged));
    } else if !text.starts_with("cpu") {
        tree.note_line(FILE, 1, &unreadable(&text));
    }
    let found: Vec<(u32, ProcessorTime)> = text.lines().filter_map(row).collect();
    if let Some((_, processor)) = repeated(found.iter().map(|(processor, _)| *processor)) {
        tree.note(FILE, format!("{FILE}: {}", second(&format!("processor {processor}"))));
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::tree::Bits;
    use super::*;
    use crate::mask_members;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Tree) {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in
            [("proc/uptime", "1.0 1.0\n"), ("sys/devices/system/cpu/online", "0-1\n")].iter().chain(files)
        {
            let file = directory.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let tree = Tree::recorded(directory.path()).unwrap();
        (directory, tree)
    }

    #[test]
    fn processors_without_times_are_noted() {
        for (stat, words) in [
            ("cpu 4 0 4 4 0\ncpu0 2 0 2 2 0\ncpu1 2 0 2 2 0\n", ""),
            ("cpu 4 0 4 4 0\ncpu0 2 0 2 2 0\n", "no row of processor 1"),
            ("cpu 4 0 4 4 0\nintr 5\n", "no row of processor 0"),
            ("cpu 4 0 4\ncpu0 2 0 2\ncpu1 2 0 2\n", "/proc/stat:1: "),
            ("cpu 1 2 3\n", "/proc/stat:1: "),
        ] {
            let (_keep, tree) = tree(&[("proc/stat", stat)]);
            let (processors, _) = processors(&tree);
            let notes = tree.unknown();
            let note = notes.iter().find(|gap| gap.source == "/proc/stat");
            assert_eq!(note.is_none(), words.is_empty(), "{stat}: {note:?}");
            assert!(note.is_none_or(|gap| gap.why.contains(words)), "{stat}: {note:?}");
            assert_eq!(processors.len(), 2);
        }
    }

    #[test]
    fn an_unreadable_file_of_a_recording_is_named_there() {
        let (directory, tree) = tree(&[]);
        tree.note_error("/proc/stat", &std::io::ErrorKind::PermissionDenied.into());
        let path = directory.path().join("proc/stat");
        assert!(tree.unknown()[0].why.starts_with(&format!("{}: ", path.display())), "{:?}", tree.unknown());
    }

    #[test]
    fn masks_name_only_processors_that_the_host_can_have() {
        let odd = ("proc/mask", "80000000,00000001\n");
        let missing = ("proc/mask", "8,00000000\n");
        let possible = ("sys/devices/system/cpu/possible", "0-3\n");
        let read = |files: &[(&str, &str)], bits| {
            let (_keep, tree) = tree(files);
            let members = tree.processors("/proc/mask", bits, mask_members);
            (members, tree.unknown().first().map(|gap| gap.why.clone()))
        };
        let note = |processor: u32| {
            Some(format!(
                "/proc/mask:1: names processor {processor}, and there are only 0-3 (/sys/devices/system/cpu/possible)"
            ))
        };
        // CPU 3 is offline.
        let offline = ("proc/mask", "8\n");
        assert_eq!(read(&[possible, offline], Bits::Possible), (Some(vec![3]), None));
        assert_eq!(read(&[possible, odd], Bits::Possible), (None, note(63)));
        assert_eq!(read(&[possible, odd], Bits::AnyWithOnePossible), (Some(vec![0, 63]), None));
        assert_eq!(read(&[possible, missing], Bits::AnyWithOnePossible), (None, note(35)));
        assert_eq!(read(&[odd], Bits::Possible), (Some(vec![0, 63]), None), "a recording without the list");
    }
}
