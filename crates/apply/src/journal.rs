//! The journal: which settings a run changes, and their previous values.
//!
//! A [`Header`] identifies the run and its interface. An [`Entry`] is written before a knob is changed for the
//! first time, and again when the run adds values. [`crate::journal_lines`] defines the bytes.

use std::path::Path;

use evenkeel_host::{Host, ProcessIdentity};
use evenkeel_model::change::{Knob, Value};
use serde::{Deserialize, Serialize};

use crate::identity::InterfaceIdentity;
use crate::ours::Ours;

pub(crate) const VERSION: u32 = 2;
/// Extension of a journal's file name.
pub(crate) const EXTENSION: &str = "journal";
/// The part before the extension if the settings stay when the process ends.
pub(crate) const KEPT: &str = ".kept";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    pub id: u32,
    /// Clock ticks since boot; with the id it identifies the process.
    pub start_ticks: u64,
}

impl From<ProcessIdentity> for Process {
    fn from(process: ProcessIdentity) -> Self {
        Self { id: process.id, start_ticks: process.start_ticks }
    }
}

/// The identity of a run. Every line contains it, so that each intact line of a damaged journal can be rolled back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    pub evenkeel_journal: u32,
    /// Name of the journal file, which shows whether a journal was copied or renamed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file: String,
    pub interface: InterfaceIdentity,
    /// The process that made the changes.
    pub process: Process,
    pub started: String,
    /// The Evenkeel command, such as `fair`.
    pub command: String,
    /// Whether the settings stay when the process ends, until `evenkeel revert`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
    /// Directories in place of `/etc` with files of `--persist` for these settings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub etc: Vec<String>,
}

impl Header {
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
            etc: Vec::new(),
        }
    }

    #[must_use]
    pub fn kept(interface: InterfaceIdentity, command: &str) -> Self {
        Self { kept: true, ..Self::new(interface, command) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub knob: Knob,
    /// The value when the run first touched the knob.
    pub from: Value,
    /// The values that the run may set.
    pub ours: Vec<Ours>,
    /// Whether another program has set the knob during the run. Then roll-back does not change it, regardless of its
    /// value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub theirs: bool,
    /// Whether the knob is a queue's setting that the run does not set, but that a change of the number of channels may
    /// reset.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_channels: bool,
}

impl Entry {
    pub(crate) fn is_channels(&self) -> bool {
        matches!(self.knob, Knob::Channels(_))
    }

    /// Returns whether the run may have set this value.
    #[must_use]
    pub fn is_ours(&self, value: &Value) -> bool {
        self.ours.iter().any(|ours| ours.includes(&self.knob, value))
    }

    /// Returns whether the run may set this value: only then can the change be undone.
    #[must_use]
    pub fn allows(&self, value: &Value) -> bool {
        self.is_ours(value) || self.knob.same(value, &self.from)
    }
}

/// Merges an entry into a list with one entry per knob.
pub(crate) fn fold(entries: &mut Vec<Entry>, entry: Entry) {
    match entries.iter_mut().find(|known| known.knob == entry.knob) {
        // Each change of the channels replaces the previous values.
        Some(known) if known.with_channels => *known = Entry { theirs: known.theirs | entry.theirs, ..entry },
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

/// Returns whether a path is a kept journal, also after a revert has renamed it as damaged.
pub(crate) fn was_kept(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains(&format!("{KEPT}.{EXTENSION}")))
}
