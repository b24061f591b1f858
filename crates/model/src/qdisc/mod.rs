//! Configurations of qdiscs, as data.
//!
//! A [`QdiscSetup`] is a written configuration: qdiscs, classes and filters with names, rates as shares of the
//! line, and steps per flow. [`QdiscSetup::resolve`] turns it into a [`QdiscTree`] for a line and its flows:
//! concrete steps in order. The kernel gets the tree over netlink; the simulator builds it from its own qdiscs.
//!
//! The destination port identifies flows: bulk flow *i* uses [`BULK_PORT`] + *i*, probe *j* [`PROBE_PORT`] +
//! *j*. So filters can find them in any world.

use crate::change::Handle;
use crate::units::{BitRate, ByteSize, Nanoseconds};

/// Destination port of the first bulk flow; each further one adds 1.
pub const BULK_PORT: u16 = 5201;
/// Destination port of the first latency probe; each further one adds 1.
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

/// The environment of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// Rate of the line, the base of shares.
    pub rate: BitRate,
    /// Bulk flows.
    pub bulk_flows: u32,
    /// Latency probes.
    pub probes: u32,
    /// Transmit queues of the device.
    pub queues: u32,
    /// Largest segment of TCP, with headers.
    pub largest_segment: ByteSize,
    /// Layer-3 MTU.
    pub mtu: ByteSize,
}

/// Qdiscs, classes and filters of one device, in the order of creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QdiscTree {
    /// The steps.
    pub steps: Vec<Step>,
}

impl QdiscTree {
    /// The root; with a line, the line.
    #[must_use]
    pub fn root(&self) -> Option<&Node> {
        self.qdiscs().find(|node| node.parent == Handle::ROOT)
    }

    /// The root of the studied tree, even below a line.
    #[must_use]
    pub fn studied_root(&self) -> Option<&Node> {
        self.qdiscs().find(|node| !is_line(node.handle))
    }

    /// The qdiscs, in the order of creation.
    pub fn qdiscs(&self) -> impl Iterator<Item = &Node> {
        self.steps.iter().filter_map(|step| match step {
            Step::Qdisc(node) => Some(node),
            Step::Class(_) | Step::Filter { .. } => None,
        })
    }
}

/// A step of creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A queueing discipline.
    Qdisc(Node),
    /// A class of a qdisc.
    Class(Node),
    /// Assigns flows to classes.
    Filter {
        /// Its qdisc.
        parent: Handle,
        /// The rule.
        filter: Filter,
    },
}

/// A qdisc or a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its parent; [`Handle::ROOT`] is the device.
    pub parent: Handle,
    /// Handle of the qdisc itself.
    pub handle: Handle,
    /// Its kind, as the kernel calls it: `htb`.
    pub kind: String,
    /// Explicit settings; everything else has the kernel's default.
    pub settings: Vec<Setting>,
}

impl Node {
    /// Returns the value of an option, if it is set.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&SettingValue> {
        self.settings.iter().find(|setting| setting.name == name).map(|setting| &setting.value)
    }
}

/// An option of a qdisc or class, by `tc`'s name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name: `quantum`.
    pub name: String,
    /// Its value.
    pub value: SettingValue,
}

/// The value of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingValue {
    /// A number, as of packets or bands.
    Count(u64),
    /// A rate.
    Rate(BitRate),
    /// A size.
    Size(ByteSize),
    /// A time.
    Time(Nanoseconds),
    /// A class.
    Class(Handle),
    /// Several numbers or sizes in bytes, as of a map from priorities to bands.
    List(Vec<u64>),
    /// A service curve.
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
    /// Slope of the second.
    pub m2: BitRate,
}

/// A netlink attribute inside `TCA_OPTIONS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// Its type.
    pub number: u16,
    /// Its payload.
    pub value: AttributeValue,
}

/// Payload of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    /// No payload.
    Flag,
    /// 8 bits.
    U8(u8),
    /// 16 bits.
    U16(u16),
    /// 32 bits.
    U32(u32),
    /// 64 bits.
    U64(u64),
    /// Text that ends with a zero byte.
    Text(String),
    /// Raw bytes.
    Bytes(Vec<u8>),
}

/// Assigns flows to classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// A class per flow: flow *i* goes to `first` + *i* modulo `classes`. Bulk flows come first: probe *j* is
    /// flow bulk flows + *j*.
    PerFlow {
        /// Class of bulk flow 0.
        first: Handle,
        /// Bulk flows.
        bulk_flows: u32,
        /// Probes.
        probes: u32,
        /// Number of classes; at least the number of flows if each has its own.
        classes: u32,
        /// Class of everything else, such as ARP; none: the qdisc's default.
        rest: Option<Handle>,
    },
    /// Probes to one class and everything else to another.
    ByRole {
        /// Class of the probes.
        probes: Handle,
        /// Class of everything else.
        bulk: Handle,
    },
    /// Flows to one destination port.
    Port {
        /// The classifier.
        classifier: Classifier,
        /// The port.
        port: u16,
        /// The class.
        class: Handle,
    },
}

/// A classifier of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Classifier {
    /// `cls_u32`.
    U32,
    /// `cls_flower`.
    Flower,
    /// `cls_bpf` with classic BPF.
    Bpf,
}

/// Rules without matches before a qdisc's own filters: they measure the cost of filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilterRules {
    /// The classifier.
    pub classifier: Classifier,
    /// How many rules.
    pub rules: u32,
}

#[cfg(test)]
mod tests;
