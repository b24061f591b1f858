//! A session: manages an interface, from the first observation until its settings are restored.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_apply::Report;
use evenkeel_receive::flows::ObservedFlow;
use evenkeel_receive::policy::{PolicyFile, Queues};
use evenkeel_receive::search::{Progress, Search, SearchError, Verdict};
use evenkeel_receive::{FilterMatch, FlowIndex, FlowTuple, QueueId};
use serde::Serialize;

use crate::backend::{Applied, Backend, Placement, QueueCount};
use crate::error::SteerError;
use crate::interface::Interface;
use crate::observe::FlowSource;

#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Minimum time between two observations of the flows. A search follows only an observation.
    pub interval: Duration,
    /// Whether to search only once and keep the result.
    pub once: bool,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { interval: Duration::from_millis(500), once: false }
    }
}

/// Minimum interval between complete searches with new rates.
const REARRANGE_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum change of a rate that causes a new search, bit/s. The rate must also change by a quarter.
const RATE_STEP_BPS: u64 = 100_000;

/// A flow and its queue, for the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowView {
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// Address and port of the sender.
    pub source: String,
    /// Address and port of the receiver.
    pub destination: String,
    /// Name of the flow's class in the policy.
    pub class: String,
    /// Receive rate that the last search used, bit/s, if known.
    pub rate_bps: Option<u64>,
    /// `None` if the queue is unknown.
    pub queue: Option<u16>,
    /// Whether a filter for the flow or its class selects the queue.
    pub filtered: bool,
    pub process: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueView {
    pub queue: u16,
    /// CPU that serves the queue; `None` if unknown.
    pub processor: Option<u32>,
    /// Number of flows on the queue; `None` if unknown.
    pub flows: Option<usize>,
    /// Packets taken from the queue since the session began; `None` if not counted.
    pub packets: Option<u64>,
    /// Packets dropped because the queue was full, as far as the back end knows; `None` if not counted.
    pub lost: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    pub interface: String,
    /// `None` if the driver does not report its name.
    pub driver: Option<String>,
    /// Name of the back end: `xdp`, `ntuple` or `rps`; `none` in a plan for a NIC of another host.
    pub backend: &'static str,
    pub model: String,
    pub policy: String,
    /// Whether the policy accepts the placement: no flow is on a forbidden queue. `None` if unknown, or
    /// without flows.
    pub accepted: Option<bool>,
    /// Whether the policy accepts the placement, and no other queue would be better for any flow. `None` if
    /// unknown, or without flows.
    pub met: Option<bool>,
    #[serde(skip)]
    pub verdict: Option<Verdict>,
    /// Cost of the placement under the policy; `None` if unknown.
    pub cost: Option<f64>,
    pub searches: u64,
    pub longest_search_us: f64,
    pub filters: usize,
    /// Number of filters inserted, changed and removed so far.
    pub filter_changes: u64,
    /// Requirements of the policy that the NIC does not meet, each a sentence.
    pub unmet: Vec<String>,
    pub remarks: Vec<String>,
    pub queues: Vec<QueueView>,
    pub flows: Vec<FlowView>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub came: usize,
    /// Number of flows that ended or became idle.
    pub went: usize,
    pub changed: usize,
    /// Duration of the search, µs.
    pub search_us: f64,
    pub applied: Applied,
    pub cost: f64,
    pub accepted: bool,
}

/// An interface under management. Dropping the session restores the interface's settings without a
/// report.
pub struct Session {
    interface: Interface,
    backend: Box<dyn Backend>,
    source: FlowSource,
    search: Search,
    /// Flows that the search has placed.
    known: HashMap<FlowIndex, ObservedFlow>,
    options: SessionOptions,
    looked: Option<Instant>,
    /// Time of the last complete search with measured rates.
    arranged: Option<Instant>,
    searches: u64,
    longest_us: f64,
    changes: u64,
}

impl Session {
    /// Starts the session. The first call of [`Self::tick`] steers the first flows.
    ///
    /// # Errors
    /// Returns an error if the NIC's configuration cannot be read, or the policy does not fit its
    /// queues.
    pub fn start(
        interface: &Interface,
        mut backend: Box<dyn Backend>,
        source: FlowSource,
        policy: &PolicyFile,
        options: SessionOptions,
    ) -> Result<Self, SteerError> {
        let nic = backend.nic()?;
        let queues =
            Queues::new(nic.queues()).served_by(backend.processors()).with_nodes(interface.nodes.clone());
        let policy = policy.bind(&Arc::new(queues))?;
        Ok(Self {
            interface: interface.clone(),
            search: Search::new(nic, policy)?,
            backend,
            source,
            known: HashMap::new(),
            options,
            looked: None,
            arranged: None,
            searches: 0,
            longest_us: 0.0,
            changes: 0,
        })
    }

    /// Changes the policy. The next [`Self::tick`] places all flows again.
    ///
    /// # Errors
    /// Returns an error if the NIC's configuration cannot be read, or the policy does not fit its
    /// queues. Then the old policy stays active.
    pub fn set_policy(&mut self, policy: &PolicyFile) -> Result<(), SteerError> {
        let nic = self.backend.nic()?;
        let queues = Queues::new(nic.queues())
            .served_by(self.backend.processors())
            .with_nodes(self.interface.nodes.clone());
        let policy = policy.bind(&Arc::new(queues))?;
        self.search = Search::new(nic, policy)?;
        self.known.clear();
        self.looked = None;
        Ok(())
    }

    /// Returns the reason to exit, if any. The caller must call this function several times per second.
    pub fn check(&mut self) -> Result<Option<String>, SteerError> {
        self.backend.check()
    }

    /// Returns the remarks for the user that [`Self::check`] and [`Self::tick`] have added since the
    /// last call.
    pub fn take_remarks(&mut self) -> Vec<String> {
        let mut remarks = self.backend.take_remarks();
        remarks.extend(self.source.take_remarks());
        remarks
    }

    #[must_use]
    pub fn progress(&self) -> Arc<Progress> {
        self.search.progress()
    }

    /// Observes the flows, and places new and changed flows. Returns `None` without a new search: if the
    /// interval has not passed, if the session searches only once and has done so, or if no flow has begun,
    /// ended or changed and no complete search is due.
    ///
    /// # Errors
    /// Returns an error if flows cannot be read, the policy's script fails, or the kernel refuses.
    pub fn tick(&mut self) -> Result<Option<Step>, SteerError> {
        let is_first = self.looked.is_none();
        if self.looked.is_some_and(|looked| self.options.once || looked.elapsed() < self.options.interval) {
            return Ok(None);
        }
        self.looked = Some(Instant::now());
        let flows = self.look()?;
        let present: HashSet<FlowIndex> = flows.iter().filter_map(|flow| self.index(&flow.tuple)).collect();
        let gone: Vec<FlowIndex> =
            self.known.keys().filter(|index| !present.contains(index)).copied().collect();
        let came = flows.len() - present.len();
        // The first observation has no rates, so search again as soon as rates are measured.
        let rearrange = self.arranged.is_none_or(|last| last.elapsed() >= REARRANGE_INTERVAL);
        let changed = if rearrange { flows.iter().filter(|flow| self.has_changed(flow)).count() } else { 0 };
        // Flows that ended may leave room for other flows on better queues.
        let is_due = rearrange && !self.search.is_arranged();
        if !is_first && gone.is_empty() && came == 0 && changed == 0 && !is_due {
            return Ok(None);
        }
        let began = Instant::now();
        self.known.retain(|index, _| present.contains(index));
        self.search.remove(&gone);
        if is_first || changed > 0 {
            self.enter(flows, Search::solve)?;
        } else if came > 0 {
            let is_new = |flow: &ObservedFlow| self.index(&flow.tuple).is_none();
            let new = flows.into_iter().filter(is_new).collect();
            self.enter(new, Search::add)?;
        }
        if rearrange && !is_first {
            self.search.compact()?;
            self.arranged = Some(Instant::now());
        }
        let search_us = began.elapsed().as_nanos() as f64 / 1e3;
        self.searches += 1;
        self.longest_us = self.longest_us.max(search_us);
        let applied = self.apply()?;
        self.changes += (applied.inserted + applied.replaced + applied.removed) as u64;
        let cost = self.search.cost();
        Ok(Some(Step {
            came,
            went: gone.len(),
            changed,
            search_us,
            applied,
            cost: cost.value(),
            accepted: cost.is_accepted(),
        }))
    }

    fn apply(&mut self) -> Result<Applied, SteerError> {
        let placed: Vec<(FlowTuple, QueueId)> =
            self.search.map().flows().map(|(_, tuple, queue)| (*tuple, queue)).collect();
        let policy = self.search.policy();
        let classes: Vec<(FilterMatch, Vec<QueueId>)> = policy
            .classes_as_matches()
            .into_iter()
            .map(|(_, matches, queues)| (matches, queues.to_vec()))
            .collect();
        let found = Placement { nic: self.search.nic(), flows: &placed, classes: &classes };
        self.backend.apply(&found)
    }

    /// Returns the current flows with their queues.
    fn look(&mut self) -> Result<Vec<ObservedFlow>, SteerError> {
        let traffic = self.backend.traffic()?;
        let mut flows = self.source.look(&traffic)?;
        for flow in &mut flows {
            let Some(index) = self.index(&flow.tuple) else { continue };
            if let Some(known) = self.known.get_mut(&index) {
                known.rate_bps = flow.rate_bps;
                known.process.clone_from(&flow.process);
            }
            flow.queue = self.search.map().queue(index).or(flow.queue);
        }
        Ok(flows)
    }

    fn index(&self, tuple: &FlowTuple) -> Option<FlowIndex> {
        self.search.find(tuple).filter(|index| self.known.contains_key(index))
    }

    fn has_changed(&self, flow: &ObservedFlow) -> bool {
        let known = self.index(&flow.tuple);
        let Some(before) = known.and_then(|index| self.search.flow(index)) else { return false };
        let then = before.rate_bps.unwrap_or(0);
        let difference = flow.rate_bps.unwrap_or(0).abs_diff(then);
        let moved = difference >= RATE_STEP_BPS && difference >= then / 4;
        let policy = self.search.policy();
        let now = policy.classify(flow);
        moved
            || policy.unknown(&now) != policy.unknown(before)
            || flow.reader != before.reader
            || (now.class, now.is_unsure) != (before.class, before.is_unsure)
    }

    fn enter(
        &mut self,
        flows: Vec<ObservedFlow>,
        search: impl FnOnce(&mut Search, &[ObservedFlow]) -> Result<Vec<FlowIndex>, SearchError>,
    ) -> Result<(), SteerError> {
        let indices = search(&mut self.search, &flows)?;
        self.known.extend(indices.into_iter().zip(flows));
        Ok(())
    }

    /// Returns the name of the back end: `xdp`, `ntuple` or `rps`; `none` in a plan for another host's NIC.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        self.backend.name()
    }

    /// Returns the flows, their queues and the NIC's configuration after the last search.
    #[must_use]
    pub fn search(&self) -> &Search {
        &self.search
    }

    /// Returns shell commands that apply the same configuration; `None` if shell commands cannot apply it.
    #[must_use]
    pub fn shell(&self) -> Option<String> {
        self.backend.shell(self.search.nic())
    }

    /// Restores all settings. Reports the settings that could not be restored.
    ///
    /// # Errors
    /// Returns an error if a journal cannot be removed.
    pub fn finish(self) -> Result<Report, SteerError> {
        self.backend.finish()
    }

    /// Waits until the back end has counted the packets in transit, so that the last [`Self::status`]
    /// is complete.
    pub fn settle(&mut self) {
        self.backend.settle();
    }

    #[must_use]
    pub fn status(&self) -> Status {
        let counts = self.backend.queue_counts();
        let (search, policy) = (&self.search, self.search.policy());
        let known = self.backend.knows_queues();
        let cost = Some(search.cost()).filter(|_| known);
        let (verdict, unmet) = known.then(|| search.verdict()).unzip();
        let mut flows: Vec<FlowView> =
            self.known.iter().filter_map(|(index, flow)| self.view(*index, flow)).collect();
        flows.sort_by(|one, other| {
            (one.queue, &one.source, &one.destination).cmp(&(other.queue, &other.source, &other.destination))
        });
        let processors = self.backend.processors();
        let are_hashed = flows.iter().any(|flow| flow.queue.is_some());
        let queues = (0..search.nic().queues()).map(|queue| {
            let count: Option<QueueCount> =
                counts.as_ref().and_then(|counts| counts.get(usize::from(queue)).copied());
            QueueView {
                queue,
                processor: processors.get(usize::from(queue)).copied(),
                flows: match known {
                    true => Some(search.map().flows_on(QueueId(queue)).len()),
                    false => {
                        let on_queue = || flows.iter().filter(|flow| flow.queue == Some(queue)).count();
                        are_hashed.then(on_queue)
                    }
                },
                packets: count.map(|count| count.packets),
                lost: count.map(|count| count.lost),
            }
        });
        Status {
            interface: self.interface.name.clone(),
            driver: self.interface.driver.clone(),
            backend: self.backend.name(),
            model: search.nic().model().name().to_owned(),
            policy: policy.name().to_owned(),
            accepted: verdict.and_then(Verdict::is_accepted),
            met: verdict.and_then(Verdict::is_met),
            verdict,
            cost: cost.map(|cost| cost.value()),
            searches: self.searches,
            longest_search_us: self.longest_us,
            filters: search.nic().filters().count(),
            filter_changes: self.changes,
            unmet: unmet.iter().flatten().map(ToString::to_string).collect(),
            remarks: self.backend.remarks().into_iter().chain(search.remarks()).collect(),
            queues: queues.collect(),
            flows,
        }
    }

    fn view(&self, index: FlowIndex, observed: &ObservedFlow) -> Option<FlowView> {
        let flow = self.search.flow(index)?;
        let (tuple, knows) = (&observed.tuple, self.backend.knows_queues());
        let queue = match knows {
            true => Some(self.search.map().queue(index)?),
            false => self.backend.queue_without_policy(tuple),
        };
        let end = |address, port| std::net::SocketAddr::new(address, port).to_string();
        Some(FlowView {
            protocol: tuple.transport.name(),
            source: end(tuple.source, tuple.source_port),
            destination: end(tuple.destination, tuple.destination_port),
            class: self.search.policy().class_name(flow.class).to_owned(),
            rate_bps: flow.rate_bps,
            queue: queue.map(|queue| queue.0),
            filtered: knows && self.search.map().deciding_filter(index).is_some(),
            process: observed.process.clone(),
        })
    }
}
