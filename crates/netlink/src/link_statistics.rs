//! Counters of all interfaces by one dump, instead of 24 files per interface in sysfs.

use evenkeel_model::text::name_text;

use crate::link::{get_link, of_links};
use crate::tc_state::attribute;
use crate::transport::{Netlink, NetlinkError, RawMessage};

/// include/uapi/linux/if_link.h.
const IFLA_IFNAME: u16 = 3;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_STATS64: u16 = 23;
const IFLA_CARRIER: u16 = 33;
/// `IF_OPER_UNKNOWN` and `IF_OPER_UP` (include/uapi/linux/if.h).
const UNKNOWN: u8 = 0;
const UP: u8 = 6;
const HEADER_LENGTH: usize = 16;

/// The fields of `struct rtnl_link_stats64`, by the names in `/sys/class/net/INTERFACE/statistics`.
const COUNTERS: [&str; 24] = [
    "rx_packets",
    "tx_packets",
    "rx_bytes",
    "tx_bytes",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
    "multicast",
    "collisions",
    "rx_length_errors",
    "rx_over_errors",
    "rx_crc_errors",
    "rx_frame_errors",
    "rx_fifo_errors",
    "rx_missed_errors",
    "tx_aborted_errors",
    "tx_carrier_errors",
    "tx_fifo_errors",
    "tx_heartbeat_errors",
    "tx_window_errors",
    "rx_compressed",
    "tx_compressed",
    "rx_nohandler",
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStatistics {
    /// Index, which a rename does not change.
    pub index: u32,
    /// Bytes that are not UTF-8 are escaped.
    pub name: String,
    /// Whether the interface carries traffic (`operstate` up, or unknown unless the carrier is missing).
    pub up: bool,
    /// Counters by their names in sysfs.
    pub counters: Vec<(&'static str, u64)>,
}

fn read(message: &RawMessage) -> Option<LinkStatistics> {
    let index = message.payload.get(4..8)?.try_into().ok().map(u32::from_ne_bytes)?;
    let list = message.payload.get(HEADER_LENGTH..)?;
    let byte = |kind| attribute(list, kind).and_then(|value| value.first().copied());
    let name = attribute(list, IFLA_IFNAME)?.split(|byte| *byte == 0).next().unwrap_or_default();
    let statistics = attribute(list, IFLA_STATS64).unwrap_or_default();
    let counter = |at: usize| {
        let bytes = statistics.get(at * 8..at * 8 + 8)?.try_into().ok()?;
        Some(u64::from_ne_bytes(bytes))
    };
    let state = byte(IFLA_OPERSTATE).unwrap_or(UNKNOWN);
    Some(LinkStatistics {
        index,
        name: name_text(name),
        up: state == UP || state == UNKNOWN && byte(IFLA_CARRIER) != Some(0),
        // An older kernel has fewer fields.
        counters: COUNTERS.iter().enumerate().filter_map(|(at, name)| Some((*name, counter(at)?))).collect(),
    })
}

impl Netlink {
    /// Returns the counters of every interface of the namespace.
    pub fn link_statistics(&mut self) -> Result<Vec<LinkStatistics>, NetlinkError> {
        let answers = self.dump_raw(get_link(0, None), "list the interfaces' counters")?;
        Ok(of_links(&answers).filter_map(read).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_counters_are_those_of_sysfs() {
        let found = Netlink::open().unwrap().link_statistics().unwrap();
        let loopback = found.iter().find(|link| link.name == "lo").unwrap();
        assert_eq!(loopback.counters.len(), COUNTERS.len());
        for (name, _) in &loopback.counters {
            let path = format!("/sys/class/net/lo/statistics/{name}");
            assert!(std::path::Path::new(&path).exists(), "{path}");
        }
        // Loopback counts each packet as sent and as received (drivers/net/loopback.c).
        let value = |wanted: &str| loopback.counters.iter().find(|(name, _)| *name == wanted).unwrap().1;
        assert_eq!((value("rx_bytes"), value("rx_packets")), (value("tx_bytes"), value("tx_packets")));
    }

    #[test]
    fn what_is_cut_short_is_read_as_far_as_it_goes() {
        let mut payload = vec![0; HEADER_LENGTH];
        payload[4] = 7;
        crate::tc_state::push_attribute(&mut payload, IFLA_IFNAME, b"eth0\0");
        crate::tc_state::push_attribute(&mut payload, IFLA_STATS64, &[1; 20]);
        let message = |length: usize| RawMessage { kind: 16, payload: payload[..length].to_vec() };
        let found = read(&message(payload.len())).unwrap();
        assert_eq!((found.index, found.name.as_str(), found.up), (7, "eth0", true));
        assert_eq!(found.counters.len(), 2);
        for length in 0..payload.len() {
            let _ = read(&message(length));
        }
    }
}
