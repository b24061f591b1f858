//! Finishing what a run that died could not.

use std::path::Path;

use evenkeel_host::Host;

use crate::error::{ApplyError, JournalError};
use crate::journal::{Entry, Header, InterfaceIdentity, Process, Storage, parse};
use crate::kernel::LiveKernel;
use crate::rollback::{Report, roll_back};
use crate::state::{Held, is_absent, working_journal_of};

/// What a run that died had left behind, and what became of it.
#[derive(Debug)]
pub struct Leftover {
    /// Who had run.
    pub header: Header,
    /// Name of the interface now; none if it is gone.
    pub name: Option<String>,
    /// What became of each setting.
    pub report: Report,
}

/// How the revert of one journal ended.
#[derive(Debug)]
pub enum RevertOutcome {
    /// There was nothing to put back.
    Nothing,
    /// Of an earlier boot, or of a network namespace that is gone: its settings are gone with it, and the
    /// journal is removed.
    Void(Header),
    /// Of another network namespace, where it has to be reverted; nothing was done.
    OtherNamespace(Header),
    /// Rolled back. The journal is removed unless something failed.
    RolledBack(Box<Leftover>),
}

/// Puts back what the run of a journal had changed, unless that run is alive.
///
/// # Errors
/// [`JournalError::Busy`] while the run is alive; when the journal cannot be read, or the kernel not be
/// asked.
pub fn revert(journal: &Path) -> Result<RevertOutcome, ApplyError> {
    revert_of(journal, None)
}

/// What a run that died has left behind in a journal and nobody has put back yet; none if there is no such run, or
/// it is alive, or of an earlier boot.
///
/// # Errors
/// When the journal cannot be read.
pub fn leftover(journal: &Path) -> Result<Option<Header>, ApplyError> {
    let text = match std::fs::read(journal) {
        Ok(text) => text,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(source) => {
            return Err(JournalError::File { action: "read", path: journal.to_owned(), source }.into());
        }
    };
    let Some((header, entries)) = parse(&text, journal)? else { return Ok(None) };
    let worker = Host::live().process(header.process.id).map(Process::from);
    let stands = !entries.is_empty() && worker != Some(header.process);
    let here = here(&header)?;
    let same = header.interface.same_boot(&here) && header.interface.same_namespace(&here);
    Ok((stands && same).then_some(header))
}

/// [`revert`], but only for the run of one process: a journal that another run has taken over is not ours.
pub(crate) fn revert_of(journal: &Path, process: Option<Process>) -> Result<RevertOutcome, ApplyError> {
    match working_journal_of(journal) {
        Some(working) if journal.exists() => {
            // Whoever works on the interface now would put back what it found there, over what is put back here; and
            // who died has to be cleared away first, because its changes lie on top.
            let Some(mut lock) = Held::take(&working, true)? else { return Ok(RevertOutcome::Nothing) };
            take_over(&mut lock)?;
            let outcome = revert_held(journal, process);
            lock.remove()?;
            outcome
        }
        _ => revert_held(journal, process),
    }
}

fn revert_held(journal: &Path, process: Option<Process>) -> Result<RevertOutcome, ApplyError> {
    let Some(mut held) = Held::take(journal, false)? else { return Ok(RevertOutcome::Nothing) };
    let Some((header, entries)) = held.read()? else {
        held.remove()?;
        return Ok(RevertOutcome::Nothing);
    };
    if process.is_some_and(|process| process != header.process) {
        return Ok(RevertOutcome::Nothing);
    }
    if is_bare_lock(&header, &entries) {
        held.remove()?;
        return Ok(RevertOutcome::Nothing);
    }
    let (outcome, settled) = settle(&header, &entries)?;
    if settled {
        held.remove()?;
    }
    Ok(outcome)
}

/// Rolls back as far as the journal is of here and now; whether the journal is done with.
fn settle(header: &Header, entries: &[Entry]) -> Result<(RevertOutcome, bool), ApplyError> {
    let here = here(header)?;
    // Two namespaces do not have one inode at the same time.
    let same_inode = header.interface.namespace == here.namespace;
    if !header.interface.same_boot(&here) || same_inode && !header.interface.same_namespace(&here) {
        return Ok((RevertOutcome::Void(header.clone()), true));
    }
    if !same_inode {
        return Ok((RevertOutcome::OtherNamespace(header.clone()), false));
    }
    let leftover = roll_back_here(header, entries)?;
    let settled = leftover.report.is_settled();
    Ok((RevertOutcome::RolledBack(Box::new(leftover)), settled))
}

/// Whether a journal was held only to keep others away, by [`crate::Lasting`]: its changes are in another one.
fn is_bare_lock(header: &Header, entries: &[Entry]) -> bool {
    header.kept && entries.is_empty()
}

fn here(header: &Header) -> Result<InterfaceIdentity, JournalError> {
    Ok(InterfaceIdentity::current(header.interface.index, &header.interface.name)?)
}

fn roll_back_here(header: &Header, entries: &[Entry]) -> Result<Leftover, ApplyError> {
    let mut kernel = LiveKernel::open(header.interface.index, &header.interface.name)?;
    let report = roll_back(&mut kernel, entries);
    Ok(Leftover { header: header.clone(), name: kernel.current_name()?, report })
}

/// Before a new run takes a journal over: puts back what an earlier one has left in it, and empties it.
pub(crate) fn take_over(held: &mut Held) -> Result<Option<Leftover>, ApplyError> {
    let Some((header, entries)) = held.read()? else {
        // The beginning of a header that a crash cut short would make the new one unreadable.
        held.clear()?;
        return Ok(None);
    };
    if is_bare_lock(&header, &entries) {
        held.clear()?;
        return Ok(None);
    }
    let here = here(&header)?;
    // Of an earlier boot, or of an earlier namespace with the same inode: gone with it.
    let void = !header.interface.same_boot(&here) || !header.interface.same_namespace(&here);
    let leftover = if void { None } else { Some(roll_back_here(&header, &entries)?) };
    if let Some(leftover) = &leftover
        && let Some((knob, error)) = leftover.report.failed.first()
    {
        let name = leftover.name.as_deref().unwrap_or(&header.interface.name);
        let (path, knob, reason) = (held.path().to_owned(), knob.on(name).to_string(), error.to_string());
        return Err(JournalError::Unfinished { path, knob, reason }.into());
    }
    held.clear()?;
    Ok(leftover)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::journal::line;
    use crate::state::StateDirectory;

    #[test]
    fn a_header_that_was_cut_short_does_not_spoil_the_next_runs_journal() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(directory.path());
        let interface = InterfaceIdentity::current(7, "evk").unwrap();
        let header = Header::new(interface.clone(), "fair");
        let whole = line(&header);
        std::fs::write(state.journal_of(&interface), &whole[..whole.len() / 2]).unwrap();
        let mut held = state.take(&interface).unwrap();
        assert!(take_over(&mut held).unwrap().is_none());
        held.append(&whole).unwrap();
        assert_eq!(held.read().unwrap().unwrap().0, header);
    }
}
