//! Runs receivers in the simulator, one run for each seed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use evenkeel_model::world::Observer;
use evenkeel_sim::time::{MILLISECOND, SECOND, Span, Time};
use evenkeel_sim::transfers::simulation::{Simulation, Snapshot};

use crate::receiver::Receiver;

/// Number of seeds of each receiver; the first seed is 1.
pub const SEEDS: u64 = 10;
/// Minimum warm-up and measured time.
const WARM_UP: Span = 500 * MILLISECOND;
const MEASURED: Span = 500 * MILLISECOND;
/// Minimum warm-up and measured time in round trips, for connections whose windows grow slowly.
const ROUND_TRIPS: (u64, u64) = (40, 10);
/// Number of steps of the warm-up, and of the measured time. A run can be interrupted before each step.
const STEPS: u64 = 50;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Payload that the applications read, bit/s.
    pub bps: f64,
    /// Packets dropped per second, since the start of the connections.
    pub drops_per_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    Done(Run),
    Interrupted,
    Failed(String),
}

/// The runs of a receiver, by seed; the reason if the simulator failed.
pub type Runs = Result<Vec<Run>, String>;

/// Runs each receiver with each seed.
///
/// # Errors
/// Returns an error if the observer interrupts the runs.
pub fn run(receivers: &[&Receiver], observer: &dyn Observer) -> Result<Vec<Runs>, Interrupted> {
    let jobs: Vec<(usize, u64)> =
        (0..receivers.len()).flat_map(|receiver| (1..=SEEDS).map(move |seed| (receiver, seed))).collect();
    let (next, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let outcomes: Mutex<Vec<Outcome>> = Mutex::new(vec![Outcome::Interrupted; jobs.len()]);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some((receiver, seed)) = jobs.get(number) else { break };
            let Some(receiver) = receivers.get(*receiver) else { break };
            let outcome = one(receiver, *seed, observer);
            let is_over = outcome == Outcome::Interrupted;
            if let Some(slot) = outcomes.lock().unwrap_or_else(PoisonError::into_inner).get_mut(number) {
                *slot = outcome;
            }
            if is_over {
                break;
            }
            let done = finished.fetch_add(1, Ordering::Relaxed) + 1;
            observer.progress(done as f64 / jobs.len() as f64, "simulating");
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    thread::scope(|scope| {
        for _ in 1..threads {
            // Ignore the error: if no thread can be started, this thread does all the work.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    let of_receiver = |outcomes: &[Outcome]| {
        let mut runs = Vec::new();
        for outcome in outcomes {
            match outcome {
                Outcome::Done(run) => runs.push(*run),
                Outcome::Interrupted => return Err(Interrupted),
                Outcome::Failed(why) => return Ok(Err(why.clone())),
            }
        }
        Ok(Ok(runs))
    };
    outcomes.chunks(SEEDS as usize).map(of_receiver).collect()
}

pub fn lengths(receiver: &Receiver) -> (Span, Span) {
    let round_trip = receiver.round_trip();
    (WARM_UP.max(ROUND_TRIPS.0 * round_trip), MEASURED.max(ROUND_TRIPS.1 * round_trip))
}

/// Returns the work of one run of a receiver, bit: simulated seconds times the speed of the receiver's link.
#[must_use]
pub fn work(receiver: &Receiver) -> f64 {
    let (warm_up, measured) = lengths(receiver);
    (warm_up + measured) as f64 / SECOND as f64 * receiver.speed_bps as f64
}

fn one(receiver: &Receiver, seed: u64, observer: &dyn Observer) -> Outcome {
    let (warm_up, measured) = lengths(receiver);
    let begin = Time(warm_up);
    let mut simulation = Simulation::new(receiver.settings(seed), seed, begin, SECOND, 0);
    let mut before = Snapshot::default();
    for (from, length) in [(Time::ZERO, warm_up), (begin, measured)] {
        before = if from == begin { simulation.snapshot() } else { before };
        for step in 1..=STEPS {
            if observer.interrupted() {
                return Outcome::Interrupted;
            }
            if let Err(error) = simulation.run(from + length / STEPS * step) {
                return Outcome::Failed(error.to_string());
            }
        }
    }
    let after = simulation.snapshot();
    let read = |snapshot: &Snapshot| snapshot.read.iter().sum::<u64>();
    let seconds = |from: Time| after.at.since(from) as f64 / SECOND as f64;
    Outcome::Done(Run {
        bps: (read(&after) - read(&before)) as f64 * 8.0 / seconds(before.at),
        drops_per_s: after.drops.total() as f64 / seconds(Time::ZERO),
    })
}
