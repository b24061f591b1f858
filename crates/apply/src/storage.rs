//! The storage of a journal: a file, or memory in tests.

use std::path::PathBuf;

use crate::error::JournalError;
use crate::journal::Entry;

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

    /// Writes the journal again, with these entries, if another program removed it or its directory. Then it returns
    /// the journal's path.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be written.
    fn write_again(&mut self, _entries: &[Entry]) -> Result<Option<PathBuf>, JournalError> {
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
