//! Writes a file atomically.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use evenkeel_model::text::path_text;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tempfile::TempPath;

/// Prefix of unfinished files and directories. The leading dot hides them from most listings.
pub(crate) const PARTIAL: &str = ".evenkeel-partial-";

#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    #[error("{} already exists; name a new file", path_text(.path))]
    Exists { path: PathBuf },
    #[error("{} is not an empty directory; name a new directory", path_text(.path))]
    Occupied { path: PathBuf },
    #[error("{} is not a directory; name a new directory", path_text(.path))]
    NotADirectory { path: PathBuf },
    #[error("{} is a symbolic link to {}, which does not exist; remove the link or name another directory", path_text(.path), path_text(.to))]
    DanglingLink { path: PathBuf, to: PathBuf },
    #[error("another process is writing to {}; name another directory or wait for it", path_text(.path))]
    Busy { path: PathBuf },
    /// The path is relative to a directory that no longer exists.
    #[error("cannot make {}: the current directory was deleted; change to another directory", path_text(.path))]
    NoCurrentDirectory { path: PathBuf },
    #[error("{} is {what}; name a new file, or a regular file to replace", path_text(.path))]
    NotRegular { path: PathBuf, what: &'static str },
    #[error("cannot {action} {}: {source}", path_text(.path))]
    System { action: &'static str, path: PathBuf, source: io::Error },
    /// The result is in place, but the system refused to sync its directory.
    #[error("{} is written, but a crash of the machine may still lose it: cannot sync its directory: {source}", path_text(.path))]
    Unsynced { path: PathBuf, source: io::Error },
}

impl OutputError {
    pub(crate) fn system(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::System { action, path, source }
    }

    /// Returns whether the file or its directory could not be opened because of the limit of open files
    /// (`ulimit -n`, `fs.file-max`).
    #[must_use]
    pub fn is_limit(&self) -> bool {
        matches!(self, Self::System { source, .. } | Self::Unsynced { source, .. } if crate::is_limit(source))
    }

    /// Returns whether another path may avoid the error. `false` for a full or broken disk, an exceeded
    /// quota, a limit of the file size (`ulimit -f`), or a result that is in place but not synced.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match self {
            Self::System { source, .. } => {
                !matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge)
                    && source.raw_os_error() != Some(libc::EIO)
            }
            Self::Unsynced { .. } => false,
            _ => true,
        }
    }

    /// Converts an error of the last sync, after the result got its path.
    pub(crate) fn after_result(self, path: &Path) -> Self {
        match self {
            Self::System { source, .. } => Self::Unsynced { path: path.to_owned(), source },
            error => error,
        }
    }
}

/// Writes a file atomically and syncs it. Replaces an existing file.
///
/// # Errors
/// Returns an error if a system call fails. Then an existing file stays, and no other files remain. After
/// [`OutputError::Unsynced`], the new file is in place.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), OutputError> {
    let written = write_partial(path, bytes, mode)?;
    written.1.persist(path).map_err(|error| OutputError::system("write", path)(error.error))?;
    sync_directory(parent_of(path)).map_err(|error| error.after_result(path))
}

/// Writes several files of a directory as [`replace`] does. Writes all of them before it replaces the first.
///
/// # Errors
/// Returns an error if a name belongs to a directory, or a system call fails. Then existing files stay, and
/// no other files remain. There are two exceptions: after a failed rename, some files may be replaced. After
/// [`OutputError::Unsynced`], all files are replaced.
pub fn replace_all(directory: &Path, files: &[(String, Vec<u8>)], mode: u32) -> Result<(), OutputError> {
    let mut written = Vec::with_capacity(files.len());
    for (name, bytes) in files {
        let path = directory.join(name);
        if path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
            return Err(OutputError::system("write", &path)(io::ErrorKind::IsADirectory.into()));
        }
        // Keep the lock: without it, the next write removes the file as abandoned.
        written.push((write_partial(&path, bytes, mode)?, path));
    }
    for ((_lock, partial), path) in written {
        partial.persist(&path).map_err(|error| OutputError::system("write", &path)(error.error))?;
    }
    sync_directory(directory).map_err(|error| error.after_result(directory))
}

/// Refuses a path that exists and is not a regular file, such as a pipe or a link, because [`replace`] would
/// replace it.
///
/// # Errors
/// Returns an error that names the kind of the file.
pub fn check_regular(path: &Path) -> Result<(), OutputError> {
    let Ok(kind) = path.symlink_metadata().map(|metadata| metadata.file_type()) else { return Ok(()) };
    let what = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a directory",
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Err(OutputError::NotRegular { path: path.to_owned(), what })
}

/// Writes and syncs the unfinished file of `path`.
fn write_partial(path: &Path, bytes: &[u8], mode: u32) -> Result<(Flock<File>, TempPath), OutputError> {
    let (mut file, name) = partial_file(path, mode)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(OutputError::system("write", path))?;
    Ok((file, name))
}

/// Creates and locks the unfinished file of `path`, in the same directory.
pub(crate) fn partial_file(path: &Path, mode: u32) -> Result<(Flock<File>, TempPath), OutputError> {
    let failed = |action| OutputError::system(action, path);
    let parent = parent_of(path);
    remove_abandoned(parent);
    loop {
        // Set the mode at creation, so that the umask applies. Open the file here, because tempfile's own
        // errors have no errno.
        let create =
            |path: &Path| File::options().read(true).write(true).create_new(true).mode(mode).open(path);
        let partial =
            tempfile::Builder::new().prefix(PARTIAL).make_in(parent, create).map_err(failed("write"))?;
        let (file, name) = partial.into_parts();
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) if file.metadata().map_err(failed("write"))?.nlink() > 0 => return Ok((file, name)),
            // Before the file was locked, another process took it for abandoned, and removed or locked it.
            Ok(_) | Err((_, Errno::EWOULDBLOCK)) => {}
            Err((_, error)) => return Err(failed("lock")(error.into())),
        }
    }
}

pub(crate) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Syncs the entries of a directory (fsync(2), notes).
pub(crate) fn sync_directory(path: &Path) -> Result<(), OutputError> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(OutputError::system("sync", path))
}

/// Removes unfinished files of writers that were killed: the files that no process has locked. Ignores
/// errors.
pub fn remove_abandoned(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_partial = entry.file_name().as_encoded_bytes().starts_with(PARTIAL.as_bytes())
            && entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_partial
            && let Ok(file) = File::open(entry.path())
            && let Ok(_lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock)
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::testing::names;

    #[test]
    fn a_file_is_replaced_whole_and_abandoned_ones_go() {
        let place = tempfile::tempdir().unwrap();
        let abandoned = place.path().join(format!("{PARTIAL}x"));
        let old = File::create(&abandoned).unwrap();
        let of_a_writer = Flock::lock(old, FlockArg::LockExclusiveNonblock).unwrap();
        let path = place.path().join("file");
        replace(&path, b"one", 0o600).unwrap();
        assert_eq!(names(place.path()).len(), 2, "its writer is alive");
        drop(of_a_writer);
        replace(&path, b"two", 0o600).unwrap();
        assert_eq!(names(place.path()), ["file"]);
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    /// The caller must not report that nothing was written.
    #[test]
    fn an_error_after_the_result_names_the_result() {
        let place = tempfile::tempdir().unwrap();
        let error =
            sync_directory(&place.path().join("none")).unwrap_err().after_result(Path::new("page.html"));
        let words = "page.html is written, but a crash of the machine may still lose it: ";
        assert!(error.to_string().starts_with(words) && !error.is_usage(), "{error}");
    }

    #[test]
    fn nothing_is_left_of_a_file_that_cannot_be_written() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("file/below")).unwrap();
        assert!(replace(&place.path().join("file"), b"one", 0o666).unwrap_err().is_usage());
        assert_eq!(names(place.path()), ["file"]);
        assert!(replace(&place.path().join("none/file"), b"one", 0o666).is_err());
    }

    #[test]
    fn several_files_are_replaced_together_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let files = |names: [&str; 3]| names.map(|name| (name.to_owned(), name.as_bytes().to_vec()));
        fs::write(place.path().join("b"), "old").unwrap();
        fs::create_dir(place.path().join("directory")).unwrap();
        let error = replace_all(place.path(), &files(["a", "b", "directory"]), 0o600).unwrap_err();
        assert!(error.is_usage(), "{error}");
        assert_eq!(names(place.path()), ["b", "directory"]);
        assert_eq!(fs::read(place.path().join("b")).unwrap(), b"old");
        replace_all(place.path(), &files(["a", "b", "c"]), 0o600).unwrap();
        assert_eq!(names(place.path()), ["a", "b", "c", "directory"]);
        assert_eq!(fs::read(place.path().join("b")).unwrap(), b"b");
    }

    #[test]
    fn only_a_regular_file_may_be_replaced_where_that_is_checked() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        fs::write(path("file"), "").unwrap();
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        check_regular(&path("none")).unwrap();
        check_regular(&path("file")).unwrap();
        let what = |path: &Path| check_regular(path).unwrap_err().to_string();
        for (name, words) in
            [("link", "is a symbolic link;"), ("pipe", "is a pipe;"), ("socket", "is a socket;")]
        {
            assert!(what(&path(name)).contains(words), "{name}: {}", what(&path(name)));
        }
        assert!(what(place.path()).contains("is a directory;"));
        assert!(what(Path::new("/dev/null")).contains("is a device;"));
    }
}
