//! Identifies the interface of a journal, even if other interfaces have the same name or index.

use std::io;
use std::os::unix::fs::MetadataExt;

use evenkeel_host::{Host, HostError, NamespaceIdentity, NetworkNamespace, Sysfs};
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

use crate::namespace_handle::NamespaceHandle;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterfaceIdentity {
    /// The boot id, from `/proc/sys/kernel/random/boot_id` (random(4)).
    pub boot: String,
    /// Inode number of the network namespace.
    pub namespace: u64,
    /// Cookie of the network namespace, unique since boot; `None` before Linux 5.14.
    pub namespace_cookie: Option<u64>,
    /// A handle that finds the namespace while it exists; `None` before Linux 6.18.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_handle: Option<NamespaceHandle>,
    /// The interface's index, which the kernel may reuse after the interface is deleted.
    pub index: u32,
    /// The interface's name at the start of the run.
    pub name: String,
    /// Inode of the interface's directory in sysfs, unique within a boot. It survives a rename and a move to
    /// another network namespace (`kernfs_rename_ns`, fs/kernfs/dir.c).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<u64>,
}

impl InterfaceIdentity {
    /// Identifies an interface of the calling thread's network namespace.
    pub fn current(index: u32, name: &str) -> Result<Self, HostError> {
        let mut identity = Self::here(index, name)?;
        identity.namespace_handle =
            NetworkNamespace::own().ok().and_then(|own| NamespaceHandle::of(&own.path));
        if let Ok(sysfs) = Sysfs::of_namespace()
            && sysfs.read(&format!("class/net/{name}/ifindex")).is_ok_and(|text| text == index.to_string())
        {
            identity.device = device_inode(&sysfs, name)?;
        }
        Ok(identity)
    }

    /// Identifies an interface without its sysfs inode and its namespace's handle. This suffices to compare
    /// boot and namespace.
    pub(crate) fn here(index: u32, name: &str) -> Result<Self, HostError> {
        let namespace = NamespaceIdentity::current()?;
        Ok(Self {
            boot: Host::live().boot_id()?,
            namespace: namespace.inode,
            namespace_cookie: namespace.cookie,
            namespace_handle: None,
            index,
            name: name.to_owned(),
            device: None,
        })
    }

    #[must_use]
    pub fn same_boot(&self, other: &Self) -> bool {
        self.boot == other.boot
    }

    #[must_use]
    pub fn same_namespace(&self, other: &Self) -> bool {
        self.namespace == other.namespace && self.namespace_cookie == other.namespace_cookie
    }

    /// Returns whether both are one interface of one namespace. Compares the indices only if a device is
    /// unknown: an interface that left its namespace and returned may have another index, and another
    /// interface may have the earlier index.
    #[must_use]
    pub fn same_interface(&self, other: &Self) -> bool {
        let is_same = match (self.device, other.device) {
            (Some(device), Some(other)) => device == other,
            _ => self.index == other.index,
        };
        is_same && self.same_boot(other) && self.same_namespace(other)
    }
}

/// Returns the inode of the directory that the interface's link in `class/net` points to. Returns
/// `None` if `class/net` exists and has no such link.
///
/// # Errors
/// Returns an error if the link cannot be read: the interface may exist nevertheless.
pub fn device_inode(sysfs: &Sysfs, name: &str) -> Result<Option<u64>, HostError> {
    let file = format!("class/net/{name}");
    let found = sysfs.open(&file, OFlag::O_PATH).and_then(|directory| directory.metadata());
    match found {
        Ok(metadata) => Ok(Some(metadata.ino())),
        // Without `class/net`, another file system may be mounted over sysfs. Then the interface may exist.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound && sysfs.open("class/net", OFlag::O_PATH).is_ok() =>
        {
            Ok(None)
        }
        Err(source) => Err(HostError::Read { path: Sysfs::name(&file), source }),
    }
}
