//! A simulation of tenants that share a sender's device behind qdiscs: the workload of the qdisc study,
//! on the machine of the test bed.
//!
//! ```text
//!   processes ─▶ send buffer ─▶ tcp ─▶ qdiscs ─▶ line, or nothing ─▶ softirq ─▶ tcp ─▶ processes
//!        └───────────┴───────────┴────── processors of one machine ──────┴───────┴────────┘
//! ```
//!
//! Both ends run on the same processors, like the test bed's two namespaces. Without a line, the
//! processors limit the throughput. [`crate::costs`] has the costs of their work.
//! `docs/explanation/simulator.md` lists the limits of the model.

mod connection;
mod device;
mod simulation;
#[cfg(test)]
mod tests;
mod traffic;

use std::collections::BTreeMap;

use evenkeel_model::qdisc::QdiscTree;
use evenkeel_model::record::{QueueRecord, SimCost};
use evenkeel_model::scenario::{Scenario, TenantPoint, WorkloadKind};
use evenkeel_model::units::BitRate;
use evenkeel_model::world::{
    Assessment, Job, Observer, RawFlow, RawProcess, RawProcessor, RawRepeat, RawTenants,
};

use self::device::{Bins, Device};
use self::simulation::Simulation;
use self::traffic::{Tenants, flow_keys};
use crate::costs::processes::Machine;
use crate::engine::{self, Part};
use crate::error::SimError;
use crate::observation;
use crate::qdisc::tree::{self, Disciplines};
use crate::random::{Component, Generator};
use crate::segment::{HEADER_BYTES, mss_of};
use crate::tcp::{CongestionControl, Profile, SenderConfig};
use crate::time::{MICROSECOND, SECOND, Span, Time, span_of};

const STARTS_WITHIN: Span = 1000 * MICROSECOND;
/// Round-trip time that TCP's handshake measures on a veth without load. Only the order of magnitude is
/// known.
const HANDSHAKE_RTT: Span = 50 * MICROSECOND;
/// Largest segment in bytes. This is the test bed's value, which keeps every segment below the length
/// limit of `qfq`.
const LARGEST_SEGMENT: u32 = 61_440;

/// Returns the qdiscs of a point at a rate, as written and as simulated. Returns an error that names an
/// unsupported feature.
fn disciplines(
    scenario: &Scenario,
    point: &TenantPoint,
    rate: BitRate,
) -> Result<(QdiscTree, Disciplines), String> {
    let tree = point.tree(&scenario.link, rate)?;
    let mtu = u32::try_from(scenario.link.mtu.bytes()).unwrap_or(u32::MAX);
    let built = tree::build(&tree, &flow_keys(point), scenario.link.queues, mtu);
    built.map(|disciplines| (tree, disciplines)).map_err(|error| error.to_string())
}

/// Returns a point's settings and notes on its simulation, or the reason why the simulator cannot run it.
pub(crate) fn assess(
    scenario: &Scenario,
    point: &TenantPoint,
    profile: Profile,
    machine: &Machine,
) -> Result<Assessment, String> {
    let (tree, disciplines) = disciplines(scenario, point, scenario.link.rate)?;
    let mut notes = Vec::new();
    let estimated: std::collections::BTreeSet<&str> = disciplines
        .qdiscs
        .iter()
        .map(|qdisc| qdisc.kind.as_str())
        .filter(|kind| !machine.qdiscs.kinds.get(kind).is_some_and(|cost| cost.measured_here))
        .collect();
    if !estimated.is_empty() {
        let kinds = estimated.into_iter().collect::<Vec<_>>().join(", ");
        notes.push(format!("processor time of {kinds} is estimated, not measured"));
    }
    if profile == Profile::Linux4_4 {
        notes.push("TCP of Linux 4.4; the study's kernels are 5.x, nearer to --profile 6.18".to_owned());
    }
    Ok(Assessment { settings: point.settings(scenario, &tree), notes })
}

pub(crate) fn run(
    job: &Job<'_>,
    point: &TenantPoint,
    profile: Profile,
    machine: &Machine,
    observer: &dyn Observer,
) -> Result<RawRepeat, SimError> {
    let WorkloadKind::Tenants(common) = &job.scenario.workload.kind else {
        return Err(SimError::Unable("the scenario's workload is not tenants".to_owned()));
    };
    let (_, disciplines) = disciplines(job.scenario, point, job.rate).map_err(SimError::Unable)?;
    let begin = Time(span_of(job.warmup));
    let end = begin + span_of(job.duration);
    let count = (job.duration.as_u64() / job.bin.as_u64().max(1)) as usize;
    let bins = Bins { begin, length: span_of(job.bin).max(1), count };
    let config = sender_config(job, point, profile, disciplines.pacing);
    let rate = common.line.then(|| job.rate.bits_per_second());
    let mut seeds = Generator::new(job.seed, Component::QdiscHashes);
    let device =
        Device::new(disciplines, seeds.long_bits(), rate, &machine.qdiscs, point.filter_rules.as_ref(), bins)
            .map_err(|error| SimError::Unable(error.to_string()))?;
    let tenants = Tenants::new(point, &config, machine.processors, job.seed);
    let mut simulation = Simulation::new(machine, tenants, device, bins, end, job.seed);
    simulation.start(job.seed, STARTS_WITHIN);
    let failed = |source| SimError::Failed { variant: job.variant.name.clone(), seed: job.seed, source };
    engine::run_part(Part::WarmUp, Time::ZERO..begin, observer, |until| {
        simulation.run(until).map_err(failed)
    })?;
    simulation.begin_count();
    let before = flow_counts(&simulation);
    engine::run_part(Part::Measurement, begin..end, observer, |until| simulation.run(until).map_err(failed))?;
    simulation.end();
    Ok(observations(job, point, simulation, &before, end))
}

fn sender_config(job: &Job<'_>, point: &TenantPoint, profile: Profile, pacing: bool) -> SenderConfig {
    let mss = mss_of(job.scenario.link.mtu);
    SenderConfig {
        congestion: CongestionControl::named(&job.scenario.workload.congestion_control).unwrap_or_default(),
        mss,
        gso_max_bytes: LARGEST_SEGMENT.max(mss + HEADER_BYTES),
        tso: point.offloads.segmentation,
        handshake_rtt: HANDSHAKE_RTT,
        pacing,
        ..SenderConfig::new(profile)
    }
}

/// Returns the delivered payload, the retransmitted segments and the out-of-order packets of each flow.
fn flow_counts(simulation: &Simulation) -> Vec<(u64, u64, u64)> {
    let counts = simulation.connections.iter().map(|connection| {
        let receiver = &connection.receiver;
        let retransmitted = connection.sender.counters().retransmitted_segments;
        (receiver.delivered(), retransmitted, receiver.out_of_order_packets())
    });
    counts.collect()
}

fn observations(
    job: &Job<'_>,
    point: &TenantPoint,
    mut simulation: Simulation,
    before: &[(u64, u64, u64)],
    end: Time,
) -> RawRepeat {
    let seconds = |span: Span| span as f64 / SECOND as f64;
    let measured = job.duration.as_secs_f64().max(f64::MIN_POSITIVE);
    let after = flow_counts(&simulation);
    let counts: Vec<(u64, u64, u64)> = after
        .iter()
        .zip(before)
        .map(|(now, then)| (now.0 - then.0, now.1 - then.1, now.2 - then.2))
        .collect();
    let bulk = point.bulk_flows() as usize;
    let processors: Vec<RawProcessor> = simulation
        .processor_times()
        .map(|times| RawProcessor {
            user: seconds(times.user) / measured,
            system: seconds(times.system) / measured,
            softirq: seconds(times.softirq) / measured,
            wait: 0.0,
        })
        .collect();
    let processes = simulation.programs.iter().enumerate().map(|(number, program)| {
        let (user, system) = simulation.program_times(number);
        RawProcess { name: program.name.clone(), user_s: seconds(user), system_s: seconds(system) }
    });
    let processes = processes.collect();
    let line = simulation.device.trace(end);
    let packets = simulation.observation.packets;
    let series = std::mem::take(&mut simulation.observation).into_flows();
    let queue_bytes = queue_bytes(&simulation, &series);
    let flows = series.into_iter().take(bulk).enumerate().map(|(number, series)| RawFlow {
        tcp: Vec::new(),
        name: format!("flow-{number}"),
        weight: 1.0,
        queue: Some(simulation.queues[number]),
        backlogged: busy_ranges(&simulation.idleness[number].bins),
        bytes: series.bytes,
        packets: series.packets,
        payload_bytes: counts[number].0,
        retransmits: Some(counts[number].1),
        out_of_order: Some(counts[number].2),
        completion_s: None,
    });
    let flows: Vec<RawFlow> = flows.collect();
    RawRepeat {
        busy_cores: Some(processors.iter().map(|it| it.user + it.system + it.softirq).sum()),
        latency_us: simulation
            .programs
            .iter_mut()
            .flat_map(|program| std::mem::take(&mut program.samples))
            .collect(),
        retransmits: Some(counts[..bulk].iter().map(|count| count.1).sum()),
        sim: Some(SimCost { packets, simulated_s: end.seconds(), cpu_seconds: 0.0 }),
        queues: queue_bytes,
        counters: BTreeMap::from([("queue_drops".to_owned(), simulation.device.drops() as f64)]),
        tenants: Some(RawTenants {
            processes,
            processors,
            qdiscs: simulation.device.qdiscs(),
            line,
            disturbance: Some(0.0),
        }),
        flows,
        ..RawRepeat::default()
    }
}

fn queue_bytes(simulation: &Simulation, series: &[observation::Bins]) -> Vec<QueueRecord> {
    let count = simulation.device.queues();
    let mut queues = vec![QueueRecord { flows: 0, bytes: 0 }; count];
    for (series, queue) in series.iter().zip(&simulation.queues) {
        let queue = &mut queues[*queue as usize];
        queue.flows += 1;
        queue.bytes += series.bytes.iter().sum::<u64>();
    }
    queues
}

/// Returns the ranges of bins in which a flow was never idle.
fn busy_ranges(idle: &[bool]) -> Vec<std::ops::Range<usize>> {
    let mut ranges = Vec::new();
    let mut first = None;
    for (bin, idle) in idle.iter().chain([&true]).enumerate() {
        match (idle, first) {
            (false, None) => first = Some(bin),
            (true, Some(begin)) => {
                ranges.push(begin..bin);
                first = None;
            }
            _ => {}
        }
    }
    ranges
}
