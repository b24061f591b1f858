//! Configurations of qdiscs, as data.
//!
//! A [`QdiscSetup`] is a configuration as written in a file: qdiscs, classes and filters with names, rates as
//! shares of the link's rate, and steps that repeat for each flow. [`QdiscSetup::resolve`] converts it to a
//! [`QdiscTree`] for a link and its flows: concrete steps in order. The kernel gets the tree over netlink;
//! the simulator builds the tree from its own qdiscs.
//!
//! The destination port identifies flows, so filters can match the flows in the kernel and in the simulator:
//! bulk flow *i* uses [`BULK_PORT`] + *i*, probe *j* uses [`PROBE_PORT`] + *j*.

use crate::change::Handle;
use crate::units::{BitRate, ByteSize, Nanoseconds};

/// Destination port of the first bulk flow. Each further flow adds 1.
pub const BULK_PORT: u16 = 5201;
/// Destination port of the first latency probe. Each further probe adds 1.
pub const PROBE_PORT: u16 = 11_111;

mod catalogue;
pub mod kinds;
mod line;
mod resolve;
mod setup;
mod show;
mod step;
mod structure;
mod template;
mod values;

pub use catalogue::Catalogue;
pub use line::{is_line, line_burst};
pub use setup::{Claim, QdiscSetup, ResolveError};

/// The device, link and flows for which a tree is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// Rate of the link; a share is a fraction of this rate.
    pub rate: BitRate,
    pub bulk_flows: u32,
    pub probes: u32,
    pub queues: u32,
    /// Largest TCP segment, with headers.
    pub largest_segment: ByteSize,
    pub mtu: ByteSize,
}

/// Qdiscs, classes and filters of one device, in the order of creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QdiscTree {
    pub steps: Vec<Step>,
}

impl QdiscTree {
    /// Returns the root of the whole tree, which may be a shaper.
    #[must_use]
    pub fn root(&self) -> Option<&Node> {
        self.qdiscs().find(|node| node.parent == Handle::ROOT)
    }

    /// Returns the root of the studied tree, even below a shaper.
    #[must_use]
    pub fn studied_root(&self) -> Option<&Node> {
        self.qdiscs().find(|node| !is_line(node.handle))
    }

    /// Returns the qdiscs, in the order of creation.
    pub fn qdiscs(&self) -> impl Iterator<Item = &Node> {
        self.steps.iter().filter_map(|step| match step {
            Step::Qdisc(node) => Some(node),
            Step::Class(_) | Step::Filter { .. } => None,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Qdisc(Node),
    Class(Node),
    Filter { parent: Handle, filter: Filter },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The parent; [`Handle::ROOT`] is the device.
    pub parent: Handle,
    pub handle: Handle,
    /// The kernel's name for the kind, such as `htb`.
    pub kind: String,
    /// Explicit settings. All other options have the kernel's defaults.
    pub settings: Vec<Setting>,
}

impl Node {
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&SettingValue> {
        self.settings.iter().find(|setting| setting.name == name).map(|setting| &setting.value)
    }
}

/// An option of a qdisc or class, by `tc`'s name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub name: String,
    pub value: SettingValue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingValue {
    /// A number, for example of packets or bands.
    Count(u64),
    Rate(BitRate),
    Size(ByteSize),
    Time(Nanoseconds),
    Class(Handle),
    /// Several numbers, or sizes in bytes, such as a map from priorities to bands.
    List(Vec<u64>),
    Curve(Curve),
    /// A flag that is set.
    Flag,
    /// An attribute by its number; the name of such a setting is `attribute`.
    Attribute(Attribute),
}

/// A service curve of two pieces (`struct tc_service_curve`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Curve {
    /// Slope of the first piece; unused if [`Self::first`] is 0.
    pub m1: BitRate,
    /// Length of the first piece.
    pub first: Nanoseconds,
    /// Slope of the second piece.
    pub m2: BitRate,
}

/// A netlink attribute inside `TCA_OPTIONS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// The attribute's type, which is its number in the header.
    pub number: u16,
    pub value: AttributeValue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    Flag,
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    /// Text that ends with a zero byte.
    Text(String),
    Bytes(Vec<u8>),
}

/// Assigns flows to classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Sends each flow to a class: flow *i* goes to `first` + (*i* modulo `classes`). Bulk flows are numbered
    /// first: probe *j* is flow `bulk_flows` + *j*.
    PerFlow {
        /// Class of bulk flow 0.
        first: Handle,
        bulk_flows: u32,
        probes: u32,
        /// Number of classes. If each flow has a separate class, it is at least the number of flows.
        classes: u32,
        /// Class of all other packets, such as ARP; `None` for the qdisc's default.
        rest: Option<Handle>,
    },
    /// Sends probes to one class and all other packets to another class.
    ByRole { probes: Handle, bulk: Handle },
    /// Sends the packets for one destination port to a class.
    Port { classifier: Classifier, port: u16, class: Handle },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Classifier {
    /// `cls_u32`.
    U32,
    /// `cls_flower`.
    Flower,
    /// `cls_bpf` with classic BPF.
    Bpf,
}

/// Rules that match no packet, placed before a qdisc's own filters to measure the cost of filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilterRules {
    pub classifier: Classifier,
    pub rules: u32,
}

#[cfg(test)]
mod tests;
