//! Configurations of queueing disciplines, as data.
//!
//! A [`QdiscSetup`] is what somebody has written down: qdiscs, classes and filters with names, rates as shares of the
//! line, and steps that are made once for each flow. [`QdiscSetup::resolve`] makes of it, for one line and its flows, a
//! [`QdiscTree`]: steps in the order in which they are made, with nothing left to decide. The kernel gets the tree over
//! netlink; the simulator builds the same one of its own disciplines.
//!
//! Flows are told apart by their destination port: bulk flow *i* goes to [`BULK_PORT`] + *i*, probe *j* to
//! [`PROBE_PORT`] + *j*, and so filters can find them in any world.

use crate::change::Handle;
use crate::units::{BitRate, ByteSize, Nanoseconds};

/// Destination port of the first bulk flow; that of the next is one higher.
pub const BULK_PORT: u16 = 5201;
/// Destination port of the first latency probe; that of the next is one higher.
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

/// What a tree is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// Rate of the line: what shares are shares of.
    pub rate: BitRate,
    /// Bulk flows.
    pub bulk_flows: u32,
    /// Latency probes.
    pub probes: u32,
    /// Transmit queues of the device.
    pub queues: u32,
    /// Largest segment that TCP hands down, headers included.
    pub largest_segment: ByteSize,
    /// Layer-3 MTU.
    pub mtu: ByteSize,
}

/// Qdiscs, classes and filters of one device, in the order in which they are made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QdiscTree {
    /// The steps.
    pub steps: Vec<Step>,
}

impl QdiscTree {
    /// The root; below a line, the line.
    #[must_use]
    pub fn root(&self) -> Option<&Node> {
        self.qdiscs().find(|node| node.parent == Handle::ROOT)
    }

    /// The root of what is studied: that of the setup, even where the tree stands below a line.
    #[must_use]
    pub fn studied_root(&self) -> Option<&Node> {
        self.qdiscs().find(|node| !is_line(node.handle))
    }

    /// The qdiscs, in the order in which they are made.
    pub fn qdiscs(&self) -> impl Iterator<Item = &Node> {
        self.steps.iter().filter_map(|step| match step {
            Step::Qdisc(node) => Some(node),
            Step::Class(_) | Step::Filter { .. } => None,
        })
    }
}

/// One thing to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A queueing discipline.
    Qdisc(Node),
    /// A class of one.
    Class(Node),
    /// What sends flows to classes.
    Filter {
        /// The qdisc that asks it.
        parent: Handle,
        /// The rule.
        filter: Filter,
    },
}

/// A qdisc or a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where it hangs; [`Handle::ROOT`] is the device.
    pub parent: Handle,
    /// Its own handle.
    pub handle: Handle,
    /// Its kind, as the kernel calls it: `htb`.
    pub kind: String,
    /// What is set; everything else has the kernel's default.
    pub settings: Vec<Setting>,
}

impl Node {
    /// The value of an option, if it is set.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&SettingValue> {
        self.settings.iter().find(|setting| setting.name == name).map(|setting| &setting.value)
    }
}

/// An option of a qdisc or class, by the name that `tc` gives it.
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
    /// The option is there.
    Flag,
    /// An attribute by its number; the name of such a setting is `attribute`.
    Attribute(Attribute),
}

/// A service curve of two pieces (`struct tc_service_curve`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Curve {
    /// Slope of the first piece; nothing where [`Self::first`] is 0.
    pub m1: BitRate,
    /// Length of the first piece.
    pub first: Nanoseconds,
    /// Slope of the second.
    pub m2: BitRate,
}

/// A netlink attribute inside of `TCA_OPTIONS`.
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
    /// Nothing: it is there.
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
    /// These bytes.
    Bytes(Vec<u8>),
}

/// What sends flows to classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// A class for each flow: flow *i* goes to `first` + *i* modulo `classes`. Bulk flows come first: probe *j* is flow
    /// bulk flows + *j*.
    PerFlow {
        /// Class of bulk flow 0.
        first: Handle,
        /// Bulk flows.
        bulk_flows: u32,
        /// Probes.
        probes: u32,
        /// Classes that flows go to in turn; at least as many as flows where each has its own.
        classes: u32,
        /// Where everything else goes, such as ARP; none: where the qdisc sends what no filter knows.
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
        /// What compares.
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

/// Rules in front of a qdisc's own filters, none of which matches anything: what it costs to ask them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilterRules {
    /// What compares.
    pub classifier: Classifier,
    /// How many rules.
    pub rules: u32,
}

#[cfg(test)]
mod tests;
