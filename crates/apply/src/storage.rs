//! The storage of a journal: a file, or memory in tests.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use evenkeel_model::text::path_text;
use nix::fcntl::Flock;

use crate::error::JournalError;
use crate::journal::Entry;

/// The damage that made a run write its journal again, with the path of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewritten {
    Removed(PathBuf),
    /// Another program truncated or overwrote the journal.
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
    /// Adds an entry. After this function returns, the entry survives a crash of the machine.
    fn append(&mut self, entry: &Entry) -> Result<(), JournalError>;

    /// Adds several entries. In a file, either all of them survive a crash, or none.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Self::append`].
    fn append_all(&mut self, entries: &[Entry]) -> Result<(), JournalError> {
        entries.iter().try_for_each(|entry| self.append(entry))
    }

    /// Locks the settings of the whole namespace or host until the returned lock is dropped. The holder of
    /// the lock reads, journals and sets such a setting. Without the lock, two runs could both find the old
    /// value and journal it. Returns `None` if the storage has no lock.
    ///
    /// # Errors
    /// Returns an error if another process keeps the lock.
    fn claim(&self) -> Result<Option<Flock<OwnedFd>>, JournalError> {
        Ok(None)
    }

    /// Adds an entry for a setting of the whole namespace or host. The caller holds [`Self::claim`].
    ///
    /// # Errors
    /// Returns [`JournalError::Owned`] if another run has journalled the setting, and the errors of
    /// [`Self::append`].
    fn append_shared(&mut self, entry: &Entry) -> Result<(), JournalError> {
        self.append(entry)
    }

    /// Writes the journal again, with these entries, if another program removed or changed the journal,
    /// or removed its directory. Returns the damage, or `None` if nothing was written, for example because
    /// the journal is intact or another file has its name.
    fn write_again(&mut self, _entries: &[Entry]) -> Result<Option<Rewritten>, JournalError> {
        Ok(None)
    }

    /// Returns the journal's path if another program's file, directory or link has this path.
    fn taken_place(&self) -> Option<PathBuf> {
        None
    }

    /// Marks the journal as finished: nothing is left to restore.
    fn shut(&mut self) -> Result<(), JournalError> {
        Ok(())
    }

    /// Removes a finished journal.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be removed, or if another program's file has the
    /// journal's name.
    fn remove(self) -> Result<(), JournalError>
    where
        Self: Sized;
}
