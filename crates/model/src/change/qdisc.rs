//! Qdiscs as data: position, kind and options.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A handle in the notation of `tc`, `major:minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    pub major: u16,
    /// The class's number within the qdisc; 0 is the qdisc itself.
    pub minor: u16,
}

impl Handle {
    /// The parent of a root qdisc.
    pub const ROOT: Self = Self { major: u16::MAX, minor: u16::MAX };

    #[must_use]
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }

    /// Returns the class id for `skb->priority`.
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

/// A handle in a journal: `major:minor` in hexadecimal, or `root`.
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
    pub kind: String,
    /// 0:0 for a qdisc that the kernel installed by default.
    pub handle: ClassHandle,
    pub parent: ClassHandle,
    /// Hexadecimal.
    pub options: String,
}

/// Kinds that can be recreated from the options in a dump.
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

    /// Returns the options as bytes; `None` if they are not hexadecimal.
    #[must_use]
    pub fn option_bytes(&self) -> Option<Vec<u8>> {
        if !self.options.len().is_multiple_of(2) || !self.options.is_ascii() {
            return None;
        }
        let pairs = self.options.as_bytes().chunks_exact(2);
        pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
    }

    /// Returns whether the kernel installed the qdisc by default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.handle.0 == Handle::new(0, 0)
    }

    /// Returns whether the kernel may have chosen the qdisc's major number (`qdisc_alloc_handle`,
    /// net/sched/sch_api.c).
    #[must_use]
    pub fn has_automatic_handle(&self) -> bool {
        self.handle.0.major >= FIRST_AUTOMATIC
    }

    #[must_use]
    pub fn is_root(&self) -> bool {
        self.parent.0 == Handle::ROOT
    }

    #[must_use]
    pub fn is_restorable(&self) -> bool {
        self.is_default() || RESTORABLE.contains(&self.kind.as_str())
    }
}

/// Returns the tree that restores `tree` on a host where `default` is the current `net.core.default_qdisc`.
///
/// The kernel created its default qdiscs when the interface was set up, and the sysctl may have changed since
/// then. A default qdisc of a kind other than `default` therefore gets a handle, numbered as in the kernel
/// (`qdisc_alloc_handle`, net/sched/sch_api.c). A qdisc with a handle is created by its kind, independently
/// of the sysctl. If any qdisc gets a handle, a default root gets one, too.
#[must_use]
pub fn naming_kinds(tree: &[QdiscSnapshot], default: &str) -> Vec<QdiscSnapshot> {
    // These kinds do not depend on the sysctl (`attach_default_qdiscs`, net/sched/sch_generic.c).
    const BY_DEVICE: [&str; 2] = ["mq", "noqueue"];
    let is_other = |qdisc: &QdiscSnapshot| {
        qdisc.is_default() && qdisc.kind != default && !BY_DEVICE.contains(&qdisc.kind.as_str())
    };
    if !tree.iter().any(is_other) {
        return tree.to_vec();
    }
    let is_free = |major: &u16| tree.iter().all(|qdisc| qdisc.handle.0.major != *major);
    let mut free = (FIRST_AUTOMATIC + 1..).filter(is_free);
    let mut named = tree.to_vec();
    let mut root_major = None;
    for qdisc in &mut named {
        if let Some(major) = root_major.filter(|_| qdisc.parent.0.major == 0) {
            qdisc.parent.0.major = major;
        }
        let is_default_root = qdisc.is_root() && qdisc.is_default();
        if (is_default_root || is_other(qdisc))
            && let Some(major) = free.next()
        {
            qdisc.handle = ClassHandle(Handle::new(major, 0));
            qdisc.options.clear();
            root_major = root_major.or(is_default_root.then_some(major));
        }
    }
    named
}

/// Automatic major numbers of the kernel are above this number (`qdisc_alloc_handle`, net/sched/sch_api.c).
const FIRST_AUTOMATIC: u16 = 0x8000;

/// Major number of [`root_qdisc`]. It is below the kernel's automatic numbers, and an administrator is
/// unlikely to choose it.
const ROOT_MAJOR: u16 = 0x4e00;

/// Returns a root qdisc of a kind with the kernel's default options. A device with one transmit queue
/// gets a single qdisc. Any other device gets one qdisc per queue below `mq`.
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

/// Maximum number of leaves with major numbers below 0x8000; the kernel assigns higher numbers
/// automatically.
const MOST_LEAVES: u16 = FIRST_AUTOMATIC - 1 - ROOT_MAJOR;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::change::{Knob, Value, shell};

    #[test]
    fn damaged_handles_are_noticed() {
        for text in ["1-2", "1:20000", "", ":"] {
            assert!(ClassHandle::try_from(text.to_owned()).is_err(), "{text}");
        }
        assert_eq!(ClassHandle::try_from("root".to_owned()).unwrap().0, Handle::ROOT);
        assert_eq!(ClassHandle::try_from("1:1f".to_owned()).unwrap().0, Handle::new(1, 0x1f));
    }

    #[test]
    fn default_qdiscs_of_another_kind_are_named() {
        let tree = |root: u16, kind: &str| {
            let leaf =
                |queue| QdiscSnapshot::with_defaults(kind, Handle::new(root, queue), Handle::new(0, 0));
            let root = QdiscSnapshot::with_defaults("mq", Handle::ROOT, Handle::new(root, 0));
            vec![root, leaf(1), leaf(2)]
        };
        let line = |tree: &[QdiscSnapshot], default: &str| {
            let value = Value::Qdiscs(naming_kinds(tree, default));
            shell("eth0", &Knob::RootQdisc, &value).to_string()
        };
        for root in [0, 1] {
            assert_eq!(naming_kinds(&tree(root, "fq_codel"), "fq_codel"), tree(root, "fq_codel"));
        }
        assert_eq!(
            line(&tree(1, "fq_codel"), "fq"),
            "tc qdisc replace dev eth0 root handle 1: mq && tc qdisc replace dev eth0 parent 1:1 handle 8001: fq_codel \
             && tc qdisc replace dev eth0 parent 1:2 handle 8002: fq_codel"
        );
        assert_eq!(
            line(&tree(0, "fq_codel"), "fq"),
            "tc qdisc replace dev eth0 root handle 8001: mq && tc qdisc replace dev eth0 parent 8001:1 handle 8002: \
             fq_codel && tc qdisc replace dev eth0 parent 8001:2 handle 8003: fq_codel"
        );
        let alone = |kind| vec![QdiscSnapshot::with_defaults(kind, Handle::ROOT, Handle::new(0, 0))];
        assert_eq!(line(&alone("fq_codel"), "fq"), "tc qdisc replace dev eth0 root handle 8001: fq_codel");
        assert_eq!(line(&alone("noqueue"), "fq"), "tc qdisc del dev eth0 root");
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
