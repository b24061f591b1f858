//! Qdiscs as data: place, kind, options.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A handle in the notation of `tc`, `major:minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    /// The qdisc's number.
    pub major: u16,
    /// The class's number in it; 0 is the qdisc itself.
    pub minor: u16,
}

impl Handle {
    /// The place of a root qdisc.
    pub const ROOT: Self = Self { major: u16::MAX, minor: u16::MAX };

    /// `major:minor`.
    #[must_use]
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }

    /// The class id in `skb->priority`.
    #[must_use]
    pub const fn class_id(self) -> u32 {
        (self.major as u32) << 16 | self.minor as u32
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ROOT {
            formatter.write_str("root")
        } else {
            write!(formatter, "{:x}:{:x}", self.major, self.minor)
        }
    }
}

/// A handle in a journal, `major:minor` in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClassHandle(pub Handle);

impl fmt::Display for ClassHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

impl From<ClassHandle> for String {
    fn from(handle: ClassHandle) -> Self {
        handle.to_string()
    }
}

impl TryFrom<String> for ClassHandle {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text == "root" {
            return Ok(Self(Handle::ROOT));
        }
        let parts = text.split_once(':').and_then(|(major, minor)| {
            Some(Handle::new(u16::from_str_radix(major, 16).ok()?, u16::from_str_radix(minor, 16).ok()?))
        });
        parts.map(Self).ok_or_else(|| format!("'{text}' is no handle such as 1:10"))
    }
}

/// A qdisc's state, with its options as the kernel's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QdiscSnapshot {
    /// Its kind, such as `fq`.
    pub kind: String,
    /// Its handle; 0:0 for a qdisc that the kernel installed by default.
    pub handle: ClassHandle,
    /// Its place.
    pub parent: ClassHandle,
    /// Its options in hexadecimal.
    pub options: String,
}

/// Classless kinds whose options in a dump recreate the same qdisc.
const RESTORABLE: &[&str] = &[
    "noqueue",
    "pfifo",
    "bfifo",
    "pfifo_fast",
    "mq",
    "fq",
    "fq_codel",
    "fq_pie",
    "codel",
    "pie",
    "sfq",
    "tbf",
    "cake",
];

impl QdiscSnapshot {
    /// A qdisc with the kernel's defaults at a place.
    #[must_use]
    pub fn with_defaults(kind: &str, parent: Handle, handle: Handle) -> Self {
        Self {
            kind: kind.to_owned(),
            handle: ClassHandle(handle),
            parent: ClassHandle(parent),
            options: String::new(),
        }
    }

    /// Whether the kernel installed it by default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.handle.0 == Handle::new(0, 0)
    }

    /// Returns whether it is the root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.parent.0 == Handle::ROOT
    }

    /// Whether its snapshot suffices to recreate it.
    #[must_use]
    pub fn is_restorable(&self) -> bool {
        self.is_default() || RESTORABLE.contains(&self.kind.as_str())
    }
}

/// Major number of [`root_qdisc`]: below 0x8000, where the kernel's own numbers begin (`qdisc_alloc_handle`),
/// and away from common manual ones.
const ROOT_MAJOR: u16 = 0x4e00;

/// A root qdisc of a kind with the kernel's defaults: a single one on a device with one transmit queue, else
/// one per queue below `mq`.
#[must_use]
pub fn root_qdisc(kind: &str, queues: u16) -> Vec<QdiscSnapshot> {
    let root = Handle::new(ROOT_MAJOR, 0);
    if queues <= 1 {
        return vec![QdiscSnapshot::with_defaults(kind, Handle::ROOT, root)];
    }
    let leaf = |queue: u16| {
        let handle = Handle::new(ROOT_MAJOR + queue, 0);
        QdiscSnapshot::with_defaults(kind, Handle::new(ROOT_MAJOR, queue), handle)
    };
    let mut tree = vec![QdiscSnapshot::with_defaults("mq", Handle::ROOT, root)];
    tree.extend((1..=queues.min(MOST_LEAVES)).map(leaf));
    tree
}

/// Leaves with numbers below 0x8000.
const MOST_LEAVES: u16 = 0x7fff - ROOT_MAJOR;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn damaged_handles_are_noticed() {
        for text in ["1-2", "1:20000", "", ":"] {
            assert!(ClassHandle::try_from(text.to_owned()).is_err(), "{text}");
        }
        assert_eq!(ClassHandle::try_from("root".to_owned()).unwrap().0, Handle::ROOT);
        assert_eq!(ClassHandle::try_from("1:1f".to_owned()).unwrap().0, Handle::new(1, 0x1f));
    }

    #[test]
    fn a_root_has_a_leaf_for_each_queue() {
        let alone = root_qdisc("fq", 1);
        assert_eq!(alone.len(), 1);
        assert!(alone[0].is_root() && !alone[0].is_default());
        let tree = root_qdisc("fq", 4);
        assert_eq!(
            tree.iter().map(|qdisc| qdisc.kind.as_str()).collect::<Vec<_>>(),
            ["mq", "fq", "fq", "fq", "fq"]
        );
        assert_eq!(tree[4].parent.0, Handle::new(tree[0].handle.0.major, 4));
        let most = root_qdisc("fq", u16::MAX);
        assert!(most.iter().all(|qdisc| qdisc.handle.0.major < 0x8000));
    }
}
