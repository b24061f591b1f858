//! Queue weights as HTB quanta: the soft NIC, and devices whose queues are classes.

use evenkeel_netlink::Netlink;
use evenkeel_netlink::tc::{Handle, HtbClass};

use crate::backend::{WeightBackend, WeightLimits};
use crate::error::ControlError;

/// An HTB class that is a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HtbQueue {
    /// Its class above.
    pub parent: Handle,
    /// Its own handle.
    pub handle: Handle,
    /// Its parameters; the quantum is what is put back in the end.
    pub class: HtbClass,
}

/// The queues of one interface.
pub struct HtbQuanta {
    netlink: Netlink,
    interface: u32,
    queues: Vec<HtbQueue>,
}

/// Largest quantum, bytes: `q->quantum` is signed, and HTB warns above 200,000, which costs a line in the
/// kernel's log and nothing else, only where it computes the quantum itself (`net/sched/sch_htb.c`).
const LARGEST_QUANTUM: u32 = 1 << 30;

/// Headers of each packet of a segment: Ethernet, IPv6, TCP with timestamps.
const HEADER_BYTES: u32 = 14 + 40 + 32;
/// Payload of a packet at an MTU of 1500 at least: with small MTUs a quantum is a little too small.
const PACKET_PAYLOAD_BYTES: u32 = 1428;

impl HtbQuanta {
    /// Back end for these classes of an interface; nothing is changed yet. `netlink` speaks for the interface's
    /// network namespace.
    #[must_use]
    pub fn new(netlink: Netlink, interface: u32, queues: Vec<HtbQueue>) -> Self {
        Self { netlink, interface, queues }
    }

    fn put(&mut self, queue: &HtbQueue, quantum_bytes: u32) -> Result<(), ControlError> {
        let class = HtbClass { quantum_bytes, ..queue.class };
        Ok(self.netlink.replace_htb_class(self.interface, queue.parent, queue.handle, &class)?)
    }
}

impl WeightBackend for HtbQuanta {
    fn name(&self) -> String {
        "HTB quantum".to_owned()
    }

    /// A class whose quantum is below its packets runs up a debt and is served a packet a turn, whatever its
    /// weight; so the least is the largest packet with its headers, as qdiscs count it.
    fn limits(&self, segment_bytes: u32) -> WeightLimits {
        let packets = segment_bytes.div_ceil(PACKET_PAYLOAD_BYTES);
        WeightLimits { base: segment_bytes + packets * HEADER_BYTES, most: LARGEST_QUANTUM }
    }

    fn set(&mut self, values: &[(u32, u32)]) -> Result<(), ControlError> {
        for (queue, quantum) in values {
            if let Some(class) = self.queues.get(*queue as usize).copied() {
                self.put(&class, *quantum)?;
            }
        }
        let kept = self.netlink.htb_quanta(self.interface)?;
        for (queue, quantum) in values {
            let Some(class) = self.queues.get(*queue as usize) else { continue };
            let found = kept.iter().find(|(handle, _)| *handle == class.handle).map(|(_, found)| *found);
            if found != Some(*quantum) {
                return Err(ControlError::ReadBack {
                    what: format!("the quantum of class {}", class.handle),
                    set: u64::from(*quantum),
                    found: found.map_or_else(|| "nothing".to_owned(), |found| found.to_string()),
                });
            }
        }
        Ok(())
    }

    fn restore(&mut self) -> Result<(), ControlError> {
        let original: Vec<(u32, u32)> =
            (0..).zip(self.queues.iter().map(|queue| queue.class.quantum_bytes)).collect();
        self.set(&original)
    }
}
