//! A session: an interface under management, from the first look to the last undo.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_receive::flows::ObservedFlow;
use evenkeel_receive::policy::{PolicyFile, Queues};
use evenkeel_receive::search::Search;
use evenkeel_receive::{FilterMatch, FlowIndex, FlowTuple, QueueId};
use serde::Serialize;

use crate::backend::{Applied, Backend, Placement, QueueCount};
use crate::error::SteerError;
use crate::interface::Interface;
use crate::observe::FlowSource;

/// How a session goes about its work.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// At least so long between two searches.
    pub interval: Duration,
    /// Search once, and keep what was found.
    pub once: bool,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { interval: Duration::from_millis(500), once: false }
    }
}

/// Between two times that rates are taken anew and all flows are looked at again.
const REARRANGE_INTERVAL: Duration = Duration::from_secs(5);
/// A flow's rate has changed when it differs from the last one by a quarter and by so much.
const RATE_STEP_BPS: u64 = 100_000;

/// A flow and where it lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowView {
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// The peer's address and port.
    pub source: String,
    /// This host's address and port.
    pub destination: String,
    /// The class of the policy that it is in.
    pub class: String,
    /// What it receives, bit/s; 0 if unknown.
    pub rate_bps: u64,
    /// Its queue; none where that is not known.
    pub queue: Option<u16>,
    /// Whether a filter of its own or of its class puts it there.
    pub filtered: bool,
    /// The process that reads it, if that could be found.
    pub process: Option<String>,
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueView {
    /// Its number.
    pub queue: u16,
    /// The processor that serves it.
    pub processor: u32,
    /// Flows on it; none where that is not known.
    pub flows: Option<usize>,
    /// Packets that were taken from it since the session began; none where that is not counted.
    pub packets: Option<u64>,
    /// Packets that it had no room for, as far as that can be told; none where that is not counted.
    pub lost: Option<u64>,
}

/// What is going on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// The interface.
    pub interface: String,
    /// Its driver; none if that does not tell.
    pub driver: Option<String>,
    /// What makes the NIC what the search finds: `xdp`, `ntuple`.
    pub backend: &'static str,
    /// Name of the NIC's model.
    pub model: String,
    /// Name of the policy.
    pub policy: String,
    /// Whether the placement is one that the policy accepts; none where it is not known.
    pub accepted: Option<bool>,
    /// What the placement costs, as the policy has it; none where it is not known.
    pub cost: Option<f64>,
    /// Searches so far.
    pub searches: u64,
    /// The longest of them, microseconds.
    pub longest_search_us: f64,
    /// Filters in place.
    pub filters: usize,
    /// Filters put in, changed and taken out so far.
    pub filter_changes: u64,
    /// What the policy asks for and the NIC does not give, each a sentence.
    pub unmet: Vec<String>,
    /// What else people should know.
    pub remarks: Vec<String>,
    /// The queues.
    pub queues: Vec<QueueView>,
    /// The flows.
    pub flows: Vec<FlowView>,
}

/// What one look at the flows led to.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Flows that came.
    pub came: usize,
    /// Flows that went, or fell idle.
    pub went: usize,
    /// Flows whose rate changed.
    pub changed: usize,
    /// What the search took, microseconds.
    pub search_us: f64,
    /// What was changed in the NIC.
    pub applied: Applied,
    /// The cost of the placement.
    pub cost: f64,
    /// Whether the policy accepts it.
    pub accepted: bool,
}

/// An interface under management. Dropping it puts everything back.
pub struct Session {
    interface: Interface,
    backend: Box<dyn Backend>,
    source: FlowSource,
    search: Search,
    known: HashMap<FlowTuple, (FlowIndex, ObservedFlow)>,
    options: SessionOptions,
    looked: Option<Instant>,
    arranged: Instant,
    searches: u64,
    longest_us: f64,
    changes: u64,
}

impl Session {
    /// Begins: nothing is steered before the first [`Self::tick`].
    ///
    /// # Errors
    /// When the NIC cannot be read, or the policy does not fit its queues.
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
            arranged: Instant::now(),
            searches: 0,
            longest_us: 0.0,
            changes: 0,
        })
    }

    /// Follows another policy from now on: all flows are placed anew with the next [`Self::tick`].
    ///
    /// # Errors
    /// When the NIC cannot be read, or the policy does not fit its queues; the one before stays in force then.
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

    /// Why the session has to end, if it has to. To be called several times a second.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn check(&mut self) -> Result<Option<String>, SteerError> {
        self.backend.check()
    }

    /// Looks at the flows, if it is time to, and puts those that came and those that changed where the policy wants
    /// them. None if there was nothing to do.
    ///
    /// # Errors
    /// When flows cannot be read, the policy's script fails, or the kernel refuses.
    pub fn tick(&mut self) -> Result<Option<Step>, SteerError> {
        let is_first = self.looked.is_none();
        if self.looked.is_some_and(|looked| self.options.once || looked.elapsed() < self.options.interval) {
            return Ok(None);
        }
        self.looked = Some(Instant::now());
        let flows = self.look()?;
        let present: HashSet<FlowTuple> = flows.iter().map(|flow| flow.tuple).collect();
        let gone: Vec<FlowTuple> =
            self.known.keys().filter(|tuple| !present.contains(tuple)).copied().collect();
        let came: Vec<ObservedFlow> =
            flows.iter().filter(|flow| !self.known.contains_key(&flow.tuple)).cloned().collect();
        let rearrange = self.arranged.elapsed() >= REARRANGE_INTERVAL;
        let changed: Vec<ObservedFlow> = match rearrange {
            true => flows.iter().filter(|flow| self.has_changed(flow)).cloned().collect(),
            false => Vec::new(),
        };
        if !is_first && gone.is_empty() && came.is_empty() && changed.is_empty() {
            return Ok(None);
        }
        let began = Instant::now();
        let indices: Vec<FlowIndex> =
            gone.iter().filter_map(|tuple| self.known.remove(tuple)).map(|(index, _)| index).collect();
        self.search.remove(&indices);
        if is_first || !changed.is_empty() {
            self.enter(&flows, |search, flows| search.solve(flows))?;
        } else if !came.is_empty() {
            self.enter(&came, |search, flows| search.add(flows))?;
        }
        if rearrange {
            self.search.compact()?;
            self.arranged = Instant::now();
        }
        let search_us = began.elapsed().as_nanos() as f64 / 1e3;
        self.searches += 1;
        self.longest_us = self.longest_us.max(search_us);
        let applied = self.apply()?;
        self.changes += (applied.inserted + applied.replaced + applied.removed) as u64;
        let cost = self.search.cost();
        Ok(Some(Step {
            came: came.len(),
            went: gone.len(),
            changed: changed.len(),
            search_us,
            applied,
            cost: cost.value(),
            accepted: cost.is_accepted(),
        }))
    }

    /// Has the back end make the NIC what was found.
    fn apply(&mut self) -> Result<Applied, SteerError> {
        let placed: Vec<(FlowTuple, QueueId)> =
            self.search.map().flows().map(|(_, tuple, queue)| (*tuple, queue)).collect();
        let policy = self.search.policy();
        let classes: Vec<(FilterMatch, Vec<QueueId>)> =
            policy.classes_as_matches().map(|(_, matches, queues)| (matches, queues.to_vec())).collect();
        let found = Placement { nic: self.search.nic(), flows: &placed, classes: &classes };
        self.backend.apply(&found)
    }

    /// The flows as they are now, with the queues on which they lie.
    fn look(&mut self) -> Result<Vec<ObservedFlow>, SteerError> {
        let traffic = self.backend.traffic()?;
        let mut flows = self.source.look(&traffic)?;
        for flow in &mut flows {
            if let Some((_, known)) = self.known.get_mut(&flow.tuple) {
                known.rate_bps = flow.rate_bps;
                known.process.clone_from(&flow.process);
            }
            flow.queue = self
                .known
                .get(&flow.tuple)
                .and_then(|(index, _)| self.search.map().queue(*index))
                .or(flow.queue);
        }
        Ok(flows)
    }

    fn has_changed(&self, flow: &ObservedFlow) -> bool {
        let Some((index, _)) = self.known.get(&flow.tuple) else { return false };
        let Some(before) = self.search.flow(*index) else { return false };
        let difference = flow.rate_bps.abs_diff(before.rate_bps);
        let moved = difference >= RATE_STEP_BPS && difference >= before.rate_bps / 4;
        moved || flow.reader != before.reader
    }

    fn enter(
        &mut self,
        flows: &[ObservedFlow],
        search: impl FnOnce(
            &mut Search,
            &[ObservedFlow],
        ) -> Result<Vec<FlowIndex>, evenkeel_receive::search::SearchError>,
    ) -> Result<(), SteerError> {
        let indices = search(&mut self.search, flows)?;
        for (flow, index) in flows.iter().zip(indices) {
            self.known.insert(flow.tuple, (index, flow.clone()));
        }
        Ok(())
    }

    /// The shell lines that would do the same, where there are any.
    #[must_use]
    pub fn shell(&self) -> Option<String> {
        self.backend.shell(self.search.nic())
    }

    /// Waits a moment for what is under way, so that the last [`Self::status`] is whole.
    pub fn settle(&mut self) {
        self.backend.settle();
    }

    /// What is going on.
    #[must_use]
    pub fn status(&self) -> Status {
        let counts = self.backend.queue_counts();
        let (search, policy) = (&self.search, self.search.policy());
        let known = self.backend.knows_queues();
        let cost = Some(search.cost()).filter(|_| known);
        let mut flows: Vec<FlowView> =
            self.known.values().filter_map(|(index, flow)| self.view(*index, flow)).collect();
        flows.sort_by(|one, other| {
            (one.queue, &one.source, &one.destination).cmp(&(other.queue, &other.source, &other.destination))
        });
        let queues = (0..).zip(self.backend.processors()).map(|(queue, processor)| {
            let count: Option<QueueCount> =
                counts.as_ref().and_then(|counts| counts.get(usize::from(queue)).copied());
            QueueView {
                queue,
                processor: *processor,
                flows: known.then(|| search.map().flows_on(QueueId(queue)).len()),
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
            accepted: cost.map(|cost| cost.is_accepted()),
            cost: cost.map(|cost| cost.value()),
            searches: self.searches,
            longest_search_us: self.longest_us,
            filters: search.nic().filters().count(),
            filter_changes: self.changes,
            unmet: if known { search.unmet().iter().map(ToString::to_string).collect() } else { Vec::new() },
            remarks: self.backend.remarks(),
            queues: queues.collect(),
            flows,
        }
    }

    fn view(&self, index: FlowIndex, observed: &ObservedFlow) -> Option<FlowView> {
        let queue = self.search.map().queue(index)?;
        let flow = self.search.flow(index)?;
        let tuple = &observed.tuple;
        let end = |address, port| std::net::SocketAddr::new(address, port).to_string();
        Some(FlowView {
            protocol: tuple.transport.name(),
            source: end(tuple.source, tuple.source_port),
            destination: end(tuple.destination, tuple.destination_port),
            class: self.search.policy().class_name(flow.class).to_owned(),
            rate_bps: observed.rate_bps,
            queue: Some(queue.0).filter(|_| self.backend.knows_queues()),
            filtered: self.search.map().deciding_filter(index).is_some(),
            process: observed.process.clone(),
        })
    }
}
