//! Changes that stay after the process ends, until `evenkeel revert`.
//!
//! They have a separate journal, `….kept.journal`, next to the journal of runs. A later run treats the
//! kept values as the state to restore, not as changes of a dead process. While a process makes or
//! reverts kept changes, it locks the run journal, so that no other process changes the interface.
//!
//! ```text
//!   Lasting::begin ─▶ change ─▶ change ─▶ keep        journal stays ─▶ evenkeel revert
//!                        ├──▶ undo                    journal as before `begin`, or removed
//!                        └──▶ killed                  journal stays ─▶ evenkeel revert, or tune continues
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use crate::damaged_journal::Damaged;
use crate::error::{ApplyError, JournalError, KnobError};
use crate::identity::InterfaceIdentity;
use crate::journal::{Entry, Header, fold};
use crate::journal_directory::StateDirectory;
use crate::journal_file::{Held, Look};
use crate::kept_entries::in_force;
use crate::kernel::{Kernel, LiveKernel};
use crate::revert::{Leftover, check_elsewhere, take_over, take_over_contents};
use crate::rollback::Report;
use crate::run::{Run, Taken};
use crate::sole_run::steer_alone;
use crate::storage::{Rewritten, Storage};
use evenkeel_host::SocketName;
use evenkeel_model::change::{Change, Knob, Value};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Made {
    /// The knob already had the value.
    AsBefore,
    /// The knob was changed. Contains the previous value.
    Changed(Value),
    /// The device rounded the number, for example a ring size to a multiple of 32.
    Rounded { from: Value, to: Value },
}

pub struct Lasting {
    run: Run,
    name: String,
    /// The journal's entries before this command.
    before: Vec<Entry>,
    /// The knobs that this command has changed, each with the previous value.
    made: Vec<(Knob, Value)>,
    /// The values from which the next changes were planned.
    planned: BTreeMap<Knob, Value>,
    /// The run journal, which excludes runs. The end of this command removes it.
    lock: Option<Held>,
    /// The socket names that exclude runs with other state directories, and steering without a journal.
    _sole: [Option<SocketName>; 2],
}

impl Lasting {
    /// Begins kept changes, or continues existing ones. First rolls back a killed run on the interface.
    ///
    /// # Errors
    /// Returns [`crate::JournalError::Busy`] if a run manages the interface. Returns an error if the
    /// settings or a journal cannot be read, or if a killed run cannot be rolled back.
    pub fn begin(
        state: &StateDirectory,
        index: u32,
        name: &str,
        command: &str,
    ) -> Result<(Self, Option<Leftover>), ApplyError> {
        let identity = InterfaceIdentity::current(index, name).map_err(KnobError::from)?;
        // Check access first, so that no journal remains if read permission is missing.
        let kernel = LiveKernel::of(&identity)?;
        check_elsewhere(state, &identity)?;
        let header = Header::kept(identity, command);
        let Taken { held: lock, leftover, sole } = Taken::by(state, &header)?;
        let begun = steer_alone(index, name)
            .map_err(ApplyError::from)
            .and_then(|steers| Ok((take_kept(state, &header)?, steers)));
        match begun {
            Ok((Kept { held, entries, leftover: earlier }, steers)) => {
                let leftover = leftover.or(earlier);
                let before = entries.clone();
                let run = Run::keeping(kernel, held, name, entries);
                let (name, made, planned) = (name.to_owned(), Vec::new(), BTreeMap::new());
                let _sole = [sole, steers];
                Ok((Self { run, name, before, made, planned, lock: Some(lock), _sole }, leftover))
            }
            Err(error) => {
                lock.remove()?;
                Err(error)
            }
        }
    }

    /// Marks the following changes as those of `evenkeel service`, which undoes them.
    pub fn by_service(&mut self) {
        self.run.by_service = true;
    }

    /// Records the values from which the next changes were planned. [`Self::change`] refuses to
    /// overwrite any other value.
    pub fn plan_from(&mut self, values: impl IntoIterator<Item = (Knob, Value)>) {
        self.planned = values.into_iter().collect();
    }

    /// Reads the knob, journals it, sets the value and reads it back. If the kernel refuses the value,
    /// the knob keeps its previous value.
    ///
    /// # Errors
    /// Returns an error if the change cannot be journalled, if the kernel refuses the value, or if another
    /// program has changed the knob since it was planned or kept.
    pub fn change(&mut self, change: &Change) -> Result<Made, ApplyError> {
        let Change { knob, to } = change;
        let _claim = self.run.claim(knob)?;
        let before = self.run.kernel().read(knob)?;
        if knob.same(&before, to) {
            return Ok(Made::AsBefore);
        }
        if self.planned.get(knob).is_some_and(|planned| !knob.same(&before, planned)) {
            return Err(self.run.set_by_another(knob, before));
        }
        let is_new = self.made.iter().all(|(known, _)| known != knob);
        if is_new {
            self.made.push((knob.clone(), before.clone()));
        }
        let as_planned = self.as_planned(knob);
        let had_no_length = *knob == Knob::RootQdisc && self.has_no_length();
        let made = self.make(change, &before);
        if had_no_length && !self.has_no_length() {
            // The kernel set the transmit queue length when it created the qdisc.
            let (length, none) = (Knob::TransmitQueueLength, Value::Number(0));
            match made {
                Ok(_) if self.made.iter().any(|(known, _)| *known == length) => {}
                Ok(_) => self.made.push((length, none)),
                Err(_) => self.run.take_back(&length, &none)?,
            }
        }
        for knob in as_planned {
            if let Ok(now) = self.run.kernel().read(&knob) {
                self.planned.insert(knob, now);
            }
        }
        let is_as_before = |found: Value| knob.same(&found, &before);
        if is_new && made.is_err() && self.run.kernel().read(knob).is_ok_and(is_as_before) {
            self.made.pop();
        }
        made
    }

    fn has_no_length(&mut self) -> bool {
        self.run.kernel().read(&Knob::TransmitQueueLength).is_ok_and(|found| found == Value::Number(0))
    }

    /// Returns the planned knobs that a change of this knob may also set, and that still have the
    /// planned value. A driver derives settings of an interface from other settings, for example rings
    /// and queues from the channels.
    fn as_planned(&mut self, knob: &Knob) -> Vec<Knob> {
        if !knob.is_of_interface() || matches!(knob, Knob::InterfaceFile(_)) {
            return Vec::new();
        }
        let kernel = self.run.kernel();
        let planned = self.planned.iter().filter(|(other, _)| *other != knob);
        let is_as_planned = |(knob, planned): &(&Knob, &Value)| {
            kernel.read(knob).is_ok_and(|found| knob.same(&found, planned))
        };
        planned.filter(is_as_planned).map(|(knob, _)| knob.clone()).collect()
    }

    fn make(&mut self, change: &Change, before: &Value) -> Result<Made, ApplyError> {
        let Err(error) = self.run.change_claimed(change) else { return Ok(Made::Changed(before.clone())) };
        if matches!(error, ApplyError::NotTaken { .. }) {
            let found = self.run.kernel().read(&change.knob)?;
            if is_rounded(before, &change.to, &found) {
                self.run.adopt(&change.knob, found.clone())?;
                return Ok(Made::Rounded { from: before.clone(), to: found });
            }
        }
        if matches!(error, ApplyError::NotTaken { .. } | ApplyError::Knob(_)) {
            self.run.take_back(&change.knob, before)?;
        }
        Err(error)
    }

    /// Restores the values from before this command, and ends the command. Changes of previous commands
    /// stay. The journal is then as before, except for settings that could not be restored.
    ///
    /// # Errors
    /// Returns an error if a journal cannot be written or removed.
    pub fn undo(mut self) -> Result<Report, ApplyError> {
        self.run.leave_theirs();
        let entries: Vec<Entry> =
            self.run.entries().iter().filter_map(|entry| self.since_begin(entry)).collect();
        let report = self.run.roll_back(&entries);
        let channels = |(knob, _): &(Knob, Value)| matches!(knob, Knob::Channels(_));
        if self.made.iter().any(channels) {
            self.run.settle_queues();
        }
        self.made.retain(|(knob, _)| report.failed.iter().any(|(failed, _)| failed == knob));
        match self.end() {
            Ok(()) => Ok(report),
            Err(ApplyError::Journal(source)) => Err(report.journal_stays(&self.name, source)),
            Err(error) => Err(error),
        }
    }

    /// Returns an entry that undoes this command's change of a knob, but no change of a previous
    /// command; `None` without such a change.
    fn since_begin(&self, entry: &Entry) -> Option<Entry> {
        if entry.with_channels {
            return (!self.was_kept(&entry.knob)).then(|| entry.clone());
        }
        let (_, from) = self.made.iter().find(|(knob, _)| *knob == entry.knob)?;
        Some(Entry { from: from.clone(), ..entry.clone() })
    }

    fn was_kept(&self, knob: &Knob) -> bool {
        self.before.iter().any(|entry| entry.knob == *knob)
    }

    /// Returns the kept knobs with their current values. Leaves out knobs whose kept value is no longer
    /// in effect.
    pub fn kept(&mut self) -> Vec<(Knob, Value)> {
        let entries = self.run.entries().to_vec();
        in_force(self.run.kernel(), &entries)
    }

    /// Returns the knobs that this command has changed and another program has set since, each with the
    /// reason. From then on, these knobs belong to the other program: neither [`Self::undo`] nor a
    /// later revert restores them.
    pub fn set_since(&mut self) -> Vec<(Knob, ApplyError)> {
        let mut disturbed = Vec::new();
        for (knob, _) in self.made.clone() {
            // An interface that is gone has no value.
            let Ok(found) = self.run.kernel().read(&knob) else { continue };
            if self.run.entries().iter().any(|entry| entry.knob == knob && !entry.is_ours(&found)) {
                self.made.retain(|(made, _)| *made != knob);
                let why = self.run.set_by_another(&knob, found);
                disturbed.push((knob, why));
            }
        }
        disturbed
    }

    /// Returns the kernel, for reads and writes without a journal. To change kept knobs, use
    /// [`Self::change`].
    pub fn kernel(&mut self) -> &mut LiveKernel {
        self.run.kernel()
    }

    /// Journals the interface's name, and a directory that replaces `/etc`. Call this function before files
    /// with the kept settings are written under this name.
    pub fn note_files(&mut self, etc: Option<&str>) -> Result<(), ApplyError> {
        let etc: Vec<String> = etc.map(str::to_owned).into_iter().collect();
        let names = [self.name.clone()];
        let Run { storage, entries, .. } = &mut self.run;
        Ok(storage.as_mut().map_or(Ok(()), |held| held.note_files(&etc, &names, entries))?)
    }

    /// Ends the run. The changes and their journal stay. If another program has damaged the journal,
    /// writes the journal again and returns the damage.
    ///
    /// # Errors
    /// Returns an error if a journal cannot be written or removed. If another program's file has the
    /// journal's name, undoes the changes, because no later command could undo them.
    pub fn keep(mut self) -> Result<Option<Rewritten>, ApplyError> {
        if let Some(path) = self.run.storage.as_ref().and_then(Storage::taken_place) {
            let name = self.name.clone();
            let report = self.undo()?;
            return Err(report.journal_stays(&name, JournalError::Supplanted { path }));
        }
        let Run { storage, entries, .. } = &mut self.run;
        let again = storage.as_mut().map_or(Ok(None), |storage| storage.write_again(entries));
        self.end()?;
        Ok(again?)
    }

    fn end(&mut self) -> Result<(), ApplyError> {
        let kept = self.settle_journal();
        if let Some(lock) = self.lock.take() {
            lock.remove()?;
        }
        kept
    }

    /// Removes from the journal the entries of changes that are not in effect. A later revert would
    /// otherwise treat another program's value as one of these changes. Removes an empty journal.
    fn settle_journal(&mut self) -> Result<(), ApplyError> {
        let Some(mut held) = self.run.storage.take() else { return Ok(()) };
        let has_channels = self.made.iter().any(|(knob, _)| matches!(knob, Knob::Channels(_)));
        let is_made = |entry: &Entry| match entry.with_channels {
            true => has_channels,
            false => self.made.iter().any(|(knob, _)| *knob == entry.knob),
        };
        let entries: Vec<Entry> = self
            .run
            .entries()
            .iter()
            .filter_map(|entry| {
                let known = self.before.iter().find(|known| known.knob == entry.knob);
                match known {
                    // This command has set the value, perhaps by a change of the channels.
                    _ if is_made(entry) || known.is_some() && entry.knob.is_of_queues() => {
                        Some(entry.clone())
                    }
                    known => known.map(|known| Entry { theirs: entry.theirs, ..known.clone() }),
                }
            })
            .collect();
        let header = held.header()?;
        // A journal without entries stays if it names directories with files of `--persist`.
        if entries.is_empty() && header.etc.is_empty() {
            return Ok(held.remove()?);
        }
        if entries != self.run.entries() {
            held.rewrite(&header, &entries)?;
        }
        Ok(())
    }
}

impl Drop for Lasting {
    fn drop(&mut self) {
        // Ignore the error: every change is in the journal.
        let _ = self.end();
    }
}

struct Kept {
    held: Held,
    entries: Vec<Entry>,
    /// The changes of a deleted interface with the same index.
    leftover: Option<Leftover>,
}

/// Locks the journal of kept changes and reads it. For a finished journal, or one from a previous boot or a
/// deleted namespace, returns no entries. For a journal of a deleted interface, returns only the entries of
/// the namespace and the host, which are still in effect. Refuses a journal that is damaged or from another
/// live namespace.
fn take_kept(state: &StateDirectory, header: &Header) -> Result<Kept, ApplyError> {
    let (mut held, found) = state.take_kept(header, |held| {
        let mut contents = held.read()?;
        let Some(known) = contents.header.clone().filter(|_| contents.damage.is_empty()) else {
            // `evenkeel revert` restores the readable part.
            return Err(Damaged::of(held.path(), &contents).into());
        };
        let (interface, here) = (known.interface, &header.interface);
        let files = Some((known.etc, known.names));
        let same_place = interface.same_boot(here) && interface.same_namespace(here);
        if contents.shut || !same_place {
            take_over(held)?;
            return Ok(Look::BeginAnew((Vec::new(), None, None), Vec::new()));
        }
        if interface.device.is_some() && interface.device != here.device {
            let (own, shared) = contents.entries.into_iter().partition(|entry| entry.knob.is_of_interface());
            contents.entries = own;
            let leftover = take_over_contents(held, contents)?;
            return Ok(Look::BeginAnew((Vec::clone(&shared), leftover, files), shared));
        }
        let entries = contents.entries;
        Ok(match contents.writer {
            Some(_) => Look::GoOn((entries, None, None)),
            // The journal has format version 1: rewrite it in the current format.
            None => Look::BeginAnew((entries.clone(), None, files), entries),
        })
    })?;
    let is_new = found.is_none();
    let (mut entries, leftover, files) = found.unwrap_or_default();
    if let Some((etc, names)) = files {
        held.note_files(&etc, &names, &entries)?;
    }
    for path in state.earlier_kept_journals_of(&header.interface)? {
        if let Err(error) = adopt(&path, &mut held, &mut entries) {
            if is_new && entries.is_empty() {
                held.remove()?;
            }
            return Err(error);
        }
    }
    Ok(Kept { held, entries, leftover })
}

/// Moves the kept changes of an earlier journal to the interface's journal. The earlier journal has the
/// interface's index from before it left this namespace and returned.
fn adopt(path: &Path, held: &mut Held, entries: &mut Vec<Entry>) -> Result<(), ApplyError> {
    let Some(mut earlier) = Held::take_path(path)? else { return Ok(()) };
    let contents = earlier.read()?;
    let Some(header) = contents.header.as_ref().filter(|_| contents.damage.is_empty()) else {
        return Err(Damaged::of(earlier.path(), &contents).into());
    };
    if !contents.shut {
        let (etc, names) = (&header.etc, &header.names);
        let newer = std::mem::replace(entries, contents.entries);
        newer.into_iter().for_each(|entry| fold(entries, entry));
        let own = held.header()?;
        held.rewrite(&own, entries)?;
        held.note_files(etc, names, entries)?;
    }
    Ok(earlier.remove()?)
}

/// Returns whether the device rounded `wanted`: the value has changed, and is closer to `wanted` than
/// the previous value.
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
