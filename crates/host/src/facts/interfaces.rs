//! Interfaces: sysfs, the driver's answers, and what lies above and below.
//!
//! Sources: `Documentation/ABI/testing/sysfs-class-net`, `-net-queues`, `-net-statistics`, `sysfs-bus-pci`,
//! `sysfs-kernel-iommu_groups`.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::host::{
    BondFacts, Interface, InterfaceKind, PcieLink, QdiscFacts, ReceiveQueue, Rss, TransmitQueue,
};
use evenkeel_netlink::ethtool::EthtoolSocket;

use super::device::{DeviceAnswers, ask_device, feature_name};
use super::interrupts::Owner;
use super::tree::Tree;
use super::{pci, statistics, tree};
use crate::{HostError, mask_members};

const CLASS: &str = "/sys/class/net";
/// `ARPHRD_LOOPBACK`.
const TYPE_LOOPBACK: u64 = 772;

/// Names of the interfaces by number; those that do not tell one have numbers after all others.
pub(super) fn names(tree: &Tree) -> BTreeMap<u32, String> {
    let mut found = BTreeMap::new();
    let mut without = u32::MAX / 2;
    for name in tree.list(CLASS) {
        // bonding_masters is a file among them.
        if name == "bonding_masters"
            || !tree.exists(&format!("{CLASS}/{name}/mtu"))
                && !tree.exists(&format!("{CLASS}/{name}/statistics"))
        {
            continue;
        }
        let index =
            tree.read_number(&format!("{CLASS}/{name}/ifindex")).and_then(|index| u32::try_from(index).ok());
        let index = index.filter(|index| !found.contains_key(index)).unwrap_or_else(|| {
            without += 1;
            without
        });
        found.insert(index, name);
    }
    found
}

/// Every interface, and by what the interrupts of each are known.
pub(super) fn interfaces(
    tree: &Tree,
    names: &BTreeMap<u32, String>,
    mut qdiscs: BTreeMap<String, Vec<QdiscFacts>>,
    unknown: &mut Vec<String>,
) -> Result<(Vec<Interface>, Vec<Owner>), HostError> {
    let socket = if tree.is_live() { EthtoolSocket::open().ok() } else { None };
    let (mut interfaces, mut owners) = (Vec::new(), Vec::new());
    for (index, name) in names {
        let answers = match &socket {
            Some(socket) => {
                let mut answers = ask_device(socket, name);
                answers.max_read_request = pci::max_read_request(tree, name);
                tree.keep_answers(&format!("ethtool/{name}.json"), &answers);
                answers
            }
            None => tree.answers(&format!("ethtool/{name}.json"))?.unwrap_or_default(),
        };
        let known = index < &(u32::MAX / 2);
        let reader = Reader { tree, directory: format!("{CLASS}/{name}") };
        let (interface, owner) =
            reader.interface(name, known.then_some(*index), answers, qdiscs.remove(name).unwrap_or_default());
        if interface.kind == InterfaceKind::Device && !tree.is_live() && interface.driver.is_none() {
            unknown.push(format!("{name}: no driver is named, so neither rings nor channels are known"));
        }
        interfaces.push(interface);
        owners.push(owner);
    }
    interfaces.sort_by(|one, other| one.name.cmp(&other.name));
    Ok((interfaces, owners))
}

struct Reader<'a> {
    tree: &'a Tree,
    directory: String,
}

impl Reader<'_> {
    fn text(&self, file: &str) -> Option<String> {
        self.tree.read(&format!("{}/{file}", self.directory))
    }

    fn number(&self, file: &str) -> Option<u64> {
        self.text(file)?.parse().ok()
    }

    /// A file of the card: of its device, or of the one above (virtio devices sit on a PCI function).
    fn of_card(&self, file: &str) -> Option<String> {
        self.text(&format!("device/{file}")).or_else(|| self.text(&format!("device/../{file}")))
    }

    fn interface(
        &self,
        name: &str,
        index: Option<u32>,
        answers: DeviceAnswers,
        qdiscs: Vec<QdiscFacts>,
    ) -> (Interface, Owner) {
        let device = self.tree.link(&format!("{}/device", self.directory));
        let has_device = self.tree.exists(&format!("{}/device", self.directory));
        let uevent = self.text("device/uevent").unwrap_or_default();
        let told = |key: &str| {
            uevent.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).map(str::to_owned)
        };
        let driver = answers
            .driver
            .or_else(|| told("DRIVER"))
            .or_else(|| self.tree.link(&format!("{}/device/driver", self.directory)));
        let kind = self.kind(name, has_device, driver.as_deref());
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
            self.text("device/irq").and_then(|text| text.parse::<u32>().ok()).filter(|number| *number > 0),
        );
        let kernel = self.statistics();
        let carrier = self.text("carrier").as_deref() != Some("0");
        let state = self.text("operstate").unwrap_or_default();
        // Some devices have no state to show: then the carrier counts.
        let up = state == "up" || matches!(state.as_str(), "" | "unknown") && carrier;
        let interface = Interface {
            name: name.to_owned(),
            index,
            kind,
            up,
            firmware: answers.firmware.filter(|version| !version.is_empty()),
            node: self.of_card("numa_node").and_then(|text| text.parse().ok()),
            pcie: self.pcie(),
            max_read_request: answers.max_read_request,
            iommu: self.of_card("iommu_group/type"),
            speed_bps: self
                .number("speed")
                .filter(|speed| (1..u64::from(u32::MAX / 2)).contains(speed))
                .map(|speed| speed * 1_000_000),
            supported_bps: answers.supported_mbps.and_then(|speed| speed.checked_mul(1_000_000)),
            duplex: self.text("duplex").filter(|duplex| duplex == "half" || duplex == "full"),
            mtu: self.number("mtu").and_then(|mtu| u32::try_from(mtu).ok()).unwrap_or(1500),
            tx_queue_len: self.number("tx_queue_len").and_then(|length| u32::try_from(length).ok()),
            carrier_changes: self.number("carrier_changes"),
            threaded_napi: self.number("threaded") == Some(1),
            napi_defer_hard_irqs: self.number("napi_defer_hard_irqs"),
            gro_flush_timeout_ns: self.number("gro_flush_timeout"),
            packet_sizes: None,
            channels: answers.channels,
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
            queue_counters: statistics::queues(&answers.statistics),
            statistics: kernel,
            driver_statistics: answers.statistics,
            lower: self
                .tree
                .list_names(&self.directory, "lower_")
                .iter()
                .filter_map(|name| name.strip_prefix("lower_").map(str::to_owned))
                .collect(),
            bond: self.text("bonding/mode").map(|mode| BondFacts {
                // "802.3ad 4": name and number.
                mode: mode.split_ascii_whitespace().next().unwrap_or_default().to_owned(),
                hash_policy: self
                    .text("bonding/xmit_hash_policy")
                    .and_then(|policy| Some(policy.split_ascii_whitespace().next()?.to_owned()))
                    .unwrap_or_default(),
            }),
            driver,
            bus: bus.clone(),
        };
        (interface, Owner { name: name.to_owned(), bus, device, numbers })
    }

    fn kind(&self, name: &str, has_device: bool, driver: Option<&str>) -> InterfaceKind {
        let has = |part: &str| self.tree.exists(&format!("{}/{part}", self.directory));
        if name == "lo" || self.number("type") == Some(TYPE_LOOPBACK) {
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

    /// The link of the card itself; that of a bridge above it is not its own.
    fn pcie(&self) -> Option<PcieLink> {
        let speed = |file: &str| -> Option<f64> {
            // "8.0 GT/s PCIe", "2.5 GT/s", "Unknown".
            let text = self.text(&format!("device/{file}"))?;
            text.split_ascii_whitespace()
                .next()?
                .parse()
                .ok()
                .filter(|speed: &f64| speed.is_finite() && *speed > 0.0)
        };
        let width = |file: &str| -> Option<u32> {
            // 255 is what a card without a link shows.
            self.text(&format!("device/{file}"))?.parse().ok().filter(|width| (1..=32).contains(width))
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

    fn receive_queues(&self) -> Vec<ReceiveQueue> {
        let queue = |number: u32| {
            let file = |name: &str| self.text(&format!("queues/rx-{number}/{name}"));
            ReceiveQueue {
                rps: file("rps_cpus").and_then(|mask| mask_members(&mask)).unwrap_or_default(),
                rps_flow_count: file("rps_flow_cnt").and_then(|count| count.parse().ok()).unwrap_or(0),
            }
        };
        self.tree.numbers(&format!("{}/queues", self.directory), "rx-").into_iter().map(queue).collect()
    }

    fn transmit_queues(&self) -> Vec<TransmitQueue> {
        let queue = |number: u32| {
            let file = |name: &str| self.text(&format!("queues/tx-{number}/{name}"));
            let mask = |name: &str| file(name).and_then(|mask| mask_members(&mask)).unwrap_or_default();
            let figure = |name: &str| file(name).and_then(|figure| figure.parse().ok());
            TransmitQueue {
                has_xps: file("xps_cpus").is_some(),
                xps_processors: mask("xps_cpus"),
                xps_receive_queues: mask("xps_rxqs"),
                bql_limit_max: figure("byte_queue_limits/limit_max"),
                bql_limit: figure("byte_queue_limits/limit"),
                timeouts: figure("tx_timeout").unwrap_or(0),
                max_rate_mbps: figure("tx_maxrate").unwrap_or(0),
            }
        };
        self.tree.numbers(&format!("{}/queues", self.directory), "tx-").into_iter().map(queue).collect()
    }
}

/// The directory of a card's files in a recording, beside which the one above it is: so that `device/..` is there again.
pub(super) fn recorded_place(path: &str, links: &BTreeMap<String, String>) -> std::path::PathBuf {
    for (link, name) in links {
        if let Some(rest) = path.strip_prefix(link.as_str()).filter(|rest| rest.starts_with('/')) {
            return tree::normalised(&format!("{}/{name}{rest}", card_directory(link)));
        }
    }
    tree::normalised(path)
}

/// Where a recording keeps what a link of sysfs points to.
pub(super) fn card_directory(link: &str) -> String {
    let interface = link.trim_start_matches(CLASS).trim_start_matches('/').replace('/', "-");
    format!("/sys/devices/recorded/{interface}")
}
