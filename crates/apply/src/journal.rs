//! The journal: what a run changes, and what it was before.
//!
//! A [`Header`] says which run of which interface it is, and an [`Entry`] stands for each knob before it is changed for the
//! first time, and again when further values become ours. [`crate::journal_lines`] has the bytes.

use evenkeel_host::{Host, ProcessIdentity};
use evenkeel_model::change::{Knob, Value};
use serde::{Deserialize, Serialize};

use crate::error::JournalError;
use crate::identity::InterfaceIdentity;
use crate::ours::Ours;

/// Version of the format.
pub(crate) const VERSION: u32 = 2;

/// Who runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its number.
    pub id: u32,
    /// When it started, clock ticks since boot.
    pub start_ticks: u64,
}

impl From<ProcessIdentity> for Process {
    fn from(process: ProcessIdentity) -> Self {
        Self { id: process.id, start_ticks: process.start_ticks }
    }
}

/// Which run a journal is of. Every line has it, so that each good line of a damaged journal can be put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Version of the format.
    pub evenkeel_journal: u32,
    /// Name of the file: a journal that was copied or renamed is not taken for another interface's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// The interface.
    pub interface: InterfaceIdentity,
    /// The process that runs.
    pub process: Process,
    /// When it began, in UTC (RFC 3339).
    pub started: String,
    /// What it runs, such as `fair`.
    pub command: String,
    /// Whether what it sets is to stay when it has ended, until it is reverted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
}

impl Header {
    /// The header of this process's run.
    #[must_use]
    pub fn new(interface: InterfaceIdentity, command: &str) -> Self {
        let id = std::process::id();
        let own = Host::live().process(id).unwrap_or(ProcessIdentity { id, start_ticks: 0 });
        Self {
            evenkeel_journal: VERSION,
            file: String::new(),
            interface,
            process: own.into(),
            started: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
            command: command.to_owned(),
            kept: false,
        }
    }

    /// The header of changes that are to stay.
    #[must_use]
    pub fn kept(interface: InterfaceIdentity, command: &str) -> Self {
        Self { kept: true, ..Self::new(interface, command) }
    }
}

/// A knob that the run may change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Which knob.
    pub knob: Knob,
    /// What it was when the run first touched it.
    pub from: Value,
    /// What the run may give it.
    pub ours: Vec<Ours>,
    /// Somebody else has set it during the run: it is theirs, whatever its value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub theirs: bool,
}

impl Entry {
    /// Whether a value is one that the run may have given the knob.
    #[must_use]
    pub fn is_ours(&self, value: &Value) -> bool {
        self.ours.iter().any(|ours| ours.includes(&self.knob, value))
    }

    /// Whether the run may give the knob this value: only then can the journal put it back.
    #[must_use]
    pub fn allows(&self, value: &Value) -> bool {
        self.is_ours(value) || self.knob.same(value, &self.from)
    }
}

/// Where a journal's entries go.
pub trait Storage {
    /// Adds an entry; when this returns, it survives a crash of the machine.
    ///
    /// # Errors
    /// When it cannot be written or synced.
    fn append(&mut self, entry: &Entry) -> Result<(), JournalError>;

    /// The same for a setting of the whole namespace or host, which another run may have journalled.
    ///
    /// # Errors
    /// [`JournalError::Owned`] when one has.
    fn append_shared(&mut self, entry: &Entry) -> Result<(), JournalError> {
        self.append(entry)
    }

    /// Marks the journal as done with: there is nothing left to put back.
    ///
    /// # Errors
    /// When it cannot be written.
    fn shut(&mut self) -> Result<(), JournalError> {
        Ok(())
    }

    /// Removes the journal: there is nothing left to put back.
    ///
    /// # Errors
    /// When it cannot be removed.
    fn remove(self) -> Result<(), JournalError>
    where
        Self: Sized;
}

/// Takes an entry into a list with one entry for each knob.
pub(crate) fn fold(entries: &mut Vec<Entry>, entry: Entry) {
    match entries.iter_mut().find(|known| known.knob == entry.knob) {
        Some(known) => {
            for ours in entry.ours {
                if !known.ours.contains(&ours) {
                    known.ours.push(ours);
                }
            }
            known.theirs |= entry.theirs;
        }
        None => entries.push(entry),
    }
}
