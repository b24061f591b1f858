//! Excludes a second run on an interface, whatever its state directory is.
//!
//! The journal's lock excludes runs with the same state directory only, and is lost when the directory is removed.

use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_host::{NameHolder, SocketName};

use crate::error::JournalError;

/// How long to wait for a holder that is exiting.
const PATIENCE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(20);

/// Takes the interface's name among the sockets of the calling thread's network namespace. None if a user without
/// privileges holds it: such a process manages no interface.
pub(crate) fn take(index: u32, interface: &str, journal: &Path) -> Result<Option<SocketName>, JournalError> {
    let name = format!("evenkeel/run/{index}");
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(held) = SocketName::take(&name)? {
            return Ok(Some(held));
        }
        match SocketName::holder(&name)? {
            Some(holder) if !holder.is_trusted() => return Ok(None),
            Some(NameHolder { process, .. }) if Instant::now() > deadline => {
                let (interface, journal) = (interface.to_owned(), journal.to_owned());
                return Err(JournalError::HeldElsewhere { interface, process, journal });
            }
            _ => std::thread::sleep(POLL),
        }
    }
}
