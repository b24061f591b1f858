//! Qdiscs of all interfaces, with their counters.
//!
//! One dump covers every interface, because the kernel always lists the qdiscs of all interfaces.

use crate::tc::Handle;
use crate::tc_options::without_counts;
use crate::tc_state::{Answer, RTM_GETQDISC, RTM_NEWQDISC, attribute, attributes_of, request};
use crate::transport::{Netlink, NetlinkError};

const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
/// From `include/uapi/linux/gen_stats.h`.
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
const TCA_STATS_PKT64: u16 = 8;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QdiscOverview {
    pub interface: u32,
    pub kind: String,
    /// 0:0 for a qdisc that the kernel installed by default.
    pub handle: Option<Handle>,
    pub parent: Option<Handle>,
    pub bytes: u64,
    pub packets: u64,
    pub drops: u32,
    /// How often the device refused a packet.
    pub requeues: u32,
    /// How often a limit delayed packets.
    pub overlimits: u32,
    pub queue_length: u32,
    pub backlog_bytes: u32,
    /// Shaping rate, bytes/s; only for TBF.
    pub rate: Option<u64>,
    /// Queue limit in packets; only for a packet FIFO.
    pub limit_packets: Option<u32>,
    /// The option bytes of the dump, without counters.
    pub options: Vec<u8>,
}

impl QdiscOverview {
    /// Returns the attributes of the options, by number. Options that are one structure have no attributes.
    pub fn attributes(&self) -> impl Iterator<Item = (u16, &[u8])> {
        attributes_of(&self.options)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn overview(payload: &[u8]) -> Option<QdiscOverview> {
    let answer = Answer::new(payload)?;
    let kind = answer.kind()?;
    let options = attribute(answer.attributes, TCA_OPTIONS).unwrap_or_default();
    let statistics = attribute(answer.attributes, TCA_STATS2).unwrap_or_default();
    // struct gnet_stats_basic: bytes, packets; struct gnet_stats_queue: qlen, backlog, drops, requeues,
    // overlimits.
    let basic = attribute(statistics, TCA_STATS_BASIC).unwrap_or_default();
    let queue = attribute(statistics, TCA_STATS_QUEUE).unwrap_or_default();
    let packets = attribute(statistics, TCA_STATS_PKT64).and_then(|bytes| long(bytes, 0));
    let rate = || {
        let exact = attribute(options, TCA_TBF_RATE64).and_then(|bytes| long(bytes, 0));
        // struct tc_tbf_qopt begins with a struct tc_ratespec, whose rate is at offset 8.
        let short = || attribute(options, TCA_TBF_PARMS).and_then(|bytes| word(bytes, 8)).map(u64::from);
        exact.or_else(short)
    };
    Some(QdiscOverview {
        interface: answer.index.cast_unsigned(),
        handle: Some(answer.handle),
        parent: Some(answer.parent),
        bytes: long(basic, 0).unwrap_or(0),
        packets: packets.or_else(|| word(basic, 8).map(u64::from)).unwrap_or(0),
        queue_length: word(queue, 0).unwrap_or(0),
        backlog_bytes: word(queue, 4).unwrap_or(0),
        drops: word(queue, 8).unwrap_or(0),
        requeues: word(queue, 12).unwrap_or(0),
        overlimits: word(queue, 16).unwrap_or(0),
        rate: if kind == "tbf" { rate() } else { None },
        limit_packets: if kind == "pfifo" { word(options, 0) } else { None },
        options: without_counts(&kind, options),
        kind,
    })
}

impl Netlink {
    /// Returns every qdisc of the namespace, in the kernel's order.
    pub fn all_qdiscs(&mut self) -> Result<Vec<QdiscOverview>, NetlinkError> {
        let nowhere = Handle::new(0, 0);
        let answers = self.dump_raw(request(RTM_GETQDISC, 0, nowhere, nowhere), "list the qdiscs")?;
        let found = answers.iter().filter(|answer| answer.kind == RTM_NEWQDISC);
        Ok(found.filter_map(|answer| overview(&answer.payload)).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::tc::{attributes, words};

    #[test]
    fn counts_are_read_where_the_kernel_has_them() {
        let mut payload = words(&[0, 7, 0x8001_0000, u32::MAX, 2]);
        let basic = [1_000_u64.to_ne_bytes().to_vec(), words(&[10])].concat();
        let statistics =
            attributes(&[(TCA_STATS_BASIC, basic), (TCA_STATS_QUEUE, words(&[1, 1514, 5, 2, 9]))]);
        payload.extend(attributes(&[(1, b"pfifo\0".to_vec()), (2, words(&[100])), (TCA_STATS2, statistics)]));
        let found = overview(&payload).unwrap();
        assert_eq!((found.interface, found.kind.as_str()), (7, "pfifo"));
        assert_eq!((found.handle, found.parent), (Some(Handle::new(0x8001, 0)), Some(Handle::ROOT)));
        assert_eq!((found.bytes, found.packets, found.drops, found.requeues), (1_000, 10, 5, 2));
        assert_eq!((found.queue_length, found.backlog_bytes, found.overlimits), (1, 1514, 9));
        assert_eq!((found.limit_packets, found.rate), (Some(100), None));
        for length in 0..payload.len() {
            let _ = overview(&payload[..length]);
        }
    }

    #[test]
    fn the_kernel_lists_its_qdiscs() {
        let found = Netlink::open().unwrap().all_qdiscs().unwrap();
        assert!(found.iter().all(|qdisc| qdisc.interface > 0 && !qdisc.kind.is_empty()), "{found:?}");
    }
}
