//! Finds the journals that could not be read completely.

use std::path::PathBuf;

use evenkeel_host::Sysfs;

use crate::damaged::{Damaged, name_of};
use crate::error::{ApplyError, KnobError};
use crate::held::is_held;
use crate::identity::{InterfaceIdentity, device_inode};
use crate::journal::Header;
use crate::state::{DAMAGED, EXTENSION, StateDirectory};

/// A damaged journal that was set aside, and its interface's state.
#[derive(Debug)]
pub enum Remains {
    /// Its interface is in this namespace.
    Present(Damaged),
    /// From an earlier boot: its settings are gone.
    Void(PathBuf),
    /// Its interface is gone, or in another namespace.
    Absent(Damaged),
}

/// The damaged journals that were set aside.
///
/// # Errors
/// When the directory or a file cannot be read.
pub fn remains(state: &StateDirectory) -> Result<Vec<Remains>, ApplyError> {
    let mut found = Vec::new();
    for path in state.damaged()? {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let Some(contents) = StateDirectory::read_as(&path, &journal_name(&name))? else { continue };
        let damaged = Damaged::of(path, &contents);
        found.push(match is_present(&damaged, contents.header.as_ref())? {
            None => Remains::Void(damaged.path),
            Some(true) => Remains::Present(damaged),
            Some(false) => Remains::Absent(damaged),
        });
    }
    Ok(found)
}

/// The journals under their own names of which no line can be read, and whose interface is in this namespace. No run holds
/// them.
///
/// # Errors
/// As [`remains`].
pub fn unreadable(state: &StateDirectory) -> Result<Vec<Damaged>, ApplyError> {
    let mut found = Vec::new();
    for path in state.journals()? {
        // Ignore the error, for example of a directory: `evenkeel revert` reports it.
        let Ok(Some(contents)) = StateDirectory::read(&path) else { continue };
        if contents.header.is_some() || contents.shut || is_held(&path)? {
            continue;
        }
        let damaged = Damaged::of(path, &contents);
        found.extend(damaged.interface.is_some().then_some(damaged));
    }
    Ok(found)
}

/// Whether the interface is in this namespace; none after a reboot.
fn is_present(damaged: &Damaged, header: Option<&Header>) -> Result<Option<bool>, ApplyError> {
    // Without a header, its name was found by the number in the file's name.
    let Some(Header { interface, .. }) = header else { return Ok(Some(damaged.interface.is_some())) };
    let here = InterfaceIdentity::here(interface.index, &interface.name).map_err(KnobError::from)?;
    if !interface.same_boot(&here) {
        return Ok(None);
    }
    let sysfs = Sysfs::of_namespace().map_err(KnobError::from)?;
    let found = interface.same_namespace(&here).then(|| name_of(interface.index, &sysfs)).flatten();
    let is_same =
        |name: String| interface.device.is_none() || device_inode(&sysfs, &name) == interface.device;
    Ok(Some(found.is_some_and(is_same)))
}

/// The name of the journal that was renamed to this: without `.damaged` or `.2.damaged`.
fn journal_name(damaged: &str) -> String {
    let ending = format!(".{EXTENSION}");
    let stem = damaged.strip_suffix(DAMAGED).unwrap_or(damaged);
    stem.rfind(&ending).map_or(stem, |at| &stem[..at + ending.len()]).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_journal_that_was_set_aside_is_known() {
        for name in ["1-7.journal", "1-7.kept.journal"] {
            for suffix in ["", ".2", ".12"] {
                assert_eq!(journal_name(&format!("{name}{suffix}.damaged")), name);
            }
        }
    }
}
