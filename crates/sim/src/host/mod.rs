//! Two hosts and the line between them: their events, and the modules that handle them.
//!
//! The sender's stations are in `transmit.rs`, the receiver is [`crate::sink`]. Events:
//!
//! | event | effect |
//! |---|---|
//! | interrupt of a vector | completes sent segments, handles acknowledgements, runs the TSQ tasklet, restarts the qdisc |
//! | interrupt at the receiver | passes arrived data to TCP, which acknowledges it |
//! | timer of a flow | retransmission, pacing, the application's next write |
//! | response | the server's program answers a client (`fetch.rs`) |
//! | delayed acknowledgement | the receiver's timer of a flow expires |
//! | watchdog of a qdisc | a shaper may send again |
//! | weight of a queue | the NIC serves the queue with its new weight |
//! | probe | the latency probe sends a request |
//!
//! Departures from the NIC have no events: the NIC computes them in closed form. `interrupts.rs` schedules
//! the interrupts that they cause.

mod conservation;
mod fetch;
mod interrupts;
mod probe;
mod soft_nic;
mod transmit;

use std::collections::VecDeque;

use evenkeel_model::scenario;
use evenkeel_transmit::{FlowWord, MAX_QUEUES, Pool, QueueWeights};

pub use self::conservation::Account;
pub use self::fetch::Fetched;
use self::fetch::Fetches;
use self::probe::Probe;
use crate::arrivals::Arrivals;
use crate::engine::{self, Engine, Handler, events};
use crate::error::SimulationError;
use crate::nic::{
    ByteQueueLimit, Departures, DqlConfig, Finishes, MTU_QUANTUM_BYTES, Nic, NicConfig, RingSpace, Scheduler,
    Service, Train, least_descriptors,
};
use crate::observation::Observation;
use crate::parameters::{Parameters, SEND_BUFFER_BYTES};
use crate::processors::Processors;
use crate::qdisc::Qdisc;
use crate::random::{Component, Generator};
use crate::segment::{HEADER_BYTES, PROBE, Packet, Segment};
use crate::settings::Settings;
use crate::sink::{Reaction, Sink};
use crate::tcp::{Ack, Profile, Receiver, ReceiverConfig, Sender, SenderConfig};
use crate::time::{MICROSECOND, Span, Time};

#[derive(Debug)]
// The order of the fields matters: the fields that every acknowledgement accesses come first. Aligned
// to cache lines.
#[repr(C, align(64))]
pub(crate) struct Flow {
    /// Acknowledged bytes. They limit how much the application writes.
    pub(crate) acknowledged: u64,
    pub(crate) writing: u64,
    /// Bytes to write after `writing`.
    pub(crate) remaining: u64,
    pub(crate) word: FlowWord,
    pub(crate) pool: Pool,
    pub(crate) processor: u32,
    /// Queue of the flow's last segment.
    pub(crate) queue: u32,
    pub(crate) weight: u32,
    pub(crate) hash: u32,
    /// Copy of the time of the flow's timer event. The calendar is more expensive to access.
    pub(crate) timer: Time,
    pub(crate) sender: Sender,
    pub(crate) vector: u32,
    /// Payload that the qdisc has refused or dropped, bytes.
    pub(crate) dropped: u64,
}

/// A transmit queue: qdisc, byte queue limit, ring.
#[derive(Debug)]
pub(crate) struct TransmitQueue {
    pub(crate) qdisc: Qdisc,
    pub(crate) limit: ByteQueueLimit,
    pub(crate) ring: RingSpace,
    /// Segments that have left but are not completed.
    pub(crate) sent: Vec<Segment>,
    /// Frame bytes sent since the start of the simulation.
    pub(crate) bytes: u64,
    pub(crate) drops: u64,
}

/// An interrupt vector of the sender's NIC, for the completions of a transmit queue or for a share of the
/// arrivals.
#[derive(Debug, Default)]
pub(crate) struct Vector {
    pub(crate) last_interrupt: Time,
    pub(crate) acknowledgements: Arrivals,
    /// Arrival times of answers to the probe.
    pub(crate) answers: VecDeque<Time>,
    /// Requests of clients in order of arrival: arrival time and client.
    pub(crate) requests: VecDeque<(Time, u32)>,
}

events! {
    /// Events of two hosts; the module's table has the details.
    enum Event in Slots {
        Interrupt: interrupts,
        ReceiverInterrupt: receiver_interrupts,
        Watchdog: watchdogs,
        WeightWrite: weight_writes,
        Probe: probe,
        FlowTimer: flow_timers,
        DelayedAck: delayed_acks,
        Response: responses,
    }
}

pub struct Simulation {
    pub(crate) settings: Settings,
    pub(crate) parameters: Parameters,
    pub(crate) engine: Engine<Event>,
    pub(crate) flows: Vec<Flow>,
    pub(crate) queues: Vec<TransmitQueue>,
    pub(crate) weights: QueueWeights,
    pub(crate) vectors: Vec<Vector>,
    pub(crate) nic: Nic,
    pub(crate) sink: Sink,
    pub(crate) processors: Processors,
    pub(crate) observation: Observation,
    pub(crate) probe: Option<Probe>,
    pub(crate) fetches: Option<Fetches>,
    /// Reusable buffer of the tasklet: flows that may send.
    pub(crate) tasklet: Vec<u32>,
    /// Reusable buffer of batching: queues that received segments.
    pub(crate) touched: Vec<u32>,
    pub(crate) scratch_segments: Vec<Segment>,
    /// Reusable buffers of the receiver's interrupt: vectors to which it has sent acknowledgements, and
    /// deadlines of delayed acknowledgements.
    scratch_vectors: Vec<u32>,
    scratch_deadlines: Vec<(u32, Time)>,
    /// Reusable buffer of weight changes: predicted departures of each ring's first segment.
    pub(crate) scratch_finishes: Finishes,
    pub(crate) weight_writes: u64,
    /// Departed packets for a network. `None` if the packets go to the sink.
    pub(crate) outbox: Option<Vec<Packet>>,
}

/// Passes the NIC's departures to the receiver, the completions and the observation bins.
pub(crate) struct Outlet<'a> {
    pub(crate) queues: &'a mut [TransmitQueue],
    pub(crate) sink: &'a mut Sink,
    pub(crate) observation: &'a mut Observation,
    pub(crate) probe: Option<&'a mut Probe>,
    pub(crate) outbox: Option<&'a mut Vec<Packet>>,
}

impl Departures for Outlet<'_> {
    #[inline]
    fn packets(&mut self, train: &Train<'_>) {
        let segment = train.segment;
        if segment.flow == PROBE {
            return;
        }
        let first = train.end_of(0);
        let ends = (first, if train.packets == 1 { first } else { train.end() });
        let each = |packet| {
            let payload = segment.packet_payload(train.first + packet);
            (train.end_of(packet), u64::from(payload + HEADER_BYTES))
        };
        self.observation.count(segment.flow as usize, train.packets, train.frame_bytes, ends, each);
        if let Some(outbox) = self.outbox.as_mut() {
            outbox.extend((0..train.packets).map(|index| train.packet(index)));
            return;
        }
        let begin = u64::from(train.first * segment.mss);
        let end = u64::from(((train.first + train.packets) * segment.mss).min(segment.payload));
        self.sink.arrived(segment.flow, segment.sequence + begin, end - begin, train.packets, ends.0);
    }

    fn finished(&mut self, queue: u32, segment: &Segment, _at: Time) {
        if segment.flow == PROBE {
            if let Some(probe) = self.probe.as_mut() {
                probe.at_sink = true;
                self.sink.poke(probe.sink_queue);
                if self.outbox.is_none() {
                    self.sink.leaves(probe.sink_queue, queue);
                }
            }
        } else if self.outbox.is_none() {
            self.sink.leaves(self.sink.queue_of(segment.flow), queue);
        }
        let ring = &mut self.queues[queue as usize];
        ring.bytes += u64::from(segment.frame_bytes());
        // The interrupt was scheduled at the enqueue of the segment.
        ring.sent.push(*segment);
    }
}

impl Simulation {
    /// Creates two idle hosts. Bins of length `bin` start at `begin`.
    ///
    /// # Errors
    /// Returns an error if the settings do not fit a qdisc or each other, or a number is outside the
    /// simulated range.
    pub fn new(
        settings: Settings,
        parameters: Parameters,
        seed: u64,
        begin: Time,
        bin: Span,
        bins: usize,
    ) -> Result<Self, SimulationError> {
        check(&settings, &parameters)?;
        settings.check_groups()?;
        let queues = settings.queues;
        let clients = if settings.clients.is_empty() { 0 } else { settings.flows };
        let (receive_queues, flows) = (parameters.receive_queues, settings.flows);
        let vectors = queues + receive_queues;
        let slots = Slots::new([vectors, receive_queues, queues, queues, 1, flows, flows, clients]);
        let mut hashes = Generator::new(seed, Component::SocketHashes);
        let mut qdisc_seeds = Generator::new(seed, Component::QdiscHashes);
        let mut receive = Generator::new(seed, Component::ReceiveHashes);
        let config = SenderConfig {
            congestion: settings.congestion,
            mss: settings.mss,
            gso_max_bytes: settings.gso_bytes,
            tso: settings.offload,
            small_queue_limit: settings.small_queue_limit,
            // In Titan's kernel (4.4), the option that enables transmit batching also removes this floor
            // (`CONFIG_TCP_XMIT_BATCH`, `tcp_write_xmit`).
            small_queue_floor: !settings.transmit_batching || parameters.profile != Profile::Linux4_4,
            handshake_rtt: parameters.handshake_rtt,
            ..SenderConfig::new(parameters.profile)
        };
        let mut peers = Vec::new();
        let flows: Vec<Flow> = settings
            .placement()
            .into_iter()
            .zip(settings.flow_priorities())
            .enumerate()
            .map(|(number, (processor, priority))| {
                let hash = hashes.bits();
                let received = receive.bits();
                peers.push((
                    Receiver::new(&ReceiverConfig { mss: settings.mss, ..ReceiverConfig::default() }),
                    received,
                ));
                Flow {
                    sender: Sender::new(&config, number as u32, hash),
                    word: FlowWord::new(),
                    weight: 1,
                    hash,
                    timer: Time::NEVER,
                    queue: 0,
                    processor,
                    pool: settings.pool(priority, processor),
                    vector: queues + (received >> 16) % parameters.receive_queues,
                    acknowledged: 0,
                    writing: 0,
                    remaining: 0,
                    dropped: 0,
                }
            })
            .collect();
        let transmit_queues = (0..queues)
            .map(|queue| {
                let kind = transmit::qdisc_of(&settings, &parameters, queue);
                Ok(TransmitQueue {
                    qdisc: Qdisc::new(&kind, qdisc_seeds.long_bits()).map_err(SimulationError::from)?,
                    limit: match settings.byte_queue_limit {
                        scenario::ByteQueueLimit::Off => ByteQueueLimit::Off,
                        // sysfs sets an upper bound (`limit_max`). The kernel still adapts the limit
                        // below this bound.
                        scenario::ByteQueueLimit::Fixed(size) => ByteQueueLimit::dynamic(DqlConfig {
                            largest_limit: size.bytes(),
                            ..DqlConfig::default()
                        }),
                        scenario::ByteQueueLimit::Dynamic => ByteQueueLimit::dynamic(DqlConfig::default()),
                    },
                    ring: RingSpace::new(parameters.ring_descriptors, settings.gso_bytes.max(settings.mss)),
                    sent: Vec::with_capacity(64),
                    bytes: 0,
                    drops: 0,
                })
            })
            .collect::<Result<_, SimulationError>>()?;
        let service = if settings.queue_weights {
            Service::Deficit {
                quantum_bytes: MTU_QUANTUM_BYTES,
                largest_weight: parameters.largest_queue_weight,
            }
        } else {
            Service::RoundRobin
        };
        let probe = settings.probe_bytes.map(|bytes| Probe::new(bytes, &settings, &parameters, seed));
        Ok(Self {
            engine: Engine::new(slots, slots.watchdogs.begin),
            queues: transmit_queues,
            weights: QueueWeights::new(),
            vectors: (0..vectors).map(|_| Vector::default()).collect(),
            nic: Nic::new(NicConfig {
                rate_bps: settings.rate,
                queues,
                interleave: settings.interleaving,
                service,
                exact: settings.exact,
            }),
            sink: Sink::new(peers, parameters.receive_queues, parameters.sink_interrupt_interval)
                .of_rings(queues),
            processors: Processors::new(settings.processors),
            observation: Observation::new(flows.len(), begin, bin, bins),
            probe,
            fetches: Fetches::new(&settings.clients),
            tasklet: Vec::new(),
            touched: Vec::new(),
            scratch_segments: Vec::new(),
            scratch_vectors: Vec::new(),
            scratch_deadlines: Vec::new(),
            scratch_finishes: Finishes::default(),
            weight_writes: 0,
            outbox: None,
            flows,
            settings,
            parameters,
        })
    }

    /// Replaces the qdisc of a queue. Call this function before the flows start.
    pub fn set_qdisc(&mut self, queue: u32, qdisc: Qdisc) {
        self.queues[queue as usize].qdisc = qdisc;
    }

    /// Installs a user-defined scheduler in the NIC. Call this function before the flows start.
    pub fn set_nic_scheduler(&mut self, scheduler: Box<dyn Scheduler>) {
        self.nic.set_scheduler(scheduler);
    }

    /// Starts endless flows, each at a random time in the span `within`.
    pub fn start(&mut self, seed: u64, within: Span) {
        self.start_transfers(seed, within, u64::MAX);
    }

    /// Starts flows that transfer `bytes` each, at random times in the span `within`.
    pub fn start_transfers(&mut self, seed: u64, within: Span, bytes: u64) {
        for flow in &mut self.flows {
            flow.remaining = bytes;
        }
        self.start_flows(seed, within);
    }

    /// Starts the flows with their own transfer sizes at random times in the span `within`.
    pub(crate) fn start_flows(&mut self, seed: u64, within: Span) {
        let mut starts = Generator::new(seed, Component::Starts);
        for flow in 0..self.flows.len() as u32 {
            let at = self.engine.now + starts.below(within.max(1));
            self.plan_timer(flow, at);
            let flow = &mut self.flows[flow as usize];
            flow.writing = flow.remaining.min(SEND_BUFFER_BYTES);
            flow.remaining -= flow.writing;
            flow.sender.set_buffer_full(flow.remaining > 0);
        }
    }

    pub fn start_probe(&mut self) {
        if let Some(probe) = &self.probe {
            self.engine.plan(Event::Probe(0), self.engine.now + probe.first_wait());
        }
    }

    /// Runs until `until`, which becomes the present.
    ///
    /// # Errors
    /// Returns an error if no event is pending before all transfers are done, or if events continue without a
    /// packet sent.
    pub fn run(&mut self, until: Time) -> Result<(), SimulationError> {
        engine::run(self, until)?;
        if self.engine.calendar.next_time().is_none() {
            let unfinished = self.flows.iter().filter(|flow| flow.sender.unfinished() > 0).count();
            if unfinished > 0 {
                return Err(SimulationError::Standstill {
                    at_us: self.engine.now.0 / MICROSECOND,
                    unfinished,
                });
            }
        }
        self.engine.now = until;
        self.advance();
        Ok(())
    }

    /// Runs a host of a network until `until`, which becomes the present.
    pub(crate) fn run_host(&mut self, until: Time) -> Result<(), SimulationError> {
        engine::run(self, until)?;
        self.engine.now = until;
        self.advance();
        Ok(())
    }

    /// Returns the time of the host's next event or departure, or `Time::NEVER`. Arrivals from the network
    /// do not count.
    pub(crate) fn next_activity(&mut self) -> Time {
        self.engine.calendar.next_time().unwrap_or(Time::NEVER).min(self.nic.next_departure())
    }

    /// Advances the NIC to the present and reports all departures.
    pub(crate) fn advance(&mut self) {
        self.with_nic(|nic, now, outlet| nic.advance(now, outlet));
    }

    #[inline]
    pub(crate) fn catch_up(&mut self) {
        if !self.nic.skip_to(self.engine.now) {
            self.with_nic(|nic, now, outlet| nic.catch_up(now, outlet));
        }
    }

    fn take_arrivals(&mut self, receive_queue: u32) {
        let wanted = |outlet: &Outlet<'_>, segment: &Segment| {
            segment.flow != PROBE && outlet.sink.queue_of(segment.flow) == receive_queue
        };
        self.with_nic(|nic, _, outlet| nic.tell(wanted, outlet));
    }

    pub(crate) fn with_nic(&mut self, work: impl FnOnce(&mut Nic, Time, &mut Outlet<'_>)) {
        let mut outlet = Outlet {
            queues: &mut self.queues,
            sink: &mut self.sink,
            observation: &mut self.observation,
            probe: self.probe.as_mut(),
            outbox: self.outbox.as_mut(),
        };
        work(&mut self.nic, self.engine.now, &mut outlet);
    }

    fn sink_interrupt(&mut self, queue: u32) {
        self.catch_up();
        self.take_arrivals(queue);
        let (flows, vectors) = (&self.flows, &mut self.vectors);
        let arrival = self.engine.now + 2 * self.parameters.line_latency;
        let interval = self.settings.interrupt_interval;
        let mut interrupts = std::mem::take(&mut self.scratch_vectors);
        let mut deadlines = std::mem::take(&mut self.scratch_deadlines);
        let has_arrived = self.sink.interrupt(queue, self.engine.now, |flow, reaction| match reaction {
            Reaction::Acknowledge(ack) => {
                let vector = flows[flow as usize].vector;
                vectors[vector as usize].acknowledgements.insert(arrival, flow, &ack);
                interrupts.push(vector);
            }
            Reaction::Wait(deadline) => deadlines.push((flow, deadline)),
        });
        for vector in interrupts.drain(..) {
            let last = self.vectors[vector as usize].last_interrupt;
            self.engine.plan_no_later(Event::Interrupt(vector), arrival.max(last + interval));
        }
        for (flow, deadline) in deadlines.drain(..) {
            self.engine.plan(Event::DelayedAck(flow), deadline);
        }
        self.scratch_vectors = interrupts;
        self.scratch_deadlines = deadlines;
        if self.fetches.is_some() {
            self.take_responses();
        }
        if has_arrived {
            // Schedule the next interrupt for the earliest allowed time: more packets have usually
            // arrived by then. If no packet has arrived, the event handler reschedules the interrupt.
            self.expect_arrival_at(queue, self.engine.now);
        } else {
            self.expect_arrival(queue);
        }
        if let Some(probe) = self.probe.as_mut().filter(|probe| probe.at_sink && probe.sink_queue == queue) {
            probe.at_sink = false;
            // The answering program runs on an idle machine. Its answer passes no queue.
            let answer = arrival + self.parameters.application_latency;
            let line = &mut self.vectors[probe.vector as usize];
            line.answers.push_back(answer);
            self.engine
                .plan_no_later(Event::Interrupt(probe.vector), answer.max(line.last_interrupt + interval));
        }
    }

    fn acknowledge(&mut self, flow: u32, ack: Ack) {
        self.acknowledge_at(flow, self.engine.now + 2 * self.parameters.line_latency, ack);
    }

    pub(crate) fn acknowledge_at(&mut self, flow: u32, arrival: Time, ack: Ack) {
        let vector = self.flows[flow as usize].vector;
        let line = &mut self.vectors[vector as usize];
        line.acknowledgements.insert(arrival, flow, &ack);
        self.engine.plan_no_later(
            Event::Interrupt(vector),
            arrival.max(line.last_interrupt + self.settings.interrupt_interval),
        );
    }
}

impl Handler for Simulation {
    type Event = Event;

    #[inline]
    fn engine(&mut self) -> &mut Engine<Event> {
        &mut self.engine
    }

    #[inline]
    fn handle(&mut self, event: Event) {
        match event {
            Event::Interrupt(vector) => self.interrupt(vector),
            Event::ReceiverInterrupt(queue) => self.sink_interrupt(queue),
            Event::Watchdog(queue) => {
                self.catch_up();
                self.run_qdisc(queue);
            }
            Event::WeightWrite(queue) => self.write_weight(queue),
            Event::Probe(_) => self.probe_event(),
            Event::FlowTimer(flow) => self.flow_timer(flow),
            Event::DelayedAck(flow) => {
                if let Some(ack) = self.sink.deadline(flow, self.engine.now) {
                    self.acknowledge(flow, ack);
                }
            }
            Event::Response(client) => self.respond(client),
        }
    }

    fn sent(&mut self) -> u64 {
        self.advance();
        // Only the queues' bytes include the probe's packets.
        let bytes: u64 = self.queues.iter().map(|queue| queue.bytes).sum();
        bytes + self.observation.packets
    }
}

fn check(settings: &Settings, parameters: &Parameters) -> Result<(), SimulationError> {
    let most = MAX_QUEUES as u64;
    let ranges = [
        ("the number of queues", "1 to 256", u64::from(settings.queues), 1..=most),
        // The calendar has at most 2^24 slots. Each flow takes two, or three with a client.
        ("the number of flows", "4,000,000 at most", u64::from(settings.flows), 0..=4_000_000),
        ("the number of receive queues", "at least 1", u64::from(parameters.receive_queues), 1..=u64::MAX),
        // `IXGBE_MIN_TXD`.
        ("the number of descriptors", "at least 64", u64::from(parameters.ring_descriptors), 64..=u64::MAX),
        (
            "the number of descriptors for segments of this size",
            "at least 1, and twice the descriptors of the largest segment",
            u64::from(parameters.ring_descriptors),
            u64::from(least_descriptors(settings.gso_bytes.max(settings.mss)))..=u64::MAX,
        ),
        (
            "the receiver's interrupt interval, ps,",
            "at least a microsecond",
            parameters.sink_interrupt_interval,
            MICROSECOND..=u64::MAX,
        ),
    ];
    match ranges.into_iter().find(|(_, _, value, range)| !range.contains(value)) {
        Some((what, range, value, _)) => Err(SimulationError::Range { what, range, value }),
        None => Ok(()),
    }
}

/// Running totals. The simulation samples them before and after a measurement.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) busy: Span,
    pub(crate) retransmits: u64,
    pub(crate) drops: u64,
    pub(crate) weight_writes: u64,
    pub(crate) queue_bytes: Vec<u64>,
    /// Payload delivered, segments retransmitted and packets out of order, per flow.
    pub(crate) flows: Vec<(u64, u64, u64)>,
}

impl Simulation {
    pub(crate) fn snapshot(&self) -> Snapshot {
        let flows: Vec<(u64, u64, u64)> = (0..self.flows.len())
            .map(|flow| {
                let receiver = &self.sink.peer(flow as u32).receiver;
                (
                    receiver.delivered(),
                    self.flows[flow].sender.counters().retransmitted_segments,
                    receiver.out_of_order_packets(),
                )
            })
            .collect();
        Snapshot {
            busy: self.processors.busy(self.engine.now),
            retransmits: flows.iter().map(|flow| flow.1).sum(),
            drops: self.queues.iter().map(|queue| queue.drops).sum(),
            weight_writes: self.weight_writes,
            queue_bytes: self.queues.iter().map(|queue| queue.bytes).collect(),
            flows,
        }
    }

    /// Returns and clears the probe's latencies: half round trips in µs.
    pub fn take_latencies(&mut self) -> Vec<f64> {
        self.probe.as_mut().map(|probe| std::mem::take(&mut probe.samples)).unwrap_or_default()
    }

    pub(crate) fn queue_of(&self, flow: usize) -> u32 {
        self.flows[flow].queue
    }

    pub(crate) fn flows_on(&self, queue: u32) -> u32 {
        self.flows.iter().filter(|flow| flow.queue == queue).count() as u32
    }
}
