//! Runs scenarios in the simulator.

use std::collections::BTreeMap;

use evenkeel_model::record::{QueueRecord, SimCost};
use evenkeel_model::scenario::{Scenario, Variant, WorkloadKind};
use evenkeel_model::soft_nic;
use evenkeel_model::units::{BitRate, ByteSize};
use evenkeel_model::world::{
    Assessment, ConcurrentWorld, Job, Observer, RawFetch, RawFlow, RawRepeat, World,
};

use crate::costs::processes::Machine;
use crate::engine::{self, Part};
pub use crate::error::SimError;
use crate::host::Simulation;
pub use crate::memory::{Memory, check_memory, of_repeat as memory};
use crate::parameters::Parameters;
use crate::settings::Settings;
use crate::tcp::{CongestionControl, Profile};
use crate::tenants;
use crate::time::{MILLISECOND, SECOND, Time, span_of};

/// Flows start within this time, before the first flow has filled a queue. A later flow would include
/// the queueing delay of other flows in its minimum RTT, and its segments would stay small. The test
/// bed uses the same time.
const STARTS_WITHIN: u64 = MILLISECOND / 50;

#[derive(Clone, Debug, Default)]
pub struct SimWorld {
    parameters: Parameters,
    /// Number of processors of the simulated test bed. `None` if the simulator does not simulate a test
    /// bed.
    test_bed: Option<u32>,
    exact: bool,
}

impl SimWorld {
    /// Creates the simulator with a kernel profile. All other parameters have their documented values.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self { parameters: Parameters { profile, ..Parameters::default() }, test_bed: None, exact: false }
    }

    /// Creates the simulator of the test bed: its soft NIC, on a machine with this many processors.
    #[must_use]
    pub fn of_test_bed(profile: Profile, processors: u32) -> Self {
        let Self { parameters, .. } = Self::new(profile);
        Self { parameters: parameters.on_test_bed(processors), test_bed: Some(processors), exact: false }
    }

    /// Sets whether the NIC computes each packet in a separate step. This is slower, gives the same
    /// result, and checks the closed form.
    #[must_use]
    pub fn exact(self, exact: bool) -> Self {
        Self { exact, ..self }
    }

    /// Returns the machine of tenants: the test bed's machine, by default with two processors.
    fn machine(&self) -> Machine {
        Machine::epyc_vm(self.test_bed.unwrap_or(2))
    }

    fn settings(&self, scenario: &Scenario, variant: &Variant, rate: BitRate) -> Settings {
        let settings =
            Settings { exact: self.exact, ..Settings::new(scenario, variant, rate, &self.parameters) };
        match self.test_bed {
            Some(processors) => settings.on_test_bed(processors),
            None => settings,
        }
    }

    fn parameters(&self, scenario: &Scenario) -> Parameters {
        match (scenario.link.receive_queues, self.test_bed) {
            (Some(receive_queues), None) => Parameters { receive_queues, ..self.parameters.clone() },
            _ => self.parameters.clone(),
        }
    }

    fn simulate(&self, job: &Job<'_>, observer: &dyn Observer) -> Result<RawRepeat, SimError> {
        check_memory(job.scenario, job.variant, job.duration, job.bin)?;
        if let Some(requests) = job.scenario.workload.requests() {
            return crate::receive::run(job, requests, observer);
        }
        if let Some(point) = job.variant.tenants() {
            return tenants::run(job, point, self.parameters.profile, &self.machine(), observer);
        }
        if let Some(transfers) = job.variant.transfers() {
            return crate::transfers::run(job, transfers, self.parameters.profile, observer);
        }
        let settings = self.settings(job.scenario, job.variant, job.rate);
        let parameters = self.parameters(job.scenario);
        if let Some(bytes) = job.scenario.workload.shuffled_bytes() {
            return crate::network::shuffle::run(job, bytes, &settings, &parameters, observer);
        }
        let (begin, bin) = (Time(span_of(job.warmup)), span_of(job.bin));
        let end = begin + span_of(job.duration);
        // Flows of clients that fetch values are not always backlogged, so the run has no fairness
        // windows and no bins.
        let fetching = !settings.clients.is_empty();
        let (count_from, bins) = if fetching {
            (Time::NEVER, 0)
        } else {
            (begin, (job.duration.as_u64() / job.bin.as_u64().max(1)) as usize)
        };
        engine::set_up(observer)?;
        let failed = |source| SimError::Failed { variant: job.variant.name.clone(), seed: job.seed, source };
        let mut simulation =
            Simulation::new(settings, parameters, job.seed, count_from, bin, bins).map_err(failed)?;
        if fetching {
            simulation.start_fetches(job.seed, STARTS_WITHIN);
        } else {
            simulation.start(job.seed, STARTS_WITHIN);
        }
        let run = |simulation: &mut Simulation, until: Time| simulation.run(until).map_err(failed);
        let warm_up = Time::ZERO..begin;
        engine::run_part(Part::WarmUp, warm_up, observer, |until| run(&mut simulation, until))?;
        let before = simulation.snapshot();
        // Discard the values that were complete before the measurement.
        drop(simulation.take_fetched());
        engine::run_part(Part::Measurement, begin..end, observer, |until| run(&mut simulation, until))?;
        let after = simulation.snapshot();
        // All other figures exclude the work and the queueing of the probe (Titan, section 5: latency
        // is measured in separate experiments).
        let mut stop = end;
        if let Some(probe) = &job.scenario.workload.latency {
            simulation.start_probe();
            stop += span_of(probe.duration);
            engine::run_part(Part::Probe, end..stop, observer, |until| run(&mut simulation, until))?;
        }

        let mut raw = RawRepeat {
            // The test bed's processors do the work of both hosts and of the programs, but the
            // simulator models only the sender's work.
            busy_cores: self
                .test_bed
                .is_none()
                .then(|| after.busy.saturating_sub(before.busy) as f64 / end.since(begin) as f64),
            latency_us: simulation.take_latencies(),
            fetches: simulation
                .take_fetched()
                .into_iter()
                .map(|fetched| RawFetch {
                    size: ByteSize::from_bytes(fetched.bytes),
                    completion_s: fetched.took as f64 / SECOND as f64,
                })
                .collect(),
            retransmits: Some(after.retransmits - before.retransmits),
            sim: Some(SimCost {
                packets: simulation.observation.packets,
                simulated_s: stop.seconds(),
                cpu_seconds: 0.0,
            }),
            queues: before
                .queue_bytes
                .iter()
                .zip(&after.queue_bytes)
                .enumerate()
                .map(|(queue, (before, after))| QueueRecord {
                    flows: simulation.flows_on(queue as u32),
                    bytes: after - before,
                })
                .collect(),
            ..RawRepeat::default()
        };
        raw.counters.extend(
            [
                ("queue_drops", after.drops - before.drops),
                ("weight_writes", after.weight_writes - before.weight_writes),
            ]
            .map(|(name, value)| (name.to_owned(), value as f64)),
        );
        let facts: Vec<(u32, u64, u64, u64)> = (0..after.flows.len())
            .map(|flow| {
                let then = before.flows[flow];
                let now = after.flows[flow];
                (simulation.queue_of(flow), now.0 - then.0, now.1 - then.1, now.2 - then.2)
            })
            .collect();
        raw.flows = simulation
            .observation
            .into_flows()
            .into_iter()
            .zip(facts)
            .enumerate()
            .map(|(number, (series, (queue, payload, retransmits, out_of_order)))| RawFlow {
                tcp: Vec::new(),
                name: format!("flow-{number}"),
                weight: 1.0,
                queue: Some(queue),
                backlogged: std::iter::once(0..series.bytes.len()).collect(),
                bytes: series.bytes,
                packets: series.packets,
                payload_bytes: payload,
                retransmits: Some(retransmits),
                out_of_order: Some(out_of_order),
                completion_s: None,
            })
            .collect();
        Ok(raw)
    }
}

/// Returns notes for readers of a simulated test bed's results, or the reason why the test bed does not
/// support the variant.
fn notes_of_test_bed(scenario: &Scenario, variant: &Variant) -> Result<Vec<String>, String> {
    if scenario.workload.shuffled_bytes().is_some() {
        return Err(
            "a test bed cannot run a shuffle: it has two hosts, one direction and no switch; run the \
             scenario without --nic soft"
                .to_owned(),
        );
    }
    if scenario.workload.requests().is_some() {
        return Err(
            "a soft NIC has no filters for receive queues; run the scenario without --nic soft".to_owned()
        );
    }
    if variant.transfers().is_some() {
        return Err("a test bed's hosts share one machine's processors; run the scenario without --nic soft"
            .to_owned());
    }
    if !scenario.workload.clients().is_empty() {
        return Err(
            "a test bed has no server and clients that fetch values from it; run the scenario without --nic \
             soft"
                .to_owned(),
        );
    }
    if !scenario.link.priorities.is_empty() {
        return Err(
            "a soft NIC has no priorities with queues of their own; run the scenario without --nic soft"
                .to_owned(),
        );
    }
    let knobs = variant.knobs();
    if knobs.queue_weights || knobs.segment_size.is_some() {
        return Err(
            "a simulated soft NIC has no queue weights and no segment sizing yet; run the scenario on the \
             real test bed (--on netns), or without --nic soft"
                .to_owned(),
        );
    }
    let mut notes: Vec<String> = soft_nic::lacking(knobs, false).into_iter().collect();
    if knobs.tcp_small_queues.is_none() {
        notes.push("TCP small queues are off here, which the real test bed's kernel cannot do".to_owned());
    }
    if knobs.xps_pool.is_some() {
        notes.push(format!("XPS as {} pools, as on the real test bed", soft_nic::XPS_POOLS));
    }
    notes.push("a simulated test bed: soft NIC, exact timers; its CPU use is not simulated".to_owned());
    Ok(notes)
}

fn named(settings: Vec<(&'static str, String)>) -> BTreeMap<String, String> {
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

impl World for SimWorld {
    type Error = SimError;

    fn name(&self) -> &'static str {
        "sim"
    }

    fn kernel(&self) -> String {
        match self.parameters.profile {
            Profile::Linux4_4 => "4.4",
            Profile::Linux6_18 => "6.18",
        }
        .to_owned()
    }

    fn facts(&self) -> BTreeMap<String, String> {
        let nic = match self.test_bed {
            Some(processors) => format!("soft, on {processors} processors"),
            None => "hardware".to_owned(),
        };
        BTreeMap::from([
            ("profile".to_owned(), self.kernel()),
            ("nic".to_owned(), nic),
            ("parameters".to_owned(), self.parameters.words()),
        ])
    }

    fn assess(&self, scenario: &Scenario, variant: &Variant) -> Result<Assessment, String> {
        if variant.knobs().service_balancing {
            return Err(
                "service balancing reads the state of a kernel's sockets, which is not simulated; run the \
                 scenario with --on netns --topology mq"
                    .to_owned(),
            );
        }
        if let Some(point) = variant.tenants() {
            return tenants::assess(scenario, point, self.parameters.profile, &self.machine());
        }
        let notes = match self.test_bed {
            Some(_) => notes_of_test_bed(scenario, variant)?,
            None => Vec::new(),
        };
        if let Some(requests) = scenario.workload.requests() {
            crate::receive::assess(scenario, variant, requests)?;
            return Ok(Assessment { settings: named(variant.settings()), notes });
        }
        if let Some(transfers) = variant.transfers() {
            let notes = [notes, crate::transfers::assess(transfers, scenario.link.rate)?].concat();
            return Ok(Assessment { settings: named(variant.settings()), notes });
        }
        let knobs = self.settings(scenario, variant, scenario.link.rate).knobs(variant.knobs());
        let mut settings = named(knobs.settings());
        settings.insert("exact".to_owned(), self.exact.to_string());
        Ok(Assessment { settings, notes })
    }

    fn settle_rate(
        &mut self,
        scenario: &Scenario,
        wanted: Option<BitRate>,
        _observer: &dyn Observer,
    ) -> Result<BitRate, SimError> {
        let control = scenario.workload.congestion_control.as_str();
        // Only transfers support a congestion control that paces. In other workloads, the hosts leave
        // pacing to the qdisc.
        let is_paced = CongestionControl::named(control).is_none_or(CongestionControl::paces);
        if is_paced && !matches!(scenario.workload.kind, WorkloadKind::Transfers) {
            return Err(SimError::Setting {
                key: "workload.congestion-control",
                problem: format!(
                    "this workload cannot use {control} in the simulator; use cubic, reno, dctcp or lola"
                ),
            });
        }
        let rate = wanted.unwrap_or(scenario.link.rate);
        if rate.bits_per_second() == 0 || rate.bits_per_second() > 8 * SECOND {
            return Err(SimError::Unable(format!("the simulator cannot simulate a rate of {rate}")));
        }
        Ok(rate)
    }

    fn repeat(&mut self, job: &Job<'_>, observer: &dyn Observer) -> Result<RawRepeat, SimError> {
        self.simulate(job, observer)
    }

    fn concurrent(&self) -> Option<&dyn ConcurrentWorld<Error = SimError>> {
        Some(self)
    }
}

impl ConcurrentWorld for SimWorld {
    type Error = SimError;

    fn memory(&self, job: &Job<'_>) -> u64 {
        memory(job.scenario, job.variant, job.duration, job.bin).running
    }

    fn kept(&self, job: &Job<'_>) -> u64 {
        memory(job.scenario, job.variant, job.duration, job.bin).kept
    }

    fn repeat(&self, job: &Job<'_>, observer: &dyn Observer) -> Result<RawRepeat, SimError> {
        self.simulate(job, observer)
    }
}
