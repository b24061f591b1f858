//! Where a journal is written: to a file, or to memory in tests.

use std::path::PathBuf;

use crate::error::JournalError;
use crate::journal::Entry;

pub trait Storage {
    /// Adds an entry. When this returns, the entry survives a crash of the machine.
    ///
    /// # Errors
    /// When it cannot be written or synced.
    fn append(&mut self, entry: &Entry) -> Result<(), JournalError>;

    /// Adds several entries, which survive a crash together or not at all.
    ///
    /// # Errors
    /// As [`Self::append`].
    fn append_all(&mut self, entries: &[Entry]) -> Result<(), JournalError> {
        entries.iter().try_for_each(|entry| self.append(entry))
    }

    /// Adds an entry for a setting of the whole namespace or host.
    ///
    /// # Errors
    /// [`JournalError::Owned`] when another run has journalled it.
    fn append_shared(&mut self, entry: &Entry) -> Result<(), JournalError> {
        self.append(entry)
    }

    /// Writes the journal again, with these entries, if another program removed it or its directory; returns its
    /// path then.
    ///
    /// # Errors
    /// When it cannot be written.
    fn write_again(&mut self, _entries: &[Entry]) -> Result<Option<PathBuf>, JournalError> {
        Ok(None)
    }

    /// Marks the journal as finished: nothing is left to restore.
    ///
    /// # Errors
    /// When it cannot be written.
    fn shut(&mut self) -> Result<(), JournalError> {
        Ok(())
    }

    /// Removes a finished journal.
    ///
    /// # Errors
    /// When it cannot be removed.
    fn remove(self) -> Result<(), JournalError>
    where
        Self: Sized;
}
