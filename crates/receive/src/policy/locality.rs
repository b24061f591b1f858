//! Locality: the CPU that reads a flow, or a CPU near it, serves the flow's queue.

use std::sync::Arc;

use crate::QueueId;
use crate::policy::Flow;
use crate::policy::cost::{Cost, CostFunction, Fact, TERM_UNIT};

/// The receive queues in use, and the CPUs that serve them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queues {
    count: u16,
    /// CPU of each queue.
    processors: Vec<u32>,
    nodes: Vec<u32>,
}

impl Queues {
    /// Creates queues of which queue n is served by CPU n. All CPUs are on one NUMA node.
    #[must_use]
    pub fn new(count: u16) -> Self {
        Self { count, processors: (0..u32::from(count)).collect(), nodes: Vec::new() }
    }

    /// Sets the CPU of each queue. Queues after the end of `processors` keep their CPU.
    #[must_use]
    pub fn served_by(mut self, processors: &[u32]) -> Self {
        self.processors.iter_mut().zip(processors).for_each(|(old, new)| *old = *new);
        self
    }

    /// Sets the NUMA node of each CPU. CPUs after the end of the list are on node 0.
    #[must_use]
    pub fn with_nodes(mut self, node_of_processor: Vec<u32>) -> Self {
        self.nodes = node_of_processor;
        self
    }

    #[must_use]
    pub fn count(&self) -> u16 {
        self.count
    }

    #[must_use]
    pub fn processor(&self, queue: QueueId) -> Option<u32> {
        self.processors.get(queue.index()).copied()
    }

    fn node(&self, processor: u32) -> u32 {
        self.nodes.get(processor as usize).copied().unwrap_or(0)
    }
}

/// Distance of flows from their readers: a flow costs 0 on the reader's CPU, 1 on another CPU of the same
/// NUMA node, and 2 elsewhere. Flows without a known reader cost nothing.
#[derive(Clone, Debug)]
pub struct Locality {
    queues: Arc<Queues>,
    distance: i64,
}

impl Locality {
    #[must_use]
    pub fn new(queues: Arc<Queues>) -> Self {
        Self { queues, distance: 0 }
    }

    fn distance(&self, flow: &Flow, queue: QueueId) -> i64 {
        let Some((reader, server)) = flow.reader.zip(self.queues.processor(queue)) else { return 0 };
        match server {
            _ if server == reader => 0,
            _ if self.queues.node(server) == self.queues.node(reader) => 1,
            _ => 2,
        }
    }
}

impl CostFunction for Locality {
    fn place(&mut self, flow: &Flow, queue: QueueId) {
        self.distance += self.distance(flow, queue);
    }

    fn remove(&mut self, flow: &Flow, queue: QueueId) {
        self.distance -= self.distance(flow, queue);
    }

    fn cost(&self) -> Cost {
        Cost { violations: 0, amount: i128::from(self.distance) * TERM_UNIT }
    }

    fn change(&self, flow: &Flow, from: QueueId, to: QueueId) -> Cost {
        let further = self.distance(flow, to) - self.distance(flow, from);
        Cost { violations: 0, amount: i128::from(further) * TERM_UNIT }
    }

    fn lacks(&self, flow: &Flow) -> Option<Fact> {
        flow.reader.is_none().then_some(Fact::Reader)
    }

    fn boxed(&self) -> Box<dyn CostFunction> {
        Box::new(self.clone())
    }
}

/// Number of flows that are not on their previous queue; each costs 1, because moving a flow can reorder its
/// packets.
///
/// A flow without a known previous queue costs nothing.
#[derive(Clone, Debug, Default)]
pub struct FewestChanges {
    moved: i64,
}

impl FewestChanges {
    fn moved(flow: &Flow, queue: QueueId) -> i64 {
        i64::from(flow.before.is_some_and(|before| before != queue))
    }
}

impl CostFunction for FewestChanges {
    fn place(&mut self, flow: &Flow, queue: QueueId) {
        self.moved += Self::moved(flow, queue);
    }

    fn remove(&mut self, flow: &Flow, queue: QueueId) {
        self.moved -= Self::moved(flow, queue);
    }

    fn cost(&self) -> Cost {
        Cost { violations: 0, amount: i128::from(self.moved) * TERM_UNIT }
    }

    fn change(&self, flow: &Flow, from: QueueId, to: QueueId) -> Cost {
        let more = Self::moved(flow, to) - Self::moved(flow, from);
        Cost { violations: 0, amount: i128::from(more) * TERM_UNIT }
    }

    fn lacks(&self, flow: &Flow) -> Option<Fact> {
        flow.before.is_none().then_some(Fact::PreviousQueue)
    }

    fn boxed(&self) -> Box<dyn CostFunction> {
        Box::new(self.clone())
    }
}
