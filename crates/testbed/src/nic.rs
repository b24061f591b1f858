//! The NIC of the test bed: HTB classes as hardware queues, or the device's own transmit queues.
//!
//! - *Soft NIC*: the classes of [`soft_nic`]. The queue choice writes the class to `skb->priority`.
//! - *mq*: the veth's own transmit queues under an `mq` root. Each queue is shaped to its share of the
//!   rate. The queue choice sets `skb->queue_mapping`, as with a real NIC. This NIC is not
//!   work-conserving: other queues cannot use an idle queue's share.

use evenkeel_control::HtbQueue;
use evenkeel_model::scenario::Topology;
use evenkeel_model::soft_nic;
use evenkeel_model::units::BitRate;
use evenkeel_netlink::Netlink;
use evenkeel_netlink::tc::{Handle, HtbClass, Qdisc, Statistics};

use crate::error::TestbedError;

const ROOT: u16 = 1;
const LINE: Handle = Handle::new(ROOT, 1);
/// Minor number of the class of the first hardware queue.
const FIRST_QUEUE: u16 = 0x10;
/// Major number of the first leaf qdisc.
const FIRST_LEAF: u16 = 0x100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafQdisc {
    Pfifo(u32),
    /// Stochastic fairness queueing. The kernel must support it.
    Sfq,
}

impl LeafQdisc {
    fn qdisc(self) -> Qdisc {
        match self {
            Self::Pfifo(limit_packets) => Qdisc::Pfifo { limit_packets },
            Self::Sfq => Qdisc::Named("sfq"),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct NicOptions {
    pub topology: Topology,
    pub rate: BitRate,
    pub queues: u32,
    pub leaf: LeafQdisc,
}

#[derive(Clone, Debug)]
pub struct Nic {
    options: NicOptions,
    index: u32,
}

impl Nic {
    /// Builds the NIC on an interface. The NIC is removed with the interface.
    pub fn build(netlink: &mut Netlink, index: u32, options: &NicOptions) -> Result<Self, TestbedError> {
        let nic = Self { options: *options, index };
        match options.topology {
            Topology::SoftNic => nic.build_soft(netlink)?,
            Topology::Mq => nic.build_mq(netlink)?,
        }
        Ok(nic)
    }

    fn build_soft(&self, netlink: &mut Netlink) -> Result<(), TestbedError> {
        let NicOptions { rate, queues, leaf, .. } = self.options;
        // Packets without a class use queue 0. If the queue choice is attached, every packet has a
        // class.
        let root = Qdisc::Htb { default_class: FIRST_QUEUE };
        netlink.replace_qdisc(self.index, Handle::ROOT, Handle::new(ROOT, 0), &root)?;
        netlink.replace_htb_class(
            self.index,
            Handle::new(ROOT, 0),
            LINE,
            &htb_class(soft_nic::line(rate)),
        )?;
        for queue in 0..queues {
            let class = htb_class(soft_nic::queue(rate, queues));
            netlink.replace_htb_class(self.index, LINE, self.class(queue), &class)?;
            let handle = Handle::new(FIRST_LEAF + queue as u16, 0);
            netlink.replace_qdisc(self.index, self.class(queue), handle, &leaf.qdisc())?;
        }
        Ok(())
    }

    fn build_mq(&self, netlink: &mut Netlink) -> Result<(), TestbedError> {
        let NicOptions { rate, queues, .. } = self.options;
        let share = BitRate::from_bits_per_second((rate.bits_per_second() / u64::from(queues)).max(8_000));
        netlink.replace_qdisc(self.index, Handle::ROOT, Handle::new(ROOT, 0), &Qdisc::Mq)?;
        let shaper = shaper(share);
        for queue in 0..queues {
            let handle = Handle::new(FIRST_LEAF + queue as u16, 0);
            netlink.replace_qdisc(self.index, Handle::new(ROOT, queue as u16 + 1), handle, &shaper)?;
        }
        Ok(())
    }

    fn class(&self, queue: u32) -> Handle {
        Handle::new(ROOT, FIRST_QUEUE + queue as u16)
    }

    /// Returns the HTB classes of the hardware queues with their initial settings; empty for the topology
    /// `mq`.
    #[must_use]
    pub fn htb_queues(&self) -> Vec<HtbQueue> {
        let NicOptions { topology, rate, queues, .. } = self.options;
        let classes = if topology == Topology::SoftNic { 0..queues } else { 0..0 };
        classes
            .map(|queue| HtbQueue {
                parent: LINE,
                handle: self.class(queue),
                class: htb_class(soft_nic::queue(rate, queues)),
            })
            .collect()
    }

    #[must_use]
    pub fn topology(&self) -> Topology {
        self.options.topology
    }

    /// Returns the class id of queue 0, for `skb->priority`.
    #[must_use]
    pub fn first_class_id(&self) -> u32 {
        self.class(0).class_id()
    }

    /// Returns the counters of each hardware queue, by queue number.
    pub fn queue_statistics(&self, netlink: &mut Netlink) -> Result<Vec<Statistics>, TestbedError> {
        let (list, place): (_, fn(&Self, u32) -> Handle) = match self.options.topology {
            Topology::SoftNic => (netlink.class_statistics(self.index)?, Self::class),
            Topology::Mq => {
                (netlink.qdisc_statistics(self.index)?, |_, queue| Handle::new(ROOT, queue as u16 + 1))
            }
        };
        Ok((0..self.options.queues)
            .map(|queue| {
                let handle = place(self, queue);
                list.iter().find(|(found, _)| *found == handle).map(|(_, found)| *found).unwrap_or_default()
            })
            .collect())
    }

    /// Sets the limit of a hardware queue of the soft NIC, in packets. The limit can change while flows
    /// run.
    pub fn set_queue_limit(
        &self,
        netlink: &mut Netlink,
        queue: u32,
        limit_packets: u32,
    ) -> Result<(), TestbedError> {
        let handle = Handle::new(FIRST_LEAF + queue as u16, 0);
        Ok(netlink.replace_qdisc(self.index, self.class(queue), handle, &Qdisc::Pfifo { limit_packets })?)
    }
}

/// Returns a token bucket filter that shapes a queue to this rate.
pub(crate) fn shaper(rate: BitRate) -> Qdisc {
    Qdisc::Tbf {
        rate_bps: rate.bits_per_second(),
        burst_bytes: soft_nic::burst_bytes(rate),
        // Limit in bytes for full segments. TCP small queues keep the backlog far below this limit.
        limit_bytes: soft_nic::LEAF_LIMIT_PACKETS * soft_nic::LARGEST_GSO_PACKET_BYTES,
    }
}

fn htb_class(class: soft_nic::Class) -> HtbClass {
    HtbClass {
        rate_bps: class.rate.bits_per_second(),
        ceil_bps: class.ceiling.bits_per_second(),
        burst_bytes: class.burst_bytes,
        quantum_bytes: class.quantum_bytes,
    }
}
