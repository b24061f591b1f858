//! Samples the backlog of the shaped line during the measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_datapath::monotonic_ns;
use evenkeel_model::change::Handle;
use evenkeel_netlink::Netlink;

use crate::error::TestbedError;

const INTERVAL_NS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) at_ns: u64,
    /// Backlog, bytes.
    pub(super) bytes: u64,
}

/// A thread that samples a qdisc's backlog. Dropping it ends the thread.
pub(super) struct Sampler {
    stop: Arc<AtomicBool>,
    handle: Option<JoinHandle<Result<Vec<Sample>, TestbedError>>>,
}

impl Sampler {
    /// Starts to sample the backlog of a qdisc at `from_ns`. At the root, the backlog includes all
    /// qdiscs.
    pub(super) fn start(
        mut netlink: Netlink,
        index: u32,
        place: Handle,
        from_ns: u64,
    ) -> Result<Self, TestbedError> {
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let handle = std::thread::Builder::new()
            .name("backlog".to_owned())
            .spawn(move || {
                be_prompt();
                let mut samples = Vec::new();
                let mut due = from_ns;
                while !asked.load(Ordering::Relaxed) {
                    let now = monotonic_ns();
                    if now < due {
                        std::thread::sleep(Duration::from_nanos(due - now));
                        continue;
                    }
                    let bytes = netlink.qdisc_backlog(index, place)?;
                    samples.push(Sample { at_ns: monotonic_ns(), bytes });
                    // Skip the samples that are already late.
                    due += INTERVAL_NS * (1 + (now - due) / INTERVAL_NS);
                }
                Ok(samples)
            })
            .map_err(TestbedError::system("start a thread"))?;
        Ok(Self { stop, handle: Some(handle) })
    }

    /// Ends the thread. Returns the samples in order of time.
    pub(super) fn finish(mut self) -> Result<Vec<Sample>, TestbedError> {
        self.stop.store(true, Ordering::Relaxed);
        match self.handle.take().map(JoinHandle::join) {
            Some(Ok(samples)) => samples,
            Some(Err(_)) | None => {
                Err(TestbedError::Traffic("the thread that samples the backlog has panicked".to_owned()))
            }
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

/// Raises the thread's priority and timer precision. A sample takes microseconds, and a late sample is
/// useless.
fn be_prompt() {
    // SAFETY: takes numbers, and a structure that the kernel reads. Without the privilege the thread keeps
    // its ordinary priority.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_000, 0, 0, 0);
        let first = libc::sched_param { sched_priority: 1 };
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const first);
    }
}

/// Returns the minimum backlog per bin from `start_ns` on, and the number of bins with a sample. A bin
/// without a sample gets the smaller value of the nearest sampled bins before and after it; 0 if one of the
/// two does not exist. An idle bin therefore counts against the qdisc only if packets waited before and
/// after the bin.
pub(super) fn least_by_bin(samples: &[Sample], start_ns: u64, bin_ns: u64, bins: usize) -> (Vec<u64>, usize) {
    let mut least: Vec<Option<u64>> = vec![None; bins];
    for sample in samples.iter().filter(|sample| sample.at_ns >= start_ns) {
        let bin = (sample.at_ns - start_ns) / bin_ns.max(1);
        let Some(slot) = usize::try_from(bin).ok().and_then(|bin| least.get_mut(bin)) else { continue };
        *slot = Some(slot.map_or(sample.bytes, |known| known.min(sample.bytes)));
    }
    let sampled = least.iter().flatten().count();
    // Carry the last sample forward or backward into bins without a sample.
    let carried = |bins: &mut dyn Iterator<Item = &Option<u64>>| -> Vec<u64> {
        bins.scan(0, |last, seen| {
            *last = seen.unwrap_or(*last);
            Some(*last)
        })
        .collect()
    };
    let before = carried(&mut least.iter());
    let mut after = carried(&mut least.iter().rev());
    after.reverse();
    let filled = least.iter().zip(before.iter().zip(&after));
    (filled.map(|(seen, (before, after))| seen.unwrap_or(*before.min(after))).collect(), sampled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn least(samples: &[(u64, u64)], bins: usize) -> (Vec<u64>, usize) {
        let samples: Vec<Sample> =
            samples.iter().map(|(at_ns, bytes)| Sample { at_ns: *at_ns, bytes: *bytes }).collect();
        least_by_bin(&samples, 100, 10, bins)
    }

    #[test]
    fn the_least_sample_of_a_bin_counts() {
        assert_eq!(least(&[(99, 1), (100, 7), (109, 5), (110, 9), (130, 1)], 3), (vec![5, 9, 0], 2));
    }

    #[test]
    fn a_bin_without_a_sample_has_the_smaller_of_its_neighbours() {
        assert_eq!(least(&[(100, 7), (131, 5), (145, 8)], 5), (vec![7, 5, 5, 5, 8], 3));
        // A bin without a sample before it or after it gets 0.
        assert_eq!(least(&[(111, 7)], 3), (vec![0, 7, 0], 1));
        assert_eq!(least(&[], 2), (vec![0, 0], 0));
    }
}
