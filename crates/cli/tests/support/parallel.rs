//! Spreads the cases of a long test over all CPUs.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls `each` for every item, with one thread per CPU. Returns the results in the order of the items.
pub fn on_all_processors<T: Sync, R: Send>(items: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let work = || {
        let numbers = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
        let own = numbers.map_while(|number| Some((number, each(items.get(number)?))));
        own.collect::<Vec<(usize, R)>>()
    };
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        started
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}
