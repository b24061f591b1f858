//! Physical resource graphs: a NIC's processing of a packet, step by step (Dragonet, section 3.1).
//!
//! A *function node* enables one of its ports by a predicate on the packet. An *operator node* is the AND or OR
//! of ports of other nodes: an enabled port is true, and false if its node has enabled another one. A
//! *configuration node*, a filter table or RSS, either steers a packet to a queue, or passes it on through its
//! port `miss`. A *queue node* is the end.

use crate::filter::{QueueId, TableId};
use crate::packet::Header;

use super::predicate::Predicate;

/// A node: the index into [`Graph::nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

impl NodeId {
    /// As an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A port of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Name, unique in its node.
    pub name: String,
    /// Predicate of a function node's port; a port without one takes the rest.
    pub when: Option<Predicate>,
    /// The nodes that it enables, without operators that have it as operand.
    pub to: Vec<NodeId>,
}

/// An operand of an operator node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Its node.
    pub node: NodeId,
    /// The port that makes it true.
    pub port: usize,
}

/// The port of operators for a true result, the only port of sources, and the port of configuration nodes for
/// steered packets.
pub const TRUE: usize = 0;
/// The port of operators for a false result, and of configuration nodes for packets that they do not steer.
pub const FALSE: usize = 1;

/// Kind of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// The source of packets.
    Source,
    /// Enables the port whose predicate holds.
    Function,
    /// True if all operands are.
    And(Vec<Operand>),
    /// True if one operand is.
    Or(Vec<Operand>),
    /// A filter table.
    Table(TableId),
    /// The RSS hash and its indirection table.
    Rss,
    /// A receive queue.
    Queue(QueueId),
}

/// A node of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name, unique in the graph.
    pub name: String,
    /// Kind.
    pub kind: NodeKind,
    /// Ports.
    pub ports: Vec<Port>,
}

/// The graph of an unconfigured NIC. It has no cycle: nodes are in topological order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    pub(super) nodes: Vec<Node>,
}

/// A packet's path through a graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Walk {
    /// Configuration nodes on the path, in order.
    pub(super) met: Vec<NodeId>,
    /// The last node on the path.
    pub(super) last: Option<NodeId>,
    /// Queue nodes on the path.
    pub(super) queues: Vec<NodeId>,
    /// A function node with no port, or several ports, for the packet.
    pub(super) undecided: Option<NodeId>,
}

impl Graph {
    /// In topological order.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Follows a packet of this kind; the configuration node `hit`, if any, steers it.
    pub(super) fn walk(&self, header: &Header, hit: Option<NodeId>) -> Walk {
        let mut walk = Walk::default();
        let mut reached = vec![false; self.nodes.len()];
        let mut enabled: Vec<Option<usize>> = vec![None; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            let id = NodeId(index as u16);
            let port = match &node.kind {
                NodeKind::Source => Some(TRUE),
                NodeKind::And(operands) => evaluate(operands, &enabled, FALSE, TRUE),
                NodeKind::Or(operands) => evaluate(operands, &enabled, TRUE, FALSE),
                _ if !reached[index] => None,
                NodeKind::Function => {
                    let port = function_port(&node.ports, header);
                    if port.is_none() {
                        walk.undecided = walk.undecided.or(Some(id));
                    }
                    port
                }
                NodeKind::Table(_) | NodeKind::Rss => {
                    walk.met.push(id);
                    Some(if hit == Some(id) { TRUE } else { FALSE })
                }
                NodeKind::Queue(_) => {
                    walk.queues.push(id);
                    None
                }
            };
            enabled[index] = port;
            if port.is_some() {
                walk.last = Some(id);
            }
            for to in port.and_then(|port| node.ports.get(port)).into_iter().flat_map(|port| &port.to) {
                reached[to.index()] = true;
            }
        }
        walk
    }
}

/// The port of an operator: `early` if one operand has that value, `late` if all have the other, else none.
fn evaluate(operands: &[Operand], enabled: &[Option<usize>], early: usize, late: usize) -> Option<usize> {
    let value = |operand: &Operand| {
        enabled[operand.node.index()].map(|port| if port == operand.port { TRUE } else { FALSE })
    };
    if operands.iter().any(|operand| value(operand) == Some(early)) {
        Some(early)
    } else {
        operands.iter().all(|operand| value(operand) == Some(late)).then_some(late)
    }
}

/// Returns the one port whose predicate holds, or the one without predicate if none does.
fn function_port(ports: &[Port], header: &Header) -> Option<usize> {
    let holds = |port: &Port| port.when.as_ref().is_some_and(|when| when.holds(header));
    let mut holding = ports.iter().enumerate().filter(|(_, port)| holds(port)).map(|(index, _)| index);
    match (holding.next(), holding.next()) {
        (Some(only), None) => Some(only),
        (None, _) => ports.iter().position(|port| port.when.is_none()),
        (Some(_), Some(_)) => None,
    }
}
