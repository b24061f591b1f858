//! Finds the journals of dead runs that another program renamed: their names no longer show their interface.

use crate::error::{ApplyError, JournalError};
use crate::find_damaged::name_before_damage;
use crate::identity::InterfaceIdentity;
use crate::journal::Header;
use crate::journal_directory::{StateDirectory, journal_name, kept_journal_name};
use crate::journal_lines::{parse, run_of};
use crate::renamed_journal::Renamed;
use crate::revert::is_unfinished;

/// Returns the renamed journals whose settings a revert would restore. A copy beside the journal is none.
///
/// # Errors
/// Returns an error if the directory cannot be read.
pub fn renamed(state: &StateDirectory) -> Result<Vec<Renamed>, ApplyError> {
    let mut found = Vec::new();
    for (name, bytes) in state.files_like_journals()? {
        let Some(header) = run_of(&bytes) else { continue };
        let written_as = match header.file.as_str() {
            // A journal of version 1 does not have its name.
            "" if header.kept => kept_journal_name(&header.interface),
            "" => journal_name(&header.interface),
            file => file.to_owned(),
        };
        let (path, before) = (state.path().join(&name), state.path().join(&written_as));
        let is_in_place = name_before_damage(&name) == written_as;
        let is_copy = before.symlink_metadata().is_ok();
        if !is_in_place && !is_copy && is_unfinished(&parse(&bytes, &written_as), &path)? {
            found.push(Renamed { path, before, header });
        }
    }
    Ok(found)
}

/// Refuses an interface with a renamed journal, because a run would mistake a dead run's values for the administrator's.
/// The journal of kept changes does not prevent a run that restores its changes: it restores the kept values.
///
/// # Errors
/// Returns [`JournalError::Renamed`], or an error if the directory cannot be read.
pub fn check_renamed(
    state: &StateDirectory,
    interface: &InterfaceIdentity,
    keeps: bool,
) -> Result<(), ApplyError> {
    let concerns = |found: &Renamed| {
        let Header { interface: known, kept, .. } = &found.header;
        known.index == interface.index && (keeps || !kept)
    };
    match renamed(state)?.into_iter().find(concerns) {
        Some(found) => Err(JournalError::Renamed(Box::new(found)).into()),
        None => Ok(()),
    }
}
