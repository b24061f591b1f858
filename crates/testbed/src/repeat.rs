//! One repeat: build the test bed, start the traffic, warm up, measure, probe the latency, remove the test
//! bed.

use std::io::{Read, Seek};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use evenkeel_control::Counts;
use evenkeel_datapath::{
    Counters, FlowSample, FlowState, MeterOptions, RunTime, RunTimeStatistics, monotonic_ns,
};
use evenkeel_host::{CpuTimes, Host};
use evenkeel_model::record::{DatapathCost, QueueRecord};
use evenkeel_model::soft_nic::{SendingCore, place};
use evenkeel_model::world::{Job, Observer, RawFlow, RawRepeat};
use evenkeel_netlink::tc::Statistics;

use crate::bed::{Bed, BedOptions};
use crate::error::TestbedError;
use crate::link_watch::LinkWatch;
use crate::phases::Phases;
use crate::process::{Process, ProcessOptions, inherited_path, pause};
use crate::traffic::{iperf3, sockperf};
use crate::wire::RECEIVER_ADDRESS;

/// Port of the first iperf3 server. Each sending core has its own server.
const FIRST_BULK_PORT: u16 = 5201;
const LATENCY_PORT: u16 = 11_111;
/// Time limit for servers to listen and for flows to start.
const START_LIMIT: Duration = Duration::from_secs(15);
/// Additional run time of iperf3, so that it does not stop during the measurement.
const SLACK: Duration = Duration::from_secs(2);
/// Time that sockperf 3.7 needs before its first exchange and after its last exchange.
const PROBE_START: Duration = Duration::from_millis(2500);
/// Rows of the meter for flows that are not bulk flows: iperf3's control connections and the probe.
const SPARE_METER_ROWS: u32 = 256;
/// Relative difference between the byte counts of the meter and iperf3 above which the repeat gets a
/// note.
const LARGEST_METER_ERROR: f64 = 0.02;
/// Busy share of the CPUs above which the CPUs may have been the bottleneck.
pub(crate) const MOST_BUSY: f64 = 0.85;

struct Bulk {
    clients: Vec<Process>,
    servers: Vec<Process>,
    flows: usize,
}

/// Counters at the beginning or the end of the measurement.
struct Snapshot {
    taken: Instant,
    cpu: CpuTimes,
    counters: Counters,
    choice: RunTime,
    completion: RunTime,
    queues: Vec<Statistics>,
    flows: Vec<FlowSample>,
    retransmits: u64,
}

/// Runs a repeat. The function adds the meter to the options of the test bed.
pub(crate) fn run(
    job: &Job<'_>,
    bed: BedOptions,
    observer: &dyn Observer,
) -> Result<RawRepeat, TestbedError> {
    let workload = &job.scenario.workload;
    let total = Duration::from(job.warmup) + Duration::from(job.duration) + latency_time(job) + 2 * SLACK;
    let phases = Phases::new(total, observer);
    let bins = u32::try_from(job.duration.as_u64() / job.bin.as_u64().max(1)).unwrap_or(u32::MAX);

    phases.begin(0.0, "setting up");
    let statistics = RunTimeStatistics::enable()?;
    let meter = MeterOptions { flows: workload.flows + SPARE_METER_ROWS, bins, bin_ns: job.bin.as_u64() };
    let mut bed = Bed::build(&BedOptions { meter: Some(meter), ..bed })?;
    let mut watch = LinkWatch::new(&bed.sender, &bed.receiver)?;
    let repeat = measure(job, &mut bed, &mut watch, &phases, statistics, observer);
    repeat.map_err(|error| watch.explain(error))
}

fn measure(
    job: &Job<'_>,
    bed: &mut Bed,
    watch: &mut LinkWatch,
    phases: &Phases<'_>,
    statistics: RunTimeStatistics,
    observer: &dyn Observer,
) -> Result<RawRepeat, TestbedError> {
    let workload = &job.scenario.workload;
    let latency_time = latency_time(job);
    let cpus = Host::live().cpu_times()?.cpus();
    let cores = place(workload.flows, job.scenario.hosts.sending_cores, cpus as u32);

    let total = Duration::from(job.warmup) + Duration::from(job.duration) + latency_time + SLACK;
    let mut bulk = Bulk::start(bed, &cores, &workload.congestion_control, total, observer)?;
    let started = Instant::now();
    let mut probe_server = match &workload.latency {
        Some(_) => Some(start_probe_server(bed, observer)?),
        None => None,
    };
    bulk.wait_for_flows(bed, observer)?;

    phases.sleep("warming up", job.warmup.into())?;
    let before = Snapshot::take(bed)?;
    meter_of(bed)?.start(monotonic_ns());
    phases.sleep("measuring", job.duration.into())?;
    let after = Snapshot::take(bed)?;
    watch.check()?;
    // Read the queues before the flows end: when a flow ends, other flows may move to its queue.
    let placed = bed.select.flows();
    let weights_in_use = bed.select.weights().iter().sum::<u32>();
    let control = match &bed.controller {
        Some(controller) => match controller.failure() {
            Some(error) => return Err(error.into()),
            None => controller.counts(),
        },
        None => Counts::default(),
    };
    // Every flow must still run, because a flow that has ended has no backlog.
    if bulk.any_client_ended()? || started.elapsed() > total + Duration::from_secs(1) {
        return Err(TestbedError::Traffic(
            bulk.failure().unwrap_or_else(|| "iperf3 stopped before the measurement was over".to_owned()),
        ));
    }
    if let Some(server) = &mut probe_server {
        require_running(server)?;
    }

    let latency_us = match &workload.latency {
        Some(probe) => {
            phases.begin(0.0, "measuring latency");
            measure_latency(bed, probe.message.bytes(), latency_time, observer)?
        }
        None => Vec::new(),
    };
    watch.check()?;
    if let Some(server) = &mut probe_server {
        require_running(server)?;
    }
    drop(probe_server);
    phases.begin(0.97, "finishing");
    let reports = bulk.finish(observer)?;
    let settled = wait_until_weightless(bed, observer)?;
    let meter = meter_of(bed)?;
    let at_end = meter.flows();
    drop(statistics);

    let mut repeat = RawRepeat { latency_us, ..RawRepeat::default() };
    repeat.retransmits = Some(after.retransmits.saturating_sub(before.retransmits));
    repeat.busy_cores = after.cpu.busy_since(&before.cpu, after.taken - before.taken);
    let choice = after.choice - before.choice;
    repeat.datapath = Some(DatapathCost {
        run_time_ns: choice.nanoseconds,
        completion_ns: (after.completion - before.completion).nanoseconds,
        segments: choice.runs,
    });
    collect_flows(&mut repeat, bed, &placed, &reports, [&before.flows, &after.flows, &at_end])?;
    repeat.queues = before
        .queues
        .iter()
        .zip(&after.queues)
        .enumerate()
        .map(|(queue, (before, after))| QueueRecord {
            flows: repeat.flows.iter().filter(|flow| flow.queue == Some(queue as u32)).count() as u32,
            bytes: after.bytes.saturating_sub(before.bytes),
        })
        .collect();
    let drops = |queues: &[Statistics]| queues.iter().map(|queue| queue.drops).sum::<u64>();
    let counters = bed.select.counters();
    repeat.counters.extend(
        [
            ("queue_drops", drops(&after.queues).saturating_sub(drops(&before.queues))),
            ("queue_changes", after.counters.moves.saturating_sub(before.counters.moves)),
            ("picks", after.counters.picks.saturating_sub(before.counters.picks)),
            ("aged_releases", counters.aged),
            ("false_releases", counters.false_releases),
            ("untracked_segments", counters.untracked),
            ("contended_segments", counters.contended),
            ("meter_overflow", meter.overflow()),
            ("charged_weight_while_running", u64::from(weights_in_use)),
            ("charged_weight_left_at_end", settled),
            ("weight_updates", control.weight_updates),
            ("segment_size_changes", control.segment_changes),
        ]
        .map(|(name, value)| (name.to_owned(), value as f64)),
    );
    if job.variant.knobs().service_balancing {
        repeat.counters.extend(
            [
                ("moves_wanted", control.moves_wanted as f64),
                ("moves_done", control.moves_done as f64),
                ("moves_expired", control.moves_expired as f64),
                ("moves_overruled", control.moves_overruled as f64),
                ("hold_ms_mean", control.held_ns as f64 / 1e6 / control.moves_done.max(1) as f64),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
    }
    repeat.notes.push(format!("completion: {}", bed.select.completion()));
    if let Some(busy) = repeat.busy_cores.filter(|busy| *busy > MOST_BUSY * cpus as f64) {
        repeat.notes.push(format!(
            "the processors were {:.0} % busy during the repeat: another program used the processors, or the \
             processors, not the NIC, were the bottleneck; stop other programs, then run the scenario again",
            100.0 * busy / cpus as f64
        ));
    }
    if meter.overflow() > 0 {
        repeat.notes.push(format!(
            "the flow table of the meter was full for {} packets: figures are incomplete",
            meter.overflow()
        ));
    }
    Ok(repeat)
}

fn latency_time(job: &Job<'_>) -> Duration {
    const SECOND: Duration = Duration::from_secs(1);
    let probe = job.scenario.workload.latency.as_ref();
    probe.map_or(Duration::ZERO, |probe| Duration::from(probe.duration).max(SECOND) + PROBE_START)
}

fn meter_of(bed: &Bed) -> Result<&evenkeel_datapath::Meter, TestbedError> {
    bed.meter
        .as_ref()
        .ok_or_else(|| TestbedError::Traffic("the test bed has no meter; report this as a bug".to_owned()))
}

impl Snapshot {
    fn take(bed: &mut Bed) -> Result<Self, TestbedError> {
        let flows = meter_of(bed)?.flows();
        Ok(Self {
            queues: bed.queue_statistics()?,
            counters: bed.select.counters(),
            choice: bed.select.choice_run_time()?,
            completion: bed.select.completion_run_time()?,
            retransmits: retransmitted_segments(&bed.sender.read_proc_net("snmp")?),
            flows,
            cpu: Host::live().cpu_times()?,
            taken: Instant::now(),
        })
    }
}

pub(crate) fn retransmitted_segments(table: &str) -> u64 {
    tcp_counter(table, "RetransSegs")
}

/// Returns a TCP counter of a table like `/proc/net/snmp`; 0 if the table lacks the counter. The table
/// has a line of names and a line of values.
pub(crate) fn tcp_counter(table: &str, counter: &str) -> u64 {
    protocol_counter(table, "Tcp: ", counter)
}

/// Returns a counter of the lines with a prefix, such as `TcpExt: ` of `/proc/net/netstat`; 0 if the
/// lines lack the counter.
pub(crate) fn protocol_counter(table: &str, prefix: &str, counter: &str) -> u64 {
    let mut lines = table.lines().filter_map(|line| line.strip_prefix(prefix));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0 };
    names
        .split_ascii_whitespace()
        .zip(values.split_ascii_whitespace())
        .find(|(name, _)| *name == counter)
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or(0)
}

impl Bulk {
    fn start(
        bed: &Bed,
        cores: &[SendingCore],
        congestion_control: &str,
        time: Duration,
        observer: &dyn Observer,
    ) -> Result<Self, TestbedError> {
        let address = IpAddr::V4(RECEIVER_ADDRESS);
        let mut bulk = Self { clients: Vec::new(), servers: Vec::new(), flows: 0 };
        let tool = |error: crate::traffic::ArgumentError| TestbedError::Traffic(error.to_string());
        let ports = (FIRST_BULK_PORT..).take(cores.len());
        for port in ports.clone() {
            bulk.servers.push(Process::start(ProcessOptions {
                program: "iperf3",
                arguments: iperf3::server_args(address, port).into_iter().map(Into::into).collect(),
                namespace: &bed.receiver,
                cpu: None,
                inherit: None,
            })?);
        }
        for (port, server) in ports.clone().zip(&mut bulk.servers) {
            wait_for_listener(bed, address, port, server, observer)?;
        }
        for (port, core) in ports.zip(cores) {
            let arguments = iperf3::client_args(&iperf3::ClientOptions {
                server: address,
                port,
                streams: core.flows,
                seconds: time.as_secs_f64().ceil() as u32,
                length: None,
                congestion_control: congestion_control.to_owned(),
                first_source_port: None,
                connect_timeout: START_LIMIT,
            })
            .map_err(tool)?;
            let client = Process::start(ProcessOptions {
                program: "iperf3",
                arguments: arguments.into_iter().map(Into::into).collect(),
                namespace: &bed.sender,
                cpu: Some(core.processor as usize),
                inherit: None,
            })?;
            bulk.clients.push(client);
            bulk.flows += core.flows as usize;
            bulk.hold_when_connected(bed, address, port, core.flows as usize, observer)?;
        }
        bulk.clients.iter().try_for_each(Process::go_on)?;
        Ok(bulk)
    }

    /// Suspends the newest client once its streams are connected, so that all clients start to send at the
    /// same time. A flow that connects while other flows load its queue would measure the queueing
    /// delay as its minimum RTT. TCP would then permanently reduce the flow's segment size
    /// (tcp_tso_autosize).
    fn hold_when_connected(
        &mut self,
        bed: &Bed,
        address: IpAddr,
        port: u16,
        streams: usize,
        observer: &dyn Observer,
    ) -> Result<(), TestbedError> {
        const CONTROL_CONNECTIONS: usize = 1;
        let deadline = Instant::now() + START_LIMIT;
        while bed.sender.connections_to(address, port)? < streams + CONTROL_CONNECTIONS {
            if self.any_client_ended()? {
                let reason = self.failure().unwrap_or_else(|| "iperf3 ended at once".to_owned());
                return Err(TestbedError::Traffic(reason));
            }
            if Instant::now() > deadline {
                return Err(TestbedError::Traffic(format!(
                    "iperf3 did not connect its {streams} streams to port {port} within {} s",
                    START_LIMIT.as_secs()
                )));
            }
            pause(Duration::from_millis(1), observer)?;
        }
        self.clients.last().map_or(Ok(()), Process::hold)
    }

    /// Waits until every bulk flow has delivered data. The number of bytes distinguishes bulk flows
    /// from control connections, which carry a few kilobytes.
    fn wait_for_flows(&mut self, bed: &Bed, observer: &dyn Observer) -> Result<(), TestbedError> {
        const BULK_BYTES: u64 = 100_000;
        let deadline = Instant::now() + START_LIMIT;
        let last_port = FIRST_BULK_PORT + self.servers.len() as u16;
        loop {
            let flowing = meter_of(bed)?
                .flows()
                .iter()
                .filter(|flow| {
                    (FIRST_BULK_PORT..last_port).contains(&flow.tuple.destination_port)
                        && flow.payload_bytes >= BULK_BYTES
                })
                .count();
            if flowing >= self.flows {
                return Ok(());
            }
            if self.any_client_ended()? {
                let reason = self.failure().unwrap_or_else(|| "iperf3 ended at once".to_owned());
                return Err(TestbedError::Traffic(reason));
            }
            if Instant::now() > deadline {
                return Err(TestbedError::Traffic(format!(
                    "only {flowing} of {} bulk flows carried data within {} s; stop other programs on this machine, \
                     then run the scenario again",
                    self.flows,
                    START_LIMIT.as_secs()
                )));
            }
            pause(Duration::from_millis(50), observer)?;
        }
    }

    fn any_client_ended(&mut self) -> Result<bool, TestbedError> {
        let mut any = false;
        for client in &mut self.clients {
            any |= client.has_ended()?;
        }
        Ok(any)
    }

    /// Returns the first error that a client reports; `None` if no client reports an error.
    fn failure(&mut self) -> Option<String> {
        self.clients.iter_mut().find_map(|client| {
            let text = client.output_text().ok()?;
            match iperf3::parse("iperf3 client", &text) {
                Err(error) if !text.is_empty() => Some(error.to_string()),
                _ => Some(client.error_text()).filter(|words| !words.is_empty()),
            }
        })
    }

    /// Waits for clients and servers. Returns the servers' reports, which have the received bytes.
    fn finish(&mut self, observer: &dyn Observer) -> Result<Vec<FlowReport>, TestbedError> {
        let limit = START_LIMIT + Duration::from_secs(self.flows as u64 / 10);
        let mut reports = Vec::new();
        for (client, server) in self.clients.iter_mut().zip(&mut self.servers) {
            client.wait(limit, observer)?;
            server.wait(limit, observer)?;
            let traffic = |error: iperf3::ParseError| TestbedError::Traffic(error.to_string());
            let sent = iperf3::parse("iperf3 client", &client.output_text()?).map_err(traffic)?;
            let received = iperf3::parse("iperf3 server", &server.output_text()?).map_err(traffic)?;
            for stream in &received.streams {
                let source = stream.remote.port();
                let client = sent.streams.iter().find(|client| client.local.port() == source);
                reports.push(FlowReport {
                    source_port: source,
                    destination_port: stream.local.port(),
                    received_bytes: stream.received.bytes,
                    sent_bytes: client.and_then(|client| Some(client.sent?.bytes)),
                    retransmits: client.and_then(|client| client.retransmits),
                });
            }
        }
        Ok(reports)
    }
}

struct FlowReport {
    source_port: u16,
    destination_port: u16,
    /// Bytes that the receiver read. Further bytes may have been in flight at the end.
    received_bytes: u64,
    /// Bytes that the sender wrote to its socket, if reported.
    sent_bytes: Option<u64>,
    retransmits: Option<u64>,
}

fn wait_for_listener(
    bed: &Bed,
    address: IpAddr,
    port: u16,
    server: &mut Process,
    observer: &dyn Observer,
) -> Result<(), TestbedError> {
    let deadline = Instant::now() + START_LIMIT;
    while !bed.receiver.listens(address, port)? {
        if server.has_ended()? || Instant::now() > deadline {
            let why = server.why_silent();
            return Err(TestbedError::Traffic(format!("no server listens at port {port}: {why}")));
        }
        pause(Duration::from_millis(10), observer)?;
    }
    Ok(())
}

/// Returns an error if a server has ended, for example because another program killed it.
fn require_running(server: &mut Process) -> Result<(), TestbedError> {
    server.ending()?.map_or(Ok(()), |ending| Err(TestbedError::Traffic(ending)))
}

fn start_probe_server(bed: &Bed, observer: &dyn Observer) -> Result<Process, TestbedError> {
    let mut server = Process::start(ProcessOptions {
        program: "sockperf",
        arguments: sockperf::server_args(RECEIVER_ADDRESS, LATENCY_PORT),
        namespace: &bed.receiver,
        cpu: None,
        inherit: None,
    })?;
    wait_for_listener(bed, IpAddr::V4(RECEIVER_ADDRESS), LATENCY_PORT, &mut server, observer)?;
    Ok(server)
}

fn measure_latency(
    bed: &Bed,
    message_bytes: u64,
    time: Duration,
    observer: &dyn Observer,
) -> Result<Vec<f64>, TestbedError> {
    let mut log = crate::process::temporary_file()?;
    let options = sockperf::ClientOptions {
        server: RECEIVER_ADDRESS,
        port: LATENCY_PORT,
        seconds: time.saturating_sub(PROBE_START).as_secs_f64().ceil() as u32,
        message_bytes: u32::try_from(message_bytes).unwrap_or(u32::MAX),
        rate: None,
        full_log: inherited_path(&log),
    };
    let arguments =
        sockperf::client_args(&options).map_err(|error| TestbedError::Traffic(error.to_string()))?;
    let mut client = Process::start(ProcessOptions {
        program: "sockperf",
        arguments,
        namespace: &bed.sender,
        cpu: None,
        inherit: Some(&log),
    })?;
    client.wait(time + START_LIMIT, observer)?;
    let mut text = String::new();
    log.rewind()
        .and_then(|()| log.read_to_string(&mut text))
        .map_err(TestbedError::system("read sockperf's log"))?;
    let parsed = sockperf::parse("sockperf log", &text).map_err(|error| client.failed(error))?;
    Ok(parsed.samples.iter().map(sockperf::Sample::half_round_trip_us).collect())
}

/// Waits until every flow is released. Returns the weight that is still charged at the time limit.
fn wait_until_weightless(bed: &Bed, observer: &dyn Observer) -> Result<u64, TestbedError> {
    // If the sockets are not read, ageing releases the flows.
    let patience = Duration::from_nanos(2 * bed.select.ageing_limit_ns()) + Duration::from_millis(500);
    let deadline = Instant::now() + patience.min(Duration::from_secs(10));
    loop {
        bed.select.look()?;
        let left = bed.select.weights().iter().map(|weight| u64::from(*weight)).sum();
        if left == 0 || Instant::now() > deadline {
            return Ok(left);
        }
        pause(Duration::from_millis(20), observer)?;
    }
}

/// Merges the meter's counts, the flows' queues at the end of the measurement, and iperf3's reports.
fn collect_flows(
    repeat: &mut RawRepeat,
    bed: &Bed,
    placed: &[FlowState],
    reports: &[FlowReport],
    [before, after, at_end]: [&[FlowSample]; 3],
) -> Result<(), TestbedError> {
    let meter = meter_of(bed)?;
    let key = |sample: &FlowSample| (sample.tuple.source_port, sample.tuple.destination_port);
    let find = |samples: &[FlowSample], wanted| samples.iter().find(|sample| key(sample) == wanted).cloned();
    let (mut worst, mut worst_unexplained) = (0.0_f64, 0.0);
    let mut worst_flow = None;
    for report in reports {
        let ports = (report.source_port, report.destination_port);
        let (Some(end), Some(last)) = (find(after, ports), find(at_end, ports)) else {
            return Err(TestbedError::Traffic(format!(
                "the meter did not see the flow from port {} to port {}",
                ports.0, ports.1
            )));
        };
        let start = find(before, ports);
        let since =
            |value: fn(&FlowSample) -> u64| value(&end).saturating_sub(start.as_ref().map_or(0, value));
        let (bytes, packets) = meter.bins(&end);
        let queue = match bed.nic_is_mq() {
            true => Some(end.queue_mapping),
            false => placed
                .iter()
                .find(|flow| (flow.tuple.source_port, flow.tuple.destination_port) == ports)
                .and_then(|flow| flow.queue),
        };
        let against = |bytes: u64| last.payload_bytes as f64 / bytes.max(1) as f64 - 1.0;
        let error = against(report.received_bytes).abs();
        worst = worst.max(error);
        // The number of arrived bytes must be between the read bytes and the written bytes.
        let unexplained =
            report.sent_bytes.map_or(error, |sent| against(sent).max(-against(report.received_bytes)));
        if unexplained > LARGEST_METER_ERROR && unexplained > worst_unexplained {
            (worst_unexplained, worst_flow) = (unexplained, Some(ports));
        }
        repeat.flows.push(RawFlow {
            tcp: Vec::new(),
            name: format!("{}-{}", ports.0, ports.1),
            weight: 1.0,
            queue,
            backlogged: backlogged(&bytes, start.is_some()).into_iter().collect(),
            bytes,
            packets,
            payload_bytes: since(|flow| flow.payload_bytes),
            retransmits: report.retransmits,
            out_of_order: Some(since(|flow| flow.out_of_order)),
            completion_s: None,
        });
    }
    repeat.counters.insert("meter_vs_iperf3_max_error".to_owned(), worst);
    if let Some((source, destination)) = worst_flow {
        repeat.notes.push(format!(
            "the meter and iperf3 differ by {:.1} % for the flow {source}-{destination}",
            worst_unexplained * 100.0
        ));
    }
    Ok(())
}

/// Returns the bins in which a bulk flow is backlogged; `None` if there is no such bin. These are all
/// bins if the flow started before the measurement, otherwise the bins after the bin of its first byte.
fn backlogged(bytes: &[u64], from_the_start: bool) -> Option<std::ops::Range<usize>> {
    let first =
        if from_the_start { Some(0) } else { bytes.iter().position(|bytes| *bytes > 0).map(|bin| bin + 1) };
    first.filter(|first| *first < bytes.len()).map(|first| first..bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retransmissions_are_found_by_name() {
        let table = "Ip: Forwarding\nIp: 1\nTcp: RtoAlgorithm RetransSegs InErrs\nTcp: 1 42 0\n";
        assert_eq!(retransmitted_segments(table), 42);
        assert_eq!(retransmitted_segments("Tcp: RetransSegs\n"), 0);
        assert_eq!(retransmitted_segments(""), 0);
    }

    #[test]
    fn a_late_flow_counts_from_its_second_bin() {
        assert_eq!(backlogged(&[0, 0, 5, 9], false), Some(3..4));
        assert_eq!(backlogged(&[0, 0, 5, 9], true), Some(0..4));
        assert_eq!(backlogged(&[0, 0], false), None);
    }
}
