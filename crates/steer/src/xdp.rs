//! Software back end: an XDP program sends packets to CPUs through CPU maps.
//!
//! The back end works with any driver that supports XDP. A queue corresponds to a CPU, and the model is
//! `xdp-cpumap`. The process owns the BPF link, so the kernel detaches the program when the process
//! ends.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use evenkeel_apply::Report;
use evenkeel_datapath::{
    INDIRECTION_LENGTH, MAX_CLASS_TARGETS, MAX_STEERED_CLASSES, MAX_STEERED_FLOWS, MaskedAddress, MaskedPort,
    ReceiveSteering, SteerTarget, SteeredClass, SteeringOptions, Tuple,
};
use evenkeel_host::SocketName;
use evenkeel_netlink::Netlink;
use evenkeel_receive::{
    AddressMatch, ConfiguredNic, FilterMatch, FlowTuple, HashedPorts, NicModel, PortMatch, QueueId, RssKey,
    Transport,
};

use crate::backend::{Applied, Backend, Placement, QueueCount, Traffic};
use crate::error::SteerError;
use crate::interface::Interface;

/// How the program applies its decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// Steers as the policy requires.
    #[default]
    Policy,
    /// Hashes over all queues as RSS does, with the same program. This mode is a baseline with the same
    /// cost.
    Hash,
    /// Chooses targets as with a policy, but does not redirect packets. This mode measures the cost of
    /// the program.
    Pass,
}

const MODEL: &str = "xdp-cpumap";

/// Time in which the thread of a ring empties the ring, unless its CPU is overloaded.
const SETTLE: Duration = Duration::from_millis(20);

pub struct XdpBackend {
    steering: ReceiveSteering,
    /// The NIC with the default indirection table, and without filters.
    default_nic: ConfiguredNic,
    processors: Vec<u32>,
    mode: XdpMode,
    interface: Interface,
    program: u32,
    /// Flows that have a slot, and their queues. With `None`, the flow follows the rules, and its slot
    /// only counts packets.
    slots: HashMap<Tuple, Option<QueueId>>,
    classes: Vec<SteeredClass>,
    indirection: Vec<QueueId>,
    /// Counters of the flows without a slot.
    seen: HashMap<FlowTuple, Traffic>,
    /// Claim of the interface, held until the program is detached.
    alone: Option<SocketName>,
}

impl XdpBackend {
    /// Loads the program and attaches it. Every packet stays on its CPU until a configuration is
    /// applied.
    ///
    /// # Errors
    /// Returns an error if the driver accepts no XDP program, another program is attached, another session
    /// steers the interface, or privileges are missing.
    pub fn attach(interface: &Interface, processors: &[u32], mode: XdpMode) -> Result<Self, SteerError> {
        interface.check_privileges()?;
        // Claim the interface first, because the program of a session that is ending may still be
        // attached.
        let alone = interface.steer_alone()?;
        interface.check_free_xdp()?;
        let model = NicModel::built_in(MODEL)
            .ok_or_else(|| SteerError::Usage(format!("the model {MODEL} is not built in")))?;
        let queues = u16::try_from(processors.len()).unwrap_or(u16::MAX);
        let mut default_nic = ConfiguredNic::new(&model, queues)?;
        default_nic.set_rss_key(RssKey(evenkeel_datapath::DEFAULT_RSS_KEY));
        default_nic.set_hashed_ports(HashedPorts::ALL);
        let mut steering = ReceiveSteering::load(&SteeringOptions {
            pass: mode == XdpMode::Pass,
            cpus: processors.to_vec(),
            ..SteeringOptions::default()
        })?;
        steering.attach(interface.index.cast_signed())?;
        let program = steering.program_id()?;
        Ok(Self {
            steering,
            default_nic,
            processors: processors.to_vec(),
            mode,
            interface: interface.clone(),
            program,
            slots: HashMap::new(),
            classes: Vec::new(),
            indirection: Vec::new(),
            seen: HashMap::new(),
            alone,
        })
    }

    fn target(&self, queue: QueueId) -> SteerTarget {
        self.processors.get(queue.index()).map_or(SteerTarget::Stay, |cpu| SteerTarget::Cpu(*cpu))
    }

    fn class(&self, matches: &FilterMatch, queues: &[QueueId]) -> SteeredClass {
        SteeredClass {
            protocol: matches.transport.map(Transport::number),
            source: matches.source.map(address),
            source_port: matches.source_port.map(port),
            destination: matches.destination.map(address),
            destination_port: matches.destination_port.map(port),
            targets: queues.iter().take(MAX_CLASS_TARGETS).map(|queue| self.target(*queue)).collect(),
        }
    }

    /// Assigns slots to flows, or sets the targets of their slots.
    fn set_flows(
        &mut self,
        wanted: &HashMap<Tuple, Option<QueueId>>,
        applied: &mut Applied,
    ) -> Result<(), SteerError> {
        for (tuple, queue) in wanted {
            let before = self.slots.get(tuple).copied();
            if before == Some(*queue) {
                continue;
            }
            let target = queue.map_or(SteerTarget::Rules, |queue| self.target(queue));
            self.steering.set_flow(tuple, target)?;
            self.slots.insert(*tuple, *queue);
            match (before.flatten(), queue) {
                (None, Some(_)) => applied.inserted += 1,
                (Some(_), Some(_)) => applied.replaced += 1,
                (Some(_), None) => applied.removed += 1,
                (None, None) => {}
            }
        }
        Ok(())
    }
}

fn address(matches: AddressMatch) -> MaskedAddress {
    MaskedAddress { address: matches.address(), mask: matches.mask() }
}

fn port(matches: PortMatch) -> MaskedPort {
    MaskedPort { port: matches.port(), mask: matches.mask() }
}

fn tuple_of(flow: &FlowTuple) -> Tuple {
    Tuple {
        source: flow.source,
        source_port: flow.source_port,
        destination: flow.destination,
        destination_port: flow.destination_port,
        protocol: flow.transport.number(),
    }
}

fn flow_of(tuple: &Tuple) -> Option<FlowTuple> {
    let transport = [Transport::Tcp, Transport::Udp]
        .into_iter()
        .find(|transport| transport.number() == tuple.protocol)?;
    Some(FlowTuple {
        transport,
        source: tuple.source,
        source_port: tuple.source_port,
        destination: tuple.destination,
        destination_port: tuple.destination_port,
    })
}

impl Backend for XdpBackend {
    fn name(&self) -> &'static str {
        "xdp"
    }

    fn nic(&mut self) -> Result<ConfiguredNic, SteerError> {
        Ok(self.default_nic.clone())
    }

    fn processors(&self) -> &[u32] {
        &self.processors
    }

    fn apply(&mut self, found: &Placement<'_>) -> Result<Applied, SteerError> {
        let mut applied = Applied::default();
        let nic = found.nic;
        let default = nic.default_indirection();
        let follows = self.mode != XdpMode::Hash;
        let indirection = if follows { nic.indirection() } else { &default[..] };
        // Known flows get at most half of the slots, flows with their own filter first. With a slot, the flow
        // moves in order and is counted.
        let mut wanted: HashMap<Tuple, Option<QueueId>> = HashMap::new();
        let mut classes = Vec::new();
        for (table, _) in nic.model().table_ids() {
            for (_, filter) in nic.filters_by_rank(table).filter(|_| follows) {
                match filter.matches.as_flow() {
                    Some(flow) => {
                        wanted.insert(tuple_of(&flow), Some(filter.queue));
                    }
                    None => classes.push(self.class(&filter.matches, &[filter.queue])),
                }
            }
        }
        for (flow, queue) in found.flows {
            if wanted.len() < MAX_STEERED_FLOWS / 2 {
                wanted.entry(tuple_of(flow)).or_insert(Some(*queue).filter(|_| follows));
            }
        }
        // Unknown flows go to the queues of their class.
        for (matches, queues) in
            found.classes.iter().filter(|(matches, _)| follows && *matches != FilterMatch::ANY)
        {
            if classes.len() < MAX_STEERED_CLASSES && !queues.is_empty() {
                classes.push(self.class(matches, queues));
            }
        }
        // Assign slots first, so that flows that the new rules move stay in order. Then change the
        // rules, and remove slots last. Every flow has a target at any time.
        self.set_flows(&wanted, &mut applied)?;
        if classes != self.classes || indirection != self.indirection {
            let mut targets = [SteerTarget::Stay; INDIRECTION_LENGTH];
            for (target, queue) in targets.iter_mut().zip(indirection) {
                *target = self.target(*queue);
            }
            self.steering.set_rules(&classes, &targets)?;
            let had = |class: &&SteeredClass| !self.classes.contains(class);
            applied.inserted += classes.iter().filter(had).count();
            applied.removed += self.classes.iter().filter(|class| !classes.contains(class)).count();
            let changed = |pair: &(&QueueId, &QueueId)| pair.0 != pair.1;
            applied.redirected = match self.indirection.is_empty() {
                true => indirection.len(),
                false => indirection.iter().zip(&self.indirection).filter(changed).count(),
            };
            (self.classes, self.indirection) = (classes, indirection.to_vec());
        }
        let gone: Vec<Tuple> =
            self.slots.keys().filter(|tuple| !wanted.contains_key(tuple)).copied().collect();
        for tuple in gone {
            self.steering.remove_flow(&tuple)?;
            applied.removed += usize::from(self.slots.remove(&tuple).flatten().is_some());
        }
        Ok(applied)
    }

    fn check(&mut self) -> Result<Option<String>, SteerError> {
        self.alone.iter().for_each(SocketName::answer);
        self.steering.settle_losses();
        let link = Netlink::open()?.link(self.interface.index)?;
        if let Some(difference) = self.interface.difference(link.as_ref()) {
            return Ok(Some(difference));
        }
        let Some(link) = link else { return Ok(None) };
        match link.xdp_program {
            Some(program) if program == self.program => Ok(None),
            Some(program) => {
                Ok(Some(format!("another program replaced evenkeel's XDP program by XDP program {program}")))
            }
            None => Ok(Some("another program detached the XDP program of evenkeel".to_owned())),
        }
    }

    fn finish(mut self: Box<Self>) -> Result<Report, SteerError> {
        let was_attached = self.steering.detach()?;
        let deleted = (!was_attached).then(|| format!("the XDP program left {}", self.interface.name));
        Ok(Report { deleted, ..Report::default() })
    }

    fn traffic(&mut self) -> Result<HashMap<FlowTuple, Traffic>, SteerError> {
        let mut traffic = HashMap::new();
        let mut counted = HashSet::new();
        for flow in self.steering.flows() {
            if let Some(tuple) = flow_of(&flow.tuple) {
                counted.insert(tuple);
                traffic.insert(tuple, Traffic { packets: flow.packets, bytes: flow.bytes });
            }
        }
        let mut fresh = HashSet::new();
        for seen in self.steering.take_seen()? {
            let Some(tuple) = flow_of(&seen.tuple) else { continue };
            let total = self.seen.entry(tuple).or_default();
            total.packets += seen.packets;
            total.bytes += seen.bytes;
            fresh.insert(tuple);
        }
        // The slot itself counts the packets of its flow. Remove flows without packets since the last read.
        self.seen.retain(|tuple, _| fresh.contains(tuple) && !counted.contains(tuple));
        traffic.extend(self.seen.iter().map(|(tuple, seen)| (*tuple, *seen)));
        Ok(traffic)
    }

    fn settle(&mut self) {
        for _ in 0..2 {
            self.steering.settle_losses();
            std::thread::sleep(SETTLE);
        }
        self.steering.settle_losses();
    }

    fn queue_counts(&self) -> Option<Vec<QueueCount>> {
        let counters = self.steering.counters();
        let count = |cpu: &u32| {
            let counted = counters.get(*cpu as usize).copied().unwrap_or_default();
            QueueCount { packets: counted.dequeued, lost: counted.lost }
        };
        Some(self.processors.iter().map(count).collect())
    }

    /// A baseline ignores the policy, and only a policy places single flows.
    fn knows_queues(&self) -> bool {
        self.mode == XdpMode::Policy
    }

    fn queue_without_policy(&self, flow: &FlowTuple) -> Option<QueueId> {
        (self.mode == XdpMode::Hash).then(|| self.default_nic.unfiltered_queue_of(flow))
    }

    fn remarks(&self) -> Vec<String> {
        let counters = self.steering.counters();
        let sum = |count: fn(&evenkeel_datapath::CpuCounters) -> u64| counters.iter().map(count).sum::<u64>();
        let moved: (u64, u64) = self.steering.flows().iter().fold((0, 0), |(moves, forced), flow| {
            (moves + u64::from(flow.moves), forced + u64::from(flow.forced))
        });
        let mut remarks = Vec::new();
        match self.mode {
            XdpMode::Policy => {}
            XdpMode::Hash => remarks.push(
                "a baseline: flows are hashed over all queues, and the policy is not applied".to_owned(),
            ),
            XdpMode::Pass => remarks.push(
                "a baseline: packets stay on the receiving processor, and the policy is not applied"
                    .to_owned(),
            ),
        }
        let partial = sum(|cpu| cpu.partial);
        if partial > 0 {
            remarks.push(format!(
                "{partial} packets from senders on this host had a partial checksum, which the program completed; \
                 `ethtool -K DEVICE tx off` on the sender's device avoids this work"
            ));
        }
        let refused = sum(|cpu| cpu.refused) + self.steering.unmapped();
        if refused > 0 {
            remarks.push(format!(
                "{refused} packets could not be sent to their processor and stayed on the receiving processor"
            ));
        }
        if moved.1 > 0 {
            remarks.push(format!(
                "{} of {} flow moves did not wait until the old ring was empty: packets of these flows may be reordered",
                moved.1, moved.0
            ));
        }
        remarks
    }

    fn shell(&self, _: &ConfiguredNic) -> Option<String> {
        None
    }
}
