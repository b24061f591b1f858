//! Finds the journals of killed runs that another program renamed. Their file names do not show their
//! interface.

use std::path::PathBuf;

use crate::damaged_journal::name_before_damage;
use crate::error::{ApplyError, JournalError};
use crate::identity::InterfaceIdentity;
use crate::journal_directory::{StateDirectory, journal_name, kept_journal_name};
use crate::journal_file::is_held;
use crate::journal_lines::{Contents, parse, run_of};
use crate::renamed_journal::Renamed;
use crate::revert::{is_finished, is_unfinished};

/// Returns the journals whose file name differs from the recorded name, with their contents. Leaves out
/// journals that Evenkeel set aside.
fn misplaced(state: &StateDirectory) -> Result<Vec<(Renamed, Contents)>, ApplyError> {
    let mut found = Vec::new();
    for (name, bytes) in state.files_like_journals()? {
        let Some(header) = run_of(&bytes) else { continue };
        let written_as = match header.file.as_str() {
            // Journals of format version 1 do not record the file name.
            "" if header.kept => kept_journal_name(&header.interface),
            "" => journal_name(&header.interface),
            file => file.to_owned(),
        };
        let contents = parse(&bytes, &written_as);
        // Evenkeel sets only damaged journals aside. So another program gave an intact journal this name, for
        // example when it restored a copy.
        let is_set_aside = name_before_damage(&name) == written_as && !contents.damage.is_empty();
        if name != written_as && !is_set_aside {
            let (path, before) = (state.path().join(&name), state.path().join(&written_as));
            let has_service = contents.entries.iter().any(|entry| entry.service);
            found.push((Renamed { path, before, header, has_service }, contents));
        }
    }
    Ok(found)
}

/// Returns the renamed journals whose settings a revert would restore. A copy next to the journal does
/// not count.
pub fn renamed(state: &StateDirectory) -> Result<Vec<Renamed>, ApplyError> {
    let mut found = Vec::new();
    for (renamed, contents) in misplaced(state)? {
        let is_copy = renamed.before.symlink_metadata().is_ok();
        if !is_copy && is_unfinished(&contents, &renamed.path)? {
            found.push(renamed);
        }
    }
    Ok(found)
}

/// Returns the journals whose file name differs from the recorded name. A revert does not read these
/// journals: [`renamed`] journals, copies, and journals of finished runs. Leaves out a journal that is
/// damaged or names directories of `--persist`, if nothing is left to restore.
pub fn copies(state: &StateDirectory) -> Result<Vec<PathBuf>, ApplyError> {
    let mut found = Vec::new();
    for (Renamed { path, header, .. }, contents) in misplaced(state)? {
        let is_intact = contents.damage.is_empty() && header.etc.is_empty();
        if is_intact || is_unfinished(&contents, &path)? {
            found.push(path);
        }
    }
    Ok(found)
}

/// Returns the intact journals among the [`copies`] with nothing left to restore.
pub fn finished_copies(state: &StateDirectory) -> Result<Vec<Renamed>, ApplyError> {
    let mut found = Vec::new();
    for (renamed, contents) in misplaced(state)? {
        // A run may hold its journal under either name.
        if is_finished(&contents, &renamed.path)? && !is_held(&renamed.before).unwrap_or(false) {
            found.push(renamed);
        }
    }
    Ok(found)
}

/// Refuses an interface with a renamed journal, because a new run would treat the changed values as the
/// administrator's.
pub fn check_renamed(state: &StateDirectory, interface: &InterfaceIdentity) -> Result<(), ApplyError> {
    let concerns = |found: &Renamed| found.header.interface.same_interface(interface);
    match renamed(state)?.into_iter().find(concerns) {
        Some(found) => Err(JournalError::Renamed(Box::new(found)).into()),
        None => Ok(()),
    }
}
