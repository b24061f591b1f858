//! The study itself: repeats one after the other, or several at a time where the world allows it, each written down at
//! once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant, SystemTime};

use evenkeel_experiment::{Timing, in_parallel, summarise};
use evenkeel_model::scenario::{BulkTenants, Scenario};
use evenkeel_model::units::BitRate;
use evenkeel_model::world::{Job, Observer, RawLine, RawRepeat, World};

use crate::findings::COMPARED;
use crate::journal::{Entry, Journal, JournalError, Repeated};
use crate::plan::{Extent, Planned, StudyScenario, cells, points, rounds};

/// Other load above this, in processors, disturbs a repeat.
pub const DISTURBANCE_LIMIT: f64 = 0.1;
/// A disturbed repeat, or one that failed, is run again until it has been run so often.
pub const MOST_ATTEMPTS: usize = 3;
/// No more of all repeats are run again than this share: a machine that is never quiet would not come to an end.
pub const MOST_AGAIN: f64 = 0.2;
/// So many failures in a row are no accident.
const MOST_FAILURES: usize = 5;

/// Why a study did not come to its end. What was measured is kept.
#[derive(Debug, thiserror::Error)]
pub enum StudyError<E: std::error::Error> {
    /// The world refused.
    #[error(transparent)]
    World(E),
    /// The directory failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// No point is left to run.
    #[error("{world} can run none of the points: {why}")]
    NothingToRun {
        /// The world.
        world: &'static str,
        /// The first reason.
        why: String,
    },
    /// Repeat after repeat failed.
    #[error("{MOST_FAILURES} repeats failed one after the other, the last with: {0}")]
    Failing(E),
    /// The user wanted to stop.
    #[error("interrupted")]
    Interrupted,
}

/// What to conduct.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The scenarios, with the study's times.
    pub scenarios: &'a [StudyScenario],
    /// How much of each.
    pub extent: &'a Extent,
    /// Rate of lines; none lets the world choose.
    pub rate: Option<BitRate>,
    /// Seed of the first repeat of every point, and of the order; the next repeat has the next.
    pub seed: u64,
}

/// Runs every repeat that the journal does not have yet.
///
/// # Errors
/// When the world refuses, the disk fails, repeat after repeat fails, or the user wants to stop. The journal then has
/// what was done, and the same call goes on from there.
pub fn conduct<W: World>(
    world: &mut W,
    request: &Request<'_>,
    journal: &mut Journal,
    observer: &dyn Observer,
) -> Result<(), StudyError<W::Error>> {
    if journal.is_finished() {
        return Ok(());
    }
    let all = points(request.scenarios, request.extent);
    let points = assess(world, request, &all, journal)?;
    let rates = settle(world, request, &points, journal, observer)?;
    let study = Study { request, rates: &rates, points: &points };
    let repeats: Vec<u32> = points.iter().map(|planned| planned.repeats).collect();
    let mut state = State::of(journal, &points, request);
    let rounds = rounds(&repeats, &cells(&points), request.seed);
    for (round, order) in rounds.iter().enumerate() {
        // What was disturbed comes again at the end of the round, when the disturbance may be over. A round has its
        // share of what may be run again, so that a bad beginning does not leave nothing for the rest.
        let share = (round + 1) as f64 / rounds.len() as f64;
        for attempt in 0..MOST_ATTEMPTS {
            let due: Vec<(usize, u32)> = state.due(order.iter().map(|number| (*number, round as u32)), share);
            if due.is_empty() {
                break;
            }
            // What a resumption finds due may be either, and most of it is new.
            let pass = Pass { due: &due, again: attempt > 0 };
            study.run(world, pass, journal, &mut state, observer)?;
        }
    }
    let ended = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    journal.append(Entry::End { ended, took_s: state.took.as_secs_f64() })?;
    Ok(())
}

/// The points that the world can run; why not the others, and the notes of those, are in the journal.
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
    let (mut able, mut first_why) = (Vec::new(), None);
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
                first_why.get_or_insert_with(|| why.clone());
                if !known.contains(&(name.clone(), point.clone())) {
                    journal.append(Entry::Refused { scenario: name, point, why })?;
                }
            }
        }
    }
    if able.is_empty() {
        let why = first_why.unwrap_or_else(|| "there is none".to_owned());
        return Err(StudyError::NothingToRun { world: world.name(), why });
    }
    Ok(able)
}

/// Writes a note down, once.
fn remember(journal: &mut Journal, scenario: &str, point: &str, note: String) -> Result<(), JournalError> {
    let entry = Entry::Note { scenario: scenario.to_owned(), point: point.to_owned(), note };
    if journal.entries().contains(&entry) { Ok(()) } else { journal.append(entry) }
}

/// The rate of every scenario that has points, by its number: the one in the journal if there is one.
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
        // Where nothing but processors limits, there is no rate to ask for.
        let wanted = known(journal, &scenario.name).or(request.rate).filter(|_| has_line(scenario));
        let rate = world.settle_rate(scenario, wanted, observer);
        rates.insert(*number, rate.map_err(|error| or_interrupted(error, observer))?);
    }
    // Findings hold one scenario against another: these have the line of the one that can have the least.
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

/// What has happened to each repeat: by the number of its point, and its own.
struct State {
    /// Repeats that are to be run, all points together.
    planned: usize,
    /// How often each was run, and whether one of the times was undisturbed.
    runs: BTreeMap<(usize, u32), (usize, bool)>,
    /// Repeats that were run again.
    again: usize,
    /// Time that the repeats took.
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
            .map(|(number, planned)| {
                let scenario = request.scenarios[planned.scenario].scenario.name.as_str();
                ((scenario, planned.variant.name.as_str()), number)
            })
            .collect();
        for entry in journal.entries() {
            let (scenario, point, repeat, good, took_s) = match entry {
                Entry::Repeat(done) => {
                    (&done.scenario, &done.point, done.repeat, !done.disturbed, done.took_s)
                }
                Entry::Failed { scenario, point, repeat, .. } => (scenario, point, *repeat, false, 0.0),
                _ => continue,
            };
            if let Some(number) = numbers.get(&(scenario.as_str(), point.as_str())) {
                state.count((*number, repeat), good, Duration::try_from_secs_f64(took_s).unwrap_or_default());
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

    /// The repeats that are to be run, for the first time or, as far as this share of the allowance for it reaches, once
    /// more.
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

/// Repeats that are run one after the other, or several at a time.
#[derive(Clone, Copy)]
struct Pass<'a> {
    due: &'a [(usize, u32)],
    /// They were run before.
    again: bool,
}

/// One repeat's result on its way to the journal.
struct Finished<E> {
    repeat: (usize, u32),
    /// What it added to the time of the study: where several run at a time, that is less than its own.
    took: Duration,
    raw: Result<RawRepeat, E>,
}

/// What all repeats share.
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

    /// Runs repeats and writes each down when it is done.
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
        in_parallel(due.len(), work, |_, finished| take(finished))?;
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
            // Once: on a busy machine it is so with every repeat, and the result says how many they were.
            state.told_of_load = true;
            observer.remark(&format!(
                "other processes took {load:.2} processors during a repeat, and {DISTURBANCE_LIMIT} is the limit: such \
                 repeats are run up to {MOST_ATTEMPTS} times"
            ));
        }
        for note in &raw.notes {
            remember(journal, &scenario, &point, note.clone())?;
        }
        // Where clients come and go the question is whether the line idles: the answer is there to be looked at.
        let comes_and_goes = |tenants: &BulkTenants| tenants.on_off.is_some();
        let line = tenants.and_then(|tenants| tenants.line.as_ref());
        let trace = match line.filter(|_| repeat == 0 && planned.point.bulk.iter().any(comes_and_goes)) {
            Some(line) => Some(journal.keep_trace(&format!("{scenario} {point}"), &trace(line))?),
            None => None,
        };
        state.count(finished.repeat, load.is_none(), finished.took);
        let record = summarise(&raw, &self.timing(planned), self.rate(planned), planned.variant);
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

/// What left the line in each bin, and the least that was seen waiting, as CSV.
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

/// How long repeats take, and so how long it will take yet.
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

    /// A repeat is done: the time since the one before.
    fn tick(&mut self) -> Duration {
        let now = Instant::now();
        let took = now - self.last;
        self.last = now;
        self.ticks += 1;
        took
    }

    /// Time for so many more repeats.
    fn time_for(&self, repeats: usize) -> String {
        let each = self.begun.elapsed().as_secs_f64() / self.ticks.max(1) as f64;
        let seconds = each * repeats as f64;
        if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
    }
}

/// Tells nothing of a repeat's own progress: it is one of hundreds.
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
