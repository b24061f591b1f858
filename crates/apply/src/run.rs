//! A run: makes changes, journals them, and undoes them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;

use evenkeel_host::SocketName;
use evenkeel_model::change::{Change, Knob, Value, clsact};
use evenkeel_model::text::path_text;
use nix::fcntl::Flock;

use crate::disturbance::Disturbance;
use crate::error::{ApplyError, KnobError};
use crate::find_renamed::check_renamed;
use crate::guardian::Guardian;
use crate::identity::InterfaceIdentity;
use crate::journal::{Entry, Header, fold};
use crate::journal_directory::StateDirectory;
use crate::journal_file::Held;
use crate::kernel::{Kernel, LiveKernel};
use crate::ours::Ours;
use crate::revert::{Leftover, check_elsewhere, take_over, take_over_earlier};
use crate::rollback::{Report, roll_back};
use crate::sole_run;
use crate::storage::Storage;

/// `DEFAULT_TX_QUEUE_LEN` (include/linux/netdevice.h).
pub const DEFAULT_QUEUE_LENGTH: u32 = 1000;

/// An interface that no other run uses.
pub(crate) struct Taken {
    pub(crate) held: Held,
    pub(crate) leftover: Option<Leftover>,
    pub(crate) sole: Option<SocketName>,
}

impl Taken {
    /// Locks the journal, takes the interface's socket name, and rolls back killed runs. The order matters.
    /// The journal's error is more specific than the error of the name. Without the name, a rollback could
    /// disturb a run with another state directory.
    pub(crate) fn by(state: &StateDirectory, header: &Header) -> Result<Self, ApplyError> {
        let Header { interface, .. } = header;
        check_renamed(state, interface)?;
        let take_name = |held: &Held| sole_run::take(interface.index, &interface.name, &held.path());
        let mut sole = None;
        let (held, leftover) = state.take(header, |held| {
            sole = take_name(held)?;
            take_over(held)
        })?;
        if sole.is_none() {
            match take_name(&held) {
                Ok(name) => sole = name,
                Err(error) => {
                    held.remove()?;
                    return Err(error.into());
                }
            }
        }
        match take_over_earlier(state, interface) {
            Ok(earlier) => Ok(Self { held, leftover: leftover.flatten().or(earlier), sole }),
            Err(error) => {
                held.remove()?;
                Err(error)
            }
        }
    }
}

/// The changes to one interface. Dropping the run rolls them back, unless the run keeps its changes.
pub struct Run<K: Kernel = LiveKernel, S: Storage = Held> {
    name: String,
    pub(crate) kernel: K,
    pub(crate) storage: Option<S>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) last_set: BTreeMap<Knob, Value>,
    guardian: Option<Guardian>,
    /// The socket name that excludes runs with other state directories.
    sole: Option<SocketName>,
    /// Whether the changes stay when the run ends.
    keeps: bool,
    /// Whether `evenkeel service` makes the changes.
    pub(crate) by_service: bool,
    remarks: Vec<String>,
    /// Whether the journal was removed or changed and could not be written again, or has lost its name to
    /// another file.
    lost_journal: bool,
}

impl Run {
    /// Begins a run on an interface of the calling thread's network namespace. Locks the journal, rolls
    /// back a dead run, and starts the guardian if the caller gives its command ([`crate::guardian`]).
    ///
    /// # Errors
    /// Returns [`crate::JournalError::Busy`] if another run manages the interface. Returns another error if
    /// the interface cannot be examined, or if the journal or the guardian fails.
    pub fn begin(
        state: &StateDirectory,
        index: u32,
        name: &str,
        command: &str,
        guardian: Option<Command>,
    ) -> Result<(Self, Option<Leftover>), ApplyError> {
        Self::begin_below(name, state, index, name, command, guardian)
    }

    /// Begins a run as [`Self::begin`] does, for a command that named the interface `named`, such as a
    /// bridge.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Self::begin`].
    pub fn begin_below(
        named: &str,
        state: &StateDirectory,
        index: u32,
        name: &str,
        command: &str,
        guardian: Option<Command>,
    ) -> Result<(Self, Option<Leftover>), ApplyError> {
        let identity = InterfaceIdentity::current(index, name).map_err(KnobError::from)?;
        let mut kernel = LiveKernel::of(&identity)?;
        kernel.watch_departure();
        check_elsewhere(state, &identity)?;
        let header = Header::new(identity, command).of_command_on(named);
        let Taken { held, leftover, sole } = Taken::by(state, &header)?;
        let path = held.path();
        let mut run = Self::with(kernel, held, name);
        run.sole = sole;
        if let Some(command) = guardian {
            run.guardian =
                Some(Guardian::start(command, &path, header.process).map_err(ApplyError::Guardian)?);
        }
        Ok((run, leftover))
    }

    #[must_use]
    pub fn journal(&self) -> Option<PathBuf> {
        self.storage.as_ref().map(Held::path)
    }
}

impl<K: Kernel, S: Storage> Run<K, S> {
    /// Creates a run on any kernel and storage, without lock and guardian.
    pub fn with(kernel: K, storage: S, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            kernel,
            storage: Some(storage),
            entries: Vec::new(),
            last_set: BTreeMap::new(),
            guardian: None,
            sole: None,
            keeps: false,
            by_service: false,
            remarks: Vec::new(),
            lost_journal: false,
        }
    }

    /// Creates a run whose changes stay. It continues from the journalled entries.
    pub(crate) fn keeping(kernel: K, storage: S, name: &str, entries: Vec<Entry>) -> Self {
        let mut run = Self::with(kernel, storage, name);
        run.entries = entries;
        run.keeps = true;
        run
    }

    /// Journals the value to which the kernel rounded a value of this run. From then on, it is a value of
    /// this run.
    pub(crate) fn adopt(&mut self, knob: &Knob, found: Value) -> Result<(), ApplyError> {
        let Some(entry) = self.entry(knob).cloned() else { return Ok(()) };
        self.last_set.insert(knob.clone(), found.clone());
        self.journal_entry(Entry { ours: vec![Ours::These(vec![found])], ..entry })
    }

    /// Restores a knob after a change that the kernel refused, or made with a different value. Only this run
    /// can have caused the difference.
    pub(crate) fn take_back(&mut self, knob: &Knob, from: &Value) -> Result<(), ApplyError> {
        self.last_set.remove(knob);
        if !knob.same(&self.kernel.read(knob)?, from) {
            self.kernel.write(knob, from)?;
        }
        if matches!(knob, Knob::Channels(_)) {
            self.settle_queues();
        }
        Ok(())
    }

    pub fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    #[must_use]
    pub fn interface(&self) -> &str {
        &self.name
    }

    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Reads the knob, journals it, sets the value and reads it back. Does nothing if the knob already
    /// had the value before the run.
    ///
    /// # Errors
    /// Returns an error if the change is not permitted or cannot be journalled, if the kernel refuses the
    /// value, or if it shows a different value afterwards. Returns an error if another program has changed
    /// the knob after this run set it.
    pub fn change(&mut self, change: &Change) -> Result<(), ApplyError> {
        let _claim = self.claim(&change.knob)?;
        self.change_claimed(change)
    }

    /// Excludes other changes of a setting of the namespace or host; see [`Storage::claim`].
    pub(crate) fn claim(&self, knob: &Knob) -> Result<Option<Flock<OwnedFd>>, ApplyError> {
        let storage = self.storage.as_ref().filter(|_| !knob.is_of_interface());
        Ok(storage.map_or(Ok(None), Storage::claim)?)
    }

    /// Changes a knob as [`Self::change`] does. The caller holds [`Self::claim`].
    pub(crate) fn change_claimed(&mut self, change: &Change) -> Result<(), ApplyError> {
        let found = self.undisturbed(&change.knob)?;
        let known = self.entry(&change.knob).is_some();
        if !known && change.knob.same(&found, &change.to) {
            return Ok(());
        }
        self.check_of_user(&change.knob, &found)?;
        let is_channels = matches!(change.knob, Knob::Channels(_));
        if is_channels {
            self.journal_queues()?;
        }
        if change.knob == Knob::RootQdisc {
            self.journal_length()?;
        }
        self.allow_from(&change.knob, found.clone(), Ours::These(vec![change.to.clone()]))?;
        let made = self
            .still(&change.knob, &found)
            .and_then(|()| self.set(&change.knob, &change.to))
            .and_then(|()| self.verify(&change.knob));
        if is_channels {
            self.settle_queues();
        }
        made
    }

    /// Refuses a change by the service if `evenkeel tune` keeps the setting. An entry has one previous value,
    /// so the end of the service could not restore the user's value.
    fn check_of_user(&self, knob: &Knob, found: &Value) -> Result<(), ApplyError> {
        let is_of_user =
            |entry: &&Entry| !entry.service && !entry.with_channels && !knob.same(found, &entry.from);
        match self.entry(knob).filter(is_of_user) {
            Some(_) if self.by_service => Err(ApplyError::OfUser {
                knob: knob.on(&self.name).to_string(),
                value: found.to_string(),
                interface: self.name.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// Journals a `txqueuelen` of 0 before a root qdisc is created. On a device without a queue of its
    /// own (`IFF_NO_QUEUE`), the kernel then sets the default length (`qdisc_create`,
    /// net/sched/sch_api.c).
    fn journal_length(&mut self) -> Result<(), ApplyError> {
        let knob = Knob::TransmitQueueLength;
        // Ignore a read error: the kernel does not change a length that does not exist.
        if !self.kernel.read(&knob).is_ok_and(|found| found == Value::Number(0)) {
            return Ok(());
        }
        self.allow(&knob, Ours::These(vec![Value::Number(DEFAULT_QUEUE_LENGTH)]))?;
        self.has_set(&knob, None);
        Ok(())
    }

    /// Returns an error if another program has set the knob while the journal was written. The write
    /// waits for the disk.
    fn still(&mut self, knob: &Knob, read: &Value) -> Result<(), ApplyError> {
        let found = self.kernel.read(knob)?;
        if knob.same(&found, read) {
            return Ok(());
        }
        if let Some(entry) = self.entry(knob).cloned() {
            self.journal_entry(Entry { theirs: true, ..entry })?;
        }
        Err(self.set_by_another(knob, found))
    }

    pub(crate) fn set_by_another(&self, knob: &Knob, found: Value) -> ApplyError {
        ApplyError::Disturbed(Disturbance {
            interface: self.name.clone(),
            knob: knob.clone(),
            found: Some(found),
            expected: None,
        })
    }

    /// Journals every value that [`Self::set`] may write later without the journal. Does not change the
    /// knob.
    ///
    /// # Errors
    /// Returns an error if a value cannot be journalled, if the knob cannot be read or restored, or if
    /// another program has changed the knob after this run set it.
    pub fn allow(&mut self, knob: &Knob, ours: Ours) -> Result<(), ApplyError> {
        let _claim = self.claim(knob)?;
        let found = self.undisturbed(knob)?;
        self.allow_from(knob, found, ours)
    }

    fn allow_from(&mut self, knob: &Knob, found: Value, ours: Ours) -> Result<(), ApplyError> {
        let service = self.by_service;
        let is_known =
            |entry: &Entry| !entry.with_channels && entry.ours.contains(&ours) && entry.service == service;
        if self.entry(knob).is_some_and(is_known) {
            return Ok(());
        }
        if self.entry(knob).is_none() {
            if !knob.is_permitted() {
                return Err(KnobError::NotPermitted { what: knob.on(&self.name).to_string() }.into());
            }
            self.kernel.check_restorable(knob)?;
        }
        let (from, ours) = match self.entry(knob) {
            // A change of the channels may have set the knob to its current value.
            Some(entry) if entry.with_channels && entry.allows(&found) => {
                (entry.from.clone(), vec![Ours::These(vec![found]), ours])
            }
            Some(entry) if entry.with_channels => (found, vec![ours]),
            Some(entry) => (entry.from.clone(), vec![ours]),
            None => (found, vec![ours]),
        };
        self.journal_entry(Entry {
            knob: knob.clone(),
            from,
            ours,
            theirs: false,
            with_channels: false,
            service,
        })
    }

    fn journal_entry(&mut self, entry: Entry) -> Result<(), ApplyError> {
        let is_new = self.entry(&entry.knob).is_none();
        // A line repeats everything known about the knob, so one intact line suffices if other lines
        // are damaged.
        let mut whole: Vec<Entry> = self.entry(&entry.knob).cloned().into_iter().collect();
        fold(&mut whole, entry);
        let Some(whole) = whole.pop() else { return Ok(()) };
        if let Some(storage) = self.storage.as_mut() {
            match is_new && !whole.knob.is_of_interface() {
                true => storage.append_shared(&whole)?,
                false => storage.append(&whole)?,
            }
        }
        fold(&mut self.entries, whole);
        Ok(())
    }

    /// Records a value that other code of this run set, within [`Self::allow`]. From then on, any other
    /// value counts as another program's. `None` means that the current value is unknown.
    pub fn has_set(&mut self, knob: &Knob, value: Option<Value>) {
        match value {
            Some(value) if self.entry(knob).is_some() => drop(self.last_set.insert(knob.clone(), value)),
            _ => drop(self.last_set.remove(knob)),
        }
    }

    /// Sets a knob to a journalled value, without reading it back; see [`Self::verify`].
    ///
    /// # Errors
    /// Returns an error if the value is not journalled, or if the kernel refuses the value.
    pub fn set(&mut self, knob: &Knob, value: &Value) -> Result<(), ApplyError> {
        if !self.entry(knob).is_some_and(|entry| entry.allows(value)) {
            return Err(ApplyError::NotAllowed {
                knob: knob.on(&self.name).to_string(),
                value: value.to_string(),
            });
        }
        self.kernel.write(knob, value)?;
        self.last_set.insert(knob.clone(), value.clone());
        Ok(())
    }

    /// Reads a knob back and compares it with the last value set.
    ///
    /// # Errors
    /// Returns an error if the values differ, or if the knob cannot be read.
    pub fn verify(&mut self, knob: &Knob) -> Result<(), ApplyError> {
        let Some(wanted) = self.last_set.get(knob).cloned() else { return Ok(()) };
        let found = self.kernel.read(knob)?;
        let taken = match (&wanted, &found) {
            (Value::Qdiscs(_), Value::Qdiscs(_)) => Ours::These(vec![wanted.clone()]).includes(knob, &found),
            _ => knob.same(&found, &wanted),
        };
        if taken {
            return Ok(());
        }
        // This run caused the difference, not another program.
        self.last_set.remove(knob);
        Err(ApplyError::NotTaken {
            knob: knob.on(&self.name).to_string(),
            wanted: wanted.to_string(),
            found: found.to_string(),
        })
    }

    pub(crate) fn entry(&self, knob: &Knob) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.knob == *knob)
    }

    /// Returns a knob's value, or an error if another program has set it.
    fn undisturbed(&mut self, knob: &Knob) -> Result<Value, ApplyError> {
        let found = self.kernel.read(knob)?;
        match self.disturbance(knob, &found) {
            Some(disturbance) => Err(ApplyError::Disturbed(disturbance)),
            None => Ok(found),
        }
    }

    fn disturbance(&self, knob: &Knob, found: &Value) -> Option<Disturbance> {
        let entry = self.entry(knob).filter(|entry| !entry.with_channels)?;
        let expected = self.last_set.get(knob);
        let as_set = match expected {
            // Filters of other programs may be added below the run's clsact qdisc.
            Some(Value::Text(_)) if *knob == Knob::Clsact => *found != Value::Text(clsact::NONE.to_owned()),
            Some(set @ Value::Qdiscs(_)) => Ours::These(vec![set.clone()]).includes(knob, found),
            Some(set) => knob.same(set, found),
            // The code that may set the knob does not report each write. So accept every value of this
            // run.
            None => entry.is_ours(found) || knob.same(&entry.from, found),
        };
        (!as_set).then(|| Disturbance {
            interface: self.name.clone(),
            knob: knob.clone(),
            found: Some(found.clone()),
            expected: expected.cloned(),
        })
    }

    /// Adds a remark for the user.
    pub fn remark(&mut self, text: String) {
        self.remarks.push(text);
    }

    /// Returns the remarks for the user since the last call, such as those of [`Self::disturbances`].
    pub fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    /// Writes the journal again if another program removed or changed it. Otherwise the undo would be
    /// lost if worker and guardian both died.
    fn keep_journal(&mut self) -> Result<(), ApplyError> {
        match self.storage.as_mut().map_or(Ok(None), |storage| storage.write_again(&self.entries)) {
            Ok(None) => {
                let place = self.storage.as_ref().and_then(Storage::taken_place);
                if let Some(path) = place.filter(|_| !std::mem::replace(&mut self.lost_journal, true)) {
                    self.remarks.push(format!(
                        "another file or directory has the name of the journal {}: remove it, so that evenkeel can \
                         write the journal again; if both this process and its guardian are killed before that, the \
                         settings of {} are not restored",
                        path_text(&path),
                        self.name
                    ));
                }
            }
            Ok(Some(rewritten)) => {
                self.lost_journal = false;
                self.remarks.push(rewritten.to_string());
                // The current guardian watches the old file: replace the guardian.
                self.guardian.as_mut().map_or(Ok(()), Guardian::replace).map_err(ApplyError::Guardian)?;
            }
            Err(error) if !self.lost_journal => {
                self.lost_journal = true;
                self.remarks.push(format!(
                    "another program removed or changed the journal, and evenkeel cannot write it again: {error}; if both \
                     this process and its guardian are killed, the settings of {} are not restored",
                    self.name
                ));
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// Returns the knobs that another program has changed or that no longer exist. Also checks the
    /// journal and the guardian, and replaces them if necessary. Call this function several times a
    /// second.
    ///
    /// # Errors
    /// Returns an error if a knob cannot be read, or if no guardian can be started.
    pub fn disturbances(&mut self) -> Result<Vec<Disturbance>, ApplyError> {
        self.sole.iter().for_each(SocketName::answer);
        self.keep_journal()?;
        if let Some(guardian) = &mut self.guardian {
            guardian.keep_alive().map_err(ApplyError::Guardian)?;
        }
        let mut found = Vec::new();
        let knobs = self.entries.iter().map(|entry| (entry.knob.clone(), entry.with_channels));
        for (knob, with_channels) in knobs.collect::<Vec<_>>() {
            match self.kernel.read(&knob) {
                // The run's own change of the channels has removed the queue.
                Err(KnobError::Gone { .. }) if with_channels => {}
                Ok(value) => found.extend(self.disturbance(&knob, &value)),
                Err(KnobError::Gone { .. }) => found.push(Disturbance {
                    interface: self.name.clone(),
                    expected: self.last_set.get(&knob).cloned(),
                    knob,
                    found: None,
                }),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }

    /// Marks knobs that another program has set to a value that the run might have set, too. The
    /// journal alone does not show that another program set such a value. Qdisc trees need no mark,
    /// because no other program creates the run's trees or partly restored trees.
    pub(crate) fn leave_theirs(&mut self) {
        for entry in self.entries.clone() {
            if matches!(entry.from, Value::Qdiscs(_)) || !self.last_set.contains_key(&entry.knob) {
                continue;
            }
            let Ok(found) = self.kernel.read(&entry.knob) else { continue };
            if self.disturbance(&entry.knob, &found).is_some() {
                // Ignore the error: this process keeps the mark in memory.
                let _ = self.journal_entry(Entry { theirs: true, ..entry.clone() });
                fold(&mut self.entries, Entry { theirs: true, ..entry });
            }
        }
    }

    /// Restores every knob that no other program has changed. The run may make changes again afterwards.
    pub fn restore(&mut self) -> Report {
        self.leave_theirs();
        self.roll_back(&self.entries.clone())
    }

    pub(crate) fn roll_back(&mut self, entries: &[Entry]) -> Report {
        self.last_set.clear();
        self.kernel.follow();
        let storage = &mut self.storage;
        roll_back(&mut self.kernel, entries, &mut |entries| {
            // Ignore the error: this process restores the knobs regardless.
            let _ = storage.as_mut().map(|storage| storage.append_all(entries));
        })
    }

    /// Rolls back as [`Self::restore`] does, and ends the run. If a knob fails, the journal stays for
    /// `evenkeel revert`.
    pub fn finish(mut self) -> Result<Report, ApplyError> {
        self.end()
    }

    fn end(&mut self) -> Result<Report, ApplyError> {
        let report = self.restore();
        if let Some(storage) = self.storage.as_mut() {
            // Ignore the error: an unmarked journal is still correct, because a second rollback does not
            // change a restored knob.
            let _ = match report.is_settled() {
                true => storage.shut(),
                false => storage.append_all(&report.settled(&self.entries)),
            };
        }
        // The journal excludes a second run until the guardian has ended.
        if let Some(guardian) = self.guardian.take() {
            guardian.release();
        }
        // Release the name before the journal's lock, because the next run locks the journal first.
        self.sole = None;
        if let Some(storage) = self.storage.take()
            && report.is_settled()
            && let Err(source) = storage.remove()
        {
            return Err(report.journal_stays(&self.name, source));
        }
        Ok(report)
    }
}

impl<K: Kernel, S: Storage> Drop for Run<K, S> {
    fn drop(&mut self) {
        // Ignore the error: the journal stays, for `evenkeel revert`.
        if self.storage.is_some() && !self.keeps {
            let _ = self.end();
        }
    }
}
