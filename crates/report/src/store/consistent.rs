//! Checks that the figures of a repeat are possible for its scenario.
//!
//! The bounds hold for any run. When the measured time starts, a receiver can hold at most one full buffer of
//! unread data. In the simulator, the unread data of all receivers is also at most the bytes that the line
//! can carry in the warm-up.

use std::collections::BTreeMap;

use evenkeel_model::record::{ExpectationRecord, Record, RepeatRecord, VariantRecord, metric};
use evenkeel_model::scenario::{Scenario, Variant, WorkloadKind};
use evenkeel_model::units::{BitRate, ByteSize, Nanoseconds};

use super::plausible::Implausible;
use super::relations::{self, Facts};
use crate::expectations::judge;
use crate::timing::Timing;

/// Tolerance for rounding of figures that are computed from each other.
const ROUNDING: f64 = 1e-6;
/// Receive buffer of a flow if the scenario states none: the maximum of `tcp_rmem` since Linux 6.16; before,
/// it was 6 MiB (net/ipv4/tcp.c).
const RECEIVE_BUFFER: ByteSize = ByteSize::from_kib(32 << 10);
/// Maximum number of processors of a kernel (`NR_CPUS`, arch/x86/Kconfig).
const MOST_PROCESSORS: f64 = 8192.0;
/// Longest work item of a simulated core, in seconds. The core counts the item when it ends, so a part
/// of the item can be before the measurement.
const WORK: f64 = 1e-3;

#[derive(Clone, Debug)]
pub struct Run<'r> {
    /// `sim` or `netns`.
    pub world: &'r str,
    pub host: &'r BTreeMap<String, String>,
    pub rate_bps: u64,
    /// Measured time of a repeat in seconds; 0 if the workload determines it.
    pub seconds: f64,
    /// In seconds.
    pub warmup: f64,
    /// Length of each window in seconds.
    pub windows: BTreeMap<String, f64>,
}

impl<'r> Run<'r> {
    pub(super) fn of(record: &'r Record) -> Self {
        Self {
            world: &record.world,
            host: &record.host,
            rate_bps: record.rate_bps,
            seconds: record.duration_s,
            warmup: record.warmup_s,
            windows: record.windows.clone(),
        }
    }
}

/// Checks the settings of a record against its scenario.
///
/// # Errors
/// Returns an error with the first field that contradicts the scenario.
pub(super) fn check_settings(record: &Record, scenario: &Scenario) -> Result<(), Implausible> {
    let nominal = scenario.link.rate.bits_per_second();
    if record.nominal_rate_bps != nominal {
        let stated = format!("the link.rate of its scenario_text, {} ({nominal} bit/s)", scenario.link.rate);
        return Err(against("nominal_rate_bps", record.nominal_rate_bps as f64, stated));
    }
    check_times(record, scenario)
}

/// Checks the times of a record, which follow from its scenario and its line rate. If the scenario states no
/// length, a repeat may last any multiple of the longest window.
fn check_times(record: &Record, scenario: &Scenario) -> Result<(), Implausible> {
    let quickened = record.quick.then(|| scenario.clone().quickened());
    let scenario = quickened.as_ref().unwrap_or(scenario);
    let timing = Timing::new(scenario, BitRate::from_bits_per_second(record.rate_bps), 1);
    let stated = |time: Nanoseconds| format!("its scenario_text at {} bit/s: {time}", record.rate_bps);
    let is_same = |one: f64, other: Nanoseconds| (one - other.as_secs_f64()).abs() <= ROUNDING * one;
    if !is_same(record.warmup_s, timing.warmup) {
        return Err(against("warmup_s", record.warmup_s, stated(timing.warmup)));
    }
    for (name, length) in &timing.windows {
        let Some(recorded) = record.windows.get(name).copied() else {
            let what = format!("its scenario_text, which also has the window {name}");
            return Err(against("the number of windows", record.windows.len() as f64, what));
        };
        if !is_same(recorded, *length) {
            return Err(against(&format!("windows.{name}"), recorded, stated(*length)));
        }
    }
    if let Some((name, length)) = record.windows.iter().find(|(name, _)| !timing.windows.contains_key(*name))
    {
        return Err(against(
            &format!("windows.{name}"),
            *length,
            "its scenario_text, which has no such window",
        ));
    }
    let longest = timing.windows.values().max().filter(|_| scenario.measure.length.is_none());
    let is_whole = match longest {
        Some(longest) => {
            let count = (record.duration_s / longest.as_secs_f64()).round().clamp(1.0, 1e9);
            is_same(record.duration_s, longest.saturating_mul(count as u64))
        }
        None => is_same(record.duration_s, timing.duration),
    };
    if !is_whole {
        let whole = longest.map(|_| "a multiple of ").unwrap_or_default();
        let stated = format!("its scenario_text at {} bit/s: {whole}{}", record.rate_bps, timing.duration);
        return Err(against("duration_s", record.duration_s, stated));
    }
    Ok(())
}

/// Checks the values and verdicts of expectations against the repeats. Does not compare the intervals,
/// because their method may depend on the Evenkeel version that wrote the record.
///
/// # Errors
/// Returns an error with the first expectation that does not follow from the repeats.
pub(super) fn check_expectations(record: &Record, scenario: &Scenario) -> Result<(), Implausible> {
    let timing = Timing::new(scenario, BitRate::from_bits_per_second(record.rate_bps), 1);
    let judged = judge(&scenario.expectations, &record.variants, &record.refused, &timing, record.quick);
    for (number, recorded) in record.expectations.iter().enumerate() {
        let question = |of: &ExpectationRecord| ExpectationRecord {
            value: None,
            interval: None,
            repeats: 0,
            met: None,
            open: None,
            ..of.clone()
        };
        let Some(expected) = judged.iter().find(|one| question(one) == question(recorded)) else { continue };
        let is_used = |own: &&VariantRecord| {
            own.name == recorded.variant || recorded.relative_to.as_ref() == Some(&own.name)
        };
        let used = record.variants.iter().filter(is_used).flat_map(|own| &own.repeats);
        let overflow: f64 = used.filter_map(|repeat| repeat.counters.get("meter_overflow")).sum();
        if let Some(met) = recorded.met.filter(|_| overflow > 0.0) {
            return Err(against("meter_overflow", overflow, format!("expectations[{number}].met: {met}")));
        }
        let Some(value) = recorded.value else { continue };
        let field = format!("expectations[{number}].value");
        match expected.value {
            Some(expected) => relations::same(&field, value, expected, "the repeats")?,
            None => return Err(against(&field, value, "the repeats, which lack the metric")),
        }
        if let Some((low, high)) = recorded.interval.filter(|(low, high)| !(low..=high).contains(&&value)) {
            return Err(against(&field, value, format!("its interval, {low} to {high}")));
        }
        if let (Some(met), Some(other)) = (recorded.met, expected.met)
            && met != other
        {
            return Err(against(&field, value, format!("its met, {met}")));
        }
    }
    Ok(())
}

/// Checks a repeat against the run, and against its scenario if the scenario could be read.
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
    relations::check(&Facts { repeat, run: Some(run), known: scenario })?;
    let throughput = repeat.metrics.get(metric::THROUGHPUT).copied();
    let most = scenario.and_then(|(scenario, variant)| most_bits(run, scenario, variant));
    if let (Some(throughput), Some((rate, slack))) = (throughput, most) {
        // A real shaper or meter may be late, but each byte has passed the line since the start of the
        // run.
        let late = if run.world == "sim" { 0.0 } else { run.warmup };
        let seconds = if run.seconds > 0.0 { run.seconds } else { 1.0 };
        // A simulation starts with the warm-up and with empty buffers, and its line has exactly the
        // recorded rate. When the measurement starts, its buffers therefore hold at most the bytes that the
        // line can carry in the warm-up.
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

/// Checks the number of recorded queues and the queue of each flow. With tenants, the test bed omits unused
/// queues after the last used queue.
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
    // Some worlds do not count queues.
    if recorded > 0 && !(least as usize..=most as usize).contains(&recorded) {
        let stated = format!("the queues of its scenario_text, {most}");
        return Err(against("the number of queues", recorded as f64, stated));
    }
    // A qdisc can hide the queues of the device. The record then has no queues.
    let beyond = |queue: &u32| recorded > 0 && *queue as usize >= recorded;
    match repeat.flows.iter().filter_map(|flow| flow.queue).find(beyond) {
        Some(queue) => Err(against("a flow's queue", queue.into(), format!("its {recorded} queues, from 0"))),
        None => Ok(()),
    }
}

fn against(field: &str, value: f64, what: impl Into<String>) -> Implausible {
    Implausible::Contradiction { field: field.to_owned(), value, what: what.into() }
}

fn flows_of(scenario: &Scenario, variant: &Variant) -> Option<u64> {
    match &scenario.workload.kind {
        WorkloadKind::Bulk => Some(scenario.workload.flows.into()),
        WorkloadKind::Tenants(_) => variant.tenants().map(|point| point.bulk_flows().into()),
        WorkloadKind::Transfers => variant.transfers().map(|knobs| knobs.flows.into()),
        WorkloadKind::Shuffle { .. } | WorkloadKind::Fetch { .. } | WorkloadKind::Requests(_) => None,
    }
}

/// Returns the rate that limits all flows together in bit/s, and the bits that receive buffers can have held
/// when the measurement started. Returns `None` if only processors limit the flows.
fn most_bits(run: &Run<'_>, scenario: &Scenario, variant: &Variant) -> Option<(f64, f64)> {
    let line = BitRate::from_bits_per_second(run.rate_bps);
    let buffers = |flows: u32, each: ByteSize| f64::from(flows) * each.bytes() as f64 * 8.0;
    let rate = line.bits_per_second() as f64;
    Some(match &scenario.workload.kind {
        WorkloadKind::Bulk | WorkloadKind::Fetch { .. } => {
            (rate, buffers(scenario.workload.flows, RECEIVE_BUFFER))
        }
        // The measured time contains all bytes of a shuffle.
        WorkloadKind::Shuffle { .. } => (rate * f64::from(scenario.hosts.count), 0.0),
        // Requests and responses use different directions of the line.
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

fn processors(repeat: &RepeatRecord, run: &Run<'_>, scenario: Option<(&Scenario, &Variant)>) -> f64 {
    let listed = repeat.tenants.as_ref().map(|tenants| tenants.processors.len()).filter(|count| *count > 0);
    let of_host = || run.host.get("cpus").and_then(|cpus| cpus.parse::<u32>().ok()).map(f64::from);
    let simulated = |(scenario, variant): (&Scenario, &Variant)| match &scenario.workload.kind {
        WorkloadKind::Bulk | WorkloadKind::Shuffle { .. } | WorkloadKind::Fetch { .. } => {
            Some(scenario.hosts.sending_cores)
        }
        // Each queue has one thread of the application and one thread for interrupts.
        WorkloadKind::Requests(_) => Some(2 * scenario.link.queues),
        WorkloadKind::Tenants(_) => None,
        // The record has only the path of a profile that its scenario does not contain.
        WorkloadKind::Transfers => variant.transfers().and_then(|knobs| {
            let machine = knobs.machine.profile().ok()?;
            Some(knobs.receivers * machine.nodes * machine.cores_per_node)
        }),
    };
    let known = match listed {
        Some(count) => Some(count as f64),
        None if run.world == "sim" => scenario.and_then(simulated).map(f64::from),
        None => of_host(),
    };
    known.unwrap_or(MOST_PROCESSORS)
}
