//! The entries of the kept journals, whose changes stay until `evenkeel revert`.

use std::path::PathBuf;

use evenkeel_model::change::{Knob, Value};

use crate::error::{ApplyError, KnobError};
use crate::identity::InterfaceIdentity;
use crate::journal::{Entry, Header};
use crate::journal_directory::{StateDirectory, is_kept};
use crate::kernel::{Kernel, LiveKernel};
use crate::namespace::returned;
use crate::ours::Ours;

/// A kept journal of this boot and of the calling thread's network namespace.
pub struct KeptJournal {
    pub path: PathBuf,
    pub header: Header,
    pub entries: Vec<Entry>,
}

/// Returns the kept journals of this boot, for the interfaces in the calling thread's network namespace. An
/// interface that left and returned has its present index in the header.
pub fn kept_journals(state: &StateDirectory) -> Result<Vec<KeptJournal>, ApplyError> {
    let mut found = Vec::new();
    for path in state.journals()? {
        if !path.file_name().is_some_and(|name| is_kept(&name.to_string_lossy())) {
            continue;
        }
        let Some(contents) = StateDirectory::read(&path)?.filter(|contents| !contents.shut) else { continue };
        let (Some(mut header), entries) = (contents.header, contents.entries) else { continue };
        let Header { interface, .. } = &header;
        let here = InterfaceIdentity::here(interface.index, &interface.name).map_err(KnobError::from)?;
        if interface.same_boot(&here) && interface.same_namespace(&here) {
            // Ignore the error: a command that reads the interface reports it.
            if let Ok(Some(now)) = returned(interface) {
                header.interface.index = now.index;
            }
            found.push(KeptJournal { path, header, entries });
        }
    }
    Ok(found)
}

/// Returns the kept changes of this boot, for the interfaces in the calling thread's network namespace.
pub fn kept(state: &StateDirectory) -> Result<Vec<(InterfaceIdentity, Entry)>, ApplyError> {
    let changes = kept_journals(state)?.into_iter().flat_map(|KeptJournal { header, entries, .. }| {
        let set = entries.into_iter().filter(|entry| !entry.with_channels);
        set.map(move |entry| (header.interface.clone(), entry))
    });
    Ok(changes.collect())
}

/// Returns the knobs of kept changes with their current values. Leaves out knobs that cannot be read, that
/// have their original value, or that another program has changed since.
pub fn in_force<'e>(
    kernel: &mut LiveKernel,
    entries: impl IntoIterator<Item = &'e Entry>,
) -> Vec<(Knob, Value)> {
    let set = entries.into_iter().filter(|entry| !entry.with_channels);
    let now = set.filter_map(|entry| {
        let found = kernel.read(&entry.knob).ok()?;
        let is_changed = !entry.knob.same(&found, &entry.from);
        let value = match &found {
            // Qdiscs are restored from the parameters that created them: a dump shows them differently.
            Value::Qdiscs(_) => entry.ours.iter().rev().find_map(|ours| match ours {
                Ours::These(list) => list
                    .iter()
                    .find(|own| Ours::These(vec![(*own).clone()]).includes(&entry.knob, &found))
                    .cloned(),
                _ => None,
            })?,
            _ => found.clone(),
        };
        (is_changed && entry.is_ours(&found)).then_some((entry.knob.clone(), value))
    });
    now.collect()
}
