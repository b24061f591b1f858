//! The NIC of the test bed: HTB classes as hardware queues, or the device's own transmit queues.
//!
//! *Soft NIC*: one HTB class at line rate; below it one leaf per hardware queue with next to no rate
//! of its own, so that all of them borrow and are served in deficit round robin by their quantum,
//! as a NIC with DRR credits per queue serves them. The queue choice names the class in
//! `skb->priority`.
//!
//! *mq*: the veth's own transmit queues under an `mq` root, each shaped to its share of the rate,
//! which exercises `skb->queue_mapping` as a real NIC does. It does not conserve work: an idle
//! queue's share is lost.

use evenkeel_model::scenario::Topology;
use evenkeel_model::units::BitRate;
use evenkeel_netlink::Netlink;
use evenkeel_netlink::tc::{Handle, HtbClass, Qdisc, Statistics};

use crate::error::TestbedError;

/// Largest GSO packet on the wire at an MTU of 1500: 64 KiB and the headers of 45 more segments.
const LARGEST_GSO_PACKET: u32 = 65_536 + 46 * 66;
/// A leaf class's DRR credit. A quantum below the largest packet has no effect in HTB: its deficit
/// would never skip a turn.
const BASE_QUANTUM: u32 = LARGEST_GSO_PACKET;
/// What the line may send at once after its timer was late: the larger of this and two packets.
const BURST_TIME_NS: u64 = 250_000;
const ROOT: u16 = 1;
const LINE: Handle = Handle::new(ROOT, 1);
/// Minor number of the first hardware queue's class.
const FIRST_QUEUE: u16 = 0x10;
/// Major number of the first leaf qdisc.
const FIRST_LEAF: u16 = 0x100;

/// The qdisc in front of a hardware queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafQdisc {
    /// First in, first out, this many packets.
    Pfifo(u32),
    /// Stochastic fair queueing, where the kernel has it.
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

/// How the NIC is built.
#[derive(Clone, Copy, Debug)]
pub struct NicOptions {
    /// Which of the two.
    pub topology: Topology,
    /// Line rate.
    pub rate: BitRate,
    /// Hardware queues.
    pub queues: u32,
    /// What stands in front of each queue.
    pub leaf: LeafQdisc,
}

/// A NIC that has been built on an interface.
#[derive(Clone, Debug)]
pub struct Nic {
    options: NicOptions,
    index: u32,
}

impl Nic {
    /// Builds the NIC on an interface; its removal takes all of it away.
    ///
    /// # Errors
    /// When the kernel refuses.
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
        let rate_bps = rate.bits_per_second();
        let burst_bytes = burst(rate_bps);
        // What names no class (nothing does, once the queue choice is attached) takes queue 0.
        let root = Qdisc::Htb { default_class: FIRST_QUEUE };
        netlink.replace_qdisc(self.index, Handle::ROOT, Handle::new(ROOT, 0), &root)?;
        let line = HtbClass { rate_bps, ceil_bps: rate_bps, burst_bytes, quantum_bytes: BASE_QUANTUM };
        netlink.replace_htb_class(self.index, Handle::new(ROOT, 0), LINE, &line)?;
        for queue in 0..queues {
            let class = HtbClass {
                // All leaves together own a thousandth of the line: they live on borrowing.
                rate_bps: (rate_bps / 1000 / u64::from(queues)).max(8_000),
                ceil_bps: rate_bps,
                burst_bytes,
                quantum_bytes: BASE_QUANTUM,
            };
            netlink.replace_htb_class(self.index, LINE, self.class(queue), &class)?;
            let handle = Handle::new(FIRST_LEAF + queue as u16, 0);
            netlink.replace_qdisc(self.index, self.class(queue), handle, &leaf.qdisc())?;
        }
        Ok(())
    }

    fn build_mq(&self, netlink: &mut Netlink) -> Result<(), TestbedError> {
        let NicOptions { rate, queues, .. } = self.options;
        let rate_bps = (rate.bits_per_second() / u64::from(queues)).max(8_000);
        netlink.replace_qdisc(self.index, Handle::ROOT, Handle::new(ROOT, 0), &Qdisc::Mq)?;
        for queue in 0..queues {
            let shaper = Qdisc::Tbf {
                rate_bps,
                burst_bytes: burst(rate_bps),
                // As much as a byte FIFO of 1000 full segments; TCP small queues keep it far lower.
                limit_bytes: 1000 * LARGEST_GSO_PACKET,
            };
            let handle = Handle::new(FIRST_LEAF + queue as u16, 0);
            netlink.replace_qdisc(self.index, Handle::new(ROOT, queue as u16 + 1), handle, &shaper)?;
        }
        Ok(())
    }

    fn class(&self, queue: u32) -> Handle {
        Handle::new(ROOT, FIRST_QUEUE + queue as u16)
    }

    /// Which of the two NICs it is.
    #[must_use]
    pub fn topology(&self) -> Topology {
        self.options.topology
    }

    /// Class id of queue 0, as `skb->priority` carries it.
    #[must_use]
    pub fn first_class_id(&self) -> u32 {
        self.class(0).class_id()
    }

    /// What each hardware queue has carried, by queue number.
    ///
    /// # Errors
    /// When the kernel refuses.
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

    /// Sets a hardware queue's limit in packets while it runs (soft NIC).
    ///
    /// # Errors
    /// When the kernel refuses.
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

fn burst(rate_bps: u64) -> u32 {
    let bytes = u128::from(rate_bps) * u128::from(BURST_TIME_NS) / 8_000_000_000;
    u32::try_from(bytes).unwrap_or(u32::MAX).max(2 * LARGEST_GSO_PACKET)
}
