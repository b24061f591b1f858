//! A session: devices under management, from the first change to the last undo.

use std::collections::BTreeMap;
use std::fmt;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_apply::{Leftover, Report, Run, StateDirectory};
use evenkeel_control::{ControlOptions, Controller};
use evenkeel_datapath::{BatchCounters, Completion, Counters, QueueSelect, Rule, SelectOptions, Steering};
use evenkeel_host::{Capability, Sysfs};
use evenkeel_netlink::Netlink;
use evenkeel_transmit::Policy;
use serde::Serialize;

use crate::batching::Leaves;
use crate::device::Device;
use crate::error::FairError;
use crate::flows::{QueueCounters, Sampler};
use crate::gate::JournalGate;
use crate::preflight::{CAPABILITIES, Planned, Preflight};
use crate::proof::{Proof, Verdict};
use crate::queue_weights::Backend;
use crate::segments::{self, Wanted};
use crate::soft_nic;
use crate::watch::Watched;

/// Why a session cannot go on: somebody changed what it rests on, and what they set stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandBack {
    /// The device.
    pub device: String,
    /// What has happened.
    pub reason: String,
}

impl fmt::Display for StandBack {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.device, self.reason)
    }
}

/// What a device under management is doing.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Its driver; none if that does not tell.
    pub driver: Option<String>,
    /// Who tells that a flow's last segment has left.
    pub completion: String,
    /// Sum of the weights of the flows that have something outstanding, by queue.
    pub weights: Vec<u32>,
    /// Flows that are tracked.
    pub flows: usize,
    /// Of the flows that have something outstanding, those that share their queue.
    pub colliding_flows: usize,
    /// Times that a flow with nothing outstanding was given a queue.
    pub picks: u64,
    /// Of these, another queue than before.
    pub moves: u64,
    /// Segments without a full socket (forwarded, from containers): hashed.
    pub segments_without_socket: u64,
    /// Segments of flows for which the table of flows had no place: hashed, as without this choice.
    pub untracked: u64,
    /// Short flows with nothing outstanding that gave their place to new ones, because the table was full.
    pub evicted: u64,
    /// What serves the queues by weight: `none`, `htb`, `net-shaper`, `max-rate`.
    pub queue_weights: &'static str,
    /// Times that queue weights were set.
    pub weight_updates: u64,
    /// Of these, those in which a weight was cut at what the back end takes.
    pub weights_cut: u64,
    /// Times that the segment size was changed.
    pub segment_changes: u64,
    /// Service balancing; none where it is off.
    pub balance: Option<BalanceStatus>,
    /// Transmit batching; none where it is off.
    pub batching: Option<BatchingStatus>,
    /// What to do about flows that share queues, while there are some and nothing serves the queues by weight.
    pub advice: Option<String>,
    /// Whether the device's own counters follow the choices, in words.
    pub proof: String,
}

/// What service balancing has done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BalanceStatus {
    /// Moves that were begun.
    pub wanted: u64,
    /// Of these, moves after which the flow sent on its new queue.
    pub done: u64,
    /// Of these, moves that took too long and were given up.
    pub expired: u64,
    /// Moves after which the flow was found on its old queue all the same: something overrules the choice.
    pub overruled: u64,
    /// Mean time for which a flow was held back, ms.
    pub mean_hold_ms: f64,
}

/// What transmit batching has done, at all queues of a device together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BatchingStatus {
    /// Segments that came into an empty queue and were held for others.
    pub held: u64,
    /// Of these, those that had company when they left.
    pub batches: u64,
    /// Segments dropped: the queue was full, or the kernel had no memory.
    pub dropped: u64,
}

/// How the management of a device ended.
#[derive(Debug)]
pub struct Ended {
    /// The last that was seen of it.
    pub status: Status,
    /// What became of its settings.
    pub report: Report,
}

/// Keeps the capabilities that a session or an observer needs once it has begun, and gives up all others of this thread:
/// [`CAPABILITIES`]. Where `/sys` is another namespace's, a guardian that is started in place of one that died has to
/// mount its own: then `CAP_SYS_ADMIN` stays.
///
/// # Errors
/// When the kernel refuses.
pub fn give_up_privileges() -> Result<(), FairError> {
    let mut kept = CAPABILITIES.to_vec();
    if !Sysfs::mounted_is_own()? {
        kept.push(Capability::SysAdmin);
    }
    evenkeel_apply::privileges::keep_only(&kept).map_err(FairError::Privileges)
}

/// Devices under management. Dropping it puts everything back.
pub struct Session {
    managed: Vec<Managed>,
}

/// Fields are dropped in this order: whoever changes settings goes before they come back, and the choice last.
struct Managed {
    controller: Option<Controller>,
    /// A loop that has not begun yet.
    pending: Option<ControlOptions>,
    gate: Arc<JournalGate>,
    /// Flows take turns on the queues that they share.
    balances: bool,
    run: Run,
    /// Registered until the run has put the old root back.
    leaves: Option<Leaves>,
    select: QueueSelect,
    sampler: Option<Sampler>,
    proof: Proof,
    sampled: Option<Instant>,
    watched: Watched,
    backend: Backend,
    device: Device,
}

/// Between two samples of the proof.
const PROOF_INTERVAL: Duration = Duration::from_secs(1);
/// Smallest time of silence after which a flow is released by age, where its socket cannot be looked at, ns.
const AGEING_FLOOR_NS: u64 = 200_000_000;

impl Session {
    /// Begins to manage the devices of a preflight, in the calling thread's network namespace: what a run that
    /// died left is put back first and returned.
    ///
    /// `guardian` makes the command of a guardian process (see [`evenkeel_apply::guardian`]), or none to do
    /// without.
    ///
    /// # Errors
    /// When a device is taken already, or the kernel refuses; what had been changed is put back.
    pub fn start(
        preflight: &Preflight,
        state: &StateDirectory,
        guardian: Box<dyn Fn() -> Option<Command>>,
    ) -> Result<(Self, Vec<Leftover>), FairError> {
        let mut leftovers = Vec::new();
        let mut runs = BTreeMap::new();
        for Planned { device, .. } in &preflight.devices {
            let (run, leftover) = Run::begin(state, device.index, &device.name, "fair", guardian())?;
            leftovers.extend(leftover);
            runs.insert(device.index, run);
        }
        // What was found may have been what a run that died had made of it.
        let again;
        let preflight = if leftovers.is_empty() {
            preflight
        } else {
            again = Preflight::of(&preflight.interface, preflight.request)?;
            &again
        };
        let mut managed = Vec::new();
        for planned in &preflight.devices {
            if let Some(run) = runs.remove(&planned.device.index) {
                managed.push(Managed::start(run, planned, preflight)?);
            }
        }
        Ok((Self { managed }, leftovers))
    }

    /// Starts the loops that follow the flows, each on a thread of its own. Apart from [`Self::start`], so that a process
    /// can give up privileges before: threads have the privileges of the one that starts them.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start_loops(&mut self) -> Result<(), FairError> {
        for managed in &mut self.managed {
            if let Some(options) = managed.pending.take() {
                managed.controller = Some(Controller::start(options)?);
            }
        }
        Ok(())
    }

    /// To be called several times a second: looks whether everything is as it should be, and says why not.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn tick(&mut self) -> Result<Option<StandBack>, FairError> {
        for managed in &mut self.managed {
            if let Some(reason) = managed.check()? {
                return Ok(Some(StandBack { device: managed.device.name.clone(), reason }));
            }
        }
        Ok(None)
    }

    /// Gives flows their weights, on every device; running flows follow with their next segment.
    ///
    /// # Errors
    /// When there are too many rules.
    pub fn set_flow_weights(&self, rules: &[Rule]) -> Result<(), FairError> {
        for managed in &self.managed {
            managed.select.set_rules(rules)?;
        }
        Ok(())
    }

    /// What the devices are doing.
    #[must_use]
    pub fn status(&self) -> Vec<Status> {
        self.managed.iter().map(Managed::status).collect()
    }

    /// Puts every setting back and detaches the programs.
    ///
    /// # Errors
    /// When a journal cannot be removed.
    pub fn finish(self) -> Result<Vec<Ended>, FairError> {
        self.managed
            .into_iter()
            .map(|managed| {
                let status = managed.status();
                let Managed { controller, gate, select, sampler, leaves, mut run, .. } = managed;
                // Its end is all that matters: what it has set, the journal puts back.
                let _ = controller.map(Controller::stop);
                drop(gate.stop(&mut run));
                let report = run.restore();
                // Detached before the end is waited for: a guardian that was stopped takes its time.
                drop((select, sampler, leaves));
                let last = run.finish()?;
                // What could not be put back the first time may have been by now, or still stands in the journal.
                Ok(Ended { status, report: if report.is_settled() { report } else { last } })
            })
            .collect()
    }
}

impl Managed {
    fn start(mut run: Run, planned: &Planned, preflight: &Preflight) -> Result<Self, FairError> {
        let device = planned.device.clone();
        let backend = planned.backend;
        let (steering, queues, counters) = match backend {
            Backend::SoftNic(_) => {
                let soft_nic = planned.soft_nic;
                let steering = Steering::Class(soft_nic.first_class());
                (steering, soft_nic::QUEUES, QueueCounters::Classes(soft_nic))
            }
            Backend::None | Backend::NetShaper | Backend::MaxRate(_) => {
                (Steering::Queue, device.queues, QueueCounters::of(&device))
            }
        };
        // The root is ours then, and counts by queue whatever stood there.
        let counters = planned.batching.map_or(counters, |batching| QueueCounters::Mq(batching.major()));
        let rate_bps = backend.rate_bps().or(device.speed_bps);
        let mut select = QueueSelect::load(&SelectOptions {
            policy: Policy::Dqa,
            steering,
            completion: Completion::Sockets,
            queues,
            pools: planned.pools.clone(),
            rate_bps: rate_bps.unwrap_or(device.rate_bps()),
            ageing_floor_ns: AGEING_FLOOR_NS,
            movable: planned.balance,
            ..SelectOptions::default()
        })?;
        // Before any queue of the device is given up: flows that the kernel hashes meanwhile would stay where
        // it put them. A class that is not there yet is the default one.
        select.attach(device.index.cast_signed())?;
        // Also before anything is changed, because it may be refused.
        let balance = preflight.request.balance.start(planned.balance, &device, &select)?;
        let leaves = planned.batching.map(|batching| batching.register()).transpose()?;
        for change in &planned.changes {
            run.change(change)?;
        }
        if let Some(leaves) = &leaves {
            leaves.put(&mut run, &mut Netlink::open()?, &device)?;
        }
        let gate = JournalGate::new();
        let weights = match backend {
            Backend::SoftNic(rate) => {
                let queues = planned.soft_nic.build(&mut Netlink::open()?, device.index, rate)?;
                gate.admit_classes(&run);
                let flow_weights = preflight.request.flow_weights;
                Some(soft_nic::weights(queues, device.index, flow_weights, gate.clone())?)
            }
            Backend::None | Backend::NetShaper | Backend::MaxRate(_) => {
                backend.weights(&device, &mut run, &gate)?
            }
        };
        let counts = counters != QueueCounters::None;
        // It costs something per packet, and goes once it has shown what it can.
        let sampler = if counts { Some(Sampler::attach(&device, queues, counters)?) } else { None };
        let mut watched = Watched::new(&device)?;
        if let Some(sampler) = &sampler {
            watched.overlook(sampler.program()?);
        }
        if let Some(leaves) = &leaves {
            watched.expect(leaves.expected());
        }
        let proof = Proof::new(counts);
        let wanted = Wanted {
            segments: preflight.request.segments,
            weights,
            balance,
            rate_bps,
            alone: preflight.devices.len() == 1,
        };
        let balances = wanted.balance.is_some();
        let pending = segments::prepare(wanted, &mut run, &gate, &device, &select)?;
        Ok(Self {
            controller: None,
            pending,
            gate,
            balances,
            leaves,
            select,
            sampler,
            proof,
            sampled: None,
            watched,
            backend,
            device,
            run,
        })
    }

    /// Why the session has to stand back from this device, if it has to.
    fn check(&mut self) -> Result<Option<String>, FairError> {
        // First, because everything else of a device that is gone cannot be read.
        if let Some(difference) = self.watched.device_difference()? {
            return Ok(Some(difference));
        }
        let stopped = self.gate.stop(&mut self.run);
        let disturbances = self.run.disturbances()?;
        drop(stopped);
        if let Some(disturbance) = disturbances.first() {
            return Ok(Some(disturbance.to_string()));
        }
        if let Some(failure) = self.controller.as_ref().and_then(Controller::failure) {
            return Ok(Some(failure.to_string()));
        }
        if let Some(difference) = self.watched.difference()? {
            return Ok(Some(difference));
        }
        self.prove()?;
        match self.proof.verdict() {
            verdict @ Verdict::Overruled(_) => Ok(Some(format!(
                "the driver ({}) picks the queues by itself: {verdict}",
                self.device.driver_name()
            ))),
            _ => Ok(None),
        }
    }

    fn prove(&mut self) -> Result<(), FairError> {
        let Some(sampler) = &mut self.sampler else { return Ok(()) };
        if self.sampled.is_some_and(|before| before.elapsed() < PROOF_INTERVAL) {
            return Ok(());
        }
        self.sampled = Some(Instant::now());
        self.proof.take(sampler.sample(Some(&self.select))?);
        // It may have begun anew, with another program.
        self.watched.overlook(sampler.program()?);
        if matches!(self.proof.verdict(), Verdict::Followed(_)) {
            self.sampler = None;
        }
        Ok(())
    }

    fn status(&self) -> Status {
        let Counters { picks, moves, no_socket, untracked, evicted, .. } = self.select.counters();
        let flows = self.select.flows();
        let counts = self.controller.as_ref().map(Controller::counts).unwrap_or_default();
        let weights = self.select.weights();
        let mut charged = vec![0_usize; weights.len()];
        for queue in flows.iter().filter(|flow| flow.charged_weight > 0).filter_map(|flow| flow.queue) {
            if let Some(count) = charged.get_mut(queue as usize) {
                *count += 1;
            }
        }
        let colliding_flows = charged.into_iter().filter(|count| *count > 1).sum();
        let unweighted = self.backend == Backend::None && colliding_flows > 0;
        Status {
            name: self.device.name.clone(),
            driver: self.device.driver.clone(),
            completion: self.select.completion().to_string(),
            weights,
            flows: flows.len(),
            colliding_flows,
            picks,
            moves,
            segments_without_socket: no_socket,
            untracked,
            evicted,
            queue_weights: self.backend.name(),
            weight_updates: counts.weight_updates,
            weights_cut: counts.weights_cut,
            segment_changes: counts.segment_changes,
            balance: self.balances.then(|| BalanceStatus {
                wanted: counts.moves_wanted,
                done: counts.moves_done,
                expired: counts.moves_expired,
                overruled: counts.moves_overruled,
                mean_hold_ms: counts.held_ns as f64 / 1e6 / counts.moves_done.max(1) as f64,
            }),
            batching: self.leaves.as_ref().map(|leaves| {
                let BatchCounters { held, batches, dropped } = leaves.counters();
                BatchingStatus { held, batches, dropped }
            }),
            advice: self.device.advice_on_sharing().filter(|_| unweighted),
            proof: self.proof.verdict().to_string(),
        }
    }
}
