//! A new file for a result. The program claims the file before the work begins. The file gets its name
//! when it is complete.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use nix::fcntl::Flock;
use tempfile::TempPath;

use crate::output::{OutputError, parent_of, partial_file, sync_directory};

/// A claimed file. If this value is dropped before [`Self::finish`], no file remains.
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    file: Flock<File>,
    partial: TempPath,
}

impl NewFile {
    /// Creates an unfinished file next to `path`.
    ///
    /// # Errors
    /// Returns an error if `path` exists or has no file name, its directory does not exist, or a system call
    /// fails.
    pub fn claim(path: &Path, mode: u32) -> Result<Self, OutputError> {
        // A symbolic link counts as an existing file, even if its target is missing.
        if path.symlink_metadata().is_ok() {
            return Err(OutputError::Exists { path: path.to_owned() });
        }
        if path.is_relative() && std::env::current_dir().is_err() {
            return Err(OutputError::NoCurrentDirectory { path: path.to_owned() });
        }
        if path.file_name().is_none() {
            return Err(OutputError::system("write", path)(ErrorKind::InvalidFilename.into()));
        }
        let (file, partial) = partial_file(path, mode)?;
        Ok(Self { path: path.to_owned(), file, partial })
    }

    /// Writes and syncs the file, and renames it to `path`.
    ///
    /// # Errors
    /// Returns an error if `path` exists, or a system call fails. The claimed file is then removed,
    /// except with [`OutputError::Unsynced`].
    pub fn finish(mut self, bytes: &[u8]) -> Result<(), OutputError> {
        let path = &self.path;
        self.file
            .write_all(bytes)
            .and_then(|()| self.file.sync_all())
            .map_err(OutputError::system("write", path))?;
        self.partial.persist_noclobber(path).map_err(|error| match error.error.kind() {
            ErrorKind::AlreadyExists => OutputError::Exists { path: path.clone() },
            _ => OutputError::system("write", path)(error.error),
        })?;
        sync_directory(parent_of(path)).map_err(|error| error.after_result(path))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;
    use crate::testing::names;

    #[test]
    fn a_file_appears_whole_and_replaces_none() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("page.html");
        let first = NewFile::claim(&path, 0o644).unwrap();
        let second = NewFile::claim(&path, 0o644).unwrap();
        let dropped = NewFile::claim(&path, 0o644).unwrap();
        assert!(!path.exists());
        drop(dropped);
        first.finish(b"first").unwrap();
        assert!(matches!(NewFile::claim(&path, 0o644), Err(OutputError::Exists { .. })));
        assert!(matches!(second.finish(b"second"), Err(OutputError::Exists { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(names(place.path()), ["page.html"]);
    }

    #[test]
    fn a_place_that_cannot_take_it_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("nowhere", place.path().join("link")).unwrap();
        for name in ["none/page.html", "link", ".", ".."] {
            assert!(NewFile::claim(&place.path().join(name), 0o644).unwrap_err().is_usage(), "{name}");
        }
        assert_eq!(names(place.path()), ["link"]);
    }
}
