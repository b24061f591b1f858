//! Network namespaces of the host: lists them, and runs functions inside them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use evenkeel_model::text::path_text;

use crate::{Host, HostError};

/// The namespaces whose sockets are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    #[default]
    Own,
    /// Every network namespace with a process, or with a name below `/run/netns`.
    All,
    /// The calling thread's namespace, and the listed namespaces: names below `/run/netns`, PIDs, or
    /// paths.
    Named(Vec<String>),
}

/// A network namespace. The namespace exists at least as long as this value.
#[derive(Debug)]
pub struct NetworkNamespace {
    /// Path of the file by which the namespace was found.
    pub path: PathBuf,
    /// Inode of the file, as `lsns` shows it.
    pub inode: u64,
    descriptor: File,
}

impl NetworkNamespace {
    /// Opens the calling thread's network namespace.
    pub fn own() -> Result<Self, HostError> {
        Self::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// Opens a namespace by the path of its file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened or is not a namespace. A deleted name in
    /// `/run/netns` is an empty file.
    pub fn open(path: &Path) -> Result<Self, HostError> {
        let fail = |source| HostError::Read { path: path.to_owned(), source };
        let descriptor = File::open(path).map_err(fail)?;
        let system = nix::sys::statfs::fstatfs(&descriptor).map_err(|error| fail(error.into()))?;
        if system.filesystem_type() != nix::sys::statfs::NSFS_MAGIC {
            return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, "not a network namespace")));
        }
        let inode = descriptor.metadata().map_err(fail)?.ino();
        Ok(Self { path: path.to_owned(), inode, descriptor })
    }

    /// Runs `look` inside the namespace: in a separate thread, unless the calling thread is in the namespace.
    /// A socket that `look` opens stays in the namespace.
    ///
    /// # Errors
    /// Returns an error if the namespace cannot be entered (other namespaces need `CAP_SYS_ADMIN`), or
    /// `look` fails.
    pub fn run<T: Send>(&self, look: impl FnOnce() -> Result<T, HostError> + Send) -> Result<T, HostError> {
        if NetworkNamespace::own().is_ok_and(|own| own.inode == self.inode) {
            return look();
        }
        let enter = || {
            // SAFETY: takes a descriptor that is open and a flag; only this thread changes its
            // namespace.
            let result = unsafe { libc::setns(self.descriptor.as_raw_fd(), libc::CLONE_NEWNET) };
            if result < 0 {
                let namespace = format!("the network namespace {}", path_text(&self.path));
                return Err(HostError::Namespace { namespace, source: io::Error::last_os_error() });
            }
            look()
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, enter).map_err(HostError::Thread)?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl AsFd for NetworkNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Returns whether an error means that a namespace's file is gone. The file of a deleted name is empty
/// until it is removed. The file of a process that ends during the call gives ESRCH.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput)
        || error.raw_os_error() == Some(libc::ESRCH)
}

impl Host {
    /// Returns the network namespaces of a scope without duplicates, the calling thread's namespace
    /// first. With [`Scope::All`], omits a namespace that cannot be opened, for example because it ends
    /// during the call.
    ///
    /// # Errors
    /// Returns an error if a named namespace cannot be opened, or `/proc` cannot be read.
    pub fn network_namespaces(&self, scope: &Scope) -> Result<Vec<NetworkNamespace>, HostError> {
        self.find_namespaces(scope, |_, error| Err(error))
    }

    /// Returns the namespaces as [`Self::network_namespaces`] does, and the names of namespaces that do
    /// not exist.
    ///
    /// # Errors
    /// Returns an error if a named namespace exists but cannot be opened, or `/proc` cannot be read.
    pub fn existing_namespaces(
        &self,
        scope: &Scope,
    ) -> Result<(Vec<NetworkNamespace>, Vec<String>), HostError> {
        let mut missing = Vec::new();
        let found = self.find_namespaces(scope, |name, error| match &error {
            HostError::Read { source, .. } if is_missing(source) => {
                missing.push(name.to_owned());
                Ok(())
            }
            _ => Err(error),
        })?;
        Ok((found, missing))
    }

    /// Returns the names in a scope that refer to the calling thread's namespace.
    pub(crate) fn names_of_own(&self, scope: &Scope) -> Result<Vec<String>, HostError> {
        let own = NetworkNamespace::own()?.inode;
        let Scope::Named(names) = scope else { return Ok(Vec::new()) };
        let is_own = |name: &&String| {
            std::fs::metadata(self.namespace_path(name)).is_ok_and(|metadata| metadata.ino() == own)
        };
        Ok(names.iter().filter(is_own).cloned().collect())
    }

    fn find_namespaces(
        &self,
        scope: &Scope,
        mut unopened: impl FnMut(&str, HostError) -> Result<(), HostError>,
    ) -> Result<Vec<NetworkNamespace>, HostError> {
        let own = NetworkNamespace::own()?;
        let own_inode = own.inode;
        let mut found = BTreeMap::new();
        match scope {
            Scope::Own => {}
            Scope::Named(names) => {
                for name in names {
                    match NetworkNamespace::open(&self.namespace_path(name)) {
                        Ok(namespace) => _ = found.entry(namespace.inode).or_insert(namespace),
                        Err(error) => unopened(name, error)?,
                    }
                }
            }
            Scope::All => {
                for path in self.namespace_files()? {
                    let Ok(metadata) = std::fs::metadata(&path) else { continue };
                    if metadata.ino() == own_inode || found.contains_key(&metadata.ino()) {
                        continue;
                    }
                    if let Ok(namespace) = NetworkNamespace::open(&path) {
                        found.insert(namespace.inode, namespace);
                    }
                }
            }
        }
        found.remove(&own_inode);
        Ok(std::iter::once(own).chain(found.into_values()).collect())
    }

    fn namespace_path(&self, name: &str) -> PathBuf {
        if name.contains('/') {
            PathBuf::from(name)
        } else if is_process_number(name) {
            self.path(&format!("/proc/{name}/ns/net"))
        } else {
            self.path(&format!("/run/netns/{name}"))
        }
    }

    fn namespace_files(&self) -> Result<Vec<PathBuf>, HostError> {
        let processes = self.process_numbers()?;
        let of_processes = processes.into_iter().map(|id| self.path(&format!("/proc/{id}/ns/net")));
        let named = std::fs::read_dir(self.path("/run/netns")).into_iter().flatten().flatten();
        Ok(named.map(|entry| entry.path()).chain(of_processes).collect())
    }

    pub fn process_numbers(&self) -> Result<Vec<u32>, HostError> {
        let path = self.path("/proc");
        let entries = std::fs::read_dir(&path).map_err(|source| HostError::Read { path, source })?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }
}

/// Returns whether the name of a network namespace is the id of a process in that namespace.
#[must_use]
pub fn is_process_number(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn only_digits_are_the_id_of_a_process() {
        let names = ["17", "0", "", "blue", "17a", "-1"];
        assert_eq!(names.map(is_process_number), [true, true, false, false, false, false]);
    }

    #[test]
    fn the_callers_own_comes_first_and_once() {
        let host = Host::live();
        let own = NetworkNamespace::own().unwrap().inode;
        let process = std::process::id().to_string();
        for scope in [Scope::Own, Scope::All, Scope::Named(vec![process])] {
            let found = host.network_namespaces(&scope).unwrap();
            assert_eq!(found[0].inode, own, "{scope:?}");
            assert_eq!(found.iter().filter(|namespace| namespace.inode == own).count(), 1, "{scope:?}");
        }
        assert_eq!(NetworkNamespace::own().unwrap().run(|| Ok(7)).unwrap(), 7);
    }

    #[test]
    fn what_was_named_has_to_be_there() {
        let scope = Scope::Named(vec!["evk-not-here".to_owned()]);
        let error = Host::live().network_namespaces(&scope).unwrap_err().to_string();
        assert!(error.contains("/run/netns/evk-not-here"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_namespace_is_left_out() {
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/proc", root.path().join("proc")).unwrap();
        std::fs::create_dir_all(root.path().join("run/netns")).unwrap();
        let stale = root.path().join("run/netns/stale");
        std::fs::write(&stale, "").unwrap();
        let host = Host::at(root.path());
        let found = host.network_namespaces(&Scope::All).unwrap();
        assert!(found.iter().all(|namespace| namespace.path != stale), "{found:?}");
        let error = host.network_namespaces(&Scope::Named(vec!["stale".to_owned()])).unwrap_err().to_string();
        assert!(error.contains("not a network namespace"), "{error}");
    }
}
