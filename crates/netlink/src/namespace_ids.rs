//! The ids of other network namespaces in this namespace (rtnetlink(7), `RTM_GETNSID`).
//!
//! When an interface moves to a namespace, that namespace gets an id in the namespace that the
//! interface left (`peernet2id_alloc` in `dev_change_net_namespace`, net/core/dev.c). So an interface
//! that left this namespace went to a namespace that has an id here.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::transport::{Netlink, NetlinkError, RawMessage};

/// From include/uapi/linux/rtnetlink.h.
const RTM_GETNSID: u16 = 90;
/// From include/uapi/linux/net_namespace.h.
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
/// Length of `struct rtgenmsg`, padded.
const HEADER_LENGTH: usize = 4;

impl Netlink {
    /// Returns the ids of all namespaces that have an id in this namespace.
    pub fn namespace_ids(&mut self) -> Result<BTreeSet<i32>, NetlinkError> {
        let request = RawMessage { kind: RTM_GETNSID, payload: vec![0; HEADER_LENGTH] };
        let answers = self.dump_raw(request, "list the known network namespaces")?;
        Ok(answers.iter().filter_map(|answer| id_in(&answer.payload)).collect())
    }

    /// Returns the id of a namespace in this namespace, if any.
    pub fn namespace_id(&mut self, namespace: BorrowedFd<'_>) -> Result<Option<i32>, NetlinkError> {
        let mut payload = vec![0; HEADER_LENGTH];
        payload.extend(8_u16.to_ne_bytes());
        payload.extend(NETNSA_FD.to_ne_bytes());
        payload.extend(namespace.as_raw_fd().to_ne_bytes());
        let request = RawMessage { kind: RTM_GETNSID, payload };
        let answers = self.get_raw(request, "report the ID of a network namespace")?;
        // -1 means that the namespace has no id here.
        Ok(answers.iter().find_map(|answer| id_in(&answer.payload)).filter(|id| *id >= 0))
    }
}

fn id_in(payload: &[u8]) -> Option<i32> {
    let mut rest = payload.get(HEADER_LENGTH..)?;
    while let [low, high, kind_low, kind_high, ..] = *rest {
        let length = usize::from(u16::from_ne_bytes([low, high]));
        if u16::from_ne_bytes([kind_low, kind_high]) == NETNSA_NSID {
            return Some(i32::from_ne_bytes(rest.get(4..8)?.try_into().ok()?));
        }
        rest = rest.get(length.max(4).next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_among_attributes_and_damage_is_none() {
        let mut payload = vec![0; HEADER_LENGTH];
        payload.extend([8, 0, 5, 0, 1, 1, 1, 1, 8, 0, 1, 0, 7, 0, 0, 0]);
        if cfg!(target_endian = "little") {
            assert_eq!(id_in(&payload), Some(7));
        }
        for length in 0..payload.len() {
            assert_eq!(id_in(&payload[..length]), None, "{length}");
        }
        assert_eq!(id_in(&[0; 12]), None);
    }
}
