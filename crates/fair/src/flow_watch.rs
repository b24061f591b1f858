//! The flows of a device, for a monitor: what each sent since the last reading, and the fairness of the last second.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_datapath::{Tuple, monotonic_ns};

use crate::error::FairError;
use crate::flows::{METERED_FLOWS, QueueCounters, Sample, Sampler, sent_between};
use crate::windows::{BIN_NS, BINS, Window, Windows};

/// Observes the flows of one device, as [`crate::Observer`] does. Dropping it detaches the meter.
pub struct FlowWatch {
    sampler: Sampler,
    windows: Windows,
    window: Option<Window>,
    /// Bytes of each flow since the watch began.
    totals: HashMap<Tuple, u64>,
    /// The last sample, of a tick or a reading.
    counted: Arc<Sample>,
    /// Bytes of each flow since the last reading.
    sent: HashMap<Tuple, u64>,
    incomplete: bool,
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
    /// Returns an error if the kernel refuses the program.
    pub fn attach(index: u32) -> Result<Self, FairError> {
        let mut sampler = Sampler::attach(index, 0, QueueCounters::None)?;
        let first = Arc::new(sampler.sample(None)?);
        Ok(Self {
            sampler,
            windows: Windows::new(Arc::clone(&first)),
            counted: first,
            window: None,
            totals: HashMap::new(),
            sent: HashMap::new(),
            incomplete: false,
        })
    }

    /// Takes a sample; to be called ten times per second.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot be queried.
    pub fn tick(&mut self) -> Result<(), FairError> {
        // The first tick after the attachment may be early, and a flow that sends in bursts could miss a short bin.
        if monotonic_ns().saturating_sub(self.windows.last.at_ns) < BIN_NS / 10 * 9 {
            return Ok(());
        }
        let sample = self.count()?;
        self.sampler.answer();
        if let Some(window) = self.windows.take(sample).window {
            self.window = Some(window);
        }
        Ok(())
    }

    /// Takes a sample, and adds what the flows sent since the last one.
    fn count(&mut self) -> Result<Arc<Sample>, FairError> {
        let sample = Arc::new(self.sampler.sample(None)?);
        for (tuple, bytes) in sent_between(&self.counted, &sample) {
            *self.totals.entry(tuple).or_default() += bytes;
            *self.sent.entry(tuple).or_default() += bytes;
        }
        self.incomplete |= sample.incomplete;
        self.counted = Arc::clone(&sample);
        Ok(sample)
    }

    /// Returns the flows since the reading before. The bytes are those until now, not until the last tick, so that they
    /// can be compared with counters that are read at the same time.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot be queried.
    pub fn read(&mut self) -> Result<FlowReading, FairError> {
        self.count()?;
        // After a gap in the samples, the last window says nothing about now.
        let oldest = monotonic_ns().saturating_sub(3 * BIN_NS * BINS as u64);
        let window = self.window.as_ref().filter(|window| window.ended_ns >= oldest);
        let reading = reading(
            &std::mem::take(&mut self.sent),
            &self.totals,
            |tuple| self.counted.flows.get(tuple).and_then(|flow| flow.queue),
            window,
        );
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
    use std::net::IpAddr;

    fn tuple(port: u16) -> Tuple {
        let address = IpAddr::from([192, 0, 2, 1]);
        Tuple { source: address, source_port: port, destination: address, destination_port: 1, protocol: 6 }
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
