//! Checks that the seed determines a run.

use evenkeel_sim::host::Account;
use evenkeel_sim::settings::Settings;
use evenkeel_sim::tcp::Profile;
use evenkeel_sim::time::{MILLISECOND, Time};

use crate::settings::{GIGABIT, STARTS_WITHIN, base, simulation};

/// The observable outcome of a run: accounts, bins, latencies.
type Run = (Vec<Account>, Vec<Vec<u64>>, Vec<f64>);

fn run(seed: u64) -> Run {
    let settings = Settings {
        rate: 10 * GIGABIT,
        queues: 8,
        flows: 16,
        queue_weights: true,
        shared_segment: Some(16 << 10),
        probe_bytes: Some(64),
        ..base()
    };
    let mut simulation = simulation(&settings, Profile::Linux4_4, seed);
    simulation.start(seed, STARTS_WITHIN);
    simulation.start_probe();
    simulation.run(Time(20 * MILLISECOND)).unwrap();
    let bins = (0..16).map(|flow| simulation.observation().flow(flow).bytes).collect();
    (simulation.accounts(), bins, simulation.take_latencies())
}

#[test]
fn the_same_seed_gives_the_same_run_in_any_thread() {
    let (first, second) = std::thread::scope(|scope| {
        let threads = [scope.spawn(|| run(7)), scope.spawn(|| run(7))];
        let [first, second] = threads.map(|thread| thread.join().unwrap());
        (first, second)
    });
    let alone = run(7);
    assert!(!alone.2.is_empty());
    assert_eq!(first, alone);
    assert_eq!(second, alone);
}

#[test]
fn another_seed_hashes_flows_to_other_queues() {
    let queues = |seed| run(seed).0.iter().map(|account| account.queue).collect::<Vec<_>>();
    assert_ne!(queues(1), queues(2));
}
