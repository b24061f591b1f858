//! A soft NIC above a device: HTB classes serve as queues with weights.
//!
//! The soft NIC is for devices whose queues do not support weights, or that have only one queue. An HTB
//! root limits the rate, so that the soft NIC is the bottleneck. The soft NIC has one class per queue, and
//! the program selects the class in `skb->priority`.
//!
//! HTB has a lock that all CPUs share (`net/sched/sch_htb.c`), and limits the line to the configured
//! rate. The test bed uses the same soft NIC ([`soft_nic`]).

use std::fmt::Display;
use std::sync::Arc;

use evenkeel_apply::{Change, Knob, QdiscSnapshot, Value};
use evenkeel_control::{HtbQueue, HtbWeights, WeightControl};
use evenkeel_model::shell::Line;
use evenkeel_model::soft_nic::{self, FIRST_LEAF, FIRST_QUEUE_CLASS, LINE_CLASS};
use evenkeel_model::units::BitRate;
use evenkeel_netlink::Netlink;
use evenkeel_netlink::tc::{Handle, HtbClass, Qdisc};
use evenkeel_netlink::tc_state::QdiscState;

use crate::error::FairError;
use crate::gate::JournalGate;
use crate::own_root::OwnRoot;

pub(crate) const QUEUES: u32 = soft_nic::DEVICE_QUEUES as u32;

/// Packets without a class use the first queue. While the program is attached, every packet has a
/// class.
const ROOT_QDISC: Qdisc = Qdisc::Htb { default_class: FIRST_QUEUE_CLASS };
const LEAF: Qdisc = Qdisc::Pfifo { limit_packets: soft_nic::LEAF_LIMIT_PACKETS };

/// The soft NIC of one run, identified by its root qdisc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SoftNic {
    root: OwnRoot,
}

fn leaf(queue: u32) -> Handle {
    Handle::new(FIRST_LEAF + queue as u16, 0)
}

fn htb(class: soft_nic::Class) -> HtbClass {
    HtbClass {
        rate_bps: class.rate.bits_per_second(),
        ceil_bps: class.ceiling.bits_per_second(),
        burst_bytes: class.burst_bytes,
        quantum_bytes: class.quantum_bytes,
    }
}

/// Returns whether a tree below this root has the first leaf of a soft NIC.
pub(crate) fn is_tree(root: Handle, tree: &[QdiscState]) -> bool {
    let place = Handle::new(root.major, FIRST_QUEUE_CLASS);
    tree.iter()
        .any(|qdisc| (qdisc.parent, qdisc.handle, qdisc.kind.as_str()) == (place, leaf(0), LEAF.kind()))
}

impl SoftNic {
    pub(crate) fn new(root: OwnRoot) -> Self {
        Self { root }
    }

    fn root(self) -> Handle {
        self.root.handle()
    }

    fn line(self) -> Handle {
        Handle::new(self.root.major, LINE_CLASS)
    }

    fn class(self, queue: u32) -> Handle {
        Handle::new(self.root.major, FIRST_QUEUE_CLASS + queue as u16)
    }

    /// Returns the class id of the first queue, for `skb->priority`.
    pub(crate) fn first_class(self) -> u32 {
        self.class(0).class_id()
    }

    /// Returns the queue of a class; `None` for a foreign class.
    pub(crate) fn queue_of(self, handle: Handle) -> Option<usize> {
        let queue = u32::from(handle.minor.checked_sub(FIRST_QUEUE_CLASS)?);
        (handle.major == self.root.major && queue < QUEUES).then_some(queue as usize)
    }

    /// Returns the change of the root qdisc. The kernel removes its classes with the root qdisc.
    pub(crate) fn change(self) -> Change {
        let root = QdiscState::of(&ROOT_QDISC, Handle::ROOT, self.root());
        Change::new(Knob::RootQdisc, Value::Qdiscs(vec![QdiscSnapshot::from(&root)]))
    }

    pub(crate) fn build(
        self,
        netlink: &mut Netlink,
        index: u32,
        rate: BitRate,
    ) -> Result<Vec<HtbQueue>, FairError> {
        netlink.replace_htb_class(index, self.root(), self.line(), &htb(soft_nic::line(rate)))?;
        let mut queues = Vec::new();
        for queue in 0..QUEUES {
            let class = htb(soft_nic::queue(rate, QUEUES));
            let own = HtbQueue { parent: self.line(), handle: self.class(queue), class };
            netlink.replace_htb_class(index, own.parent, own.handle, &own.class)?;
            netlink.replace_qdisc(index, own.handle, leaf(queue), &LEAF)?;
            queues.push(own);
        }
        Ok(queues)
    }

    pub(crate) fn plan(self, interface: &str, rate: BitRate) -> Vec<Line> {
        let class = |parent: &dyn Display, handle: Handle, class: soft_nic::Class| {
            Line::new(
                "tc class add dev {} parent {} classid {} htb rate {} ceil {} burst {} cburst {} quantum {}",
                &[
                    &interface,
                    parent,
                    &handle,
                    &format_args!("{}bit", class.rate.bits_per_second()),
                    &format_args!("{}bit", class.ceiling.bits_per_second()),
                    &format_args!("{}b", class.burst_bytes),
                    &format_args!("{}b", class.burst_bytes),
                    &class.quantum_bytes,
                ],
            )
        };
        let number = |handle: Handle| format!("{:x}:", handle.major);
        let root = number(self.root());
        let mut lines = vec![
            Line::new(
                "tc qdisc replace dev {} root handle {} htb default {}",
                &[&interface, &root, &format_args!("{FIRST_QUEUE_CLASS:x}")],
            ),
            class(&root, self.line(), soft_nic::line(rate)),
        ];
        for queue in 0..QUEUES {
            lines.push(class(&self.line(), self.class(queue), soft_nic::queue(rate, QUEUES)));
            lines.push(Line::new(
                "tc qdisc add dev {} parent {} handle {} pfifo limit {}",
                &[&interface, &self.class(queue), &number(leaf(queue)), &soft_nic::LEAF_LIMIT_PACKETS],
            ));
        }
        lines
    }
}

/// Returns the weight back end. Set `guaranteed_rates` if flows have different weights.
pub(crate) fn weights(
    queues: Vec<HtbQueue>,
    index: u32,
    guaranteed_rates: bool,
    gate: Arc<JournalGate>,
) -> Result<WeightControl, FairError> {
    use std::time::Duration;
    let htb = HtbWeights::new(Netlink::open()?, index, queues, gate);
    Ok(WeightControl {
        backend: Box::new(if guaranteed_rates { htb.with_guaranteed_rates() } else { htb }),
        // A few rounds of all flows at 1 Gbit/s and above.
        smoothing: Duration::from_millis(50),
        least_interval: Duration::from_millis(1),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use evenkeel_model::shell::Script;

    const SOFT_NIC: SoftNic = SoftNic { root: OwnRoot { major: 0x4001 } };

    #[test]
    fn classes_and_queues_name_each_other() {
        assert_eq!(SOFT_NIC.first_class(), 0x4001_0010);
        for queue in 0..QUEUES {
            assert_eq!(SOFT_NIC.queue_of(SOFT_NIC.class(queue)), Some(queue as usize));
        }
        for other in
            [SOFT_NIC.line(), SOFT_NIC.root(), SOFT_NIC.class(QUEUES), Handle::new(1, 0x10), Handle::ROOT]
        {
            assert_eq!(SOFT_NIC.queue_of(other), None, "{other}");
        }
    }

    #[test]
    fn the_plan_has_every_class() {
        let mut script = Script::default();
        script.extend(SOFT_NIC.plan("eth0", BitRate::from_bits_per_second(1_000_000_000)));
        let text = script.to_string();
        assert!(text.starts_with("tc qdisc replace dev eth0 root handle 4001: htb default 10\n"));
        assert_eq!(text.matches("tc class add").count(), 9);
        assert!(
            text.contains(
                "parent 4001:1 classid 4001:17 htb rate 125000bit ceil 1000000000bit burst 137144b"
            )
        );
    }
}
