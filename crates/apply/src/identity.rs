//! Which interface a journal is about: told apart from others of the same name or number.

use std::os::unix::fs::MetadataExt;

use evenkeel_host::{Host, HostError, NamespaceIdentity, NetworkNamespace, Sysfs};
use serde::{Deserialize, Serialize};

use crate::namespace::NamespaceHandle;

/// An interface of a boot and a network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterfaceIdentity {
    /// Identity of the boot (random(4)).
    pub boot: String,
    /// Inode of the network namespace.
    pub namespace: u64,
    /// Cookie of the network namespace, unique since boot; none before Linux 5.14.
    pub namespace_cookie: Option<u64>,
    /// File handle of the network namespace, by which it is found while it lives; none before Linux 6.18.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_handle: Option<NamespaceHandle>,
    /// Number of the interface, which another one may get when this one is gone.
    pub index: u32,
    /// Name of the interface when the run began.
    pub name: String,
    /// Inode of the interface's directory in sysfs. The kernel gives no two interfaces of a boot the same one, and it
    /// stays when the interface is renamed or moved to another network namespace (`kernfs_rename_ns`, fs/kernfs/dir.c).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<u64>,
}

impl InterfaceIdentity {
    /// An interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn current(index: u32, name: &str) -> Result<Self, HostError> {
        let mut identity = Self::here(index, name)?;
        identity.namespace_handle =
            NetworkNamespace::own().ok().and_then(|own| NamespaceHandle::of(&own.path));
        if let Ok(sysfs) = Sysfs::of_namespace()
            && sysfs.read(&format!("class/net/{name}/ifindex")).is_ok_and(|text| text == index.to_string())
        {
            identity.device = device_inode(&sysfs, name);
        }
        Ok(identity)
    }

    /// The same without what takes a look at sysfs: enough to compare boot and namespace.
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

    /// Whether it is of the same boot as another one.
    #[must_use]
    pub fn same_boot(&self, other: &Self) -> bool {
        self.boot == other.boot
    }

    /// Whether it is of the same network namespace as another one of the same boot.
    #[must_use]
    pub fn same_namespace(&self, other: &Self) -> bool {
        self.namespace == other.namespace && self.namespace_cookie == other.namespace_cookie
    }
}

/// Inode of an interface's directory, which its link in `class/net` points to.
pub(crate) fn device_inode(sysfs: &Sysfs, name: &str) -> Option<u64> {
    std::fs::metadata(sysfs.path(&format!("class/net/{name}"))).ok().map(|metadata| metadata.ino())
}
