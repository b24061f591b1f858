//! Finds the journals of an interface. An interface that left its network namespace and returned may have
//! another index, so that its earlier journals have other names.

use std::cmp::Reverse;
use std::iter::once;
use std::path::PathBuf;

use crate::error::JournalError;
use crate::identity::InterfaceIdentity;
use crate::journal_directory::{StateDirectory, journal_name, kept_journal_name};

impl StateDirectory {
    /// Returns the path of the interface's run journal, which may not exist. Then returns the run journals of
    /// the same device with other indices, newest first: a newer run found the values that the older run had
    /// set.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read.
    pub fn run_journals_of(&self, interface: &InterfaceIdentity) -> Result<Vec<PathBuf>, JournalError> {
        let earlier = self.earlier(interface, journal_name)?;
        Ok(once(self.journal_of(interface)).chain(earlier).collect())
    }

    /// Returns the kept journals of the interface's device with other indices, newest first.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read.
    pub(crate) fn earlier_kept_journals_of(
        &self,
        interface: &InterfaceIdentity,
    ) -> Result<Vec<PathBuf>, JournalError> {
        self.earlier(interface, kept_journal_name)
    }

    fn earlier(
        &self,
        interface: &InterfaceIdentity,
        name_of: fn(&InterfaceIdentity) -> String,
    ) -> Result<Vec<PathBuf>, JournalError> {
        let mut found = Vec::new();
        for path in self.journals()? {
            // Ignore the error: other functions report an unreadable journal.
            let contents = Self::read(&path).ok().flatten();
            let Some(header) = contents.and_then(|contents| contents.header) else { continue };
            // A copy of a journal has another name.
            let is_named = path == self.path().join(name_of(&header.interface));
            let is_earlier = header.interface.index != interface.index;
            if is_named && is_earlier && header.interface.same_interface(interface) {
                found.push((Reverse(header.process.start_ticks), path));
            }
        }
        found.sort();
        Ok(found.into_iter().map(|(_, path)| path).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::journal::Header;

    #[test]
    fn only_the_journals_of_the_device_are_found_under_other_indices() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(directory.path());
        let identity = |index, device| InterfaceIdentity {
            device: Some(device),
            ..InterfaceIdentity::here(index, "evk").unwrap()
        };
        let journal = |index, device, start_ticks| {
            let mut header = Header::new(identity(index, device), "fair");
            header.process.start_ticks = start_ticks;
            state.take(&header, |_| Ok(())).unwrap().0.path()
        };
        let (older, newer) = (journal(7, 5, 1), journal(3, 5, 2));
        let another = journal(8, 6, 3);
        // A copy has the header of the journal.
        std::fs::copy(&older, state.journal_of(&identity(9, 5))).unwrap();
        let own = state.journal_of(&identity(2, 5));
        assert_eq!(state.run_journals_of(&identity(2, 5)).unwrap(), [own, newer, older]);
        assert_eq!(state.run_journals_of(&identity(8, 6)).unwrap(), [another]);
        assert!(state.earlier_kept_journals_of(&identity(2, 5)).unwrap().is_empty());
    }
}
