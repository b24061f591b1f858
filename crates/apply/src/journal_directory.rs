//! The directory of a host's journals.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_model::shell::Line;
use evenkeel_model::text::{path_text, printable};
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, fchmod, fstatat};
use nix::unistd::{LinkatFlags, UnlinkatFlags, getegid, geteuid, linkat, unlinkat};

use crate::damaged_journal::{DAMAGED, Damaged, Obstacle};
use crate::error::JournalError;
use crate::identity::InterfaceIdentity;
use crate::journal::{EXTENSION, KEPT};
use crate::journal_lines::{Contents, Damage, begins_like_journal, parse};

#[derive(Clone, Debug)]
pub struct StateDirectory(PathBuf);

/// Suffix of a journal file that is not complete yet.
const DRAFT: &str = ".draft";
const ANOTHER: &str = "name another directory with EVENKEEL_STATE_DIR";
const RESTORE: &str = "if a journal had this name, restore the journal; otherwise remove the file";
/// Maximum length of a journal that is read, bytes. A journal of a thousand settings takes about 0.6 MB.
const LONGEST: u64 = 64 << 20;

fn named() -> Option<OsString> {
    std::env::var_os("EVENKEEL_STATE_DIR").filter(|path| !path.is_empty())
}

impl StateDirectory {
    /// Returns the directory in `EVENKEEL_STATE_DIR`, else `/var/lib/evenkeel`. The directory must
    /// outlive the run. All Evenkeel processes of a host must use the same directory.
    #[must_use]
    pub fn from_environment() -> Self {
        Self::at(named().map_or_else(|| PathBuf::from("/var/lib/evenkeel"), PathBuf::from))
    }

    /// Returns whether the environment sets the directory.
    #[must_use]
    pub fn is_named() -> bool {
        named().is_some()
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the state directory at a path. Makes a relative path absolute.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self(std::path::absolute(&path).unwrap_or(path))
    }

    pub(crate) fn of_journal(journal: &Path) -> (Self, String) {
        let name = journal.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        (Self::at(journal.parent().unwrap_or(Path::new("/"))), name)
    }

    /// Returns the path of an interface's journal. A rename of the interface does not change the path.
    #[must_use]
    pub fn journal_of(&self, interface: &InterfaceIdentity) -> PathBuf {
        self.0.join(journal_name(interface))
    }

    /// Returns the path of the journal of kept changes ([`crate::Lasting`]). It is separate from the
    /// run journal, because the end of a run must not restore kept changes.
    #[must_use]
    pub fn kept_journal_of(&self, interface: &InterfaceIdentity) -> PathBuf {
        self.0.join(kept_journal_name(interface))
    }

    /// Returns all journals, sorted. Returns an empty list if the directory does not exist.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read, or if another user may have written to it.
    pub fn journals(&self) -> Result<Vec<PathBuf>, JournalError> {
        let ending = format!(".{EXTENSION}");
        self.ending_with(&ending)
    }

    pub fn damaged(&self) -> Result<Vec<PathBuf>, JournalError> {
        self.ending_with(DAMAGED)
    }

    /// Returns the name and contents of each file that begins like a journal, sorted by name. Skips drafts
    /// and unreadable files.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Self::journals`].
    pub(crate) fn files_like_journals(&self) -> Result<Vec<(String, Vec<u8>)>, JournalError> {
        let Some(directory) = self.open(false)? else { return Ok(Vec::new()) };
        let mut names = directory.names()?;
        names.retain(|name| !name.ends_with(DRAFT));
        names.sort();
        let read = |name: String| {
            // Ignore errors: other functions report a file that has a journal's name but cannot be
            // read.
            let file = directory.open_file(&name, OFlag::O_RDONLY).ok()??;
            let mut head = [0; 32];
            let length = file.read_at(&mut head, 0).ok()?;
            let mut bytes = Vec::new();
            let is_like = begins_like_journal(&head[..length]);
            is_like.then(|| file.take(LONGEST).read_to_end(&mut bytes).ok())??;
            Some((name, bytes))
        };
        Ok(names.into_iter().filter_map(read).collect())
    }

    fn ending_with(&self, ending: &str) -> Result<Vec<PathBuf>, JournalError> {
        let Some(directory) = self.open(false)? else { return Ok(Vec::new()) };
        let names = directory.names()?.into_iter().filter(|name| name.ends_with(ending));
        let mut found: Vec<PathBuf> = names.map(|name| self.0.join(name)).collect();
        found.sort();
        Ok(found)
    }

    /// Removes drafts of processes that were killed before they renamed the drafts.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Self::journals`].
    pub fn remove_drafts(&self) -> Result<(), JournalError> {
        self.open(false)?.map_or(Ok(()), |directory| directory.remove_drafts())
    }

    pub fn read(journal: &Path) -> Result<Option<Contents>, JournalError> {
        Self::read_as(journal, &Self::of_journal(journal).1)
    }

    /// Reads a journal whose previous name was `earlier`; returns `None` if the journal does not exist.
    pub(crate) fn read_as(path: &Path, earlier: &str) -> Result<Option<Contents>, JournalError> {
        let (state, name) = Self::of_journal(path);
        let Some(directory) = state.open(false)? else { return Ok(None) };
        match directory.open_file(&name, OFlag::O_RDONLY)? {
            Some(mut file) => directory.read(&mut file, earlier).map(Some),
            None => Ok(None),
        }
    }

    /// Opens the directory; returns `None` if the directory does not exist. With `create`, creates a
    /// missing directory, and makes the directory accessible only to its owner.
    pub(crate) fn open(&self, create: bool) -> Result<Option<Directory>, JournalError> {
        let path = &self.0;
        let failed = |source| self.unusable(source);
        if create {
            make_private(path).map_err(failed)?;
        }
        let file = match open_directory(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => return Ok(None),
            Err(_) if path.is_symlink() => {
                let next = "name the link's target with EVENKEEL_STATE_DIR, or remove the link";
                return Err(self.unsafe_because("it is a symbolic link".to_owned(), next));
            }
            Err(error) => return Err(failed(error)),
        };
        self.check(&file)?;
        let directory = Directory { path: path.clone(), file };
        if create {
            self.close_to_others(&directory)?;
        }
        Ok(Some(directory))
    }

    /// Refuses a directory of another user, or one that other users can write to, because root would then
    /// apply their files. Also refuses a directory below one of another user or a world-writable one without
    /// sticky bit, and a directory whose owner lacks permissions.
    fn check(&self, file: &File) -> Result<(), JournalError> {
        let failed = |source| self.unusable(source);
        let own = geteuid().as_raw();
        let metadata = file.metadata().map_err(failed)?;
        if metadata.uid() != own && metadata.uid() != 0 {
            return Err(self.unsafe_because(belongs_to("it", metadata.uid()), &trusted(&self.0)));
        }
        let mode = metadata.mode() & 0o7777;
        let closed = format!("`{}`, or {ANOTHER}", command("chmod 700 {}", &self.0));
        // A session drops CAP_DAC_OVERRIDE, which overrides file permissions.
        if mode & 0o700 != 0o700 {
            let reason = format!(
                "its owner lacks permissions (mode {mode:o}), so evenkeel could not write a journal there"
            );
            return Err(self.unsafe_because(reason, &closed));
        }
        if mode & 0o022 != 0 {
            // Do not advise `chmod` for a directory with the sticky bit, such as /tmp: every user of
            // the host may need it.
            let next = match mode & 0o1000 {
                0 => closed,
                _ => "name a directory below it with EVENKEEL_STATE_DIR".to_owned(),
            };
            let reason = format!(
                "other users may write to it (mode {mode:o}), so another user could choose the values that \
                 root restores"
            );
            return Err(self.unsafe_because(reason, &next));
        }
        let real = self.0.canonicalize().map_err(failed)?;
        for parent in self.0.ancestors().chain(real.ancestors()).skip(1) {
            let Ok(metadata) = std::fs::symlink_metadata(parent) else { continue };
            if ![0, own].contains(&metadata.uid()) {
                let reason = belongs_to(&path_text(parent), metadata.uid());
                return Err(self.unsafe_because(reason, &trusted(parent)));
            }
            // With the sticky bit, a user cannot replace another user's files.
            if metadata.is_symlink() || metadata.mode() & 0o1000 != 0 {
                continue;
            }
            let is_of_group = ![0, getegid().as_raw()].contains(&metadata.gid());
            let writers = match metadata.mode() {
                mode if mode & 0o002 != 0 => Some(("all users", "chmod o-w {}")),
                mode if mode & 0o020 != 0 && is_of_group => Some(("a group", "chmod g-w {}")),
                _ => None,
            };
            if let Some((writers, change)) = writers {
                let reason = format!(
                    "{writers} may write to {} (mode {:o}), so another user could choose the values that \
                     root restores",
                    path_text(parent),
                    metadata.mode() & 0o7777
                );
                let next = format!("`{}`, or {ANOTHER}", command(change, parent));
                return Err(self.unsafe_because(reason, &next));
            }
        }
        Ok(())
    }

    /// Removes the permissions of other users. Refuses a directory that contains other files than
    /// journals, because it may have other uses.
    fn close_to_others(&self, directory: &Directory) -> Result<(), JournalError> {
        let mode = directory.file.metadata().map_err(|source| self.unusable(source))?.mode() & 0o7777;
        if mode & 0o077 == 0 {
            return Ok(());
        }
        let refused = |why: &str| {
            let why = format!("other users may read it (mode {mode:o}), and {why}");
            self.unusable(io::Error::other(why))
        };
        let is_own = |name: &str| [EXTENSION, DAMAGED, DRAFT].iter().any(|ending| name.ends_with(ending));
        if let Some(name) = directory.names()?.iter().find(|name| !is_own(name)) {
            return Err(refused(&format!("{} is not a journal", printable(name))));
        }
        fchmod(&directory.file, Mode::from_bits_truncate(mode & 0o700)).map_err(|error| refused(error.desc()))
    }

    fn unusable(&self, source: io::Error) -> JournalError {
        JournalError::Directory { path: self.0.clone(), source }
    }

    /// Converts an error before the first change, for example because the disk is full, into an error
    /// about the directory.
    pub(crate) fn takes_none(&self, error: JournalError) -> JournalError {
        match error {
            JournalError::File { source, .. } => self.unusable(source),
            error => error,
        }
    }

    fn unsafe_because(&self, reason: String, next: &str) -> JournalError {
        JournalError::Unsafe { path: self.0.clone(), reason, next: next.to_owned() }
    }

    pub(crate) fn made(&self) -> Result<Arc<Directory>, JournalError> {
        let gone = || self.unusable(io::ErrorKind::NotFound.into());
        let directory = self.open(true)?.ok_or_else(gone)?;
        directory.remove_drafts()?;
        Ok(Arc::new(directory))
    }
}

pub(crate) fn journal_name(interface: &InterfaceIdentity) -> String {
    format!("{}-{}.{EXTENSION}", interface.namespace, interface.index)
}

pub(crate) fn kept_journal_name(interface: &InterfaceIdentity) -> String {
    format!("{}-{}{KEPT}.{EXTENSION}", interface.namespace, interface.index)
}

pub(crate) fn is_kept(name: &str) -> bool {
    working_journal_of(name).is_some()
}

/// Returns the name of the run journal that belongs to a kept journal; `None` if `kept` is not the name
/// of a kept journal.
pub(crate) fn working_journal_of(kept: &str) -> Option<String> {
    let stem = kept.strip_suffix(&format!("{KEPT}.{EXTENSION}"))?;
    Some(format!("{stem}.{EXTENSION}"))
}

fn belongs_to(what: &str, user: u32) -> String {
    format!("{what} belongs to user ID {user}, so another user could choose the values that root restores")
}

fn command(template: &'static str, path: &Path) -> String {
    Line::new(template, &[&path_text(path)]).to_string()
}

/// Returns the next step for a directory of another user.
fn trusted(path: &Path) -> String {
    format!("if you trust the files in it, run `{}`; otherwise {ANOTHER}", command("chown root {}", path))
}

fn open_directory(path: &Path) -> io::Result<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Creates a directory that only its owner can access. Creates missing parents, with mode 755. Both modes
/// apply regardless of the umask.
fn make_private(path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|place| !place.exists()).collect();
    for place in missing.into_iter().rev() {
        let mode = if place == path { 0o700 } else { 0o755 };
        match DirBuilder::new().mode(mode).create(place) {
            Ok(()) => fchmod(open_directory(place)?, Mode::from_bits_truncate(mode))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The open directory. The descriptor stays valid if the path is replaced or removed. Each name opened
/// in the directory is a single path component and not a link, so no access leaves the directory.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
}

impl Directory {
    pub(crate) fn failed(&self, action: &'static str, name: &str) -> impl FnOnce(io::Error) -> JournalError {
        let path = self.path.join(name);
        move |source| JournalError::File { action, path, source }
    }

    pub(crate) fn names(&self) -> Result<Vec<String>, JournalError> {
        let own = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        let entries = std::fs::read_dir(own).map_err(self.failed("list", ""))?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect::<io::Result<_>>().map_err(self.failed("list", ""))
    }

    pub(crate) fn open_file(&self, name: &str, flags: OFlag) -> Result<Option<File>, JournalError> {
        if name.is_empty() || name.contains('/') || [".", ".."].contains(&name) {
            return Err(self.failed("open", name)(io::ErrorKind::InvalidInput.into()));
        }
        // Without O_NONBLOCK, opening a FIFO would wait for a writer.
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let open = |flags| openat(&self.file, name, flags, Mode::from_bits_truncate(0o600));
        let opened = match open(flags) {
            // Read access suffices for locking the journal and rolling back.
            Err(nix::Error::EROFS | nix::Error::EPERM) if !flags.contains(OFlag::O_CREAT) => {
                open(flags.difference(OFlag::O_ACCMODE))
            }
            opened => opened,
        };
        let file = match opened {
            Ok(descriptor) => File::from(descriptor),
            Err(nix::Error::ENOENT) => return Ok(None),
            Err(nix::Error::ELOOP) => return Err(self.is_link(name)),
            Err(nix::Error::EISDIR) => return Err(self.is_no_journal(name, "it is a directory", RESTORE)),
            // ENXIO: the file is a socket.
            Err(nix::Error::ENXIO) => {
                return Err(self.is_no_journal(name, "it is not a regular file", RESTORE));
            }
            Err(error) => return Err(self.failed("open", name)(error.into())),
        };
        let metadata = file.metadata().map_err(self.failed("look at", name))?;
        if !metadata.is_file() {
            let what = if metadata.is_dir() { "it is a directory" } else { "it is not a regular file" };
            return Err(self.is_no_journal(name, what, RESTORE));
        }
        if ![0, geteuid().as_raw()].contains(&metadata.uid()) {
            let next = format!(
                "if an administrator changed the owner, run `{}`; otherwise remove the file",
                command("chown root {}", &self.path.join(name))
            );
            return Err(self.is_no_journal(name, &belongs_to("it", metadata.uid()), &next));
        }
        Ok(Some(file))
    }

    fn is_link(&self, name: &str) -> JournalError {
        let Ok(to) = std::fs::read_link(self.path.join(name)) else {
            return self.is_no_journal(name, "it is a symbolic link", RESTORE);
        };
        let next = "if the link leads to the journal, replace the link with the journal";
        self.is_no_journal(name, &format!("it is a symbolic link to {}", path_text(&to)), next)
    }

    /// Returns the error for a file that is not read as a journal. The file may have replaced a journal
    /// with settings still in force.
    fn is_no_journal(&self, name: &str, reason: &str, next: &str) -> JournalError {
        let path = self.path.join(name);
        let (reason, next) = (reason.to_owned(), next.to_owned());
        let is_journal = name.ends_with(&format!(".{EXTENSION}")) || name.ends_with(DAMAGED);
        let obstacle = Obstacle { reason: reason.clone(), next: next.clone() };
        match is_journal.then(|| Damaged::behind(path.clone(), obstacle)).flatten() {
            Some(damaged) => damaged.into(),
            None => JournalError::Unsafe { path, reason, next },
        }
    }

    pub(crate) fn read(&self, file: &mut File, name: &str) -> Result<Contents, JournalError> {
        let mut bytes = Vec::new();
        file.rewind()
            .and_then(|()| file.by_ref().take(LONGEST + 1).read_to_end(&mut bytes))
            .map_err(self.failed("read", name))?;
        if bytes.len() as u64 > LONGEST {
            let damage = vec![Damage { line: 1, reason: "the file is longer than a journal can be" }];
            return Ok(Contents { damage, ..Contents::default() });
        }
        Ok(parse(&bytes, name))
    }

    pub(crate) fn status_of(&self, name: &str) -> Option<FileStat> {
        fstatat(&self.file, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok()
    }

    pub(crate) fn unlink(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.file, name, UnlinkatFlags::NoRemoveDir) {
            // ENOENT: another process has removed the file.
            Ok(()) | Err(nix::Error::ENOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds a name to a file. Returns false if the name is taken.
    pub(crate) fn link(&self, from: &str, to: &str) -> io::Result<bool> {
        match linkat(&self.file, from, &self.file, to, LinkatFlags::empty()) {
            Ok(()) => Ok(true),
            Err(nix::Error::EEXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes an empty file under a draft name and locks it. Returns `None` if another process took the file
    /// for a dead process's draft before the lock.
    fn locked_draft(&self, name: &str) -> Result<Option<(String, Flock<File>)>, JournalError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let draft = format!("{name}.{}-{number}{DRAFT}", std::process::id());
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL;
        // Remove the draft of a dead process with the same id.
        self.unlink(&draft).map_err(self.failed("remove", &draft))?;
        let missing = || self.failed("make", &draft)(io::ErrorKind::NotFound.into());
        let file = self.open_file(&draft, flags)?.ok_or_else(missing)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(self.status_of(&draft).map(|_| (draft, file))),
            Err((_, nix::Error::EWOULDBLOCK)) => Ok(None),
            Err((_, error)) => Err(self.failed("lock", &draft)(error.into())),
        }
    }

    /// Creates and locks a file under a draft name, and writes these bytes to it.
    pub(crate) fn draft(&self, name: &str, bytes: &[u8]) -> Result<(String, Flock<File>), JournalError> {
        let (draft, file) = loop {
            if let Some(made) = self.locked_draft(name)? {
                break made;
            }
        };
        // Set the mode regardless of the umask: a guardian without CAP_DAC_OVERRIDE opens the file
        // again.
        let written = fchmod(&*file, Mode::from_bits_truncate(0o600))
            .map_err(io::Error::from)
            .and_then(|()| file.write_all_at(bytes, 0))
            .and_then(|()| file.sync_all());
        if let Err(source) = written {
            let _ = self.unlink(&draft);
            return Err(self.failed("write", name)(source));
        }
        Ok((draft, file))
    }

    fn remove_drafts(&self) -> Result<(), JournalError> {
        for name in self.names()?.iter().filter(|name| name.ends_with(DRAFT)) {
            if let Ok(Some(file)) = self.open_file(name, OFlag::O_RDONLY)
                && let Ok(_lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            {
                let _ = self.unlink(name);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    use crate::error::{ApplyError, Cause};
    use crate::journal::{Entry, Header};
    use crate::journal_file::{Held, Standing, Watched};
    use crate::ours::Ours;
    use crate::storage::Storage;
    use evenkeel_model::change::{Knob, Value};

    fn header(index: u32) -> Header {
        Header::new(InterfaceIdentity::here(index, "evk").unwrap(), "fair")
    }

    fn entry(bytes: u32) -> Entry {
        let ours = vec![Ours::These(vec![Value::Bytes(bytes)])];
        Entry {
            knob: Knob::Mtu,
            from: Value::Bytes(1500),
            ours,
            theirs: false,
            with_channels: false,
            service: false,
        }
    }

    fn take(state: &StateDirectory, index: u32) -> Result<Held, ApplyError> {
        state.take(&header(index), |_| Ok(())).map(|(held, _)| held)
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_second_run_is_refused_and_told_about_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(directory.path().join("new"));
        let first = take(&state, 7).unwrap();
        assert_eq!((mode(&state.0), mode(&first.path())), (0o700, 0o600));
        let second = take(&state, 7).unwrap_err().to_string();
        let own = format!("evenkeel fair manages evk already: process {}, since 2", std::process::id());
        assert!(second.contains(&own), "{second}");
        take(&state, 8).unwrap().remove().unwrap();
        first.remove().unwrap();
        assert_eq!(std::fs::read_dir(&state.0).unwrap().count(), 0);
        take(&state, 7).unwrap();
    }

    /// Each run removes the drafts of dead processes, and may see a draft before its process locks it.
    #[test]
    fn runs_that_begin_at_once_leave_each_other_their_drafts() {
        let directory = tempfile::tempdir().unwrap();
        let state = &StateDirectory::at(directory.path());
        std::thread::scope(|scope| {
            for index in 1..=4 {
                scope.spawn(move || (0..300).for_each(|_| take(state, index).unwrap().remove().unwrap()));
            }
        });
        assert_eq!(std::fs::read_dir(&state.0).unwrap().count(), 0);
    }

    #[test]
    fn an_unheld_journal_is_seen_before_it_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(directory.path());
        let mut first = take(&state, 7).unwrap();
        first.append(&entry(1)).unwrap();
        let watched = Watched::open(&first.path()).unwrap().unwrap();
        drop(first);
        std::fs::write(directory.path().join("1-7.journal.5-0.draft"), "x").unwrap();
        let (mut second, seen) = state.take(&header(7), |held| Ok(held.read()?.entries)).unwrap();
        assert_eq!(seen.unwrap(), [entry(1)]);
        assert!(second.read().unwrap().entries.is_empty());
        assert_eq!(state.journals().unwrap(), [second.path()]);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "the draft is gone");
        let (mut held, standing) = watched.hold().unwrap();
        assert_eq!((standing, held.read().unwrap().shut), (Standing::Replaced, true));
    }

    #[test]
    fn an_open_journal_outlives_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(directory.path().join("state"));
        let mut held = take(&state, 7).unwrap();
        let watched = Watched::open(&held.path()).unwrap().unwrap();
        std::fs::remove_dir_all(&state.0).unwrap();
        held.append(&entry(1)).unwrap();
        drop(held);
        let (mut held, standing) = watched.hold().unwrap();
        assert_eq!((standing, held.read().unwrap().entries), (Standing::Removed, vec![entry(1)]));
        held.remove().unwrap();
    }

    #[test]
    fn a_damaged_journal_is_kept_under_another_name() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(directory.path());
        for name in ["1-7.journal.damaged", "1-7.journal.2.damaged"] {
            std::fs::write(directory.path().join("1-7.journal"), "").unwrap();
            let held = Held::take_path(&directory.path().join("1-7.journal")).unwrap().unwrap();
            assert_eq!(held.set_aside().unwrap(), directory.path().join(name));
        }
        assert_eq!((state.journals().unwrap().len(), state.damaged().unwrap().len()), (0, 2));
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let open = directory.path().join("open");
        std::fs::create_dir(&open).unwrap();
        let set_mode = |mode| {
            std::fs::set_permissions(&open, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set_mode(0o777);
        let refused = |path: &Path| take(&StateDirectory::at(path), 7).unwrap_err().to_string();
        assert!(refused(&open.join("state")).contains("all users may write to"));
        if geteuid().is_root() {
            std::os::unix::fs::chown(&open, None, Some(65534)).unwrap();
            set_mode(0o775);
            let refused = refused(&open.join("state"));
            assert!(refused.contains("a group may write to") && refused.contains("chmod g-w"), "{refused}");
            std::os::unix::fs::chown(&open, None, Some(0)).unwrap();
        }
        for wrong in [0o1777, 0o770, 0o720, 0o500, 0o000] {
            set_mode(wrong);
            // Without CAP_DAC_OVERRIDE, a directory without permissions cannot even be opened.
            let words = if wrong & 0o700 == 0o700 { "other users may write" } else { "" };
            let error = refused(&open);
            assert!(
                error.contains(words) && error.contains(&open.display().to_string()),
                "{wrong:o}: {error}"
            );
            let step = if wrong == 0o1777 { "a directory below it" } else { "chmod 700" };
            assert!(wrong & 0o700 != 0o700 || error.contains(step), "{wrong:o}: {error}");
            assert!(StateDirectory::at(&open).journals().is_err(), "{wrong:o}");
            assert_eq!(mode(&open), wrong, "it is not changed");
        }
        // Evenkeel must not change the permissions of a directory with a foreign file.
        std::fs::remove_dir(open.join("state")).unwrap();
        let foreign = open.join("foreign");
        std::fs::write(&foreign, "").unwrap();
        set_mode(0o755);
        let error = refused(&open);
        assert!(
            error.contains(
                "other users may read it (mode 755), and foreign is not a journal; name another directory"
            ),
            "{error}"
        );
        assert_eq!((mode(&open), std::fs::read_dir(&open).unwrap().count()), (0o755, 1));
        std::fs::remove_file(foreign).unwrap();
        for existing in [0o755, 0o750, 0o711, 0o700] {
            set_mode(existing);
            assert!(StateDirectory::at(&open).journals().is_ok());
            assert_eq!(mode(&open), existing, "a reader changes nothing");
            take(&StateDirectory::at(&open), 7).unwrap();
            assert_eq!(mode(&open), 0o700);
        }
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&open, &link).unwrap();
        assert!(refused(&link).contains("symbolic link"));
        if geteuid().is_root() {
            std::os::unix::fs::chown(&open, Some(65534), None).unwrap();
            assert!(refused(&open).contains("belongs to user ID 65534"));
            assert!(refused(&open.join("below")).contains("belongs to user"));
        }
    }

    #[test]
    fn a_file_is_no_directory_for_writers_and_readers_alike() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "x").unwrap();
        for path in [file.clone(), file.join("below")] {
            let state = StateDirectory::at(&path);
            let errors = [take(&state, 7).unwrap_err(), state.journals().unwrap_err().into()];
            for error in errors {
                assert_eq!(error.cause(), Cause::Unable, "{error}");
                assert!(error.to_string().contains("Not a directory"), "{error}");
            }
        }
    }

    #[test]
    fn a_journal_that_is_a_link_or_a_pipe_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(directory.path());
        let path = state.journal_of(&header(7).interface);
        let elsewhere = tempfile::tempdir().unwrap();
        let other = elsewhere.path().join("other");
        std::fs::write(&other, "x").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(take(&state, 7).unwrap_err().to_string().contains("symbolic link"));
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "x");
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, Mode::from_bits_truncate(0o600)).unwrap();
        assert!(take(&state, 7).unwrap_err().to_string().contains("not a regular file"));
        std::fs::remove_file(&path).unwrap();
        File::create(&path).unwrap().set_len(3 << 30).unwrap();
        let damage = StateDirectory::read(&path).unwrap().unwrap().damage;
        assert_eq!(damage[0].reason, "the file is longer than a journal can be");
    }

    #[test]
    fn a_setting_of_the_whole_namespace_has_one_owner() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(directory.path());
        let (mut first, second) = (take(&state, 7).unwrap(), take(&state, 8).unwrap());
        let knob = Knob::Sysctl("net/ipv4/tcp_rmem".to_owned());
        assert!(second.other_owner(&knob).unwrap().is_none());
        first.append(&Entry { knob: knob.clone(), ..entry(1) }).unwrap();
        assert_eq!(second.other_owner(&knob).unwrap().unwrap().interface.index, 7);
        assert!(first.other_owner(&knob).unwrap().is_none());
        let elsewhere =
            Header { interface: InterfaceIdentity { namespace: 1, ..header(8).interface }, ..header(8) };
        let (third, _) = state.take(&elsewhere, |_| Ok(())).unwrap();
        assert!(third.other_owner(&knob).unwrap().is_none(), "another namespace has its own");
        let lock = first.claim().unwrap();
        drop(lock);
        drop(second.claim().unwrap());
    }

    #[test]
    fn a_missing_directory_has_no_journals() {
        let state = StateDirectory::at("/nonexistent/evenkeel");
        assert_eq!(state.journals().unwrap(), Vec::<PathBuf>::new());
    }
}
