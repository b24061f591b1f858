//! Chooses the processors of a NIC's interrupts and of its applications, and the resulting number of queues.
//!
//! By the paper's section III, interrupts and applications belong on the NIC's own node (III-A, figure 8).
//! They need separate cores, and must not be on SMT siblings of one core (III-B, figure 10).
//!
//! Here several NICs and applications share the cores of a host by need. A NIC needs cores for its interrupts
//! in proportion to its rate ([`interrupt_cores_for`]). If the cores do not suffice for all, the placement
//! with the lowest [`cost`] is chosen.
//!
//! [`place`] assigns the units one by one, in several orders, then moves and swaps them while that lowers the
//! cost. On a host with few processors it then tries every placement.

pub mod cost;
mod facts;
mod interrupts;
mod maps;
mod search;

use std::collections::BTreeSet;

pub use facts::{interrupt_processors, problem};
pub use interrupts::{
    Distance, Places, channel_changes, cores_for_applications, distance, interrupt_changes, interrupt_places,
};
pub use maps::map_changes;
pub use search::place;

/// Rate that one core receives of one flow with an MTU of 9,000 bytes, bit/s: the paper's figure 1, one flow,
/// application and interrupts on separate cores.
const PER_CORE_JUMBO_BPS: u64 = 43_000_000_000;
/// Rate that one core receives of one flow with an MTU of 1,500 bytes, bit/s: the paper's figure 5.
const PER_CORE_BPS: u64 = 25_000_000_000;
/// Smallest MTU of jumbo frames, bytes.
const JUMBO: u32 = 8_000;

/// Returns the number of cores that a NIC's interrupts need at a rate, with a fraction. The paper's hardware
/// needed one core for 25 Gbit/s, or for 43 Gbit/s with jumbo frames. Newer processors need fewer cores, so
/// for them the result is an upper bound.
#[must_use]
pub fn interrupt_cores_for(rate_bps: u64, mtu: u32) -> f64 {
    let per_core = if mtu >= JUMBO { PER_CORE_JUMBO_BPS } else { PER_CORE_BPS };
    rate_bps as f64 / per_core as f64
}

/// A core with its processors; several with simultaneous multithreading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    pub node: u32,
    /// The package. An interconnect joins packages, not the nodes of one package.
    pub package: u32,
    /// Numbers of the processors, in the order in which they are assigned.
    pub processors: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Nic {
    pub name: String,
    /// The node that the NIC is attached to; `None` if the host does not distinguish nodes.
    pub node: Option<u32>,
    /// Cores that the NIC's interrupts need: [`interrupt_cores_for`].
    pub need: f64,
    pub queues_most: u32,
}

/// An application that uses a NIC's data.
#[derive(Clone, Debug, PartialEq)]
pub struct Application {
    pub name: String,
    /// Index of the NIC in [`Problem::nics`].
    pub nic: usize,
    /// Number of threads that work at the same time.
    pub threads: u32,
    /// Share of a core that each thread needs, 0 to 1.
    pub need: f64,
    /// Processors to which an administrator has pinned the application. Its threads are assigned to
    /// these processors round robin.
    pub pinned: Vec<u32>,
}

/// The units to place, and the cores on which to place them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Problem {
    /// The host's cores without isolated ones.
    pub cores: Vec<Core>,
    pub nics: Vec<Nic>,
    pub applications: Vec<Application>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// For each NIC, the processors of its interrupts: one for each planned queue.
    pub interrupts: Vec<Vec<u32>>,
    /// For each application the processors of its threads.
    pub applications: Vec<Vec<u32>>,
    /// The placement's [`cost`], before the unused cores are divided among the NICs.
    pub cost: f64,
}

impl Placement {
    #[must_use]
    pub fn queues(&self, nic: usize) -> u32 {
        self.interrupts.get(nic).map_or(0, |places| u32::try_from(places.len()).unwrap_or(u32::MAX))
    }
}

/// A unit of placement: the interrupts of one queue, or one thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Unit {
    pub(crate) nic: usize,
    /// The application of a thread; `None` for a queue's interrupts.
    pub(crate) application: Option<usize>,
    pub(crate) need: f64,
    /// The NIC's traffic between this unit and each unit of the other kind, as the number of cores that
    /// the traffic needs.
    pub(crate) traffic: f64,
    pub(crate) fixed: Option<Slot>,
}

/// A processor: the core, and the processor within the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub(crate) core: usize,
    pub(crate) thread: usize,
}

/// On a node with fewer cores, all cores may take interrupts: half of two cores would be only one core.
const FEW_CORES: usize = 8;
/// The smallest assumed need, so that the search also places idle NICs well.
const LEAST_NEED: f64 = 0.01;

impl Problem {
    /// Returns the number of queues that a NIC needs: its need in cores, rounded up, at least 1, and at most
    /// its maximum.
    fn queues_needed(nic: &Nic) -> u32 {
        let needed = nic.need.max(0.0).ceil().min(f64::from(nic.queues_most));
        (needed as u32).max(1)
    }

    fn slot_of(&self, processor: u32) -> Option<Slot> {
        self.cores.iter().enumerate().find_map(|(core, found)| {
            let thread = found.processors.iter().position(|number| *number == processor)?;
            Some(Slot { core, thread })
        })
    }

    /// Returns all units to place: the NICs' interrupts first, then the applications.
    pub(crate) fn units(&self) -> Vec<Unit> {
        let mut units = Vec::new();
        for (number, nic) in self.nics.iter().enumerate() {
            let queues = Self::queues_needed(nic);
            let need = (nic.need / f64::from(queues)).clamp(LEAST_NEED, 1.0);
            let threads: u32 = self.of_nic(number).map(|application| application.threads).sum();
            let traffic = (nic.need / (f64::from(queues) * f64::from(threads.max(1)))).max(LEAST_NEED);
            let unit = Unit { nic: number, application: None, need, traffic, fixed: None };
            units.extend((0..queues).map(|_| unit));
        }
        for (number, application) in self.applications.iter().enumerate() {
            let Some(nic) = self.nics.get(application.nic) else { continue };
            let queues = Self::queues_needed(nic);
            let threads: u32 = self.of_nic(application.nic).map(|application| application.threads).sum();
            let traffic = (nic.need / (f64::from(queues) * f64::from(threads.max(1)))).max(LEAST_NEED);
            let places: Vec<Slot> =
                application.pinned.iter().filter_map(|processor| self.slot_of(*processor)).collect();
            units.extend((0..application.threads).map(|thread| Unit {
                nic: application.nic,
                application: Some(number),
                need: application.need.clamp(LEAST_NEED, 1.0),
                traffic,
                fixed: places.get(thread as usize % places.len().max(1)).copied(),
            }));
        }
        units
    }

    fn of_nic(&self, nic: usize) -> impl Iterator<Item = &Application> {
        self.applications.iter().filter(move |application| application.nic == nic)
    }

    /// Divides the free cores among the NICs. On each node, the next core goes to the NIC with the highest
    /// need per queue that can have more queues. More cores make it less likely that several flows meet on
    /// one core (section III-B).
    ///
    /// The division stops when half of a node's cores have interrupts, unless the node has few cores. The
    /// other cores are for applications, also for those that are not known yet.
    pub(crate) fn share_out(&self, placement: &mut Placement) {
        self.share(placement, |cores| if cores < FEW_CORES { cores } else { cores / 2 });
    }

    /// Divides the remaining free cores among the NICs that can have more queues than the placement plans. An
    /// existing queue is better on a separate core than on a core with another queue.
    pub(crate) fn share_rest(&self, placement: &mut Placement) {
        self.share(placement, |cores| cores);
    }

    /// Divides the free cores of each node until interrupts use the number of cores that `most` returns for
    /// the node's number of cores.
    fn share(&self, placement: &mut Placement, most: impl Fn(usize) -> usize) {
        let busy: BTreeSet<u32> =
            placement.interrupts.iter().chain(&placement.applications).flatten().copied().collect();
        let nodes: BTreeSet<u32> = self.cores.iter().map(|core| core.node).collect();
        for node in nodes {
            let cores: Vec<&Core> = self.cores.iter().filter(|core| core.node == node).collect();
            let is_free = |core: &&Core| !core.processors.iter().any(|number| busy.contains(number));
            let mut free = cores.iter().copied().filter(is_free);
            let is_used = |core: &&&Core| {
                let mut taken = placement.interrupts.iter().flatten();
                taken.any(|number| core.processors.contains(number))
            };
            let mut used = cores.iter().filter(is_used).count();
            while used < most(cores.len()) {
                let per_queue =
                    |(number, nic): &(usize, &Nic)| nic.need / f64::from(placement.queues(*number).max(1));
                let neediest = self
                    .nics
                    .iter()
                    .enumerate()
                    .filter(|(number, nic)| {
                        nic.node.is_none_or(|of| of == node) && placement.queues(*number) < nic.queues_most
                    })
                    .max_by(|one, other| {
                        // The first NIC wins a tie.
                        per_queue(one).total_cmp(&per_queue(other)).then(other.0.cmp(&one.0))
                    });
                let Some((number, _)) = neediest else { break };
                let Some(processor) = free.next().and_then(|core| core.processors.first()) else { break };
                if let Some(places) = placement.interrupts.get_mut(number) {
                    places.push(*processor);
                }
                used += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
