//! Interfaces: sysfs, the driver's answers, and the interfaces above and below.
//!
//! Sources: `Documentation/ABI/testing/sysfs-class-net`, `-net-queues`, `-net-statistics`, `sysfs-bus-pci`,
//! `sysfs-kernel-iommu_groups`.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::host::{
    BondFacts, Channels, Interface, InterfaceKind, PcieLink, QdiscFacts, ReceiveQueue, Rss, TransmitQueue,
};
use evenkeel_netlink::ethtool::EthtoolSocket;

use super::device::{DeviceAnswers, ask_device, feature_name, missing_parts};
use super::interrupts::Owner;
use super::processors::NODES;
use super::tree::Tree;
use super::{pci, qdiscs, statistics, tree};
use crate::{HostError, mask_members};

const CLASS: &str = "/sys/class/net";
/// `ARPHRD_LOOPBACK`.
const TYPE_LOOPBACK: u64 = 772;

/// Returns the names of the interfaces by number. Interfaces without a number come last. Unreadable
/// interfaces are included.
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
            // bonding_masters is a file in this directory, not an interface.
            Err(_) => continue,
            Ok(_) => tree.note(&directory, format!("{directory} has no mtu")),
        }
        let index =
            tree.read_number(&format!("{CLASS}/{name}/ifindex")).and_then(|index| u32::try_from(index).ok());
        let index = index.filter(|index| !found.contains_key(index)).unwrap_or_else(|| {
            without += 1;
            without
        });
        found.insert(index, name);
    }
    // Every Linux has a loopback interface: a tree without interfaces has no facts about a host.
    if found.is_empty() { Err(HostError::NoHost { path: tree.name(CLASS) }) } else { Ok(found) }
}

/// Returns every interface, and the names by which its interrupts are identified.
pub(super) fn interfaces(
    tree: &Tree,
    names: &BTreeMap<u32, String>,
    mut lines: BTreeMap<String, Vec<QdiscFacts>>,
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
        if let Some(text) = answers.rss.as_ref().and_then(|rss| rss.unreadable()) {
            let why = format!("evenkeel/{recorded}: rss: {}", tree::unreadable(text));
            tree.note(&format!("{CLASS}/{name}/ethtool/rss"), why);
        }
        answers.forget(missing.iter().map(|(part, _)| *part));
        for (part, error) in &answers.failed {
            tree.note(&format!("{CLASS}/{name}/ethtool/{part}"), format!("{name}: ethtool, {part}: {error}"));
        }
        let known = index < &(u32::MAX / 2);
        let reader = Reader { tree, directory: format!("{CLASS}/{name}") };
        let (interface, owner) =
            reader.interface(name, known.then_some(*index), answers, lines.remove(name).unwrap_or_default());
        if interface.kind == InterfaceKind::Device {
            let answers = format!("{}/ethtool", reader.directory);
            if !is_recorded {
                tree.note(&answers, format!("this tree has no evenkeel/{recorded}"));
            } else if !tree.is_live() {
                for (part, name) in &missing {
                    tree.note(&format!("{answers}/{part}"), format!("evenkeel/{recorded} has no '{name}'"));
                }
            } else if socket.is_none() {
                tree.note(&answers, format!("{name}: the kernel opens no socket for ethtool"));
            }
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
        let is_virtual = interface.kind == InterfaceKind::Virtual && !interface.statistics.is_empty();
        if is_virtual || interface.kind == InterfaceKind::Veth {
            let counters = ["rx_packets", "tx_packets", "rx_dropped", "tx_dropped"];
            reader.require_statistics(&interface.statistics, &counters);
        }
        if let Some(master) = tree.link(&format!("{}/master", reader.directory)) {
            masters.push((master, name.clone()));
        }
        // Linux with several nodes knows the node of each PCI function, if only as -1.
        let is_pci = interface.bus.as_deref().is_some_and(|bus| bus.contains(':'));
        let has_node = ["device", "device/.."]
            .iter()
            .any(|device| tree.exists(&format!("{}/{device}/numa_node", reader.directory)));
        if is_pci && !has_node && tree.exists(&format!("{NODES}/node1")) {
            tree.require(&format!("{}/device/numa_node", reader.directory));
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
    interfaces.sort_by(|one, other| one.name.cmp(&other.name));
    Ok((interfaces, owners))
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

struct Reader<'a> {
    tree: &'a Tree,
    directory: String,
}

impl Reader<'_> {
    fn text(&self, file: &str) -> Option<String> {
        self.tree.read(&format!("{}/{file}", self.directory))
    }

    fn parse<T>(&self, file: &str, parser: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        self.tree.parse(&format!("{}/{file}", self.directory), parser)
    }

    fn number(&self, file: &str) -> Option<u64> {
        self.parse(file, |text| text.parse().ok())
    }

    /// Reads a file that is needed to describe the interface.
    fn essential<T>(&self, file: &str, parser: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.text(file)?;
        let value = parser(&text);
        if value.is_none() {
            let why = format!("{}/{file}:1: {}", self.directory, tree::unreadable(&text));
            self.tree.note(&self.directory, why);
        }
        value
    }

    /// Returns the MTU, which every interface has, and which is never 0.
    fn mtu(&self) -> Option<u32> {
        if !self.tree.exists(&format!("{}/mtu", self.directory)) {
            self.tree.note(&self.directory, format!("{}/mtu is missing", self.directory));
        }
        self.essential("mtu", |text| text.parse().ok().filter(|mtu| *mtu > 0))
    }

    /// Reads a file of the NIC. It belongs to the interface's device, or to the parent device (virtio devices
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
        // If the device cannot be reached, this is the gap, and not each of its files.
        let is_known = !has_device || self.tree.exists(&format!("{}/device", self.directory));
        let is_uevent = |text: &str| {
            text.lines()
                .all(|line| line.split_once('=').is_some_and(|(key, _)| key.is_ascii()))
                .then(|| text.to_owned())
        };
        let uevent = self.essential("device/uevent", is_uevent).unwrap_or_default();
        let told = |key: &str| {
            uevent.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).map(str::to_owned)
        };
        let driver = answers
            .driver
            .or_else(|| told("DRIVER"))
            .or_else(|| self.tree.link(&format!("{}/device/driver", self.directory)));
        // The address on a bus that ethtool reports is that of the device.
        let is_on_bus = answers.bus.as_ref().is_some_and(|bus| bus.contains(':'));
        if is_on_bus && !has_device {
            self.tree.require(&format!("{}/device", self.directory));
        }
        let kind = self.kind(name, has_device || is_on_bus, driver.as_deref());
        let bus = answers.bus.or_else(|| told("PCI_SLOT_NAME"));
        let bus = bus.or_else(|| device.clone().filter(|name| name.contains(':')));
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
        let carrier = self.essential("carrier", |text| text.parse::<u8>().ok()) != Some(0);
        let state = self.essential("operstate", operational_state).unwrap_or_default();
        // Some devices report no state; for these, the carrier decides.
        let up = state == "up" || matches!(state.as_str(), "" | "unknown") && carrier;
        let interface = Interface {
            name: name.to_owned(),
            index,
            kind,
            up,
            firmware: answers.firmware.filter(|version| !version.is_empty()),
            // -1 means that the NIC belongs to no node.
            node: self
                .of_nic("numa_node", |text| text.parse::<i64>().ok())
                .and_then(|node| u32::try_from(node).ok()),
            pcie: self.pcie(),
            max_read_request: answers.max_read_request,
            iommu: self.of_nic("iommu_group/type", iommu_type),
            // -1, and on some kernels 4294967295, mean that the driver does not know the speed.
            speed_bps: self
                .parse("speed", |text| text.parse::<i64>().ok())
                .filter(|speed| (1..i64::from(u32::MAX / 2)).contains(speed))
                .and_then(|speed| u64::try_from(speed).ok())
                .map(|speed| speed * 1_000_000),
            supported_bps: answers.supported_mbps.and_then(|speed| speed.checked_mul(1_000_000)),
            duplex: self
                .parse("duplex", |text| matches!(text, "half" | "full" | "unknown").then(|| text.to_owned()))
                .filter(|duplex| duplex != "unknown"),
            mtu: self.mtu(),
            tx_queue_len: self.number("tx_queue_len").and_then(|length| u32::try_from(length).ok()),
            carrier_changes: self.number("carrier_changes"),
            threaded_napi: self.number("threaded") == Some(1),
            napi_defer_hard_irqs: self.number("napi_defer_hard_irqs"),
            gro_flush_timeout_ns: self.number("gro_flush_timeout"),
            packet_sizes: None,
            channels: self.channels(answers.channels),
            rings: answers.rings,
            coalescing: answers.coalescing,
            features: answers
                .features
                .into_iter()
                .map(|(name, feature)| (feature_name(&name).to_owned(), feature.0))
                .collect(),
            private_flags: answers.private_flags,
            pause: answers.pause,
            rss: answers.rss.as_ref().map(Rss::from),
            receive_queues: self.receive_queues(),
            transmit_queues: self.transmit_queues(),
            qdiscs,
            losses: statistics::losses(driver.as_deref(), &answers.statistics, &kernel),
            queue_counters: statistics::queues(driver.as_deref(), &answers.statistics),
            statistics: kernel,
            driver_statistics: answers.statistics,
            lower: self
                .tree
                .list_names(&self.directory, "lower_")
                .iter()
                .filter_map(|name| name.strip_prefix("lower_").map(str::to_owned))
                .collect(),
            bond: self.parse("bonding/mode", |text| named(text, &BOND_MODES)).map(|mode| BondFacts {
                mode,
                hash_policy: self
                    .parse("bonding/xmit_hash_policy", |text| named(text, &HASH_POLICIES))
                    .unwrap_or_default(),
            }),
            driver,
            bus: bus.clone(),
        };
        (interface, Owner { name: name.to_owned(), bus, device, numbers, is_known })
    }

    /// Returns whether the interface has a device, even if the link to it is broken. If this cannot be read,
    /// the interface is noted as unknown.
    fn has_device(&self) -> bool {
        let found = self.tree.has_entry(&format!("{}/device", self.directory));
        found.unwrap_or_else(|error| {
            self.tree.note_error(&self.directory, &error);
            false
        })
    }

    fn kind(&self, name: &str, has_device: bool, driver: Option<&str>) -> InterfaceKind {
        let has = |part: &str| self.tree.exists(&format!("{}/{part}", self.directory));
        if name == "lo" || self.essential("type", |text| text.parse().ok()) == Some(TYPE_LOOPBACK) {
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

    /// Returns the PCI Express link of the NIC itself, not of a bridge above it.
    fn pcie(&self) -> Option<PcieLink> {
        /// GT/s of a lane, by generation (`pcie_link_speed`, drivers/pci/probe.c).
        const LANE_SPEEDS: [f64; 7] = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0];
        const FILES: [&str; 4] =
            ["current_link_speed", "current_link_width", "max_link_speed", "max_link_width"];
        // A function of PCI Express has all of these files; another device has none.
        let path = |file: &str| format!("{}/device/{file}", self.directory);
        if FILES.iter().any(|file| self.tree.exists(&path(file))) {
            FILES.iter().for_each(|file| self.tree.require(&path(file)));
        }
        let speed = |file: &str| -> Option<f64> {
            // Possible values: "8.0 GT/s PCIe", "2.5 GT/s", "Unknown".
            let speed =
                self.parse(&format!("device/{file}"), |text| match text.split_ascii_whitespace().next()? {
                    "Unknown" => Some(0.0),
                    figure => figure.parse::<f64>().ok().filter(|speed| LANE_SPEEDS.contains(speed)),
                });
            speed.filter(|speed| speed.is_finite() && *speed > 0.0)
        };
        let width = |file: &str| -> Option<u32> {
            // A NIC without a link reports 255.
            let width = self.parse(&format!("device/{file}"), |text| text.parse().ok());
            width.filter(|width| (1..=32).contains(width))
        };
        Some(PcieLink {
            speed_gts: speed("current_link_speed")?,
            width: width("current_link_width")?,
            max_speed_gts: speed("max_link_speed"),
            max_width: width("max_link_width"),
        })
    }

    fn statistics(&self) -> BTreeMap<String, u64> {
        let directory = format!("{}/statistics", self.directory);
        let read = |name: String| {
            let value = self.tree.read_number(&format!("{directory}/{name}"))?;
            Some((name, value))
        };
        self.tree.list(&directory).into_iter().filter_map(read).collect()
    }

    /// Notes counters that an interface lacks.
    fn require_statistics(&self, found: &BTreeMap<String, u64>, counters: &[&str]) {
        let directory = format!("{}/statistics", self.directory);
        if found.is_empty() {
            self.tree.note(&directory, format!("{directory} holds no counters"));
        } else {
            counters.iter().for_each(|counter| self.tree.require(&format!("{directory}/{counter}")));
        }
    }

    /// Returns the channels that a driver reports, if the numbers are possible: the kernel numbers queues
    /// with 16 bits.
    fn channels(&self, answer: Option<Channels>) -> Option<Channels> {
        let channels = answer?;
        let most = u32::from(u16::MAX);
        let is_sound = channels.receive().max(channels.transmit()).max(channels.other) <= most;
        if !is_sound {
            let source = format!("{}/ethtool/channels", self.directory);
            self.tree.note(&source, format!("{source}: more than {most} queues"));
        }
        is_sound.then_some(channels)
    }

    fn receive_queues(&self) -> Vec<ReceiveQueue> {
        let queue = |number: u32| {
            let file = |name: &str| format!("queues/rx-{number}/{name}");
            ReceiveQueue {
                rps: self.parse(&file("rps_cpus"), mask_members).unwrap_or_default(),
                rps_flow_count: self.parse(&file("rps_flow_cnt"), |count| count.parse().ok()).unwrap_or(0),
            }
        };
        self.queues("rx-").into_iter().map(queue).collect()
    }

    fn transmit_queues(&self) -> Vec<TransmitQueue> {
        let queue = |number: u32| {
            let file = |name: &str| format!("queues/tx-{number}/{name}");
            let mask = |name: &str| self.parse(&file(name), mask_members).unwrap_or_default();
            let figure = |name: &str| self.number(&file(name));
            TransmitQueue {
                has_xps: self.text(&file("xps_cpus")).is_some(),
                xps_processors: mask("xps_cpus"),
                xps_receive_queues: mask("xps_rxqs"),
                bql_limit_max: figure("byte_queue_limits/limit_max"),
                bql_limit: figure("byte_queue_limits/limit"),
                timeouts: figure("tx_timeout").unwrap_or(0),
                max_rate_mbps: figure("tx_maxrate").unwrap_or(0),
            }
        };
        self.queues("tx-").into_iter().map(queue).collect()
    }

    /// Returns the numbers of the queues of a direction.
    fn queues(&self, prefix: &str) -> Vec<u32> {
        let directory = format!("{}/queues", self.directory);
        let numbers = self.tree.numbers(&directory, prefix);
        let queues: Vec<String> =
            numbers.iter().map(|number| format!("{directory}/{prefix}{number}")).collect();
        self.tree.note_unlike(&queues);
        numbers
    }
}

/// `bond_mode_tbl` and `xmit_hashtype_tbl` (drivers/net/bonding/bond_options.c).
const BOND_MODES: [&str; 7] =
    ["balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"];
const HASH_POLICIES: [&str; 6] = ["layer2", "layer3+4", "layer2+3", "encap2+3", "encap3+4", "vlan+srcmac"];

/// Returns the name from a text with one of these names and its number: `802.3ad 4`.
fn named(text: &str, names: &[&str]) -> Option<String> {
    let (name, number) = text.split_once(' ')?;
    (names.contains(&name) && number.parse::<u8>().is_ok()).then(|| name.to_owned())
}

/// Returns a text if it is a state of RFC 2863, in the spelling of `operstate_show` (net/core/net-sysfs.c).
fn operational_state(text: &str) -> Option<String> {
    const STATES: [&str; 7] = ["unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up"];
    STATES.contains(&text).then(|| text.to_owned())
}

/// Returns the translation mode of an IOMMU group (`iommu_group_show_type`, drivers/iommu/iommu.c).
fn iommu_type(text: &str) -> Option<String> {
    const TYPES: [&str; 7] = ["identity", "DMA", "DMA-FQ", "blocked", "unmanaged", "unknown", "auto"];
    TYPES.contains(&text).then(|| text.to_owned())
}

/// Returns the directory of a NIC's files in a recording. The parent directory stands for the parent device,
/// so that `device/..` works.
pub(super) fn recorded_place(path: &str, links: &BTreeMap<String, String>) -> std::path::PathBuf {
    for (link, name) in links {
        if let Some(rest) = path.strip_prefix(link.as_str()).filter(|rest| rest.starts_with('/')) {
            return tree::normalised(&format!("{}/{name}{rest}", nic_directory(link)));
        }
    }
    tree::normalised(path)
}

/// Returns the path in a recording of a sysfs link's target.
pub(super) fn nic_directory(link: &str) -> String {
    let interface = link.trim_start_matches(CLASS).trim_start_matches('/').replace('/', "-");
    format!("/sys/devices/recorded/{interface}")
}
