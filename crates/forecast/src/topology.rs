//! Maps a host's CPUs to the cores of a simulated machine.
//!
//! The model has packages with an interconnect between them, each with the same number of cores. Memory
//! nodes of one package (sub-NUMA clustering, NPS) become one node, because no interconnect separates
//! them. The threads of a core become one core.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::host::{HostFacts, Processor};

/// The cores of a host, as the model numbers them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    pub packages: u32,
    /// Cores of the largest package.
    pub cores_per_package: u32,
    /// Core of each CPU.
    cores: BTreeMap<u32, u32>,
    /// Package of each memory node.
    nodes: BTreeMap<u32, u32>,
}

impl Topology {
    #[must_use]
    pub fn of(facts: &HostFacts) -> Self {
        let mut packages_of_node: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for processor in &facts.processors {
            packages_of_node.entry(processor.node).or_default().insert(processor.package);
        }
        // If NUMA is off, one node has several packages, and the NIC's package is unknown. Then each node
        // counts as one package.
        let by_package = packages_of_node.values().all(|packages| packages.len() == 1);
        let place = |processor: &Processor| if by_package { processor.package } else { processor.node };
        let mut cores: BTreeMap<u32, BTreeSet<(u32, u32, u32)>> = BTreeMap::new();
        let core = |processor: &Processor| (processor.node, processor.package, processor.core);
        for processor in &facts.processors {
            cores.entry(place(processor)).or_default().insert(core(processor));
        }
        let most = cores.values().map(BTreeSet::len).max().unwrap_or(0) as u32;
        let numbers: BTreeMap<u32, u32> = cores.keys().copied().zip(0..).collect();
        let mut found = Self { packages: cores.len() as u32, cores_per_package: most, ..Self::default() };
        for processor in &facts.processors {
            let place = place(processor);
            let package = numbers.get(&place).copied().unwrap_or(0);
            let before = cores.get(&place).map_or(0, |cores| cores.range(..core(processor)).count());
            found.cores.insert(processor.number, package * most + before as u32);
            found.nodes.insert(processor.node, package);
        }
        found
    }

    #[must_use]
    pub fn cores(&self) -> u32 {
        self.packages.saturating_mul(self.cores_per_package)
    }

    /// Returns the core of a CPU; `None` if the CPU is not online.
    #[must_use]
    pub fn core(&self, processor: u32) -> Option<u32> {
        self.cores.get(&processor).copied()
    }

    /// Returns the first CPU of a core; `None` if the core has no CPU.
    #[must_use]
    pub fn processor(&self, core: u32) -> Option<u32> {
        self.cores.iter().find(|(_, own)| **own == core).map(|(processor, _)| *processor)
    }

    /// Returns the package of a memory node; `None` if the node has no CPUs.
    #[must_use]
    pub fn package(&self, node: u32) -> Option<u32> {
        self.nodes.get(&node).copied()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn host(places: &[(u32, u32, u32)]) -> HostFacts {
        let processor = |(number, (node, package, core)): (u32, &(u32, u32, u32))| Processor {
            number,
            node: *node,
            package: *package,
            core: *core,
            ..Processor::default()
        };
        HostFacts { processors: (0..).zip(places).map(processor).collect(), ..HostFacts::default() }
    }

    #[test]
    fn threads_share_a_core_and_nodes_of_a_package_become_one() {
        // Two packages of two nodes with two cores each; the second threads are listed last.
        let cores: Vec<(u32, u32, u32)> = (0..8).map(|core| (core / 2, core / 4, core % 4)).collect();
        let found = Topology::of(&host(&[cores.clone(), cores].concat()));
        assert_eq!((found.packages, found.cores_per_package, found.cores()), (2, 4, 8));
        assert_eq!((found.core(5), found.core(13), found.core(16)), (Some(5), Some(5), None));
        assert_eq!((found.package(1), found.package(2), found.package(4)), (Some(0), Some(1), None));
        assert_eq!(found.processor(5), Some(5));
    }

    #[test]
    fn packages_of_different_size_and_one_node_for_all() {
        let uneven = Topology::of(&host(&[(0, 0, 0), (0, 0, 1), (0, 0, 2), (3, 1, 0)]));
        assert_eq!((uneven.packages, uneven.cores_per_package), (2, 3));
        assert_eq!((uneven.core(3), uneven.package(3)), (Some(3), Some(1)));
        let flat = Topology::of(&host(&[(0, 0, 0), (0, 1, 0)]));
        assert_eq!((flat.packages, flat.cores_per_package), (1, 2));
        assert_eq!(Topology::of(&HostFacts::default()).cores(), 0);
    }
}
