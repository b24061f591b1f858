//! Windows of one second over ten samples per second: the busy flows, and the fairness among them.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_datapath::Tuple;
use evenkeel_metrics::{FlowSeries, jain, nfm};

use crate::flows::{Sample, Sent, sent_between};

/// Number of bins in a window of one second.
pub(crate) const BINS: usize = 10;
pub(crate) const BIN_NS: u64 = 100_000_000;

/// Fairness among the flows that were busy in a window. The fair share is the sum of their rates,
/// divided by their number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fairness {
    pub(crate) nfm_1s: f64,
    /// Mean of the normalised fairness metric of each tenth of a second.
    pub(crate) nfm_100ms: f64,
    /// Jain's index of the bytes of the busy flows.
    pub(crate) jain: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) ended_ns: u64,
    /// Bytes of the flows that sent in each bin.
    pub(crate) busy: HashMap<Tuple, u64>,
    /// `None` if no two busy flows competed.
    pub(crate) fairness: Option<Fairness>,
}

pub(crate) struct Windows {
    pub(crate) last: Arc<Sample>,
    /// The current window: bytes of each flow in each bin.
    bins: Vec<Arc<Sent>>,
    bin_began_ns: u64,
}

pub(crate) struct Taken {
    /// Bytes of each flow since the previous sample.
    pub(crate) sent: Arc<Sent>,
    /// The window that ended with this sample, if any.
    pub(crate) window: Option<Window>,
}

impl Windows {
    pub(crate) fn new(first: impl Into<Arc<Sample>>) -> Self {
        let first = first.into();
        Self { bins: Vec::new(), bin_began_ns: first.at_ns, last: first }
    }

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
            (self.bins.len() == BINS).then(|| window_of(&std::mem::take(&mut self.bins), self.last.at_ns));
        Taken { sent, window }
    }
}

fn window_of(bins: &[Arc<Sent>], ended_ns: u64) -> Window {
    let flows = busy_in_each(bins);
    let busy = flows.iter().map(|(tuple, bytes)| (*tuple, bytes.iter().sum())).collect();
    Window { ended_ns, fairness: fairness(flows.into_iter().map(|(_, bytes)| bytes).collect()), busy }
}

/// Returns the flows that sent in each bin, with their bytes by bin.
fn busy_in_each(bins: &[Arc<Sent>]) -> Vec<(Tuple, Vec<u64>)> {
    let Some(first) = bins.first() else { return Vec::new() };
    if bins.iter().all(|bin| bin.epoch == first.epoch) {
        let of_row = |row: usize| {
            let in_bin = |bin: &Arc<Sent>| bin.rows.get(row).copied().filter(|bytes| *bytes > 0);
            // Most flows of a busy host pause. Flows that pause take no memory here.
            if !bins.iter().all(|bin| in_bin(bin).is_some()) {
                return None;
            }
            Some((*first.tuples.get(row)?, bins.iter().filter_map(in_bin).collect()))
        };
        return (0..first.rows.len()).filter_map(of_row).collect();
    }
    // After a change of the meter, a flow may be in another row.
    let mut found: HashMap<Tuple, Vec<u64>> = HashMap::new();
    for (at, bin) in bins.iter().enumerate() {
        for (tuple, bytes) in bin.iter() {
            let series = found.entry(*tuple).or_default();
            if series.len() == at {
                series.push(bytes);
            }
        }
    }
    found.into_iter().filter(|(_, series)| series.len() == bins.len()).collect()
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
        // In each tenth the flows differ by 200 bytes, and the fair share is 200.
        close(found.nfm_100ms, 1.0);
        close(found.jain, 1.0);
    }

    #[test]
    fn a_flow_is_found_again_in_another_row_of_a_new_meter() {
        let tuple = |port| {
            let address = std::net::IpAddr::from([192, 0, 2, 1]);
            Tuple {
                source: address,
                source_port: port,
                destination: address,
                destination_port: 1,
                protocol: 6,
            }
        };
        let bin = |epoch, flows: &[(u16, u64)]| {
            Arc::new(Sent {
                epoch,
                tuples: Arc::new(flows.iter().map(|(port, _)| tuple(*port)).collect()),
                rows: flows.iter().map(|(_, bytes)| *bytes).collect(),
            })
        };
        let same = [bin(0, &[(1, 5), (2, 7), (3, 0)]), bin(0, &[(1, 6), (2, 0), (3, 1), (4, 9)])];
        assert_eq!(busy_in_each(&same), [(tuple(1), vec![5, 6])]);
        let mut other = busy_in_each(&[bin(0, &[(1, 5), (2, 7), (3, 8)]), bin(1, &[(3, 4), (2, 0), (1, 6)])]);
        other.sort();
        assert_eq!(other, [(tuple(1), vec![5, 6]), (tuple(3), vec![8, 4])]);
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
