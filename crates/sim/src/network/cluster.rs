//! A cluster's run: hosts, switches and receiving ends, in slices of time.
//!
//! A host acts on others only through the network, and an acknowledgement takes both ways through it.
//! So all hosts run for a slice of time that is as long as that takes at least, each by itself; then
//! the switches forward what has left the hosts; then the receiving ends take in what has arrived, and
//! their acknowledgements reach the hosts in the next slice or later (conservative parallel simulation;
//! Fujimoto, "Parallel discrete event simulation", CACM 33(10), 1990, with one lookahead for all).

use std::collections::VecDeque;

use super::rate::Rate;
use super::reception::{Reader, Reception};
use super::{Hop, Switch, Topology};
use crate::error::{SimulationError, TopologyError};
use crate::event::Calendar;
use crate::host::{Event, Simulation};
use crate::parameters::Parameters;
use crate::progress::Patience;
use crate::random::{Component, Generator};
use crate::segment::{Packet, wire_bytes};
use crate::settings::Settings;
use crate::time::{MICROSECOND, SECOND, Span, Time};

/// Data that one host sends to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Sending host.
    pub from: u32,
    /// Receiving host.
    pub to: u32,
    /// TCP payload, bytes; 1 at least.
    pub bytes: u64,
}

/// A flow's way through the network.
#[derive(Clone, Copy, Debug)]
struct Route {
    /// Sending host.
    host: u32,
    /// Number within that host.
    local: u32,
    /// Its switches in [`Cluster::hops`].
    first_hop: u32,
    hops: u32,
    /// What an acknowledgement takes back.
    return_latency: Span,
    /// When it starts.
    start: Time,
}

/// Packets on a link between switches in one direction, with the number of the hop at its end.
type InFlight = VecDeque<(Packet, u32)>;

/// Hosts that transfer data to each other through switches.
pub struct Cluster {
    hosts: Vec<Simulation>,
    /// First flow of each host, and latency of its link.
    first_flows: Vec<(u32, Span)>,
    routes: Vec<Route>,
    hops: Vec<Hop>,
    switches: Vec<Switch>,
    reception: Reception,
    /// Packets in flight to a first switch.
    entering: Vec<Packet>,
    /// When each of them arrives there, its flow, and its index: in the order of arrival. Where two arrive at
    /// once, their flows decide, for the index follows from how long the slices are.
    order: Vec<(Time, u32, u32)>,
    /// Scratch: those that are left for the next slice.
    left_over: Vec<Packet>,
    /// Packets on each link between switches, one way and the other; the calendar has the first of each.
    lines: Vec<InFlight>,
    line_calendar: Calendar,
    /// The hosts have run until then.
    now: Time,
    slice: Span,
    /// The switches run ahead of the hosts by this, and the receiving ends by this.
    switches_ahead: Span,
    reception_ahead: Span,
    patience: Patience,
}

impl Cluster {
    /// Idle hosts, all with the same settings (of which the number of flows is not used), and what
    /// they are to transfer: flow `i` is the `i`-th transfer in the order of sending hosts.
    ///
    /// # Errors
    /// When the settings do not fit a qdisc, or the topology has no path for a transfer.
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
        let mut hops = Vec::new();
        let mut readers = Vec::new();
        let mut latencies = Vec::new();
        let mut edges = Vec::new();
        let mut rest = transfers.as_slice();
        for host in 0..topology.hosts {
            let (own, others) = rest.split_at(rest.partition_point(|transfer| transfer.from <= host));
            rest = others;
            let settings = Settings { flows: own.len() as u32, probe_bytes: None, ..settings.clone() };
            // No bins: what counts is when flows complete.
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
                    first_hop: hops.len() as u32,
                    hops: path.hops.len() as u32,
                    return_latency: path.latency,
                    start: Time::NEVER,
                });
                hops.extend(path.hops);
            }
            first_flows.push((first_flow, access));
            hosts.push(simulation);
        }
        if let Some(transfer) = rest.first() {
            return Err(TopologyError::Transfer { from: transfer.from, to: transfer.to }.into());
        }

        // What has left the hosts by now has reached every first switch by now and the shortest access
        // latency, and what is between switches then every host by that and the shortest last link.
        let least = |of: fn(&(Span, Span)) -> Span| edges.iter().map(of).min().unwrap_or(MICROSECOND);
        let switches_ahead = least(|(access, _)| *access);
        let reception_ahead = switches_ahead + least(|(_, delivery)| *delivery);
        let slowest =
            topology.links.iter().map(|link| link.rate_bps).chain([settings.rate]).min().unwrap_or(1);
        let packet = Rate::new(slowest).time_of(wire_bytes(settings.mss));
        Ok(Self {
            switches: routes_of.switches(),
            reception: Reception::new(
                readers,
                topology.hosts * receive_queues,
                settings.interrupt_interval,
                settings.mss,
            ),
            hosts,
            first_flows,
            routes,
            hops,
            entering: Vec::new(),
            order: Vec::new(),
            left_over: Vec::new(),
            lines: vec![InFlight::new(); 2 * topology.links.len()],
            line_calendar: Calendar::new(2 * topology.links.len(), 0),
            now: Time::ZERO,
            slice: (reception_ahead + latencies.iter().copied().min().unwrap_or(MICROSECOND)).max(1),
            switches_ahead,
            reception_ahead,
            patience: Patience::new(packet),
        })
    }

    /// Lets the flows start, at random within a time.
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

    /// Runs until all transfers are complete, or until `until`. Whether they are.
    ///
    /// # Errors
    /// When nothing is planned any more, or nothing new has arrived anywhere for minutes.
    pub fn run(&mut self, until: Time) -> Result<bool, SimulationError> {
        let mut earliest = self.now;
        while self.reception.unfinished() > 0 && self.now < until {
            // Where nothing happens within a slice, the next one reaches to where something does.
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

    /// Runs everything until the hosts are at `end`; when anything happens next.
    fn run_slice(&mut self, end: Time) -> Result<Time, SimulationError> {
        let mut earliest = Time::NEVER;
        for (host, &(first_flow, latency)) in self.hosts.iter_mut().zip(&self.first_flows) {
            host.run_host(end)?;
            earliest = earliest.min(host.next_activity());
            if let Some(outbox) = host.outbox.as_mut() {
                self.entering.extend(outbox.drain(..).map(|packet| Packet {
                    at: packet.at + latency,
                    flow: first_flow + packet.flow,
                    ..packet
                }));
            }
        }
        self.now = end;
        self.switch_until(end + self.switches_ahead);
        let (hosts, routes) = (&mut self.hosts, &self.routes);
        self.reception.run(end + self.reception_ahead, |flow, sent, ack| {
            let route = &routes[flow as usize];
            hosts[route.host as usize].acknowledge_at(route.local, sent + route.return_latency, ack);
            earliest = earliest.min(sent + route.return_latency);
        });
        let waiting = self.entering.iter().map(|packet| packet.at).min().unwrap_or(Time::NEVER);
        let on_lines = self.line_calendar.next_time().unwrap_or(Time::NEVER);
        Ok(earliest.min(self.reception.next_time()).min(waiting).min(on_lines))
    }

    /// The switches forward what reaches them until `limit`.
    fn switch_until(&mut self, limit: Time) {
        self.order.clear();
        self.order.extend((0..).zip(&self.entering).map(|(index, packet)| (packet.at, packet.flow, index)));
        self.order.sort_unstable();
        let mut next = 0;
        loop {
            let entering = self.order.get(next).map_or(Time::NEVER, |first| first.0);
            let on_line = self.line_calendar.next_time().unwrap_or(Time::NEVER);
            if entering.min(on_line) > limit {
                break;
            }
            if entering <= on_line {
                let packet = self.entering[self.order[next].2 as usize];
                next += 1;
                self.forward(packet, 0);
            } else if let Some((_, line)) = self.line_calendar.pop(limit) {
                let in_flight = &mut self.lines[line as usize];
                let first = in_flight.pop_front();
                if let Some((packet, _)) = in_flight.front() {
                    self.line_calendar.plan(line, packet.at);
                }
                if let Some((packet, hop)) = first {
                    self.forward(packet, hop);
                }
            }
        }
        self.left_over.clear();
        self.left_over.extend(self.order[next..].iter().map(|&(_, _, index)| self.entering[index as usize]));
        std::mem::swap(&mut self.entering, &mut self.left_over);
    }

    /// A packet is at the switch `hop` of its way.
    #[inline]
    fn forward(&mut self, packet: Packet, hop: u32) {
        let route = &self.routes[packet.flow as usize];
        let Hop { switch, port, line } = self.hops[(route.first_hop + hop) as usize];
        let bytes = wire_bytes(packet.payload);
        let Some(at) = self.switches[switch as usize].forward(port, packet.at, bytes) else { return };
        let packet = Packet { at, ..packet };
        if hop + 1 == route.hops {
            self.reception.deliver(packet);
        } else {
            let in_flight = &mut self.lines[line as usize];
            if in_flight.is_empty() {
                self.line_calendar.plan(line, at);
            }
            in_flight.push_back((packet, hop + 1));
        }
    }

    /// The present, which hosts have reached.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Number of flows.
    #[must_use]
    pub fn flows(&self) -> u32 {
        self.routes.len() as u32
    }

    /// Sending host, start and completion of a flow: from when it may send until TCP has all of it at the
    /// receiving host ([`Time::NEVER`] if it has not).
    #[must_use]
    pub fn times(&self, flow: u32) -> (Time, Time) {
        (self.routes[flow as usize].start, self.reception.completed(flow))
    }

    /// Data packets that hosts have received.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.reception.packets()
    }

    /// TCP payload of these, bytes; what came twice counts twice.
    #[must_use]
    pub fn payload(&self) -> u64 {
        self.reception.payload()
    }

    /// Packets that switches have dropped.
    #[must_use]
    pub fn drops(&self) -> u64 {
        self.switches.iter().map(Switch::all_drops).sum()
    }

    /// Shortens the slices: that they are short enough is what tests prove with it.
    #[cfg(test)]
    pub(super) fn divide_slice(&mut self, parts: u64) {
        self.slice = (self.slice / parts).max(1);
    }

    /// Payload that hosts have received, bytes, what came twice counted once.
    #[cfg(test)]
    pub(super) fn distinct_bytes(&self) -> u64 {
        self.reception.distinct_bytes()
    }

    pub(crate) fn hosts(&self) -> &[Simulation] {
        &self.hosts
    }

    /// Sending host of a flow, and its number there.
    pub(crate) fn place(&self, flow: u32) -> (u32, u32) {
        let route = &self.routes[flow as usize];
        (route.host, route.local)
    }

    /// Payload that a flow has received in order, bytes, and its packets that came after a later one.
    pub(crate) fn received(&self, flow: u32) -> (u64, u64) {
        let receiver = self.reception.receiver(flow);
        (receiver.delivered(), receiver.out_of_order_packets())
    }
}
