//! Runs jobs on every CPU, and collects their results on one thread.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Runs jobs `0..jobs` on one thread per CPU. Passes each result to `take` on the calling thread, in the order
/// of completion.
///
/// If the process may not start a thread (`RLIMIT_NPROC`, a cgroup's `pids.max`), the calling thread runs the
/// jobs. If `work` returns `None`, no further job starts.
///
/// # Errors
/// Returns an error if `take` fails: its first error. No further job starts after it.
pub fn in_parallel<R: Send, E>(
    jobs: usize,
    work: impl Fn(usize) -> Option<R> + Sync,
    take: impl FnMut(usize, R) -> Result<(), E>,
) -> Result<(), E> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(jobs);
    on_threads(threads, jobs, work, take)
}

fn on_threads<R: Send, E>(
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
        on_threads(threads, 10, |job| Some(job * job), take).unwrap();
        results.sort_unstable();
        results
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
            on_threads(threads, 1000, work, |_, _| Ok::<(), ()>(())).unwrap();
            assert!(begun.load(Ordering::Relaxed) < 20, "{threads} threads: {begun:?}");
            let failed =
                on_threads(threads, usize::MAX, Some, |job, _| if job < 5 { Ok(()) } else { Err(job) });
            assert!(failed.is_err(), "{threads} threads");
        }
    }
}
