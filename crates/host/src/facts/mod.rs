//! Reads [`HostFacts`] from the running machine, or from a tree that was recorded or written by hand.
//!
//! `docs/reference/check.md` describes the tree. A new fact needs a field in `evenkeel_model::host`,
//! and a reader in one file of this directory.
//!
//! A fact that cannot be read is absent, and named in [`HostFacts::unknown`]. [`read_facts`] lists the
//! exceptions, which are errors.

mod device;
mod distinct;
mod features;
mod interfaces;
mod interrupts;
mod links;
mod monitored;
mod pci;
mod processors;
mod protocols;
mod qdisc_options;
mod qdiscs;
mod ranges;
mod save;
mod sockets;
mod statistics;
mod sysctls;
mod tree;

use std::collections::BTreeMap;
use std::path::Path;

use evenkeel_files::OutputDirectory;
use evenkeel_model::host::{HostFacts, Interface, InterfaceKind, SocketFacts};

pub use device::{COMMANDS as ETHTOOL_COMMANDS, DeviceAnswers, HashFields, RssAnswers, ask_device};
pub use features::{FeatureText, feature_name};
pub(crate) use interrupts::has_word;
pub use interrupts::{notify_blocks, queue_of_action};
pub use monitored::{Counters, read_counters, read_devices};
pub use protocols::EVERY_LINUX;
pub(crate) use statistics::losses;
pub use tree::{ANSWERS, Tree};

use crate::HostError;

/// Reads all facts about a host.
///
/// # Errors
/// Returns an error in these cases:
/// - In a recorded tree, answers of ethtool or netlink are damaged (the message names file, line and
///   column), or the recording has another format or an impossible page size.
/// - On a running machine, `/proc` or `/sys` is not mounted, or `/sys` shows another network namespace.
/// - There is no interface, or the interfaces cannot be listed.
pub fn read_facts(tree: &Tree) -> Result<HostFacts, HostError> {
    tree.own_namespace()?;
    tree.require_mounts()?;
    let about: Option<save::About> = tree.answers("about.json")?;
    if let Some(about) = &about
        && about.format != save::FORMAT
    {
        return Err(HostError::Format {
            path: tree.name(&format!("{ANSWERS}/about.json")),
            line: 1,
            reason: format!(
                "the recording has format {}, but this evenkeel reads format {}; use the version of evenkeel \
                 that wrote the recording",
                about.format,
                save::FORMAT
            ),
        });
    }
    let page_bytes = if tree.is_live() {
        page_bytes()
    } else {
        about.as_ref().and_then(|about| about.page_bytes).unwrap_or(4096)
    };
    // Linux has pages of 4 to 256 KiB.
    if !page_bytes.is_power_of_two() || !(4096..=256 << 10).contains(&page_bytes) {
        return Err(HostError::Format {
            path: tree.name(&format!("{ANSWERS}/about.json")),
            line: 1,
            reason: format!("page_bytes: {page_bytes} is not the size of a page; write for example 4096"),
        });
    }
    // Check the tree again, because a file may have been added.
    let missing =
        about.iter().flat_map(|about| &about.unknown).filter(|gap| tree.read_quietly(&gap.source).is_none());
    for gap in missing {
        tree.note(&gap.source, gap.why.as_str());
    }
    tree.state_without_value(about.iter().flat_map(|about| about.without_value.clone()));
    let (processors, nodes) = processors::processors(tree);
    let online: Vec<u32> = processors.iter().map(|processor| processor.number).collect();
    let names = interfaces::names(tree)?;
    let counters_before = if tree.is_live() { protocols::counters(tree) } else { BTreeMap::new() };
    let qdiscs = qdiscs::qdiscs(tree, &names)?;
    let sizes = links::packet_sizes(tree)?;
    let information = tree.required_table("/proc/cpuinfo").unwrap_or_default();
    if let Some((at, line)) =
        information.lines().enumerate().find(|(_, line)| !line.is_empty() && !line.contains(':'))
    {
        tree.note_line("/proc/cpuinfo", at + 1, &tree::unreadable(line));
    }
    let of_processor = |key: &str| {
        information.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            (found.trim() == key).then(|| value.trim().to_owned())
        })
    };
    let flags = of_processor("flags").unwrap_or_default();
    let virtual_machine = flags.split_ascii_whitespace().any(|flag| flag == "hypervisor");
    if !virtual_machine {
        processors::note_contradiction(tree, &processors);
    }
    let (mut interfaces, owners) = interfaces::interfaces(tree, &names, qdiscs, virtual_machine)?;
    for interface in &mut interfaces {
        interface.packet_sizes = sizes.get(&interface.name).copied();
        let is_nic = interface.kind == InterfaceKind::Device && interface.up;
        if is_nic && interface.packet_sizes.is_none() && !tree.is_live() {
            tree.note(links::SOURCE, format!("evenkeel/links.json has no {}", interface.name));
        }
        let wrong = interface.packet_sizes.filter(|_| is_nic).as_ref().and_then(links::impossible);
        if let Some(why) = wrong {
            tree.note(links::SOURCE, format!("evenkeel/links.json: {}: {why}", interface.name));
            interface.packet_sizes = None;
        }
    }
    let interrupts = interrupts::interrupts(tree, &owners, &online);
    for nic in interfaces.iter().filter(|nic| nic.pcie.is_some()) {
        let has_traffic = nic.statistics.get("rx_packets").is_some_and(|packets| *packets > 0);
        let mut own = interrupts.iter().filter(|interrupt| interrupt.interface == nic.name);
        let why = match own.next() {
            None => format!("no interrupt of {} was found in /proc/interrupts", nic.name),
            Some(first)
                if std::iter::once(first).chain(own).all(|own| own.queue.is_none() || !own.receives) =>
            {
                format!("/proc/interrupts names no receive queue of {}: '{}'", nic.name, first.action)
            }
            Some(_) => continue,
        };
        if nic.up && has_traffic {
            tree.note(&format!("/sys/class/net/{}/interrupts", nic.name), why);
        }
    }
    let sockets = sockets::sockets(tree, &names, &interfaces)?;
    note_unknown_hashes(tree, &interfaces, &sockets.sockets);
    let memory = tree.required("/proc/meminfo").and_then(|text| {
        let total = || {
            let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
            line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
        };
        let found = total();
        if found.is_none() {
            tree.note_line("/proc/meminfo", 1, "no MemTotal");
        }
        found
    });
    let is_release = |text: &str| {
        let (major, rest) = text.split_once('.')?;
        let minor = rest.split(|next: char| !next.is_ascii_digit()).next()?;
        (major.parse::<u32>().is_ok() && minor.parse::<u32>().is_ok()).then(|| text.to_owned())
    };
    tree.required("/proc/sys/kernel/osrelease");
    let sysctls = sysctls::sysctls(tree, names.values());
    let recorded = about.as_ref().map(|about| about.read_only.as_slice()).unwrap_or_default();
    let read_only_sysctls = sysctls::read_only(tree, sysctls.keys(), recorded);
    let facts = HostFacts {
        kernel: tree.parse("/proc/sys/kernel/osrelease", is_release),
        distribution: tree.read("/etc/os-release").and_then(|text| {
            text.lines()
                .find_map(|line| Some(line.strip_prefix("PRETTY_NAME=")?.trim_matches('"').to_owned()))
        }),
        processor_model: of_processor("model name"),
        processor_mhz: mean_mhz(&information),
        virtual_machine,
        uptime_s: tree.required_value("/proc/uptime", uptime_s),
        // `neigh_table_init` (net/core/neighbour.c) creates this file only in the initial network namespace.
        is_later_namespace: tree.is_live() && !tree.exists("/proc/net/stat/arp_cache"),
        memory_bytes: memory,
        huge_pages: selected(tree, "enabled"),
        huge_page_defrag: selected(tree, "defrag"),
        page_bytes,
        command_line: save::kept_words(&tree.required("/proc/cmdline").unwrap_or_default()),
        processors,
        nodes,
        interfaces,
        interrupts,
        sysctls,
        read_only_sysctls,
        counters: protocols::counters(tree),
        counters_before,
        softnet: protocols::softnet(tree, &online),
        port_use: sockets.ports,
        sockets: sockets.sockets,
        processes: sockets.processes,
        unknown: tree.unknown(),
    };
    tree.keep_answers("about.json", &about_recording(tree, &facts, false));
    Ok(facts)
}

/// Reads the running machine, and saves the input to a directory, so that another machine can read it.
/// Returns the facts and the number of files.
///
/// # Errors
/// Returns an error if the directory is not empty or cannot be written, or if [`read_facts`] fails.
pub fn save_facts(directory: &Path, anonymise: bool) -> Result<(HostFacts, usize), HostError> {
    // Claim the directory first, so that an unwritable directory is reported immediately.
    let target = OutputDirectory::claim(directory)?;
    let tree = Tree::live().recording();
    let facts = read_facts(&tree)?;
    if anonymise {
        tree.keep_answers("about.json", &about_recording(&tree, &facts, true));
    }
    let files = target.fill(save::LAST, |place| save::write(tree, place, anonymise))?;
    Ok((facts, files))
}

/// Notes NICs with several queues for which the queue of a connection cannot be computed.
fn note_unknown_hashes(tree: &Tree, interfaces: &[Interface], sockets: &[SocketFacts]) {
    let is_ipv6 = |end: &str| end.parse().is_ok_and(|end: std::net::SocketAddr| end.is_ipv6());
    let has_ipv6 = sockets.iter().any(|socket| is_ipv6(&socket.remote));
    let nics = interfaces.iter().filter(|nic| nic.kind == InterfaceKind::Device && nic.up);
    for nic in nics.filter(|nic| nic.receive_queue_count() > 1) {
        let rss = nic.rss.as_ref().filter(|rss| !rss.indirection.is_empty());
        if let Some(why) = rss.and_then(|rss| device::unknown_hash(rss, has_ipv6)) {
            let why = if tree.is_live() {
                format!("{}: ethtool: {why}", nic.name)
            } else {
                format!("evenkeel/ethtool/{}.json: {why}", nic.name)
            };
            tree.note(&format!("/sys/class/net/{}/ethtool/rss_hash", nic.name), why);
        }
    }
}

fn about_recording(tree: &Tree, facts: &HostFacts, anonymised: bool) -> save::About {
    save::About {
        format: save::FORMAT,
        page_bytes: Some(facts.page_bytes),
        anonymised,
        without_value: tree.without_value(),
        read_only: facts.read_only_sysctls.iter().cloned().collect(),
        unknown: facts.unknown.clone(),
    }
}

/// Computes the fields that derive from a driver's counters, for facts that were built, not read.
pub fn complete(facts: &mut HostFacts) {
    for interface in &mut facts.interfaces {
        interface.losses =
            losses(interface.driver.as_deref(), &interface.driver_statistics, &interface.statistics);
        interface.queue_counters =
            statistics::queues(interface.driver.as_deref(), &interface.driver_statistics);
    }
}

/// Returns the word in brackets in a setting of transparent huge pages: `always [madvise] never`. A
/// kernel without huge pages lacks these files (mm/huge_memory.c).
fn selected(tree: &Tree, name: &str) -> Option<String> {
    const WORDS: [&str; 5] = ["always", "defer", "defer+madvise", "madvise", "never"];
    let directory = "/sys/kernel/mm/transparent_hugepage";
    if tree.exists(directory) {
        tree.require(&format!("{directory}/{name}"));
    }
    tree.parse(&format!("{directory}/{name}"), |text| {
        let (word, rest) = text.split_once('[')?.1.split_once(']')?;
        (WORDS.contains(&word) && !rest.contains('[')).then(|| word.to_owned())
    })
}

/// Parses the time since boot, s: `100000.42 1500000.03`.
fn uptime_s(text: &str) -> Option<u64> {
    let figures: Option<Vec<f64>> = text.split_ascii_whitespace().map(|word| word.parse().ok()).collect();
    let figures = figures.filter(|figures| figures.len() == 2)?;
    // The kernel counts nanoseconds in a signed number of 64 bits (`ktime_t`, include/linux/ktime.h).
    figures.iter().all(|figure| (0.0..9.3e9).contains(figure)).then(|| figures[0] as u64)
}

fn mean_mhz(information: &str) -> Option<u32> {
    let figure = |line: &str| line.strip_prefix("cpu MHz")?.split_once(':')?.1.trim().parse::<f64>().ok();
    let figures: Vec<f64> =
        information.lines().filter_map(figure).filter(|figure| (1.0..1e6).contains(figure)).collect();
    (!figures.is_empty()).then(|| (figures.iter().sum::<f64>() / figures.len() as f64).round() as u32)
}

/// Returns the size of a page of this kernel, bytes.
#[must_use]
pub fn page_bytes() -> u64 {
    // SAFETY: takes a number.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}
