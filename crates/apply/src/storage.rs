//! The storage of a journal: a file, or memory in tests.

use std::fmt;
use std::path::PathBuf;

use evenkeel_model::text::path_text;

use crate::error::JournalError;
use crate::journal::Entry;

/// The damage to a journal that was written again, and the path of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewritten {
    Removed(PathBuf),
    /// Truncated or overwritten.
    Changed(PathBuf),
}

impl fmt::Display for Rewritten {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (did, path) = match self {
            Self::Removed(path) => ("removed", path),
            Self::Changed(path) => ("changed", path),
        };
        write!(formatter, "another program {did} the journal {}; evenkeel wrote it again", path_text(path))
    }
}

pub trait Storage {
    /// Adds an entry. After the return, the entry survives a crash of the machine.
    ///
    /// # Errors
    /// Returns an error if the entry cannot be written or synced.
    fn append(&mut self, entry: &Entry) -> Result<(), JournalError>;

    /// Adds several entries. Either all or none of them survive a crash.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Self::append`].
    fn append_all(&mut self, entries: &[Entry]) -> Result<(), JournalError> {
        entries.iter().try_for_each(|entry| self.append(entry))
    }

    /// Adds an entry for a setting of the whole namespace or host.
    ///
    /// # Errors
    /// Returns [`JournalError::Owned`] if another run has journalled it.
    fn append_shared(&mut self, entry: &Entry) -> Result<(), JournalError> {
        self.append(entry)
    }

    /// Writes the journal again, with these entries, if another program removed or changed it, or removed its directory.
    /// Then it returns the damage.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be written.
    fn write_again(&mut self, _entries: &[Entry]) -> Result<Option<Rewritten>, JournalError> {
        Ok(None)
    }

    /// Returns the journal's path if another program's file, directory or link has it.
    fn taken_place(&self) -> Option<PathBuf> {
        None
    }

    /// Marks the journal as finished: nothing is left to restore.
    ///
    /// # Errors
    /// Returns an error if the mark cannot be written.
    fn shut(&mut self) -> Result<(), JournalError> {
        Ok(())
    }

    /// Removes a finished journal.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be removed, or if another program's file has its name.
    fn remove(self) -> Result<(), JournalError>
    where
        Self: Sized;
}
