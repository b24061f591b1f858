//! Compares qdisc trees of a journal with those of the kernel.

use evenkeel_model::change::QdiscSnapshot;
use evenkeel_netlink::tc_state::QdiscState;

/// Whether a tree is a partly restored `from`: its root is, and each qdisc below is as before or a kernel
/// default. A tree looks like this while it is restored, root first.
#[must_use]
pub(crate) fn is_part_of(found: &[QdiscSnapshot], from: &[QdiscSnapshot]) -> bool {
    match (found.split_first(), from.first()) {
        (Some((root, below)), Some(wanted)) if !wanted.is_default() => {
            root == wanted && below.iter().all(|qdisc| qdisc.is_default() || from.contains(qdisc))
        }
        _ => false,
    }
}

/// Whether a qdisc is the one that a run created: same kind and handle, and for HTB the same settings. Options
/// of other kinds are not compared, because a dump can differ from the parameters (`direct_pkts` of HTB is a
/// counter).
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
    use evenkeel_model::change::Handle;

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
        assert!(is_made_as(&shown, &own));
        for other in [htb(0x20, 0x4001), htb(0x10, 1), QdiscSnapshot { kind: "fq".to_owned(), ..own.clone() }]
        {
            assert!(!is_made_as(&other, &own), "{other:?}");
        }
    }
}
