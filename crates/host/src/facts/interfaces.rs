//! Interfaces: sysfs, the driver's answers, and the upper and lower interfaces.
//!
//! Sources: `Documentation/ABI/testing/sysfs-class-net`, `-net-queues`, `-net-statistics`,
//! `sysfs-bus-pci`, `sysfs-kernel-iommu_groups`.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::host::{
    BondFacts, Interface, InterfaceKind, PcieLink, QdiscFacts, ReceiveQueue, Rss, TransmitQueue,
};
use evenkeel_netlink::ethtool::EthtoolSocket;

use super::device::{DeviceAnswers, ask_device, missing_parts};
use super::distinct::second;
use super::features::{by_kernel_name, lost_feature};
use super::interrupts::Owner;
use super::processors::NODES;
use super::tree::{Bits, Tree};
use super::{pci, qdiscs, ranges, statistics, tree};
use crate::counters::Driver;
use crate::{HostError, mask_members};

const CLASS: &str = "/sys/class/net";
/// `ARPHRD_LOOPBACK`.
const TYPE_LOOPBACK: u64 = 772;
/// `ARPHRD_ETHER`.
const TYPE_ETHERNET: u64 = 1;

/// Returns the names of the interfaces by number. Interfaces without a number of their own come last.
/// Unreadable interfaces are included.
///
/// # Errors
/// Returns an error if there is no interface, or the directory of interfaces cannot be read.
pub(super) fn names(tree: &Tree) -> Result<BTreeMap<u32, String>, HostError> {
    let mut found = BTreeMap::new();
    let mut without = u32::MAX / 2;
    let interfaces = tree.entries(CLASS).or_else(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Ok(Vec::new()),
        _ => Err(HostError::Read { path: tree.name(CLASS), source }),
    })?;
    for name in interfaces {
        let directory = format!("{CLASS}/{name}");
        match tree.entries(&directory) {
            Ok(files) if files.iter().any(|file| file == "mtu" || file == "statistics") => {}
            Err(error) if !tree.is_absent(&directory, &error) => tree.note_error(&directory, &error),
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory && name != "bonding_masters" => {
                tree.note(&directory, format!("{directory}: a file in place of a directory"));
            }
            // The interface has disappeared, or this is bonding_masters, a file in this directory.
            Err(_) => continue,
            Ok(_) => tree.note(&directory, format!("{directory} has no mtu")),
        }
        let index =
            tree.read_number(&format!("{CLASS}/{name}/ifindex")).and_then(|index| u32::try_from(index).ok());
        let other: Option<&String> = index.and_then(|index| found.get(&index));
        if let (Some(index), Some(other)) = (index, other) {
            for (one, two) in [(&name, other), (other, &name)] {
                let directory = format!("{CLASS}/{one}");
                tree.note(&directory, format!("{directory}/ifindex is {index}, which {two} has, too"));
            }
        }
        let index = index.filter(|_| other.is_none()).unwrap_or_else(|| {
            without += 1;
            without
        });
        found.insert(index, name);
    }
    // Every Linux has a loopback interface: a tree without interfaces has no facts about a host.
    if found.is_empty() { Err(HostError::NoHost { path: tree.name(CLASS) }) } else { Ok(found) }
}

/// Returns every interface, and the names and numbers by which its interrupts are identified.
pub(super) fn interfaces(
    tree: &Tree,
    names: &BTreeMap<u32, String>,
    mut lines: BTreeMap<String, Vec<QdiscFacts>>,
    virtual_machine: bool,
) -> Result<(Vec<Interface>, Vec<Owner>), HostError> {
    let socket = if tree.is_live() { EthtoolSocket::open().ok() } else { None };
    let (mut interfaces, mut owners, mut masters) = (Vec::<Interface>::new(), Vec::new(), Vec::new());
    for (index, name) in names {
        let recorded = format!("ethtool/{name}.json");
        let is_recorded = tree.is_live() || tree.exists(&format!("{}/{recorded}", tree::ANSWERS));
        let mut answers = match &socket {
            Some(socket) => {
                let mut answers = ask_device(socket, name);
                answers.max_read_request = pci::max_read_request(tree, name);
                tree.keep_answers(&recorded, &answers);
                answers
            }
            None => tree.answers(&recorded)?.unwrap_or_default(),
        };
        let missing = if tree.is_live() {
            Vec::new()
        } else {
            missing_parts(&tree.answers(&recorded)?.unwrap_or_default())
        };
        if let Some((field, text)) = answers.rss.as_ref().and_then(|rss| rss.unreadable()) {
            let why = format!("evenkeel/{recorded}: rss.{field}: {}", tree::unreadable(text));
            tree.note(&format!("{CLASS}/{name}/ethtool/rss"), why);
        }
        let features = by_kernel_name(&answers.features).map_err(|[name, kernel]| HostError::Field {
            path: tree.name(&format!("{}/{recorded}", tree::ANSWERS)),
            field: format!("features.{name}"),
            reason: format!("it contradicts the state of {kernel}, which is the same feature"),
        })?;
        answers.forget(missing.iter().map(|(part, _)| *part));
        for (part, error) in &answers.failed {
            tree.note(&format!("{CLASS}/{name}/ethtool/{part}"), format!("{name}: ethtool, {part}: {error}"));
        }
        let known = index < &(u32::MAX / 2);
        let reader = Reader { tree, directory: format!("{CLASS}/{name}"), virtual_machine };
        let (mut interface, owner) =
            reader.interface(name, known.then_some(*index), answers, lines.remove(name).unwrap_or_default());
        if !tree.is_live()
            && interface.kind == InterfaceKind::Device
            && let Some(lost) = lost_feature(&features)
        {
            let why = format!("{name}: ethtool, features has no {lost}, which every device has");
            tree.note(&format!("{CLASS}/{name}/ethtool/features"), why);
        }
        interface.features = features;
        if interface.kind == InterfaceKind::Device {
            if interface.up {
                for (part, why) in ranges::forget_impossible(&mut interface) {
                    let place = if tree.is_live() {
                        format!("{name}: ethtool")
                    } else {
                        format!("evenkeel/{recorded}")
                    };
                    tree.note(&format!("{}/ethtool/{part}", reader.directory), format!("{place}: {why}"));
                }
                reader.require_attributes();
            }
            let answers = format!("{}/ethtool", reader.directory);
            if !is_recorded {
                tree.note(&answers, format!("the recording has no evenkeel/{recorded}"));
            } else if !tree.is_live() {
                for (part, name) in &missing {
                    tree.note(&format!("{answers}/{part}"), format!("evenkeel/{recorded} has no '{name}'"));
                }
            } else if socket.is_none() {
                tree.note(&answers, format!("{name}: the kernel opens no socket for ethtool"));
            }
            reader.require_loss_counters(&interface);
            if interface.up && interface.speed_bps.is_none() {
                tree.note(
                    &format!("{}/speed", reader.directory),
                    format!("{name} reports no speed: state it with --speed {name}=25gbit"),
                );
            }
            reader.require_statistics(&interface.statistics, &COUNTERS);
            for (kind, is_empty) in [
                ("receive", interface.receive_queues.is_empty()),
                ("transmit", interface.transmit_queues.is_empty()),
            ] {
                let queues = format!("{}/queues", reader.directory);
                if is_empty {
                    tree.note(&queues, format!("{queues} holds no {kind} queues"));
                }
            }
            if interface.up && interface.qdiscs.is_empty() && !tree.is_live() {
                tree.note(qdiscs::SOURCE, format!("evenkeel/qdiscs.json has no qdisc of {name}"));
            }
        }
        if !matches!(interface.kind, InterfaceKind::Device | InterfaceKind::Loopback) {
            let counters = ["rx_packets", "tx_packets", "rx_dropped", "tx_dropped"];
            reader.require_statistics(&interface.statistics, &counters);
            if interface.driver.as_deref().is_some_and(statistics::is_tunnel) {
                reader.require_statistics(&interface.statistics, &["rx_errors", "tx_errors"]);
            }
        }
        if let Some(master) = tree.link(&format!("{}/master", reader.directory)) {
            masters.push((master, name.clone()));
        }
        // On a host with several nodes, each PCI function has the file numa_node. It has -1 if the
        // firmware does not state the node.
        let is_pci = interface.bus.as_deref().is_some_and(is_pci_address);
        let has_node = ["device", "device/.."]
            .iter()
            .any(|device| tree.exists(&format!("{}/{device}/numa_node", reader.directory)));
        if is_pci && tree.exists(&format!("{NODES}/node1")) {
            let path = format!("{}/device/numa_node", reader.directory);
            if !has_node {
                tree.require(&path);
            } else if interface.node.is_none() && interface.up && !virtual_machine {
                tree.note(&path, format!("{path}: the firmware does not state the node of {name}"));
            }
        }
        if let Some(node) = interface.node.filter(|node| !tree.exists(&format!("{NODES}/node{node}"))) {
            tree.note(NODES, format!("{NODES} has no node{node}, the node of {name}"));
        }
        interfaces.push(interface);
        owners.push(owner);
    }
    for (master, port) in masters {
        let upper = interfaces.iter_mut().find(|interface| interface.name == master);
        if let Some(upper) = upper.filter(|upper| !upper.lower.contains(&port)) {
            upper.lower.push(port);
        }
    }
    note_lost_interfaces(tree, names, lines.into_keys());
    note_unlike_queues(tree, &interfaces);
    interfaces.iter_mut().for_each(|interface| note_lost_parts(tree, interface));
    interfaces.sort_by(|one, other| one.name.cmp(&other.name));
    Ok((interfaces, owners))
}

/// Notes the first interface for which a recording has answers but no sysfs directory. Notes nothing on a
/// running host, where an interface may disappear between two reads.
fn note_lost_interfaces(
    tree: &Tree,
    names: &BTreeMap<u32, String>,
    with_qdiscs: impl Iterator<Item = String>,
) {
    if tree.is_live() {
        return;
    }
    let with_answers = tree.list(&format!("{}/ethtool", tree::ANSWERS)).into_iter();
    let with_answers = with_answers.filter_map(|file| file.strip_suffix(".json").map(str::to_owned));
    let lost = with_answers.chain(with_qdiscs).find(|name| !names.values().any(|known| known == name));
    if let Some(name) = lost {
        let directory = format!("{CLASS}/{name}");
        let why = format!("the recording has answers about {name} in evenkeel/, but no {directory}");
        tree.note(&directory, why);
    }
}

/// Notes files that are missing for only some queues. Some files exist for all queues of the host or for
/// none; others depend on the NIC (`xps_cpus_show` and `netdev_uses_bql`, net/core/net-sysfs.c).
fn note_unlike_queues(tree: &Tree, interfaces: &[Interface]) {
    const OF_NIC: [&str; 4] =
        ["xps_cpus", "xps_rxqs", "byte_queue_limits/limit", "byte_queue_limits/limit_max"];
    let (mut receive, mut transmit) = (Vec::new(), Vec::new());
    for name in interfaces.iter().map(|interface| &interface.name) {
        let directory = format!("{CLASS}/{name}/queues");
        let of = |prefix: &str| {
            let numbers = tree.numbers(&directory, prefix).into_iter();
            numbers.map(|number| format!("{directory}/{prefix}{number}")).collect::<Vec<_>>()
        };
        receive.extend(of("rx-"));
        let own = of("tx-");
        tree.note_unlike(&own, &OF_NIC);
        transmit.extend(own);
    }
    tree.note_unlike(&receive, &["rps_cpus", "rps_flow_cnt"]);
    tree.note_unlike(&transmit, &["tx_timeout", "tx_maxrate"]);
}

/// For a recorded interface that is up, notes the first missing queue of each direction, a missing packet
/// counter of a queue, and a missing port of a bond. Removes the packet counters of a direction that lacks one.
///
/// The kernel numbers the queues without a gap, at least one for each channel
/// (`netif_set_real_num_rx_queues`, net/core/dev.c). A bond is up only with a port (`bond_set_carrier`,
/// drivers/net/bonding/bond_main.c).
fn note_lost_parts(tree: &Tree, interface: &mut Interface) {
    let directory = format!("{CLASS}/{}", interface.name);
    // Read the file of a bond, so that a recording contains it.
    let ports = match interface.kind {
        InterfaceKind::Bond => tree.read(&format!("{directory}/bonding/slaves")).unwrap_or_default(),
        _ => String::new(),
    };
    if tree.is_live() || !interface.up {
        return;
    }
    let channels = interface.channels.unwrap_or_default();
    let counts = (channels.receive(), channels.transmit());
    let driver = interface.driver.as_deref();
    for (receive, queue) in statistics::lost_queues(driver, &interface.driver_statistics, counts) {
        let counters = &mut interface.queue_counters;
        let (direction, counters) =
            if receive { ("receive", &mut counters.receive) } else { ("transmit", &mut counters.transmit) };
        counters.clear();
        let why = format!("{}: the packet counter of {direction} queue {queue} is missing", interface.name);
        tree.note(&format!("{directory}/ethtool/statistics"), why);
    }
    for (prefix, channels) in [("rx-", channels.receive()), ("tx-", channels.transmit())] {
        let queues = format!("{directory}/queues");
        let found = tree.numbers(&queues, prefix);
        let count = found.last().map_or(0, |last| channels.max(last.saturating_add(1)));
        if let Some(lost) = (0..count).find(|number| !found.contains(number)) {
            let path = format!("{queues}/{prefix}{lost}");
            tree.note(&path, format!("{path} is missing"));
        }
    }
    if interface.kind == InterfaceKind::Bond {
        let is_lost = |port: &&str| !interface.lower.iter().any(|name| name == port);
        let lost = ports.split_ascii_whitespace().find(is_lost);
        let path = match lost {
            Some(port) => format!("{directory}/lower_{port}"),
            None if interface.lower.is_empty() => format!("{directory}/lower_*"),
            None => return,
        };
        tree.note(&format!("{directory}/bonding/slaves"), format!("{path} is missing"));
    }
}

/// Counters that rules use. The kernel shows all of them for every interface (`netstat_attrs`,
/// net/core/net-sysfs.c).
const COUNTERS: [&str; 17] = [
    "collisions",
    "rx_bytes",
    "rx_crc_errors",
    "rx_dropped",
    "rx_fifo_errors",
    "rx_frame_errors",
    "rx_length_errors",
    "rx_missed_errors",
    "rx_over_errors",
    "rx_packets",
    "tx_aborted_errors",
    "tx_bytes",
    "tx_carrier_errors",
    "tx_dropped",
    "tx_errors",
    "tx_fifo_errors",
    "tx_packets",
];

pub(super) struct Reader<'a> {
    tree: &'a Tree,
    directory: String,
    virtual_machine: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(tree: &'a Tree, name: &str) -> Self {
        Self { tree, directory: format!("{CLASS}/{name}"), virtual_machine: false }
    }

    /// Returns whether the interface is the known one. The kernel may have reused its number.
    pub(super) fn is_same(&self, known: &Interface) -> bool {
        known.inode.zip(self.tree.inode(&self.directory)).is_none_or(|(known, now)| known == now)
    }

    pub(super) fn counted(
        &self,
        known: &Interface,
        kernel: BTreeMap<String, u64>,
        own: BTreeMap<String, u64>,
        qdiscs: Vec<QdiscFacts>,
    ) -> Interface {
        let driver = known.driver.as_deref();
        let counters = self.driver_counters(&known.name, driver, own, &kernel);
        let interface = Interface {
            losses: statistics::losses(driver, &counters, &kernel),
            queue_counters: statistics::queues(driver, &counters),
            qdiscs,
            statistics: kernel,
            driver_statistics: counters,
            ..known.clone()
        };
        if interface.kind == InterfaceKind::Device {
            self.require_loss_counters(&interface);
        }
        interface
    }

    fn text(&self, file: &str) -> Option<String> {
        self.tree.read(&format!("{}/{file}", self.directory))
    }

    fn parse<T>(&self, file: &str, parser: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        self.tree.parse(&format!("{}/{file}", self.directory), parser)
    }

    /// Returns the CPUs of a queue's mask. Every CPU in the mask is a possible CPU, because the kernel stores
    /// only online CPUs (`netdev_rx_queue_set_rps_mask`, `__netif_set_xps_queue`).
    fn processors(&self, file: &str) -> Vec<u32> {
        let path = format!("{}/{file}", self.directory);
        self.tree.processors(&path, Bits::Possible, mask_members).unwrap_or_default()
    }

    fn number(&self, file: &str) -> Option<u64> {
        self.parse(file, |text| text.parse().ok())
    }

    fn mtu(&self, kind: InterfaceKind) -> Option<u32> {
        let path = format!("{}/mtu", self.directory);
        let mtu = self.tree.required_value(&path, |text| text.parse().ok())?;
        let range = if kind == InterfaceKind::Device { ranges::MTU } else { ranges::ANY_MTU };
        u32::try_from(range.of_file(self.tree, &path, mtu)?).ok()
    }

    /// Returns the link's speed, bit/s; `None` if the driver does not report it. The file `speed` then has
    /// -1, or 4294967295 on some kernels.
    fn speed_bps(&self) -> Option<u64> {
        let speed = self.parse("speed", |text| text.parse::<i64>().ok())?;
        let speed = u64::try_from(speed).ok().filter(|speed| *speed > 0 && *speed != u64::from(u32::MAX))?;
        let path = format!("{}/speed", self.directory);
        Some(ranges::SPEED.of_file(self.tree, &path, speed)? * 1_000_000)
    }

    /// Returns whether the interface carries traffic, by its state. For a device that reports no state,
    /// the carrier decides.
    fn is_up(&self) -> bool {
        let carrier = self.parse("carrier", |text| text.parse::<u8>().ok()) != Some(0);
        let path = format!("{}/operstate", self.directory);
        let state = self.tree.required_value(&path, operational_state).unwrap_or_default();
        state == "up" || matches!(state.as_str(), "" | "unknown") && carrier
    }

    /// Notes missing files that the kernel shows for every interface (`net_class_attrs`,
    /// net/core/net-sysfs.c), and for every device (`uevent_show`, drivers/base/core.c).
    fn require_attributes(&self) {
        let mut files = vec!["carrier_changes", "duplex", "tx_queue_len", "gro_flush_timeout"];
        if self.tree.kernel() >= Some((5, 8)) {
            files.push("napi_defer_hard_irqs");
        }
        if self.tree.exists(&format!("{}/device", self.directory)) {
            files.push("device/uevent");
        }
        // `iommu_group_attr_type` (drivers/iommu/iommu.c).
        let has_group = self.tree.exists(&format!("{}/device/iommu_group", self.directory));
        if has_group && self.tree.kernel() >= Some((4, 19)) {
            files.push("device/iommu_group/type");
        }
        files.iter().for_each(|file| self.tree.require(&format!("{}/{file}", self.directory)));
    }

    /// Reads a file of the NIC, from the interface's device or from the parent device (virtio devices
    /// are below a PCI function).
    fn of_nic<T>(&self, file: &str, parser: impl Fn(&str) -> Option<T>) -> Option<T> {
        let own = self.parse(&format!("device/{file}"), &parser);
        own.or_else(|| self.parse(&format!("device/../{file}"), &parser))
    }

    fn interface(
        &self,
        name: &str,
        index: Option<u32>,
        answers: DeviceAnswers,
        qdiscs: Vec<QdiscFacts>,
    ) -> (Interface, Owner) {
        let device = self.tree.link(&format!("{}/device", self.directory));
        let has_device = self.has_device();
        // If the device cannot be reached, note the device, not each of its files.
        let is_known = !has_device || self.tree.exists(&format!("{}/device", self.directory));
        let is_uevent = |text: &str| {
            text.lines()
                .all(|line| line.split_once('=').is_some_and(|(key, _)| key.is_ascii()))
                .then(|| text.to_owned())
        };
        let uevent = self.parse("device/uevent", is_uevent).unwrap_or_default();
        let told = |key: &str| {
            uevent.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).map(str::to_owned)
        };
        let driver = answers
            .driver
            .or_else(|| told("DRIVER"))
            .or_else(|| self.tree.link(&format!("{}/device/driver", self.directory)));
        // An address on a bus, or a driver in the dictionary, shows that the interface is a NIC.
        let is_nic = answers.bus.as_ref().is_some_and(|bus| bus.contains(':'))
            || driver.as_deref().and_then(Driver::of).is_some();
        if is_nic && !has_device {
            self.tree.require(&format!("{}/device", self.directory));
        }
        // The driver's name gives the counters their meaning.
        let is_unreadable = self.tree.is_noted(&format!("{}/device/uevent", self.directory));
        if driver.is_none() && is_unreadable {
            let why = format!("the driver of {name} is unknown, and with it the meaning of its counters");
            self.tree.note(&format!("{}/ethtool/statistics", self.directory), why);
        }
        let kind = self.kind(name, has_device || is_nic, driver.as_deref());
        let bus = answers.bus.or_else(|| told("PCI_SLOT_NAME"));
        let bus = bus.or_else(|| device.clone().filter(|name| name.contains(':')));
        let is_known = is_known && (bus.is_some() || !is_unreadable);
        let mut numbers: BTreeSet<u32> = BTreeSet::new();
        for directory in ["device/msi_irqs", "device/../msi_irqs"] {
            let names = self.tree.list_names(&format!("{}/{directory}", self.directory), "");
            numbers.extend(names.iter().filter_map(|name| name.parse::<u32>().ok()));
            if !numbers.is_empty() || !has_device {
                break;
            }
        }
        numbers.extend(
            self.number("device/irq")
                .and_then(|number| u32::try_from(number).ok())
                .filter(|number| *number > 0),
        );
        let kernel = self.statistics();
        let counters = self.driver_counters(name, driver.as_deref(), answers.statistics, &kernel);
        let speed_bps = self.speed_bps();
        let interface = Interface {
            name: name.to_owned(),
            index,
            inode: self.tree.inode(&self.directory),
            kind,
            peer: self.peer(kind),
            up: self.is_up(),
            firmware: answers.firmware.filter(|version| !version.is_empty()),
            // -1 means that the node is unknown (`NUMA_NO_NODE`).
            node: self
                .of_nic("numa_node", |text| text.parse::<i64>().ok())
                .and_then(|node| u32::try_from(node).ok()),
            pcie: self.pcie(bus.as_deref().is_some_and(is_pci_address), speed_bps),
            max_read_request: answers.max_read_request,
            iommu: self.of_nic("iommu_group/type", iommu_type),
            speed_bps,
            supported_bps: answers.supported_mbps.and_then(|speed| speed.checked_mul(1_000_000)),
            duplex: self
                .parse("duplex", |text| matches!(text, "half" | "full" | "unknown").then(|| text.to_owned()))
                .filter(|duplex| duplex != "unknown"),
            mtu: self.mtu(kind),
            tx_queue_len: self.number("tx_queue_len").and_then(|length| u32::try_from(length).ok()),
            carrier_changes: self.number("carrier_changes"),
            threaded_napi: self.number("threaded") == Some(1),
            napi_defer_hard_irqs: self.number("napi_defer_hard_irqs"),
            gro_flush_timeout_ns: self.number("gro_flush_timeout"),
            packet_sizes: None,
            channels: answers.channels,
            rings: answers.rings,
            coalescing: answers.coalescing,
            features: BTreeMap::new(),
            private_flags: answers.private_flags,
            pause: answers.pause,
            rss: answers.rss.as_ref().map(Rss::from),
            receive_queues: self.receive_queues(),
            transmit_queues: self.transmit_queues(),
            qdiscs,
            losses: statistics::losses(driver.as_deref(), &counters, &kernel),
            queue_counters: statistics::queues(driver.as_deref(), &counters),
            statistics: kernel,
            driver_statistics: counters,
            lower: self
                .tree
                .list_names(&self.directory, "lower_")
                .iter()
                .filter_map(|name| name.strip_prefix("lower_").map(str::to_owned))
                .collect(),
            bond: if kind == InterfaceKind::Bond { self.bond() } else { None },
            driver,
            bus: bus.clone(),
        };
        (interface, Owner { name: name.to_owned(), bus, device, numbers, is_known })
    }

    /// Returns whether the interface has a `device` entry in sysfs, even a dangling symlink. If the directory
    /// cannot be read, the interface is noted as unknown.
    fn has_device(&self) -> bool {
        let found = self.tree.has_entry(&format!("{}/device", self.directory));
        found.unwrap_or_else(|error| {
            self.tree.note_error(&self.directory, &error);
            false
        })
    }

    /// Returns the index of a veth's other end (`veth_get_iflink`, drivers/net/veth.c).
    fn peer(&self, kind: InterfaceKind) -> Option<u32> {
        let is_read = self.tree.is_live() && kind == InterfaceKind::Veth;
        let peer = if is_read { self.number("iflink") } else { None };
        peer.and_then(|index| u32::try_from(index).ok())
    }

    fn kind(&self, name: &str, has_device: bool, driver: Option<&str>) -> InterfaceKind {
        let has = |part: &str| self.tree.exists(&format!("{}/{part}", self.directory));
        if name == "lo" || self.parse("type", |text| text.parse().ok()) == Some(TYPE_LOOPBACK) {
            InterfaceKind::Loopback
        } else if has("bonding") {
            InterfaceKind::Bond
        } else if has("bridge") {
            InterfaceKind::Bridge
        } else if driver == Some("veth") || !has_device && driver.is_none() && name.starts_with("veth") {
            InterfaceKind::Veth
        } else if has_device {
            InterfaceKind::Device
        } else {
            InterfaceKind::Virtual
        }
    }

    /// Returns the mode and the hash policy of a bond; `None` if the mode is unknown. Every bond has both
    /// files (drivers/net/bonding/bond_sysfs.c).
    fn bond(&self) -> Option<BondFacts> {
        let setting = |file: &str, names: &[&str]| {
            let path = format!("{}/bonding/{file}", self.directory);
            self.tree.required_value(&path, |text| named(text, names))
        };
        let (mode, policy) = (setting("mode", &BOND_MODES), setting("xmit_hash_policy", &HASH_POLICIES));
        Some(BondFacts { mode: mode?, hash_policy: policy.unwrap_or_default() })
    }

    /// Returns the PCI Express link of the NIC itself, not of an upstream bridge.
    fn pcie(&self, is_pci: bool, line_rate_bps: Option<u64>) -> Option<PcieLink> {
        /// Maximum speed of a NIC on conventional PCI, bit/s.
        const CONVENTIONAL_MOST_BPS: u64 = 1_000_000_000;
        /// GT/s of a lane, by generation (`pcie_link_speed`, drivers/pci/probe.c).
        const LANE_SPEEDS: [f64; 7] = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0];
        const FILES: [&str; 4] =
            ["current_link_speed", "current_link_width", "max_link_speed", "max_link_width"];
        // A PCI Express function has all these files; other devices have no such file.
        let path = |file: &str| format!("{}/device/{file}", self.directory);
        let is_fast = line_rate_bps.is_some_and(|rate| rate > CONVENTIONAL_MOST_BPS);
        if is_pci && is_fast && !self.virtual_machine
            || FILES.iter().any(|file| self.tree.exists(&path(file)))
        {
            FILES.iter().for_each(|file| self.tree.require(&path(file)));
        }
        let speed = |file: &str| -> Option<f64> {
            // Examples: "8.0 GT/s PCIe", "2.5 GT/s", "Unknown".
            let speed =
                self.parse(&format!("device/{file}"), |text| match text.split_ascii_whitespace().next()? {
                    "Unknown" => Some(0.0),
                    figure => figure.parse::<f64>().ok().filter(|speed| LANE_SPEEDS.contains(speed)),
                });
            speed.filter(|speed| speed.is_finite() && *speed > 0.0)
        };
        let width = |file: &str| -> Option<u32> {
            // A NIC without a link reports 0 or 255.
            let is_width = |width: &u32| matches!(width, 0 | 1 | 2 | 4 | 8 | 12 | 16 | 32 | 255);
            let width = self.parse(&format!("device/{file}"), |text| text.parse().ok().filter(is_width));
            width.filter(|width| (1..=32).contains(width))
        };
        let (speed_gts, max_speed_gts) = (speed("current_link_speed"), speed("max_link_speed"));
        let (lanes, max_width) = (width("current_link_width"), width("max_link_width"));
        // A NIC on the CPU's die has no link of its own, and reports no maximum. Hypervisors emulate
        // the registers.
        if !self.virtual_machine {
            let figures = [
                ("current_link_speed", speed_gts, max_speed_gts),
                ("current_link_width", lanes.map(f64::from), max_width.map(f64::from)),
            ];
            for (file, now, most) in figures {
                let Some(most) = most else { continue };
                let path = path(file);
                match now {
                    Some(now) if now > most => {
                        self.tree.note_line(
                            &path,
                            1,
                            &format!("{now} is impossible: at most {most} (max_link_*)"),
                        );
                    }
                    None if self.is_up() => self.tree.note_line(
                        &path,
                        1,
                        "the value is unknown, although \
                                                                           the NIC is up",
                    ),
                    _ => {}
                }
            }
        }
        Some(PcieLink { speed_gts: speed_gts?, width: lanes?, max_speed_gts, max_width })
    }

    fn statistics(&self) -> BTreeMap<String, u64> {
        let directory = format!("{}/statistics", self.directory);
        let read = |name: String| {
            let path = format!("{directory}/{name}");
            let value = ranges::COUNT.of_file(self.tree, &path, self.tree.read_number(&path)?)?;
            Some((name, value))
        };
        let mut counters: BTreeMap<String, u64> =
            self.tree.list(&directory).into_iter().filter_map(read).collect();
        let is_ethernet = self.number("type").is_none_or(|kind| kind == TYPE_ETHERNET);
        for (counter, why) in ranges::forget_unlike_bytes(&mut counters, is_ethernet) {
            self.tree.note(&format!("{directory}/{counter}"), format!("{directory}/{why}"));
        }
        counters
    }

    /// Returns the driver's counters, without repeated names and impossible values. Notes a repeated name,
    /// and an impossible value of a counter of events or that is part of a packet or loss count. Drivers also
    /// list other figures, some of them negative.
    fn driver_counters(
        &self,
        name: &str,
        driver: Option<&str>,
        mut counters: BTreeMap<String, u64>,
        kernel: &BTreeMap<String, u64>,
    ) -> BTreeMap<String, u64> {
        if let Some(counter) = driver.and_then(Driver::of).and_then(|row| row.remove_copies(&mut counters)) {
            let why = format!("{name}: ethtool, statistics: {}", second(&counter));
            self.tree.note(&format!("{}/ethtool/statistics", self.directory), why);
        }
        let whole = counters.clone();
        counters.retain(|_, value| ranges::COUNT.has(*value));
        let meaning =
            |counters| (statistics::losses(driver, counters, kernel), statistics::queues(driver, counters));
        let mut removed = whole.iter().filter(|(counter, _)| !counters.contains_key(*counter));
        let of_events = removed.clone().find(|(counter, _)| ranges::counts_events(counter));
        let counted = || removed.next().filter(|_| meaning(&whole) != meaning(&counters));
        if let Some((counter, value)) = of_events.or_else(counted) {
            let why = format!("{name}: ethtool, statistics: {counter}: {}", ranges::COUNT.refusal(*value));
            self.tree.note(&format!("{}/ethtool/statistics", self.directory), why);
        }
        counters
    }

    /// Notes that a NIC shows no loss counter of its driver, no counter of packets lost at the ring, or one
    /// loss counter less than its driver. The table may be empty or contain only other counters.
    fn require_loss_counters(&self, nic: &Interface) {
        let Some((driver, row)) =
            nic.driver.as_deref().and_then(|driver| Some((driver, Driver::of(driver)?)))
        else {
            return;
        };
        let lacks = if row.lacks_losses(&nic.driver_statistics) {
            format!("none of the loss counters of {driver}")
        } else if let Some(counter) = row.lacks_ring_losses(&nic.driver_statistics) {
            format!("no counter of packets lost at the ring, such as {counter}")
        } else if let Some((counter, _)) = row.lost_counters(driver, &nic.driver_statistics).first() {
            format!("no {counter}, which {driver} reports with other recorded counters")
        } else {
            return;
        };
        let why = format!("{}: ethtool, statistics has {lacks}", nic.name);
        self.tree.note(&format!("{}/ethtool/statistics", self.directory), why);
    }

    fn require_statistics(&self, found: &BTreeMap<String, u64>, counters: &[&str]) {
        let directory = format!("{}/statistics", self.directory);
        if found.is_empty() {
            self.tree.note(&directory, format!("{directory} holds no counters"));
        } else {
            counters.iter().for_each(|counter| self.tree.require(&format!("{directory}/{counter}")));
        }
    }

    fn receive_queues(&self) -> Vec<ReceiveQueue> {
        let queue = |number: u32| {
            let file = |name: &str| format!("queues/rx-{number}/{name}");
            ReceiveQueue {
                rps: self.processors(&file("rps_cpus")),
                rps_flow_count: self.parse(&file("rps_flow_cnt"), |count| count.parse().ok()).unwrap_or(0),
            }
        };
        self.queues("rx-").into_iter().map(queue).collect()
    }

    fn transmit_queues(&self) -> Vec<TransmitQueue> {
        let queue = |number: u32| {
            let file = |name: &str| format!("queues/tx-{number}/{name}");
            let figure = |name: &str| self.number(&file(name));
            TransmitQueue {
                has_xps: self.text(&file("xps_cpus")).is_some(),
                xps_processors: self.processors(&file("xps_cpus")),
                xps_receive_queues: self.parse(&file("xps_rxqs"), mask_members).unwrap_or_default(),
                bql_limit_max: figure("byte_queue_limits/limit_max"),
                bql_limit: figure("byte_queue_limits/limit"),
                timeouts: figure("tx_timeout").unwrap_or(0),
                max_rate_mbps: figure("tx_maxrate").unwrap_or(0),
            }
        };
        self.queues("tx-").into_iter().map(queue).collect()
    }

    fn queues(&self, prefix: &str) -> Vec<u32> {
        let directory = format!("{}/queues", self.directory);
        self.tree.numbers(&directory, prefix)
    }
}

/// `bond_mode_tbl` and `bond_xmit_hashtype_tbl` (drivers/net/bonding/bond_options.c).
const BOND_MODES: [&str; 7] =
    ["balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"];
const HASH_POLICIES: [&str; 6] = ["layer2", "layer3+4", "layer2+3", "encap2+3", "encap3+4", "vlan+srcmac"];

/// Returns the name from a text with one of these names and its number, such as `802.3ad 4`.
fn named(text: &str, names: &[&str]) -> Option<String> {
    let (name, number) = text.split_once(' ')?;
    (names.contains(&name) && number.parse::<u8>().is_ok()).then(|| name.to_owned())
}

/// Returns a text if it is a state of RFC 2863, in the spelling of `operstate_show` (net/core/net-sysfs.c).
fn operational_state(text: &str) -> Option<String> {
    const STATES: [&str; 7] = ["unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up"];
    STATES.contains(&text).then(|| text.to_owned())
}

/// Returns whether a bus address is one of PCI, such as `0000:81:00.0`, and not `usb-0000:00:14.0-1`.
fn is_pci_address(address: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts: Vec<&str> = address.split([':', '.']).collect();
    parts.len() == 4 && parts.into_iter().all(is_number)
}

/// Returns the translation mode of an IOMMU group (`iommu_group_show_type`, drivers/iommu/iommu.c).
fn iommu_type(text: &str) -> Option<String> {
    const TYPES: [&str; 7] = ["identity", "DMA", "DMA-FQ", "blocked", "unmanaged", "unknown", "auto"];
    TYPES.contains(&text).then(|| text.to_owned())
}

/// Returns the place of a path in a recording. A path below a link gets a place below [`nic_directory`],
/// which represents the parent device, so that `device/..` works.
pub(super) fn recorded_place(path: &str, links: &BTreeMap<String, String>) -> std::path::PathBuf {
    for (link, name) in links {
        if let Some(rest) = path.strip_prefix(link.as_str()).filter(|rest| rest.starts_with('/')) {
            return tree::normalised(&format!("{}/{name}{rest}", nic_directory(link)));
        }
    }
    tree::normalised(path)
}

/// Returns the directory that contains the target of a sysfs link in a recording.
pub(super) fn nic_directory(link: &str) -> String {
    let interface = link.trim_start_matches(CLASS).trim_start_matches('/').replace('/', "-");
    format!("/sys/devices/recorded/{interface}")
}
