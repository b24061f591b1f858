//! Compares the kept changes of `evenkeel service` with the kernel's values. Changes nothing.

use std::collections::BTreeSet;
use std::path::PathBuf;

use evenkeel_model::change::{Change, Knob, Value};

use crate::damaged_journal::Damaged;
use crate::error::{ApplyError, KnobError};
use crate::find_renamed::check_renamed;
use crate::identity::InterfaceIdentity;
use crate::journal::{Entry, Header};
use crate::journal_directory::{StateDirectory, is_kept};
use crate::journal_file::is_held;
use crate::journal_lines::Contents;
use crate::kept_entries::{KeptJournal, kept, kept_journals};
use crate::kernel::{Kernel, LiveKernel};

/// A kept change that is not in effect anymore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    pub knob: Knob,
    /// The present value; `None` if the setting does not exist anymore, such as a map of a removed queue.
    pub found: Option<Value>,
    /// Whether the present value is the one from before the change.
    pub is_as_before: bool,
}

/// Returns the kept journals of this boot and network namespace that have changes of `evenkeel service`, each
/// with its interface. Considers only interfaces for whose index `is_wanted` holds.
///
/// # Errors
/// Returns an error if a journal cannot be read.
pub fn service_journals(
    state: &StateDirectory,
    is_wanted: &dyn Fn(u32) -> bool,
) -> Result<Vec<(PathBuf, InterfaceIdentity)>, ApplyError> {
    let mut found = kept_journals(state)?;
    found.retain(|KeptJournal { header, entries, .. }| {
        is_wanted(header.interface.index) && entries.iter().any(|entry| entry.service)
    });
    Ok(found.into_iter().map(|journal| (journal.path, journal.header.interface)).collect())
}

/// Returns the kept changes of an interface that are in effect although no journal has them anymore, each
/// with the value from before the change.
///
/// # Errors
/// Returns an error if a journal cannot be read, or if the kernel refuses a request.
pub fn unrecorded(
    state: &StateDirectory,
    index: u32,
    name: &str,
    made: &[Entry],
) -> Result<Vec<Change>, ApplyError> {
    if made.is_empty() {
        return Ok(Vec::new());
    }
    let recorded = kept(state)?;
    let is_recorded = |knob: &Knob| {
        recorded.iter().any(|(interface, entry)| {
            entry.knob == *knob && (interface.index == index || !knob.is_of_interface())
        })
    };
    let mut kernel = LiveKernel::open(index, name)?;
    let mut is_in_effect = |entry: &&Entry| {
        // A setting that cannot be read is not in effect, for example of a removed interface.
        let found = kernel.read(&entry.knob);
        found.is_ok_and(|found| entry.is_ours(&found) && !entry.knob.same(&found, &entry.from))
    };
    let lost = made.iter().filter(|entry| !is_recorded(&entry.knob)).filter(&mut is_in_effect);
    Ok(lost.map(|entry| Change::new(entry.knob.clone(), entry.from.clone())).collect())
}

/// Watches the changes of `evenkeel service` to one interface and its host.
pub struct KeptWatch {
    state: StateDirectory,
    journal: PathBuf,
    identity: InterfaceIdentity,
    kernel: LiveKernel,
}

impl KeptWatch {
    /// Opens the settings of an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a request.
    pub fn open(state: &StateDirectory, index: u32, name: &str) -> Result<Self, ApplyError> {
        let identity = InterfaceIdentity::current(index, name).map_err(KnobError::from)?;
        let (kernel, journal) = (LiveKernel::of(&identity)?, state.kept_journal_of(&identity));
        Ok(Self { state: state.clone(), journal, identity, kernel })
    }

    /// Returns the path of the journal that contains the changes. If the interface returned with another index,
    /// the next change moves them to the journal with this index.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read.
    pub fn journal(&self) -> Result<PathBuf, ApplyError> {
        if self.journal.symlink_metadata().is_ok() {
            return Ok(self.journal.clone());
        }
        let earlier = self.state.earlier_kept_journals_of(&self.identity)?;
        Ok(earlier.into_iter().next().unwrap_or_else(|| self.journal.clone()))
    }

    /// Refuses a damaged or renamed journal: without it, the changed values would count as the
    /// administrator's.
    ///
    /// # Errors
    /// Returns the damage, the new path, or an error if a journal cannot be read.
    pub fn check(&self) -> Result<(), ApplyError> {
        check_renamed(&self.state, &self.identity)?;
        let journal = self.journal()?;
        match StateDirectory::read(&journal)? {
            Some(contents) if !contents.damage.is_empty() => Err(Damaged::of(journal, &contents).into()),
            _ => Ok(()),
        }
    }

    /// Returns whether a command, such as `evenkeel tune` or `revert`, is changing the kept changes of the
    /// interface now. Until its end, the command may still undo its changes to the journal and the settings.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be read.
    pub fn is_changing(&self) -> Result<bool, ApplyError> {
        let lock = self.state.journal_of(&self.identity);
        // A session holds this journal, too.
        let is_of_kept = |contents: Contents| contents.header.is_some_and(|header| header.kept);
        Ok(is_held(&lock).unwrap_or(false) && StateDirectory::read(&lock)?.is_some_and(is_of_kept))
    }

    /// Returns the changes of the service in the journal, without settings of queues that the service itself
    /// does not set. Returns no changes if the journal belongs to another device.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be read.
    pub fn entries(&self) -> Result<Vec<Entry>, ApplyError> {
        let is_own = |header: &Header| header.interface.device == self.identity.device;
        let contents = StateDirectory::read(&self.journal()?)?
            .filter(|contents| !contents.shut && contents.header.as_ref().is_some_and(is_own));
        let entries = contents.map(|contents| contents.entries).unwrap_or_default();
        Ok(entries.into_iter().filter(|entry| entry.service && !entry.with_channels).collect())
    }

    /// Returns the present value of a setting; `None` if it cannot be read.
    pub fn value(&mut self, knob: &Knob) -> Option<Value> {
        self.kernel.read(knob).ok()
    }

    /// Returns the changes in `entries` that are not in effect, except settings that a session manages.
    ///
    /// # Errors
    /// Returns an error if a journal or a setting cannot be read.
    pub fn lost(&mut self, entries: &[Entry]) -> Result<Vec<Lost>, ApplyError> {
        // A session journals a setting before it changes the setting, and restores the setting before it
        // removes the journal. So read the journals before and after the values: one of the two reads finds
        // the journal of a session that changed a setting in between.
        let mut managed = self.managed()?;
        let mut lost = Vec::new();
        for entry in entries {
            let found = match self.kernel.read(&entry.knob) {
                Ok(found) if entry.is_ours(&found) => continue,
                Ok(found) => Some(found),
                Err(KnobError::Gone { .. }) => None,
                Err(error) => return Err(error.into()),
            };
            let is_as_before = found.as_ref().is_some_and(|found| entry.knob.same(found, &entry.from));
            lost.push(Lost { knob: entry.knob.clone(), found, is_as_before });
        }
        if !lost.is_empty() {
            managed.extend(self.managed()?);
            lost.retain(|lost| !managed.contains(&lost.knob));
        }
        Ok(lost)
    }

    /// Returns the interface's settings in the journals of runs on this interface, and the host's settings in
    /// the journals of runs on any interface. The guardian of a dead run may not have restored them yet.
    fn managed(&self) -> Result<BTreeSet<Knob>, ApplyError> {
        let mut managed = BTreeSet::new();
        for path in self.state.journals()? {
            if path.file_name().is_some_and(|name| is_kept(&name.to_string_lossy())) {
                continue;
            }
            let Some(contents) = StateDirectory::read(&path)?.filter(|contents| !contents.shut) else {
                continue;
            };
            let is_own =
                contents.header.is_some_and(|header| header.interface.same_interface(&self.identity));
            let knobs = contents.entries.into_iter().map(|entry| entry.knob);
            managed.extend(knobs.filter(|knob| is_own || !knob.is_of_interface()));
        }
        Ok(managed)
    }
}
