//! Checks that the figures of a repeat fit each other and the scenario that was run.
//!
//! All of these figures come from the same counters, so tolerances cover rounding only. A bound holds for any
//! run: of what a receiver has read in the measured time, it can have received only a full buffer before, and in the
//! simulator only what the line carried in the warm-up.

use std::collections::BTreeMap;

use evenkeel_metrics::jain;
use evenkeel_model::record::{FlowRecord, Record, RepeatRecord, metric};
use evenkeel_model::scenario::{Scenario, Variant, WorkloadKind};
use evenkeel_model::units::{BitRate, ByteSize};

use super::plausible::Implausible;

/// Rounding of figures that were computed from each other.
const ROUNDING: f64 = 1e-6;
/// Receive buffer of a flow whose scenario states none: the largest of `tcp_rmem` in Linux before 6.17 (net/ipv4/tcp.c).
const RECEIVE_BUFFER: ByteSize = ByteSize::from_kib(6 << 10);
/// More processors than a kernel can have (`NR_CPUS`, arch/x86/Kconfig).
const MOST_PROCESSORS: f64 = 8192.0;
/// Longest work that a simulated core counts when it ends, of which a part can be before the measurement, seconds.
const WORK: f64 = 1e-3;
/// Retransmissions of a flow within this time are one event, seconds.
const EVENT: f64 = 0.1;

/// How a scenario was run.
#[derive(Clone, Copy, Debug)]
pub struct Run<'r> {
    /// `sim` or `netns`.
    pub world: &'r str,
    pub host: &'r BTreeMap<String, String>,
    pub rate_bps: u64,
    /// Measured time of a repeat, seconds; 0 if the workload determines it.
    pub seconds: f64,
    /// Time before, seconds.
    pub warmup: f64,
}

impl<'r> Run<'r> {
    pub(super) fn of(record: &'r Record) -> Self {
        Self {
            world: &record.world,
            host: &record.host,
            rate_bps: record.rate_bps,
            seconds: record.duration_s,
            warmup: record.warmup_s,
        }
    }
}

/// Checks the settings of a record that its scenario states.
///
/// # Errors
/// Returns an error with the first field that contradicts the scenario.
pub(super) fn check_settings(record: &Record, scenario: &Scenario) -> Result<(), Implausible> {
    let nominal = scenario.link.rate.bits_per_second();
    if record.nominal_rate_bps != nominal {
        let stated = format!("the link.rate of its scenario_text, {} ({nominal} bit/s)", scenario.link.rate);
        return Err(against("nominal_rate_bps", record.nominal_rate_bps as f64, stated));
    }
    Ok(())
}

/// Checks figures of a repeat that are about the same traffic.
///
/// # Errors
/// Returns an error with the first figure that contradicts another one.
pub(super) fn check_figures(repeat: &RepeatRecord) -> Result<(), Implausible> {
    let metrics = &repeat.metrics;
    for (key, value) in metrics {
        if is_count(key) && value.fract() != 0.0 {
            return Err(against(key, *value, "the unit: a repeat counts whole ones"));
        }
    }
    let shares = || metrics.iter().filter(|(key, _)| is_part(key, metric::CPU_SHARE));
    let sum: f64 = shares().map(|(_, share)| share).sum();
    let is_complete = shares().count() == metric::CPU_SHARE_PARTS.len();
    if sum > 1.0 + ROUNDING || is_complete && sum < 1.0 - ROUNDING {
        return Err(against("the sum of cpu_share", sum, "its parts, whose sum cannot be above 1"));
    }
    for key in [metric::JAIN_BYTES, metric::JAIN_PACKETS] {
        let count = |flow: &FlowRecord| if key == metric::JAIN_BYTES { flow.bytes } else { flow.packets };
        let Some(value) = metrics.get(key) else { continue };
        let counts: Vec<f64> = repeat.flows.iter().map(|flow| count(flow) as f64).collect();
        match jain(&counts) {
            Some(index) if (index - value).abs() <= ROUNDING => {}
            Some(index) => {
                let flows = repeat.flows.len();
                return Err(against(
                    key,
                    *value,
                    format!("the recorded flows ({flows}), whose index is {index}"),
                ));
            }
            None => return Err(against(key, *value, "the recorded flows, which sent nothing")),
        }
    }
    let of = |key: &str| metrics.get(key).copied();
    if let (Some(per_core), Some(throughput), Some(cpu)) =
        (of(metric::THROUGHPUT_PER_CORE), of(metric::THROUGHPUT), of(metric::CPU))
        && !is_same(per_core * cpu / 100.0, throughput)
    {
        let others = format!("throughput_bps, {throughput}, and cpu_pct, {cpu}");
        return Err(against(metric::THROUGHPUT_PER_CORE, per_core, others));
    }
    if let (Some(_), Some(retransmits)) = (of(metric::RETRANSMITS_PER_S), of(metric::RETRANSMITS)) {
        let by_flow: Option<u64> = repeat.flows.iter().map(|flow| flow.retransmits).sum();
        if let Some(sum) = by_flow.filter(|sum| *sum as f64 != retransmits) {
            return Err(against(metric::RETRANSMITS, retransmits, format!("the sum over the flows, {sum}")));
        }
    }
    Ok(())
}

/// Checks a repeat against the run and its scenario, if that could be read.
///
/// # Errors
/// Returns an error with the first figure that is impossible in this run.
pub fn check_in_run(
    repeat: &RepeatRecord,
    run: &Run<'_>,
    scenario: Option<(&Scenario, &Variant)>,
) -> Result<(), Implausible> {
    if let Some(expected) = scenario.and_then(|(scenario, variant)| flows_of(scenario, variant))
        && repeat.flows.len() as u64 != expected
    {
        let against = format!("the scenario, which has {expected}");
        return Err(self::against("the number of flows", repeat.flows.len() as f64, against));
    }
    if let Some((scenario, variant)) = scenario {
        check_queues(repeat, scenario, variant)?;
    }
    check_rates(repeat, run)?;
    let throughput = repeat.metrics.get(metric::THROUGHPUT).copied();
    let most = scenario.and_then(|(scenario, variant)| most_bits(run, scenario, variant));
    if let (Some(throughput), Some((rate, slack))) = (throughput, most) {
        // Real shapers and meters may be late, but each byte has passed the line since the start of the run.
        let late = if run.world == "sim" { 0.0 } else { run.warmup };
        let seconds = if run.seconds > 0.0 { run.seconds } else { 1.0 };
        // Nor does a simulated buffer hold more at the start of the measurement than the warm-up brought. A simulation
        // starts with the warm-up, with empty buffers, and its line has exactly the recorded rate.
        let slack = if run.world == "sim" { slack.min(rate * run.warmup) } else { slack };
        if throughput * seconds > (rate * (seconds + late) + slack) * (1.0 + ROUNDING) {
            let line = format!("the scenario, whose line carries {rate} bit/s");
            return Err(against(metric::THROUGHPUT, throughput, line));
        }
    }
    let processors = processors(repeat, run, scenario);
    let slack = if run.world == "sim" && run.seconds > 0.0 { WORK / run.seconds } else { 0.0 };
    let most = processors * (1.0 + slack) * (1.0 + ROUNDING);
    let busy = metric::part(metric::CORES, metric::CORES_PARTS[0]);
    for (key, scale) in [(metric::CPU, 100.0), (busy.as_str(), 1.0)] {
        if let Some(value) = repeat.metrics.get(key).filter(|value| **value > scale * most) {
            return Err(against(key, *value, format!("the number of processors, at most {processors}")));
        }
    }
    Ok(())
}

/// Checks the number of recorded queues. With tenants, the test bed records no unused queue after the last used one.
fn check_queues(repeat: &RepeatRecord, scenario: &Scenario, variant: &Variant) -> Result<(), Implausible> {
    let link = scenario.link.queues;
    let (least, most) = match &scenario.workload.kind {
        WorkloadKind::Bulk | WorkloadKind::Shuffle { .. } | WorkloadKind::Fetch { .. } => {
            let queues = variant.knobs().queues.unwrap_or(link);
            (queues, queues)
        }
        WorkloadKind::Requests(_) => (link, link),
        WorkloadKind::Tenants(_) => (0, link),
        WorkloadKind::Transfers => return Ok(()),
    };
    let recorded = repeat.queues.len();
    // A world may count no queues.
    if recorded > 0 && !(least as usize..=most as usize).contains(&recorded) {
        let stated = format!("the queues of its scenario_text, {most}");
        return Err(against("the number of queues", recorded as f64, stated));
    }
    Ok(())
}

/// Checks figures per second against the counts that they come from.
fn check_rates(repeat: &RepeatRecord, run: &Run<'_>) -> Result<(), Implausible> {
    let of = |key: &str| repeat.metrics.get(key).copied();
    let throughput = of(metric::THROUGHPUT);
    if let Some(throughput) = throughput.filter(|_| repeat.flows.is_empty() && repeat.clients.is_empty())
        && throughput > 0.0
    {
        return Err(against(metric::THROUGHPUT, throughput, "the flows: none is recorded"));
    }
    if run.seconds <= 0.0 {
        return Ok(());
    }
    let seconds = run.seconds;
    // Clients that send requests count their payload apart.
    if let Some(throughput) = throughput.filter(|_| repeat.clients.is_empty()) {
        let payload: u128 = repeat.flows.iter().map(|flow| u128::from(flow.payload_bytes)).sum();
        let counted = payload as f64 * 8.0 / seconds;
        if !is_same(throughput, counted) {
            let flows = format!("the payload of the flows, {payload} bytes in {seconds} s");
            return Err(against(metric::THROUGHPUT, throughput, flows));
        }
    }
    let Some(retransmits) = of(metric::RETRANSMITS) else { return Ok(()) };
    if let Some(rate) = of(metric::RETRANSMITS_PER_S).filter(|rate| !is_same(rate * seconds, retransmits)) {
        let count = format!("retransmits, {retransmits} in {seconds} s");
        return Err(against(metric::RETRANSMITS_PER_S, rate, count));
    }
    let Some(rate) = of(metric::RETRANSMISSION_EVENTS_PER_S) else { return Ok(()) };
    let events = rate * seconds;
    if events > retransmits * (1.0 + ROUNDING) + ROUNDING {
        let count = format!("retransmits, {retransmits} in {seconds} s");
        return Err(against(metric::RETRANSMISSION_EVENTS_PER_S, rate, count));
    }
    let most = repeat.flows.len() as f64 * ((seconds / EVENT).floor() + 1.0);
    if events > most * (1.0 + ROUNDING) {
        let flows = format!("the number of flows ({}): one has an event per 100 ms", repeat.flows.len());
        return Err(against(metric::RETRANSMISSION_EVENTS_PER_S, rate, flows));
    }
    Ok(())
}

fn against(field: &str, value: f64, what: impl Into<String>) -> Implausible {
    Implausible::Contradiction { field: field.to_owned(), value, what: what.into() }
}

fn is_same(one: f64, other: f64) -> bool {
    (one - other).abs() <= ROUNDING * one.abs().max(other.abs()).max(1.0)
}

fn is_part(key: &str, prefix: &str) -> bool {
    key.strip_prefix(prefix).is_some_and(|part| part.starts_with('.'))
}

fn is_count(key: &str) -> bool {
    [metric::RETRANSMITS, metric::OUT_OF_ORDER].contains(&key)
        || [metric::DROPS, metric::QDISC].iter().any(|prefix| is_part(key, prefix))
}

/// Returns the number of recorded flows, if the scenario states it.
fn flows_of(scenario: &Scenario, variant: &Variant) -> Option<u64> {
    match &scenario.workload.kind {
        WorkloadKind::Bulk => Some(scenario.workload.flows.into()),
        WorkloadKind::Tenants(_) => variant.tenants().map(|point| point.bulk_flows().into()),
        WorkloadKind::Transfers => variant.transfers().map(|knobs| knobs.flows.into()),
        WorkloadKind::Shuffle { .. } | WorkloadKind::Fetch { .. } | WorkloadKind::Requests(_) => None,
    }
}

/// Returns the rate that limits all flows together, bit/s, and the bits that can have crossed it before the
/// measurement; none if only processors limit them.
fn most_bits(run: &Run<'_>, scenario: &Scenario, variant: &Variant) -> Option<(f64, f64)> {
    let line = BitRate::from_bits_per_second(run.rate_bps);
    let buffers = |flows: u32, each: ByteSize| f64::from(flows) * each.bytes() as f64 * 8.0;
    let rate = line.bits_per_second() as f64;
    Some(match &scenario.workload.kind {
        WorkloadKind::Bulk | WorkloadKind::Fetch { .. } => {
            (rate, buffers(scenario.workload.flows, RECEIVE_BUFFER))
        }
        // The measured time has all bytes.
        WorkloadKind::Shuffle { .. } => (rate * f64::from(scenario.hosts.count), 0.0),
        // Requests and responses have a direction each.
        WorkloadKind::Requests(_) => (2.0 * rate, 2.0 * buffers(scenario.workload.flows, RECEIVE_BUFFER)),
        WorkloadKind::Tenants(tenants) if !tenants.line => return None,
        WorkloadKind::Tenants(_) => (rate, buffers(variant.tenants()?.bulk_flows(), RECEIVE_BUFFER)),
        WorkloadKind::Transfers => {
            let knobs = variant.transfers()?;
            let rate = knobs.limit(line).bits_per_second() as f64;
            (rate, buffers(knobs.flows, knobs.receive_buffer))
        }
    })
}

/// Returns the largest possible number of processors.
fn processors(repeat: &RepeatRecord, run: &Run<'_>, scenario: Option<(&Scenario, &Variant)>) -> f64 {
    let listed = repeat.tenants.as_ref().map(|tenants| tenants.processors.len()).filter(|count| *count > 0);
    let of_host = || run.host.get("cpus").and_then(|cpus| cpus.parse::<u32>().ok()).map(f64::from);
    let simulated = |(scenario, variant): (&Scenario, &Variant)| match &scenario.workload.kind {
        WorkloadKind::Bulk | WorkloadKind::Shuffle { .. } | WorkloadKind::Fetch { .. } => {
            Some(scenario.hosts.sending_cores)
        }
        // A thread of the application and one of the interrupts for each queue.
        WorkloadKind::Requests(_) => Some(2 * scenario.link.queues),
        WorkloadKind::Tenants(_) => None,
        WorkloadKind::Transfers => variant.transfers().map(|knobs| knobs.receivers * knobs.machine.cores()),
    };
    let known = match listed {
        Some(count) => Some(count as f64),
        None if run.world == "sim" => scenario.and_then(simulated).map(f64::from),
        None => of_host(),
    };
    known.unwrap_or(MOST_PROCESSORS)
}
