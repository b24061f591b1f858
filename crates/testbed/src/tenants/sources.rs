//! Starts and stops the tenants: bulk senders and request-response probes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_model::qdisc::{BULK_PORT, PROBE_PORT};
use evenkeel_model::scenario::{BulkTenants, TenantPoint};
use evenkeel_model::world::Observer;

use super::bed::TenantBed;
use crate::accounts::Actor;
use crate::error::TestbedError;
use crate::process::{Process, ProcessOptions, own_processors, pause};
use crate::traffic::iperf3;
use crate::traffic::on_off::{Schedule, Source};
use crate::traffic::request_response::{Exchange, Probe};
use crate::traffic::worker;
use crate::wire::RECEIVER_ADDRESS;

/// Time limit for servers to listen, flows to connect, and clients to end.
pub(super) const LIMIT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(2);
/// Time limit of iperf3. The limit applies only if this process ends without ending iperf3.
const LONGEST_RUN_S: u32 = 3600;

enum Sender {
    Iperf { client: Process, server: Process },
    OnOff { source: Source, schedule: Schedule },
}

/// The report of a bulk sender's flow, from the start to the end of the flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FlowReport {
    /// Bytes written to the socket.
    pub(super) sent_bytes: u64,
    /// Bytes read at the other end. Further bytes may have been in flight.
    pub(super) received_bytes: u64,
}

pub(super) struct Sources {
    bulk: Vec<Sender>,
    probes: Vec<Probe>,
    released: Arc<AtomicBool>,
}

pub(super) fn each_bulk(point: &TenantPoint) -> impl Iterator<Item = &BulkTenants> {
    point.bulk.iter().flat_map(|tenants| std::iter::repeat_n(tenants, tenants.count as usize))
}

fn port(first: u16, number: usize) -> u16 {
    first.saturating_add(u16::try_from(number).unwrap_or(u16::MAX))
}

struct Places<'p> {
    point: &'p TenantPoint,
    processors: Vec<usize>,
}

impl<'p> Places<'p> {
    fn new(point: &'p TenantPoint) -> Result<Self, TestbedError> {
        Ok(Self { point, processors: own_processors()? })
    }

    /// Returns the CPUs of a flow's client and server. Bulk flows have the lowest numbers.
    fn of(&self, flow: usize) -> (Option<usize>, Option<usize>) {
        let flow = u32::try_from(flow).unwrap_or(u32::MAX);
        let count = u32::try_from(self.processors.len()).unwrap_or(u32::MAX);
        let number = |place: u32| self.processors.get(place as usize).copied();
        let found = self.point.processors_of(flow, count);
        (found.and_then(|(client, _)| number(client)), found.and_then(|(_, server)| number(server)))
    }
}

impl Sources {
    /// Starts all sources. Stops each iperf3 client once it is connected; the other bulk senders wait for
    /// [`Self::release`].
    pub(super) fn start(
        bed: &TenantBed,
        point: &TenantPoint,
        congestion_control: &str,
        repeat: u32,
        observer: &dyn Observer,
    ) -> Result<Self, TestbedError> {
        let places = Places::new(point)?;
        let mut clients = start_iperf(bed, &places, congestion_control, repeat, observer)?;
        let released = Arc::new(AtomicBool::new(false));
        let connect =
            |ports: &[u16]| worker::connect(&bed.sender, &bed.receiver, IpAddr::V4(RECEIVER_ADDRESS), ports);
        let started = TestbedError::system("start a thread that makes traffic");
        let on_off: Vec<(usize, &BulkTenants)> =
            each_bulk(point).enumerate().filter(|(_, tenants)| tenants.on_off.is_some()).collect();
        let ports: Vec<u16> = on_off.iter().map(|(number, _)| port(BULK_PORT, *number)).collect();
        let mut sources = BTreeMap::new();
        for ((number, tenants), ends) in on_off.into_iter().zip(connect(&ports)?) {
            let Some(times) = tenants.on_off else { continue };
            let schedule = Schedule::new(times);
            let source = Source::start(
                ends,
                usize::try_from(tenants.length.bytes()).unwrap_or(usize::MAX),
                congestion_control,
                schedule.clone(),
                Arc::clone(&released),
                places.of(number),
            )
            .map_err(TestbedError::system("start a thread that makes traffic"))?;
            sources.insert(number, Sender::OnOff { source, schedule });
        }
        let bulk = (0..point.bulk_flows() as usize)
            .filter_map(|number| clients.remove(&number).or_else(|| sources.remove(&number)))
            .collect();
        let ports: Vec<u16> =
            (0..point.probe_count() as usize).map(|number| port(PROBE_PORT, number)).collect();
        let message = point.probes.map_or(0, |probes| probes.message.bytes());
        let message = usize::try_from(message).unwrap_or(usize::MAX);
        let probes = connect(&ports)?
            .into_iter()
            .zip(point.bulk_flows() as usize..)
            .map(|(ends, flow)| Probe::start(ends, message, places.of(flow)))
            .collect::<Result<Vec<_>, _>>()
            .map_err(started)?;
        Ok(Self { bulk, probes, released })
    }

    pub(super) fn release(&self) -> Result<(), TestbedError> {
        self.released.store(true, Ordering::Relaxed);
        self.each_client(Process::go_on)
    }

    /// Starts the on and off times at `at_ns` of `CLOCK_MONOTONIC`.
    pub(super) fn begin(&self, at_ns: u64) {
        for sender in &self.bulk {
            if let Sender::OnOff { schedule, .. } = sender {
                schedule.begin(at_ns);
            }
        }
    }

    pub(super) fn actors(&self) -> (Vec<String>, Vec<Actor>) {
        let bulk = self.bulk.iter().enumerate().flat_map(|(number, sender)| {
            let (client, server) = match sender {
                Sender::Iperf { client, server } => {
                    (Actor::Process(client.id()), Actor::Process(server.id()))
                }
                Sender::OnOff { source, .. } => {
                    (Actor::Thread(source.client.thread()), Actor::Thread(source.server.thread()))
                }
            };
            [(format!("bulk {number} client"), client), (format!("bulk {number} server"), server)]
        });
        let probes = self.probes.iter().enumerate().flat_map(|(number, probe)| {
            [
                (format!("probe {number} client"), Actor::Thread(probe.client.thread())),
                (format!("probe {number} server"), Actor::Thread(probe.server.thread())),
            ]
        });
        bulk.chain(probes).unzip()
    }

    /// Returns an error if an iperf3 client has exited early.
    pub(super) fn check(&mut self) -> Result<(), TestbedError> {
        for sender in &mut self.bulk {
            if let Sender::Iperf { client, .. } = sender
                && client.has_ended()?
            {
                return Err(ended_early(client));
            }
        }
        Ok(())
    }

    pub(super) fn finish_probes(&mut self) -> Result<Vec<Vec<Exchange>>, TestbedError> {
        self.probes.iter().for_each(|probe| {
            probe.client.stop();
        });
        std::mem::take(&mut self.probes)
            .into_iter()
            .map(Probe::finish)
            .collect::<Result<_, _>>()
            .map_err(TestbedError::system("exchange requests and responses"))
    }

    /// Stops the bulk senders that are processes, so that data in flight arrives and the receivers read
    /// it.
    pub(super) fn hold(&self) -> Result<(), TestbedError> {
        self.each_client(Process::hold)
    }

    fn each_client(&self, work: fn(&Process) -> Result<(), TestbedError>) -> Result<(), TestbedError> {
        self.bulk.iter().try_for_each(|sender| match sender {
            Sender::Iperf { client, .. } => work(client),
            Sender::OnOff { .. } => Ok(()),
        })
    }

    /// Ends the bulk senders, including stopped senders. Returns their reports in order. An iperf3 that
    /// received SIGTERM while writing its report may have no report.
    pub(super) fn finish(mut self, observer: &dyn Observer) -> Result<Vec<Option<FlowReport>>, TestbedError> {
        self.each_client(Process::terminate)?;
        self.each_client(Process::go_on)?;
        let deadline = Instant::now() + LIMIT;
        let mut reports = Vec::new();
        for sender in self.bulk.drain(..) {
            reports.push(match sender {
                Sender::OnOff { source, .. } => {
                    let (sent_bytes, received_bytes) =
                        source.finish().map_err(TestbedError::system("send on-off traffic"))?;
                    Some(FlowReport { sent_bytes, received_bytes })
                }
                Sender::Iperf { mut client, mut server } => {
                    for process in [&mut client, &mut server] {
                        while !process.has_ended()? {
                            if Instant::now() > deadline {
                                return Err(TestbedError::Traffic(format!(
                                    "iperf3 did not exit within {} s after SIGTERM; stop other programs on this machine, then run the \
                                     scenario again",
                                    LIMIT.as_secs()
                                )));
                            }
                            pause(LOOK, observer)?;
                        }
                    }
                    report(&mut client, &mut server)?
                }
            });
        }
        Ok(reports)
    }
}

fn report(client: &mut Process, server: &mut Process) -> Result<Option<FlowReport>, TestbedError> {
    let (of_client, of_server) = (client.output_text()?, server.output_text()?);
    if of_client.trim().is_empty() || of_server.trim().is_empty() {
        return Ok(None);
    }
    let traffic = |error: iperf3::ParseError| TestbedError::Traffic(error.to_string());
    let sent = iperf3::parse_ended("iperf3 client", &of_client).map_err(traffic)?;
    let received = iperf3::parse_ended("iperf3 server", &of_server).map_err(traffic)?;
    let (Some(sent), Some(received)) = (sent.streams.first(), received.streams.first()) else {
        return Err(TestbedError::Traffic("iperf3 reports no stream".to_owned()));
    };
    Ok(Some(FlowReport {
        sent_bytes: sent.sent.map_or(0, |transfer| transfer.bytes),
        received_bytes: received.received.bytes,
    }))
}

fn ended_early(client: &mut Process) -> TestbedError {
    let text = client.output_text().unwrap_or_default();
    TestbedError::Traffic(match iperf3::parse("iperf3 client", &text) {
        Err(error) if !text.is_empty() => error.to_string(),
        _ => format!("iperf3 ended too early: {}", client.error_text()),
    })
}

/// Returns the source port of a flow. The kernel assigns a flow to a CPU by a hash of its addresses and
/// ports.
///
/// - In one repeat, all points use the same ports, so that the compared qdiscs have the same placement.
/// - Each repeat uses other ports, so that the results do not depend on one placement.
fn source_port(repeat: u32, number: usize) -> u16 {
    /// First port: below the ephemeral ports and above the listening ports.
    const FIRST: u32 = 12_000;
    const MOST_FLOWS: u32 = 128;
    const KINDS: u32 = 150;
    let number = u32::try_from(number).unwrap_or(u32::MAX) % MOST_FLOWS;
    (FIRST + repeat % KINDS * MOST_FLOWS + number) as u16
}

/// Starts a server and a client for each bulk tenant that always sends. The function stops each client
/// once it is connected. A stopped client does not slow down other clients, and all clients start to
/// send together.
fn start_iperf(
    bed: &TenantBed,
    places: &Places<'_>,
    congestion_control: &str,
    repeat: u32,
    observer: &dyn Observer,
) -> Result<BTreeMap<usize, Sender>, TestbedError> {
    let address = IpAddr::V4(RECEIVER_ADDRESS);
    let tenants: Vec<(usize, &BulkTenants)> =
        each_bulk(places.point).enumerate().filter(|(_, tenants)| tenants.on_off.is_none()).collect();
    let start = |namespace, arguments: Vec<String>, cpu| {
        Process::start(ProcessOptions {
            program: "iperf3",
            arguments: arguments.into_iter().map(Into::into).collect(),
            namespace,
            cpu,
            inherit: None,
        })
    };
    let mut servers = Vec::with_capacity(tenants.len());
    for (number, _) in &tenants {
        let arguments = iperf3::server_args(address, port(BULK_PORT, *number));
        servers.push(start(&bed.receiver, arguments, places.of(*number).1)?);
    }
    wait_for_listeners(bed, &tenants, &mut servers, observer)?;

    let mut clients = Vec::with_capacity(tenants.len());
    let mut holder = Holder::new();
    for (number, tenants) in &tenants {
        let arguments = iperf3::client_args(&iperf3::ClientOptions {
            server: address,
            port: port(BULK_PORT, *number),
            streams: 1,
            seconds: LONGEST_RUN_S,
            length: Some(u32::try_from(tenants.length.bytes()).unwrap_or(u32::MAX)),
            congestion_control: congestion_control.to_owned(),
            first_source_port: Some(source_port(repeat, *number)),
            connect_timeout: LIMIT,
        })
        .map_err(|error| TestbedError::Traffic(error.to_string()))?;
        let client = start(&bed.sender, arguments, places.of(*number).0)?;
        clients.push((port(BULK_PORT, *number), client, false));
        holder.hold_connected(bed, &mut clients)?;
    }
    let deadline = Instant::now() + LIMIT;
    while !holder.hold_connected(bed, &mut clients)? {
        for (_, client, _) in &mut clients {
            if client.has_ended()? {
                return Err(ended_early(client));
            }
        }
        if Instant::now() > deadline {
            let held = clients.iter().filter(|(_, _, held)| *held).count();
            return Err(TestbedError::Traffic(format!(
                "only {held} of {} iperf3 clients connected within {} s; stop other programs on this machine, then \
                 run the scenario again",
                clients.len(),
                LIMIT.as_secs()
            )));
        }
        pause(LOOK, observer)?;
    }
    let senders = tenants.iter().zip(clients.into_iter().zip(servers));
    Ok(senders
        .map(|((number, _), ((_, client, _), server))| (*number, Sender::Iperf { client, server }))
        .collect())
}

struct Holder {
    looked: Instant,
}

impl Holder {
    fn new() -> Self {
        Self { looked: Instant::now() }
    }

    /// Stops newly connected clients. Returns whether all clients are stopped. Reads the list of
    /// connections at most once per [`LOOK`].
    fn hold_connected(
        &mut self,
        bed: &TenantBed,
        clients: &mut [(u16, Process, bool)],
    ) -> Result<bool, TestbedError> {
        /// The control connection and the data stream.
        const CONNECTIONS: usize = 2;
        if clients.iter().all(|(_, _, held)| *held) {
            return Ok(true);
        }
        if self.looked.elapsed() < LOOK {
            return Ok(false);
        }
        let connections = bed.sender.connections_by_port()?;
        for (port, client, held) in clients.iter_mut().filter(|(_, _, held)| !held) {
            if connections.get(port).is_some_and(|count| *count >= CONNECTIONS) {
                client.hold()?;
                *held = true;
            }
        }
        self.looked = Instant::now();
        Ok(clients.iter().all(|(_, _, held)| *held))
    }
}

fn wait_for_listeners(
    bed: &TenantBed,
    tenants: &[(usize, &BulkTenants)],
    servers: &mut [Process],
    observer: &dyn Observer,
) -> Result<(), TestbedError> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let listening =
            if servers.is_empty() { Default::default() } else { bed.receiver.listening_ports()? };
        let missing = tenants.iter().zip(&mut *servers).find_map(|((number, _), server)| {
            let port = port(BULK_PORT, *number);
            (!listening.contains(&port)).then_some((port, server))
        });
        let Some((port, server)) = missing else { return Ok(()) };
        if server.has_ended()? || Instant::now() > deadline {
            let why = server.why_silent();
            return Err(TestbedError::Traffic(format!("no server listens at port {port}: {why}")));
        }
        pause(LOOK, observer)?;
    }
}
