//! A host as a tree of files: the running host, or a tree that was recorded or written by hand.
//!
//! The tree has the layout of `/proc` and `/sys`. A recorded tree has the kernel's answers over ioctl
//! and netlink as JSON below [`ANSWERS`]. A recording tree keeps the text files, links and answers that
//! are read through it. It does not keep binary files and files that are read quietly.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use evenkeel_model::host::{Unknown, parse_processor_list, processor_list};
use evenkeel_model::objects::read_json;
use evenkeel_model::text::{name_field, name_text, path_text, plain_words};

use crate::{Host, HostError, Sysfs};

/// Directory of a recorded tree with the answers over ioctl and netlink.
pub const ANSWERS: &str = "/evenkeel";

/// Maximum size of a file that is read, bytes. The limit is needed because a tree is not trusted.
const MOST_BYTES: u64 = 64 << 20;

/// Files and links that were read during a recording.
#[derive(Debug, Default)]
pub(super) struct Recording {
    /// Content by path.
    pub(super) files: BTreeMap<String, String>,
    /// Last component of a symbolic link's target, by the link's path.
    pub(super) links: BTreeMap<String, String>,
    pub(super) without_value: BTreeSet<String>,
}

#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    live: bool,
    /// Whether `/sys` shows another network namespace.
    is_foreign: bool,
    /// The sysfs of this network namespace, if [`Self::is_foreign`] and if this sysfs could be opened.
    network: OnceCell<Sysfs>,
    recording: Option<RefCell<Recording>>,
    /// Files that a recording lacks because the kernel had no value for them.
    without_value: RefCell<BTreeSet<String>>,
    /// Reasons why files and answers could not be read, by source.
    unknown: RefCell<BTreeMap<String, String>>,
    /// The CPUs that the host can have, read on first use; `None` if their list is unreadable or empty.
    possible: OnceCell<Option<BTreeSet<u32>>>,
}

/// The reason why a file has no text.
enum Absent {
    Missing,
    /// The file cannot be read, and the reason is noted.
    Noted,
    /// The kernel has no value, such as the speed of a link that is down.
    NoValue,
}

/// The CPUs that a mask may name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bits {
    /// Only possible CPUs.
    Possible,
    /// Any CPUs, of which at least one is possible. The kernel's default masks have all `NR_CPUS` bits
    /// (`irq_default_affinity`, kernel/irq/irqdesc.c; `CPU_MASK_ALL`). A write needs at least one
    /// online CPU (`write_irq_affinity`).
    AnyWithOnePossible,
}

impl Tree {
    /// Returns the running machine, as seen from this process's network namespace.
    #[must_use]
    pub fn live() -> Self {
        let tree = Self {
            root: PathBuf::from("/"),
            live: true,
            // If the check fails, use the mounted sysfs.
            is_foreign: !Sysfs::mounted_is_own().unwrap_or(true),
            network: OnceCell::new(),
            recording: None,
            without_value: RefCell::default(),
            unknown: RefCell::default(),
            possible: OnceCell::new(),
        };
        // Ignore the error: the functions that read interfaces return it.
        let _ = tree.own_namespace();
        tree
    }

    /// Returns the recorded tree below a directory.
    ///
    /// # Errors
    /// Returns an error if `root` has no directory `proc` or no directory `sys`.
    pub fn recorded(root: impl Into<PathBuf>) -> Result<Self, HostError> {
        let root = root.into();
        for part in ["proc", "sys"] {
            let directory = root.join(part);
            let is_there = std::fs::metadata(&directory).and_then(|metadata| {
                if metadata.is_dir() { Ok(()) } else { Err(std::io::ErrorKind::NotADirectory.into()) }
            });
            is_there.map_err(|source| HostError::Read { path: directory, source })?;
        }
        Ok(Self {
            root,
            live: false,
            is_foreign: false,
            network: OnceCell::new(),
            recording: None,
            without_value: RefCell::default(),
            unknown: RefCell::default(),
            possible: OnceCell::new(),
        })
    }

    /// Adds files that a recording lacks because the kernel had no value for them.
    pub(super) fn state_without_value(&self, paths: impl IntoIterator<Item = String>) {
        self.without_value.borrow_mut().extend(paths);
    }

    pub(super) fn without_value(&self) -> Vec<String> {
        let recorded = self.recording.iter().flat_map(|recording| recording.borrow().without_value.clone());
        recorded.chain(self.without_value.borrow().clone()).collect()
    }

    /// Returns an error if `/sys` shows the interfaces of another network namespace, and the sysfs of this
    /// namespace cannot be opened.
    pub(super) fn own_namespace(&self) -> Result<(), HostError> {
        if self.is_foreign && self.network.get().is_none() {
            let _ = self.network.set(Sysfs::of_namespace()?);
        }
        Ok(())
    }

    /// Returns an error if `/proc` or `/sys` of a running machine is not mounted.
    pub(super) fn require_mounts(&self) -> Result<(), HostError> {
        if self.live { Host::live().require_mounted(&["/proc", "/sys"]) } else { Ok(()) }
    }

    #[must_use]
    pub fn recording(mut self) -> Self {
        self.recording = Some(RefCell::default());
        self
    }

    /// Returns whether the tree is the running machine, whose kernel can be queried.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.live
    }

    /// Returns a path of the host with the tree's root in front of it.
    #[must_use]
    pub fn name(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn path(&self, path: &str) -> PathBuf {
        match (self.network.get(), path.strip_prefix("/sys/class/net")) {
            (Some(network), Some(rest)) => network.path(&format!("class/net{rest}")),
            // /proc/net shows the namespace of the process's first thread (proc_net(5)), so use the entry of
            // the calling thread.
            _ => match path.strip_prefix("/proc/net/").filter(|_| self.live) {
                Some(rest) => self.name(&format!("/proc/thread-self/net/{rest}")),
                None => self.name(path),
            },
        }
    }

    /// Returns the inode of a file of the running host; `None` in a recorded tree, or if the file cannot be
    /// reached.
    pub(super) fn inode(&self, path: &str) -> Option<u64> {
        let found = self.live.then(|| std::fs::metadata(self.path(path)))?;
        Some(found.ok()?.ino())
    }

    /// Returns a file's trimmed text; `None` if the file is missing, unreadable or without a value.
    pub fn read(&self, path: &str) -> Option<String> {
        self.text(path).ok()
    }

    /// Returns the text of a file that every Linux has. Notes a missing file.
    pub(super) fn required(&self, path: &str) -> Option<String> {
        match self.text(path) {
            Ok(text) => Some(text),
            Err(absent) => {
                if matches!(absent, Absent::Missing) {
                    self.note(path, format!("{path} is missing"));
                }
                None
            }
        }
    }

    /// Returns the first bytes of a binary file, such as a NIC's configuration space. Does not record
    /// them.
    pub(super) fn first_bytes(&self, path: &str, most: usize) -> Option<Vec<u8>> {
        let place = self.path(path);
        if !std::fs::metadata(&place).ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        File::open(place).ok()?.take(most as u64).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Returns the lines of a table that every Linux has. Notes a last line without a newline, which
    /// means that the file was truncated.
    pub(super) fn required_table(&self, path: &str) -> Option<String> {
        Some(self.whole(path, self.required(path)?))
    }

    /// Returns the lines of a table that only some hosts have. Otherwise like [`Self::required_table`].
    pub(super) fn table(&self, path: &str) -> Option<String> {
        Some(self.whole(path, self.read(path)?))
    }

    /// Returns the text. Notes a last line without a newline.
    fn whole(&self, path: &str, text: String) -> String {
        if !self.ends_with_line(path) {
            self.note_line(
                path,
                text.lines().count().max(1),
                "the file is cut off: its last line has no end",
            );
        }
        text
    }

    /// Notes the first line of a table whose number of columns differs from the previous line. The
    /// table starts at line `start`.
    pub(super) fn note_columns(&self, path: &str, table: &str, start: usize) {
        let columns: Vec<usize> = table.lines().map(|line| line.split_ascii_whitespace().count()).collect();
        if let Some(at) = columns.windows(2).position(|pair| pair[0] != pair[1]) {
            let reason = format!("{} columns in place of {}", columns[at + 1], columns[at]);
            self.note_line(path, start + at + 1, &reason);
        }
    }

    /// Parses the value of a file that every Linux has. Notes a missing file, or a text that the parser
    /// refuses.
    pub(super) fn required_value<T>(&self, path: &str, parser: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.required(path)?;
        self.parsed(path, &text, parser)
    }

    /// Notes each missing file that another directory of the same kind (`tx-0`, `tx-1`) has. The kernel
    /// shows an attribute in all such directories or in none.
    pub(super) fn note_unlike(&self, directories: &[String], names: &[&str]) {
        for name in names {
            let paths = directories.iter().map(|directory| format!("{directory}/{name}"));
            let (present, absent): (Vec<String>, Vec<String>) = paths.partition(|path| self.has(path));
            if !present.is_empty() {
                absent.iter().for_each(|path| self.require(path));
            }
        }
    }

    /// Returns whether the kernel shows a file, even one without a value.
    pub(super) fn has(&self, path: &str) -> bool {
        self.exists(path) || self.without_value.borrow().contains(path)
    }

    /// Returns the kernel's version, such as `(6, 12)`.
    pub(super) fn kernel(&self) -> Option<(u32, u32)> {
        let release = self.read("/proc/sys/kernel/osrelease")?;
        let mut parts = release.split(|character: char| !character.is_ascii_digit());
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }

    /// Parses the value of a file. Notes a text that the parser refuses.
    pub(super) fn parse<T>(&self, path: &str, parser: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.read(path)?;
        self.parsed(path, &text, parser)
    }

    fn parsed<T>(&self, path: &str, text: &str, parser: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let value = parser(text);
        if value.is_none() {
            self.note_line(path, 1, &unreadable(text));
        }
        value
    }

    /// Returns the CPUs that can ever be online (Documentation/admin-guide/cputopology.rst).
    pub(super) fn possible_processors(&self) -> Option<&BTreeSet<u32>> {
        let read = || {
            let list = self.parse("/sys/devices/system/cpu/possible", parse_processor_list)?;
            (!list.is_empty()).then(|| list.into_iter().collect())
        };
        self.possible.get_or_init(read).as_ref()
    }

    /// Parses a mask or list of CPUs. If it has CPUs that `bits` does not allow, notes it and returns `None`.
    pub(super) fn processors(
        &self,
        path: &str,
        bits: Bits,
        parser: impl FnOnce(&str) -> Option<Vec<u32>>,
    ) -> Option<Vec<u32>> {
        let members = self.parse(path, parser)?;
        let why = self.refused_processors(&members, bits);
        if let Some(why) = &why {
            self.note_line(path, 1, why);
        }
        why.is_none().then_some(members)
    }

    /// Returns the reason why a list of CPUs is impossible, if any.
    pub(super) fn refused_processors(&self, members: &[u32], bits: Bits) -> Option<String> {
        let possible = self.possible_processors()?;
        // If the list of possible CPUs lacks an online CPU, the list itself is wrong. The reader of
        // CPUs notes this.
        let online = self.parse("/sys/devices/system/cpu/online", parse_processor_list).unwrap_or_default();
        if online.iter().any(|number| !possible.contains(number)) {
            return None;
        }
        let odd = members.iter().find(|member| !possible.contains(member))?;
        if bits == Bits::AnyWithOnePossible && members.iter().any(|member| possible.contains(member)) {
            return None;
        }
        let list = processor_list(&possible.iter().copied().collect::<Vec<_>>());
        Some(format!("names processor {odd}, and there are only {list} (/sys/devices/system/cpu/possible)"))
    }

    /// Notes that a source could not be read. Keeps the first reason.
    pub(super) fn note(&self, source: &str, why: impl Into<String>) {
        self.unknown.borrow_mut().entry(generalised(source)).or_insert_with(|| why.into());
    }

    /// Removes the notes about unreadable sources, before the sources are read again.
    pub(super) fn forget_gaps(&self) {
        self.unknown.borrow_mut().clear();
    }

    pub(super) fn is_noted(&self, source: &str) -> bool {
        self.unknown.borrow().contains_key(source)
    }

    pub(super) fn note_line(&self, path: &str, line: usize, reason: &str) {
        self.note(path, format!("{path}:{line}: {reason}"));
    }

    /// Notes the reason why a file or directory could not be reached. Does not note mere absence, or
    /// files of a directory that is already noted.
    pub(super) fn note_error(&self, path: &str, error: &std::io::Error) {
        if self.is_absent(path, error) || self.is_below_gap(path) {
            return;
        }
        if let Some(link) = self.broken_link(path) {
            return self.note(link, format!("{link}: the target of this link is missing"));
        }
        let why = match error.kind() {
            std::io::ErrorKind::PermissionDenied if self.live => {
                format!("{} is readable by root only", generalised(path))
            }
            // Name the file in the recording, not the file of this host.
            std::io::ErrorKind::PermissionDenied => format!("{}: {error}", path_text(&self.name(path))),
            _ => format!("{path}: {error}"),
        };
        self.note(path, why);
    }

    fn is_below_gap(&self, path: &str) -> bool {
        let noted = self.unknown.borrow();
        path.match_indices('/').any(|(at, _)| at > 0 && noted.contains_key(&generalised(&path[..at])))
    }

    /// Returns whether an error proves that the host does not have the file. Returns false if part of the
    /// path is a link without a target.
    pub(super) fn is_absent(&self, path: &str, error: &std::io::Error) -> bool {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        matches!(error.kind(), NotFound | NotADirectory) && self.broken_link(path).is_none()
    }

    /// Returns the first part of a path that is a link without a target.
    fn broken_link<'a>(&self, path: &'a str) -> Option<&'a str> {
        let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
        ends.map(|end| &path[..end]).find(|part| {
            let place = self.path(part);
            place.is_symlink()
                && place.metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        })
    }

    fn text(&self, path: &str) -> Result<String, Absent> {
        let text = self.text_quietly(path);
        if let Some(recording) = &self.recording {
            match &text {
                Ok(text) => drop(recording.borrow_mut().files.insert(path.to_owned(), text.clone())),
                Err(Absent::NoValue) => drop(recording.borrow_mut().without_value.insert(path.to_owned())),
                Err(_) => {}
            }
        }
        text
    }

    /// Returns a file's text without recording it.
    pub(super) fn read_quietly(&self, path: &str) -> Option<String> {
        self.text_quietly(path).ok()
    }

    fn text_quietly(&self, path: &str) -> Result<String, Absent> {
        let bytes = self.bytes(path).map_err(|error| match error {
            error if self.is_absent(path, &error) => {
                let is_stated = self.without_value.borrow().contains(path);
                if is_stated { Absent::NoValue } else { Absent::Missing }
            }
            // Drivers return these errors for missing features. The kernel returns ESRCH for a process
            // that exits while its file is read.
            error
                if self.live
                    && matches!(
                        error.raw_os_error(),
                        Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENODEV | libc::ESRCH | libc::ENETDOWN)
                    ) =>
            {
                Absent::NoValue
            }
            error => {
                self.note_error(path, &error);
                Absent::Noted
            }
        })?;
        // A recording ends even an empty text with a newline, so an empty file is damaged.
        if bytes.is_empty() && !self.live {
            self.note(path, format!("{path}:1: empty"));
        }
        let text = String::from_utf8_lossy(&bytes);
        if let (std::borrow::Cow::Owned(_), false) = (&text, self.live) {
            let line = text.lines().position(|line| line.contains(char::REPLACEMENT_CHARACTER)).unwrap_or(0);
            self.note_line(path, line + 1, "unreadable bytes");
        }
        // Editors may insert a byte-order mark.
        Ok(text.trim_start_matches('\u{feff}').trim().to_owned())
    }

    fn bytes(&self, path: &str) -> std::io::Result<Vec<u8>> {
        let place = self.path(path);
        // A tree from another host may contain pipes and devices, which never end.
        if !self.live && !std::fs::metadata(&place)?.is_file() {
            return Err(std::io::Error::other("not a regular file"));
        }
        let mut bytes = Vec::new();
        File::open(&place)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(std::io::Error::other(format!("larger than {} MiB", MOST_BYTES >> 20)));
        }
        Ok(bytes)
    }

    /// Returns whether a recorded file ends with a newline, as files of the kernel do. `true` on a running
    /// host.
    fn ends_with_line(&self, path: &str) -> bool {
        self.live || self.bytes(path).is_ok_and(|bytes| bytes.last() == Some(&b'\n'))
    }

    /// Returns the number in a file. Notes a text that is not a number.
    pub fn read_number(&self, path: &str) -> Option<u64> {
        self.parse(path, |text| text.parse().ok())
    }

    /// Returns the names in a directory, sorted; empty if the directory is missing or unreadable. Notes
    /// every error except a missing directory.
    pub fn list(&self, directory: &str) -> Vec<String> {
        self.entries(directory).unwrap_or_else(|error| {
            self.note_error(directory, &error);
            Vec::new()
        })
    }

    /// Returns the names in a directory, sorted. Notes and omits a name that is not UTF-8.
    ///
    /// # Errors
    /// Returns an error if the directory is missing, or cannot be read.
    pub(super) fn entries(&self, directory: &str) -> std::io::Result<Vec<String>> {
        let entries = std::fs::read_dir(self.path(directory))?.collect::<Result<Vec<_>, _>>()?;
        let mut names = Vec::new();
        for entry in entries {
            match entry.file_name().into_string() {
                Ok(name) => names.push(name),
                Err(name) => {
                    let path = format!("{directory}/{}", name_text(name.as_bytes()));
                    self.note(&path, format!("{path}: left out, because its name is not UTF-8"));
                }
            }
        }
        names.sort();
        Ok(names)
    }

    /// Returns the names in a directory that start with a prefix. A recording keeps the names, because
    /// they are facts.
    pub(super) fn list_names(&self, directory: &str, prefix: &str) -> Vec<String> {
        let mut names = self.list(directory);
        names.retain(|name| name.starts_with(prefix));
        if let Some(recording) = &self.recording {
            let mut recording = recording.borrow_mut();
            for name in &names {
                recording.files.entry(format!("{directory}/{name}")).or_default();
            }
        }
        names
    }

    /// Returns the numbers after a prefix in a directory's names (`cpu` of `cpu0`, `cpu1`), ascending.
    pub(super) fn numbers(&self, directory: &str, prefix: &str) -> Vec<u32> {
        let number = |name: String| {
            let number: u32 = name.strip_prefix(prefix)?.parse().ok()?;
            let is_kernels = name == format!("{prefix}{number}");
            if !is_kernels {
                let path = format!("{directory}/{name}");
                self.note(&path, format!("{path}: the kernel writes this number as {prefix}{number}"));
            }
            is_kernels.then_some(number)
        };
        let mut numbers: Vec<u32> = self.list(directory).into_iter().filter_map(number).collect();
        numbers.sort_unstable();
        numbers
    }

    pub(super) fn link(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.path(path)).ok()?;
        let name = target.file_name()?.to_str()?.to_owned();
        if let Some(recording) = &self.recording {
            recording.borrow_mut().links.insert(path.to_owned(), name.clone());
        }
        Some(name)
    }

    /// Returns whether the mode of a file has a write bit, for the owner, the group or others.
    pub(super) fn is_writable(&self, path: &str) -> bool {
        use std::os::unix::fs::PermissionsExt;
        const WRITE: u32 = 0o222;
        self.path(path).metadata().is_ok_and(|metadata| metadata.permissions().mode() & WRITE != 0)
    }

    /// Returns whether a path exists. Notes an error other than absence.
    pub(super) fn exists(&self, path: &str) -> bool {
        let found = self.path(path).metadata();
        found.inspect_err(|error| self.note_error(path, error)).is_ok()
    }

    /// Returns whether a directory has this entry, which may be a link without a target.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read.
    pub(super) fn has_entry(&self, path: &str) -> std::io::Result<bool> {
        match self.path(path).symlink_metadata() {
            Ok(_) => Ok(true),
            Err(error) if self.is_absent(path, &error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Notes a path that every Linux has, if the path is missing or cannot be reached.
    pub(super) fn require(&self, path: &str) {
        if !self.has(path) && !self.is_below_gap(path) {
            self.note(path, format!("{path} is missing"));
        }
    }

    /// Reads a JSON file below [`ANSWERS`]; `None` if the file is missing.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or has another format. The message about a format names
    /// the file, line and column.
    pub(super) fn answers<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<Option<T>, HostError> {
        let path = format!("{ANSWERS}/{name}");
        let Some(text) = self.read(&path) else { return self.answers_absent(&path) };
        read_json(text.as_bytes()).map(Some).map_err(|error| HostError::Format {
            path: self.name(&path),
            line: error.line(),
            reason: plain_words(
                &name_field((error.line(), error.column()), error, text.as_bytes()).to_string(),
            ),
        })
    }

    /// Returns an error if an answer exists but cannot be read, because no rule names an answer as a
    /// source.
    fn answers_absent<T>(&self, path: &str) -> Result<Option<T>, HostError> {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        match self.bytes(path) {
            Err(source) if !matches!(source.kind(), NotFound | NotADirectory) => {
                Err(HostError::Answer { path: self.name(path), source })
            }
            _ => Ok(None),
        }
    }

    pub(super) fn keep_answers(&self, name: &str, answers: &impl serde::Serialize) {
        if let Some(recording) = &self.recording
            && let Ok(text) = serde_json::to_string_pretty(answers)
        {
            recording.borrow_mut().files.insert(format!("{ANSWERS}/{name}"), text);
        }
    }

    pub(super) fn into_recording(self) -> Recording {
        self.recording.map(RefCell::into_inner).unwrap_or_default()
    }

    /// Returns the sources that could not be read, sorted by name.
    pub(super) fn unknown(&self) -> Vec<Unknown> {
        self.unknown
            .borrow()
            .iter()
            .map(|(source, why)| Unknown::new(source.as_str(), why.as_str()))
            .collect()
    }
}

/// Describes a line that does not have the kernel's format, shortened.
pub(super) fn unreadable(text: &str) -> String {
    const MOST: usize = 24;
    let shown: String = text.chars().take(MOST).flat_map(char::escape_default).collect();
    let more = if text.chars().nth(MOST).is_some() { "…" } else { "" };
    if text.is_empty() { "empty".to_owned() } else { format!("unreadable: '{shown}{more}'") }
}

/// Returns a path with `PID` in place of a process's number, because rules need the files of all
/// processes.
fn generalised(path: &str) -> String {
    let of_process = path.strip_prefix("/proc/").and_then(|rest| rest.split_once('/'));
    match of_process {
        Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("/proc/PID/{rest}")
        }
        _ => path.to_owned(),
    }
}

/// Returns an absolute path without `.` and `..`.
pub(super) fn normalised(path: &str) -> PathBuf {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    Path::new("/").join(parts.join("/"))
}
