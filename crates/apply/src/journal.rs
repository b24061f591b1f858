//! The journal: which settings a run changes, and their previous values.
//!
//! A [`Header`] identifies the run and its interface. The run writes an [`Entry`] before it changes a
//! knob for the first time, and again when it adds values. [`crate::journal_lines`] defines the bytes.

use std::path::Path;

use evenkeel_host::{Host, ProcessIdentity};
use evenkeel_model::change::{Knob, Value};
use serde::{Deserialize, Serialize};

use crate::identity::InterfaceIdentity;
use crate::ours::Ours;

pub(crate) const VERSION: u32 = 2;
pub(crate) const EXTENSION: &str = "journal";
/// The part before the extension in the name of a kept journal, whose settings stay when the process
/// ends.
pub(crate) const KEPT: &str = ".kept";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    pub id: u32,
    /// Start time of the process, clock ticks since boot. With the id, it identifies the process.
    pub start_ticks: u64,
}

impl From<ProcessIdentity> for Process {
    fn from(process: ProcessIdentity) -> Self {
        Self { id: process.id, start_ticks: process.start_ticks }
    }
}

/// The identity of a run. Every line of a journal contains the header, so that each intact line of a damaged
/// journal can be rolled back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    pub evenkeel_journal: u32,
    /// Name of the journal file, which shows whether a journal was copied or renamed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file: String,
    pub interface: InterfaceIdentity,
    pub process: Process,
    pub started: String,
    pub command: String,
    /// The interface that the command named, if it is another one, such as a bridge above this interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named: Option<String>,
    /// Whether the settings stay when the process ends, until `evenkeel revert`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
    /// Directories used instead of `/etc`, which hold files of `--persist` for these settings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub etc: Vec<String>,
    /// Present and earlier names of the interface in the names of files of `--persist`. Empty if no file was
    /// written, or if version 0.1.0 wrote the files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
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
            named: None,
            kept: false,
            etc: Vec::new(),
            names: Vec::new(),
        }
    }

    #[must_use]
    pub fn of_command_on(mut self, named: &str) -> Self {
        self.named = (named != self.interface.name).then(|| named.to_owned());
        self
    }

    /// Returns whether the run is on this interface, or its command named the interface.
    #[must_use]
    pub fn is_about(&self, interface: &str) -> bool {
        self.interface.name == interface || self.named.as_deref() == Some(interface)
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
    /// The value that rollback restores.
    pub from: Value,
    /// The values that the run may set.
    pub ours: Vec<Ours>,
    /// Whether another program has set the knob during the run. If so, rollback does not change the
    /// knob, regardless of its value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub theirs: bool,
    /// Whether the knob is a queue's setting that the run itself does not set. A change of the number
    /// of channels may reset the setting.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_channels: bool,
    /// Whether `evenkeel service` made the change, and undoes it. The changes of `evenkeel tune` stay.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub service: bool,
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

    /// Returns whether the journal lists this value, as one that the run may set or as the previous one.
    /// Only then can a rollback undo the change.
    #[must_use]
    pub fn allows(&self, value: &Value) -> bool {
        self.is_ours(value) || self.knob.same(value, &self.from)
    }
}

/// Merges an entry into a list that has one entry per knob.
pub(crate) fn fold(entries: &mut Vec<Entry>, entry: Entry) {
    match entries.iter_mut().find(|known| known.knob == entry.knob) {
        // Each change of the channels replaces the previously listed values.
        Some(known) if known.with_channels => *known = Entry { theirs: known.theirs | entry.theirs, ..entry },
        Some(known) => {
            for ours in entry.ours {
                if !known.ours.contains(&ours) {
                    known.ours.push(ours);
                }
            }
            known.theirs |= entry.theirs;
            // The last change decides whether the end of the service undoes the setting.
            known.service = entry.service;
        }
        None => entries.push(entry),
    }
}

/// Returns whether a path is a kept journal, even if a revert has renamed the journal as damaged.
pub(crate) fn was_kept(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains(&format!("{KEPT}.{EXTENSION}")))
}
