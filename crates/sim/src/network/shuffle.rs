//! The all-to-all shuffle of a scenario: every host sends the same amount of data to every other host (Titan,
//! USENIX ATC 2017, sections 5 and 6.2).

use std::collections::BTreeMap;

use evenkeel_model::record::{QueueRecord, SimCost};
use evenkeel_model::units::{ByteSize, Nanoseconds};
use evenkeel_model::world::{Job, Observer, RawFlow, RawRepeat};

use super::{Cluster, SwitchConfig, Topology, Transfer};
use crate::engine;
use crate::error::SimError;
use crate::parameters::Parameters;
use crate::settings::Settings;
use crate::time::{MILLISECOND, NANOSECOND, SECOND, Span, Time};

/// Flows start within this time. All programs start together, and each program opens its connections
/// one after the other.
const STARTS_WITHIN: Span = MILLISECOND;
/// Simulated time between progress reports and checks for an interruption, for one host. With more
/// hosts the time is shorter, for the same amount of work.
const STEP: Span = 120 * MILLISECOND;
/// Exponent of the switch's alpha for dynamic thresholds: alpha is 1. The setting of the real switch is
/// not published.
const ALPHA_EXPONENT: i8 = 0;

pub(crate) fn run(
    job: &Job<'_>,
    bytes_per_flow: ByteSize,
    settings: &Settings,
    parameters: &Parameters,
    observer: &dyn Observer,
) -> Result<RawRepeat, SimError> {
    let scenario = job.scenario;
    let failed = |source| SimError::Failed { variant: job.variant.name.clone(), seed: job.seed, source };
    let hosts = scenario.hosts.count;
    let switch = SwitchConfig {
        buffer_bytes: scenario.switch.as_ref().map_or(0, |switch| switch.buffer.bytes()),
        alpha_exponent: ALPHA_EXPONENT,
    };
    // Split the line's latency between the two links of a path. The switch adds the transmission time of
    // each packet, because it stores the whole packet.
    let topology = Topology::star(hosts, switch, settings.rate, parameters.line_latency / 2);
    engine::set_up(observer)?;
    let mut cluster =
        Cluster::new(&topology, settings, parameters, &all_to_all(hosts, bytes_per_flow.bytes()), job.seed)
            .map_err(failed)?;
    cluster.start(job.seed, STARTS_WITHIN);
    let total = bytes_per_flow.bytes() as f64 * f64::from(cluster.flows());
    let step = STEP / u64::from(hosts.max(1));
    while !cluster.run(cluster.now() + step).map_err(failed)? {
        observer.progress((cluster.payload() as f64 / total).min(1.0), "simulating");
        if observer.interrupted() {
            return Err(SimError::Interrupted);
        }
    }
    Ok(outcome(&cluster, hosts))
}

/// Returns transfers from every host to every other host. Each host begins with its successor.
fn all_to_all(hosts: u32, bytes: u64) -> Vec<Transfer> {
    (0..hosts)
        .flat_map(|from| {
            (1..hosts).map(move |distance| Transfer { from, to: (from + distance) % hosts, bytes })
        })
        .collect()
}

fn outcome(cluster: &Cluster, hosts: u32) -> RawRepeat {
    let end = cluster.now();
    let snapshots: Vec<_> = cluster.hosts().iter().map(|host| host.snapshot()).collect();
    let sum = |of: fn(&crate::host::Snapshot) -> u64| snapshots.iter().map(of).sum::<u64>();
    let first_start = (0..cluster.flows()).map(|flow| cluster.times(flow).0).min().unwrap_or(Time::ZERO);
    let flows: Vec<RawFlow> = (0..cluster.flows())
        .map(|flow| {
            let (from, local) = cluster.place(flow);
            let (start, completed) = cluster.times(flow);
            let (payload_bytes, out_of_order) = cluster.received(flow);
            RawFlow {
                name: format!("{from}-{}", (from + local + 1) % hosts),
                weight: 1.0,
                queue: Some(cluster.hosts()[from as usize].queue_of(local as usize)),
                payload_bytes,
                retransmits: Some(snapshots[from as usize].flows[local as usize].1),
                out_of_order: Some(out_of_order),
                completion_s: Some(completed.since(start) as f64 / SECOND as f64),
                ..RawFlow::default()
            }
        })
        .collect();
    let counters = [
        ("queue_drops", sum(|host| host.drops)),
        ("switch_drops", cluster.drops()),
        ("weight_writes", sum(|host| host.weight_writes)),
    ];
    let queues = snapshots.first().map_or(0, |host| host.queue_bytes.len());
    RawRepeat {
        flows,
        // Sum each queue over all hosts.
        queues: (0..queues)
            .map(|queue| QueueRecord {
                flows: cluster.hosts().iter().map(|host| host.flows_on(queue as u32)).sum(),
                bytes: snapshots.iter().map(|host| host.queue_bytes[queue]).sum(),
            })
            .collect(),
        busy_cores: Some(sum(|host| host.busy) as f64 / end.since(Time::ZERO) as f64 / f64::from(hosts)),
        elapsed: Some(Nanoseconds::new(end.since(first_start) / NANOSECOND)),
        retransmits: Some(sum(|host| host.retransmits)),
        sim: Some(SimCost { packets: cluster.packets(), simulated_s: end.seconds(), cpu_seconds: 0.0 }),
        counters: counters
            .map(|(name, value)| (name.to_owned(), value as f64))
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
        ..RawRepeat::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use evenkeel_model::scenario::bundled::{bundled, variant_tables};
    use evenkeel_model::scenario::{WorkloadKind, parse};
    use evenkeel_model::world::World;

    use super::*;
    use crate::tcp::Profile;
    use crate::world::SimWorld;

    struct Watcher {
        stop: bool,
    }

    impl Observer for Watcher {
        fn progress(&self, fraction: f64, _activity: &str) {
            assert!((0.0..=1.0).contains(&fraction));
        }
        fn remark(&self, _text: &str) {}
        fn interrupted(&self) -> bool {
            self.stop
        }
    }

    fn repeat(variant: &str, megabytes: u64, stop: bool) -> Result<RawRepeat, SimError> {
        let (_, text) = bundled().iter().find(|(name, _)| *name == "shuffle-6").unwrap();
        let mut scenario = parse(text, "test", variant_tables()).unwrap();
        let bytes_per_flow = ByteSize::from_bytes(megabytes * 1_000_000);
        scenario.workload.kind = WorkloadKind::Shuffle { bytes_per_flow };
        let job = Job {
            scenario: &scenario,
            variant: scenario.variant(variant).unwrap(),
            repeat: 0,
            seed: 7,
            rate: scenario.link.rate,
            warmup: Nanoseconds::new(0),
            duration: Nanoseconds::new(0),
            bin: Nanoseconds::new(1),
        };
        World::repeat(&mut SimWorld::new(Profile::Linux4_4), &job, &Watcher { stop })
    }

    #[test]
    fn every_host_sends_to_every_other_and_all_is_told() {
        let raw = repeat("dqa+dqwa", 2, false).unwrap();
        let names: std::collections::BTreeSet<&str> =
            raw.flows.iter().map(|flow| flow.name.as_str()).collect();
        let expected: std::collections::BTreeSet<String> = (0..6)
            .flat_map(|from| (0..6).filter(move |to| *to != from).map(move |to| format!("{from}-{to}")))
            .collect();
        assert!(names.iter().eq(expected.iter()));
        assert!(raw.flows.iter().all(|flow| flow.payload_bytes == 2_000_000));
        let elapsed = raw.elapsed.unwrap().as_u64() as f64 / 1e9;
        // Each host sends five flows of 2 MB, plus headers, at 10 Gbit/s.
        let least = 5.0 * 2e6 * 8.0 / 1e10 * (1538.0 / 1448.0);
        assert!(elapsed > least && elapsed < 2.0 * least, "{elapsed}");
        assert!(raw.flows.iter().all(|flow| flow.completion_s.unwrap() <= elapsed));
        assert_eq!(raw.queues.iter().map(|queue| queue.flows).sum::<u32>(), 30);
        assert!(raw.sim.unwrap().packets >= 30 * 2_000_000 / 1448);
        assert!(raw.busy_cores.unwrap() > 0.0 && raw.counters["weight_writes"] > 0.0);
        assert_eq!(repeat("dqa+dqwa", 2, false).unwrap(), raw);
    }

    #[test]
    fn queues_for_all_flows_bring_their_ends_together() {
        let spread = |variant: &str| {
            let raw = repeat(variant, 10, false).unwrap();
            let times: Vec<f64> = raw.flows.iter().filter_map(|flow| flow.completion_s).collect();
            assert_eq!(times.len(), 30);
            times.iter().copied().fold(0.0, f64::max) - times.iter().copied().fold(f64::MAX, f64::min)
        };
        let (hashed, assigned) = (spread("cmax"), spread("dqa"));
        assert!(assigned < hashed / 2.0, "{assigned} {hashed}");
    }

    #[test]
    fn an_interruption_stops_it() {
        assert_eq!(repeat("cmax", 100, true), Err(SimError::Interrupted));
    }
}
