//! Compares the qdisc trees of a journal with the trees of the kernel.

use evenkeel_model::change::QdiscSnapshot;
use evenkeel_netlink::tc_state::QdiscState;

/// Returns whether a tree is a partly restored `from`: the root is restored, and each qdisc below the
/// root is as before or a kernel default. A rollback in progress leaves such a tree, because it
/// restores the root first.
#[must_use]
pub(crate) fn is_part_of(found: &[QdiscSnapshot], from: &[QdiscSnapshot]) -> bool {
    let found = as_defaults(found, from);
    match (found.split_first(), from.first()) {
        (Some((root, below)), Some(wanted)) => {
            root == wanted && below.iter().all(|qdisc| qdisc.is_default() || from.contains(qdisc))
        }
        _ => false,
    }
}

/// Returns the queue of a leaf of the root; `None` for other qdiscs.
fn queue_of(tree: &[QdiscSnapshot], qdisc: &QdiscSnapshot) -> Option<u16> {
    let root = tree.first().filter(|_| !qdisc.is_root())?;
    (qdisc.parent.0.major == root.handle.0.major).then_some(qdisc.parent.0.minor)
}

/// Returns the qdisc of `tree` at the position that `qdisc` has in `other`: the root, or the leaf of
/// the same queue.
fn at_place_of<'q>(
    tree: &'q [QdiscSnapshot],
    other: &[QdiscSnapshot],
    qdisc: &QdiscSnapshot,
) -> Option<&'q QdiscSnapshot> {
    if qdisc.is_root() {
        return tree.first();
    }
    let queue = queue_of(other, qdisc)?;
    tree.iter().find(|found| queue_of(tree, found) == Some(queue))
}

/// Returns the default qdiscs of a wanted tree whose kind differs from the current default qdiscs. This
/// happens if `net.core.default_qdisc` changed after the kernel created the wanted tree.
pub(crate) fn of_other_kinds(now: &[QdiscSnapshot], wanted: &[QdiscSnapshot]) -> Vec<QdiscSnapshot> {
    let is_other = |qdisc: &&QdiscSnapshot| {
        qdisc.is_default() && at_place_of(now, wanted, qdisc).is_some_and(|found| found.kind != qdisc.kind)
    };
    wanted.iter().filter(is_other).cloned().collect()
}

/// Returns the tree `found` with the default qdiscs of `from` in place of the qdiscs that a rollback created
/// for them. The rollback creates such qdiscs if the kernel's default now has another kind.
pub(crate) fn as_defaults(found: &[QdiscSnapshot], from: &[QdiscSnapshot]) -> Vec<QdiscSnapshot> {
    let of = |qdisc: &QdiscSnapshot| {
        let was = at_place_of(from, found, qdisc).filter(|was| was.is_default() && was.kind == qdisc.kind)?;
        let is_ours = qdisc.has_automatic_handle() && was.options == qdisc.options;
        (is_ours || qdisc.is_default()).then(|| was.clone())
    };
    found.iter().map(|qdisc| of(qdisc).unwrap_or_else(|| qdisc.clone())).collect()
}

/// Returns the parts of an `mq` tree that a dump can show. `ethtool -L` hides the leaves of removed
/// queues (`mq_change_real_num_tx`, net/sched/sch_mq.c). A dump may also lack a default leaf. If `from` is no
/// `mq` tree, or `found` has another root, returns `from` unchanged.
#[must_use]
pub(crate) fn for_queues_of(found: &[QdiscSnapshot], from: &[QdiscSnapshot]) -> Vec<QdiscSnapshot> {
    let root = from.first().filter(|root| root.kind == "mq" && found.first() == Some(root));
    let Some(root) = root else { return from.to_vec() };
    let leaves = found.iter().filter(|qdisc| qdisc.parent.0.major == root.handle.0.major);
    let queues = leaves.map(|leaf| leaf.parent.0.minor).max().unwrap_or(0);
    let mut removed: Vec<u16> = Vec::new();
    let mut kept = Vec::new();
    for qdisc in from {
        let parent = qdisc.parent.0;
        let of_root = parent.major == root.handle.0.major && parent.minor > queues;
        let hidden = qdisc.is_default() && !found.contains(qdisc);
        if of_root || hidden || removed.contains(&parent.major) {
            // Parents come before their children. A default leaf has no handle, and no children.
            removed.extend(Some(qdisc.handle.0.major).filter(|major| *major != 0));
        } else {
            kept.push(qdisc.clone());
        }
    }
    kept
}

#[must_use]
pub(crate) fn difference(found: &[QdiscSnapshot], wanted: &[QdiscSnapshot]) -> String {
    let other = found.iter().find(|qdisc| !wanted.contains(qdisc));
    let place = |qdisc: &QdiscSnapshot| format!("{} at {}", qdisc.kind, qdisc.parent);
    match other.or_else(|| wanted.iter().find(|qdisc| !found.contains(qdisc))) {
        None => "its qdiscs in another order".to_owned(),
        Some(qdisc) if other.is_none() => format!("no {}", place(qdisc)),
        Some(qdisc) => match wanted.iter().find(|was| was.parent == qdisc.parent) {
            None => format!("{}, which the old tree does not have", place(qdisc)),
            Some(was) if was.kind != qdisc.kind => format!("{} instead of {}", place(qdisc), was.kind),
            Some(was) if was.handle != qdisc.handle => {
                format!("{} with the handle {} instead of {}", place(qdisc), qdisc.handle, was.handle)
            }
            Some(_) => format!("{} with other options", place(qdisc)),
        },
    }
}

/// Returns whether a run created this qdisc: the kind and handle are equal, and for HTB also the
/// settings. The raw options are not compared, because a dump can differ from the parameters (`direct_pkts`
/// of HTB is a counter).
#[must_use]
pub(crate) fn is_made_as(found: &QdiscSnapshot, own: &QdiscSnapshot) -> bool {
    let settings =
        |qdisc: &QdiscSnapshot| QdiscState::of_snapshot(qdisc).and_then(|state| state.htb_settings());
    found.kind == own.kind && found.handle == own.handle && settings(found) == settings(own)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use evenkeel_model::change::{ClassHandle, Handle};

    #[test]
    fn leaves_of_removed_queues_are_not_expected() {
        let qdisc = |kind: &str, major, parent| QdiscSnapshot {
            kind: kind.to_owned(),
            handle: ClassHandle(Handle::new(major, 0)),
            parent: ClassHandle(parent),
            options: String::new(),
        };
        let mq = |minors: &[u16]| -> Vec<QdiscSnapshot> {
            let leaves = minors.iter().map(|minor| qdisc("tbf", 10 + minor, Handle::new(7, *minor)));
            let below = minors.iter().map(|minor| qdisc("fq", 20 + minor, Handle::new(10 + minor, 1)));
            [qdisc("mq", 7, Handle::ROOT)].into_iter().chain(leaves).chain(below).collect()
        };
        assert_eq!(for_queues_of(&mq(&[1, 2]), &mq(&[1, 2, 3, 4])), mq(&[1, 2]));
        assert_eq!(for_queues_of(&mq(&[1, 2, 3, 4]), &mq(&[1, 2, 3, 4])), mq(&[1, 2, 3, 4]));
        // A missing leaf between other leaves is a difference. A different root is a difference.
        assert_eq!(for_queues_of(&mq(&[1, 3]), &mq(&[1, 2, 3])), mq(&[1, 2, 3]));
        assert_eq!(for_queues_of(&[qdisc("htb", 7, Handle::ROOT)], &mq(&[1, 2])), mq(&[1, 2]));
    }

    #[test]
    fn default_qdiscs_come_back_with_their_kind() {
        let qdisc = |kind: &str, major, parent| QdiscSnapshot {
            kind: kind.to_owned(),
            handle: ClassHandle(Handle::new(major, 0)),
            parent: ClassHandle(parent),
            options: String::new(),
        };
        let mq = |root: u16, leaves: [(&str, u16); 2]| {
            let leaf = |(queue, (kind, major))| qdisc(kind, major, Handle::new(root, queue));
            let leaves = (1..).zip(leaves).map(leaf);
            [qdisc("mq", root, Handle::ROOT)].into_iter().chain(leaves).collect::<Vec<_>>()
        };
        let default = |root| mq(root, [("fq_codel", 0), ("fq_codel", 0)]);
        for (from, root) in [(default(0), 0x8001), (default(1), 1)] {
            // The kernel's default has changed to fq.
            let now = mq(from[0].handle.0.major, [("fq", 0), ("fq", 0)]);
            assert_eq!(of_other_kinds(&now, &from), from[1..]);
            assert!(of_other_kinds(&from, &from).is_empty());
            let whole = mq(root, [("fq_codel", 0x8002), ("fq_codel", 0x8003)]);
            assert_eq!(as_defaults(&whole, &from), from);
            let part = mq(root, [("fq_codel", 0x8002), ("fq", 0)]);
            assert!(is_part_of(&part, &from) && as_defaults(&part, &from) != from);
            let other = mq(root, [("fq_codel", 0x8002), ("sfq", 9)]);
            assert!(!is_part_of(&other, &from));
        }
        assert!(!is_part_of(&mq(9, [("fq", 0), ("fq", 0)]), &default(0)), "another program's root");
        let alone = |kind, major| vec![qdisc(kind, major, Handle::ROOT)];
        assert_eq!(of_other_kinds(&alone("fq", 0), &alone("fq_codel", 0)), alone("fq_codel", 0));
        assert_eq!(as_defaults(&alone("fq_codel", 0x8001), &alone("fq_codel", 0)), alone("fq_codel", 0));
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
        // `direct_pkts` is the last word of the options.
        let end = shown.options.len() - 8;
        shown.options.replace_range(end.., "4d000000");
        assert!(is_made_as(&shown, &own));
        for other in [htb(0x20, 0x4001), htb(0x10, 1), QdiscSnapshot { kind: "fq".to_owned(), ..own.clone() }]
        {
            assert!(!is_made_as(&other, &own), "{other:?}");
        }
    }
}
