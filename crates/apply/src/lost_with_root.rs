//! Finds the settings of other programs below Evenkeel's own root qdisc. The kernel removes these
//! settings with the root.

use evenkeel_model::change::QdiscSnapshot;
use evenkeel_model::soft_nic::{DEVICE_QUEUES, FIRST_LEAF, FIRST_QUEUE_CLASS, LINE_CLASS};
use evenkeel_netlink::tc::Handle;
use evenkeel_netlink::tc_state::QdiscState;
use evenkeel_netlink::{Netlink, NetlinkError};

/// Maximum number of queues to which Evenkeel gives leaves (`EK_MAX_QUEUES`).
const MAX_LEAVES: u16 = 256;

/// Returns whether Evenkeel chose this handle for a leaf. The kernel allocates handles from 0x8000
/// (`qdisc_alloc_handle`, net/sched/sch_api.c).
fn is_own_leaf(handle: Handle) -> bool {
    (FIRST_LEAF..FIRST_LEAF + MAX_LEAVES).contains(&handle.major)
}

fn is_own_class(minor: u16) -> bool {
    minor == LINE_CLASS || (FIRST_QUEUE_CLASS..FIRST_QUEUE_CLASS + DEVICE_QUEUES).contains(&minor)
}

/// Returns the qdiscs, classes and filters of other programs below the root. Evenkeel's own trees have
/// no filters. `known` qdiscs are not returned.
pub(crate) fn lost_with_root(
    netlink: &mut Netlink,
    index: u32,
    tree: &[QdiscState],
    known: &[QdiscSnapshot],
) -> Result<Vec<String>, NetlinkError> {
    let mut lost = Vec::new();
    let Some(root) = tree.iter().find(|qdisc| qdisc.parent == Handle::ROOT) else { return Ok(lost) };
    let mut places = vec![root.handle];
    let is_known = |qdisc: &QdiscState| {
        let same = |known: &QdiscSnapshot| {
            (&known.kind, known.handle.0, known.parent.0) == (&qdisc.kind, qdisc.handle, qdisc.parent)
        };
        is_own_leaf(qdisc.handle) || known.iter().any(same)
    };
    for qdisc in tree.iter().filter(|qdisc| qdisc.parent != Handle::ROOT && !qdisc.is_default()) {
        if is_known(qdisc) {
            places.push(qdisc.handle);
        } else {
            lost.push(format!("the qdisc {} at {}", qdisc.kind, qdisc.parent));
        }
    }
    if root.kind == "htb" {
        for class in netlink.htb_classes(index)? {
            places.push(class.handle);
            if class.handle.major == root.handle.major && !is_own_class(class.handle.minor) {
                lost.push(format!("the HTB class {}", class.handle));
            }
        }
    }
    for place in places {
        for filter in netlink.filters(index, place)? {
            lost.push(format!("a filter at {place}: {} (preference {})", filter.kind, filter.preference));
        }
    }
    Ok(lost)
}
