//! Evenkeel's own root qdiscs, recognized by their handle and their tree.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;

use evenkeel_apply::{
    ApplyError, Damaged, InterfaceIdentity, Knob, StateDirectory, damaged, is_managed, renamed,
    whole_leftover,
};
use evenkeel_model::shell::Line;
use evenkeel_model::text::path_text;
use evenkeel_netlink::Netlink;
use evenkeel_netlink::tc::Handle;
use evenkeel_netlink::tc_state::QdiscState;

use crate::batching;
use crate::error::FairError;
use crate::leftovers::identity_of;
use crate::soft_nic;

/// Major numbers for Evenkeel's roots. Administrators use small numbers, and the kernel allocates from 0x8000
/// (`qdisc_alloc_handle`, `net/sched/sch_api.c`).
const MAJORS: std::ops::Range<u16> = 0x4000..0x8000;

fn free_major(taken: &[u16]) -> Option<u16> {
    let count = u64::from(MAJORS.end - MAJORS.start);
    // The seed is random in each run; the remainder is below 2^14.
    let start = (RandomState::new().hash_one(()) % count) as u16;
    (0..MAJORS.end - MAJORS.start)
        .map(|step| MAJORS.start + (start + step) % (MAJORS.end - MAJORS.start))
        .find(|major| !taken.contains(major))
}

/// The root qdisc of one run on one device, identified by its major number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnRoot {
    pub(crate) major: u16,
}

impl OwnRoot {
    /// Chooses a major number that no qdisc of the interface has.
    pub(crate) fn choose(netlink: &mut Netlink, index: u32) -> Result<Self, FairError> {
        let taken: Vec<u16> = netlink.qdiscs(index)?.iter().map(|qdisc| qdisc.handle.major).collect();
        let major = free_major(&taken)
            .ok_or_else(|| FairError::unable("no handle is left for a root qdisc", "remove unused qdiscs"))?;
        Ok(Self { major })
    }

    pub(crate) fn handle(self) -> Handle {
        Handle::new(self.major, 0)
    }
}

/// A root qdisc of a dead session that no journal restores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrayRoot {
    pub interface: String,
    pub kind: String,
    pub handle: Handle,
    /// The state directory that was searched for the journal.
    pub directory: PathBuf,
    /// Path of the journal, if the journal exists but its line of the root cannot be read.
    pub journal: Option<PathBuf>,
}

impl StrayRoot {
    #[must_use]
    pub fn fix(&self) -> String {
        Line::new("tc qdisc del dev {} root", &[&self.interface]).to_string()
    }
}

impl fmt::Display for StrayRoot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interface, kind, handle, directory, journal } = self;
        write!(
            formatter,
            "a killed `evenkeel fair` left the root qdisc {kind} {:x}: on {interface}, and ",
            handle.major
        )?;
        match journal {
            Some(path) => write!(formatter, "its journal {} cannot restore the old qdisc;", path_text(path))?,
            None => write!(
                formatter,
                "{} has no journal of that run; if the run used another EVENKEEL_STATE_DIR, set this \
                 variable and run `{}`; otherwise",
                path_text(directory),
                Line::new("evenkeel revert", &[]).on(interface, "", &[])
            )?,
        }
        write!(formatter, " run `{}`, and check XPS maps and segment sizes by hand", self.fix())
    }
}

impl From<StrayRoot> for FairError {
    fn from(stray: StrayRoot) -> Self {
        Self::Stray(stray)
    }
}

/// Returns the root qdisc if a session built this tree. The root's number alone is not sufficient,
/// because an administrator may choose a number in [`MAJORS`].
fn own(tree: &[QdiscState]) -> Option<&QdiscState> {
    let root = tree.iter().find(|qdisc| qdisc.parent == Handle::ROOT)?;
    let is_built = match root.kind.as_str() {
        "htb" => soft_nic::is_tree(root.handle, tree),
        "mq" => tree
            .iter()
            .any(|leaf| leaf.parent.major == root.handle.major && batching::is_own_kind(&leaf.kind)),
        _ => false,
    };
    (MAJORS.contains(&root.handle.major) && is_built).then_some(root)
}

/// Returns the stray roots of the interfaces in the calling thread's network namespace. The root of a
/// dead session is not stray if a journal can restore it. Returns no root if the directory of the journals
/// cannot be read.
///
/// # Errors
/// Returns an error if the kernel refuses a request, or if a journal cannot be read.
pub fn stray_roots(state: &StateDirectory) -> Result<Vec<StrayRoot>, FairError> {
    let mut netlink = Netlink::open()?;
    // A directory that cannot be read may contain the journal. Callers report such a directory.
    let (Ok(damaged), Ok(renamed)) = (damaged(state), renamed(state)) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for link in netlink.links()? {
        let tree = netlink.qdiscs(link.index)?;
        let Some(root) = own(&tree) else { continue };
        let identity = identity_of(&link)?;
        let journal = state.journal_of(&identity);
        let of_journal = |damaged: &&Damaged| {
            // A damaged journal that was set aside has a longer name.
            damaged.path.to_string_lossy().starts_with(&*journal.to_string_lossy())
        };
        let restores =
            |damaged: &Damaged| !damaged.is_set_aside() && damaged.readable.contains(&Knob::RootQdisc);
        let mut journals = damaged.iter().filter(of_journal);
        if is_managed(link.index).map_err(ApplyError::from)?
            || has_leftover(state, &identity)?
            || journals.clone().any(restores)
            || renamed.iter().any(|renamed| renamed.header.interface.same_interface(&identity))
        {
            continue;
        }
        found.push(StrayRoot {
            interface: link.name,
            kind: root.kind.clone(),
            handle: root.handle,
            directory: state.path().to_owned(),
            journal: journals.next().map(|damaged| damaged.path.clone()),
        });
    }
    Ok(found)
}

fn has_leftover(state: &StateDirectory, interface: &InterfaceIdentity) -> Result<bool, ApplyError> {
    for journal in state.run_journals_of(interface)? {
        if whole_leftover(&journal)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn qdisc(kind: &str, handle: Handle, parent: Handle) -> QdiscState {
        QdiscState { kind: kind.to_owned(), handle, parent, options: Vec::new(), beside: None }
    }

    #[test]
    fn only_a_tree_of_a_session_is_its_own() {
        let tree = |major, kind: &str, leaf: &str, number, minor| {
            let root = Handle::new(major, 0);
            [qdisc(kind, root, Handle::ROOT), qdisc(leaf, Handle::new(number, 0), Handle::new(major, minor))]
        };
        assert!(own(&tree(0x4001, "htb", "pfifo", 0x100, 0x10)).is_some());
        assert!(own(&tree(0x7fff, "mq", "evk_123_0", 0x100, 1)).is_some());
        for foreign in [
            tree(1, "htb", "pfifo", 0x100, 0x10),
            tree(0x4001, "htb", "pfifo", 0x110, 0x10),
            tree(0x4001, "htb", "fq", 0x100, 0x10),
            tree(0x4001, "mq", "fq", 0x100, 1),
            tree(0x8001, "mq", "evk_123_0", 0x100, 1),
        ] {
            assert_eq!(own(&foreign), None, "{foreign:?}");
        }
    }

    #[test]
    fn the_roots_number_is_free() {
        let all: Vec<u16> = MAJORS.collect();
        let (free, taken) = all.split_last().unwrap();
        assert_eq!(free_major(taken), Some(*free));
        assert_eq!(free_major(&all), None);
        assert!(free_major(&[1, 0x8001]).is_some_and(|major| MAJORS.contains(&major)));
    }
}
