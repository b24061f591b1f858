//! Windows of one second over samples that are taken ten times per second: which flows were busy, and how fairly the
//! device served them.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_datapath::Tuple;
use evenkeel_metrics::{FlowSeries, jain, nfm};

use crate::flows::{Sample, sent_between};

/// Number of bins in a window of one second.
pub(crate) const BINS: usize = 10;
pub(crate) const BIN_NS: u64 = 100_000_000;

/// Fairness among the flows that were busy in a window. Their fair share is the sum of their rates, divided by their
/// number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fairness {
    /// The normalised fairness metric at one second.
    pub(crate) nfm_1s: f64,
    /// The same at a tenth of a second: the mean over the window.
    pub(crate) nfm_100ms: f64,
    /// Jain's index of their bytes.
    pub(crate) jain: f64,
}

/// A window that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) ended_ns: u64,
    /// Bytes of the flows that sent in each bin.
    pub(crate) busy: HashMap<Tuple, u64>,
    /// `None` if no two of them competed.
    pub(crate) fairness: Option<Fairness>,
}

/// Sums over the samples of one device.
pub(crate) struct Windows {
    pub(crate) last: Arc<Sample>,
    /// The current window: bytes of each flow in each bin.
    bins: Vec<Arc<HashMap<Tuple, u64>>>,
    bin_began_ns: u64,
}

/// What a sample adds.
pub(crate) struct Taken {
    /// Bytes of each flow since the sample before.
    pub(crate) sent: Arc<HashMap<Tuple, u64>>,
    /// The window that ended with this sample.
    pub(crate) window: Option<Window>,
}

impl Windows {
    pub(crate) fn new(first: impl Into<Arc<Sample>>) -> Self {
        let first = first.into();
        Self { bins: Vec::new(), bin_began_ns: first.at_ns, last: first }
    }

    /// Takes the next sample.
    pub(crate) fn take(&mut self, sample: impl Into<Arc<Sample>>) -> Taken {
        let sample = sample.into();
        let sent = Arc::new(sent_between(&self.last, &sample));
        // A sample that is late by more than a bin invalidates the window.
        let late = sample.at_ns.saturating_sub(self.bin_began_ns) > 2 * BIN_NS;
        self.bin_began_ns = sample.at_ns;
        self.last = sample;
        if late {
            self.bins.clear();
            return Taken { sent, window: None };
        }
        self.bins.push(Arc::clone(&sent));
        let window =
            (self.bins.len() == BINS).then(|| window_of(std::mem::take(&mut self.bins), self.last.at_ns));
        Taken { sent, window }
    }
}

fn window_of(bins: Vec<Arc<HashMap<Tuple, u64>>>, ended_ns: u64) -> Window {
    let first = bins.first();
    let series: HashMap<Tuple, Vec<u64>> = first
        .into_iter()
        .flat_map(|bin| bin.keys())
        .filter_map(|tuple| {
            let bytes: Option<Vec<u64>> = bins.iter().map(|bin| bin.get(tuple).copied()).collect();
            Some((*tuple, bytes?))
        })
        .collect();
    let busy: HashMap<Tuple, u64> =
        series.iter().map(|(tuple, bytes)| (*tuple, bytes.iter().sum())).collect();
    Window { ended_ns, fairness: fairness(series.into_values().collect()), busy }
}

fn fairness(flows: Vec<Vec<u64>>) -> Option<Fairness> {
    let together = flows.iter().flatten().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    let whole = 0..BINS;
    let series: Vec<FlowSeries<'_>> = flows
        .iter()
        .map(|bytes| FlowSeries {
            weight: 1.0,
            bytes: bytes.as_slice().into(),
            backlogged: Vec::from([whole.clone()]),
        })
        .collect();
    let over = |window_ns: u64| nfm(&series, BIN_NS, window_ns, together.saturating_mul(8)).ok().flatten();
    let sums: Vec<f64> = flows.iter().map(|bytes| bytes.iter().sum::<u64>() as f64).collect();
    Some(Fairness {
        nfm_1s: over(BIN_NS * BINS as u64)?.mean,
        nfm_100ms: over(BIN_NS)?.mean,
        jain: jain(&sums)?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
    }

    #[test]
    fn flows_that_alternate_are_fair_over_a_second_and_unfair_over_a_tenth() {
        let one: Vec<u64> = (0..10).map(|bin| if bin % 2 == 0 { 300 } else { 100 }).collect();
        let other: Vec<u64> = one.iter().map(|bytes| 400 - bytes).collect();
        let found = fairness(vec![one, other]).unwrap();
        close(found.nfm_1s, 0.0);
        // In each tenth they differ by 200 bytes, and the fair share is 200.
        close(found.nfm_100ms, 1.0);
        close(found.jain, 1.0);
    }

    #[test]
    fn one_flow_has_no_fairness() {
        assert_eq!(fairness(vec![vec![5; 10]]), None);
        assert_eq!(fairness(Vec::new()), None);
        let found = fairness(vec![vec![30; 10], vec![10; 10]]).unwrap();
        close(found.nfm_1s, 1.0);
        close(found.jain, 0.8);
    }
}
