//! The journal: what a run changes, and what it was before.
//!
//! A text file of JSON lines: a [`Header`], then an [`Entry`] for each knob before it is changed for the
//! first time, and again when further values become ours. A line without its end is a write that a crash cut
//! short: the change that it announces was not made.

use std::path::Path;

use evenkeel_host::{Host, HostError, NamespaceIdentity, ProcessIdentity};
use evenkeel_model::change::{Knob, Value};
use serde::{Deserialize, Serialize};

use crate::error::JournalError;
use crate::ours::Ours;

/// Version of the format; a file of another one is not understood.
const VERSION: u32 = 1;

/// An interface, told apart from others of the same name or number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterfaceIdentity {
    /// Identity of the boot (random(4)).
    pub boot: String,
    /// Inode of the network namespace.
    pub namespace: u64,
    /// Cookie of the network namespace, unique since boot; none before Linux 5.14.
    pub namespace_cookie: Option<u64>,
    /// Number of the interface.
    pub index: u32,
    /// Name of the interface when the run began.
    pub name: String,
}

impl InterfaceIdentity {
    /// An interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn current(index: u32, name: &str) -> Result<Self, HostError> {
        let namespace = NamespaceIdentity::current()?;
        Ok(Self {
            boot: Host::live().boot_id()?,
            namespace: namespace.inode,
            namespace_cookie: namespace.cookie,
            index,
            name: name.to_owned(),
        })
    }

    /// Whether it is of the same boot as another one.
    #[must_use]
    pub fn same_boot(&self, other: &Self) -> bool {
        self.boot == other.boot
    }

    /// Whether it is of the same network namespace as another one of the same boot.
    #[must_use]
    pub fn same_namespace(&self, other: &Self) -> bool {
        self.namespace == other.namespace && self.namespace_cookie == other.namespace_cookie
    }
}

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

/// The first line of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Version of the format.
    pub evenkeel_journal: u32,
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

/// Where a journal's lines go.
pub trait Storage {
    /// Adds a line; when this returns, it survives a crash of the machine.
    ///
    /// # Errors
    /// When it cannot be written or synced.
    fn append(&mut self, line: &[u8]) -> Result<(), JournalError>;

    /// Removes the journal: there is nothing left to put back.
    ///
    /// # Errors
    /// When it cannot be removed.
    fn remove(self) -> Result<(), JournalError>
    where
        Self: Sized;
}

/// A line of a journal.
pub(crate) fn line(value: &impl Serialize) -> Vec<u8> {
    // None of these types has a key that is no text, which is all that could fail.
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Reads a journal's text: none if it holds not even a whole header, so that nothing was changed.
///
/// Entries come folded, one for each knob in the order of its first change, with the first `from`
/// and all values that became ours.
///
/// # Errors
/// When a whole line is not what this program writes.
pub fn parse(text: &[u8], path: &Path) -> Result<Option<(Header, Vec<Entry>)>, JournalError> {
    let damaged = |line: usize, reason: String| JournalError::Damaged { path: path.to_owned(), line, reason };
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let mut lines = text[..whole].split(|byte| *byte == b'\n').zip(1..).filter(|(line, _)| !line.is_empty());
    let Some((first, _)) = lines.next() else { return Ok(None) };
    let header: Header = serde_json::from_slice(first).map_err(|error| damaged(1, error.to_string()))?;
    if header.evenkeel_journal != VERSION {
        return Err(damaged(1, format!("a journal of version {}", header.evenkeel_journal)));
    }
    let mut entries: Vec<Entry> = Vec::new();
    for (line, number) in lines {
        let entry = serde_json::from_slice(line).map_err(|error| damaged(number, error.to_string()))?;
        fold(&mut entries, entry);
    }
    Ok(Some((header, entries)))
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn header() -> Header {
        let interface = InterfaceIdentity {
            boot: "b".to_owned(),
            namespace: 1,
            namespace_cookie: Some(2),
            index: 3,
            name: "eth0".to_owned(),
        };
        Header::new(interface, "fair")
    }

    fn entry(from: u32, ours: u32) -> Entry {
        let sizes = |all| Value::Sizes { all, ipv4: all };
        let ours = vec![Ours::These(vec![sizes(ours)])];
        Entry { knob: Knob::GsoSizes, from: sizes(from), ours, theirs: false }
    }

    #[test]
    fn what_is_written_is_read_and_folded() {
        let mut text = line(&header());
        text.extend(line(&entry(65536, 16384)));
        text.extend(line(&entry(16384, 32768)));
        let (read, entries) = parse(&text, Path::new("j")).unwrap().unwrap();
        assert_eq!(read, header());
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].from, Value::Sizes { all: 65536, ipv4: 65536 });
        assert!(entries[0].is_ours(&Value::Sizes { all: 32768, ipv4: 32768 }));
        // The value before the second change is ours by the first one, not by having been there.
        assert!(entries[0].is_ours(&Value::Sizes { all: 16384, ipv4: 16384 }));
    }

    #[test]
    fn a_line_cut_short_was_never_acted_on() {
        let mut text = line(&header());
        let whole = text.len();
        text.extend(line(&entry(65536, 16384)));
        for length in 0..text.len() {
            let read = parse(&text[..length], Path::new("j")).unwrap();
            assert_eq!(read.is_some(), length >= whole, "{length}");
            assert!(read.is_none_or(|(_, entries)| entries.is_empty()), "{length}");
        }
    }

    #[test]
    fn damage_is_named_by_line() {
        let mut text = line(&header());
        text.extend(b"{\"knob\": 5}\n");
        let error = parse(&text, Path::new("/x/j")).unwrap_err().to_string();
        assert!(error.starts_with("/x/j:2: "), "{error}");
        let other = String::from_utf8(line(&header()))
            .unwrap()
            .replace("\"evenkeel_journal\":1", "\"evenkeel_journal\":2");
        assert!(parse(other.as_bytes(), Path::new("j")).unwrap_err().to_string().contains("version 2"));
    }
}
