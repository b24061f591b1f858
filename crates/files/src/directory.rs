//! A directory for a result. The program claims the directory before the work begins, and fills it at
//! the end of the work.
//!
//! The directory keeps its inode, so a shell whose working directory it is sees the result. The program
//! writes the result to a temporary subdirectory, and then moves the entries of the subdirectory up. The
//! entry that completes the result is moved last.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tempfile::TempDir;

use crate::output::{OutputError, PARTIAL, sync_directory};

/// A directory that is locked while this value lives. Dropping this value removes the empty directories
/// that the claim created, unless [`Self::keep`] was called.
#[derive(Debug)]
pub struct ClaimedDirectory {
    path: PathBuf,
    /// Directories that the claim created and that the drop removes, outermost first.
    made: Vec<PathBuf>,
    /// Directories that the claim created and that stay after the drop.
    kept: Vec<PathBuf>,
    /// `None` if the filesystem cannot lock directories.
    _lock: Option<Flock<File>>,
}

impl ClaimedDirectory {
    /// Creates the directory, or uses an existing directory, and locks it.
    ///
    /// # Errors
    /// Returns an error if the path is not a directory, it is already claimed, or a system call fails.
    pub fn claim(path: &Path) -> Result<Self, OutputError> {
        Self::locked(make(path)?, path)
    }

    /// Locks a directory. `made` lists the parts of the path that this process created.
    fn locked(made: Vec<PathBuf>, path: &Path) -> Result<Self, OutputError> {
        let mut claim = Self { path: path.to_owned(), made, kept: Vec::new(), _lock: None };
        claim.path = path.canonicalize().map_err(OutputError::system("find", path))?;
        claim._lock = lock(&claim.path, path).inspect_err(|error| {
            // The process that holds the lock may use this directory, so do not remove it.
            if matches!(error, OutputError::Busy { .. }) {
                claim.made.clear();
            }
        })?;
        Ok(claim)
    }

    /// Keeps the directory. Syncs it and the parents of the directories that the claim created.
    pub fn keep(&mut self) -> Result<(), OutputError> {
        sync_directory(&self.path)?;
        self.made.iter().filter_map(|made| made.parent()).try_for_each(|parent| {
            sync_directory(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
        })?;
        self.kept.append(&mut self.made);
        Ok(())
    }

    /// Undoes [`Self::keep`]: dropping the claim removes the empty directories that it created.
    pub fn give_up(&mut self) {
        self.made.append(&mut self.kept);
    }
}

impl Drop for ClaimedDirectory {
    fn drop(&mut self) {
        // A directory that is not empty stays.
        for made in self.made.iter().rev() {
            let _ = fs::remove_dir(made);
        }
    }
}

/// A claimed directory for a result. If this value is dropped before the directory is filled, no files
/// remain.
#[derive(Debug)]
pub struct OutputDirectory {
    /// The temporary directory; `None` before the first call of [`Self::partial()`]. This field is dropped
    /// first, because the claim removes only an empty directory.
    partial: Mutex<Option<TempDir>>,
    claim: ClaimedDirectory,
}

impl OutputDirectory {
    /// Creates the directory, or uses an empty directory, and checks that it is writable. Removes the
    /// unfinished results of processes that were killed.
    ///
    /// # Errors
    /// Returns an error if the path is not an empty directory, it is already claimed, or a system call fails.
    pub fn claim(path: &Path) -> Result<Self, OutputError> {
        let claim = ClaimedDirectory::claim(path)?;
        let entries = fs::read_dir(&claim.path).map_err(OutputError::system("read", path))?;
        for entry in entries {
            let entry = entry.map_err(OutputError::system("read", path))?;
            // This process holds the lock, if the filesystem has locks. So an unfinished result belongs to
            // a process that was killed.
            if !entry.file_name().as_encoded_bytes().starts_with(PARTIAL.as_bytes()) {
                return Err(OutputError::Occupied { path: path.to_owned() });
            }
            let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
        }
        // Write data as a test: on a full disk, creating a directory may still succeed.
        const TRIAL: [u8; 4096] = [0; 4096];
        tempfile::tempfile_in(&claim.path)
            .and_then(|mut file| file.write_all(&TRIAL).and_then(|()| file.sync_all()))
            .map_err(OutputError::system("write to", path))?;
        Ok(Self { partial: Mutex::default(), claim })
    }

    /// Returns the absolute path, without symbolic links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.claim.path
    }

    /// Calls `write` with a temporary directory, and moves its entries into this directory, `last` at
    /// the end. Moves all entries or none.
    ///
    /// # Errors
    /// Returns an error if `write` or a system call fails. Then no files remain, except with
    /// [`OutputError::Unsynced`].
    pub fn fill<T, E: From<OutputError>>(
        self,
        last: &str,
        write: impl FnOnce(&Path) -> Result<T, E>,
    ) -> Result<T, E> {
        let written = write(&self.partial()?)?;
        self.finish(last)?;
        Ok(written)
    }

    /// Returns the temporary directory, for a result that is written in several steps. The first call
    /// creates it, so that a process that is killed before this call leaves no temporary directory.
    pub fn partial(&self) -> Result<PathBuf, OutputError> {
        let mut partial = self.partial.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = &*partial {
            return Ok(made.path().to_owned());
        }
        let made = tempfile::Builder::new()
            .prefix(PARTIAL)
            // Use ordinary permissions, so that the umask applies.
            .permissions(Permissions::from_mode(0o777))
            .tempdir_in(self.path())
            .map_err(OutputError::system("write to", self.path()))?;
        Ok(partial.insert(made).path().to_owned())
    }

    /// Moves the entries of the temporary directory into the claimed directory, `last` at the end.
    /// Moves all entries or none.
    pub fn finish(self, last: &str) -> Result<(), OutputError> {
        let partial = self.partial()?;
        // Bindings are dropped in reverse order. So after an error, the claim is dropped last, when its
        // directory is empty.
        let Self { mut claim, partial: made } = self;
        // Sync all files with one call, because a recorded host has thousands of files.
        let synced = File::open(&partial).and_then(|root| Ok(nix::unistd::syncfs(&root)?));
        synced.map_err(OutputError::system("sync", &claim.path))?;
        move_up(&partial, &claim.path, OsStr::new(last))?;
        drop(made);
        claim.keep().map_err(|error| error.after_result(&claim.path))
    }
}

/// Moves all entries of a directory to another directory, `last` at the end. If an entry cannot be
/// moved, deletes the entries that were moved.
fn move_up(from: &Path, to: &Path, last: &OsStr) -> Result<(), OutputError> {
    let failed = || OutputError::system("write to", to);
    let entries = fs::read_dir(from).map_err(failed())?;
    let mut names =
        entries.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>, _>>().map_err(failed())?;
    names.sort_by_key(|name| name == last);
    for (index, name) in names.iter().enumerate() {
        if let Err(error) = fs::rename(from.join(name), to.join(name)) {
            for name in &names[..index] {
                let path = to.join(name);
                let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
            }
            return Err(failed()(error));
        }
    }
    Ok(())
}

/// Creates a directory and its missing parents. Returns the created directories.
fn make(path: &Path) -> Result<Vec<PathBuf>, OutputError> {
    let mut missing = Vec::new();
    for place in path.ancestors().filter(|place| !place.as_os_str().is_empty()) {
        match fs::metadata(place) {
            Ok(metadata) if metadata.is_dir() => break,
            Ok(_) => return Err(OutputError::NotADirectory { path: place.to_owned() }),
            Err(error) if error.kind() == ErrorKind::NotFound => match fs::read_link(place) {
                Ok(to) => return Err(OutputError::DanglingLink { path: place.to_owned(), to }),
                Err(_) => missing.push(place.to_owned()),
            },
            // A parent is not a directory. The loop reports it when it reaches this parent.
            Err(error) if error.kind() == ErrorKind::NotADirectory => {}
            Err(error) => return Err(OutputError::system("make", path)(error)),
        }
    }
    let mut made: Vec<PathBuf> = Vec::new();
    for place in missing.into_iter().rev() {
        match fs::create_dir(&place) {
            Ok(()) => made.push(place),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && place.is_dir() => {}
            Err(error) => {
                for made in made.iter().rev() {
                    let _ = fs::remove_dir(made);
                }
                let is_gone = error.kind() == ErrorKind::NotFound && std::env::current_dir().is_err();
                return Err(if is_gone && path.is_relative() {
                    OutputError::NoCurrentDirectory { path: path.to_owned() }
                } else {
                    OutputError::system("make", &place)(error)
                });
            }
        }
    }
    Ok(made)
}

/// Locks a directory against other claims while the returned lock lives. Returns `None` if the
/// filesystem cannot lock directories.
fn lock(path: &Path, named: &Path) -> Result<Option<Flock<File>>, OutputError> {
    let busy = || OutputError::Busy { path: named.to_owned() };
    let directory = File::open(path).map_err(OutputError::system("open", named))?;
    match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => {
            // Another process may have removed the directory between open and lock.
            let inode = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
            let same = lock.metadata().ok().map(inode) == fs::metadata(path).ok().map(inode);
            if same { Ok(Some(lock)) } else { Err(busy()) }
        }
        Err((_, Errno::EWOULDBLOCK)) => Err(busy()),
        // NFS cannot lock a file that is open only for reading.
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::names;

    fn filled(claim: OutputDirectory) -> Result<(), OutputError> {
        claim.fill("last", |place| {
            fs::create_dir(place.join("further")).unwrap();
            fs::write(place.join("further/file"), "x").unwrap();
            fs::write(place.join("last"), "y").map_err(OutputError::system("write", place))
        })
    }

    #[test]
    fn a_directory_that_another_process_locked_first_stays() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("one/two");
        let made = make(&path).unwrap();
        let first = ClaimedDirectory::claim(&path).unwrap();
        assert!(matches!(ClaimedDirectory::locked(made, &path), Err(OutputError::Busy { .. })));
        assert!(path.is_dir());
        drop(first);
    }

    #[test]
    fn a_directory_that_is_there_stays_the_same_one() {
        let place = tempfile::tempdir().unwrap();
        let inode = fs::metadata(place.path()).unwrap().ino();
        fs::create_dir(place.path().join(format!("{PARTIAL}killed"))).unwrap();
        filled(OutputDirectory::claim(place.path()).unwrap()).unwrap();
        assert_eq!(names(place.path()), ["further", "last"]);
        assert_eq!(fs::metadata(place.path()).unwrap().ino(), inode);
        let again = OutputDirectory::claim(place.path());
        assert!(matches!(again, Err(OutputError::Occupied { .. })), "{again:?}");
    }

    #[test]
    fn a_claim_that_is_given_up_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a/b/c");
        let claim = OutputDirectory::claim(&path).unwrap();
        let other = OutputDirectory::claim(&path);
        assert!(matches!(other, Err(OutputError::Busy { .. })), "{other:?}");
        assert!(path.is_dir(), "the other claim has made nothing");
        drop(claim);
        assert_eq!(names(place.path()), Vec::<String>::new());
        let failed = OutputDirectory::claim(&path).unwrap().fill("last", |place| {
            fs::write(place.join("half"), "x").unwrap();
            Err::<(), _>(OutputError::Busy { path: place.to_owned() })
        });
        assert!(failed.is_err());
        assert_eq!(names(place.path()), Vec::<String>::new());
    }

    #[test]
    fn what_cannot_take_a_result_is_refused_before_the_work() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        fs::write(path("file"), "").unwrap();
        std::os::unix::fs::symlink("nowhere", path("link")).unwrap();
        let error = |name: &str| OutputDirectory::claim(&path(name)).unwrap_err();
        assert!(matches!(error("file"), OutputError::NotADirectory { .. }));
        assert!(matches!(error("file/below/it"), OutputError::NotADirectory { .. }));
        assert!(matches!(error("link"), OutputError::DanglingLink { .. }));
        assert!(matches!(error("link/below"), OutputError::DanglingLink { .. }));
        for name in ["/proc/evenkeel", "/proc/self/task", ""] {
            let error = OutputDirectory::claim(Path::new(name)).unwrap_err();
            assert!(error.is_usage(), "{name}: {error}");
        }
        assert_eq!(names(place.path()), ["file", "link"]);
    }
}
