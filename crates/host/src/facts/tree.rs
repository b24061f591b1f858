//! A host as a tree of files: the running one, or one that was recorded or written by hand.
//!
//! The tree has the layout of `/proc` and `/sys`. What a running kernel tells over ioctl and netlink stands in a
//! recorded tree as JSON below [`ANSWERS`]. A tree that records keeps whatever is read through it, so that what is
//! saved is what was looked at.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::{HostError, Sysfs};

/// Directory of a recorded tree with what comes by ioctl and netlink.
pub const ANSWERS: &str = "/evenkeel";

/// Longest file that is read, bytes: a tree may come from anywhere.
const MOST_BYTES: u64 = 64 << 20;

/// Files that were read.
#[derive(Debug, Default)]
pub(super) struct Recording {
    /// Content by path.
    pub(super) files: BTreeMap<String, String>,
    /// Last part of what a symbolic link points to, by the link's path.
    pub(super) links: BTreeMap<String, String>,
}

/// A host's files.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    live: bool,
    /// The sysfs of this network namespace, where `/sys` shows another one's.
    network: Option<Sysfs>,
    recording: Option<RefCell<Recording>>,
    refused: RefCell<BTreeSet<String>>,
}

impl Tree {
    /// The running machine, seen from this process's network namespace.
    #[must_use]
    pub fn live() -> Self {
        let mut tree = Self {
            root: PathBuf::from("/"),
            live: true,
            network: None,
            recording: None,
            refused: RefCell::default(),
        };
        if !tree.sysfs_is_of_this_namespace() {
            tree.network = Sysfs::of_namespace().ok();
        }
        tree
    }

    /// A tree below a directory.
    ///
    /// # Errors
    /// When it is no directory with a host in it.
    pub fn recorded(root: impl Into<PathBuf>) -> Result<Self, HostError> {
        let root = root.into();
        for part in ["proc", "sys"] {
            let directory = root.join(part);
            let is_there = std::fs::metadata(&directory).and_then(|metadata| {
                if metadata.is_dir() { Ok(()) } else { Err(std::io::ErrorKind::NotADirectory.into()) }
            });
            is_there.map_err(|source| HostError::Read { path: directory, source })?;
        }
        Ok(Self { root, live: false, network: None, recording: None, refused: RefCell::default() })
    }

    /// Keeps what is read from now on.
    #[must_use]
    pub fn recording(mut self) -> Self {
        self.recording = Some(RefCell::default());
        self
    }

    /// Whether it is the running machine, whose kernel can be asked.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.live
    }

    /// Where a path of the host is, for messages.
    #[must_use]
    pub fn name(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn path(&self, path: &str) -> PathBuf {
        match (&self.network, path.strip_prefix("/sys/class/net")) {
            (Some(network), Some(rest)) => network.path(&format!("class/net{rest}")),
            _ => self.name(path),
        }
    }

    /// A mounted sysfs shows the interfaces of the namespace in which it was mounted.
    fn sysfs_is_of_this_namespace(&self) -> bool {
        let Some(devices) = self.read("/proc/net/dev") else { return true };
        let mut names: Vec<&str> =
            devices.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
        names.sort_unstable();
        let shown: Vec<String> =
            self.list("/sys/class/net").into_iter().filter(|name| name != "bonding_masters").collect();
        let is_own =
            |name: &&str| match (self.read_number(&format!("/sys/class/net/{name}/ifindex")), index_of(name))
            {
                (Some(shown), Some(own)) => shown == u64::from(own),
                _ => false,
            };
        shown == names && names.iter().all(is_own)
    }

    /// A file's text without white space around it; none if it is not there or cannot be read.
    pub fn read(&self, path: &str) -> Option<String> {
        let text = self.read_quietly(path)?;
        if let Some(recording) = &self.recording {
            recording.borrow_mut().files.insert(path.to_owned(), text.clone());
        }
        Some(text)
    }

    /// The same, of a file that is not to be recorded.
    pub(super) fn read_quietly(&self, path: &str) -> Option<String> {
        let place = self.path(path);
        let read = || -> std::io::Result<Option<String>> {
            let mut text = Vec::new();
            if self.live {
                File::open(&place)?.take(MOST_BYTES).read_to_end(&mut text)?;
            } else {
                // A tree from elsewhere may hold pipes and devices that never end.
                if !std::fs::metadata(&place)?.is_file() {
                    return Ok(None);
                }
                File::open(&place)?.take(MOST_BYTES).read_to_end(&mut text)?;
            }
            Ok(Some(String::from_utf8_lossy(&text).trim().to_owned()))
        };
        match read() {
            Ok(text) => text,
            Err(error) => {
                if error.kind() == std::io::ErrorKind::PermissionDenied {
                    self.refused.borrow_mut().insert(generalised(path));
                }
                None
            }
        }
    }

    /// The first bytes of a file that has no text, such as a card's configuration space. They are not recorded.
    pub(super) fn first_bytes(&self, path: &str, most: usize) -> Option<Vec<u8>> {
        let place = self.path(path);
        if !std::fs::metadata(&place).ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        File::open(place).ok()?.take(most as u64).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// A file's number.
    pub fn read_number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// Names in a directory, sorted; none if it is not there.
    pub fn list(&self, directory: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(directory)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Names in a directory that themselves are what matters: a recording keeps those that start so.
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

    /// Numbers behind a prefix of a directory's names (`cpu` of `cpu0`, `cpu1`), ascending.
    pub(super) fn numbers(&self, directory: &str, prefix: &str) -> Vec<u32> {
        let mut numbers: Vec<u32> =
            self.list(directory).iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect();
        numbers.sort_unstable();
        numbers
    }

    /// The last part of what a symbolic link points to.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.path(path)).ok()?;
        let name = target.file_name()?.to_str()?.to_owned();
        if let Some(recording) = &self.recording {
            recording.borrow_mut().links.insert(path.to_owned(), name.clone());
        }
        Some(name)
    }

    /// Whether something is there.
    pub(super) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// A JSON file below [`ANSWERS`]; none if it is not there.
    ///
    /// # Errors
    /// When it is not what it should be: the message names file, line and column.
    pub(super) fn answers<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<Option<T>, HostError> {
        let path = format!("{ANSWERS}/{name}");
        let Some(text) = self.read(&path) else { return Ok(None) };
        serde_json::from_str(&text).map(Some).map_err(|error| HostError::Format {
            path: self.name(&path),
            line: error.line(),
            reason: format!("column {}: {error}", error.column()),
        })
    }

    /// Keeps an answer of the kernel for a recording.
    pub(super) fn keep_answers(&self, name: &str, answers: &impl serde::Serialize) {
        if let Some(recording) = &self.recording
            && let Ok(text) = serde_json::to_string_pretty(answers)
        {
            recording.borrow_mut().files.insert(format!("{ANSWERS}/{name}"), text);
        }
    }

    /// What was recorded.
    pub(super) fn into_recording(self) -> Recording {
        self.recording.map(RefCell::into_inner).unwrap_or_default()
    }

    /// Kinds of files that this user may not read.
    pub(super) fn refused(&self) -> Vec<String> {
        self.refused.borrow().iter().cloned().collect()
    }
}

/// A path with the numbers of processes left out, for messages.
fn generalised(path: &str) -> String {
    let numeric = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = path.split('/').map(|part| if numeric(part) { "N" } else { part }).collect();
    parts.join("/")
}

/// An interface's number in this process's namespace.
fn index_of(name: &str) -> Option<u32> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: takes a string that ends with 0.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index > 0).then_some(index)
}

/// A file's path without `.` and `..`, from the root on.
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
