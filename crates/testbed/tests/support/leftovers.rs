//! The kernel objects that a process holds, and checks that they are gone after a test.
//!
//! Objects are identified by number (BPF id, namespace inode, process id and start time). Names do not
//! suffice, because other runs use the same names.

#![allow(dead_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time limit for the kernel to clean up after a closed descriptor.
const LIMIT: Duration = Duration::from_secs(20);

/// A process. The start time distinguishes it from a later process with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessIdentity {
    pub id: u32,
    start: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    pub programs: BTreeSet<u32>,
    pub maps: BTreeSet<u32>,
    pub links: BTreeSet<u32>,
    /// Inodes of network namespaces, without the test's own namespace.
    pub namespaces: BTreeSet<u64>,
    pub children: BTreeSet<ProcessIdentity>,
}

impl Holdings {
    /// Returns the objects that a process holds by its descriptors and children.
    pub fn of(process: u32) -> Self {
        let mut found = Self::default();
        let directory = PathBuf::from(format!("/proc/{process}"));
        for entry in entries(&directory.join("fdinfo")) {
            // The descriptor may have been closed since it was listed.
            for line in fs::read_to_string(&entry).unwrap_or_default().lines() {
                let Some((key, value)) = line.split_once(':') else { continue };
                let set = match key {
                    "prog_id" => &mut found.programs,
                    "map_id" => &mut found.maps,
                    "link_id" => &mut found.links,
                    _ => continue,
                };
                set.insert(value.trim().parse().unwrap());
            }
        }
        found.namespaces.extend(namespaces_at(&directory));
        for child in children(process) {
            found.namespaces.extend(namespaces_at(&PathBuf::from(format!("/proc/{}", child.id))));
            found.children.insert(child);
        }
        found.namespaces.remove(&own_namespace());
        found
    }

    pub fn add(&mut self, other: &Self) {
        self.programs.extend(&other.programs);
        self.maps.extend(&other.maps);
        self.links.extend(&other.links);
        self.namespaces.extend(&other.namespaces);
        self.children.extend(&other.children);
    }

    pub fn since(&self, before: &Self) -> Self {
        Self {
            programs: &self.programs - &before.programs,
            maps: &self.maps - &before.maps,
            links: &self.links - &before.links,
            namespaces: &self.namespaces - &before.namespaces,
            children: &self.children - &before.children,
        }
    }

    /// Returns the objects that still exist on the machine.
    pub fn still_there(&self) -> Self {
        let exists = |by_number: unsafe extern "C" fn(u32) -> i32| {
            move |id: &&u32| {
                // SAFETY: takes a number and returns a descriptor or a negative error.
                let descriptor = unsafe { by_number(**id) };
                if descriptor >= 0 {
                    // SAFETY: the kernel returned this descriptor, and nothing else owns it.
                    unsafe { libc::close(descriptor) };
                }
                descriptor >= 0
            }
        };
        let seen = if self.namespaces.is_empty() { BTreeSet::new() } else { all_namespaces() };
        Self {
            programs: self
                .programs
                .iter()
                .filter(exists(libbpf_sys::bpf_prog_get_fd_by_id))
                .copied()
                .collect(),
            maps: self.maps.iter().filter(exists(libbpf_sys::bpf_map_get_fd_by_id)).copied().collect(),
            links: self.links.iter().filter(exists(libbpf_sys::bpf_link_get_fd_by_id)).copied().collect(),
            namespaces: &self.namespaces & &seen,
            children: self.children.iter().filter(|child| runs(**child)).copied().collect(),
        }
    }

    /// Kills children that still run, so that a failed test leaves no process.
    fn end_children(&self) {
        for child in self.children.iter().filter(|child| runs(**child)) {
            // SAFETY: takes a process id and a signal; the id's start time was compared.
            unsafe { libc::kill(child.id.cast_signed(), libc::SIGKILL) };
        }
    }

    /// Asserts that all objects are gone. The kernel may need some time.
    pub fn assert_gone(&self) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = self.still_there();
            if left == Self::default() {
                return;
            }
            if Instant::now() > deadline {
                self.end_children();
                panic!("left behind: {left:?}, of {self:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

pub fn interfaces() -> BTreeSet<PathBuf> {
    entries(Path::new("/sys/class/net")).into_iter().collect()
}

pub fn open_descriptors() -> usize {
    entries(Path::new("/proc/self/fd")).len()
}

pub fn own_namespace() -> u64 {
    namespace_inode(Path::new("/proc/thread-self/ns/net")).unwrap()
}

/// Returns every network namespace that a process is in or holds open, or that is mounted.
pub fn all_namespaces() -> BTreeSet<u64> {
    let mut found: BTreeSet<u64> = processes()
        .flat_map(|process| {
            let directory = PathBuf::from(format!("/proc/{process}"));
            let mut found = namespaces_at(&directory);
            for thread in entries(&directory.join("task")) {
                found.extend(namespace_inode(&thread.join("ns/net")));
            }
            found
        })
        .collect();
    // A named namespace is a mount of its inode: `... - nsfs nsfs rw`, with `net:[inode]` as its root.
    for line in fs::read_to_string("/proc/self/mountinfo").unwrap_or_default().lines() {
        found.extend(line.split_ascii_whitespace().find_map(parse_inode));
    }
    found
}

fn namespaces_at(process: &Path) -> Vec<u64> {
    let held = entries(&process.join("fd"));
    held.iter().chain([&process.join("ns/net")]).filter_map(|path| namespace_inode(path)).collect()
}

fn namespace_inode(path: &Path) -> Option<u64> {
    parse_inode(fs::read_link(path).ok()?.to_str()?)
}

fn parse_inode(text: &str) -> Option<u64> {
    text.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

pub fn children(parent: u32) -> Vec<ProcessIdentity> {
    processes()
        .filter_map(status)
        .filter(|status| status.parent == parent)
        .map(|status| status.identity)
        .collect()
}

/// Returns whether a process exists and is not a zombie.
fn runs(process: ProcessIdentity) -> bool {
    status(process.id).is_some_and(|status| status.identity == process && !matches!(status.state, 'Z' | 'X'))
}

struct Status {
    identity: ProcessIdentity,
    parent: u32,
    state: char,
}

/// Parses /proc/PID/stat (proc_pid_stat(5)): state and parent are fields 3 and 4, the start time is field 22.
fn status(id: u32) -> Option<Status> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name in field 2 may contain any character, even a closing parenthesis.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    Some(Status {
        identity: ProcessIdentity { id, start: fields.get(19)?.parse().ok()? },
        parent: fields.get(1)?.parse().ok()?,
        state: fields.first()?.chars().next()?,
    })
}

fn processes() -> impl Iterator<Item = u32> {
    entries(Path::new("/proc")).into_iter().filter_map(|path| path.file_name()?.to_str()?.parse().ok())
}

/// Returns the entries of a directory; empty if the directory cannot be read.
fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).map(|list| list.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}
