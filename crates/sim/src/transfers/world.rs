//! Runs one repeat of a scenario with transfers in the simulator.

use std::collections::BTreeMap;

use evenkeel_model::record::SimCost;
use evenkeel_model::scenario::{InterruptCores, OtherTuning, TransferKnobs};
use evenkeel_model::text::counted;
use evenkeel_model::units::{BitRate, ByteSize};
use evenkeel_model::world::{Job, Observer, RawFlow, RawRepeat, RawTransfers};

use super::settings::Settings;
use super::simulation::Simulation;
use crate::engine::{self, Part};
use crate::error::SimError;
use crate::segment::{mss_of, wire_bytes};
use crate::tcp::{CongestionControl, Profile};
use crate::time::{SECOND, Time, span_of};

/// Returns remarks about a variant, or as an error the reason why the simulator cannot run it.
pub(crate) fn assess(knobs: &TransferKnobs, link: BitRate) -> Result<Vec<String>, String> {
    let lacking = match knobs.other_tuning {
        None => return remarks(knobs, link),
        Some(OtherTuning::TcpMemory) => {
            "tcp_mem limits the memory of all TCP sockets of a host together, which is not simulated"
        }
        Some(OtherTuning::Backlog) => {
            "netdev_max_backlog limits packets that wait for another core (RPS), and RPS is not simulated"
        }
        Some(OtherTuning::MtuProbing) => {
            "tcp_mtu_probing acts on paths that drop packets of the MTU, and none is simulated"
        }
        Some(OtherTuning::Irqbalance) => {
            "irqbalance moves interrupts between cores, and simulated interrupts stay where 'interrupts' puts them"
        }
    };
    Err(lacking.to_owned())
}

fn remarks(knobs: &TransferKnobs, link: BitRate) -> Result<Vec<String>, String> {
    let mut remarks = Vec::new();
    let limit = knobs.limit(link);
    if knobs.switch_buffer.is_some() && limit < link {
        remarks.push(format!("the ports of the senders limit the rate to {limit}; the link has {link}"));
    }
    let settings = Settings::new(knobs, link, vec![CongestionControl::Cubic], Profile::Linux6_18)?;
    let flows = knobs.flows.div_ceil(knobs.receivers.max(1));
    let cores = settings.interrupt_cores(flows).len() as u32;
    if knobs.interrupts == InterruptCores::OwnCore && flows > cores {
        remarks.push(format!(
            "{} flows of a receiver share {} for interrupts, up to {} on each: the NUMA node has no more cores",
            flows,
            counted(cores as usize, "core"),
            flows.div_ceil(cores.max(1))
        ));
    }
    Ok(remarks)
}

pub(crate) fn run(
    job: &Job<'_>,
    knobs: &TransferKnobs,
    profile: Profile,
    observer: &dyn Observer,
) -> Result<RawRepeat, SimError> {
    let names: Vec<String> = match knobs.congestion_control.as_slice() {
        [] => vec![job.scenario.workload.congestion_control.clone()],
        controls => controls.iter().map(ToString::to_string).collect(),
    };
    let congestion = names
        .iter()
        .map(|name| {
            CongestionControl::named(name)
                .ok_or_else(|| SimError::Unable(format!("the simulator has no congestion control {name}")))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let settings = Settings::new(knobs, job.rate, congestion, profile).map_err(|problem| {
        SimError::Input { key: format!("variant.{}.machine", job.variant.name), problem }
    })?;
    let (begin, bin) = (Time(span_of(job.warmup)), span_of(job.bin));
    let end = begin + span_of(job.duration);
    let bins = (job.duration.as_u64() / job.bin.as_u64().max(1)) as usize;
    let failed = |source| SimError::Failed { variant: job.variant.name.clone(), seed: job.seed, source };
    engine::set_up(observer)?;
    let mut simulation = Simulation::new(settings, job.seed, begin, bin, bins);
    engine::run_part(Part::WarmUp, Time::ZERO..begin, observer, |until| {
        simulation.run(until).map_err(failed)
    })?;
    let before = simulation.snapshot();
    engine::run_part(Part::Measurement, begin..end, observer, |until| simulation.run(until).map_err(failed))?;
    let after = simulation.snapshot();

    let measured = end.since(begin) as f64;
    let busy: u64 = after.busy.iter().zip(&before.busy).map(|(after, before)| after - before).sum();
    let drops = after.drops_since(&before);
    let mut cycles = after.cycles;
    cycles.iter_mut().zip(before.cycles).for_each(|(cycles, before)| *cycles -= before);
    let (payload, wire) = payload_and_wire(knobs.mtu);
    let mut tcp = simulation.take_tcp_bins();
    let flows: Vec<RawFlow> = simulation
        .take_bins()
        .into_iter()
        .enumerate()
        .map(|(flow, bytes)| {
            let packets: Vec<u64> = bytes.iter().map(|bytes| bytes / payload).collect();
            RawFlow {
                name: format!("flow-{flow}"),
                weight: 1.0,
                backlogged: std::iter::once(0..bytes.len()).collect(),
                bytes: packets.iter().map(|packets| packets * wire).collect(),
                packets,
                payload_bytes: after.read[flow] - before.read[flow],
                retransmits: Some(after.retransmitted[flow] - before.retransmitted[flow]),
                tcp: tcp.get_mut(flow).map(std::mem::take).unwrap_or_default(),
                ..RawFlow::default()
            }
        })
        .collect();
    let mut counters = round_trips(&flows);
    counters.insert("squeezes".to_owned(), (after.squeezes - before.squeezes) as f64);
    if knobs.ecn_threshold.is_some() {
        counters.insert("ecn_marked_packets".to_owned(), (after.marked - before.marked) as f64);
    }
    counters.extend(rates_by_control(&flows, &names, measured / SECOND as f64));
    Ok(RawRepeat {
        retransmits: flows.iter().map(|flow| flow.retransmits).sum(),
        flows,
        busy_cores: Some(busy as f64 / measured),
        transfers: Some(RawTransfers {
            retransmission_events: after
                .events
                .iter()
                .zip(&before.events)
                .map(|(after, before)| after - before)
                .sum(),
            drops: [
                knobs.switch_buffer.map(|_| drops.switch),
                Some(drops.nic),
                Some(drops.ring),
                Some(drops.socket_backlog),
                Some(drops.pruned),
            ],
            cycles,
        }),
        counters,
        sim: Some(SimCost { packets: after.packets, simulated_s: end.seconds(), cpu_seconds: 0.0 }),
        ..RawRepeat::default()
    })
}

/// Returns the throughput of all flows with each congestion control in Gbit/s. Returns an empty map if
/// all flows have the same congestion control.
fn rates_by_control(flows: &[RawFlow], names: &[String], seconds: f64) -> BTreeMap<String, f64> {
    let mut rates = BTreeMap::new();
    if names.iter().all(|name| *name == names[0]) {
        return rates;
    }
    for (flow, name) in flows.iter().zip(names.iter().cycle()) {
        *rates.entry(format!("{name}_gbps")).or_default() += flow.payload_bytes as f64 * 8e-9 / seconds;
    }
    rates
}

/// Returns mean and maximum of the round-trip times of all flows, µs. Returns an empty map if the
/// round-trip times were not recorded.
fn round_trips(flows: &[RawFlow]) -> BTreeMap<String, f64> {
    let bins = || flows.iter().flat_map(|flow| &flow.tcp).filter(|bin| bin.rtt_ns > 0);
    let count = bins().count();
    if count == 0 {
        return BTreeMap::new();
    }
    let mean = bins().map(|bin| bin.rtt_ns as f64).sum::<f64>() / count as f64;
    let most = bins().map(|bin| bin.rtt_most_ns).max().unwrap_or_default() as f64;
    let figures = [("rtt_mean_us", mean), ("rtt_max_us", most)];
    figures.into_iter().map(|(name, ns)| (name.to_owned(), ns / 1000.0)).collect()
}

/// Returns the payload of a full packet, and its bytes on the wire.
fn payload_and_wire(mtu: ByteSize) -> (u64, u64) {
    let payload = mss_of(mtu);
    (payload.into(), wire_bytes(payload).into())
}
