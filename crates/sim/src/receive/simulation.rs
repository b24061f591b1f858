use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use evenkeel_model::scenario::{ReceiveKnobs, ServerKind};
use evenkeel_model::units::BitRate;
use evenkeel_receive::search::SearchError;
use hdrhistogram::Histogram;

use super::messages::Transaction;
use super::steering::{Steering, tuple_of};
use crate::costs::queue_pairs::ReceiveCosts;
use crate::engine::{self, Engine, Handler, events};
use crate::error::SimulationError;
use crate::processors::Processors;
use crate::random::{Component, Generator};
use crate::time::{MILLISECOND, NANOSECOND, SECOND, Span, Time, span_of};

/// A client begins to create its first request within this time after its arrival.
const STARTS_WITHIN: Span = MILLISECOND;
/// Upper bound of the latency histogram in ns: one hour.
const LONGEST_NS: u64 = 3_600_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSpec {
    pub group: usize,
    pub host: u32,
    pub flows: u32,
    /// Requests in flight per flow.
    pub outstanding: u32,
    pub high_priority: bool,
    pub from: Time,
    /// Time at which the client leaves; [`Time::NEVER`] if the client stays.
    pub until: Time,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    flow: u32,
    client: u32,
    is_set: bool,
    /// Time at which the client began to create the request.
    made: Time,
    /// Time of the next step: the client sends the request, the request reaches the ring, or the
    /// application has the response.
    ready: Time,
}

/// A lost request: the time at which the client gives up, the flow, and the client.
type Lost = Reverse<(Time, u32, u32)>;

struct Client {
    spec: ClientSpec,
    flows: Range<u32>,
    /// Created requests, which the client sends at [`Request::ready`].
    sends: VecDeque<Request>,
    sent: u64,
    answered: u64,
    requests: Vec<u64>,
    response_ns: Vec<u128>,
    payload: u64,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    Receive(Request),
    Transmit(Request),
}

/// A queue pair: the thread that serves it, and the application thread behind it.
#[derive(Default)]
struct QueuePair {
    /// Requests in flight to the ring, in order of arrival.
    arriving: VecDeque<Request>,
    received: VecDeque<Request>,
    responses: VecDeque<Request>,
    at_work: Option<Work>,
    bytes: u64,
    /// Requests dropped because the ring was full.
    dropped: u64,
}

#[derive(Default)]
struct Wire {
    free: Time,
}

impl Wire {
    /// Returns the arrival time of a message that is sent `now`.
    fn carry(&mut self, now: Time, wire: Span, latency: Span) -> Time {
        self.free = self.free.max(now) + wire;
        self.free + latency
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Leave(usize),
    Arrive(usize),
    Configure,
}

/// Numbers of requests. `sent` is the sum of `answered`, `under_way` and `lost`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Requests that clients create, including those that wait for the client's thread.
    pub sent: u64,
    /// Responses that clients have read, or will read when their thread is free.
    pub answered: u64,
    /// Requests in progress: in client threads, on the wire, in rings, in service and in applications.
    pub under_way: u64,
    /// Requests lost because a receive ring was full.
    pub lost: u64,
    /// Lost requests whose timeout has passed.
    pub given_up: u64,
}

events! {
    enum Event in Slots {
        Client: clients,
        /// The thread of a queue pair completes its work, or checks for new work.
        QueuePair: queue_pairs,
        /// Clients arrive or leave, or the NIC is configured.
        Change: changes,
        Loss: losses,
    }
}

pub struct ReceiveSimulation {
    engine: Engine<Event>,
    begin: Time,
    end: Time,
    costs: ReceiveCosts,
    server: ServerKind,
    ring: usize,
    timeout: Option<Span>,
    lost: BinaryHeap<Lost>,
    given_up: u64,
    /// One core per client thread.
    client_cores: Processors,
    /// One core for each queue pair's thread, followed by one core for each application thread.
    server_cores: Processors,
    ask: Transaction,
    set: Transaction,
    set_percent: u64,
    steering: Steering,
    clients: Vec<Client>,
    queues: Vec<QueuePair>,
    ingress: Wire,
    egress: Wire,
    responses: Vec<Histogram<u64>>,
    changes: VecDeque<(Time, Change)>,
    mix: Generator,
    failure: Option<SearchError>,
}

#[derive(Debug, thiserror::Error)]
pub enum RequestsError {
    #[error(transparent)]
    Search(#[from] SearchError),
    #[error(transparent)]
    Simulation(#[from] SimulationError),
}

#[derive(Clone, Debug)]
pub struct Setting<'s> {
    pub knobs: &'s ReceiveKnobs,
    pub queues: u32,
    pub rate: BitRate,
    pub server: ServerKind,
    /// Share of requests that set a value, in per cent.
    pub set_percent: u32,
    /// Time after which a client gives up a lost request. `None` for no timeout.
    pub timeout: Option<Span>,
    pub groups: usize,
    pub measured: Range<Time>,
}

impl ReceiveSimulation {
    /// Creates a server with these clients, before their first requests.
    ///
    /// # Errors
    /// Returns an error if the NIC or the policy does not support the configuration.
    pub fn new(
        setting: &Setting<'_>,
        clients: Vec<ClientSpec>,
        costs: ReceiveCosts,
        seed: u64,
    ) -> Result<Self, String> {
        let Setting { knobs, queues, rate, server, .. } = *setting;
        let (begin, end) = (setting.measured.start, setting.measured.end);
        let mut steering = Steering::new(knobs, queues)?;
        let seconds = end.since(begin).div_ceil(SECOND) as usize;
        let mut hosts: Vec<u32> = Vec::new();
        let mut flow_count = 0;
        let clients: Vec<Client> = clients
            .into_iter()
            .map(|spec| {
                let host = spec.host as usize;
                hosts.resize(hosts.len().max(host + 1), 0);
                for _ in 0..spec.flows {
                    steering.declare(tuple_of(spec.host, hosts[host]), spec.high_priority);
                    hosts[host] += 1;
                }
                let flows = flow_count..flow_count + spec.flows;
                flow_count = flows.end;
                Client {
                    spec,
                    flows,
                    sends: VecDeque::new(),
                    sent: 0,
                    answered: 0,
                    requests: vec![0; seconds],
                    response_ns: vec![0; seconds],
                    payload: 0,
                }
            })
            .collect();
        let changes = changes_of(&clients, span_of(knobs.reaction));
        let slots = Slots::new([clients.len() as u32, queues, 1, 1]);
        let mut engine = Engine::new(slots, slots.losses.end);
        let histogram = || {
            Histogram::new_with_bounds(1, LONGEST_NS, SIGNIFICANT_DIGITS).map_err(|error| error.to_string())
        };
        let responses = (0..setting.groups).map(|_| histogram()).collect::<Result<_, _>>()?;
        if let Some((at, _)) = changes.front() {
            engine.plan(Event::Change(0), *at);
        }
        let mut simulation = Self {
            engine,
            begin,
            end,
            server,
            // The value fits: it is at most 65,536.
            ring: knobs.ring as usize,
            timeout: setting.timeout,
            lost: BinaryHeap::new(),
            given_up: 0,
            client_cores: Processors::new(clients.len() as u32),
            server_cores: Processors::new(2 * queues),
            ask: Transaction::of(server, knobs.message, rate),
            set: Transaction::set(knobs.message, rate),
            set_percent: u64::from(setting.set_percent),
            costs,
            steering,
            clients,
            queues: (0..queues).map(|_| QueuePair::default()).collect(),
            ingress: Wire::default(),
            egress: Wire::default(),
            responses,
            changes,
            mix: Generator::new(seed, Component::Requests),
            failure: None,
        };
        simulation.draw_starts(seed);
        Ok(simulation)
    }

    /// Draws a random start time for each client, so that clients that arrive together start at different
    /// times.
    fn draw_starts(&mut self, seed: u64) {
        let mut starts = Generator::new(seed, Component::Starts);
        for (number, client) in (0..).zip(&self.clients) {
            self.client_cores.application(number, client.spec.from + starts.below(STARTS_WITHIN), 0);
        }
    }

    /// Runs until `until`.
    ///
    /// # Errors
    /// Returns an error if the search for a configuration fails, or the simulation makes no progress.
    pub fn run(&mut self, until: Time) -> Result<(), RequestsError> {
        if self.engine.now < self.begin && self.begin <= until {
            self.handle_events(self.begin)?;
            self.server_cores.begin_count(self.begin);
        }
        self.handle_events(until)?;
        for queue in 0..self.queues.len() {
            self.admit(queue);
        }
        Ok(())
    }

    /// Handles the events until `until`, which becomes the present.
    fn handle_events(&mut self, until: Time) -> Result<(), RequestsError> {
        engine::run(self, until)?;
        if let Some(failure) = self.failure.take() {
            return Err(failure.into());
        }
        self.engine.now = self.engine.now.max(until);
        Ok(())
    }

    // ---- Arrival and departure of clients -----------------------------------------------------------------

    fn change(&mut self) {
        while let Some((at, change)) = self.changes.front().copied() {
            if at > self.engine.now {
                self.engine.plan(Event::Change(0), at);
                break;
            }
            self.changes.pop_front();
            match change {
                Change::Leave(client) => self.steering.leave(self.clients[client].flows.clone()),
                Change::Arrive(client) => self.arrive(client),
                Change::Configure => {
                    if let Err(error) = self.steering.configure() {
                        self.failure = Some(error);
                    }
                }
            }
        }
    }

    /// Handles the arrival of a client. The client creates its first requests one after the other.
    fn arrive(&mut self, number: usize) {
        let flows = self.clients[number].flows.clone();
        flows.clone().for_each(|flow| self.steering.arrive(flow));
        for _ in 0..self.clients[number].spec.outstanding {
            for flow in flows.clone() {
                self.make(number, flow, self.engine.now);
            }
        }
    }

    /// Creates a request when the client's thread is free, but not before `from`. Sends the request
    /// when it is complete.
    fn make(&mut self, number: usize, flow: u32, from: Time) {
        let is_set = self.set_percent > 0 && self.mix.below(100) < self.set_percent;
        let message = if is_set { self.set.request } else { self.ask.request };
        let made = self.client_cores.application(number as u32, from, 0);
        let ready = self.client_cores.application(number as u32, made, self.costs.handling(&message));
        let client = &mut self.clients[number];
        client.sent += 1;
        client.sends.push_back(Request { flow, client: number as u32, is_set, made, ready });
        if client.sends.len() == 1 {
            self.engine.plan(Event::Client(number as u32), ready);
        }
    }

    fn transaction(&self, request: &Request) -> &Transaction {
        if request.is_set { &self.set } else { &self.ask }
    }

    fn send(&mut self, number: usize) {
        let client = &mut self.clients[number];
        let Some(request) = client.sends.pop_front() else { return };
        if let Some(next) = client.sends.front() {
            self.engine.plan(Event::Client(number as u32), next.ready);
        }
        let message = self.transaction(&request).request;
        let ready = self.ingress.carry(self.engine.now, message.wire, self.costs.line_latency);
        let number = usize::from(self.steering.queue(request.flow));
        let queue = &mut self.queues[number];
        queue.arriving.push_back(Request { ready, ..request });
        if queue.at_work.is_none() {
            self.engine.plan_no_later(Event::QueuePair(number as u32), ready);
        }
    }

    /// Gives up the lost requests whose timeout has passed. Clients that have not left create new requests
    /// for them.
    fn give_up(&mut self) {
        while let Some(Reverse((at, flow, client))) = self.lost.peek().copied() {
            if at > self.engine.now {
                self.engine.plan(Event::Loss(0), at);
                break;
            }
            self.lost.pop();
            self.given_up += 1;
            let number = client as usize;
            if self.engine.now < self.clients[number].spec.until {
                self.make(number, flow, self.engine.now);
            }
        }
    }

    // ---- The server --------------------------------------------------------------------------------------

    /// Moves arrived requests into the ring of their queue, or drops them if the ring is full.
    ///
    /// No request leaves the ring between two calls, so the ring's fill level at each arrival is known.
    fn admit(&mut self, number: usize) {
        let queue = &mut self.queues[number];
        while let Some(request) =
            queue.arriving.front().copied().filter(|first| first.ready <= self.engine.now)
        {
            queue.arriving.pop_front();
            if queue.received.len() < self.ring {
                queue.bytes += if request.is_set { &self.set } else { &self.ask }.request.payload;
                queue.received.push_back(request);
                continue;
            }
            queue.dropped += 1;
            if let Some(timeout) = self.timeout {
                let at = request.made + timeout;
                self.lost.push(Reverse((at, request.flow, request.client)));
                self.engine.plan_no_later(Event::Loss(0), at.max(self.engine.now));
            }
        }
    }

    /// Completes the current work of a queue pair's thread, and starts the oldest waiting work.
    fn serve(&mut self, number: usize) {
        let now = self.engine.now;
        self.admit(number);
        match self.queues[number].at_work.take() {
            Some(Work::Receive(request)) => {
                let work = self.costs.answering(self.server, self.transaction(&request));
                let core = (self.queues.len() + number) as u32;
                let ready = self.server_cores.application(core, now, work);
                self.queues[number].responses.push_back(Request { ready, ..request });
            }
            Some(Work::Transmit(request)) => self.respond(&request),
            None => {}
        }
        let event = Event::QueuePair(number as u32);
        let queue = &mut self.queues[number];
        let ready = |requests: &VecDeque<Request>| requests.front().map_or(Time::NEVER, |first| first.ready);
        let (received, responses) = (ready(&queue.received), ready(&queue.responses));
        let first = received.min(responses);
        if first > now {
            self.engine.plan(event, first.min(ready(&queue.arriving)));
            return;
        }
        let work = if received < responses {
            queue.received.pop_front().map(Work::Receive)
        } else {
            queue.responses.pop_front().map(Work::Transmit)
        };
        queue.at_work = work;
        let cost = match &work {
            Some(Work::Receive(request)) => self.costs.receiving(&self.transaction(request).request),
            Some(Work::Transmit(request)) => self.costs.transmitting(&self.transaction(request).response),
            None => 0,
        };
        let done = self.server_cores.application(number as u32, now, cost);
        self.engine.plan(event, done);
    }

    /// Sends a response to the client. The client reads the response when its thread is free, and
    /// creates the next request unless the client has left.
    ///
    /// Responses arrive at a client in the order of sending, so the time at which the client's thread
    /// completes this work is already known.
    fn respond(&mut self, request: &Request) {
        let message = self.transaction(request).response;
        let arrived = self.egress.carry(self.engine.now, message.wire, self.costs.line_latency);
        let number = request.client as usize;
        let read = self.client_cores.application(request.client, arrived, self.costs.handling(&message));
        let client = &mut self.clients[number];
        client.answered += 1;
        if read >= self.begin && read < self.end.min(client.spec.until) {
            let took = read.since(request.made) / NANOSECOND;
            let second = (read.since(self.begin) / SECOND) as usize;
            client.requests[second] += 1;
            client.response_ns[second] += u128::from(took);
            client.payload += message.payload;
            self.responses[client.spec.group].saturating_record(took);
        }
        if read < client.spec.until {
            self.make(number, request.flow, read);
        }
    }

    // ---- Results ------------------------------------------------------------------------------------------

    #[must_use]
    pub fn account(&self) -> Account {
        let in_queue = |queue: &QueuePair| {
            let waiting = queue.arriving.len() + queue.received.len() + queue.responses.len();
            waiting + usize::from(queue.at_work.is_some())
        };
        let waiting = self.clients.iter().map(|client| client.sends.len());
        Account {
            sent: self.clients.iter().map(|client| client.sent).sum(),
            answered: self.clients.iter().map(|client| client.answered).sum(),
            under_way: waiting.chain(self.queues.iter().map(in_queue)).sum::<usize>() as u64,
            lost: self.queues.iter().map(|queue| queue.dropped).sum(),
            given_up: self.given_up,
        }
    }

    /// Returns the average number of the server's busy processors in the measured interval. Each thread of a
    /// queue pair or of the application has its own processor. A waiting thread counts as idle, even if it
    /// polls.
    #[must_use]
    pub fn busy_cores(&self) -> f64 {
        self.server_cores.busy(self.end) as f64 / self.end.since(self.begin).max(1) as f64
    }

    /// Returns the number of active flows and the received payload of each queue.
    pub fn queues(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.queues.iter().enumerate().map(|(number, queue)| {
            let here = |client: &&Client| {
                client.spec.from <= self.engine.now && self.engine.now <= client.spec.until
            };
            let flows = self.clients.iter().filter(here).flat_map(|client| client.flows.clone());
            let flows = flows.filter(|flow| usize::from(self.steering.queue(*flow)) == number).count();
            (flows as u32, queue.bytes)
        })
    }

    /// Returns the number of filters in the NIC, and the number of flows that violate the policy.
    #[must_use]
    pub fn configuration(&self) -> (usize, u64) {
        (self.steering.filters(), self.steering.misplaced())
    }

    /// Returns for each client: the configuration, the numbers of answered requests, the sums of their
    /// response times in nanoseconds, and the received payload in bytes. Numbers and sums are per second of
    /// the measured interval.
    pub fn clients(&self) -> impl Iterator<Item = (&ClientSpec, &[u64], &[u128], u64)> {
        self.clients.iter().map(|client| {
            (&client.spec, client.requests.as_slice(), client.response_ns.as_slice(), client.payload)
        })
    }

    /// Returns the distribution of a group's response times in the measured interval: nanoseconds and
    /// number of requests.
    pub fn responses(&self, group: usize) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.responses
            .get(group)
            .into_iter()
            .flat_map(Histogram::iter_recorded)
            .map(|step| (step.value_iterated_to(), step.count_at_value()))
    }
}

impl Handler for ReceiveSimulation {
    type Event = Event;

    fn engine(&mut self) -> &mut Engine<Event> {
        &mut self.engine
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Client(client) => self.send(client as usize),
            Event::QueuePair(queue) => self.serve(queue as usize),
            Event::Change(_) => self.change(),
            Event::Loss(_) => self.give_up(),
        }
    }

    fn sent(&mut self) -> u64 {
        self.clients.iter().map(|client| client.sent).sum()
    }

    fn has_failed(&self) -> bool {
        self.failure.is_some()
    }
}

/// Returns the times of client arrivals and departures, and of the NIC configuration after arrivals. At
/// equal times, departures precede arrivals. The NIC is configured without delay for clients that are
/// present from the beginning.
fn changes_of(clients: &[Client], reaction: Span) -> VecDeque<(Time, Change)> {
    let mut changes = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        let from = client.spec.from;
        changes.push((from, Change::Arrive(number)));
        changes.push((if from == Time::ZERO { from } else { from + reaction }, Change::Configure));
        if client.spec.until != Time::NEVER {
            changes.push((client.spec.until, Change::Leave(number)));
        }
    }
    changes.sort_unstable();
    changes.dedup();
    changes.into()
}
