//! Qdiscs in a journal.

use std::fmt;

use evenkeel_netlink::tc::Handle;
use evenkeel_netlink::tc_state::QdiscState;
use serde::{Deserialize, Serialize};

/// A handle as a journal has it, `major:minor` in hexadecimal.
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

/// A qdisc as it stood, with its options as the kernel's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QdiscSnapshot {
    /// Its kind, such as `fq`.
    pub kind: String,
    /// Its handle; 0:0 is one that the kernel put there by itself.
    pub handle: ClassHandle,
    /// Its place.
    pub parent: ClassHandle,
    /// Its options in hexadecimal.
    pub options: String,
}

/// Whether a tree is `from`, made again in part: its root, and below it each qdisc as it was or as the kernel puts one
/// there by itself. That is how it stands while it is put back, from the root on.
#[must_use]
pub(crate) fn is_part_of(found: &[QdiscSnapshot], from: &[QdiscSnapshot]) -> bool {
    match (found.split_first(), from.first()) {
        (Some((root, below)), Some(wanted)) if !wanted.is_default() => {
            root == wanted && below.iter().all(|qdisc| qdisc.is_default() || from.contains(qdisc))
        }
        _ => false,
    }
}

/// Kinds whose options, as a dump shows them, make the same qdisc again, and that have no classes of
/// their own.
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
    /// Whether the kernel put it there by itself.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.handle.0 == Handle::new(0, 0)
    }

    /// Whether it is the root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.parent.0 == Handle::ROOT
    }

    /// Whether it is the qdisc that a run made, `own`: of the same kind, under the same handle, and an HTB with the
    /// same settings. Options in general come back otherwise than they were set (`direct_pkts` of HTB is a count).
    #[must_use]
    pub fn is_made_as(&self, own: &Self) -> bool {
        let settings = |qdisc: &Self| qdisc.state().and_then(|state| state.htb_settings());
        self.kind == own.kind && self.handle == own.handle && settings(self) == settings(own)
    }

    /// Whether it can be made again from what is kept of it.
    #[must_use]
    pub fn is_restorable(&self) -> bool {
        self.is_default() || RESTORABLE.contains(&self.kind.as_str())
    }

    /// The qdisc as netlink takes it; none if the options are not hexadecimal.
    #[must_use]
    pub fn state(&self) -> Option<QdiscState> {
        let digits = self.options.as_bytes();
        if !digits.len().is_multiple_of(2) || !self.options.is_ascii() {
            return None;
        }
        let options: Option<Vec<u8>> = digits
            .chunks_exact(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect();
        Some(QdiscState {
            kind: self.kind.clone(),
            handle: self.handle.0,
            parent: self.parent.0,
            options: options?,
            beside: None,
        })
    }
}

impl From<&QdiscState> for QdiscSnapshot {
    fn from(state: &QdiscState) -> Self {
        Self {
            kind: state.kind.clone(),
            handle: ClassHandle(state.handle),
            parent: ClassHandle(state.parent),
            options: state.options.iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn a_snapshot_keeps_every_byte() {
        let state = QdiscState {
            kind: "fq".to_owned(),
            handle: Handle::new(0x8001, 0),
            parent: Handle::ROOT,
            options: (0..=255).collect(),
            beside: None,
        };
        let snapshot = QdiscSnapshot::from(&state);
        let text = serde_json::to_string(&snapshot).unwrap();
        let read: QdiscSnapshot = serde_json::from_str(&text).unwrap();
        assert_eq!(read.state().unwrap(), state);
    }

    #[test]
    fn another_htb_under_the_same_handle_is_not_ours() {
        use evenkeel_netlink::tc::Qdisc;
        let htb = |default_class, major| {
            let qdisc = Qdisc::Htb { default_class };
            QdiscSnapshot::from(&QdiscState::of(&qdisc, Handle::ROOT, Handle::new(major, 0)))
        };
        let own = htb(0x10, 0x4001);
        let mut shown = own.clone();
        // direct_pkts is the last word.
        let end = shown.options.len() - 8;
        shown.options.replace_range(end.., "4d000000");
        assert!(shown.is_made_as(&own));
        for other in [htb(0x20, 0x4001), htb(0x10, 1), QdiscSnapshot { kind: "fq".to_owned(), ..own.clone() }]
        {
            assert!(!other.is_made_as(&own), "{other:?}");
        }
    }

    #[test]
    fn damaged_snapshots_are_noticed() {
        assert!(ClassHandle::try_from("1-2".to_owned()).is_err());
        assert!(ClassHandle::try_from("1:20000".to_owned()).is_err());
        let broken = |options: &str| QdiscSnapshot {
            kind: "fq".to_owned(),
            handle: ClassHandle(Handle::new(1, 0)),
            parent: ClassHandle(Handle::ROOT),
            options: options.to_owned(),
        };
        assert!(
            broken("0").state().is_none() && broken("zz").state().is_none() && broken("é").state().is_none()
        );
    }
}
