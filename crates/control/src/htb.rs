//! Queue weights as HTB quanta, for the soft NIC and for devices whose queues are HTB classes.

use std::sync::Arc;

use evenkeel_netlink::Netlink;
use evenkeel_netlink::tc::{Handle, HtbClass};
use evenkeel_transmit::weights::{Credits, quanta};

use crate::backend::{Applied, WeightBackend};
use crate::error::ControlError;
use crate::gate::{Gate, Setting};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HtbQueue {
    pub parent: Handle,
    pub handle: Handle,
    pub class: HtbClass,
}

/// A back end for the queues of one interface.
///
/// A queue's weight is its *quantum*: its bytes per round, as in a NIC's deficit round robin. A queue
/// can use a quantum of several segments only if it holds this number of segments. TCP small queues
/// allow a flow two segments in the queue, or about a millisecond of its data if this is more. Two
/// segments are sufficient while all flows have equal weights, but a single flow of weight 4 would not
/// get its share.
///
/// With *guaranteed rates* each queue also has a guaranteed share of the line. A queue that had too
/// little data in a round catches up later.
pub struct HtbWeights {
    netlink: Netlink,
    interface: u32,
    queues: Vec<HtbQueue>,
    guaranteed_rates: bool,
    current: Vec<HtbClass>,
    gate: Arc<dyn Gate>,
}

/// The kernel's quantum is a signed 32-bit integer (`net/sched/sch_htb.c`).
const LARGEST_QUANTUM: u32 = 1 << 30;

/// Headers of each packet of a segment, bytes: Ethernet, IPv6, TCP with timestamps.
const HEADER_BYTES: u32 = 14 + 40 + 32;
/// Minimum payload of a full packet at an MTU of 1500, bytes. With smaller MTUs a quantum is slightly
/// too small.
const PACKET_PAYLOAD_BYTES: u32 = 1428;

impl HtbWeights {
    /// Creates a back end for HTB classes whose ceiling is the line rate. Does not change the classes.
    /// `netlink` must belong to the interface's network namespace.
    #[must_use]
    pub fn new(netlink: Netlink, interface: u32, queues: Vec<HtbQueue>, gate: Arc<dyn Gate>) -> Self {
        let current = queues.iter().map(|queue| queue.class).collect();
        Self { netlink, interface, queues, guaranteed_rates: false, current, gate }
    }

    /// Adds guaranteed rates, for flows of different weights.
    #[must_use]
    pub fn with_guaranteed_rates(self) -> Self {
        Self { guaranteed_rates: true, ..self }
    }

    /// Returns the size of the largest segment with all headers, as qdiscs count it. This size is the
    /// minimum quantum. With a smaller quantum, a class builds up a deficit and sends one segment per
    /// round, regardless of its weight.
    fn largest_packet(segment_bytes: u32) -> u32 {
        segment_bytes + segment_bytes.div_ceil(PACKET_PAYLOAD_BYTES) * HEADER_BYTES
    }

    fn wanted(&self, weights: &[u32], segment_bytes: u32) -> (Vec<HtbClass>, bool) {
        let credits = Credits { base: Self::largest_packet(segment_bytes), most: LARGEST_QUANTUM };
        let (quanta, cut) = quanta(weights, credits);
        let classes = self
            .queues
            .iter()
            .enumerate()
            .map(|(queue, HtbQueue { class, .. })| {
                let rate = if self.guaranteed_rates { share(class.ceil_bps, weights, queue) } else { 0 };
                HtbClass {
                    rate_bps: rate.max(class.rate_bps),
                    quantum_bytes: quanta.get(queue).copied().unwrap_or(class.quantum_bytes),
                    ..*class
                }
            })
            .collect();
        (classes, cut)
    }

    /// Checks that the classes exist with the quanta that this run set. Another program may have
    /// installed an HTB with the same handle.
    fn check_own(&mut self) -> Result<(), ControlError> {
        let found = self.netlink.htb_quanta(self.interface)?;
        for (HtbQueue { handle, .. }, class) in self.queues.iter().zip(&self.current) {
            match found.iter().find(|(found, _)| found == handle) {
                None => return Err(removed(*handle)),
                Some((_, quantum)) if *quantum != class.quantum_bytes => {
                    let what = format!("the quantum of class {handle}");
                    return Err(ControlError::SetByOthers { what, found: quantum.to_string() });
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn put(&mut self, wanted: Vec<HtbClass>) -> Result<u32, ControlError> {
        let changes: Vec<usize> =
            (0..wanted.len()).filter(|queue| self.current[*queue] != wanted[*queue]).collect();
        if changes.is_empty() {
            return Ok(0);
        }
        self.check_own()?;
        for queue in &changes {
            let HtbQueue { parent, handle, .. } = self.queues[*queue];
            let Self { netlink, interface, gate, .. } = self;
            let setting = Setting::ClassQuantum { class: handle, bytes: wanted[*queue].quantum_bytes };
            gate.pass(setting, &mut || {
                let changed = netlink.change_htb_class(*interface, parent, handle, &wanted[*queue]);
                changed.map_err(|error| match error.refusal_code() {
                    Some(libc::ENOENT) => removed(handle),
                    _ => error.into(),
                })
            })?;
            self.current[*queue] = wanted[*queue];
        }
        let kept = self.netlink.htb_quanta(self.interface)?;
        for queue in &changes {
            let (handle, set) = (self.queues[*queue].handle, wanted[*queue].quantum_bytes);
            let found = kept.iter().find(|(kept, _)| *kept == handle).map(|(_, found)| *found);
            if found != Some(set) {
                return Err(ControlError::ReadBack {
                    what: format!("the quantum of class {handle}"),
                    set: u64::from(set),
                    found: found.map_or_else(|| "nothing".to_owned(), |found| found.to_string()),
                });
            }
        }
        Ok(changes.len() as u32)
    }
}

fn removed(class: Handle) -> ControlError {
    ControlError::RemovedByOthers { what: format!("the HTB class {class}") }
}

/// Returns a queue's share of a line, bit/s. A queue without flows gets an equal share: with a very low
/// rate, its first packet would make its tokens negative for seconds.
fn share(line_bps: u64, weights: &[u32], queue: usize) -> u64 {
    let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    match weights.get(queue) {
        Some(weight) if *weight > 0 => {
            (u128::from(line_bps) * u128::from(*weight) / u128::from(total.max(1))) as u64
        }
        _ => line_bps / (weights.len().max(1) as u64),
    }
}

impl WeightBackend for HtbWeights {
    fn name(&self) -> String {
        "HTB classes".to_owned()
    }

    fn apply(&mut self, weights: &[u32], segment_bytes: u32) -> Result<Applied, ControlError> {
        let (wanted, cut) = self.wanted(weights, segment_bytes);
        Ok(Applied { queues: self.put(wanted)?, cut })
    }

    fn restore(&mut self) -> Result<(), ControlError> {
        let original = self.queues.iter().map(|queue| queue.class).collect();
        self.put(original).map(|_| ())
    }
}
