//! Qdiscs as data: position, kind and options.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A handle in the notation of `tc`, `major:minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    /// The qdisc's number.
    pub major: u16,
    /// The class's number within the qdisc; 0 is the qdisc itself.
    pub minor: u16,
}

impl Handle {
    /// The parent of a root qdisc.
    pub const ROOT: Self = Self { major: u16::MAX, minor: u16::MAX };

    /// Returns the handle `major:minor`.
    #[must_use]
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }

    /// Returns the class id as in `skb->priority`.
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
        parts.map(Self).ok_or_else(|| format!("'{text}' is not a handle such as 1:10"))
    }
}

/// A qdisc's state, with its options as the kernel's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QdiscSnapshot {
    /// The kind, such as `fq`.
    pub kind: String,
    /// The handle; 0:0 for a qdisc that the kernel installed by default.
    pub handle: ClassHandle,
    pub parent: ClassHandle,
    /// The options in hexadecimal.
    pub options: String,
}

/// Classless kinds that can be recreated from the options in a dump.
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
    /// Returns a qdisc of a kind with the kernel's default options.
    #[must_use]
    pub fn with_defaults(kind: &str, parent: Handle, handle: Handle) -> Self {
        Self {
            kind: kind.to_owned(),
            handle: ClassHandle(handle),
            parent: ClassHandle(parent),
            options: String::new(),
        }
    }

    /// Returns whether the kernel installed the qdisc by default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.handle.0 == Handle::new(0, 0)
    }

    /// Returns whether the qdisc is the root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.parent.0 == Handle::ROOT
    }

    /// Returns whether the qdisc can be recreated from its snapshot.
    #[must_use]
    pub fn is_restorable(&self) -> bool {
        self.is_default() || RESTORABLE.contains(&self.kind.as_str())
    }
}

/// Major number of [`root_qdisc`]. It is below 0x8000, where the kernel's automatic numbers begin
/// (`qdisc_alloc_handle`), and unlikely to be chosen by an administrator.
const ROOT_MAJOR: u16 = 0x4e00;

/// Returns a root qdisc of a kind with the kernel's default options. A device with one transmit queue gets a
/// single qdisc, other devices get one per queue below `mq`.
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

/// Maximum number of leaves with major numbers below 0x8000.
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
