//! A name that a process reserves in its network namespace, as an abstract socket (unix(7)).
//!
//! Such a name needs no file, belongs to one network namespace, and is released when the process ends.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};

use crate::HostError;

/// A reserved name. Dropping this value releases the name.
#[derive(Debug)]
pub struct SocketName {
    socket: UnixListener,
}

/// Maximum number of pending connections that [`SocketName::answer`] closes: the default of
/// `net.core.somaxconn`.
const MOST_PENDING: usize = 4096;

/// Name that a service reserves in its network namespace.
pub const SERVICE_NAME: &str = "evenkeel/service";
/// Control socket of a service whose configuration names no other.
pub const DEFAULT_SOCKET: &str = "/run/evenkeel/control.sock";

/// User id of a holder that accepts no connection.
const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameHolder {
    /// Process id; 0 if the process is in another PID namespace, or accepts no connection.
    pub process: u32,
    pub user: u32,
}

impl NameHolder {
    /// Returns whether the process runs as root or as this process's user. The check is needed because
    /// any user can bind any name.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.user == 0 || self.user == nix::unistd::geteuid().as_raw()
    }
}

/// Returns the path of the control socket of the service in the calling thread's network namespace. Returns
/// `None` if no trusted service runs, the service listens at no path, or this user may not read its open
/// files.
#[must_use]
pub fn service_socket() -> Option<PathBuf> {
    let holder = SocketName::holder(SERVICE_NAME).ok()??;
    if holder.is_trusted() { listening_path(holder.process) } else { None }
}

/// Returns the first path at which a process listens; `None` if there is none, or this user may not read the
/// process's open files.
fn listening_path(process: u32) -> Option<PathBuf> {
    /// `__SO_ACCEPTCON`, the flags of a listening socket (net/unix/af_unix.c, `unix_seq_show`).
    const LISTENS: &str = "00010000";
    let inode = |link: PathBuf| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned());
    let files = std::fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten();
    let own: HashSet<String> =
        files.filter_map(|file| inode(std::fs::read_link(file.path()).ok()?)).collect();
    // The table of the process is that of its network namespace.
    let table = std::fs::read_to_string(format!("/proc/{process}/net/unix")).ok()?;
    table.lines().find_map(|line| {
        let (before, path) = line.split_once(" /")?;
        let fields: Vec<&str> = before.split_whitespace().collect();
        // Number, references, protocol, flags, type, state, inode.
        let is_own = fields.get(3) == Some(&LISTENS) && own.contains(*fields.get(6)?);
        is_own.then(|| PathBuf::from(format!("/{path}")))
    })
}

impl SocketName {
    /// Reserves a name in the calling thread's network namespace; `None` if the name is in use.
    ///
    /// # Errors
    /// Returns an error if a socket call fails.
    pub fn take(name: &str) -> Result<Option<Self>, HostError> {
        let bound =
            SocketAddr::from_abstract_name(name).and_then(|address| UnixListener::bind_addr(&address));
        match bound {
            Ok(socket) => {
                let failed = |source| HostError::SocketName { name: name.to_owned(), source };
                socket.set_nonblocking(true).map_err(failed)?;
                Ok(Some(Self { socket }))
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(source) => Err(HostError::SocketName { name: name.to_owned(), source }),
        }
    }

    /// Accepts and closes pending connections of [`Self::holder`], which does not trust a holder whose
    /// queue is full. Call this function several times a second.
    pub fn answer(&self) {
        let _ = self.socket.incoming().take(MOST_PENDING).take_while(Result::is_ok).count();
    }

    /// Returns the process that has reserved a name in the calling thread's network namespace, if any. If the
    /// queue of its socket is full, the process accepts no connections and is not trusted.
    ///
    /// # Errors
    /// Returns an error if a socket call fails.
    pub fn holder(name: &str) -> Result<Option<NameHolder>, HostError> {
        let peer = || {
            // Do not wait: the other process may accept no connections, and its queue may be full.
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let socket: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
            connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
            getsockopt(&socket, PeerCredentials)
        };
        match peer() {
            Ok(peer) => Ok(Some(NameHolder { process: peer.pid().unsigned_abs(), user: peer.uid() })),
            Err(Errno::ECONNREFUSED) => Ok(None),
            Err(Errno::EAGAIN) => Ok(Some(NameHolder { process: 0, user: NOBODY })),
            Err(error) => Err(HostError::SocketName { name: name.to_owned(), source: error.into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nix::sys::socket::{Backlog, bind, listen};

    use super::*;

    #[test]
    fn a_name_has_one_holder_until_it_is_dropped() {
        let name = format!("evenkeel-test-{}", std::process::id());
        assert_eq!(SocketName::holder(&name).unwrap(), None);
        let held = SocketName::take(&name).unwrap();
        assert!(held.is_some() && SocketName::take(&name).unwrap().is_none());
        let holder = SocketName::holder(&name).unwrap().unwrap();
        assert!(holder.process == std::process::id() && holder.is_trusted(), "{holder:?}");
        drop(held);
        assert!(SocketName::take(&name).unwrap().is_some());
    }

    #[test]
    fn a_listening_path_is_found_by_its_process() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a socket");
        let listener = UnixListener::bind(&path).unwrap();
        // This process may also listen for another test.
        let mut holder = std::process::Command::new("sleep");
        holder.arg("60").stdin(OwnedFd::from(listener));
        let mut holder = holder.spawn().unwrap();
        assert_eq!(listening_path(holder.id()), Some(path));
        holder.kill().unwrap();
        holder.wait().unwrap();
        assert_eq!(listening_path(holder.id()), None);
    }

    #[test]
    fn a_holder_that_answers_is_trusted_after_any_number_of_questions() {
        let name = format!("evenkeel-often-{}", std::process::id());
        let held = SocketName::take(&name).unwrap().unwrap();
        let ask = || SocketName::holder(&name).unwrap().is_some_and(|holder| holder.is_trusted());
        let mut questions = 0;
        while ask() && questions < 2 * MOST_PENDING {
            questions += 1;
        }
        held.answer();
        assert!(ask(), "after {questions} questions");
    }

    #[test]
    fn a_socket_that_cannot_be_asked_is_not_trusted() {
        let name = format!("evenkeel-odd-{}", std::process::id());
        let address = UnixAddr::new_abstract(name.as_bytes()).unwrap();
        let stream = || socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        for is_listening in [false, true] {
            let (odd, client) = (stream(), stream());
            bind(odd.as_raw_fd(), &address).unwrap();
            if is_listening {
                // One connection fills the queue.
                listen(&odd, Backlog::new(0).unwrap()).unwrap();
                connect(client.as_raw_fd(), &address).unwrap();
            }
            let holder = SocketName::holder(&name).unwrap();
            assert!(SocketName::take(&name).unwrap().is_none());
            assert!(!holder.is_some_and(|holder| holder.is_trusted()), "{is_listening} {holder:?}");
        }
    }
}
