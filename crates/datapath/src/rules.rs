//! Rules for the weights of flows.

use std::ops::RangeInclusive;

use evenkeel_transmit::MAX_FLOW_WEIGHT;

use crate::error::DatapathError;
use crate::raw;

/// Maximum number of rules, including a last rule for a default weight.
pub const MAX_RULES: usize = raw::EK_MAX_RULES as usize;

/// A cgroup v2, as BPF programs identify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupId {
    /// Inode number of the cgroup's directory.
    pub id: u64,
    /// Depth below the root, which has depth 0.
    pub level: u32,
}

/// A weight for the flows that match all given fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// 1 to [`MAX_FLOW_WEIGHT`].
    pub weight: u32,
    pub protocol: Option<u8>,
    pub source_port: Option<RangeInclusive<u16>>,
    pub destination_port: Option<RangeInclusive<u16>>,
    /// Value and mask of `skb->mark` (`SO_MARK`, or set by a filter).
    pub mark: Option<(u32, u32)>,
    /// `skb->priority` (`SO_PRIORITY`).
    pub priority: Option<u32>,
    /// The sending socket is in this cgroup or in a descendant.
    pub cgroup: Option<CgroupId>,
}

/// Weight 1 for every flow.
impl Default for Rule {
    fn default() -> Self {
        Self {
            weight: 1,
            protocol: None,
            source_port: None,
            destination_port: None,
            mark: None,
            priority: None,
            cgroup: None,
        }
    }
}

impl Rule {
    pub(crate) fn to_raw(&self) -> Result<raw::ek_rule, DatapathError> {
        let weight = u16::try_from(self.weight).ok().filter(|weight| *weight > 0).ok_or_else(|| {
            DatapathError::Limit(format!(
                "a flow weight cannot be {}; use 1 to {MAX_FLOW_WEIGHT}",
                self.weight
            ))
        })?;
        let mut rule = raw::ek_rule { weight, ..raw::ek_rule::default() };
        if let Some(protocol) = self.protocol {
            rule.match_ |= raw::ek_match::EK_MATCH_PROTOCOL.0;
            rule.protocol = u16::from(protocol);
        }
        if let Some(ports) = &self.source_port {
            rule.match_ |= raw::ek_match::EK_MATCH_SOURCE_PORT.0;
            (rule.source_port_first, rule.source_port_last) = (*ports.start(), *ports.end());
        }
        if let Some(ports) = &self.destination_port {
            rule.match_ |= raw::ek_match::EK_MATCH_DESTINATION_PORT.0;
            (rule.destination_port_first, rule.destination_port_last) = (*ports.start(), *ports.end());
        }
        if let Some((mark, mask)) = self.mark {
            rule.match_ |= raw::ek_match::EK_MATCH_MARK.0;
            (rule.mark, rule.mark_mask) = (mark & mask, mask);
        }
        if let Some(priority) = self.priority {
            rule.match_ |= raw::ek_match::EK_MATCH_PRIORITY.0;
            rule.priority = priority;
        }
        if let Some(cgroup) = self.cgroup {
            rule.match_ |= raw::ek_match::EK_MATCH_CGROUP.0;
            (rule.cgroup, rule.cgroup_level) = (cgroup.id, cgroup.level);
        }
        Ok(rule)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_a_rule_names_is_what_matches() {
        let rule = Rule {
            weight: 4,
            destination_port: Some(443..=444),
            mark: Some((0xff12, 0xff)),
            cgroup: Some(CgroupId { id: 77, level: 2 }),
            ..Rule::default()
        };
        let raw = rule.to_raw().unwrap();
        assert_eq!(raw.match_, 4 + 8 + 32);
        assert_eq!((raw.weight, raw.destination_port_first, raw.destination_port_last), (4, 443, 444));
        assert_eq!((raw.mark, raw.mark_mask, raw.cgroup, raw.cgroup_level), (0x12, 0xff, 77, 2));
        assert_eq!(Rule { weight: 2, ..Rule::default() }.to_raw().unwrap().match_, 0, "matches all");
    }

    #[test]
    fn weights_have_a_range() {
        for weight in [0, 65_536] {
            assert!(Rule { weight, ..Rule::default() }.to_raw().is_err());
        }
        assert!(Rule { weight: 65_535, ..Rule::default() }.to_raw().is_ok());
        assert_eq!(Rule::default().to_raw().unwrap().weight, 1);
    }
}
