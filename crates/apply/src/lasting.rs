//! Changes that stay when the process has ended, until they are reverted.
//!
//! They have a journal of their own, `….kept.journal`, beside that of runs: a run that begins on the interface later
//! finds what was kept as the state that it has to give back, and takes it for nothing that a dead process left. The
//! runs' journal is held while changes are made, so that nobody else makes any, and while they are reverted.
//!
//! ```text
//!   Lasting::begin ─▶ change ─▶ change ─▶ keep        journal stays ─▶ evenkeel revert
//!                        └──▶ killed                  journal stays ─▶ evenkeel revert, or tune goes on
//! ```

use crate::error::{ApplyError, JournalError, KnobError};
use crate::journal::{Entry, Header, InterfaceIdentity, Storage, line, parse};
use crate::kernel::{Kernel, LiveKernel};
use crate::ours::Ours;
use crate::revert::{Leftover, take_over};
use crate::run::Run;
use crate::state::{Held, StateDirectory, is_absent, working_journal_of};
use evenkeel_model::change::{Change, Knob, Value};

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Made {
    /// The knob had the value already.
    AsBefore,
    /// It has it now; before it had this one.
    Changed(Value),
    /// The device took the number that is nearest to it for it, such as a ring of a multiple of 32.
    Rounded {
        /// What it was before.
        from: Value,
        /// What it is now.
        to: Value,
    },
}

/// What is kept for the interfaces of the calling thread's network namespace, since this boot.
///
/// # Errors
/// When a journal cannot be read.
pub fn kept(state: &StateDirectory) -> Result<Vec<(InterfaceIdentity, Entry)>, ApplyError> {
    let mut found = Vec::new();
    for path in state.journals()? {
        if working_journal_of(&path).is_none() {
            continue;
        }
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if is_absent(&error) => continue,
            Err(source) => return Err(JournalError::File { action: "read", path, source }.into()),
        };
        let Some((header, entries)) = parse(&text, &path)? else { continue };
        let interface = header.interface;
        let here = InterfaceIdentity::current(interface.index, &interface.name).map_err(KnobError::from)?;
        if interface.same_boot(&here) && interface.same_namespace(&here) {
            found.extend(entries.into_iter().map(|entry| (interface.clone(), entry)));
        }
    }
    Ok(found)
}

/// Changes to an interface and its host that are to stay.
pub struct Lasting {
    run: Run,
    /// Keeps runs away; removed at the end.
    lock: Option<Held>,
}

impl Lasting {
    /// Begins, or goes on with what was kept before. What a run that died has left on the interface is put back first.
    ///
    /// # Errors
    /// [`crate::JournalError::Busy`] while a run is at work on the interface.
    pub fn begin(
        state: &StateDirectory,
        index: u32,
        name: &str,
        command: &str,
    ) -> Result<(Self, Option<Leftover>), ApplyError> {
        let identity = InterfaceIdentity::current(index, name).map_err(KnobError::from)?;
        // Whoever may not even look leaves no journal behind.
        let kernel = LiveKernel::open(index, name)?;
        let mut lock = state.take(&identity)?;
        let leftover = take_over(&mut lock)?;
        lock.append(&line(&Header::kept(identity.clone(), command)))?;
        match take_kept(state, &identity, command) {
            Ok((held, entries)) => {
                let run = Run::keeping(kernel, held, name, entries);
                Ok((Self { run, lock: Some(lock) }, leftover))
            }
            Err(error) => {
                lock.remove()?;
                Err(error)
            }
        }
    }

    /// Makes a change: reads what is there, journals it, sets the value, reads it back. What the kernel does not take
    /// is as before.
    ///
    /// # Errors
    /// When the journal or the kernel refuses, or somebody else has changed the knob since it was kept.
    pub fn change(&mut self, change: &Change) -> Result<Made, ApplyError> {
        let before = self.run.kernel().read(&change.knob)?;
        if change.knob.same(&before, &change.to) {
            return Ok(Made::AsBefore);
        }
        let Err(error) = self.run.change(change) else { return Ok(Made::Changed(before)) };
        if matches!(error, ApplyError::NotTaken { .. }) {
            let found = self.run.kernel().read(&change.knob)?;
            if is_rounded(&before, &change.to, &found) {
                self.run.adopt(&change.knob, found.clone())?;
                return Ok(Made::Rounded { from: before, to: found });
            }
        }
        if matches!(error, ApplyError::NotTaken { .. } | ApplyError::Knob(_)) {
            self.run.take_back(&change.knob)?;
        }
        Err(error)
    }

    /// What is kept, with the values that it has now; what somebody else has set since is theirs.
    pub fn kept(&mut self) -> Vec<(Knob, Value)> {
        let entries = self.run.entries().to_vec();
        let now = entries.into_iter().filter_map(|entry| {
            let found = self.run.kernel().read(&entry.knob).ok()?;
            let is_changed = !entry.knob.same(&found, &entry.from);
            let value = match &found {
                // A tree is made again as it was made, not as a dump of it shows it.
                Value::Qdiscs(_) => entry.ours.iter().rev().find_map(|ours| match ours {
                    Ours::These(list) => list
                        .iter()
                        .find(|own| Ours::These(vec![(*own).clone()]).includes(&entry.knob, &found))
                        .cloned(),
                    _ => None,
                })?,
                _ => found.clone(),
            };
            (is_changed && entry.is_ours(&found)).then_some((entry.knob, value))
        });
        now.collect()
    }

    /// Reads and sets without a journal; for what was kept is [`Self::change`].
    pub fn kernel(&mut self) -> &mut LiveKernel {
        self.run.kernel()
    }

    /// Ends: everything stays, and the journal with it.
    ///
    /// # Errors
    /// When a journal cannot be removed.
    pub fn keep(mut self) -> Result<(), ApplyError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), ApplyError> {
        let kept = self.run.keep();
        if let Some(lock) = self.lock.take() {
            lock.remove()?;
        }
        kept
    }
}

impl Drop for Lasting {
    fn drop(&mut self) {
        // Nobody listens here, and what was changed is in the journal.
        let _ = self.end();
    }
}

/// The journal of what is kept, and what is in it; empty, if that is of an earlier boot or namespace.
fn take_kept(
    state: &StateDirectory,
    identity: &InterfaceIdentity,
    command: &str,
) -> Result<(Held, Vec<Entry>), ApplyError> {
    let mut held = state.take_kept(identity)?;
    let known = held.read()?.filter(|(header, _)| {
        header.interface.same_boot(identity) && header.interface.same_namespace(identity)
    });
    if let Some((_, entries)) = known {
        return Ok((held, entries));
    }
    held.clear()?;
    held.append(&line(&Header::kept(identity.clone(), command)))?;
    Ok((held, Vec::new()))
}

/// Whether a device made another number of the one that it was to take, on the way from the one before.
fn is_rounded(before: &Value, wanted: &Value, found: &Value) -> bool {
    let (Value::Number(before), Value::Number(wanted), Value::Number(found)) = (before, wanted, found) else {
        return false;
    };
    found != before && found.abs_diff(*wanted) < before.abs_diff(*wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_on_the_way_is_a_rounded_one() {
        let number = Value::Number;
        let rounded = |before, wanted, found| is_rounded(&number(before), &number(wanted), &number(found));
        assert!(rounded(256, 4090, 4096) && rounded(256, 4090, 4064) && rounded(4096, 100, 104));
        assert!(!rounded(256, 4090, 256), "nothing happened");
        assert!(!rounded(256, 4090, 64), "somewhere else");
        assert!(!is_rounded(&Value::Switch(false), &Value::Switch(true), &Value::Switch(false)));
    }
}
