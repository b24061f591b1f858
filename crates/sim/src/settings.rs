//! Settings of one simulation: a scenario's link and workload, and a variant's knobs.

use evenkeel_model::scenario::{ByteQueueLimit, ClientGroup, Knobs, Qdisc, QueueChoice, Scenario, Variant};
use evenkeel_model::soft_nic::{XPS_POOLS, place};
use evenkeel_model::units::{BitRate, Nanoseconds};
use evenkeel_transmit::{Policy, Pool};

use crate::error::SimulationError;
use crate::parameters::Parameters;
use crate::segment::{Segment, mss_of};
use crate::tcp::CongestionControl;
use crate::time::{NANOSECOND, Span, span_of};

/// The veth's only transmit queue, whose qdisc is the soft NIC.
pub(crate) const DEVICE_QUEUE: u32 = 0;
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NicModel {
    #[default]
    Hardware,
    Soft {
        /// Number of programs with bulk flows. There may be fewer processors.
        sending_cores: u32,
    },
}

impl NicModel {
    #[must_use]
    #[inline]
    pub const fn is_soft(self) -> bool {
        matches!(self, Self::Soft { .. })
    }

    /// Returns the queue whose qdisc receives a segment for this hardware queue, and the segment with
    /// the mark for the hardware queue.
    #[inline]
    pub(crate) fn qdisc_for(self, queue: u32, segment: Segment) -> (u32, Segment) {
        match self {
            Self::Hardware => (queue, segment),
            // There are no bands: `skb->priority` selects the class. The number fits, because the
            // simulator has at most 256 queues.
            Self::Soft { .. } => (DEVICE_QUEUE, Segment { band: queue as u8, ..segment }),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// In bit/s.
    pub rate: u64,
    pub queues: u32,
    pub processors: u32,
    pub flows: u32,
    /// Payload of a full packet in bytes.
    pub mss: u32,
    pub congestion: CongestionControl,
    pub policy: Policy,
    /// Queues per XPS pool; `None` if every processor may use every queue.
    pub xps_pool: Option<u32>,
    /// Number of queues of each priority of data-centre bridging, in order. Empty if all flows share
    /// all queues.
    pub priorities: Vec<u32>,
    pub priority: u32,
    pub probe_priority: u32,
    /// Groups of clients that fetch values. Each client has one flow. Empty if flows send without requests.
    pub clients: Vec<ClientGroup>,
    /// Whether the NIC serves a queue in proportion to its number of flows (DQWA).
    pub queue_weights: bool,
    /// Largest piece of a segment on a shared queue, in payload bytes (DSOS).
    pub shared_segment: Option<u32>,
    /// Whether all flows of a tasklet enqueue before the qdisc runs.
    pub transmit_batching: bool,
    /// Whether each queue has SFQ below a priority band instead of `pfifo_fast`.
    pub fair_queueing: bool,
    /// Limit of TCP small queues in bytes per socket.
    pub small_queue_limit: Option<u32>,
    pub byte_queue_limit: ByteQueueLimit,
    /// Shortest time between two interrupts of one vector at the sender.
    pub interrupt_interval: Span,
    /// Largest segment in bytes of `skb->len`.
    pub gso_bytes: u32,
    pub offload: bool,
    /// Whether the NIC sends one packet per turn instead of one segment.
    pub interleaving: bool,
    /// Payload of the latency probe's messages in bytes. `None` without a probe.
    pub probe_bytes: Option<u32>,
    pub nic: NicModel,
    /// Whether the NIC handles one event per packet. This is slower and gives the same result.
    pub exact: bool,
}

impl Settings {
    #[must_use]
    pub fn new(scenario: &Scenario, variant: &Variant, rate: BitRate, parameters: &Parameters) -> Self {
        let knobs = variant.knobs();
        let bytes = |size: evenkeel_model::units::ByteSize| u32::try_from(size.bytes()).unwrap_or(u32::MAX);
        Self {
            rate: rate.bits_per_second(),
            queues: knobs.queues.unwrap_or(scenario.link.queues),
            processors: scenario.hosts.sending_cores,
            flows: scenario.workload.flows,
            mss: mss_of(scenario.link.mtu),
            congestion: CongestionControl::named(&scenario.workload.congestion_control).unwrap_or_default(),
            policy: match knobs.queue_choice {
                QueueChoice::Hash => Policy::Hash,
                QueueChoice::Dqa => Policy::Dqa,
            },
            xps_pool: knobs.xps_pool,
            priorities: scenario.link.priorities.clone(),
            priority: scenario.workload.priority,
            probe_priority: scenario.workload.latency.as_ref().map_or(0, |probe| probe.priority),
            clients: scenario.workload.clients().to_vec(),
            queue_weights: knobs.queue_weights,
            shared_segment: knobs.segment_size.map(bytes),
            transmit_batching: knobs.transmit_batching,
            fair_queueing: knobs.qdisc == Qdisc::SfqPrio,
            small_queue_limit: knobs.tcp_small_queues.map(bytes),
            byte_queue_limit: knobs.byte_queue_limit,
            interrupt_interval: knobs
                .interrupt_interval
                .map_or(parameters.default_interrupt_interval, span_of),
            gso_bytes: bytes(knobs.gso_size),
            offload: knobs.tso,
            interleaving: knobs.tso_interleaving,
            probe_bytes: scenario.workload.latency.as_ref().map(|probe| bytes(probe.message)),
            nic: NicModel::Hardware,
            exact: false,
        }
    }

    /// Returns the test bed's equivalent of these settings, on a machine with this many processors.
    #[must_use]
    pub fn on_test_bed(self, processors: u32) -> Self {
        Self {
            nic: NicModel::Soft { sending_cores: self.processors },
            processors: processors.max(1),
            // With XPS pools, the test bed has two pools, or no pools if there is only one queue.
            xps_pool: self.xps_pool.filter(|_| self.queues >= XPS_POOLS).map(|_| self.queues / XPS_POOLS),
            transmit_batching: false,
            fair_queueing: false,
            byte_queue_limit: ByteQueueLimit::Off,
            interrupt_interval: 0,
            interleaving: false,
            ..self
        }
    }

    /// Returns a variant's knobs with the values of these settings, for the record.
    #[must_use]
    pub fn knobs(&self, variant: &Knobs) -> Knobs {
        Knobs {
            queues: Some(self.queues),
            xps_pool: self.xps_pool,
            transmit_batching: self.transmit_batching,
            qdisc: if self.fair_queueing { Qdisc::SfqPrio } else { Qdisc::PfifoFast },
            byte_queue_limit: self.byte_queue_limit,
            interrupt_interval: Some(Nanoseconds::new(self.interrupt_interval / NANOSECOND)),
            tso_interleaving: self.interleaving,
            ..variant.clone()
        }
    }

    /// Returns the queues that flows of a priority may use from a processor: the queues of the
    /// priority, and with XPS only the processor's pool within them.
    #[must_use]
    pub fn pool(&self, priority: u32, processor: u32) -> Pool {
        let own = self.priority_pool(priority);
        match self.xps_pool {
            None => own,
            Some(size) => {
                let (size, pools) = match self.nic {
                    NicModel::Hardware => {
                        let size = size.clamp(1, own.count.max(1));
                        (size, (own.count / size).max(1))
                    }
                    NicModel::Soft { .. } => {
                        let pools = XPS_POOLS.clamp(1, own.count.max(1));
                        (own.count / pools, pools)
                    }
                };
                let pool = processor % pools;
                // The last pool takes the remainder.
                let count = if pool + 1 == pools { own.count - pool * size } else { size };
                Pool { first: own.first + pool * size, count }
            }
        }
    }

    /// Returns the queues of a priority. Without priorities, returns all queues.
    fn priority_pool(&self, priority: u32) -> Pool {
        match self.priorities.get(priority as usize) {
            Some(&count) => Pool { first: self.priorities[..priority as usize].iter().sum(), count },
            None => Pool { first: 0, count: self.queues },
        }
    }

    #[must_use]
    pub fn flow_priorities(&self) -> Vec<u32> {
        let groups = self.clients.iter();
        let priorities = groups.flat_map(|group| std::iter::repeat_n(group.priority, group.count as usize));
        priorities.chain(std::iter::repeat(self.priority)).take(self.flows as usize).collect()
    }

    pub(crate) fn check_groups(&self) -> Result<(), SimulationError> {
        let wrong = |what, range, value| Err(SimulationError::Range { what, range, value });
        let clients: u64 = self.clients.iter().map(|group| u64::from(group.count)).sum();
        if clients != u64::from(self.flows) && !self.clients.is_empty() {
            return wrong("the number of clients", "the number of flows", clients);
        }
        let pooled: u64 = self.priorities.iter().copied().map(u64::from).sum();
        if pooled != u64::from(self.queues) && !self.priorities.is_empty() {
            return wrong("the sum of the queues of all priorities", "the number of queues", pooled);
        }
        if self.priorities.contains(&0) {
            return wrong("the number of a priority's queues", "at least 1", 0);
        }
        let named = self.flow_priorities().into_iter().chain([self.probe_priority]).max().unwrap_or(0);
        if named as usize >= self.priorities.len().max(1) {
            return wrong("a priority", "an existing one", named.into());
        }
        Ok(())
    }

    /// Returns the processor of each flow's application. For bulk flows, half of the processors have
    /// twice as many flows as the other half (Titan, section 5). A server assigns its clients'
    /// connections to its threads round robin, as memcached does (`dispatch_conn_new` in its thread.c).
    #[must_use]
    pub fn placement(&self) -> Vec<u32> {
        let processors = self.processors.max(1);
        if let NicModel::Soft { sending_cores } = self.nic {
            // Use the test bed's rule. It uses fewer cores if the flows then divide exactly.
            return place(self.flows, sending_cores, processors)
                .into_iter()
                .flat_map(|core| (0..core.flows).map(move |_| core.processor))
                .collect();
        }
        if !self.clients.is_empty() {
            return (0..self.flows).map(|flow| flow % processors).collect();
        }
        // Place flows in rounds: two flows on each crowded processor, one flow on each other processor.
        let crowded = processors.div_ceil(2);
        let turn = (0..crowded).chain(0..processors);
        (0..self.flows)
            .zip(turn.collect::<Vec<_>>().into_iter().cycle())
            .map(|(_, processor)| processor)
            .collect()
    }
}
