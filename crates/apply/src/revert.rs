//! Rolls back a killed run, and reverts kept changes.

use std::io;
use std::path::{Path, PathBuf};

use evenkeel_model::change::{Change, Knob};

use crate::damaged_journal::Damaged;
use crate::error::{ApplyError, JournalError, KnobError};
use crate::holder::is_alive;
use crate::identity::InterfaceIdentity;
use crate::journal::{Entry, Header, Process};
use crate::journal_directory::{StateDirectory, is_kept};
use crate::journal_file::{Held, Standing, Watched, is_held};
use crate::journal_lines::Contents;
use crate::kept_entries::kept;
use crate::kernel::{Kernel, LiveKernel};
use crate::namespace::{Life, life_of};
use crate::rollback::{LeftAlone, Report, roll_back, would_be_restored};
use crate::sole_run;
use crate::storage::Storage;

#[derive(Debug)]
pub struct Leftover {
    pub header: Header,
    pub name: Option<String>,
    pub report: Report,
    pub damaged: Option<Damaged>,
    /// The journal's path, if another program's file, directory or link replaced the journal. Evenkeel
    /// does not remove that object.
    pub supplanted: Option<PathBuf>,
}

impl Leftover {
    /// Returns an error with a summary of the restored settings if a part of the journal was
    /// unreadable.
    fn whole(mut self) -> Result<Self, ApplyError> {
        let Some(mut damaged) = self.damaged.take() else { return Ok(self) };
        let name = self.name.as_deref().unwrap_or(&self.header.interface.name);
        damaged.restored = Some(self.report.summary(name));
        Err(damaged.into())
    }
}

#[derive(Debug)]
pub enum RevertOutcome {
    Nothing,
    /// The journal was from a previous boot, or from a network namespace that no longer exists. The
    /// settings do not exist either, and the journal is removed.
    Void(Header),
    /// The journal is from another network namespace and must be reverted there. Nothing was done.
    OtherNamespace {
        header: Header,
        /// A path that enters the journal's namespace, if found.
        path: Option<PathBuf>,
        journal: PathBuf,
        alive: bool,
    },
    /// No line can be read. The journal is kept, but renamed if possible.
    Unreadable(Damaged),
    /// The settings were rolled back. The journal is removed, except if a setting could not be restored,
    /// if a part was unreadable, or if entries or directories are left for a later revert.
    RolledBack(Box<Leftover>),
}

/// Restores the settings of a journal's run, unless the run is alive. `remove_files` removes the files
/// of `--persist` in the directories of the header, and returns whether all files are gone. Until then
/// the journal keeps these directories.
///
/// # Errors
/// Returns [`JournalError::Busy`] if the run is alive. Returns an error if the journal or the kernel's
/// settings cannot be read, or if the journal cannot be written or removed.
pub fn revert(
    journal: &Path,
    remove_files: &mut dyn FnMut(&Header) -> bool,
) -> Result<RevertOutcome, ApplyError> {
    revert_part(journal, Part::All, remove_files)
}

/// The entries of a journal that a revert restores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part<'k> {
    All,
    /// The kept changes of `evenkeel service`.
    Service,
    /// The kept changes of `evenkeel service` to settings of the host, without these settings.
    ServiceOfHost(&'k [Knob]),
    /// The kept changes of `evenkeel service` that another program has changed since. A revert only removes
    /// them from the journal.
    ServiceLost,
}

impl Part<'_> {
    fn has(self, entry: &Entry, kernel: &mut LiveKernel) -> bool {
        let is_lost = |kernel: &mut LiveKernel| {
            entry.theirs || kernel.read(&entry.knob).is_ok_and(|found| !entry.allows(&found))
        };
        match self {
            Self::All => true,
            Self::Service => entry.service,
            Self::ServiceOfHost(without) => {
                entry.service && !entry.knob.is_of_interface() && !without.contains(&entry.knob)
            }
            Self::ServiceLost => entry.service && !entry.with_channels && is_lost(kernel),
        }
    }
}

/// Reverts the kept changes of `evenkeel service`. Those of `evenkeel tune` stay. If a killed run on the
/// interface cannot be rolled back, for example after a move to another network namespace, restores only
/// settings of the host.
///
/// # Errors
/// Returns an error in the same cases as [`revert`], and if a part of the journal cannot be read.
pub fn revert_of_service(journal: &Path) -> Result<RevertOutcome, ApplyError> {
    revert_part(journal, Part::Service, &mut |_| false)
}

/// Removes from a journal the kept changes of `evenkeel service` that another program has changed since.
/// The values stay.
///
/// # Errors
/// Returns an error in the same cases as [`revert_of_service`].
pub fn forget_lost_of_service(journal: &Path) -> Result<RevertOutcome, ApplyError> {
    revert_part(journal, Part::ServiceLost, &mut |_| false)
}

fn revert_part(
    journal: &Path,
    part: Part<'_>,
    remove_files: &mut dyn FnMut(&Header) -> bool,
) -> Result<RevertOutcome, ApplyError> {
    let name = journal.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Some(contents) = StateDirectory::read(journal)? else { return Ok(RevertOutcome::Nothing) };
    // Check the namespace before locking the journal, because a live run in another namespace holds the
    // lock.
    if !contents.shut
        && let Some(outcome) = elsewhere(&contents, journal)?
    {
        return Ok(outcome);
    }
    if let Some(header) = contents.header.as_ref().filter(|_| !contents.shut) {
        sole_run::check_returned(journal, &header.interface)?;
    }
    if !is_kept(&name) {
        let Some(held) = Held::take_path(journal)? else { return Ok(RevertOutcome::Nothing) };
        return revert_held(held, part, remove_files);
    }
    // Lock the run journal, which excludes a live run: at its end the run would restore the values that
    // it found. Roll back a killed run first, because its changes were made after the kept changes.
    let interface = contents.header.map(|header| header.interface);
    let interface = interface.map_or_else(|| InterfaceIdentity::here(0, "?"), Ok).map_err(KnobError::from)?;
    let header = Header::kept(interface, "revert");
    let lock = match Held::take_working(journal, &header) {
        Ok(None) => return Ok(RevertOutcome::Nothing),
        Ok(Some(mut lock)) => match take_over(&mut lock) {
            Ok(_) => Some(lock),
            Err(ApplyError::Journal(error @ JournalError::Unfinished { .. })) if part == Part::Service => {
                // The journal of the run stays.
                let knobs: Vec<Knob> = lock
                    .read()?
                    .entries
                    .into_iter()
                    .filter(|entry| !entry.theirs)
                    .map(|entry| entry.knob)
                    .collect();
                let part = Part::ServiceOfHost(&knobs);
                let held = Held::take_path(journal)?;
                let outcome =
                    held.map_or(Ok(RevertOutcome::Nothing), |held| revert_held(held, part, remove_files))?;
                return match outcome {
                    RevertOutcome::Nothing => Err(error.into()),
                    outcome => Ok(outcome),
                };
            }
            Err(error) => return Err(error),
        },
        // The directory is full or read-only, so no run can begin during the revert.
        Err(JournalError::File { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let outcome = match Held::take_path(journal)? {
        Some(held) => revert_held(held, part, remove_files),
        None => Ok(RevertOutcome::Nothing),
    };
    // Ignore the error: a lock without entries is not a journal, and the next run removes it.
    let _ = lock.map(Held::remove);
    outcome
}

/// Rolls back a killed run's changes, before a new run on the interface reads the settings. Returns
/// `None` if this function rolled back nothing.
///
/// # Errors
/// Returns an error in the same cases as [`revert`]. Returns an error if a part of the journal cannot
/// be read: the settings of this part may still be in force, and the new run would treat them as the
/// administrator's.
pub fn put_back(journal: &Path) -> Result<Option<Leftover>, ApplyError> {
    match revert(journal, &mut |_| true)? {
        RevertOutcome::Unreadable(damaged) => Err(damaged.into()),
        RevertOutcome::RolledBack(leftover) => leftover.whole().map(Some),
        _ => Ok(None),
    }
}

/// Returns the header of the killed run whose changes are in the journal. Returns `None` if there is no
/// such run, if the run is alive or of a previous boot or another network namespace, or if this user may
/// not read the directory.
pub fn leftover(journal: &Path) -> Result<Option<Header>, ApplyError> {
    Ok(dead_run(journal)?.and_then(|contents| contents.header))
}

/// Returns the killed run as [`leftover`] does, but only for a complete journal, of which a revert
/// restores every setting. For damaged journals, see [`crate::damaged_journal`].
pub fn whole_leftover(journal: &Path) -> Result<Option<Header>, ApplyError> {
    Ok(whole_dead_run(journal)?.and_then(|contents| contents.header))
}

/// Returns the killed run as [`whole_leftover`] does, with the changes that a revert would make.
/// Returns `None` if a revert would make no change, for example because the interface was deleted.
pub fn unfinished(journal: &Path) -> Result<Option<(Header, Vec<Change>)>, ApplyError> {
    let Some(Contents { header: Some(header), entries, .. }) = whole_dead_run(journal)? else {
        return Ok(None);
    };
    let left = unrestored(&header, &entries).into_iter();
    let changes: Vec<Change> =
        left.map(|entry| Change::new(entry.knob.clone(), entry.from.clone())).collect();
    Ok((!changes.is_empty()).then_some((header, changes)))
}

/// Returns the entries that a revert would restore. Returns all entries if this user cannot read the
/// settings.
fn unrestored<'e>(header: &Header, entries: &'e [Entry]) -> Vec<&'e Entry> {
    let Ok(mut kernel) = LiveKernel::of(&header.interface) else { return entries.iter().collect() };
    kernel.follow();
    would_be_restored(&mut kernel, entries)
}

/// Returns the ended run on an interface, if another process holds the journal of the run, for example to roll
/// the run back. The result of the rollback is not known yet.
pub fn run_in_roll_back(
    state: &StateDirectory,
    is_wanted: &dyn Fn(&InterfaceIdentity) -> bool,
) -> Option<Header> {
    let is_rolled_back = |journal: &PathBuf| {
        let contents = StateDirectory::read(journal).ok()??;
        let header = contents.header.filter(|_| !contents.shut && !contents.entries.is_empty())?;
        let is_own = is_wanted(&header.interface) && is_here(&header.interface).unwrap_or(false);
        let is_held = is_own && !header.kept && !is_alive(&header) && is_held(journal).unwrap_or(false);
        is_held.then_some(header)
    };
    state.journals().ok()?.iter().find_map(is_rolled_back)
}

/// Returns the journals of runs whose command named this interface (for example a bridge), but which
/// manage another device. Leaves out unreadable journals.
///
/// # Errors
/// Returns an error if the directory cannot be read.
pub fn journals_below(state: &StateDirectory, interface: &str) -> Result<Vec<PathBuf>, JournalError> {
    let mut journals = state.journals()?;
    journals.retain(|journal| {
        // Ignore the error: other functions report a damaged journal.
        let contents = StateDirectory::read(journal).ok().flatten();
        contents
            .and_then(|contents| contents.header)
            .is_some_and(|header| !header.kept && header.named.as_deref() == Some(interface))
    });
    Ok(journals)
}

fn whole_dead_run(journal: &Path) -> Result<Option<Contents>, ApplyError> {
    let found = match dead_run(journal) {
        Err(ApplyError::Journal(JournalError::Damaged(_))) => None,
        found => found?,
    };
    Ok(found.filter(|contents| contents.damage.is_empty()))
}

fn dead_run(journal: &Path) -> Result<Option<Contents>, ApplyError> {
    let read = match StateDirectory::read(journal) {
        // A user without read access to the directory cannot restore anything either.
        Err(JournalError::Directory { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
            None
        }
        read => read?,
    };
    let Some(contents) = read else { return Ok(None) };
    Ok(is_dead_run(&contents, journal)?.then_some(contents))
}

/// Returns whether a killed run of this boot and namespace has journalled changes.
fn is_dead_run(contents: &Contents, journal: &Path) -> Result<bool, ApplyError> {
    let Some(header) = &contents.header else { return Ok(false) };
    let here = here(header)?;
    let same = header.interface.same_boot(&here) && header.interface.same_namespace(&here);
    // The lock reveals a live run in another PID namespace. The journalled process id means another
    // process here.
    Ok(!contents.entries.is_empty() && same && !is_alive(header) && !is_held(journal).unwrap_or(false))
}

/// Returns the live runs of this boot in the calling thread's namespace, each with the settings that
/// the run manages.
pub fn live_runs(state: &StateDirectory) -> Result<Vec<(Header, Vec<Entry>)>, JournalError> {
    let mut found = Vec::new();
    for journal in state.journals()? {
        // Ignore the error: other functions report a run with a damaged journal.
        let Ok(Some(Contents { header: Some(header), mut entries, shut: false, .. })) =
            StateDirectory::read(&journal)
        else {
            continue;
        };
        let is_live =
            is_here(&header.interface)? && (is_alive(&header) || is_held(&journal).unwrap_or(false));
        entries.retain(|entry| !entry.with_channels);
        if is_live && !header.kept && !entries.is_empty() {
            found.push((header, entries));
        }
    }
    Ok(found)
}

/// Returns whether a journal has changes of a killed run that a revert would restore.
pub(crate) fn is_unfinished(contents: &Contents, journal: &Path) -> Result<bool, ApplyError> {
    let Some(header) = contents.header.as_ref().filter(|_| !contents.shut) else { return Ok(false) };
    Ok(is_dead_run(contents, journal)? && !unrestored(header, &contents.entries).is_empty())
}

/// Returns whether the run of an intact journal has ended without a change that a revert would restore.
/// Returns false if the journal names a directory with files of `--persist`.
pub(crate) fn is_finished(contents: &Contents, journal: &Path) -> Result<bool, ApplyError> {
    let Some(header) = contents.header.as_ref().filter(|header| header.etc.is_empty()) else {
        return Ok(false);
    };
    if !contents.damage.is_empty() {
        return Ok(false);
    }
    let here = here(header)?;
    if contents.shut || !header.interface.same_boot(&here) {
        return Ok(true);
    }
    let is_over = !is_alive(header) && !is_held(journal).unwrap_or(false);
    Ok(is_over && header.interface.same_namespace(&here) && unrestored(header, &contents.entries).is_empty())
}

/// Rolls back the run of one process for the guardian, with the journal that the guardian opened at its
/// start.
pub(crate) fn revert_watched(
    watched: Watched,
    process: Process,
    kernel: LiveKernel,
) -> Result<RevertOutcome, ApplyError> {
    let (mut held, standing) = watched.hold()?;
    let contents = held.read()?;
    let is_of_process = contents.header.as_ref().is_none_or(|header| header.process == process);
    // Another run may have rolled back this run and replaced the journal.
    let is_replaced = standing == Standing::Replaced;
    let is_succeeded = is_replaced && held.named_process().is_some_and(|named| named != process);
    if is_succeeded || !is_of_process {
        return Ok(RevertOutcome::Nothing);
    }
    if contents.shut {
        // The worker restored everything, and died before it removed the journal.
        if standing == Standing::Named {
            held.remove()?;
        }
        return Ok(RevertOutcome::Nothing);
    }
    let path = held.path();
    let outcome = finish(held, contents, Some(kernel), &[], &mut |_| true)?;
    Ok(if is_replaced { outcome.with_supplanted(path) } else { outcome })
}

fn revert_held(
    mut held: Held,
    part: Part<'_>,
    remove_files: &mut dyn FnMut(&Header) -> bool,
) -> Result<RevertOutcome, ApplyError> {
    let mut contents = held.read()?;
    let is_kept = contents.header.as_ref().is_some_and(|header| header.kept);
    // Hold the claim until the journal is removed. Otherwise, each of two concurrent reverts may leave a
    // shared setting to the other revert.
    let _claim = match is_kept && contents.entries.iter().any(|entry| !entry.knob.is_of_interface()) {
        true => held.claim()?,
        false => None,
    };
    let mut others = Vec::new();
    if part != Part::All
        && let Some(header) = contents.header.as_ref().filter(|_| !contents.shut)
    {
        if !contents.damage.is_empty() {
            return Err(Damaged::of(held.path(), &contents).into());
        }
        let mut kernel = LiveKernel::of(&header.interface)?;
        let (own, left) = contents.entries.into_iter().partition(|entry| part.has(entry, &mut kernel));
        (contents.entries, others) = (own, left);
        if contents.entries.is_empty() {
            return Ok(RevertOutcome::Nothing);
        }
    }
    // Exclude runs with another state directory: such a run treats the changed values as the
    // administrator's values.
    let _sole = match &contents.header {
        Some(Header { interface, .. }) if !contents.shut && is_here(interface)? => {
            sole_run::take_for_revert(interface, &held.path())?
        }
        _ => Vec::new(),
    };
    finish(held, contents, None, &others, remove_files)
}

fn is_here(interface: &InterfaceIdentity) -> Result<bool, JournalError> {
    let here = InterfaceIdentity::here(interface.index, &interface.name)?;
    Ok(interface.same_boot(&here) && interface.same_namespace(&here))
}

fn finish(
    mut held: Held,
    contents: Contents,
    kernel: Option<LiveKernel>,
    others: &[Entry],
    remove_files: &mut dyn FnMut(&Header) -> bool,
) -> Result<RevertOutcome, ApplyError> {
    let stays = |header: &Header| !header.etc.is_empty() || !others.is_empty();
    let header = contents.header.clone().filter(|header| !contents.shut && stays(header));
    let (outcome, is_done) = settle(&mut held, contents, kernel)?;
    let is_here = !matches!(outcome, RevertOutcome::OtherNamespace { .. });
    let files = header.filter(|header| is_here && !remove_files(header));
    let finished = match files {
        _ if !is_done => Ok(()),
        None => held.remove(),
        // The settings are restored. The journal stays for the directories, and for the entries that this
        // revert does not restore.
        Some(header) => held.rewrite(&header, others),
    };
    match finished {
        Ok(()) => Ok(outcome),
        Err(JournalError::Supplanted { path }) => Ok(outcome.with_supplanted(path)),
        Err(source) => {
            Err(ApplyError::JournalStays { rolled_back: summary(&outcome), source: Box::new(source) })
        }
    }
}

impl RevertOutcome {
    /// Records the path at which another program's file has replaced the journal.
    fn with_supplanted(mut self, path: PathBuf) -> Self {
        if let Self::RolledBack(leftover) = &mut self {
            leftover.supplanted = Some(path);
        }
        self
    }
}

fn summary(outcome: &RevertOutcome) -> String {
    match outcome {
        RevertOutcome::RolledBack(leftover) => leftover.report.summary(&leftover.header.interface.name),
        _ => "nothing is left to restore".to_owned(),
    }
}

/// Returns [`RevertOutcome::OtherNamespace`] if the journal's run is in another namespace that may still
/// exist. This function changes no settings.
fn elsewhere(contents: &Contents, journal: &Path) -> Result<Option<RevertOutcome>, ApplyError> {
    let Some(header) = &contents.header else { return Ok(None) };
    let here = here(header)?;
    if !header.interface.same_boot(&here) {
        return Ok(None);
    }
    let path = match life_of(&header.interface, &here) {
        Life::Here | Life::Gone => return Ok(None),
        Life::Alive(path) => path,
        Life::Unknown => None,
    };
    let (alive, header, journal) = (is_alive(header), header.clone(), journal.to_owned());
    Ok(Some(RevertOutcome::OtherNamespace { header, path, journal, alive }))
}

/// Restores the settings of a journal that belong to this boot and namespace. Returns the outcome, and
/// whether the caller may remove the journal. Renames a damaged journal when nothing more can be
/// restored.
fn settle(
    held: &mut Held,
    contents: Contents,
    kernel: Option<LiveKernel>,
) -> Result<(RevertOutcome, bool), ApplyError> {
    // If the directory is read-only, the journal keeps its name.
    let set_aside = |held: &Held, contents: &Contents| {
        Damaged::of(held.set_aside().unwrap_or_else(|_| held.path()), contents)
    };
    if contents.shut {
        return Ok((RevertOutcome::Nothing, true));
    }
    if let Some(outcome) = elsewhere(&contents, &held.path())? {
        return Ok((outcome, false));
    }
    let Some(header) = contents.header.clone() else {
        return Ok((RevertOutcome::Unreadable(set_aside(held, &contents)), false));
    };
    let Contents { entries, damage, .. } = &contents;
    if is_bare_lock(&header, entries) && damage.is_empty() {
        return Ok((RevertOutcome::Nothing, true));
    }
    let here = here(&header)?;
    let namespace_is_gone = !header.interface.same_namespace(&here);
    if !header.interface.same_boot(&here) || namespace_is_gone && header.interface.device.is_none() {
        return Ok((RevertOutcome::Void(header), true));
    }
    let mut kernel = match kernel {
        Some(kernel) => kernel,
        None => LiveKernel::of(&header.interface)?,
    };
    if namespace_is_gone {
        kernel.forget_namespace();
    }
    kernel.follow();
    let shared = match header.kept && !namespace_is_gone {
        true => kept_elsewhere(held, &header, entries, &mut kernel),
        false => Vec::new(),
    };
    let is_own = |entry: &&Entry| !shared.iter().any(|left| left.knob == entry.knob);
    let own: Vec<Entry> = entries.iter().filter(is_own).cloned().collect();
    let mut report = roll_back(&mut kernel, &own, &mut |entries| {
        // Ignore the error, for example of a damaged journal: this process restores the settings
        // regardless.
        let _ = held.append_all(entries);
    });
    report.left_alone.extend(shared);
    let name = kernel.current_name()?;
    if !report.is_settled() {
        // Ignore the error: without the marks, the next revert examines these settings again.
        let _ = held.append_all(&report.settled(entries));
        let damaged = (!damage.is_empty()).then(|| Damaged::of(held.path(), &contents));
        let leftover = Leftover { header, name, report, damaged, supplanted: None };
        return Ok((RevertOutcome::RolledBack(Box::new(leftover)), false));
    }
    if damage.is_empty() {
        if namespace_is_gone && report.restored.is_empty() {
            return Ok((RevertOutcome::Void(header), true));
        }
        let leftover = Leftover { header, name, report, damaged: None, supplanted: None };
        return Ok((RevertOutcome::RolledBack(Box::new(leftover)), true));
    }
    let damaged = Some(set_aside(held, &contents));
    let leftover = Leftover { header, name, report, damaged, supplanted: None };
    Ok((RevertOutcome::RolledBack(Box::new(leftover)), false))
}

/// Returns the settings of the namespace or host that must stay, because kept changes of another interface
/// have set the same value.
fn kept_elsewhere(
    held: &Held,
    header: &Header,
    entries: &[Entry],
    kernel: &mut LiveKernel,
) -> Vec<LeftAlone> {
    let shared: Vec<&Entry> = entries.iter().filter(|entry| !entry.knob.is_of_interface()).collect();
    if shared.is_empty() {
        return Vec::new();
    }
    let (state, _) = StateDirectory::of_journal(&held.path());
    // Ignore the error: other functions report an unreadable journal.
    let kept = kept(&state).unwrap_or_default();
    let left = shared.into_iter().filter_map(|entry| {
        let found = kernel.read(&entry.knob).ok().filter(|found| !entry.knob.same(found, &entry.from))?;
        let keeps = |(interface, other): &&(InterfaceIdentity, Entry)| {
            !interface.same_interface(&header.interface)
                && other.knob == entry.knob
                && !other.theirs
                && other.is_ours(&found)
                && !other.knob.same(&found, &other.from)
        };
        let (keeper, other) = kept.iter().find(keeps)?;
        Some(LeftAlone {
            knob: entry.knob.clone(),
            found,
            ours: entry.ours.clone(),
            from: entry.from.clone(),
            keeper: Some((keeper.name.clone(), other.from.clone())),
        })
    });
    left.collect()
}

/// Returns whether the journal was only the lock of [`crate::Lasting`] or of a revert. The kept changes are
/// in the kept journal.
fn is_bare_lock(header: &Header, entries: &[Entry]) -> bool {
    header.kept && entries.is_empty()
}

fn here(header: &Header) -> Result<InterfaceIdentity, JournalError> {
    Ok(InterfaceIdentity::here(header.interface.index, &header.interface.name)?)
}

/// Rolls back a previous run's changes before a new run takes the journal. Returns `None` if there was
/// nothing to roll back.
///
/// # Errors
/// Returns an error if a setting could not be restored or read: the new run would treat its value as
/// the administrator's. Returns an error if the journal is damaged or from another network namespace.
pub(crate) fn take_over(held: &mut Held) -> Result<Option<Leftover>, ApplyError> {
    let contents = held.read()?;
    take_over_contents(held, contents)
}

pub(crate) fn take_over_contents(
    held: &mut Held,
    contents: Contents,
) -> Result<Option<Leftover>, ApplyError> {
    let (outcome, _) = settle(held, contents, None)?;
    let leftover = match outcome {
        RevertOutcome::Nothing | RevertOutcome::Void(_) => return Ok(None),
        RevertOutcome::OtherNamespace { header, path, .. } => {
            return Err(JournalError::ElsewhereFirst { header: Box::new(header), path }.into());
        }
        RevertOutcome::Unreadable(damaged) => return Err(damaged.into()),
        RevertOutcome::RolledBack(leftover) => *leftover,
    };
    if let Some((knob, error)) = leftover.report.failed.first() {
        let name = leftover.name.as_deref().unwrap_or(&leftover.header.interface.name);
        let (path, knob, reason) = (held.path(), knob.on(name).to_string(), error.to_string());
        return Err(JournalError::Unfinished { path, knob, reason }.into());
    }
    leftover.whole().map(Some)
}

/// Rolls back killed runs on an interface that had other indices before it left this namespace and returned.
/// Returns the rollback of the newest such run that had changes.
///
/// # Errors
/// Returns an error in the same cases as [`take_over`], or if such a run has not ended.
pub(crate) fn take_over_earlier(
    state: &StateDirectory,
    interface: &InterfaceIdentity,
) -> Result<Option<Leftover>, ApplyError> {
    let own = state.journal_of(interface);
    let mut newest = None;
    for path in state.run_journals_of(interface)?.into_iter().filter(|path| *path != own) {
        let Some(mut held) = Held::take_path(&path)? else { continue };
        newest = newest.or(take_over(&mut held)?);
        held.remove()?;
    }
    Ok(newest)
}

/// Refuses an interface that was moved here with settings of a run in another network namespace: the
/// interface's current values are not the administrator's.
///
/// # Errors
/// Returns an error that names the run and its namespace, or if a journal cannot be read.
pub fn check_elsewhere(state: &StateDirectory, interface: &InterfaceIdentity) -> Result<(), ApplyError> {
    if interface.device.is_none() {
        return Ok(());
    }
    for journal in state.journals()? {
        let Some(contents) = StateDirectory::read(&journal)? else { continue };
        let Some(header) = contents.header else { continue };
        let same_device =
            header.interface.same_boot(interface) && header.interface.device == interface.device;
        let is_changed = contents.entries.iter().any(|entry| entry.knob.is_of_interface()) && !header.kept;
        if !same_device || !is_changed || header.interface.same_namespace(interface) {
            continue;
        }
        let path = match life_of(&header.interface, interface) {
            Life::Alive(path) => path,
            _ => None,
        };
        return Err(JournalError::ElsewhereFirst { header: Box::new(header), path }.into());
    }
    Ok(())
}
