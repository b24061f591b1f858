//! A running test bed: two namespaces, the veth pair, the NIC and the BPF programs.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::{
    BacklogControl, BalanceControl, ControlOptions, Controller, DeviceSegments, HeldMoves, HtbWeights,
    OpenGate, OutputLimit, RouteRefresh, SegmentControl, WeightControl,
};
use evenkeel_datapath::{
    Completion, HookKind, Meter, MeterOptions, QueueSelect, Rule, SelectOptions, Steering,
};
use evenkeel_model::scenario::Topology;
use evenkeel_model::units::BitRate;
use evenkeel_netlink::Netlink;
use evenkeel_netlink::tc::Statistics;
use evenkeel_transmit::segments::{SegmentGoal, SegmentOptions};
use evenkeel_transmit::service::ServiceOptions;
use evenkeel_transmit::{Policy, Pool};

use crate::error::TestbedError;
use crate::namespace::Namespace;
use crate::nic::{LeafQdisc, Nic, NicOptions};
use crate::wire::{self, Wire};

#[derive(Clone, Debug)]
pub struct BedOptions {
    pub topology: Topology,
    pub rate: BitRate,
    pub queues: u32,
    pub leaf: LeafQdisc,
    pub policy: Policy,
    /// XPS pools. If empty, every CPU may use every queue.
    pub pools: Vec<Pool>,
    /// Layer-3 MTU, bytes.
    pub mtu: u32,
    /// Size of the largest GSO packet, bytes; `None`: the device's default.
    pub gso_max_size: Option<u32>,
    /// Whether the sending device uses TSO and GSO. If not, TCP sends single segments.
    pub segmentation_offload: bool,
    /// Dynamic queue weights, for the soft NIC only.
    pub queue_weights: bool,
    /// Service balancing: flows that share queues alternate between these queues. Only for `mq` with
    /// dynamic queue assignment.
    pub service_balancing: bool,
    /// Rules for flow weights. If empty, all flows have weight 1.
    pub flow_weights: Vec<Rule>,
    /// Segment size while flows share queues (dynamic segment size), bytes.
    pub segment_size: Option<u32>,
    pub sender_sysctls: Vec<(String, String)>,
    pub max_flows: u32,
    pub meter: Option<MeterOptions>,
    pub completion: Completion,
}

impl Default for BedOptions {
    fn default() -> Self {
        Self {
            topology: Topology::SoftNic,
            rate: BitRate::from_bits_per_second(1_000_000_000),
            queues: 8,
            leaf: LeafQdisc::Pfifo(1000),
            policy: Policy::Hash,
            pools: Vec::new(),
            mtu: 1500,
            gso_max_size: None,
            segmentation_offload: true,
            queue_weights: false,
            service_balancing: false,
            flow_weights: Vec::new(),
            segment_size: None,
            sender_sysctls: Vec::new(),
            max_flows: 131_072,
            meter: None,
            completion: Completion::Sockets,
        }
    }
}

impl BedOptions {
    fn transmit_queues(&self) -> u32 {
        match self.topology {
            Topology::SoftNic => 1,
            Topology::Mq => self.queues,
        }
    }
}

/// A running test bed. Dropping the test bed removes all its objects.
pub struct Bed {
    /// Controls queue weights, segment sizes and service balancing, if the options require it. The controller
    /// is the first field, so that it is dropped before the devices.
    pub controller: Option<Controller>,
    pub select: QueueSelect,
    pub meter: Option<Meter>,
    pub nic: Nic,
    pub sender: Namespace,
    pub receiver: Namespace,
    sender_netlink: Netlink,
    sender_index: u32,
}

/// Smallest ageing limit if ageing is only the fallback for another completion. The limit must exceed a
/// scheduling delay.
const AGEING_FLOOR_WITH_COMPLETION_NS: u64 = 200_000_000;
/// Silence after which a flow without a socket has no packet in its queue. The FIFOs of the test bed
/// drain in a small part of this time.
const FLOW_GAP_US: u32 = 50_000;
const AGEING_FLOOR_ALONE_NS: u64 = 20_000_000;

impl Bed {
    /// Builds the test bed.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a part. The function then removes the parts that are
    /// already built.
    pub fn build(options: &BedOptions) -> Result<Self, TestbedError> {
        let Wire { sender, receiver, mut sender_netlink, mut receiver_netlink, sender_index, receiver_index } =
            Wire::lay(options.transmit_queues(), options.mtu, &options.sender_sysctls)?;
        if let Some(bytes) = options.gso_max_size {
            sender_netlink.set_gso_max_size(sender_index, bytes)?;
        }
        if !options.segmentation_offload {
            // Disabling the device's TSO and GSO does not suffice. Since Linux 4.17 TCP always builds
            // GSO packets. The kernel would segment these packets after the queues.
            sender_netlink.set_gso_max_segments(sender_index, 1)?;
        }
        let nic_options = NicOptions {
            topology: options.topology,
            rate: options.rate,
            queues: options.queues,
            leaf: options.leaf,
        };
        sender_netlink.set_up(sender_index)?;
        receiver_netlink.set_up(receiver_index)?;
        wire::steer_receives_by_flow(&receiver, options.transmit_queues())?;
        let nic = Nic::build(&mut sender_netlink, sender_index, &nic_options)?;

        let mut select = QueueSelect::load(&SelectOptions {
            policy: options.policy,
            steering: match options.topology {
                Topology::SoftNic => Steering::Class(nic.first_class_id()),
                Topology::Mq => Steering::Queue,
            },
            queues: options.queues,
            pools: options.pools.clone(),
            rate_bps: options.rate.bits_per_second(),
            completion: options.completion,
            ageing_floor_ns: match options.completion {
                Completion::Ageing => AGEING_FLOOR_ALONE_NS,
                Completion::Sockets | Completion::Exact | Completion::Peer => AGEING_FLOOR_WITH_COMPLETION_NS,
            },
            gap_us: FLOW_GAP_US,
            max_flows: options.max_flows,
            movable: options.service_balancing,
            hook: HookKind::Tcx,
        })?;
        select.set_rules(&options.flow_weights)?;
        receiver.run(|| Ok(select.attach_peer(receiver_index.cast_signed())?))?;
        sender.run(|| Ok(select.attach(sender_index.cast_signed())?))?;
        let meter = match &options.meter {
            Some(meter) => Some(receiver.run(|| Ok(Meter::attach(meter, receiver_index.cast_signed())?))?),
            None => None,
        };
        let controller = control(options, &sender, sender_index, &nic, &select)?;
        Ok(Self { controller, select, meter, nic, sender, receiver, sender_netlink, sender_index })
    }

    pub fn queue_statistics(&mut self) -> Result<Vec<Statistics>, TestbedError> {
        self.nic.queue_statistics(&mut self.sender_netlink)
    }

    /// Returns whether the hardware queues are the device's own transmit queues.
    pub(crate) fn nic_is_mq(&self) -> bool {
        self.nic.topology() == Topology::Mq
    }

    /// Sets the limit of every hardware queue of the soft NIC, in packets. The limits can change while flows
    /// run.
    pub fn set_queue_limits(&mut self, limit_packets: u32) -> Result<(), TestbedError> {
        let queues = self.select.weights().len() as u32;
        (0..queues)
            .try_for_each(|queue| self.nic.set_queue_limit(&mut self.sender_netlink, queue, limit_packets))
    }
}

const CONTROL_INTERVAL: Duration = Duration::from_millis(10);
/// Time constant of the moving average of queue weights: a few rounds of all flows at 1 Gbit/s and above.
const WEIGHT_SMOOTHING: Duration = Duration::from_millis(50);
const WEIGHT_INTERVAL: Duration = Duration::from_millis(1);
/// Time for which flows must share queues before segments shrink.
const SHRINK_AFTER_NS: u64 = 100_000_000;
/// Time for which no flows may share a queue before segments grow again.
const GROW_AFTER_NS: u64 = 5_000_000_000;
fn control(
    options: &BedOptions,
    sender: &Namespace,
    interface: u32,
    nic: &Nic,
    select: &QueueSelect,
) -> Result<Option<Controller>, TestbedError> {
    let shaped = options.queue_weights || options.segment_size.is_some();
    if !shaped && !options.service_balancing {
        return Ok(None);
    }
    let balance = match options.service_balancing {
        true => {
            let mover = sender.run(|| Ok(select.attach_mover(interface.cast_signed())?))?;
            Some(BalanceControl {
                backend: Box::new(HeldMoves::new(mover)),
                options: ServiceOptions::default(),
            })
        }
        false => None,
    };
    let (routes, limit) =
        sender.run(|| Ok((RouteRefresh::open()?, OutputLimit::open(Arc::new(OpenGate))?)))?;
    let segments = DeviceSegments::new(sender.netlink()?, interface, routes, Arc::new(OpenGate))?;
    let largest = segments.original().ipv4;
    let weights = if options.queue_weights {
        let mut htb = HtbWeights::new(sender.netlink()?, interface, nic.htb_queues(), Arc::new(OpenGate));
        if !options.flow_weights.is_empty() {
            htb = htb.with_guaranteed_rates();
        }
        Some(WeightControl {
            backend: Box::new(htb),
            smoothing: WEIGHT_SMOOTHING,
            least_interval: WEIGHT_INTERVAL,
        })
    } else {
        None
    };
    let segments = options.segment_size.map(|bytes| SegmentControl {
        backend: Box::new(segments),
        options: SegmentOptions {
            goal: SegmentGoal::Fixed(bytes),
            largest,
            shrink_after_ns: SHRINK_AFTER_NS,
            grow_after_ns: GROW_AFTER_NS,
        },
    });
    Ok(Some(Controller::start(ControlOptions {
        view: select.view()?,
        interval: CONTROL_INTERVAL,
        weights,
        segments,
        backlog: shaped.then(|| BacklogControl {
            backend: Box::new(limit),
            rate_bps: Some(options.rate.bits_per_second()),
        }),
        balance,
        segment_bytes: largest,
    })?))
}

impl Drop for Bed {
    fn drop(&mut self) {
        // The link is deleted, so no setting needs to be restored. First stop the thread that uses the
        // link.
        drop(self.controller.take());
        // Delete the link now, because the kernel may clean up the namespaces later.
        let _ = self.sender_netlink.delete_link(self.sender_index);
    }
}
