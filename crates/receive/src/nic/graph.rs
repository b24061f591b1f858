//! Physical resource graphs: how a NIC processes a packet, step by step (Dragonet, section 3.1).
//!
//! - A *function node* enables one of its ports by a predicate on the packet.
//! - An *operator node* is the AND or OR of ports of other nodes. A port is true if it is enabled, and false
//!   if its node has enabled another port.
//! - A *configuration node* is a filter table or RSS. It steers a packet to a queue, or passes it on through
//!   its port `miss`.
//! - A *queue node* is the end of a path.

use crate::filter::{QueueId, TableId};
use crate::packet::Header;

use super::predicate::Predicate;

/// A node: an index into [`Graph::nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

impl NodeId {
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Name of the port, unique in its node.
    pub name: String,
    /// Predicate of a function node's port. A port without predicate takes the remaining packets.
    pub when: Option<Predicate>,
    /// Nodes that the port enables. Operators that have the port as operand are not listed.
    pub to: Vec<NodeId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    pub node: NodeId,
    /// Port that makes the operand true.
    pub port: usize,
}

/// Index of the port for the true result of an operator. A source has only this port. A configuration node
/// uses this port for the packets that it steers.
pub const TRUE: usize = 0;
/// Index of the port for the false result of an operator. A configuration node uses this port for the packets
/// that it does not steer.
pub const FALSE: usize = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeKind {
    Source,
    /// Enables the port whose predicate holds.
    Function,
    And(Vec<Operand>),
    Or(Vec<Operand>),
    Table(TableId),
    Rss,
    Queue(QueueId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name of the node, unique in the graph.
    pub name: String,
    pub kind: NodeKind,
    pub ports: Vec<Port>,
}

/// The graph of a NIC without configuration. It has no cycle, and its nodes are in topological order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    pub(super) nodes: Vec<Node>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Walk {
    /// Configuration nodes on the path, in order.
    pub(super) met: Vec<NodeId>,
    pub(super) last: Option<NodeId>,
    pub(super) queues: Vec<NodeId>,
    /// The first function node of which no port, or more than one port, fits the packet.
    pub(super) undecided: Option<NodeId>,
}

impl Graph {
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Follows a packet with `header` through the graph. `hit` is the configuration node that steers the
    /// packet, if any.
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

/// Evaluates an operator. Returns `early` if one operand has this value, `late` if all operands have
/// the other value, and `None` otherwise.
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

/// Returns the only port whose predicate holds, or the port without predicate if no predicate holds. Returns
/// `None` if several predicates hold, or if no predicate holds and each port has one.
fn function_port(ports: &[Port], header: &Header) -> Option<usize> {
    let holds = |port: &Port| port.when.as_ref().is_some_and(|when| when.holds(header));
    let mut holding = ports.iter().enumerate().filter(|(_, port)| holds(port)).map(|(index, _)| index);
    match (holding.next(), holding.next()) {
        (Some(only), None) => Some(only),
        (None, _) => ports.iter().position(|port| port.when.is_none()),
        (Some(_), Some(_)) => None,
    }
}
