//! Runs a cluster of hosts, switches and receivers, in slices of time.
//!
//! Hosts affect each other only through the network, and with a minimum latency: a packet crosses the
//! network in one direction, and its acknowledgement in the other direction. All hosts can therefore
//! run independently for a time slice of at most this latency. In each slice:
//!
//! - The hosts run.
//! - The switches forward the packets that have left the hosts.
//! - The receivers handle the arrivals. Their acknowledgements reach the hosts in the next slice or
//!   later.
//!
//! This is conservative parallel simulation (Fujimoto, "Parallel discrete event simulation", CACM
//! 33(10), 1990) with one lookahead for all hosts.

use super::Topology;
use super::fabric::Fabric;
use super::rate::Rate;
use super::reception::{Reader, Reception};
use crate::error::{SimulationError, TopologyError};
use crate::host::{Event, Simulation};
use crate::parameters::Parameters;
use crate::progress::Patience;
use crate::random::{Component, Generator};
use crate::segment::{Packet, wire_bytes};
use crate::settings::Settings;
use crate::time::{MICROSECOND, SECOND, Span, Time};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub from: u32,
    pub to: u32,
    /// TCP payload in bytes; at least 1.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Route {
    host: u32,
    /// The flow's number at its sending host.
    local: u32,
    return_latency: Span,
    start: Time,
}

pub struct Cluster {
    hosts: Vec<Simulation>,
    /// First flow of each host, and latency of its link.
    first_flows: Vec<(u32, Span)>,
    routes: Vec<Route>,
    fabric: Fabric,
    reception: Reception,
    /// Time until which the hosts have run.
    now: Time,
    slice: Span,
    /// The switches run ahead of the hosts by this time, and the receivers by `reception_ahead`.
    switches_ahead: Span,
    reception_ahead: Span,
    patience: Patience,
}

impl Cluster {
    /// Creates idle hosts with the same settings, and their transfers. The number of flows and the probe in
    /// the settings are ignored. Flow `i` is the `i`-th transfer in the order of sending hosts.
    ///
    /// # Errors
    /// Returns an error if a setting is outside the simulated range or does not fit a qdisc, the topology is
    /// invalid, or a transfer has no path.
    pub fn new(
        topology: &Topology,
        settings: &Settings,
        parameters: &Parameters,
        transfers: &[Transfer],
        seed: u64,
    ) -> Result<Self, SimulationError> {
        let routes_of = topology.routes()?;
        let mut transfers = transfers.to_vec();
        transfers.sort_by_key(|transfer| transfer.from);
        let receive_queues = parameters.receive_queues.max(1);
        let mut seeds = Generator::new(seed, Component::Hosts);
        let mut paths = Generator::new(seed, Component::Paths);
        let mut receive = Generator::new(seed, Component::ReceiveHashes);

        let mut hosts = Vec::new();
        let mut first_flows = Vec::new();
        let mut routes: Vec<Route> = Vec::new();
        let mut fabric = Fabric::new(topology, routes_of.switches());
        let mut readers = Vec::new();
        let mut latencies = Vec::new();
        let mut edges = Vec::new();
        let mut rest = transfers.as_slice();
        for host in 0..topology.hosts {
            let (own, others) = rest.split_at(rest.partition_point(|transfer| transfer.from <= host));
            rest = others;
            let settings = Settings { flows: own.len() as u32, probe_bytes: None, ..settings.clone() };
            // The simulation needs no bins: its results are the completion times of flows.
            let mut simulation =
                Simulation::new(settings, parameters.clone(), seeds.long_bits(), Time::NEVER, 1, 0)?;
            simulation.outbox = Some(Vec::new());
            let first_flow = routes.len() as u32;
            let mut access = 0;
            for (local, transfer) in own.iter().enumerate() {
                let path = routes_of.path(host, transfer.to, paths.bits())?;
                access = path.access_latency;
                latencies.push(path.latency);
                edges.push((path.access_latency, path.delivery_latency));
                let bytes = transfer.bytes.max(1);
                simulation.flows[local].remaining = bytes;
                let queue = transfer.to * receive_queues + receive.bits() % receive_queues;
                readers.push(Reader { queue, bytes });
                routes.push(Route {
                    host,
                    local: local as u32,
                    return_latency: path.latency,
                    start: Time::NEVER,
                });
                fabric.add_way(path.hops);
            }
            first_flows.push((first_flow, access));
            hosts.push(simulation);
        }
        if let Some(transfer) = rest.first() {
            return Err(TopologyError::Transfer { from: transfer.from, to: transfer.to }.into());
        }

        // A packet that leaves a host reaches the first switch after at least the shortest access
        // latency. The packet then reaches its destination after at least the shortest latency of a
        // last link.
        let least = |of: fn(&(Span, Span)) -> Span| edges.iter().map(of).min().unwrap_or(MICROSECOND);
        let switches_ahead = least(|(access, _)| *access);
        let reception_ahead = switches_ahead + least(|(_, delivery)| *delivery);
        let slowest =
            topology.links.iter().map(|link| link.rate_bps).chain([settings.rate]).min().unwrap_or(1);
        let packet = Rate::new(slowest).time_of(wire_bytes(settings.mss));
        Ok(Self {
            fabric,
            reception: Reception::new(
                readers,
                topology.hosts * receive_queues,
                settings.interrupt_interval,
                settings.mss,
            ),
            hosts,
            first_flows,
            routes,
            now: Time::ZERO,
            slice: (reception_ahead + latencies.iter().copied().min().unwrap_or(MICROSECOND)).max(1),
            switches_ahead,
            reception_ahead,
            patience: Patience::new(packet),
        })
    }

    pub fn start(&mut self, seed: u64, within: Span) {
        let mut seeds = Generator::new(seed, Component::Starts);
        for host in &mut self.hosts {
            host.start_flows(seeds.long_bits(), within);
        }
        for route in &mut self.routes {
            let host = &self.hosts[route.host as usize];
            route.start = host.engine.planned(Event::FlowTimer(route.local));
        }
    }

    /// Runs until all transfers are complete, or until `until`. Returns whether all transfers are
    /// complete.
    ///
    /// # Errors
    /// Returns an error if the simulation makes no progress: no event is pending, events continue without
    /// packets, or no new data has arrived at any host for minutes of simulated time.
    pub fn run(&mut self, until: Time) -> Result<bool, SimulationError> {
        let mut earliest = self.now;
        while self.reception.unfinished() > 0 && self.now < until {
            // A slice without events extends to the next event.
            let end = (self.now + self.slice).max(earliest).min(until);
            earliest = self.run_slice(end)?;
            let (at_us, unfinished) = (self.now.0 / MICROSECOND, self.reception.unfinished());
            if earliest == Time::NEVER && unfinished > 0 {
                return Err(SimulationError::Standstill { at_us, unfinished });
            }
            if self.patience.has_run_out(self.now, || self.reception.distinct_bytes()) && unfinished > 0 {
                let wait_s = self.patience.wait() / SECOND;
                return Err(SimulationError::NoProgress { at_us, wait_s, unfinished });
            }
        }
        Ok(self.reception.unfinished() == 0)
    }

    /// Runs hosts, switches and receivers until the hosts have reached `end`. Returns the time of the
    /// next event.
    fn run_slice(&mut self, end: Time) -> Result<Time, SimulationError> {
        let mut earliest = Time::NEVER;
        for (host, &(first_flow, latency)) in self.hosts.iter_mut().zip(&self.first_flows) {
            host.run_host(end)?;
            earliest = earliest.min(host.next_activity());
            if let Some(outbox) = host.outbox.as_mut() {
                self.fabric.enter(outbox.drain(..).map(|packet| Packet {
                    at: packet.at + latency,
                    flow: first_flow + packet.flow,
                    ..packet
                }));
            }
        }
        self.now = end;
        for packet in self.fabric.run(end + self.switches_ahead)? {
            self.reception.deliver(packet);
        }
        for (flow, sent, ack) in self.reception.run(end + self.reception_ahead)? {
            let route = &self.routes[flow as usize];
            let arrival = sent + route.return_latency;
            self.hosts[route.host as usize].acknowledge_at(route.local, arrival, ack);
            earliest = earliest.min(arrival);
        }
        Ok(earliest.min(self.reception.next_time()).min(self.fabric.next_time()))
    }

    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    #[must_use]
    pub fn flows(&self) -> u32 {
        self.routes.len() as u32
    }

    /// Returns the start and the completion of a flow. The flow may send from its start. It is complete
    /// when TCP at the receiving host has all data ([`Time::NEVER`] if incomplete).
    #[must_use]
    pub fn times(&self, flow: u32) -> (Time, Time) {
        (self.routes[flow as usize].start, self.reception.completed(flow))
    }

    #[must_use]
    pub fn packets(&self) -> u64 {
        self.reception.packets()
    }

    /// Returns the TCP payload of the received packets in bytes, including duplicates.
    #[must_use]
    pub fn payload(&self) -> u64 {
        self.reception.payload()
    }

    #[must_use]
    pub fn drops(&self) -> u64 {
        self.fabric.drops()
    }

    /// Shortens the slices. Tests check that results do not depend on the slices.
    #[cfg(test)]
    pub(super) fn divide_slice(&mut self, parts: u64) {
        self.slice = (self.slice / parts).max(1);
    }

    /// Returns the payload that hosts have received in bytes, without duplicates.
    #[cfg(test)]
    pub(super) fn distinct_bytes(&self) -> u64 {
        self.reception.distinct_bytes()
    }

    pub(crate) fn hosts(&self) -> &[Simulation] {
        &self.hosts
    }

    /// Returns the sending host of a flow, and the flow's number at that host.
    pub(crate) fn place(&self, flow: u32) -> (u32, u32) {
        let route = &self.routes[flow as usize];
        (route.host, route.local)
    }

    /// Returns the payload in bytes that a flow's receiver has in order, and the number of packets that
    /// arrived while an earlier packet was missing.
    pub(crate) fn received(&self, flow: u32) -> (u64, u64) {
        let receiver = self.reception.receiver(flow);
        (receiver.delivered(), receiver.out_of_order_packets())
    }
}
