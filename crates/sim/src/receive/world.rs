//! Runs one repeat of a scenario with requests in the simulator.

use evenkeel_model::record::{QueueRecord, SimCost};
use evenkeel_model::scenario::{ReceiveKnobs, Requests, Scenario, Variant};
use evenkeel_model::units::Nanoseconds;
use evenkeel_model::world::{Job, Observer, RawClient, RawClients, RawRepeat};
use evenkeel_receive::search::SearchError;

use super::simulation::{RequestsError, Setting};
use super::{ClientSpec, ReceiveSimulation};
use crate::costs::queue_pairs::ReceiveCosts;
use crate::engine::{self, Part};
use crate::error::SimError;
use crate::time::{NANOSECOND, Time, span_of};

/// Returns the clients of a variant. Each group is spread over the hosts, and begins at the host after the
/// last host of the previous group.
fn clients_of(requests: &Requests, variant: &str, begin: Time) -> Vec<ClientSpec> {
    let mut clients = Vec::new();
    for (group, described) in requests.clients_with(variant).enumerate() {
        let from = described.from.as_u64();
        let start = if from == 0 { Time::ZERO } else { begin + span_of(described.from) };
        let until =
            described.stay.map_or(Time::NEVER, |stay| begin + span_of(described.from) + span_of(stay));
        for _ in 0..described.count {
            clients.push(ClientSpec {
                group,
                host: clients.len() as u32 % requests.client_hosts,
                flows: described.flows,
                outstanding: described.outstanding,
                high_priority: described.high_priority,
                from: start,
                until,
            });
        }
    }
    clients
}

pub(crate) fn assess(scenario: &Scenario, variant: &Variant, requests: &Requests) -> Result<(), String> {
    let knobs = variant.receive().ok_or("the variant has no setting that assigns flows to receive queues")?;
    if requests.clients_with(&variant.name).next().is_none() {
        return Err("the variant has no clients; see 'variants' of workload.clients".to_owned());
    }
    super::steering::Steering::new(knobs, scenario.link.queues)?;
    Ok(())
}

/// Converts an error of a repeat. A policy's script is part of the scenario, so its failure is an input
/// error. [`assess`] does not detect the failure, because the script runs only with flows.
fn failed(job: &Job<'_>, knobs: &ReceiveKnobs, error: RequestsError) -> SimError {
    let name = &job.variant.name;
    match error {
        RequestsError::Search(error @ SearchError::Script(_)) => SimError::Input {
            key: knobs.policy.own().map(|own| own.origin.clone()).unwrap_or_default(),
            problem: format!("{name}: {error}"),
        },
        RequestsError::Search(error) => SimError::Unable(format!("{name}: {error}")),
        RequestsError::Simulation(source) => {
            SimError::Failed { variant: name.clone(), seed: job.seed, source }
        }
    }
}

pub(crate) fn run(
    job: &Job<'_>,
    requests: &Requests,
    observer: &dyn Observer,
) -> Result<RawRepeat, SimError> {
    let unable = |why: String| SimError::Unable(format!("{}: {why}", job.variant.name));
    let knobs = job.variant.receive();
    let knobs = knobs.ok_or_else(|| {
        unable("the variant has no setting that assigns flows to receive queues".to_owned())
    })?;
    let begin = Time(span_of(job.warmup));
    let end = begin + span_of(job.duration);
    let groups: Vec<_> = requests.clients_with(&job.variant.name).collect();
    let setting = Setting {
        knobs,
        queues: job.scenario.link.queues,
        rate: job.rate,
        server: requests.server,
        set_percent: requests.set_percent,
        timeout: requests.timeout.map(span_of),
        groups: groups.len(),
        measured: begin..end,
    };
    let clients = clients_of(requests, &job.variant.name, begin);
    let mut simulation =
        ReceiveSimulation::new(&setting, clients, ReceiveCosts::DRAGONET, job.seed).map_err(unable)?;
    engine::run_part(Part::WarmUp, Time::ZERO..begin, observer, |until| {
        simulation.run(until).map_err(|error| failed(job, knobs, error))
    })?;
    let before: Vec<u64> = simulation.queues().map(|(_, bytes)| bytes).collect();
    engine::run_part(Part::Measurement, begin..end, observer, |until| {
        simulation.run(until).map_err(|error| failed(job, knobs, error))
    })?;

    let mut raw = RawRepeat {
        queues: simulation
            .queues()
            .zip(&before)
            .map(|((flows, bytes), before)| QueueRecord { flows, bytes: bytes - before })
            .collect(),
        clients: groups
            .iter()
            .enumerate()
            .map(|(number, group)| RawClients {
                name: group.name.clone(),
                clients: simulation
                    .clients()
                    .filter(|(spec, ..)| spec.group == number)
                    .map(|(spec, requests, response_ns, payload_bytes)| {
                        let present = spec.until.min(end).since(spec.from.max(begin));
                        RawClient {
                            present: Nanoseconds::new(present / NANOSECOND),
                            requests: requests.to_vec(),
                            response_ns: response_ns.to_vec(),
                            payload_bytes,
                        }
                    })
                    .collect(),
                responses: simulation
                    .responses(number)
                    .map(|(length, count)| (Nanoseconds::new(length), count))
                    .collect(),
            })
            .collect(),
        busy_cores: Some(simulation.busy_cores()),
        ..RawRepeat::default()
    };
    let account = simulation.account();
    let (filters, misplaced) = simulation.configuration();
    let answered: u64 = simulation.clients().map(|(_, requests, ..)| requests.iter().sum::<u64>()).sum();
    raw.sim = Some(SimCost { packets: answered, simulated_s: end.seconds(), cpu_seconds: 0.0 });
    raw.counters.extend(
        [
            ("filters", filters as u64),
            ("misplaced_flows", misplaced),
            ("requests_lost", account.lost),
            ("requests_given_up", account.given_up),
        ]
        .map(|(name, value)| (name.to_owned(), value as f64)),
    );
    if account.lost > 0 {
        raw.notes.push(
            "requests were lost at full receive rings (requests_lost): without a timeout, clients wait for them forever"
                .to_owned(),
        );
    }
    Ok(raw)
}
