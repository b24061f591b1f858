//! Several hosts and the switches between them.
//!
//! ```text
//!   host ─ link ─▶ port │ switch │ port ─ link ─▶ port │ switch │ port ─ link ─▶ host
//!                        shared buffer
//! ```
//!
//! - [`Topology`]: hosts, switches and links, and the paths through them.
//! - [`Switch`]: output queues in a shared buffer, packet by packet.
//! - [`Cluster`]: hosts that transfer data to each other over a topology.
//!
//! # What is modelled, and what is not
//!
//! - Every packet of data goes through the queue of every port on its way, in the order of time.
//! - Acknowledgements take the latencies of the same links back and meet no queue, as if switches served
//!   them first: they are about 0.3 % of the bytes.
//! - A host sends as in a [`Simulation`](crate::simulation::Simulation) of two hosts. What it receives
//!   goes to its receive queues, as in [`crate::sink`]; their interrupts are moderated like those of
//!   its transmit queues, and take no time of its processors.

mod cluster;
mod rate;
mod reception;
pub(crate) mod shuffle;
mod switch;
#[cfg(test)]
mod tests;
mod topology;

pub use cluster::{Cluster, Transfer};
pub use switch::{Switch, SwitchConfig};
pub use topology::{Hop, Link, Node, Path, Topology, TopologyError};

use crate::nic::Train;
use crate::time::Time;

/// A packet of data in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// When its last bit has left where it was last, or arrives where it goes.
    pub at: Time,
    /// First payload byte.
    pub sequence: u64,
    /// Flow: numbered within its host when it leaves that, and within the cluster later.
    pub flow: u32,
    /// TCP payload, bytes.
    pub payload: u32,
}

impl Packet {
    /// The packet `index` of a train, as it leaves the NIC.
    #[inline]
    pub(crate) fn of_train(train: &Train<'_>, index: u32) -> Self {
        let segment = train.segment;
        let packet = train.first + index;
        Self {
            at: train.end_of(index),
            sequence: segment.sequence + u64::from(packet * segment.mss),
            flow: segment.flow,
            payload: segment.packet_payload(packet),
        }
    }
}
