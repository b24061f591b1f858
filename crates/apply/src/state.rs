//! Where journals lie, and who holds them.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_host::{Host, ProcessIdentity};
use nix::fcntl::{Flock, FlockArg};

use crate::error::JournalError;
use crate::journal::{Entry, Header, InterfaceIdentity, Storage, parse};

/// The directory of all journals of a host.
#[derive(Clone, Debug)]
pub struct StateDirectory(PathBuf);

const EXTENSION: &str = "journal";
const KEPT: &str = ".kept";
/// How long to wait for a process that ends or a guardian that is putting back.
const PATIENCE: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(20);

impl StateDirectory {
    /// The directory that `EVENKEEL_STATE_DIR` names, else `/var/lib/evenkeel`. It outlives a run, and
    /// everybody who runs Evenkeel on the host has to use the same one.
    #[must_use]
    pub fn from_environment() -> Self {
        let named = std::env::var_os("EVENKEEL_STATE_DIR").filter(|path| !path.is_empty());
        Self::at(named.map_or_else(|| PathBuf::from("/var/lib/evenkeel"), PathBuf::from))
    }

    /// Another directory.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self(std::path::absolute(&path).unwrap_or(path))
    }

    /// The journal of an interface: named after what outlives a change of the interface's name.
    #[must_use]
    pub fn journal_of(&self, interface: &InterfaceIdentity) -> PathBuf {
        self.0.join(format!("{}-{}.{EXTENSION}", interface.namespace, interface.index))
    }

    /// The journal of what is to stay on an interface ([`crate::Lasting`]): beside that of whoever works on it, whose
    /// end must not put this back.
    #[must_use]
    pub fn kept_journal_of(&self, interface: &InterfaceIdentity) -> PathBuf {
        self.0.join(format!("{}-{}{KEPT}.{EXTENSION}", interface.namespace, interface.index))
    }

    /// Every journal that is there, sorted; none if the directory is not there.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn journals(&self) -> Result<Vec<PathBuf>, JournalError> {
        let failed = |source| JournalError::File { action: "list", path: self.0.clone(), source };
        let entries = match std::fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == EXTENSION) {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }

    fn create(&self) -> Result<(), JournalError> {
        std::fs::create_dir_all(&self.0)
            .map_err(|source| JournalError::Directory { path: self.0.clone(), source })
    }

    /// Takes the journal of what is to stay on an interface, empty or as it was left.
    pub(crate) fn take_kept(&self, interface: &InterfaceIdentity) -> Result<Held, JournalError> {
        self.create()?;
        let path = self.kept_journal_of(interface);
        Held::take(&path, true)?.ok_or(JournalError::Busy { path, holder: None })
    }

    /// Takes the journal of an interface for this process alone, empty or as a run that died left it.
    pub(crate) fn take(&self, interface: &InterfaceIdentity) -> Result<Held, JournalError> {
        self.create()?;
        Held::take(&self.journal_of(interface), true)?
            .ok_or_else(|| JournalError::Busy { path: self.journal_of(interface), holder: None })
    }
}

/// The journal of whoever works on the interface, of the journal of what is to stay on it; none of another journal.
pub(crate) fn working_journal_of(kept: &Path) -> Option<PathBuf> {
    let name = kept.file_name()?.to_str()?;
    let stem = name.strip_suffix(&format!("{KEPT}.{EXTENSION}"))?;
    Some(kept.with_file_name(format!("{stem}.{EXTENSION}")))
}

/// Whether a file or its directory is not there.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// A journal that this process holds: nobody else changes what it is about.
#[derive(Debug)]
pub struct Held {
    path: PathBuf,
    file: Flock<File>,
}

impl Held {
    /// Takes a journal; none if there is none and none is to be made. Waits a moment for a holder that is
    /// ending.
    ///
    /// # Errors
    /// [`JournalError::Busy`] when a living run holds it.
    pub(crate) fn take(path: &Path, create: bool) -> Result<Option<Self>, JournalError> {
        let failed = |action| move |source| JournalError::File { action, path: path.to_owned(), source };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let opened = OpenOptions::new().read(true).write(true).create(create).mode(0o600).open(path);
            let file = match opened {
                Ok(file) => file,
                Err(error) if is_absent(&error) && !create => return Ok(None),
                Err(error) => return Err(failed("open")(error)),
            };
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) => {
                    // Whoever held it before may have removed it: then this is no longer the journal.
                    let held = file.metadata().map_err(failed("look at"))?;
                    match std::fs::metadata(path) {
                        Ok(there) if (there.dev(), there.ino()) == (held.dev(), held.ino()) => {
                            return Ok(Some(Self { path: path.to_owned(), file }));
                        }
                        Ok(_) => {}
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        Err(error) => return Err(failed("look at")(error)),
                    }
                }
                Err((mut file, nix::Error::EWOULDBLOCK)) => {
                    let holder = read(&mut file, path).ok().flatten().map(|(header, _)| header);
                    // A dead run's journal in somebody's hands is being rolled back.
                    let ending = holder.as_ref().is_none_or(|header| {
                        let process = Host::live().process(header.process.id);
                        process.map(ProcessIdentity::into) != Some(header.process)
                    });
                    if !ending || Instant::now() > deadline {
                        return Err(JournalError::Busy {
                            path: path.to_owned(),
                            holder: holder.map(Box::new),
                        });
                    }
                    std::thread::sleep(POLL);
                }
                Err((_, error)) => return Err(failed("lock")(error.into())),
            }
        }
    }

    /// What it holds.
    pub(crate) fn read(&mut self) -> Result<Option<(Header, Vec<Entry>)>, JournalError> {
        read(&mut self.file, &self.path)
    }

    /// Where it lies.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it empty.
    pub(crate) fn clear(&mut self) -> Result<(), JournalError> {
        self.file
            .set_len(0)
            .and_then(|()| self.file.rewind())
            .and_then(|()| self.file.sync_all())
            .map_err(|source| JournalError::File { action: "empty", path: self.path.clone(), source })
    }
}

fn read(file: &mut File, path: &Path) -> Result<Option<(Header, Vec<Entry>)>, JournalError> {
    let mut text = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut text)).map_err(|source| JournalError::File {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    parse(&text, path)
}

impl Held {
    fn append_synced(&mut self, line: &[u8]) -> io::Result<()> {
        self.file.seek(io::SeekFrom::End(0))?;
        self.file.write_all(line)?;
        self.file.sync_data()?;
        // The name has to survive as well.
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        File::open(directory)?.sync_all()
    }
}

impl Storage for Held {
    fn append(&mut self, line: &[u8]) -> Result<(), JournalError> {
        let path = self.path.clone();
        let failed = |source| JournalError::File { action: "write to", path, source };
        let length = match self.file.metadata() {
            Ok(metadata) => metadata.len(),
            Err(source) => return Err(failed(source)),
        };
        self.append_synced(line).map_err(|source| {
            // A part of a line (the disk is full) would run into the next one. If it cannot be taken away either,
            // the error is the first one all the same.
            let _ = self.file.set_len(length);
            failed(source)
        })
    }

    fn remove(self) -> Result<(), JournalError> {
        std::fs::remove_file(&self.path).map_err(|source| JournalError::File {
            action: "remove",
            path: self.path.clone(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::journal::line;

    fn interface(index: u32) -> InterfaceIdentity {
        InterfaceIdentity::current(index, "evk").unwrap()
    }

    #[test]
    fn a_second_run_is_refused_and_told_about_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(directory.path().join("new"));
        let mut first = state.take(&interface(7)).unwrap();
        first.append(&line(&Header::new(interface(7), "fair"))).unwrap();
        let second = state.take(&interface(7)).unwrap_err().to_string();
        let own = format!("evenkeel fair manages evk already: process {}, since 2", std::process::id());
        assert!(second.contains(&own), "{second}");
        // Another interface is another matter.
        state.take(&interface(8)).unwrap().remove().unwrap();
        first.remove().unwrap();
        assert_eq!(state.journals().unwrap(), Vec::<PathBuf>::new());
        state.take(&interface(7)).unwrap();
    }

    #[test]
    fn a_journal_that_nobody_holds_is_taken_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(directory.path());
        let header = Header::new(interface(7), "fair");
        let mut first = state.take(&interface(7)).unwrap();
        first.append(&line(&header)).unwrap();
        drop(first);
        let mut second = state.take(&interface(7)).unwrap();
        assert_eq!(second.read().unwrap().unwrap().0, header);
        second.clear().unwrap();
        assert!(second.read().unwrap().is_none());
        assert_eq!(state.journals().unwrap(), [state.journal_of(&interface(7))]);
    }

    #[test]
    fn a_line_that_fails_leaves_nothing_of_itself() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(directory.path().join("state"));
        let mut held = state.take(&interface(7)).unwrap();
        let header = line(&Header::new(interface(7), "fair"));
        held.append(&header).unwrap();
        // Its last step, the sync of the directory, fails after the line was written.
        std::fs::remove_dir_all(directory.path().join("state")).unwrap();
        held.append(b"half a line").unwrap_err();
        assert_eq!(held.file.metadata().unwrap().len(), header.len() as u64);
    }

    #[test]
    fn a_missing_directory_has_no_journals() {
        let state = StateDirectory::at("/nonexistent/evenkeel");
        assert_eq!(state.journals().unwrap(), Vec::<PathBuf>::new());
    }
}
