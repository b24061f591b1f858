//! Files below `/etc` that apply settings again after a reboot.
//!
//! The first line of each file names Evenkeel and has a checksum of the rest. So Evenkeel recognizes
//! its files after any number of reboots, without a journal, and keeps edited files.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::PersistError;

const MARK: &str = "# Written by evenkeel tune; `evenkeel revert` removes it. Checksum ";
/// The directory of the links that enable systemd units.
const ENABLED: &str = "systemd/system/multi-user.target.wants";
/// Directories below `/etc` that can hold files of `--persist`.
const DIRECTORIES: [&str; 4] = ["sysctl.d", "systemd/system", "udev/rules.d", ENABLED];

const PREFIXES: [&str; 2] = ["90-evenkeel-", "evenkeel-tune-"];
/// Suffix of drafts written by version 0.1.0.
const OLD_DRAFT: &str = ".evenkeel-draft";

/// `/etc`, or a directory that replaces it (`EVENKEEL_ETC_DIR`).
#[derive(Clone, Debug)]
pub struct Etc(PathBuf);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    Removed(PathBuf),
    /// The file is kept, because it was edited after Evenkeel wrote it, or is not from Evenkeel.
    Edited(PathBuf),
}

impl Etc {
    /// Returns the directory in `EVENKEEL_ETC_DIR`, else `/etc`.
    #[must_use]
    pub fn from_environment() -> Self {
        Self::at(Self::named().unwrap_or_else(|| PathBuf::from("/etc")))
    }

    /// Returns the absolute path of the directory in `EVENKEEL_ETC_DIR`, which the host does not read at
    /// boot. Returns `None` if the variable is unset or empty, or if the path leads to `/etc`.
    #[must_use]
    pub fn named() -> Option<PathBuf> {
        let named = std::env::var_os("EVENKEEL_ETC_DIR").filter(|path| !path.is_empty())?;
        Self::unless_host(std::path::absolute(&named).unwrap_or_else(|_| named.into()))
    }

    /// Refuses a file in place of the directory. Call this function before settings are changed.
    pub fn require_directory(&self) -> Result<(), PersistError> {
        match fs::metadata(&self.0) {
            Ok(found) if !found.is_dir() => Err(PersistError::NoDirectory { path: self.0.clone() }),
            _ => Ok(()),
        }
    }

    fn unless_host(named: PathBuf) -> Option<PathBuf> {
        let of_host = fs::canonicalize("/etc").ok();
        let is_of_host = of_host.is_some() && fs::canonicalize(&named).ok() == of_host;
        (!is_of_host).then_some(named)
    }

    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    #[must_use]
    pub fn path(&self, below: &str) -> PathBuf {
        self.0.join(below)
    }

    /// Adds the first line, which has the checksum, to a text.
    #[must_use]
    pub fn marked(text: &str) -> String {
        format!("{MARK}{:016x}.\n{text}", checksum(text))
    }

    /// Writes a file atomically. Replaces only a file that Evenkeel wrote and no user edited. Returns whether
    /// the file changed.
    ///
    /// # Errors
    /// Returns an error if a foreign or edited file has the path, or if the file cannot be written.
    pub fn write(&self, below: &str, text: &str) -> Result<bool, PersistError> {
        let path = self.path(below);
        let failed = |action| move |source| PersistError::File { action, path: self.path(below), source };
        let whole = Self::marked(text);
        match find(&path).map_err(failed("read"))? {
            Found::File(text) if text == whole => return Ok(false),
            Found::Link | Found::Foreign => return Err(PersistError::Foreign { path }),
            Found::Nothing | Found::File(_) => {}
        }
        make_parent(&path).map_err(failed("make the directory of"))?;
        evenkeel_files::replace(&path, whole.as_bytes(), 0o644)?;
        Ok(true)
    }

    /// Creates a link, such as a link that enables a unit.
    pub fn link(&self, below: &str, to: &str) -> Result<(), PersistError> {
        let path = self.path(below);
        let failed = |action| move |source| PersistError::File { action, path: self.path(below), source };
        match fs::read_link(&path) {
            Ok(found) if found == Path::new(to) => return Ok(()),
            Ok(_) => return Err(PersistError::Foreign { path }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(failed("read")(source)),
        }
        make_parent(&path).map_err(failed("make the directory of"))?;
        std::os::unix::fs::symlink(to, &path).map_err(failed("make the link"))
    }

    /// Returns the paths, relative to this directory, of all files and links with Evenkeel's prefixes, for
    /// any interface.
    pub fn written(&self) -> Result<Vec<String>, PersistError> {
        let mut found = Vec::new();
        for directory in DIRECTORIES {
            let path = self.path(directory);
            let failed = |source| PersistError::File { action: "list", path: self.path(directory), source };
            let entries = match fs::read_dir(&path) {
                Ok(entries) => entries,
                Err(error) if is_absent(&error) => continue,
                Err(source) => return Err(failed(source)),
            };
            for entry in entries {
                let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
                let is_ours = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
                if is_ours && !name.ends_with(OLD_DRAFT) {
                    found.push(format!("{directory}/{name}"));
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// Returns whether Evenkeel wrote a file and no user edited the file.
    pub fn is_unedited(&self, below: &str) -> Result<bool, PersistError> {
        let path = self.path(below);
        match find(&path) {
            Ok(found) => Ok(matches!(found, Found::File(_))),
            Err(source) => Err(PersistError::File { action: "read", path, source }),
        }
    }

    /// Removes the drafts of killed processes.
    pub fn remove_drafts(&self) {
        for directory in DIRECTORIES {
            let path = self.path(directory);
            evenkeel_files::remove_abandoned(&path);
            for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.ends_with(OLD_DRAFT) && PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
                    // Ignore the error: no program reads a draft.
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
    }

    /// Returns the network namespace for file names, to distinguish interfaces with the same name. Returns
    /// `None` in the initial namespace of the host or container, or if the namespace cannot be read.
    /// Otherwise returns the inode of the calling thread's namespace.
    #[must_use]
    pub fn namespace() -> Option<u64> {
        let inode = |path: &str| fs::metadata(path).map(|metadata| metadata.ino()).ok();
        let own = inode("/proc/thread-self/ns/net")?;
        let is_first = match inode("/proc/1/ns/net") {
            Some(first) => first == own,
            // Without an inode to compare, look for a file that only the initial network namespace has
            // (net/core/sysctl_net_core.c).
            None => Path::new("/proc/sys/net/core/netdev_budget").exists(),
        };
        (!is_first).then_some(own)
    }

    /// Removes these files and links, except edited and foreign files. Returns the result for each path that
    /// exists.
    pub fn remove(&self, paths: &[String]) -> Result<Vec<Removal>, PersistError> {
        let mut removals = Vec::new();
        for below in paths {
            let path = self.path(below);
            let failed = |action| move |source| PersistError::File { action, path: self.path(below), source };
            match find(&path).map_err(failed("read"))? {
                Found::Nothing => {}
                Found::Foreign => removals.push(Removal::Edited(path)),
                Found::File(_) | Found::Link => {
                    fs::remove_file(&path).map_err(failed("remove"))?;
                    removals.push(Removal::Removed(path));
                }
            }
        }
        Ok(removals)
    }
}

/// Creates a file's directory, never world-writable, regardless of the umask.
fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| DirBuilder::new().recursive(true).mode(0o755).create(parent))
}

enum Found {
    Nothing,
    /// A file that Evenkeel wrote and no user edited.
    File(String),
    /// A link that enables the unit of the same name.
    Link,
    /// Another program's object, or an edited file.
    Foreign,
}

fn find(path: &Path) -> io::Result<Found> {
    let kind = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(error),
    };
    if kind.is_symlink() {
        let (name, to) = (path.file_name().unwrap_or_default(), fs::read_link(path)?);
        let Some(parent) = path.parent().filter(|parent| parent.ends_with(ENABLED)) else {
            return Ok(Found::Foreign);
        };
        // `systemctl reenable` makes the link absolute.
        let unit = parent.with_file_name(name);
        let enables = to == Path::new("..").join(name) || to == unit;
        return Ok(if enables { Found::Link } else { Found::Foreign });
    }
    // Reading a FIFO would block.
    if !kind.is_file() {
        return Ok(Found::Foreign);
    }
    let text = String::from_utf8(fs::read(path)?).ok().filter(|text| is_ours(text));
    Ok(text.map_or(Found::Foreign, Found::File))
}

/// Returns whether a file does not exist. This includes the case that another file has the path of its
/// directory.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Returns whether the checksum in the first line matches.
fn is_ours(text: &str) -> bool {
    let Some((first, rest)) = text.split_once('\n') else { return false };
    let sum = first.strip_prefix(MARK).and_then(|sum| sum.strip_suffix('.'));
    sum.is_some_and(|sum| sum == format!("{:016x}", checksum(rest)))
}

/// Computes FNV-1a, 64 bits, which detects accidents, not attacks.
fn checksum(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    const FILE: &str = "sysctl.d/90-evenkeel-eth0.conf";

    #[test]
    fn the_hosts_directory_is_recognised_by_any_name() {
        let place = tempfile::tempdir().unwrap();
        let link = place.path().join("link");
        std::os::unix::fs::symlink("/etc", &link).unwrap();
        for named in ["/etc", "/etc/", "/etc/.", "//etc", link.to_str().unwrap()] {
            assert_eq!(Etc::unless_host(named.into()), None, "{named}");
        }
        for named in [place.path().to_owned(), place.path().join("missing"), "/etc/evenkeel".into()] {
            assert_eq!(Etc::unless_host(named.clone()), Some(named));
        }
    }

    #[test]
    fn a_file_is_written_once_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let etc = Etc::at(directory.path());
        assert!(etc.write(FILE, "a = 1\n").unwrap());
        assert!(!etc.write(FILE, "a = 1\n").unwrap(), "it is there");
        assert!(etc.write(FILE, "a = 2\n").unwrap());
        let link = "systemd/system/multi-user.target.wants/evenkeel-tune-eth0.service";
        etc.link(link, "../evenkeel-tune-eth0.service").unwrap();
        etc.link(link, "../evenkeel-tune-eth0.service").unwrap();
        fs::write(etc.path("sysctl.d/10-other.conf"), "b = 1\n").unwrap();
        let unfinished = etc.path("sysctl.d/.evenkeel-partial-x");
        fs::write(&unfinished, "").unwrap();
        let written = etc.written().unwrap();
        assert_eq!(written, [FILE, link]);
        etc.remove_drafts();
        assert!(!unfinished.exists());
        let removals = etc.remove(&written).unwrap();
        assert_eq!(removals, [Removal::Removed(etc.path(FILE)), Removal::Removed(etc.path(link))]);
        assert_eq!(etc.remove(&written).unwrap(), []);
        assert!(etc.path("sysctl.d/10-other.conf").exists());
        assert_eq!(Etc::at("/nonexistent/etc").written().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn what_an_administrator_put_in_place_of_a_file_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let etc = Etc::at(directory.path());
        etc.write(FILE, "a = 1\n").unwrap();
        let text = fs::read_to_string(etc.path(FILE)).unwrap();
        let own = etc.path("own.conf");
        let link = format!("{ENABLED}/evenkeel-tune-eth0.service");
        make_parent(&etc.path(&link)).unwrap();
        // The administrator also owns a link to a file with a valid checksum, and a link to another
        // unit.
        fs::write(&own, text).unwrap();
        for below in [FILE, &link] {
            let _ = fs::remove_file(etc.path(below));
            std::os::unix::fs::symlink(&own, etc.path(below)).unwrap();
            assert_eq!(etc.remove(&[below.to_owned()]).unwrap(), [Removal::Edited(etc.path(below))]);
            assert!(etc.path(below).is_symlink() && own.exists());
        }
        assert!(matches!(etc.write(FILE, "a = 2\n"), Err(PersistError::Foreign { .. })));
        fs::remove_file(etc.path(FILE)).unwrap();
        nix::unistd::mkfifo(&etc.path(FILE), nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        assert_eq!(etc.remove(&[FILE.to_owned()]).unwrap(), [Removal::Edited(etc.path(FILE))]);
        fs::remove_file(etc.path(&link)).unwrap();
        let unit = etc.path("systemd/system/evenkeel-tune-eth0.service");
        std::os::unix::fs::symlink(&unit, etc.path(&link)).unwrap();
        assert_eq!(etc.remove(std::slice::from_ref(&link)).unwrap(), [Removal::Removed(etc.path(&link))]);
    }

    #[test]
    fn a_draft_of_a_process_that_was_killed_is_no_file_and_goes() {
        let directory = tempfile::tempdir().unwrap();
        let etc = Etc::at(directory.path());
        etc.write(FILE, "a = 1\n").unwrap();
        let draft = etc.path("sysctl.d/90-evenkeel-eth0.evenkeel-draft");
        fs::write(&draft, "a =").unwrap();
        assert_eq!(etc.written().unwrap(), [FILE]);
        etc.remove_drafts();
        assert!(!draft.exists() && etc.path(FILE).exists());
    }

    #[test]
    fn what_somebody_edited_is_theirs() {
        let directory = tempfile::tempdir().unwrap();
        let etc = Etc::at(directory.path());
        etc.write(FILE, "a = 1\n").unwrap();
        let text = fs::read_to_string(etc.path(FILE)).unwrap();
        fs::write(etc.path(FILE), text + "b = 2\n").unwrap();
        let error = etc.write(FILE, "a = 3\n").unwrap_err().to_string();
        assert!(error.contains("90-evenkeel-eth0.conf") && error.contains("another program"), "{error}");
        assert_eq!(etc.remove(&[FILE.to_owned()]).unwrap(), [Removal::Edited(etc.path(FILE))]);
        assert!(etc.path(FILE).exists());
    }
}
