//! The flows of a device, for a monitor: what each sent since the last reading, and the fairness of the last second.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use evenkeel_datapath::{Tuple, monotonic_ns};

use crate::device::{BeforeMeter, before_meter};
use crate::error::FairError;
use crate::flows::{METERED_FLOWS, QueueCounters, Sample, Sampler, sent_between};
use crate::windows::{BIN_NS, BINS, Window, Windows};

/// Observes the flows of one device, as [`crate::Observer`] does. Dropping it detaches the meter.
pub struct FlowWatch {
    index: u32,
    sampler: Sampler,
    /// Known meters of other processes.
    meters: BTreeSet<u32>,
    windows: Windows,
    window: Option<Window>,
    /// Bytes of each flow since the watch began.
    totals: HashMap<Tuple, u64>,
    counted: Counted,
    incomplete: bool,
}

/// The bytes of flows between two readings. Ticks add nothing to it, because they are ten times as many.
struct Counted {
    /// The sample of the reading before, or the begin of a meter that was attached since.
    from: Arc<Sample>,
    /// Bytes that meters counted before the present one was attached.
    carried: HashMap<Tuple, u64>,
}

impl Counted {
    fn new(from: Arc<Sample>) -> Self {
        Self { from, carried: HashMap::new() }
    }

    /// Keeps what a meter has counted until its last sample, if the next sample is that of another one.
    fn note_next(&mut self, last: &Sample, next: &Sample) {
        if next.epoch != self.from.epoch {
            for (tuple, bytes) in sent_between(&self.from, last) {
                *self.carried.entry(tuple).or_default() += bytes;
            }
            self.from = Arc::new(Sample { epoch: next.epoch, ..Sample::default() });
        }
    }

    /// Returns the bytes until a sample, and begins the next reading there.
    fn sent_until(&mut self, now: Arc<Sample>) -> HashMap<Tuple, u64> {
        let mut sent = std::mem::take(&mut self.carried);
        for (tuple, bytes) in sent_between(&self.from, &now) {
            *sent.entry(tuple).or_default() += bytes;
        }
        self.from = now;
        sent
    }
}

/// The flows of a device since the reading before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowReading {
    /// Flows that sent since the reading before, those with the most bytes first.
    pub flows: Vec<WatchedFlow>,
    /// Number of flows that sent in each tenth of the last whole second; `None` before the first one.
    pub busy: Option<u32>,
    /// Those of known queue, by transmit queue; empty before the first whole second.
    pub busy_by_queue: HashMap<u32, u32>,
    /// Number of busy flows that share a queue with another one; `None` before the first whole second.
    pub colliding: Option<u32>,
    /// The normalised fairness metric of the last whole second; `None` if no two flows competed.
    pub nfm_1s: Option<f64>,
    /// The mean over the tenths of this second.
    pub nfm_100ms: Option<f64>,
    /// Jain's index of the busy flows' bytes in this second.
    pub jain_1s: Option<f64>,
    /// Whether some packets were not counted, because there were too many flows.
    pub incomplete: bool,
    /// Processor time of the meter since it was attached, ns; 0 unless `kernel.bpf_stats_enabled` is 1.
    pub run_time_ns: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct WatchedFlow {
    pub tuple: Tuple,
    /// The transmit queue that the flow's socket used last; `None` if it has recorded none.
    pub queue: Option<u32>,
    /// Bytes on the wire since the watch began.
    pub total: u64,
    /// Bytes on the wire since the reading before.
    pub sent: u64,
    /// Whether it sent in each tenth of the last whole second; `None` before the first one.
    pub busy: Option<bool>,
    /// Bytes in this second by the busy flows' fair share; `None` if it was not busy.
    pub of_fair_share: Option<f64>,
}

impl FlowWatch {
    /// Attaches to a device of the calling thread's network namespace.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the program, or another one is attached in front of it at the same time.
    pub fn attach(index: u32) -> Result<Self, FairError> {
        let mut sampler = Sampler::attach(index, 0, QueueCounters::None, None)?;
        let first = Arc::new(sampler.sample(None, None)?);
        let mut watch = Self {
            index,
            sampler,
            meters: BTreeSet::new(),
            windows: Windows::new(Arc::clone(&first)),
            counted: Counted::new(first),
            window: None,
            totals: HashMap::new(),
            incomplete: false,
        };
        watch.check()?;
        Ok(watch)
    }

    /// Refuses to go on if the meter does not see every packet: its figures would be too low, or 0.
    fn check(&mut self) -> Result<(), FairError> {
        match before_meter(self.index, self.sampler.program()?, &mut self.meters)? {
            BeforeMeter::Detached => Err(FairError::unable(
                "another program detached evenkeel's meter",
                "`bpftool net` shows the programs at tcx egress",
            )),
            BeforeMeter::Foreign(found) => match found.first() {
                Some(program) => Err(FairError::unable(
                    format!("another program at tcx egress may hide packets from the meter: {program}"),
                    "detach it, or attach it after evenkeel's programs",
                )),
                None => Ok(()),
            },
        }
    }

    /// Takes a sample; to be called ten times per second.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot be queried, or another program keeps packets from the meter. The figures are
    /// then wrong until a new watch is attached.
    pub fn tick(&mut self) -> Result<(), FairError> {
        // The first tick after the attachment may be early, and a flow that sends in bursts could miss a short bin.
        if monotonic_ns().saturating_sub(self.windows.last.at_ns) < BIN_NS / 10 * 9 {
            return Ok(());
        }
        self.check()?;
        let sample = self.take_sample()?;
        self.sampler.answer();
        if let Some(window) = self.windows.take(sample).window {
            self.window = Some(window);
        }
        Ok(())
    }

    fn take_sample(&mut self) -> Result<Arc<Sample>, FairError> {
        let sample = Arc::new(self.sampler.sample(None, None)?);
        self.incomplete |= sample.incomplete;
        self.counted.note_next(&self.windows.last, &sample);
        Ok(sample)
    }

    /// Returns the flows since the reading before. The bytes are those until now, not until the last tick, so that they
    /// can be compared with counters that are read at the same time.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Self::tick`].
    pub fn read(&mut self) -> Result<FlowReading, FairError> {
        self.check()?;
        let sample = self.take_sample()?;
        let sent = self.counted.sent_until(Arc::clone(&sample));
        for (tuple, bytes) in &sent {
            *self.totals.entry(*tuple).or_default() += bytes;
        }
        // After a gap in the samples, the last window says nothing about now.
        let oldest = monotonic_ns().saturating_sub(3 * BIN_NS * BINS as u64);
        let window = self.window.as_ref().filter(|window| window.ended_ns >= oldest);
        let reading =
            reading(&sent, &self.totals, |tuple| sample.flows.get(tuple).and_then(|flow| flow.queue), window);
        // Flows that ended are forgotten when there are too many.
        if self.totals.len() > METERED_FLOWS as usize {
            let sending: HashMap<Tuple, u64> =
                reading.flows.iter().map(|flow| (flow.tuple, flow.total)).collect();
            self.totals = sending;
        }
        Ok(FlowReading {
            incomplete: std::mem::take(&mut self.incomplete),
            run_time_ns: self.sampler.run_time_ns(),
            ..reading
        })
    }
}

fn reading(
    sent: &HashMap<Tuple, u64>,
    totals: &HashMap<Tuple, u64>,
    queue_of: impl Fn(&Tuple) -> Option<u32>,
    window: Option<&Window>,
) -> FlowReading {
    let mut busy_by_queue: HashMap<u32, u32> = HashMap::new();
    for queue in window.iter().flat_map(|window| window.busy.keys()).filter_map(&queue_of) {
        *busy_by_queue.entry(queue).or_default() += 1;
    }
    let colliding = window.map(|_| busy_by_queue.values().filter(|flows| **flows > 1).sum());
    let fair_share = window.filter(|window| !window.busy.is_empty()).map(|window| {
        window.busy.values().map(|bytes| *bytes as f64).sum::<f64>() / window.busy.len() as f64
    });
    let mut flows: Vec<WatchedFlow> = sent
        .iter()
        .map(|(tuple, bytes)| {
            let busy = window.map(|window| window.busy.get(tuple).copied());
            WatchedFlow {
                tuple: *tuple,
                queue: queue_of(tuple),
                total: totals.get(tuple).copied().unwrap_or(*bytes),
                sent: *bytes,
                busy: busy.map(|busy| busy.is_some()),
                of_fair_share: busy.flatten().zip(fair_share).map(|(bytes, share)| bytes as f64 / share),
            }
        })
        .collect();
    flows.sort_by(|one, other| other.sent.cmp(&one.sent).then_with(|| one.tuple.cmp(&other.tuple)));
    let fairness = window.and_then(|window| window.fairness);
    FlowReading {
        flows,
        busy: window.map(|window| u32::try_from(window.busy.len()).unwrap_or(u32::MAX)),
        busy_by_queue,
        colliding,
        nfm_1s: fairness.map(|fairness| fairness.nfm_1s),
        nfm_100ms: fairness.map(|fairness| fairness.nfm_100ms),
        jain_1s: fairness.map(|fairness| fairness.jain),
        ..FlowReading::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::flows::FlowSample;
    use std::net::IpAddr;

    fn tuple(port: u16) -> Tuple {
        let address = IpAddr::from([192, 0, 2, 1]);
        Tuple { source: address, source_port: port, destination: address, destination_port: 1, protocol: 6 }
    }

    #[test]
    fn bytes_are_counted_once_when_the_meter_begins_anew() {
        let sample = |bytes: u64, epoch: u32| {
            let flow = FlowSample { bytes, queue: None };
            Arc::new(Sample { flows: [(tuple(1), flow)].into(), epoch, ..Sample::default() })
        };
        let mut counted = Counted::new(sample(100, 0));
        counted.note_next(&sample(100, 0), &sample(150, 0));
        // The new meter has counted 30 bytes by its first sample.
        counted.note_next(&sample(150, 0), &sample(30, 1));
        counted.note_next(&sample(30, 1), &sample(40, 1));
        assert_eq!(counted.sent_until(sample(40, 1))[&tuple(1)], 50 + 40);
        assert_eq!(counted.sent_until(sample(45, 1))[&tuple(1)], 5);
        assert!(counted.sent_until(sample(45, 1)).is_empty());
    }

    #[test]
    fn a_reading_has_the_flows_of_its_interval_and_the_busy_ones_of_the_window() {
        let sent = [(tuple(1), 100), (tuple(2), 300), (tuple(3), 7)].into();
        let totals = [(tuple(1), 1100), (tuple(2), 300), (tuple(3), 7), (tuple(4), 9)].into();
        let window = Window { ended_ns: 0, busy: [(tuple(1), 100), (tuple(2), 300)].into(), fairness: None };
        let queue = |tuple: &Tuple| (tuple.source_port != 3).then_some(5);
        let found = reading(&sent, &totals, queue, Some(&window));
        let figures: Vec<_> = found
            .flows
            .iter()
            .map(|flow| (flow.tuple.source_port, flow.sent, flow.total, flow.busy, flow.of_fair_share))
            .collect();
        assert_eq!(
            figures,
            [
                (2, 300, 300, Some(true), Some(1.5)),
                (1, 100, 1100, Some(true), Some(0.5)),
                (3, 7, 7, Some(false), None)
            ]
        );
        assert_eq!((found.colliding, found.busy_by_queue.get(&5)), (Some(2), Some(&2)));
        let early = reading(&sent, &totals, queue, None);
        assert_eq!((early.colliding, early.flows[0].busy, early.nfm_1s), (None, None, None));
    }
}
