//! One simulation's settings: a scenario's link and workload, and a variant's knobs.

use evenkeel_model::scenario::{ByteQueueLimit, Qdisc, QueueChoice, Scenario, Variant};
use evenkeel_model::units::BitRate;
use evenkeel_transmit::{Policy, Pool};

use crate::parameters::Parameters;
use crate::segment::HEADER_BYTES;
use crate::tcp::CongestionControl;
use crate::time::{NANOSECOND, Span};

/// What two hosts and the traffic between them are like.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Line rate, bit/s.
    pub rate: u64,
    /// Transmit queues in use.
    pub queues: u32,
    /// The sender's processors.
    pub processors: u32,
    /// Bulk flows.
    pub flows: u32,
    /// Payload of a full packet, bytes.
    pub mss: u32,
    /// TCP congestion control of the bulk flows.
    pub congestion: CongestionControl,
    /// How a flow gets its queue.
    pub policy: Policy,
    /// Queues per pool of XPS; none when every processor may use every queue.
    pub xps_pool: Option<u32>,
    /// The NIC serves a queue in proportion to the flows on it (DQWA).
    pub queue_weights: bool,
    /// Largest piece of a segment on a shared queue, payload bytes (DSOS).
    pub shared_segment: Option<u32>,
    /// All flows that a tasklet lets send enqueue before the qdisc runs.
    pub transmit_batching: bool,
    /// In front of each queue: SFQ under a priority band, and not `pfifo_fast`.
    pub fair_queueing: bool,
    /// TCP small queues, bytes per socket.
    pub small_queue_limit: Option<u32>,
    /// Byte queue limits.
    pub byte_queue_limit: ByteQueueLimit,
    /// Shortest time between two interrupts of one vector at the sender.
    pub interrupt_interval: Span,
    /// Largest segment, bytes of `skb->len`.
    pub gso_bytes: u32,
    /// Segmentation offload.
    pub offload: bool,
    /// The NIC sends a packet of each queue in turn, and not a segment.
    pub interleaving: bool,
    /// Payload of the latency probe's messages, if it runs.
    pub probe_bytes: Option<u32>,
    /// One event per packet in the NIC: slow, and the same result.
    pub exact: bool,
}

impl Settings {
    /// The settings of a scenario's variant at a rate.
    #[must_use]
    pub fn new(scenario: &Scenario, variant: &Variant, rate: BitRate, parameters: &Parameters) -> Self {
        let knobs = &variant.knobs;
        let bytes = |size: evenkeel_model::units::ByteSize| u32::try_from(size.bytes()).unwrap_or(u32::MAX);
        // The MTU counts from the IP header on.
        let mss = bytes(scenario.link.mtu).saturating_sub(HEADER_BYTES - 14).max(1);
        Self {
            rate: rate.bits_per_second(),
            queues: knobs.queues.unwrap_or(scenario.link.queues),
            processors: scenario.hosts.sending_cores,
            flows: scenario.workload.flows,
            mss,
            congestion: match scenario.workload.congestion_control.as_str() {
                "reno" => CongestionControl::Reno,
                _ => CongestionControl::Cubic,
            },
            policy: match knobs.queue_choice {
                QueueChoice::Hash => Policy::Hash,
                QueueChoice::Dqa => Policy::Dqa,
            },
            xps_pool: knobs.xps_pool,
            queue_weights: knobs.queue_weights,
            shared_segment: knobs.segment_size.map(bytes),
            transmit_batching: knobs.transmit_batching,
            fair_queueing: knobs.qdisc == Qdisc::SfqPrio,
            small_queue_limit: knobs.tcp_small_queues.map(bytes),
            byte_queue_limit: knobs.byte_queue_limit,
            interrupt_interval: knobs
                .interrupt_interval
                .map_or(parameters.default_interrupt_interval, |interval| interval.as_u64() * NANOSECOND),
            gso_bytes: bytes(knobs.gso_size),
            offload: knobs.tso,
            interleaving: knobs.tso_interleaving,
            probe_bytes: scenario.workload.latency.as_ref().map(|probe| bytes(probe.message)),
            exact: false,
        }
    }

    /// The queues that a processor may use.
    #[must_use]
    pub fn pool(&self, processor: u32) -> Pool {
        match self.xps_pool {
            None => Pool { first: 0, count: self.queues },
            Some(size) => {
                let size = size.clamp(1, self.queues);
                let pools = (self.queues / size).max(1);
                let pool = processor % pools;
                // The last pool takes what does not divide.
                let count = if pool + 1 == pools { self.queues - pool * size } else { size };
                Pool { first: pool * size, count }
            }
        }
    }

    /// The processor of each flow's application: half of them carry twice as many flows as the others
    /// (Titan, section 5).
    #[must_use]
    pub fn placement(&self) -> Vec<u32> {
        let processors = self.processors.max(1);
        // In turns of three: two flows on each crowded processor, one on each of the others.
        let crowded = processors.div_ceil(2);
        let turn = (0..crowded).chain(0..processors);
        (0..self.flows)
            .zip(turn.collect::<Vec<_>>().into_iter().cycle())
            .map(|(_, processor)| processor)
            .collect()
    }
}
