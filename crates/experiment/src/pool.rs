//! Runs jobs on every CPU, and collects their results on one thread.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Limit of the estimated memory of concurrent repeats, bytes.
const MOST_MEMORY: u64 = 400_000_000;

/// Returns the number of concurrent repeats: one per CPU, but at most `jobs`, and not more than fit into
/// `MOST_MEMORY`. One repeat always fits. Each repeat takes up to `memory` bytes; the results take `kept`
/// bytes.
#[must_use]
pub fn at_a_time(jobs: usize, memory: u64, kept: u64) -> usize {
    let fitting = MOST_MEMORY.saturating_sub(kept) / memory.max(1);
    let fitting = usize::try_from(fitting).unwrap_or(usize::MAX).max(1);
    thread::available_parallelism().map_or(1, NonZero::get).min(jobs).min(fitting)
}

/// Runs jobs `0..jobs` on this many threads. Passes each result to `take` on the calling thread, in the
/// order of completion.
///
/// If the process may not start a thread (`RLIMIT_NPROC`, a cgroup's `pids.max`), the calling thread
/// runs the jobs. If `work` returns `None`, no further job starts.
///
/// # Errors
/// Returns the first error of `take`. No further job starts after this error.
pub fn in_parallel<R: Send, E>(
    threads: usize,
    jobs: usize,
    work: impl Fn(usize) -> Option<R> + Sync,
    mut take: impl FnMut(usize, R) -> Result<(), E>,
) -> Result<(), E> {
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let draw = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|job| *job < jobs);
    let (send, receive) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..threads {
            let (send, draw, work, stop) = (send.clone(), &draw, &work, &stop);
            let started = thread::Builder::new().spawn_scoped(scope, move || {
                while !stop.load(Ordering::Relaxed)
                    && let Some(job) = draw()
                {
                    let Some(result) = work(job) else { return stop.store(true, Ordering::Relaxed) };
                    if send.send((job, result)).is_err() {
                        return;
                    }
                }
            });
            if started.is_err() {
                break;
            }
        }
        drop(send);
        for (job, result) in receive {
            if let Err(error) = take(job, result) {
                stop.store(true, Ordering::Relaxed);
                return Err(error);
            }
        }
        // Jobs are left only if no thread could be started.
        while !stop.load(Ordering::Relaxed)
            && let Some(job) = draw()
            && let Some(result) = work(job)
        {
            take(job, result)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn squares(threads: usize) -> Vec<(usize, usize)> {
        let mut results = Vec::new();
        let take = |job, result| {
            results.push((job, result));
            Ok::<(), ()>(())
        };
        in_parallel(threads, 10, |job| Some(job * job), take).unwrap();
        results.sort_unstable();
        results
    }

    #[test]
    fn large_repeats_run_one_at_a_time() {
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        assert_eq!((at_a_time(1000, 0, 0), at_a_time(1, 0, 0)), (cpus, 1));
        assert_eq!(at_a_time(1000, MOST_MEMORY / 2, 0), cpus.min(2));
        assert_eq!((at_a_time(1000, MOST_MEMORY / 2 + 1, 0), at_a_time(1000, u64::MAX, 0)), (1, 1));
        assert_eq!((at_a_time(1000, MOST_MEMORY / 2, 1), at_a_time(1000, 1, u64::MAX)), (1, 1));
    }

    #[test]
    fn every_job_runs_once_with_and_without_threads() {
        let expected: Vec<(usize, usize)> = (0..10).map(|job| (job, job * job)).collect();
        for threads in [0, 1, 3, 10] {
            assert_eq!(squares(threads), expected, "{threads} threads");
        }
    }

    #[test]
    fn no_job_begins_after_an_error_or_an_end() {
        for threads in [0, 2] {
            let begun = AtomicUsize::new(0);
            let work = |job| {
                begun.fetch_add(1, Ordering::Relaxed);
                (job < 5).then_some(job)
            };
            in_parallel(threads, 1000, work, |_, _| Ok::<(), ()>(())).unwrap();
            assert!(begun.load(Ordering::Relaxed) < 20, "{threads} threads: {begun:?}");
            let failed =
                in_parallel(threads, usize::MAX, Some, |job, _| if job < 5 { Ok(()) } else { Err(job) });
            assert!(failed.is_err(), "{threads} threads");
        }
    }
}
