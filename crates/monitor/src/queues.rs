//! Transmit queues: the counters of each queue's qdisc, and the processors that serve the queue.

use std::collections::BTreeMap;

use evenkeel_fair::FlowReading;
use evenkeel_model::host::{HostFacts, Interface, QdiscFacts};

use crate::sample::{Interval, Queue};

/// Returns the qdisc of each queue: the children of a root with one child per queue, or the root of a
/// device with one queue. A `noqueue` does not count packets.
fn by_queue(interface: &Interface) -> BTreeMap<u32, &QdiscFacts> {
    let count = count(interface);
    let mut found = BTreeMap::new();
    let Some(root) = interface.root_qdisc() else { return found };
    if matches!(root.kind.as_str(), "mq" | "mqprio" | "multiq") {
        let major = root.handle.trim_end_matches(':');
        for qdisc in &interface.qdiscs {
            let Some((parent, minor)) = qdisc.parent.split_once(':') else { continue };
            let is_child = parent == major || parent.is_empty() && major == "0";
            // Minor numbers of queues start at 1. The qdiscs of traffic classes have higher minor
            // numbers.
            let queue = u32::from_str_radix(minor, 16).ok().and_then(|minor| minor.checked_sub(1));
            if let Some(queue) = queue.filter(|queue| is_child && *queue < count) {
                found.insert(queue, qdisc);
            }
        }
    } else if count == 1 && root.kind != "noqueue" {
        found.insert(0, root);
    }
    found
}

fn count(interface: &Interface) -> u32 {
    u32::try_from(interface.transmit_queues.len()).unwrap_or(u32::MAX).max(1)
}

/// Returns the queues of an interface. `devices` has the interrupts and the NUMA nodes of processors.
pub(crate) fn queues(
    interface: &Interface,
    before: Option<&Interface>,
    devices: &HostFacts,
    reading: Option<&FlowReading>,
) -> Vec<Queue> {
    let qdiscs = by_queue(interface);
    let earlier = before.map(by_queue).unwrap_or_default();
    let queue = |index: u32| {
        let qdisc = qdiscs.get(&index);
        // A qdisc with another kind or handle is a new qdisc, whose counters start from 0.
        let earlier = earlier.get(&index).filter(|earlier| {
            qdisc.is_some_and(|qdisc| qdisc.kind == earlier.kind && qdisc.handle == earlier.handle)
        });
        let interval = |since: fn(Option<u64>, u64) -> Interval, value: fn(&QdiscFacts) -> u64| {
            qdisc.map(|qdisc| since(earlier.map(|earlier| value(earlier)), value(qdisc)))
        };
        let processors = interrupt_processors(devices, &interface.name, index);
        Queue {
            index,
            busy_flows: reading
                .filter(|reading| reading.colliding.is_some())
                .map(|reading| reading.busy_by_queue.get(&index).copied().unwrap_or(0)),
            bytes: interval(Interval::since, |qdisc| qdisc.bytes),
            packets: interval(Interval::since, |qdisc| qdisc.packets),
            drops: interval(Interval::since_32_bits, |qdisc| qdisc.drops),
            backlog_bytes: qdisc.map(|qdisc| qdisc.backlog_bytes),
            node: processors.first().and_then(|first| devices.node_of(*first)),
            interrupt_processors: processors,
        }
    };
    (0..count(interface)).map(queue).collect()
}

/// Returns the processors that may serve the queue's interrupt. A driver has one interrupt for both
/// directions of a queue, or one for each direction. With separate interrupts, the function uses the
/// interrupt that does not announce received packets.
fn interrupt_processors(devices: &HostFacts, interface: &str, queue: u32) -> Vec<u32> {
    let own = || devices.interrupts_of(interface).filter(|interrupt| interrupt.queue == Some(queue));
    let sends = own().find(|interrupt| !interrupt.receives).or_else(|| own().next());
    sends.map(|interrupt| interrupt.target().to_vec()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use evenkeel_model::host::{Interrupt, Processor, TransmitQueue};

    fn interface(root: (&str, &str), children: &[(&str, u64)], queues: usize) -> Interface {
        let root = QdiscFacts {
            kind: root.0.into(),
            handle: root.1.into(),
            parent: "root".into(),
            bytes: 1000,
            ..QdiscFacts::default()
        };
        let child = |(parent, bytes): &(&str, u64)| QdiscFacts {
            kind: "pfifo".into(),
            parent: (*parent).into(),
            bytes: *bytes,
            ..QdiscFacts::default()
        };
        Interface {
            name: "eth0".into(),
            qdiscs: std::iter::once(root).chain(children.iter().map(child)).collect(),
            transmit_queues: vec![TransmitQueue::default(); queues],
            ..Interface::default()
        }
    }

    fn bytes(now: &Interface, before: Option<&Interface>) -> Vec<Option<(u64, u64)>> {
        let found = queues(now, before, &HostFacts::default(), None);
        found.iter().map(|queue| queue.bytes.map(|bytes| (bytes.total, bytes.delta))).collect()
    }

    #[test]
    fn each_child_of_mq_is_a_queue_whatever_its_handle_is() {
        let now = interface(("mq", "8001:"), &[("8001:1", 50), ("8001:a", 70), ("7:2", 9)], 10);
        let before = interface(("mq", "8001:"), &[("8001:1", 40)], 10);
        let found = bytes(&now, Some(&before));
        assert_eq!((found[0], found[1], found[9]), (Some((50, 10)), None, Some((70, 0))));
        // The kernel's default mq has no handle.
        assert_eq!(bytes(&interface(("mq", "0:"), &[(":2", 3)], 2), None), [None, Some((3, 0))]);
        assert_eq!(bytes(&interface(("htb", "1:"), &[("1:1", 3)], 2), None), [None, None]);
        assert_eq!(bytes(&interface(("htb", "1:"), &[("1:1", 3)], 1), None), [Some((1000, 0))]);
        assert_eq!(bytes(&interface(("noqueue", "0:"), &[], 1), None), [None]);
        assert_eq!(bytes(&Interface::default(), None), [None]);
    }

    #[test]
    fn a_queue_has_the_processors_of_its_own_interrupt() {
        let interrupt = |receives, processor| Interrupt {
            interface: "eth0".into(),
            queue: Some(0),
            receives,
            effective: vec![processor],
            ..Interrupt::default()
        };
        let devices = HostFacts {
            processors: vec![Processor { number: 5, node: 1, ..Processor::default() }],
            interrupts: vec![interrupt(true, 4), interrupt(false, 5)],
            ..HostFacts::default()
        };
        let found = queues(&interface(("mq", "0:"), &[], 1), None, &devices, None);
        assert_eq!((found[0].interrupt_processors.as_slice(), found[0].node), (&[5][..], Some(1)));
    }
}
