//! Shared code of the benchmarks: runs variants with transfers in the simulator, with any machine.
//!
//! The results are those of `evenkeel run SCENARIO --on sim` with equal seeds and durations.

#![allow(dead_code)]

use std::error::Error;

use evenkeel_experiment::{at_a_time, in_parallel};
use evenkeel_model::scenario::bundled::{bundled, variant_tables};
use evenkeel_model::scenario::parse;
use evenkeel_sim::error::SimulationError;
use evenkeel_sim::tcp::{CongestionControl, Profile};
use evenkeel_sim::time::{SECOND, Span, Time, span_of};
use evenkeel_sim::transfers::settings::Settings;
use evenkeel_sim::transfers::simulation::Simulation;
use serde::{Deserialize, Serialize};

/// Estimated memory of a simulation, bytes: windows of many MB need tens of MB.
const MEMORY: u64 = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// TCP payload, Gbit/s.
    Throughput,
    /// TCP payload divided by the number of busy cores of the receiving hosts, Gbit/s.
    PerCore,
    /// Retransmitted segments per second.
    Retransmissions,
    /// Retransmission events per second. An event is a retransmission of a flow with all further ones in the
    /// next 100 ms.
    Events,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub throughput: f64,
    pub per_core: f64,
    pub retransmissions: f64,
    pub events: f64,
}

impl Outcome {
    #[must_use]
    pub fn get(&self, figure: Figure) -> f64 {
        match figure {
            Figure::Throughput => self.throughput,
            Figure::PerCore => self.per_core,
            Figure::Retransmissions => self.retransmissions,
            Figure::Events => self.events,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub warmup: Span,
    pub measured: Span,
}

/// Returns the settings of a variant of a bundled scenario, and the scenario's times.
pub fn settings(scenario: &str, variant: &str) -> Result<(Settings, Times), Box<dyn Error>> {
    let (_, text) = bundled()
        .iter()
        .find(|(known, _)| *known == scenario)
        .ok_or_else(|| format!("no scenario {scenario}"))?;
    let parsed = parse(text, scenario, variant_tables())?;
    let found = parsed.all_variants().find(|found| found.name == variant);
    let knobs = found.and_then(|found| found.transfers());
    let knobs = knobs.ok_or_else(|| format!("{scenario} has no variant {variant} with transfers"))?;
    let times =
        Times { warmup: span_of(parsed.measure.warmup), measured: span_of(parsed.measure.duration()) };
    let control = vec![CongestionControl::Cubic];
    Ok((Settings::new(knobs, parsed.link.rate, control, Profile::Linux6_18)?, times))
}

pub fn run(settings: Settings, seed: u64, times: Times) -> Result<Outcome, SimulationError> {
    let begin = Time(times.warmup);
    let mut simulation = Simulation::new(settings, seed, begin, SECOND, 0);
    simulation.run(begin)?;
    let before = simulation.snapshot();
    simulation.run(begin + times.measured)?;
    let after = simulation.snapshot();
    let growth = |after: &[u64], before: &[u64]| {
        after.iter().zip(before).map(|(after, before)| after - before).sum::<u64>() as f64
    };
    let seconds = times.measured as f64 / SECOND as f64;
    let throughput = growth(&after.read, &before.read) * 8.0 / 1e9 / seconds;
    let cores = growth(&after.busy, &before.busy) / times.measured as f64;
    Ok(Outcome {
        throughput,
        per_core: if cores > 0.0 { throughput / cores } else { 0.0 },
        retransmissions: growth(&after.retransmitted, &before.retransmitted) / seconds,
        events: growth(&after.events, &before.events) / seconds,
    })
}

/// Runs jobs in parallel, as many as the CPUs and the memory allow, with progress on stderr. Returns their
/// results in the order of the jobs, or the error of a job.
pub fn on_every_processor<R: Send>(
    jobs: usize,
    what: &str,
    work: impl Fn(usize) -> Result<R, SimulationError> + Sync,
) -> Result<Vec<R>, SimulationError> {
    let mut results: Vec<Option<R>> = std::iter::repeat_with(|| None).take(jobs).collect();
    let (mut done, mut shown) = (0, 0);
    in_parallel(
        at_a_time(jobs, MEMORY, 0),
        jobs,
        |job| Some(work(job)),
        |job, result| {
            results[job] = Some(result?);
            done += 1;
            let percent = 100 * done / jobs;
            if percent >= shown + 5 {
                shown = percent;
                eprintln!("{what}: {done} of {jobs} runs");
            }
            Ok::<(), SimulationError>(())
        },
    )?;
    Ok(results.into_iter().flatten().collect())
}

#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[must_use]
pub fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len().max(2) - 1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn jobs_keep_their_order() {
        let squares = on_every_processor(9, "squares", |job| Ok(job * job)).unwrap();
        assert_eq!(squares, [0, 1, 4, 9, 16, 25, 36, 49, 64]);
    }

    #[test]
    fn a_sample_has_mean_and_deviation() {
        assert_eq!((mean(&[1.0, 3.0]), deviation(&[1.0, 3.0])), (2.0, 2.0_f64.sqrt()));
        assert_eq!(deviation(&[5.0]), 0.0);
    }
}
