//! Flows and queues of a device, for display and for scripts.

use std::collections::HashMap;
use std::sync::Arc;

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
    pub source: String,
    pub destination: String,
    /// `tcp`, `udp` or the protocol number.
    pub protocol: String,
    pub queue: Option<u32>,
    /// Bytes on the wire since observation began.
    pub bytes: u64,
    /// Share of the bytes of all flows of the device since observation began, 0 to 1.
    pub share: f64,
    /// Whether the flow sent throughout the second with the most busy flows; `None` before the first whole
    /// second.
    pub busy: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueView {
    pub queue: u32,
    /// Number of flows on the queue that sent throughout the second with the most busy flows; `None` before
    /// the first whole second, and if no busy flow has a known queue.
    pub busy_flows: Option<u32>,
    /// Bytes by the device's counters since observation began; `None` if the device does not count by queue.
    pub bytes: Option<u64>,
}

/// The normalised fairness metric at one second (see `docs/reference/metrics.md`), over the flows that
/// sent in each tenth of a window. The line rate is the sum of these flows' rates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NfmView {
    pub mean: f64,
    pub max: f64,
    /// Number of windows in which flows competed.
    pub windows: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceView {
    pub name: String,
    pub driver: Option<String>,
    /// `None` if the device has never been up.
    pub root_qdisc: Option<String>,
    pub queues: Vec<QueueView>,
    /// Flows that sent since observation began, largest first.
    pub flows: Vec<FlowView>,
    /// Number of flows that sent throughout the second with the most such flows; `None` before the first
    /// whole second.
    pub busy_flows: Option<usize>,
    /// Number of busy flows whose queue is not known; `None` before the first whole second.
    pub busy_flows_without_queue: Option<usize>,
    /// Number of busy flows that share a queue with another busy flow, as far as the queues are known; `None`
    /// before the first whole second, if no busy flow has a known queue, and below a root qdisc that
    /// schedules all queues together.
    pub colliding_flows: Option<u32>,
    /// Whether some packets were not counted because the meter was full.
    pub incomplete: bool,
    /// Instructions to give the device more queues, if possible.
    pub advice: Option<String>,
    /// `None` if no two flows competed.
    pub nfm_1s: Option<NfmView>,
}

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

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlowSample {
    /// Bytes on the wire since the meter was attached; 0 for a flow without payload (pure ACKs).
    pub(crate) bytes: u64,
    pub(crate) queue: Option<u32>,
}

/// A device at the time of a sample.
///
/// A flow keeps its row in the meter. So ten samples per second can be compared by row, without a
/// search.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) at_ns: u64,
    /// The flow of each row. Samples share the list until the meter has more flows.
    pub(crate) tuples: Arc<Vec<Tuple>>,
    pub(crate) rows: Vec<FlowSample>,
    /// Bytes of all flows since the meter was attached, including flows without payload.
    pub(crate) metered_bytes: u64,
    /// Whether some packets were not counted because the meter was full.
    pub(crate) incomplete: bool,
    /// `None` if the device does not count by queue.
    pub(crate) queue_bytes: Option<Vec<u64>>,
    /// Number that increases when a new meter starts: the flows' bytes restart at 0, in other rows.
    pub(crate) epoch: u32,
}

impl Sample {
    /// Returns the flows with payload.
    pub(crate) fn flows(&self) -> impl Iterator<Item = (&Tuple, &FlowSample)> {
        self.tuples.iter().zip(&self.rows).filter(|(_, flow)| flow.bytes > 0)
    }

    /// Returns the queues of the flows whose queue is known.
    pub(crate) fn queues(&self) -> HashMap<Tuple, u32> {
        let rows = self.tuples.iter().zip(&self.rows);
        rows.filter_map(|(tuple, flow)| Some((*tuple, flow.queue?))).collect()
    }

    #[cfg(test)]
    pub(crate) fn of(flows: impl IntoIterator<Item = (Tuple, FlowSample)>) -> Self {
        let (tuples, rows): (Vec<Tuple>, Vec<FlowSample>) = flows.into_iter().unzip();
        Self { tuples: Arc::new(tuples), rows, ..Self::default() }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Sent {
    pub(crate) epoch: u32,
    pub(crate) tuples: Arc<Vec<Tuple>>,
    /// Bytes that the flow of each row sent; 0 for a flow that sent nothing.
    pub(crate) rows: Vec<u64>,
}

impl Sent {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Tuple, u64)> {
        self.tuples.iter().zip(self.rows.iter().copied()).filter(|(_, bytes)| *bytes > 0)
    }
}

pub(crate) struct Sampler {
    meter: Meter,
    /// The flows of the meter's rows, up to the last sample.
    tuples: Arc<Vec<Tuple>>,
    netlink: Netlink,
    index: u32,
    queues: u32,
    counters: QueueCounters,
    epoch: u32,
    /// The meter's filter; `None` if the meter is attached by tcx.
    filter: Option<FilterPlace>,
}

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

/// Maximum number of flows of a meter. Further flows require a new meter.
pub(crate) const METERED_FLOWS: u32 = 16_384;

/// Attaches a meter by tcx; with a run, as a filter that the run journals.
fn attach_meter(index: u32, run: Option<&mut Run>) -> Result<(Meter, Option<FilterPlace>), FairError> {
    // Bins are not used, because at high rates a bin overflows within a window.
    let options = MeterOptions { flows: METERED_FLOWS, bins: 1, bin_ns: 1_000_000 };
    let Some(run) = run else { return Ok((Meter::attach_egress(&options, index.cast_signed())?, None)) };
    let meter = Meter::load_for_filter(&options)?;
    let program = (meter.program()?, meter.program_id()?);
    let filter = hooks::attach(run, index, Direction::Egress, program, "evenkeel count_sent")?;
    Ok((meter, Some(filter)))
}

impl Sampler {
    /// Attaches to a device in the calling thread's network namespace. With a run, attaches the meter
    /// as a filter.
    pub(crate) fn attach(
        index: u32,
        queues: u32,
        counters: QueueCounters,
        run: Option<&mut Run>,
    ) -> Result<Self, FairError> {
        let (meter, filter) = attach_meter(index, run)?;
        Ok(Self {
            meter,
            tuples: Arc::default(),
            netlink: Netlink::open()?,
            index,
            queues,
            counters,
            epoch: 0,
            filter,
        })
    }

    pub(crate) fn detach(self, run: &mut Run) -> Result<(), FairError> {
        self.filter.map_or(Ok(()), |filter| hooks::detach(run, filter))
    }

    pub(crate) fn filter(&self) -> Option<FilterPlace> {
        self.filter
    }

    pub(crate) fn program(&self) -> Result<u32, FairError> {
        Ok(self.meter.program_id()?)
    }

    /// Returns the CPU time of the meter since it was attached, ns; 0 unless the kernel measures it.
    pub(crate) fn run_time_ns(&self) -> u64 {
        self.meter.run_time().map_or(0, |time| time.nanoseconds)
    }

    /// Accepts pending connections of processes that check whether this program is a meter.
    pub(crate) fn answer(&self) {
        self.meter.answer();
    }

    /// Takes a sample. With `select`, the queue of a flow is the queue that this program chose; otherwise, it
    /// is the queue of the flow's socket. Pass the run of [`Self::attach`].
    pub(crate) fn sample(
        &mut self,
        select: Option<&QueueSelect>,
        run: Option<&mut Run>,
    ) -> Result<Sample, FairError> {
        let chosen: Option<HashMap<Tuple, Option<u32>>> =
            select.map(|select| select.flows().into_iter().map(|flow| (flow.tuple, flow.queue)).collect());
        let is_full = self.read_tuples() > METERED_FLOWS as usize / 4 * 3 || self.meter.overflow() > 0;
        // Replace a full meter before the reading. Otherwise the packets between the reading and the
        // replacement are not counted.
        let next = if is_full { Some(self.replace_meter(run)?) } else { None };
        let mut metered_bytes = 0_u64;
        let row = |(row, tuple): (usize, &Tuple)| {
            let counts = self.meter.counts(row);
            metered_bytes = metered_bytes.saturating_add(counts.bytes);
            let queue = match &chosen {
                Some(chosen) => chosen.get(tuple).copied().flatten(),
                None => Some(counts.queue_mapping).filter(|queue| *queue != NO_QUEUE),
            };
            FlowSample { bytes: if counts.payload_bytes > 0 { counts.bytes } else { 0 }, queue }
        };
        let rows = self.tuples.iter().enumerate().map(row).collect();
        let sample = Sample {
            at_ns: monotonic_ns(),
            tuples: Arc::clone(&self.tuples),
            rows,
            metered_bytes,
            incomplete: self.meter.overflow() > 0,
            queue_bytes: if self.counters == QueueCounters::None { None } else { Some(self.queue_bytes()?) },
            epoch: self.epoch,
        };
        if let Some(next) = next {
            (self.meter, self.filter) = next;
            self.tuples = Arc::default();
            self.epoch += 1;
        }
        Ok(sample)
    }

    /// Attaches a new meter, detaches the full meter, and reads the last rows of the full meter. For a
    /// moment, both meters count.
    fn replace_meter(&mut self, run: Option<&mut Run>) -> Result<(Meter, Option<FilterPlace>), FairError> {
        let next = match (run, self.filter) {
            (Some(run), Some(full)) => {
                let next = attach_meter(self.index, Some(run))?;
                hooks::detach(run, full)?;
                next
            }
            _ => attach_meter(self.index, None)?,
        };
        self.meter.detach();
        self.read_tuples();
        Ok(next)
    }

    /// Reads the flows of new rows. Returns the number of rows.
    fn read_tuples(&mut self) -> usize {
        let known = self.tuples.len();
        // Stop at a row that the BPF program is still writing. The next call reads this row and the
        // following rows.
        let new: Vec<Tuple> =
            (known..self.meter.row_count()).map_while(|row| self.meter.tuple(row)).collect();
        if !new.is_empty() {
            Arc::make_mut(&mut self.tuples).extend(new);
        }
        self.tuples.len()
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
                // The handle is the qdisc's parent: a class of the mq root, whose minor numbers start at 1.
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

pub(crate) fn sent_between(before: &Sample, now: &Sample) -> Sent {
    let earlier = if before.epoch == now.epoch { before.rows.as_slice() } else { &[] };
    let earlier = earlier.iter().map(|flow| flow.bytes).chain(std::iter::repeat(0));
    let rows = now.rows.iter().zip(earlier).map(|(flow, earlier)| flow.bytes.saturating_sub(earlier));
    Sent { epoch: now.epoch, tuples: Arc::clone(&now.tuples), rows: rows.collect() }
}
