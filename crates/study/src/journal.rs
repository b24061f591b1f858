//! The directory of a running study: each repeat is stored as soon as it is done.
//!
//! ```text
//! DIRECTORY/
//!   study.json       the settings, which a resumption must share
//!   repeats.jsonl    an append-only log, one line per event
//!   traces/          bytes sent on the line and its backlog, as CSV
//!   study-result.json, study.md, *.svg   the result, after the last repeat
//! ```
//!
//! A line is written and synced before the next repeat begins. A kill can damage only the last line: it is cut off, and its
//! repeat runs again.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use evenkeel_files::{ClaimedDirectory, InputError, Kind, OutputError, open_regular, read_regular, replace};
use evenkeel_model::record::RepeatRecord;
use evenkeel_report::store::check_repeat;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

/// Version of the format.
pub const SCHEMA: u32 = 1;

const SETTINGS_FILE: &str = "study.json";
const REPEATS_FILE: &str = "repeats.jsonl";
const TRACES: &str = "traces";

/// The subject of a study. Runs with the same settings belong to one study.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// [`SCHEMA`] of the writer.
    pub schema: u32,
    /// Version of Evenkeel.
    pub evenkeel: String,
    /// `sim` or `netns`.
    pub world: String,
    /// Kernel release, or kernel profile of the simulator.
    pub kernel: String,
    /// A quick study.
    pub quick: bool,
    /// Seed of the first repeats and of the order.
    pub seed: u64,
    /// The requested line rate, bit/s.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rate_bps: Option<u64>,
    /// Repeats of every point; none: the scenarios' numbers.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub repeats: Option<u32>,
    /// The selected setups; empty: all.
    pub setups: Vec<String>,
    /// A user's file of setups.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub setups_text: Option<String>,
    /// Text of each scenario, by name.
    pub scenarios: BTreeMap<String, String>,
    pub host: BTreeMap<String, String>,
    /// RFC 3339 in UTC. The only setting that a resumption need not share.
    pub started: String,
}

impl Settings {
    /// The first difference that makes this another study; none if there is none.
    #[must_use]
    pub fn difference(&self, found: &Self) -> Option<String> {
        let differs = |what: &str, found: &dyn std::fmt::Debug, own: &dyn std::fmt::Debug| {
            Some(format!("its {what} is {found:?}, and this run's {own:?}"))
        };
        if self.schema != found.schema {
            return differs("format", &found.schema, &self.schema);
        }
        if self.evenkeel != found.evenkeel {
            return differs("version of evenkeel", &found.evenkeel, &self.evenkeel);
        }
        if self.world != found.world {
            return differs("world", &found.world, &self.world);
        }
        if self.kernel != found.kernel {
            return differs("kernel", &found.kernel, &self.kernel);
        }
        let effort = |quick| if quick { "quick" } else { "full" };
        if self.quick != found.quick {
            return differs("effort", &effort(found.quick), &effort(self.quick));
        }
        if self.seed != found.seed {
            return differs("seed", &found.seed, &self.seed);
        }
        if self.rate_bps != found.rate_bps {
            return differs("rate", &found.rate_bps, &self.rate_bps);
        }
        if self.repeats != found.repeats {
            return differs("number of repeats", &found.repeats, &self.repeats);
        }
        if self.setups != found.setups {
            return differs("list of setups", &found.setups, &self.setups);
        }
        if self.setups_text != found.setups_text {
            return Some("its file of setups has another text".to_owned());
        }
        let names = |settings: &Self| settings.scenarios.keys().cloned().collect::<Vec<_>>();
        if names(self) != names(found) {
            return differs("list of scenarios", &names(found), &names(self));
        }
        let changed = self.scenarios.iter().find(|(name, text)| found.scenarios.get(*name) != Some(text));
        if let Some((name, _)) = changed {
            return Some(format!("its scenario {name} has another text"));
        }
        let fact = self
            .host
            .keys()
            .chain(found.host.keys())
            .find(|fact| self.host.get(*fact) != found.host.get(*fact));
        fact.map(|fact| {
            format!(
                "its machine differs: {fact} is {:?}, and here {:?}",
                found.host.get(fact),
                self.host.get(fact)
            )
        })
    }
}

/// One line: an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum Entry {
    /// The rate of a scenario's line.
    Rate {
        scenario: String,
        /// bit/s.
        rate_bps: u64,
    },
    /// A point that the world cannot run.
    Refused { scenario: String, point: String, why: String },
    /// A note for readers of a point's figures.
    Note { scenario: String, point: String, note: String },
    /// A finished repeat.
    Repeat(Box<Repeated>),
    Failed {
        scenario: String,
        point: String,
        /// From 0.
        repeat: u32,
        why: String,
    },
    /// The last repeat is done.
    End {
        /// RFC 3339 in UTC.
        ended: String,
        /// Duration of all runs of the study, seconds.
        took_s: f64,
    },
}

/// A finished repeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Repeated {
    pub scenario: String,
    pub point: String,
    /// From 0.
    pub repeat: u32,
    /// Duration with set-up and clean-up, seconds.
    pub took_s: f64,
    /// Other load was above the limit.
    pub disturbed: bool,
    /// What came out.
    pub record: RepeatRecord,
    /// File of the line's trace within the directory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trace: Option<String>,
}

/// Errors of a study's directory.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    #[error(transparent)]
    Input(#[from] InputError),
    /// The directory, or a file in it, cannot be written.
    #[error(transparent)]
    Output(OutputError),
    /// The directory has no study.
    #[error("{} is no study: it has no {SETTINGS_FILE}", .0.display())]
    Missing(PathBuf),
    /// The directory has other files.
    #[error("{} is not empty and no study; name a new directory", .0.display())]
    Occupied(PathBuf),
    /// Another process uses the directory.
    #[error("another process is running the study in {}", .0.display())]
    Busy(PathBuf),
    /// A line before the last cannot be parsed.
    #[error("{}:{line}: {source}; the file was changed, so start anew in another directory", .path.display())]
    Damaged {
        path: PathBuf,
        /// From 1.
        line: usize,
        source: serde_json::Error,
    },
    #[error("{}: {source}; it is no study's, or one of another version of evenkeel", .path.display())]
    Settings { path: PathBuf, source: serde_json::Error },
    /// It holds another study.
    #[error("{} holds another study: {why}; name another directory", .path.display())]
    Other { path: PathBuf, why: String },
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
    /// Locks the directory.
    _claim: ClaimedDirectory,
    settings: Settings,
    file: Flock<File>,
    /// Length of the file, bytes.
    length: u64,
    entries: Vec<Entry>,
    /// A damaged last line was cut off.
    dropped: bool,
}

impl Journal {
    /// Begins a study in a directory, or resumes one with the same settings.
    ///
    /// # Errors
    /// When the directory has other files, another study, or is in use; when the disk fails.
    pub fn open(directory: &Path, settings: &Settings) -> Result<Self, JournalError> {
        // Lock first: of two processes that begin at once, one finds the other's lock or settings.
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
        // The settings are written atomically: a directory without them is no study.
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
        Ok(Self { directory, _claim: claim, settings, file, length: good, entries, dropped })
    }

    /// All events so far.
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

    /// Whether a damaged last line was cut off.
    #[must_use]
    pub fn dropped(&self) -> bool {
        self.dropped
    }

    #[must_use]
    pub fn is_finished(&self) -> bool {
        is_finished(&self.entries)
    }

    /// Writes and syncs a line.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn append(&mut self, entry: Entry) -> Result<(), JournalError> {
        let path = self.directory.join(REPEATS_FILE);
        let mut line = serde_json::to_vec(&entry).map_err(|source| JournalError::Damaged {
            path: path.clone(),
            line: self.entries.len() + 1,
            source,
        })?;
        line.push(b'\n');
        // In a single call: a process that dies leaves a complete or partial line, but never mixed lines.
        let written = (&*self.file).write_all(&line).and_then(|()| self.file.sync_data());
        if let Err(source) = written {
            // Ignore the error: cut off the partial line, which would be damage in the middle later; the first
            // error is reported.
            let _ = self.file.set_len(self.length);
            return Err(JournalError::Io { action: "write", path, source });
        }
        self.length += line.len() as u64;
        self.entries.push(entry);
        Ok(())
    }

    /// Stores a trace; returns its name within the directory.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn keep_trace(&self, name: &str, text: &str) -> Result<String, JournalError> {
        let directory = self.directory.join(TRACES);
        fs::create_dir_all(&directory).map_err(JournalError::io("make", &directory))?;
        let good = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '=') { c } else { '-' };
        let file = format!("{TRACES}/{}.csv", name.chars().map(good).collect::<String>());
        write_whole(&self.directory.join(&file), text.as_bytes())?;
        Ok(file)
    }

    /// Writes a result file atomically.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn keep(&self, name: &str, text: &str) -> Result<(), JournalError> {
        write_whole(&self.directory.join(name), text.as_bytes())
    }
}

/// The settings of the study in a directory.
///
/// # Errors
/// When there is none.
pub fn read_settings(directory: &Path) -> Result<Settings, JournalError> {
    let path = directory.join(SETTINGS_FILE);
    let text = read_regular(&path, Kind::StudySettings).map_err(|error| {
        if error.is_missing() { JournalError::Missing(directory.to_owned()) } else { error.into() }
    })?;
    serde_json::from_str(&text.text).map_err(|source| JournalError::Settings { path, source })
}

/// Reads a study without running it: its settings and events.
///
/// # Errors
/// When there is none, or it is damaged.
pub fn read(directory: &Path) -> Result<(Settings, Vec<Entry>), JournalError> {
    let settings = read_settings(directory)?;
    let (entries, _) = read_entries(&directory.join(REPEATS_FILE))?;
    Ok((settings, entries))
}

#[must_use]
pub fn is_finished(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| matches!(entry, Entry::End { .. }))
}

/// The lines, and the length of the valid part.
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

/// Why a study's log cannot be read.
#[derive(Debug)]
pub enum EntryFault {
    Read(io::Error),
    /// A line before the last is invalid.
    Damaged {
        line: usize,
        /// The parser's error.
        source: serde_json::Error,
    },
}

/// The lines, and the length of the valid part: a crash may have damaged the last line.
///
/// # Errors
/// If the log cannot be read, a line before the last is invalid, or one has an impossible figure.
pub fn parse_entries(mut text: impl BufRead) -> Result<(Vec<Entry>, u64), EntryFault> {
    let (mut entries, mut good, mut line) = (Vec::new(), 0, Vec::new());
    for number in 1.. {
        line.clear();
        let read = text.read_until(b'\n', &mut line).map_err(EntryFault::Read)?;
        let entry = serde_json::from_slice(&line);
        if let Ok(Entry::Repeat(done)) = &entry {
            check_repeat(&done.record).map_err(|wrong| EntryFault::Damaged {
                line: number,
                source: <serde_json::Error as serde::de::Error>::custom(wrong),
            })?;
        }
        match entry {
            _ if read == 0 => break,
            Ok(entry) if line.ends_with(b"\n") => entries.push(entry),
            // Valid JSON by chance, but without its newline.
            Ok(_) => break,
            Err(_) if text.fill_buf().map_err(EntryFault::Read)?.is_empty() => break,
            Err(source) => return Err(EntryFault::Damaged { line: number, source }),
        }
        good += read as u64;
    }
    Ok((entries, good))
}

fn write_whole(path: &Path, text: &[u8]) -> Result<(), JournalError> {
    Ok(replace(path, text, 0o666)?)
}
