//! Finds the process of a run, from the journal's header and from the socket name that the run holds.

use evenkeel_host::{Host, HostError, NameHolder, ProcessIdentity, SocketName};

use crate::journal::Header;

/// Returns the name that a run holds in its network namespace, for an interface's index.
pub(crate) fn name_of_run(index: u32) -> String {
    format!("evenkeel/run/{index}")
}

pub(crate) fn is_alive(header: &Header) -> bool {
    Host::live().process(header.process.id).map(ProcessIdentity::into) == Some(header.process)
}

/// Returns a live run's process id in this process's PID namespace: 0 if the run is in another PID
/// namespace. Returns `None` if the run has ended, or if its process cannot be found. The journal has the id
/// in the run's own PID namespace.
pub(crate) fn number_here(header: &Header) -> Option<u32> {
    if is_alive(header) {
        return Some(header.process.id);
    }
    let holder = trusted_holder(&name_of_run(header.interface.index)).ok().flatten()?;
    Some(holder.process)
}

/// Returns the holder of a name; `None` without a holder, or if the holder is neither root nor this user
/// ([`NameHolder::is_trusted`]).
pub(crate) fn trusted_holder(name: &str) -> Result<Option<NameHolder>, HostError> {
    Ok(SocketName::holder(name)?.filter(NameHolder::is_trusted))
}
