//! Flows and queues of a device, for display and for scripts.

use std::collections::HashMap;

use evenkeel_apply::{Direction, FilterPlace, Run};
use evenkeel_datapath::{Meter, MeterOptions, NO_QUEUE, QueueSelect, Tuple, monotonic_ns};
use evenkeel_netlink::Netlink;
use evenkeel_netlink::tc::Handle;
use serde::Serialize;

use crate::device::Device;
use crate::error::FairError;
use crate::hooks;
use crate::soft_nic::SoftNic;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowView {
    /// Address and port.
    pub source: String,
    /// Address and port.
    pub destination: String,
    /// `tcp`, `udp` or the protocol number.
    pub protocol: String,
    /// `None` if unknown.
    pub queue: Option<u32>,
    /// Bytes on the wire since observation began.
    pub bytes: u64,
    /// Share of the bytes of all flows of the device since observation began, 0 to 1.
    pub share: f64,
    /// Whether it sent throughout the last second; `None` before the first whole second.
    pub busy: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueView {
    pub queue: u32,
    /// Number of flows on the queue that sent throughout the last second; `None` before the first whole second.
    pub busy_flows: Option<u32>,
    /// Bytes by the device's counters since observation began; `None` if the device does not count by queue.
    pub bytes: Option<u64>,
}

/// The normalised fairness metric at one second (see `docs/reference/metrics.md`), over the flows that sent
/// in each tenth of a window. The line rate is the sum of these flows' rates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NfmView {
    /// Mean over the windows.
    pub mean: f64,
    /// Maximum over the windows.
    pub max: f64,
    /// Number of windows in which flows competed.
    pub windows: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceView {
    pub name: String,
    /// `None` if the driver does not report it.
    pub driver: Option<String>,
    /// `None` while the device is down.
    pub root_qdisc: Option<String>,
    pub queues: Vec<QueueView>,
    /// Flows that sent since observation began, the largest first.
    pub flows: Vec<FlowView>,
    /// Number of busy flows that share a queue with another busy flow; `None` before the first whole second.
    pub colliding_flows: Option<u32>,
    /// How to give the device more queues, if that is possible.
    pub advice: Option<String>,
    /// `None` if no two flows competed.
    pub nfm_1s: Option<NfmView>,
}

/// Formats source, destination and protocol of a flow.
#[must_use]
pub fn endpoints(tuple: &Tuple) -> (String, String, String) {
    let protocol = match tuple.protocol {
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        number => number.to_string(),
    };
    let end = |address, port| std::net::SocketAddr::new(address, port).to_string();
    (end(tuple.source, tuple.source_port), end(tuple.destination, tuple.destination_port), protocol)
}

/// A flow at the time of a sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowSample {
    /// Bytes on the wire since the meter was attached.
    pub(crate) bytes: u64,
    pub(crate) queue: Option<u32>,
}

/// A device at the time of a sample.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) at_ns: u64,
    pub(crate) flows: HashMap<Tuple, FlowSample>,
    /// Bytes of all flows since the meter was attached, including flows without payload (pure ACKs).
    pub(crate) metered_bytes: u64,
    /// Whether some packets were not counted because the meter was full.
    pub(crate) incomplete: bool,
    /// `None` if the device does not count by queue.
    pub(crate) queue_bytes: Option<Vec<u64>>,
    /// Number that increases when the flows' bytes restart at 0.
    pub(crate) epoch: u32,
}

/// Reads flows and counters of a device.
pub(crate) struct Sampler {
    meter: Meter,
    netlink: Netlink,
    index: u32,
    queues: u32,
    counters: QueueCounters,
    epoch: u32,
    /// The meter's filter, if the kernel has no tcx hooks.
    filter: Option<FilterPlace>,
}

/// The source of the bytes by queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueCounters {
    None,
    /// The children of the mq root with this major number.
    Mq(u16),
    Classes(SoftNic),
}

impl QueueCounters {
    pub(crate) fn of(device: &Device) -> Self {
        match &device.root {
            Some(root) if device.counts_by_queue() => Self::Mq(root.handle.major),
            _ => Self::None,
        }
    }
}

/// Number of flows that the meter can hold. Beyond it, a new meter is attached.
pub(crate) const METERED_FLOWS: u32 = 16_384;

/// Attaches a meter by tcx, or as a filter that a run journals.
fn attach_meter(index: u32, run: Option<&mut Run>) -> Result<(Meter, Option<FilterPlace>), FairError> {
    // Bins are not used: at high rates a bin overflows within a window.
    let options = MeterOptions { flows: METERED_FLOWS, bins: 1, bin_ns: 1_000_000 };
    let Some(run) = run else { return Ok((Meter::attach_egress(&options, index.cast_signed())?, None)) };
    let meter = Meter::load_for_filter(&options)?;
    let program = (meter.program()?, meter.program_id()?);
    let filter = hooks::attach(run, index, Direction::Egress, program, "evenkeel count_sent")?;
    Ok((meter, Some(filter)))
}

impl Sampler {
    /// Attaches to a device in the calling thread's network namespace. With a run, it attaches by a filter.
    pub(crate) fn attach(
        index: u32,
        queues: u32,
        counters: QueueCounters,
        run: Option<&mut Run>,
    ) -> Result<Self, FairError> {
        let (meter, filter) = attach_meter(index, run)?;
        Ok(Self { meter, netlink: Netlink::open()?, index, queues, counters, epoch: 0, filter })
    }

    /// Detaches the meter.
    pub(crate) fn detach(self, run: &mut Run) -> Result<(), FairError> {
        self.filter.map_or(Ok(()), |filter| hooks::detach(run, filter))
    }

    /// Returns the id of the meter's current program.
    pub(crate) fn program(&self) -> Result<u32, FairError> {
        Ok(self.meter.program_id()?)
    }

    /// Returns the processor time of the meter since it was attached, ns; 0 unless the kernel measures it.
    pub(crate) fn run_time_ns(&self) -> u64 {
        self.meter.run_time().map_or(0, |time| time.nanoseconds)
    }

    /// Accepts pending connections of processes that ask whose program this is.
    pub(crate) fn answer(&self) {
        self.meter.answer();
    }

    /// Takes a sample. A flow's queue is the one chosen by the program; without the program, it is that of
    /// the flow's socket. The run is that of [`Self::attach`].
    pub(crate) fn sample(
        &mut self,
        select: Option<&QueueSelect>,
        run: Option<&mut Run>,
    ) -> Result<Sample, FairError> {
        let chosen: Option<HashMap<Tuple, Option<u32>>> =
            select.map(|select| select.flows().into_iter().map(|flow| (flow.tuple, flow.queue)).collect());
        let metered = self.meter.flows()?;
        let queue_of = |flow: &evenkeel_datapath::FlowSample| match &chosen {
            Some(chosen) => chosen.get(&flow.tuple).copied().flatten(),
            None => Some(flow.queue_mapping).filter(|queue| *queue != NO_QUEUE),
        };
        let sample = Sample {
            at_ns: monotonic_ns(),
            flows: metered
                .iter()
                .filter(|flow| flow.payload_bytes > 0)
                .map(|flow| (flow.tuple, FlowSample { bytes: flow.bytes, queue: queue_of(flow) }))
                .collect(),
            metered_bytes: metered.iter().map(|flow| flow.bytes).sum(),
            incomplete: self.meter.overflow() > 0,
            queue_bytes: if self.counters == QueueCounters::None { None } else { Some(self.queue_bytes()?) },
            epoch: self.epoch,
        };
        if metered.len() > METERED_FLOWS as usize / 4 * 3 || self.meter.overflow() > 0 {
            let full = self.filter;
            match (run, full) {
                (Some(run), Some(full)) => {
                    (self.meter, self.filter) = attach_meter(self.index, Some(run))?;
                    hooks::detach(run, full)?;
                }
                _ => (self.meter, self.filter) = attach_meter(self.index, None)?,
            }
            self.epoch += 1;
        }
        Ok(sample)
    }

    fn queue_bytes(&mut self) -> Result<Vec<u64>, FairError> {
        let counted = match self.counters {
            QueueCounters::Classes(_) => self.netlink.class_statistics(self.index)?,
            QueueCounters::Mq(_) | QueueCounters::None => self.netlink.qdisc_statistics(self.index)?,
        };
        let mut bytes = vec![0; self.queues as usize];
        for (handle, statistics) in counted {
            let queue = match self.counters {
                QueueCounters::Classes(soft_nic) => soft_nic.queue_of(handle),
                // Minor numbers start at 1; other qdiscs with this major number have other parents.
                QueueCounters::Mq(major) if handle.major == major && handle != Handle::ROOT => {
                    usize::from(handle.minor).checked_sub(1)
                }
                QueueCounters::Mq(_) | QueueCounters::None => None,
            };
            if let Some(slot) = queue.and_then(|queue| bytes.get_mut(queue)) {
                *slot = statistics.bytes;
            }
        }
        Ok(bytes)
    }
}

/// Returns the bytes that each flow sent between two samples.
pub(crate) fn sent_between(before: &Sample, now: &Sample) -> HashMap<Tuple, u64> {
    let same = before.epoch == now.epoch;
    now.flows
        .iter()
        .map(|(tuple, flow)| {
            let earlier = before.flows.get(tuple).filter(|_| same).map_or(0, |flow| flow.bytes);
            (*tuple, flow.bytes.saturating_sub(earlier))
        })
        .filter(|(_, bytes)| *bytes > 0)
        .collect()
}
