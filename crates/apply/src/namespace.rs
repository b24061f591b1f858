//! Examines network namespaces other than the caller's: whether a namespace still exists, and which
//! namespace contains an interface.
//!
//! A namespace exists while a process is in it, or a descriptor or mount holds it. Since Linux 6.18
//! (fs/nsfs.c), a namespace has a file handle, and the kernel reports whether the namespace exists. On
//! older kernels this module examines every process. An incomplete search does not prove that a namespace or
//! an interface is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_host::{Host, HostError, NamespaceIdentity, NetworkNamespace, Sysfs};
use evenkeel_netlink::{Netlink, NetlinkError};

use crate::identity::{InterfaceIdentity, device_inode};

const OWN: &str = "/proc/thread-self/ns/net";
/// Inode of the initial PID namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h), from which all
/// processes are visible.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Here,
    /// The namespace exists. Contains a path that enters the namespace, if found.
    Alive(Option<PathBuf>),
    Gone,
    /// The search could not examine some processes that might hold the namespace.
    Unknown,
}

pub(crate) fn life_of(run: &InterfaceIdentity, here: &InterfaceIdentity) -> Life {
    // Two existing namespaces never share an inode number.
    if run.namespace == here.namespace {
        return if run.same_namespace(here) { Life::Here } else { Life::Gone };
    }
    if let Some(handle) = &run.namespace_handle {
        match handle.open() {
            Ok(_) => return Life::Alive(Scan::new().found.remove(&run.namespace)),
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => return Life::Gone,
            Err(_) => {}
        }
    }
    let mut scan = Scan::new();
    match scan.found.remove(&run.namespace) {
        Some(path) => {
            let entered =
                NetworkNamespace::open(&path).and_then(|found| found.run(NamespaceIdentity::current));
            let another = entered.is_ok_and(|found| found.cookie != run.namespace_cookie);
            if another { Life::Gone } else { Life::Alive(Some(path)) }
        }
        // A search that misses the caller's own namespace is incomplete, for example because `/proc`
        // was unmounted.
        None if scan.complete && scan.found.contains_key(&here.namespace) => Life::Gone,
        None => Life::Unknown,
    }
}

/// Returns the inode of the calling thread's namespace, and the path where the namespace is mounted, as by
/// `ip netns`. The path is `None` without a mount.
pub(crate) fn own_namespace() -> Option<(u64, Option<PathBuf>)> {
    let inode = fs::metadata(OWN).ok()?.ino();
    let mut scan = Scan { found: BTreeMap::new(), complete: true };
    scan.mounts(Path::new("/proc/self"));
    Some((inode, scan.found.remove(&inode)))
}

pub(crate) enum Whereabouts {
    Moved {
        namespace: NetworkNamespace,
        index: u32,
        name: String,
    },
    /// No namespace contains the interface: the interface was deleted.
    Deleted,
    /// The search could not cover some namespaces.
    Unknown(String),
}

/// Searches every network namespace for an interface, by the inode of its sysfs directory.
///
/// The result "deleted" requires that the search covered every possible target of a move: the
/// namespaces that the caller's namespace knows, and the namespaces that these know. If `left_own` is
/// unset, the interface left another namespace. The search then covers the namespaces that any
/// namespace knows.
pub(crate) fn find_device(device: u64, left_own: bool) -> Whereabouts {
    const TRIES: usize = 4;
    const PAUSE: Duration = Duration::from_millis(50);
    let mut found = look_for_device(device, left_own);
    for _ in 1..TRIES {
        // The list may lack a namespace that is created or removed while the list is made. The search
        // may miss an interface that moves during the search. So repeat the search.
        if matches!(found, Whereabouts::Moved { .. }) {
            break;
        }
        std::thread::sleep(PAUSE);
        found = look_for_device(device, left_own);
    }
    found
}

fn look_for_device(device: u64, left_own: bool) -> Whereabouts {
    let own = match NetworkNamespace::own() {
        Ok(own) => own.inode,
        Err(error) => return Whereabouts::Unknown(error.to_string()),
    };
    let opened = |path: PathBuf| NetworkNamespace::open(&path).ok();
    let mut namespaces: Vec<NetworkNamespace> = Scan::new().found.into_values().filter_map(opened).collect();
    if namespaces.iter().all(|namespace| namespace.inode != own) {
        return Whereabouts::Unknown("the network namespaces could not be listed".to_owned());
    }
    let mut looked: Vec<Result<Known, String>> = Vec::new();
    for at in 0..namespaces.len() {
        let look = namespaces[at].run(|| {
            let found = interface_of(device)?;
            Ok((found, known_to_own(&namespaces).map_err(|error| error.to_string())))
        });
        match look {
            Ok((Some((index, name)), _)) => {
                return Whereabouts::Moved { namespace: namespaces.swap_remove(at), index, name };
            }
            Ok((None, known)) => looked.push(known),
            Err(error) => looked.push(Err(error.to_string())),
        }
    }
    let mut waiting: Vec<usize> =
        (0..namespaces.len()).filter(|at| !left_own || namespaces[*at].inode == own).collect();
    let mut reached: BTreeSet<usize> = waiting.iter().copied().collect();
    while let Some(at) = waiting.pop() {
        match &looked[at] {
            Ok(known) if known.others => {
                return Whereabouts::Unknown("a network namespace could not be searched".to_owned());
            }
            Ok(known) => waiting.extend(known.listed.iter().copied().filter(|next| reached.insert(*next))),
            Err(error) => return Whereabouts::Unknown(error.clone()),
        }
    }
    Whereabouts::Deleted
}

struct Known {
    /// Indices of the known namespaces that are listed.
    listed: Vec<usize>,
    /// Whether the namespace knows other namespaces that are not listed.
    others: bool,
}

fn known_to_own(namespaces: &[NetworkNamespace]) -> Result<Known, NetlinkError> {
    let mut netlink = Netlink::open()?;
    let mut ids = netlink.namespace_ids()?;
    let mut listed = Vec::new();
    if ids.is_empty() {
        return Ok(Known { listed, others: false });
    }
    for (at, namespace) in namespaces.iter().enumerate() {
        if let Some(id) = netlink.namespace_id(namespace.as_fd())? {
            ids.remove(&id);
            listed.push(at);
        }
    }
    Ok(Known { listed, others: !ids.is_empty() })
}

/// Returns the index and name of the interface whose sysfs directory has the inode `device`; `None` if the
/// calling thread's namespace does not contain the interface.
pub(crate) fn interface_of(device: u64) -> Result<Option<(u32, String)>, HostError> {
    let sysfs = Sysfs::of_namespace()?;
    for name in sysfs.list("class/net")? {
        if device_inode(&sysfs, &name)? == Some(device) {
            let index = sysfs.read(&format!("class/net/{name}/ifindex"))?;
            return Ok(index.parse().ok().map(|index| (index, name)));
        }
    }
    Ok(None)
}

/// Returns an interface that left the calling thread's network namespace and returned with another index, with
/// its present index and name. Returns `None` for any other interface.
pub(crate) fn returned(interface: &InterfaceIdentity) -> Result<Option<InterfaceIdentity>, HostError> {
    let found = InterfaceIdentity::current(interface.index, &interface.name)?;
    let is_here = interface.same_boot(&found) && interface.same_namespace(&found);
    let Some(device) = interface.device.filter(|device| is_here && found.device != Some(*device)) else {
        return Ok(None);
    };
    let present = interface_of(device)?.filter(|(index, _)| *index != interface.index);
    Ok(present.map(|(index, name)| InterfaceIdentity { index, name, ..interface.clone() }))
}

/// All network namespaces that a process, a descriptor or a mount holds.
struct Scan {
    /// For each inode, a path of the namespace.
    found: BTreeMap<u64, PathBuf>,
    /// Whether the search could examine all processes.
    complete: bool,
}

impl Scan {
    fn new() -> Self {
        let first =
            fs::metadata("/proc/self/ns/pid").is_ok_and(|metadata| metadata.ino() == FIRST_PID_NAMESPACE);
        let mut scan = Self { found: BTreeMap::new(), complete: first };
        let mut mounts = BTreeSet::new();
        let Ok(processes) = Host::live().process_numbers() else {
            scan.complete = false;
            return scan;
        };
        // Search named namespaces first, because users prefer their paths.
        scan.mounts(Path::new("/proc/self"));
        for process in processes {
            let process = PathBuf::from(format!("/proc/{process}"));
            scan.tasks(&process);
            scan.descriptors(&process);
            if let Some(mount) = scan.seen(fs::metadata(process.join("ns/mnt")))
                && mounts.insert(mount.ino())
            {
                scan.mounts(&process);
            }
        }
        scan
    }

    /// Returns the value of a result. An error makes the search incomplete, unless its cause is that
    /// the process has ended.
    fn seen<T>(&mut self, result: io::Result<T>) -> Option<T> {
        if let Err(error) = &result {
            let ended = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH | libc::EINVAL));
            self.complete &= ended;
        }
        result.ok()
    }

    fn entries(&mut self, directory: PathBuf) -> Vec<PathBuf> {
        let entries = self.seen(fs::read_dir(directory));
        entries.into_iter().flatten().filter_map(|entry| self.seen(entry)).map(|entry| entry.path()).collect()
    }

    fn tasks(&mut self, process: &Path) {
        for task in self.entries(process.join("task")) {
            let path = task.join("ns/net");
            if let Some(metadata) = self.seen(fs::metadata(&path)) {
                self.found.entry(metadata.ino()).or_insert(path);
            }
        }
    }

    fn descriptors(&mut self, process: &Path) {
        for path in self.entries(process.join("fd")) {
            if let Some(inode) = self.seen(fs::read_link(&path)).and_then(|target| inode_in(target.to_str()?))
            {
                self.found.entry(inode).or_insert(path);
            }
        }
    }

    /// Adds mounts of namespace files, such as those of `ip netns` (proc_pid_mountinfo(5)).
    fn mounts(&mut self, process: &Path) {
        let Some(text) = self.seen(fs::read_to_string(process.join("mountinfo"))) else { return };
        for line in text.lines() {
            let mut fields = line.split(' ').skip(3);
            if let (Some(root), Some(point)) = (fields.next(), fields.next())
                && let Some(inode) = inode_in(root)
            {
                let path = match process.ends_with("self") {
                    true => PathBuf::from(point),
                    false => process.join("root").join(point.trim_start_matches('/')),
                };
                self.found.entry(inode).or_insert(path);
            }
        }
    }
}

/// Parses the inode in `net:[4026531840]`.
fn inode_in(target: &str) -> Option<u64> {
    target.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    use crate::namespace_handle::NamespaceHandle;

    #[test]
    fn the_callers_own_namespace_lives() {
        let here = InterfaceIdentity::here(1, "lo").unwrap();
        assert_eq!(life_of(&here, &here), Life::Here);
        let reused = InterfaceIdentity { namespace_cookie: Some(u64::MAX), ..here.clone() };
        assert_eq!(life_of(&reused, &here), Life::Gone);
        assert!(Scan::new().found.contains_key(&here.namespace));
        if let Some(handle) = NamespaceHandle::of(Path::new(OWN)) {
            let elsewhere = InterfaceIdentity { namespace: 1, ..here.clone() };
            let run = InterfaceIdentity { namespace_handle: Some(handle), ..here };
            assert!(matches!(life_of(&run, &elsewhere), Life::Alive(Some(_))));
        }
    }

    #[test]
    fn links_of_namespaces_have_an_inode() {
        assert_eq!(inode_in("net:[12]"), Some(12));
        assert_eq!(inode_in("mnt:[12]"), None);
    }
}
