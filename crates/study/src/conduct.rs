//! Runs a study. Repeats run in sequence, or concurrently if the world supports this. The journal
//! stores each repeat when it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant, SystemTime};

use evenkeel_experiment::{at_a_time, in_parallel, nothing_measured, summarise};
use evenkeel_model::scenario::{BulkTenants, Scenario};
use evenkeel_model::text::counted;
use evenkeel_model::units::BitRate;
use evenkeel_model::world::{Job, Observer, RawLine, RawRepeat, World};
use evenkeel_report::Timing;

use crate::findings::COMPARED;
use crate::journal::{Entry, Journal, JournalError, Repeated};
use crate::plan::{Extent, Planned, StudyScenario, cells, points, rounds};
use crate::results::Results;

/// CPU use of other processes above which a repeat counts as disturbed, in processors.
pub const DISTURBANCE_LIMIT: f64 = 0.1;
/// Maximum number of runs of a disturbed or failed repeat.
pub const MOST_ATTEMPTS: usize = 3;
/// Maximum number of re-runs, as a share of all repeats. Without this limit, a study would not end on a
/// machine with constant other load.
pub const MOST_AGAIN: f64 = 0.2;
/// Number of consecutive failures that ends the study.
const MOST_FAILURES: usize = 5;

/// The reason why a study ended early. The journal keeps its measurements.
#[derive(Debug, thiserror::Error)]
pub enum StudyError<E: std::error::Error> {
    #[error(transparent)]
    World(E),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("{world} cannot run any of the points: {why}")]
    NothingToRun { world: &'static str, why: String },
    #[error("{MOST_FAILURES} consecutive repeats failed; error of the last repeat: {0}")]
    Failing(E),
    #[error("interrupted")]
    Interrupted,
}

#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The scenarios, with the times of [`timed`](crate::plan::timed).
    pub scenarios: &'a [StudyScenario],
    pub extent: &'a Extent,
    /// Rate of the links. If `None`, the world chooses the rate.
    pub rate: Option<BitRate>,
    /// Seed of the order and of the first repeat of every point. Each further repeat adds 1.
    pub seed: u64,
}

/// Runs every repeat that is missing in the journal.
///
/// # Errors
/// Returns an error if the world refuses, a write fails, repeats keep failing, or the user interrupts.
/// The journal keeps the finished repeats, and another call with the same request resumes the study.
pub fn conduct<W: World>(
    world: &mut W,
    request: &Request<'_>,
    journal: &mut Journal,
    observer: &dyn Observer,
) -> Result<(), StudyError<W::Error>> {
    let all = points(request.scenarios, request.extent);
    let planned: BTreeMap<(&str, &str), u32> =
        all.iter().map(|planned| (planned.names(request.scenarios), planned.repeats)).collect();
    journal.check(&planned)?;
    journal.check_figures(request.scenarios)?;
    if journal.is_finished() {
        let missing = Results::of(journal.settings(), journal.entries(), request).runs.missing;
        if missing == 0 {
            return Ok(());
        }
        let repeats = counted(missing, "repeat");
        observer.remark(&format!("the finished study lacks {repeats}: running these repeats again"));
    }
    let points = assess(world, request, &all, journal)?;
    let rates = settle(world, request, &points, journal, observer)?;
    let study = Study { request, rates: &rates, points: &points };
    let repeats: Vec<u32> = points.iter().map(|planned| planned.repeats).collect();
    let mut state = State::of(journal, &points, request);
    let rounds = rounds(&repeats, &cells(&points), request.seed);
    for (round, order) in rounds.iter().enumerate() {
        // Disturbed repeats run again at the end of the round, when the disturbance may be over. Each
        // round has a share of the re-runs, so that a disturbed start leaves re-runs for the other
        // rounds.
        let share = (round + 1) as f64 / rounds.len() as f64;
        for attempt in 0..MOST_ATTEMPTS {
            let due: Vec<(usize, u32)> = state.due(order.iter().map(|number| (*number, round as u32)), share);
            if due.is_empty() {
                break;
            }
            // After a resumption, some of these repeats may be re-runs, but most are new.
            let pass = Pass { due: &due, again: attempt > 0 };
            study.run(world, pass, journal, &mut state, observer)?;
        }
    }
    let ended = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    journal.append(Entry::End { ended, took_s: state.took.as_secs_f64() })?;
    Ok(())
}

/// Returns the points that the world can run. Journals the notes of these points, and the reasons for
/// refusing the other points.
fn assess<'s, W: World>(
    world: &W,
    request: &Request<'_>,
    points: &[Planned<'s>],
    journal: &mut Journal,
) -> Result<Vec<Planned<'s>>, StudyError<W::Error>> {
    let known: BTreeSet<(String, String)> = journal
        .entries()
        .iter()
        .filter_map(|entry| match entry {
            Entry::Refused { scenario, point, .. } => Some((scenario.clone(), point.clone())),
            _ => None,
        })
        .collect();
    let (mut able, mut reasons) = (Vec::new(), Vec::new());
    for planned in points {
        let scenario = &request.scenarios[planned.scenario].scenario;
        let (name, point) = (scenario.name.clone(), planned.variant.name.clone());
        match world.assess(scenario, planned.variant) {
            Ok(assessment) => {
                for note in assessment.notes {
                    remember(journal, &name, &point, note)?;
                }
                able.push(*planned);
            }
            Err(why) => {
                if !reasons.contains(&why) {
                    reasons.push(why.clone());
                }
                if !known.contains(&(name.clone(), point.clone())) {
                    journal.append(Entry::Refused { scenario: name, point, why })?;
                }
            }
        }
    }
    if able.is_empty() {
        let why = if reasons.is_empty() { "the study has no point".to_owned() } else { reasons.join("; ") };
        return Err(StudyError::NothingToRun { world: world.name(), why });
    }
    Ok(able)
}

/// Adds a note to the journal, unless the journal has the note.
fn remember(journal: &mut Journal, scenario: &str, point: &str, note: String) -> Result<(), JournalError> {
    let entry = Entry::Note { scenario: scenario.to_owned(), point: point.to_owned(), note };
    if journal.entries().contains(&entry) { Ok(()) } else { journal.append(entry) }
}

/// Returns the rate of every scenario that has points, by index. A journalled rate takes precedence.
fn settle<W: World>(
    world: &mut W,
    request: &Request<'_>,
    points: &[Planned<'_>],
    journal: &mut Journal,
    observer: &dyn Observer,
) -> Result<BTreeMap<usize, BitRate>, StudyError<W::Error>> {
    let numbers: BTreeSet<usize> = points.iter().map(|planned| planned.scenario).collect();
    let known = |journal: &Journal, name: &str| {
        journal.entries().iter().find_map(|entry| match entry {
            Entry::Rate { scenario, rate_bps } if scenario == name => {
                Some(BitRate::from_bits_per_second(*rate_bps))
            }
            _ => None,
        })
    };
    let has_line = |scenario: &Scenario| scenario.workload.tenants().is_some_and(|tenants| tenants.line);
    let mut rates = BTreeMap::new();
    for number in &numbers {
        let scenario = &request.scenarios[*number].scenario;
        // The requested rate does not apply to a scenario without a link: only the processors limit its
        // throughput.
        let wanted = known(journal, &scenario.name).or(request.rate).filter(|_| has_line(scenario));
        let rate = world.settle_rate(scenario, wanted, observer);
        rates.insert(*number, rate.map_err(|error| or_interrupted(error, observer))?);
    }
    // Findings compare some scenarios with each other. All scenarios of such a group get the lowest
    // rate of the group.
    let settled = rates.clone();
    for (number, rate) in &mut rates {
        let scenario = &request.scenarios[*number].scenario;
        if let Some(known) = known(journal, &scenario.name) {
            *rate = known;
            continue;
        }
        let together = COMPARED.iter().find(|names| names.contains(&scenario.name.as_str()));
        let compared = settled.iter().filter(|(other, _)| {
            let other = &request.scenarios[**other].scenario;
            has_line(other) && together.is_some_and(|names| names.contains(&other.name.as_str()))
        });
        if let Some(least) = compared.map(|(_, rate)| *rate).min() {
            *rate = least;
        }
        let rate_bps = rate.bits_per_second();
        journal.append(Entry::Rate { scenario: scenario.name.clone(), rate_bps })?;
    }
    Ok(rates)
}

fn or_interrupted<E: std::error::Error>(error: E, observer: &dyn Observer) -> StudyError<E> {
    if observer.interrupted() { StudyError::Interrupted } else { StudyError::World(error) }
}

/// The progress of a study.
struct State {
    planned: usize,
    /// Number of runs of each repeat, and whether one of the runs was undisturbed. The key is the point index
    /// and the repeat number.
    runs: BTreeMap<(usize, u32), (usize, bool)>,
    /// Number of re-runs so far.
    again: usize,
    took: Duration,
    failures: usize,
    told_of_load: bool,
}

impl State {
    fn of(journal: &Journal, points: &[Planned<'_>], request: &Request<'_>) -> Self {
        let planned = points.iter().map(|planned| planned.repeats as usize).sum();
        let mut state = Self {
            planned,
            runs: BTreeMap::new(),
            again: 0,
            took: Duration::ZERO,
            failures: 0,
            told_of_load: false,
        };
        let numbers: BTreeMap<(&str, &str), usize> = points
            .iter()
            .enumerate()
            .map(|(number, planned)| (planned.names(request.scenarios), number))
            .collect();
        for entry in journal.entries() {
            // A resumption runs failed repeats again, because the user may have removed the cause.
            let Entry::Repeat(done) = entry else { continue };
            if let Some(number) = numbers.get(&(done.scenario.as_str(), done.point.as_str())) {
                let took = Duration::try_from_secs_f64(done.took_s).unwrap_or_default();
                state.count((*number, done.repeat), !done.disturbed, took);
            }
        }
        state
    }

    fn count(&mut self, repeat: (usize, u32), good: bool, took: Duration) {
        let (runs, was_good) = self.runs.entry(repeat).or_default();
        *runs += 1;
        *was_good |= good;
        self.again += usize::from(*runs > 1);
        self.took += took;
    }

    /// Returns the repeats to run: new repeats, and re-runs up to `share` of their maximum number.
    fn due(&self, repeats: impl Iterator<Item = (usize, u32)>, share: f64) -> Vec<(usize, u32)> {
        let most_again = (self.planned as f64 * MOST_AGAIN * share).ceil() as usize;
        let mut left = most_again.saturating_sub(self.again);
        let is_due = |repeat: &(usize, u32)| match self.runs.get(repeat) {
            None => true,
            Some((runs, good)) if !good && *runs < MOST_ATTEMPTS && left > 0 => {
                left -= 1;
                true
            }
            Some(_) => false,
        };
        repeats.filter(is_due).collect()
    }
}

/// The repeats of a round that are due at one attempt.
#[derive(Clone, Copy)]
struct Pass<'a> {
    due: &'a [(usize, u32)],
    /// Whether these repeats ran before.
    again: bool,
}

struct Finished<E> {
    repeat: (usize, u32),
    /// Time that the repeat adds to the study's duration: less than the repeat's duration if several run
    /// concurrently.
    took: Duration,
    raw: Result<RawRepeat, E>,
}

struct Study<'a> {
    request: &'a Request<'a>,
    rates: &'a BTreeMap<usize, BitRate>,
    points: &'a [Planned<'a>],
}

impl Study<'_> {
    fn rate(&self, planned: &Planned<'_>) -> BitRate {
        let nominal = self.request.scenarios[planned.scenario].scenario.link.rate;
        self.rates.get(&planned.scenario).copied().unwrap_or(nominal)
    }

    fn timing(&self, planned: &Planned<'_>) -> Timing {
        Timing::new(&self.request.scenarios[planned.scenario].scenario, self.rate(planned), 1)
    }

    fn job(&self, (number, repeat): (usize, u32)) -> Job<'_> {
        let planned = &self.points[number];
        let timing = self.timing(planned);
        Job {
            scenario: &self.request.scenarios[planned.scenario].scenario,
            variant: planned.variant,
            repeat,
            seed: self.request.seed.wrapping_add(u64::from(repeat)),
            rate: self.rate(planned),
            warmup: timing.warmup,
            duration: timing.duration,
            bin: timing.bin,
        }
    }

    /// Runs repeats and journals each when it ends.
    fn run<W: World>(
        &self,
        world: &mut W,
        Pass { due, again }: Pass<'_>,
        journal: &mut Journal,
        state: &mut State,
        observer: &dyn Observer,
    ) -> Result<(), StudyError<W::Error>> {
        let mut clock = Clock::start();
        let mut take = |mut finished: Finished<W::Error>| {
            finished.took = clock.tick();
            self.keep(finished, journal, state, observer)?;
            let new = state.planned.saturating_sub(state.runs.len());
            let left = if again { new + due.len().saturating_sub(clock.ticks) } else { new };
            let done: usize = state.runs.values().map(|(runs, _)| runs).sum();
            let time = clock.time_for(left);
            observer.progress(
                done as f64 / (done + left).max(1) as f64,
                &format!("{done} of {} repeats, {time} left", done + left),
            );
            Ok::<(), StudyError<W::Error>>(())
        };
        let Some(concurrent) = world.concurrent() else {
            for repeat in due {
                if observer.interrupted() {
                    return Err(StudyError::Interrupted);
                }
                let raw = world.repeat(&self.job(*repeat), &Quiet(observer));
                take(Finished { repeat: *repeat, took: Duration::ZERO, raw })?;
            }
            return Ok(());
        };
        let work = |number: usize| {
            let repeat = *due.get(number)?;
            if observer.interrupted() {
                return None;
            }
            let raw = concurrent.repeat(&self.job(repeat), &Quiet(observer));
            Some(Finished { repeat, took: Duration::ZERO, raw })
        };
        let largest = due.iter().map(|repeat| concurrent.memory(&self.job(*repeat))).max().unwrap_or(0);
        in_parallel(at_a_time(due.len(), largest, 0), due.len(), work, |_, finished| take(finished))?;
        if observer.interrupted() { Err(StudyError::Interrupted) } else { Ok(()) }
    }

    fn keep<E: std::error::Error>(
        &self,
        finished: Finished<E>,
        journal: &mut Journal,
        state: &mut State,
        observer: &dyn Observer,
    ) -> Result<(), StudyError<E>> {
        let planned = &self.points[finished.repeat.0];
        let scenario = self.request.scenarios[planned.scenario].scenario.name.clone();
        let (point, repeat) = (planned.variant.name.clone(), finished.repeat.1);
        let raw = match finished.raw {
            Ok(raw) => raw,
            Err(_) if observer.interrupted() => return Err(StudyError::Interrupted),
            Err(error) => {
                state.count(finished.repeat, false, finished.took);
                state.failures += 1;
                let why = error.to_string();
                observer.remark(&format!("{scenario}, {point}, repeat {}: {why}", repeat + 1));
                journal.append(Entry::Failed { scenario, point, repeat, why })?;
                let failing = state.failures >= MOST_FAILURES;
                return if failing { Err(StudyError::Failing(error)) } else { Ok(()) };
            }
        };
        state.failures = 0;
        let tenants = raw.tenants.as_ref();
        let load = tenants.and_then(|tenants| tenants.disturbance).filter(|load| *load > DISTURBANCE_LIMIT);
        if let Some(load) = load.filter(|_| !state.told_of_load) {
            // Report this only once: on a busy machine every repeat is disturbed, and the result states
            // the number of disturbed repeats.
            state.told_of_load = true;
            observer.remark(&format!(
                "other processes took {load:.2} processors during a repeat, and {DISTURBANCE_LIMIT} is the limit: such \
                 repeats are run up to {MOST_ATTEMPTS} times"
            ));
        }
        let timing = self.timing(planned);
        let more = nothing_measured(&raw, &timing, planned.variant);
        let more = more.into_iter().chain(timing.note_of_left_out(self.rate(planned)));
        for note in raw.notes.iter().cloned().chain(more) {
            remember(journal, &scenario, &point, note)?;
        }
        // Clients that start and stop may leave the link idle, so store a trace of the first repeat.
        let comes_and_goes = |tenants: &BulkTenants| tenants.on_off.is_some();
        let line = tenants.and_then(|tenants| tenants.line.as_ref());
        let trace = match line.filter(|_| repeat == 0 && planned.point.bulk.iter().any(comes_and_goes)) {
            Some(line) => Some(journal.keep_trace(&format!("{scenario} {point}"), &trace(line))?),
            None => None,
        };
        state.count(finished.repeat, load.is_none(), finished.took);
        let record = summarise(&raw, &timing, self.rate(planned), planned.variant);
        journal.append(Entry::Repeat(Box::new(Repeated {
            scenario,
            point,
            repeat,
            took_s: finished.took.as_secs_f64(),
            disturbed: load.is_some(),
            record,
            trace,
        })))?;
        Ok(())
    }
}

/// Returns the bytes sent and the minimum backlog in each bin, as CSV.
fn trace(line: &RawLine) -> String {
    let mut text = String::from("# what the line can carry in a bin, bytes: ");
    // Writing to a string does not fail.
    let _ = writeln!(text, "{:.0}\nstart_us,sent_bytes,least_backlog_bytes", line.capacity_bytes);
    for (number, (sent, waiting)) in line.bytes.iter().zip(&line.backlog_bytes).enumerate() {
        let start = (number as u64).saturating_mul(line.bin.as_u64()) / 1000;
        let _ = writeln!(text, "{start},{sent},{waiting}");
    }
    text
}

/// Estimates the remaining time from the repeats' durations.
struct Clock {
    begun: Instant,
    last: Instant,
    ticks: usize,
}

impl Clock {
    fn start() -> Self {
        let now = Instant::now();
        Self { begun: now, last: now, ticks: 0 }
    }

    /// Counts a finished repeat. Returns the time since the previous repeat ended, or since the start.
    fn tick(&mut self) -> Duration {
        let now = Instant::now();
        let took = now - self.last;
        self.last = now;
        self.ticks += 1;
        took
    }

    /// Returns the estimated duration of `repeats` further repeats.
    fn time_for(&self, repeats: usize) -> String {
        let each = self.begun.elapsed().as_secs_f64() / self.ticks.max(1) as f64;
        let seconds = each * repeats as f64;
        if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
    }
}

/// Hides the progress of a single repeat.
struct Quiet<'a>(&'a dyn Observer);

impl Observer for Quiet<'_> {
    fn progress(&self, _: f64, _: &str) {}

    fn remark(&self, text: &str) {
        self.0.remark(text);
    }

    fn interrupted(&self) -> bool {
        self.0.interrupted()
    }
}
