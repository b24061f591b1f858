//! Clients that fetch values: requests and responses over persistent connections.
//!
//! The sending host is the server, like memcached in Titan's experiment (USENIX ATC 2017, section 6.1).
//! A client sends a request, waits for the whole value, and sends the next request immediately:
//!
//! | event | time |
//! |---|---|
//! | the request's packet arrives | after the line's latency, with the acknowledgement of the previous value; the interrupt of its receive queue is moderated like all others |
//! | the server's program has read the request | [`Parameters::application_latency`](crate::parameters::Parameters) later, as with the latency probe |
//! | the program answers | as soon as its processor is free; the processor copies the value, and TCP sends the copied part in the meantime |
//! | the response has arrived | when an interrupt passes its last byte to the receiver's TCP; the completion time is measured from the request to this event |
//!
//! Requests pass no queue, like acknowledgements. Between responses a connection is idle. After the
//! completion of its last segment, the connection adds no weight to any queue, and the next response may
//! use another queue.

use evenkeel_model::scenario::ClientGroup;

use super::{Event, Simulation};
use crate::parameters::SEND_BUFFER_BYTES;
use crate::random::{Component, Generator};
use crate::tcp::Ack;
use crate::time::{Span, Time};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Number of the client, which is also the number of its flow.
    pub client: u32,
    /// Size of the value in bytes.
    pub bytes: u64,
    /// Time from the request until the receiver's TCP has the whole value.
    pub took: Span,
}

#[derive(Clone, Debug)]
struct Connection {
    /// Index of the client's group in the settings.
    group: u32,
    /// Index of the size of the next request in the group's sizes.
    turn: u32,
    /// When the client sent the request, in the receiver's time.
    sent: Time,
    /// Size of the value in bytes.
    bytes: u64,
    /// The response is complete at this stream offset.
    complete_at: u64,
    /// Whether the processor has been charged for the copy of the value, but has not begun the copy.
    copying: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Fetches {
    connections: Vec<Connection>,
    fetched: Vec<Fetched>,
}

impl Fetches {
    /// Creates idle clients. Returns `None` if there are no groups.
    pub(crate) fn new(groups: &[ClientGroup]) -> Option<Self> {
        let connections: Vec<Connection> = (0_u32..)
            .zip(groups)
            .flat_map(|(group, clients)| std::iter::repeat_n(group, clients.count as usize))
            .map(|group| Connection {
                group,
                turn: 0,
                sent: Time::ZERO,
                bytes: 0,
                complete_at: u64::MAX,
                copying: false,
            })
            .collect();
        (!connections.is_empty()).then(|| Self { connections, fetched: Vec::new() })
    }
}

impl Simulation {
    /// Starts every client with its first request, each at a random time in the next `within`.
    pub fn start_fetches(&mut self, seed: u64, within: Span) {
        let Some(fetches) = &mut self.fetches else { return };
        for connection in &mut fetches.connections {
            connection.complete_at = 0;
        }
        let clients = fetches.connections.len() as u32;
        let mut starts = Generator::new(seed, Component::Starts);
        for client in 0..clients.min(self.flows.len() as u32) {
            let sent = self.engine.now + starts.below(within.max(1));
            self.request(client, sent, Ack::default());
        }
    }

    /// Returns and clears the values that timed clients have fetched.
    pub fn take_fetched(&mut self) -> Vec<Fetched> {
        self.fetches.as_mut().map(|fetches| std::mem::take(&mut fetches.fetched)).unwrap_or_default()
    }

    fn request(&mut self, client: u32, sent: Time, ack: Ack) {
        let Some(fetches) = &mut self.fetches else { return };
        let connection = &mut fetches.connections[client as usize];
        let sizes = &self.settings.clients[connection.group as usize].sizes;
        connection.bytes = sizes.get(connection.turn as usize).map_or(1, |size| size.bytes().max(1));
        connection.turn = if connection.turn as usize + 1 < sizes.len() { connection.turn + 1 } else { 0 };
        connection.complete_at += connection.bytes;
        connection.sent = sent;
        // The receiver's clock lags by the latency, and the request takes one more latency.
        let arrival = sent + 2 * self.parameters.line_latency;
        let vector = self.flows[client as usize].vector;
        let requests = &mut self.vectors[vector as usize].requests;
        let behind = requests.iter().rev().take_while(|later| later.0 > arrival).count();
        requests.insert(requests.len() - behind, (arrival, client));
        // A request is one packet. It costs as much as an acknowledgement.
        self.acknowledge_at(client, arrival, ack);
    }

    /// Handles data that the receiver's interrupt has delivered. Each client with a complete response
    /// sends its next request.
    pub(crate) fn take_responses(&mut self) {
        let mut index = 0;
        while let Some(client) = self.sink.taken(index) {
            index += 1;
            let Some(connection) =
                self.fetches.as_ref().and_then(|fetches| fetches.connections.get(client as usize))
            else {
                return;
            };
            if self.sink.peer(client).receiver.delivered() < connection.complete_at {
                continue;
            }
            let fetched =
                Fetched { client, bytes: connection.bytes, took: self.engine.now.since(connection.sent) };
            let timed = self.settings.clients[connection.group as usize].timed;
            if let Some(fetches) = self.fetches.as_mut().filter(|_| timed) {
                fetches.fetched.push(fetched);
            }
            let ack = self.sink.acknowledge(client);
            self.request(client, self.engine.now, ack);
        }
    }

    /// Handles the requests that have arrived at an interrupt vector.
    pub(crate) fn take_requests(&mut self, vector: u32) {
        while let Some(&(_, client)) =
            self.vectors[vector as usize].requests.front().filter(|request| request.0 <= self.engine.now)
        {
            self.vectors[vector as usize].requests.pop_front();
            self.engine.plan(Event::Response(client), self.engine.now + self.parameters.application_latency);
        }
    }

    /// Runs the server's program after it has read a request, or when its processor can begin the copy
    /// of the value.
    pub(crate) fn respond(&mut self, client: u32) {
        let Some(fetches) = &mut self.fetches else { return };
        let connection = &mut fetches.connections[client as usize];
        let flow = &mut self.flows[client as usize];
        let bytes = connection.bytes;
        if !connection.copying {
            // The copy begins when the processor has finished its earlier work.
            let begin = self.processors.application(flow.processor, self.engine.now, 0);
            self.processors.application(flow.processor, self.engine.now, bytes * self.parameters.costs.byte);
            if begin > self.engine.now {
                connection.copying = true;
                self.engine.plan(Event::Response(client), begin);
                return;
            }
        }
        connection.copying = false;
        // Data beyond the send buffer is written when acknowledgements arrive.
        let first = bytes.min(SEND_BUFFER_BYTES);
        flow.acknowledged = flow.sender.delivered();
        flow.sender.write(first);
        flow.remaining += bytes - first;
        let processor = flow.processor;
        self.catch_up();
        self.send(client, processor, false);
    }
}
