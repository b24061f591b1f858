//! Runs a scenario, and creates its record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use evenkeel_model::record::{
    FlowRecord, LACKS_FIGURE, NOTHING_MEASURED, PaperRecord, Record, Refusal, RepeatRecord, SCHEMA,
    TenantsRecord, VariantRecord,
};
use evenkeel_model::scenario::{Scenario, Variant, WorkloadKind};
use evenkeel_model::text::list;
use evenkeel_model::units::{BitRate, ByteSize};
use evenkeel_model::world::{Job, Observer, RawRepeat, RawTcp, TcpColumn, World};
use evenkeel_report::store::{Series, SeriesColumn, SeriesFlow, Writer};

use crate::pool::{at_a_time, in_parallel};
use crate::{evaluate, requests};
use evenkeel_report::{Timing, judge};

#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub scenario: &'a Scenario,
    pub scenario_text: &'a str,
    pub variants: Vec<&'a Variant>,
    /// At least 1.
    pub repeats: u32,
    /// Number of long windows per repeat; `None`: the scenario's number.
    pub long_windows: Option<u32>,
    /// Line rate; `None`: the world chooses it.
    pub rate: Option<BitRate>,
    /// Seed of the first repeat. Each further repeat adds 1.
    pub seed: u64,
    /// Whether this is a quick run, which is too short to judge expectations.
    pub quick: bool,
    pub version: &'a str,
}

#[derive(Debug, thiserror::Error)]
pub enum ConductError<E: std::error::Error> {
    #[error(transparent)]
    World(E),
    #[error("with --on {world}, none of the requested variants can run: {}", reasons(.refused))]
    NothingToRun { world: &'static str, refused: Vec<Refusal> },
}

fn reasons(refused: &[Refusal]) -> String {
    // If all variants have the same reason, report it once.
    if let Some((first, others)) = refused.split_first()
        && others.iter().all(|other| other.why == first.why)
    {
        return first.why.clone();
    }
    refused.iter().map(|refusal| format!("{}: {}", refusal.name, refusal.why)).collect::<Vec<_>>().join("; ")
}

/// Converts the progress of a repeat to the progress of the whole run.
struct Part<'a> {
    whole: &'a dyn Observer,
    /// Number of finished repeats, including repeats of other threads.
    done: &'a AtomicUsize,
    parts: f64,
    name: String,
}

impl Observer for Part<'_> {
    fn progress(&self, fraction: f64, activity: &str) {
        let done = self.done.load(Ordering::Relaxed) as f64;
        self.whole.progress((done + fraction) / self.parts, &format!("{}: {activity}", self.name));
    }

    fn remark(&self, text: &str) {
        self.whole.remark(text);
    }

    fn interrupted(&self) -> bool {
        self.whole.interrupted()
    }
}

/// Runs every repeat of every variant and creates the record. Passes each repeat's series to `writer`,
/// if any.
///
/// # Errors
/// Returns an error if the world fails, is interrupted, or refuses every variant.
pub fn conduct<W: World>(
    world: &mut W,
    request: &Request<'_>,
    writer: Option<&Writer>,
    observer: &dyn Observer,
) -> Result<Record, ConductError<W::Error>> {
    let started = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let scenario = request.scenario;
    let mut runnable: Vec<(&Variant, VariantRecord)> = Vec::new();
    let mut refused = Vec::new();
    for variant in &request.variants {
        match world.assess(scenario, variant) {
            Ok(assessment) => runnable.push((
                variant,
                VariantRecord {
                    name: variant.name.clone(),
                    settings: assessment.settings,
                    notes: assessment.notes,
                    repeats: Vec::new(),
                },
            )),
            Err(why) => refused.push(Refusal { name: variant.name.clone(), why }),
        }
    }
    if runnable.is_empty() {
        return Err(ConductError::NothingToRun { world: world.name(), refused });
    }

    let rate = world.settle_rate(scenario, request.rate, observer).map_err(ConductError::World)?;
    let timing = Timing::new(scenario, rate, request.long_windows.unwrap_or(scenario.measure.long_windows));
    if let Some(note) = timing.note_of_left_out(rate) {
        runnable.iter_mut().for_each(|(_, record)| record.notes.push(note.clone()));
    }
    // Interleave the variants, so that changes of the machine's speed affect all of them equally.
    let jobs: Vec<Job<'_>> = (0..request.repeats)
        .flat_map(|repeat| runnable.iter().map(move |(variant, _)| (repeat, *variant)))
        .map(|(repeat, variant)| Job {
            scenario,
            variant,
            repeat,
            seed: request.seed.wrapping_add(u64::from(repeat)),
            rate,
            warmup: timing.warmup,
            duration: timing.duration,
            bin: timing.bin,
        })
        .collect();
    let variants = runnable.len();
    // Reduce a repeat as soon as it ends: the bins of its flows need much more memory than its metrics.
    let reduce = |job: &Job<'_>, mut raw: RawRepeat, observer: &dyn Observer| {
        let repeat = summarise(&raw, &timing, rate, job.variant);
        let mut notes = std::mem::take(&mut raw.notes);
        notes.extend(missing_figures(&raw, &timing, scenario));
        let nothing = nothing_measured(&raw, &timing, job.variant);
        if let Some(writer) = writer {
            let series = raw_series(&job.variant.name, job.repeat, &timing, raw);
            write_series(writer, &series, observer);
        }
        (repeat, notes, nothing)
    };
    // Number of repeats in which a variant measured nothing, by variant and remark.
    let mut silent: BTreeMap<(usize, String), u32> = BTreeMap::new();
    run_all(world, &jobs, request.repeats, observer, reduce, |number, (repeat, notes, nothing)| {
        let (variant, record) = &mut runnable[number % variants];
        for note in notes {
            if !record.notes.contains(&note) {
                record.notes.push(note);
            }
        }
        if let Some(nothing) = nothing {
            let key = (number % variants, nothing);
            if !silent.contains_key(&key) {
                observer.remark(&format!("{}: {}", variant.name, key.1));
            }
            *silent.entry(key).or_insert(0_u32) += 1;
        }
        record.repeats.push(repeat);
    })
    .map_err(ConductError::World)?;
    for ((number, nothing), count) in silent {
        let (_, record) = &mut runnable[number];
        record.notes.push(match count == request.repeats {
            true => nothing,
            false => {
                let part = format!("{NOTHING_MEASURED} in {count} of {} repeats", request.repeats);
                nothing.replacen(NOTHING_MEASURED, &part, 1)
            }
        });
    }

    let variants: Vec<VariantRecord> = runnable.into_iter().map(|(_, record)| record).collect();
    Ok(Record {
        schema: SCHEMA,
        evenkeel: request.version.to_owned(),
        scenario: scenario.name.clone(),
        scenario_text: request.scenario_text.to_owned(),
        world: world.name().to_owned(),
        kernel: world.kernel(),
        started,
        host: world.facts(),
        rate_bps: rate.bits_per_second(),
        nominal_rate_bps: scenario.link.rate.bits_per_second(),
        seed: request.seed,
        quick: request.quick,
        duration_s: timing.duration.as_secs_f64(),
        warmup_s: timing.warmup.as_secs_f64(),
        windows: timing.windows.iter().map(|(name, length)| (name.clone(), length.as_secs_f64())).collect(),
        expectations: judge(&scenario.expectations, &variants, &refused, &timing, request.quick),
        variants,
        refused,
        paper: scenario
            .paper
            .as_ref()
            .map(|paper| PaperRecord { source: paper.source.clone(), variants: paper.variants.clone() }),
    })
}

/// Returns a remark if the metrics are meaningless: no byte of any flow arrived in the measured time,
/// or no request was answered.
#[must_use]
pub fn nothing_measured(raw: &RawRepeat, timing: &Timing, variant: &Variant) -> Option<String> {
    // If no flow delivered a byte, the workload may still have measured fetches or probes.
    let is_silent = !raw.flows.is_empty()
        && evaluate::payload(raw) == 0
        && raw.fetches.is_empty()
        && raw.latency_us.is_empty();
    let probes = variant.tenants().is_some_and(|point| point.probes.is_some());
    let requests = || raw.clients.iter().flat_map(|group| &group.clients).flat_map(|client| &client.requests);
    let is_unanswered = probes && raw.latency_us.is_empty() && evaluate::payload(raw) == 0
        || !raw.clients.is_empty() && requests().all(|answered| *answered == 0) && raw.fetches.is_empty();
    let duration = timing.duration;
    if is_silent {
        return Some(format!(
            "{NOTHING_MEASURED}: none of {} flows delivered a byte in {duration}; measure for longer, or with fewer flows",
            raw.flows.len(),
        ));
    }
    is_unanswered.then(|| {
        format!(
            "{NOTHING_MEASURED}: no request was answered in {duration}; check that the limits and rates of the \
             setup let packets through"
        )
    })
}

/// Returns a note for each figure that the workload measures and a repeat lacks. Examples are the
/// latency of a probe without an answer, and the completion time of a size of which no fetch was
/// complete.
fn missing_figures(raw: &RawRepeat, timing: &Timing, scenario: &Scenario) -> Vec<String> {
    let mut missing = Vec::new();
    if let Some(probe) = &scenario.workload.latency
        && raw.latency_us.is_empty()
    {
        missing.push(format!(
            "no probe was answered in {}{LACKS_FIGURE}latency; set a longer workload.latency.duration",
            probe.duration
        ));
    }
    if let WorkloadKind::Fetch { clients } = &scenario.workload.kind {
        let sizes: BTreeSet<ByteSize> = clients
            .iter()
            .filter(|group| group.timed)
            .flat_map(|group| group.sizes.iter().copied())
            .collect();
        let is_missing = |size: &ByteSize| raw.fetches.iter().all(|fetch| fetch.size != *size);
        let sizes: Vec<String> = sizes.into_iter().filter(is_missing).map(|size| size.to_string()).collect();
        if !sizes.is_empty() {
            missing.push(format!(
                "no fetch of {} was complete in {}{LACKS_FIGURE}completion time of this size; set a longer \
                 measure.duration, or smaller sizes",
                list(sizes.iter().map(String::as_str)),
                timing.duration
            ));
        }
    }
    missing
}

/// Runs every job, concurrently if the world allows it. Reduces each result immediately, and passes the
/// reduced results to `take` in the order of the jobs.
fn run_all<W: World, R: Send>(
    world: &mut W,
    jobs: &[Job<'_>],
    repeats: u32,
    observer: &dyn Observer,
    reduce: impl Fn(&Job<'_>, RawRepeat, &dyn Observer) -> R + Sync,
    mut take: impl FnMut(usize, R),
) -> Result<(), W::Error> {
    let done = AtomicUsize::new(0);
    let part = |job: &Job<'_>| Part {
        whole: observer,
        done: &done,
        parts: jobs.len() as f64,
        name: format!("{} {}/{repeats}", job.variant.name, job.repeat + 1),
    };
    let Some(world) = world.concurrent() else {
        for (number, job) in jobs.iter().enumerate() {
            let part = part(job);
            take(number, reduce(job, world.repeat(job, &part)?, &part));
            done.fetch_add(1, Ordering::Relaxed);
        }
        return Ok(());
    };
    let work = |number: usize| {
        let begun = thread_cpu_seconds();
        let (job, part) = (&jobs[number], part(&jobs[number]));
        let result = world.repeat(job, &part).map(|mut raw| {
            if let Some(cost) = &mut raw.sim {
                cost.cpu_seconds = thread_cpu_seconds() - begun;
            }
            reduce(job, raw, &part)
        });
        // An interrupted repeat does not count as finished.
        if result.is_ok() {
            done.fetch_add(1, Ordering::Relaxed);
        }
        Some(result)
    };
    let mut early = BTreeMap::new();
    let mut wanted = 0;
    let largest = jobs.iter().map(|job| world.memory(job)).max().unwrap_or(0);
    let kept = jobs.iter().fold(0_u64, |sum, job| sum.saturating_add(world.kept(job)));
    in_parallel(at_a_time(jobs.len(), largest, kept), jobs.len(), work, |number, result| {
        early.insert(number, result?);
        while let Some(reduced) = early.remove(&wanted) {
            take(wanted, reduced);
            wanted += 1;
        }
        Ok(())
    })
}

fn thread_cpu_seconds() -> f64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_or(0.0, |time| Duration::from(time).as_secs_f64())
}

#[must_use]
pub fn summarise(raw: &RawRepeat, timing: &Timing, rate: BitRate, variant: &Variant) -> RepeatRecord {
    RepeatRecord {
        metrics: evaluate::metrics(raw, timing, rate, variant.tenants()),
        queues: raw.queues.clone(),
        flows: raw
            .flows
            .iter()
            .map(|flow| FlowRecord {
                name: flow.name.clone(),
                queue: flow.queue,
                bytes: flow.bytes.iter().sum(),
                packets: flow.packets.iter().sum(),
                payload_bytes: flow.payload_bytes,
                retransmits: flow.retransmits,
                out_of_order: flow.out_of_order,
            })
            .collect(),
        clients: requests::records(&raw.clients),
        tenants: raw.tenants.as_ref().map(|tenants| TenantsRecord {
            processes: tenants.processes.clone(),
            processors: tenants.processors.clone(),
            qdiscs: tenants.qdiscs.clone(),
        }),
        sim: raw.sim,
        datapath: raw.datapath,
        counters: raw.counters.clone(),
        series: None,
    }
}

fn write_series(writer: &Writer, series: &Series, observer: &dyn Observer) {
    // For a large number of flows, writing can take longer than the repeat, so report it.
    const LONG: Duration = Duration::from_secs(1);
    let began = Instant::now();
    writer.add(series, &mut |_| {
        if began.elapsed() > LONG {
            observer.progress(1.0, "writing the series");
        }
        !observer.interrupted()
    });
}

fn raw_series(variant: &str, repeat: u32, timing: &Timing, raw: RawRepeat) -> Series {
    Series {
        variant: variant.to_owned(),
        repeat: repeat as usize,
        bin_ns: timing.bin.as_u64(),
        flows: raw
            .flows
            .into_iter()
            .map(|flow| SeriesFlow {
                further: tcp_columns(&flow.tcp),
                name: flow.name,
                bytes: flow.bytes,
                packets: flow.packets,
            })
            .collect(),
    }
}

/// Returns the columns of a flow's TCP state; none if no TCP state was recorded.
fn tcp_columns(bins: &[RawTcp]) -> Vec<SeriesColumn> {
    if bins.is_empty() {
        return Vec::new();
    }
    let column = |(name, value): TcpColumn| SeriesColumn {
        name: name.to_owned(),
        values: bins.iter().map(value).collect(),
    };
    RawTcp::COLUMNS.into_iter().map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_all_variants_share_is_said_once() {
        let refusal = |name: &str, why: &str| Refusal { name: name.to_owned(), why: why.to_owned() };
        assert_eq!(reasons(&[refusal("a", "no switch"), refusal("b", "no switch")]), "no switch");
        assert_eq!(reasons(&[refusal("a", "no switch"), refusal("b", "no BPF")]), "a: no switch; b: no BPF");
        assert_eq!(reasons(&[]), "");
    }
}
