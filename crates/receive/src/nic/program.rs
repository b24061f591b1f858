//! Compiles a graph: for each kind of packet, the configuration nodes on its path and its final queue.
//!
//! Function nodes use few fields with few relevant values. So the parser can follow every kind of
//! packet through the graph: once steered by no configuration node, and once for each configuration
//! node on its path. The result proves that every packet ends in one queue under any configuration. The
//! result also contains a list of steps for fast look-ups.

use rustc_hash::FxHashMap;

use super::graph::{Graph, NodeId, NodeKind};
use super::predicate::Predicate;
use crate::filter::{AddressMatch, FilterMatch, QueueId, TableId};
use crate::flow::Transport;
use crate::key::{ETHER_TYPE_IPV4, ETHER_TYPE_IPV6, bits, is_ip};
use crate::packet::Header;

/// Maximum number of values of one field, which bounds the number of packet kinds.
const MOST_VALUES: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Table(TableId),
    Rss,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// Configuration nodes that may steer the packet, by precedence.
    pub(crate) steps: Vec<Step>,
    /// Queue for packets that no node steers.
    pub(crate) default: QueueId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    ether_types: Values<u16>,
    protocols: Values<u8>,
    chains: Vec<Chain>,
    by_header: FxHashMap<Header, u16>,
    /// Chain index of each kind of flow; see [`flow_kind`].
    flows: [u16; 4],
    /// Kinds of flows that reach each table, as a bit set.
    flows_at: Vec<u8>,
}

/// The values of a field that a graph distinguishes, and one value that represents all other values.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Values<T> {
    named: Vec<T>,
    other: T,
}

impl<T: Copy + Ord + From<u8> + std::ops::Add<Output = T>> Values<T> {
    /// Sorts the named values, and finds another value. Returns `None` if there are too many named values.
    fn new(mut named: Vec<T>) -> Option<Self> {
        named.sort_unstable();
        named.dedup();
        if named.len() > MOST_VALUES {
            return None;
        }
        // Find the smallest unnamed value above 0; 0 means "none". The value is below the number of
        // named values + 2.
        let mut other = T::from(1);
        while named.contains(&other) {
            other = other + T::from(1);
        }
        Some(Self { named, other })
    }

    fn all(&self) -> impl Iterator<Item = T> + '_ {
        self.named.iter().copied().chain([self.other])
    }

    fn normal(&self, value: T) -> T {
        if self.named.contains(&value) { value } else { self.other }
    }
}

/// The reason why a graph does not steer every packet to a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The faulty node; `None` if the whole graph is faulty.
    pub(super) node: Option<NodeId>,
    pub(super) problem: String,
}

/// Returns the index of a kind of flow: its IP version and transport protocol.
pub(crate) fn flow_kind(ether_type: u16, transport: Transport) -> usize {
    usize::from(ether_type == ETHER_TYPE_IPV6) * 2 + usize::from(transport == Transport::Udp)
}

impl Program {
    /// Follows every kind of packet through a graph that has this number of tables.
    pub(super) fn of(graph: &Graph, tables: usize) -> Result<Self, Fault> {
        let mut ether_types = vec![ETHER_TYPE_IPV4, ETHER_TYPE_IPV6];
        let mut protocols = vec![Transport::Tcp.number(), Transport::Udp.number()];
        for port in graph.nodes().iter().flat_map(|node| &node.ports) {
            let Some(when) = &port.when else { continue };
            when.atoms(&mut |atom| match atom {
                Predicate::EtherType(number) => ether_types.push(*number),
                Predicate::Protocol(number) => protocols.push(*number),
                _ => {}
            });
        }
        let (Some(ether_types), Some(protocols)) = (Values::new(ether_types), Values::new(protocols)) else {
            let problem = format!("the predicates name more than {MOST_VALUES} values of one field");
            return Err(Fault { node: None, problem });
        };
        let mut program = Self {
            ether_types,
            protocols,
            chains: Vec::new(),
            by_header: FxHashMap::default(),
            flows: [0; 4],
            flows_at: vec![0; tables],
        };
        for header in program.headers() {
            let chain = chain(graph, &header)?;
            let known = program.chains.iter().position(|known| *known == chain);
            let index = known.unwrap_or_else(|| {
                program.chains.push(chain);
                program.chains.len() - 1
            });
            // No truncation: the number of packet kinds fits into a u16.
            program.by_header.insert(header, index as u16);
        }
        for ether_type in [ETHER_TYPE_IPV4, ETHER_TYPE_IPV6] {
            for transport in [Transport::Tcp, Transport::Udp] {
                let header = Header { ether_type, protocol: transport.number(), ..Header::default() };
                let index = program.by_header.get(&header).copied().unwrap_or_default();
                let kind = flow_kind(ether_type, transport);
                program.flows[kind] = index;
                for step in &program.chains[usize::from(index)].steps {
                    if let Step::Table(table) = step {
                        program.flows_at[table.index()] |= 1 << kind;
                    }
                }
            }
        }
        Ok(program)
    }

    /// Returns one packet of every kind that the graph may distinguish.
    fn headers(&self) -> Vec<Header> {
        let mut headers = Vec::new();
        for ether_type in self.ether_types.all() {
            for multicast in [false, true] {
                let plain = Header { ether_type, multicast, ..Header::default() };
                if !is_ip(ether_type) {
                    headers.push(plain);
                    continue;
                }
                for protocol in self.protocols.all() {
                    let whole = Header { protocol, ..plain };
                    headers.extend([whole, Header { fragment: true, ..whole }]);
                    if protocol == Transport::Tcp.number() {
                        headers.push(Header { connection_request: true, ..whole });
                    }
                }
            }
        }
        headers
    }

    pub(crate) fn flow(&self, kind: usize) -> &Chain {
        &self.chains[usize::from(self.flows[kind])]
    }

    /// Returns whether a kind of packet that fits `matches` reaches a table. Ports and hardware addresses do
    /// not count.
    pub(crate) fn brings(&self, matches: &FilterMatch, table: TableId) -> bool {
        let version_of = |address: Option<AddressMatch>| address.map(|address| bits(address.address()).1);
        let (source, destination) = (version_of(matches.source), version_of(matches.destination));
        let version = destination.or(source);
        let is_of_version = |wanted: Option<u16>| wanted.is_none() || version.is_none() || wanted == version;
        // No packet has addresses of two IP versions, or an IP version that contradicts its Ethernet
        // type.
        if !is_of_version(source) || !is_of_version(matches.ether_type) {
            return false;
        }
        if let (Some(transport), Some(ether_type)) = (matches.transport, version) {
            let kind = flow_kind(ether_type, transport);
            if self.flows_at.get(table.index()).is_some_and(|kinds| kinds >> kind & 1 == 1) {
                return true;
            }
        }
        self.by_header.iter().any(|(header, chain)| {
            let ether_type = matches.ether_type.or(version).map(|wanted| self.ether_types.normal(wanted));
            ether_type.is_none_or(|wanted| wanted == header.ether_type)
                && matches.transport.is_none_or(|wanted| wanted.number() == header.protocol)
                && matches.connection_request.is_none_or(|wanted| wanted == header.connection_request)
                && self.chains[usize::from(*chain)].steps.contains(&Step::Table(table))
        })
    }

    pub(crate) fn chain(&self, header: &Header) -> &Chain {
        let ether_type = self.ether_types.normal(header.ether_type);
        let normal = if is_ip(ether_type) {
            let tcp = header.protocol == Transport::Tcp.number();
            Header {
                ether_type,
                protocol: self.protocols.normal(header.protocol),
                connection_request: header.connection_request && tcp && !header.fragment,
                ..*header
            }
        } else {
            Header { ether_type, multicast: header.multicast, ..Header::default() }
        };
        // `headers` lists every normalised kind, so each has a path.
        &self.chains[usize::from(self.by_header.get(&normal).copied().unwrap_or_default())]
    }
}

/// Returns the path of one kind of packet. The path must end in exactly one queue if no configuration node
/// steers the packet. After a configuration node steers the packet, the packet must reach no queue and no
/// further configuration node.
fn chain(graph: &Graph, header: &Header) -> Result<Chain, Fault> {
    let fault = |node: Option<NodeId>, problem: &str| {
        let problem = format!("{problem}: {}", described(header));
        Err(Fault { node, problem })
    };
    let walk = graph.walk(header, None);
    if let Some(node) = walk.undecided {
        return fault(Some(node), "not exactly one port matches this packet");
    }
    let default = match *walk.queues.as_slice() {
        [only] => only,
        [] => return fault(walk.last, "a packet ends at this node, and no queue receives it"),
        [_, second, ..] => return fault(Some(second), "a packet reaches this queue and another queue"),
    };
    for (position, hit) in walk.met.iter().enumerate() {
        let steered = graph.walk(header, Some(*hit));
        if let Some(node) = steered.undecided {
            return fault(Some(node), "not exactly one port matches this packet");
        }
        let other = steered.met.iter().find(|node| !walk.met[..=position].contains(node));
        if let Some(node) = steered.queues.first().or(other) {
            let name = &graph.nodes()[hit.index()].name;
            return fault(
                Some(*node),
                &format!("a packet that '{name}' has already steered also reaches this node"),
            );
        }
    }
    let step = |id: &NodeId| match graph.nodes()[id.index()].kind {
        NodeKind::Table(table) => Some(Step::Table(table)),
        NodeKind::Rss => Some(Step::Rss),
        _ => None,
    };
    let default = match graph.nodes()[default.index()].kind {
        NodeKind::Queue(queue) => queue,
        _ => QueueId::default(),
    };
    Ok(Chain { steps: walk.met.iter().filter_map(step).collect(), default })
}

/// Returns a predicate for exactly this kind of packet.
fn described(header: &Header) -> Predicate {
    let plain = |holds: bool, atom: Predicate| if holds { atom } else { Predicate::Not(Box::new(atom)) };
    let mut terms = vec![Predicate::EtherType(header.ether_type)];
    if is_ip(header.ether_type) {
        terms.push(Predicate::Protocol(header.protocol));
        terms.push(plain(header.fragment, Predicate::Fragment));
    }
    if header.protocol == Transport::Tcp.number() && !header.fragment {
        terms.push(plain(header.connection_request, Predicate::ConnectionRequest));
    }
    terms.push(plain(header.multicast, Predicate::Multicast));
    Predicate::And(terms)
}
