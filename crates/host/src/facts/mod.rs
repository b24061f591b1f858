//! Reads [`HostFacts`]: from the running machine, or from a tree that was recorded or written by hand.
//!
//! `docs/check.md` describes the tree. A fact is added in two places: its field in `evenkeel_model::host`, and the file here
//! that reads it. What cannot be read is left out and named in [`HostFacts::unknown`]; only what stands in a recorded tree
//! and makes no sense is an error.

mod device;
mod interfaces;
mod interrupts;
mod links;
mod pci;
mod processors;
mod protocols;
mod qdiscs;
mod save;
mod sockets;
mod statistics;
mod sysctls;
mod tree;

use std::path::Path;

use evenkeel_model::host::HostFacts;

pub use device::{
    COMMANDS as ETHTOOL_COMMANDS, DeviceAnswers, FeatureText, RssAnswers, ask_device, feature_name,
};
pub use interrupts::queue_of_action;
pub use tree::{ANSWERS, Tree};

use crate::HostError;

/// Reads a host.
///
/// # Errors
/// When a file of a recorded tree is damaged; the message names file, line and column.
pub fn read_facts(tree: &Tree) -> Result<HostFacts, HostError> {
    let mut unknown = Vec::new();
    let about: Option<save::About> = tree.answers("about.json")?;
    if let Some(about) = &about
        && about.format != save::FORMAT
    {
        return Err(HostError::Format {
            path: tree.name(&format!("{ANSWERS}/about.json")),
            line: 1,
            reason: format!(
                "this tree has format {}, and this version reads format {}",
                about.format,
                save::FORMAT
            ),
        });
    }
    let page_bytes =
        if tree.is_live() { page_bytes() } else { about.and_then(|about| about.page_bytes).unwrap_or(4096) };
    let (processors, nodes) = processors::processors(tree);
    let online: Vec<u32> = processors.iter().map(|processor| processor.number).collect();
    let names = interfaces::names(tree);
    let qdiscs = qdiscs::qdiscs(tree, &names, &mut unknown)?;
    let sizes = links::packet_sizes(tree)?;
    let (mut interfaces, owners) = interfaces::interfaces(tree, &names, qdiscs, &mut unknown)?;
    for interface in &mut interfaces {
        interface.packet_sizes = sizes.get(&interface.name).copied();
    }
    let interrupts = interrupts::interrupts(tree, &owners);
    let sockets = sockets::sockets(tree, &names, &mut unknown)?;
    let information = tree.read("/proc/cpuinfo").unwrap_or_default();
    let of_processor = |key: &str| {
        information.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            (found.trim() == key).then(|| value.trim().to_owned())
        })
    };
    let flags = of_processor("flags").unwrap_or_default();
    let memory = tree.read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    });
    let facts = HostFacts {
        kernel: tree.read("/proc/sys/kernel/osrelease"),
        distribution: tree.read("/etc/os-release").and_then(|text| {
            text.lines()
                .find_map(|line| Some(line.strip_prefix("PRETTY_NAME=")?.trim_matches('"').to_owned()))
        }),
        processor_model: of_processor("model name"),
        virtual_machine: flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"),
        uptime_s: tree.read("/proc/uptime").and_then(|text| text.split(['.', ' ']).next()?.parse().ok()),
        memory_bytes: memory,
        huge_pages: selected(tree, "enabled"),
        huge_page_defrag: selected(tree, "defrag"),
        page_bytes,
        command_line: save::kept_words(&tree.read("/proc/cmdline").unwrap_or_default()),
        processors,
        nodes,
        interfaces,
        interrupts,
        sysctls: sysctls::sysctls(tree, names.values()),
        counters: protocols::counters(tree),
        softnet: protocols::softnet(tree, &online),
        port_use: sockets.ports,
        sockets: sockets.sockets,
        processes: sockets.processes,
        unknown: unknown
            .into_iter()
            .chain(tree.refused().into_iter().map(|path| format!("{path}: not readable for this user")))
            .collect(),
    };
    tree.keep_answers(
        "about.json",
        &save::About { format: save::FORMAT, page_bytes: Some(page_bytes), anonymised: false },
    );
    Ok(facts)
}

/// Reads the running machine, and writes what was read into a directory, from which it can be read elsewhere. Returns the
/// facts and the number of files.
///
/// # Errors
/// When the directory is not empty, or cannot be written.
pub fn save_facts(directory: &Path, anonymise: bool) -> Result<(HostFacts, usize), HostError> {
    let tree = Tree::live().recording();
    let facts = read_facts(&tree)?;
    if anonymise {
        tree.keep_answers(
            "about.json",
            &save::About { format: save::FORMAT, page_bytes: Some(facts.page_bytes), anonymised: true },
        );
    }
    let files = save::write(tree, directory, anonymise)?;
    Ok((facts, files))
}

/// Fills in what is computed from a driver's counters, of facts that were made and not read.
pub fn complete(facts: &mut HostFacts) {
    for interface in &mut facts.interfaces {
        interface.losses = statistics::losses(
            interface.driver.as_deref(),
            &interface.driver_statistics,
            &interface.statistics,
        );
        interface.queue_counters = statistics::queues(&interface.driver_statistics);
    }
}

/// The word in brackets of a setting of transparent huge pages: `always [madvise] never`.
fn selected(tree: &Tree, name: &str) -> Option<String> {
    let text = tree.read(&format!("/sys/kernel/mm/transparent_hugepage/{name}"))?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

fn page_bytes() -> u64 {
    // SAFETY: takes a number.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}
