//! The sysfs of a network namespace.
//!
//! A mounted sysfs shows the interfaces of the namespace in which it was mounted
//! (`kobj_ns_grab_current`, lib/kobject.c). So `/sys` is wrong in a process that has entered another
//! namespace. [`Sysfs::of_namespace`] creates a detached mount that ends with its descriptor
//! (fsopen(2), fsmount(2)). Without the privilege to mount, it uses `/sys` if `/sys` shows the right
//! namespace.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_model::text::name_text;
use nix::dir::Dir;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;

use crate::HostError;

/// A view of sysfs; paths are relative to `/sys`, without a leading slash.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
    /// The mount. Files are opened relative to the mount, because `root` is below `/proc`, which may be
    /// unmounted later.
    mount: Option<Arc<OwnedFd>>,
}

const MOUNTED: &str = "/sys";

/// From linux/mount.h.
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;

fn descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let number = i32::try_from(result).map_err(io::Error::other)?;
    // SAFETY: the kernel returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn mount_sysfs() -> io::Result<OwnedFd> {
    // SAFETY: takes a string that ends with 0, and flags.
    let context = descriptor(unsafe { libc::syscall(libc::SYS_fsopen, c"sysfs".as_ptr(), FSOPEN_CLOEXEC) })?;
    let nothing = std::ptr::null::<libc::c_char>();
    // SAFETY: this command takes neither a key nor a value.
    let created = unsafe {
        libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), FSCONFIG_CMD_CREATE, nothing, nothing, 0)
    };
    if created < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: takes a descriptor and flags.
    descriptor(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, 0) })
}

impl Sysfs {
    /// Returns the sysfs of the calling thread's network namespace.
    ///
    /// # Errors
    /// Returns [`HostError::ForeignSysfs`] if `/sys` shows another namespace, and the process lacks
    /// `CAP_SYS_ADMIN` or the kernel is older than 5.2. Returns another error if `/sys` or the kernel's list
    /// of interfaces cannot be read.
    pub fn of_namespace() -> Result<Self, HostError> {
        let mount = match mount_sysfs() {
            Ok(mount) => mount,
            // If no descriptor is left, the mounted sysfs also cannot be read.
            Err(source) if evenkeel_files::is_limit(&source) => {
                return Err(HostError::Read { path: MOUNTED.into(), source });
            }
            Err(_) if Self::is_own_once_settled()? => return Ok(Self::at(MOUNTED)),
            Err(source) => return Err(HostError::ForeignSysfs { source }),
        };
        let root = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
        Ok(Self { root, mount: Some(Arc::new(mount)) })
    }

    /// Returns whether [`Self::mounted_is_own`] is true at least once within a fifth of a second. If an
    /// interface appears or disappears between the reads of the two lists, the lists differ.
    fn is_own_once_settled() -> Result<bool, HostError> {
        const TRIES: u32 = 10;
        for _ in 1..TRIES {
            if Self::mounted_is_own()? {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Self::mounted_is_own()
    }

    /// Returns whether `/sys` has exactly the interfaces of the calling thread's network namespace, with the
    /// same names, numbers and addresses.
    ///
    /// # Errors
    /// Returns an error if the kernel does not list the interfaces, or `/sys` cannot be read.
    pub fn mounted_is_own() -> Result<bool, HostError> {
        let mut own: Vec<(String, String, String)> = evenkeel_netlink::Netlink::open()?
            .links()?
            .into_iter()
            .map(|link| {
                let address: Vec<String> = link.address.iter().map(|byte| format!("{byte:02x}")).collect();
                (link.name, link.index.to_string(), address.join(":"))
            })
            .collect();
        own.sort();
        let mounted = Self::at(MOUNTED);
        let failed = |source| HostError::Read { path: Self::name("class/net"), source };
        let mut shown = Vec::new();
        for entry in std::fs::read_dir(mounted.path("class/net")).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // This file is among the links if the bonding module is loaded.
            if entry.file_name() == "bonding_masters" {
                continue;
            }
            let read = |file: &str| match std::fs::read_to_string(entry.path().join(file)) {
                Err(source) if evenkeel_files::is_limit(&source) => Err(failed(source)),
                read => Ok(read),
            };
            let (Ok(index), Ok(address)) = (read("ifindex")?, read("address")?) else { return Ok(false) };
            let name = name_text(entry.file_name().as_bytes());
            shown.push((name, index.trim().to_owned(), address.trim().to_owned()));
        }
        shown.sort();
        Ok(shown == own)
    }

    /// Returns the sysfs in a directory, for example a recorded one.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), mount: None }
    }

    /// Returns the path by which this process can open a file while `/proc` is mounted; see also
    /// [`Self::open`].
    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        self.root.join(file)
    }

    pub fn open(&self, file: &str, flags: OFlag) -> io::Result<File> {
        let flags = flags | OFlag::O_CLOEXEC;
        let opened = match &self.mount {
            Some(mount) => openat(mount, file, flags, Mode::empty()),
            None => open(&self.path(file), flags, Mode::empty()),
        };
        Ok(File::from(opened?))
    }

    /// Returns the file's path below `/sys`, for messages.
    #[must_use]
    pub fn name(file: &str) -> PathBuf {
        Path::new("/sys").join(file)
    }

    /// Returns a file's text without surrounding white space.
    pub fn read(&self, file: &str) -> Result<String, HostError> {
        let mut text = String::new();
        self.open(file, OFlag::O_RDONLY)
            .and_then(|mut file| file.read_to_string(&mut text))
            .map_err(|source| HostError::Read { path: Self::name(file), source })?;
        Ok(text.trim().to_owned())
    }

    /// Returns the names in a directory, sorted. Escapes bytes that are not UTF-8, which the name of an
    /// interface may contain. An escaped name does not open the file.
    pub fn list(&self, directory: &str) -> Result<Vec<String>, HostError> {
        let failed = |source| HostError::Read { path: Self::name(directory), source };
        let opened = self.open(directory, OFlag::O_RDONLY | OFlag::O_DIRECTORY).map_err(failed)?;
        let mut names = Vec::new();
        for entry in Dir::from_fd(opened.into()).map_err(|error| failed(error.into()))? {
            let entry = entry.map_err(|error| failed(error.into()))?;
            let name = entry.file_name().to_bytes();
            if ![&b"."[..], b".."].contains(&name) {
                names.push(name_text(name));
            }
        }
        names.sort();
        Ok(names)
    }
}
