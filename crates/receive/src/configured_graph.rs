//! The graph of a configured NIC: the model's graph with the configuration nodes filled in (Dragonet,
//! Figure 1a).
//!
//! A filter table becomes a chain of nodes, one per filter, by precedence. RSS becomes a node with a
//! port per queue of its table. Each queue has an OR of all ports that lead to it.
//!
//! [`ConfiguredGraph::queues_of`] follows one packet through the graph and compares fields one by one.
//! The function is deliberately slow and simple, because it is the reference for the tests of the fast
//! [`ConfiguredNic::queue_of`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::filter::{AddressMatch, ContextId, Filter, FilterMatch, QueueId};
use crate::key::{ETHER_TYPE_IPV4, ETHER_TYPE_IPV6};
use crate::nic::{ConfiguredNic, FilterId, Graph, NodeKind, Precedence, Predicate};
use crate::packet::Packet;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfiguredKind {
    Source,
    /// Enables the first port whose predicate holds. A port without predicate takes the remaining packets.
    Function(Vec<Option<Predicate>>),
    /// True (port 0) if all operands are true. An operand is a node and the port that makes it true.
    And(Vec<(usize, usize)>),
    /// True (port 0) if at least one operand is true.
    Or(Vec<(usize, usize)>),
    /// True (port 0) for packets that the filter matches.
    Filter(FilterId, Filter),
    /// A filter table without filters: false (port 1) for every packet.
    EmptyTable,
    /// Enables the port of the queue that RSS chooses.
    Hash {
        /// Offset that is added to the queue numbers of the indirection table.
        up: QueueId,
        /// RSS context whose indirection table is used; `None` for the NIC's own table.
        context: Option<ContextId>,
        queues: Vec<QueueId>,
    },
    /// Disabled RSS: false (port 1) for every packet.
    HashOff,
    Queue(QueueId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredNode {
    /// Name of the node; not unique.
    pub name: String,
    pub kind: ConfiguredKind,
    /// Name of each port, and the nodes that it enables. Operator nodes are not listed: they read the ports.
    pub ports: Vec<(String, Vec<usize>)>,
}

#[derive(Clone, Debug)]
pub struct ConfiguredGraph<'n> {
    nic: &'n ConfiguredNic,
    nodes: Vec<ConfiguredNode>,
}

/// The nodes of a configured graph that replace one node of the model.
#[derive(Clone, Debug, Default)]
struct Placed {
    entry: usize,
    /// The node and port of each of the model's ports.
    ports: Vec<(usize, usize)>,
}

impl<'n> ConfiguredGraph<'n> {
    #[must_use]
    pub fn of(nic: &'n ConfiguredNic) -> Self {
        Builder { nic, nodes: Vec::new(), to_queues: Vec::new() }.build()
    }

    #[must_use]
    pub fn nic(&self) -> &ConfiguredNic {
        self.nic
    }

    #[must_use]
    pub fn nodes(&self) -> &[ConfiguredNode] {
        &self.nodes
    }

    /// Follows a packet to its queues. In a correct graph, a packet has exactly one queue.
    #[must_use]
    pub fn queues_of(&self, packet: &Packet) -> Vec<QueueId> {
        let mut queues = Vec::new();
        let mut reached = vec![false; self.nodes.len()];
        let mut enabled: Vec<Option<usize>> = vec![None; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            let value = |(node, port): &(usize, usize)| enabled[*node].map(|enabled| enabled == *port);
            enabled[index] = match &node.kind {
                ConfiguredKind::Source => Some(0),
                ConfiguredKind::And(operands) | ConfiguredKind::Or(operands) => {
                    let is_and = matches!(node.kind, ConfiguredKind::And(_));
                    let values: Vec<Option<bool>> = operands.iter().map(value).collect();
                    if values.contains(&Some(!is_and)) {
                        Some(usize::from(is_and))
                    } else if values.iter().all(|value| *value == Some(is_and)) {
                        Some(usize::from(!is_and))
                    } else {
                        None
                    }
                }
                _ if !reached[index] => None,
                ConfiguredKind::Function(predicates) => {
                    let holds = |predicate: &Option<Predicate>| {
                        predicate.as_ref().is_some_and(|predicate| predicate.holds(&packet.header))
                    };
                    predicates.iter().position(holds).or_else(|| predicates.iter().position(Option::is_none))
                }
                ConfiguredKind::Filter(_, filter) => {
                    let signature = self.nic.is_signature(filter.table);
                    let matches = if signature {
                        same_signature(&filter.matches, packet)
                    } else {
                        fields_match(&filter.matches, packet)
                    };
                    Some(usize::from(!matches))
                }
                ConfiguredKind::EmptyTable | ConfiguredKind::HashOff => Some(1),
                ConfiguredKind::Hash { up, context, queues } => {
                    let queue = self.hashed(packet, *up, *context);
                    queues.iter().position(|port| *port == queue)
                }
                ConfiguredKind::Queue(queue) => {
                    queues.push(*queue);
                    None
                }
            };
            let port = enabled[index].and_then(|port| node.ports.get(port));
            for to in port.into_iter().flat_map(|(_, to)| to) {
                reached[*to] = true;
            }
        }
        queues
    }

    /// Returns the queue that the indirection table names for the packet's hash. Adds `up` to its number,
    /// modulo the NIC's number of queues.
    fn hashed(&self, packet: &Packet, up: QueueId, context: Option<ContextId>) -> QueueId {
        let address = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let mut input = Vec::new();
        if [ETHER_TYPE_IPV4, ETHER_TYPE_IPV6].contains(&packet.header.ether_type) {
            input.extend(address(packet.source));
            input.extend(address(packet.destination));
            let ports = |flow: crate::FlowTuple| {
                self.nic.hashed_ports().of(flow.transport, packet.header.ether_type == ETHER_TYPE_IPV6)
            };
            if packet.flow().is_some_and(ports) {
                input.extend(packet.source_port.to_be_bytes());
                input.extend(packet.destination_port.to_be_bytes());
            }
        }
        let hash = self.nic.rss_key().hash(input) as usize;
        let table = table_of(self.nic, context);
        let entry = table[hash % table.len()];
        QueueId((usize::from(entry.0) + usize::from(up.0)).rem_euclid(usize::from(self.nic.queues())) as u16)
    }
}

/// Returns the indirection table of a context, or the NIC's own table.
fn table_of(nic: &ConfiguredNic, context: Option<ContextId>) -> &[QueueId] {
    context.and_then(|context| nic.contexts().get(context.index())).map_or(nic.indirection(), Vec::as_slice)
}

fn fields_match(wanted: &FilterMatch, packet: &Packet) -> bool {
    let header = &packet.header;
    let address = |wanted: Option<AddressMatch>, found: IpAddr| {
        wanted.is_none_or(|wanted| match (wanted.address(), found, header.ether_type) {
            (IpAddr::V4(address), IpAddr::V4(found), ETHER_TYPE_IPV4) => {
                (u128::from(address.to_bits()) ^ u128::from(found.to_bits())) & wanted.mask() == 0
            }
            (IpAddr::V6(address), IpAddr::V6(found), ETHER_TYPE_IPV6) => {
                (address.to_bits() ^ found.to_bits()) & wanted.mask() == 0
            }
            _ => false,
        })
    };
    let port = |wanted: Option<crate::PortMatch>, found: u16| {
        wanted.is_none_or(|wanted| (wanted.port() ^ found) & wanted.mask() == 0)
    };
    wanted.transport.is_none_or(|transport| transport.number() == header.protocol)
        && address(wanted.source, packet.source)
        && address(wanted.destination, packet.destination)
        && port(wanted.source_port, packet.source_port)
        && port(wanted.destination_port, packet.destination_port)
        && wanted.ether_type.is_none_or(|ether_type| ether_type == header.ether_type)
        && wanted.mac_destination.is_none_or(|mac| packet.mac_destination == Some(mac))
        && wanted.connection_request.is_none_or(|request| request == header.connection_request)
}

/// Returns whether a packet's flow has the same signature, transport and IP version as a filter's flow.
fn same_signature(wanted: &FilterMatch, packet: &Packet) -> bool {
    let (Some(wanted), Some(found)) = (wanted.as_flow(), packet.flow()) else { return false };
    let kind = |flow: &crate::FlowTuple| (flow.transport, flow.destination.is_ipv6());
    kind(&wanted) == kind(&found) && crate::nic::signature(&wanted) == crate::nic::signature(&found)
}

struct Builder<'n> {
    nic: &'n ConfiguredNic,
    nodes: Vec<ConfiguredNode>,
    /// Node and port of each edge to a queue.
    to_queues: Vec<(QueueId, (usize, usize))>,
}

impl<'n> Builder<'n> {
    fn build(mut self) -> ConfiguredGraph<'n> {
        let graph = self.nic.model().graph();
        let mut placed: Vec<Placed> = Vec::new();
        for node in graph.nodes() {
            let place = match &node.kind {
                NodeKind::Source => self.plain(&node.name, ConfiguredKind::Source, graph_ports(node)),
                NodeKind::Function => {
                    let predicates = node.ports.iter().map(|port| port.when.clone()).collect();
                    self.plain(&node.name, ConfiguredKind::Function(predicates), graph_ports(node))
                }
                NodeKind::And(operands) => {
                    let kind = ConfiguredKind::And(resolved(operands, &placed));
                    self.plain(&node.name, kind, graph_ports(node))
                }
                NodeKind::Or(operands) => {
                    let kind = ConfiguredKind::Or(resolved(operands, &placed));
                    self.plain(&node.name, kind, graph_ports(node))
                }
                NodeKind::Table(table) => self.table(&node.name, *table),
                NodeKind::Rss => self.hash(&node.name, QueueId(0), None),
                // Queue nodes are created at the end, when all edges to them are known.
                NodeKind::Queue(_) => Placed::default(),
            };
            placed.push(place);
        }
        self.connect(graph, &placed);
        self.join_queues();
        ConfiguredGraph { nic: self.nic, nodes: self.nodes }
    }

    fn plain(&mut self, name: &str, kind: ConfiguredKind, ports: Vec<String>) -> Placed {
        let entry = self.nodes.len();
        let places = (0..ports.len()).map(|port| (entry, port)).collect();
        let ports = ports.into_iter().map(|port| (port, Vec::new())).collect();
        self.nodes.push(ConfiguredNode { name: name.to_owned(), kind, ports });
        Placed { entry, ports: places }
    }

    /// Adds a chain of filters, or one node for a table without filters. A packet that does not match a
    /// filter goes to the next filter.
    fn table(&mut self, name: &str, table: crate::TableId) -> Placed {
        let mut filters: Vec<(FilterId, Filter)> = self
            .nic
            .filters()
            .filter(|(id, _)| id.table == table)
            .map(|(id, filter)| (id, *filter))
            .collect();
        filters.sort_by_key(|(id, filter)| match self.nic.model().tables()[table.index()].precedence {
            Precedence::Unique | Precedence::Location => (0, id.location),
            Precedence::Priority { levels } => (levels - filter.priority, id.location),
        });
        if filters.is_empty() {
            return self.plain(name, ConfiguredKind::EmptyTable, vec!["hit".to_owned(), "miss".to_owned()]);
        }
        let mut entry = None;
        let mut last: Option<usize> = None;
        for (id, filter) in filters {
            let ports = vec!["T".to_owned(), "F".to_owned()];
            let node = self
                .plain(&format!("{name} {}", id.location), ConfiguredKind::Filter(id, filter), ports)
                .entry;
            if let Some(last) = last {
                self.nodes[last].ports[1].1.push(node);
            }
            entry.get_or_insert(node);
            last = Some(node);
            if filter.spread && !self.nic.indirection().is_empty() {
                let hash =
                    self.hash(&format!("{name} {} rss", id.location), filter.queue, filter.context).entry;
                self.nodes[node].ports[0].1.push(hash);
            } else {
                self.to_queues.push((filter.queue, (node, 0)));
            }
        }
        let last = last.unwrap_or_default();
        Placed { entry: entry.unwrap_or_default(), ports: vec![(last, 0), (last, 1)] }
    }

    /// Adds a node for RSS over an indirection table, or for disabled RSS if the table is empty. Adds `up` to
    /// the number of each queue, modulo the NIC's number of queues.
    fn hash(&mut self, name: &str, up: QueueId, context: Option<ContextId>) -> Placed {
        let queues: std::collections::BTreeSet<QueueId> = table_of(self.nic, context)
            .iter()
            .map(|queue| QueueId((queue.0 + up.0) % self.nic.queues()))
            .collect();
        if queues.is_empty() {
            return self.plain(name, ConfiguredKind::HashOff, vec!["hit".to_owned(), "miss".to_owned()]);
        }
        let queues: Vec<QueueId> = queues.into_iter().collect();
        let ports = queues.iter().map(ToString::to_string).chain(["miss".to_owned()]).collect();
        let kind = ConfiguredKind::Hash { up, context, queues: queues.clone() };
        let placed = self.plain(name, kind, ports);
        for (port, queue) in queues.into_iter().enumerate() {
            self.to_queues.push((queue, (placed.entry, port)));
        }
        // The last port is never enabled.
        let miss = (placed.entry, self.nodes[placed.entry].ports.len() - 1);
        Placed { entry: placed.entry, ports: vec![miss, miss] }
    }

    fn connect(&mut self, graph: &Graph, placed: &[Placed]) {
        for (node, place) in graph.nodes().iter().zip(placed) {
            for (port, (from, from_port)) in node.ports.iter().zip(&place.ports) {
                if matches!(self.nodes[*from].kind, ConfiguredKind::Hash { .. }) {
                    continue;
                }
                for to in &port.to {
                    if let NodeKind::Queue(queue) = graph.nodes()[to.index()].kind {
                        self.to_queues.push((queue, (*from, *from_port)));
                    } else {
                        self.nodes[*from].ports[*from_port].1.push(placed[to.index()].entry);
                    }
                }
            }
        }
    }

    fn join_queues(&mut self) {
        let mut by_queue: BTreeMap<QueueId, Vec<(usize, usize)>> = BTreeMap::new();
        for (queue, port) in std::mem::take(&mut self.to_queues) {
            by_queue.entry(queue).or_default().push(port);
        }
        for (queue, ports) in by_queue {
            let names = vec!["T".to_owned(), "F".to_owned()];
            let or = self.plain(&format!("OR:Q{queue}"), ConfiguredKind::Or(ports), names).entry;
            let end = self.plain(&format!("Q{queue}"), ConfiguredKind::Queue(queue), Vec::new()).entry;
            self.nodes[or].ports[0].1.push(end);
        }
    }
}

fn graph_ports(node: &crate::Node) -> Vec<String> {
    node.ports.iter().map(|port| port.name.clone()).collect()
}

/// Returns the placed node and port of each operand. Operators follow their operands.
fn resolved(operands: &[crate::Operand], placed: &[Placed]) -> Vec<(usize, usize)> {
    let place = |operand: &crate::Operand| placed[operand.node.index()].ports.get(operand.port).copied();
    operands.iter().filter_map(place).collect()
}
