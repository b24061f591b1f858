//! Which processors take a NIC's interrupts and which its applications, and how many queues that makes.
//!
//! The paper's section III: interrupts and applications belong on the NIC's own node (III-A, figure 8), apart from each
//! other and off each other's SMT twins (III-B, figure 10). Here several NICs and applications share the cores of a host
//! by need: a NIC needs as many cores for its interrupts as its rate takes ([`interrupt_cores_for`]), and what cannot be
//! had without harm is had where it harms least, by the costs of [`cost`].
//!
//! [`place`] puts everything on its place one by one, in several orders, then moves and swaps as long as that makes it
//! cheaper; on a host of a few processors it tries every placement after that.

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

/// What one core receives of one flow with an MTU of 9,000 bytes, bit/s: the paper's figure 1, one flow, application and
/// interrupts on cores of their own.
const PER_CORE_JUMBO_BPS: u64 = 43_000_000_000;
/// The same with an MTU of 1,500 bytes: figure 5.
const PER_CORE_BPS: u64 = 25_000_000_000;
/// From which MTU on a frame is a jumbo frame, bytes.
const JUMBO: u32 = 8_000;

/// Cores that a NIC's interrupts need at a rate, as a fraction of cores: the paper's hardware had one for 25 Gbit/s, for
/// 43 Gbit/s with jumbo frames. Later processors need less, so a NIC never has too few by this.
#[must_use]
pub fn interrupt_cores_for(rate_bps: u64, mtu: u32) -> f64 {
    let per_core = if mtu >= JUMBO { PER_CORE_JUMBO_BPS } else { PER_CORE_BPS };
    rate_bps as f64 / per_core as f64
}

/// A core with its processors: several where it has simultaneous multithreading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its memory node.
    pub node: u32,
    /// Its package: an interconnect joins packages, not the nodes of one.
    pub package: u32,
    /// Its processors by their numbers; the first is taken first.
    pub processors: Vec<u32>,
}

/// A NIC.
#[derive(Clone, Debug, PartialEq)]
pub struct Nic {
    /// Its name.
    pub name: String,
    /// The node that it is attached to; none on a host where that makes no difference.
    pub node: Option<u32>,
    /// What its interrupts need, in cores: [`interrupt_cores_for`].
    pub need: f64,
    /// Queues that it can have at most.
    pub queues_most: u32,
}

/// An application that works with a NIC's data.
#[derive(Clone, Debug, PartialEq)]
pub struct Application {
    /// Its name.
    pub name: String,
    /// The NIC, by its place in the list.
    pub nic: usize,
    /// Threads that work at the same time.
    pub threads: u32,
    /// What each of them needs of a core, 0 to 1.
    pub need: f64,
    /// Processors that an administrator has pinned it to: its threads stay there, in turn.
    pub pinned: Vec<u32>,
}

/// What has to be placed, and where there is place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Problem {
    /// The host's cores, without those that are isolated.
    pub cores: Vec<Core>,
    /// Its NICs.
    pub nics: Vec<Nic>,
    /// What works with their data.
    pub applications: Vec<Application>,
}

/// A placement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// Of each NIC the processors that take its interrupts, one for each queue that it should have.
    pub interrupts: Vec<Vec<u32>>,
    /// Of each application the processors of its threads.
    pub applications: Vec<Vec<u32>>,
    /// What it costs, by [`cost`], before cores that were left over were shared out.
    pub cost: f64,
}

impl Placement {
    /// Queues that a NIC should have.
    #[must_use]
    pub fn queues(&self, nic: usize) -> u32 {
        self.interrupts.get(nic).map_or(0, |places| u32::try_from(places.len()).unwrap_or(u32::MAX))
    }
}

/// What is placed: the interrupts of one queue, or one thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Unit {
    pub(crate) nic: usize,
    /// Which application it is a thread of; none of a queue's interrupts.
    pub(crate) application: Option<usize>,
    /// What it needs of a core.
    pub(crate) need: f64,
    /// How much of the NIC's traffic passes between it and each unit of the other kind, in cores of need.
    pub(crate) traffic: f64,
    /// Where it stays.
    pub(crate) fixed: Option<Slot>,
}

/// A processor: which core, and which of its processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub(crate) core: usize,
    pub(crate) thread: usize,
}

/// On a node with fewer cores, all of them may take interrupts: half of two would be one.
const FEW_CORES: usize = 8;
/// The least that anything is taken to need, so that idle NICs are placed well, too.
const LEAST_NEED: f64 = 0.01;

impl Problem {
    /// Queues that a NIC needs: as many as its need has cores, no more than it can have.
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

    /// Everything that is to be placed: the NICs' interrupts first, then the applications.
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

    /// Shares out the free cores: on each node in turn to the NIC whose queues have most to do, as far as it can have
    /// more queues. Half of a node's cores are left to applications that are not known yet, unless there are few of them. More cores make it
    /// less likely that several flows meet on one (section III-B).
    pub(crate) fn share_out(&self, placement: &mut Placement) {
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
            let most = if cores.len() < FEW_CORES { cores.len() } else { cores.len() / 2 };
            while used < most {
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
                        // Of equals the first.
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
