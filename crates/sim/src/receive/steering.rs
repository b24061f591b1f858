//! Selects the receive queue of each flow: the NIC's configuration, and the search that computes it.

use std::sync::Arc;

use evenkeel_model::scenario::{ReceiveKnobs, ReceivePolicy, Supplied};
use evenkeel_receive::flows::ObservedFlow;
use evenkeel_receive::policy::{PolicyFile, QueueShare, Queues};
use evenkeel_receive::search::{Search, SearchError};
use evenkeel_receive::{ConfiguredNic, FlowIndex, FlowTuple, NicModel};

const HIGH_PRIORITY: &str = "high";
/// Address of the first client host, 10.0.0.1. The next hosts have the next addresses.
const FIRST_CLIENT: u32 = 0x0a00_0001;
/// The server's address, 10.0.0.254, and memcached's port.
const SERVER: u32 = 0x0a00_00fe;
const SERVER_PORT: u16 = 11211;
/// First port of a client host's flows (the kernel's default `ip_local_port_range`).
const FIRST_PORT: u32 = 32_768;
const PORTS: u32 = 28_232;

fn text_of(supplied: &Supplied) -> Result<&str, String> {
    supplied.text.as_deref().ok_or_else(|| format!("{} was not read", supplied.origin))
}

#[derive(Clone, Debug)]
struct Flow {
    observed: ObservedFlow,
    /// Index of the flow in the search. `None` if the flow is inactive or the search does not know it.
    index: Option<FlowIndex>,
    is_new: bool,
    queue: u16,
}

/// Returns a unique five-tuple for each flow, as in packets to the server. `host` counts from 0. `flow`
/// is the flow's number at its host.
pub(super) fn tuple_of(host: u32, flow: u32) -> FlowTuple {
    // There are at most 250 hosts. A host with more flows than ports uses further addresses.
    let source = FIRST_CLIENT + host + 256 * (flow / PORTS);
    FlowTuple::udp4(source, (FIRST_PORT + flow % PORTS) as u16, SERVER, SERVER_PORT)
}

enum Configured {
    /// The default configuration, without a policy.
    Alone(Box<ConfiguredNic>),
    Searched(Box<Search>),
}

pub(super) struct Steering {
    nic: Configured,
    flows: Vec<Flow>,
}

impl Steering {
    /// Creates a NIC with this many queues and without flows. Returns an error if the NIC model or the
    /// policy is unknown or invalid, or the NIC does not support the number of queues or the policy.
    pub(super) fn new(knobs: &ReceiveKnobs, queues: u32) -> Result<Self, String> {
        let name = knobs.nic.to_string();
        let model = match knobs.nic.own() {
            Some(own) => NicModel::parse(text_of(own)?, &name).map_err(|error| error.to_string())?,
            None => NicModel::built_in(&name).ok_or_else(|| format!("no model of the NIC {name}"))?,
        };
        let queues = u16::try_from(queues).map_err(|_| format!("{queues} queues are too many"))?;
        let nic = ConfiguredNic::new(&model, queues).map_err(|error| error.to_string())?;
        let built_in = || {
            let name = knobs.policy.to_string();
            PolicyFile::built_in(&name).ok_or_else(|| format!("no policy {name}"))
        };
        let policy = match &knobs.policy {
            ReceivePolicy::None => {
                return Ok(Self { nic: Configured::Alone(Box::new(nic)), flows: Vec::new() });
            }
            ReceivePolicy::Balance => built_in()?,
            ReceivePolicy::Isolation => {
                let mut policy = built_in()?;
                for class in &mut policy.classes {
                    // The value fits: it is at most 256.
                    class.queues = QueueShare::Count(knobs.isolated_queues as u16);
                }
                policy
            }
            ReceivePolicy::Own(own) => {
                PolicyFile::parse(text_of(own)?, &own.origin).map_err(|error| error.to_string())?
            }
        };
        let policy = policy.bind(&Arc::new(Queues::new(queues))).map_err(|error| error.to_string())?;
        let search = Search::new(nic, policy).map_err(|error| error.to_string())?;
        Ok(Self { nic: Configured::Searched(Box::new(search)), flows: Vec::new() })
    }

    /// Registers a flow that is not active yet. Flows are numbered in the order of these calls.
    pub(super) fn declare(&mut self, tuple: FlowTuple, high_priority: bool) {
        let class = high_priority.then(|| HIGH_PRIORITY.to_owned());
        let observed = ObservedFlow { class, ..ObservedFlow::new(tuple) };
        self.flows.push(Flow { observed, index: None, is_new: false, queue: 0 });
    }

    pub(super) fn arrive(&mut self, flow: u32) {
        let flow = &mut self.flows[flow as usize];
        flow.is_new = true;
        let nic = match &self.nic {
            Configured::Alone(nic) => nic,
            Configured::Searched(search) => search.nic(),
        };
        flow.queue = nic.queue_of(&flow.observed.tuple).0;
    }

    pub(super) fn configure(&mut self) -> Result<(), SearchError> {
        let Configured::Searched(search) = &mut self.nic else { return Ok(()) };
        let new: Vec<usize> = (0..self.flows.len()).filter(|flow| self.flows[*flow].is_new).collect();
        let observed: Vec<ObservedFlow> = new.iter().map(|flow| self.flows[*flow].observed.clone()).collect();
        let added = if search.map().is_empty() { search.solve(&observed)? } else { search.add(&observed)? };
        for (flow, index) in new.into_iter().zip(added) {
            self.flows[flow].index = Some(index);
            self.flows[flow].is_new = false;
        }
        for flow in &mut self.flows {
            if let Some(queue) = flow.index.and_then(|index| search.map().queue(index)) {
                flow.queue = queue.0;
            }
        }
        Ok(())
    }

    /// Removes flows. Their packets in flight keep their queues.
    pub(super) fn leave(&mut self, flows: std::ops::Range<u32>) {
        for flow in flows {
            let flow = &mut self.flows[flow as usize];
            flow.is_new = false;
            if let (Some(index), Configured::Searched(search)) = (flow.index.take(), &mut self.nic) {
                search.remove(&[index]);
            }
        }
    }

    /// Returns the queue that a flow's packets reach at present.
    #[inline]
    pub(super) fn queue(&self, flow: u32) -> u16 {
        self.flows[flow as usize].queue
    }

    pub(super) fn filters(&self) -> usize {
        match &self.nic {
            Configured::Alone(nic) => nic.filters().count(),
            Configured::Searched(search) => search.nic().filters().count(),
        }
    }

    pub(super) fn misplaced(&self) -> u64 {
        match &self.nic {
            Configured::Alone(_) => 0,
            Configured::Searched(search) => search.policy().class_states().map(|class| class.misplaced).sum(),
        }
    }
}
