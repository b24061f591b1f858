//! A journal that a process locks by flock(2).

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_model::change::Knob;
use nix::fcntl::{Flock, FlockArg, OFlag, openat, renameat};
use nix::sys::stat::Mode;

use crate::damaged_journal::{DAMAGED, Damaged};
use crate::error::{ApplyError, JournalError};
use crate::holder::{is_alive, number_here};
use crate::journal::{EXTENSION, Entry, Header, Process};
use crate::journal_directory::{
    Directory, StateDirectory, is_kept, journal_name, kept_journal_name, working_journal_of,
};
use crate::journal_lines::{Contents, JournalWriter};
use crate::storage::{Rewritten, Storage};

/// Maximum time to wait for a holder that is exiting, or for a guardian that is rolling back.
const PATIENCE: Duration = Duration::from_secs(3);
/// Maximum time to wait for the lock of the host's settings. A revert holds it while it restores a NIC, which
/// can take seconds.
const CLAIM_PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

/// Whether the locked file still has the journal's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Named,
    /// A process removed the file or its directory.
    Removed,
    /// Another file, directory or link has the name.
    Replaced,
}

/// A journal that is open but not locked. It is readable even after its name was removed.
#[derive(Debug)]
pub(crate) struct Watched {
    directory: Arc<Directory>,
    name: String,
    file: File,
}

impl Watched {
    /// Opens a journal; returns `None` if the journal does not exist.
    pub(crate) fn open(journal: &Path) -> Result<Option<Self>, JournalError> {
        let (state, name) = StateDirectory::of_journal(journal);
        let Some(directory) = state.open(false)? else { return Ok(None) };
        let file = directory.open_file(&name, OFlag::O_RDWR)?;
        Ok(file.map(|file| Self { directory: Arc::new(directory), name, file }))
    }

    /// Locks the journal. Waits up to [`PATIENCE`] for a holder that is exiting. Also returns whether the
    /// file still has the journal's name.
    pub(crate) fn hold(self) -> Result<(Held, Standing), JournalError> {
        let Self { directory, name, file } = self;
        let held = Held::lock(file, &directory, &name)?;
        let standing = held.standing()?;
        Ok((held, standing))
    }
}

/// A journal locked by this process: no other Evenkeel process changes its settings.
#[derive(Debug)]
pub struct Held {
    directory: Arc<Directory>,
    name: String,
    file: Flock<File>,
    /// `None` before the first read, and for a journal that is damaged, finished or of format version 1.
    writer: Option<JournalWriter>,
    /// The state of the file when it last had the contents that `writer` knows.
    looked: Option<FileState>,
}

/// Length, and time of the last change (`st_ctime`, which no program can set).
type FileState = (u64, i64, i64);

impl Held {
    /// Locks a journal; returns `None` if the journal does not exist. Waits up to [`PATIENCE`] for a
    /// holder that is exiting.
    ///
    /// # Errors
    /// Returns [`JournalError::Busy`] if a live run holds the journal, or if the holder does not exit in
    /// time.
    pub(crate) fn take(directory: &Arc<Directory>, name: &str) -> Result<Option<Self>, JournalError> {
        loop {
            let Some(file) = directory.open_file(name, OFlag::O_RDWR)? else { return Ok(None) };
            let held = Self::lock(file, directory, name)?;
            // The previous holder may have removed the file while this process waited for the lock.
            if held.standing()? == Standing::Named {
                return Ok(Some(held));
            }
        }
    }

    pub(crate) fn take_path(journal: &Path) -> Result<Option<Self>, JournalError> {
        let (state, name) = StateDirectory::of_journal(journal);
        match state.open(false)? {
            Some(directory) => Self::take(&Arc::new(directory), &name),
            None => Ok(None),
        }
    }

    /// Locks the run journal that belongs to a kept journal. Creates the run journal if it does not
    /// exist. Returns `None` if the kept journal does not exist.
    pub(crate) fn take_working(kept: &Path, header: &Header) -> Result<Option<Self>, JournalError> {
        let (state, kept) = StateDirectory::of_journal(kept);
        let (Some(directory), Some(name)) = (state.open(false)?, working_journal_of(&kept)) else {
            return Ok(None);
        };
        let directory = Arc::new(directory);
        while directory.status_of(&kept).is_some() {
            if let Some(held) = Self::take(&directory, &name)? {
                return Ok(Some(held));
            }
            if let Some(held) = Self::create(&directory, &name, header, &[])? {
                return Ok(Some(held));
            }
        }
        Ok(None)
    }

    /// Creates a journal with its header and entries; returns `None` if the name is taken.
    pub(crate) fn create(
        directory: &Arc<Directory>,
        name: &str,
        header: &Header,
        entries: &[Entry],
    ) -> Result<Option<Self>, JournalError> {
        let (writer, bytes) = JournalWriter::whole(header, name, entries);
        let (draft, file) = directory.draft(name, &bytes)?;
        // Link the file only after its header is written. So an empty journal always means that another
        // program emptied it.
        let linked = directory.link(&draft, name);
        let removed = directory.unlink(&draft);
        let is_new =
            linked.and_then(|is_new| removed.map(|()| is_new)).map_err(directory.failed("make", name))?;
        let held = Self {
            directory: Arc::clone(directory),
            name: name.to_owned(),
            file,
            writer: Some(writer),
            looked: None,
        };
        Ok(is_new.then_some(held))
    }

    pub(crate) fn replace(mut self, header: &Header, entries: &[Entry]) -> Result<Self, JournalError> {
        let draft = self.draft(header, entries)?;
        self.shut()?;
        self.renamed(draft)
    }

    /// Adds directories and names of files of `--persist` to the header.
    pub(crate) fn note_files(
        &mut self,
        etc: &[String],
        names: &[String],
        entries: &[Entry],
    ) -> Result<(), JournalError> {
        let before = self.header()?;
        let mut header = before.clone();
        for (known, new) in [(&mut header.etc, etc), (&mut header.names, names)] {
            for text in new {
                if !known.contains(text) {
                    known.push(text.clone());
                }
            }
        }
        if header == before { Ok(()) } else { self.rewrite(&header, entries) }
    }

    pub(crate) fn header(&mut self) -> Result<Header, JournalError> {
        match &self.writer {
            Some(writer) => Ok(writer.header().clone()),
            None => Err(Damaged::of(self.path(), &self.read()?).into()),
        }
    }

    /// Replaces the journal. The old file stays valid until the new file has the name.
    pub(crate) fn rewrite(&mut self, header: &Header, entries: &[Entry]) -> Result<(), JournalError> {
        let draft = self.draft(header, entries)?;
        *self = self.renamed(draft)?;
        Ok(())
    }

    fn draft(
        &self,
        header: &Header,
        entries: &[Entry],
    ) -> Result<(JournalWriter, String, Flock<File>), JournalError> {
        let (writer, bytes) = JournalWriter::whole(header, &self.name, entries);
        let (draft, file) = self.directory.draft(&self.name, &bytes)?;
        Ok((writer, draft, file))
    }

    fn renamed(
        &self,
        (writer, draft, file): (JournalWriter, String, Flock<File>),
    ) -> Result<Self, JournalError> {
        let (directory, name) = (Arc::clone(&self.directory), self.name.clone());
        if let Some(path) = self.taken_place() {
            // Ignore the error: the next run removes the draft.
            let _ = directory.unlink(&draft);
            return Err(JournalError::Supplanted { path });
        }
        renameat(&directory.file, draft.as_str(), &directory.file, name.as_str())
            .map_err(|error| directory.failed("replace", &name)(error.into()))?;
        directory.file.sync_all().map_err(directory.failed("sync", ""))?;
        Ok(Self { directory, name, file, writer: Some(writer), looked: None })
    }

    fn lock(file: File, directory: &Arc<Directory>, name: &str) -> Result<Self, JournalError> {
        let deadline = Instant::now() + PATIENCE;
        let mut file = file;
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) => {
                    let (directory, name) = (Arc::clone(directory), name.to_owned());
                    return Ok(Self { directory, name, file, writer: None, looked: None });
                }
                Err((mut again, nix::Error::EWOULDBLOCK)) => {
                    let holder = directory.read(&mut again, name).ok().and_then(|contents| contents.header);
                    // The run is dead but its journal is locked: another process is rolling it back.
                    let ending = holder.as_ref().is_none_or(|header| !is_alive(header));
                    if !ending || Instant::now() > deadline {
                        let path = directory.path.join(name);
                        let holder = holder.and_then(|header| {
                            let process = number_here(&header)?;
                            Some(Box::new((header, process)))
                        });
                        return Err(JournalError::Busy { path, holder });
                    }
                    std::thread::sleep(POLL);
                    file = again;
                }
                Err((_, error)) => return Err(directory.failed("lock", name)(error.into())),
            }
        }
    }

    /// Returns the process in the journal file that has this name; `None` if that file is not a
    /// journal.
    pub(crate) fn named_process(&self) -> Option<Process> {
        let mut file = self.directory.open_file(&self.name, OFlag::O_RDONLY).ok()??;
        Some(self.directory.read(&mut file, &self.name).ok()?.header?.process)
    }

    pub(crate) fn standing(&self) -> Result<Standing, JournalError> {
        let own = self.file.metadata().map_err(self.directory.failed("look at", &self.name))?;
        Ok(match self.directory.status_of(&self.name) {
            None => Standing::Removed,
            Some(found) if (found.st_dev, found.st_ino) == (own.dev(), own.ino()) => Standing::Named,
            Some(_) => Standing::Replaced,
        })
    }

    /// Returns whether another program has truncated or overwritten the journal. Reads the file only if
    /// its status has changed.
    fn is_changed(&mut self) -> Result<bool, JournalError> {
        let Some(writer) = &self.writer else { return Ok(false) };
        let metadata = self.file.metadata().map_err(self.directory.failed("look at", &self.name))?;
        let state = (metadata.len(), metadata.ctime(), metadata.ctime_nsec());
        if self.looked == Some(state) {
            return Ok(false);
        }
        let contents = self.directory.read(&mut self.file, &self.name)?;
        let is_changed = contents.writer.as_ref() != Some(writer);
        self.looked = (!is_changed).then_some(state);
        Ok(is_changed)
    }

    pub(crate) fn read(&mut self) -> Result<Contents, JournalError> {
        let contents = self.directory.read(&mut self.file, &self.name)?;
        self.writer.clone_from(&contents.writer);
        Ok(contents)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path.join(&self.name)
    }

    /// Returns the other run, if any, that has journalled this setting of the namespace or host. Two
    /// runs that change the same setting would each restore the value of the other run.
    pub(crate) fn other_owner(&self, knob: &Knob) -> Result<Option<Header>, JournalError> {
        let ending = format!(".{EXTENSION}");
        let names = self.directory.names()?.into_iter();
        for name in names.filter(|name| name.ends_with(&ending) && !is_kept(name) && *name != self.name) {
            let Some(mut file) = self.directory.open_file(&name, OFlag::O_RDONLY)? else { continue };
            let contents = self.directory.read(&mut file, &name)?;
            let Some(header) = contents.header else { continue };
            let is_shared = match knob {
                Knob::Sysctl(path) if path.starts_with("net/") => {
                    let own = self.name.split('-').next();
                    own == name.split('-').next()
                }
                _ => true,
            };
            if is_shared && contents.entries.iter().any(|entry| entry.knob == *knob) {
                return Ok(Some(header));
            }
        }
        Ok(None)
    }

    /// Renames the journal, so that later commands keep the file but do not read it as a journal.
    pub(crate) fn set_aside(&self) -> Result<PathBuf, JournalError> {
        if self.standing()? != Standing::Named {
            return Ok(self.path());
        }
        for number in 1..1000 {
            let suffix = if number == 1 { String::new() } else { format!(".{number}") };
            let aside = format!("{}{suffix}{DAMAGED}", self.name);
            let failed = || self.directory.failed("rename", &self.name);
            if self.directory.link(&self.name, &aside).map_err(failed())? {
                self.directory.unlink(&self.name).map_err(failed())?;
                self.directory.file.sync_all().map_err(failed())?;
                return Ok(self.directory.path.join(aside));
            }
        }
        Err(self.directory.failed("rename", &self.name)(io::ErrorKind::AlreadyExists.into()))
    }

    fn append_synced(&mut self, writer: &JournalWriter, at: u64, lines: &[u8]) -> io::Result<()> {
        // Cut off a partial line of a failed write.
        self.file.set_len(at)?;
        self.file.write_all_at(lines, at)?;
        self.file.sync_data()?;
        self.file.write_all_at(&writer.count(), 0)?;
        self.file.sync_data()?;
        // A sync of the file does not make its directory entry durable (fsync(2)).
        self.directory.file.sync_all()
    }
}

impl Storage for Held {
    fn claim(&self) -> Result<Option<Flock<OwnedFd>>, JournalError> {
        let failed = |error: nix::Error| self.directory.failed("lock", "")(error.into());
        let deadline = Instant::now() + CLAIM_PATIENCE;
        loop {
            // A second open file description: a duplicated descriptor would share the lock.
            let again = openat(&self.directory.file, ".", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty());
            match Flock::lock(again.map_err(failed)?, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Some(lock)),
                Err((_, nix::Error::EWOULDBLOCK)) if Instant::now() < deadline => std::thread::sleep(POLL),
                Err((_, error)) => return Err(failed(error)),
            }
        }
    }

    fn append_shared(&mut self, entry: &Entry) -> Result<(), JournalError> {
        match self.other_owner(&entry.knob)? {
            Some(owner) => {
                Err(JournalError::Owned { knob: entry.knob.on("").to_string(), owner: Box::new(owner) })
            }
            None => self.append(entry),
        }
    }

    fn append(&mut self, entry: &Entry) -> Result<(), JournalError> {
        self.append_all(std::slice::from_ref(entry))
    }

    fn append_all(&mut self, entries: &[Entry]) -> Result<(), JournalError> {
        if self.writer.is_none() {
            self.read()?;
        }
        let Some(before) = self.writer.clone() else {
            return Err(Damaged::of(self.path(), &self.read()?).into());
        };
        let mut writer = before.clone();
        let lines: Vec<u8> = entries.iter().flat_map(|entry| writer.entry(entry)).collect();
        if let Err(source) = self.append_synced(&writer, before.bytes(), &lines) {
            // Ignore the error: if restoring the old count fails, the extra lines belong to a change
            // that was not made.
            let _ = self.file.write_all_at(&before.count(), 0);
            return Err(self.directory.failed("write to", &self.name)(source));
        }
        self.writer = Some(writer);
        Ok(())
    }

    fn write_again(&mut self, entries: &[Entry]) -> Result<Option<Rewritten>, JournalError> {
        let path = self.path();
        if self.standing()? == Standing::Named && self.is_changed()? {
            let header = self.header()?;
            self.rewrite(&header, entries)?;
            return Ok(Some(Rewritten::Changed(path)));
        }
        let is_gone =
            matches!(path.symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound);
        let Some(header) = self.writer.as_ref().map(JournalWriter::header).filter(|_| is_gone) else {
            return Ok(None);
        };
        let directory = StateDirectory::of_journal(&path).0.made()?;
        let Some(again) = Self::create(&directory, &self.name, header, entries)? else { return Ok(None) };
        directory.file.sync_all().map_err(directory.failed("sync", ""))?;
        let earlier = std::mem::replace(self, again);
        // The directory was renamed and still contains the previous file: remove the previous file.
        if earlier.standing()? == Standing::Named {
            earlier
                .directory
                .unlink(&earlier.name)
                .map_err(earlier.directory.failed("remove", &earlier.name))?;
        }
        Ok(Some(Rewritten::Removed(path)))
    }

    fn taken_place(&self) -> Option<PathBuf> {
        self.standing().is_ok_and(|standing| standing == Standing::Replaced).then(|| self.path())
    }

    /// Marks the journal, so that a guardian with an open descriptor sees that nothing is left to
    /// restore.
    fn shut(&mut self) -> Result<(), JournalError> {
        let shut = match &self.writer {
            Some(writer) => writer.shut(),
            None => match self.read()?.writer {
                Some(writer) => writer.shut(),
                // A finished journal already has the mark. Damaged journals and those of version 1 get none.
                None => return Ok(()),
            },
        };
        self.file.write_all_at(&shut, 0).map_err(self.directory.failed("write to", &self.name))
    }

    fn remove(mut self) -> Result<(), JournalError> {
        // Without the mark, a guardian would compare every knob again.
        let _ = self.shut();
        if let Some(path) = self.taken_place() {
            return Err(JournalError::Supplanted { path });
        }
        self.directory.unlink(&self.name).map_err(self.directory.failed("remove", &self.name))
    }
}

/// The decision about a journal that already exists.
pub(crate) enum Look<T> {
    /// Append to the existing journal.
    GoOn(T),
    /// Replace the existing journal with a new one that has these entries.
    BeginAnew(T, Vec<Entry>),
}

impl StateDirectory {
    /// Locks an interface's journal for a run. `settle` handles existing contents.
    pub(crate) fn take<T>(
        &self,
        header: &Header,
        mut settle: impl FnMut(&mut Held) -> Result<T, ApplyError>,
    ) -> Result<(Held, Option<T>), ApplyError> {
        self.take_as(&journal_name(&header.interface), header, |held| {
            Ok(Look::BeginAnew(settle(held)?, Vec::new()))
        })
    }

    pub(crate) fn take_kept<T>(
        &self,
        header: &Header,
        look: impl FnMut(&mut Held) -> Result<Look<T>, ApplyError>,
    ) -> Result<(Held, Option<T>), ApplyError> {
        self.take_as(&kept_journal_name(&header.interface), header, look)
    }

    /// Locks a journal by its name. `look` examines existing contents.
    fn take_as<T>(
        &self,
        name: &str,
        header: &Header,
        mut look: impl FnMut(&mut Held) -> Result<Look<T>, ApplyError>,
    ) -> Result<(Held, Option<T>), ApplyError> {
        let directory = self.made()?;
        loop {
            if let Some(mut held) = Held::take(&directory, name)? {
                return match look(&mut held)? {
                    Look::GoOn(found) => Ok((held, Some(found))),
                    Look::BeginAnew(found, entries) => {
                        let held = held.replace(header, &entries).map_err(|error| self.takes_none(error))?;
                        Ok((held, Some(found)))
                    }
                };
            }
            // Another process may create the journal first.
            let created =
                Held::create(&directory, name, header, &[]).map_err(|error| self.takes_none(error))?;
            if let Some(held) = created {
                return Ok((held, None));
            }
        }
    }
}

pub(crate) fn is_held(journal: &Path) -> Result<bool, JournalError> {
    let Some(Watched { file, .. }) = Watched::open(journal)? else { return Ok(false) };
    Ok(matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, nix::Error::EWOULDBLOCK))))
}
