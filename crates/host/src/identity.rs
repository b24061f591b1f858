//! Identities of boot, network namespace and process. They distinguish an object from a later object
//! with the same number.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use evenkeel_model::text::path_text;

use crate::{Host, HostError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceIdentity {
    /// Inode of the namespace's file, as `lsns` and `ls -l /proc/PID/ns` show it. A later namespace may get
    /// the same inode.
    pub inode: u64,
    /// Cookie of the namespace, unique since boot (`SO_NETNS_COOKIE`); `None` before Linux 5.14.
    pub cookie: Option<u64>,
}

/// From include/uapi/asm-generic/socket.h.
const SO_NETNS_COOKIE: libc::c_int = 71;

impl NamespaceIdentity {
    /// Returns the identity of the calling thread's network namespace.
    ///
    /// # Errors
    /// Returns an error if `/proc` or the cookie cannot be read. A missing cookie would look like another
    /// namespace.
    pub fn current() -> Result<Self, HostError> {
        let path = "/proc/thread-self/ns/net";
        let link =
            std::fs::read_link(path).map_err(|source| HostError::Read { path: path.into(), source })?;
        let inode = link
            .to_str()
            .and_then(|text| text.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok())
            .ok_or_else(|| HostError::Format {
                path: path.into(),
                line: 1,
                reason: format!("'{}' names no network namespace", path_text(&link)),
            })?;
        let cookie = match namespace_cookie() {
            Ok(cookie) => Some(cookie),
            // Linux before 5.14 does not have this option.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => None,
            Err(source) => return Err(HostError::Read { path: path.into(), source }),
        };
        Ok(Self { inode, cookie })
    }
}

fn namespace_cookie() -> io::Result<u64> {
    // SAFETY: takes three numbers.
    let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel returned this descriptor, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let (mut cookie, mut length) = (0_u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the value is as long as `length` says.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
}

/// A process, distinguished from a later process with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessIdentity {
    pub id: u32,
    /// Start time in clock ticks since boot (field 22 of `/proc/PID/stat`, proc_pid_stat(5)).
    pub start_ticks: u64,
}

impl Host {
    /// Returns the identity of this boot (random(4)).
    pub fn boot_id(&self) -> Result<String, HostError> {
        self.read("/proc/sys/kernel/random/boot_id")
    }

    /// Returns the process with this id; `None` if the process does not exist or has ended.
    #[must_use]
    pub fn process(&self, id: u32) -> Option<ProcessIdentity> {
        let text = self.read(&format!("/proc/{id}/stat")).ok()?;
        // The name in field 2 may contain any character, even a closing parenthesis.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        if matches!(fields.first(), Some(&"Z" | &"X")) {
            return None;
        }
        Some(ProcessIdentity { id, start_ticks: fields.get(19)?.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn this_process_knows_itself() {
        let host = Host::live();
        let own = host.process(std::process::id()).unwrap();
        assert_eq!(own.id, std::process::id());
        assert_eq!(host.process(own.id), Some(own));
        assert_eq!(host.process(u32::MAX), None);
        assert_eq!(host.boot_id().unwrap().len(), 36);
        let namespace = NamespaceIdentity::current().unwrap();
        assert_eq!(NamespaceIdentity::current().unwrap(), namespace);
    }
}
