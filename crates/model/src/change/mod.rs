//! Changes to a host as data: a [`Knob`], its new [`Value`], and the equivalent shell line.
//!
//! `check` proposes changes, `apply` makes them, and [`mod@shell`] formats them as shell lines, all with the
//! same data. This module does not access the kernel.

mod filter;
mod permitted;
mod qdisc;
mod rule;
mod shell;

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::shell::Line;

pub use filter::{Direction, FILTER_HANDLE, FilterPlace, clsact};
pub use qdisc::{ClassHandle, Handle, QdiscSnapshot, naming_kinds, root_qdisc};
pub use rule::{RULE_LENGTH, Rule, RuleBytes, RuleMatch};
pub use shell::{shell, shell_lines, sysctl_name};

/// A setting of the host or of an interface. The knob does not name the interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Knob {
    /// A sysctl, by its path below `/proc/sys`, such as `net/ipv4/tcp_rmem` ([`Value::Text`]; spaces separate
    /// several numbers).
    Sysctl(String),
    /// `gso_max_size` and `gso_ipv4_max_size` ([`Value::Sizes`]). Setting `gso_max_size` may also
    /// change `gso_ipv4_max_size`.
    GsoSizes,
    /// `gro_max_size` and `gro_ipv4_max_size` ([`Value::Sizes`]).
    GroSizes,
    /// A file of the interface, by its path below `/sys/class/net/INTERFACE`, such as
    /// `queues/tx-0/xps_cpus` or `queues/tx-0/tx_maxrate` ([`Value::Text`]).
    InterfaceFile(String),
    /// The `quantum` of an HTB class ([`Value::Bytes`]).
    HtbQuantum(ClassHandle),
    /// The weight of a transmit queue, by its number, in the kernel's net-shaper interface
    /// (`Documentation/netlink/specs/net_shaper.yaml`; [`Value::Weight`]).
    QueueWeight(u32),
    /// The root qdisc with its descendants ([`Value::Qdiscs`], made with [`root_qdisc`]).
    RootQdisc,
    /// The state of the clsact qdisc, one of the texts in [`clsact`] ([`Value::Text`]). The qdisc is
    /// removed only if it has no filters of other programs.
    Clsact,
    /// The BPF program of an Evenkeel filter below clsact ([`Value::Program`]). A write can only remove
    /// the filter.
    Filter(FilterPlace),
    /// The n-tuple rule at a location (`ethtool -n`; [`Value::Rule`]).
    NtupleRule(u32),
    /// The indirection table of receive-side scaling (`ethtool -x`; [`Value::Table`]).
    RssTable,
    /// The indirection table of an RSS context, by the context's number (`ethtool -x IFACE context N`;
    /// [`Value::Context`]). Rules that name the context use this table.
    RssContext(u32),
    /// CPUs for an interrupt, by its number: `/proc/irq/N/smp_affinity_list` ([`Value::Text`], a list
    /// such as `0-3,8`).
    InterruptAffinity(u32),
    /// Number of descriptors in a ring of this type (`ethtool -g`; [`Value::Number`]).
    Ring(Ring),
    /// Number of channels of this type (`ethtool -l`; [`Value::Number`]).
    Channels(Channels),
    /// A parameter of interrupt coalescing (`ethtool -c`): a [`Value::Number`] of microseconds or packets, or
    /// a [`Value::Switch`] for the adaptive modes.
    Coalescing(Coalescing),
    /// An offload feature by the kernel's name, such as `rx-gro` or `tx-tcp-segmentation`
    /// (`net/ethtool/common.c`; [`Value::Switch`]).
    Feature(String),
    /// The header fields that RSS hashes for a flow type such as `udp4`, in ethtool's letters, such as `sdfn`
    /// (`ethtool -n IFACE rx-flow-hash`; [`Value::Text`]).
    FlowHash(String),
    /// MTU: the largest packet without its link-layer header ([`Value::Bytes`]).
    Mtu,
    /// Default length of a FIFO qdisc on the interface, `txqueuelen` ([`Value::Number`]).
    TransmitQueueLength,
    /// A file of the CPUs by its path below `/sys/devices/system/cpu`, such as
    /// `cpufreq/policy0/scaling_governor` or `cpu0/cpuidle/state3/disable` ([`Value::Text`]).
    ProcessorFile(String),
}

/// Rings of descriptors between driver and device (`struct ethtool_ringparam`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ring {
    Rx,
    /// For small received packets, if the device separates them.
    RxMini,
    /// For received jumbo frames.
    RxJumbo,
    Tx,
}

impl Ring {
    /// Returns ethtool's name for the ring.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Rx => "rx",
            Self::RxMini => "rx-mini",
            Self::RxJumbo => "rx-jumbo",
            Self::Tx => "tx",
        }
    }
}

/// Types of channels. A channel is an interrupt with the queues that it serves (`struct ethtool_channels`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Channels {
    /// Receive queues only.
    Rx,
    /// Transmit queues only.
    Tx,
    /// Other events, such as link changes.
    Other,
    /// Receive and transmit queues.
    Combined,
}

impl Channels {
    /// Returns ethtool's name for the channels.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Rx => "rx",
            Self::Tx => "tx",
            Self::Other => "other",
            Self::Combined => "combined",
        }
    }
}

/// Parameters of interrupt coalescing (`struct ethtool_coalesce`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Coalescing {
    /// Delay of a receive interrupt, to wait for more packets, µs.
    RxUsecs,
    /// Number of received packets that end the delay.
    RxFrames,
    /// Delay of a transmit interrupt, to wait for more packets, µs.
    TxUsecs,
    /// Number of sent packets that end the delay.
    TxFrames,
    /// Whether the driver adapts the receive interrupts to the traffic.
    AdaptiveRx,
    AdaptiveTx,
}

impl Coalescing {
    pub const ALL: [Self; 6] =
        [Self::RxUsecs, Self::RxFrames, Self::TxUsecs, Self::TxFrames, Self::AdaptiveRx, Self::AdaptiveTx];

    /// Returns whether the parameter is a boolean and not a number.
    #[must_use]
    pub fn is_switch(self) -> bool {
        matches!(self, Self::AdaptiveRx | Self::AdaptiveTx)
    }

    /// Returns ethtool's name for the parameter.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::RxUsecs => "rx-usecs",
            Self::RxFrames => "rx-frames",
            Self::TxUsecs => "tx-usecs",
            Self::TxFrames => "tx-frames",
            Self::AdaptiveRx => "adaptive-rx",
            Self::AdaptiveTx => "adaptive-tx",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Value {
    /// Contents of a file without surrounding white space, or the text of another setting.
    Text(String),
    Bytes(u32),
    /// A number in the knob's unit.
    Number(u32),
    Switch(bool),
    /// The weight in a queue's shaper: 0 if the shaper has no weight, `None` if the queue has no
    /// shaper.
    Weight(Option<u32>),
    /// A pair of sizes in bytes. On kernels before 6.3 the two sizes are equal.
    Sizes {
        /// `gso_max_size` or `gro_max_size`.
        all: u32,
        /// `gso_ipv4_max_size` or `gro_ipv4_max_size`.
        ipv4: u32,
    },
    /// The root qdisc first, then its descendants.
    Qdiscs(Vec<QdiscSnapshot>),
    /// The id of a BPF program, unique since boot; `None` without a program.
    Program(Option<u32>),
    Rule(Option<RuleBytes>),
    /// The queue of each entry in an indirection table.
    Table(Vec<u32>),
    /// The queue of each entry in an RSS context's table; `None` if the context does not exist.
    Context(Option<Vec<u32>>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    pub knob: Knob,
    pub to: Value,
}

impl Change {
    #[must_use]
    pub fn new(knob: Knob, to: Value) -> Self {
        Self { knob, to }
    }

    #[must_use]
    pub fn shell(&self, interface: &str) -> Line {
        shell(interface, &self.knob, &self.to)
    }
}

impl Knob {
    /// Returns whether the setting belongs to an interface and not to the host.
    #[must_use]
    pub fn is_of_interface(&self) -> bool {
        !matches!(self, Self::Sysctl(_) | Self::InterruptAffinity(_) | Self::ProcessorFile(_))
    }

    /// Returns the settings in files of a receive queue. The files appear and disappear with the queue when
    /// the number of channels changes.
    #[must_use]
    pub fn of_receive_queue(queue: usize) -> Vec<Self> {
        let file = |name: &str| Self::InterfaceFile(format!("queues/rx-{queue}/{name}"));
        ["rps_cpus", "rps_flow_cnt"].map(file).into()
    }

    /// Returns the settings in files of a transmit queue. The files appear and disappear with the queue when
    /// the number of channels changes.
    #[must_use]
    pub fn of_transmit_queue(queue: usize) -> Vec<Self> {
        let file = |name: &str| Self::InterfaceFile(format!("queues/tx-{queue}/{name}"));
        ["xps_cpus", "xps_rxqs", "tx_maxrate", "byte_queue_limits/limit_max"].map(file).into()
    }

    /// Returns whether the setting is the RSS table or a file of a queue. A change of the number of channels
    /// can reset these settings.
    #[must_use]
    pub fn is_of_queues(&self) -> bool {
        match self {
            Self::RssTable => true,
            Self::InterfaceFile(file) => file.starts_with("queues/"),
            _ => false,
        }
    }

    /// Returns whether two values of the setting are equivalent, in any format that the kernel uses.
    #[must_use]
    pub fn same(&self, one: &Value, other: &Value) -> bool {
        match (one, other) {
            (Value::Text(one), Value::Text(other)) => self.normal_form(one) == self.normal_form(other),
            // A shaper without a weight is equivalent to no shaper.
            (Value::Weight(one), Value::Weight(other)) => one.unwrap_or(0) == other.unwrap_or(0),
            // Two default qdiscs are equivalent, because the kernel sets them and not a program. The number
            // of queues and `net.core.default_qdisc` determine the kind and the leaves of the default qdisc,
            // and the MTU determines its options. An empty tree also counts as the default: while the
            // interface is down, it may have no qdisc, and the kernel installs the default qdisc when the
            // interface is set up (`dev_activate`, net/sched/sch_generic.c).
            (Value::Qdiscs(one), Value::Qdiscs(other)) => {
                let is_default = |tree: &[QdiscSnapshot]| tree.first().is_none_or(QdiscSnapshot::is_default);
                one == other || is_default(one) && is_default(other)
            }
            _ => one == other,
        }
    }

    /// Returns the text in a form that is the same for equal values:
    ///
    /// - The kernel writes masks with as many words as the machine needs.
    /// - It writes lists with or without ranges, and separates the numbers of a sysctl by tabs.
    /// - The order of a hash's fields is irrelevant.
    fn normal_form(&self, text: &str) -> String {
        if self.is_mask() {
            let digits: String = text.trim().chars().filter(|digit| *digit != ',').collect();
            return digits.trim_start_matches('0').to_ascii_lowercase();
        }
        match self {
            Self::InterruptAffinity(_) => {
                if let Some(list) = processor_list(text) {
                    return format!("{list:?}");
                }
            }
            Self::FlowHash(_) => return text.chars().collect::<BTreeSet<_>>().into_iter().collect(),
            _ => {}
        }
        text.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn is_mask(&self) -> bool {
        const MASKS: [&str; 3] = ["/xps_cpus", "/xps_rxqs", "/rps_cpus"];
        matches!(self, Self::InterfaceFile(file) if MASKS.iter().any(|name| file.ends_with(name)))
    }

    /// Returns the name for files that list settings, without the interface: `ring rx` or `sysctl
    /// net.ipv4.tcp_rmem`.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Sysctl(path) => format!("sysctl {}", sysctl_name(path)),
            Self::GsoSizes => "gso-max-size".to_owned(),
            Self::GroSizes => "gro-max-size".to_owned(),
            Self::InterfaceFile(file) => format!("file {file}"),
            Self::HtbQuantum(class) => format!("htb-quantum {class}"),
            Self::QueueWeight(queue) => format!("queue-weight {queue}"),
            Self::RootQdisc => "qdisc".to_owned(),
            Self::Clsact => "clsact".to_owned(),
            Self::Filter(FilterPlace { direction, preference }) => {
                format!("filter {} {preference}", direction.word())
            }
            Self::NtupleRule(location) => format!("ntuple {location}"),
            Self::RssTable => "rss".to_owned(),
            Self::RssContext(context) => format!("rss-context {context}"),
            Self::InterruptAffinity(interrupt) => format!("irq {interrupt}"),
            Self::Ring(ring) => format!("ring {}", ring.word()),
            Self::Channels(channels) => format!("channels {}", channels.word()),
            Self::Coalescing(parameter) => format!("coalescing {}", parameter.word()),
            Self::Feature(name) => format!("feature {name}"),
            Self::FlowHash(flows) => format!("hash {flows}"),
            Self::Mtu => "mtu".to_owned(),
            Self::TransmitQueueLength => "txqueuelen".to_owned(),
            Self::ProcessorFile(file) => format!("cpu {file}"),
        }
    }

    /// Returns the name for messages, with the interface: `gso_max_size of eth0`.
    #[must_use]
    pub fn on<'a>(&'a self, interface: &'a str) -> impl fmt::Display + 'a {
        NamedKnob { knob: self, interface }
    }
}

/// Parses a list of CPUs such as `0-3,8` (cpuset(7)); `None` if the list is invalid.
#[must_use]
pub fn processor_list(text: &str) -> Option<BTreeSet<u32>> {
    /// Limit of a CPU number; limits the memory for a list. No kernel supports this number of CPUs.
    const MOST: u32 = 1 << 16;
    let mut found = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last >= MOST || first > last {
            return None;
        }
        found.extend(first..=last);
    }
    Some(found)
}

/// Formats a list of CPUs; the inverse of [`processor_list`].
#[must_use]
pub fn processor_list_text(processors: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &processor in processors {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(processor) => *last = processor,
            _ => ranges.push((processor, processor)),
        }
    }
    let parts = ranges.iter().map(
        |(first, last)| {
            if first == last { first.to_string() } else { format!("{first}-{last}") }
        },
    );
    parts.collect::<Vec<_>>().join(",")
}

struct NamedKnob<'a> {
    knob: &'a Knob,
    interface: &'a str,
}

impl fmt::Display for NamedKnob<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let interface = self.interface;
        match self.knob {
            Knob::Sysctl(name) => write!(formatter, "the sysctl {}", sysctl_name(name)),
            Knob::GsoSizes => write!(formatter, "gso_max_size of {interface}"),
            Knob::GroSizes => write!(formatter, "gro_max_size of {interface}"),
            Knob::InterfaceFile(file) => write!(formatter, "/sys/class/net/{interface}/{file}"),
            Knob::HtbQuantum(class) => {
                write!(formatter, "the quantum of the HTB class {class} of {interface}")
            }
            Knob::QueueWeight(queue) => {
                write!(formatter, "the shaper weight of queue {queue} of {interface}")
            }
            Knob::RootQdisc => write!(formatter, "the root qdisc of {interface}"),
            Knob::Clsact => write!(formatter, "the clsact qdisc of {interface}"),
            Knob::Filter(place) => write!(formatter, "the filter of {interface} at {place}"),
            Knob::NtupleRule(location) => {
                write!(formatter, "the n-tuple rule at location {location} of {interface}")
            }
            Knob::RssTable => write!(formatter, "the RSS table of {interface}"),
            Knob::RssContext(context) => write!(formatter, "the RSS context {context} of {interface}"),
            Knob::InterruptAffinity(interrupt) => write!(formatter, "the affinity of interrupt {interrupt}"),
            Knob::Ring(ring) => write!(formatter, "the {} ring of {interface}", ring.word()),
            Knob::Channels(channels) => {
                write!(formatter, "the number of {} channels of {interface}", channels.word())
            }
            Knob::Coalescing(parameter) => write!(formatter, "{} of {interface}", parameter.word()),
            Knob::Feature(name) => write!(formatter, "the feature {name} of {interface}"),
            Knob::FlowHash(flows) => write!(formatter, "the hash fields for {flows} of {interface}"),
            Knob::Mtu => write!(formatter, "the MTU of {interface}"),
            Knob::TransmitQueueLength => write!(formatter, "txqueuelen of {interface}"),
            Knob::ProcessorFile(file) => write!(formatter, "/sys/devices/system/cpu/{file}"),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(formatter, "'{text}'"),
            Self::Bytes(bytes) => write!(formatter, "{bytes} bytes"),
            Self::Number(number) => write!(formatter, "{number}"),
            Self::Switch(on) => formatter.write_str(if *on { "on" } else { "off" }),
            Self::Weight(Some(weight)) => write!(formatter, "{weight}"),
            Self::Weight(None) => formatter.write_str("none"),
            Self::Sizes { all, ipv4 } => write!(formatter, "{all} bytes (IPv4: {ipv4})"),
            Self::Qdiscs(qdiscs) => match qdiscs.first() {
                Some(root) if root.is_default() => write!(formatter, "{} (the kernel's default)", root.kind),
                Some(root) => write!(formatter, "{} {:x}:", root.kind, root.handle.0.major),
                None => formatter.write_str("none"),
            },
            Self::Program(Some(id)) => write!(formatter, "the BPF program {id}"),
            Self::Rule(Some(rule)) => rule.fmt(formatter),
            Self::Program(None) | Self::Rule(None) | Self::Context(None) => formatter.write_str("none"),
            Self::Table(queues) | Self::Context(Some(queues)) => {
                let queues: Vec<String> = queues.iter().map(ToString::to_string).collect();
                write!(formatter, "[{}]", queues.join(" "))
            }
        }
    }
}

#[cfg(test)]
mod tests;
