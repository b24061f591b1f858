//! The owner of a socket: the process that has the socket open, and the last CPU of this process.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::{Host, HostError};

/// A process that has a socket open; of several such processes, the process with the smallest id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub process: u32,
    /// Process name, as in `/proc/PID/comm`: at most 15 bytes.
    pub name: String,
    /// Last CPU of the first thread (field 39 of `/proc/PID/stat`). This CPU reads the socket if the
    /// process has one thread, or if all its threads run on this CPU.
    pub processor: Option<u32>,
}

/// Owners of sockets by inode, cached because a search must read the open files of every process.
#[derive(Debug, Default)]
pub struct Owners {
    found: HashMap<u32, u32>,
    /// Sockets without an owner in the last search, for example because the process's files are unreadable.
    hidden: HashSet<u32>,
    searched: Option<Instant>,
    /// Whether the last search could read the sockets of all processes of the host.
    is_complete: bool,
}

/// Minimum interval between two searches for new sockets, because a search reads the open files of all
/// processes.
const SEARCH_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum interval between two searches for sockets whose owner the last search did not find, for example
/// because the process's files are unreadable.
const HIDDEN_INTERVAL: Duration = Duration::from_secs(10);
/// The initial PID namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const INITIAL: &str = "pid:[4026531836]";

impl Owners {
    /// Returns whether no process has the socket open. If `false`, a socket without an owner may belong to a
    /// process that the search could not read or see: a process of another user (without `CAP_SYS_PTRACE`),
    /// or of another PID namespace.
    #[must_use]
    pub fn is_without(&self, inode: u32) -> bool {
        inode == 0 || self.is_complete && self.hidden.contains(&inode)
    }

    /// Returns the owners of sockets, by inode. Ignores processes whose open files are unreadable.
    ///
    /// # Errors
    /// Returns an error if `/proc` cannot be read.
    pub fn of(
        &mut self,
        host: &Host,
        inodes: impl IntoIterator<Item = u32>,
    ) -> Result<HashMap<u32, Owner>, HostError> {
        let wanted: HashSet<u32> = inodes.into_iter().filter(|inode| *inode != 0).collect();
        self.found.retain(|inode, _| wanted.contains(inode));
        let due = |interval| self.searched.is_none_or(|searched| searched.elapsed() >= interval);
        let missing = |inode: &&u32| !self.found.contains_key(*inode);
        let is_new = |inode: &u32| !self.hidden.contains(inode);
        if due(SEARCH_INTERVAL) && wanted.iter().filter(missing).any(is_new)
            || due(HIDDEN_INTERVAL) && wanted.iter().any(|inode| missing(&inode))
        {
            self.search(host, &wanted)?;
            self.hidden = wanted.into_iter().filter(|inode| !self.found.contains_key(inode)).collect();
            self.searched = Some(Instant::now());
        }
        // Read each process only once, because it may have many sockets.
        let mut processes: HashMap<u32, Option<Owner>> = HashMap::new();
        let mut owners = HashMap::new();
        for (inode, process) in &self.found {
            let owner = processes.entry(*process).or_insert_with(|| host.owner(*process));
            owners.extend(owner.clone().map(|owner| (*inode, owner)));
        }
        // If a process has ended, another process may own its sockets, so search for them again.
        self.found.retain(|inode, _| owners.contains_key(inode));
        Ok(owners)
    }

    fn search(&mut self, host: &Host, wanted: &HashSet<u32>) -> Result<(), HostError> {
        let mut processes = host.process_numbers()?;
        processes.sort_unstable_by(|one, other| other.cmp(one));
        // The option hidepid of /proc hides the first process, too.
        self.is_complete = processes.contains(&1)
            && std::fs::read_link(host.path("/proc/self/ns/pid"))
                .is_ok_and(|link| link.as_os_str() == INITIAL);
        let is_denied = |error: &std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
        for process in processes {
            let directory = std::fs::read_dir(host.path(&format!("/proc/{process}/fd")));
            self.is_complete &= !directory.as_ref().err().is_some_and(is_denied);
            for entry in directory.into_iter().flatten().flatten() {
                let link = std::fs::read_link(entry.path());
                self.is_complete &= !link.as_ref().err().is_some_and(is_denied);
                let inode = link.ok().and_then(|link| {
                    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
                });
                if let Some(inode) = inode.filter(|inode| wanted.contains(inode)) {
                    self.found.insert(inode, process);
                }
            }
        }
        Ok(())
    }
}

impl Host {
    /// Returns a process as the owner of a socket; `None` if the process has ended, or its `stat` file is
    /// unreadable.
    #[must_use]
    pub fn owner(&self, process: u32) -> Option<Owner> {
        let text = self.read(&format!("/proc/{process}/stat")).ok()?;
        let (name, fields) = text.rsplit_once(')')?;
        let name = name.split_once('(')?.1.to_owned();
        let processor = fields.split_ascii_whitespace().nth(36).and_then(|field| field.parse().ok());
        Some(Owner { process, name, processor })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_socket_of_this_process_is_its_own() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let link = std::fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        let inode: u32 = link.to_str().unwrap()["socket:[".len()..].trim_end_matches(']').parse().unwrap();
        let mut owners = Owners::default();
        let found = owners.of(&Host::live(), [inode, 0]).unwrap();
        assert_eq!(found[&inode].process, std::process::id());
        assert!(found[&inode].processor.is_some());
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn a_socket_without_a_process_may_belong_to_a_process_that_is_not_seen() {
        let is_without = |numbers: &[u32], namespace: &str| {
            let directory = tempfile::tempdir().unwrap();
            let proc = directory.path().join("proc");
            for number in numbers {
                std::fs::create_dir_all(proc.join(format!("{number}/fd"))).unwrap();
            }
            std::fs::create_dir_all(proc.join("self/ns")).unwrap();
            std::os::unix::fs::symlink(namespace, proc.join("self/ns/pid")).unwrap();
            let mut owners = Owners::default();
            assert!(!owners.is_without(77), "no search yet");
            owners.of(&Host::at(directory.path()), [77]).unwrap();
            owners.is_without(77)
        };
        assert!(is_without(&[1, 2], INITIAL));
        assert!(!is_without(&[2], INITIAL), "hidepid");
        assert!(!is_without(&[1, 2], "pid:[4026532000]"), "a container");
    }

    #[test]
    fn a_name_may_hold_anything() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("proc/42")).unwrap();
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        let text = format!("42 (a) b (c)) {}\n", fields.join(" "));
        std::fs::write(directory.path().join("proc/42/stat"), text).unwrap();
        let owner = Host::at(directory.path()).owner(42).unwrap();
        assert_eq!((owner.name.as_str(), owner.processor), ("a) b (c)", Some(39)));
        assert_eq!(Host::at(directory.path()).owner(43), None);
    }
}
