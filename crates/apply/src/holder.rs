//! The process of a run, from the journal's header and from the name that the run holds among sockets.

use evenkeel_host::{Host, HostError, NameHolder, ProcessIdentity, SocketName};

use crate::journal::Header;

/// Returns the name that a run holds in its network namespace, for an interface's index.
pub(crate) fn name_of_run(index: u32) -> String {
    format!("evenkeel/run/{index}")
}

/// Returns whether the run's process is alive.
pub(crate) fn is_alive(header: &Header) -> bool {
    Host::live().process(header.process.id).map(ProcessIdentity::into) == Some(header.process)
}

/// Returns a live run's number in this process's PID namespace: 0 if it is in another one. Returns `None` if the run has
/// ended. The journal has the number of the run's own PID namespace.
pub(crate) fn number_here(header: &Header) -> Option<u32> {
    if is_alive(header) {
        return Some(header.process.id);
    }
    let holder = trusted_holder(&name_of_run(header.interface.index)).ok().flatten()?;
    Some(holder.process)
}

/// Returns the holder of a name, unless it is a user without privileges.
pub(crate) fn trusted_holder(name: &str) -> Result<Option<NameHolder>, HostError> {
    Ok(SocketName::holder(name)?.filter(NameHolder::is_trusted))
}
