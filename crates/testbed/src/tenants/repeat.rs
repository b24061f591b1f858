//! One repeat: build the test bed, connect the tenants, install the tree, warm up, measure, remove the test
//! bed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use evenkeel_datapath::{FlowSample, MeterOptions, monotonic_ns};
use evenkeel_model::change::Handle;
use evenkeel_model::qdisc::{BULK_PORT, FilterRules, QdiscTree};
use evenkeel_model::scenario::TenantPoint;
use evenkeel_model::world::{Job, Observer, RawRepeat, RawTenants};
use evenkeel_netlink::qdisc_tree::QdiscCounters;
use evenkeel_netlink::sock_diag::{SocketDiagnosis, SocketProtocol, SocketState};

use super::bed::{TenantBed, TenantBedOptions};
use super::line::Sampler;
use super::measures::{self, Metered};
use super::sources::{LIMIT, Sources, each_bulk};
use crate::accounts::Reading;
use crate::error::TestbedError;
use crate::kernel::KernelFeatures;
use crate::phases::Phases;
use crate::process::{Prompt, pause};
use crate::repeat::{MOST_BUSY, retransmitted_segments, tcp_counter};

#[derive(Clone, Debug)]
pub(crate) struct InFront {
    /// The tree of qdiscs. If there is a line, the tree includes its shapers.
    pub(crate) tree: QdiscTree,
    /// Rules that the kernel checks before the filters of a qdisc, and the handle of this qdisc.
    pub(crate) rules: Option<(Handle, FilterRules)>,
    /// Whether a shaped line is the bottleneck.
    pub(crate) line: bool,
}

/// Further rows of the meter, in addition to two rows per bulk tenant (data and control connection) and one
/// row per probe.
const SPARE_METER_ROWS: u32 = 64;
/// Delay before the measurement begins, so that all threads know its start time in advance.
const LEAD: Duration = Duration::from_millis(1);
/// Time for answers after the end of the measured time. A request without an answer after this time counts
/// with its waiting time.
const GRACE: Duration = Duration::from_millis(20);

/// Counters at the beginning or the end of the measurement.
struct Snapshot {
    accounts: Reading,
    qdiscs: Vec<QdiscCounters>,
    retransmits: u64,
    /// Number of skbs that the receiver's TCP received (`InSegs`). GRO merges several segments into one
    /// skb.
    received_buffers: u64,
    retransmits_by_port: HashMap<u16, u64>,
}

impl Snapshot {
    fn take(bed: &mut TenantBed, sources: &Sources, is_over: bool) -> Result<Self, TestbedError> {
        let (_, actors) = sources.actors();
        let early = if is_over { Some(Reading::take(&actors, is_over)?) } else { None };
        let qdiscs = bed.qdiscs()?;
        let retransmits = retransmitted_segments(&bed.sender.read_proc_net("snmp")?);
        let received_buffers = tcp_counter(&bed.receiver.read_proc_net("snmp")?, "InSegs");
        let sockets = bed.sender.run(|| {
            Ok(SocketDiagnosis::open()?
                .sockets_in_detail(SocketProtocol::Tcp, &[SocketState::ESTABLISHED])?)
        })?;
        let retransmits_by_port = sockets
            .into_iter()
            .filter(|(socket, _)| socket.remote.port() >= BULK_PORT)
            .map(|(socket, detail)| (socket.local.port(), u64::from(detail.retransmitted)))
            .collect();
        let accounts = match early {
            Some(reading) => reading,
            None => Reading::take(&actors, is_over)?,
        };
        Ok(Self { accounts, qdiscs, retransmits, received_buffers, retransmits_by_port })
    }
}

pub(crate) fn run(
    job: &Job<'_>,
    point: &TenantPoint,
    in_front: &InFront,
    features: KernelFeatures,
    observer: &dyn Observer,
) -> Result<RawRepeat, TestbedError> {
    let (warmup, duration) = (Duration::from(job.warmup), Duration::from(job.duration));
    let phases = Phases::new(warmup + duration + Duration::from_millis(500), observer);
    phases.begin(0.0, "setting up");
    let mut bed = TenantBed::build(&options(job, point, features))?;
    let measured = measure(job, point, in_front, &mut bed, &phases, observer);
    let mut raw = measured.map_err(|error| bed.explain(error))?;
    drop(bed);
    raw.counters.insert("took_s".to_owned(), phases.elapsed().as_secs_f64());
    Ok(raw)
}

fn measure(
    job: &Job<'_>,
    point: &TenantPoint,
    in_front: &InFront,
    bed: &mut TenantBed,
    phases: &Phases<'_>,
    observer: &dyn Observer,
) -> Result<RawRepeat, TestbedError> {
    let (warmup, duration) = (Duration::from(job.warmup), Duration::from(job.duration));
    let _prompt = Prompt::ahead();
    let mut sources =
        Sources::start(bed, point, &job.scenario.workload.congestion_control, job.repeat, observer)?;
    bed.install(&in_front.tree, in_front.rules)?;
    sources.release()?;
    let started_s = phases.elapsed().as_secs_f64();

    phases.sleep("warming up", warmup)?;
    wait_for_flows(bed, &mut sources, point, observer)?;
    let before = Snapshot::take(bed, &sources, false)?;
    let metered_before = bed.meter.flows();
    let start_ns = monotonic_ns() + LEAD.as_nanos() as u64;
    bed.meter.start(start_ns);
    sources.begin(start_ns);
    let sampler = match in_front.line {
        true => {
            let (netlink, index) = bed.asker()?;
            Some(Sampler::start(netlink, index, Handle::ROOT, start_ns)?)
        }
        false => None,
    };
    let end_ns = start_ns.saturating_add(job.duration.as_u64());
    phases.sleep("measuring", Duration::from_nanos(end_ns.saturating_sub(monotonic_ns())))?;
    let metered_after = bed.meter.flows();
    let after = Snapshot::take(bed, &sources, true)?;
    let samples = sampler.map(Sampler::finish).transpose()?;
    let ending = Instant::now();
    sources.check()?;
    let (names, _) = sources.actors();

    phases.begin(0.97, "finishing");
    if point.probes.is_some() {
        pause(GRACE, observer)?;
    }
    let exchanges = sources.finish_probes()?;
    sources.hold()?;
    bed.clear()?;
    let before_end = wait_for_rest(bed, observer)?;
    let reports = sources.finish(observer)?;
    let metered =
        Metered { before: metered_before, after: metered_after, before_end, at_end: bed.meter.flows() };

    let mut raw = RawRepeat {
        latency_us: measures::latencies_us(&exchanges, start_ns..end_ns),
        retransmits: Some(after.retransmits.saturating_sub(before.retransmits)),
        busy_cores: after.accounts.busy_since(&before.accounts),
        ..RawRepeat::default()
    };
    measures::flows(&mut raw, job, point, &bed.meter, &metered, &reports, |port| {
        let now = after.retransmits_by_port.get(&port)?;
        Some(now.saturating_sub(before.retransmits_by_port.get(&port).copied().unwrap_or(0)))
    })?;
    let line =
        samples.map(|samples| measures::line(&mut raw, job, &bed.meter, &metered.after, &samples, start_ns));
    raw.tenants = Some(RawTenants {
        processes: after.accounts.processes_since(&before.accounts, &names, duration),
        processors: after.accounts.processors_since(&before.accounts),
        qdiscs: measures::qdiscs(&before.qdiscs, &after.qdiscs),
        line,
        disturbance: Some(after.accounts.disturbance_since(&before.accounts)),
    });
    remark(&mut raw, in_front.line, after.accounts.processors(), bed.meter.overflow());
    let received_buffers = after.received_buffers.saturating_sub(before.received_buffers);
    raw.counters.insert("received_buffers".to_owned(), received_buffers as f64);
    raw.counters.insert("started_after_s".to_owned(), started_s);
    raw.counters.insert("ended_after_s".to_owned(), ending.elapsed().as_secs_f64());
    Ok(raw)
}

fn options(job: &Job<'_>, point: &TenantPoint, features: KernelFeatures) -> TenantBedOptions {
    let bins = u32::try_from(job.duration.as_u64() / job.bin.as_u64().max(1)).unwrap_or(u32::MAX);
    let flows = 2 * point.bulk_flows() + point.probe_count();
    TenantBedOptions {
        queues: job.scenario.link.queues,
        mtu: u32::try_from(job.scenario.link.mtu.bytes()).unwrap_or(1500),
        offloads: point.offloads,
        sender_sysctls: features.steady_tcp(),
        meter: MeterOptions { flows: flows + SPARE_METER_ROWS, bins, bin_ns: job.bin.as_u64() },
    }
}

/// Waits until every bulk flow has carried more bytes than the cookie that iperf3 sends first. Does not wait
/// for flows of on-off tenants.
fn wait_for_flows(
    bed: &TenantBed,
    sources: &mut Sources,
    point: &TenantPoint,
    observer: &dyn Observer,
) -> Result<(), TestbedError> {
    const COOKIE_BYTES: u64 = 37;
    let ports: Vec<u16> = (BULK_PORT..)
        .zip(each_bulk(point))
        .filter(|(_, tenants)| tenants.on_off.is_none())
        .map(|(port, _)| port)
        .collect();
    let wanted = ports.len();
    let deadline = Instant::now() + LIMIT;
    if wanted == 0 {
        return Ok(());
    }
    loop {
        let metered = bed.meter.flows();
        let carries = |port: &&u16| {
            measures::flow_to(&metered, **port).is_some_and(|flow| flow.payload_bytes > COOKIE_BYTES)
        };
        let flowing = ports.iter().filter(carries).count();
        if flowing >= wanted {
            return Ok(());
        }
        sources.check()?;
        if Instant::now() > deadline {
            return Err(TestbedError::Traffic(format!(
                "only {flowing} of {wanted} bulk flows carried data within {} s; stop other programs on this \
                 machine, then run the scenario again",
                LIMIT.as_secs()
            )));
        }
        pause(Duration::from_millis(5), observer)?;
    }
}

/// Waits, up to a time limit, until no more data arrives and the receivers have read all data. Returns
/// the meter's reading.
fn wait_for_rest(bed: &TenantBed, observer: &dyn Observer) -> Result<Vec<FlowSample>, TestbedError> {
    const PATIENCE: Duration = Duration::from_millis(200);
    const QUIET: Duration = Duration::from_millis(5);
    let deadline = Instant::now() + PATIENCE;
    let arrived = |flows: &[FlowSample]| flows.iter().map(|flow| flow.payload_bytes).sum::<u64>();
    let mut flows = bed.meter.flows();
    loop {
        pause(QUIET, observer)?;
        let now = bed.meter.flows();
        let is_quiet = arrived(&now) == arrived(&flows) && unread(bed)? == 0;
        if is_quiet || Instant::now() > deadline {
            return Ok(now);
        }
        flows = now;
    }
}

/// Returns the bytes of bulk flows that have arrived but have not been read.
fn unread(bed: &TenantBed) -> Result<u64, TestbedError> {
    let sockets = bed
        .receiver
        .run(|| Ok(SocketDiagnosis::open()?.sockets(SocketProtocol::Tcp, &[SocketState::ESTABLISHED])?))?;
    let bulk = sockets.iter().filter(|socket| socket.local.port() >= BULK_PORT);
    Ok(bulk.map(|socket| u64::from(socket.receive_queue)).sum())
}

fn remark(raw: &mut RawRepeat, line: bool, processors: usize, overflow: u64) {
    raw.counters.insert("meter_overflow".to_owned(), overflow as f64);
    if overflow > 0 {
        raw.notes.push(format!(
            "the flow table of the meter was full for {overflow} packets: figures are incomplete"
        ));
    }
    if let Some(busy) = raw.busy_cores.filter(|busy| line && *busy > MOST_BUSY * processors as f64) {
        raw.notes.push(format!(
            "the processors were {:.0} % busy, so the processors, not the line, may have been the \
             bottleneck; use a lower --rate, or stop other programs and run the scenario again",
            100.0 * busy / processors as f64
        ));
    }
}
