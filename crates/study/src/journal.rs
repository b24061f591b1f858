//! The directory of a study. The study stores each repeat there when the repeat ends.
//!
//! ```text
//! DIRECTORY/
//!   study.json       the settings; a resumption must have the same settings
//!   repeats.jsonl    an append-only log, one line per event
//!   traces/          bytes sent on the line and its backlog, as CSV
//!   study-result.json, study.md, *.svg   the result, after the last repeat
//! ```
//!
//! Each line is synced when it is written. A killed process can damage only the last line. The next run
//! removes this line and repeats the measurement.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use evenkeel_files::{ClaimedDirectory, InputError, Kind, OutputError, open_regular, read_regular, replace};
use evenkeel_model::objects::read_json;
use evenkeel_model::record::RepeatRecord;
use evenkeel_model::text::{excerpt, name_field, path_text, plain_words, printable};
use evenkeel_model::units::BitRate;
use evenkeel_report::Timing;
use evenkeel_report::store::{Run, check_in_run, check_rate, check_repeat};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::plan::StudyScenario;

pub const SCHEMA: u32 = 1;

const SETTINGS_FILE: &str = "study.json";
const REPEATS_FILE: &str = "repeats.jsonl";
const TRACES: &str = "traces";

/// The settings of a study. All runs of a study have the same settings, except [`Settings::started`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Schema version of the writer, see [`SCHEMA`].
    pub schema: u32,
    pub evenkeel: String,
    /// `sim` or `netns`.
    pub world: String,
    /// Kernel release, or kernel profile of the simulator.
    pub kernel: String,
    pub quick: bool,
    /// Seed of the first repeats and of the order.
    pub seed: u64,
    /// The requested line rate, bit/s.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rate_bps: Option<u64>,
    /// Repeats of every point. If `None`, each scenario has its own number.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub repeats: Option<u32>,
    /// The selected setups; empty: all.
    pub setups: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub setups_text: Option<String>,
    /// Text of each scenario, by name.
    pub scenarios: BTreeMap<String, String>,
    /// Text of each file in `qdisc-files`, by scenario and name. Studies of older versions lack the texts.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub qdisc_files: BTreeMap<String, BTreeMap<String, String>>,
    pub host: BTreeMap<String, String>,
    /// Start time, RFC 3339 in UTC. This is the only setting that may differ in a resumption.
    pub started: String,
}

impl Settings {
    /// Describes the first difference from the settings `found` of a study; `None` if there is none. Does not
    /// compare `schema` and `started`.
    #[must_use]
    pub fn difference(&self, found: &Self) -> Option<String> {
        let effort = |settings: &Self| if settings.quick { "quick" } else { "full" }.to_owned();
        let rate = |settings: &Self| {
            let stated = settings.rate_bps.map(|rate| BitRate::from_bits_per_second(rate).to_string());
            stated.unwrap_or_else(|| "the default".to_owned())
        };
        let repeats = |settings: &Self| {
            settings.repeats.map_or_else(|| "that of the scenarios".to_owned(), |count| count.to_string())
        };
        let all_or = |names: &[String]| if names.is_empty() { "all".to_owned() } else { names.join(", ") };
        let setups = |settings: &Self| all_or(&settings.setups);
        let scenarios = |settings: &Self| all_or(&settings.scenarios.keys().cloned().collect::<Vec<_>>());
        let mut shown: Vec<(&str, String, String)> = vec![
            ("version of evenkeel", found.evenkeel.clone(), self.evenkeel.clone()),
            ("world", found.world.clone(), self.world.clone()),
            ("kernel", found.kernel.clone(), self.kernel.clone()),
            ("effort", effort(found), effort(self)),
            ("seed", found.seed.to_string(), self.seed.to_string()),
            ("rate", rate(found), rate(self)),
            ("number of repeats", repeats(found), repeats(self)),
            ("list of setups", setups(found), setups(self)),
            ("list of scenarios", scenarios(found), scenarios(self)),
        ];
        let fact = |settings: &Self, fact: &str| {
            settings.host.get(fact).cloned().unwrap_or_else(|| "unknown".to_owned())
        };
        let facts: BTreeSet<&String> = self.host.keys().chain(found.host.keys()).collect();
        shown.extend(facts.into_iter().map(|name| (name.as_str(), fact(found, name), fact(self, name))));
        if let Some((name, there, here)) = shown.into_iter().find(|(_, there, here)| there != here) {
            return Some(format!("its {name} is {there}, not {here}"));
        }
        if self.setups_text != found.setups_text {
            return Some("its file of setups differs".to_owned());
        }
        let changed = self.scenarios.iter().find(|(name, text)| found.scenarios.get(*name) != Some(text));
        if let Some((name, _)) = changed {
            return Some(format!("its scenario {name} differs"));
        }
        self.qdisc_files.iter().find_map(|(scenario, files)| {
            let Some(found) = found.qdisc_files.get(scenario) else {
                return Some(format!("its {SETTINGS_FILE} lacks the qdisc-files of {scenario}"));
            };
            let changed = files.iter().find(|(name, text)| found.get(*name) != Some(text));
            changed.map(|(name, _)| format!("its file {name} (qdisc-files of {scenario}) differs"))
        })
    }
}

/// An event, stored as one line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum Entry {
    Rate {
        scenario: String,
        rate_bps: u64,
    },
    Refused {
        scenario: String,
        point: String,
        why: String,
    },
    /// A note for readers about a point's figures.
    Note {
        scenario: String,
        point: String,
        note: String,
    },
    Repeat(Box<Repeated>),
    Failed {
        scenario: String,
        point: String,
        /// Number of the repeat, from 0.
        repeat: u32,
        why: String,
    },
    /// The end of the study.
    End {
        /// RFC 3339 in UTC.
        ended: String,
        /// Sum of the durations of the runs of all repeats, seconds.
        took_s: f64,
    },
}

impl Entry {
    /// Returns scenario, point and number of the event's repeat; `None` if the event is about no repeat.
    pub(crate) fn repeat(&self) -> Option<(&str, &str, u32)> {
        match self {
            Self::Repeat(done) => Some((&done.scenario, &done.point, done.repeat)),
            Self::Failed { scenario, point, repeat, .. } => Some((scenario, point, *repeat)),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Repeated {
    pub scenario: String,
    pub point: String,
    /// Number of the repeat, from 0.
    pub repeat: u32,
    /// Time that the repeat added to the study's duration, seconds, including set-up and clean-up.
    pub took_s: f64,
    /// Whether the CPU use of other processes was above the limit during the repeat.
    pub disturbed: bool,
    pub record: RepeatRecord,
    /// File of the line's trace within the directory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trace: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot {action} {}: {source}", path_text(.path))]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Output(OutputError),
    #[error("{} is not a study: it has no {SETTINGS_FILE}; name a directory that `evenkeel study tc` wrote", path_text(.0))]
    Missing(PathBuf),
    #[error("{} contains files that do not belong to a study; name a new directory", path_text(.0))]
    Occupied(PathBuf),
    #[error("another process is running the study in {}; wait until it ends", path_text(.0))]
    Busy(PathBuf),
    #[error("{}:{line}{}; another program changed the file: correct it, or start again in another directory", path_text(.path), place_and_words(.source))]
    Damaged {
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        source: serde_json::Error,
    },
    #[error(
        "{}:{line}: the study has no {what}; remove the line, and run the study again to measure the missing repeats",
        path_text(.path)
    )]
    Unplanned {
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        what: String,
    },
    #[error("{}: {}; {}", path_text(.path), plain_words(&.source.to_string()), why_unread(.source))]
    Settings { path: PathBuf, source: serde_json::Error },
    #[error(
        "{} has schema {found}, but this evenkeel reads schema {SCHEMA}; use the version of evenkeel that wrote \
         the file",
        path_text(.path)
    )]
    Schema { path: PathBuf, found: u32 },
    #[error("{} contains another study: {why}; name another directory", path_text(.path))]
    Other { path: PathBuf, why: String },
}

/// Returns the probable reason why a study's settings cannot be read, and the next step.
fn why_unread(error: &serde_json::Error) -> &'static str {
    if error.is_eof() {
        "the file is cut off: start again in another directory"
    } else {
        "the file does not belong to a study, or another version of evenkeel wrote it; name another directory"
    }
}

/// Returns `:COLUMN: WORDS` for a parser's error about a single line. The column is omitted if unknown.
fn place_and_words(error: &serde_json::Error) -> String {
    let place = format!(" at line {} column {}", error.line(), error.column());
    let words = plain_words(&error.to_string()).replace(&place, "");
    let words = words.trim_end_matches(',');
    if error.column() > 0 { format!(":{}: {words}", error.column()) } else { format!(": {words}") }
}

impl From<OutputError> for JournalError {
    fn from(error: OutputError) -> Self {
        match error {
            OutputError::Busy { path } => Self::Busy(path),
            error => Self::Output(error),
        }
    }
}

impl JournalError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

/// A study's directory, open for further repeats.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    claim: ClaimedDirectory,
    settings: Settings,
    file: Flock<File>,
    /// Length of the journal file, bytes.
    length: u64,
    entries: Vec<Entry>,
    dropped: bool,
}

impl Journal {
    /// Begins a study in a directory, or resumes a study with the same settings.
    ///
    /// # Errors
    /// Returns an error if the directory is in use, cannot be written, or contains other files, another
    /// study or a damaged study.
    pub fn open(directory: &Path, settings: &Settings) -> Result<Self, JournalError> {
        // Lock first: if two processes start together, one of them finds the other's lock or settings.
        let claim = ClaimedDirectory::claim(directory)?;
        match read_settings(directory) {
            Ok(found) => {
                if let Some(why) = settings.difference(&found) {
                    return Err(JournalError::Other { path: directory.to_owned(), why });
                }
                Self::go_on(directory, claim, found)
            }
            Err(JournalError::Missing(_)) => Self::begin(directory, claim, settings),
            Err(error) => Err(error),
        }
    }

    fn begin(
        directory: &Path,
        mut claim: ClaimedDirectory,
        settings: &Settings,
    ) -> Result<Self, JournalError> {
        let mut entries = fs::read_dir(directory).map_err(JournalError::io("read", directory))?;
        if entries.next().is_some() {
            return Err(JournalError::Occupied(directory.to_owned()));
        }
        // The settings are written atomically, so a directory without them has no study.
        let text = serde_json::to_string_pretty(settings)
            .map_err(|source| JournalError::Settings { path: directory.join(SETTINGS_FILE), source })?;
        write_whole(&directory.join(SETTINGS_FILE), text.as_bytes())?;
        claim.keep()?;
        Self::go_on(directory, claim, settings.clone())
    }

    fn go_on(directory: &Path, claim: ClaimedDirectory, settings: Settings) -> Result<Self, JournalError> {
        let path = directory.join(REPEATS_FILE);
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .custom_flags(nix::libc::O_NONBLOCK)
            .open(&path);
        let file = file.map_err(JournalError::io("open", &path))?;
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|_| JournalError::Busy(directory.to_owned()))?;
        let (entries, good) = read_entries(&path)?;
        let length = file.metadata().map_err(JournalError::io("read", &path))?.len();
        let dropped = good < length;
        if dropped {
            file.set_len(good).map_err(JournalError::io("cut", &path))?;
        }
        let directory = directory.to_owned();
        Ok(Self { directory, claim, settings, file, length: good, entries, dropped })
    }

    /// Removes the study if it has no repeat. Also removes the directories that this call of
    /// [`Self::open`] created.
    pub fn give_up(&mut self) {
        if self.entries.iter().any(|entry| matches!(entry, Entry::Repeat(_))) {
            return;
        }
        // Ignore the error: the remaining files are a study without repeats, which the next study with
        // these settings continues.
        for file in [REPEATS_FILE, SETTINGS_FILE] {
            let _ = fs::remove_file(self.directory.join(file));
        }
        self.claim.give_up();
    }

    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns whether a damaged last line was removed.
    #[must_use]
    pub fn dropped(&self) -> bool {
        self.dropped
    }

    #[must_use]
    pub fn is_finished(&self) -> bool {
        is_finished(&self.entries)
    }

    /// Checks that each repeat belongs to a planned point, by scenario and name, and that its number is
    /// planned.
    ///
    /// # Errors
    /// Returns an error with the first line that has an unplanned repeat.
    pub(crate) fn check(&self, planned: &BTreeMap<(&str, &str), u32>) -> Result<(), JournalError> {
        for (index, entry) in self.entries.iter().enumerate() {
            let Some((scenario, point, repeat)) = entry.repeat() else { continue };
            let what = match planned.get(&(scenario, point)) {
                None => format!("point '{}' of {}", excerpt(point), excerpt(scenario)),
                Some(repeats) if repeat >= *repeats => format!("repeat {repeat} of {scenario} {point}"),
                Some(_) => continue,
            };
            let path = self.directory.join(REPEATS_FILE);
            return Err(JournalError::Unplanned { path, line: index + 1, what });
        }
        Ok(())
    }

    /// Checks every repeat against its scenario, see [`check_figures`].
    ///
    /// # Errors
    /// Returns an error with the first impossible figure.
    pub(crate) fn check_figures(&self, scenarios: &[StudyScenario]) -> Result<(), JournalError> {
        check_figures(&self.directory, &self.settings, &self.entries, scenarios)
    }

    /// Writes an event as a line and syncs the file.
    pub fn append(&mut self, entry: Entry) -> Result<(), JournalError> {
        let path = self.directory.join(REPEATS_FILE);
        let mut line = serde_json::to_vec(&entry).map_err(|source| JournalError::Damaged {
            path: path.clone(),
            line: self.entries.len() + 1,
            source,
        })?;
        line.push(b'\n');
        // Write the line in a single call. A killed process then leaves a complete or a partial line,
        // but never a mix of two lines.
        let written = (&*self.file).write_all(&line).and_then(|()| self.file.sync_data());
        if let Err(source) = written {
            // Remove the partial line, because a line after it would make the damage permanent. Ignore
            // an error here, because the first error is reported.
            let _ = self.file.set_len(self.length);
            return Err(JournalError::Io { action: "write", path, source });
        }
        self.length += line.len() as u64;
        self.entries.push(entry);
        Ok(())
    }

    /// Stores a trace. Returns its name within the directory.
    pub fn keep_trace(&self, name: &str, text: &str) -> Result<String, JournalError> {
        let directory = self.directory.join(TRACES);
        // Do not use create_dir_all, which would restore a removed study without its repeats.
        match fs::create_dir(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(JournalError::io("make", &directory)(error));
            }
            _ => {}
        }
        let good = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '=') { c } else { '-' };
        let file = format!("{TRACES}/{}.csv", name.chars().map(good).collect::<String>());
        write_whole(&self.directory.join(&file), text.as_bytes())?;
        Ok(file)
    }

    /// Writes a result file atomically.
    pub fn keep(&self, name: &str, text: &str) -> Result<(), JournalError> {
        write_whole(&self.directory.join(name), text.as_bytes())
    }
}

pub fn read_settings(directory: &Path) -> Result<Settings, JournalError> {
    let path = directory.join(SETTINGS_FILE);
    let text = read_regular(&path, Kind::StudySettings).map_err(|error| {
        if error.is_missing() { JournalError::Missing(directory.to_owned()) } else { error.into() }
    })?;
    let damaged = |source: serde_json::Error| JournalError::Settings {
        path: path.clone(),
        source: name_field((source.line(), source.column()), source, text.text.as_bytes()),
    };
    // Check the schema first, because the fields of another version would look like damage.
    let Version { schema } = read_json(text.text.as_bytes()).map_err(damaged)?;
    if schema != SCHEMA {
        return Err(JournalError::Schema { path, found: schema });
    }
    read_json(text.text.as_bytes()).map_err(damaged)
}

#[derive(Deserialize)]
struct Version {
    schema: u32,
}

/// Returns whether a directory has a study, complete or partial.
#[must_use]
pub fn has_study(directory: &Path) -> bool {
    [SETTINGS_FILE, REPEATS_FILE].iter().any(|file| directory.join(file).exists())
}

#[must_use]
pub fn is_of_study(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| [SETTINGS_FILE, REPEATS_FILE].contains(&name))
        || path.ends_with("study-result.json")
}

/// Returns a study's settings, its events, and its gaps.
///
/// # Errors
/// Returns an error if the directory has no study, or a file cannot be read. Also returns an error for a
/// damaged line before the last line, an impossible figure, or a repeat that a study cannot have.
pub fn read_with_gaps(directory: &Path) -> Result<(Settings, Vec<Entry>, Vec<String>), JournalError> {
    let settings = read_settings(directory)?;
    let path = directory.join(REPEATS_FILE);
    let (entries, good) = read_entries(&path)?;
    if let Some((line, what)) = unplanned(&entries) {
        return Err(JournalError::Unplanned { path, line, what });
    }
    let mut gaps = gaps(&entries);
    match fs::metadata(&path) {
        Err(_) => gaps = vec![format!("{REPEATS_FILE} is missing")],
        Ok(metadata) if metadata.len() == 0 => gaps = vec![format!("{REPEATS_FILE} is empty")],
        Ok(metadata) if metadata.len() > good => {
            gaps.insert(0, format!("line {} of {REPEATS_FILE} is cut short and not read", entries.len() + 1));
        }
        Ok(_) => {}
    }
    Ok((settings, entries, gaps))
}

/// Returns the first line with a repeat that a study cannot have, and describes the repeat. In a study, the
/// number of a repeat is at most the number of earlier lines with a repeat of its scenario.
fn unplanned(entries: &[Entry]) -> Option<(usize, String)> {
    let mut lines: BTreeMap<&str, u64> = BTreeMap::new();
    entries.iter().enumerate().find_map(|(index, entry)| {
        let (scenario, point, repeat) = entry.repeat()?;
        let before = lines.entry(scenario).or_default();
        let is_possible = u64::from(repeat) <= *before;
        *before += 1;
        (!is_possible).then(|| (index + 1, format!("repeat {repeat} of {scenario} {point}")))
    })
}

/// Returns a study's gaps according to its events: one text if the study is not finished or lacks repeats.
/// In a study without gaps, all points of a scenario have the same number of repeats.
fn gaps(entries: &[Entry]) -> Vec<String> {
    let mut repeats: BTreeMap<&str, BTreeMap<&str, BTreeSet<u32>>> = BTreeMap::new();
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for entry in entries {
        if let Some((scenario, point, repeat)) = entry.repeat() {
            let there = repeats.entry(scenario).or_default().entry(point).or_default();
            if matches!(entry, Entry::Repeat(_)) {
                there.insert(repeat);
            }
            let count = counts.entry(scenario).or_default();
            *count = (*count).max(repeat.saturating_add(1));
        }
    }
    if !is_finished(entries) {
        return vec!["it is not finished".to_owned()];
    }
    let mut missing = Vec::new();
    for (scenario, points) in &repeats {
        let count = counts.get(scenario).copied().unwrap_or(0);
        for (point, there) in points {
            let there = there.len();
            if there < count as usize {
                missing.push(format!("{scenario} {point} ({there} of {count})"));
            }
        }
    }
    if missing.is_empty() {
        return Vec::new();
    }
    vec![format!("repeats are missing: {}", points_list(&missing))]
}

/// Returns up to 10 names of points, and the number of the other names.
pub(crate) fn points_list(names: &[String]) -> String {
    const SHOWN: usize = 10;
    let shown = names.iter().take(SHOWN).map(|name| printable(name)).collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(SHOWN);
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

/// Reads the settings and events of a study without running it.
pub fn read(directory: &Path) -> Result<(Settings, Vec<Entry>), JournalError> {
    let settings = read_settings(directory)?;
    let (entries, _) = read_entries(&directory.join(REPEATS_FILE))?;
    Ok((settings, entries))
}

/// Checks that the figures of every repeat are possible in its scenario. Skips a repeat if its scenario is
/// not in `scenarios` or has no recorded rate. `scenarios` must come from [`crate::plan::timed`].
///
/// # Errors
/// Returns an error with the first line that has an impossible figure.
pub fn check_figures(
    directory: &Path,
    settings: &Settings,
    entries: &[Entry],
    scenarios: &[StudyScenario],
) -> Result<(), JournalError> {
    let mut rates = BTreeMap::new();
    for (index, entry) in entries.iter().enumerate() {
        if let Entry::Rate { scenario, rate_bps } = entry {
            rates.insert(scenario, *rate_bps);
        }
        let Entry::Repeat(done) = entry else { continue };
        let find = |study: &&StudyScenario| study.scenario.name == done.scenario;
        let Some(StudyScenario { scenario, .. }) = scenarios.iter().find(find) else { continue };
        let Some(rate_bps) = rates.get(&done.scenario) else { continue };
        let timing = Timing::new(scenario, BitRate::from_bits_per_second(*rate_bps), 1);
        let run = Run {
            world: &settings.world,
            host: &settings.host,
            rate_bps: *rate_bps,
            seconds: scenario.measure.duration().as_secs_f64(),
            warmup: scenario.measure.warmup.as_secs_f64(),
            windows: timing
                .windows
                .iter()
                .map(|(name, length)| (name.clone(), length.as_secs_f64()))
                .collect(),
        };
        let variant = scenario.all_variants().find(|variant| variant.name == done.point);
        check_in_run(&done.record, &run, variant.map(|variant| (scenario, variant))).map_err(|wrong| {
            JournalError::Damaged {
                path: directory.join(REPEATS_FILE),
                line: index + 1,
                source: <serde_json::Error as serde::de::Error>::custom(wrong),
            }
        })?;
    }
    Ok(())
}

#[must_use]
pub fn is_finished(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| matches!(entry, Entry::End { .. }))
}

/// Reads the events of a log; a missing log has no events. Returns the events and the length of the log's
/// valid part in bytes.
fn read_entries(path: &Path) -> Result<(Vec<Entry>, u64), JournalError> {
    let file = match open_regular(path, Kind::Repeats) {
        Ok(file) => file,
        Err(error) if error.is_missing() => return Ok((Vec::new(), 0)),
        Err(error) => return Err(error.into()),
    };
    parse_entries(BufReader::new(file)).map_err(|fault| match fault {
        EntryFault::Read(source) => JournalError::Io { action: "read", path: path.to_owned(), source },
        EntryFault::Damaged { line, source } => JournalError::Damaged { path: path.to_owned(), line, source },
    })
}

#[derive(Debug)]
pub enum EntryFault {
    Read(io::Error),
    Damaged { line: usize, source: serde_json::Error },
}

/// Parses the events. Returns them with the length of the valid part in bytes, because a crash may have
/// damaged the last line.
///
/// # Errors
/// Returns an error if the log cannot be read, a line before the last line is invalid, or a figure is
/// impossible.
pub fn parse_entries(mut text: impl BufRead) -> Result<(Vec<Entry>, u64), EntryFault> {
    let (mut entries, mut good, mut line) = (Vec::new(), 0, Vec::new());
    for number in 1.. {
        line.clear();
        let read = text.read_until(b'\n', &mut line).map_err(EntryFault::Read)?;
        let entry: Result<Entry, serde_json::Error> = read_json(&line);
        let possible = match &entry {
            Ok(Entry::Repeat(done)) => check_repeat(&done.record),
            Ok(Entry::Rate { rate_bps, .. }) => check_rate(*rate_bps, "rate_bps"),
            _ => Ok(()),
        };
        possible.map_err(|wrong| EntryFault::Damaged {
            line: number,
            source: <serde_json::Error as serde::de::Error>::custom(wrong),
        })?;
        match entry {
            _ if read == 0 => break,
            Ok(entry) if line.ends_with(b"\n") => entries.push(entry),
            // A truncated line can be valid JSON by chance. The missing newline shows the damage.
            Ok(_) => break,
            Err(_) if text.fill_buf().map_err(EntryFault::Read)?.is_empty() => break,
            Err(source) => {
                return Err(EntryFault::Damaged {
                    line: number,
                    source: name_field((source.line(), source.column()), source, &line),
                });
            }
        }
        good += read as u64;
    }
    Ok((entries, good))
}

fn write_whole(path: &Path, text: &[u8]) -> Result<(), JournalError> {
    Ok(replace(path, text, 0o666)?)
}
