//! Finds qdiscs that were removed or replaced between two readings of a host. The kernel deletes the counters
//! of such a qdisc.

use evenkeel_model::host::{HostFacts, Interface, QdiscFacts, Unknown};

use crate::loss_path::is_unread;
use crate::rules::needs;

/// Returns a gap for each interface that lost a qdisc between two readings: the number of packets that this
/// qdisc dropped after the first reading is unknown. Returns no gaps if a reading lacks the qdiscs.
#[must_use]
pub fn replaced_qdiscs(before: &HostFacts, after: &HostFacts) -> Vec<Unknown> {
    if is_unread(before, needs::QDISCS) || is_unread(after, needs::QDISCS) {
        return Vec::new();
    }
    let gap = |interface: &Interface| {
        let earlier = before.same_interface(interface)?;
        let lost: Vec<&QdiscFacts> = counting(earlier).filter(|qdisc| is_lost(qdisc, interface)).collect();
        let first = lost.first()?;
        let name = &interface.name;
        let others = match lost.len() - 1 {
            0 => String::new(),
            others => format!(" (and {others} more)"),
        };
        let why = format!(
            "{name} no longer has its qdisc {} at {}{others}, whose drops since the first reading are unknown",
            first.kind, first.parent
        );
        Some(Unknown::new(format!("/sys/class/net/{name}/qdiscs"), why))
    };
    after.interfaces.iter().filter_map(gap).collect()
}

/// Returns the qdiscs whose drops [`crate::loss_path::losses`] counts.
fn counting(interface: &Interface) -> impl Iterator<Item = &QdiscFacts> {
    let has_leaves = interface.qdiscs.iter().any(|qdisc| !qdisc.is_root());
    interface.qdiscs.iter().filter(move |qdisc| {
        let has_queue = !matches!(qdisc.kind.as_str(), "noqueue" | "ingress" | "clsact");
        has_queue && !(qdisc.is_root() && has_leaves)
    })
}

/// Returns whether an interface no longer has a qdisc. A new qdisc, for example the kernel's default qdisc,
/// may have the same kind, handle and parent. Its 64-bit count of bytes begins at 0.
fn is_lost(qdisc: &QdiscFacts, interface: &Interface) -> bool {
    !interface.qdiscs.iter().any(|now| now.is_same(qdisc) && now.bytes >= qdisc.bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::*;

    fn host(qdiscs: &[(&str, &str, &str, u64)]) -> HostFacts {
        let qdisc = |(kind, handle, parent, bytes): &(&str, &str, &str, u64)| QdiscFacts {
            kind: (*kind).to_owned(),
            handle: (*handle).to_owned(),
            parent: (*parent).to_owned(),
            bytes: *bytes,
            ..QdiscFacts::default()
        };
        let interface = Interface {
            name: "eth0".to_owned(),
            index: Some(2),
            qdiscs: qdiscs.iter().map(qdisc).collect(),
            ..Interface::default()
        };
        HostFacts { interfaces: vec![interface], ..HostFacts::default() }
    }

    fn gaps(before: &HostFacts, after: &HostFacts) -> Vec<String> {
        replaced_qdiscs(before, after).into_iter().map(|gap| gap.why).collect()
    }

    #[test]
    fn each_interface_that_lost_a_qdisc_has_one_gap() {
        let tree = host(&[("mq", "7:", "root", 9), ("fq", "8:", "7:1", 5), ("fq", "9:", "7:2", 4)]);
        assert_eq!(gaps(&tree, &tree), Vec::<String>::new());
        let words = |qdisc: &str| {
            format!("eth0 no longer has its qdisc {qdisc}, whose drops since the first reading are unknown")
        };
        let other_leaf = host(&[("mq", "7:", "root", 9), ("fq", "8:", "7:1", 5), ("sfq", "9:", "7:2", 4)]);
        assert_eq!(gaps(&tree, &other_leaf), [words("fq at 7:2")]);
        assert_eq!(gaps(&tree, &host(&[("pfifo", "1:", "root", 0)])), [words("fq at 7:1 (and 1 more)")]);
        let default = |bytes| host(&[("pfifo_fast", "0:", "root", bytes)]);
        assert_eq!(gaps(&default(5), &default(6)), Vec::<String>::new());
        assert_eq!(gaps(&default(5), &default(4)), [words("pfifo_fast at root")]);
        assert_eq!(replaced_qdiscs(&default(5), &default(4))[0].interface(), Some("eth0"));
    }

    #[test]
    fn what_has_no_drops_or_was_not_read_has_no_gap() {
        let without_queue = host(&[("noqueue", "0:", "root", 0), ("clsact", "ffff:", "ffff:fff1", 0)]);
        let fifo = host(&[("pfifo", "1:", "root", 0)]);
        assert_eq!(gaps(&without_queue, &fifo), Vec::<String>::new());
        let mut unread = host(&[]);
        unread.unknown.push(Unknown::new(needs::QDISCS, "missing"));
        assert_eq!((gaps(&unread, &fifo), gaps(&fifo, &unread)), (Vec::new(), Vec::new()));
        let mut new = host(&[]);
        new.interfaces[0].index = Some(3);
        assert_eq!(gaps(&fifo, &new), Vec::<String>::new());
    }
}
