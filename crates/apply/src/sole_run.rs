//! Excludes a second run on an interface, whatever its state directory is.
//!
//! The journal's lock excludes runs with the same state directory only, and is lost when the directory is removed.

use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_host::{NameHolder, SocketName};

use crate::error::JournalError;
use crate::identity::InterfaceIdentity;
use crate::journal_directory::StateDirectory;
use crate::journal_file::is_held;

/// How long to wait for a holder that is exiting.
const PATIENCE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(20);

fn name_of_run(index: u32) -> String {
    format!("evenkeel/run/{index}")
}

/// Takes the interface's name among the sockets of the calling thread's network namespace. None if a user without
/// privileges holds it: such a process manages no interface.
pub(crate) fn take(index: u32, interface: &str, journal: &Path) -> Result<Option<SocketName>, JournalError> {
    take_name(&name_of_run(index), interface, Some(journal))
}

/// The same for receive steering, which may change no setting and have no journal.
///
/// # Errors
/// [`JournalError::HeldElsewhere`] while another process steers.
pub fn steer_alone(index: u32, interface: &str) -> Result<Option<SocketName>, JournalError> {
    take_name(&format!("evenkeel/steer/{index}"), interface, None)
}

/// Excludes sessions that this directory's journal does not, for a revert: with another directory, or steering without a
/// journal. A session of the journal is left to its lock, whose error says more.
///
/// # Errors
/// [`JournalError::HeldElsewhere`] while such a session works.
pub fn exclude_sessions(
    state: &StateDirectory,
    interface: &InterfaceIdentity,
) -> Result<Option<SocketName>, JournalError> {
    let journal = state.journal_of(interface);
    if is_held(&journal).unwrap_or(false) {
        return Ok(None);
    }
    // Released at once: the revert of the journal takes it again.
    drop(take(interface.index, &interface.name, &journal)?);
    steer_alone(interface.index, &interface.name)
}

/// Whether a run changes settings of the interface now.
///
/// # Errors
/// When the kernel refuses a socket.
pub fn is_managed(index: u32) -> Result<bool, JournalError> {
    Ok(SocketName::holder(&name_of_run(index))?.is_some_and(|holder| holder.is_trusted()))
}

fn take_name(
    name: &str,
    interface: &str,
    journal: Option<&Path>,
) -> Result<Option<SocketName>, JournalError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(held) = SocketName::take(name)? {
            return Ok(Some(held));
        }
        match SocketName::holder(name)? {
            Some(holder) if !holder.is_trusted() => return Ok(None),
            Some(NameHolder { process, .. }) if Instant::now() > deadline => {
                let (interface, journal) = (interface.to_owned(), journal.map(Path::to_owned));
                return Err(JournalError::HeldElsewhere { interface, process, journal });
            }
            _ => std::thread::sleep(POLL),
        }
    }
}
