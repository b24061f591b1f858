//! The simulation: hosts, their cores and NICs, the switch between them, and the connections.
//!
//! ```text
//! writer ─▶ TCP ─▶ port ─▶ switch ─▶ slot, interconnect ─▶ ring ─▶ NAPI, GRO ─▶ TCP or backlog ─▶ reader
//!             ▲                                                                  │
//!             └───────────────── softirq ◀───────── acknowledgements ◀───────────┘
//! ```

mod account;
mod reading;
mod recording;
mod sending;

use std::collections::VecDeque;

pub use account::Account;
pub(crate) use recording::TCP_BIN_BYTES;
use recording::TcpBin;

use super::cores::{Core, End, Item, Soft};
use super::machine::{Machine, Pipe, Shares, span_of};
use super::receive_queue::{Buffer, Napi, ReceiveQueue, Train};
use super::settings::{Host, Settings};
use super::socket::{Chunk, Socket};
use crate::engine::{self, Engine, Handler, events};
use crate::error::SimulationError;
use crate::random::{Component, Generator};
use crate::segment::{Segment, wire_bytes};
use crate::tcp::{Ack, Receiver, ReceiverConfig, Reply, Sender, SenderConfig};
use crate::time::{MILLISECOND, SECOND, Span, Time};

/// Maximum number of packets per poll (`NAPI_POLL_WEIGHT`).
const WEIGHT: u32 = 64;
/// Maximum number of acknowledgements per poll at the sender.
const MOST_ACKS: usize = 64;
/// Largest piece in bytes that a process copies without a softirq in between.
const PIECE: u32 = 64 << 10;
/// Retransmissions of a flow within this time are one event.
pub const EVENT: Span = 100 * MILLISECOND;

events! {
    enum Event in Slots {
        Core: cores,
        Departure: ports,
        Interrupt: queues,
        Acks: acks,
        Timer: timers,
        DelayedAck: delayed_acks,
        Start: starts,
        Awake: sleepers,
    }
}

/// A host's hardware that all cores of the host share.
struct Hardware {
    machine: Machine,
    slot: Pipe,
    /// The interconnect, by source and destination node.
    interconnect: Vec<Pipe>,
    /// Bytes that the NIC has written to each node's memory.
    written: Vec<u64>,
    /// Packets that the NIC dropped before the slot.
    dropped: u64,
}

impl Hardware {
    fn new(machine: Machine) -> Self {
        let nodes = machine.nodes as usize;
        Self {
            slot: Pipe::new(machine.pcie_bps),
            interconnect: vec![Pipe::new(machine.interconnect_bps); nodes * nodes],
            written: vec![0; nodes],
            dropped: 0,
            machine,
        }
    }

    fn between(&mut self, from: u32, to: u32) -> &mut Pipe {
        &mut self.interconnect[(from * self.machine.nodes + to) as usize]
    }

    /// Sends data from one node to another. The interconnect's protocol also loads the other direction.
    /// Returns the end of the transfer.
    fn cross(&mut self, now: u64, from: u32, to: u32, bytes: f64) -> u64 {
        let reverse = bytes * self.machine.reverse_share;
        self.between(to, from).carry(now, reverse);
        self.between(from, to).carry(now, bytes)
    }
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    at: Time,
    ack: Ack,
    window_end: u64,
    reports_mark: bool,
}

struct Flow {
    sender: Sender,
    socket: Socket,
    /// Core and number of the process that writes, and of the process that reads.
    writer: (u32, usize),
    reader: (u32, usize),
    /// Core of the sender's softirqs.
    ack_core: u32,
    port: u32,
    queue: u32,
    receiving_host: u32,
    answers: VecDeque<Answer>,
    /// Whether `ack_core` already has a softirq for this flow's acknowledgements.
    is_raised: bool,
    /// The piece that the reader is copying.
    chunk: Option<Chunk>,
    /// Buffers of the backlog that the reader is processing.
    releasing: Vec<Buffer>,
    /// Work on data that the application has read, and the piece of it that is running.
    work: Span,
    work_piece: Span,
    /// Whether the present read has had its sleep (`reader_stall`).
    has_stalled: bool,
    is_woken: bool,
    started: bool,
    event_until: Time,
    pub events: u64,
}

struct Port {
    queue: VecDeque<Segment>,
    rate: u64,
    is_busy: bool,
}

/// Dropped packets, by location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    pub ring: u64,
    pub nic: u64,
    pub switch: u64,
    pub socket_backlog: u64,
    pub pruned: u64,
}

impl Drops {
    #[must_use]
    pub fn total(self) -> u64 {
        self.ring + self.nic + self.switch + self.socket_backlog + self.pruned
    }

    fn minus(self, before: Self) -> Self {
        Self {
            ring: self.ring - before.ring,
            nic: self.nic - before.nic,
            switch: self.switch - before.switch,
            socket_backlog: self.socket_backlog - before.socket_backlog,
            pruned: self.pruned - before.pruned,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub at: Time,
    /// Bytes that each flow's application has read.
    pub read: Vec<u64>,
    pub retransmitted: Vec<u64>,
    pub events: Vec<u64>,
    pub drops: Drops,
    pub packets: u64,
    pub marked: u64,
    /// Busy time of each core of the receiving hosts.
    pub busy: Vec<Span>,
    /// Cycles of the receiving hosts by subsystem.
    pub cycles: [f64; 8],
    pub squeezes: u64,
}

impl Snapshot {
    #[must_use]
    pub fn drops_since(&self, before: &Self) -> Drops {
        self.drops.minus(before.drops)
    }
}

pub struct Simulation {
    settings: Settings,
    engine: Engine<Event>,
    cores: Vec<Core>,
    hardware: Vec<Hardware>,
    queues: Vec<ReceiveQueue>,
    ports: Vec<Port>,
    flows: Vec<Flow>,
    switch: Option<Pipe>,
    switch_drops: u64,
    marked: u64,
    /// Packets that reached a receiving NIC.
    packets: u64,
    merge_bytes: Option<u32>,
    /// Payload read by each flow's application in each bin.
    bins: Vec<Vec<u64>>,
    /// State of each flow's TCP in each bin. Empty if this state is not recorded.
    tcp_bins: Vec<Vec<TcpBin>>,
    begin: Time,
    bin: Span,
}

impl Simulation {
    /// Creates idle hosts. `bins` bins of length `bin` start at `begin`.
    #[must_use]
    pub fn new(settings: Settings, seed: u64, begin: Time, bin: Span, bins: usize) -> Self {
        let mut random = Generator::new(seed, Component::ReceiveHashes);
        let placement = settings.place(&mut random);
        let mut cores = Vec::new();
        let mut hardware = Vec::new();
        for (number, Host { machine, .. }) in (0..).zip(&placement.hosts) {
            for core in 0..machine.cores() {
                let hz = settings.clock(machine, placement.active_cores(number, machine.node_of(core)));
                cores.push(Core::new(number, hz));
            }
            hardware.push(Hardware::new(machine.clone()));
        }
        let queues: Vec<ReceiveQueue> =
            placement.queues.iter().map(|core| ReceiveQueue::new(*core, settings.descriptors)).collect();
        let ports = placement
            .ports
            .iter()
            .map(|rate| Port { queue: VecDeque::new(), rate: *rate, is_busy: false })
            .collect::<Vec<_>>();
        let config = SenderConfig {
            mss: settings.mss,
            tso: settings.segmentation,
            pacing: settings.pacing,
            handshake_rtt: settings.round_trip,
            receive_window: 0,
            ..SenderConfig::new(settings.profile)
        };
        let receiver = ReceiverConfig { mss: settings.mss, ..ReceiverConfig::default() };
        let mut flows = Vec::new();
        for (number, place) in (0_u32..).zip(&placement.flows) {
            let hash = random.bits();
            let congestion = settings.congestion_of(number);
            let config = SenderConfig { congestion, ..config.clone() };
            let socket = Socket::new(
                Receiver::new(&receiver),
                settings.receive_buffer,
                settings.send_buffer,
                settings.mss,
            );
            flows.push(Flow {
                sender: Sender::new(&config, number, hash),
                socket,
                writer: (place.writer, cores[place.writer as usize].add(number, End::Writes)),
                reader: (place.reader, cores[place.reader as usize].add(number, End::Reads)),
                ack_core: place.ack_core,
                port: place.port,
                queue: place.queue,
                receiving_host: place.receiving_host,
                answers: VecDeque::new(),
                is_raised: false,
                chunk: None,
                releasing: Vec::new(),
                work: 0,
                work_piece: 0,
                has_stalled: false,
                is_woken: false,
                started: false,
                event_until: Time::ZERO,
                events: 0,
            });
        }
        let count = flows.len() as u32;
        let slots = Slots::new([
            cores.len() as u32,
            ports.len() as u32,
            queues.len() as u32,
            count,
            count,
            count,
            count,
            count,
        ]);
        let mut engine = Engine::new(slots, slots.queues.end);
        let mut starts = Generator::new(seed, Component::Starts);
        for flow in 0..count {
            let at = settings.start_interval * u64::from(flow) + starts.below(MILLISECOND);
            engine.plan(Event::Start(flow), Time(at));
        }
        Self {
            engine,
            cores,
            hardware,
            queues,
            ports,
            switch: settings.switch.map(|(rate, _)| Pipe::new(rate as f64)),
            switch_drops: 0,
            marked: 0,
            packets: 0,
            merge_bytes: settings.aggregation.then_some(65_536 - 66),
            bins: vec![vec![0; bins]; flows.len()],
            tcp_bins: if settings.tcp_series {
                vec![vec![TcpBin::default(); bins]; flows.len()]
            } else {
                Vec::new()
            },
            flows,
            begin,
            bin,
            settings,
        }
    }

    /// Runs until `until`.
    ///
    /// # Errors
    /// Returns an error if the simulation makes no progress.
    pub fn run(&mut self, until: Time) -> Result<(), SimulationError> {
        engine::run(self, until)?;
        self.engine.now = self.engine.now.max(until);
        Ok(())
    }

    /// Returns and removes the payload that each flow's application has read in each bin.
    pub fn take_bins(&mut self) -> Vec<Vec<u64>> {
        std::mem::take(&mut self.bins)
    }

    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let first_receiver = self.settings.senders;
        let receiving = || self.cores.iter().filter(|core| core.host >= first_receiver);
        let mut cycles = [0.0; 8];
        for core in receiving() {
            cycles.iter_mut().zip(core.cycles).for_each(|(sum, own)| *sum += own);
        }
        Snapshot {
            at: self.engine.now,
            read: self.flows.iter().map(|flow| flow.socket.copied).collect(),
            retransmitted: self
                .flows
                .iter()
                .map(|flow| flow.sender.counters().retransmitted_packets)
                .collect(),
            events: self.flows.iter().map(|flow| flow.events).collect(),
            drops: Drops {
                ring: self.queues.iter().map(|queue| queue.dropped).sum(),
                nic: self.hardware.iter().map(|host| host.dropped).sum(),
                switch: self.switch_drops,
                socket_backlog: self.flows.iter().map(|flow| flow.socket.backlog_drops).sum(),
                pruned: self.flows.iter().map(|flow| flow.socket.pruned).sum(),
            },
            packets: self.packets,
            marked: self.marked,
            busy: receiving().map(|core| core.busy).collect(),
            cycles,
            squeezes: receiving().map(|core| core.squeezes).sum(),
        }
    }

    // ---- Cores -------------------------------------------------------------------------------------------

    fn charge(&mut self, core: u32, shares: &Shares, times: f64) -> f64 {
        self.cores[core as usize].charge(shares, times)
    }

    fn add_pending(&mut self, core: u32, shares: Shares, times: f64) {
        let core = &mut self.cores[core as usize];
        core.pending += core.charge(&shares, times);
    }

    fn raise(&mut self, core: u32, soft: Soft) {
        self.cores[core as usize].raise(soft);
        self.start_core(core);
    }

    fn wake(&mut self, (core, process): (u32, usize)) {
        self.cores[core as usize].wake(process);
        self.start_core(core);
    }

    fn start_core(&mut self, number: u32) {
        let now = self.engine.now;
        if self.cores[number as usize].running.is_some() {
            return;
        }
        while let Some(item) = self.cores[number as usize].next(now) {
            let Some(mut end) = self.begin(number, item) else { continue };
            let core = &mut self.cores[number as usize];
            let pending = std::mem::take(&mut core.pending);
            end += span_of(pending, core.hz);
            core.running = Some((item, now));
            self.engine.plan(Event::Core(number), end.max(now + 1));
            return;
        }
    }

    /// Begins an item. Returns the end of the item, or `None` if there is no work.
    fn begin(&mut self, number: u32, item: Item) -> Option<Time> {
        match item {
            Item::Soft(Soft::Queue(queue)) => Some(self.begin_poll(number, queue)),
            Item::Soft(Soft::Acks(flow)) => Some(self.begin_acks(number, flow)),
            Item::Process(process) => {
                let process = self.cores[number as usize].processes[process];
                match process.end {
                    End::Writes => self.begin_write(number, process.flow),
                    End::Reads => self.begin_read(number, process.flow),
                }
            }
        }
    }

    fn end_item(&mut self, number: u32) {
        let Some((item, _)) = self.cores[number as usize].running else { return };
        let now = self.engine.now;
        match item {
            Item::Soft(Soft::Queue(queue)) => {
                let (packets, more) = self.end_poll(number, queue);
                self.cores[number as usize].ended(now, packets, more);
            }
            Item::Soft(Soft::Acks(flow)) => {
                let (packets, more) = self.end_acks(number, flow);
                self.cores[number as usize].ended(now, packets, more);
            }
            Item::Process(process) => {
                self.cores[number as usize].ended(now, 0, None);
                let process = self.cores[number as usize].processes[process];
                match process.end {
                    End::Writes => self.end_write(process.flow),
                    End::Reads => self.end_read(number, process.flow),
                }
            }
        }
        self.start_core(number);
    }

    // ---- The receiver's softirq --------------------------------------------------------------------------

    fn interrupt(&mut self, number: u32) {
        let now = self.engine.now;
        let queue = &mut self.queues[number as usize];
        if queue.napi == Napi::Polling {
            return;
        }
        queue.admit(now);
        if !queue.has_packets() {
            self.arm(number);
            return;
        }
        queue.napi = Napi::Polling;
        let core = queue.core;
        let host = &self.hardware[self.cores[core as usize].host as usize].machine;
        let shares = host.cycles.interrupt;
        self.add_pending(core, shares, 1.0);
        self.raise(core, Soft::Queue(number));
    }

    /// Enables the interrupt. The interrupt fires a fixed delay after the next packet.
    fn arm(&mut self, number: u32) {
        let queue = &mut self.queues[number as usize];
        queue.napi = Napi::Armed;
        if let Some(at) = queue.next_arrival() {
            let delay = self.settings.machine.interrupt_delay;
            self.engine.plan_no_later(Event::Interrupt(number), at.max(self.engine.now) + delay);
        }
    }

    fn begin_poll(&mut self, number: u32, queue: u32) -> Time {
        let now = self.engine.now;
        let own = &mut self.queues[queue as usize];
        own.admit(now);
        let packets = own.poll(WEIGHT, self.merge_bytes);
        let core = &self.cores[number as usize];
        let machine = &self.hardware[core.host as usize].machine;
        let cycles = &machine.cycles;
        let hz = core.hz;
        let (packet, buffer, defer, wake) = (cycles.packet, cycles.buffer, cycles.defer, cycles.wake);
        // If the NIC wrote packets to another node's memory, their headers and descriptors are not in a
        // cache.
        let local = machine.node_of(number % machine.cores()) == machine.nic_node;
        let misses = if local { 0.0 } else { 2.0 * machine.miss };
        let (mut deferred, mut received, mut woken) = (0, 0, 0);
        for buffer in &self.queues[queue as usize].buffers {
            let socket = &self.flows[buffer.flow as usize].socket;
            if socket.owned {
                deferred += 1;
            } else {
                received += 1;
                woken += u32::from(socket.sleeping);
            }
        }
        let mut sum = self.charge(number, &packet, packets.into());
        sum += self.charge(number, &Shares { netdev: misses, ..Shares::default() }, packets.into());
        sum += self.charge(number, &buffer, received.into());
        sum += self.charge(number, &defer, deferred.into());
        sum += self.charge(number, &wake, woken.min(1).into());
        now + span_of(sum, hz)
    }

    /// Ends a poll. Returns the number of its packets, and the queue if the queue has more packets.
    fn end_poll(&mut self, number: u32, queue: u32) -> (u32, Option<Soft>) {
        let now = self.engine.now;
        let mut buffers = std::mem::take(&mut self.queues[queue as usize].buffers);
        let packets = self.queues[queue as usize].used();
        for buffer in buffers.drain(..) {
            let flow = &mut self.flows[buffer.flow as usize];
            if flow.socket.owned {
                flow.socket.defer(buffer);
            } else {
                self.receive(buffer, number);
            }
        }
        let own = &mut self.queues[queue as usize];
        own.buffers = buffers;
        own.admit(now);
        own.end_poll();
        let packets = packets.min(WEIGHT);
        if own.has_packets() {
            return (packets, Some(Soft::Queue(queue)));
        }
        self.arm(queue);
        (packets, None)
    }

    fn receive(&mut self, buffer: Buffer, _core: u32) {
        let now = self.engine.now;
        let flow = buffer.flow;
        let socket = &mut self.flows[flow as usize].socket;
        if socket.echoes_mark != buffer.is_marked {
            // First acknowledge the older data with the mark of that data (`dctcp_ece_ack_update`).
            if socket.receiver.deadline() != Time::NEVER {
                self.acknowledge(flow);
            }
            self.flows[flow as usize].socket.echoes_mark = buffer.is_marked;
        }
        let own = &mut self.flows[flow as usize];
        match own.socket.receive(now, &buffer) {
            Some(Reply::Now) | None => self.acknowledge(flow),
            Some(Reply::Delayed(at)) => self.engine.plan(Event::DelayedAck(flow), at),
            Some(Reply::Unchanged) => {}
        }
        let own = &mut self.flows[flow as usize];
        if own.socket.sleeping && own.socket.readable_bytes() > 0 {
            own.socket.sleeping = false;
            own.is_woken = true;
            let reader = own.reader;
            self.wake(reader);
        }
    }

    fn acknowledge(&mut self, number: u32) {
        let at = self.engine.now + (self.settings.round_trip - self.settings.forward);
        let delay = self.ack_delay();
        let flow = &mut self.flows[number as usize];
        let ack = flow.socket.receiver.acknowledgement();
        let window_end = flow.socket.advertise();
        let reports_mark = flow.socket.echoes_mark;
        flow.answers.push_back(Answer { at, ack, window_end, reports_mark });
        if !flow.is_raised {
            self.engine.plan_no_later(Event::Acks(number), at + delay);
        }
    }

    // ---- The network -------------------------------------------------------------------------------------

    /// Carries a segment to the receiving NIC. The segment has left its port at `left`.
    fn forward(&mut self, segment: &Segment, left: Time, rate: u64) {
        let packets = segment.packets();
        let packet = transmission(&Segment { payload: segment.mss.min(segment.payload), ..*segment }, rate);
        let took = transmission(segment, rate);
        let mut first_at = Time(left.0.saturating_sub(took)) + packet;
        let mut gap = packet;
        let mut is_marked = false;
        if let (Some(pipe), Some((bottleneck, buffer))) = (&mut self.switch, self.settings.switch) {
            let queue = pipe.backlog(first_at.0);
            if queue > buffer {
                self.switch_drops += u64::from(packets);
                return;
            }
            if self.settings.ecn_threshold.is_some_and(|threshold| queue > threshold)
                && self.flows[segment.flow as usize].sender.uses_ecn()
            {
                is_marked = true;
                self.marked += u64::from(packets);
            }
            let bytes = f64::from(wire_bytes_of(segment));
            let wait = pipe.wait(first_at.0) as u64;
            pipe.carry(first_at.0, bytes);
            let own =
                transmission(&Segment { payload: segment.mss.min(segment.payload), ..*segment }, bottleneck);
            gap = gap.max(own);
            first_at = first_at + wait + own;
        }
        first_at += self.settings.forward;
        self.packets += u64::from(packets);
        let flow = &self.flows[segment.flow as usize];
        let queue = flow.queue;
        let host = &mut self.hardware[flow.receiving_host as usize];
        if host.slot.backlog(first_at.0) > host.machine.nic_buffer {
            host.dropped += u64::from(packets);
            return;
        }
        let core = self.queues[queue as usize].core;
        let node = host.machine.node_of(core % host.machine.cores());
        let bytes = f64::from(wire_bytes_of(segment));
        let arrived = first_at + gap * u64::from(packets - 1);
        let own_node = host.machine.nic_node;
        let wait = if node == own_node {
            host.slot.carry(first_at.0, bytes).saturating_sub(arrived.0)
        } else {
            // The packets also wait for the interconnect, in the NIC's buffer.
            let wait = host.between(own_node, node).wait(first_at.0);
            if wait * host.machine.interconnect_bps / 8.0 / SECOND as f64 > host.machine.nic_buffer as f64 {
                host.dropped += u64::from(packets);
                return;
            }
            let end = host.slot.carry(first_at.0, bytes).max(host.cross(first_at.0, own_node, node, bytes));
            end.saturating_sub(arrived.0)
        };
        let train = Train {
            flow: segment.flow,
            sequence: segment.sequence,
            payload: segment.payload,
            mss: segment.mss,
            first_at: first_at + wait,
            gap,
            is_marked,
        };
        let written = host.written[node as usize];
        host.written[node as usize] += u64::from(segment.payload);
        let own = &mut self.queues[queue as usize];
        own.expect(train, written);
        if own.napi == Napi::Armed {
            // A slow port may pass on a segment whose first packet arrived long ago.
            let at = (train.first_at + self.settings.machine.interrupt_delay).max(self.engine.now);
            self.engine.plan_no_later(Event::Interrupt(queue), at);
        }
    }
}

fn wire_bytes_of(segment: &Segment) -> u32 {
    (0..segment.packets()).map(|index| wire_bytes(segment.packet_payload(index))).sum()
}

/// Returns the transmission time of a segment on a link.
fn transmission(segment: &Segment, rate: u64) -> Span {
    (u128::from(wire_bytes_of(segment)) * 8 * u128::from(SECOND) / u128::from(rate.max(1))) as Span
}

impl Handler for Simulation {
    type Event = Event;

    fn engine(&mut self) -> &mut Engine<Event> {
        &mut self.engine
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Core(core) => self.end_item(core),
            Event::Departure(port) => self.departure(port),
            Event::Interrupt(queue) => self.interrupt(queue),
            Event::Acks(flow) => self.acks_arrive(flow),
            Event::Timer(flow) => {
                let now = self.engine.now;
                let own = &mut self.flows[flow as usize];
                own.sender.on_deadline(now);
                let core = own.ack_core;
                self.send(flow, core);
                self.start_core(core);
            }
            Event::DelayedAck(flow) => {
                if self.flows[flow as usize].socket.receiver.on_deadline(self.engine.now) {
                    self.acknowledge(flow);
                }
            }
            Event::Awake(flow) => {
                let reader = self.flows[flow as usize].reader;
                self.wake(reader);
            }
            Event::Start(flow) => {
                let own = &mut self.flows[flow as usize];
                own.started = true;
                let end = own.socket.advertise();
                own.sender.set_window_end(end);
                let writer = own.writer;
                self.wake(writer);
            }
        }
    }

    fn sent(&mut self) -> u64 {
        self.packets
    }
}
