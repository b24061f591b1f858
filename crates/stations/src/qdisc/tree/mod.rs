//! Builds the disciplines of a device from the description that also configures the kernel
//! ([`evenkeel_model::qdisc::QdiscTree`]).
//!
//! - Unset options have the kernel's defaults.
//! - A class without a qdisc has the kernel's `pfifo` of [`DEFAULT_LIMIT`](super::DEFAULT_LIMIT) segments; a
//!   queue of `mq` has `pfifo_fast`.
//! - The builder evaluates filters once per flow and stores the result in tables. [`Hop::filters`] counts
//!   their cost at run time.
//! - An unsupported feature causes an error with the name of the feature.

mod classful;
mod classless;
mod options;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use evenkeel_model::change::Handle;
use evenkeel_model::qdisc::kinds::hint;
use evenkeel_model::qdisc::{self, BULK_PORT, Filter, Node, PROBE_PORT, QdiscTree, Step};

use super::{Kind, KindError};

/// The properties of a flow that filters and bands select by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowKey {
    pub port: u16,
    /// `skb->priority`, which the kernel derives from the type of service: 0 is best effort, 6
    /// interactive.
    pub priority: u8,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Disciplines {
    /// One discipline per transmit queue if the root is `mq`. Otherwise one discipline for all queues.
    pub queues: Vec<Kind>,
    /// All qdiscs of the tree, a parent before its children.
    pub qdiscs: Vec<TreeQdisc>,
    /// For each entry of [`Self::queues`] and each flow: the qdiscs that a segment passes, from the
    /// root on.
    pub paths: Vec<Vec<Vec<Hop>>>,
    /// Whether TCP paces its packets: the tree has an `fq` without `nopacing`.
    pub pacing: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeQdisc {
    pub handle: Handle,
    pub kind: String,
    pub classes: u32,
    /// Index in [`Disciplines::queues`] of the discipline that contains the qdisc.
    pub queue: u32,
    /// Index of the qdisc in [`super::Qdisc::overlimits`], if the qdisc is a shaper.
    pub shaper: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Index in [`Disciplines::qdiscs`].
    pub qdisc: u32,
    /// Number of rules per classifier that the kernel compares with a segment.
    pub filters: BTreeMap<qdisc::Classifier, u32>,
}

/// Returns the advice for a kind that the simulator does not have.
fn what_then(kind: &str) -> String {
    match hint(kind) {
        known if known.is_empty() => {
            "; run the scenario on a kernel that has this qdisc (--on netns)".to_owned()
        }
        misspelt => misspelt,
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    #[error("the simulator has no {kind} ({handle}){}", what_then(kind))]
    Kind { kind: String, handle: Handle },
    #[error(
        "the simulator's {kind} ({handle}) has no option {option}; run the scenario on a kernel (--on netns)"
    )]
    Option { kind: String, handle: Handle, option: String },
    #[error(
        "the simulator does not support this setup of {kind} ({handle}): {problem}; run the scenario on a \
         kernel (--on netns)"
    )]
    Shape { kind: String, handle: Handle, problem: String },
    #[error("the qdisc setup has no root qdisc; begin with a step such as qdisc root handle 1: fq")]
    Rootless,
    #[error(transparent)]
    Number(#[from] KindError),
}

/// Builds the disciplines of a device with this number of transmit queues and this layer-3 MTU in bytes.
pub fn build(tree: &QdiscTree, flows: &[FlowKey], queues: u32, mtu: u32) -> Result<Disciplines, TreeError> {
    let root = tree.root().ok_or(TreeError::Rootless)?;
    let mut builder = Builder {
        tree,
        flows,
        frame: mtu.saturating_add(ETHERNET_HEADER_BYTES),
        qdiscs: Vec::new(),
        paths: vec![Vec::new(); flows.len()],
        queue: 0,
        shapers: 0,
        pacing: false,
    };
    let all: Vec<u32> = (0..flows.len() as u32).collect();
    builder.check_filters()?;
    let (mut kinds, mut paths) = (Vec::new(), Vec::new());
    if root.kind == "mq" {
        options::Options::of(root).finish()?;
        let mq = builder.register(root, queues, false);
        for queue in 0..queues.max(1) {
            builder.queue = queue;
            builder.shapers = 0;
            builder.paths = vec![vec![Hop { qdisc: mq, filters: BTreeMap::new() }]; flows.len()];
            let class = Handle::new(root.handle.major, (queue + 1) as u16);
            kinds.push(builder.child_or(class, &all, Kind::PfifoFast { limit: super::DEFAULT_LIMIT })?);
            paths.push(std::mem::take(&mut builder.paths));
        }
    } else {
        kinds.push(builder.qdisc(root, &all)?);
        paths.push(std::mem::take(&mut builder.paths));
    }
    for kind in &kinds {
        super::Qdisc::new(kind, 0)?;
    }
    Ok(Disciplines { queues: kinds, qdiscs: builder.qdiscs, paths, pacing: builder.pacing })
}

const ETHERNET_HEADER_BYTES: u32 = 14;

struct Builder<'a> {
    tree: &'a QdiscTree,
    flows: &'a [FlowKey],
    /// A full frame, bytes (`psched_mtu`).
    frame: u32,
    qdiscs: Vec<TreeQdisc>,
    paths: Vec<Vec<Hop>>,
    queue: u32,
    shapers: u32,
    pacing: bool,
}

impl<'a> Builder<'a> {
    /// Returns the qdisc of `node` with all qdiscs below it, for the flows that reach it.
    fn qdisc(&mut self, node: &Node, flows: &[u32]) -> Result<Kind, TreeError> {
        match node.kind.as_str() {
            "htb" => self.htb(node, flows),
            "hfsc" => self.hfsc(node, flows),
            "drr" => self.drr(node, flows),
            "qfq" => self.qfq(node, flows),
            "ets" => self.ets(node, flows),
            "prio" => self.prio(node, flows),
            "tbf" => self.tbf(node, flows),
            _ => self.classless(node, flows),
        }
    }

    /// Returns the qdisc below a class, or `other`.
    fn child_or(&mut self, class: Handle, flows: &[u32], other: Kind) -> Result<Kind, TreeError> {
        match self.tree.qdiscs().find(|node| node.parent == class) {
            Some(node) => self.qdisc(node, flows),
            None => Ok(other),
        }
    }

    fn register(&mut self, node: &Node, classes: u32, shapes: bool) -> u32 {
        let shaper = shapes.then_some(self.shapers);
        self.shapers += u32::from(shapes);
        self.qdiscs.push(TreeQdisc {
            handle: node.handle,
            kind: node.kind.clone(),
            classes,
            queue: self.queue,
            shaper,
        });
        self.qdiscs.len() as u32 - 1
    }

    fn register_leaf(&mut self, node: &Node, flows: &[u32]) {
        let qdisc = self.register(node, 0, false);
        for flow in flows {
            self.paths[*flow as usize].push(Hop { qdisc, filters: BTreeMap::new() });
        }
    }

    /// Returns the class of each flow by the qdisc's filters. Records the number of compared rules.
    fn classify(&mut self, node: &Node, qdisc: u32, flows: &[u32]) -> Vec<Option<Handle>> {
        let filters: Vec<&Filter> = self.filters_of(node).collect();
        let mut found = Vec::with_capacity(flows.len());
        for flow in flows {
            let mut looked_at = BTreeMap::new();
            let key = self.flows[*flow as usize];
            let class = filters.iter().find_map(|filter| {
                *looked_at.entry(classifier_of(filter)).or_insert(0) += 1;
                class_by(filter, key)
            });
            self.paths[*flow as usize].push(Hop { qdisc, filters: looked_at });
            found.push(class);
        }
        found
    }

    fn filters_of(&self, node: &Node) -> impl Iterator<Item = &'a Filter> {
        let handle = node.handle;
        self.tree.steps.iter().filter_map(move |step| match step {
            Step::Filter { parent, filter } if *parent == handle => Some(filter),
            _ => None,
        })
    }

    /// Returns an error if a filter's parent is not a qdisc.
    fn check_filters(&self) -> Result<(), TreeError> {
        for step in &self.tree.steps {
            if let Step::Filter { parent, .. } = step
                && !self.tree.qdiscs().any(|node| node.handle == *parent)
            {
                return Err(TreeError::Shape {
                    kind: "a filter".to_owned(),
                    handle: *parent,
                    problem: "its parent is a class".to_owned(),
                });
            }
        }
        Ok(())
    }
}

fn shape(node: &Node, problem: impl Into<String>) -> TreeError {
    TreeError::Shape { kind: node.kind.clone(), handle: node.handle, problem: problem.into() }
}

fn classifier_of(filter: &Filter) -> qdisc::Classifier {
    match filter {
        Filter::PerFlow { .. } | Filter::ByRole { .. } => qdisc::Classifier::Bpf,
        Filter::Port { classifier, .. } => *classifier,
    }
}

fn class_by(filter: &Filter, flow: FlowKey) -> Option<Handle> {
    match filter {
        Filter::PerFlow { first, bulk_flows, probes, classes, rest } => {
            let number = |base: u16, count: u32| {
                flow.port.checked_sub(base).map(u32::from).filter(|number| *number < count)
            };
            let probe = number(PROBE_PORT, *probes).map(|probe| bulk_flows + probe);
            match probe.or_else(|| number(BULK_PORT, *bulk_flows)) {
                Some(number) => {
                    let minor = u32::from(first.minor) + number % (*classes).max(1);
                    Some(Handle::new(first.major, minor as u16))
                }
                None => *rest,
            }
        }
        Filter::ByRole { probes, bulk } => Some(if flow.port >= PROBE_PORT { *probes } else { *bulk }),
        Filter::Port { port, class, .. } => (flow.port == *port).then_some(*class),
    }
}
