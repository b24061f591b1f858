//! Files that a running session reads again after they have changed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::Kind;
use crate::input::{InputError, Text, is_standard_input, read, read_regular};

/// Metadata of a file, to detect that the file was written or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    mode: u32,
    size: u64,
    modified: (i64, i64),
}

impl Stamp {
    pub fn of(path: &Path) -> Result<Self, InputError> {
        let metadata = fs::metadata(path).map_err(|error| InputError::system(path, error))?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            mode: metadata.mode(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }

    /// Returns whether a file can be read again: a regular file that is not standard input.
    #[must_use]
    pub fn is_followed(path: &Path) -> bool {
        !is_standard_input(path) && fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
    }
}

/// A file that is read again after it has changed. A pipe or standard input is read only once, at the start.
#[derive(Debug)]
pub struct Watched {
    path: PathBuf,
    kind: Kind,
    stamp: Option<Stamp>,
    is_followed: bool,
}

impl Watched {
    /// Reads a file for the first time, as [`read`] does.
    ///
    /// # Errors
    /// See [`read`].
    pub fn open(path: &Path, kind: Kind) -> Result<(Self, Text), InputError> {
        // Read the stamp first, so that a change during the read is detected.
        let stamp = Stamp::of(path).ok();
        let text = read(path, kind)?;
        let is_followed = Stamp::is_followed(path);
        Ok((Self { path: path.to_owned(), kind, stamp, is_followed }, text))
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file again if it has changed. Returns `None` if it has not changed, or is a pipe or standard
    /// input. Never waits, and reports the same error only once.
    ///
    /// # Errors
    /// See [`read_regular`].
    pub fn read_changed(&mut self) -> Result<Option<Text>, InputError> {
        if !self.is_followed {
            return Ok(None);
        }
        let stamp = Stamp::of(&self.path);
        let found = stamp.as_ref().ok().copied();
        if found == self.stamp {
            return Ok(None);
        }
        self.stamp = found;
        stamp?;
        read_regular(&self.path, self.kind).map(Some)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_pipe_in_the_place_of_a_file_is_refused_once_and_at_once() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("weights.toml");
        fs::write(&path, "one").unwrap();
        let (mut file, text) = Watched::open(&path, Kind::Weights).unwrap();
        assert_eq!((text.text.as_str(), file.read_changed().unwrap()), ("one", None));
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(file.read_changed().unwrap_err().to_string().contains("it is a pipe"));
        assert_eq!(file.read_changed().unwrap(), None);
        fs::remove_file(&path).unwrap();
        assert!(file.read_changed().unwrap_err().is_missing());
        assert_eq!(file.read_changed().unwrap(), None);
        fs::write(&path, "two").unwrap();
        assert_eq!(file.read_changed().unwrap().map(|text| text.text).as_deref(), Some("two"));
    }
}
