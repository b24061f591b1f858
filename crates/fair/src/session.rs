//! A session: manages devices from the first change until all settings are restored.

use std::collections::BTreeMap;
use std::fmt;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_apply::{Direction, FilterPlace, Leftover, Report, Run, StateDirectory};
use evenkeel_control::{ControlOptions, Controller};
use evenkeel_datapath::{
    BatchCounters, Completion, Counters, HookKind, QueueSelect, Rule, SelectOptions, Steering,
};
use evenkeel_host::{Capability, Sysfs};
use evenkeel_netlink::Netlink;
use evenkeel_transmit::Policy;
use serde::Serialize;

use crate::batching::Leaves;
use crate::control_loop::{self, Wanted};
use crate::device::Device;
use crate::error::FairError;
use crate::flows::{QueueCounters, Sampler};
use crate::gate::JournalGate;
use crate::hooks;
use crate::preflight::{CAPABILITIES, Planned, Preflight};
use crate::proof::{Proof, Verdict};
use crate::queue_weights::Backend;
use crate::soft_nic;
use crate::stack::Stack;
use crate::watch::Watched;

/// The reason to exit: another program changed a setting on which the session depends, the controller failed,
/// or the driver overrules the queue choice. The session keeps the other program's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignChange {
    pub device: String,
    pub reason: String,
}

impl fmt::Display for ForeignChange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.device, self.reason)
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub name: String,
    pub driver: Option<String>,
    /// Method to detect the completion of segments.
    pub completion: String,
    pub queues: u32,
    /// Sum of the weights of charged flows, by queue; with `htb` by class. A flow with nothing outstanding
    /// stays charged until the next scan.
    pub weights: Vec<u32>,
    pub flows: usize,
    /// Number of charged flows that share their queue with another charged flow.
    pub colliding_flows: usize,
    /// Number of queue choices for flows with nothing outstanding.
    pub picks: u64,
    /// Number of queue choices that changed a flow's queue.
    pub moves: u64,
    /// Number of segments without a full socket: forwarded ones, those from containers, and those of
    /// connections that begin or have ended. TCP and UDP segments without any socket belong to a flow by
    /// their addresses. For the other segments, a hash selects the queue.
    pub segments_without_socket: u64,
    /// Number of segments whose flow found no free slot in the flow table; a hash selects their queue.
    pub untracked: u64,
    /// Number of short flows with nothing outstanding whose slots new flows took.
    pub evicted: u64,
    /// The back end: `none`, `htb`, `net-shaper` or `max-rate`.
    pub queue_weights: &'static str,
    pub weight_updates: u64,
    /// Number of updates that reduced a weight to the back end's maximum.
    pub weights_cut: u64,
    pub segment_changes: u64,
    pub balance: Option<BalanceStatus>,
    pub batching: Option<BatchingStatus>,
    /// Advice, while flows share queues and no back end serves them by weight.
    pub advice: Option<String>,
    pub proof: String,
    /// In the status of the first device: why other devices of the interface are not managed, or why the queue
    /// choice changes no rate.
    pub unmet: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BalanceStatus {
    pub wanted: u64,
    /// Moves in which the program sent a segment to the new queue. Includes `overruled`.
    pub done: u64,
    /// Moves cancelled at the time limit.
    pub expired: u64,
    /// Moves after which the flow was still on its old queue: the driver or an XPS map overrules the choice.
    pub overruled: u64,
    /// Mean time for which a flow was held back before such a move (`done`), ms.
    pub mean_hold_ms: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BatchingStatus {
    /// Number of segments that were held because their queue was empty.
    pub held: u64,
    /// Number of batches with more than one segment.
    pub batches: u64,
    /// Number of segments dropped because the queue was full or memory was short.
    pub dropped: u64,
}

#[derive(Debug)]
pub struct Ended {
    pub status: Status,
    pub report: Report,
    /// A change by another program that was lost with Evenkeel's own root qdisc.
    pub lost: Option<ForeignChange>,
}

/// Drops all capabilities of this thread except `CAPABILITIES`. If `/sys` belongs to another namespace,
/// `CAP_SYS_ADMIN` also stays, because a replacement guardian must mount its own `/sys`.
pub fn give_up_privileges() -> Result<(), FairError> {
    let mut kept = CAPABILITIES.to_vec();
    if !Sysfs::mounted_is_own()? {
        kept.push(Capability::SysAdmin);
    }
    evenkeel_apply::privileges::keep_only(&kept).map_err(FairError::Privileges)
}

/// Devices under management. Dropping this value restores all settings.
pub struct Session {
    managed: Vec<Managed>,
    stack: Option<Stack>,
}

/// Fields are dropped in this order: first the fields that write settings, then the journal's run,
/// which restores the settings, and finally the queue choice.
struct Managed {
    controller: Option<Controller>,
    /// The options of a controller that has not started.
    pending: Option<ControlOptions>,
    gate: Arc<JournalGate>,
    balances: bool,
    run: Run,
    /// Leaf qdiscs, registered until the run has restored the old root.
    leaves: Option<Leaves>,
    select: QueueSelect,
    sampler: Option<Sampler>,
    proof: Proof,
    sampled: Option<Instant>,
    /// The filter of the queue choice; `None` if the queue choice is attached by tcx.
    filter: Option<FilterPlace>,
    watched: Watched,
    backend: Backend,
    device: Device,
    /// See [`Status::unmet`].
    unmet: Option<String>,
}

/// Time between two checks of the settings on which a session depends.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);
/// Time between two checks, and between two samples of the proof, with service balancing. Balancing
/// moves flows several times per second. The queue of a flow that moves between two samples proves
/// nothing.
const BALANCE_INTERVAL: Duration = Duration::from_millis(200);
/// Time between two samples of the proof without service balancing.
const PROOF_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest idle time after which ageing releases a flow whose socket cannot be read, ns.
const AGEING_FLOOR_NS: u64 = 200_000_000;

impl Session {
    /// Begins to manage the devices of a preflight, in the calling thread's network namespace. Rolls back
    /// killed runs first, and returns them with the session.
    ///
    /// `guardian` returns the command of a guardian process (see [`evenkeel_apply::guardian`]); `None`:
    /// no guardian. The function calls `is_interrupted` before each change, and stops when the result
    /// is true.
    ///
    /// # Errors
    /// Returns an error if another session has a device, if the kernel refuses a request, or
    /// [`FairError::Interrupted`]. All changes are then undone.
    pub fn start(
        preflight: &Preflight,
        state: &StateDirectory,
        guardian: Box<dyn Fn() -> Option<Command>>,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<(Self, Vec<Leftover>), FairError> {
        Self::begin(preflight, state, guardian, is_interrupted)
            .map_err(|error| error.of_devices(preflight.names()))
    }

    fn begin(
        preflight: &Preflight,
        state: &StateDirectory,
        guardian: Box<dyn Fn() -> Option<Command>>,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<(Self, Vec<Leftover>), FairError> {
        let mut leftovers = Vec::new();
        let mut runs = BTreeMap::new();
        for Planned { device, .. } in &preflight.devices {
            let named = &preflight.interface;
            let (run, leftover) =
                Run::begin_below(named, state, device.index, &device.name, "fair", guardian())?;
            leftovers.extend(leftover);
            runs.insert(device.index, run);
        }
        // The preflight may have seen a killed run's settings, so repeat the preflight.
        let again;
        let preflight = if leftovers.is_empty() {
            preflight
        } else {
            again = Preflight::of(&preflight.interface, preflight.request)?;
            &again
        };
        let mut managed: Vec<Managed> = Vec::new();
        for planned in &preflight.devices {
            if let Some(run) = runs.remove(&planned.device.index) {
                match Managed::start(run, planned, preflight, is_interrupted) {
                    Ok(started) => managed.push(started),
                    Err(FairError::Interrupted(mut reports)) => {
                        let before = Self { managed, stack: None }.finish()?;
                        reports.extend(before.into_iter().map(|ended| (ended.status.name, ended.report)));
                        return Err(FairError::Interrupted(reports));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        if let Some(first) = managed.first_mut()
            && !preflight.unmet.is_empty()
        {
            first.unmet = Some(preflight.unmet.join("; "));
        }
        Ok((Self { managed, stack: Stack::of(preflight)? }, leftovers))
    }

    /// Starts the controllers, each on its own thread. Separate from [`Self::start`], so that the
    /// process can drop privileges between the two calls: threads inherit the privileges.
    ///
    /// # Errors
    /// Returns an error if a thread cannot be started.
    pub fn start_loops(&mut self) -> Result<(), FairError> {
        for managed in &mut self.managed {
            if let Some(options) = managed.pending.take() {
                managed.controller = Some(Controller::start(options)?);
            }
        }
        Ok(())
    }

    /// Returns the time between two calls of [`Self::tick`]; see `BALANCE_INTERVAL`.
    #[must_use]
    pub fn interval(&self) -> Duration {
        let balances = self.managed.iter().any(|managed| managed.balances);
        if balances { BALANCE_INTERVAL } else { WATCH_INTERVAL }
    }

    /// Checks the settings on which the session depends, and returns the reason to exit, if any. Call
    /// this function after each [`Self::interval`].
    ///
    /// # Errors
    /// Returns an error if the kernel cannot be queried.
    pub fn tick(&mut self) -> Result<Option<ForeignChange>, FairError> {
        for managed in &mut self.managed {
            if let Some(reason) = managed.check()? {
                return Ok(Some(ForeignChange { device: managed.device.name.clone(), reason }));
            }
        }
        self.stack.as_mut().map_or(Ok(None), Stack::difference)
    }

    pub fn take_remarks(&mut self) -> Vec<String> {
        self.managed.iter_mut().flat_map(|managed| managed.run.take_remarks()).collect()
    }

    /// Sets the flow weights on every device. Running flows get their weight with their next segment.
    ///
    /// # Errors
    /// Returns an error if there are too many rules, or a weight is out of range.
    pub fn set_flow_weights(&self, rules: &[Rule]) -> Result<(), FairError> {
        for managed in &self.managed {
            managed.select.set_rules(rules)?;
        }
        Ok(())
    }

    #[must_use]
    pub fn status(&self) -> Vec<Status> {
        self.managed.iter().map(Managed::status).collect()
    }

    /// Restores every setting and detaches the programs.
    ///
    /// # Errors
    /// Returns an error if a journal cannot be removed.
    pub fn finish(self) -> Result<Vec<Ended>, FairError> {
        self.managed
            .into_iter()
            .map(|managed| {
                let status = managed.status();
                let Managed { controller, gate, select, sampler, leaves, mut watched, mut run, .. } = managed;
                // Ignore the error: the journal restores the controller's changes.
                let _ = controller.map(Controller::stop);
                drop(gate.stop(&mut run));
                // Detect changes since the last tick. Ignore the error: the device may be gone.
                let lost = watched.lost_with_root().ok().flatten();
                let lost = lost.map(|reason| ForeignChange { device: status.name.clone(), reason });
                let report = run.restore();
                // Detach before waiting for the guardian, because a guardian that was stopped responds
                // late.
                drop((select, sampler, leaves));
                let last = run.finish().map_err(|error| error.after(&report, &status.name))?;
                // The second report covers settings whose first restore failed.
                Ok(Ended { status, report: if report.is_settled() { report } else { last }, lost })
            })
            .collect()
    }
}

/// Returns the run. If `is_interrupted` returns true, undoes the run's changes and returns an error.
fn unless(is_interrupted: &dyn Fn() -> bool, run: Run, device: &Device) -> Result<Run, FairError> {
    if !is_interrupted() {
        return Ok(run);
    }
    Err(FairError::Interrupted(vec![(device.name.clone(), run.finish()?)]))
}

impl Managed {
    fn start(
        mut run: Run,
        planned: &Planned,
        preflight: &Preflight,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<Self, FairError> {
        let device = planned.device.clone();
        run = unless(is_interrupted, run, &device)?;
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
        // With batching, the root qdisc is Evenkeel's mq, which has counters per queue.
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
            hook: device.hook,
            ..SelectOptions::default()
        })?;
        // Attach before changing XPS maps and the root qdisc. Otherwise flows that the kernel hashes in
        // between would stay on their queue. Until the HTB classes exist, HTB sends packets past all
        // classes (htb_classify, htb_enqueue).
        select.attach(device.index.cast_signed())?;
        let filter = match device.hook {
            HookKind::Tcx => None,
            HookKind::Clsact => {
                let program = (select.program()?, select.program_id()?);
                let name = "evenkeel select_queue";
                Some(hooks::attach(&mut run, device.index, Direction::Egress, program, name)?)
            }
        };
        // Start balancing before XPS or qdiscs change, because the kernel may refuse balancing.
        let balance = preflight.request.balance.start(planned.balance, &device, &select, &mut run)?;
        let leaves = planned.batching.map(|batching| batching.register()).transpose()?;
        for change in &planned.changes {
            run = unless(is_interrupted, run, &device)?;
            run.change(change)?;
        }
        run = unless(is_interrupted, run, &device)?;
        if let Some(leaves) = &leaves {
            leaves.put(&mut run, &mut Netlink::open()?, &device)?;
        }
        run = unless(is_interrupted, run, &device)?;
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
        // The meter costs time per packet, so the session detaches it after the verdict.
        let journalled = (device.hook == HookKind::Clsact).then_some(&mut run);
        let sampler =
            if counts { Some(Sampler::attach(device.index, queues, counters, journalled)?) } else { None };
        let mut watched = Watched::new(&device)?;
        // For clsact, the run watches the own filters, because it journals them.
        watched.expect_filters(filter.into_iter().chain(sampler.as_ref().and_then(Sampler::filter)));
        if device.hook == HookKind::Tcx {
            watched.expect_queue_choice(select.program_id()?)?;
            if let Some(sampler) = &sampler {
                watched.expect_meter(Some(sampler.program()?));
            }
            if let Some((_, mover)) = &balance {
                watched.expect_mover(*mover)?;
            }
        }
        let balance = balance.map(|(control, _)| control);
        if let Some(leaves) = &leaves {
            watched.expect(leaves.expected());
        }
        if matches!(backend, Backend::SoftNic(_)) {
            watched.expect_tree()?;
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
        let pending = control_loop::prepare(wanted, &mut run, &gate, &device, &select)?;
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
            filter,
            watched,
            backend,
            device,
            run,
            unmet: None,
        })
    }

    fn check(&mut self) -> Result<Option<String>, FairError> {
        // Check this first, because a deleted device has no other readable state.
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
        // With service balancing, sample at every tick.
        let is_early = |before: Instant| !self.balances && before.elapsed() < PROOF_INTERVAL;
        if self.sampled.is_some_and(is_early) {
            return Ok(());
        }
        self.sampled = Some(Instant::now());
        let is_journalled = self.device.hook == HookKind::Clsact;
        let stopped = is_journalled.then(|| self.gate.stop(&mut self.run));
        let sample = sampler.sample(Some(&self.select), is_journalled.then_some(&mut self.run));
        self.proof.take(sample?);
        // The sampler may have attached a new program.
        self.watched.expect_meter((!is_journalled).then(|| sampler.program()).transpose()?);
        if matches!(self.proof.verdict(), Verdict::Followed(_)) {
            self.watched.expect_meter(None);
            self.sampler.take().map_or(Ok(()), |sampler| sampler.detach(&mut self.run))?;
        }
        let meter = self.sampler.as_ref().and_then(Sampler::filter);
        self.watched.expect_filters(self.filter.into_iter().chain(meter));
        drop(stopped);
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
            queues: self.device.queues,
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
            unmet: self.unmet.clone(),
        }
    }
}
