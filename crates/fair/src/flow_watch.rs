//! The flows of a device, for a monitor: the bytes of each flow since the previous reading, and the
//! fairness of the last second.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use evenkeel_datapath::{Tuple, monotonic_ns};

use crate::device::{BeforeMeter, before_meter};
use crate::error::FairError;
use crate::flows::{FlowSample, QueueCounters, Sample, Sampler, sent_between};
use crate::windows::{BIN_NS, BINS, Window, Windows};

/// Observes the flows of one device, like [`crate::Observer`]. Dropping this value detaches the meter.
pub struct FlowWatch {
    index: u32,
    sampler: Sampler,
    /// Known meters of other processes.
    meters: BTreeSet<u32>,
    windows: Windows,
    window: Option<Window>,
    counted: Counted,
    incomplete: bool,
    ticks: u32,
}

/// Sums the bytes of flows between two readings. Only a reading or a new meter updates the sums, because
/// ticks are much more frequent.
struct Counted {
    /// Sample of the previous reading, or an empty sample if a new meter was attached after that reading.
    from: Arc<Sample>,
    /// Bytes since the previous reading that previous meters counted.
    carried: HashMap<Tuple, u64>,
    /// Bytes since the watch began that previous meters counted, for the flows in the last of them.
    earlier: HashMap<Tuple, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct FlowBytes {
    tuple: Tuple,
    queue: Option<u32>,
    sent: u64,
    total: u64,
}

impl Counted {
    fn new(from: Arc<Sample>) -> Self {
        Self { from, carried: HashMap::new(), earlier: HashMap::new() }
    }

    /// Saves the counts of the old meter if the next sample comes from a new meter.
    fn note_next(&mut self, last: &Sample, next: &Sample) {
        if next.epoch != self.from.epoch {
            for (tuple, bytes) in sent_between(&self.from, last).iter() {
                *self.carried.entry(*tuple).or_default() += bytes;
            }
            // A reading may be newer than the last tick.
            let is_older = last.epoch == self.from.epoch && last.at_ns < self.from.at_ns;
            let newest = if is_older { &*self.from } else { last };
            let total = |(tuple, flow): (&Tuple, &FlowSample)| {
                (*tuple, flow.bytes.saturating_add(self.earlier.get(tuple).copied().unwrap_or(0)))
            };
            self.earlier = newest.flows().map(total).collect();
            self.from = Arc::new(Sample { epoch: next.epoch, ..Sample::default() });
        }
    }

    /// Returns the flows that sent between the previous reading and the sample `now`. The next reading starts
    /// at `now`.
    fn sent_until(&mut self, now: Arc<Sample>) -> Vec<FlowBytes> {
        let sent = sent_between(&self.from, &now);
        let mut carried = std::mem::take(&mut self.carried);
        let earlier = |tuple: &Tuple| match self.earlier.is_empty() {
            true => 0,
            false => self.earlier.get(tuple).copied().unwrap_or(0),
        };
        let mut found = Vec::new();
        for ((tuple, bytes), flow) in now.tuples.iter().zip(&sent.rows).zip(&now.rows) {
            let before = if carried.is_empty() { 0 } else { carried.remove(tuple).unwrap_or(0) };
            let sent = bytes.saturating_add(before);
            if sent > 0 {
                let total = flow.bytes.saturating_add(earlier(tuple));
                found.push(FlowBytes { tuple: *tuple, queue: flow.queue, sent, total });
            }
        }
        // Flows that have not sent since the new meter was attached.
        let ended = |(tuple, sent)| FlowBytes { tuple, queue: None, sent, total: earlier(&tuple) };
        found.extend(carried.into_iter().map(ended));
        self.from = now;
        found
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowReading {
    pub active: u64,
    /// The flows with the most bytes, largest first.
    pub flows: Vec<WatchedFlow>,
    /// Number of flows that sent in each tenth of the last whole second; `None` before the first whole second
    /// and after a gap in the samples.
    pub busy: Option<u32>,
    /// Number of busy flows on each transmit queue, as far as known; empty if `busy` is `None`.
    pub busy_by_queue: HashMap<u32, u32>,
    /// Number of busy flows that share a queue with another busy flow, as far as the queues are known; `None`
    /// if `busy` is `None`, or if none of the busy flows has a known queue.
    pub colliding: Option<u32>,
    /// The normalised fairness metric of the last whole second; `None` if no two flows competed, or if `busy`
    /// is `None`.
    pub nfm_1s: Option<f64>,
    /// Mean of the normalised fairness metric over the tenths of the last whole second; `None` in the same
    /// cases as `nfm_1s`.
    pub nfm_100ms: Option<f64>,
    /// Jain's index of the busy flows' bytes in the last whole second; `None` in the same cases as `nfm_1s`.
    pub jain_1s: Option<f64>,
    /// Whether packets since the previous reading were not counted because there were too many flows.
    pub incomplete: bool,
    /// CPU time of the meter since it was attached, ns; 0 unless `kernel.bpf_stats_enabled` is 1.
    pub run_time_ns: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct WatchedFlow {
    pub tuple: Tuple,
    /// The last transmit queue of the flow's socket; `None` if the socket has recorded no queue, or if the
    /// present meter has not seen the flow.
    pub queue: Option<u32>,
    /// Bytes on the wire since the watch began.
    pub total: u64,
    /// Bytes on the wire since the previous reading.
    pub sent: u64,
    /// Whether the flow sent in each tenth of the last whole second; `None` before the first whole second and
    /// after a gap in the samples.
    pub busy: Option<bool>,
    /// Bytes of the flow in the last whole second, divided by the fair share of a busy flow; `None` if
    /// the flow was not busy.
    pub of_fair_share: Option<f64>,
}

impl FlowWatch {
    /// Attaches to a device of the calling thread's network namespace.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the program, or another program is attached in front of
    /// it at the same time.
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
            incomplete: false,
            ticks: 0,
        };
        watch.check()?;
        Ok(watch)
    }

    /// Returns an error if the meter does not see every packet, because its figures would be too low.
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

    /// Takes a sample. Call this function ten times per second.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot be queried, or another program hides packets from the
    /// meter. The figures are then wrong until a new watch is attached.
    pub fn tick(&mut self) -> Result<(), FairError> {
        // Skip an early tick, such as the first one. In a short bin, a flow that sends in bursts could appear
        // silent.
        if monotonic_ns().saturating_sub(self.windows.last.at_ns) < BIN_NS / 10 * 9 {
            return Ok(());
        }
        self.check()?;
        let sample = self.take_sample()?;
        // Twice a second is enough: the listen backlog of the socket is larger than the number of processes
        // that query it.
        self.ticks = self.ticks.wrapping_add(1);
        if self.ticks.is_multiple_of(5) {
            self.sampler.answer();
        }
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

    /// Returns at most `most` flows that sent since the previous reading. Counts bytes up to the time
    /// of the call, so that the bytes match counters that are read at the same time.
    ///
    /// # Errors
    /// See [`Self::tick`].
    pub fn read(&mut self, most: usize) -> Result<FlowReading, FairError> {
        self.check()?;
        let sample = self.take_sample()?;
        let sent = self.counted.sent_until(Arc::clone(&sample));
        // After a gap in the samples, the last window is out of date.
        let oldest = monotonic_ns().saturating_sub(3 * BIN_NS * BINS as u64);
        let window = self.window.as_ref().filter(|window| window.ended_ns >= oldest);
        Ok(FlowReading {
            incomplete: std::mem::take(&mut self.incomplete),
            run_time_ns: self.sampler.run_time_ns(),
            ..reading(sent, &sample, window, most)
        })
    }
}

fn reading(mut sent: Vec<FlowBytes>, sample: &Sample, window: Option<&Window>, most: usize) -> FlowReading {
    let mut busy_by_queue: HashMap<u32, u32> = HashMap::new();
    if let Some(window) = window {
        let busy = sample.flows().filter(|(tuple, _)| window.busy.contains_key(*tuple));
        for queue in busy.filter_map(|(_, flow)| flow.queue) {
            *busy_by_queue.entry(queue).or_default() += 1;
        }
    }
    // If none of the busy flows has a known queue, the number of collisions is unknown.
    let known = window.filter(|window| window.busy.is_empty() || !busy_by_queue.is_empty());
    let colliding = known.map(|_| busy_by_queue.values().filter(|flows| **flows > 1).sum());
    let fair_share = window.filter(|window| !window.busy.is_empty()).map(|window| {
        window.busy.values().map(|bytes| *bytes as f64).sum::<f64>() / window.busy.len() as f64
    });
    let active = sent.len() as u64;
    let order = |flow: &FlowBytes| (Reverse(flow.sent), flow.tuple);
    if most < sent.len() {
        sent.select_nth_unstable_by_key(most, order);
        sent.truncate(most);
    }
    sent.sort_unstable_by_key(order);
    let watched = |flow: FlowBytes| {
        let busy = window.map(|window| window.busy.get(&flow.tuple).copied());
        WatchedFlow {
            tuple: flow.tuple,
            queue: flow.queue,
            total: flow.total,
            sent: flow.sent,
            busy: busy.map(|busy| busy.is_some()),
            of_fair_share: busy.flatten().zip(fair_share).map(|(bytes, share)| bytes as f64 / share),
        }
    };
    let fairness = window.and_then(|window| window.fairness);
    FlowReading {
        active,
        flows: sent.into_iter().map(watched).collect(),
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
    use std::net::IpAddr;

    fn tuple(port: u16) -> Tuple {
        let address = IpAddr::from([192, 0, 2, 1]);
        Tuple { source: address, source_port: port, destination: address, destination_port: 1, protocol: 6 }
    }

    #[test]
    fn bytes_are_counted_once_when_the_meter_begins_anew() {
        let sample = |bytes: u64, epoch: u32| {
            Arc::new(Sample { epoch, ..Sample::of([(tuple(1), FlowSample { bytes, queue: Some(3) })]) })
        };
        let found = |bytes: Vec<FlowBytes>| {
            bytes.iter().map(|flow| (flow.sent, flow.total, flow.queue)).collect::<Vec<_>>()
        };
        let mut counted = Counted::new(sample(100, 0));
        counted.note_next(&sample(100, 0), &sample(150, 0));
        // The new meter has counted 30 bytes by its first sample.
        counted.note_next(&sample(150, 0), &sample(30, 1));
        counted.note_next(&sample(30, 1), &sample(40, 1));
        assert_eq!(found(counted.sent_until(sample(40, 1))), [(50 + 40, 150 + 40, Some(3))]);
        assert_eq!(found(counted.sent_until(sample(45, 1))), [(5, 150 + 45, Some(3))]);
        assert_eq!(found(counted.sent_until(sample(45, 1))), []);
        let next = || Arc::new(Sample { epoch: 2, ..Sample::default() });
        counted.note_next(&sample(50, 1), &next());
        assert_eq!(found(counted.sent_until(next())), [(5, 150 + 50, None)]);
    }

    #[test]
    fn a_reading_has_the_flows_of_its_interval_and_the_busy_ones_of_the_window() {
        let flow = |port, sent, total, queue| FlowBytes { tuple: tuple(port), queue, sent, total };
        let sent = vec![flow(1, 100, 1100, Some(5)), flow(2, 300, 300, Some(5)), flow(3, 7, 7, None)];
        let rows = [(1, Some(5)), (2, Some(5)), (3, None), (4, Some(5))];
        let sample = Sample::of(rows.map(|(port, queue)| (tuple(port), FlowSample { bytes: 7, queue })));
        let window = Window { ended_ns: 0, busy: [(tuple(1), 100), (tuple(2), 300)].into(), fairness: None };
        let found = reading(sent.clone(), &sample, Some(&window), 10);
        let figures: Vec<_> = found
            .flows
            .iter()
            .map(|flow| (flow.tuple.source_port, flow.sent, flow.total, flow.busy, flow.of_fair_share))
            .collect();
        let expected = [
            (2, 300, 300, Some(true), Some(1.5)),
            (1, 100, 1100, Some(true), Some(0.5)),
            (3, 7, 7, Some(false), None),
        ];
        assert_eq!(figures, expected);
        assert_eq!((found.colliding, found.busy_by_queue.get(&5)), (Some(2), Some(&2)));
        let some = reading(sent.clone(), &sample, Some(&window), 2);
        assert_eq!((some.active, some.flows.as_slice()), (3, &found.flows[..2]));
        let unknown = Sample::of([(tuple(1), FlowSample { bytes: 7, queue: None })]);
        let found = reading(sent.clone(), &unknown, Some(&window), 10);
        assert_eq!((found.busy, found.colliding), (Some(2), None));
        let idle = Window { ended_ns: 0, busy: HashMap::new(), fairness: None };
        assert_eq!(reading(sent.clone(), &unknown, Some(&idle), 10).colliding, Some(0));
        let early = reading(sent, &sample, None, 10);
        assert_eq!((early.colliding, early.flows[0].busy, early.nfm_1s), (None, None, None));
    }
}
