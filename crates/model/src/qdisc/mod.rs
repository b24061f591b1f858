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
mod setup;

pub use catalogue::Catalogue;
pub use setup::{QdiscSetup, ResolveError};

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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QdiscTree {
    /// The steps.
    pub steps: Vec<Step>,
}

/// One thing to make.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
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

/// An option of a qdisc or class, by the name that `tc` gives it.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Its name: `quantum`.
    pub name: String,
    /// Its value.
    pub value: SettingValue,
}

/// The value of an option.
#[derive(Clone, Debug, PartialEq)]
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
    /// One of the words that the option knows.
    Word(String),
    /// Several numbers or sizes, as of a map from priorities to bands.
    List(Vec<u64>),
    /// The option is there.
    Flag,
}

/// What sends flows to classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// A class for each flow: bulk flow *i* goes to `first` + *i*, probe *j* to `first` + bulk flows + *j*.
    PerFlow {
        /// Class of bulk flow 0.
        first: Handle,
        /// Bulk flows.
        bulk_flows: u32,
        /// Probes.
        probes: u32,
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
