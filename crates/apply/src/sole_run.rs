//! Excludes a second run on an interface, even if the second run has another state directory.
//!
//! The journal's lock excludes only runs with the same state directory. It is lost if the directory is
//! removed.

use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_host::{NameHolder, SocketName};

use crate::error::JournalError;
use crate::holder::{name_of_run, number_here, trusted_holder};
use crate::identity::InterfaceIdentity;
use crate::journal_directory::StateDirectory;
use crate::journal_file::is_held;
use crate::journal_lines::Contents;
use crate::namespace::returned;

/// Time to wait for a holder that is exiting.
const PATIENCE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(20);

fn name_of_steering(index: u32) -> String {
    format!("evenkeel/steer/{index}")
}

fn name_of_tuning(index: u32) -> String {
    format!("evenkeel/tune/{index}")
}

/// Takes the name of the interface's run among the sockets of the calling thread's network namespace. Returns
/// `None` if an untrusted process ([`NameHolder::is_trusted`]), or a socket that accepts no connection, holds
/// the name: such a process manages no interface.
pub(crate) fn take(index: u32, interface: &str, journal: &Path) -> Result<Option<SocketName>, JournalError> {
    take_name(&name_of_run(index), |process| held_elsewhere(interface, process, Some(journal)))
}

/// Takes the name as [`take`] does, for the revert of a journal. If the interface returned with another index,
/// also takes the name for this index.
pub(crate) fn take_for_revert(
    interface: &InterfaceIdentity,
    journal: &Path,
) -> Result<Vec<SocketName>, JournalError> {
    let mut taken = Vec::from_iter(take(interface.index, &interface.name, journal)?);
    if let Some(now) = returned(interface)? {
        match take(now.index, &now.name, journal) {
            Ok(name) => taken.extend(name),
            Err(error) => {
                check_unmanaged(&StateDirectory::of_journal(journal).0, &now)?;
                return Err(error);
            }
        }
    }
    Ok(taken)
}

/// Refuses to revert a journal if a session manages its interface, which returned with another index: the
/// session has a journal with another name.
pub(crate) fn check_returned(journal: &Path, interface: &InterfaceIdentity) -> Result<(), JournalError> {
    let state = StateDirectory::of_journal(journal).0;
    returned(interface)?.map_or(Ok(()), |now| check_unmanaged(&state, &now))
}

/// Takes the interface's name for receive steering. Steering that changes no setting has no journal.
///
/// # Errors
/// Returns [`JournalError::HeldElsewhere`] if another process steers.
pub fn steer_alone(index: u32, interface: &str) -> Result<Option<SocketName>, JournalError> {
    take_name(&name_of_steering(index), |process| held_elsewhere(interface, process, None))
}

/// Takes the interface's name for a service that keeps changes of `tune` in effect. Sessions and `tune` do
/// not need this name.
///
/// # Errors
/// Returns [`JournalError::Tuned`] if another service keeps changes in effect.
pub fn tune_alone(index: u32, interface: &str) -> Result<Option<SocketName>, JournalError> {
    let held = |process| JournalError::Tuned { interface: interface.to_owned(), process };
    take_name(&name_of_tuning(index), held)
}

fn held_elsewhere(interface: &str, process: u32, journal: Option<&Path>) -> JournalError {
    let journal = journal.map(Path::to_owned);
    JournalError::HeldElsewhere { interface: interface.to_owned(), process, journal }
}

/// Returns the process that keeps changes of `tune` to an interface in effect.
#[must_use]
pub fn tuner_of(interface: &InterfaceIdentity) -> Option<u32> {
    Some(trusted_holder(&name_of_tuning(interface.index)).ok()??.process)
}

/// Excludes sessions that this directory's journal does not exclude: sessions with another directory,
/// or steering without a journal. A revert uses this function. For a session of this journal, the
/// journal's lock reports a more specific error.
///
/// # Errors
/// Returns [`JournalError::HeldElsewhere`] if such a session is active.
pub fn exclude_sessions(
    state: &StateDirectory,
    interface: &InterfaceIdentity,
) -> Result<Option<SocketName>, JournalError> {
    if is_held(&state.journal_of(interface)).unwrap_or(false) {
        return Ok(None);
    }
    exclude_runs(state, interface)?;
    steer_alone(interface.index, &interface.name)
}

/// Excludes runs with another state directory. For a run with this directory, the journal's lock
/// reports a more specific error.
///
/// # Errors
/// Returns [`JournalError::HeldElsewhere`] if such a run is active.
pub fn exclude_runs(state: &StateDirectory, interface: &InterfaceIdentity) -> Result<(), JournalError> {
    let journal = state.journal_of(interface);
    let is_of_this = || is_held(&journal).unwrap_or(false);
    if is_of_this() {
        return Ok(());
    }
    // Release the name at once, because the run or revert takes the name again.
    match take(interface.index, &interface.name, &journal) {
        // A run with this state directory has begun since.
        Err(_) if is_of_this() => Ok(()),
        taken => taken.map(drop),
    }
}

/// Returns whether a run manages the interface.
pub fn is_managed(index: u32) -> Result<bool, JournalError> {
    Ok(SocketName::holder(&name_of_run(index))?.is_some_and(|holder| holder.is_trusted()))
}

/// Refuses an interface whose settings a session changes. Unlike the start of a run, takes no lock or name.
/// A plan uses this function.
///
/// # Errors
/// Returns [`JournalError::Busy`] or [`JournalError::HeldElsewhere`], which names the session, or an error if
/// a socket call fails.
pub fn check_unmanaged(state: &StateDirectory, interface: &InterfaceIdentity) -> Result<(), JournalError> {
    let path = state.journal_of(interface);
    if let Some(NameHolder { process, .. }) = trusted_holder(&name_of_run(interface.index))? {
        return match StateDirectory::read(&path) {
            // A held lock shows that the run is alive, even in another PID namespace.
            Ok(Some(Contents { header: Some(header), .. })) if is_held(&path).unwrap_or(false) => {
                let holder = number_here(&header).map(|process| Box::new((header, process)));
                Err(JournalError::Busy { path, holder })
            }
            Ok(_) => Err(held_elsewhere(&interface.name, process, Some(&path))),
            // Other users may lack the permission to read the journal.
            Err(_) => Err(JournalError::Busy { path, holder: None }),
        };
    }
    Ok(())
}

/// Returns the process that holds the name of the interface's run. Callers without root privileges use
/// this function, because they cannot read a journal.
#[must_use]
pub fn run_on(interface: &InterfaceIdentity) -> Option<u32> {
    Some(trusted_holder(&name_of_run(interface.index)).ok()??.process)
}

/// Refuses an interface that a session steers, even if the session changes no setting. A plan of `steer`
/// or `tune` uses this function.
///
/// # Errors
/// Returns [`JournalError::HeldElsewhere`], which names the session, or an error if a socket call fails.
pub fn check_unsteered(interface: &InterfaceIdentity) -> Result<(), JournalError> {
    match trusted_holder(&name_of_steering(interface.index))? {
        Some(NameHolder { process, .. }) => Err(held_elsewhere(&interface.name, process, None)),
        None => Ok(()),
    }
}

/// Takes a name. If a trusted process holds the name for longer than [`PATIENCE`], returns the error `held`
/// with this process. Returns `None` if an untrusted process, or a socket that accepts no connection, holds
/// the name.
fn take_name(name: &str, held: impl Fn(u32) -> JournalError) -> Result<Option<SocketName>, JournalError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(taken) = SocketName::take(name)? {
            return Ok(Some(taken));
        }
        match SocketName::holder(name)? {
            Some(holder) if !holder.is_trusted() => return Ok(None),
            Some(NameHolder { process, .. }) if Instant::now() > deadline => return Err(held(process)),
            None if Instant::now() > deadline => return Ok(None),
            _ => std::thread::sleep(POLL),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};

    use super::*;

    /// If another user's program holds the name, root must still be able to restore settings.
    #[test]
    fn a_socket_that_is_no_session_excludes_nothing() {
        let name = format!("evenkeel-squat-{}", std::process::id());
        let deaf = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(deaf.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap()).unwrap();
        let take = || take_name(&name, |process| held_elsewhere("eth0", process, None));
        assert!(take().unwrap().is_none());
        drop(deaf);
        assert!(take().unwrap().is_some());
        let _session = SocketName::take(&name).unwrap();
        assert!(
            matches!(take(), Err(JournalError::HeldElsewhere { process, .. }) if process == std::process::id())
        );
    }

    #[test]
    fn an_error_names_the_command_that_has_the_interface() {
        // No interface has this index.
        let index = u32::MAX - std::process::id();
        let _tuned = tune_alone(index, "eth0").unwrap().unwrap();
        let error = tune_alone(index, "eth0").unwrap_err().to_string();
        let words =
            format!("another service keeps the changes of `tune` to eth0: process {}", std::process::id());
        assert!(error.starts_with(&words) && !error.contains("steer"), "{error}");
        let _steered = steer_alone(index, "eth0").unwrap().unwrap();
        let error = steer_alone(index, "eth0").unwrap_err().to_string();
        assert!(error.starts_with("evenkeel steer or tune manages eth0 already: "), "{error}");
    }
}
