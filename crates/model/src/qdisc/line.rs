//! The shaper above a studied qdisc tree. It emulates the link, so that the studied qdisc has a
//! backlog.

use crate::change::Handle;
use crate::soft_nic;
use crate::units::{BitRate, ByteSize};

use super::{Node, QdiscTree, Setting, SettingValue, Step};

const LINE: Handle = Handle::new(0xfff0, 0);
/// Below `mq`, the shaper of queue *q* (from 1) has this major number plus *q*.
const QUEUE_LINES: u16 = 0xfe00;
/// Minor number of a TBF's class.
const CLASS: u16 = 1;

/// Returns whether a handle belongs to the shaper and not to the studied tree.
#[must_use]
pub fn is_line(handle: Handle) -> bool {
    handle.major == LINE.major || (QUEUE_LINES..0xff00).contains(&handle.major)
}

#[must_use]
pub fn line_burst(rate: BitRate) -> ByteSize {
    ByteSize::from_bytes(u64::from(soft_nic::burst_bytes(rate)))
}

/// Returns a shaper with the largest limit, so that only its child qdiscs drop packets, at their own limits.
fn line(parent: Handle, handle: Handle, rate: BitRate) -> Step {
    let setting = |name: &str, value| Setting { name: name.to_owned(), value };
    Step::Qdisc(Node {
        parent,
        handle,
        kind: "tbf".to_owned(),
        settings: vec![
            setting("rate", SettingValue::Rate(rate)),
            setting("burst", SettingValue::Size(line_burst(rate))),
            setting("limit", SettingValue::Size(ByteSize::from_bytes(u64::from(u32::MAX)))),
        ],
    })
}

impl QdiscTree {
    /// Returns the same tree below a shaper of this rate, so that the studied qdisc has a backlog.
    ///
    /// The shaper is a TBF at the root. If the root is `mq`, each queue has a TBF with an equal share of the
    /// rate instead. Shapers belong to the test bed ([`is_line`]).
    #[must_use]
    pub fn on_line(&self, rate: BitRate) -> Self {
        let Some(root) = self.root() else { return self.clone() };
        let (root_handle, root_is_mq) = (root.handle, root.kind == "mq");
        let below_root = |node: &Node| {
            node.parent.major == root_handle.major && node.parent.minor > 0 && node.parent.minor < 0x100
        };
        let queues = self.qdiscs().filter(|node| below_root(node)).count() as u64;
        let share = BitRate::from_bits_per_second((rate.bits_per_second() / queues.max(1)).max(8));
        let mut steps = Vec::with_capacity(self.steps.len() + 1);
        for step in &self.steps {
            let line = match step {
                Step::Qdisc(node) if !root_is_mq && node.parent == Handle::ROOT => {
                    Some(line(Handle::ROOT, LINE, rate))
                }
                Step::Qdisc(node) if root_is_mq && below_root(node) => {
                    let handle = Handle::new(QUEUE_LINES + node.parent.minor, 0);
                    Some(line(node.parent, handle, share))
                }
                _ => None,
            };
            let Some(line @ Step::Qdisc(above)) = &line else {
                steps.push(step.clone());
                continue;
            };
            steps.push(line.clone());
            if let Step::Qdisc(node) = step {
                steps.push(Step::Qdisc(Node {
                    parent: Handle::new(above.handle.major, CLASS),
                    ..node.clone()
                }));
            }
        }
        Self { steps }
    }
}
