//! Hosts, switches and links, and the paths through them.

use super::switch::{Switch, SwitchConfig};
use crate::error::TopologyError;
use crate::time::Span;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    Host(u32),
    Switch(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub from: Node,
    pub to: u32,
    /// Rate of the switch ports in bits per second. A host's NIC has its own rate.
    pub rate_bps: u64,
    /// Time from the departure of a bit at one end to its arrival at the other: cable, PHYs, and the
    /// pipelines of NIC and switch.
    pub latency: Span,
}

/// A network. Hosts are numbered from 0, and each host has one link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    pub hosts: u32,
    pub switches: Vec<SwitchConfig>,
    /// Flows are distributed over parallel links between two switches.
    pub links: Vec<Link>,
}

/// A switch on a path, and the output port of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    pub switch: u32,
    pub port: u32,
    /// The link behind this port, with its direction: twice the link's number, plus 1 if the packet enters
    /// the link at [`Link::to`].
    pub line: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    pub hops: Vec<Hop>,
    /// Latency of the link to the first switch.
    pub access_latency: Span,
    /// Latency of the link from the last switch.
    pub delivery_latency: Span,
    /// Sum of the latencies of all links.
    pub latency: Span,
}

#[derive(Clone, Debug)]
pub(super) struct Routes<'a> {
    topology: &'a Topology,
    access: Vec<usize>,
    host_ports: Vec<usize>,
    /// Output ports of each switch: the link, and the node at its other end.
    ports: Vec<Vec<(u32, Node)>>,
    /// Number of links to a switch (row) from a switch (column). `u32::MAX` if there is no path.
    distances: Vec<Vec<u32>>,
}

impl Topology {
    /// Creates a topology of hosts on one switch. All links are equal.
    #[must_use]
    pub fn star(hosts: u32, switch: SwitchConfig, rate_bps: u64, latency: Span) -> Self {
        let links =
            (0..hosts).map(|host| Link { from: Node::Host(host), to: 0, rate_bps, latency }).collect();
        Self { hosts, switches: vec![switch], links }
    }

    pub(super) fn routes(&self) -> Result<Routes<'_>, TopologyError> {
        let mut access = vec![Vec::new(); self.hosts as usize];
        let mut ports = vec![Vec::new(); self.switches.len()];
        let mut host_ports = vec![0; self.hosts as usize];
        for (number, link) in self.links.iter().enumerate() {
            let loose = TopologyError::LooseEnd { link: number };
            let to = ports.get_mut(link.to as usize).ok_or(loose)?;
            to.push((number as u32, link.from));
            match link.from {
                Node::Host(host) => {
                    access.get_mut(host as usize).ok_or(loose)?.push(number);
                    host_ports[host as usize] = to.len() - 1;
                }
                Node::Switch(switch) if switch == link.to => return Err(loose),
                Node::Switch(switch) => {
                    ports.get_mut(switch as usize).ok_or(loose)?.push((number as u32, Node::Switch(link.to)));
                }
            }
        }
        let access = access
            .into_iter()
            .enumerate()
            .map(|(host, links)| match links[..] {
                [link] => Ok(link),
                _ => Err(TopologyError::HostLinks { host: host as u32, links: links.len() }),
            })
            .collect::<Result<_, _>>()?;
        let distances = (0..ports.len()).map(|to| distances(&ports, to)).collect();
        Ok(Routes { topology: self, access, host_ports, ports, distances })
    }
}

fn distances(ports: &[Vec<(u32, Node)>], to: usize) -> Vec<u32> {
    let mut found = vec![u32::MAX; ports.len()];
    found[to] = 0;
    let mut reached = vec![to];
    let mut next = 0;
    while let Some(&switch) = reached.get(next) {
        next += 1;
        for &(_, node) in &ports[switch] {
            if let Node::Switch(neighbour) = node
                && found[neighbour as usize] == u32::MAX
            {
                found[neighbour as usize] = found[switch] + 1;
                reached.push(neighbour as usize);
            }
        }
    }
    found
}

/// Returns a flow's hash at a switch. Each switch mixes the hash differently, so that successive
/// choices are independent (the finaliser of SplitMix64).
fn mixed(hash: u32, switch: u32) -> u64 {
    let mut bits = (u64::from(switch) << 32 | u64::from(hash)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

impl Routes<'_> {
    /// Returns the switches. Their ports are in the order of [`Hop::port`].
    pub(super) fn switches(&self) -> Vec<Switch> {
        let configs = self.topology.switches.iter();
        configs
            .zip(&self.ports)
            .map(|(config, ports)| {
                let mut switch = Switch::new(*config);
                for &(link, _) in ports {
                    let link = &self.topology.links[link as usize];
                    switch.add_port(link.rate_bps, link.latency);
                }
                switch
            })
            .collect()
    }

    /// Returns a shortest path. Between several shortest paths, the flow's hash decides at each switch
    /// (equal-cost multipath, RFC 2992, by modulo).
    pub(super) fn path(&self, from: u32, to: u32, hash: u32) -> Result<Path, TopologyError> {
        let unreachable = TopologyError::Unreachable { from, to };
        let known = |host: u32| self.access.get(host as usize).copied();
        let (Some(first), Some(last)) = (known(from), known(to)) else {
            return Err(TopologyError::Transfer { from, to });
        };
        if from == to {
            return Err(TopologyError::Transfer { from, to });
        }
        let links = &self.topology.links;
        let (mut switch, end) = (links[first].to as usize, links[last].to as usize);
        let access_latency = links[first].latency;
        let delivery_latency = links[last].latency;
        let mut path = Path { hops: Vec::new(), access_latency, delivery_latency, latency: access_latency };
        loop {
            let here = self.distances[end][switch];
            if here == u32::MAX {
                return Err(unreachable);
            }
            let port = if here == 0 {
                self.host_ports[to as usize]
            } else {
                let leads_on = |port: &usize| match self.ports[switch][*port].1 {
                    Node::Host(_) => false,
                    Node::Switch(next) => self.distances[end][next as usize] == here - 1,
                };
                let ports = || (0..self.ports[switch].len()).filter(leads_on);
                let chosen = mixed(hash, switch as u32) % (ports().count().max(1) as u64);
                ports().nth(chosen as usize).ok_or(unreachable)?
            };
            let (link, node) = self.ports[switch][port];
            let line = 2 * link + u32::from(links[link as usize].to == switch as u32);
            path.hops.push(Hop { switch: switch as u32, port: port as u32, line });
            path.latency += links[link as usize].latency;
            match node {
                Node::Host(_) => return Ok(path),
                Node::Switch(next) => switch = next as usize,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SWITCH: SwitchConfig = SwitchConfig { buffer_bytes: 1 << 20, alpha_exponent: 0 };

    fn link(from: Node, to: u32, latency: Span) -> Link {
        Link { from, to, rate_bps: 10_000_000_000, latency }
    }

    /// Creates two leaves with two hosts each, two spines, and two parallel links from each leaf to
    /// each spine.
    fn leaf_spine() -> Topology {
        let mut links = Vec::new();
        for host in 0..4 {
            links.push(link(Node::Host(host), host / 2, 10));
        }
        for leaf in 0..2 {
            for spine in [2, 3] {
                links.extend([link(Node::Switch(leaf), spine, 3); 2]);
            }
        }
        Topology { hosts: 4, switches: vec![SWITCH; 4], links }
    }

    #[test]
    fn a_star_has_one_hop() {
        let star = Topology::star(3, SWITCH, 10, 7);
        let path = star.routes().unwrap().path(0, 2, 99).unwrap();
        assert_eq!(path.hops, [Hop { switch: 0, port: 2, line: 5 }]);
        assert_eq!((path.access_latency, path.latency), (7, 14));
    }

    #[test]
    fn flows_spread_over_all_shortest_paths_and_keep_theirs() {
        let topology = leaf_spine();
        let routes = topology.routes().unwrap();
        let local = routes.path(0, 1, 5).unwrap();
        assert_eq!((local.hops.len(), local.latency), (1, 20));
        let mut seen = std::collections::BTreeMap::new();
        for hash in 0..4096_u32 {
            let hash = hash.wrapping_mul(0x9e37_79b1);
            let path = routes.path(0, 3, hash).unwrap();
            assert_eq!((path.hops.len(), path.latency), (3, 26));
            assert_eq!(path, routes.path(0, 3, hash).unwrap());
            *seen.entry((path.hops[0].line, path.hops[1].line)).or_insert(0) += 1;
        }
        // There are four links up, and two links down from each spine.
        assert_eq!(seen.len(), 8);
        assert!(seen.values().all(|count| (400..640).contains(count)), "{seen:?}");
    }

    #[test]
    fn what_is_no_network_is_refused() {
        let mut topology = leaf_spine();
        topology.links.truncate(4);
        let unreachable = topology.routes().unwrap().path(0, 3, 0);
        assert_eq!(unreachable, Err(TopologyError::Unreachable { from: 0, to: 3 }));
        assert_eq!(topology.routes().unwrap().path(1, 1, 0), Err(TopologyError::Transfer { from: 1, to: 1 }));
        topology.links[3].from = Node::Host(2);
        assert_eq!(topology.routes().err(), Some(TopologyError::HostLinks { host: 2, links: 2 }));
        topology.links[3] = link(Node::Switch(1), 1, 0);
        assert_eq!(topology.routes().err(), Some(TopologyError::LooseEnd { link: 3 }));
        topology.links[3] = link(Node::Host(3), 9, 0);
        assert_eq!(topology.routes().err(), Some(TopologyError::LooseEnd { link: 3 }));
    }
}
