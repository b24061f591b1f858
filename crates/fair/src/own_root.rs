//! Evenkeel's own root qdiscs, recognized by their handle.

use std::hash::{BuildHasher, RandomState};

use evenkeel_netlink::Netlink;
use evenkeel_netlink::tc::Handle;

use crate::error::FairError;

/// Major numbers for Evenkeel's roots. Administrators use small ones, and the kernel allocates from 0x8000
/// (`qdisc_alloc_handle`, `net/sched/sch_api.c`).
const MAJORS: std::ops::Range<u16> = 0x4000..0x8000;

/// A random free major number.
fn free_major(taken: &[u16]) -> Option<u16> {
    let count = u64::from(MAJORS.end - MAJORS.start);
    // Seeded anew for each run; the remainder is below 2^14.
    let start = (RandomState::new().hash_one(()) % count) as u16;
    (0..MAJORS.end - MAJORS.start)
        .map(|step| MAJORS.start + (start + step) % (MAJORS.end - MAJORS.start))
        .find(|major| !taken.contains(major))
}

/// One run's root qdisc on one device, by its major number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnRoot {
    pub(crate) major: u16,
}

impl OwnRoot {
    /// Chooses a major number that no qdisc of the interface has.
    pub(crate) fn choose(netlink: &mut Netlink, index: u32) -> Result<Self, FairError> {
        let taken: Vec<u16> = netlink.qdiscs(index)?.iter().map(|qdisc| qdisc.handle.major).collect();
        let major = free_major(&taken).ok_or_else(|| {
            FairError::unable("no handle is left for a root qdisc", "remove qdiscs that are of no use")
        })?;
        Ok(Self { major })
    }

    pub(crate) fn handle(self) -> Handle {
        Handle::new(self.major, 0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_roots_number_is_free() {
        let all: Vec<u16> = MAJORS.collect();
        let (free, taken) = all.split_last().unwrap();
        assert_eq!(free_major(taken), Some(*free));
        assert_eq!(free_major(&all), None);
        assert!(free_major(&[1, 0x8001]).is_some_and(|major| MAJORS.contains(&major)));
    }
}
