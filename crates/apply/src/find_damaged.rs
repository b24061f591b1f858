//! Finds the journals that could not be read completely.

use std::path::PathBuf;

use evenkeel_host::Sysfs;

use crate::damaged_journal::{Damaged, index_of, name_before_damage, name_of};
use crate::error::{ApplyError, JournalError, KnobError};
use crate::find_renamed::copies;
use crate::identity::InterfaceIdentity;
use crate::journal::Header;
use crate::journal_directory::StateDirectory;
use crate::journal_file::is_held;
use crate::namespace::{Whereabouts, find_device, interface_of};
use crate::sole_run::is_managed;

/// A damaged journal that was set aside, and its interface's state.
#[derive(Debug)]
pub enum Remains {
    Present(Damaged),
    /// The journal is from an earlier boot: its settings no longer exist.
    Void(PathBuf),
    /// The interface is not in this namespace. [`absence`] searches the other namespaces.
    Absent(Damaged, Option<Box<Header>>),
    /// The journal cannot be read, for example because a directory or a link has its name, and the interface
    /// is not in this namespace.
    Unreadable(JournalError),
}

/// The place of an interface that is not in this namespace.
#[derive(Debug)]
pub enum Absence {
    Deleted,
    Moved {
        name: String,
        /// A path that enters the namespace.
        namespace: PathBuf,
    },
    Unknown,
}

/// Searches all network namespaces for the interface of a journal.
#[must_use]
pub fn absence(header: Option<&Header>) -> Absence {
    let Some((interface, device)) =
        header.and_then(|Header { interface, .. }| Some((interface, interface.device?)))
    else {
        return Absence::Unknown;
    };
    let Ok(here) = InterfaceIdentity::here(interface.index, &interface.name) else { return Absence::Unknown };
    match find_device(device, interface.same_namespace(&here)) {
        Whereabouts::Deleted => Absence::Deleted,
        Whereabouts::Moved { namespace, name, .. } => Absence::Moved { name, namespace: namespace.path },
        Whereabouts::Unknown(_) => Absence::Unknown,
    }
}

/// Returns the damaged journals that were set aside.
pub fn remains(state: &StateDirectory) -> Result<Vec<Remains>, ApplyError> {
    let mut found = Vec::new();
    let copies = copies(state)?;
    for path in state.damaged()?.into_iter().filter(|path| !copies.contains(path)) {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let contents = match StateDirectory::read_as(&path, &name_before_damage(&name)) {
            Err(JournalError::Damaged(damaged)) => {
                found.push(Remains::Present(*damaged));
                continue;
            }
            Err(error) => {
                found.push(Remains::Unreadable(error));
                continue;
            }
            Ok(None) => continue,
            Ok(Some(contents)) => contents,
        };
        let mut damaged = Damaged::of(path, &contents);
        found.push(match find_here(&mut damaged, contents.header.as_ref())? {
            None => Remains::Void(damaged.path),
            Some(true) => Remains::Present(damaged),
            Some(false) => Remains::Absent(damaged, contents.header.map(Box::new)),
        });
    }
    Ok(found)
}

/// Returns the damaged and the unreadable journals of killed runs that were not set aside, for interfaces in
/// this namespace.
fn unreadable(state: &StateDirectory) -> Result<Vec<Damaged>, ApplyError> {
    let mut found = Vec::new();
    let copies = copies(state)?;
    for path in state.journals()?.into_iter().filter(|path| !copies.contains(path)) {
        match StateDirectory::read(&path) {
            Ok(Some(contents)) if !contents.damage.is_empty() && !is_held(&path).unwrap_or(false) => {
                let mut damaged = Damaged::of(path, &contents);
                let is_present = find_here(&mut damaged, contents.header.as_ref())?;
                found.extend((is_present == Some(true)).then_some(damaged));
            }
            // A live run has its journal open, even if its path is that of another file now.
            Err(JournalError::Damaged(damaged)) if !index_of(&path).map_or(Ok(false), is_managed)? => {
                found.push(*damaged);
            }
            // Ignore other errors, for example of a journal of another namespace: `evenkeel revert`
            // reports them.
            _ => {}
        }
    }
    Ok(found)
}

/// Returns all damaged journals whose settings may still be in force in this namespace: set aside, or
/// not reverted.
pub fn damaged(state: &StateDirectory) -> Result<Vec<Damaged>, ApplyError> {
    let mut found = unreadable(state)?;
    for remains in remains(state)? {
        if let Remains::Present(damaged) = remains {
            found.push(damaged);
        }
    }
    Ok(found)
}

/// Returns whether the interface is in this namespace; `None` after a reboot. Updates the interface's name.
fn find_here(damaged: &mut Damaged, header: Option<&Header>) -> Result<Option<bool>, ApplyError> {
    // Without a header, the lookup used the index in the file's name. If the name has no index, any
    // interface may be meant.
    let Some(Header { interface, .. }) = header else {
        return Ok(Some(damaged.interface.is_some() || index_of(&damaged.path).is_none()));
    };
    let here = InterfaceIdentity::here(interface.index, &interface.name).map_err(KnobError::from)?;
    if !interface.same_boot(&here) {
        return Ok(None);
    }
    // An interface that moved to another namespace and back may have a new index.
    if let Some(device) = interface.device {
        let Some((_, name)) = interface_of(device).map_err(KnobError::from)? else { return Ok(Some(false)) };
        if name != interface.name {
            (damaged.interface, damaged.former) = (Some(name), Some(interface.name.clone()));
        }
        return Ok(Some(true));
    }
    let sysfs = Sysfs::of_namespace().map_err(KnobError::from)?;
    Ok(Some(interface.same_namespace(&here) && name_of(interface.index, &sysfs).is_some()))
}
