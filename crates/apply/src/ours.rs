//! The values by which a run recognizes its own changes.

use std::fmt;

use evenkeel_model::change::{Knob, QdiscSnapshot, Value};
use serde::{Deserialize, Serialize};

use crate::qdisc::is_made_as;

/// A set of values to which a run may set a knob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Ours {
    These(Vec<Value>),
    /// A range of sizes, including both ends.
    BytesBetween {
        least: u32,
        most: u32,
    },
    /// A range of numbers in a file or of a queue weight, including both ends.
    NumberBetween {
        least: u64,
        most: u64,
    },
    /// Any value, because a change of the channels may set a queue's setting to any value.
    Anything,
}

impl Ours {
    /// Returns whether these values contain a knob's value.
    #[must_use]
    pub fn includes(&self, knob: &Knob, value: &Value) -> bool {
        match (self, value) {
            (Self::Anything, _) => true,
            (Self::BytesBetween { least, most }, Value::Bytes(bytes)) => (least..=most).contains(&bytes),
            (Self::NumberBetween { least, most }, Value::Text(text)) => {
                text.trim().parse::<u64>().is_ok_and(|number| (least..=most).contains(&&number))
            }
            (Self::NumberBetween { least, most }, Value::Weight(Some(weight))) => {
                (*least..=*most).contains(&u64::from(*weight))
            }
            (Self::BytesBetween { .. } | Self::NumberBetween { .. }, _) => false,
            (Self::These(list), Value::Qdiscs(found)) => list.iter().any(|own| match own {
                Value::Qdiscs(own) => is_tree_as(found, own),
                _ => false,
            }),
            (Self::These(list), _) => list.iter().any(|own| knob.same(own, value)),
        }
    }
}

/// Returns whether two qdisc trees have the same root. Ignores the qdiscs below the roots, because the kernel
/// removes them with the root.
fn is_tree_as(found: &[QdiscSnapshot], own: &[QdiscSnapshot]) -> bool {
    match (found.first(), own.first()) {
        (Some(root), Some(own_root)) => is_made_as(root, own_root),
        _ => false,
    }
}

impl fmt::Display for Ours {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::These(list) => {
                let list: Vec<String> = list.iter().map(ToString::to_string).collect();
                formatter.write_str(&list.join(" or "))
            }
            Self::BytesBetween { least, most } => write!(formatter, "a value from {least} to {most} bytes"),
            Self::NumberBetween { least, most } => write!(formatter, "a value from {least} to {most}"),
            Self::Anything => formatter.write_str("any value"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use evenkeel_model::change::{Change, ClassHandle, Handle, root_qdisc};

    fn text(value: &str) -> Value {
        Value::Text(value.to_owned())
    }

    #[test]
    fn a_queue_without_a_weight_is_as_one_without_a_shaper() {
        let knob = Knob::QueueWeight(2);
        let weight = Value::Weight;
        assert!(knob.same(&weight(None), &weight(Some(0))));
        assert!(!knob.same(&weight(None), &weight(Some(1))));
        assert!(!knob.same(&weight(Some(2)), &weight(Some(1))));
        let ours = Ours::NumberBetween { least: 1, most: 9 };
        for (found, own) in
            [(None, false), (Some(0), false), (Some(1), true), (Some(9), true), (Some(10), false)]
        {
            assert_eq!(ours.includes(&knob, &weight(found)), own, "{found:?}");
        }
        assert_eq!(
            Change::new(knob.clone(), weight(Some(7))).shell("eth0"),
            "ynl --family net-shaper --do set --json '{\"ifindex\": '$(cat /sys/class/net/eth0/ifindex)', \"handle\": \
             {\"scope\": \"queue\", \"id\": 2}, \"weight\": 7}'"
        );
        let undo = Change::new(knob, weight(None)).shell("eth0").to_string();
        assert!(undo.contains("--do delete") && !undo.contains("weight"), "{undo}");
    }

    #[test]
    fn a_range_is_ours_to_both_ends() {
        let ours = Ours::BytesBetween { least: 10, most: 20 };
        let knob = Knob::HtbQuantum(ClassHandle(Handle::new(1, 0x10)));
        for (bytes, own) in [(9, false), (10, true), (20, true), (21, false)] {
            assert_eq!(ours.includes(&knob, &Value::Bytes(bytes)), own, "{bytes}");
        }
        assert!(!ours.includes(&knob, &text("15")));
        let ours = Ours::NumberBetween { least: 10, most: 20 };
        let knob = Knob::Sysctl("net/ipv4/tcp_limit_output_bytes".to_owned());
        for (number, own) in [("9", false), ("10", true), ("20", true), ("21", false), ("x", false)] {
            assert_eq!(ours.includes(&knob, &text(number)), own, "{number}");
        }
        assert!(!ours.includes(&knob, &Value::Bytes(15)));
    }

    #[test]
    fn a_tree_with_another_root_is_another_programs() {
        let own = root_qdisc("fq", 2);
        let ours = Ours::These(vec![Value::Qdiscs(own.clone())]);
        assert!(ours.includes(&Knob::RootQdisc, &Value::Qdiscs(own.clone())));
        let mut other = own;
        other[2].kind = "sfq".to_owned();
        assert!(ours.includes(&Knob::RootQdisc, &Value::Qdiscs(other.clone())));
        other[0].kind = "sfq".to_owned();
        assert!(!ours.includes(&Knob::RootQdisc, &Value::Qdiscs(other)));
    }
}
