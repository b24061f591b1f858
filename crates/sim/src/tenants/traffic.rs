//! The programs of tenants, and their connections.

use evenkeel_model::qdisc::{BULK_PORT, PROBE_PORT};
use evenkeel_model::scenario::{OnOff, TenantPoint};

use super::connection::Connection;
use crate::event::Slot;
use crate::qdisc::tree::FlowKey;
use crate::random::{Component, Generator};
use crate::tcp::SenderConfig;
use crate::time::Time;

/// `TC_PRIO_INTERACTIVE`, the priority of the type of service `lowdelay`.
const INTERACTIVE: u8 = 6;

/// Limit of unsent bytes for a program that pauses, as on the test bed.
const LOW_WATER_BYTES: u64 = 128 << 10;

#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// Writes `length` bytes at a time.
    Client { connection: u32, length: u64, on_off: Option<OnOff> },
    /// Reads `length` bytes at a time.
    Server { connection: u32, length: u64 },
    /// Writes and reads messages alternately. The `first` of the two programs starts and measures.
    Probe { inward: u32, outward: u32, message: u64, first: bool },
}

#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) role: Role,
    /// Whether the program has started. Used for programs that start without data.
    pub(super) started: bool,
    /// Whether the program is in a sending period, if it has such periods.
    pub(super) is_on: bool,
    /// Whether the program has called `select` before waiting.
    pub(super) asked_to_wait: bool,
    /// Whether the program waits for data, buffer space or a sending period.
    pub(super) waits: bool,
    /// Bytes of the present piece, and remaining bytes of the present write or message.
    pub(super) piece: u64,
    pub(super) left: u64,
    pub(super) turn_to_write: bool,
    /// Time at which the present request began.
    pub(super) asked: Time,
    /// Half round trips within the measurement, in µs.
    pub(super) samples: Vec<f64>,
    /// The processor to which the program is pinned.
    pub(super) home: Option<Slot>,
}

impl Program {
    fn new(name: String, role: Role) -> Self {
        let (left, turn_to_write) = match role {
            Role::Probe { message, first, .. } => (message, first),
            Role::Client { .. } | Role::Server { .. } => (0, false),
        };
        Self {
            name,
            role,
            started: false,
            is_on: false,
            asked_to_wait: false,
            // A program waits from the beginning, because it cannot have missed an event.
            waits: true,
            piece: 0,
            left,
            turn_to_write,
            asked: Time::ZERO,
            samples: Vec::new(),
            home: None,
        }
    }

    /// Returns whether the program starts without data.
    pub(super) fn starts(&self) -> bool {
        matches!(self.role, Role::Client { .. } | Role::Probe { first: true, .. })
    }

    pub(super) fn waits_for_room(&self, number: u32) -> bool {
        self.waits
            && match self.role {
                Role::Client { connection, .. } => connection == number && (self.is_on || self.left > 0),
                Role::Probe { outward, .. } => outward == number && self.turn_to_write && self.started(),
                Role::Server { .. } => false,
            }
    }

    pub(super) fn waits_for_data(&self, number: u32) -> bool {
        self.waits
            && match self.role {
                Role::Server { connection, .. } => connection == number,
                Role::Probe { inward, .. } => inward == number && !self.turn_to_write,
                Role::Client { .. } => false,
            }
    }

    fn started(&self) -> bool {
        self.started || !self.starts()
    }
}

pub(super) struct Tenants {
    pub(super) programs: Vec<Program>,
    /// First bulk flows, then the requests of the probes, then the answers.
    pub(super) connections: Vec<Connection>,
    pub(super) forward: u32,
    pub(super) aggregation: bool,
}

pub(super) fn flow_keys(point: &TenantPoint) -> Vec<FlowKey> {
    let bulk = (0..point.bulk_flows()).map(|flow| FlowKey { port: BULK_PORT + flow as u16, priority: 0 });
    let probe = |probe: u32| FlowKey { port: PROBE_PORT + probe as u16, priority: INTERACTIVE };
    bulk.chain((0..point.probe_count()).map(probe)).collect()
}

impl Tenants {
    pub(super) fn new(point: &TenantPoint, config: &SenderConfig, processors: u32, seed: u64) -> Self {
        let (bulk, probes) = (point.bulk_flows(), point.probe_count());
        let forward = bulk + probes;
        let mut hashes = Generator::new(seed, Component::SocketHashes);
        let mut programs = Vec::new();
        let mut connections = Vec::new();
        let groups = point.bulk.iter().flat_map(|group| std::iter::repeat_n(group, group.count as usize));
        for (number, group) in (0..).zip(groups) {
            let length = group.length.bytes().max(1);
            let writer = programs.len() as u32;
            let role = Role::Client { connection: number, length, on_off: group.on_off };
            programs.push(Program::new(format!("bulk {number} client"), role));
            programs.push(Program::new(
                format!("bulk {number} server"),
                Role::Server { connection: number, length },
            ));
            let connection = Connection::new(config, number, hashes.bits(), false);
            let connection =
                if group.on_off.is_some() { connection.with_low_water(LOW_WATER_BYTES) } else { connection };
            connections.push(connection.between(writer, writer + 1, None));
        }
        let message = point.probes.map_or(1, |probes| probes.message.bytes().max(1));
        let mut answers = Vec::new();
        for number in 0..probes {
            let (request, answer) = (bulk + number, forward + number);
            let client = programs.len() as u32;
            let role = |inward, outward, first| Role::Probe { inward, outward, message, first };
            programs.push(Program::new(format!("probe {number} client"), role(answer, request, true)));
            programs.push(Program::new(format!("probe {number} server"), role(request, answer, false)));
            let requests = Connection::new(config, request, hashes.bits(), true);
            connections.push(requests.between(client, client + 1, Some(answer)));
            let back = Connection::new(config, answer, hashes.bits(), true);
            answers.push(back.between(client + 1, client, Some(request)));
        }
        connections.extend(answers);
        // The two programs of each flow are adjacent.
        for (flow, ends) in (0..).zip(programs.chunks_exact_mut(2)) {
            let homes = point.processors_of(flow, processors);
            (ends[0].home, ends[1].home) = (homes.map(|(client, _)| client), homes.map(|(_, server)| server));
        }
        Self { programs, connections, forward, aggregation: point.offloads.aggregation }
    }
}
