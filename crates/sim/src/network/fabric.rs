//! The switches of a network, and the links between them.

use std::collections::VecDeque;

use super::{Hop, Switch, Topology};
use crate::engine::{self, Engine, Handler, events};
use crate::error::SimulationError;
use crate::segment::{Packet, wire_bytes};
use crate::time::Time;

events! {
    enum Event in Slots {
        /// The first packet on a link arrives at the end of the link. Each direction of a link has its
        /// own event.
        Line: lines,
    }
}

/// The path of a flow: the range of its switches in [`Fabric::hops`].
#[derive(Clone, Copy, Debug)]
struct Way {
    first_hop: u32,
    hops: u32,
}

pub(super) struct Fabric {
    engine: Engine<Event>,
    switches: Vec<Switch>,
    ways: Vec<Way>,
    hops: Vec<Hop>,
    /// Packets on each link, by direction, with the number of the hop at the end. The calendar has the
    /// arrival of the first packet of each link and direction.
    lines: Vec<VecDeque<(Packet, u32)>>,
    /// Packets in flight to their first switch.
    entering: Vec<Packet>,
    /// Arrival time, flow and index of each packet in `entering`, sorted. At equal times, the flow
    /// decides, because the index depends on the length of the slices.
    order: Vec<(Time, u32, u32)>,
    /// Reusable buffer: packets for the next slice.
    left_over: Vec<Packet>,
    /// Packets that have left their last switch, with the arrival time at their host.
    delivered: Vec<Packet>,
    forwarded: u64,
}

impl Fabric {
    pub(super) fn new(topology: &Topology, switches: Vec<Switch>) -> Self {
        let lines = 2 * topology.links.len();
        Self {
            engine: Engine::new(Slots::new([lines as u32]), lines as u32),
            switches,
            ways: Vec::new(),
            hops: Vec::new(),
            lines: vec![VecDeque::new(); lines],
            entering: Vec::new(),
            order: Vec::new(),
            left_over: Vec::new(),
            delivered: Vec::new(),
            forwarded: 0,
        }
    }

    pub(super) fn add_way(&mut self, hops: Vec<Hop>) {
        self.ways.push(Way { first_hop: self.hops.len() as u32, hops: hops.len() as u32 });
        self.hops.extend(hops);
    }

    /// Adds packets that arrive at the first switch of their paths, each at its time.
    pub(super) fn enter(&mut self, packets: impl Iterator<Item = Packet>) {
        self.entering.extend(packets);
    }

    /// Forwards the packets that reach a switch until `limit`. Returns the packets for the hosts. The
    /// packets of each host are in order of arrival.
    pub(super) fn run(&mut self, limit: Time) -> Result<std::vec::Drain<'_, Packet>, SimulationError> {
        self.order.clear();
        self.order.extend((0..).zip(&self.entering).map(|(index, packet)| (packet.at, packet.flow, index)));
        self.order.sort_unstable();
        let due = self.order.partition_point(|&(at, ..)| at <= limit);
        for next in 0..due {
            let (at, _, index) = self.order[next];
            // If a packet from a host and a packet from a switch arrive at the same time, the host's
            // packet is first.
            if self.engine.next_time() < at {
                engine::run(self, Time(at.0 - 1))?;
            }
            self.forward(self.entering[index as usize], 0);
        }
        engine::run(self, limit)?;
        self.left_over.clear();
        self.left_over.extend(self.order[due..].iter().map(|&(_, _, index)| self.entering[index as usize]));
        std::mem::swap(&mut self.entering, &mut self.left_over);
        Ok(self.delivered.drain(..))
    }

    /// Forwards a packet at the switch `hop` of its path.
    #[inline]
    fn forward(&mut self, packet: Packet, hop: u32) {
        self.forwarded += 1;
        let way = &self.ways[packet.flow as usize];
        let Hop { switch, port, line } = self.hops[(way.first_hop + hop) as usize];
        let bytes = wire_bytes(packet.payload);
        let Some(at) = self.switches[switch as usize].forward(port, packet.at, bytes) else { return };
        let packet = Packet { at, ..packet };
        if hop + 1 == way.hops {
            self.delivered.push(packet);
        } else {
            let in_flight = &mut self.lines[line as usize];
            if in_flight.is_empty() {
                self.engine.plan(Event::Line(line), at);
            }
            in_flight.push_back((packet, hop + 1));
        }
    }

    /// Returns the time at which the next packet reaches a switch; [`Time::NEVER`] without packets.
    pub(super) fn next_time(&mut self) -> Time {
        let waiting = self.entering.iter().map(|packet| packet.at).min().unwrap_or(Time::NEVER);
        waiting.min(self.engine.next_time())
    }

    pub(super) fn drops(&self) -> u64 {
        self.switches.iter().map(Switch::all_drops).sum()
    }
}

impl Handler for Fabric {
    type Event = Event;

    #[inline]
    fn engine(&mut self) -> &mut Engine<Event> {
        &mut self.engine
    }

    #[inline]
    fn handle(&mut self, event: Event) {
        let Event::Line(line) = event;
        let in_flight = &mut self.lines[line as usize];
        let first = in_flight.pop_front();
        if let Some((packet, _)) = in_flight.front() {
            self.engine.plan(event, packet.at);
        }
        if let Some((packet, hop)) = first {
            self.forward(packet, hop);
        }
    }

    fn sent(&mut self) -> u64 {
        self.forwarded
    }
}
